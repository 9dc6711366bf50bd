"""Values of any type, read as what they should be. Nothing here raises, and nothing grows too big to keep."""

from __future__ import annotations

import json
from math import isfinite
from typing import Final, TypeVar

import msgspec
from msgspec import Raw

from spantail.formats.times import iso_ns, ms_ns
from spantail.model import MILLISECOND

T = TypeVar("T")

LONGEST: Final = 30 * 86_400_000
"""Milliseconds (30 days); what is said to have taken longer has no duration."""


def text(value: object, most: int = 200) -> str:
    """Ids and names, cut; some writers have numbers for ids."""
    if isinstance(value, str):
        return value[:most]
    return str(value)[:most] if isinstance(value, int) and not isinstance(value, bool) else ""


def number(value: object, most: float = 1e15) -> float | None:
    """A count or an amount; None for what is negative or none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value <= most and isfinite(value) else None


def duration_ns(milliseconds: object) -> int | None:
    found = number(milliseconds, LONGEST)
    return None if found is None else round(found * MILLISECOND)


def time_ns(value: object) -> int:
    """ISO 8601 or epoch milliseconds; 0 for what is no time, or one too far away to be kept."""
    time = iso_ns(value) if isinstance(value, str) else ms_ns(value)
    return time if time < 2**62 else 0


def head(raw: Raw, most: int) -> bytes:
    return bytes(memoryview(raw)[:most])


def some(raw: Raw) -> Raw | None:
    """None for null and for what is not there."""
    return raw if raw and head(raw, 4) != b"null" else None


def decoded(decoder: msgspec.json.Decoder[T], body: object) -> T | None:
    """JSON inside a row or a record; None for what is absent or not of that shape."""
    if isinstance(body, str):
        body = body.encode("utf-8", "replace")
    data = bytes(body) if isinstance(body, bytes | Raw) else b""
    if not data:
        return None
    try:
        return decoder.decode(data)
    except msgspec.ValidationError:
        return None
    except (ValueError, RecursionError):
        pass
    # Half an emoji, cut off with the output around it, is written as a lone surrogate.
    try:
        value = json.loads(data.decode("utf-8", "replace"), strict=False, parse_constant=lambda _: None)
        return decoder.decode(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None

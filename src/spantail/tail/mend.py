"""JSON that agents do write and strict parsers refuse, made acceptable; for the document tail.

Lone surrogates (text cut inside an emoji), NaN and Infinity, bytes that are no UTF-8, a byte order mark. Only the
offending bytes are replaced and all others stay as they are, so that entries read before are known again after.
"""

from __future__ import annotations

import re
from typing import Final

_BOM: Final = b"\xef\xbb\xbf"
_SURROGATE: Final = re.compile(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")
_LOW: Final = re.compile(rb"\\u[dD][c-fC-F][0-9a-fA-F]{2}")
_NO_NUMBER: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|-?(?:NaN|Infinity)', re.DOTALL)
_BACKSLASH: Final = 0x5C


def mend(document: bytes) -> bytes | None:
    """None if there is nothing to mend: the document is torn, or wrong in another way."""
    if document[-64:].rstrip()[-1:] not in (b"}", b"]"):
        return None
    mended = document.removeprefix(_BOM)
    try:
        mended.decode()
    except UnicodeDecodeError:
        mended = mended.decode("utf-8", "replace").encode()
    mended = _without_lone_surrogates(mended)
    if b"NaN" in mended or b"Infinity" in mended:
        mended = _NO_NUMBER.sub(lambda found: found[0] if found[0][:1] == b'"' else b"null", mended)
    return None if mended == document else mended


def _without_lone_surrogates(document: bytes) -> bytes:
    parts: list[bytes] = []
    at, low = 0, -1
    for found in _SURROGATE.finditer(document):
        start, end = found.span()
        if start == low or _escaped(document, start):
            continue
        if _LOW.fullmatch(found[0]) is None and _LOW.match(document, end) is not None:
            low = end
            continue
        parts += (document[at:start], b"\\ufffd")
        at = end
    return b"".join((*parts, document[at:]))


def _escaped(document: bytes, at: int) -> bool:
    """Whether the backslash at `at` is itself the second half of an escape."""
    before = at
    while before > 0 and document[before - 1] == _BACKSLASH:
        before -= 1
    return (at - before) % 2 == 1

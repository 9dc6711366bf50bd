"""One line of bytes -> the record or records in it.

The illusion kept for the tail: every line either gives bodies of the format's line type or one word that
says why not. The quick way (msgspec) is the tail's hot loop; what it refuses comes here, once in thousands
of lines: lone surrogates and NaN, which agents do write; wrong but convertible types; zero bytes left by a
crash; a record that begins in the middle of a line because the one before it was torn.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from math import isfinite
from typing import Any, Final, Literal

import msgspec

Reason = Literal["json", "type", "part", "depth", "oversized"]
"""Why a record is bad: no JSON, not what the format's lines are (or a part of it is not), nested too deep, too long."""

REFUSED: Final = (ValueError, RecursionError)
"""What a decoder raises: msgspec's errors and UnicodeDecodeError are ValueErrors."""

_BOM: Final = b"\xef\xbb\xbf"
_ATTEMPTS: Final = 16
"""New beginnings tried in one line, so that a line of rubbish costs no more than a few readings."""
_PARTS: Final = 8
"""How many parts of a record may be other than expected."""
_PLACE: Final = re.compile(r" - at `\$((?:\.[^.\[\]`]+|\[\d+\])+)`$")
_STEP: Final = re.compile(r"[^.\[\]]+")


_blank: Final[Any] = re.compile(r"[ \t\r\n]*").match


def _finite(text: str) -> float | None:
    number = float(text)
    return number if isfinite(number) else None


_scanner: Final = json.JSONDecoder(strict=False)
_tolerant: Final = json.JSONDecoder(strict=False, parse_constant=lambda _: None, parse_float=_finite)


class LineDecoder:
    """Prepared for one line type; `quick` for the hot loop, `rescue` for what it refuses."""

    def __init__(self, line: type[Any] | None) -> None:
        body: Any = dict[str, Any] if line is None else line
        self.quick = msgspec.json.Decoder(body).decode
        self._lenient = msgspec.json.Decoder(body, strict=False).decode

    def rescue(self, line: bytes) -> tuple[list[tuple[int, Any]], Reason | None]:
        """(where in the line, body) of each record in it, and what was wrong with the rest, if anything. `part`: with
        nothing but parts of these records, which are left out of them.

        A blank line is neither.
        """
        # Each byte as one character: JSON's own signs are ASCII, so the structure is the same and a place
        # in the text is a place in the bytes, whatever is wrong with their encoding.
        text = line.decode("latin-1").replace("\0", " ")
        found: list[tuple[int, Any]] = []
        reason: Reason | None = None
        at = 3 if line.startswith(_BOM) else 0
        for _ in range(_ATTEMPTS):
            at = _blank(text, at).end()
            if at == len(text):
                break
            try:
                end = _scanner.raw_decode(text, at)[1]
            except json.JSONDecodeError as error:
                reason = reason or "json"
                # A torn record makes the parser stumble where the next one begins.
                at = text.find("{", max(at + 1, error.pos - 2), error.pos + 2)
                if at < 0:
                    break
                continue
            except RecursionError:
                return found, "depth"
            except ValueError:  # an integer of more digits than Python converts
                return found, reason or "json"
            bodies, wrong = self._body(line[at:end])
            found += [(at, body) for body in bodies]
            if wrong is not None and reason in (None, "part"):
                reason = wrong
            at = end
        return found, reason

    def _body(self, part: bytes) -> tuple[list[Any], Reason | None]:
        """The body of one whole JSON value, if there is one, and what is wrong with it."""
        with suppress(*REFUSED):
            return [self.quick(part)], None
        wrong: Reason | None = None
        try:
            value = _tolerant.decode(part.replace(b"\0", b" ").decode("utf-8", "replace"))
            for _ in range(_PARTS + 1):
                try:
                    return [self._written_anew(value)], wrong
                except msgspec.ValidationError as error:
                    wrong = "part"
                    if not _left_out(value, str(error)):
                        break
        except RecursionError:
            return [], "depth"
        except ValueError:
            pass
        return [], "type"

    def _written_anew(self, value: Any) -> Any:
        """Decoded from text again, because msgspec converts no object into a Raw."""
        return self._lenient(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))


def _left_out(value: Any, error: str) -> bool:
    """Leaves out of a record the part that the decoder refused, so that one odd field does not cost the others;
    of a list all that are like it. False if it is the record as a whole."""
    place = _PLACE.search(error)
    if place is None:
        return False
    *steps, last = [int(step) if step.isdigit() else step for step in _STEP.findall(place[1])]
    try:
        for step in steps:
            value = value[step]
        if isinstance(last, int) and not isinstance(value[last], dict):
            kind = type(value[last])
            value[:] = [each for each in value if type(each) is not kind]
        else:
            del value[last]
    except (LookupError, TypeError):
        return False
    return True

"""How a tool call of Cline ended: the failure is inside the content, in several wrappings.

A list of {query, result, error, success}, one per command or file; or the same, or one object, as a JSON text; or
plain text. One failure among them makes the call an error. `is_error` stands only where the call itself was wrong.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec
from msgspec import Raw, Struct

from spantail.formats.cline.shapes import RAWS, TEXT, part, word
from spantail.model import Status

Outcome = tuple[Status, str, int | None]
"""Status, error type, exit code."""

EXIT_CODE = re.compile(r"exited with code (-?\d{1,9})")
ABORTED = ("was aborted", "aborted by user", "AbortError")
DENIED = ("denied", "rejected", "not approved", "declined")
READ = 2_000
"""How much of an error's text is looked at."""


class Piece(Struct, rename="camel"):
    success: Any = None
    error: Any = None
    finish_reason: Any = None


PIECE = msgspec.json.Decoder(Piece)


def outcome(content: Raw, *, is_error: bool) -> Outcome:
    text = ""
    pieces, plain = _pieces(content)
    failed = is_error
    for piece in pieces:
        if piece.success is False or (piece.error and piece.success is not True):
            failed = True
            text += f"{word(piece.error)[:READ]}\n"
        elif piece.finish_reason == "aborted":
            return "interrupted", "interrupted", None
        elif piece.finish_reason in ("error", "mistake_limit"):
            failed = True
    text += plain if is_error else ""
    if any(sign in text for sign in ABORTED) or plain.endswith("Command was aborted"):
        return "interrupted", "interrupted", None
    if not failed:
        return "ok", "", None
    code = EXIT_CODE.search(text)
    exit_code = int(code[1]) if code is not None else None
    if "timed out" in text:
        return "error", "timeout", exit_code
    # A command that ran was not denied, whatever it printed.
    if exit_code is None and any(sign in text.lower() for sign in DENIED) and "EACCES" not in text:
        return "error", "denied", None
    return "error", "tool_error", exit_code


def _pieces(content: Raw) -> tuple[list[Piece], str]:
    """The parts of a result that tell of success, and its text where it is only text."""
    first = bytes(memoryview(content)[:1])
    if first == b'"':
        text = word(part(TEXT, content)).strip()
        if text[:1] not in ("[", "{"):
            return [], text[:READ]
        content, first = Raw(text.encode("utf-8", "replace")), text[:1].encode()
    raws = part(RAWS, content) or () if first == b"[" else (content,) if first == b"{" else ()
    return [piece for raw in raws if (piece := part(PIECE, raw)) is not None], ""

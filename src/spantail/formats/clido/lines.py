"""The lines of a session, as far as they are read, and what their words mean."""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from spantail.formats.values import head
from spantail.model import Exit, Status

OUTCOMES: Final[dict[str, tuple[Exit, Status, str]]] = {
    "success": ("success", "ok", ""),
    "completed": ("success", "ok", ""),
    "max_turns": ("max_turns", "error", "max_turns"),
    "max_turns_reached": ("max_turns", "error", "max_turns"),
    "max_budget": ("max_budget", "error", "max_budget"),
    "budget_exceeded": ("max_budget", "error", "max_budget"),
    "per_turn_budget_exceeded": ("max_budget", "error", "max_budget"),
    "interrupted": ("interrupted", "interrupted", "interrupted"),
    "rate_limited": ("error", "error", "provider_error"),
    "max_wall_time_exceeded": ("error", "error", "timeout"),
    "max_tool_calls_per_turn": ("error", "error", "max_tool_calls_per_turn"),
    "stall_detected": ("error", "error", "stall_detected"),
    "malformed_model_output": ("error", "error", "malformed_model_output"),
    "doom_loop": ("error", "error", "doom_loop"),
}
"""Exit word -> exit, status and error type of the turn. Any other word is an error."""

DENIED: Final = re.compile(
    r"User (denied|rejected)|Permission denied by rule|Access denied:|Blocked: |\[DANGEROUS COMMAND"
    r"|In plan-only mode|Tool '[^']*' requires user approval"
)
TIMED_OUT: Final = re.compile(r"\btimed out\b", re.IGNORECASE)
EXIT_CODE: Final = re.compile(r"exit code (-?\d{1,9})\b", re.IGNORECASE)


class Line(Struct, gc=False):
    """Any value may be of any type: a line that is odd in one place is read for the others."""

    type: Any = None
    session_id: Any = None
    schema_version: Any = None
    start_time: Any = None
    project_path: Any = None
    content: Raw = Raw()
    tool_use_id: Any = None
    tool_name: Any = None
    input: Raw = Raw()
    is_error: Any = None
    duration_ms: Any = None
    subtype: Any = None
    message: Any = None
    exit_status: Any = None
    total_cost_usd: Any = None


class Block(Struct, gc=False):
    type: Any = None
    id: Any = None
    name: Any = None
    input: Raw = Raw()
    tool_use_id: Any = None
    is_error: Any = None
    content: Raw = Raw()


_ITEMS: Final = msgspec.json.Decoder(list[Raw])
_BLOCK: Final = msgspec.json.Decoder(Block)


def blocks(content: Raw) -> list[Block]:
    """The blocks of a message; a plain text is one block of text."""
    if head(content, 1) == b'"':
        return [Block(type="text")] if len(content) > 2 else []
    try:
        return [_BLOCK.decode(item) for item in _ITEMS.decode(content) if head(item, 1) == b"{"]
    except (ValueError, RecursionError):
        return []


def failure(content: Raw) -> tuple[str, int | None]:
    """Error type and exit code, by the words with which the agent begins the result."""
    words = head(content, 300).lstrip(b'"').decode("utf-8", "replace")
    if DENIED.match(words):
        return "denied", None
    code = EXIT_CODE.match(words)
    if code is not None:
        return "tool_error", int(code[1])
    return ("timeout" if TIMED_OUT.search(words) else "tool_error"), None

"""How a tool call ended: from its item, from an older end event, or from the words of its output.

The program writes no error flag into outputs, and an exit code stands in them as text, in a header
that differs between versions and tools. Only that header is looked at: a file that was printed may
hold the same words.
"""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Raw
from msgspec.json import Decoder

from spantail.formats.codex.lines import (
    MCP_RESULT,
    OBJECT,
    PARTS,
    TEXT,
    Item,
    McpOk,
    McpResult,
    OutputObject,
    Payload,
)
from spantail.formats.values import duration_ns, head, number, some
from spantail.model import Status

HEADER: Final = 16_384
"""Characters of an output in which its header must be found: a long command may stand before it."""
SHORT: Final = 300
"""And where no `Output:` ends the header."""
_EXITED: Final = re.compile(r"^Process exited with code (-?\d{1,9})$|^Exit code: (-?\d{1,9})$", re.MULTILINE)
_OUTPUT: Final = re.compile(r"^Output:", re.MULTILINE)
_ABORTED: Final = re.compile(r"(?:\A|\n)aborted by user")
_FAILED: Final = (
    "Agent depth limit reached",
    "Script failed",
    "Unknown model `",
    "agent with id ",
    "apply_patch verification failed",
    "collab manager unavailable",
    "collab spawn failed",
    "collab tool failed",
    "err: ",
    "exec_command failed",
    "execution error:",
    "failed in sandbox ",
    "failed to parse ",
    "image path `",
    "login shell is disabled",
    "request_user_input ",
    "resources/list failed",
    "resources/read failed",
    "resources/templates/list failed",
    "tool call error",
    "unable to ",
    "unsupported ",
    "update_plan is ",
    "view_image is not allowed",
    "write_stdin failed",
)
"""What the program itself answers to a call that it cannot carry out; none of its tools begins an answer so."""
_DENIED: Final = (
    "approval policy is ",
    "exec command rejected",
    "patch rejected",
    "rejected by user",
    "user cancelled MCP tool call",
    "user rejected",
)
_RAN: Final = re.compile(
    r"^Wall time:? (\d{1,7}(?:\.\d{1,9})?) s|^aborted by user after (\d{1,7}(?:\.\d{1,9})?)s", re.MULTILINE
)
_TIMED_OUT: Final = "command timed out after"


class Ending(NamedTuple):
    status: Status = "ok"
    error_type: str = ""
    exit_code: int | None = None


INTERRUPTED: Final = Ending("interrupted", "interrupted")
FAILED: Final = Ending("error", "tool_error")
DENIED: Final = Ending("error", "denied")


def decoded(decoder: Decoder[Any], raw: Raw | bytes) -> Any:
    """A part of a line that is not as expected costs that part alone."""
    if not raw:
        return None
    try:
        return decoder.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def code_of(value: object) -> int | None:
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**31:
        return value
    return None


def by_code(code: int) -> Ending:
    if code == -1:
        return Ending("interrupted", "interrupted", code)
    return Ending("error", "tool_error", code) if code else Ending(exit_code=0)


def of_item(item: Item) -> Ending:
    """item_completed: `status` and, for commands, the exit code."""
    if item.type == "McpToolCall" and _mcp_failed(item.result):
        return FAILED
    return of_status(item.status, item.exit_code)


def of_status(status: object, exit_code: object) -> Ending:
    code = code_of(exit_code)
    if status == "declined":
        return DENIED._replace(exit_code=code)
    if code:
        return by_code(code)
    return FAILED._replace(exit_code=code) if status == "failed" else Ending(exit_code=code)


def of_event(event: Payload) -> Ending:
    """exec_command_end, patch_apply_end and mcp_tool_call_end, before there were items."""
    if event.type == "mcp_tool_call_end":
        return FAILED if _mcp_failed(event.result) else Ending()
    if event.success is False and event.status is None:
        return FAILED
    ending = of_status(event.status, event.exit_code)
    if ending.exit_code and _TIMED_OUT.encode() in head(event.formatted_output, SHORT):
        return Ending("error", "timeout", ending.exit_code)
    return ending


def _mcp_failed(raw: Raw) -> bool:
    result: McpResult | None = decoded(MCP_RESULT, raw)
    if result is None:
        return False
    return some(result.err) is not None or _said_so(result) or (result.ok is not None and _said_so(result.ok))


def _said_so(about: McpResult | McpOk | OutputObject) -> bool:
    return about.is_error is True or about.error is True


def text_of(raw: Raw) -> str:
    """The beginning of an output's text: a string, or a list of parts that belong together."""
    first = head(raw, 1)
    if first == b'"':
        found: str = decoded(TEXT, raw) or ""
        return found[:HEADER] if found[:1] != "{" else found
    if first == b"[":
        return "\n".join(part.text for part in decoded(PARTS, raw) or () if part.text)[:HEADER]
    if first == b"{":
        about: OutputObject | None = decoded(OBJECT, raw)
        return text_of(about.content or about.output) if about is not None else ""
    return ""


def of_output(raw: Raw) -> Ending:
    """What an output line says."""
    if head(raw, 1) == b"{":
        about = decoded(OBJECT, raw)
        if about is not None and about.success is False:
            ending = of_text(text_of(raw))
            return ending if ending.status != "ok" else FAILED
    return of_text(text_of(raw))


def ran(raw: Raw) -> int | None:
    """How long the call took, where its output says so."""
    text = text_of(raw)
    if text[:1] == "{":
        about: OutputObject | None = decoded(OBJECT, text.encode("utf-8", "replace"))
        metadata = about.metadata if about is not None else None
        return _nanoseconds(metadata.duration_seconds) if metadata is not None else None
    border = _OUTPUT.search(text)
    found = _RAN.search(text, 0, border.start() if border is not None else SHORT)
    return _nanoseconds(float(found[1] or found[2])) if found is not None else None


def _nanoseconds(seconds: object) -> int | None:
    given = number(seconds)
    return duration_ns(given * 1000) if given is not None else None


def of_text(text: str) -> Ending:
    if text[:1] == "{":
        return _of_object(text)
    border = _OUTPUT.search(text)
    header = text[: border.start()] if border is not None else text[:SHORT]
    exited = _EXITED.search(header)
    if exited is not None:
        code = int(exited[1] or exited[2])
        if code and _TIMED_OUT in text[: len(header) + SHORT]:
            return Ending("error", "timeout", code)
        return by_code(code)
    if border is None and _ABORTED.search(header):
        return INTERRUPTED
    if text.startswith(_DENIED) or (border is None and "rejected by user" in header):
        return DENIED
    if text.startswith(_FAILED):
        return FAILED
    return Ending()


def _of_object(text: str) -> Ending:
    """`{"output": ..., "metadata": {"exit_code": ...}}`, and what MCP servers answered long ago."""
    about: OutputObject | None = decoded(OBJECT, text.encode("utf-8", "replace"))
    if about is None:
        return Ending()
    code = code_of(about.metadata.exit_code) if about.metadata is not None else None
    if code is None:
        return FAILED if _said_so(about) else Ending()
    if code and _TIMED_OUT in text[:SHORT]:
        return Ending("error", "timeout", code)
    return by_code(code)

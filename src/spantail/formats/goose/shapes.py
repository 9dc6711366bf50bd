"""What Goose writes into a message, as far as it is read. Anything may be of another type than expected."""

from __future__ import annotations

import re
from hashlib import blake2b
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct, field

from spantail.formats.times import iso_ns
from spantail.formats.values import decoded, text
from spantail.model import SECOND, Status

REQUESTS: Final = ("toolRequest", "frontendToolRequest")
WORDS: Final = ("text", "image", "thinking", "redactedThinking", "reasoning")
"""Blocks that a model says; a row of others (a confirmation asked for, a notice) ends nothing."""
NOTE: Final = re.compile(r"You MUST call the `\w*final_output` tool")
"""What the program says to the model in the user's place, when an answer in a given shape is still missing."""
DENIED: Final = "The user has declined to run this tool"
_EXIT: Final = re.compile(r"exit(?:ed)?(?: with)?(?: code| status)[: ]+(-?\d{1,10})\b")


class Block(Struct, gc=False):
    type: str = ""
    id: str | int | None = None
    text: Raw = Raw()
    call: Raw = field(name="toolCall", default=Raw())
    result: Raw = field(name="toolResult", default=Raw())


class Metadata(Struct, gc=False):
    user_visible: bool | None = field(name="userVisible", default=None)
    agent_visible: bool | None = field(name="agentVisible", default=None)


class Line(Struct, gc=False):
    """A line of the files before the database; the first one is about the session."""

    id: Any = None
    role: Any = None
    created: Any = None
    content: Raw = Raw()
    metadata: Raw = Raw()
    working_dir: Any = None
    accumulated_input_tokens: Any = None
    accumulated_output_tokens: Any = None


class _Asked(Struct, gc=False):
    name: str = ""
    arguments: Raw = Raw()


class _Call(Struct, gc=False):
    status: str = ""
    value: Raw = Raw()


class _Result(Struct, gc=False):
    status: str = ""
    value: Raw = Raw()
    error: Raw = Raw()


class _Content(Struct, gc=False):
    text: Raw = Raw()


class _Value(Struct, gc=False):
    content: Raw = Raw()
    is_error: bool | None = field(name="isError", default=None)
    structured: Raw = field(name="structuredContent", default=Raw())


class _Shell(Struct, gc=False):
    exit_code: int | None = None
    timed_out: bool | None = None


class _Task(Struct, gc=False):
    instructions: str = ""


_RAWS: Final = msgspec.json.Decoder(list[Raw])
_BLOCK: Final = msgspec.json.Decoder(Block)
_METADATA: Final = msgspec.json.Decoder(Metadata)
_CALL: Final = msgspec.json.Decoder(_Call)
_ASKED: Final = msgspec.json.Decoder(_Asked)
_RESULT: Final = msgspec.json.Decoder(_Result)
_VALUE: Final = msgspec.json.Decoder(_Value)
_CONTENT: Final = msgspec.json.Decoder(_Content)
_SHELL: Final = msgspec.json.Decoder(_Shell)
_TASK: Final = msgspec.json.Decoder(_Task)
_TEXT: Final = msgspec.json.Decoder(str)


# ------------------------------------------------------------------------------------ messages


def blocks(content: object) -> list[Block] | None:
    """None for what is no list; a block that cannot be read costs itself alone."""
    raws = decoded(_RAWS, content)
    if raws is None:
        return None
    found = [decoded(_BLOCK, raw) for raw in raws]
    return [block if block is not None else Block() for block in found]


def visible(metadata: object) -> tuple[bool, bool]:
    """To the user, to the model."""
    found = decoded(_METADATA, metadata) or Metadata()
    return found.user_visible is not False, found.agent_visible is not False


def said(of: list[Block]) -> bytes:
    """A digest of a prompt's words, empty if there are none: what a compaction repeats is known by it."""
    words = [decoded(_TEXT, block.text) or "" for block in of if block.type == "text"]
    return digest("\n".join(words)) if words else b""


def is_note(words: Raw) -> bool:
    return len(memoryview(words)) < 1000 and NOTE.match(decoded(_TEXT, words) or "") is not None


def mark(key: str, of: list[Block]) -> bytes:
    """Tells rows apart also where several have one key."""
    ids = [f"{block.type} {block.id}" for block in of]
    return digest("\n".join([key, *ids])) + said(of)


def digest(words: str) -> bytes:
    return blake2b(words.encode("utf-8", "replace"), digest_size=8).digest()


# --------------------------------------------------------------------------------------- tools


def asked(block: Block) -> tuple[str, Raw | None]:
    """The tool's name and its input. A call that the model got wrong has neither."""
    call = decoded(_CALL, block.call)
    value = decoded(_ASKED, call.value) if call is not None else None
    if value is None or not value.name:
        return "invalid", None
    return text(value.name), value.arguments or None


def instructions(arguments: Raw | None) -> bytes:
    task = decoded(_TASK, arguments)
    return digest(task.instructions) if task is not None and task.instructions else b""


class Outcome(Struct, gc=False):
    status: Status = "ok"
    error_type: str = ""
    exit_code: int | None = None
    output: Raw | None = None


def outcome(block: Block) -> Outcome:
    result = decoded(_RESULT, block.result)
    if result is None:
        return Outcome("error", "tool_error")
    if result.status == "error":
        words = decoded(_TEXT, result.error) or ""
        return Outcome("error", _error_type(words), None, result.error or None)
    # Older versions have the bare list of contents here, which is no error.
    value = decoded(_VALUE, result.value) or _Value()
    shell = decoded(_SHELL, value.structured) or _Shell()
    words = _words(value.content)
    failed = value.is_error is True or bool(shell.exit_code) or words.startswith(DENIED)
    if not failed:
        return Outcome("ok", "", shell.exit_code, result.value or None)
    found = _EXIT.search(words)
    exit_code = shell.exit_code if shell.exit_code is not None else int(found[1]) if found else None
    kind = "timeout" if shell.timed_out else _error_type(words)
    return Outcome("error", kind, exit_code, result.value or None)


def _words(content: Raw) -> str:
    """The beginning of what a tool answered."""
    if len(memoryview(content)) > 1 << 16:
        return ""
    for raw in decoded(_RAWS, content) or []:
        part = decoded(_CONTENT, raw)
        if part is not None and part.text:
            return (decoded(_TEXT, part.text) or "")[:2000]
    return ""


def _error_type(words: str) -> str:
    if words.startswith(DENIED):
        return "denied"
    low = words[:400].lower()
    return "timeout" if "timed out" in low or "timeout" in low else "tool_error"


# --------------------------------------------------------------------------------------- times


def seconds(value: object) -> int:
    """Whole seconds since the epoch; 0 for what is no time."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e14:
        return 0
    return int(value) if value < 1e11 else int(value) // 1000


def moment(value: object) -> int:
    """A time as SQLite writes it, in UTC, or as epoch seconds; in nanoseconds."""
    return iso_ns(value) if isinstance(value, str) else seconds(value) * SECOND

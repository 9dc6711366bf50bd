"""What OpenCode stores, as far as it is read: sessions, messages and their parts.

The same JSON objects stand in the rows' column `data`, inside events, and in files of their own; there with id,
sessionID and messageID inside, in rows with those beside them. Fields whose type depends on other fields stay
undecoded until it is known what they are.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType, field

from spantail.formats.values import decoded
from spantail.model import Usage

Number = int | float | None


class Time(Struct, gc=False):
    """Epoch milliseconds."""

    created: Number = None
    completed: Number = None
    start: Number = None
    end: Number = None
    compacted: Number = None


class Cache(Struct, gc=False):
    read: Number = None
    write: Number = None


class Tokens(Struct, gc=False):
    total: Number = None
    input: Number = None
    output: Number = None
    reasoning: Number = None
    cache: Cache | None = None

    def usage(self) -> Usage | None:
        """None for all zeros: then there was no call. Output came with the reasoning inside before 1.3.16 and
        without since; the total tells which, never the version."""
        cache = self.cache or Cache()
        read, write = count(cache.read), count(cache.write)
        input_, output, reasoning = count(self.input), count(self.output), count(self.reasoning)
        if not (read or write or input_ or output or reasoning):
            return None
        inside = output >= reasoning
        if self.total:
            inside = count(self.total) == input_ + output + read + write
        return Usage(input_, read, write, output if inside else output + reasoning, reasoning)


class Session(Struct, gc=False):
    id: str = ""
    parent: str | None = field(name="parentID", default=None)
    directory: str | None = None
    version: str | None = None


class Message(Struct, gc=False):
    id: str = ""
    session: str = field(name="sessionID", default="")
    role: str = ""
    time: Time = field(default_factory=Time)
    parent: str | None = field(name="parentID", default=None)
    model: str | None = field(name="modelID", default=None)
    provider: str | None = field(name="providerID", default=None)
    agent: str | None = None
    cost: Number = None
    tokens: Tokens | None = None
    finish: str | None = None
    error: Raw = Raw()


class State(Struct, gc=False):
    status: str = ""
    input: Raw = Raw()
    output: Raw = Raw()
    error: Raw = Raw()
    metadata: Raw = Raw()
    time: Time = field(default_factory=Time)


class Part(Struct, gc=False):
    id: str = ""
    session: str = field(name="sessionID", default="")
    message: str = field(name="messageID", default="")
    type: str = ""
    text: Raw = Raw()
    synthetic: bool | None = None
    ignored: bool | None = None
    time: Time | None = None
    tool: str | None = None
    call: str | None = field(name="callID", default=None)
    state: State | None = None
    metadata: Raw = Raw()
    auto: bool | None = None
    overflow: bool | None = None
    attempt: Number = None


class Happened(Struct, gc=False):
    """An event's data: a whole message or a whole part as it is from now on."""

    info: Message | None = None
    part: Part | None = None
    time: Number = None


class Metadata(Struct, gc=False):
    """Of a tool's state: what its tool writes there."""

    exit: Any | UnsetType = UNSET
    description: Any | UnsetType = UNSET
    session: str | None = field(name="sessionId", default=None)
    interrupted: bool | None = None


class About(Struct, gc=False):
    """Of a tool's part: what the model's provider says of it."""

    executed: bool | None = field(name="providerExecuted", default=None)


class TaskInput(Struct, gc=False):
    kind: str | None = field(name="subagent_type", default=None)


class ErrorData(Struct, gc=False):
    status: Number = field(name="statusCode", default=None)


class Failure(Struct, gc=False):
    name: str = ""
    data: ErrorData | None = None


SESSION: Final = msgspec.json.Decoder(Session)
MESSAGE: Final = msgspec.json.Decoder(Message)
PART: Final = msgspec.json.Decoder(Part)
HAPPENED: Final = msgspec.json.Decoder(Happened)
METADATA: Final = msgspec.json.Decoder(Metadata)
ABOUT: Final = msgspec.json.Decoder(About)
TASK_INPUT: Final = msgspec.json.Decoder(TaskInput)
FAILURE: Final = msgspec.json.Decoder(Failure)
TEXT: Final = msgspec.json.Decoder(str)


def count(value: Number) -> int:
    return int(value) if value is not None and 0 < value < 1e15 else 0


def text(raw: Raw, length: int = 400) -> str:
    """The beginning of a string, without decoding all of a long one."""
    if len(memoryview(raw)) <= 4 * length:
        return (decoded(TEXT, raw) or "")[:length]
    return bytes(memoryview(raw)[1 : 4 * length]).decode("utf-8", "replace")[:length]

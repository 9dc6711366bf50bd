"""The parts of pi's lines that are read. Scalars are `Any`: one of another type costs itself, not its line."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Raw, Struct, field

from spantail.formats.values import number, text
from spantail.model import Usage

NOTHING = Raw(b"")


class LineUsage(Struct, gc=False):
    """Disjoint kinds on every wire; `cost` is an object with a total, and in an extension's sum a number."""

    input: Any = 0
    output: Any = 0
    cache_read: Any = field(name="cacheRead", default=0)
    cache_write: Any = field(name="cacheWrite", default=0)
    cache_write_1h: Any = field(name="cacheWrite1h", default=0)
    reasoning: Any = 0
    cost: Any = None

    def usage(self) -> Usage | None:
        """None for zeros: a call that failed, or a server that does not tell."""
        output, written = _count(self.output), _count(self.cache_write)
        usage = Usage(
            input=_count(self.input),
            cache_read=_count(self.cache_read),
            cache_write=written,
            output=output,
            reasoning=min(_count(self.reasoning), output),
            cache_write_1h=min(_count(self.cache_write_1h), written),
        )
        return usage if usage.total() else None

    def dollars(self) -> float | None:
        """None for zero: so pi writes what it has no price for, and the price list may know better."""
        cost = self.cost.get("total") if isinstance(self.cost, dict) else self.cost
        return number(cost, 1e9) or None


class Message(Struct, gc=False):
    role: Any = ""
    content: Raw = NOTHING
    timestamp: Any = None
    provider: Any = None
    model: Any = None
    usage: LineUsage | None = None
    stop: Any = field(name="stopReason", default=None)
    error: Any = field(name="errorMessage", default=None)
    response_id: Any = field(name="responseId", default=None)
    tool_call_id: Any = field(name="toolCallId", default=None)
    is_error: Any = field(name="isError", default=None)
    details: Raw = NOTHING


class Line(Struct, gc=False):
    type: Any = ""
    id: Any = None
    timestamp: Any = None
    message: Message | None = None
    usage: LineUsage | None = None
    cwd: Any = None
    provider: Any = None
    model: Any = None
    model_id: Any = field(name="modelId", default=None)
    parent_session: Any = field(name="parentSession", default=None)
    branched_from: Any = field(name="branchedFrom", default=None)
    target_id: Any = field(name="targetId", default=None)
    replacement: Raw = NOTHING
    tokens_before: Any = field(name="tokensBefore", default=None)

    def key(self) -> str:
        """The same for a fork's copy: its id with its time, since eight digits alone are not unique. Lines of
        the first format have no id; their own times and what they answer tell them apart."""
        if id_ := text(self.id):
            return f"{id_}@{text(self.timestamp)}"
        message = self.message or Message()
        about = text(message.timestamp) or text(message.tool_call_id)
        return f"{text(self.timestamp)}|{text(self.type)}|{text(message.role)}|{about}"


class Block(Struct, gc=False):
    type: Any = None
    id: Any = None
    name: Any = None
    arguments: Raw = NOTHING


BLOCKS = msgspec.json.Decoder(list[Block])


def decoded(decoder: msgspec.json.Decoder[Any], raw: Raw) -> Any:
    """A part of a line that is not as expected costs that part alone."""
    if not raw:
        return None
    try:
        return decoder.decode(raw)
    except (ValueError, RecursionError):
        return None


def _count(value: Any) -> int:
    return round(number(value) or 0)

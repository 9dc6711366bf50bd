"""The shapes of what Gemini CLI writes, as far as they are read; and how its older documents are cut.

A line is the session's metadata, a message, or a change (`$set`); one type serves for all, and for the entries of the
older documents. Scalars are `Any`: a field of another type than usual costs that field, not its line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePath
from typing import Any

import msgspec
from msgspec import Raw, Struct, field

from spantail.formats.times import iso_ns
from spantail.formats.values import number, text
from spantail.model import Usage

NOTHING = Raw(b"")


class Line(Struct, gc=False):
    session_id: Any = field(name="sessionId", default=None)
    start_time: Any = field(name="startTime", default=None)
    kind: Any = None
    directories: Any = None
    changes: Raw = field(name="$set", default=NOTHING)
    id: Any = None
    timestamp: Any = None
    type: Any = None
    content: Raw = NOTHING
    tokens: Raw = NOTHING
    model: Any = None
    tool_calls: Raw = field(name="toolCalls", default=NOTHING)


class Document(Struct, gc=False):
    """`session-*.json`: the same messages, in one document."""

    session_id: Any = field(name="sessionId", default=None)
    start_time: Any = field(name="startTime", default=None)
    kind: Any = None
    directories: Any = None
    messages: list[Raw] = []


class Changes(Struct, gc=False):
    messages: Raw = NOTHING
    summary: Any = None


class Old(Struct, gc=False):
    """A message in `$set.messages`: the history again, without tokens."""

    id: Any = None
    timestamp: Any = None
    content: Raw = NOTHING


class Part(Struct, gc=False):
    text: Any = None
    response: Raw = field(name="functionResponse", default=NOTHING)


class Tokens(Struct, gc=False):
    input: Any = 0
    output: Any = 0
    cached: Any = 0
    thoughts: Any = 0
    tool: Any = 0

    def usage(self) -> Usage | None:
        """`input` holds what was cached, `output` not the thoughts, and `tool` is outside both."""
        given, cached = _count(self.input), _count(self.cached)
        thoughts = _count(self.thoughts)
        usage = Usage(
            input=max(0, given - cached) + _count(self.tool),
            cache_read=cached,
            output=_count(self.output) + thoughts,
            reasoning=thoughts,
        )
        return usage if usage.total() else None


class ToolCall(Struct, gc=False):
    id: Any = None
    name: Any = None
    args: Raw = NOTHING
    result: Raw = NOTHING
    status: Any = None
    timestamp: Any = None
    agent_id: Any = field(name="agentId", default=None)


class AgentArguments(Struct, gc=False):
    agent_name: Any = None


LINE = msgspec.json.Decoder(Line)
DOCUMENT = msgspec.json.Decoder(Document)
CHANGES = msgspec.json.Decoder(Changes)
OLD = msgspec.json.Decoder(list[Old])
PARTS = msgspec.json.Decoder(list[Part])
STRING = msgspec.json.Decoder(str)
TOKENS = msgspec.json.Decoder(Tokens)
TOOL_CALLS = msgspec.json.Decoder(list[ToolCall])
AGENT_ARGUMENTS = msgspec.json.Decoder(AgentArguments)

UUID = re.compile(r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}")
FIRST_TIME = re.compile(rb'"(?:startTime|timestamp)"\s*:\s*"([^"]{10,40})"')
SESSION = re.compile(rb'"sessionId"\s*:\s*"([^"]{1,80})"')


def decoded(decoder: msgspec.json.Decoder[Any], raw: Raw | bytes) -> Any:
    """A part of a record that is not as expected costs that part alone."""
    if not raw:
        return None
    try:
        return decoder.decode(raw)
    except (ValueError, RecursionError):
        return None


def content(raw: Raw) -> tuple[str, bool, bool]:
    """(the text, whether there is a text, whether there are results of tools)."""
    if bytes(memoryview(raw)[:1]) == b'"':
        words = decoded(STRING, raw) or ""
        return words, bool(words), False
    parts: list[Part] = decoded(PARTS, raw) or []
    texts = [part.text for part in parts if isinstance(part.text, str)]
    return "\n".join(texts), bool(texts), any(part.response for part in parts)


def entries(document: bytes) -> Iterator[tuple[str, Raw | bytes]]:
    """The metadata without what changes at each write, then every message."""
    found = DOCUMENT.decode(document)
    metadata = {
        "sessionId": found.session_id,
        "startTime": found.start_time,
        "kind": found.kind,
        "directories": found.directories,
    }
    yield "metadata", msgspec.json.encode(metadata)
    for message in found.messages:
        yield "", message


def folder_of(path: str) -> str:
    """The folder of a subagent's file below `chats`, which is named after its parent; else empty."""
    parent = PurePath(path).parent
    return "" if parent.name == "chats" else parent.name


def nested(parent: str, agent: str) -> str:
    """The key of a subagent's session; the older ids of six letters need the parent's beside them."""
    return agent if UUID.fullmatch(agent) else f"{parent}/{agent}"


def unit(path: str, head: bytes) -> tuple[int, str]:
    """A session's file and those of its subagents are read together."""
    found = FIRST_TIME.search(head)
    time = iso_ns(found[1].decode("ascii", "replace")) if found is not None else 0
    session = SESSION.search(head)
    named = session[1].decode("utf-8", "replace") if session is not None else path
    return time, folder_of(path) or named


def _count(value: Any) -> int:
    return round(number(value) or 0)


def slug_of(path: str) -> str:
    """The project's short name, the folder around `chats`; older ones are named after a digest."""
    parts = PurePath(path).parts
    at = len(parts) - 1 - parts[::-1].index("chats") if "chats" in parts else 0
    slug = parts[at - 1] if at else ""
    return "" if re.fullmatch(r"[0-9a-f]{64}", slug) else text(slug)

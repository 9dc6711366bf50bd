"""The shapes of what Cline writes, as far as they are read; and how its documents are cut into entries.

Scalars are `Any`: a field of another type than usual costs that field, not the message around it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePath
from typing import Any

import msgspec
from msgspec import Raw, Struct

from spantail.formats.times import iso_ns, ms_ns
from spantail.model import MILLISECOND

NOTHING = Raw(b"")


class Origin(Struct, rename="camel"):
    version: Any = None
    mode: Any = None
    subagent: Any = None


class Document(Struct):
    """`<id>.messages.json` and those of subagents and teammates."""

    agent: Any = None
    origin: Raw = NOTHING
    messages: list[Raw] = []
    system_prompt: Raw = NOTHING


class Header(Struct, omit_defaults=True, tag_field="role", tag="header"):
    """The first entry of a document: what is known of its session, without what changes at each write."""

    agent: str = ""
    version: str = ""
    subagent: str = ""
    cwd: str = ""


class Stamp(Struct):
    """Of a message, to tell when it was written at the latest."""

    role: Any = None
    ts: Any = None


class Message(Struct, rename={"model_info": "modelInfo", "summary": "compactionSummary"}):
    id: Any = None
    role: Any = None
    ts: Any = None
    before: Any = None
    """When the next message was written; put in by `entries` where a user's message has no time of its own."""
    content: Raw = NOTHING
    metadata: Raw = NOTHING
    model_info: Raw = NOTHING
    metrics: Raw = NOTHING
    summary: Any = None


class Block(Struct):
    type: Any = None
    id: Any = None
    name: Any = None
    text: Any = None
    input: Raw = NOTHING
    tool_use_id: Any = None
    content: Raw = NOTHING
    is_error: Any = None


class Metadata(Struct, rename="camel"):
    kind: Any = None
    display_role: Any = None


class ModelInfo(Struct):
    id: Any = None
    provider: Any = None


class Metrics(Struct, rename="camel"):
    input_tokens: Any = 0
    output_tokens: Any = 0
    cache_read_tokens: Any = 0
    cache_write_tokens: Any = 0
    cost: Any = None


class Task(Struct):
    """The input of a call that starts a subagent."""

    task: Any = None


class Git(Struct):
    branch: Any = None


class HistoryOrigin(Struct):
    version: Any = None


class Fork(Struct, rename="camel"):
    forked_from_session_id: Any = None


class ManifestMetadata(Struct):
    git: Raw = NOTHING
    origin: Raw = msgspec.field(default=NOTHING, name="sessionHistoryOrigin")
    fork: Raw = NOTHING
    terminal_marker_at: Any = None


class Manifest(Struct):
    """`<id>.json`."""

    session_id: Any = None
    cwd: Any = None
    provider: Any = None
    status: Any = None
    exit_code: Any = None
    ended_at: Any = None
    metadata: Raw = NOTHING


class HookResult(Struct, rename="camel"):
    id: Any = None
    output: Raw = NOTHING
    error: Any = None
    duration_ms: Any = None
    ended_at: Any = None


class HookSession(Struct, rename="camel"):
    root_session_id: Any = None


class Hook(Struct):
    """A line of hooks.jsonl."""

    ts: Any = None
    name: Any = msgspec.field(default=None, name="hookName")
    session: HookSession | None = msgspec.field(default=None, name="sessionContext")
    parent_agent_id: Any = None
    tool_result: HookResult | None = None


DOCUMENT = msgspec.json.Decoder(Document)
HEADER = msgspec.json.Decoder(Header)
STAMP = msgspec.json.Decoder(Stamp)
MESSAGE = msgspec.json.Decoder(Message)
ORIGIN = msgspec.json.Decoder(Origin)
BLOCK = msgspec.json.Decoder(Block)
BLOCKS = msgspec.json.Decoder(list[Block])
RAWS = msgspec.json.Decoder(list[Raw])
TEXT = msgspec.json.Decoder(str)
METADATA = msgspec.json.Decoder(Metadata)
MODEL_INFO = msgspec.json.Decoder(ModelInfo)
METRICS = msgspec.json.Decoder(Metrics)
TASK = msgspec.json.Decoder(Task)
MANIFEST = msgspec.json.Decoder(Manifest)
MANIFEST_METADATA = msgspec.json.Decoder(ManifestMetadata)
GIT = msgspec.json.Decoder(Git)
HISTORY_ORIGIN = msgspec.json.Decoder(HistoryOrigin)
FORK = msgspec.json.Decoder(Fork)

WORKING_DIRECTORY = re.compile(rb"Working Directory: ((?:[^\\\"]|\\[^nr]){1,4000})(?:\\[nr]|\")")
SESSION_TIME = re.compile(r"(\d{13})(?:\D|$)")
FIRST_TIME = re.compile(rb'"ts"\s*:\s*(\d{13})\D|"started_at"\s*:\s*"([^"]{10,40})"')


def part(decoder: msgspec.json.Decoder[Any], raw: Raw | bytes) -> Any:
    """A part of a record that is not as expected costs that part alone."""
    if not raw:
        return None
    try:
        return decoder.decode(raw)
    except UnicodeDecodeError:
        pass
    except (msgspec.MsgspecError, RecursionError):
        return None
    try:
        return decoder.decode(bytes(raw).decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None


def word(value: Any) -> str:
    return value if isinstance(value, str) else ""


def entries(document: bytes) -> Iterator[tuple[str, Raw | bytes]]:
    """The header, then every message. The key tells nothing apart that the messages' own ids do not."""
    found = DOCUMENT.decode(document)
    origin = part(ORIGIN, found.origin) or Origin()
    cwd = WORKING_DIRECTORY.search(memoryview(found.system_prompt))
    header = Header(
        agent=word(found.agent),
        version=word(origin.version),
        subagent=word(origin.subagent),
        cwd=word(part(TEXT, b'"' + cwd[1] + b'"')) if cwd is not None else "",
    )
    yield "header", msgspec.json.encode(header)
    for message in _dated(found.messages):
        yield "", message


def _dated(messages: list[Raw]) -> list[Raw | bytes]:
    """Some versions date the replies only. Then the reply tells when its prompt was written at the latest."""
    dated: list[Raw | bytes] = []
    after = 0
    for message in reversed(messages):
        stamp: Stamp = part(STAMP, message) or Stamp()
        time = ms_ns(stamp.ts) or iso_ns(word(stamp.ts))
        if after and not time and stamp.role == "user":
            dated.append(b'{"before":%d,' % (after // MILLISECOND) + bytes(memoryview(message)[1:]))
        else:
            dated.append(message)
        after = time or after
    return dated[::-1]


def blocks(content: Raw) -> list[Block]:
    """The blocks of a message; a text alone is one block."""
    if bytes(memoryview(content)[:1]) == b'"':
        text = part(TEXT, content)
        return [Block(type="text", text=text)] if text else []
    found = part(BLOCKS, content)
    if found is None:
        found = [block for raw in part(RAWS, content) or () if (block := part(BLOCK, raw)) is not None]
    return list(found)


def session_time(session: str) -> int:
    """A session's id begins with the time at which it was made."""
    found = SESSION_TIME.match(session)
    return ms_ns(int(found[1])) if found is not None else 0


def unit(path: str, head: bytes) -> tuple[int, str]:
    """The files of a session's folder are read together."""
    folder = PurePath(path).parent.name
    time = session_time(folder)
    if not time and (found := FIRST_TIME.search(head)) is not None:
        time = ms_ns(int(found[1])) if found[1] else iso_ns(found[2].decode("ascii", "replace"))
    return time, folder


def before_all(path: str, head: bytes) -> tuple[int, str]:  # noqa: ARG001 the joint's shape
    """The log of the hooks tells the times of all sessions' calls, so it is read before all of them."""
    return 1, path

"""The shapes of a task's folder, as Cline's VS Code extension (and Roo Code, Kilo Code) write it.

Scalars are `Any`: a field of another type than usual costs that field, not the message around it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePath
from typing import Any

import msgspec
from msgspec import Raw, Struct

from spantail.formats.cline.messages import amount, number
from spantail.formats.cline.shapes import NOTHING, RAWS, TEXT, part, session_time, word
from spantail.formats.times import ms_ns
from spantail.model import Usage

FIRST_TS = re.compile(rb'"ts"\s*:\s*(\d{13})\D')


class UiMessage(Struct, rename="camel"):
    """An entry of ui_messages.json."""

    ts: Any = None
    type: Any = None
    say: Any = None
    ask: Any = None
    text: Raw = NOTHING
    partial: Any = None
    model_info: Raw = NOTHING

    def words(self) -> str:
        return word(part(TEXT, self.text))


class ModelInfo(Struct, rename="camel"):
    model_id: Any = None
    provider_id: Any = None


class Request(Struct, rename="camel"):
    """The text of `api_req_started`, `deleted_api_reqs` and `subagent_usage`."""

    tokens_in: Any = 0
    tokens_out: Any = 0
    cache_writes: Any = 0
    cache_reads: Any = 0
    cost: Any = None
    cancel_reason: Any = None
    api_protocol: Any = None
    request: Any = None

    def usage(self) -> Usage:
        """Cline tells the input without the cache; where a protocol is named (Roo, Kilo) it holds the cache."""
        given, read, write = number(self.tokens_in), number(self.cache_reads), number(self.cache_writes)
        if self.api_protocol and given >= read + write:
            given -= read + write
        return Usage(input=given, cache_read=read, cache_write=write, output=number(self.tokens_out))

    def price(self) -> float | None:
        return amount(self.cost)


class ToolSaid(Struct, rename="camel"):
    """The text of `tool` and `use_mcp_server`."""

    tool: Any = None
    tool_name: Any = None
    type: Any = None


class Retry(Struct, rename="camel"):
    attempt: Any = None
    max_attempts: Any = None
    delay_seconds: Any = None


class Spoken(Struct, rename="camel"):
    """A message of api_conversation_history.json."""

    role: Any = None
    content: Raw = NOTHING
    ts: Any = None
    model_info: Raw = NOTHING
    metrics: Raw = NOTHING


class Tokens(Struct):
    prompt: Any = 0
    completion: Any = 0
    cached: Any = 0


class SpokenMetrics(Struct):
    tokens: Raw = NOTHING
    cost: Any = None


class ModelUse(Struct):
    ts: Any = None
    model_id: Any = None
    model_provider_id: Any = None


class Environment(Struct):
    cline_version: Any = None


class TaskMetadata(Struct):
    """task_metadata.json."""

    model_usage: Raw = NOTHING
    environment_history: Raw = NOTHING


UI_MESSAGE = msgspec.json.Decoder(UiMessage)
TASK_MODEL = msgspec.json.Decoder(ModelInfo)
REQUEST = msgspec.json.Decoder(Request)
TOOL_SAID = msgspec.json.Decoder(ToolSaid)
RETRY = msgspec.json.Decoder(Retry)
SPOKEN = msgspec.json.Decoder(Spoken)
TOKENS = msgspec.json.Decoder(Tokens)
SPOKEN_METRICS = msgspec.json.Decoder(SpokenMetrics)
MODEL_USE = msgspec.json.Decoder(ModelUse)
ENVIRONMENT = msgspec.json.Decoder(Environment)
TASK_METADATA = msgspec.json.Decoder(TaskMetadata)


def inside(decoder: msgspec.json.Decoder[Any], text: str) -> Any:
    """JSON inside a text."""
    return part(decoder, text.encode("utf-8", "replace")) if text[:1] == "{" else None


def each(decoder: msgspec.json.Decoder[Any], raw: Raw) -> list[Any]:
    return [one for item in part(RAWS, raw) or () if (one := part(decoder, item)) is not None]


def task_entries(document: bytes) -> Iterator[tuple[str, Raw]]:
    """The document is a plain list; messages are told apart by their own times."""
    for message in RAWS.decode(document):
        yield "", message


def task_unit(path: str, head: bytes) -> tuple[int, str]:
    """The files of a task's folder are read together. Cline names it by its time, Roo by a random id."""
    folder = PurePath(path).parent.name
    time = session_time(folder)
    if not time and (found := FIRST_TS.search(head)) is not None:
        time = ms_ns(int(found[1]))
    return time, folder

"""Cline (CLI and SDK core): one JSON document per session and per subagent, rewritten after every message.

    ~/.cline/data/sessions/<id>/<id>.messages.json            the session
    .../agent_<...>.messages.json, <name>__<...>.messages.json  its subagents and teammates

Every reply has its usage (`inputTokens` holds the cache); replies without any are streams that broke off. A turn
begins at a message with a text of a person and ends at a reply that asks for no tool, at a message `error_...`,
at an aborted call, or at a tool that submits the result. Of tool calls only the end is told: a single one began
with the reply; those of a batch run one after the other, subagents side by side, so their times are estimates.

Nothing tells which call started a subagent, but its first message is the task of that call, word for word. So the
key of a nested session is made of the main session and the task's text: both files can name it. Tasks of the same
text share a session, and take their calls in order.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import PurePath
from typing import Any

from msgspec import Struct

from spantail.formats.cline.companions import UNIQUE, beside
from spantail.formats.cline.results import outcome
from spantail.formats.cline.shapes import (
    HEADER,
    MESSAGE,
    METADATA,
    METRICS,
    MODEL_INFO,
    TASK,
    Block,
    Message,
    Metadata,
    Metrics,
    ModelInfo,
    blocks,
    part,
    session_time,
    word,
)
from spantail.formats.times import iso_ns, ms_ns
from spantail.model import (
    Called,
    Closed,
    Event,
    Linked,
    Noted,
    Prompted,
    Record,
    Replied,
    Returned,
    Started,
    Usage,
)

AGENT_TOOLS = frozenset(("spawn_agent", "team_run_task"))
SUBMITS = frozenset(("submit_and_exit", "attempt_completion"))
NO_PROMPT = frozenset(("compaction_summary", "recovery_notice"))
TAGS = re.compile(r"</?user_input[^>]{0,100}>")
KEEP = 64
"""Open calls remembered by a reader."""
PAST = 16
"""Prompts remembered by a reader."""


def task_digest(text: str) -> str:
    """What a call's task and its subagent's first message have in common."""
    plain = TAGS.sub("", text).strip()
    return blake2b(plain.encode("utf-8", "replace"), digest_size=8).hexdigest()


def number(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e15:
        return 0
    return round(value)


def amount(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e9:
        return None
    return float(value)


def usage_of(metrics: Metrics) -> Usage:
    read, write = number(metrics.cache_read_tokens), number(metrics.cache_write_tokens)
    given = number(metrics.input_tokens)
    # Less than the cache alone cannot hold the cache.
    return Usage(
        input=given - read - write if given >= read + write else given,
        cache_read=read,
        cache_write=write,
        output=number(metrics.output_tokens),
    )


class OpenCall(Struct, array_like=True):
    key: str
    name: str
    batch: bool


class MessagesReader(Struct):
    main: str = ""
    """The session of the folder."""
    session: str = ""
    """That of the messages: the main one, or the nested one of the task being worked on."""
    nested: bool = False
    agent_id: str = ""
    name: str = ""
    last: int = 0
    prompted: int = 0
    """When the turn began; what is older than that and comes now is history that was written anew."""
    prompts: list[str] = []
    calls: dict[str, OpenCall] = {}
    """Open tool calls by id."""
    batch_end: int = 0
    """When the last call of the batch ended that runs alone."""
    failed: str = ""
    """The last message that told of a failure."""

    def read(self, record: Record) -> Iterator[Event]:
        message: Message | None = part(MESSAGE, record.body)
        if message is None:
            return
        if not self.main:
            name = PurePath(record.path)
            self.main = name.parent.name
            self.nested = name.name.removesuffix(".messages.json") != self.main
            self.last = session_time(self.main)
            self.session = "" if self.nested else self.main
        if message.role == "header":
            yield from self._header(record)
            return
        stated = ms_ns(message.ts) or iso_ns(word(message.ts))
        time = stated or self._latest(message, record.arrival)
        self.last = max(self.last, time)
        metadata = part(METADATA, message.metadata) or Metadata()
        id_ = word(message.id) or f"{self.main}/{PurePath(record.path).name}/{record.position}"
        past = 0 < stated < self.prompted
        if message.role == "user":
            yield from self._user(message, metadata, id_, time, record.path, past=past, stated=stated > 0)
        elif message.role == "assistant" and not past:
            if not self.session:
                # A subagent without its task: work that no call can be found for.
                self.session = f"{self.main}/{PurePath(record.path).name.removesuffix('.messages.json')}"
                yield self._nested(time)
            if id_.startswith("error_") or metadata.display_role == "error":
                yield from self._error(id_, time)
            else:
                yield from self._reply(message, id_, time)

    def _latest(self, message: Message, arrival: int) -> int:
        """When a message without a time was there; the first prompt is given as the session is made."""
        known = [time for time in (arrival, ms_ns(message.before)) if time]
        return min(known) if known and (self.prompts or not self.last) else self.last or arrival

    def _header(self, record: Record) -> Iterator[Event]:
        header = part(HEADER, record.body)
        if header is None:
            return
        if header.agent in ("subagent", "teammate"):
            self.nested = True
            self.session = "" if self.session == self.main else self.session
        if self.nested:
            # A subagent is called by its id, a teammate by its name.
            self.agent_id = header.subagent
            self.name = header.subagent if header.agent == "teammate" else ""
            return
        yield Started(session=self.session, cwd=header.cwd, version=header.version)

    def _nested(self, time: int) -> Started:
        return Started(
            session=self.session, time=time, parent=self.main, name=self.name, agent_id=self.agent_id
        )

    # ------------------------------------------------------------------- prompts and results

    def _user(
        self,
        message: Message,
        metadata: Metadata,
        id_: str,
        time: int,
        path: str,
        *,
        past: bool,
        stated: bool,
    ) -> Iterator[Event]:
        if metadata.kind == "compaction_summary" or message.summary:
            if self.session and not past:
                yield Noted(session=self.session, time=time, kind="compaction")
            return
        found = blocks(message.content)
        results = [block for block in found if block.type == "tool_result"]
        for block in results if not past else ():
            yield from self._result(block, time, stated=stated)
        others = [block for block in found if block.type != "tool_result"]
        if not others or metadata.kind in NO_PROMPT or metadata.display_role in ("system", "status", "error"):
            return
        text = "\n".join(word(block.text) for block in others if block.type == "text")
        if results and "<user_input" not in text:
            return  # something said to the model along with the results
        if id_ in self.prompts:
            return
        self.prompts = [*self.prompts, id_][-PAST:]
        self.prompted = time
        self.calls = {}
        if self.nested:
            self.session = f"{self.main}/{task_digest(text)}"
            yield self._nested(time)
        elif (known := beside(path, self.main)) is not None:
            yield known
        yield Prompted(session=self.session, time=time, turn=id_, content=message.content)

    def _result(self, block: Block, time: int, *, stated: bool) -> Iterator[Event]:
        id_ = word(block.tool_use_id)
        if not id_ or not self.session:
            return
        call = self.calls.pop(id_, None) or OpenCall(id_, "", batch=False)
        start = 0
        if call.batch and call.name not in AGENT_TOOLS:
            start = self.batch_end if self.batch_end < time else 0
            self.batch_end = time
        status, error_type, exit_code = outcome(block.content, is_error=block.is_error is True)
        yield Returned(
            session=self.session,
            time=time,
            call=call.key,
            status=status,
            error_type=error_type,
            exit_code=exit_code,
            start=start,
            source="estimate" if call.batch or not stated else None,
            output=block.content or None,
        )
        if status == "interrupted":
            yield Closed(session=self.session, time=time, status="interrupted", error_type="interrupted")
        elif call.name in SUBMITS and status == "ok":
            yield Closed(session=self.session, time=time)

    # ------------------------------------------------------------------------------- replies

    def _error(self, id_: str, time: int) -> Iterator[Event]:
        if id_ == self.failed:
            return
        self.failed = id_
        yield Noted(session=self.session, time=time, kind="provider_error", error_type="provider_error")
        yield Closed(session=self.session, time=time, status="error", error_type="provider_error")

    def _reply(self, message: Message, id_: str, time: int) -> Iterator[Event]:
        tools = [b for b in blocks(message.content) if b.type == "tool_use" and word(b.id)]
        metrics: Metrics | None = part(METRICS, message.metrics)
        usage = usage_of(metrics) if metrics is not None else None
        if usage is not None and not usage.total():
            if not tools:
                return  # a stream that broke off; if the turn failed, an error follows
            usage = None
        info = part(MODEL_INFO, message.model_info) or ModelInfo()
        cost = amount(metrics.cost) if metrics is not None else None
        yield Replied(
            session=self.session,
            time=time,
            call=id_,
            id=id_,
            model=word(info.id),
            provider=word(info.provider),
            usage=usage,
            final=usage is not None,
            ends=not tools,
            cost=cost,
            content=message.content or None,
        )
        self.batch_end = 0
        for block in tools:
            yield from self._call(block, id_, time, batch=len(tools) > 1)

    def _call(self, block: Block, reply: str, time: int, *, batch: bool) -> Iterator[Event]:
        id_, name = word(block.id), word(block.name)
        if id_ in self.calls:
            return  # the message was written anew
        key = id_ if len(id_) >= UNIQUE else f"{reply}/{id_}"
        self.calls[id_] = OpenCall(key, name, batch)
        if len(self.calls) > KEEP:
            del self.calls[next(iter(self.calls))]
        starts = name in AGENT_TOOLS
        yield Called(
            session=self.session,
            time=time,
            call=key,
            id=id_,
            name=name,
            input=block.input or None,
            model_call=reply,
            starts_agent=starts,
        )
        task = part(TASK, block.input) if starts else None
        if task is not None and word(task.task):
            nested = f"{self.main}/{task_digest(task.task)}"
            yield Started(session=nested, time=time, parent=self.main)
            yield Linked(session=nested, time=time, call=key, parent=self.session)

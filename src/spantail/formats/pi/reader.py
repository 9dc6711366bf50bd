"""pi: JSON lines, one file per session; the lines are a tree by `parentId`.

    $PI_CODING_AGENT_DIR/sessions/--<cwd with dashes>--/<time>_<id>.jsonl

All branches of the tree stay in the file, and all of them count. A fork's file begins with copies of its original's
lines, with their ids and times, so these two together are the key of a turn or call. The file is made with the first
reply; what came before is then written at once. A reply is one line with usage and cost: its message has the time of
the request, the line that of its end. A turn begins at a message of the user, and ends at a reply that asks for no
tool, or that failed or was aborted. A failed reply that a `context_edit` takes back at once was only a try.

Versions before 0.87 take nothing back. What they try again is told by its words, and a turn that failed so is over
when nothing more comes of it.

A tool call begins with the reply's line and ends with the result's. Results of a batch bear one time where they ran
side by side, so these are estimates. Calls in a reply that failed or was aborted were never run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePath, PureWindowsPath
from typing import Literal

from msgspec import Struct

from spantail.formats.pi.lines import BLOCKS, Block, Line, LineUsage, Message, decoded
from spantail.formats.pi.results import Caller, children, outcome
from spantail.formats.times import iso_ns
from spantail.formats.values import number, some, text, time_ns
from spantail.model import (
    MILLISECOND,
    Called,
    Closed,
    Event,
    Noted,
    Prompted,
    Record,
    Replied,
    Returned,
    Started,
)

ENDS = frozenset(("stop", "length", "deferred"))
FAILED = frozenset(("error", "aborted"))
ABORTED = frozenset(
    ("this operation was aborted", "the operation was aborted", "request was aborted", "operation aborted")
)
"""Words of an `error` that was an abort."""
SUMMARIES = frozenset(("compaction", "branch_summary", "usage"))
TRANSIENT = re.compile(
    r"\b(429|5\d\d)\b|overloaded|rate.?limit|too many requests|(server|internal|connection|network|socket).{0,3}error|"
    r"unavailable|fetch failed|terminated|time.?out|timed out|hang up|reset|other side closed|"
    r"too long|context.(window|length)|exceeds",
    re.IGNORECASE,
)
"""Words of an `error` that pi tries again, some of them after a compaction."""
STATUS_CODE = re.compile(r"\s*(\d{3})\b")
FIRST_TIME = re.compile(rb'"timestamp"\s*:\s*"([^"]{10,40})"')
TOGETHER = 10 * MILLISECOND
"""Results of calls that ran side by side are written within this time."""
KEEP = 256
"""Open calls remembered by a reader."""


class OpenCall(Struct, array_like=True):
    key: str
    start: int
    batch: bool


class PiReader(Struct):
    session: str = ""
    provider: str = ""
    model: str = ""
    """That of the last reply; summaries name none."""
    replied: bool = False
    turn: str = ""
    asked: bool = False
    """The last reply asked for tools: the loop is running."""
    outcome: Literal["", "ok", "error", "interrupted"] = ""
    """How the turn ended, as far as it has."""
    failed: str = ""
    """Id of the reply that failed, which may turn out to have been a try."""
    edits: bool = False
    """This version takes a failed reply back when it tries again."""
    again: bool = False
    """The reply failed, and may be tried again without a word."""
    last: int = 0
    calls: dict[str, OpenCall] = {}
    batch_end: int = 0

    def read(self, record: Record) -> Iterator[Event]:
        line: Line = record.body
        if not self.session:
            self.session = _session_of(record.path)
        kind, time = line.type, time_ns(line.timestamp)
        if kind == "message" and line.message is not None:
            role = line.message.role
            if role == "assistant":
                yield from self._assistant(line, line.message, time)
            elif role == "toolResult":
                yield from self._result(line.message, time)
            elif role == "user":
                yield from self._user(line, line.message, time)
        elif kind == "session":
            yield from self._header(line)
        elif kind == "model_change":
            yield from self._model_change(line)
        elif kind == "context_edit":
            yield from self._context_edit(line, time)
        elif isinstance(kind, str) and kind in SUMMARIES:
            yield from self._summary(line, time)
        if kind != "session":  # a fork's header is younger than the copies after it
            self.last = max(self.last, time)

    # --------------------------------------------------------------------- who this is about

    def _header(self, line: Line) -> Iterator[Event]:
        self.session = text(line.id) or self.session
        self.provider, self.model = text(line.provider), text(line.model_id)
        origin = text(line.parent_session, 4_000) or text(line.branched_from, 4_000)
        yield Started(
            session=self.session,
            cwd=text(line.cwd, 4_000),
            provider=self.provider,
            copied_from=_session_of(origin) if origin else "",
        )

    def _model_change(self, line: Line) -> Iterator[Event]:
        provider, model = text(line.provider), text(line.model_id)
        if not model:  # a fork of pi writes both in one word
            provider, _, model = text(line.model).partition("/")
        if not self.replied:
            self.model = model
        yield from self._provided(provider)

    def _provided(self, provider: str) -> Iterator[Event]:
        """The session's provider is its first one: a later one would be told of turns that had ended before
        as well. Each reply has its own."""
        if provider and not self.provider:
            yield Started(session=self.session, provider=provider)
        self.provider = provider or self.provider

    # --------------------------------------------------------------------- prompts and replies

    def _user(self, line: Line, message: Message, time: int) -> Iterator[Event]:
        if self.asked and 0 < time_ns(message.timestamp) < self.last <= time:
            # Typed before the loop had come so far: it was queued, and steers the turn that runs. (Where the lines'
            # own times went back, one of them was wrong and nothing can be told from them.)
            yield Noted(session=self.session, time=time, kind="queued_prompt")
            return
        self.turn = line.key()
        self.asked, self.outcome, self.failed, self.calls = False, "", "", {}
        self.again = False
        yield Prompted(session=self.session, time=time, turn=self.turn, content=some(message.content))

    def _assistant(self, line: Line, message: Message, time: int) -> Iterator[Event]:
        call, stop = line.key(), text(message.stop)
        failed = stop in FAILED
        self.model, self.replied = text(message.model) or self.model, True
        yield from self._provided(text(message.provider))
        aborted = stop == "aborted" or _aborted(message)
        blocks: list[Block] = decoded(BLOCKS, message.content) or []
        tools = [] if failed else [block for block in blocks if block.type == "toolCall"]
        usage = message.usage.usage() if message.usage is not None else None
        ends = not tools and stop in ENDS
        if usage is not None or not failed:
            start = time_ns(message.timestamp)
            yield Replied(
                session=self.session,
                time=time,
                call=call,
                id=text(message.response_id),
                model=self.model,
                provider=self.provider,
                usage=usage,
                final=usage is not None,
                stop=stop,
                ends=ends,
                rests=not tools and not failed,
                start=start if 0 < start <= time else 0,
                cost=_dollars(message.usage),
                status="interrupted" if failed and aborted else "error" if failed else "ok",
                error_type="" if not failed else "interrupted" if aborted else "provider_error",
                content=some(message.content),
            )
        if self.again:
            self.again = False
            yield Noted(session=self.session, time=time, kind="retry")
        self.asked, self.outcome, self.failed = bool(tools), "ok" if ends else "", ""
        if failed:
            yield from self._failure(line, message, time, aborted=aborted)
        self.batch_end = 0
        for n, block in enumerate(tools):
            yield self._tool(call, block, n, time, batch=len(tools) > 1)

    def _failure(self, line: Line, message: Message, time: int, *, aborted: bool) -> Iterator[Event]:
        if aborted:
            self.outcome = "interrupted"
        else:
            self.outcome, self.failed = "error", text(line.id)
            words = text(message.error, 2_000)
            self.again = not self.edits and TRANSIENT.search(words) is not None
            code = STATUS_CODE.match(words)
            word = code[1] if code is not None else "provider_error"
            yield Noted(session=self.session, time=time, kind="provider_error", error_type=word)
        yield self._closed("", time)

    def _closed(self, turn: str, time: int) -> Closed:
        if self.outcome == "interrupted":
            return Closed(
                session=self.session, time=time, turn=turn, status="interrupted", error_type="interrupted"
            )
        return Closed(
            session=self.session,
            time=time,
            turn=turn,
            status="error",
            error_type="provider_error",
            rests=self.again,
        )

    def _context_edit(self, line: Line, time: int) -> Iterator[Event]:
        """The failed reply is taken back: the loop tries again."""
        if not self.failed or text(line.target_id) != self.failed or some(line.replacement) is not None:
            return
        self.failed, self.outcome, self.edits, self.again = "", "", True, False
        yield Noted(session=self.session, time=time, kind="retry")
        # The mark is taken back as well, and something has to say that the turn goes on.
        yield Closed(session=self.session, time=time, turn=self.turn, status="pending")
        yield Prompted(session=self.session, time=time, turn=line.key(), human=False)

    def _summary(self, line: Line, time: int) -> Iterator[Event]:
        """A model call that made a summary (or kept the cache warm): of the turn that runs, or after it."""
        usage = line.usage.usage() if line.usage is not None else None
        if usage is not None:
            yield Replied(
                session=self.session,
                time=time,
                call=line.key(),
                model=text(line.model_id) or text(line.model) or self.model,
                provider=text(line.provider) or self.provider,
                usage=usage,
                final=True,
                stop=text(line.type),
                ends=self.outcome != "" and not self.again,
                cost=_dollars(line.usage),
            )
            if self.outcome in ("error", "interrupted"):
                # It changes nothing in how the turn ended, if that is still open.
                yield self._closed(self.turn or "?", time)
        if line.type == "compaction":
            before = number(line.tokens_before)
            attrs: dict[str, str | int | float | bool] = {} if before is None else {"pre_tokens": int(before)}
            yield Noted(session=self.session, time=time, kind="compaction", attrs=attrs)

    # ------------------------------------------------------------------------------- tools

    def _tool(self, call: str, block: Block, n: int, time: int, *, batch: bool) -> Called:
        id_ = text(block.id)
        # Servers of small models give the same id again and again.
        key = f"{call}/{id_ or n}"
        self.calls[id_] = OpenCall(key, time, batch)
        if len(self.calls) > KEEP:
            del self.calls[next(iter(self.calls))]
        return Called(
            session=self.session,
            time=time,
            call=key,
            id=id_,
            name=text(block.name),
            input=some(block.arguments),
            model_call=call,
        )

    def _result(self, message: Message, time: int) -> Iterator[Event]:
        call = self.calls.pop(text(message.tool_call_id), None)
        if call is None:
            return
        start = 0
        if call.batch:
            # Older versions run a batch one after the other.
            start = self.batch_end if 0 < self.batch_end < time - TOGETHER else 0
            self.batch_end = time
        yield from self._inner(message, call, time)
        status, error_type, exit_code = outcome(message.content, is_error=message.is_error is True)
        yield Returned(
            session=self.session,
            time=time,
            call=call.key,
            status=status,
            error_type=error_type,
            exit_code=exit_code,
            start=start,
            source="estimate" if call.batch else None,
            output=some(message.content),
        )

    def _inner(self, message: Message, call: OpenCall, time: int) -> Iterator[Event]:
        """Model calls that a tool made."""
        usage = message.usage.usage() if message.usage is not None else None
        if usage is not None:
            yield Replied(
                session=self.session,
                time=time,
                call=f"{call.key}/usage",
                model=text(message.model) or self.model,
                provider=self.provider,
                usage=usage,
                final=True,
                start=call.start,
                cost=_dollars(message.usage),
            )
        elif b'"usage"' in bytes(memoryview(message.details)):
            caller = Caller(self.session, self.turn, call.key, self.provider, self.model, call.start, time)
            yield from children(message.details, caller)


def _dollars(usage: LineUsage | None) -> float | None:
    return usage.dollars() if usage is not None else None


def _aborted(message: Message) -> bool:
    return text(message.error).strip(" .").lower() in ABORTED


def _session_of(path: str) -> str:
    """The id in a file's name `<time>_<id>.jsonl`; the name where there is none."""
    name = (PureWindowsPath(path) if "\\" in path else PurePath(path)).name.removesuffix(".jsonl")
    return name.partition("_")[2] or name


def unit(path: str, head: bytes) -> tuple[int, str]:
    """A fork's header is younger than that of its original, whatever the times of its copies."""
    found = FIRST_TIME.search(head)
    return iso_ns(found[1].decode("ascii", "replace")) if found is not None else 0, path

"""A generic append-only log: one JSON object per line, one file per session, nothing rewritten.

    ~/.agent/sessions/<session id>.jsonl     and in the folders that the user names

    schema_version, seq, time, type    on every record; session_id on session_meta
    user · assistant_started · assistant_finished · tool_started · tool_finished · cancelled · failed

For whoever writes a log of their own: this is the format to choose. Ids are the writer's and may
repeat in each turn and session (`call_1`), so keys hold all three. A record that is written twice
has the same `seq` and counts once. Usage is taken as written: `input` without the cached tokens
(unless the user has set that it holds them), `reasoning` as a part of `output`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePath
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct, structs

from spantail.formats.row import Files, Format, Gives, Root
from spantail.formats.values import duration_ns, head, number, some, text, time_ns
from spantail.model import (
    Called,
    Closed,
    Event,
    Noted,
    Prompted,
    Record,
    Replied,
    Returned,
    Started,
    Status,
    Usage,
)

SCHEMA: Final = 1
KEEP: Final = 128
"""Sequence numbers, begun replies and open tool calls remembered."""

OK: Final = frozenset(("ok", "success", "succeeded", "completed"))
INTERRUPTED: Final = frozenset(("cancelled", "canceled", "interrupted", "skipped", "aborted"))
TIMEOUT: Final = frozenset(("timeout", "timed_out"))
DENIED: Final = frozenset(("denied", "rejected"))

GOES_ON: Final = frozenset(("tool_use", "tool_calls", "tool_call", "function_call", "pause_turn"))
"""Reasons to finish a reply after which the loop goes on."""
ENDS: Final = frozenset(("stop", "end_turn", "stop_sequence", "end"))
"""... and those that end the turn; of any other, more may come."""
PROVIDER: Final = frozenset(("provider_error", "rate_limit", "rate_limited", "overloaded", "api_error"))
LIMITS: Final = {
    "max_turns": "max_turns",
    "max_turns_reached": "max_turns",
    "max_budget": "max_budget",
    "budget_exceeded": "max_budget",
}
WORD: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,39}")
HTTP: Final = re.compile(rb'"([45]\d\d)\b')
TIME: Final = re.compile(rb'"time"\s*:\s*"([^"]{1,40})"')


class Line(Struct, gc=False):
    """Any value may be of any type: the envelope is stable, bodies are the writer's."""

    type: Any = None
    schema_version: Any = None
    seq: Any = None
    time: Any = None
    session_id: Any = None
    turn_id: Any = None
    message_id: Any = None
    call_id: Any = None
    name: Any = None
    model: Any = None
    provider: Any = None
    cwd: Any = None
    branch: Any = None
    app_version: Any = None
    status: Any = None
    duration_ms: Any = None
    exit_code: Any = None
    finish_reason: Any = None
    provider_request_id: Any = None
    reason: Any = None
    usage: Raw = Raw()
    text: Raw = Raw()
    input: Raw = Raw()
    output: Raw = Raw()
    error: Raw = Raw()


class LineUsage(Struct, gc=False):
    input: Any = None
    output: Any = None
    cache_read: Any = None
    cache_write: Any = None
    reasoning: Any = None
    cost: Any = None


class Output(Struct, gc=False):
    exit_code: Any = None


_USAGE: Final = msgspec.json.Decoder(LineUsage)
_OUTPUT: Final = msgspec.json.Decoder(Output)


def _count(value: object) -> int:
    return int(number(value) or 0)


def _usage(raw: Raw, *, whole: bool) -> tuple[Usage | None, float | None]:
    """None for what the record does not say, and for zeros: no reply has none."""
    try:
        found = _USAGE.decode(raw) if raw else LineUsage()
    except (ValueError, RecursionError):
        return None, None
    usage = Usage(
        input=_count(found.input),
        cache_read=_count(found.cache_read),
        cache_write=_count(found.cache_write),
        output=_count(found.output),
    )
    cached = usage.cache_read + usage.cache_write
    if whole and usage.input >= cached:  # less than the cache alone cannot hold it
        usage.input -= cached
    usage.reasoning = min(_count(found.reasoning), usage.output)
    return usage if usage.total() else None, number(found.cost)


def _exit_code(line: Line) -> int | None:
    code = line.exit_code
    if code is None and line.output and b'"exit_code"' in bytes(line.output):
        try:
            code = _OUTPUT.decode(line.output).exit_code
        except (ValueError, RecursionError):
            return None
    return code if isinstance(code, int) and not isinstance(code, bool) and abs(code) < 2**31 else None


def _status(line: Line, exit_code: int | None) -> tuple[Status, str]:
    word = text(line.status).lower()
    if word in INTERRUPTED:
        return "interrupted", "interrupted"
    if word in TIMEOUT:
        return "error", "timeout"
    if word in DENIED:
        return "error", "denied"
    failed = bool(word) if word not in OK else False
    if failed or exit_code or (not word and some(line.error) is not None):
        return "error", "tool_error"
    return "ok", ""


class GenericReader(Struct):
    setting: str = "uncached"
    """What `input` counts; a log goes on as it was begun."""
    session: str = ""
    begun: int = 0
    """The time of the session's meta record; another one has a count of its own."""
    model: str = ""
    last: int = 0
    top: int = -1
    seen: list[int] = []
    """The highest sequence number, and the last ones read: a writer's threads may swap a few."""
    replies: dict[str, tuple[str, int]] = {}
    """Replies begun and not finished: key -> (model, time)."""
    open: dict[str, str] = {}
    """Tool calls begun and not finished: key -> turn."""
    finished: str = ""
    """The turn that a reply has ended, that reply, and when."""
    last_reply: str = ""
    replied: int = 0
    cut: Closed | None = None
    """How the last turn that was cancelled or failed ended."""
    newer_schema: str = ""
    """A schema version that this reader does not know, for the loop to tell; it reads on."""

    def read(self, record: Record) -> Iterator[Event]:
        line: Line = record.body
        if line.schema_version not in (SCHEMA, None):
            self.newer_schema = str(line.schema_version)[:20]
        time = time_ns(line.time) or record.arrival or self.last
        if line.type == "session_meta":
            self._begin(line, time)
        self.session = self.session or PurePath(record.path).stem
        if self._repeated(line.seq):
            return
        self.last = max(self.last, time)
        kind = line.type
        if kind == "tool_finished":
            yield from self._tool_finished(line, time)
        elif kind == "tool_started":
            yield from self._tool_started(line, time)
        elif kind == "assistant_finished":
            yield from self._finished(record, line, time)
        elif kind == "assistant_started":
            yield from self._started(line, time)
        elif kind == "user":
            self.finished = ""
            turn = self._turn(line) if text(line.turn_id) else f"{self.session}/@{record.position}"
            yield Prompted(session=self.session, time=time, turn=turn, content=some(line.text))
        elif kind in ("cancelled", "failed"):
            yield from self._closed(line, time)
        elif kind == "session_meta":
            yield from self._meta(line, time)

    # ------------------------------------------------------------------------ the envelope

    def _begin(self, line: Line, time: int) -> None:
        """Another session, or the same with a writer that counts from its beginning again."""
        name = text(line.session_id) or self.session
        if name != self.session or time != self.begun:
            self.top, self.seen = -1, []
        self.session, self.begun = name, time

    def _repeated(self, seq: object) -> bool:
        if isinstance(seq, bool) or not isinstance(seq, int) or not 0 <= seq < 2**62:
            return False
        forgotten = min(self.seen) if len(self.seen) == KEEP else 0
        if seq <= self.top and (seq in self.seen or seq < forgotten):
            return True
        self.top = max(self.top, seq)
        self.seen = [*self.seen, seq][-KEEP:]
        return False

    def _turn(self, line: Line) -> str:
        return f"{self.session}/{text(line.turn_id)}"

    def _meta(self, line: Line, time: int) -> Iterator[Event]:
        self.model = text(line.model) or self.model
        yield Started(
            session=self.session,
            time=time,
            cwd=text(line.cwd, 4096),
            branch=text(line.branch),
            version=text(line.app_version),
            provider=text(line.provider),
        )

    # ------------------------------------------------------------------------ replies

    def _started(self, line: Line, time: int) -> Iterator[Event]:
        """A reply that never finishes is no model call: it is only remembered."""
        turn = self._turn(line)
        key = f"{turn}/message/{text(line.message_id)}"
        self.replies[key] = (text(line.model), time)
        if len(self.replies) > KEEP:
            del self.replies[next(iter(self.replies))]
        if turn == self.finished:
            self.finished = ""
            # The turn goes on after what looked like its last reply.
            yield Prompted(session=self.session, time=time, turn=f"{key}/more", human=False)

    def _finished(self, record: Record, line: Line, time: int) -> Iterator[Event]:
        turn = self._turn(line)
        id_ = text(line.message_id)
        key = f"{turn}/message/{id_ or '@' + str(record.position)}"
        model, start = self.replies.pop(key, ("", 0))
        usage, cost = _usage(line.usage, whole=self.setting == "all")
        reason = text(line.finish_reason, 40)
        failed = reason in ("error", "failed")
        if failed and usage is None and cost is None:
            return
        ends = reason in ENDS
        self.finished, self.last_reply, self.replied = turn if ends else "", key, time
        yield Replied(
            session=self.session,
            time=time,
            call=key,
            id=id_ or text(line.provider_request_id),
            model=text(line.model) or model or self.model,
            usage=usage,
            final=usage is not None,
            stop=reason,
            ends=ends,
            rests=reason not in GOES_ON and not failed,
            start=start,
            cost=cost,
            status="error" if failed else "ok",
            error_type="provider_error" if failed else "",
            content=some(line.text),
        )
        if self.cut is not None and self.cut.turn == turn:
            # What was written of a reply when its turn was cut off does not bring the turn back.
            yield structs.replace(self.cut, time=time)

    # ------------------------------------------------------------------------ tools

    def _call(self, line: Line) -> str:
        return f"{self._turn(line)}/call/{text(line.call_id)}"

    def _tool_started(self, line: Line, time: int) -> Iterator[Event]:
        key = self._call(line)
        self.open[key] = self._turn(line)
        if len(self.open) > KEEP:
            del self.open[next(iter(self.open))]
        yield Called(
            session=self.session,
            time=time,
            call=key,
            id=text(line.call_id),
            name=text(line.name),
            input=some(line.input),
        )

    def _tool_finished(self, line: Line, time: int) -> Iterator[Event]:
        key = self._call(line)
        self.open.pop(key, None)
        exit_code = _exit_code(line)
        status, error_type = _status(line, exit_code)
        yield Returned(
            session=self.session,
            time=time,
            call=key,
            status=status,
            error_type=error_type,
            exit_code=exit_code,
            duration=duration_ns(line.duration_ms),
            output=some(line.output) or some(line.error),
        )
        turn = self._turn(line)
        if turn == self.finished and turn not in self.open.values():
            # A call that was begun after the turn's last reply and is over: it has ended again.
            yield Replied(
                session=self.session,
                time=time,
                call=self.last_reply,
                end=self.replied,
                ends=True,
                rests=True,
            )

    # ------------------------------------------------------------------------ ends

    def _closed(self, line: Line, time: int) -> Iterator[Event]:
        """`cancelled` and `failed` end a turn at once, and with it the calls it has open."""
        turn = self._turn(line) if text(line.turn_id) else ""
        for key in [key for key, of in self.open.items() if not turn or of == turn]:
            del self.open[key]
            yield Returned(
                session=self.session, time=time, call=key, status="interrupted", error_type="interrupted"
            )
        reason = text(line.reason, 41)
        word = reason if WORD.fullmatch(reason) else str(line.type)
        status: Status = "error"
        error_type = LIMITS.get(word, "_OTHER")
        if line.type == "cancelled":
            status, error_type = "interrupted", "interrupted"
        elif word in PROVIDER:
            error_type = "provider_error"
            code = HTTP.match(head(line.error, 8)) if line.error else None
            cause = code[1].decode() if code is not None else word
            yield Noted(session=self.session, time=time, kind="provider_error", error_type=cause)
        self.finished = ""
        self.cut = Closed(
            session=self.session, time=time, turn=turn, status=status, error_type=error_type, word=word
        )
        yield self.cut


def unit(path: str, first: bytes) -> tuple[int, str]:
    """A session is one file."""
    found = TIME.search(first)
    return time_ns(found[1].decode("ascii", "replace")) if found is not None else 0, PurePath(path).stem


FORMAT = Format(
    agent="generic",
    title="Generic log",
    versions="schema 1",
    roots_setting="generic_roots",
    reader_setting="generic_input",
    roots=(Root(".agent/sessions"),),
    files=(
        Files(
            kind="session",
            root=0,
            glob="*.jsonl",
            storage="lines",
            reader=GenericReader,
            memory=GenericReader,
            line=Line,
            unit=unit,
        ),
    ),
    gives=Gives(
        tokens="per reply, as written; cache kinds if written",
        tool_times="stated durations, else times of the records",
        errors="yes",
        cost="if written; else computed",
        exit="cancelled and failed; else derived from the last turn",
        subagents="none",
    ),
)

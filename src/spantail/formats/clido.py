"""clido: JSON lines, one file per session; no line has a time, no reply has tokens or a model.

    $XDG_DATA_HOME/clido/sessions/<dir>/<session id>.jsonl     or $CLIDO_DATA_DIR/sessions/<dir>/...
    $CLIDO_SESSION_DIR/<session id>.jsonl

Its documentation and its code differ; both are read: ids with and without hyphens, short and long
exit words, `system` lines that no code writes, a `result` once at the end or after each prompt.

*Times.* Of a file that is followed, the arrival of a line is its time. Of a file found at start
only `start_time` and the stated durations are known: the reader's clock runs from the one by the
others, a tick per line, so that order and stated durations are right and the rest is an estimate.

*Keys.* A message has no id: its place in the file and a digest of its content are its key. A
failing turn is cut off the file again, and what grows there then is something else; what stands
before it is read once more and has the keys it had. A fork begins with a meta line of its own and
then has the lines of its original, meta line included: places count from the last meta line and
keys name its session, so that the copies have the keys of the originals.

*Money.* `total_cost_usd` is a total of the process in some variants and of the run in others:
a total that grew adds the difference, one that fell adds itself. Where a run that counts from zero
costs more than the one before, this is too little, and the file does not tell.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import PurePath
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from spantail.formats.row import Files, Format, Gives, Root
from spantail.formats.values import duration_ns, head, number, some, text, time_ns
from spantail.model import (
    SECOND,
    Called,
    Closed,
    DurationSource,
    Ended,
    Event,
    Exit,
    Measured,
    Noted,
    Prompted,
    Record,
    Replied,
    Returned,
    Started,
    Status,
)

SCHEMA: Final = 1
TICK: Final = 1_000
"""Between lines of which nothing but the order is known."""
STEP: Final = 300 * SECOND
"""The steps in which the end of a run is told, so that an estimate is not taken for silence."""
KEEP: Final = 256
"""Open tool calls remembered."""

OUTCOMES: Final[dict[str, tuple[Exit, Status, str]]] = {
    "success": ("success", "ok", ""),
    "completed": ("success", "ok", ""),
    "max_turns": ("max_turns", "error", "max_turns"),
    "max_turns_reached": ("max_turns", "error", "max_turns"),
    "max_budget": ("max_budget", "error", "max_budget"),
    "budget_exceeded": ("max_budget", "error", "max_budget"),
    "per_turn_budget_exceeded": ("max_budget", "error", "max_budget"),
    "interrupted": ("interrupted", "interrupted", "interrupted"),
    "rate_limited": ("error", "error", "provider_error"),
    "max_wall_time_exceeded": ("error", "error", "timeout"),
    "max_tool_calls_per_turn": ("error", "error", "max_tool_calls_per_turn"),
    "stall_detected": ("error", "error", "stall_detected"),
    "malformed_model_output": ("error", "error", "malformed_model_output"),
    "doom_loop": ("error", "error", "doom_loop"),
}
"""Exit word -> exit, status and error type of the turn. Any other word is an error."""

DENIED: Final = re.compile(
    r"User (denied|rejected)|Permission denied by rule|Access denied:|Blocked: |\[DANGEROUS COMMAND"
    r"|In plan-only mode|Tool '[^']*' requires user approval"
)
TIMED_OUT: Final = re.compile(r"\btimed out\b", re.IGNORECASE)
EXIT_CODE: Final = re.compile(r"exit code (-?\d{1,9})\b", re.IGNORECASE)
START_TIME: Final = re.compile(rb'"start_time"\s*:\s*"([^"]{1,40})"')


class Line(Struct, gc=False):
    """Any value may be of any type: a line that is odd in one place is read for the others."""

    type: Any = None
    session_id: Any = None
    schema_version: Any = None
    start_time: Any = None
    project_path: Any = None
    content: Raw = Raw()
    tool_use_id: Any = None
    tool_name: Any = None
    input: Raw = Raw()
    is_error: Any = None
    duration_ms: Any = None
    subtype: Any = None
    message: Any = None
    exit_status: Any = None
    total_cost_usd: Any = None


class Block(Struct, gc=False):
    type: Any = None
    id: Any = None
    name: Any = None
    input: Raw = Raw()
    tool_use_id: Any = None
    is_error: Any = None
    content: Raw = Raw()


_ITEMS: Final = msgspec.json.Decoder(list[Raw])
_BLOCK: Final = msgspec.json.Decoder(Block)


def _blocks(content: Raw) -> list[Block]:
    """The blocks of a message; a plain text is one block of text."""
    if head(content, 1) == b'"':
        return [Block(type="text")] if len(content) > 2 else []
    try:
        return [_BLOCK.decode(item) for item in _ITEMS.decode(content) if head(item, 1) == b"{"]
    except (ValueError, RecursionError):
        return []


def _failure(content: Raw) -> tuple[str, int | None]:
    """Error type and exit code, by the words with which the agent begins the result."""
    words = head(content, 300).lstrip(b'"').decode("utf-8", "replace")
    if DENIED.match(words):
        return "denied", None
    code = EXIT_CODE.match(words)
    if code is not None:
        return "tool_error", int(code[1])
    return ("timeout" if TIMED_OUT.search(words) else "tool_error"), None


class ClidoReader(Struct):
    session: str = ""
    origin: str = ""
    """The session of the last meta line; a fork's is that of its original."""
    base: int = 0
    """Where the last meta line begins."""
    clock: int = 0
    run: int = 0
    """When the run began; 0 between a result and the next prompt."""
    message: str = ""
    """The last reply."""
    open: dict[str, tuple[str, int, int]] = {}
    """Tool calls without a result: id -> (key, time, arrival)."""
    newer_schema: str = ""
    """A schema version that this reader does not know, for the loop to tell; it reads on."""

    def read(self, record: Record) -> Iterator[Event]:
        line: Line = record.body
        kind = line.type
        if not self.session and kind != "meta":
            self.session = self.origin = PurePath(record.path).stem
        if kind == "assistant_message":
            yield from self._assistant(record, line)
        elif kind == "tool_call":
            yield from self._tool_call(record, line)
        elif kind == "tool_result":
            yield from self._tool_result(record, line)
        elif kind == "user_message":
            yield from self._user(record, line)
        elif kind == "result":
            yield from self._result(record, line)
        elif kind == "meta":
            yield from self._meta(record, line)
        elif kind == "system":
            yield from self._system(record, line)

    def _now(self, record: Record) -> int:
        """Lines of one arrival are a tick apart. A clock far ahead of the arrival was wrong."""
        ahead = self.clock - record.arrival
        if record.arrival and not 0 <= ahead < SECOND:
            self.clock = record.arrival
        else:
            self.clock += TICK
        return self.clock

    def _key(self, record: Record, content: Raw) -> str:
        digest = blake2b(content, digest_size=6).hexdigest()
        return f"{self.origin}/{record.position - self.base}/{digest}"

    # --------------------------------------------------------------------- sessions and turns

    def _meta(self, record: Record, line: Line) -> Iterator[Event]:
        stem = PurePath(record.path).stem
        name = text(line.session_id) or self.session or stem
        self.session = self.session or name
        self.origin, self.base = name, record.position
        if line.schema_version not in (SCHEMA, None):
            self.newer_schema = str(line.schema_version)[:20]
        if not record.arrival:
            self.clock = max(self.clock, time_ns(line.start_time))
        time = self._now(record)
        self.run = self.run or time
        yield Started(
            session=self.session,
            time=time,
            cwd=text(line.project_path, 4096),
            copied_from=name if name != self.session else "",
        )

    def _user(self, record: Record, line: Line) -> Iterator[Event]:
        blocks = _blocks(line.content)
        time = self._now(record)
        if any(block.type == "text" for block in blocks):
            self.run = self.run or time
            self.open = {}
            self.message = ""
            turn = self._key(record, line.content)
            yield Prompted(session=self.session, time=time, turn=turn, content=line.content)
            return
        # Results in a message repeat the tool_result lines before it, unless there were none.
        for block in blocks:
            if block.type == "tool_result":
                yield from self._returned(record, block.tool_use_id, block.is_error, None, block.content)

    def _system(self, record: Record, line: Line) -> Iterator[Event]:
        time = self._now(record)
        message = text(line.message, 1000).lower()
        if line.subtype == "compaction":
            yield Noted(session=self.session, time=time, kind="compaction")
        elif line.subtype == "error":
            word = "rate_limit" if "rate limit" in message else "provider_error"
            kind: Any = "retry" if "retry" in message else "provider_error"
            yield Noted(session=self.session, time=time, kind=kind, error_type=word)

    def _result(self, record: Record, line: Line) -> Iterator[Event]:
        time = self._now(record)
        if not record.arrival and self.run:
            end = self.run + (duration_ns(line.duration_ms) or 0)
            while time < end:
                time = min(end, time + STEP)
                yield Started(session=self.session, time=time)
            self.clock = time
        word = text(line.exit_status, 64)
        exit_, status, error_type = OUTCOMES.get(word, ("error", "error", "_OTHER"))
        cut: Status = "interrupted" if status == "interrupted" else "pending"
        for key, _, _ in self.open.values():
            yield Returned(
                session=self.session,
                time=time,
                call=key,
                status=cut,
                error_type="interrupted" if cut == "interrupted" else "",
                source="estimate",
            )
        self.open, self.run, self.message = {}, 0, ""
        cost = number(line.total_cost_usd)
        if cost is not None:
            yield Measured(session=self.session, time=time, cost=cost)
        if not word:
            yield Ended(session=self.session, time=time, exit="unknown")
            return
        yield Closed(session=self.session, time=time, status=status, error_type=error_type, word=word)
        yield Ended(session=self.session, time=time, exit=exit_, word=word)

    # ------------------------------------------------------------------------ replies and tools

    def _assistant(self, record: Record, line: Line) -> Iterator[Event]:
        time = self._now(record)
        tools = [b for b in _blocks(line.content) if b.type == "tool_use" and text(b.id)]
        self.message = self._key(record, line.content)
        # Some variants write no result after a turn, so a reply without a tool call ends it. In a
        # file found at start the result that may follow lies an unknown time ahead: only rests.
        yield Replied(
            session=self.session,
            time=time,
            call=self.message,
            ends=not tools and record.arrival != 0,
            rests=not tools,
            content=line.content,
        )
        for block in tools:
            yield from self._called(record, text(block.id), text(block.name), block.input)

    def _tool_call(self, record: Record, line: Line) -> Iterator[Event]:
        """Repeats a block of the reply before it; counts if that line was lost."""
        self._now(record)
        self.message = self.message or self._key(record, line.input)
        if id_ := text(line.tool_use_id):
            yield from self._called(record, id_, text(line.tool_name), line.input)

    def _called(self, record: Record, id_: str, name: str, input_: Raw) -> Iterator[Event]:
        if id_ in self.open:
            return
        key = f"{self.message}/{id_}"
        self.open[id_] = (key, self.clock, record.arrival)
        if len(self.open) > KEEP:
            del self.open[next(iter(self.open))]
        yield Called(
            session=self.session,
            time=self.clock,
            call=key,
            id=id_,
            name=name,
            input=some(input_),
            model_call=self.message,
        )

    def _tool_result(self, record: Record, line: Line) -> Iterator[Event]:
        self._now(record)
        duration = duration_ns(line.duration_ms)
        yield from self._returned(record, line.tool_use_id, line.is_error, duration, line.content)

    def _returned(
        self, record: Record, id_: object, failed: object, duration: int | None, output: Raw
    ) -> Iterator[Event]:
        called = self.open.pop(id_, None) if isinstance(id_, str) else None
        if called is None:
            return
        key, start, arrival = called
        source: DurationSource = "stated"
        if duration is None:
            # Two arrivals are two times; lines read at once say nothing about the time between.
            source = "timestamps" if arrival and record.arrival > arrival else "estimate"
        end = self.clock
        if duration is not None and not record.arrival:
            # The results of a batch stand together: each call began where it was asked for.
            end = start + duration
            self.clock = max(self.clock, end)
        error_type, exit_code = _failure(output) if failed is True else ("", None)
        yield Returned(
            session=self.session,
            time=self.clock,
            call=key,
            status="error" if failed is True else "ok",
            error_type=error_type,
            exit_code=exit_code,
            duration=duration,
            end=end,
            source=source,
            output=some(output),
        )


def unit(path: str, first: bytes) -> tuple[int, str]:
    """A session is one file. A fork's own meta line comes first, so its original is read before it."""
    found = START_TIME.search(first)
    return time_ns(found[1].decode("ascii", "replace")) if found is not None else 0, PurePath(path).stem


def _files(root: int, glob: str) -> Files:
    return Files(
        kind="session",
        root=root,
        glob=glob,
        storage="lines",
        reader=ClidoReader,
        memory=ClidoReader,
        line=Line,
        unit=unit,
    )


FORMAT = Format(
    agent="clido",
    title="clido",
    versions="schema 1 (documentation; source of 1.0.15)",
    roots=(
        Root(".local/share/clido/sessions", env="CLIDO_DATA_DIR", below="sessions", xdg="XDG_DATA_HOME"),
        Root("Library/Application Support/clido/sessions"),
        Root(".local/share/clido/sessions", env="CLIDO_SESSION_DIR", xdg="XDG_DATA_HOME"),
    ),
    files=(_files(0, "*/*.jsonl"), _files(1, "*/*.jsonl"), _files(2, "*.jsonl")),
    never=(
        ".config/clido/**",
        "Library/Application Support/clido/credentials",
        "Library/Application Support/clido/config.toml",
    ),
    gives=Gives(
        tokens="none, and no model",
        tool_times="stated durations; times of arrival, estimated for files found at start",
        errors="yes",
        cost="running total per result",
        exit="result line",
        subagents="none exist",
    ),
)

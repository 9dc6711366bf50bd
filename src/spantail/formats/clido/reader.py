"""A session of clido line by line: no line has a time, no reply has tokens or a model.

    $XDG_DATA_HOME/clido/sessions/<dir>/<session id>.jsonl     or $CLIDO_DATA_DIR/sessions/<dir>/...
    $CLIDO_SESSION_DIR/<session id>.jsonl

Its documentation and its code differ; both are read: ids with and without hyphens, short and long
exit words, `system` lines that no code writes, a `result` once at the end or after each prompt.

*Times.* Of a file that is followed, the arrival of a line is its time. Of a file found at start
only `start_time` and the stated durations are known: the reader's clock runs from the one by the
others, a tick per line, so that order and stated durations are right and the rest is an estimate.

*Keys.* A message has no id: its place in the file and a digest of its content are its key. A fork begins with a meta line of its own and
then has the lines of its original, meta line included: places count from the last meta line and
keys name its session, so that the copies have the keys of the originals.

*Rollback.* A failing turn is cut off the file again, and the next one grows in its place. The file is
then read anew from its beginning: what stands before the cut is passed over, so that it neither ends
the turn that is open nor begins one that is over; the same words said once more are a turn of their own.

*Money.* `total_cost_usd` is a total of the process in some variants and of the run in others:
a total that grew adds the difference, one that fell adds itself. Where a run that counts from zero
costs more than the one before, this is too little, and the file does not tell.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from pathlib import PurePath
from typing import Any, Final

from msgspec import Raw, Struct

from spantail.formats.clido.lines import OUTCOMES, Line, blocks, failure
from spantail.formats.values import duration_ns, number, some, text, time_ns
from spantail.model import (
    SECOND,
    Called,
    Closed,
    DurationSource,
    Ended,
    Event,
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
TURNS: Final = 16
"""Turns remembered, in case the file is cut."""


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
    turns: list[tuple[int, str]] = []
    """Where the last turns begin, and their keys."""
    nth: str = ""
    """Sets what is said in this turn apart from what stood there before and was cut off."""
    before: list[tuple[int, str]] = []
    """Of a file that is read again: the turns that were in it."""
    left: int = -1
    """... and the arrival of what was left of it; negative before its first line."""
    passing: bool = False
    """What is read was read before."""

    def again(self) -> ClidoReader:
        """For a file that is read from its beginning again, because something was cut off it."""
        known = [turn for turn in self.before if turn not in self.turns] + self.turns
        return ClidoReader(session=self.session, clock=self.clock, before=known[-TURNS:], passing=bool(known))

    def read(self, record: Record) -> Iterator[Event]:
        line: Line = record.body
        kind = line.type
        if self.left < 0:
            self.left = record.arrival
        if self.passing and kind != "meta" and self._passes(record, line):
            return
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
        return self._place(record, content) + self.nth

    def _place(self, record: Record, content: Raw) -> str:
        digest = blake2b(content, digest_size=6).hexdigest()
        return f"{self.origin}/{record.position - self.base}/{digest}"

    # ----------------------------------------------------------------------------- rollback

    def _passes(self, record: Record, line: Line) -> bool:
        """Whether a line only says again what was read before the file was cut."""
        last, _ = self.before[-1]
        if record.arrival != self.left or record.position >= last:
            self.passing = False
        elif line.type == "result":
            self.run = 0
        elif line.type == "user_message" and any(block.type == "text" for block in blocks(line.content)):
            place = self._place(record, line.content)
            known = (place == key or key.startswith(place + "/") for at, key in self.before)
            self.passing = record.position < self.before[0][0] or any(known)
            self.run = self.run or self.clock
        return self.passing

    def _turn(self, record: Record, content: Raw) -> str:
        """Its place, unless the same words stood there in a turn that was cut off."""
        place = self._place(record, content)
        same = [key for _, key in self.before if key == place or key.startswith(place + "/")]
        if not same:
            key = place
        elif record.arrival == self.left:
            key = same[-1]
        else:
            key = f"{place}/{len(same) + 1}"
        self.nth = key[len(place) :]
        self.turns = [*self.turns, (record.position, key)][-TURNS:]
        return key

    # --------------------------------------------------------------------- sessions and turns

    def _meta(self, record: Record, line: Line) -> Iterator[Event]:
        stem = PurePath(record.path).stem
        name = text(line.session_id) or self.session or stem
        if not record.position and name != self.session:
            # Another session, which may have taken the place of one that was read.
            self.session, self.before, self.passing = name, [], False
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
        found = blocks(line.content)
        time = self._now(record)
        if any(block.type == "text" for block in found):
            self.run = self.run or time
            self.open = {}
            self.message = ""
            turn = self._turn(record, line.content)
            yield Prompted(session=self.session, time=time, turn=turn, content=line.content)
            return
        # Results in a message repeat the tool_result lines before it, unless there were none.
        for block in found:
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
        tools = [b for b in blocks(line.content) if b.type == "tool_use" and text(b.id)]
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
        error_type, exit_code = failure(output) if failed is True else ("", None)
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

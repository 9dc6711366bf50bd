"""A long first backlog, taken by several processes.

The illusion for the loop: units of files come back read, settled, counted and encoded, as if it had
done so itself. A unit (a session with its subagents) depends on another only through ids that were
settled there: a fork's copies, the plan of an implementation. So each is read on its own, with an
empty ledger, and the loop takes a result only if none of its ids is known and it missed nothing; else
it reads that unit again itself. A process that dies costs nothing but its unit's time.

The processes are forked before there are threads, connections or a transport, and end with their pipe.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from spantail.config import Config
from spantail.followed import READ_BYTES, Sources, at_rest, size
from spantail.groups import Left, left
from spantail.heap import rare_collections
from spantail.model import Context, Outcome
from spantail.notices import Count, Notices, Said
from spantail.out.content import public_name
from spantail.out.spans import BATCH, Encoder, batches
from spantail.pricing import Prices
from spantail.session.sessions import Sessions
from spantail.session.settle import Rules
from spantail.state import families as f
from spantail.state.counting import Counting
from spantail.state.guard import Guard
from spantail.state.hours import HourRow, Hours
from spantail.state.ledger import Ledger
from spantail.state.packing import Packed, packed
from spantail.state.store import Changes, Cursor
from spantail.state.totals import Taken, Totals
from spantail.tail.finder import Finder
from spantail.tail.open import joined, open_tail
from spantail.tail.source import Source

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

WORTH_BYTES = 64 << 20
"""A backlog smaller than this is read faster than processes are set up."""
MOST = 2
AHEAD = 4
"""Units that a process is given before its results are taken, so that it never waits for the loop."""
LOOK_SECONDS = 0.2
"""How often one who waits for a result looks whether it is still wanted."""
WINDOW = 64
"""How many units may be done ahead of one that takes long."""


class Result(Struct, array_like=True):
    """What became of one unit."""

    unit: int
    done: bool
    """False: it depends on other units, or something went wrong; to be read by the loop."""
    cursors: list[Cursor] = []
    works: list[Left] = []
    ledger: bytes = b""
    slugs: dict[str, tuple[bytes, bytes]] = {}
    totals: list[Taken] = []
    hours: list[HourRow] = []
    spans: list[Packed] = []
    said: list[Said] = []


class Whispered(Notices):
    """Keeps what there is to say: the parent says it, once for all."""

    def __init__(self, count: Count) -> None:
        super().__init__(count)
        self.said: list[Said] = []
        self._key: tuple[str, ...] = ()

    def _first(self, *key: str) -> bool:
        self._key = key
        return super()._first(*key)

    def _say(self, level: str, event: str, words: str, **fields: str | float | None) -> None:
        self.said.append(Said(self._key, level, event, words, fields))


class Crew:
    """The parent's side."""

    def __init__(self, units: Sequence[list[Source]], job: Job, count: int, inherited: Sequence[int]) -> None:
        self.units = [unit for unit in units if not any(_apart(source) for source in unit)]
        self._next = 0
        self._gone: list[Connection] = []
        self._busy: dict[Connection, deque[int]] = {}
        """What each process has been given, in order."""
        self._processes: list[int] = []
        from multiprocessing.connection import Pipe  # most starts have no crew

        for _ in range(count):
            ours, theirs = Pipe()
            process = os.fork()
            if process == 0:
                for pipe in (ours, *self._busy):
                    pipe.close()
                for descriptor in inherited:
                    os.close(descriptor)
                job.serve(self.units, theirs)
            theirs.close()
            self._processes.append(process)
            self._busy[ours] = deque()
        for pipe in self._busy:
            self._give(pipe, 0)

    def results(self, stopping: Callable[[], bool]) -> Iterator[Result]:
        """In the order of the units, so that the outcome does not depend on who was faster; those that
        a process took down with it come back as not done. Ends early when it is told to stop."""
        from multiprocessing.connection import Connection, wait

        done: dict[int, Result] = {}
        for unit in range(len(self.units)):
            while unit not in done and (at_work := [pipe for pipe, units in self._busy.items() if units]):
                if stopping():
                    return
                for pipe in wait(at_work, LOOK_SECONDS):
                    assert isinstance(pipe, Connection)
                    for result in self._taken(pipe):
                        done[result.unit] = result
                    self._give(pipe, unit)
            yield done.pop(unit, Result(unit, done=False))
            for pipe in self._busy:
                self._give(pipe, unit)

    def _taken(self, pipe: Connection) -> list[Result]:
        units = self._busy[pipe]
        try:
            result = msgspec.msgpack.decode(pipe.recv_bytes(), type=Result)
            units.remove(result.unit)
        except (EOFError, OSError, ValueError, msgspec.MsgspecError):
            del self._busy[pipe]
            self._gone.append(pipe)
            return [Result(unit, done=False) for unit in units]
        return [result]

    def _give(self, pipe: Connection, oldest: int) -> None:
        """Keeps a process busy, but not so far ahead of the `oldest` undecided unit that results pile up."""
        units = self._busy.get(pipe)
        end = len(self.units)
        # Towards the end fewer, so that all have work until it.
        while (
            units is not None
            and len(units) < min(AHEAD, 1 + (end - self._next) // 4)
            and self._next < min(oldest + WINDOW, end)
        ):
            units.append(self._next)
            # A process that is gone is noticed when its result is asked for.
            with contextlib.suppress(OSError):
                pipe.send_bytes(self._next.to_bytes(4, "little"))
            self._next += 1

    def close(self) -> None:
        """A process ends with its pipe, but not in the middle of a unit; that is not wanted any more, and it has
        nothing of which something could be left half done."""
        for pipe in (*self._busy, *self._gone):
            pipe.close()
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(process, signal.SIGKILL)
                os.waitpid(process, 0)


class Job:
    """A process's side: takes one unit after the other."""

    def __init__(
        self, config: Config, rules: Rules, clock: Callable[[], int], encoder: Encoder | None, floor: int
    ) -> None:
        self._config = config
        self._rules = rules
        self._clock = clock
        self._encoder = encoder
        self._floor = floor
        self._totals = Totals(hold=0)
        self._notices = Whispered(self._count)
        prices = Prices(config.prices, unpriced=self._notices.unpriced_model)
        prices.open_book()
        self._cost = prices.cost

    def serve(self, units: Sequence[list[Source]], pipe: Connection) -> None:
        """Never returns: a fork must not run on into its parent's code."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            with rare_collections():
                while True:
                    unit = int.from_bytes(pipe.recv_bytes(4), "little")
                    pipe.send_bytes(self.answer(unit, units[unit]))
                    # What a unit leaves knows itself in circles, and nobody looks for those meanwhile.
                    gc.collect()
        except (EOFError, OSError):
            os._exit(0)
        finally:
            os._exit(1)

    def answer(self, number: int, unit: Sequence[Source]) -> bytes:
        try:
            result = self.take(number, unit)
        except Exception:  # noqa: BLE001 - the loop reads it again, and says what is wrong
            result = Result(number, done=False)
        return msgspec.msgpack.encode(result)

    def take(self, number: int, unit: Sequence[Source]) -> Result:
        """Reads one unit whole."""
        self._totals = totals = Totals(hold=0)
        self._notices.said.clear()
        begun = self._clock()
        hours, ledger = Hours(), Ledger()
        limits = self._config.limits
        guard = Guard(totals, values=limits.label_values, length=limits.label_length, redact=public_name)
        counting = Counting(totals, hours, guard, clock=self._clock)
        sources = Sources({}, lambda s, c: open_tail(s, c, self._notices, self._config.limits), self._floor)
        first = unit[0]
        context = Context(agent=first.format.agent, provider=first.format.provider, user=first.user)
        sessions = Sessions(
            context, self._rules, ledger, self._cost, self._config.project_name, lambda _: None
        )
        spans: list[Packed] = []
        for source in unit:
            followed = sources.get(source)
            more = followed is not None
            while followed is not None and more:
                batch = followed.read(READ_BYTES, 0, final=self._config.once)
                sessions.apply(chain.from_iterable(map(followed.reader.read, batch.records)))
                if batch.records or batch.bytes:
                    sources.touch(followed)
                    self._notices.records(source.format.agent, len(batch.records) - batch.partial)
                    totals.add(f.READ_BYTES, (), batch.bytes, 0)
                more = batch.more
                if getattr(followed.reader, "newer_schema", ""):
                    return Result(number, done=False)
                if sessions.settled() >= BATCH:
                    spans += self._out(sessions.take(), counting)
        sessions.settle(begun)  # what was written since may be unread
        spans += self._out(sessions.take(), counting)
        if sessions.depends:
            return Result(number, done=False)
        changes = Changes()
        sources.gather(changes)
        return Result(
            number,
            done=True,
            cursors=changes.cursors,
            works=[left(work) for work in sessions.changed()],
            ledger=ledger.take_new(),
            slugs=sessions.slugs,
            totals=totals.taken(),
            hours=hours.rows(),
            spans=spans,
            said=list(self._notices.said),
        )

    def _out(self, outcomes: Sequence[Outcome], counting: Counting) -> list[Packed]:
        counting.count(outcomes)
        if self._encoder is None:
            return []
        return [packed(spans, body) for spans, body in batches(self._encoder, outcomes)]

    def _count(self, family: str, labels: tuple[str, ...], amount: float) -> None:
        self._totals.add(f.BY_NAME[family], labels, amount, self._clock())


def hire(
    config: Config,
    rules: Rules,
    clock: Callable[[], int],
    finder: Finder,
    encoder: Encoder | None,
    inherited: Sequence[int],
) -> Crew | None:
    """A crew, if the backlog is worth one and there are cores for it."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    count = min(MOST, cores)
    sources = [source for source in finder.scan() if _wanted(source, rules.reach)]
    if count < 2 or sum(map(size, sources)) < WORTH_BYTES:
        return None
    units = finder.backlog(sources)
    return Crew(units, Job(config, rules, clock, encoder, rules.reach), count, inherited)


def _wanted(source: Source, floor: int) -> bool:
    try:
        return not at_rest(source, floor)
    except OSError:
        return False  # gone already


def _apart(source: Source) -> bool:
    """Databases and joined files hold many sessions: they are the loop's."""
    return source.files.storage == "rows" or joined(source)

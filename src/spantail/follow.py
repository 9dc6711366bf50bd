"""The loop: look, read, settle, commit, send. From byte to span in one direction.

One pass of it: the waker says which files changed; their tails give records, the formats' readers
make events of them, the sessions settle what is over; one commit writes all of it together; only
then the deliverer is woken and the page shows the new totals. If a commit fails nothing more is
read until it succeeds, so that no step is taken that could not be undone by a kill.
"""

from __future__ import annotations

import os
import sqlite3
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from spantail.followed import Followed, Sources, rank, size
from spantail.gauges import own_gauges
from spantail.groups import Groups
from spantail.model import SECOND, Turn
from spantail.out.spans import batches
from spantail.state import families as f
from spantail.state.store import Changes, Packed, packed
from spantail.state.totals import Gauges, Totals

if TYPE_CHECKING:
    from spantail.crew import Crew
    from spantail.notices import Notices
    from spantail.out.deliver import Deliverer, DeliveryResult
    from spantail.out.spans import Encoder
    from spantail.state.counting import Counting
    from spantail.state.hours import Hours
    from spantail.state.store import Store
    from spantail.tail.finder import Finder
    from spantail.tail.source import Source
    from spantail.tail.wake import Waker

READ_BYTES = 256 << 10
"""Taken from one source before others get their turn, and before a commit is considered."""
COMMIT_BYTES = 16 << 20
COMMIT_SPANS = 4000
ROOT_SECONDS = 2.0
"""How often it is looked whether an agent's folder has appeared."""
PASS_SECONDS = 10.0
"""How often the size of everything followed is looked at, for what events miss."""
SCAN_SECONDS = 60.0
REST = 60 * SECOND
"""A file this long silent has no half-written last line any more."""
ACK_SECONDS = 1.0
TIDY_SECONDS = 600.0


class Parts(Struct):
    """What the loop works with; tests give their own."""

    finder: Finder
    sources: Sources
    groups: Groups
    waker: Waker
    store: Store
    totals: Totals
    hours: Hours
    counting: Counting
    notices: Notices
    clock: Callable[[], int]
    encoder: Encoder | None = None
    deliverer: Deliverer | None = None
    crew: Crew | None = None
    shown: Callable[[Sequence[Turn]], None] = lambda _turns: None
    committed: Callable[[], None] = lambda: None
    progress: Callable[[int, int], None] = lambda _done, _all: None
    outbox_limit: int = 1 << 30
    constant: Gauges = {}
    """Gauges that do not change."""
    budgets: Callable[[int, bool], Gauges] = lambda _now, _changed: {}
    """(now, whether money was spent since) -> the budgets' gauges."""


class Follow:
    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.stopping = False
        self.stuck = ""
        """Why the last commit failed; empty if it did not."""
        self.backlog_done = False
        self.last_commit = 0
        self.ticked = parts.clock()
        self._volume = 0
        self._acks: deque[tuple[list[int], DeliveryResult]] = deque()
        self._unwritten: Changes | None = None
        self._turns: list[Turn] = []
        self._poked = False
        self._notes: dict[str, str] = {}
        self._missing: list[str] = []
        """Folders that agents would use and that are not there."""
        self._spans: list[Packed] = []
        self._rooted = self._passed = self._scanned = self._tidied = parts.clock()

    # -------------------------------------------------------------------------------- doors

    def backlog(self, *, final: bool = False) -> None:
        """Everything there is at the start, the oldest sessions first."""
        parts = self.parts
        # Watching begins before the scan: what is made in between is found by one of the two.
        roots, self._missing = parts.finder.roots()
        parts.waker.watch(roots)
        if parts.crew is not None:
            self._take_results(parts.crew, final=final)
            if self.stopping:
                return
        sources = parts.finder.scan()
        parts.groups.wake(sources)
        # What was read before goes on from its cursor, and is not opened if nothing was added.
        known = [source for source in sources if parts.sources.knows(source)]
        late = [s for s in known if (at := parts.sources.get(s)) is not None and at.tail.changed()]
        self._take(late, arrival=0)
        self._take_new([s for s in sources if not parts.sources.has(s)], arrival=0, final=final)
        if self.stopping:
            return
        parts.groups.settle(parts.clock())
        self._note("backlog", "done")
        self.commit()
        self.backlog_done = self.stuck == ""
        parts.committed()

    def run(self) -> None:
        """Follows until told to stop."""
        while not self.stopping:
            self.step(self._patience())
        self._look(self.parts.waker.wait(0))
        self.commit()

    def stop(self) -> None:
        """From a signal handler."""
        self.stopping = True
        self.parts.waker.poke()

    def poke(self) -> None:
        """From another thread: something is to be committed soon."""
        self._poked = True
        self.parts.waker.poke()

    def acked(self, ids: list[int], result: DeliveryResult) -> None:
        """From the deliverer's thread: deleted in the next commit."""
        self._acks.append((ids, result))

    def _note(self, key: str, value: str) -> None:
        """Goes into the state with the next commit."""
        self._notes[key] = value

    # ----------------------------------------------------------------------------- one step

    def step(self, timeout: float) -> None:
        parts = self.parts
        changed = parts.waker.wait(timeout)
        self.ticked = now = parts.clock()
        if self.stuck:
            self.commit()
            if self.stuck:
                return
        if not self.backlog_done:
            self.backlog_done = True
            parts.committed()
        self._look(changed)
        if now - self._rooted > ROOT_SECONDS * SECOND or now < self._rooted:
            self._rooted = now
            self._pass(now)
        if now - self._tidied > TIDY_SECONDS * SECOND:
            self._tidied = now
            self._tidy(now)
        parts.groups.settle(now)
        if self._due(now):
            self.commit()

    def _patience(self) -> float:
        """How long to wait for changes: until the clock itself has something to settle."""
        now = self.parts.clock()
        seconds = ROOT_SECONDS
        deadline = self.parts.groups.deadline()
        if deadline:
            seconds = min(seconds, max(0.0, (deadline - now) / SECOND + 0.001))
        if self._acks or (self.parts.deliverer is not None and self.parts.store.waiting_spans):
            seconds = min(seconds, ACK_SECONDS)
        return seconds

    def _due(self, now: int) -> bool:
        if self.parts.sources.dirty or self.parts.groups.pending() or self._poked:
            return True
        return bool(self._acks) and now - self.last_commit > ACK_SECONDS * SECOND

    def _look(self, changed: set[str] | None) -> None:
        """Reads what changed; None: anything may have."""
        if changed is None:
            self._pass(self.parts.clock(), everything=True)
        elif changed:
            self._take(self.parts.finder.changed(changed))

    def _pass(self, now: int, *, everything: bool = False) -> None:
        """What events miss: new folders, appends on odd file systems, unfinished last lines."""
        parts = self.parts
        due = everything or now - self._passed > PASS_SECONDS * SECOND or now < self._passed
        if not due and not any(map(os.path.isdir, self._missing)):
            return
        self._passed = now
        roots, self._missing = parts.finder.roots()
        fresh = parts.waker.watch(roots)
        self._show_gauges(now)  # a budget's new period begins without a commit
        if fresh or everything or now - self._scanned > SCAN_SECONDS * SECOND:
            self._scanned = now
            found = parts.finder.scan()
            parts.sources.keep({source.path for source in found})
            self._take_new([source for source in found if not parts.sources.has(source)], arrival=now)
        late = [followed for followed in parts.sources.all() if followed.tail.changed()]
        self._take([followed.source for followed in late])
        for followed in parts.sources.unfinished(now - REST):
            self._read(followed, arrival=now, final=True)

    def _take_results(self, crew: Crew, *, final: bool) -> None:
        """What other processes have read; see crew. What they could not is read here."""
        parts = self.parts
        todo, done = sum(map(size, (s for unit in crew.units for s in unit))), 0
        left: list[Source] = []
        said: set[str] = set()
        for result in crew.results():
            unit = crew.units[result.unit]
            if result.done and parts.groups.adopt(unit[0], result.ledger, result.works, result.slugs):
                parts.sources.adopt(result.cursors)
                parts.totals.merge(result.totals, parts.counting.guarded)
                parts.hours.merge(result.hours)
                self._spans += result.spans
                for line in result.said:
                    if line not in said:
                        said.add(line)
                        parts.notices.repeat(line)
            else:
                left += unit
            done += sum(map(size, unit))
            parts.progress(done, todo)
            if sum(batch[0] for batch in self._spans) > COMMIT_SPANS:
                self.commit()
            if self.stopping:
                break
        crew.close()
        if not self.stopping:
            self._take_new(left, arrival=0, final=final)

    def _take_new(self, sources: Sequence[Source], *, arrival: int, final: bool = False) -> None:
        """Files that were not followed yet, the oldest sessions first and each session whole, so
        that an original comes before its fork and a subagent's calls find their turn."""
        parts = self.parts
        todo, done = sum(map(size, sources)), 0
        for unit in parts.finder.backlog(sources):
            touched = False
            for source in unit:
                followed = parts.sources.get(source)
                if followed is not None:
                    # A file that lay there says nothing about when its records were written.
                    fresh = followed.changed_since(arrival - REST)
                    touched |= self._read(followed, arrival=arrival if fresh else 0, final=final)
                    done += size(source)
                if self.stopping:
                    return
            if touched:
                self._settle(unit)
                parts.progress(done, todo)

    def _take(self, sources: Iterable[Source], arrival: int | None = None) -> None:
        """In one wake companions are read before main files, and those before the others."""
        now = self.parts.clock() if arrival is None else arrival
        for source in sorted(sources, key=rank):
            followed = self.parts.sources.get(source)
            if followed is not None:
                self._read(followed, arrival=now)

    def _read(self, followed: Followed, *, arrival: int, final: bool = False) -> bool:
        """All that is new in one source. Whether there was anything."""
        if self.stuck:
            return False
        parts, source = self.parts, followed.source
        sessions = parts.groups.of(source)
        agent = source.format.agent
        anything = False
        while True:
            batch = followed.read(READ_BYTES, arrival, final=final)
            if batch.records:
                anything = True
                read = followed.reader.read
                for record in batch.records:
                    try:
                        sessions.apply(read(record), arrival)
                    except Exception as error:  # noqa: BLE001 - one bad record must not end the loop
                        parts.notices.internal_error(f"{agent} {record.kind}", error)
                parts.notices.records(agent, len(batch.records))
                newer = getattr(followed.reader, "newer_schema", "")
                if newer:
                    parts.notices.newer_schema(agent, source.path, newer)
            if batch.bytes:
                parts.totals.add(f.READ_BYTES, (), batch.bytes, 0)
            if batch.records or batch.bytes or batch.restarted:
                parts.sources.touch(followed)
            self._volume += batch.bytes
            if self._volume > COMMIT_BYTES or sessions.settled() > COMMIT_SPANS:
                self.commit()
            if not batch.more or self.stuck:
                return anything

    def _settle(self, unit: Sequence[Source]) -> None:
        now = self.parts.clock()
        for group in {source.group: source for source in unit}.values():
            self.parts.groups.of(group).settle(now)

    # ------------------------------------------------------------------------------- commit

    def commit(self) -> None:
        """Moves everything together, then lets it out."""
        parts = self.parts
        now = parts.clock()
        self._poked = False
        changes = self._unwritten if self._unwritten is not None else self._gather(now)
        try:
            parts.store.commit(changes, now)
        except (sqlite3.Error, OSError) as error:
            self._unwritten = changes
            self.stuck = str(error)
            self._show_gauges(now)
            parts.notices.commit_failed(str(error))
            return
        if self.stuck:
            self.stuck = ""
            parts.notices.commit_restored()
        self._unwritten = None
        self._volume = 0
        self.last_commit = now
        parts.totals.committed()
        parts.hours.committed()
        parts.groups.committed()
        self._trim()
        self._show_gauges(now, spent=bool(changes.hours))
        if changes.spans and parts.deliverer is not None:
            parts.deliverer.wake()
        turns, self._turns = self._turns, []
        # A backlog's old turns are not news.
        if turns and self.backlog_done:
            parts.shown(turns)
        if self.backlog_done:
            parts.committed()

    def _show_gauges(self, now: int, *, spent: bool = False) -> None:
        parts = self.parts
        budgets = parts.budgets(now, spent)
        parts.totals.set_gauges({**parts.groups.gauges(), **budgets, **own_gauges(self, now)})

    def _gather(self, now: int) -> Changes:
        parts = self.parts
        parts.notices.drain()
        changes = Changes(meta={"last_commit": str(now), **self._notes})
        self._notes = {}
        changes.spans, self._spans = self._spans, []
        outcomes = parts.groups.gather(changes, now)
        parts.sources.gather(changes)
        for outcome in outcomes:
            parts.counting.count(outcome)
        if parts.encoder is not None:
            changes.spans += [packed(*batch) for batch in batches(parts.encoder, outcomes)]
        self._turns += [o for o in outcomes if isinstance(o, Turn) and o.human]
        while self._acks:
            ids, result = self._acks.popleft()
            changes.acked += ids
            for word, amount in (
                ("delivered", result.delivered),
                ("rejected", result.rejected),
                ("dropped", result.dropped),
            ):
                if amount:
                    parts.totals.add(f.EXPORTED_SPANS, (word,), amount, now)
        changes.totals = list(parts.totals.rows())
        changes.hours = list(parts.hours.rows())
        return changes

    def _trim(self) -> None:
        parts = self.parts
        if parts.store.waiting_bytes > parts.outbox_limit:
            _, spans = parts.store.drop_oldest(parts.outbox_limit)
            parts.totals.add(f.OUTBOX_DROPPED, (), spans, 0)
            parts.notices.outbox_full(spans)

    def _tidy(self, now: int) -> None:
        try:
            self.parts.store.tidy(now)
        except (sqlite3.Error, OSError) as error:
            self.parts.notices.commit_failed(str(error))

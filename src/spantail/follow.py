"""The loop: look, read, settle, commit, send. From byte to span in one direction.

One pass of it: the waker says which files changed; their tails give records, the formats' readers
make events of them, the sessions settle what is over; one commit writes all of it together; only
then the deliverer is woken and the page shows the new totals. If a commit fails nothing more is
read until it succeeds, so that no step is taken that could not be undone by a kill.

Longer than 400 lines: the order of these steps is what keeps the promise, and it is read in one place.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from spantail.followed import READ_BYTES, Busy, Followed, Sources, size
from spantail.gauges import own_gauges
from spantail.groups import Groups
from spantail.model import SECOND, Turn
from spantail.out.spans import batches
from spantail.state import families as f
from spantail.state.packing import Packed, packed
from spantail.state.schema import damaged
from spantail.state.store import Changes
from spantail.state.totals import Gauges, Totals

if TYPE_CHECKING:
    from spantail.crew import Crew
    from spantail.notices import Notices
    from spantail.out.deliver import Deliverer, DeliveryResult
    from spantail.out.spans import Encoder
    from spantail.remake import Remake
    from spantail.state.counting import Counting
    from spantail.state.hours import HourRow, Hours
    from spantail.state.store import Store
    from spantail.tail.finder import Finder
    from spantail.tail.source import Batch, Source
    from spantail.tail.wake import Waker

COMMIT_BYTES = 16 << 20
COMMIT_SPANS = 4000
CREW_SPANS = 16_000
"""The crew's come compressed, so that more of them fit; a commit of a backlog writes nearly all totals anew."""
ROOT_SECONDS = 2.0
"""How often it is looked whether an agent's folder has appeared."""
PASS_SECONDS = 10.0
"""How often the size of everything followed is looked at, for what events miss."""
SCAN_SECONDS = 60.0
SELDOM = 200
"""With very many files looks come so seldom that they take no more than a two-hundredth of a core, ..."""
LONGEST_SECONDS = 300.0
"""... but this often in any case."""
REST = 60 * SECOND
"""A file this long silent has no half-written last line any more."""
ACK_SECONDS = 1.0
TIDY_SECONDS = 600.0
TIDY_STEP_SECONDS = 0.2
RETRY_SECONDS = 1.0
LAST_SECONDS = 1.0
"""How long what is there is still taken when it was told to stop; the next start goes on where that ends."""
BLIND = 100
"""For how many steps what cannot be read yet holds back what its silence would settle."""
HISTORY = 100
"""So many new sessions at once are no work of a moment: they are settled as they are read."""
FREE_BYTES = 1 << 20
"""Unused space in the state that is worth giving back as soon as the outbox is empty."""


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
    remake: Remake | None = None
    shown: Callable[[Sequence[Turn]], None] = lambda _turns: None
    committed: Callable[[], None] = lambda: None
    failed: Callable[[], None] = lambda: None
    """A commit failed: what can be shown is that of the last one."""
    stepped: Callable[[], None] = lambda: None
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
        self._stopped = 0
        self._cut = False
        """Whether something was not read to its end, because it was told to stop."""
        self._unread: dict[str, tuple[Source, int]] = {}
        """What could not be read when it was last looked at, and for how many steps its silence counts not."""
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
        self._closing = False
        """Whether turns were closed by what was read last."""
        self._busy = Busy()
        self._notes: dict[str, str] = {}
        self._missing: list[str] = []
        """Folders that agents would use and that are not there."""
        self._spans: list[Packed] = []
        self._least: list[HourRow] = []
        self._patient = False
        """Whether a commit that fails is tried until it succeeds."""
        self._damage: sqlite3.Error | None = None
        self._untidy = False
        self._pass_every, self._scan_every = PASS_SECONDS, SCAN_SECONDS
        self._rooted = self._passed = self._scanned = self._tidied = parts.clock()

    # -------------------------------------------------------------------------------- doors

    def backlog(self, *, final: bool = False) -> None:
        """Everything there is at the start, the oldest sessions first. While the state cannot be written it
        waits in the middle of it, so that the order is kept; `final` does not wait."""
        self._patient = not final
        self.commit()
        if not self.stuck:
            self._take_backlog(final=final)
        self._patient = False

    def _take_backlog(self, *, final: bool) -> None:
        parts = self.parts
        # Watching begins before the scan: what is made in between is found by one of the two.
        roots, self._missing = parts.finder.roots()
        parts.waker.watch(roots)
        if parts.crew is not None:
            self._take_results(parts.crew, final=final)
            if self.stopping:
                return
        begun = parts.clock()
        sources = parts.finder.scan()
        parts.groups.wake(parts.finder.owners())
        self._remake(sources)
        # What was read before goes on from its cursor, and is not opened if nothing was added.
        known = [source for source in sources if parts.sources.knows(source)]
        late = [s for s in known if (at := parts.sources.get(s)) is not None and at.tail.changed()]
        new = [source for source in sources if not parts.sources.has(source)]
        self._take_late(late, new, arrival=0, begun=begun, final=final)
        for followed in parts.sources.unfinished(begun) if final else ():
            self._read(followed, arrival=0, final=True)
        if self.stopping:
            return
        # What was written since may be unread, and may be what keeps a turn open.
        parts.groups.settle(begun, but=self._blind())
        self._raise_to_least()
        self.note("backlog", "done")
        self.commit()
        self.backlog_done = self.stuck == ""
        parts.committed()

    def run(self) -> None:
        """Follows until told to stop."""
        while not self.stopping:
            self.step(self._patience())
        if self.backlog_done:
            self._look(self.parts.waker.wait(0))
        self.commit()

    def stop(self) -> None:
        """From a signal handler."""
        self._stopped = self.parts.clock()
        self.stopping = True
        self.parts.waker.poke()

    def poke(self) -> None:
        """From another thread: something is to be committed soon."""
        self._poked = True
        self.parts.waker.poke()

    def acked(self, ids: list[int], result: DeliveryResult) -> None:
        """From the deliverer's thread: deleted in the next commit."""
        self._acks.append((ids, result))

    def damaged(self, error: sqlite3.Error) -> None:
        """From the deliverer's thread: the state's file is broken. The next commit ends in it."""
        self._damage = error
        self.poke()

    def note(self, key: str, value: str) -> None:
        """Goes into the state with the next commit."""
        self._notes[key] = value

    # ----------------------------------------------------------------------------- one step

    def step(self, timeout: float) -> None:
        parts = self.parts
        if self._unread:
            left = self._unread.values()
            self._unread = {s.path: (s, max(0, n - 1)) for s, n in left if n or parts.sources.has(s)}
        asked = parts.clock()
        self._closing = False
        changed = parts.waker.wait(timeout)
        self.ticked = now = parts.clock()
        if self.stuck:
            self.commit()
            if self.stuck:
                return
            changed = None  # what was reported meanwhile was not looked at
        self._look(changed)
        if self._busy:
            self._take(self._busy.late(now), again=True)
        if _over(self._rooted, ROOT_SECONDS, now):
            self._rooted = now
            self._pass(now)
        if self._untidy or _over(self._tidied, TIDY_SECONDS, now):
            self._tidy(now)
        # A turn closed by the last line of a file: what was written before that line to other files is told by now.
        self._closing = parts.groups.just_closed()
        if self._closing:
            self._look(parts.waker.wait(0))
        # All that was written before the wait has been read now; what came during it perhaps not.
        if not self._cut:
            parts.groups.settle(asked, spare=True, but=self._blind())
        if self._due(now):
            self.commit()
        parts.stepped()

    def _patience(self) -> float:
        """How long to wait for changes: until the clock itself has something to settle."""
        now = self.parts.clock()
        seconds = ROOT_SECONDS
        deadline = self.parts.groups.deadline()
        if deadline:
            seconds = min(seconds, max(0.0, (deadline - now) / SECOND + 0.001))
        if self._acks or (self.parts.deliverer is not None and self.parts.store.waiting_spans):
            seconds = min(seconds, ACK_SECONDS)
        if self._busy:
            seconds = min(seconds, self._busy.patience(now))
        if self._closing:
            return 0.0  # the second look may have closed turns as well
        return min(seconds, TIDY_STEP_SECONDS) if self._untidy else seconds

    def _due(self, now: int) -> bool:
        if self.parts.sources.dirty or self.parts.groups.pending() or self._poked or self._full():
            return True
        return bool(self._acks) and _over(self.last_commit, ACK_SECONDS, now)

    def _look(self, changed: set[str] | None) -> None:
        """Reads what changed; None: anything may have."""
        if changed is None:
            self._pass(self.parts.clock(), everything=True)
        elif changed:
            now, sources = self.parts.clock(), self.parts.finder.changed(changed)
            new = [s for s in sources if s.files.storage == "lines" and not self.parts.sources.has(s)]
            if len(new) < 2:  # of several a fork may be one and its original another
                self._take(sources, now)
            else:
                self._take_late([s for s in sources if s not in new], new, arrival=now, begun=now)

    def _pass(self, now: int, *, everything: bool = False) -> None:
        """What events miss: new folders, appends on odd file systems, unfinished last lines."""
        parts = self.parts
        due = everything or _over(self._passed, self._pass_every, now)
        if not due and not any(map(os.path.isdir, self._missing)):
            return
        self._passed = now
        begun = time.process_time()
        roots, self._missing = parts.finder.roots()
        fresh = parts.waker.watch(roots)
        self._show_gauges(now)  # a budget's new period begins without a commit
        late = [followed.source for followed in parts.sources.all() if followed.tail.changed()]
        new: list[Source] = []
        self._pass_every = _seldom(PASS_SECONDS, begun)
        if fresh or everything or _over(self._scanned, self._scan_every, now):
            self._scanned = now
            begun = time.process_time()
            found = parts.finder.scan()
            self._scan_every = _seldom(SCAN_SECONDS, begun)
            parts.sources.keep({source.path for source in found})
            new = [source for source in found if not parts.sources.has(source)]
        self._take_late(late, new, arrival=now, begun=now)
        for followed in parts.sources.unfinished(now - REST):
            self._read(followed, arrival=now, final=True)

    def _remake(self, sources: Sequence[Source]) -> None:
        """What an older version left open; see remake."""
        parts = self.parts
        known = [source for source in sources if parts.sources.knows(source)]
        stale = {s.group for s in known if (at := parts.sources.get(s)) is not None and at.stale is not None}
        if parts.remake is not None and (stale or parts.groups.strange):
            units = parts.finder.backlog([source for source in known if source.group in stale])
            last = int(parts.store.meta("last_commit") or 0)
            amount = parts.remake.begin(units, last - parts.groups.longest_silence(), last)
            parts.groups.give_up_strange()
            parts.notices.remade(amount)

    def _take_results(self, crew: Crew, *, final: bool) -> None:
        """What other processes have read; see crew. What they could not is read here."""
        parts = self.parts
        sizes = [sum(map(size, unit)) for unit in crew.units]
        todo, done = sum(sizes), 0
        waiting, begun = 0, parts.clock()
        for result in crew.results(lambda: self.stopping):
            unit = crew.units[result.unit]
            if result.done and parts.groups.adopt(unit[0], result.ledger, result.works, result.slugs):
                parts.sources.adopt(result.cursors)
                parts.totals.merge(result.totals, parts.counting.guarded)
                parts.hours.merge(result.hours)
                self._spans += result.spans
                waiting += sum(batch[0] for batch in result.spans)
                for said in result.said:
                    parts.notices.repeat(said)
            else:
                self._take_new(unit, arrival=0, begun=begun, final=final)
            done += sizes[result.unit]
            parts.progress(done, todo)
            if waiting > CREW_SPANS:
                self.commit()
                waiting = 0
            if self.stopping:
                break
        crew.close()

    def _take_late(
        self,
        late: Sequence[Source],
        new: Sequence[Source],
        *,
        arrival: int,
        begun: int,
        final: bool = False,
    ) -> None:
        """Files that have grown, and new ones. Those that are of the same sessions are all read before anything is
        settled: a turn that ends in one of them is to have what was written before that to another. `begun`: all
        that was written by then is read here."""
        grown = {source.path for source in late}
        units = self.parts.finder.backlog([*late, *new]) if late and new else []
        # A companion need not tell its session.
        joined = {s.path for unit in units if any(s.path in grown for s in unit) for s in unit}
        self._take([source for source in new if late and source.files.companion], arrival)
        self._take(late, arrival)
        if joined:
            same = [source for source in new if source.path in joined]
            self._take_new(same, arrival=arrival, begun=begun, final=final, settle=False)
        rest = [source for source in new if source.path not in joined]
        self._take_new(rest, arrival=arrival, begun=begun, final=final)

    def _take_new(
        self,
        sources: Sequence[Source],
        *,
        arrival: int,
        begun: int,
        final: bool = False,
        settle: bool = True,
    ) -> None:
        """Files that were not followed yet, the oldest sessions first and each session whole, so
        that an original comes before its fork and a subagent's calls find their turn. What they left open is settled
        by the time when the look at all files began: in others there may be more by now, unread."""
        parts = self.parts
        # What is older than --since is not even opened to see where it belongs.
        sources = [source for source in sources if parts.sources.get(source) is not None]
        todo, done = sum(map(size, sources)), 0
        for number, unit in enumerate(parts.finder.backlog(sources)):
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
                if settle and (not arrival or number >= HISTORY):
                    self._settle(unit, begun)
                parts.progress(done, todo)

    def _take(self, sources: Iterable[Source], arrival: int | None = None, *, again: bool = False) -> None:
        now = self.parts.clock() if arrival is None else arrival
        for source in self.parts.finder.in_wake(sources):
            followed = self.parts.sources.get(source)
            if followed is not None and (self._read(followed, arrival=now) or not again):
                self._busy.read(followed, self.parts.clock())

    def _read(self, followed: Followed, *, arrival: int, final: bool = False) -> bool:
        """All that is new in one source. Whether there was anything."""
        if self.stuck:
            return False
        parts, source = self.parts, followed.source
        if followed.stale is not None and parts.remake is not None:
            parts.remake.one(followed, int(parts.store.meta("last_commit") or 0))
        sessions = parts.groups.of(source)
        agent = source.format.agent
        anything = False
        while not self._hurried():
            batch = followed.read(READ_BYTES, arrival, final=final)
            # By the clock after the read: they may have been written during it.
            seen = parts.clock() if arrival else 0
            if batch.records:
                anything = True
                read = followed.reader.read
                for record in batch.records:
                    try:
                        sessions.apply(read(record), seen)
                    except sqlite3.Error:
                        raise  # of our own state: not the record's fault
                    except Exception as error:  # noqa: BLE001 - one bad record must not end the loop
                        parts.notices.internal_error(f"{agent} {record.kind}", error)
                parts.notices.records(agent, len(batch.records) - batch.partial)
                newer = getattr(followed.reader, "newer_schema", "")
                if newer:
                    parts.notices.newer_schema(agent, source.path, newer)
            self._mark_unread(source, batch)
            if batch.bytes:
                parts.totals.add(f.READ_BYTES, (), batch.bytes, 0)
            if batch.records or batch.bytes or batch.restarted:
                parts.sources.touch(followed)
            self._volume += batch.bytes
            if self._volume > COMMIT_BYTES or sessions.settled() > COMMIT_SPANS:
                self.commit()
            if not batch.more or self.stuck:
                return anything
        followed.tail.close()
        self._cut = True
        return anything

    def _hurried(self) -> bool:
        """A file of gigabytes takes longer than one that is told to stop has."""
        if not self.stopping:
            return False
        return not self.backlog_done or _over(self._stopped, LAST_SECONDS, self.parts.clock())

    def _settle(self, unit: Sequence[Source], begun: int) -> None:
        blind = self._blind()
        for name, source in {source.group: source for source in unit}.items():
            if name not in blind:
                self.parts.groups.of(source).settle(begun)

    def _mark_unread(self, source: Source, batch: Batch) -> None:
        if batch.unread:
            self._unread.setdefault(source.path, (source, BLIND))
        elif self._unread:
            self._unread.pop(source.path, None)

    def _blind(self) -> set[str]:
        """Groups whose silence proves nothing now. What stays locked for good does not hold back the others."""
        return {source.group for source, steps in self._unread.values() if steps}

    # ------------------------------------------------------------------------------- commit

    def commit(self) -> None:
        """Moves everything together, then lets it out."""
        self._commit()
        while self.stuck and self._patient and not self.stopping:
            self.parts.waker.wait(RETRY_SECONDS)
            self.ticked = self.parts.clock()
            self._commit()

    def _commit(self) -> None:
        parts = self.parts
        if self._damage is not None:
            raise self._damage
        now = parts.clock()
        self._poked = False
        changes = self._unwritten if self._unwritten is not None else self._gather(now)
        try:
            parts.store.commit(changes, now)
        except (sqlite3.Error, OSError) as error:
            if damaged(error):
                raise
            self._unwritten = changes
            self.stuck = str(error)
            self._show_gauges(now)
            parts.notices.commit_failed(str(error))
            parts.failed()
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
        self._show_gauges(now, spent=bool(changes.hours))
        if changes.acked and not parts.store.waiting_spans:
            self._untidy |= parts.store.free_bytes() > FREE_BYTES
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
        parts.totals.set_gauges({**parts.groups.gauges(), **budgets, **own_gauges(self)})

    def _gather(self, now: int) -> Changes:
        parts = self.parts
        parts.notices.drain()
        changes = Changes(meta=self._notes)
        self._notes = {}
        if self.backlog_done or "backlog" in changes.meta:
            changes.meta["last_commit"] = str(now)  # everything written by then has been read
        changes.spans, self._spans = self._spans, []
        outcomes = parts.groups.gather(changes, now)
        parts.sources.gather(changes)
        parts.counting.count(outcomes)
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
        if self._full():
            ids, spans = parts.store.oldest_beyond(parts.outbox_limit)
            changes.acked += ids
            parts.totals.add(f.OUTBOX_DROPPED, (), spans, 0)
            parts.notices.outbox_full(spans)
        changes.totals = list(parts.totals.rows())
        changes.hours = list(parts.hours.rows())
        changes.least, self._least = self._least, []
        return changes

    def _raise_to_least(self) -> None:
        """A state that could not be saved has been counted again; see state.rescue."""
        least = self.parts.store.least()
        if least is not None:
            self.commit()  # counts what was settled last
            totals, self._least = least
            self.parts.totals.raise_to(totals)
            self.note("least", "")

    def _full(self) -> bool:
        """What is dropped for it is dropped and counted by the next commit."""
        return self.parts.store.waiting_bytes > self.parts.outbox_limit

    def _tidy(self, now: int) -> None:
        # What cannot be written now is done next time; whether anything can, the commits say.
        with contextlib.suppress(sqlite3.OperationalError):
            if not self._untidy:
                self._tidied = now
                self.parts.store.tidy(now)
            self._untidy = self.parts.store.give_back()


def _over(since: int, seconds: float, now: int) -> bool:
    """Whether so much time has passed. A clock that was put back does not tell; it is taken for that it has."""
    return not 0 <= now - since <= seconds * SECOND


def _seldom(seconds: float, begun: float) -> float:
    """How long to wait until the next look of the kind that began then, by the processor's time."""
    return min(max(seconds, SELDOM * (time.process_time() - begun)), LONGEST_SECONDS)

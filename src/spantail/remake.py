"""Open work of another shape, made again after an upgrade by reading its records once more, muted.

The illusion kept for the loop: what an older version left open goes on as if this one had begun it. The sources of a
session are read from their beginnings to their cursors into sessions that know of nothing (as in a crew's unit); what
these settle was settled before, which the ledger proves, and is left out. What the ledger does not know passes.

A session that was silent for long has nothing open that the clock could close: its sources are read again only when
they change. The rest is read at the start. Where the records are gone, the turn is closed as pending.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence

from spantail.followed import Followed, Sources
from spantail.model import ModelCall, Outcome, Record, RunStarted, Subagent, ToolCall, Turn
from spantail.session.sessions import Sessions
from spantail.session.settle import Ledger
from spantail.session.work import Work, take_sums
from spantail.tail.again import GoneError
from spantail.tail.source import Source

Before = Callable[[Source, bytes], Iterator[list[Record]]]
"""The records of a source up to a cursor; see tail.again."""

_ONCE = (ModelCall, ToolCall, Turn, Subagent, RunStarted)
"""Of these the ledger knows whether they were handed on. Others were, up to the cursor."""


class Remake:
    def __init__(
        self,
        sources: Sources,
        sessions: Callable[[Source], Sessions],
        left: Callable[[Source, str], Work | None],
        before: Before,
    ) -> None:
        """`left`: what can be told of a session's row, whatever its shape."""
        self._sources = sources
        self._sessions = sessions
        self._left = left
        self._before = before
        self._units: dict[str, list[Source]] = {}

    def begin(self, units: Sequence[list[Source]], since: int, now: int) -> int:
        """Of all the units that hold a source of another shape those that were written since. How many
        sources that were; the others wait until they change."""
        together: dict[str, list[Source]] = {}
        for unit in units:
            for source in unit:
                self._units[source.path] = unit
            if any(_written(source, since) for source in unit):
                together.setdefault(unit[0].group, []).extend(unit)
        return sum(self._remake(sources, now) for sources in together.values())

    def one(self, followed: Followed, now: int) -> None:
        """A source that changed, with those of its session."""
        source = followed.source
        self._remake(self._units.get(source.path, [source]), now)

    def _remake(self, sources: Sequence[Source], now: int) -> int:
        """`now`: when all of it was last settled."""
        sessions = self._sessions(sources[0])
        again = _Again(sessions.ledger)
        made = Sessions(
            sessions.context,
            sessions.rules,
            again,
            sessions.settler.price,
            sessions.project,
            lambda _session: None,
        )
        made.settler.out = passed = _Passed(again)
        wanted: dict[str, bool] = {}
        """Sessions whose work is whole know better: for them only the reader's memory is made again."""
        amount = 0
        for source in sources:
            # One that was never read is none of ours, and is not to be taken for one that was.
            followed = self._sources.get(source) if self._sources.has(source) else None
            if followed is None or followed.stale is None:
                continue
            cursor, followed.stale = followed.stale, None
            amount += 1
            self._sources.touch(followed)
            try:
                for records in self._before(source, cursor):
                    for record in records:
                        events = list(followed.reader.read(record))
                        for event in events:
                            key = event.session
                            if key not in wanted:
                                wanted[key] = key not in sessions.works and sessions.load(key) is None
                        made.apply(event for event in events if wanted[event.session])
            except GoneError:
                continue
        rows = {key: left for key in made.works if (left := self._left(sources[0], key)) is not None}
        made.seen.update({key: left.seen for key, left in rows.items() if left.seen})
        made.settle(now)
        sessions.settler.out += passed
        for key, work in made.works.items():
            if wanted.get(key):
                if key in rows:
                    take_sums(work, rows[key])
                sessions.restore(work)
                sessions.dirty.add(key)
        return amount


def _written(source: Source, since: int) -> bool:
    """A database may have been written in its log only, so it always counts."""
    try:
        return source.files.storage == "rows" or os.stat(source.path).st_mtime_ns >= since  # noqa: PTH116
    except OSError:
        return False


class _Again:
    """A ledger that begins empty, and remembers whether the real one knew what was added last."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._ids: set[int] = set()
        self.new = False

    def known(self, id: int) -> bool:  # noqa: A002
        return id in self._ids

    def add(self, id: int) -> bool:  # noqa: A002
        if id in self._ids:
            return False
        self._ids.add(id)
        self.new = self._ledger.add(id)
        return True


class _Passed(list[Outcome]):
    """Takes only what was never handed on."""

    def __init__(self, again: _Again) -> None:
        super().__init__()
        self._again = again

    def append(self, outcome: Outcome) -> None:
        new, self._again.new = self._again.new, False
        if new and isinstance(outcome, _ONCE):
            super().append(outcome)

"""Money and tokens by the time of the calls: what budgets, reports and forecasts ask.

For questions that a counter cannot answer: what was spent in a day of some time zone, however late
it was read. A slot is a quarter of an hour, because every time zone begins its days on one. Only
what is not committed yet is held here; the sums themselves are rows of the state.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final, NamedTuple

from msgspec import Struct

from spantail.model import SECOND, Usage

SLOT: Final = 900
KEPT: Final = 13 * 31 * 86_400
"""13 months, in seconds."""

Key = tuple[int, str, str, str, str]


class HourRow(NamedTuple):
    """Sums of a slot; from `Hours.rows` the amount to add, from the state the sum itself."""

    slot: int
    agent: str
    project: str
    model: str
    user: str
    input: int
    cache_read: int
    cache_write: int
    output: int
    cost: float


class Sums(Struct):
    input: int = 0
    cache_read: int = 0
    cache_write: int = 0
    output: int = 0
    cost: float = 0.0


class Hours:
    def __init__(self) -> None:
        self._sums: dict[Key, Sums] = {}
        self._handed: dict[Key, Sums] = {}

    def add(
        self,
        time: int,
        agent: str,
        project: str,
        model: str,
        user: str,
        usage: Usage | None,
        cost: float | None,
    ) -> None:
        """`time` in ns."""
        sums = self.sums(time, agent, project, model, user)
        if usage is not None:
            sums.input += usage.input
            sums.cache_read += usage.cache_read
            sums.cache_write += usage.cache_write
            sums.output += usage.output
        if cost is not None:
            sums.cost += cost

    def sums(self, time: int, agent: str, project: str, model: str, user: str) -> Sums:
        """Where to add what belongs to that time, until the next `rows`."""
        at = time // SECOND
        key = (at - at % SLOT, agent, project, model, user)
        sums = self._sums.get(key)
        if sums is None:
            sums = self._sums[key] = Sums()
        return sums

    def merge(self, rows: Iterable[HourRow]) -> None:
        """Adds what another process has summed."""
        for row in rows:
            _add(self._sums.setdefault((row.slot, row.agent, row.project, row.model, row.user), Sums()), row)

    def pending(self) -> bool:
        return bool(self._sums or self._handed)

    def rows(self) -> list[HourRow]:
        """Increments for the transaction that begins now."""
        self.rolled_back()
        self._handed, self._sums = self._sums, {}
        return [
            HourRow(*key, sums.input, sums.cache_read, sums.cache_write, sums.output, sums.cost)
            for key, sums in self._handed.items()
        ]

    def committed(self) -> None:
        self._handed = {}

    def rolled_back(self) -> None:
        """The transaction failed: its increments wait for the next one."""
        handed, self._handed = self._handed, {}
        for key, sums in self._sums.items():
            if key in handed:
                _add(handed[key], sums)
            else:
                handed[key] = sums
        self._sums = handed


def _add(to: Sums, more: Sums | HourRow) -> None:
    to.input += more.input
    to.cache_read += more.cache_read
    to.cache_write += more.cache_write
    to.output += more.output
    to.cost += more.cost


def spent(
    rows: Iterable[HourRow], start: int, end: int, filters: Mapping[str, str | Collection[str]] | None = None
) -> Sums:
    """The sum of the slots that begin in [start, end) (seconds), of those rows whose agent, project,
    model or user is the one, or one of those, that `filters` names."""
    wanted = [
        (HourRow._fields.index(name), {values} if isinstance(values, str) else frozenset(values))
        for name, values in (filters or {}).items()
    ]
    sums = Sums()
    for row in rows:
        if start <= row.slot < end and all(row[at] in values for at, values in wanted):
            _add(sums, row)
    return sums


def oldest(now: int) -> int:
    """The first slot that is kept (seconds); `now` in ns. Those before it may be deleted."""
    at = now // SECOND - KEPT
    return at - at % SLOT

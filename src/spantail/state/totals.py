"""Counters and histograms whose pages never take back what they once showed.

For Prometheus, which takes a total that fell for a new count and adds it all again, and which
does not see the value with which a series first appears. So a page shows committed totals only,
and a series born later is shown as 0 until `hold` has passed since a page first showed it.

Two threads meet here. The loop counts (`add`, `observe`) and commits (`rows`, then `committed` or
`rolled_back`); pages ask for a `snapshot`. Counting takes no lock: it touches only the live face
of a series, and a series is on no page before its first commit.
"""

from __future__ import annotations

import threading
from bisect import insort
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

import msgspec
import orjson

from spantail.model import SECOND
from spantail.state.families import BY_NAME, FAMILIES, Family
from spantail.state.series import Counter, Exemplar, Histogram, Labels, Point, Row, Series

Gauges = Mapping[Family, Mapping[Labels, float]]
Snapshot = list[tuple[Family, list[Point]]]

HOLD: Final = 90 * SECOND
INF: Final = float("inf")


class _Change:
    """A series as it was handed to the transaction that is under way."""

    __slots__ = ("packed", "series", "shown")

    def __init__(self, series: Series, shown: int) -> None:
        self.series = series
        self.packed = series.packed()
        self.shown = shown


Guarded = Callable[[Family, Labels], Labels]
Taken = tuple[str, tuple[str, ...], int, float, tuple[int, ...]]
"""A series of another process: family, labels, first event, total (a histogram's: its sum), and of a
histogram how many fell in each bucket."""


class Totals:
    def __init__(self, hold: int = HOLD, on_shown: Callable[[], None] = lambda: None) -> None:
        """`on_shown` is called from a page's thread when there is a first showing to commit."""
        self._hold = hold
        self._on_shown = on_shown
        self._backlog = False
        self._counters: dict[Family, dict[Labels, Counter]] = {
            family: {} for family in FAMILIES if family.kind == "counter"
        }
        self._histograms: dict[Family, dict[Labels, Histogram]] = {
            family: {} for family in FAMILIES if family.kind == "histogram"
        }
        self._merged: dict[tuple[str, Labels], Counter | Histogram] = {}
        """Series by what another process calls them."""
        self._dirty: list[Series] = []
        self._changes: list[_Change] = []
        self._lock = threading.Lock()
        # Below: shared with the pages, under the lock.
        self._page: dict[Family, list[Series]] = {family: [] for family in FAMILIES}
        self._marks: dict[Series, int] = {}
        """First showings (and ends of a hold) that no commit holds yet."""
        self._gauges: Gauges = {}
        self._live: dict[Family, Callable[[int], float]] = {}

        for family in self._counters:
            if not family.labels:
                self.add(family, (), 0.0, 0)

    # ------------------------------------------------------------------ counting: the loop

    def add(self, family: Family, labels: Labels, amount: float, time: int, trace: bytes = b"") -> None:
        """`time` is the event's, in ns; `trace` makes it an exemplar."""
        if not 0 <= amount < INF:
            raise ValueError(f"{family.name} cannot grow by {amount}")
        series = self.counter(family, labels, time)
        series.live += amount
        if trace and time and (series.newest is None or time > series.newest.time):
            series.newest = Exemplar(trace, amount, time)

    def counter(self, family: Family, labels: Labels, time: int) -> Counter:
        """The series itself, to be added to (finite, not negative) before the next `rows`."""
        series = self._counters[family].get(labels) or self._counter(family, labels, time)
        if not series.dirty:
            series.dirty = True
            series.created = series.created or time
            self._dirty.append(series)
        return series

    def observe(self, family: Family, labels: Labels, value: float, time: int, trace: bytes = b"") -> None:
        if not 0 <= value < INF:
            raise ValueError(f"{family.name} cannot take {value}")
        self.histogram(family, labels, time).observe(value, time, trace)

    def histogram(self, family: Family, labels: Labels, time: int) -> Histogram:
        """The same for histograms: to be given observations (finite, not negative)."""
        series = self._histogram(family, labels, time)
        series.created = series.created or time
        self._touch(series)
        return series

    def taken(self) -> list[Taken]:
        """All that was counted, for the totals of another process to `merge`; what is born at zero is born there too."""
        return [
            (series.family.name, series.labels, series.created, *series.amounts())
            for series in self._all()
            if not series.untouched()
        ]

    def merge(self, taken: Iterable[Taken], guarded: Guarded) -> None:
        """Adds what another process has counted from zero; its labels go through our guard."""
        for name, raw, created, amount, counts in taken:
            series = self._merged.get((name, raw)) or self._counted_as(name, raw, created, guarded)
            self._touch(series)
            if isinstance(series, Counter):
                series.live += amount
            else:
                series.counts = [mine + more for mine, more in zip(series.counts, counts, strict=True)]
                series.sum += amount

    def _counted_as(self, name: str, raw: Labels, at: int, guarded: Guarded) -> Counter | Histogram:
        """Our series for one of another process."""
        labels = guarded(family := BY_NAME[name], raw)
        find = self.counter if family.kind == "counter" else self.histogram
        series: Counter | Histogram = find(family, labels, at)
        if labels == raw:  # what overflows goes through the guard each time, because it counts that
            self._merged[name, raw] = series
        return series

    def raise_to(self, rows: Iterable[Row]) -> None:
        """No series may stay below what a page has shown: these are what is known of that. Of a histogram
        each bucket is raised by itself, so that none goes down and none counts more than there was."""
        for row in rows:
            try:
                family = BY_NAME[row.family]
                labels = tuple(msgspec.json.decode(row.labels, type=list[str]))
                _check(family, labels)
                made = Counter if family.kind == "counter" else Histogram
                shown: Series = made(family, labels, row.created, free=row.free)
                shown.restore(row.value)
            except (KeyError, ValueError, msgspec.MsgspecError):
                continue
            if isinstance(shown, Counter):
                counter = self._counters[family].get(labels) or self._counter(family, labels, row.created)
                self.add(family, labels, max(0.0, shown.live - counter.live), row.created)
                self._as_shown(counter, row)
            elif isinstance(shown, Histogram):
                known = self._histograms[family]
                series = known.get(labels)
                if series is None:
                    series = known[labels] = Histogram(family, labels, row.created, free=row.free)
                series.counts = [max(pair) for pair in zip(series.counts, shown.counts, strict=True)]
                series.sum = max(series.sum, shown.sum)
                self._touch(series)
                self._as_shown(series, row)

    @staticmethod
    def _as_shown(series: Series, row: Row) -> None:
        """A series that has been on a page is not held back again."""
        series.shown = series.shown or row.shown
        series.free = series.free or row.free
        series.created = min(series.created, row.created) if row.created else series.created

    def set_gauges(self, gauges: Gauges) -> None:
        """All gauges as they are now, in place of those before. Their labels are guarded already."""
        for family, points in gauges.items():
            for labels in points:
                _check(family, labels)
        self._gauges = gauges

    def live(self, family: Family, ask: Callable[[int], float]) -> None:
        """A gauge without labels that each page asks for anew, with its time."""
        self._live[family] = ask

    def first_backlog(self, on: bool) -> None:
        """Called with True before the first backlog on an empty state (and again when a restart
        goes on with it), with False after it. Series born in between are shown as they are."""
        self._backlog = on
        with self._lock:
            for series in self._all():
                # What the backlog has not touched has its first event yet to be noticed.
                free = on or not self._hold or (series.free and not series.untouched())
                if free != series.free:
                    series.free = free
                    self._touch(series)

    def _counter(self, family: Family, labels: Labels, time: int) -> Counter:
        """A new series, with the siblings that its closed label has."""
        _check(family, labels)
        known = self._counters[family]
        births = [labels]
        if family.closed:
            at = family.labels.index(family.closed)
            births += [(*labels[:at], value, *labels[at + 1 :]) for value in family.values]
        for birth in births:
            if birth not in known:
                series = known[birth] = Counter(family, birth, time, free=self._free_at_birth())
                self._touch(series)
        return known[labels]

    def _histogram(self, family: Family, labels: Labels, time: int) -> Histogram:
        """The series, born at `time` if there is none yet."""
        known = self._histograms[family]
        series = known.get(labels)
        if series is None:
            _check(family, labels)
            series = known[labels] = Histogram(family, labels, time, free=self._free_at_birth())
        return series

    def _free_at_birth(self) -> bool:
        return self._backlog or not self._hold

    def _touch(self, series: Series) -> None:
        if not series.dirty:
            series.dirty = True
            self._dirty.append(series)

    def _all(self) -> Iterator[Series]:
        for counters in self._counters.values():
            yield from counters.values()
        for histograms in self._histograms.values():
            yield from histograms.values()

    # ---------------------------------------------------------------- committing: the loop

    def pending(self) -> bool:
        """Whether there is something to commit."""
        return bool(self._dirty or self._marks or self._changes)

    def rows(self) -> list[Row]:
        """The series that changed since the last commit, for the transaction that begins now."""
        self.rolled_back()
        with self._lock:
            marks = self._marks.copy()
            for series in marks:
                self._touch(series)
            changed, self._dirty = self._dirty, []
            for series in changed:
                series.dirty = False
            self._changes = [_Change(series, marks.get(series, series.shown)) for series in changed]
        return [
            Row(
                change.series.family.name,
                orjson.dumps(change.series.labels).decode(),
                change.packed,
                change.series.created,
                change.shown,
                change.series.free,
            )
            for change in self._changes
        ]

    def committed(self) -> None:
        """The transaction that took the last `rows` succeeded: pages may show it."""
        with self._lock:
            for change in self._changes:
                series = change.series
                series.commit(change.packed)
                series.shown = change.shown
                if self._marks.get(series) == change.shown:
                    del self._marks[series]
                if not series.on_page:
                    series.on_page = True
                    insort(self._page[series.family], series, key=_labels)
            self._changes = []

    def rolled_back(self) -> None:
        """The transaction failed: its changes wait for the next one."""
        for change in self._changes:
            self._touch(change.series)
        self._changes = []

    def load(self, rows: Iterable[Row]) -> int:
        """Takes up what the state holds. Returns how many rows no family of today can take."""
        strange = 0
        with self._lock:
            for row in rows:
                try:
                    family = BY_NAME[row.family]
                    labels = tuple(msgspec.json.decode(row.labels, type=list[str]))
                    series = self._restored(family, labels, row)
                except (KeyError, ValueError, msgspec.MsgspecError):
                    strange += 1
                    continue
                series.shown, series.free = row.shown, bool(row.free)
                if not series.on_page:
                    series.on_page = True
                    self._page[family].append(series)
            for on_page in self._page.values():
                on_page.sort(key=_labels)
        return strange

    def _restored(self, family: Family, labels: Labels, row: Row) -> Series:
        _check(family, labels)
        series: Series
        if family.kind == "counter":
            series = Counter(family, labels, row.created, free=False)
            series.restore(row.value)
            old = self._counters[family].get(labels)
            self._counters[family][labels] = series
            if old is not None:  # born by the constructor, before the state was asked
                self._dirty.remove(old)
        elif family.kind == "histogram":
            series = Histogram(family, labels, row.created, free=False)
            series.restore(row.value)
            self._histograms[family][labels] = series
        else:
            raise ValueError(f"{family.name} is not kept in the state")
        return series

    def label_values(self) -> Iterator[tuple[str, str]]:
        """Every (label name, value) of the series there are."""
        for series in self._all():
            yield from zip(series.family.labels, series.labels, strict=True)

    # ------------------------------------------------------------- showing: a page's thread

    def snapshot(self, now: int, *, scraper: bool, fresh: list[Series] | None = None) -> Snapshot:
        """What a page shows: to a scraper with the hold, to a person as it is. With `fresh`, series that
        no page has shown are put there, to be called `shown` when it is known that they were."""
        gauges: dict[Family, Mapping[Labels, float]] = dict(self._gauges)
        gauges.update({family: {(): ask(now)} for family, ask in self._live.items()})
        page: Snapshot = []
        with self._lock:
            marked = len(self._marks)
            for family, on_page in self._page.items():
                if on_page:
                    held = self._held if scraper else _never
                    page.append((family, [s.shown_as(held=held(s, now, fresh)) for s in on_page]))
                elif points := gauges.get(family):
                    page.append((family, [Point(at, points[at], 0, ()) for at in sorted(points)]))
            marked = len(self._marks) - marked
        if marked:
            self._on_shown()
        return page

    def shown(self, fresh: Iterable[Series], now: int) -> None:
        """These were shown at `now` for the first time: their hold begins."""
        with self._lock:
            marked = len(self._marks)
            for series in fresh:
                self._marks.setdefault(series, now)
            marked = len(self._marks) - marked
        if marked:
            self._on_shown()

    def release(self) -> bool:
        """What a page has shown as 0 is shown as it is from now on: nobody waits for the end of its hold.
        Whether there was any; it is to be committed before it is shown."""
        with self._lock:
            held = [
                series
                for on_page in self._page.values()
                for series in on_page
                if not (series.free or series.untouched()) and (series.shown or series in self._marks)
            ]
            for series in held:
                series.free = True
                self._marks.setdefault(series, series.shown)
        return bool(held)

    def _held(self, series: Series, now: int, fresh: list[Series] | None) -> bool:
        if series.free:
            return False
        if series.shown == 0 or now < series.shown:
            # Not shown before; or by a clock that has been put back since, which says nothing.
            if self._hold:
                if fresh is None:
                    self._marks.setdefault(series, now)
                else:
                    fresh.append(series)
                return True
        elif now - series.shown < self._hold:
            return True
        # From here on it is shown, so it stays shown, whatever the clock or the flag says later.
        series.free = True
        self._marks.setdefault(series, series.shown)
        return False


def _never(_series: Series, _now: int, _fresh: list[Series] | None) -> bool:
    return False


def _labels(series: Series) -> Labels:
    return series.labels


def _check(family: Family, labels: Labels) -> None:
    if len(labels) != len(family.labels):
        raise ValueError(f"{family.name} has the labels {family.labels}, not {len(labels)}")

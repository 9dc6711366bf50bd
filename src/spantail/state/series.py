"""One series each: its total as counted, and its total as committed, which is all a page may show.

For Totals. A series has two faces: `live` is what has been counted, and belongs to the loop;
what `shown_as` gives is what the last commit holds, and belongs to the page.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final, NamedTuple

import msgspec
from msgspec import Struct

from spantail.state.families import Family

Labels = tuple[str, ...]

_PACK: Final = msgspec.msgpack.Encoder()


class Row(NamedTuple):
    """A series as the state keeps it; `family` and `labels` are its key."""

    family: str
    labels: str
    """JSON: the values, in the order of the family's label names."""
    value: bytes
    created: int
    """Time of its first event in ns, 0 if that is not known."""
    shown: int
    """When a page first showed it, in ns; 0 if none has."""
    free: bool
    """Shown as it is: born in the first backlog, or its hold is over."""


class Exemplar(NamedTuple):
    trace: bytes
    value: float
    time: int


class Distribution(NamedTuple):
    """What a histogram shows: how many fell in each bucket (the last: above all), and their sum."""

    counts: tuple[int, ...]
    sum: float


class Point(NamedTuple):
    """A series on a page."""

    labels: Labels
    value: float | Distribution
    created: int
    exemplars: tuple[Exemplar | None, ...]
    """None or one of a counter, one place per bucket of a histogram; empty while held."""


class Series:
    """What counters and histograms share: when it was born, when shown, and whether it waits."""

    __slots__ = ("created", "dirty", "family", "free", "labels", "on_page", "shown")

    def __init__(self, family: Family, labels: Labels, created: int, *, free: bool) -> None:
        self.family = family
        self.labels = labels
        self.created = created
        self.shown = 0
        """As committed: a time that a kill could take back holds nothing."""
        self.free = free
        self.dirty = False
        self.on_page = False

    def untouched(self) -> bool:
        """Whether nothing was ever counted, committed or not."""
        raise NotImplementedError

    def packed(self) -> bytes:
        """The live total for the state."""
        raise NotImplementedError

    def amounts(self) -> tuple[float, tuple[int, ...]]:
        """The live total (a histogram's: its sum), and of a histogram how many fell in each bucket."""
        raise NotImplementedError

    def restore(self, packed: bytes) -> None:
        raise NotImplementedError

    def commit(self, packed: bytes) -> None:
        """The state holds this total now."""
        raise NotImplementedError

    def shown_as(self, *, held: bool) -> Point:
        raise NotImplementedError


class Counter(Series):
    __slots__ = ("exemplar", "live", "newest", "value")

    def __init__(self, family: Family, labels: Labels, created: int, *, free: bool) -> None:
        super().__init__(family, labels, created, free=free)
        self.live = 0.0
        self.value = 0.0
        self.newest: Exemplar | None = None
        self.exemplar: Exemplar | None = None

    def untouched(self) -> bool:
        return not self.live

    def packed(self) -> bytes:
        return _PACK.encode(self.live)

    def amounts(self) -> tuple[float, tuple[int, ...]]:
        return self.live, ()

    def restore(self, packed: bytes) -> None:
        self.live = self.value = float(msgspec.msgpack.decode(packed, type=float))

    def commit(self, packed: bytes) -> None:
        self.value = msgspec.msgpack.decode(packed, type=float)
        self.exemplar = self.newest

    def shown_as(self, *, held: bool) -> Point:
        if held:
            return Point(self.labels, 0.0, self.created, ())
        return Point(self.labels, self.value, self.created, (self.exemplar,))


class _Kept(Struct, array_like=True):
    counts: list[int]
    sum: float


class Histogram(Series):
    __slots__ = ("counts", "exemplars", "newest", "sum", "value")

    def __init__(self, family: Family, labels: Labels, created: int, *, free: bool) -> None:
        super().__init__(family, labels, created, free=free)
        places = len(family.buckets) + 1
        self.counts = [0] * places
        self.sum = 0.0
        self.value = Distribution((0,) * places, 0.0)
        self.newest: list[Exemplar | None] = [None] * places
        self.exemplars: tuple[Exemplar | None, ...] = ()

    def observe(self, value: float, time: int, trace: bytes) -> None:
        place = bisect_left(self.family.buckets, value)
        self.counts[place] += 1
        self.sum += value
        if trace and time:
            before = self.newest[place]
            # Prometheus refuses, with a warning each time, exemplars that go back in time.
            if before is None or time > before.time:
                self.newest[place] = Exemplar(trace, value, time)

    def untouched(self) -> bool:
        return not any(self.counts)

    def packed(self) -> bytes:
        return _PACK.encode(_Kept(self.counts, self.sum))

    def amounts(self) -> tuple[float, tuple[int, ...]]:
        return self.sum, tuple(self.counts)

    def restore(self, packed: bytes) -> None:
        kept = msgspec.msgpack.decode(packed, type=_Kept)
        if len(kept.counts) != len(self.counts):
            raise ValueError("the buckets are not those of the state")
        self.counts, self.sum = kept.counts, kept.sum
        self.value = Distribution(tuple(kept.counts), kept.sum)

    def commit(self, packed: bytes) -> None:
        kept = msgspec.msgpack.decode(packed, type=_Kept)
        self.value = Distribution(tuple(kept.counts), kept.sum)
        self.exemplars = tuple(self.newest)

    def shown_as(self, *, held: bool) -> Point:
        if held:
            return Point(self.labels, Distribution((0,) * len(self.counts), 0.0), self.created, ())
        return Point(self.labels, self.value, self.created, self.exemplars)

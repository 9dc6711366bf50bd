"""The ids already counted, of one group: eight bytes each, also in memory.

A set of Python integers would take ten times as much: a history of 300,000 calls is 30 MB as a
set and 2.4 MB here. Sorted arrays answer by bisection; new ids gather in a small set first.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable
from heapq import merge

FRESH = 4096
"""Ids in the set before they are merged into the arrays."""
PARTS = 64


class Ledger:
    def __init__(self, ids: Iterable[int] = ()) -> None:
        self._parts: list[array[int]] = [array("q") for _ in range(PARTS)]
        self._fresh: set[int] = set()
        self._new: list[int] = []
        for id_ in sorted(ids):
            self._parts[id_ % PARTS].append(id_)

    def known(self, id: int) -> bool:  # noqa: A002
        if id in self._fresh:
            return True
        part = self._parts[id % PARTS]
        at = bisect_left(part, id)
        return at < len(part) and part[at] == id

    def add(self, id: int) -> None:  # noqa: A002
        self._fresh.add(id)
        self._new.append(id)
        if len(self._fresh) > FRESH:
            self._fold()

    def _fold(self) -> None:
        split: list[list[int]] = [[] for _ in range(PARTS)]
        for id_ in self._fresh:
            split[id_ % PARTS].append(id_)
        for at, ids in enumerate(split):
            if ids:
                ids.sort()
                self._parts[at] = array("q", merge(self._parts[at], ids))
        self._fresh.clear()

    def take_new(self) -> list[int]:
        """What was added since the last commit."""
        new, self._new = self._new, []
        return new

    def __len__(self) -> int:
        return len(self._fresh) + sum(len(part) for part in self._parts)

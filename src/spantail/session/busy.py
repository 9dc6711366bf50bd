"""How long something went on, overlaps counted once, without keeping a list of all of it."""

from __future__ import annotations

from msgspec import Struct

KEEP = 24
"""Intervals kept apart. Records come nearly in order, so what is older than these cannot meet a
new interval any more and is folded into the sum."""


class Busy(Struct, gc=False):
    total: int = 0
    spans: list[tuple[int, int]] = []

    def add(self, start: int, end: int) -> None:
        if end <= start:
            return
        spans = self.spans
        begin, last = spans[-1] if spans else (0, -1)
        if start > last:
            spans.append((start, end))
        elif start >= begin:
            if end > last:
                spans[-1] = (begin, end)
        else:
            merged = []
            for a, b in spans:
                if b < start or a > end:
                    merged.append((a, b))
                else:
                    start, end = min(a, start), max(b, end)
            merged.append((start, end))
            merged.sort()
            self.spans = spans = merged
        if len(spans) > KEEP:
            fold = len(spans) - KEEP // 2
            self.total += sum(b - a for a, b in spans[:fold])
            self.spans = spans[fold:]

    def length(self) -> int:
        return self.total + sum(b - a for a, b in self.spans)

    def without(self, other: Busy) -> int:
        """The length of this less what the kept intervals share with `other`."""
        shared, at, spans = 0, 0, other.spans
        for a, b in self.spans:
            while at < len(spans) and spans[at][1] <= a:
                at += 1
            near = at
            while near < len(spans) and spans[near][0] < b:
                shared += min(b, spans[near][1]) - max(a, spans[near][0])
                near += 1
        return self.length() - shared

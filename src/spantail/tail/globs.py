"""Path patterns that can be walked: `*` inside one part of a path, `**` for any number of parts.

The illusion kept for the finder: it asks of a folder "can anything below still fit, and what?" and never
opens one in which nothing can. A pattern is therefore not one expression over a whole path but a row of
parts, and a place in the walk is a set of positions in these rows (the states of a small automaton).

As in a shell, `*` and `**` pass over names that begin with a dot unless the pattern names the dot; patterns
that shut files out (`hidden=True`) take them too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from fnmatch import translate
from functools import cache
from typing import Final

State = tuple[int, int]
"""(which pattern, how many of its parts are used up)."""
States = frozenset[State]

NOWHERE: Final[States] = frozenset()


def _part(pattern: str, hidden: bool) -> Callable[[str], bool]:
    if not any(c in pattern for c in "*?["):
        return pattern.__eq__
    fits = re.compile(translate(pattern)).match
    if hidden or pattern[0] == ".":
        return lambda name: fits(name) is not None
    return lambda name: name[0] != "." and fits(name) is not None


@cache
def compiled(patterns: tuple[str, ...], *, hidden: bool = False) -> Globs:
    """The same for the same patterns: every home has them, and every pass asks anew."""
    return Globs(patterns, hidden=hidden)


class Globs:
    """Several patterns, walked together; the first that fits a file decides."""

    def __init__(self, patterns: Sequence[str], *, hidden: bool = False) -> None:
        self._hidden = hidden
        self._rows = [
            [
                None if part == "**" else _part(part, hidden)
                for part in pattern.split("/")
                if part not in ("", ".")
            ]
            for pattern in patterns
        ]
        self.start: States = self._closed({(row, 0) for row in range(len(self._rows)) if self._rows[row]})

    def _closed(self, states: set[State]) -> States:
        """With every `**` also taken as no part at all."""
        todo = list(states)
        while todo:
            row, at = todo.pop()
            if at < len(self._rows[row]) - 1 and self._rows[row][at] is None and (row, at + 1) not in states:
                states.add((row, at + 1))
                todo.append((row, at + 1))
        return frozenset(states)

    def enter(self, states: States, name: str) -> States:
        """What can still fit below the folder `name`; nothing: do not walk into it."""
        below: set[State] = set()
        for row, at in states:
            part = self._rows[row][at]
            if part is None:
                if self._hidden or name[0] != ".":
                    below.add((row, at))
            elif at < len(self._rows[row]) - 1 and part(name):
                below.add((row, at + 1))
        return self._closed(below) if below else NOWHERE

    def fits(self, states: States, name: str) -> int | None:
        """The first pattern that the file `name` fits here."""
        best: int | None = None
        for row, at in states:
            if best is not None and row >= best:
                continue
            part = self._rows[row][at]
            if at == len(self._rows[row]) - 1 and (part is None or part(name)):
                best = row
        return best

    def inside(self, names: Sequence[str]) -> States:
        """What can still fit below the folder with these parts."""
        states = self.start
        for name in names:
            states = self.enter(states, name)
            if not states:
                break
        return states

    def match(self, names: Sequence[str]) -> int | None:
        """The first pattern that the path with these parts fits."""
        return self.fits(self.inside(names[:-1]), names[-1]) if names else None

    def covers(self, names: Sequence[str]) -> bool:
        """Whether a pattern fits the path or a folder above it: how exclusions are meant."""
        states = self.start
        for name in names:
            if self.fits(states, name) is not None:
                return True
            states = self.enter(states, name)
            if not states:
                return False
        return False

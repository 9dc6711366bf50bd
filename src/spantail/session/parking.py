"""Sessions that are left to the state until a record of them comes, or the clock has something to settle."""

from __future__ import annotations

from typing import NamedTuple

from spantail.session.work import Work


class Parked(NamedTuple):
    """What has to be known of a session that is in the state only."""

    when: int
    """When the clock may have something to settle."""
    project: str
    start: int
    """Of its open turn; 0 if there is none, or it is a subagent's."""
    trace: bytes
    """Of a subagent's open turn: that of the turn around it."""


class Parking:
    def __init__(self) -> None:
        self.sessions: dict[str, Parked] = {}
        self.soonest = 0
        """When the clock may have something to settle in one of them; 0 if never."""
        self.at_work: dict[str, Parked] = {}
        """Those in a turn of their own."""
        self.limits: dict[str, tuple[int, float, str]] = {}
        """When a rate limit was last told, what was used of it, and by which session. What an older session said
        is not needed again: it is over before that one."""
        self._nested: dict[bytes, set[str]] = {}

    def add(self, work: Work, when: int) -> None:
        turn = work.turn
        start = turn.start if turn is not None and not work.parent else 0
        trace = turn.trace if turn is not None and work.parent else b""
        if trace:
            self._nested.setdefault(trace, set()).add(work.key)
        parked = self.sessions[work.key] = Parked(when, work.context.project, start, trace)
        if start:
            self.at_work[work.key] = parked
        for window, used in work.limits.items():
            told = (work.last, used, work.key)
            self.limits[window] = max(told, self.limits.get(window, told))
        self.soonest = min(self.soonest or when, when)

    def take(self, key: str) -> None:
        parked = self.sessions.pop(key, None)
        if parked is None:
            return
        self.at_work.pop(key, None)
        for window in [window for window, told in self.limits.items() if told[2] == key]:
            del self.limits[window]
        if parked.trace:
            nested = self._nested[parked.trace]
            nested.discard(key)
            if not nested:
                del self._nested[parked.trace]

    def due(self, now: int) -> list[str]:
        """Those that are to be taken now."""
        due = [key for key, parked in self.sessions.items() if parked.when <= now]
        self.soonest = min((parked.when for parked in self.sessions.values() if parked.when > now), default=0)
        return due

    def nested(self, trace: bytes) -> list[str]:
        """Subagents with an open turn in that trace."""
        return list(self._nested.get(trace, ()))

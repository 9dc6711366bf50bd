"""When, by our clock, the last record of each session that is followed live was read.

Its agent's clock may be hours from ours (another machine, an old file that is written again), so silence is counted
from here. A time that is later than the one by which is settled is nothing odd: the loop asks for the time before it
waits, and the machine may have slept in between. Only two times that were asked for tell that the clock was put back.
"""

from __future__ import annotations

from typing import Final

from spantail.model import SECOND
from spantail.session.work import Work

PUT_BACK: Final = 10 * SECOND
"""A clock that says so much less than it did was put back."""


class Seen(dict[str, int]):
    def __init__(self) -> None:
        super().__init__()
        self._asked = 0
        self._stored: dict[str, int] = {}
        """Those of an earlier process: the clock may have been put back since."""

    def restore(self, work: Work) -> None:
        if work.seen:
            self[work.key] = self._stored[work.key] = work.seen

    def ask(self, now: int) -> bool:
        """Before it is settled by that time. Whether the clock was put back since the last time."""
        put_back = now < self._asked - PUT_BACK
        for key, at in (self if put_back else self._stored).items():
            if now < at - PUT_BACK and self.get(key) == at:
                self[key] = now
        self._asked, self._stored = now, {}
        return put_back

    def at(self, work: Work, now: int) -> int:
        """The clock as the session's records would tell it."""
        seen = self.get(work.key)
        return now if seen is None else work.last + now - seen

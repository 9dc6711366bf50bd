"""Which lines of a file are a copy of another thread's history, so that nothing is counted twice.

Forks, subagents and resumed sessions may begin with the records of the thread they come from, token
counts included and every line stamped anew; readers that take them for the file's own report many
times too much. What tells them apart, the surest first:

- `subagent_history_start_ordinal`: lines with a smaller ordinal are copies;
- turn ids and thread ids are UUIDv7: a turn minted before the file's own thread is a copy, one minted
  later is genuine, whatever the file says about parents;
- without turn ids: after a session_meta with another id, the lines stamped within a second of it
  (a copy is written in one go); without such a one, in a file that names its origin, the lines that
  bear the stamp of the beginning, which no answer of a model has, or an older one.
"""

from __future__ import annotations

import re
from typing import Final

from msgspec import Struct

from spantail.model import MILLISECOND, SECOND

_V7: Final = re.compile(r"([0-9a-f]{8})-([0-9a-f]{4})-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}", re.IGNORECASE)


def minted(id_: str) -> int:
    """When a UUIDv7 was made, in milliseconds; 0 for any other id."""
    found = _V7.fullmatch(id_)
    return int(found[1] + found[2], 16) if found is not None else 0


AT_ONCE: Final = 100 * MILLISECOND
"""What was written in one go is no further apart."""


class History(Struct):
    """Where a file's own records begin."""

    own: int = 0
    """When the file's thread was made."""
    related: bool = False
    """The file names a thread that it comes from, or holds that one's session_meta."""
    start: int = 0
    """subagent_history_start_ordinal"""
    copying: bool = False
    since: int = 0
    turns: bool = False
    """The copied part has turn ids."""
    begun: bool = False
    """A turn of the file's own has begun."""
    unsure: bool = False
    """Nothing but its stamps makes it a copy."""

    def begin(self, time: int, *, related: bool) -> None:
        """The file's own session_meta. If it names an origin, a copy of that one's history may follow."""
        self.since, self.related = time, related
        if related and self.own:
            self.copying = self.unsure = True

    def foreign(self, time: int) -> None:
        """Another thread's session_meta."""
        self.related = True
        if not self.begun and (self.unsure or not self.copying):
            # A copy that kept its own stamps is older than what it stands in.
            self.copying, self.since = True, max(self.since, time)
            self.turns = self.unsure = False

    def copied(self, turn: str, ordinal: object, time: int) -> bool:
        """Whether a record is a copy. `turn`: the id of the turn that begins with it, if one does."""
        if self.start and isinstance(ordinal, int):
            return ordinal < self.start
        made = minted(turn) if turn else 0
        if made and self.own:
            old = self.related and made < self.own and not self.begun
            self.copying = old
            self.turns |= old
            self.begun |= not old
            self.unsure &= not old
        elif self.copying and (turn or not self.turns) and self._later(turn, time):
            self.copying, self.begun, self.unsure = False, True, False
        return self.copying

    def _later(self, turn: str, time: int) -> bool:
        """Whether a record without a word of its own about that is no part of a copy any more."""
        if self.unsure:
            return bool(turn) or time > self.since + AT_ONCE
        return time > self.since + SECOND

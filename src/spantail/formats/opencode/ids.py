"""OpenCode's ids hold the time at which they were made: `msg_` + 12 hexadecimal digits + 14 others.

The digits are milliseconds times 4096 plus a counter, cut to 48 bits, so they begin anew every 2.2 years. Where
a full time of about the same moment is known it tells which round is meant; else the round is the first one in
which the program existed at all.
"""

from __future__ import annotations

from typing import Final

from spantail.model import MILLISECOND

_ROUND: Final = 1 << 36
_FIRST: Final = 1_743_465_600_000
"""April 2025, before the first release that stored sessions like this."""


def made_at(id_: str, near: int = 0) -> int:
    """Nanoseconds, 0 for what is no such id. `near`: a time of about then."""
    try:
        within = int(id_[4:16], 16) >> 12
    except ValueError:
        return 0
    if len(id_) < 16 or id_[3] != "_" or within < 0:
        return 0
    if near:
        at = near // MILLISECOND
        rounds = round((at - within) / _ROUND)
    else:
        rounds = -((within - _FIRST) // _ROUND)
    return max(0, within + rounds * _ROUND) * MILLISECOND


def is_own(call: str) -> bool:
    """Whether a tool's call id was made by the program and not by a model's provider: a ULID."""
    return len(call) == 26 and call.isalnum() and call.isupper() and call[0] in "01234567"

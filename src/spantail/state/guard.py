"""Label values that can be trusted: few, short, printable.

For whoever pays for the series. Names in session files come from models, servers and folders; one
that makes up a new name for every call must not make a series for every call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from spantail.state.families import LABEL_OVERFLOW
from spantail.state.totals import Totals

OTHER: Final = "other"
UNKNOWN: Final = "unknown"
LENGTH: Final = 128
INVENTED: Final = ("tool", "model", "project", "error_type", "window")
"""Labels whose values come from records; the others are told by the system or by us."""

LIMITS: Final[Mapping[str, int]] = {
    "tool": 200,
    "model": 100,
    "project": 500,
    "agent": 50,
    "error_type": 50,
    "user": 2000,
}
LIMIT: Final = 100
"""For a label that is not in LIMITS."""

MAY_BE_EMPTY: Final = frozenset({"project", "user"})


class Guard:
    def __init__(
        self,
        totals: Totals,
        limits: Mapping[str, int] = LIMITS,
        *,
        values: int | None = None,
        length: int = LENGTH,
        redact: Callable[[str], str] = lambda raw: raw,
    ) -> None:
        """Values that `totals` has already stay what they are: call it after the totals are loaded.
        `values` and `length` are the user's: how many of those that records invent, and how long.
        `redact` takes out what looks like a secret."""
        self._redact = redact
        self._totals = totals
        self._limits = {**LIMITS, **limits}
        if values is not None:
            self._limits |= dict.fromkeys(INVENTED, values)
        self._length = length
        self._values: dict[str, set[str]] = {}
        self._seen: dict[tuple[str, str], str] = {}
        self._room = 4 * sum(self._limits.values())
        for label, value in totals.label_values():
            self.learn(label, value)

    def value(self, label: str, raw: str) -> str:
        """What stands on the page for `raw`."""
        seen = self._seen.get((label, raw))
        return self._judge(label, raw) if seen is None else seen

    def learn(self, label: str, value: str) -> None:
        """A value that pages have shown: never `other`, even above the limit."""
        if value != OTHER:
            self._values.setdefault(label, set()).add(value)

    def _judge(self, label: str, raw: str) -> str:
        clean = cleaned(label, self._redact(raw), self._length)
        values = self._values.setdefault(label, set())
        limit = self._limits.get(label, LIMIT)
        if clean not in values and clean not in ("", OTHER, UNKNOWN):
            if len(values) >= limit:
                self._totals.add(LABEL_OVERFLOW, (label,), 1.0, 0)
                return OTHER
            values.add(clean)
        # Many raw values may come to one clean value; the shortcut is for the usual ones.
        if len(self._seen) < self._room:
            self._seen[label, raw] = clean
        return clean


def cleaned(label: str, raw: str, length: int = LENGTH) -> str:
    """Printable, of a sane length, and not empty where that would say nothing."""
    text = raw[:length]
    if not text.isprintable():  # also true of a lone surrogate, which no page can be written with
        text = "".join(c if c.isprintable() else "_" for c in text)
    text = text.strip()
    if not text and label not in MAY_BE_EMPTY:
        return UNKNOWN
    return text

"""The order in which files are read. At the start: oldest work first, what belongs together together.

For the ledger's sake: a session copied by a fork or resume has the ids of the original, and whichever is read
first gives its name. So units (the files of one session) come in the order of their first records, as if the
files had been followed from the beginning; inside a unit companions come first, then main files, then the rest.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Final

from spantail.tail.identity import open_lines
from spantail.tail.source import Source

HEAD: Final = 64 << 10
"""How much of each file its format is shown to tell time and unit."""

_Placed = tuple[int, int, str, Source]
"""Time of the first record, mtime, path."""


def units(sources: Sequence[Source]) -> list[list[Source]]:
    found: dict[tuple[str, str], list[_Placed]] = {}
    for source in sources:
        time, mtime, unit = _look(source)
        found.setdefault((source.group, unit), []).append((time or mtime, mtime, source.path, source))
    ordered = sorted(found.values(), key=lambda unit: min(placed[:3] for placed in unit))
    return [[placed[3] for placed in sorted(unit, key=_inside)] for unit in ordered]


def in_wake(sources: Iterable[Source]) -> list[Source]:
    """Companions are read before main files, and those before the others. Of several documents that changed since
    the last look those come first that hold the older: where each message is a file of its own, their order is
    what happened."""
    ranked = sorted(sources, key=lambda s: (not s.files.companion, not s.files.main, s.path))
    documents = [s for s in ranked if s.files.storage == "document" and s.files.unit is not None]
    if len(documents) < 2:
        return ranked
    times = {source.path: time or mtime for source in documents for time, mtime, _ in (_look(source),)}
    return sorted(
        ranked, key=lambda s: (not s.files.companion, not s.files.main, times.get(s.path, 0), s.path)
    )


def _inside(placed: _Placed) -> tuple[int, int, int, str]:
    files = placed[3].files
    return (0 if files.companion else 1 if files.main else 2, *placed[:3])


def _look(source: Source) -> tuple[int, int, str]:
    """(time of the first record or 0, mtime, unit). A file that cannot be read is a unit of its own: its
    tail will say what is wrong."""
    try:
        if source.files.unit is None:
            return 0, os.stat(source.path).st_mtime_ns, source.path  # noqa: PTH116
        with open_lines(source.path, HEAD) as file:
            mtime = os.fstat(file.fileno()).st_mtime_ns
            head = file.read(HEAD)
    except OSError:
        return 0, 0, source.path
    try:
        time, unit = source.files.unit(source.path, head)
    except Exception:  # noqa: BLE001 a file that its format cannot make sense of is still read
        return 0, mtime, source.path
    return time, mtime, unit or source.path

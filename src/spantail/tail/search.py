"""Files that may lie in any folder of a home, found by name without being in the way.

The illusion kept for the finder: it asks at every scan and always has an answer, although a walk through a home
is dear. So walks are few: one at the start, then at most one in half a minute, beside the loop, and the dearer a
walk is the longer the next one waits. In between the answer is the last one, and what others (a changed path) found
meanwhile.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from math import inf
from threading import Thread
from typing import Final

DEPENDENCIES: Final = frozenset(
    (
        "node_modules",
        "bower_components",
        "vendor",
        "third_party",
        "site-packages",
        "dist-packages",
        "venv",
        "virtualenv",
        "__pycache__",
        "target",
        "build",
        "dist",
        "Pods",
        "DerivedData",
        "Library",
        "AppData",
        "snap",
        "anaconda3",
        "miniconda3",
    )
)
"""Folders that are large, are nobody's project, and hold no project's own files."""

PAUSE: Final = 30.0
SHARE: Final = 1000
"""A walk is followed by a pause this many times as long, up to LONGEST. Measured: 50,000 folders take 0.6 s of a
core and 0.7 to 1.8 s in all (10 s from a cold disk), so such a home is walked every quarter of an hour, for 0.07% of
a core."""
LONGEST: Final = 900.0

Job = Callable[[], None]
Fits = Callable[[str], bool]


def _apart(job: Job) -> None:
    Thread(target=job, name="spantail-search", daemon=True).start()


class Search:
    """`start` runs a walk beside the loop; the first one of a folder is waited for."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, start: Callable[[Job], None] = _apart
    ) -> None:
        self._clock = clock
        self._start = start
        self._found: dict[str, set[str]] = {}
        self._due: dict[str, float] = {}

    def files(self, root: str, depth: int, fits: Fits, barred: Fits) -> list[str]:
        """The paths known below `root`; some may be gone by now."""

        def job() -> None:
            began = self._clock()
            found = set(walk(root, depth, fits, barred))
            ended = self._clock()
            # What was added meanwhile the walk may have passed by.
            known = self._found.get(root, set())
            self._found[root] = found | {path for path in known if os.path.exists(path)}  # noqa: PTH110
            self._due[root] = ended + min(LONGEST, max(PAUSE, SHARE * (ended - began)))

        if root not in self._due:
            job()
        elif self._clock() >= self._due[root]:
            self._due[root] = inf
            self._start(job)
        return sorted(self._found[root])

    def add(self, root: str, path: str) -> None:
        """Found otherwise, before a walk has met it."""
        self._found.setdefault(root, set()).add(path)


def lies(names: list[str], depth: int) -> bool:
    """Whether a walk would meet a file with these parts below its root."""
    return 0 < len(names) <= depth + 1 and not any(map(_passed_over, names[:-1]))


def walk(root: str, depth: int, fits: Fits, barred: Fits) -> Iterator[str]:
    """No symbolic link is followed. A folder that cannot be listed is passed over: homes hold many of these."""
    todo = [(root, 0)]
    while todo:
        folder, level = todo.pop()
        if barred(folder):
            continue
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    name = entry.name
                    if fits(name):
                        yield entry.path
                    elif level < depth and not _passed_over(name) and entry.is_dir(follow_symlinks=False):
                        todo.append((entry.path, level + 1))
        except OSError:
            continue


def _passed_over(name: str) -> bool:
    return name[0] == "." or name in DEPENDENCIES

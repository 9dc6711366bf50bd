"""The page as a file, for the textfile collector of node_exporter.

For a collector that may look at any moment: the file is always a whole page. It shows what a scraper
would be shown, new series held at 0, because that is who reads it in the end.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from spantail.model import SECOND
from spantail.out.page import Page

APART: Final = SECOND
"""Two pages are at least this far apart."""
OLD: Final = 15 * SECOND
"""A page this old is written anew: the end of a hold and a budget's new period come without a commit."""


class TextFile:
    def __init__(self, path: Path, page: Page, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._path = path
        # Not ending in .prom, so that the collector does not take it for a page.
        self._new = path.with_name(f".{path.name}.{os.getpid()}.new")
        self._page = page
        self._clock = clock
        self._last: int | None = None
        self._behind = False
        """A commit came too soon after the last page."""

    def write(self, *, now: bool = False) -> bool:
        """Writes the page, unless it is not open yet or the last one is younger than a second; `now`
        (at exit) writes in any case. False: not written. An OSError is the caller's to say."""
        at = self._clock()
        if not self._page.is_open or (not now and self._last is not None and at - self._last < APART):
            self._behind = True
            return False
        self._last, self._behind = at, False
        body, _ = self._page.render(scraper=True)
        try:
            # The collector is another user: readable as far as the umask allows.
            with open(os.open(self._new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644), "wb") as file:  # noqa: PTH123
                file.write(body)
            self._new.replace(self._path)
        except OSError:
            with contextlib.suppress(OSError):
                self._new.unlink()
            raise
        return True

    def refresh(self) -> bool:
        """Without a commit: writes what the last one left unwritten, and what has become old."""
        old = self._last is not None and self._clock() - self._last >= OLD
        return self.write() if self._behind or old else False

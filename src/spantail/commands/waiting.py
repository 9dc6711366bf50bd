"""A state that cannot be opened for a while does not take the metrics away.

For Prometheus the totals stay where they were when the program starts again on a disk that has become full or read-only:
they are read from the state as it lies there, `spantail_commit_failed` and /readyz say what is wrong, nothing is
followed, and the state is tried again until it opens. Without a state there is nothing to show, and most likely the
folder is the wrong one: then the start fails.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sqlite3
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from spantail import __version__
from spantail.model import SECOND
from spantail.notices import Notices
from spantail.out.page import Page
from spantail.out.textfile import TextFile
from spantail.state import families as f
from spantail.state.store import FILE, Store
from spantail.state.totals import Totals
from spantail.state.unopened import left_by_the_last_commit

if TYPE_CHECKING:
    from spantail.config import Config
    from spantail.out.server import PageServer

RETRY_SECONDS: Final = 1.0


def serve(
    config: Config,
    page: Page,
    notices: Notices,
    *,
    metrics: bool,
    ready: Callable[[], tuple[bool, str]],
    alive: Callable[[], bool] = lambda: True,
) -> PageServer | None:
    """The page's server, listening; None if none is wanted."""
    if config.listen is None or config.once:
        return None
    from spantail.out.door import Door, Web  # TLS and HTTP are loaded by those who listen
    from spantail.out.server import PageServer

    host, port = config.listen
    door = Door(config.web or Web(), notices.certificate_failed)
    server = PageServer(host, port, page, ready=ready, alive=alive, metrics=metrics, door=door)
    server.start()
    path = "/metrics" if metrics else "/healthz"
    notices.listening(f"{host}:{server.port}", path, door.scheme)
    return server


def reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)


class Waiting:
    """Tests give a `pause`: the seconds to wait -> whether to stop."""

    def __init__(
        self,
        config: Config,
        *,
        metrics: bool,
        clock: Callable[[], int],
        pause: Callable[[float], bool] | None = None,
    ) -> None:
        self._config = config
        self._metrics = metrics
        self._over = threading.Event()
        self._pause = pause or self._over.wait
        self._why = ""
        self.totals = Totals(hold=0)
        self.page = Page(self.totals, static_labels=config.labels, created=config.created, clock=clock)
        self._file = TextFile(Path(config.textfile), self.page) if config.textfile else None
        self.notices = Notices(
            lambda *_: None, terminal=sys.stderr.isatty(), form=config.log_format, clock=clock
        )

    @staticmethod
    def helps(config: Config) -> bool:
        """Whether there is a state to wait for."""
        try:
            return not config.once and (Path(config.state) / FILE).is_file()
        except OSError:
            return False

    def until(self, opens: Callable[[], Store], error: Exception) -> Store | None:
        """The state, once it opens; None if told to stop before. Errors that do not pass are raised."""
        stops = (signal.SIGTERM, signal.SIGINT)
        before = [signal.signal(number, lambda *_: self._over.set()) for number in stops]
        self._failed(error)
        self._load()
        server = serve(
            self._config,
            self.page,
            self.notices,
            metrics=self._metrics,
            ready=lambda: (False, f"the state cannot be opened: {self._why}"),
        )
        try:
            while not self._pause(RETRY_SECONDS):
                try:
                    store = opens()
                except (OSError, sqlite3.Error) as again:
                    self._failed(again)
                    continue
                self.notices.commit_restored()
                return store
            return None
        finally:
            if server is not None:
                server.close()
            for number, what in zip(stops, before, strict=True):
                signal.signal(number, what)

    def _failed(self, error: Exception) -> None:
        self._why = reason(error)
        with contextlib.suppress(OSError):
            if not os.statvfs(
                self._config.state
            ).f_bavail:  # SQLite calls that many things, an I/O error for one
                self._why = os.strerror(errno.ENOSPC)
        self.notices.commit_failed(self._why)
        if self._file is not None and self.page.is_open:
            with contextlib.suppress(OSError):
                self._file.write()

    def _load(self) -> None:
        rows, notes = left_by_the_last_commit(Path(self._config.state) / FILE) or ([], {})
        # Whose hold is not over was a zero so far, and may have to be one still when the state opens.
        self.totals.load(row for row in rows if row.free)
        gauges: dict[f.Family, dict[tuple[str, ...], float]] = {
            f.BUILD_INFO: {(__version__,): 1.0},
            f.COMMIT_FAILED: {(): 1.0},
        }
        for family, note in ((f.LAST_COMMIT, "last_commit"), (f.STATE_CREATED, "created")):
            if notes.get(note, "").isdecimal():
                gauges[family] = {(): int(notes[note]) / SECOND}
        self.totals.set_gauges(gauges)
        self.page.open()

"""Runs the real program in this process, on a copy of a recorded home."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from receiver import Receiver, Span
from spantail.commands import run
from spantail.config import Config
from spantail.model import SECOND
from spantail.state.store import Store
from spantail.tail.wake import HandWaker

LONG_AFTER = 1_893_456_000 * 10**9
"""A time at which every recorded session has long been silent."""


def configured(home: Path, state: Path, **settings) -> Config:
    defaults = {
        "homes": (str(home),),
        "own_home": False,
        "since": None,
        "once": True,
        "listen": None,
        "state": str(state),
        "textfile": str(state / "page.prom"),
        "new_series_hold": 0,
    }
    return Config(**{**defaults, **settings})


def once(
    home: Path, state: Path, receiver: Receiver | None, monkeypatch, **settings
) -> tuple[list[Span], str]:
    """Everything in `home`, delivered: the spans and the metrics page."""
    if receiver is not None:
        for key, value in receiver.environ().items():
            monkeypatch.setenv(key, value)
    state.mkdir(parents=True, exist_ok=True)
    # A copy: to open a database, even to read it, touches the files beside it.
    copy = state / "home"
    if not copy.exists():
        shutil.copytree(home, copy)
    config = configured(copy, state, **settings)
    status = run.main(config, os.environ, clock=lambda: LONG_AFTER, strict=True)
    assert status == 0
    return (receiver.spans if receiver is not None else []), (state / "page.prom").read_text()


class Followed:
    """The program as it follows a home and is looked after by hand; it can be ended and begun again."""

    def __init__(self, home: Path, state: Path, now: int) -> None:
        self.now = now
        self._config = configured(home, state, once=False)
        self.begin()

    def begin(self) -> None:
        self._store, self._waker = Store(Path(self._config.state)), HandWaker()
        self._run = run.Run(
            self._config, os.environ, self._store, clock=lambda: self.now, waker=self._waker, strict=True
        )
        self._run.begin()

    def changed(self, path: Path) -> None:
        self._waker.change(str(path))

    def look(self) -> None:
        self._run.follow.step(0)

    def end(self) -> None:
        self._run._leave()
        self._store.close()

    def end_long_after(self) -> None:
        """The clock has closed what nothing else does, and all is delivered."""
        for _ in range(3):
            self.now += 3 * 3600 * SECOND
            self.look()
        assert self._run.deliverer.wait_idle(20)
        self.end()

"""Plays made-up sessions side by side, in real time or faster, into a home that is the demo's own.

For the follower, which must not be able to tell them from real ones: everything is written at the time that it says it
was written, at whatever speed. For the user, whose files are in danger of being mixed with made-up ones: a home that
has agents' files and not the demo's mark is refused.
"""

from __future__ import annotations

import heapq
import importlib
import itertools
import random
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from spantail.demo.scenes import SCENES, Scene, Session, Tally, Waits

if TYPE_CHECKING:
    from spantail.formats.actor import Actor, Stage
    from spantail.formats.row import Format

MARK: Final = ".spantail-demo"
PROJECTS: Final = ("shop", "billing", "search", "mobile")
AT_ONCE: Final = 6
"""Sessions that run side by side, once all scenes have been shown."""
APART: Final = 1.0
"""Seconds between the beginnings of sessions at the start: all are there within half a minute."""
KEPT: Final = 200
"""Sessions whose files stay; older ones are deleted."""


class HomeError(Exception):
    """The home cannot be used; one line."""


def claim(home: Path, own: Path, rows: Sequence[Format]) -> Path:
    """Makes the home the demo's; returns the folder that is its mark. HomeError if it is not free."""
    mark = home / MARK
    if not mark.is_dir():
        if home.resolve() == own.resolve():
            raise HomeError(f"--home: {home} is your own home; choose another folder")
        roots = [home / root.path for row in rows for root in row.roots]
        found = next((root for root in roots if root.exists() and root.resolve() != home.resolve()), None)
        if found is not None:
            raise HomeError(f"--home: {found} is there and not made by a demo; choose another folder")
    try:
        mark.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise HomeError(f"--home: {home}: {error.strerror or error}") from None
    return mark


class Cast:
    """Who can play: the formats that have a demo."""

    def __init__(self, rows: Sequence[Format]) -> None:
        self.stages: list[tuple[str, Stage]] = [
            (row.agent, importlib.import_module(row.demo)) for row in rows if row.demo
        ]

    def able(self, scene: Scene) -> list[tuple[str, Stage]]:
        return [(agent, stage) for agent, stage in self.stages if scene.needs in (None, *stage.CAN)]


class Play:
    """`tally` is what was written so far."""

    def __init__(
        self,
        home: Path,
        cast: Cast,
        *,
        seed: int | None = None,
        speed: float = 1.0,
        clock: Callable[[], int] = time.time_ns,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._home, self._cast, self._speed = home, cast, speed
        self._clock, self._monotonic = clock, monotonic
        self._dice = random.Random(seed)
        self.tally: Tally = Counter()
        self._queue: list[tuple[float, int, Waits]] = []
        self._number = itertools.count()
        self._over: deque[Actor] = deque()

    def run(self, stopping: threading.Event, seconds: float | None = None, *, once: bool = False) -> None:
        """Until stopped, or for some seconds; `once`: until each scene was played by everybody who can."""
        self._open(once=once)
        try:
            self._go(stopping, seconds, once=once)
        finally:
            for _, _, waits in self._queue:
                waits.close()

    def _go(self, stopping: threading.Event, seconds: float | None, *, once: bool) -> None:
        begun = self._monotonic()
        while self._queue and not stopping.is_set():
            due, _, waits = self._queue[0]
            now = self._monotonic()
            if seconds is not None and now - begun >= seconds:
                return
            if due > now:
                left = due - now if seconds is None else min(due - now, begun + seconds - now)
                stopping.wait(left)
                continue
            heapq.heappop(self._queue)
            self._step(waits, due)
            if not once and len(self._queue) < AT_ONCE:
                self._begin(*self._chosen(), after=self._dice.uniform(0.5, 4.0))

    def _open(self, *, once: bool) -> None:
        """Every scene by everybody who can, so that every panel has something to show."""
        first = [(scene, who) for scene in SCENES for who in self._cast.able(scene) if scene.ends]
        self._dice.shuffle(first)
        for number, (scene, who) in enumerate(first):
            self._begin(scene, who, after=number * APART)
        for scene in SCENES:
            if not scene.ends and not once:
                self._begin(scene, self._cast.able(scene)[0], after=0.0)

    def _chosen(self) -> tuple[Scene, tuple[str, Stage]]:
        able = [scene for scene in SCENES if scene.ends and self._cast.able(scene)]
        (scene,) = self._dice.choices(able, [scene.weight for scene in able])
        return scene, self._dice.choice(self._cast.able(scene))

    def _begin(self, scene: Scene, who: tuple[str, Stage], *, after: float) -> None:
        self._wait(self._monotonic(), after, self._played(scene, *who))

    def _played(self, scene: Scene, agent: str, stage: Stage) -> Waits:
        """A whole session; one that goes on for long has always a next one."""
        yield from self._session(scene, agent, stage)
        while not scene.ends:
            yield 30.0
            yield from self._session(scene, agent, stage)

    def _session(self, scene: Scene, agent: str, stage: Stage) -> Waits:
        cwd = f"/home/demo/{self._dice.choice(PROJECTS)}"
        # In turns, so that each is seen soon.
        model = stage.MODELS[self.tally[agent, "sessions"] % len(stage.MODELS)]
        actor = stage.actor(self._home, cwd, model, self._clock())
        self.tally[agent, "sessions"] += 1
        session = Session(agent, actor, stage.CAN, self._dice, self._clock, self.tally)
        try:
            yield from scene.play(session)
            yield 1.0
            actor.end(self._clock())
        finally:
            actor.close()
        self._over.append(actor)
        while len(self._over) > KEPT:
            self._over.popleft().remove()

    def _step(self, waits: Waits, due: float) -> None:
        wait = next(waits, None)
        if wait is not None:
            self._wait(due, wait, waits)

    def _wait(self, since: float, seconds: float, waits: Waits) -> None:
        """Counted from when it was due: what one session takes to write makes no other late."""
        heapq.heappush(self._queue, (since + seconds / self._speed, next(self._number), waits))

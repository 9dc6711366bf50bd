"""`spantail demo`: made-up sessions of several agents, written live, and followed as real ones would be.

Nothing of the user's is touched: the sessions are in a folder of their own, with the state beside them, and the
user's configuration is not asked. Only the standard variables are: traces and pushed metrics go where they say.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

from msgspec import Struct

from spantail import settings
from spantail.config import Config, own_home
from spantail.demo.play import Cast, HomeError, Play, claim
from spantail.demo.scenes import Tally
from spantail.formats import TABLE
from spantail.model import SECOND
from spantail.tables import Budget

T = TypeVar("T")
FAILED: Final = 1
BAD_SETTING: Final = 2
HOLD: Final = 15 * SECOND
"""For a Prometheus that scrapes every 5 s: a demo is looked at now."""
LONGEST: Final = 60 * SECOND
"""How long the end of a demo waits for what is not settled."""
BUDGETS: Final = (
    Budget(name="demo-blown", period="day", limit=1.0),
    Budget(name="demo-shop", period="week", limit=25.0, project=("shop",)),
    Budget(name="demo-all", period="month", limit=500.0),
)


class Asked(Struct, frozen=True, kw_only=True):
    home: str | None = None
    speed: float = 1.0
    seed: int | None = None
    seconds: float | None = None
    once: bool = False
    write_only: bool = False
    listen: tuple[str, int] | None = settings.DEFAULT_LISTEN


def asked(args: Mapping[str, Any]) -> Asked:
    """The words of the command line; ValueError with the flag in it."""
    return Asked(
        home=args["home"],
        speed=_told(args, "speed", "--speed", _speed) or 1.0,
        seed=_told(args, "seed", "--seed", _seed),
        seconds=_told(args, "time", "--for", _seconds),
        once=args["once_through"],
        write_only=args["write_only"],
        listen=_told(args, "listen", "--listen", settings.listen),
    )


def _told(args: Mapping[str, Any], key: str, flag: str, parse: Callable[[str], T]) -> T | None:
    if args[key] is None:
        return None
    try:
        return parse(args[key])
    except ValueError as error:
        raise ValueError(f"{flag}: {error}") from None


def _speed(word: str) -> float:
    try:
        speed = float(word)
    except ValueError:
        speed = 0.0
    if not 0.01 <= speed <= 1e6:
        raise ValueError(f"{word!r} is no number from 0.01 to 1000000")
    return speed


def _seed(word: str) -> int:
    if not word.isascii() or not word.isdigit():
        raise ValueError(f"{word!r} is no whole number")
    return int(word)


def _seconds(word: str) -> float:
    return settings.positive(word) / SECOND


def main(asked: Asked, environ: Mapping[str, str] | None = None) -> int:
    environ = os.environ if environ is None else environ
    with _folder(asked.home) as home:
        try:
            mark = claim(home, Path(own_home(environ)), TABLE)
        except HomeError as error:
            sys.stderr.write(f"spantail: {error}\n")
            return BAD_SETTING
        sys.stderr.write(f"spantail: made-up sessions are written to {home}\n")
        play = Play(home, Cast(TABLE), seed=asked.seed, speed=asked.speed)
        status = _write(asked, play) if asked.write_only else _follow(asked, play, home, mark, environ)
        sys.stdout.write(written(play.tally))
        return status


@contextlib.contextmanager
def _folder(given: str | None) -> Iterator[Path]:
    if given is not None:
        yield Path(given).expanduser()
        return
    made = Path(tempfile.mkdtemp(prefix="spantail-demo-"))
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _write(asked: Asked, play: Play) -> int:
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    try:
        play.run(stopping, asked.seconds, once=asked.once)
    except OSError as error:
        sys.stderr.write(f"spantail: cannot write: {error.strerror or error}\n")
        return FAILED
    return 0


def _follow(asked: Asked, play: Play, home: Path, mark: Path, environ: Mapping[str, str]) -> int:
    """The ordinary follower on the demo's home, while a thread writes there."""
    from spantail.commands import run

    config = Config(
        homes=(str(home),),
        own_home=False,
        since=None,
        listen=asked.listen,
        state=str(mark / "state"),
        new_series_hold=HOLD,
        budgets=BUDGETS,
    )
    stopping = threading.Event()

    def perform(following: run.Run) -> None:
        try:
            play.run(stopping, asked.seconds, once=asked.once)
        except OSError as error:
            sys.stderr.write(f"spantail: cannot write: {error.strerror or error}\n")
        # What was written last is read, and settles when its grace is over: then there is no commit any more.
        ended = time.time_ns()
        while not stopping.wait(0.2):
            now = time.time_ns()
            if (
                now - max(ended, following.follow.last_commit) > config.grace + SECOND
                or now - ended > LONGEST
            ):
                break
        following.follow.stop()

    def begin(following: run.Run) -> None:
        threading.Thread(target=perform, args=(following,), name="demo", daemon=True).start()

    try:
        return run.main(config, environ, beside=begin)
    finally:
        stopping.set()


def written(tally: Tally) -> str:
    """What was written, a line per agent."""
    agents = sorted({agent for agent, _ in tally})
    lines = []
    for agent in agents:
        counts = [f"{amount} {what}" for (who, what), amount in sorted(tally.items()) if who == agent]
        lines.append(f"{agent}: {', '.join(counts)}\n")
    return "".join(lines)

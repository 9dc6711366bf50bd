"""An agent at work: a process that makes the steps it is given, at its own pace, and moves the clock.

    python writer.py STEPS CLOCK SEED

The clock is in a file that the program under test has mapped too, so that both live in the time of the records,
however fast these are written. Beside it stands how many steps may be made by now: the test gives some to each of the
program's lives, so that none has nothing to do, on a machine of any speed.
"""

from __future__ import annotations

import mmap
import os
import random
import sqlite3
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct


class Clock:
    """A time in ns that processes share, and a number of steps."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.exists():
            path.write_bytes(bytes(16))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 16)
        self._at = memoryview(self._map).cast("q")

    def __call__(self) -> int:
        return self._at[0]

    def move(self, now: int) -> None:
        """Forwards only."""
        self._at[0] = max(now, self._at[0])

    @property
    def allowed(self) -> int:
        return self._at[1]

    @allowed.setter
    def allowed(self, steps: int) -> None:
        self._at[1] = steps


class Step(Struct):
    """See steps.Step; without its imports this process is there at once."""

    time: int
    path: str
    how: str
    body: bytes
    statements: list[tuple[str, list[Any]]]


class Agent:
    """Makes steps. `dice`: takes a moment in the middle of some of them; none: makes them at once."""

    def __init__(self, dice: random.Random | None = None) -> None:
        self._dice = dice
        self._databases: dict[str, sqlite3.Connection] = {}

    def make(self, step: Step) -> None:
        Path(step.path).parent.mkdir(parents=True, exist_ok=True)
        match step.how:
            case "append":
                with Path(step.path).open("ab") as file:
                    file.write(step.body)
            case "rewrite":
                self._rewrite(step)
            case "script":
                self.open(step.path).executescript(step.body.decode())
            case "transaction":
                database = self.open(step.path)
                database.execute("BEGIN IMMEDIATE")
                for statement, values in step.statements:
                    database.execute(statement, values)
                    self._moment()
                database.execute("COMMIT")

    def close(self) -> None:
        for database in self._databases.values():
            database.close()

    def _moment(self) -> None:
        if self._dice is not None and self._dice.random() < 0.2:
            time.sleep(self._dice.uniform(0, 0.005))

    def _rewrite(self, step: Step) -> None:
        """In place, so that a reader can meet half a document, or one with the end of the old."""
        half = len(step.body) // 2
        descriptor = os.open(step.path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            if self._dice is None or self._dice.random() < 0.5:
                os.ftruncate(descriptor, 0)
            os.write(descriptor, step.body[:half])
            self._moment()
            os.write(descriptor, step.body[half:])
            os.ftruncate(descriptor, len(step.body))
        finally:
            os.close(descriptor)

    def open(self, path: str) -> sqlite3.Connection:
        if path not in self._databases:
            database = self._databases[path] = sqlite3.connect(path, isolation_level=None)
            database.execute("PRAGMA journal_mode = WAL")
        return self._databases[path]


def main() -> None:
    steps = msgspec.msgpack.decode(Path(sys.argv[1]).read_bytes(), type=list[Step])
    clock, dice = Clock(Path(sys.argv[2])), random.Random(int(sys.argv[3]))
    agent = Agent(dice)
    for number, step in enumerate(steps):
        while clock.allowed <= number:
            time.sleep(0.001)
        if dice.random() < 0.2:
            time.sleep(dice.uniform(0, 0.02))
        # First the time, then the record: a record is never from the future.
        clock.move(step.time)
        agent.make(step)
    agent.close()


if __name__ == "__main__":
    main()

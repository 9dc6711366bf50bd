"""A life that ends at a chosen point: before the n-th thing that could leave the state and the world at odds.

Points are every statement that reaches the state's SQLite, every request before it is sent and after it was
answered, every acknowledgement, and every file that is put in another's place. The program is driven step by step,
without threads and by the clock of its steps alone, so that the n-th point is the same in every life; what it is
driven with goes on after a crash where the files say it stopped.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from writer import Agent, Step

from program import configured
from spantail import follow
from spantail.commands.run import Run
from spantail.model import SECOND
from spantail.out.textfile import TextFile
from spantail.state import store
from spantail.tail import document, rows
from spantail.tail.wake import HandWaker


class Points:
    """Counts them, and ends the life at the n-th; their names, in `file`, tell the test what it has covered."""

    def __init__(self, fatal: int, file: Path) -> None:
        self.fatal = fatal
        self.file = file
        self.passed: list[str] = []

    def __call__(self, name: str) -> None:
        self.passed.append(" ".join(name.split()[:3]))
        if len(self.passed) == self.fatal:
            self.tell()
            os.kill(os.getpid(), signal.SIGKILL)

    def tell(self) -> None:
        self.file.write_text(json.dumps(self.passed))

    def around(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            self(f"before {name}")
            answer = call(*args, **kwargs)
            self(f"after {name}")
            return answer

        return wrapped


def _by_no_clock_but_ours() -> None:
    """What the machine's speed would decide: how often a page is written and folders are looked at, and how young
    a file is when it is read. Here every file is, so nobody waits until it is not."""
    follow.SELDOM = 0
    document.TICK = rows.YOUNG = 1 << 62


def drive(request: dict[str, Any]) -> int:
    """`fatal`: the point to die at, 0 for none. `steps`, `home`, `state`: files. `together`: how many
    steps are made before the program looks. The points passed are written to `passed`."""
    _by_no_clock_but_ours()
    points = Points(request["fatal"], Path(request["passed"]))
    steps = msgspec.msgpack.decode(Path(request["steps"]).read_bytes(), type=list[Step])
    done = Path(request["done"])
    begun = int(done.read_text()) if done.exists() else 0
    os.replace = points.around("replace", os.replace)
    opened = store.Store._open

    def traced(self: store.Store) -> Any:
        db = opened(self)
        db.set_trace_callback(points)
        return db

    store.Store._open = traced
    now, waker = [steps[max(0, min(begun, len(steps)) - 1)].time], HandWaker()
    agent = Agent()
    for path in {step.path for step in steps if step.how == "transaction" and Path(step.path).exists()}:
        agent.open(path)  # before the reader: within one process SQLite gives both the rights of the first
    state = Path(request["state"])
    run = Run(
        configured(Path(request["home"]), state, once=False),
        os.environ,
        store.Store(state),
        clock=lambda: now[0],
        waker=waker,
        strict=True,
    )
    run.textfile = TextFile(Path(run.config.textfile), run.page, clock=lambda: now[0])
    deliverer = run.deliverer
    deliverer.start = lambda: None
    deliverer.is_alive = lambda: False
    deliverer._transport.send = points.around("send", deliverer._transport.send)
    deliverer._acked = points.around("ack", deliverer._acked)

    def deliver() -> None:
        while deliverer.step() == 0:
            pass

    run.begin()
    deliver()
    for first in range(begun, len(steps), request["together"]):
        for step in steps[first : first + request["together"]]:
            now[0] = step.time
            agent.make(step)
            waker.change(step.path)
        # Not atomic with the steps, but no point lies between them.
        done.write_text(str(first + request["together"]))
        run.follow.step(0)
        deliver()
    agent.close()
    for _ in range(4):
        now[0] += 3 * 3600 * SECOND
        waker.lose()
        run.follow.step(0)
        deliver()
    run._leave()
    deliver()
    run.follow.commit()
    run.store.close()
    points.tell()
    return 0

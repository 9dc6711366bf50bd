"""The program driven by hand over the steps of an agent: it sees every one of them, at the time it was made."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import seen
from steps import Step
from writer import Agent

from program import configured
from receiver import Receiver, Span
from spantail.commands.run import Run
from spantail.model import SECOND
from spantail.state.store import Store
from spantail.tail.wake import HandWaker


def followed(
    made: list[Step], place: Path, monkeypatch, *, killed: bool = False, **settings: Any
) -> tuple[list[Span], dict]:
    """Spans and totals. The sessions are in `place/homes`. `killed`: and forgets everything but its state after each
    step, as if killed."""
    homes, agent = place / "homes", Agent()
    now = [made[0].time]

    def begun() -> Run:
        run = Run(
            config, os.environ, Store(place / "state"), clock=lambda: now[0], waker=HandWaker(), strict=True
        )
        run.begin()
        return run

    with Receiver("http") as receiver:
        for key, value in receiver.environ().items():
            monkeypatch.setenv(key, value)
        config = configured(homes, place / "state", once=False, homes=(f"{homes}/*",), **settings)
        run = begun()
        for step in made:
            now[0] = step.time
            agent.make(step)
            if killed:
                dropped(run)
                run = begun()
            run.waker.change(step.path)
            run.follow.step(0)
        agent.close()
        for _ in range(4):
            now[0] += 3 * 3600 * SECOND
            run.waker.lose()
            run.follow.step(0)
        assert run.deliverer.wait_idle(20)
        run._leave()
        run.store.close()
    return receiver.spans, seen.totals(place / "state")


def dropped(run: Run) -> None:
    """Nothing more is committed or sent."""
    run.deliverer.stop(0)
    run.deliverer.join()
    run.store.close()

"""Killed at each point of a commit and of a delivery, one by one: what comes after is as if it had not been.

Before and after each SQL statement (of a commit, of its acknowledgements, of tidying up and giving disk space back),
each request, each answer, each file put in another's place.
"""

from __future__ import annotations

import json
import signal
from pathlib import Path

import msgspec
import pytest
import seen
import steps
from lives import Lives

import replay
import truth
from receiver import Receiver

CASES = {
    "lines": ("claude-code", "subagent-a"),
    "document": ("cline", "tools-a"),
    "rows": ("opencode", "text-a"),
}
COMMITS = 6
"""Steps that are seen apart, to keep the points few: each is a commit of everything there is to commit."""


def scenario(kind: str, home: Path) -> list[steps.Step]:
    """A session in a few steps."""
    folder, name = CASES[kind]
    case = next(case for case in truth.cases() if (case.parent.name, case.name) == (folder, name))
    if kind == "lines":
        pieces = replay.lines(case / "home")
        made = [steps.Step(time, str(home / path), "append", body) for time, path, body in pieces]
    else:
        made = list(steps._case(case, home, None, 0))
    return steps._monotonic(made, 0)


class Driven:
    """Lives over one session, each in folders of its own."""

    def __init__(self, kind: str, tmp_path: Path, lives: Lives, receiver: Receiver) -> None:
        self.kind, self.tmp_path, self.lives, self.receiver = kind, tmp_path, lives, receiver

    def run(self, fatal: int) -> tuple[list[str], dict, dict]:
        """Dies at the point `fatal` (0: not at all), lives again to the end: the points that the first of its lives
        passed, spans, totals."""
        place = self.tmp_path / f"{fatal}"
        home = place / "homes" / "home"
        home.mkdir(parents=True)
        made = scenario(self.kind, home)
        (place / "steps").write_bytes(msgspec.msgpack.encode(made))
        self.receiver.spans.clear()
        request = {
            "home": str(home),
            **{name: str(place / name) for name in ("steps", "done", "state", "passed")},
        }
        passed: list[str] = []
        for dies in (fatal, 0) if fatal else (0,):
            drive = {**request, "fatal": dies, "together": -(-len(made) // COMMITS)}
            self.lives.start(drive=drive, env=self.receiver.environ())
            status = self.lives.status()
            assert status == (-signal.SIGKILL if dies else 0), self.lives.log.read_text()[-3000:]
            passed = passed or json.loads((place / "passed").read_text())
        spans = self.receiver.spans
        assert seen.twofold(spans) == []
        assert seen.waiting(place / "state") == 0
        return passed, {s.span_id: seen.content(s) for s in spans}, seen.totals(place / "state")


def chosen(passed: list[str]) -> list[int]:
    """Of the rows of one statement the first and the last."""
    return [
        at + 1
        for at, name in enumerate(passed)
        if name != passed[at - 1] or at + 1 == len(passed) or name != passed[at + 1]
    ]


@pytest.mark.parametrize("kind", CASES)
def test_a_kill_at_each_point_changes_nothing(kind, tmp_path):
    """The same spans with the same content, the same totals, whatever the point."""
    with Receiver("http") as receiver, Lives(tmp_path / "log") as lives:
        driven = Driven(kind, tmp_path, lives, receiver)
        passed, spans, totals = driven.run(0)
        assert spans
        covered = set(passed)
        print(f"{len(chosen(passed))} of {len(passed)} points: {sorted(covered)}")
        assert {"before send", "after send", "after ack", "BEGIN IMMEDIATE", "COMMIT"} <= covered, covered
        assert any("outbox" in name for name in covered), covered
        for fatal in chosen(passed):
            before, again, sums = driven.run(fatal)
            assert before == passed[:fatal]
            said = seen.differences(again, spans) + seen.differences(sums, totals)
            assert not said, "\n".join([f"killed at {fatal}, {passed[fatal - 1]}:", *said])

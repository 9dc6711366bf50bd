"""Killed at any moment, the program gives what it would have given undisturbed: the same totals, the same spans.

An agent writes recorded sessions in a process of its own; the program follows them and is killed again and again,
the backend goes away and comes back, and a scraper reads the page all the time. Two hundred kills over all agents.
"""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
import seen
import steps
from lives import Lives
from stepped import followed
from test_outage import value
from writer import Clock

from ports import free_port
from receiver import Receiver, Span
from spantail.formats import TABLE
from spantail.model import SECOND
from test_run import until

KILLS = 18
SILENCE = (10, 30)
"""Seconds of --idle and --stale. The sessions last longer, so that the clock closes what a killed agent left open."""
LONGER = {"aider": (1800, 7200), "clido": (1800, 7200)}
"""Lines without times that nobody saw come are dated minutes away: see the readers."""
SEED = int(os.environ.get("SPANTAIL_TEST_SEED", "20"))
TIMES = "seconds|hours|^start$|^end$|events|duration_source"
LOOSE = {
    "aider": TIMES + r"|cost|gen_ai\.usage|coding_agent\.tokens",
    "clido": TIMES + r"|coding_agent\.cost",
    "goose": r"coding_agent[._](tokens\.|cost)|hours",
    "cline": r"provider\.name|vcs\.|exit_status\.raw",
}
"""What cannot be the same. Lines without times of their own are dated by their arrival, or by estimate if nobody saw
them come; of a running total of tokens only who looked in time can tell which turn they belong to, and which price they had; and
a manifest is read after the messages, so that of a session written while nobody looked it tells too late. Aider
rounds costs and tokens, and writes the exact ones to another file a moment later: in its spans they may be missing, in
the totals they are not. So is what a clido run has cost, where its turn was over by the clock before that line came."""


class Disturbed:
    """The same, with everything that can happen."""

    def __init__(self, folder: str, made: list[steps.Step], tmp_path: Path, lives: Lives, seed: int) -> None:
        self.made, self.lives = made, lives
        silence = LONGER.get(folder, SILENCE)
        self.dice = random.Random(seed)
        self.port = free_port()
        self.state = tmp_path / "state"
        self.clock = Clock(tmp_path / "clock")
        self.clock.move(made[0].time)
        (tmp_path / "steps").write_bytes(msgspec.msgpack.encode(made))
        self.writer = [
            *(sys.executable, str(Path(__file__).with_name("writer.py")), str(tmp_path / "steps")),
            *(str(tmp_path / "clock"), str(seed)),
        ]
        self.receiver = Receiver("http")
        self.flags = [
            *("--home", str(tmp_path / "homes" / "*"), "--state", str(self.state), "--since", "all"),
            *("--listen", f"127.0.0.1:{self.port}", "--new-series-hold", "5s", "--log-format", "json"),
            *("--textfile", str(tmp_path / "page.prom")),
            *("--idle", f"{silence[0]}s", "--stale", f"{silence[1]}s"),
            *("--agent", next(row.agent for row in TABLE if folder.startswith(row.agent))),
        ]
        self.kills = 0

    def start(self) -> None:
        self.lives.start(*self.flags, clock=str(self.clock.path), env=self.receiver.environ())

    def go(self) -> None:
        self.receiver.start()
        agent = subprocess.Popen(self.writer)
        try:
            with seen.Scraper(self.port) as self.scraper:
                while agent.poll() is None or self.kills < KILLS:
                    self._life()
                    if agent.poll() is not None:
                        self.clock.move(self.clock() + self.dice.choice((1, 20, 3600)) * SECOND)
                self._end()
        finally:
            agent.kill()
            agent.wait()
            self.receiver.stop()
        assert agent.returncode == 0

    def _life(self) -> None:
        """Some are killed while they start, most while they follow; the backend comes and goes."""
        dice, up = self.dice, self.receiver._server is not None
        if dice.random() < 0.3:
            self.receiver.stop() if up else self.receiver.start()
        self.clock.allowed = (self.kills + 1) * len(self.made) // KILLS
        self.start()
        if dice.random() < 0.25:
            time.sleep(dice.uniform(0, 0.1))
        else:
            self._pages(dice.choice((0, 1)))
            time.sleep(dice.uniform(0, 0.3))
        assert self.lives.kill() == -signal.SIGKILL, self.lives.log.read_text()
        self.kills += 1

    def _end(self) -> None:
        """Hours pass, the last life settles what is open and delivers everything."""
        if self.receiver._server is None:
            self.receiver.start()
        self.start()
        for _ in range(4):
            self.clock.move(self.clock() + 3 * 3600 * SECOND)
            self._pages(1)
            until(self._looked)
        until(lambda: value(self.port, "spantail_outbox_spans") == 0)
        assert self.lives.end() == 0

    def _looked(self) -> bool:
        """Whether the loop has seen where the clock was moved to, and so is done with where it stood before."""
        return (
            value(self.port, "spantail_build_info") == 1 and value(self.port, "spantail_lag_seconds") < 3600
        )

    def _pages(self, more: int) -> None:
        goal = self.scraper.pages + more
        deadline = time.monotonic() + 30
        while self.scraper.pages < goal:
            assert time.monotonic() < deadline, self.lives.log.read_text()
            time.sleep(0.01)


@pytest.mark.parametrize("folder", steps.FOLDERS)
def test_killed_again_and_again(folder, tmp_path, monkeypatch):
    """Totals and spans as if nothing had happened; no span with two contents; no counter ever went down."""
    seed = SEED * 100 + steps.FOLDERS.index(folder)
    made = steps.make(folder, tmp_path / "undisturbed" / "homes", seed)
    idle, stale = LONGER.get(folder, SILENCE)
    place = tmp_path / "undisturbed"
    spans, totals = followed(made, place, monkeypatch, idle=idle * SECOND, stale=stale * SECOND)
    made = steps.make(folder, tmp_path / "disturbed" / "homes", seed)
    with Lives(tmp_path / "log") as lives:
        disturbed = Disturbed(folder, made, tmp_path / "disturbed", lives, seed)
        disturbed.go()
    received = disturbed.receiver.spans
    print(f"{disturbed.kills} kills, {len(made)} steps, {len(spans)} spans, {len(received)} received,")
    print(f"{disturbed.scraper.pages} pages scraped")
    assert disturbed.kills >= KILLS
    assert disturbed.scraper.fell == []
    assert seen.twofold(received) == []
    assert seen.waiting(disturbed.state) == 0
    loose = LOOSE.get(folder, "never")
    said = seen.differences(_contents(received, loose), _contents(spans, loose))
    said += seen.differences(_sums(seen.totals(disturbed.state), loose), _sums(totals, loose))
    assert not said, "\n".join(said)


def _sums(totals: dict, loose: str) -> dict:
    return {key: value for key, value in totals.items() if not re.search(loose, key[0])}


def _contents(spans: list[Span], loose: str) -> dict:
    return {span.span_id: seen.content(span, loose) for span in spans}

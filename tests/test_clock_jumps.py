"""The machine's clock is put back or forward while the program runs: what it does now and then is done all the same."""

from __future__ import annotations

from pathlib import Path

import pytest

import replay
import truth
from program import LONG_AFTER, configured
from spantail.commands.run import Run
from spantail.model import SECOND
from spantail.out.deliver import DeliveryResult
from spantail.out.textfile import TextFile
from spantail.state.store import Store
from spantail.tail.wake import HandWaker

TOOLS = truth.FIXTURES / "claude-code" / "tools-a"
YEAR = 365 * 86_400 * SECOND


@pytest.fixture
def following(tmp_path):
    """(the program, its home, its clock); it follows one session, and nobody reports to it what changes."""
    home, now = replay.copied(TOOLS, tmp_path / "home"), [LONG_AFTER]
    store = Store(tmp_path / "state")
    config = configured(home, tmp_path / "state", once=False)
    run = Run(config, {}, store, clock=lambda: now[0], waker=HandWaker(), strict=True)
    run.textfile = TextFile(Path(config.textfile), run.page, clock=lambda: now[0])
    run.begin()
    yield run, home, now
    store.close()


def counted(run: Run, name: str) -> float:
    page = truth.samples(run.page.render(scraper=False)[0].decode())
    return sum(value for _, value in page.get(name, ()))


@pytest.mark.parametrize("jump", [-YEAR, YEAR])
def test_a_new_file_is_found_by_the_next_look(jump, following):
    run, home, now = following
    (session,) = home.rglob("*.jsonl")
    session.with_name("another.jsonl").write_bytes(session.read_bytes())
    now[0] += jump
    run.follow.step(0)
    assert counted(run, "spantail_files_followed") == 2


@pytest.mark.parametrize("jump", [-YEAR, YEAR])
def test_an_acknowledgement_is_committed(jump, following):
    """A second later at most, though nothing else is to be written."""
    run, _, now = following
    run.follow.acked([1], DeliveryResult(delivered=7))
    run.follow.step(0)
    assert not counted(run, "spantail_exported_spans_total")
    now[0] += jump
    run.follow.step(0)
    assert counted(run, "spantail_exported_spans_total") == 7


@pytest.mark.parametrize("jump", [-YEAR, YEAR])
def test_the_state_is_tidied(jump, following, monkeypatch):
    run, _, now = following
    tidied = []
    monkeypatch.setattr(run.store, "tidy", tidied.append)
    run.follow.step(0)
    assert not tidied
    now[0] += jump
    run.follow.step(0)
    run.follow.step(0)
    assert tidied == [now[0]]

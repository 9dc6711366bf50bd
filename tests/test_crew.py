"""A backlog taken by several processes gives what one process gives."""

from __future__ import annotations

import os
import shutil
import signal

import pytest

import truth
from program import once
from receiver import Receiver
from spantail import crew
from spantail.crew import Crew
from test_live import _added, content

CASES = ("tools-a", "subagent-a", "fork-a", "resume-a", "tui-slash-a", "models-a", "sigkill-a", "compact-a")


@pytest.fixture
def home(tmp_path):
    """Many sessions in one home, forks and subagents among them."""
    for name in CASES:
        shutil.copytree(truth.FIXTURES / "claude-code" / name / "home", tmp_path / "home", dirs_exist_ok=True)
    plan = truth.FIXTURES / "claude-code-2.1.326" / "tui-plan-clear-a" / "home"
    shutil.copytree(plan, tmp_path / "home", dirs_exist_ok=True)
    return tmp_path / "home"


def taken(home, state, monkeypatch):
    with Receiver("http") as receiver:
        spans, page = once(home, state, receiver, monkeypatch)
        return {(span.trace_id, span.span_id): content(span) for span in spans}, page, len(spans)


def hired(monkeypatch):
    """A crew whatever the size of the backlog and the number of cores."""
    monkeypatch.setattr(crew, "WORTH_BYTES", 0)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1})


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_many_processes_as_one(home, tmp_path, monkeypatch):
    """The same spans with the same content, each once, and the same totals; also for forks and plans."""
    alone, page, count = taken(home, tmp_path / "one", monkeypatch)
    hired(monkeypatch)
    together, crew_page, crew_count = taken(home, tmp_path / "many", monkeypatch)
    assert together == alone
    assert crew_count == count
    assert _added(crew_page) == _added(page)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_process_that_dies_costs_nothing(home, tmp_path, monkeypatch):
    """Its units are read by the loop."""
    alone, page, _ = taken(home, tmp_path / "one", monkeypatch)
    hired(monkeypatch)
    fork = os.fork
    children = []

    def forked():
        pid = fork()
        if pid:
            children.append(pid)
        return pid

    results = Crew.results

    def dying(self):
        os.kill(children[0], signal.SIGKILL)
        yield from results(self)

    monkeypatch.setattr(os, "fork", forked)
    monkeypatch.setattr(Crew, "results", dying)
    together, crew_page, _ = taken(home, tmp_path / "many", monkeypatch)
    assert children
    assert together == alone
    assert _added(crew_page) == _added(page)

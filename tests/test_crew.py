"""A backlog taken by several processes gives what one process gives."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import sys

import pytest

import truth
from program import once
from receiver import Receiver
from spantail import crew
from spantail.crew import Crew
from spantail.formats import TABLE
from spantail.session.sessions import Sessions
from spantail.tail.finder import Finder
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

    def dying(self, stopping):
        os.kill(children[0], signal.SIGKILL)
        yield from results(self, stopping)

    monkeypatch.setattr(os, "fork", forked)
    monkeypatch.setattr(Crew, "results", dying)
    together, crew_page, _ = taken(home, tmp_path / "many", monkeypatch)
    assert children
    assert together == alone
    assert _added(crew_page) == _added(page)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_what_each_process_has_to_say_is_said_once(home, tmp_path, monkeypatch, capsys):
    """A model without a price is met by both; and the log has one form."""
    for path in (tmp_path / "home").rglob("*.jsonl"):
        path.write_bytes(path.read_bytes().replace(b"claude-sonnet", b"mystery"))
    hired(monkeypatch)
    once(home, tmp_path / "many", None, monkeypatch, log_format="text")
    log = capsys.readouterr().err.splitlines()
    assert all(line.startswith("spantail: ") for line in log)
    priceless = [line for line in log if "no price is known" in line]
    assert priceless
    assert len(priceless) == len(set(priceless))


class Endless:
    """A unit of gigabytes."""

    def serve(self, _units, _pipe):
        while True:
            signal.pause()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_stop_does_not_wait_for_a_unit(home):
    """Neither for its result nor for the end of the process that is at it."""
    finder = Finder(TABLE, [str(home)], own_home=False, environ={})
    crew = Crew(finder.backlog(finder.scan()), Endless(), 2, [])
    looks = iter([False, True])
    assert list(crew.results(lambda: next(looks))) == []
    crew.close()
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


class Asking:
    """A parent that asks for every unit, and counts what the ones before have left in memory."""

    def __init__(self, units):
        self.units = iter(range(units))
        self.left = []

    def recv_bytes(self, _most):
        self.left.append(sum(type(thing) is Sessions for thing in gc.get_objects()))
        unit = next(self.units, None)
        if unit is None:
            raise EOFError
        return unit.to_bytes(4, "little")

    def send_bytes(self, result):
        assert result


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_unit_leaves_nothing_in_memory(home, tmp_path, monkeypatch):
    """Its parts know each other in circles; a history of gigabytes has thousands of units."""
    hired(monkeypatch)
    jobs = []

    def idle(self, units, job, _count, inherited):
        jobs.append((job, units))
        return init(self, units, job, 0, inherited)

    init = Crew.__init__
    monkeypatch.setattr(Crew, "__init__", idle)
    taken(home, tmp_path / "state", monkeypatch)
    job, units = jobs[0]
    monkeypatch.setattr(os, "_exit", sys.exit)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    gc.collect()
    parent = Asking(len(units))
    with pytest.raises(SystemExit):
        job.serve(units, parent)
    assert len(parent.left) == len(units) + 1 > 5
    assert set(parent.left) == {parent.left[0]}

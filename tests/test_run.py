"""`spantail run` as a user meets it: a process, its exits, its page, its restarts."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import IO

import pytest

import replay
import truth
from ports import free_port
from program import LONG_AFTER, configured, once
from receiver import Receiver
from spantail.commands import run as run_command
from spantail.commands.run import Run
from spantail.model import SECOND
from spantail.state.store import Store
from spantail.state.unopened import left_by_the_last_commit
from spantail.tables import Project
from spantail.tail.wake import HandWaker

CLAUDE = truth.FIXTURES / "claude-code"
TOOLS = CLAUDE / "tools-a"
PATIENCE = 30.0


def start(
    *flags: str,
    env: dict[str, str] | None = None,
    before: tuple[str, ...] = (),
    log: IO[str] | int = subprocess.PIPE,
) -> subprocess.Popen[str]:
    """A pipe holds some hundred lines of the log; who lets it say more gives a file."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("OTEL_", "SPANTAIL_"))}
    return subprocess.Popen(
        [*before, sys.executable, "-m", "spantail", "run", *flags],
        env={**clean, **(env or {})},
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
    )


def get(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def until(what, seconds: float = PATIENCE):
    """Waits for something that comes by itself."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            found = what()
        except OSError:
            found = None
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError("it never came")


def test_serves_and_follows_until_told_to_stop(tmp_path):
    """No configuration: /metrics, /healthz, /readyz, new lines within moments; SIGTERM ends with 0."""
    home = tmp_path / "home"
    (home / ".claude/projects").mkdir(parents=True)
    port = free_port()
    with Receiver("http") as receiver:
        program = start(
            "--home", str(home), "--state", str(tmp_path / "state"), "--since", "all",
            "--listen", f"127.0.0.1:{port}", "--new-series-hold", "0",
            env=receiver.environ(),
        )  # fmt: skip
        try:
            until(lambda: get(port, "/readyz")[0] == 200)
            assert get(port, "/healthz")[0] == 200
            for piece in replay.lines(TOOLS / "home"):
                replay.append(home, piece)
            # The turn is old, so it is settled as soon as its next record or the clock proves it over.
            until(lambda: 'coding_agent_turns_total{agent="claude-code"' in get(port, "/metrics")[1])
            until(lambda: any(truth.is_turn(span) for span in receiver.spans))
        finally:
            program.send_signal(signal.SIGTERM)
            _, log = program.communicate(timeout=15)
        assert program.returncode == 0, log
    assert truth.complaints(receiver.spans, _page(tmp_path, home), truth.expected(TOOLS)) == []


def _page(tmp_path: Path, home: Path) -> str:
    """The totals of the state, as a second start would show them."""
    config = configured(home, tmp_path / "state")
    assert run_command.main(config, {}, clock=lambda: LONG_AFTER) == 0
    return Path(config.textfile).read_text()


def test_a_second_process_on_the_same_state_stops_with_75(tmp_path):
    """One line that says why."""
    store = Store(tmp_path / "state")
    try:
        program = start("--home", str(tmp_path), "--state", str(tmp_path / "state"), "--once")
        _, log = program.communicate(timeout=PATIENCE)
    finally:
        store.close()
    assert program.returncode == 75
    assert log.count("\n") == 1
    assert "in use by another spantail" in log


def test_a_state_that_cannot_be_opened_for_a_while_is_waited_for(tmp_path):
    """Only where there is one: a folder that never was a state is most likely a mistake. SIGTERM ends the wait."""
    home, state, port = tmp_path / "home", tmp_path / "state", free_port()
    home.mkdir()
    flags = ("--home", str(home), "--state", str(state), "--listen", f"127.0.0.1:{port}")
    (state / "lock").mkdir(parents=True)
    program = start(*flags)
    _, log = program.communicate(timeout=30)
    assert program.returncode == 1
    assert log.count("\n") == 1
    Store(tmp_path / "other").close()
    (tmp_path / "other/state.db").rename(state / "state.db")
    program = start(*flags)
    until(lambda: get(port, "/readyz")[0] == 503)
    program.send_signal(signal.SIGTERM)
    _, log = program.communicate(timeout=30)
    assert program.returncode == 0, log
    assert [json.loads(line)["event"] for line in log.splitlines()] == ["commit_failed", "listening"]


def test_a_taken_port_is_named_with_its_flag(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        program = start(
            "--home", str(tmp_path), "--state", str(tmp_path / "s"), "--listen", f"127.0.0.1:{port}"
        )
        _, log = program.communicate(timeout=PATIENCE)
    assert program.returncode == 1
    assert "--listen" in log


def test_a_bad_value_stops_the_start_with_2(tmp_path):
    program = start("--idle", "soon", "--state", str(tmp_path))
    _, log = program.communicate(timeout=PATIENCE)
    assert program.returncode == 2
    assert "idle" in log.splitlines()[-1]


def test_once_says_what_could_not_be_delivered(tmp_path, monkeypatch):
    """Exit 1 and a plain message; the spans wait, and the next run delivers them."""
    monkeypatch.setattr(run_command, "PROGRESS_SECONDS", 0.3)
    home = replay.copied(TOOLS, tmp_path / "home")
    config = configured(home, tmp_path / "state")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{free_port()}")
    assert run_command.main(config, os.environ, clock=lambda: LONG_AFTER) == 1
    with Receiver("http") as receiver:
        for key, value in receiver.environ().items():
            monkeypatch.setenv(key, value)
        assert run_command.main(config, os.environ, clock=lambda: LONG_AFTER) == 0
        page = (tmp_path / "state" / "page.prom").read_text()
        assert truth.complaints(receiver.spans, page, truth.expected(TOOLS)) == []


def test_the_state_may_be_named_from_here(tmp_path, monkeypatch):
    """`--state st`: what is in it is sent, and can be shown while it cannot be opened."""
    monkeypatch.chdir(tmp_path)
    with Receiver("http") as receiver:
        spans, _ = once(TOOLS / "home", Path("st"), receiver, monkeypatch)
        assert any(truth.is_turn(span) for span in spans)
    rows, _ = left_by_the_last_commit(Path("st/state.db"))
    assert rows


def test_a_restart_reads_only_what_is_new(tmp_path):
    """Nothing new: no byte is read. One line more: that line."""
    home = replay.copied(TOOLS, tmp_path / "home")
    config = configured(home, tmp_path / "state")
    read = []
    for extra in (b"", b"", b'{"type":"mode","mode":"normal"}\n'):
        for path in home.rglob("*.jsonl") if extra else ():
            with path.open("ab") as file:
                file.write(extra)
        assert run_command.main(config, {}, clock=lambda: LONG_AFTER) == 0
        page = truth.samples((tmp_path / "state/page.prom").read_text())
        read.append(page["spantail_read_bytes_total"][0][1])
    assert read[0] > 0
    assert read[1] == read[0]
    assert read[2] - read[1] == 32


@pytest.mark.parametrize("bad", [b"{half", b"[1,2]", b"\xff\xfe{}", b'{"type":{"a":1}}', b"[" * 100_000])
def test_a_bad_record_costs_that_record_alone(bad, tmp_path, monkeypatch, capsys):
    """Counted, and named once with file and byte offset; everything else is as without it."""
    home = replay.copied(TOOLS, tmp_path / "home")
    path = next(home.rglob("projects/**/*.jsonl"))
    lines = path.read_bytes().splitlines(keepends=True)
    at = sum(map(len, lines[:3]))
    path.write_bytes(b"".join(lines[:3]) + bad + b"\n" + b"".join(lines[3:]))
    with Receiver("http") as receiver:
        spans, page = once(home, tmp_path / "state", receiver, monkeypatch)
        assert truth.complaints(spans, page, truth.expected(TOOLS)) == []
    results = {labels["result"]: value for labels, value in truth.samples(page)["spantail_records_total"]}
    assert results["bad"] == 1
    said = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    said = [line for line in said if line["event"] == "bad_record"]
    assert [(line["offset"], Path(line["path"]).name) for line in said] == [(at, path.name)]


def test_since_leaves_older_turns_alone(tmp_path, monkeypatch):
    """A turn that began before it is not sent or counted, the one after it is."""
    case = CLAUDE / "resume-a"
    home = replay.copied(case, tmp_path / "home")
    third = min(t for t, _, line in replay.lines(case / "home") if b'"third"' in line)
    with Receiver("http") as receiver:
        spans, page = once(home, tmp_path / "state", receiver, monkeypatch, since=LONG_AFTER - third)
    turns = [span for span in spans if truth.is_turn(span)]
    assert len(turns) == 1
    assert sum(value for _, value in truth.samples(page)["coding_agent_turns_total"]) == 1


def test_projects_labels_homes_and_excludes(tmp_path, monkeypatch):
    """Two homes are told apart by `user`; the config names projects and adds labels; excludes are left out."""
    for user in ("ann", "bob"):
        replay.copied(TOOLS, tmp_path / "homes" / user)
    replay.copied(CLAUDE / "text-a", tmp_path / "homes" / "eve")
    _, page = once(
        tmp_path / "homes", tmp_path / "state", None, monkeypatch,
        homes=(str(tmp_path / "homes" / "*"),),
        excludes=(str(tmp_path / "homes" / "eve"),),
        projects=(Project(match="*/tools-a/*", name="shop"),),
        labels={"team": "platform"},
    )  # fmt: skip
    turns = truth.samples(page)["coding_agent_turns_total"]
    assert {labels["user"] for labels, value in turns if value} == {"ann", "bob"}
    assert {labels["project"] for labels, _ in turns} == {"shop"}
    assert {labels["team"] for labels, _ in turns} == {"platform"}


def test_an_implementation_links_to_its_plan(tmp_path, monkeypatch):
    """Of sessions with one slug, the one that begins with the plan's text links back to the plan's turn."""
    case = truth.FIXTURES / "claude-code-2.1.326" / "tui-plan-clear-a"
    with Receiver("http") as receiver:
        spans, _ = once(case / "home", tmp_path / "state", receiver, monkeypatch)
    plans = [link for span in spans for link in span.links if link[2]["coding_agent.link.reason"] == "plan"]
    planned = {span.trace_id for span in spans if span.attrs.get("gen_ai.tool.name") == "ExitPlanMode"}
    assert [link[0] for link in plans] == list(planned)


def test_a_folder_that_appears_later_is_followed(tmp_path, monkeypatch):
    """Neither the agent's folder nor the home need exist at the start."""
    now = [LONG_AFTER]
    waker = HandWaker()
    store = Store(tmp_path / "state")
    config = configured(tmp_path / "home", tmp_path / "state", once=False)
    run = Run(config, {}, store, clock=lambda: now[0], waker=waker, strict=True)
    run.begin()
    replay.copied(TOOLS, tmp_path / "home")
    now[0] += 60 * SECOND
    run.follow.step(0)
    run._leave()
    store.close()
    page = truth.samples((tmp_path / "state/page.prom").read_text())
    assert sum(value for _, value in page["coding_agent_turns_total"]) == 1


def test_nothing_is_read_while_commits_fail(tmp_path, monkeypatch):
    """The page shows the last commit, /readyz says why; afterwards everything is there, once."""
    home = tmp_path / "home"
    (home / ".claude/projects").mkdir(parents=True)
    now = [LONG_AFTER]
    waker = HandWaker()
    store = Store(tmp_path / "state")
    run = Run(
        configured(home, tmp_path / "state", once=False),
        {},
        store,
        clock=lambda: now[0],
        waker=waker,
        strict=True,
    )
    run.begin()
    store.db.execute("PRAGMA query_only=ON")  # as a disk that has become read-only
    for piece in replay.lines(TOOLS / "home"):
        waker.change(str(replay.append(home, piece)))
        run.follow.step(0)
    ready, why = run._ready()
    assert not ready
    assert "state" in why
    store.db.execute("PRAGMA query_only=OFF")
    for _ in range(3):
        now[0] += 3 * 3600 * SECOND
        run.follow.step(0)
    assert run._ready() == (True, "ready")
    run._leave()
    store.close()
    page = truth.samples((tmp_path / "state/page.prom").read_text())
    assert sum(value for _, value in page["coding_agent_turns_total"]) == 1
    assert sum(value for _, value in page["coding_agent_tool_calls_total"]) == 3


def test_the_page_says_how_far_behind_the_loop_is(tmp_path):
    """Also when the loop hangs and cannot say it: while it reads without an end, and while commits fail."""
    now = [LONG_AFTER]
    store = Store(tmp_path / "state")
    config = configured(tmp_path / "home", tmp_path / "state", once=False)
    run = Run(config, {}, store, clock=lambda: now[0], waker=HandWaker(), strict=True)
    run.begin()

    def lag() -> float:
        ((_, value),) = truth.samples(run.page.render(scraper=True)[0].decode())["spantail_lag_seconds"]
        return value

    assert lag() == 0
    now[0] += 100 * SECOND  # and the loop has not come back
    assert lag() == 97
    run.follow.step(0)
    assert lag() == 0
    store.db.execute("PRAGMA query_only=ON")
    run.follow.poke()
    run.follow.step(0)
    before = lag()
    now[0] += 100 * SECOND
    run.follow.step(0)
    assert lag() == before + 100
    store.db.execute("PRAGMA query_only=OFF")
    run.follow.step(0)
    assert lag() == 0
    run._leave()
    store.close()

"""`spantail demo`: made-up sessions that are counted exactly as they were written, and touch nothing else."""

from __future__ import annotations

import importlib
import os
import re
import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest

import truth
from ports import free_port
from program import configured
from receiver import Receiver
from spantail.commands import demo
from spantail.commands import run as run_command
from spantail.commands.run import Run
from spantail.demo.play import KEPT, MARK, Cast, HomeError, Play, claim
from spantail.demo.scenes import SCENES
from spantail.formats import TABLE
from spantail.formats.actor import Ability, Actor
from spantail.model import Usage
from spantail.state.families import FAMILIES, READ_BYTES
from spantail.state.store import Store
from spantail.tail.wake import HandWaker
from test_run import PATIENCE, get, until

LONG = 180.0
"""A limit only for the case that it never ends."""
SHOWN = [row for row in TABLE if row.demo]
COUNTED = {
    "turns": ("coding_agent_turns_total", "status"),
    "tool calls": ("coding_agent_tool_calls_total", "status"),
    "tokens": ("coding_agent_tokens_total", "type"),
    "model calls": ("coding_agent_model_calls_total", ""),
    "sessions": ("coding_agent_sessions_started_total", ""),
    "repeated": ("coding_agent_repeated_tool_calls_total", ""),
    "compactions": ("coding_agent_compactions_total", ""),
    "provider errors": ("coding_agent_provider_errors_total", ""),
    "incomplete": ("coding_agent_incomplete_usage_total", ""),
}
ABSENT_WHEN_WELL = {
    "spantail_late_records_total",
    "spantail_outbox_oldest_timestamp_seconds",
    "spantail_label_overflow_total",
    "spantail_errors_total",
}
"""Families that have no series as long as nothing goes wrong."""


def started(*flags: str, env: dict[str, str] | None = None) -> subprocess.Popen[str]:
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("OTEL_", "SPANTAIL_"))}
    return subprocess.Popen(
        [sys.executable, "-m", "spantail", "demo", *flags],
        env={**clean, **(env or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def told(out: str) -> Counter[tuple[str, str]]:
    """What the demo says that it has written."""
    found = Counter()
    for line in out.splitlines():
        agent, _, counts = line.partition(": ")
        for count in counts.split(", "):
            amount, _, what = count.partition(" ")
            found[agent, what] = int(amount)
    return found


def counted(page: str) -> Counter[tuple[str, str]]:
    """The same from a page."""
    found = Counter()
    samples = truth.samples(page)
    for what, (name, label) in COUNTED.items():
        for labels, value in samples[name]:
            found[labels["agent"], f"{what} {labels[label]}" if label else what] += int(value)
    return +found


def page_of(home: Path) -> str:
    """The totals in the demo's state."""
    config = configured(home, home / MARK / "state")
    assert run_command.main(config, {}) == 0
    return Path(config.textfile).read_text()


@pytest.mark.parametrize("seed", [1, 2])
def test_what_was_written_is_what_was_counted(seed, tmp_path):
    """Every scene by everybody who can play it: same turns, calls, tokens and errors, and a span for each."""
    with Receiver("http") as receiver:
        home = tmp_path / "home"
        program = started(
            "--home", str(home), "--speed", "60", "--seed", str(seed), "--once-through", "--listen", "none",
            env=receiver.environ(),
        )  # fmt: skip
        out, log = program.communicate(timeout=LONG)
        assert program.returncode == 0, log
    wrote = told(out)
    subagents = sum(amount for (_, what), amount in wrote.items() if what == "subagents")
    wrote = Counter({key: amount for key, amount in wrote.items() if key[1] != "subagents"})
    assert {agent for agent, _ in wrote} == {row.agent for row in SHOWN}
    assert counted(page_of(home)) == wrote
    spans = receiver.spans
    assert truth._whole(spans) == []

    def total(what: str) -> int:
        return sum(amount for (_, key), amount in wrote.items() if key.startswith(what))

    assert sum(map(truth.is_turn, spans)) == total("turns")
    assert sum(map(truth.is_chat, spans)) == total("model calls")
    assert sum(map(truth.is_tool, spans)) == total("tool calls")
    nested = [s for s in spans if s.parent and s.attrs["gen_ai.operation.name"] == "invoke_agent"]
    assert len(nested) == subagents == 2


def test_every_family_is_on_the_page_soon(tmp_path):
    """Within some turns of a demo that goes on, each metric that dashboards ask for has a series that is not 0."""
    port = free_port()
    wanted = {family.name for family in FAMILIES} - ABSENT_WHEN_WELL
    zero = {"spantail_outbox_dropped_spans_total", "spantail_commit_failed", "spantail_lag_seconds"}
    zero |= {"spantail_outbox_spans", "spantail_outbox_bytes"}
    with Receiver("http") as receiver:
        program = started(
            "--speed", "30", "--seed", "3", "--listen", f"127.0.0.1:{port}",
            env={**receiver.environ(), "TMPDIR": str(tmp_path)},
        )  # fmt: skip
        try:
            until(lambda: get(port, "/readyz")[0] == 200)
            missing = wanted

            def complete() -> bool:
                nonlocal missing
                there = {
                    re.sub(r"_(count|sum|bucket)$", "", name)
                    for name, series in truth.samples(get(port, "/metrics")[1]).items()
                    if any(value for _, value in series) or name in zero
                }
                missing -= there  # gauges come and go
                return not missing

            until(complete, LONG)
            page = truth.samples(get(port, "/metrics")[1])
        finally:
            program.send_signal(signal.SIGTERM)
            out, log = program.communicate(timeout=PATIENCE)
        assert program.returncode == 0, log
    assert not missing
    assert sum(value for _, value in page["coding_agent_turns_total"]) < 200
    spent = {labels["budget"]: value for labels, value in page["coding_agent_budget_spent_usd"]}
    limits = {labels["budget"]: value for labels, value in page["coding_agent_budget_limit_usd"]}
    assert spent["demo-blown"] > limits["demo-blown"]
    assert spent["demo-all"] < limits["demo-all"]
    kinds = {labels["error_type"] for labels, _ in page["coding_agent_tool_errors_total"]}
    assert kinds >= {"tool_error", "interrupted"}
    assert told(out)
    assert list(tmp_path.iterdir()) == []  # the temporary home is gone


def test_write_only_can_be_followed_by_another(tmp_path):
    """As in the compose file: one process writes, another follows."""
    program = started("--home", str(tmp_path / "home"), "--speed", "60", "--once-through", "--write-only")
    out, log = program.communicate(timeout=LONG)
    assert program.returncode == 0, log
    assert not (tmp_path / "home" / MARK / "state").exists()
    config = configured(tmp_path / "home", tmp_path / "state", grace=0)
    (tmp_path / "state").mkdir()
    assert run_command.main(config, {}, strict=True) == 0
    wrote = {key: amount for key, amount in told(out).items() if key[1].startswith(("tool calls", "tokens"))}
    found = counted(Path(config.textfile).read_text())
    assert {key: found[key] for key in wrote} == wrote


def test_write_only_ends_with_sigterm(tmp_path):
    program = started("--home", str(tmp_path / "home"), "--write-only", "--speed", "10")
    until(lambda: any((tmp_path / "home").rglob("*.jsonl")))
    program.send_signal(signal.SIGTERM)
    out, log = program.communicate(timeout=PATIENCE)
    assert program.returncode == 0, log
    assert told(out)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--speed", "fast"], "--speed: 'fast'"),
        (["--speed", "0"], "--speed: '0'"),
        (["--seed", "x"], "--seed: 'x'"),
        (["--for", "soon"], "--for: 'soon'"),
        (["--listen", "9464"], "--listen: '9464'"),
    ],
)
def test_a_bad_value_is_one_line_and_exit_2(words, said):
    program = started(*words)
    out, log = program.communicate(timeout=PATIENCE)
    assert program.returncode == 2
    assert out == ""
    assert log.count("\n") == 1
    assert said in log


def test_a_home_with_real_sessions_is_refused(tmp_path):
    """Made-up sessions are never mixed with real ones: nothing is written there."""
    for number, row in enumerate(TABLE):
        root = next((root for root in row.roots if root.path.strip("./")), None)
        if root is None:
            continue
        home = tmp_path / str(number)
        (home / root.path).mkdir(parents=True)
        with pytest.raises(HomeError, match="not made by a demo"):
            claim(home, tmp_path / "me", TABLE)
        assert not (home / MARK).exists()
    (tmp_path / "me").mkdir()
    with pytest.raises(HomeError, match="your own home"):
        claim(tmp_path / "me", tmp_path / "me", TABLE)
    (tmp_path / "file").write_text("")
    with pytest.raises(HomeError, match="--home"):
        claim(tmp_path / "file", tmp_path / "me", TABLE)


def test_the_users_own_home_is_refused_by_the_command(tmp_path):
    program = started("--home", str(tmp_path), env={"HOME": str(tmp_path)})
    _, log = program.communicate(timeout=PATIENCE)
    assert program.returncode == 2
    assert "your own home" in log
    assert list(tmp_path.iterdir()) == []


def test_a_demos_home_can_be_used_again(tmp_path):
    """The second run adds sessions of its own, also with the same seed."""
    totals = []
    for _ in range(2):
        program = started(
            "--home", str(tmp_path), "--speed", "100", "--seed", "1", "--once-through", "--listen", "none"
        )
        out, log = program.communicate(timeout=LONG)
        assert program.returncode == 0, log
        totals.append(sum(amount for (_, what), amount in told(out).items() if what.startswith("turns")))
    page = truth.samples(page_of(tmp_path))
    assert sum(value for _, value in page["coding_agent_turns_total"]) == sum(totals)


class Hurried(threading.Event):
    """Time passes only where it is waited for."""

    now = 1_700_000_000.0

    def wait(self, timeout=None):
        Hurried.now += timeout or 0
        return self.is_set()


def test_a_long_demo_does_not_fill_the_disk(tmp_path, monkeypatch):
    """Old sessions are deleted: a day of it leaves the files of the last ones."""
    monkeypatch.setattr("spantail.demo.play.KEPT", 8)
    time = Hurried()
    play = Play(tmp_path, Cast(TABLE), seed=1, clock=lambda: int(time.now * 1e9), monotonic=lambda: time.now)
    play.run(time, 1200.0)
    sessions = sum(amount for (_, what), amount in play.tally.items() if what == "sessions")
    assert sessions > 60
    files = [path for path in tmp_path.rglob("*.jsonl") if "subagents" not in path.parts]
    assert 3 < len(files) < 8 + 30 < sessions
    assert KEPT >= 100


@pytest.mark.parametrize("row", SHOWN, ids=lambda row: row.agent)
def test_a_stage_has_what_it_says(row, tmp_path):
    """A module named in the table can do all that it claims, and nothing that it does not."""
    stage = importlib.import_module(row.demo)
    assert stage.MODELS
    assert set(Ability.__args__) >= stage.CAN
    assert {scene.needs for scene in SCENES} - {None} == set(Ability.__args__) - {"timeout", "denied"}
    actor = stage.actor(tmp_path, "/w", "m", 10**18)
    try:
        for ability in set(Ability.__args__) - {"timeout", "denied"}:
            own = getattr(type(actor), ability) is not getattr(Actor, ability)
            assert own == (ability in stage.CAN), ability
    finally:
        actor.close()
        actor.remove()


def test_the_help_has_examples(capsys):
    from spantail import cli

    with pytest.raises(SystemExit):
        cli.main(["demo", "--help"])
    text = capsys.readouterr().out
    for flag in ("--home", "--speed", "--seed", "--for", "--once-through", "--write-only", "--listen"):
        assert flag in text
    assert "examples:" in text
    assert demo.asked(
        {
            "home": None,
            "speed": "1",
            "seed": None,
            "time": None,
            "once_through": False,
            "write_only": False,
            "listen": "none",
        }
    ) == demo.Asked(listen=None)


def test_a_commit_that_comes_after_its_event_is_seen(tmp_path):
    """A database's log wakes the loop before its rows can be seen: it looks again, without another event."""
    home, now, waker = tmp_path / "home", [10**18], HandWaker()
    row = next(row for row in SHOWN if any(files.storage == "rows" for files in row.files))
    actor = importlib.import_module(row.demo).actor(home, "/srv/shop", "m", now[0])
    actor.prompt(now[0], "go")
    (path,) = [path for path in home.rglob("*.db") if path.is_file()]
    store = Store(tmp_path / "state")
    run = Run(configured(home, tmp_path / "state", once=False), {}, store, clock=lambda: now[0], waker=waker)

    def read() -> float:
        return dict(run.totals.snapshot(now[0], scraper=False))[READ_BYTES][0].value

    try:
        run.begin()
        before = read()
        waker.change(str(path))
        run.follow.step(0)
        assert read() == before
        actor.reply(now[0], Usage(1, 2, 3, 4), [])
        now[0] += 5 * 10**6
        run.follow.step(0)
        assert read() > before
        assert run.follow._patience() < 0.1
        now[0] += 5 * 10**9
        run.follow.step(0)
        assert run.follow._patience() > 0.1  # at rest it is not looked at all the time
    finally:
        actor.close()
        run.waker.close()
        store.close()

"""The loop itself: when it settles, what it drops, what it remembers over a restart."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import sys
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

import replay
import truth
from program import LONG_AFTER, configured
from receiver import Receiver
from spantail.commands import run
from spantail.commands.run import Run
from spantail.config import Limits
from spantail.followed import Followed
from spantail.model import SECOND
from spantail.state.store import Store
from spantail.tail.wake import HandWaker

sys.path.append(str(Path(__file__).with_name("formats")))
from goose_database import Goose, text

BEGIN = 1_760_000_000 * SECOND


class Loop:
    """The program on one session file, looked at by hand."""

    def __init__(self, tmp_path, **config) -> None:
        self.now = [BEGIN]
        self.during = lambda: None
        self.waker = HandWaker(lambda _timeout: self.during())
        self.path = tmp_path / "home/.agent/sessions/s.jsonl"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.store = Store(tmp_path / "state")
        settings = configured(tmp_path / "home", tmp_path / "state", once=False, **config)
        self.run = Run(
            settings, os.environ, self.store, clock=lambda: self.now[0], waker=self.waker, strict=True
        )

    def write(self, kind, *, at, told=True, **more) -> None:
        moment = datetime.fromtimestamp((BEGIN / SECOND) + at, UTC).isoformat(timespec="milliseconds")
        record = {"schema_version": 1, "time": moment.replace("+00:00", "Z"), "type": kind, **more}
        with self.path.open("ab") as file:
            file.write(json.dumps(record).encode() + b"\n")
        if told:
            self.waker.change(str(self.path))

    def begin(self) -> None:
        self.run.begin()

    def look(self, at=None) -> None:
        if at is not None:
            self.now[0] = BEGIN + round(at * SECOND)
        self.run.follow.step(0)

    def turns(self) -> float:
        rows = [row for row in self.store.totals() if row.family == "coding_agent_turns_total"]
        return sum(msgspec.msgpack.decode(row.value, type=float) for row in rows)

    def end(self) -> None:
        self.run._leave()
        self.store.close()


@pytest.fixture
def receiver(monkeypatch):
    with Receiver("http") as receiver:
        for key, value in receiver.environ().items():
            monkeypatch.setenv(key, value)
        yield receiver


def test_nothing_is_settled_by_a_time_up_to_which_not_all_was_read(tmp_path, receiver):
    """A record that is written while the loop wakes up is not read yet, and may say that the turn goes on."""
    loop = Loop(tmp_path)
    loop.begin()
    loop.write("user", at=0, turn_id="t", text="x")
    loop.write("assistant_finished", at=0.5, turn_id="t", message_id="m1", finish_reason="stop")
    loop.look(0.5)

    def meanwhile() -> None:
        loop.write("assistant_started", at=2, turn_id="t", message_id="m2", told=False)
        loop.now[0] = BEGIN + 3 * SECOND

    loop.during = meanwhile
    loop.look(1)
    loop.during = lambda: None
    assert loop.turns() == 0
    loop.waker.change(str(loop.path))
    loop.look(3)
    loop.write("assistant_finished", at=9, turn_id="t", message_id="m2", finish_reason="stop")
    loop.look(9)
    loop.look(20)
    loop.end()
    (turn,) = (span for span in receiver.spans if truth.is_turn(span))
    assert turn.end - turn.start == 9 * SECOND


LONG = 3 << 20
"""Bytes that take many reads."""


def long_turn(loop) -> None:
    loop.write("user", at=0, turn_id="t", text="x")
    with loop.path.open("ab") as file:
        file.write(b"".join(b'{"type":"?","x":"%s"}\n' % (b"x" * 1000) for _ in range(LONG // 1000)))
    loop.write("assistant_finished", at=5, turn_id="t", message_id="m", finish_reason="stop")


def stopped_in(loop, monkeypatch) -> list[int]:
    """Tells the loop to stop while it reads, and lets the time pass that it has left; what was read afterwards."""
    read, sizes = Followed.read, []

    def reading(followed, *args, **more):
        batch = read(followed, *args, **more)
        sizes.append(batch.bytes)
        if len(sizes) == 1:
            loop.run.follow.stop()
            loop.now[0] += 2 * SECOND
        return batch

    monkeypatch.setattr(Followed, "read", reading)
    return sizes


@pytest.mark.parametrize("live", [False, True])
def test_a_stop_does_not_wait_for_the_end_of_a_long_file(live, tmp_path, receiver, monkeypatch):
    """A file of gigabytes takes longer than ten seconds. The next start goes on, and nothing was settled early."""
    loop = Loop(tmp_path)
    if live:
        loop.begin()
    long_turn(loop)
    sizes = stopped_in(loop, monkeypatch)
    if live:
        loop.look(60)
    else:
        loop.begin()
        loop.waker.change(str(loop.path))  # as polling says of all that it sees for the first time
    loop.run.follow.run()
    loop.end()
    assert len(sizes) == 1
    assert receiver.spans == []
    monkeypatch.undo()
    for key, value in receiver.environ().items():
        monkeypatch.setenv(key, value)
    again = Loop(tmp_path)
    again.now[0] = BEGIN + 3600 * SECOND
    again.begin()
    again.end()
    (turn,) = (span for span in receiver.spans if truth.is_turn(span))
    assert turn.end - turn.start == 5 * SECOND


def test_once_takes_a_last_line_that_was_left_without_its_end(tmp_path, receiver):
    """It was seen unfinished by one that followed the file, and is not written any more."""
    loop = Loop(tmp_path)
    loop.begin()
    loop.write("user", at=0, turn_id="t", text="x")
    loop.write("assistant_finished", at=5, turn_id="t", message_id="m", finish_reason="stop")
    loop.path.write_bytes(loop.path.read_bytes().removesuffix(b"\n"))
    loop.look(5)
    loop.end()
    assert not any(truth.is_turn(span) for span in receiver.spans)
    config = configured(tmp_path / "home", tmp_path / "state")
    assert run.main(config, os.environ, clock=lambda: LONG_AFTER, strict=True) == 0
    (turn,) = (span for span in receiver.spans if truth.is_turn(span))
    assert turn.end - turn.start == 5 * SECOND


def test_a_turn_waits_for_what_its_subagent_wrote_before_it_ended(tmp_path, receiver):
    """The line that closes the turn is read before an older one in the subagent's file: the loop was busy for a while."""
    case = truth.FIXTURES / "claude-code-2.1.326/subagent-bg-a"
    loop = Loop(tmp_path, agents=("claude-code",))
    loop.begin()
    pieces = replay.lines(case / "home")
    inner = next(path for _, path, _ in pieces if path.name.startswith("agent-") and path.suffix == ".jsonl")
    late = next(at for at, (_, path, body) in enumerate(pieces) if path == inner and b"toolu_sg_s1" in body)

    def write(part) -> set[str]:
        for time, path, body in part:
            there = tmp_path / "home" / path
            there.parent.mkdir(parents=True, exist_ok=True)
            with there.open("ab") as file:
                file.write(body)
            loop.now[0] = max(loop.now[0], time)
        return {str(tmp_path / "home" / path) for _, path, _ in part}

    loop.now[0] = pieces[0][0]
    loop.waker.change(*write(pieces[:late]))
    loop.look()
    told = [path for path in write(pieces[late:]) if not path.endswith(inner.name)]
    waits = iter((told, [str(tmp_path / "home" / inner)]))
    loop.during = lambda: loop.waker.change(*next(waits, ()))
    loop.look()
    loop.during = lambda: None
    loop.now[0] += 3 * 3600 * SECOND
    loop.waker.lose()
    loop.look()
    loop.end()
    roots = sorted((span for span in receiver.spans if not span.parent), key=lambda span: span.start)
    assert roots[0].attrs["coding_agent.tokens.output"] == 200 + 210 + 300


def test_a_full_disk_is_not_tried_without_a_pause(tmp_path, receiver, monkeypatch):
    """Also where the commit that fails is the one of a turn that was just closed."""
    loop = Loop(tmp_path)
    loop.begin()
    loop.write("user", at=0, turn_id="t", text="x")
    loop.look(0)
    commit = loop.store.commit

    def full(*_args):
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(loop.store, "commit", full)
    loop.write("user", at=1, turn_id="u", text="y")
    loop.look(1)
    loop.look(1)
    assert loop.run.follow.stuck
    assert loop.run.follow._patience() > 0.5
    monkeypatch.setattr(loop.store, "commit", commit)
    loop.look(2)
    assert not loop.run.follow.stuck
    loop.end()


def test_a_restart_remembers_how_far_the_agent_s_clock_is_off(tmp_path, receiver):
    """An agent whose clock is hours behind ours is not silent for hours, before a restart or after."""
    hours = 5 * 3600
    for life, (kind, more) in enumerate(
        (("user", {"text": "x"}), ("assistant_finished", {"message_id": "m", "finish_reason": "stop"}))
    ):
        loop = Loop(tmp_path)
        loop.now[0] += (hours + 60 * life) * SECOND
        loop.begin()
        assert loop.turns() == 0
        loop.write(kind, at=60 * life, turn_id="t", **more)
        loop.look()
        loop.run.deliverer.stop(0)
        loop.store.close()  # without a word, as by a kill
    loop = Loop(tmp_path)
    loop.now[0] += (hours + 120) * SECOND
    loop.begin()
    loop.look()
    loop.end()
    (turn,) = (span for span in receiver.spans if truth.is_turn(span))
    assert turn.attrs["coding_agent.turn.status"] == "ok"


def test_what_a_full_outbox_drops_is_counted_by_the_commit_that_drops_it(tmp_path, receiver):
    """The oldest spans go; the count is in the state when they are not, and both survive a kill."""
    receiver.stop()
    loop = Loop(tmp_path, limits=Limits(outbox_bytes=2000))
    loop.begin()
    for number in range(20):
        loop.write("user", at=10 * number, turn_id=f"t{number}", text="x")
        loop.look(10 * number)
    made = loop.turns()
    waiting = loop.store.waiting_spans
    assert loop.store.waiting_bytes <= 2000 + 1000  # and what the last commit put there
    dropped = [row for row in loop.store.totals() if row.family == "spantail_outbox_dropped_spans_total"]
    counted = sum(msgspec.msgpack.decode(row.value, type=float) for row in dropped)
    assert counted == made - waiting > 0
    loop.run.deliverer.stop(0)
    loop.store.close()


def test_the_loop_rests_when_there_is_nothing_to_do(tmp_path, receiver):
    """A turn that the clock will close later is waited for, not asked about all the time."""
    loop = Loop(tmp_path)
    loop.begin()
    loop.write("user", at=0, turn_id="t", text="x")
    loop.write("tool_started", at=0, turn_id="t", call_id="c", name="shell", input={})
    loop.look(0)
    waits: list[float] = []
    while loop.turns() == 0:
        waits.append(loop.run.follow._patience())
        assert waits[-1] > 0.5 or len(waits) > 3000, waits
        loop.look((loop.now[0] - BEGIN) / SECOND + waits[-1])
        assert len(waits) < 5000
    loop.end()


def test_a_transaction_that_was_announced_too_early_is_seen(tmp_path, receiver):
    """The log of a database is written before its transaction is there for others, and nothing tells of the rest."""
    path = tmp_path / "home/.local/share/goose/sessions/sessions.db"
    path.parent.mkdir(parents=True)
    goose = Goose(path)
    goose.session("s", BEGIN // SECOND)
    loop = Loop(tmp_path)
    loop.begin()
    loop.waker.change(f"{path}-wal")
    loop.look(0)
    goose.say("s", "user", BEGIN // SECOND, text("x"))
    loop.look(1)
    loop.look(8000)
    goose.close()
    loop.end()
    assert [span for span in receiver.spans if truth.is_turn(span)]


def test_a_companion_made_while_nobody_looked_is_read_before_the_file_that_went_on(tmp_path, receiver):
    """A log of hooks that is new at a restart has the exact times of calls in messages that were known before."""
    case = truth.FIXTURES / "cline/multi-a"
    recorded = replay.copied(case, tmp_path / "recorded")
    home = tmp_path / "home"
    shutil.copytree(recorded, home)
    (log,) = home.rglob("hooks.jsonl")
    log.unlink()
    for path in home.rglob("*.messages.json"):
        document = json.loads(path.read_bytes())
        path.write_text(json.dumps({**document, "messages": document["messages"][:1]}))
    for whole in (False, True):
        if whole:
            shutil.copytree(recorded, home, dirs_exist_ok=True)
        loop = Loop(tmp_path)
        loop.begin()
        loop.look()
        loop.run.deliverer.wait_idle(20)
        loop.run.deliverer.stop(0)
        loop.store.close()
    stated = [s for s in receiver.spans if s.attrs.get("coding_agent.tool.duration_source") == "stated"]
    assert stated

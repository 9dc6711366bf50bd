"""Silence closes a turn only where everything is read that was written by then, whatever happens meanwhile."""

from __future__ import annotations

import shutil

import pytest

import replay
import truth
from spantail.followed import Followed
from spantail.model import SECOND
from test_follow import BEGIN, Loop, receiver  # noqa: F401 - a fixture, and the path of the next

from goose_database import Goose, request, response, text  # isort: skip

HOUR = 3600
GAP = 1700
"""Less than the half hour after which a turn is over; twice as much is more."""


@pytest.fixture
def while_reading(monkeypatch):
    """Something happens when that file is about to be read, once."""
    asked = {}
    read = Followed.read

    def reading(followed, *args, **more):
        asked.pop(followed.source.path, lambda: None)()
        return read(followed, *args, **more)

    monkeypatch.setattr(Followed, "read", reading)
    return lambda path, what: asked.update({str(path): what})


def works(loop, at, call) -> None:
    """The turn goes on."""
    for kind in ("tool_started", "tool_finished"):
        loop.write(kind, at=at, turn_id="t", call_id=call, name="shell", input={}, told=False)


def the_turn(receiver):  # noqa: F811
    (turn,) = (span for span in receiver.spans if truth.is_turn(span))
    return turn.attrs["coding_agent.turn.status"], (turn.end - turn.start) // SECOND


def test_what_is_written_while_its_file_is_read_was_seen_after_that(tmp_path, receiver, while_reading):  # noqa: F811
    """Not when the loop began to look: the machine may have slept in between."""
    loop = Loop(tmp_path)
    loop.begin()

    def sleeps() -> None:
        works(loop, GAP, "c")
        loop.now[0] = BEGIN + GAP * SECOND

    loop.write("user", at=0, turn_id="t", text="x")
    while_reading(loop.path, sleeps)
    loop.look(0)
    loop.look(GAP + 500)
    loop.write("assistant_finished", at=GAP + 505, turn_id="t", message_id="m", finish_reason="stop")
    loop.look(GAP + 505)
    loop.look(GAP + 520)
    loop.end()
    assert the_turn(receiver) == ("ok", GAP + 505)


def test_new_files_settle_nothing_that_others_may_have_prolonged(tmp_path, receiver, while_reading):  # noqa: F811
    """At a start the one is read, and grows while the next ones are read."""
    for life in range(2):
        loop = Loop(tmp_path)
        if life:
            loop.now[0] += 2 * SECOND
            works(loop, 1, "c")
            for n in (1, 2):
                other = loop.path.with_name(f"other-{n}.jsonl")
                other.write_text(loop.path.read_text().replace('"t"', f'"u{n}"').replace('"c"', f'"d{n}"'))

            def goes_on(loop=loop) -> None:
                works(loop, GAP, "e")
                loop.write(
                    "assistant_finished", at=2 * GAP, turn_id="t", message_id="m", finish_reason="stop"
                )
                loop.now[0] = BEGIN + 2 * GAP * SECOND

            while_reading(loop.path.with_name("other-1.jsonl"), goes_on)
        loop.begin()
        if not life:
            loop.write("user", at=0, turn_id="t", text="x")
            loop.look(0)
        else:
            loop.look(2 * GAP)
            loop.look(2 * GAP + 20)
        loop.end()
    (turn,) = (span for span in receiver.spans if truth.is_turn(span) and span.end > BEGIN + 5 * SECOND)
    assert turn.attrs["coding_agent.turn.status"] == "ok"


def test_a_fork_and_its_original_seen_in_one_wake(tmp_path, receiver):  # noqa: F811
    """The original is read first, whatever their names."""
    recorded = replay.copied(truth.FIXTURES / "claude-code/fork-a", tmp_path / "recorded")
    for folder in (path for path in recorded.rglob("*") if path.is_dir()):
        (tmp_path / "home" / folder.relative_to(recorded)).mkdir(parents=True)
    loop = Loop(tmp_path)
    loop.begin()
    shutil.copytree(recorded, tmp_path / "home", dirs_exist_ok=True)
    fork, original = sorted((tmp_path / "home").rglob("*.jsonl"))
    for path in (fork, original):
        loop.waker.change(str(path))
    loop.look(0)
    loop.look(9 * HOUR)
    loop.end()
    turns = [span for span in receiver.spans if truth.is_turn(span)]
    first = min(turns, key=lambda span: span.start)
    assert first.attrs["session.id"] == original.stem
    assert {span.attrs["session.id"] for span in turns} == {original.stem, fork.stem}


def locked_out(tmp_path, receiver, looks: int):  # noqa: F811
    """A turn is answered after three hours, by a transaction after which the database stays locked for some looks."""
    path = tmp_path / "home/.local/share/goose/sessions/sessions.db"
    path.parent.mkdir(parents=True)
    goose = Goose(path)
    goose.session("s", BEGIN // SECOND)
    goose.db.execute("PRAGMA journal_mode=DELETE")
    goose.say("s", "user", BEGIN // SECOND, text("x"))
    loop = Loop(tmp_path)
    loop.begin()
    for role, at, content in (
        ("assistant", HOUR, request("c")),
        ("user", 2 * HOUR, response("c")),
        ("assistant", 3 * HOUR, text("done")),
    ):
        goose.say("s", role, BEGIN // SECOND + at, content)
    goose.db.execute("BEGIN EXCLUSIVE")
    loop.waker.change(str(path))
    loop.look(3 * HOUR + 1)
    for _ in range(looks):
        loop.look()
    goose.db.execute("ROLLBACK")
    goose.close()
    loop.waker.change(str(path))
    loop.look(3 * HOUR + 2)
    loop.look(9 * HOUR)
    loop.end()
    return the_turn(receiver)[1]


def test_a_database_that_is_locked_proves_no_silence(tmp_path, receiver):  # noqa: F811
    assert locked_out(tmp_path, receiver, 3) == 3 * HOUR


def test_a_database_that_stays_locked_does_not_hold_up_the_others_for_ever(tmp_path, receiver):  # noqa: F811
    """Its turn is closed by what is known of it."""
    assert locked_out(tmp_path, receiver, 200) == 0

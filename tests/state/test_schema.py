"""A state outlives the version that wrote it: migrated in one step, or left alone."""

from __future__ import annotations

import os
import shutil
import sqlite3
from pathlib import Path

import pytest

import truth
from program import LONG_AFTER, configured
from spantail.commands import run as run_command
from spantail.state import schema
from spantail.state.schema import NewerStateError
from spantail.state.store import Store

RECORDED = Path(__file__).parent / "state-v1.db"
"""A state as version 1 wrote it: the case TOOLS read whole, its spans not delivered."""
TOOLS = truth.FIXTURES / "claude-code" / "tools-a"


@pytest.fixture
def recorded(tmp_path):
    """The folder of a copy."""
    folder = tmp_path / "state"
    folder.mkdir()
    shutil.copy(RECORDED, folder / "state.db")
    return folder


def tables(path: Path) -> set[str]:
    db = sqlite3.connect(path)
    found = {
        " ".join(row[0].split()) for row in db.execute("SELECT sql FROM sqlite_master WHERE sql NOT NULL")
    }
    db.close()
    return found


def test_a_recorded_state_becomes_what_a_new_one_is(recorded, tmp_path):
    """The steps lead from the first version to the tables of today; who changes a table without a step fails here."""
    Store(recorded).close()
    Store(tmp_path / "new").close()
    assert tables(recorded / "state.db") == tables(tmp_path / "new" / "state.db")


def test_a_recorded_state_goes_on(recorded, tmp_path):
    """Its totals stand on the page and its spans wait."""
    config = configured(tmp_path / "nothing", recorded)
    assert run_command.main(config, {}, clock=lambda: LONG_AFTER) == 0
    page = truth.samples((recorded / "page.prom").read_text())
    assert sum(value for _, value in page["coding_agent_turns_total"]) == 1
    assert sum(value for _, value in page["coding_agent_tool_calls_total"]) == 3
    assert page["spantail_outbox_spans"][0][1] > 0
    assert not list(recorded.glob("state.broken-*"))


def test_steps_run_in_order_and_keep_everything(recorded, monkeypatch):
    def second(db: sqlite3.Connection) -> None:
        db.execute("ALTER TABLE meta ADD COLUMN since INTEGER NOT NULL DEFAULT 7")

    def third(db: sqlite3.Connection) -> None:
        db.execute("UPDATE meta SET since=since+1")

    monkeypatch.setattr(schema, "VERSION", 3)
    monkeypatch.setattr(schema, "STEPS", {1: second, 2: third})
    store = Store(recorded)
    assert store.db.execute("SELECT DISTINCT since FROM meta").fetchall() == [(8,)]
    assert store.db.execute("PRAGMA user_version").fetchone() == (3,)
    assert store.meta("backlog") == "done"
    store.close()
    Store(recorded).close()  # and not again


def test_a_step_that_fails_leaves_the_old_state_whole(recorded, monkeypatch):
    """Also what the steps before it did is taken back."""
    before = RECORDED.read_bytes()

    def fails(db: sqlite3.Connection) -> None:
        db.execute("DELETE FROM totals")
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(schema, "VERSION", 3)
    monkeypatch.setattr(schema, "STEPS", {1: lambda db: db.execute("DROP TABLE works"), 2: fails})
    with pytest.raises(sqlite3.OperationalError):
        Store(recorded)
    monkeypatch.undo()
    db, old = sqlite3.connect(recorded / "state.db"), sqlite3.connect(RECORDED)
    assert list(db.iterdump()) == list(old.iterdump())
    assert db.execute("PRAGMA user_version").fetchone() == (1,)
    db.close()
    old.close()
    assert RECORDED.read_bytes() == before


def test_a_newer_state_is_left_alone(recorded, capsys):
    """One clear line, exit 1, and not a byte of it changed or set aside."""
    db = sqlite3.connect(recorded / "state.db")
    db.execute(f"PRAGMA user_version={schema.VERSION + 1}")
    db.close()
    before = (recorded / "state.db").read_bytes()
    with pytest.raises(NewerStateError):
        Store(recorded)
    capsys.readouterr()
    assert run_command.main(configured(recorded, recorded), os.environ) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "newer spantail" in said
    assert "--state" in said
    assert (recorded / "state.db").read_bytes() == before
    assert sorted(path.name for path in recorded.iterdir()) == ["lock", "state.db"]

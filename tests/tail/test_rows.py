"""Rows become records: new ones once, changed ones again, whatever happens to the database."""

import os
import shutil
import sqlite3

import pytest
from msgspec import Struct

from spantail.formats.queries import Columns, Parts, Plan, Query
from spantail.formats.row import Files, Format, Gives, Root
from spantail.tail import row_cursor
from spantail.tail.rows import RowsTail
from spantail.tail.source import Source

PLENTY = 1 << 30


class Limits(Struct):
    record_bytes: int = 1 << 20


class Heard:
    def __init__(self):
        self.said: list[str] = []

    def bad_record(self, agent, path, offset, reason):
        self.said.append(f"bad {reason} at {offset}")

    def unreadable(self, agent, path, reason):
        self.said.append(reason)

    def gone(self, agent, path):
        self.said.append("gone")

    def restarted(self, agent, path):
        self.said.append("restarted")


def queries(columns: Columns) -> Plan:
    """Notes with their lines; open while the note's text ends with dots."""
    if "note" not in columns:
        return ()
    lines = Parts(table="line", owner="note", changed="updated", columns=("id", "text"), order="id")
    return (
        Query(
            kind="note",
            table="note",
            key="id",
            columns=("text", "colour" if "colour" in columns["note"] else "NULL"),
            parts=lines if "line" in columns else None,
            open=lambda row: row.values[0].endswith("..."),
        ),
    )


def tail_of(path, plan=queries, cursor=None, limit=1 << 20):
    files = Files("main", 0, "*", "rows", dict, dict, queries=plan)  # type: ignore[arg-type]
    row = Format("robot", "Robot", (Root("."),), (files,), Gives("", "", "", "", "", ""))
    heard = Heard()
    tail = RowsTail(Source(str(path), row, files, str(path.parent), ""), cursor, heard, Limits(limit))
    return tail, heard


@pytest.fixture
def path(tmp_path):
    return tmp_path / "notes 100%?.db"


@pytest.fixture
def agent(path):
    """The agent's own connection, in WAL mode."""
    connection = make(path)
    yield connection
    connection.close()


def make(path, journal="WAL"):
    connection = sqlite3.connect(path, isolation_level=None, timeout=0)
    connection.execute(f"PRAGMA journal_mode = {journal}")
    connection.execute("CREATE TABLE note (id TEXT PRIMARY KEY, text TEXT)")
    return connection


def write(agent, *notes):
    agent.execute("BEGIN")
    agent.executemany("INSERT INTO note (id, text) VALUES (?, ?)", [(n, f"text of {n}") for n in notes])
    agent.execute("COMMIT")


def keys(batch):
    return [record.body.key for record in batch.records]


def read_all(tail, budget=PLENTY):
    found = []
    while tail.changed():
        found += keys(tail.read(budget, 0))
    return found


# ------------------------------------------------------------------------------- what is new


def test_new_rows_are_handed_out_once(path, agent):
    """In their order, with rowid as position; then there is nothing until the next commit."""
    write(agent, "a", "b")
    tail, heard = tail_of(path)
    assert tail.changed()
    batch = tail.read(PLENTY, 7)
    assert [(r.kind, r.position, r.arrival, r.body.key, r.body.values) for r in batch.records] == [
        ("note", 1, 7, "a", ("text of a", None)),
        ("note", 2, 7, "b", ("text of b", None)),
    ]
    assert batch.bytes == len("text of a") * 2
    assert not tail.changed()
    write(agent, "c")
    assert read_all(tail) == ["c"]
    assert heard.said == []
    tail.close()


def test_what_is_not_committed_is_not_there_yet(path, agent):
    """An open transaction of the agent neither shows nor blocks."""
    write(agent, "a")
    tail, heard = tail_of(path)
    agent.execute("BEGIN IMMEDIATE")
    agent.execute("INSERT INTO note VALUES ('b', '')")
    assert read_all(tail) == ["a"]
    agent.execute("COMMIT")
    assert read_all(tail) == ["b"]
    assert heard.said == []
    tail.close()


def test_a_commit_that_no_stat_can_show_is_seen(path, agent):
    """A log that is written over from its beginning keeps its size, and within a tick its time."""
    tail, _ = tail_of(path)
    write(agent, "a")
    read_all(tail)
    write(agent, "b")
    tail._at.seen = row_cursor.signature(str(path))
    assert read_all(tail) == ["b"]
    tail.close()


def test_the_budget_ends_a_read_and_a_restart_goes_on(path, agent):
    """At least one row a time; the stored cursor knows that there is more although nothing changes."""
    write(agent, *"abcde")
    found, cursor = [], None
    for _ in range(5):
        tail, _ = tail_of(path, cursor=cursor)
        assert tail.changed()
        batch = tail.read(1, 0)
        found += keys(batch)
        cursor = tail.cursor()
        tail.close()
    assert found == list("abcde")
    assert not tail.changed()


def test_a_restart_with_nothing_new_does_not_open_the_database(path, agent, monkeypatch):
    """Two stats are all that a database at rest costs."""
    write(agent, "a")
    rested(path)
    tail, _ = tail_of(path)
    read_all(tail)
    tail.close()
    again, _ = tail_of(path, cursor=tail.cursor())
    monkeypatch.setattr(sqlite3, "connect", lambda *_, **__: pytest.fail("opened"))
    assert not again.changed()


def test_a_commit_that_could_not_be_seen_yet_is_seen_after_a_restart(path, agent):
    """Killed after the log was written and before its index said so: the signature is that of the commit already."""
    tail, _ = tail_of(path)
    write(agent, "a")
    read_all(tail)
    write(agent, "b")
    tail._at.seen = row_cursor.signature(str(path))
    again, _ = tail_of(path, cursor=tail.cursor())
    tail.close()
    assert again.changed()
    assert read_all(again) == ["b"]
    again.close()


def test_a_commit_within_the_same_tick_is_seen_in_a_database_that_nobody_has_open(path):
    """Its one file has the size and the time that it had before: while these are new they prove nothing."""
    found = []
    tail, _ = tail_of(path)
    agent = make(path)
    agent.close()
    for note in "ab":
        agent = sqlite3.connect(path, isolation_level=None)
        write(agent, note)
        agent.close()
        if found:
            seen = tail._at.seen
            os.utime(path, ns=(seen.mtime, seen.mtime))
            assert row_cursor.signature(str(path)) == seen
        assert tail.changed()
        found += keys(tail.read(PLENTY, 0))
    assert found == ["a", "b"]
    tail.close()


def rested(path):
    """As if the last write had been a while ago."""
    for name in (path, path.with_name(path.name + "-wal")):
        then = name.stat().st_mtime_ns - 10 * 10**9
        os.utime(name, ns=(then, then))


def test_a_quiet_database_is_let_go(path, agent):
    """The last to close tidies up the log: that has to be the agent."""
    write(agent, "a")
    tail, _ = tail_of(path)
    read_all(tail)
    for _ in range(60):
        assert not tail.changed()
    agent.execute("PRAGMA journal_mode = DELETE")  # refused while anybody else is connected
    assert not path.with_name(path.name + "-wal").exists()
    tail.close()


def test_rubbish_for_a_cursor_means_from_the_beginning(path, agent):
    """A cursor of another version is no reason to stop."""
    write(agent, "a")
    tail, _ = tail_of(path, cursor=b"\x93rubbish")
    assert read_all(tail) == ["a"]
    tail.close()


def test_an_oversized_row_is_left_out_and_named(path, agent):
    """The others come."""
    write(agent, "a")
    agent.execute("INSERT INTO note VALUES ('big', ?)", ("x" * 200,))
    write(agent, "b")
    tail, heard = tail_of(path, limit=100)
    batch = tail.read(PLENTY, 0)
    assert keys(batch) == ["a", "b"]
    assert batch.bad == 1
    assert heard.said == ["bad oversized at 2"]
    tail.close()


def test_bytes_that_are_no_text_do_not_stop_the_tail(path, agent):
    """SQLite stores in a text column whatever it is given."""
    agent.execute("INSERT INTO note VALUES ('a', CAST(x'ff41' AS TEXT))")
    tail, _ = tail_of(path)
    assert tail.read(PLENTY, 0).records[0].body.values == ("\ufffdA", None)
    tail.close()


# ----------------------------------------------------------------------------- what changed


def test_an_open_row_comes_again_when_it_changed(path, agent):
    """Until the format calls it closed; a commit that does not touch it hands out nothing."""
    agent.execute("INSERT INTO note VALUES ('a', 'well...')")
    tail, _ = tail_of(path)
    assert read_all(tail) == ["a"]
    write(agent, "b")
    assert read_all(tail) == ["b"]
    agent.execute("UPDATE note SET text = 'well, well...' WHERE id = 'a'")
    assert read_all(tail) == ["a"]
    agent.execute("UPDATE note SET text = 'done' WHERE id = 'a'")
    assert read_all(tail) == ["a"]
    agent.execute("UPDATE note SET text = 'done again' WHERE id = 'a'")
    assert read_all(tail) == []
    tail.close()


def test_an_open_row_is_remembered_in_the_cursor_and_forgotten_when_deleted(path, agent):
    agent.execute("INSERT INTO note VALUES ('a', 'well...'), ('b', 'so...')")
    tail, _ = tail_of(path)
    read_all(tail)
    tail.close()
    agent.execute("UPDATE note SET text = 'done' WHERE id = 'a'")
    agent.execute("DELETE FROM note WHERE id = 'b'")
    again, _ = tail_of(path, cursor=tail.cursor())
    assert read_all(again) == ["a"]
    assert again._at.open == {"note": {}}
    again.close()


def test_parts_come_with_their_row_and_later_only_those_that_changed(path, agent):
    """What an open row costs is what is new in it; when it is closed all of it comes once more."""
    agent.execute("CREATE TABLE line (id TEXT PRIMARY KEY, note TEXT, updated INTEGER, text TEXT)")
    agent.execute("INSERT INTO note VALUES ('a', 'well...')")
    agent.execute("INSERT INTO line VALUES ('l1', 'a', 10, 'one'), ('l2', 'a', 20, 'two')")
    tail, _ = tail_of(path)
    assert tail.read(PLENTY, 0).records[0].body.parts == (("l1", "one"), ("l2", "two"))
    agent.execute("INSERT INTO line VALUES ('l3', 'a', 30, 'three')")
    assert tail.read(PLENTY, 0).records[0].body.parts == (("l2", "two"), ("l3", "three"))
    agent.execute("UPDATE note SET text = 'done' WHERE id = 'a'")
    assert tail.read(PLENTY, 0).records[0].body.parts == (("l1", "one"), ("l2", "two"), ("l3", "three"))
    tail.close()


def test_a_mark_that_moves_when_a_row_changes(path, agent):
    """For running totals: rows come again with a new time, and of those that share the newest time only
    what differs."""
    agent.execute("CREATE TABLE total (id TEXT PRIMARY KEY, updated TEXT, tokens INTEGER)")
    plan = (Query(kind="total", table="total", key="id", mark="updated", columns=("tokens",)),)
    agent.execute("INSERT INTO total VALUES ('a', '10:00', 1), ('b', '10:01', 2), ('c', NULL, 3)")
    tail, _ = tail_of(path, lambda _: plan)
    assert read_all(tail) == ["a", "b"]
    agent.execute("UPDATE total SET tokens = 5, updated = '10:01' WHERE id = 'a'")
    assert read_all(tail) == ["a"]
    agent.execute("UPDATE total SET tokens = 6 WHERE id = 'b'")
    assert read_all(tail) == ["b"]
    tail.close()
    agent.execute("UPDATE total SET tokens = 7, updated = '10:05' WHERE id = 'b'")
    again, _ = tail_of(path, lambda _: plan, cursor=tail.cursor())
    assert read_all(again) == ["b"]
    assert read_all(again) == []
    again.close()


# -------------------------------------------------------------------- what happens to databases


def test_all_rows_may_be_in_the_log(path, agent):
    """The main file has one page or none; a copy of both files is read alike, without the -shm file."""
    agent.execute("PRAGMA wal_autocheckpoint = 0")
    write(agent, "a")
    assert path.stat().st_size <= 4096
    copy = path.with_name("copy.db")
    shutil.copy(path, copy)
    shutil.copy(f"{path}-wal", f"{copy}-wal")
    for file in (path, copy):
        tail, heard = tail_of(file)
        assert read_all(tail) == ["a"]
        assert heard.said == []
        tail.close()


def test_an_empty_file_becomes_a_database(path):
    """Its agent has only just created it."""
    path.touch()
    tail, heard = tail_of(path)
    assert read_all(tail) == []
    connection = make(path)
    write(connection, "a")
    assert read_all(tail) == ["a"]
    assert heard.said == []
    tail.close()
    connection.close()


def test_a_locked_database_is_named_once_and_tried_at_every_look(path):
    connection = make(path, "DELETE")
    write(connection, "a")
    tail, heard = tail_of(path)
    connection.execute("BEGIN EXCLUSIVE")
    for _ in range(3):
        assert tail.changed()
        assert tail.read(PLENTY, 0).records == []
    assert heard.said == ["the database is locked"]
    connection.execute("COMMIT")
    assert read_all(tail) == ["a"]
    tail.close()
    connection.close()


def test_what_is_no_database_is_named_once_and_tried_when_it_changed(path):
    path.write_bytes(b"not a database" * 400)
    tail, heard = tail_of(path)
    assert tail.changed()
    assert tail.read(PLENTY, 0).records == []
    assert not tail.changed()
    path.write_bytes(b"still none" * 500)
    assert tail.changed()
    assert tail.read(PLENTY, 0).records == []
    assert heard.said == ["it is not a SQLite database"]
    path.unlink()
    connection = make(path)
    write(connection, "a")
    assert read_all(tail) == ["a"]
    tail.close()
    connection.close()


def test_a_damaged_page_costs_what_is_behind_it(path):
    """What was read before it is kept, the damage is named once, and a mended file is read on."""
    connection = make(path, "DELETE")
    for n in range(200):
        connection.execute("INSERT INTO note VALUES (?, ?)", (f"n{n:03}", "x" * 500))
    connection.close()
    good = path.read_bytes()
    page = good.rindex(b"n150")
    bad = bytearray(good)
    start = page - page % 4096
    bad[start : start + 4096] = b"\xee" * 4096
    path.write_bytes(bad)
    tail, heard = tail_of(path)
    first = keys(tail.read(PLENTY, 0))
    assert 0 < len(first) < 200
    assert heard.said == ["the database is damaged"]
    assert not tail.changed()
    cursor = tail.cursor()
    tail.close()
    path.write_bytes(good)
    again, _ = tail_of(path, cursor=cursor)
    assert first + read_all(again) == [f"n{n:03}" for n in range(200)]
    again.close()


def test_a_deleted_database_is_gone_and_another_one_is_read_from_its_beginning(path, agent):
    write(agent, "a", "b")
    tail, heard = tail_of(path)
    read_all(tail)
    agent.close()
    for file in path.parent.iterdir():
        file.unlink()
    assert not tail.changed()
    assert not tail.changed()
    assert tail.gone
    other = make(path)
    write(other, "c")
    batch = tail.read(PLENTY, 0)
    assert keys(batch) == ["c"]
    assert batch.restarted
    assert heard.said == ["gone", "restarted"]
    tail.close()
    other.close()


def test_a_copy_put_in_its_place_is_the_same_database(path, agent):
    """Restored from a backup or vacuumed into a new file: only what is new is read."""
    write(agent, "a", "b")
    tail, heard = tail_of(path)
    read_all(tail)
    agent.execute("VACUUM INTO ?", (str(path.with_name("copy")),))
    agent.close()
    path.with_name("copy").replace(path)
    for log in ("-wal", "-shm"):
        path.with_name(path.name + log).unlink(missing_ok=True)
    other = sqlite3.connect(path, isolation_level=None)
    write(other, "c")
    assert read_all(tail) == ["c"]
    assert heard.said == []
    tail.close()
    other.close()


def test_rowids_given_anew_hide_nothing(path, agent):
    """The newest rows are deleted and others get their rowids: a few of those before them come again."""
    write(agent, *"abcdefgh")
    tail, heard = tail_of(path)
    read_all(tail)
    agent.execute("DELETE FROM note WHERE id >= 'f'")
    write(agent, *"xyz")
    assert read_all(tail) == ["e", "x", "y", "z"]
    assert heard.said == []
    agent.execute("DELETE FROM note")
    write(agent, "k")
    assert read_all(tail) == ["k"]
    assert heard.said == ["restarted"]
    tail.close()


def test_a_vacuum_that_numbers_rows_anew_hides_nothing_and_repeats_nothing(path, agent):
    write(agent, *"abcdef")
    tail, _ = tail_of(path)
    read_all(tail)
    agent.execute("DELETE FROM note WHERE id IN ('a', 'c')")
    agent.execute("VACUUM")
    write(agent, "g")
    assert read_all(tail) == ["g"]
    tail.close()


def test_a_cursor_stays_small_and_still_finds_its_place(path, agent):
    """Read one by one, then the newest thirty deleted: it goes on near there, not at the beginning."""
    names = [f"n{n:04}" for n in range(300)]
    tail, _ = tail_of(path)
    for name in names:
        write(agent, name)
        read_all(tail)
    assert len(tail.cursor()) < 500
    agent.execute("DELETE FROM note WHERE id >= 'n0270'")
    write(agent, "new")
    found = read_all(tail)
    assert found[-1] == "new"
    assert len(found) < 100
    tail.close()


def test_tables_and_columns_may_come_and_go(path):
    """The plan is made anew when the schema changed."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("CREATE TABLE other (id)")
    tail, heard = tail_of(path)
    assert read_all(tail) == []
    connection.execute("CREATE TABLE note (id TEXT PRIMARY KEY, text TEXT)")
    write(connection, "a")
    assert read_all(tail) == ["a"]
    connection.execute("ALTER TABLE note ADD COLUMN colour TEXT")
    connection.execute("INSERT INTO note VALUES ('b', 'text', 'red')")
    assert tail.read(PLENTY, 0).records[0].body.values == ("text", "red")
    connection.execute("DROP TABLE note")
    assert read_all(tail) == []
    assert heard.said == []
    tail.close()
    connection.close()


def test_a_plan_that_does_not_fit_is_named_once(path, agent):
    """A table that is not what its name promises (a newer schema) costs this database alone."""
    write(agent, "a")
    plan = (Query(kind="note", table="note", key="id", columns=("nothing_like_this",)),)
    tail, heard = tail_of(path, lambda _: plan)
    assert tail.read(PLENTY, 0).records == []
    assert not tail.changed()
    write(agent, "b")
    assert tail.changed()
    assert tail.read(PLENTY, 0).records == []
    assert heard.said == ["its tables are not as expected"]
    tail.close()


def test_the_database_is_never_written_to(path, agent):
    """Not even by a plan."""
    plan = (Query(kind="note", table="note", key="id", columns=("1",), where="1"),)
    tail, _ = tail_of(path, lambda _: plan)
    read_all(tail)
    connection = tail._database.open(tail._at.seen[:2])
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        connection.execute("DELETE FROM note")
    tail.close()

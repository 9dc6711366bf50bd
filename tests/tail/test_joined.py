"""A file and those beside it as one source."""

from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from spantail.formats.row import AT_REST, Beside, Files, Format, Gives, Root
from spantail.tail import identity
from spantail.tail.joined import JoinedTail
from spantail.tail.source import Source

NOTES = Beside("notes", "notes", "text")
LOG = Beside("log", "log.jsonl", "lines", line=dict)
FILES = Files("main", 0, "main", "text", dict, dict)
FORMAT = Format("diary", "Diary", (Root("", beside=(NOTES, LOG)),), (FILES,), Gives("", "", "", "", "", ""))
PLENTY = 1 << 20


class Heard(list):
    """Every notice, by name."""

    def __getattr__(self, name):
        return lambda *_: self.append(name)


@pytest.fixture
def folder(tmp_path):
    return tmp_path


def tail_of(folder, cursor=None):
    def look(source):
        return [(one, str(folder / one.glob)) for one in (NOTES, LOG) if (folder / one.glob).exists()]

    source = Source(str(folder / "main"), FORMAT, FILES, str(folder), "")
    heard = Heard()
    return JoinedTail(source, cursor, heard, SimpleNamespace(record_bytes=PLENTY), look), heard


def add(folder, name, text):
    with Path(folder, name).open("a", newline="") as file:
        file.write(text)


def read(tail, budget=PLENTY):
    batch = tail.read(budget, 7)
    return [(record.kind, record.body) for record in batch.records], batch


def test_the_others_come_first_and_rest_comes_last(folder):
    """So that the reader knows all that was written, and that it knows it."""
    add(folder, "main", "a\r\nb\n")
    add(folder, "log.jsonl", '{"x":1}\n')
    add(folder, "notes", "n\n")
    tail, _ = tail_of(folder)
    assert tail.changed()
    records, batch = read(tail)
    assert records == [("notes", "n"), ("log", {"x": 1}), ("main", "a"), ("main", "b"), (AT_REST, None)]
    assert {record.arrival for record in batch.records} == {7}
    assert not tail.changed()
    assert read(tail)[0] == []


def test_rest_waits_for_the_end(folder):
    """What does not fit into one read is not all; the others are read whole before."""
    add(folder, "main", "a\nb\n")
    add(folder, "notes", "n\n" * 5)
    tail, _ = tail_of(folder)
    first, batch = read(tail, budget=2)
    assert first == [("notes", "n")] * 5 + [("main", "a")]
    assert batch.more
    assert read(tail, budget=PLENTY)[0] == [("main", "b"), (AT_REST, None)]


def test_a_change_of_any_of_them_is_a_change(folder):
    """And one that comes later is found when there is something to read."""
    add(folder, "main", "a\n")
    tail, _ = tail_of(folder)
    read(tail)
    add(folder, "notes", "n\n")
    add(folder, "main", "b\n")
    assert tail.changed()
    assert read(tail)[0] == [("notes", "n"), ("main", "b"), (AT_REST, None)]
    add(folder, "notes", "m\n")
    assert tail.changed()
    assert read(tail)[0] == [("notes", "m"), (AT_REST, None)]


def test_all_go_on_from_one_cursor(folder):
    """Which is also that of the main file, by which a renamed one is known."""
    add(folder, "main", "a\n")
    add(folder, "log.jsonl", '{"x":1}\n')
    tail, _ = tail_of(folder)
    read(tail)
    cursor = tail.cursor()
    assert identity.decode(cursor).offset == 2
    again, _ = tail_of(folder, cursor)
    assert not again.changed()
    add(folder, "log.jsonl", '{"x":2}\n')
    assert again.changed()
    assert read(again)[0] == [("log", {"x": 2}), (AT_REST, None)]
    (folder / "log.jsonl").rename(folder / "gone")
    add(folder, "main", "b\n")
    assert read(again)[0] == [("main", "b"), (AT_REST, None)]
    (folder / "gone").rename(folder / "log.jsonl")
    assert read(tail_of(folder, again.cursor())[0])[0] == []


def test_a_main_file_that_begins_anew_takes_the_others_with_it(folder):
    """The reader's memory of them is gone too. One of the others that does is read on by itself."""
    add(folder, "main", "a\n")
    add(folder, "notes", "n\n")
    tail, _ = tail_of(folder)
    read(tail)
    (folder / "notes").write_text("o\n")
    add(folder, "main", "b\n")
    records, batch = read(tail)
    assert (records, batch.restarted) == ([("notes", "o"), ("main", "b"), (AT_REST, None)], False)
    (folder / "main").write_text("c\n")
    records, batch = read(tail)
    assert (records, batch.restarted) == ([("notes", "o"), ("main", "c"), (AT_REST, None)], True)


def test_a_cursor_of_another_shape_is_none(folder):
    """Then everything is read from its beginning."""
    add(folder, "main", "a\n")
    tail, _ = tail_of(folder, msgspec.msgpack.encode("?"))
    assert read(tail)[0] == [("main", "a"), (AT_REST, None)]


def test_a_main_file_that_is_gone(folder):
    """Is said once; it gives nothing."""
    add(folder, "main", "a\n")
    tail, heard = tail_of(folder)
    read(tail)
    (folder / "main").unlink()
    assert not tail.changed()
    assert not tail.changed()
    assert tail.gone
    assert heard == ["gone"]

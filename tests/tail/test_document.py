"""A document rewritten in place becomes records: each entry once, whatever a rewrite is caught at."""

import json
import os
import tracemalloc
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw, Struct

from spantail.formats.row import Files, Format, Gives, Root
from spantail.model import SECOND
from spantail.tail import identity
from spantail.tail.document import PATIENCE, TICK, WINDOW, DocumentTail
from spantail.tail.mend import mend
from spantail.tail.source import Source


class Limits(Struct):
    record_bytes: int = 1 << 26
    document_bytes: int = 1 << 28


class Messages(Struct):
    messages: list[Raw] = []


def entries(document: bytes) -> Any:
    return [("", raw) for raw in msgspec.json.decode(document, type=Messages).messages]


class Heard:
    """Notices that remember what they were told."""

    def __init__(self):
        self.bad: list[tuple[int, str]] = []
        self.said: list[str] = []

    def bad_record(self, agent, path, offset, reason):
        assert agent == "robot"
        self.bad.append((offset, reason))

    def unreadable(self, agent, path, reason):
        self.said.append(f"unreadable: {reason}")

    def gone(self, agent, path):
        self.said.append("gone")

    def restarted(self, agent, path):
        self.said.append("restarted")


class Desk:
    """A document, the tail that follows it, and a clock that both are told by."""

    def __init__(self, folder, cut=entries, limits=None):
        self.path = folder / "document.json"
        files = Files("main", 0, "*", "document", dict, dict, entries=cut)  # type: ignore[arg-type]
        row = Format("robot", "Robot", (Root("."),), (files,), Gives("", "", "", "", "", ""))
        self.source = Source(str(self.path), row, files, str(folder), "")
        self.limits = limits or Limits()
        self.heard = Heard()
        self.now = 2_000 * SECOND
        self.tail = self.open(None)

    def open(self, cursor):
        return DocumentTail(self.source, cursor, self.heard, self.limits, clock=lambda: self.now)

    def restart(self):
        self.tail = self.open(self.tail.cursor())

    def put(self, data: bytes, mtime=None):
        """Written in place, like the agents do; a tick has passed since."""
        with self.path.open("r+b" if self.path.exists() else "wb") as file:
            file.write(data)
            file.truncate()
        if mtime is None:
            self.now += SECOND
            mtime = self.now - 2 * TICK
        os.utime(self.path, ns=(mtime, mtime))

    def write(self, *messages: Any, mtime=None):
        self.put(json.dumps({"messages": messages}, indent=2).encode(), mtime)

    def read(self, **how):
        """What is new, if the tail says that there may be something."""
        if not self.tail.changed():
            return None
        return self.tail.read(1, 7, **how)

    def news(self):
        batch = self.read()
        return None if batch is None else [msgspec.json.decode(r.body) for r in batch.records]


@pytest.fixture
def desk(tmp_path):
    return Desk(tmp_path)


def test_every_entry_is_given_once_as_the_document_grows(desk):
    """The first read gives all, a rewrite with one more gives that one, at its ordinal."""
    desk.write("a", "b")
    batch = desk.read()
    assert [(r.kind, r.path, r.position, r.arrival) for r in batch.records] == [
        ("main", str(desk.path), 0, 7),
        ("main", str(desk.path), 1, 7),
    ]
    assert batch.bytes == desk.path.stat().st_size
    desk.write("a", "b", "c")
    batch = desk.read()
    assert [(r.position, bytes(r.body)) for r in batch.records] == [(2, b'"c"')]
    assert not batch.restarted
    assert not batch.more
    assert desk.read() is None


def test_a_restart_reads_nothing_when_nothing_changed(desk):
    """The cursor says by a stat alone that there is nothing to do."""
    desk.write("a", "b")
    desk.read()
    desk.restart()
    assert not desk.tail.changed()
    desk.write("a", "b", "c")
    assert desk.news() == ["c"]


def test_an_entry_that_changed_is_given_again(desk):
    """Also far from the end, and when its length stays the same."""
    desk.write(*range(1000, 1100))
    desk.read()
    desk.write(1000, 9999, *range(1002, 1100))
    assert desk.news() == [9999]


def test_a_rollback_gives_nothing_and_what_follows_it_is_new(desk):
    """Messages taken back are no news; those written in their place are."""
    desk.write("a", "b", "c", "d")
    desk.read()
    desk.write("a", "b")
    assert desk.news() == []
    desk.write("a", "b", "e")
    assert desk.news() == ["e"]
    assert desk.heard.said == []


def test_entries_are_known_wherever_they_stand(desk):
    """A history cut at its beginning, or with something put in between, repeats nothing."""
    desk.write("a", "b", "c", "d")
    desk.read()
    desk.write("c", "summary", "d", "e")
    assert desk.news() == ["summary", "e"]


def test_equal_entries_are_counted(desk):
    """Two messages of the same words are two entries."""
    desk.write("go", "go")
    assert desk.news() == ["go", "go"]
    desk.write("x", "go", "go", "go")
    assert desk.news() == ["x", "go"]


def test_another_document_in_its_place_is_a_restart(desk):
    """Nothing survived: the reader must forget what it knew."""
    desk.write("a", "b")
    desk.read()
    desk.write("x", "y", "z")
    batch = desk.read()
    assert batch.restarted
    assert len(batch.records) == 3
    assert desk.heard.said == ["restarted"]


def test_the_cursor_stays_small(desk):
    """However long the document is; and the entries behind its window stay old."""
    desk.write(*range(10_000))
    assert len(desk.news()) == 10_000
    assert len(desk.tail.cursor()) < 8 * WINDOW + 64
    desk.restart()
    desk.write(*range(10_001))
    assert desk.news() == [10_000]
    desk.write(*range(500, 10_000), "new", 10_000, "last")
    assert desk.news() == ["new", "last"]


def test_a_cursor_of_something_else_means_nothing_was_taken(desk):
    """Rows of another version, or of a file of lines under this name."""
    desk.write("a")
    for cursor in (b"", b"\xc1", identity.encode(identity.Cursor(1, 2, 3, b"", b""))):
        desk.tail = desk.open(cursor)
        assert desk.news() == ["a"]
    assert identity.decode(desk.tail.cursor()) is None


def test_a_torn_document_is_waited_for(desk):
    """Caught in the middle of a rewrite: nothing is said, nothing forgotten, and the whole is taken later."""
    desk.write("a", "b")
    desk.read()
    whole = json.dumps({"messages": ["a", "b", "c"]}).encode()
    for cut in (0, 1, len(whole) // 2, len(whole) - 1):
        desk.put(whole[:cut])
        assert desk.news() == []
    desk.restart()
    desk.put(whole)
    assert desk.news() == ["c"]
    assert desk.heard.bad == []


@settings(max_examples=30, deadline=None)
@given(cuts=st.lists(st.integers(0, 60), max_size=6))
def test_no_cut_is_taken_for_a_document(tmp_path_factory, cuts):
    """Wherever the writer is interrupted, no part of an entry is ever given."""
    desk = Desk(tmp_path_factory.mktemp("torn"))
    whole = json.dumps({"messages": ["aaaa", {"b": [1, 2]}, "cccc"]}, indent=1).encode()
    for cut in cuts:
        desk.put(whole[: min(cut, len(whole) - 1)])
        assert desk.news() in ([], None)
    desk.put(whole)
    assert desk.news() == ["aaaa", {"b": [1, 2]}, "cccc"]


def test_a_torn_document_of_the_same_size_and_time_is_tried_again_after_a_tick(desk):
    """A writer that sets the size first and fills it within one tick shows no second change."""
    desk.write("a")
    desk.read()
    whole = json.dumps({"messages": ["a", "b"]}).encode()
    mtime = desk.now
    desk.put(b"\0" * len(whole), mtime)
    assert desk.news() == []
    desk.put(whole, mtime)
    assert desk.news() is None
    desk.now += TICK
    assert desk.news() == ["b"]


def test_a_document_that_stays_broken_is_said_once(desk):
    """At the second read of the same bytes, when it has been at rest; and again only when it changes."""
    desk.put(b'{"messages": [1, 2', mtime=desk.now)
    assert desk.news() == []
    assert desk.news() is None
    desk.now += TICK
    assert desk.news() == []
    assert desk.heard.bad == []
    desk.now += PATIENCE
    batch = desk.read()
    assert (batch.records, batch.bad) == ([], 1)
    assert desk.heard.bad == [(0, "json")]
    assert desk.news() is None
    desk.write(1, 2)
    assert desk.news() == [1, 2]


def test_a_document_of_another_shape_is_said_to_be_that(desk):
    """JSON, but not what this agent writes; at a last look it is said at once."""
    desk.put(b'{"messages": "none"}')
    batch = desk.read(final=True)
    assert batch.bad == 1
    assert desk.heard.bad == [(0, "type")]


def test_an_empty_file_is_not_written_yet(desk):
    """Truncated and not filled, for however long: nothing to say."""
    desk.put(b"")
    assert desk.news() == []
    desk.now += 100 * SECOND
    assert desk.news() is None
    assert desk.read(final=True) is None
    assert desk.heard.bad == []
    desk.write("a")
    assert desk.news() == ["a"]


def test_a_rewrite_within_the_same_tick_is_seen(desk):
    """Same size, same mtime: a document read while young is looked at again, once."""
    desk.write("a", mtime=desk.now)
    assert desk.news() == ["a"]
    desk.write("b", mtime=desk.now)
    assert desk.news() is None
    desk.restart()
    desk.now += TICK
    assert desk.news() == ["b"]
    assert desk.news() is None
    assert not desk.tail.changed()


def test_a_clock_behind_the_file_system_does_not_make_it_read_for_ever(desk):
    """An mtime in the future is no reason to look again and again."""
    desk.write("a", mtime=desk.now + 500 * SECOND)
    assert desk.news() == ["a"]
    assert desk.news() is None
    desk.put(b"{", mtime=desk.now + 600 * SECOND)
    assert [desk.news(), desk.news(), desk.news()] == [[], [], None]
    assert desk.heard.bad == [(0, "json")]


def test_a_document_without_entries_is_one_record(tmp_path):
    """Small companions: the whole of it, again when it changes, and no restart."""
    desk = Desk(tmp_path, cut=None)
    desk.put(b'{"a": 1}\n')
    batch = desk.read()
    assert [(r.position, bytes(r.body)) for r in batch.records] == [(0, b'{"a": 1}')]
    desk.put(b'{"a": 2}\n')
    batch = desk.read()
    assert [bytes(r.body) for r in batch.records] == [b'{"a": 2}']
    assert not batch.restarted
    desk.put(b'{"a": ')
    assert desk.news() == []
    desk.put(b'{"a": 2}  \n')
    assert desk.news() == []


def test_what_a_record_keeps_is_not_the_whole_document(desk):
    """One new message, kept, does not hold the megabytes around it."""
    desk.write("x" * 4_000_000)
    desk.read()
    desk.write("x" * 4_000_000, "small")
    tracemalloc.start()
    try:
        kept = desk.read().records
        held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert bytes(kept[0].body) == b'"small"'
    assert held < 100_000


def test_oversized_documents_and_entries_are_skipped_with_a_notice(tmp_path):
    """The first without reading it, and said once while it stays so; of the second only the entry is lost."""
    desk = Desk(tmp_path, limits=Limits(100, 500))
    desk.write("a", "b" * 200, "c")
    assert desk.news() == ["a", "c"]
    assert desk.heard.bad == [(1, "oversized")]
    for size in (600, 700):
        desk.write("d" * size)
        batch = desk.read()
        assert (batch.records, batch.bytes) == ([], 0)
        assert desk.news() is None
    assert desk.heard.bad == [(1, "oversized"), (0, "oversized")]
    desk.write("a", "b" * 200, "c", "e")
    assert desk.news() == ["e"]


def test_a_file_that_is_gone_or_unreadable_is_said_once(desk):
    """The tail never raises, and goes on where it was when the file is back."""
    desk.write("a")
    desk.read()
    whole = desk.path.read_bytes()
    desk.path.unlink()
    assert desk.news() is None
    assert desk.news() is None
    assert desk.tail.gone
    desk.path.mkdir()
    assert desk.news() == []
    assert desk.news() == []
    desk.path.rmdir()
    desk.put(whole)
    assert desk.news() == []
    assert not desk.tail.gone
    assert desk.heard.said[0] == "gone"
    assert [said.split(":")[0] for said in desk.heard.said] == ["gone", "unreadable"]


def test_what_agents_write_and_parsers_refuse_is_read(desk):
    """A lone surrogate, NaN, a byte order mark, broken UTF-8: the other entries are known again all the same."""
    desk.put(b'{"messages": ["a", "b"]}')
    desk.read()
    desk.put(b'\xef\xbb\xbf{"messages": ["a", "b", "cut \\ud83d", [NaN, -Infinity, "NaN"], "\xff"]}')
    batch = desk.read()
    assert [bytes(r.body) for r in batch.records] == [
        b'"cut \\ufffd"',
        b'[null, null, "NaN"]',
        '"\ufffd"'.encode(),
    ]
    desk.put(b'{"messages": ["a", "b", "cut \\ud83d", 1]}')
    assert desk.news() == [1]
    assert desk.heard.bad == []


@pytest.mark.parametrize(
    ("text", "mended"),
    [
        (rb'["\ud83d\ude00"]', None),
        (rb'["\\ud83d"]', None),
        (rb'["\ud83d\ud83d\ude00"]', rb'["\ufffd\ud83d\ude00"]'),
        (rb'["\ude00\ud83d"]', rb'["\ufffd\ufffd"]'),
        (rb'["\\\ud83d x"]', rb'["\\\ufffd x"]'),
        (rb'["\uD83D\n"]', rb'["\ufffd\n"]'),
        (rb'["a \" NaN", NaN]', rb'["a \" NaN", null]'),
        (rb'["\ud83d"', None),
    ],
)
def test_only_the_offending_bytes_are_mended(text, mended):
    """Pairs, escaped backslashes and words inside texts stay; a torn document is not mended."""
    assert mend(text) == mended
    if mended is not None:
        json.loads(mended)


def test_nesting_without_end_is_a_bad_document(desk):
    """It costs the document and nothing else."""
    desk.put(b'{"messages": ' + b"[" * 100_000 + b"]" * 100_000 + b"}")
    assert desk.read(final=True).bad == 1
    assert len(desk.heard.bad) == 1

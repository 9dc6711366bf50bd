"""Lines become records: whole, once, each with its offset, whatever the file holds."""

import gzip
import os
import tracemalloc
from io import BufferedReader
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import Raw, Struct

from spantail.formats.row import Files, Format, Gives, Root
from spantail.model import Record
from spantail.tail import identity
from spantail.tail.json_lines import LineDecoder
from spantail.tail.lines import LineTail
from spantail.tail.source import Source

MIB = 1 << 20


class Line(Struct, gc=False):
    type: str = ""
    n: int = 0
    content: Raw = Raw()


class Limits(Struct):
    record_bytes: int = 64 * MIB


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

    def readable(self, path):
        self.said.append("readable")

    def gone(self, agent, path):
        self.said.append("gone")

    def restarted(self, agent, path):
        self.said.append("restarted")


def source_of(path, storage="lines", line: Any = Line):
    files = Files("main", 0, "*", storage, dict, dict, line)  # type: ignore[arg-type]
    row = Format("robot", "Robot", (Root("."),), (files,), Gives("", "", "", "", "", ""))
    return Source(str(path), row, files, str(path.parent), "")


class Follower:
    """A file, its tail and the notices."""

    def __init__(self, path, record_bytes=64 * MIB, storage="lines"):
        self.path, self.heard = path, Heard()
        self.source = source_of(path, storage)
        self.limits = Limits(record_bytes)
        self.tail = LineTail(self.source, None, self.heard, self.limits)

    def append(self, data: bytes):
        with self.path.open("ab") as out:
            out.write(data)

    def all(self, budget=MIB, final=False) -> list[Record]:
        records = []
        while True:
            batch = self.tail.read(budget, 7, final=final)
            records += batch.records
            if not batch.more:
                return records

    def ns(self, **options) -> list[int]:
        return [record.body.n for record in self.all(**options)]

    def restart(self):
        self.tail = LineTail(self.source, self.tail.cursor(), self.heard, self.limits)


@pytest.fixture
def follower(tmp_path):
    return Follower(tmp_path / "a.jsonl")


def test_records_have_kind_path_offset_and_arrival(follower):
    """What the joint promises."""
    follower.append(b'{"n":1}\n{"n":2}\n')
    assert [(r.kind, r.path, r.position, r.arrival, r.body.n) for r in follower.all()] == [
        ("main", str(follower.path), 0, 7, 1),
        ("main", str(follower.path), 8, 7, 2),
    ]


def test_reading_goes_on_where_it_stopped(follower):
    """Appends, and a restart of the program between them."""
    follower.append(b'{"n":1}\n')
    assert follower.ns() == [1]
    follower.append(b'{"n":2}\n')
    follower.restart()
    assert follower.ns() == [2]
    assert follower.ns() == []


def test_a_line_without_newline_is_not_there_yet(follower):
    """It is neither taken nor counted as bad, and comes when it is whole."""
    follower.append(b'{"n":1}\n{"n"')
    assert follower.ns() == [1]
    assert follower.ns() == []
    follower.append(b":2")
    assert follower.ns() == []
    follower.append(b"}\n")
    assert [r.position for r in follower.all()] == [8]
    assert follower.heard.bad == []


def test_a_long_line_in_pieces_is_not_read_anew_with_each(follower):
    """The bytes searched for a newline are not read again until it is there."""
    follower.append(b'{"n":3,"type":"' + b"x" * 100_000)
    assert follower.tail.read(MIB, 0).bytes >= 100_000
    follower.append(b"x" * 10)
    assert follower.tail.read(MIB, 0).bytes == 10
    follower.append(b'"}\n{"n":4}\n')
    assert follower.ns() == [3, 4]


def test_an_unfinished_line_may_be_taken_back(follower):
    """The torn end is cut off and other lines are written in its place."""
    follower.append(b'{"n":1}\n{"n":2,"type":"')
    assert follower.ns() == [1]
    os.truncate(follower.path, 8)
    follower.append(b'{"n":3}\n')
    assert follower.ns() == [3]


def test_final_takes_an_unfinished_line_that_is_whole(follower):
    """A file at rest; the newline that comes later is only an empty line."""
    follower.append(b'{"n":1}\n{"n":2}')
    assert follower.ns(final=True) == [1, 2]
    follower.restart()
    follower.append(b'\n{"n":3}\n')
    assert follower.ns() == [3]
    assert follower.heard.bad == []


def test_final_leaves_an_unfinished_line_that_is_torn(follower):
    """It may still be finished, so it is not bad."""
    follower.append(b'{"n":1}\n{"n":2')
    assert follower.ns(final=True) == [1]
    follower.append(b"}\n")
    assert follower.ns() == [2]
    assert follower.heard.bad == []


def test_empty_lines_and_crlf(follower):
    """Blank lines are nothing; a carriage return is blank."""
    follower.append(b'\n\r\n{"n":1}\r\n  \n{"n":2}\n\n')
    assert follower.ns() == [1, 2]
    assert follower.heard.bad == []


def test_a_byte_order_mark_is_skipped(follower):
    """Some editors put one at the beginning."""
    follower.append(b'\xef\xbb\xbf{"n":1}\n{"n":2}\n')
    assert follower.ns() == [1, 2]
    assert follower.heard.bad == []


@pytest.mark.parametrize(
    ("line", "n"),
    [
        (rb'{"n":1,"type":"\ud83d"}', 1),
        (rb'{"n":1,"other":"cut \ud83d here"}', 1),
        (b'{"n":1,"other":NaN}', 1),
        (b'{"n":1,"other":-Infinity,"content":[1e999]}', 1),
        (b'{"n":1,"type":"\xff\xfe"}', 1),
        (b'{"n":"1"}', 1),
        (b'{"n":1,"other":"a\x07b"}', 1),
    ],
)
def test_what_the_quick_decoder_refuses_is_rescued(follower, line, n):
    """Lone surrogates, NaN, bytes that are no UTF-8, numbers in strings, control characters."""
    follower.append(line + b'\n{"n":2}\n')
    assert follower.ns() == [n, 2]
    assert follower.heard.bad == []


def test_a_rescued_record_keeps_its_content(follower):
    """A Raw field is filled too, and can be decoded."""
    follower.append(rb'{"n":1,"content":{"text":"x\ud83dy"}}' + b"\n")
    assert bytes(follower.all()[0].body.content) == b'{"text": "x?y"}'


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"hello", "json"),
        (b'{"n":1', "json"),
        (b"[1,2]", "type"),
        (b"3", "type"),
        (b'"text"', "type"),
        (b"null", "type"),
        (b'{"n":1,"other":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "depth"),
        (b'{"n":' + b"9" * 5_000 + b"}", "json"),
        (b"\0\0\0\0", "json"),
    ],
)
def test_a_bad_line_is_counted_and_skipped(follower, line, reason):
    """With its offset and one word, and reading goes on behind it."""
    follower.append(b'{"n":1}\n' + line + b'\n{"n":2}\n')
    batch = follower.tail.read(MIB, 0)
    assert [r.body.n for r in batch.records] == [1, 2]
    assert batch.bad == 1
    assert follower.heard.bad == [(8, reason)]


def test_a_record_that_is_odd_in_a_part_is_said(follower):
    """It is read without the part, also at the end of a file at rest; a person can look at what was left out."""
    follower.append(b'{"n":1}\n{"n":[],"type":"x"}\n{"n":2,"type":{}}')
    batch = follower.tail.read(MIB, 0, final=True)
    assert [(r.body.n, r.body.type) for r in batch.records] == [(1, ""), (0, "x"), (2, "")]
    assert (batch.bad, batch.partial) == (2, 2)
    assert follower.heard.bad == [(8, "part"), (28, "part")]


def test_a_part_of_another_kind_costs_that_part_alone(follower):
    """However deep it is: the rest of the record counts, and so do the records around it. Too many are a bad line."""

    class Part(Struct):
        name: str
        size: int = 0

    class Parts(Struct):
        n: int = 0
        part: Part | None = None
        parts: list[Part] | None = None

    decoder = LineDecoder(Parts)
    for line, body in [
        (b'{"n":{},"part":{"name":"a"}}', Parts(part=Part("a"))),
        (b'{"n":1,"part":{"name":"a","size":[]}}', Parts(1, Part("a"))),
        (b'{"n":1,"part":{"name":7,"size":1}}', Parts(1)),
        (b'{"n":1,"part":"x","parts":{}}', Parts(1)),
        (
            b'{"n":1,"parts":["x",{"name":"a"},null,"y",{"name":[]},{"name":"b"}]}',
            Parts(1, None, [Part("a"), Part("b")]),
        ),
    ]:
        assert decoder.rescue(line) == ([(0, body)], "part")
    assert decoder.rescue(b'{"parts":[' + b'{"size":[]},' * 20 + b"null]}") == ([], "type")


def test_two_records_on_one_line(follower):
    """A newline was lost: both are records, each where it begins."""
    follower.append('{"n":1,"type":"ü"} {"n":2}{"n":3}\n'.encode())
    assert [(r.position, r.body.n) for r in follower.all()] == [(0, 1), (20, 2), (27, 3)]
    assert follower.heard.bad == []


@pytest.mark.parametrize(
    "torn", [b'{"n":1,"type":"ab', b'{"n":1,', b'{"n":1,"ty', b'{"n":12', b'{"type":"a\\']
)
def test_a_record_after_a_torn_one_is_found(follower, torn):
    """The agent was killed in the middle of a line and went on in the same one after its restart."""
    follower.append(torn + b'{"n":2}\n{"n":3}\n')
    assert [(r.position, r.body.n) for r in follower.all()] == [(len(torn), 2), (len(torn) + 8, 3)]
    assert follower.heard.bad == [(0, "json")]


def test_a_run_of_zero_bytes_is_survived(follower):
    """A crash of the machine leaves holes; the record behind one is still a record."""
    follower.append(b'{"n":1}\n' + bytes(5000) + b'{"n":2}\n{"n":3}\n')
    assert [(r.position, r.body.n) for r in follower.all()] == [(0, 1), (5008, 2), (5016, 3)]


@pytest.mark.parametrize("cut", [0, 5, 50_000])
def test_a_line_too_long_is_skipped(tmp_path, cut):
    """Also when it comes in pieces, and across a restart in the middle of it."""
    follower = Follower(tmp_path / "a.jsonl", record_bytes=1000)
    long = b'{"n":9,"type":"' + b"x" * 100_000 + b'"}\n'
    follower.append(b'{"n":1}\n' + long[: cut or len(long)])
    assert follower.ns() == [1]
    follower.restart()
    follower.append((long[cut:] if cut else b"") + b'{"n":2}\n')
    assert follower.ns() == [2]
    assert follower.heard.bad == [(8, "oversized")]


def test_a_line_that_grows_too_long_is_given_up_before_its_end(tmp_path):
    """It may never have one."""
    follower = Follower(tmp_path / "a.jsonl", record_bytes=1000)
    for _ in range(4):
        follower.append(b"x" * 400)
        assert follower.all() == []
    assert follower.heard.bad == [(0, "oversized")]
    follower.append(b'\n{"n":2}\n')
    assert follower.ns() == [2]


@pytest.mark.parametrize(("length", "taken"), [(999, True), (1000, True), (1001, False)])
@pytest.mark.parametrize("newline", [b"\n", b""])
def test_the_limit_is_exact(tmp_path, length, taken, newline):
    """The longest line allowed has `record_bytes` bytes without its newline."""
    follower = Follower(tmp_path / "a.jsonl", record_bytes=1000)
    follower.append(b'{"n":1,"type":"' + b"x" * (length - 17) + b'"}' + newline)
    assert follower.ns(final=True) == ([1] if taken else [])
    assert bool(follower.heard.bad) != taken


def test_a_line_longer_than_a_piece_is_one_record(follower):
    """Reading in pieces does not show."""
    follower.append(b'{"n":1,"type":"' + b"x" * (5 * MIB) + b'"}\n{"n":2}\n')
    records = follower.all()
    assert [(r.body.n, len(r.body.type)) for r in records] == [(1, 5 * MIB), (2, 0)]


def test_a_huge_line_is_never_held_in_memory(tmp_path):
    """100 MB in one line, with a limit of 4 MiB."""
    follower = Follower(tmp_path / "a.jsonl", record_bytes=4 * MIB)
    follower.append(b'{"n":1}\n')
    with follower.path.open("ab") as out:
        for _ in range(100):
            out.write(b"x" * 1_000_000)
        out.write(b'\n{"n":2}\n')
    tracemalloc.start()
    try:
        numbers = follower.ns(budget=200 * MIB)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert numbers == [1, 2]
    assert peak < 16 * MIB
    assert follower.heard.bad == [(8, "oversized")]


def test_the_budget_ends_a_batch(follower):
    """About that many bytes, always at least a record, and `more` says that there are more."""
    follower.append(b'{"n":1}\n' * 10)
    batch = follower.tail.read(20, 0)
    assert (len(batch.records), batch.more, batch.bytes) == (3, True, 24)
    assert follower.tail.changed()
    batch = follower.tail.read(56, 0)
    assert (len(batch.records), batch.more) == (7, False)
    assert not follower.tail.changed()


def test_a_truncated_file_begins_anew(follower):
    """Once, and the batch says so."""
    follower.append(b'{"n":1}\n{"n":2}\n')
    follower.all()
    follower.path.write_bytes(b'{"n":3}\n')
    batch = follower.tail.read(MIB, 0)
    assert ([r.body.n for r in batch.records], batch.restarted) == ([3], True)
    assert not follower.tail.read(MIB, 0).restarted
    assert follower.heard.said == ["restarted"]


def test_a_file_rewritten_longer_begins_anew(follower):
    """Its size alone would not tell."""
    follower.append(b'{"n":1}\n')
    follower.all()
    with follower.path.open("r+b") as out:
        out.write(b'{"n":4}\n{"n":5}\n')
    batch = follower.tail.read(MIB, 0)
    assert ([r.body.n for r in batch.records], batch.restarted) == ([4, 5], True)


def test_a_file_rewritten_under_an_unfinished_line_begins_anew(follower):
    """What was searched for a newline was another file's."""
    follower.append(b'{"n":1}\n{"n":2,"type":"')
    assert follower.ns() == [1]
    follower.path.write_bytes(b'{"n":3}\n{"n":4,"type":"longer than before')
    assert follower.ns() == [3]


def test_a_copy_in_the_place_of_the_file_goes_on(follower):
    """Another inode with the same bytes, after reads both shorter and longer than a sample."""
    for n in range(3):
        follower.append(b'{"n":%d}\n' % n * (1 + 50 * n))
        follower.all()
        copy = follower.path.with_name("copy")
        copy.write_bytes(follower.path.read_bytes())
        copy.replace(follower.path)
        follower.append(b'{"n":9}\n')
        batch = follower.tail.read(MIB, 0)
        assert ([r.body.n for r in batch.records], batch.restarted) == ([9], False)


def test_a_renamed_file_goes_on(follower):
    """A tail at the new path with the old cursor reads only what is new."""
    follower.append(b'{"n":1}\n')
    follower.all()
    moved = follower.path.with_name("moved.jsonl")
    follower.path.rename(moved)
    follower.path = moved
    follower.append(b'{"n":2}\n')
    tail = LineTail(source_of(moved), follower.tail.cursor(), follower.heard, Limits())
    batch = tail.read(MIB, 0)
    assert ([r.body.n for r in batch.records], batch.restarted) == ([2], False)


def test_changed_is_false_for_a_file_as_it_was(follower):
    """Also right after a restart, so that nothing is read for nothing."""
    follower.append(b'{"n":1}\n{"n"')
    assert follower.tail.changed()
    follower.all()
    assert not follower.tail.changed()
    follower.restart()
    assert not follower.tail.changed()
    follower.append(b":2}\n")
    assert follower.tail.changed()


def test_a_file_that_was_not_read_to_its_end_is_changed(follower):
    """Although it rests: who takes up the cursor after a kill looks at nothing else."""
    follower.append(b'{"n":1}\n{"n":2}\n')
    assert follower.tail.read(1, 7).more
    follower.tail.close()
    follower.restart()
    assert follower.tail.changed()
    assert follower.ns() == [2]
    follower.restart()
    assert not follower.tail.changed()


def test_a_vanished_file_is_said_once_and_may_come_back(follower):
    """Nothing is raised, the tail stays usable."""
    follower.append(b'{"n":1}\n')
    follower.all()
    follower.path.unlink()
    assert not follower.tail.changed()
    assert follower.all() == []
    assert follower.tail.gone
    assert follower.heard.said == ["gone"]
    follower.append(b'{"n":1}\n{"n":2}\n')
    assert follower.tail.changed()
    assert follower.ns() == [2]
    assert not follower.tail.gone


def test_an_unreadable_file_is_said_once_and_tried_again(tmp_path):
    """A folder where the file should be cannot be read, whoever runs the test."""
    follower = Follower(tmp_path / "a.jsonl")
    follower.path.mkdir()
    assert follower.all() == []
    assert follower.all() == []
    assert follower.tail.changed()
    assert len(follower.heard.said) == 1
    follower.path.rmdir()
    follower.append(b'{"n":1}\n')
    assert follower.tail.changed()
    assert follower.ns() == [1]
    assert follower.heard.said == ["unreadable: Invalid argument", "readable"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_permission_denied_is_tried_again(follower):
    """Without a change of size or time."""
    follower.append(b'{"n":1}\n')
    follower.path.chmod(0)
    assert follower.all() == []
    follower.path.chmod(0o600)
    assert follower.tail.changed()
    assert follower.ns() == [1]


def test_raw_content_does_not_change_when_more_is_read(follower):
    """Each line is a bytes object of its own: no buffer is used again under a Raw."""
    follower.append(b"".join(b'{"n":%d,"content":[%d]}\n' % (n, n) for n in range(1000)))
    records = follower.all(budget=2000)
    follower.append(b'{"n":0,"content":"overwrites"}\n' * 20_000)
    follower.all(budget=5000)
    assert [bytes(r.body.content) for r in records] == [b"[%d]" % n for n in range(1000)]


def descriptors():
    return len(list(Path("/proc/self/fd").iterdir()))


def test_no_descriptor_is_held_between_reads(follower):
    """Thousands of files are followed."""
    follower.append(b'{"n":1}\n')
    before = descriptors()
    follower.all()
    assert descriptors() == before


def test_text_lines(tmp_path):
    """Storage `text`: a body is the line, blank ones too."""
    follower = Follower(tmp_path / "history.md", storage="text")
    follower.append(b"#### prompt\r\n\n> answ\xffer\nunfinished")
    assert [r.body for r in follower.all()] == ["#### prompt", "", "> answ\ufffder"]
    assert [(r.body, r.position) for r in follower.all(final=True)] == [("unfinished", 24)]


def test_compressed_files_can_be_opened_through_the_hook(tmp_path):
    """Offsets are those of the plain bytes, and a restart goes on."""
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"n":1}\n{"n":2}\n{"n":3}\n'))

    def opened(name: str) -> BufferedReader:
        return BufferedReader(gzip.GzipFile(name))

    tail = LineTail(source_of(path), None, Heard(), Limits(), opened)
    batch = tail.read(8, 0)
    assert ([r.position for r in batch.records], batch.more) == ([0], True)
    tail = LineTail(source_of(path), tail.cursor(), Heard(), Limits(), opened)
    assert [r.position for r in tail.read(MIB, 0).records] == [8, 16]


def test_a_cursor_of_another_version_is_no_cursor(follower):
    """The file is read from its beginning; the ledger knows what was counted."""
    follower.append(b'{"n":1}\n')
    tail = LineTail(follower.source, b"\x93\x01\x02\x03", follower.heard, Limits())
    assert len(tail.read(MIB, 0).records) == 1


LINE = st.one_of(
    st.integers(0, 99).map(lambda n: b'{"n":%d}' % n),
    st.integers(0, 99).map(lambda n: b'{"n":%d,"type":"%s"}' % (n, b"y" * 300)),
    st.sampled_from(
        [b"", b"\r", b"rubbish", rb'{"n":1,"x":"\ud83d"}', b'{"n":1}{"n":2}', b"\0\0", b"[]", b"z" * 700]
    ),
    st.binary(max_size=20).filter(lambda b: b"\n" not in b),
)


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(LINE, max_size=12), st.lists(st.integers(0, 3000), max_size=8), st.data())
def test_any_split_of_a_file_gives_the_same_records(tmp_path, lines, cuts, data):
    """However the bytes arrive, with whatever budgets, and with restarts in between."""
    whole = b"".join(line + b"\n" for line in lines)
    once = Follower(tmp_path / "once.jsonl", record_bytes=600)
    once.path.write_bytes(whole)
    expected = [(r.position, r.body.n, r.body.type) for r in once.all()]

    follower = Follower(tmp_path / "split.jsonl", record_bytes=600)
    follower.path.write_bytes(b"")
    edges = sorted({min(cut, len(whole)) for cut in cuts} | {0, len(whole)})
    got = []
    for start, end in pairwise(edges):
        follower.append(whole[start:end])
        budget = data.draw(st.sampled_from([1, 50, 1000, MIB]))
        got += [(r.position, r.body.n, r.body.type) for r in follower.all(budget=budget)]
        if data.draw(st.booleans()):
            follower.restart()
    assert got == expected
    assert follower.heard.bad == once.heard.bad
    assert follower.heard.said == once.heard.said == []
    assert identity.decode(follower.tail.cursor()).offset == len(whole)

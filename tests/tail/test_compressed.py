"""A compressed file of lines is read as its plain bytes would be."""

import os

import pytest
import zstandard
from msgspec import Struct

from spantail.formats.row import Files, Format, Gives, Root
from spantail.tail import backlog
from spantail.tail.identity import open_lines
from spantail.tail.lines import LineTail
from spantail.tail.source import Source


class Line(Struct, gc=False):
    n: int = 0


class Limits(Struct):
    record_bytes: int = 1 << 20


class Heard:
    def __init__(self):
        self.said: list[str] = []

    def bad_record(self, agent, path, offset, reason):
        self.said.append(f"bad {offset} {reason}")

    def unreadable(self, agent, path, reason):
        self.said.append(f"unreadable: {reason}")

    def readable(self, path):
        self.said.append("readable")

    def gone(self, agent, path):
        self.said.append("gone")

    def restarted(self, agent, path):
        self.said.append("restarted")


def unit(path, head):
    return int(head.split(b"\n")[0][5:-1]) + 1, "u"


def source(path):
    files = Files("main", 0, "*", "lines", dict, dict, Line, unit=unit)  # type: ignore[arg-type]
    gives = Gives("", "", "", "", "", "")
    format_ = Format("robot", "Robot", (Root("r"),), (files,), gives)
    return Source(str(path), format_, files, "/h", "")


def written(path, *plain):
    """One frame per piece."""
    path.write_bytes(b"".join(zstandard.ZstdCompressor().compress(piece) for piece in plain))
    return path


def numbers(batch):
    return [record.body.n for record in batch.records]


LINES = b"".join(b'{"n":%d}\n' % n for n in range(5000))


def test_lines_come_in_portions_with_their_plain_offsets(tmp_path):
    """The budget is kept, nothing is repeated, and a cursor stored in between goes on."""
    path = written(tmp_path / "a.jsonl.zst", LINES)
    heard, cursor, seen, offsets = Heard(), None, [], []
    for _ in range(100):
        tail = LineTail(source(path), cursor, heard, Limits())
        batch = tail.read(10_000, 0)
        assert batch.bytes <= 11_000
        seen += numbers(batch)
        offsets += [record.position for record in batch.records]
        cursor = tail.cursor()
        if not batch.more:
            break
    assert seen == list(range(5000))
    assert [LINES[at : at + 5] for at in offsets[::999]] == [b'{"n":'] * 6
    assert not tail.changed()
    assert heard.said == []


def test_several_frames_are_one_file(tmp_path):
    """A line may begin in one frame and end in the next."""
    path = written(tmp_path / "a.jsonl.zst", LINES[:1001], LINES[1001:])
    assert numbers(LineTail(source(path), None, Heard(), Limits()).read(1 << 20, 0)) == list(range(5000))


def test_a_file_still_being_written_gives_what_is_whole(tmp_path):
    """A torn frame is no error; once it is whole the rest is read, and nothing twice."""
    path = tmp_path / "a.jsonl.zst"
    noise = b"".join(b'{"n":%d,"x":"%s"}\n' % (n, os.urandom(40).hex().encode()) for n in range(5000))
    whole = zstandard.ZstdCompressor().compress(noise)
    path.write_bytes(whole[: len(whole) // 2])
    heard = Heard()
    tail = LineTail(source(path), None, heard, Limits())
    before = numbers(tail.read(1 << 24, 0))
    assert 0 < len(before) < 5000
    path.write_bytes(whole)
    assert tail.changed()
    assert before + numbers(tail.read(1 << 24, 0)) == list(range(5000))
    assert heard.said == []


def test_what_is_not_compressed_in_spite_of_its_name_is_said(tmp_path):
    """It is named once, costs nothing else, and is read when it has become good."""
    path = tmp_path / "a.jsonl.zst"
    path.write_bytes(LINES)
    heard = Heard()
    tail = LineTail(source(path), None, heard, Limits())
    assert tail.read(1 << 20, 0).records == []
    tail.read(1 << 20, 0)
    assert heard.said == [f"unreadable: {os.strerror(5)}"]
    written(path, LINES)
    assert len(tail.read(1 << 20, 0).records) == 5000
    assert heard.said[1:] == ["readable"]


def test_it_keeps_its_place_in_the_order_of_a_backlog(tmp_path):
    """The format is shown plain bytes, so the file's first time is known."""
    late = tmp_path / "late.jsonl"
    late.write_bytes(b'{"n":7}\n')
    early = written(tmp_path / "z.jsonl.zst", b'{"n":3}\n')
    order = [s.path for unit_ in backlog.units([source(late), source(early)]) for s in unit_]
    assert order == [str(early), str(late)]


def test_the_end_of_the_plain_bytes_is_not_known(tmp_path):
    """Nobody may seek from an end that only a whole reading would find."""
    with (
        open_lines(str(written(tmp_path / "a.zst", LINES))) as file,
        pytest.raises(OSError, match="not known"),
    ):
        file.seek(0, os.SEEK_END)

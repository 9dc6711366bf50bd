"""A cursor keeps its meaning through renames and copies, and loses it through rewrites."""

import os
import shutil

import pytest

from spantail.tail import identity
from spantail.tail.identity import Cursor, Found, find, open_plain, same

LINES = b"".join(b'{"line":%d,"filler":"%s"}\n' % (n, b"x" * 40) for n in range(20))


def cursor_of(path, offset):
    with open_plain(str(path)) as file:
        stat = os.fstat(file.fileno())
        return Cursor(
            stat.st_dev, stat.st_ino, offset, identity.head(file, offset), identity.before(file, offset)
        )


def is_same(path, cursor):
    with open_plain(str(path)) as file:
        return same(file, os.fstat(file.fileno()), cursor)


class Store:
    """Cursors as the state keeps them: by path, and by device and inode."""

    def __init__(self, **rows):
        self.rows = {path: identity.encode(cursor) for path, cursor in rows.items()}

    def at_path(self, path):
        return self.rows.get(path)

    def at_file(self, device, inode):
        for path, row in self.rows.items():
            cursor = identity.decode(row)
            if (cursor.device, cursor.inode) == (device, inode):
                return path, row
        return None


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(LINES)
    return path


def test_an_appended_file_is_the_same(file):
    """Growth behind the offset changes nothing."""
    cursor = cursor_of(file, len(LINES))
    with file.open("ab") as out:
        out.write(b"more\n")
    assert is_same(file, cursor)


def test_a_check_leaves_the_file_at_the_offset(file):
    """Reading can go on without another seek."""
    cursor = cursor_of(file, 100)
    with open_plain(str(file)) as opened:
        assert same(opened, os.fstat(opened.fileno()), cursor)
        assert opened.tell() == 100


def test_a_truncated_file_is_another(file):
    """Shorter than the offset."""
    cursor = cursor_of(file, len(LINES))
    os.truncate(file, 10)
    assert not is_same(file, cursor)


def test_a_file_rewritten_in_place_is_another(file):
    """Same inode and longer than before, but other bytes before the offset."""
    cursor = cursor_of(file, 500)
    inode = file.stat().st_ino
    with file.open("r+b") as out:
        out.write(LINES.replace(b"x", b"y") * 2)
    assert file.stat().st_ino == inode
    assert not is_same(file, cursor)


def test_a_copy_put_in_its_place_is_the_same(file):
    """Another inode, the same bytes at the beginning and before the offset."""
    cursor = cursor_of(file, 500)
    shutil.copy(file, file.with_suffix(".copy"))
    file.with_suffix(".copy").replace(file)
    assert file.stat().st_ino != cursor.inode
    assert is_same(file, cursor)


def test_another_inode_with_another_beginning_is_another(file):
    """Even where the bytes before the offset are the same."""
    cursor = cursor_of(file, 900)
    other = file.with_suffix(".other")
    other.write_bytes(b"#" * 300 + LINES[300:])
    other.replace(file)
    assert not is_same(file, cursor)


@pytest.mark.parametrize("offset", [0, 1, 255, 256, 257])
def test_offsets_around_the_sample_size(file, offset):
    """Fewer bytes than a sample are compared as far as they go."""
    cursor = cursor_of(file, offset)
    assert is_same(file, cursor)
    file.write_bytes(b"#" + LINES[1:])
    assert is_same(file, cursor) == (offset in (0, 257))


def test_a_cursor_survives_storage():
    """What is encoded is decoded, and rubbish is no cursor."""
    cursor = Cursor(1, 2, 3, b"head", b"before", 4, 5, skipping=True)
    assert identity.decode(identity.encode(cursor)) == cursor
    assert identity.decode(b"\xc1") is None
    assert identity.decode(b"\x80") is None


def test_find_by_path(file):
    """The plain case: same name, same file."""
    store = Store(**{str(file): cursor_of(file, 100)})
    assert find(store, str(file), file.stat()) == Found(str(file), store.rows[str(file)])


def test_find_follows_a_rename(file, tmp_path):
    """An agent moves a session file into another folder in mid-session."""
    store = Store(**{str(file): cursor_of(file, 100)})
    moved = tmp_path / "elsewhere" / "a.jsonl"
    moved.parent.mkdir()
    file.rename(moved)
    with moved.open("ab") as out:
        out.write(b"more\n")
    assert find(store, str(moved), moved.stat()) == Found(str(file), store.rows[str(file)])


def test_find_prefers_the_renamed_file_to_what_stood_there(file, tmp_path):
    """`a` is moved over `b`: at `b` goes on what was read at `a`."""
    other = tmp_path / "b.jsonl"
    other.write_bytes(b"other\n")
    store = Store(**{str(file): cursor_of(file, 100), str(other): cursor_of(other, 6)})
    file.replace(other)
    assert find(store, str(other), other.stat()).path == str(file)


def test_find_is_not_fooled_by_an_inode_given_out_again(file, tmp_path):
    """A new file with the inode of a deleted one has other bytes: it begins at its beginning."""
    store = Store(**{str(tmp_path / "deleted.jsonl"): cursor_of(file, 100)})
    file.write_bytes(b"quite another file\n" * 20)
    assert find(store, str(file), file.stat()) is None


def test_find_gives_the_stored_cursor_of_a_replaced_file(file):
    """The tail has to know that there was one, to say that the file began anew."""
    store = Store(**{str(file): cursor_of(file, 100)})
    other = file.with_suffix(".other")
    other.write_bytes(b"other\n")
    other.replace(file)
    assert find(store, str(file), file.stat()) == Found(str(file), store.rows[str(file)])


def test_find_nothing(file):
    """A file never seen."""
    assert find(Store(), str(file), file.stat()) is None


def test_a_pipe_is_not_opened(tmp_path):
    """It would hold the whole program until somebody writes."""
    pipe = tmp_path / "pipe.jsonl"
    os.mkfifo(pipe)
    with pytest.raises(OSError, match="not a regular file"):
        open_plain(str(pipe))

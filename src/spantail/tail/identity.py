"""Whether a file is still the one that was read: the cursor of a file of lines.

The illusion kept for the line tail: a position in a file keeps its meaning, although files are renamed into
other folders, copied back, truncated, replaced and rewritten while nobody looks. Names and inode numbers
both lie (a session file moves in mid-session; a freed inode is given to the next file), so the bytes decide:
those before the position, and, where the inode is another one, those at the beginning.
"""

from __future__ import annotations

import errno
import os
from hashlib import blake2b
from io import BufferedReader, FileIO
from stat import S_ISREG
from typing import Final, NamedTuple, Protocol

import msgspec
from msgspec import Struct

from spantail.tail import compressed

SAMPLE: Final = 256
"""How many bytes at the beginning and before the position are compared."""
UNFINISHED: Final = -1
"""A size that no file has: there is more to read, also for whoever takes up a stored cursor."""


class Cursor(Struct, array_like=True, frozen=True, gc=False):
    """How far a file of lines has been taken, and how to know it again."""

    device: int
    inode: int
    offset: int
    head: bytes
    """Digest of the first bytes, up to SAMPLE and to the offset."""
    before: bytes
    """Digest of the bytes before the offset, up to SAMPLE."""
    size: int = 0
    """Size and mtime when it was last read: unchanged means there is nothing to read."""
    mtime: int = 0
    skipping: bool = False
    """The offset is inside a line too long to be taken."""


_encode: Final = msgspec.msgpack.Encoder().encode
_decoder: Final = msgspec.msgpack.Decoder(Cursor)


def encode(cursor: Cursor) -> bytes:
    return _encode(cursor)


def decode(stored: bytes) -> Cursor | None:
    """None for what is no cursor (a row of another version): the file is then read from its beginning."""
    try:
        return _decoder.decode(stored)
    except msgspec.DecodeError:
        return None


def _digest(sample: bytes) -> bytes:
    return blake2b(sample, digest_size=8).digest()


def head(file: BufferedReader, offset: int) -> bytes:
    file.seek(0)
    return _digest(file.read(min(offset, SAMPLE)))


def before(file: BufferedReader, offset: int) -> bytes:
    """Leaves the file at the offset (or at its end, if that comes first)."""
    length = min(offset, SAMPLE)
    file.seek(offset - length)
    return _digest(file.read(length))


def same(file: BufferedReader, stat: os.stat_result, cursor: Cursor) -> bool:
    """Whether reading may go on at the cursor's offset; the file is then at that offset.

    A file shorter than the offset has no such bytes before it, so its size needs no look of its own.
    """
    moved = (stat.st_ino, stat.st_dev) != (cursor.inode, cursor.device)
    if moved and head(file, cursor.offset) != cursor.head:
        return False
    return before(file, cursor.offset) == cursor.before


class Cursors(Protocol):
    """The stored cursors, by name and by file."""

    def at_path(self, path: str) -> bytes | None: ...

    def at_file(self, device: int, inode: int) -> tuple[str, bytes] | None:
        """The path under which it was last known, and its cursor."""
        ...


class Found(NamedTuple):
    """`path` is where the cursor was stored: another one than asked for means the file was renamed, and
    what is stored for the old name (the reader's memory too) belongs to the new one."""

    path: str
    cursor: bytes


def find(cursors: Cursors, path: str, stat: os.stat_result) -> Found | None:
    """The cursor with which to go on in the file at `path`.

    The same file under another name comes first, if its bytes say so too; else what is stored for the
    name, and the tail decides whether that still fits.
    """
    own = cursors.at_path(path)
    if own is not None:
        known = decode(own)
        if known is not None and (known.device, known.inode) == (stat.st_dev, stat.st_ino):
            return Found(path, own)
    moved = cursors.at_file(stat.st_dev, stat.st_ino)
    if moved is not None and moved[0] != path:
        known = decode(moved[1])
        if known is not None and known.offset > 0 and _fits(path, known):
            return Found(*moved)
    return None if own is None else Found(path, own)


def _fits(path: str, cursor: Cursor) -> bool:
    """A renamed file, or only a freed inode number that was given out again?"""
    try:
        with open_lines(path) as file:
            return same(file, os.fstat(file.fileno()), cursor)
    except OSError:
        return False


def open_plain(path: str, buffer: int = 1 << 18) -> BufferedReader:
    """A regular file, for reading; OSError for anything else."""
    # Without O_NONBLOCK a pipe put where a file was would hold the whole program.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file")
    return BufferedReader(FileIO(descriptor, "rb"), buffer)


def open_lines(path: str, buffer: int = 1 << 18) -> BufferedReader:
    """A file of lines: plain bytes, whether or not it is compressed."""
    return compressed.plain(open_plain(path, buffer), path, buffer)

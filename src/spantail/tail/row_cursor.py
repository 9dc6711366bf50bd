"""How far a database has been taken: marks that keep their meaning although rowids do not.

Tables with a text key have rowids that SQLite gives out anew after the newest rows were deleted, and that a
VACUUM numbers anew from 1. A mark therefore remembers the keys of a few rows it passed, close together near the
mark and ever farther apart behind it. If the newest is not where it was, the first of them that still exists
says where to go on; what then comes a second time is known to the ledger.
"""

from __future__ import annotations

import os
from typing import Final, NamedTuple

import msgspec
from msgspec import Struct

OPEN: Final = 256
"""How many open rows per query are looked at again; beyond that the oldest are given up."""
ANCHORS: Final = 12


class Anchor(Struct, array_like=True, gc=False):
    rowid: int
    key: str


class Mark(Struct, array_like=True):
    """Where one query goes on."""

    at: int | float | str | None = None
    anchors: list[Anchor] = []
    """Oldest first."""
    top: dict[str, bytes] = {}
    """For marks other than rowid: digests of the rows that have the highest value."""

    def remember(self, passed: list[tuple[int, str]]) -> None:
        """The rows of one read, in their order: the last, the one before it, and ever farther back."""
        back = [0, *(1 << n for n in range(len(passed).bit_length()))]
        for rowid, key in (passed[-1 - n] for n in reversed(back) if n < len(passed)):
            if key and (not self.anchors or self.anchors[-1].rowid < rowid):
                self.anchors.append(Anchor(rowid, key))
                if len(self.anchors) > ANCHORS:
                    self._thin(rowid)

    def _thin(self, top: int) -> None:
        """Leaves out the anchor whose neighbours are closest to each other for their distance from the top."""
        rows = [anchor.rowid for anchor in self.anchors]
        spread = [(rows[i + 1] - rows[i - 1]) / (top - rows[i - 1]) for i in range(1, len(rows) - 1)]
        del self.anchors[1 + spread.index(min(spread))]


class Seen(Struct, array_like=True, gc=False):
    """An open row as it was when last handed out."""

    changed: int | float | str | None
    """The highest `Parts.changed`."""
    digest: bytes


class Signature(NamedTuple):
    """What a stat says of the database and its write-ahead log; equal means: nothing was written."""

    device: int
    inode: int
    size: int
    mtime: int
    wal_inode: int = 0
    wal_size: int = 0
    wal_mtime: int = 0


class Cursor(Struct, array_like=True):
    """Small whatever the size of the database: it is stored with every commit."""

    seen: Signature | None = None
    marks: dict[str, Mark] = {}
    open: dict[str, dict[str, Seen]] = {}


_encode: Final = msgspec.msgpack.Encoder().encode
_decoder: Final = msgspec.msgpack.Decoder(Cursor)


def encode(cursor: Cursor) -> bytes:
    return _encode(cursor)


def decode(stored: bytes | None) -> Cursor:
    """An empty one for what is no cursor (of another version): everything is then read again."""
    try:
        return _decoder.decode(stored) if stored else Cursor()
    except msgspec.DecodeError:
        return Cursor()


def signature(path: str) -> Signature:
    """Raises OSError if there is no such database; a missing log is no error. An empty one is as good as none:
    to open a database, even to read it, leaves one behind."""
    main = os.stat(path)  # noqa: PTH116 this and the next are all that an idle database costs
    try:
        wal = os.stat(path + "-wal")  # noqa: PTH116
    except OSError:
        wal = None
    if wal is None or not wal.st_size:
        return Signature(main.st_dev, main.st_ino, main.st_size, main.st_mtime_ns)
    return Signature(
        main.st_dev,
        main.st_ino,
        main.st_size,
        main.st_mtime_ns,
        wal.st_ino,
        wal.st_size,
        wal.st_mtime_ns,
    )

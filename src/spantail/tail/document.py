"""A JSON document that is rewritten in place, followed: its new and changed entries, as records.

The illusion kept for the loop: a document is a growing list of records like any other, although its agent
writes all of it again for every message. One read, step by step:

1. The whole file is read and cut into entries by its format (`Files.entries`; without it the document is one).
   What cannot be cut is most often a rewrite caught in the middle: nothing is said and nothing changes, the
   next look comes a tick later, and only a document that rests and is still broken is a bad record.
2. Each entry gets a mark (length and checksum, with its key). The cursor holds the marks of the last entries, so
   an entry is known again wherever it stands: one appended, inserted or changed is new; one that was removed (a
   rollback, a shortened history) is nothing, and what is written after it is new again.
3. Records are the new entries, in the document's order; `position` is the ordinal. They are copied out of the
   document when they are the smaller part of it, so that one new message does not hold ten megabytes.

The budget is not kept: a document is taken whole, since a second part would cost reading it all again. Ten
megabytes in ten thousand entries take about 20 ms, of which two thirds are msgspec and the checksums.

A rewrite within one tick of the file system's clock and of the same size cannot be seen in size and mtime. So a
document that was read within a tick of its last change is looked at once more, after that tick.
"""

from __future__ import annotations

import errno
import os
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final, Protocol
from zlib import crc32

import msgspec
from msgspec import Raw, Struct

from spantail.model import MILLISECOND, SECOND, Record
from spantail.tail import identity
from spantail.tail.json_lines import REFUSED, Reason
from spantail.tail.lines import Notices
from spantail.tail.mend import mend
from spantail.tail.source import Batch, Source

TICK: Final = 50 * MILLISECOND
"""Longer than the clock ticks of local file systems (10 ms at most)."""
PATIENCE: Final = SECOND
"""How long a document must have been at rest before it is called broken."""
WINDOW: Final = 512
"""How many marks the cursor holds: 4 KiB, whatever the document's length."""

Entry = tuple[str, Raw | bytes]
Seen = tuple[int, int, int]
"""Size, mtime, inode."""


class Limits(Protocol):
    @property
    def record_bytes(self) -> int:
        """A longer entry is left out."""
        ...

    @property
    def document_bytes(self) -> int:
        """A larger document is skipped: it would have to be held in memory whole."""
        ...


class Cursor(Struct, array_like=True, frozen=True, gc=False):
    """Which document was taken, and which entries of it."""

    device: int
    inode: int
    size: int
    mtime: int
    fresh: bool
    """Read within a tick of its last change: another one may hide behind the same size and mtime."""
    count: int
    marks: bytes
    """Of the last WINDOW of the `count` entries, 8 bytes each."""


_UNREAD: Final = Cursor(0, 0, -1, 0, fresh=False, count=0, marks=b"")
_NOT_TORN: Final = (-1, 0, 0)
_encode: Final = msgspec.msgpack.Encoder().encode
_decoder: Final = msgspec.msgpack.Decoder(Cursor)
_whole: Final = msgspec.json.Decoder(Raw).decode


def _stored(cursor: bytes | None) -> Cursor:
    """What is no cursor of a document (a row of another version) means that nothing was taken."""
    try:
        return _decoder.decode(cursor) if cursor else _UNREAD
    except msgspec.DecodeError:
        return _UNREAD


class DocumentTail:
    """Implements `source.Tail` for the storage `document`."""

    def __init__(
        self,
        source: Source,
        cursor: bytes | None,
        notices: Notices,
        limits: Limits,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        self.source = source
        self.gone = False
        self._notices = notices
        self._limit = limits.record_bytes
        self._most = limits.document_bytes
        self._clock = clock
        self._at = _stored(cursor)
        self._torn: Seen = _NOT_TORN
        """What the file looked like when it could not be read as a document."""
        self._failures = 0
        """How often it was tried as it was."""
        self._said = False
        self._oversized = False
        self._failed = 0

    def changed(self) -> bool:
        try:
            stat = os.stat(self.source.path)  # noqa: PTH116 thousands of these per pass
        except OSError as error:
            self._cannot(error)
            return False
        self.gone = False
        seen = (stat.st_size, stat.st_mtime_ns, stat.st_ino)
        if seen == self._torn:
            wait = TICK if self._failures == 1 else PATIENCE
            return not self._said and self._rests(stat.st_mtime_ns, wait)
        at = self._at
        return seen != (at.size, at.mtime, at.inode) or (at.fresh and self._rests(at.mtime, TICK))

    def torn(self) -> bool:
        return self._torn != _NOT_TORN

    def read(self, budget: int, arrival: int, *, final: bool = False) -> Batch:  # noqa: ARG002 see above
        """`final`: the file is at rest, so what is broken now stays broken."""
        try:
            now = self._clock()
            with identity.open_plain(self.source.path) as file:
                stat = os.fstat(file.fileno())
                if stat.st_size > self._most:
                    return self._too_large(stat)
                data = file.read()
        except OSError as error:
            self._cannot(error)
            return Batch([])
        self.gone = False
        self._failed = 0
        batch = Batch([], bytes=len(data))
        entries = self._entries(data)
        if isinstance(entries, str):
            self._broken(stat, entries if data.strip() else None, batch, final=final)
            batch.unread = not final and not self._rests(stat.st_mtime_ns, PATIENCE)
            return batch
        self._torn, self._oversized = _NOT_TORN, False
        marks = array("Q", [_mark(key, raw) for key, raw in entries])
        self._take(entries, self._news(marks, batch), len(data), arrival, batch)
        fresh = abs(now - stat.st_mtime_ns) < TICK
        kept = marks[-WINDOW:].tobytes()
        self._at = Cursor(
            stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, fresh, count=len(marks), marks=kept
        )
        return batch

    def cursor(self) -> bytes:
        return _encode(self._at)

    def close(self) -> None:
        """Nothing is held open between reads."""

    # ------------------------------------------------------------------------- what is new

    def _entries(self, data: bytes) -> list[Entry] | Reason:
        """The document cut into entries, or why that cannot be done."""
        try:
            return list(self._cut(data))
        except REFUSED as error:
            reason: Reason = "type" if isinstance(error, msgspec.ValidationError) else "json"
        mended = mend(data)
        if mended is None:
            return reason
        try:
            return list(self._cut(mended))
        except RecursionError:
            return "depth"
        except ValueError as error:
            return "type" if isinstance(error, msgspec.ValidationError) else "json"

    def _cut(self, data: bytes) -> Iterable[Entry]:
        cut = self.source.files.entries
        if cut is None:
            return [("", _whole(data))]
        entries: Iterable[Entry] = cut(data)
        return entries

    def _news(self, marks: array[int], batch: Batch) -> Iterable[int]:
        """The ordinals of the entries that the cursor does not know."""
        at = self._at
        known: array[int] = array("Q")
        known.frombytes(at.marks)
        older = at.count - len(known)
        if marks[older : at.count] == known:
            return range(at.count, len(marks))
        left = Counter(known)
        found, first = [], -1
        for ordinal, mark in enumerate(marks):
            if left[mark] > 0:
                left[mark] -= 1
                first = ordinal if first < 0 else first
            else:
                found.append(ordinal)
        if first < 0 and self.source.files.entries is not None:
            # Nothing of it is left: another document has taken its place.
            self._notices.restarted(self.source.format.agent, self.source.path)
            batch.restarted = True
        # Of the entries before the window there are no marks: what stands before its first survivor is old.
        return [ordinal for ordinal in found if ordinal > first] if older and first >= 0 else found

    def _take(
        self, entries: list[Entry], news: Iterable[int], length: int, arrival: int, batch: Batch
    ) -> None:
        taken = [(ordinal, entries[ordinal][1]) for ordinal in news]
        copy = 2 * sum(_length(raw) for _, raw in taken) < length
        kind, path = self.source.files.kind, self.source.path
        for ordinal, raw in taken:
            if _length(raw) > self._limit:
                batch.bad += 1
                self._notices.bad_record(self.source.format.agent, path, ordinal, "oversized")
                continue
            body = Raw(raw) if isinstance(raw, bytes) else raw.copy() if copy else raw
            batch.records.append(Record(kind, path, ordinal, arrival, body))

    # ----------------------------------------------------------------------- what is wrong

    def _rests(self, mtime: int, wait: int) -> bool:
        # The distance, since the clock of a mounted file system may be ahead of ours.
        return abs(self._clock() - mtime) >= wait

    def _broken(self, stat: os.stat_result, reason: Reason | None, batch: Batch, *, final: bool) -> None:
        """Torn, until it has been at rest. An empty file is not written yet, and nothing to speak of."""
        seen = (stat.st_size, stat.st_mtime_ns, stat.st_ino)
        if seen != self._torn:
            self._torn, self._failures, self._said = seen, 0, reason is None
        self._failures += 1
        if not self._said and (final or (self._failures > 1 and self._rests(stat.st_mtime_ns, PATIENCE))):
            assert reason is not None
            self._said = True
            batch.bad += 1
            self._notices.bad_record(self.source.format.agent, self.source.path, 0, reason)

    def _too_large(self, stat: os.stat_result) -> Batch:
        self._torn, self._said = (stat.st_size, stat.st_mtime_ns, stat.st_ino), True
        if self._oversized:
            return Batch([])
        self._oversized = True
        self._notices.bad_record(self.source.format.agent, self.source.path, 0, "oversized")
        return Batch([], bad=1)

    def _cannot(self, error: OSError) -> None:
        """Says what is wrong, once until it works again or is something else."""
        agent, path = self.source.format.agent, self.source.path
        number = error.errno or errno.EIO
        if number == errno.ENOENT:
            if not self.gone:
                self._notices.gone(agent, path)
            self.gone = True
        elif number != self._failed:
            self._failed = number
            self._notices.unreadable(agent, path, os.strerror(number))


def _length(raw: Raw | bytes) -> int:
    return len(memoryview(raw))


def _mark(key: str, raw: Raw | bytes) -> int:
    return crc32(raw, crc32(key.encode("utf-8", "replace"))) | _length(raw) << 32

"""A file of lines, followed: what was appended, as records, each with the offset at which it begins.

The illusion kept for the loop: a growing file is a sequence of whole records that is never torn and never
repeats, whatever else happens to the file. One read, step by step:

1. The file is opened (and closed again at the end: thousands are followed, few change at a time).
2. Is it the file of the cursor? (`identity`) If not, the batch says `restarted` and begins at 0.
3. Whole lines are taken from the offset on until the budget is used up. Each line is a bytes object of its
   own, so a Raw in a body stays valid for as long as it is kept; it keeps its whole line in memory, though,
   and what is kept longer than the batch is better copied.
4. A last line without its newline is not there yet. What was searched for the newline is remembered, so that
   a long line written in many pieces is not read anew with each. `final` takes it, if it is whole JSON.
5. The cursor moves behind what was taken.

A line by line loop over a buffered file was measured against `decode_lines` over large chunks (a fifth faster
at best, but without the offsets), slices of a memoryview (no faster) and split (a third slower).

Compressed files: `open_file` gives the plain bytes (`compressed`), and offsets and digests are those of the
plain bytes; only size and times are the file's own.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from io import BufferedReader
from typing import Any, Final, Protocol

from msgspec.structs import replace

from spantail.formats.row import Files
from spantail.model import Record
from spantail.tail import identity
from spantail.tail.identity import Cursor
from spantail.tail.json_lines import REFUSED, LineDecoder, Reason
from spantail.tail.source import Batch, Source

_NEWLINE: Final = 10
_PIECE: Final = 1 << 20
_UNREAD: Final = Cursor(device=0, inode=0, offset=0, head=b"", before=b"", size=-1)


@cache
def _decoder(files: Files) -> LineDecoder:
    """One per kind of file: thousands of tails share a handful."""
    return LineDecoder(files.line)


class Limits(Protocol):
    @property
    def record_bytes(self) -> int:
        """A longer line is skipped without being held in memory."""
        ...


class Notices(Protocol):
    """What can go wrong with a file of lines. None of it stops the tail."""

    def bad_record(self, agent: str, path: str, offset: int, reason: str) -> None: ...

    def unreadable(self, agent: str, path: str, reason: str) -> None:
        """It is there and cannot be opened or read; tried again at every look, said once."""
        ...

    def readable(self, path: str) -> None:
        """After `unreadable`: it works again."""
        ...

    def gone(self, agent: str, path: str) -> None: ...

    def restarted(self, agent: str, path: str) -> None:
        """Truncated or replaced: read from its beginning."""
        ...


def _text(line: bytes) -> str:
    return line.decode("utf-8", "replace").rstrip("\r\n")


class LineTail:
    """Implements `source.Tail` for the storages `lines` and `text` (where a body is the line as str)."""

    def __init__(
        self,
        source: Source,
        cursor: bytes | None,
        notices: Notices,
        limits: Limits,
        open_file: Callable[[str], BufferedReader] = identity.open_lines,
    ) -> None:
        self.source = source
        self.gone = False
        """The file was not there at the last look: deleted, or renamed (then another source has it)."""
        self._notices = notices
        self._limit = limits.record_bytes
        self._open = open_file
        self._lines = None if source.files.storage == "text" else _decoder(source.files)
        self._quick: Callable[[bytes], Any] = self._lines.quick if self._lines else _text
        self._at = (identity.decode(cursor) if cursor else None) or _UNREAD
        self._searched = 0
        self._more = False
        self._failed = 0
        self._held: BufferedReader | None = None
        """Kept while there is more, so that a long file can be taken in small steps: what a step
        has decoded is still in the processor's cache when it is looked at."""

    def changed(self) -> bool:
        try:
            stat = os.stat(self.source.path)  # noqa: PTH116 thousands of these per pass
        except OSError as error:
            self._cannot(error)
            return False
        self.gone = False
        at = self._at
        return (
            self._more or stat.st_size != at.size or stat.st_mtime_ns != at.mtime or stat.st_ino != at.inode
        )

    def torn(self) -> bool:
        # Of a compressed file the two are of different bytes: it may be.
        return self._at.offset != self._at.size

    def read(self, budget: int, arrival: int, *, final: bool = False) -> Batch:
        """`final`: the file is at rest, so take an unfinished last line too, if it is whole JSON."""
        try:
            held, self._held = self._held, None
            file = held or self._open(self.source.path)
            try:
                batch = self._read(file, budget, arrival, final, opened=held is None)
                if batch.more:
                    self._held = file
            finally:
                if self._held is None:
                    file.close()
        except (OSError, EOFError) as error:
            self._cannot(error)
            return Batch([])
        if self._failed:
            self._notices.readable(self.source.path)
        self.gone = False
        self._failed = 0
        self._more = batch.more
        return batch

    def cursor(self) -> bytes:
        if self._held is not None:
            # If it cannot be read any more the file is read anew, and the ledger knows its records.
            with suppress(OSError, EOFError):
                self._at = replace(self._at, before=identity.before(self._held, self._at.offset))
        return identity.encode(self._at)

    def close(self) -> None:
        """A file is held open only from one read to the next of the same pass."""
        if self._held is not None:
            self.cursor()
            self._held.close()
            self._held = None

    def _read(self, file: BufferedReader, budget: int, arrival: int, final: bool, *, opened: bool) -> Batch:
        stat = os.fstat(file.fileno())
        batch = Batch([])
        at = self._at
        if opened and at.offset and not identity.same(file, stat, at):
            self._notices.restarted(self.source.format.agent, self.source.path)
            batch.restarted = True
            at = _UNREAD
            self._searched = 0
            file.seek(0)
        if stat.st_size < self._searched:
            self._searched = 0
        if self._searched > at.offset and not final and not self._newline_came(file, batch):
            before = at.before if opened else identity.before(file, at.offset)
            self._at = replace(at, before=before, size=stat.st_size, mtime=stat.st_mtime_ns)
            return batch
        file.seek(at.offset)
        offset, skipping = self._take(file, at, budget, arrival, final, batch)
        batch.bytes += offset - at.offset
        self._at = Cursor(
            device=stat.st_dev,
            inode=stat.st_ino,
            offset=offset,
            head=at.head if at.offset >= identity.SAMPLE else identity.head(file, offset),
            # Of a file that is held open it is asked for with the cursor.
            before=at.before
            if batch.more or (opened and offset == at.offset)
            else identity.before(file, offset),
            size=identity.UNFINISHED if batch.more else stat.st_size,
            mtime=stat.st_mtime_ns,
            skipping=skipping,
        )
        return batch

    def _take(
        self, file: BufferedReader, at: Cursor, budget: int, arrival: int, final: bool, batch: Batch
    ) -> tuple[int, bool]:
        """The hot loop. Returns where it stopped, and whether that is inside a line being skipped."""
        readline, quick, limit = file.readline, self._quick, self._limit
        kind, path, add = self.source.files.kind, self.source.path, batch.records.append
        piece = min(_PIECE, limit) + 1
        offset, skipping = at.offset, at.skipping
        stop = offset + budget
        while offset < stop:
            line = readline(piece)
            if not line:
                return offset, skipping
            if skipping:
                skipping = line[-1] != _NEWLINE
                offset += len(line)
                continue
            if line[-1] != _NEWLINE:
                if len(line) == piece:
                    line = _whole(line, readline, piece, limit)
                if len(line) > limit + 1 or (len(line) > limit and line[-1] != _NEWLINE):
                    self._bad(offset, "oversized", batch)
                    skipping = line[-1] != _NEWLINE
                    offset += len(line)
                    continue
                if line[-1] != _NEWLINE:
                    self._searched = offset + len(line)
                    batch.bytes += len(line)
                    if final and self._unfinished(line, offset, arrival, batch):
                        batch.bytes -= len(line)
                        offset += len(line)
                    return offset, False
            try:
                add(Record(kind, path, offset, arrival, quick(line)))
            except REFUSED:
                self._rescue(line, offset, arrival, batch)
            offset += len(line)
        batch.more = bool(file.peek(1))
        return offset, skipping

    def _rescue(self, line: bytes, offset: int, arrival: int, batch: Batch) -> None:
        if self._lines is None or not line.strip(b" \t\r\n"):
            return
        found, reason = self._lines.rescue(line)
        self._give(found, reason if found else reason or "json", offset, arrival, batch)

    def _unfinished(self, line: bytes, offset: int, arrival: int, batch: Batch) -> bool:
        """Takes a last line without newline if all of it is there; else it may still be in the making."""
        found: list[tuple[int, Any]] = [(0, _text(line))]
        reason: Reason | None = None
        if self._lines is not None:
            found, reason = self._lines.rescue(line)
            if not found or reason not in (None, "part"):
                return False
        self._give(found, reason, offset, arrival, batch)
        return True

    def _give(
        self, found: list[tuple[int, Any]], reason: Reason | None, offset: int, arrival: int, batch: Batch
    ) -> None:
        for within, body in found:
            batch.records.append(
                Record(self.source.files.kind, self.source.path, offset + within, arrival, body)
            )
        if reason is not None:
            self._bad(offset, reason, batch)
            batch.partial += reason == "part"

    def _newline_came(self, file: BufferedReader, batch: Batch) -> bool:
        """Whether the unfinished line has its end by now, looking at the new bytes only."""
        file.seek(self._searched)
        while piece := file.read(_PIECE):
            batch.bytes += len(piece)
            if b"\n" in piece:
                return True
            self._searched += len(piece)
        return self._searched - self._at.offset > self._limit

    def _bad(self, offset: int, reason: Reason, batch: Batch) -> None:
        batch.bad += 1
        self._notices.bad_record(self.source.format.agent, self.source.path, offset, reason)

    def _cannot(self, error: Exception) -> None:
        """Says what is wrong, once until it works again or is something else."""
        agent, path = self.source.format.agent, self.source.path
        number = getattr(error, "errno", None) or errno.EIO
        self._more = False
        if number == errno.ENOENT:
            if not self.gone:
                self._notices.gone(agent, path)
            self.gone = True
        elif number != self._failed:
            self._failed = number
            self._notices.unreadable(agent, path, os.strerror(number))


def _whole(line: bytes, readline: Callable[[int], bytes], piece: int, limit: int) -> bytes:
    """The rest of a line that did not fit in a piece; given up (without a newline) past the limit."""
    pieces, length = [line], len(line)
    while length <= limit:
        more = readline(piece)
        if not more:
            break
        pieces.append(more)
        length += len(more)
        if more[-1] == _NEWLINE:
            break
    return b"".join(pieces)

"""The sources that are followed: a tail and a reader for each, and what of them is to be saved."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import msgspec

from spantail.formats.row import Format, Reader
from spantail.model import SECOND
from spantail.session.work import SHAPE
from spantail.state.store import Changes, Cursor
from spantail.tail import identity
from spantail.tail.source import Batch, Source, Tail

BUSY = SECOND
"""How long after a read a database is looked at again and again: fewer times than make its tail close it."""
READ_BYTES = 256 << 10
"""Taken from one source before others get their turn, and before a commit is considered."""

MakeTail = Callable[[Source, bytes | None], Tail]


class Followed:
    def __init__(self, source: Source, tail: Tail, reader: Reader) -> None:
        self.source = source
        self.tail = tail
        self.reader = reader
        self.takes_rest = source.files.storage != "rows"
        self.finished = False
        self.stale: bytes | None = None
        """The cursor, if the memory that belongs to it is of another shape; see remake."""

    def changed_since(self, time: int) -> bool:
        try:
            return os.stat(self.source.path).st_mtime_ns > time  # noqa: PTH116
        except OSError:
            return False

    def read(self, budget: int, arrival: int, *, final: bool = False) -> Batch:
        if self.takes_rest:
            batch = self.tail.read(budget, arrival, final=final)  # type: ignore[call-arg]
            self.finished = final and not batch.more
        else:
            batch = self.tail.read(budget, arrival)
        if batch.restarted:
            again = getattr(self.reader, "again", None)
            self.reader = again() if again is not None else self.source.files.reader()
            self.stale = None
        return batch


class Busy:
    """Databases that were just written to, to be looked at again without being told.

    A commit writes its log, which wakes us, and only then the index that lets others see it, which nobody is told
    of: who reads at once sees everything but the last commit.
    """

    def __init__(self) -> None:
        self._until: dict[str, tuple[int, Followed]] = {}
        self._last = 0

    def __bool__(self) -> bool:
        return bool(self._until)

    def patience(self, now: int) -> float:
        """Seconds until the next look: a commit mostly takes less than a millisecond to be seen."""
        return 0.003 if 0 <= now - self._last < SECOND // 70 else 0.03

    def read(self, followed: Followed, now: int) -> None:
        if followed.source.files.storage == "rows":
            self._until[followed.source.path] = now + BUSY, followed
            self._last = now

    def late(self, now: int) -> list[Source]:
        """Those that have something new by now."""
        found = [followed.source for _, followed in self._until.values() if followed.tail.changed()]
        self._until = {path: at for path, at in self._until.items() if now < at[0] <= now + 2 * BUSY}
        return found


class Sources:
    """Knows the stored cursors by path and by file, so that a renamed file goes on where it was."""

    def __init__(self, stored: dict[str, Cursor], make: MakeTail, floor: int) -> None:
        self._stored = stored
        self._by_file = {(c.device, c.inode): c for c in stored.values() if c.inode}
        self._make = make
        self._floor = floor
        self._followed: dict[str, Followed] = {}
        self._resting: set[str] = set()
        """Files older than --since, left alone until they change."""
        self._gone: list[str] = []
        self._adopted: list[Cursor] = []
        self.dirty: dict[str, Followed] = {}

    def __len__(self) -> int:
        return len(self._followed) + len(self._resting)

    def knows(self, source: Source) -> bool:
        """Whether it was read in an earlier run, under this name."""
        return source.path in self._stored

    def has(self, source: Source) -> bool:
        return source.path in self._followed or source.path in self._resting

    def all(self) -> list[Followed]:
        return list(self._followed.values())

    def unfinished(self, before: int) -> Iterator[Followed]:
        """Those that may have a last line without its newline, and are silent since `before`."""
        for followed in self._followed.values():
            if not followed.takes_rest or followed.finished:
                continue
            if not followed.tail.torn():
                followed.finished = True  # until it is read again
                continue
            try:
                stat = os.stat(followed.source.path)  # noqa: PTH116
            except OSError:
                continue
            if stat.st_mtime_ns < before:
                followed.finished = True
                yield followed

    # for identity.find
    def at_path(self, path: str) -> bytes | None:
        stored = self._stored.get(path)
        return None if stored is None else stored.cursor

    def at_file(self, device: int, inode: int) -> tuple[str, bytes] | None:
        stored = self._by_file.get((device, inode))
        return None if stored is None else (stored.path, stored.cursor)

    def get(self, source: Source) -> Followed | None:
        """The source to read on; None for one that --since leaves alone, or that is not there."""
        followed = self._followed.get(source.path)
        if followed is not None:
            return followed
        try:
            stat = os.stat(source.path)  # noqa: PTH116
        except OSError:
            return None
        found = None
        if source.files.storage in ("lines", "text"):
            found = identity.find(self, source.path, stat)
        elif source.path in self._stored:
            found = identity.Found(source.path, self._stored[source.path].cursor)
        if found is None and at_rest(source, self._floor, stat):
            self._resting.add(source.path)
            return None
        self._resting.discard(source.path)
        reader = source.files.reader()
        cursor = stale = None
        if found is not None:
            stored = self._stored[found.path]
            cursor = found.cursor
            restored = self._restored(source, stored) if stored.shape == shape(source.format) else None
            stale = cursor if restored is None else None
            reader = restored or reader
            if found.path != source.path:
                self._move(found.path)
        followed = Followed(source, self._make(source, cursor), reader)
        followed.stale = stale
        self._followed[source.path] = followed
        return followed

    @staticmethod
    def _restored(source: Source, stored: Cursor) -> Reader | None:
        try:
            reader: Reader = msgspec.msgpack.decode(stored.reader, type=source.files.memory)
        except msgspec.MsgspecError:
            return None
        return reader

    def _move(self, old: str) -> None:
        """The file under `old` has another name now."""
        stored = self._stored.pop(old)
        self._by_file.pop((stored.device, stored.inode), None)
        followed = self._followed.pop(old, None)
        if followed is not None:
            followed.tail.close()
        self.dirty.pop(old, None)
        self._gone.append(old)

    def keep(self, paths: set[str]) -> None:
        """What a scan did not find is gone. Its cursor stays: the file may come back."""
        for path in [path for path in self._followed if path not in paths]:
            self._followed.pop(path).tail.close()
        self._resting &= paths

    def adopt(self, cursors: list[Cursor]) -> None:
        """Sources that another process has read up to here."""
        for cursor in cursors:
            self._adopted.append(cursor)
            self._stored[cursor.path] = cursor
            if cursor.inode:
                self._by_file[cursor.device, cursor.inode] = cursor

    def touch(self, followed: Followed) -> None:
        self.dirty[followed.source.path] = followed

    def gather(self, changes: Changes) -> None:
        for path, followed in self.dirty.items():
            try:
                stat = os.stat(path)  # noqa: PTH116
                device, inode = stat.st_dev, stat.st_ino
            except OSError:
                device = inode = 0
            cursor = Cursor(
                path,
                device,
                inode,
                shape(followed.source.format),
                followed.tail.cursor(),
                msgspec.msgpack.encode(followed.reader),
            )
            changes.cursors.append(cursor)
            self._stored[path] = cursor
            if inode:
                self._by_file[device, inode] = cursor
        self.dirty = {}
        changes.cursors += self._adopted
        self._adopted = []
        changes.gone += self._gone
        self._gone = []


def shape(format_: Format) -> int:
    """Of a row: what the format's readers remember, and what of it the sessions have open."""
    return format_.shape << 16 | SHAPE


def at_rest(source: Source, floor: int, stat: os.stat_result | None = None) -> bool:
    """Whether nobody asks for anything of it, going by the time of the file. A database says for itself how old its
    sessions are."""
    stat = stat or os.stat(source.path)  # noqa: PTH116
    return source.files.storage != "rows" and stat.st_mtime_ns < floor


def size(source: Source) -> int:
    try:
        return os.stat(source.path).st_size  # noqa: PTH116
    except OSError:
        return 0

"""An agent's database, followed: new and changed rows as records, while the agent goes on writing.

The illusion kept for the loop: a database is a source like any other, that gives what is new since the last
time. Nothing is ever written to it and the agent never waits for us. One read, step by step:

1. The signature is taken first, so that what is written during the read is noticed at the next look.
2. The tables and columns are probed when they changed, and the format answers with its plan (`database`).
3. One short read transaction. Is it the database of the cursor? If none of the rows remembered are in it, the
   batch says `restarted` and everything is read.
4. For each query: the open rows once more, then the rows behind the mark, until the budget is used up.
5. The mark moves with every row, so a read that fails in the middle keeps what it has.

What can go wrong is named once and tried again: at every look for what passes by itself (locked, no -shm yet),
at the next change for what does not (damaged, not a database).
"""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Iterator
from hashlib import blake2b
from typing import Any, Final, Protocol

from spantail.formats.queries import Parts, Plan, Query, Row, Values
from spantail.model import SECOND, Record
from spantail.tail import row_cursor
from spantail.tail.database import Database, trouble
from spantail.tail.identity import UNFINISHED
from spantail.tail.row_cursor import OPEN, Cursor, Mark, Seen, Signature
from spantail.tail.source import Batch, Source

YOUNG: Final = 2 * SECOND
"""What was written no longer ago may have been followed by more at the same time: clocks of files are coarse."""


class Limits(Protocol):
    @property
    def record_bytes(self) -> int:
        """A larger row, or part of one, is left out."""
        ...


class Notices(Protocol):
    """What can go wrong with a database. None of it stops the tail."""

    def bad_record(self, agent: str, path: str, offset: int, reason: str) -> None: ...

    def unreadable(self, agent: str, path: str, reason: str) -> None: ...

    def gone(self, agent: str, path: str) -> None: ...

    def restarted(self, agent: str, path: str) -> None: ...


class RowsTail:
    """Implements `source.Tail` for the storage `rows`."""

    def __init__(self, source: Source, cursor: bytes | None, notices: Notices, limits: Limits) -> None:
        assert source.files.queries is not None
        self.source = source
        self.gone = False
        """The database was not there at the last look."""
        self._database = Database(source.path, source.files.queries)
        self._notices = notices
        self._limit = limits.record_bytes
        self._at = row_cursor.decode(cursor)
        self._more = False
        self._young = False
        self._failed = ""
        self._failed_at: Signature | None = None
        """Set for what only a change can mend."""

    # --------------------------------------------------------------------------------- doors

    def changed(self) -> bool:
        try:
            now = row_cursor.signature(self.source.path)
        except OSError as error:
            self._cannot_stat(error)
            return False
        self.gone = False
        if self._failed:
            return now != self._failed_at
        if self._young and self._database.resting:
            return True  # without a connection that is kept, only the clock of the files tells of the next commit
        return self._more or now != self._at.seen or self._database.committed()

    def torn(self) -> bool:
        return False

    def read(self, budget: int, arrival: int) -> Batch:
        batch = Batch([])
        self._more = False
        try:
            now = row_cursor.signature(self.source.path)
        except OSError as error:
            self._cannot_stat(error)
            return batch
        kept = row_cursor.encode(self._at)
        self._young = time.time_ns() - max(now.mtime, now.wal_mtime) < YOUNG
        try:
            connection = self._database.open(now[:2])
            connection.execute("BEGIN")
            try:
                self._take(connection, now, budget, arrival, batch)
            finally:
                with contextlib.suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")
            if self._database.resting and self._woken(now):
                self._at = row_cursor.decode(kept)
                return Batch([], unread=True)
        except sqlite3.Error as error:
            self._cannot(error, now)
            batch.unread = self._failed_at is None
            if batch.records:
                self._at.seen = now._replace(size=UNFINISHED)
            return batch
        self.gone, self._failed, self._failed_at = False, "", None
        self._more = batch.more
        self._at.seen = now._replace(size=UNFINISHED) if batch.more else now
        return batch

    def _woken(self, before: Signature) -> bool:
        """Whether somebody began to write while it was read without locks: then it is read again, with them."""
        self._database.close()
        try:
            return row_cursor.signature(self.source.path) != before
        except OSError:
            return True

    def cursor(self) -> bytes:
        """Of a database that was written to a moment before it was read, the signature is not to be trusted by
        whoever takes up the cursor: a commit that could not be seen yet may have changed nothing of it."""
        if self._young and self._at.seen is not None:
            seen = self._at.seen._replace(size=UNFINISHED)
            return row_cursor.encode(Cursor(seen, self._at.marks, self._at.open))
        return row_cursor.encode(self._at)

    def close(self) -> None:
        self._database.close()

    # -------------------------------------------------------------------------------- reading

    def _take(
        self, connection: sqlite3.Connection, now: Signature, budget: int, arrival: int, batch: Batch
    ) -> None:
        plan = self._database.plan(connection)
        if plan and not self._same(connection, plan, now):
            self._notices.restarted(self.source.format.agent, self.source.path)
            batch.restarted = True
            self._at = Cursor()
        for query in plan:
            if query.open is not None:
                self._look_again(connection, query, arrival, batch)
            rows = self._rows if query.mark == "rowid" else self._marked
            if not rows(connection, query, budget, arrival, batch):
                batch.more = True
                return

    def _same(self, connection: sqlite3.Connection, plan: Plan, now: Signature) -> bool:
        """Whether it is the database of the cursor: rows that were in it tell better than inodes, which are
        given anew, and change when a backup is put back."""
        marks = [mark for query in plan if (mark := self._at.marks.get(query.kind)) is not None]
        remembered = any(mark.anchors for mark in marks)
        found = [self._anchored(connection, query) for query in plan]
        if remembered:
            return any(found)
        seen = self._at.seen
        return seen is None or seen[:2] == now[:2] or all(mark.at is None for mark in marks)

    def _mark(self, query: Query) -> Mark:
        return self._at.marks.setdefault(query.kind, Mark())

    def _anchored(self, connection: sqlite3.Connection, query: Query) -> bool:
        """Whether the mark still means what it meant; if not, it is set back to the newest row known."""
        mark = self._at.marks.get(query.kind)
        if mark is None or not mark.anchors:
            return False
        newest = mark.anchors[-1]
        found = connection.execute(
            f"SELECT {query.key} FROM {query.table} WHERE rowid = ?",  # noqa: S608 the format's own names
            (newest.rowid,),
        ).fetchone()
        if found is not None and found[0] == newest.key:
            return True
        kept = []
        for anchor in mark.anchors:
            where = connection.execute(
                f"SELECT rowid FROM {query.table} WHERE {query.key} = ?",  # noqa: S608
                (anchor.key,),
            ).fetchone()
            if where is not None:
                anchor.rowid = where[0]
                kept.append(anchor)
        kept.sort(key=lambda anchor: anchor.rowid)
        mark.anchors, mark.at = kept, kept[-1].rowid if kept else 0
        return bool(kept)

    def _rows(
        self, connection: sqlite3.Connection, query: Query, budget: int, arrival: int, batch: Batch
    ) -> bool:
        """The rows behind the mark; False if the budget ended before they did."""
        mark = self._mark(query)
        where = f"rowid > ? AND ({query.where})" if query.where else "rowid > ?"
        rows = connection.execute(f"{_select(query)} WHERE {where} ORDER BY rowid", (mark.at or 0,))
        handed = len(batch.records)
        try:
            for rowid, key, *values in rows:
                # At least one, whatever the open rows used up.
                if batch.bytes >= budget and len(batch.records) > handed:
                    return False
                self._new(connection, query, rowid, Row(_name(key), tuple(values)), arrival, batch)
                mark.at = rowid
        finally:
            mark.remember([(record.position, record.body.key) for record in batch.records[handed:]])
        # What the condition left out is not to be looked at again.
        top = connection.execute(
            f"SELECT rowid, {query.key or 'NULL'} FROM {query.table} ORDER BY rowid DESC LIMIT 1"  # noqa: S608
        ).fetchone()
        if top is not None and top[0] > (mark.at or 0):
            mark.at = top[0]
            mark.remember([(top[0], _name(top[1]))])
        return True

    def _marked(
        self, connection: sqlite3.Connection, query: Query, budget: int, arrival: int, batch: Batch
    ) -> bool:
        """The same for a mark that rows can share and that moves when they change."""
        mark = self._mark(query)
        where = [f"({query.where})"] if query.where else []
        where += [f"{query.mark} >= ?"] if mark.at is not None else []
        rows = connection.execute(
            f"SELECT {query.mark}, {', '.join(('rowid', query.key, *query.columns))} FROM {query.table}"  # noqa: S608
            f"{' WHERE ' if where else ''}{' AND '.join(where)} ORDER BY {query.mark}",
            (mark.at,) if mark.at is not None else (),
        )
        for value, rowid, key, *values in rows:
            if not _comparable(value):
                continue
            if batch.bytes >= budget and value != mark.at:
                return False
            row = Row(_name(key), tuple(values))
            digest = _digest((row.values,))
            if value == mark.at and mark.top.get(row.key) == digest:
                continue
            self._new(connection, query, rowid, row, arrival, batch)
            if value != mark.at:
                mark.at, mark.top = value, {}
            mark.top[row.key] = digest
        return True

    def _new(
        self,
        connection: sqlite3.Connection,
        query: Query,
        rowid: int,
        row: Row,
        arrival: int,
        batch: Batch,
    ) -> None:
        changed: Any = None
        if query.parts is not None:
            parts, changed = self._parts(connection, query.parts, row.key, None, rowid, batch)
            row = Row(row.key, row.values, parts)
        if not self._add(query, rowid, row, arrival, batch):
            return
        if query.open is not None and query.open(row):
            rows = self._at.open.setdefault(query.kind, {})
            rows[row.key] = Seen(changed, _digest((row.values, *row.parts)))
            if len(rows) > OPEN:
                del rows[next(iter(rows))]

    def _look_again(self, connection: sqlite3.Connection, query: Query, arrival: int, batch: Batch) -> None:
        assert query.open is not None
        rows = self._at.open.get(query.kind, {})
        for key, seen in list(rows.items()):
            found = connection.execute(f"{_select(query)} WHERE {query.key} = ?", (key,)).fetchone()
            if found is None:
                del rows[key]
                continue
            rowid, _, *values = found
            row, changed = Row(key, tuple(values)), seen.changed
            if query.parts is not None:
                parts, changed = self._parts(connection, query.parts, key, seen.changed, rowid, batch)
                row = Row(key, row.values, parts)
            digest = _digest((row.values, *row.parts))
            if digest == seen.digest:
                continue
            still = query.open(row)
            if not still and query.parts is not None:
                # The last look takes all of it, in case a clock was set back in between.
                parts, changed = self._parts(connection, query.parts, key, None, rowid, batch)
                row = Row(key, row.values, parts)
                still = query.open(row)
            self._add(query, rowid, row, arrival, batch)
            if still:
                rows[key] = Seen(changed, digest)
            else:
                del rows[key]

    def _parts(
        self, connection: sqlite3.Connection, parts: Parts, owner: str, since: Any, rowid: int, batch: Batch
    ) -> tuple[tuple[Values, ...], Any]:
        """The parts of a row that are as new as `since`, and the time of the newest."""
        newer = f" AND {parts.changed} >= ?" if since is not None else ""
        rows = connection.execute(
            f"SELECT {parts.changed}, {', '.join(parts.columns)} FROM {parts.table}"  # noqa: S608
            f" WHERE {parts.owner} = ?{newer} ORDER BY {parts.order}",
            (owner, since) if since is not None else (owner,),
        )
        found: list[Values] = []
        for changed, *values in rows:
            size = _size(values)
            if size > self._limit:
                self._oversized(rowid, batch)
                continue
            batch.bytes += size
            found.append(tuple(values))
            if _comparable(changed) and (since is None or _order(changed) > _order(since)):
                since = changed
        return tuple(found), since

    def _add(self, query: Query, rowid: int, row: Row, arrival: int, batch: Batch) -> bool:
        size = _size(row.values)
        if size > self._limit:
            self._oversized(rowid, batch)
            return False
        batch.bytes += size
        batch.records.append(Record(query.kind, self.source.path, rowid, arrival, row))
        return True

    # --------------------------------------------------------------------------- what is wrong

    def _oversized(self, rowid: int, batch: Batch) -> None:
        batch.bad += 1
        self._notices.bad_record(self.source.format.agent, self.source.path, rowid, "oversized")

    def _cannot_stat(self, error: OSError) -> None:
        self.close()
        if isinstance(error, FileNotFoundError):
            if not self.gone:
                self._notices.gone(self.source.format.agent, self.source.path)
            self.gone = True
        else:
            self._say(error.strerror or "it cannot be looked at")

    def _cannot(self, error: sqlite3.Error, now: Signature) -> None:
        self.close()
        reason, lasting = trouble(error)
        self._failed_at = now if lasting else None
        self._say(reason)

    def _say(self, reason: str) -> None:
        if reason != self._failed:
            self._failed = reason
            self._notices.unreadable(self.source.format.agent, self.source.path, reason)


def _select(query: Query) -> str:
    return f"SELECT {', '.join(('rowid', query.key or 'NULL', *query.columns))} FROM {query.table}"  # noqa: S608


def _name(key: Any) -> str:
    """A key as text: a column of SQLite may hold anything, whatever its type says."""
    return key if isinstance(key, str) else "" if key is None else repr(key)


def _comparable(value: Any) -> bool:
    """Whether a mark can stand on it."""
    return isinstance(value, int | float | str)


def _order(value: float | str) -> tuple[bool, float, str]:
    """As SQLite orders them: all numbers before all texts."""
    return (True, 0.0, value) if isinstance(value, str) else (False, value, "")


def _size(values: Values | list[Any]) -> int:
    return sum(len(value) for value in values if isinstance(value, bytes | str))


def _digest(rows: tuple[Values, ...]) -> bytes:
    digest = blake2b(digest_size=8)
    for value in _flat(rows):
        digest.update(value if isinstance(value, bytes) else repr(value).encode("utf-8", "replace"))
        digest.update(b"\0")
    return digest.digest()


def _flat(rows: tuple[Values, ...]) -> Iterator[Any]:
    for row in rows:
        yield from row

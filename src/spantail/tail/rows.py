"""An agent's database, followed: new and changed rows as records, while the agent goes on writing.

The illusion kept for the loop: a database is a source like any other, that gives what is new since the last
time. Nothing is ever written to it and the agent never waits for us. One read, step by step:

1. The signature is taken first, so that what is written during the read is noticed at the next look.
2. The database is opened `mode=ro` (never `immutable`, which would not see the write-ahead log, where all rows
   may be) and the tables and columns are probed when the schema changed; the format answers with its plan.
3. One short read transaction. Is it the database of the cursor? If another file has taken its name, and none of
   the rows remembered are in it, the batch says `restarted` and everything is read.
4. For each query: the open rows once more, then the rows behind the mark, until the budget is used up.
5. The mark moves with every row, so a read that fails in the middle keeps what it has.

The connection is kept while the database is busy, because `data_version` then tells in microseconds whether
anything was committed, even where a log that is written over from its beginning keeps its size and time. After
a quiet while it is closed: a connection of ours must not keep the agent from tidying up its log.

What can go wrong is named once and tried again: at every look for what passes by itself (locked, no -shm yet),
at the next change for what does not (damaged, not a database).
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Callable, Iterator
from hashlib import blake2b
from typing import Any, Final, Protocol
from urllib.parse import quote

from spantail.formats.queries import Columns, Parts, Plan, Query, Row, Values
from spantail.model import Record
from spantail.tail import row_cursor
from spantail.tail.row_cursor import OPEN, Cursor, Mark, Seen, Signature
from spantail.tail.source import Batch, Source

_PATIENCE: Final = 0.05
"""Seconds to wait for a lock. Writers of a write-ahead log do not lock readers out, so this is for others."""
_QUIET: Final = 40
"""Looks without a change after which the connection is closed."""
_LASTING: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR})
_WORDS: Final = {
    sqlite3.SQLITE_BUSY: "the database is locked",
    sqlite3.SQLITE_LOCKED: "the database is locked",
    sqlite3.SQLITE_CORRUPT: "the database is damaged",
    sqlite3.SQLITE_NOTADB: "it is not a SQLite database",
    sqlite3.SQLITE_CANTOPEN: "the database cannot be opened (on a read-only mount it needs its -shm file)",
    sqlite3.SQLITE_READONLY: "the database cannot be opened read-only before its agent has opened it",
    sqlite3.SQLITE_ERROR: "its tables are not as expected",
    sqlite3.SQLITE_IOERR: "it cannot be read from the disk",
}


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
        self._queries: Callable[[Columns], Plan] = source.files.queries
        self._notices = notices
        self._limit = limits.record_bytes
        self._at = row_cursor.decode(cursor)
        self._connection: sqlite3.Connection | None = None
        self._opened: tuple[int, int] = (0, 0)
        self._version = -1
        self._schema = -1
        self._plan: Plan = ()
        self._quiet = 0
        self._more = False
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
        if self._more or now != self._at.seen:
            return True
        if self._connection is None:
            return False
        try:
            if self._pragma(self._connection, "data_version") != self._version:
                return True
        except sqlite3.Error:
            return True
        self._quiet += 1
        if self._quiet > _QUIET:
            self.close()
        return False

    def read(self, budget: int, arrival: int) -> Batch:
        batch = Batch([])
        self._more = False
        try:
            now = row_cursor.signature(self.source.path)
        except OSError as error:
            self._cannot_stat(error)
            return batch
        try:
            connection = self._connect(now)
            connection.execute("BEGIN")
            try:
                self._take(connection, now, budget, arrival, batch)
            finally:
                with contextlib.suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")
        except sqlite3.Error as error:
            self._cannot(error, now)
            return batch
        self.gone, self._failed, self._failed_at = False, "", None
        self._quiet = 0
        self._more = batch.more
        self._at.seen = now
        return batch

    def cursor(self) -> bytes:
        return row_cursor.encode(self._at)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None
        self._version = self._schema = -1

    # ------------------------------------------------------------------------- the connection

    def _connect(self, now: Signature) -> sqlite3.Connection:
        if self._connection is not None and self._opened != now[:2]:
            self.close()
        if self._connection is None:
            # A name may hold any byte; in a URI all but the plainest stand as %xx.
            uri = f"file:{quote(os.fsencode(self.source.path))}?mode=ro"
            self._connection = sqlite3.connect(
                uri, uri=True, timeout=_PATIENCE, isolation_level=None, check_same_thread=False
            )
            self._connection.text_factory = _text
            self._opened = now[:2]
        self._version = self._pragma(self._connection, "data_version")
        return self._connection

    @staticmethod
    def _pragma(connection: sqlite3.Connection, name: str) -> int:
        return int(connection.execute(f"PRAGMA {name}").fetchone()[0])

    def _probe(self, connection: sqlite3.Connection) -> None:
        schema = self._pragma(connection, "schema_version")
        if schema == self._schema:
            return
        tables: dict[str, set[str]] = {}
        for table, column in connection.execute(
            "SELECT m.name, c.name FROM sqlite_schema m JOIN pragma_table_info(m.name) c WHERE m.type = 'table'"
        ):
            tables.setdefault(table, set()).add(column)
        self._plan = self._queries({table: frozenset(names) for table, names in tables.items()})
        self._schema = schema

    # -------------------------------------------------------------------------------- reading

    def _take(
        self, connection: sqlite3.Connection, now: Signature, budget: int, arrival: int, batch: Batch
    ) -> None:
        self._probe(connection)
        seen = self._at.seen
        found = [self._anchored(connection, query) for query in self._plan]
        if seen is not None and seen[:2] != now[:2] and self._at.marks and not any(found):
            self._notices.restarted(self.source.format.agent, self.source.path)
            batch.restarted = True
            self._at = Cursor()
        for query in self._plan:
            if query.open is not None:
                self._look_again(connection, query, arrival, batch)
            rows = self._rows if query.mark == "rowid" else self._marked
            if not rows(connection, query, budget, arrival, batch):
                batch.more = True
                return

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
        for rowid, key, *values in rows:
            # At least one, whatever the open rows used up.
            if batch.bytes >= budget and len(batch.records) > handed:
                return False
            self._new(connection, query, rowid, Row(key or "", tuple(values)), arrival, batch)
            mark.move(rowid, key or "")
        # What the condition left out is not to be looked at again.
        top = connection.execute(
            f"SELECT rowid, {query.key or 'NULL'} FROM {query.table} ORDER BY rowid DESC LIMIT 1"  # noqa: S608
        ).fetchone()
        if top is not None and top[0] > (mark.at or 0):
            mark.move(top[0], top[1] or "")
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
            if value is None:
                continue
            if batch.bytes >= budget and value != mark.at:
                return False
            row = Row(key or "", tuple(values))
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
            if since is None or (changed is not None and changed > since):
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
        """The text of SQLite's error may name what is in the database, so it is not repeated."""
        self.close()
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
        self._failed_at = now if code in _LASTING else None
        self._say(_WORDS.get(code, "the database cannot be read"))

    def _say(self, reason: str) -> None:
        if reason != self._failed:
            self._failed = reason
            self._notices.unreadable(self.source.format.agent, self.source.path, reason)


def _text(stored: bytes) -> str:
    return stored.decode("utf-8", "replace")


def _select(query: Query) -> str:
    return f"SELECT {', '.join(('rowid', query.key or 'NULL', *query.columns))} FROM {query.table}"  # noqa: S608


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

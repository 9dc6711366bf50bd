"""The only room that knows our SQLite file. One transaction moves everything together.

Cursors, readers' memory, open work, ledger, totals, hours and the spans to send are written by one
commit or not at all, so after a kill at any point the program goes on from a moment that really
was. Nothing leaves the process before the commit that holds it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

from msgspec import Struct

from spantail.state.hours import HourRow
from spantail.state.ledger import Ledger
from spantail.state.schema import PRAGMAS, TABLES, VERSION
from spantail.state.series import Row

PACK_FROM = 16 * 1024
"""Larger requests are stored compressed, to a tenth: measured cheaper than to write and read them."""
DAY = 86_400
SEGMENTS = 64
"""Rows of the ledger for one day before they are merged."""
KEEP_DAYS = 400
"""13 months: ids and sums older than that are forgotten."""


class LockedError(Exception):
    """Another process has the state."""


class Cursor(Struct, frozen=True):
    path: str
    device: int
    inode: int
    shape: int
    cursor: bytes
    reader: bytes


Packed = tuple[int, bool, int, bytes]
"""A request for the outbox: spans, whether compressed, its size before that, its bytes."""


def packed(spans: int, body: bytes) -> Packed:
    compress = len(body) > PACK_FROM
    return spans, compress, len(body), zlib.compress(body, 1) if compress else body


class Changes(Struct):
    """All that one commit moves."""

    cursors: list[Cursor] = []
    gone: list[str] = []
    works: list[tuple[int, str, int, int, bytes]] = []
    ledger: list[tuple[int, int, bytes]] = []
    groups: list[tuple[bytes, int]] = []
    totals: list[Row] = []
    hours: list[HourRow] = []
    spans: list[Packed] = []
    acked: list[int] = []
    meta: dict[str, str] = {}


class Store:
    def __init__(self, folder: Path, *, clock: float = 0.0) -> None:
        self.folder = folder
        self.path = folder / "state.db"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = self._take_lock()
        self.set_aside: Path | None = None
        """Where an unreadable state was put, if there was one."""
        try:
            self.db = self._open()
        except sqlite3.DatabaseError:
            self.set_aside = self._put_aside(int(clock))
            self.db = self._open()
        self.waiting_spans, self.waiting_bytes = self._waiting()
        self._new_groups: dict[str, int] = {}
        """Groups that the next commit makes."""

    def _waiting(self) -> tuple[int, int]:
        row = self.db.execute("SELECT sum(spans), sum(length(body)) FROM outbox").fetchone()
        return row[0] or 0, row[1] or 0

    def _take_lock(self) -> IO[str]:
        lock = (self.folder / "lock").open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            lock.close()
            raise LockedError(str(self.folder)) from error
        return lock

    def _open(self) -> sqlite3.Connection:
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
        os.close(descriptor)
        db = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False)
        try:
            for pragma in PRAGMAS:
                db.execute(pragma)
            version = db.execute("PRAGMA user_version").fetchone()[0]
            if version == 0:
                db.execute("BEGIN")
                for table in TABLES:
                    db.execute(table)
                db.execute(f"PRAGMA user_version={VERSION}")
                db.execute("COMMIT")
            _check(db, version)
        except BaseException:
            db.close()
            raise
        return db

    def _put_aside(self, stamp: int) -> Path:
        aside = self.path.with_name(f"state.broken-{stamp}.db")
        for suffix in ("", "-wal", "-shm"):
            with contextlib.suppress(FileNotFoundError):
                Path(f"{self.path}{suffix}").replace(f"{aside}{suffix}")
        return aside

    def descriptors(self) -> list[int]:
        """What a forked process must not hold: the lock goes with the last who has it."""
        return [self._lock.fileno()]

    def close(self) -> None:
        self.db.close()
        self._lock.close()

    # ------------------------------------------------------------------------------ reading

    def meta(self, key: str) -> str | None:
        row = self.db.execute("SELECT value FROM meta WHERE key=?", (key,)).fetchone()
        return None if row is None else str(row[0])

    def cursors(self) -> dict[str, Cursor]:
        rows = self.db.execute("SELECT path, device, inode, shape, cursor, reader FROM cursors")
        return {row[0]: Cursor(*row) for row in rows}

    def group(self, name: str) -> tuple[int, bytes | None]:
        row = self.db.execute("SELECT id, memory FROM groups WHERE name=?", (name,)).fetchone()
        if row is not None:
            return row[0], row[1]
        if name not in self._new_groups:
            highest = self.db.execute("SELECT max(id) FROM groups").fetchone()[0] or 0
            self._new_groups[name] = highest + len(self._new_groups) + 1
        return self._new_groups[name], None

    def ledger(self, group: int) -> Ledger:
        rows = self.db.execute("SELECT ids FROM ledger WHERE grp=?", (group,))
        return Ledger(row[0] for row in rows)

    def work(self, group: int, session: str) -> tuple[int, bytes] | None:
        row = self.db.execute(
            "SELECT shape, work FROM works WHERE grp=? AND session=?", (group, session)
        ).fetchone()
        return None if row is None else (row[0], row[1])

    def works(self, group: int) -> Iterator[tuple[str, int, bytes]]:
        yield from self.db.execute("SELECT session, shape, work FROM works WHERE grp=?", (group,))

    def totals(self) -> Iterator[Row]:
        for row in self.db.execute("SELECT family, labels, value, created, shown, free FROM totals"):
            yield Row(row[0], row[1], row[2], row[3], row[4], bool(row[5]))

    def spent(self, since: int) -> list[tuple[str, str, str, str, float]]:
        """(agent, project, model, user, US dollars) of the calls since a time in seconds."""
        return self.db.execute(
            "SELECT agent, project, model, user, sum(cost) FROM hours WHERE slot >= ? GROUP BY 1, 2, 3, 4",
            (since,),
        ).fetchall()

    def oldest(self) -> int:
        """When the oldest batch that waits to be acknowledged was made, in ns; 0 if none waits."""
        row = self.db.execute("SELECT created FROM outbox ORDER BY id LIMIT 1").fetchone()
        return 0 if row is None else int(row[0])

    # ------------------------------------------------------------------------------ writing

    def commit(self, changes: Changes, now: int) -> None:
        """Writes everything or nothing."""
        spans_more = bytes_more = 0
        db = self.db
        db.execute("BEGIN IMMEDIATE")
        try:
            if self._new_groups:
                named = [(id_, name) for name, id_ in self._new_groups.items()]
                db.executemany("INSERT INTO groups (id, name) VALUES (?,?)", named)
            if changes.cursors:
                db.executemany(
                    "INSERT OR REPLACE INTO cursors VALUES (?,?,?,?,?,?)",
                    [(c.path, c.device, c.inode, c.shape, c.cursor, c.reader) for c in changes.cursors],
                )
            if changes.gone:
                db.executemany("DELETE FROM cursors WHERE path=?", [(path,) for path in changes.gone])
            if changes.works:
                db.executemany("INSERT OR REPLACE INTO works VALUES (?,?,?,?,?)", changes.works)
            if changes.ledger:
                db.executemany("INSERT INTO ledger (grp, day, ids) VALUES (?,?,?)", changes.ledger)
            if changes.groups:
                db.executemany("UPDATE groups SET memory=? WHERE id=?", changes.groups)
            if changes.totals:
                db.executemany("INSERT OR REPLACE INTO totals VALUES (?,?,?,?,?,?)", changes.totals)
            if changes.hours:
                db.executemany(
                    """INSERT INTO hours VALUES (?,?,?,?,?,?,?,?,?,?)
                    ON CONFLICT (slot, agent, project, model, user) DO UPDATE SET
                    input=input+excluded.input, cache_read=cache_read+excluded.cache_read,
                    cache_write=cache_write+excluded.cache_write, output=output+excluded.output,
                    cost=cost+excluded.cost""",
                    changes.hours,
                )
            for spans, compressed, size, body in changes.spans:
                db.execute(
                    "INSERT INTO outbox (spans, created, packed, size, body) VALUES (?,?,?,?,?)",
                    (spans, now, compressed, size, body),
                )
                spans_more, bytes_more = spans_more + spans, bytes_more + len(body)
            for id_ in changes.acked:
                row = db.execute(
                    "DELETE FROM outbox WHERE id=? RETURNING spans, length(body)", (id_,)
                ).fetchone()
                if row is not None:
                    spans_more, bytes_more = spans_more - row[0], bytes_more - row[1]
            if changes.meta:
                db.executemany("INSERT OR REPLACE INTO meta VALUES (?,?)", list(changes.meta.items()))
            db.execute("COMMIT")
        except BaseException:
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise
        self._new_groups = {}
        self.waiting_spans += spans_more
        self.waiting_bytes += bytes_more

    def drop_oldest(self, limit: int) -> tuple[int, int]:
        """Keeps the outbox under `limit` bytes; (batches, spans) that were given up."""
        batches = spans = 0
        while self.waiting_bytes > limit:
            row = self.db.execute(
                "DELETE FROM outbox WHERE id=(SELECT min(id) FROM outbox) RETURNING spans, length(body)"
            ).fetchone()
            if row is None:
                break
            batches, spans = batches + 1, spans + row[0]
            self.waiting_spans -= row[0]
            self.waiting_bytes -= row[1]
        return batches, spans

    def tidy(self, now: int) -> None:
        """Forgets what is too old and gives the disk space of a drained outbox back."""
        day = now // 1_000_000_000 // DAY - KEEP_DAYS
        self.db.execute("DELETE FROM ledger WHERE day < ?", (day,))
        self.db.execute("DELETE FROM hours WHERE slot < ?", (day * DAY,))
        self._merge_ledger()
        # By execute() this would free a single page.
        self.db.executescript("PRAGMA incremental_vacuum")

    def _merge_ledger(self) -> None:
        """Live commits leave a row for a few ids each: those of a day become one."""
        many = self.db.execute(
            "SELECT grp, day FROM ledger GROUP BY grp, day HAVING count(*) > ?", (SEGMENTS,)
        ).fetchall()
        for group, day in many:
            rows = self.db.execute("SELECT ids FROM ledger WHERE grp=? AND day=?", (group, day)).fetchall()
            self.db.execute("BEGIN IMMEDIATE")
            try:
                self.db.execute("DELETE FROM ledger WHERE grp=? AND day=?", (group, day))
                joined = b"".join(row[0] for row in rows)
                self.db.execute("INSERT INTO ledger (grp, day, ids) VALUES (?,?,?)", (group, day, joined))
                self.db.execute("COMMIT")
            except BaseException:
                if self.db.in_transaction:
                    self.db.execute("ROLLBACK")
                raise


def _check(db: sqlite3.Connection, version: int) -> None:
    if version not in (0, VERSION):
        raise sqlite3.DatabaseError(f"the state has schema version {version}, this program knows {VERSION}")
    db.execute("SELECT count(*) FROM meta").fetchone()


class OutboxReader:
    """The deliverer's own view of the outbox, for its own thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._db: sqlite3.Connection | None = None

    def pending(self, after_id: int, limit_bytes: int) -> list[tuple[int, int, bytes]]:
        if self._db is None:
            self._db = sqlite3.connect(f"{self._path.as_uri()}?mode=ro", uri=True, isolation_level=None)
        out: list[tuple[int, int, bytes]] = []
        size = 0
        rows: Iterable[tuple[int, int, int, int, bytes]] = self._db.execute(
            "SELECT id, spans, packed, size, body FROM outbox WHERE id > ? ORDER BY id LIMIT 64", (after_id,)
        )
        for id_, spans, packed, length, body in rows:
            if out and size + length > limit_bytes:
                break
            size += length
            out.append((id_, spans, zlib.decompress(body) if packed else body))
        return out

    def close(self) -> None:
        if self._db is not None:
            self._db.close()

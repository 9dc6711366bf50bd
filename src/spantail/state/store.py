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
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO

from msgspec import Struct

from spantail.state.hours import HourRow
from spantail.state.ledger import Ledger
from spantail.state.packing import Packed, unpacked
from spantail.state.rescue import Rescued, finish, least, rescue
from spantail.state.schema import damaged, prepare, read_only
from spantail.state.series import Row

FILE = "state.db"
DAY = 86_400
SEGMENTS = 64
"""Rows of the ledger for one day before they are merged."""
GIVE_PAGES = 1000
"""Pages of 4 KiB given back to the file system in one step."""
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


class Changes(Struct):
    """All that one commit moves."""

    cursors: list[Cursor] = []
    gone: list[str] = []
    works: list[tuple[int, str, int, int, bytes]] = []
    ledger: list[tuple[int, int, bytes]] = []
    groups: list[tuple[bytes, int]] = []
    totals: list[Row] = []
    hours: list[HourRow] = []
    least: list[HourRow] = []
    """Sums that those in the state are raised to."""
    spans: list[Packed] = []
    acked: list[int] = []
    meta: dict[str, str] = {}


class Store:
    def __init__(self, folder: Path, *, clock: float = 0.0) -> None:
        self.folder = folder
        self.path = folder / FILE
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = self._take_lock()
        self.rescued: Rescued | None = None
        """What became of a damaged state, if there was one."""
        self._db: sqlite3.Connection | None = None
        try:
            finish(self.path)
            try:
                self._begin()
            except (sqlite3.Error, OSError) as error:
                if not damaged(error):
                    raise
                self.rescue(int(clock))
        except BaseException:
            self.close()
            raise

    @property
    def db(self) -> sqlite3.Connection:
        assert self._db is not None
        return self._db

    def _begin(self) -> None:
        self._new_groups: dict[str, int] = {}
        """Groups that the next commit makes."""
        self._db = self._open()
        self.waiting_spans, self.waiting_bytes = self._waiting()

    def rescue(self, stamp: int) -> None:
        """A new state, with all that can be saved of this one, which is damaged."""
        if self._db is not None:
            with contextlib.suppress(sqlite3.Error):
                self._db.close()
            self._db = None
        aside, number = self.path.with_name(f"state.broken-{stamp}.db"), 1
        while aside.exists():
            number += 1
            aside = self.path.with_name(f"state.broken-{stamp}-{number}.db")
        self.rescued = rescue(self.path, aside)
        self._begin()

    def _waiting(self) -> tuple[int, int]:
        row = self.db.execute("SELECT sum(spans), sum(length(body)) FROM outbox").fetchone()
        return row[0] or 0, row[1] or 0

    def _take_lock(self) -> IO[str]:
        lock = open(self.folder / "lock", "w", opener=lambda path, flags: os.open(path, flags, 0o600))  # noqa: SIM115
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
            prepare(db)
        except BaseException:
            db.close()
            raise
        return db

    def descriptors(self) -> list[int]:
        """What a forked process must not hold: the lock goes with the last who has it."""
        return [self._lock.fileno()]

    def close(self) -> None:
        if self._db is not None:
            self._db.close()
        self._lock.close()

    # ------------------------------------------------------------------------------ reading

    def meta(self, key: str) -> str | None:
        row = self.db.execute("SELECT value FROM meta WHERE key=?", (key,)).fetchone()
        return None if row is None else str(row[0])

    def cursors(self) -> dict[str, Cursor]:
        rows = self.db.execute("SELECT path, device, inode, shape, cursor, reader FROM cursors")
        return {row[0]: Cursor(*row) for row in rows}

    def knows(self, group: str) -> bool:
        return self.db.execute("SELECT 1 FROM groups WHERE name=?", (group,)).fetchone() is not None

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

    def least(self) -> tuple[list[Row], list[HourRow]] | None:
        """Totals and sums below which those of a state that is being rebuilt must not stay; see rescue."""
        aside = self.meta("least")
        return least(self.folder / aside) if aside else None

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

    def free_bytes(self) -> int:
        """What the file holds and does not use."""
        pages, size = (
            self.db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("freelist_count", "page_size")
        )
        return int(pages * size)

    def oldest_beyond(self, limit: int) -> tuple[list[int], int]:
        """What has to go for the outbox to be under `limit` bytes: ids of batches, number of spans."""
        ids: list[int] = []
        spans, excess = 0, self.waiting_bytes - limit
        for id_, count, size in self.db.execute("SELECT id, spans, length(body) FROM outbox ORDER BY id"):
            if excess <= 0:
                break
            ids.append(id_)
            spans, excess = spans + count, excess - size
        return ids, spans

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
            if changes.least:
                db.executemany(
                    """INSERT INTO hours VALUES (?,?,?,?,?,?,?,?,?,?)
                    ON CONFLICT (slot, agent, project, model, user) DO UPDATE SET
                    input=max(input, excluded.input), cache_read=max(cache_read, excluded.cache_read),
                    cache_write=max(cache_write, excluded.cache_write), output=max(output, excluded.output),
                    cost=max(cost, excluded.cost)""",
                    changes.least,
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

    def tidy(self, now: int) -> None:
        """Forgets what is too old."""
        day = now // 1_000_000_000 // DAY - KEEP_DAYS
        self.db.execute("DELETE FROM ledger WHERE day < ?", (day,))
        self.db.execute("DELETE FROM hours WHERE slot < ?", (day * DAY,))
        self._merge_ledger()

    def give_back(self) -> bool:
        """Gives the disk space of a drained outbox back, a little at a time: all at once a gigabyte would stop
        the loop for half a minute and need as much again in the log. Whether there is more to give."""
        free = self.db.execute("PRAGMA freelist_count").fetchone()[0]
        if free:
            # By execute() this would free a single page.
            self.db.executescript(f"PRAGMA incremental_vacuum({GIVE_PAGES})")
            if free <= GIVE_PAGES:
                self.db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        return bool(free > GIVE_PAGES)

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


class OutboxReader:
    """The deliverer's own view of the outbox, for its own thread."""

    def __init__(self, path: Path, damage: Callable[[sqlite3.Error], None] = lambda _error: None) -> None:
        """`damage` is called on that thread when the file turns out to be broken."""
        self._path = path
        self._damage = damage
        self._db: sqlite3.Connection | None = None

    def pending(self, after_id: int, limit_bytes: int) -> list[tuple[int, int, bytes]]:
        try:
            return self._pending(after_id, limit_bytes)
        except sqlite3.Error as error:
            if damaged(error):
                self._damage(error)
            raise

    def _pending(self, after_id: int, limit_bytes: int) -> list[tuple[int, int, bytes]]:
        if self._db is None:
            self._db = read_only(self._path)
            self._db.execute("PRAGMA cache_size=-256")  # everything is read once
        out: list[tuple[int, int, bytes]] = []
        size = 0
        rows: Iterable[tuple[int, int, int, int, bytes]] = self._db.execute(
            "SELECT id, spans, packed, size, body FROM outbox WHERE id > ? ORDER BY id LIMIT 64", (after_id,)
        )
        for id_, spans, how, length, body in rows:
            if out and size + length > limit_bytes:
                break
            size += length
            out.append((id_, spans, unpacked(how, body)))
        return out

    def close(self) -> None:
        if self._db is not None:
            self._db.close()

"""The tables of the state: the one SQLite file that holds all that must survive a kill.

`VERSION` is raised with every change of the tables, and `STEPS` gets a small function that brings a state
of the version before up to it. All steps and the new number are one transaction: a kill in the middle of
an upgrade leaves the old state, whole. A state of a newer version is left alone.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from pathlib import Path

VERSION = 1

Step = Callable[[sqlite3.Connection], None]

STEPS: Mapping[int, Step] = {}
"""Version -> what makes the next one of it."""

PRAGMAS = (
    # auto_vacuum must be set before anything else: after WAL it stays off.
    "PRAGMA auto_vacuum=INCREMENTAL",
    "PRAGMA journal_mode=WAL",
    "PRAGMA synchronous=NORMAL",
    "PRAGMA temp_store=MEMORY",
    "PRAGMA cache_size=-1024",
    "PRAGMA busy_timeout=5000",
    # A large commit must not leave its log behind.
    "PRAGMA journal_size_limit=8388608",
)

TABLES = (
    "CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    # How far each source has been taken, with its reader's memory.
    """CREATE TABLE IF NOT EXISTS cursors (
        path TEXT PRIMARY KEY, device INTEGER NOT NULL, inode INTEGER NOT NULL,
        shape INTEGER NOT NULL, cursor BLOB NOT NULL, reader BLOB NOT NULL) WITHOUT ROWID""",
    "CREATE TABLE IF NOT EXISTS groups (id INTEGER PRIMARY KEY, name TEXT UNIQUE NOT NULL, memory BLOB)",
    # Open work, one row per session.
    """CREATE TABLE IF NOT EXISTS works (
        grp INTEGER NOT NULL, session TEXT NOT NULL, shape INTEGER NOT NULL, updated INTEGER NOT NULL,
        work BLOB NOT NULL, PRIMARY KEY (grp, session)) WITHOUT ROWID""",
    # What has been settled: eight bytes an id, those of one commit in one row, merged later.
    # `day` is for forgetting them after 13 months.
    """CREATE TABLE IF NOT EXISTS ledger (
        segment INTEGER PRIMARY KEY, grp INTEGER NOT NULL, day INTEGER NOT NULL, ids BLOB NOT NULL)""",
    "CREATE INDEX IF NOT EXISTS ledger_by_group ON ledger (grp, day)",
    """CREATE TABLE IF NOT EXISTS totals (
        family TEXT NOT NULL, labels TEXT NOT NULL, value BLOB NOT NULL, created INTEGER NOT NULL,
        shown INTEGER NOT NULL, free INTEGER NOT NULL, PRIMARY KEY (family, labels)) WITHOUT ROWID""",
    """CREATE TABLE IF NOT EXISTS hours (
        slot INTEGER NOT NULL, agent TEXT NOT NULL, project TEXT NOT NULL, model TEXT NOT NULL,
        user TEXT NOT NULL, input INTEGER NOT NULL, cache_read INTEGER NOT NULL,
        cache_write INTEGER NOT NULL, output INTEGER NOT NULL, cost REAL NOT NULL,
        PRIMARY KEY (slot, agent, project, model, user)) WITHOUT ROWID""",
    # Encoded requests that no backend has acknowledged, in the order in which they leave.
    """CREATE TABLE IF NOT EXISTS outbox (
        id INTEGER PRIMARY KEY AUTOINCREMENT, spans INTEGER NOT NULL, created INTEGER NOT NULL,
        packed INTEGER NOT NULL, size INTEGER NOT NULL, body BLOB NOT NULL)""",
)

NAMES = frozenset({"meta", "cursors", "groups", "works", "ledger", "totals", "hours", "outbox"})

CHECKED = ("meta", "groups", "ledger", "totals")
"""Looked through at every start, in some 5 ms for 300,000 ids: a row of these that goes missing without a word
would be counted twice or taken back. Damage elsewhere shows when it is read, and costs less."""


class NewerStateError(Exception):
    """A newer program has written the state: to go on would destroy what this one cannot know."""

    def __init__(self, version: int) -> None:
        super().__init__(f"it was written by a newer spantail (schema {version}, this one knows {VERSION})")


class DamagedError(sqlite3.DatabaseError):
    """The file is a database, but not ours any more."""


def damaged(error: BaseException) -> bool:
    """Whether the file itself is broken. A full or read-only disk, or a lock, passes; this does not."""
    if isinstance(error, DamagedError | IsADirectoryError):
        return True
    code = getattr(error, "sqlite_errorcode", None)
    return code is not None and code & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def prepare(db: sqlite3.Connection) -> None:
    """Makes the tables, or brings those of an older version up to this one."""
    version = db.execute("PRAGMA user_version").fetchone()[0]
    if version > VERSION:
        raise NewerStateError(version)
    for pragma in PRAGMAS:
        db.execute(pragma)
    if version < VERSION:
        db.execute("BEGIN IMMEDIATE")
        try:
            if version == 0:
                for table in TABLES:
                    db.execute(table)
            for at in range(version or VERSION, VERSION):
                STEPS[at](db)
            db.execute(f"PRAGMA user_version={VERSION}")
            db.execute("COMMIT")
        except BaseException:
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise
    found = {row[0] for row in db.execute("SELECT name FROM sqlite_master WHERE type='table'")}
    if NAMES - found:
        raise DamagedError("tables are missing")
    for table in CHECKED:
        if db.execute(f"PRAGMA integrity_check({table})").fetchone()[0] != "ok":
            raise DamagedError(f"the table {table} is damaged")


def read_only(path: Path, how: str = "") -> sqlite3.Connection:
    """`how`: more of SQLite's words for its address, each after an `&`."""
    # The folder may be given as it is seen from here; an address must be absolute.
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro{how}", uri=True, isolation_level=None)

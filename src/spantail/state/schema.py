"""The tables of the state: the one SQLite file that holds all that must survive a kill.

Version 1. Until the first release a change of the tables throws the state away; from then on each
version has a migration from the one before.
"""

from __future__ import annotations

VERSION = 1

PRAGMAS = (
    # auto_vacuum must be set before anything else: after WAL it stays off.
    "PRAGMA auto_vacuum=INCREMENTAL",
    "PRAGMA journal_mode=WAL",
    "PRAGMA synchronous=NORMAL",
    "PRAGMA temp_store=MEMORY",
    "PRAGMA cache_size=-4096",
    "PRAGMA busy_timeout=5000",
)

TABLES = (
    "CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    # How far each source has been taken, with its reader's memory.
    """CREATE TABLE IF NOT EXISTS cursors (
        path TEXT PRIMARY KEY, device INTEGER NOT NULL, inode INTEGER NOT NULL,
        shape INTEGER NOT NULL, cursor BLOB NOT NULL, reader BLOB NOT NULL) WITHOUT ROWID""",
    "CREATE INDEX IF NOT EXISTS cursors_by_file ON cursors (device, inode)",
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

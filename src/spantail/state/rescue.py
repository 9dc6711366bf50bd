"""What can be saved of a damaged state, in a new file, so that nothing that was shown ever goes down.

Positions, ledger and totals were written together and only mean something together: totals that are kept
while the ledger is lost would count the same calls twice. So what is kept depends on what can be read whole
(a table from which a single row is missing is not):

- *all*: positions, ledger, totals and sums are whole. They are kept; open work is too, or is made again from
  the files (see remake). Nothing is lost, nothing is counted twice.
- *totals*: totals and sums are whole (and when they were last complete), the rest is not. They are kept, and what began before the last commit
  counts as counted: it is read again without being counted or sent. The rest of a turn that was open is lost.
- *least*: not even those are whole. Everything since `--since` is counted again from the files as at a first
  start; then of each total and sum the larger stands, the one that could be read or the one counted again.

Spans that wait and can be read are kept in every case. The damaged file stays, under another name.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct

from spantail.state.hours import HourRow
from spantail.state.schema import NAMES, prepare
from spantail.state.series import Row

Kept = Literal["all", "totals", "least"]

_TYPES = {"TEXT": str, "INTEGER": int, "BLOB": bytes, "REAL": float}
_FOR_ALL = ("groups", "ledger", "totals", "hours", "cursors")


class Rescued(Struct, frozen=True):
    """How it went."""

    aside: str
    """Where the damaged file is now."""
    kept: Kept
    lost: tuple[str, ...]
    """The tables that could not be read whole."""


def rescue(path: Path, aside: Path) -> Rescued:
    """Puts a sound file in the place of a damaged one. A kill at any point leaves either the damaged one or
    (see `finish`) the sound one."""
    made = _made(path)
    _remove(made)
    os.close(os.open(made, os.O_RDWR | os.O_CREAT, 0o600))
    new = sqlite3.connect(made, isolation_level=None)
    try:
        prepare(new)
        new.execute("BEGIN IMMEDIATE")
        lost = _copied(path, new)
        kept = _judged(new, lost, aside)
        new.execute("COMMIT")
    finally:
        new.close()
    for suffix in ("", "-wal", "-shm"):
        with contextlib.suppress(FileNotFoundError):
            Path(f"{path}{suffix}").replace(f"{aside}{suffix}")
    finish(path)
    return Rescued(str(aside), kept, tuple(sorted(lost)))


def finish(path: Path) -> None:
    """Takes up a sound file that a kill left beside the place of the damaged one; one that was not done goes."""
    made = _made(path)
    if made.exists() and not path.exists():
        _remove(path)  # a log of the damaged one must not be taken for one of this
        made.replace(path)
    else:
        _remove(made)


def _made(path: Path) -> Path:
    return path.with_name("state.mended.db")


def _remove(path: Path) -> None:
    for suffix in ("", "-wal", "-shm"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)


def _copied(path: Path, new: sqlite3.Connection) -> set[str]:
    """Every row that can be read; the names of the tables of which some cannot."""
    lost = set(NAMES)
    if not path.is_file():
        return lost
    for table in NAMES:
        columns = [row[1] for row in new.execute(f"PRAGMA table_info({table})")]
        insert = f"INSERT OR IGNORE INTO {table} VALUES ({','.join('?' * len(columns))})"  # noqa: S608
        rows = Rows(path, table)
        for row in rows:
            new.execute(insert, row)
        if rows.whole:
            lost.discard(table)
    return lost


def _judged(new: sqlite3.Connection, lost: set[str], aside: Path) -> Kept:
    """Leaves only what means something together."""
    if lost.isdisjoint(_FOR_ALL):
        if "works" in lost:
            new.execute("UPDATE cursors SET shape=0")  # all open work is made again
        if "meta" in lost:
            new.execute("INSERT OR IGNORE INTO meta VALUES ('backlog', 'done')")
        return "all"
    for table in ("cursors", "works", "groups", "ledger"):
        new.execute(f"DELETE FROM {table}")  # noqa: S608
    meta = dict(new.execute("SELECT key, value FROM meta"))
    # Without these it is not known up to when everything had been read.
    until = meta.get("last_commit", "") if meta.get("backlog") == "done" else ""
    if until.isdecimal() and lost.isdisjoint(("totals", "hours")):
        new.execute("INSERT OR REPLACE INTO meta VALUES ('counted', ?)", (until,))
        return "totals"
    new.execute("DELETE FROM totals")
    new.execute("DELETE FROM hours")
    new.execute("DELETE FROM meta WHERE key NOT IN ('created', 'floor', 'instance')")
    new.execute("INSERT INTO meta VALUES ('least', ?)", (aside.name,))
    return "least"


class Rows:
    """The rows of a table as far as they can be read: from its beginning to the damage, and from its end."""

    def __init__(self, path: Path, table: str) -> None:
        self._path = path
        self._table = table
        self.whole = False
        """Whether nothing was missing; known at the end."""

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        try:
            db = sqlite3.connect(self._path, isolation_level=None)
        except sqlite3.Error:
            return
        try:
            yield from self._of(db)
        except sqlite3.Error:
            self.whole = False
        finally:
            with contextlib.suppress(sqlite3.Error):
                db.close()

    def _of(self, db: sqlite3.Connection) -> Iterator[tuple[Any, ...]]:
        info = db.execute(f"PRAGMA table_info({self._table})").fetchall()
        key = ", ".join(row[1] for row in sorted(info, key=lambda row: row[5]) if row[5])
        if not key:
            return
        kinds = [(_TYPES.get(row[2], object), bool(row[3] or row[5])) for row in info]
        sound = True
        for order in ("", "DESC"):
            try:
                by = ", ".join(f"{name} {order}" for name in key.split(", "))
                for row in db.execute(f"SELECT * FROM {self._table} ORDER BY {by}"):  # noqa: S608
                    if _fits(row, kinds):
                        yield row
                    else:
                        sound = False
            except sqlite3.Error:
                sound = False
                continue
            self.whole = sound
            return


def _fits(row: tuple[Any, ...], kinds: list[tuple[type, bool]]) -> bool:
    """Whether damage has not made something else of a value."""
    return all(
        isinstance(value, kind) or (value is None and not needed)
        for value, (kind, needed) in zip(row, kinds, strict=True)
    )


def least(aside: Path) -> tuple[list[Row], list[HourRow]]:
    """The totals and sums of a damaged state that can be read, for `least`."""
    if not aside.is_file():
        return [], []
    totals = [Row(a, b, c, d, e, bool(f)) for a, b, c, d, e, f in Rows(aside, "totals")]
    return totals, [HourRow(*row) for row in Rows(aside, "hours")]

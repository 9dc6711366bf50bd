"""What the last commit left, read from a state that cannot be opened for writing; nothing of it is changed.

Whole or not at all: a part of the totals would be a page on which numbers fall.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from spantail.state.schema import VERSION, read_only
from spantail.state.series import Row


def left_by_the_last_commit(path: Path) -> tuple[list[Row], dict[str, str]] | None:
    """The totals and the notes; None if they cannot be read as they were committed."""
    try:
        log = path.with_name(f"{path.name}-wal")
        # Without a log the file is all there is. SQLite reads a log without writing, but does not do without one.
        how = "" if log.exists() and log.stat().st_size else "&immutable=1"
        with closing(read_only(path, how)) as db:
            db.execute("BEGIN")
            if db.execute("PRAGMA user_version").fetchone()[0] != VERSION:
                return None
            notes = dict(db.execute("SELECT key, value FROM meta"))
            rows = db.execute("SELECT family, labels, value, created, shown, free FROM totals")
            return [Row(a, b, c, d, e, bool(free)) for a, b, c, d, e, free in rows], notes
    except (OSError, sqlite3.Error):
        return None

"""A read-only connection to a database that belongs to somebody else, and the words for what goes wrong with it.

Opened `mode=ro` and `readonly_shm=1`: with the first alone SQLite would still make and write the -shm and -wal files
beside the database, in the agent's folder and with our ownership. Not `immutable`, which does not see the write-ahead
log, where all rows may be; but where there is no log and nobody has the database open, that is the only way to read it
without making one, and such a connection is for one read (`resting`). It is kept while the database is busy, because `data_version` then tells in microseconds whether anything was committed, even
where a log that is written over from its beginning keeps its size and its time. After a quiet while it is closed:
a connection of ours must not keep the agent from tidying up its log.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from typing import Final
from urllib.parse import quote

from spantail.formats.queries import Columns, Plan
from spantail.tail.identity import open_plain

_HEADER: Final = 20
_LOGGED: Final = b"\x02\x02"
"""The end of the header of a database that has a write-ahead log."""
_KEPT: Final = "&readonly_shm=1"
_RESTING: Final = "&immutable=1"
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
    sqlite3.SQLITE_CANTOPEN: "the database cannot be opened (on a read-only mount its log needs its -shm file)",
    sqlite3.SQLITE_READONLY: "the database cannot be opened read-only before its agent has opened it",
    sqlite3.SQLITE_ERROR: "its tables are not as expected",
    sqlite3.SQLITE_IOERR: "it cannot be read from the disk",
}


def trouble(error: sqlite3.Error) -> tuple[str, bool]:
    """What is wrong, and whether only a change of the file can mend it. The text of SQLite's own error is not
    repeated: it may name what is in the database."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    return _WORDS.get(code, "the database cannot be read"), code in _LASTING


class Database:
    """`queries` answers with a plan whenever the tables are not those of before."""

    def __init__(self, path: str, queries: Callable[[Columns], Plan]) -> None:
        self._path = path
        self._queries = queries
        self._connection: sqlite3.Connection | None = None
        self._file: tuple[int, int] = (0, 0)
        self._version = -1
        self._schema = -1
        self._plan: Plan = ()
        self._quiet = 0
        self.resting = False
        """Nobody has it open and all is in its one file; a connection to it sees nothing that is written later."""

    def open(self, file: tuple[int, int]) -> sqlite3.Connection:
        """`file`: device and inode of what has the name now. Raises sqlite3.Error."""
        if self._connection is not None and (self._file != file or self.resting):
            self.close()
        if self._connection is None:
            way = _way(self._path)
            self.resting = way == _RESTING
            # A name may hold any byte; in a URI all but the plainest stand as %xx.
            self._connection = sqlite3.connect(
                f"file:{quote(os.fsencode(self._path))}?mode=ro{way}",
                uri=True,
                timeout=_PATIENCE,
                isolation_level=None,
                check_same_thread=False,
            )
            self._connection.text_factory = _text
            self._file = file
        self._version = _pragma(self._connection, "data_version")
        self._quiet = 0
        return self._connection

    def committed(self) -> bool:
        """Whether anything was committed since `open`, as far as a kept connection can tell."""
        if self._connection is None:
            return False
        try:
            if _pragma(self._connection, "data_version") != self._version:
                return True
        except sqlite3.Error:
            return True
        self._quiet += 1
        if self._quiet > _QUIET:
            self.close()
        return False

    def plan(self, connection: sqlite3.Connection) -> Plan:
        """What to ask the tables that there are now; inside the transaction that will ask it."""
        schema = _pragma(connection, "schema_version")
        if schema != self._schema:
            tables: dict[str, set[str]] = {}
            for table, column in connection.execute(
                "SELECT m.name, c.name FROM sqlite_master m JOIN pragma_table_info(m.name) c"
                " WHERE m.type = 'table'"
            ):
                tables.setdefault(table, set()).add(column)
            self._plan = self._queries({table: frozenset(names) for table, names in tables.items()})
            self._schema = schema
        return self._plan

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None
        self._schema = -1


def _way(path: str) -> str:
    """How it can be read without anything being made beside it."""
    if os.path.exists(path + "-shm"):  # noqa: PTH110
        return _KEPT
    try:
        if os.stat(path + "-wal").st_size:  # noqa: PTH116
            # A copy that left the -shm file out: nobody has it open, and without one the log cannot be read.
            return ""
    except OSError:
        pass
    try:
        with open_plain(path, _HEADER) as file:
            return _RESTING if file.read(_HEADER)[-2:] == _LOGGED else _KEPT
    except OSError:
        return _KEPT


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    return int(connection.execute(f"PRAGMA {name}").fetchone()[0])


def _text(stored: bytes) -> str:
    return stored.decode("utf-8", "replace")

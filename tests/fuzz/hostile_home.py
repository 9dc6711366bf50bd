"""Homes full of bad records: a recorded home, written again with mutated lines, entries and rows, many times over.

After the bad part comes a recorded session as it is (`intact`), in files of its own or behind the bad records in
the same file or database. What it gives must be what it gives alone.
"""

from __future__ import annotations

import json
import random
import shutil
import sqlite3
from functools import cache
from pathlib import Path
from typing import Any

from mutation import Mutator, Pool, pool

import truth
from spantail.formats import TABLE
from spantail.tail.finder import Finder

LARGE = 30_000
"""A record longer than this is seldom mutated: the mutation would be most of the time."""
READ = ("schema_version", "sessions", "messages", "session", "message", "part", "event")
"""The tables of the agents' databases that are read."""
MOST = 24
"""How many recorded sessions of an agent are used."""
RECORDS = 1000
"""About how many mutated records a home gets."""


@cache
def cases(agent: str) -> tuple[Path, ...]:
    """The recorded sessions of an agent, of all its versions."""
    folders = {f"{row.agent}": row for row in TABLE}
    found = []
    for case in truth.cases():
        name = case.parent.name
        owner = max((a for a in folders if name == a or name.startswith(f"{a}-")), key=len, default="")
        if owner == agent:
            found.append(case)
    return tuple(found)


def chosen(agent: str) -> list[Path]:
    """Some of them, of all versions and kinds."""
    found = cases(agent)
    return [found[at * len(found) // MOST] for at in range(MOST)] if len(found) > MOST else list(found)


def finder(agent: str, home: Path) -> Finder:
    return Finder(TABLE, (str(home),), own_home=False, environ={}, excludes=(), agents=(agent,))


def parts(agent: str, home: Path) -> list[tuple[str, Path]]:
    """(storage, path) of every file that is read, those beside others too."""
    looked = finder(agent, home)
    found = [(source.files.storage, Path(source.path)) for source in looked.scan()]
    for source in looked.scan():
        found += [(beside.storage, Path(path)) for beside, path in looked.beside(source)]
    return list(dict.fromkeys(found))


INTACT = {
    "aider": "multi-a",
    "claude-code": "parallel-a",
    "clido": "multi-a",
    "cline": "tools-a",
    "codex": "tools-a",
    "gemini-cli": "tools-a",
    "generic": "multi-a",
    "goose": "multi-a",
    "opencode": "tools-a",
    "pi": "tools-a",
}


def intact(agent: str) -> Path:
    """The session that comes after the bad records."""
    return truth.FIXTURES / agent / INTACT[agent]


@cache
def values(agent: str) -> Pool:
    """What records of this agent hold, by key; not those of the intact session, which nobody else may repeat."""
    bodies: list[Any] = []
    for case in chosen(agent):
        if case == intact(agent):
            continue
        for storage, path in parts(agent, case / "home"):
            if storage == "rows":
                for _, rows in tables(path):
                    bodies += [json.loads(v) for row in rows for v in row.values() if _is_json(v)]
                continue
            whole = path.read_bytes()
            for body in [whole] if storage == "document" else whole.splitlines():
                if len(body) < LARGE and body[:1] in b"{[":
                    try:
                        bodies.append(json.loads(body))
                    except ValueError:
                        continue
    return pool(bodies)


class Hostile:
    """One home. `mutated` counts the records that were made bad."""

    def __init__(self, agent: str, case: Path, home: Path, dice: random.Random) -> None:
        self.agent = agent
        self.case = case
        self.home = home
        self.dice = dice
        self.mutator = Mutator(dice, values(agent))
        self.mutated = 0
        self.damaged = False
        """A database was made unreadable: what is put into it later cannot be read either."""

    def write(self) -> None:
        recorded = self.case / "home"
        shutil.copytree(recorded, self.home)
        found = parts(self.agent, self.home)
        goal = RECORDS // max(1, len(found))
        for storage, path in found:
            if storage == "rows":
                self._rows(path, goal)
            elif storage == "document":
                self._document(path)
            elif path.suffix == ".zst":
                self._bytes(path)
            else:
                self._lines(path, goal, text=storage == "text")
        self._more_documents([path for storage, path in found if storage == "document"])

    # ---------------------------------------------------------------------------------- lines

    def _lines(self, path: Path, goal: int, *, text: bool) -> None:
        """All lines again and again, most of them mutated, in order: a reader gets deep into what it knows."""
        dice, lines = self.dice, path.read_bytes().splitlines(keepends=True)
        if not lines:
            return
        share = dice.choice((0.4, 0.7, 0.95))
        out: list[bytes] = []
        made = 0
        while made < goal:
            for line in lines:
                roll = dice.random()
                if roll < share and (len(line) < LARGE or dice.random() < 0.02):
                    bad = self.mutator.torn(line) if text else self.mutator.line(line)
                    # Most keep their end; without it they are glued to the next.
                    out.append(bad + b"\n" if dice.random() < 0.97 else bad)
                    made += 1
                elif roll > 0.98:
                    out.append(dice.choice(lines))
                else:
                    out.append(line)
        self.mutated += made
        path.write_bytes(b"".join(out) + b"\n")

    def _bytes(self, path: Path) -> None:
        path.write_bytes(self.mutator.torn(path.read_bytes()))
        self.mutated += 1

    # ------------------------------------------------------------------------------ documents

    def _document(self, path: Path) -> None:
        body = path.read_bytes()
        if self.dice.random() < 0.05 or len(body) > 20 * LARGE:
            path.write_bytes(self.mutator.torn(body))
            self.mutated += 1
            return
        document = json.loads(body)
        entries = _longest_list(document)
        if entries is None:
            document = self.mutator.changed(document)
            self.mutated += 1
        else:
            # Many entries, each mutated on its own: the list as a whole stays one.
            originals = [json.dumps(entry) for entry in entries]
            while len(entries) < 40 and originals:
                entries.append(json.loads(self.dice.choice(originals)))
            for at, entry in enumerate(entries):
                if self.dice.random() < 0.7:
                    entries[at] = self.mutator.changed(entry)
                    self.mutated += 1
            if self.dice.random() < 0.2:
                document = self.mutator.changed(document)
        path.write_bytes(self.mutator.written(document))

    def _more_documents(self, paths: list[Path]) -> None:
        """Small documents are written beside each other under other names, until there are enough records."""
        recorded = {path: (self.case / "home" / path.relative_to(self.home)).read_bytes() for path in paths}
        small = [path for path in paths if len(recorded[path]) < LARGE]
        number = 0
        while small and self.mutated < RECORDS and number < RECORDS:
            number += 1
            path = self.dice.choice(small)
            name, _, ending = path.name.partition(".")
            copy = path.with_name(f"{name}{number}.{ending}")
            copy.write_bytes(recorded[path])
            self._document(copy)

    # ----------------------------------------------------------------------------------- rows

    def _rows(self, path: Path, goal: int) -> None:
        dice = self.dice
        found = tables(path)
        with _opened(path) as db:
            made = 0
            while made < goal:
                for table, rows in found:
                    for row in rows:
                        if dice.random() < 0.6:
                            made += self._row(db, table, dict(row))
        self.mutated += made
        if dice.random() < 0.05:
            self.damaged = True
            body = bytearray(path.read_bytes())
            for _ in range(20):
                body[dice.randrange(len(body))] ^= 1 << dice.randrange(8)
            path.write_bytes(body)

    def _row(self, db: sqlite3.Connection, table: str, row: dict[str, Any]) -> bool:
        dice = self.dice
        names = list(row)
        for name in names:
            value = row[name]
            if _is_json(value) and dice.random() < 0.7:
                bad = self.mutator.line(value.encode("utf-8", "replace"))
                row[name] = bad.decode("utf-8", "replace") if dice.random() < 0.9 else bad
            elif dice.random() < 0.15 and not (name == names[0] and isinstance(value, int)):
                row[name] = self._stored(value)
        key = names[0]
        if dice.random() < 0.6:
            if isinstance(row[key], int):
                row.pop(key)
            else:
                row[key] = f"{row[key]}{dice.randrange(1_000_000)}"
        marks = ",".join("?" * len(row))
        try:
            db.execute(
                f"INSERT OR REPLACE INTO {table} ({','.join(row)}) VALUES ({marks})", list(row.values())
            )
        except sqlite3.Error:  # what the table itself refuses
            return False
        return True

    def _stored(self, value: Any) -> Any:
        """What SQLite can store in the place of a value; its columns have no types."""
        dice = self.dice
        options = (
            None,
            0,
            -1,
            2**63 - 1,
            -(2**63),
            1e308,
            "",
            "x" * 5000,
            b"\xff\x00",
            "\ud83d".encode("utf-8", "replace").decode(),
            "2026-01-01 00:00:00",
            "9999-12-31 23:59:59",
            str(value),
            1.5,
            "\x00\x1b",
            253_402_300_800_000,
        )
        return dice.choice(options)

    # ------------------------------------------------------------------------- the intact part

    def append(self, case: Path, *, same: bool) -> list[Path]:
        """Adds a recorded session, as it is; `same`: behind the bad records, in their file. The files written."""
        written = []
        mine = dict(reversed(parts(self.agent, self.home)))
        for storage, path in parts(self.agent, case / "home"):
            target = self.home / path.relative_to(case / "home")
            if storage == "rows":
                written.append(self._append_rows(path, target))
                continue
            if same and storage == "lines" and "lines" in mine:
                target = mine["lines"]
            target.parent.mkdir(parents=True, exist_ok=True)
            body = path.read_bytes()
            if storage == "document":
                target.write_bytes(body)
            else:
                with target.open("ab") as file:
                    file.write(body)
            written.append(target)
        return written

    def _append_rows(self, path: Path, target: Path) -> Path:
        found = tables(path)
        if not target.exists() or self.damaged:
            target.parent.mkdir(parents=True, exist_ok=True)
            for end in ("", "-wal", "-shm"):
                Path(f"{target}{end}").unlink(missing_ok=True)
                if Path(f"{path}{end}").exists():
                    shutil.copyfile(f"{path}{end}", f"{target}{end}")
            with _opened(target) as db:
                for table, rows in found:
                    for name in rows[0]:
                        db.execute(
                            f"UPDATE {table} SET {name} = ? WHERE {name} = ?", (RENAMED[1], RENAMED[0])
                        )
            return target
        with _opened(target) as db:
            for table, rows in found:
                columns = {row[1] for row in db.execute(f"PRAGMA table_info({table})")}
                for row in rows:
                    kept = {name: _renamed(row[name]) for name in row if name in columns}
                    first = next(iter(kept), "")
                    if isinstance(kept.get(first), int):
                        del kept[first]
                    if not kept:
                        continue
                    marks = ",".join("?" * len(kept))
                    db.execute(
                        f"INSERT OR REPLACE INTO {table} ({','.join(kept)}) VALUES ({marks})",
                        list(kept.values()),
                    )
        return target


RENAMED = ("20251118_1", "20251118_77")
"""Ids that count from 1 each day: the intact session must not have that of another."""


def _renamed(value: Any) -> Any:
    return RENAMED[1] if value == RENAMED[0] else value


def _is_json(value: Any) -> bool:
    return isinstance(value, str) and value[:1] in ("{", "[") and value[-1:] in ("}", "]")


def _longest_list(document: Any) -> list[Any] | None:
    lists = [document] if isinstance(document, list) else []
    if isinstance(document, dict):
        lists = [value for value in document.values() if isinstance(value, list)]
    found = max(lists, key=len, default=None)
    return found or None


@cache
def tables(path: Path) -> list[tuple[str, list[dict[str, Any]]]]:
    """All rows of a recorded database."""
    found = []
    with _opened(path, copy=True) as db:
        db.row_factory = sqlite3.Row
        there = {row[0] for row in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        for name in (name for name in READ if name in there):
            rows = [dict(row) for row in db.execute(f"SELECT * FROM {name} ORDER BY rowid")]
            if rows:
                found.append((name, rows))
    return found


class _opened:  # noqa: N801 used like a function
    """A database, for one transaction; `copy`: one that must not be touched."""

    def __init__(self, path: Path, *, copy: bool = False) -> None:
        self._path = path
        self._folder: Any = None
        if copy:
            import tempfile

            self._folder = tempfile.TemporaryDirectory()
            for end in ("", "-wal", "-shm"):
                if Path(f"{path}{end}").exists():
                    shutil.copyfile(f"{path}{end}", f"{self._folder.name}/db{end}")
            self._path = Path(self._folder.name, "db")

    def __enter__(self) -> sqlite3.Connection:
        self._db = sqlite3.connect(self._path)
        self._db.execute("PRAGMA synchronous = OFF")
        return self._db

    def __exit__(self, *_: object) -> None:
        self._db.commit()
        self._db.close()
        if self._folder is not None:
            self._folder.cleanup()

"""Recorded sessions as the steps in which their agents wrote them, for a process that writes them again.

A step is one write: bytes appended to a file of lines (often half a line), a document written anew in place, one
transaction of a database. Each has the time that the clock shows when it is made: that of the record, so that grace
and silence pass between the steps as they did between the records.
"""

from __future__ import annotations

import json
import random
import shutil
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from msgspec import Struct, structs

import replay
import truth
from spantail.formats import TABLE
from spantail.formats.times import iso_ns
from spantail.model import MILLISECOND, SECOND

sys.path.append(str(Path(__file__).resolve().parents[1] / "formats"))
import database_writer
import goose_database
from test_aider_live import Writer as AiderWriter

Statement = tuple[str, list[object]]


class Step(Struct, frozen=True):
    time: int
    path: str
    how: Literal["append", "rewrite", "script", "transaction"]
    body: bytes = b""
    statements: list[Statement] = []


class Recorder:
    """Takes the place of a connection, and keeps what it was told to do."""

    def __init__(self) -> None:
        self.statements: list[Statement] = []

    def execute(self, statement: str, values: object = ()) -> None:
        self.statements.append((statement, list(values)))


FOLDERS = (
    "aider",
    "claude-code",
    "claude-code-2.1.326",
    "clido",
    "cline",
    "codex",
    "gemini-cli",
    "generic",
    "goose",
    "opencode",
    "opencode-json",
    "pi",
)
"""Every agent and every storage. Of a folder with very many steps some cases are taken, by the seed."""
MOST = 1000


def make(folder: str, homes: Path, seed: int) -> list[Step]:
    """The sessions of a folder of fixtures, each in a home of its own, in the order of their times."""
    dice = random.Random(seed)
    cases = [case for case in truth.cases() if case.parent.name == folder]
    dice.shuffle(cases)
    found: list[Step] = []
    for number, case in enumerate(cases):
        if len(found) > MOST:
            break
        home = homes / case.name
        found += _monotonic(list(_case(case, home, dice, number)), number)
        for row in TABLE:
            for root in row.roots:
                if (case / "home" / root.path).is_dir():
                    (home / root.path).mkdir(parents=True, exist_ok=True)
    return sorted(found, key=lambda step: step.time)


def _monotonic(made: list[Step], number: int) -> list[Step]:
    """The clock of a case never goes back. Lines without times are a while apart."""
    first = min((step.time for step in made if step.time), default=(1_700_000_000 + 86_400 * number) * SECOND)
    timeless = len({step.time for step in made if step.time}) < 2 < len(made)
    out, now = [], first
    for step in made:
        now = max(now, step.time) + (300 * MILLISECOND if timeless else 0)
        out.append(structs.replace(step, time=now))
    return out


def _case(case: Path, home: Path, dice: random.Random, number: int) -> Iterator[Step]:
    databases = [
        path
        for path in (case / "home").rglob("*.db")
        if path.name in {"opencode.db", "sessions.db"} and ".cline" not in path.parts
    ]
    if databases:
        yield from _database(databases[0], case, home, events=number % 2 == 0)
    elif case.parent.name == "aider":
        pieces = [(time, Path(path), body) for time, path, body in AiderWriter(case / "home").pieces()]
        yield from _torn(pieces, home, dice)
    elif case.parent.name == "cline":
        yield from _documents(case, home, dice)
    elif case.parent.name == "opencode-json":
        yield from _entries(case, home)
    else:
        pieces = [piece for piece in replay.lines(case / "home") if piece[1].suffix == ".jsonl"]
        whole = [piece for piece in replay.lines(case / "home") if piece[1].suffix != ".jsonl"]
        yield from (Step(0, str(home / path), "rewrite", body) for _, path, body in whole)
        yield from _torn(pieces, home, dice)


def _torn(pieces: list[replay.Piece], home: Path, dice: random.Random) -> Iterator[Step]:
    """Half of the lines in two pieces. The second is written before the clock moves on: an agent writes a record
    when it has it."""
    for time, path, body in pieces:
        cut = dice.randint(1, len(body) - 1) if len(body) > 1 and dice.random() < 0.5 else len(body)
        yield Step(time, str(home / path), "append", body[:cut])
        if cut < len(body):
            yield Step(time, str(home / path), "append", body[cut:])


# ----------------------------------------------------------------------------------- documents


def _documents(case: Path, home: Path, dice: random.Random) -> Iterator[Step]:
    """Each message rewrites its document; the manifests end the runs last."""
    original = case / "home"
    timed: list[tuple[int, Step]] = []
    begun, ended = [], []
    for path in sorted(original.glob(".cline/data/sessions/*/*.json")):
        there = str(home / path.relative_to(original))
        document = json.loads(path.read_bytes())
        first = {k: v for k, v in document.items() if k not in ("ended_at", "exit_code")}
        first |= {"messages": []} if "messages" in document else {"status": "running"}
        begun.append(Step(0, there, "rewrite", json.dumps(first, indent=2).encode()))
        time = 0
        for count, message in enumerate(document.get("messages", ()), 1):
            grown = {**document, "messages": document["messages"][:count]}
            time = max(time, message.get("ts", 0) * MILLISECOND)
            timed.append((time, Step(time, there, "rewrite", json.dumps(grown, indent=2).encode())))
        ended.append(Step(0, there, "rewrite", path.read_bytes()))
    for path in sorted(original.glob(".cline/data/logs/hooks.jsonl")):
        for line in path.read_bytes().splitlines(keepends=True):
            time = iso_ns(json.loads(line)["ts"])
            timed.append((time, Step(time, str(home / path.relative_to(original)), "append", line)))
    yield from begun
    # A hook is run, and has written its line, before the message with what it was about.
    yield from (step for _, step in sorted(timed, key=lambda pair: (pair[0], pair[1].how)))
    yield from ended


def _entries(case: Path, home: Path) -> Iterator[Step]:
    """One small document per message and part, in the order of the ids; a message stands unfinished until its
    parts are there."""
    original = case / "home/.local/share/opencode/storage"
    bodies = {path: path.read_bytes() for path in original.rglob("*.json")}
    timed: list[tuple[int, int, Path, bytes]] = []
    for path, body in bodies.items():
        kind = path.relative_to(original).parts[0]
        document = json.loads(body)
        if kind not in {"session", "message", "part"}:
            continue
        time = document.get("time") or {}
        start = int(time.get("created") or time.get("start") or 0)
        end = int(time.get("completed") or time.get("end") or start)
        state = document.get("state") or {}
        if state.get("time"):
            start, end = state["time"]["start"], state["time"].get("end", state["time"]["start"])
        if kind == "part" and not start:
            message = next(p for p in bodies if p.name == f"{document['messageID']}.json")
            owner = json.loads(bodies[message])["time"]
            start = end = owner["completed"] if document["type"] == "step-finish" else owner["created"]
        timed.append((end, {"session": 0, "part": 1, "message": 2}[kind], path, body))
        if kind == "message" and end > start:
            half = {k: v for k, v in document.items() if k not in {"finish", "error"}}
            half["time"] = {"created": start}
            half["tokens"] = {"input": 0, "output": 0, "reasoning": 0, "cache": {"read": 0, "write": 0}}
            half["cost"] = 0
            timed.append((start, 1, path, json.dumps(half, indent=2).encode()))
    for time, _, path, body in sorted(timed, key=lambda each: each[:3]):
        yield Step(time * MILLISECOND, str(home / path.relative_to(case / "home")), "rewrite", body)


# ----------------------------------------------------------------------------------- databases


def _database(recorded: Path, case: Path, home: Path, *, events: bool) -> Iterator[Step]:
    there = str(home / recorded.relative_to(case / "home"))
    copy = home.parent.with_name("recorded") / case.name
    shutil.copytree(recorded.parent, copy)  # to open a database touches the files beside it
    changes: Callable[[Path], Iterator[Step]] = _goose if recorded.name == "sessions.db" else _opencode
    for step in changes(copy / recorded.name):
        statements = [pair for pair in step.statements if events or "INSERT INTO event" not in pair[0]]
        yield structs.replace(step, path=there, statements=statements)


def _opencode(recorded: Path) -> Iterator[Step]:
    yield Step(0, "", "script", database_writer.TABLES.encode())
    for event in database_writer.changes(recorded):
        target = Recorder()
        database_writer.store(target, event, keep_events=True)
        body = json.loads(event[4])
        times = [body.get("time"), *body.get("info", {}).get("time", {}).values()]
        time = max((int(each) for each in times if isinstance(each, int | float)), default=0)
        yield Step(time * MILLISECOND, "", "transaction", statements=target.statements)


def _goose(recorded: Path) -> Iterator[Step]:
    with closing(sqlite3.connect(recorded)) as source:
        tables = [
            sql for (sql,) in source.execute("SELECT sql FROM sqlite_master WHERE name NOT LIKE 'sqlite_%'")
        ]
        yield Step(0, "", "script", ";\n".join(tables).encode())
        for change in goose_database.changes(source):
            statements = [(statement, list(values)) for statement, values in change]
            times = [_seconds(value) for _, values in statements for value in values]
            yield Step(max(times) * SECOND, "", "transaction", statements=statements)


def _seconds(value: object) -> int:
    if isinstance(value, int) and 10**9 < value < 4 * 10**9:
        return value
    if isinstance(value, str) and len(value) == 19 and value[4] == value[7] == "-":
        return int(datetime.strptime(value, "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC).timestamp())
    return 0

"""Secrets planted everywhere in sessions, and everything that leaves the process searched for them.

Text of people, models and tools gets words of a canary and secrets of real shapes; so do paths, branches, and the
names of tools and models. What leaves: the OTLP requests, the page, the textfile, the log, the lines on the terminal.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import shutil
import sqlite3
import sys
from pathlib import Path
from typing import Any

import pytest
from hostile_home import parts

import truth
from program import LONG_AFTER, configured
from receiver import Receiver
from spantail.commands.run import Run
from spantail.formats import TABLE
from spantail.formats.row import Format
from spantail.model import SECOND
from spantail.state.store import Store
from spantail.tail.wake import HandWaker

CANARY = "zebrawords"
LETTERS = "aB3dE5gH7jK9mN1pQ2sT4vW6xY8z"
SECRETS = (
    "AKIA" + "IOSFODNN7EXAMPLE",
    "ghp_" + LETTERS + "ABCDEFGH",
    "sk-ant-api03-" + LETTERS + "-AA",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0." + LETTERS,
)
PLANTED = f"{CANARY} {' '.join(SECRETS)} https://me:hunter2pass@host/x password=hunter2pass"
NAMED = SECRETS[1]
"""The one that names and paths have in them."""
KEYS = {
    "model": lambda old: f"{old} {NAMED}",
    "modelId": lambda old: f"{old} {NAMED}",
    "gitBranch": lambda _: f"feature/{NAMED}",
    "branch": lambda _: f"feature/{NAMED}",
    "cwd": lambda _: f"/home/{CANARY}/{NAMED}/ws {NAMED}",
    "directory": lambda _: f"/home/{CANARY}/{NAMED}/ws {NAMED}",
    "working_dir": lambda _: f"/home/{CANARY}/{NAMED}/ws {NAMED}",
}
TOOLS = ("name", "toolName", "tool", "tool_name")
SAID = (
    "text",
    "content",
    "message",
    "error",
    "errorMessage",
    "output",
    "prompt",
    "stdout",
    "stderr",
    "result",
    "thinking",
)
CASES = ("tools-a", "fatal-a")
FAILED = ("failed-a", "exit-error-a")
"""What some agents have instead of the second."""


def planted(value: Any, key: str = "") -> Any:
    """The value with something planted in every text of it; keys, ids, kinds and times stay what they are."""
    if isinstance(value, dict):
        return {k: planted(v, k) for k, v in value.items()}
    if isinstance(value, list):
        return [planted(each, key) for each in value]
    if not isinstance(value, str):
        return value
    if key in KEYS and value:
        return KEYS[key](value)
    if value[:1] == "{" and value[-1:] == "}":
        try:
            return json.dumps(planted(json.loads(value)))
        except ValueError:
            return value
    if key in TOOLS and value:
        return f"{value} {NAMED}"
    if " " in value.strip() or "\n" in value or (key in SAID and value):
        return f"{value}\n{PLANTED}"
    return value


def plant(agent: str, case: Path, home: Path) -> None:
    shutil.copytree(case / "home", home)
    for storage, path in parts(agent, home):
        if storage == "rows":
            _plant_rows(path)
        elif storage == "document":
            path.write_text(json.dumps(planted(json.loads(path.read_text()))))
        elif storage == "text":
            path.write_text("".join(_text(line) for line in path.read_text().splitlines(keepends=True)))
        else:
            lines = path.read_text().splitlines()
            path.write_text(
                "".join(
                    json.dumps(planted(json.loads(line))) + "\n" if _whole(line) else line + "\n"
                    for line in lines
                )
            )


def _whole(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False


def _text(line: str) -> str:
    """What a person, a model or a program said; not the lines that tell what happened."""
    said = line.strip() and not line.startswith(("# aider", "> Tokens", "> Model", "> Aider", "+", "#"))
    return line.rstrip("\n") + f" {PLANTED}\n" if said else line


def _plant_rows(path: Path) -> None:
    db = sqlite3.connect(path)
    for (table,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
        columns = [row[1] for row in db.execute(f"PRAGMA table_info({table})")]
        for rowid, *values in db.execute(f"SELECT rowid, {', '.join(columns)} FROM {table}").fetchall():
            for column, value in zip(columns, values, strict=True):
                if (
                    isinstance(value, str)
                    and "id" not in column
                    and not column.endswith(("_at", "timestamp"))
                ):
                    new = planted(value, column)
                    if value[:1] == "[":
                        new = json.dumps(planted(json.loads(value)))
                    db.execute(f"UPDATE {table} SET {column} = ? WHERE rowid = ?", (new, rowid))
    db.commit()
    db.close()


def row(agent: str) -> Format:
    return next(each for each in TABLE if each.agent == agent)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def left(agent: str, home: Path, state: Path, content: str, monkeypatch) -> tuple[bytes, str, int]:
    """Everything that leaves the process for a backend, everything it says here, and the number of its spans."""
    shown, logged = Terminal(), io.StringIO()
    monkeypatch.setattr(sys, "stdout", shown)
    monkeypatch.setattr(sys, "stderr", logged)
    with Receiver("http") as receiver:
        for key, value in receiver.environ().items():
            monkeypatch.setenv(key, value)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer header-hunter2pass")
        empty = state / "empty"
        later = not row(agent).roots[0].search  # what may lie anywhere is looked for once in a while only
        shutil.copytree(
            home,
            empty,
            ignore=lambda folder, names: [n for n in names if later and not Path(folder, n).is_dir()],
        )
        now, waker, store = [LONG_AFTER], HandWaker(), Store(state)
        config = configured(
            empty, state, once=False, content=content, agents=(agent,), textfile=str(state / "page")
        )
        run = Run(config, os.environ, store, clock=lambda: now[0], waker=waker, strict=True)
        run.begin()
        # Written while it is followed: so turns are told on the terminal, or in the log.
        shutil.copytree(home, empty, dirs_exist_ok=True)
        waker.lose()
        run.follow.step(0)
        for _ in range(3):
            now[0] += 3 * 3600 * SECOND
            run.follow.step(0)
        run.notices.turns(run.follow._turns)
        assert run.deliverer.wait_idle(30)
        run._leave()
        page = run.page.render("application/openmetrics-text;version=1.0.0", scraper=False)[0].decode()
        store.close()
        sent = b"".join(
            gzip.decompress(each.body) if each.headers.get("content-encoding") == "gzip" else each.body
            for each in receiver.requests
        )
    told = shown.getvalue() + logged.getvalue() + page + (state / "page").read_text()
    return sent, told, len(receiver.spans)


@pytest.mark.parametrize("content", ["none", "target", "full"])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("agent", [row.agent for row in TABLE])
def test_no_planted_secret_leaves(agent, case, content, tmp_path, monkeypatch):
    """With `none` no free text either; with the others text leaves for the backend only, and no secret in it."""
    cases = [truth.FIXTURES / agent / name for name in (case, *FAILED)]
    found = next(each for each in cases if each.exists())
    plant(agent, found, tmp_path / "home")
    sent, told, spans = left(agent, tmp_path / "home", tmp_path / "state", content, monkeypatch)
    assert spans, "or nothing is proven"
    everything = sent + told.encode()
    for secret in (*SECRETS, "hunter2pass"):
        for piece in (secret, secret[6:-6] if len(secret) > 24 else secret):
            assert piece.encode() not in everything, (
                piece,
                everything[max(0, everything.find(piece.encode()) - 200) :][:400],
            )
    assert CANARY not in told, told[max(0, told.find(CANARY) - 300) :][:500]
    if content == "none":
        assert CANARY.encode() not in sent, sent[max(0, sent.find(CANARY.encode()) - 200) :][:400]
    if content == "full" and case == "tools-a":
        assert CANARY.encode() in sent, "or nothing was planted"

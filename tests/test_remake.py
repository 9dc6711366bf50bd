"""An upgrade that changes the shape of open work, in the middle of a turn, leaves no trace in what is counted and sent.

The stand-in for the older version is the state itself: its rows get other shape numbers and lose what only the code
that wrote them could read.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

import replay
import truth
from program import configured
from receiver import Receiver, Span
from spantail.commands.run import Run
from spantail.formats import TABLE
from spantail.formats.times import ms_ns
from spantail.model import SECOND
from spantail.remake import Remake
from spantail.state.store import Store
from spantail.tail.wake import HandWaker
from test_live import _added, content

FIXTURES = truth.FIXTURES
PLACES = sorted({root.path for row in TABLE for root in row.roots if not root.search})
RECORDED = 1_763_400_000 * SECOND
"""Before the oldest of the fixtures was."""
Stage = tuple[int, Callable[[Path], Path]]
"""When something is written (0: whenever), and what writes it into a home: the path that changed."""


class Program:
    """Follows what is written, stage by stage, with a clock of the records' own, through upgrades."""

    def __init__(self, home: Path, state: Path, begin: int) -> None:
        self.home, self.state, self.now = home, state, begin
        self.waker = HandWaker()
        self.start()

    def start(self) -> None:
        self.store = Store(self.state)
        config = configured(self.home, self.state, once=False)
        self.run = Run(config, os.environ, self.store, clock=lambda: self.now, waker=self.waker, strict=True)
        self.run.begin()

    def write(self, stage: Stage) -> Path:
        path = stage[1](self.home)
        self.now = max(self.now, stage[0] or self.newest(path))
        return path

    def take(self, stage: Stage) -> None:
        self.waker.change(str(self.write(stage)))
        self.run.follow.step(0)

    @staticmethod
    def newest(path: Path) -> int:
        """The time of the newest row of a database."""
        if path.suffix != ".db":
            return 0
        db = sqlite3.connect(path)
        ask = "SELECT coalesce(max(time_updated), 0) * 1000000 FROM part"
        if path.name == "sessions.db":
            ask = "SELECT coalesce(max(created_timestamp), 0) * 1000000000 FROM messages"
        (found,) = db.execute(ask).fetchone()
        db.close()
        return int(found)

    def kill(self) -> None:
        if self.run.deliverer is not None:
            self.run.deliverer.stop(5)
        self.store.close()

    def end(self) -> str:
        for _ in range(3):
            self.now += 3 * 3600 * SECOND
            self.run.follow.step(0)
        if self.run.deliverer is not None:
            assert self.run.deliverer.wait_idle(20)
        self.run._leave()
        self.store.close()
        return (self.state / "page.prom").read_text()


def upgrade(state: Path, *what: str) -> int:
    """As if another version had written it. How many turns were open."""
    db = sqlite3.connect(state / "state.db", isolation_level=None)
    rows = db.execute("SELECT grp, session, work FROM works").fetchall()
    if "work" in what:
        # Of what every shape has only the names that never change are left.
        for group, session, row in rows:
            db.execute(
                "UPDATE works SET shape=99, work=? WHERE grp=? AND session=?", (reshaped(row), group, session)
            )
        db.execute("UPDATE cursors SET shape=shape+1")
    if "reader" in what:
        db.execute("UPDATE cursors SET shape=shape+65536, reader=X'c1'")
    db.close()
    return sum("turn" in msgspec.msgpack.decode(row) for _, _, row in rows)


def reshaped(row: bytes) -> bytes:
    work = msgspec.msgpack.decode(row)
    for turn in [work.get("turn") or {}, *work.get("waiting", ())]:
        for name in (
            "models",
            "tools",
            "ready",
            "model_busy",
            "tool_busy",
            "fresh",
            "known",
            "ends",
            "rests",
            "marked",
        ):
            turn.pop(name, None)
    for name in ("recent", "digests", "past", "late", "early", "root"):
        work.pop(name, None)
    return msgspec.msgpack.encode(work)


class Followed(NamedTuple):
    spans: list[Span]
    page: str
    open: int
    """Turns that were open when the upgrade came."""


def followed(
    stages: Sequence[Stage],
    folder: Path,
    receiver: Receiver,
    monkeypatch,
    cut: int | None = None,
    *what: str,
    after: Callable[[Path], None] = lambda _home: None,
) -> Followed:
    """`after` comes between the two versions."""
    for key, value in receiver.environ().items():
        monkeypatch.setenv(key, value)
    home, state = folder / "home", folder / "state"
    home.mkdir(parents=True, exist_ok=True)
    for place in PLACES:  # folders are there from the start, so that every change is seen as it comes
        (home / place).mkdir(parents=True, exist_ok=True)
    program = Program(home, state, min((at for at, _ in stages if at), default=RECORDED))
    open_ = 0
    for number, stage in enumerate(stages):
        if number == cut:
            program.kill()
            open_ = upgrade(state, *what)
            after(home)
            if number % 2:  # written while nobody looked
                program.write(stage)
                program.start()
                continue
            program.start()
        program.take(stage)
    page = program.end()
    return Followed(receiver.spans, page, open_)


def lines(case: Path) -> list[Stage]:
    def written(piece: replay.Piece) -> Callable[[Path], Path]:
        return lambda home: replay.append(home, piece)

    return [(piece[0], written(piece)) for piece in replay.lines(case / "home")]


def documents(case: Path) -> list[Stage]:
    """Each message rewrites its document."""
    stages: list[Stage] = []
    last: list[Stage] = []
    for path in sorted((case / "home").rglob("*.json")):
        relative, document = path.relative_to(case / "home"), json.loads(path.read_bytes())
        messages = document.get("messages")
        for count in range(1, len(messages) + 1) if messages else ():
            grown = json.dumps({**document, "messages": messages[:count]}, indent=2).encode()
            stages.append((ms_ns(messages[count - 1]["ts"]), rewritten(relative, grown)))
        if not messages:
            begun = {**document, "status": "running"}
            for name in ("ended_at", "exit_code"):
                begun.pop(name, None)
            stages.append((0, rewritten(relative, json.dumps(begun, indent=2).encode())))
            last.append((0, rewritten(relative, path.read_bytes())))
    return sorted(stages, key=lambda stage: stage[0]) + last


def rewritten(relative: Path, body: bytes) -> Callable[[Path], Path]:
    def write(home: Path) -> Path:
        path = home / relative
        path.parent.mkdir(parents=True, exist_ok=True)
        before = path.stat().st_mtime_ns if path.exists() else 0
        path.write_bytes(body)
        while path.stat().st_mtime_ns == before:  # the clock of the file system has ticks
            os.utime(path, ns=(before + 10**8,) * 2)
        return path

    return write


class Writer:
    """A process that writes a recorded database again, change by change."""

    def __init__(self, script: str, recorded: Path, new: Path, *flags: str) -> None:
        new.parent.mkdir(parents=True)
        self.new = new
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).parent / "formats" / script), str(recorded), str(new), *flags],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self.answer() == "ok"

    def __call__(self, command: str) -> str:
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        return self.answer()

    def answer(self) -> str:
        return self.process.stdout.readline().strip()

    def write(self, _home: Path) -> Path:
        if self("write") == "ok":
            self("commit")
        return self.new

    def close(self) -> None:
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()


def same(one: Followed, other: Followed) -> None:
    """A span may be sent again after a kill, but never with another content."""
    contents = {(span.span_id, repr(content(span))) for span in one.spans}
    assert contents == {(span.span_id, repr(content(span))) for span in other.spans}
    assert _added(one.page) == _added(other.page)


def cuts(stages: list[Stage]) -> list[int]:
    return sorted({len(stages) * part // 3 for part in (1, 2)} | {len(stages) - 1})


WRITTEN = {
    "claude-code/tools-a": lines,
    "claude-code/subagent-a": lines,
    "claude-code/fork-a": lines,
    "codex/tools-a": lines,
    "codex-0.98.0/tools-a": lines,
    "pi/tools-a": lines,
    "cline/tools-a": documents,
    "cline/multi-a": documents,
}


UPGRADES = [("work",), ("reader",), ("work", "reader")]


@pytest.mark.parametrize("what", UPGRADES, ids="+".join)
@pytest.mark.parametrize("name", WRITTEN)
def test_an_upgrade_in_the_middle_of_a_turn(name, what, tmp_path, monkeypatch):
    """The same spans with the same content and the same totals as without it, wherever it comes."""
    stages = WRITTEN[name](FIXTURES / name)
    with Receiver("http") as receiver:
        calm = followed(stages, tmp_path / "calm", receiver, monkeypatch)
    assert any(truth.is_turn(span) for span in calm.spans)
    open_ = 0
    for cut in cuts(stages):
        with Receiver("http") as receiver:
            found = followed(stages, tmp_path / str(cut), receiver, monkeypatch, cut, *what)
        same(found, calm)
        open_ += found.open
    assert open_


DATABASES = {
    "opencode/tools-a": ("database_writer.py", ".local/share/opencode/opencode.db", "events"),
    "opencode/subagent-a": ("database_writer.py", ".local/share/opencode/opencode.db", "rows"),
    "goose/tools-a": ("goose_database.py", ".local/share/goose/sessions/sessions.db"),
    "goose/multi-a": ("goose_database.py", ".local/share/goose/sessions/sessions.db"),
}


@pytest.mark.parametrize("what", UPGRADES, ids="+".join)
@pytest.mark.parametrize("name", DATABASES)
def test_an_upgrade_in_the_middle_of_a_database(name, what, tmp_path, monkeypatch):
    """Rows that were known are read again, those that came since are counted."""
    script, place, *flags = DATABASES[name]
    shutil.copytree((FIXTURES / name / "home" / place).parent, tmp_path / "recorded")
    recorded = tmp_path / "recorded" / Path(place).name

    def write(folder: Path, cut: int | None, *what: str) -> Followed:
        writer = Writer(script, recorded, folder / "home" / place, *flags)
        try:
            with Receiver("http") as receiver:
                return followed([(0, writer.write)] * steps, folder, receiver, monkeypatch, cut, *what)
        finally:
            writer.close()

    counted = Writer(script, recorded, tmp_path / "count" / "new.db", *flags)
    steps = 0
    while counted("write") == "ok":
        counted("commit")
        steps += 1
    counted.close()
    calm = write(tmp_path / "calm", None)
    assert any(truth.is_turn(span) for span in calm.spans)
    open_ = 0
    for cut in cuts([(0, Path)] * steps):
        found = write(tmp_path / str(cut), cut, *what)
        same(found, calm)
        open_ += found.open
    assert open_


def test_a_turn_whose_records_are_gone_is_closed_as_pending(tmp_path, monkeypatch):
    """With what the row says in every shape; what comes later in a file of that name is work of its own."""
    stages = lines(FIXTURES / "claude-code" / "tools-a")
    cut = len(stages) * 3 // 5

    def delete(home: Path) -> None:
        for path in home.rglob("*.jsonl"):
            path.unlink()

    with Receiver("http") as receiver:
        calm = followed(stages, tmp_path / "calm", receiver, monkeypatch)
    with Receiver("http") as receiver:
        found = followed(
            stages[: cut + 1], tmp_path / "cut", receiver, monkeypatch, cut, "work", after=delete
        )
    assert found.open == 1
    (whole,) = [span for span in calm.spans if truth.is_turn(span)]
    turns = [span for span in found.spans if span.span_id == whole.span_id]
    assert [span.attrs["coding_agent.turn.status"] for span in turns] == ["pending"]
    assert turns[0].start == whole.start
    assert turns[0].attrs["session.id"] == whole.attrs["session.id"]


def test_a_session_at_rest_is_read_again_when_it_goes_on(tmp_path, monkeypatch):
    """Not at the start: a long history costs nothing until it is touched. Its turns are numbered on."""
    stages = lines(FIXTURES / "claude-code" / "resume-a")
    at = next(n for n, (_, write) in enumerate(stages) if b'"third"' in write.__closure__[0].cell_contents[2])
    hour = 3600 * SECOND
    later = [(time + (hour if n >= at else 0), write) for n, (time, write) in enumerate(stages)]
    later.insert(at, (later[at - 1][0] + 45 * 60 * SECOND, lambda home: home))  # nothing happens for long
    at += 1
    with Receiver("http") as receiver:
        calm = followed(later, tmp_path / "calm", receiver, monkeypatch)
    read: list[int] = []

    def rest(home: Path) -> None:
        for path in home.rglob("*.jsonl"):
            os.utime(path, ns=(SECOND,) * 2)

    before = Remake._remake

    def remake(self, sources, now):
        read.append(before(self, sources, now))
        return read[-1]

    monkeypatch.setattr(Remake, "_remake", remake)
    with Receiver("http") as receiver:
        found = followed(later, tmp_path / "cut", receiver, monkeypatch, at, "work", "reader", after=rest)
    assert read == [1]
    same(found, calm)
    assert {span.attrs["coding_agent.turn.index"] for span in found.spans if truth.is_turn(span)} == {1, 2, 3}

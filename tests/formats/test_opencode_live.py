"""A database followed while it is written gives the same as one read whole, by events or by rows alone."""

import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from spantail.formats.opencode import FORMAT
from spantail.model import Context, ModelCall, Settled, ToolCall, Turn
from spantail.session.sessions import Sessions
from spantail.session.settle import Rules
from spantail.state.ledger import Ledger
from spantail.tail.rows import RowsTail
from spantail.tail.source import Source

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
DATABASE = "home/.local/share/opencode/opencode.db"
LATER = 2 * 10**18
CASES = ["tools-a", "subagent-a", "compact-a", "parallel-a", "abort-a", "killresume-a"]


class Limits(msgspec.Struct):
    record_bytes: int = 1 << 26
    document_bytes: int = 1 << 28


class Strict:
    """Nothing may go wrong."""

    def __getattr__(self, name):
        def said(*about):
            raise AssertionError((name, *about))

        return said


class Follower:
    """A tail, a reader and the sessions, as the loop holds them."""

    def __init__(self, path, ledger=None):
        kind = FORMAT.files[0]
        self.source = Source(str(path), FORMAT, kind, str(path.parent), "")
        self.tail = RowsTail(self.source, None, Strict(), Limits())
        self.reader = kind.reader()
        self.sessions = Sessions(
            Context(agent=FORMAT.agent),
            Rules(),
            ledger if ledger is not None else Ledger(),
            lambda *_, **__: None,
            lambda cwd: cwd.rpartition("/")[2],
            lambda _: None,
        )
        self.records = 0

    def read(self, budget=1 << 30):
        while self.tail.changed():
            batch = self.tail.read(budget, 0)
            self.records += len(batch.records)
            for record in batch.records:
                self.sessions.apply(self.reader.read(record))

    def restart(self):
        """Killed after a commit: only what was stored is left."""
        cursor, memory = self.tail.cursor(), msgspec.msgpack.encode(self.reader)
        self.tail.close()
        self.tail = RowsTail(self.source, cursor, Strict(), Limits())
        self.reader = msgspec.msgpack.decode(memory, type=type(self.reader))

    def outcome(self):
        self.sessions.settle(LATER)
        self.tail.close()
        return self.sessions.take()


def whole(path, ledger=None):
    follower = Follower(path, ledger)
    follower.read()
    return follower.outcome()


def spans(outcomes):
    """Everything that is sent, in an order of its own."""
    found = [outcome for outcome in outcomes if isinstance(outcome, Settled)]
    return sorted(found, key=lambda span: (span.trace, span.span))


def totals(outcomes):
    """What must not depend on the way of reading: ids, statuses, tokens, cost."""
    return [
        (
            type(span).__name__,
            span.span,
            span.parent,
            span.status,
            span.error_type,
            (span.usage, span.cost) if isinstance(span, ModelCall | Turn) else None,
            span.exit_code if isinstance(span, ToolCall) else None,
        )
        for span in spans(outcomes)
    ]


def recorded(case, folder, tmp_path):
    """A copy: even a read-only connection touches the -shm file."""
    shutil.copytree((FIXTURES / folder / case / DATABASE).parent, tmp_path / "recorded")
    return tmp_path / "recorded" / "opencode.db"


def without_events(path):
    copy = path.parent.with_name("rows")
    shutil.copytree(path.parent, copy)
    connection = sqlite3.connect(copy / path.name)
    connection.execute("DELETE FROM event")
    connection.execute("DELETE FROM event_sequence")
    connection.commit()
    connection.close()
    return copy / path.name


WITH_EVENTS = sorted(
    (folder, path.name)
    for folder in ("opencode", "opencode-1.17.0")
    for path in (FIXTURES / folder).iterdir()
)


@pytest.mark.parametrize(("folder", "case"), WITH_EVENTS)
def test_rows_alone_give_the_totals_of_the_events(folder, case, tmp_path):
    """Spans, statuses, tokens and cost are the same when the events are deleted from a recorded database."""
    path = recorded(case, folder, tmp_path)
    by_events, by_rows = whole(path), whole(without_events(path))
    assert totals(by_events) == totals(by_rows)
    assert any(isinstance(span, Turn) for span in by_events)


def test_the_first_start_of_a_shell_command_counts(tmp_path):
    """1.17.0 moves the start with the output: by events 1.5 s are 1.5 s, by rows a little more, never 20 ms."""
    path = recorded("tools-a", "opencode-1.17.0", tmp_path)
    for database, source in ((path, "timestamps"), (without_events(path), "estimate")):
        slow = next(s for s in whole(database) if isinstance(s, ToolCall) and s.id == "call_ta4")
        assert 1.45e9 < slow.end - slow.start < 1.7e9
        assert slow.source == source


class Writer:
    def __init__(self, *arguments):
        script = Path(__file__).with_name("database_writer.py")
        self.process = subprocess.Popen(
            [sys.executable, str(script), *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.answer() == "ok"

    def answer(self):
        return self.process.stdout.readline().strip()

    def __call__(self, command):
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        return self.answer()

    def close(self):
        self.process.stdin.close()
        self.process.stdout.close()
        assert self.process.wait() == 0


@pytest.mark.parametrize("every", [1, 7])
@pytest.mark.parametrize("how", ["events", "rows"])
@pytest.mark.parametrize("case", CASES)
def test_followed_live_equals_read_whole(case, how, every, tmp_path):
    """A real process writes in WAL mode and holds its transactions open while we read; we are restarted
    between the reads. What is not committed is not seen, and at the end all is as if read at once."""
    new = tmp_path / "new" / "opencode.db"
    new.parent.mkdir()
    writer = Writer(recorded(case, "opencode", tmp_path), new, how)
    follower = Follower(new)
    steps = 0
    while writer("write") == "ok":
        steps += 1
        follower.read()
        seen = follower.records
        assert not follower.tail.changed()
        assert writer("commit") == "ok"
        if steps % every == 0:
            follower.read()
            assert follower.records >= seen
            follower.sessions.settle(max((work.last for work in follower.sessions.works.values()), default=0))
            follower.restart()
    writer.close()
    follower.read()
    assert steps > 5
    assert spans(follower.outcome()) == spans(whole(new))

"""Goose's database followed while a real process writes it gives what reading it whole gives."""

import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from spantail.formats.goose import FORMAT
from spantail.model import Context, Settled, Turn, Usage, UsageAdded
from spantail.session.sessions import Sessions
from spantail.session.settle import Rules
from spantail.state.ledger import Ledger
from spantail.tail.rows import RowsTail
from spantail.tail.source import Source

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures" / "goose"
CASES = sorted(path.name for path in FIXTURES.iterdir())
LATER = 2 * 10**18


class Limits(msgspec.Struct):
    record_bytes: int = 1 << 26


class Heard(list):
    def __getattr__(self, name):
        return lambda *_about: self.append(name)


class Follower:
    """A tail, a reader and the sessions, as the loop holds them."""

    def __init__(self, path):
        kind = FORMAT.files[0]
        self.source = Source(str(path), FORMAT, kind, str(path.parent), "")
        self.said = Heard()
        self.tail = RowsTail(self.source, None, self.said, Limits())
        self.reader = kind.reader()
        self.sessions = Sessions(
            Context(agent=FORMAT.agent),
            Rules(),
            Ledger(),
            lambda *_, **__: None,
            lambda cwd: cwd,
            lambda _: None,
        )
        self.records = 0
        self.outcomes = []

    def read(self, budget=1 << 30):
        while self.tail.changed():
            batch = self.tail.read(budget, 0)
            if batch.restarted:
                self.reader = type(self.reader)()
            self.records += len(batch.records)
            for record in batch.records:
                self.sessions.apply(self.reader.read(record))
            if not batch.records and self.said:
                return

    def settle(self, now=None):
        last = max((work.last for work in self.sessions.works.values()), default=0)
        self.sessions.settle(now or last)
        self.outcomes += self.sessions.take()

    def restart(self):
        """Killed after a commit: only what was stored is left."""
        cursor, memory = self.tail.cursor(), msgspec.msgpack.encode(self.reader)
        self.tail.close()
        self.tail = RowsTail(self.source, cursor, self.said, Limits())
        self.reader = msgspec.msgpack.decode(memory, type=type(self.reader))

    def end(self):
        self.settle(LATER)
        self.tail.close()
        return self.outcomes


def whole(path, budget=1 << 30):
    follower = Follower(path)
    follower.read(budget)
    return follower.end()


def spans(outcomes):
    """What is sent, without the tokens of roots: a total is not known to have grown before it is read."""
    found = [outcome for outcome in outcomes if isinstance(outcome, Settled)]
    bare = [msgspec.structs.replace(s, usage=Usage()) if isinstance(s, Turn) else s for s in found]
    return sorted(bare, key=lambda span: (span.trace, span.span))


def tokens(outcomes):
    counted = Counter()
    for outcome in outcomes:
        if isinstance(outcome, UsageAdded):
            counted[outcome.model, "input"] += outcome.usage.input
            counted[outcome.model, "output"] += outcome.usage.output
    return counted


def on_roots(outcomes):
    return sum(turn.usage.total() for turn in outcomes if isinstance(turn, Turn))


def recorded(case, tmp_path):
    """A copy: even a read-only connection touches the -shm file."""
    shutil.copytree(FIXTURES / case / "home/.local/share/goose/sessions", tmp_path / "recorded")
    return tmp_path / "recorded" / "sessions.db"


class Writer:
    def __init__(self, *arguments):
        script = Path(__file__).with_name("goose_database.py")
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


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("every", [1, 3, 1000])
def test_followed_live_equals_read_whole(case, every, tmp_path):
    """A real process writes in WAL mode and holds its transactions open while we read; we are restarted
    between the reads. What is not committed is not seen, and at the end all is as if the recorded database had
    been read at once, with each token counted once and on a root."""
    source = recorded(case, tmp_path)
    (tmp_path / "new").mkdir()
    new = tmp_path / "new" / "sessions.db"
    writer = Writer(source, new)
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
            assert follower.records > seen
            follower.settle()
            follower.restart()
    writer.close()
    follower.read()
    live = follower.end()
    assert steps > 1
    assert follower.said == []
    assert spans(live) == spans(whole(new)) == spans(whole(source))
    assert tokens(live) == tokens(whole(source))
    assert on_roots(live) == sum(tokens(live).values())


@pytest.mark.parametrize("case", CASES)
def test_read_in_small_pieces_equals_read_at_once(case, tmp_path):
    """The budget of a read may end after any row."""
    path = recorded(case, tmp_path)
    assert spans(whole(path, 1)) == spans(whole(path))
    assert on_roots(whole(path, 1)) == on_roots(whole(path))


def test_tokens_belong_to_the_turn_in_which_they_were_spent(tmp_path):
    """Three turns of two model calls each: followed live, each root has its own share."""
    (tmp_path / "new").mkdir()
    new = tmp_path / "new" / "sessions.db"
    writer = Writer(recorded("multi-a", tmp_path), new)
    follower = Follower(new)
    while writer("write") == "ok":
        writer("commit")
        follower.read()
    writer.close()
    turns = [turn for turn in follower.end() if isinstance(turn, Turn)]
    assert [turn.usage.input for turn in turns] == [2250, 2250, 2250]

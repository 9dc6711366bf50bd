"""A restart reads what is new and nothing else: counted at the file descriptors, not by our own counter."""

from __future__ import annotations

import os
import sys
import tempfile
from collections import Counter
from io import BufferedReader, FileIO
from pathlib import Path

import pytest
import seen

import replay
import truth
from program import LONG_AFTER, configured
from spantail import follow
from spantail.commands import run
from spantail.commands.run import Run
from spantail.model import SECOND
from spantail.state.store import Store
from spantail.tail import identity
from spantail.tail.wake import HandWaker

CASES = [
    case
    for case in truth.cases()
    if (case.parent.name, case.name)
    in {("claude-code", "subagent-a"), ("cline", "tools-a"), ("pi", "tools-a")}
    or (case.parent.name, case.name)
    in {("opencode", "tools-a"), ("goose", "tools-a"), ("gemini-cli", "tools-a")}
]
BESIDE = 4 * identity.SAMPLE
"""What is looked at to know a file again."""


class Opened:
    """Every file below a folder that this process opens, by whatever means."""

    def __init__(self) -> None:
        self.below = ""
        self.paths: list[str] = []
        sys.addaudithook(self._hook)

    def _hook(self, event: str, args: tuple) -> None:
        if self.below and event in ("open", "sqlite3.connect") and isinstance(args[0], str | bytes):
            path = os.fsdecode(args[0]).removeprefix("file:").partition("?")[0]
            if path.startswith(self.below):
                self.paths.append(path)


OPENED = Opened()


@pytest.fixture
def read(monkeypatch) -> Counter[str]:
    """Bytes that came through the descriptors of followed files."""
    counts: Counter[str] = Counter()

    class Counted(FileIO):
        def readinto(self, buffer) -> int:
            got = super().readinto(buffer)
            counts["bytes"] += got or 0
            return got

        def readall(self) -> bytes:
            got = super().readall()
            counts["bytes"] += len(got)
            return got

    def open_plain(path: str, buffer: int = 1 << 18) -> BufferedReader:
        return BufferedReader(Counted(path, "rb"), buffer)

    monkeypatch.setattr(identity, "open_plain", open_plain)
    return counts


def once(home: Path, tmp_path: Path) -> list[str]:
    """The files that one more run opens."""
    OPENED.below, OPENED.paths = str(home), []
    try:
        assert run.main(configured(home, tmp_path / "state"), {}, clock=lambda: LONG_AFTER) == 0
    finally:
        OPENED.below = ""
    return [path for path in OPENED.paths if Path(path).is_file()]


@pytest.mark.parametrize("case", CASES, ids=truth.name)
def test_nothing_new_opens_nothing(case, tmp_path):
    """Lines, documents and databases alike."""
    home = replay.copied(case, tmp_path / "home")
    assert once(home, tmp_path)
    assert once(home, tmp_path) == []


def killed_after(commits: int, home: Path, tmp_path: Path, monkeypatch) -> None:
    """A run in a process of its own that ends with one of its commits."""
    if process := os.fork():
        os.waitpid(process, 0)
        return
    try:
        left, commit = [commits], Store.commit

        def last(store, changes, now) -> None:
            commit(store, changes, now)
            left[0] -= 1
            if not left[0]:
                os._exit(0)

        monkeypatch.setattr(Store, "commit", last)
        monkeypatch.setattr(follow, "READ_BYTES", 1)
        monkeypatch.setattr(follow, "COMMIT_BYTES", 0)
        once(home, tmp_path)
    finally:
        os._exit(0)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("case", CASES, ids=truth.name)
def test_killed_in_the_middle_of_a_file_at_rest(case, tmp_path, monkeypatch):
    """A long file is committed in parts, and nothing but its cursor says that there is more of it."""
    home = replay.copied(case, tmp_path / "home")
    once(home, tmp_path / "whole")
    for commits in (2, 3, 5, 8, 13):
        cut = tmp_path / f"cut-{commits}"
        cut.mkdir()
        killed_after(commits, home, cut, monkeypatch)
        once(home, cut)
        assert seen.totals(cut / "state") == seen.totals(tmp_path / "whole/state")


@pytest.mark.parametrize("case", CASES, ids=truth.name)
def test_following_what_is_at_rest_opens_nothing(case, tmp_path):
    """Nor do the looks of the first minutes, for last lines without an end among others."""
    home, now = replay.copied(case, tmp_path / "home"), [LONG_AFTER]
    once(home, tmp_path)
    store = Store(tmp_path / "state")
    config = configured(home, tmp_path / "state", once=False)
    program = Run(config, {}, store, clock=lambda: now[0], waker=HandWaker(), strict=True)
    OPENED.below, OPENED.paths = str(home), []
    try:
        program.begin()
        for _ in range(10):
            now[0] += 30 * SECOND
            program.follow.step(0)
    finally:
        OPENED.below = ""
        program._leave()
        store.close()
    assert [path for path in OPENED.paths if Path(path).is_file()] == []


def test_one_more_line_reads_one_more_line(tmp_path, read):
    """Of a long file, and of no other."""
    home = replay.copied(truth.FIXTURES / "claude-code/subagent-a", tmp_path / "home")
    main = max(home.rglob("*.jsonl"), key=lambda path: path.stat().st_size)
    other = b'{"type":"mode","mode":"normal"}\n'
    with main.open("ab") as file:
        file.write(other * 100_000)
    once(home, tmp_path)
    assert read["bytes"] > 3_000_000
    read.clear()
    with main.open("ab") as file:
        file.write(other)
    assert set(once(home, tmp_path)) == {str(main)} or read["bytes"]
    assert len(other) <= read["bytes"] <= len(other) + BESIDE


def test_a_session_that_went_on_is_read_on(tmp_path, read):
    """Whatever its storage: a document that was written anew is read once, the others not at all."""
    home = replay.copied(truth.FIXTURES / "cline/tools-a", tmp_path / "home")
    once(home, tmp_path)
    read.clear()
    document = next(home.rglob("*.messages.json"))
    document.write_bytes(document.read_bytes() + b"\n")
    once(home, tmp_path)
    assert read["bytes"] == document.stat().st_size


@pytest.fixture
def quick_disk(tmp_path):
    """Where thousands of files are made and deleted in no time, if there is such a place."""
    with tempfile.TemporaryDirectory(
        dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else tmp_path
    ) as folder:
        yield Path(folder)


def test_twenty_thousand_files_at_rest(quick_disk, tmp_path):
    """They are known and not opened, however often it looks; one that goes on is opened alone, and from then on read."""
    home, now = quick_disk / "home", [LONG_AFTER]
    line = b'{"type":"summary","summary":"x","leafUuid":"a"}'
    for number in range(20_000):
        path = home / f".claude/projects/-p-{number % 200}/{number}.jsonl"
        if number < 200:
            path.parent.mkdir(parents=True)
        with path.open("wb", buffering=0) as file:
            file.write(line + b"\n")
    store, waker = Store(tmp_path / "state"), HandWaker()
    config = configured(home, tmp_path / "state", once=False, since=86_400 * SECOND)
    program = Run(config, {}, store, clock=lambda: now[0], waker=waker, strict=True)
    OPENED.below, OPENED.paths = str(home), []
    try:
        program.begin()
        for _ in range(3):
            now[0] += 3600 * SECOND
            program.follow.step(0)
        assert len(program.follow.parts.sources) == 20_000
        assert [path for path in OPENED.paths if Path(path).is_file()] == []
        with path.open("ab") as file:
            file.write(line + b"\n")
        os.utime(path, ns=(now[0], now[0]))
        OPENED.paths.clear()
        waker.change(str(path))
        program.follow.step(0)
    finally:
        OPENED.below = ""
        store.close()
    assert {opened for opened in OPENED.paths if Path(opened).is_file()} == {str(path)}


FORKS = [
    case
    for case in truth.cases()
    if (case.parent.name, case.name) in {("claude-code", "fork-a"), ("codex", "fork-a"), ("pi", "clifork-a")}
]


@pytest.mark.parametrize("case", FORKS, ids=truth.name)
def test_what_was_counted_in_an_earlier_life_is_known(case, tmp_path, http_receiver, monkeypatch):
    """A fork that comes after a restart, its original long at rest: what it copied is neither counted nor sent again."""
    for name, text in http_receiver.environ().items():
        monkeypatch.setenv(name, text)
    given = []
    for apart in (False, True):
        home, state = replay.copied(case, tmp_path / f"home-{apart}"), tmp_path / f"state-{apart}"
        http_receiver.spans.clear()
        _, *forks = sorted(home.rglob("*.jsonl"), key=lambda path: path.stat().st_mtime)
        assert forks
        if apart:
            for fork in forks:
                fork.rename(tmp_path / fork.name)
            assert run.main(configured(home, state), os.environ, clock=lambda: LONG_AFTER) == 0
            assert http_receiver.spans
            for fork in forks:
                (tmp_path / fork.name).rename(fork)
        assert run.main(configured(home, state), os.environ, clock=lambda: LONG_AFTER) == 0
        spans = http_receiver.spans
        assert len(spans) == len({span.span_id for span in spans})
        given.append((seen.totals(state), {span.span_id: seen.content(span) for span in spans}))
    (counted, sent), (counted_apart, sent_apart) = given
    said = seen.differences(counted_apart, counted) + seen.differences(sent_apart, sent)
    assert not said, "\n".join(said)

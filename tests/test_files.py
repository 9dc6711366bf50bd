"""What happens to session files while they are followed: nothing is lost, nothing is counted twice.

Each test does something to the files of a recorded session, through the whole loop, and compares with the totals of
the session as it was recorded.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import replay
import truth
from ports import free_port
from program import configured
from spantail.commands.run import Run
from spantail.model import SECOND
from spantail.state.store import Store
from spantail.tail.wake import HandWaker
from test_live import _added
from test_open_sessions import another
from test_run import get, start, until

CLAUDE = truth.FIXTURES / "claude-code"
TOOLS = CLAUDE / "tools-a"
PROJECTS = ".claude/projects"


class Desk:
    """A home that is followed; every change is told to the loop as the system would."""

    def __init__(self, folder: Path, begin: int) -> None:
        self.home, self.state, self.now = folder / "home", folder / "state", begin
        (self.home / PROJECTS).mkdir(parents=True)
        self.waker = HandWaker()
        self.start()

    def start(self, **settings) -> None:
        self.store = Store(self.state)
        config = configured(self.home, self.state, once=False, **settings)
        self.run = Run(config, os.environ, self.store, clock=lambda: self.now, waker=self.waker, strict=True)
        self.run.begin()

    def restart(self) -> None:
        self.store.close()
        self.start()

    def see(self, *paths: Path) -> None:
        for path in paths:
            self.waker.change(str(path), str(path.parent))
        self.run.follow.step(0)

    def append(self, *pieces: replay.Piece) -> None:
        for piece in pieces:
            self.now = max(self.now, piece[0])
            self.see(replay.append(self.home, piece))

    def later(self, seconds: float) -> None:
        self.now += int(seconds * SECOND)
        self.run.follow.step(0)

    def totals(self) -> dict[object, float]:
        """At the end, when everything has long been silent."""
        for _ in range(3):
            self.later(3 * 3600)
        self.run._leave()
        self.store.close()
        return _added((self.state / "page.prom").read_text())


@pytest.fixture
def pieces():
    return replay.lines(TOOLS / "home")


@pytest.fixture
def desk(tmp_path, pieces):
    return Desk(tmp_path, pieces[0][0])


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """The totals of the session, followed without any disturbance."""
    written = replay.lines(TOOLS / "home")
    calm = Desk(tmp_path_factory.mktemp("calm"), written[0][0])
    calm.append(*written)
    return calm.totals()


def turns(totals: dict[object, float]) -> float:
    return sum(value for (name, _), value in totals.items() if name == "coding_agent_turns_total")


def move(desk: Desk, path: Path) -> None:
    """Another folder and another name, in mid-session."""
    new = path.parent.with_name("-moved") / "renamed.jsonl"
    new.parent.mkdir()
    path.rename(new)
    desk.see(path, new)


def rotate(desk: Desk, path: Path) -> None:
    """Moved away, and a new file begins under its name."""
    path.rename(path.with_suffix(".jsonl.1"))
    path.touch()
    desk.see(path)


def copy_and_truncate(desk: Desk, path: Path) -> None:
    shutil.copy2(path, path.with_name("copy.jsonl"))
    os.truncate(path, 0)
    desk.see(path.with_name("copy.jsonl"), path)


def roll_back(desk: Desk, path: Path) -> None:
    """Two records are taken back, and written again."""
    kept = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(kept[:-2]))
    desk.see(path)
    path.write_bytes(b"".join(kept))
    desk.see(path)


def roll_back_unseen(_desk: Desk, path: Path) -> None:
    """Truncated and grown again between two looks."""
    whole = path.read_bytes()
    os.truncate(path, len(whole) // 2)
    path.write_bytes(whole)


def delete_and_make_again(desk: Desk, path: Path) -> None:
    whole = path.read_bytes()
    path.unlink()
    desk.see(path)
    path.write_bytes(whole)
    desk.see(path)


def replace(desk: Desk, path: Path) -> None:
    """Written beside and moved over it, as editors do."""
    new = path.with_suffix(".tmp")
    shutil.copy2(path, new)
    new.replace(path)
    desk.see(path)


def copy(desk: Desk, path: Path) -> None:
    """A second file with the same ids."""
    shutil.copy2(path, path.with_name("0-copy.jsonl"))
    desk.see(path.with_name("0-copy.jsonl"))


def hard_link(desk: Desk, path: Path) -> None:
    os.link(path, path.with_name("0-link.jsonl"))
    desk.see(path.with_name("0-link.jsonl"))


def symbolic_link(desk: Desk, path: Path) -> None:
    path.with_name("0-link.jsonl").symlink_to(path)
    desk.see(path.with_name("0-link.jsonl"))


def restart(desk: Desk, _path: Path) -> None:
    desk.restart()


def lose_events(desk: Desk, _path: Path) -> None:
    desk.waker.lose()
    desk.run.follow.step(0)


def set_the_clock_back(desk: Desk, _path: Path) -> None:
    desk.now -= 5 * 3600 * SECOND
    desk.run.follow.step(0)


def set_the_clock_forward(desk: Desk, _path: Path) -> None:
    desk.later(20 * 60)


DISTURBANCES: list[Callable[[Desk, Path], None]] = [
    move, rotate, copy_and_truncate, roll_back, roll_back_unseen, delete_and_make_again, replace, copy, hard_link,
    symbolic_link, restart, lose_events, set_the_clock_back, set_the_clock_forward,
]  # fmt: skip


@pytest.mark.parametrize("again", ["", "then a restart"])
@pytest.mark.parametrize("disturb", DISTURBANCES, ids=lambda disturb: disturb.__name__)
def test_in_the_middle_of_a_turn(disturb, again, desk, pieces, recorded):
    """Half of the turn is read, something happens to the file, the rest is written: the totals are the same."""
    half = len(pieces) * 3 // 5
    desk.append(*pieces[:half])
    path = desk.home / pieces[-1][1]
    disturb(desk, path)
    if again:
        desk.restart()
    now = max(
        desk.home.rglob("*.jsonl"), key=lambda p: (not p.is_symlink(), p.name == "renamed.jsonl", p == path)
    )
    for piece in pieces[half:]:
        desk.append((piece[0], now.relative_to(desk.home), piece[2]))
    assert desk.totals() == recorded


def test_a_file_that_is_not_the_one_of_before(desk, pieces, recorded):
    """Deleted, and another session made in its place, that gets the freed inode on many file systems."""
    desk.append(*pieces)
    path = desk.home / pieces[-1][1]
    inode = path.stat().st_ino
    path.unlink()
    other = b"".join(another(piece, 1)[2] for piece in pieces)
    path.write_bytes(other)
    if path.stat().st_ino != inode:  # make it so: the cursor knows the number
        desk.store.db.execute("UPDATE cursors SET inode=?", (path.stat().st_ino,))
    desk.see(path)
    assert turns(desk.totals()) == 2 * turns(recorded)


def test_links_out_of_the_home_are_not_followed(desk, pieces, tmp_path):
    """Neither a file nor a folder behind one is read."""
    outside = tmp_path / "outside" / "-proj"
    outside.mkdir(parents=True)
    file = outside / "a.jsonl"
    file.write_bytes(b"".join(piece[2] for piece in pieces))
    (desk.home / PROJECTS / "-linked").symlink_to(outside)
    (desk.home / PROJECTS / "-proj").mkdir()
    (desk.home / PROJECTS / "-proj" / "b.jsonl").symlink_to(file)
    desk.waker.lose()
    desk.see(desk.home / PROJECTS / "-proj" / "b.jsonl", desk.home / PROJECTS / "-linked" / "a.jsonl")
    desk.restart()
    totals = desk.totals()
    assert turns(totals) == 0
    assert "spantail_read_bytes_total 0" in (desk.state / "page.prom").read_text()


@contextlib.contextmanager
def without_privileges() -> Iterator[None]:
    """As root the checks of permissions are off; without these two capabilities they are on."""
    if os.geteuid() != 0:
        yield
        return
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    before = (ctypes.c_uint32 * 6)()
    assert libc.capget(header, before) == 0
    fewer = (ctypes.c_uint32 * 6)(*before)
    fewer[0] &= ~0b110  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
    assert libc.capset(header, fewer) == 0
    try:
        yield
    finally:
        assert libc.capset(header, before) == 0


@pytest.mark.skipif(sys.platform != "linux", reason="capabilities are Linux'")
@pytest.mark.parametrize("what", ["file", "folder"])
def test_permission_denied_and_then_granted(what, desk, pieces, recorded, capsys):
    """Said once, tried again, and taken when it is granted; everything else goes on."""
    other = [another(piece, 1) for piece in pieces]
    half = len(pieces) // 2
    desk.append(*pieces[:half])
    path = desk.home / pieces[-1][1]
    denied = path if what == "file" else path.parent
    mode = denied.stat().st_mode
    with without_privileges():
        denied.chmod(0)
        for _ in range(3):
            desk.see(path)
            desk.later(61)
        desk.append(*((desk.now, Path(PROJECTS, "-other", "o.jsonl"), piece[2]) for piece in other))
        denied.chmod(mode)
        desk.later(61)
    desk.append(*((desk.now, piece[1], piece[2]) for piece in pieces[half:]))
    assert turns(desk.totals()) == 2 * turns(recorded)
    said = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    named = [line["path"] for line in said if line["event"] == "file_unreadable"]
    assert named
    assert len(named) == len(set(named)), "once, while it lasts"


TIME = re.compile(rb'("timestamp":\s*")([0-9T:.Z-]+)(")')


@pytest.mark.parametrize("year", ["2019", "2099"])
def test_times_of_another_year(year, desk, pieces, recorded):
    """An agent whose clock is wrong: the same calls, tokens and durations, and the turn ends as it should."""
    wrong = [
        (t, path, TIME.sub(lambda m: m[1] + year.encode() + m[2][4:] + m[3], body))
        for t, path, body in pieces
    ]
    desk.append(*wrong)
    assert desk.totals() == recorded


def test_times_that_run_backwards(desk, pieces, recorded):
    """Records in the order of the file, their times in the other: nothing is lost, no duration is negative."""
    times = [found[2] for _, _, body in pieces if (found := TIME.search(body))]

    def backwards(body: bytes) -> bytes:
        found = TIME.search(body)
        return body if found is None else body.replace(found[2], times[-1 - times.index(found[2])])

    desk.append(*((at, path, backwards(body)) for at, path, body in pieces))
    totals = desk.totals()
    for name in (
        "coding_agent_tokens_total",
        "coding_agent_tool_calls_total",
        "coding_agent_model_calls_total",
    ):
        found, expected = (
            {key[1]: v for key, v in page.items() if key[0] == name} for page in (totals, recorded)
        )
        assert sum(found.values()) == sum(expected.values()), name
    assert all(value >= 0 for value in totals.values())


# ------------------------------------------------------------------------------- a real process


@pytest.fixture
def followed(tmp_path):
    """Starts the program on a home; the port of its page."""
    programs: list[subprocess.Popen[str]] = []
    log = (tmp_path / "log").open("w")
    (tmp_path / "home" / PROJECTS).mkdir(parents=True)

    def begin(*flags: str, before: tuple[str, ...] = ()) -> tuple[int, subprocess.Popen[str]]:
        port = free_port()
        program = start(
            "--home", str(tmp_path / "home"), "--state", str(tmp_path / "state"), "--since", "all",
            "--listen", f"127.0.0.1:{port}", "--new-series-hold", "0", *flags,
            before=before, log=log,
        )  # fmt: skip
        programs.append(program)
        until(lambda: get(port, "/readyz")[0] == 200)
        return port, program

    yield begin
    for program in programs:
        program.send_signal(signal.SIGCONT)
        program.kill()
        program.communicate()
    log.close()


def counted(port: int, name: str = "coding_agent_tool_calls_total") -> float:
    return sum(value for _, value in truth.samples(get(port, "/metrics")[1]).get(name, ()))


def write_many(home: Path, pieces: list[replay.Piece], many: int) -> None:
    for number in range(many):
        path = home / PROJECTS / f"-project-{number % 50}" / f"{number}.jsonl"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"".join(another(piece, number)[2] for piece in pieces))


def test_two_thousand_files_at_once(followed, tmp_path, pieces):
    """All of them appear while it runs, in folders that were not there: each is counted once."""
    port, _ = followed()
    write_many(tmp_path / "home", pieces, 2000)
    until(lambda: counted(port) >= 3 * 2000, 120)
    assert counted(port) == 3 * 2000
    assert counted(port, "coding_agent_sessions_started_total") == 2000


QUEUE = Path("/proc/sys/fs/inotify/max_queued_events")


@pytest.mark.skipif(not os.access(QUEUE, os.W_OK), reason="the length of inotify's queue is root's to set")
def test_a_queue_of_events_that_overflows(followed, tmp_path, pieces):
    """More changes than the system remembers, while the program sleeps: none is missed."""
    home, before = tmp_path / "home", QUEUE.read_text()
    try:
        QUEUE.write_text("16")
        port, program = followed()
    finally:
        QUEUE.write_text(before)
    program.send_signal(signal.SIGSTOP)
    write_many(home, pieces, 200)
    program.send_signal(signal.SIGCONT)
    # The periodic scan would find them too, but a minute later.
    until(lambda: counted(port) == 3 * 200, 30)


def test_no_watches_left(followed, tmp_path, pieces):
    """The system refuses to watch: it says so, polls, and misses nothing."""
    limited = ("unshare", "-Ur", "sh", "-c", 'echo 2 > /proc/sys/user/max_inotify_watches && exec "$0" "$@"')
    if subprocess.run([*limited, "true"], capture_output=True, check=False).returncode:
        pytest.skip("limits of its own need a user namespace")
    for number in range(5):
        (tmp_path / "home" / PROJECTS / f"-project-{number}").mkdir()
    port, _ = followed(before=limited)
    write_many(tmp_path / "home", pieces, 10)
    until(lambda: counted(port) == 30, 30)
    log = (tmp_path / "log").read_text()
    (said,) = [json.loads(line) for line in log.splitlines() if '"watch_failed"' in line]
    assert "fs.inotify.max_user_watches" in said["message"]

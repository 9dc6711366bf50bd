"""Files that no agent would write, and things that are no files, through the real program: it goes on and counts
the good session beside them."""

from __future__ import annotations

import contextlib
import os
import random
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

import truth

CASE = truth.FIXTURES / "claude-code/text-a"
PROJECT = ".claude/projects/-work"
GOOD = 'coding_agent_turns_total{agent="claude-code",project="ws",status="ok"} '


def turns(page: str) -> float:
    found = [
        line
        for line in page.splitlines()
        if line.startswith("coding_agent_turns_total") and 'status="ok"' in line
    ]
    return sum(float(line.rpartition(" ")[2]) for line in found)


def records(page: str, result: str) -> float:
    found = [
        line
        for line in page.splitlines()
        if line.startswith("spantail_records_total") and f'"{result}"' in line
    ]
    return sum(float(line.rpartition(" ")[2]) for line in found)


def good() -> bytes:
    return next((CASE / "home").rglob("*.jsonl")).read_bytes()


WEIGHED = """
import sys
from pathlib import Path
from spantail.cli import main

status = main(sys.argv[1:])
# What the system says of a child's memory holds that of the process that started it.
print("peak", Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])
sys.exit(status)
"""


class Home:
    """A home with a good session, and room for bad things beside it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / "home"
        shutil.copytree(CASE / "home", self.home)
        self.bad = self.home / PROJECT
        self.bad.mkdir(parents=True)

    def command(self, *more: str) -> list[str]:
        return [
            *(sys.executable, "-m", "spantail", "run", "--since", "all", "--home", str(self.home)),
            *(
                "--state",
                str(self.folder / "state"),
                "--textfile",
                str(self.folder / "page"),
                "--log-format",
                "json",
            ),
            *more,
        ]

    def once(self) -> tuple[str, str, int]:
        """The page, the log, and the most memory it had, in MiB."""
        done = subprocess.run(
            [sys.executable, "-c", WEIGHED, *self.command("--once", "--listen", "none")[3:]],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert "internal_error" not in done.stderr, done.stderr
        return (self.folder / "page").read_text(), done.stderr, int(done.stdout.rpartition("peak ")[2]) >> 10


@pytest.fixture
def home(tmp_path):
    return Home(tmp_path)


LINE = b'{"type":"user","uuid":"u","sessionId":"s","timestamp":"2026-01-01T00:00:00Z","message":{"content":'


@pytest.mark.parametrize(
    ("name", "body", "bad"),
    [
        ("empty", b"", 0),
        ("blank", b"\n\r\n  \n\n", 0),
        ("nul", b"\0" * 100_000 + b"\n", 1),
        ("binary", random.Random(1).randbytes(300_000), None),
        ("elf", Path(sys.executable).read_bytes()[:500_000], None),
        ("not utf-8", b'{"type":"\xff\xfe","uuid":"\xc3"}\n', None),
        ("utf-16", '{"type":"user"}\n'.encode("utf-16"), None),
        ("deep list", LINE + b"[" * 100_000 + b"]" * 100_000 + b"}}\n", 1),
        ("deep object", LINE + b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b"}}\n", 1),
        ("deep and open", b"[" * 100_000 + b"\n", 1),
        ("number", b'{"type":"user","n":' + b"9" * 100_000 + b"}\n", None),
        ("no newline", b'{"type":"user","uuid":"half', 0),
        ("gzip", b"\x1f\x8b\x08\x00" + bytes(1000), None),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_no_session_is_counted_and_passed_over(home, name, body, bad):
    """In front of a good session in the same file, and in a file of its own."""
    (home.bad / "11111111-1111-4111-8111-111111111111.jsonl").write_bytes(body)
    session = next(home.home.rglob("*.jsonl"))
    (home.bad / "22222222-2222-4222-8222-222222222222.jsonl").write_bytes(body.rstrip(b"\n") + b"\n")
    for path in home.home.rglob("*.jsonl"):
        if home.bad not in path.parents:
            path.write_bytes(body + (b"" if body.endswith(b"\n") or not body else b"\n") + path.read_bytes())
    page, _, _ = home.once()
    assert turns(page) == 1, session
    if bad is not None:
        assert records(page, "bad") >= bad


@pytest.mark.parametrize(("nesting", "bad"), [(50, 1), (600, 0), (5000, 0)])
def test_how_deep_a_record_may_be_is_a_limit(home, tmp_path, nesting, bad):
    """What is deeper is a bad record, in the parsers of whole lines; what is not so deep is read."""
    session = next(home.home.rglob("*.jsonl"))
    deep = b'{"type":"user","toolUseResult":' + b"[" * 590 + b"]" * 590 + b"}\n"
    session.write_bytes(deep + session.read_bytes())
    config = tmp_path / "config.toml"
    config.write_text(f"[limits]\nnesting = {nesting}\n")
    done = subprocess.run(
        home.command("--once", "--listen", "none", "--config", str(config)),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    page = (home.folder / "page").read_text()
    assert (turns(page), records(page, "bad")) == (1, bad)
    assert ("is nested too deep" in done.stderr) == bool(bad)


def test_windows_line_ends_and_a_byte_order_mark(home):
    """Of an editor, or a share: the session counts all the same."""
    for path in list(home.home.rglob("*.jsonl")):
        path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n"))
    page, _, _ = home.once()
    assert (turns(page), records(page, "bad")) == (1, 0)


def test_a_line_of_a_hundred_megabytes_is_not_held_in_memory(home):
    """Longer than limits.record_bytes: counted, skipped in pieces, and what follows is read."""
    session = next(path for path in home.home.rglob("*.jsonl"))
    rest = session.read_bytes()
    with session.open("wb") as file:
        file.write(LINE + b'"')
        for _ in range(100):
            file.write(b"x" * (1 << 20))
        file.write(b'"}}\n' + rest)
    page, log, peak = home.once()
    assert turns(page) == 1
    assert records(page, "oversized") == 1
    assert "limits.record_bytes" in log
    assert peak < 250, f"{peak} MiB"


def test_what_is_no_file_is_not_opened(home):
    """A folder, a pipe, a socket, a device and links to nowhere, to itself and to /dev/zero have a session's name."""
    name = "3333333{}-3333-4333-8333-333333333333.jsonl"
    (home.bad / name.format(0)).mkdir()
    os.mkfifo(home.bad / name.format(1))
    with socket.socket(socket.AF_UNIX) as server:
        there = Path.cwd()
        os.chdir(home.bad)  # the name of a socket must be short
        try:
            server.bind(name.format(2))
        finally:
            os.chdir(there)
        for number, target in (
            (3, "/dev/zero"),
            (4, "/nowhere"),
            (5, home.bad / name.format(5)),
            (6, "/dev/stdin"),
        ):
            (home.bad / name.format(number)).symlink_to(target)
        with contextlib.suppress(PermissionError):
            os.mknod(home.bad / name.format(7), 0o600 | 0o020000, os.makedev(1, 5))
        (home.bad / name.format(8)).symlink_to(home.bad)
        page, _, _ = home.once()
    assert turns(page) == 1


class Running:
    """The program as it follows."""

    def __init__(self, home: Home) -> None:
        self.log = home.folder / "log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                home.command("--listen", "127.0.0.1:0", "--grace", "0"), stderr=log, stdout=subprocess.DEVNULL
            )

    def page(self) -> str:
        found = re.search(r"http://[0-9.:]+/metrics", self.log.read_text())
        if found is None:
            return ""
        try:
            with urllib.request.urlopen(found[0], timeout=20) as answer:
                return answer.read().decode()
        except urllib.error.HTTPError:  # not ready yet
            return ""

    def until(self, count: int) -> None:
        """Waits until so many turns are counted."""
        end = time.monotonic() + 60
        while time.monotonic() < end:
            assert self.process.poll() is None, self.log.read_text()
            if turns(self.page()) >= count:
                return
            time.sleep(0.05)
        raise AssertionError(f"no {count} turns: {self.log.read_text()[-2000:]}")

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        try:
            assert self.process.wait(30) == 0
        finally:
            self.process.kill()
        assert "internal_error" not in self.log.read_text()


def another(number: int) -> tuple[str, bytes]:
    """The good session with ids of its own, and a prompt after it that closes its turn."""
    body = good()
    for old in {
        line.split(b'"sessionId":"')[1][:36] for line in body.splitlines() if b'"sessionId":"' in line
    }:
        body = body.replace(old, f"{number:08d}".encode() + old[8:])
    body = re.sub(rb'"(uuid|parentUuid|id|promptId|requestId)":"(..)', rb'"\1":"%02d' % number, body)
    return f"{number:08d}-4444-4444-8444-444444444444.jsonl", body


def test_files_turn_into_other_things_while_they_are_followed(home):
    """A session's file becomes a pipe that nobody writes to, a folder, a link, and vanishes; others are still read."""
    with Running(home) as running:
        running.until(1)
        session = next(home.home.rglob("*.jsonl"))
        for number, become in enumerate(
            (os.mkfifo, os.mkdir, lambda path: path.symlink_to("/dev/zero"), lambda _: None), 2
        ):
            with contextlib.suppress(IsADirectoryError):
                session.unlink()
            if session.is_dir():
                session.rmdir()
            become(session)
            name, body = another(number)
            (home.bad / name).write_bytes(body)
            running.until(number)


def test_files_that_come_and_go_faster_than_they_are_read(home):
    """Between a look and the opening a file may be gone, or be another one."""
    with Running(home) as running:
        running.until(1)
        for n in range(400):
            path = home.bad / f"5555{n:04d}-5555-4555-8555-555555555555.jsonl"
            path.write_bytes(LINE[: n % len(LINE)])
            if n % 3:
                path.unlink()
            if n % 7 == 0:
                path.with_suffix("").mkdir(exist_ok=True)
                shutil.rmtree(path.with_suffix(""))
        name, body = another(9)
        (home.bad / name).write_bytes(body)
        running.until(2)

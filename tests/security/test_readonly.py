"""Read-only by design: no file that may hold credentials is opened, and nothing of the agents is written or made.

The real program runs over a home with a session of every agent and a trap in every place where an agent keeps
secrets. What it opens is told by an audit hook, and by the kernel (inotify) for what C libraries open.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import sqlite3
import struct
import subprocess
import sys
from pathlib import Path

import pytest

import truth
from spantail.formats import TABLE

HERE = Path(__file__).resolve().parent
SECRET = "trapped-secret-sk-ant-api03-AAAAAAAAAAAAAAAAAAAA"

ALSO = (
    ".claude/.credentials.json",
    ".claude.json",
    ".codex/auth.json",
    ".gemini/oauth_creds.json",
    ".local/share/opencode/auth.json",
    ".pi/agent/auth.json",
    ".config/goose/secrets.yaml",
    ".cline/data/settings/providers.json",
    ".aider.conf.yml",
    ".env",
    ".netrc",
    ".git-credentials",
    ".npmrc",
    ".pypirc",
    ".aws/credentials",
    ".azure/accessTokens.json",
    ".config/gcloud/application_default_credentials.json",
    ".config/gh/hosts.yml",
    ".docker/config.json",
    ".kube/config",
    ".ssh/id_ed25519",
    ".gnupg/private-keys-v1.d/key",
    # Beside the sessions, under names that almost fit.
    ".claude/projects/-work/settings.json",
    ".claude/projects/-work/auth.json",
    ".codex/sessions/2026/01/01/auth.json",
    ".codex/sessions/auth.json",
    ".pi/agent/sessions/--work--/auth.json",
    ".local/share/goose/sessions/secrets.yaml",
)
_EVENTS = {
    0x20: "open",
    0x2: "modify",
    0x8: "close_write",
    0x100: "create",
    0x200: "delete",
    0x40: "moved",
    0x4: "attrib",
}


class Watch:
    """What happens to the files of a tree, as the kernel sees it."""

    def __init__(self, root: Path) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd = self._libc.inotify_init1(os.O_NONBLOCK)
        self._folders: dict[int, Path] = {}
        for folder in [root, *(path for path in root.rglob("*") if path.is_dir())]:
            number = self._libc.inotify_add_watch(self._fd, os.fsencode(folder), sum(_EVENTS))
            assert number >= 0
            self._folders[number] = folder

    def seen(self) -> set[tuple[str, Path]]:
        found = set()
        while True:
            try:
                data = os.read(self._fd, 1 << 20)
            except BlockingIOError:
                break
            at = 0
            while at < len(data):
                number, mask, _, length = struct.unpack_from("iIII", data, at)
                name = data[at + 16 : at + 16 + length].rstrip(b"\0")
                at += 16 + length
                if mask & 0x40000000:  # of a folder
                    continue
                for bit, word in _EVENTS.items():
                    if mask & bit:
                        found.add((word, self._folders[number] / os.fsdecode(name)))
        os.close(self._fd)
        return found


def traps() -> set[str]:
    """A file for each pattern of the table, and those that everybody has."""
    patterns = {pattern for row in TABLE for pattern in row.never}
    return {pattern.replace("**", "a/b").replace("*", "x") for pattern in patterns} | set(ALSO)


def furnished(home: Path) -> set[Path]:
    """A session of every agent, and the traps."""
    for row in TABLE:
        case = next(
            case for case in truth.cases() if case.parent.name == row.agent and case.name == "tools-a"
        )
        shutil.copytree(case / "home", home, dirs_exist_ok=True)
    laid = set()
    for trap in traps():
        path = home / trap
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f'{{"type":"user","access_token":"{SECRET}"}}\n')
        laid.add(path)
    return laid


def ran(home: Path, folder: Path, *before: str) -> tuple[str, list[list[str]]]:
    """Everything the program said, and every file it opened."""
    log = folder / "opened"
    log.touch(mode=0o666)
    log.chmod(0o666)
    command = [sys.executable, str(HERE / "watched_run.py"), str(log), "run", "--once", "--since", "all"]
    command += ["--home", str(home), "--state", str(folder / "state"), "--listen", "none"]
    environ = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("OTEL_", "SPANTAIL_", "XDG_")) and "COV" not in key
    }
    done = subprocess.run(
        [*before, *command, "--textfile", str(folder / "page.prom")],
        env={**environ, "HOME": str(folder / "nobody"), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said = done.stdout + done.stderr + (folder / "page.prom").read_text()
    return said, [line.split("\t") for line in log.read_text().splitlines()]


def snapshot(home: Path) -> dict[str, tuple[int, int, int, int]]:
    found = {}
    for path in home.rglob("*"):
        stat = path.lstat()
        found[str(path)] = (stat.st_size, stat.st_mtime_ns, stat.st_ino, stat.st_mode)
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="inotify")
def test_no_credentials_are_opened_and_nothing_is_written(tmp_path):
    """A session of every agent is counted, no trap is opened by anybody, and the home is what it was."""
    home = tmp_path / "home"
    laid = furnished(home)
    before, watch = snapshot(home), Watch(home)
    said, opened = ran(home, tmp_path)
    happened = watch.seen()
    touched = {path for word, path in happened if word == "open"}
    counted = {row.agent for row in TABLE if f'coding_agent_turns_total{{agent="{row.agent}"' in said}
    assert counted == {row.agent for row in TABLE}, "or the rest of this proves nothing"
    assert not touched & laid
    for event, path, *_ in opened:
        assert Path(path.removeprefix("file:").partition("?")[0]) not in laid, (event, path)
    assert SECRET not in said
    # SQLite opens an existing log for writing before it looks whether it may, and as root gives it the owner that the
    # database has; it writes nothing.
    of_logs = {("close_write", "-wal"), ("attrib", "-wal"), ("attrib", "-shm")}
    assert {
        (word, path) for word, path in happened if word != "open" and (word, path.name[-4:]) not in of_logs
    } == set()
    assert snapshot(home) == before
    # By Python: for reading, and databases by a URI that allows nothing else.
    for event, path, *more in opened:
        inside = str(home) in path
        if event == "sqlite3.connect" and inside:
            assert "?mode=ro&" in path
        elif event == "open" and inside:
            flags = int(more[1]) if len(more) > 1 and more[1].lstrip("-").isdigit() else 0
            assert more[0] in ("None", "r", "rb"), path
            assert not flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND), path
        else:
            assert event in ("open", "sqlite3.connect") or not inside, (event, path)


def test_the_state_is_for_its_owner_only(tmp_path):
    home = tmp_path / "home"
    furnished(home)
    ran(home, tmp_path)
    assert (tmp_path / "state").stat().st_mode & 0o777 == 0o700
    for path in (tmp_path / "state").iterdir():
        assert path.stat().st_mode & 0o077 == 0, path.name


def test_a_home_that_may_not_be_written_is_read_all_the_same(tmp_path):
    """Everything in it is read-only: databases with a log, and databases at rest."""
    bound: tuple[str, ...] = ()
    if os.geteuid() == 0:  # whom no mode keeps from writing
        if shutil.which("setpriv") is None:
            pytest.skip("root cannot be kept from writing without setpriv")
        bound = (
            "setpriv",
            "--bounding-set=-dac_override,-fowner,-chown",
            "--inh-caps=-dac_override,-fowner,-chown",
        )
    home = tmp_path / "home"
    furnished(home)
    resting = home / ".local/share/kilo/kilo.db"  # of the same family, closed by its last user: no log at all
    resting.parent.mkdir(parents=True, exist_ok=True)
    shutil.copytree(home / ".local/share/opencode", tmp_path / "source")
    with sqlite3.connect(tmp_path / "source/opencode.db") as source:
        copy = sqlite3.connect(resting)
        source.backup(copy)
        copy.execute("PRAGMA journal_mode = WAL")
        copy.close()
    source.close()
    assert not Path(f"{resting}-wal").exists()
    folder = tmp_path / "folder"
    folder.mkdir()
    paths = [home, *home.rglob("*")]
    for path in paths:
        path.chmod(0o555 if path.is_dir() else 0o444)
    before = snapshot(home)
    try:
        said, opened = ran(home, folder, *bound)
        probe = subprocess.run([*bound, "touch", str(resting.parent / "x")], capture_output=True, check=False)
    finally:
        for path in paths:
            path.chmod(0o755)
    assert probe.returncode, "or nothing is proven"
    assert {path: stat[:3] for path, stat in snapshot(home).items()} == {
        p: stat[:3] for p, stat in before.items()
    }
    assert 'coding_agent_turns_total{agent="opencode"' in said
    assert 'coding_agent_turns_total{agent="goose"' in said
    assert any("kilo.db?mode=ro&immutable=1" in path for _, path, *_ in opened)
    assert any("opencode.db?mode=ro&readonly_shm=1" in path for _, path, *_ in opened)
    assert '"event":"file_unreadable"' not in said

"""The backend is down while 200 MB pass: memory stays flat, metrics go on, and afterwards every span arrives."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import truth
from ports import free_port
from receiver import Receiver
from test_run import get, until

sys.path.append(str(Path(__file__).resolve().parents[1] / "benchmarks"))
from corpus import Corpus

MEGABYTES = 200
HALF = MEGABYTES * 500_000
MOST = 100 << 20
"""Memory that the program may use, with the processes that help it with a long backlog."""
PATIENCE = 240.0


def started(log: Path, *flags: str, env: dict[str, str]) -> subprocess.Popen[bytes]:
    """The program. Its log goes to a file: a pipe that nobody reads would stop it."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("OTEL_", "SPANTAIL_"))}
    with log.open("wb") as file:
        return subprocess.Popen(
            [sys.executable, "-m", "spantail", "run", *flags], env={**clean, **env}, stdout=file, stderr=file
        )


def value(port: int, name: str, **labels: str) -> float:
    """The sum of a metric's series on the page."""
    status, page = get(port, "/metrics")
    if status != 200:
        return 0.0
    found = truth.samples(page).get(name, ())
    return sum(each for given, each in found if labels.items() <= given.items())


def memory(pid: int) -> int:
    """Bytes of a process and its children, what they share counted once."""
    pids = [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]
    total = 0
    for each in pids:
        try:
            rollup = Path(f"/proc/{each}/smaps_rollup").read_text()
        except OSError:
            continue  # it has ended
        total += sum(int(line.split()[1]) << 10 for line in rollup.splitlines() if line.startswith("Pss:"))
    return total


@pytest.fixture(scope="module")
def sessions(tmp_path_factory) -> tuple[Path, Path, dict]:
    """Two homes' worth, and what is true of both."""
    folder = tmp_path_factory.mktemp("corpus")
    truths = [Corpus(folder / name, HALF, seed).write() for seed, name in enumerate(("first", "second"))]
    yield folder / "first", folder / "second", {key: truths[0][key] + truths[1][key] for key in truths[0]}
    shutil.rmtree(folder)


def test_nothing_is_lost_while_the_backend_is_down(sessions, tmp_path):
    """Half of it is there at the start and half comes later; the files are deleted before the backend is back."""
    first, second, true = sessions
    home, port = tmp_path / "home", free_port()
    home.mkdir()
    shutil.copytree(first, home, dirs_exist_ok=True)
    receiver = Receiver("http").start()
    receiver.stop()  # its port is known, and refuses
    log = tmp_path / "log"
    program = started(
        log,
        *("--home", str(home), "--state", str(tmp_path / "state"), "--since", "all"),
        *("--listen", f"127.0.0.1:{port}", "--new-series-hold", "0"),
        env=receiver.environ(),
    )
    try:
        peak = [0]

        def read(least: int) -> bool:
            peak[0] = max(peak[0], memory(program.pid))
            return value(port, "spantail_read_bytes_total") >= least

        until(lambda: read(HALF), PATIENCE)
        for source in sorted(second.rglob("*.jsonl")):
            there = home / source.relative_to(second)
            there.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, there)
            read(0)
        until(lambda: read(true["bytes"]), PATIENCE)
        until(lambda: value(port, "coding_agent_turns_total") == true["turns"], PATIENCE)
        assert get(port, "/readyz")[0] == 200
        assert value(port, "coding_agent_tokens_total", type="output") == true["output"]
        spans = true["turns"] + true["model_calls"] + true["tool_calls"]
        assert value(port, "spantail_outbox_spans") == spans
        full = state_bytes(tmp_path)
        for path in home.rglob("*.jsonl"):
            path.unlink()
        receiver.start()
        until(lambda: read(0) or value(port, "spantail_outbox_spans") == 0, PATIENCE)
        until(lambda: state_bytes(tmp_path) < full / 2)
        print(
            f"memory at most {peak[0] / 2**20:.0f} MiB, state {full >> 20} -> {state_bytes(tmp_path) >> 20} MiB"
        )
    finally:
        program.send_signal(signal.SIGTERM)
        program.wait(30)
        receiver.stop()
    assert program.returncode == 0, log.read_text()
    assert len({span.span_id for span in receiver.spans}) == spans
    assert peak[0] < MOST


def state_bytes(tmp_path: Path) -> int:
    return sum(path.stat().st_size for path in (tmp_path / "state").iterdir())

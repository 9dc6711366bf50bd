"""What the benchmarks share: the program as a process, its costs, and tables."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

CLOCK_TICKS = os.sysconf("SC_CLK_TCK")


def environ(**more: str) -> dict[str, str]:
    """The shell's, without what it says about OpenTelemetry, proxies or us; and as an installation has them,
    modules stay compiled."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("OTEL_", "SPANTAIL_", "PYTHONDONTWRITE"))
        and not name.lower().endswith("_proxy")
    }
    return {**kept, **more}


def command(home: Path, state: Path, *flags: str, python: str = sys.executable) -> list[str]:
    where = ["--home", str(home), "--state", str(state), "--since", "all", "--listen", "none"]
    return [python, "-m", "spantail", "run", *where, *flags]


@dataclass
class Cost:
    """What a process and its children took: seconds by the wall, seconds of CPU, most memory in MB (of the largest
    alone, unless all were watched)."""

    wall: float
    cpu: float
    memory: float


def run(words: Sequence[str], environ: dict[str, str], *, watched: bool = False) -> Cost:
    """Runs it to its end; whatever it says is shown only if it fails. Who is `watched` for its memory runs slower:
    the kernel counts every page, and stops it meanwhile."""
    with tempfile.TemporaryFile() as said:
        begin = time.perf_counter()
        process = subprocess.Popen(words, env=environ, stdout=subprocess.DEVNULL, stderr=said)
        seen = [0.0]
        watch = threading.Thread(target=_watch_memory, args=(process.pid, seen))
        if watched:
            watch.start()
        _, status, used = os.wait4(process.pid, 0)
        wall = time.perf_counter() - begin
        if watched:
            watch.join()
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            said.seek(0)
            sys.exit(f"{words[0]} failed: {said.read()[-2000:].decode(errors='replace')}")
    return Cost(wall, used.ru_utime + used.ru_stime, max(seen[0], used.ru_maxrss / 1024))


def _watch_memory(pid: int, seen: list[float]) -> None:
    """The most that the process and its children held together, looked at forty times a second: what
    they share is counted once (Pss), which the kernel's own figure, of the largest alone, cannot do."""
    while held := _held_mb(pid):
        seen[0] = max(seen[0], held)
        time.sleep(0.025)


def _held_mb(pid: int) -> float:
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:  # it has ended
        return 0.0
    own = sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024
    return own + sum(_held_mb(int(child)) for child in children)


@contextmanager
def following(words: Sequence[str], environ: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """The program as it follows, from when it waits for changes until it is told to stop."""
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(words, env=environ, stdout=subprocess.DEVNULL, stderr=said)
        try:
            yield process
        finally:
            process.terminate()
            if process.wait(30):
                said.seek(0)
                sys.stderr.write(said.read()[-2000:].decode(errors="replace"))


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / CLOCK_TICKS


def memory_mb(pid: int, field: str = "VmRSS") -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) / 1024
    return 0.0


def read_bytes(pid: int) -> int:
    """Bytes that the process has taken by read calls, from disk or cache."""
    for line in Path(f"/proc/{pid}/io").read_text().splitlines():
        if line.startswith("rchar:"):
            return int(line.split()[1])
    return 0


def percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    cells = [list(head), *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(row[at]) for row in cells) for at in range(len(head))]
    for number, row in enumerate(cells):
        print(
            "  ".join(
                cell.rjust(width) if at else cell.ljust(width)
                for at, (cell, width) in enumerate(zip(row, widths, strict=True))
            )
        )
        if not number:
            print("  ".join("-" * width for width in widths))


def noise() -> str:
    """How busy the machine was: figures from a busy one are good for ratios only."""
    one, five, _ = os.getloadavg()
    return f"load {one:.1f} (5 min: {five:.1f}) on {os.cpu_count()} cores"


def low_and_middle(values: Sequence[float]) -> tuple[str, str]:
    return f"{min(values):.2f}", f"{median(values):.2f}"

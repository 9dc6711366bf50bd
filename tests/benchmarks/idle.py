"""What it costs to follow thousands of files that nobody writes to, and to start again with nothing new.

    python tests/benchmarks/idle.py

Bytes read at a restart are those of all read calls of the process, less those of a process that has no session files at
all (Python's own modules, mostly); the state it reads back is part of the difference.
"""

from __future__ import annotations

import argparse
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

from corpus import Corpus, Session
from counting_receiver import CountingReceiver
from measuring import command, cpu_seconds, environ, following, memory_mb, noise, read_bytes, table

DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
FILE_BYTES = 4_000


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as held:
        return int(held.getsockname()[1])


def wait_until_ready(process: subprocess.Popen[bytes], port: int) -> None:
    while process.poll() is None:
        try:
            with DIRECT.open(f"http://127.0.0.1:{port}/readyz", timeout=5):
                return
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.005)
    sys.exit("the program ended before it was ready")


class Started:
    """The program, from its start until it is ready."""

    def __init__(self, home: Path, state: Path, environ: dict[str, str]) -> None:
        port = free_port()
        begin = time.perf_counter()
        self.running = following(command(home, state, "--listen", f"127.0.0.1:{port}"), environ)
        self.process = self.running.__enter__()
        wait_until_ready(self.process, port)
        self.seconds = time.perf_counter() - begin
        self.read = read_bytes(self.process.pid)

    def stop(self) -> None:
        self.running.__exit__(None, None, None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--files", type=int, default=2000)
    parser.add_argument("--seconds", type=float, default=30)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, CountingReceiver() as receiver:
        home, empty, known = Path(folder, "home"), Path(folder, "empty"), environ(**receiver.environ())
        empty.mkdir()
        corpus = Corpus(home, 0, seed=7)
        for _ in range(args.files):
            Session(corpus).write(FILE_BYTES)

        first = Started(home, Path(folder, "state"), known)
        wanted = sum(corpus.truth[kind] for kind in ("turns", "model_calls", "tool_calls"))
        while receiver.spans() < wanted:
            time.sleep(0.1)
        time.sleep(3)  # acknowledgements are committed, the last wakes are over
        used, began = cpu_seconds(first.process.pid), time.monotonic()
        time.sleep(args.seconds)
        idle = (cpu_seconds(first.process.pid) - used) / (time.monotonic() - began)
        memory, peak = memory_mb(first.process.pid), memory_mb(first.process.pid, "VmHWM")
        first.stop()

        again = Started(home, Path(folder, "state"), known)
        after = memory_mb(again.process.pid)
        again.stop()
        size = sum(path.stat().st_size for path in Path(folder, "state").iterdir())
        nothing = Started(empty, Path(folder, "other"), known)
        nothing.stop()
        resent = receiver.spans() - wanted
    table(
        (f"{args.files} files, {corpus.written / 1e6:.0f} MB", "figure"),
        (
            (f"CPU at rest, over {args.seconds:g} s", f"{idle:.2%}"),
            ("memory at rest, and the most", f"{memory:.0f} MB, {peak:.0f} MB"),
            ("first start until ready", f"{first.seconds:.2f} s"),
            ("restart with nothing new until ready", f"{again.seconds:.2f} s"),
            ("start with no files at all until ready", f"{nothing.seconds:.2f} s"),
            ("bytes read at the restart", f"{(again.read - nothing.read) / 1000:.0f} kB"),
            ("size of the state", f"{size / 1000:.0f} kB"),
            ("memory after the restart", f"{after:.0f} MB"),
            ("spans sent again", resent),
        ),
    )
    print(f"\n{noise()}")


if __name__ == "__main__":
    main()

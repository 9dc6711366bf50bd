"""An hour in the life of the program, in one command: many files, many writers, restarts, outages.

    python tests/soak/run.py --minutes 60

Prints its memory, descriptors and what waits every half minute, and ends with a verdict: every turn that was written
was counted and delivered once, no counter fell, memory and descriptors are where they were. Exit status 1 if not.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS), str(TESTS / "faults")]
import seen  # noqa: E402

import truth  # noqa: E402
from ports import free_port  # noqa: E402
from receiver import Answer, Receiver, Request  # noqa: E402
from test_run import get, until  # noqa: E402

SPANS_PER_TURN = 3
SAMPLE_SECONDS = 5.0


class Backend(Receiver):
    """Keeps what it needs to judge and no spans: it has to last an hour too."""

    def __init__(self) -> None:
        super().__init__("http")
        self.contents: dict[str, bytes] = {}
        self.twofold = 0
        self.received = 0

    def take(self, request: Request) -> Answer:
        with self._changed:
            for span in request.spans:
                content = hashlib.blake2b(repr(sorted(seen.content(span).items())).encode(), digest_size=8)
                known = self.contents.setdefault(span.span_id, content.digest())
                self.twofold += known != content.digest()
                self.received += 1
        return Answer()


class Writers:
    """Threads that each have some files, and append to one after another as agents do."""

    def __init__(self, home: Path, files: int, writers: int, pace: float, seed: int) -> None:
        self.turns = 0
        self._pace = pace
        self._lock = threading.Lock()
        self._over = threading.Event()
        folder = home / ".agent/sessions"
        folder.mkdir(parents=True)
        paths = [folder / f"session-{number}.jsonl" for number in range(files)]
        for path in paths:
            path.write_text(self._line("session_meta", session_id=path.stem, cwd=f"/repo/p{len(path.stem)}"))
        self._threads = [
            threading.Thread(target=self._write, args=(paths[number::writers], random.Random(seed + number)))
            for number in range(writers)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    @staticmethod
    def _line(kind: str, **more: Any) -> str:
        now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        return json.dumps({"schema_version": 1, "time": now, "type": kind, **more}) + "\n"

    def _write(self, paths: list[Path], dice: random.Random) -> None:
        number = 0
        while not self._over.is_set():
            number += 1
            path, turn = dice.choice(paths), f"t{number}-{dice.getrandbits(32):x}"
            steps = (
                ("user", {"text": "x" * dice.randint(1, 400)}),
                ("tool_started", {"call_id": f"c{turn}", "name": dice.choice(("shell", "read")), "input": {"n": number}}),
                ("tool_finished", {"call_id": f"c{turn}", "status": dice.choice(("ok", "ok", "error")),
                                   "output": "y" * int(dice.lognormvariate(6, 2))}),
                ("assistant_finished", {"message_id": f"m{turn}", "finish_reason": "stop", "text": "z" * 200,
                                        "model": "claude-sonnet-4-5", "usage": {"input": 100, "output": 10}}),
            )  # fmt: skip
            for kind, more in steps:
                with path.open("a") as file:
                    line = self._line(kind, turn_id=turn, **more)
                    cut = dice.randint(0, len(line))
                    file.write(line[:cut])
                    file.flush()
                    file.write(line[cut:])
                time.sleep(dice.uniform(0, self._pace / 2))
            with self._lock:
                self.turns += 1


class Program:
    """The program under test, and its figures."""

    def __init__(self, place: Path, port: int, environ: dict[str, str]) -> None:
        self.place, self.port = place, port
        self._environ = {
            key: value for key, value in os.environ.items() if not key.startswith("OTEL_")
        } | environ
        self.restarts = 0
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with (self.place / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "spantail", "run", "--home", str(self.place / "home")),
                    *("--state", str(self.place / "state"), "--since", "all", "--new-series-hold", "0"),
                    *("--listen", f"127.0.0.1:{self.port}", "--log-format", "json"),
                ],
                env=self._environ,
                stdout=subprocess.DEVNULL,
                stderr=log,
            )
        until(lambda: get(self.port, "/readyz")[0] == 200, 60)

    def restart(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)
        self.process.wait(30)
        self.restarts += 1
        self.start()

    def sample(self) -> dict[str, float]:
        assert self.process is not None
        about = Path(f"/proc/{self.process.pid}")
        status = dict(line.split(":", 1) for line in (about / "status").read_text().splitlines())
        return {
            "rss": int(status["VmRSS"].split()[0]) / 1024,
            "descriptors": len(list((about / "fd").iterdir())),
            "threads": int(status["Threads"]),
            "state": sum(path.stat().st_size for path in (self.place / "state").iterdir()) / 2**20,
        }

    def value(self, name: str) -> float:
        page = truth.samples(get(self.port, "/metrics")[1])
        return sum(value for _, value in page.get(name, ()))


def soak(args: argparse.Namespace, place: Path) -> list[str]:
    """What is wrong in the end."""
    dice = random.Random(args.seed)
    (place / "home").mkdir()
    backend = Backend().start()
    writers = Writers(place / "home", args.files, args.writers, args.pace, args.seed)
    program = Program(place, free_port(), backend.environ())
    program.start()
    scraper = seen.Scraper(program.port, pause=1.0)
    scraper.start()
    writers.start()
    samples: list[dict[str, float]] = []
    begin = time.monotonic()
    end = begin + args.minutes * 60
    at = {"restart": begin + args.restart, "outage": begin + args.outage, "said": begin}
    while time.monotonic() < end:
        time.sleep(SAMPLE_SECONDS)
        now = time.monotonic()
        samples.append(program.sample())
        if now > at["said"]:
            at["said"] = now + 30
            figures = "  ".join(f"{key} {value:6.1f}" for key, value in samples[-1].items())
            print(
                f"{now - begin:6.0f} s  {figures}  turns {writers.turns}  received {backend.received}",
                flush=True,
            )
        if now > at["restart"]:
            at["restart"] = now + dice.uniform(0.5, 1.5) * args.restart
            program.restart(dice.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGTERM)))
        if now > at["outage"]:
            up = backend._server is not None
            at["outage"] = now + dice.uniform(0.5, 1.5) * (args.outage if not up else args.outage / 3)
            backend.stop() if up else backend.start()
    writers.stop()
    if backend._server is None:
        backend.start()
    said = []
    try:
        until(lambda: program.value("coding_agent_turns_total") >= writers.turns, 120)
        until(lambda: program.value("spantail_outbox_spans") == 0, 120)
    except AssertionError:
        said.append("not everything was counted and delivered within two minutes of the end")
    counted = program.value("coding_agent_turns_total")
    program.restart(signal.SIGTERM)
    scraper.stop()
    program.process.terminate()
    program.process.wait(30)
    backend.stop()
    print(f"{writers.turns} turns written, {counted:.0f} counted, {len(backend.contents)} spans of")
    print(
        f"{writers.turns * SPANS_PER_TURN} arrived ({backend.received} received), {program.restarts} restarts,"
    )
    print(f"{scraper.pages} pages scraped")
    if counted != writers.turns or len(backend.contents) != writers.turns * SPANS_PER_TURN:
        said.append("what was counted or delivered is not what was written")
    if backend.twofold:
        said.append(f"{backend.twofold} spans came with two contents")
    said += [f"a counter fell: {line}" for line in scraper.fell[:5]]
    return said + flat(samples)


def flat(samples: list[dict[str, float]]) -> list[str]:
    """Whether the last quarter is as the second: the first is warming up."""
    quarter = max(1, len(samples) // 4)
    said = []
    for key, slack in (("rss", 8.0), ("descriptors", 4.0), ("threads", 2.0)):
        early = median(sample[key] for sample in samples[quarter : 2 * quarter] or samples)
        late = median(sample[key] for sample in samples[-quarter:])
        print(f"{key}: {early:.1f} in the second quarter, {late:.1f} in the last,", end=" ")
        print(f"{max(sample[key] for sample in samples):.1f} at most")
        if late > early * 1.1 + slack:
            said.append(f"{key} grew from {early:.1f} to {late:.1f}")
    return said


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--files", type=int, default=2000)
    parser.add_argument("--writers", type=int, default=50)
    parser.add_argument(
        "--pace", type=float, default=2.0, help="seconds that a writer rests between records, at most"
    )
    parser.add_argument("--restart", type=float, default=60.0, help="seconds between restarts, on average")
    parser.add_argument("--outage", type=float, default=60.0, help="seconds between outages, on average")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    place = Path(tempfile.mkdtemp(prefix="spantail-soak-"))
    said = soak(args, place)
    print("\n".join(said) if said else "all well")
    if said:
        print(f"log and state are in {place}")
    else:
        shutil.rmtree(place)
    return bool(said)


if __name__ == "__main__":
    sys.exit(main())

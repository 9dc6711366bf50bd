"""How long after an agent has written the end of a tool call its span is at the backend.

    python tests/benchmarks/latency.py

An agent's writer (writers.py) writes at a steady rate; the program follows it in a process of its own and sends to a
receiver in another. Measured from just before the write (the append, the commit, the rename) to the arrival of
the request that holds the call's span. All three read the same clock.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from counting_receiver import CountingReceiver
from measuring import command, cpu_seconds, environ, following, noise, percentile, table
from writers import Document, Lines, Rows, Writer

WRITERS: dict[str, Callable[[Path], Writer]] = {"lines": Lines, "rows": Rows, "document": Document}
PATIENCE = 20.0


def arrived(receiver: CountingReceiver, wanted: set[str]) -> dict[str, int]:
    """Waits until they are all there; what has not come after a while is lost."""
    found: dict[str, int] = {}
    deadline = time.monotonic() + PATIENCE
    while not wanted <= found.keys() and time.monotonic() < deadline:
        for call, at in receiver.arrivals():
            found.setdefault(call, at)
        time.sleep(0.02)
    return found


def measure(make: Callable[[Path], Writer], rate: float, seconds: float) -> tuple[list[float], int, float]:
    """Milliseconds of each call, how many never came, and the program's share of one core."""
    with tempfile.TemporaryDirectory() as folder, CountingReceiver(times=True) as receiver:
        home = Path(folder, "home")
        writer = make(home)
        words = command(home, Path(folder, "state"))
        with following(words, environ(**receiver.environ())) as process:
            warm = {ended[0] for _ in range(4) if (ended := writer.step())}
            arrived(receiver, warm)  # from here on it follows
            used, began = cpu_seconds(process.pid), time.monotonic()
            written: dict[str, int] = {}
            for number in range(max(20, int(rate * seconds))):
                # A steady pace: what one step took is not added to the next.
                time.sleep(max(0.0, began + number / rate - time.monotonic()))
                if ended := writer.step():
                    written[ended[0]] = ended[1]
            found = arrived(receiver, set(written))
            share = (cpu_seconds(process.pid) - used) / (time.monotonic() - began)
    delays = [(found[call] - at) / 1e6 for call, at in written.items() if call in found]
    return delays, len(written) - len(delays), share


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--storage", action="append", choices=WRITERS, help="only these (default: all)")
    parser.add_argument("--rate", action="append", type=float, help="records a second (default: 1, 20, 200)")
    parser.add_argument("--seconds", type=float, default=10)
    args = parser.parse_args()
    rows = []
    lost = 0
    for storage in args.storage or WRITERS:
        for rate in args.rate or (1, 20, 200):
            delays, missing, share = measure(WRITERS[storage], rate, args.seconds)
            lost += missing
            figures = (
                [f"{percentile(delays, share):.1f}" for share in (0.5, 0.99, 1.0)] if delays else ["-"] * 3
            )
            rows.append((storage, f"{rate:g}", len(delays), missing, *figures, f"{share:.1%}"))
    table(("storage", "records/s", "calls", "lost", "p50 ms", "p99 ms", "max ms", "CPU of a core"), rows)
    print(f"\n{noise()}")
    sys.exit(1 if lost else 0)


if __name__ == "__main__":
    main()

"""A whole history, read and delivered span by span, against ccusage, which only sums it up.

    python tests/benchmarks/corpus.py /tmp/history --mb 500
    python tests/benchmarks/backlog.py /tmp/history --ccusage PATH

PATH is ccusage 20 as npm installs it (`npm install ccusage@20`, there `node_modules/.bin/ccusage`); its native program,
without node around it, is at `node_modules/@ccusage/ccusage-linux-x64/bin/ccusage`. The two take turns, so that a busy
machine is busy for both.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from counting_receiver import CountingReceiver
from measuring import Cost, command, environ, low_and_middle, noise, run, table

WATCHED = 2
"""Rounds before those that are timed."""


def ours(home: Path, *, watched: bool) -> tuple[Cost, int]:
    """From an empty state; and how many spans arrived."""
    with tempfile.TemporaryDirectory() as folder, CountingReceiver() as receiver:
        words = command(home, Path(folder), "--once")
        cost = run(words, environ(**receiver.environ()), watched=watched)
        return cost, receiver.spans()


def theirs(program: str, home: Path, *, watched: bool) -> Cost:
    with tempfile.TemporaryDirectory() as empty:
        known = environ(HOME=empty, CLAUDE_CONFIG_DIR=str(home / ".claude"))
        return run([program, "daily", "--json", "--offline"], known, watched=watched)


def expected(home: Path) -> int | None:
    try:
        truth = json.loads((home / "truth.json").read_text())
    except FileNotFoundError:
        return None
    # The reference corpora say llm_calls.
    calls = truth["model_calls"] if "model_calls" in truth else truth["llm_calls"]
    return int(truth["turns"] + calls + truth["tool_calls"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("home", type=Path, help="a home made by corpus.py")
    parser.add_argument(
        "--ccusage", metavar="PATH", help="the other program (default: only ours is measured)"
    )
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    mine: list[Cost] = []
    others: list[Cost] = []
    spans = set()
    # The first of each warm the page cache, and tell the memory.
    for number in range(-WATCHED, args.rounds):
        cost, count = ours(args.home, watched=number < 0)
        spans.add(count)
        mine.append(cost)
        if args.ccusage:
            others.append(theirs(args.ccusage, args.home, watched=number < 0))
    rows = []
    for name, costs in (("spantail, all spans delivered", mine), ("ccusage, totals only", others)):
        if costs:
            memory = max(cost.memory for cost in costs[:WATCHED])
            timed = costs[WATCHED:]
            wall, cpu = (low_and_middle([getattr(cost, part) for cost in timed]) for part in ("wall", "cpu"))
            rows.append((name, *wall, *cpu, f"{memory:.0f}"))
    table(("", "wall s, min", "median", "CPU s, min", "median", "peak MB"), rows)
    if others:
        least = min(cost.wall for cost in mine[WATCHED:]) / min(cost.wall for cost in others[WATCHED:])
        middle = float(rows[0][2]) / float(rows[1][2])
        print(f"\nratio of walls: {least:.2f} (min), {middle:.2f} (median)")
    wanted = expected(args.home)
    print(f"spans delivered: {sorted(spans)}, expected: {wanted}\n{args.rounds} rounds in turns, {noise()}")
    sys.exit(0 if wanted is None or spans == {wanted} else 1)


if __name__ == "__main__":
    main()

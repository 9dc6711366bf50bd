"""Every format's parser against a hundred thousand mutated records: nothing ends the program, nothing grows, and the
session after them is counted as if they were not there.

A failure prints the command that plays its round again. What was found is kept in `FOUND` and played first.
`SPANTAIL_FUZZ_RECORDS` and `SPANTAIL_FUZZ_SEED` make it longer, and other than the last time.
"""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from rounds import play

from spantail.formats import TABLE

PARTS = 4
"""So that several processes can share the work of one format."""
RECORDS = int(os.environ.get("SPANTAIL_FUZZ_RECORDS", "100000")) // PARTS
FIRST = int(os.environ.get("SPANTAIL_FUZZ_SEED", "0"))
GROWTH = 64 << 20
"""Bytes by which the process may grow over all rounds but the first."""

FOUND: dict[str, tuple[int, ...]] = {
    "claude-code": (1,),  # token counts beyond 64 bits ended the commit
    "cline": (11,),  # a subagent that ended by itself and that nobody started made spans without a trace
    "goose": (7,),  # the same
    "opencode": (4, 6, 27),  # times that are text, or bytes
    "pi": (1, 2),  # a time in the far future, and the next prompt was taken for a queued one
}
"""Seeds of rounds that failed once, and why; what they found has a test of its own (tests/session, tests/tail,
tests/formats), since a seed means something else when the mutations change."""


def resident() -> int:
    pages = Path("/proc/self/statm")
    return int(pages.read_text().split()[1]) * 4096 if pages.exists() else 0


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("agent", [row.agent for row in TABLE])
def test_mutated_records_end_nothing_and_hide_nothing(agent, part):
    """Mutated bytes, structure, entries and rows through the whole program, then an intact session."""
    done = rounds = size = 0
    folder = "/dev/shm" if Path("/dev/shm").is_dir() else None
    first = FIRST + part * 1_000_000
    seeds = [*(FOUND.get(agent, ()) if part == 0 else ()), *range(first, first + RECORDS)]
    for seed in seeds:
        with TemporaryDirectory(dir=folder) as home:
            try:
                done += play(agent, seed, Path(home))
            except BaseException as fault:
                fault.add_note(f"again: python tests/fuzz/rounds.py {agent} {seed}")
                raise
        rounds += 1
        if rounds == 8:
            size = resident()
        if done >= RECORDS:
            break
    assert done >= RECORDS
    grown = resident() - size
    assert rounds <= 8 or grown < GROWTH, f"{grown >> 20} MiB more than after the first rounds"

"""One round of the fuzzer: a hostile home through the whole program in this process, and what must hold after it.

    python tests/fuzz/rounds.py AGENT SEED     plays one round again; the home it read is kept and named

The program is the real one (finder, tails, readers, sessions, counting, encoder, commit) without a trace backend:
spans are taken from the outbox. An exception inside it, which the program itself would count and go on, ends the
round.
"""

from __future__ import annotations

import random
import signal
import sqlite3
import sys
import tempfile
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any
from unittest import mock

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from hostile_home import Hostile, chosen, intact

import truth
from program import LONG_AFTER, configured
from receiver import Span, decode
from spantail import ratebook
from spantail.commands.run import Run
from spantail.model import SECOND
from spantail.pricing import Prices
from spantail.state.packing import unpacked
from spantail.state.store import Store
from spantail.tail.wake import HandWaker

HOUR = 3600 * SECOND
PATIENCE = 60
"""Seconds after which a round hangs."""
WORK_BYTES = 256 << 10
READER_BYTES = 256 << 10
"""How much of a session, and of a reader, may be kept: it is written with every commit."""

SAME_FILE = {"aider", "generic", "pi", "goose", "opencode"}
"""Agents whose files hold many sessions, or whose records name their session."""

NO_TIMES = {"aider"}
"""Agents whose times are put together from several files: which line belongs to which is guessed where one is bad."""

_rates = cache(ratebook.load)


@dataclass
class Given:
    """What a run gave."""

    spans: list[Span] = field(default_factory=list)
    page: str = ""
    works: int = 0
    """Bytes of the largest open work, and of the largest reader."""
    readers: int = 0


class Driven:
    """The program over a home, step by step."""

    def __init__(self, home: Path, state: Path, agent: str, now: int) -> None:
        self.now = now
        self.state = state
        self.waker = HandWaker()
        self.store = Store(state)
        self.store.db.execute("PRAGMA synchronous = OFF")
        config = configured(home, state, once=False, textfile=None, agents=(agent,))
        # The rates are read once, not for each of a thousand runs, and all is read in this process.
        with (
            mock.patch("spantail.commands.run.Prices", partial(Prices, load=_rates)),
            mock.patch("spantail.commands.run.hire", return_value=None),
            # Spans are made, and stay in the outbox.
            mock.patch("spantail.out.exporters.traces", return_value=("otlp",)),
            mock.patch("spantail.out.exporters.trace_transport", return_value=None),
        ):
            self.run = Run(config, {}, self.store, clock=lambda: self.now, waker=self.waker, strict=True)
        self.run.notices._write = lambda _line: None
        try:
            self.run.begin()
        except BaseException:
            self.close()
            raise

    def look(self, paths: list[Path]) -> None:
        self.waker.change(*map(str, paths))
        self.run.follow.step(0)

    def end(self) -> Given:
        """Long after: everything is settled."""
        given = Given()
        given.works, given.readers = self._sizes()
        for _ in range(3):
            self.now += 3 * HOUR
            # As after an overflow: everything is looked at, also what was read before it was complete.
            self.waker.lose()
            self.run.follow.step(0)
        works, readers = self._sizes()
        given.works, given.readers = max(works, given.works), max(readers, given.readers)
        for body, how in self.store.db.execute("SELECT body, packed FROM outbox ORDER BY id"):
            given.spans += decode(unpacked(how, body))
        given.page = self.run.page.render(scraper=False)[0].decode()
        return given

    def rest(self) -> None:
        for followed in self.run.follow.parts.sources.all():
            followed.tail.close()

    def close(self) -> None:
        self.rest()
        self.run.waker.close()
        self.store.close()

    def _sizes(self) -> tuple[int, int]:
        def most(column: str, table: str) -> int:
            return self.store.db.execute(f"SELECT max(length({column})) FROM {table}").fetchone()[0] or 0

        return most("work", "works"), most("reader", "cursors")


def expected_page(page: str) -> Counter[str]:
    """Turns and tokens of a page, by name."""
    found: Counter[str] = Counter()
    for line in page.splitlines():
        if line.startswith(("coding_agent_turns_total", "coding_agent_tokens_total")):
            found[line.rpartition(" ")[0].partition("{")[0]] += float(line.rpartition(" ")[2])
    return found


def told(span: Span) -> tuple[Any, ...]:
    """A span as it must be whatever was read before it; links, and its number, depend on what came before."""
    attrs = {k: v for k, v in span.attrs.items() if k != "coding_agent.turn.index"}
    times = (span.start, span.end)
    if span.resource["service.name"] in NO_TIMES:
        times, attrs = (0, 0), {k: v for k, v in attrs.items() if not k.endswith("_seconds")}
    return (
        span.trace_id,
        span.span_id,
        span.parent,
        span.name,
        *times,
        span.status,
        str(sorted(attrs.items())),
    )


@cache
def alone(agent: str) -> tuple[frozenset[tuple[Any, ...]], dict[str, Any]]:
    """What the intact session gives by itself, checked against its truth."""
    case = intact(agent)
    with tempfile.TemporaryDirectory() as folder:
        given = _read(agent, None, Path(folder), None, same=False)
    said = truth.complaints(given.spans, given.page, truth.expected(case))
    assert said == [], said
    return frozenset(map(told, given.spans)), truth.expected(case)


def _read(
    agent: str,
    case: Path | None,
    folder: Path,
    dice: random.Random | None,
    *,
    same: bool,
    mutate: bool = True,
) -> Given:
    home = folder / "home"
    hostile = Hostile(agent, case or intact(agent), home, dice or random.Random(0))
    if case is None:
        # The folders are there before the files, as they are where others have written before.
        for path in (intact(agent) / "home").rglob("*"):
            if path.is_dir():
                (home / path.relative_to(intact(agent) / "home")).mkdir(parents=True)
    elif mutate:
        hostile.write()
    else:
        import shutil

        shutil.copytree(case / "home", home)
    driven = Driven(home, folder / "state", agent, LONG_AFTER)
    try:
        # In one process a connection that may only read keeps others from writing; an agent is another process.
        driven.rest()
        written = hostile.append(intact(agent), same=same)
        driven.look(written)
        given = driven.end()
    finally:
        driven.close()
    given.mutated = hostile.mutated  # type: ignore[attr-defined]
    given.damaged = hostile.damaged  # type: ignore[attr-defined]
    return given


@cache
def follows(agent: str, case: Path, *, same: bool) -> bool:
    """Whether the intact session is itself behind this one as recorded: in some, scripted models gave the same ids."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            given = _read(agent, case, Path(folder), None, same=same, mutate=False)
        except sqlite3.IntegrityError:  # the databases are of versions that do not fit together
            return False
    return alone(agent)[0] <= set(map(told, given.spans))


@contextmanager
def patience(seconds: int):
    """Ends what hangs."""

    def late(*_: object) -> None:
        raise TimeoutError(f"no end after {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def play(agent: str, seed: int, folder: Path) -> int:
    """One round; how many records were mutated in it. AssertionError, or what the program raised."""
    dice = random.Random(f"{agent} {seed}")
    case, same = dice.choice(chosen(agent)), agent in SAME_FILE and dice.random() < 0.5
    while case == intact(agent) or not follows(agent, case, same=same):
        case = dice.choice(chosen(agent))
    wanted, _ = alone(agent)
    with patience(PATIENCE):
        given = _read(agent, case, folder, dice, same=same)
    assert given.works <= WORK_BYTES, f"open work of {given.works} bytes"
    assert given.readers <= READER_BYTES, f"a reader's memory of {given.readers} bytes"
    missing = wanted - set(map(told, given.spans))
    assert not missing, (
        f"{len(missing)} of {len(wanted)} spans of the intact session are not there ({case.name}, same={same})"
    )
    return given.mutated  # type: ignore[attr-defined]


if __name__ == "__main__":
    where = Path(tempfile.mkdtemp(prefix="fuzz-"))
    print(f"{sys.argv[1]} {sys.argv[2]}: the home is in {where}")
    print(play(sys.argv[1], int(sys.argv[2]), where), "mutated records, nothing found")

"""Writes a recorded home again, as its agent did: line by line or in pieces, in the order of the lines' times."""

from __future__ import annotations

import os
import random
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from spantail.formats.times import iso_ns
from spantail.model import SECOND

TIME = re.compile(rb'"(?:timestamp|time|start_time)":\s*"([0-9T:.Z+-]{19,35})"')

UUID = re.compile(rb'"uuid":"([0-9a-f-]{36})"')

Piece = tuple[int, Path, bytes]
"""(time or 0, path relative to the home, bytes to append)"""


def lines(home: Path) -> list[Piece]:
    """All lines of all JSONL files, in the order in which they were written; other files come first, whole."""
    whole: list[Piece] = []
    timed: list[tuple[int, int, Path, bytes]] = []
    forks = _forks(sorted(home.rglob("*.jsonl")))
    for path in sorted(home.rglob("*")):
        if not path.is_file():
            continue
        relative = path.relative_to(home)
        if path.suffix != ".jsonl":
            whole.append((0, relative, path.read_bytes()))
            continue
        last = 0
        written = path.read_bytes().splitlines(keepends=True)
        forked = forks.get(path, 0)
        for number, line in enumerate(written):
            found = TIME.search(line)
            last = max(last, forked, iso_ns(found[1].decode()) if found else 0)
            timed.append((last, number, relative, line))
    timed.sort(key=lambda piece: (piece[0], piece[1]))
    return whole + [(time, path, line) for time, _, path, line in timed]


def _forks(paths: list[Path]) -> dict[Path, int]:
    """A fork copies old lines when it begins: files that repeat another's lines, and their first own time."""
    seen: dict[bytes, set[Path]] = {}
    for path in paths:
        for line in path.read_bytes().splitlines():
            for key in UUID.findall(line):
                seen.setdefault(key, set()).add(path)
    found: dict[Path, int] = {}
    own: dict[Path, int] = {}
    for path in paths:
        times = [
            iso_ns(TIME.search(line)[1].decode())
            for line in path.read_bytes().splitlines()
            if UUID.search(line) and TIME.search(line) and len(seen[UUID.findall(line)[-1]]) == 1
        ]
        own[path] = min(times, default=0)
    for sharers in seen.values():
        original = min(sharers, key=lambda path: own[path])
        for path in sharers - {original}:
            found[path] = own[path]
    return found


def pieces(home: Path, seed: int) -> Iterator[Piece]:
    """The same bytes, torn at random places: half lines, several lines at once."""
    dice = random.Random(seed)
    held: tuple[int, Path, bytes] | None = None
    for time, path, line in lines(home):
        if held is not None and (held[1] != path or time - held[0] > SECOND):
            # What is still owed was written long before this line.
            yield held
            held = None
        body = (held[2] if held is not None else b"") + line
        cut = dice.randint(0, len(body)) if path.suffix == ".jsonl" else len(body)
        held = (time, path, body[cut:]) if cut < len(body) else None
        if cut:
            yield time, path, body[:cut]
    if held is not None:
        yield held


def append(home: Path, piece: Piece) -> Path:
    path = home / piece[1]
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        file.write(piece[2])
    return path


def copied(case: Path, to: Path) -> Path:
    """The recorded home with the times of last change that its files had: a checkout has lost them."""
    shutil.copytree(case / "home", to)
    for path in to.rglob("*.jsonl"):
        times = [iso_ns(found.decode()) for found in TIME.findall(path.read_bytes())]
        if times:
            os.utime(path, ns=(max(times), max(times)))
    return to

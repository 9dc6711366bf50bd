"""What the reader remembers of a session at work. Saved with every commit, so it is small and has an end."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from spantail.model import SECOND

TALKS: Final = 64
"""How many sessions at work are remembered."""
CALLS: Final = 64
TASKS: Final = 16
HIDDEN: Final = 4
SLACK: Final = 2 * SECOND
"""Times are whole seconds, and the row of a session is made a moment before its first message."""


class Asked(Struct, array_like=True, gc=False):
    """A tool call whose result has not come."""

    key: str
    time: int
    task: bytes = b""
    """Digest of what a subagent was told."""
    starts_agent: bool = False


class Task(Struct, array_like=True, gc=False):
    """One side of a subagent, waiting for the other: its session, or the call that started it."""

    key: str
    start: int
    end: int
    words: bytes


class Talk(Struct, array_like=True):
    """A session."""

    nested: bool = False
    parent: str = ""
    folder: bytes = b""
    first: bytes = b""
    """Of the first message: seen again, the rows of the session were inserted anew."""
    again: bool = False
    turn: str = ""
    prompted: int = 0
    words: bytes = b""
    last: int = 0
    over: bool = False
    """The turn has ended."""
    ending: int = 0
    """When the model spoke without asking for a tool: the end, unless the next row shows otherwise."""
    stored: int = 0
    """When that row was inserted."""
    compacted: bool = False
    hidden: list[tuple[str, int, bytes]] = []
    """Rows just read that neither the user nor the model sees: the last may be a prompt."""
    asked: dict[str, Asked] = {}
    pair: tuple[int, int] = (0, 0)
    """Times of the last request and its response."""
    children: list[Task] = []
    tasks: list[Task] = []
    measured: tuple[int, int] | None = None
    """Totals of a file, to be told with the first reply."""


def matched(of: list[Task], other: Task) -> Task | None:
    """Takes out of `of` what belongs to `other`: the same words, else at the same time."""
    inside = [t for t in of if t.start <= other.end + SLACK and other.start <= t.end + SLACK]
    same = [t for t in inside if t.words and t.words == other.words]
    found = next(iter(same or inside), None)
    if found is not None:
        of.remove(found)
    return found


def keep(of: list[Task], task: Task) -> None:
    of.append(task)
    del of[:-TASKS]

"""What the parts of the tail hand to each other, and to the loop."""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct

from spantail.formats.row import Files, Format
from spantail.model import Record


class Source(Struct, frozen=True, eq=False):
    """A file that is followed: whose it is and how it is stored."""

    path: str
    format: Format
    files: Files
    home: str
    user: str
    """Label that tells homes apart; empty with one home."""

    @property
    def group(self) -> str:
        """Files that can repeat each other's records: those of one agent in one home."""
        return f"{self.format.agent}\n{self.home}"


class Batch(Struct):
    """What one read of a source gave."""

    records: list[Record]
    bytes: int = 0
    """Bytes read from disk for it."""
    bad: int = 0
    """Records that could not be read (already said to the notices)."""
    partial: int = 0
    """Of the records, those that are bad in a part, and read without it (said as well)."""
    restarted: bool = False
    """The source begins anew (truncated, replaced): the reader's memory is to be forgotten before
    these records. What was counted stays counted; the ledger sees to it."""
    more: bool = False
    """There is more to read right now."""
    unread: bool = False
    """What was written by now could not be read: locked, or half written. Silence proves nothing until it can be."""


class Tail(Protocol):
    """Reads on from its cursor. Never raises for what is wrong with the file: it says so to the
    notices and gives what there is."""

    source: Source

    def changed(self) -> bool:
        """Whether there is something new, by a stat at most."""
        ...

    def torn(self) -> bool:
        """Whether a part of a record stands at its end, as of the last read. Without opening it."""
        ...

    def read(self, budget: int, arrival: int) -> Batch:
        """The next records, about `budget` bytes of them."""
        ...

    def cursor(self) -> bytes:
        """Where the next read goes on, after all records handed out so far."""
        ...

    def close(self) -> None: ...

"""A file and those beside it that only make sense together with it, followed as one source.

The illusion kept for the reader: one stream of records in which everything written so far comes in a fixed order,
the files beside the main one first, and which says when it has caught up (a record of kind AT_REST). So a reader
that needs two files to tell one story has them in one memory, and that memory, all positions and the events of it
are in one commit.

The main file decides what is the same and what begins anew: if it is truncated or replaced, the others are read from
their beginnings too, since the reader's memory of them is gone. If one of the others is, it is simply read on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec
from msgspec.structs import asdict, replace

from spantail.formats.row import AT_REST, Beside
from spantail.model import Record
from spantail.tail import identity
from spantail.tail.identity import Cursor
from spantail.tail.lines import Limits, LineTail, Notices
from spantail.tail.source import Batch, Source

Look = Callable[[Source], Iterable[tuple[Beside, str]]]
"""The files that are beside one right now."""


class JoinedCursor(Cursor, array_like=True, frozen=True, gc=False):
    """That of the main file, by which it is known again, and behind it those of the others."""

    beside: dict[str, bytes] = {}


_decoder = msgspec.msgpack.Decoder(JoinedCursor)


def positions(cursor: bytes) -> dict[str, bytes]:
    """The cursors of the files beside the main one, by path."""
    try:
        return _decoder.decode(cursor).beside
    except msgspec.DecodeError:
        return {}


class JoinedTail:
    def __init__(
        self, source: Source, cursor: bytes | None, notices: Notices, limits: Limits, look: Look
    ) -> None:
        self.source = source
        self._notices = notices
        self._limits = limits
        self._look = look
        self._main = LineTail(source, cursor, notices, limits)
        self._beside: dict[str, LineTail] = {}
        self._stored: dict[str, bytes] = positions(cursor) if cursor else {}
        self._looked = False

    @property
    def gone(self) -> bool:
        return self._main.gone

    def changed(self) -> bool:
        """By stats alone: which files there are is looked at when there is something to read."""
        if not self._looked:
            self._find()
        return self._main.changed() or any(tail.changed() for tail in self._beside.values())

    def torn(self) -> bool:
        return self._main.torn()

    def read(self, budget: int, arrival: int, *, final: bool = False) -> Batch:
        self._find()
        batch = self._others(budget, arrival)
        main = self._main.read(budget, arrival, final=final)
        if main.restarted:
            self._stored = {}
            self._beside = {}
            self._find()
            batch = self._others(budget, arrival)
        batch.records += main.records
        batch.bytes += main.bytes
        batch.bad += main.bad
        batch.partial += main.partial
        batch.restarted, batch.more = main.restarted, main.more
        batch.unread |= main.unread
        if batch.records and not batch.more:
            batch.records.append(Record(AT_REST, self.source.path, 0, arrival, None))
        return batch

    def cursor(self) -> bytes:
        at = identity.decode(self._main.cursor())
        assert at is not None
        stored = {**self._stored, **{path: tail.cursor() for path, tail in self._beside.items()}}
        return msgspec.msgpack.encode(JoinedCursor(**asdict(at), beside=stored))

    def close(self) -> None:
        """Nothing is held open between reads."""

    def _others(self, budget: int, arrival: int) -> Batch:
        batch = Batch([])
        for tail in self._beside.values():
            more = True
            while more:
                part = tail.read(budget, arrival)
                batch.records += part.records
                batch.bytes += part.bytes
                batch.bad += part.bad
                batch.partial += part.partial
                batch.unread |= part.unread
                more = part.more
        return batch

    def _find(self) -> None:
        """One that went away keeps its position, in case it comes back; one that came is read from there."""
        self._looked = True
        found = {path: beside for beside, path in self._look(self.source)}
        for path in [path for path in self._beside if path not in found]:
            self._stored[path] = self._beside.pop(path).cursor()
        for path, beside in found.items():
            if path not in self._beside:
                files = replace(self.source.files, kind=beside.kind, storage=beside.storage, line=beside.line)
                source = replace(self.source, path=path, files=files)
                self._beside[path] = LineTail(source, self._stored.get(path), self._notices, self._limits)
        # In the order of the root, whenever they were found.
        self._beside = {path: self._beside[path] for path in found}

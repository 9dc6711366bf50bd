"""The records before a cursor, once more.

For open work and readers' memory that have to be made again: a source is given from its beginning up to where a
cursor stands, as it would have been read, and nothing of it is said or counted. A reader's memory is only right at
the place where it was saved, so nothing but the beginning will do to start from.

Documents and databases have no bytes "before" a cursor: of those it is all that the cursor knows.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from msgspec.structs import replace

from spantail.formats.row import AT_REST
from spantail.model import Record
from spantail.tail import identity, joined, row_cursor
from spantail.tail.document import Limits
from spantail.tail.lines import LineTail
from spantail.tail.open import joined as is_joined
from spantail.tail.open import open_tail
from spantail.tail.source import Source

READ_BYTES = 256 << 10


class GoneError(Exception):
    """What was read up to the cursor is not there any more."""


class Silent:
    """What is wrong with these records was said when they were read."""

    def bad_record(self, agent: str, path: str, offset: int, reason: str) -> None: ...

    def unreadable(self, agent: str, path: str, reason: str) -> None: ...

    def readable(self, path: str) -> None: ...

    def gone(self, agent: str, path: str) -> None: ...

    def restarted(self, agent: str, path: str) -> None: ...


def before(
    source: Source, cursor: bytes, limits: Limits, beside: joined.Look | None = None
) -> Iterator[list[Record]]:
    """Raises GoneError, before anything is given, if the source is another one by now."""
    if source.files.storage not in ("lines", "text"):
        return _known(source, cursor, limits)
    if beside is not None and is_joined(source):
        return _joined(source, cursor, limits, beside)
    return _lines(source, cursor, limits)


def _lines(source: Source, cursor: bytes, limits: Limits) -> Iterator[list[Record]]:
    goal = identity.decode(cursor)
    try:
        with identity.open_lines(source.path) as file:
            if goal is None or not identity.same(file, os.fstat(file.fileno()), goal):
                raise GoneError
    except (OSError, EOFError) as error:
        raise GoneError from error
    tail = LineTail(source, None, Silent(), limits)
    at, final = 0, False
    while at < goal.offset:
        # A budget that ends at the goal ends the reading there: a cursor stands between two lines.
        batch = tail.read(min(READ_BYTES, goal.offset - at), 0, final=final)
        yield batch.records
        reached = identity.decode(tail.cursor())
        moved = reached is not None and reached.offset > at
        if not moved and final:
            break
        # A last line that was taken without its newline.
        final = not moved
        at = reached.offset if reached is not None else at
    tail.close()


def _joined(source: Source, cursor: bytes, limits: Limits, look: joined.Look) -> Iterator[list[Record]]:
    stored = joined.positions(cursor)
    for beside, path in look(source):
        if path in stored:
            files = replace(source.files, kind=beside.kind, storage=beside.storage, line=beside.line)
            try:
                yield from _lines(replace(source, path=path, files=files), stored[path], limits)
            except GoneError:
                continue  # the main file decides
    yield from _lines(source, cursor, limits)
    yield [Record(AT_REST, source.path, 0, 0, None)]


def _known(source: Source, cursor: bytes, limits: Limits) -> Iterator[list[Record]]:
    new: set[tuple[str, int]] = set()
    rest = open_tail(source, cursor, Silent(), limits)
    more = True
    while more:
        batch = rest.read(READ_BYTES, 0)
        if batch.restarted or not os.path.exists(source.path):  # noqa: PTH110
            raise GoneError
        new.update((record.kind, record.position) for record in batch.records)
        more = batch.more
    rest.close()
    marks = row_cursor.decode(cursor).marks if source.files.storage == "rows" else {}
    whole = open_tail(source, None, Silent(), limits)
    more = True
    while more:
        batch = whole.read(READ_BYTES, 0)
        yield [
            record
            for record in batch.records
            if (record.kind, record.position) not in new or _partly(record, marks)
        ]
        more = batch.more
    whole.close()


def _partly(record: Record, marks: dict[str, row_cursor.Mark]) -> bool:
    """A row that was known and has got more parts: only those will be given when reading goes on."""
    mark = marks.get(record.kind)
    return (
        mark is not None
        and bool(getattr(record.body, "parts", ()))
        and isinstance(mark.at, int)
        and record.position <= mark.at
    )

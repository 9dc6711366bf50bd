"""The tail for a source, by how the source is stored."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spantail.tail import lines
from spantail.tail.lines import LineTail
from spantail.tail.source import Source, Tail

if TYPE_CHECKING:
    from spantail.tail.document import Limits
    from spantail.tail.joined import Look


def joined(source: Source) -> bool:
    """Whether a source is read together with files that lie beside it."""
    return bool(source.format.roots[source.files.root].beside)


def open_tail(
    source: Source,
    cursor: bytes | None,
    notices: lines.Notices,
    limits: Limits,
    beside: Look | None = None,
) -> Tail:
    """Documents and databases are rarer than lines: their tails are imported when first needed.

    `beside` finds the files that are read with a source, for those that have any.
    """
    if source.files.storage == "document":
        from spantail.tail.document import DocumentTail

        return DocumentTail(source, cursor, notices, limits)
    if source.files.storage == "rows":
        from spantail.tail.rows import RowsTail

        return RowsTail(source, cursor, notices, limits)
    if beside is not None and joined(source):
        from spantail.tail.joined import JoinedTail

        return JoinedTail(source, cursor, notices, limits, beside)
    return LineTail(source, cursor, notices, limits)

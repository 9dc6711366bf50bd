"""How a format asks an agent's database: what `tail/rows` runs, and what a record of it holds.

A format whose files are stored as rows gives `queries(columns) -> Plan`: from the tables and columns that the
database at hand has to the queries that fit it. So a missing table or column is the format's to tolerate, and
nothing is selected that was not asked for by name. Marks, re-reading and the cursor are the tail's.

The queries of a plan are run in their order within one read; a row is handed out once, and again only when it
changed. There are three ways to notice a change, each at a cost in proportion to what changed:

- `mark` = rowid: new rows only, by the table's own order. With `key` a deleted or vacuumed table, in which
  rowids are given anew, is noticed and read on at the right place.
- `mark` = another column (a time of update): rows whose value is as high as the highest seen, or higher.
- `open`: rows that the format calls open are looked at again by their key whenever the database changed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

Columns = Mapping[str, frozenset[str]]
"""Table -> its columns."""

Values = tuple[Any, ...]
"""What SQLite gave: None, int, float, str; bytes where the expression was cast to a blob."""


class Row(Struct, frozen=True, gc=False):
    """The body of a record: a row, and the rows of another table that belong to it."""

    key: str
    values: Values
    """In the order of `Query.columns`."""
    parts: tuple[Values, ...] = ()
    """In the order of `Parts.columns`. For a row handed out again: at least those that changed."""


class Parts(Struct, frozen=True, kw_only=True):
    """Rows that are read together with the row that owns them. `owner` should be indexed."""

    table: str
    owner: str
    """The column that holds the key of the owning row."""
    changed: str
    """A column that grows with every change; of a row looked at again only what is as new is read."""
    columns: tuple[str, ...]
    order: str


class Query(Struct, frozen=True, kw_only=True):
    """One stream of rows of one table. `columns`, `where` and `order` are SQL expressions."""

    kind: str
    """The record's kind, and the name of the mark in the cursor."""
    table: str
    columns: tuple[str, ...]
    key: str = ""
    """A unique text column; needed for `open` and for other marks than rowid."""
    mark: str = "rowid"
    where: str = ""
    parts: Parts | None = None
    open: Callable[[Row], bool] | None = None


Plan = tuple[Query, ...]

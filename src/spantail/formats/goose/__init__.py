"""Goose's row of the table."""

from __future__ import annotations

import re
from typing import Final

from spantail.formats.goose.queries import queries
from spantail.formats.goose.reader import GooseReader
from spantail.formats.goose.shapes import Line
from spantail.formats.row import Files, Format, Gives, Root
from spantail.model import SECOND

_CREATED: Final = re.compile(rb'"created":\s*(\d{10})\b')


def unit(path: str, head: bytes) -> tuple[int, str]:
    """A file is a session. Its first line has no time."""
    found = _CREATED.search(head)
    return (int(found[1]) * SECOND if found is not None else 0), path


FORMAT = Format(
    agent="goose",
    title="Goose",
    versions="built from the schemas of 1.30.0",
    roots=(
        Root(
            ".local/share/goose/sessions", env="GOOSE_PATH_ROOT", below="data/sessions", xdg="XDG_DATA_HOME"
        ),
    ),
    files=(
        Files(
            kind="database",
            root=0,
            glob="sessions.db",
            storage="rows",
            reader=GooseReader,
            memory=GooseReader,
            queries=queries,
        ),
        Files(
            kind="lines",
            root=0,
            glob="*.jsonl",
            storage="lines",
            reader=GooseReader,
            memory=GooseReader,
            line=Line,
            unit=unit,
        ),
    ),
    never=(".config/goose/secrets.yaml", ".config/goose/config.yaml"),
    gives=Gives(
        tokens="running totals of a session, added as they grow: input with the cache, output",
        tool_times="derived, in whole seconds; of calls made together only the slowest",
        errors="yes; what ran when it was killed, and provider errors, are not stored",
        cost="stored by newer versions (schema 13), else computed without the cache",
        exit="derived from the last turn",
        subagents="by time and folder; exact where the parent is stored (schema 15)",
    ),
)

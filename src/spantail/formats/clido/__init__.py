"""clido's row of the table."""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import Final

from spantail.formats.clido.lines import Line
from spantail.formats.clido.reader import ClidoReader
from spantail.formats.row import Files, Format, Gives, Root
from spantail.formats.values import time_ns

START_TIME: Final = re.compile(rb'"start_time"\s*:\s*"([^"]{1,40})"')


def unit(path: str, first: bytes) -> tuple[int, str]:
    """A session is one file. A fork's own meta line comes first, so its original is read before it."""
    found = START_TIME.search(first)
    return time_ns(found[1].decode("ascii", "replace")) if found is not None else 0, PurePath(path).stem


def _files(root: int, glob: str) -> Files:
    return Files(
        kind="session",
        root=root,
        glob=glob,
        storage="lines",
        reader=ClidoReader,
        memory=ClidoReader,
        line=Line,
        unit=unit,
    )


FORMAT = Format(
    agent="clido",
    title="clido",
    versions="schema 1 (documentation; source of 1.0.15)",
    roots=(
        Root(".local/share/clido/sessions", env="CLIDO_DATA_DIR", below="sessions", xdg="XDG_DATA_HOME"),
        Root("Library/Application Support/clido/sessions"),
        Root(".local/share/clido/sessions", env="CLIDO_SESSION_DIR", xdg="XDG_DATA_HOME"),
    ),
    files=(_files(0, "*/*.jsonl"), _files(1, "*/*.jsonl"), _files(2, "*.jsonl")),
    never=(
        ".config/clido/**",
        "Library/Application Support/clido/credentials",
        "Library/Application Support/clido/config.toml",
    ),
    gives=Gives(
        tokens="none, and no model",
        tool_times="stated durations; times of arrival, estimated for files found at start",
        errors="yes",
        cost="running total per result",
        exit="result line",
        subagents="none exist",
    ),
)

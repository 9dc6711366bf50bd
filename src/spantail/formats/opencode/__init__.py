"""OpenCode's row of the table. Kilo's command line is the same program under another name."""

from __future__ import annotations

import re
from typing import Final

from spantail.formats.opencode.ids import made_at
from spantail.formats.opencode.queries import queries
from spantail.formats.opencode.reader import OpenCodeReader
from spantail.formats.row import Files, Format, Gives, Root
from spantail.formats.values import time_ns

_WHEN: Final = (re.compile(rb'"completed":\s*(\d{10,16})'), re.compile(rb'"created":\s*(\d{10,16})'))


def unit(path: str, head: bytes) -> tuple[int, str]:
    """All files of a storage folder are one unit, by time: which session a part's file belongs to, and which
    session that one is nested in, stands in other files. A message counts as of its completion, because its
    parts came before that."""
    folder, _, name = path.rpartition("/")
    time = made_at(name) if "/storage/part/" in path else 0
    for when in _WHEN:
        found = None if time else when.search(head)
        time = time or (time_ns(int(found[1])) if found is not None else 0)
    return time, folder.partition("/storage/")[0] + "/storage"


def _database(root: int, glob: str) -> Files:
    return Files(
        kind="database",
        root=root,
        glob=glob,
        storage="rows",
        reader=OpenCodeReader,
        memory=OpenCodeReader,
        queries=queries,
    )


def _document(root: int, kind: str, glob: str) -> Files:
    return Files(
        kind=kind,
        root=root,
        glob=glob,
        storage="document",
        reader=OpenCodeReader,
        memory=OpenCodeReader,
        companion=kind == "session",
        unit=unit,
    )


FORMAT = Format(
    agent="opencode",
    title="OpenCode",
    demo="spantail.formats.opencode.demo",
    versions="1.1.65, 1.2.27, 1.14.41, 1.17.0, 1.18.33",
    roots=(
        Root(".local/share/opencode", xdg="XDG_DATA_HOME"),
        Root(".local/share/opencode", env="OPENCODE_DB", named=True, xdg="XDG_DATA_HOME"),
        Root(".local/share/kilo", xdg="XDG_DATA_HOME"),
    ),
    files=(
        _database(0, "opencode*.db"),
        _database(1, "opencode*.db"),
        _database(2, "kilo*.db"),
        *(
            _document(root, kind, f"storage/{kind}/*/*.json")
            for root in (0, 2)
            for kind in ("session", "message", "part")
        ),
    ),
    never=(
        ".local/share/opencode/*auth*.json",
        ".local/share/opencode/account*.json",
        ".local/share/kilo/*auth*.json",
        ".local/share/kilo/account*.json",
    ),
    gives=Gives(
        tokens="per message, after its tools: input, cache read and write, output; lost when killed in a tool",
        tool_times="stored start and end, in milliseconds",
        errors="yes, with the exit code of shell commands",
        cost="stored by OpenCode",
        exit="derived from the last turn",
        subagents="exact",
    ),
)

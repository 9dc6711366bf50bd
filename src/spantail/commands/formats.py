"""`spantail formats`: the table of agents as a person, a README or a program reads it.

Nothing is written here about any agent: all of it is derived from the rows of `formats.TABLE`, so
the answer is always what the program really does.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final, TextIO

import orjson

from spantail.formats.row import Format, Root

COLUMNS: Final = {
    "agent": "agent",
    "where": "where its files are",
    "storage": "storage",
    "versions": "versions",
    "tokens": "tokens",
    "tool_times": "tool times",
    "errors": "errors",
    "cost": "cost",
    "exit": "exit status",
    "subagents": "subagents",
}


def main(shape: str = "text", table: Sequence[Format] | None = None, out: TextIO | None = None) -> int:
    if table is None:
        from spantail.formats import TABLE

        table = TABLE
    render = {"text": as_text, "markdown": as_markdown, "json": as_json}[shape]
    # between backticks a tilde strikes nothing out and a dollar begins no formula
    quote = "`" if shape == "markdown" else ""
    (out or sys.stdout).write(render([cells(row, quote) for row in table]))
    return 0


def cells(row: Format, quote: str = "") -> dict[str, str]:
    """One row of the table, column by column."""
    storages = dict.fromkeys(files.storage for files in row.files)  # in their order, each once
    return {
        "agent": row.agent,
        "where": ", ".join(place(root, quote) for root in row.roots),
        "storage": ", ".join(storages),
        "versions": row.versions,
        "tokens": row.gives.tokens,
        "tool_times": row.gives.tool_times,
        "errors": row.gives.errors,
        "cost": row.gives.cost,
        "exit": row.gives.exit,
        "subagents": row.gives.subagents,
    }


def place(root: Root, quote: str = "") -> str:
    """A folder as a user writes it: `~/.x/y ($X_HOME/y)`."""
    other = root.env or root.xdg
    if not other:
        return f"{quote}~/{root.path}{quote}"
    # XDG_DATA_HOME stands for `.local/share`, XDG_CONFIG_HOME for `.config`: what comes after stays
    depth = 2 if root.path.startswith(".local/") else 1
    below = root.below if root.env else "/".join(root.path.split("/")[depth:])
    moved = f"${other}{'/' + below if below else ''}"
    return f"{quote}~/{root.path}{quote} ({quote}{moved}{quote})"


def as_text(rows: Sequence[dict[str, str]]) -> str:
    """A block per agent: a line that holds ten columns fits no terminal."""
    width = max(len(title) for title in COLUMNS.values())
    blocks = []
    for row in rows:
        lines = [row["agent"]]
        lines += [
            f"  {title:<{width}}  {row[key] or '-'}" for key, title in COLUMNS.items() if key != "agent"
        ]
        blocks.append("\n".join(lines) + "\n")
    return "\n".join(blocks)


def as_markdown(rows: Sequence[dict[str, str]]) -> str:
    lines = ["| " + " | ".join(COLUMNS.values()) + " |", "|" + "---|" * len(COLUMNS)]
    for row in rows:
        # a bar would begin a new column, a line end a new row
        words = [(row[key] or "-").replace("|", "\\|").replace("\n", " ") for key in COLUMNS]
        lines.append("| " + " | ".join(words) + " |")
    return "\n".join(lines) + "\n"


def as_json(rows: Sequence[dict[str, str]]) -> str:
    return orjson.dumps(list(rows), option=orjson.OPT_INDENT_2).decode() + "\n"

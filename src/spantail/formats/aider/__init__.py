"""Aider: a history for people, in Markdown, in every project folder.

    <project>/.aider.chat.history.md     everything, run after run; the time of a run's start is the only one in it
    <project>/.aider.input.history       what was typed, and when
    *analytics*.jsonl                    exact numbers per call, if the user asked for it (--analytics-log)

There is no central folder: homes are searched for the history, and further folders can be named. The other two
files say nothing without it, and it says less without them, so the three are read by one reader: the log names no
run and no folder, only seconds, and the input history names nothing at all.

The history holds the command line, maybe with keys in it, and is never opened for that: a switch is looked for.
"""

from __future__ import annotations

import re

from spantail.formats.aider.beside import Entry
from spantail.formats.aider.lines import local_ns
from spantail.formats.aider.reader import History
from spantail.formats.row import Beside, Files, Format, Gives, Root

DEPTH = 4
_FIRST = re.compile(rb"# aider chat started at (\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)")


def _unit(path: str, head: bytes) -> tuple[int, str]:
    first = _FIRST.search(head)
    return local_ns(first[1].decode()) if first is not None else 0, path


FORMAT = Format(
    agent="aider",
    title="Aider",
    roots=(
        Root(
            "",
            search=DEPTH,
            beside=(
                Beside("inputs", ".aider.input.history", "text"),
                Beside("log", "*analytics*.jsonl", "lines", line=Entry, wide=True),
            ),
        ),
    ),
    files=(Files("history", 0, ".aider.chat.history.md", "text", History, History, unit=_unit),),
    gives=Gives(
        tokens="as Aider counts them; rounded without its analytics log",
        tool_times="none; shell commands estimated",
        errors="failed edits, lint and tests; the exit status of shell commands is not written",
        cost="reported",
        exit="from the turns; the end of a run from the log or /exit",
        subagents="none",
    ),
    never=(".env", ".aider.conf.yml", ".aider/oauth-keys.env"),
    versions="0.86",
    roots_setting="aider_roots",
)

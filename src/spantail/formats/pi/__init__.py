"""pi's row of the table. A fork of it (gajae-code) writes the same lines in another folder."""

from __future__ import annotations

from spantail.formats.pi.lines import Line
from spantail.formats.pi.reader import PiReader, unit
from spantail.formats.row import Files, Format, Gives, Root


def _sessions(root: int) -> Files:
    return Files(
        kind="session",
        root=root,
        glob="*/*.jsonl",
        storage="lines",
        reader=PiReader,
        memory=PiReader,
        line=Line,
        unit=unit,
    )


FORMAT = Format(
    agent="pi",
    title="pi",
    demo="spantail.formats.pi.demo",
    versions="0.87.1",
    roots=(
        Root(".pi/agent/sessions", env="PI_CODING_AGENT_DIR", below="sessions"),
        Root(".gjc/agent/sessions"),
    ),
    files=(_sessions(0), _sessions(1)),
    never=(
        ".pi/agent/auth.json",
        ".pi/agent/models.json",
        ".pi/agent/settings.json",
        ".gjc/agent/auth.json",
        ".gjc/agent/models.json",
        ".gjc/agent/settings.json",
    ),
    gives=Gives(
        tokens="per response: input, cache read and write (5 min, 1 h), output",
        tool_times="times of the lines; estimates in batches",
        errors="yes",
        cost="reported; computed where pi has no price",
        exit="derived from the last turn",
        subagents="as an extension tells them in a call's result",
    ),
)

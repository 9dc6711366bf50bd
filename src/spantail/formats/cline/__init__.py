"""Cline's row of the table. The CLI's and SDK's layout; that of the VS Code extension is not read yet."""

from __future__ import annotations

from spantail.formats.cline.companions import HooksReader, ManifestReader
from spantail.formats.cline.messages import MessagesReader
from spantail.formats.cline.shapes import Hook, before_all, entries, unit
from spantail.formats.row import Files, Format, Gives, Root


def _messages(kind: str, glob: str, *, main: bool) -> Files:
    return Files(
        kind=kind,
        root=0,
        glob=glob,
        storage="document",
        reader=MessagesReader,
        memory=MessagesReader,
        unit=unit,
        entries=entries,
        main=main,
    )


def _hooks(root: int, glob: str) -> Files:
    return Files(
        kind="hooks",
        root=root,
        glob=glob,
        storage="lines",
        reader=HooksReader,
        memory=HooksReader,
        line=Hook,
        companion=True,
        unit=before_all,
        main=False,
    )


FORMAT = Format(
    agent="cline",
    title="Cline",
    versions="3.0.65",
    roots=(
        Root(".cline/data/sessions", env="CLINE_DATA_DIR", below="sessions"),
        Root(".cline/data/logs", env="CLINE_DATA_DIR", below="logs"),
    ),
    files=(
        _hooks(1, "hooks.jsonl"),
        _hooks(0, "*/hooks.jsonl"),
        _messages("subagent", "*/agent_*.messages.json", main=False),
        _messages("teammate", "*/*__*.messages.json", main=False),
        _messages("session", "*/*.messages.json", main=True),
        Files(
            kind="manifest",
            root=0,
            glob="*/*.json",
            storage="document",
            reader=ManifestReader,
            memory=ManifestReader,
            unit=unit,
            # Not a companion: it tells how the run ended, and must be read after the run's messages.
            main=False,
        ),
    ),
    never=(
        ".cline/data/settings/**",
        ".cline/data/locks/**",
        ".cline/data/db/**",
        # Repeats the usage of messages that a compaction kept.
        ".cline/data/sessions/*/*.compaction.json",
    ),
    gives=Gives(
        tokens="per response: input, cache read and write, output",
        tool_times="end exact, start = the response's; exact with the hooks' log (ACP mode); estimates in batches",
        errors="yes",
        cost="where Cline knows the price; else computed",
        exit="yes, from the manifest; in ACP mode derived from the last turn",
        subagents="by the text of the task",
    ),
)

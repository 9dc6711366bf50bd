"""Cline's row of the table: the layout of the CLI and SDK, and that of the VS Code extension, which Roo Code and
Kilo Code have as well."""

from __future__ import annotations

from spantail.formats.cline.companions import HooksReader, ManifestReader
from spantail.formats.cline.messages import MessagesReader
from spantail.formats.cline.shapes import Hook, before_all, entries, unit
from spantail.formats.cline.task_folder import TaskMetadataReader
from spantail.formats.cline.task_history import HistoryReader
from spantail.formats.cline.task_shapes import task_entries, task_unit
from spantail.formats.cline.tasks import UiReader
from spantail.formats.row import Files, Format, Gives, Reader, Root

EXTENSIONS = ("saoudrizwan.claude-dev", "rooveterinaryinc.roo-cline", "kilocode.kilo-code")
STORAGES = (
    ".config/Code/User/globalStorage",
    ".vscode-server/data/User/globalStorage",
    "Library/Application Support/Code/User/globalStorage",
)
TASKS = (
    Root(".cline/data/tasks", env="CLINE_DATA_DIR", below="tasks"),
    *(
        Root(f"{storage}/{extension}/tasks", xdg="XDG_CONFIG_HOME" if storage.startswith(".config/") else "")
        for storage in STORAGES
        for extension in EXTENSIONS
    ),
)
"""Where tasks are, in a folder each."""
FIRST_TASKS = 4
"""Which of the format's roots is the first of them."""


def _messages(root: int, kind: str, glob: str, *, main: bool) -> Files:
    return Files(
        kind=kind,
        root=root,
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


def _sessions(root: int) -> tuple[Files, ...]:
    return (
        _hooks(root, "*/hooks.jsonl"),
        _messages(root, "subagent", "*/agent_*.messages.json", main=False),
        _messages(root, "teammate", "*/*__*.messages.json", main=False),
        _messages(root, "session", "*/*.messages.json", main=True),
        Files(
            kind="manifest",
            root=root,
            glob="*/*.json",
            storage="document",
            reader=ManifestReader,
            memory=ManifestReader,
            unit=unit,
            # Not a companion: it tells how the run ended, and must be read after the run's messages.
            main=False,
        ),
    )


def _task(root: int) -> tuple[Files, ...]:
    def files(name: str, reader: type[Reader], *, list_: bool, companion: bool = False) -> Files:
        return Files(
            kind=name,
            root=root,
            glob=f"*/{name}.json",
            storage="document",
            reader=reader,
            memory=reader,
            unit=task_unit,
            entries=task_entries if list_ else None,
            companion=companion,
        )

    return (
        files("task_metadata", TaskMetadataReader, list_=False, companion=True),
        files("ui_messages", UiReader, list_=True),
        # Silent where there are ui_messages: see task_folder.
        files("api_conversation_history", HistoryReader, list_=True),
    )


FORMAT = Format(
    agent="cline",
    title="Cline",
    demo="spantail.formats.cline.demo",
    versions="3.0.65; VS Code: built from the shapes of 3.51.0, none recorded",
    roots=(
        Root(".cline/data/sessions", env="CLINE_DATA_DIR", below="sessions"),
        Root(".cline/data/logs", env="CLINE_DATA_DIR", below="logs"),
        Root(".cline/data/sessions", env="CLINE_SESSION_DATA_DIR"),
        Root(".cline/data/logs", env="CLINE_HOOKS_LOG_PATH", named=True),
        *TASKS,
    ),
    files=(
        _hooks(1, "hooks.jsonl"),
        _hooks(3, "hooks.jsonl"),
        *_sessions(0),
        *_sessions(2),
        *(files for index in range(len(TASKS)) for files in _task(FIRST_TASKS + index)),
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
        tool_times="end exact, start = the response's; exact with the hooks' log (ACP mode); estimates in batches and in VS Code",
        errors="yes; in VS Code those that are shown",
        cost="where Cline knows the price; else computed",
        exit="yes, from the manifest; in ACP mode derived from the last turn, as in VS Code",
        subagents="by the text of the task; in VS Code only their usage",
    ),
)

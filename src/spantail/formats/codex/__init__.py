"""Codex CLI's row of the table."""

from __future__ import annotations

from spantail.formats.codex.lines import Line
from spantail.formats.codex.names import unit
from spantail.formats.codex.reader import CodexReader
from spantail.formats.row import Files, Format, Gives, Root


def _rollouts(root: int, glob: str) -> Files:
    return Files(
        kind="rollout",
        root=root,
        glob=glob,
        storage="lines",
        reader=CodexReader,
        memory=CodexReader,
        line=Line,
        unit=unit,
    )


FORMAT = Format(
    agent="codex",
    title="Codex CLI",
    demo="spantail.formats.codex.demo",
    provider="openai",
    versions="0.98.0, 0.144.6, 0.169.0",
    roots=(
        Root(".codex/sessions", env="CODEX_HOME", below="sessions"),
        Root(".codex/archived_sessions", env="CODEX_HOME", below="archived_sessions"),
    ),
    files=(
        _rollouts(0, "**/rollout-*.jsonl"),
        _rollouts(0, "**/rollout-*.jsonl.zst"),
        _rollouts(1, "**/rollout-*.jsonl"),
        _rollouts(1, "**/rollout-*.jsonl.zst"),
    ),
    never=(".codex/auth.json", ".codex/config.toml", ".codex/.env"),
    gives=Gives(
        tokens="per response: input, cache read and write, output, reasoning; running totals in older versions",
        tool_times="call line to the item's end; to the output line in older versions",
        errors="exit codes and status; from the output's text in older versions",
        cost="no; computed",
        exit="yes; in older versions not always",
        subagents="exact, by thread id",
    ),
)

"""Gemini CLI's row of the table: lines, and the documents of versions before 2026-04."""

from __future__ import annotations

from spantail.formats.gemini_cli.reader import GeminiReader
from spantail.formats.gemini_cli.shapes import Line, entries, unit
from spantail.formats.row import Files, Format, Gives, Root


def _lines(kind: str, glob: str, *, main: bool) -> Files:
    return Files(
        kind=kind,
        root=0,
        glob=glob,
        storage="lines",
        reader=GeminiReader,
        memory=GeminiReader,
        line=Line,
        unit=unit,
        main=main,
    )


def _document(kind: str, glob: str, *, main: bool) -> Files:
    return Files(
        kind=kind,
        root=0,
        glob=glob,
        storage="document",
        reader=GeminiReader,
        memory=GeminiReader,
        unit=unit,
        entries=entries,
        main=main,
    )


FORMAT = Format(
    agent="gemini-cli",
    title="Gemini CLI",
    provider="gcp.gemini",
    versions="0.61.0",
    roots=(Root(".gemini/tmp", env="GEMINI_CLI_HOME", below=".gemini/tmp"),),
    files=(
        _lines("session", "*/chats/session-*.jsonl", main=True),
        _document("session", "*/chats/session-*.json", main=True),
        _lines("subagent", "*/chats/*/*.jsonl", main=False),
        _document("subagent", "*/chats/*/*.json", main=False),
    ),
    never=(
        ".gemini/oauth_creds.json",
        ".gemini/google_accounts.json",
        ".gemini/.env",
        ".gemini/settings.json",
        ".gemini/mcp-oauth-tokens*",
        # A second view of the prompts.
        ".gemini/tmp/*/logs.json",
    ),
    gives=Gives(
        tokens="per response: input, cache read, output; not those of compactions",
        tool_times="end exact, start = the response's; estimates in batches; a running tool is not visible",
        errors="yes; exit codes from the text; retried provider errors are not written",
        cost="no; computed",
        exit="derived from the last turn",
        subagents="exact; in older files by folder and time",
    ),
)

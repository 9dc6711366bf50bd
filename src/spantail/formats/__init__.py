"""The table of formats: one row per agent, and the only place where agents have names."""

from __future__ import annotations

from spantail.formats import aider, claude_code, clido, cline, codex, gemini_cli, generic, goose, opencode, pi
from spantail.formats.row import Format

TABLE: tuple[Format, ...] = (
    aider.FORMAT,
    claude_code.FORMAT,
    clido.FORMAT,
    cline.FORMAT,
    codex.FORMAT,
    gemini_cli.FORMAT,
    generic.FORMAT,
    goose.FORMAT,
    opencode.FORMAT,
    pi.FORMAT,
)

"""Claude Code's row of the table."""

from __future__ import annotations

from spantail.formats.claude_code.lines import Line
from spantail.formats.claude_code.meta import MetaReader, unit
from spantail.formats.claude_code.reader import ClaudeReader
from spantail.formats.row import Files, Format, Gives, Root

FORMAT = Format(
    agent="claude-code",
    title="Claude Code",
    demo="spantail.formats.claude_code.demo",
    provider="anthropic",
    versions="1.0.72, 2.0.37, 2.1.20, 2.1.197, 2.1.326",
    roots=(Root(".claude/projects", env="CLAUDE_CONFIG_DIR", below="projects"),),
    files=(
        Files(
            kind="meta",
            root=0,
            glob="*/*/subagents/**/agent-*.meta.json",
            storage="document",
            reader=MetaReader,
            memory=MetaReader,
            companion=True,
            main=False,
            unit=unit,
        ),
        Files(
            kind="subagent",
            root=0,
            glob="*/*/subagents/**/agent-*.jsonl",
            storage="lines",
            reader=ClaudeReader,
            memory=ClaudeReader,
            line=Line,
            main=False,
            unit=unit,
        ),
        Files(
            kind="subagent",
            root=0,
            glob="*/agent-*.jsonl",
            storage="lines",
            reader=ClaudeReader,
            memory=ClaudeReader,
            line=Line,
            main=False,
            unit=unit,
        ),
        Files(
            kind="session",
            root=0,
            glob="*/*.jsonl",
            storage="lines",
            reader=ClaudeReader,
            memory=ClaudeReader,
            line=Line,
            unit=unit,
        ),
    ),
    never=(
        ".claude/.credentials.json",
        ".claude.json",
        ".claude/settings*.json",
        ".claude/sessions/*.key",
        ".claude/daemon/**",
    ),
    gives=Gives(
        tokens="per response: input, cache read and write (5 min, 1 h), output; placeholders in some versions",
        tool_times="times of the lines (permission waits and hooks included)",
        errors="yes",
        cost="no; computed",
        exit="derived from the last turn",
        subagents="exact",
    ),
)

"""What a path, a first line or the first words of a text tell, without reading more."""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import Final

from msgspec import Raw

from spantail.formats.codex.lines import PARTS
from spantail.formats.times import iso_ns
from spantail.formats.values import decoded, head, text

NO_PROMPT: Final = (
    "<environment_context>",
    "<user_instructions>",
    "# AGENTS.md instructions",
    "<turn_aborted>",
    "<subagent_notification>",
    "<user_shell_command>",
    "<INSTRUCTIONS>",
)
NO_FAILURE: Final = ("thread_rollback_failed", "active_turn_not_steerable")
"""Errors that say nothing of the turn."""
_FOLDER: Final = re.compile(
    r"\s*<environment_context>\s*(?:<cwd>|Current working directory:)([^<\n]{1,4096})"
)
_TEXT: Final = re.compile(rb'"text":\s*"')
_NAMED: Final = re.compile(r"rollout-.*?([0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12})\.jsonl")


def word_of(info: object) -> str:
    """codex_error_info is a word, or an object whose only key is the word."""
    if isinstance(info, dict):
        info = next(iter(info), "")
    return text(info, 60)


def is_prompt(raw: Raw) -> bool:
    """Not everything in the user's name was written by the user."""
    words = head(raw, 400)
    found = _TEXT.search(words) if words[:1] == b"[" else None
    at = found.end() if found is not None else 1
    return not words[at:].decode("utf-8", "replace").startswith(NO_PROMPT)


def folder(raw: Raw) -> str:
    """The working directory, as the first format has it: in what it tells the model of its surroundings."""
    for part in decoded(PARTS, raw) or ():
        found = _FOLDER.match(part.text or "")
        if found is not None:
            return found[1].strip()
    return ""


def full_name(space: str, name: str) -> str:
    """MCP tools are `mcp__<server>__<tool>`, in whatever way a version cuts that into namespace and name."""
    if not space.startswith("mcp__") or name.startswith(space):
        return name
    return f"{space.removesuffix('__')}__{name.removeprefix('__')}"


def named(path: str) -> str:
    """The id of its thread is in a file's name, if nobody has renamed it."""
    found = _NAMED.match(PurePath(path).name)
    return found[1] if found is not None else ""


def thread_of(path: str) -> str:
    return named(path) or PurePath(path).stem


_TIMESTAMP: Final = re.compile(rb'"timestamp":\s*"([^"]{10,40})"')
_ROOTS: Final = tuple(
    re.compile(rb'"' + name + rb'":\s*"([^"]{1,80})"') for name in (b"session_id", b"parent_thread_id", b"id")
)


def unit(path: str, start: bytes) -> tuple[int, str]:
    """A thread and the subagents below it are read together."""
    first = start.partition(b"\n")[0]
    found = _TIMESTAMP.search(first)
    time = iso_ns(found[1].decode("ascii", "replace")) if found is not None else 0
    for pattern in _ROOTS:
        root = pattern.search(first)
        if root is not None:
            return time, root[1].decode("utf-8", "replace")
    return time, PurePath(path).stem

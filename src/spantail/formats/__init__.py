"""The table of formats: one row per agent, and the only place where agents have names."""

from __future__ import annotations

from spantail.formats import claude_code, clido, cline, generic, opencode
from spantail.formats.row import Format

TABLE: tuple[Format, ...] = (claude_code.FORMAT, clido.FORMAT, cline.FORMAT, generic.FORMAT, opencode.FORMAT)

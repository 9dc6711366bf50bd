"""What a session's file tells of its subagents' messages while they work (2.1.12 to 2.1.83).

The subagents' own files hold the same messages, and better: with what they used in the end. These lines count only
where that file was not kept. While a session is followed it may only just not be there yet; it will.
"""

from __future__ import annotations

import os
from pathlib import PurePath

from spantail.formats.claude_code.lines import PROGRESS, Line
from spantail.formats.claude_code.prompts import decoded
from spantail.model import Record


def told(record: Record) -> tuple[str, Line] | None:
    """The subagent and its line, if nothing else tells it."""
    line: Line = record.body
    if record.arrival or b'"agent_progress"' not in memoryview(line.data).tobytes():
        return None
    about = decoded(PROGRESS, line.data)
    if about is None or about.type != "agent_progress" or not about.agent_id or about.message is None:
        return None
    return None if _kept(record.path, about.agent_id) else (about.agent_id, about.message)


def _kept(path: str, agent: str) -> bool:
    """Whether the subagent has a file of its own, below the session's folder or beside its file."""
    name, file = PurePath(path), f"agent-{agent}.jsonl"
    folder = name.parent if "subagents" in name.parts else name.with_suffix("") / "subagents"
    return any(os.path.exists(place / file) for place in (folder, name.parent))  # noqa: PTH110 - of pure paths

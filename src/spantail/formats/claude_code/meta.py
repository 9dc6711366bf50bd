"""What is known of Claude Code's files besides their lines: who started a subagent, and which are read together."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from pathlib import PurePath

from msgspec import Struct

from spantail.formats.claude_code.lines import META
from spantail.formats.claude_code.prompts import decoded
from spantail.formats.times import iso_ns
from spantail.model import Event, Linked, Record, Started


def base_of(parts: tuple[str, ...]) -> str | None:
    """The session whose folder `subagents` a file is in; None if it is in none."""
    if "subagents" not in parts:
        return None
    return parts[len(parts) - 2 - parts[::-1].index("subagents")]


class MetaReader(Struct):
    """agent-<agentId>.meta.json: which call started the subagent."""

    def read(self, record: Record) -> Iterator[Event]:
        meta = decoded(META, record.body)
        if meta is None:
            return
        name = PurePath(record.path)
        parts = name.parts
        base = base_of(parts)
        if base is None:
            return
        agent = name.name.removeprefix("agent-").removesuffix(".meta.json")
        session = f"{base}/{agent}"
        parent = f"{base}/{meta.parent_agent_id}" if meta.parent_agent_id else base
        if "workflows" in parts:
            parent = f"{base}/{parts[-2]}"
        yield Started(session=session, parent=parent, name=meta.name or meta.agent_type or "", agent_id=agent)
        if meta.tool_use_id:
            yield Linked(session=session, call=meta.tool_use_id, parent=parent)


TIMESTAMP = re.compile(rb'"timestamp": ?"([^"]{10,40})"')
SESSION = re.compile(rb'"sessionId": ?"([^"]{1,80})"')


def unit(path: str, head: bytes) -> tuple[int, str]:
    """A session's main file and those of its subagents are read together."""
    found = islice(TIMESTAMP.finditer(head), 8)
    times = [iso_ns(each[1].decode("ascii", "replace")) for each in found]
    time = min((at for at in times if at), default=0)
    name = PurePath(path)
    base = base_of(name.parts)
    if base is not None:
        return time, base
    named = SESSION.search(head)
    session = named[1].decode("utf-8", "replace") if named is not None else name.stem
    if name.name.startswith("agent-"):
        return time, session
    if session != name.stem or b'"forkedFrom"' in head:
        time += 1  # a fork: its copied lines bear the original's times, and maybe its name
    return time, name.stem

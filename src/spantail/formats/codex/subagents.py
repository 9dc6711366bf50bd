"""Which threads are subagents, and which tool call of the parent started them.

A subagent is a thread of its own, in a file of its own, that names its parent. The parent's file
names the child beside the tool call: in an item (CollabAgentToolCall, SubAgentActivity), or, in files
without items, in an event or the output of the call.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from msgspec import Raw

from spantail.formats.codex.lines import OBJECT, Item, Payload
from spantail.formats.codex.results import decoded, text_of
from spantail.formats.values import some, text
from spantail.model import Event, Linked, Started

STARTS: Final = frozenset(("spawn_agent", "resume_agent", "send_input", "followup_task", "assign_task"))
"""Tools that set a subagent to work."""
TOLD: Final = frozenset(
    ("sub_agent_activity", "collab_agent_spawn_end", "collab_agent_interaction_end", "collab_resume_end")
)
"""Events that say so."""
MANY: Final = 32


class Origin(NamedTuple):
    nested: bool = False
    parent: str = ""
    name: str = ""


def origin(meta: Payload) -> Origin:
    """What a session_meta says of the thread's parent."""
    given = meta.source if isinstance(meta.source, dict) else {}
    # Internal ones (memory consolidation) have no parent, and no person asked for them either.
    source = given.get("subagent") or given.get("internal")
    spawn = source.get("thread_spawn") if isinstance(source, dict) else None
    about = spawn if isinstance(spawn, dict) else {}
    parent = text(meta.parent_thread_id) or text(about.get("parent_thread_id"))
    nested = source is not None or meta.thread_source == "subagent" or bool(parent)
    if not nested:
        return Origin()
    parent = parent or text(meta.forked_from_id)
    role = text(meta.agent_role) or text(about.get("agent_role"))
    nickname = text(meta.agent_nickname) or text(about.get("agent_nickname"))
    # A word, or an object whose only key is the word; `{"other": word}` is one that has no key of its own.
    kind, said = next(iter(source.items()), ("", "")) if isinstance(source, dict) else (source, "")
    name = role or nickname or text(said) or (text(kind) if kind != "thread_spawn" else "")
    # A thread inside itself would have no beginning.
    return Origin(True, parent if parent != text(meta.id) else "", name)


def _plain(tool: object) -> str:
    """`spawnAgent` and `spawn_agent` are one."""
    return "".join(f"_{sign.lower()}" if sign.isupper() else sign for sign in text(tool))


def tool_of(item: Item) -> str:
    """The name of a tool that a script of code mode called."""
    if item.type == "McpToolCall":
        return f"mcp__{text(item.server)}__{text(item.tool)}"
    return "spawn_agent" if item.type == "SubAgentActivity" else text(item.tool)


def input_of(item: Item) -> Raw | None:
    """What a script of code mode gave to a tool, as a call of the model's own would have it."""
    if command := some(item.command):
        return Raw(b'{"command":%b}' % bytes(command))
    return some(item.arguments) or some(item.changes)


def set_to_work(item: Item, name: str) -> tuple[list[str], bool]:
    """The threads that an item's call set to work, and whether it made them."""
    if item.type == "CollabAgentToolCall" and _plain(item.tool) in STARTS:
        given = item.receiver_thread_ids
        children = [text(id_) for id_ in given[:MANY]] if isinstance(given, list) else []
        return children, _plain(item.tool) == "spawn_agent"
    if item.type == "SubAgentActivity":
        return _active(item.kind, item.agent_thread_id, name)
    return [], False


def told_in(event: Payload, name: str) -> tuple[list[str], bool]:
    """The same of the events that versions without items have."""
    if event.type == "sub_agent_activity":
        return _active(event.kind, event.agent_thread_id, name)
    if event.type == "collab_agent_spawn_end":
        return [text(event.new_thread_id)], True
    return [text(event.receiver_thread_id)], False


def _active(kind: object, thread: object, name: str) -> tuple[list[str], bool]:
    """What a subagent was told may also be left for it to find, and wakes nobody."""
    if kind == "started" or (kind == "interacted" and name in STARTS):
        return [text(thread)], kind == "started"
    return [], False


def named_in(output: Raw) -> list[str]:
    """Without items: `{"agent_id": ..., "nickname": ...}` is what a spawn_agent puts out."""
    about = decoded(OBJECT, text_of(output).encode("utf-8", "replace"))
    return [text(about.agent_id)] if about is not None else []


def linked(
    children: list[str], session: str, call: str, time: int, parent: str, *, spawns: bool
) -> Iterator[Event]:
    for child in children:
        # Subagents also write to those above them; that starts nobody.
        if not child or child in (session, parent):
            continue
        if spawns:
            yield Started(session=child, time=time, parent=session, agent_id=child)
        yield Linked(session=child, time=time, call=call, parent=session)

"""Gemini CLI: JSON lines, one file per session and one per subagent; in older versions a document each.

    ~/.gemini/tmp/<slug>/chats/session-<time>-<8 of the id>.jsonl (.json)
    .../chats/<session id>/<agent id>.jsonl (.json)               its subagents

A message is written when the reply is complete, and once more, with the same id and tokens, when its tool calls have
ended: each counts once. A running tool is in no file, so a reply with a text may be the last one or not: nothing marks
the end of a turn, which therefore ends at the next prompt, when the session is resumed (its metadata is written again),
or by silence. `$set.messages` repeats the history without tokens, under new ids after a compaction: it starts nothing
and counts nothing. A document of the older kind that is resumed becomes lines, with the same ids.

A tool call begins with its reply and ends at its own time; calls of a batch all bear the time of the slowest. A failed
command is a success with an exit code in its output. Provider errors that were retried are nowhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePath
from typing import Any

from msgspec import Raw, Struct

from spantail.formats.gemini_cli.results import outcome
from spantail.formats.gemini_cli.shapes import (
    AGENT_ARGUMENTS,
    CHANGES,
    LINE,
    OLD,
    TOKENS,
    TOOL_CALLS,
    UUID,
    Line,
    Old,
    ToolCall,
    content,
    decoded,
    folder_of,
    nested,
    slug_of,
)
from spantail.formats.values import some, text, time_ns
from spantail.model import (
    SECOND,
    Called,
    Closed,
    Ended,
    Event,
    Linked,
    Noted,
    Prompted,
    Record,
    Replied,
    Returned,
    Started,
    Usage,
)

CONTEXT = "<session_context>"
NO_PROMPT = (
    CONTEXT,
    "<state_snapshot>",
    "<hook_context>",
    "System: Potential loop detected",
    "System: Please continue.",
)
STEERS = "User steering update:"
TASK = "Your task is to "
"""So begin the prompts of the subagents that had a session file of their own in early 2026."""
CANCELLED = "Request cancelled."
API_ERROR = "[API Error:"
TURNS_USED_UP = "The session has reached the maximum number of turns"
COMPRESSED = "Context compressed from"
SNAPSHOT = b"<state_snapshot>"
WORKSPACE = re.compile(r"Workspace Directories:\*\*\n\s*- ([^\n]{1,4000})")
DIRECTORY = re.compile(r"currently working in the directory: ([^\n]{1,4000})")
STATUS_CODE = re.compile(r"(?:code|status)\W{0,6}([45]\d\d)\b")
DIGITS = re.compile(r"-[0-9a-f]{8}$")
KEEP = 64
"""Messages remembered by a reader."""


class GeminiReader(Struct):
    session: str = ""
    parent: str = ""
    background: bool = False
    """An agent that no session started."""
    document: bool = False
    kind: str = ""
    introduced: bool = False
    cwd: str = ""
    slug: str = ""
    """The folder's name, which is the project's; stands in where nothing tells the directory."""
    prompts: list[str] = []
    replied: dict[str, bool] = {}
    """Replies that were told, and whether with their usage."""
    snapshot: str = ""
    compacted: int = 0

    def read(self, record: Record) -> Iterator[Event]:
        body = record.body
        line: Line | None = body if isinstance(body, Line) else decoded(LINE, body)
        if line is None:
            return
        if not self.session:
            yield from self._name(record.path, line)
        if line.changes:
            yield from self._changes(line.changes)
        elif line.type is None:
            yield from self._metadata(line)
        else:
            yield from self._message(line)

    # --------------------------------------------------------------------- who this is about

    def _name(self, path: str, line: Line) -> Iterator[Event]:
        name, folder = PurePath(path), folder_of(path)
        id_ = text(line.session_id)
        self.document, self.kind = name.suffix == ".json", text(line.kind)
        if folder or self.kind == "subagent":
            self.background = UUID.fullmatch(folder) is None
            self.parent = "" if self.background else folder
            agent = id_ or name.stem
            self.session = nested(folder or name.stem, agent)
            # One that no session started is known by what its folder says it does.
            title = DIGITS.sub("", folder) if self.background else ""
            yield Started(session=self.session, parent=self.parent, name=title, agent_id=agent)
        elif not id_ or UUID.fullmatch(id_):
            self.session = id_ or name.stem
        else:
            self.session = f"{id_}/{name.stem}"  # the server mode gives all its sessions one id
        self.slug = "" if self.parent else slug_of(path)

    def _metadata(self, line: Line) -> Iterator[Event]:
        if line.session_id is None and line.start_time is None:
            return
        if self.introduced and not (self.document or self.parent or self.background):
            # Another process goes on with the session: the one before has ended.
            yield Ended(session=self.session)
        self.introduced = True
        directories = line.directories if isinstance(line.directories, list) else []
        yield from self._at(text(directories[0], 4_000) if directories else "")

    def _at(self, cwd: str) -> Iterator[Event]:
        if cwd and cwd != self.cwd:
            self.cwd = cwd
            yield Started(session=self.session, cwd=cwd)

    def _context(self, words: str) -> Iterator[Event]:
        found = WORKSPACE.search(words) or DIRECTORY.search(words)
        if found is not None:
            yield from self._at(found[1].strip())

    def _changes(self, raw: Raw) -> Iterator[Event]:
        changes = decoded(CHANGES, raw)
        if changes is None:
            return
        unplaced = self.cwd in ("", self.slug)
        if changes.messages and (unplaced or SNAPSHOT in bytes(memoryview(changes.messages))):
            old: list[Old] = decoded(OLD, changes.messages) or []
            for message in old:
                words, _, _ = content(message.content)
                if words.startswith(CONTEXT):
                    yield from self._context(words)
                elif words.startswith(SNAPSHOT.decode()):
                    yield from self._compaction(text(message.id), time_ns(message.timestamp))
                    break
        if changes.summary and self.parent:
            yield Closed(session=self.session)  # what a subagent hands back is its last word

    def _compaction(self, snapshot: str, time: int) -> Iterator[Event]:
        """A history that begins with a snapshot is one compacted now, or one resumed that was compacted before."""
        if snapshot and snapshot == self.snapshot:
            return
        self.snapshot = snapshot or self.snapshot
        told, self.compacted = self.compacted, max(self.compacted, time)
        if time - told > 10 * SECOND:  # told twice: by a message too
            yield Noted(session=self.session, time=time, kind="compaction")

    # ------------------------------------------------------------------------------- messages

    def _message(self, line: Line) -> Iterator[Event]:
        time = time_ns(line.timestamp)
        if line.type == "gemini":
            yield from self._reply(line, time)
        elif line.type == "user":
            yield from self._user(line, time)
        elif line.type in ("info", "error"):
            yield from self._notice(line, time)

    def _key(self, line: Line, time: int) -> str:
        id_ = text(line.id) or str(time)
        return id_ if len(id_) >= 16 and text(line.id) else f"{self.session}/{id_}"

    def _user(self, line: Line, time: int) -> Iterator[Event]:
        words, has_text, has_results = content(line.content)
        if words.startswith(CONTEXT):
            yield from self._context(words)
        if words.startswith(STEERS):
            yield Noted(session=self.session, time=time, kind="queued_prompt")
            return
        if not has_text or has_results or words.startswith(NO_PROMPT):
            return
        key = self._key(line, time)
        if key in self.prompts or ((self.parent or self.background) and self.prompts):
            return
        if self.document and not (self.kind or self.prompts) and words.startswith(TASK):
            # A subagent with the id of its parent; when it began leads to the turn around it.
            self.parent, self.session = self.session, f"{self.session}/{key}"
            yield Started(session=self.session, parent=self.parent)
        yield from self._at(self.cwd or self.slug)
        self.prompts = [*self.prompts, key][-KEEP:]
        yield Prompted(
            session=self.session,
            time=time,
            turn=key,
            human=not self.background,
            content=some(line.content),
        )

    def _notice(self, line: Line, time: int) -> Iterator[Event]:
        words, _, _ = content(line.content)
        if words.startswith(CANCELLED):
            yield self._interrupted(time)
        elif words.startswith(TURNS_USED_UP):
            yield Closed(session=self.session, time=time, status="error", error_type="max_turns")
        elif words.startswith(COMPRESSED):
            yield from self._compaction("", time)
        elif line.type == "error" and words.startswith(API_ERROR):
            code = STATUS_CODE.search(words[:300])
            word = code[1] if code is not None else "provider_error"
            yield Noted(session=self.session, time=time, kind="provider_error", error_type=word)
            yield Closed(session=self.session, time=time, status="error", error_type="provider_error")

    def _interrupted(self, time: int) -> Closed:
        return Closed(session=self.session, time=time, status="interrupted", error_type="interrupted")

    def _reply(self, line: Line, time: int) -> Iterator[Event]:
        key = self._key(line, time)
        calls: list[ToolCall] = decoded(TOOL_CALLS, line.tool_calls) or []
        tokens = decoded(TOKENS, line.tokens)
        usage: Usage | None = tokens.usage() if tokens is not None else None
        words, _, _ = content(line.content)
        # Without tokens it may be a place for cancelled calls that no reply asked for.
        if self._is_news(key, usage, wordy=bool(words) and not calls):
            yield Replied(
                session=self.session,
                time=time,
                call=key,
                id=text(line.id),
                model=text(line.model),
                usage=usage,
                final=usage is not None,
                rests=bool(words) and not calls,
                content=some(line.content),
            )
        for n, call in enumerate(calls):
            yield from self._tool(call, f"{key}/{text(call.id) or n}", time, batch=len(calls) > 1)
        if calls and all(call.status == "cancelled" for call in calls):
            # Nothing is sent to the model then.
            yield self._interrupted(max(time, *(time_ns(call.timestamp) for call in calls)))

    def _is_news(self, key: str, usage: Usage | None, *, wordy: bool) -> bool:
        told = self.replied.get(key)
        if told or (usage is None and (told is not None or not wordy)):
            return False
        self.replied[key] = usage is not None
        if len(self.replied) > KEEP:
            del self.replied[next(iter(self.replied))]
        return True

    # ---------------------------------------------------------------------------------- tools

    def _tool(self, call: ToolCall, key: str, start: int, *, batch: bool) -> Iterator[Event]:
        id_, name = text(call.id), text(call.name)
        end = time_ns(call.timestamp) or start
        agent = text(call.agent_id)
        # It is written when it has ended: until then nobody can know of it.
        yield Called(
            session=self.session,
            time=end,
            call=key,
            id=id_,
            name=name,
            type="extension" if name.startswith("mcp_") else "function",
            input=some(call.args),
            start=start,
            starts_agent=bool(agent),
        )
        found = outcome(name, call.status, call.result)
        if found is None:
            return
        if agent:
            yield from self._subagent(call, agent, key)
        status, error_type, exit_code = found
        yield Returned(
            session=self.session,
            time=end,
            call=key,
            status=status,
            error_type=error_type,
            exit_code=exit_code,
            source="estimate" if batch else None,
            output=some(call.result),
        )
        if name == "complete_task" and self.parent and status == "ok":
            yield Closed(session=self.session, time=end)

    def _subagent(self, call: ToolCall, agent: str, key: str) -> Iterator[Event]:
        arguments: Any = decoded(AGENT_ARGUMENTS, call.args)
        name = text(arguments.agent_name) if arguments is not None else ""
        if not UUID.fullmatch(self.session):
            return  # nor can its file name the session
        session = nested(self.session, agent)
        yield Started(session=session, parent=self.session, name=name or text(call.name), agent_id=agent)
        yield Linked(session=session, call=key, parent=self.session)

"""OpenCode's records to events, whichever way they were stored.

One assistant message is one model call; its parent is the user's message, which is the turn. Three dialects come
in here: events (each a whole message or part, in the order in which things happened), message rows with their
parts, and JSON files with one object each. A file knows nothing of the others, so what a part says must be enough
by itself there (but see beside.py); in a database the reader remembers the messages at work.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from typing import Any, Final

from msgspec import UNSET, Raw, Struct

from spantail.formats.opencode import shapes
from spantail.formats.opencode.beside import copied, not_the_models, of_a_copy
from spantail.formats.opencode.ids import made_at
from spantail.formats.opencode.memory import DONE, HELD, KEEP, LONGEST, Held, Known, Talk
from spantail.formats.opencode.queries import NOTES, SHELL
from spantail.formats.opencode.shapes import Message, Part, State, text
from spantail.formats.queries import Row
from spantail.formats.values import decoded, number, time_ns
from spantail.model import (
    Called,
    Closed,
    DurationSource,
    Event,
    Linked,
    Noted,
    Prompted,
    Record,
    Replied,
    Returned,
    Started,
    Status,
)

GOES_ON: Final = ("tool-calls", "unknown")
"""Reasons to finish after which the program asks the model again; after `unknown` older versions only."""
OF_PERSONS: Final = ("text", "subtask", "compaction")
"""Parts of a person's message that say what it is."""
REJECTED: Final = "The user rejected permission to use this specific tool call"
DISMISSED: Final = "The user dismissed this question"
RULE: Final = "The user has specified a rule which prevents"
ABORTED: Final = ("Tool execution aborted", "The operation was aborted", "Aborted")


class OpenCodeReader(Struct):
    messages: dict[str, Known] = {}
    talks: dict[str, Talk] = {}

    def read(self, record: Record) -> Iterator[Event]:
        body = record.body
        if not isinstance(body, Row):
            yield from self._document(record)
        elif record.kind == "session":
            parent, directory, version = body.values
            yield from self._session(body.key, _str(parent), _str(directory), _str(version))
        elif record.kind == "event":
            yield from self._event(_str(body.values[0]), body.values[1])
        elif record.kind == "message":
            yield from self._row(body)

    # -------------------------------------------------------------------------- the dialects

    def _document(self, record: Record) -> Iterator[Event]:
        if record.kind == "session":
            session = decoded(shapes.SESSION, record.body)
            if session is not None and session.id:
                yield from self._session(
                    session.id, session.parent or "", session.directory or "", session.version or ""
                )
        elif record.kind == "message":
            message = decoded(shapes.MESSAGE, record.body)
            if message is not None and message.id and message.session:
                yield from self._message(message)
        elif record.kind == "part":
            part = decoded(shapes.PART, record.body)
            if part is not None and part.id and part.session:
                if part.type in OF_PERSONS and part.time is None and of_a_copy(record.path, part):
                    return
                yield from self._part(part, made_at(part.id, record.arrival), moving=False)

    def _event(self, session: str, data: Any) -> Iterator[Event]:
        happened = decoded(shapes.HAPPENED, data)
        if happened is None:
            return
        if happened.info is not None and happened.info.id:
            happened.info.session = happened.info.session or session
            yield from self._message(happened.info)
        part = happened.part
        if part is None or not part.id or not part.message:
            return
        if part.state is not None and part.state.time.compacted:
            return  # its output was cleared away, long after the call
        part.session = part.session or session
        yield from self._part(part, time_ns(happened.time), moving=False)

    def _row(self, row: Row) -> Iterator[Event]:
        message = decoded(shapes.MESSAGE, row.values[1])
        if message is None:
            return
        message.id, message.session = row.key, _str(row.values[0])
        yield from self._begun(message)
        for id_, created, data in row.parts:
            part = decoded(shapes.PART, data)
            if part is None:
                continue
            part.id, part.message, part.session = _str(id_), row.key, message.session
            yield from self._part(part, time_ns(created), moving=bool(row.values[2]))
        yield from self._said(message)
        yield from self._released(message)

    # ------------------------------------------------------------------- sessions and messages

    def _session(self, id_: str, parent: str, directory: str, version: str) -> Iterator[Event]:
        if parent:
            self._talk(id_).nested = True
        yield Started(session=id_, parent=parent, cwd=directory, version=version)

    def _message(self, message: Message) -> Iterator[Event]:
        yield from self._begun(message)
        yield from self._said(message)
        yield from self._released(message)

    def _begun(self, message: Message) -> Iterator[Event]:
        known = self._known(message.id)
        known.role = message.role
        if not known.created:
            known.created = created = time_ns(message.time.created)
            if copied(message.id, created):
                known.kind = "copy"
        if message.role == "user":
            if self._talk(message.session).nested and message.agent:
                yield Started(session=message.session, name=message.agent)
            return
        yield from self._at_work(message)
        parent = self.messages.get(message.parent or "")
        if parent is None or known.kind:
            return
        if parent.kind == "shell":
            known.kind = "shell"
        elif parent.role == "user" and not parent.kind:
            yield from self._note(message.session, message.parent or "", parent)

    def _note(self, session: str, id_: str, known: Known) -> Iterator[Event]:
        """The program goes on by itself: no prompt of a person, but the model's work continues."""
        known.kind = "note"
        yield Prompted(session=session, time=known.created or made_at(id_), turn=id_, human=False)

    def _said(self, message: Message) -> Iterator[Event]:
        """What an assistant message says of its call and of the turn's end."""
        known = self._known(message.id)
        if message.role != "assistant" or known.kind in ("shell", "copy"):
            return
        session = message.session
        completed = time_ns(message.time.completed)
        usage = message.tokens.usage() if message.tokens is not None else None
        ends = bool(completed and message.finish and message.finish not in GOES_ON)
        # Some providers say `stop` of a reply that asks for tools. Newer versions go on after it, older ones do
        # not: the turn has ended if nothing more comes.
        over, rests = ends and not known.asked, ends
        if completed and not known.asked:
            rests = message.finish != "tool-calls"
        if usage is not None:
            yield Replied(
                session=session,
                time=completed,
                call=message.id,
                id=message.id,
                model=message.model or "",
                provider=message.provider or "",
                usage=usage,
                # Told a moment before it is complete: in a file nothing says yet when it ended.
                final=bool(completed or message.error or known.asked or known.last),
                stop=message.finish or "",
                ends=over,
                rests=rests,
                start=known.created,
                end=known.asked or completed or known.last or known.created,
                cost=number(message.cost) or None,
            )
        if completed:
            known.tools = {part: start for part, start in known.tools.items() if start != DONE}
        if self._talk(session).prompted > known.created:
            return  # an old message, changed after the next prompt
        failure = decoded(shapes.FAILURE, message.error)
        if failure is not None and failure.name == "MessageAbortedError":
            yield Closed(session=session, time=completed, status="interrupted", error_type="interrupted")
        elif failure is not None and failure.name:
            status = failure.data.status if failure.data is not None else None
            if not known.failed:
                known.failed = True
                word = str(shapes.count(status)) if status else failure.name
                yield Noted(session=session, time=completed, kind="provider_error", error_type=word)
            yield Closed(
                session=session,
                time=completed,
                status="error",
                error_type="provider_error",
                word=failure.name,
            )
        elif completed and known.blocked:
            yield Closed(session=session, time=completed)
        elif ends and usage is None:
            yield Closed(session=session, time=completed, rests=not over)

    # ---------------------------------------------------------------------------------- parts

    def _part(self, part: Part, time: int, *, moving: bool) -> Iterator[Event]:
        known = self._known(part.message)
        if known.kind == "copy":
            return
        if part.type == "tool":
            if part.state is not None and known.kind != "shell":
                yield from self._tool(part, part.state, known, time, moving=moving)
            return
        known.last = max(known.last, time_ns(part.time.end) if part.time is not None else 0)
        if part.type == "text":
            yield from self._text(part, known)
        elif part.type == "subtask":
            yield from self._prompt(part, known)
        elif part.type == "compaction" and not known.kind:
            self._talk(part.session).overflow = bool(part.overflow)
            yield from self._note(part.session, part.message, known)
            trigger = "auto" if part.auto else "manual"
            at = known.created or made_at(part.message)
            yield Noted(session=part.session, time=at, kind="compaction", attrs={"trigger": trigger})
        elif part.type == "retry" and part.id not in known.tools:
            known.tools[part.id] = DONE  # told: a row that is open is looked at again, parts and all
            at = time_ns(part.time.created) if part.time is not None else time
            attempt = shapes.count(part.attempt)
            yield Noted(session=part.session, time=at, kind="retry", attrs={"attempt": attempt})

    def _text(self, part: Part, known: Known) -> Iterator[Event]:
        # A file does not say whose words it holds: a model's have times, a person's have none.
        if known.kind or known.role == "assistant" or (not known.role and part.time and not part.synthetic):
            return
        if part.synthetic:
            words = text(part.text)
            if words.startswith(SHELL):
                known.kind = "shell"
            elif words.startswith(NOTES):
                yield from self._note(part.session, part.message, known)
        elif not part.ignored:
            yield from self._prompt(part, known)

    def _prompt(self, part: Part, known: Known) -> Iterator[Event]:
        if known.kind:
            return
        talk = self._talk(part.session)
        time = known.created or made_at(part.message)
        digest = blake2b(bytes(part.text), digest_size=8).digest()
        if talk.overflow and digest == talk.digest:
            talk.overflow = False
            yield from self._note(part.session, part.message, known)
            return
        known.kind = "prompt"
        words = bytes(part.text) if len(memoryview(part.text)) <= LONGEST else b""
        talk.held = [*talk.held, Held(part.message, time, digest, words)][-HELD:]
        if not talk.working:
            yield from self._prompted(part.session, talk)

    def _prompted(self, session: str, talk: Talk) -> Iterator[Event]:
        held, talk.held = talk.held, []
        for prompt in held:
            if prompt.time < talk.prompted:
                continue
            if talk.goes_on > prompt.time:
                # It was given while a tool ran: the model goes on with it instead.
                yield Closed(session=session, time=talk.goes_on)
            talk.prompted, talk.digest, talk.overflow, talk.goes_on = prompt.time, prompt.words, False, 0
            content = Raw(prompt.content) if prompt.content else None
            yield Prompted(session=session, time=prompt.time, turn=prompt.message, content=content)

    # ------------------------------------------------------- prompts while the model is at work

    def _at_work(self, message: Message) -> Iterator[Event]:
        talk = self._talk(message.session)
        if any(prompt.message == message.parent for prompt in talk.held):
            yield from self._prompted(message.session, talk)
        if not message.time.completed and not message.error:
            talk.working = message.id
        elif talk.working == message.id:
            talk.working = ""

    def _released(self, message: Message) -> Iterator[Event]:
        """The model is done with a message: with `tool-calls` it is asked again, and begins another."""
        if message.role != "assistant":
            return
        talk = self._talk(message.session)
        completed = time_ns(message.time.completed)
        if completed and message.finish in GOES_ON and not message.error:
            talk.goes_on = max(talk.goes_on, completed)
        elif not talk.working:
            yield from self._prompted(message.session, talk)

    def _tool(self, part: Part, state: State, known: Known, time: int, *, moving: bool) -> Iterator[Event]:
        name, call = part.tool or "", part.call or ""
        first = known.tools.get(part.id)
        start = time_ns(state.time.start)
        if first == DONE or (not known.role and not_the_models(part, start)):
            return
        running = state.status != "pending"
        if first is None or (not first and running):
            known.tools[part.id] = start if running else 0
            yield Called(
                session=part.session,
                time=start or time,
                call=part.id,
                id=call,
                name=name,
                # Asked for first, run a moment later; only a call without an end is left with this start.
                start=min(start or time, time or start),
                input=state.input if running and state.input else None,
                model_call=part.message,
                starts_agent=name == "task",
            )
        provider = decoded(shapes.ABOUT, part.metadata)
        if provider is None or not provider.executed:
            # What the provider runs itself (a search) is a part of its reply.
            known.asked = max(known.asked, known.tools[part.id])
        about = decoded(shapes.METADATA, state.metadata) or shapes.Metadata()
        if name == "task" and about.session:
            task = decoded(shapes.TASK_INPUT, state.input)
            kind = (task.kind or "") if task is not None else ""
            yield Started(session=about.session, parent=part.session, name=kind, agent_id=about.session)
            yield Linked(session=about.session, call=part.id, parent=part.session)
        if state.status not in ("completed", "error"):
            return
        source: DurationSource | None = None
        if not first and moving and about.description is not UNSET and 0 < time < start:
            # Only the last of its moving starts is stored; when it was asked for is nearer to the first.
            start, source = time, "estimate"
        known.tools[part.id] = DONE
        status, error_type = _outcome(state, about)
        known.blocked = known.blocked or _blocks(state)
        end = time_ns(state.time.end)
        yield Returned(
            session=part.session,
            time=end or start or time,
            call=part.id,
            status=status,
            error_type=error_type,
            exit_code=about.exit if type(about.exit) is int else None,
            start=first or start,
            end=end,
            source=source,
            output=state.output or state.error or None,
        )

    # --------------------------------------------------------------------------------- memory

    def _known(self, id_: str) -> Known:
        """Moved to the end with every use, so that what is at work is never the oldest."""
        known = self.messages.pop(id_, None) or Known()
        self.messages[id_] = known
        if len(self.messages) > KEEP:
            del self.messages[next(iter(self.messages))]
        return known

    def _talk(self, id_: str) -> Talk:
        talk = self.talks.pop(id_, None) or Talk()
        self.talks[id_] = talk
        if len(self.talks) > KEEP:
            del self.talks[next(iter(self.talks))]
        return talk


def _str(value: object) -> str:
    return value if isinstance(value, str) else ""


def _outcome(state: State, about: shapes.Metadata) -> tuple[Status, str]:
    if state.status == "error":
        words = text(state.error).removeprefix("Error: ")
        if about.interrupted or words.startswith(ABORTED):
            return "interrupted", "interrupted"
        if words.startswith((REJECTED, RULE, DISMISSED)):
            return "error", "denied"
        timeout = "timed out" in words or "timeout" in words.lower()
        return "error", "timeout" if timeout else "tool_error"
    if about.exit is None:
        # Killed: the program says by whom at the end of the output.
        end = bytes(memoryview(state.output)[-400:])
        return ("error", "timeout") if b"exceeding timeout" in end else ("interrupted", "interrupted")
    if isinstance(about.exit, int | float) and about.exit != 0:
        return "error", "tool_error"
    return "ok", ""


def _blocks(state: State) -> bool:
    """Whether the answer "no" of the user ends the turn; with a reason given the model goes on."""
    if state.status != "error":
        return False
    words = text(state.error).removeprefix("Error: ")
    return words.startswith(DISMISSED) or (words.startswith(REJECTED) and "feedback" not in words[:120])

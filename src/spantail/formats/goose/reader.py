"""Rows and lines of Goose -> events.

What Goose does not store shapes this reader: no usage per model call, so there are no `Replied` events and the
running totals of a session go on as `Measured`; no row for a running tool, because all rows of a response are
inserted when its tools are done. Then the request bears the time of the END and the response, made before the
tools ran, that of the START. No row says that a turn is over: the model spoke without asking for a tool, and
either a prompt follows or nothing does. Nothing ties a subagent to its call but time, folder and words.

A compaction deletes all rows of a session and inserts them again, with the same message ids, then a summary for
the model and the last prompt once more under a new id. The prompt itself is then hidden from both.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from msgspec import Raw, Struct

from spantail.formats.goose import shapes
from spantail.formats.goose.memory import CALLS, HIDDEN, TALKS, Asked, Talk, Task, keep, matched
from spantail.formats.goose.shapes import Block, Line
from spantail.formats.queries import Row
from spantail.formats.values import number, text
from spantail.model import (
    SECOND,
    Called,
    Closed,
    DurationSource,
    Event,
    Linked,
    Measured,
    Noted,
    Prompted,
    Record,
    Returned,
    Started,
    Usage,
)

SCHEMA: Final = 15
"""The newest version of the database whose columns are known."""
DELEGATES: Final = ("delegate", "subagent", "execute_task")
LONGEST: Final = 3600 * SECOND
"""A row stored later than this after it was made is no new row: an import or a copy has inserted it."""
_DATED: Final = re.compile(r"\d{8}_\d{1,5}")


class GooseReader(Struct):
    talks: dict[str, Talk] = {}
    newer_schema: str = ""

    def read(self, record: Record) -> Iterator[Event]:
        body = record.body
        if isinstance(body, Line):
            yield from self._line(record, body)
        elif isinstance(body, Row):
            if record.kind == "message":
                yield from self._row(body.values)
            elif record.kind == "schema":
                version = number(body.values[0])
                if version is not None and version > SCHEMA:
                    self.newer_schema = str(int(version))
            else:
                yield from self._totals(body.values)

    # ----------------------------------------------------------------------------- the dialects

    def _row(self, values: tuple[Any, ...]) -> Iterator[Event]:
        session, id_, role, content, created, stored, metadata, last, *about = values
        session, seconds = text(session), shapes.seconds(created)
        if not session:
            return
        talk = self._talk(session)
        kept = shapes.moment(stored)
        message = Message(
            session, _key(session, text(id_), seconds), seconds * SECOND or kept, kept, last=bool(last)
        )
        if not talk.first:
            yield self._started(talk, message, *about)
        blocks = shapes.blocks(content)
        if blocks is not None:
            yield from self._message(talk, message, role, blocks, shapes.visible(metadata))
        if message.last and talk.ending:
            yield self._end(session, talk, 0)

    def _line(self, record: Record, line: Line) -> Iterator[Event]:
        """Before the database: appended as it happens, so times are what they seem and each row is the last."""
        session = record.path.rpartition("/")[2].removesuffix(".jsonl")
        talk = self._talk(session)
        if line.role is None:
            yield Started(session=session, cwd=text(line.working_dir, 4096))
            tokens = number(line.accumulated_input_tokens), number(line.accumulated_output_tokens)
            talk.measured = (int(tokens[0] or 0), int(tokens[1] or 0)) if any(tokens) else None
            return
        seconds = shapes.seconds(line.created)
        time = seconds * SECOND or record.arrival
        message = Message(session, _key(session, "", seconds), time, 0, last=True, natural=True)
        blocks = shapes.blocks(line.content)
        if blocks is None:
            return
        yield from self._message(talk, message, line.role, blocks, shapes.visible(line.metadata))
        if talk.ending:
            yield self._end(session, talk, 0)
        if line.role == "assistant" and talk.measured is not None:
            usage = Usage(input=talk.measured[0], output=talk.measured[1])
            talk.measured = None
            yield Measured(session=session, time=time, usage=usage)

    def _totals(self, values: tuple[Any, ...]) -> Iterator[Event]:
        """The counts of a session, dated by its last message: what changes a row may be a new name, days later.
        Also when nothing was spent, because a deleted session's id is given to the next one of the day."""
        session, updated, *counts, cost, model, provider, spoken = values
        session = text(session)
        known = [number(count) for count in counts]
        if not session:
            return
        whole, output, read, write = (int(count or 0) for count in known)
        # The cache is a part of the input where it is known, and unknown where it is not.
        fresh = whole - read - write if whole >= read + write else whole
        if text(provider):
            yield Started(session=session, provider=text(provider))
        yield Measured(
            session=session,
            time=shapes.seconds(spoken) * SECOND or shapes.moment(updated),
            usage=Usage(input=fresh, cache_read=read, cache_write=write, output=output),
            cost=number(cost),
            model=text(model),
        )

    # --------------------------------------------------------------------------------- messages

    def _message(
        self, talk: Talk, message: Message, role: object, blocks: list[Block], visible: tuple[bool, bool]
    ) -> Iterator[Event]:
        mark = shapes.mark(message.key, blocks)
        talk.again = talk.again or mark == talk.first
        talk.first = talk.first or mark
        if talk.again and message.time < talk.prompted:
            return  # inserted anew: known
        talk.again = False
        talk.last = max(talk.last, message.time)
        if not visible[0]:
            yield from self._hidden(talk, message, role, blocks, for_model=visible[1])
            return
        talk.hidden = []
        if role == "user":
            yield from self._user(talk, message, blocks)
        elif role == "assistant":
            yield from self._assistant(talk, message, blocks)

    def _hidden(
        self, talk: Talk, message: Message, role: object, blocks: list[Block], *, for_model: bool
    ) -> Iterator[Event]:
        words = shapes.said(blocks)
        if role == "user" and words and not for_model:
            talk.hidden = [*talk.hidden, (message.key, message.time, words)][-HIDDEN:]
        if role != "assistant" or not words or not for_model:
            return
        # After a summary the model is told to go on. The row before the summary is the prompt that did not
        # fit, or the copy of it that an earlier compaction made.
        if talk.hidden:
            prompt = next(row for row in talk.hidden if row[2] == talk.hidden[-1][2])
            talk.hidden = []
            if prompt[0] != talk.turn:
                yield from self._prompt(talk, message, *prompt, None)
        talk.compacted = True
        yield Noted(session=message.session, time=message.time, kind="compaction")

    def _user(self, talk: Talk, message: Message, blocks: list[Block]) -> Iterator[Event]:
        responses = [block for block in blocks if block.type == "toolResponse"]
        if not blocks and talk.asked:
            yield from self._cancelled(talk, message)
        elif responses:
            for block in responses:
                yield from self._response(talk, message, block)
        elif words := shapes.said(blocks):
            working = not (talk.over or talk.ending)
            if message.key == talk.turn or (talk.compacted and working and words == talk.words):
                talk.ending, talk.compacted = 0, False
                return
            content = next(block.text for block in blocks if block.type == "text")
            if content and shapes.is_note(content):
                talk.ending, talk.over = 0, False
                yield Prompted(
                    session=message.session,
                    time=message.time,
                    turn=message.key,
                    human=False,
                    unseen=not message.natural,
                )
                return
            yield from self._prompt(talk, message, message.key, message.time, words, content)

    def _prompt(
        self, talk: Talk, message: Message, key: str, time: int, words: bytes, content: Raw | None
    ) -> Iterator[Event]:
        session = message.session
        if talk.ending:
            yield self._end(session, talk, time)
        talk.turn, talk.prompted, talk.words = key, time, words
        talk.over, talk.compacted, talk.asked, talk.pair = False, False, {}, (0, 0)
        human = not talk.nested or bool(talk.parent)
        yield Prompted(
            session=session,
            time=time,
            turn=key,
            human=human,
            unseen=not message.natural,
            content=content or None,
        )
        if talk.parent:
            around = self._talk(talk.parent)
            child = Task(session, time, time, words)
            call = matched(around.tasks, child)
            if call is not None:
                yield Linked(session=session, time=time, call=call.key, parent=talk.parent)
            else:
                keep(around.children, child)

    def _assistant(self, talk: Talk, message: Message, blocks: list[Block]) -> Iterator[Event]:
        requests = [block for block in blocks if block.type in shapes.REQUESTS]
        for block in requests:
            yield self._request(talk, message, block)
        if any(block.type == "conversationCompacted" for block in blocks):
            yield Noted(session=message.session, time=message.time, kind="compaction")
        if requests:
            talk.ending = 0
        elif any(block.type in shapes.WORDS for block in blocks):
            talk.ending, talk.stored = message.time, message.stored

    def _end(self, session: str, talk: Talk, next_prompt: int) -> Closed:
        """What the model said is stored when it is all said, which can be a while after its time."""
        end = talk.ending
        real = end <= talk.stored <= min(next_prompt or talk.stored, end + LONGEST)
        if real and not talk.compacted:
            end = talk.stored
        talk.ending, talk.over = 0, True
        return Closed(session=session, time=end)

    # ------------------------------------------------------------------------------------ tools

    def _request(self, talk: Talk, message: Message, block: Block) -> Called:
        id_ = text(block.id)
        name, arguments = shapes.asked(block)
        starts_agent = name.rpartition("__")[2] in DELEGATES
        task = shapes.instructions(arguments) if starts_agent else b""
        key = f"{message.key}/{id_}"
        talk.over = False
        talk.asked[id_] = Asked(key, message.time, task, starts_agent)
        if len(talk.asked) > CALLS:
            del talk.asked[next(iter(talk.asked))]
        return Called(
            session=message.session,
            time=message.time,
            call=key,
            id=id_,
            name=name,
            input=arguments,
            starts_agent=starts_agent,
        )

    def _response(self, talk: Talk, message: Message, block: Block) -> Iterator[Event]:
        call = talk.asked.pop(text(block.id), None)
        if call is None:
            return
        result = shapes.outcome(block)
        start, end = sorted((call.time, message.time))
        pair = (call.time, message.time)
        # Calls made together are stored when the slowest is done: then no time is one call's own.
        together = pair == talk.pair and start != end
        turned = call.time > message.time if message.natural else call.time < message.time
        source: DurationSource = "estimate" if together or turned else "timestamps"
        talk.pair = pair
        yield Returned(
            session=message.session,
            time=end,
            call=call.key,
            status=result.status,
            error_type=result.error_type,
            exit_code=result.exit_code,
            start=start,
            end=end,
            source=source,
            output=result.output,
        )
        if call.starts_agent:
            task = Task(call.key, start, end, call.task)
            child = matched(talk.children, task)
            if child is not None:
                yield Linked(session=child.key, time=end, call=call.key, parent=message.session)
            else:
                keep(talk.tasks, task)

    def _cancelled(self, talk: Talk, message: Message) -> Iterator[Event]:
        """A response without content: the user stopped the tools, and with them the turn."""
        end = message.time
        for call in talk.asked.values():
            start, end = sorted((call.time, message.time))
            yield Returned(
                session=message.session,
                time=end,
                call=call.key,
                status="interrupted",
                error_type="interrupted",
                start=start,
                end=end,
            )
        talk.asked, talk.ending, talk.over = {}, 0, True
        yield Closed(session=message.session, time=end, status="interrupted", error_type="interrupted")

    # -------------------------------------------------------------------------------- subagents

    def _started(
        self, talk: Talk, message: Message, kind: object, folder: object, provider: object, *around: object
    ) -> Started:
        """A subagent belongs to the session that the database names, else to the one that is in the middle of
        a turn in the same folder, else to the one that lived at that time."""
        talk.folder = shapes.digest(text(folder, 4096))
        talk.nested = kind == "sub_agent" or bool(text(around[0]))
        if talk.nested:
            talk.parent = text(around[0]) or self._busy(talk, message.time) or text(around[1])
        return Started(
            session=message.session,
            parent=talk.parent,
            agent_id=message.session if talk.nested else "",
            cwd=text(folder, 4096),
            provider=text(provider),
        )

    def _busy(self, talk: Talk, time: int) -> str:
        found = [
            (at.last <= time, at.last, key)
            for key, at in self.talks.items()
            if not at.nested and at.folder == talk.folder and at.turn and not at.over and not at.ending
        ]
        return max(found, default=(False, 0, ""))[2]

    def _talk(self, session: str) -> Talk:
        """Moved to the end with every use, so that what is at work is never the oldest."""
        talk = self.talks.pop(session, None) or Talk()
        self.talks[session] = talk
        if len(self.talks) > TALKS:
            del self.talks[next(iter(self.talks))]
        return talk


class Message(Struct, gc=False):
    session: str
    key: str
    time: int
    stored: int
    last: bool = False
    """Of its session, as far as is written."""
    natural: bool = False
    """A request has the time at which its tool began."""


def _key(session: str, id_: str, seconds: int) -> str:
    """A message's own id; where Goose made one of its place, or has one only since the session was imported,
    its time, which is the same wherever the message is stored."""
    placed = id_.startswith("msg_") and id_.rpartition("_")[2].isdigit()
    return id_ if id_ and not placed and _DATED.fullmatch(session) else f"{session}/{seconds}"

"""A task's api_conversation_history.json: what was sent to the model and what it answered.

Read only where there is no ui_messages.json beside it (see task_folder): it has fewer numbers (reads and writes of
the cache are one), often no times, and results of tools as texts, "[read_file for 'x'] Result:", which are paired
with the calls by their order. Where tools are called in the text itself, only the results tell of them.

Messages have no ids; a key is made of the time, or of the place and a digest of the content, since places are used
again after a rollback.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import PurePath

from msgspec import Raw, Struct

from spantail.formats.cline.messages import amount, number
from spantail.formats.cline.shapes import Block, blocks, part, session_time, word
from spantail.formats.cline.task_folder import model_at, shown
from spantail.formats.cline.task_shapes import (
    SPOKEN,
    SPOKEN_METRICS,
    TASK_MODEL,
    TOKENS,
    Spoken,
    Tokens,
)
from spantail.formats.times import ms_ns
from spantail.formats.values import text as short
from spantail.model import (
    MILLISECOND,
    Called,
    Closed,
    Event,
    Prompted,
    Record,
    Replied,
    Returned,
    Status,
    Usage,
)

RESULT = re.compile(r"\[(\w{1,100})[^\n]{0,4000}?\] Result:")
EXIT_CODE = re.compile(r"(?:Exit code:|exited with code|exit code) (-?\d{1,9})")
SPEAKS = ("<task>", "<feedback>", "<user_message>")
"""What a person says is marked so; an `<answer>` belongs to the running turn."""
DENIED = "The user denied"
FAILED = ("The tool execution failed", "Error:", "Error executing", "<error>")
TALK = frozenset(("attempt_completion", "ask_followup_question", "plan_mode_respond"))
"""Tools that only talk to the person."""
READ = 4_000
"""How much of a result is looked at."""
KEEP = 64


class HistoryReader(Struct):
    silent: bool = False
    """There are messages as they were shown; once so, always so, or it would be counted twice."""
    task: str = ""
    last: int = 0
    turn: str = ""
    reply: str = ""
    calls: list[tuple[str, str]] = []
    """Open calls, (key, name), in their order."""

    def read(self, record: Record) -> Iterator[Event]:
        self.silent = self.silent or shown(record.path)
        message: Spoken | None = part(SPOKEN, record.body)
        if self.silent or message is None:
            return
        if not self.task:
            self.task = PurePath(record.path).parent.name
            self.last = session_time(self.task)
        stated = ms_ns(message.ts)
        time = stated or max(record.arrival, self.last)
        self.last = max(self.last, time)
        place = str(stated // MILLISECOND) if stated else f"{record.position}/{_digest(message.content)}"
        key = f"{self.task}/{place}"
        if message.role == "assistant":
            yield from self._reply(message, record, key, time)
        elif message.role == "user":
            yield from self._user(message, key, time)

    def _reply(self, message: Spoken, record: Record, key: str, time: int) -> Iterator[Event]:
        found = blocks(message.content)
        tools = [block for block in found if block.type == "tool_use"]
        names = [word(block.name) for block in tools]
        written = "".join(word(block.text) for block in found if block.type == "text")
        metrics = part(SPOKEN_METRICS, message.metrics)
        tokens: Tokens | None = part(TOKENS, metrics.tokens) if metrics is not None else None
        usage = None
        if tokens is not None:
            usage = Usage(
                input=number(tokens.prompt),
                cache_read=number(tokens.cached),
                output=number(tokens.completion),
            )
        if usage is not None and not usage.total():
            usage = None
        info = part(TASK_MODEL, message.model_info)
        model, provider = (word(info.model_id), word(info.provider_id)) if info is not None else ("", "")
        if not model:
            model, provider = model_at(record.path, time)
        self.reply, self.calls = key, []
        if usage is not None or tools or tokens is None:
            yield Replied(
                session=self.task,
                time=time,
                call=key,
                model=model,
                provider=provider,
                usage=usage,
                final=usage is not None,
                rests=not tools,
                cost=amount(metrics.cost) if metrics is not None else None,
                content=message.content or None,
            )
        for index, block in enumerate(tools):
            if names[index] not in TALK:
                yield self._call(f"{key}/{index}", names[index], time, block)
        if "attempt_completion" in names or "<attempt_completion>" in written:
            yield Closed(session=self.task, time=time, turn=self.turn)

    def _call(self, key: str, name: str, time: int, block: Block | None) -> Called:
        self.calls = [*self.calls, (key, name)][-KEEP:]
        id_ = short(block.id) if block is not None else ""
        given = block.input if block is not None else None
        return Called(
            session=self.task,
            time=time,
            call=key,
            id=id_,
            name=name,
            input=given or None,
            model_call=self.reply,
        )

    def _user(self, message: Spoken, key: str, time: int) -> Iterator[Event]:
        speaks = not self.turn
        for index, block in enumerate(blocks(message.content)):
            words = word(block.text)
            if block.type == "tool_result":
                words = "".join(word(inner.text) for inner in blocks(block.content))
                name = ""
            elif (result := RESULT.match(words)) is not None:
                name = result[1]
            else:
                speaks = speaks or words.lstrip().startswith(SPEAKS)
                continue
            if name in TALK or (not name and not self.calls):
                speaks = speaks or "<feedback>" in words
                continue
            yield from self._result(name, words, f"{key}/{index}", time)
            speaks = speaks or (DENIED in words[:READ] and "<feedback>" in words[:READ])
        if speaks and key != self.turn:
            self.turn, self.calls = key, []
            yield Prompted(session=self.task, time=time, turn=key, content=message.content or None)

    def _result(self, name: str, words: str, key: str, time: int) -> Iterator[Event]:
        if not self.calls:
            yield self._call(key, name, time, None)
        call, self.calls = self.calls[0][0], self.calls[1:]
        body = RESULT.sub("", words[:READ], count=1).lstrip()
        code = EXIT_CODE.search(body) if name in ("execute_command", "") else None
        exit_code = int(code[1]) if code is not None else None
        status: Status = "ok"
        error_type = ""
        if body.startswith(DENIED):
            status, error_type = "error", "denied"
        elif body.startswith(FAILED) or exit_code:
            status, error_type = "error", "tool_error"
        yield Returned(
            session=self.task,
            time=time,
            call=call,
            status=status,
            error_type=error_type,
            exit_code=exit_code,
            source="estimate",
        )


def _digest(content: Raw) -> str:
    return blake2b(memoryview(content), digest_size=8).hexdigest()

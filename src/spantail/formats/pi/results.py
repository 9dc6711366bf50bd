"""How a tool call of pi ended, and what an extension's subagents say of themselves in its result."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import Raw, Struct, field

from spantail.formats.pi.lines import NOTHING, LineUsage, Message, decoded
from spantail.formats.times import ms_ns
from spantail.formats.values import text
from spantail.model import Closed, Event, Linked, Prompted, Replied, Started, Status, Usage

Outcome = tuple[Status, str, int | None]
"""Status, error type, exit code."""

EXIT_CODE = re.compile(rb"Command exited with code (-?\d{1,9})")
INTERRUPTED = re.compile(
    rb'(?:Command|Operation) aborted(?:"|\\n)|"(?:This operation was aborted|Skipped due to queued user message)'
)
TIMEOUT = re.compile(rb"Command timed out after|timed out after \d")
DENIED = re.compile(rb'"(?:Tool execution was blocked|Blocked by )')
TAIL = 1_000
"""pi puts its own words at the end of what a command printed."""
CHILDREN = 64


def outcome(content: Raw, *, is_error: bool) -> Outcome:
    if not is_error:
        return "ok", "", None
    view = memoryview(content)
    tail = bytes(view[-TAIL:])
    if INTERRUPTED.search(tail):
        return "interrupted", "interrupted", None
    if TIMEOUT.search(tail):
        return "error", "timeout", None
    if DENIED.search(bytes(view[:TAIL])):
        return "error", "denied", None
    codes = EXIT_CODE.findall(tail)
    return "error", "tool_error", int(codes[-1]) if codes else None


class Child(Struct, gc=False):
    """One of `details.results`; the shape belongs to the extension that runs the subagents."""

    agent: Any = None
    model: Any = None
    usage: LineUsage | None = None
    messages: Raw = NOTHING
    exit_code: Any = field(name="exitCode", default=None)
    stop: Any = field(name="stopReason", default=None)


class Details(Struct, gc=False):
    results: Raw = NOTHING


DETAILS = msgspec.json.Decoder(Details)
RESULTS = msgspec.json.Decoder(list[Child])
MESSAGES = msgspec.json.Decoder(list[Message])


class Caller(Struct, gc=False):
    """Who ran the subagents: the call, in its session and turn, and between which times."""

    session: str
    turn: str
    call: str
    provider: str
    model: str
    start: int
    end: int


def children(details: Raw, caller: Caller) -> Iterator[Event]:
    """A subagent leaves no file: the result of the call holds the sum of its usage, and its messages. Its own
    tool calls have no end there, so they are no spans."""
    found = decoded(DETAILS, details)
    for n, child in enumerate((decoded(RESULTS, found.results) or ())[:CHILDREN] if found else ()):
        usage = child.usage.usage() if child.usage is not None else None
        if usage is None:
            continue
        key = f"{caller.call}/{n}"
        session = f"{caller.session}/{key}"
        provider, model = _named(text(child.model))
        provider, model = provider or caller.provider, model or caller.model
        messages: list[Message] = decoded(MESSAGES, child.messages) or []
        replies = list(_replies(messages, key, session, model, caller))
        times = [time for message in messages if (time := ms_ns(message.timestamp))]
        begin = min(max(min(times, default=0), caller.start), caller.end)
        if _sum(replies) != usage:
            whole = Replied(session=session, time=caller.end, call=f"{key}/0", model=model, usage=usage)
            whole.start, whole.cost = caller.start, child.usage.dollars()
            replies = [whole]
        yield Started(session=session, parent=caller.session, name=text(child.agent), provider=provider)
        yield Linked(session=session, call=caller.call, parent=caller.session)
        yield Prompted(session=session, time=begin, turn=key, outer=caller.turn)
        for reply in replies:
            reply.final, reply.provider = True, provider
            yield reply
        yield _closed(child, session, caller.end)


def _named(model: str) -> tuple[str, str]:
    """`provider/model`, where the model's own name may hold a slash; or the model alone."""
    provider, slash, name = model.partition("/")
    return (provider, name) if slash else ("", model)


def _closed(child: Child, session: str, time: int) -> Closed:
    if text(child.stop) == "aborted":
        return Closed(session=session, time=time, status="interrupted", error_type="interrupted")
    if text(child.stop) == "error" or text(child.exit_code) not in ("", "0"):
        return Closed(session=session, time=time, status="error", error_type="tool_error")
    return Closed(session=session, time=time)


def _replies(
    messages: list[Message], key: str, session: str, model: str, caller: Caller
) -> Iterator[Replied]:
    """The model calls of a subagent: one began at its message's time, and was over at that of the next."""
    for i, message in enumerate(messages):
        usage = message.usage.usage() if message.usage is not None else None
        if message.role != "assistant" or usage is None or message.usage is None:
            continue
        start = min(max(ms_ns(message.timestamp), caller.start), caller.end)
        after = ms_ns(messages[i + 1].timestamp) if i + 1 < len(messages) else 0
        end = min(max(after or caller.end, start), caller.end)
        yield Replied(
            session=session,
            time=end,
            call=f"{key}/{i}",
            id=text(message.response_id),
            model=text(message.model) or model,
            usage=usage,
            stop=text(message.stop),
            start=start,
            cost=message.usage.dollars(),
        )


def _sum(replies: list[Replied]) -> Usage:
    total = Usage()
    for reply in replies:
        if reply.usage is not None:
            total.add(reply.usage)
    # What the extension sums up knows of these four only.
    total.reasoning = total.cache_write_1h = 0
    return total

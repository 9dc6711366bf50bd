"""The words of the program as types, and nothing else: records, events, what is settled.

A record is what an agent stored. A format's reader turns records into events. The session
turns events into settled things, and only settled things are counted and become spans.
Times are integers: nanoseconds since the epoch. 0 means "not known".

This module imports nothing of ours, so that every room can speak with every other through it.
"""

from __future__ import annotations

from typing import Any, ClassVar, Final, Literal

from msgspec import Raw, Struct

Status = Literal["ok", "error", "interrupted", "pending"]
Exit = Literal["success", "error", "interrupted", "max_turns", "max_budget", "unknown"]
DurationSource = Literal["stated", "timestamps", "estimate"]
CostSource = Literal["reported", "computed", "estimate"]

STATUSES: Final[tuple[Status, ...]] = ("ok", "error", "interrupted", "pending")
EXITS: Final[tuple[Exit, ...]] = (
    "success",
    "error",
    "interrupted",
    "max_turns",
    "max_budget",
    "unknown",
)
TOKEN_TYPES: Final = ("input", "cache_read", "cache_write", "output")

SECOND: Final = 1_000_000_000
MILLISECOND: Final = 1_000_000


class Usage(Struct, gc=False):
    """Disjoint token kinds; `cache_write_1h` is a part of cache_write, `reasoning` of output."""

    input: int = 0
    cache_read: int = 0
    cache_write: int = 0
    output: int = 0
    reasoning: int = 0
    cache_write_1h: int = 0

    def total(self) -> int:
        return self.input + self.cache_read + self.cache_write + self.output

    def add(self, other: Usage) -> None:
        # A field that is not set again costs a fifth of one that is.
        if other.input:
            self.input += other.input
        if other.cache_read:
            self.cache_read += other.cache_read
        if other.cache_write:
            self.cache_write += other.cache_write
        if other.output:
            self.output += other.output
        if other.reasoning:
            self.reasoning += other.reasoning
        if other.cache_write_1h:
            self.cache_write_1h += other.cache_write_1h

    def raised_to(self, other: Usage) -> Usage:
        """The field-wise maximum."""
        return Usage(
            max(self.input, other.input),
            max(self.cache_read, other.cache_read),
            max(self.cache_write, other.cache_write),
            max(self.output, other.output),
            max(self.reasoning, other.reasoning),
            max(self.cache_write_1h, other.cache_write_1h),
        )

    def beyond(self, other: Usage) -> Usage:
        """What this has more than `other`, never negative."""
        return Usage(
            max(0, self.input - other.input),
            max(0, self.cache_read - other.cache_read),
            max(0, self.cache_write - other.cache_write),
            max(0, self.output - other.output),
            max(0, self.reasoning - other.reasoning),
            max(0, self.cache_write_1h - other.cache_write_1h),
        )


# ---------------------------------------------------------------------------------- records


class Record(Struct, gc=False):
    """One stored unit: a line, a row, an entry of a document.

    `body` is what the format's decoder made of it (for lines: its own line type). `arrival` is
    when the program saw it, for formats whose records have no time; for a file found at start
    it is 0, because then the arrival says nothing.
    """

    kind: str
    path: str
    position: int
    arrival: int
    body: Any


# ----------------------------------------------------------------------------------- events


class Event(Struct, gc=False, kw_only=True):
    """Something a format read. It names its session; a file does not."""

    session: str
    time: int = 0


class Started(Event, gc=False, kw_only=True):
    """A session or subagent, and what is known about it; again = more known.

    Empty fields say nothing. `parent` is the session that a subagent is nested in.
    """

    parent: str = ""
    conversation: str = ""
    name: str = ""
    agent_id: str = ""
    cwd: str = ""
    branch: str = ""
    version: str = ""
    provider: str = ""
    copied_from: str = ""
    slug: str = ""


class Prompted(Event, gc=False, kw_only=True):
    """A turn begins; in a subagent's session: a subagent span begins.

    `turn` is the key that the trace id is made of. `alias` is a second name by which subagents
    know the turn; `outer` is that name in a subagent's session. `human=False`: the model loop
    runs without a prompt of a person, and is no turn in any count. `unseen`: a tool at work
    leaves no record, so until the turn ends its silence is that of a turn with an open call.
    """

    turn: str
    alias: str = ""
    outer: str = ""
    human: bool = True
    unseen: bool = False
    implements: bool = False
    content: Raw | None = None


class Replied(Event, gc=False, kw_only=True):
    """What is known of a model call so far; again = more known.

    `final` usage replaces what was known as a whole, other usage raises it field by field.
    `ends`: this reply ends the turn if no tool call is open. `rests`: it asked for no tool, so
    a turn that stops here was not cut off, but more of the reply may still come.
    `cut`: the reply was cut off; its usage is not final whatever was said before.
    """

    call: str
    id: str = ""
    model: str = ""
    provider: str = ""
    usage: Usage | None = None
    final: bool = False
    stop: str = ""
    ends: bool = False
    rests: bool = False
    cut: bool = False
    start: int = 0
    end: int = 0
    cost: float | None = None
    status: Status = "ok"
    error_type: str = ""
    content: Raw | None = None


class Called(Event, gc=False, kw_only=True):
    """A tool call was asked for; again = more known (first start wins).

    `call` is the key, `id` what the agent calls it. `starts_agent`: the tool runs a subagent.
    """

    call: str
    id: str = ""
    name: str = ""
    type: str = "function"
    input: Raw | None = None
    start: int = 0
    duration: int | None = None
    model_call: str = ""
    starts_agent: bool = False


class Returned(Event, gc=False, kw_only=True):
    """A tool call ended. `duration` where the agent states it, else the times tell."""

    call: str
    status: Status = "ok"
    error_type: str = ""
    exit_code: int | None = None
    duration: int | None = None
    start: int = 0
    end: int = 0
    source: DurationSource | None = None
    output: Raw | None = None


class Linked(Event, gc=False, kw_only=True):
    """The subagent `session` was started (or woken) by the tool call `call` of `parent`.

    `turn`: the subagent's turn that this is about, if known; else its latest without a link.
    `usage`: what the parent says of the subagent's last model call; repairs a placeholder.
    `over`: the call has returned, and with it the subagent has.
    """

    call: str
    parent: str = ""
    turn: str = ""
    usage: Usage | None = None
    over: bool = False


class Measured(Event, gc=False, kw_only=True):
    """Running totals of a session. A total that grew adds the difference; one that fell
    belongs to a new count and adds itself."""

    usage: Usage | None = None
    cost: float | None = None
    model: str = ""
    calls: int | None = None


NoteKind = Literal["compaction", "provider_error", "retry", "hook", "queued_prompt", "limit", "incomplete"]


class Noted(Event, gc=False, kw_only=True):
    """Something to show on the turn as a span event, and maybe to count.

    kind `limit`: attrs hold window and used (0..1) and become the rate limit gauge.
    """

    kind: NoteKind
    error_type: str = ""
    attrs: dict[str, str | int | float | bool] = {}


class Closed(Event, gc=False, kw_only=True):
    """A turn's own end mark. Empty `turn`: the open one.

    `rests`: not a mark, but how the turn ended if it stops here: answered with no model call to
    tell it by, or failed and perhaps tried again. More of it may still come.
    """

    turn: str = ""
    status: Status = "ok"
    error_type: str = ""
    word: str = ""
    rests: bool = False


class Ended(Event, gc=False, kw_only=True):
    """The agent's own end mark of a run. Empty `exit`: the outcome of the last turn."""

    exit: Exit | Literal[""] = ""
    word: str = ""


# ---------------------------------------------------------------------------------- settled


class Context(Struct, gc=False):
    """What every settled thing of a session shares."""

    agent: str
    provider: str = ""
    conversation: str = ""
    project: str = ""
    user: str = ""
    cwd: str = ""
    branch: str = ""
    version: str = ""


class SpanEvent(Struct, gc=False):
    """A point in a turn: compaction, provider error, retry, hook, queued prompt, limit."""

    name: str
    time: int
    attrs: dict[str, str | int | float | bool] = {}


class Link(Struct, gc=False, frozen=True):
    """Points backwards: to the previous turn, the original of a copy, the plan, a first span."""

    trace: bytes
    span: bytes
    reason: str


class Settled(Struct, gc=False, kw_only=True):
    """A span to send, once. `parent` is empty for a root."""

    context: Context
    trace: bytes
    span: bytes
    parent: bytes = b""
    start: int
    end: int
    status: Status = "ok"
    error_type: str = ""
    links: list[Link] = []


class ModelCall(Settled, gc=False, kw_only=True):
    model: str = ""
    response_id: str = ""
    stop: str = ""
    usage: Usage | None = None
    final: bool = True
    cost: float | None = None
    cost_source: CostSource | None = None
    content: Raw | None = None


class ToolCall(Settled, gc=False, kw_only=True):
    name: str = ""
    id: str = ""
    type: str = "function"
    source: DurationSource = "timestamps"
    exit_code: int | None = None
    input: Raw | None = None
    output: Raw | None = None
    repeated: bool = False
    late: bool = False


class Turn(Settled, gc=False, kw_only=True):
    """The root of a trace. `human=False`: work without a turn, no turn in any count."""

    human: bool = True
    index: int = 0
    exit: Exit = "unknown"
    word: str = ""
    usage: Usage
    cost: float | None = None
    cost_source: CostSource | None = None
    model_seconds: float = 0.0
    tool_seconds: float = 0.0
    other_seconds: float = 0.0
    tools: int = 0
    errors: int = 0
    events: list[SpanEvent] = []
    content: Raw | None = None


class Subagent(Settled, gc=False, kw_only=True):
    name: str = ""
    agent_id: str = ""


class UsageAdded(Struct, gc=False, kw_only=True):
    """Tokens or money to count that have no span of their own: a difference found later on a
    model call already counted, or a step of a running total."""

    kind: ClassVar[str] = "usage"
    context: Context
    time: int
    model: str = ""
    usage: Usage | None = None
    cost: float | None = None
    cost_source: CostSource | None = None
    past: bool = False
    """Before --since: it belongs to the sums by time (budgets, reports) and to no counter."""


class RunStarted(Struct, gc=False, kw_only=True):
    context: Context
    time: int


class RunEnded(Struct, gc=False, kw_only=True):
    context: Context
    time: int
    exit: Exit


class Occurred(Struct, gc=False, kw_only=True):
    """A note to count: compaction, provider_error, incomplete, late."""

    context: Context
    time: int
    kind: str
    error_type: str = ""
    trace: bytes = b""


Outcome = ModelCall | ToolCall | Turn | Subagent | UsageAdded | RunStarted | RunEnded | Occurred
"""Whatever the session hands on: spans to send and things to count."""

"""Open work: what a session has begun and not settled. One small row per session in the state.

Everything here is saved with the commit, so nothing here may grow with the number of settled
calls: sums instead of lists, and short windows where something must be remembered.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

from spantail.model import Context, CostSource, DurationSource, Exit, Link, SpanEvent, Status, Usage
from spantail.session.busy import Busy

SHAPE = 1
"""Raised when the meaning of these fields changes: rows of another shape are then made again (see remake)."""

WINDOW = 64
"""How many input digests, notes, early results and pending calls are remembered per session."""
RECENT = 16
"""How many settled model calls stay open to a positive difference."""
UNSURE = 48
"""And how many whose usage was not final: a copy in another file may have the only final one."""
TURNS = 32
"""How many settled turns a subagent can still be led to."""
OPEN = 512
"""How many calls may be open in a turn, and turns closed and not settled. No agent comes near it: beyond it
the oldest are settled as they are, so that a broken or hostile file cannot fill the memory."""
HELD = 4096
"""How many calls of a subagent wait for the turn around it; one with more is work of its own."""
SHOWN = (64 << 10) + 1
"""Bytes kept of a content: of longer ones no more is ever shown."""
INPUT = 256 << 10
"""Of a tool's input more is kept, since its summary is made of the whole of it."""


class OpenModelCall(Struct, gc=False, omit_defaults=True):
    key: str
    ledger: int
    id: str = ""
    model: str = ""
    provider: str = ""
    usage: Usage | None = None
    final: bool = False
    cut: bool = False
    stop: str = ""
    start: int = 0
    end: int = 0
    cost: float | None = None
    status: Status = "ok"
    error_type: str = ""
    content: bytes | None = None

    def repaired(self, usage: Usage | None) -> Usage | None:
        """Its usage, with what is known of it from elsewhere if it is not final."""
        known = self.usage
        if usage is None or self.final:
            return known
        if known is None:
            return usage
        # What went in is known from a call's first line on: where it is not the same, another call is meant.
        into = (usage.input, usage.cache_read, usage.cache_write)
        same = into == (known.input, known.cache_read, known.cache_write)
        return known.raised_to(usage) if same else known


class OpenTool(Struct, gc=False, omit_defaults=True):
    key: str
    ledger: int = 0
    id: str = ""
    name: str = ""
    type: str = "function"
    start: int = 0
    end: int = 0
    duration: int | None = None
    source: DurationSource | None = None
    status: Status = "pending"
    error_type: str = ""
    exit_code: int | None = None
    starts_agent: bool = False
    repeated: bool = False
    input: bytes | None = None
    output: bytes | None = None


class OpenTurn(Struct, gc=False, kw_only=True, omit_defaults=True):
    """A turn, or in a subagent's session one subagent span, from its prompt to its settlement."""

    key: str
    start: int
    last: int
    index: int = 0
    human: bool = True
    copy: bool = False
    """Its key was settled before, or is open elsewhere: a fork's or a resume's copy."""
    original: str = ""
    """The session in which the turn that this is a copy of is still open."""
    muted: bool = False
    """Began before --since: its ids enter the ledger and, for budgets, its usage the sums by time."""
    aliases: list[str] = []
    trace: bytes = b""
    """Empty while a subagent's turn has not been led to its outer turn."""
    span: bytes = b""
    parent: bytes = b""
    link_call: str = ""
    """The tool call that started it, and the session of that call."""
    link_session: str = ""
    outer: str = ""
    """A subagent's: the alias of the outer turn, as its records say it."""
    outer_session: str = ""
    outer_turn: str = ""
    models: dict[str, OpenModelCall] = {}
    tools: dict[str, OpenTool] = {}
    held_models: list[OpenModelCall] = []
    held_tools: list[OpenTool] = []
    ready: int = 0
    """When the model could begin its next reply: after the prompt or the last tool result."""
    usage: Usage
    cost: float | None = None
    cost_source: CostSource | None = None
    model_busy: Busy
    tool_busy: Busy
    tool_count: int = 0
    error_count: int = 0
    fresh: int = 0
    known: int = 0
    events: list[SpanEvent] = []
    links: list[Link] = []
    unseen: bool = False
    """A tool at work leaves no record: one may be open."""
    ends: bool = False
    rests: bool = False
    marked: int = 0
    """Time of the turn's own end mark, with status, error type and word."""
    status: Status = "pending"
    error_type: str = ""
    word: str = ""
    exit: Exit = "unknown"
    closed: int = 0
    """When it closed; what comes later is not in its sums any more."""
    repair: Usage | None = None
    content: bytes | None = None
    context: Context | None = None
    """The session's context when it closed; the session may change before it is settled."""

    def at_work(self) -> bool:
        """Whether a tool call is open, or may be."""
        return self.unseen or bool(self.tools)

    def end(self, over: dict[str, int]) -> int:
        """When it came to an end of its own; 0 if it has not. `over`: when calls that started subagents returned."""
        if self.marked or self.tools:
            return self.marked
        returned = over.get(self.link_call, 0) if self.rests else 0
        return self.last if self.ends else max(returned, self.last) if returned else 0

    def waits_for_prompt(self, time: int) -> bool:
        """A reply can be written before the prompt, of that time, which caused it: then the prompt is the older."""
        return not self.human and time <= self.start and not (self.fresh or self.known)

    def name(self, alias: str) -> None:
        if alias and alias not in self.aliases:
            self.aliases = [*self.aliases, alias][-WINDOW:]


class PastTurn(Struct, gc=False):
    """A settled turn, as far as a late subagent needs it."""

    key: str
    aliases: list[str]
    trace: bytes
    span: bytes
    start: int
    last: int
    muted: bool = False


class Pending(Struct, gc=False):
    """A call that was settled without an end of its own, in case its end comes after all."""

    tool: OpenTool
    trace: bytes
    span: bytes
    parent: bytes


class Work(Struct, omit_defaults=True):
    key: str
    context: Context
    parent: str = ""
    name: str = ""
    agent_id: str = ""
    slug: str = ""
    copied_from: str = ""
    run: int = 0
    """Start of the run, 0 between runs. Negative: a run that --since leaves out."""
    last: int = 0
    seen: int = 0
    """When, by our clock, its last record was read, if it was followed live; see Sessions."""
    turns: int = 0
    exit: Exit = "unknown"
    turn: OpenTurn | None = None
    waiting: list[OpenTurn] = []
    """Closed turns, kept until all that was written by then has been read."""
    loose: list[Pending] = []
    """Calls that go on after their turn's own end mark."""
    past: list[PastTurn] = []
    late: list[Pending] = []
    early: dict[str, OpenTool] = {}
    """Results that came before their call."""
    digests: list[int] = []
    recent: dict[str, Usage] = {}
    unsure: dict[str, Usage] = {}
    links: list[tuple[str, str]] = []
    """Tool calls (parent session, call) that started this subagent and have no turn of it yet."""
    linked: list[str] = []
    over: dict[str, int] = {}
    """When such a call returned: a reply without an end mark was the subagent's last one then."""
    repair: Usage | None = None
    root: Link | None = None
    measured: Usage | None = None
    measured_cost: float | None = None
    context_tokens: int = 0
    context_model: str = ""
    limits: dict[str, float] = {}

    def at_rest(self) -> bool:
        return not (self.turn or self.waiting or self.loose or self.run)


class _RemainsTurn(Struct, kw_only=True):
    key: str
    start: int
    last: int
    index: int = 0
    human: bool = True
    muted: bool = False
    trace: bytes = b""
    span: bytes = b""
    parent: bytes = b""
    outer_session: str = ""
    outer_turn: str = ""
    usage: Usage
    cost: float | None = None
    cost_source: CostSource | None = None
    tool_count: int = 0
    error_count: int = 0


class _Remains(Struct, kw_only=True):
    """What the rows of all shapes have: these names never change their meaning."""

    key: str
    context: Context
    parent: str = ""
    name: str = ""
    agent_id: str = ""
    run: int = 0
    last: int = 0
    seen: int = 0
    turns: int = 0
    turn: _RemainsTurn | None = None
    waiting: list[_RemainsTurn] = []
    measured: Usage | None = None
    measured_cost: float | None = None


def remains(row: bytes) -> Work | None:
    """What can be told of open work of any shape; None if it cannot even be read that far."""
    try:
        left = msgspec.msgpack.decode(row, type=_Remains)
    except msgspec.MsgspecError:
        return None
    work = Work(
        key=left.key,
        context=left.context,
        parent=left.parent,
        name=left.name,
        agent_id=left.agent_id,
        run=left.run,
        last=left.last,
        seen=left.seen,
        turns=left.turns,
        waiting=[_turn(turn, closed=left.last) for turn in left.waiting],
        measured=left.measured,
        measured_cost=left.measured_cost,
    )
    if left.turn is not None:
        work.turn = _turn(left.turn, closed=0)
    return work


def _turn(left: _RemainsTurn, *, closed: int) -> OpenTurn:
    fields = msgspec.structs.asdict(left)
    # It was no copy, whatever is known of its calls: those were counted as its own.
    return OpenTurn(**fields, closed=closed, fresh=1, model_busy=Busy(), tool_busy=Busy())


def take_sums(work: Work, left: Work) -> None:
    """Running totals and times of arrival cannot be read again as they were: of work that was made again they are
    those of the row."""
    work.seen = left.seen
    work.measured, work.measured_cost = left.measured, left.measured_cost
    sums = {turn.key: turn for turn in (left.turn, *left.waiting) if turn is not None}
    for turn in (work.turn, *work.waiting):
        if turn is not None and turn.key in sums:
            known = sums[turn.key]
            turn.usage, turn.cost, turn.cost_source = known.usage, known.cost, known.cost_source

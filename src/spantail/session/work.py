"""Open work: what a session has begun and not settled. One small row per session in the state.

Everything here is saved with the commit, so nothing here may grow with the number of settled
calls: sums instead of lists, and short windows where something must be remembered.
"""

from __future__ import annotations

from msgspec import Struct

from spantail.model import Context, CostSource, DurationSource, Exit, Link, SpanEvent, Status, Usage
from spantail.session.busy import Busy

SHAPE = 1
"""Raised when the meaning of these fields changes; see state for what then happens."""

WINDOW = 64
"""How many input digests, notes, early results and pending calls are remembered per session."""
RECENT = 16
"""How many settled model calls stay open to a positive difference."""
TURNS = 32
"""How many settled turns a subagent can still be led to."""


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
    """Began before --since: its ids enter the ledger, nothing else."""
    aliases: list[str] = []
    trace: bytes = b""
    """Empty while a subagent's turn has not been led to its outer turn."""
    span: bytes = b""
    parent: bytes = b""
    link_call: str = ""
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
    links: list[tuple[str, str]] = []
    """Tool calls (parent session, call) that started this subagent and have no turn of it yet."""
    linked: list[str] = []
    repair: Usage | None = None
    root: Link | None = None
    measured: Usage | None = None
    measured_cost: float | None = None
    context_tokens: int = 0
    context_model: str = ""
    limits: dict[str, float] = {}

    def at_rest(self) -> bool:
        return not (self.turn or self.waiting or self.loose or self.run)

"""Settling: a call or turn is handed on once, with its ids, and never again with other content.

The ledger decides what "once" means across files: a call that a fork, a resume or a rewritten
file repeats is known there and is dropped. What is settled is added to the sums of its turn and
of every turn around it, as long as those have not closed before the call ended.

Longer than 400 lines: all that is handed on is handed on here, so that "once" can be seen in one place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from msgspec import Raw, Struct, structs

from spantail.model import (
    CostSource,
    Exit,
    Link,
    ModelCall,
    Occurred,
    Outcome,
    Status,
    Subagent,
    ToolCall,
    Turn,
    Usage,
    UsageAdded,
)
from spantail.session.ids import ledger_id, span_id, trace_id
from spantail.session.work import (
    HELD,
    RECENT,
    TURNS,
    UNSURE,
    WINDOW,
    OpenModelCall,
    OpenTool,
    OpenTurn,
    PastTurn,
    Pending,
    Work,
)

Price = Callable[..., float | None]
"""(model, provider, usage, time) -> US dollars, None if the model has no known price. With `several=True` the usage
is that of nobody knows how many calls."""


class Ledger(Protocol):
    def known(self, id: int) -> bool: ...  # noqa: A002 - the ledger's own word
    def add(self, id: int) -> bool:  # noqa: A002
        """Whether it was not there yet."""
        ...


class Rules(Struct, frozen=True):
    """The settings that settling depends on; times in nanoseconds."""

    grace: int = 2_000_000_000
    idle: int = 1_800_000_000_000
    stale: int = 7_200_000_000_000
    since: int = 0
    sums: int = 0
    """Usage before `since` is still summed by its time, though not counted, back to here; 0: none is."""
    keep_content: bool = False

    @property
    def reach(self) -> int:
        """The oldest time that matters to anybody."""
        return min(self.since, self.sums) if self.sums else self.since


EXIT_OF: dict[str, Exit] = {
    "ok": "success",
    "error": "error",
    "interrupted": "interrupted",
    "pending": "unknown",
}


def exit_of(status: Status, error_type: str) -> Exit:
    if error_type == "max_turns":
        return "max_turns"
    if error_type == "max_budget":
        return "max_budget"
    return EXIT_OF[status]


def _least_sure(one: CostSource | None, other: CostSource | None) -> CostSource | None:
    """What a sum of costs from several sources is."""
    if one is None or one == other:
        return other
    return "estimate" if "estimate" in (one, other) else "computed"


class Settler:
    """Hands on what is settled to `out`, in the order in which it was settled."""

    def __init__(
        self,
        rules: Rules,
        ledger: Ledger,
        price: Price,
        outer: Callable[[OpenTurn], OpenTurn | None],
        unsettled: Callable[[OpenTurn], Iterable[tuple[Work, OpenModelCall]]],
    ) -> None:
        self.rules = rules
        self.ledger = ledger
        self.price = price
        self.outer = outer
        self.unsettled = unsettled
        self.out: list[Outcome] = []

    # ------------------------------------------------------------------------- model calls

    def model_call(self, work: Work, turn: OpenTurn, call: OpenModelCall) -> None:
        if not turn.trace:
            turn.held_models.append(call)
            if len(turn.held_models) > HELD:
                self.orphan(work, turn)
            return
        if not self.ledger.add(call.ledger):
            turn.known += 1
            return
        turn.fresh += 1
        turn.model_busy.add(call.start, call.end)
        usage = call.usage
        held, most = (work.recent, RECENT) if call.final else (work.unsure, UNSURE)
        held[call.key] = usage if usage is not None else Usage()
        if len(held) > most:
            del held[next(iter(held))]
        if usage is not None:
            work.context_tokens = usage.input + usage.cache_read + usage.cache_write
            if work.context_model != call.model:
                work.context_model = call.model
        cost, source = self.priced(
            call.model, call.provider or work.context.provider, usage, call.cost, call.end
        )
        if call.cut and source == "reported":
            source = "estimate"  # of a reply whose usage is not final
        self._sum(turn, call.end, usage, cost, source)
        if turn.muted:
            self._past(work, call.model, usage, cost, call.end or call.start)
            return
        context = work.context
        if call.provider and call.provider != context.provider:
            context = structs.replace(context, provider=call.provider)
        settled = ModelCall(
            context=context,
            trace=turn.trace,
            span=span_id(turn.trace, call.key),
            parent=turn.span,
            start=call.start,
            end=call.end,
            status=call.status,
            error_type=call.error_type,
            model=call.model,
            response_id=call.id,
            stop=call.stop,
            usage=usage,
            final=call.final and not call.cut,
            cost=cost,
            cost_source=source,
        )
        # Set apart: Python calls with more than 15 keywords four times as slowly.
        if call.content is not None:
            settled.content = Raw(call.content)
        self.out.append(settled)

    def difference(
        self, work: Work, turn: OpenTurn | None, call: str, model: str, usage: Usage, time: int
    ) -> None:
        """A later record says more of a call already counted: what it has more is added."""
        held = work.recent if call in work.recent else work.unsure
        before = held.get(call)
        if before is None:
            return
        more = usage.beyond(before)
        if not more.total():
            return
        held[call] = before.raised_to(usage)
        cost, source = self.priced(model, work.context.provider, more, None, time)
        self.added(work, turn, model, more, cost, source, time)

    def added(
        self,
        work: Work,
        turn: OpenTurn | None,
        model: str,
        usage: Usage | None,
        cost: float | None,
        source: CostSource | None,
        time: int,
    ) -> None:
        if turn is not None:
            self._sum(turn, time, usage, cost, source)
        if self._muted(turn, time):
            self._past(work, model, usage, cost, time)
            return
        self.out.append(
            UsageAdded(
                context=work.context, time=time, model=model, usage=usage, cost=cost, cost_source=source
            )
        )

    def _muted(self, turn: OpenTurn | None, time: int) -> bool:
        """Whether it is before --since, by its turn or, without one, by itself."""
        return turn.muted if turn is not None else 0 < time < self.rules.since

    def _past(self, work: Work, model: str, usage: Usage | None, cost: float | None, time: int) -> None:
        """Before --since: no span and no count, but a budget's period may have begun earlier."""
        if 0 < self.rules.sums <= time:
            self.out.append(
                UsageAdded(context=work.context, time=time, model=model, usage=usage, cost=cost, past=True)
            )

    def priced(
        self,
        model: str,
        provider: str,
        usage: Usage | None,
        stated: float | None,
        time: int,
        *,
        several: bool = False,
    ) -> tuple[float | None, CostSource | None]:
        if stated is not None:
            return stated, "reported"
        if usage is None or not usage.total():
            return None, None
        cost = self.price(model, provider, usage, time, several=several)
        return cost, None if cost is None else "computed"

    def _sum(
        self, turn: OpenTurn, end: int, usage: Usage | None, cost: float | None, source: CostSource | None
    ) -> None:
        at: OpenTurn | None = turn
        while at is not None:
            if not at.closed or end <= at.closed:
                if usage is not None:
                    at.usage.add(usage)
                if cost is not None:
                    at.cost = (at.cost or 0.0) + cost
                    if at.cost_source != source:
                        at.cost_source = _least_sure(at.cost_source, source)
            at = self.outer(at) if at.outer_turn else None

    # -------------------------------------------------------------------------- tool calls

    def tool_call(self, work: Work, turn: OpenTurn, tool: OpenTool) -> None:
        if not turn.trace:
            turn.held_tools.append(tool)
            if len(turn.held_tools) > HELD:
                self.orphan(work, turn)
            return
        if not self.ledger.add(tool.ledger):
            turn.known += 1
            return
        turn.fresh += 1
        turn.tool_count += 1
        if tool.status != "ok":
            turn.error_count += 1
        turn.tool_busy.add(tool.start, tool.end)
        span = span_id(turn.trace, tool.key)
        if tool.status == "pending":
            work.late = [*work.late, Pending(tool, turn.trace, span, turn.span)][-WINDOW:]
        if not turn.muted:
            self._tool_span(work, tool, turn.trace, span, turn.span)

    def loose_call(self, work: Work, pending: Pending, *, muted: bool) -> None:
        """A call that went on after its turn's own end mark; the turn's sums are closed."""
        if not self.ledger.add(pending.tool.ledger):
            return
        if pending.tool.status == "pending":
            work.late = [*work.late, pending][-WINDOW:]
        if not muted:
            self._tool_span(work, pending.tool, pending.trace, pending.span, pending.parent)

    def late_call(self, work: Work, pending: Pending) -> None:
        """The end of a call that was settled without one: a span of its own."""
        link = Link(pending.trace, pending.span, "late result")
        span = span_id(pending.trace, pending.tool.key + "\nlate")
        self._tool_span(work, pending.tool, pending.trace, span, pending.parent, link)

    def _tool_span(
        self, work: Work, tool: OpenTool, trace: bytes, span: bytes, parent: bytes, late: Link | None = None
    ) -> None:
        start, end = tool.start, tool.end
        settled = ToolCall(
            context=work.context,
            trace=trace,
            span=span,
            parent=parent,
            start=start,
            end=end if end > start else start,
            status=tool.status,
            error_type=tool.error_type,
            name=tool.name,
            id=tool.id or tool.key,
            type=tool.type,
            source=tool.source or "timestamps",
            exit_code=tool.exit_code,
            repeated=tool.repeated,
        )
        # Set apart, as a model call's content is.
        if tool.input is not None:
            settled.input = Raw(tool.input)
        if tool.output is not None:
            settled.output = Raw(tool.output)
        if late is not None:
            settled.links, settled.late = [late], True
        self.out.append(settled)

    # ------------------------------------------------------------------------------- turns

    def release(self, work: Work, turn: OpenTurn) -> None:
        """A subagent's turn has been led to its trace: what waited for that is settled."""
        models, turn.held_models = turn.held_models, []
        tools, turn.held_tools = turn.held_tools, []
        for call in models:
            self.model_call(work, turn, call)
        for tool in tools:
            self.tool_call(work, turn, tool)

    def orphan(self, work: Work, turn: OpenTurn) -> None:
        """Nobody is known to have started this subagent: its turn is work of its own."""
        turn.trace = trace_id(work.context.agent, turn.key)
        turn.span = span_id(turn.trace, turn.key)
        turn.human = False
        turn.muted = turn.start < self.rules.since
        self.release(work, turn)

    def turn(self, work: Work, turn: OpenTurn) -> None:
        """The root of a trace, or a subagent's span."""
        lid = ledger_id("turn", turn.key)
        copied = turn.original or self.ledger.known(lid) or (turn.known and not turn.fresh)
        nested = bool(turn.outer_turn)
        past = PastTurn(turn.key, turn.aliases, turn.trace, turn.span, turn.start, turn.last, turn.muted)
        work.past = [*work.past, past][-TURNS:]
        if copied:
            if not nested:
                work.root = Link(turn.trace, turn.span, "original")
            return
        self.ledger.add(lid)
        if nested:
            if not turn.muted:
                self.out.append(self._subagent(work, turn))
            return
        for inner, call in self.unsettled(turn):
            usage = call.repaired(inner.turn.repair if inner.turn is not None else None)
            provider = call.provider or inner.context.provider
            cost, source = self.priced(call.model, provider, usage, call.cost, call.end)
            self._sum(turn, call.end, usage, cost, source)
        links = list(turn.links)
        if work.root is not None and work.root not in links:
            links.append(work.root)
        work.root = Link(turn.trace, turn.span, "previous turn")
        if not turn.muted:
            self.out.append(self._root(work, turn, links))

    def _subagent(self, work: Work, turn: OpenTurn) -> Subagent:
        return Subagent(
            context=turn.context or work.context,
            trace=turn.trace,
            span=turn.span,
            parent=turn.parent,
            start=turn.start,
            end=max(turn.start, turn.last),
            status=turn.status,
            error_type=turn.error_type,
            name=work.name or "subagent",
            agent_id=work.agent_id,
        )

    def _root(self, work: Work, turn: OpenTurn, links: list[Link]) -> Turn:
        length = max(0, turn.last - turn.start)
        tool = min(length, turn.tool_busy.length())
        model = min(length - tool, turn.model_busy.without(turn.tool_busy))
        return Turn(
            context=turn.context or work.context,
            trace=turn.trace,
            span=turn.span,
            start=turn.start,
            end=max(turn.start, turn.last),
            status=turn.status,
            error_type=turn.error_type,
            links=links,
            human=turn.human,
            index=turn.index,
            exit=turn.exit,
            word=turn.word,
            usage=turn.usage,
            # The order in which parts were added must not show.
            cost=None if turn.cost is None else round(turn.cost, 12),
            cost_source=turn.cost_source,
            model_seconds=model / 1e9,
            tool_seconds=tool / 1e9,
            other_seconds=(length - tool - model) / 1e9,
            tools=turn.tool_count,
            errors=turn.error_count,
            events=turn.events,
            content=None if turn.content is None else Raw(turn.content),
        )

    def occurred(self, work: Work, turn: OpenTurn | None, kind: str, error_type: str, time: int) -> None:
        if self._muted(turn, time) or (turn is not None and turn.copy):
            return
        trace = turn.trace if turn is not None else b""
        self.out.append(
            Occurred(context=work.context, time=time, kind=kind, error_type=error_type, trace=trace)
        )

"""What each settled thing adds to the totals: the one place that says what is counted.

For whoever compares a dashboard with the traces: totals and spans are made of the same outcomes, so
they are the same numbers. What has no end of its own is counted as such, never guessed; a number
that no agent can mean (negative, not finite, beyond all measure) is not counted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable
from typing import Final

from msgspec import Struct

from spantail.model import (
    SECOND,
    TOKEN_TYPES,
    Context,
    ModelCall,
    Occurred,
    Outcome,
    RunEnded,
    RunStarted,
    Settled,
    ToolCall,
    Turn,
    Usage,
    UsageAdded,
)
from spantail.state import families as f
from spantail.state.guard import OTHER, Guard
from spantail.state.hours import SLOT, Hours, Sums
from spantail.state.series import Counter, Histogram
from spantail.state.totals import Totals

SANE: Final = 1 << 40
"""No call has more tokens, dollars or seconds than this; a record that says so is broken."""

SLOT_NS: Final = SLOT * SECOND

FAR: Final = 1 << 62
"""A time in ns that is far off (2116) and that the state can still hold."""

PLACES: Final = 10_000
"""How many combinations of labels are remembered as guarded."""

Place = tuple[str, str, str, str]


class _Calls(Struct, gc=False):
    """Where the figures of like model calls go: found once, then only added to."""

    calls: Counter
    tokens: tuple[Counter, Counter, Counter, Counter]
    cost: Counter
    sums: Sums


class _Tools(Struct, gc=False):
    """The same for tool calls that went well."""

    calls: Counter
    durations: Histogram


class Counting:
    def __init__(
        self,
        totals: Totals,
        hours: Hours,
        guard: Guard,
        *,
        cost_apart: Collection[str] = (),
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        """`cost_apart`: agents that report their cost as a running total, apart from the calls.
        `clock` dates the few things whose records have no time, so that budgets do not lose them."""
        self._totals = totals
        self._add = totals.add
        self._hours = hours
        self._guard = guard.value
        self._cost_apart = frozenset(cost_apart)
        self._clock = clock
        self._places: dict[tuple[str, str, str, str, str], Place] = {}
        self._guarded: dict[tuple[str, tuple[str, ...]], tuple[str, ...]] = {}

    def count(self, outcomes: Iterable[Outcome]) -> None:
        alike: dict[tuple[object, ...], _Calls] = {}
        tools: dict[tuple[str, str, str], _Tools] = {}
        for outcome in outcomes:
            # Most of a backlog: a tool call that went well, a complete call with a price. What is special
            # about one is left to `_one`.
            kind = type(outcome)
            if kind is ToolCall:
                tool: ToolCall = outcome  # type: ignore[assignment]
                start, end = tool.start, tool.end
                if tool.status == "ok" and 0 < start <= end < FAR and not (tool.repeated or tool.late):
                    context = tool.context
                    name = (context.agent, context.project, tool.name)
                    to = tools.get(name) or self._like_tools(tool, name, tools)
                    to.calls.live += 1.0
                    to.durations.observe((end - start) / SECOND, end, tool.trace)
                    continue
            elif kind is ModelCall:
                call: ModelCall = outcome  # type: ignore[assignment]
                usage, cost = call.usage, call.cost
                if (
                    usage is not None
                    and cost is not None
                    and call.final
                    and not usage.reasoning
                    and 0 < usage.input | usage.cache_read | usage.cache_write | usage.output < SANE
                    and 0 <= cost < SANE
                    and 0 < call.end < FAR
                ):
                    context = call.context
                    slot = call.end // SLOT_NS
                    key = (
                        context.agent,
                        context.project,
                        context.user,
                        call.model,
                        call.status,
                        call.cost_source,
                        slot,
                    )
                    into = alike.get(key) or self._alike(call, key, alike)
                    into.calls.live += 1.0
                    given, read, written, output = into.tokens
                    sums = into.sums
                    given.live += usage.input
                    sums.input += usage.input
                    read.live += usage.cache_read
                    sums.cache_read += usage.cache_read
                    written.live += usage.cache_write
                    sums.cache_write += usage.cache_write
                    output.live += usage.output
                    sums.output += usage.output
                    into.cost.live += cost
                    sums.cost += cost
                    continue
            self._one(outcome)

    def _alike(
        self, call: ModelCall, key: tuple[object, ...], alike: dict[tuple[object, ...], _Calls]
    ) -> _Calls:
        at, counter = call.end, self._totals.counter
        place = agent, project, user, model = self._place(call.context, "model", call.model)
        given, read, written, output = (
            counter(f.TOKENS, (agent, project, model, type_, user), at) for type_ in TOKEN_TYPES
        )
        into = _Calls(
            counter(f.MODEL_CALLS, (agent, project, model, call.status), at),
            (given, read, written, output),
            counter(f.COST, (agent, project, model, call.cost_source or "estimate", user), at),
            self._hours.sums(at, agent, project, model, user),
        )
        if OTHER not in place:
            alike[key] = into
        return into

    def _like_tools(
        self, call: ToolCall, name: tuple[str, str, str], tools: dict[tuple[str, str, str], _Tools]
    ) -> _Tools:
        agent, project, _, tool = place = self._place(call.context, "tool", call.name)
        into = _Tools(
            self._totals.counter(f.TOOL_CALLS, (agent, project, tool, call.status), call.end),
            self._totals.histogram(f.TOOL_DURATION, (agent, tool), call.end),
        )
        if OTHER not in place:
            tools[name] = into
        return into

    def _one(self, outcome: Outcome) -> None:
        if isinstance(outcome, ToolCall):
            self._tool_call(outcome)
        elif isinstance(outcome, ModelCall):
            self._model_call(outcome)
        elif isinstance(outcome, Turn):
            self._turn(outcome)
        elif isinstance(outcome, UsageAdded):
            self._usage(outcome, self._place(outcome.context, "model", outcome.model), _real(outcome.time))
        elif isinstance(outcome, RunStarted):
            agent, project, user, _ = self._place(outcome.context)
            self._add(f.SESSIONS_STARTED, (agent, project, user), 1.0, _real(outcome.time))
        elif isinstance(outcome, RunEnded):
            agent, project, user, _ = self._place(outcome.context)
            self._add(f.SESSION_EXITS, (agent, project, outcome.exit, user), 1.0, _real(outcome.time))
        elif isinstance(outcome, Occurred):
            self._occurred(outcome)
        # else a subagent's span: its calls and tokens are counted themselves.

    def _place(self, context: Context, label: str = "", raw: str = "") -> Place:
        """The guarded labels that its series share: agent, project, user, and model or tool."""
        key = (context.agent, context.project, context.user, label, raw)
        place = self._places.get(key)
        if place is None:
            guard = self._guard
            place = (
                guard("agent", context.agent),
                guard("project", context.project),
                guard("user", context.user),
                guard(label, raw) if label else "",
            )
            # What overflows goes through the guard each time, because it counts that.
            if OTHER not in place and len(self._places) < PLACES:
                self._places[key] = place
        return place

    def guarded(self, family: f.Family, labels: tuple[str, ...]) -> tuple[str, ...]:
        """Labels from elsewhere as our own: closed ones are right by themselves."""
        known = self._guarded.get((family.name, labels))
        if known is None:
            known = tuple(
                value if name == family.closed else self._guard(name, value)
                for name, value in zip(family.labels, labels, strict=True)
            )
            if OTHER not in known and len(self._guarded) < PLACES:
                self._guarded[family.name, labels] = known
        return known

    # ------------------------------------------------------------------- tokens and money

    def _model_call(self, call: ModelCall) -> None:
        at = _real(call.end or call.start)
        place = agent, project, _user, model = self._place(call.context, "model", call.model)
        self._usage(call, place, at)
        self._add(f.MODEL_CALLS, (agent, project, model, call.status), 1.0, at)
        # A call that failed before it gave anything has no usage that could be incomplete.
        if not call.final and not (call.usage is None and call.status == "error"):
            self._add(f.INCOMPLETE, (agent,), 1.0, at)

    def _usage(self, of: ModelCall | UsageAdded, place: Place, at: int) -> None:
        usage = None if of.usage is None else _sane(of.usage)
        cost = of.cost if of.cost is not None and 0 <= of.cost < SANE else None
        if cost is None and (usage is None or not usage.total()):
            return
        agent, project, user, model = place
        self._hours.add(at or self._clock(), agent, project, model, user, usage, cost)
        if isinstance(of, UsageAdded) and of.past:
            return
        add = self._add
        if usage is not None:
            if usage.input:
                add(f.TOKENS, (agent, project, model, "input", user), usage.input, at)
            if usage.cache_read:
                add(f.TOKENS, (agent, project, model, "cache_read", user), usage.cache_read, at)
            if usage.cache_write:
                add(f.TOKENS, (agent, project, model, "cache_write", user), usage.cache_write, at)
            if usage.output:
                add(f.TOKENS, (agent, project, model, "output", user), usage.output, at)
            if usage.reasoning:
                add(f.REASONING, (agent, project, model), usage.reasoning, at)
            if cost is None and of.context.agent not in self._cost_apart:
                add(f.UNPRICED, (agent, model), usage.total(), at)
        if cost is not None:
            add(f.COST, (agent, project, model, of.cost_source or "estimate", user), cost, at)

    # -------------------------------------------------------------------- tools and turns

    def _tool_call(self, call: ToolCall) -> None:
        at = _real(call.end or call.start)
        agent, project, _user, tool = self._place(call.context, "tool", call.name)
        if call.late:
            # The call has been counted as pending; the result that came after is only noted.
            self._add(f.LATE_RECORDS, (agent,), 1.0, at)
            return
        self._add(f.TOOL_CALLS, (agent, project, tool, call.status), 1.0, at)
        if call.status != "pending" and (seconds := _seconds(call)) is not None:
            self._totals.observe(f.TOOL_DURATION, (agent, tool), seconds, at, call.trace)
        if call.status in ("error", "interrupted"):
            kind = "interrupted" if call.status == "interrupted" else call.error_type or "_OTHER"
            labels = (agent, project, tool, self._guard("error_type", kind))
            self._add(f.TOOL_ERRORS, labels, 1.0, at, call.trace)
        if call.repeated:
            self._add(f.REPEATED, (agent, project, tool), 1.0, at)

    def _turn(self, turn: Turn) -> None:
        if not turn.human:
            return
        at = _real(turn.end or turn.start)
        agent, project, user, _ = self._place(turn.context)
        self._add(f.TURNS, (agent, project, turn.status, user), 1.0, at)
        if (seconds := _seconds(turn)) is not None:
            self._totals.observe(f.TURN_DURATION, (agent, project), seconds, at, turn.trace)
        for phase, seconds in zip(
            f.PHASES, (turn.model_seconds, turn.tool_seconds, turn.other_seconds), strict=True
        ):
            if 0 < seconds < SANE:
                self._add(f.TURN_PHASE, (agent, project, phase), seconds, at)

    def _occurred(self, noted: Occurred) -> None:
        at = _real(noted.time)
        agent, project, _user, _ = self._place(noted.context)
        match noted.kind:
            case "compaction":
                self._add(f.COMPACTIONS, (agent, project), 1.0, at)
            case "provider_error":
                kind = self._guard("error_type", noted.error_type or "_OTHER")
                self._add(f.PROVIDER_ERRORS, (agent, kind), 1.0, at, noted.trace)
            case "incomplete":
                self._add(f.INCOMPLETE, (agent,), 1.0, at)
            case "late":
                self._add(f.LATE_RECORDS, (agent,), 1.0, at)
            case _:  # a span event only
                pass


def _real(at: int) -> int:
    """The time, or 0 (not known) for one that no clock can have shown."""
    return at if 0 <= at < FAR else 0


def _seconds(settled: Settled) -> float | None:
    """How long it took, if both ends are known."""
    if not settled.start or not settled.end:
        return None
    return max(0, settled.end - settled.start) / SECOND


def _sane(usage: Usage) -> Usage:
    """The usage without the fields that cannot be true."""
    if (
        0 <= usage.input < SANE
        and 0 <= usage.cache_read < SANE
        and 0 <= usage.cache_write < SANE
        and 0 <= usage.output < SANE
        and 0 <= usage.reasoning < SANE
    ):
        return usage
    return Usage(*(n if 0 <= n < SANE else 0 for n in _fields(usage)))


def _fields(usage: Usage) -> tuple[int, ...]:
    return usage.input, usage.cache_read, usage.cache_write, usage.output, usage.reasoning

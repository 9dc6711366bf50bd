"""Model calls and tool calls of a session's open turn, from their first record to their settlement."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Raw

from spantail.model import Called, Measured, Noted, Replied, Returned, SpanEvent, Usage
from spantail.session.ids import input_digest, ledger_id
from spantail.session.nesting import Nesting
from spantail.session.settle import Ledger, Rules, Settler
from spantail.session.work import INPUT, OPEN, SHOWN, WINDOW, OpenModelCall, OpenTool, OpenTurn, Work

Stray = Callable[[Work, str, int], OpenTurn]
"""Opens work without a turn, for a call that has none around it."""


class Calls:
    def __init__(
        self,
        rules: Rules,
        ledger: Ledger,
        settler: Settler,
        stray: Stray,
        nesting: Nesting,
    ) -> None:
        self.nesting = nesting
        self.rules = rules
        self.ledger = ledger
        self.settler = settler
        self.stray = stray

    def replied(self, work: Work, event: Replied) -> None:
        turn = work.turn
        call = turn.models.get(event.call) if turn is not None else None
        if call is None:
            ledger = ledger_id("model", event.call)
            origin = turn.original or work.parent if turn is not None else work.parent
            if self.ledger.known(ledger) or (origin and self.nesting.open_in(origin, event.call)):
                self._again(work, turn, event)
                return
            if turn is None:
                turn = self.stray(work, event.call, event.start or event.time)
            if turn.models:
                for other in turn.models.values():
                    self.settler.model_call(work, turn, other)
            start = event.start or min(turn.ready, event.time)
            call = OpenModelCall(event.call, ledger, event.id or event.call, event.model, start=start)
            turn.models = {event.call: call}
        assert turn is not None
        self._merge(call, event)
        end = call.end
        if end > turn.last:
            turn.last = end
        if end > turn.ready:
            turn.ready = end
        if (turn.marked or turn.status != "pending" or turn.error_type) and event.time >= turn.marked:
            reopen(turn)
        rests = event.rests or event.ends
        if turn.ends != event.ends or turn.rests != rests:
            turn.ends, turn.rests = event.ends, rests

    def _merge(self, call: OpenModelCall, event: Replied) -> None:
        # What is as it was is not set again: to set a field costs several times what it costs to look at it.
        if event.id and event.id != call.id:
            call.id = event.id
        if event.model and event.model != call.model:
            call.model = event.model
        if event.provider:
            call.provider = event.provider
        if event.stop:
            call.stop = event.stop
        end = event.end or event.time
        if end > call.end:
            call.end = end
        if event.start:
            call.start = event.start
        if event.cut:
            call.cut = True
        if event.cost is not None:
            call.cost = event.cost
        if event.status != "ok":
            call.status, call.error_type = event.status, event.error_type
        usage = event.usage
        if event.final:
            call.usage, call.final = usage if usage is not None else call.usage, True
        elif usage is not None and not call.final:
            call.usage = usage if call.usage is None else call.usage.raised_to(usage)
        if event.content is not None and self.rules.keep_content:
            call.content = kept(event.content)

    def _again(self, work: Work, turn: OpenTurn | None, event: Replied) -> None:
        """A call already counted: a copy, or more about one that was settled a moment ago."""
        if event.usage is not None:
            counted = self.nesting.counted(work, event.call)
            if event.final or event.call in counted.unsure:
                at = turn if counted is work else None
                self.settler.difference(counted, at, event.call, event.model, event.usage, event.time)
        if turn is not None and not _before(turn, event.time):
            turn.known += 1
            turn.last = max(turn.last, event.time)
            turn.ends, turn.rests = event.ends, event.rests or event.ends

    def called(self, work: Work, event: Called) -> None:
        turn = work.turn
        tool = turn.tools.get(event.call) if turn is not None else None
        if tool is None:
            ledger = ledger_id("tool", event.call)
            origin = turn.original or work.parent if turn is not None else work.parent
            if self.ledger.known(ledger) or (origin and self.nesting.open_in(origin, event.call)):
                if turn is not None and not _before(turn, event.time):
                    turn.known += 1
                return
            if turn is None:
                turn = self.stray(work, event.call, event.start or event.time)
            tool = OpenTool(
                event.call, ledger, event.id or event.call, event.name, event.type, event.start or event.time
            )
            if len(turn.tools) >= OPEN:
                self._give_up(work, turn)
            turn.tools[event.call] = tool
        else:
            tool.id = event.id or tool.id
            tool.name = event.name or tool.name
            tool.type = event.type
            if event.start:
                tool.start = min(tool.start, event.start) if tool.start else event.start
        assert turn is not None
        if event.starts_agent:
            tool.starts_agent = True
        if event.duration is not None:
            tool.duration = event.duration
        if event.input is not None:
            self._input(work, tool, event.input)
        if event.time > turn.last:
            turn.last = event.time
        # Asked for before the turn's end mark and read after it: that brings no turn back.
        stale = 0 < event.time < turn.marked
        if not stale and (turn.rests or turn.marked or turn.status != "pending" or turn.error_type):
            reopen(turn)
        if work.early:
            early = work.early.pop(event.call, None)
            if early is not None:
                self._finish(work, turn, tool, early, early.end, early.output)

    def _give_up(self, work: Work, turn: OpenTurn) -> None:
        """The oldest open call has no end on record."""
        oldest = turn.tools.pop(next(iter(turn.tools)))
        oldest.end = max(oldest.start, turn.last)
        self.settler.tool_call(work, turn, oldest)

    def _input(self, work: Work, tool: OpenTool, body: Raw) -> None:
        digest = input_digest(tool.name, memoryview(body))
        digests = work.digests
        if tool.repeated != (digest in digests):
            tool.repeated = not tool.repeated
        digests.append(digest)
        if len(digests) > WINDOW:
            del digests[0]
        if self.rules.keep_content:
            tool.input = kept(body, INPUT)

    def returned(self, work: Work, event: Returned) -> None:
        end = event.end or event.time
        output = kept(event.output) if self.rules.keep_content and event.output is not None else None
        turn = work.turn
        tool = turn.tools.get(event.call) if turn is not None else None
        if turn is not None and tool is not None:
            self._finish(work, turn, tool, event, end, output)
            return
        for i, pending in enumerate(work.loose):
            if pending.tool.key == event.call:
                del work.loose[i]
                self._complete(pending.tool, event, end, output)
                self.settler.loose_call(work, pending, muted=False)
                return
        if not self.ledger.known(ledger_id("tool", event.call)):
            work.early[event.call] = OpenTool(
                key=event.call,
                start=event.start,
                end=end,
                duration=event.duration,
                source=event.source,
                status=event.status,
                error_type=event.error_type,
                exit_code=event.exit_code,
                output=output,
            )
            if len(work.early) > WINDOW:
                del work.early[next(iter(work.early))]
            return
        for i, pending in enumerate(work.late):
            if pending.tool.key == event.call:
                del work.late[i]
                self._complete(pending.tool, event, end, output)
                self.settler.late_call(work, pending)
                return

    def _finish(
        self,
        work: Work,
        turn: OpenTurn,
        tool: OpenTool,
        result: OpenTool | Returned,
        end: int,
        output: bytes | None,
    ) -> None:
        del turn.tools[tool.key]
        self._complete(tool, result, end, output)
        if end > turn.last:
            turn.last = end
        if end > turn.ready:
            turn.ready = end
        self.settler.tool_call(work, turn, tool)

    @staticmethod
    def _complete(tool: OpenTool, result: OpenTool | Returned, end: int, output: bytes | None) -> None:
        tool.status, tool.end = result.status, end
        if result.error_type != tool.error_type:
            tool.error_type = result.error_type
        if result.exit_code != tool.exit_code:
            tool.exit_code = result.exit_code
        if output is not None or tool.output is not None:
            tool.output = output
        if result.start:
            tool.start = result.start
        duration = result.duration if result.duration is not None else tool.duration
        if duration is not None:
            # What the agent states is the run itself; the times around it hold waiting as well.
            tool.start = max(0, end - duration)
            tool.source = result.source or "stated"
        elif result.source != tool.source:
            tool.source = result.source
        # Clocks run backwards in files: a span never ends before it starts.
        if tool.start > end:
            tool.start = end

    # -------------------------------------------------------------- totals and notes

    def measured(self, work: Work, event: Measured) -> None:
        usage, cost = None, None
        if event.usage is not None:
            usage, work.measured = self._grown(event.usage, work.measured), event.usage
        if event.cost is not None:
            before = work.measured_cost or 0.0
            cost = event.cost - before if event.cost >= before else event.cost
            work.measured_cost = event.cost
        turn = _around(work, event.time)
        if turn is not None and turn.copy and not (turn.fresh or turn.models):
            return
        if (usage is not None and usage.total()) or cost:
            time = event.time or work.last
            provider = work.context.provider
            cost, source = self.settler.priced(event.model, provider, usage, cost, time, several=True)
            self.settler.added(work, turn, event.model, usage, cost, source, time)

    @staticmethod
    def _grown(total: Usage, before: Usage | None) -> Usage:
        if before is None or total.total() < before.total():
            return total
        return total.beyond(before)

    def noted(self, work: Work, event: Noted) -> None:
        turn = _around(work, event.time)
        if event.kind == "limit":
            window, used = event.attrs.get("window"), event.attrs.get("used")
            known = window in work.limits or len(work.limits) < WINDOW
            if known and isinstance(window, str) and isinstance(used, int | float):
                work.limits[window] = float(used)
        if turn is not None and not turn.copy and len(turn.events) < WINDOW:
            attrs = dict(event.attrs)
            if event.error_type:
                attrs["error.type"] = event.error_type
            turn.events.append(SpanEvent(event.kind, event.time or turn.last, attrs))
        if event.kind in ("compaction", "provider_error", "incomplete"):
            self.settler.occurred(work, turn, event.kind, event.error_type, event.time or work.last)


def kept(content: Raw, most: int = SHOWN) -> bytes:
    """What of a content is kept until it is shown; a copy, since a Raw does not outlive its buffer."""
    whole = memoryview(content)
    return bytes(whole) if len(whole) <= most else bytes(whole[:SHOWN])


def _before(turn: OpenTurn, time: int) -> bool:
    """Whether what is repeated was part of an earlier turn: a copy of the file is read while this one is open."""
    return 0 < time < turn.start


def reopen(turn: OpenTurn) -> None:
    """More came after what looked like the turn's end."""
    if turn.rests or turn.ends:
        turn.ends = turn.rests = False
    if turn.marked or turn.status != "pending" or turn.error_type:
        turn.marked, turn.status, turn.error_type = 0, "pending", ""


def _around(work: Work, time: int) -> OpenTurn | None:
    """The turn that something without a turn of its own belongs to: the open one, or one that
    closed after it."""
    if work.turn is not None:
        return work.turn
    last = work.waiting[-1] if work.waiting else None
    return last if last is not None and time <= last.closed else None

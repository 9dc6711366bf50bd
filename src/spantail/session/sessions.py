"""Events in, settled things out. Pure: no clock of its own, no I/O.

The illusion kept here: it does not matter when or in which pieces records were read. A turn closes
where the records' own times say so; the clock (`settle(now)`) only notices earlier what the next
record would prove. Two moments are told apart:

- *closing* a turn is decided while events are applied, by times in records alone;
- *settling* it is done in `settle`, which the loop calls when everything written so far has been
  read, so that a subagent's file that is read after its parent's still finds its turn.

Longer than 400 lines: every kind of event has its method here, and they share the rules for closing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

from msgspec import structs

from spantail.model import (
    Called,
    Closed,
    Context,
    Ended,
    Event,
    Link,
    Linked,
    Measured,
    Noted,
    Outcome,
    Prompted,
    Replied,
    Returned,
    RunEnded,
    RunStarted,
    Started,
    Usage,
)
from spantail.session.busy import Busy
from spantail.session.calls import Calls, kept, reopen
from spantail.session.ids import ledger_id, span_id, trace_id
from spantail.session.nesting import Nesting
from spantail.session.parking import Parking
from spantail.session.seen import Seen
from spantail.session.settle import Ledger, Price, Rules, Settler, exit_of
from spantail.session.work import (
    OPEN,
    WINDOW,
    OpenModelCall,
    OpenTurn,
    Pending,
    Work,
)

NEVER = 1 << 63


class Sessions:
    """All sessions of one group: one agent in one home."""

    def __init__(
        self,
        context: Context,
        rules: Rules,
        ledger: Ledger,
        price: Price,
        project: Callable[[str], str],
        load: Callable[[str], Work | None],
    ) -> None:
        self.context = context
        self.rules = rules
        self.ledger = ledger
        self.project = project
        self.load = load
        self.works: dict[str, Work] = {}
        self.dirty: set[str] = set()
        self.seen = Seen()
        self.parking = Parking()
        """Sessions with open work that are in the state only."""
        self._closing: set[str] = set()
        self.nesting = Nesting(self.work, self.dirty.add, ledger.known)
        self.settler = Settler(rules, ledger, price, self._outer, self._unsettled)
        self.calls = Calls(rules, ledger, self.settler, self._stray, self.nesting)
        self.slugs: dict[str, Any] = {}
        self.depends = False
        """Something of another session was asked for and is not known (yet)."""
        self.open_turns: dict[str, str] = {}
        """Which session has a turn that is not settled yet."""
        self._apply: dict[type[Event], Callable[[Work, Any], None]] = {
            Started: self._started,
            Prompted: self._prompted,
            Replied: self.calls.replied,
            Called: self.calls.called,
            Returned: self.calls.returned,
            Linked: self._linked,
            Measured: self.calls.measured,
            Noted: self.calls.noted,
            Closed: self._closed,
            Ended: self._ended,
        }

    # ------------------------------------------------------------------------------- doors

    def apply(self, events: Iterable[Event], arrival: int = 0) -> None:
        """`arrival`: when they were read, if they had only just been written."""
        works, methods, dirty, seen = self.works, self._apply, self.dirty, self.seen
        for event in events:
            key = event.session
            work = works.get(key) or self.work(key)
            last, time = work.last, event.time
            kind = type(event)
            if time > last:
                turn = work.turn
                if turn is None:
                    if work.run:
                        self._silence(work, time)
                # Blocks of one reply bear the times at which they were complete, and may be far apart.
                elif not (models := turn.models) or not (
                    (kind is Replied and event.call in models)  # type: ignore[attr-defined]
                    or (kind is Called and event.model_call in models)  # type: ignore[attr-defined]
                ):
                    self._silence(work, time)
                methods[kind](work, event)
                work.last = time
            else:
                methods[kind](work, event)
            dirty.add(key)
            if arrival:
                seen[key] = arrival
            elif seen and key in seen:
                # Written while nobody looked, by the clock that it was written by before.
                seen[key] += work.last - last

    def just_closed(self) -> bool:
        """Whether records have closed turns since the last settlement. Those closed after this can be spared by it."""
        closed, self._closing = bool(self._closing), set()
        return closed

    def settle(self, now: int, *, spare: bool = False) -> None:
        """Everything written so far has been read: settle what is closed or has been silent."""
        spared, self._closing = self._closing if spare else (), set()
        # By a clock that was put back none of the parked ones' times is true any more.
        late = NEVER if self.seen.ask(now) else now
        if 0 < self.parking.soonest <= late:
            for key in self.parking.due(late):
                self.work(key)
        for work in list(self.works.values()):  # a subagent at work keeps the turn around it awake
            if work.parent and work.turn is not None:
                self.dirty.update(self.nesting.keep_awake(work, self.seen))
        for work in list(self.works.values()):
            if work.turn is not None or work.run or work.loose:
                self._silence(work, self.seen.at(work, now))
        nested = [work for work in self.works.values() if work.parent]
        while sum(self._bind_open(work) for work in nested):
            pass  # what was led to its turn may be what another one waits for
        # Subagents first: their calls belong to the sums of what closes around them.
        for work in nested:
            if work.waiting:
                self._settle_waiting(work, self.seen.at(work, now), spared)
        for work in list(self.works.values()):
            if work.waiting and not work.parent:
                self._settle_waiting(work, self.seen.at(work, now), spared)
        self._closing = set()

    def _bind_open(self, work: Work) -> bool:
        unbound = [turn for turn in (work.turn, *work.waiting) if turn is not None and not turn.trace]
        return sum(self._bind(work, turn) for turn in unbound) > 0

    def settled(self) -> int:
        """How much waits to be taken."""
        return len(self.settler.out)

    def take(self) -> list[Outcome]:
        out, self.settler.out = self.settler.out, []
        return out

    def changed(self) -> list[Work]:
        """The rows to save with the commit; those at rest leave the memory with it."""
        works = [self.works[key] for key in self.dirty if key in self.works]
        for work in works:
            work.seen = self.seen.get(work.key, 0)
        self.dirty.clear()
        return works

    def leave_to_state(self) -> None:
        """After a commit: what is between two turns need not be in memory."""
        idle = [
            work
            for key, work in self.works.items()
            if not (work.turn or work.waiting or work.loose) and key not in self.dirty
        ]
        for work in idle:
            if not work.run:
                del self.works[work.key]
                self.seen.pop(work.key, None)
        outer = self._outer_sessions()
        for work in idle:
            if work.run and work.key not in outer:
                self.park(work.key)

    def deadline(self) -> int:
        """When the clock alone would next settle something; 0 if never."""
        soonest = self.parking.soonest
        for work in self.works.values():
            when = self._when(work)
            if when:
                soonest = min(soonest, when) if soonest else when
        return soonest

    def _when(self, work: Work) -> int:
        rules, turn = self.rules, work.turn
        if turn is not None:
            at = turn.end(work.over)
            when = at + rules.grace if at else work.last + (rules.stale if turn.at_work() else rules.idle)
            for call in turn.models.values():
                if call.final:
                    when = min(when, call.end + rules.grace)
        elif work.loose:
            when = work.last + rules.stale
        elif work.run:
            when = work.last + rules.idle
        else:
            return 0
        return when + self.seen.get(work.key, work.last) - work.last

    def silent(self) -> list[tuple[int, str]]:
        """Sessions whose row in the state is all there is of them, with the time of their last record."""
        outer = self._outer_sessions()
        return [
            (self.seen.get(key, work.last), key)
            for key, work in self.works.items()
            if key not in self.dirty and key not in outer and not work.waiting
        ]

    def _outer_sessions(self) -> set[str]:
        """Those with a subagent in memory, which keeps them awake."""
        return {work.parent for work in self.works.values() if work.parent}

    def park(self, key: str) -> None:
        """Leaves a session to the state until a record of it comes, or the clock has something to settle."""
        work = self.works.pop(key)
        self.parking.add(work, self._when(work))

    def work(self, key: str) -> Work:
        work = self.works.get(key)
        if work is None:
            self.parking.take(key)
            work = self.load(key) or Work(key=key, context=structs.replace(self.context, conversation=key))
            self.works[key] = work
        return work

    def _outer(self, turn: OpenTurn) -> OpenTurn | None:
        """For sums: what is added to the turn around a subagent's has to be saved with it."""
        found = self.nesting.outer(turn)
        if found is not None:
            self.dirty.add(turn.outer_session)
        return found

    def _unsettled(self, turn: OpenTurn) -> Iterator[tuple[Work, OpenModelCall]]:
        """Calls of subagents that ended before the turn closed, and wait for a record to settle them."""
        for key in self.parking.nested(turn.trace):
            self.work(key)
        for work in self.works.values():
            inner = work.turn
            if not work.parent or inner is None or not inner.models:
                continue
            at: OpenTurn | None = inner
            while at is not None and at.key != turn.key:
                at = self.nesting.outer(at)
            if at is turn:
                yield from ((work, call) for call in inner.models.values() if call.end <= turn.closed)

    def restore(self, work: Work) -> None:
        """Open work from the state goes on."""
        self.works[work.key] = work
        self.seen.restore(work)
        for turn in (work.turn, *work.waiting):
            if turn is not None and not turn.original:
                self.open_turns[turn.key] = work.key

    def give_up(self, work: Work) -> None:
        """Open work of which nothing more can be known is over."""
        self.restore(work)
        self.dirty.add(work.key)
        if work.turn is not None:
            self._close(work, work.last)

    # ----------------------------------------------------------------------------- silence

    def _silence(self, work: Work, time: int) -> None:
        """What the time between the last record and `time` proves."""
        rules, turn = self.rules, work.turn
        if turn is not None:
            # A reply that is complete gets no more records after a while: its tools may run for hours.
            for call in turn.models.values():
                if call.final and time > call.end + rules.grace:
                    self._settle_complete(work, turn, time)
                    break
            end = turn.end(work.over) if turn.marked or turn.ends or turn.rests else 0
            if end:
                if time > end + rules.grace:
                    self._close(work, end + rules.grace)
            elif time > work.last + (rules.stale if turn.at_work() else rules.idle):
                self._close(work, work.last)
            elif not work.loose:
                return
        if work.loose and time > work.last + rules.stale:
            for pending in work.loose:
                self.settler.loose_call(work, pending, muted=False)
            work.loose = []
            self.dirty.add(work.key)
        if work.run and work.turn is None and not work.loose and time > work.last + rules.idle:
            self._end_run(work, work.last)

    def _settle_complete(self, work: Work, turn: OpenTurn, time: int) -> None:
        for call in list(turn.models.values()):
            if call.final and time > call.end + self.rules.grace:
                del turn.models[call.key]
                self.settler.model_call(work, turn, call)
        self.dirty.add(work.key)

    def _end_run(self, work: Work, time: int) -> None:
        if work.run > 0:
            self.settler.out.append(RunEnded(context=work.context, time=time, exit=work.exit))
        work.run = 0
        self.dirty.add(work.key)

    def _begin_run(self, work: Work, turn: OpenTurn) -> None:
        # A fork is a session of its own from its first own turn on; a copy that gets none never is.
        if work.parent or work.run > 0 or turn.copy:
            return
        run = ledger_id("run", f"{work.key}\n{turn.key}")
        if turn.muted or self.ledger.known(run):
            work.run = -1
            return
        self.ledger.add(run)
        work.run = turn.start or 1
        self.settler.out.append(RunStarted(context=work.context, time=turn.start))

    # ------------------------------------------------------------------------------- turns

    def _started(self, work: Work, event: Started) -> None:
        context, changes = work.context, {}
        for field in ("branch", "version", "provider", "conversation", "cwd"):
            value = getattr(event, field)
            if value and value != getattr(context, field):
                changes[field] = value
        if "cwd" in changes:
            changes["project"] = self.project(changes["cwd"])
        if event.parent and not work.parent and not self.nesting.inside(event.parent, work.key):
            work.parent = event.parent
            outer = self.work(event.parent).context
            for field in ("conversation", "cwd", "project", "branch", "version"):
                if getattr(outer, field) and field not in changes:
                    changes[field] = getattr(outer, field)
            changes["conversation"] = outer.conversation
        if changes:
            work.context = structs.replace(context, **changes)
        work.name = event.name or work.name
        work.agent_id = event.agent_id or work.agent_id
        if event.slug and not work.slug:
            work.slug = event.slug
        if event.copied_from != work.key:
            work.copied_from = event.copied_from or work.copied_from

    def _open(self, work: Work, key: str, time: int, *, human: bool) -> OpenTurn:
        turn = OpenTurn(
            key=key,
            start=time,
            last=time,
            human=human,
            ready=time,
            usage=Usage(),
            model_busy=Busy(),
            tool_busy=Busy(),
            copy=self.ledger.known(ledger_id("turn", key)),
            muted=time < self.rules.since,
        )
        if not work.parent:
            turn.trace = trace_id(work.context.agent, key)
            turn.span = span_id(turn.trace, key)
            if human:
                work.turns += 1
            turn.index = work.turns
        owner = self.open_turns.setdefault(key, work.key)
        if owner != work.key:
            turn.copy, turn.original = True, owner
        work.turn = turn
        return turn

    def _prompted(self, work: Work, event: Prompted) -> None:
        for turn in (work.turn, *work.waiting):
            if turn is not None and turn.key == event.turn:
                turn.name(event.alias)
                self._keep(turn, event)
                return
        open_turn = work.turn
        if open_turn is not None:
            if not event.human:
                # A notice to the model is no prompt: the loop that runs goes on with it.
                reopen(open_turn)
                open_turn.ready = max(open_turn.ready, event.time)
                open_turn.name(event.alias)
                return
            if open_turn.waits_for_prompt(event.time):
                self._adopt(work, open_turn, event)
                return
            if 0 < event.time < open_turn.start and self.ledger.known(ledger_id("turn", event.turn)):
                return  # an old stretch of the file was written again
            self._close(work, event.time)
        self._begin(work, event)

    def _begin(self, work: Work, event: Prompted) -> OpenTurn:
        turn = self._open(work, event.turn, event.time, human=event.human)
        turn.outer, turn.unseen = event.outer, event.unseen
        turn.name(event.alias or event.outer)
        self._keep(turn, event)
        if work.parent:
            self.nesting.take_link(work, turn)
            self._bind(work, turn)
            return turn
        self._begin_run(work, turn)
        # Turns that wait to be settled will give this one its link.
        if work.copied_from and work.root is None and not work.waiting:
            self._origin(work, turn)
        if work.slug:
            self._plan(work, turn, implements=event.implements)
        return turn

    def _keep(self, turn: OpenTurn, event: Prompted) -> None:
        if self.rules.keep_content and event.content is not None and turn.content is None:
            turn.content = kept(event.content)

    def _adopt(self, work: Work, turn: OpenTurn, event: Prompted) -> None:
        calls, tools, ready = turn.models, turn.tools, turn.ready
        marks = (turn.ends, turn.rests, turn.marked, turn.status, turn.error_type, turn.last)
        adopted = self._begin(work, event)
        for call in calls.values():
            call.start = min(call.start, event.time)
        adopted.models, adopted.tools, adopted.ready = calls, tools, ready
        (adopted.ends, adopted.rests, adopted.marked, adopted.status, adopted.error_type, adopted.last) = (
            marks
        )

    def _origin(self, work: Work, turn: OpenTurn) -> None:
        """A fork's first own turn links to the turn after which it was made."""
        origin = self.work(work.copied_from)
        before = [
            t for t in (*origin.past, *origin.waiting, origin.turn) if t is not None and t.start < turn.start
        ]
        self.depends |= not before
        if before:
            last = max(before, key=lambda t: t.start)
            turn.links.append(Link(last.trace, last.span, "original"))

    def _plan(self, work: Work, turn: OpenTurn, *, implements: bool) -> None:
        """Sessions of one slug: the one that implements a plan links back to the plan's turn."""
        if not implements:
            self.slugs[work.slug] = (turn.trace, turn.span)
            while len(self.slugs) > 4 * WINDOW:
                del self.slugs[next(iter(self.slugs))]
            return
        plan = self.slugs.get(work.slug)
        self.depends |= plan is None
        if plan is not None and plan[0] != turn.trace:
            turn.links.append(Link(plan[0], plan[1], "plan"))

    def _stray(self, work: Work, key: str, time: int) -> OpenTurn:
        """Work without a turn: calls before the first prompt or after a turn's end."""
        turn = self._open(work, "work\n" + key, time, human=False)
        if work.parent:
            self.nesting.take_link(work, turn)
            self._bind(work, turn)
        else:
            self._begin_run(work, turn)
        return turn

    def _bind(self, work: Work, turn: OpenTurn) -> bool:
        if not self.nesting.bind(work, turn):
            return False
        self.settler.release(work, turn)
        self.dirty.add(work.key)
        return True

    def _close(self, work: Work, time: int) -> None:
        """The turn is over at `time`; it is settled when all written by then has been read."""
        turn = work.turn
        assert turn is not None
        work.turn = None
        self.dirty.add(work.key)
        if turn.repair is None:
            turn.repair = work.repair
        for call in turn.models.values():
            call.usage = call.repaired(turn.repair)
            self.settler.model_call(work, turn, call)
        turn.models = {}
        if turn.marked and turn.trace:
            for tool in turn.tools.values():
                work.loose.append(Pending(tool, turn.trace, span_id(turn.trace, tool.key), turn.span))
            while len(work.loose) > OPEN:
                self.settler.loose_call(work, work.loose.pop(0), muted=False)
        elif turn.marked or turn.tools or not (turn.ends or turn.rests):
            for tool in turn.tools.values():
                tool.end = max(tool.start, turn.last)
                self.settler.tool_call(work, turn, tool)
        elif turn.status == "pending":
            turn.status = "ok"
        turn.tools = {}
        turn.closed = max(time, turn.last)
        turn.context = work.context
        turn.exit = exit_of(turn.status, turn.error_type)
        if turn.human and not work.parent:
            work.exit = turn.exit
        work.waiting.append(turn)
        self._closing.add(turn.key)
        if len(work.waiting) > OPEN:
            self._settle_first(work)

    def _settle_first(self, work: Work) -> None:
        """Too many wait: the oldest is settled as far as it is known."""
        turn = work.waiting.pop(0)
        if work.parent and turn.trace:
            self.nesting.hang(turn)
        elif work.parent:
            self.settler.orphan(work, turn)
        self.settler.turn(work, turn)
        if self.open_turns.get(turn.key) == work.key:
            del self.open_turns[turn.key]

    def _settle_waiting(self, work: Work, now: int, spared: Collection[str]) -> None:
        keep = []
        for turn in work.waiting:
            if turn.key in spared:
                keep.append(turn)
            elif not work.parent:
                self.settler.turn(work, turn)
            elif turn.trace and (self.nesting.tied(turn) or not self.nesting.may_come(work, turn)):
                self.nesting.hang(turn)
                self.settler.turn(work, turn)
            elif not turn.trace and (now > turn.closed + self.rules.idle):
                self.settler.orphan(work, turn)
                self.settler.turn(work, turn)
            else:
                keep.append(turn)
        for turn in work.waiting:
            if turn not in keep and self.open_turns.get(turn.key) == work.key:
                del self.open_turns[turn.key]
        work.waiting = keep
        self.dirty.add(work.key)

    def _closed(self, work: Work, event: Closed) -> None:
        turn = work.turn
        if turn is None or (event.turn and event.turn != turn.key):
            return
        turn.last = max(event.time, turn.last)
        turn.status, turn.error_type = event.status, event.error_type
        turn.word = event.word or turn.word
        if event.rests:
            turn.rests = True
        else:
            turn.marked = turn.last

    def _ended(self, work: Work, event: Ended) -> None:
        turn = work.turn
        if turn is not None:
            self._close(work, event.time or work.last)
            if turn.copy and not turn.fresh:
                return  # the end of a run that was counted before
        if event.exit:
            work.exit = event.exit
            if work.waiting and not work.parent:
                work.waiting[-1].exit = event.exit
                work.waiting[-1].word = event.word or work.waiting[-1].word
        if work.run:
            self._end_run(work, event.time or work.last)

    def _linked(self, work: Work, event: Linked) -> None:
        if event.usage is not None:
            work.repair = event.usage
            if work.turn is not None:
                work.turn.repair = event.usage
        over = event.time if event.over else 0
        self.nesting.link(work, event.parent or work.parent, event.call, event.turn, over)

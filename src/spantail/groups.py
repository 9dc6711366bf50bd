"""The sessions of all groups, and what of them goes into a commit and onto the page."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection

import msgspec
from msgspec import Struct

from spantail.model import SECOND, Context, Outcome
from spantail.session.sessions import Sessions
from spantail.session.settle import Price, Rules
from spantail.session.work import SHAPE, Work, remains
from spantail.state import families as f
from spantail.state.guard import Guard
from spantail.state.ledger import Ledger
from spantail.state.store import DAY, Changes, Store
from spantail.state.totals import Gauges
from spantail.tail.source import Source


class Left(Struct, array_like=True, gc=False):
    """What another process has left of a session, ready for the state: at rest it is not even opened here."""

    key: str
    last: int
    row: bytes
    at_rest: bool


def left(work: Work) -> Left:
    return Left(work.key, work.last, msgspec.msgpack.encode(work), work.at_rest())


class Group:
    def __init__(self, id_: int, sessions: Sessions, ledger: Ledger, adopted: dict[str, Left]) -> None:
        self.id = id_
        self.sessions = sessions
        self.ledger = ledger
        self.adopted = adopted
        """Sessions at rest that another process has read, until they are committed."""


class Groups:
    def __init__(
        self,
        store: Store,
        rules: Rules,
        price: Price,
        project: Callable[[str], str],
        guard: Guard,
        context_limit: Callable[[str, str], int | None] = lambda _model, _provider: None,
        most: int = 10_000,
    ) -> None:
        """`most`: sessions with open work that are held in memory."""
        self._most = most
        self._store = store
        self._rules = rules
        self._price = price
        self._project = project
        self._guard = guard
        self._context_limit = context_limit
        self._groups: dict[str, Group] = {}
        self.strange = False
        """Whether there is work of another shape; see remake."""

    def of(self, source: Source) -> Sessions:
        group = self._groups.get(source.group)
        if group is None:
            group = self._groups[source.group] = self._load(source)
        return group.sessions

    def _load(self, source: Source) -> Group:
        id_, memory = self._store.group(source.group)
        ledger = self._store.ledger(id_)
        context = Context(agent=source.format.agent, provider=source.format.provider, user=source.user)

        adopted: dict[str, Left] = {}

        def load(session: str) -> Work | None:
            if session in adopted:
                return _decoded(SHAPE, adopted[session].row)
            row = self._store.work(id_, session)
            return None if row is None else _decoded(*row)

        sessions = Sessions(context, self._rules, ledger, self._price, self._project, load)
        if memory is not None:
            sessions.slugs = msgspec.msgpack.decode(memory, type=dict[str, tuple[bytes, bytes]])
        for _, shape, blob in self._store.works(id_):
            work = _decoded(shape, blob)
            self.strange |= work is None
            if work is not None and not work.at_rest():
                sessions.restore(work)
                if not (work.turn or work.waiting or work.loose):
                    sessions.park(work.key)
        return Group(id_, sessions, ledger, adopted)

    def longest_silence(self) -> int:
        """What is silent for longer has nothing open."""
        return max(self._rules.idle, self._rules.stale)

    def left(self, source: Source, session: str) -> Work | None:
        """What can be told of a session's row, whatever its shape."""
        self.of(source)
        row = self._store.work(self._groups[source.group].id, session)
        return None if row is None else remains(row[1])

    def give_up_strange(self) -> None:
        """Turns that another version left open and whose records are gone are closed as pending."""
        for group in self._groups.values():
            for key, shape, blob in self._store.works(group.id):
                if key in group.sessions.works or _decoded(shape, blob) is not None:
                    continue
                left = remains(blob)
                if left is not None and not left.at_rest():
                    group.sessions.give_up(left)

    def adopt(
        self, source: Source, ids: bytes, lefts: list[Left], slugs: dict[str, tuple[bytes, bytes]]
    ) -> bool:
        """Takes a unit that was read without knowledge of the others; False if it repeats them."""
        sessions = self.of(source)
        group = self._groups[source.group]
        new = array("q")
        new.frombytes(ids)
        works = [msgspec.msgpack.decode(one.row, type=Work) for one in lefts if not one.at_rest]
        turns = [turn.key for work in works for turn in (work.turn, *work.waiting) if turn is not None]
        if group.ledger.known_any(new) or any(key in sessions.open_turns for key in turns):
            return False
        group.ledger.add_all(new)
        for work in works:
            sessions.restore(work)
            sessions.dirty.add(work.key)
        group.adopted.update((one.key, one) for one in lefts if one.at_rest)
        sessions.slugs.update(slugs)
        return True

    def wake(self, sources: list[Source]) -> None:
        """Open work of the groups there are goes on, even if their files do not change or are gone."""
        for source in {source.group: source for source in sources}.values():
            if self._store.knows(source.group):
                self.of(source)

    def settle(self, now: int, *, spare: bool = False, but: Collection[str] = ()) -> None:
        """`but`: groups of which not all is read that was written by then."""
        for name, group in self._groups.items():
            if name not in but:
                group.sessions.settle(now, spare=spare)

    def just_closed(self) -> bool:
        return sum(group.sessions.just_closed() for group in self._groups.values()) > 0

    def deadline(self) -> int:
        times = [at for group in self._groups.values() if (at := group.sessions.deadline())]
        return min(times, default=0)

    def pending(self) -> bool:
        return any(group.sessions.dirty or group.sessions.settled() for group in self._groups.values())

    def gather(self, changes: Changes, now: int) -> list[Outcome]:
        """What is to be written, and what was settled since the last commit, in order."""
        outcomes: list[Outcome] = []
        day = now // SECOND // DAY
        for group in self._groups.values():
            sessions = group.sessions
            outcomes += sessions.take()
            changes.works += [(group.id, key, SHAPE, one.last, one.row) for key, one in group.adopted.items()]
            works = sessions.changed()
            changes.works += [
                (group.id, work.key, SHAPE, work.last, msgspec.msgpack.encode(work)) for work in works
            ]
            ids = group.ledger.take_new()
            if ids:
                changes.ledger.append((group.id, day, ids))
            if (works or group.adopted) and sessions.slugs:
                changes.groups.append((msgspec.msgpack.encode(sessions.slugs), group.id))
        return outcomes

    def committed(self) -> None:
        for group in self._groups.values():
            group.adopted.clear()
            group.sessions.leave_to_state()
        self._make_room()

    def _make_room(self) -> None:
        """Past the limit those that were silent longest are left to the state, a tenth more than needed."""
        excess = sum(len(group.sessions.works) for group in self._groups.values()) - self._most
        if excess > 0:
            silent = [
                (at, key, name) for name, group in self._groups.items() for at, key in group.sessions.silent()
            ]
            for _, key, name in sorted(silent)[: excess + self._most // 10]:
                self._groups[name].sessions.park(key)

    # -------------------------------------------------------------------------------- gauges

    def gauges(self) -> Gauges:
        active: dict[tuple[str, ...], float] = {}
        tools: dict[tuple[str, ...], float] = {}
        oldest_tool: dict[tuple[str, ...], float] = {}
        oldest_turn: dict[tuple[str, ...], float] = {}
        context: dict[tuple[str, ...], float] = {}
        limits: dict[tuple[str, ...], float] = {}
        rates: dict[tuple[str, ...], float] = {}
        guard = self._guard.value
        for group in self._groups.values():
            # All sessions of a home share its account, so the one that spoke last knows its limits.
            said: dict[tuple[str, str], tuple[int, float]] = {}
            agent = guard("agent", group.sessions.context.agent)
            for window, (last, used, _) in group.sessions.parking.limits.items():
                key = (agent, guard("window", window))
                said[key] = max((last, used), said.get(key, (0, 0.0)))
            for parked in group.sessions.parking.at_work.values():
                owner = (agent, guard("project", parked.project))
                active[owner] = active.get(owner, 0.0) + 1.0
                _least(oldest_turn, (agent,), parked.start / SECOND)
            for work in group.sessions.works.values():
                agent = guard("agent", work.context.agent)
                project = guard("project", work.context.project)
                for window, used in work.limits.items():
                    key = (agent, guard("window", window))
                    said[key] = max((work.last, used), said.get(key, (0, 0.0)))
                turn = work.turn
                if turn is None:
                    continue
                if not work.parent:
                    active[agent, project] = active.get((agent, project), 0.0) + 1.0
                    _least(oldest_turn, (agent,), turn.start / SECOND)
                for tool in turn.tools.values():
                    name = guard("tool", tool.name)
                    tools[agent, name] = tools.get((agent, name), 0.0) + 1.0
                    _least(oldest_tool, (agent,), tool.start / SECOND)
                if work.context_tokens:
                    model = guard("model", work.context_model)
                    place = (agent, project, model)
                    context[place] = max(context.get(place, 0.0), float(work.context_tokens))
                    limit = self._context_limit(work.context_model, work.context.provider)
                    if limit:
                        limits[(model,)] = float(limit)
            for key, (_, used) in said.items():
                rates[key] = max(used, rates.get(key, 0.0))
        return {
            f.ACTIVE_SESSIONS: active,
            f.OPEN_TOOL_CALLS: tools,
            f.OLDEST_TOOL_CALL: oldest_tool,
            f.OLDEST_TURN: oldest_turn,
            f.CONTEXT_TOKENS: context,
            f.CONTEXT_LIMIT: limits,
            f.RATE_LIMIT: rates,
        }


def _least(of: dict[tuple[str, ...], float], key: tuple[str, ...], value: float) -> None:
    of[key] = min(value, of.get(key, value))


def _decoded(shape: int, blob: bytes) -> Work | None:
    """Open work of another shape is made again; see remake."""
    if shape != SHAPE:
        return None
    try:
        return msgspec.msgpack.decode(blob, type=Work)
    except msgspec.MsgspecError:
        return None

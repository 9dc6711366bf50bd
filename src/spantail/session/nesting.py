"""Leads a subagent's turn to the turn around it, and its span to the tool call that started it.

A subagent's calls need the trace, so they wait until the outer turn is known; only the subagent's
own span waits for the tool call. Nothing here depends on which of the two files is read first.
"""

from __future__ import annotations

from collections.abc import Callable

from spantail.session.ids import ledger_id, span_id
from spantail.session.work import WINDOW, OpenTurn, PastTurn, Work


class Nesting:
    def __init__(
        self, work: Callable[[str], Work], changes: Callable[[str], None], known: Callable[[int], bool]
    ) -> None:
        self.work = work
        self.changes = changes
        self.known = known
        """Whether something is in the ledger."""

    def outer(self, turn: OpenTurn) -> OpenTurn | None:
        """The turn around a subagent's turn, while it is open or waits to be settled."""
        if not turn.outer_turn:
            return None
        around = self.work(turn.outer_session)
        for at in (around.turn, *around.waiting):
            if at is not None and at.key == turn.outer_turn:
                return at
        return None

    def inside(self, inner: str, outer: str) -> bool:
        """Whether `inner` is `outer` or nested in it; files that name each other must not make a ring."""
        while inner:
            if inner == outer:
                return True
            inner = self.work(inner).parent
        return False

    def open_in(self, origin: str, call: str) -> bool:
        """Whether a call of a copied turn is still open in the original, or one that a subagent's file repeats in
        the session around it: then it is not this session's."""
        at = self.work(origin).turn
        return at is not None and (call in at.models or call in at.tools)

    def counted(self, work: Work, call: str) -> Work:
        """The session in which a call was counted: a subagent's file can begin with a copy of the history around it."""
        if not work.parent or call in work.recent or call in work.unsure:
            return work
        self.changes(work.parent)
        return self.work(work.parent)

    def keep_awake(self, work: Work, seen: dict[str, int]) -> list[str]:
        """The sessions around a subagent are as awake as it is; those that were not, to be saved."""
        woken: list[str] = []
        around = self.work(work.parent)
        while True:
            if work.last > around.last:
                if work.key in seen:
                    seen[around.key] = seen[work.key]
                elif around.key in seen:  # the subagent's was written while nobody looked
                    seen[around.key] += work.last - around.last
                around.last = work.last
                woken.append(around.key)
            if not around.parent:
                return woken
            around = self.work(around.parent)

    def bind(self, work: Work, turn: OpenTurn) -> bool:
        """Finds the outer turn: by the name the records give it, else by the time it began."""
        around = self.work(work.parent)
        found = self._by_alias(around, turn) if turn.outer else self._by_time(around, turn.start)
        if found is None or not found.trace:
            return False
        turn.outer_session, turn.outer_turn = around.key, found.key
        turn.trace, turn.muted = found.trace, found.muted
        turn.span = span_id(found.trace, turn.key)
        if turn.link_call:
            turn.parent = span_id(found.trace, turn.link_call)
        return True

    @staticmethod
    def _by_alias(around: Work, inner: OpenTurn) -> OpenTurn | PastTurn | None:
        """Several turns can have one name: the latest that had begun, whether or not later ones have been read."""
        alias, found = inner.outer, None
        for turn in (around.turn, *reversed(around.waiting), *reversed(around.past)):
            if turn is not None and (alias == turn.key or alias in turn.aliases):
                found = turn
                if turn.start <= inner.start:
                    break
        return found

    @staticmethod
    def _by_time(around: Work, start: int) -> OpenTurn | PastTurn | None:
        """What begins after a turn's last record, when nothing of it was open, is not its work."""
        turn = around.turn
        if turn is not None and turn.start <= start and not turn.copy:
            over = turn.marked or (turn.ends and not turn.tools)
            return None if over and start > turn.last else turn
        before: list[OpenTurn | PastTurn] = [*reversed(around.waiting), *reversed(around.past)]
        for past in before:
            if past.start <= start <= past.last:
                return past
        return None

    def link(self, work: Work, parent: str, call: str, key: str, over: int) -> None:
        """A tool call started the subagent: its latest turn without a link, or its next one. `over`: when it
        returned, if it has."""
        if over:
            work.over[call] = over
            if len(work.over) > WINDOW:
                del work.over[next(iter(work.over))]
        if call in work.linked:
            return
        work.linked = [*work.linked, call][-WINDOW:]
        for turn in (*work.waiting, work.turn):
            if turn is not None and not turn.link_call and key in ("", turn.key):
                self._tie(turn, parent, call)
                return
        work.links = [*work.links, (parent, call)][-WINDOW:]

    def take_link(self, work: Work, turn: OpenTurn) -> None:
        if work.links:
            parent, call = work.links.pop(0)
            self._tie(turn, parent, call)

    @staticmethod
    def _tie(turn: OpenTurn, parent: str, call: str) -> None:
        turn.link_session, turn.link_call = parent, call
        if turn.trace:
            turn.parent = span_id(turn.trace, call)

    def tied(self, turn: OpenTurn) -> bool:
        """Whether the tool call that started it is named, and on record: of a process that was killed the call can
        be missing, though the subagent says whose it was."""
        call = turn.link_call
        if not call:
            return False
        around = self.work(turn.link_session or turn.outer_session)
        if around.turn is not None and call in around.turn.tools:
            return True
        if any(tool.key == call for at in around.waiting for tool in at.held_tools):
            return True
        return self.known(ledger_id("tool", call)) or any(each.tool.key == call for each in around.loose)

    def may_come(self, work: Work, turn: OpenTurn) -> bool:
        """Whether the tool call that started it may still be named: while the outer turn is open."""
        around = self.work(work.parent)
        return around.turn is not None and around.turn.key == turn.outer_turn

    def hang(self, turn: OpenTurn) -> None:
        """Without a tool call it hangs below the turn around it."""
        if turn.parent and self.tied(turn):
            return
        turn.parent = b""
        at = self.outer(turn)
        if at is not None:
            turn.parent = at.span
            return
        for past in self.work(turn.outer_session).past:
            if past.key == turn.outer_turn:
                turn.parent = past.span
                return

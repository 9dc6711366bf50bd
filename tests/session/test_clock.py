"""The clock decides when a turn settles, also one that is put back in the middle of it."""

from spantail.model import SECOND, Context, Prompted, Replied, Turn
from spantail.session.sessions import Sessions
from spantail.session.settle import Rules
from spantail.state.ledger import Ledger

NOON = 1_800_000_000 * SECOND
HOUR = 3600 * SECOND


def begun() -> Sessions:
    """A turn that has ended, seen at noon; only its grace is not over."""
    sessions = Sessions(
        Context(agent="a"), Rules(), Ledger(), lambda *_, **__: None, lambda cwd: cwd, lambda _: None
    )
    sessions.apply([Prompted(session="s", time=NOON, turn="t")], NOON)
    sessions.apply([Replied(session="s", time=NOON + SECOND, call="c", ends=True)], NOON + SECOND)
    return sessions


def turns(sessions: Sessions) -> int:
    return sum(isinstance(each, Turn) for each in sessions.take())


def test_a_clock_put_back_by_an_hour_delays_by_the_grace_alone():
    """The turn does not stay open until the clock has caught up."""
    sessions = begun()
    sessions.settle(NOON - HOUR)
    assert turns(sessions) == 0
    sessions.settle(NOON - HOUR + SECOND)
    assert turns(sessions) == 0
    sessions.settle(NOON - HOUR + 3 * SECOND)
    assert turns(sessions) == 1


def test_a_clock_asked_before_the_record_came_is_not_put_back():
    """The loop asks, waits, reads: what it settles by is the time before the wait. The grace is not shortened."""
    sessions = begun()
    sessions.settle(NOON - SECOND)
    sessions.settle(NOON + 2 * SECOND)
    assert turns(sessions) == 0
    sessions.settle(NOON + 4 * SECOND)
    assert turns(sessions) == 1

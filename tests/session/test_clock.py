"""The clock decides when a turn settles, also one that is put back in the middle of it."""

from spantail.model import SECOND, Context, Prompted, Replied, Started, Turn
from spantail.session.sessions import Sessions
from spantail.session.settle import Rules
from spantail.state.ledger import Ledger

NOON = 1_800_000_000 * SECOND
HOUR = 3600 * SECOND


def begun() -> Sessions:
    """A turn that has ended, seen at noon; only its grace is not over. The loop asks for the time before it reads."""
    sessions = Sessions(
        Context(agent="a"), Rules(), Ledger(), lambda *_, **__: None, lambda cwd: cwd, lambda _: None
    )
    sessions.settle(NOON)
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


def test_a_machine_that_slept_while_the_loop_waited():
    """What woke it was written after the sleep; the time before it, by which is settled, is old and not put back."""
    sessions = Sessions(
        Context(agent="a"), Rules(), Ledger(), lambda *_, **__: None, lambda cwd: cwd, lambda _: None
    )
    sessions.settle(NOON)
    later = NOON + 8 * HOUR
    sessions.apply([Prompted(session="s", time=later, turn="t")], later)
    sessions.settle(NOON + SECOND)
    sessions.settle(later + SECOND)
    sessions.apply([Replied(session="s", time=later + 2 * SECOND, call="c", ends=True)], later + 2 * SECOND)
    sessions.settle(later + 9 * SECOND)
    (turn,) = (each for each in sessions.take() if isinstance(each, Turn))
    assert (turn.status, turn.end) == ("ok", later + 2 * SECOND)


def test_a_clock_put_back_between_two_lives():
    """The time at which the last record was seen comes from the state, and is one of the old clock."""
    before, after = begun(), begun()
    (work,) = before.changed()
    after.works.clear()
    after.restore(work)
    after.settle(NOON - HOUR)
    after.settle(NOON - HOUR + 3 * SECOND)
    assert turns(after) == 1


def test_what_a_subagent_wrote_while_nobody_looked_makes_no_silence():
    """The session around it was seen before the restart; how far its clock is off does not change by the subagent."""
    sessions = begun()
    sessions.apply([Started(session="s/a", time=NOON + 2 * SECOND, parent="s")])
    sessions.apply([Prompted(session="s/a", time=NOON + 2 * SECOND, turn="a", outer="t")])
    sessions.settle(NOON + 2 * SECOND + SECOND // 2)
    assert turns(sessions) == 0
    sessions.settle(NOON + 4 * SECOND)
    assert turns(sessions) == 1

from __future__ import annotations

import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spantail.model import SECOND
from spantail.state.families import (
    ACTIVE_SESSIONS,
    COMPACTIONS,
    LAG,
    OUTBOX_DROPPED,
    READ_BYTES,
    TOOL_CALLS,
    TOOL_DURATION,
    TOOL_ERRORS,
    Family,
)
from spantail.state.series import Distribution, Exemplar, Row
from spantail.state.totals import Totals

HOLD = 90 * SECOND
T0 = 1_700_000_000 * SECOND
OK = ("a", "p", "Bash", "ok")
FAILED = ("a", "p", "Bash", "error")
A = ("a", "p")


class State:
    """The rows as the SQLite file would keep them, and the process that can be killed over it."""

    def __init__(self, hold: int = HOLD) -> None:
        self.rows: dict[tuple[str, str], Row] = {}
        self.hold = hold
        self.asked = 0
        self.totals = self.start()

    def start(self) -> Totals:
        """A new process over what is committed."""
        self.totals = Totals(self.hold, self._ask)
        assert self.totals.load(self.rows.values()) == 0
        return self.totals

    def _ask(self) -> None:
        self.asked += 1

    def commit(self) -> None:
        self.transaction()
        self.totals.committed()

    def transaction(self) -> None:
        for row in self.totals.rows():
            self.rows[row.family, row.labels] = row

    def see(self, now: int, family: Family, *, scraper: bool = True) -> dict:
        return {
            point.labels: point.value
            for found, points in self.totals.snapshot(now, scraper=scraper)
            if found is family
            for point in points
        }


def test_a_page_shows_committed_totals_only():
    """What is counted is on no page, for nobody, before its commit."""
    state = State(hold=0)
    state.totals.add(COMPACTIONS, A, 1, T0)
    assert state.see(T0, COMPACTIONS, scraper=False) == {}
    state.commit()
    state.totals.add(COMPACTIONS, A, 1, T0)
    assert state.see(T0, COMPACTIONS, scraper=False) == {A: 1.0}
    state.commit()
    assert state.see(T0, COMPACTIONS) == {A: 2.0}


def test_what_is_counted_during_a_transaction_belongs_to_the_next():
    """Between `rows` and `committed` the loop may count on; the page shows what the transaction took."""
    state = State(hold=0)
    state.totals.add(COMPACTIONS, A, 1, T0)
    state.transaction()
    state.totals.add(COMPACTIONS, A, 10, T0)
    state.totals.observe(TOOL_DURATION, ("a", "Bash"), 1.0, T0)
    state.totals.committed()
    assert state.see(T0, COMPACTIONS) == {A: 1.0}
    assert state.see(T0, TOOL_DURATION) == {}
    state.commit()
    assert state.see(T0, COMPACTIONS) == {A: 11.0}
    assert not state.totals.pending()


def test_a_failed_commit_keeps_its_changes_for_the_next():
    """After a rollback nothing is shown, and the next transaction takes everything."""
    state = State(hold=0)
    state.totals.add(COMPACTIONS, A, 2, T0)
    state.totals.rows()
    state.totals.rolled_back()
    assert state.see(T0, COMPACTIONS) == {}
    assert state.totals.pending()
    state.totals.add(COMPACTIONS, A, 1, T0)
    state.commit()
    assert state.see(T0, COMPACTIONS) == {A: 3.0}


def test_asking_for_rows_again_without_an_answer_is_a_rollback():
    """The first transaction never ended: the second takes its changes."""
    state = State(hold=0)
    state.totals.add(COMPACTIONS, A, 2, T0)
    state.totals.rows()
    state.commit()
    assert state.see(T0, COMPACTIONS) == {A: 2.0}


def test_rows_hold_only_what_changed():
    """A commit writes the series that moved, not all of them."""
    state = State()
    state.totals.add(COMPACTIONS, A, 1, T0)
    state.totals.add(COMPACTIONS, ("a", "q"), 1, T0)
    state.commit()
    state.totals.add(COMPACTIONS, A, 1, T0)
    (row,) = state.totals.rows()
    assert (row.family, row.labels, row.created) == (COMPACTIONS.name, '["a","p"]', T0)
    state.totals.committed()
    assert state.totals.rows() == []


def test_siblings_of_a_closed_label_are_born_together():
    """The first ok brings error, interrupted and pending at 0; an open label brings nothing."""
    state = State(hold=0)
    state.totals.add(TOOL_CALLS, OK, 1, T0)
    state.totals.add(TOOL_ERRORS, ("a", "p", "Bash", "timeout"), 1, T0)
    state.commit()
    seen = state.see(T0, TOOL_CALLS)
    assert {labels[3]: value for labels, value in seen.items()} == {
        "ok": 1.0,
        "error": 0.0,
        "interrupted": 0.0,
        "pending": 0.0,
    }
    assert len(state.see(T0, TOOL_ERRORS)) == 1


def test_a_total_without_labels_is_there_from_the_start():
    """Nobody has to wait for the first dropped span to see that none was dropped."""
    state = State()
    state.commit()
    assert state.see(T0, OUTBOX_DROPPED) == {(): 0.0}


def test_a_series_born_later_is_zero_until_its_hold_is_over():
    """Counted 3, then 5: a scraper sees 0 for 90 s after the first showing, then all 5."""
    state = State()
    state.totals.add(COMPACTIONS, A, 3, T0)
    state.commit()
    assert state.see(T0, COMPACTIONS) == {A: 0.0}
    assert state.asked == 1
    state.totals.add(COMPACTIONS, A, 2, T0)
    state.commit()
    assert state.see(T0 + HOLD - 1, COMPACTIONS) == {A: 0.0}
    assert state.see(T0 + HOLD, COMPACTIONS) == {A: 5.0}


def test_the_hold_begins_when_a_page_shows_it_not_when_it_is_born():
    """A scraper that comes an hour after the event still sees the 0 first."""
    state = State()
    state.totals.add(COMPACTIONS, A, 1, T0)
    state.commit()
    late = T0 + 3600 * SECOND
    assert state.see(late, COMPACTIONS) == {A: 0.0}
    state.commit()
    assert state.see(late + HOLD, COMPACTIONS) == {A: 1.0}


def test_a_first_showing_counts_only_when_it_is_committed():
    """Without the commit a kill would forget it and show 0 again after a value."""
    state = State()
    state.totals.add(COMPACTIONS, A, 1, T0)
    state.commit()
    state.see(T0, COMPACTIONS)
    assert state.see(T0 + HOLD, COMPACTIONS) == {A: 0.0}
    state.commit()
    assert state.see(T0 + HOLD, COMPACTIONS) == {A: 1.0}


def test_a_showing_during_a_transaction_is_not_taken_for_committed():
    """The page asks between `rows` and `committed`: its mark waits for the next commit."""
    state = State()
    state.totals.add(COMPACTIONS, A, 1, T0)
    state.commit()
    state.totals.add(COMPACTIONS, A, 1, T0)
    state.transaction()
    state.see(T0, COMPACTIONS)
    state.totals.committed()
    assert state.see(T0 + HOLD, COMPACTIONS) == {A: 0.0}
    assert state.totals.pending()
    state.commit()
    assert state.see(T0 + HOLD, COMPACTIONS) == {A: 2.0}


def test_a_sibling_that_has_been_zero_long_enough_shows_its_first_error_at_once():
    """The hold of `error` began with the first page that showed it as 0."""
    state = State()
    state.totals.add(TOOL_CALLS, OK, 1, T0)
    state.commit()
    state.see(T0, TOOL_CALLS)
    state.commit()
    state.totals.add(TOOL_CALLS, FAILED, 1, T0)
    state.commit()
    assert state.see(T0 + HOLD, TOOL_CALLS)[FAILED] == 1.0


def test_a_restart_neither_takes_back_nor_holds_again():
    """The first showing is kept with the total: the hold goes on over a kill, and ends once."""
    state = State()
    state.totals.add(COMPACTIONS, A, 4, T0)
    state.commit()
    state.see(T0, COMPACTIONS)
    state.commit()
    state.start()
    assert state.see(T0 + 60 * SECOND, COMPACTIONS) == {A: 0.0}
    state.start()
    assert state.see(T0 + HOLD, COMPACTIONS) == {A: 4.0}
    state.start()
    assert state.see(T0 + HOLD + 1, COMPACTIONS) == {A: 4.0}


def test_two_scrapers_change_nothing():
    """The second scraper's first look is inside the hold that the first began: it sees the 0 too."""
    state = State()
    state.totals.add(COMPACTIONS, A, 1, T0)
    state.commit()
    first = [state.see(T0, COMPACTIONS)[A]]
    state.commit()
    second = [state.see(T0 + 40 * SECOND, COMPACTIONS)[A]]
    first.append(state.see(T0 + HOLD, COMPACTIONS)[A])
    second.append(state.see(T0 + HOLD + SECOND, COMPACTIONS)[A])
    assert first == second == [0.0, 1.0]


def test_a_person_sees_what_is_and_begins_no_hold():
    """The hold is about what scrapers have seen; a look by hand is no scrape."""
    state = State()
    state.totals.add(COMPACTIONS, A, 1, T0)
    state.commit()
    assert state.see(T0, COMPACTIONS, scraper=False) == {A: 1.0}
    assert state.asked == 0
    assert state.see(T0 + 2 * HOLD, COMPACTIONS) == {A: 0.0}


def test_a_clock_put_back_neither_takes_back_nor_holds_for_ever():
    """Shown by a clock that was years ahead: the hold begins anew, and what is out stays out."""
    state = State()
    future = T0 + 10**9 * SECOND
    state.totals.add(COMPACTIONS, A, 1, T0)
    state.commit()
    state.see(future, COMPACTIONS)
    state.commit()
    assert state.see(T0, COMPACTIONS) == {A: 0.0}
    state.commit()
    assert state.see(T0 + HOLD, COMPACTIONS) == {A: 1.0}
    assert state.see(T0, COMPACTIONS) == {A: 1.0}
    state.commit()
    state.start()
    assert state.see(T0, COMPACTIONS) == {A: 1.0}


def test_the_first_backlog_is_shown_as_it_is():
    """History is no news: a scraper's first look is the whole total, also over a kill in between."""
    state = State()
    state.totals.first_backlog(True)
    state.totals.add(COMPACTIONS, A, 7, T0)
    state.totals.add(READ_BYTES, (), 1000, T0)
    state.commit()
    state.start().first_backlog(True)
    state.totals.add(READ_BYTES, (), 1000, T0)
    state.totals.observe(TOOL_DURATION, ("a", "Bash"), 0.02, T0)
    state.commit()
    state.totals.first_backlog(False)
    assert state.see(T0, COMPACTIONS) == {A: 7.0}
    assert state.see(T0, READ_BYTES) == {(): 2000.0}
    assert sum(state.see(T0, TOOL_DURATION)["a", "Bash"].counts) == 1
    state.commit()
    state.start()
    assert state.see(T0, COMPACTIONS) == {A: 7.0}


def test_a_sibling_that_was_zero_in_the_backlog_is_held_like_one_born_later():
    """Its first event comes after the backlog, and no scraper has seen its 0 yet."""
    state = State()
    state.totals.first_backlog(True)
    state.totals.add(TOOL_CALLS, OK, 7, T0)
    state.commit()
    state.totals.first_backlog(False)
    state.totals.add(TOOL_CALLS, FAILED, 1, T0)
    state.commit()
    seen = state.see(T0, TOOL_CALLS)
    assert (seen[OK], seen[FAILED]) == (7.0, 0.0)
    state.commit()
    assert state.see(T0 + HOLD, TOOL_CALLS)[FAILED] == 1.0


def test_no_hold_shows_at_once_and_a_later_hold_takes_nothing_back():
    """`--new-series-hold 0`, then a start with 90 s over the same state."""
    state = State(hold=0)
    state.totals.add(COMPACTIONS, A, 3, T0)
    state.commit()
    assert state.see(T0, COMPACTIONS) == {A: 3.0}
    state.hold = HOLD
    state.start()
    assert state.see(T0, COMPACTIONS) == {A: 3.0}


def test_turning_the_hold_off_frees_what_was_held():
    """A state written with a hold, read without: no page waits any more, and none will again."""
    state = State()
    state.totals.add(COMPACTIONS, A, 3, T0)
    state.commit()
    state.hold = 0
    state.start()
    assert state.see(T0, COMPACTIONS) == {A: 3.0}
    state.commit()
    state.hold = HOLD
    state.start()
    assert state.see(T0, COMPACTIONS) == {A: 3.0}


def test_a_histogram_is_held_in_all_its_buckets():
    """Counts and sum are 0 while held, then all of them appear together."""
    state = State()
    key = ("a", "Bash")
    for seconds in (0.005, 0.01, 3.0, 9999.0):
        state.totals.observe(TOOL_DURATION, key, seconds, T0)
    state.commit()
    assert state.see(T0, TOOL_DURATION)[key] == Distribution((0,) * 11, 0.0)
    state.commit()
    state.start()
    shown = state.see(T0 + HOLD, TOOL_DURATION)[key]
    assert shown == Distribution((2, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1), 0.005 + 0.01 + 3.0 + 9999.0)


def test_exemplars_are_the_latest_per_bucket_and_never_go_back_in_time():
    """Prometheus refuses exemplars that are older than the last; ours are never."""
    state = State(hold=0)
    key = ("a", "Bash")
    state.totals.observe(TOOL_DURATION, key, 1.0, T0 + 5, b"new")
    state.totals.observe(TOOL_DURATION, key, 2.0, T0, b"old")
    state.totals.observe(TOOL_DURATION, key, 2.0, 0, b"timeless")
    state.totals.observe(TOOL_DURATION, key, 20.0, T0, b"slow")
    state.totals.add(TOOL_ERRORS, ("a", "p", "Bash", "timeout"), 1, T0, b"bad")
    state.commit()
    points = {family: points[0] for family, points in state.totals.snapshot(T0, scraper=True)}
    found = [exemplar for exemplar in points[TOOL_DURATION].exemplars if exemplar]
    assert found == [Exemplar(b"new", 1.0, T0 + 5), Exemplar(b"slow", 20.0, T0)]
    assert points[TOOL_ERRORS].exemplars == (Exemplar(b"bad", 1.0, T0),)


def test_created_is_the_time_of_the_first_event_with_one():
    """An event without a time leaves it open for the next."""
    state = State(hold=0)
    state.totals.add(COMPACTIONS, A, 1, 0)
    state.commit()
    state.totals.add(COMPACTIONS, A, 1, T0)
    state.totals.add(COMPACTIONS, A, 1, T0 - 5)
    state.commit()
    state.start()
    points = dict(state.totals.snapshot(T0, scraper=True))[COMPACTIONS]
    assert points[0].created == T0


def test_rows_that_no_family_can_take_are_told_and_left_alone():
    """After a downgrade the state holds metrics this version does not know; it starts all the same."""
    totals = Totals()
    good = Row(COMPACTIONS.name, '["a","p"]', b"\xcb\x3f\xf0\0\0\0\0\0\0", T0, 0, True)
    strange = [
        good._replace(family="coding_agent_dreams_total"),
        good._replace(labels='["a"]'),
        good._replace(labels="not json"),
        good._replace(value=b""),
        good._replace(family=TOOL_DURATION.name, value=b"\x92\x91\x01\xcb\0\0\0\0\0\0\0\0"),
        good._replace(family=ACTIVE_SESSIONS.name),
    ]
    assert totals.load([*strange, good]) == len(strange)
    (points,) = [points for family, points in totals.snapshot(T0, scraper=True) if family is COMPACTIONS]
    assert [point.value for point in points] == [1.0]


@pytest.mark.parametrize("amount", [-1, float("nan"), float("inf")])
def test_a_total_refuses_what_it_could_never_take_back(amount):
    """Negative, NaN and infinite amounts are mistakes of the caller."""
    with pytest.raises(ValueError, match="cannot"):
        Totals().add(COMPACTIONS, A, amount, T0)
    with pytest.raises(ValueError, match="cannot"):
        Totals().observe(TOOL_DURATION, A, amount, T0)


def test_a_label_too_few_is_refused():
    """A series with the wrong number of labels would shift their meaning."""
    with pytest.raises(ValueError, match="labels"):
        Totals().add(COMPACTIONS, ("a",), 1, T0)
    with pytest.raises(ValueError, match="labels"):
        Totals().observe(TOOL_DURATION, ("a",), 1, T0)
    with pytest.raises(ValueError, match="labels"):
        Totals().set_gauges({LAG: {("a",): 1.0}})


def test_gauges_are_replaced_as_a_whole():
    """A session that ended is gone from the page, without having to be set to 0."""
    totals = Totals()
    totals.set_gauges({ACTIVE_SESSIONS: {("b", "q"): 1.0, ("a", "p"): 2.0}, LAG: {(): 0.5}})
    totals.set_gauges({ACTIVE_SESSIONS: {("b", "q"): 3.0}})
    assert [
        (family, [tuple(p[:2]) for p in points]) for family, points in totals.snapshot(T0, scraper=True)
    ] == [(ACTIVE_SESSIONS, [(("b", "q"), 3.0)])]


def test_pages_may_be_asked_for_while_the_loop_counts_and_commits():
    """Births and commits on one thread, snapshots on another: no error, and no number goes down."""
    state = State(hold=0)
    stop = threading.Event()
    faults: list[object] = []

    def scrape() -> None:
        last: dict = {}
        try:
            while not stop.is_set():
                seen = state.see(T0, COMPACTIONS)
                faults.extend(labels for labels, value in last.items() if seen[labels] < value)
                last = seen
        except Exception as fault:  # noqa: BLE001
            faults.append(fault)

    thread = threading.Thread(target=scrape)
    thread.start()
    for n in range(3000):
        state.totals.add(COMPACTIONS, ("a", f"p{n % 300}"), 1, T0)
        state.commit()
    stop.set()
    thread.join()
    assert faults == []
    assert sum(state.see(T0, COMPACTIONS).values()) == 3000


SERIES = [("a", "p", tool, status) for tool in ("x", "y") for status in ("ok", "error")]
STEPS = st.one_of(
    st.tuples(st.just("add"), st.integers(0, 3), st.integers(0, 5)),
    st.tuples(st.just("observe"), st.integers(0, 3), st.floats(0, 100)),
    st.tuples(st.just("wait"), st.integers(0, 60)),
    st.sampled_from(
        [("commit",), ("fail",), ("kill",), ("kill in commit",), ("scrape",), ("scrape",), ("person",)]
    ),
)


@settings(max_examples=300, deadline=None, database=None)
@given(st.lists(STEPS, max_size=60), st.sampled_from([0, 30 * SECOND, HOLD]))
def test_no_scraper_ever_sees_a_number_go_down(steps, hold):
    """Whatever is counted, committed, refused or killed: no number on a page falls, a series born
    later begins at 0 for a scraper, and in the end the page shows what is committed."""
    state = State(hold)
    now = T0
    last: dict[bool, dict] = {True: {}, False: {}}

    def look(scraper: bool) -> None:
        seen: dict[object, float] = dict(state.see(now, TOOL_CALLS, scraper=scraper))
        for labels, value in state.see(now, TOOL_DURATION, scraper=scraper).items():
            seen[labels, "sum"] = value.sum
            seen.update({(labels, at): count for at, count in enumerate(value.counts)})
        for key, value in last[scraper].items():
            assert seen[key] >= value
        if scraper and hold:
            assert all(seen[key] == 0 for key in seen.keys() - last[scraper].keys())
        last[scraper] = seen

    for step, *args in steps:
        if step == "add":
            state.totals.add(TOOL_CALLS, SERIES[args[0]], args[1], now)
        elif step == "observe":
            state.totals.observe(TOOL_DURATION, SERIES[args[0]][1:3], args[1], now)
        elif step == "wait":
            now += args[0] * SECOND
        elif step == "commit":
            state.commit()
        elif step == "fail":
            state.totals.rows()
            state.totals.rolled_back()
        elif step == "kill":
            state.start()
        elif step == "kill in commit":
            state.transaction()
            state.start()
        else:
            look(step == "scrape")

    state.commit()
    look(True)
    state.commit()
    now += hold
    look(True)
    assert state.see(now, TOOL_CALLS) == state.see(now, TOOL_CALLS, scraper=False)
    assert state.see(now, TOOL_DURATION) == state.see(now, TOOL_DURATION, scraper=False)

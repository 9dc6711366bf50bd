from __future__ import annotations

from spantail.model import SECOND, Usage
from spantail.state.hours import SLOT, HourRow, Hours, Sums, oldest, spent

T0 = 1_700_000_100  # a quarter of an hour begins 1_699_999_200 + 900
QUARTER = T0 - T0 % SLOT


def apply(state: dict, rows: list[HourRow]) -> None:
    """What the store does: add each row to the one with the same key."""
    for row in rows:
        before = state.get(row[:5], (0, 0, 0, 0, 0.0))
        state[row[:5]] = tuple(a + b for a, b in zip(before, row[5:], strict=True))


def test_sums_are_by_quarter_of_an_hour_of_the_event():
    """Two calls of one quarter are one row; the next quarter is another, whatever came first."""
    hours = Hours()
    hours.add((QUARTER + 900) * SECOND, "a", "p", "m", "", Usage(1, 0, 0, 1), 0.5)
    hours.add(QUARTER * SECOND, "a", "p", "m", "", Usage(1, 2, 3, 4, 99), 0.25)
    hours.add((QUARTER + 900) * SECOND - 1, "a", "p", "m", "", Usage(1, 2, 3, 4), None)
    hours.add((QUARTER + 5) * SECOND, "a", "p", "m", "", None, 0.25)
    assert sorted(hours.rows()) == [
        HourRow(QUARTER, "a", "p", "m", "", 2, 4, 6, 8, 0.5),
        HourRow(QUARTER + 900, "a", "p", "m", "", 1, 0, 0, 1, 0.5),
    ]


def test_increments_are_handed_out_once():
    """After the commit they are gone; what came during it is the next commit's."""
    hours, state = Hours(), {}
    hours.add(T0 * SECOND, "a", "p", "m", "", Usage(1), 1.0)
    apply(state, hours.rows())
    hours.add(T0 * SECOND, "a", "p", "m", "", Usage(10), 2.0)
    hours.committed()
    assert hours.pending()
    apply(state, hours.rows())
    hours.committed()
    assert not hours.pending()
    assert hours.rows() == []
    assert list(state.values()) == [(11, 0, 0, 0, 3.0)]


def test_a_failed_commit_loses_nothing_and_doubles_nothing():
    """Its increments are handed out again, with what was added since."""
    hours = Hours()
    hours.add(T0 * SECOND, "a", "p", "m", "", Usage(1), 1.0)
    hours.rows()
    hours.add(T0 * SECOND, "a", "p", "m", "", Usage(2), None)
    hours.add(T0 * SECOND, "a", "p", "n", "", Usage(4), None)
    hours.rolled_back()
    assert sorted(hours.rows()) == [
        HourRow(QUARTER, "a", "p", "m", "", 3, 0, 0, 0, 1.0),
        HourRow(QUARTER, "a", "p", "n", "", 4, 0, 0, 0, 0.0),
    ]
    assert len(hours.rows()) == 2, "asking again without an answer is a rollback too"


ROWS = [
    HourRow(0, "a", "p", "m", "", 1, 0, 0, 0, 1.0),
    HourRow(900, "a", "q", "m", "", 2, 0, 0, 0, 2.0),
    HourRow(900, "b", "p", "m", "ann", 4, 0, 0, 0, 4.0),
    HourRow(1800, "b", "p", "n", "bob", 8, 1, 2, 3, 8.0),
]


def test_spent_takes_the_slots_of_the_period():
    """From the start, up to and without the end."""
    assert spent(ROWS, 900, 1800).cost == 6.0
    assert spent(ROWS, 0, 1801) == Sums(15, 1, 2, 3, 15.0)
    assert spent(ROWS, 1, 900) == Sums()


def test_spent_filters_by_one_value_or_several():
    """All named labels must fit; a string is one value, not its letters."""
    assert spent(ROWS, 0, 9999, {"project": "p"}).cost == 13.0
    assert spent(ROWS, 0, 9999, {"project": "p", "agent": "b"}).cost == 12.0
    assert spent(ROWS, 0, 9999, {"user": ("ann", "bob"), "model": ["n"]}).cost == 8.0
    assert spent(ROWS, 0, 9999, {"user": ""}).cost == 3.0
    assert spent(ROWS, 0, 9999, {"project": "pq"}).cost == 0.0


def test_thirteen_months_are_kept():
    """The same month a year ago is whole, and the limit is a slot."""
    first = oldest(T0 * SECOND)
    assert first % SLOT == 0
    assert 13 * 30.5 < (T0 - first) / 86_400 < 405

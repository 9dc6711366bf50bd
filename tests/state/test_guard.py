from __future__ import annotations

import pytest

from spantail.state.families import LABEL_OVERFLOW, TOOL_CALLS
from spantail.state.guard import LENGTH, Guard
from spantail.state.totals import Totals


def overflows(totals: Totals) -> dict:
    totals.rows()
    totals.committed()
    page = dict(totals.snapshot(0, scraper=False))
    return {point.labels[0]: point.value for point in page.get(LABEL_OVERFLOW, [])}


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("Bash", "Bash"),
        ("mcp__server__do-it", "mcp__server__do-it"),
        ("größe 日本 🙂", "größe 日本 🙂"),
        ("two\nlines\x00\x7f", "two_lines__"),
        ("half \ud83d emoji", "half _ emoji"),
        ("  spaced  ", "spaced"),
        ("", "unknown"),
        ("   ", "unknown"),
    ],
)
def test_a_value_is_made_printable(raw, shown):
    """Controls and halves of characters are replaced; nothing is shown as empty without meaning it."""
    guard = Guard(Totals())
    assert guard.value("tool", raw) == shown
    assert guard.value("tool", raw) == shown, "the second time as the first"
    shown.encode()


@pytest.mark.parametrize("label", ["user", "project"])
def test_user_and_project_may_be_empty(label):
    """Empty says something there: one home, no folder."""
    assert Guard(Totals()).value(label, "") == ""


def test_a_long_value_is_cut():
    """A name that holds a whole command does not become a label as long."""
    assert Guard(Totals()).value("tool", "x" * 5000) == "x" * LENGTH


def test_values_above_the_limit_become_other_and_are_counted():
    """Each replacement counts; values that were there stay, and so do `unknown` and empty ones."""
    totals = Totals()
    guard = Guard(totals, {"tool": 2})
    assert [guard.value("tool", raw) for raw in ("a", "b", "c", "a", "c", "d", "", "other")] == [
        "a",
        "b",
        "other",
        "a",
        "other",
        "other",
        "unknown",
        "other",
    ]
    assert overflows(totals) == {"tool": 3.0}


def test_labels_have_limits_of_their_own():
    """Many tools do not keep a model from having a name; the defaults are those of the contract."""
    totals = Totals()
    guard = Guard(totals)
    tools = {guard.value("tool", f"t{n}") for n in range(300)}
    models = {guard.value("model", f"m{n}") for n in range(300)}
    users = {guard.value("user", f"u{n}") for n in range(300)}
    assert (len(tools), len(models), len(users)) == (201, 101, 300)
    assert overflows(totals) == {"tool": 100.0, "model": 200.0}


def test_the_user_sets_how_many_and_how_long():
    """[limits] label_values and label_length; who runs an agent, and which, is not for records to invent."""
    totals = Totals()
    guard = Guard(totals, values=3, length=10)
    for label in ("tool", "model", "project", "error_type", "window"):
        assert len({guard.value(label, f"v{n}") for n in range(20)}) == 4
    assert len({guard.value("user", f"v{n}") for n in range(20)}) == 20
    assert Guard(Totals(), length=10).value("tool", "x" * 50) == "x" * 10


def test_what_was_a_series_before_a_restart_stays_one():
    """The loaded series teach the guard their values, even if the limit is lower now."""
    totals = Totals()
    for tool in ("a", "b", "c", "other"):
        totals.add(TOOL_CALLS, ("agent", "p", tool, "ok"), 1, 1)
    rows = totals.rows()
    again = Totals()
    again.load(rows)
    guard = Guard(again, {"tool": 1})
    assert [guard.value("tool", raw) for raw in ("c", "a", "b", "new")] == ["c", "a", "b", "other"]
    roomy = Guard(again, {"tool": 4})
    assert roomy.value("tool", "new") == "new", "`other` takes no place"


def test_memory_is_bounded_whatever_comes():
    """Endless names that all overflow, or all come to the same, are not remembered one by one."""
    guard = Guard(Totals(), {"tool": 5, "model": 5, "project": 5, "agent": 5, "error_type": 5, "user": 5})
    for n in range(1000):
        guard.value("tool", f"t{n}")
        guard.value("model", "same" + " " * n)
    assert len(guard._seen) <= 4 * 30

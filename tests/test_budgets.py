"""Budgets: what was spent in the current period, by the time of the calls."""

import contextlib
import os
import shutil
import sqlite3
from datetime import UTC, datetime

import pytest

import program
import truth
from program import configured
from spantail.budgets import current_period
from spantail.commands import run
from spantail.tables import Budget

CASE = truth.FIXTURES / "claude-code" / "tools-a"


def ns(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * 10**9


@pytest.mark.parametrize(
    ("period", "zone", "begins", "ends"),
    [
        ("day", "UTC", "2026-11-18T00:00:00", "2026-11-19T00:00:00"),
        ("week", "UTC", "2026-11-16T00:00:00", "2026-11-23T00:00:00"),
        ("month", "UTC", "2026-11-01T00:00:00", "2026-12-01T00:00:00"),
        ("day", "America/New_York", "2026-11-17T05:00:00", "2026-11-18T05:00:00"),
        ("month", "Asia/Kolkata", "2026-10-31T18:30:00", "2026-11-30T18:30:00"),
        # Summer time ends on 1 November there: the month has an hour more than its 30 days.
        ("month", "America/New_York", "2026-11-01T04:00:00", "2026-12-01T05:00:00"),
    ],
)
def test_a_period_goes_from_midnight_to_midnight_of_its_time_zone(period, zone, begins, ends):
    """Days, weeks from Monday, months; where the budget's people live."""
    budget = Budget(name="b", period=period, limit=1.0, timezone=zone)
    start, end = current_period(budget, ns("2026-11-18T03:00:00"))
    assert (start * 10**9, end * 10**9) == (ns(begins), ns(ends))


def spent(tmp_path, now: int, budgets) -> dict[str, float]:
    config = configured(CASE / "home", tmp_path / "state", budgets=budgets)
    assert run.main(config, {k: v for k, v in os.environ.items() if k == "HOME"}, clock=lambda: now) == 0
    page = truth.samples((tmp_path / "state" / "page.prom").read_text())
    for name, period in (("start", 0), ("end", 1)):
        shown = page[f"coding_agent_budget_period_{name}_timestamp_seconds"]
        expected = {each.name: current_period(each, now)[period] for each in budgets}
        assert {labels["budget"]: value for labels, value in shown} == expected
    return {labels["budget"]: value for labels, value in page["coding_agent_budget_spent_usd"]}


def test_spent_is_what_the_calls_of_the_period_cost(tmp_path):
    """Filters choose; a new day begins at zero although the totals go on."""
    budgets = (
        Budget(name="all", period="day", limit=5.0),
        Budget(name="month", period="month", limit=50.0),
        Budget(name="other", period="day", limit=5.0, agent=("somebody-else",)),
    )
    today = spent(tmp_path, ns("2026-11-18T20:00:00"), budgets)
    # 460 input and 50 output tokens of claude-sonnet-4-6: 3 and 15 dollars per million
    assert today == pytest.approx({"all": 0.00213, "month": 0.00213, "other": 0.0})
    tomorrow = spent(tmp_path, ns("2026-11-19T20:00:00"), budgets)
    assert tomorrow == pytest.approx({"all": 0.0, "month": 0.00213, "other": 0.0})


def test_a_budget_counts_what_was_spent_before_since(tmp_path, http_receiver, monkeypatch):
    """The first backlog reaches back to the beginning of the month: sums only, no counts, no spans."""
    for key, value in http_receiver.environ().items():
        monkeypatch.setenv(key, value)
    home = tmp_path / "home"
    shutil.copytree(CASE / "home", home)
    old = ns("2026-11-18T20:00:00")
    for path in home.rglob("*.jsonl"):
        os.utime(path, ns=(old, old))
    later = {"since": 86_400 * 10**9, "budgets": (Budget(name="b", period="month", limit=50.0),)}
    config = configured(home, tmp_path / "state", **later)
    for _ in range(2):  # a restart adds nothing
        assert run.main(config, os.environ, clock=lambda: ns("2026-11-25T20:00:00"), strict=True) == 0
        page = truth.samples((tmp_path / "state" / "page.prom").read_text())
        assert page["coding_agent_budget_spent_usd"] == [
            ({"budget": "b", "period": "month"}, pytest.approx(0.00213))
        ]
        assert [name for name in page if name.startswith(("coding_agent_tokens", "coding_agent_cost"))] == []
        assert "coding_agent_turns_total" not in page
    assert http_receiver.spans == []


# One of each agent; where an agent has several ways to tell of usage, one of each.
PAST = (
    "aider/tools-a",
    "claude-code/subagent-a",
    "claude-code/fork-a",
    "claude-code/sigkill-a",
    "clido/tools-a",
    "cline/tools-a",
    "codex/tools-a",
    "codex-0.98.0/tools-a",
    "gemini-cli/tools-a",
    "generic/tools-a",
    "goose/tools-a",
    "opencode/subagent-a",
    "pi/tools-a",
)


@pytest.mark.parametrize("case", PAST)
def test_the_past_is_summed_as_the_present_is(case, tmp_path, monkeypatch):
    """Whether it was before --since or not: the sums by time are the same rows."""
    now = program.LONG_AFTER
    sums = []
    for since in (None, 0):
        state = tmp_path / f"since-{since}"
        shutil.copytree(truth.FIXTURES / case / "home", state / "home")
        monkeypatch.setattr(run, "earliest", lambda _budgets, _now: 1)
        config = configured(state / "home", state, since=since)
        environ = {"HOME": str(state)}
        assert run.main(config, environ, clock=lambda: now, strict=True) == 0
        with contextlib.closing(sqlite3.connect(state / "state.db")) as database:
            sums.append(database.execute("SELECT * FROM hours ORDER BY 1, 2, 3, 4, 5").fetchall())
        page = truth.samples((state / "page.prom").read_text())
        assert ("coding_agent_tokens_total" in page) == (
            since is None and any(sum(row[5:9]) for row in sums[0])
        )
    assert sums[0] == sums[1]
    assert sums[0]

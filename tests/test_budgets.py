"""Budgets: what was spent in the current period, by the time of the calls."""

import os
from datetime import UTC, datetime

import pytest

import truth
from program import configured
from spantail.budgets import begin
from spantail.commands import run
from spantail.config import Budget

CASE = truth.FIXTURES / "claude-code" / "tools-a"


def ns(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * 10**9


@pytest.mark.parametrize(
    ("period", "zone", "begins"),
    [
        ("day", "UTC", "2026-11-18T00:00:00"),
        ("week", "UTC", "2026-11-16T00:00:00"),
        ("month", "UTC", "2026-11-01T00:00:00"),
        ("day", "America/New_York", "2026-11-17T05:00:00"),
        ("month", "Asia/Kolkata", "2026-10-31T18:30:00"),
    ],
)
def test_a_period_begins_at_midnight_of_its_time_zone(period, zone, begins):
    """Days, weeks from Monday, months; where the budget's people live."""
    budget = Budget(name="b", period=period, limit=1.0, timezone=zone)
    assert begin(budget, ns("2026-11-18T03:00:00")) * 10**9 == ns(begins)


def spent(tmp_path, now: int, budgets) -> dict[str, float]:
    config = configured(CASE / "home", tmp_path / "state", budgets=budgets)
    assert run.main(config, {k: v for k, v in os.environ.items() if k == "HOME"}, clock=lambda: now) == 0
    page = truth.samples((tmp_path / "state" / "page.prom").read_text())
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

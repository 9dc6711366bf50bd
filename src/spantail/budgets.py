"""Budgets are questions to the sums by event time, not counters.

What was spent is the sum over the current day, week or month in the budget's own time zone; a late
record counts in the period of its own time, and a budget that is changed needs no history of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from spantail.model import SECOND
from spantail.state import families as f
from spantail.state.store import Store
from spantail.state.totals import Gauges
from spantail.tables import Budget

FRESH = 60 * SECOND
"""Asked again after this long even if nothing was spent: a new period begins at zero."""


class Budgets:
    def __init__(self, budgets: Sequence[Budget], store: Store) -> None:
        self._budgets = budgets
        self._store = store
        self._asked = 0
        self._gauges: Gauges = {}

    def gauges(self, now: int, *, changed: bool) -> Gauges:
        if self._budgets and (changed or not 0 <= now - self._asked < FRESH):
            self._asked = now
            self._gauges = self._ask(now)
        return self._gauges

    def _ask(self, now: int) -> Gauges:
        limits: dict[tuple[str, ...], float] = {}
        spent: dict[tuple[str, ...], float] = {}
        starts: dict[tuple[str, ...], float] = {}
        ends: dict[tuple[str, ...], float] = {}
        for budget in self._budgets:
            key = (budget.name, budget.period)
            start, end = current_period(budget, now)
            limits[key] = budget.limit
            spent[key] = _covered(budget, self._store.spent(start))
            starts[key], ends[key] = float(start), float(end)
        return {f.BUDGET_LIMIT: limits, f.BUDGET_SPENT: spent, f.BUDGET_START: starts, f.BUDGET_END: ends}


def current_period(budget: Budget, now: int) -> tuple[int, int]:
    """When the current period began and when the next one will, in seconds since the epoch.

    By the calendar of the budget's time zone: a day may have 23 or 25 hours, a month 28 to 31 days.
    """
    zone = UTC if budget.timezone == "UTC" else ZoneInfo(budget.timezone)
    day = datetime.fromtimestamp(now / SECOND, zone).replace(hour=0, minute=0, second=0, microsecond=0)
    match budget.period:
        case "day":
            start, after = day, day + timedelta(days=1)
        case "week":
            start = day - timedelta(days=day.weekday())
            after = start + timedelta(days=7)
        case "month":
            start = day.replace(day=1)
            after = (start + timedelta(days=31)).replace(day=1)
    return int(start.timestamp()), int(after.timestamp())


def earliest(budgets: Iterable[Budget], now: int) -> int:
    """When the first of the current periods began, in ns: how far back sums are needed. 0 without budgets."""
    return min((current_period(budget, now)[0] * SECOND for budget in budgets), default=0)


def _covered(budget: Budget, rows: Iterable[tuple[str, str, str, str, float]]) -> float:
    return sum(
        cost for agent, project, model, user, cost in rows if budget.covers(agent, project, model, user)
    )

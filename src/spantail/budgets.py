"""Budgets are questions to the sums by event time, not counters.

What was spent is the sum over the current day, week or month in the budget's own time zone; a late
record counts in the period of its own time, and a budget that is changed needs no history of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from spantail.config import Budget
from spantail.model import SECOND
from spantail.state import families as f
from spantail.state.store import Store
from spantail.state.totals import Gauges

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
        for budget in self._budgets:
            key = (budget.name, budget.period)
            limits[key] = budget.limit
            spent[key] = _covered(budget, self._store.spent(begin(budget, now)))
        return {f.BUDGET_LIMIT: limits, f.BUDGET_SPENT: spent}


def begin(budget: Budget, now: int) -> int:
    """When the current period began, in seconds since the epoch."""
    zone = UTC if budget.timezone == "UTC" else ZoneInfo(budget.timezone)
    day = datetime.fromtimestamp(now / SECOND, zone).replace(hour=0, minute=0, second=0, microsecond=0)
    if budget.period == "week":
        day -= timedelta(days=day.weekday())
    elif budget.period == "month":
        day = day.replace(day=1)
    return int(day.timestamp())


def _covered(budget: Budget, rows: Iterable[tuple[str, str, str, str, float]]) -> float:
    return sum(
        cost for agent, project, model, user, cost in rows if budget.covers(agent, project, model, user)
    )

"""Asks a real Prometheus what a dashboard's queries ask, and says what comes back empty."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from grafana import Asked, asked, targets

from servers.prometheus import Prometheus

Answer = tuple[dict[str, str], list[float]]


def answers(prometheus: Prometheus, query: Asked) -> list[Answer]:
    """(labels, values that are numbers) of what comes back."""
    if query.step:
        found = prometheus.query_range(query.expr, query.start, query.end, query.step)
        rows = [(labels, [value for _, value in points]) for labels, points in found]
    else:
        rows = [(labels, [value]) for labels, value in prometheus.query(query.expr, query.end)]
    return [(labels, [value for value in values if not math.isnan(value)]) for labels, values in rows]


def empty(
    prometheus: Prometheus, dashboard: dict[str, Any], values: Mapping[str, str], at: float, scrape: int
) -> list[str]:
    """The queries that have no value, or only one that is there for want of another (a series `none`)."""
    found = []
    for target in targets(dashboard):
        query = asked(dashboard, target, values, at, scrape)
        rows = [values for labels, values in answers(prometheus, query) if "none" not in labels.values()]
        if not any(rows):
            found.append(f"{target.panel['title']} {target.query['refId']}")
    return found

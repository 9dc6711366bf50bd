"""PromQL as the dashboards write it: each selector is filtered by every variable its metric has a label for.

For whoever turns a variable: a panel that could be filtered is filtered. Which labels a metric has is asked of
the program's own table, so a query cannot name a metric that does not exist.
"""

from __future__ import annotations

import re
from typing import Final

from spantail.state.families import BY_NAME

VARIABLES: Final = ("agent", "project", "model")
"""Labels that have a variable of the same name. `job` and `instance` are on every series."""

FOREIGN: Final = re.compile(r"(process_[a-z_]+|up|scrape_[a-z_]+)\Z")
"""What Prometheus and its client add: nothing but `job` and `instance`."""

RATE: Final = "$__rate_interval"
RANGE: Final = "$__range"


def pick(metric: str, *matchers: str) -> str:
    """A selector with the variables and these matchers."""
    parts = ['job=~"$job"', 'instance=~"$instance"']
    family = BY_NAME.get(re.sub(r"_(bucket|sum|count)\Z", "", metric)) or BY_NAME.get(metric)
    if family is not None:
        parts += [f'{label}=~"${label}"' for label in VARIABLES if label in family.labels]
    elif not FOREIGN.match(metric):
        raise ValueError(f"there is no metric {metric}")
    return f"{metric}{{{', '.join([*parts, *matchers])}}}"


def rate(metric: str, by: str = "", *matchers: str, seconds: int = 1) -> str:
    """How fast it grows, per second, or in so many seconds."""
    of = f"{_sum(by)} (rate({pick(metric, *matchers)}[{RATE}]))"
    return of if seconds == 1 else f"{of} * {seconds}"


def total(metric: str, by: str = "", *matchers: str) -> str:
    """What was added in the chosen time."""
    return f"{_sum(by)} (increase({pick(metric, *matchers)}[{RANGE}]))"


def count(metric: str, by: str = "", *matchers: str) -> str:
    """As `total`, of what is counted one by one: increase() makes fractions of it."""
    return f"round({total(metric, by, *matchers)})"


def daily(metric: str, by: str) -> str:
    """What was added on the day that begins at each point; asked with a step of one day."""
    return f"{_sum(by)} (increase({pick(metric)}[1d] offset -1d))"


def now(metric: str, by: str = "", *matchers: str) -> str:
    """The sum of a gauge."""
    return f"{_sum(by)} ({pick(metric, *matchers)})"


def age(metric: str, by: str = "") -> str:
    """Seconds since the oldest of some points in time."""
    return f"time() - min{_by(by)} ({pick(metric)})"


def ratio(part: str, whole: str) -> str:
    """Nothing, and not NaN, where there is no whole."""
    return f"{part} / ({whole} > 0)"


def quantile(q: float, metric: str, by: str = "", over: str = RATE) -> str:
    """Over the whole range (`over=RANGE`) there is nothing, and not NaN, where nothing was observed."""
    labels = f"le, {by}" if by else "le"
    grown = f"{'rate' if over == RATE else 'increase'}({pick(metric + '_bucket')}[{over}])"
    asked = f"histogram_quantile({q:g}, sum by ({labels}) ({grown}))"
    return asked if over == RATE else f"{asked} >= 0"


def largest(n: int, by: str, expr: str, metric: str, *matchers: str) -> str:
    """`expr` for the n values of `by` that grew most in the chosen time: the same ones at every point."""
    grown = f"sum by ({by}) (increase({pick(metric, *matchers)}[{RANGE}] @ end()))"
    return f"({expr}) and on ({by}) topk({n}, {grown})"


def or_zero(expr: str) -> str:
    """Of one number: 0 where there are no series."""
    return f"{expr} or vector(0)"


def or_none(expr: str, label: str) -> str:
    """Of what is told apart by `label` and may well never happen: a series `none` at 0 where there are none."""
    return f'{expr} or on () label_replace(vector(0), "{label}", "none", "", "")'


def named(expr: str) -> str:
    """Gives a name to the project that has none: an empty label is no column of a table, and a bar without a name."""
    return f'label_replace({expr}, "project", "(no project)", "project", "")'


CONTEXT: Final = f"max by (agent, project, model) ({pick('coding_agent_context_tokens')})"
CONTEXT_USED: Final = (
    f"{CONTEXT} / on (model) group_left () max by (model) ({pick('coding_agent_context_limit_tokens')})"
)
"""Only of models whose limit is known."""


def _by(labels: str) -> str:
    return f" by ({labels})" if labels else ""


def _sum(labels: str) -> str:
    return f"sum{_by(labels)}"

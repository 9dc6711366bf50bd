"""The dashboards' queries, parsed: what they select, over how long, in which function, grouped by what."""

from __future__ import annotations

import functools
from datetime import timedelta
from typing import NamedTuple

import promql_parser as parser

RATE_INTERVAL = timedelta(seconds=247)
RANGE = timedelta(seconds=4321)
"""Spans that no query has by itself: they stand for the variables."""


class Selected(NamedTuple):
    metric: str
    matchers: dict[str, str]
    """By label: operator and value."""
    function: str
    """The function around it, if it is over a span."""
    over: timedelta | None
    offset: timedelta | None


class Read(NamedTuple):
    selected: list[Selected]
    labels: set[str]
    """All labels that something is grouped or matched by."""
    functions: set[str]


@functools.cache
def read(query: str) -> Read:
    """Fails if it is no PromQL."""
    filled = query.replace("$__rate_interval", f"{RATE_INTERVAL.seconds}s").replace(
        "$__range", f"{RANGE.seconds}s"
    )
    above: list[parser.Expr] = []
    found = Read([], set(), set())

    def enter(node: parser.Expr) -> None:
        if isinstance(node, parser.VectorSelector):
            found.selected.append(_selected(node, above))
        elif isinstance(node, parser.AggregateExpr) and node.modifier is not None:
            found.labels.update(node.modifier.labels)
        elif isinstance(node, parser.BinaryExpr) and node.modifier and node.modifier.matching:
            found.labels.update(node.modifier.matching.labels)
        elif isinstance(node, parser.Call):
            found.functions.add(node.func.name)
        above.append(node)

    parser.walk(parser.parse(filled), enter, lambda _: above.pop() and None)
    return found


def _selected(node: parser.VectorSelector, above: list[parser.Expr]) -> Selected:
    matchers = {each.name: f"{OPERATORS[str(each.op)]}{each.value}" for each in node.matchers.matchers}
    spanned = above[-1] if above and isinstance(above[-1], parser.MatrixSelector) else None
    function = above[-2].func.name if spanned is not None and isinstance(above[-2], parser.Call) else ""
    name = node.name or matchers.get("__name__", "")
    return Selected(name, matchers, function, spanned and spanned.range, node.offset)


OPERATORS = {"MatchOp.Equal": "=", "MatchOp.NotEqual": "!=", "MatchOp.Re": "=~", "MatchOp.NotRe": "!~"}

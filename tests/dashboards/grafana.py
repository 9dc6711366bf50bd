"""The dashboards as Grafana reads them: panels with their queries, variables filled in, links followed."""

from __future__ import annotations

import json
import re
import shlex
import urllib.parse
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path(__file__).resolve().parent.parent.parent / "dashboards"
FILES = sorted(FOLDER.glob("*.json"))
DAY = 86_400
SPANS = {
    "5m": 300,
    "1d": DAY,
    "30d": 30 * DAY,
    # Whoever looks lives where it is noon, on a Wednesday in the middle of the month.
    "now/d": DAY // 2,
    "now/w": 2 * DAY + DAY // 2,
    "now/M": 14 * DAY + DAY // 2,
}
"""How many seconds a span or a beginning stands for."""


class Target(NamedTuple):
    panel: dict[str, Any]
    query: dict[str, Any]


class Asked(NamedTuple):
    """A query as it reaches Prometheus; `step` is 0 for an instant query."""

    expr: str
    start: float
    end: float
    step: float


def load(path: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(path.read_text())
    return loaded


def panels(dashboard: dict[str, Any]) -> list[dict[str, Any]]:
    """Those that show something; rows are headings."""
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def targets(dashboard: dict[str, Any]) -> Iterator[Target]:
    for panel in panels(dashboard):
        for query in panel["targets"]:
            yield Target(panel, query)


def variables(dashboard: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {variable["name"]: variable for variable in dashboard["templating"]["list"]}


def chosen(dashboard: dict[str, Any], values: Mapping[str, str]) -> dict[str, str]:
    """What stands for each variable in a query: `values`, which Grafana escapes, else that of All."""
    filled = {}
    for name, variable in variables(dashboard).items():
        if variable["type"] == "query":
            # re.escape also escapes what need not be; what is escaped is the same to Prometheus.
            value = re.escape(values[name]).replace("\\", "\\\\") if name in values else variable["allValue"]
            filled[name] = value
    return filled


def asked(
    dashboard: dict[str, Any], target: Target, values: Mapping[str, str], end: float, scrape: int
) -> Asked:
    """The query as Grafana would send it at `end` for the last minutes, or for the panel's own time."""
    step = SPANS[target.panel["interval"]] if "interval" in target.panel else scrape
    span = SPANS[target.panel.get("timeFrom", "5m")]
    words = {
        "__range": f"{span}s",
        "__rate_interval": f"{max(step + scrape, 4 * scrape)}s",
        **chosen(dashboard, values),
    }
    expr = re.sub(r"\$(\w+)", lambda found: words[found[1]], target.query["expr"])
    if target.query["instant"]:
        return Asked(expr, end, end, 0)
    # Steps of a day are taken at midnight; it is noon.
    last = end - DAY // 2 if step == DAY else end
    return Asked(expr, last - (span // step) * step, last, step)


def search(link: dict[str, Any], values: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """What the link asks of Jaeger where the series or row has these values: the service and the tags."""
    words = re.sub(
        r"\$\{__(?:field\.labels|data\.fields)\.(\w+)\}",
        lambda found: urllib.parse.quote(values[found[1]], safe=""),
        link["url"],
    )
    panes = json.loads(urllib.parse.parse_qs(urllib.parse.urlsplit(words).query)["panes"][0])
    (query,) = panes["traces"]["queries"]
    # logfmt, as far as it is that of a shell
    return query["service"], dict(word.split("=", 1) for word in shlex.split(query["tags"]))


def links(panel: dict[str, Any]) -> Iterator[tuple[dict[str, Any], str]]:
    """All data links of a panel, each with the column it is on: "" where it is on all."""
    config = panel["fieldConfig"]
    yield from ((link, "") for link in config["defaults"].get("links", ()))
    for override in config["overrides"]:
        for property_ in override["properties"]:
            if property_["id"] == "links":
                yield from ((link, override["matcher"]["options"]) for link in property_["value"])


def column(target: Target) -> str:
    """What the query's column is called in a table."""
    for transformation in target.panel.get("transformations", ()):
        names = transformation["options"].get("renameByName", {})
        return_ = names.get(f"Value #{target.query['refId']}") or names.get("Value")
        if return_:
            return str(return_)
    return ""

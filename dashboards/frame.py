"""What the dashboards have in common: variables, links to each other, time, and the order of rows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from panels import SOURCE, Panel
from queries import pick
from sdk import JSONEncoder, d, dashboard

TAG: Final = "spantail"
RAW_LINK: Final = ("title", "url", "targetBlank")

Row = tuple[str, Sequence[Panel]]


def framed(uid: str, title: str, text: str, rows: Sequence[Row], *, since: str = "now-6h") -> dict[str, Any]:
    """The dashboard as Grafana reads it."""
    whole = (
        dashboard.Dashboard(title)
        .uid(uid)
        .description(text)
        .tags([TAG, "coding-agents"])
        .timezone("browser")
        .readonly()
        .tooltip(d.DashboardCursorSync.CROSSHAIR)
        .time(since, "now")
        .refresh("30s")
        .version(1)
        .link(_to_the_others())
        .annotations([])
    )
    for variable in _variables():
        whole.with_variable(variable)
    for name, panels in rows:
        whole.with_row(dashboard.Row(name))
        for panel in panels:
            whole.with_panel(panel)
    built: dict[str, Any] = json.loads(json.dumps(whole.build(), cls=JSONEncoder))
    for number, panel in enumerate(built["panels"], 1):
        panel["id"] = number
        _tidy(panel)
    for link in built["links"]:
        # The builder would put it into a menu; it belongs where it is seen.
        link.pop("placement", None)
    return built


def _to_the_others() -> Any:
    return (
        dashboard.DashboardLink("spantail")
        .type(d.DashboardLinkType.DASHBOARDS)
        .tags([TAG])
        .as_dropdown(False)
        .include_vars(True)
        .keep_time(True)
    )


def _variables() -> list[Any]:
    return [
        dashboard.DatasourceVariable("prometheus_datasource")
        .label("Prometheus data source")
        .type("prometheus"),
        dashboard.DatasourceVariable("jaeger_datasource").label("Jaeger data source").type("jaeger"),
        _variable("job", "spantail_build_info", all_=".+"),
        _variable("instance", 'spantail_build_info{job=~"$job"}', all_=".+"),
        _variable("agent", 'spantail_records_total{job=~"$job", instance=~"$instance"}'),
        _variable("project", _without(pick("coding_agent_sessions_started_total"), "project")),
        _variable("model", _without(pick("coding_agent_tokens_total"), "model")),
    ]


def _variable(name: str, of: str, all_: str = ".*") -> Any:
    """All is the default. `.*` also matches series whose label is empty, as the project may be."""
    return (
        dashboard.QueryVariable(name)
        .label(name.title())
        .datasource(SOURCE)
        .query({"query": f"label_values({of}, {name})", "refId": "StandardVariableQuery"})
        .refresh(d.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(d.VariableSort.ALPHABETICAL_ASC)
        .multi(True)
        .include_all(True)
        .all_value(all_)
        .current(d.VariableOption(selected=True, text=["All"], value=["$__all"]))
    )


def _without(selector: str, label: str) -> str:
    """A variable cannot choose from what it has chosen itself."""
    return selector.replace(f', {label}=~"${label}"', "")


def _tidy(panel: dict[str, Any]) -> None:
    """Leaves out what the builder adds and no panel uses."""
    panel.pop("repeatDirection", None)
    panel.pop("transparent", None)
    defaults = panel.get("fieldConfig", {}).get("defaults", {})
    if "links" in defaults:
        defaults["links"] = [{key: link[key] for key in RAW_LINK} for link in defaults["links"]]
        if not defaults["links"]:
            del defaults["links"]

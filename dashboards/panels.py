"""The kinds of panels, each made one way: the same unit, legend and colour mean the same thing on every dashboard."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from links import Link
from queries import named
from sdk import (
    bargauge,
    c,
    common,
    d,
    dashboard,
    gauge,
    h,
    heatmap,
    p,
    piechart,
    prometheus,
    q,
    stat,
    table,
    timeseries,
)

SOURCE: Final = c.DataSourceRef(type_val="prometheus", uid="${prometheus_datasource}")

COUNT: Final = "short"
USD: Final = "currencyUSD"
SECONDS: Final = "s"
SHARE: Final = "percentunit"
BYTES: Final = "bytes"

COLORS: Final = {
    "ok": "green", "success": "green", "delivered": "green",
    "error": "red", "rejected": "red", "bad": "red", "timeout": "red",
    "interrupted": "orange", "denied": "orange", "dropped": "dark-red",
    "pending": "purple", "max_turns": "purple", "max_budget": "dark-purple", "unknown": "text",
    "input": "blue", "cache_read": "green", "cache_write": "yellow", "output": "purple",
    "model": "blue", "tool": "orange", "other": "text",
    "reported": "green", "computed": "blue", "estimate": "yellow",
}  # fmt: skip
"""What a word of ours looks like, wherever it is a series."""

STATUSES: Final = ("ok", "error", "interrupted", "pending")
EXITS: Final = ("success", "error", "interrupted", "max_turns", "max_budget", "unknown")
TYPES: Final = ("input", "cache_read", "cache_write", "output")
PHASES: Final = ("model", "tool", "other")
SOURCES: Final = ("reported", "computed", "estimate")
RESULTS: Final = ("ok", "bad", "delivered", "rejected", "dropped")
FAULTS: Final = ("timeout", "denied", "interrupted")

RISING: Final[Mapping[str, Sequence[tuple[float, str]]]] = {
    "errors": ((0.05, "orange"), (0.2, "red")),
    "used": ((0.8, "orange"), (1.0, "red")),
    "full": ((0.75, "orange"), (0.9, "red")),
    "any": ((1, "orange"),),
    "alarm": ((1, "red"),),
    "tool": ((300, "orange"), (900, "red")),
    "turn": ((1800, "orange"), (7200, "red")),
    "lag": ((5, "orange"), (60, "red")),
    "waiting": ((60, "orange"), (300, "red")),
}
"""Where a value begins to need attention. Where there is an alert about it, red begins with the alert."""

Panel = Any
"""A panel's builder: the kinds have no common type that says more."""


class Query(NamedTuple):
    expr: str
    legend: str = ""
    exemplars: bool = False


class Column(NamedTuple):
    name: str
    expr: str
    unit: str = COUNT
    steps: str = ""
    decimals: int | None = None
    bar: bool = False
    links: Sequence[Link] = ()


def number(
    title: str,
    text: str,
    expr: str,
    unit: str = COUNT,
    *,
    steps: str = "",
    since: str = "",
    none: str = "0",
    decimals: int | None = None,
    width: int = 4,
    height: int = 4,
    links: Sequence[Link] = (),
) -> Panel:
    """One number. `since`: a time of its own, such as today. `none` is shown where there are no series."""
    panel = _about(stat.Panel(), title, text, width, height).unit(unit).no_value(none)
    panel.with_target(_query(Query(expr), 0).instant())
    panel.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"])).graph_mode(
        c.BigValueGraphMode.NONE
    )
    panel.color_mode(c.BigValueColorMode.VALUE).thresholds(_steps(steps)).data_links(_links(links))
    panel.color_scheme(_by_steps())
    if since:
        panel.time_from(since)
    if decimals is not None:
        panel.decimals(decimals)
    return panel


def series(
    title: str,
    text: str,
    queries: Iterable[Query],
    unit: str = COUNT,
    *,
    stacked: bool = False,
    bars: bool = False,
    steps: str = "",
    top: float | None = None,
    step: str = "",
    since: str = "",
    calcs: Sequence[str] = (),
    width: int = 12,
    height: int = 8,
    words: Sequence[str] = (),
    links: Sequence[Link] = (),
) -> Panel:
    """Over time. `steps` are drawn as lines; `step` is the least distance of two points; `top` ends the axis."""
    # Of bars there are only those that are not zero: their mean would say nothing.
    calcs = calcs or (("max", "lastNotNull") if bars else ("mean", "max", "lastNotNull"))
    panel = _about(timeseries.Panel(), title, text, width, height).unit(unit).min(0).data_links(_links(links))
    panel.color_scheme(_by_name())
    for index, query in enumerate(queries):
        panel.with_target(_query(query, index).range().exemplar(query.exemplars))
    panel.legend(
        common.VizLegendOptions()
        .show_legend(True)
        .display_mode(c.LegendDisplayMode.TABLE)
        .placement(c.LegendPlacement.BOTTOM)
        .calcs(list(calcs))
        .sort_by({"mean": "Mean", "max": "Max", "sum": "Total"}[calcs[0]])
        .sort_desc(True)
    )
    panel.tooltip(common.VizTooltipOptions().mode(c.TooltipDisplayMode.MULTI).sort(c.SortOrder.DESCENDING))
    panel.draw_style(c.GraphDrawStyle.BARS if bars else c.GraphDrawStyle.LINE)
    panel.line_width(1).fill_opacity(70 if bars else 25 if stacked else 8)
    panel.show_points(c.VisibilityMode.AUTO).span_nulls(False).thresholds(_steps(steps))
    if stacked:
        panel.stacking(common.StackingConfig().mode(c.StackingMode.NORMAL).group("A"))
    if steps:
        style = common.GraphThresholdsStyleConfig().mode(c.GraphThresholdsStyleMode.DASHED)
        panel.thresholds_style(style)
    if top is not None:
        panel.max(top)
    if step:
        panel.interval(step).bar_alignment(c.BarAlignment.AFTER)
    if since:
        panel.time_from(since)
    return _colored(panel, words)


def rows(
    title: str,
    text: str,
    by: str,
    columns: Sequence[Column],
    *,
    sort: str,
    some: str = "",
    width: int = 24,
    height: int = 9,
    links: Mapping[str, Sequence[Link]] | None = None,
) -> Panel:
    """A table: a row per set of the labels `by`, a column per query; one without a name is there for its labels.

    Only rows where the column `some` is above zero are kept. `links` are those of the labels' own cells."""
    panel = _about(table.Panel(), title, text, width, height).unit(COUNT).filterable(True)
    names, left_out = {}, {"Time": True}
    for index, column in enumerate(columns):
        expr = named(column.expr) if "project" in by.split(", ") else column.expr
        panel.with_target(_query(Query(expr), index).instant().format(q.PromQueryFormat.TABLE))
        value = f"Value #{_letter(index)}" if len(columns) > 1 else "Value"
        if not column.name:
            left_out[value] = True
            continue
        names[value] = column.name
        panel.override_by_name(column.name, _cell(column))
    for label, of_label in (links or {}).items():
        panel.override_by_name(
            label, [d.DynamicConfigValue("links", [_plain_link(link) for link in of_label])]
        )
    if len(columns) > 1:
        panel.with_transformation(d.DataTransformerConfig(id_val="merge", options={}))
    # First the labels, then the columns as they are given; what has no place here would go to the end.
    order = {name: index for index, name in enumerate([*by.split(", "), *names])}
    organize = {"excludeByName": left_out, "indexByName": order, "renameByName": names}
    panel.with_transformation(d.DataTransformerConfig(id_val="organize", options=organize))
    if some:
        positive = {"fieldName": some, "config": {"id": "greater", "options": {"value": 0}}}
        kept = {"filters": [positive], "match": "all", "type": "include"}
        panel.with_transformation(d.DataTransformerConfig(id_val="filterByValue", options=kept))
    panel.with_transformation(
        d.DataTransformerConfig(
            id_val="sortBy", options={"fields": {}, "sort": [{"field": sort, "desc": True}]}
        )
    )
    return panel.cell_height(c.TableCellHeight.SM)


def bars(
    title: str,
    text: str,
    query: Query,
    unit: str = COUNT,
    *,
    steps: str = "",
    top: float | None = None,
    width: int = 8,
    height: int = 8,
    links: Sequence[Link] = (),
) -> Panel:
    """A bar per series, the longest first."""
    panel = _about(bargauge.Panel(), title, text, width, height).unit(unit).min(0).no_value("0")
    panel.with_target(_query(query._replace(expr=f"sort_desc({query.expr})"), 0).instant())
    panel.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"])).thresholds(_steps(steps, "blue"))
    panel.color_scheme(_by_steps()).orientation(c.VizOrientation.HORIZONTAL).display_mode(
        c.BarGaugeDisplayMode.BASIC
    )
    panel.value_mode(c.BarGaugeValueMode.TEXT).show_unfilled(True).data_links(_links(links))
    if top is not None:
        panel.max(top)
    return panel


def dial(title: str, text: str, query: Query, *, steps: str, width: int = 8, height: int = 8) -> Panel:
    """A gauge per series, from nothing to all."""
    panel = _about(gauge.Panel(), title, text, width, height).unit(SHARE).min(0).max(1).no_value("-")
    panel.with_target(_query(query, 0).instant()).thresholds(_steps(steps)).color_scheme(_by_steps())
    return panel.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))


def parts(
    title: str,
    text: str,
    query: Query,
    unit: str = COUNT,
    *,
    width: int = 8,
    words: Sequence[str] = (),
    links: Sequence[Link] = (),
) -> Panel:
    """A ring of shares."""
    panel = _about(piechart.Panel(), title, text, width, 8).unit(unit).no_value("0").data_links(_links(links))
    panel.with_target(_query(query, 0).instant()).pie_type(p.PieChartType.DONUT).color_scheme(_by_name())
    panel.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
    panel.legend(
        piechart.PieChartLegendOptions()
        .show_legend(True)
        .display_mode(c.LegendDisplayMode.TABLE)
        .placement(c.LegendPlacement.RIGHT if width >= 8 else c.LegendPlacement.BOTTOM)
        .values([p.PieChartLegendValues.VALUE, p.PieChartLegendValues.PERCENT])
    )
    return _colored(panel, words)


def spread(title: str, text: str, metric_buckets: str, *, width: int = 12) -> Panel:
    """A heat map of a histogram's buckets."""
    panel = _about(heatmap.Panel(), title, text, width, 8).unit(COUNT)
    asked = _query(Query(metric_buckets, "{{le}}"), 0).range().exemplar(True)
    panel.with_target(asked.format(q.PromQueryFormat.HEATMAP))
    panel.color(
        heatmap.HeatmapColorOptions()
        .mode(h.HeatmapColorMode.SCHEME)
        .scheme("Oranges")
        .scale(h.HeatmapColorScale.EXPONENTIAL)
        .exponent(0.5)
        .steps(64)
    )
    panel.y_axis(heatmap.YAxisConfig().unit(SECONDS).axis_placement(c.AxisPlacement.LEFT))
    panel.cell_values(heatmap.CellValues().unit(COUNT))
    return panel.tooltip(heatmap.HeatmapTooltip().mode(c.TooltipDisplayMode.SINGLE).y_histogram(True))


# ------------------------------------------------------------------------------------------- parts of panels


def _about(panel: Panel, title: str, text: str, width: int, height: int) -> Panel:
    return panel.title(title).description(text).datasource(SOURCE).span(width).height(height)


def _letter(index: int) -> str:
    return chr(ord("A") + index)


def _query(query: Query, index: int) -> Any:
    asked = prometheus.Dataquery().datasource(SOURCE).expr(query.expr).ref_id(_letter(index))
    asked.editor_mode(q.QueryEditorMode.CODE)
    return asked.legend_format(query.legend or "__auto")


def _steps(name: str, base: str = "green") -> Any:
    steps = [d.Threshold(value=None, color=base if name else "blue")]
    steps += [d.Threshold(value=at, color=color) for at, color in RISING.get(name, ())]
    return dashboard.ThresholdsConfig().mode(d.ThresholdsMode.ABSOLUTE).steps(steps)


def _by_name() -> Any:
    return dashboard.FieldColor().mode(d.FieldColorModeId.PALETTE_CLASSIC)


def _by_steps() -> Any:
    return dashboard.FieldColor().mode(d.FieldColorModeId.THRESHOLDS)


def _cell(column: Column) -> list[d.DynamicConfigValue]:
    properties = [d.DynamicConfigValue("unit", column.unit)]
    if column.decimals is not None:
        properties.append(d.DynamicConfigValue("decimals", column.decimals))
    if column.steps:
        steps: list[dict[str, Any]] = [{"value": None, "color": "green"}]
        steps += [{"value": at, "color": color} for at, color in RISING[column.steps]]
        properties.append(d.DynamicConfigValue("thresholds", {"mode": "absolute", "steps": steps}))
        properties.append(d.DynamicConfigValue("custom.cellOptions", {"type": "color-text"}))
    if column.bar:
        gauge_cell = {"type": "gauge", "mode": "basic", "valueDisplayMode": "text"}
        properties.append(d.DynamicConfigValue("custom.cellOptions", gauge_cell))
    if column.links:
        properties.append(d.DynamicConfigValue("links", [_plain_link(link) for link in column.links]))
    return properties


def _colored(panel: Panel, words: Sequence[str]) -> Panel:
    """Series whose name ends with one of these words have its colour; others are given one by Grafana."""
    for word in words:
        fixed = {"mode": "fixed", "fixedColor": COLORS[word]}
        panel.override_by_regexp(f"/(^| ){word}$/", [d.DynamicConfigValue("color", fixed)])
    return panel


def _plain_link(link: Link) -> dict[str, Any]:
    return {"title": link[0], "url": link[1], "targetBlank": _leaves(link)}


def _links(links: Sequence[Link]) -> list[Any]:
    return [dashboard.DashboardLink(link[0]).url(link[1]).target_blank(_leaves(link)) for link in links]


def _leaves(link: Link) -> bool:
    """Traces are looked at beside the dashboard, another dashboard in its place."""
    return link[1].startswith("/explore")

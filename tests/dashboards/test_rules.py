"""The dashboards keep the rules of mixins and of Grafana's dashboard-linter, and are what the code makes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from datetime import timedelta
from urllib.parse import parse_qs, urlsplit

import pytest
from grafana import FILES, FOLDER, column, links, load, panels, targets, variables
from promql import RANGE, RATE_INTERVAL, Read, read

from spantail.state.families import BY_NAME, FAMILIES

UIDS = {
    "overview": "spantail-overview",
    "cost": "spantail-cost",
    "tools": "spantail-tools",
    "turns": "spantail-turns",
    "spantail": "spantail-itself",
}
"""Links and bookmarks have them: they stay."""
UNITS = {"short", "currencyUSD", "s", "percentunit", "bytes", "Bps"}
PROMETHEUS = {"type": "prometheus", "uid": "${prometheus_datasource}"}
FOREIGN = re.compile(r"up|process_\w+|scrape_\w+")
"""Metrics that Prometheus and its client add."""
DASHBOARDS = {path.stem: load(path) for path in FILES}


@pytest.fixture(params=UIDS)
def dashboard(request):
    return DASHBOARDS[request.param]


TARGETS = [(name, target) for name, dashboard in DASHBOARDS.items() for target in targets(dashboard)]
each_query = pytest.mark.parametrize(
    "target",
    [target for _, target in TARGETS],
    ids=[f"{name}: {target.panel['title']} {target.query['refId']}" for name, target in TARGETS],
)


def family(metric: str):
    return BY_NAME.get(metric) or BY_NAME.get(re.sub(r"_(bucket|sum|count)\Z", "", metric))


# ------------------------------------------------------------------------------------------------- the whole


def test_the_json_is_what_the_code_makes(tmp_path):
    """Run `python dashboards/generate.py` after a change."""
    subprocess.run([sys.executable, FOLDER / "generate.py", tmp_path], check=True, timeout=60)
    made = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert made == {path.name: path.read_text() for path in FILES}


def test_the_dashboards_are_those_five():
    assert {name: dashboard["uid"] for name, dashboard in DASHBOARDS.items()} == UIDS
    assert len({dashboard["title"] for dashboard in DASHBOARDS.values()}) == 5


def test_a_dashboard_is_classic_and_not_edited_by_hand(dashboard):
    """What is changed in Grafana would be gone with the next start: dashboards are changed in the code."""
    assert dashboard["schemaVersion"] == 42
    assert dashboard["editable"] is False
    assert dashboard["description"]
    assert dashboard["refresh"]
    assert "id" not in dashboard


def test_the_dashboards_lead_to_each_other(dashboard):
    """By the tag they share, taking time and variables along."""
    (link,) = dashboard["links"]
    assert link["type"] == "dashboards"
    assert set(link["tags"]) <= set(dashboard["tags"])
    assert link["keepTime"]
    assert link["includeVars"]


def test_every_metric_is_on_a_dashboard():
    """What is worth counting is worth seeing."""
    shown = {selected.metric for _, target in TARGETS for selected in _read(target).selected}
    shown = {found.name for metric in shown if (found := family(metric))}
    assert {each.name for each in FAMILIES} - shown == set()


# ------------------------------------------------------------------------------------------------- variables


def test_the_data_sources_are_variables(dashboard):
    """Named and labelled as the linter wants it where there are two; Prometheus is the first."""
    sources = [each for each in dashboard["templating"]["list"] if each["type"] == "datasource"]
    assert [(each["name"], each["label"], each["query"]) for each in sources] == [
        ("prometheus_datasource", "Prometheus data source", "prometheus"),
        ("jaeger_datasource", "Jaeger data source", "jaeger"),
    ]


@pytest.mark.parametrize(
    ("name", "all_"), [("job", ".+"), ("instance", ".+"), ("agent", ".*"), ("project", ".*"), ("model", ".*")]
)
def test_a_variable_chooses_some_or_all(dashboard, name, all_):
    """All is the default, and also has what has an empty label (a session outside of any project)."""
    variable = variables(dashboard)[name]
    assert variable["type"] == "query"
    assert variable["datasource"] == PROMETHEUS
    assert variable["label"] == name.title()
    assert variable["multi"]
    assert variable["includeAll"]
    assert variable["allValue"] == all_
    assert variable["current"]["value"] == ["$__all"]
    assert variable["refresh"] == 2, "on change of the time range"
    found = re.fullmatch(rf"label_values\((.+), {name}\)", variable["query"]["query"])
    assert found is not None
    (selected,) = read(found[1]).selected
    assert selected.metric in BY_NAME
    before = {"job", "instance", "agent"} if name in ("project", "model") else set()
    assert before <= set(selected.matchers)


def test_every_variable_has_an_effect(dashboard):
    """One that changes nothing misleads."""
    text = json.dumps(dashboard["panels"])
    for name in variables(dashboard):
        assert f"${name}" in text or f"${{{name}}}" in text, name


# ---------------------------------------------------------------------------------------------------- panels


def test_panels_have_ids_and_places_of_their_own(dashboard):
    """Rows are full, nothing overlaps, nothing stands out of the grid."""
    ids = Counter(panel["id"] for panel in dashboard["panels"])
    assert set(ids.values()) == {1}
    taken = Counter()
    for panel in dashboard["panels"]:
        at = panel["gridPos"]
        taken.update(
            (x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])
        )
    assert set(taken.values()) == {1}
    height = max(y for _, y in taken) + 1
    assert set(taken) == {(x, y) for x in range(24) for y in range(height)}


def test_every_panel_explains_itself(dashboard):
    for panel in panels(dashboard):
        assert panel["title"]
        assert panel["description"].endswith("."), panel["title"]
        assert panel["datasource"] == PROMETHEUS, panel["title"]
        assert panel["targets"], panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"] in UNITS, panel["title"]


def test_a_number_says_what_none_means(dashboard):
    for panel in panels(dashboard):
        if panel["type"] == "stat":
            assert panel["fieldConfig"]["defaults"]["noValue"] in ("0", "-"), panel["title"]


def test_columns_have_units(dashboard):
    """Each column of a table by its own name; a name is given once."""
    for panel in panels(dashboard):
        if panel["type"] != "table":
            continue
        units = {
            override["matcher"]["options"]: property_["value"]
            for override in panel["fieldConfig"]["overrides"]
            for property_ in override["properties"]
            if property_["id"] == "unit"
        }
        (organize,) = (each for each in panel["transformations"] if each["id"] == "organize")
        names = list(organize["options"]["renameByName"].values())
        assert len(names) == len(set(names)), panel["title"]
        assert set(units) == set(names), panel["title"]
        assert set(units.values()) <= UNITS, panel["title"]
        labels = set().union(*(read(query["expr"]).labels for query in panel["targets"])) - {"le"}
        order = organize["options"]["indexByName"]
        # A label that has no place would be the last column.
        assert sorted(order, key=order.get)[: len(labels)] == sorted(labels, key=order.get), panel["title"]
        (sort,) = (each for each in panel["transformations"] if each["id"] == "sortBy")
        assert sort["options"]["sort"][0]["field"] in names, panel["title"]


def test_no_data_source_is_fixed(dashboard):
    """Wherever one is named, it is a variable."""

    def sources(node):
        if isinstance(node, dict):
            for key, value in node.items():
                if key == "datasource":
                    yield value
                else:
                    yield from sources(value)
        elif isinstance(node, list):
            for each in node:
                yield from sources(each)

    assert all(source == PROMETHEUS for source in sources(dashboard))


def test_durations_show_exemplars(dashboard):
    """Each panel that draws a histogram over time."""
    for panel in panels(dashboard):
        drawn = [query for query in panel["targets"] if "_bucket{" in query["expr"] and query["range"]]
        assert not drawn or any(query["exemplar"] for query in drawn), panel["title"]


# --------------------------------------------------------------------------------------------------- queries


def _read(target) -> Read:
    return read(target.query["expr"])


@each_query
def test_a_query_is_filtered_by_every_variable_it_can_be(target):
    """Job and instance always; agent, project and model where the metric has that label."""
    for selected in _read(target).selected:
        known = family(selected.metric)
        assert known or FOREIGN.fullmatch(selected.metric) or selected.metric == "=~coding_agent_.+"
        wanted = {"job", "instance"} | ({"agent", "project", "model"} & set(known.labels if known else ()))
        for label in wanted:
            assert selected.matchers.get(label) == f"=~${label}", selected.metric
        if known:
            assert set(selected.matchers) <= {"job", "instance", *known.labels}, selected.metric


@each_query
def test_counters_are_asked_over_the_right_span(target):
    """Rates over $__rate_interval, totals over $__range, bars of a day over that day; never the bare counter."""
    for selected in _read(target).selected:
        known = family(selected.metric)
        counts = (known and known.kind != "gauge") or selected.metric.endswith("_total")
        assert counts == bool(selected.function), selected.metric
        if selected.function == "rate":
            assert selected.over == RATE_INTERVAL
        elif selected.function == "increase" and selected.over == timedelta(days=1):
            assert selected.offset == -timedelta(days=1)
            assert target.panel["interval"] == "1d"
        elif selected.function:
            assert selected.function == "increase"
            assert selected.over == RANGE or target.panel["type"] == "heatmap"


@each_query
def test_names_and_links_use_labels_that_are_there(target):
    """What a legend or a link speaks of is what the query groups by."""
    read_ = _read(target)
    known = {label for each in FAMILIES for label in each.labels} | {"instance", "le"}
    assert read_.labels <= known
    named = set(re.findall(r"{{(\w+)}}", target.query["legendFormat"]))
    assert named <= read_.labels
    for link, on in links(target.panel):
        if on in ("", column(target)) or on in read_.labels:
            spoken = re.findall(r"__(?:field\.labels|data\.fields)\.(\w+)", link["title"] + link["url"])
            assert set(spoken) <= read_.labels, link["title"]
            kind = "data.fields" if target.panel["type"] == "table" else "field.labels"
            assert f"__{kind}." in link["url"] or link["url"].startswith("/d/")


@each_query
def test_a_query_is_instant_where_one_moment_is_shown(target):
    """A range query for one number would ask Prometheus for hundreds."""
    over_time = target.panel["type"] in ("timeseries", "heatmap")
    assert target.query["instant"] is not over_time
    assert target.query["range"] is over_time
    assert target.query["format"] if target.panel["type"] in ("table", "heatmap") else True


# ----------------------------------------------------------------------------------------------------- links


def test_links_open_a_search_in_jaeger(dashboard):
    """In Explore, with the data source that is chosen and the time that is shown; or another dashboard."""
    for panel in panels(dashboard):
        for link, _ in links(panel):
            address = urlsplit(link["url"])
            if address.path.startswith("/d/"):
                assert address.path.removeprefix("/d/") in UIDS.values()
                assert address.query == "${__url_time_range}&${__all_variables}"
                continue
            assert address.path == "/explore"
            panes = json.loads(parse_qs(address.query)["panes"][0])
            (pane,) = panes.values()
            assert pane["datasource"] == "${jaeger_datasource}"
            assert pane["range"] == {"from": "${__from}", "to": "${__to}"}
            (query,) = pane["queries"]
            assert query["queryType"] == "search"
            assert query["service"].endswith(".agent}")
            assert link["targetBlank"]


def test_errors_lead_to_jaeger_by_agent_and_error_type():
    """Each panel that tells errors apart by type."""
    found = 0
    for _, target in TARGETS:
        if "{{error_type}}" in target.query["legendFormat"]:
            assert any("error.type%3D%5C%22${" in link["url"] for link, _ in links(target.panel)), (
                target.panel["title"]
            )
            found += 1
    assert found >= 4

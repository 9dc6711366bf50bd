"""Every query of every panel on a real Prometheus that has scraped real spantails: data everywhere, and the right data."""

from __future__ import annotations

import functools
from collections import Counter

import pytest
from asking import answers, empty
from fed import JOB, SCRAPE, cases, fed
from grafana import FILES, asked, column, links, load, panels, search, targets

import truth
from servers.jaeger import Jaeger

pytestmark = pytest.mark.servers
YEARS = 4_000_000_000
"""Seconds: long after everything."""
LABELS = {"agent", "project", "model", "tool", "error_type", "exit_status"}
"""Columns of tables that are labels."""
NEVER = {"Model calls that fail A", "Label values shown as other A"}
"""What no recording has: a series `none` is all there is to see."""
DASHBOARDS = {path.stem: load(path) for path in FILES}


@pytest.fixture(scope="module")
def world(prometheus, jaeger_program, tmp_path_factory):
    folder = tmp_path_factory.mktemp("fed")
    with Jaeger(jaeger_program, folder / "jaeger") as jaeger, fed(prometheus, jaeger, folder) as world:
        yield world


@pytest.mark.parametrize("name", DASHBOARDS)
def test_no_panel_comes_back_empty(name, world):
    """With All chosen everywhere, each query of each panel has a value that is not there only for want of one."""
    found = empty(world.prometheus, DASHBOARDS[name], {"job": JOB}, world.at, SCRAPE)
    assert [each for each in found if each not in NEVER] == []


def shown(world, name: str, title: str, **values: str) -> float:
    """What the panel with that title says of the recordings, with these variables chosen."""
    dashboard = DASHBOARDS[name]
    chosen = {"job": JOB, "instance": world.recorded, **values}
    (panel,) = (each for each in panels(dashboard) if each["title"] == title and each["type"] == "stat")
    ((_, (value,)),) = [
        answer
        for target in targets(dashboard)
        if target.panel is panel
        for answer in answers(world.prometheus, asked(dashboard, target, chosen, world.at, SCRAPE))
    ]
    return value


def test_the_totals_are_those_of_the_recordings(world):
    """Turns, tool calls, failures and tokens of all agents, as the dashboards show them."""
    expected = [truth.expected(case) for case in cases()]
    tools = [tool["status"] for expect in expected for tool in expect["tools"]]
    tokens = Counter[str]()
    for expect in expected:
        tokens.update({kind: n for kind, n in (expect["tokens"] or {}).items() if kind in truth.KINDS and n})
    turns = sum(expect["turns"] for expect in expected)
    assert shown(world, "overview", "Turns") == turns
    assert shown(world, "turns", "Turns") == turns
    assert shown(world, "overview", "Tool calls") == len(tools)
    assert shown(world, "tools", "Tool calls") == len(tools)
    assert shown(world, "overview", "Tool calls that failed") == pytest.approx(
        tools.count("error") / len(tools)
    )
    assert shown(world, "overview", "Tokens") == sum(tokens.values())
    assert shown(world, "cost", "Tokens read from cache") == tokens["cache_read"]
    taken = sum(tokens.values()) - tokens["output"]
    saved = (0.9 * tokens["cache_read"] - 0.25 * tokens["cache_write"]) / taken
    assert shown(world, "cost", "Saved by the cache") == pytest.approx(saved)


@pytest.mark.parametrize("agent", sorted({case.parent.name for case in cases()}))
def test_the_totals_of_an_agent_are_those_of_its_recordings(agent, world):
    """The variable `agent` chooses them."""
    expected = [truth.expected(case) for case in cases() if case.parent.name == agent]
    assert shown(world, "overview", "Turns", agent=agent) == sum(expect["turns"] for expect in expected)
    tools = sum(len(expect["tools"]) for expect in expected)
    if tools:
        assert shown(world, "tools", "Tool calls", agent=agent) == tools


COSTS = {
    f"{case.parent.name}--{case.name}": expect["cost_usd"]
    for case in cases()
    if (expect := truth.expected(case))["exact"] and expect.get("cost_usd")
}
"""By the name of the home: what the recordings cost whose cost is known to the cent."""


@pytest.mark.parametrize("agent", sorted({home.partition("--")[0] for home in COSTS}))
def test_the_cost_is_that_of_the_recordings(agent, world):
    """The ten users who spent most, each of whom has one recording."""
    dashboard = DASHBOARDS["cost"]
    (target,) = (each for each in targets(dashboard) if each.panel["title"] == "Users")
    chosen = {"job": JOB, "instance": world.recorded, "agent": agent}
    found = {
        labels["user"]: cost
        for labels, (cost,) in answers(world.prometheus, asked(dashboard, target, chosen, world.at, SCRAPE))
        if labels["user"] in COSTS
    }
    assert found
    assert found == pytest.approx({home: COSTS[home] for home in found})


@pytest.mark.parametrize("name", DASHBOARDS)
def test_exemplars_lead_to_traces(name, world):
    """Where a panel shows exemplars there are some, and Jaeger has the traces they name."""
    dashboard = DASHBOARDS[name]
    for target in targets(dashboard):
        if target.query.get("exemplar"):
            expr = asked(dashboard, target, {"job": JOB, "instance": world.recorded}, world.at, SCRAPE).expr
            found = world.prometheus.exemplars(expr, 0, YEARS)
            ids = {each["labels"]["trace_id"] for series in found for each in series["exemplars"]}
            assert ids, target.panel["title"]
            assert world.jaeger.trace(min(ids))["traceID"] == min(ids), target.panel["title"]


@pytest.mark.parametrize("name", DASHBOARDS)
def test_links_lead_to_traces(name, world):
    """A click on a series, or on a cell that is not zero, leads to a search that Jaeger has an answer to."""
    dashboard = DASHBOARDS[name]
    dead = set()
    for target in targets(dashboard):
        clicks = [
            link
            for link, on in links(target.panel)
            if link["url"].startswith("/explore") and (on in ("", column(target)) or on in LABELS)
        ]
        query = asked(dashboard, target, {"job": JOB, "instance": world.recorded}, world.at, SCRAPE)
        for labels, values in answers(world.prometheus, query) if clicks else ():
            for link in clicks if any(values) else ():
                agent, tags = search(link, labels)
                if not found(world, agent, tuple(sorted(tags.items()))):
                    dead.add((target.panel["title"], agent, *sorted(tags.items())))
    assert dead == set()


@functools.cache
def found(world, agent: str, tags: tuple[tuple[str, str], ...]) -> bool:
    """Whether Jaeger has such traces; many panels ask the same."""
    return bool(world.jaeger.search(agent, 1, YEARS * 10**9, **dict(tags)))

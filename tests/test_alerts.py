"""The alert rules of deploy/prometheus: each is right by promtool, speaks of metrics that exist, and has its runbook."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from ports import free_port
from servers.server import Server, eventually
from spantail.state.families import FAMILIES, Family

DEPLOY = Path(__file__).resolve().parent.parent / "deploy"
RULES = sorted((DEPLOY / "prometheus" / "rules").glob("*.yml"))
TESTS = sorted((DEPLOY / "prometheus" / "tests").glob("*.yml"))
TARGET = {"job", "instance"}
"""What Prometheus adds to every series."""
PLAYED = {
    "CodingAgentBudgetNearlySpent",
    "CodingAgentBudgetSpent",
    "CodingAgentLimitReached",
    "CodingAgentLoop",
    "CodingAgentToolErrorRate",
    "CodingAgentTurnFailed",
    "CodingAgentUnpricedModel",
}
"""What `spantail demo` has scenes for."""
SEVERITIES = {"critical", "warning", "info"}


def rules() -> list[dict[str, Any]]:
    return [
        rule
        for path in RULES
        for group in yaml.safe_load(path.read_text())["groups"]
        for rule in group["rules"]
    ]


ALERTS = {rule["alert"]: rule for rule in rules() if "alert" in rule}
RECORDED = {rule["record"]: rule["expr"] for rule in rules() if "record" in rule}


def samples(family: Family) -> list[str]:
    """The names of its series on the page."""
    suffixes = ("_bucket", "_sum", "_count") if family.kind == "histogram" else ("",)
    return [family.name + suffix for suffix in suffixes]


SERIES = {name: family for family in FAMILIES for name in samples(family)}


def families(expression: str) -> list[Family]:
    """The metrics that the expression asks for, through recording rules too."""
    for name, inner in RECORDED.items():
        expression = expression.replace(name, inner)
    return [SERIES[name] for name in re.findall(r"\b(?:coding_agent|spantail)_\w+", expression)]


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule.get("alert") or rule.get("record"))
def test_rules_ask_for_metrics_and_labels_that_exist(rule):
    """A name that no page has would be a rule that never fires."""
    asked = families(rule["expr"])
    assert asked
    for name, matchers in re.findall(r"\b((?:coding_agent|spantail)_\w+)\{(.*?)\}", rule["expr"]):
        labels = SERIES[name].labels
        for label, sign, value in re.findall(r'(\w+)\s*(=~|!~|!=|=)\s*"(.*?)"', matchers):
            assert label in labels
            if SERIES[name].closed == label and sign in ("=", "=~"):
                assert set(value.split("|")) <= set(SERIES[name].values)
    known = TARGET.union(*(family.labels for family in asked))
    for listed in re.findall(r"\b(?:without|by|ignoring|on|group_left)\s*\((.*?)\)", rule["expr"]):
        assert set(filter(None, listed.replace(" ", "").split(","))) <= known


@pytest.mark.parametrize("alert", ALERTS.values(), ids=ALERTS)
def test_an_alert_says_what_a_person_needs(alert):
    """How bad, what, where to look; and a label that the text shows is one that the alert has."""
    assert alert["labels"]["severity"] in SEVERITIES
    notes = alert["annotations"]
    assert set(notes) == {"summary", "description", "runbook_url"}
    assert notes["runbook_url"] == f"deploy/runbook.md#{alert['alert'].lower()}"
    shown = set(re.findall(r"\$labels\.(\w+)", notes["summary"] + notes["description"]))
    dropped = {
        label for listed in re.findall(r"without \((.*?)\)", alert["expr"]) for label in listed.split(", ")
    }
    have = TARGET.union(*(family.labels for family in families(alert["expr"])))
    assert shown <= have - dropped


def test_the_runbook_has_a_section_for_every_alert_and_no_other():
    text = (DEPLOY / "runbook.md").read_text()
    assert sorted(re.findall(r"^### (\w+)$", text, re.MULTILINE)) == sorted(ALERTS)
    assert set(re.findall(r"\]\(#(\w+)\)", text)) <= {name.lower() for name in ALERTS}


def test_every_alert_has_a_firing_and_a_quiet_case():
    """Which promtool runs, below. A case in which it only ever fires, or never, is half a test."""
    fired: set[str] = set()
    quiet: set[str] = set()
    for path in TESTS:
        for case in yaml.safe_load(path.read_text())["tests"]:
            outcomes = case["alert_rule_test"]
            (name,) = {outcome["alertname"] for outcome in outcomes}
            assert case["name"].startswith(f"{name}, ")
            if any(outcome["exp_alerts"] for outcome in outcomes):
                fired.add(name)
            else:
                quiet.add(name)
    assert fired == set(ALERTS)
    assert quiet == set(ALERTS)


@pytest.mark.servers
def test_promtool_accepts_the_rules(promtool):
    ended = promtool("check", "rules", "--lint=all", "--lint-fatal", *RULES)
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.servers
@pytest.mark.parametrize("path", TESTS, ids=lambda path: path.stem)
def test_every_alert_fires_when_it_should_and_only_then(promtool, path):
    ended = promtool("test", "rules", path)
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.servers
def test_the_demo_sets_off_what_it_plays(prometheus, tmp_path):
    """Failures, a loop, a limit, a model without a price, a budget that is blown: found in a real Prometheus."""
    port = free_port()
    address = f"127.0.0.1:{port}"
    command = [sys.executable, "-m", "spantail", "demo", "--seed", "1", "--speed", "4", "--listen", address]
    demo = Server(command, tmp_path, f"http://{address}/readyz", {"HOME": str(tmp_path)})
    with demo, prometheus.job("alerts", address, rules=RULES):

        def fired() -> set[str]:
            alerts = prometheus.alerts()
            return {each["labels"]["alertname"] for each in alerts if each["labels"].get("job") == "alerts"}

        eventually(lambda: fired() >= PLAYED, seconds=120, what="the demo's alerts")
        assert not any(name.startswith("Spantail") for name in fired())
        assert prometheus.faulty_rules() == []

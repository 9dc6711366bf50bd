"""deploy/alertmanager: what the real Alertmanager makes of it, from an alert to a message at a webhook."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from servers.alertmanager import Alertmanager
from servers.server import eventually
from servers.webhook import Webhook

pytestmark = pytest.mark.servers

CONFIG = Path(__file__).resolve().parent.parent / "deploy" / "alertmanager" / "alertmanager.yml"


def with_webhook(folder: Path, url: str) -> Path:
    """The configuration as it is, but to this address and without the waiting."""
    config = yaml.safe_load(CONFIG.read_text())
    (receiver,) = config["receivers"]
    (webhook,) = receiver["webhook_configs"]
    webhook["url"] = url
    for route in (config["route"], *config["route"]["routes"]):
        route["group_wait"] = "1s"
        route["group_interval"] = "1s"
    path = folder / "alertmanager.yml"
    path.write_text(yaml.safe_dump(config))
    return path


@pytest.fixture(scope="module")
def server(alertmanager_program, tmp_path_factory) -> Iterator[tuple[Alertmanager, Webhook]]:
    folder = tmp_path_factory.mktemp("alertmanager")
    with (
        Webhook() as webhook,
        Alertmanager(alertmanager_program, folder / "run", with_webhook(folder, webhook.url)) as alertmanager,
    ):
        yield alertmanager, webhook


def alert(name: str, severity: str = "warning", **labels: str) -> dict[str, Any]:
    return {
        "labels": {"alertname": name, "severity": severity, "job": "spantail", **labels},
        "annotations": {"summary": f"{name} of a test"},
    }


def names(messages: list[dict[str, Any]], instance: str) -> list[list[str]]:
    """Of each message the alerts that speak of this instance."""
    found = [
        sorted(
            each["labels"]["alertname"]
            for each in message["alerts"]
            if each["labels"].get("instance") == instance
        )
        for message in messages
    ]
    return [each for each in found if each]


def test_amtool_accepts_the_configuration(amtool):
    ended = amtool("check-config", CONFIG)
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.parametrize("severity", ["critical", "warning", "info"])
def test_every_alert_reaches_the_team(amtool, severity):
    """Whatever its severity: no route leads nowhere."""
    ended = amtool(
        "config", "routes", "test", f"--config.file={CONFIG}", f"severity={severity}", "alertname=X"
    )
    assert ended.stdout.split() == ["team"], ended.stderr


def test_alerts_of_one_kind_come_as_one_message(server):
    """Two projects with failed turns of one agent: one message; another agent's: another one."""
    alertmanager, webhook = server
    alertmanager.post(
        alert("CodingAgentTurnFailed", agent="a", project="shop", instance="grouped"),
        alert("CodingAgentTurnFailed", agent="a", project="web", instance="grouped"),
        alert("CodingAgentTurnFailed", agent="b", project="web", instance="grouped"),
    )
    eventually(lambda: len(names(webhook.messages, "grouped")) == 2, what="two messages")
    sizes = {
        message["groupLabels"]["agent"]: len(message["alerts"])
        for message in webhook.messages
        if message["alerts"][0]["labels"].get("instance") == "grouped"
    }
    assert sizes == {"a": 2, "b": 1}
    assert all(
        message["receiver"] == "team" and message["status"] == "firing" for message in webhook.messages
    )


@pytest.mark.parametrize(
    ("source", "targets"),
    [
        (
            alert("CodingAgentBudgetSpent", "critical", budget="b", period="day", instance="spent"),
            [
                alert("CodingAgentBudgetNearlySpent", budget="b", period="day", instance="spent"),
                alert("CodingAgentBudgetForecast", budget="b", period="day", instance="spent"),
            ],
        ),
        (
            alert("SpantailDown", "critical", instance="down"),
            [
                alert("SpantailNotDelivering", instance="down"),
                alert("CodingAgentStuckInTool", agent="a", instance="down"),
            ],
        ),
        (
            alert("SpantailStateNotWritten", "critical", instance="unwritten"),
            [alert("SpantailLagging", instance="unwritten")],
        ),
        (
            alert("CodingAgentProviderErrorRate", "critical", agent="a", instance="provider"),
            [alert("CodingAgentTurnFailed", agent="a", project="shop", instance="provider")],
        ),
    ],
    ids=lambda value: value["labels"]["alertname"] if isinstance(value, dict) else "",
)
def test_the_cause_silences_its_consequences(server, source, targets):
    """The message of the cause arrives; those of its consequences are held back, as Alertmanager itself says."""
    alertmanager, webhook = server
    instance = source["labels"]["instance"]
    elsewhere = {**targets[0], "labels": {**targets[0]["labels"], "instance": f"not-{instance}"}}
    alertmanager.post(source, *targets, elsewhere)
    eventually(lambda: names(webhook.messages, f"not-{instance}"), what="the alert of another instance")
    eventually(lambda: names(webhook.messages, instance), what="the cause")
    states = {
        each["labels"]["alertname"]: each["status"]["state"]
        for each in alertmanager.alerts()
        if each["labels"].get("instance") == instance
    }
    expected = {each["labels"]["alertname"]: "suppressed" for each in targets}
    assert states == expected | {source["labels"]["alertname"]: "active"}
    assert names(webhook.messages, instance) == [[source["labels"]["alertname"]]]

"""The first failure of its kind fires its alert: spantail, two Prometheus and an Alertmanager, all of them real.

spantail follows sessions while they are written and is killed twice: once while a new series is still shown as 0, once
in the middle of a session. For whoever is woken by these alerts: what `increase()` says is what happened, neither more
(a restart taken for a reset) nor less (a first failure that nobody saw).
"""

from __future__ import annotations

import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import replay
import truth
from ports import free_port
from servers.alertmanager import Alertmanager
from servers.prometheus import Prometheus
from servers.server import DIRECT, Server, eventually
from servers.webhook import Webhook
from spantail.state.families import FAMILIES
from test_alertmanager import with_webhook
from test_alerts import RULES

pytestmark = pytest.mark.servers

BEFORE = truth.FIXTURES / "generic" / "multi-a"
FAILS = truth.FIXTURES / "claude-code" / "fatal-a"
WORKS = truth.FIXTURES / "claude-code" / "tools-a"
"""Its turn is well; one of its tool calls fails."""
FAILED_TURNS = 'coding_agent_turns_total{agent="claude-code", status="error"}'
# Exact at both ends, where the plain one extrapolates.
EXACT = "increase({}[10m] anchored)"
COUNTERS = [
    family.name if family.kind == "counter" else f"{family.name}_count"
    for family in FAMILIES
    if family.about_agents and family.kind != "gauge"
]

Values = dict[tuple[str, frozenset[tuple[str, str]]], float]


class Spantail(Server):
    def __init__(self, home: Path, folder: Path) -> None:
        port = free_port()
        self.address = f"127.0.0.1:{port}"
        options = {"home": home, "state": folder / "state", "listen": self.address, "since": "all"}
        words = [word for name, value in options.items() for word in (f"--{name}", value)]
        super().__init__(
            # Five scrapes long, which is short for a test and enough for two scrapers.
            [sys.executable, "-m", "spantail", "run", *words, "--new-series-hold", "5s"],
            folder,
            f"http://{self.address}/readyz",
            {"HOME": str(folder)},
        )

    def counted(self) -> Values:
        """What it has counted, as a person sees it: nothing is held back."""
        with DIRECT.open(f"http://{self.address}/metrics", timeout=20) as answer:
            page = truth.samples(answer.read().decode())
        return {
            (name, frozenset((key, text) for key, text in labels.items() if text)): value
            for name in COUNTERS
            for labels, value in page.get(name, ())
        }

    def die(self) -> None:
        self.stop(signal.SIGKILL)


class Stack:
    def __init__(self, home: Path, spantail: Spantail, scrapers: list[Prometheus], webhook: Webhook) -> None:
        self.home, self.spantail, self.scrapers, self.webhook = home, spantail, scrapers, webhook

    def write(self, pieces: list[replay.Piece]) -> None:
        for piece in pieces:
            replay.append(self.home, piece)


@pytest.fixture(scope="module")
def stack(prometheus_program, alertmanager_program, tmp_path_factory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("stack")
    shutil.copytree(BEFORE / "home", folder / "home")
    for case in (FAILS, WORKS):
        for piece in replay.lines(case / "home"):
            (folder / "home" / piece[1]).parent.mkdir(parents=True, exist_ok=True)
    with (
        Webhook() as webhook,
        Alertmanager(alertmanager_program, folder / "am", with_webhook(folder, webhook.url)) as alertmanager,
        Spantail(folder / "home", folder / "spantail") as spantail,
    ):
        config = {
            "alerting": {"alertmanagers": [{"static_configs": [{"targets": [alertmanager.address]}]}]},
            "rule_files": [str(path) for path in RULES],
            "scrape_configs": [
                {"job_name": "spantail", "static_configs": [{"targets": [spantail.address]}]},
            ],
        }
        flags = ["--enable-feature=promql-extended-range-selectors"]
        one, two = (
            Prometheus(prometheus_program, folder / name, flags=flags, config=config)
            for name in ("one", "two")
        )
        with one, two:
            yield Stack(folder / "home", spantail, [one, two], webhook)


def increases(prometheus: Prometheus) -> Values:
    found: Values = {}
    for name in COUNTERS:
        for labels, value in prometheus.query(EXACT.format(name)):
            own = frozenset((key, text) for key, text in labels.items() if key not in ("job", "instance"))
            found[name, own] = value
    return found


def test_the_first_failure_is_seen_and_nothing_is_seen_twice(stack):
    spantail, scrapers = stack.spantail, stack.scrapers
    for prometheus in scrapers:
        prometheus.wait_for_scrape("spantail")
    before = spantail.counted()
    assert not any("claude-code" in dict(labels).values() for _, labels in before)

    stack.write(replay.lines(FAILS / "home"))
    for prometheus in scrapers:
        eventually(lambda: prometheus.query(FAILED_TURNS), what="the new series")  # noqa: B023
        assert prometheus.value(FAILED_TURNS) == 0, "a new series is shown as 0"
    spantail.die()
    spantail.start()

    for prometheus in scrapers:
        (alert,) = eventually(lambda: prometheus.alerts("CodingAgentTurnFailed"), what="the alert")  # noqa: B023
        assert alert["labels"]["agent"] == "claude-code"
        assert prometheus.value(EXACT.format(FAILED_TURNS)) == 1

    written = replay.lines(WORKS / "home")
    half = 1 + next(at for at, (_, _, line) in enumerate(written) if b'"tool_result"' in line)
    stack.write(written[:half])
    called = 'coding_agent_tool_calls_total{agent="claude-code", tool="Bash", status="ok"}'
    eventually(lambda: all(each.value(f"sum({called})") == 2 for each in scrapers), what="the first call")
    spantail.die()
    stack.write(written[half:])
    spantail.start()
    eventually(lambda: _turns(spantail.counted()) - _turns(before) == 2, what="the end of the turn")

    after = spantail.counted()
    happened = {key: value - before.get(key, 0.0) for key, value in after.items()}
    assert (
        sum(value for (name, _), value in happened.items() if name == "coding_agent_tool_errors_total") == 1
    )
    for prometheus in scrapers:
        eventually(
            lambda: increases(prometheus) == pytest.approx(happened),  # noqa: B023
            what="what happened",
        )
        for name in COUNTERS:
            assert not any(value for _, value in prometheus.query(f"resets({name}[10m])"))
        # The plain increase, as rules and dashboards use it, goes to the ends of its window: a little more.
        plain = prometheus.value(f"increase({FAILED_TURNS}[10m])")
        assert 1 <= plain < 1.5
        assert prometheus.alerts("SpantailDown") == []

    told = eventually(
        lambda: [
            each for each in stack.webhook.alerts() if each["labels"]["alertname"] == "CodingAgentTurnFailed"
        ]
    )
    assert len({each["fingerprint"] for each in told}) == 1, "two Prometheus, one alert"


def _turns(values: Values) -> float:
    return sum(value for (name, _), value in values.items() if name == "coding_agent_turns_total")

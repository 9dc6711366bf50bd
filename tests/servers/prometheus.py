"""A real Prometheus for the tests, with exemplars and the OTLP receiver on, and promtool.

As a pytest plugin this gives `promtool` (run it), `prometheus_program` (the path, to make a `Prometheus` of one's own
with other flags), and `prometheus`: one server for the whole test session, to which a test adds its job.
"""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import urllib.parse
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from ports import free_port
from servers.programs import program
from servers.server import Server, eventually, fetch

Labels = dict[str, str]
Sample = tuple[Labels, float]


@pytest.fixture(scope="session")
def prometheus_program() -> Path:
    return program("prometheus")


@pytest.fixture(scope="session")
def prometheus(prometheus_program, tmp_path_factory) -> Iterator[Prometheus]:
    """Scrapes nothing until a test says `with prometheus.job(...)`; what a job has brought stays."""
    with Prometheus(prometheus_program, tmp_path_factory.mktemp("prometheus")) as server:
        yield server


@pytest.fixture(scope="session")
def promtool() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs promtool with the words given; the caller looks at returncode, stdout and stderr."""
    path = program("promtool")

    def run(*words: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [path, *words], capture_output=True, text=True, check=False, timeout=120, **options
        )

    return run


class Prometheus(Server):
    """An empty Prometheus; `with` it, then `job` to scrape, `query`, `query_range`, `alerts`, `value`."""

    def __init__(
        self,
        program: Path,
        folder: Path,
        *,
        scrape_interval: str = "1s",
        flags: Sequence[str] = (),
        config: dict[str, Any] | None = None,
    ) -> None:
        """`config`: the start of its configuration (alerting, rule_files, ...); jobs are added to it."""
        port = free_port()
        self.address = f"127.0.0.1:{port}"
        self.url = f"http://{self.address}"
        self._config: dict[str, Any] = {"scrape_configs": [], "rule_files": [], **(config or {})}
        self._config.setdefault(
            "global",
            {
                "scrape_interval": scrape_interval,
                "scrape_timeout": scrape_interval,
                "evaluation_interval": scrape_interval,
            },
        )
        self._file = folder / "prometheus.yml"
        command = [
            program,
            f"--config.file={self._file}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address={self.address}",
            "--enable-feature=exemplar-storage",
            "--web.enable-otlp-receiver",
            *flags,
        ]
        super().__init__(command, folder, f"{self.url}/-/ready")
        self._write()

    def _write(self) -> None:
        self._file.write_text(json.dumps(self._config))  # JSON is YAML too

    def environ(self) -> dict[str, str]:
        """The standard variables that lead an exporter of metrics to the OTLP receiver."""
        return {
            "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": f"{self.url}/api/v1/otlp/v1/metrics",
            "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL": "http/protobuf",
        }

    @contextlib.contextmanager
    def job(self, name: str, *targets: str, rules: Sequence[Path] = (), **more: Any) -> Iterator[None]:
        """Scrapes the targets ("host:port") as a job of this name, and evaluates the rules, until the end.

        `more` goes into the scrape configuration (scrape_interval="5s", metrics_path=...).
        """
        added = {"job_name": name, "static_configs": [{"targets": list(targets)}], **more}
        files = [str(path) for path in rules]
        self._config["scrape_configs"] += [added] if targets else []
        self._config["rule_files"] += files
        self.reload()
        try:
            yield
        finally:
            if targets:
                self._config["scrape_configs"].remove(added)
            for each in files:
                self._config["rule_files"].remove(each)
            self.reload()

    def reload(self) -> None:
        """Takes the configuration as it is now; returns when it is in force."""
        before = self._reloads()
        self._write()
        self.signal(signal.SIGHUP)
        eventually(lambda: self._reloads() > before, what="a reload of Prometheus")

    def _reloads(self) -> int:
        said = self.log.read_text(errors="replace")
        assert "Error reloading config" not in said, said[-2000:]
        return said.count("Completed loading of configuration file")

    def wait_for_scrape(self, job: str) -> None:
        """Returns when every target of the job has been scraped well since now."""
        now = fetch(f"{self.url}/api/v1/query?query=time()")["data"]["result"][1]

        def fresh() -> bool:
            targets = fetch(f"{self.url}/api/v1/targets?state=active")["data"]["activeTargets"]
            if not (mine := [each for each in targets if each["labels"]["job"] == job]):
                return False
            low = self.value(f'min(timestamp(up{{job="{job}"}} == 1))')
            count = self.value(f'count(up{{job="{job}"}} == 1)')
            return low is not None and low > float(now) and count == len(mine)

        eventually(fresh, what=f"a scrape of {job}")

    # ----------------------------------------------------------------------------- the query API

    def query(self, expression: str, at: float | None = None) -> list[Sample]:
        """The samples of an instant vector (a scalar is one without labels)."""
        asked = {"query": expression} | ({} if at is None else {"time": str(at)})
        data = self._get("query", asked)
        if data["resultType"] == "scalar":
            return [({}, float(data["result"][1]))]
        return [(each["metric"], float(each["value"][1])) for each in data["result"]]

    def value(self, expression: str, at: float | None = None) -> float | None:
        """The one value the query gives; None if it gives nothing."""
        found = self.query(expression, at)
        assert len(found) <= 1, found
        return found[0][1] if found else None

    def query_range(
        self, expression: str, start: float, end: float, step: float
    ) -> list[tuple[Labels, list[tuple[float, float]]]]:
        asked = {"query": expression, "start": str(start), "end": str(end), "step": str(step)}
        return [
            (each["metric"], [(at, float(value)) for at, value in each["values"]])
            for each in self._get("query_range", asked)["result"]
        ]

    def exemplars(self, expression: str, start: float, end: float) -> list[dict[str, Any]]:
        return self._get("query_exemplars", {"query": expression, "start": str(start), "end": str(end)})

    def alerts(self, name: str = "", state: str = "firing") -> list[dict[str, Any]]:
        """The active alerts, as the API gives them (labels, annotations, state, value)."""
        return [
            each
            for each in self._get("alerts")["alerts"]
            if each["state"] == state and (not name or each["labels"]["alertname"] == name)
        ]

    def faulty_rules(self) -> list[tuple[str, str]]:
        """(name, error) of the rules whose last evaluation failed."""
        groups = self._get("rules")["groups"]
        return [(r["name"], r["lastError"]) for g in groups for r in g["rules"] if r["health"] == "err"]

    def _get(self, what: str, asked: dict[str, str] | None = None) -> Any:
        return fetch(f"{self.url}/api/v1/{what}?{urllib.parse.urlencode(asked or {})}")["data"]

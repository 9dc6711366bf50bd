"""docker-compose.yml and what it mounts: taken by the programs that will read it, complete, and closed to the outside."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

import replay
import truth
from servers.jaeger import Jaeger
from servers.programs import unavailable, versions
from servers.server import eventually
from spantail import config, settings
from spantail.commands import demo

ROOT = Path(__file__).resolve().parents[2]
COMPOSE = ROOT / "docker-compose.yml"
HOME = ROOT / "deploy" / "compose" / "home.yml"
PROMETHEUS = ROOT / "deploy" / "prometheus" / "prometheus.yml"
GRAFANA = ROOT / "deploy" / "grafana" / "provisioning"
EVERYTHING = yaml.safe_load(COMPOSE.read_text())
SERVICES: dict[str, Any] = EVERYTHING["services"]


def rendered(*files: Path) -> dict[str, Any]:
    """What compose makes of the files, every profile on."""
    program = shutil.which("docker-compose")
    if program is None:
        unavailable("no docker-compose here (Debian: docker-compose)")
    flags = [word for path in files for word in ("-f", str(path))]
    said = subprocess.run(
        [str(program), *flags, "--profile", "collector", "config"],
        env={**os.environ, "HOME": "/home/me", "SPANTAIL_UID": "4321", "SPANTAIL_GID": "4322"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert said.returncode == 0, said.stderr
    return yaml.safe_load(said.stdout)


@pytest.mark.servers
def test_compose_takes_the_files():
    """Both ways to call it; with your own home spantail is you and the demo does not run."""
    assert set(rendered(COMPOSE)["services"]) == set(SERVICES)
    own = rendered(COMPOSE, HOME)
    # Compose 1 lists it with the profile that nobody asked for, Compose 2 leaves it out.
    assert own["services"].get("demo", {"profiles": ["demo"]})["profiles"] == ["demo"]
    spantail = own["services"]["spantail"]
    assert spantail["user"] == "4321:4322"
    mounted = {volume.split(":")[1]: volume for volume in map(_short, spantail["volumes"])}
    assert mounted["/home/agent"] == "/home/me:/home/agent:ro"
    assert mounted["/var/lib/spantail"].startswith("home-state:")


def _short(volume: str | dict[str, Any]) -> str:
    if isinstance(volume, str):
        return volume.removesuffix(":rw")
    return f"{volume['source']}:{volume['target']}" + (":ro" if volume.get("read_only") else "")


@pytest.mark.parametrize("name", SERVICES)
def test_every_service_is_whole(name):
    """Pinned image, ports for this machine only, mounts and dependencies that exist."""
    service = SERVICES[name]
    if "build" not in service:
        assert re.search(r":v?\d+\.\d+\.\d+$", service["image"]), "a tag that never moves"
    for port in service.get("ports", ()):
        assert port.startswith("127.0.0.1:")
    for volume in service.get("volumes", ()):
        source = volume.split(":")[0]
        if source.startswith("."):
            assert (ROOT / source).exists(), source
        else:
            assert source in EVERYTHING["volumes"]
    for other in service.get("depends_on", ()):
        assert other in SERVICES


@pytest.mark.parametrize(
    ("service", "program", "translate"),
    [
        ("prometheus", "prometheus", lambda version: re.sub(r"^0\.3(\d\d)\.", r"v3.\1.", version)),
        ("alertmanager", "alertmanager", "v{}".format),
        ("collector", "otelcol", str),
        ("jaeger", "jaeger", {"1.76.0": "2.13.0"}.__getitem__),
    ],
)
def test_the_images_are_the_programs_that_are_tested(service, program, translate):
    """What runs in the tests is what people get."""
    assert SERVICES[service]["image"].rpartition(":")[2] == translate(versions()[program])


def test_a_new_series_is_held_for_some_scrapes():
    """Else increase() would not see the first value of it."""
    scraped = yaml.safe_load(PROMETHEUS.read_text())["global"]["scrape_interval"]
    held = SERVICES["spantail"]["environment"]["SPANTAIL_NEW_SERIES_HOLD"]
    assert settings.duration(held) >= 3 * settings.duration(scraped)


def test_every_target_is_a_service():
    """Prometheus scrapes, and Grafana asks, names that compose gives."""
    jobs = yaml.safe_load(PROMETHEUS.read_text())["scrape_configs"]
    targets = {target for job in jobs for each in job["static_configs"] for target in each["targets"]}
    sources = yaml.safe_load((GRAFANA / "datasources/spantail.yaml").read_text())["datasources"]
    asked = {source["url"].removeprefix("http://") for source in sources}
    hosts = {address.partition(":")[0] for address in targets | asked} - {"localhost"}
    assert hosts <= set(SERVICES)


def test_a_point_leads_to_its_trace():
    """Exemplars' trace_id opens the data source that the dashboards call jaeger."""
    sources = yaml.safe_load((GRAFANA / "datasources/spantail.yaml").read_text())["datasources"]
    by_uid = {source["uid"]: source for source in sources}
    assert by_uid["prometheus"]["type"] == "prometheus"
    assert by_uid["jaeger"]["type"] == "jaeger"
    (leads,) = by_uid["prometheus"]["jsonData"]["exemplarTraceIdDestinations"]
    assert (leads["name"], leads["datasourceUid"]) == ("trace_id", "jaeger")
    assert "--enable-feature=exemplar-storage" in SERVICES["prometheus"]["command"]


def test_the_dashboards_are_where_grafana_looks():
    (provider,) = yaml.safe_load((GRAFANA / "dashboards/spantail.yaml").read_text())["providers"]
    mounts = dict(volume.split(":")[1::-1] for volume in SERVICES["grafana"]["volumes"])
    folder = ROOT / mounts[provider["options"]["path"]]
    assert list(folder.glob("*.json"))


def test_the_budgets_are_those_of_the_demo():
    """`docker compose up` shows what `spantail demo` alone shows."""
    path = ROOT / "deploy/compose/config.toml"
    made = config.resolve({"config": str(path)}, {}, lambda name: Path(name).read_bytes())
    assert made.budgets == demo.BUDGETS


@pytest.mark.servers
def test_prometheus_takes_its_configuration(promtool):
    said = promtool("check", "config", PROMETHEUS)
    assert said.returncode == 0, said.stdout + said.stderr
    said = promtool("check", "config", "--agent", ROOT / "deploy/fleet/prometheus-agent.yml")
    assert said.returncode == 0, said.stdout + said.stderr


@pytest.mark.servers
def test_alertmanager_takes_its_configuration(amtool):
    said = amtool("check-config", ROOT / "deploy/alertmanager/alertmanager.yml")
    assert said.returncode == 0, said.stdout + said.stderr


@pytest.mark.servers
def test_jaeger_keeps_traces_over_a_restart(jaeger_program, tmp_path, monkeypatch):
    """With the configuration that compose gives it; only the ports and folders are others."""
    shipped = ROOT / "deploy" / "jaeger"
    monkeypatch.setenv("JAEGER_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("JAEGER_UI_CONFIG", str(shipped / "ui.json"))
    jaeger = ShippedJaeger(jaeger_program, tmp_path / "jaeger", shipped / "config.yaml")
    home = replay.copied(truth.FIXTURES / "claude-code" / "tools-a", tmp_path / "home")
    with jaeger:
        for name, value in jaeger.environ("http/protobuf").items():
            monkeypatch.setenv(name, value)
        from program import LONG_AFTER, configured
        from spantail.commands import run

        assert run.main(configured(home, tmp_path / "state"), os.environ, clock=lambda: LONG_AFTER) == 0
        eventually(lambda: jaeger.services() == {"claude-code"}, 20, "the agent")
        jaeger.stop()
        jaeger.start()
        eventually(lambda: jaeger.search("claude-code", 1, 2 * LONG_AFTER), 20, "the trace of before")


class ShippedJaeger(Jaeger):
    """The shipped file, with the tests' addresses laid over it."""

    def __init__(self, program: Path, folder: Path, shipped: Path) -> None:
        super().__init__(program, folder)
        ours = json.loads((folder / "jaeger.yaml").read_text())
        extensions = ours["extensions"]
        over = {
            "extensions": {
                "healthcheckv2": {"http": extensions["healthcheckv2"]["http"]},
                "jaeger_query": {part: extensions["jaeger_query"][part] for part in ("http", "grpc")},
            },
            "receivers": ours["receivers"],
            "service": {"telemetry": {"metrics": {"level": "none", "readers": []}}},
        }
        (folder / "over.yaml").write_text(json.dumps(over))
        self.command = [str(program), "--config", str(shipped), "--config", str(folder / "over.yaml")]

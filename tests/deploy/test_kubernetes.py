"""The Kubernetes manifests, rendered by kustomize and held against the schemas of Kubernetes itself."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from servers.programs import program
from spantail import __version__

MANIFESTS = Path(__file__).resolve().parents[2] / "deploy" / "kubernetes"
LAYERS = ("base", "sidecar")
VERSIONS = ("1.29", "1.31", "1.37")
"""The first with native sidecars that need no switch, and newer ones."""


def plain(layer: str) -> list[dict[str, Any]]:
    folder = MANIFESTS / layer
    names = yaml.safe_load((folder / "kustomization.yaml").read_text())["resources"]
    return [yaml.safe_load((folder / name).read_text()) for name in names]


def one(layer: str, kind: str) -> dict[str, Any]:
    (found,) = [each for each in plain(layer) if each["kind"] == kind]
    return found


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("layer", LAYERS)
def test_the_manifests_fit_the_schemas(layer, version):
    """Strictly: a key that the version does not know is a fault."""
    for manifest in plain(layer):
        kubernetes_validate.validate(manifest, version, strict=True)


@pytest.mark.servers
@pytest.mark.parametrize("layer", LAYERS)
def test_kustomize_renders_each_layer(layer):
    """Whole, with images of this version, and still valid."""
    said = subprocess.run(
        [program("kustomize"), "build", MANIFESTS / layer],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert said.returncode == 0, said.stderr
    rendered = list(yaml.safe_load_all(said.stdout))
    assert {each["kind"] for each in rendered} == {each["kind"] for each in plain(layer)}
    for manifest in rendered:
        kubernetes_validate.validate(manifest, VERSIONS[-1], strict=True)
    assert f"image: spantail:{__version__}\n" in said.stdout


def test_the_daemon_reads_homes_and_writes_only_its_state():
    """One capability; homes read-only; everything of the container's root read-only."""
    pod = one("base", "DaemonSet")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    security = container["securityContext"]
    assert security["capabilities"] == {"drop": ["ALL"], "add": ["DAC_READ_SEARCH"]}
    assert security["readOnlyRootFilesystem"] is True
    assert "/home/*" in container["args"]
    writable = {mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")}
    assert writable == {"/var/lib/spantail"}
    assert {mount["name"] for mount in container["volumeMounts"]} == {each["name"] for each in pod["volumes"]}


def test_the_sidecar_ends_with_its_agent():
    """A native sidecar, with the agent's uid and its home, which it cannot write."""
    pod = one("sidecar", "Job")["spec"]["template"]["spec"]
    (sidecar,) = pod["initContainers"]
    (agent,) = pod["containers"]
    assert sidecar["restartPolicy"] == "Always"
    assert "startupProbe" in sidecar
    assert pod["securityContext"]["runAsUser"] == pod["securityContext"]["fsGroup"] != 0
    shared = {mount["name"]: mount for mount in sidecar["volumeMounts"]}["home"]
    assert shared["readOnly"] is True
    home = {variable["name"]: variable.get("value") for variable in agent["env"]}["HOME"]
    assert home == shared["mountPath"]
    assert shared["name"] in {mount["name"] for mount in agent["volumeMounts"]}


def test_the_sidecar_is_counted_once():
    """It pushes, since it is gone before it is scraped; nothing asks a Prometheus to scrape it as well."""
    template = one("sidecar", "Job")["spec"]["template"]
    (sidecar,) = template["spec"]["initContainers"]
    environ = {variable["name"]: variable.get("value") for variable in sidecar["env"]}
    assert environ["OTEL_METRICS_EXPORTER"] == "otlp"
    assert "annotations" not in template["metadata"]
    assert [port["name"] for port in sidecar["ports"]] == ["health"]


@pytest.mark.parametrize("layer", LAYERS)
def test_it_has_the_time_to_hand_over(layer):
    """10 s are for what is committed and not yet sent."""
    (workload,) = [each for each in plain(layer) if "template" in each.get("spec", {})]
    assert workload["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] > 10

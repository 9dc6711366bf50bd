"""The container image: built, run as documented (read-only, not root, no network), scraped, stopped; and by compose.

All tests that need Docker are here: there is one daemon, and workers share files of tests.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tomllib
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import replay
import truth
from receiver import Receiver
from servers.docker import BASE
from servers.programs import unavailable
from servers.server import eventually

ROOT = Path(__file__).resolve().parents[2]
CASE = truth.FIXTURES / "claude-code" / "tools-a"
LOCKED = ("--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--network", "none")
ASK = (
    "import urllib.request as u, sys; print(u.urlopen('http://127.0.0.1:9464' + sys.argv[1]).read().decode())"
)

ASK_TLS = ASK.replace("http:", "https:").replace(
    "import ", "import ssl; ssl._create_default_https_context = ssl._create_unverified_context; import ", 1
)


def test_the_lock_has_what_the_project_needs():
    """Every dependency stands in the image's list with a version that pyproject.toml allows."""
    text = (ROOT / "deploy/image/requirements.txt").read_text()
    locked = {
        canonicalize_name(name): version
        for name, version in re.findall(r"^(\S+?)==(\S+)", text, re.MULTILINE)
    }
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = project["dependencies"] + project["optional-dependencies"]["auth"]
    for requirement in map(Requirement, wanted):
        version = locked.get(canonicalize_name(requirement.name))
        assert version is not None, f"{requirement} is not in the lock; its first lines say how it is made"
        assert requirement.specifier.contains(version), requirement


class Container:
    """One that follows; `page` is what a person sees."""

    def __init__(self, docker, name: str) -> None:
        self.docker, self.name = docker, name

    def run_inside(self, *words: str) -> str:
        return self.docker("exec", self.name, *words, check=False)

    def get(self, path: str) -> str:
        status, _, text = self.run_inside("python3", "-c", ASK, path).partition(" ")
        assert status == "0", text
        return text

    def turns(self) -> int:
        found = truth.samples(self.get("/metrics"))["coding_agent_turns_total"]
        return int(sum(value for _, value in found))

    def health_check(self) -> list[str]:
        form = "{{json .Config.Healthcheck.Test}}"
        return json.loads(self.docker("inspect", self.name, "--format", form))[1:]

    def stop(self) -> int:
        """Its exit status."""
        self.docker("stop", "--time", "20", self.name)
        return int(self.docker("inspect", self.name, "--format", "{{.State.ExitCode}}"))


@pytest.fixture
def start(docker, image) -> Iterator:
    names: list[str] = []

    def start(*flags: str, command: tuple[str, ...] = ("run", "--since", "all")) -> Container:
        names.append(f"spantail-{uuid.uuid4().hex[:8]}")
        docker("run", "-d", "--name", names[-1], *flags, image, *command)
        return Container(docker, names[-1])

    yield start
    for name in names:
        docker("rm", "-f", "-v", name)


def home_of(uid: int, folder: Path) -> Path:
    """A recorded home as agents leave it: for its owner alone."""
    home = replay.copied(CASE, folder)
    for path in [home, *home.rglob("*")]:
        os.chown(path, uid, uid)
        path.chmod(0o700 if path.is_dir() else 0o600)
    home.chmod(0o755)
    return home


@pytest.mark.servers
def test_follows_read_only_as_nobody(start, tmp_path):
    """Healthy by its own check, the truth on its page, exit 0 when stopped, state for its owner alone."""
    home = home_of(65532, tmp_path / "home")
    container = start(*LOCKED, "-v", f"{home}:/home/agent:ro")
    eventually(lambda: "ready" in container.get("/readyz"), 30, "ready")
    eventually(lambda: container.turns() == 1, 30, "the turn")
    tokens = truth.expected(CASE)["tokens"]
    for labels, value in truth.samples(container.get("/metrics"))["coding_agent_tokens_total"]:
        assert value == tokens[labels["type"]]
    assert container.run_inside(*container.health_check()).startswith("0 ")
    assert container.run_inside("stat", "-c", "%a %u", "/var/lib/spantail/state").split() == [
        "0",
        "700",
        "65532",
    ]
    assert container.stop() == 0


@pytest.mark.servers
def test_is_healthy_behind_tls_and_a_password(start, tmp_path):
    """The image has what `[web]` needs, and its check finds the page there too."""
    if shutil.which("openssl") is None:
        unavailable("no openssl here")
    openssl = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=page -days 2"
    subprocess.run(
        ["openssl", *openssl.split(), "-keyout", "key", "-out", "cert"],
        cwd=tmp_path,
        check=True,
        capture_output=True,
    )
    hashed = "$2b$04$" + "a" * 53
    (tmp_path / "config.toml").write_text(
        f'[web.basic_auth_users]\nann = "{hashed}"\n'
        '[web.tls_server_config]\ncert_file = "/etc/spantail/cert"\nkey_file = "/etc/spantail/key"\n'
    )
    for path in tmp_path.iterdir():
        path.chmod(0o644)
    tmp_path.chmod(0o755)
    container = start(
        *LOCKED, "-v", f"{tmp_path}:/etc/spantail:ro", "-e", "SPANTAIL_CONFIG=/etc/spantail/config.toml"
    )
    check = container.health_check()
    eventually(lambda: container.run_inside(*check).startswith("0 "), 30, "healthy")
    assert "401" in container.run_inside("python3", "-c", ASK_TLS, "/metrics")


@pytest.mark.servers
def test_a_dead_page_is_unhealthy(docker, image):
    """The check fails where nothing answers."""
    check = json.loads(docker("inspect", image, "--format", "{{json .Config.Healthcheck.Test}}"))
    said = docker("run", "--rm", *LOCKED, "--entrypoint", check[1], image, *check[2:], check=False)
    assert not said.startswith("0 ")


@pytest.mark.servers
def test_delivers_what_the_session_holds(docker, image, tmp_path):
    """The spans of a container are those of the program."""
    home = home_of(65532, tmp_path / "home")
    (tmp_path / "out").mkdir()
    os.chown(tmp_path / "out", 65532, 65532)
    with Receiver("http") as receiver:
        environ = [word for pair in receiver.environ().items() for word in ("-e", "=".join(pair))]
        docker(
            "run", "--rm", "--read-only", "--cap-drop", "ALL", "--network", "host", *environ,
            "-v", f"{home}:/home/agent:ro", "-v", f"{tmp_path / 'out'}:/out", image,
            "run", "--once", "--since", "all", "--listen", "none",
            "--textfile", "/out/page.prom", "--new-series-hold", "0",
        )  # fmt: skip
    page = (tmp_path / "out" / "page.prom").read_text()
    assert truth.complaints(receiver.spans, page, truth.expected(CASE)) == []


@pytest.mark.servers
def test_runs_as_the_owner_of_the_files(start, tmp_path):
    """Files are 0600: another uid reads nothing and says so; with `--user` it is the owner, with a state of its own."""
    home = home_of(4321, tmp_path / "home")
    stranger = start(*LOCKED, "-v", f"{home}:/home/agent:ro")
    eventually(lambda: "ready" in stranger.get("/readyz"), 30, "ready")
    assert stranger.turns() == 0
    assert "ermission" in stranger.docker("logs", stranger.name, check=False)
    owner = start(*LOCKED, "--user", "4321:4321", "-v", f"{home}:/home/agent:ro")
    eventually(lambda: owner.turns() == 1, 30, "the turn")


@pytest.mark.servers
def test_reads_all_homes_with_one_capability(start, tmp_path):
    """As the DaemonSet does: a root that may read everything and write nothing."""
    for uid, user in ((4321, "ann"), (4322, "bob")):
        home_of(uid, tmp_path / "homes" / user)
    container = start(
        *LOCKED, "--user", "0:0", "--cap-add", "DAC_READ_SEARCH", "-v", f"{tmp_path / 'homes'}:/home:ro",
        command=("run", "--since", "all", "--home", "/home/*"),
    )  # fmt: skip
    eventually(lambda: container.turns() == 2, 30, "both turns")
    users = {
        labels["user"]
        for labels, value in truth.samples(container.get("/metrics"))["coding_agent_turns_total"]
        if value
    }
    assert users == {"ann", "bob"}


@pytest.mark.servers
def test_nothing_to_build_or_install_with(docker, image):
    """No pip, no compiler; time zones and certificates are there."""
    inside = """
import importlib.util, pathlib, shutil, ssl, sys, zoneinfo
for name in ("pip", "ensurepip", "setuptools", "wheel"):
    assert importlib.util.find_spec(name) is None, name
for name in ("pip", "pip3", "gcc", "cc", "make", "git"):
    assert shutil.which(name) is None, name
zoneinfo.ZoneInfo("Europe/Berlin")
assert ssl.create_default_context().get_ca_certs()
try:
    pathlib.Path("/opt/spantail/x").touch()
except OSError:
    pass
else:
    sys.exit("the root file system can be written")
"""
    for python in ("/opt/spantail/bin/python3", "python3"):
        docker("run", "--rm", *LOCKED, "--entrypoint", python, image, "-c", inside)


@pytest.mark.servers
def test_the_demo_is_followed_within_a_minute(docker, image, tmp_path):
    """The two services of docker-compose.yml as they are, without networks: several agents, failures, and a budget that is blown."""
    docker("tag", image, "spantail:test")
    alone = {"services": {name: {"network_mode": "none"} for name in ("demo", "spantail")}}
    alone["services"]["spantail"]["ports"] = []
    (tmp_path / "alone.yml").write_text(json.dumps(alone))
    project = [
        "docker-compose",
        "-p",
        "spantail-test",
        "-f",
        ROOT / "docker-compose.yml",
        "-f",
        tmp_path / "alone.yml",
    ]
    environ = {**docker.environ, "SPANTAIL_VERSION": "test"}

    def page() -> dict[str, Any]:
        words = ("exec", "-T", "spantail", "python3", "-c", ASK, "/metrics")
        said = subprocess.run([*project, *words], env=environ, capture_output=True, text=True, check=False)
        assert said.returncode == 0, said.stderr
        return truth.samples(said.stdout)

    def complete() -> bool:
        seen = page()
        assert len({labels["agent"] for labels, value in seen["coding_agent_turns_total"] if value}) > 3
        assert any(value for labels, value in seen["coding_agent_tool_errors_total"])
        spent = {labels["budget"]: value for labels, value in seen["coding_agent_budget_spent_usd"]}
        limit = {labels["budget"]: value for labels, value in seen["coding_agent_budget_limit_usd"]}
        return any(spent[budget] > limit[budget] for budget in limit)

    try:
        subprocess.run([*project, "up", "-d", "demo", "spantail"], env=environ, check=True, timeout=120)
        eventually(complete, 120, "a page with several agents, failures and a blown budget")
    finally:
        subprocess.run([*project, "down", "-v", "-t", "20"], env=environ, check=False, timeout=120)


@pytest.mark.servers
def test_its_size_is_as_documented(docker, image, record_property):
    """deploy/README.md says what spantail adds to its base."""
    sizes = [int(docker("image", "inspect", name, "--format", "{{.Size}}")) for name in (image, BASE)]
    added = (sizes[0] - sizes[1]) / 1e6
    record_property("added_megabytes", round(added))
    said = re.search(r"adds (\d+) MB to its base", (ROOT / "deploy/README.md").read_text())
    assert said is not None
    assert added == pytest.approx(int(said[1]), rel=0.15)


def test_only_what_is_needed_goes_into_the_build():
    """.dockerignore lets through what the Dockerfile copies, and no session, state or secret."""
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    assert lines[1] == "*"
    assert {line for line in lines if line.startswith("!")} == {
        "!pyproject.toml", "!README.md", "!LICENSE", "!src", "!deploy", "!deploy/image",
    }  # fmt: skip

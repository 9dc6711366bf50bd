"""A Docker of the tests' own: its daemon is started on a socket in the cache, without networks, and stopped at the end.

What it built is kept in the cache, so that a second run only builds what has changed. As a pytest plugin this gives
`docker` (run it: `docker("ps")`) and `image`, the name of the image that deploy/image/Dockerfile makes.
"""

from __future__ import annotations

import faulthandler
import fcntl
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from servers.programs import CACHE, HERE, unavailable

ROOT = HERE.parents[1]
BASE = "spantail-test-base:bookworm"
IMAGE = "spantail-test:latest"
NEEDED = ("docker", "dockerd", "debootstrap")
START_SECONDS = 60
BUILD_SECONDS = 900
# Read at import: in a test the environment is cleaned of what the user's shell says.
PROXIES = {name: value for name, value in os.environ.items() if name.lower().endswith("_proxy")}
CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"


class Docker:
    """The client, with the daemon it talks to."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.socket = folder / "docker.sock"
        self.environ = {
            **os.environ,
            "DOCKER_HOST": f"unix://{self.socket}",
            "DOCKER_BUILDKIT": "0",  # the other builder is a plugin that may not be there
            "DOCKER_CONFIG": str(folder / "config"),
        }
        self._log = folder / "dockerd.log"

    def __call__(self, *words: str | Path, check: bool = True, timeout: float = 120) -> str:
        """What it prints; a failure shows all it said."""
        ended = subprocess.run(
            ["docker", *map(str, words)],
            env=self.environ,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        if check and ended.returncode:
            pytest.fail(f"docker {words[0]}: {ended.stdout[-1500:]}{ended.stderr[-1500:]}", pytrace=False)
        return ended.stdout.strip() if check else f"{ended.returncode} {ended.stdout}{ended.stderr}"

    def start(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = (self.folder / "lock").open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)  # another run's daemon has the folder until it ends
        (self.folder / "pid").unlink(missing_ok=True)
        with self._log.open("wb") as log:
            self._daemon = subprocess.Popen(
                [
                    "dockerd", "-H", f"unix://{self.socket}", "--data-root", self.folder / "data",
                    "--exec-root", self.folder / "exec", "--pidfile", self.folder / "pid",
                    "--iptables=false", "--ip6tables=false", "--bridge=none",
                ],
                stdout=log,
                stderr=log,
            )  # fmt: skip
        deadline = time.monotonic() + START_SECONDS
        while not self("info", check=False).startswith("0 "):
            if self._daemon.poll() is not None or time.monotonic() > deadline:
                self.stop()
                unavailable(f"dockerd does not run here: {self._log.read_text(errors='replace')[-800:]}")
            time.sleep(0.1)

    def stop(self) -> None:
        self._daemon.terminate()
        try:
            self._daemon.wait(30)
        except subprocess.TimeoutExpired:
            self._daemon.kill()
            self._daemon.wait()
        self._lock.close()


@pytest.fixture(scope="session")
def docker() -> Iterator[Docker]:
    missing = [name for name in NEEDED if shutil.which(name) is None]
    if missing:
        unavailable(f"no {' and no '.join(missing)} here (Debian: docker.io debootstrap)")
    if os.geteuid() != 0:
        unavailable("a Docker daemon of the tests' own needs root")
    docker = Docker(CACHE / "docker")
    docker.start()
    try:
        yield docker
    finally:
        docker.stop()


@pytest.fixture(scope="session")
def image(docker) -> Iterator[str]:
    """The Dockerfile, built on the tests' base."""
    faulthandler.cancel_dump_traceback_later()  # the first build may take minutes and is no hang
    if not docker("images", "-q", BASE):
        made = subprocess.run(
            ["bash", HERE / "base.sh"],
            env={**os.environ, "SPANTAIL_TEST_CACHE": str(CACHE)},
            capture_output=True,
            text=True,
            timeout=BUILD_SECONDS,
            check=False,
        )
        if made.returncode:
            unavailable(f"no base image: {made.stderr[-400:]} (see {CACHE}/base-bookworm.tar.log)")
        docker("import", CACHE / "base-bookworm.tar", BASE, timeout=BUILD_SECONDS)
    # The first stage has a name too, so that tidying up leaves what is dear to make.
    for words in (("--target", "build", "-t", "spantail-test:build"), ("-t", IMAGE)):
        docker(
            "build", "--network", "host", "-f", ROOT / "deploy/image/Dockerfile",
            *_build_arguments(), *words, ROOT,
            timeout=BUILD_SECONDS,
        )  # fmt: skip
    docker("image", "prune", "-f")
    yield IMAGE
    docker("container", "prune", "-f")
    docker("volume", "prune", "-f")


def _build_arguments() -> list[str]:
    """The base, and how pip reaches its index from this machine."""
    given = {"BASE": BASE, **PROXIES}
    if Path(CERTIFICATES).exists():
        given["PIP_CERT"] = CERTIFICATES
    index = subprocess.run(
        [sys.executable, "-m", "pip", "config", "get", "global.index-url"],
        capture_output=True,
        text=True,
        check=False,
    ).stdout.strip()
    if index := os.environ.get("PIP_INDEX_URL") or index:
        given["PIP_INDEX_URL"] = index
    return [word for name, value in given.items() for word in ("--build-arg", f"{name}={value}")]

"""A real Alertmanager for the tests, and amtool.

As a pytest plugin this gives `amtool` (run it) and `alertmanager_program` (the path, to make an `Alertmanager` with a
configuration of one's own).
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ports import free_port
from servers.programs import program
from servers.server import Server, fetch


@pytest.fixture(scope="session")
def alertmanager_program() -> Path:
    return program("alertmanager")


@pytest.fixture(scope="session")
def amtool() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs amtool with the words given; the caller looks at returncode, stdout and stderr."""
    path = program("amtool")

    def run(*words: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run([path, *words], capture_output=True, text=True, check=False, timeout=60)

    return run


class Alertmanager(Server):
    """`with` it, name `address` in a Prometheus' alerting configuration or `post` alerts, ask `alerts`."""

    def __init__(self, program: Path, folder: Path, config: Path) -> None:
        """`config`: its configuration file."""
        port = free_port()
        self.address = f"127.0.0.1:{port}"
        self.url = f"http://{self.address}"
        command = [
            program,
            f"--config.file={config}",
            f"--storage.path={folder / 'data'}",
            f"--web.listen-address={self.address}",
            "--cluster.listen-address=",  # alone: no gossip
        ]
        super().__init__(command, folder, f"{self.url}/-/ready")

    def post(self, *alerts: dict[str, Any]) -> None:
        """Each alert: {"labels": {...}, "annotations": {...}}, as Prometheus posts it."""
        fetch(f"{self.url}/api/v2/alerts", list(alerts))

    def alerts(self) -> list[dict[str, Any]]:
        """What it knows, with status.state active or suppressed."""
        return fetch(f"{self.url}/api/v2/alerts")

"""A real OpenTelemetry Collector that runs one of the configurations of deploy/, on ports and folders of its own.

As a pytest plugin this gives `otelcol_program`, the path.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from ports import free_port
from servers.programs import program
from servers.server import Server

Change = Callable[[dict[str, Any]], None]


@pytest.fixture(scope="session")
def otelcol_program() -> Path:
    return program("otelcol")


class Collector(Server):
    """What it is told is the shipped file; only addresses are changed, and what the test itself asks for."""

    def __init__(
        self,
        program: Path,
        folder: Path,
        shipped: Path,
        backend: str = "",
        change: Change = lambda config: None,
    ) -> None:
        """`backend`: where the shipped file's $BACKEND_ENDPOINT leads."""
        self._shipped = shipped
        self._config = folder / "collector.yaml"
        self._http, self._grpc, self._health_port = [free_port() for _ in range(3)]
        environ = {"BACKEND_ENDPOINT": backend, "QUEUE_DIRECTORY": str(folder / "queue")}
        super().__init__(
            [program, "--config", self._config],
            folder,
            f"http://127.0.0.1:{self._health_port}/",
            {name: value for name, value in environ.items() if value},
        )
        self.configure(change)

    def configure(self, change: Change) -> None:
        """For the next start."""
        config = yaml.safe_load(self._shipped.read_text())
        protocols = config["receivers"]["otlp"]["protocols"]
        protocols["http"]["endpoint"] = f"127.0.0.1:{self._http}"
        protocols["grpc"]["endpoint"] = f"127.0.0.1:{self._grpc}"
        config["extensions"]["health_check"]["endpoint"] = f"127.0.0.1:{self._health_port}"
        config["service"]["telemetry"]["metrics"] = {"level": "none"}
        change(config)
        self._config.write_text(json.dumps(config))  # JSON is YAML too

    def environ(self, protocol: str = "http/protobuf") -> dict[str, str]:
        """The standard variables that lead an exporter here."""
        port = self._grpc if protocol == "grpc" else self._http
        return {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}",
            "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
        }

"""A real Jaeger for the tests, asked over its query API. As a pytest plugin this gives `jaeger_program`, the path."""

from __future__ import annotations

import json
import urllib.parse
from pathlib import Path
from typing import Any

import pytest

from ports import free_port
from servers.programs import program
from servers.server import Server, fetch


@pytest.fixture(scope="session")
def jaeger_program() -> Path:
    return program("jaeger")


def _config(query: int, query_grpc: int, grpc: int, http: int, health: int) -> dict[str, Any]:
    """All of it on 127.0.0.1: what is left out listens on every interface. JSON is YAML too."""

    def local(port: int) -> dict[str, str]:
        return {"endpoint": f"127.0.0.1:{port}"}

    return {
        "service": {
            "extensions": ["jaeger_storage", "jaeger_query", "healthcheckv2"],
            "pipelines": {"traces": {"receivers": ["otlp"], "exporters": ["jaeger_storage_exporter"]}},
            "telemetry": {"metrics": {"level": "none"}, "logs": {"level": "warn"}},
        },
        "extensions": {
            "jaeger_storage": {"backends": {"kept": {"memory": {"max_traces": 100_000}}}},
            "jaeger_query": {"storage": {"traces": "kept"}, "http": local(query), "grpc": local(query_grpc)},
            "healthcheckv2": {"use_v2": True, "http": local(health)},
        },
        "receivers": {"otlp": {"protocols": {"grpc": local(grpc), "http": local(http)}}},
        "exporters": {"jaeger_storage_exporter": {"trace_storage": "kept"}},
    }


class Jaeger(Server):
    """A Jaeger with empty memory; `with` it, send to `environ(protocol)`, ask `services`, `search`, `trace`."""

    def __init__(self, program: Path, folder: Path) -> None:
        """`folder`: for its configuration and its log."""
        self._query, query_grpc, self._grpc, self._http, health = ports = [free_port() for _ in range(5)]
        config = folder / "jaeger.yaml"
        # Unsampled, else it traces itself, a service `jaeger` appears, and it takes long to stop.
        super().__init__(
            [program, "--config", config],
            folder,
            f"http://127.0.0.1:{health}/status",
            {"OTEL_TRACES_SAMPLER": "always_off"},
        )
        config.write_text(json.dumps(_config(ports[0], query_grpc, *ports[2:])))

    def environ(self, protocol: str) -> dict[str, str]:
        """The standard variables that lead an exporter here."""
        port = self._grpc if protocol == "grpc" else self._http
        return {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}",
            "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
        }

    # ----------------------------------------------------------------------------- the query API

    def services(self) -> set[str]:
        return set(self._get("/api/services") or ())

    def trace(self, id_: str) -> dict[str, Any]:
        (found,) = self._get(f"/api/traces/{id_}")
        return found

    def search(self, service: str, start: int, end: int, **tags: str) -> list[dict[str, Any]]:
        """Traces with a span of that service in [start, end] (ns) that has all the tags."""
        asked = {"service": service, "start": start // 1000, "end": end // 1000, "limit": 1000}
        if tags:
            asked["tags"] = json.dumps({key.replace("__", "."): value for key, value in tags.items()})
        return self._get("/api/traces?" + urllib.parse.urlencode(asked)) or []

    def _get(self, path: str) -> Any:
        return fetch(f"http://127.0.0.1:{self._query}{path}")["data"]

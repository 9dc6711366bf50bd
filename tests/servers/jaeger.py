"""A real Jaeger for the tests: found in the cache or waited for, started on free ports, asked over its API, stopped.

build.sh puts the program into the cache; .ci/run starts that in the background before anything else. Where it
cannot be had the tests are skipped with the reason (no `go` here), or fail with the end of the build's log (it was
tried, or this is CI: there it is never silently left out).

As a pytest plugin this gives the fixture `jaeger_program`, the path.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any, Self

import pytest

VERSION = "1.76.0"
HERE = Path(__file__).resolve().parent
# Read at import: in a test the environment is cleaned of what the user's shell says.
_CACHE_HOME = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
CACHE = Path(os.environ.get("SPANTAIL_TEST_CACHE") or f"{_CACHE_HOME}/spantail-test")
PROGRAM = CACHE / f"jaeger-{VERSION}"
IN_CI = bool(os.environ.get("CI")) or os.environ.get("SPANTAIL_TEST_SERVERS") == "required"
BUILD_SECONDS = 1800
START_SECONDS = 60
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Whatever proxy the shell names: 127.0.0.1 is never behind it."""


@pytest.fixture(scope="session")
def jaeger_program() -> Path:
    """Where the program is; waits for a build that is under way, and starts one if there is none."""
    started: subprocess.Popen[bytes] | None = None
    deadline = time.monotonic() + BUILD_SECONDS
    while not os.access(PROGRAM, os.X_OK):
        status = _status()
        if started is not None and started.poll():
            pytest.fail(f"Jaeger could not be built. {_log()}", pytrace=False)
        if started is None and not _is_building(status):
            if shutil.which("go") is None:
                reason = f"no Jaeger in {CACHE} and no `go` to build it with (tests/servers/build.sh)"
                (pytest.fail if IN_CI else pytest.skip)(reason)
            if IN_CI and status.startswith("failed"):
                pytest.fail(f"Jaeger could not be built ({status}). {_log()}", pytrace=False)
            started = subprocess.Popen(["bash", str(HERE / "build.sh")], env=_build_environ())
        if time.monotonic() > deadline:
            pytest.fail(f"Jaeger is not built after {BUILD_SECONDS} s. {_log()}", pytrace=False)
        time.sleep(0.2)  # another process is at work; there is nothing to be woken by
    if started is not None:
        started.wait()
    return PROGRAM


def _build_environ() -> dict[str, str]:
    return {**os.environ, "SPANTAIL_TEST_CACHE": str(CACHE)}


def _status() -> str:
    try:
        return PROGRAM.with_name(f"{PROGRAM.name}.status").read_text().strip()
    except FileNotFoundError:
        return ""


def _is_building(status: str) -> bool:
    """Whether the process that said so is still there: one that was killed has left its word behind."""
    word, _, pid = status.partition(" ")
    return word == "building" and pid.isdigit() and Path(f"/proc/{pid}").exists()


def _log() -> str:
    log = PROGRAM.with_name(f"{PROGRAM.name}.log")
    if not log.exists():
        return f"There is no log at {log}."
    return f"The end of {log}:\n" + "\n".join(log.read_text(errors="replace").splitlines()[-20:])


# --------------------------------------------------------------------------------- one server


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


def _free_ports(count: int) -> list[int]:
    """Free now; all are held until all are known, so that no two are the same."""
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in held]
    for each in held:
        each.close()
    return ports


class Jaeger:
    """A Jaeger with empty memory; `with` it, send to `environ(protocol)`, ask `services`, `search`, `trace`."""

    def __init__(self, program: Path, folder: Path) -> None:
        """`folder`: for its configuration and its log."""
        self._program = program
        self._folder = folder
        self._query, query_grpc, self._grpc, self._http, self._health = ports = _free_ports(5)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "jaeger.yaml").write_text(json.dumps(_config(ports[0], query_grpc, *ports[2:])))

    def __enter__(self) -> Self:
        # Else it traces itself, a service `jaeger` appears, and it takes long to stop.
        environ = {**os.environ, "OTEL_TRACES_SAMPLER": "always_off"}
        with (self._folder / "jaeger.log").open("wb") as log:
            self._process = subprocess.Popen(
                [self._program, "--config", self._folder / "jaeger.yaml"],
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        try:
            self._wait_until_healthy()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def _wait_until_healthy(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                with DIRECT.open(f"http://127.0.0.1:{self._health}/status", timeout=5):
                    return
            except OSError:
                ended = self._process.poll() is not None
                if ended or time.monotonic() > deadline:
                    log = (self._folder / "jaeger.log").read_text(errors="replace")[-2000:]
                    pytest.fail(f"Jaeger {'ended' if ended else 'is not ready'}:\n{log}", pytrace=False)
            time.sleep(0.05)

    def _stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

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
        with DIRECT.open(f"http://127.0.0.1:{self._query}{path}", timeout=20) as answer:
            return json.load(answer)["data"]

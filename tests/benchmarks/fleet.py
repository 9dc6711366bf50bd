"""What deploy/fleet/README.md reckons with: spans, bytes and series of a history, and what a Collector takes per span.

    python tests/benchmarks/corpus.py /tmp/history --mb 500
    python tests/benchmarks/fleet.py /tmp/history --otelcol PATH

PATH is a Collector with the components of tests/servers/otelcol.yaml (tests/servers/build.sh otelcol). It runs
deploy/collector/collector.yaml in front of a receiver that only counts; compression is off, so that its own work is
measured. CPU per span hardly depends on how busy the machine is; spans per second do.
"""

from __future__ import annotations

import argparse
import gzip
import http.client
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import yaml
from counting_receiver import CountingReceiver, count_spans
from measuring import CLOCK_TICKS, command, environ, noise, run, table
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

SHIPPED = Path(__file__).resolve().parents[2] / "deploy" / "collector" / "collector.yaml"
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
TAKE, HEALTH = 24318, 24133
PATIENCE = 60
"""Seconds for the queue to run empty: a disk that syncs slowly takes its time."""


@contextmanager
def keeping() -> Iterator[tuple[int, list[bytes]]]:
    """A backend that keeps what it gets: its port, and the requests."""
    kept: list[bytes] = []

    class Exchange(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            kept.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Exchange)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_address[1], kept
    server.shutdown()


def history(home: Path) -> list[bytes]:
    """Prints what the home's sessions come to; the requests they became."""
    with tempfile.TemporaryDirectory() as folder, keeping() as (port, kept):
        page = Path(folder) / "page.prom"
        words = command(home, Path(folder), "--once", "--textfile", str(page), "--new-series-hold", "0")
        cost = run(words, environ(OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{port}"), watched=True)
        lines = [line for line in page.read_text().splitlines() if not line.startswith("#")]
    spans = sum(map(count_spans, kept))
    turns = sum(float(line.split()[-1]) for line in lines if line.startswith("coding_agent_turns_total"))
    size = sum(map(len, kept)) / spans
    packed = sum(len(gzip.compress(body)) for body in kept) / spans
    projects = {line.split('project="')[1].split('"')[0] for line in lines if 'project="' in line}
    rows = [
        (
            f"{turns:.0f}",
            spans,
            f"{spans / turns:.1f}",
            f"{size:.0f}",
            f"{packed:.0f}",
            len(lines),
            len(projects),
        )
    ]
    table(("turns", "spans", "spans/turn", "bytes/span", "gzip", "series", "projects"), rows)
    print(f"peak memory {cost.memory:.0f} MB\n")
    return kept


def cut(bodies: list[bytes], spans: int) -> list[bytes]:
    """The same spans in requests of that many: few is what live sessions send."""
    out = []
    for body in bodies:
        for group in ExportTraceServiceRequest.FromString(body).resource_spans:
            for scope in group.scope_spans:
                for at in range(0, len(scope.spans), spans):
                    request = ExportTraceServiceRequest()
                    made = request.resource_spans.add(resource=group.resource)
                    made.scope_spans.add(scope=scope.scope, spans=scope.spans[at : at + spans])
                    out.append(request.SerializeToString())
    return out


def collector(
    program: str, bodies: list[bytes], *, storage: str, clients: int, seconds: float
) -> tuple[object, ...]:
    config = yaml.safe_load(SHIPPED.read_text())
    config["receivers"]["otlp"]["protocols"] = {"http": {"endpoint": f"127.0.0.1:{TAKE}"}}
    config["extensions"]["health_check"]["endpoint"] = f"127.0.0.1:{HEALTH}"
    config["service"]["telemetry"]["metrics"] = {"level": "none"}
    config["exporters"]["otlp_http"]["compression"] = "none"
    if storage == "memory":
        del config["exporters"]["otlp_http"]["sending_queue"]["storage"]
    with tempfile.TemporaryDirectory() as folder, CountingReceiver() as backend:
        Path(folder, "config.yaml").write_text(json.dumps(config))
        told = environ(
            BACKEND_ENDPOINT=f"http://127.0.0.1:{backend.port}",
            QUEUE_DIRECTORY=f"{folder}/queue",
            QUEUE_FSYNC=str(storage == "disk, fsync").lower(),
        )
        process = subprocess.Popen([program, "--config", f"{folder}/config.yaml"], env=told)
        try:
            while not _answers():
                time.sleep(0.05)
            began, used = time.monotonic(), _cpu(process.pid)
            taken = _send(bodies, clients, seconds)
            while backend.spans() < taken:
                if time.monotonic() > began + seconds + PATIENCE:
                    sys.exit(
                        f"{taken - backend.spans()} spans have not come through: the disk is too slow, or other work too much"
                    )
                time.sleep(0.05)
            wall, used = time.monotonic() - began, _cpu(process.pid) - used
        finally:
            process.kill()
            process.wait()
    each = max(map(count_spans, bodies))
    return storage, each, clients, f"{taken / wall:.0f}", f"{used / taken * 1e6:.0f}"


def _answers() -> bool:
    try:
        with DIRECT.open(f"http://127.0.0.1:{HEALTH}", timeout=5):
            return True
    except OSError:
        return False


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / CLOCK_TICKS


def _send(bodies: list[bytes], clients: int, seconds: float) -> int:
    """Spans that were said yes to."""
    taken = [0] * clients
    end = time.monotonic() + seconds

    def client(number: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", TAKE)
        at = number
        while time.monotonic() < end:
            body = bodies[at % len(bodies)]
            at += clients
            connection.request("POST", "/v1/traces", body, {"Content-Type": "application/x-protobuf"})
            answer = connection.getresponse()
            answer.read()
            taken[number] += count_spans(body) if answer.status == 200 else 0

    threads = [threading.Thread(target=client, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(taken)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("home", type=Path, help="a home made by corpus.py")
    parser.add_argument("--otelcol", metavar="PATH", help="the Collector (default: only the history)")
    parser.add_argument("--seconds", type=float, default=5)
    args = parser.parse_args()
    bodies = history(args.home)
    if not args.otelcol:
        sys.exit()
    some = bodies[: max(1, len(bodies) // 8)]
    rows = [
        collector(args.otelcol, cut(some, spans), storage=storage, clients=clients, seconds=args.seconds)
        for storage in ("disk, fsync", "disk", "memory")
        for spans, clients in ((5, 32), (1000, 4))
    ]
    table(("queue", "spans/request", "clients", "spans/s", "CPU us/span"), rows)
    print(f"{os.cpu_count()} cores, {noise()}")


if __name__ == "__main__":
    main()

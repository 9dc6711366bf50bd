"""spantail through a real OpenTelemetry Collector with the configurations that deploy/ ships: nothing is lost on
the way, whoever of the two behind spantail is killed."""

from __future__ import annotations

import functools
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
import yaml

import replay
import truth
from program import LONG_AFTER, configured
from receiver import Receiver
from servers.collector import Collector
from servers.programs import unavailable
from servers.prometheus import Prometheus
from servers.server import eventually
from spantail.commands import run as run_command

pytestmark = pytest.mark.servers

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
SINGLE = DEPLOY / "collector" / "collector.yaml"
GATEWAY = DEPLOY / "fleet" / "gateway.yaml"
CONFIGURATIONS = [
    [SINGLE],
    *([path] for path in sorted((DEPLOY / "fleet").glob("*.yaml")) if path.name != "tls.yaml"),
    [GATEWAY, DEPLOY / "fleet" / "tls.yaml"],
]
CASE = truth.FIXTURES / "claude-code" / "subagent-a"


@pytest.mark.parametrize("files", CONFIGURATIONS, ids=lambda files: "+".join(path.stem for path in files))
def test_the_collector_takes_each_configuration(files, otelcol_program):
    """`otelcol validate`: every component exists, every key is known."""
    flags = [word for path in files for word in ("--config", str(path))]
    said = subprocess.run(
        [otelcol_program, "validate", *flags], capture_output=True, text=True, timeout=60, check=False
    )
    assert said.returncode == 0, said.stderr


@pytest.fixture
def send(monkeypatch):
    """Sends a recorded session, from the state in a folder: the exit status of `spantail run --once`."""
    return functools.partial(_send, monkeypatch)


def _send(monkeypatch, case: Path, folder: Path, environ: dict[str, str], clock=lambda: LONG_AFTER) -> int:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    home = folder / "home"
    if not home.exists():
        replay.copied(case, home)
    config = configured(home, folder / "state")
    return run_command.main(config, os.environ, clock=clock, strict=True)


def complete(receivers: list[Receiver], case: Path, page: Path) -> bool:
    """Whether every span of the session has arrived; one that came twice is the same span."""
    spans = {(span.trace_id, span.span_id): span for each in receivers for span in each.spans}
    said = truth.complaints(list(spans.values()), page.read_text(), truth.expected(case))
    assert said == []
    return True


def test_everything_arrives_though_backend_and_collector_are_killed(otelcol_program, send, tmp_path):
    """The backend goes; the Collector takes the spans and is killed; both come back."""
    with (
        Receiver("http") as backend,
        Collector(otelcol_program, tmp_path, SINGLE, backend.endpoint) as collector,
    ):
        backend.stop()
        assert send(CASE, tmp_path, collector.environ()) == 0
        collector.stop(signal.SIGKILL)
        assert backend.spans == []
        backend.start()
        collector.start()
        page = tmp_path / "state" / "page.prom"
        eventually(lambda: complete([backend], CASE, page), 60, "the whole session at the backend")


def test_a_full_queue_leaves_the_spans_with_spantail(otelcol_program, send, tmp_path, monkeypatch):
    """It is told to come back later, keeps them, and delivers when there is room."""
    monkeypatch.setattr(run_command, "PROGRESS_SECONDS", 0.5)

    def nearly_full(config):
        queue = config["exporters"]["otlp_http"]["sending_queue"]
        queue.update(queue_size=5, batch={"min_size": 1, "max_size": 5})

    with Receiver("http") as backend:
        backend.stop()
        collector = Collector(otelcol_program, tmp_path, SINGLE, backend.endpoint, nearly_full)
        with collector:
            assert send(CASE, tmp_path, collector.environ()) == 1
            backend.start()
            collector.stop()
            collector.configure(lambda config: None)
            collector.start()
            assert send(CASE, tmp_path, collector.environ()) == 0
            page = tmp_path / "state" / "page.prom"
            eventually(lambda: complete([backend], CASE, page), 60, "the whole session at the backend")


def behind(*receivers: Receiver):
    """The gateway's second tier is these, not what a cluster's DNS says."""

    def change(config):
        hostnames = [each.endpoint.removeprefix("http://") for each in receivers]
        config["exporters"]["load_balancing"]["resolver"] = {"static": {"hostnames": hostnames}}

    return change


def test_a_trace_goes_to_one_instance_of_the_second_tier(otelcol_program, send, tmp_path):
    """By its id, so that each instance sees whole traces; and both have work."""
    cases = [CASE, *(truth.FIXTURES / "claude-code" / name for name in ("resume-a", "fork-a", "tui-queue-a"))]
    with (
        Receiver("grpc") as one,
        Receiver("grpc") as two,
        Collector(otelcol_program, tmp_path, GATEWAY, change=behind(one, two)) as gateway,
    ):
        sent = 0
        for case in cases:
            assert send(case, tmp_path / case.name, gateway.environ("grpc")) == 0
            page = truth.samples((tmp_path / case.name / "state" / "page.prom").read_text())
            sent += sum(int(value) for _, value in page["spantail_exported_spans_total"])
        eventually(lambda: len(one.spans) + len(two.spans) == sent, 30, "every span at one of the two")
    assert one.spans
    assert two.spans
    assert not {span.trace_id for span in one.spans} & {span.trace_id for span in two.spans}


def test_the_gateway_loses_nothing_when_it_is_killed(otelcol_program, send, tmp_path):
    """The second tier is gone, the gateway has taken the spans and is killed; all come back."""
    with (
        Receiver("grpc") as one,
        Receiver("grpc") as two,
        Collector(otelcol_program, tmp_path, GATEWAY, change=behind(one, two)) as gateway,
    ):
        one.stop()
        two.stop()
        assert send(CASE, tmp_path, gateway.environ()) == 0
        gateway.stop(signal.SIGKILL)
        one.start()
        two.start()
        gateway.start()
        page = tmp_path / "state" / "page.prom"
        eventually(lambda: complete([one, two], CASE, page), 60, "the whole session behind the gateway")


def test_pushed_metrics_are_remote_written(otelcol_program, prometheus_program, send, tmp_path, monkeypatch):
    """Through the gateway they have the names and values of the page, and say which host they are from."""
    flags = ["--web.enable-remote-write-receiver"]
    with (
        Receiver("grpc") as backend,
        Prometheus(prometheus_program, tmp_path / "prometheus", flags=flags) as prometheus,
    ):
        monkeypatch.setenv("REMOTE_WRITE_URL", f"{prometheus.url}/api/v1/write")
        with Collector(otelcol_program, tmp_path, GATEWAY, change=behind(backend)) as gateway:
            environ = {**gateway.environ(), "OTEL_METRICS_EXPORTER": "otlp"}
            # Prometheus takes no samples of another year, so the clock is the real one.
            assert send(CASE, tmp_path, environ, clock=time.time_ns) == 0
            for kind, tokens in truth.expected(CASE)["tokens"].items():
                asked = f'sum(coding_agent_tokens_total{{type="{kind}"}})'
                eventually(lambda asked=asked, tokens=tokens: prometheus.value(asked) == tokens, 30, asked)
            page = truth.samples((tmp_path / "state" / "page.prom").read_text())
            shown = {name for name in page if name.startswith("coding_agent_")}
            found = {labels["__name__"] for labels, _ in prometheus.query('{__name__=~"coding_agent_.+"}')}
            assert found == shown
            assert all(labels["host_name"] for labels, _ in prometheus.query("coding_agent_turns_total"))


def certificates(folder: Path) -> dict[str, str]:
    """An authority and what it signed: paths by name."""
    folder.mkdir()

    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True, timeout=60)

    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    openssl(
        "req", "-x509", *key, "-subj", "/CN=authority", "-days", "2", "-keyout", "ca.key", "-out", "ca.crt"
    )
    for name in ("gateway", "developer"):
        openssl("req", *key, "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr")
        (folder / "names").write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\n")
        openssl(
            "x509", "-req", "-in", f"{name}.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial",
            "-days", "2", "-extfile", "names", "-out", f"{name}.crt",
        )  # fmt: skip
    return {path.name: str(path) for path in folder.iterdir()}


def test_the_gateway_takes_only_its_own_over_tls(otelcol_program, send, tmp_path, monkeypatch):
    """With tls.yaml: a client certificate of the authority, or nothing."""
    if shutil.which("openssl") is None:
        unavailable("no openssl here")
    monkeypatch.setattr(run_command, "PROGRESS_SECONDS", 0.5)
    made = certificates(tmp_path / "certificates")
    for name, file in (("CERT", "gateway.crt"), ("KEY", "gateway.key"), ("CLIENT_CA", "ca.crt")):
        monkeypatch.setenv(f"TLS_{name}", made[file])
    over = yaml.safe_load((GATEWAY.parent / "tls.yaml").read_text())["receivers"]["otlp"]["protocols"]

    with Receiver("grpc") as backend:

        def change(config):
            behind(backend)(config)
            for protocol, more in over.items():
                config["receivers"]["otlp"]["protocols"][protocol].update(more)

        with Collector(otelcol_program, tmp_path, GATEWAY, change=change) as gateway:
            where = {name: value.replace("http://", "https://") for name, value in gateway.environ().items()}
            trusted = {"OTEL_EXPORTER_OTLP_CERTIFICATE": made["ca.crt"]}
            known = {
                "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE": made["developer.crt"],
                "OTEL_EXPORTER_OTLP_CLIENT_KEY": made["developer.key"],
            }
            assert send(CASE, tmp_path, {**where, **trusted}) == 1
            assert send(CASE, tmp_path, {**where, **trusted, **known}) == 0
            page = tmp_path / "state" / "page.prom"
            eventually(lambda: complete([backend], CASE, page), 60, "the whole session behind the gateway")

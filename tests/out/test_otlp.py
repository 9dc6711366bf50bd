"""The transport against the stock exporters, and the judging of every kind of answer."""

import os
import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path

import certifi
import pytest
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanContext

from receiver import Answer
from spantail.out.exporters import trace_transport as transport
from spantail.out.otlp import Verdict

SPANS = [
    ReadableSpan(
        name=f"span {number}",
        context=SpanContext(1, number, is_remote=False),
        start_time=1,
        end_time=2,
    )
    for number in range(1, 4)
]
REQUEST = encode_spans(SPANS).SerializeToString()


@pytest.fixture
def opened(monkeypatch):
    """Makes transports from environments, and closes them."""
    made = []

    def make(environ, **more):
        for name, text in {**environ, **more}.items():
            monkeypatch.setenv(name, text)
        made.append(transport(os.environ))
        return made[-1]

    yield make
    for each in made:
        if each is not None:
            each.close()


def stock(protocol):
    if protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
    else:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    return OTLPSpanExporter()


MATRIX = [
    {},
    {"OTEL_EXPORTER_OTLP_HEADERS": "x-key=abc%20def,X-Team = blue"},
    {"OTEL_EXPORTER_OTLP_HEADERS": "x-key=general", "OTEL_EXPORTER_OTLP_TRACES_HEADERS": "x-key=traces"},
    {"OTEL_EXPORTER_OTLP_COMPRESSION": "gzip"},
    {"OTEL_EXPORTER_OTLP_TRACES_COMPRESSION": "gzip", "OTEL_EXPORTER_OTLP_TIMEOUT": "5"},
    {"OTEL_EXPORTER_OTLP_TRACES_TIMEOUT": "3", "OTEL_EXPORTER_OTLP_TIMEOUT": "5"},
    {"OTEL_EXPORTER_OTLP_INSECURE": "true"},
    {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "{endpoint}/some/path"},
    {"OTEL_EXPORTER_OTLP_ENDPOINT": "{endpoint}/base/"},
]
HTTP_ONLY = [
    {"OTEL_EXPORTER_OTLP_COMPRESSION": "deflate"},
    {"OTEL_EXPORTER_OTLP_COMPRESSION": "none"},
    {"OTEL_EXPORTER_OTLP_COMPRESSION": "gzip", "OTEL_EXPORTER_OTLP_TRACES_COMPRESSION": "none"},
]
GRPC_ONLY = [{"OTEL_EXPORTER_OTLP_ENDPOINT": "127.0.0.1:{port}", "OTEL_EXPORTER_OTLP_INSECURE": "true"}]


def compare(receiver, opened, variables):
    """Sends the same spans by the stock exporter and by ours; gives both requests."""
    said = {
        name: text.format(endpoint=receiver.endpoint, port=receiver.port) for name, text in variables.items()
    }
    ours = opened(receiver.environ(), **said)
    other = stock(receiver.protocol)
    other.export(SPANS)
    assert ours.send(REQUEST) == Verdict("delivered")
    other.shutdown()
    expected, arrived = receiver.requests
    for request in (expected, arrived):
        request.headers.pop("content-length", None)  # gzip of another level
    assert arrived.path == expected.path
    assert arrived.headers == expected.headers
    assert arrived.spans == expected.spans
    return expected, arrived


@pytest.mark.parametrize("variables", MATRIX + HTTP_ONLY, ids=str)
def test_http_request_is_the_stock_exporters(http_receiver, opened, variables):
    """Address, headers, compression and spans arrive as the stock exporter sends them."""
    _, arrived = compare(http_receiver, opened, variables)
    compressed = arrived.headers.get("content-encoding", "")
    assert (arrived.body != REQUEST) == bool(compressed)


@pytest.mark.parametrize("variables", MATRIX + GRPC_ONLY, ids=str)
def test_grpc_request_is_the_stock_exporters(grpc_receiver, opened, variables):
    """Headers, compression and deadline arrive as the stock exporter sends them."""
    expected, arrived = compare(grpc_receiver, opened, variables)
    # Deadlines lie between 3 s and 10 s here; the time on the way is far less than one second.
    assert round(arrived.timeout) == round(expected.timeout)


def test_grpc_takes_compression_none(grpc_receiver, opened):
    """`none` is a value of the specification, though the stock gRPC exporter stops on it."""
    ours = opened(grpc_receiver.environ(), OTEL_EXPORTER_OTLP_COMPRESSION="none")
    assert ours.send(REQUEST).kind == "delivered"


def test_certificates_and_proxies_are_handed_on(opened, monkeypatch, tmp_path):
    """What the stock exporter would verify with, and the proxy it would take, are used."""
    authority = tmp_path / "ca.pem"
    authority.write_bytes(Path(certifi.where()).read_bytes())
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.test:3128")
    ours = opened(
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "https://collector.test:4318"},
        OTEL_EXPORTER_OTLP_CERTIFICATE=str(authority),
    )
    assert ours._options["verify"] == str(authority)
    assert ours._options["proxies"]["https"] == "http://proxy.test:3128"
    assert ours._options["timeout"] == 10


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:4318"},
        {"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://localhost:4318"},
    ],
    ids=str,
)
def test_traces_are_off_unless_asked_for(opened, environ):
    """Without an endpoint and without OTEL_TRACES_EXPORTER=otlp nothing is sent."""
    assert opened(environ) is None


@pytest.mark.parametrize(
    "environ",
    [
        {"OTEL_TRACES_EXPORTER": "otlp"},
        {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://localhost:4318/v1/traces"},
    ],
    ids=str,
)
def test_traces_are_on_when_asked_for(opened, environ):
    """An endpoint or OTEL_TRACES_EXPORTER=otlp turns sending on, with the stock defaults."""
    assert opened(environ)._where == "http://localhost:4318/v1/traces"


def test_the_grpc_port_is_spoken_to_in_grpc(opened):
    """With no protocol given, port 4317 means gRPC: nothing else listens there."""
    assert type(opened({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:4317"})).__name__ == "_Grpc"


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"}, "http/json"),
        ({"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "udp"}, "udp"),
        ({"OTEL_EXPORTER_OTLP_CERTIFICATE": "/no/such.pem"}, "/no/such.pem: No such file"),
        ({"OTEL_EXPORTER_OTLP_CERTIFICATE": __file__}, "OTEL_EXPORTER_OTLP_CERTIFICATE"),
        ({"OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE": "/no/such.pem"}, "No such file"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "collector:4318"}, "'collector:4318'"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "me:pass-w@collector:4318/x?key=k3y"}, "'collector:4318/x'"),
        ({"OTEL_EXPORTER_OTLP_TIMEOUT": "0"}, "OTEL_EXPORTER_OTLP_TIMEOUT"),
        ({"OTEL_TRACES_EXPORTER": "zipkin"}, "zipkin"),
        ({"OTEL_TRACES_EXPORTER": "otlp,none"}, "none stands alone"),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", "OTEL_EXPORTER_OTLP_COMPRESSION": "zstd"}, "zstd"),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", "OTEL_EXPORTER_OTLP_TIMEOUT": "soon"}, "soon"),
    ],
    ids=str,
)
def test_bad_values_stop_the_start_with_one_line(opened, environ, said):
    """Only bad configuration stops the program, and it says what is bad."""
    with pytest.raises(ValueError, match=said) as caught:
        opened({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:4318"}, **environ)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (200, "delivered"),
        (202, "delivered"),
        (302, "retry"),
        (307, "retry"),
        (400, "refused"),
        (422, "refused"),
        (401, "auth"),
        (403, "auth"),
        (404, "retry"),
        (405, "retry"),
        (408, "retry"),
        (413, "too_large"),
        (415, "retry"),
        (429, "retry"),
        (500, "retry"),
        (502, "retry"),
        (503, "retry"),
    ],
)
def test_http_status_is_judged(http_receiver, opened, status, kind):
    """Only 2xx is delivered; redirects are not followed; what speaks of the address is no refusal."""
    http_receiver.usual = Answer(status, headers={"Location": f"{http_receiver.endpoint}/elsewhere"})
    verdict = opened(http_receiver.environ()).send(REQUEST)
    assert verdict.kind == kind
    assert [request.path for request in http_receiver.requests] == ["/v1/traces"]
    if kind != "delivered":
        assert str(status) in verdict.message


@pytest.mark.parametrize(
    ("code", "details", "kind"),
    [
        ("UNAVAILABLE", "", "retry"),
        ("DEADLINE_EXCEEDED", "", "retry"),
        ("RESOURCE_EXHAUSTED", "queue is full", "retry"),
        ("RESOURCE_EXHAUSTED", "grpc: received message larger than max (5 vs. 4)", "too_large"),
        ("UNAUTHENTICATED", "", "auth"),
        ("PERMISSION_DENIED", "", "auth"),
        ("INVALID_ARGUMENT", "bad span", "refused"),
        ("UNIMPLEMENTED", "", "retry"),
        ("INTERNAL", "", "retry"),
    ],
)
def test_grpc_code_is_judged(grpc_receiver, opened, code, details, kind):
    """Only INVALID_ARGUMENT speaks of the spans; the rest of the codes loses nothing."""
    grpc_receiver.answers.append(Answer(code, message=details))
    ours = opened(grpc_receiver.environ())
    verdict = ours.send(REQUEST)
    assert verdict.kind == kind
    assert code in verdict.message
    assert ours.send(REQUEST).kind == "delivered"


def test_partial_success_is_counted(receiver, opened):
    """A 200 that rejects spans is not a delivery, though the stock exporters say so."""
    receiver.answers.append(Answer(rejected=2, message="too old"))
    ours = opened(receiver.environ())
    assert ours.send(REQUEST) == Verdict("partial", 2, "too old")
    assert ours.send(REQUEST) == Verdict("delivered")


@pytest.mark.parametrize(
    ("body", "verdict"),
    [
        (b'{"partialSuccess":{"rejectedSpans":"1","errorMessage":"no"}}', Verdict("partial", 1, "no")),
        (b'{"partialSuccess":{}}', Verdict("delivered")),
        (b"{}", Verdict("delivered")),
        (b"[oops", Verdict("delivered")),
    ],
)
def test_partial_success_in_json_is_understood(http_receiver, opened, body, verdict):
    """Some backends answer a protobuf request in JSON."""
    http_receiver.usual = Answer(200, headers={"Content-Type": "application/json"}, body=body)
    assert opened(http_receiver.environ()).send(REQUEST) == verdict


def test_retry_after_in_seconds_and_as_a_date(http_receiver, opened):
    """Both forms of Retry-After say how long to wait."""
    later = format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True)
    for value in ("7", later, "soon"):
        http_receiver.answers.append(Answer(503, headers={"Retry-After": value}))
    ours = opened(http_receiver.environ())
    assert ours.send(REQUEST).retry_after == 7
    assert 3000 < ours.send(REQUEST).retry_after <= 3600
    assert ours.send(REQUEST).retry_after is None


@pytest.mark.parametrize("key", ["google.rpc.retryinfo-bin", "grpc-status-details-bin"])
def test_retry_info_of_grpc_says_how_long_to_wait(grpc_receiver, opened, key):
    """RESOURCE_EXHAUSTED with RetryInfo is a wait of that length, wherever the backend puts it."""
    info = RetryInfo(retry_delay=Duration(seconds=4, nanos=500_000_000))
    packed = AnyMessage()
    packed.Pack(info)
    details = Status(code=8, message="busy", details=[packed])
    value = info if key.startswith("google") else details
    answer = Answer("RESOURCE_EXHAUSTED", headers={key: value.SerializeToString()}, message="busy")
    grpc_receiver.answers.append(answer)
    verdict = opened(grpc_receiver.environ()).send(REQUEST)
    assert (verdict.kind, verdict.retry_after) == ("retry", 4.5)


def test_backend_that_is_gone_is_a_retry_and_is_found_again(receiver, opened):
    """A refused connection is a retry with a plain reason; the same transport finds the backend again."""
    ours = opened(receiver.environ())
    assert ours.send(REQUEST).kind == "delivered"
    receiver.stop()
    verdict = ours.send(REQUEST)
    assert verdict.kind == "retry"
    assert str(receiver.port) in verdict.message
    assert "refused" in verdict.message.lower()
    receiver.start()
    assert ours.send(REQUEST).kind == "delivered"
    assert len(receiver.spans) == 2 * len(SPANS)


def test_it_may_be_closed_again(opened, caplog):
    """At the end everything is closed once more, whoever did so before; nothing is said of it."""
    ours = opened({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:4317"})
    ours.close()
    ours.close()
    assert caplog.records == []


def test_kept_connection_that_the_backend_closed_costs_nothing(http_receiver, opened):
    """A backend that was restarted between two requests is not a failure."""
    ours = opened(http_receiver.environ())
    ours.send(REQUEST)
    http_receiver.stop()
    http_receiver.start()
    assert ours.send(REQUEST).kind == "delivered"


def test_one_connection_is_kept(http_receiver, opened):
    """Requests go over one connection, so that a live span is not delayed by a handshake."""
    ours = opened(http_receiver.environ())
    for _ in range(3):
        ours.send(REQUEST)
    assert len({request.peer for request in http_receiver.requests}) == 1


def test_a_backend_that_does_not_answer_is_a_retry(receiver, opened):
    """The timeout of the standard variables ends a request."""
    gate = threading.Event()
    receiver.answers.append(Answer(gate=gate))
    ours = opened(receiver.environ(), OTEL_EXPORTER_OTLP_TRACES_TIMEOUT="0.05")
    verdict = ours.send(REQUEST)
    gate.set()
    assert verdict.kind == "retry"
    assert "0.05" in verdict.message or "DEADLINE_EXCEEDED" in verdict.message


def test_messages_never_hold_header_values(receiver, opened):
    """A backend that repeats the key in its error does not bring it into the log."""
    secret = "Bearer s3cr3t-key"
    if receiver.protocol == "http":
        refusal = Status(message=f"bad key s3cr3t-key in {secret}").SerializeToString()
        receiver.answers.append(Answer(401, body=refusal))
    else:
        receiver.answers.append(Answer("UNAUTHENTICATED", message=f"bad key s3cr3t-key in {secret}"))
    ours = opened(receiver.environ(), OTEL_EXPORTER_OTLP_HEADERS="authorization=Bearer%20s3cr3t-key")
    verdict = ours.send(REQUEST)
    assert verdict.kind == "auth"
    assert "bad key ***" in verdict.message
    assert "s3cr3t" not in verdict.message
    assert receiver.requests[0].headers["authorization"] == secret


def test_messages_never_hold_the_secrets_of_an_address(opened):
    """User, password and query of the endpoint stay out of messages."""
    ours = opened({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://user:pass-w@127.0.0.1:1/v1/traces?key=k3y"})
    message = ours.send(REQUEST).message
    assert message.startswith("http://127.0.0.1:1/v1/traces: ")
    assert "pass-w" not in message
    assert "k3y" not in message


def test_http_does_not_load_grpc_nor_start_threads():
    """gRPC is loaded only when chosen, and making a transport starts nothing in the background."""
    program = (
        "import os, sys, threading\n"
        "from spantail.out.exporters import trace_transport as transport\n"
        "assert transport(os.environ)\n"
        "print('grpc' in sys.modules, threading.active_count())"
    )
    environ = {**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:4318"}
    said = subprocess.run(
        [sys.executable, "-c", program], env=environ, capture_output=True, text=True, check=True
    )
    assert said.stdout.split() == ["False", "1"]

"""Headers, certificates and keys for the trace backend stay out of the log, whatever goes wrong with them."""

from __future__ import annotations

import os
import shutil
import socket
import ssl
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import trustme

import truth
from receiver import Answer, Receiver

SECRET = "s3cr3t-v4lue-of-a-header"
CASE = truth.FIXTURES / "claude-code/text-a"
ECHO = f"the key {SECRET} in authorization: Bearer {SECRET} is not known"


def said(tmp_path: Path, *, ok: bool = False, **environ: str) -> str:
    """Everything the program says on a run with these variables."""
    home = tmp_path / "home"
    if not home.exists():
        shutil.copytree(CASE / "home", home)
    kept = {
        k: v
        for k, v in os.environ.items()
        if not k.startswith(("OTEL_", "SPANTAIL_", "XDG_")) and not k.lower().endswith("_proxy")
    }
    command = [
        sys.executable,
        "-m",
        "spantail",
        "run",
        "--since",
        "all",
        "--home",
        str(home),
        "--listen",
        "none",
        "--once",
    ]
    process = subprocess.Popen(
        [*command, "--state", str(tmp_path / "state")],
        env={**kept, **environ, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    heard: list[str] = []
    words = (
        ("delivered", "refused", "does not accept", "OTEL_EXPORTER", "OTLP:", "turn ")
        if not ok
        else ("started",)
    )
    # A run that cannot deliver goes on trying: what it says of it is waited for, then it is stopped.
    watchdog = threading.Timer(60, process.kill)
    watchdog.start()
    for line in process.stdout:
        heard.append(line)
        if any(word in line for word in words):
            process.terminate()
            break
    heard.append(process.communicate()[0])
    watchdog.cancel()
    return "".join(heard)


def headers(protocol: str = "http/protobuf", **more: str) -> dict[str, str]:
    return {
        "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
        "OTEL_EXPORTER_OTLP_HEADERS": f"authorization=Bearer {SECRET},x-api-key={SECRET}",
        **more,
    }


@pytest.mark.parametrize("status", [302, 400, 401, 403, 404, 413, 429, 500, 503])
def test_an_answer_over_http_that_repeats_the_credentials(tmp_path, status):
    """Each kind of refusal, by a backend that says back what it was sent."""
    with Receiver("http") as receiver:
        receiver.usual = Answer(
            status, headers={"Content-Type": "text/plain", "X-Echo": SECRET}, body=ECHO.encode()
        )
        log = said(tmp_path, **headers(OTEL_EXPORTER_OTLP_ENDPOINT=receiver.endpoint))
        assert receiver.requests[0].headers["x-api-key"] == SECRET
    assert str(status) in log
    assert SECRET not in log


@pytest.mark.parametrize(
    "status", ["UNAUTHENTICATED", "PERMISSION_DENIED", "INVALID_ARGUMENT", "INTERNAL", "RESOURCE_EXHAUSTED"]
)
def test_an_answer_over_grpc_that_repeats_the_credentials(tmp_path, status):
    with Receiver("grpc") as receiver:
        receiver.usual = Answer(status, message=ECHO)
        log = said(tmp_path, **headers("grpc", OTEL_EXPORTER_OTLP_ENDPOINT=receiver.endpoint))
        assert receiver.requests[0].headers["x-api-key"] == SECRET
    assert status in log
    assert SECRET not in log


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_a_partial_success_that_repeats_them(tmp_path, protocol):
    with Receiver("grpc" if protocol == "grpc" else "http") as receiver:
        receiver.usual = Answer(rejected=1, message=ECHO)
        log = said(tmp_path, **headers(protocol, OTEL_EXPORTER_OTLP_ENDPOINT=receiver.endpoint))
    assert "refused 1" in log
    assert SECRET not in log


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_nobody_there(tmp_path, protocol):
    """Also with credentials in the address itself."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for where in (f"http://127.0.0.1:{port}", f"http://me:{SECRET}@127.0.0.1:{port}/v1?key={SECRET}"):
        log = said(tmp_path, **headers(protocol, OTEL_EXPORTER_OTLP_ENDPOINT=where))
        assert "cannot be delivered" in log
        assert SECRET not in log


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
@pytest.mark.parametrize(
    "bad",
    [
        f"{SECRET}",
        f"authorization: Bearer {SECRET}",
        f"authorization=Bearer {SECRET}\n",
        f"authorizätion={SECRET}",
        f"={SECRET}",
        f"a b={SECRET}",
        f"x-key={SECRET},,{SECRET}",
        f"x-key={SECRET}ü\x7f",
    ],
    ids=range(8),
)
def test_headers_that_cannot_be_used(tmp_path, protocol, bad):
    """Not a pair, not a name, not ASCII, with a line end: libraries warn of these with the value in it."""
    with Receiver("grpc" if protocol == "grpc" else "http") as receiver:
        log = said(
            tmp_path,
            OTEL_EXPORTER_OTLP_PROTOCOL=protocol,
            OTEL_EXPORTER_OTLP_ENDPOINT=receiver.endpoint,
            OTEL_EXPORTER_OTLP_HEADERS=bad,
        )
    assert log
    assert SECRET not in log
    assert "Traceback" not in log


@pytest.fixture(scope="module")
def tls_port():
    """Somebody who speaks TLS, with a certificate of an authority that nobody knows, and hangs up."""
    ca = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ca.issue_cert("127.0.0.1").configure_cert(context)
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                client, _ = server.accept()
            except OSError:
                return
            try:
                context.wrap_socket(client, server_side=True).close()
            except OSError:
                client.close()

    threading.Thread(target=serve, daemon=True).start()
    yield server.getsockname()[1]
    server.close()


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_certificates_that_do_not_fit(tmp_path, protocol, tls_port):
    """An unknown authority, an authority that did not sign, a client's key of another certificate, files that are
    none: the file may be named, what is in it is not."""
    ours, other = trustme.CA(), trustme.CA()
    own = ours.issue_cert("client@example.org")
    wrong = other.issue_cert("client@example.org")
    files = {name: tmp_path / f"{name}.pem" for name in ("ca", "cert", "key", "junk")}
    ours.cert_pem.write_to_path(files["ca"])
    own.cert_chain_pems[0].write_to_path(files["cert"])
    wrong.private_key_pem.write_to_path(files["key"])
    files["junk"].write_text(f"-----BEGIN PRIVATE KEY-----\n{SECRET}\n-----END PRIVATE KEY-----\n")
    pieces = [
        line
        for path in files.values()
        for line in path.read_text().splitlines()
        if len(line) > 20 and "-----" not in line
    ]
    where = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"https://127.0.0.1:{tls_port}"}
    for more in (
        {},
        {"OTEL_EXPORTER_OTLP_CERTIFICATE": str(files["ca"])},
        {"OTEL_EXPORTER_OTLP_CERTIFICATE": str(files["junk"])},
        {
            "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE": str(files["cert"]),
            "OTEL_EXPORTER_OTLP_CLIENT_KEY": str(files["key"]),
        },
        {
            "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE": str(files["cert"]),
            "OTEL_EXPORTER_OTLP_CLIENT_KEY": str(files["junk"]),
        },
    ):
        log = said(tmp_path, **headers(protocol, **where, **more))
        assert "OTEL_EXPORTER_OTLP" in log or "cannot be delivered" in log
        assert SECRET not in log
        assert not [piece for piece in pieces if piece in log]

"""A backend of traces and metrics for tests: real sockets, real OTLP over HTTP and gRPC, decoded by the official classes.

    with Receiver("http") as receiver:
        ...send to receiver.endpoint...
        receiver.wait_for(3)
        receiver.spans[0].attrs["gen_ai.tool.name"]

It can be told how to answer (`receiver.answers`), and it can go away and come back on the same
port (`stop`, `start`).
"""

from __future__ import annotations

import contextlib
import functools
import gzip
import socket
import threading
import zlib
from collections import deque
from concurrent import futures
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal, Self

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from ports import Port

GRPC_METHOD = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
GRPC_METRICS = "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export"


@dataclass
class Span:
    """A received span, flat."""

    trace_id: str
    span_id: str
    parent: str
    name: str
    kind: int
    start: int
    end: int
    attrs: dict[str, Any]
    status: int
    message: str
    events: list[tuple[str, int, dict[str, Any]]]
    links: list[tuple[str, str, dict[str, Any]]]
    resource: dict[str, Any]
    scope: tuple[str, str]


@dataclass
class Request:
    """What arrived, before decoding."""

    path: str
    headers: dict[str, str]
    body: bytes
    """As sent, still compressed (HTTP); gRPC decompresses by itself."""
    spans: list[Span]
    peer: str = ""
    timeout: float | None = None
    """gRPC: the deadline the caller set."""
    metrics: Any = None
    """The decoded request, if it holds metrics."""

    @classmethod
    def of(cls, path: str, headers: dict[str, str], sent: bytes, body: bytes, peer: str, **more) -> Request:
        if path == GRPC_METRICS or path.endswith("/metrics"):
            return cls(
                path, headers, sent, [], peer, metrics=ExportMetricsServiceRequest.FromString(body), **more
            )
        return cls(path, headers, sent, decode(body), peer, **more)


@dataclass
class Answer:
    """How to answer one request. Spans are kept only if `status` is a success.

    `status` is an HTTP status or the name of a gRPC code. `gate`: wait for it before answering.
    """

    status: int | str = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes | None = None
    rejected: int = 0
    message: str = ""
    gate: threading.Event | None = None

    def response(self) -> bytes:
        if self.body is not None:
            return self.body
        response = ExportTraceServiceResponse()
        if self.rejected or self.message:
            response.partial_success.rejected_spans = self.rejected
            response.partial_success.error_message = self.message
        return response.SerializeToString()


def value(any_value: Any) -> Any:
    """An AnyValue as a plain one."""
    kind = any_value.WhichOneof("value")
    if kind == "array_value":
        return [value(each) for each in any_value.array_value.values]
    return getattr(any_value, kind) if kind else None


def attributes(pairs: Any) -> dict[str, Any]:
    keys = [pair.key for pair in pairs]
    assert len(keys) == len(set(keys)), f"an attribute stands twice: {keys}"
    return {pair.key: value(pair.value) for pair in pairs}


def decode(request: bytes) -> list[Span]:
    """The spans of a serialized request."""
    return [
        Span(
            trace_id=span.trace_id.hex(),
            span_id=span.span_id.hex(),
            parent=span.parent_span_id.hex(),
            name=span.name,
            kind=span.kind,
            start=span.start_time_unix_nano,
            end=span.end_time_unix_nano,
            attrs=attributes(span.attributes),
            status=span.status.code,
            message=span.status.message,
            events=[(each.name, each.time_unix_nano, attributes(each.attributes)) for each in span.events],
            links=[
                (each.trace_id.hex(), each.span_id.hex(), attributes(each.attributes)) for each in span.links
            ],
            resource=attributes(group.resource.attributes),
            scope=(scope.scope.name, scope.scope.version),
        )
        for group in ExportTraceServiceRequest.FromString(request).resource_spans
        for scope in group.scope_spans
        for span in scope.spans
    ]


class Receiver:
    """An OTLP receiver on 127.0.0.1; `answers` are used up one by one, then `usual` holds.

    `judge`, if set, is asked first: it sees the decoded spans and may return an Answer.
    """

    def __init__(self, protocol: Literal["http", "grpc"] = "http") -> None:
        self.protocol = protocol
        self._held = Port()
        self.port = self._held.number
        self.answers: deque[Answer] = deque()
        self.usual = Answer()
        self.judge: Any = None
        self.requests: list[Request] = []
        self.spans: list[Span] = []
        self.pushes: list[Any] = []
        """Metrics that were taken."""
        self._changed = threading.Condition()
        self._server: Any = None

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def environ(self) -> dict[str, str]:
        """The variables that lead an exporter here."""
        protocol = "grpc" if self.protocol == "grpc" else "http/protobuf"
        return {"OTEL_EXPORTER_OTLP_ENDPOINT": self.endpoint, "OTEL_EXPORTER_OTLP_PROTOCOL": protocol}

    def wait_for(self, spans: int, timeout: float = 20.0) -> list[Span]:
        """Waits until that many spans are here; a limit only for the case that they never come."""
        with self._changed:
            arrived = self._changed.wait_for(lambda: len(self.spans) >= spans, timeout)
        assert arrived, f"{len(self.spans)} of {spans} spans arrived"
        return self.spans

    def wait_for_pushes(self, count: int, timeout: float = 20.0) -> list[Any]:
        with self._changed:
            arrived = self._changed.wait_for(lambda: len(self.pushes) >= count, timeout)
        assert arrived, f"{len(self.pushes)} of {count} pushes arrived"
        return self.pushes

    def wait_for_requests(self, count: int, timeout: float = 20.0) -> list[Request]:
        with self._changed:
            arrived = self._changed.wait_for(lambda: len(self.requests) >= count, timeout)
        assert arrived, f"{len(self.requests)} of {count} requests arrived"
        return self.requests

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> Self:
        self._server = _HttpServer(self) if self.protocol == "http" else _GrpcServer(self)
        return self

    def stop(self) -> None:
        """Goes away: the port refuses, open connections end."""
        if self._server is not None:
            self._server.stop()
            self._server = None

    def take(self, request: Request) -> Answer:
        """Books a request and says how to answer it."""
        with self._changed:
            self.requests.append(request)
            answer = self.judge(request.spans) if self.judge else None
            if answer is None:
                answer = self.answers.popleft() if self.answers else self.usual
            self._changed.notify_all()
        if answer.gate is not None:
            answer.gate.wait(20)
        if answer.status in {200, 202, "OK"}:
            with self._changed:
                self.spans.extend(request.spans[answer.rejected :])
                if request.metrics is not None:
                    self.pushes.append(request.metrics)
                self._changed.notify_all()
        return answer


class _HttpServer(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, receiver: Receiver) -> None:
        self.connections: set[socket.socket] = set()

        class Exchange(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True
            wbufsize = -1

            def setup(inner) -> None:  # noqa: N805
                super().setup()
                self.connections.add(inner.connection)

            def finish(inner) -> None:  # noqa: N805
                self.connections.discard(inner.connection)
                with contextlib.suppress(OSError):
                    super().finish()

            def do_POST(inner) -> None:  # noqa: N805
                sent = inner.rfile.read(int(inner.headers.get("Content-Length", 0)))
                coding = inner.headers.get("Content-Encoding", "")
                body = {"gzip": gzip.decompress, "deflate": zlib.decompress}.get(coding, bytes)(sent)
                headers = {key.lower(): text for key, text in inner.headers.items()}
                peer = "{}:{}".format(*inner.client_address)
                answer = receiver.take(Request.of(inner.path, headers, sent, body, peer))
                response = answer.response()
                inner.send_response(int(answer.status))
                for key, text in {"Content-Type": "application/x-protobuf", **answer.headers}.items():
                    inner.send_header(key, text)
                inner.send_header("Content-Length", str(len(response)))
                inner.end_headers()
                inner.wfile.write(response)

            def log_message(self, *_: object) -> None: ...

        super().__init__(("127.0.0.1", receiver.port), Exchange)
        self._thread = threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no error here."""

    def stop(self) -> None:
        self.shutdown()
        self.server_close()
        for connection in list(self.connections):
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue
        self._thread.join()


class _GrpcServer:
    def __init__(self, receiver: Receiver) -> None:
        import grpc

        def export(method: str, request: bytes, context: Any) -> bytes:
            metadata = dict(context.invocation_metadata())
            arrived = Request.of(
                method, metadata, request, request, context.peer(), timeout=context.time_remaining()
            )
            answer = receiver.take(arrived)
            if answer.headers:
                context.set_trailing_metadata(tuple(answer.headers.items()))
            if answer.status not in {200, "OK"}:
                context.abort(grpc.StatusCode[str(answer.status)], answer.message)
            return answer.response()

        self._server = grpc.server(
            futures.ThreadPoolExecutor(4), options=(("grpc.so_reuseport", 0),), maximum_concurrent_rpcs=None
        )
        for path in (GRPC_METHOD, GRPC_METRICS):
            service, method = path.strip("/").split("/")
            answered = grpc.unary_unary_rpc_method_handler(functools.partial(export, path))
            self._server.add_generic_rpc_handlers(
                (grpc.method_handlers_generic_handler(service, {method: answered}),)
            )
        assert self._server.add_insecure_port(f"127.0.0.1:{receiver.port}") == receiver.port
        self._server.start()

    def stop(self) -> None:
        self._server.stop(0).wait()

"""The small server that hands out the page.

For the reader, which must never wait for a client: a client has 10 seconds for each step and 30 for all of it, and when
too many are there the one that came first has to go. A connection is good for one request, its head for 32 KiB.

The probes `/healthz` and `/readyz` need no password: they tell no numbers, and who runs them has none.
"""

from __future__ import annotations

import contextlib
import errno
import gzip
import socket
import threading
import time
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.client import LineTooLong
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from spantail.out.door import Door, Web
from spantail.out.page import ListenError, Page, accepts_gzip

SCRAPER: Final = "X-Prometheus-Scrape-Timeout-Seconds"
CLIENTS: Final = 32
PATIENCE: Final = 10.0
LIFETIME: Final = 30.0
"""Seconds after which a connection is closed whatever it does: one byte at a time is no request."""
HEAD_BYTES: Final = 32 << 10
BODY_BYTES: Final = 64 << 10
"""What of a request's body is read away, so that its answer arrives."""

_PROBES: Final = frozenset({"/healthz", "/readyz"})
_BACKLOG: Final = "the backlog is being read"
_INDEX: Final = b"""<!doctype html><title>spantail</title><h1>spantail</h1>
<ul><li><a href="/metrics">/metrics</a><li><a href="/healthz">/healthz</a><li><a href="/readyz">/readyz</a></ul>
"""


class PageServer:
    """Listens from the moment it is made, answers from `start` on."""

    def __init__(
        self,
        host: str,
        port: int,
        page: Page,
        *,
        ready: Callable[[], tuple[bool, str]],
        alive: Callable[[], bool] = lambda: True,
        metrics: bool = True,
        door: Door | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Without `metrics` it tells only how the program is."""
        try:
            self._server = _Server(
                host, port, page, ready, alive, door or Door(Web()), clock, metrics=metrics
            )
        except OSError as fault:
            raise ListenError(_why(host, port, fault)) from fault
        self._thread = threading.Thread(target=self._server.serve_forever, name="spantail-page", daemon=True)

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()


def _why(host: str, port: int, fault: OSError) -> str:
    where = f"cannot listen on {host}:{port}"
    if fault.errno == errno.EADDRINUSE:
        return (
            f"{where}: the port is taken, by another spantail or by an agent's own exporter, which has the"
            " same default port; choose another with --listen ADDR:PORT, or --listen none"
        )
    return f"{where}: {fault.strerror or fault}; see --listen ADDR:PORT"


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(
        self,
        host: str,
        port: int,
        page: Page,
        ready: Callable[[], tuple[bool, str]],
        alive: Callable[[], bool],
        door: Door,
        clock: Callable[[], float],
        *,
        metrics: bool,
    ) -> None:
        self.page = page
        self.metrics = metrics
        self.ready = ready
        self.alive = alive
        self.door = door
        self._clock = clock
        self._clients: dict[Any, float] = {}
        """Open connections and when they came, the oldest first."""
        self._clients_lock = threading.Lock()
        if ":" in host:
            self.address_family = socket.AF_INET6
        super().__init__((host, port), _Request)

    def server_bind(self) -> None:
        """Without the look-up of the host's full name, which can take seconds."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def get_request(self) -> tuple[socket.socket, Any]:
        """The handshake, which takes as long as the client wants, is made in the client's own thread."""
        connection, address = super().get_request()
        context = self.door.context()
        if context is None:
            return connection, address
        try:
            return context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False), address
        except BaseException:
            connection.close()
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._clients_lock:
            if len(self._clients) >= CLIENTS:
                self._send_away(next(iter(self._clients)))
            self._clients[request] = self._clock()
        super().process_request(request, client_address)

    def service_actions(self) -> None:
        """Twice a second: who has been here too long has to go."""
        late = self._clock() - LIFETIME
        with self._clients_lock:
            for client in [client for client, came in self._clients.items() if came < late]:
                self._send_away(client)

    def _send_away(self, client: Any) -> None:
        del self._clients[client]
        with contextlib.suppress(OSError):
            client.shutdown(socket.SHUT_RDWR)  # its thread wakes up and ends

    def shutdown_request(self, request: Any) -> None:
        with self._clients_lock:
            self._clients.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away or was too slow is no business of the log."""


class _Head:
    """Reads a request's head, and no more of it than that."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self._left = -1

    def readline(self, size: int = -1) -> bytes:
        line: bytes = self._file.readline(size)
        if self._left < 0:  # the request line has a limit of its own
            self._left = HEAD_BYTES
            return line
        self._left -= len(line)
        if self._left < 0:
            raise LineTooLong("header")
        return line

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


class _Request(BaseHTTPRequestHandler):
    server: _Server
    server_version = "spantail"
    sys_version = ""
    timeout = PATIENCE

    def setup(self) -> None:
        super().setup()
        self.rfile = _Head(self.rfile)  # type: ignore[assignment]

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path not in _PROBES and not self.server.door.admits(self.headers.get("Authorization")):
            self._send(
                HTTPStatus.UNAUTHORIZED,
                b"a name and password are needed\n",
                "text/plain; charset=utf-8",
                {"WWW-Authenticate": 'Basic realm="spantail", charset="UTF-8"'},
            )
        elif path == "/metrics" and self.server.metrics:
            self._metrics()
        elif path == "/healthz":
            alive = self.server.alive()
            self._answer(
                HTTPStatus.OK if alive else HTTPStatus.SERVICE_UNAVAILABLE, "ok" if alive else "stuck"
            )
        elif path == "/readyz":
            ready, reason = self.server.ready()
            if ready and not self.server.page.is_open:
                ready, reason = False, _BACKLOG
            if not ready and not self.server.door.admits(self.headers.get("Authorization")):
                reason = "not ready"  # why may name folders
            self._answer(HTTPStatus.OK if ready else HTTPStatus.SERVICE_UNAVAILABLE, reason or "ready")
        elif path == "/":
            self._send(HTTPStatus.OK, _INDEX, "text/html; charset=utf-8")
        else:
            off = path == "/metrics"
            self._answer(
                HTTPStatus.NOT_FOUND,
                "off: prometheus is not in OTEL_METRICS_EXPORTER" if off else "not found",
            )

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_POST(self) -> None:
        with contextlib.suppress(ValueError):
            self.rfile.read(min(BODY_BYTES, max(0, int(self.headers.get("Content-Length", "0")))))
        self._send(
            HTTPStatus.METHOD_NOT_ALLOWED,
            b"only GET and HEAD\n",
            "text/plain; charset=utf-8",
            {"Allow": "GET, HEAD"},
        )

    do_PUT = do_DELETE = do_PATCH = do_OPTIONS = do_POST  # noqa: N815 (the names are the base's)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (the name is the base's)
        """Nothing: a scrape every few seconds is not news."""

    def _metrics(self) -> None:
        page = self.server.page
        if not page.is_open:
            self._answer(HTTPStatus.SERVICE_UNAVAILABLE, _BACKLOG)
            return
        # A HEAD shows no number to anybody, so it begins no hold.
        scraper = SCRAPER in self.headers and self.command == "GET"
        body, kind = page.render(self.headers.get("Accept"), scraper=scraper)
        headers = {"Vary": "Accept, Accept-Encoding"}
        if accepts_gzip(self.headers.get("Accept-Encoding", "")):
            body = gzip.compress(body, compresslevel=1)
            headers["Content-Encoding"] = "gzip"
        self._send(HTTPStatus.OK, body, kind, headers)

    def _answer(self, status: HTTPStatus, line: str) -> None:
        self._send(status, f"{line}\n".encode(), "text/plain; charset=utf-8")

    def _send(
        self, status: HTTPStatus, body: bytes, kind: str, headers: Mapping[str, str] | None = None
    ) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

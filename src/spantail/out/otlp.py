"""The way to the backend of traces or metrics: bytes go out, a verdict comes back.

The standard variables (`OTEL_EXPORTER_OTLP_*`) mean here what they mean to every other program
with OpenTelemetry, because a stock exporter resolves them: over HTTP it is asked to export
nothing, and the request it would have made (address, headers, compression, certificates, proxies,
timeout) is kept and sent again with our bodies; over gRPC its channel is used. Only the answer is
judged here: the stock exporters take a partial rejection and a redirect for success.

A verdict never holds the value of a header: its message goes to logs.

Longer than 400 lines because the two protocols judge by the same words, which stand between them.
"""

from __future__ import annotations

import gzip
import logging
import os
import re
import ssl
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol
from urllib.parse import urlsplit

from msgspec import Struct

from spantail.out.signals import Signal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

Kind = Literal["delivered", "partial", "retry", "refused", "too_large", "auth"]

_BASE: Final = "OTEL_EXPORTER_OTLP_"
_ADDRESS_AT_FAULT: Final = frozenset({404, 405, 406, 407, 410, 411, 415, 421, 426})
"""4xx that speak of the address or the way, not of these spans: dropping spans would not help."""
_TOO_LARGE: Final = re.compile(r"larger than max|exceeds maximum size|length too large", re.IGNORECASE)
_MESSAGE_LENGTH: Final = 200


class Verdict(Struct, frozen=True):
    """What became of a request.

    `delivered` and `partial` are final: the backend has it, but for `rejected` spans or points. `retry` and
    `auth` say that the same bytes may be taken later. `refused` and `too_large` say that they
    will not, so smaller requests have to find out which part is at fault.
    """

    kind: Kind
    rejected: int = 0
    message: str = ""
    retry_after: float | None = None


class Transport(Protocol):
    """Sends a serialized export request. Never raises for what a backend does."""

    def send(self, request: bytes) -> Verdict: ...

    def close(self) -> None: ...


def transport(environ: Mapping[str, str], signal: Signal, longest: float | None = None) -> Transport:
    """What the standard variables ask for; a request takes at most `longest` seconds, if given.

    The stock exporters read `os.environ`, so `environ` is that; it decides only by which protocol.
    A bad value is a ValueError of one line.
    """
    endpoint = _setting(environ, signal, "ENDPOINT")
    protocol = _setting(environ, signal, "PROTOCOL").strip() or _usual_protocol(endpoint)
    if protocol not in {"grpc", "http/protobuf"}:
        raise ValueError(f"OTEL_EXPORTER_OTLP_PROTOCOL: grpc or http/protobuf, not {protocol!r}")
    if protocol == "http/protobuf" and endpoint and not re.match(r"https?://[^/]", endpoint, re.IGNORECASE):
        raise ValueError(
            f"OTEL_EXPORTER_OTLP_ENDPOINT: begins with http:// or https://, not {_public(endpoint)!r}"
        )
    _check_headers(environ, signal)
    _check_certificates(environ, signal)
    try:
        if protocol == "grpc":
            return _Grpc(environ, signal, longest)
        return _Http(signal, longest)
    except (ValueError, RuntimeError, OSError) as error:
        raise ValueError(f"OTLP: {_one_line(str(error))}") from None


def _usual_protocol(endpoint: str) -> str:
    """The specification's default; but nobody speaks HTTP on the port that is gRPC's."""
    return "grpc" if endpoint.rstrip("/").endswith(":4317") else "http/protobuf"


def _setting(environ: Mapping[str, str], signal: Signal, name: str) -> str:
    return environ.get(f"{_BASE}{signal.name}_{name}") or environ.get(f"{_BASE}{name}") or ""


def _check_headers(environ: Mapping[str, str], signal: Signal) -> None:
    """By the stock parser, which warns of what it cannot use, with the value in the warning: what is secret would be
    in the log, and a backend would refuse everything for want of it."""
    from opentelemetry.util import re as stock

    warned: list[logging.LogRecord] = []

    def keep(record: logging.LogRecord) -> bool:
        warned.append(record)
        return False

    logger = logging.getLogger(stock.__name__)
    logger.addFilter(keep)
    try:
        for name in (f"{_BASE}HEADERS", f"{_BASE}{signal.name}_HEADERS"):
            stock.parse_env_headers(environ.get(name, ""), liberal=True)
            if warned:
                raise ValueError(
                    f"{name}: must be pairs like authorization=Bearer%20abc, with commas between them"
                )
    finally:
        logger.removeFilter(keep)


def _check_certificates(environ: Mapping[str, str], signal: Signal) -> None:
    """Finds at start what would else fail with each request, or (gRPC) not be noticed at all."""
    authority = _setting(environ, signal, "CERTIFICATE")
    chain = _setting(environ, signal, "CLIENT_CERTIFICATE")
    key = _setting(environ, signal, "CLIENT_KEY")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if authority and not Path(authority).is_dir():
        try:
            context.load_verify_locations(authority)
        except (OSError, ValueError) as error:
            raise ValueError(f"OTEL_EXPORTER_OTLP_CERTIFICATE: {authority}: {_reason(error)}") from None
    if chain:
        try:
            context.load_cert_chain(chain, key or None, password="")  # a prompt would hang
        except (OSError, ValueError) as error:
            raise ValueError(f"OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE: {chain}: {_reason(error)}") from None


# ------------------------------------------------------------------------------------- messages


def _one_line(text: str) -> str:
    return " ".join(text.split())[:_MESSAGE_LENGTH]


def _reason(error: BaseException) -> str:
    """The innermost thing the system said: "Connection refused", not five wrappings of it."""
    seen: set[int] = set()
    said = ""
    queue: list[object] = [error]
    while queue:
        this = queue.pop(0)
        if not isinstance(this, BaseException) or id(this) in seen:
            continue
        seen.add(id(this))
        if isinstance(this, OSError) and this.strerror:
            said = this.strerror
        queue += [*this.args, getattr(this, "reason", None), this.__cause__, this.__context__]
    return _one_line(said or type(error).__name__)


def _scrubber(headers: Iterable[tuple[str, str]]) -> Callable[[str], str]:
    """Takes the values of headers out of what a backend says, should it repeat them."""
    plain = {"content-type", "content-encoding", "content-length", "user-agent"}
    plain |= {"accept", "accept-encoding", "connection"}
    secrets = {
        part
        for name, value in headers
        if name.lower() not in plain
        for part in (value, *value.split())
        if len(part) > 3
    }
    ordered = sorted(secrets, key=len, reverse=True)

    def scrub(text: str) -> str:
        for secret in ordered:
            text = text.replace(secret, "***")
        return _one_line(text)

    return scrub


def _accepted(body: bytes, signal: Signal, as_json: bool = False) -> Verdict:
    """The verdict on a 2xx or OK answer: all of it, but for what it says was rejected."""
    if not body:
        return Verdict("delivered")
    rejected, message = 0, ""
    if as_json:
        import orjson

        try:
            said = orjson.loads(body).get("partialSuccess") or {}
            rejected = int(said.get(signal.rejected_json) or 0)
            message = str(said.get("errorMessage") or "")
        except (ValueError, TypeError, AttributeError):
            return Verdict("delivered")
    else:
        from google.protobuf.message import DecodeError

        try:
            answer = signal.answer().FromString(body)
        except DecodeError:  # some proxies add a page of their own to a 200
            return Verdict("delivered")
        rejected = getattr(answer.partial_success, signal.rejected)
        message = answer.partial_success.error_message
    return Verdict("partial" if rejected > 0 else "delivered", max(rejected, 0), message)


# ----------------------------------------------------------------------------------------- HTTP


class _Http:
    """The request that the stock exporter makes, with other bodies, over one kept connection."""

    def __init__(self, signal: Signal, longest: float | None) -> None:
        import requests

        asked: list[tuple[requests.PreparedRequest, dict[str, Any]]] = []

        def keep(request: requests.PreparedRequest, **options: Any) -> requests.Response:
            asked.append((request, options))
            answer = requests.Response()
            answer.status_code, answer._content = 200, b""  # noqa: SLF001
            return answer

        self._session = requests.Session()
        self._session.send = keep  # type: ignore[method-assign]
        signal.http()(session=self._session).export(signal.nothing())
        del self._session.send
        if not asked:
            raise ValueError(f"not an address: {_public(_setting(os.environ, signal, 'ENDPOINT'))!r}")
        self._request, self._options = asked[0]
        # The stock exporter says what is left of its timeout, some microseconds less.
        timeout = float(self._options["timeout"])
        if timeout <= 0:
            raise ValueError("OTEL_EXPORTER_OTLP_TIMEOUT: more than 0 seconds")
        timeout = round(timeout, 2) or timeout
        self._options["timeout"] = timeout if longest is None else min(timeout, longest)
        self._options["allow_redirects"] = False
        encoding = self._request.headers.get("Content-Encoding", "")
        compressions: dict[str, Callable[[bytes], bytes]] = {"gzip": _gzip, "deflate": zlib.compress}
        self._compress = compressions.get(encoding)
        self._where = _public(str(self._request.url))
        self._scrub = _scrubber(self._request.headers.items())
        self._signal = signal
        self._failures = requests.RequestException
        self._lost = requests.ConnectionError
        self._slow = requests.Timeout

    def send(self, request: bytes) -> Verdict:
        prepared = self._request.copy()
        prepared.prepare_body(self._compress(request) if self._compress else request, None)
        try:
            try:
                answer = self._session.send(prepared, **self._options)
            except self._lost as error:
                if isinstance(error, self._slow):
                    raise
                # Usually a kept connection that the other side has closed meanwhile.
                answer = self._session.send(prepared, **self._options)
        except self._slow:
            return Verdict("retry", message=f"{self._where}: no answer in {self._options['timeout']:g} s")
        except (self._failures, OSError, ValueError) as error:
            return Verdict("retry", message=f"{self._where}: {self._scrub(_reason(error))}")
        return self._judge(answer)

    def _judge(self, answer: Any) -> Verdict:
        status = answer.status_code
        if 200 <= status < 300:
            verdict = _accepted(
                answer.content, self._signal, "json" in answer.headers.get("Content-Type", "")
            )
            return Verdict(verdict.kind, verdict.rejected, self._scrub(verdict.message))
        message = f"{self._where}: {status} {self._scrub(answer.reason or '')}".rstrip()
        if said := self._scrub(_error_text(answer)):
            message += f": {said}"
        if status in {401, 403}:
            return Verdict("auth", message=message)
        if status == 413:
            return Verdict("too_large", message=message)
        if 400 <= status < 500 and status not in {408, 425, 429} and status not in _ADDRESS_AT_FAULT:
            return Verdict("refused", message=message)
        return Verdict("retry", message=message, retry_after=_retry_after(answer.headers.get("Retry-After")))

    def close(self) -> None:
        self._session.close()


def _gzip(request: bytes) -> bytes:
    # Level 9, the stock exporter's, takes more than twice as long for a tenth less.
    return gzip.compress(request, compresslevel=3, mtime=0)


def _public(url: str) -> str:
    """An address without what may be secret in it: user, password, query."""
    parts = urlsplit(url)
    if not parts.netloc:  # localhost:4318 has a scheme `localhost` for the parser
        return url.partition("?")[0].rpartition("@")[2]
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def _error_text(answer: Any) -> str:
    """The message of an error answer: OTLP says a google.rpc.Status; HTML pages say nothing."""
    kind = answer.headers.get("Content-Type", "")
    if kind.startswith("application/x-protobuf"):
        from google.protobuf.message import DecodeError
        from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]

        try:
            return str(Status.FromString(answer.content).message)
        except DecodeError:
            return ""
    return answer.text if kind.startswith("text/plain") else ""


def _retry_after(value: str | None) -> float | None:
    """Seconds from now, of a header that holds seconds or a date."""
    if not value:
        return None
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    import time
    from email.utils import parsedate_to_datetime

    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    except (ValueError, TypeError):
        return None


# ----------------------------------------------------------------------------------------- gRPC


class _Grpc:
    """The stock exporter's channel, headers and timeout; bytes in, bytes out."""

    def __init__(self, environ: Mapping[str, str], signal: Signal, longest: float | None) -> None:
        import grpc
        from opentelemetry.exporter.otlp.proto.grpc import exporter

        # `none` is a value of the specification that the stock exporter refuses.
        plain = _setting(environ, signal, "COMPRESSION").strip().lower() == "none"
        compression = grpc.Compression.NoCompression if plain else None

        def connect() -> Any:
            return signal.grpc()(compression=compression)

        self._grpc = grpc
        self._signal = signal
        self._longest = longest
        self._connect = connect
        try:
            self._open()
        except exporter.InvalidCompressionValueException as error:
            raise ValueError(str(error)) from None
        self._scrub = _scrubber(self._stock._headers)  # noqa: SLF001

    def _open(self) -> None:
        self._stock = self._connect()
        self._is_open = True
        # Without serializers: bytes as they are.
        self._call = self._stock._channel.unary_unary(self._signal.method)  # noqa: SLF001

    def send(self, request: bytes) -> Verdict:
        stock = self._stock
        timeout = stock._timeout if self._longest is None else min(stock._timeout, self._longest)  # noqa: SLF001
        try:
            answer = self._call(request, metadata=stock._headers, timeout=timeout)  # noqa: SLF001
        except self._grpc.RpcError as error:
            return self._judge(error)
        verdict = _accepted(answer, self._signal)
        return Verdict(verdict.kind, verdict.rejected, self._scrub(verdict.message))

    def _judge(self, error: Any) -> Verdict:
        codes, code, details = self._grpc.StatusCode, error.code(), error.details() or ""
        where = self._stock._endpoint.rpartition("@")[2]  # noqa: SLF001 - without a password in it
        message = f"{where}: {code.name}: {self._scrub(details)}"
        if code is codes.UNAVAILABLE:
            # A channel waits longer and longer before it connects again; a new one does not.
            self.close()
            self._open()
        if code in {codes.UNAUTHENTICATED, codes.PERMISSION_DENIED}:
            return Verdict("auth", message=message)
        if code in {codes.RESOURCE_EXHAUSTED, codes.OUT_OF_RANGE} and _TOO_LARGE.search(details):
            return Verdict("too_large", message=message)
        if code is codes.INVALID_ARGUMENT:
            return Verdict("refused", message=message)
        # The rest speaks of the way or the backend's state. Nothing is lost by waiting.
        return Verdict("retry", message=message, retry_after=_retry_info(error.trailing_metadata() or ()))

    def close(self) -> None:
        if self._is_open:  # of a second time the stock exporter writes a line on stderr
            self._is_open = False
            self._stock.shutdown()


def _retry_info(metadata: Iterable[tuple[str, bytes]]) -> float | None:
    """The delay a backend asks for, in either of the two places where backends put it."""
    from google.protobuf.message import DecodeError
    from google.rpc.error_details_pb2 import RetryInfo  # type: ignore[import-untyped]
    from google.rpc.status_pb2 import Status

    info = RetryInfo()
    try:
        for key, value in metadata:
            if key == "google.rpc.retryinfo-bin":
                info.ParseFromString(value)
            elif key == "grpc-status-details-bin":
                for detail in Status.FromString(value).details:
                    detail.Unpack(info)
    except DecodeError:
        return None
    delay = info.retry_delay
    return delay.seconds + delay.nanos / 1e9 if info.HasField("retry_delay") else None

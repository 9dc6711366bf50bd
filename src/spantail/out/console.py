"""Settled spans on stdout, one OTLP/JSON line each.

For a person with jq, and for a Collector's otlpjsonfile receiver: a line is a whole TracesData with one
span, ids in hex and enums as numbers, as the OTLP specification writes JSON. It is a Transport
like any other, so a span is printed after it was committed, and again after a kill if it was not
yet known to be printed.
"""

from __future__ import annotations

import base64
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, TextIO

import orjson

from spantail.out.otlp import Verdict

if TYPE_CHECKING:
    from spantail.out.otlp import Transport

_IDS: Final = ("traceId", "spanId", "parentSpanId")


class Console:
    """Prints what `inner`, if there is one, has delivered."""

    def __init__(self, inner: Transport | None = None, stream: TextIO | None = None) -> None:
        self._inner = inner
        self._stream = stream or sys.stdout

    def send(self, request: bytes) -> Verdict:
        verdict = Verdict("delivered") if self._inner is None else self._inner.send(request)
        if verdict.kind not in {"delivered", "partial"}:
            return verdict
        try:
            self._stream.write("".join(lines(request)))
            self._stream.flush()
        except (OSError, ValueError) as error:
            if self._inner is None:
                reason = getattr(error, "strerror", None) or type(error).__name__
                return Verdict("retry", message=f"stdout: {reason}")
        return verdict

    def close(self) -> None:
        if self._inner is not None:
            self._inner.close()


def lines(request: bytes) -> Iterator[str]:
    from google.protobuf.json_format import MessageToDict
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    whole = MessageToDict(ExportTraceServiceRequest.FromString(request), use_integers_for_enums=True)
    for group in whole.get("resourceSpans", ()):
        for scope in group.get("scopeSpans", ()):
            for span in scope.pop("spans", ()):
                for each in (span, *span.get("links", ())):
                    _hex(each)
                one = {"resourceSpans": [{**group, "scopeSpans": [{**scope, "spans": [span]}]}]}
                yield orjson.dumps(one).decode() + "\n"


def _hex(holder: dict[str, Any]) -> None:
    """Protobuf's own JSON has bytes in base64; OTLP's has these in hex."""
    for key in _IDS:
        if key in holder:
            holder[key] = base64.b64decode(holder[key]).hex()

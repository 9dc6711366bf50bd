"""Which exporters the standard variables ask for, and the way out for each.

For whoever sets `OTEL_TRACES_EXPORTER` and `OTEL_METRICS_EXPORTER` for all programs of a machine: they
mean here what they mean elsewhere, and a word that means nothing stops the start with one line
(ValueError) instead of a silence that looks like success.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from spantail.model import SECOND
from spantail.out.signals import METRICS, TRACES, Signal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spantail.out.otlp import Transport

INTERVAL: Final = "OTEL_METRIC_EXPORT_INTERVAL"
TIMEOUT: Final = "OTEL_METRIC_EXPORT_TIMEOUT"
TEMPORALITY: Final = "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE"


def traces(environ: Mapping[str, str]) -> frozenset[str]:
    """`otlp`, `console`, both or none of them. Unsaid: otlp if there is an endpoint."""
    chosen = _words(environ, "OTEL_TRACES_EXPORTER", "otlp", "console")
    if chosen is None:
        endpoint = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"
        return frozenset({"otlp"} if any(map(environ.get, endpoint)) else ())
    return chosen


def metrics(environ: Mapping[str, str]) -> frozenset[str]:
    """`prometheus` (the page), `otlp` (the push), both or none of them. Unsaid: the page."""
    chosen = _words(environ, "OTEL_METRICS_EXPORTER", "prometheus", "otlp")
    return frozenset({"prometheus"}) if chosen is None else chosen


def trace_transport(environ: Mapping[str, str]) -> Transport | None:
    """The way out for spans; None if they stay here."""
    chosen = traces(environ)
    sent = _transport(environ, TRACES) if "otlp" in chosen else None
    if "console" not in chosen:
        return sent
    from spantail.out.console import Console

    return Console(sent)


def push_interval(environ: Mapping[str, str]) -> int:
    """How often metrics are pushed, in ns; 0 if they are only shown."""
    if "otlp" not in metrics(environ):
        return 0
    temporality = environ.get(TEMPORALITY, "").strip().lower() or "cumulative"
    if temporality != "cumulative":
        # Deltas that were lost, or sent and not committed, could never be put right.
        raise ValueError(
            f"{TEMPORALITY}: only cumulative is supported, not {temporality!r}; "
            "a Collector's cumulativetodelta processor makes deltas of it"
        )
    return _milliseconds(environ, INTERVAL, 60_000) * SECOND // 1000


def push_transport(environ: Mapping[str, str]) -> Transport | None:
    """The way out for metrics; None if they are only shown."""
    if "otlp" not in metrics(environ):
        return None
    return _transport(environ, METRICS, _milliseconds(environ, TIMEOUT, 30_000) / 1000)


def _transport(environ: Mapping[str, str], signal: Signal, longest: float | None = None) -> Transport:
    # The libraries for it are large: whoever sends nothing does not load them, and a crew is at work by then.
    from spantail.out.otlp import transport

    return transport(environ, signal, longest)


def trace_resource(environ: Mapping[str, str]) -> dict[str, str]:
    """What spans say of where they come from, beside the agent. What the user adds wins."""
    ours = {"service.namespace": "coding-agents", "host.name": socket.gethostname()}
    return {**ours, **_added(environ)}


def metric_resource(environ: Mapping[str, str], instance: str, version: str) -> dict[str, str]:
    """Who pushes: spantail itself. `instance` stays the same as long as the totals go on."""
    resource = {
        "service.name": "spantail",
        "service.instance.id": instance,
        "service.version": version,
        "host.name": socket.gethostname(),
        **_added(environ),
    }
    if name := environ.get("OTEL_SERVICE_NAME", "").strip():
        resource["service.name"] = name
    return resource


def _added(environ: Mapping[str, str]) -> dict[str, str]:
    pairs = (pair.partition("=") for pair in environ.get("OTEL_RESOURCE_ATTRIBUTES", "").split(","))
    return {key.strip(): unquote(value.strip()) for key, _, value in pairs if key.strip() and value}


def _words(environ: Mapping[str, str], variable: str, *known: str) -> frozenset[str] | None:
    words = {word.strip().lower() for word in environ.get(variable, "").split(",")} - {""}
    if not words:
        return None
    if unknown := words - {*known, "none"}:
        raise ValueError(f"{variable}: {', '.join(known)} or none, not {min(unknown)!r}")
    if "none" in words and len(words) > 1:
        raise ValueError(f"{variable}: none stands alone")
    return frozenset(words - {"none"})


def _milliseconds(environ: Mapping[str, str], variable: str, default: int) -> int:
    word = environ.get(variable, "").strip()
    if not word:
        return default
    if not word.isascii() or not word.isdigit() or not 0 < int(word) < 10**10:
        raise ValueError(f"{variable}: milliseconds, more than 0, not {word!r}")
    return int(word)

"""What differs between the two signals that are sent: names, classes, and where an answer counts rejections.

For otlp.py, which sends both in one way and judges both by one rule. The stock exporters' classes are
imported when they are asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from msgspec import Struct


class Signal(Struct, frozen=True):
    name: str
    """As in the variables: `TRACES`."""
    method: str
    """Of the gRPC service."""
    http: Callable[[], Any]
    """The stock exporter's class."""
    grpc: Callable[[], Any]
    nothing: Callable[[], Any]
    """What a stock exporter is given to export nothing."""
    answer: Callable[[], Any]
    """The class of the answer; its partial_success ..."""
    rejected: str
    """... counts in this field."""
    rejected_json: str


def _http_spans() -> Any:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter


def _grpc_spans() -> Any:
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter


def _span_answer() -> Any:
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

    return ExportTraceServiceResponse


def _http_metrics() -> Any:
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter

    return OTLPMetricExporter


def _grpc_metrics() -> Any:
    from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter

    return OTLPMetricExporter


def _no_metrics() -> Any:
    from opentelemetry.sdk.metrics.export import MetricsData

    return MetricsData([])


def _metric_answer() -> Any:
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse

    return ExportMetricsServiceResponse


TRACES: Final = Signal(
    "TRACES",
    "/opentelemetry.proto.collector.trace.v1.TraceService/Export",
    _http_spans,
    _grpc_spans,
    list,
    _span_answer,
    "rejected_spans",
    "rejectedSpans",
)
METRICS: Final = Signal(
    "METRICS",
    "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export",
    _http_metrics,
    _grpc_metrics,
    _no_metrics,
    _metric_answer,
    "rejected_data_points",
    "rejectedDataPoints",
)

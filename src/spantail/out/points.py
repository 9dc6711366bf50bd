"""A snapshot as OTLP: the metrics of the page under dotted names that Prometheus makes the page's names of.

For backends that are pushed to. Sums and histograms are cumulative and begin with the first event of their
series, which the state keeps: after a restart a series goes on with the same start and is not taken
for a new one. An exemplar leads to the trace, as on the page.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    AGGREGATION_TEMPORALITY_CUMULATIVE,
    Exemplar,
    HistogramDataPoint,
    Metric,
    NumberDataPoint,
)

from spantail.model import SECOND
from spantail.state.families import Family
from spantail.state.series import Distribution, Point
from spantail.state.totals import Snapshot

REQUEST_POINTS: Final = 5000
"""Points of one request: about 1.5 MB, and gRPC servers take 4 MiB."""


class Points:
    def __init__(
        self, resource: Mapping[str, str], version: str, created: int, static_labels: Mapping[str, str]
    ) -> None:
        """`created`: when the state was, for series whose first event has no time."""
        self._resource = [_attribute(*pair) for pair in sorted(resource.items())]
        self._version = version
        self._created = created
        self._static = [_attribute(*pair) for pair in static_labels.items()]

    def requests(self, snapshot: Snapshot, now: int, others: Iterable[Metric] = ()) -> Iterator[bytes]:
        """Serialized ExportMetricsServiceRequests; `others` are metrics that are not in the table."""
        request, room = self._begin()
        points = 0
        for metric, size in self._metrics(snapshot, now, others):
            if points and points + size > REQUEST_POINTS:
                yield request.SerializeToString()
                request, room = self._begin()
                points = 0
            room.metrics.append(metric)
            points += size
        if points:
            yield request.SerializeToString()

    def _begin(self) -> tuple[Any, Any]:
        request = ExportMetricsServiceRequest()
        group = request.resource_metrics.add()
        group.resource.attributes.extend(self._resource)
        room = group.scope_metrics.add()
        room.scope.name, room.scope.version = "spantail", self._version
        return request, room

    def _metrics(
        self, snapshot: Snapshot, now: int, others: Iterable[Metric]
    ) -> Iterator[tuple[Metric, int]]:
        for family, points in snapshot:
            for at in range(0, len(points), REQUEST_POINTS):
                some = points[at : at + REQUEST_POINTS]
                yield self._metric(family, some, now), len(some)
        for metric in others:
            yield metric, 1

    def _metric(self, family: Family, points: Iterable[Point], now: int) -> Metric:
        metric = Metric(name=family.dotted, description=family.help, unit=family.unit)
        if family.kind == "gauge":
            metric.gauge.data_points.extend(self._number(family, point, now) for point in points)
        elif family.kind == "counter":
            metric.sum.aggregation_temporality = AGGREGATION_TEMPORALITY_CUMULATIVE
            metric.sum.is_monotonic = True
            metric.sum.data_points.extend(self._number(family, point, now) for point in points)
        else:
            metric.histogram.aggregation_temporality = AGGREGATION_TEMPORALITY_CUMULATIVE
            metric.histogram.data_points.extend(self._distribution(family, point, now) for point in points)
        return metric

    def _number(self, family: Family, point: Point, now: int) -> NumberDataPoint:
        assert not isinstance(point.value, Distribution)
        return NumberDataPoint(
            attributes=self._attributes(family, point),
            start_time_unix_nano=self._start(point, now) if family.kind == "counter" else 0,
            time_unix_nano=now,
            as_double=point.value,
            exemplars=_exemplars(point),
        )

    def _distribution(self, family: Family, point: Point, now: int) -> HistogramDataPoint:
        value = point.value
        assert isinstance(value, Distribution)
        return HistogramDataPoint(
            attributes=self._attributes(family, point),
            start_time_unix_nano=self._start(point, now),
            time_unix_nano=now,
            count=sum(value.counts),
            sum=value.sum,
            bucket_counts=value.counts,
            explicit_bounds=family.buckets,
            exemplars=_exemplars(point),
        )

    def _start(self, point: Point, now: int) -> int:
        """Not in the future, where an agent's clock may put it."""
        return point.created if 0 < point.created <= now else self._created

    def _attributes(self, family: Family, point: Point) -> list[KeyValue]:
        own = [_attribute(*pair) for pair in family.named(point.labels)]
        return own + self._static if family.about_agents else own


def process_metrics(now: int) -> list[Metric]:
    """Memory, CPU and descriptors of this process, as the page has them."""
    from prometheus_client import CollectorRegistry, ProcessCollector

    made = []
    families = list(ProcessCollector(registry=CollectorRegistry()).collect())
    starts = [f.samples[0].value for f in families if f.name == "process_start_time_seconds"]
    for family in families:
        # Its names hold the unit already: given apart, the unit would be added once more.
        metric = Metric(name=family.name.replace("_", ".", 1), description=family.documentation)
        point = NumberDataPoint(time_unix_nano=now, as_double=family.samples[0].value)
        if family.type == "counter":
            point.start_time_unix_nano = int(starts[0] * SECOND) if starts else 0
            metric.sum.aggregation_temporality = AGGREGATION_TEMPORALITY_CUMULATIVE
            metric.sum.is_monotonic = True
            metric.sum.data_points.append(point)
        else:
            metric.gauge.data_points.append(point)
        made.append(metric)
    return made


def _attribute(key: str, value: str) -> KeyValue:
    return KeyValue(key=key, value=AnyValue(string_value=value))


def _exemplars(point: Point) -> list[Exemplar]:
    return [
        Exemplar(time_unix_nano=one.time, as_double=one.value, trace_id=one.trace)
        for one in point.exemplars
        if one is not None
    ]

"""Reads what was pushed over OTLP, as a backend would: names, labels, values."""

from __future__ import annotations

from typing import Any

from receiver import attributes

Series = tuple[str, tuple[tuple[str, str], ...]]


def resource(request: Any) -> dict[str, Any]:
    return attributes(request.resource_metrics[0].resource.attributes)


def metrics(request: Any) -> dict[str, Any]:
    """By dotted name."""
    scopes = [scope for group in request.resource_metrics for scope in group.scope_metrics]
    return {metric.name: metric for scope in scopes for metric in scope.metrics}


def points(metric: Any) -> list[Any]:
    return list(getattr(metric, metric.WhichOneof("data")).data_points)


def key(name: str, labels: dict[str, str]) -> Series:
    """`le` by its value: Prometheus writes 10 where it was pushed and 10.0 where it scraped."""
    if "le" in labels:
        labels = {**labels, "le": repr(float(labels["le"]))}
    return name, tuple(sorted((label, value) for label, value in labels.items() if value))


def translated(request: Any) -> dict[Series, float]:
    """Every sample under the name that Prometheus makes of it (its rules for dots, units and counters)."""
    found: dict[Series, float] = {}
    for metric in metrics(request).values():
        name = metric.name.replace(".", "_") + {"": "", "s": "_seconds"}[metric.unit]
        if metric.HasField("sum"):
            assert metric.sum.is_monotonic
            assert metric.sum.aggregation_temporality == 2
            name += "_total"
        for point in points(metric):
            labels = attributes(point.attributes)
            if not metric.HasField("histogram"):
                found[key(name, labels)] = point.as_double
                continue
            assert metric.histogram.aggregation_temporality == 2
            found[key(f"{name}_count", labels)] = point.count
            found[key(f"{name}_sum", labels)] = point.sum
            below = 0
            for bound, count in zip([*point.explicit_bounds, None], point.bucket_counts, strict=True):
                below += count
                le = "+Inf" if bound is None else repr(bound)
                found[key(f"{name}_bucket", {**labels, "le": le})] = below
    return found

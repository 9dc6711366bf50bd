"""The parts of grafana-foundation-sdk that are used, imported without its advice.

It warns that schema 2 is to be preferred; files of the classic schema are what every Grafana 12 takes.
"""

import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    from grafana_foundation_sdk.builders import (
        bargauge,
        common,
        dashboard,
        gauge,
        heatmap,
        piechart,
        prometheus,
        stat,
        table,
        timeseries,
    )
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.models import common as c
    from grafana_foundation_sdk.models import dashboard as d
    from grafana_foundation_sdk.models import heatmap as h
    from grafana_foundation_sdk.models import piechart as p
    from grafana_foundation_sdk.models import prometheus as q

__all__ = [
    "JSONEncoder",
    "bargauge",
    "c",
    "common",
    "d",
    "dashboard",
    "gauge",
    "h",
    "heatmap",
    "p",
    "piechart",
    "prometheus",
    "q",
    "stat",
    "table",
    "timeseries",
]

"""Links from a panel to the traces behind it: a search in Jaeger, opened in Grafana's Explore.

For whoever sees a number and asks which turn that was. The agent is Jaeger's service, and every failed span has
`error.type`, so both are in each search that can name them.
"""

from __future__ import annotations

import json
import re
from typing import Final
from urllib.parse import quote, unquote

JAEGER: Final = "${jaeger_datasource}"

Link = tuple[str, str]
"""(title, address)"""


def traces(title: str, agent: str, **tags: str) -> Link:
    """A search for the agent's spans that have these tags; `__` in a name stands for a dot.

    Values are in quotes (the tags are logfmt): a tool may be called anything.
    """
    query = {
        "refId": "A",
        "datasource": {"type": "jaeger", "uid": JAEGER},
        "queryType": "search",
        "service": agent,
        "tags": " ".join(f'{name.replace("__", ".")}="{value}"' for name, value in tags.items()),
        "limit": 50,
    }
    pane = {
        "datasource": JAEGER,
        "queries": [query],
        "range": {"from": "${__from}", "to": "${__to}"},
    }
    panes = quote(json.dumps({"traces": pane}, separators=(",", ":")), safe="")
    # What Grafana fills in has to be found by it, so it alone is not encoded.
    panes = re.sub(r"%24%7B(.*?)%7D", lambda found: f"${{{unquote(found[1])}}}", panes)
    return title, f"/explore?schemaVersion=1&panes={panes}"


def board(title: str, uid: str) -> Link:
    """Another dashboard, with the time and the variables of this one."""
    return title, f"/d/{uid}?${{__url_time_range}}&${{__all_variables}}"


def of_series(title: str, **tags: str) -> Link:
    """For a series that has the label `agent`. A tag's value `@name` is the series' label of that name."""
    return traces(title, "${__field.labels.agent}", **_filled(tags, "${{__field.labels.{}}}"))


def of_row(title: str, **tags: str) -> Link:
    """For a row of a table that has the column `agent`. A tag's value `@name` is the cell of that column."""
    return traces(title, "${__data.fields.agent}", **_filled(tags, "${{__data.fields.{}}}"))


def _filled(tags: dict[str, str], form: str) -> dict[str, str]:
    return {name: form.format(value[1:]) if value[0] == "@" else value for name, value in tags.items()}


TRACES_OF_SERIES: Final = of_series("Traces of ${__field.labels.agent} in Jaeger")
TRACES_OF_ROW: Final = of_row("Traces of ${__data.fields.agent} in Jaeger")
ERRORS_OF_SERIES: Final = of_series(
    "${__field.labels.error_type} of ${__field.labels.agent} in Jaeger", error__type="@error_type"
)
CALLS_OF_SERIES: Final = of_series("Calls of ${__field.labels.tool} in Jaeger", gen_ai__tool__name="@tool")

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from spantail.model import SECOND
from spantail.out.exposition import Writer, number
from spantail.state.families import (
    ACTIVE_SESSIONS,
    COMPACTIONS,
    FAMILIES,
    LAG,
    TOKENS,
    TOOL_DURATION,
    TOOL_ERRORS,
)
from spantail.state.totals import Totals

T0 = 1_700_000_000 * SECOND
TRACE = bytes(range(16))

GOLDEN_TEXT = """\
# HELP coding_agent_tool_duration_seconds Duration of settled tool calls that ended.
# TYPE coding_agent_tool_duration_seconds histogram
coding_agent_tool_duration_seconds_bucket{agent="a",tool="Bash",team="core",le="0.01"} 1
coding_agent_tool_duration_seconds_bucket{agent="a",tool="Bash",team="core",le="0.04"} 1
coding_agent_tool_duration_seconds_bucket{agent="a",tool="Bash",team="core",le="0.16"} 1
coding_agent_tool_duration_seconds_bucket{agent="a",tool="Bash",team="core",le="0.64"} 1
coding_agent_tool_duration_seconds_bucket{agent="a",tool="Bash",team="core",le="2.5"} 2
coding_agent_tool_duration_seconds_bucket{agent="a",tool="Bash",team="core",le="10.0"} 2
coding_agent_tool_duration_seconds_bucket{agent="a",tool="Bash",team="core",le="40.0"} 2
coding_agent_tool_duration_seconds_bucket{agent="a",tool="Bash",team="core",le="160.0"} 2
coding_agent_tool_duration_seconds_bucket{agent="a",tool="Bash",team="core",le="640.0"} 2
coding_agent_tool_duration_seconds_bucket{agent="a",tool="Bash",team="core",le="2560.0"} 2
coding_agent_tool_duration_seconds_bucket{agent="a",tool="Bash",team="core",le="+Inf"} 3
coding_agent_tool_duration_seconds_count{agent="a",tool="Bash",team="core"} 3
coding_agent_tool_duration_seconds_sum{agent="a",tool="Bash",team="core"} 5001.51
# HELP coding_agent_tool_errors_total Tool calls that failed or were interrupted.
# TYPE coding_agent_tool_errors_total counter
coding_agent_tool_errors_total{agent="a",project="p",tool="Bash",error_type="timeout",team="core"} 2
# HELP coding_agent_active_sessions Sessions with an open turn.
# TYPE coding_agent_active_sessions gauge
coding_agent_active_sessions{agent="a",project="",team="core"} 1
# HELP spantail_read_bytes_total Bytes read from session files.
# TYPE spantail_read_bytes_total counter
spantail_read_bytes_total 0
# HELP spantail_outbox_dropped_spans_total Spans dropped because the outbox was full.
# TYPE spantail_outbox_dropped_spans_total counter
spantail_outbox_dropped_spans_total 0
# HELP spantail_lag_seconds Age of the oldest byte that was seen and is not committed.
# TYPE spantail_lag_seconds gauge
spantail_lag_seconds 0.25
"""


@pytest.fixture
def totals() -> Totals:
    totals = Totals(hold=0)
    for seconds in (0.01, 1.5, 5000.0):
        totals.observe(TOOL_DURATION, ("a", "Bash"), seconds, T0, TRACE)
    totals.add(TOOL_ERRORS, ("a", "p", "Bash", "timeout"), 2, T0 + 500_000_000, TRACE)
    totals.rows()
    totals.committed()
    totals.set_gauges({ACTIVE_SESSIONS: {("a", ""): 1}, LAG: {(): 0.25}})
    return totals


def samples(families) -> list:
    return [
        (s.name, s.labels, s.value)
        for family in families
        for s in family.samples
        if not s.name.endswith("_created")
    ]


def test_the_whole_page_as_text(totals):
    """Every line, as a person would read it; static labels on the agents' metrics only."""
    page = Writer({"team": "core"}).text(totals.snapshot(T0, scraper=True)).decode()
    assert page == GOLDEN_TEXT
    assert len(list(parse_text(page))) == 6


def test_openmetrics_differs_in_names_exemplars_and_its_end(totals):
    """Counters lose `_total` in their head, buckets and error counters lead to a trace."""
    writer = Writer({"team": "core"})
    page = writer.openmetrics(totals.snapshot(T0, scraper=True)).decode()
    text = GOLDEN_TEXT.replace("errors_total Tool", "errors Tool").replace(
        "errors_total counter", "errors counter"
    )
    for name in ("read_bytes", "outbox_dropped_spans"):
        text = text.replace(f"P spantail_{name}_total", f"P spantail_{name}")
        text = text.replace(f"E spantail_{name}_total", f"E spantail_{name}")
    trace = f'# {{trace_id="{TRACE.hex()}"}}'
    text = text.replace('le="0.01"} 1\n', f'le="0.01"}} 1 {trace} 0.01 1700000000.000\n')
    text = text.replace('le="2.5"} 2\n', f'le="2.5"}} 2 {trace} 1.5 1700000000.000\n')
    text = text.replace('le="+Inf"} 3\n', f'le="+Inf"}} 3 {trace} 5000 1700000000.000\n')
    text = text.replace(
        'error_type="timeout",team="core"} 2\n',
        f'error_type="timeout",team="core"}} 2 {trace} 2 1700000000.500\n',
    )
    assert page == text + "# EOF\n"
    found = [s.exemplar for family in parse_openmetrics(page) for s in family.samples if s.exemplar]
    assert [(e.labels["trace_id"], e.value) for e in found] == [
        (TRACE.hex(), 0.01),
        (TRACE.hex(), 1.5),
        (TRACE.hex(), 5000.0),
        (TRACE.hex(), 2.0),
    ]


def test_both_formats_say_the_same(totals):
    """Read back by the parsers of prometheus_client, the samples are equal."""
    writer = Writer()
    snapshot = totals.snapshot(T0, scraper=True)
    text = samples(parse_text(writer.text(snapshot).decode()))
    assert text
    assert text == samples(parse_openmetrics(writer.openmetrics(snapshot).decode()))


def test_created_is_shown_only_when_asked_for(totals):
    """With the time of the first event; none for a series that had no event with a time."""
    snapshot = totals.snapshot(T0, scraper=True)
    assert b"_created" not in Writer().text(snapshot)
    assert b"_created" not in Writer().openmetrics(snapshot)
    writer = Writer(created=True)
    expected = {
        "coding_agent_tool_duration_seconds_created": T0 / SECOND,
        "coding_agent_tool_errors_created": T0 / SECOND + 0.5,
    }
    for families in (
        parse_text(writer.text(snapshot).decode()),
        parse_openmetrics(writer.openmetrics(snapshot).decode()),
    ):
        births = {s.name: s.value for f in families for s in f.samples if s.name.endswith("_created")}
        assert births == expected


def test_a_held_series_shows_no_exemplar():
    """A trace in a bucket that says 0 would be a contradiction."""
    totals = Totals()
    totals.observe(TOOL_DURATION, ("a", "Bash"), 1.0, T0, TRACE)
    totals.rows()
    totals.committed()
    page = Writer().openmetrics(totals.snapshot(T0, scraper=True))
    assert b'le="+Inf"} 0\n' in page
    assert b"trace_id" not in page


def test_an_empty_user_is_not_written():
    """With one home the label is not there, which Prometheus holds for the same."""
    totals = Totals(hold=0)
    totals.add(TOKENS, ("a", "p", "m", "input", ""), 1, T0)
    totals.add(TOKENS, ("a", "p", "m", "input", "ann"), 1, T0)
    totals.rows()
    totals.committed()
    page = Writer().text(totals.snapshot(T0, scraper=True)).decode()
    assert 'tokens_total{agent="a",project="p",model="m",type="input"} 1\n' in page
    assert 'tokens_total{agent="a",project="p",model="m",type="input",user="ann"} 1\n' in page


def test_every_family_can_be_written_and_read():
    """One series of each, in both formats: the strict parser takes the whole table."""
    totals = Totals(hold=0)
    gauges = {}
    for family in FAMILIES:
        labels = tuple("x" for _ in family.labels)
        if family.kind == "counter":
            totals.add(family, labels, 1, T0)
        elif family.kind == "histogram":
            totals.observe(family, labels, 1, T0)
        else:
            gauges[family] = {labels: 1}
    totals.rows()
    totals.committed()
    totals.set_gauges(gauges)
    writer = Writer({"team": "core"}, created=True)
    snapshot = totals.snapshot(T0, scraper=True)
    assert len(list(parse_openmetrics(writer.openmetrics(snapshot).decode()))) == len(FAMILIES)
    assert {s[0] for s in samples(parse_text(writer.text(snapshot).decode()))} >= {
        family.name for family in FAMILIES if family.kind != "histogram"
    }


@settings(max_examples=100, deadline=None, database=None)
@given(
    st.text(st.characters(exclude_categories=["Cs", "Cc"])),
    st.text(st.sampled_from('a\\"\n{},= #'), min_size=1),
)
def test_label_values_come_back_as_they_were(one, two):
    """Quotes, backslashes, braces and the like are escaped."""
    totals = Totals(hold=0)
    totals.add(COMPACTIONS, (one, two), 1, T0)
    totals.rows()
    totals.committed()
    writer = Writer({"team": two})
    page = writer.openmetrics(totals.snapshot(T0, scraper=True)).decode()
    (found,) = [s for f in parse_openmetrics(page) if f.name == COMPACTIONS.base for s in f.samples]
    assert found.labels == {"agent": one, "project": two, "team": two}


def test_half_a_character_cannot_spoil_the_page():
    """The guard replaces lone surrogates; one that slips through in a gauge must not end the page."""
    totals = Totals()
    totals.set_gauges({ACTIVE_SESSIONS: {("a", "\ud83d"): 1}})
    assert b'project="?"' in Writer().text(totals.snapshot(T0, scraper=True))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (5.0, "5"),
        (0.1, "0.1"),
        (1e15, "1000000000000000.0"),
        (1e300, "1e+300"),
        (math.inf, "+Inf"),
        (-math.inf, "-Inf"),
        (math.nan, "NaN"),
    ],
)
def test_numbers(value, text):
    """Whole numbers without a point; never a rounded one."""
    assert number(value) == text
    assert math.isnan(value) or float(text) == value

from __future__ import annotations

import re

import pytest

from spantail.state.families import BY_NAME, FAMILIES, TOOL_DURATION, TURN_DURATION, label_fault

UNITS = {"": "", "s": "_seconds"}


def test_the_table_is_whole_and_says_each_thing_once():
    """Every module constant is in the table, and no name stands there twice."""
    assert len(BY_NAME) == len(FAMILIES) == len({family.dotted for family in FAMILIES})
    assert len(FAMILIES) == 44


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_prometheus_makes_our_name_of_the_dotted_one(family):
    """Dots become underscores, then the unit's suffix, then `_total` on a counter."""
    name = family.dotted.replace(".", "_") + UNITS[family.unit]
    assert name + ("_total" if family.kind == "counter" else "") == family.name


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_a_row_is_consistent(family):
    """Names are legal, the closed label is one of the labels, buckets are for histograms and rise."""
    assert re.fullmatch(r"(coding_agent|spantail)_[a-z_]+", family.name)
    assert len(set(family.labels)) == len(family.labels)
    assert (family.closed in family.labels) == bool(family.values) == bool(family.closed)
    assert bool(family.buckets) == (family.kind == "histogram")
    assert list(family.buckets) == sorted(set(family.buckets))
    assert family.help.endswith(".")
    assert "\n" not in family.help
    assert "\\" not in family.help


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_no_label_can_name_a_session_or_a_path(family):
    """Such a label would make a series of its own for each session."""
    assert not {"session", "session_id", "path", "cwd", "turn", "trace_id"} & set(family.labels)


def test_the_buckets_are_those_of_the_contract():
    """Dashboards and alerts ask for some of them by name."""
    assert TOOL_DURATION.buckets == (0.01, 0.04, 0.16, 0.64, 2.5, 10, 40, 160, 640, 2560)
    assert TURN_DURATION.buckets == (1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 10800)


@pytest.mark.parametrize("name", ["team", "cost_centre", "_x"])
def test_a_static_label_may_have_a_name_of_its_own(name):
    """What no family uses is free."""
    assert label_fault(name) == ""


@pytest.mark.parametrize("name", ["agent", "status", "le", "__name__", "1st", "cost-centre", "", "a\n"])
def test_a_static_label_cannot_take_a_name_that_is_used_or_illegal(name):
    """The fault names the label, for the line that stops the start."""
    assert repr(name) in label_fault(name)

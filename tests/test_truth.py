"""Every recorded session against its truth: the spans as they arrive over OTLP, and the metrics page."""

import pytest

import truth
from program import once


@pytest.mark.parametrize("case", truth.cases(), ids=truth.name)
def test_a_recorded_session_gives_what_its_truth_says(case, receiver, tmp_path, monkeypatch):
    """Turns, model calls, tokens by kind and model, every tool call, nesting and exit, over both protocols."""
    spans, page = once(case / "home", tmp_path / "state", receiver, monkeypatch)
    assert truth.complaints(spans, page, truth.expected(case)) == []

"""Killed after each single step of an agent: nothing may live in memory only from one commit to the next."""

from __future__ import annotations

import random

import pytest
import seen
import steps
from stepped import followed

import truth

CASES = (
    ("claude-code", "subagent-a"),
    ("claude-code", "resume-a"),
    ("codex", "subagent-a"),
    ("gemini-cli", "sub-a"),
    ("generic", "parallel-a"),
    ("goose", "sub-a"),
    ("opencode", "subagent-a"),
    ("opencode-json", "subagent-a"),
    ("pi", "subagent-a"),
)
LOOSE = {"goose": r"coding_agent[._](tokens\.|cost)|hours"}
"""See test_kill."""


@pytest.mark.parametrize(("folder", "name"), CASES)
def test_killed_after_every_step(folder, name, tmp_path, monkeypatch):
    """The same spans and totals as if it had lived on."""
    case = next(case for case in truth.cases() if (case.parent.name, case.name) == (folder, name))
    given = {}
    for killed in (False, True):
        place = tmp_path / str(killed)
        made = steps._monotonic(list(steps._case(case, place / "homes" / name, random.Random(7), 0)), 0)
        (place / "homes" / name).mkdir(parents=True, exist_ok=True)
        spans, totals = followed(made, place, monkeypatch, killed=killed)
        assert seen.twofold(spans) == []
        loose = LOOSE.get(folder, "never")
        given[killed] = {span.span_id: seen.content(span, loose) for span in spans}, totals
    said = seen.differences(given[True][0], given[False][0])
    if folder not in LOOSE:
        said += seen.differences(given[True][1], given[False][1])
    assert not said, "\n".join(said)

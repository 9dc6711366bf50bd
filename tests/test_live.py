"""Following a session while it is written gives exactly what reading it whole gives."""

from __future__ import annotations

import pytest

import replay
import truth
from program import Followed, once
from receiver import Receiver, Span
from spantail.formats import TABLE
from spantail.model import SECOND

ONLY_LINES = tuple(row.agent for row in TABLE if {f.storage for f in row.files if f.main} == {"lines"})
LINES = [case for case in truth.cases() if case.parent.name.startswith(ONLY_LINES)]
"""Documents and databases are written in their own ways: tests/formats/ has that for them."""
NO_TIMES = ("clido",)
"""Agents whose lines have no times: what was seen live is dated by its arrival."""


def content(span: Span) -> tuple[object, ...]:
    """All of a span that must not depend on when it was read."""
    events = sorted((name, at, sorted(attrs.items())) for name, at, attrs in span.events)
    links = sorted((trace, id_, sorted(attrs.items())) for trace, id_, attrs in span.links)
    attrs = sorted((key, str(value)) for key, value in span.attrs.items())
    return span.name, span.parent, span.start, span.end, span.status, attrs, events, links


def followed(case, tmp_path, receiver, monkeypatch, pieces) -> tuple[list[Span], str]:
    """The program follows while the pieces are written; its clock is that of the records."""
    for key, value in receiver.environ().items():
        monkeypatch.setenv(key, value)
    home, state = tmp_path / "home", tmp_path / "live"
    for folder in [case / "home", *(path for path in (case / "home").rglob("*") if path.is_dir())]:
        (home / folder.relative_to(case / "home")).mkdir(parents=True)
    program = Followed(
        home, state, min((time for time, _, _ in replay.lines(case / "home") if time), default=SECOND)
    )
    for piece in pieces:
        path = replay.append(home, piece)
        program.now = max(program.now, piece[0])
        program.changed(path)
        program.look()
    program.end_long_after()
    return receiver.spans, (state / "page.prom").read_text()


@pytest.mark.parametrize("case", LINES, ids=truth.name)
def test_followed_live_as_read_whole(case, tmp_path, monkeypatch):
    """Line by line and in random pieces: the same spans with the same content, the same totals."""
    home = replay.copied(case, tmp_path / "recorded")
    with Receiver("http") as receiver:
        whole, page = once(home, tmp_path / "whole", receiver, monkeypatch)
    for how, written in (
        ("lines", replay.lines(case / "home")),
        ("pieces", replay.pieces(case / "home", seed=7)),
    ):
        with Receiver("http") as receiver:
            live, live_page = followed(case, tmp_path / how, receiver, monkeypatch, written)
        assert truth.complaints(live, live_page, truth.expected(case)) == [], how
        if case.parent.name.startswith(NO_TIMES):
            continue
        assert {s.span_id: content(s) for s in live} == {s.span_id: content(s) for s in whole}, how
        assert _added(live_page) == _added(page), how


def _added(page: str) -> dict[object, float]:
    """Every series of the agents' work that is not 0."""
    return {
        (name, tuple(sorted(labels.items()))): round(value, 6)
        for name, series in truth.samples(page).items()
        for labels, value in series
        if value and name.startswith("coding_agent_")
    }

"""Following a session while it is written gives exactly what reading it whole gives."""

from __future__ import annotations

import os

import pytest
import replay
import truth
from program import configured, once
from receiver import Receiver, Span

from spantail.commands.run import Run
from spantail.formats import TABLE
from spantail.model import SECOND
from spantail.state.store import Store
from spantail.tail.wake import HandWaker

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
    now = [min((time for time, _, _ in replay.lines(case / "home") if time), default=SECOND)]
    waker = HandWaker()
    store = Store(state)
    config = configured(home, state, once=False)
    run = Run(config, os.environ, store, clock=lambda: now[0], waker=waker, strict=True)
    run.begin()
    for piece in pieces:
        path = replay.append(home, piece)
        now[0] = max(now[0], piece[0])
        waker.change(str(path))
        run.follow.step(0)
    for _ in range(3):  # long after: the clock closes what nothing else does
        now[0] += 3 * 3600 * SECOND
        run.follow.step(0)
    assert run.deliverer.wait_idle(20)
    run._leave()
    store.close()
    return receiver.spans, (state / "page.prom").read_text()


@pytest.mark.parametrize("case", LINES, ids=truth.name)
@pytest.mark.parametrize("how", ["lines", "pieces"])
def test_followed_live_as_read_whole(case, how, tmp_path, monkeypatch):
    """Line by line and in random pieces: the same spans with the same content, the same totals."""
    with Receiver("http") as receiver:
        home = replay.copied(case, tmp_path / "recorded")
        whole, page = once(home, tmp_path / "whole", receiver, monkeypatch)
    written = replay.lines(case / "home") if how == "lines" else replay.pieces(case / "home", seed=7)
    with Receiver("http") as receiver:
        live, live_page = followed(case, tmp_path, receiver, monkeypatch, written)
    assert truth.complaints(live, live_page, truth.expected(case)) == []
    if case.parent.name.startswith(NO_TIMES):
        return
    assert {s.span_id: content(s) for s in live} == {s.span_id: content(s) for s in whole}
    totals = {k: v for k, v in truth.samples(page).items() if k.startswith("coding_agent_")}
    live_totals = {k: v for k, v in truth.samples(live_page).items() if k.startswith("coding_agent_")}
    assert _added(live_totals) == _added(totals)


def _added(metrics) -> dict[object, float]:
    return {
        (name, tuple(sorted(labels.items()))): round(value, 6)
        for name, series in metrics.items()
        for labels, value in series
        if value
    }

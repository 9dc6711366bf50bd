"""`[limits] open_sessions`: past it sessions are left to the state, and nothing is lost by it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import replay
import truth
from program import configured
from spantail.commands.run import Run
from spantail.config import Limits
from spantail.model import SECOND
from spantail.state.store import Store
from spantail.tail.wake import HandWaker
from test_live import _added

CASE = truth.FIXTURES / "claude-code" / "subagent-a"
IDS = re.compile(rb"[0-9a-f]{8}-[0-9a-f]{4}|msg_[0-9a-z]{4}|toolu_|req_")
MANY = 30


def another(piece: replay.Piece, number: int) -> replay.Piece:
    """The same session of somebody else."""

    def renamed(found: re.Match[bytes]) -> bytes:
        if found[0].endswith(b"_"):
            return found[0] + b"%03d" % number
        return (
            found[0] + b"%04x" % number if found[0].startswith(b"msg") else found[0][:-4] + b"%04x" % number
        )

    time, path, body = piece
    return time, Path(IDS.sub(renamed, str(path).encode()).decode()), IDS.sub(renamed, body)


@pytest.mark.parametrize("ends", ["by their records", "by the clock", "by a restart and the clock"])
def test_more_open_sessions_than_are_held(ends, tmp_path):
    """All open at once, five in memory: the same totals, and the gauges count them all."""
    pieces = replay.lines(CASE / "home")
    if ends != "by their records":
        pieces = pieces[:-6]
    pages = []
    for most in (10_000, 5):
        home, state = tmp_path / f"home-{most}", tmp_path / f"state-{most}"
        (home / ".claude/projects").mkdir(parents=True)
        now, waker = [pieces[0][0]], HandWaker()
        config = configured(home, state, once=False, limits=Limits(open_sessions=most))

        def begun(config=config, now=now, waker=waker, state=state) -> tuple[Store, Run]:
            store = Store(state)
            run = Run(config, {}, store, clock=lambda: now[0], waker=waker, strict=True)
            run.begin()
            return store, run

        store, run = begun()
        now[0] += 3 * SECOND
        held = []
        for piece in pieces:
            for number in range(MANY):
                copy = another(piece, number)
                now[0] = max(now[0], copy[0])
                waker.change(str(replay.append(home, copy)))
                if number == 0:
                    waker.lose()
                run.follow.step(0)
                sessions = [group.sessions for group in run.follow.parts.groups._groups.values()]
                held.append(sum(len(one.works) for one in sessions))
        (active,) = [
            sum(points.values())
            for family, points in run.follow.parts.groups.gauges().items()
            if family.name == "coding_agent_active_sessions"
        ]
        if ends != "by their records":
            assert active == MANY
            assert sum(len(one.parking.sessions) for one in sessions) > (MANY if most == 5 else -1)
        assert max(held[MANY:]) <= 2 * most or most > MANY, (
            "a few more between two commits, with the turns around them"
        )
        if ends == "by a restart and the clock":
            store.close()
            store, run = begun()
        for _ in range(3):
            now[0] += 3 * 3600 * SECOND
            run.follow.step(0)
        run._leave()
        store.close()
        pages.append(_added((state / "page.prom").read_text()))
    assert pages[0] == pages[1]
    assert sum(value for (name, _), value in pages[0].items() if name == "coding_agent_turns_total") == MANY


def test_between_two_turns_a_session_is_in_the_state_only(tmp_path):
    """Its windows are not in memory then; its next turn and the end of its run come as they would."""
    pieces = replay.lines(CASE / "home")
    home, state = tmp_path / "home", tmp_path / "state"
    (home / ".claude/projects").mkdir(parents=True)
    now, waker, store = [pieces[0][0]], HandWaker(), Store(state)
    run = Run(configured(home, state, once=False), {}, store, clock=lambda: now[0], waker=waker, strict=True)
    run.begin()
    now[0] += 3 * SECOND
    for piece in pieces:
        now[0] = max(now[0], piece[0])
        waker.change(str(replay.append(home, piece)))
        run.follow.step(0)
    (sessions,) = [group.sessions for group in run.follow.parts.groups._groups.values()]
    assert sessions.works
    now[0] += 10 * SECOND
    for _ in range(2):
        run.follow.step(0)
    assert not sessions.works
    assert len(sessions.parking.sessions) == 1
    assert sessions.deadline() > now[0]

    _, path, prompt = next(piece for piece in pieces if b'"promptId"' in piece[2])
    prompt = re.sub(rb'"(uuid|promptId)":"....', rb'"\1":"ffff', prompt)
    prompt = re.sub(rb'"timestamp":"[^"]*"', b'"timestamp":"2030-01-01T00:00:00.000Z"', prompt)
    waker.change(str(replay.append(home, (0, path, prompt))))
    run.follow.step(0)
    assert [work.turn is not None for work in sessions.works.values()] == [True]
    store.close()
    store = Store(state)
    run = Run(configured(home, state, once=False), {}, store, clock=lambda: now[0], waker=waker, strict=True)
    run.begin()
    (sessions,) = [group.sessions for group in run.follow.parts.groups._groups.values()]
    now[0] += 24 * 3600 * SECOND
    for _ in range(2):
        run.follow.step(0)
    assert not sessions.works
    assert not sessions.parking.sessions
    run._leave()
    store.close()
    page = _added((state / "page.prom").read_text())
    assert sum(value for (name, _), value in page.items() if name == "coding_agent_turns_total") == 2

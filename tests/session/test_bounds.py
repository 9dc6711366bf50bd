"""What a session keeps is bounded, whatever its records say: open work is written with every commit."""

from __future__ import annotations

import msgspec
import pytest

from spantail.model import (
    SECOND,
    Called,
    Closed,
    Context,
    ModelCall,
    Noted,
    Prompted,
    Replied,
    Returned,
    Started,
    ToolCall,
    Turn,
    Usage,
)
from spantail.out.content import TEXT_LENGTH
from spantail.session.sessions import Sessions
from spantail.session.settle import Rules
from spantail.session.work import HELD, INPUT, OPEN, SHOWN
from spantail.state.ledger import Ledger

MOST = 256 << 10
LATER = 10**9 * SECOND


def sessions(**rules) -> Sessions:
    return Sessions(
        Context(agent="a"), Rules(**rules), Ledger(), lambda *_, **__: None, lambda cwd: cwd, lambda _: None
    )


def kept(of: Sessions) -> int:
    return sum(len(msgspec.msgpack.encode(work)) for work in of.works.values())


def prompt(turn: str = "t", time: int = SECOND, session: str = "s") -> Prompted:
    return Prompted(session=session, time=time, turn=turn)


def test_calls_that_never_end_do_not_pile_up():
    """Each becomes a span, once, whether or not its end comes; open work stays small."""
    s = sessions()
    s.apply([prompt()])
    for n in range(20_000):
        s.apply([Called(session="s", time=n + SECOND, call=f"c{n}", name="x")])
    assert len(s.works["s"].turn.tools) == OPEN
    assert kept(s) < MOST
    s.apply([Returned(session="s", time=30_000 + SECOND, call="c19999")])
    s.settle(LATER)
    tools = [each for each in s.take() if isinstance(each, ToolCall)]
    assert len(tools) == len({tool.span for tool in tools}) == 20_000
    assert [tool.status for tool in tools].count("ok") == 1


def test_turns_do_not_pile_up_before_they_are_settled():
    """A file of a million turns is read whole before anything is settled by the clock."""
    s = sessions()
    for n in range(5_000):
        s.apply(
            [prompt(f"t{n}", n * SECOND), Replied(session="s", time=n * SECOND + 1, call=f"m{n}", ends=True)]
        )
        assert len(s.works["s"].waiting) <= OPEN
    assert kept(s) < MOST
    s.settle(LATER)
    assert sum(isinstance(each, Turn) for each in s.take()) == 5_000


def test_a_subagent_that_nobody_started_does_not_wait_for_ever():
    """With very many calls it becomes work of its own; nothing of it is lost."""
    s = sessions()
    s.apply([Started(session="sub", time=1, parent="nobody"), prompt("t", 1, "sub")])
    for n in range(HELD + 1000):
        s.apply(
            [Replied(session="sub", time=n + 2, call=f"m{n}", model="m", usage=Usage(input=1), final=True)]
        )
        s.apply(
            [
                Called(session="sub", time=n + 2, call=f"c{n}"),
                Returned(session="sub", time=n + 2, call=f"c{n}"),
            ]
        )
    assert kept(s) < MOST
    s.settle(LATER)
    given = s.take()
    for kind in (ModelCall, ToolCall):
        made = [each for each in given if isinstance(each, kind)]
        assert len(made) == HELD + 1000
        assert len({each.trace for each in made}) == 1
    assert [each.human for each in given if isinstance(each, Turn)] == [False]


def test_calls_open_at_the_end_of_a_subagent_that_nobody_started_have_a_trace():
    """It ended by its own mark with a call open, and never found the turn around it."""
    s = sessions()
    s.apply(
        [
            Started(session="sub", time=1, parent="nobody"),
            prompt("t", 1, "sub"),
            Called(session="sub", time=2, call="c"),
            Closed(session="sub", time=3),
            prompt("t2", 10 * SECOND, "sub"),
        ]
    )
    s.settle(LATER)
    s.settle(2 * LATER)
    given = [each for each in s.take() if isinstance(each, ToolCall | Turn)]
    assert [each.status for each in given if isinstance(each, ToolCall)] == ["pending"]
    assert all(len(each.trace) == 16 and len(each.span) == 8 for each in given)


def test_calls_open_at_the_ends_of_many_turns_do_not_pile_up():
    s = sessions()
    for n in range(2_000):
        s.apply(
            [
                prompt(f"t{n}", n * SECOND),
                Called(session="s", time=n * SECOND, call=f"c{n}"),
                Closed(session="s", time=n * SECOND),
            ]
        )
    assert len(s.works["s"].loose) <= OPEN
    assert kept(s) < MOST
    s.settle(LATER)
    s.settle(2 * LATER)
    assert sum(isinstance(each, ToolCall) for each in s.take()) == 2_000


def test_names_of_rate_limits_do_not_pile_up():
    s = sessions()
    s.apply([prompt()])
    for n in range(10_000):
        s.apply([Noted(session="s", kind="limit", attrs={"window": f"w{n}", "used": 0.5})])
    assert len(s.works["s"].limits) <= 64
    s.apply([Noted(session="s", kind="limit", attrs={"window": "w0", "used": 0.75})])
    assert s.works["s"].limits["w0"] == 0.75, "those that are known go on"


@pytest.mark.parametrize("size", [100, SHOWN - 1, SHOWN, INPUT, 3 << 20])
def test_of_a_content_no_more_is_kept_than_is_shown(size):
    """Prompts, replies, inputs and results of megabytes; short ones stay whole."""
    body = msgspec.Raw(b'"' + b"x" * (size - 2) + b'"')
    s = sessions(keep_content=True)
    s.apply(
        [
            Prompted(session="s", time=1, turn="t", content=body),
            Replied(session="s", time=2, call="m", content=body),
            Called(session="s", time=3, call="c", input=body),
        ]
    )
    turn = s.works["s"].turn
    assert len(turn.content) == len(turn.models["m"].content) == min(size, SHOWN)
    assert len(turn.tools["c"].input) == (size if size <= INPUT else SHOWN)
    s.apply([Returned(session="s", time=4, call="early", output=body)])
    assert len(s.works["s"].early["early"].output) == min(size, SHOWN)


def test_enough_is_kept_for_what_is_shown():
    """The view looks at so much of a text, and knows by one byte more that it was cut."""
    assert SHOWN > 8 * TEXT_LENGTH

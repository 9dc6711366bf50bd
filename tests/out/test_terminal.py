"""One line per turn for the person at the terminal."""

import io
from datetime import UTC, datetime

import pytest

from spantail.model import Context, Turn, Usage
from spantail.out.terminal import Terminal, dollars, short, took

END = int(datetime(2026, 11, 18, 12, 4, 31, tzinfo=UTC).timestamp()) * 10**9


class Screen(io.StringIO):
    def isatty(self):
        return True


def turn(agent="some-agent", project="api", **kwargs) -> Turn:
    fields = {"context": Context(agent, project=project), "trace": bytes(range(16)), "span": b"\x02" * 8}
    fields |= {
        "start": END - 72 * 10**9,
        "end": END,
        "usage": Usage(200, 48_000, 0, 1300),
        "tools": 7,
        "errors": 1,
    }
    return Turn(**(fields | {"cost": 0.12345} | kwargs))


def shown(*turns, stream=None, environ=None, **kwargs) -> str:
    stream = io.StringIO() if stream is None else stream
    Terminal(stream, environ=environ or {}, zone=UTC, **kwargs).turns(turns)
    return stream.getvalue()


def test_a_turn_is_a_line():
    """Time, agent, project, status, duration, tools, errors, tokens, cost."""
    assert shown(turn()) == (
        "12:04:31  some-agent  api       ok             1m12s    7 tools     1 error   48.2k in    1.3k out   $0.1235\n"
    )


def test_columns_stay_in_line():
    """Whatever a turn says, the columns of the lines after it stand below each other."""
    turns = [
        turn(),
        turn(project="x" * 100),
        turn(status="interrupted", tools=1, errors=0, cost=None),
        turn(project=""),
    ]
    lines = shown(turn(project="y" * 24), *turns).splitlines()
    assert len({line.index(" in  ") for line in lines}) == 1
    assert len({len(line) for line in lines}) == 1


def test_only_turns_of_a_person():
    """Work that nobody asked for prints nothing."""
    assert shown(turn(human=False)) == ""


def test_a_link_to_the_trace():
    """--trace-url with the id filled in."""
    line = shown(turn(), trace_url="http://j:16686/trace/{trace_id}")
    assert line.endswith("  http://j:16686/trace/000102030405060708090a0b0c0d0e0f\n")


def test_colour_on_a_terminal_only():
    """And not with NO_COLOR or a dumb terminal."""
    assert "\x1b[31merror" in shown(turn(status="error"), stream=Screen())
    assert "\x1b" not in shown(turn(status="error"))
    assert "\x1b" not in shown(turn(status="error"), stream=Screen(), environ={"NO_COLOR": "1"})
    assert "\x1b[31merror" in shown(turn(status="error"), stream=Screen(), environ={"NO_COLOR": ""})
    assert "\x1b" not in shown(turn(status="error"), stream=Screen(), environ={"TERM": "dumb"})


def test_names_from_files_cannot_move_the_cursor():
    """Control characters of a folder's name do not reach the terminal."""
    line = shown(turn(project="a\x1b[2Jb\nc"))
    assert "\x1b" not in line
    assert line.count("\n") == 1


def test_a_terminal_that_went_away():
    """Following goes on without it."""
    stream = io.StringIO()
    terminal = Terminal(stream, environ={})
    stream.close()
    terminal.turns([turn()])


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0.0s"),
        (0.44, "0.4s"),
        (59.99, "59.9s"),
        (60, "1m00s"),
        (3599, "59m59s"),
        (7500, "2h05m"),
        (-1, "0.0s"),
    ],
)
def test_durations(seconds, words):
    """Short, and never negative."""
    assert took(int(seconds * 10**9)) == words


@pytest.mark.parametrize(
    ("number", "words"),
    [(0, "0"), (999, "999"), (1000, "1.0k"), (999_999, "999.9k"), (10**6, "1.0M"), (5 * 10**9, "5.0G")],
)
def test_numbers(number, words):
    """Three or four figures are enough."""
    assert short(number) == words


@pytest.mark.parametrize(
    ("cost", "words"), [(None, "-"), (0.0, "$0.0000"), (0.12345, "$0.1235"), (12.3, "$12.30")]
)
def test_money(cost, words):
    """No price is a dash, not 0."""
    assert dollars(cost) == words

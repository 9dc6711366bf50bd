"""Tokens of Claude Code's replies: estimates, placeholders, zeros, repeats and copies."""

import pytest
from claude_lines import Read, nested, place, read, reply, result, usage, user

from spantail.model import ModelCall, Usage, UsageAdded

ESTIMATE, FINAL, ZEROS = usage(65464, 0), usage(63344, 475), usage(0, 0)


@pytest.mark.parametrize(
    "written",
    [
        [(None, ESTIMATE), ("end_turn", FINAL)],
        [(None, ZEROS), ("end_turn", FINAL)],
        [("end_turn", FINAL), ("end_turn", ZEROS)],
        [("end_turn", FINAL), (None, ESTIMATE)],
        [("end_turn", ESTIMATE), ("end_turn", FINAL)],
    ],
)
def test_the_last_line_with_a_stop_reason_counts_as_a_whole(written):
    """Proxies write an estimate or zeros before it, and zeros after it."""
    lines = [reply(1 + n / 10, "m1", stop=stop, used=used) for n, (stop, used) in enumerate(written)]
    (call,) = read(user(0), *lines).of(ModelCall)
    assert (call.usage, call.final) == (Usage(input=63344, output=475), True)


def test_without_a_stop_reason_the_largest_of_each_counts():
    """And it is known not to be final."""
    lines = [reply(1, "m1", stop=None, used=usage(10, 5)), reply(1.1, "m1", stop=None, used=usage(8, 7))]
    (call,) = read(user(0), *lines).of(ModelCall)
    assert (call.usage, call.final) == (Usage(input=10, output=7), False)


def test_lines_of_two_replies_may_lie_among_each_other():
    """What a later line says more of the first is added, though that was counted when the second began."""
    found = read(
        user(0),
        reply(1, "m1", stop=None, used=usage(10, 5)),
        reply(1.1, "m2", stop=None, used=usage(20, 1)),
        reply(1.2, "m1", stop=None, used=usage(10, 7)),
        reply(1.3, "m2", stop=None, used=usage(20, 3)),
    )
    total = Usage()
    for each in (*found.of(ModelCall), *found.of(UsageAdded)):
        total.add(each.usage)
    assert total == Usage(input=10 + 20, output=7 + 3)


def test_zeros_are_not_known():
    """Some proxies write nothing else; a call is a call all the same."""
    (call,) = read(user(0), reply(1, "m1", used=ZEROS)).of(ModelCall)
    assert (call.usage, call.final) == (None, False)


def test_less_than_nothing_is_nothing():
    """Counters only grow."""
    used = usage(10, -3, cache_creation_input_tokens=-5, cache_creation={"ephemeral_1h_input_tokens": -2})
    (call,) = read(user(0), reply(1, "m1", used=used)).of(ModelCall)
    assert call.usage == Usage(input=10)


@pytest.mark.parametrize(
    "odd",
    [
        {"cache_creation": 30},
        {"cache_read_input_tokens": 0.5},
        {"output_tokens_details": [], "cache_read_input_tokens": "none"},
    ],
)
def test_a_number_of_another_kind_costs_no_other(odd):
    """Nor the call, nor the tool that it asks for."""
    asked = reply(1, "m1", "t1", used=usage(10, 5, **odd)) | {"gitBranch": 7}
    asked["message"]["content"] += ["words", {"type": 3}, None]
    found = read(user(0), asked, result(2, "t1"), reply(3, "m2"))
    assert (found.call("m1").usage, found.tool("t1").status) == (Usage(input=10, output=5), "ok")


def test_parts_of_the_usage():
    """The 1 h part of cache writes and the thinking inside the output are parts, never more."""
    used = usage(
        10,
        5,
        cache_read_input_tokens=7,
        cache_creation_input_tokens=30,
        cache_creation={"ephemeral_5m_input_tokens": 10, "ephemeral_1h_input_tokens": 20},
        output_tokens_details={"thinking_tokens": 99},
        iterations=[{"input_tokens": 10, "output_tokens": 5}],
        speed="fast",
    )
    (call,) = read(user(0), reply(1, "m1", used=used)).of(ModelCall)
    assert call.usage == Usage(10, 7, 30, 5, 5, 20)


def test_a_copy_in_a_subagents_file_may_have_the_only_final_usage():
    """The agent that compacts begins with a copy of the history: the difference is added, once."""
    main = [
        user(0),
        reply(1, "m1", "t1", stop=None, used=usage(100, 1)),
        result(2, "t1"),
        reply(3, "m2", stop=None, used=ZEROS),
        user(60, "b"),
        reply(61, "m3"),
    ]
    copy = [
        user(0),
        reply(1, "m1", "t1", used=usage(100, 40)),
        result(2, "t1"),
        reply(3, "m2", used=usage(200, 60)),
        user(50, "Your task is to create a detailed summary", "own"),
        reply(55, "mc", used=usage(300, 70)),
    ]
    found = Read().file(*main)
    for agent in ("acompact-1", "acompact-2"):
        found.file(*nested(agent, *copy), path=place(agent))
    found.settled()
    total = Usage()
    for each in (*found.of(ModelCall), *found.of(UsageAdded)):
        total.add(each.usage or Usage())
    assert total == Usage(input=100 + 200 + 10 + 300, output=40 + 60 + 5 + 70)
    assert len(found.of(ModelCall)) == 4

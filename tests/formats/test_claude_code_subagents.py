"""Claude Code's subagents: which turn and call they belong to, hidden agents, copies of history, who woke them."""

import json

import pytest
from claude_lines import FOLDER, SID, Read, line, nested, ns, place, read, reply, result, usage, user

from spantail.formats.claude_code.meta import unit
from spantail.model import ModelCall, Subagent, ToolCall, Turn, Usage

HISTORY = [
    user(0, uuid="a"),
    reply(1, "m1", "t1"),
    result(2, "t1"),
    reply(3, "m2"),
    user(10, "b", uuid="b"),
    reply(11, "m3", "t2"),
    result(12, "t2"),
]
COMPACTS = [
    user(13, "Your task is to create a detailed summary", "own"),
    reply(20, "mc", used=usage(500, 50)),
]
AFTER = [
    line(21, "system", subtype="compact_boundary", compactMetadata={"trigger": "auto", "preTokens": 9}),
    user(21.1, "This session is being continued", "s", isCompactSummary=True),
    reply(22, "m4"),
]


@pytest.mark.parametrize(
    ("copied", "order"),
    [
        (copied, order)
        for copied in ("none", "same uuids", "new uuids")
        for order in ("main first", "live", "agent first")
        if (copied, order) != ("new uuids", "agent first")  # nothing tells the copy yet
    ],
)
def test_the_agent_that_compacts_adds_its_own_call_only(copied, order):
    """Its file can begin with a copy of the history. It is part of the turn then running, and no turn."""
    history = [] if copied == "none" else HISTORY
    if copied == "new uuids":
        history = [each | {"uuid": each["uuid"] + "2"} for each in HISTORY]
    agent = nested("acompact-ab12", *history, *COMPACTS)
    found, path = Read(), place("acompact-ab12")
    if order == "live":
        found.file(*HISTORY).settled(12.5).file(*agent, path=path).settled(20.1).file(*AFTER)
    elif order == "main first":
        found.file(*HISTORY, *AFTER).file(*agent, path=path)
    else:
        found.file(*agent, path=path).file(*HISTORY, *AFTER)
    found.settled()
    assert [(turn.status, turn.usage.input) for turn in found.turns] == [("ok", 20), ("ok", 520)]
    assert len(found.of(ModelCall)) == 5
    compact = found.agent
    assert (compact.parent, compact.start, compact.end) == (found.turns[1].span, ns(13), ns(20))
    assert found.call("mc").parent == compact.span
    roots = {call.response_id: call.parent for call in found.of(ModelCall)}
    assert [roots[id_] for id_ in ("m1", "m2", "m3", "m4")] == [
        found.turns[0].span,
        found.turns[0].span,
        found.turns[1].span,
        found.turns[1].span,
    ]
    assert {tool.parent for tool in found.of(ToolCall)} == {turn.span for turn in found.turns}


def delegated(told):
    """The session's lines and the subagent's, whose replies say neither an end nor their final usage."""
    main = [
        user(0),
        reply(1, "m1", "t1", name="Agent", about={"subagent_type": "Explore", "prompt": "count"}),
        result(9, "t1", told=told),
        reply(10, "m2"),
    ]
    agent = [
        user(1.1, "count", "s"),
        reply(2, "s1", "t2", stop=None, used=usage(300, 1)),
        result(8, "t2"),
        reply(8.5, "s2", stop=None, used=usage(320, 1)),
    ]
    return main, agent


LAYOUTS = {
    "a file of its own": {"agentId": "a1", "status": "completed", "usage": usage(320, 5)},
    "no status yet": {"agentId": "a1", "totalDurationMs": 7900, "usage": usage(320, 5)},
    "inline": {"totalDurationMs": 7900},
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("how", ["whole", "live"])
def test_a_subagent_ends_when_its_call_returns(how, layout):
    """Although its last reply has no end mark; what the result says of it is in the sums of the turn."""
    main, agent = delegated(LAYOUTS[layout])
    found = Read()
    if layout == "inline":
        agent = [
            each | {"isSidechain": True, "parentUuid": parent}
            for each, parent in zip(agent, [None, "s", "s1-2", "user-8"], strict=True)
        ]
        written = [(each, {}) for each in sorted(main + agent, key=lambda each: each["timestamp"])]
    else:
        own = {"path": place("a1")}
        written = [(each, {}) for each in main] + [(each, own) for each in nested("a1", *agent)]
        if how == "live":
            written.sort(key=lambda pair: pair[0]["timestamp"])
    for n, (each, where) in enumerate(written):
        found.file(each, **where)
        if how == "live" and n + 1 < len(written):
            found.settled(1 + n)
    found.settled(12.5)
    assert [turn.status for turn in found.turns] == ["ok"]
    inner = found.agent
    assert (inner.name, inner.status, inner.parent) == ("Explore", "ok", found.tool("t1").span)
    assert (inner.start, inner.end) == (ns(1.1), ns(8.5))
    last = 1 if layout == "inline" else 5
    assert found.call("s2").usage.output == last
    assert (found.turn.usage.input, found.turn.usage.output) == (10 + 300 + 320 + 10, 5 + 1 + last + 5)


def test_a_subagent_that_goes_on_is_not_over():
    """One that was started in the background, or woken, returns at once."""
    main, agent = delegated({"agentId": "a1", "status": "async_launched"})
    main[2]["timestamp"] = agent[0]["timestamp"]
    found = Read().file(*main).file(*nested("a1", *agent), path=place("a1")).settled(60)
    assert found.of(Subagent) == []
    assert found.settled().agent.status == "ok"


def test_parallel_subagents_with_one_prompt():
    """Inline sidechains know their call by the prompt only: each has one of its own."""
    about = {"subagent_type": "Explore", "prompt": "count"}
    inline = [
        line(2 + n, "user", f"s{n}", message={"role": "user", "content": "count"}, isSidechain=True)
        for n in range(2)
    ]
    replies = [reply(4 + n, f"r{n}", stop=None, isSidechain=True, parentUuid=f"s{n}") for n in range(2)]
    found = Read().file(
        user(0),
        reply(1, "m1", "t1", "t2", name="Task", about=about),
        *inline,
        *replies,
        result(6, "t2", told={"totalDurationMs": 1}),
        result(7, "t1", told={"totalDurationMs": 1}),
        reply(8, "m2"),
    )
    found.settled(11)
    parents = {agent.parent for agent in found.of(Subagent)}
    assert parents == {found.tool("t1").span, found.tool("t2").span}


def test_the_name_of_a_subagent_is_that_of_its_file():
    """Its first lines can be copies of another agent's."""
    lines = nested("a1", user(1, "count", "s")) + nested("a2", reply(2, "s1"))
    found = Read().file(user(0), reply(1, "m1", "t1", name="Agent"), result(3, "t1"), reply(4, "m2"))
    found.meta("a2", agentType="Explore", toolUseId="t1").file(*lines, path=place("a2")).settled()
    assert (found.agent.agent_id, found.agent.parent) == ("a2", found.tool("t1").span)


def test_what_fits_no_layout_is_work_of_its_own():
    """A warm-up before the first prompt: its tokens count, it is no turn."""
    found = Read().file(user(60), reply(61, "m1"))
    found.file(*nested("b1", user(0, "Warmup", "w"), reply(1, "w1")), path=place("b1")).settled()
    assert [turn.human for turn in sorted(found.of(Turn), key=lambda turn: turn.start)] == [False, True]
    assert len(found.of(ModelCall)) == 2


@pytest.mark.parametrize("how", ["whole", "live"])
def test_turns_that_share_a_prompt_id(how):
    """A command after `!` runs under the name of the prompt before it: each subagent belongs to its own time."""
    agent = {"name": "Agent", "promptId": "p1"}
    turns = [
        (
            user(at, words, f"u{at}", promptId="p1"),
            reply(at + 1, f"m{at}", f"t{at}", **agent),
            result(at + 4, f"t{at}", told={"agentId": f"a{at}", "status": "completed"}),
            reply(at + 5, f"n{at}"),
        )
        for at, words in ((0, "do it"), (60, "<bash-input>ls</bash-input>"))
    ]
    found = Read()
    for at, lines in zip((0, 60), turns, strict=True):
        found.file(*lines)
        if how == "live":
            found.file(
                *nested(f"a{at}", user(at + 2, "x", promptId="p1"), reply(at + 3, f"s{at}")),
                path=place(f"a{at}"),
            )
            found.settled(at + 20)
    if how == "whole":
        for at in (0, 60):
            found.file(
                *nested(f"a{at}", user(at + 2, "x", promptId="p1"), reply(at + 3, f"s{at}")),
                path=place(f"a{at}"),
            )
    found.settled()
    for at, turn in zip((0, 60), found.turns, strict=True):
        assert {found.call(f"s{at}").trace, found.tool(f"t{at}").trace} == {turn.trace}
        assert turn.usage.input == 30


def test_a_subagent_of_a_task_that_was_due():
    """It knows the work by the promptId of a line that no person sees."""
    found = Read().file(
        user(0, promptId="p1"),
        reply(1, "m1"),
        line(600, "system", subtype="scheduled_task_fire"),
        user(600.1, "tick", isMeta=True, promptId="p2"),
        reply(601, "m2", "t1", name="Agent"),
        result(604, "t1", told={"agentId": "a1", "status": "completed"}),
        reply(605, "m3"),
    )
    found.file(*nested("a1", user(602, "x", promptId="p2"), reply(603, "s1")), path=place("a1")).settled()
    assert found.agent.parent == found.tool("t1").span
    assert found.agent.trace == found.call("m3").trace != found.turn.trace


@pytest.mark.parametrize("order", ["agent first", "main first"])
def test_a_subagent_whose_call_is_on_no_record_hangs_below_the_turn(order):
    """A process that is killed has not written the call yet, while the subagent says its id: no orphan."""
    main = [user(0, promptId="p1"), reply(1, "m1", "t1"), result(2, "t1")]
    agent = nested("a1", user(3, "count", promptId="p1"), reply(4, "s1"))
    found = Read().meta("a1", agentType="general-purpose", toolUseId="gone")
    if order == "agent first":
        found.file(*agent, path=place("a1")).settled(10).file(*main)
    else:
        found.file(*main).file(*agent, path=place("a1")).settled(10)
    found.settled()
    assert (found.agent.parent, found.agent.trace) == (found.turn.span, found.turn.trace)
    assert found.call("s1").parent == found.agent.span


@pytest.mark.parametrize(
    "before",
    [
        [user(13, "<system-reminder>\nhook context\n</system-reminder>", "r", isMeta=True)],
        [user(13, "go on", "c"), user(14, [{"type": "text", "text": "[Request interrupted by user]"}], "i")],
        [user(13, "go on", "c")],
    ],
    ids=["reminder", "interrupted", "unanswered"],
)
def test_a_hidden_agents_span_begins_with_the_prompt_that_it_answers(before):
    """What its file repeats of the history without an answer is no work of its own."""
    asked = [user(15, "Your task is to create a detailed summary", "own"), reply(20, "mc")]
    found = Read().file(*HISTORY, *before[:1], *AFTER)
    found.file(*nested("acompact-1", *before, *asked), path=place("acompact-1")).settled()
    assert (found.agent.start, found.agent.end) == (ns(15), ns(20))
    assert found.call("mc").parent == found.agent.span


def test_a_fork_agent_that_says_no_prompt_loses_only_its_parents_line():
    """The copy of the parent's line has no end mark; what has one is its own."""
    main = [user(0, promptId="p1"), reply(1, "m1", "t1", name="Agent"), result(9, "t1"), reply(10, "m2")]
    copy = reply(1, "m1", "t1", name="Agent", stop=None)
    agent = nested("a1", copy, result(1.1, "t1"), reply(2, "s1", "t2"), result(3, "t2"), reply(4, "s2"))
    found = Read().file(*main).file({"type": "fork-context-ref"}, *agent, path=place("a1")).settled()
    assert sorted(call.response_id for call in found.of(ModelCall)) == ["m1", "m2", "s1", "s2"]
    assert found.tool("t2").status == "ok"


@pytest.mark.parametrize("odd", [None, "none", [], {"input_tokens": "many"}])
def test_a_result_names_its_subagent_whatever_it_says_of_usage(odd):
    """The link does not hang on it."""
    main, agent = delegated({"agentId": "a1", "status": "completed", "usage": odd})
    found = Read().file(*main).file(*nested("a1", *agent), path=place("a1")).settled()
    assert (found.agent.name, found.agent.parent) == ("Explore", found.tool("t1").span)


def test_what_the_result_says_of_the_last_call_raises_no_other():
    """The subagent's file is cut off: its last call on record is not the one that the result tells of."""
    main, agent = delegated({"agentId": "a1", "status": "completed", "usage": usage(320, 5)})
    found = Read().file(*main).file(*nested("a1", *agent[:-1]), path=place("a1")).settled()
    assert found.call("s1").usage == Usage(input=300, output=1)


def test_an_inline_subagent_waits_for_a_tool_while_others_go_on():
    """Hundreds of their lines may lie between two of its own."""

    def side(each, parent):
        return each | {"isSidechain": True, "parentUuid": parent}

    names = ("slow", "busy")
    lines = [user(0), *(reply(1, "m1", name, name="Task", about={"prompt": name}) for name in names)]
    lines += [side(user(2, name, name), None) for name in names]
    lines.append(side(reply(3, "s", "long", uuid="s"), "slow"))
    last = "busy"
    for n in range(200):
        lines.append(side(reply(4 + n, f"b{n}", f"t{n}", uuid=f"b{n}"), last))
        lines.append(side(result(4.5 + n, f"t{n}", uuid=f"r{n}"), f"b{n}"))
        last = f"r{n}"
    lines += [
        side(result(300, "long", uuid="l"), "s"),
        side(reply(301, "se"), "l"),
        side(reply(302, "be"), last),
    ]
    found = read(
        *lines, *(result(303, name, told={"totalDurationMs": 9}) for name in names), reply(304, "m2")
    )
    assert {(tool.name, tool.status) for tool in found.of(ToolCall)} == {("Task", "ok"), ("Bash", "ok")}
    assert (len(found.of(Turn)), len(found.of(Subagent))) == (1, 2)


@pytest.mark.parametrize("spaces", [None, (",", ":")])
def test_files_are_read_by_their_first_time_and_subagents_with_their_session(spaces):
    """Also those that somebody has written anew, with spaces between keys and values."""

    def head(*lines):
        return "\n".join(json.dumps(each, separators=spaces) for each in lines).encode()

    main = unit(f"{FOLDER}/{SID}.jsonl", head({"type": "summary"}, user(5), reply(6, "m1")))
    fork = unit(f"{FOLDER}/0{SID[1:]}.jsonl", head(user(5), reply(6, "m1")))
    assert main < fork  # its lines say whose copies they are
    beside = unit(f"{FOLDER}/agent-ab12cd34.jsonl", head(*nested("ab12cd34", user(7), reply(8, "s1"))))
    assert (main, beside) == ((ns(5), SID), (ns(7), SID))

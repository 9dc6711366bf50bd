"""Claude Code's subagents: which turn and call they belong to, hidden agents, copies of history, who woke them."""

import pytest
from claude_lines import Read, line, nested, ns, place, reply, result, usage, user

from spantail.model import ModelCall, ToolCall

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

"""Any value in any field of Claude Code's lines costs at most its line: the reader raises nothing, the rest counts."""

import copy

import pytest
from claude_lines import Read, line, nested, place, reply, result, user

from spantail.model import ModelCall

JUNK = [None, True, -1, 2**70, 0.5, "", "x", [], [1], {}, {"a": [None]}]
LINES = {
    "prompt": user(
        0, [{"type": "text", "text": "do it"}], turnOrigin="human", origin={"kind": "human"}, slug="s"
    ),
    "reply": reply(1, "m1", "t1", name="Agent", about={"prompt": "x", "subagent_type": "y"}),
    "result": result(2, "t1", "x", error=True, told={"agentId": "a", "status": "completed", "usage": {}}),
    "failure": result(2, "t1", [{"type": "text", "text": "x"}], error=True, toolDenialKind="user-rejected"),
    "hook": line(3, "attachment", attachment={"type": "hook_success", "hookEvent": "Stop", "exitCode": 1}),
    "limit": line(3, "attachment", attachment={"type": "budget_usd", "total": 1.0}),
    "retry": line(3, "system", subtype="api_error", error={"status": 529}, retryAttempt=1),
    "compaction": line(3, "system", subtype="compact_boundary", compactMetadata={"trigger": "auto"}),
    "cost": {"type": "cost-state", "totalCostUSD": 2.0},
}


def places(part):
    """Every place in a line, as a list of keys."""
    for key, value in part.items() if isinstance(part, dict) else enumerate(part):
        yield [key]
        if isinstance(value, dict | list):
            yield from ([key, *rest] for rest in places(value))


@pytest.mark.parametrize("which", LINES)
def test_any_value_anywhere_costs_at_most_its_line(which):
    """In the session's file and in a subagent's, between lines that are whole."""
    for keys in places(LINES[which]):
        for junk in JUNK:
            odd = copy.deepcopy(LINES[which])
            part = odd
            for key in keys[:-1]:
                part = part[key]
            part[keys[-1]] = junk
            found = Read().file(
                user(-9, uuid="a"), reply(-8, "m-9"), odd, user(900, "b", "b"), reply(901, "m9")
            )
            found.file(*nested("a1", user(901.1), odd, reply(901.2, "s9")), path=place("a1")).settled(10**6)
            calls = {call.response_id for call in found.of(ModelCall)}
            assert {"m-9", "m9", "s9"} <= calls, (keys, junk)

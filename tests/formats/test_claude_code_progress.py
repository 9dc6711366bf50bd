"""What a session's file tells of its subagents' messages counts where nothing else does."""

import json

import pytest
from claude_lines import FOLDER, SID, line, ns, read, reply, result, usage, user

from spantail.formats.claude_code.lines import Line
from spantail.formats.claude_code.progress import told
from spantail.model import ModelCall, Record, Usage
from spantail.tail.json_lines import LineDecoder

AGENT = "a1b2c3"


def progress(after, message, kind="agent_progress", **about):
    data = {"message": message, "normalizedMessages": [], "type": kind, "prompt": "look", **about}
    return line(after, "progress", data=data, toolUseID="agent_msg_1", parentToolUseID="t1")


def of_agent(after, message):
    return progress(after, message, agentId=AGENT)


PLACEHOLDER = {"stop": None, "used": usage(100, 1)}
TOLD = [
    of_agent(2, user(2, "look")),
    of_agent(3, reply(3, "n1", words="I look", **PLACEHOLDER)),
    of_agent(3.1, reply(3.1, "n1", "x1", **PLACEHOLDER)),
    progress(3.2, None, kind="bash_progress", output="..."),
    of_agent(4, result(4, "x1", "no", error=True)),
    of_agent(5, reply(5, "n2", words="found", **PLACEHOLDER)),
]
AROUND = [
    user(0),
    reply(1, "m1", "t1", name="Task", about={"subagent_type": "Explore", "prompt": "look"}),
    result(6, "t1", told={"status": "completed", "agentId": AGENT, "usage": usage(100, 40)}),
    reply(7, "m2"),
]
LINES = [*AROUND[:2], *TOLD, *AROUND[2:]]


def test_a_subagent_of_which_no_file_was_kept():
    """It has its span below the call that started it, its calls below that one, and its tokens in the turn."""
    seen = read(*LINES)
    turn, agent = seen.turn, seen.agent
    assert (agent.name, agent.parent, agent.trace) == ("Explore", seen.tool("t1").span, turn.trace)
    assert (agent.start, agent.end, agent.status) == (ns(2), ns(5), "ok")
    assert seen.tool("x1").status == "error"
    assert {seen.call("n1").parent, seen.call("n2").parent, seen.tool("x1").parent} == {agent.span}
    # A placeholder stays one, but for the last call: its usage is in the result of the tool.
    assert [(seen.call(key).usage, seen.call(key).final) for key in ("n1", "n2")] == [
        (Usage(input=100, output=1), False),
        (Usage(input=100, output=40), False),
    ]
    assert turn.usage == Usage(input=10 + 100 + 100 + 10, output=5 + 1 + 40 + 5)
    assert len(seen.of(ModelCall)) == 4


def test_a_second_subagent_is_another_one():
    """Their messages come in turns."""
    other = json.loads(json.dumps(TOLD).replace(AGENT, "other").replace('"n', '"o').replace("x1", "x2"))
    both = [each for pair in zip(TOLD, other, strict=True) for each in pair]
    seen = read(*AROUND[:2], *both, *AROUND[2:])
    assert sum(call.usage.input for call in seen.of(ModelCall)) == 10 + 4 * 100 + 10
    assert seen.call("n1").parent != seen.call("o1").parent


@pytest.mark.parametrize("place", [f"{SID}/subagents", "."])
def test_its_own_file_tells_it_better(tmp_path, place):
    """Wherever a version keeps it."""
    main = tmp_path / f"{SID}.jsonl"
    assert told(record(str(main))) is not None
    (tmp_path / place).mkdir(parents=True, exist_ok=True)
    (tmp_path / place / f"agent-{AGENT}.jsonl").touch()
    assert told(record(str(main))) is None
    (tmp_path / SID / "subagents").mkdir(parents=True, exist_ok=True)
    nested = tmp_path / SID / "subagents/agent-outer.jsonl"
    assert (told(record(str(nested))) is None) == (place != ".")


def test_while_a_session_is_followed_its_own_file_will_come():
    """It may be written a moment after the line that repeats it."""
    assert told(record(f"{FOLDER}/{SID}.jsonl", arrival=1)) is None


def record(path, arrival=0):
    ((_, body),) = LineDecoder(Line).rescue(json.dumps(TOLD[1]).encode())[0]
    return Record("session", path, 0, arrival, body)

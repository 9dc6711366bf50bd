"""OpenCode's traps, each in every way of storing that has it: events, rows, files."""

import json
import shutil
import sqlite3
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spantail.formats.opencode import FORMAT, ids, unit
from spantail.formats.opencode.queries import is_open, queries
from spantail.formats.opencode.reader import OpenCodeReader
from spantail.formats.opencode.shapes import Tokens
from spantail.formats.queries import Row
from spantail.model import (
    Context,
    ModelCall,
    Occurred,
    Record,
    RunStarted,
    Settled,
    Subagent,
    ToolCall,
    Turn,
)
from spantail.session.sessions import Sessions
from spantail.session.settle import Rules
from spantail.state.ledger import Ledger
from spantail.tail.rows import RowsTail
from spantail.tail.source import Source

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
T0 = 1_771_000_000_000
"""Milliseconds; all times in these tests are counted from here."""
MAIN = "ses_main"
EVERYWHERE = pytest.mark.parametrize("dialect", ["events", "rows", "files"])
DATABASES = pytest.mark.parametrize("dialect", ["events", "rows"])


def made(kind, at, n=0):
    return f"{kind}_{((T0 + at) * 4096 + n) % (1 << 48):012x}{'x' * 14}"


def user(at, session=MAIN, **more):
    return {"id": made("msg", at), "sessionID": session, "role": "user", "time": {"created": T0 + at}, **more}


def answer(at, to, end=None, tokens=(10, 5), session=MAIN, finish="stop", **more):
    """An assistant message; without `end` it is not completed."""
    time = {"created": T0 + at} | ({"completed": T0 + end} if end else {})
    spent = {"input": tokens[0], "output": tokens[1], "reasoning": 0, "cache": {"read": 0, "write": 0}}
    return {
        "id": made("msg", at),
        "sessionID": session,
        "role": "assistant",
        "parentID": to["id"],
        "time": time,
        "modelID": "vendor/model-1",
        "providerID": "fake",
        "tokens": spent,
        "cost": 0.5 if any(tokens) else 0,
        **({"finish": finish} if finish else {}),
        **more,
    }


def part(message, at, type_, **more):
    return {
        "id": made("prt", at),
        "sessionID": message["sessionID"],
        "messageID": message["id"],
        "type": type_,
        **more,
    }


def text(message, at, words, **more):
    return part(message, at, "text", text=words, **more)


def tool(message, at, end=None, name="bash", status="completed", call="call_1", **state):
    """A tool's part, asked for at `at` and run from 5 ms later on."""
    time = {"start": T0 + at + 5} | ({"end": T0 + end} if end else {})
    body = {"status": status, "input": {"n": at}, "time": time, **state}
    return part(message, at, "tool", tool=name, callID=call, state=body)


def encoded(value):
    return json.dumps(value).encode()


def records(dialect, steps):
    """The steps (messages and parts in the order of writing) as records, per reader."""
    if dialect == "events":
        found = []
        for n, step in enumerate(steps):
            key = "part" if "messageID" in step else "info"
            data = {"sessionID": step["sessionID"], key: step, "time": T0 + n}
            found.append(Record("event", "db", n, 0, Row(f"evt_{n}", (step["sessionID"], encoded(data)))))
        return [found]
    last = {step["id"]: step for step in steps}
    if dialect == "files":
        found = []
        for step in last.values():
            kind = "part" if "messageID" in step else "message"
            path = f"/h/storage/{kind}/x/{step['id']}.json"
            time, _ = unit(path, encoded(step))
            found.append((time, [Record(kind, path, 0, 0, msgspec.Raw(encoded(step)))]))
        return [records for _, records in sorted(found, key=lambda f: f[0])]
    rows = []
    for id_, step in last.items():
        if "messageID" in step:
            continue
        parts = tuple(
            (p["id"], ids.made_at(p["id"], T0 * 10**6) // 10**6, encoded(p))
            for p in sorted(last.values(), key=lambda p: p["id"])
            if p.get("messageID") == id_
        )
        rows.append(
            Record("message", "db", len(rows), 0, Row(id_, (step["sessionID"], encoded(step), 1), parts))
        )
    return [rows]


def sessions(ledger=None):
    return Sessions(
        Context(agent="opencode"),
        Rules(),
        ledger if ledger is not None else Ledger(),
        lambda *_, **__: None,
        lambda cwd: cwd,
        lambda _: None,
    )


def play(dialect, *steps, nested=()):
    work = sessions()
    for batch in records(dialect, steps):
        reader = OpenCodeReader()
        for child in nested:
            row = Row(child, (MAIN, "/work", "v1.16.0-fork.1"))
            work.apply(reader.read(Record("session", "db", 0, 0, row)))
        for record in batch:
            work.apply(reader.read(record))
            reader = msgspec.msgpack.decode(msgspec.msgpack.encode(reader), type=OpenCodeReader)
    work.settle(2 * 10**18)
    return work.take()


def of(kind, outcomes):
    return [outcome for outcome in outcomes if isinstance(outcome, kind)]


def turns(outcomes):
    return [turn for turn in of(Turn, outcomes) if turn.human]


# ------------------------------------------------------------------------------------ tokens


@pytest.mark.parametrize(
    ("tokens", "output"),
    [
        ({"total": 130, "input": 100, "output": 30, "reasoning": 20}, 30),  # before 1.3.16: inside
        ({"total": 150, "input": 100, "output": 30, "reasoning": 20}, 50),  # since: beside
        ({"total": 145, "input": 100, "output": 30, "cache": {"read": 10, "write": 5}}, 30),
        ({"input": 100, "output": 30, "reasoning": 20}, 30),  # no total: it could be inside
        ({"input": 100, "output": 10, "reasoning": 20}, 30),  # no total: it cannot
    ],
)
def test_reasoning_is_a_part_of_output_once(tokens, output):
    """The total tells whether output holds it already."""
    assert msgspec.convert(tokens, Tokens).usage().output == output


@EVERYWHERE
def test_a_message_is_one_call_with_the_stored_cost(dialect):
    """Usage stands in many places; the message counts, once, under its own id."""
    prompt = user(0)
    reply = answer(10, prompt, 500)
    steps = [
        prompt,
        text(prompt, 1, "hello"),
        answer(10, prompt, tokens=(0, 0), finish=None),
        part(reply, 20, "step-start"),
        part(reply, 30, "step-finish", tokens=reply["tokens"], cost=0.5),
        {**reply, "time": {"created": T0 + 10}},
        reply,
        reply,
        {**prompt, "summary": {"diffs": []}},
    ]
    outcomes = play(dialect, *steps)
    (call,) = of(ModelCall, outcomes)
    assert (call.model, call.usage.input, call.usage.output, call.cost) == ("vendor/model-1", 10, 5, 0.5)
    assert (call.start, call.end) == ((T0 + 10) * 10**6, (T0 + 500) * 10**6)
    assert [(turn.status, turn.exit) for turn in turns(outcomes)] == [("ok", "success")]


@EVERYWHERE
def test_a_cost_of_zero_is_not_known(dialect):
    """OpenCode writes 0 for models without a price."""
    prompt = user(0)
    outcomes = play(dialect, prompt, text(prompt, 1, "hello"), answer(10, prompt, 20, cost=0))
    assert [call.cost for call in of(ModelCall, outcomes)] == [None]


@EVERYWHERE
def test_no_tokens_no_call(dialect):
    """A stream that finishes with nothing ("other") ends the turn without a call."""
    prompt = user(0)
    outcomes = play(
        dialect, prompt, text(prompt, 1, "hello"), answer(10, prompt, 20, tokens=(0, 0), finish="other")
    )
    assert of(ModelCall, outcomes) == []
    assert [turn.status for turn in turns(outcomes)] == ["ok"]


# ------------------------------------------------------------------------------------- tools


@EVERYWHERE
@pytest.mark.parametrize(
    ("state", "status", "error_type", "code"),
    [
        ({"metadata": {"exit": 0}}, "ok", "", 0),
        ({"metadata": {"exit": 3}}, "error", "tool_error", 3),
        ({"metadata": {}}, "ok", "", None),
        (
            {"output": "User aborted the command", "metadata": {"exit": None}},
            "interrupted",
            "interrupted",
            None,
        ),
        (
            {"output": "terminated after exceeding timeout 9 ms", "metadata": {"exit": None}},
            "error",
            "timeout",
            None,
        ),
        ({"status": "error", "error": "Error: no such file"}, "error", "tool_error", None),
        ({"status": "error", "error": "Tool execution aborted"}, "interrupted", "interrupted", None),
        (
            {"status": "error", "error": "x", "metadata": {"interrupted": True}},
            "interrupted",
            "interrupted",
            None,
        ),
        ({"status": "error", "error": "Request timed out"}, "error", "timeout", None),
        (
            {"status": "error", "error": "The user has specified a rule which prevents you"},
            "error",
            "denied",
            None,
        ),
    ],
)
def test_how_a_tool_ended(dialect, state, status, error_type, code):
    """A completed shell command failed if its exit code says so; killed ones say by whom in their output."""
    prompt = user(0)
    asks = answer(10, prompt, 200, finish="tool-calls")
    outcomes = play(
        dialect,
        prompt,
        text(prompt, 1, "go"),
        tool(asks, 20, status="pending"),
        tool(asks, 20, status="running"),
        tool(asks, 20, 100, **state),
        asks,
        answer(300, prompt, 400),
    )
    (call,) = of(ToolCall, outcomes)
    assert (call.status, call.error_type, call.exit_code) == (status, error_type, code)
    assert (call.name, call.id) == ("bash", "call_1")
    assert (call.start, call.end) == ((T0 + 25) * 10**6, (T0 + 100) * 10**6)
    assert not call.repeated
    assert [turn.status for turn in turns(outcomes)] == ["ok"]


@EVERYWHERE
def test_one_call_id_in_two_messages_is_two_calls(dialect):
    """The key is the part; the call id is the provider's and may repeat."""
    prompt = user(0)
    first, second = (
        answer(10, prompt, 200, finish="tool-calls"),
        answer(300, prompt, 500, finish="tool-calls"),
    )
    outcomes = play(
        dialect,
        prompt,
        text(prompt, 1, "go"),
        tool(first, 20, 100),
        first,
        tool(second, 320, 400),
        second,
    )
    assert [call.id for call in of(ToolCall, outcomes)] == ["call_1", "call_1"]


@EVERYWHERE
def test_killed_in_a_tool(dialect):
    """The call's tokens are nowhere; the tool stays running for ever, also after the next prompt."""
    prompt, again = user(0), user(90_000)
    dead = answer(10, prompt, tokens=(0, 0), finish=None)
    outcomes = play(
        dialect,
        prompt,
        text(prompt, 1, "go"),
        dead,
        tool(dead, 20, status="running"),
        again,
        text(again, 90_001, "again"),
        answer(90_010, again, 90_500),
    )
    assert [call.status for call in of(ToolCall, outcomes)] == ["pending"]
    assert [turn.exit for turn in turns(outcomes)] == ["unknown", "success"]
    assert len(of(ModelCall, outcomes)) == 1


@EVERYWHERE
def test_half_an_emoji_costs_nothing(dialect):
    """Output cut inside an emoji is stored as a lone surrogate, which strict decoders refuse."""
    prompt = user(0)
    asks = answer(10, prompt, 200, finish="tool-calls")
    outcomes = play(
        dialect,
        prompt,
        text(prompt, 1, "go"),
        tool(asks, 20, 100, output="cut \ud83d", metadata={"exit": 2}),
        asks,
    )
    assert [(call.status, call.exit_code) for call in of(ToolCall, outcomes)] == [("error", 2)]


def test_output_cleared_away_later_is_no_second_call():
    """Pruning updates a part long after its call: in events the whole part comes once more."""
    prompt, later = user(0), user(90_000)
    asks = answer(10, prompt, 200, finish="tool-calls")
    done = tool(asks, 20, 100)
    pruned = json.loads(json.dumps(done))
    pruned["state"]["time"]["compacted"] = T0 + 90_100
    outcomes = play(
        "events",
        *(prompt, text(prompt, 1, "go"), done, asks, answer(300, prompt, 400)),
        *(later, text(later, 90_001, "more"), pruned, answer(90_200, later, 90_300)),
    )
    assert len(of(ToolCall, outcomes)) == 1
    assert [turn.tools for turn in turns(outcomes)] == [1, 0]


# ------------------------------------------------------------------------------- turns and ends


@EVERYWHERE
@pytest.mark.parametrize(
    ("error", "exit_", "error_type"),
    [
        ({"name": "MessageAbortedError", "data": {"message": "Aborted"}}, "interrupted", "interrupted"),
        ({"name": "APIError", "data": {"statusCode": 401}}, "error", "provider_error"),
        ({"name": "ContextOverflowError", "data": {}}, "error", "provider_error"),
    ],
)
def test_an_error_ends_the_turn(dialect, error, exit_, error_type):
    """Written twice, it is still one end; a provider's failure is noted."""
    prompt = user(0)
    failed = answer(10, prompt, 50, tokens=(0, 0), finish=None, error=error)
    outcomes = play(dialect, prompt, text(prompt, 1, "go"), failed, failed)
    assert [(turn.exit, turn.error_type) for turn in turns(outcomes)] == [(exit_, error_type)]
    assert of(ModelCall, outcomes) == []
    noted = [o.error_type for o in of(Occurred, outcomes)]
    assert noted == (
        [] if exit_ == "interrupted" else ["401" if error["name"] == "APIError" else error["name"]]
    )


def seen(work, reader, step):
    """A file as it is at the moment."""
    kind = "part" if "messageID" in step else "message"
    path = f"/h/storage/{kind}/x/{step['id']}.json"
    work.apply(reader.read(Record(kind, path, 0, 0, msgspec.Raw(encoded(step)))))


def test_an_abort_that_is_read_before_what_was_aborted():
    """Both were written while nobody looked: the tool began before the end, and does not bring the turn back."""
    prompt = user(0)
    stopped = answer(10, prompt, 3000, tokens=(0, 0), finish=None, error={"name": "MessageAbortedError"})
    work, reader = sessions(), OpenCodeReader()
    seen(work, OpenCodeReader(), text(prompt, 1, "go"))
    seen(work, reader, tool(stopped, 20, status="pending"))
    seen(work, OpenCodeReader(), stopped)
    seen(work, reader, tool(stopped, 20, 2990, output="x", metadata={"exit": None}))
    work.settle(2 * 10**18)
    outcomes = work.take()
    assert [turn.exit for turn in turns(outcomes)] == ["interrupted"]
    assert [call.status for call in of(ToolCall, outcomes)] == ["interrupted"]


def test_a_file_that_has_its_tokens_before_its_end():
    """They are written a moment earlier: the call is not over with that, however long ago it began."""
    prompt = user(0)
    work, reader = sessions(), OpenCodeReader()
    seen(work, OpenCodeReader(), text(prompt, 1, "go"))
    seen(work, reader, answer(10, prompt))
    work.settle((T0 + 9001) * 10**6)
    seen(work, reader, answer(10, prompt, 9000))
    work.settle(2 * 10**18)
    (call,) = of(ModelCall, work.take())
    assert (call.start, call.end, call.final) == ((T0 + 10) * 10**6, (T0 + 9000) * 10**6, True)


@DATABASES
def test_a_rejected_permission_ends_the_turn(dialect):
    """Although the message finishes with "tool-calls". (A file of its own cannot know it: there it is silence.)"""
    prompt = user(0)
    asks = answer(10, prompt, 200, finish="tool-calls")
    no = "The user rejected permission to use this specific tool call."
    steps = [prompt, text(prompt, 1, "go"), tool(asks, 20, 100, status="error", error=no), asks]
    outcomes = play(dialect, *steps)
    assert [call.error_type for call in of(ToolCall, outcomes)] == ["denied"]
    assert [turn.status for turn in turns(outcomes)] == ["ok"]


@DATABASES
def test_a_reply_that_asks_for_tools_and_says_stop_does_not_end_the_turn(dialect):
    """Some providers say so; newer versions look for tools and go on. With nothing after it, it was the end."""
    prompt = user(0)
    asks = answer(10, prompt, 200, finish="stop")
    steps = [prompt, text(prompt, 1, "go"), tool(asks, 20, 100), asks]
    outcomes = play(dialect, *steps, answer(9000, prompt, 9500))
    assert [(t.status, t.tools, t.usage.input) for t in of(Turn, outcomes)] == [("ok", 1, 20)]
    assert [t.status for t in of(Turn, play(dialect, *steps))] == ["ok"]


@DATABASES
def test_a_tool_that_the_provider_ran_is_inside_its_reply(dialect):
    """A search on its side: the reply goes on after it, and ends the turn."""
    prompt = user(0)
    reply = answer(10, prompt, 5000)
    search = tool(reply, 20, 3000, name="web_search") | {"metadata": {"providerExecuted": True}}
    work, reader = sessions(), OpenCodeReader()
    for record in records(dialect, [prompt, text(prompt, 1, "go"), search, reply])[0]:
        work.apply(reader.read(record))
    work.settle((T0 + 8000) * 10**6)
    outcomes = work.take()
    assert [(t.status, t.tools) for t in turns(outcomes)] == [("ok", 1)]
    assert [call.end for call in of(ModelCall, outcomes)] == [(T0 + 5000) * 10**6]


@EVERYWHERE
def test_a_reply_that_ended_for_an_unknown_reason_is_an_answer(dialect):
    """Older versions ask the model again after it, newer ones do not."""
    prompt = user(0)
    steps = [prompt, text(prompt, 1, "go"), answer(10, prompt, 200, finish="unknown")]
    assert [t.exit for t in of(Turn, play(dialect, *steps))] == ["success"]
    outcomes = play(dialect, *steps, answer(9000, prompt, 9500))
    assert [(t.exit, t.usage.input) for t in of(Turn, outcomes)] == [("success", 20)]


@EVERYWHERE
def test_a_command_that_runs_a_subagent_is_one_turn(dialect):
    """A subtask is the prompt; the message with the task alone is no call; the request to summarise no turn."""
    prompt, summarise = user(0), user(1000)
    runs = answer(10, prompt, 900, tokens=(0, 0), finish="tool-calls")
    own = "01K0ABCDEFGHJKMNPQRSTVWXYZ"
    outcomes = play(
        dialect,
        prompt,
        part(prompt, 1, "subtask", agent="general", prompt="look"),
        tool(runs, 20, 800, name="task", call=own),
        runs,
        summarise,
        text(summarise, 1001, "Summarize the task tool output above and continue", synthetic=True),
        answer(1010, summarise, 1500),
    )
    assert len(turns(outcomes)) == len(of(Turn, outcomes)) == 1
    assert len(of(ModelCall, outcomes)) == 1
    assert [call.name for call in of(ToolCall, outcomes)] == ["task"]


@EVERYWHERE
def test_the_users_own_command_is_nothing_of_the_models(dialect):
    """`!ls`: no turn, no call, no tool."""
    shell, prompt = user(0), user(5000)
    ran = answer(10, shell, 60, tokens=(0, 0), finish=None)
    outcomes = play(
        dialect,
        shell,
        text(shell, 1, "The following tool was executed by the user", synthetic=True),
        ran,
        tool(ran, 20, 50, call="01K0ABCDEFGHJKMNPQRSTVWXYZ"),
        ran,
        prompt,
        text(prompt, 5001, "go"),
        answer(5010, prompt, 5500),
    )
    assert of(ToolCall, outcomes) == []
    assert len(turns(outcomes)) == len(of(Turn, outcomes)) == len(of(ModelCall, outcomes)) == 1


@EVERYWHERE
def test_a_compaction_asked_for_is_a_call_and_no_turn(dialect):
    """Long after the turn it is work without one."""
    prompt, compact = user(0), user(60_000)
    outcomes = play(
        dialect,
        prompt,
        text(prompt, 1, "go"),
        answer(10, prompt, 500),
        compact,
        part(compact, 60_001, "compaction", auto=False),
        answer(60_010, compact, 61_000, summary=True, agent="compaction"),
    )
    assert [turn.human for turn in of(Turn, outcomes)] == [True, False]
    assert len(of(ModelCall, outcomes)) == 2
    assert [o.kind for o in of(Occurred, outcomes)] == ["compaction"]


@DATABASES
def test_a_prompt_repeated_after_an_overflow_is_no_turn(dialect):
    """What did not fit is stored again, word for word, behind the summary; the same words later are a turn."""
    prompt, compact, again, later = user(0), user(100), user(3000), user(90_000)
    outcomes = play(
        dialect,
        *(prompt, text(prompt, 1, "long")),
        *(compact, part(compact, 101, "compaction", auto=True, overflow=True)),
        answer(110, compact, 2900, summary=True),
        *(again, text(again, 3001, "long")),
        answer(3010, again, 3500),
        *(later, text(later, 90_001, "long")),
        answer(90_010, later, 90_500),
    )
    assert len(turns(outcomes)) == len(of(Turn, outcomes)) == 2
    assert [turn.usage.input for turn in turns(outcomes)] == [20, 10]


@DATABASES
def test_what_the_program_says_to_the_model_is_no_prompt(dialect):
    """The result of a background task comes as a synthetic message; the model's answer is still work."""
    prompt, result = user(0), user(90_000)
    outcomes = play(
        dialect,
        *(prompt, text(prompt, 1, "go"), answer(10, prompt, 500)),
        *(result, text(result, 90_001, "<task id=x state=completed>", synthetic=True)),
        answer(90_010, result, 90_500),
    )
    assert [turn.human for turn in of(Turn, outcomes)] == [True, False]
    assert len(of(ModelCall, outcomes)) == 2


@EVERYWHERE
def test_a_prompt_with_a_file_is_a_prompt(dialect):
    """Whatever the order in which the file's synthetic words and the person's stand."""
    prompt = user(0)
    outcomes = play(
        dialect,
        prompt,
        text(prompt, 1, "Called the Read tool with the following input", synthetic=True),
        part(prompt, 2, "file", mime="text/plain"),
        text(prompt, 3, "what is this?"),
        answer(10, prompt, 500),
    )
    assert len(turns(outcomes)) == len(of(Turn, outcomes)) == 1


@pytest.mark.parametrize("asked_in", ["the reply", "the tool"])
def test_a_prompt_given_while_the_model_is_at_work(asked_in):
    """It is a turn of its own, from when the model is done with its message: what runs until then stays with the
    turn before, which has not failed."""
    first, second = user(0), user(1100 if asked_in == "the reply" else 2000)
    begun = answer(1000, first, tokens=(0, 0), finish=None)
    running = tool(begun, 1200, status="running")
    ended = tool(begun, 1200, 2900, output="x", metadata={"exit": 0})
    done = answer(1000, first, 3000, finish="tool-calls")
    asked = [second, text(second, 2001, "more")]
    start = [first, text(first, 1, "go"), begun]
    start += [*asked, running] if asked_in == "the reply" else [running, *asked]
    steps = [*start, ended, done, answer(4000, second, 5000)]
    outcomes = play("events", *steps)
    assert [(t.status, t.tools, t.usage.input, t.end // 10**6 - T0) for t in turns(outcomes)] == [
        ("ok", 1, 10, 3000),
        ("ok", 0, 10, 5000),
    ]
    assert [t.status for t in of(ToolCall, outcomes)] == ["ok"]
    whole = play("rows", *steps)
    assert sorted((o.trace, o.span, o.status) for o in whole if isinstance(o, Settled)) == sorted(
        (o.trace, o.span, o.status) for o in outcomes if isinstance(o, Settled)
    )


@DATABASES
def test_a_prompt_after_a_kill_does_not_wait_for_the_dead(dialect):
    """A message that nobody will complete: the next prompt is seen when it is answered."""
    first, second = user(0), user(5000)
    dead = answer(1000, first, tokens=(0, 0), finish=None)
    outcomes = play(
        dialect,
        first,
        text(first, 1, "go"),
        dead,
        tool(dead, 1200, status="running"),
        second,
        text(second, 5001, "again"),
        answer(6000, second, tokens=(0, 0), finish=None),
    )
    assert [(t.status, t.tools) for t in turns(outcomes)] == [("pending", 1), ("pending", 0)]


@DATABASES
def test_a_fork_copies_what_was_counted(dialect):
    """New ids, old times: copies are known by that; what is new in the fork counts."""
    prompt = user(0)
    reply = answer(10, prompt, 300)
    copied = {**prompt, "id": made("msg", 50_000), "sessionID": "ses_fork"}
    copied_reply = {**reply, "id": made("msg", 50_001), "sessionID": "ses_fork", "parentID": copied["id"]}
    done = tool(reply, 20, 100)
    copied_done = {
        **done,
        "id": made("prt", 50_003),
        "sessionID": "ses_fork",
        "messageID": copied_reply["id"],
    }
    new = user(60_000, "ses_fork")
    outcomes = play(
        dialect,
        *(prompt, text(prompt, 1, "go"), done, reply),
        *(copied, text(copied, 50_002, "go"), copied_reply, copied_done),
        *(new, text(new, 60_001, "differently"), answer(60_010, new, 60_500, session="ses_fork")),
    )
    assert len(turns(outcomes)) == 2
    assert len(of(ModelCall, outcomes)) == 2
    assert len(of(ToolCall, outcomes)) == 1


def test_a_fork_in_files_repeats_no_prompt(tmp_path):
    """The words of a person have no time: that they are a copy stands in their message's file."""
    prompt, new = user(0), user(60_000, "ses_fork")
    copy = {**prompt, "id": made("msg", 50_000), "sessionID": "ses_fork"}
    steps = [
        *(prompt, text(prompt, 1, "go"), answer(10, prompt, 300)),
        *(copy, text(copy, 50_001, "go"), new, text(new, 60_001, "differently")),
        answer(60_010, new, 60_500, session="ses_fork"),
    ]
    work = sessions()
    for (record,) in records("files", steps):
        body = json.loads(bytes(record.body))
        at = body["messageID"] if record.kind == "part" else body["sessionID"]
        path = tmp_path / "storage" / record.kind / at / f"{body['id']}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(record.body))
        work.apply(OpenCodeReader().read(msgspec.structs.replace(record, path=str(path))))
    work.settle(2 * 10**18)
    outcomes = work.take()
    assert len(turns(outcomes)) == len(of(Turn, outcomes)) == len(of(RunStarted, outcomes)) == 2


@DATABASES
def test_a_subagent_hangs_below_its_call(dialect):
    """Two at a time, by the session that the task's metadata names."""
    prompt = user(0)
    asks = answer(10, prompt, 900, finish="tool-calls")
    steps = [prompt, text(prompt, 1, "go")]
    for n, child in enumerate(("ses_a", "ses_b")):
        state = {"metadata": {"sessionId": child}, "input": {"subagent_type": f"kind-{n}"}}
        steps.append(tool(asks, 20 + n, name="task", status="running", call=f"call_{n}", **state))
    for n, child in enumerate(("ses_a", "ses_b")):
        task = user(40 + n, child, agent=f"kind-{n}")
        steps += [task, text(task, 42 + n, "look"), answer(50 + n, task, 500 + n, session=child)]
    for n, child in enumerate(("ses_a", "ses_b")):
        state = {"metadata": {"sessionId": child}, "input": {"subagent_type": f"kind-{n}"}}
        steps.append(tool(asks, 20 + n, 600 + n, name="task", call=f"call_{n}", **state))
    steps += [asks, answer(1000, prompt, 1500)]
    outcomes = play(dialect, *steps, nested=("ses_a", "ses_b"))
    calls = {call.span: call.id for call in of(ToolCall, outcomes)}
    assert {(sub.name, calls[sub.parent]) for sub in of(Subagent, outcomes)} == {
        ("kind-0", "call_0"),
        ("kind-1", "call_1"),
    }
    (turn,) = of(Turn, outcomes)
    assert turn.usage.input == 40
    assert len(of(RunStarted, outcomes)) == 1


def test_retries_are_noted():
    """Once, however often their part is read."""
    prompt = user(0)
    reply = answer(10, prompt, 900)
    retry = part(reply, 20, "retry", attempt=2, time={"created": T0 + 20}, error={})
    outcomes = play("events", prompt, text(prompt, 1, "go"), retry, retry, reply)
    (turn,) = turns(outcomes)
    assert [(event.name, event.attrs) for event in turn.events] == [("retry", {"attempt": 2})]


# --------------------------------------------------------------------------- storage and memory


def test_a_session_in_files_and_in_the_database_counts_once():
    """1.2 took the files over into a database and left them where they were: the ids are the same."""
    prompt = user(0)
    asks = answer(10, prompt, 200, finish="tool-calls")
    steps = [prompt, text(prompt, 1, "go"), tool(asks, 20, 100), asks, answer(300, prompt, 400)]
    for order in (("files", "rows"), ("rows", "files"), ("files", "events")):
        work = sessions()
        for dialect in order:
            for batch in records(dialect, steps):
                reader = OpenCodeReader()
                for record in batch:
                    work.apply(reader.read(record))
            work.settle(2 * 10**18)
        outcomes = work.take()
        assert (len(turns(outcomes)), len(of(ModelCall, outcomes)), len(of(ToolCall, outcomes))) == (1, 2, 1)
        assert len(of(RunStarted, outcomes)) == 1


class Limits(msgspec.Struct):
    record_bytes: int = 1 << 26
    document_bytes: int = 1 << 28


def read_database(path):
    class Strict:
        def __getattr__(self, name):
            return lambda *about: pytest.fail(f"{name} {about}")

    work, reader = sessions(), OpenCodeReader()
    tail = RowsTail(Source(str(path), FORMAT, FORMAT.files[0], "", ""), None, Strict(), Limits())
    while tail.changed():
        for record in tail.read(1 << 20, 0).records:
            work.apply(reader.read(record))
    tail.close()
    work.settle(2 * 10**18)
    return work.take()


def test_a_database_that_lived_through_versions(tmp_path):
    """Sessions without events beside sessions with them, and one that got events only later: each once."""
    home = "home/.local/share/opencode"
    shutil.copytree(FIXTURES / "opencode/tools-a" / home, tmp_path / "db")
    path = tmp_path / "db/opencode.db"
    connection = sqlite3.connect(path)
    shutil.copytree(FIXTURES / "opencode/multi-a" / home, tmp_path / "old")
    connection.execute("ATTACH ? AS old", (str(tmp_path / "old/opencode.db"),))
    for table in ("project", "session", "message", "part"):
        connection.execute(f"INSERT OR IGNORE INTO {table} SELECT * FROM old.{table}")
    # Continued by a newer version: the last of its events are there, its creation is not.
    connection.execute(
        "INSERT INTO event SELECT * FROM old.event WHERE seq > (SELECT max(seq) / 2 FROM old.event)"
    )
    connection.commit()
    connection.close()
    outcomes = read_database(path)
    expect = [
        json.loads((FIXTURES / f"opencode/{case}/truth.json").read_text())["expect"]
        for case in ("tools-a", "multi-a")
    ]
    assert len(turns(outcomes)) == sum(e["turns"] for e in expect)
    assert len(of(ModelCall, outcomes)) == sum(e["llm_calls"] for e in expect)
    assert len(of(ToolCall, outcomes)) == sum(len(e["tools"]) for e in expect)
    total = sum(call.usage.input for call in of(ModelCall, outcomes))
    assert total == sum(e["tokens"]["input"] for e in expect)


def test_a_session_that_has_events_but_none_of_its_messages(tmp_path):
    """Then the rows are all there is of them."""
    shutil.copytree(FIXTURES / "opencode/tools-a/home/.local/share/opencode", tmp_path / "db")
    path = tmp_path / "db/opencode.db"
    connection = sqlite3.connect(path)
    connection.execute("DELETE FROM event WHERE type NOT LIKE 'session.%'")
    connection.commit()
    connection.close()
    outcomes = read_database(path)
    assert [len(of(kind, outcomes)) for kind in (Turn, ModelCall, ToolCall)] == [1, 5, 4]


def test_only_named_columns_of_four_tables_are_selected():
    """Tables with secrets are never asked, whatever the database holds."""
    everything = frozenset(
        [
            "id",
            "session_id",
            "message_id",
            "data",
            "time_created",
            "time_updated",
            "aggregate_id",
            "type",
            "parent_id",
            "directory",
            "version",
        ]
    )
    tables = ("session", "message", "part", "event", "account", "credential", "control_account")
    plan = queries(dict.fromkeys(tables, everything))
    assert [query.table for query in plan] == ["session", "event", "message"]
    assert [query.parts.table for query in plan if query.parts] == ["part"]
    assert not any("*" in column for query in plan for column in query.columns)


def test_missing_tables_and_columns_are_tolerated():
    assert queries({}) == ()
    assert queries({"message": frozenset({"id"}), "account": frozenset({"id"})}) == ()
    (only,) = queries({"session": frozenset({"id"})})
    assert only.columns == ("NULL", "NULL", "NULL")


def test_the_reader_remembers_little():
    """It is stored with every commit, however long the session."""
    reader = OpenCodeReader()
    for n in range(2000):
        prompt = user(n * 1000)
        asks = answer(n * 1000 + 10, prompt, n * 1000 + 200, finish="tool-calls")
        steps = [prompt, text(prompt, n * 1000 + 1, "go"), tool(asks, n * 1000 + 20, n * 1000 + 100), asks]
        for record in records("events", steps)[0]:
            assert list(reader.read(record)) is not None
    assert len(msgspec.msgpack.encode(reader)) < 8000


def test_ids_tell_their_time():
    """Also over the round that ends every 2.2 years."""
    for at in (1_771_000_000_000, 1_786_706_395_135, 1_786_706_395_136, 1_794_981_189_167):
        id_ = f"msg_{(at * 4096 + 1) % (1 << 48):012x}{'x' * 14}"
        assert ids.made_at(id_) == ids.made_at(id_, at * 10**6) == at * 10**6
    far = 2_000_000_000_000
    assert ids.made_at(f"prt_{(far * 4096) % (1 << 48):012x}", far * 10**6) == far * 10**6
    for nonsense in ("", "msg_", "REDACTED", "msg_zzzzzzzzzzzzxxxxxxxxxxxxxx", "-1"):
        assert ids.made_at(nonsense) == 0


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "id",
                    "role",
                    "time",
                    "created",
                    "tokens",
                    "input",
                    "parentID",
                    "state",
                    "status",
                    "metadata",
                    "text",
                    "type",
                    "error",
                ]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=12,
)


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from(["info", "part"]),
    st.sampled_from(["tool", "text", "compaction", "subtask", "retry"]),
    st.dictionaries(st.sampled_from(list(tool(user(0), 1)) + list(answer(0, user(0)))), json_values),
)
def test_nothing_that_is_stored_makes_it_raise(kind, type_, changes):
    """Any JSON type in any place costs that record at most."""
    prompt = user(0)
    base = answer(10, prompt, 20) if kind == "info" else {**tool(prompt, 5), "type": type_}
    body = json.dumps({"sessionID": MAIN, kind: {**base, **changes}}).encode("utf-8", "replace")
    reader, work = OpenCodeReader(), sessions()
    work.apply(reader.read(Record("event", "db", 1, 0, Row("evt", (MAIN, body)))))
    work.apply(reader.read(Record("part", "/x", 1, 0, msgspec.Raw(json.dumps({**base, **changes}).encode()))))
    assert is_open(Row("m", (MAIN, body), ((1, 2, body),))) in (True, False)
    msgspec.msgpack.encode(reader)

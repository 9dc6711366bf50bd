"""pi's lines become the right turns, calls and ends: retries, aborts, forks, summaries, older and foreign files."""

import datetime as dt
import json
import os

import msgspec
import pytest

from spantail.formats import pi
from spantail.formats.pi.lines import Line
from spantail.formats.pi.reader import KEEP, PiReader, unit
from spantail.formats.pi.results import outcome
from spantail.formats.times import ms_ns
from spantail.model import (
    Context,
    ModelCall,
    Occurred,
    Record,
    Subagent,
    ToolCall,
    Turn,
    Usage,
)
from spantail.session.sessions import Sessions
from spantail.session.settle import Rules
from spantail.state.ledger import Ledger

T = 1_794_981_516_000
"""Milliseconds; the times of hand-made lines are given as milliseconds after it."""
PATH = "/h/.pi/agent/sessions/--w--/2026-11-18T05-58-35-645Z_01a1ed3c.jsonl"
USED = {"input": 100, "output": 10, "cacheRead": 30, "cacheWrite": 5, "cost": {"total": 0.25}}
NONE = {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0, "cost": {"total": 0}}


def iso(after):
    seconds, ms = divmod(T + after, 1000)
    return dt.datetime.fromtimestamp(seconds, dt.UTC).strftime("%Y-%m-%dT%H:%M:%S") + f".{ms:03d}Z"


def entry(id_, after, **rest):
    return {"type": "message", "id": id_, "parentId": None, "timestamp": iso(after), **rest}


def header(id_="s1", after=0, **rest):
    return {"type": "session", "version": 3, "id": id_, "timestamp": iso(after), "cwd": "/w/proj", **rest}


def user(id_, after, words="do it", typed=None):
    message = {"role": "user", "content": [{"type": "text", "text": words}]}
    return entry(id_, after, message={**message, "timestamp": T + (after if typed is None else typed)})


def reply(id_, after, *tools, stop=None, usage=USED, model="m1", **rest):
    content = [
        {"type": "toolCall", "id": tool, "name": "bash", "arguments": {"command": tool}} for tool in tools
    ]
    message = {
        "role": "assistant",
        "content": content or [{"type": "text", "text": "done"}],
        "provider": "anthropic",
        "model": model,
        "usage": usage,
        "stopReason": stop or ("toolUse" if tools else "stop"),
        "timestamp": T + after - 50,
        "responseId": "msg_1",
        **rest,
    }
    return entry(id_, after, message=message)


def result(id_, after, tool, words="fine", *, error=False, **rest):
    message = {"role": "toolResult", "toolCallId": tool, "toolName": "bash", "isError": error}
    content = [{"type": "text", "text": words}]
    return entry(id_, after, message={**message, "content": content, "timestamp": T + after, **rest})


class Read:
    """Lines through the reader (whose memory is stored after each) and the session."""

    def __init__(self):
        self.sessions = Sessions(
            Context(agent="pi"), Rules(), Ledger(), lambda *_, **__: None, os.path.basename, lambda _: None
        )
        self.out = []

    def file(self, *lines, path=PATH):
        memory = msgspec.msgpack.encode(PiReader())
        for n, line in enumerate(lines):
            reader = msgspec.msgpack.decode(memory, type=PiReader)
            body = msgspec.json.decode(json.dumps(line), type=Line)
            self.sessions.apply(list(reader.read(Record("session", path, n, 0, body))))
            memory = msgspec.msgpack.encode(reader)
        self.sessions.settle(ms_ns(T + 10**8))
        self.out += self.sessions.take()
        return self

    def of(self, kind):
        return [o for o in self.out if isinstance(o, kind)]

    @property
    def turn(self):
        (turn,) = self.of(Turn)
        return turn

    def tool(self, id_):
        (tool,) = [tool for tool in self.of(ToolCall) if tool.id == id_]
        return tool


def read(*lines, path=PATH):
    return Read().file(*lines, path=path)


# ---------------------------------------------------------------------------------- turns and calls


def test_a_turn_with_a_tool():
    """The reply lasts from its message's time to its line's, the call from there to its result's line."""
    found = read(header(), user("a", 0), reply("b", 100, "t1"), result("c", 900, "t1"), reply("d", 1000))
    assert (found.turn.status, found.turn.context.project) == ("ok", "proj")
    assert found.turn.context.provider == "anthropic"
    first, last = found.of(ModelCall)
    assert (first.start, first.end) == (ms_ns(T + 50), ms_ns(T + 100))
    assert (first.model, first.response_id, first.stop, first.cost) == ("m1", "msg_1", "toolUse", 0.25)
    assert first.usage == Usage(input=100, cache_read=30, cache_write=5, output=10)
    assert last.stop == "stop"
    tool = found.tool("t1")
    assert (tool.start, tool.end, tool.source) == (ms_ns(T + 100), ms_ns(T + 900), "timestamps")


def test_usage_knows_its_parts():
    """The 1 h part of cache writes and the reasoning inside the output; parts never exceed the whole."""
    usage = {**USED, "cacheWrite1h": 3, "reasoning": 99}
    (call,) = read(user("a", 0), reply("b", 100, usage=usage)).of(ModelCall)
    assert call.usage == Usage(100, 30, 5, 10, 10, 3)


def test_a_reply_that_tells_no_usage_is_a_call_with_unknown_usage():
    """Local servers may count nothing; nothing is invented for them."""
    (call,) = read(user("a", 0), reply("b", 100, usage=NONE)).of(ModelCall)
    assert (call.usage, call.cost, call.status) == (None, None, "ok")


def test_a_cost_of_zero_is_no_price():
    """pi writes zero for models without a price: the price list is asked instead."""
    usage = {**USED, "cost": {"total": 0}}
    (call,) = read(user("a", 0), reply("b", 100, usage=usage)).of(ModelCall)
    assert call.cost is None


def test_a_reply_is_priced_by_its_own_provider():
    """The session keeps the name of its first one, however late a turn is settled."""
    found, asked = Read(), []
    found.sessions.settler.price = lambda model, provider, *_, **__: asked.append(provider)
    free = {**USED, "cost": None}
    other = reply("d", 5100, usage=free, provider="openai")
    found.file(user("a", 0), reply("b", 100, usage=free), user("c", 5000), other)
    assert asked == ["anthropic", "openai"]
    assert {turn.context.provider for turn in found.of(Turn)} == {"anthropic"}


def test_ids_of_calls_repeat_between_replies():
    """Small servers call every call `call_1`: each is one of its own."""
    found = read(
        user("a", 0),
        reply("b", 100, "call_1"),
        result("c", 200, "call_1"),
        reply("d", 300, "call_1"),
        result("e", 400, "call_1", "Command exited with code 1", error=True),
        reply("f", 500),
    )
    assert [tool.status for tool in found.of(ToolCall)] == ["ok", "error"]


def test_a_batch_written_at_once_is_an_estimate():
    """Results of calls that ran side by side bear one time: all begin with the reply."""
    lines = [user("a", 0), reply("b", 100, "t1", "t2"), result("c", 900, "t1"), result("d", 901, "t2")]
    found = read(*lines, reply("e", 1000))
    assert [(tool.start, tool.source) for tool in found.of(ToolCall)] == [(ms_ns(T + 100), "estimate")] * 2


def test_a_batch_run_in_turn_begins_where_the_one_before_ended():
    """Older versions ran the calls of a reply one after the other."""
    lines = [user("a", 0), reply("b", 100, "t1", "t2"), result("c", 500, "t1"), result("d", 900, "t2")]
    found = read(*lines, reply("e", 1000))
    assert (found.tool("t2").start, found.tool("t2").end) == (ms_ns(T + 500), ms_ns(T + 900))


def test_a_call_without_result_is_pending():
    """Killed: the call stays open, and a later prompt closes its turn."""
    found = read(user("a", 0), reply("b", 100, "t1"), user("c", 9000), reply("d", 9100))
    assert found.tool("t1").status == "pending"
    assert [turn.status for turn in found.of(Turn)] == ["pending", "ok"]


def test_a_prompt_typed_while_the_loop_runs_steers_its_turn():
    """It was queued: its message is older than the result before it. No turn of its own."""
    found = read(
        user("a", 0),
        reply("b", 100, "t1"),
        result("c", 900, "t1"),
        user("d", 901, "rather so", typed=500),
        reply("e", 1000),
    )
    assert found.turn.status == "ok"
    assert [event.name for event in found.turn.events] == ["queued_prompt"]


def test_a_prompt_after_a_killed_loop_is_a_new_turn():
    """Typed after everything that was written: the process had died after the result."""
    found = read(
        user("a", 0), reply("b", 100, "t1"), result("c", 900, "t1"), user("d", 9000), reply("e", 9100)
    )
    assert [turn.status for turn in found.of(Turn)] == ["pending", "ok"]


@pytest.mark.parametrize("role", ["bashExecution", "system", "custom"])
def test_what_others_say_starts_no_turn(role):
    """The user's own commands, system prompts and injected context are no prompts."""
    other = entry("x", 500, message={"role": role, "content": "ls", "timestamp": T + 500})
    injected = {**entry("y", 600), "type": "custom_message", "customType": "c", "content": "context"}
    found = read(user("a", 0), reply("b", 100), other, injected)
    assert found.turn.status == "ok"


# --------------------------------------------------------------------------------- errors and aborts


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("out\\n\\nCommand exited with code 3", ("error", "tool_error", 3)),
        ("Command timed out after 5 seconds", ("error", "timeout", None)),
        ("Command aborted", ("interrupted", "interrupted", None)),
        ("half\\n\\nCommand aborted", ("interrupted", "interrupted", None)),
        ("Operation aborted", ("interrupted", "interrupted", None)),
        ("Skipped due to queued user message.", ("interrupted", "interrupted", None)),
        ("Tool execution was blocked by x", ("error", "denied", None)),
        ("Tool nope not found", ("error", "tool_error", None)),
        ("Command exited with code 1, it printed; Command exited with code 7", ("error", "tool_error", 7)),
    ],
)
def test_how_a_call_failed(words, said):
    """By pi's own words at the end of the output."""
    raw = msgspec.Raw(b'[{"type":"text","text":"' + words.encode() + b'"}]')
    assert outcome(raw, is_error=True) == said


def test_words_of_failure_in_a_good_result_are_just_words():
    """Only what pi calls an error is one."""
    assert outcome(msgspec.Raw(b'"Command exited with code 3"'), is_error=False) == ("ok", "", None)


def taken_back(id_, after, target):
    edit = {"type": "context_edit", "targetId": target, "replacement": None}
    return {**entry(id_, after), **edit}


def test_a_retry_belongs_to_its_turn_however_long_it_waits():
    """The failed try is taken back at once; the next one may come minutes later."""
    found = read(
        user("a", 0),
        reply("b", 100, stop="error", usage=NONE, errorMessage='429 {"error":{}}'),
        taken_back("c", 105, "b"),
        reply("d", 60_000),
    )
    assert (found.turn.status, found.turn.error_type, found.turn.exit) == ("ok", "", "success")
    assert [event.name for event in found.turn.events] == ["provider_error", "retry"]
    assert [o.error_type for o in found.of(Occurred)] == ["429"]
    assert len(found.of(ModelCall)) == 1


def test_the_last_try_fails_the_turn():
    """Nothing takes it back: the turn ended with the provider's error."""
    found = read(
        user("a", 0),
        reply("b", 100, stop="error", usage=NONE, errorMessage="500 x"),
        taken_back("c", 105, "b"),
        reply("d", 3000, stop="error", usage=NONE, errorMessage="fetch failed"),
    )
    assert (found.turn.status, found.turn.error_type) == ("error", "provider_error")
    assert [o.error_type for o in found.of(Occurred)] == ["500", "provider_error"]


def test_an_older_version_tries_again_without_a_word():
    """The failed try stays, and so does the turn; a context that was too long is cut first."""
    found = read(
        user("a", 0),
        reply("b", 100, stop="error", usage=NONE, errorMessage="529 overloaded_error"),
        reply("c", 8_000, stop="error", usage=NONE, errorMessage="prompt is too long: 210000 tokens"),
        summary("compaction", "d", 30_000),
        reply("e", 60_000),
        user("f", 90_000),
        reply("g", 91_000, stop="error", usage=NONE, errorMessage="fetch failed"),
        reply("h", 99_000, stop="error", usage=NONE, errorMessage="fetch failed"),
    )
    first, second = found.of(Turn)
    assert (first.status, first.error_type, first.exit) == ("ok", "", "success")
    kinds = ["provider_error", "retry", "provider_error", "compaction", "retry"]
    assert [event.name for event in first.events] == kinds
    assert (second.status, second.error_type, second.end) == (
        "error",
        "provider_error",
        second.start + 99 * 10**9 - 90 * 10**9,
    )
    assert len(found.of(ModelCall)) == 2


def test_an_error_that_is_not_tried_again_ends_its_turn_at_once():
    """The next reply, should one come, is no try of it."""
    found = read(
        user("a", 0), reply("b", 100, stop="error", usage=NONE, errorMessage="401 bad key"), reply("c", 9_000)
    )
    assert [(turn.human, turn.status) for turn in found.of(Turn)] == [(True, "error"), (False, "ok")]


def test_an_edit_of_something_else_is_no_retry():
    """Context edits also cut old results."""
    edit = taken_back("c", 105, "b") | {"replacement": {"text": "cut"}}
    found = read(user("a", 0), reply("b", 100, stop="error", usage=NONE), edit, taken_back("d", 106, "zz"))
    assert found.turn.status == "error"
    assert [event.name for event in found.turn.events] == ["provider_error"]


def test_a_turn_killed_while_it_retries_is_pending():
    """The error was taken back, and then nothing came."""
    found = read(user("a", 0), reply("b", 100, stop="error", usage=NONE), taken_back("c", 105, "b"))
    assert (found.turn.status, found.turn.error_type, found.turn.exit) == ("pending", "", "unknown")


@pytest.mark.parametrize(
    ("stop", "error"),
    [
        ("aborted", "Request was aborted."),
        ("aborted", "terminated"),
        ("aborted", None),
        ("error", "This operation was aborted"),
        ("error", "Request was aborted."),
        ("error", "Operation aborted"),
    ],
)
def test_an_abort_is_no_error(stop, error):
    """Whichever word pi has for it; nothing is counted as a provider's error."""
    found = read(user("a", 0), reply("b", 100, stop=stop, usage=NONE, errorMessage=error))
    assert (found.turn.status, found.turn.exit) == ("interrupted", "interrupted")
    assert found.of(Occurred) == []
    assert found.of(ModelCall) == []


def test_a_stream_that_broke_off_is_an_error():
    """`terminated` is the network's word."""
    assert (
        read(user("a", 0), reply("b", 100, stop="error", usage=NONE, errorMessage="terminated")).turn.status
        == "error"
    )


def test_an_aborted_reply_may_have_been_paid_for():
    """Its usage counts, as a call that was interrupted; its tool calls were never run."""
    found = read(user("a", 0), reply("b", 100, "t1", "t2", stop="aborted"))
    (call,) = found.of(ModelCall)
    assert (call.status, call.error_type, call.usage.input) == ("interrupted", "interrupted", 100)
    assert found.of(ToolCall) == []
    assert found.turn.status == "interrupted"


def test_a_failed_reply_may_have_been_paid_for():
    """The same for an error."""
    found = read(user("a", 0), reply("b", 100, "t1", stop="error", errorMessage="503 busy"))
    (call,) = found.of(ModelCall)
    assert (call.status, call.error_type) == ("error", "provider_error")
    assert found.of(ToolCall) == []


# ------------------------------------------------------------------------------ summaries and forks


def summary(kind, id_, after, **rest):
    return {**entry(id_, after), "type": kind, "summary": "s", "usage": USED, **rest}


@pytest.mark.parametrize("kind", ["compaction", "branch_summary", "usage"])
@pytest.mark.parametrize("after", [500, 60_000])
def test_a_summary_is_a_model_call_of_the_last_model(kind, after):
    """It has no model of its own; it changes nothing in the turn before it, which had ended well."""
    found = read(user("a", 0), reply("b", 100, model="m7"), summary(kind, "c", after), user("d", 99_000))
    calls = found.of(ModelCall)
    assert [(call.model, call.stop, call.cost) for call in calls] == [
        ("m7", "stop", 0.25),
        ("m7", kind, 0.25),
    ]
    assert [turn.status for turn in found.of(Turn) if turn.human] == ["ok", "pending"]
    compactions = [o for o in found.of(Occurred) if o.kind == "compaction"]
    assert len(compactions) == (kind == "compaction")


def test_a_summary_after_a_failure_leaves_it_a_failure():
    """The user moves to another branch at once after an abort."""
    found = read(user("a", 0), reply("b", 100, stop="aborted"), summary("branch_summary", "c", 500))
    assert found.turn.status == "interrupted"


def test_a_summary_long_after_a_failure_did_not_fail():
    """It is work of its own then."""
    found = read(user("a", 0), reply("b", 100, stop="aborted"), summary("compaction", "c", 60_000))
    assert [(turn.human, turn.status) for turn in found.of(Turn)] == [(True, "interrupted"), (False, "ok")]


def test_a_compaction_inside_a_turn_leaves_it_running():
    """Between a result and the next reply."""
    found = read(
        user("a", 0),
        reply("b", 100, "t1"),
        result("c", 200, "t1"),
        summary("compaction", "d", 300, tokensBefore=9000),
        reply("e", 50_000),
    )
    assert found.turn.status == "ok"
    assert found.turn.events[0].attrs == {"pre_tokens": 9000}
    assert len(found.of(ModelCall)) == 3


def test_a_model_change_without_a_line():
    """The model is that of each reply."""
    found = read(user("a", 0), reply("b", 100), user("c", 5000), reply("d", 5100, model="m2"))
    assert [call.model for call in found.of(ModelCall)] == ["m1", "m2"]


ORIGINAL = [header("s1"), user("a", 100), reply("b", 200, "t1"), result("c", 300, "t1"), reply("d", 400)]
FORK = [
    header("s2", 5000, parentSession=PATH),
    *ORIGINAL[1:],
    user("e", 5100),
    summary("compaction", "x", 5150),
    reply("f", 5200),
]


@pytest.mark.parametrize("original_first", [True, False])
def test_a_fork_counts_its_own_lines_only(original_first):
    """Copies have the ids and times of their originals: whichever file is read first, each counts once."""
    found = Read()
    for lines in (ORIGINAL, FORK) if original_first else (FORK, ORIGINAL):
        found.file(*lines, path=f"/h/.pi/agent/sessions/--w--/x_{lines[0]['id']}.jsonl")
    assert len(found.of(Turn)) == 2
    assert len(found.of(ModelCall)) == 4
    assert len(found.of(ToolCall)) == 1


def test_the_same_short_id_at_another_time_is_another_entry():
    """Eight hex digits are not unique over all sessions."""
    found = Read().file(header("s1"), user("a", 0), reply("b", 100))
    found.file(header("s2"), user("a", 7000), reply("b", 7100))
    assert len(found.of(Turn)) == len(found.of(ModelCall)) == 2


def test_an_original_is_older_than_its_fork_in_a_backlog():
    """By the header, since the copies are as old as the original's lines."""
    heads = [json.dumps(lines[0]).encode() for lines in (ORIGINAL, FORK)]
    times = [unit(f"/p/{n}.jsonl", head) for n, head in enumerate(heads)]
    assert times == [(ms_ns(T), "/p/0.jsonl"), (ms_ns(T + 5000), "/p/1.jsonl")]
    assert unit("/p", b"{}") == (0, "/p")


# ------------------------------------------------------------------------- older and foreign files


def without_ids(*lines):
    return [{k: v for k, v in line.items() if k not in ("id", "parentId")} for line in lines]


def test_the_first_format_has_no_ids():
    """Times and what is answered tell its lines apart, also those that a branch copied."""
    old = without_ids(user("a", 0), reply("b", 100, "t1"), result("c", 200, "t1"), reply("d", 300))
    head = {
        "type": "session",
        "id": "o1",
        "timestamp": iso(0),
        "cwd": "C:\\w",
        "provider": "p",
        "modelId": "m",
    }
    found = Read().file(head, *old, path="/h/s/a_o1.jsonl")
    branch = {**head, "id": "o2", "branchedFrom": "C:\\Users\\me\\a_o1.jsonl"}
    found.file(branch, *old, *without_ids(user("e", 9000), reply("f", 9100)), path="/h/s/b_o2.jsonl")
    assert len(found.of(Turn)) == 2
    assert len(found.of(ModelCall)) == 3
    assert len(found.of(ToolCall)) == 1
    assert {turn.context.cwd for turn in found.of(Turn)} == {"C:\\w"}


def test_a_compaction_of_the_first_format_has_no_usage():
    """It is noted, and no call."""
    line = {"type": "compaction", "timestamp": iso(300), "summary": "s", "firstKeptEntryIndex": 3}
    found = read(*without_ids(user("a", 0), reply("b", 100)), line)
    assert [event.name for event in found.turn.events] == ["compaction"]
    assert len(found.of(ModelCall)) == 1


def test_a_model_change_in_one_word():
    """A fork of pi writes provider and model together; a summary before any reply has that model."""
    change = {"type": "model_change", "id": "m", "timestamp": iso(1), "model": "openrouter/anthropic/claude"}
    found = read(header(), change, user("a", 5), summary("usage", "c", 50))
    (call,) = found.of(ModelCall)
    assert (call.model, call.context.provider) == ("anthropic/claude", "openrouter")


def test_a_file_may_begin_without_its_header():
    """An excerpt: the session is that of the file's name."""
    found = read(user("a", 0), reply("b", 100))
    assert found.turn.context.conversation == "01a1ed3c"


def test_lines_that_are_nothing_known_are_passed_over():
    """Labels, custom entries, results of calls that nobody made."""
    odd = [{"type": "label"}, {"type": "custom", "data": {}}, {}, {"type": "message"}, result("r", 50, "zz")]
    assert read(header(), *odd, user("a", 100), reply("b", 200)).turn.status == "ok"


# --------------------------------------------------------------------------------------- subagents


def child(usage, *inner, **rest):
    messages = [{"role": "user", "timestamp": T + 200}, *inner]
    return {
        "agent": "worker",
        "model": "anthropic/m2",
        "exitCode": 0,
        "usage": usage,
        "messages": messages,
        **rest,
    }


def inner(after, **usage):
    made = {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0, "cost": {"total": 0.5}, **usage}
    return {"role": "assistant", "model": "m2", "usage": made, "timestamp": T + after, "stopReason": "stop"}


def delegated(*results, **rest):
    return read(
        header(),
        user("a", 0),
        reply("b", 100, "t1"),
        result("c", 900, "t1", details={"results": list(results)}, **rest),
        reply("d", 1000),
    )


def test_a_subagent_hangs_below_its_call():
    """Its model calls come from the messages in the result, if their sum is what the result says."""
    usage = {"input": 12, "output": 3, "cacheRead": 0, "cacheWrite": 0, "cost": 1.0, "turns": 2}
    found = delegated(child(usage, inner(300, input=10, output=1), inner(500, input=2, output=2)))
    (agent,) = found.of(Subagent)
    assert (agent.name, agent.parent, agent.trace) == ("worker", found.tool("t1").span, found.turn.trace)
    assert (agent.start, agent.end, agent.status) == (ms_ns(T + 200), ms_ns(T + 900), "ok")
    mine = [call for call in found.of(ModelCall) if call.parent == agent.span]
    assert [(call.model, call.usage.input, call.cost) for call in mine] == [("m2", 10, 0.5), ("m2", 2, 0.5)]
    assert (mine[0].start, mine[0].end) == (ms_ns(T + 300), ms_ns(T + 500))
    assert found.turn.usage.input == 212
    assert found.turn.cost == pytest.approx(1.5)


def test_a_subagent_whose_messages_do_not_add_up_is_one_call():
    """The sum counts, once."""
    usage = {"input": 50, "output": 5, "cacheRead": 0, "cacheWrite": 0, "cost": 0.125, "turns": 3}
    found = delegated(child(usage, inner(300, input=10)), child(NONE), child(None))
    (agent,) = found.of(Subagent)
    (mine,) = [call for call in found.of(ModelCall) if call.parent == agent.span]
    assert (mine.model, mine.usage, mine.cost) == ("m2", Usage(input=50, output=5), 0.125)


def test_a_subagent_that_failed():
    """By its own exit code or last reply; the parent's turn goes on."""
    usage = {"input": 1, "output": 1}
    found = delegated(child(usage, exitCode=1), child(usage, stopReason="aborted"))
    assert [agent.status for agent in found.of(Subagent)] == ["error", "interrupted"]
    assert found.turn.status == "ok"


def test_usage_of_a_result_is_counted_once():
    """A tool that called a model itself says so on the result; what the details repeat is not added."""
    found = delegated(child({"input": 7, "output": 7}), usage={**USED, "input": 7})
    assert found.of(Subagent) == []
    assert found.turn.usage.input == 207


@pytest.mark.parametrize(
    "details", [None, 3, [], {"results": 5}, {"results": [1]}, {"results": [{"usage": 2}]}]
)
def test_details_of_other_extensions_are_no_subagents(details):
    """Whatever they hold, the call has its result."""
    found = read(
        user("a", 0), reply("b", 100, "t1"), result("c", 200, "t1", details=details), reply("d", 300)
    )
    assert found.tool("t1").status == "ok"
    assert found.of(Subagent) == []


# ------------------------------------------------------------------------------------- robustness

JUNK = [None, True, -1, 2**70, 0.5, "", "x", [], [1], {}, {"a": [None]}]


@pytest.mark.parametrize("line", [header(), user("a", 0), reply("b", 1, "t"), result("c", 2, "t"), FORK[-2]])
def test_any_value_anywhere_costs_at_most_its_line(line):
    """Every field of every line replaced by junk: refused by the decoder, or read without an error."""
    tried = 0
    for part in (line, line.get("message") or {}, line.get("usage") or {}):
        for name in list(part):
            kept = part[name]
            for part[name] in JUNK:
                try:
                    body = msgspec.json.decode(json.dumps(line), type=Line)
                except msgspec.ValidationError:
                    continue
                reader = PiReader(calls={"t": pi.reader.OpenCall("k", 0, batch=True)})
                sessions = Read().sessions
                sessions.apply(list(reader.read(Record("session", PATH, 0, 0, body))))
                sessions.settle(ms_ns(T + 10**8))
                msgspec.msgpack.encode(reader)
                tried += 1
            part[name] = kept
    assert tried > len(JUNK)


def test_memory_does_not_grow_with_calls():
    """Open calls have an end, also when no result ever comes."""
    reader = PiReader()
    for n in range(3 * KEEP):
        body = msgspec.json.decode(json.dumps(reply(f"r{n}", n, f"t{n}")), type=Line)
        list(reader.read(Record("session", PATH, n, 0, body)))
    assert len(reader.calls) == KEEP


def test_the_row_names_what_is_never_opened():
    """Keys are kept beside the sessions, and outside what the globs can reach."""
    assert ".pi/agent/auth.json" in pi.FORMAT.never
    assert all(files.glob == "*/*.jsonl" for files in pi.FORMAT.files)

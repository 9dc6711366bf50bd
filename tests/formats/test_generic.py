"""The generic log: keys of three parts, repeated records, words for status, usage as written."""

import json
from itertools import count

import msgspec
import pytest

from spantail.config import resolve
from spantail.formats.generic import FORMAT, KEEP, GenericReader, Line
from spantail.formats.times import iso_ns
from spantail.model import (
    SECOND,
    Called,
    Context,
    ModelCall,
    Noted,
    Prompted,
    Record,
    Replied,
    Returned,
    Started,
    ToolCall,
    Turn,
    Usage,
)
from spantail.session.sessions import Sessions
from spantail.session.settle import Rules
from spantail.state.ledger import Ledger
from spantail.tail.finder import Finder

MS = 1_000_000
START = iso_ns("2026-04-02T09:00:00Z")
LINE = msgspec.json.Decoder(Line)


class Log:
    """A log that is written and read line by line; `at` is in milliseconds after nine o'clock."""

    def __init__(self, session="s1", sessions=None):
        self.path = f"/home/x/.agent/sessions/{session}.jsonl"
        self.reader = GenericReader()
        self.sessions = sessions or Sessions(
            Context(agent="generic"),
            Rules(),
            Ledger(),
            lambda *_, **__: None,
            lambda cwd: cwd,
            lambda key: None,
        )
        self.seq = count()
        self.position = 0
        self.outcomes, self.events = [], []

    def add(self, kind, at=0, **fields):
        time = f"2026-04-02T09:{at // 60000:02}:{at // 1000 % 60:02}.{at % 1000:03}Z"
        return self.put({"schema_version": 1, "seq": next(self.seq), "time": time, "type": kind, **fields})

    def put(self, record):
        line = json.dumps(record).encode() + b"\n"
        events = list(self.reader.read(Record("session", self.path, self.position, 0, LINE.decode(line))))
        self.position += len(line)
        self.events += events
        self.sessions.apply(events)
        kept = msgspec.msgpack.encode(self.reader)
        self.reader = msgspec.msgpack.decode(kept, type=GenericReader)
        return self

    def user(self, at=0, turn="turn_1"):
        return self.add("user", at, turn_id=turn, text="go")

    def finished(self, at=0, turn="turn_1", message="msg_1", reason="stop", **fields):
        fields = {"usage": {"input": 10, "output": 2}, **fields}
        return self.add(
            "assistant_finished", at, turn_id=turn, message_id=message, finish_reason=reason, **fields
        )

    def tool(self, at=0, turn="turn_1", call="call_1", name="shell"):
        return self.add("tool_started", at, turn_id=turn, call_id=call, name=name, input={"cmd": call})

    def done(self, at=0, turn="turn_1", call="call_1", status="ok", **fields):
        return self.add("tool_finished", at, turn_id=turn, call_id=call, status=status, **fields)

    def settle(self, now=START + 10**9 * SECOND):
        self.sessions.settle(now)
        self.outcomes += self.sessions.take()
        return self

    def all(self, kind):
        return [event for event in (*self.events, *self.outcomes) if isinstance(event, kind)]


def test_ids_that_repeat_in_each_turn_and_session_are_things_of_their_own():
    """Keys hold session, turn and id; what is shown is the writer's id."""
    log = Log()
    for turn in ("turn_1", "turn_2"):
        log.user(turn=turn).tool(turn=turn).done(turn=turn, duration_ms=3).finished(turn=turn)
    other = Log("s2", log.sessions).user().tool().done().finished()
    log.settle()
    assert [t.id for t in log.all(ToolCall)] == ["call_1"] * 3
    assert [m.response_id for m in log.all(ModelCall)] == ["msg_1"] * 3
    assert len({t.span for t in log.all(ToolCall)}) == len(log.all(Turn)) == 3
    assert other.all(Prompted)[0].turn != log.all(Prompted)[0].turn


def test_a_message_and_a_call_of_the_same_id_are_two_spans():
    """A writer may number both from one."""
    log = Log().user().tool(call="1").done(call="1").finished(message="1").settle()
    assert log.all(ToolCall)[0].span != log.all(ModelCall)[0].span


def test_a_record_written_twice_counts_once_and_gaps_are_fine():
    """The same seq is the same record, even with another content; missing numbers mean nothing."""
    log = Log().user()
    log.put(
        {
            "seq": 7,
            "type": "assistant_finished",
            "turn_id": "turn_1",
            "message_id": "a",
            "finish_reason": "stop",
        }
    )
    log.put(
        {
            "seq": 7,
            "type": "assistant_finished",
            "turn_id": "turn_1",
            "message_id": "b",
            "finish_reason": "stop",
        }
    )
    log.put(
        {
            "seq": 90,
            "type": "assistant_finished",
            "turn_id": "turn_1",
            "message_id": "c",
            "finish_reason": "stop",
        }
    )
    assert [r.id for r in log.all(Replied)] == ["a", "c"]


def test_records_that_swap_places_are_not_taken_for_repetitions():
    """A lower number that was not there yet is new; one older than the window is not."""
    log = Log()
    for seq in (0, 3, 2, 1, 2):
        log.put({"seq": seq, "type": "user", "turn_id": f"t{seq}"})
    assert [p.turn for p in log.all(Prompted)] == ["s1/t0", "s1/t3", "s1/t2", "s1/t1"]
    for seq in range(10, 20 + KEEP):
        log.put({"seq": seq, "type": "context"})
    assert len(log.reader.seen) == KEEP
    log.put({"seq": 3, "type": "user", "turn_id": "again"})
    assert len(log.all(Prompted)) == 4


def test_a_writer_that_begins_again_counts_from_zero():
    """A second meta record with a time of its own; a copy of the first is only a repetition."""
    log = Log().add("session_meta", 0, session_id="s1", model="m").user(10)
    log.seq = count()
    log.add("session_meta", 0, session_id="s1").user(10, "turn_1b")
    assert len(log.all(Prompted)) == 1
    log.seq = count()
    log.add("session_meta", 5000, session_id="s1").user(5010, "turn_2")
    assert [p.turn for p in log.all(Prompted)] == ["s1/turn_1", "s1/turn_2"]


def test_records_without_a_sequence_number_are_read():
    """Nothing to compare: all of them count."""
    log = Log()
    for turn in ("a", "b"):
        log.put({"type": "user", "turn_id": turn, "seq": None})
    assert len(log.all(Prompted)) == 2


@pytest.mark.parametrize(
    ("word", "status", "error_type"),
    [
        ("ok", "ok", ""),
        ("completed", "ok", ""),
        ("error", "error", "tool_error"),
        ("failed", "error", "tool_error"),
        ("some_new_word", "error", "tool_error"),
        ("timeout", "error", "timeout"),
        ("denied", "error", "denied"),
        ("cancelled", "interrupted", "interrupted"),
        ("skipped", "interrupted", "interrupted"),
        ("Interrupted", "interrupted", "interrupted"),
    ],
)
def test_words_for_the_status_of_a_tool(word, status, error_type):
    """Only the good words are ok; those for an end from outside are interruptions."""
    (tool,) = Log().user().tool().done(status=word).settle().all(ToolCall)
    assert (tool.status, tool.error_type) == (status, error_type)


@pytest.mark.parametrize(
    ("fields", "status", "code"),
    [
        ({"status": None, "error": None}, "ok", None),
        ({"status": None, "error": "boom"}, "error", None),
        ({"output": {"exit_code": 1, "text": ""}}, "error", 1),
        ({"output": {"exit_code": 0}}, "ok", 0),
        ({"output": 'say "exit_code" aloud'}, "ok", None),
        ({"exit_code": 3}, "error", 3),
    ],
)
def test_a_tool_failed_if_its_error_or_exit_code_says_so(fields, status, code):
    """A command with a non-zero exit code failed, whatever the writer calls it."""
    (tool,) = Log().user().tool().done(**fields).settle().all(ToolCall)
    assert (tool.status, tool.exit_code) == (status, code)


def test_a_stated_duration_wins_over_the_times():
    """Else the times of the two records tell."""
    log = (
        Log().user().tool(100).done(900, duration_ms=31.5).tool(1000, call="b").done(1009, call="b").settle()
    )
    a, b = log.all(ToolCall)
    assert (a.end - a.start, a.source) == (31_500_000, "stated")
    assert (b.end - b.start, b.source) == (9 * MS, "timestamps")


def test_tools_may_finish_in_any_order():
    """They are paired by id."""
    log = Log().user().tool(1, call="a").tool(2, call="b").done(5, call="b").done(9, call="a").settle()
    assert [(t.id, (t.end - t.start) // MS) for t in log.all(ToolCall)] == [("b", 3), ("a", 8)]


def test_offsets_and_microseconds_are_times():
    """The same moment, however it is written; a record without a time happens with the one before."""
    log = Log().put({"seq": 0, "type": "user", "turn_id": "t", "time": "2026-04-02T11:00:00.123456+02:00"})
    log.put({"seq": 1, "type": "tool_started", "turn_id": "t", "call_id": "c", "time": "yesterday"})
    assert log.all(Prompted)[0].time == log.all(Called)[0].time == START + 123_456_000


def test_usage_is_taken_as_written():
    """Disjoint kinds; reasoning is a part of the output; a cost that is written is reported."""
    usage = {
        "input": 4000,
        "output": 300,
        "cache_read": 3500,
        "cache_write": 120,
        "reasoning": 50,
        "cost": 0.02,
    }
    (call,) = Log().user().finished(usage=usage).settle().all(ModelCall)
    assert call.usage == Usage(input=4000, cache_read=3500, cache_write=120, output=300, reasoning=50)
    assert (call.cost, call.cost_source, call.final) == (0.02, "reported", True)


@pytest.mark.parametrize(
    "usage", [None, {}, {"input": 0, "output": 0}, [], "many", {"input": -5, "output": True}]
)
def test_usage_that_is_not_said_is_not_zero(usage):
    """The call counts, its tokens are unknown."""
    (call,) = Log().user().finished(usage=usage).settle().all(ModelCall)
    assert call.usage is None


def test_the_model_is_that_of_the_message_else_of_the_session():
    """The start of the same message in the same turn says it."""
    log = Log().add(
        "session_meta", session_id="s1", model="of-session", provider="prov", cwd="/repo", app_version="3"
    )
    log.user(1).add("assistant_started", 5, turn_id="turn_1", message_id="msg_1", model="of-message")
    log.finished(9).finished(12, message="msg_2").settle()
    first, second = log.all(ModelCall)
    assert (first.model, second.model) == ("of-message", "of-session")
    assert (first.end - first.start) // MS == 4
    assert log.all(Started)[0].provider == first.context.provider == "prov"
    assert (first.context.cwd, first.context.version) == ("/repo", "3")


def test_a_reply_that_never_finishes_is_no_model_call():
    """Its turn stays open, and is pending in the end."""
    log = Log().user().add("assistant_started", 5, turn_id="turn_1", message_id="m").settle()
    assert log.all(ModelCall) == []
    assert [(t.status, t.exit) for t in log.all(Turn)] == [("pending", "unknown")]


def test_a_failed_reply_without_usage_is_no_model_call():
    """Nothing was answered and nothing was paid."""
    log = Log().user().finished(reason="error", usage={"input": 0, "output": 0}).settle()
    assert log.all(ModelCall) == []


def test_cancelling_a_turn_interrupts_its_open_calls():
    """At once: nobody waits for their results."""
    log = (
        Log()
        .user()
        .tool(10)
        .add("cancelled", 2000, turn_id="turn_1", reason="user")
        .settle(START + 5 * SECOND)
    )
    (tool,), (turn,) = log.all(ToolCall), log.all(Turn)
    assert (tool.status, tool.error_type, (tool.end - tool.start) // MS) == (
        "interrupted",
        "interrupted",
        1990,
    )
    assert (turn.status, turn.exit, turn.word) == ("interrupted", "interrupted", "user")


def test_what_is_written_after_the_cancellation_does_not_bring_the_turn_back():
    """The part of a reply that had come, with its usage, and the end of the killed tool."""
    log = Log().user().tool(10).add("cancelled", 100, turn_id="turn_1")
    log.done(110, status="ok").finished(120, reason="stop").settle()
    assert [t.status for t in log.all(ToolCall)] == ["interrupted"]
    assert len(log.all(ModelCall)) == 1
    assert [(t.status, t.word) for t in log.all(Turn)] == [("interrupted", "cancelled")]


@pytest.mark.parametrize(
    ("reason", "error", "exit_", "error_type", "noted"),
    [
        ("provider_error", "500 internal error", "error", "provider_error", ["500"]),
        ("rate_limit", None, "error", "provider_error", ["rate_limit"]),
        ("max_turns", None, "max_turns", "max_turns", []),
        ("budget_exceeded", None, "max_budget", "max_budget", []),
        ("The disk is full: /home/x", "ENOSPC", "error", "_OTHER", []),
        (None, None, "error", "_OTHER", []),
    ],
)
def test_why_a_turn_failed(reason, error, exit_, error_type, noted):
    """Known reasons have their error type; a free text is not shown."""
    log = Log().user().add("failed", 3000, turn_id="turn_1", reason=reason, error=error).settle()
    (turn,) = log.all(Turn)
    assert (turn.status, turn.exit, turn.error_type) == ("error", exit_, error_type)
    assert [n.error_type for n in log.all(Noted)] == noted
    assert " " not in turn.word


def test_a_turn_ends_with_the_reply_that_asks_for_nothing():
    """Two seconds after it, and not after one that asks for a tool."""
    log = Log().user().finished(10, reason="tool_use").settle(START + 9 * SECOND)
    assert log.all(Turn) == []
    log.finished(9000, message="m2").settle(START + 12 * SECOND)
    assert [t.status for t in log.all(Turn)] == ["ok"]


def test_a_call_after_the_last_reply_leaves_the_turn_ended():
    """The loop was over; the call is over as well."""
    log = Log().user().finished(10).tool(20).done(1500).settle(START + 10 * SECOND)
    (turn,), (call,) = log.all(Turn), log.all(ModelCall)
    assert (turn.status, turn.exit) == ("ok", "success")
    assert call.end == START + 10 * MS


def test_a_turn_goes_on_when_another_reply_begins():
    """What looked like the last reply was none; killed in the next, the turn is not ok."""
    log = Log().user().finished(10)
    log.add("assistant_started", 500, turn_id="turn_1", message_id="m2").settle(START + 10 * SECOND)
    assert log.all(Turn) == []
    log.finished(20_000, message="m2").settle(START + 30 * SECOND)
    assert [(t.human, t.status) for t in log.all(Turn)] == [(True, "ok")]
    assert len(log.all(ModelCall)) == 2


def test_another_schema_is_told_and_read_on():
    """On any record; the loop asks the reader."""
    log = Log().add("session_meta", session_id="s1").user()
    assert log.reader.newer_schema == ""
    log.put({"schema_version": "2.1", "seq": 50, "type": "user", "turn_id": "t2"})
    assert log.reader.newer_schema == "2.1"
    assert len(log.all(Prompted)) == 2


def test_records_that_tell_nothing_are_passed_over():
    """Names, context, reasoning, deltas and types to come."""
    log = Log()
    for kind in ("context", "reasoning_finished", "session_renamed", "assistant_delta", "new", None, 3, []):
        log.put({"type": kind, "title": "x", "turn_id": "t"})
    assert log.events == []


ODD = [None, True, -1, 1e300, 10**30, "", "x", [], [None, 3], {}, {"input": [], "exit_code": "x"}]
KINDS = ("session_meta", "user", "assistant_started", "assistant_finished", "tool_started", "tool_finished")


@pytest.mark.parametrize("kind", [*KINDS, "cancelled", "failed"])
@pytest.mark.parametrize("odd", ODD, ids=repr)
def test_any_value_may_be_of_any_type(kind, odd):
    """A field that is not as expected costs itself, never the reader, its memory or the commit."""
    fields = [name for name in Line.__struct_fields__ if name != "type"]
    log = Log().add("session_meta", session_id="s1").put({"type": kind, **dict.fromkeys(fields, odd)})
    for name in fields:
        log.put({"type": kind, "time": "2026-04-02T09:00:01Z", name: odd})
    log.seq = count(1000)
    log.user(5000, "last").finished(6000, "last").settle()
    assert log.all(Turn)[-1].status == "ok"


def test_the_first_bytes_say_when_a_session_began():
    """A backlog is read in the order of the sessions."""
    unit = FORMAT.files[0].unit
    assert unit("/x/s1.jsonl", b'{"seq": 0, "time": "2026-04-02T11:00:00+02:00", "type"') == (START, "s1")
    assert unit("/x/s1.jsonl", b"") == (0, "s1")


def test_logs_in_a_folder_that_the_user_names(tmp_path):
    """`--generic-root`: nothing says where programs of one's own keep their logs."""
    config = resolve({"generic_root": [f"{tmp_path}/logs"]}, {"HOME": f"{tmp_path}/home"}, _no_file)
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs/s1.jsonl").touch()
    assert FORMAT.roots_setting
    further = {FORMAT.agent: getattr(config, FORMAT.roots_setting)}
    look = Finder([FORMAT], config.homes, own_home=True, environ={}, extra=further)
    assert [source.path for source in look.scan()] == [f"{tmp_path}/logs/s1.jsonl"]


@pytest.mark.parametrize(("setting", "expected"), [("uncached", [4000, 90]), ("all", [380, 90])])
def test_whether_input_holds_the_cache_is_set(setting, expected):
    """The format leaves it open. Less than the cache alone cannot hold it; what is set is kept with the log."""
    reader = FORMAT.told(setting).files[0].reader()
    log = Log()
    log.reader = reader
    log.user().finished(10, usage={"input": 4000, "output": 3, "cache_read": 3500, "cache_write": 120})
    log.user(turn="t2").finished(20, turn="t2", usage={"input": 90, "output": 3, "cache_read": 3500}).settle()
    assert [call.usage.input for call in log.all(ModelCall)] == expected
    stored = msgspec.msgpack.decode(msgspec.msgpack.encode(reader), type=GenericReader)
    assert stored.setting == setting


def _no_file(path):
    raise FileNotFoundError(path)


def test_memory_stays_small():
    """Replies and calls that never end are forgotten."""
    log = Log().user()
    for n in range(3 * KEEP):
        log.tool(call=f"c{n}").add("assistant_started", turn_id="turn_1", message_id=f"m{n}")
    assert len(msgspec.msgpack.encode(log.reader)) < 20_000
    assert not log.all(Returned)

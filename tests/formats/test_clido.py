"""clido: a format without times, ids of messages or tokens, in the two variants it is written in."""

import json

import msgspec
import pytest

from spantail.formats.clido import FORMAT
from spantail.formats.clido.lines import OUTCOMES, Line
from spantail.formats.clido.reader import ClidoReader
from spantail.model import (
    SECOND,
    Called,
    Closed,
    Context,
    Ended,
    Measured,
    ModelCall,
    Noted,
    Occurred,
    Prompted,
    Record,
    Replied,
    Returned,
    RunEnded,
    RunStarted,
    Started,
    ToolCall,
    Turn,
    UsageAdded,
)
from spantail.session.sessions import Sessions
from spantail.session.settle import Rules
from spantail.state.ledger import Ledger

MS = 1_000_000
START = 1_774_103_400 * SECOND  # 2026-03-21T14:30:00Z
LATER = START + 3_600 * SECOND
META = {
    "type": "meta",
    "session_id": "73ab4876773447c187fde805ec99108d",
    "schema_version": 1,
    "start_time": "2026-03-21T14:30:00Z",
    "project_path": "/repo/shop",
}
PATH = "/home/x/.local/share/clido/sessions/abc/73ab4876773447c187fde805ec99108d.jsonl"
LINE = msgspec.json.Decoder(Line)


def user(text="go"):
    return {"type": "user_message", "role": "user", "content": [{"type": "text", "text": text}]}


def reply(*tools, text="Sure."):
    blocks = [{"type": "tool_use", "id": id_, "name": "Bash", "input": {"command": id_}} for id_ in tools]
    return {"type": "assistant_message", "content": [{"type": "text", "text": text}, *blocks]}


def call(id_):
    return {"type": "tool_call", "tool_use_id": id_, "tool_name": "Bash", "input": {"command": id_}}


def outcome(id_, ms=None, *, error=False, content="done"):
    line = {"type": "tool_result", "tool_use_id": id_, "content": content, "is_error": error}
    return line if ms is None else {**line, "duration_ms": ms}


def result(word="success", cost=0.01, ms=1000):
    return {"type": "result", "exit_status": word, "total_cost_usd": cost, "num_turns": 9, "duration_ms": ms}


class File:
    """A session file that grows, is cut and is read again, as the tail would."""

    def __init__(self, path=PATH, sessions=None):
        self.path = path
        self.data = b""
        self.read_to = 0
        self.reader = ClidoReader()
        self.sessions = sessions or Sessions(
            Context(agent="clido"), Rules(), Ledger(), lambda *a: None, lambda cwd: cwd, lambda key: None
        )
        self.outcomes = []
        self.events = []

    def add(self, *lines, arrival=0):
        self.data += b"".join(json.dumps(line).encode() + b"\n" for line in lines)
        return self.take(arrival)

    def cut(self, size):
        self.data = self.data[:size]
        self.read_to, self.reader = 0, self.reader.again()

    def take(self, arrival=0):
        at = self.read_to
        for line in self.data[at:].splitlines(keepends=True):
            events = list(self.reader.read(Record("session", self.path, at, arrival, LINE.decode(line))))
            self.events += events
            self.sessions.apply(events)
            at += len(line)
            kept = msgspec.msgpack.encode(self.reader)
            self.reader = msgspec.msgpack.decode(kept, type=ClidoReader)
        self.read_to = at
        return self

    def settle(self, now=START + 10**9 * SECOND):
        self.sessions.settle(now)
        self.outcomes += self.sessions.take()
        return self

    def all(self, kind):
        return [event for event in (*self.events, *self.outcomes) if isinstance(event, kind)]


def test_a_file_found_at_start_runs_from_its_start_time_by_the_durations_it_states():
    """Order and stated durations are right; the turn is as long as the result says."""
    file = (
        File().add(META, user(), reply("a"), call("a"), outcome("a", 1507), reply(), result(ms=9000)).settle()
    )
    (tool,), (turn,) = file.all(ToolCall), file.all(Turn)
    assert tool.end - tool.start == 1507 * MS
    assert tool.source == "stated"
    assert START < turn.start < tool.start < tool.end < turn.end
    assert turn.end - turn.start == pytest.approx(9 * SECOND, abs=MS)


def test_a_tool_without_a_duration_in_a_file_without_times_is_an_estimate():
    """Nothing is known about how long it took, and the span says so."""
    file = File().add(META, user(), reply("a"), outcome("a", error=True)).settle()
    (tool,) = file.all(ToolCall)
    assert (tool.source, tool.status) == ("estimate", "error")
    assert tool.end - tool.start < MS


def test_the_arrival_of_a_line_is_its_time():
    """Live, the clock of the reader is that of the lines: a stated duration ends at the arrival."""
    file = File().add(META, user(), arrival=LATER)
    file.add(reply("a", "b"), call("a"), call("b"), arrival=LATER + 5 * SECOND)
    file.add(outcome("a", 2000), arrival=LATER + 9 * SECOND)
    file.add(outcome("b"), arrival=LATER + 9 * SECOND)
    file.settle()
    (prompt,), (reply_,) = file.all(Prompted), file.all(Replied)
    a, b = file.all(ToolCall)
    assert prompt.time == pytest.approx(LATER, abs=MS)
    assert reply_.time == LATER + 5 * SECOND
    assert (a.end, a.start, a.source) == (LATER + 9 * SECOND, LATER + 7 * SECOND, "stated")
    assert (b.source, b.end - b.start) == ("timestamps", pytest.approx(4 * SECOND, abs=MS))


def test_lines_that_arrive_at_once_say_nothing_about_the_time_between():
    """A call and its result in one read: without a stated duration that is an estimate."""
    file = File().add(META, user(), reply("a"), call("a"), outcome("a"), arrival=LATER).settle()
    (tool,) = file.all(ToolCall)
    assert tool.source == "estimate"


def test_what_was_written_while_nobody_followed_goes_on_from_the_last_arrival():
    """After a restart the lines found have no arrival; they come after those that had one."""
    file = File().add(META, user(), reply("a"), arrival=LATER)
    file.add(outcome("a", 3000), reply(), arrival=0).settle()
    (tool,) = file.all(ToolCall)
    assert tool.end == pytest.approx(LATER + 3 * SECOND, abs=MS)
    assert file.all(Replied)[-1].time > tool.end


def test_a_wrong_start_time_does_not_hold_up_the_clock():
    """A start in the future is forgotten at the first arrival."""
    file = File().add({**META, "start_time": "2026-03-22T14:30:00Z"})
    file.add(user(), arrival=START)
    assert file.all(Prompted)[0].time == START


def test_a_long_run_of_a_file_found_at_start_is_not_taken_for_silence():
    """Hours of which only the result tells: the turn ends with its result, not as pending."""
    file = File().add(META, user(), reply("a"), outcome("a", 5), result("budget_exceeded", ms=3 * 3_600_000))
    (turn,) = file.settle().all(Turn)
    assert (turn.status, turn.exit) == ("error", "max_budget")
    assert turn.end - turn.start == pytest.approx(3 * 3600 * SECOND, abs=MS)


def test_results_of_a_batch_each_begin_where_they_were_asked_for():
    """All results stand together after the batch; their durations are their own."""
    file = (
        File()
        .add(META, user(), reply("a", "b"), call("a"), call("b"), outcome("a", 3), outcome("b", 40), reply())
        .settle()
    )
    assert [(t.end - t.start) // MS for t in file.all(ToolCall)] == [3, 40]


def test_a_tool_call_line_is_no_second_call_and_no_repeated_one():
    """It repeats a block of the reply before it; only asking twice the same is a repetition."""
    file = File().add(META, user(), reply("a"), call("a"), outcome("a", 1), reply()).settle()
    (tool,) = file.all(ToolCall)
    assert (tool.id, tool.name, tool.repeated) == ("a", "Bash", False)
    assert len(file.all(Called)) == 1


def test_a_tool_call_whose_reply_was_lost_counts():
    """The reply's line was corrupt; the call line alone names the call."""
    file = File().add(META, user(), call("a"), outcome("a", 1)).settle()
    assert [t.id for t in file.all(ToolCall)] == ["a"]


def test_ids_that_repeat_in_a_session_are_calls_of_their_own():
    """Some providers number the calls of each reply from zero."""
    file = (
        File()
        .add(
            META,
            user(),
            reply("call_0", text="1"),
            outcome("call_0", 1),
            reply("call_0", text="2"),
            outcome("call_0", 2),
        )
        .settle()
    )
    assert [(t.end - t.start) // MS for t in file.all(ToolCall)] == [1, 2]


def test_results_inside_a_user_message_are_no_turn_and_no_second_result():
    """They repeat the lines before; where there was no such line, they are the result."""
    again = {"type": "tool_result", "tool_use_id": "a", "content": "x", "is_error": True}
    other = {"type": "tool_result", "tool_use_id": "b", "content": "x", "is_error": True}
    file = File().add(META, user(), reply("a", "b"), outcome("a", 4))
    file.add({"type": "user_message", "role": "user", "content": [again, other]}, reply()).settle()
    assert len(file.all(Turn)) == 1
    assert [(t.id, t.status) for t in file.all(ToolCall)] == [("a", "ok"), ("b", "error")]


def test_a_prompt_with_a_picture_and_one_that_is_plain_text_are_turns():
    """A text block anywhere makes a prompt; so does a text instead of blocks."""
    picture = {"type": "user_message", "content": [{"type": "image"}, {"type": "text", "text": "this?"}]}
    plain = {"type": "user_message", "content": "and this?"}
    empty = {"type": "user_message", "content": ""}
    assert len(File().add(META, picture, reply(), plain, reply(), empty).settle().all(Turn)) == 2


@pytest.mark.parametrize("word", [*OUTCOMES, "error", "a_new_word"])
def test_every_exit_word_has_its_exit_and_is_kept(word):
    """Both lists of words map into ours; unknown words are errors. The raw word stays."""
    exits = {"success": "ok", "interrupted": "interrupted"}
    exit_ = OUTCOMES.get(word, ("error", "", ""))[0]
    file = File().add(META, user(), reply("a"), outcome("a", 1), result(word)).settle()
    (turn,), (ended,) = file.all(Turn), file.all(RunEnded)
    assert (turn.exit, turn.word, ended.exit) == (exit_, word, exit_)
    assert turn.status == exits.get(exit_, "error")
    assert bool(turn.error_type) == (turn.status != "ok")


def test_the_words_of_the_limits_become_the_limits():
    """A budget per turn is a budget; a wall clock is none of the limits."""
    assert OUTCOMES["per_turn_budget_exceeded"][0] == "max_budget"
    assert OUTCOMES["max_turns_reached"][0] == "max_turns"
    assert OUTCOMES["max_wall_time_exceeded"][0] == "error"


def test_without_a_result_a_call_stays_pending_and_the_exit_is_unknown():
    """Killed: nothing after the call."""
    file = File().add(META, user(), reply("a"), call("a")).settle()
    (tool,), (turn,), (ended,) = file.all(ToolCall), file.all(Turn), file.all(RunEnded)
    assert (tool.status, turn.exit, ended.exit) == ("pending", "unknown", "unknown")


@pytest.mark.parametrize(("word", "status"), [("interrupted", "interrupted"), ("doom_loop", "pending")])
def test_a_call_open_at_the_result_ends_with_it(word, status):
    """Nothing comes for it any more; only the word `interrupted` says that it was cut off."""
    file = File().add(META, user(), reply("a"), result(word))
    file.settle(START + 60 * SECOND)
    assert [t.status for t in file.all(ToolCall)] == [status]


def test_turns_of_one_run_end_at_the_next_prompt_or_by_themselves():
    """The result may come once, at the end of many turns: those before it were answered."""
    file = File().add(META, user("1"), reply(), user("2"), reply(), user("3"), reply(), result()).settle()
    assert [(t.status, t.exit) for t in file.all(Turn)] == [("ok", "success")] * 3
    assert (len(file.all(RunStarted)), len(file.all(RunEnded))) == (1, 1)


def test_live_a_reply_that_asks_for_no_tool_ends_the_turn():
    """A prompt loop writes its result at its end only: the turn must not wait for it."""
    file = File().add(META, user(), reply(), arrival=LATER).settle(LATER + 3 * SECOND)
    assert [t.status for t in file.all(Turn)] == ["ok"]


def test_lines_after_a_result_are_a_new_run():
    """A resumed session has several runs, each with its exit."""
    file = File().add(META, user("1"), reply(), result("completed", 0.004))
    file.add(user("2"), reply("a"), outcome("a", 1), result("stall_detected", 0.006)).settle()
    assert [r.exit for r in file.all(RunEnded)] == ["success", "error"]
    assert len(file.all(RunStarted)) == 2


@pytest.mark.parametrize(
    ("totals", "cost"),
    [([0.004, 0.009, 0.009], 0.009), ([0.004, 0.001], 0.005), ([0.0], 0.0), ([None, "x", -1, 0.002], 0.002)],
)
def test_a_total_that_grew_adds_the_difference_and_one_that_fell_adds_itself(totals, cost):
    """Totals of the process and of the run, told apart as far as the file does; no total is no cost."""
    file = File().add(META)
    for n, total in enumerate(totals):
        file.add(user(str(n)), reply(), result(cost=total))
    file.settle()
    assert sum(u.cost for u in file.all(UsageAdded)) == pytest.approx(cost)
    assert sum(t.cost or 0 for t in file.all(Turn)) == pytest.approx(cost)


def test_model_calls_have_neither_usage_nor_model():
    """The format has no tokens: they are absent, not zero."""
    file = File().add(META, user(), reply("a"), outcome("a", 1), reply(), result()).settle()
    assert [(m.usage, m.model, m.cost) for m in file.all(ModelCall)] == [(None, "", None)] * 2


def test_a_rolled_back_turn_gives_way_to_what_grows_there():
    """The file is cut and read anew: what stays is not counted again, what is new is counted."""
    file = File().add(META, user("1"), reply("a"), outcome("a", 1), reply(), result(cost=0.01), arrival=LATER)
    file.settle(LATER)
    kept = len(file.data)
    file.add(user("2"), reply("b"), outcome("b", 1), arrival=LATER + SECOND).settle(LATER + SECOND)
    file.cut(kept)
    file.take(LATER + 2 * SECOND).settle(LATER + 2 * SECOND)
    file.add(user("other"), reply("c"), outcome("c", 1), reply(), arrival=LATER + 3 * SECOND)
    file.add(result(cost=0.03), arrival=LATER + 3 * SECOND).settle()
    assert [t.id for t in file.all(ToolCall)] == ["a", "b", "c"]
    assert [t.status for t in file.all(Turn)] == ["ok", "pending", "ok"]
    assert len(file.all(ModelCall)) == 5
    assert sum(u.cost for u in file.all(UsageAdded)) == pytest.approx(0.03)


@pytest.mark.parametrize("later", [False, True])
def test_the_same_prompt_after_a_rollback(later):
    """Seen with the cut it is the turn that was open, which goes on; seen after it, it is a turn of its own. What
    stands before the cut neither ends the open turn nor its run."""
    file = File().add(META, user("1"), reply("a"), outcome("a", 1), reply(), result(cost=0.01), arrival=LATER)
    file.settle(LATER)
    kept = len(file.data)
    failing = (user("2"), reply("b"), outcome("b", 1))
    file.add(*failing, arrival=LATER + SECOND).settle(LATER + SECOND)
    file.cut(kept)
    if later:
        file.take(LATER + 2 * SECOND).settle(LATER + 2 * SECOND)
        assert len(file.all(Turn)) == 1  # the one that failed is open
    again = (user("2"), reply("b"), outcome("b", 2), reply("c"), outcome("c", 3), reply(), result(cost=0.03))
    file.add(*again, arrival=LATER + 3 * SECOND).settle()
    turns = file.all(Turn)
    assert [t.status for t in turns] == (["ok", "pending", "ok"] if later else ["ok", "ok"])
    assert all(t.human for t in turns)
    assert turns[-1].tools == 2
    ids = [t.id for t in file.all(ToolCall)]
    assert ids == (["a", "b", "b", "c"] if later else ["a", "b", "c"])
    assert len({(o.trace, o.span) for o in file.all(Turn) + file.all(ToolCall)}) == len(turns) + len(ids)
    assert [run.exit for run in file.all(RunEnded)] == ["success", "success"]
    assert sum(u.cost for u in file.all(UsageAdded)) == pytest.approx(0.03)


def test_a_prompt_given_three_times():
    """Each rollback that was seen makes the same words another turn."""
    file = File().add(META, arrival=LATER)
    kept = len(file.data)
    for attempt in range(3):
        file.cut(kept)
        file.take(LATER + 2 * attempt * SECOND)
        file.add(user("1"), reply("a"), arrival=LATER + (2 * attempt + 1) * SECOND)
    file.add(outcome("a", 1), reply(), result(), arrival=LATER + 9 * SECOND).settle()
    assert sorted(t.status for t in file.all(Turn)) == ["ok", "pending", "pending"]
    assert len({t.trace for t in file.all(Turn)}) == 3


def test_long_histories_are_passed_over():
    """More turns than are remembered stand before the one that is cut off."""
    before = [line for n in range(40) for line in (user(str(n)), reply(), result(cost=0.01))]
    file = File().add(META, *before, arrival=LATER).settle(LATER)
    kept = len(file.data)
    file.add(user("fails"), reply("b"), arrival=LATER + SECOND).settle(LATER + SECOND)
    file.cut(kept)
    file.add(user("works"), reply(), result(cost=0.02), arrival=LATER + 2 * SECOND).settle()
    assert [t.status for t in file.all(Turn)][39:] == ["ok", "pending", "ok"]
    assert len(msgspec.msgpack.encode(file.reader)) < 4096


def test_another_session_in_the_place_of_one():
    """A file that is replaced is read as what it is, whatever was known of the other."""
    file = File().add(META, user("1"), reply("a"), outcome("a", 1), reply(), result(), arrival=LATER)
    file.settle(LATER)
    file.cut(0)
    other = {**META, "session_id": "other"}
    file.add(other, user("1"), reply("a"), outcome("a", 1), reply(), result(), arrival=LATER + SECOND)
    file.settle()
    assert [t.context.conversation for t in file.all(Turn)] == [META["session_id"], "other"]
    assert len(file.all(ToolCall)) == 2


def test_a_fork_is_not_counted_again():
    """It has a meta line of its own, then all lines of its original; its own turns come after."""
    lines = (META, user("1"), reply("a"), outcome("a", 1), reply(), result())
    first = File().add(*lines).settle()
    own = {**META, "session_id": "fork", "start_time": "2026-03-21T15:30:00.123456+00:00"}
    fork = File("/x/fork.jsonl", first.sessions).add(own, *lines).settle()
    assert fork.all(Started)[-1].copied_from != fork.all(Started)[-1].session == "fork"
    assert not fork.all(ToolCall)
    assert not fork.all(ModelCall)
    assert not fork.all(Turn)
    fork.add(user("2"), reply("b"), outcome("b", 1)).settle()
    assert [(t.id, t.context.conversation) for t in fork.all(ToolCall)] == [("b", "fork")]


def test_a_system_error_that_is_retried_is_a_retry():
    """No failure of the turn; one that is not retried is an error of the provider."""
    retry = {
        "type": "system",
        "subtype": "error",
        "message": "Provider error: rate limit exceeded, retrying in 5s",
    }
    plain = {"type": "system", "subtype": "error", "message": "Provider error: boom"}
    packed = {"type": "system", "subtype": "compaction", "message": "Context compacted: 42 turns → 1 summary"}
    info = {"type": "system", "subtype": "info"}
    file = File().add(META, user(), retry, plain, packed, info, reply(), result()).settle()
    kinds = [(n.kind, n.error_type) for n in file.all(Noted)]
    assert kinds == [("retry", "rate_limit"), ("provider_error", "provider_error"), ("compaction", "")]
    assert [o.kind for o in file.all(Occurred)] == ["provider_error", "compaction"]
    assert file.all(Turn)[0].status == "ok"


@pytest.mark.parametrize(
    ("content", "error_type", "code"),
    [
        ("Exit code 2\nls: no such file", "tool_error", 2),
        ("exit code 1", "tool_error", 1),
        ("Command timed out", "timeout", None),
        ("User denied tool 'Bash'.", "denied", None),
        ("Permission denied by rule: no", "denied", None),
        ("cat: x: Permission denied", "tool_error", None),
    ],
)
def test_the_first_words_of_a_failed_result_say_how_it_failed(content, error_type, code):
    """As the agent's own tools write them."""
    file = File().add(META, user(), reply("a"), outcome("a", 1, error=True, content=content))
    (returned,) = file.all(Returned)
    assert (returned.error_type, returned.exit_code) == (error_type, code)


def test_another_schema_is_told_and_read_on():
    """The loop asks the reader; the lines are read as far as they can be."""
    file = File().add({**META, "schema_version": 2}, user(), reply()).settle()
    assert file.reader.newer_schema == "2"
    assert len(file.all(Turn)) == 1
    assert File().add(META).reader.newer_schema == ""


def test_without_a_meta_line_the_file_names_the_session():
    """The meta line was corrupt: id from the name, no folder, no time."""
    file = File().add(user(), reply(), result()).settle()
    assert {e.session for e in file.events} == {"73ab4876773447c187fde805ec99108d"}
    assert len(file.all(Turn)) == 1


ODD = [None, True, -1, 1e300, 10**30, "", "x", [], [None, 3, {"type": []}], {}, {"type": "text"}]


@pytest.mark.parametrize(
    "kind", ["meta", "user_message", "assistant_message", "tool_call", "tool_result", "system", "result"]
)
@pytest.mark.parametrize("odd", ODD, ids=repr)
def test_any_value_may_be_of_any_type(kind, odd):
    """A field that is not as expected costs itself, never the reader, its memory or the commit."""
    fields = [name for name in Line.__struct_fields__ if name != "type"]
    file = File().add(META, user(), reply("a"), {"type": kind, **dict.fromkeys(fields, odd)})
    for name in fields:
        file.add({"type": kind, name: odd})
    file.add({"type": odd}, user("2"), reply(), result()).settle()
    assert "ok" in {t.status for t in file.all(Turn)}


def test_the_row_names_what_is_never_opened_and_where_sessions_are():
    """Keys of providers lie beside the sessions on one system, in a folder of their own on the other."""
    assert ".config/clido/**" in FORMAT.never
    assert "Library/Application Support/clido/credentials" in FORMAT.never
    assert [(root.env, root.below) for root in FORMAT.roots] == [
        ("CLIDO_DATA_DIR", "sessions"),
        ("", ""),
        ("CLIDO_SESSION_DIR", ""),
    ]


def test_the_first_bytes_say_when_a_session_began():
    """A backlog reads an original before its fork."""
    head = json.dumps({**META, "start_time": "2026-03-21T15:30:00.5+01:00"}).encode()
    assert FORMAT.files[0].unit(PATH, head) == (START + SECOND // 2, META["session_id"])
    assert FORMAT.files[0].unit(PATH, b"{}")[0] == 0


def test_the_events_of_a_result_are_in_order():
    """The cost belongs to the turn that the result closes."""
    file = File().add(META, user(), reply(), result("completed"))
    assert [type(e) for e in file.events[-3:]] == [Measured, Closed, Ended]

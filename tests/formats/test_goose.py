"""Goose's traps, in databases written as Goose writes them, and in the files it had before."""

import json

import msgspec
import pytest
from goose_database import MESSAGE, SESSION, Goose, clock, request, response, text
from hypothesis import given, settings
from hypothesis import strategies as st
from test_goose_live import Follower, spans, tokens, whole

from spantail.formats.goose import FORMAT, unit
from spantail.formats.goose.queries import queries
from spantail.formats.goose.reader import SCHEMA, GooseReader
from spantail.formats.goose.shapes import Line
from spantail.formats.queries import Row
from spantail.model import (
    Closed,
    Measured,
    Occurred,
    Record,
    RunStarted,
    Subagent,
    ToolCall,
    Turn,
    Usage,
    UsageAdded,
)

T0 = 1_763_450_000
"""Seconds; all times in these tests are counted from here."""
S = "20251118_1"
SECRETS = (
    "extension_data",
    "recipe_json",
    "user_recipe_values_json",
    "description",
    "name,",
    "thread_messages",
)


@pytest.fixture
def path(tmp_path):
    (tmp_path / "sessions").mkdir()
    return tmp_path / "sessions" / "sessions.db"


@pytest.fixture
def goose(path):
    agent = Goose(path)
    yield agent
    agent.close()


def of(outcomes, kind):
    return [outcome for outcome in outcomes if isinstance(outcome, kind)]


def tools(outcomes):
    return {tool.id: tool for tool in of(outcomes, ToolCall)}


def seconds(span):
    return (span.end - span.start) / 1e9


def talk(goose, session=S, at=T0, words="Do it"):
    """A turn with one tool call, two model calls and 300 + 30 tokens."""
    goose.say(session, "user", at, text(words))
    goose.usage(session, at + 1, 100, 10)
    goose.say(session, "assistant", at + 2, request(f"t{at}"))
    goose.say(session, "user", at + 1, response(f"t{at}"), stored=at + 2)
    goose.usage(session, at + 3, 300, 30)
    goose.say(session, "assistant", at + 3, text("Done"))


# ------------------------------------------------------------------------------------- schemas


@pytest.mark.parametrize("version", range(1, 16))
def test_every_schema_gives_the_same_turn(path, version):
    """Columns are probed: what a version does not have is not known, and nothing else changes."""
    goose = Goose(path, version)
    goose.session(S, T0)
    talk(goose)
    follower = Follower(path)
    follower.read()
    (turn,) = of(outcomes := follower.end(), Turn)
    goose.close()
    assert (turn.status, turn.exit, turn.tools, seconds(turn)) == ("ok", "success", 1, 3)
    assert turn.usage == Usage(input=300, output=30)
    assert turn.context.provider == ("anthropic" if version >= 6 else "")
    assert [added.model for added in of(outcomes, UsageAdded)] == [
        "claude-sonnet-4-5" if version >= 6 else ""
    ]
    assert follower.said == []
    assert follower.reader.newer_schema == ""


def test_a_newer_schema_is_said_and_read(path):
    """New columns and tables are left alone, what is known of them is read."""
    goose = Goose(path, SCHEMA + 3)
    goose.db.execute("CREATE TABLE thread_messages (session_id, message_id, role, content_json)")
    goose.db.execute("ALTER TABLE sessions ADD COLUMN something_new")
    goose.session(S, T0)
    talk(goose)
    follower = Follower(path)
    follower.read()
    goose.close()
    assert follower.reader.newer_schema == str(SCHEMA + 3)
    assert len(of(follower.end(), Turn)) == 1


def test_another_program_s_tables_are_no_trouble():
    """What is missing is left out, down to a database with nothing in it."""
    assert queries({}) == ()
    assert [query.kind for query in queries({"sessions": frozenset({"id"})})] == ["new"]
    assert queries({"messages": frozenset({"id", "role"})}) == ()


def test_a_migration_is_noticed(path):
    """Columns that come while the database is followed are used, and ids that Goose then makes of the places
    of rows change nothing: nothing is counted twice when the rows are inserted again."""
    goose = Goose(path, 3)
    goose.session(S, T0)
    talk(goose)
    follower = Follower(path)
    follower.read()
    follower.settle()
    goose.db.execute("ALTER TABLE messages ADD COLUMN message_id TEXT")
    goose.db.execute("UPDATE messages SET message_id = 'msg_' || session_id || '_' || id")
    goose.version = 7
    for name, since in SESSION.items():
        if 3 < since <= 7:
            goose.db.execute(f"ALTER TABLE sessions ADD COLUMN {name}")
    talk(goose, at=T0 + 60, words="More")
    goose.compact(S, T0 + 90)
    talk(goose, at=T0 + 120, words="And more")
    follower.read()
    outcomes = follower.end()
    goose.close()
    assert [turn.status for turn in of(outcomes, Turn)] == ["ok", "ok", "ok"]
    assert len(of(outcomes, ToolCall)) == 3


def test_secrets_are_never_selected(path, goose):
    """Neither by name in any schema, nor in what the tail hands on."""
    for version in range(1, SCHEMA + 1):
        columns = {
            "sessions": frozenset(name for name, since in SESSION.items() if since <= version),
            "messages": frozenset({"id", *(name for name, since in MESSAGE.items() if since <= version)}),
            "schema_version": frozenset({"version"}),
        }
        asked = json.dumps([(q.key, q.where, q.columns, q.table) for q in queries(columns)])
        assert not [word for word in SECRETS if word in asked]
    goose.session(S, T0)
    talk(goose)
    follower = Follower(path)
    batch = follower.tail.read(1 << 30, 0)
    follower.tail.close()
    assert "a secret" not in repr([record.body for record in batch.records])
    assert "words of the user" not in repr([record.body for record in batch.records])


# --------------------------------------------------------------------------------------- turns


def test_a_session_opened_and_left_is_none(path, goose):
    """No message, no tokens: no session, no run."""
    goose.session(S, T0)
    assert whole(path) == []


def test_usage_of_a_killed_step_counts_on_its_turn(path, goose):
    """Usage is stored before the tools run; the rows never come."""
    goose.session(S, T0)
    goose.say(S, "user", T0, text("Long tool"))
    goose.usage(S, T0 + 1, 1400, 20)
    (turn,) = of(whole(path), Turn)
    assert (turn.status, turn.usage.total()) == ("pending", 1420)


def test_a_session_renamed_days_later_keeps_its_tokens(path, goose):
    """The time of update says nothing of the turn; the last message does."""
    goose.session(S, T0)
    talk(goose)
    goose.db.execute("UPDATE sessions SET name = 'x', updated_at = ?", (clock(T0 + 500_000),))
    (turn,) = of(whole(path), Turn)
    assert turn.usage.total() == 330


def test_words_before_a_slow_tool_do_not_end_the_turn(path, goose):
    """They are stored with the tool's rows but bear the time at which they were said; read between the two
    inserts, they are dated by their insertion."""
    goose.session(S, T0)
    goose.say(S, "user", T0, text("Go"))
    follower = Follower(path)
    goose.say(S, "assistant", T0 + 1, text("I wait a minute."), stored=T0 + 61)
    follower.read()
    follower.settle((T0 + 62) * 10**9)
    goose.say(S, "assistant", T0 + 61, request("a"))
    goose.say(S, "user", T0 + 1, response("a"), stored=T0 + 61)
    goose.say(S, "assistant", T0 + 64, text("Done"))
    follower.read()
    live = follower.end()
    assert spans(live) == spans(whole(path))
    (turn,) = of(live, Turn)
    assert (turn.tools, seconds(turn), seconds(tools(live)["a"])) == (1, 64, 60)


def test_a_tool_that_runs_for_an_hour_does_not_split_its_turn(path, goose):
    """A tool at work has no row, so the silence of a turn that has not ended is that of an open call."""
    goose.session(S, T0)
    goose.say(S, "user", T0, text("Go"))
    follower = Follower(path)
    follower.read()
    follower.settle((T0 + 3000) * 10**9)
    goose.usage(S, T0 + 3600, 100, 10)
    goose.say(S, "assistant", T0 + 3600, request("a"))
    goose.say(S, "user", T0 + 1, response("a"), stored=T0 + 3600)
    goose.say(S, "assistant", T0 + 3604, text("Done"))
    follower.read()
    live = follower.end()
    assert spans(live) == spans(whole(path))
    (turn,) = of(live, Turn)
    assert (turn.status, turn.tools, seconds(turn), seconds(tools(live)["a"])) == ("ok", 1, 3604, 3599)
    assert turn.usage == Usage(input=100, output=10)


def test_a_turn_that_stays_silent_is_given_up_in_the_end(path, goose):
    """Killed in a tool or refused by the provider: nothing more is ever written."""
    goose.session(S, T0)
    goose.say(S, "user", T0, text("Go"))
    follower = Follower(path)
    follower.read()
    follower.settle((T0 + 7199) * 10**9)
    assert of(follower.outcomes, Turn) == []
    follower.settle((T0 + 7201) * 10**9)
    (turn,) = of(follower.outcomes, Turn)
    assert (turn.status, turn.exit, turn.end) == ("pending", "unknown", T0 * 10**9)


def test_what_is_stored_long_after_is_dated_by_itself(path, goose):
    """An imported conversation is inserted months later."""
    goose.session(S, T0)
    goose.say(S, "user", T0, text("Go"), stored=T0 + 10**7)
    goose.say(S, "assistant", T0 + 5, text("Gone"), stored=T0 + 10**7)
    (turn,) = of(whole(path), Turn)
    assert seconds(turn) == 5


@pytest.mark.parametrize(
    "content",
    [
        [],
        [{"type": "toolConfirmationRequest", "id": "c", "toolName": "shell"}],
        [{"type": "actionRequired", "data": {}}],
        [{"type": "systemNotification", "msg": "Compacting"}],
        [{"type": 7}],
    ],
)
def test_what_is_no_answer_ends_no_turn(path, goose, content):
    """A confirmation asked for, or a notice of the program, is not the model's last word."""
    goose.session(S, T0)
    goose.say(S, "user", T0, text("Go"))
    goose.say(S, "assistant", T0 + 1, *content)
    (turn,) = of(whole(path), Turn)
    assert turn.status == "pending"


def test_the_program_s_own_words_are_no_prompt(path, goose):
    """The model is told to use a tool for its answer: the turn goes on."""
    goose.session(S, T0)
    goose.say(S, "user", T0, text("Go"))
    goose.say(S, "assistant", T0 + 1, text("Here it is"))
    goose.say(
        S, "user", T0 + 1, text("You MUST call the `recipe__final_output` tool NOW with the final output")
    )
    goose.say(S, "assistant", T0 + 9, request("f", "recipe__final_output"))
    goose.say(S, "user", T0 + 9, response("f"))
    goose.say(S, "assistant", T0 + 10, text("Done"))
    (turn,) = of(whole(path), Turn)
    assert (turn.status, turn.tools, seconds(turn)) == ("ok", 1, 10)


def test_many_sessions_in_one_database(path, goose):
    """Interleaved, in several folders: each has its own turn, run and tokens."""
    for n in range(200):
        goose.session(f"20251118_{n}", T0 + n, folder=f"/repo/p{n % 7}")
    for role, words in (("user", "Go"), ("assistant", "Gone")):
        for n in range(200):
            goose.say(f"20251118_{n}", role, T0 + 300 + n, text(words))
    for n in range(200):
        goose.usage(f"20251118_{n}", T0 + 600, 10, 1)
    outcomes = whole(path)
    assert len(of(outcomes, RunStarted)) == 200
    assert {(turn.status, turn.usage.total()) for turn in of(outcomes, Turn)} == {("ok", 11)}
    assert len({turn.context.project for turn in of(outcomes, Turn)}) == 7


# --------------------------------------------------------------------------------------- tools


def test_calls_made_together_have_no_time_of_their_own(path, goose):
    """All are stored when the slowest is done, so what repeats the times of another is an estimate."""
    goose.session(S, T0)
    goose.say(S, "user", T0, text("Go"))
    for id_ in "abc":
        goose.say(S, "assistant", T0 + 9, request(id_), stored=T0 + 9)
        goose.say(S, "user", T0 + 2, response(id_), stored=T0 + 9)
    found = tools(whole(path))
    assert [seconds(found[id_]) for id_ in "abc"] == [7, 7, 7]
    assert [found[id_].source for id_ in "abc"] == ["timestamps", "estimate", "estimate"]


def test_times_the_wrong_way_round_are_an_estimate(path, goose):
    """A response dated after its request: the time between them, and no claim of exactness."""
    goose.session(S, T0)
    goose.say(S, "user", T0, text("Go"))
    goose.say(S, "assistant", T0 + 1, request("a"))
    goose.say(S, "user", T0 + 5, response("a"))
    tool = tools(whole(path))["a"]
    assert (seconds(tool), tool.source) == (4, "estimate")


OUTCOMES = {
    "ok": (response("a"), ("ok", "", None)),
    "bare list": (
        {"type": "toolResponse", "id": "a", "toolResult": {"status": "success", "value": [text("x")]}},
        ("ok", "", None),
    ),
    "is error": (response("a", "Command failed with exit code 2", isError=True), ("error", "tool_error", 2)),
    "exit code": (response("a", structuredContent={"exit_code": 3}), ("error", "tool_error", 3)),
    "exit code 0": (response("a", structuredContent={"exit_code": 0}), ("ok", "", 0)),
    "timed out": (
        response("a", isError=True, structuredContent={"exit_code": None, "timed_out": True}),
        ("error", "timeout", None),
    ),
    "timed out in words": (
        response("a", "Command timed out after 300 s", isError=True),
        ("error", "timeout", None),
    ),
    "declined": (
        response("a", "The user has declined to run this tool. DO NOT attempt to call this tool again."),
        ("error", "denied", None),
    ),
    "failed": (
        {"type": "toolResponse", "id": "a", "toolResult": {"status": "error", "error": "-32603: no"}},
        ("error", "tool_error", None),
    ),
    "unreadable": ({"type": "toolResponse", "id": "a", "toolResult": 5}, ("error", "tool_error", None)),
}


@pytest.mark.parametrize("name", OUTCOMES)
def test_how_a_tool_ended(path, goose, name):
    """Errors in the result, in the value, by exit code and in words; the older shape is none."""
    block, wanted = OUTCOMES[name]
    goose.session(S, T0)
    goose.say(S, "user", T0, text("Go"))
    goose.say(S, "assistant", T0 + 1, request("a"))
    goose.say(S, "user", T0 + 1, block)
    tool = tools(whole(path))["a"]
    assert (tool.status, tool.error_type, tool.exit_code) == wanted


def test_a_call_that_the_model_got_wrong(path, goose):
    """It has no name, and its response says the error."""
    goose.session(S, T0)
    goose.say(S, "user", T0, text("Go"))
    call = {"type": "toolRequest", "id": "a", "toolCall": {"status": "error", "error": "Could not interpret"}}
    goose.say(S, "assistant", T0 + 1, call)
    failed = {"type": "toolResponse", "id": "a", "toolResult": {"status": "error", "error": "Could not"}}
    goose.say(S, "user", T0 + 1, failed)
    tool = tools(whole(path))["a"]
    assert (tool.name, tool.status) == ("invalid", "error")


def test_a_tool_id_used_again_is_another_call(path, goose):
    """Small servers number their calls anew in every reply."""
    goose.session(S, T0)
    for n in range(3):
        goose.say(S, "user", T0 + 10 * n, text(f"Go {n}"))
        goose.say(S, "assistant", T0 + 10 * n + 1, request("call_0"))
        goose.say(S, "user", T0 + 10 * n + 1, response("call_0"))
        goose.say(S, "assistant", T0 + 10 * n + 2, text("Gone"))
    assert len(of(whole(path), ToolCall)) == 3


def test_a_cancelled_call_among_finished_ones(path, goose):
    """Only the call without a response is interrupted, and the turn with it; the next one is not."""
    goose.session(S, T0)
    goose.say(S, "user", T0, text("Go"))
    for id_, answer in (("a", [response("a")]), ("b", [])):
        goose.say(S, "assistant", T0 + 5, request(id_))
        goose.say(S, "user", T0 + 1, *answer, stored=T0 + 5)
    goose.say(S, "user", T0 + 30, text("Again"))
    goose.say(S, "assistant", T0 + 31, text("Good"))
    outcomes = whole(path)
    assert {id_: tool.status for id_, tool in tools(outcomes).items()} == {"a": "ok", "b": "interrupted"}
    assert [turn.status for turn in of(outcomes, Turn)] == ["interrupted", "ok"]


# ---------------------------------------------------------------------------------- compaction


@pytest.mark.parametrize("version", [6, 9])
def test_compactions_count_nothing_twice(path, version):
    """Before a prompt is answered and once more right after it: the rows come again under new ids, the prompt
    is repeated, and live and whole give the same turns."""
    goose = Goose(path, version)
    goose.session(S, T0)
    follower = Follower(path)
    talk(goose)
    follower.read()
    goose.say(S, "user", T0 + 60, text("Next"))
    follower.read()
    goose.compact(S, T0 + 61, "Next")
    follower.read()
    goose.compact(S, T0 + 62, "Next")
    follower.read()
    goose.usage(S, T0 + 70, 900, 90)
    goose.say(S, "assistant", T0 + 70, text("Nexted"))
    follower.read()
    live = follower.end()
    for outcomes in (live, whole(path)):
        assert [turn.status for turn in of(outcomes, Turn)] == ["ok", "ok"]
        assert len(of(outcomes, ToolCall)) == 1
        assert sum(tokens(outcomes).values()) == 990
    assert [turn.trace for turn in of(live, Turn)] == [turn.trace for turn in of(whole(path), Turn)]
    assert [turn.usage.total() for turn in of(live, Turn)] == [330, 660]
    assert [note.kind for note in of(live, Occurred)] == ["compaction", "compaction"]
    goose.close()


def test_compaction_in_the_middle_of_a_turn(path, goose):
    """The prompt stays visible and is repeated: the turn goes on."""
    goose.session(S, T0)
    follower = Follower(path)
    goose.say(S, "user", T0, text("Go"))
    goose.say(S, "assistant", T0 + 2, request("a"))
    goose.say(S, "user", T0 + 1, response("a"))
    follower.read()
    goose.compact(S, T0 + 3)
    goose.say(S, "user", T0 + 3, text("Go"))
    goose.say(S, "assistant", T0 + 5, request("b"))
    goose.say(S, "user", T0 + 4, response("b"))
    goose.say(S, "assistant", T0 + 6, text("Done"))
    follower.read()
    live = follower.end()
    assert spans(live) == spans(whole(path))
    (turn,) = of(live, Turn)
    assert (turn.tools, turn.status, seconds(turn)) == (2, "ok", 6)


def test_the_same_words_after_a_manual_compaction_are_a_new_prompt(path, goose):
    """The turn before it was over, so nothing is repeated."""
    goose.session(S, T0)
    follower = Follower(path)
    for at in (T0, T0 + 60):
        goose.say(S, "user", at, text("continue"))
        follower.read()
        goose.say(S, "assistant", at + 1, text("ok"))
        follower.read()
        goose.compact(S, at + 20)
        follower.read()
    live = follower.end()
    assert [turn.status for turn in of(live, Turn)] == ["ok", "ok"]
    assert [turn.trace for turn in of(live, Turn)] == [turn.trace for turn in of(whole(path), Turn)]


def test_another_session_s_rows_between_are_read(path, goose):
    """While nobody looks one session goes on and another one is compacted: none of the rows is missed."""
    goose.session(S, T0)
    goose.session("20251118_2", T0, folder="/repo/other")
    talk(goose)
    follower = Follower(path)
    follower.read()
    talk(goose, "20251118_2", T0 + 30)
    goose.compact(S, T0 + 50)
    talk(goose, S, T0 + 60, "More")
    follower.read()
    assert len(of(follower.end(), Turn)) == 3


def test_a_clock_set_back_loses_no_turn(path, goose):
    """Times that fall are no sign of rows inserted anew."""
    goose.session(S, T0)
    for at in (T0 + 5000, T0, T0 + 50):
        talk(goose, at=at, words=f"At {at}")
    outcomes = whole(path)
    assert (len(of(outcomes, Turn)), len(of(outcomes, ToolCall))) == (3, 3)


# ----------------------------------------------------------------------------------- subagents


CHILD = "20251118_2"


def child(goose, at, words, session=CHILD):
    goose.say(session, "user", at, text(words))
    goose.say(session, "assistant", at + 1, request(f"c{at}"))
    goose.say(session, "user", at + 1, response(f"c{at}"))
    goose.say(session, "assistant", at + 2, text("x is 1"))


def hangs(outcomes):
    """Subagent -> the id of the call above it, or None for a root."""
    calls = {tool.span: tool.id for tool in of(outcomes, ToolCall)}
    return {agent.agent_id: calls.get(agent.parent) for agent in of(outcomes, Subagent)}


def test_calls_and_subagents_are_matched_by_their_words(path, goose):
    """Two at a time: both fit by time, only one by what it was told."""
    goose.session(S, T0)
    goose.say(S, "user", T0, text("Delegate"))
    for n, words in ((2, "look at b"), (3, "look at a")):
        goose.session(f"20251118_{n}", T0 + 1, "sub_agent")
        child(goose, T0 + n, words, f"20251118_{n}")
    for id_, words in (("a", "look at a"), ("b", "look at b")):
        goose.say(S, "assistant", T0 + 9, request(id_, "delegate", instructions=words))
        goose.say(S, "user", T0 + 1, response(id_), stored=T0 + 9)
    goose.say(S, "assistant", T0 + 10, text("Done"))
    outcomes = whole(path)
    assert hangs(outcomes) == {"20251118_2": "b", "20251118_3": "a"}
    assert len(of(outcomes, Turn)) == 1


def test_a_subagent_in_the_background(path, goose):
    """The call returns at once, the subagent's rows come after it."""
    goose.session(S, T0)
    goose.say(S, "user", T0, text("Delegate"))
    goose.session(CHILD, T0 + 1, "sub_agent")
    goose.say(S, "assistant", T0 + 1, request("d", "delegate", instructions="look"))
    goose.say(S, "user", T0 + 1, response("d"))
    child(goose, T0 + 2, "look")
    goose.say(S, "assistant", T0 + 6, text("Done"))
    assert hangs(whole(path)) == {CHILD: "d"}


def test_the_parent_that_the_database_names(path):
    """From schema 15 on it stands in the row; the busier session in the same folder is not asked."""
    goose = Goose(path, 15)
    goose.session(S, T0)
    goose.session("20251118_9", T0)
    goose.session(CHILD, T0 + 2, "sub_agent", parent_session_id=S)
    for n, session in enumerate((S, "20251118_9")):
        goose.say(session, "user", T0 + n, text("Go"))
    child(goose, T0 + 3, "look")
    outcomes = whole(path)
    goose.close()
    (agent,) = of(outcomes, Subagent)
    assert agent.trace in {turn.trace for turn in of(outcomes, Turn) if turn.context.conversation == S}


def test_the_session_at_work_in_the_same_folder_is_the_parent(path, goose):
    """Others are in another folder, or have finished their turn."""
    sessions = {"20251118_3": "/repo/other", "20251118_4": "/repo/app", S: "/repo/app"}
    for session, folder in sessions.items():
        goose.session(session, T0, folder=folder)
    goose.say(S, "user", T0, text("Go"))
    for session in ("20251118_3", "20251118_4"):
        goose.say(session, "user", T0 + 1, text("Go"))
    goose.say("20251118_4", "assistant", T0 + 2, text("Gone"))
    goose.session(CHILD, T0 + 3, "sub_agent")
    child(goose, T0 + 3, "look")
    outcomes = whole(path)
    (agent,) = of(outcomes, Subagent)
    assert agent.trace in {turn.trace for turn in of(outcomes, Turn) if turn.context.conversation == S}


def test_a_parent_whose_rows_were_inserted_anew(path, goose):
    """Then they stand behind the subagent's: the times of the sessions tell."""
    goose.session(S, T0)
    goose.say(S, "user", T0, text("Go"))
    goose.session(CHILD, T0 + 1, "sub_agent")
    child(goose, T0 + 2, "look")
    goose.say(S, "assistant", T0 + 5, request("d", "delegate", instructions="look"))
    goose.say(S, "user", T0 + 1, response("d"), stored=T0 + 5)
    goose.compact(S, T0 + 6)
    goose.say(S, "assistant", T0 + 7, text("Done"))
    outcomes = whole(path)
    assert hangs(outcomes) == {CHILD: "d"}
    assert len(of(outcomes, Turn)) == 1


def test_a_subagent_without_a_parent_is_no_turn(path, goose):
    """It is work without a turn, and its tokens count."""
    goose.session(CHILD, T0, "sub_agent")
    child(goose, T0, "look")
    goose.usage(CHILD, T0 + 3, 70, 7)
    outcomes = whole(path)
    assert [turn.human for turn in of(outcomes, Turn)] == [False]
    assert sum(tokens(outcomes).values()) == 77


# ------------------------------------------------------------------------------ totals and cost


def test_cache_and_cost_where_they_are_stored(path):
    """Schema 15: the cache is a part of the input; the cost is Goose's own."""
    goose = Goose(path, 15)
    goose.session(S, T0)
    goose.say(S, "user", T0, text("Go"))
    cache = {"accumulated_cache_read_tokens": 8000, "accumulated_cache_write_tokens": 300}
    goose.usage(S, T0 + 1, 8500, 40, accumulated_cost=0.25, **cache)
    goose.say(S, "assistant", T0 + 2, text("Done"))
    (turn,) = of(whole(path), Turn)
    goose.close()
    assert turn.usage == Usage(input=200, cache_read=8000, cache_write=300, output=40)
    assert (turn.cost, turn.cost_source) == (0.25, "reported")


def test_a_new_model_is_counted_from_where_it_began(path, goose):
    """What was spent before belongs to the model of then."""
    goose.session(S, T0)
    goose.say(S, "user", T0, text("Go"))
    goose.usage(S, T0 + 1, 100, 10)
    follower = Follower(path)
    follower.read()
    goose.usage(S, T0 + 2, 150, 15, model_config_json='{"model_name":"gpt-5"}', provider_name="openai")
    follower.read()
    found = tokens(follower.end())
    assert (found["claude-sonnet-4-5", "input"], found["gpt-5", "input"]) == (100, 50)


@pytest.mark.parametrize("settings_", ["not json", "", None, "[]", '{"model_name": 7}'])
def test_settings_that_cannot_be_read(path, goose, settings_):
    """The model is not known; the tokens are."""
    goose.session(S, T0, model_config_json=settings_)
    talk(goose)
    follower = Follower(path)
    follower.read()
    assert follower.said == []
    assert sum(tokens(follower.end()).values()) == 330


def test_an_id_given_again_counts_from_nothing(path, goose):
    """A deleted session's id is given to the next one of the day."""
    goose.session(S, T0)
    follower = Follower(path)
    talk(goose)
    follower.read()
    goose.db.execute("DELETE FROM messages")
    goose.db.execute("DELETE FROM sessions")
    goose.session(S, T0 + 100)
    follower.read()
    talk(goose, at=T0 + 200)
    follower.read()
    outcomes = follower.end()
    assert len(of(outcomes, Turn)) == 2
    assert sum(tokens(outcomes).values()) == 660


def test_an_imported_copy_counts_nothing_twice(path, goose):
    """It has the messages of the original under their ids, and its totals; what follows is its own."""
    goose.session(S, T0)
    talk(goose)
    follower = Follower(path)
    follower.read()
    follower.settle((T0 + 100) * 10**9)
    goose.session("20251118_7", T0 + 200)
    goose.usage("20251118_7", T0 + 200, 300, 30)
    copied = "role, content_json, created_timestamp, timestamp, metadata_json, message_id"
    goose.db.execute(
        f"INSERT INTO messages (session_id, {copied}) SELECT '20251118_7', {copied} FROM messages"
    )
    follower.read()
    follower.settle((T0 + 300) * 10**9)
    goose.say("20251118_7", "user", T0 + 400, text("And now"))
    goose.usage("20251118_7", T0 + 401, 350, 35)
    goose.say("20251118_7", "assistant", T0 + 402, text("Now"))
    follower.read()
    outcomes = follower.end()
    assert len(of(outcomes, Turn)) == 2
    assert sum(tokens(outcomes).values()) == 330 + 55


# -------------------------------------------------------------------------------- the database


def test_following_costs_what_changed(path, goose):
    """However many sessions there are: a message is its row and its session's, a total the session's alone."""
    for n in range(300):
        goose.session(f"20251118_{n}", T0 + n)
        goose.say(f"20251118_{n}", "user", T0 + n, text("Go"))
    follower = Follower(path)
    follower.read()
    before = follower.records
    goose.usage("20251118_7", T0 + 400, 10, 1)
    follower.read()
    assert follower.records - before == 1
    goose.say("20251118_7", "assistant", T0 + 401, text("Gone"))
    follower.read()
    assert follower.records - before == 3
    assert len(follower.tail.cursor()) < 2000
    assert len(msgspec.msgpack.encode(follower.reader)) < 16_000
    follower.tail.close()


def test_a_total_in_the_same_second_is_seen(path, goose):
    """Times of update are whole seconds."""
    goose.session(S, T0)
    goose.say(S, "user", T0, text("Go"))
    follower = Follower(path)
    for n in range(1, 4):
        goose.usage(S, T0, 10 * n, n)
        follower.read()
    assert [added.usage.total() for added in of(follower.end(), UsageAdded)] == [11, 11, 11]


def test_times_of_an_import_hide_no_total(path, goose):
    """Imported rows have other people's times in another form; a wrong clock has left one in the future."""
    goose.session("20250101_101010", T0, updated_at="2025-11-18T23:59:59+00:00")
    goose.session("20251118_5", T0, updated_at="2055-01-01 00:00:00")
    goose.session(S, T0)
    goose.say(S, "user", T0, text("Go"))
    follower = Follower(path)
    follower.read()
    goose.usage(S, T0 + 1, 10, 1)
    follower.read()
    assert sum(tokens(follower.end()).values()) == 11


def test_a_locked_database_is_read_when_it_is_free(path):
    """Somebody holds all of it: nothing is lost and the trouble is said once."""
    goose = Goose(path)
    goose.session(S, T0)
    talk(goose)
    goose.db.execute("PRAGMA journal_mode = DELETE")
    goose.db.execute("BEGIN EXCLUSIVE")
    follower = Follower(path)
    follower.read()
    follower.read()
    assert (follower.said, follower.records) == (["unreadable"], 0)
    goose.db.execute("COMMIT")
    follower.read()
    goose.close()
    assert len(of(follower.end(), Turn)) == 1


def test_a_vacuum_changes_nothing(path, goose):
    """After deletions and a VACUUM it is read on where it was."""
    for n in range(5):
        goose.session(f"20251118_{n}", T0)
        talk(goose, f"20251118_{n}", T0 + n)
    follower = Follower(path)
    follower.read()
    goose.db.execute("DELETE FROM messages WHERE session_id = '20251118_1'")
    goose.db.execute("DELETE FROM sessions WHERE id = '20251118_1'")
    goose.db.execute("VACUUM")
    follower.read()
    talk(goose, "20251118_2", T0 + 60, "More")
    follower.read()
    assert "restarted" not in follower.said
    outcomes = follower.end()
    assert len(of(outcomes, Turn)) == 6
    assert len(of(outcomes, ToolCall)) == 6


def test_a_database_made_anew_is_read_from_its_beginning(path):
    """The same name, the same session id of the day, fewer rows."""
    goose = Goose(path)
    goose.session(S, T0)
    talk(goose)
    talk(goose, at=T0 + 20, words="More")
    follower = Follower(path)
    follower.read()
    goose.close()
    for file in path.parent.iterdir():
        file.unlink()
    assert not follower.tail.changed()
    goose = Goose(path)
    goose.session(S, T0 + 500)
    goose.say(S, "user", T0 + 500, text("Anew"))
    follower.read()
    goose.usage(S, T0 + 501, 5, 1)
    goose.say(S, "assistant", T0 + 501, text("Yes"))
    follower.read()
    goose.close()
    outcomes = follower.end()
    assert follower.said == ["gone", "restarted"]
    assert len(of(outcomes, Turn)) == 3
    assert sum(tokens(outcomes).values()) == 330 + 6


# ------------------------------------------------------------------------- files before the database


LEGACY = "20250901_101112"


def lines(at=T0):
    about = {"working_dir": "/repo/old", "description": "Old", "message_count": 4, "total_tokens": 560}
    return [
        about | {"accumulated_input_tokens": 1050, "accumulated_output_tokens": 11},
        {"role": "user", "created": at, "content": [text("hi")]},
        {"id": None, "role": "assistant", "created": at + 1, "content": [text("I look."), request("o1")]},
        {"role": "user", "created": at + 4, "content": [response("o1")]},
        {"role": "assistant", "created": at + 5, "content": [text("done")]},
    ]


def read_lines(sessions, name=LEGACY):
    reader = FORMAT.files[1].reader()
    for n, line in enumerate(lines()):
        body = msgspec.json.decode(json.dumps(line), type=Line)
        sessions.apply(reader.read(Record("lines", f"/home/u/sessions/{name}.jsonl", n, 0, body)))


def test_files_have_natural_times(path, goose):
    """A request is when the tool began. The totals of the first line go to the first turn."""
    follower = Follower(path)
    read_lines(follower.sessions, "with a name")
    outcomes = follower.end()
    (turn,) = of(outcomes, Turn)
    tool = tools(outcomes)["o1"]
    assert (seconds(tool), tool.source, tool.status) == (3, "timestamps", "ok")
    assert (turn.status, turn.usage, turn.context.conversation) == (
        "ok",
        Usage(input=1050, output=11),
        "with a name",
    )
    assert turn.context.cwd == "/repo/old"


def test_a_file_and_its_import_count_once(path, goose):
    """Goose imports its old files into the database and leaves them where they are: whichever is read first."""
    goose.session(LEGACY, T0, folder="/repo/old")
    for line in lines()[1:]:
        goose.say(LEGACY, line["role"], line["created"], *line["content"], stored=T0 + 10**7)
    goose.usage(LEGACY, T0 + 10**7, 1050, 11)
    for database_first in (False, True):
        follower = Follower(path)
        if not database_first:
            read_lines(follower.sessions)
            follower.settle((T0 + 1000) * 10**9)
        follower.read()
        follower.settle((T0 + 1000) * 10**9)
        if database_first:
            read_lines(follower.sessions)
        outcomes = follower.end()
        assert (len(of(outcomes, Turn)), len(of(outcomes, ToolCall))) == (1, 1)
        assert sum(tokens(outcomes).values()) == 1061


def test_a_file_s_time_is_its_first_message_s():
    """The first line has none."""
    head = "\n".join(map(json.dumps, lines())).encode()
    assert unit("/a/x.jsonl", head) == (T0 * 10**9, "/a/x.jsonl")
    assert unit("/a/x.jsonl", b"{}") == (0, "/a/x.jsonl")


# ---------------------------------------------------------------------------------- robustness


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["type", "id", "text", "toolCall", "toolResult", "status", "value", "content", "isError"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)
CELL = st.none() | st.integers() | st.floats() | st.text(max_size=8) | st.binary(max_size=8)


@settings(max_examples=150, deadline=None)
@given(
    kind=st.sampled_from(["toolRequest", "toolResponse", "text"]),
    about=JSON,
    role=st.sampled_from(["user", "assistant"]),
)
def test_any_json_in_a_message_is_survived(kind, about, role):
    """A block that is not as expected costs itself alone."""
    reader = GooseReader()
    block = {"type": kind, "id": about, "text": about, "toolCall": about, "toolResult": about}
    nested = {"type": kind, "id": "a", "toolCall": {"value": about}, "toolResult": {"value": about}}
    content = json.dumps([block, nested, about]).encode()
    values = (S, "m", role, content, T0, clock(T0), json.dumps(about).encode(), 1, *[None] * 5)
    events = list(reader.read(Record("message", "", 1, 0, Row("", values))))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(reader), type=GooseReader) == reader
    assert all(event.session == S for event in events)


@settings(max_examples=150, deadline=None)
@given(
    cells=st.lists(CELL, min_size=13, max_size=13),
    kind=st.sampled_from(["message", "new", "total", "schema"]),
)
def test_any_value_in_a_row_is_survived(cells, kind):
    """SQLite lets any column hold anything."""
    reader = GooseReader()
    cells = cells if kind == "message" else cells[:1] if kind == "schema" else cells[:10]
    list(reader.read(Record(kind, "", 1, 0, Row("", tuple(cells)))))
    msgspec.msgpack.encode(reader)


def test_half_an_emoji_costs_nothing(path, goose):
    """A lone surrogate in an output, which strict readers refuse."""
    goose.session(S, T0)
    goose.say(S, "user", T0, text("Go"))
    goose.say(S, "assistant", T0 + 1, request("a"))
    goose.say(S, "user", T0 + 1, response("a", "half \ud83d"))
    goose.say(S, "assistant", T0 + 2, text("Done"))
    assert tools(whole(path))["a"].status == "ok"


def test_the_memory_of_a_busy_session_has_an_end():
    """Requests that nobody answers, subagents that nobody starts."""
    reader = GooseReader()
    for n in range(5000):
        session, kind = (S, None) if n % 2 else (f"20251118_{n}", "sub_agent")
        content = (
            [text(f"{n}")] if n % 100 == 0 or kind else [request(f"r{n}", "delegate", instructions=str(n))]
        )
        role = "user" if content[0]["type"] == "text" else "assistant"
        values = (
            session,
            f"m{n}",
            role,
            json.dumps(content).encode(),
            T0 + n,
            None,
            None,
            0,
            kind,
            "/w",
            None,
        )
        list(reader.read(Record("message", "", n, 0, Row("", (*values, None, None)))))
    assert len(msgspec.msgpack.encode(reader)) < 32_000


def test_events_of_the_last_row_only():
    """An answer that is not the last row waits for what comes next; a total adds to no turn's end."""
    reader = GooseReader()
    rows = [("user", 0), ("assistant", 0), ("assistant", 1)]
    closed = []
    for n, (role, last) in enumerate(rows):
        values = (S, f"m{n}", role, json.dumps([text("x")]).encode(), T0 + n, clock(T0 + n), None, last)
        events = list(reader.read(Record("message", "", n, 0, Row("", (*values, *[None] * 5)))))
        closed.append(len(of(events, Closed)))
    assert closed == [0, 0, 1]
    total = (S, clock(T0), 5, 1, None, None, None, None, None, T0)
    assert [type(e) for e in reader.read(Record("total", "", 1, 0, Row(S, total)))] == [Measured]

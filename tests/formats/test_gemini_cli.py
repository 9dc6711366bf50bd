"""Gemini CLI's lines and documents become the right turns, calls and ends, once each."""

import datetime as dt
import json
import os
from itertools import count

import msgspec
import pytest

from spantail.formats import gemini_cli
from spantail.formats.gemini_cli.reader import KEEP, GeminiReader
from spantail.formats.gemini_cli.results import outcome
from spantail.formats.gemini_cli.shapes import Line, Tokens, entries, unit
from spantail.formats.times import ms_ns
from spantail.model import (
    Context,
    ModelCall,
    Occurred,
    Record,
    RunEnded,
    RunStarted,
    Subagent,
    ToolCall,
    Turn,
    Usage,
)
from spantail.session.sessions import Sessions
from spantail.session.settle import Rules
from spantail.state.ledger import Ledger
from spantail.tail.document import DocumentTail
from spantail.tail.globs import Globs
from spantail.tail.lines import LineTail
from spantail.tail.source import Source

T = 1_794_981_516_000
"""Milliseconds; the times of hand-made messages are given as milliseconds after it."""
S1 = "65db6800-72aa-4e54-8776-89e084d38afa"
S2 = "75db6800-72aa-4e54-8776-89e084d38afa"
MAIN = f"proj/chats/session-2026-11-18T06-02-{S1[:8]}.jsonl"
OLD = MAIN.removesuffix("l")
USED = {"input": 100, "output": 10, "cached": 30, "thoughts": 5, "tool": 2, "total": 117}


def iso(after):
    seconds, ms = divmod(T + after, 1000)
    return dt.datetime.fromtimestamp(seconds, dt.UTC).strftime("%Y-%m-%dT%H:%M:%S") + f".{ms:03d}Z"


def uuid(name):
    return f"{name:0<8.8}-0000-4000-8000-000000000000"


def metadata(after=0, session=S1, kind="main", **rest):
    return {"sessionId": session, "projectHash": "x", "startTime": iso(after), "kind": kind, **rest}


def message(type_, name, after, content, **rest):
    return {"id": uuid(name), "timestamp": iso(after), "type": type_, "content": content, **rest}


def user(name, after, words="do it", *parts):
    return message("user", name, after, [{"text": words}, *parts])


def gemini(name, after, *calls, words="Yes.", tokens=USED, model="gemini-2.5-pro"):
    rest = {"toolCalls": list(calls)} if calls else {}
    return message("gemini", name, after, words, tokens=tokens, model=model, **rest)


def call(id_, after, name="read_file", status="success", output="fine", **rest):
    response = {"functionResponse": {"id": id_, "name": name, "response": {"output": output}}}
    made = {"id": id_, "name": name, "args": {"x": id_}, "result": [response], "status": status}
    return {**made, "timestamp": iso(after), **rest}


def history(*messages):
    return {"$set": {"messages": list(messages), "lastUpdated": iso(0)}}


class Quiet:
    """Notices of a tail that has nothing to complain of."""

    def bad_record(self, *said):
        raise AssertionError(said)

    unreadable = gone = restarted = bad_record


class Limits(msgspec.Struct):
    record_bytes: int = 1 << 26
    document_bytes: int = 1 << 28


class Home:
    """Files of a home with their real tails, and readers whose memory is stored after every look."""

    def __init__(self, root):
        self.root = root
        self.sources = {}
        self.out = []
        self.clock = count(1)
        self.sessions = Sessions(
            Context(agent="gemini-cli"),
            Rules(),
            Ledger(),
            lambda *_, **__: None,
            os.path.basename,
            lambda _: None,
        )

    def write(self, name, data):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        moment = next(self.clock) * 10**9
        os.utime(path, ns=(moment, moment))
        if name not in self.sources:
            files = next(f for f in gemini_cli.FORMAT.files if _fits(f.glob, name))
            source = Source(str(path), gemini_cli.FORMAT, files, str(self.root), "")
            self.sources[name] = [source, None, msgspec.msgpack.encode(files.reader())]

    def lines(self, *lines, name=MAIN):
        """Appends, and looks."""
        path = self.root / name
        before = path.read_bytes() if path.exists() else b""
        self.write(name, before + b"".join(json.dumps(line).encode() + b"\n" for line in lines))
        return self.look()

    def document(self, *messages, name=OLD, **rest):
        """Writes all of it anew, and looks."""
        whole = {"sessionId": S1, "projectHash": "x", "startTime": iso(0), "lastUpdated": iso(len(messages))}
        self.write(name, json.dumps({**whole, "messages": list(messages), **rest}).encode())
        return self.look()

    def look(self):
        """One wake: main files, then the others."""
        for name in sorted(self.sources, key=lambda name: (not self.sources[name][0].files.main, name)):
            source, cursor, memory = self.sources[name]
            if source.files.storage == "lines":
                tail = LineTail(source, cursor, Quiet(), Limits())
            else:
                tail = DocumentTail(source, cursor, Quiet(), Limits(), clock=lambda: 0)
            if not tail.changed():
                continue
            reader = msgspec.msgpack.decode(memory, type=source.files.memory)
            for record in tail.read(1 << 30, 0).records:
                self.sessions.apply(list(reader.read(record)))
            self.sources[name][1:] = tail.cursor(), msgspec.msgpack.encode(reader)
        return self

    def settle(self, after=10**8):
        self.sessions.settle(ms_ns(T + after))
        self.out += self.sessions.take()
        return self

    def of(self, kind):
        return [o for o in self.out if isinstance(o, kind)]

    @property
    def turn(self):
        (turn,) = [turn for turn in self.of(Turn) if turn.human]
        return turn

    def tool(self, id_):
        (tool,) = [tool for tool in self.of(ToolCall) if tool.id == id_]
        return tool


def _fits(glob, name):
    return Globs([glob]).match(name.split("/")) is not None


@pytest.fixture
def home(tmp_path):
    return Home(tmp_path)


# ---------------------------------------------------------------------------------- turns and calls


def test_a_message_written_again_with_its_tools_counts_once(home):
    """The second line has the same tokens; the call begins with the reply and ends at its own time."""
    home.lines(metadata(), user("a", 0), gemini("b", 500), gemini("b", 500, call("t1", 2000)))
    home.lines(user("c", 2001, "", {"functionResponse": {}}), gemini("d", 2500)).settle()
    assert (home.turn.status, home.turn.exit) == ("ok", "success")
    assert [c.model for c in home.of(ModelCall)] == ["gemini-2.5-pro"] * 2
    tool = home.tool("t1")
    assert (tool.start, tool.end, tool.source) == (ms_ns(T + 500), ms_ns(T + 2000), "timestamps")


def test_tokens_are_made_disjoint():
    """Input holds the cache, output not the thoughts, and the tokens of tools are outside both."""
    usage = msgspec.convert(USED, Tokens).usage()
    assert usage == Usage(input=72, cache_read=30, output=15, reasoning=5)
    assert Tokens().usage() is None
    assert msgspec.convert({"input": 1, "cached": 9}, Tokens).usage() == Usage(cache_read=9)


def test_a_turn_rests_until_something_proves_its_end(home):
    """A running tool is in no file: a reply with a text may be the last one, or not."""
    home.lines(metadata(), user("a", 0), gemini("b", 500)).settle(after=60_000)
    assert home.of(Turn) == []
    home.lines(gemini("b", 500, call("t1", 90_000)), gemini("c", 91_000)).settle(after=92_000)
    home.lines(user("d", 95_000)).settle(after=96_000)
    assert home.turn.status == "ok"
    assert home.tool("t1").parent == home.turn.span


def test_an_old_reply_written_again_is_no_sign_of_life(home):
    """A turn that was cut off stays so."""
    home.lines(metadata(), user("a", 0), gemini("b", 500), user("c", 3000), gemini("b", 500)).settle()
    assert [turn.status for turn in home.of(Turn)] == ["ok", "pending"]


def test_a_reply_without_a_word_waits_for_its_tool(home):
    """What stops there was cut off."""
    home.lines(metadata(), user("a", 0), gemini("b", 500, words="")).settle()
    assert (home.turn.status, home.turn.exit) == ("pending", "unknown")


def test_calls_of_a_batch_are_estimates(home):
    """All bear the time of the slowest."""
    batch = gemini("b", 500, call("t1", 2000), call("t2", 2000))
    home.lines(metadata(), user("a", 0), gemini("b", 500), batch, gemini("c", 2500)).settle()
    assert [tool.source for tool in home.of(ToolCall)] == ["estimate"] * 2


def test_ids_of_calls_repeat_between_messages(home):
    """They are made of the server's, which may count from one again."""
    home.lines(metadata(), user("a", 0), gemini("b", 1, call("t", 2)), gemini("c", 3, call("t", 4))).settle()
    assert len(home.of(ToolCall)) == 2


def test_calls_without_ids_are_told_apart_by_their_place(home):
    """Written again they are the same."""
    first, second = ({**call("", 500, output=words), "id": None} for words in ("a", "b"))
    home.lines(
        metadata(), user("a", 0), gemini("b", 100, first, second), gemini("b", 100, first, second)
    ).settle()
    assert len({tool.span for tool in home.of(ToolCall)}) == len(home.of(ToolCall)) == 2


def test_a_call_that_is_not_done_has_no_end_yet(home):
    """Documents may show one that waits or runs."""
    home.document(user("a", 0), gemini("b", 500, call("t1", 600, status="executing")))
    home.document(user("a", 0), gemini("b", 500, call("t1", 900)), gemini("c", 1000)).settle()
    assert [(tool.id, tool.status) for tool in home.of(ToolCall)] == [("t1", "ok")]


def test_history_written_again_is_nothing_new(home):
    """`$set.messages` has no tokens, and after a compaction other ids: no turn, no call, no count."""
    home.lines(metadata(), user("a", 0), gemini("b", 500))
    again = [user("a", 9000), gemini("b", 9000, tokens=None), user("zz", 9000)]
    home.lines(metadata(9000), history(*again), {"$set": {"sessionId": S1}}, {"$rewindTo": uuid("a")})
    home.lines(user("c", 9500), gemini("d", 9600)).settle()
    assert len(home.of(Turn)) == len(home.of(ModelCall)) == 2


def test_a_session_that_is_resumed_had_ended(home):
    """Its metadata is written again: the run before is over, whatever the clock says."""
    home.lines(metadata(), user("a", 0), gemini("b", 500), metadata(3000)).settle(after=3001)
    assert [run.exit for run in home.of(RunEnded)] == ["success"]
    home.lines(user("c", 4000), gemini("d", 4100)).settle()
    assert len(home.of(RunStarted)) == len(home.of(RunEnded)) == 2


def test_the_working_directory_is_in_the_context(home):
    """Also where that is written after the first prompt, for which the folder's name stood in."""
    words = "<session_context>\nx\n- **Workspace Directories:**\n  - /w/deep/thing\n- more"
    home.lines(metadata(), history(user("ctx", 0, words)), user("a", 1), gemini("b", 2)).settle()
    assert (home.turn.context.cwd, home.turn.context.project) == ("/w/deep/thing", "thing")
    late = Home(home.root / "late").lines(metadata(), user("a", 1), history(user("ctx", 2, words)))
    assert late.settle().turn.context.cwd == "/w/deep/thing"


@pytest.mark.parametrize(("folder", "project"), [("proj", "proj"), ("ab" * 32, "")])
def test_older_files_have_the_project_in_their_path(home, folder, project):
    """Their messages do not tell where they were written."""
    home.document(user("a", 0), gemini("b", 2), name=OLD.replace("proj", folder, 1)).settle()
    assert home.turn.context.project == project


@pytest.mark.parametrize(
    "words",
    [
        "<session_context>\nThis is the Gemini CLI.",
        "<hook_context>x</hook_context>",
        "System: Please continue.",
        "System: Potential loop detected. x",
        "User steering update:\n<user_input>\nrather so",
    ],
)
def test_texts_that_the_program_wrote_are_no_prompts(home, words):
    """The turn that runs goes on."""
    home.lines(metadata(), user("a", 0), gemini("b", 100), user("c", 200, words), gemini("d", 300)).settle()
    assert home.turn.status == "ok"
    assert [event.name for event in home.turn.events] == ["queued_prompt"] * words.startswith("User steering")


def test_steering_beside_results_is_no_prompt(home):
    """A hint typed while tools run comes along with their results."""
    parts = {"functionResponse": {"id": "t1"}}
    home.lines(metadata(), user("a", 0), user("c", 200, "User steering update:\nx", parts), gemini("d", 300))
    assert home.settle().turn.events[0].name == "queued_prompt"


def test_a_prompt_may_be_plain_text(home):
    """And is one turn however often it is written."""
    prompt = message("user", "a", 0, "plain", displayContent="shown")
    home.lines(metadata(), prompt, gemini("b", 100), prompt, gemini("c", 200)).settle()
    assert home.turn.usage.output == 30


# --------------------------------------------------------------------------------- errors and aborts


@pytest.mark.parametrize(
    ("name", "status", "output", "said"),
    [
        (
            "run_shell_command",
            "success",
            "Output: (empty)\nExit Code: 3\nPGID: 1",
            ("error", "tool_error", 3),
        ),
        ("run_shell_command", "success", "Exit Code: 1", ("error", "tool_error", 1)),
        ("run_shell_command", "success", "Output: x\r\nExit Code: 2\r\n", ("error", "tool_error", 2)),
        ("run_shell_command", "success", "Exit Code: 4\nOutput too large.\nExit Code: 0", ("ok", "", None)),
        ("run_shell_command", "success", "Output: said Exit Code: 3", ("ok", "", None)),
        ("run_shell_command", "success", "Exit Code: 0\nSignal: (none)\nPGID: 1", ("ok", "", None)),
        (
            "run_shell_command",
            "success",
            "<untrusted_context>\nOutput: x\nSignal: 9\nProcess Group PGID: 1\n</untrusted_context>",
            ("error", "tool_error", None),
        ),
        ("run_shell_command", "success", "Output: x\nSignal: SIGTERM", ("error", "tool_error", None)),
        ("run_shell_command", "success", "Output: x\nSignal: 0", ("ok", "", None)),
        ("run_shell_command", "success", "Output: a\nSignal: 9\nb\nProcess Group PGID: 1", ("ok", "", None)),
        (
            "run_shell_command",
            "success",
            "Command was automatically cancelled because it exceeded the timeout of 5.0 minutes without output.",
            ("error", "timeout", None),
        ),
        (
            "run_shell_command",
            "success",
            "<untrusted_context>\nCommand was cancelled by user before it could complete.",
            ("interrupted", "interrupted", None),
        ),
        ("run_shell_command", "success", "Output: Command was cancelled by user", ("ok", "", None)),
        ("read_file", "success", "a log:\nExit Code: 3\n", ("ok", "", None)),
        ("read_file", "error", "File not found", ("error", "tool_error", None)),
        ("run_shell_command", "error", "Command timed out", ("error", "timeout", None)),
        ("run_shell_command", "error", "Tool execution denied by policy.", ("error", "denied", None)),
        ("write_file", "cancelled", "[Operation Cancelled] x", ("interrupted", "interrupted", None)),
        ("write_file", "awaiting_approval", "", None),
        ("write_file", None, "", None),
    ],
)
def test_how_a_call_ended(name, status, output, said):
    """A failed command is a success to Gemini CLI: its exit code stands at the start of a line of the output."""
    result = msgspec.Raw(json.dumps(call("t", 0, output=output)["result"]).encode())
    assert outcome(name, status, result) == said


def test_a_cancelled_request_interrupts_its_turn(home):
    """The cancelled call may stand in a message of its own without tokens: a tool, but no model call."""
    cancelled = gemini("c", 700, call("t1", 700, status="cancelled"), words="", tokens=None)
    home.lines(metadata(), user("a", 0), gemini("b", 500, words=""))
    home.lines(message("info", "i", 650, "Request cancelled."), cancelled).settle(after=5000)
    assert (home.turn.status, home.turn.exit) == ("interrupted", "interrupted")
    assert home.tool("t1").status == "interrupted"
    assert len(home.of(ModelCall)) == 1


def test_a_refused_call_ends_the_turn(home):
    """If all calls of a reply were cancelled nothing is sent to the model; if one was not, it goes on."""
    refused, done = call("t1", 700, status="cancelled"), call("t2", 700)
    home.lines(metadata(), user("a", 0), gemini("b", 500, refused)).settle(after=5000)
    home.lines(user("c", 6000), gemini("d", 6500, refused, done), gemini("e", 9600)).settle()
    assert [turn.status for turn in home.of(Turn)] == ["interrupted", "ok"]


def test_an_api_error_fails_the_turn(home):
    """Other errors that are shown (unknown commands, failed updates) say nothing of it."""
    shown = message("error", "x", 400, "Unknown command: /foo")
    failed = message("error", "y", 500, '[API Error: {"error":{"code":429,"message":"quota"}}]')
    home.lines(metadata(), user("a", 0), shown, failed).settle(after=5000)
    assert (home.turn.status, home.turn.error_type) == ("error", "provider_error")
    assert [(o.kind, o.error_type) for o in home.of(Occurred)] == [("provider_error", "429")]


def test_a_limit_of_turns_ends_the_turn(home):
    """The session's limit is met before the next call of the model."""
    words = "The session has reached the maximum number of turns: 3. Please update this limit."
    home.lines(metadata(), user("a", 0), gemini("b", 100, call("t1", 200), words=""))
    home.lines(message("info", "i", 300, words)).settle(after=5000)
    assert (home.turn.status, home.turn.error_type, home.turn.exit) == ("error", "max_turns", "max_turns")


@pytest.mark.parametrize("words", ["Update available!", "⚠️ Response truncated due to token limits.", ""])
def test_other_notices_change_nothing(home, words):
    """Information for the person at the screen."""
    home.lines(metadata(), user("a", 0), gemini("b", 100), message("info", "i", 200, words)).settle()
    assert (home.turn.status, home.turn.events) == ("ok", [])


def test_a_compaction_is_noted_once(home):
    """By its message, by the snapshot in the history, and again in every history that is resumed."""
    words = "<state_snapshot>s</state_snapshot>"
    snapshot, resumed = (history(user("snap", at, words), user("zz", at)) for at in (300, 50_500))
    shown = message("info", "i", 310, "Context compressed from 68% to 3%.")
    home.lines(metadata(), user("a", 0), gemini("b", 100), snapshot, shown, gemini("c", 400))
    home.lines(metadata(50_000), resumed, user("d", 51_000), gemini("e", 52_000)).settle()
    assert [o.kind for o in home.of(Occurred)] == ["compaction"]


def test_a_reply_whose_tokens_are_not_told(home):
    """A text is a reply of unknown usage; tokens that come with a later line are its own."""
    home.lines(metadata(), user("a", 0), gemini("b", 100, tokens=None), user("c", 5000))
    home.lines(gemini("d", 5100, tokens=None), gemini("d", 5100)).settle()
    assert [call.usage is None for call in home.of(ModelCall)] == [True, False]


# --------------------------------------------------------------------------------------- subagents

AGENT = uuid("agent")


def test_a_subagent_is_tied_to_its_call(home):
    """Its file is read before the call is written; the call names it when it ends."""
    home.lines(metadata(), user("a", 0), gemini("b", 500))
    home.lines(
        metadata(550, AGENT, "subagent"),
        user("p", 600),
        gemini("q", 700, call("i1", 800)),
        user("w", 810, "System warning: two turns left"),
        gemini("r", 900, call("done", 950, name="complete_task")),
        name=f"proj/chats/{S1}/{AGENT}.jsonl",
    )
    home.lines(gemini("b", 500, call("t1", 1000, name="invoke_agent", agentId=AGENT)), gemini("c", 1100))
    home.settle()
    (agent,) = home.of(Subagent)
    assert (agent.parent, agent.status, agent.agent_id) == (home.tool("t1").span, "ok", AGENT)
    assert (agent.name, agent.end) == ("invoke_agent", ms_ns(T + 950))
    assert home.tool("i1").parent == agent.span
    assert (home.turn.usage.output, len(home.of(ModelCall))) == (60, 4)


def test_an_older_subagent_is_known_by_its_folder(home):
    """Six letters for an id, and no link: when it began leads to the turn."""
    home.document(user("a", 0), gemini("b", 500, call("t1", 2000, name="cli_help")), gemini("c", 2100))
    nested = f"proj/chats/{S1}/ab12cd.json"
    home.document(user("p", 600), gemini("q", 700), name=nested, sessionId="ab12cd", kind="subagent").settle()
    (agent,) = home.of(Subagent)
    assert (agent.trace, agent.parent, agent.agent_id) == (home.turn.trace, home.turn.span, "ab12cd")
    assert home.turn.usage.output == 45


def test_a_subagent_with_the_id_of_its_parent(home):
    """Early in 2026 it had a session file of its own; its task is no prompt of a person."""
    home.document(user("a", 0), gemini("b", 500, call("t1", 2000, name="codebase_investigator")))
    nested = OLD.replace("T06-02", "T06-03")
    home.document(user("p", 600, "Your task is to do a deep investigation"), gemini("q", 700), name=nested)
    home.settle()
    (agent,) = home.of(Subagent)
    assert agent.trace == home.turn.trace
    assert len(home.of(ModelCall)) == 2


def test_a_person_may_give_a_task_in_the_same_words(home):
    """Where the files tell the kind of a session, its first words do not matter."""
    home.lines(metadata(), user("a", 0, "Your task is to fix it"), gemini("b", 100)).settle()
    assert home.turn.status == "ok"


def test_an_agent_in_the_background_is_no_turn(home):
    """It learns from past sessions, and belongs to none: its tokens count."""
    name = "proj/chats/skill-extraction-0a1b2c3d/ab12cd.json"
    home.document(user("p", 600), gemini("q", 700), name=name, sessionId="ab12cd", kind="subagent").settle()
    assert [turn.human for turn in home.of(Turn)] == [False]
    assert len(home.of(ModelCall)) == 1


def test_sessions_of_the_server_share_an_id(home):
    """The file tells them apart."""
    for n in "12":
        lines = [metadata(session="a2a-server"), user(f"a{n}", 0), gemini(f"b{n}", 100)]
        home.lines(*lines, name=f"proj/chats/session-2026-11-18T06-0{n}-a2a-serv.jsonl")
    assert len({turn.context.conversation for turn in home.settle().of(Turn)}) == 2


# --------------------------------------------------------------------------------------- documents


def test_a_document_gives_what_lines_give(home, tmp_path):
    """Message by message, rewritten for each; the reply changes when its tools have ended."""
    messages = [user("a", 0), gemini("b", 500), user("c", 3000), gemini("d", 3500)]
    for n in range(1, len(messages) + 1):
        home.document(*messages[:n])
    messages[3] = gemini("d", 3500, call("t1", 4000, name="run_shell_command", output="x\nExit Code: 1"))
    home.document(*messages)
    home.document(*messages, gemini("e", 4500), summary="s", directories=["/w/elsewhere"]).settle()
    lines = Home(tmp_path / "lines").lines(metadata(), *messages, gemini("e", 4500)).settle()
    for kind in (Turn, ModelCall, ToolCall):
        assert [(o.span, o.start, o.end, o.status) for o in home.of(kind)] == [
            (o.span, o.start, o.end, o.status) for o in lines.of(kind)
        ]
    assert len(home.of(RunStarted)) == 1


def test_a_document_that_became_lines_counts_once(home):
    """A session that is resumed is moved: the same messages, with their ids, in a second file."""
    first = [user("a", 0), gemini("b", 500, call("t1", 900)), gemini("c", 1000)]
    home.document(*first)
    home.lines(metadata(9000), *first, user("d", 9500), gemini("e", 9600)).settle()
    assert len(home.of(Turn)) == 2
    assert (len(home.of(ModelCall)), len(home.of(ToolCall))) == (3, 1)


def test_entries_leave_out_what_changes_at_each_write():
    """Else the metadata would be news with every message."""
    one, two = (
        dict(entries(json.dumps({"sessionId": "s", "lastUpdated": n, "messages": []}).encode())) for n in "12"
    )
    assert one == two
    assert json.loads(one["metadata"])["sessionId"] == "s"


def test_files_of_a_session_are_read_together():
    """By the session's id, which is the name of its subagents' folder."""
    head = json.dumps(metadata()).encode()
    assert unit(f"/p/proj/chats/session-x-{S1[:8]}.jsonl", head) == (ms_ns(T), S1)
    assert unit(f"/p/proj/chats/{S1}/{AGENT}.jsonl", head) == (ms_ns(T), S1)
    assert unit("/p/chats/session-x.jsonl", b"") == (0, "/p/chats/session-x.jsonl")


def test_a_file_may_begin_without_its_metadata(home):
    """The session is then the file's name; a file of metadata alone is no session at all."""
    home.lines(user("a", 0), gemini("b", 100)).lines(metadata(session=S2), name=MAIN.replace("02", "03"))
    assert home.settle().turn.context.conversation == MAIN.split("/")[-1].removesuffix(".jsonl")
    assert len(home.of(RunStarted)) == 1


# ------------------------------------------------------------------------------------- robustness

JUNK = [None, True, -1, 2**70, 0.5, "", "x", [], [1], {}, {"a": [None]}]


@pytest.mark.parametrize(
    "line",
    [
        metadata(directories=["/w"]),
        user("a", 0),
        gemini("b", 1, call("t", 2, agentId=AGENT)),
        history(user("c", 2, "<state_snapshot>")),
        message("error", "d", 3, "[API Error: x]"),
    ],
)
def test_any_value_anywhere_costs_at_most_its_part(line):
    """Every field of every line replaced by junk: read without an error."""
    tried = 0
    calls = line.get("toolCalls") or [{}]
    for part in (line, line.get("tokens") or {}, calls[0], line.get("$set") or {}):
        for name in list(part):
            kept = part[name]
            for part[name] in JUNK:
                body = msgspec.json.decode(json.dumps(line), type=Line)
                reader = GeminiReader()
                sessions = Home(None).sessions
                for _ in range(2):
                    sessions.apply(list(reader.read(Record("session", f"/h/{MAIN}", 0, 0, body))))
                sessions.settle(ms_ns(T + 10**8))
                msgspec.msgpack.encode(reader)
                tried += 1
            part[name] = kept
    assert tried > len(JUNK)


def test_memory_does_not_grow_with_messages():
    """Prompts and replies are remembered for a while only."""
    reader = GeminiReader()
    for n in range(3 * KEEP):
        for line in (user(f"{n}a", n), gemini(f"{n}b", n)):
            body = msgspec.json.decode(json.dumps(line), type=Line)
            list(reader.read(Record("session", f"/h/{MAIN}", n, 0, body)))
    assert (len(reader.prompts), len(reader.replied)) == (KEEP, KEEP)


def test_the_second_view_of_the_prompts_is_never_read():
    """logs.json lists all that was typed, once more; credentials lie one folder up."""
    assert not any(_fits(files.glob, "proj/logs.json") for files in gemini_cli.FORMAT.files)
    assert ".gemini/oauth_creds.json" in gemini_cli.FORMAT.never

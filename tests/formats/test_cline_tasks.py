"""The task folders of Cline's VS Code extension become turns, calls and usage; nothing in them counts twice."""

import json
import os
from itertools import count
from pathlib import Path

import msgspec
import pytest
from msgspec import Raw

from spantail.formats import cline
from spantail.formats.cline.task_folder import TaskMetadataReader
from spantail.formats.cline.task_history import HistoryReader
from spantail.formats.cline.task_shapes import task_entries, task_unit
from spantail.formats.cline.tasks import KEEP, UiReader
from spantail.formats.times import ms_ns
from spantail.model import (
    Called,
    Closed,
    Context,
    Measured,
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
    UsageAdded,
)
from spantail.session.sessions import Sessions
from spantail.session.settle import Rules
from spantail.state.ledger import Ledger
from spantail.tail.document import DocumentTail
from spantail.tail.finder import Finder
from spantail.tail.source import Source

TASK = "1760000000000"
T = int(TASK)
ROOT = Path(".config/Code/User/globalStorage/saoudrizwan.claude-dev/tasks")
CLAUDE = {"providerId": "anthropic", "modelId": "claude-sonnet-4-5", "mode": "act"}
LATER = ms_ns(T + 10**9)


class Quiet:
    """Notices of a tail that has nothing to complain of."""

    def bad_record(self, *said):
        raise AssertionError(said)

    unreadable = gone = restarted = bad_record


class Limits(msgspec.Struct):
    record_bytes: int = 1 << 26
    document_bytes: int = 1 << 28


class Folder:
    """A task's folder, followed by real tails; the readers' memory is stored after every look."""

    def __init__(self, home: Path, task: str = TASK):
        self.path = home / ROOT / task
        self.path.mkdir(parents=True)
        self.home = home
        self.clock = count(1)
        self.states: dict[str, tuple] = {}
        self.sessions = Sessions(
            Context(agent="cline"), Rules(), Ledger(), lambda *_, **__: None, os.path.basename, lambda _: None
        )

    def put(self, name: str, document: object):
        path = self.path / name
        path.write_text(json.dumps(document))
        moment = next(self.clock) * 10**9
        os.utime(path, ns=(moment, moment))

    def look(self):
        finder = Finder([cline.FORMAT], [str(self.home)], own_home=False, environ={})
        for [*unit] in finder.backlog(finder.scan()):
            for source in unit:
                self._read(source)

    def _read(self, source: Source):
        cursor, memory = self.states.get(source.path, (None, msgspec.msgpack.encode(source.files.reader())))
        tail = DocumentTail(source, cursor, Quiet(), Limits(), clock=lambda: 0)
        if not tail.changed():
            return
        reader = msgspec.msgpack.decode(memory, type=source.files.memory)
        for record in tail.read(1 << 30, 0).records:
            self.sessions.apply(list(reader.read(record)))
        self.states[source.path] = tail.cursor(), msgspec.msgpack.encode(reader)

    def outcomes(self, kind):
        self.sessions.settle(LATER)
        return [outcome for outcome in self.sessions.take() if isinstance(outcome, kind)]


def say(at, kind, text="", **more):
    words = text if isinstance(text, str) else json.dumps(text)
    return {"ts": T + at, "type": "say", "say": kind, "text": words, **more}


def ask(at, kind, text="", **more):
    words = text if isinstance(text, str) else json.dumps(text)
    return {"ts": T + at, "type": "ask", "ask": kind, "text": words, **more}


def request(at, tokens=(10, 20, 300, 4000), cost=0.01, info=CLAUDE, **more):
    """tokensIn, tokensOut, cacheWrites, cacheReads."""
    names = ("tokensIn", "tokensOut", "cacheWrites", "cacheReads")
    text = {"request": "<task>\nFix it\n</task>", **dict(zip(names, tokens, strict=True)), **more}
    if cost is not None:
        text["cost"] = cost
    return say(at, "api_req_started", text, **({"modelInfo": info} if info else {}))


def events(*messages, path="/h/tasks/" + TASK + "/ui_messages.json", reader=None):
    reader = reader or UiReader()
    return [
        event
        for position, message in enumerate(messages)
        for event in reader.read(Record("ui_messages", path, position, 0, Raw(json.dumps(message).encode())))
    ]


def only(kind, found):
    return [event for event in found if isinstance(event, kind)]


START = say(0, "task", "Fix it")
DONE = [say(9000, "completion_result", "Fixed."), ask(9001, "completion_result", "")]


# ------------------------------------------------------------------------- one source of numbers


def spoken(content, role="user", **more):
    return {"role": role, "content": content, **more}


def answer(*content, prompt=10, completion=20, cached=4300, **more):
    metrics = {"tokens": {"prompt": prompt, "completion": completion, "cached": cached}, "cost": 0.01}
    return spoken(list(content), "assistant", modelInfo=CLAUDE, metrics=metrics, **more)


def words(text):
    return {"type": "text", "text": text}


def use(name, id_="toolu_1", **given):
    return {"type": "tool_use", "id": id_, "name": name, "input": given}


HISTORY = [
    spoken([words("<task>\nFix it\n</task>"), words("<environment_details>\n</environment_details>")]),
    answer(use("read_file", path="x")),
    spoken([words("[read_file for 'x'] Result:"), words("<environment_details>\n</environment_details>")]),
    answer(use("attempt_completion", result="Fixed.")),
]


def test_the_history_is_silent_beside_the_messages_that_were_shown(tmp_path):
    """Both files tell of the same requests; only ui_messages.json is counted, whichever changes later."""
    folder = Folder(tmp_path)
    folder.put("ui_messages.json", [START, request(100), *DONE])
    folder.put("api_conversation_history.json", HISTORY[:2])
    folder.look()
    folder.put("api_conversation_history.json", HISTORY)
    folder.look()
    folder.sessions.settle(LATER)
    outcomes = folder.sessions.take()
    assert len(only(Turn, outcomes)) == 1
    assert [call.usage for call in only(ModelCall, outcomes)] == [Usage(10, 4000, 300, 20)]
    assert not only(ToolCall, outcomes)


def test_a_history_alone_is_counted_by_its_own_metrics(tmp_path):
    """Without ui_messages.json its metrics count; what is cached cannot be divided and is taken as read."""
    folder = Folder(tmp_path)
    folder.put("api_conversation_history.json", HISTORY)
    folder.look()
    folder.sessions.settle(LATER)
    outcomes = folder.sessions.take()
    (turn,) = only(Turn, outcomes)
    assert (turn.usage, turn.cost, turn.exit) == (Usage(20, 8600, 0, 40), 0.02, "success")
    assert [call.model for call in only(ModelCall, outcomes)] == ["claude-sonnet-4-5"] * 2
    assert [(tool.name, tool.status) for tool in only(ToolCall, outcomes)] == [("read_file", "ok")]


def test_a_history_that_was_silent_stays_silent(tmp_path):
    """Messages that are deleted later were counted all the same."""
    path = tmp_path / TASK / "api_conversation_history.json"
    path.parent.mkdir()
    (path.parent / "ui_messages.json").write_text("[]")
    reader = HistoryReader()
    assert events(*HISTORY[:2], path=str(path), reader=reader) == []
    (path.parent / "ui_messages.json").unlink()
    assert events(*HISTORY, path=str(path), reader=reader) == []


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        ("[read_file for 'x'] Result:\nimport os", ("ok", "", None)),
        ("[read_file for 'x'] Result:\nThe tool execution failed with the following error:\n", "tool_error"),
        (
            "[execute_command for 'make'] Result:\nCommand executed.\nExit code: 2\n",
            ("error", "tool_error", 2),
        ),
        ("[execute_command for 'rm x'] Result:\nThe user denied this operation.", "denied"),
    ],
)
def test_results_are_texts_that_follow_their_calls(tmp_path, result, expected):
    """They pair by order, and what failed is only in the words."""
    found = events(
        HISTORY[0],
        answer(use("tool_a"), ts=T + 500),
        spoken([words(result)], ts=T + 700),
        path=str(tmp_path / TASK / "api_conversation_history.json"),
        reader=HistoryReader(),
    )
    (called,), (returned,) = only(Called, found), only(Returned, found)
    assert called.call == returned.call
    assert returned.time - called.time == 200_000_000
    if isinstance(expected, str):
        expected = ("error", expected, None)
    assert (returned.status, returned.error_type, returned.exit_code) == expected


def test_calls_written_in_the_text_are_told_by_their_results(tmp_path):
    """Without tool_use blocks the result names the tool; a result of talk is no tool; feedback is a turn."""
    found = events(
        HISTORY[0],
        answer(words("<search_files>...</search_files>")),
        spoken([words("[search_files for 'x' in '.'] Result:\nFound 3")]),
        answer(words("<attempt_completion>...</attempt_completion>")),
        spoken([words("[attempt_completion] Result:\nThe user says:\n<feedback>\nMore\n</feedback>")]),
        answer(words("<ask_followup_question>...</ask_followup_question>")),
        spoken([words("[ask_followup_question for 'Which?'] Result:\n<answer>\nThat\n</answer>")]),
        path=str(tmp_path / TASK / "api_conversation_history.json"),
        reader=HistoryReader(),
    )
    assert [event.name for event in only(Called, found)] == ["search_files"]
    assert len(only(Prompted, found)) == 2
    assert len(only(Closed, found)) == 1
    assert len({event.call for event in only(Replied, found)}) == 3


# ---------------------------------------------------------------------------------------- tokens


def test_the_input_is_told_without_the_cache():
    """Unlike that of the CLI: all four kinds are disjoint as they are, and the cost is the agent's."""
    (reply,) = only(Replied, events(START, request(100)))
    assert (reply.usage, reply.cost, reply.final) == (Usage(10, 4000, 300, 20), 0.01, True)
    assert (reply.model, reply.provider) == ("claude-sonnet-4-5", "anthropic")


def test_the_input_of_roo_and_kilo_holds_the_cache():
    """They name the protocol, and tell the whole input for each; less than the cache cannot hold it."""
    found = events(
        START,
        request(100, (5000, 20, 300, 4000), apiProtocol="anthropic"),
        request(200, (10, 20, 300, 4000), apiProtocol="anthropic"),
    )
    assert [reply.usage for reply in only(Replied, found)] == [
        Usage(700, 4000, 300, 20),
        Usage(10, 4000, 300, 20),
    ]


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("deepseek-chat", [(300, 0), (200, 0)]),
        ("some-model", [(300, 0), (200, 0)]),
        ("claude-sonnet-4-5", [(0, 300), (0, 200)]),
    ],
)
def test_misses_of_the_cache_are_input_where_no_other_input_is_told(model, expected):
    """DeepSeek's shape: no request has tokensIn, and what was written to the cache was priced as input."""
    info = {"providerId": "p", "modelId": model}
    found = events(
        START, request(100, (0, 20, 300, 40), info=info), request(200, (0, 20, 200, 40), info=info)
    )
    assert [(r.usage.input, r.usage.cache_write) for r in only(Replied, found)] == expected


def test_a_model_that_tells_input_writes_to_the_cache():
    """One request with input of its own, and cacheWrites are what they are called."""
    info = {"providerId": "p", "modelId": "some-model"}
    found = events(
        START, request(100, (5, 20, 300, 40), info=info), request(200, (0, 20, 200, 40), info=info)
    )
    assert [r.usage.cache_write for r in only(Replied, found)] == [300, 200]


def test_requests_without_numbers_are_no_calls():
    """Those that run, those that were cancelled before anything came, and those with zeros only."""
    found = events(
        START,
        say(100, "api_req_started", {"request": "..."}),
        request(200, (0, 0, 0, 0), 0, cancelReason="user_cancelled"),
        request(300, (0, 0, 0, 0), 0, cancelReason="streaming_failed", streamingFailedMessage="{}"),
    )
    assert not only(Replied, found)


def test_numbers_in_a_message_of_their_own_belong_to_the_request_before():
    """Older files have `api_req_finished`."""
    found = events(
        START,
        say(100, "api_req_started", {"request": "..."}),
        say(900, "api_req_finished", {"tokensIn": 7, "tokensOut": 8, "cost": 0.5}),
    )
    (reply,) = only(Replied, found)
    assert (reply.call, reply.usage, reply.cost) == (f"{TASK}/{T + 100}", Usage(7, 0, 0, 8), 0.5)


def test_removed_requests_are_added(tmp_path):
    """A file found with `deleted_api_reqs` tells what was used by requests that it no longer holds."""
    folder = Folder(tmp_path)
    deleted = say(300, "deleted_api_reqs", {"tokensIn": 5, "tokensOut": 6, "cost": 0.25})
    folder.put("ui_messages.json", [START, request(100), deleted, *DONE])
    folder.look()
    (turn,) = folder.outcomes(Turn)
    assert (turn.usage, turn.cost) == (Usage(15, 4000, 300, 26), 0.26)


def test_removed_requests_that_were_counted_are_not_added_again(tmp_path):
    """Followed live, they were read before a checkpoint was restored: only what was never seen is added."""
    folder = Folder(tmp_path)
    folder.put("ui_messages.json", [START, request(100), request(200, (5, 6, 0, 0), 0.25)])
    folder.look()
    deleted = {"tokensIn": 8, "tokensOut": 6, "cacheWrites": 0, "cacheReads": 0, "cost": 0.35}
    folder.put("ui_messages.json", [START, request(100), say(300, "deleted_api_reqs", deleted), *DONE])
    folder.look()
    folder.sessions.settle(LATER)
    outcomes = folder.sessions.take()
    (turn,), (added,) = only(Turn, outcomes), only(UsageAdded, outcomes)
    assert (added.usage, round(added.cost, 9)) == (Usage(input=3), 0.1)
    assert (turn.usage, turn.cost) == (Usage(18, 4000, 300, 26), 0.36)


def test_what_subagents_used_is_added_once():
    """They have no messages of their own; their sum has, in newer versions, and it is no model call."""
    used = say(300, "subagent_usage", {"tokensIn": 50, "tokensOut": 6, "cost": 0.5})
    found = events(START, request(100), used, used)
    (measured,) = only(Measured, found)
    assert (measured.usage, measured.cost) == (Usage(input=50, output=6), 0.5)
    assert len(only(Replied, found)) == 1


# ----------------------------------------------------------------------------------------- turns


@pytest.mark.parametrize("first", ["task", "text"])
def test_what_begins_a_turn(first):
    """The first message and every feedback; not the model's text, nor a question whether to go on."""
    found = events(
        say(0, first, "Fix it"),
        request(100),
        say(200, "text", "I will."),
        *DONE,
        ask(20000, "resume_completed_task"),
        say(30000, "user_feedback", "More"),
        request(30100),
        ask(40000, "resume_task"),
    )
    assert [event.turn for event in only(Prompted, found)] == [f"{TASK}/{T}", f"{TASK}/{T + 30000}"]


def test_an_answer_belongs_to_the_turn():
    """After a question of the model the feedback is its answer; the next one is a turn."""
    found = events(
        START,
        request(100),
        ask(200, "followup", {"question": "Which?"}),
        say(5000, "user_feedback", "That"),
        request(5100),
        *DONE,
        say(30000, "user_feedback", "More"),
    )
    assert [event.time for event in only(Prompted, found)] == [ms_ns(T), ms_ns(T + 30000)]


def test_a_completion_said_and_asked_is_one_end(tmp_path):
    """And a success, with the reply as long as it was shown."""
    folder = Folder(tmp_path)
    folder.put("ui_messages.json", [START, request(100), say(2500, "text", "Hm"), *DONE])
    folder.look()
    folder.sessions.settle(LATER)
    outcomes = folder.sessions.take()
    (turn,), (call,) = only(Turn, outcomes), only(ModelCall, outcomes)
    assert (turn.exit, turn.status, turn.end) == ("success", "ok", ms_ns(T + 9001))
    assert (call.start, call.end) == (ms_ns(T + 100), ms_ns(T + 9000))


def test_an_end_that_is_written_again_does_not_end_the_next_turn():
    """A checkpoint's hash is added to a message that was shown before the person went on."""
    reader = UiReader()
    first = [START, request(100), *DONE, say(30000, "user_feedback", "More"), request(30100)]
    events(*first, reader=reader)
    again = {**DONE[0], "lastCheckpointHash": "abc"}
    record = Record("ui_messages", f"/h/{TASK}/ui_messages.json", 2, 0, Raw(json.dumps(again).encode()))
    assert list(reader.read(record)) == []


def test_a_cancelled_turn_was_interrupted(tmp_path):
    """Also when more of the reply is shown after the request that tells of it, and with a tool at work."""
    folder = Folder(tmp_path)
    folder.put(
        "ui_messages.json",
        [
            START,
            request(100, (0, 0, 0, 0), 0, cancelReason="user_cancelled"),
            say(500, "text", "I will"),
            say(600, "command", "sleep 100"),
            ask(1500, "resume_task"),
        ],
    )
    folder.look()
    folder.sessions.settle(LATER)
    outcomes = folder.sessions.take()
    (turn,), (tool,) = only(Turn, outcomes), only(ToolCall, outcomes)
    assert (turn.exit, turn.error_type) == ("interrupted", "interrupted")
    assert (tool.status, tool.error_type) == ("interrupted", "interrupted")
    assert not only(ModelCall, outcomes)


def test_a_reply_that_broke_off_with_numbers_is_a_failed_call():
    """Its tokens are counted, not as the final word."""
    found = events(START, request(100, cancelReason="streaming_failed"), ask(900, "resume_task"))
    (reply,), (noted,), (closed,) = only(Replied, found), only(Noted, found), only(Closed, found)
    assert (reply.status, reply.error_type, reply.final, reply.cut) == (
        "error",
        "provider_error",
        False,
        True,
    )
    assert noted.kind == "provider_error"
    assert (closed.status, closed.error_type) == ("error", "provider_error")


def test_a_task_that_was_left_and_resumed_was_interrupted():
    """Nothing tells that the editor was closed but the question whether to go on."""
    (closed,) = only(Closed, events(START, request(100), ask(900, "resume_task")))
    assert closed.status == "interrupted"


def test_retries_are_notes_and_no_calls(tmp_path):
    """However many; a request that succeeds after them goes on with the turn."""
    folder = Folder(tmp_path)
    folder.put(
        "ui_messages.json",
        [
            START,
            request(100, (0, 0, 0, 0), 0, cancelReason="retries_exhausted"),
            say(200, "error_retry", {"attempt": 1, "maxAttempts": 3, "delaySeconds": 2}),
            say(2300, "api_req_retried"),
            ask(4500, "api_req_failed", '{"message":"429"}'),
            request(8000),
            *DONE,
        ],
    )
    folder.look()
    folder.sessions.settle(LATER)
    outcomes = folder.sessions.take()
    (turn,) = only(Turn, outcomes)
    assert [event.name for event in turn.events] == ["provider_error", "retry", "retry", "retry"]
    assert turn.events[1].attrs == {"attempt": 1, "max_attempts": 3}
    assert (len(only(ModelCall, outcomes)), turn.exit) == (1, "success")


def test_a_turn_given_up_after_a_failure_has_failed():
    """The person says something else instead of trying again."""
    found = events(START, ask(500, "api_req_failed", "429"), say(60000, "user_feedback", "Forget it"))
    (closed,) = only(Closed, found)
    assert (closed.turn, closed.status, closed.error_type) == (f"{TASK}/{T}", "error", "provider_error")


# ----------------------------------------------------------------------------------------- tools


def tools(*messages):
    found = events(START, request(100), *messages, request(8000))
    starts = {event.call: event for event in only(Called, found)}
    return [
        (starts[end.call].name, (end.time - starts[end.call].time) // 10**6, end.error_type, end.source)
        for end in only(Returned, found)
    ]


def test_tools_end_when_something_else_is_shown():
    """Without ids and results; a partial message is no call, asked ones hold the wait for approval."""
    assert tools(
        say(900, "tool", {"tool": "readFile"}, partial=True),
        say(1000, "tool", {"tool": "readFile", "path": "x"}),
        ask(2000, "tool", {"tool": "editedExistingFile", "path": "x"}),
        say(2500, "checkpoint_created"),
    ) == [("readFile", 1000, "", "estimate"), ("editedExistingFile", 500, "", "estimate")]


def test_a_command_runs_while_its_output_is_shown():
    """The output is no end: the next message of another kind is."""
    assert tools(
        say(1000, "command", "make", commandCompleted=True),
        say(1200, "command_output", "cc"),
        ask(3000, "command_output", "still"),
        say(5000, "command_output", "done"),
    ) == [("command", 7000, "", "timestamps")]


def test_a_call_of_an_mcp_server_has_a_response():
    """Its name was said before; an error is in the words."""
    assert tools(
        ask(900, "use_mcp_server", {"type": "use_mcp_tool", "serverName": "s", "toolName": "lookup"}),
        say(1000, "mcp_server_request_started"),
        say(1300, "mcp_server_response", "Error:\nno such thing"),
    ) == [("lookup", 300, "tool_error", "timestamps")]


def test_an_error_shown_after_a_tool_is_its_error():
    """A refusal in words denies the tool that was asked for."""
    assert tools(
        say(1000, "tool", {"tool": "readFile"}),
        say(1100, "error", "Error reading file"),
        ask(2000, "command", "rm -r x"),
        say(4000, "user_feedback", "No!"),
    ) == [("readFile", 100, "tool_error", "estimate"), ("command", 2000, "denied", "estimate")]


def test_other_messages_say_nothing():
    """Progress, checkpoints, thoughts and results of subagents."""
    found = events(
        START,
        say(100, "task_progress", "- [ ] a"),
        say(200, "checkpoint_created"),
        say(300, "reasoning", "Hm"),
        say(400, "text", "Subagent results: Total: 5 Tool calls: 99"),
    )
    assert [type(event) for event in found] == [Prompted]


# ----------------------------------------------------------------------------- model, version, place


@pytest.mark.parametrize(("at", "model"), [(100, "old-model"), (5000, "new-model")])
def test_the_metadata_names_the_model_where_messages_do_not(tmp_path, at, model):
    """By the time from which on it was used."""
    folder = Folder(tmp_path)
    uses = [(50, "old-model"), (4000, "new-model")]
    usage = [{"ts": T + at, "model_id": name, "model_provider_id": "p", "mode": "act"} for at, name in uses]
    history = [{"ts": T, "os_name": "linux", "cline_version": "3.33.1"}]
    folder.put("task_metadata.json", {"model_usage": usage, "environment_history": history})
    folder.put("ui_messages.json", [START, request(at, info=None), *DONE])
    folder.look()
    (call,) = folder.outcomes(ModelCall)
    assert (call.model, call.context.version) == (model, "3.33.1")


def details(model):
    mode = f"# Current Mode\n<slug>code</slug>\n<name>Code</name>\n<model>{model}</model>\n"
    return f"<environment_details>\n{mode}</environment_details>"


def test_the_request_names_the_model_where_nothing_else_does():
    """Roo Code's and Kilo Code's messages have none; what they send ends with it. It holds until it is changed."""
    first, second = (say(at, "api_req_started", {"request": details(f"m-{at}")}) for at in (100, 900))
    counted = [request(at, info=None, request="Loading...") for at in (100, 500, 900)]
    found = events(START, first, *counted[:2], second, counted[2])
    assert [reply.model for reply in only(Replied, found) if reply.usage] == ["m-100", "m-100", "m-900"]
    named = events(START, request(100, request=details("other")))
    assert [reply.model for reply in only(Replied, named)] == ["claude-sonnet-4-5"]


@pytest.mark.parametrize(("at", "model"), [(100, "old/model"), (4000, "new/model"), (9000, "new/model")])
def test_the_history_names_the_model_where_requests_are_not_shown(tmp_path, at, model):
    """By the message that was sent with the request: it is written down a moment later."""
    folder = Folder(tmp_path)
    sent = [
        spoken([words("<task>\nFix it\n</task>"), words(details("old/model"))], ts=T + 120),
        answer(words("so"), ts=T + 900),
        spoken([words("[read_file for 'x'] Result:"), words(details("new/model"))], ts=T + 4020),
    ]
    folder.put("ui_messages.json", [START, request(at, info=None, request=None, apiProtocol="openai"), *DONE])
    folder.put("api_conversation_history.json", sent)
    folder.look()
    assert [call.model for call in folder.outcomes(ModelCall)] == [model]


def test_without_metadata_the_model_is_unknown():
    """Nothing is invented."""
    (reply,) = only(Replied, events(START, request(100, info=None)))
    assert (reply.model, reply.usage) == ("", Usage(10, 4000, 300, 20))


def test_the_request_tells_the_folder():
    """The first one holds the details of the environment."""
    details = "<environment_details>\n# Current Working Directory (/home/u/shop) Files\na.py\n"
    found = events(START, say(100, "api_req_started", {"request": details, "tokensIn": 3}))
    assert [event.cwd for event in only(Started, found)] == ["/home/u/shop"]


@pytest.mark.parametrize("root", [root.path for root in cline.TASKS])
def test_tasks_are_found_in_every_editor(tmp_path, root):
    """Those of Cline, Roo Code and Kilo Code; other files of the folder are left alone."""
    folder = tmp_path / root / TASK
    folder.mkdir(parents=True)
    for name in ("ui_messages", "api_conversation_history", "task_metadata", "history_item", "_index"):
        (folder / f"{name}.json").write_text("[]")
    sources = Finder([cline.FORMAT], [str(tmp_path)], own_home=False, environ={}).scan()
    kinds = {source.files.kind for source in sources}
    assert kinds == {"ui_messages", "api_conversation_history", "task_metadata"}
    assert all(cline.FORMAT.roots[source.files.root].path == root for source in sources)


def test_the_files_of_a_task_are_one_unit():
    """Cline's folders are named by their time; those of Roo are not, and their messages tell it."""
    assert task_unit(f"/h/tasks/{TASK}/ui_messages.json", b"") == (ms_ns(T), TASK)
    assert task_unit("/h/tasks/0f3a/ui_messages.json", b'[{"ts":1760000000000,') == (ms_ns(T), "0f3a")


# ------------------------------------------------------------------------------------ as it grows


def test_a_task_that_grows_in_place_is_the_same_as_read_whole(tmp_path):
    """Requests get their numbers later, partial messages become whole: every look finds only what is new."""
    command = say(4000, "command", "make")
    whole = [
        START,
        request(100),
        say(1500, "text", "I look."),
        say(3000, "tool", {"tool": "readFile", "path": "x"}),
        request(3500, (1, 2, 3, 4)),
        {**command, "commandCompleted": True},
        say(5000, "command_output", "ok"),
        request(7000, (5, 6, 7, 8)),
        *DONE,
    ]
    bare = {at: say(at, "api_req_started", {"request": "..."}) for at in (100, 3500, 7000)}
    steps = [
        [START],
        [START, bare[100]],
        [START, bare[100], say(1500, "text", "I lo", partial=True)],
        [START, bare[100], whole[2], say(3000, "tool", {"tool": "readFile"}, partial=True)],
        whole[:4],
        [*whole[:4], bare[3500]],
        [*whole[:4], bare[3500], command],
        [*whole[:5], command, whole[6]],
        [*whole[:7], bare[7000]],
        [*whole[:8], DONE[0]],
        whole,
    ]
    results = []
    for name, looks in (("whole", [whole]), ("grown", steps)):
        folder = Folder(tmp_path / name)
        for messages in looks:
            folder.put("ui_messages.json", messages)
            folder.look()
        folder.sessions.settle(LATER)
        results.append(sorted(repr(outcome) for outcome in folder.sessions.take()))
        turns = [text for text in results[-1] if text.startswith("Turn(")]
        assert len(turns) == 1
    assert results[0] == results[1]
    assert sum(text.startswith("ModelCall(") for text in results[0]) == 3
    assert sum(text.startswith("ToolCall(") for text in results[0]) == 2


@pytest.mark.parametrize("junk", [None, True, 7, -1.5, 1e300, "x", [], [[]], {}, {"a": 1}])
def test_any_type_anywhere_costs_no_more_than_its_place(junk):
    """Neither a message nor a part of it can stop the reading."""
    for message in (START, request(100), say(200, "tool", {"tool": "a"}), DONE[0], *HISTORY):
        for name in message:
            for reader in (UiReader(), HistoryReader(), TaskMetadataReader()):
                events({**message, name: junk}, START, request(100), reader=reader)
    for name in ("tokensIn", "tokensOut", "cacheReads", "cost", "cancelReason", "request", "apiProtocol"):
        events(START, request(100, **{name: junk}) if name not in ("cost", "request") else request(100))
        events(START, say(100, "api_req_started", {name: junk}), say(200, "deleted_api_reqs", {name: junk}))
    for name in ("model_usage", "environment_history"):
        for value in (junk, [junk], [{"cline_version": junk}]):
            events({name: value}, reader=TaskMetadataReader())
    assert list(task_entries(json.dumps([junk]).encode()))
    assert len(only(Replied, events(junk, START, request(100)))) == 1


def test_a_readers_memory_stays_small():
    """It is saved with every commit."""
    reader = UiReader()
    events(START, *(request(100 + 10 * i) for i in range(5 * KEEP)), reader=reader)
    assert len(reader.counted) == KEEP
    assert len(msgspec.msgpack.encode(reader)) < 20_000

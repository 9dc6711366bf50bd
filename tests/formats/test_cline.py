"""Cline's documents and logs become the right turns, calls and ends, read whole or followed as they are written."""

import json
import os
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import Raw

from spantail.formats import cline
from spantail.formats.cline.companions import HooksReader, ManifestReader
from spantail.formats.cline.messages import KEEP, MessagesReader, task_digest
from spantail.formats.cline.results import outcome
from spantail.formats.cline.shapes import Hook, entries, unit
from spantail.formats.times import iso_ns, ms_ns
from spantail.model import (
    Called,
    Closed,
    Context,
    Ended,
    Linked,
    ModelCall,
    Noted,
    Prompted,
    Record,
    Replied,
    Returned,
    RunEnded,
    RunStarted,
    Started,
    Subagent,
    ToolCall,
    Turn,
    Usage,
)
from spantail.session.sessions import Sessions
from spantail.session.settle import Rules
from spantail.state.ledger import Ledger
from spantail.tail.document import DocumentTail
from spantail.tail.finder import Finder
from spantail.tail.globs import Globs
from spantail.tail.lines import LineTail
from spantail.tail.source import Source

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures" / "cline"
CASES = sorted(path.parent for path in FIXTURES.glob("*/truth.json"))
MAIN = "1794981186975_jvhfw"
PATH = f"/h/.cline/data/sessions/{MAIN}/{MAIN}.messages.json"
AGENT = f"/h/.cline/data/sessions/{MAIN}/agent_1794981258411_vhz2fk.messages.json"
T = 1794981187000


class Quiet:
    """Notices of a tail that has nothing to complain of."""

    def bad_record(self, *said):
        raise AssertionError(said)

    unreadable = gone = restarted = bad_record


class Limits(msgspec.Struct):
    record_bytes: int = 1 << 26
    document_bytes: int = 1 << 28


def sessions():
    return Sessions(
        Context(agent="cline"), Rules(), Ledger(), lambda *_, **__: None, os.path.basename, lambda _: None
    )


def kind_of(path: Path):
    """The row's files that a path belongs to; None for those that are not read."""
    if path.name == "hooks.jsonl":
        return cline.FORMAT.files[0]
    if path.name.endswith(".compaction.json"):
        return None
    return next(files for files in cline.FORMAT.files if path.match(files.glob))


class Followed:
    """Files of a home with their tails and readers, whose memory is stored after every look."""

    def __init__(self, home: Path):
        self.home = home
        self.sessions = sessions()
        self.sources: dict[Path, Any] = {}
        self.clock = count(1)

    def add(self, path: Path):
        files = kind_of(path)
        source = Source(str(path), cline.FORMAT, files, str(self.home), "")
        self.sources[path] = [source, None, msgspec.msgpack.encode(files.reader())]

    def look(self):
        """One wake: companions, main files, then the others."""
        for path in sorted(self.sources, key=self._rank):
            source, cursor, memory = self.sources[path]
            tail: Any
            if source.files.storage == "lines":
                tail = LineTail(source, cursor, Quiet(), Limits())
            else:
                tail = DocumentTail(source, cursor, Quiet(), Limits(), clock=lambda: 0)
            reader = msgspec.msgpack.decode(memory, type=source.files.memory)
            if not tail.changed():
                continue
            for record in tail.read(1 << 30, 0).records:
                self.sessions.apply(list(reader.read(record)))
            self.sources[path][1:] = tail.cursor(), msgspec.msgpack.encode(reader)

    def _rank(self, path):
        files = self.sources[path][0].files
        return (not files.companion, not files.main, path)

    def outcomes(self, now=2_000_000_000 * 10**9):
        self.sessions.settle(now)
        return self.sessions.take()

    def put(self, path: Path, data: bytes):
        """In place, as the agent writes; the mtime moves as if it were a while later."""
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("r+b" if path.exists() else "wb") as file:
            file.write(data)
            file.truncate()
        moment = next(self.clock) * 10**9
        os.utime(path, ns=(moment, moment))
        if path not in self.sources:
            self.add(path)


def files_of(case: Path) -> list[Path]:
    data = case / "home" / ".cline" / "data"
    paths = [*data.glob("sessions/*/*.json"), *data.glob("logs/hooks.jsonl")]
    return sorted(path for path in paths if kind_of(path) is not None)


def whole(case: Path):
    followed = Followed(case / "home")
    for path in files_of(case):
        followed.add(path)
    followed.look()
    return followed.outcomes()


def as_set(outcomes):
    """Without what only the manifest tells: read whole, it comes after the messages (see the table's row)."""
    found = []
    for one in outcomes:
        context = msgspec.structs.replace(one.context, branch="", provider="")
        found.append(msgspec.json.encode([type(one).__name__, msgspec.structs.replace(one, context=context)]))
    return sorted(found)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_session_followed_as_it_is_written_is_the_same_as_read_whole(case, tmp_path):
    """Each message rewrites its document in place, each hook appends, the manifest ends the run last."""
    originals = files_of(case)
    steps: dict[int, list[tuple[Path, int]]] = {}
    documents = {}
    for path in originals:
        if path.suffix == ".jsonl":
            for number, line in enumerate(path.read_bytes().splitlines(keepends=True), 1):
                steps.setdefault(iso_ns(json.loads(line)["ts"]), []).append((path, number))
            continue
        documents[path] = json.loads(path.read_bytes())
        for number, message in enumerate(documents[path].get("messages", ()), 1):
            steps.setdefault(ms_ns(message["ts"]), []).append((path, number))
    followed = Followed(tmp_path)
    for path, document in documents.items():
        begun = {k: v for k, v in document.items() if k not in ("ended_at", "exit_code")}
        begun |= {"messages": []} if "messages" in document else {"status": "running"}
        followed.put(tmp_path / path.relative_to(case), json.dumps(begun, indent=2).encode())
    followed.look()
    outcomes = []
    for time in sorted(steps):
        for path, number in steps[time]:
            there = tmp_path / path.relative_to(case)
            if path.suffix == ".jsonl":
                followed.put(there, b"".join(path.read_bytes().splitlines(keepends=True)[:number]))
            else:
                document = documents[path]
                grown = {**document, "messages": document["messages"][:number]}
                followed.put(there, json.dumps(grown, indent=2).encode())
        followed.look()
        outcomes += followed.outcomes(now=time)
    for path in originals:
        followed.put(tmp_path / path.relative_to(case), path.read_bytes())
    followed.look()
    outcomes += followed.outcomes()
    assert as_set(outcomes) == as_set(whole(case))


# ------------------------------------------------------------------------- records made by hand


def user(text, at, id_=None, **more):
    return {
        "id": id_ or f"u{at}",
        "role": "user",
        "content": [{"type": "text", "text": text}],
        "ts": T + at,
        **more,
    }


def reply(at, *tools, id_=None, metrics=(100, 10, 0, 0), **more):
    content: list[dict[str, Any]] = [{"type": "text", "text": "so"}]
    content += [{"type": "tool_use", "id": i, "name": n, "input": given} for i, n, given in tools]
    names = ("inputTokens", "outputTokens", "cacheReadTokens", "cacheWriteTokens", "cost")
    message: dict[str, Any] = {"id": id_ or f"m{at}", "role": "assistant", "content": content, "ts": T + at}
    if metrics is not None:
        message["metrics"] = dict(zip(names, metrics, strict=False))
    return {**message, "modelInfo": {"id": "model-1", "provider": "anthropic"}, **more}


def result(at, id_, content, **more):
    block = {"type": "tool_result", "tool_use_id": id_, "content": content, **more}
    return {"id": f"r{at}", "role": "user", "content": [block], "ts": T + at}


def records(messages, path=PATH, agent="lead", **header):
    document = {"version": 1, "agent": agent, "origin": header, "messages": messages}
    for position, (_, raw) in enumerate(entries(json.dumps(document).encode())):
        yield Record("session", path, position, 0, raw if isinstance(raw, Raw) else Raw(raw))


def events(*messages, reader=None, path=PATH, **header):
    reader = reader or MessagesReader()
    return [event for record in records(messages, path, **header) for event in reader.read(record)]


def settled(*messages, path=PATH, **header):
    at = sessions()
    at.apply(events(*messages, path=path, **header))
    at.settle(2 * 10**18)
    return at.take()


def only(kind, found):
    (one,) = (o for o in found if isinstance(o, kind))
    return one


RUN = ("call_0000", "run_commands", {"commands": ["x"]})
OK = [{"query": "x", "result": "y", "success": True}]


def test_the_input_is_told_without_the_cache():
    """inputTokens holds the cache, whatever the provider; less than the cache cannot hold it."""
    found = settled(user("go", 0), reply(1, metrics=(4511, 220, 3000, 1500, 0.25)))
    call = only(ModelCall, found)
    assert call.usage == Usage(input=11, cache_read=3000, cache_write=1500, output=220)
    assert (call.cost, call.cost_source, call.final) == (0.25, "reported", True)
    assert (call.model, call.response_id) == ("model-1", "m1")
    call = only(ModelCall, settled(user("go", 0), reply(1, metrics=(7, 1, 900, 0))))
    assert call.usage == Usage(input=7, cache_read=900, output=1)


def test_metrics_on_the_last_message_only():
    """The documented shape: the other replies are calls whose usage nobody knows."""
    found = settled(user("go", 0), reply(1, RUN, metrics=None), result(2, "call_0000", OK), reply(3))
    assert [call.usage for call in found if isinstance(call, ModelCall)] == [
        None,
        Usage(input=100, output=10),
    ]
    assert only(Turn, found).usage == Usage(input=100, output=10)
    assert only(Turn, found).status == "ok"


def test_metrics_that_come_later_are_added_to_their_call():
    """A message written anew with its usage is no second call, and its tool is no repeated one."""
    reader, at = MessagesReader(), sessions()
    first = [user("go", 0), reply(1, RUN, metrics=None)]
    at.apply(events(*first, reader=reader))
    record = list(records([user("go", 0), reply(1, RUN)]))[2]
    at.apply(reader.read(record))
    at.apply(events(user("go", 0), reply(1, RUN), result(2, "call_0000", OK), reply(3), reader=reader)[-2:])
    at.settle(2 * 10**18)
    found = at.take()
    assert only(Turn, found).usage == Usage(input=200, output=20)
    assert not only(ToolCall, found).repeated


def test_replies_without_any_token_are_no_calls():
    """A stream that broke off; with tools it was a reply of a provider that tells no usage."""
    found = settled(user("go", 0), reply(1, metrics=(0, 0, 0, 0)), user("again", 9), reply(10))
    assert only(ModelCall, found).response_id == "m10"
    assert [turn.status for turn in found if isinstance(turn, Turn)] == ["pending", "ok"]
    found = settled(user("go", 0), reply(1, RUN, metrics=(0, 0, 0, 0)), result(2, "call_0000", OK), reply(3))
    assert [call.usage for call in found if isinstance(call, ModelCall)] == [
        None,
        Usage(input=100, output=10),
    ]


def test_an_error_message_ends_the_turn():
    """It stands there as a reply, by its id or by how it is shown; and is told once."""
    for error in (
        reply(1, id_="error_4d81", metrics=None),
        reply(1, metrics=None, metadata={"displayOnly": True, "displayRole": "error"}),
    ):
        found = settled(user("go", 0), error, error)
        turn = only(Turn, found)
        assert (turn.status, turn.error_type, turn.exit) == ("error", "provider_error", "error")
        assert [event.name for event in turn.events] == ["provider_error"]
        assert not any(isinstance(o, ModelCall) for o in found)


@pytest.mark.parametrize(
    ("content", "is_error", "expected"),
    [
        (OK, False, ("ok", "", None)),
        ([{"success": True}, {"success": False, "error": "no"}], False, ("error", "tool_error", None)),
        ([{"success": False, "error": "Command exited with code 3"}], False, ("error", "tool_error", 3)),
        (json.dumps([{"success": False, "error": "x"}]), False, ("error", "tool_error", None)),
        (json.dumps({"success": False, "error": "x"}), False, ("error", "tool_error", None)),
        (json.dumps({"text": "done", "finishReason": "completed"}), False, ("ok", "", None)),
        (json.dumps({"finishReason": "error"}), False, ("error", "tool_error", None)),
        (json.dumps({"finishReason": "aborted"}), False, ("interrupted", "interrupted", None)),
        (json.dumps({"error": "unknown agent"}), False, ("error", "tool_error", None)),
        (
            [{"success": False, "error": "Command failed: Command was aborted"}],
            False,
            ("interrupted",) * 2 + (None,),
        ),
        ("Command failed: Command was aborted", False, ("interrupted", "interrupted", None)),
        ([{"success": False, "error": "Command timed out after 30s"}], False, ("error", "timeout", None)),
        ([{"success": False, "error": "Tool use denied by user"}], False, ("error", "denied", None)),
        (
            [{"success": False, "error": "denied\nCommand exited with code 1"}],
            False,
            ("error", "tool_error", 1),
        ),
        ("invalid arguments", True, ("error", "tool_error", None)),
        ("the file says: Command was aborted.", False, ("ok", "", None)),
        ("{not json", False, ("ok", "", None)),
        ([{"type": "text", "text": "hi"}, 3, None], False, ("ok", "", None)),
        (None, False, ("ok", "", None)),
        (7, True, ("error", "tool_error", None)),
    ],
)
def test_how_a_call_ended_is_inside_its_content(content, is_error, expected):
    """A list, a JSON text of a list or of one object, or plain text; one failure is enough."""
    assert outcome(Raw(json.dumps(content).encode()), is_error=is_error) == expected


def test_an_aborted_call_ends_its_turn_unless_the_model_goes_on():
    """Nothing else tells of an interruption in ACP mode."""
    aborted = [{"query": "x", "error": "Command failed: Command was aborted", "success": False}]
    begun = [user("go", 0), reply(1, RUN), result(2, "call_0000", aborted)]
    turn = only(Turn, settled(*begun))
    assert (turn.status, turn.error_type, turn.exit) == ("interrupted", "interrupted", "interrupted")
    turn = only(Turn, settled(*begun, reply(3)))
    assert (turn.status, turn.exit) == ("ok", "success")


def test_a_tool_that_submits_the_result_ends_the_turn():
    """Headless runs can end without a last reply."""
    submit = ("call_0000", "submit_and_exit", {"summary": "done"})
    turn = only(Turn, settled(user("go", 0), reply(1, submit), result(2, "call_0000", "ok")))
    assert (turn.status, turn.exit) == ("ok", "success")


def test_the_calls_of_a_batch_are_estimated_one_after_the_other():
    """Except subagents, which run side by side; a single call is known."""
    tools = [(f"call_000{n}", "run_commands", {}) for n in range(2)]
    spawns = [(f"call_100{n}", "spawn_agent", {"task": f"t{n}"}) for n in range(2)]
    found = settled(
        user("go", 0),
        reply(1000, *tools, *spawns),
        result(2000, "call_0000", OK),
        result(5000, "call_0001", OK),
        result(6000, "call_1000", "{}"),
        result(7000, "call_1001", "{}"),
        reply(8000, ("call_2000", "run_commands", {})),
        result(9000, "call_2000", OK),
        reply(9500),
    )
    took = {o.id: ((o.end - o.start) // 10**6, o.source) for o in found if isinstance(o, ToolCall)}
    assert took == {
        "call_0000": (1000, "estimate"),
        "call_0001": (3000, "estimate"),
        "call_1000": (5000, "estimate"),
        "call_1001": (6000, "estimate"),
        "call_2000": (1000, "timestamps"),
    }


def test_results_of_a_batch_in_one_message_all_began_with_the_reply():
    """With one time for all of them nothing tells them apart."""
    both = result(2000, "call_0000", OK)
    both["content"].append({"type": "tool_result", "tool_use_id": "call_0001", "content": OK})
    found = settled(user("go", 0), reply(1000, RUN, ("call_0001", "run_commands", {})), both, reply(3000))
    assert [(o.end - o.start) // 10**6 for o in found if isinstance(o, ToolCall)] == [1000, 1000]


HOOK = {
    "ts": "2026-11-18T05:53:09.000Z",
    "hookName": "tool_result",
    "sessionContext": {"rootSessionId": MAIN},
    "parent_agent_id": None,
    "tool_result": {
        "id": "call_0001",
        "durationMs": 250,
        "output": [{"success": False, "error": "Command exited with code 2"}],
        "endedAt": "2026-11-18T05:53:09.500Z",
    },
    "postToolUse": {"success": True},
}


def hooked(**changes):
    line = {**HOOK, **changes}
    body = msgspec.json.decode(json.dumps(line).encode(), type=Hook)
    return list(HooksReader().read(Record("hooks", "/h/hooks.jsonl", 0, 0, body)))


@pytest.mark.parametrize("order", ["before", "between", "after"])
def test_hooks_give_the_calls_of_a_batch_their_own_times(order):
    """Before the messages or while the batch runs; what comes after its end changes nothing."""
    batch = [RUN, ("call_0001", "run_commands", {})]
    end = (iso_ns("2026-11-18T05:53:09.500Z") - T * 10**6) // 10**6
    begun = [user("go", 0), reply(1000, *batch)]
    done = [result(end + 1000, "call_0000", OK), result(end + 1000, "call_0001", OK), reply(end + 2000)]
    at, reader = sessions(), MessagesReader()
    if order == "before":
        at.apply(hooked())
    at.apply(events(*begun, reader=reader))
    if order == "between":
        at.apply(hooked())
    for record in list(records(begun + done))[3:]:
        at.apply(reader.read(record))
    if order == "after":
        at.apply(hooked())
    at.settle(2 * 10**18)
    (call,) = (o for o in at.take() if isinstance(o, ToolCall) and o.id == "call_0001")
    if order == "after":
        assert (call.source, call.status) == ("estimate", "ok")
    else:
        assert (call.end - call.start, call.source) == (250 * 10**6, "stated")
        assert call.end == iso_ns("2026-11-18T05:53:09.500Z")
        assert (call.status, call.exit_code) == ("error", 2)


def test_hooks_read_long_before_the_messages_change_no_silence():
    """The log of all sessions is read first in a backlog; two runs stay two runs."""
    at = sessions()
    hour = 3_600_000
    late = {**HOOK["tool_result"], "endedAt": "2026-11-18T09:53:09.500Z"}
    at.apply(hooked(tool_result=late))
    at.apply(events(user("go", 0), reply(1), user("again", 4 * hour), reply(4 * hour + 1)))
    at.settle(2 * 10**18)
    found = at.take()
    assert [type(o) for o in found if isinstance(o, RunStarted | RunEnded)] == [RunStarted, RunEnded] * 2


@pytest.mark.parametrize(
    "changes",
    [
        {"hookName": "tool_call"},
        {"hookName": "session_shutdown", "reason": "failed_external_process_exit"},
        {"hookName": "agent_end", "turn": {"status": "completed"}},
        {"tool_result": None},
        {"sessionContext": None},
        {"sessionContext": {"rootSessionId": 5}},
        {"parent_agent_id": "agent_1"},
        {"tool_result": {"id": "call_1", "endedAt": "2026-11-18T05:53:09.500Z"}},
        {"tool_result": {"id": ["x"]}},
        {"ts": 5, "tool_result": {"id": "call_0001", "endedAt": {}}},
    ],
)
def test_other_hooks_say_nothing(changes):
    """Starts are not starts, ends are logged for all, and short ids belong to nobody."""
    assert hooked(**changes) == []


def test_a_hook_without_a_duration_tells_the_end():
    """And one with a wild duration too."""
    for wild in (None, "long", True, -5, float("1e300")):
        (returned,) = hooked(tool_result={"id": "call_0001", "durationMs": wild})
        assert (returned.duration, returned.source) == (None, None)
        assert returned.end == iso_ns("2026-11-18T05:53:09.000Z")


# ---------------------------------------------------------------------------------- turns


def test_what_begins_a_turn():
    """A message of a person; not results, what goes with them, summaries or notices of the program."""
    prompts = [
        e.turn
        for e in events(
            user("one", 0),
            result(1, "call_0000", OK),
            {
                **result(2, "call_0001", OK),
                "content": [*result(2, "x", OK)["content"], {"type": "text", "text": "note"}],
            },
            user("Context summary", 3, metadata={"kind": "compaction_summary", "displayRole": "system"}),
            user("Context summary", 4, compactionSummary=True),
            user("went wrong", 5, metadata={"kind": "recovery_notice"}),
            user("shown only", 6, metadata={"displayRole": "status"}),
            {"id": "u7", "role": "user", "content": "a plain text", "ts": T + 7},
            {"id": "u8", "role": "user", "content": [{"type": "image", "source": {}}], "ts": T + 8},
            {"id": "u9", "role": "user", "content": [], "ts": T + 9},
            {
                "id": "u10",
                "role": "user",
                "content": [*result(9, "x", OK)["content"], {"type": "text", "text": "<user_input>go"}],
                "ts": T + 10,
            },
        )
        if isinstance(e, Prompted)
    ]
    assert prompts == ["u0", "u7", "u8", "u10"]


def test_a_compaction_in_the_messages_is_noted():
    """It counts, and is no turn."""
    notes = [e for e in events(user("go", 0), user("s", 1, compactionSummary=True)) if isinstance(e, Noted)]
    assert [(note.kind, note.time) for note in notes] == [("compaction", ms_ns(T + 1))]


def test_history_written_anew_disturbs_nothing():
    """A newer version adds fields to old messages: no turn begins or ends by that."""
    aborted = [{"query": "x", "error": "Command was aborted", "success": False}]
    old = [user("one", 0), reply(1, RUN), result(2, "call_0000", aborted), user("two", 10), reply(11)]
    reader, at = MessagesReader(), sessions()
    at.apply(events(*old, user("three", 20), reply(21, ("call_0001", "run_commands", {})), reader=reader))
    again = [{**message, "iteration": 1} for message in old]
    assert [type(e) for e in events(*again, reader=reader)] == [Started]
    at.apply(events(*again, reader=reader))
    for record in list(records([result(22, "call_0001", OK), reply(23)]))[1:]:
        at.apply(reader.read(record))
    at.settle(2 * 10**18)
    turns = [o for o in at.take() if isinstance(o, Turn)]
    assert [(turn.status, turn.tools) for turn in turns] == [("interrupted", 1), ("ok", 0), ("ok", 1)]


def test_a_call_left_open_by_a_kill_is_pending_in_its_own_turn():
    """The session goes on with the next prompt."""
    found = settled(user("one", 0), reply(1, RUN), user("two", 9000), reply(9001))
    assert only(ToolCall, found).status == "pending"
    assert [turn.exit for turn in found if isinstance(turn, Turn)] == ["unknown", "success"]


def test_ids_that_repeat_are_made_whole_by_their_reply():
    """Some servers number the calls of each reply from 0."""
    found = settled(
        user("go", 0),
        reply(1, ("call_0", "run_commands", {})),
        result(2, "call_0", OK),
        reply(3, ("call_0", "run_commands", {"n": 2})),
        result(4, "call_0", [{"success": False}]),
        reply(5),
    )
    assert [(o.id, o.status) for o in found if isinstance(o, ToolCall)] == [
        ("call_0", "ok"),
        ("call_0", "error"),
    ]


def test_messages_without_times_take_the_one_before():
    """And the first one that of its session's id; nothing is ever in 1970."""
    messages = [user("go", 0), reply(1, RUN), result(2, "call_0000", OK), reply(9000)]
    for message in messages[:-1]:
        del message["ts"]
    found = settled(*messages)
    assert {o.start for o in found if isinstance(o, Turn | ToolCall)} == {ms_ns(1794981186975)}
    assert only(Turn, found).end == ms_ns(T + 9000)


@pytest.mark.parametrize("arrives", [0, ms_ns(T + 500_100)])
def test_only_replies_are_dated(arrives):
    """The documented shape. A prompt reaches the disk with its first reply, so what arrives later than that was
    given before it; its reply is no history written anew."""
    first = [user("go", 0), reply(100, RUN), result(150, "call_0000", OK), reply(200, id_="m2")]
    second = [user("more", 0, id_="u2"), reply(500_000, RUN), result(0, "call_0000", OK), reply(500_050)]
    for message in (*first, *second):
        if message["role"] == "user":
            del message["ts"]
    second[1]["content"][1]["id"] = second[2]["content"][0]["tool_use_id"] = "call_0001"
    at = sessions()
    reader = MessagesReader()
    for record in records([*first, *second]):
        at.apply(reader.read(msgspec.structs.replace(record, arrival=arrives)))
    at.settle(2 * 10**18)
    found = at.take()
    assert [(t.human, t.status, t.start, t.end) for t in found if isinstance(t, Turn)] == [
        (True, "ok", ms_ns(1794981186975), ms_ns(T + 200)),
        (True, "ok", ms_ns(T + 500_000), ms_ns(T + 500_050)),
    ]
    assert len([o for o in found if isinstance(o, ModelCall)]) == 4
    assert [(t.source, t.end) for t in found if isinstance(t, ToolCall)] == [
        ("estimate", ms_ns(T + 200)),
        ("estimate", ms_ns(T + 500_050)),
    ]


def test_messages_without_ids_are_told_apart_by_their_place():
    """Two files of one session too."""
    messages = [user("go", 0), reply(1, RUN), result(2, "call_0000", OK), reply(3)]
    for message in messages:
        del message["id"]
    keys = [e.call for path in (PATH, AGENT) for e in events(*messages, path=path) if isinstance(e, Replied)]
    assert len(set(keys)) == 4


@pytest.mark.parametrize("junk", [None, 0, "text", [], {}, [1], {"x": []}, True, 1e300, "\ud83d"])
def test_any_type_anywhere_costs_no_more_than_its_place(junk):
    """A reader never raises, and the turn around the junk is whole."""
    sound = [user("go", 0), reply(1, RUN), result(2, "call_0000", OK), reply(30)]
    for field in ("id", "role", "content", "ts", "metadata", "modelInfo", "metrics", "compactionSummary"):
        odd: list[Any] = [{**message, field: junk} for message in (reply(20), result(21, "call_0000", OK))]
        for block in ("type", "id", "name", "input", "text", "tool_use_id", "content", "is_error"):
            changed = (
                result(22, "call_0000", OK)
                if block in ("tool_use_id", "content", "is_error")
                else reply(22, RUN)
            )
            changed["content"][-1][block] = junk
            odd.append(changed)
        odd += [reply(23) | {"metrics": {"inputTokens": 5, name: junk}} for name in ("inputTokens", "cost")]
        odd.append(junk)
        at, reader = sessions(), MessagesReader()
        for position, message in enumerate([*sound[:3], *odd, sound[3]]):
            raw = Raw(json.dumps(message).replace("\\ud83d", "\ufffd").encode())
            at.apply(reader.read(Record("session", PATH, position + 1, 0, raw)))
        msgspec.msgpack.decode(msgspec.msgpack.encode(reader), type=MessagesReader)
        at.settle(2 * 10**18)
        assert any(isinstance(o, Turn) for o in at.take())


def test_bytes_that_are_no_text_cost_no_message():
    """Broken UTF-8 in a prompt or a result."""
    reader = MessagesReader()
    body = json.dumps(user("go X", 0)).encode().replace(b"X", b"\xff")
    found = list(reader.read(Record("session", PATH, 1, 0, Raw(body))))
    assert [type(e) for e in found] == [Prompted]


def test_a_readers_memory_stays_small():
    """However long a session runs and however many calls it leaves open."""
    reader = MessagesReader()
    for n in range(1000):
        begun = [user("go", 10 * n), reply(10 * n + 1, *((f"call_{n}_{i}", "x", {}) for i in range(100)))]
        events(*begun, reader=reader)
    assert len(reader.calls) <= KEEP
    assert len(msgspec.msgpack.encode(reader)) < 4096


# ------------------------------------------------------------------------------ subagents


def spawned(*tasks):
    """A session that starts a subagent for each task, all at once."""
    calls = [(f"call_spawn{n}", "spawn_agent", {"task": task}) for n, task in enumerate(tasks)]
    results = [result(9000 + n, call[0], '{"finishReason":"completed"}') for n, call in enumerate(calls)]
    return [user("go", 0), reply(100, *calls), *results, reply(10_000)]


def worked(task, at):
    return [
        user(task, at),
        reply(at + 1, (f"call_in{at}", "run_commands", {})),
        result(at + 5, f"call_in{at}", OK),
        reply(at + 6),
    ]


def tree(found):
    spans = {o.span: o for o in found if hasattr(o, "span")}
    return {
        o.id: [getattr(spans[up], "id", None) or type(spans[up]).__name__ for up in above(o, spans)]
        for o in found
        if isinstance(o, ToolCall)
    }


def above(span, spans):
    while span.parent:
        yield span.parent
        span = spans[span.parent]


@pytest.mark.parametrize("order", ["parent first", "subagents first"])
def test_a_subagent_hangs_below_the_call_with_its_task(order):
    """By the words of the task, whichever file is read first."""
    at = sessions()
    parent = events(*spawned("look left", "look right"))
    other = AGENT.replace("vhz2fk", "other")
    nested = [
        *events(*worked("look right", 300), path=AGENT, agent="subagent", subagent="agent_r"),
        *events(*worked("look left", 301), path=other, agent="subagent", subagent="agent_l"),
    ]
    for part in (parent, nested) if order == "parent first" else (nested, parent):
        at.apply(part)
    at.settle(2 * 10**18)
    found = at.take()
    assert tree(found) == {
        "call_spawn0": ["Turn"],
        "call_spawn1": ["Turn"],
        "call_in300": ["Subagent", "call_spawn1", "Turn"],
        "call_in301": ["Subagent", "call_spawn0", "Turn"],
    }
    assert {o.agent_id for o in found if isinstance(o, Subagent)} == {"agent_l", "agent_r"}
    assert only(Turn, found).usage == Usage(input=600, output=60)


def test_equal_tasks_take_their_calls_in_order():
    """The same words twice: the second subagent belongs to the second call."""
    at = sessions()
    at.apply(events(*spawned("look", "look")))
    for n, start in enumerate((300, 400)):
        at.apply(events(*worked("look", start), path=AGENT.replace("vhz2fk", str(n)), agent="subagent"))
    at.settle(2 * 10**18)
    found = tree(at.take())
    assert found["call_in300"] == ["Subagent", "call_spawn0", "Turn"]
    assert found["call_in400"] == ["Subagent", "call_spawn1", "Turn"]


def test_a_subagent_of_a_subagent_hangs_below_its_call():
    """All are sessions of one folder; the tree is made by the calls."""
    at = sessions()
    inner = [user("outer", 300), reply(301, ("call_inner", "spawn_agent", {"task": "inner"}))]
    inner += [result(600, "call_inner", "{}"), reply(601)]
    at.apply(events(*spawned("outer")))
    at.apply(events(*inner, path=AGENT, agent="subagent"))
    at.apply(events(*worked("inner", 400), path=AGENT.replace("vhz2fk", "b"), agent="subagent"))
    at.settle(2 * 10**18)
    assert tree(at.take())["call_in400"] == ["Subagent", "call_inner", "Subagent", "call_spawn0", "Turn"]


def test_a_subagent_that_no_call_names_hangs_below_the_turn():
    """Its calls count all the same, also when its task is missing."""
    for lost in (worked("other words", 300), worked("x", 300)[1:]):
        at = sessions()
        at.apply(events(*spawned("look")))
        at.apply(events(*lost, path=AGENT, agent="subagent"))
        at.settle(2 * 10**18)
        found = at.take()
        assert tree(found)["call_in300"] == ["Subagent", "Turn"]
        assert only(Turn, found).usage == Usage(input=400, output=40)


def test_a_teammate_with_two_tasks_is_two_subagents():
    """In one file, each below the call that ran it, by its name."""
    runs = [("call_team1", "team_run_task", {"agentId": "scout", "task": "first"})]
    again = [("call_team2", "team_run_task", {"agentId": "scout", "task": "second"})]
    at = sessions()
    main = [user("go", 0), reply(100, *runs), result(500, "call_team1", "{}")]
    main += [reply(600, *again), result(900, "call_team2", "{}"), reply(1000)]
    at.apply(events(*main))
    path = AGENT.replace("agent_1794981258411_vhz2fk", "scout__DJGtl5")
    at.apply(
        events(*worked("first", 200), *worked("second", 700), path=path, agent="teammate", subagent="scout")
    )
    at.settle(2 * 10**18)
    found = at.take()
    assert tree(found)["call_in200"] == ["Subagent", "call_team1", "Turn"]
    assert tree(found)["call_in700"] == ["Subagent", "call_team2", "Turn"]
    assert {o.name for o in found if isinstance(o, Subagent)} == {"scout"}


def test_the_task_is_known_through_its_wrapping():
    """The program may put the words of a task between tags."""
    assert task_digest('<user_input mode="act">look left</user_input>\n') == task_digest("look left")
    assert task_digest("look left") != task_digest("look right")


def test_an_older_version_names_the_main_session_in_a_subagents_file():
    """The folder and the file's name tell whose it is, whatever the header says or leaves out."""
    (linked,) = (e for e in events(*spawned("look")) if isinstance(e, Linked))
    for header in ({"agent": "subagent"}, {"agent": ""}):
        (prompted,) = (
            e for e in events(*worked("look", 300), path=AGENT, **header) if isinstance(e, Prompted)
        )
        assert prompted.session == linked.session
    assert linked.call == "call_spawn0"


# ------------------------------------------------------------------------------- manifest


MANIFEST = {
    "session_id": MAIN,
    "status": "running",
    "provider": "anthropic",
    "cwd": "/w/api",
    "metadata": {
        "git": {"branch": "main"},
        "sessionHistoryOrigin": {"version": "3.0.65"},
        "fork": {"forkedFromSessionId": "179_old"},
        "aggregateUsage": {"inputTokens": 99},
    },
}
END = "2026-11-18T05:54:52.598Z"


def manifested(reader=None, path=f"/h/.cline/data/sessions/{MAIN}/{MAIN}.json", **changes):
    body = Raw(json.dumps({**MANIFEST, **changes}).encode())
    return list((reader or ManifestReader()).read(Record("manifest", path, 0, 0, body)))


def test_the_manifest_tells_where_a_session_runs():
    """Before it has ended it tells no end, whichever way it waits."""
    for status in ("running", "idle", "pending", "new word", None, 5):
        (started,) = manifested(status=status)
        assert (started.session, started.time, started.cwd) == (MAIN, 0, "/w/api")
        assert (started.branch, started.version, started.provider) == ("main", "3.0.65", "anthropic")
        assert started.copied_from == "179_old"


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [
        ("completed", 0, "success"),
        ("completed", 3, "error"),
        ("failed", 1, "error"),
        ("cancelled", 0, "interrupted"),
    ],
)
def test_the_manifest_tells_how_a_run_ended(status, code, expected):
    """An exit code of 0 says nothing where the status says more."""
    ended = manifested(status=status, exit_code=code, ended_at=END)[-1]
    assert ended == Ended(session=MAIN, time=iso_ns(END), exit=expected, word=status)


def test_an_end_is_told_once():
    """The manifest is written again for a title or a cost; a second run has another end."""
    reader = ManifestReader()
    ended = {"status": "completed", "exit_code": 0, "ended_at": END}
    assert len(manifested(reader, **ended)) == 2
    assert len(manifested(reader, **ended, title="new")) == 1
    assert len(manifested(reader, status="running")) == 1
    assert len(manifested(reader, status="completed", ended_at="2026-11-18T07:00:00Z")) == 2


def test_a_session_found_dead_by_another_has_the_outcome_of_its_last_turn():
    """The finder writes `failed`, and knows no more than that the process is gone."""
    marked = {"metadata": {"terminal_marker": "failed_external_process_exit", "terminal_marker_at": END}}
    ended = manifested(status="failed", exit_code=1, ended_at=END, **marked)[-1]
    assert (ended.exit, ended.word) == ("", "failed")
    stale = manifested(status="failed", exit_code=1, ended_at="2026-11-19T00:00:00Z", **marked)[-1]
    assert stale.exit == "error"


def test_other_documents_of_the_folder_are_no_manifests():
    """Nor is junk of any type."""
    assert manifested(session_id="another") == []
    assert manifested(session_id=None) == []
    for junk in (b"[]", b"3", b'"x"', b"null"):
        assert list(ManifestReader().read(Record("manifest", "/s/x/x.json", 0, 0, Raw(junk)))) == []
    for field in MANIFEST:
        for junk in (None, 5, [], {"x": 1}, "text"):
            manifested(**{field: junk})


def test_a_run_cancelled_before_its_first_reply_was_interrupted():
    """The messages alone do not tell: there is only the prompt."""
    at = sessions()
    at.apply(events(user("go", 0)))
    at.apply(manifested(status="cancelled", exit_code=0, ended_at=END))
    at.settle(2 * 10**18)
    found = at.take()
    assert only(Turn, found).exit == "interrupted"
    assert only(RunEnded, found).exit == "interrupted"
    assert only(RunEnded, found).time == iso_ns(END)


# ------------------------------------------------------------------------------ the table


def test_the_header_tells_where_a_session_runs_before_its_manifest_is_read():
    """Out of the system prompt, with the escapes of a path; and does not change with every write."""

    def started(prompt, **more):
        document = {"agent": "lead", "messages": [], "system_prompt": prompt, **more}
        (entry,) = entries(json.dumps(document).encode())
        return entry

    def cwd(prompt):
        record = Record("session", PATH, 0, 0, Raw(started(prompt)[1]))
        return next(iter(MessagesReader().read(record))).cwd

    assert cwd("<env>\n4. Working Directory: /w/my api\n</env>") == "/w/my api"
    assert cwd('Working Directory: C:\\new\\"x"') == 'C:\\new\\"x"'
    assert cwd("Working Directory: /w/\u00fcber") == "/w/\u00fcber"
    assert cwd("nothing of that kind") == ""
    assert started("x", updated_at="1") == started("x", updated_at="2")


def test_a_folder_that_is_found_has_what_its_manifest_tells(tmp_path):
    """The manifest is read after the messages, since it tells the end; where and with whom is known before."""
    folder = tmp_path / ".cline" / "data" / "sessions" / MAIN
    told = {"session_id": MAIN, "cwd": "/w/shop", "provider": "p", "metadata": {"git": {"branch": "main"}}}
    end = {"status": "completed", "exit_code": 0, "ended_at": "2026-11-18T05:55:00.000Z"}
    messages = [user("go", 0), reply(1000)]
    followed = Followed(tmp_path)
    followed.put(folder / f"{MAIN}.json", json.dumps({**told, **end}).encode())
    document = {"version": 1, "agent": "lead", "messages": messages}
    followed.put(folder / f"{MAIN}.messages.json", json.dumps(document).encode())
    followed.look()
    found = followed.outcomes()
    for one in (o for o in found if isinstance(o, Turn | ModelCall | RunStarted)):
        assert (one.context.cwd, one.context.project, one.context.branch) == ("/w/shop", "shop", "main")
    assert only(Turn, found).exit == "success"


def test_odd_documents_are_cut_or_refused():
    """Without messages there are none; another shape is the tail's to report."""
    assert len(list(entries(b"{}"))) == 1
    assert len(list(entries(b'{"messages": [1, null, {}], "agent": 5, "origin": []}'))) == 4
    for odd in (b"[]", b'{"messages": {}}'):
        with pytest.raises(msgspec.ValidationError):
            list(entries(odd))


def test_the_files_of_a_folder_are_one_unit():
    """Ordered by the time in the session's id, or by their first record's."""
    time = ms_ns(1794981186975)
    for path in (PATH, AGENT, PATH.replace(".messages", "")):
        assert unit(path, b"") == (time, MAIN)
    assert unit("/s/abc/abc.messages.json", b'{"messages":[{"ts": 1794981187474,') == (
        ms_ns(1794981187474),
        "abc",
    )
    assert unit("/s/abc/abc.json", b'"started_at": "2026-11-18T05:54:52.598Z"') == (iso_ns(END), "abc")
    assert unit("/s/abc/abc.json", b"") == (0, "abc")


def test_what_may_hold_secrets_or_repeats_is_never_opened():
    """Keys, tokens, and the compaction's copies of messages that are counted already."""
    never = Globs(cline.FORMAT.never)
    for path in (
        ".cline/data/settings/providers.json",
        ".cline/data/locks/hub/x.json",
        f".cline/data/sessions/{MAIN}/{MAIN}.compaction.json",
    ):
        assert never.covers(path.split("/")), path
    assert not never.covers(f".cline/data/sessions/{MAIN}/{MAIN}.messages.json".split("/"))


def test_the_agents_own_variables_move_its_files(tmp_path):
    """Sessions and the hooks' log each have one of their own; what is never opened moves along."""
    folder = tmp_path / "sessions" / MAIN
    folder.mkdir(parents=True)
    for name in ("", ".messages", ".compaction"):
        (folder / f"{MAIN}{name}.json").touch()
    (tmp_path / "hooks of cline").touch()
    environ = {
        "CLINE_SESSION_DATA_DIR": str(tmp_path / "sessions"),
        "CLINE_HOOKS_LOG_PATH": str(tmp_path / "hooks of cline"),
    }
    look = Finder([cline.FORMAT], [str(tmp_path / "home")], own_home=True, environ=environ)
    found = {Path(source.path).name: source.files.kind for source in look.scan()}
    assert found == {
        f"{MAIN}.json": "manifest",
        f"{MAIN}.messages.json": "session",
        "hooks of cline": "hooks",
    }


def test_closed_and_called_name_what_they_are_about():
    """The events of one small turn, as the session gets them."""
    found = events(user("go", 0), reply(1, RUN), result(2, "call_0000", OK), reply(3), version="3.0.65")
    assert [type(e) for e in found] == [Started, Prompted, Replied, Called, Returned, Replied]
    assert found[0].version == "3.0.65"
    assert (found[3].call, found[3].model_call) == ("call_0000", "m1")
    assert not any(isinstance(e, Closed) for e in found)

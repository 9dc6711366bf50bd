"""Codex's lines become the right turns, calls and ends, in every dialect; copies of other threads add nothing."""

import json
import os
import random
from copy import deepcopy
from pathlib import Path

import msgspec
import pytest
import zstandard

from program import once
from receiver import Receiver
from spantail.formats import codex
from spantail.formats.codex.history import minted
from spantail.formats.codex.limits import changed
from spantail.formats.codex.lines import Line
from spantail.formats.codex.names import unit
from spantail.formats.codex.reader import KEEP, CodexReader
from spantail.formats.times import iso_ns
from spantail.model import (
    MILLISECOND,
    Called,
    Closed,
    Context,
    Linked,
    ModelCall,
    Noted,
    Occurred,
    Prompted,
    Record,
    Replied,
    Returned,
    Started,
    Subagent,
    ToolCall,
    Turn,
    Usage,
)
from spantail.session.sessions import Sessions
from spantail.session.settle import Rules
from spantail.state.ledger import Ledger
from spantail.tail.json_lines import LineDecoder
from truth import complaints, expected, is_chat, is_turn

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
FILES = sorted(FIXTURES.glob("codex*/*/home/.codex/sessions/**/*.jsonl"))
BASE = iso_ns("2026-11-18T06:00:00Z") // MILLISECOND
DECODER = LineDecoder(Line)


def uuid7(ms, n=0):
    text = f"{ms:012x}"
    return f"{text[:8]}-{text[8:]}-7{n:03x}-8000-{n:012x}"


OWN = uuid7(BASE)
OTHER = uuid7(BASE - 3_600_000, 1)
TURN = uuid7(BASE + 10, 2)
OLD_TURN = uuid7(BASE - 3_599_000, 3)


class File:
    """A rollout in the making: lines with times, and what a reader makes of them."""

    def __init__(self, id_=OWN, sessions=None, **meta):
        self.reader = CodexReader()
        self.path = f"/h/.codex/sessions/2026/11/18/rollout-2026-11-18T06-00-00-{id_}.jsonl"
        self.sessions = sessions
        self.at = 0
        self.offset = 0
        self.ordinal = None
        self.events = []
        if id_:
            self.meta(id_, **meta)

    def raw(self, body):
        found, _ = DECODER.rescue(json.dumps(body).encode())
        new = []
        for _, line in found:
            new += self.reader.read(Record("rollout", self.path, self.offset, 0, line))
            # What a reader remembers must survive a restart after any line.
            stored = msgspec.msgpack.encode(self.reader)
            self.reader = msgspec.msgpack.decode(stored, type=CodexReader)
        self.offset += 100
        self.events += new
        if self.sessions is not None:
            self.sessions.apply(new)
        return new

    def line(self, type_, after=10, **payload):
        self.at += after
        seconds, ms = divmod(BASE + self.at, 1000)
        stamp = f"2026-11-18T06:{(seconds - BASE // 1000) // 60:02d}:{seconds % 60:02d}.{ms:03d}Z"
        body = {"timestamp": stamp, "type": type_, "payload": payload}
        if self.ordinal is not None:
            body["ordinal"] = self.ordinal
            self.ordinal += 1
        return self.raw(body)

    def meta(self, id_, **more):
        return self.line("session_meta", id=id_, cwd="/w/api", cli_version="0.1", **more)

    def event(self, type_, after=10, **payload):
        return self.line("event_msg", after, type=type_, **payload)

    def item(self, type_, after=10, **payload):
        return self.line("response_item", after, type=type_, **payload)

    def completed(self, id_, type_="CommandExecution", after=10, **more):
        end = BASE + self.at + after
        item = {"type": type_, "id": id_, **more}
        return self.event("item_completed", after, item=item, started_at_ms=end - 5, completed_at_ms=end)

    def count(self, total, last, after=10, **more):
        names = ("input_tokens", "cached_input_tokens", "output_tokens")
        info = {
            "total_token_usage": {**dict(zip(names, total, strict=True)), **more},
            "last_token_usage": {**dict(zip(names, last, strict=True)), **more},
        }
        return self.event("token_count", after, info=info)

    def usage(self, id_, given=100, out=10, thread=OWN, after=10):
        counts = {"input_tokens": given, "output_tokens": out}
        return self.line("token_usage_record", after, thread_id=thread, response_id=id_, usage=counts)

    def call(self, id_, name="exec_command", after=10, **more):
        return self.item("function_call", after, call_id=id_, name=name, arguments="{}", **more)

    def output(self, id_, text="Process exited with code 0\nOutput:\n", after=10):
        return self.item("function_call_output", after, call_id=id_, output=text)

    def start(self, turn=TURN, **more):
        return self.event("task_started", turn_id=turn, **more)

    def said(self, after=10):
        return self.event("agent_message", after, message="done")


def sessions():
    return Sessions(
        Context(agent="codex"), Rules(), Ledger(), lambda *_, **__: None, os.path.basename, lambda _: None
    )


def settled(of):
    """Everything that comes out once all has long been silent."""
    of.settle(2**62)
    return of.take()


def kinds(out, type_):
    return [thing for thing in out if isinstance(thing, type_)]


def usages(events):
    return [(e.usage.input, e.usage.cache_read, e.usage.output) for e in kinds(events, Replied)]


# ---------------------------------------------------------------------------------- tokens


def test_a_token_count_counts_where_its_total_has_changed():
    """Repeated counts, made-up totals beside zeros and an empty info add nothing."""
    file = File()
    file.event("user_message", message="hi")
    file.event("token_count", info=None)
    file.call("a")
    file.count((100, 40, 5), (100, 40, 5))
    file.count((100, 40, 5), (100, 40, 5))
    file.output("a")
    file.count((100, 40, 5), (0, 0, 0))
    file.said()
    file.count((220, 100, 9), (120, 60, 4))
    assert usages(file.events) == [(60, 40, 5), (60, 60, 4)]


def test_a_total_that_returns_with_a_new_key_is_the_same_total():
    """After an update the same counts come with `cache_write_input_tokens: 0`."""
    file = File()
    file.event("user_message", message="hi")
    file.said()
    file.count((100, 0, 5), (100, 0, 5))
    file.count((100, 0, 5), (100, 0, 5), cache_write_input_tokens=0)
    assert len(usages(file.events)) == 1


def test_both_cache_kinds_lie_inside_the_input():
    """And reasoning inside the output; counts that contradict each other never become negative."""
    counts = {
        "input_tokens": 5000,
        "cached_input_tokens": 4096,
        "cache_write_input_tokens": 512,
        "output_tokens": 400,
        "reasoning_output_tokens": 256,
        "total_tokens": 5400,
    }
    file = File()
    file.line("token_usage_record", thread_id=OWN, response_id="r", usage=counts)
    file.line("token_usage_record", thread_id=OWN, response_id="s", usage={**counts, "input_tokens": 4100})
    first, second = (event.usage for event in kinds(file.events, Replied))
    assert first == Usage(input=392, cache_read=4096, cache_write=512, output=400, reasoning=256)
    assert second == Usage(input=0, cache_read=4096, cache_write=4, output=400, reasoning=256)


def test_the_two_ways_of_counting_are_never_mixed():
    """A file that an older version began is counted by totals up to the first record of a response."""
    file = File()
    file.start()
    file.said()
    file.count((100, 0, 5), (100, 0, 5))
    file.start(uuid7(BASE + 50, 9))
    file.said()
    file.usage("r1", 70, 7)
    file.count((170, 0, 12), (70, 0, 7))
    file.usage("r2", 30, 3)
    assert usages(file.events) == [(100, 0, 5), (70, 0, 7), (30, 0, 3)]


def test_a_record_of_another_thread_is_not_counted():
    """Nor one that knows only zeros."""
    file = File()
    file.usage("r", thread=OTHER)
    file.usage("s", 0, 0)
    assert usages(file.events) == []


def test_a_total_that_stands_alone_counts_what_it_has_grown_by():
    """One that fell has begun anew; the first of a thread that comes from another says nothing."""
    for meta, first in (({}, [(100, 0, 10)]), ({"forked_from_id": OTHER}, [])):
        file = File(**meta)
        file.start()
        for given, out in ((100, 10), (100, 10), (160, 25), (30, 5)):
            file.said()
            total = {"input_tokens": given, "output_tokens": out}
            file.event("token_count", info={"total_token_usage": total})
        assert usages(file.events) == [*first, (60, 0, 15), (30, 0, 5)]


def test_a_fork_begins_with_the_total_of_its_origin():
    """A count that stands before any reply tells the origin's total once more."""
    file = File(forked_from_id=OTHER, history_base={"thread_id": OTHER})
    file.start()
    file.count((9000, 0, 900), (300, 0, 30))
    file.said()
    file.count((9400, 0, 940), (400, 0, 40))
    assert usages(file.events) == [(400, 0, 40)]


@pytest.mark.parametrize(
    "meta", [{"parent_thread_id": OTHER, "forked_from_id": OTHER}, {"source": {"subagent": "review"}}]
)
def test_a_subagent_that_begins_at_nothing_is_counted_from_its_first_reply_on(meta):
    """The count may stand before all that the reply said; one before any turn of its own is its origin's."""
    retold = File(**meta)
    retold.count((700, 0, 70), (700, 0, 70))
    assert usages(retold.events) == []
    file = File(**meta)
    file.start()
    file.count((100, 0, 10), (100, 0, 10))
    file.call("a")
    file.output("a")
    file.said()
    file.count((220, 0, 22), (120, 0, 12))
    assert usages(file.events) == [(100, 0, 10), (120, 0, 12)]


def test_a_count_is_an_answer_to_a_prompt_that_might_be_copied():
    """Without turn ids the prompt is the file's own if something answers it, and be it a number."""
    file = File(source={"subagent": "review"})
    file.event("user_message", 1, message="review this")
    file.count((100, 0, 10), (100, 0, 10), after=2000)
    file.call("a", after=0)
    assert [type(event) for event in file.events] == [Started, Prompted, Replied, Called]


def test_a_reply_whose_count_follows_its_tools_has_its_own_times():
    """It begins when the model was asked and ends with what it said, before the tool ran."""
    file = File()
    file.start()
    file.event("user_message", message="hi")
    file.call("a", after=1000)
    file.output("a", after=5000)
    file.count((100, 0, 5), (100, 0, 5))
    file.said(after=2000)
    file.count((300, 0, 9), (200, 0, 4))
    first, second = kinds(file.events, Replied)
    returned = kinds(file.events, Returned)[0]
    assert (first.end - first.start) // MILLISECOND in range(1000, 1100)
    assert second.start == first.end or second.start >= returned.time
    assert (second.end - second.start) // MILLISECOND in range(2000, 2100)


# ------------------------------------------------------------------- copies of other threads


def copied_history(file, turn=OLD_TURN):
    """The history of another thread, stamped anew."""
    file.line("session_meta", 0, id=OTHER, cwd="/w/old")
    file.event("task_started", 1, turn_id=turn)
    file.line("turn_context", 1, turn_id=turn, model="old-model")
    file.event("user_message", 1, message="old")
    file.call("c1", after=1)
    file.output("c1", after=1)
    file.count((500, 0, 50), (500, 0, 50), after=1)
    file.event("error", 1, message="x", codex_error_info="other")
    file.line("compacted", 1, message="x")
    file.event("task_complete", 1, turn_id=turn)
    file.count((500, 0, 50), (500, 0, 50), after=1)


@pytest.mark.parametrize(
    "meta",
    [
        {"forked_from_id": OTHER},
        {"parent_thread_id": OTHER, "thread_source": "subagent"},
        {"source": {"subagent": {"thread_spawn": {"parent_thread_id": OTHER, "agent_role": "worker"}}}},
    ],
)
def test_a_legacy_fork_or_subagent_adds_only_its_own_turns(meta):
    """It begins with its origin's whole history; totals go on from there."""
    file = File(**meta)
    copied_history(file)
    assert [type(event) for event in file.events] == [Started]
    assert file.events[0].session == OWN
    file.start()
    file.line("turn_context", turn_id=TURN, model="m")
    file.call("c1")
    file.output("c1")
    file.count((620, 0, 62), (120, 0, 12))
    file.event("task_complete", turn_id=TURN, last_agent_message="x")
    assert [event.turn for event in kinds(file.events, Prompted)] == [TURN]
    assert [event.call for event in kinds(file.events, Called)] == [f"{OWN}/c1"]
    assert usages(file.events) == [(120, 0, 12)]
    assert kinds(file.events, Noted) == []
    assert {event.session for event in file.events} == {OWN}


@pytest.mark.parametrize("turn", [OLD_TURN, None])
def test_a_copy_whose_files_own_meta_is_lost_is_no_less_a_copy(turn):
    """What stands in the second line is the origin's; the file's name tells whose it is."""
    file = File(id_="")
    file.path = file.path.replace("-.jsonl", f"-{OWN}.jsonl")
    file.offset = 100
    copied_history(file, turn) if turn else file.line("session_meta", 0, id=OTHER)
    file.event("user_message", 0, message="old")
    file.said(1)
    file.count((500, 0, 50), (500, 0, 50), after=1)
    assert usages(file.events) == []
    file.start()
    file.said()
    file.count((600, 0, 60), (100, 0, 10))
    assert usages(file.events) == [(100, 0, 10)]
    assert {event.session for event in file.events} == {OWN}


def test_in_a_renamed_file_the_first_meta_is_its_own_wherever_it_stands():
    file = File(id_="")
    file.path = "/h/.codex/sessions/rollout-mine.jsonl"
    file.offset = 100
    file.meta(OWN)
    file.event("user_message", message="x")
    file.said()
    file.count((100, 0, 10), (100, 0, 10))
    assert {event.session for event in file.events} == {OWN}
    assert usages(file.events) == [(100, 0, 10)]


def test_a_copy_needs_no_meta_of_its_origin():
    """In a file with a parent, a turn minted before its thread is a copy, whatever stands before it."""
    file = File(forked_from_id=OTHER)
    file.start(OLD_TURN)
    file.said()
    file.count((500, 0, 50), (500, 0, 50))
    file.start()
    file.said()
    file.count((600, 0, 60), (100, 0, 10))
    assert usages(file.events) == [(100, 0, 10)]


def test_a_fork_without_a_turn_of_its_own_adds_nothing():
    """It is no session that ran, either."""
    of = sessions()
    copied_history(File(sessions=of, forked_from_id=OTHER))
    assert settled(of) == []


def test_not_every_file_with_a_parent_has_a_copied_part():
    """A turn younger than the thread is genuine, and so is all of a file that comes from nowhere."""
    for meta in ({"parent_thread_id": OTHER}, {}):
        file = File(**meta)
        file.start(OLD_TURN if not meta else TURN)
        file.said()
        file.count((100, 0, 10), (100, 0, 10))
        assert usages(file.events) == [(100, 0, 10)]


def test_copied_records_of_a_subagent_end_at_the_stated_ordinal():
    """Paginated files say where the subagent's own history starts."""
    file = File(id_="", sessions=None)
    file.ordinal = 0
    file.meta(OWN, parent_thread_id=OTHER, subagent_history_start_ordinal=5)
    file.meta(OTHER)
    file.start(OLD_TURN)
    file.call("x")
    file.event("turn_aborted", turn_id=OLD_TURN, reason="interrupted")
    file.start()
    file.usage("r")
    assert [type(event) for event in file.events] == [Started, Prompted, Replied]


def test_a_session_meta_that_comes_again_is_no_fork():
    """Editors write it at each opening; the first one wins."""
    file = File()
    file.event("user_message", message="a")
    file.said()
    file.count((100, 0, 10), (100, 0, 10))
    file.meta(OWN)
    file.event("user_message", message="b")
    file.said()
    file.count((200, 0, 20), (100, 0, 10))
    assert len(kinds(file.events, Started)) == 1
    assert len(usages(file.events)) == 2


def resumed_2025():
    """Without turn ids: own meta, another's meta, its history within a fraction of a second."""
    file = File("3f2504e0-4f89-41d3-9a0c-0305e82c3301")
    file.line("session_meta", 0, id="7c9e6679-7425-40de-944b-e07fc1f90ae7")
    file.event("user_message", 1, message="old")
    file.call("c1", after=1)
    file.output("c1", after=1)
    file.count((500, 0, 50), (500, 0, 50), after=1)
    return file


def test_a_session_resumed_in_2025_is_copied_into_a_new_file():
    """What is stamped within a second of the other's meta is history."""
    file = resumed_2025()
    file.event("user_message", 30_000, message="new")
    file.call("c2")
    file.count((600, 0, 60), (100, 0, 10))
    assert len(kinds(file.events, Prompted)) == 1
    assert [event.id for event in kinds(file.events, Called)] == ["c2"]
    assert usages(file.events) == [(100, 0, 10)]


def test_a_prompt_that_follows_a_copy_at_once_is_not_lost():
    """Nothing tells it from the copy but the answer, which comes later."""
    file = resumed_2025()
    asked = file.at + 100
    file.event("user_message", 100, message="new")
    assert kinds(file.events, Prompted) == []
    file.item("reasoning", 3000)
    file.call("c2")
    assert [event.time // MILLISECOND for event in kinds(file.events, Prompted)] == [BASE + asked]


def test_an_unanswered_prompt_of_the_copy_stays_a_copy():
    """If the file's own prompt comes, it alone begins a turn."""
    file = resumed_2025()
    file.event("user_message", 1, message="old and never answered")
    file.item("message", 20_000, role="user", content=[])
    file.event("user_message", message="new")
    file.said()
    assert len(kinds(file.events, Prompted)) == 1


def test_a_copy_without_turn_ids_and_meta_bears_the_stamp_of_the_beginning():
    """Or its own older stamps. In a file that names no origin the same lines are its own."""
    for meta, own in (({"forked_from_id": OTHER}, 1), ({}, 2)):
        file = File(**meta)
        file.event("user_message", 0, message="old")
        file.call("c1", after=1)
        file.output("c1", after=1)
        file.said(1)
        file.count((500, 0, 50), (500, 0, 50), after=1)
        file.event("user_message", 90, message="new")
        file.call("c2", after=4_000)
        file.count((600, 0, 60), (100, 0, 10))
        assert len(kinds(file.events, Prompted)) == own
        assert [event.id for event in kinds(file.events, Called)] == ["c1", "c2"][-own:]
        assert usages(file.events)[-1] == (100, 0, 10)
        assert len(usages(file.events)) == own


@pytest.mark.parametrize("turn", ["turn-1", TURN])
def test_a_marked_turn_is_no_copy_however_early_it_begins(turn):
    file = File(forked_from_id=OTHER)
    file.start(turn)
    file.event("user_message", 1, message="go")
    file.said(1)
    file.count((100, 0, 10), (100, 0, 10), after=1)
    assert len(kinds(file.events, Prompted)) == 2  # the second brings the words
    assert usages(file.events) == [(100, 0, 10)]


def test_a_fork_links_to_its_origin_once():
    """Read in one go its turns are settled together; only the first one was made out of the origin's last."""
    of = sessions()
    origin, fork = File(OTHER, sessions=of), File(sessions=of, forked_from_id=OTHER)
    for file in (origin, fork):
        for n in range(2):
            turn = uuid7(BASE + 1000 * n + 20, 5 + n + 10 * (file is fork))
            file.at = 5_000 * n + 60_000 * (file is fork)
            file.start(turn)
            file.said()
            file.event("task_complete", turn_id=turn, last_agent_message="x")
    *_, last, first, second = kinds(settled(of), Turn)
    assert [(link.span, link.reason) for link in first.links] == [(last.span, "original")]
    assert [(link.span, link.reason) for link in second.links] == [(first.span, "previous turn")]


def test_a_copy_that_kept_its_stamps_is_no_less_a_copy():
    """Its origin's meta is as old as what follows it."""
    file = File(id_="")
    file.at = 3_000_000
    file.meta(uuid7(BASE + file.at))
    for at in (0, 3_000_000):
        file.at = at
        if not at:
            file.meta(OTHER)
        file.event("user_message", 2_000, message="x")
        file.said(2_000)
        file.count((500 + at, 0, 50), (500, 0, 50))
    assert len(kinds(file.events, Prompted)) == 1
    assert usages(file.events) == [(500, 0, 50)]


def test_only_uuids_of_version_7_tell_when_they_were_made():
    assert minted(OWN) == BASE
    assert minted("3f2504e0-4f89-41d3-9a0c-0305e82c3301") == 0
    assert minted("1") == 0


# ----------------------------------------------------------------------------------- turns


def test_without_marks_a_user_message_begins_a_turn_and_a_plain_answer_ends_it():
    """What the program writes in the user's name begins none; turn_context comes with every call."""
    of = sessions()
    file = File(sessions=of)
    file.event("user_message", message="<environment_context>\n", kind="environment_context")
    file.event("user_message", message="<user_instructions>x", kind="user_instructions")
    for n in (1, 2):
        file.event("user_message", 5000, message="do it", kind="plain")
        file.line("turn_context", model="m")
        file.item("message", role="assistant", content=[])
        file.call(f"c{n}")
        file.count((100 * n, 0, 10 * n), (100, 0, 10))
        file.output(f"c{n}")
        file.line("turn_context", model="m")
        file.said()
        file.count((100 * n + 50, 0, 10 * n + 5), (50, 0, 5))
    turns = kinds(settled(of), Turn)
    assert [(turn.status, turn.exit, turn.human) for turn in turns] == [("ok", "success", True)] * 2
    assert [turn.usage.output for turn in turns] == [15, 15]


def reply_of_2025(file, total, last, *calls, ran=0):
    """A reply as versions of 2025 wrote it: words, count, and its items when its tools had run."""
    file.line("turn_context", model="m")
    file.event("agent_reasoning", 1000, text="thinking")
    file.said()
    file.count(total, last)
    file.item("reasoning", ran, summary=[])
    file.item("message", 0, role="assistant", content=[])
    for id_ in calls:
        file.call(id_, after=0)
        file.output(id_, after=0)


def test_a_reply_that_is_counted_before_its_items_ends_no_turn_that_asks_for_a_tool():
    """However long the tool ran; and what came before it is no part of the next reply."""
    of = sessions()
    file = File(sessions=of)
    for n in range(2):
        file.event("user_message", 60_000, message="do it")
        reply_of_2025(file, (100 + 300 * n, 0, 5), (100, 0, 5), f"a{n}", f"b{n}", ran=9000)
        reply_of_2025(file, (300 + 300 * n, 0, 9), (200, 0, 4))
    out = settled(of)
    turns, calls = kinds(out, Turn), kinds(out, ModelCall)
    assert [(turn.status, turn.human, turn.usage.input, turn.tools) for turn in turns] == [
        ("ok", True, 300, 2)
    ] * 2
    assert {(call.end - call.start) // MILLISECOND for call in calls} == {1020}


def test_without_marks_and_counts_an_answered_turn_is_known_by_its_answer():
    """A proxy that sends no usage: an answered turn is ok, the one that merely stops is not known."""
    of = sessions()
    file = File(sessions=of)
    for answered in (True, True, False):
        file.event("user_message", 5000, message="do it")
        file.event("token_count", info=None)
        if answered:
            file.said()
        else:
            file.item("reasoning")
    assert [turn.exit for turn in kinds(settled(of), Turn)] == ["success", "success", "unknown"]


def test_an_answer_that_nothing_counts_ends_its_turn_all_the_same():
    """But only when nothing follows: a tool may be called long after the words that announce it."""
    of = sessions()
    file = File(sessions=of)
    file.event("user_message", message="a")
    file.said(2_000)
    file.call("c", after=9_000)
    file.output("c", after=1_000)
    file.event("token_count", info=None)
    file.said(3_000)
    file.event("user_message", 60_000, message="b")
    file.said(2_000)
    file.call("d", after=9_000)
    file.output("d")
    first, second = kinds(settled(of), Turn)
    assert (first.status, (first.end - first.start) // MILLISECOND) == ("ok", 15_010)
    assert (second.status, second.tools) == ("pending", 1)


def test_an_end_mark_ends_a_turn_whose_beginning_bears_no_mark():
    """An excerpt of a file may have lost it."""
    of = sessions()
    file = File(sessions=of)
    file.event("user_message", message="a")
    file.said()
    file.event("task_complete", turn_id=TURN, last_agent_message="x")
    file.event("user_message", 60_000, message="b")
    file.said()
    file.event("turn_aborted", turn_id=OLD_TURN, reason="interrupted")
    assert [turn.status for turn in kinds(settled(of), Turn)] == ["ok", "interrupted"]


def test_a_user_message_inside_a_marked_turn_steers_it():
    """It is noted and begins no turn."""
    file = File()
    file.start()
    file.event("user_message", message="first")
    file.call("a")
    file.event("user_message", message="and also")
    file.event("user_message", message="<turn_aborted>\nx")
    assert {event.turn for event in kinds(file.events, Prompted)} == {TURN}
    assert [event.kind for event in kinds(file.events, Noted)] == ["queued_prompt"]


def test_the_prompts_words_come_with_the_turn():
    """From the event or the item, whichever the version writes."""
    for write in (
        lambda file: file.event("user_message", message="do it"),
        lambda file: file.event(
            "item_completed", item={"type": "UserMessage", "content": [{"text": "do it"}]}
        ),
    ):
        file = File()
        file.start()
        write(file)
        contents = [event.content for event in kinds(file.events, Prompted)]
        assert contents[0] is None
        assert b"do it" in bytes(contents[1])


def test_turn_ids_that_are_no_uuids_are_kept_apart_by_thread():
    file = File()
    file.start("1")
    assert kinds(file.events, Prompted)[0].turn == f"{OWN}/1"


@pytest.mark.parametrize(
    ("end", "exit_"),
    [
        ({"type": "task_complete", "last_agent_message": "x"}, "success"),
        ({"type": "task_complete", "error": {"codex_error_info": "usage_limit_exceeded"}}, "error"),
        (
            {
                "type": "task_complete",
                "error": {"codex_error_info": {"response_too_many_failed_attempts": {}}},
            },
            "error",
        ),
        ({"type": "task_complete", "error": {"message": "x"}}, "error"),
        ({"type": "turn_aborted", "reason": "interrupted"}, "interrupted"),
        ({"type": "turn_aborted", "reason": "replaced"}, "interrupted"),
        ({"type": "turn_aborted", "reason": "review_ended"}, "success"),
        ({"type": "turn_aborted", "reason": "budget_limited"}, "max_budget"),
    ],
)
def test_a_turns_end_mark_says_how_it_ended(end, exit_):
    of = sessions()
    file = File(sessions=of)
    file.start()
    file.event("user_message", message="x")
    file.said()
    file.event(turn_id=TURN, type_=end["type"], **{k: v for k, v in end.items() if k != "type"})
    assert [turn.exit for turn in kinds(settled(of), Turn)] == [exit_]


def test_an_error_event_fails_the_turn_that_then_ends_plainly():
    """0.121 writes the error apart; its info is a word or an object. It is counted once."""
    of = sessions()
    file = File(sessions=of)
    file.start()
    file.event("error", message="x", codex_error_info={"http_connection_failed": {"status": 500}})
    file.event("error", message="y", codex_error_info="thread_rollback_failed")
    file.event("task_complete", turn_id=TURN, last_agent_message=None)
    out = settled(of)
    assert [(turn.exit, turn.error_type, turn.word) for turn in kinds(out, Turn)] == [
        ("error", "provider_error", "http_connection_failed")
    ]
    assert [thing.error_type for thing in kinds(out, Occurred)] == ["http_connection_failed"]


def test_an_older_turn_that_ends_without_an_answer_has_failed():
    """A prompt or a tool's output to which nothing was said; a compaction by hand owes nothing."""
    for owed, status in ((True, "error"), (False, "ok")):
        file = File()
        file.start()
        if owed:
            file.event("user_message", message="x")
            file.call("a")
            file.output("a")
        file.event("task_complete", turn_id=TURN, last_agent_message=None)
        assert kinds(file.events, Closed)[0].status == status


def test_a_compaction_is_noted_once_and_its_history_is_not_read():
    """Three records tell of it; the items in it are copies."""
    history = [{"type": "function_call", "call_id": "x", "name": "shell", "arguments": "{}"}]
    file = File()
    file.start()
    file.line("compacted", message="sum", replacement_history=history, window_id="w")
    file.event("context_compacted")
    file.completed("z", "ContextCompaction")
    file.event("thread_rolled_back", num_turns=1)
    assert [event.kind for event in kinds(file.events, Noted)] == ["compaction"]
    assert kinds(file.events, Called) == []


# ------------------------------------------------------------------------------- tool calls


def test_a_call_is_known_by_its_thread_and_its_id():
    """Proxied models write `functions.shell:3` in every file."""
    of = sessions()
    for id_ in (OWN, OTHER):
        file = File(id_, sessions=of)
        file.event("user_message", message="x")
        file.call("functions.shell:3")
        file.output("functions.shell:3", after=40)
    tools = kinds(settled(of), ToolCall)
    assert [tool.id for tool in tools] == ["functions.shell:3"] * 2
    assert {tool.status for tool in tools} == {"ok"}


def test_an_item_ends_a_call_before_its_output_line():
    """Outputs are written in the order of the calls; late items of ended calls say nothing new."""
    of = sessions()
    file = File(sessions=of)
    file.start()
    file.call("slow", after=0)
    file.call("fast", after=0)
    file.completed("fast", status="completed", exit_code=0, after=65)
    file.completed("slow", status="failed", exit_code=2, after=935)
    file.output("slow", "Process exited with code 2\nOutput:\n", after=5)
    file.output("fast", after=39)
    file.completed("fast", status="failed", exit_code=-1)
    tools = {tool.id: tool for tool in kinds(settled(of), ToolCall)}
    assert (tools["fast"].end - tools["fast"].start) // MILLISECOND == 65
    assert (tools["slow"].end - tools["slow"].start) // MILLISECOND == 1000
    assert (tools["fast"].status, tools["slow"].status, tools["slow"].exit_code) == ("ok", "error", 2)


@pytest.mark.parametrize(
    ("words", "apart", "took"),
    [
        ('{"output":"x","metadata":{"exit_code":0,"duration_seconds":3.2}}', 0, 3200),
        ("Exit code: 0\nWall time: 3.2 seconds\nOutput:\n", 20, 3200),
        ("aborted by user after 3.2s", 0, 3200),
        ("Exit code: 0\nWall time: 3.2 seconds\nOutput:\n", 3300, 3300),
        ("Exit code: 0\nWall time: 0.1 seconds\nOutput:\n", 0, 100),
        ("Exit code: 0\nWall time: 0.1 seconds\nOutput:\n", 60, 60),
        ("Exit code: 0\nOutput:\nWall time: 3.2 seconds", 0, 0),
        ('{"output":"x","metadata":{"duration_seconds":"long"}}', 0, 0),
        ("Wall time: 9999999 seconds\nOutput:\n", 0, 0),
    ],
)
def test_a_call_written_with_its_output_took_what_the_output_says(words, apart, took):
    """Versions of 2025 wrote both when the tool had run. What a command prints says nothing of it."""
    of = sessions()
    file = File(sessions=of)
    file.event("user_message", message="x")
    file.said(after=5000)
    file.call("a", "shell", after=5000)
    file.output("a", words, after=apart)
    (tool,) = kinds(settled(of), ToolCall)
    assert (tool.end - tool.start) // MILLISECOND == took
    assert tool.source == ("stated" if took > apart else "timestamps")


def test_a_command_left_in_the_background_has_ended_as_a_call():
    """Its process ends later, even after the turn: that is no second end and opens no turn again."""
    of = sessions()
    file = File(sessions=of)
    file.start()
    file.call("bg")
    file.output("bg", "Chunk ID: a\nWall time: 0.3\nProcess running with session ID 5\nOutput:\n", after=300)
    file.event("task_complete", turn_id=TURN, last_agent_message="x")
    file.completed("bg", status="failed", exit_code=5, after=500)
    out = settled(of)
    assert [(tool.status, (tool.end - tool.start) // MILLISECOND) for tool in kinds(out, ToolCall)] == [
        ("ok", 300)
    ]
    assert [turn.exit for turn in kinds(out, Turn)] == ["success"]


def test_a_call_that_is_open_when_its_turn_ends_keeps_its_place():
    """Its item comes after the mark and still gives the status."""
    of = sessions()
    file = File(sessions=of)
    file.start()
    file.call("c")
    file.event("turn_aborted", turn_id=TURN, reason="interrupted")
    file.completed("c", status="failed", exit_code=-1, after=3000)
    out = settled(of)
    assert [(tool.status, tool.exit_code) for tool in kinds(out, ToolCall)] == [("interrupted", -1)]
    assert [turn.exit for turn in kinds(out, Turn)] == ["interrupted"]


def test_what_a_script_of_code_mode_runs_are_calls_of_their_own():
    """They have items only; one that ends after the turn does not open it again."""
    of = sessions()
    file = File(sessions=of)
    file.start()
    file.item("custom_tool_call", call_id="cm", name="exec", input="x")
    file.completed("exec-1", status="failed", exit_code=2, command=["/bin/sh", "-c", "ls"])
    file.completed("exec-2", "FileChange", status="completed", changes={"/w/a": {"type": "add"}})
    file.completed("exec-3", "McpToolCall", server="calc", tool="add", status="completed")
    file.item("custom_tool_call_output", call_id="cm", output=[{"text": "Script completed\nOutput:\n"}])
    file.event("task_complete", turn_id=TURN, last_agent_message="x")
    file.completed("exec-4", status="completed", exit_code=0)
    file.completed("9d2f", "Plan", status="completed")
    of.settle((BASE + file.at + 5000) * MILLISECOND)
    out = of.take()
    assert [(tool.id, tool.name, tool.status) for tool in kinds(out, ToolCall)] == [
        ("exec-1", "exec_command", "error"),
        ("exec-2", "apply_patch", "ok"),
        ("exec-3", "mcp__calc__add", "ok"),
        ("cm", "exec", "ok"),
        ("exec-4", "exec_command", "ok"),
    ]
    assert [turn.exit for turn in kinds(out, Turn)] == ["success"]
    inputs = [bytes(event.input) for event in kinds(file.events, Called) if event.input]
    assert inputs == [b'"x"', b'{"command":["/bin/sh", "-c", "ls"]}', b'{"/w/a": {"type": "add"}}']


def test_older_end_events_end_their_calls():
    """0.117 to 0.121 and before: exec_command_end, patch_apply_end, mcp_tool_call_end."""
    file = File()
    file.start()
    file.call("a", "shell")
    file.event("exec_command_end", call_id="a", exit_code=3, status="failed", aggregated_output="no")
    file.output("a", "Exit code: 3\nOutput:\nno")
    file.event("exec_command_end", call_id="of nobody", exit_code=3)
    assert [(event.status, event.exit_code) for event in kinds(file.events, Returned)] == [("error", 3)]


def test_a_web_search_is_keyed_by_its_place_when_it_has_no_id():
    """It has neither id nor output line; its status stands in it."""
    of = sessions()
    file = File(sessions=of)
    file.start()
    file.item("web_search_call", status="completed", action={"type": "search", "query": "x"})
    file.item("web_search_call", status="failed", action={"type": "search", "query": "x"})
    file.item("web_search_call", id="ws_1", status="completed")
    file.event("web_search_end", call_id="ws_1", query="x")
    tools = kinds(settled(of), ToolCall)
    assert [(tool.name, tool.status, tool.source) for tool in tools] == [
        ("web_search", "ok", "estimate"),
        ("web_search", "error", "estimate"),
        ("web_search", "ok", "estimate"),
    ]


def test_names_of_calls():
    """MCP tools have a namespace, and so have others whose namespace is no part of the name."""
    file = File()
    file.call("1", "add", namespace="mcp__calc")
    file.call("1b", "add", namespace="mcp__calc__")
    file.call("1c", "mcp__calc__add", namespace="mcp__calc")
    file.call("2", "wait_agent", namespace="multi_agent_v1")
    file.item("local_shell_call", call_id="3", action={"type": "exec", "command": ["ls"]}, status="completed")
    assert [(event.name, event.type) for event in kinds(file.events, Called)] == [
        *[("mcp__calc__add", "extension")] * 3,
        ("wait_agent", "function"),
        ("local_shell", "function"),
    ]


def test_the_memory_of_a_reader_has_an_end():
    """Calls without an end are forgotten, the oldest first."""
    file = File()
    for n in range(KEEP + 10):
        file.call(str(n))
    assert len(file.reader.calls) == KEEP
    assert "0" not in file.reader.calls


# -------------------------------------------------------------------------------- subagents


def spawned(of, child, write):
    """A parent whose call starts a child, and the child at work inside the parent's turn."""
    parent = File(OTHER, sessions=of)
    parent.start(TURN)
    parent.call("sp", "spawn_agent", namespace="multi_agent_v1")
    write(parent)
    inner = File(child, sessions=of, parent_thread_id=OTHER, thread_source="subagent", agent_role="worker")
    inner.at = parent.at
    inner.start(uuid7(BASE + 100, 7))
    inner.usage("r", thread=child)
    inner.event("task_complete", turn_id=uuid7(BASE + 100, 7), last_agent_message="x")
    parent.at = inner.at
    parent.event("task_complete", turn_id=TURN, last_agent_message="x")
    return settled(of)


@pytest.mark.parametrize(
    "write",
    [
        lambda p: p.output("sp", json.dumps({"agent_id": OWN, "nickname": "Cicero"})),
        lambda p: (
            p.completed("sp", "CollabAgentToolCall", tool="spawn_agent", receiver_thread_ids=[OWN]),
            p.output("sp", "{}"),
        ),
        lambda p: (
            p.completed("sp", "SubAgentActivity", kind="started", agent_thread_id=OWN),
            p.output("sp", "{}"),
        ),
        lambda p: (
            p.event("sub_agent_activity", event_id="sp", agent_thread_id=OWN, kind="started"),
            p.output("sp", json.dumps({"task_name": "/root/x"})),
        ),
        lambda p: (
            p.event("collab_agent_spawn_end", call_id="sp", sender_thread_id=OTHER, new_thread_id=OWN),
            p.output("sp", "{}"),
        ),
    ],
)
def test_a_subagents_span_hangs_below_the_call_that_started_it(write):
    """Named in the call's output, or in an item or event of one of two kinds each."""
    out = spawned(sessions(), OWN, write)
    (tool,), (agent,) = kinds(out, ToolCall), kinds(out, Subagent)
    assert (agent.name, agent.agent_id, agent.parent, agent.trace) == ("worker", OWN, tool.span, tool.trace)
    assert [call.parent for call in kinds(out, ModelCall)] == [agent.span]
    assert len(kinds(out, Turn)) == 1


def test_a_subagent_finds_its_turn_by_name():
    """Newer versions name the parent's turn in the subagent's."""
    file = File(parent_thread_id=OTHER, thread_source="subagent")
    file.start(turn_attribution={"parent_turn_id": OLD_TURN, "root_turn_id": "x"})
    assert kinds(file.events, Prompted)[0].outer == OLD_TURN


@pytest.mark.parametrize(
    ("tool", "told", "woken"),
    [
        ("send_input", {"type_": "collab_agent_interaction_end", "receiver_thread_id": OWN}, True),
        ("resume_agent", {"type_": "collab_resume_end", "receiver_thread_id": OWN}, True),
        ("followup_task", {"type_": "sub_agent_activity", "kind": "interacted"}, True),
        ("send_message", {"type_": "sub_agent_activity", "kind": "interacted"}, False),
        ("interrupt_agent", {"type_": "sub_agent_activity", "kind": "interrupted"}, False),
    ],
)
def test_a_call_that_wakes_a_subagent_is_tied_to_it(tool, told, woken):
    """A message that is left for a subagent wakes nobody, and an event of no known call ties nothing."""
    file = File(OTHER)
    file.start()
    file.call("w", tool)
    for id_ in ("w", "another"):
        file.event(call_id=id_, event_id=id_, agent_thread_id=OWN, **told)
    tied = [(event.session, event.call) for event in kinds(file.events, Linked)]
    assert tied == ([(OWN, f"{OTHER}/w")] if woken else [])
    assert len(kinds(file.events, Started)) == 1


def test_a_message_to_those_above_starts_nobody():
    """A subagent may write to its parent or to itself; nobody becomes his own ancestor."""
    file = File(parent_thread_id=OTHER, thread_source="subagent")
    file.start()
    for tool in ("send_input", "spawnAgent", "wait"):
        file.call(tool, tool)
        file.completed(tool, "CollabAgentToolCall", tool=tool, receiver_thread_ids=[OTHER, OWN, 7, None])
    linked = kinds(file.events, Linked)
    assert [event.session for event in linked] == ["7", "7"]
    assert [event.session for event in kinds(file.events, Started)] == [OWN, "7"]
    assert File(OWN, parent_thread_id=OWN, thread_source="subagent").events[0].parent == ""


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ({"subagent": "review"}, "review"),
        ({"subagent": {"other": "guardian"}}, "guardian"),
        ({"internal": "memory_consolidation"}, "memory_consolidation"),
    ],
)
def test_a_review_in_a_file_of_its_own_is_no_turn(source, name):
    """Its source names no parent; its tokens were spent all the same."""
    of = sessions()
    file = File(sessions=of, source=source)
    file.start()
    file.event("user_message", message="review this")
    file.usage("r")
    file.event("task_complete", turn_id=TURN, last_agent_message="x")
    out = settled(of)
    assert [turn.human for turn in kinds(out, Turn)] == [False]
    assert len(kinds(out, ModelCall)) == 1
    assert file.events[0].name == name


# ------------------------------------------------------------------------------ the others


def test_files_without_envelopes_give_turns_and_tools():
    """Until September 2025: no times, no tokens, no model; nothing is invented."""
    of = sessions()
    file = File(id_="", sessions=of)
    file.raw(
        {"id": OWN, "timestamp": "2025-08-01T10:00:00.000Z", "instructions": None, "git": {"branch": "main"}}
    )
    for n in (1, 2, 3):
        file.raw({"record_type": "state"})
        text = [{"type": "input_text", "text": "<environment_context>\n"}]
        file.raw({"type": "message", "role": "user", "content": text})
        file.raw({"type": "message", "role": "user", "content": [{"type": "input_text", "text": "do"}]})
        file.raw({"type": "reasoning", "id": "r", "summary": []})
        if n == 3:
            break  # killed
        file.raw({"type": "function_call", "name": "shell", "arguments": "{}", "call_id": f"c{n}"})
        output = json.dumps({"output": "x", "metadata": {"exit_code": n - 1}})
        file.raw({"type": "function_call_output", "call_id": f"c{n}", "output": output})
        file.raw({"type": "message", "role": "assistant", "content": []})
    out = settled(of)
    assert [turn.exit for turn in kinds(out, Turn)] == ["success", "success", "unknown"]
    assert sum(turn.usage.total() for turn in kinds(out, Turn)) == 0
    assert [(tool.status, tool.source) for tool in kinds(out, ToolCall)] == [
        ("ok", "estimate"),
        ("error", "estimate"),
    ]
    assert {turn.start for turn in kinds(out, Turn)} == {iso_ns("2025-08-01T10:00:00Z")}
    assert kinds(out, ModelCall) == []
    assert file.events[0].branch == "main"


@pytest.mark.parametrize(
    "words",
    [
        "<environment_context>\n  <cwd>C:\\w\\api</cwd>\n  <shell>zsh</shell>\n</environment_context>",
        "<environment_context>\n\nCurrent working directory: C:\\w\\api\nApproval policy: never\n",
    ],
)
def test_a_file_without_envelopes_has_its_folder_in_the_surroundings(words):
    """Its first line does not name it; what the user writes later is no surroundings."""
    file = File(id_="")
    file.raw({"id": OWN, "timestamp": "2025-08-01T10:00:00.000Z"})
    for text in ("<user_instructions>x", words, "do it", words.replace("api", "other")):
        file.raw({"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]})
    assert [event.cwd for event in kinds(file.events, Started)] == ["", "C:\\w\\api"]


def test_limits_are_told_when_they_change():
    """Windows have short names, also where a version is a minute off; other limits keep theirs."""
    known: dict[str, float] = {}
    given = {
        "limit_id": "codex",
        "primary": {"used_percent": 12.5, "window_minutes": 299},
        "secondary": {"used_percent": 140, "window_minutes": 10079},
    }
    assert list(changed(known, given)) == [("5h", 0.125), ("7d", 1.0)]
    assert list(changed(known, given)) == []
    other = {"limit_id": "spark", "primary": {"used_percent": 50}, "secondary": {"used_percent": "x"}}
    assert list(changed(known, other)) == [("spark primary", 0.5)]
    for odd in (None, [], {"primary": 3}, {"primary": {"used_percent": None, "window_minutes": []}}):
        assert list(changed(known, odd)) == []


@pytest.mark.parametrize("meta", [{}, {"forked_from_id": OTHER}])
def test_the_model_is_that_of_the_turn(meta):
    """The settings are a fallback for files that do not say it with the turn."""
    file = File(**meta)
    file.event("thread_settings_applied", thread_settings={"model": "set"})
    file.start()
    file.usage("r1")
    file.line("turn_context", turn_id=TURN, model="one")
    file.event("thread_settings_applied", thread_settings={"model": "set"})
    file.usage("r2")
    assert [event.model for event in kinds(file.events, Replied)] == ["set", "one"]


def test_a_file_without_its_first_line_has_its_thread_in_its_name():
    file = File(id_="")
    file.path = file.path.replace("-.jsonl", f"-{OWN}.jsonl.zst")
    file.start()
    assert file.events[0].session == OWN


def test_a_thread_and_its_subagents_are_one_unit():
    """By the root's id, else the parent's, else their own; a fork stands for itself."""

    def head(**meta):
        line = {"timestamp": "2026-11-18T06:00:00.000Z", "type": "session_meta", "payload": meta}
        return json.dumps(line).encode() + b'\n{"session_id":"no"}'

    time = iso_ns("2026-11-18T06:00:00Z")
    assert unit("p", head(id="a", session_id="root")) == (time, "root")
    assert unit("p", head(id="a", parent_thread_id="parent")) == (time, "parent")
    assert unit("p", head(id="a", forked_from_id="f")) == (time, "a")
    assert unit("/x/rollout-1.jsonl", b"\xff\xfe") == (0, "rollout-1")


def test_no_line_can_make_a_reader_raise():
    """Any JSON type may stand anywhere; what is remembered can always be stored."""
    dice = random.Random(5)
    odd = [None, True, -1, 3.5, 10**30, 2**63, "", "x" * 300, [], [[1]], {}, {"a": {"b": []}}, {"type": 5}]
    for path in dice.sample(FILES, 12):
        file = File(id_="")
        file.path = str(path)
        for text in path.read_text().splitlines():
            for _ in range(6):
                body = json.loads(text)
                at = body
                for _ in range(dice.randint(1, 4)):
                    keys = list(at) if isinstance(at, dict) else list(range(len(at)))
                    if not keys:
                        break
                    key = dice.choice(keys)
                    if isinstance(at[key], dict | list) and at[key] and dice.random() < 0.7:
                        at = at[key]
                    else:
                        at[key] = deepcopy(dice.choice(odd))
                file.raw(body)
        file.raw({"type": "session_meta", "payload": None})
        file.raw({"payload": {}})
        file.raw({})


# ------------------------------------------------------------------- through the whole program


def test_an_archived_thread_is_counted_once(tmp_path, monkeypatch):
    """The same thread in both folders, and compressed as well, is one thread."""
    case = FIXTURES / "codex" / "tools-a"
    home = tmp_path / "home"
    (file,) = (case / "home").rglob("*.jsonl")
    sessions_ = home / ".codex/sessions/2026/11/18"
    archived = home / ".codex/archived_sessions"
    sessions_.mkdir(parents=True)
    archived.mkdir()
    (sessions_ / file.name).write_bytes(file.read_bytes())
    (archived / file.name).write_bytes(file.read_bytes())
    (archived / f"{file.name}.zst").write_bytes(zstandard.ZstdCompressor().compress(file.read_bytes()))
    with Receiver("http") as receiver:
        spans, page = once(home, tmp_path / "state", receiver, monkeypatch)
    assert complaints(spans, page, expected(case)) == []


@pytest.mark.parametrize("name", ["codex/subagent-a", "codex-0.144.6/fork-legacy-a", "codex-0.98.0/models-a"])
def test_compressed_rollouts_give_what_plain_ones_give(name, tmp_path, monkeypatch):
    """Compression is an option of the agent; nothing else is different."""
    home = tmp_path / "home"
    for file in (FIXTURES / name / "home").rglob("*.jsonl"):
        to = home / file.relative_to(FIXTURES / name / "home")
        to.parent.mkdir(parents=True, exist_ok=True)
        (to.parent / f"{to.name}.zst").write_bytes(zstandard.ZstdCompressor().compress(file.read_bytes()))
    with Receiver("http") as receiver:
        spans, page = once(home, tmp_path / "state", receiver, monkeypatch)
    assert complaints(spans, page, expected(FIXTURES / name)) == []


def test_a_forks_copies_add_nothing_when_the_origin_is_gone(tmp_path, monkeypatch):
    """Only the fork's file is left: what it copied was spent by another thread and is not its own."""
    case = FIXTURES / "codex-0.144.6" / "fork-legacy-a"
    fork = max((case / "home").rglob("*.jsonl"))
    to = tmp_path / "home" / fork.relative_to(case / "home")
    to.parent.mkdir(parents=True)
    to.write_bytes(fork.read_bytes())
    with Receiver("http") as receiver:
        spans, _ = once(tmp_path / "home", tmp_path / "state", receiver, monkeypatch)
    assert len([span for span in spans if is_turn(span)]) == 1
    assert len([span for span in spans if is_chat(span)]) == 2


def test_the_row_names_no_file_with_credentials():
    """None of the files that are read is one that is never to be opened."""
    assert ".codex/auth.json" in codex.FORMAT.never
    assert all(files.glob.startswith("**/rollout-") for files in codex.FORMAT.files)

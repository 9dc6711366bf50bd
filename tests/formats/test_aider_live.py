"""Aider while it works: three files grow in turns, and following them ends where reading them whole does."""

from __future__ import annotations

import json
import random
import re
import shutil
from pathlib import Path

import pytest

import truth
from program import Followed, once
from receiver import Receiver
from spantail.model import SECOND

CASES = [case for case in truth.cases() if case.parent.name == "aider"]
LOG, HISTORY, INPUTS = "aider-analytics.jsonl", "proj/.aider.chat.history.md", "proj/.aider.input.history"


class Writer:
    """The files of a recorded case in the order in which Aider wrote them: what is typed before the prompt that it
    makes, the start of a call before and its numbers right after its usage line, a launch after its heading."""

    def __init__(self, home: Path) -> None:
        self.log = [(json.loads(line), line) for line in (home / LOG).read_bytes().splitlines(keepends=True)]
        self.history = (home / HISTORY).read_bytes().splitlines(keepends=True)
        typed = (home / INPUTS).read_bytes() if (home / INPUTS).exists() else b""
        self.typed = re.findall(rb"\n# [^\n]*\n(?:\+[^\n]*\n)+", typed)
        self.now = self.log[0][0]["time"] * SECOND

    def pieces(self):
        for line in self.history:
            said = line.decode().strip()
            if said.startswith("# aider chat started"):
                yield from self._logged(lambda entry: entry["event"] != "launched")
                self.now = max(self.now, self.log[0][0]["time"] * SECOND) if self.log else self.now
                yield self._piece(HISTORY, line)
                yield from self._logged(lambda entry: entry["event"] != "message_send_starting")
                continue
            text = said.removeprefix("#### ").replace("> Running ", "/run ")
            if self.typed and self.typed[0].split(b"\n+")[1].decode().strip() == text:
                yield self._piece(INPUTS, self.typed.pop(0))
            if said.startswith("> Tokens:"):
                yield from self._logged(lambda entry: entry["event"] != "message_send")
                self.now = max(self.now, self.log[0][0]["time"] * SECOND)
                yield self._piece(HISTORY, line)
                yield self._entry()
            else:
                yield self._piece(HISTORY, line)
        yield from self._logged(lambda _: True)

    def _piece(self, path, body):
        self.now += SECOND // 1000
        return self.now, path, body

    def _entry(self):
        entry, line = self.log.pop(0)
        self.now = max(self.now, entry["time"] * SECOND)
        return self._piece(LOG, line)

    def _logged(self, wanted):
        while self.log and wanted(self.log[0][0]):
            yield self._entry()


def torn(pieces, seed):
    """The same bytes in pieces of any size, in the same order."""
    dice = random.Random(seed)
    held: tuple[int, str, bytes] | None = None
    for now, path, body in pieces:
        if held is not None and (held[1] != path or now - held[0] > SECOND):
            yield held
            held = None
        whole = (held[2] if held is not None else b"") + body
        cut = dice.randint(0, len(whole))
        if cut:
            yield now, path, whole[:cut]
        held = (now, path, whole[cut:]) if cut < len(whole) else None
    if held is not None:
        yield held


def followed(tmp_path, receiver, monkeypatch, pieces, restarts=0.0):
    for key, value in receiver.environ().items():
        monkeypatch.setenv(key, value)
    home, state = tmp_path / "home", tmp_path / "live"
    (home / "proj").mkdir(parents=True)
    dice = random.Random(3)
    program = Followed(home, state, SECOND)
    for at, path, body in pieces:
        with (home / path).open("ab") as file:
            file.write(body)
        program.now = at
        program.changed(home / path)
        program.look()
        if dice.random() < restarts:
            program.end()
            program.begin()
    program.end_long_after()
    return receiver.spans, (state / "page.prom").read_text()


TIMES = ("seconds", "_index")


def told(spans):
    """All of a span but its times: where the files have none, those that are followed are dated by arrival."""
    return {
        span.span_id: (
            span.name,
            span.trace_id,
            span.parent,
            span.status,
            sorted((key, str(value)) for key, value in span.attrs.items() if not key.endswith(TIMES)),
        )
        for span in spans
    }


@pytest.mark.parametrize("case", CASES, ids=truth.name)
@pytest.mark.parametrize("how", ["lines", "torn", "restarted"])
def test_followed_as_read_whole(case, how, tmp_path, monkeypatch):
    """Line by line, in torn pieces, and with the program stopped and started in between: the same spans."""
    with Receiver("http") as receiver:
        whole, _ = once(case / "home", tmp_path / "whole", receiver, monkeypatch)
    pieces = Writer(case / "home").pieces()
    with Receiver("http") as receiver:
        live, page = followed(
            tmp_path,
            receiver,
            monkeypatch,
            torn(pieces, 5) if how == "torn" else pieces,
            restarts=0.2 if how == "restarted" else 0.0,
        )
    assert truth.complaints(live, page, truth.expected(case)) == []
    assert told(live) == told(whole)


def test_a_call_and_its_turn_have_the_times_of_the_arrivals(tmp_path, monkeypatch):
    """Live the history has times after all: a turn begins with its prompt and a call ends with its usage line."""
    case = next(case for case in CASES if case.name == "compact-a")
    with Receiver("http") as receiver:
        live, _ = followed(tmp_path, receiver, monkeypatch, Writer(case / "home").pieces())
    turns = sorted((span for span in live if truth.is_turn(span)), key=lambda span: span.start)
    calls = sorted((span for span in live if truth.is_chat(span)), key=lambda span: span.start)
    assert len(turns) == len(calls) == 4
    for turn, call, after in zip(turns, calls, turns[1:], strict=False):
        assert turn.start <= call.start <= call.end <= turn.end <= after.start


def test_without_the_log_the_rounded_numbers_stand(tmp_path, monkeypatch):
    """Everything else is as with it."""
    case = next(case for case in CASES if case.name == "tools-a")
    home = tmp_path / "home"
    shutil.copytree(case / "home", home)
    (home / LOG).unlink()
    with Receiver("http") as receiver:
        spans, page = once(home, tmp_path / "state", receiver, monkeypatch)
    expect = {**truth.expected(case), "by_model": None, "cost_usd": None}
    expect["tokens"] = {"input": 2500 + 2600, "output": 34 + 60, "cache_read": 0, "cache_write": 0}
    assert truth.complaints(spans, page, expect) == []


def test_a_folder_outside_the_home_can_be_named(tmp_path, monkeypatch):
    """And what is in it is joined as in a home."""
    case = next(case for case in CASES if case.name == "models-a")
    home = tmp_path / "home"
    home.mkdir()
    with Receiver("http") as receiver:
        spans, page = once(home, tmp_path / "state", receiver, monkeypatch, aider_roots=(str(case / "home"),))
    assert truth.complaints(spans, page, truth.expected(case)) == []

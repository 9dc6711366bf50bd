"""A backend in every mood, before the whole program: following and counting go on, and in the end all is there."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import seen
from lives import Lives
from test_outage import memory, value

import truth
from ports import free_port
from receiver import Answer, Receiver
from test_run import until

MOODS = {
    "http": {
        "busy": Answer(503),
        "moved": Answer(302, headers={"Location": "/elsewhere"}),
        "broken": Answer(500, body=b"<html>"),
        "limited": Answer(429, headers={"Retry-After": "0"}),
        "stranger": Answer(401),
        "absent": Answer(404),
    },
    "grpc": {
        "busy": Answer("UNAVAILABLE"),
        "broken": Answer("INTERNAL"),
        "limited": Answer("RESOURCE_EXHAUSTED", message="quota"),
        "stranger": Answer("UNAUTHENTICATED"),
        "absent": Answer("UNIMPLEMENTED"),
    },
}
BAD = {"http": Answer(400), "grpc": Answer("INVALID_ARGUMENT", message="bad")}
LARGE = {"http": Answer(413), "grpc": Answer("RESOURCE_EXHAUSTED", message="message larger than max")}
MOST = 5
"""Spans that the backend takes in one request."""
GROWTH = 12 << 20


class Writer:
    """One finished turn after another, each a root and two calls."""

    def __init__(self, home: Path) -> None:
        self.path = home / ".agent/sessions/s.jsonl"
        self.path.parent.mkdir(parents=True)
        self.turns = 0

    def turn(self) -> None:
        n = self.turns = self.turns + 1
        lines = (
            f'"type":"user","turn_id":"t{n}","text":"x"',
            f'"type":"tool_started","turn_id":"t{n}","call_id":"c{n}","name":"shell","input":{{}}',
            f'"type":"tool_finished","turn_id":"t{n}","call_id":"c{n}","status":"ok"',
            f'"type":"assistant_finished","turn_id":"t{n}","message_id":"m{n}","usage":{{"input":1,"output":1}}',
        )
        with self.path.open("a") as file:
            for at, line in enumerate(lines):
                file.write(
                    f'{{"schema_version":1,"time":"2026-01-01T{n // 60:02}:{n % 60:02}:0{at}.000Z",{line}}}\n'
                )

    def end(self) -> None:
        """A prompt, so that nothing is left for the clock to close."""
        self.turns += 1
        with self.path.open("a") as file:
            file.write(
                '{"schema_version":1,"time":"2026-01-02T00:00:00.000Z","type":"user","turn_id":"end"}\n'
            )


@pytest.fixture(params=["http", "grpc"])
def program(request, tmp_path):
    """(the program, its backend, its writer, its port)"""
    port = free_port()
    with Receiver(request.param) as receiver, Lives(tmp_path / "log") as lives:
        writer = Writer(tmp_path / "home")
        lives.start(
            *("--home", str(tmp_path / "home"), "--state", str(tmp_path / "state"), "--since", "all"),
            *("--listen", f"127.0.0.1:{port}", "--new-series-hold", "0", "--log-format", "json"),
            env={**receiver.environ(), "OTEL_EXPORTER_OTLP_TIMEOUT": "1"},
        )
        until(lambda: value(port, "spantail_build_info"))
        yield lives, receiver, writer, port
        assert lives.end() == 0


def followed(port: int, turns: int) -> None:
    """The turns are counted, whatever the backend does."""
    until(lambda: value(port, "coding_agent_tool_calls_total") == turns)


def test_every_mood_is_survived(program):
    """Refusing, moved, broken, limiting, asking who we are, hanging: nothing is lost, memory does not grow."""
    lives, receiver, writer, port = program
    before = 0
    for name, answer in MOODS[receiver.protocol].items():
        receiver.usual = answer
        asked = len(receiver.requests)
        for _ in range(5):
            writer.turn()
        followed(port, writer.turns)
        receiver.wait_for_requests(asked + 2)
        assert value(port, "spantail_outbox_spans") > 0, name
        receiver.usual = Answer()
        until(lambda: value(port, "spantail_outbox_spans") == 0)
        before = before or memory(lives.pid)
    gate = threading.Event()
    receiver.answers.append(Answer(gate=gate))
    writer.turn()
    followed(port, writer.turns)
    gate.set()
    writer.end()
    until(lambda: len({span.span_id for span in receiver.spans if truth.is_turn(span)}) == writer.turns - 1)
    assert seen.twofold(receiver.spans) == []
    assert memory(lives.pid) - before < GROWTH
    said = [line for line in lives.said() if line["event"] == "auth_failed"]
    assert len(said) == 1
    assert "OTEL_EXPORTER_OTLP_HEADERS" in said[0]["message"]


def test_one_bad_span_costs_that_span_alone(program):
    """A request with it is refused, a large one too: both are split, the one is dropped, counted and named."""
    lives, receiver, writer, port = program
    bad: list[str] = []

    def judge(spans) -> Answer | None:
        if len(spans) > MOST:
            return LARGE[receiver.protocol]
        found = [span for span in spans if span.attrs.get("gen_ai.tool.call.id", "").endswith("c3")]
        bad.extend(span.span_id for span in found)
        return BAD[receiver.protocol] if found else None

    receiver.judge = judge
    for _ in range(10):
        writer.turn()
    writer.end()
    until(lambda: value(port, "spantail_exported_spans_total", result="dropped") == 1)
    until(lambda: value(port, "spantail_outbox_spans") == 0)
    calls = {span.span_id for span in receiver.spans if truth.is_tool(span)}
    assert len(calls) == 9
    named = [line for line in lives.said() if line["event"] == "spans_refused"]
    assert any(bad[0] in line["message"] for line in named), named


def test_a_partial_success_is_counted(program):
    lives, receiver, writer, port = program
    receiver.answers.append(Answer(rejected=1, message="too old"))
    writer.turn()
    writer.turn()
    until(lambda: value(port, "spantail_exported_spans_total", result="rejected") == 1)
    until(lambda: value(port, "spantail_outbox_spans") == 0)
    assert [line for line in lives.said() if line["event"] == "spans_refused"]

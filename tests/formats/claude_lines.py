"""Hand-made lines of Claude Code, and what its readers and the session make of them."""

from __future__ import annotations

import datetime as dt
import json
import os
from typing import Any, Self

import msgspec

from spantail.formats.claude_code.lines import Line
from spantail.formats.claude_code.meta import MetaReader
from spantail.formats.claude_code.reader import ClaudeReader
from spantail.formats.times import iso_ns
from spantail.model import Context, ModelCall, Outcome, Record, Subagent, ToolCall, Turn
from spantail.session.sessions import Sessions
from spantail.session.settle import Rules
from spantail.state.ledger import Ledger
from spantail.tail.json_lines import LineDecoder

SID = "11111111-1111-4111-8111-111111111111"
FOLDER = "/h/.claude/projects/-w-proj"
MAIN = f"{FOLDER}/{SID}.jsonl"
DAY = 86_400
LINES = LineDecoder(Line)


def iso(after: float) -> str:
    """Times of hand-made lines are seconds after a fixed one."""
    at = dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC) + dt.timedelta(seconds=after)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def ns(after: float) -> int:
    return iso_ns(iso(after))


def line(after: float, kind: str, uuid: str = "", **fields: Any) -> dict[str, Any]:
    made = {
        "type": kind,
        "uuid": uuid or f"{kind}-{after}",
        "timestamp": iso(after),
        "sessionId": SID,
        "cwd": "/w/proj",
        "version": "2.1.100",
    }
    return {name: value for name, value in (made | fields).items() if value is not None}


def user(after: float, words: Any = "do it", uuid: str = "", **fields: Any) -> dict[str, Any]:
    return line(after, "user", uuid, message={"role": "user", "content": words}, **fields)


def usage(input: int = 10, output: int = 5, **more: Any) -> dict[str, Any]:  # noqa: A002 - its own word
    return {"input_tokens": input, "output_tokens": output, **more}


def reply(
    after: float,
    id_: str,
    *tools: str,
    stop: str | None = "",
    used: dict[str, Any] | None = None,
    name: str = "Bash",
    about: dict[str, Any] | None = None,
    words: str = "done",
    **fields: Any,
) -> dict[str, Any]:
    """A line of a model call: text, or the tools it asks for."""
    blocks: list[dict[str, Any]] = [
        {"type": "tool_use", "id": tool, "name": name, "input": about or {"command": tool}} for tool in tools
    ]
    message = {
        "id": id_,
        "role": "assistant",
        "model": "claude-sonnet-4-6",
        "content": blocks or [{"type": "text", "text": words}],
        "stop_reason": ("tool_use" if tools else "end_turn") if stop == "" else stop,
        "usage": usage() if used is None else used,
    }
    return line(after, "assistant", fields.pop("uuid", f"{id_}-{after}"), message=message, **fields)


def result(
    after: float, tool: str, words: Any = "fine", *, error: bool = False, told: Any = None, **fields: Any
) -> dict[str, Any]:
    block = {"type": "tool_result", "tool_use_id": tool, "content": words}
    if error:
        block["is_error"] = True
    message = {"role": "user", "content": [block]}
    return line(after, "user", message=message, toolUseResult=told, **fields)


def nested(agent: str, *lines: dict[str, Any]) -> list[dict[str, Any]]:
    """The same lines as a subagent's file has them."""
    return [each | {"agentId": agent, "isSidechain": True} for each in lines]


def place(agent: str) -> str:
    return f"{FOLDER}/{SID}/subagents/agent-{agent}.jsonl"


class Read:
    """Lines through the reader (whose memory is stored after each) and the session."""

    def __init__(self, **rules: int) -> None:
        context = Context(agent="claude-code", provider="anthropic")
        self.sessions = Sessions(
            context, Rules(**rules), Ledger(), lambda *_, **__: None, os.path.basename, lambda _: None
        )
        self.readers: dict[str, bytes] = {}
        self.out: list[Outcome] = []

    def file(self, *lines: Any, path: str = MAIN) -> Self:
        for each in lines:
            reader = msgspec.msgpack.decode(self.readers.get(path) or b"\x80", type=ClaudeReader)
            bodies, _ = LINES.rescue(each if type(each) is bytes else json.dumps(each).encode())
            for _, body in bodies:
                self.sessions.apply(list(reader.read(Record("session", path, 0, 0, body))))
            self.readers[path] = msgspec.msgpack.encode(reader)
        return self

    def meta(self, agent: str, **about: Any) -> Self:
        path = place(agent).replace(".jsonl", ".meta.json")
        body = msgspec.Raw(json.dumps(about).encode())
        self.sessions.apply(list(MetaReader().read(Record("meta", path, 0, 0, body))))
        return self

    def settled(self, after: float = DAY) -> Self:
        self.sessions.settle(ns(after))
        self.out += self.sessions.take()
        return self

    def of(self, kind: type[Any]) -> list[Any]:
        return [each for each in self.out if isinstance(each, kind)]

    @property
    def turns(self) -> list[Turn]:
        return [turn for turn in self.of(Turn) if turn.human]

    @property
    def turn(self) -> Turn:
        (turn,) = self.turns
        return turn

    def tool(self, id_: str) -> ToolCall:
        (tool,) = [tool for tool in self.of(ToolCall) if tool.id == id_]
        return tool

    def call(self, id_: str) -> ModelCall:
        (call,) = [call for call in self.of(ModelCall) if call.response_id == id_]
        return call

    @property
    def agent(self) -> Subagent:
        (agent,) = self.of(Subagent)
        return agent


def read(*lines: Any, path: str = MAIN) -> Read:
    return Read().file(*lines, path=path).settled()

"""Agents at work, for latency.py: each writes tool calls one after another, the way its kind of storage is written.

A step is one record: the odd ones start a tool call, the even ones end it. A call becomes a span when it ends, so
`step` gives its id and the time just before the write that ended it.
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

Ended = tuple[str, int] | None
"""Id of the call and time in ns, if the step ended one."""


class Writer(Protocol):
    def step(self) -> Ended: ...


def _milliseconds() -> int:
    return time.time_ns() // 1_000_000


class Lines:
    """Appends to a file of JSON lines."""

    def __init__(self, home: Path) -> None:
        self._session = str(uuid4())
        folder = home / ".claude/projects/-home-dev-api"
        folder.mkdir(parents=True)
        self._file = (folder / f"{self._session}.jsonl").open("ab", buffering=0)
        self._last: str | None = None
        self._open = ""
        self._write("user", {"role": "user", "content": "go"}, promptId=str(uuid4()))

    def step(self) -> Ended:
        if self._open:
            block = {
                "type": "tool_result",
                "tool_use_id": self._open,
                "content": "done " * 300,
                "is_error": False,
            }
            ended, self._open = self._open, ""
            return ended, self._write("user", {"role": "user", "content": [block]})
        self._open = f"toolu_{uuid4().hex[:22]}"
        block = {"type": "tool_use", "id": self._open, "name": "Bash", "input": {"command": "make"}}
        usage = {"input_tokens": 5, "output_tokens": 50, "cache_read_input_tokens": 9000}
        message = {
            "id": f"msg_{uuid4().hex[:22]}",
            "role": "assistant",
            "model": "claude-sonnet-4-5-20250929",
        }
        self._write("assistant", {**message, "content": [block], "stop_reason": "tool_use", "usage": usage})
        return None

    def _write(self, kind: str, message: dict[str, Any], **more: str) -> int:
        now = time.time_ns()
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now // 10**9)) + f".{now // 10**6 % 1000:03d}Z"
        parent, self._last = self._last, str(uuid4())
        record = {
            "parentUuid": parent,
            "isSidechain": False,
            "cwd": "/home/dev/api",
            "sessionId": self._session,
        }
        record |= {"version": "2.1.34", "gitBranch": "main", "type": kind, "message": message, **more}
        record |= {"uuid": self._last, "timestamp": stamp}
        line = json.dumps(record).encode() + b"\n"
        at = time.time_ns()
        self._file.write(line)
        return at


class Rows:
    """Writes to a database in WAL mode, a transaction per change: the row and, beside it, the event."""

    def __init__(self, home: Path) -> None:
        folder = home / ".local/share/opencode"
        folder.mkdir(parents=True)
        self._db = sqlite3.connect(folder / "opencode.db", isolation_level=None)
        self._db.executescript(
            """
            PRAGMA journal_mode = WAL;
            PRAGMA synchronous = NORMAL;
            CREATE TABLE session (id TEXT PRIMARY KEY, parent_id TEXT, directory TEXT, version TEXT);
            CREATE TABLE message (id TEXT PRIMARY KEY, session_id TEXT, time_created INTEGER,
                                  time_updated INTEGER, data TEXT);
            CREATE TABLE part (id TEXT PRIMARY KEY, message_id TEXT, session_id TEXT, time_created INTEGER,
                               time_updated INTEGER, data TEXT);
            CREATE INDEX part_message_id_id_idx ON part (message_id, id);
            CREATE TABLE event (id TEXT PRIMARY KEY, aggregate_id TEXT, seq INTEGER, type TEXT, data TEXT);
            """
        )
        self._made = 0
        self._open: dict[str, Any] = {}
        self._session = self._id("ses")
        now = _milliseconds()
        self._commit(
            ("INSERT INTO session VALUES (?, NULL, '/home/dev/api', '1.18.33')", (self._session,)),
            "session.created",
            {"info": {"id": self._session, "directory": "/home/dev/api", "version": "1.18.33"}},
        )
        prompt = self._message({"role": "user", "time": {"created": now}})
        self._part({"type": "text", "text": "go"}, prompt, self._id("prt"))
        model = {"parentID": prompt, "modelID": "fake-model-1", "providerID": "fake", "mode": "build"}
        self._reply = self._message({"role": "assistant", "time": {"created": now}, **model})

    def step(self) -> Ended:
        now = _milliseconds()
        if self._open:
            part, self._open = self._open, {}
            times = {"start": part["state"]["time"]["start"], "end": now}
            done = {
                "status": "completed",
                "input": {"command": "make"},
                "output": "done " * 300,
                "time": times,
            }
            at = self._part(
                {**part, "state": {**done, "metadata": {}, "title": "make"}}, self._reply, self._part_id
            )
            return part["callID"], at
        self._part_id = self._id("prt")
        state = {"status": "running", "input": {"command": "make"}, "time": {"start": now}}
        self._open = {"type": "tool", "tool": "bash", "callID": f"call_{uuid4().hex[:22]}", "state": state}
        self._part(self._open, self._reply, self._part_id)
        return None

    def _id(self, kind: str) -> str:
        """Ids ascend with time."""
        self._made += 1
        return f"{kind}_{(_milliseconds() * 4096 + self._made % 4096) % (1 << 48):012x}{uuid4().hex[:14]}"

    def _message(self, info: dict[str, Any]) -> str:
        id_, now = self._id("msg"), _milliseconds()
        row = (id_, self._session, now, now, json.dumps(info))
        whole = {"info": {**info, "id": id_, "sessionID": self._session}}
        self._commit(("INSERT INTO message VALUES (?, ?, ?, ?, ?)", row), "message.updated", whole)
        return id_

    def _part(self, part: dict[str, Any], message: str, id_: str) -> int:
        now = _milliseconds()
        row = (id_, message, self._session, now, now, json.dumps(part))
        whole = {**part, "id": id_, "messageID": message, "sessionID": self._session}
        change = ("INSERT OR REPLACE INTO part VALUES (?, ?, ?, ?, ?, ?)", row)
        return self._commit(change, "message.part.updated", {"part": whole, "time": now})

    def _commit(self, change: tuple[str, tuple[Any, ...]], kind: str, data: dict[str, Any]) -> int:
        event = (self._id("evt"), self._session, self._made, kind, json.dumps(data))
        self._db.execute("BEGIN IMMEDIATE")
        self._db.execute(*change)
        self._db.execute("INSERT INTO event VALUES (?, ?, ?, ?, ?)", event)
        at = time.time_ns()
        self._db.execute("COMMIT")
        return at


class Document:
    """Writes one JSON document anew for every change, beside it first and then in its place."""

    def __init__(self, home: Path) -> None:
        self._session = f"{_milliseconds()}_bench"
        folder = home / ".cline/data/sessions" / self._session
        folder.mkdir(parents=True)
        about = {"version": 1, "session_id": self._session, "cwd": "/home/dev/api", "status": "running"}
        (folder / f"{self._session}.json").write_text(json.dumps(about))
        self._path = folder / f"{self._session}.messages.json"
        self._messages: list[dict[str, Any]] = []
        self._open = ""
        self._write("user", {"type": "text", "text": "go"})

    def step(self) -> Ended:
        if self._open:
            ended, self._open = self._open, ""
            result = [{"query": "make", "result": "done " * 300, "success": True}]
            block = {"type": "tool_result", "tool_use_id": ended, "name": "run_commands", "content": result}
            return ended, self._write("user", block)
        self._open = f"call_{uuid4().hex[:22]}"
        wanted = {
            "type": "tool_use",
            "id": self._open,
            "name": "run_commands",
            "input": {"commands": ["make"]},
        }
        model = {"id": "fake-model-1", "provider": "openai-compatible"}
        self._write("assistant", wanted, modelInfo=model, metrics={"inputTokens": 3000, "outputTokens": 40})
        return None

    def _write(self, role: str, block: dict[str, Any], **more: Any) -> int:
        message = {
            "id": f"msg_{uuid4().hex[:8]}",
            "role": role,
            "content": [block],
            "ts": _milliseconds(),
            **more,
        }
        self._messages.append(message)
        whole = {"version": 1, "agent": "lead", "sessionId": self._session, "messages": self._messages}
        beside = self._path.with_suffix(".tmp")
        beside.write_text(json.dumps(whole))
        at = time.time_ns()
        os.replace(beside, self._path)  # noqa: PTH105 nothing between the clock and the rename
        return at

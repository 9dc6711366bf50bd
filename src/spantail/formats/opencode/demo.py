"""Made-up sessions of OpenCode: rows in its database, and beside every change the event that tells of it."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from spantail.formats.actor import Actor, Call, How, milliseconds, token
from spantail.model import Usage

MODELS: Final = ("gpt-5-mini",)
CAN: Final = frozenset({"timeout", "interrupt", "fail", "delegate"})
TOOLS: Final = {"shell": "bash", "read": "read", "edit": "edit", "search": "grep", "delegate": "task"}
INPUTS: Final = {"shell": "command", "search": "pattern", "delegate": "prompt"}
PRICE: Final = 2.5e-7
TABLES: Final = """
    PRAGMA journal_mode = WAL;
    PRAGMA synchronous = NORMAL;
    CREATE TABLE IF NOT EXISTS session (id TEXT PRIMARY KEY, parent_id TEXT, directory TEXT, version TEXT);
    CREATE TABLE IF NOT EXISTS message (id TEXT PRIMARY KEY, session_id TEXT, time_created INTEGER,
                                        time_updated INTEGER, data TEXT);
    CREATE TABLE IF NOT EXISTS part (id TEXT PRIMARY KEY, message_id TEXT, session_id TEXT,
                                     time_created INTEGER, time_updated INTEGER, data TEXT);
    CREATE INDEX IF NOT EXISTS part_message_id_id_idx ON part (message_id, id);
    CREATE INDEX IF NOT EXISTS event_aggregate_id_idx ON event (aggregate_id);
"""
EVENTS: Final = "CREATE TABLE IF NOT EXISTS event (id TEXT PRIMARY KEY, aggregate_id TEXT, seq INTEGER, type TEXT, data TEXT);"
VERSION: Final = "1.18.33"


def actor(home: Path, cwd: str, model: str, now: int) -> Actor:
    folder = home / ".local/share/opencode"
    folder.mkdir(parents=True, exist_ok=True)
    return _Session(_Database(folder / "opencode.db"), cwd, model, now)


class _Database:
    """A session's connection, open as long as its process."""

    last = 0
    """The number in the last id that any session was given."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._db = self._open()
        self._db.executescript(EVENTS + TABLES)

    def _open(self) -> sqlite3.Connection:
        return sqlite3.connect(self._path, timeout=30)

    def close(self) -> None:
        self._db.close()

    def id(self, kind: str, now: int) -> str:
        """Ids ascend in the order in which they are given: readers go by it."""
        _Database.last = max(_Database.last + 1, milliseconds(now) * 4096)
        return f"{kind}_{_Database.last % (1 << 48):012x}{token(14)}"

    def change(self, now: int, session: str, kind: str, about: Any, statement: str, *row: Any) -> None:
        event = (self.id("evt", now), session, _Database.last, f"{kind}.1", json.dumps(about))
        with self._db as db:
            db.execute(statement, row)
            db.execute("INSERT INTO event VALUES (?, ?, ?, ?, ?)", event)

    def forget(self, session: str) -> None:
        """After the process is gone."""
        with self._open() as db:
            for table, key in (
                ("event", "aggregate_id"),
                ("part", "session_id"),
                ("message", "session_id"),
                ("session", "id"),
            ):
                db.execute(f"DELETE FROM {table} WHERE {key} = ?", (session,))  # noqa: S608 - our own words
        db.close()


class _Session(Actor):
    def __init__(
        self, database: _Database, cwd: str, model: str, now: int, parent: str | None = None
    ) -> None:
        self._database, self._cwd, self._model = database, cwd, model
        self.id = database.id("ses", now)
        self._prompt = ""
        self._open: dict[str, tuple[str, str, int]] = {}
        """Call id: its part, its message, when it began."""
        self._reply, self._asked = "", now
        """The reply that the model is asked for, and since when."""
        self._spent: dict[str, Any] = {}
        """What it took, told when its tools have ended."""
        self._nested: list[str] = []
        info = {"id": self.id, "parentID": parent, "directory": cwd, "version": VERSION}
        statement = "INSERT INTO session VALUES (?, ?, ?, ?)"
        database.change(
            now, self.id, "session.created", {"info": info}, statement, self.id, parent, cwd, VERSION
        )

    def prompt(self, now: int, words: str) -> None:
        self._prompt = self._database.id("msg", now)
        self._message(now, self._prompt, {"role": "user", "time": {"created": milliseconds(now)}})
        self._part(now, self._database.id("prt", now), self._prompt, {"type": "text", "text": words})
        self._ask(now)

    def reply(self, now: int, usage: Usage, calls: Sequence[Call]) -> None:
        tokens = {
            "input": usage.input,
            "output": usage.output - usage.reasoning,
            "reasoning": usage.reasoning,
            "total": usage.total(),
        }
        cache = {"read": usage.cache_read, "write": usage.cache_write}
        cost = round(PRICE * (usage.input + usage.cache_read / 10 + 8 * usage.output), 6)
        self._spent = {"tokens": {**tokens, "cache": cache}, "cost": cost}
        for call in calls:
            part = self._database.id("prt", now)
            self._open[call.id] = part, self._reply, now
            self._tool(now, call, {"status": "running", "time": {"start": milliseconds(now)}})
        if not calls:
            self._part(now, self._database.id("prt", now), self._reply, {"type": "text", "text": "Done."})
            self._finish(now, finish="stop")

    def result(self, now: int, call: Call, how: How) -> None:
        times = {"start": milliseconds(self._open[call.id][2]), "end": milliseconds(now)}
        if how == "timeout":
            self._tool(now, call, {"status": "error", "error": "Error: timed out", "time": times})
        else:
            done: dict[str, Any] = {
                "status": "completed",
                "output": "done",
                "time": times,
                "title": "",
                "metadata": {},
            }
            done["metadata"] = {"exit": int(how == "error"), "output": "done"}
            if call.work == "delegate":
                done["metadata"] = {"sessionId": self._nested[-1]}
            self._tool(now, call, done)
        del self._open[call.id]
        if not self._open:
            self._finish(now, finish="tool-calls")
            self._ask(now)

    def interrupt(self, now: int, call: Call) -> None:
        times = {"start": milliseconds(self._open[call.id][2]), "end": milliseconds(now)}
        error = {"status": "error", "error": "Tool execution aborted", "time": times}
        self._tool(now, call, {**error, "metadata": {"interrupted": True}})
        del self._open[call.id]
        self._finish(now, error={"name": "MessageAbortedError", "data": {"message": "Aborted"}})

    def fail(self, now: int) -> None:
        nothing = {"input": 0, "output": 0, "reasoning": 0, "cache": {"read": 0, "write": 0}}
        self._spent = {"tokens": nothing, "cost": 0}
        data = {"message": "Overloaded", "statusCode": 529, "isRetryable": False}
        self._finish(now, error={"name": "APIError", "data": data})

    def delegate(self, now: int, call: Call) -> Actor:
        nested = _Session(self._database, self._cwd, self._model, now, self.id)
        self._nested.append(nested.id)
        state = {"status": "running", "time": {"start": milliseconds(self._open[call.id][2])}}
        self._tool(now, call, {**state, "metadata": {"sessionId": nested.id}})
        nested.prompt(now, call.words)
        return nested

    def close(self) -> None:
        self._database.close()

    def remove(self) -> None:
        for session in (self.id, *self._nested):
            self._database.forget(session)

    def _ask(self, now: int) -> None:
        self._reply, self._asked = self._database.id("msg", now), now
        self._message(now, self._reply, self._about())

    def _about(self) -> dict[str, Any]:
        about: dict[str, Any] = {
            "parentID": self._prompt,
            "role": "assistant",
            "mode": "build",
            "agent": "build",
        }
        about |= {"modelID": self._model, "providerID": "openai", "path": {"cwd": self._cwd}}
        return {**about, "time": {"created": milliseconds(self._asked)}}

    def _finish(self, now: int, **more: Any) -> None:
        about = self._about()
        about["time"]["completed"] = milliseconds(now)
        self._message(now, self._reply, {**about, **self._spent, **more})

    def _tool(self, now: int, call: Call, state: dict[str, Any]) -> None:
        part, message, _ = self._open[call.id]
        given = {INPUTS.get(call.work, "filePath"): call.words}
        if call.work == "delegate":
            given |= {"description": call.words[:40], "subagent_type": "general"}
        about = {"type": "tool", "tool": TOOLS[call.work], "callID": call.id}
        self._part(now, part, message, {**about, "state": {"input": given, **state}})

    def _message(self, now: int, id_: str, info: dict[str, Any]) -> None:
        at = milliseconds(now)
        about = {"info": {**info, "id": id_, "sessionID": self.id}}
        statement = "INSERT OR REPLACE INTO message VALUES (?, ?, ?, ?, ?)"
        row = (id_, self.id, at, at, json.dumps(info))
        self._database.change(now, self.id, "message.updated", about, statement, *row)

    def _part(self, now: int, id_: str, message: str, part: dict[str, Any]) -> None:
        at = milliseconds(now)
        about = {"part": {**part, "id": id_, "messageID": message, "sessionID": self.id}, "time": at}
        statement = "INSERT OR REPLACE INTO part VALUES (?, ?, ?, ?, ?, ?)"
        row = (id_, message, self.id, at, at, json.dumps(part))
        self._database.change(now, self.id, "message.part.updated", about, statement, *row)

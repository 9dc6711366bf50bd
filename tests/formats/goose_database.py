"""Writes a Goose database as Goose does, of any schema version; as a process of its own it writes a recorded
one once more, change by change.

Run with the recorded database and the new one; each line on stdin is a command: `write` begins a transaction
and makes the next change in it, `commit` ends it. The answer is `ok`, or `end` when there is nothing left.
"""

import json
import sqlite3
import sys
from contextlib import closing
from datetime import UTC, datetime

SESSION = {
    "id": 1,
    "description": 1,
    "working_dir": 1,
    "created_at": 1,
    "updated_at": 1,
    "extension_data": 1,
    "total_tokens": 1,
    "input_tokens": 1,
    "output_tokens": 1,
    "accumulated_total_tokens": 1,
    "accumulated_input_tokens": 1,
    "accumulated_output_tokens": 1,
    "schedule_id": 1,
    "recipe_json": 1,
    "user_recipe_values_json": 2,
    "name": 4,
    "user_set_name": 4,
    "session_type": 5,
    "provider_name": 6,
    "model_config_json": 6,
    "goose_mode": 8,
    "thread_id": 10,
    "archived_at": 12,
    "project_id": 12,
    "accumulated_cost": 13,
    "cache_read_tokens": 15,
    "cache_write_tokens": 15,
    "accumulated_cache_read_tokens": 15,
    "accumulated_cache_write_tokens": 15,
    "parent_session_id": 15,
}
"""Column -> the version that brought it."""
MESSAGE = {
    "session_id": 1,
    "role": 1,
    "content_json": 1,
    "created_timestamp": 1,
    "timestamp": 1,
    "tokens": 1,
    "metadata_json": 3,
    "message_id": 7,
}
SEEN = {"userVisible": True, "agentVisible": True}


def clock(seconds):
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")


class Goose:
    """An agent at work. Times are seconds; every method is a transaction, as in Goose."""

    def __init__(self, path, version=9):
        self.version = version
        self.db = sqlite3.connect(path, isolation_level=None)
        self.db.execute("PRAGMA journal_mode = WAL")
        sessions = [name for name, since in SESSION.items() if since <= version]
        messages = [name for name, since in MESSAGE.items() if since <= version]
        self.db.executescript(
            f"""
            CREATE TABLE schema_version (version INTEGER PRIMARY KEY, applied_at TIMESTAMP);
            CREATE TABLE sessions ({", ".join(sessions)}, PRIMARY KEY (id));
            CREATE TABLE messages (id INTEGER PRIMARY KEY AUTOINCREMENT, {", ".join(messages)});
            CREATE INDEX idx_messages_session ON messages(session_id);
            CREATE INDEX idx_sessions_updated ON sessions(updated_at DESC);
            INSERT INTO schema_version VALUES ({version}, NULL);
            """
        )

    def close(self):
        self.db.close()

    def _insert(self, table, known, row):
        row = {name: value for name, value in row.items() if known[name] <= self.version}
        marks = ", ".join("?" * len(row))
        self.db.execute(f"INSERT INTO {table} ({', '.join(row)}) VALUES ({marks})", tuple(row.values()))

    def session(self, id_, at, kind="user", folder="/repo/app", **more):
        row = {
            "id": id_,
            "working_dir": folder,
            "created_at": clock(at),
            "updated_at": clock(at),
            "extension_data": '{"token": "a secret"}',
            "recipe_json": '{"env": "a secret"}',
            "name": "words of the user",
            "session_type": kind,
            "provider_name": "anthropic",
            "model_config_json": '{"model_name":"claude-sonnet-4-5","request_params":{"key":"a secret"}}',
            **more,
        }
        self._insert("sessions", SESSION, row)

    def usage(self, session, at, input_, output, **more):
        values = {"accumulated_input_tokens": input_, "accumulated_output_tokens": output, **more}
        names = ", ".join(f"{name} = ?" for name in values)
        self.db.execute(
            f"UPDATE sessions SET {names}, updated_at = ? WHERE id = ?",
            (*values.values(), clock(at), session),
        )

    def say(self, session, role, at, *content, id_=None, stored=None, **seen):
        """A message; `stored`: when it was inserted, if that was later."""
        self.db.execute("BEGIN IMMEDIATE")
        self._insert(
            "messages", MESSAGE, self.message(session, role, at, *content, id_=id_, stored=stored, **seen)
        )
        self.db.execute("UPDATE sessions SET updated_at = ? WHERE id = ?", (clock(stored or at), session))
        self.db.execute("COMMIT")

    def message(self, session, role, at, *content, id_=None, stored=None, **seen):
        (last,) = self.db.execute("SELECT max(id) FROM messages").fetchone()
        return {
            "session_id": session,
            "role": role,
            "content_json": json.dumps(content),
            "created_timestamp": at,
            "timestamp": clock(stored or at),
            "metadata_json": json.dumps(SEEN | seen),
            "message_id": id_ or f"msg_{last or 0:08x}-{at:x}-made",
        }

    def compact(self, session, at, prompt=None):
        """All rows deleted and inserted again, a summary, and the prompt once more."""
        self.db.execute("BEGIN IMMEDIATE")
        names = [name for name, since in MESSAGE.items() if since <= self.version]
        rows = self.db.execute(
            f"SELECT {', '.join(names)} FROM messages WHERE session_id = ? ORDER BY id", (session,)
        ).fetchall()
        self.db.execute("DELETE FROM messages WHERE session_id = ?", (session,))
        for n, row in enumerate(rows):
            again = dict(zip(names, row, strict=True)) | {"timestamp": clock(at)}
            seen = json.loads(again.get("metadata_json") or "{}") | {"agentVisible": False}
            if prompt and n == len(rows) - 1:
                seen["userVisible"] = False
            self._insert("messages", MESSAGE, again | {"metadata_json": json.dumps(seen)})
        last = [("user", "A summary"), ("assistant", "Your context was compacted"), ("user", prompt)]
        for role, words in last if prompt else last[:2]:
            fresh = self.message(session, role, at, text(words), userVisible=words == prompt)
            self._insert("messages", MESSAGE, fresh)
        self.db.execute("COMMIT")


def text(words):
    return {"type": "text", "text": words}


def request(id_, name="shell", **arguments):
    call = {"status": "success", "value": {"name": name, "arguments": arguments}}
    return {"type": "toolRequest", "id": id_, "toolCall": call}


def response(id_, words="done", **value):
    value = {"content": [text(words)], "isError": False, **value}
    return {"type": "toolResponse", "id": id_, "toolResult": {"status": "success", "value": value}}


# ---------------------------------------------------------------------------- a recorded one again


def changes(source):
    """Transactions: lists of (statement, values)."""
    source.row_factory = sqlite3.Row
    sessions = {row["id"]: dict(row) for row in source.execute("SELECT * FROM sessions")}
    rows = [dict(row) for row in source.execute("SELECT * FROM messages ORDER BY id")]
    steps = {id_: _steps(rows, id_) for id_ in sessions}
    totals = ("accumulated_total_tokens", "accumulated_input_tokens", "accumulated_output_tokens")
    begun, done, before = set(), dict.fromkeys(sessions, 0), {}
    held = []

    def spent(id_, at):
        done[id_] += 1
        share = [(sessions[id_][name] or 0) * done[id_] // max(1, steps[id_]) or None for name in totals]
        names = ", ".join(f"{name} = ?" for name in totals)
        return [(f"UPDATE sessions SET {names}, updated_at = ? WHERE id = ?", (*share, at, id_))]

    for row in rows:
        id_, at = row["session_id"], row["timestamp"]
        if id_ not in begun:
            begun.add(id_)
            new = sessions[id_] | dict.fromkeys(totals) | {"updated_at": sessions[id_]["created_at"]}
            yield [_insert("sessions", new)]
        if row["role"] == "assistant" and before.get(id_) != "assistant" and done[id_] < steps[id_]:
            yield spent(id_, at)
        before[id_] = row["role"]
        touch = ("UPDATE sessions SET updated_at = ? WHERE id = ?", (at, id_))
        seen = json.loads(row["metadata_json"])
        if not seen["agentVisible"]:
            # As it was before the compaction.
            held.append(_insert("messages", row))
            yield [_insert("messages", row | {"metadata_json": json.dumps(SEEN)}), touch]
        elif not seen["userVisible"] and row["role"] == "user":
            held = [("DELETE FROM messages WHERE session_id = ?", (id_,)), *held, _insert("messages", row)]
        elif not seen["userVisible"]:
            held.append(_insert("messages", row))
        elif held:
            yield [*held, _insert("messages", row), touch]
            held = []
        else:
            yield [_insert("messages", row), touch]
    for id_, session in sessions.items():
        if session[totals[0]] and not steps[id_]:
            yield spent(id_, session["updated_at"])


def _steps(rows, session):
    roles = [row["role"] for row in rows if row["session_id"] == session]
    return sum(role == "assistant" != before for role, before in zip(roles, [None, *roles], strict=False))


def _insert(table, row):
    row = {name: value for name, value in row.items() if table != "messages" or name != "id"}
    marks = ", ".join("?" * len(row))
    return f"INSERT INTO {table} ({', '.join(row)}) VALUES ({marks})", tuple(row.values())


def main(recorded, new):
    with (
        closing(sqlite3.connect(recorded)) as source,
        closing(sqlite3.connect(new, isolation_level=None)) as target,
    ):
        target.execute("PRAGMA journal_mode = WAL")
        for (statement,) in source.execute("SELECT sql FROM sqlite_master WHERE name NOT LIKE 'sqlite_%'"):
            target.execute(statement)
        todo = changes(source)
        print("ok", flush=True)
        for command in sys.stdin:
            if command.strip() == "commit":
                target.execute("COMMIT")
                print("ok", flush=True)
                continue
            change = next(todo, None)
            if change is None:
                print("end", flush=True)
                return
            target.execute("BEGIN IMMEDIATE")
            for statement, values in change:
                target.execute(statement, values)
            print("ok", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])

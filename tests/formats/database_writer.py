"""A process that writes a recorded database once more, change by change, as its agent did.

Run with the recorded database and the new one; each line on stdin is a command: `write` begins a transaction
and makes the next change in it, `commit` ends it. The answer is `ok`, or `end` when there is nothing left.
"""

import json
import sqlite3
import sys

TABLES = """
CREATE TABLE session (id TEXT PRIMARY KEY, parent_id TEXT, directory TEXT, version TEXT);
CREATE TABLE message (id TEXT PRIMARY KEY, session_id TEXT, time_created INTEGER,
                      time_updated INTEGER, data TEXT);
CREATE TABLE part (id TEXT PRIMARY KEY, message_id TEXT, session_id TEXT, time_created INTEGER,
                   time_updated INTEGER, data TEXT);
CREATE INDEX part_message_id_id_idx ON part (message_id, id);
CREATE TABLE event (id TEXT PRIMARY KEY, aggregate_id TEXT, seq INTEGER, type TEXT, data TEXT);
CREATE UNIQUE INDEX event_aggregate_seq_idx ON event (aggregate_id, seq);
"""


def changes(recorded):
    """The rows of the events, in their order: what was stored with each of them."""
    source = sqlite3.connect(f"file:{recorded}?mode=ro", uri=True)
    yield from source.execute("SELECT id, aggregate_id, seq, type, data FROM event ORDER BY rowid")
    source.close()


def store(target, event, keep_events):
    _, session, _, kind, data = event
    body = json.loads(data)
    if kind.startswith("session.created"):
        info = body["info"]
        target.execute(
            "INSERT INTO session (id, parent_id, directory, version) VALUES (?, ?, ?, ?)",
            (session, info.get("parentID"), info["directory"], info["version"]),
        )
    elif kind.startswith("message.updated"):
        info = body["info"]
        id_, time = info.pop("id"), info["time"]
        info.pop("sessionID")
        target.execute(
            "INSERT INTO message (id, session_id, time_created, time_updated, data) VALUES (?, ?, ?, ?, ?)"
            " ON CONFLICT (id) DO UPDATE SET data = excluded.data, time_updated = excluded.time_updated",
            (id_, session, time["created"], time.get("completed", time["created"]), json.dumps(info)),
        )
    elif kind.startswith("message.part.updated"):
        part = body["part"]
        id_, message = part.pop("id"), part.pop("messageID")
        part.pop("sessionID")
        target.execute(
            "INSERT INTO part (id, message_id, session_id, time_created, time_updated, data)"
            " VALUES (?, ?, ?, ?, ?, ?)"
            " ON CONFLICT (id) DO UPDATE SET data = excluded.data, time_updated = excluded.time_updated",
            (id_, message, session, body["time"], body["time"], json.dumps(part)),
        )
    if keep_events:
        target.execute("INSERT INTO event (id, aggregate_id, seq, type, data) VALUES (?, ?, ?, ?, ?)", event)


def main(recorded, new, keep_events):
    target = sqlite3.connect(new, isolation_level=None)
    target.execute("PRAGMA journal_mode = WAL")
    target.executescript(TABLES)
    todo = changes(recorded)
    print("ok", flush=True)
    for command in sys.stdin:
        if command.strip() == "commit":
            target.execute("COMMIT")
            print("ok", flush=True)
            continue
        event = next(todo, None)
        if event is None:
            print("end", flush=True)
            return
        target.execute("BEGIN IMMEDIATE")
        store(target, event, keep_events)
        print("ok", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3] == "events")

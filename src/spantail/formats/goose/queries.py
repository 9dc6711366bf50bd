"""Goose's database -> queries, for every schema version: what a column is missing is read as NULL.

- `message`: new rows by their id, which is never given twice (AUTOINCREMENT, also after a VACUUM). A compaction
  deletes a session's rows and inserts them under new ids; they then come again, and the reader knows them. What
  it has to know of the session comes along, because one database holds many sessions.
- `new` and `total`: the running totals of sessions, after the messages of the same moment, so that they meet
  the turn they belong to. New rows by rowid, changed ones by `updated_at`, which every change of Goose moves.

Only named columns are ever selected: `extension_data` and `recipe_json` may hold secrets, a session's name and
description are words of the user.
"""

from __future__ import annotations

from typing import Final

from spantail.formats.queries import Columns, Plan, Query

_MESSAGE: Final = frozenset({"id", "session_id", "role", "content_json", "created_timestamp"})

_LAST: Final = (
    "NOT EXISTS (SELECT 1 FROM messages later"
    " WHERE later.session_id = messages.session_id AND later.id > messages.id)"
)
_FIRST: Final = (
    "NOT EXISTS (SELECT 1 FROM messages before"
    " WHERE before.session_id = messages.session_id AND before.id < messages.id)"
)
_AROUND: Final = (
    "(SELECT p.id FROM sessions p, sessions c WHERE c.id = messages.session_id"
    " AND c.session_type = 'sub_agent' AND p.session_type <> 'sub_agent' AND p.working_dir = c.working_dir"
    " AND p.created_at <= c.created_at AND p.updated_at >= c.created_at ORDER BY p.created_at DESC LIMIT 1)"
)
"""The session that was at work in the same folder when a subagent's began."""
_SPOKEN: Final = (
    "(SELECT created_timestamp FROM messages WHERE messages.session_id = sessions.id"
    " ORDER BY messages.id DESC LIMIT 1)"
)
# An import writes other people's times; a clock once wrong must not hide what comes after it is right again.
_MOVES: Final = "updated_at LIKE '____-__-__ %' AND updated_at <= datetime('now', '+1 day')"


def queries(columns: Columns) -> Plan:
    plan: list[Query] = []
    sessions = columns.get("sessions", frozenset())
    messages = columns.get("messages", frozenset())
    if "version" in columns.get("schema_version", frozenset()):
        plan.append(Query(kind="schema", table="schema_version", columns=("version",)))
    if messages >= _MESSAGE:
        plan.append(_messages(messages, sessions))
    if "id" in sessions:
        plan += _totals(sessions, spoken=messages >= _MESSAGE)
    return tuple(plan)


def _messages(messages: frozenset[str], sessions: frozenset[str]) -> Query:
    def of_session(name: str) -> str:
        if not sessions >= {"id", name}:
            return "NULL"
        return f"(SELECT s.{name} FROM sessions s WHERE s.id = messages.session_id)"  # noqa: S608 our own names

    timed = sessions >= {"id", "session_type", "working_dir", "created_at", "updated_at"}
    return Query(
        kind="message",
        table="messages",
        columns=(
            "session_id",
            _found("message_id", messages),
            "role",
            "CAST(content_json AS BLOB)",
            "created_timestamp",
            _found("timestamp", messages),
            f"CAST({_found('metadata_json', messages)} AS BLOB)",
            _LAST,
            of_session("session_type"),
            of_session("working_dir"),
            of_session("provider_name"),
            of_session("parent_session_id"),
            f"CASE WHEN {_FIRST} THEN {_AROUND} END" if timed else "NULL",
        ),
    )


def _totals(sessions: frozenset[str], *, spoken: bool) -> list[Query]:
    # The settings of the model hold more than its name.
    model = "CASE WHEN json_valid({0}) THEN json_extract({0}, '$.model_name') END".format("model_config_json")
    columns = (
        "id",
        _found("updated_at", sessions),
        _found("accumulated_input_tokens", sessions),
        _found("accumulated_output_tokens", sessions),
        _found("accumulated_cache_read_tokens", sessions),
        _found("accumulated_cache_write_tokens", sessions),
        _found("accumulated_cost", sessions),
        model if "model_config_json" in sessions else "NULL",
        _found("provider_name", sessions),
        _SPOKEN if spoken else "NULL",
    )
    # Ids count from 1 each day and come again after a deletion: only with its time a row is the same row.
    key = "id || ' ' || COALESCE(created_at, '')" if "created_at" in sessions else "id"
    found = [Query(kind="new", table="sessions", key=key, columns=columns)]
    if "updated_at" in sessions:
        found.append(
            Query(kind="total", table="sessions", key="id", mark="updated_at", where=_MOVES, columns=columns)
        )
    return found


def _found(name: str, columns: frozenset[str]) -> str:
    return name if name in columns else "NULL"

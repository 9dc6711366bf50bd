"""OpenCode's database -> queries. Only named columns of session, message, part, event are ever selected.

Newer versions also store every change of a message or part as an event, in the transaction that makes it: read
in their order they tell all that happened, and cost what is new. Older ones have no event table, or leave it
empty, and change rows in place: there new messages are found by rowid, and those that are open are looked at
again. A database that has lived through versions holds sessions of both sorts, so it is decided for each
session: by events if it has them from its creation on.
"""

from __future__ import annotations

from typing import Final

from spantail.formats.opencode.shapes import MESSAGE, PART, text
from spantail.formats.queries import Columns, Parts, Plan, Query, Row
from spantail.formats.values import decoded

NOTES: Final = ("Continue if you have next steps", "Summarize the task tool output above")
"""Messages that the program sends to the model in the user's place."""
SHELL: Final = "The following tool was executed by the user"

_HAS: Final = (
    "EXISTS (SELECT 1 FROM event c WHERE c.aggregate_id = {{session}}"
    " AND c.type >= '{0}' AND c.type < '{0}' || char(127))"
)
_BY_EVENTS: Final = f"({_HAS.format('session.created')} AND {_HAS.format('message.updated')})"
_NEEDED: Final = {
    "message": {"id", "session_id", "data"},
    "part": {"id", "message_id", "time_created", "time_updated", "data"},
    "event": {"id", "aggregate_id", "type", "data"},
}


def queries(columns: Columns) -> Plan:
    has = {table for table, names in _NEEDED.items() if names <= columns.get(table, frozenset())}
    plan: list[Query] = []
    session = columns.get("session", frozenset())
    if "id" in session:
        wanted = ("parent_id", "directory", "version")
        chosen = tuple(name if name in session else "NULL" for name in wanted)
        plan.append(Query(kind="session", table="session", key="id", columns=chosen))
    if "event" in has:
        what = "(type LIKE 'message.updated%' OR type LIKE 'message.part.updated%')"
        plan.append(
            Query(
                kind="event",
                table="event",
                key="id",
                columns=("aggregate_id", "CAST(data AS BLOB)"),
                where=f"{what} AND {_BY_EVENTS.format(session='event.aggregate_id')}",
            )
        )
    if {"message", "part"} <= has:
        events = "event" in columns
        plan.append(
            Query(
                kind="message",
                table="message",
                key="id",
                # Between the versions without events and those that fill them the start of a running shell
                # command moved with its output; with events the first start is known.
                columns=("session_id", "CAST(data AS BLOB)", "1" if events else "0"),
                where=f"NOT {_BY_EVENTS.format(session='message.session_id')}" if "event" in has else "",
                parts=Parts(
                    table="part",
                    owner="message_id",
                    changed="time_updated",
                    columns=("id", "time_created", "CAST(data AS BLOB)"),
                    order="id",
                ),
                open=is_open,
            )
        )
    return tuple(plan)


def is_open(row: Row) -> bool:
    """Whether a message may still change in a way that matters."""
    message = decoded(MESSAGE, row.values[1])
    if message is None:
        return False
    parts = [part for values in row.parts if (part := decoded(PART, values[2])) is not None]
    if message.role != "assistant":
        # Its parts are written after it, one by one, until one of them says what it is.
        return not any(
            part.type in ("subtask", "compaction")
            or (part.type == "text" and (not part.synthetic or text(part.text).startswith((*NOTES, SHELL))))
            for part in parts
        )
    if not message.time.completed and not message.error:
        return True
    return any(part.state is not None and part.state.status in ("pending", "running") for part in parts)

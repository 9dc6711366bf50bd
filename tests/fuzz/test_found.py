"""What the fuzzer found, each as small as it can be: one bad record, and what came after it is counted."""

from __future__ import annotations

import json
import sqlite3

import pytest

import truth
from program import once


def counted(page: str, name: str) -> float:
    return sum(value for _, value in truth.samples(page)[name])


def claude(**usage: object) -> list[dict[str, object]]:
    lines: list[dict[str, object]] = []
    for turn, given in enumerate((usage, {"input_tokens": 10, "output_tokens": 1})):
        head = {"sessionId": "s", "cwd": "/w", "timestamp": f"2026-01-01T0{turn}:00:00.000Z"}
        lines += [
            {**head, "type": "user", "uuid": f"u{turn}", "message": {"content": "go"}},
            {
                **head,
                "type": "assistant",
                "uuid": f"a{turn}",
                "message": {
                    "id": f"m{turn}",
                    "model": "x",
                    "stop_reason": "end_turn",
                    "content": [],
                    "usage": given,
                },
            },
        ]
    return lines


@pytest.mark.parametrize("tokens", [10**30, 2**64, -(10**30), 2**63])
def test_more_tokens_than_can_be_stored(tokens, tmp_path, monkeypatch):
    """The commit failed with them, at every start anew. What else the call says counts."""
    folder = tmp_path / "home/.claude/projects/-w"
    folder.mkdir(parents=True)
    lines = claude(input_tokens=tokens, output_tokens=1)
    (folder / "s.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    _, page = once(tmp_path / "home", tmp_path / "state", None, monkeypatch)
    assert counted(page, "coding_agent_tokens_total") == 1 + 11
    assert counted(page, "coding_agent_turns_total") == 2


@pytest.mark.parametrize("time", ["text", b"\xff", 1e300, None])
def test_times_of_another_type_in_a_database(time, tmp_path, monkeypatch):
    """Columns of SQLite have no types: text and bytes among the times of parts ended the loop."""
    folder = tmp_path / "home/.local/share/opencode"
    folder.mkdir(parents=True)
    db = sqlite3.connect(folder / "opencode.db")
    db.executescript(
        "CREATE TABLE session (id TEXT PRIMARY KEY, parent_id, directory, version);"
        "CREATE TABLE message (id TEXT PRIMARY KEY, session_id, time_created, time_updated, data);"
        "CREATE TABLE part (id TEXT PRIMARY KEY, message_id, session_id, time_created, time_updated, data);"
    )
    db.execute("INSERT INTO session VALUES ('ses_1', NULL, '/w', '1.2.27')")
    user = {"role": "user", "time": {"created": 1_770_000_000_000}}
    db.execute("INSERT INTO message VALUES ('msg_1', 'ses_1', 1, 1, ?)", (json.dumps(user),))
    part = json.dumps({"type": "text", "text": "go"})
    for n, at in enumerate((1_770_000_000_000, time, 1_770_000_000_001)):
        db.execute("INSERT INTO part VALUES (?, 'msg_1', 'ses_1', 1, ?, ?)", (f"prt_{n}", at, part))
    db.commit()
    db.close()
    _, page = once(tmp_path / "home", tmp_path / "state", None, monkeypatch)
    assert counted(page, "coding_agent_turns_total") == 1


def test_a_time_in_the_future_does_not_swallow_the_next_prompt(tmp_path, monkeypatch):
    """It was taken for one that had been queued, since it seemed older than what was written before it."""
    folder = tmp_path / "home/.pi/agent/sessions/--w--"
    folder.mkdir(parents=True)

    def entry(number: int, time: str, **message: object) -> dict[str, object]:
        return {
            "type": "message",
            "id": f"e{number}",
            "parentId": f"e{number - 1}",
            "timestamp": time,
            "message": message,
        }

    call = {"type": "toolCall", "id": "c", "name": "bash", "arguments": {}}
    lines = [
        {"type": "session", "id": "s", "timestamp": "2026-01-01T00:00:00.000Z", "cwd": "/w"},
        entry(1, "2026-01-01T00:00:01.000Z", role="user", content="a", timestamp=1_767_225_601_000),
        entry(
            2, "2028-01-01T00:00:02.000Z", role="assistant", content=[call], stopReason="toolUse", model="x"
        ),
        entry(3, "2026-01-01T00:10:00.000Z", role="user", content="b", timestamp=1_767_226_200_000),
        entry(4, "2026-01-01T00:10:01.000Z", role="assistant", content=[], stopReason="stop", model="x"),
    ]
    (folder / "2026-01-01T00-00-00-000Z_s.jsonl").write_text(
        "".join(json.dumps(line) + "\n" for line in lines)
    )
    _, page = once(tmp_path / "home", tmp_path / "state", None, monkeypatch)
    assert counted(page, "coding_agent_turns_total") == 2

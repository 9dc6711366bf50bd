"""Made-up sessions of Codex: lines as version 0.169 writes them, with the rate limits that its service tells."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from spantail.formats.actor import BRANCH, Actor, Call, How, Lines, iso, milliseconds, token, uuid7
from spantail.model import SECOND, Usage

MODELS: Final = ("gpt-5-codex", "gpt-5")
CAN: Final = frozenset({"denied", "interrupt", "fail", "limit", "compact"})
STATUSES: Final = {"ok": ("completed", 0), "error": ("failed", 1), "denied": ("declined", None)}
WINDOWS: Final = (("primary", 300, 40), ("secondary", 10080, 160))
"""Slot, minutes, and how many model calls use it up."""


def actor(home: Path, cwd: str, model: str, now: int) -> Actor:
    day = datetime.fromtimestamp(now // SECOND, UTC)
    session = uuid7(now)
    name = f"rollout-{day:%Y-%m-%dT%H-%M-%S}-{session}.jsonl"
    return _Thread(home / ".codex/sessions" / f"{day:%Y/%m/%d}" / name, cwd, model, session, now)


class _Thread(Actor):
    def __init__(self, path: Path, cwd: str, model: str, session: str, now: int) -> None:
        self._lines, self._cwd, self._model, self._session = Lines(path), cwd, model, session
        self._ordinal = self._replies = 0
        self._turn = ""
        self._total = Usage()
        self._started: dict[str, int] = {}
        about = {"id": session, "session_id": session, "timestamp": iso(now), "cwd": cwd, "source": "cli"}
        about |= {"cli_version": "0.169.0", "model_provider": "openai", "originator": "codex_cli_rs"}
        self._line(now, "session_meta", {**about, "git": {"branch": BRANCH}})

    def prompt(self, now: int, words: str) -> None:
        self._turn = uuid7(now)
        self._event(now, "task_started", model_context_window=272_000)
        self._line(now, "turn_context", {"turn_id": self._turn, "cwd": self._cwd, "model": self._model})
        content = [{"type": "input_text", "text": words}]
        self._line(now, "response_item", {"type": "message", "role": "user", "content": content})
        item = {"type": "UserMessage", "id": uuid7(now), "content": [{"type": "text", "text": words}]}
        self._event(now, "item_completed", item=item)

    def reply(self, now: int, usage: Usage, calls: Sequence[Call]) -> None:
        self._replies += 1
        if not calls:
            content = [{"type": "output_text", "text": "Done."}]
            self._line(now, "response_item", {"type": "message", "role": "assistant", "content": content})
        for call in calls:
            self._started[call.id] = now
            about = {"type": "function_call", "name": "exec_command", "call_id": call.id}
            self._line(now, "response_item", {**about, "arguments": json.dumps({"cmd": _command(call)})})
        self._total.add(usage)
        about = {"thread_id": self._session, "turn_id": self._turn, "response_id": f"resp_{token()}"}
        self._line(now, "token_usage_record", {**about, "usage": _counts(usage)})
        info = {"total_token_usage": _counts(self._total), "last_token_usage": _counts(usage)}
        self._event(now, "token_count", info=info, rate_limits=self._limits(now))
        if not calls:
            self._event(now, "task_complete", last_agent_message="Done.")

    def result(self, now: int, call: Call, how: How) -> None:
        status, code = STATUSES[how]
        began = self._started.pop(call.id)
        item: dict[str, Any] = {
            "type": "CommandExecution",
            "id": call.id,
            "command": ["/bin/bash", "-lc", _command(call)],
        }
        item |= {"status": status, "exit_code": code, "aggregated_output": ""}
        times = {"started_at_ms": milliseconds(began), "completed_at_ms": milliseconds(now)}
        self._event(now, "item_completed", item=item, **times)
        words = (
            "exec command rejected by user"
            if how == "denied"
            else f"Process exited with code {code}\nOutput:\n"
        )
        self._output(now, call, words)

    def interrupt(self, now: int, call: Call) -> None:
        self._output(now, call, "Wall time: 2.0 seconds\naborted by user")
        self._event(now, "turn_aborted", reason="interrupted")

    def fail(self, now: int) -> None:
        error = {"message": "You've hit your usage limit.", "codex_error_info": "usage_limit_exceeded"}
        self._event(now, "task_complete", last_agent_message=None, error=error)

    def limit(self, now: int) -> None:
        self._event(now, "turn_aborted", reason="budget_limited")

    def compact(self, now: int, tokens: int) -> None:  # noqa: ARG002 - it does not say how many
        self._line(now, "compacted", {"message": "SUMMARY: files were read.", "replacement_history": []})

    def remove(self) -> None:
        self._lines.path.unlink(missing_ok=True)

    def _limits(self, now: int) -> dict[str, Any]:
        used = {
            slot: {
                "used_percent": min(99.0, round(100 * self._replies / calls, 1)),
                "window_minutes": minutes,
                "resets_at": now // SECOND + minutes * 60,
            }
            for slot, minutes, calls in WINDOWS
        }
        return {"limit_id": "codex", **used}

    def _output(self, now: int, call: Call, words: str) -> None:
        about = {"type": "function_call_output", "call_id": call.id, "output": words}
        self._line(now, "response_item", about)

    def _event(self, now: int, kind: str, **fields: Any) -> None:
        about = {"type": kind, "thread_id": self._session, "turn_id": self._turn}
        self._line(now, "event_msg", {**about, **fields})

    def _line(self, now: int, kind: str, payload: dict[str, Any]) -> None:
        record = {"timestamp": iso(now), "ordinal": self._ordinal, "type": kind, "payload": payload}
        self._ordinal += 1
        self._lines.append(record)


def _command(call: Call) -> str:
    return {"read": f"cat {call.words}", "search": f"rg {call.words}"}.get(call.work, call.words)


def _counts(usage: Usage) -> dict[str, int]:
    whole = usage.input + usage.cache_read + usage.cache_write
    return {
        "input_tokens": whole,
        "cached_input_tokens": usage.cache_read,
        "cache_write_input_tokens": usage.cache_write,
        "output_tokens": usage.output,
        "reasoning_output_tokens": usage.reasoning,
        "total_tokens": whole + usage.output,
    }

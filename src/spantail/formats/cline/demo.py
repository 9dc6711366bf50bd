"""Made-up sessions of Cline: a document that is written anew for every message, and the manifest beside it.

One of its models is a house's own, with no price that anybody knows.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from spantail.formats.actor import BRANCH, Actor, Call, How, iso, milliseconds, token
from spantail.model import Usage

MODELS: Final = ("claude-sonnet-4-5", "house-coder-7b")
CAN: Final = frozenset({"timeout", "interrupt", "fail"})
TOOLS: Final = {"shell": "run_commands", "read": "read_files", "edit": "editor", "search": "search_codebase"}
ERRORS: Final = {
    "error": "Command exited with code 1",
    "timeout": "Command timed out after 30000ms",
}
PRICE: Final = 3e-6


def actor(home: Path, cwd: str, model: str, now: int) -> Actor:
    session = f"{milliseconds(now)}_{token(5)}"
    return _Session(home / ".cline/data/sessions" / session, cwd, model, session, now)


class _Session(Actor):
    def __init__(self, folder: Path, cwd: str, model: str, session: str, now: int) -> None:
        self._folder, self._session = folder, session
        self._model = {"id": model, "provider": "anthropic" if model == MODELS[0] else "openai-compatible"}
        self._messages: list[dict[str, Any]] = []
        self._status = "completed"
        folder.mkdir(parents=True)
        self._manifest = {"version": 1, "session_id": session, "source": "cli", "started_at": iso(now)}
        self._manifest |= {
            "status": "running",
            "cwd": cwd,
            "model": model,
            "provider": self._model["provider"],
        }
        self._manifest["metadata"] = {"git": {"branch": BRANCH}}
        self._write(f"{session}.json", self._manifest)

    def prompt(self, now: int, words: str) -> None:
        self._message(now, "user", [{"type": "text", "text": f'<user_input mode="act">{words}</user_input>'}])

    def reply(self, now: int, usage: Usage, calls: Sequence[Call]) -> None:
        blocks: list[dict[str, Any]] = [{"type": "text", "text": "Reading." if calls else "Done."}]
        blocks += [
            {"type": "tool_use", "id": call.id, "name": TOOLS[call.work], "input": _input(call)}
            for call in calls
        ]
        counts: dict[str, float] = {
            "inputTokens": usage.input + usage.cache_read + usage.cache_write,
            "outputTokens": usage.output,
            "cacheReadTokens": usage.cache_read,
            "cacheWriteTokens": usage.cache_write,
        }
        if self._model["id"] == MODELS[0]:
            counts["cost"] = round(PRICE * (usage.input + usage.cache_read / 10 + usage.output * 5), 6)
        self._message(now, "assistant", blocks, modelInfo=self._model, metrics=counts)

    def result(self, now: int, call: Call, how: How) -> None:
        self._result(now, call, "" if how == "ok" else ERRORS[how])

    def _result(self, now: int, call: Call, error: str) -> None:
        told: dict[str, Any] = {"query": call.words, "result": "" if error else "done", "success": not error}
        told |= {"error": error} if error else {}
        block = {"type": "tool_result", "tool_use_id": call.id, "name": TOOLS[call.work], "content": [told]}
        self._message(now, "user", [block])

    def interrupt(self, now: int, call: Call) -> None:
        self._result(now, call, "Command failed: Command was aborted")
        self._status = "cancelled"

    def fail(self, now: int) -> None:
        about = {"displayOnly": True, "displayRole": "error"}
        text = [{"type": "text", "text": "Incorrect key"}]
        self._message(now, "assistant", text, metadata=about, modelInfo=self._model, prefix="error")
        self._status = "failed"

    def end(self, now: int) -> None:
        about = {"status": self._status, "ended_at": iso(now), "exit_code": int(self._status == "failed")}
        self._write(f"{self._session}.json", {**self._manifest, **about})

    def remove(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def _message(self, now: int, role: str, content: list[Any], *, prefix: str = "msg", **more: Any) -> None:
        about = {"id": f"{prefix}_{token(8)}", "role": role, "content": content, "ts": milliseconds(now)}
        self._messages.append({**about, **more})
        # Where it runs stands here too, for those who have not seen the manifest yet.
        where = f"<env>\n4. Working Directory: {self._manifest['cwd']}\n</env>"
        whole = {"version": 1, "updated_at": iso(now), "agent": "lead", "sessionId": self._session}
        whole["system_prompt"] = where
        self._write(f"{self._session}.messages.json", {**whole, "messages": self._messages})

    def _write(self, name: str, document: dict[str, Any]) -> None:
        """Beside it first, then in its place."""
        beside = self._folder / f".{name}.tmp"
        beside.write_text(json.dumps(document))
        beside.replace(self._folder / name)


def _input(call: Call) -> dict[str, Any]:
    if call.work == "shell":
        return {"commands": [call.words]}
    return {"queries": [call.words]} if call.work == "search" else {"files": [{"path": call.words}]}

"""Made-up sessions of pi: lines as version 0.87 writes them, with the cost that pi reports."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from spantail.formats.actor import Actor, Call, How, Lines, iso, milliseconds, token, uuid7
from spantail.model import Usage

MODELS: Final = ("gemini-2.5-pro",)
CAN: Final = frozenset({"timeout", "interrupt", "fail"})
TOOLS: Final = {"shell": "bash", "read": "read", "edit": "edit", "search": "bash"}
ANSWERS: Final = {
    "ok": "done\n",
    "error": "make: *** [test] Error 1\n\n\nCommand exited with code 2",
    "timeout": "\n\nCommand timed out after 120 seconds",
}
RATES: Final = {"input": 1.25e-6, "output": 1e-5, "cacheRead": 3.1e-7, "cacheWrite": 1.25e-6}


def actor(home: Path, cwd: str, model: str, now: int) -> Actor:
    session = uuid7(now)
    folder = home / ".pi/agent/sessions" / f"-{cwd.replace('/', '-')}--"
    stamp = iso(now).replace(":", "-").replace(".", "-")
    return _Session(folder / f"{stamp}_{session}.jsonl", cwd, model, session, now)


class _Session(Actor):
    def __init__(self, path: Path, cwd: str, model: str, session: str, now: int) -> None:
        self._lines, self._model = Lines(path), model
        self._last: str | None = None
        self._asked = now
        self._lines.append(
            {"type": "session", "version": 3, "id": session, "timestamp": iso(now), "cwd": cwd}
        )

    def prompt(self, now: int, words: str) -> None:
        self._message(now, "user", content=[{"type": "text", "text": words}])

    def reply(self, now: int, usage: Usage, calls: Sequence[Call]) -> None:
        blocks: list[dict[str, Any]] = [{"type": "text", "text": "Looking." if calls else "Done."}]
        for call in calls:
            key = "command" if TOOLS[call.work] == "bash" else "path"
            about = {"id": call.id, "name": TOOLS[call.work], "arguments": {key: call.words}}
            blocks.append({"type": "toolCall", **about})
        self._reply(now, usage, blocks, "toolUse" if calls else "stop")

    def _reply(self, now: int, usage: Usage, blocks: Sequence[Any], stop: str, **more: str) -> None:
        counts = {"input": usage.input, "output": usage.output}
        counts |= {"cacheRead": usage.cache_read, "cacheWrite": usage.cache_write}
        cost = {kind: amount * RATES[kind] for kind, amount in counts.items()}
        told = {**counts, "totalTokens": usage.total(), "cost": {**cost, "total": sum(cost.values())}}
        about = {"api": "google-generative-ai", "provider": "google", "model": self._model, "usage": told}
        # It stands there with the time at which it was asked for.
        began = milliseconds(self._asked)
        self._message(
            now, "assistant", content=blocks, **about, stopReason=stop, **{"timestamp": began, **more}
        )

    def result(self, now: int, call: Call, how: How) -> None:
        self._result(now, call, ANSWERS[how], failed=how != "ok")

    def _result(self, now: int, call: Call, words: str, *, failed: bool) -> None:
        about = {"toolCallId": call.id, "toolName": TOOLS[call.work], "isError": failed}
        self._message(now, "toolResult", **about, content=[{"type": "text", "text": words}])

    def interrupt(self, now: int, call: Call) -> None:
        self._result(now, call, "Command aborted", failed=True)
        self._reply(now, Usage(), [], "aborted", errorMessage="This operation was aborted")

    def fail(self, now: int) -> None:
        # One that pi does not try again.
        error = '403 {"error":{"message":"no access to this model","type":"permission_error"}}'
        self._reply(now, Usage(), [], "error", errorMessage=error)

    def remove(self) -> None:
        self._lines.path.unlink(missing_ok=True)

    def _message(self, now: int, role: str, **fields: Any) -> None:
        parent, self._last = self._last, token(8)
        message = {"role": role, "timestamp": milliseconds(now), **fields}
        about = {"type": "message", "id": self._last, "parentId": parent, "timestamp": iso(now)}
        self._lines.append({**about, "message": message})
        self._asked = now

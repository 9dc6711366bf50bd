"""Made-up sessions of Claude Code: lines as version 2.1 writes them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from spantail.formats.actor import BRANCH, Actor, Call, How, Lines, iso, token
from spantail.model import Usage

MODELS: Final = ("claude-sonnet-4-5", "claude-opus-4-5", "claude-haiku-4-5")
CAN: Final = frozenset(
    {"timeout", "denied", "interrupt", "cut", "stumble", "fail", "limit", "compact", "delegate"}
)
TOOLS: Final = {"shell": "Bash", "read": "Read", "edit": "Edit", "search": "Grep", "delegate": "Agent"}
INPUTS: Final = {"shell": "command", "read": "file_path", "edit": "file_path", "search": "pattern"}
ANSWERS: Final = {
    "ok": "done",
    "error": "Exit code 1\nmake: *** [test] Error 1",
    "timeout": "Exit code 143\nCommand timed out after 2m 0.0s",
    "denied": "Permission to use this tool has been denied.",
}


def actor(home: Path, cwd: str, model: str, now: int) -> Actor:  # noqa: ARG001 - lines tell the time
    folder = home / ".claude/projects" / cwd.replace("/", "-")
    return _Session(folder, cwd, model, str(uuid4()))


class _Session(Actor):
    def __init__(
        self, folder: Path, cwd: str, model: str, session: str, agent: str = "", prompt: str = ""
    ) -> None:
        self._folder, self._cwd, self._model = folder, cwd, model
        self._session, self._agent, self._prompt = session, agent, prompt
        place = (
            folder / session / "subagents" / f"agent-{agent}.jsonl" if agent else folder / f"{session}.jsonl"
        )
        self._lines = Lines(place)
        self._last: str | None = None
        self._made: list[Path] = [place]

    def prompt(self, now: int, words: str) -> None:
        if not self._agent:
            self._prompt = str(uuid4())
        self._line(now, "user", message={"role": "user", "content": words}, promptId=self._prompt)

    def reply(self, now: int, usage: Usage, calls: Sequence[Call]) -> None:
        blocks: list[dict[str, Any]] = [{"type": "text", "text": "Let me see." if calls else "Done."}]
        for call in calls:
            about = {INPUTS[call.work]: call.words} if call.work in INPUTS else _task(call)
            blocks.append({"type": "tool_use", "id": call.id, "name": TOOLS[call.work], "input": about})
        self._message(now, blocks, usage, "tool_use" if calls else "end_turn")
        if not calls and not self._agent:
            self._line(now, "system", subtype="turn_duration", durationMs=1000, isMeta=False)

    def _message(self, now: int, blocks: Sequence[Any], usage: Usage, stop: str | None) -> None:
        message = {
            "id": f"msg_{token()}",
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "stop_reason": stop,
            "usage": {
                "input_tokens": usage.input,
                "cache_creation_input_tokens": usage.cache_write,
                "cache_read_input_tokens": usage.cache_read,
                "output_tokens": usage.output,
            },
        }
        request = f"req_{token()}"
        for block in blocks:  # a line for each, with the same message
            self._line(now, "assistant", message={**message, "content": [block]}, requestId=request)

    def result(self, now: int, call: Call, how: How) -> None:
        self._result(now, call, ANSWERS[how], failed=how != "ok")

    def _result(self, now: int, call: Call, words: str, *, failed: bool, told: Any = None) -> None:
        block = {"type": "tool_result", "tool_use_id": call.id, "content": words, "is_error": failed}
        told = told or (f"Error: {words}" if failed else {"stdout": words, "interrupted": False})
        message = {"role": "user", "content": [block]}
        self._line(now, "user", message=message, promptId=self._prompt, toolUseResult=told)

    def interrupt(self, now: int, call: Call) -> None:
        self._result(now, call, "The tool use was rejected", failed=True, told="User rejected tool use")
        self._stopped(now, " for tool use")

    def cut(self, now: int, usage: Usage) -> None:
        self._message(now, [{"type": "text", "text": "I will"}], usage, None)
        self._stopped(now)

    def _stopped(self, now: int, where: str = "") -> None:
        words = [{"type": "text", "text": f"[Request interrupted by user{where}]"}]
        self._line(now, "user", message={"role": "user", "content": words}, promptId=self._prompt)

    def stumble(self, now: int) -> None:
        self._line(now, "system", subtype="api_error", error={"status": 529}, retryAttempt=1, maxRetries=10)

    def fail(self, now: int) -> None:
        usage = {"input_tokens": 0, "output_tokens": 0}
        text = [{"type": "text", "text": "API Error: 529 Overloaded"}]
        message = {
            "id": str(uuid4()),
            "model": "<synthetic>",
            "role": "assistant",
            "usage": usage,
            "content": text,
        }
        self._line(now, "assistant", message=message, error="overloaded", isApiErrorMessage=True)

    def limit(self, now: int) -> None:
        self._line(now, "attachment", attachment={"type": "max_turns_reached", "maxTurns": 4, "turnCount": 5})

    def compact(self, now: int, tokens: int) -> None:
        about = {"trigger": "auto", "preTokens": tokens, "postTokens": tokens // 10}
        self._line(now, "system", subtype="compact_boundary", isMeta=False, compactMetadata=about)
        words = "This session is being continued from a previous conversation that ran out of context."
        message = {"role": "user", "content": words}
        self._line(now, "user", message=message, promptId=self._prompt, isCompactSummary=True)

    def delegate(self, now: int, call: Call) -> Actor:
        agent = f"a{token(16)}"
        nested = _Session(self._folder, self._cwd, self._model, self._session, agent, self._prompt)
        meta = nested._lines.path.with_suffix(".meta.json")
        meta.write_text(json.dumps({"agentType": "general-purpose", "toolUseId": call.id}))
        self._made += [meta, *nested._made]
        nested.prompt(now, call.words)
        return nested

    def end(self, now: int) -> None:  # noqa: ARG002 - this line has no time
        self._lines.append({"type": "cost-state", "sessionId": self._session, "totalCostUSD": 0.0})

    def remove(self) -> None:
        for path in self._made:
            path.unlink(missing_ok=True)

    def _line(self, now: int, kind: str, **fields: Any) -> None:
        parent, self._last = self._last, str(uuid4())
        nested = {"agentId": self._agent} if self._agent else {}
        self._lines.append(
            {
                "parentUuid": parent,
                "isSidechain": bool(self._agent),
                **nested,
                "type": kind,
                **fields,
                "uuid": self._last,
                "timestamp": iso(now),
                "userType": "external",
                "cwd": self._cwd,
                "sessionId": self._session,
                "version": "2.1.326",
                "gitBranch": BRANCH,
            }
        )


def _task(call: Call) -> dict[str, str]:
    return {"description": call.words[:40], "prompt": call.words, "subagent_type": "general-purpose"}

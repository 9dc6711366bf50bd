"""How a tool call of Gemini CLI ended: its status, and for commands the exit code in the text of the output."""

from __future__ import annotations

import re
from typing import Any

from msgspec import Raw

from spantail.model import Status

Outcome = tuple[Status, str, int | None]
"""Status, error type, exit code."""

EXIT_CODE = re.compile(rb'(?:\\n|"|\\r)Exit Code: (-?\d{1,9})(?=\\n|\\r|"|\s)')
SIGNAL = re.compile(
    rb'\\nSignal: (?!0\\|0")\w+(?:\\n(?:Background PIDs|Process Group PGID): [^\\"]*)*(?:\\n</untrusted_context>)?'
    rb'(?:\\n)*"'
)
"""Among the lines that stand after the output, where a command of its own would not have written it."""
STOPPED = re.compile(rb'"(?:<untrusted_context>\\n)?Command was (automatically cancelled|cancelled by user)')
TIMEOUT = re.compile(rb"timed out|Command was automatically cancelled because it exceeded the timeout")
DENIED = re.compile(rb"denied by policy|Tool execution denied|not allowed by policy")
READ = 4_000
"""How much of an error is looked at."""


def outcome(name: str, status: Any, result: Raw) -> Outcome | None:
    """None while it has not ended."""
    if status == "cancelled":
        return "interrupted", "interrupted", None
    if status == "error":
        start = bytes(memoryview(result)[:READ])
        if DENIED.search(start):
            return "error", "denied", None
        return "error", "timeout" if TIMEOUT.search(start) else "tool_error", None
    if status != "success":
        return None
    if name == "run_shell_command":
        stopped = STOPPED.search(memoryview(result)[:READ])
        if stopped is not None:
            timeout = stopped[1] == b"automatically cancelled"
            return ("error", "timeout", None) if timeout else ("interrupted", "interrupted", None)
        # The line stands after the output, which may hold one of its own.
        codes = EXIT_CODE.findall(memoryview(result))
        if codes and int(codes[-1]):
            return "error", "tool_error", int(codes[-1])
        if SIGNAL.search(memoryview(result)[-READ:]):
            return "error", "tool_error", None
    return "ok", "", None

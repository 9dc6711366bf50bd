"""How a tool call ended, by the line of its result: a failure of its own, a timeout, a refusal or an interruption.

The newest versions say a refusal in fields (toolDenialKind, toolDenialBeforeRun). Before that there is only text, and
what a shell command printed is text too: it comes after `Exit code N`, and words of it (`Permission denied`, `timed
out`, `was blocked`) tell nothing about the call. What is ours to read there is the line after the code.
"""

from __future__ import annotations

import re
from typing import Final

from msgspec import Raw

from spantail.formats.claude_code.lines import Block, Line
from spantail.model import Status

Outcome = tuple[Status, str, int | None]

FIRST: Final = re.compile(rb'"text":\s*"')
INTERRUPTED: Final = "[Request interrupted by user"
REJECTED: Final = b'"User rejected tool'
CODE: Final = re.compile(r"Exit code (\d{1,9})(?:\\n|$)")
STOPPED: Final = ("[Tool call interrupted", INTERRUPTED, "The user doesn't want to ")
ABORTED: Final = b"<error>Command was aborted before completion</error>"
TIMED_OUT: Final = b"Command timed out after "
REFUSED: Final = re.compile(
    r"requested permissions? |^Permission to use |has been denied|was blocked|(?:needs|requires) approval"
    r"|denied by your permission settings|^Tool permission |^PreToolUse:\S+ hook error|blocked by hook"
)
LATE: Final = re.compile(r"timed out|timeout of \d+ ?ms exceeded")


def text(raw: Raw, most: int = 400) -> str:
    """The beginning of a JSON text, still escaped; good for telling kinds of text apart. Of a list
    of blocks the beginning of the first text."""
    head = bytes(memoryview(raw)[:most])
    if head[:1] == b"[":
        found = FIRST.search(head)
        head = head[found.end() :] if found is not None else b""
    return head.strip(b'"').decode("utf-8", "replace")


def rejected(line: Line) -> bool:
    return bytes(memoryview(line.result)[:19]) == REJECTED


def failure(line: Line, block: Block) -> Outcome:
    """Of a result that is an error."""
    said = text(block.content, 300)
    if line.denied_before_run:
        return "error", "denied", None
    code = CODE.match(said)
    after = said[code.end() :] if code else said
    # Refused at the prompt or stopped: older versions write the same lines for both.
    if after.startswith(STOPPED) or rejected(line) or line.denied == "interrupted":
        return "interrupted", "interrupted", int(code[1]) if code else None
    if line.denied:
        return "error", "denied", None
    whole = memoryview(block.content).tobytes()
    if code:
        return "error", "timeout" if TIMED_OUT in whole else "tool_error", int(code[1])
    if ABORTED in whole:  # by the user, or by the shell's own limit
        return ("error", "timeout", None) if TIMED_OUT in whole else ("interrupted", "interrupted", None)
    if said == "Warmup":
        return "error", "warmup", None
    if REFUSED.search(said):
        return "error", "denied", None
    return "error", "timeout" if LATE.search(said) else "tool_error", None

"""Who wrote a user line: a person (or the SDK), or the program in the user's name.

The newer the version, the more fields say so: turnOrigin, then origin.kind, then promptSource, then the text's first
characters.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec
from msgspec import Raw

from spantail.formats.claude_code.lines import ORIGIN, Block, Line
from spantail.formats.claude_code.outcome import text as text_of

NO_PROMPT: Final = ("<local-command", "<command-name>", "<bash-stdout>", "<system-reminder")
NOTIFICATION: Final = ("<task-notification>", "Another Claude session sent a message:")
PLAN: Final = "Implement the following plan"
CUT: Final = "Your response above was cut off mid-stream"
HIDDEN: Final = re.compile(r"a(compact|prompt_suggestion|side_question)-.*")
"""Names of agents that the program starts for itself."""


def decoded(decoder: msgspec.json.Decoder[Any], raw: Raw) -> Any:
    """A part of a line that is not as expected costs that part alone."""
    if not raw:
        return None
    try:
        return decoder.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def first_text(blocks: list[Block]) -> str:
    """The text that tells what a line is: a reminder before a prompt is not it."""
    texts = [text_of(block.text) for block in blocks if block.type == "text"]
    return next((text for text in texts if not text.startswith("<system-reminder")), "".join(texts[:1]))


def human(line: Line, text: str, *, origins: bool, only_text: bool) -> bool | None:
    """True: a person's prompt. False: a model loop without one. None: nothing begins.

    `origins`: lines of this file say who wrote them (turnOrigin).
    """
    if line.turn_origin:
        return line.turn_origin in ("human", "sdk")
    if text.startswith(NO_PROMPT):
        return None
    if text.startswith(PLAN):
        return True  # the program wrote it, but a person accepted the plan
    if origins:
        return None if text.startswith("<bash-input>") else False
    kind = origin(line)
    if kind:
        return kind == "human"
    if text.startswith(NOTIFICATION) or line.prompt_source == "system":
        return False
    return True if only_text else None


def origin(line: Line) -> str:
    found = decoded(ORIGIN, line.origin)
    return (found.kind or "") if found is not None else ""


def wakes(line: Line, *, fired: bool) -> bool:
    """Whether a line that no person sees (isMeta) makes the model work: a scheduled task, another session's message.
    `fired`: the line before said that a scheduled task is due."""
    return fired or bool(line.turn_origin) or origin(line) not in ("", "human")

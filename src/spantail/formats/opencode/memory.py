"""What the reader remembers of messages and sessions at work. Saved with every commit, so it is small."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

KEEP: Final = 64
"""How many messages and sessions at work are remembered."""
HELD: Final = 16
"""How many prompts of a session may wait."""
LONGEST: Final = 16 << 10
"""Bytes of a prompt that waits with its words."""
DONE: Final = -1


class Known(Struct, array_like=True):
    """A message at work."""

    role: str = ""
    kind: str = ""
    """prompt, note (the program's own words to the model), shell (a command of the user), copy (by a fork)."""
    created: int = 0
    asked: int = 0
    """When its latest tool began to run: the model had said all by then."""
    last: int = 0
    tools: dict[str, int] = {}
    """Part -> its first start; 0 while only asked for, DONE when it ended. A retry that was told is DONE as well."""
    blocked: bool = False
    failed: bool = False


class Held(Struct, array_like=True, gc=False):
    """A prompt that waits for the model to be done with the message it is at."""

    message: str
    time: int
    words: bytes
    content: bytes
    """As it is stored; empty for a long one."""


class Talk(Struct, array_like=True):
    """A session at work."""

    nested: bool = False
    prompted: int = 0
    digest: bytes = b""
    overflow: bool = False
    """A compaction was forced; the prompt that did not fit is then stored a second time."""
    working: str = ""
    """The model's message that is not complete."""
    goes_on: int = 0
    """When the last one was complete after which the model is asked again."""
    held: list[Held] = []
    """Prompts given while the model was at work."""

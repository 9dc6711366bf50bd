"""Made-up sessions: the joint between `spantail demo`, which knows what happens, and the formats, which know how
their agent would write it down.

A format that can be shown has a module `demo` with the names of `Stage`, and says so in its row. An actor writes one
session, live, in the agent's real files below a home that the demo owns. Its words are those of the model; what an
agent does not write is missing in `CAN`, and such a thing does not happen to it.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal, Protocol
from uuid import UUID

from msgspec import Struct

from spantail.model import MILLISECOND, SECOND, Usage

Work = Literal["shell", "read", "edit", "search", "delegate"]
How = Literal["ok", "error", "timeout", "denied"]
Ability = Literal["timeout", "denied", "interrupt", "cut", "stumble", "fail", "limit", "compact", "delegate"]
BRANCH: Final = "main"


class Call(Struct, frozen=True):
    """A tool call. `words`: the command, the path, the pattern or the task."""

    id: str
    work: Work
    words: str


class Actor:
    """One session. `now` in ns. What is not in CAN is not asked for, and need not be there."""

    def prompt(self, now: int, words: str) -> None:
        raise NotImplementedError

    def reply(self, now: int, usage: Usage, calls: Sequence[Call]) -> None:
        """A model call; without tool calls it is the turn's last."""
        raise NotImplementedError

    def result(self, now: int, call: Call, how: How) -> None:
        raise NotImplementedError

    def interrupt(self, now: int, call: Call) -> None:
        """The user stops the turn while the call runs."""
        raise NotImplementedError

    def cut(self, now: int, usage: Usage) -> None:
        """The user stops the turn while the model speaks: of its usage only the beginning is known."""
        raise NotImplementedError

    def stumble(self, now: int) -> None:
        """The provider refuses, and the agent tries again."""
        raise NotImplementedError

    def fail(self, now: int) -> None:
        """The provider refuses for good: the turn ends."""
        raise NotImplementedError

    def limit(self, now: int) -> None:
        """The turn ends because it had too many steps, or cost too much."""
        raise NotImplementedError

    def compact(self, now: int, tokens: int) -> None:
        raise NotImplementedError

    def delegate(self, now: int, call: Call) -> Actor:
        """A subagent that the call started; it replies, and its last reply ends it."""
        raise NotImplementedError

    def end(self, now: int) -> None:
        """The run is over: most agents write nothing then."""

    def close(self) -> None:
        """The process is gone: lets go of what it held open."""

    def remove(self) -> None:
        """Deletes what the session wrote: a demo may run for weeks."""
        raise NotImplementedError


class Stage(Protocol):
    """A module `demo`."""

    MODELS: Sequence[str]
    """To choose from; the first one has a known price."""
    CAN: frozenset[Ability]

    def actor(self, home: Path, cwd: str, model: str, now: int) -> Actor: ...


# ------------------------------------------------------------------------- for the formats' demos


class Lines:
    """A file of JSON lines, each written at once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)

    def append(self, record: Mapping[str, Any]) -> None:
        line = json.dumps(record, separators=(",", ":")).encode() + b"\n"
        with self.path.open("ab", buffering=0) as file:
            file.write(line)


def iso(now: int) -> str:
    moment = datetime.fromtimestamp(now // SECOND, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{milliseconds(now) % 1000:03d}Z"


def milliseconds(now: int) -> int:
    return now // MILLISECOND


def token(length: int = 22) -> str:
    """Part of an id. Never from the demo's dice: a second run with the same seed is another run."""
    return secrets.token_hex(length)[:length]


def uuid7(now: int) -> str:
    """Ids that tell their time."""
    bits = milliseconds(now) << 80 | 7 << 76 | secrets.randbits(12) << 64 | 2 << 62 | secrets.randbits(62)
    return str(UUID(int=bits))

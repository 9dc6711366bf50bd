"""What a file of a part has to know of its message's, which is another file. Asked of the disk when a record needs it.

A fork copies messages under new ids, with their parts; that they are old tells the message's time alone. The parts
of a model's reply have times of their own, a person's words have none: without their message each copy of a prompt
would be a turn.
"""

from __future__ import annotations

from pathlib import Path

from spantail.formats.neighbour import small
from spantail.formats.opencode.ids import is_own, made_at
from spantail.formats.opencode.shapes import MESSAGE, Part
from spantail.formats.values import decoded, time_ns
from spantail.model import SECOND


def copied(id_: str, created: int) -> bool:
    """Whether a message was made long before its id."""
    return bool(created and made_at(id_, created) > created + SECOND)


def of_a_copy(path: str, part: Part) -> bool:
    """Whether the message of the part in this file was copied by a fork. Not known if it is not there (any more)."""
    if any("/" in name or name.startswith(".") for name in (part.session, part.message)):
        return False  # no ids, but ways to elsewhere
    message = Path(path).parent.parent.parent / "message" / part.session / f"{part.message}.json"
    # Without its parts it is small; only the changes of a turn, which it may list, make it larger.
    found = decoded(MESSAGE, small(message))
    return found is not None and copied(part.message, time_ns(found.time.created))


def not_the_models(part: Part, start: int) -> bool:
    """A tool's file: a command that the user ran (the program made its id), or a fork's copy."""
    return (part.tool == "bash" and is_own(part.call or "")) or copied(part.message, start)

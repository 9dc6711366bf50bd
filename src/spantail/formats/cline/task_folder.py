"""What a task's reader has to know of the files beside its own. Both questions are about the folder, not about a
record, so they are asked of the disk when a record needs the answer; what was learnt is never an event.

- The history that is sent to the model repeats the usage of the messages that are shown. Nothing in the two files
  can be paired (the history has no ids, and in some versions no times), so one of them must be silent: the history,
  as soon as there is a ui_messages.json. The extension writes that one first.
- Messages of 2025 do not name their model; task_metadata.json tells from when on which was used. Those of Roo Code
  and Kilo Code never do, and there is no such file: the details of the environment, which each message to the model
  ends with, name it. They are in the request as it is shown, or (newer versions) in the history alone.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from stat import S_ISREG

from msgspec import Struct

from spantail.formats.cline.shapes import RAWS, part, word
from spantail.formats.cline.task_shapes import (
    ENVIRONMENT,
    MODEL_USE,
    SPOKEN,
    TASK_METADATA,
    Spoken,
    each,
)
from spantail.formats.times import ms_ns
from spantail.model import Event, Record, Started

LARGEST = 16 << 20
"""A larger file is not looked into for the model."""
MODEL = re.compile(rb"<slug>[^<]{1,100}</slug>.{1,400}?<model>([^<]{1,200})</model>", re.DOTALL)
"""In the details of the environment, with line ends as they are or written as JSON does."""

Use = tuple[int, str, str]
"""From when on, model, provider."""


def shown(path: str) -> bool:
    """Whether the folder of this file has messages as they were shown."""
    return Path(path).with_name("ui_messages.json").is_file()


def model_at(path: str, time: int) -> tuple[str, str]:
    """(model, provider) that the files beside this one tell for a time; empty if they do not."""
    uses = _beside(path, "task_metadata.json", _uses)
    if uses:
        # A request is written down a moment before or after the model it goes to: the first stands for all before.
        before = [use for use in uses if use[0] <= time] or list(uses[:1])
        return before[-1][1:]
    sent = _beside(path, "api_conversation_history.json", _sent)
    # What is sent is written down after the request is shown.
    after = [use for use in sent if use[0] >= time] or list(sent[-1:])
    return after[0][1:] if after else ("", "")


def model_named(request: str) -> str:
    """The model that a request as it is shown was for."""
    found = MODEL.search(request.encode("utf-8", "replace"))
    return found[1].decode("utf-8", "replace").strip() if found is not None else ""


def _beside(path: str, name: str, read: Callable[[str, int, int], tuple[Use, ...]]) -> tuple[Use, ...]:
    beside = str(Path(path).with_name(name))
    try:
        stat = os.stat(beside)  # noqa: PTH116
    except OSError:
        return ()
    if not S_ISREG(stat.st_mode) or stat.st_size > LARGEST:
        return ()
    return read(beside, stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=16)
def _uses(path: str, mtime: int, size: int) -> tuple[Use, ...]:  # noqa: ARG001 another time is another file
    try:
        metadata = part(TASK_METADATA, Path(path).read_bytes())
    except OSError:
        return ()
    found = each(MODEL_USE, metadata.model_usage) if metadata is not None else []
    uses = ((ms_ns(use.ts), word(use.model_id), word(use.model_provider_id)) for use in found)
    return tuple(sorted(use for use in uses if use[1]))


@lru_cache(maxsize=4)
def _sent(path: str, mtime: int, size: int) -> tuple[Use, ...]:  # noqa: ARG001 another time is another file
    try:
        messages = part(RAWS, Path(path).read_bytes())
    except OSError:
        return ()
    uses: list[Use] = []
    for raw in messages or ():
        found = MODEL.search(memoryview(raw))
        message: Spoken | None = part(SPOKEN, raw) if found is not None else None
        if found is not None and message is not None and message.role == "user":
            uses.append((ms_ns(message.ts), bytes(found[1]).decode("utf-8", "replace").strip(), ""))
    return tuple(uses)


class TaskMetadataReader(Struct):
    """The version. Read before the messages, so that their spans have it."""

    version: str = ""

    def read(self, record: Record) -> Iterator[Event]:
        metadata = part(TASK_METADATA, record.body)
        environments = each(ENVIRONMENT, metadata.environment_history) if metadata is not None else []
        version = word(environments[-1].cline_version) if environments else ""
        if version and version != self.version:
            self.version = version
            yield Started(session=Path(record.path).parent.name, version=version)

"""What a task's reader has to know of the files beside its own. Both questions are about the folder, not about a
record, so they are asked of the disk when a record needs the answer; what was learnt is never an event.

- The history that is sent to the model repeats the usage of the messages that are shown. Nothing in the two files
  can be paired (the history has no ids, and in some versions no times), so one of them must be silent: the history,
  as soon as there is a ui_messages.json. The extension writes that one first.
- Messages of 2025 do not name their model; task_metadata.json tells from when on which was used.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from stat import S_ISREG

from msgspec import Struct

from spantail.formats.cline.shapes import part, word
from spantail.formats.cline.task_shapes import (
    ENVIRONMENT,
    MODEL_USE,
    TASK_METADATA,
    each,
)
from spantail.formats.times import ms_ns
from spantail.model import Event, Record, Started

LARGEST = 16 << 20
"""A larger task_metadata.json is not looked into for the model."""

Use = tuple[int, str, str]
"""From when on, model, provider."""


def shown(path: str) -> bool:
    """Whether the folder of this file has messages as they were shown."""
    return Path(path).with_name("ui_messages.json").is_file()


def model_at(path: str, time: int) -> tuple[str, str]:
    """(model, provider) that the metadata beside this file tells for a time; empty if it does not."""
    beside = str(Path(path).with_name("task_metadata.json"))
    try:
        stat = os.stat(beside)  # noqa: PTH116
    except OSError:
        return "", ""
    if not S_ISREG(stat.st_mode) or stat.st_size > LARGEST:
        return "", ""
    uses = _uses(beside, stat.st_mtime_ns, stat.st_size)
    # A request is written down a moment before or after the model it goes to: the first stands for all before.
    before = [use for use in uses if use[0] <= time] or list(uses[:1])
    return before[-1][1:] if before else ("", "")


@lru_cache(maxsize=16)
def _uses(path: str, mtime: int, size: int) -> tuple[Use, ...]:  # noqa: ARG001 another time is another file
    try:
        metadata = part(TASK_METADATA, Path(path).read_bytes())
    except OSError:
        return ()
    found = each(MODEL_USE, metadata.model_usage) if metadata is not None else []
    uses = ((ms_ns(use.ts), word(use.model_id), word(use.model_provider_id)) for use in found)
    return tuple(sorted(use for use in uses if use[1]))


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

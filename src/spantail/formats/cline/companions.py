"""What stands beside Cline's messages: the manifest of a session, and the log of the hooks.

The manifest tells where a session ran and how its run ended. It is written after the last message, and is read
after the messages (`main=False`): an end that came before its turn would end nothing. What it tells of the session
itself is wanted before that, so the messages' reader looks into it as well.

The hooks' log is one file for all sessions, written in ACP mode only. Of it only the ends of tool calls are taken:
they come one by one, while the messages tell of a batch of calls when all of it has ended, and have exact times.
Its other lines say nothing that is not in the messages, or are wrong (`session_shutdown` of sessions that ended
well, success of failed commands). Those of subagents name the agent but not its task, and are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePath

from msgspec import Struct

from spantail.formats.cline.results import outcome
from spantail.formats.cline.shapes import (
    FORK,
    GIT,
    HISTORY_ORIGIN,
    MANIFEST,
    MANIFEST_METADATA,
    Fork,
    Git,
    HistoryOrigin,
    Hook,
    Manifest,
    ManifestMetadata,
    part,
    word,
)
from spantail.formats.neighbour import small
from spantail.formats.times import iso_ns
from spantail.model import MILLISECOND, Ended, Event, Exit, Record, Returned, Started

EXITS: dict[str, Exit] = {"completed": "success", "failed": "error", "cancelled": "interrupted"}
UNIQUE = 8
"""A call's id shorter than this (`call_1`, `0`) is no identity: providers that make such ids repeat them."""


def _started(session: str, manifest: Manifest, metadata: ManifestMetadata) -> Started:
    return Started(
        session=session,
        cwd=word(manifest.cwd),
        branch=word((part(GIT, metadata.git) or Git()).branch),
        version=word((part(HISTORY_ORIGIN, metadata.origin) or HistoryOrigin()).version),
        provider=word(manifest.provider),
        copied_from=word((part(FORK, metadata.fork) or Fork()).forked_from_session_id),
    )


def beside(path: str, session: str) -> Started | None:
    """What the manifest in the folder of this file tells of the session. Asked of the disk, since in a folder that is
    found at the start it is read after the messages."""
    manifest: Manifest | None = part(MANIFEST, small(Path(path).parent / f"{session}.json"))
    if manifest is None or manifest.session_id != session:
        return None
    return _started(session, manifest, part(MANIFEST_METADATA, manifest.metadata) or ManifestMetadata())


class ManifestReader(Struct):
    ended: str = ""
    """The last end that was told: the manifest is written again for other reasons too."""

    def read(self, record: Record) -> Iterator[Event]:
        manifest = part(MANIFEST, record.body)
        session = PurePath(record.path).parent.name
        if manifest is None or manifest.session_id != session:
            return  # another document of the folder
        metadata = part(MANIFEST_METADATA, manifest.metadata) or ManifestMetadata()
        yield _started(session, manifest, metadata)
        status, ended_at = word(manifest.status), word(manifest.ended_at)
        end = f"{status} {ended_at}"
        if status not in EXITS or end == self.ended:
            return
        self.ended = end
        exit_: Exit | None = EXITS[status]
        if status == "completed" and manifest.exit_code:
            exit_ = "error"
        if ended_at and metadata.terminal_marker_at == ended_at:
            exit_ = None  # a later process found this one dead, and knows no more than the messages
        yield Ended(session=session, time=iso_ns(ended_at), exit=exit_ or "", word=status)


class HooksReader(Struct):
    """Every line stands for itself."""

    def read(self, record: Record) -> Iterator[Event]:
        hook: Hook = record.body
        result = hook.tool_result
        if hook.name != "tool_result" or result is None or hook.session is None or hook.parent_agent_id:
            return
        session, call = word(hook.session.root_session_id), word(result.id)
        end = iso_ns(word(result.ended_at)) or iso_ns(word(hook.ts))
        if not session or len(call) < UNIQUE or not end:
            return
        took = result.duration_ms
        stated = isinstance(took, int | float) and not isinstance(took, bool) and 0 <= took < 1e12
        status, error_type, exit_code = outcome(result.output, is_error=bool(result.error))
        # Without a time of its own: the log may be read long before the messages, and the session's
        # silences are told by those.
        yield Returned(
            session=session,
            call=call,
            status=status,
            error_type=error_type,
            exit_code=exit_code,
            duration=round(took * MILLISECOND) if stated else None,
            source="stated" if stated else None,
            end=end,
            output=result.output or None,
        )

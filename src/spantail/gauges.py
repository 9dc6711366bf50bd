"""The gauges about spantail itself, as of a commit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spantail.model import SECOND
from spantail.state import families as f
from spantail.state.totals import Gauges

if TYPE_CHECKING:
    from spantail.follow import Follow


def own_gauges(follow: Follow, now: int) -> Gauges:
    parts, store = follow.parts, follow.parts.store
    lag = max(0.0, (now - follow.last_commit) / SECOND) if follow.stuck else 0.0
    return {
        **parts.constant,
        f.FILES_FOLLOWED: {(): float(len(parts.sources))},
        f.OUTBOX_SPANS: {(): float(store.waiting_spans)},
        f.OUTBOX_BYTES: {(): float(store.waiting_bytes)},
        f.OUTBOX_OLDEST: {(): store.oldest() / SECOND} if store.waiting_spans else {},
        f.LAG: {(): lag},
        f.LAST_COMMIT: {(): follow.last_commit / SECOND},
        f.COMMIT_FAILED: {(): 1.0 if follow.stuck else 0.0},
    }

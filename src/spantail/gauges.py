"""The gauges about spantail itself, as of a commit; but how far behind it is, as of the page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spantail.model import SECOND
from spantail.state import families as f
from spantail.state.totals import Gauges

if TYPE_CHECKING:
    from spantail.follow import Follow

STEP = 3 * SECOND
"""A loop that has nothing to do looks around more often than this."""


def own_gauges(follow: Follow) -> Gauges:
    parts, store = follow.parts, follow.parts.store
    return {
        **parts.constant,
        f.FILES_FOLLOWED: {(): float(len(parts.sources))},
        f.OUTBOX_SPANS: {(): float(store.waiting_spans)},
        f.OUTBOX_BYTES: {(): float(store.waiting_bytes)},
        f.OUTBOX_OLDEST: {(): store.oldest() / SECOND} if store.waiting_spans else {},
        f.LAST_COMMIT: {(): follow.last_commit / SECOND},
        f.COMMIT_FAILED: {(): 1.0 if follow.stuck else 0.0},
    }


def lag(follow: Follow, now: int) -> float:
    """Asked by a page, not by the loop: one that hangs could not say so itself."""
    # Between two steps the loop waits a little; what it waits for has not been seen yet.
    since = follow.last_commit if follow.stuck else max(follow.ticked, follow.last_commit) + STEP
    return max(0, now - since) / SECOND

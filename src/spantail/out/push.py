"""The push: the page's numbers, sent at an interval to a backend that does not come for them.

For people without Prometheus. It is one more page: committed totals only, new series held at 0. A backend that
is down or refuses is said once and costs nothing else: totals are cumulative, so the next push
that arrives says all that the lost ones would have said. A push that did not arrive has shown nothing: the hold
of a new series begins with the first one that did. The last push says that it is the last, so that nobody takes
one that was stopped for one that died.

One `step` is one push; tests need no clock.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Protocol

from spantail.model import SECOND
from spantail.out.points import process_metrics
from spantail.state import families as f

if TYPE_CHECKING:
    from collections.abc import Callable

    from spantail.out.otlp import Transport
    from spantail.out.points import Points
    from spantail.state.series import Series
    from spantail.state.totals import Totals


class PushNotices(Protocol):
    """What can go wrong here. Called on the push's thread."""

    def push_failed(self, message: str) -> None: ...

    def push_restored(self) -> None: ...

    def points_refused(self, amount: int, message: str) -> None: ...


class Push(threading.Thread):
    """Starts when the backlog is committed: then the first push goes out, the next after the interval."""

    def __init__(
        self,
        transport: Transport,
        interval: int,
        totals: Totals,
        points: Points,
        notices: PushNotices,
        *,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        super().__init__(name="push", daemon=True)
        self._transport = transport
        self._seconds = interval / SECOND
        self._totals = totals
        self._points = points
        self._notices = notices
        self._clock = clock
        self._stopping = threading.Event()
        self.arrived = False
        """Whether the last push did."""

    # ------------------------------------------------------------------- for the main thread

    def stop(self, timeout: float) -> bool:
        """One last push; waits for it at most `timeout` seconds. Whether it arrived."""
        self._stopping.set()
        if self.ident is None:
            self.start()
        self.join(timeout)
        return self.arrived and not self.is_alive()

    def close(self) -> None:
        self._transport.close()

    # ---------------------------------------------------------------------- on its own thread

    def run(self) -> None:
        while True:
            last = self._stopping.is_set()
            self.attempt(last=last)
            if last:
                return
            self._stopping.wait(self._seconds)

    def attempt(self, *, last: bool = False) -> None:
        """A step, whatever comes of it."""
        self.arrived = False
        try:
            self.arrived = self.step(last=last)
        except Exception as error:  # noqa: BLE001
            # A push that died silently would look like an agent that rests.
            self._notices.push_failed(type(error).__name__)

    def step(self, *, last: bool = False) -> bool:
        """All of the page, in as many requests as it takes. Whether all of it arrived."""
        now = self._clock()
        fresh: list[Series] = []
        snapshot = self._totals.snapshot(now, scraper=True, fresh=fresh)
        if last:
            snapshot = [
                (
                    family,
                    [point._replace(value=0.0) for point in points] if family is f.BUILD_INFO else points,
                )
                for family, points in snapshot
            ]
        for request in self._points.requests(snapshot, now, process_metrics(now)):
            verdict = self._transport.send(request)
            if verdict.kind not in {"delivered", "partial"}:
                self._notices.push_failed(verdict.message)
                return False
            if verdict.rejected:
                self._notices.points_refused(verdict.rejected, verdict.message)
        self._totals.shown(fresh, now)
        self._notices.push_restored()
        return True

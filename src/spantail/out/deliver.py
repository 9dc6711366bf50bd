"""The sender: to the main loop the backend is always there and always fast.

The loop commits, calls `wake()` and goes on; this thread reads what is in the outbox, in order,
and sends it. A backend that is down, slow or refusing costs nothing here but waiting: spans stay
on disk, and only the request being sent is in memory. What a backend refuses is halved until the
span at fault is alone; that one is dropped, counted and named, so it cannot hold up the others.

One `step` is one request. It never waits: it says how long to wait, so tests need no clock.
"""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Final, Protocol

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Callable

    from spantail.out.otlp import Kind, Transport, Verdict

Row = tuple[int, int, bytes]
"""Id, number of spans, serialized request. Id 0: a part of a row, not the last one."""

REQUEST_BYTES: Final = 1 << 20
REQUEST_SPANS: Final = 4000
LEAST_BYTES: Final = 64 << 10
"""Below this a backend's limit on sizes is met by halving, not by reading less."""
SUSPECTS: Final = 4
"""So many spans, each refused alone and none taken, are not all at fault: it is the backend."""
LONGEST_DELAY: Final = 600.0
"""A Retry-After longer than this is not believed."""


class Outbox(Protocol):
    """Where committed spans wait. Asked on the sender's thread only."""

    def pending(self, after_id: int, limit_bytes: int) -> list[Row]:
        """The next rows in order, about `limit_bytes` of them, at least one if there is any."""
        ...


class DeliveryNotices(Protocol):
    """What can go wrong here. Called on the sender's thread, on changes only."""

    def delivery_failed(self, kind: str, message: str) -> None: ...

    def delivery_restored(self) -> None: ...

    def spans_refused(self, count: int, message: str) -> None: ...

    def auth_failed(self, message: str) -> None: ...


class DeliveryResult(Struct, frozen=True):
    """How many spans an answer was about: taken, rejected by a partial success, dropped by us."""

    delivered: int = 0
    rejected: int = 0
    dropped: int = 0


class Backoff(Struct):
    """Waits that double, so that a backend coming back is not met by a rush."""

    first: float = 0.2
    longest: float = 30.0
    spread: Callable[[], float] = lambda: random.uniform(0.8, 1.2)
    failures: int = 0

    def next(self, asked: float | None) -> float:
        """The next wait; what the backend asks for wins."""
        doubled: float = self.first * 2 ** min(self.failures, 20)
        self.failures += 1
        if asked is not None:
            return min(asked, LONGEST_DELAY)
        return min(doubled * self.spread(), self.longest)


class Deliverer(threading.Thread):
    """Sends the outbox until stopped. `acked(ids, result)` is called on this thread after each
    answer that decided something: rows with these ids may be deleted."""

    def __init__(
        self,
        transport: Transport,
        outbox: Outbox,
        acked: Callable[[list[int], DeliveryResult], None],
        notices: DeliveryNotices,
        *,
        backoff: Backoff | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(name="deliver", daemon=True)
        self._transport = transport
        self._outbox = outbox
        self._acked = acked
        self._notices = notices
        self._backoff = backoff if backoff is not None else Backoff()
        self._clock = clock
        self._after = 0
        self._limit = REQUEST_BYTES
        self._pieces: deque[list[Row]] = deque()
        """What was read and is not decided: each becomes a request."""
        self._content_at_fault = False
        self._suspects: list[tuple[list[Row], str]] = []
        """Single spans that were refused by a backend that may refuse everything, and how."""
        self._failing = ""
        self._lost = 0
        self._changed = threading.Condition()
        self._asked = 0
        self._drained = 0
        """Up to which wake everything was sent."""
        self._deadline: float | None = None
        """Set by stop: when to give up."""
        self._failing_at_stop = False

    # ------------------------------------------------------------------- for the main thread

    def wake(self) -> None:
        """There is something new in the outbox."""
        with self._changed:
            self._asked += 1
            self._changed.notify_all()

    def wait_idle(self, timeout: float) -> bool:
        """Waits until all that is in the outbox now was sent; False if it was not, or if any
        span was refused."""
        with self._changed:
            self._asked += 1
            goal = self._asked
            self._changed.notify_all()
            drained = self._changed.wait_for(lambda: self._drained >= goal, timeout)
            return drained and not self._lost

    def stop(self, timeout: float) -> bool:
        """Sends what is there for at most `timeout` seconds. True if nothing is left.

        A backend that was failing already gets one more try. A request under way past the limit
        is left to end by itself; its spans stay in the outbox.
        """
        with self._changed:
            self._asked += 1
            goal = self._asked
            self._deadline = self._clock() + timeout
            self._failing_at_stop = bool(self._failing)
            self._changed.notify_all()
        if self.is_alive():
            self.join(timeout)
        if not self.is_alive():
            self._transport.close()
        with self._changed:
            return self._drained >= goal

    # ---------------------------------------------------------------------- on its own thread

    def run(self) -> None:
        while True:
            try:
                delay = self.step()
            except Exception as error:  # noqa: BLE001
                # A sender that died silently would leave everything in the outbox.
                self._fail("internal", type(error).__name__)
                delay = self._backoff.next(None)
            if not self._rest(delay):
                return

    def _rest(self, delay: float | None) -> bool:
        """Waits as a step asked; False when it is time to end.

        A wake ends the wait for work at once, but not the wait for a backend: else each commit
        would mean one more try.
        """
        with self._changed:
            if delay is None:
                self._changed.wait_for(lambda: self._asked > self._drained or self._deadline is not None)
                return self._deadline is None or self._asked > self._drained
            if delay and self._deadline is None:
                self._changed.wait_for(lambda: self._deadline is not None, delay)
                return True  # stopped meanwhile: one more try
            if self._deadline is None:
                return True
            left = self._deadline - self._clock()
            if left <= 0 or delay >= left or (delay and self._failing_at_stop):
                return False
            if delay:
                self._changed.wait(delay)
            return True

    def step(self) -> float | None:
        """One request. How long to wait before the next: 0 go on, None until there is work."""
        with self._changed:
            asked = self._asked
        if not self._pieces and not self._read():
            with self._changed:
                self._drained = asked
                self._changed.notify_all()
            return None
        piece = self._pieces[0]
        request = piece[0][2] if len(piece) == 1 else b"".join(row[2] for row in piece)
        verdict = self._transport.send(request)
        match verdict.kind:
            case "delivered" | "partial":
                self._drop_suspects()
                self._restored()
                if verdict.rejected:
                    self._notices.spans_refused(verdict.rejected, verdict.message)
                total = sum(row[1] for row in piece)
                rejected = min(verdict.rejected, total)
                self._decide(DeliveryResult(delivered=total - rejected, rejected=rejected))
                return 0.0
            case "too_large":
                self._limit = max(LEAST_BYTES, min(self._limit, len(request) // 2))
                self._divide(verdict.message)
                return 0.0
            case "refused":
                match self._empty():
                    case "delivered" | "partial":
                        self._content_at_fault = True
                        self._divide(verdict.message)
                        return 0.0
                    case "refused":
                        return self._doubt(verdict)
                return self._wait_for_backend(verdict)
            case _:
                return self._wait_for_backend(verdict)

    def _read(self) -> bool:
        """Takes the next rows from the outbox, as many as one request may hold."""
        piece: list[Row] = []
        size = spans = 0
        for row in self._outbox.pending(self._after, self._limit):
            too_many = size + len(row[2]) > self._limit or spans + row[1] > REQUEST_SPANS
            if piece and too_many:
                break  # read again later: memory stays flat
            piece.append(row)
            size += len(row[2])
            spans += row[1]
        if piece:
            self._content_at_fault = False
            self._after = piece[-1][0]
            self._pieces.append(piece)
        return bool(piece)

    def _empty(self) -> Kind:
        """What becomes of a request with nothing in it: if it is taken, the backend refuses these spans, and not us.
        A wrong port answers 400 to everything, and spans must not be dropped for that."""
        return "delivered" if self._content_at_fault else self._transport.send(b"").kind

    def _doubt(self, verdict: Verdict) -> float:
        """A backend that refuses what is empty too: whether it takes anything is seen by other spans. Those that it
        refuses alone are put aside, and dropped when it takes one of the next."""
        halves = self._halves(self._pieces[0])
        if len(halves) == 2:
            self._pieces.popleft()
            self._pieces.extendleft(reversed(halves))
            return 0.0
        self._suspects.append((self._pieces.popleft(), verdict.message))
        if len(self._suspects) < SUSPECTS and (self._pieces or self._read()):
            return 0.0
        return self._wait_for_backend(verdict)

    def _drop_suspects(self) -> None:
        """The backend takes others, before the first piece is done with."""
        suspects, self._suspects = self._suspects, []
        for piece, message in suspects:
            self._pieces.appendleft(piece)
            self._drop(message)

    def _wait_for_backend(self, verdict: Verdict) -> float:
        self._content_at_fault = False
        self._pieces.extendleft(piece for piece, _ in reversed(self._suspects))
        self._suspects = []
        if verdict.kind == "auth":
            if self._failing != "auth":
                self._notices.auth_failed(verdict.message)
            self._failing = "auth"
        else:
            self._fail(verdict.kind, verdict.message)
        return self._backoff.next(verdict.retry_after)

    def _fail(self, kind: str, message: str) -> None:
        if self._failing != kind:
            self._notices.delivery_failed(kind, message)
        self._failing = kind

    def _restored(self) -> None:
        self._backoff.failures = 0
        if self._failing:
            self._failing = ""
            self._notices.delivery_restored()

    def _decide(self, result: DeliveryResult) -> None:
        """The first piece is done with."""
        piece = self._pieces.popleft()
        with self._changed:
            self._lost += result.rejected + result.dropped
        self._acked([row[0] for row in piece if row[0]], result)

    def _divide(self, message: str) -> None:
        """Puts two halves in the place of the first piece, or drops it if it is a single span."""
        halves = self._halves(self._pieces[0])
        if len(halves) == 2:
            self._pieces.popleft()
            self._pieces.extendleft(reversed(halves))
        else:
            self._drop(message)

    @staticmethod
    def _halves(piece: list[Row]) -> list[list[Row]]:
        """Of a single span there is one."""
        if len(piece) > 1:
            return [piece[: len(piece) // 2], piece[len(piece) // 2 :]]
        return [[part] for part in _split(piece[0])]

    def _drop(self, message: str) -> None:
        """The first piece, a single span."""
        row = self._pieces[0][0]
        self._notices.spans_refused(row[1], f"{_named(row[2])}: {message}")
        self._decide(DeliveryResult(dropped=row[1]))


def _split(row: Row) -> list[Row]:
    """The two halves of a row's spans; the row itself if there is nothing to split."""
    from google.protobuf.message import DecodeError
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    try:
        whole = ExportTraceServiceRequest.FromString(row[2])
    except DecodeError:
        return [row]
    count = sum(len(scope.spans) for group in whole.resource_spans for scope in group.scope_spans)
    if count < 2:
        return [row]
    parts: list[Row] = []
    for first, last in ((0, count // 2), (count // 2, count)):
        part = ExportTraceServiceRequest()
        part.CopyFrom(whole)
        index = 0
        for group in part.resource_spans:
            for scope in group.scope_spans:
                kept = [span for at, span in enumerate(scope.spans, index) if first <= at < last]
                index += len(scope.spans)
                del scope.spans[:]
                scope.spans.extend(kept)
        parts.append((row[0] if last == count else 0, last - first, part.SerializeToString()))
    return parts


def _named(request: bytes) -> str:
    """The ids of the span in a request, for the log."""
    from google.protobuf.message import DecodeError
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    try:
        whole = ExportTraceServiceRequest.FromString(request)
    except DecodeError:
        return "an unreadable row"
    for group in whole.resource_spans:
        for scope in group.scope_spans:
            for span in scope.spans:
                return f"trace {span.trace_id.hex()} span {span.span_id.hex()}"
    return "an empty row"

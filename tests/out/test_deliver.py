"""The sender against a real receiver: order, splitting, waiting, ending. Steps are driven by hand
where time matters, so no test waits for a clock."""

import os
import threading

import pytest

from receiver import Answer
from spantail.model import Context, ToolCall
from spantail.out import deliver
from spantail.out.deliver import Backoff, Deliverer, DeliveryResult
from spantail.out.exporters import trace_transport as transport
from spantail.out.otlp import Verdict
from spantail.out.spans import Encoder

CONTEXT = Context(agent="some-agent", conversation="c")


def request(*names):
    """A serialized request with a span for each name."""
    calls = [
        ToolCall(
            context=CONTEXT,
            trace=name.encode().rjust(16),
            span=name.encode().rjust(8),
            start=1,
            end=2,
            name=name,
        )
        for name in names
    ]
    return Encoder("1", {}).encode(calls)


class Rows:
    """An outbox of which rows leave when they are acknowledged, as the main loop would do it."""

    def __init__(self, *rows):
        self.rows = [(number, len(names), request(*names)) for number, names in enumerate(rows, 1)]
        self.acked = []
        self.results = []
        self.read_limits = []
        self.lock = threading.Lock()

    def pending(self, after_id, limit_bytes):
        with self.lock:
            self.read_limits.append(limit_bytes)
            rows, size = [], 0
            for row in self.rows:
                if row[0] > after_id and (not rows or size + len(row[2]) <= limit_bytes):
                    rows.append(row)
                    size += len(row[2])
            return rows

    def add(self, *names):
        with self.lock:
            self.rows.append((len(self.rows) + 1, len(names), request(*names)))

    def ack(self, ids, result):
        self.acked += ids
        self.results.append(result)


class Said:
    """Keeps the notices, in order."""

    def __init__(self):
        self.lines = []
        self.failed = threading.Event()

    def delivery_failed(self, kind, message):
        self.lines.append(("failed", kind))
        self.failed.set()

    def delivery_restored(self):
        self.lines.append(("restored",))

    def spans_refused(self, count, message):
        self.lines.append(("refused", count, message))

    def auth_failed(self, message):
        self.lines.append(("auth",))


class Sending:
    """A deliverer with what it was given."""

    def __init__(self, way, rows, **more):
        self.rows, self.said = rows, Said()
        backoff = more.pop("backoff", None) or Backoff(spread=lambda: 1.0)
        self.deliverer = Deliverer(way, rows, rows.ack, self.said, backoff=backoff, **more)

    def steps(self):
        """Runs until there is nothing to do or a wait is asked for."""
        while (delay := self.deliverer.step()) == 0:
            pass
        return delay


@pytest.fixture
def way(receiver, monkeypatch):
    """A real transport to the receiver, over each protocol."""
    for name, text in receiver.environ().items():
        monkeypatch.setenv(name, text)
    made = transport(os.environ)
    yield made
    made.close()


def names(receiver):
    return [span.attrs["gen_ai.tool.name"] for span in receiver.spans]


BAD = {"http": Answer(400), "grpc": Answer("INVALID_ARGUMENT", message="bad")}
LARGE = {"http": Answer(413), "grpc": Answer("RESOURCE_EXHAUSTED", message="message larger than max")}
DOWN = {"http": Answer(503), "grpc": Answer("UNAVAILABLE")}
DENIED = {"http": Answer(401), "grpc": Answer("UNAUTHENTICATED")}


def test_rows_go_out_in_order_in_one_request(receiver, way):
    """All that waits leaves in one request, in order, and is acknowledged by its ids."""
    sending = Sending(way, Rows(["a", "b"], ["c"], ["d"]))
    assert sending.steps() is None
    assert names(receiver) == ["a", "b", "c", "d"]
    assert len(receiver.requests) == 1
    assert sending.rows.acked == [1, 2, 3]
    assert sending.rows.results == [DeliveryResult(delivered=4)]


def test_rows_are_not_sent_again_before_they_are_deleted(receiver, way):
    """The main loop deletes in its next commit; until then the rows are still there."""
    sending = Sending(way, Rows(["a"], ["b"]))
    sending.steps()
    sending.rows.add("c")
    assert sending.steps() is None
    assert names(receiver) == ["a", "b", "c"]


def test_a_request_holds_no_more_than_its_limits(receiver, way, monkeypatch):
    """Bytes and spans per request are bounded; what does not fit is read again for the next one."""
    monkeypatch.setattr(deliver, "REQUEST_SPANS", 2)
    sending = Sending(way, Rows(["a"], ["b"], ["c", "d", "e"], ["f"]))
    assert sending.steps() is None
    assert [[span.name[-1] for span in each.spans] for each in receiver.requests] == [
        ["a", "b"],
        ["c", "d", "e"],
        ["f"],
    ]
    assert set(sending.rows.read_limits) == {deliver.REQUEST_BYTES}


def test_backend_that_is_down_is_waited_for_longer_and_longer(receiver, way):
    """Waits double up to the longest; nothing is acknowledged; what comes back is said once."""
    receiver.usual = DOWN[receiver.protocol]
    sending = Sending(way, Rows(["a"]))
    waits = [sending.steps() for _ in range(10)]
    assert waits == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30.0, 30.0]
    assert sending.rows.acked == []
    receiver.usual = Answer()
    assert sending.steps() is None
    assert names(receiver) == ["a"]
    assert sending.said.lines == [("failed", "retry"), ("restored",)]
    receiver.answers.append(DOWN[receiver.protocol])
    sending.rows.add("b")
    assert sending.steps() == 0.2


def test_waits_are_spread():
    """Many senders do not come back at the same moment."""
    waits = {Backoff().next(None) for _ in range(20)}
    assert len(waits) > 1
    assert all(0.16 <= wait <= 0.24 for wait in waits)


def test_what_the_backend_asks_for_wins(http_receiver, monkeypatch):
    """Retry-After is waited for, within reason."""
    for name, text in http_receiver.environ().items():
        monkeypatch.setenv(name, text)
    http_receiver.answers.append(Answer(429, headers={"Retry-After": "17"}))
    http_receiver.answers.append(Answer(503, headers={"Retry-After": "86400"}))
    sending = Sending(transport(os.environ), Rows(["a"]))
    assert sending.steps() == 17
    assert sending.steps() == deliver.LONGEST_DELAY
    assert sending.steps() is None


def test_auth_failure_keeps_the_spans_and_is_said_once(receiver, way):
    """A wrong key loses nothing: it waits until the key is right."""
    receiver.usual = DENIED[receiver.protocol]
    sending = Sending(way, Rows(["a"]))
    assert sending.steps() == 0.2
    assert sending.steps() == 0.4
    assert sending.said.lines == [("auth",)]
    receiver.usual = Answer()
    assert sending.steps() is None
    assert names(receiver) == ["a"]


def test_partial_success_is_acknowledged_and_counted(receiver, way):
    """Spans that a backend rejected one by one are counted and not sent again."""
    receiver.answers.append(Answer(rejected=2, message="too old"))
    sending = Sending(way, Rows(["a", "b", "c"]))
    assert sending.steps() is None
    assert sending.rows.results == [DeliveryResult(delivered=1, rejected=2)]
    assert sending.said.lines == [("refused", 2, "too old")]
    assert len(receiver.requests) == 1


@pytest.mark.parametrize("refusal", [BAD, LARGE], ids=["refused", "too large"])
def test_the_span_at_fault_is_found_dropped_and_named(receiver, way, refusal):
    """Requests are halved, by rows and then by spans, until the bad span is alone; the rest
    arrives in order and once."""
    receiver.judge = lambda spans: (
        refusal[receiver.protocol] if any(span.name.endswith("bad") for span in spans) else None
    )
    rows = Rows(["a", "b"], ["c"], ["d", "bad", "e", "f"], ["g"])
    sending = Sending(way, rows)
    assert sending.steps() is None
    assert names(receiver) == ["a", "b", "c", "d", "e", "f", "g"]
    assert rows.acked == [1, 2, 3, 4]
    assert sum(each.delivered for each in rows.results) == 7
    assert sum(each.dropped for each in rows.results) == 1
    [(_, count, message)] = sending.said.lines
    assert count == 1
    assert f"span {b'bad'.rjust(8).hex()}" in message
    assert f"trace {b'bad'.rjust(16).hex()}" in message


def test_an_outage_in_the_middle_of_splitting_repeats_nothing(receiver, way):
    """Parts that were taken stay taken when the backend goes away between two parts."""
    refusing = {"now": True}

    def judge(spans):
        if any(span.name.endswith("bad") for span in spans):
            return BAD[receiver.protocol]
        if refusing["now"] and any(span.name.endswith("d") for span in spans):
            return DOWN[receiver.protocol]
        return None

    receiver.judge = judge
    sending = Sending(way, Rows(["a", "bad", "c", "d"]))
    assert sending.steps() == 0.2
    assert sending.rows.acked == []
    refusing["now"] = False
    assert sending.steps() is None
    assert names(receiver) == ["a", "c", "d"]
    assert sending.rows.acked == [1]


def test_a_backend_that_refuses_everything_loses_nothing(receiver, way):
    """A wrong port answers 400 even to an empty request: that is an outage, not bad spans."""
    receiver.usual = BAD[receiver.protocol]
    sending = Sending(way, Rows(["a", "b"]))
    assert sending.steps() == 0.2
    assert (sending.rows.acked, sending.said.lines) == ([], [("failed", "refused")])
    receiver.usual = Answer()
    assert sending.steps() is None
    assert names(receiver) == ["a", "b"]


def test_a_backend_that_refuses_what_is_empty_still_loses_the_bad_span_alone(receiver, way):
    """That it refuses these spans and not everything is seen by the others."""
    receiver.judge = lambda spans: (
        BAD[receiver.protocol]
        if not spans or any(span.name.endswith(("bad", "evil")) for span in spans)
        else None
    )
    rows = Rows(["bad", "a", "evil"], ["b"], ["c", "d"])
    sending = Sending(way, rows)
    assert sending.steps() is None
    assert names(receiver) == ["a", "b", "c", "d"]
    assert sorted(rows.acked) == [1, 2, 3]
    assert [line[:2] for line in sending.said.lines] == [("refused", 1), ("refused", 1)]
    assert sum(each.dropped for each in rows.results) == 2


def test_a_bad_span_waits_for_one_that_is_taken(receiver, way):
    """Alone it could be the backend's fault: it is kept until another span says whose it is."""
    receiver.judge = lambda spans: (
        BAD[receiver.protocol] if not spans or any(span.name.endswith("bad") for span in spans) else None
    )
    rows = Rows(["bad"])
    sending = Sending(way, rows)
    assert sending.steps() == 0.2
    assert (rows.acked, sending.said.lines) == ([], [("failed", "refused")])
    rows.add("a")
    assert sending.steps() is None
    assert names(receiver) == ["a"]
    assert sorted(rows.acked) == [1, 2]
    assert [line[0] for line in sending.said.lines] == ["failed", "refused", "restored"]


def test_after_too_large_less_is_read(receiver, way):
    """A backend's limit on sizes is learned, not met again with each request."""
    receiver.answers.append(LARGE[receiver.protocol])
    sending = Sending(way, Rows(["a"], ["b"]))
    sending.steps()
    assert sending.rows.read_limits[0] == deliver.REQUEST_BYTES
    assert sending.rows.read_limits[-1] == deliver.LEAST_BYTES
    assert names(receiver) == ["a", "b"]


def test_a_row_that_is_no_request_is_dropped():
    """A damaged row cannot hold up the rows behind it."""

    class Picky:
        def send(self, body):
            return Verdict("refused", message="no") if b"\xff" in body else Verdict("delivered")

        def close(self): ...

    rows = Rows(["a"], ["b"], ["c"])
    rows.rows[1] = (2, 1, b"\xff\xff")
    sending = Sending(Picky(), rows)
    assert sending.steps() is None
    assert rows.acked == [1, 2, 3]
    assert sending.said.lines == [("refused", 1, "an unreadable row: no")]


def test_thread_sends_on_wake_and_is_idle_after(receiver, way):
    """What a commit adds leaves at the wake; wait_idle says that all of it is there."""
    sending = Sending(way, Rows())
    sending.deliverer.start()
    for name in "abc":
        sending.rows.add(name)
        sending.deliverer.wake()
    assert sending.deliverer.wait_idle(20)
    assert names(receiver) == ["a", "b", "c"]
    assert sending.deliverer.stop(20)
    assert not sending.deliverer.is_alive()


def test_backend_goes_and_comes_back(receiver, way):
    """Spans wait while the backend is down and leave in order when it is back on its port."""
    receiver.stop()
    sending = Sending(way, Rows(["a"]), backoff=Backoff(first=0.001, longest=0.01))
    sending.deliverer.start()
    assert sending.said.failed.wait(20)
    sending.rows.add("b")
    sending.deliverer.wake()
    receiver.start()
    assert sending.deliverer.wait_idle(20)
    assert names(receiver) == ["a", "b"]
    assert sending.said.lines[-1] == ("restored",)
    assert sending.deliverer.stop(20)


def test_wait_idle_is_false_when_spans_were_refused(receiver, way):
    """`--once` must not report success when something could not be delivered."""
    receiver.answers.append(Answer(rejected=1))
    sending = Sending(way, Rows(["a"]))
    sending.deliverer.start()
    assert not sending.deliverer.wait_idle(20)
    sending.deliverer.stop(20)


def test_stop_sends_what_is_left_first(receiver, way):
    """A stop takes what is in the outbox now."""
    sending = Sending(way, Rows())
    sending.deliverer.start()
    assert sending.deliverer.wait_idle(20)
    sending.rows.add("last")
    assert sending.deliverer.stop(20)
    assert names(receiver) == ["last"]


def test_stop_does_not_wait_for_a_backend_that_was_down_already(receiver, way):
    """One more try, then what is left waits in the outbox for the next start."""
    receiver.usual = DOWN[receiver.protocol]
    sending = Sending(way, Rows(["a"]), backoff=Backoff(first=3600, longest=3600))
    sending.deliverer.start()
    assert sending.said.failed.wait(20)
    assert not sending.deliverer.stop(3600)
    assert not sending.deliverer.is_alive()
    assert len(receiver.requests) == 2
    assert sending.rows.acked == []


def test_stop_returns_at_its_limit_though_a_request_is_under_way(receiver, way):
    """A backend that does not answer does not hold up the end of the program."""
    gate = threading.Event()
    receiver.answers.append(Answer(gate=gate))
    sending = Sending(way, Rows(["a"]))
    sending.deliverer.start()
    receiver.wait_for_requests(1)
    assert not sending.deliverer.stop(0)
    gate.set()
    sending.deliverer.join(20)
    assert not sending.deliverer.is_alive()


def test_a_wake_does_not_hurry_a_backend_that_is_down(receiver, way):
    """Each commit wakes the sender; a backend that is down is still asked at its own pace."""
    receiver.usual = DOWN[receiver.protocol]
    sending = Sending(way, Rows(["a"]), backoff=Backoff(first=3600, longest=3600))
    sending.deliverer.start()
    assert sending.said.failed.wait(20)
    for _ in range(100):
        sending.deliverer.wake()
    assert not sending.deliverer.wait_idle(0)
    assert len(receiver.requests) == 1
    sending.deliverer.stop(20)


def test_an_error_in_the_outbox_is_said_and_tried_again(receiver, way):
    """The sender survives what it cannot foresee (a locked state) and goes on."""
    rows = Rows(["a"])
    pending, failures = rows.pending, iter([OSError("locked")])

    def failing(after_id, limit_bytes):
        for error in failures:
            raise error
        return pending(after_id, limit_bytes)

    rows.pending = failing
    sending = Sending(way, rows, backoff=Backoff(first=0.001))
    sending.deliverer.start()
    assert sending.deliverer.wait_idle(20)
    assert sending.said.lines == [("failed", "internal"), ("restored",)]
    assert sending.deliverer.stop(20)

"""The push against a real receiver: it says what the page says, and a failing backend costs nothing."""

from __future__ import annotations

import os
from collections import Counter

import pytest

import pushed
import truth
from receiver import Answer, attributes
from spantail.model import SECOND
from spantail.out.exporters import metric_resource, metrics, push_interval, push_transport
from spantail.out.exposition import Writer
from spantail.out.points import REQUEST_POINTS, Points
from spantail.out.push import Push
from spantail.state import families as f
from spantail.state.totals import Totals

T0 = 1_700_000_000 * SECOND
TRACE = bytes(range(16))
MINUTE = 60 * SECOND


class Clock:
    now = T0 + MINUTE

    def __call__(self) -> int:
        return self.now


class Said:
    def __init__(self) -> None:
        self.said: list[tuple[str, ...]] = []

    def push_failed(self, message):
        self.said.append(("failed", message))

    def push_restored(self):
        self.said.append(("restored",))

    def points_refused(self, amount, message):
        self.said.append(("refused", str(amount), message))


def commit(totals: Totals) -> None:
    totals.rows()
    totals.committed()


@pytest.fixture
def totals() -> Totals:
    totals = Totals(hold=0)
    totals.add(f.TOOL_ERRORS, ("a", "p", "Bash", "timeout"), 2, T0, TRACE)
    totals.add(f.COST, ("a", "p", "m", "computed", ""), 0.25, T0 + 5)
    totals.add(f.READ_BYTES, (), 1000, 0)
    for seconds in (0.02, 3.0, 3.5, 9999.0):
        totals.observe(f.TOOL_DURATION, ("a", "Bash"), seconds, T0 + int(seconds * 1000), TRACE)
    totals.set_gauges({f.OPEN_TOOL_CALLS: {("a", "Bash"): 1.0}, f.LAG: {(): 0.5}})
    commit(totals)
    return totals


@pytest.fixture
def pushing(monkeypatch):
    """Makes a Push from the receiver's variables; closes its transport."""
    made = []

    def make(receiver, totals, clock=None, labels=None, interval=MINUTE, **variables) -> tuple[Push, Said]:
        for name, text in {**receiver.environ(), "OTEL_METRICS_EXPORTER": "otlp", **variables}.items():
            monkeypatch.setenv(name, text)
        transport = push_transport(os.environ)
        made.append(transport)
        said = Said()
        points = Points(metric_resource(os.environ, "id-1", "1.2.3"), "1.2.3", T0 - 7, labels or {})
        return Push(transport, interval, totals, points, said, clock=clock or Clock()), said

    yield make
    for transport in made:
        transport.close()


def test_it_says_what_the_page_says(receiver, pushing, totals):
    """Same names, labels and values, over both protocols; static labels on what is about agents."""
    push, said = pushing(receiver, totals, labels={"team": "blue"})
    assert push.step()
    assert said.said == [("restored",)]
    (request,) = receiver.wait_for_pushes(1)
    page = Writer({"team": "blue"}).text(totals.snapshot(T0, scraper=True)).decode()
    shown = {
        pushed.key(name, labels): value
        for name, series in truth.samples(page).items()
        for labels, value in series
    }
    assert len(shown) > 15
    sent = pushed.translated(request)
    assert {key: value for key, value in sent.items() if not key[0].startswith("process_")} == shown
    assert {key[0] for key in sent if key[0].startswith("process_")} >= {
        "process_resident_memory_bytes",
        "process_cpu_seconds_total",
    }


def test_who_pushes(receiver, pushing, totals, monkeypatch):
    """service.name is spantail or what OTEL_SERVICE_NAME says; OTEL_RESOURCE_ATTRIBUTES adds and wins over ours."""
    push, _ = pushing(receiver, totals)
    push.step()
    resource = pushed.resource(receiver.pushes[0])
    assert (resource["service.name"], resource["service.instance.id"]) == ("spantail", "id-1")
    assert resource["host.name"]
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "service.name=x,team=a%20b,service.instance.id=mine")
    assert metric_resource(os.environ, "i", "1")["service.name"] == "x"
    monkeypatch.setenv("OTEL_SERVICE_NAME", "mine")
    said = metric_resource(os.environ, "i", "1")
    assert (said["service.name"], said["team"], said["service.instance.id"]) == ("mine", "a b", "mine")


def test_times_and_exemplars(http_receiver, pushing, totals):
    """A series begins with its first event, without one with the state; exemplars lead to their traces."""
    push, _ = pushing(http_receiver, totals)
    push.step()
    found = pushed.metrics(http_receiver.pushes[0])
    (error,) = pushed.points(found["coding_agent.tool_errors"])
    assert (error.start_time_unix_nano, error.time_unix_nano) == (T0, T0 + MINUTE)
    assert [(e.trace_id, e.as_double, e.time_unix_nano) for e in error.exemplars] == [(TRACE, 2.0, T0)]
    (read,) = pushed.points(found["spantail.read_bytes"])
    assert read.start_time_unix_nano == T0 - 7
    (tools,) = pushed.points(found["coding_agent.tool.duration"])
    assert [e.as_double for e in tools.exemplars] == [0.02, 3.5, 9999.0]
    assert found["coding_agent.tool.duration"].unit == "s"
    (lag,) = pushed.points(found["spantail.lag"])
    assert lag.start_time_unix_nano == 0


def test_the_hold_begins_with_a_push_that_arrived(http_receiver, pushing):
    """A new series is 0 until the hold is over since the backend was first told of it."""
    totals, clock = Totals(hold=90 * SECOND), Clock()
    totals.add(f.COMPACTIONS, ("a", "p"), 3, T0)
    commit(totals)
    push, _ = pushing(http_receiver, totals, clock)

    def value() -> float:
        commit(totals)
        assert push.step()
        return pushed.points(pushed.metrics(http_receiver.pushes[-1])["coding_agent.compactions"])[
            0
        ].as_double

    http_receiver.answers.append(Answer(503))
    assert not push.step()
    commit(totals)
    clock.now += 3600 * SECOND  # the lost push has begun no hold
    assert value() == 0
    clock.now += 60 * SECOND
    assert value() == 0
    clock.now += 31 * SECOND
    assert value() == 3


@pytest.mark.parametrize("status", [500, 503, 404, 302, 401, 400])
def test_a_failing_backend_is_told_and_the_next_push_says_it_all(http_receiver, pushing, totals, status):
    """Whatever the answer is: nothing is lost, because totals are cumulative. A redirect is no success."""
    push, said = pushing(http_receiver, totals)
    http_receiver.answers.extend([Answer(status), Answer(status)])
    assert not push.step()
    totals.add(f.TOOL_ERRORS, ("a", "p", "Bash", "timeout"), 5, T0 + 9)
    commit(totals)
    assert not push.step()
    assert push.step()
    assert [kind for kind, *_ in said.said] == ["failed", "failed", "restored"]
    assert f": {status}" in said.said[0][1]
    (error,) = pushed.points(pushed.metrics(http_receiver.pushes[0])["coding_agent.tool_errors"])
    assert error.as_double == 7


def test_a_backend_that_is_not_there(receiver, pushing, totals):
    """Goes away and comes back on the same port."""
    push, said = pushing(receiver, totals)
    receiver.stop()
    assert not push.step()
    receiver.start()
    assert push.step()
    assert [kind for kind, *_ in said.said] == ["failed", "restored"]


def test_a_partial_rejection_is_told(receiver, pushing, totals):
    """It arrived, but for some points."""
    push, said = pushing(receiver, totals)
    # The count is the first field in both signals' answers.
    receiver.answers.append(Answer(200, rejected=2, message="out of order"))
    assert push.step()
    assert said.said[0] == ("refused", "2", "out of order")


def test_a_long_page_goes_in_several_requests(http_receiver, pushing):
    """No point is lost or sent twice, and no request is too long for a gRPC server."""
    totals = Totals(hold=0)
    for number in range(2 * REQUEST_POINTS + 10):
        totals.add(f.COMPACTIONS, ("agent", f"project-{number}"), number, T0)
    commit(totals)
    push, _ = pushing(http_receiver, totals)
    assert push.step()
    seen = Counter()
    for request in http_receiver.pushes:
        for metric in pushed.metrics(request).values():
            for point in pushed.points(metric):
                seen[metric.name, tuple(attributes(point.attributes).items())] += 1
    assert len(http_receiver.pushes) > 2
    assert sum(1 for name, _ in seen if name == "coding_agent.compactions") == 2 * REQUEST_POINTS + 10
    assert set(seen.values()) == {1}
    assert max(len(request.body) for request in http_receiver.requests) < 4 << 20


def test_it_pushes_at_the_interval_and_once_more_at_the_end(receiver, pushing, totals):
    """On a thread of its own; what was counted last is in the last push."""
    push, _ = pushing(receiver, totals, interval=SECOND // 50)
    push.start()
    receiver.wait_for_pushes(3)
    totals.add(f.TOOL_ERRORS, ("a", "p", "Bash", "timeout"), 5, T0 + 9)
    commit(totals)
    assert push.stop(10)
    assert not push.is_alive()
    (error,) = pushed.points(pushed.metrics(receiver.pushes[-1])["coding_agent.tool_errors"])
    assert error.as_double == 7


def test_a_stuck_backend_does_not_hold_up_the_end(http_receiver, pushing, totals):
    """The last push is waited for only so long."""
    import threading

    gate = threading.Event()
    http_receiver.usual = Answer(200, gate=gate)
    push, _ = pushing(http_receiver, totals)
    push.start()
    http_receiver.wait_for_requests(1)
    assert not push.stop(0.05)
    gate.set()
    push.join(20)
    assert not push.is_alive()


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {
            "OTEL_EXPORTER_OTLP_HEADERS": "x-key=general",
            "OTEL_EXPORTER_OTLP_METRICS_HEADERS": "x-key=metrics",
        },
        {"OTEL_EXPORTER_OTLP_COMPRESSION": "gzip"},
        {"OTEL_EXPORTER_OTLP_METRICS_COMPRESSION": "gzip", "OTEL_EXPORTER_OTLP_TIMEOUT": "5"},
        {"OTEL_EXPORTER_OTLP_TRACES_HEADERS": "x-key=traces"},
        {"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "{endpoint}/some/path/metrics"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "{endpoint}/base/"},
    ],
    ids=str,
)
def test_the_variables_mean_what_they_mean_to_the_stock_exporter(receiver, pushing, totals, variables):
    """Same path, headers and timeout as the stock exporter's own request."""
    variables = {name: text.format(endpoint=receiver.endpoint) for name, text in variables.items()}
    push, _ = pushing(receiver, totals, **variables)
    assert push.step()
    if receiver.protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
    else:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.sdk.metrics.export import MetricsData

    stock = OTLPMetricExporter()
    stock.export(MetricsData([]))
    stock.shutdown()
    ours, theirs = receiver.requests
    assert ours.path == theirs.path
    leave = {"content-length"}
    assert {k: v for k, v in ours.headers.items() if k not in leave} == {
        k: v for k, v in theirs.headers.items() if k not in leave
    }
    if receiver.protocol == "grpc":
        assert ours.timeout == pytest.approx(theirs.timeout, abs=1)


def test_the_export_timeout_shortens_a_request(grpc_receiver, pushing, totals):
    """OTEL_METRIC_EXPORT_TIMEOUT holds where the exporter's own is longer."""
    push, _ = pushing(grpc_receiver, totals, OTEL_METRIC_EXPORT_TIMEOUT="4000")
    assert push.step()
    assert 2 < grpc_receiver.requests[0].timeout < 5  # gRPC rounds up a little


@pytest.mark.parametrize(
    ("environ", "chosen"),
    [
        ({}, {"prometheus"}),
        ({"OTEL_METRICS_EXPORTER": ""}, {"prometheus"}),
        ({"OTEL_METRICS_EXPORTER": "otlp"}, {"otlp"}),
        ({"OTEL_METRICS_EXPORTER": "prometheus, OTLP"}, {"prometheus", "otlp"}),
        ({"OTEL_METRICS_EXPORTER": "none"}, set()),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:4318"}, {"prometheus"}),
    ],
)
def test_which_exporters_are_chosen(environ, chosen):
    """The page by default; an endpoint alone does not turn the push on."""
    assert metrics(environ) == chosen
    assert bool(push_interval(environ)) == ("otlp" in chosen)


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"OTEL_METRICS_EXPORTER": "statsd"}, "OTEL_METRICS_EXPORTER: .*'statsd'"),
        ({"OTEL_METRICS_EXPORTER": "otlp,none"}, "none stands alone"),
        ({"OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE": "delta"}, "only cumulative .* 'delta'"),
        ({"OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE": "lowmemory"}, "only cumulative"),
        ({"OTEL_METRIC_EXPORT_INTERVAL": "soon"}, "OTEL_METRIC_EXPORT_INTERVAL: .*'soon'"),
        ({"OTEL_METRIC_EXPORT_INTERVAL": "0"}, "more than 0"),
        ({"OTEL_METRIC_EXPORT_TIMEOUT": "-1"}, "OTEL_METRIC_EXPORT_TIMEOUT"),
        ({"OTEL_EXPORTER_OTLP_METRICS_PROTOCOL": "udp"}, "udp"),
        ({"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "collector:4318"}, "http://"),
        ({"OTEL_EXPORTER_OTLP_METRICS_CERTIFICATE": "/no/such.pem"}, "/no/such.pem: No such file"),
    ],
    ids=str,
)
def test_bad_values_are_one_line(environ, said):
    """Only bad configuration stops the program, and it says what is bad."""
    environ = {"OTEL_METRICS_EXPORTER": "otlp", **environ}
    with pytest.raises(ValueError, match=said) as caught:  # noqa: PT012 - either of them says it
        push_interval(environ)
        push_transport(environ)
    assert "\n" not in str(caught.value)


def test_the_interval_is_in_milliseconds():
    assert push_interval({"OTEL_METRICS_EXPORTER": "otlp"}) == 60 * SECOND
    assert (
        push_interval({"OTEL_METRICS_EXPORTER": "otlp", "OTEL_METRIC_EXPORT_INTERVAL": "1500"})
        == 3 * SECOND // 2
    )

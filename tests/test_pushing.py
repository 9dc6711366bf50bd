"""The push of the whole program: the page's numbers at a backend, across restarts, and in a real Prometheus."""

from __future__ import annotations

import os
import shutil
import signal

import pytest

import pushed
import replay
import truth
from ports import free_port
from program import LONG_AFTER, configured, once
from receiver import Answer, Receiver
from servers.server import eventually
from spantail.commands import run as run_command
from spantail.commands.run import Run
from spantail.config import Budget
from spantail.follow import LAST_SECONDS
from spantail.model import SECOND
from spantail.state.store import Store
from spantail.tail.wake import HandWaker
from test_run import PATIENCE, get, start, until

CASES = (
    "claude-code/subagent-a",
    "claude-code/compact-a",
    "codex/ratelimit-a",
    "pi/retry-a",
    "opencode/tools-a",
)
BUDGET = Budget(name="all", period="month", limit=10.0)
MOVES = ("process_", "spantail_last_commit_timestamp_seconds", "spantail_build_info")
"""What changes between two looks, or is another at the end."""


@pytest.fixture
def home(tmp_path):
    """Several agents' sessions, so that nearly every family has a series."""
    for case in CASES:
        shutil.copytree(truth.FIXTURES / case / "home", tmp_path / "home", dirs_exist_ok=True)
    return tmp_path / "home"


def shown(page: str) -> dict[pushed.Series, float]:
    return {
        pushed.key(name, labels): value
        for name, series in truth.samples(page).items()
        for labels, value in series
        if not name.startswith(MOVES)
    }


def sent(request) -> dict[pushed.Series, float]:
    return {key: value for key, value in pushed.translated(request).items() if not key[0].startswith(MOVES)}


def test_once_pushes_what_the_page_shows(home, tmp_path, monkeypatch, receiver):
    """--once ends with one push, over either protocol, of every series of the page."""
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "otlp")
    _, page = once(home, tmp_path / "state", receiver, monkeypatch, budgets=(BUDGET,))
    (request,) = receiver.pushes
    assert sent(request) == shown(page)
    assert len(shown(page)) > 200


def test_once_fails_if_the_push_does(home, tmp_path, monkeypatch, http_receiver, capsys):
    """Exit 1 and a plain line; the next run pushes all of it."""
    for name, text in {**http_receiver.environ(), "OTEL_METRICS_EXPORTER": "otlp"}.items():
        monkeypatch.setenv(name, text)
    http_receiver.judge = lambda spans: None if spans else Answer(503)
    config = configured(home, tmp_path / "state")
    assert run_command.main(config, os.environ, clock=lambda: LONG_AFTER) == 1
    assert "the metrics could not be pushed" in capsys.readouterr().err
    http_receiver.judge = None
    assert run_command.main(config, os.environ, clock=lambda: LONG_AFTER) == 0
    assert sum(v for k, v in sent(http_receiver.pushes[-1]).items() if k[0] == "coding_agent_turns_total") > 4


def test_a_restart_is_not_a_reset(home, tmp_path, monkeypatch, http_receiver):
    """The same instance and the same start of every series; the totals go on."""
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "otlp")
    found = []
    for _ in range(2):
        once(home, tmp_path / "state", http_receiver, monkeypatch)
        request = http_receiver.pushes[-1]
        starts = {
            (metric.name, str(point.attributes)): point.start_time_unix_nano
            for metric in pushed.metrics(request).values()
            if metric.name.startswith("coding_agent.") and not metric.HasField("gauge")
            for point in pushed.points(metric)
        }
        assert all(starts.values())
        assert len(set(starts.values())) > 3  # by their first events
        found.append((pushed.resource(request)["service.instance.id"], starts, sent(request)))
    assert found[0][:2] == found[1][:2]
    turns = [sum(v for k, v in each[2].items() if k[0] == "coding_agent_turns_total") for each in found]
    assert turns[0] == turns[1] > 0


def test_the_hold_ends_for_pushes_by_once(home, tmp_path, monkeypatch, http_receiver):
    """Run from cron: a new series is 0 in the run that first shows it, and itself in one after the hold."""
    for name, text in {**http_receiver.environ(), "OTEL_METRICS_EXPORTER": "otlp"}.items():
        monkeypatch.setenv(name, text)
    now = [LONG_AFTER]
    empty = tmp_path / "followed"
    empty.mkdir()
    config = configured(empty, tmp_path / "state", new_series_hold=90 * 10**9, textfile=None)
    turns = []
    for number in range(3):
        assert run_command.main(config, os.environ, clock=lambda: now[0]) == 0
        series = sent(http_receiver.pushes[-1])
        turns.append(sum(value for key, value in series.items() if key[0] == "coding_agent_turns_total"))
        if number == 0:
            shutil.copytree(home, empty, dirs_exist_ok=True)
        now[0] += 100 * 10**9
    assert turns[:2] == [0, 0]
    assert turns[2] > 0


@pytest.mark.parametrize(
    ("hold", "interval", "held"), [(90, 60_000, 90), (90, 120_000, 180), (15, 60_000, 90), (0, 60_000, 0)]
)
def test_a_new_series_is_held_for_longer_than_an_interval(hold, interval, held, tmp_path, monkeypatch):
    """Else no push would show its zero; a hold that is turned off stays off."""
    environ = {"OTEL_METRICS_EXPORTER": "prometheus,otlp", "OTEL_METRIC_EXPORT_INTERVAL": str(interval)}
    store = Store(tmp_path / "state")
    config = configured(tmp_path, tmp_path / "state", new_series_hold=hold * SECOND)
    run = Run(config, environ, store, waker=HandWaker())
    assert run.totals._hold == held * SECOND
    run.push._transport.close()
    run.waker.close()
    store.close()


@pytest.mark.parametrize("chosen", ["none", "otlp"])
def test_without_prometheus_there_is_no_page(chosen, tmp_path):
    """The health answers stay; the last push comes at the end."""
    port = free_port()
    with Receiver("http") as receiver:
        program = start(
            "--home", str(tmp_path), "--state", str(tmp_path / "s"), "--listen", f"127.0.0.1:{port}",
            env={**receiver.environ(), "OTEL_METRICS_EXPORTER": chosen},
        )  # fmt: skip
        try:
            until(lambda: get(port, "/readyz")[0] == 200)
            assert get(port, "/healthz")[0] == 200
            assert get(port, "/metrics")[0] == 404
            if chosen == "otlp":
                receiver.wait_for_pushes(1)
        finally:
            program.send_signal(signal.SIGTERM)
            _, log = program.communicate(timeout=PATIENCE)
        assert program.returncode == 0, log
        assert len(receiver.pushes) == (2 if chosen == "otlp" else 0)


def test_one_that_is_stopped_holds_nothing_back(tmp_path):
    """In a pod nobody comes back to it: the zero and then the value are its last words, and that it was stopped.
    Where it does come back it goes on from there."""
    home = tmp_path / "home"
    (home / ".claude/projects").mkdir(parents=True)
    with Receiver("http") as receiver:

        def run() -> None:
            before = len(receiver.pushes)
            program = start(
                "--home", str(home), "--state", str(tmp_path / "s"), "--since", "all", "--listen", "none",
                env={**receiver.environ(), "OTEL_METRICS_EXPORTER": "otlp"},
            )  # fmt: skip
            try:
                until(lambda: len(receiver.pushes) > before)
                if not before:
                    replay.copied(truth.FIXTURES / "claude-code/tools-a", home / "late")
                    shutil.copytree(home / "late", home, dirs_exist_ok=True)
                    until(lambda: receiver.spans)
            finally:
                program.send_signal(signal.SIGTERM)
                _, log = program.communicate(timeout=PATIENCE)
            assert program.returncode == 0, log

        run()
        first, held, last = receiver.pushes
        assert not any(name == ERRORS for name, _ in sent(first))
        assert total(held) == 0
        assert total(last) == 1
        assert [running(each) for each in (first, held, last)] == [1, 0, 0]
        run()
        again = receiver.pushes[3:]
        assert {total(each) for each in again} == {1}
        assert (running(again[0]), running(again[-1])) == (1, 0)


ERRORS = "coding_agent_tool_errors_total"


def total(request) -> float:
    return sum(value for (name, _), value in sent(request).items() if name == ERRORS)


def running(request) -> float:
    ((_, value),) = (
        each for each in pushed.translated(request).items() if each[0][0] == "spantail_build_info"
    )
    return value


class Hanging:
    """A backend that takes all the time it is given."""

    def __init__(self, took):
        self.took = took

    def stop(self, seconds):
        self.took.append(seconds)
        return False


def test_a_stop_takes_ten_seconds_whatever_hangs(tmp_path, monkeypatch, http_receiver):
    """Spans and metrics go to the same backend, and one waits after the other; the loop's last look comes before them,
    commits and the end of the process after them."""
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "otlp")
    for key, value in http_receiver.environ().items():
        monkeypatch.setenv(key, value)
    store, took = Store(tmp_path / "state"), []
    run = Run(configured(tmp_path, tmp_path / "state", once=False), os.environ, store, waker=HandWaker())
    run.begin()
    run.deliverer.stop(0.0)
    run.push.stop(PATIENCE)
    run.push.close()
    run.deliverer = run.push = Hanging(took)
    run._leave()
    store.close()
    assert len(took) == 2
    assert sum(took) + LAST_SECONDS <= 9


@pytest.mark.parametrize(
    ("variable", "word"), [("OTEL_METRICS_EXPORTER", "statsd"), ("OTEL_TRACES_EXPORTER", "zipkin")]
)
def test_an_unknown_exporter_stops_the_start(variable, word, tmp_path):
    """One line, exit 2."""
    program = start("--home", str(tmp_path), "--state", str(tmp_path / "s"), env={variable: word})
    _, log = program.communicate(timeout=PATIENCE)
    assert program.returncode == 2
    assert log.count("\n") == 1
    assert variable in log
    assert word in log


@pytest.mark.servers
def test_prometheus_has_every_family_of_the_page(home, tmp_path, monkeypatch, prometheus):
    """Pushed to its OTLP endpoint, each series has the page's name, labels and value; exemplars lead to traces."""
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "otlp")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "pushed")
    for name, text in prometheus.environ().items():
        monkeypatch.setenv(name, text)
    import time

    state = tmp_path / "state"
    state.mkdir()
    config = configured(home, state, budgets=(BUDGET,))
    assert run_command.main(config, os.environ, clock=time.time_ns) == 0
    page = shown((state / "page.prom").read_text())
    assert {key[0] for key in page} >= {
        "coding_agent_turn_duration_seconds_bucket",
        "coding_agent_budget_spent_usd",
    }

    def there() -> dict[pushed.Series, float]:
        found = {}
        for labels, value in prometheus.query('{job="pushed"}'):
            assert labels.pop("job") == "pushed"
            assert labels.pop("instance")
            if labels["__name__"] != "target_info" and not labels["__name__"].startswith(MOVES):
                found[pushed.key(labels.pop("__name__"), labels)] = value
        return found

    found = eventually(lambda: there() or None, what="the push in Prometheus")
    assert found == page
    told = prometheus.exemplars('coding_agent_tool_errors_total{job="pushed"}', 0, time.time())
    assert told
    assert all(len(each["labels"]["trace_id"]) == 32 for series in told for each in series["exemplars"])
    names = {labels["__name__"] for labels, _ in prometheus.query('{job="pushed",__name__=~"process_.*"}')}
    assert names >= {"process_resident_memory_bytes", "process_cpu_seconds_total", "process_open_fds"}


@pytest.mark.servers
def test_prometheus_sees_the_first_error_and_no_reset(tmp_path, prometheus):
    """Pushed: a series that is born later increases from 0, and a restart goes on with it."""
    home = tmp_path / "home"
    (home / ".claude/projects").mkdir(parents=True)
    series = 'coding_agent_tool_errors_total{job="first"}'
    variables = {**prometheus.environ(), "OTEL_METRICS_EXPORTER": "otlp", "OTEL_SERVICE_NAME": "first"}

    def begun():
        return start(
            "--home", str(home), "--state", str(tmp_path / "state"), "--since", "all", "--listen", "none",
            "--new-series-hold", "1s", env={**variables, "OTEL_METRIC_EXPORT_INTERVAL": "300"},
        )  # fmt: skip

    def ended(program) -> None:
        program.send_signal(signal.SIGTERM)
        _, log = program.communicate(timeout=PATIENCE)
        assert program.returncode == 0, log

    program = begun()
    try:
        eventually(lambda: prometheus.query('spantail_build_info{job="first"}'), what="the first push")
        for piece in replay.lines(truth.FIXTURES / "claude-code/tools-a/home"):
            replay.append(home, piece)
        eventually(lambda: prometheus.value(series) == 1, what="the error in Prometheus")
        assert prometheus.value(f"increase({series}[5m])") > 0.5
    finally:
        ended(program)
    before = prometheus.value('process_start_time_seconds{job="first"}')
    program = begun()
    try:
        eventually(
            lambda: prometheus.value('process_start_time_seconds{job="first"}') > before,
            what="a push after it",
        )
        assert prometheus.value(f"count({series})") == 1
        assert prometheus.value(series) == 1
        assert prometheus.value(f"resets({series}[5m])") == 0
    finally:
        ended(program)

"""Two real spantails that a real Prometheus scrapes: one has read recorded sessions, one has sessions that go on.

The first shows totals whose truth is known, and sends its traces to Jaeger. The second has what recordings cannot
have: open turns and tool calls, limits and contexts of now, money spent today, a result that comes too late, and a
backend that is down.
"""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import replay
import truth
from ports import free_port
from program import LONG_AFTER
from servers.jaeger import Jaeger
from servers.prometheus import Prometheus
from servers.server import clean_environ, eventually
from spantail.formats import TABLE
from spantail.formats.times import iso_ns

JOB = "dashboards"
SCRAPE = 2
HOLD = 10
"""Seconds for which a new series is shown as 0: five scrapes, so that a slow machine sees one."""

BUDGETS = """
[[budget]]
name = "everything"
period = "month"
limit = 500.0

[[budget]]
name = "today"
period = "day"
limit = 0.001

[[budget]]
name = "their today"
period = "day"
limit = 5.0
timezone = "Asia/Tokyo"
"""
# At any time one of these periods is well under way, so that there is a forecast.

ISO = re.compile(rb"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z")
Line = tuple[timedelta, bytes]


def cases() -> list[Path]:
    """The recordings of every agent's newest version of which everything is known that is shown in sum."""
    agents = {row.agent for row in TABLE}
    return [
        case
        for case in truth.cases()
        if case.parent.name in agents
        and (expect := truth.expected(case))["turns"] is not None
        and all(tool["status"] for tool in expect["tools"])
    ]


class Fed:
    def __init__(self, prometheus: Prometheus, jaeger: Jaeger, recorded: str, open_: str) -> None:
        self.prometheus = prometheus
        self.jaeger = jaeger
        self.recorded = recorded
        """The instance that has read the recordings."""
        self.open = open_
        self.at = 0.0
        """When the recorded instance was scraped last: there increase() has nothing to extrapolate."""


@contextmanager
def fed(prometheus: Prometheus, jaeger: Jaeger, folder: Path) -> Iterator[Fed]:
    for case in cases():
        replay.copied(case, folder / "recorded" / "homes" / f"{case.parent.name}--{case.name}")
    _open_sessions(folder / "open" / "homes")
    ports = [free_port() for _ in range(3)]
    recorded, open_ = (f"127.0.0.1:{port}" for port in ports[:2])
    # Long after the recordings, wherever this runs.
    later = max(0, LONG_AFTER - time.time_ns())
    nobody = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{ports[2]}"}
    _start_empty(folder / "recorded")
    shutil.copytree(folder / "recorded" / "state", folder / "open" / "state")
    with (
        # First: it takes some seconds until it scrapes.
        prometheus.job(JOB, recorded, open_, scrape_interval=f"{SCRAPE}s", scrape_timeout=f"{SCRAPE}s"),
        _spantail(folder / "recorded", recorded, later, jaeger.environ("grpc")),
        _spantail(folder / "open", open_, 0, nobody),
    ):
        fed_ = Fed(prometheus, jaeger, recorded, open_)
        turns = sum(truth.expected(case)["turns"] for case in cases())

        def shown() -> bool:
            """All that is counted is past its hold, and Jaeger has all traces."""
            of_recorded, of_open = (f'{{job="{JOB}", instance="{each}"}}' for each in (recorded, open_))
            return (
                prometheus.value(f"sum(coding_agent_turns_total{of_recorded})") == turns
                and prometheus.value(f"spantail_outbox_spans{of_recorded}") == 0
                and bool(prometheus.value(f"sum(spantail_exported_spans_total{of_recorded})"))
                and bool(prometheus.value(f"sum(spantail_late_records_total{of_open})"))
            )

        eventually(shown, seconds=90, what="the totals of the recordings")
        fed_.at = prometheus.value(f'timestamp(up{{job="{JOB}", instance="{recorded}"}})') or 0.0
        yield fed_


def _command(folder: Path, later: int) -> list[Any]:
    clock = f"import sys, time; now = time.time_ns; time.time_ns = lambda: now() + {later}"
    (folder / "config.toml").write_text(BUDGETS)
    return [
        sys.executable, "-c", f"{clock}; from spantail.cli import main; sys.exit(main())",
        "run", "--home", folder / "homes" / "*", "--state", folder / "state",
        "--config", folder / "config.toml", "--since", "all", "--new-series-hold", f"{HOLD}s",
    ]  # fmt: skip


def _start_empty(folder: Path) -> None:
    """Makes the state of a spantail that was there before its sessions: what it finds later is new to it, and not
    a first backlog, whose totals are shown as they are."""
    (folder / "homes").rename(folder / "waiting")
    command = [*_command(folder, 0), "--once", "--listen", "none"]
    subprocess.run(command, env=clean_environ(), check=True, capture_output=True, timeout=60)
    (folder / "waiting").rename(folder / "homes")


@contextmanager
def _spantail(folder: Path, listen: str, later: int, environ: dict[str, str]) -> Iterator[None]:
    """`later`: how far its clock is ahead, in ns."""
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [*_command(folder, later), "--listen", listen],
            env={**clean_environ(), **environ},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        yield
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


# ------------------------------------------------------------------------------------- sessions that go on


def _open_sessions(homes: Path) -> None:
    now = datetime.now(UTC)
    minutes = timedelta(minutes=1)
    tools = truth.FIXTURES / "claude-code" / "tools-a"
    # A tool call that has been running for 20 minutes.
    _moved(tools, homes / "open", lambda at, n, line: now - 20 * minutes + at, until=b'"type":"tool_use"')
    # A result that comes three hours after its call, when that has long been given up.
    results: list[int] = []

    def late(at: timedelta, number: int, line: bytes) -> datetime:
        if b'"type":"tool_result"' in line:
            results.append(number)
        return now - (minutes if results else 180 * minutes) - timedelta(seconds=5) + at

    _moved(tools, homes / "late", late)
    # A turn that goes on, of an agent that notes its rate limits.
    limits = truth.FIXTURES / "codex" / "ratelimit-a"
    _moved(limits, homes / "limits", lambda at, n, line: now - 2 * minutes + at, before=b'"task_complete"')


def _moved(
    case: Path,
    to: Path,
    when: Callable[[timedelta, int, bytes], datetime],
    until: bytes = b"\0",
    before: bytes = b"\0",
) -> None:
    """A copy whose lines have other times: `when(time since the first line, line number, line)`. It ends
    with the first line that has `until`, or before the first that has `before`."""
    shutil.copytree(case / "home", to)
    for path in to.rglob("*.jsonl"):
        lines = path.read_bytes().splitlines(keepends=True)
        first = min(iso_ns(found.decode()) for line in lines for found in ISO.findall(line)[:1])
        written = []
        for number, line in enumerate(lines):
            if before in line:
                break
            found = ISO.search(line)
            at = timedelta(microseconds=(iso_ns(found[0].decode()) - first) // 1000) if found else timedelta()
            stamp = when(at, number, line).strftime("%Y-%m-%dT%H:%M:%S.%fZ").encode()
            written.append(ISO.sub(stamp, line))
            if until in line:
                break
        path.write_bytes(b"".join(written))

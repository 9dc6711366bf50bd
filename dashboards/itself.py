"""spantail itself: whether it keeps up, delivers, and sees what it should; what it costs to run."""

from __future__ import annotations

from typing import Any

from frame import framed
from links import TRACES_OF_SERIES
from panels import (
    BYTES,
    COUNT,
    RESULTS,
    SECONDS,
    SHARE,
    Column,
    Panel,
    Query,
    bars,
    number,
    rows,
    series,
)
from queries import count, or_none, or_zero, pick, rate, total

RECORDS = "spantail_records_total"
EXPORTED = "spantail_exported_spans_total"
ERRORS = "spantail_errors_total"
REFUSED = 'result!="delivered"'
WAITING = (
    f"(time() - {pick('spantail_outbox_oldest_timestamp_seconds')} or 0 * {pick('spantail_outbox_spans')})"
)
"""Zero where nothing waits."""


def itself() -> dict[str, Any]:
    return framed(
        "spantail-itself",
        "Coding agents / spantail itself",
        "Whether spantail is up, keeps up with the agents, delivers their traces, and what it costs to run.",
        [
            ("Is it well?", _health()),
            ("Reading", _reading()),
            ("Delivering", _delivering()),
            ("What went wrong", _faults()),
            ("What it costs", _resources()),
        ],
    )


def _health() -> list[Panel]:
    return [
        number("Up", "Instances that report.", or_zero(f"sum({pick('spantail_build_info')})"), width=3),
        number(
            "Down",
            "Instances that Prometheus could not scrape.",
            or_zero(f"count({pick('up')} == 0)"),
            steps="alarm",
            width=3,
        ),
        number(
            "Lag",
            "Age of the oldest byte that was seen and is not committed, on the worst instance.",
            f"max({pick('spantail_lag_seconds')})",
            SECONDS,
            steps="lag",
            none="-",
            width=3,
        ),
        number(
            "Commits fail",
            "Instances whose state cannot be written (disk full, read-only): they have stopped reading.",
            f"sum({pick('spantail_commit_failed')})",
            steps="alarm",
            width=3,
        ),
        number(
            "Spans waiting",
            "Spans in the outbox that no backend has acknowledged yet.",
            f"sum({pick('spantail_outbox_spans')})",
            width=3,
        ),
        number(
            "Waiting since",
            "How long the oldest batch of the outbox has been waiting, on the worst instance.",
            f"max({WAITING})",
            SECONDS,
            steps="waiting",
            width=3,
        ),
        number(
            "Spans lost",
            "Spans that were dropped because the outbox was full, or that a backend refused.",
            f"{total('spantail_outbox_dropped_spans_total')} + ({or_zero(total(EXPORTED, '', REFUSED))})",
            steps="alarm",
            width=3,
        ),
        number(
            "Errors",
            "What went wrong in the chosen time, all kinds.",
            or_zero(count(ERRORS)),
            steps="any",
            width=3,
        ),
        rows(
            "Instances",
            "Each spantail: its version, since when its totals count, when it was started, when it last committed, how"
            " many files it follows, and what it uses.",
            "instance, version",
            [
                Column("", f"max by (instance, version) ({pick('spantail_build_info')})"),
                Column(
                    "Totals since", f"time() - {_by('spantail_state_created_timestamp_seconds')}", SECONDS
                ),
                Column("Up for", f"time() - {_by('process_start_time_seconds')}", SECONDS),
                Column("Last commit", f"time() - {_by('spantail_last_commit_timestamp_seconds')}", SECONDS),
                Column("Files", _by("spantail_files_followed")),
                Column("Lag", _by("spantail_lag_seconds"), SECONDS, steps="lag"),
                Column("Waiting", _by("spantail_outbox_spans")),
                Column("Memory", _by("process_resident_memory_bytes"), BYTES),
                Column(
                    "CPU",
                    f"max by (instance) (rate({pick('process_cpu_seconds_total')}[$__rate_interval]))",
                    SHARE,
                ),
            ],
            sort="Memory",
            height=7,
        ),
    ]


def _by(metric: str) -> str:
    return f"max by (instance) ({pick(metric)})"


def _reading() -> list[Panel]:
    return [
        series(
            "Records per minute",
            "Records taken from session files per minute, by agent and what became of them. Bad ones are counted,"
            " named in the log once, and passed over.",
            [Query(rate(RECORDS, "agent, result", seconds=60), "{{agent}} {{result}}")],
            COUNT,
            stacked=True,
            words=RESULTS[1:2],
        ),
        series(
            "Bytes read per second",
            "Bytes read from session files per second, by instance.",
            [Query(rate("spantail_read_bytes_total", "instance"), "{{instance}}")],
            "Bps",
        ),
        series(
            "Lag",
            "Age of the oldest byte that was seen and is not committed, by instance.",
            [Query(_by("spantail_lag_seconds"), "{{instance}}")],
            SECONDS,
            steps="lag",
            width=8,
        ),
        series(
            "Since the last commit",
            "Time since the last commit, by instance. It rises while nothing is written anywhere; together with a lag it"
            " means trouble.",
            [Query(f"time() - {_by('spantail_last_commit_timestamp_seconds')}", "{{instance}}")],
            SECONDS,
            width=8,
        ),
        series(
            "Files followed",
            "Session files that are followed, by instance.",
            [Query(_by("spantail_files_followed"), "{{instance}}")],
            width=8,
        ),
    ]


def _delivering() -> list[Panel]:
    return [
        series(
            "Spans sent per minute",
            "Spans per minute by the backend's answer.",
            [Query(or_none(rate(EXPORTED, "result", seconds=60), "result"), "{{result}}")],
            COUNT,
            stacked=True,
            words=RESULTS[2:],
        ),
        series(
            "Outbox",
            "Spans that no backend has acknowledged yet, by instance. They wait on disk and leave in order when the"
            " backend is back.",
            [Query(_by("spantail_outbox_spans"), "{{instance}}")],
        ),
        series(
            "Size of the outbox",
            "By instance. Past 1 GiB (unless configured otherwise) the oldest spans are dropped.",
            [Query(_by("spantail_outbox_bytes"), "{{instance}}")],
            BYTES,
            width=8,
        ),
        series(
            "Oldest span waiting",
            "How long the oldest batch of the outbox has been waiting, by instance; zero when nothing waits.",
            [Query(f"max by (instance) {WAITING}", "{{instance}}")],
            SECONDS,
            steps="waiting",
            width=8,
        ),
        series(
            "Spans dropped per minute",
            "Spans per minute that were dropped because the outbox was full, by instance.",
            [Query(rate("spantail_outbox_dropped_spans_total", "instance", seconds=60), "{{instance}}")],
            COUNT,
            width=8,
        ),
    ]


def _faults() -> list[Panel]:
    agents = '{__name__=~"coding_agent_.+", job=~"$job", instance=~"$instance", agent=~"$agent"'
    return [
        series(
            "Errors per minute",
            "What went wrong, per minute and kind; the log says more.",
            [Query(or_none(rate(ERRORS, "kind", seconds=60), "kind"), "{{kind}}")],
            COUNT,
            bars=True,
            stacked=True,
            width=8,
        ),
        series(
            "Late results per minute",
            "Results per minute that came after their call had been closed without them, by agent. They become spans of"
            " their own and are not counted again.",
            [Query(or_none(rate("spantail_late_records_total", "agent", seconds=60), "agent"), "{{agent}}")],
            COUNT,
            bars=True,
            stacked=True,
            width=8,
            links=[TRACES_OF_SERIES],
        ),
        series(
            "Incomplete usage per minute",
            "Model calls per minute of whose usage the session file holds only a part, by agent.",
            [
                Query(
                    or_none(rate("coding_agent_incomplete_usage_total", "agent", seconds=60), "agent"),
                    "{{agent}}",
                )
            ],
            COUNT,
            bars=True,
            stacked=True,
            width=8,
            links=[TRACES_OF_SERIES],
        ),
        bars(
            "Label values shown as other",
            "How often in the chosen time a value was not shown because its label had too many, by label.",
            Query(or_none(count("spantail_label_overflow_total", "label"), "label"), "{{label}}"),
            steps="any",
        ),
        bars(
            "Series by project",
            "The ten projects with the most series now: what they cost Prometheus.",
            Query(
                f'topk(10, count by (project) ({agents}, project=~"$project", project!=""}}))', "{{project}}"
            ),
        ),
        bars(
            "Series by model",
            "The ten models with the most series now.",
            Query(f'topk(10, count by (model) ({agents}, model=~"$model", model!=""}}))', "{{model}}"),
        ),
    ]


def _resources() -> list[Panel]:
    return [
        series(
            "Memory",
            "Resident memory, by instance.",
            [Query(_by("process_resident_memory_bytes"), "{{instance}}")],
            BYTES,
            width=8,
        ),
        series(
            "CPU",
            "Part of one core, by instance.",
            [Query(rate("process_cpu_seconds_total", "instance"), "{{instance}}")],
            SHARE,
            width=8,
        ),
        series(
            "Open files",
            "File descriptors in use, and how many there may be.",
            [
                Query(_by("process_open_fds"), "{{instance}}"),
                Query(f"min({pick('process_max_fds')})", "limit"),
            ],
            COUNT,
            width=8,
        ),
        series(
            "Scrapes",
            "How long Prometheus takes to read the page of each instance.",
            [Query(_by("scrape_duration_seconds"), "{{instance}}")],
            SECONDS,
        ),
        series(
            "Samples per scrape",
            "How many samples the page of each instance has.",
            [Query(_by("scrape_samples_scraped"), "{{instance}}")],
            COUNT,
        ),
    ]

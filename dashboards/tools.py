"""Tools: which are called, which fail and how, which are slow, which are called again and again; and the model's side of it."""

from __future__ import annotations

from typing import Any

from frame import framed
from links import CALLS_OF_SERIES, ERRORS_OF_SERIES, TRACES_OF_ROW, TRACES_OF_SERIES, of_row, of_series
from panels import (
    COUNT,
    FAULTS,
    SECONDS,
    SHARE,
    STATUSES,
    Column,
    Panel,
    Query,
    bars,
    number,
    rows,
    series,
    spread,
)
from queries import RANGE, age, count, largest, now, or_none, or_zero, pick, quantile, rate, ratio, total

CALLS = "coding_agent_tool_calls_total"
ERRORS = "coding_agent_tool_errors_total"
TIME = "coding_agent_tool_duration_seconds"
REPEATED = "coding_agent_repeated_tool_calls_total"
MODELS = "coding_agent_model_calls_total"
FAILED = 'status="error"'
NOT_BY_PROJECT = " Durations are not kept by project."


def tools() -> dict[str, Any]:
    return framed(
        "spantail-tools",
        "Coding agents / Tools",
        "Tool calls of coding agents: how many, which fail and why, how long they take, which go round in circles.",
        [
            ("Tool calls", _totals()),
            ("Each tool", _each()),
            ("What fails", _failing()),
            ("What is slow", _slow()),
            ("Open and repeated", _stuck()),
            ("Model calls and providers", _models()),
        ],
    )


def _totals() -> list[Panel]:
    return [
        number("Tool calls", "Tool calls that were settled, subagents' included.", count(CALLS), width=3),
        number(
            "Failed",
            "Share of the tool calls that ended with an error, time-outs and denials included.",
            ratio(total(CALLS, "", FAILED), total(CALLS)),
            SHARE,
            steps="errors",
            none="-",
            width=3,
        ),
        number(
            "Duration p50",
            "Half of the tool calls took no longer than this." + NOT_BY_PROJECT,
            quantile(0.5, TIME, over=RANGE),
            SECONDS,
            none="-",
            width=3,
        ),
        number(
            "Duration p95",
            "95 of 100 tool calls took no longer than this." + NOT_BY_PROJECT,
            quantile(0.95, TIME, over=RANGE),
            SECONDS,
            none="-",
            width=3,
        ),
        number(
            "Timed out",
            "Tool calls that ran into a time limit.",
            or_zero(count(ERRORS, "", 'error_type="timeout"')),
            width=3,
        ),
        number(
            "Denied",
            "Tool calls that a person, a rule or a hook did not allow.",
            or_zero(count(ERRORS, "", 'error_type="denied"')),
            width=3,
        ),
        number(
            "Interrupted",
            "Tool calls that a person stopped, or that died with their agent.",
            or_zero(count(ERRORS, "", 'error_type="interrupted"')),
            width=3,
        ),
        number(
            "Repeated",
            "Tool calls with the same input as a recent call of the same session.",
            count(REPEATED),
            steps="any",
            width=3,
        ),
    ]


def _each() -> list[Panel]:
    by = "agent, tool"
    failed = [
        of_row(
            "Failed calls of ${__data.fields.tool} in Jaeger",
            gen_ai__tool__name="@tool",
            coding_agent__tool__status="error",
        )
    ]
    return [
        rows(
            "Tools",
            "Each tool of each agent in the chosen time. A click on the tool leads to its calls in Jaeger."
            + NOT_BY_PROJECT,
            by,
            [
                Column("Calls", count(CALLS, by)),
                Column("Failed", count(CALLS, by, FAILED), steps="any", links=failed),
                Column(
                    "Error rate", ratio(total(CALLS, by, FAILED), total(CALLS, by)), SHARE, steps="errors"
                ),
                Column("Never ended", count(CALLS, by, 'status="pending"'), steps="any"),
                Column("p50", quantile(0.5, TIME, by, RANGE), SECONDS),
                Column("p95", quantile(0.95, TIME, by, RANGE), SECONDS),
                Column("p99", quantile(0.99, TIME, by, RANGE), SECONDS),
                Column("Mean", ratio(total(f"{TIME}_sum", by), total(f"{TIME}_count", by)), SECONDS),
                Column("All time", total(f"{TIME}_sum", by), SECONDS),
            ],
            sort="Calls",
            some="Calls",
            height=11,
            links={
                "agent": [TRACES_OF_ROW],
                "tool": [of_row("Calls of ${__data.fields.tool} in Jaeger", gen_ai__tool__name="@tool")],
            },
        ),
        series(
            "Tool calls per minute",
            "The ten tools that were called most in the chosen time.",
            [Query(largest(10, "tool", rate(CALLS, "tool", seconds=60), CALLS), "{{tool}}")],
            COUNT,
            stacked=True,
        ),
        series(
            "Tool calls per minute by status",
            "Tool calls per minute by agent and status. Pending: closed without an end of its own.",
            [Query(rate(CALLS, "agent, status", seconds=60) + " > 0", "{{agent}} {{status}}")],
            COUNT,
            stacked=True,
            bars=True,
            words=STATUSES,
            links=[
                of_series(
                    "Such calls of ${__field.labels.agent} in Jaeger", coding_agent__tool__status="@status"
                )
            ],
        ),
    ]


def _failing() -> list[Panel]:
    to_tool = of_series(
        "Failed calls of ${__field.labels.tool} in Jaeger",
        gen_ai__tool__name="@tool",
        coding_agent__tool__status="error",
    )
    share = ratio(rate(CALLS, "tool", FAILED), rate(CALLS, "tool"))
    return [
        bars(
            "Most failing tools",
            "The ten tools with the most failed calls in the chosen time.",
            Query(f"topk(10, {count(CALLS, 'agent, tool', FAILED)} > 0)", "{{agent}} {{tool}}"),
            links=[to_tool],
        ),
        bars(
            "Highest error rates",
            "The ten tools of which the largest share of calls failed, of those called at least five times.",
            Query(
                f"topk(10, {total(CALLS, 'agent, tool', FAILED)} / ({total(CALLS, 'agent, tool')} >= 5))",
                "{{agent}} {{tool}}",
            ),
            SHARE,
            steps="errors",
            top=1,
            links=[to_tool],
        ),
        bars(
            "Kinds of errors",
            "Calls that failed or were interrupted in the chosen time, by agent and kind.",
            Query(f"topk(10, {count(ERRORS, 'agent, error_type')} > 0)", "{{agent}} {{error_type}}"),
            links=[ERRORS_OF_SERIES],
        ),
        series(
            "Errors per minute",
            "By agent and kind of error. Exemplars lead to the trace, a click to a search in Jaeger.",
            [
                Query(
                    or_none(rate(ERRORS, "agent, error_type", seconds=60), "agent"),
                    "{{agent}} {{error_type}}",
                    exemplars=True,
                )
            ],
            COUNT,
            stacked=True,
            bars=True,
            words=FAULTS,
            links=[ERRORS_OF_SERIES],
        ),
        series(
            "Error rate",
            "Share of the calls that failed, for the ten tools with the most failures in the chosen time.",
            [Query(largest(10, "tool", share, CALLS, FAILED), "{{tool}}")],
            SHARE,
            steps="errors",
        ),
        rows(
            "Time-outs, denials, interruptions",
            "Calls in the chosen time that did not end by themselves, by agent, project and tool.",
            "agent, project, tool, error_type",
            [
                Column(
                    "Calls",
                    count(
                        ERRORS, "agent, project, tool, error_type", 'error_type=~"timeout|denied|interrupted"'
                    )
                    + " > 0",
                )
            ],
            sort="Calls",
            height=8,
            links={
                "error_type": [
                    of_row(
                        "${__data.fields.error_type} in Jaeger",
                        error__type="@error_type",
                        gen_ai__tool__name="@tool",
                    )
                ]
            },
        ),
    ]


def _slow() -> list[Panel]:
    by = "agent, tool"
    return [
        series(
            "How long calls take",
            "All tools together. Exemplars lead to the trace of such a call." + NOT_BY_PROJECT,
            [
                Query(quantile(q, TIME), name, exemplars=q == 0.99)
                for q, name in ((0.5, "p50"), (0.95, "p95"), (0.99, "p99"))
            ],
            SECONDS,
        ),
        spread(
            "Durations",
            "How many calls took how long. Exemplars lead to the trace of such a call." + NOT_BY_PROJECT,
            f"sum by (le) (increase({pick(TIME + '_bucket')}[$__rate_interval]))",
        ),
        series(
            "p95 of each tool",
            "The ten tools that took the most time in the chosen time." + NOT_BY_PROJECT,
            [
                Query(
                    largest(10, "tool", quantile(0.95, TIME, "tool"), f"{TIME}_sum"),
                    "{{tool}}",
                    exemplars=True,
                )
            ],
            SECONDS,
        ),
        bars(
            "Slowest tools",
            "The ten tools with the highest p95 in the chosen time." + NOT_BY_PROJECT,
            Query(f"topk(10, {quantile(0.95, TIME, by, RANGE)})", "{{agent}} {{tool}}"),
            SECONDS,
            width=6,
            links=[CALLS_OF_SERIES],
        ),
        bars(
            "Most time in sum",
            "The ten tools that took the most time in sum in the chosen time." + NOT_BY_PROJECT,
            Query(f"topk(10, {total(TIME + '_sum', by)} > 0)", "{{agent}} {{tool}}"),
            SECONDS,
            width=6,
            links=[CALLS_OF_SERIES],
        ),
    ]


def _stuck() -> list[Panel]:
    return [
        bars(
            "Open now",
            "Tool calls that have not ended yet.",
            Query(now("coding_agent_open_tool_calls", "agent, tool"), "{{agent}} {{tool}}"),
            links=[CALLS_OF_SERIES],
        ),
        series(
            "Longest open call",
            "How long the oldest open tool call of each agent has been running. After 15 minutes it is taken to be stuck.",
            [Query(age("coding_agent_oldest_open_tool_call_start_timestamp_seconds", "agent"), "{{agent}}")],
            SECONDS,
            steps="tool",
            width=8,
            links=[TRACES_OF_SERIES],
        ),
        series(
            "Repeated calls per minute",
            "Calls per minute with the same input as a recent call of the same session, by agent and tool: a line that"
            " stays up is an agent that goes round in circles.",
            [Query(or_none(rate(REPEATED, "agent, tool", seconds=60), "agent"), "{{agent}} {{tool}}")],
            COUNT,
            width=8,
            links=[CALLS_OF_SERIES],
        ),
    ]


def _models() -> list[Panel]:
    failing = ratio(rate(MODELS, "agent, model", FAILED), rate(MODELS, "agent, model"))
    used = f"max by (agent, window) ({pick('coding_agent_rate_limit_used_ratio')})"
    return [
        series(
            "Model calls per minute",
            "Model calls per minute by status.",
            [Query(rate(MODELS, "status", seconds=60), "{{status}}")],
            COUNT,
            stacked=True,
            bars=True,
            words=STATUSES,
        ),
        series(
            "Model calls that fail",
            "Share of each model's calls that ended with an error; models whose calls all succeed are left out.",
            [
                Query(
                    or_none(f"{failing} > 0", "agent"),
                    "{{agent}} {{model}}",
                )
            ],
            SHARE,
            steps="errors",
            links=[of_series("Calls of ${__field.labels.model} in Jaeger", gen_ai__request__model="@model")],
        ),
        series(
            "Provider errors per minute",
            "What the providers answered instead of a reply, per minute, retried ones included. Not by project or model.",
            [
                Query(
                    or_none(
                        rate("coding_agent_provider_errors_total", "agent, error_type", seconds=60), "agent"
                    ),
                    "{{agent}} {{error_type}}",
                    exemplars=True,
                )
            ],
            COUNT,
            stacked=True,
            bars=True,
            links=[ERRORS_OF_SERIES],
        ),
        bars(
            "Rate limits",
            "Used part of the providers' rate limits, as the agents last noted it, by window.",
            Query(used, "{{agent}} {{window}}"),
            SHARE,
            steps="full",
            top=1,
            width=6,
        ),
        number(
            "Tool calls per model call",
            "How many tool calls follow from a model call. All models together.",
            ratio(total(CALLS), or_zero(total(MODELS))),
            COUNT,
            none="-",
            decimals=2,
            width=6,
            height=8,
        ),
    ]

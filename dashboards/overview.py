"""Overview: what runs now, what was done, what failed, what it cost; from here the others are one click away."""

from __future__ import annotations

from typing import Any

from frame import framed
from links import CALLS_OF_SERIES, ERRORS_OF_SERIES, TRACES_OF_ROW, TRACES_OF_SERIES, board, of_row, of_series
from panels import (
    COUNT,
    SECONDS,
    SHARE,
    STATUSES,
    TYPES,
    USD,
    Column,
    Panel,
    Query,
    bars,
    number,
    rows,
    series,
)
from queries import CONTEXT_USED, RANGE, age, count, now, or_none, or_zero, pick, quantile, rate, ratio, total

TURNS = "coding_agent_turns_total"
TOOLS = "coding_agent_tool_calls_total"
MODELS = "coding_agent_model_calls_total"
TOKENS = "coding_agent_tokens_total"
COST = "coding_agent_cost_usd_total"
BUDGET = (
    f"max by (budget, period) ({pick('coding_agent_budget_spent_usd')}"
    f" / {pick('coding_agent_budget_limit_usd')})"
)
FAILED = 'status="error"'
TO_COST = board("Cost and budgets", "spantail-cost")
TO_TOOLS = board("Tools", "spantail-tools")
TO_TURNS = board("Turns and sessions", "spantail-turns")
TO_ITSELF = board("spantail itself", "spantail-itself")


def overview() -> dict[str, Any]:
    return framed(
        "spantail-overview",
        "Coding agents / Overview",
        "What coding agents are doing now, what they did, what failed and what it cost.",
        [
            ("Now", _now()),
            ("In the chosen time", _totals()),
            ("Over time", _over_time()),
            ("Agents, projects, budgets", _who()),
        ],
    )


def _now() -> list[Panel]:
    tool_start = "coding_agent_oldest_open_tool_call_start_timestamp_seconds"
    turn_start = "coding_agent_oldest_open_turn_start_timestamp_seconds"
    return [
        number(
            "Active sessions",
            "Sessions with an open turn: an agent is at work or waits for a person.",
            or_zero(now("coding_agent_active_sessions")),
            links=[TO_TURNS],
        ),
        number(
            "Open tool calls",
            "Tool calls that have not ended yet, subagents' included.",
            or_zero(now("coding_agent_open_tool_calls")),
            links=[TO_TOOLS],
        ),
        number(
            "Longest open tool call",
            "How long the oldest open tool call has been running. After 15 minutes it is taken to be stuck: a command"
            " that waits for input, or a permission nobody gives.",
            or_zero(f"max({age(tool_start)})"),
            SECONDS,
            steps="tool",
            links=[TO_TOOLS],
        ),
        number(
            "Longest open turn",
            "How long the oldest open turn has been running. A turn without any record for 30 minutes (2 hours with an"
            " open call) is closed as pending.",
            or_zero(f"max({age(turn_start)})"),
            SECONDS,
            steps="turn",
            links=[TO_TURNS],
        ),
        number(
            "Fullest context",
            "The open session that is nearest to the limit of its model's context. Only models whose limit is known.",
            f"max({CONTEXT_USED})",
            SHARE,
            steps="full",
            none="-",
            links=[TO_TURNS],
        ),
        number(
            "spantail down",
            "Instances of spantail that Prometheus could not scrape. What they follow is not lost: it is read when they"
            " are back.",
            or_zero(f"count({pick('up')} == 0)"),
            steps="alarm",
            links=[TO_ITSELF],
        ),
        series(
            "Active sessions",
            "Sessions with an open turn, by agent.",
            [Query(now("coding_agent_active_sessions", "agent"), "{{agent}}")],
            stacked=True,
            width=8,
            links=[TRACES_OF_SERIES],
        ),
        bars(
            "Open tool calls",
            "Which tools are running now.",
            Query(now("coding_agent_open_tool_calls", "agent, tool"), "{{agent}} {{tool}}"),
            links=[CALLS_OF_SERIES],
        ),
        series(
            "Stuck turns",
            "How long the oldest open turn and tool call of each agent have been open. A line that keeps rising is a"
            " turn that waits: for a tool, a person, or a process that is gone.",
            [
                Query(age(turn_start, "agent"), "{{agent}} turn"),
                Query(age(tool_start, "agent"), "{{agent}} tool call"),
            ],
            SECONDS,
            steps="turn",
            width=8,
            links=[TRACES_OF_SERIES],
        ),
    ]


def _totals() -> list[Panel]:
    cached = total(TOKENS, "", 'type="cache_read"')
    taken = total(TOKENS, "", 'type!="output"')
    return [
        number("Turns", "Turns that ended, whatever their status.", count(TURNS), links=[TO_TURNS]),
        number(
            "Turns that failed",
            "Share of the turns that ended with an error. Interrupted turns are not failures.",
            ratio(total(TURNS, "", FAILED), total(TURNS)),
            SHARE,
            steps="errors",
            none="-",
            links=[TO_TURNS],
        ),
        number(
            "Tool calls", "Tool calls that were settled, subagents' included.", count(TOOLS), links=[TO_TOOLS]
        ),
        number(
            "Tool calls that failed",
            "Share of the tool calls that ended with an error, time-outs and denials included.",
            ratio(total(TOOLS, "", FAILED), total(TOOLS)),
            SHARE,
            steps="errors",
            none="-",
            links=[TO_TOOLS],
        ),
        number(
            "Tokens",
            "Tokens of all kinds: input, cache reads and writes, output.",
            count(TOKENS),
            links=[TO_COST],
        ),
        number(
            "Cost",
            "What the agents report, else what usage costs at list price. Models without a known price are not in it.",
            total(COST),
            USD,
            links=[TO_COST],
        ),
        number(
            "Cost today",
            "Cost since midnight, in the time zone of the dashboard.",
            total(COST),
            USD,
            since="now/d",
            links=[TO_COST],
        ),
        number(
            "Cost per turn",
            "Cost in the chosen time for each turn that ended in it.",
            ratio(total(COST), total(TURNS)),
            USD,
            none="-",
            links=[TO_COST],
        ),
        number(
            "Input from cache",
            "Share of the input tokens that the provider read from its cache, which costs a fraction.",
            ratio(cached, taken),
            SHARE,
            none="-",
            links=[TO_COST],
        ),
        number(
            "Sessions",
            "Runs of sessions that began; a resumed session has several.",
            count("coding_agent_sessions_started_total"),
            links=[TO_TURNS],
        ),
        number(
            "Provider errors",
            "Errors the model's provider answered with, retried ones included. Not by project or model.",
            count("coding_agent_provider_errors_total"),
            steps="any",
            links=[TO_TOOLS],
        ),
        number(
            "Most used budget",
            "The budget of which the largest share is spent in its current period. Budgets have filters of their own:"
            " only job and instance apply.",
            f"max({BUDGET})",
            SHARE,
            steps="used",
            none="-",
            links=[TO_COST],
        ),
    ]


def _over_time() -> list[Panel]:
    to_turns = of_series("Turns of ${__field.labels.agent} in Jaeger", coding_agent__turn__status="@status")
    return [
        series(
            "Turns per minute",
            "Turns per minute by agent and status. A click leads to such turns in Jaeger.",
            [Query(rate(TURNS, "agent, status", seconds=60) + " > 0", "{{agent}} {{status}}")],
            COUNT,
            stacked=True,
            bars=True,
            words=STATUSES,
            links=[to_turns],
        ),
        series(
            "Cost per hour",
            "How fast money is spent, by agent: the rate at each moment, in US dollars per hour.",
            [Query(rate(COST, "agent", seconds=3600), "{{agent}}")],
            USD,
            stacked=True,
            links=[TRACES_OF_SERIES],
        ),
        series(
            "What fails",
            "Share of the turns, model calls and tool calls that ended with an error. Only model calls are filtered by"
            " model.",
            [
                Query(ratio(rate(TURNS, "", FAILED), rate(TURNS)), "turns"),
                Query(ratio(rate(MODELS, "", FAILED), rate(MODELS)), "model calls"),
                Query(ratio(rate(TOOLS, "", FAILED), rate(TOOLS)), "tool calls"),
            ],
            SHARE,
            steps="errors",
        ),
        series(
            "Tokens per minute",
            "By kind; the kinds are disjoint, and output includes reasoning.",
            [Query(rate(TOKENS, "type", seconds=60), "{{type}}")],
            COUNT,
            stacked=True,
            words=TYPES,
        ),
        series(
            "Tool errors per minute",
            "Tool calls per minute that failed or were interrupted, by agent and kind of error. Exemplars lead to the"
            " trace, a click to a search in Jaeger for the agent and the kind of error.",
            [
                Query(
                    or_none(rate("coding_agent_tool_errors_total", "agent, error_type", seconds=60), "agent"),
                    "{{agent}} {{error_type}}",
                    exemplars=True,
                )
            ],
            COUNT,
            stacked=True,
            bars=True,
            links=[ERRORS_OF_SERIES],
        ),
        series(
            "Provider errors per minute",
            "What the providers answered instead of a reply, per minute, by agent and kind. Not by project or model.",
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
    ]


def _who() -> list[Panel]:
    return [
        _table("Agents", "agent", links={"agent": [TRACES_OF_ROW]}),
        _table("Projects", "project"),
        bars(
            "Budgets",
            "Share of each budget that is spent in its current period; the worst instance of spantail where several"
            " have it. Budgets have filters of their own: only job and instance apply.",
            Query(BUDGET, "{{budget}} ({{period}})"),
            SHARE,
            steps="used",
            top=1,
            width=24,
            height=6,
        ),
    ]


def _table(title: str, by: str, links: Any = None) -> Panel:
    slow = quantile(0.95, "coding_agent_turn_duration_seconds", by, RANGE)
    failed = [of_row("Failed turns in Jaeger", coding_agent__turn__status="error")] if by == "agent" else []
    return rows(
        title,
        f"What each {by} did in the chosen time, and what is open now.",
        by,
        [
            Column("Active now", now("coding_agent_active_sessions", by)),
            Column("Sessions", count("coding_agent_sessions_started_total", by)),
            Column("Turns", count(TURNS, by)),
            Column("Failed turns", count(TURNS, by, FAILED), steps="any", links=failed),
            Column("Turn p95", slow, SECONDS),
            Column("Tool calls", count(TOOLS, by)),
            Column("Tool errors", ratio(total(TOOLS, by, FAILED), total(TOOLS, by)), SHARE, steps="errors"),
            Column("Tokens", total(TOKENS, by)),
            Column("Cost", total(COST, by), USD),
        ],
        sort="Cost",
        links=links,
    )

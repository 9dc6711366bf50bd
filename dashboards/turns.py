"""Turns and sessions: how long they take and where the time goes, how they end, how contexts grow."""

from __future__ import annotations

from typing import Any

from frame import framed
from links import TRACES_OF_ROW, TRACES_OF_SERIES, of_row, of_series
from panels import (
    COUNT,
    EXITS,
    PHASES,
    SECONDS,
    SHARE,
    STATUSES,
    Column,
    Panel,
    Query,
    bars,
    dial,
    number,
    parts,
    rows,
    series,
    spread,
)
from queries import (
    CONTEXT,
    CONTEXT_USED,
    RANGE,
    age,
    count,
    named,
    now,
    or_none,
    pick,
    quantile,
    rate,
    ratio,
    total,
)

TURNS = "coding_agent_turns_total"
TIME = "coding_agent_turn_duration_seconds"
PHASE = "coding_agent_turn_phase_seconds_total"
STARTED = "coding_agent_sessions_started_total"
EXIT = "coding_agent_session_exits_total"
COMPACTIONS = "coding_agent_compactions_total"
TOKENS = "coding_agent_tokens_total"
QUANTILES = ((0.5, "p50"), (0.95, "p95"), (0.99, "p99"))


def turns() -> dict[str, Any]:
    return framed(
        "spantail-turns",
        "Coding agents / Turns and sessions",
        "Turns of coding agents: how long they take, where the time goes, how they and their sessions end.",
        [
            ("Turns and sessions", _totals()),
            ("How long turns take", _durations()),
            ("Where the time goes", _phases()),
            ("How turns and sessions end", _ends()),
            ("Context and limits", _context()),
            ("What a turn takes", _per_turn()),
        ],
    )


def _totals() -> list[Panel]:
    return [
        number("Turns", "Turns that ended in the chosen time.", count(TURNS), width=3),
        number(
            "Failed",
            "Share of the turns that ended with an error.",
            ratio(total(TURNS, "", 'status="error"'), total(TURNS)),
            SHARE,
            steps="errors",
            none="-",
            width=3,
        ),
        number(
            "Interrupted",
            "Share of the turns that a person stopped, or that died with their agent.",
            ratio(total(TURNS, "", 'status="interrupted"'), total(TURNS)),
            SHARE,
            none="-",
            width=3,
        ),
        number(
            "Duration p50",
            "Half of the turns took no longer than this.",
            quantile(0.5, TIME, over=RANGE),
            SECONDS,
            none="-",
            width=3,
        ),
        number(
            "Duration p95",
            "95 of 100 turns took no longer than this.",
            quantile(0.95, TIME, over=RANGE),
            SECONDS,
            none="-",
            width=3,
        ),
        number(
            "Sessions", "Runs of sessions that began; a resumed session has several.", count(STARTED), width=3
        ),
        number(
            "Stopped by a limit",
            "Runs of sessions that ended because a limit of turns or money was reached.",
            count(EXIT, "", 'exit_status=~"max_turns|max_budget"'),
            steps="any",
            width=3,
        ),
        number(
            "Compactions",
            "How often a context was full and was summarised.",
            count(COMPACTIONS),
            steps="any",
            width=3,
        ),
    ]


def _durations() -> list[Panel]:
    to_agent = of_series("Turns of ${__field.labels.agent} in Jaeger", gen_ai__operation__name="invoke_agent")
    return [
        series(
            "Duration of turns",
            "From the prompt to the end of the turn. Exemplars lead to the trace of such a turn.",
            [Query(quantile(q, TIME), name, exemplars=q == 0.99) for q, name in QUANTILES],
            SECONDS,
        ),
        spread(
            "Durations",
            "How many turns took how long. Exemplars lead to the trace of such a turn.",
            f"sum by (le) (increase({pick(TIME + '_bucket')}[$__rate_interval]))",
        ),
        series(
            "p95 by agent",
            "95 of 100 turns of the agent took no longer than this.",
            [Query(quantile(0.95, TIME, "agent"), "{{agent}}", exemplars=True)],
            SECONDS,
            links=[to_agent],
        ),
        bars(
            "Slowest projects",
            "p95 of the turns in the chosen time, for the ten slowest projects.",
            Query(
                named(f"topk(10, {quantile(0.95, TIME, 'agent, project', RANGE)})"), "{{agent}} {{project}}"
            ),
            SECONDS,
            width=6,
            links=[to_agent],
        ),
        series(
            "Longest open turn",
            "How long the oldest open turn of each agent has been open.",
            [Query(age("coding_agent_oldest_open_turn_start_timestamp_seconds", "agent"), "{{agent}}")],
            SECONDS,
            steps="turn",
            width=6,
            links=[to_agent],
        ),
    ]


def _phases() -> list[Panel]:
    share = f"{rate(PHASE, 'phase')} / on () group_left () ({rate(PHASE)} > 0)"
    by = "agent"
    whole = total(PHASE, by)
    return [
        series(
            "Where the time of turns goes",
            "Share of the turns' time in which a model worked, tools ran (overlapping calls count once), or neither:"
            " waiting for a person, hooks, the agent itself.",
            [Query(share, "{{phase}}")],
            SHARE,
            stacked=True,
            top=1,
            width=10,
            words=PHASES,
        ),
        parts(
            "Time by phase",
            "Seconds of turns in the chosen time, by what was waited for.",
            Query(total(PHASE, "phase"), "{{phase}}"),
            SECONDS,
            width=6,
            words=PHASES,
        ),
        rows(
            "Time by agent",
            "Where the time of each agent's turns went in the chosen time.",
            by,
            [
                Column("Model", ratio(total(PHASE, by, 'phase="model"'), whole), SHARE),
                Column("Tools", ratio(total(PHASE, by, 'phase="tool"'), whole), SHARE),
                Column("Other", ratio(total(PHASE, by, 'phase="other"'), whole), SHARE),
                Column("All", whole, SECONDS),
            ],
            sort="All",
            width=8,
            height=8,
            links={"agent": [TRACES_OF_ROW]},
        ),
    ]


def _ends() -> list[Panel]:
    return [
        series(
            "Turns per minute by status",
            "Turns per minute by agent and status. Pending: closed by silence, without an end of its own.",
            [Query(rate(TURNS, "agent, status", seconds=60) + " > 0", "{{agent}} {{status}}")],
            COUNT,
            stacked=True,
            bars=True,
            words=STATUSES,
            links=[
                of_series(
                    "Such turns of ${__field.labels.agent} in Jaeger", coding_agent__turn__status="@status"
                )
            ],
        ),
        series(
            "Session exits per minute",
            "Runs of sessions per minute that ended, by agent and exit status.",
            [Query(rate(EXIT, "agent, exit_status", seconds=60) + " > 0", "{{agent}} {{exit_status}}")],
            COUNT,
            stacked=True,
            bars=True,
            words=EXITS,
            links=[
                of_series(
                    "Such turns of ${__field.labels.agent} in Jaeger",
                    coding_agent__exit_status="@exit_status",
                )
            ],
        ),
        parts(
            "Exit statuses",
            "How runs of sessions ended in the chosen time.",
            Query(count(EXIT, "exit_status"), "{{exit_status}}"),
            words=EXITS,
        ),
        rows(
            "Sessions that did not succeed",
            "By agent, project and exit status in the chosen time. A click leads to such turns in Jaeger.",
            "agent, project, exit_status",
            [
                Column(
                    "Runs",
                    count(EXIT, "agent, project, exit_status", 'exit_status!="success"') + " > 0",
                )
            ],
            sort="Runs",
            width=8,
            height=8,
            links={
                "exit_status": [
                    of_row("${__data.fields.exit_status} in Jaeger", coding_agent__exit_status="@exit_status")
                ]
            },
        ),
        bars(
            "Interruptions",
            "Turns in the chosen time that a person stopped, or that died with their agent.",
            Query(count(TURNS, "agent", 'status="interrupted"') + " > 0", "{{agent}}"),
            links=[
                of_series("Interrupted turns of ${__field.labels.agent} in Jaeger", error__type="interrupted")
            ],
        ),
    ]


def _context() -> list[Panel]:
    return [
        series(
            "Context of open sessions",
            "Input of the last model call: the largest of the open sessions of each agent, project and model.",
            [Query(CONTEXT, "{{agent}} {{project}} {{model}}")],
            COUNT,
            links=[TRACES_OF_SERIES],
        ),
        dial(
            "Fullest contexts",
            "How near the open sessions are to the limit of their model's context; the six fullest. Only models whose"
            " limit is known.",
            Query(f"topk(6, {CONTEXT_USED})", "{{agent}} {{project}}"),
            steps="full",
            width=6,
        ),
        bars(
            "Rate limits",
            "Used part of the providers' rate limits, as the agents last noted it, by window.",
            Query(
                f"max by (agent, window) ({pick('coding_agent_rate_limit_used_ratio')})",
                "{{agent}} {{window}}",
            ),
            SHARE,
            steps="full",
            top=1,
            width=6,
            links=[TRACES_OF_SERIES],
        ),
        series(
            "Compactions per minute",
            "How often per minute a context was full and was summarised, by agent.",
            [Query(or_none(rate(COMPACTIONS, "agent", seconds=60), "agent"), "{{agent}}")],
            COUNT,
            bars=True,
            stacked=True,
            links=[TRACES_OF_SERIES],
        ),
        series(
            "Input per model call",
            "Tokens of input, cached or not, for each model call, by agent: contexts that grow cost more with every call.",
            [
                Query(
                    ratio(
                        rate(TOKENS, "agent", 'type!="output"'),
                        rate("coding_agent_model_calls_total", "agent"),
                    ),
                    "{{agent}}",
                )
            ],
            COUNT,
            links=[TRACES_OF_SERIES],
        ),
    ]


def _per_turn() -> list[Panel]:
    by = "agent"
    return [
        series(
            "Active sessions",
            "Sessions with an open turn, by agent.",
            [Query(now("coding_agent_active_sessions", by), "{{agent}}")],
            stacked=True,
            links=[TRACES_OF_SERIES],
        ),
        rows(
            "What a turn takes",
            "Averages over the turns of the chosen time, by agent. Model calls and tokens are filtered by model, turns"
            " and tool calls are not.",
            by,
            [
                Column("Turns", count(TURNS, by)),
                Column("Turns per session", ratio(total(TURNS, by), total(STARTED, by)), decimals=1),
                Column(
                    "Model calls",
                    ratio(total("coding_agent_model_calls_total", by), total(TURNS, by)),
                    decimals=1,
                ),
                Column(
                    "Tool calls",
                    ratio(total("coding_agent_tool_calls_total", by), total(TURNS, by)),
                    decimals=1,
                ),
                Column("Tokens", ratio(total(TOKENS, by), total(TURNS, by))),
                Column(
                    "Cost", ratio(total("coding_agent_cost_usd_total", by), total(TURNS, by)), "currencyUSD"
                ),
                Column("Mean duration", ratio(total(f"{TIME}_sum", by), total(f"{TIME}_count", by)), SECONDS),
            ],
            sort="Turns",
            width=12,
            height=8,
            links={"agent": [TRACES_OF_ROW]},
        ),
    ]

"""Cost and budgets: who spends what on which model, what is left, and how far the sums can be trusted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from frame import framed
from links import TRACES_OF_ROW, TRACES_OF_SERIES, Link
from panels import (
    COUNT,
    SECONDS,
    SHARE,
    SOURCES,
    TYPES,
    USD,
    Column,
    Panel,
    Query,
    bars,
    number,
    parts,
    rows,
    series,
)
from queries import count, daily, named, or_none, or_zero, pick, rate, ratio, total

COST = "coding_agent_cost_usd_total"
TOKENS = "coding_agent_tokens_total"
UNPRICED = "coding_agent_unpriced_tokens_total"
SPENT = f"sum by (budget, period, instance) ({pick('coding_agent_budget_spent_usd')})"
LIMIT = f"sum by (budget, period, instance) ({pick('coding_agent_budget_limit_usd')})"
START = f"sum by (budget, period, instance) ({pick('coding_agent_budget_period_start_timestamp_seconds')})"
END = f"sum by (budget, period, instance) ({pick('coding_agent_budget_period_end_timestamp_seconds')})"
FORECAST = f"{SPENT} * ({END} - {START}) / (time() - {START} > ({END} - {START}) / 5)"
NO_FILTER = " Budgets have filters of their own: only job and instance apply."


def cost() -> dict[str, Any]:
    return framed(
        "spantail-cost",
        "Coding agents / Cost and budgets",
        "What coding agents cost, by agent, model, project and day; budgets, cache, and what has no price.",
        [
            ("Spent", _spent()),
            ("Budgets", _budgets()),
            ("Where the money goes", _where()),
            ("Tokens and cache", _tokens()),
            ("Can the sums be trusted?", _trust()),
        ],
        since="now-7d",
    )


def _spent() -> list[Panel]:
    turns = "coding_agent_turns_total"
    return [
        number(
            "Cost in the chosen time",
            "Cost in the chosen time: reported by the agent, else computed at list price.",
            total(COST),
            USD,
        ),
        number(
            "Today",
            "Cost since midnight, in the time zone of the dashboard.",
            total(COST),
            USD,
            since="now/d",
        ),
        number("This week", "Cost since the week began.", total(COST), USD, since="now/w"),
        number("This month", "Cost since the month began.", total(COST), USD, since="now/M"),
        number(
            "Cost per turn",
            "Cost in the chosen time for each turn that ended in it.",
            ratio(total(COST), total(turns)),
            USD,
            none="-",
        ),
        number(
            "Cost per session",
            "Cost in the chosen time for each run of a session that began in it.",
            ratio(total(COST), total("coding_agent_sessions_started_total")),
            USD,
            none="-",
        ),
    ]


def _budgets() -> list[Panel]:
    used = f"{SPENT} / {LIMIT}"
    return [
        bars(
            "Budgets used",
            "Share of each budget that is spent in its current period." + NO_FILTER,
            Query(used, "{{budget}} ({{period}}) {{instance}}"),
            SHARE,
            steps="used",
            top=1,
        ),
        bars(
            "Budgets forecast",
            "Share of each budget that will be spent when its period ends, if money is spent on average as fast as in"
            " the period so far. Not shown in the first fifth of a period, as nothing can be said by then."
            + NO_FILTER,
            Query(f"{FORECAST} / {LIMIT}", "{{budget}} ({{period}}) {{instance}}"),
            SHARE,
            steps="used",
            top=1,
        ),
        series(
            "Budgets over time",
            "Share of each budget that was spent; it falls to zero when a new period begins." + NO_FILTER,
            [Query(used, "{{budget}} ({{period}}) {{instance}}")],
            SHARE,
            steps="used",
            width=8,
        ),
        rows(
            "Budgets",
            "Each budget of each spantail: what is spent, what is left, when its period ends and what it will have"
            " cost by then." + NO_FILTER,
            "budget, period, instance",
            [
                Column("Limit", LIMIT, USD),
                Column("Spent", SPENT, USD),
                Column("Left", f"{LIMIT} - {SPENT}", USD),
                Column("Used", used, SHARE, steps="used"),
                Column("Forecast", FORECAST, USD),
                Column("Forecast of the limit", f"{FORECAST} / {LIMIT}", SHARE, steps="used"),
                Column("Period ends in", f"{END} - time()", SECONDS),
            ],
            sort="Used",
            height=7,
        ),
    ]


def _where() -> list[Panel]:
    week = f"sum (rate({pick(COST)}[$__rate_interval] offset 1w)) * 3600"
    return [
        series(
            "Cost per hour",
            "How fast money is spent, by agent: the rate at each moment, in US dollars per hour.",
            [Query(rate(COST, "agent", seconds=3600), "{{agent}}")],
            USD,
            stacked=True,
            links=[TRACES_OF_SERIES],
        ),
        series(
            "Cost per hour against the week before",
            "All agents, now and at the same time seven days earlier; zero where there is no history.",
            [Query(rate(COST, seconds=3600), "now"), Query(or_zero(week), "a week before")],
            USD,
        ),
        _per_day("agent", links=[TRACES_OF_SERIES]),
        _per_day("model"),
        _per_day("project"),
        parts(
            "Agents",
            "Cost in the chosen time by agent.",
            Query(total(COST, "agent"), "{{agent}}"),
            USD,
            width=6,
        ),
        parts(
            "Models",
            "Cost in the chosen time by model.",
            Query(total(COST, "model"), "{{model}}"),
            USD,
            width=6,
        ),
        bars(
            "Projects",
            "The ten projects that cost most in the chosen time.",
            Query(named(f"topk(10, {total(COST, 'project')} > 0)"), "{{project}}"),
            USD,
            width=6,
        ),
        bars(
            "Users",
            "The ten users who spent most in the chosen time. With one home there is one user, without a name.",
            Query(f"topk(10, {total(COST, 'user')} > 0)", "user {{user}}"),
            USD,
            width=6,
        ),
        rows(
            "Agents, projects and models",
            "The fifty most expensive combinations in the chosen time.",
            "agent, project, model",
            [Column("Cost", f"topk(50, {total(COST, 'agent, project, model')})", USD, bar=True)],
            sort="Cost",
            links={"agent": [TRACES_OF_ROW]},
        ),
    ]


def _per_day(by: str, links: Sequence[Link] = ()) -> Panel:
    spent = daily(COST, by)
    return series(
        f"Cost per day by {by}",
        "The last 30 days, each bar at the beginning of its day. The last one is today so far.",
        [Query(named(spent) if by == "project" else spent, f"{{{{{by}}}}}")],
        USD,
        stacked=True,
        bars=True,
        step="1d",
        since="30d",
        calcs=("sum", "max"),
        width=8,
        links=links,
    )


def _tokens() -> list[Panel]:
    read, write, taken = 'type="cache_read"', 'type="cache_write"', 'type!="output"'
    reasoning = "coding_agent_reasoning_tokens_total"
    cached = ratio(total(TOKENS, "", read), total(TOKENS, "", taken))
    return [
        number("Tokens", "Tokens of all kinds in the chosen time.", count(TOKENS)),
        number(
            "Input from cache",
            "Share of the input tokens that the provider read from its cache. A cache read costs a fraction of new"
            " input (a tenth with most providers), so this is where caching saves.",
            cached,
            SHARE,
            none="-",
        ),
        number(
            "Tokens read from cache",
            "Input tokens in the chosen time that did not have to be paid as new input.",
            count(TOKENS, "", read),
        ),
        number(
            "Reads per written token",
            "How often each token that was written to the cache was read again. Writing costs more than plain input:"
            " below one the cache does not pay for itself.",
            ratio(total(TOKENS, "", read), total(TOKENS, "", write)),
            COUNT,
            none="-",
            decimals=1,
        ),
        number(
            "Saved by the cache",
            "Share of what the input would have cost without a cache. A token read from it is taken to cost a tenth of"
            " new input and one written to it a quarter more, as with most providers. Below zero the cache costs more"
            " than it saves.",
            ratio(
                f"({total(TOKENS, '', read)} * 0.9 - {total(TOKENS, '', write)} * 0.25)",
                total(TOKENS, "", taken),
            ),
            SHARE,
            none="-",
        ),
        number(
            "Reasoning",
            "Share of the output tokens that were reasoning, where the agent says so.",
            ratio(total(reasoning), total(TOKENS, "", 'type="output"')),
            SHARE,
            none="-",
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
            "Input from cache",
            "Share of each agent's input tokens that was read from the cache. A drop means that something at the"
            " beginning of the prompt changes: tools, system prompt, or a compaction.",
            [Query(ratio(rate(TOKENS, "agent", read), rate(TOKENS, "agent", taken)), "{{agent}}")],
            SHARE,
            top=1,
        ),
        rows(
            "Models",
            "What each model took and gave in the chosen time, and what a million of its tokens cost, all kinds together.",
            "model",
            [
                Column("Model calls", count("coding_agent_model_calls_total", "model")),
                Column("Input", total(TOKENS, "model", 'type="input"')),
                Column("Cache read", total(TOKENS, "model", read)),
                Column("Cache write", total(TOKENS, "model", write)),
                Column("Output", total(TOKENS, "model", 'type="output"')),
                Column("Reasoning", total(reasoning, "model")),
                Column(
                    "From cache", ratio(total(TOKENS, "model", read), total(TOKENS, "model", taken)), SHARE
                ),
                Column("Cost", total(COST, "model"), USD),
                Column(
                    "Per million tokens", f"{ratio(total(COST, 'model'), total(TOKENS, 'model'))} * 1e6", USD
                ),
            ],
            sort="Cost",
        ),
    ]


def _trust() -> list[Panel]:
    return [
        number(
            "Tokens without a price",
            "Tokens of models whose price is not known. Their cost is in no sum; give a price in the configuration"
            " ([[price]]). Not by project.",
            count(UNPRICED),
            steps="any",
            width=8,
        ),
        number(
            "Share without a price",
            "Share of all tokens that have no price. Only all projects together.",
            ratio(total(UNPRICED), total(TOKENS)),
            SHARE,
            steps="errors",
            width=8,
        ),
        number(
            "Incomplete usage",
            "Model calls of whose usage the session files hold only a part. Not by project or model.",
            count("coding_agent_incomplete_usage_total"),
            steps="any",
            width=8,
        ),
        parts(
            "Where costs come from",
            "Reported by the agent itself, computed from usage and list price, or estimated.",
            Query(total(COST, "source"), "{{source}}"),
            USD,
            words=SOURCES,
        ),
        rows(
            "Models without a price",
            "Tokens in the chosen time by agent and model. Not by project.",
            "agent, model",
            [Column("Tokens", total(UNPRICED, "agent, model") + " > 0")],
            sort="Tokens",
            width=8,
            height=8,
            links={"agent": [TRACES_OF_ROW]},
        ),
        series(
            "Incomplete usage per minute",
            "Model calls per minute whose usage the session file holds only in part, by agent. Not by project or model.",
            [
                Query(
                    or_none(rate("coding_agent_incomplete_usage_total", "agent", seconds=60), "agent"),
                    "{{agent}}",
                )
            ],
            COUNT,
            width=8,
            links=[TRACES_OF_SERIES],
        ),
    ]

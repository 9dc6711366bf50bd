"""The table of all metrics: what the page, the push, the dashboards and the docs know of them.

For whoever reads a page: a name, its labels and its meaning are written down once, here. A label
is closed when all its values are known beforehand; then all of them are there from the start.
"""

from __future__ import annotations

import re
from typing import Final, Literal

from msgspec import Struct

from spantail.model import EXITS, STATUSES, TOKEN_TYPES

Kind = Literal["counter", "gauge", "histogram"]

PHASES: Final = ("model", "tool", "other")
TOOL_BUCKETS: Final = (0.01, 0.04, 0.16, 0.64, 2.5, 10.0, 40.0, 160.0, 640.0, 2560.0)
TURN_BUCKETS: Final = (
    1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 10800.0,
)  # fmt: skip


class Family(Struct, frozen=True, eq=False):
    """One row of the table. Compared by identity, so that it is a cheap key."""

    name: str
    """As on the page, a counter's with `_total`."""
    kind: Kind
    dotted: str
    """The name over OTLP; Prometheus makes `name` of it again."""
    labels: tuple[str, ...]
    help: str
    unit: str = ""
    """The OTLP unit, only where Prometheus makes a suffix of it that `name` has."""
    closed: str = ""
    """The one closed label, if there is one ..."""
    values: tuple[str, ...] = ()
    """... and its values."""
    buckets: tuple[float, ...] = ()

    @property
    def base(self) -> str:
        """The name of the family in OpenMetrics, where `_total` belongs to the sample."""
        return self.name.removesuffix("_total") if self.kind == "counter" else self.name

    def named(self, labels: tuple[str, ...]) -> list[tuple[str, str]]:
        """Labels as they are shown: `user` is empty with one home, which is the same as not there."""
        pairs = zip(self.labels, labels, strict=True)
        return [(name, value) for name, value in pairs if value or name != "user"]

    @property
    def about_agents(self) -> bool:
        """Whether it speaks of the agents' work, and so carries the static labels of the config."""
        return self.name.startswith("coding_agent_")


def _counter(
    name: str,
    dotted: str,
    labels: str,
    text: str,
    closed: str = "",
    values: tuple[str, ...] = (),
    unit: str = "",
) -> Family:
    return Family(name, "counter", dotted, tuple(labels.split()), text, unit, closed, values)


def _gauge(name: str, dotted: str, labels: str, text: str, unit: str = "") -> Family:
    return Family(name, "gauge", dotted, tuple(labels.split()), text, unit)


# fmt: off
TOKENS = _counter(
    "coding_agent_tokens_total", "coding_agent.tokens", "agent project model type user",
    "Tokens of settled model calls. The types are disjoint; output includes reasoning.", "type", TOKEN_TYPES)
REASONING = _counter(
    "coding_agent_reasoning_tokens_total", "coding_agent.reasoning_tokens", "agent project model",
    "Reasoning tokens; a part of the output tokens.")
COST = _counter(
    "coding_agent_cost_usd_total", "coding_agent.cost.usd", "agent project model source user",
    "Cost in US dollars: reported by the agent, computed from usage, or estimated.")
UNPRICED = _counter(
    "coding_agent_unpriced_tokens_total", "coding_agent.unpriced_tokens", "agent model",
    "Tokens of models whose price is not known; their cost is in no sum.")
SESSIONS_STARTED = _counter(
    "coding_agent_sessions_started_total", "coding_agent.sessions.started", "agent project user",
    "Runs of sessions that began.")
SESSION_EXITS = _counter(
    "coding_agent_session_exits_total", "coding_agent.session.exits", "agent project exit_status user",
    "Runs of sessions that ended, by exit status.", "exit_status", EXITS)
TURNS = _counter(
    "coding_agent_turns_total", "coding_agent.turns", "agent project status user",
    "Settled turns.", "status", STATUSES)
TURN_DURATION = Family(
    "coding_agent_turn_duration_seconds", "histogram", "coding_agent.turn.duration", ("agent", "project"),
    "Duration of settled turns.", unit="s", buckets=TURN_BUCKETS)
TURN_PHASE = _counter(
    "coding_agent_turn_phase_seconds_total", "coding_agent.turn.phase", "agent project phase",
    "Where the time of settled turns went; overlapping tool calls count once.", "phase", PHASES, unit="s")
MODEL_CALLS = _counter(
    "coding_agent_model_calls_total", "coding_agent.model_calls", "agent project model status",
    "Settled model calls.", "status", STATUSES)
TOOL_CALLS = _counter(
    "coding_agent_tool_calls_total", "coding_agent.tool_calls", "agent project tool status",
    "Settled tool calls.", "status", STATUSES)
TOOL_DURATION = Family(
    "coding_agent_tool_duration_seconds", "histogram", "coding_agent.tool.duration", ("agent", "tool"),
    "Duration of settled tool calls that ended.", unit="s", buckets=TOOL_BUCKETS)
TOOL_ERRORS = _counter(
    "coding_agent_tool_errors_total", "coding_agent.tool_errors", "agent project tool error_type",
    "Tool calls that failed or were interrupted.")
REPEATED = _counter(
    "coding_agent_repeated_tool_calls_total", "coding_agent.repeated_tool_calls", "agent project tool",
    "Tool calls whose input is the same as that of a recent call of the session.")
COMPACTIONS = _counter(
    "coding_agent_compactions_total", "coding_agent.compactions", "agent project",
    "Compactions of a session's context.")
PROVIDER_ERRORS = _counter(
    "coding_agent_provider_errors_total", "coding_agent.provider_errors", "agent error_type",
    "Errors that the model's provider answered with.")
INCOMPLETE = _counter(
    "coding_agent_incomplete_usage_total", "coding_agent.incomplete_usage", "agent",
    "Model calls of whose usage the session file holds only a part.")

ACTIVE_SESSIONS = _gauge(
    "coding_agent_active_sessions", "coding_agent.active_sessions", "agent project",
    "Sessions with an open turn.")
OPEN_TOOL_CALLS = _gauge(
    "coding_agent_open_tool_calls", "coding_agent.open_tool_calls", "agent tool",
    "Tool calls that have not ended yet.")
OLDEST_TOOL_CALL = _gauge(
    "coding_agent_oldest_open_tool_call_start_timestamp_seconds",
    "coding_agent.oldest_open_tool_call.start_timestamp", "agent",
    "When the oldest open tool call began.", "s")
OLDEST_TURN = _gauge(
    "coding_agent_oldest_open_turn_start_timestamp_seconds",
    "coding_agent.oldest_open_turn.start_timestamp", "agent",
    "When the oldest open turn began.", "s")
CONTEXT_TOKENS = _gauge(
    "coding_agent_context_tokens", "coding_agent.context_tokens", "agent project model",
    "Input of the last model call: the largest of the open sessions.")
CONTEXT_LIMIT = _gauge(
    "coding_agent_context_limit_tokens", "coding_agent.context_limit_tokens", "model",
    "How many tokens the model's context can hold.")
RATE_LIMIT = _gauge(
    "coding_agent_rate_limit_used_ratio", "coding_agent.rate_limit.used_ratio", "agent window",
    "Used part of the provider's rate limit, as the agent last noted it.")
BUDGET_LIMIT = _gauge(
    "coding_agent_budget_limit_usd", "coding_agent.budget.limit.usd", "budget period",
    "Configured limit of the budget in US dollars.")
BUDGET_SPENT = _gauge(
    "coding_agent_budget_spent_usd", "coding_agent.budget.spent.usd", "budget period",
    "Spent in the current period of the budget in US dollars, by the time of the calls.")
BUDGET_START = _gauge(
    "coding_agent_budget_period_start_timestamp_seconds", "coding_agent.budget.period_start_timestamp",
    "budget period", "When the current period of the budget began, in its time zone.", "s")
BUDGET_END = _gauge(
    "coding_agent_budget_period_end_timestamp_seconds", "coding_agent.budget.period_end_timestamp",
    "budget period", "When the current period of the budget ends and the next one begins at zero.", "s")

BUILD_INFO = _gauge(
    "spantail_build_info", "spantail.build_info", "version",
    "1, with the version as a label; 0 in the last push of one that was stopped.")
RECORDS = _counter(
    "spantail_records_total", "spantail.records", "agent result",
    "Records taken from session files, by what became of them.")
READ_BYTES = _counter(
    "spantail_read_bytes_total", "spantail.read_bytes", "",
    "Bytes read from session files.")
FILES_FOLLOWED = _gauge(
    "spantail_files_followed", "spantail.files_followed", "",
    "Session files that are followed.")
LATE_RECORDS = _counter(
    "spantail_late_records_total", "spantail.late_records", "agent",
    "Results that came after their call had been settled without them.")
EXPORTED_SPANS = _counter(
    "spantail_exported_spans_total", "spantail.exported_spans", "result",
    "Spans sent to the trace backend, by its answer.")
OUTBOX_SPANS = _gauge(
    "spantail_outbox_spans", "spantail.outbox.spans", "",
    "Spans that no backend has acknowledged yet.")
OUTBOX_BYTES = _gauge(
    "spantail_outbox_bytes", "spantail.outbox.bytes", "",
    "Size of the outbox.")
OUTBOX_OLDEST = _gauge(
    "spantail_outbox_oldest_timestamp_seconds", "spantail.outbox.oldest_timestamp", "",
    "When the oldest batch of the outbox was put there.", "s")
OUTBOX_DROPPED = _counter(
    "spantail_outbox_dropped_spans_total", "spantail.outbox.dropped_spans", "",
    "Spans dropped because the outbox was full.")
LAG = _gauge(
    "spantail_lag_seconds", "spantail.lag", "",
    "Age of the oldest byte that was seen and is not committed.", "s")
LABEL_OVERFLOW = _counter(
    "spantail_label_overflow_total", "spantail.label_overflow", "label",
    "Label values shown as `other` because the label had too many values.")
ERRORS = _counter(
    "spantail_errors_total", "spantail.errors", "kind",
    "What went wrong, by kind; the log says more.")
LAST_COMMIT = _gauge(
    "spantail_last_commit_timestamp_seconds", "spantail.last_commit_timestamp", "",
    "When the last commit succeeded.", "s")
COMMIT_FAILED = _gauge(
    "spantail_commit_failed", "spantail.commit_failed", "",
    "1 while commits fail and reading has stopped, else 0.")
STATE_CREATED = _gauge(
    "spantail_state_created_timestamp_seconds", "spantail.state_created_timestamp", "",
    "When the state was created: all totals count from there.", "s")
# fmt: on

FAMILIES: Final[tuple[Family, ...]] = tuple(
    family for family in list(globals().values()) if isinstance(family, Family)
)
BY_NAME: Final = {family.name: family for family in FAMILIES}

_LABEL: Final = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*\Z")


def label_fault(name: str) -> str:
    """Why `name` cannot be a static label of the config; empty if it can."""
    if not _LABEL.match(name) or name.startswith("__"):
        return (
            f"{name!r} is not a label name: letters, digits and underscores, not beginning with a digit or __"
        )
    if name == "le" or any(name in family.labels for family in FAMILIES):
        return f"the label {name!r} is already used by the metrics"
    return ""

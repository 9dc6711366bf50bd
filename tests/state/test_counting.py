from __future__ import annotations

import pytest

from spantail.model import (
    SECOND,
    Context,
    ModelCall,
    Occurred,
    RunEnded,
    RunStarted,
    Subagent,
    ToolCall,
    Turn,
    Usage,
    UsageAdded,
)
from spantail.state.counting import Counting
from spantail.state.guard import Guard
from spantail.state.hours import HourRow, Hours
from spantail.state.series import Distribution
from spantail.state.totals import Totals

T0 = 1_700_000_100 * SECOND
QUARTER = 1_700_000_100 - 1_700_000_100 % 900
HERE = Context("agent", project="api", user="ann")
TRACE = b"t" * 16


class Counted:
    """Counting over real totals; `page` is all that is not 0, by name and labels."""

    def __init__(self, limits: dict[str, int] | None = None, **options) -> None:
        self.totals = Totals(hold=0)
        self.hours = Hours()
        guard = Guard(self.totals, limits or {})
        self.counting = Counting(self.totals, self.hours, guard, clock=lambda: T0, **options)

    def count(self, *outcomes) -> dict[str, object]:
        for outcome in outcomes:
            self.counting.count([outcome])
        return self.page()

    def page(self) -> dict[str, object]:
        self.totals.rows()
        self.totals.committed()
        seen = {}
        for family, points in self.totals.snapshot(T0, scraper=True):
            for point in points:
                value = point.value
                if isinstance(value, Distribution):
                    value = (sum(value.counts), value.sum)
                if value:
                    short = family.name.removeprefix("coding_agent_").removesuffix("_total")
                    seen[f"{short}{{{','.join(point.labels)}}}"] = value
        return seen


@pytest.fixture
def counted() -> Counted:
    return Counted()


def model_call(**fields) -> ModelCall:
    usual = {
        "context": HERE,
        "trace": TRACE,
        "span": b"s" * 8,
        "start": T0,
        "end": T0 + SECOND,
        "model": "m",
        "usage": Usage(1, 2, 3, 4),
        "cost": 0.5,
        "cost_source": "computed",
    }
    return ModelCall(**usual | fields)


def tool_call(**fields) -> ToolCall:
    usual = {
        "context": HERE,
        "trace": TRACE,
        "span": b"s" * 8,
        "start": T0,
        "end": T0 + 2 * SECOND,
        "name": "Bash",
    }
    return ToolCall(**usual | fields)


def turn(**fields) -> Turn:
    usual = {
        "context": HERE,
        "trace": TRACE,
        "span": b"s" * 8,
        "start": T0,
        "end": T0 + 9 * SECOND,
        "usage": Usage(100, 100, 100, 100),
        "cost": 9.0,
        "model_seconds": 5.0,
        "tool_seconds": 3.0,
        "other_seconds": 1.0,
    }
    return Turn(**usual | fields)


def test_a_model_call_counts_its_tokens_its_cost_and_itself(counted):
    """Each kind of token by itself; reasoning is beside them, not among them."""
    assert counted.count(model_call(usage=Usage(1, 2, 3, 4, 2, 3))) == {
        "tokens{agent,api,m,input,ann}": 1,
        "tokens{agent,api,m,cache_read,ann}": 2,
        "tokens{agent,api,m,cache_write,ann}": 3,
        "tokens{agent,api,m,output,ann}": 4,
        "reasoning_tokens{agent,api,m}": 2,
        "cost_usd{agent,api,m,computed,ann}": 0.5,
        "model_calls{agent,api,m,ok}": 1,
    }
    assert counted.hours.rows() == [HourRow(QUARTER, "agent", "api", "m", "ann", 1, 2, 3, 4, 0.5)]


def test_a_model_call_without_usage_counts_itself_only(counted):
    """Nothing known is not zero tokens."""
    call = model_call(usage=None, cost=None, cost_source=None, status="interrupted")
    assert counted.count(call) == {"model_calls{agent,api,m,interrupted}": 1}
    assert counted.hours.rows() == []


def test_usage_that_is_not_final_is_said_to_be_incomplete(counted):
    """But a call that failed with no usage at all misses nothing."""
    cut = model_call(final=False, status="interrupted")
    failed = model_call(final=False, status="error", usage=None, cost=None)
    page = counted.count(cut, failed)
    assert page["incomplete_usage{agent}"] == 1


def test_tokens_without_a_price_are_counted_as_such(counted):
    """No cost is added for them, and the hours have their tokens all the same."""
    page = counted.count(model_call(cost=None, cost_source=None), model_call(usage=Usage(), cost=None))
    assert page["unpriced_tokens{agent,m}"] == 10
    assert not any(key.startswith("cost_usd") for key in page)
    assert [row.cost for row in counted.hours.rows()] == [0.0]


def test_an_agent_that_reports_cost_apart_has_no_unpriced_tokens():
    """Its calls have no cost because its running total has it."""
    counted = Counted(cost_apart=["agent"])
    total = UsageAdded(context=HERE, time=T0, model="m", cost=2.0, cost_source="reported")
    page = counted.count(model_call(cost=None, cost_source=None), total)
    assert not any(key.startswith("unpriced") for key in page)
    assert page["cost_usd{agent,api,m,reported,ann}"] == 2.0


def test_usage_added_counts_tokens_and_money_but_no_call(counted):
    """A difference found later, or a step of a running total."""
    added = UsageAdded(
        context=HERE, time=T0, model="m", usage=Usage(output=7), cost=0.1, cost_source="estimate"
    )
    assert counted.count(added) == {
        "tokens{agent,api,m,output,ann}": 7,
        "cost_usd{agent,api,m,estimate,ann}": 0.1,
    }
    assert counted.hours.rows() == [HourRow(QUARTER, "agent", "api", "m", "ann", 0, 0, 0, 7, 0.1)]


def test_what_has_no_time_is_dated_by_the_clock(counted):
    """A budget would lose it otherwise; a time that no clock can show is no time."""
    counted.count(model_call(start=0, end=0), model_call(start=0, end=1 << 70))
    assert [row.slot for row in counted.hours.rows()] == [QUARTER]


@pytest.mark.parametrize(
    "usage", [Usage(-5, 2, 3, 4), Usage(10**400, 2, 3, 4), Usage(10**15, 2, 3, 4)], ids=["<0", "huge", "much"]
)
def test_a_number_that_cannot_be_true_is_not_counted(counted, usage):
    """The others of the record are; and a total that can only grow stays true."""
    page = counted.count(model_call(usage=usage, cost=float("nan")))
    assert "tokens{agent,api,m,input,ann}" not in page
    assert page["tokens{agent,api,m,output,ann}"] == 4
    assert not any(key.startswith("cost_usd") for key in page)


def test_a_tool_call_counts_itself_and_its_duration(counted):
    """The duration is by tool, without the project; the exemplar leads to the trace."""
    assert counted.count(tool_call()) == {
        "tool_calls{agent,api,Bash,ok}": 1,
        "tool_duration_seconds{agent,Bash}": (1, 2.0),
    }
    points = {family.name: points for family, points in counted.totals.snapshot(T0, scraper=True)}
    (point,) = points["coding_agent_tool_duration_seconds"]
    assert [exemplar.trace for exemplar in point.exemplars if exemplar] == [TRACE]


@pytest.mark.parametrize(
    ("status", "error_type", "counted_as"),
    [
        ("error", "timeout", "timeout"),
        ("error", "", "_OTHER"),
        ("interrupted", "", "interrupted"),
        ("interrupted", "tool_error", "interrupted"),
    ],
)
def test_a_failed_tool_call_counts_its_kind_of_error(counted, status, error_type, counted_as):
    """Interrupted calls are errors of that kind, as on the span."""
    page = counted.count(tool_call(status=status, error_type=error_type))
    assert page[f"tool_calls{{agent,api,Bash,{status}}}"] == 1
    assert page[f"tool_errors{{agent,api,Bash,{counted_as}}}"] == 1


def test_a_pending_tool_call_has_no_duration_and_is_no_error(counted):
    """It was closed without an end of its own: how long it took is not known."""
    assert counted.count(tool_call(status="pending", error_type="interrupted")) == {
        "tool_calls{agent,api,Bash,pending}": 1
    }


def test_a_tool_call_without_times_has_no_duration(counted):
    """Not known is not zero seconds; an end before its start is."""
    assert "tool_duration_seconds{agent,Bash}" not in counted.count(tool_call(start=0))
    page = counted.count(tool_call(start=T0 + SECOND, end=T0))
    assert page["tool_duration_seconds{agent,Bash}"] == (1, 0.0)


def test_a_late_result_is_counted_as_late_and_as_nothing_else(counted):
    """The call has been counted as pending already."""
    assert counted.count(tool_call(late=True, status="error", repeated=True)) == {
        "spantail_late_records{agent}": 1
    }


def test_a_repeated_tool_call_counts_twice_over(counted):
    """As a call, and as one that repeats another."""
    page = counted.count(tool_call(repeated=True))
    assert page["repeated_tool_calls{agent,api,Bash}"] == 1
    assert page["tool_calls{agent,api,Bash,ok}"] == 1


def test_a_turn_counts_itself_and_where_its_time_went_but_no_tokens(counted):
    """Its tokens are those of its calls, which have been counted."""
    assert counted.count(turn(status="error")) == {
        "turns{agent,api,error,ann}": 1,
        "turn_duration_seconds{agent,api}": (1, 9.0),
        "turn_phase_seconds{agent,api,model}": 5.0,
        "turn_phase_seconds{agent,api,tool}": 3.0,
        "turn_phase_seconds{agent,api,other}": 1.0,
    }
    assert counted.hours.rows() == []


def test_work_without_a_turn_and_subagents_are_no_turns(counted):
    """Their calls count, they themselves do not."""
    nested = Subagent(context=HERE, trace=TRACE, span=b"s" * 8, start=T0, end=T0 + SECOND)
    assert counted.count(turn(human=False), nested) == {}


def test_runs_count_when_they_start_and_when_they_end(counted):
    """One each per run, the end by its exit status."""
    page = counted.count(
        RunStarted(context=HERE, time=T0),
        RunEnded(context=HERE, time=T0, exit="max_turns"),
        RunStarted(context=HERE, time=T0),
    )
    assert page == {"sessions_started{agent,api,ann}": 2, "session_exits{agent,api,max_turns,ann}": 1}


def test_what_occurred_is_counted_by_its_kind(counted):
    """Kinds that are only span events count nowhere."""
    page = counted.count(
        Occurred(context=HERE, time=T0, kind="compaction"),
        Occurred(context=HERE, time=T0, kind="provider_error", error_type="overloaded", trace=TRACE),
        Occurred(context=HERE, time=T0, kind="provider_error"),
        Occurred(context=HERE, time=T0, kind="incomplete"),
        Occurred(context=HERE, time=T0, kind="late"),
        Occurred(context=HERE, time=T0, kind="hook"),
    )
    assert page == {
        "compactions{agent,api}": 1,
        "provider_errors{agent,_OTHER}": 1,
        "provider_errors{agent,overloaded}": 1,
        "incomplete_usage{agent}": 1,
        "spantail_late_records{agent}": 1,
    }


def test_labels_go_through_the_guard_each_time_they_overflow():
    """The overflow is counted per call, not once; the totals of `other` have them all."""
    counted = Counted({"tool": 1, "project": 1})
    elsewhere = Context("agent", project="web\n")
    page = counted.count(
        tool_call(name="Read"),
        tool_call(name="x1"),
        tool_call(name="x1"),
        tool_call(name="Read", context=elsewhere),
    )
    assert page["tool_calls{agent,api,other,ok}"] == 2
    assert page["tool_calls{agent,other,Read,ok}"] == 1
    assert page["spantail_label_overflow{tool}"] == 2
    assert page["spantail_label_overflow{project}"] == 1

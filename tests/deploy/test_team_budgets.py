"""deploy/fleet/team-budgets.yml by promtool: the sum over machines, those that are switched off included."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytestmark = pytest.mark.servers

RULES = Path(__file__).resolve().parents[2] / "deploy" / "fleet" / "team-budgets.yml"
MONTH = 30 * 24 * 3600


def machine(name: str, spent: str, end: str) -> list[dict[str, str]]:
    labels = f'{{team="shop", budget="b", period="month", instance="{name}"}}'
    return [
        {"series": f"coding_agent_budget_spent_usd{labels}", "values": spent},
        {"series": f"coding_agent_budget_limit_usd{labels}", "values": "100x12"},
        {"series": f"coding_agent_budget_period_end_timestamp_seconds{labels}", "values": end},
    ]


@pytest.mark.parametrize(("still_open", "fires"), [(True, True), (False, False)])
def test_the_machines_of_a_team_are_summed(promtool, tmp_path, still_open, fires):
    """45 on one, 40 on one that was switched off hours ago: of this month, or of one that is over by now."""
    end = MONTH if still_open else 6 * 3600
    wanted = {
        "exp_labels": {"team": "shop", "budget": "b", "period": "month", "severity": "warning"},
        "exp_annotations": {
            "summary": "Budget b of shop is 85% spent",
            "description": "All machines of shop together have spent 85% of the budget b of this month.",
            "runbook_url": "deploy/runbook.md#codingagentbudgetnearlyspent",
        },
    }
    on = [f"{value}x12" for value in (45, MONTH)]
    case = {
        "rule_files": [str(RULES)],
        "evaluation_interval": "1h",
        "tests": [
            {
                "interval": "1h",
                "input_series": machine("on", *on) + machine("off", "40x2 stale", f"{end}x2 stale"),
                "alert_rule_test": [
                    {
                        "alertname": "CodingAgentTeamBudgetNearlySpent",
                        "eval_time": "10h",
                        "exp_alerts": [wanted] if fires else [],
                    }
                ],
            }
        ],
    }
    (tmp_path / "test.yml").write_text(json.dumps(case))  # JSON is YAML too
    ended = promtool("test", "rules", tmp_path / "test.yml")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert promtool("check", "rules", "--lint=all", "--lint-fatal", RULES).returncode == 0

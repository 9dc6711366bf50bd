"""The documents say what the code does: generated parts are up to date, and everything that has a name is named."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest

from spantail.commands import formats
from spantail.config import Limits
from spantail.formats import TABLE
from spantail.settings import SETTINGS
from spantail.state.families import FAMILIES

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()


def test_the_readme_has_the_table_of_formats():
    """Between its two marks stands what `spantail formats --markdown` prints."""
    out = io.StringIO()
    formats.main("markdown", out=out)
    found = re.search(r"<!-- formats -->\n(.*?)<!-- /formats -->", README, re.DOTALL)
    assert found is not None
    assert found[1] == out.getvalue(), "run: spantail formats --markdown"


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_every_metric_is_documented(family):
    """docs are in the README: each metric by its name."""
    assert f"`{family.name}`" in README or f"`{family.name}{{" in README


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.key)
def test_every_setting_is_documented(setting):
    assert setting.flag in README


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.agent)
def test_every_agent_has_recorded_sessions(row):
    """An agent without fixtures is an agent nobody can trust."""
    assert any((ROOT / "fixtures").glob(f"{row.agent}*/*/truth.json"))


def test_the_commands_of_the_readme_exist():
    """The two commands a new user types."""
    assert "python3 -m venv .venv && .venv/bin/pip install -q . && .venv/bin/spantail run" in README
    assert "bash .ci/run" in README
    assert (ROOT / ".ci" / "run").exists()


@pytest.mark.parametrize("limit", Limits.__struct_fields__)
def test_every_limit_is_documented(limit):
    """In the table of the README, with its default."""
    assert re.search(rf"^\| `{limit}` \| [^|]+ \| [^|]+ \|$", README, re.MULTILINE)

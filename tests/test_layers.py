"""The flow has one direction: who may import whom, and where agents may have names."""

import ast
import re
from pathlib import Path

import pytest

from spantail.formats import TABLE

SOURCE = Path(__file__).resolve().parent.parent / "src" / "spantail"

ALLOWED = {
    "model": set(),
    "formats": {"model", "formats"},
    "session": {"model", "session"},
    "out/spans": {"model"},
    "out/exposition": {"model", "state", "out"},
    "tail": {"model", "formats", "tail"},
    "state": {"model", "state"},
}
"""What of ours a module or package may import; others may import anything."""


def imports(path: Path) -> set[str]:
    """The rooms of ours that a module imports, also inside functions and for types only."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "spantail":
            parts = node.module.split(".")[1:]
            found |= {parts[0]} if parts else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {a.name.split(".")[1] for a in node.names if a.name.startswith("spantail.")}
    return found - {"__version__"}


@pytest.mark.parametrize("room", sorted(ALLOWED))
def test_a_room_imports_only_what_comes_before_it(room):
    """Formats, session and the span encoder know nothing but the model; nothing reaches back."""
    paths = (
        [SOURCE / f"{room}.py"] if (SOURCE / f"{room}.py").exists() else sorted((SOURCE / room).rglob("*.py"))
    )
    assert paths
    for path in paths:
        assert imports(path) <= ALLOWED[room], path.name


def test_no_agent_has_a_name_outside_the_formats():
    """Adding an agent touches one file and one row: nobody else may know its name."""
    names = {word.lower() for row in TABLE for word in (row.agent, row.title) if row.agent != "generic"}
    for path in sorted(SOURCE.rglob("*.py")):
        if (SOURCE / "formats") in path.parents:
            continue
        text = path.read_text().lower()
        for flag in ("aider_root", "aider-root"):  # named by the command line's contract
            text = text.replace(flag, "")
        said = [name for name in names if re.search(rf"\b{re.escape(name)}\b", text)]
        assert not said, f"{path.relative_to(SOURCE)} names {said}"


def test_files_stay_small():
    """No file over 600 lines, and one over 400 says why in its docstring."""
    for path in sorted(SOURCE.rglob("*.py")):
        text = path.read_text()
        lines = text.count("\n")
        assert lines <= 600, path
        if lines > 400:
            docstring = ast.get_docstring(ast.parse(text)) or ""
            assert "Longer than 400" in docstring, f"{path.name} ({lines}) does not say why"

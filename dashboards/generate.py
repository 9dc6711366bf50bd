"""Writes the dashboards as JSON beside this file: `python dashboards/generate.py`, or to another folder if one is given."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from cost import cost
from itself import itself
from overview import overview
from tools import tools
from turns import turns

DASHBOARDS = {"overview": overview, "cost": cost, "tools": tools, "turns": turns, "spantail": itself}


def main(folder: Path) -> None:
    for name, make in DASHBOARDS.items():
        text = json.dumps(make(), indent=2, sort_keys=True) + "\n"
        (folder / f"{name}.json").write_text(text)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)

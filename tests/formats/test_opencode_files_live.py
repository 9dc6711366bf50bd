"""JSON files followed while they are written, several between two looks: the same as read whole."""

import json
import random
import shutil
import sqlite3
from pathlib import Path

import pytest

from program import Followed, once
from receiver import Receiver
from spantail.model import MILLISECOND

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures" / "opencode"
STORED = "home/.local/share/opencode"


def writes(case, tmp_path):
    """What newer versions store as events is what older ones wrote into files: (time, file, content)."""
    shutil.copytree(FIXTURES / case / STORED, tmp_path / "recorded")
    database = sqlite3.connect(tmp_path / "recorded" / "opencode.db")
    now, found = 0, []
    for (data,) in database.execute("SELECT data FROM event ORDER BY rowid").fetchall():
        body = json.loads(data)
        part, info = body.get("part"), body.get("info")
        if part is not None:
            file, time = f"part/{part['messageID']}/{part['id']}", int(body["time"])
        elif "role" in info:
            file = f"message/{info['sessionID']}/{info['id']}"
            time = info["time"].get("completed") or info["time"]["created"]
        else:
            file, time = f"session/project/{info['id']}", now
        now = max(now, time)
        found.append((now, f"{STORED.removeprefix('home/')}/storage/{file}.json", part or info))
    database.close()
    first = next(time for time, _, _ in found if time)
    return [(max(time, first) * MILLISECOND, file, json.dumps(body, indent=2)) for time, file, body in found]


def contents(spans):
    return {
        span.span_id: (
            *(span.name, span.parent, span.start, span.end, span.status),
            *(sorted((key, str(value)) for key, value in span.attrs.items()),),
            sorted((name, at) for name, at, _ in span.events),
            sorted((trace, id_) for trace, id_, _ in span.links),
        )
        for span in spans
    }


@pytest.mark.parametrize("stopped", [False, True], ids=["running", "stopped in between"])
@pytest.mark.parametrize("case", ["abort-a", "compact-a", "multi-a", "subagent-a", "tools-a"])
def test_several_files_between_two_looks(case, stopped, tmp_path, monkeypatch):
    """Whatever their names, they are read in the order of what they hold, also those written while nobody looked."""
    todo = writes(case, tmp_path)
    home = tmp_path / "home"
    home.mkdir()
    dice = random.Random(1)
    with Receiver("http") as receiver:
        for key, value in receiver.environ().items():
            monkeypatch.setenv(key, value)

        program = Followed(home, tmp_path / "live", todo[0][0])
        while todo:
            if stopped:
                program.end()
            for _ in range(min(len(todo), dice.randint(1, 25))):
                program.now, file, body = todo.pop(0)
                (home / file).parent.mkdir(parents=True, exist_ok=True)
                (home / file).write_text(body)
                program.changed(home / file)
            if stopped:
                program.begin()
            program.look()
        program.end_long_after()
        live = receiver.spans
    with Receiver("http") as receiver:
        whole, _ = once(home, tmp_path / "whole", receiver, monkeypatch)
    assert contents(live) == contents(whole)

"""The rate limit on the page is what an agent noted last, whichever of its sessions that was."""

from __future__ import annotations

from pathlib import Path

import replay
import truth
from program import configured
from spantail.commands.run import Run
from spantail.model import SECOND
from spantail.state import families as f
from spantail.state.store import Store
from spantail.tail.wake import HandWaker

CASE = truth.FIXTURES / "codex" / "ratelimit-a"


def session(home: Path, hour: str, used: str) -> None:
    """The recording, begun at that hour, with so many percent used."""
    for path in (CASE / "home").rglob("*.jsonl"):
        text = path.read_text()
        for old, new in (("T05", f"T{hour}"), ("01a1ed35", f"01a1ed{hour}"), ('"used_percent":12.5', used)):
            assert old in text + path.name
            text = text.replace(old, new)
        to = home / path.relative_to(CASE / "home").with_name(
            path.name.replace("T05", f"T{hour}").replace("01a1ed35", f"01a1ed{hour}")
        )
        to.parent.mkdir(parents=True, exist_ok=True)
        to.write_text(text)


def rates(home: Path, state: Path) -> dict[tuple[str, ...], float]:
    """While all the sessions are still in memory."""
    store = Store(state)
    now = replay.lines(CASE / "home")[-1][0] + 4 * 3600 * SECOND
    config = configured(home, state, once=False, idle=24 * 3600 * SECOND)
    run = Run(config, {}, store, clock=lambda: now, waker=HandWaker(), strict=True)
    run.begin()
    found = dict(run.follow.parts.groups.gauges()[f.RATE_LIMIT])
    run.waker.close()
    store.close()
    return found


def test_the_last_word_counts(tmp_path):
    """A window that began anew is not hidden by a session that was at its end, whatever the files' names."""
    session(tmp_path / "reset", "06", '"used_percent":95.0')
    session(tmp_path / "reset", "07", '"used_percent":5.0')
    assert rates(tmp_path / "reset", tmp_path / "a")["codex", "5h"] == 0.05
    session(tmp_path / "full", "06", '"used_percent":5.0')
    session(tmp_path / "full", "07", '"used_percent":95.0')
    assert rates(tmp_path / "full", tmp_path / "b")["codex", "5h"] == 0.95

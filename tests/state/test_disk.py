"""A disk that is full or read-only: metrics go on, nothing is done that could not be undone, and it mends by itself.

Also what the state costs: on the disk after an outage, in memory for a long history, for a turn of many calls.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import tracemalloc
from pathlib import Path

import pytest

import replay
import truth
from ports import free_port
from program import LONG_AFTER, configured
from spantail.commands import run as run_command
from spantail.commands.run import Run
from spantail.model import SECOND
from spantail.out.deliver import DeliveryResult
from spantail.state.hours import HourRow
from spantail.state.ledger import Ledger
from spantail.state.packing import packed
from spantail.state.store import DAY, Changes, Store
from spantail.tail.wake import HandWaker
from test_run import get, start, until

TOOLS = truth.FIXTURES / "claude-code" / "tools-a"


@pytest.fixture
def small_disk(tmp_path):
    """A file system of one megabyte."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("a file system can be mounted by root only")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder: Path) -> Path:
    """Takes what is left, to the last byte."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            for size in (65536, 4096, 1):
                while True:
                    try:
                        if file.write(bytes(size)) < size:
                            break
                    except OSError:
                        break
        finally:
            os.fsync(file)
    return filler


def samples(port: int) -> dict[str, float]:
    status, page = get(port, "/metrics")
    assert status == 200
    return {name: sum(value for _, value in series) for name, series in truth.samples(page).items()}


def test_a_disk_that_fills_up_while_following(small_disk, tmp_path):
    """Metrics go on as of the last commit, /readyz and the metric say so; with room it goes on, and all is there once."""
    home, state, port = tmp_path / "home", small_disk / "state", free_port()
    (home / ".claude/projects").mkdir(parents=True)
    program = start(
        "--home", str(home), "--state", str(state), "--since", "all",
        "--listen", f"127.0.0.1:{port}", "--new-series-hold", "0",
    )  # fmt: skip
    try:
        until(lambda: get(port, "/readyz")[0] == 200)
        filler = fill(small_disk)
        for piece in replay.lines(TOOLS / "home"):
            replay.append(home, piece)
        until(lambda: get(port, "/readyz")[0] == 503)
        assert "the state cannot be written" in get(port, "/readyz")[1]
        assert get(port, "/healthz")[0] == 200
        page = samples(port)
        assert page["spantail_commit_failed"] == 1
        assert not page.get("coding_agent_turns_total")
        filler.unlink()
        until(lambda: get(port, "/readyz")[0] == 200)
        until(lambda: samples(port).get("coding_agent_turns_total") == 1)
        page = samples(port)
        assert page["spantail_commit_failed"] == 0
        assert page["coding_agent_tool_calls_total"] == 3
    finally:
        program.send_signal(signal.SIGTERM)
        _, log = program.communicate(timeout=30)
    assert program.returncode == 0, log
    said = [json.loads(line)["event"] for line in log.splitlines()]
    assert said.count("commit_failed") == said.count("commit_restored") == 1


def test_a_full_disk_at_the_start(small_disk, tmp_path):
    """One clear line and exit 1; a state that is there is neither damaged nor taken for damaged."""
    home = replay.copied(TOOLS, tmp_path / "home")
    config = configured(home, small_disk / "state", textfile=str(tmp_path / "page.prom"))
    assert run_command.main(config, {}, clock=lambda: LONG_AFTER) == 0
    before = (small_disk / "state" / "state.db").read_bytes()
    filler = fill(small_disk)
    for state in (small_disk / "state", small_disk / "new"):
        program = start("--home", str(home), "--state", str(state), "--once", "--since", "all")
        _, log = program.communicate(timeout=30)
        assert program.returncode == 1, log
        (line,) = [line for line in log.splitlines() if not line.startswith("{")]
        assert str(state) in line or "state could not be written" in line
        assert "Traceback" not in log
    filler.unlink()
    assert (small_disk / "state" / "state.db").read_bytes() == before
    assert not list((small_disk / "state").glob("state.broken-*"))
    assert run_command.main(config, {}, clock=lambda: LONG_AFTER) == 0


def test_a_read_only_disk_at_the_start(small_disk, tmp_path):
    """Nothing could be kept, so nothing is begun: one line that names the folder, exit 1."""
    (small_disk / "state").mkdir()
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    program = start("--home", str(tmp_path), "--state", str(small_disk / "state"), "--once")
    _, log = program.communicate(timeout=30)
    assert program.returncode == 1
    assert log.count("\n") == 1
    assert "Read-only file system" in log
    assert str(small_disk / "state") in log


@pytest.mark.parametrize("how", ["full", "read-only"])
def test_killed_and_started_again_on_a_disk_that_cannot_be_written(how, small_disk, tmp_path):
    """The totals stay on the page as of the last commit, which is in the log that the kill left; it says what is
    wrong and does nothing, and goes on by itself when it can."""
    home, state, port = tmp_path / "home", small_disk / "state", free_port()
    (home / ".claude/projects").mkdir(parents=True)
    flags = (
        "--home", str(home), "--state", str(state), "--since", "all", "--idle", "1s",
        "--listen", f"127.0.0.1:{port}", "--new-series-hold", "0", "--textfile", str(tmp_path / "page.prom"),
    )  # fmt: skip
    pieces = list(replay.lines(TOOLS / "home"))
    with (tmp_path / "log").open("w") as log:
        program = start(*flags, log=log)
        until(lambda: get(port, "/readyz")[0] == 200)
        for piece in pieces:
            replay.append(home, piece)
        until(lambda: samples(port).get("coding_agent_turns_total") == 1)
        program.kill()
        program.communicate()
    (small_disk / "state" / "state.db-shm").unlink() if how == "full" else None
    (session,) = home.rglob("*.jsonl")
    session.with_name("later.jsonl").write_bytes(session.read_bytes())
    filler = fill(small_disk) if how == "full" else None
    if filler is None:
        subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    before = {path: path.read_bytes() for path in state.iterdir()}
    (tmp_path / "page.prom").unlink()
    program = start(*flags)
    try:
        until(lambda: get(port, "/readyz")[0] == 503)
        said = "No space left on device" if filler else "Read-only file system"
        assert said in get(port, "/readyz")[1]
        assert get(port, "/healthz")[0] == 200
        page = samples(port)
        assert page["spantail_commit_failed"] == 1
        until((tmp_path / "page.prom").exists)
        assert "spantail_commit_failed 1" in (tmp_path / "page.prom").read_text()
        if filler is None:
            assert page["coding_agent_turns_total"] == 1
            assert page["spantail_last_commit_timestamp_seconds"] > 1e9
        assert {path: path.read_bytes() for path in state.iterdir() if path in before} == before
        filler.unlink() if filler else subprocess.run(["mount", "-o", "remount,rw", small_disk], check=True)
        until(lambda: get(port, "/readyz")[0] == 200)
        page = samples(port)
        assert page["spantail_commit_failed"] == 0
        assert page["spantail_files_followed"] == 2
        assert page["coding_agent_turns_total"] == 1
    finally:
        program.send_signal(signal.SIGTERM)
        _, log = program.communicate(timeout=30)
    assert program.returncode == 0, log
    events = [json.loads(line)["event"] for line in log.splitlines()]
    assert events.count("commit_failed") == events.count("commit_restored") == 1


def test_a_backlog_waits_for_room_and_keeps_its_order(tmp_path):
    """Full in the middle of the first reading: /readyz says so, and afterwards the same as without it."""
    home = tmp_path / "home"
    for name in ("fork-a", "subagent-a", "tools-a"):
        replay.copied(truth.FIXTURES / "claude-code" / name, tmp_path / name)
        for path in (tmp_path / name).rglob("*.jsonl"):
            to = home / path.relative_to(tmp_path / name)
            to.parent.mkdir(parents=True, exist_ok=True)
            path.rename(to)
    pages = []
    for full in (False, True):
        state = tmp_path / f"state-{full}"
        store = Store(state)
        ready: list[tuple[bool, str]] = []

        def room(_timeout: float, store: Store = store, ready: list[tuple[bool, str]] = ready) -> None:
            ready.append(run._ready())  # noqa: B023 - of this round: it waits only while it begins
            if len(ready) == 3:
                store.db.execute("PRAGMA max_page_count=100000")

        run = Run(
            configured(home, state, once=False), {}, store,
            clock=lambda: LONG_AFTER, waker=HandWaker(room), strict=True,
        )  # fmt: skip
        if full:
            (used,) = store.db.execute("PRAGMA page_count").fetchone()
            store.db.execute(f"PRAGMA max_page_count={used}")
        run.begin()
        if full:
            assert len(ready) == 3
            assert not ready[0][0]
            assert "state cannot be written" in ready[0][1]
        run._leave()
        store.close()
        pages.append(
            {
                (name, str(labels)): value
                for name, series in truth.samples((state / "page.prom").read_text()).items()
                for labels, value in series
                if name.startswith("coding_agent_")
            }
        )
    assert pages[0] == pages[1]
    assert any(name == "coding_agent_turns_total" and value for (name, _), value in pages[0].items())


def test_what_was_counted_stays_on_the_page_after_a_restart(tmp_path):
    """Full when it starts again: the totals of the last commit are shown, and why there are no later ones. Of a first
    reading that could not be committed nothing is shown."""
    home = replay.copied(TOOLS, tmp_path / "home")
    for known in (False, True):
        store = Store(tmp_path / "state")
        config = configured(home, tmp_path / "state", once=False)
        pages: list[tuple[bool, dict]] = []

        def full(_timeout: float, pages: list = pages, store: Store = store) -> None:
            written = Path(run.config.textfile)  # noqa: B023 - of this round: it waits only while it begins
            page = truth.samples(written.read_text()) if written.exists() else {}
            pages.append((run.page.is_open, page))  # noqa: B023
            store.db.execute("PRAGMA query_only=OFF")

        run = Run(config, {}, store, clock=lambda: LONG_AFTER, waker=HandWaker(full), strict=True)
        store.db.execute("PRAGMA query_only=ON")
        run.begin()
        ((shown, page),) = pages
        assert shown == known
        if known:
            assert page["spantail_commit_failed"] == [({}, 1)]
            assert sum(value for _, value in page["coding_agent_turns_total"]) == 1
        else:
            assert not page
        assert run.page.is_open
        run._leave()
        store.close()


def test_the_disk_space_of_a_drained_outbox_comes_back(tmp_path):
    """Some megabytes of spans, acknowledged: the file and its log are small again, and no step takes all at once."""
    now = [LONG_AFTER]
    store = Store(tmp_path / "state")
    config = configured(tmp_path / "home", tmp_path / "state", once=False)
    run = Run(config, {}, store, clock=lambda: now[0], waker=HandWaker(), strict=True)
    run.begin()

    def on_disk() -> int:
        return sum(path.stat().st_size for path in (tmp_path / "state").glob("state.db*"))

    small = on_disk()
    for _ in range(30):
        store.commit(Changes(spans=[packed(10, os.urandom(400_000))]), now[0])
    full = on_disk()
    assert full > 12_000_000
    ids = [row[0] for row in store.db.execute("SELECT id FROM outbox")]
    run.follow.acked(ids, DeliveryResult(delivered=300))
    now[0] += 2 * SECOND
    run.follow.step(0)
    sizes: list[int] = []
    for _ in range(20):
        now[0] += 601 * SECOND if not sizes else SECOND
        run.follow.step(0)
        sizes.append(on_disk())
    assert store.waiting_spans == 0
    assert sizes[0] > full // 2, "a slice at a time"
    assert sizes[-1] < small + 200_000
    store.close()


def test_a_long_history_is_small_in_memory():
    """126,000 model calls with as many tool calls and 30,000 turns: 20 MB at most, also while it is loaded."""
    stored = [os.urandom(8 * 500) for _ in range(2 * 126_000 // 500 + 60)]
    tracemalloc.start()
    try:
        ledger = Ledger(iter(stored))
        size, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(ledger) == len(stored) * 500
    assert size < 20_000_000
    assert peak < 20_000_000


def test_ids_older_than_13_months_are_forgotten(tmp_path):
    """Others of the same group are not."""
    store = Store(tmp_path)
    group, _ = store.group("one")
    today = LONG_AFTER // SECOND // DAY
    days = {today: b"today..!", today - 395: b"13 month", today - 401: b"too old!"}
    store.commit(Changes(ledger=[(group, day, ids) for day, ids in days.items()]), LONG_AFTER)
    store.tidy(LONG_AFTER)
    assert {row[0] for row in store.db.execute("SELECT ids FROM ledger")} == {b"today..!", b"13 month"}
    store.close()


def test_sums_by_time_older_than_13_months_are_forgotten(tmp_path):
    """A budget's longest period never reaches so far back."""
    store = Store(tmp_path)
    now = LONG_AFTER // SECOND
    slots = [now - days * DAY - now % 900 for days in (0, 395, 402)]
    rows = [HourRow(slot, "a", "p", "m", "", 1, 0, 0, 1, 0.5) for slot in slots]
    store.commit(Changes(hours=rows), LONG_AFTER)
    store.tidy(LONG_AFTER)
    assert {row[0] for row in store.db.execute("SELECT slot FROM hours")} == set(slots[:2])
    store.close()


def test_a_turn_of_many_calls_is_a_small_row(tmp_path):
    """2,000 calls settled in one turn that goes on: less than 16 KB of open work."""
    written = TOOLS / "home"
    prompt, reply, result = _parts(written)
    home = tmp_path / "home"
    path = home / next(written.rglob("*.jsonl")).relative_to(written)
    path.parent.mkdir(parents=True)
    with path.open("wb") as file:
        file.write(prompt)
        for number in range(2000):
            file.write(_numbered(reply, number))
            file.write(_numbered(result, number))
    state = tmp_path / "state"
    run_at = replay.lines(written)[-1][0]
    assert run_command.main(configured(home, state), {}, clock=lambda: run_at) == 0
    db = sqlite3.connect(state / "state.db")
    ((size,),) = db.execute("SELECT length(work) FROM works").fetchall()
    (ids,) = db.execute("SELECT sum(length(ids)) / 8 FROM ledger").fetchone()
    db.close()
    assert ids > 3990, "the calls are settled"
    assert size < 16_000


def _parts(home: Path) -> tuple[bytes, bytes, bytes]:
    """The first prompt, the first reply that calls a tool, its result."""
    lines = [line for _, _, line in replay.lines(home)]
    bodies = [json.loads(line) for line in lines]
    prompt = next(n for n, body in enumerate(bodies) if body["type"] == "user")
    reply = next(
        n for n, body in enumerate(bodies) if '"type": "tool_use"' in json.dumps(body.get("message", ""))
    )
    result = next(n for n, body in enumerate(bodies) if "toolUseResult" in body)
    return lines[prompt], lines[reply], lines[result]


def _numbered(line: bytes, number: int) -> bytes:
    body = json.loads(line)
    message = body["message"]
    if "id" in message:
        message["id"] += str(number)
    body["requestId"] = f"req{number}"
    body["uuid"] = f"{number:08d}" + body["uuid"][8:]
    for part in message["content"]:
        for name in ("id", "tool_use_id"):
            if name in part:
                part[name] = f"toolu_{number}"
    return json.dumps(body).encode() + b"\n"

"""A damaged state costs as little as the damage allows, and no total that was shown ever goes down."""

from __future__ import annotations

import json
import os
import random
import shutil
import sqlite3
from pathlib import Path

import pytest

import replay
import truth
from program import LONG_AFTER, configured
from receiver import Receiver, Span
from spantail.commands import run as run_command
from spantail.commands.run import Run
from spantail.model import SECOND
from spantail.state import rescue
from spantail.state.packing import packed
from spantail.state.schema import CHECKED
from spantail.state.store import Changes, OutboxReader, Store
from spantail.tail.wake import HandWaker
from test_run import until

CASES = [truth.FIXTURES / "claude-code" / name for name in ("tools-a", "resume-a", "text-a")]
PAGE = 4096


class Desk:
    """A home that is read before and after its state is damaged."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "home"
        self.state = folder / "state"
        self.shown: dict[object, float] = {}

    def write(self, case: Path) -> None:
        shutil.copytree(case / "home", self.home, dirs_exist_ok=True)

    def run(self, clock: int = LONG_AFTER, **settings) -> dict[object, float]:
        """The page afterwards. No series of it is smaller than it was, and none is gone."""
        config = configured(self.home, self.state, **settings)
        assert run_command.main(config, os.environ, clock=lambda: clock) == 0
        before, self.shown = self.shown, page(self.state / "page.prom")
        fallen = {
            key: (value, self.shown.get(key))
            for key, value in before.items()
            if fell(value, self.shown.get(key))
        }
        assert not fallen
        return self.shown

    @property
    def file(self) -> Path:
        return self.state / "state.db"

    def ask(self, question: str) -> list[tuple]:
        with sqlite3.connect(self.file) as db:
            found = db.execute(question).fetchall()
        db.close()
        return found

    def spoil(self, *tables: str) -> None:
        """The root page of each table becomes noise."""
        for (page_,) in self.ask(
            f"SELECT rootpage FROM sqlite_master WHERE name IN ({str(tables)[1:-1].rstrip(',')})"
        ):
            self.overwrite((page_ - 1) * PAGE, os.urandom(PAGE))

    def overwrite(self, at: int, noise: bytes) -> None:
        with self.file.open("r+b") as file:
            file.seek(at)
            file.write(noise)

    def aside(self) -> list[str]:
        return sorted(path.name for path in self.state.glob("state.broken-*.db"))


def fell(before: float, after: float | None) -> bool:
    return after is None or after < before - 1e-9


def page(path: Path) -> dict[object, float]:
    """Every counter; gauges may fall."""
    return {
        (name, tuple(sorted(labels.items()))): round(value, 6)
        for name, series in truth.samples(path.read_text()).items()
        for labels, value in series
        if name.endswith(("_total", "_count", "_bucket", "_sum"))
        and not name.startswith(("process_", "spantail_errors", "spantail_read_bytes", "spantail_records"))
    }


def agents(page_: dict[object, float]) -> dict[object, float]:
    return {key: value for key, value in page_.items() if key[0].startswith("coding_agent_") and value}


@pytest.fixture
def desk(tmp_path, monkeypatch):
    return Desk(tmp_path)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """What two runs give that nothing comes between."""
    calm = Desk(tmp_path_factory.mktemp("calm"))
    calm.write(CASES[0])
    calm.run()
    calm.write(CASES[1])
    return agents(calm.run())


def test_all_is_saved_when_only_open_work_is_lost(desk, undisturbed, capsys):
    """Positions, ledger and totals are whole: the same totals as if nothing had happened."""
    desk.write(CASES[0])
    desk.run()
    desk.spoil("works", "outbox")
    desk.write(CASES[1])
    assert agents(desk.run()) == undisturbed
    assert _said(capsys)["kept"] == "all"
    assert len(desk.aside()) == 1
    assert {path.stat().st_mode & 0o777 for path in desk.state.glob("state.*db")} == {0o600}


@pytest.mark.parametrize("lost", ["ledger", "groups", "cursors"])
def test_totals_are_kept_when_the_ledger_is_lost(lost, desk, undisturbed, capsys):
    """Nothing is counted twice and nothing is sent again; what began after the last commit is counted."""
    desk.write(CASES[0])
    first = _first_time(CASES[1])
    desk.run(clock=first - SECOND, idle=5 * SECOND)  # its run is over by then
    desk.spoil(lost)
    desk.write(CASES[1])
    with Receiver("http") as receiver:
        spans = _with_spans(desk, receiver)
    assert agents(desk.shown) == undisturbed
    assert _said(capsys)["kept"] == "totals"
    assert {span.attrs["session.id"] for span in spans if truth.is_turn(span)} == {
        json.loads(line)["sessionId"]
        for line in next((CASES[1] / "home").rglob("projects/*/*.jsonl")).read_text().splitlines()
        if '"sessionId"' in line
    }


def _first_time(case: Path) -> int:
    return min(at for at, _, _ in replay.lines(case / "home") if at)


def _with_spans(desk: Desk, receiver: Receiver) -> list[Span]:
    old = dict(os.environ)
    os.environ.update(receiver.environ())
    try:
        desk.run()
    finally:
        os.environ.clear()
        os.environ.update(old)
    return receiver.spans


def test_no_total_falls_when_a_part_of_them_is_lost(desk, undisturbed, capsys):
    """What is lost is counted again from the files; what could be read stands if it is larger."""
    desk.write(CASES[0])
    for name in ("subagent-a", "tools-a", "mcp-a"):
        desk.write(truth.FIXTURES / "codex" / name)
    desk.run()
    (kept,) = desk.ask("SELECT sum(input) FROM hours")
    pages = desk.ask("SELECT pageno FROM dbstat WHERE name='totals' AND pagetype='leaf' ORDER BY path")
    assert len(pages) > 2
    desk.overwrite((pages[1][0] - 1) * PAGE, os.urandom(PAGE))
    shutil.rmtree(next((desk.home / ".claude/projects").iterdir()))  # what is gone cannot be counted again
    readable = {(row.family, row.labels) for row in rescue.least(desk.file)[0]}
    assert readable
    before = {key: value for key, value in desk.shown.items() if _key(key) in readable}
    assert len(before) < len(desk.shown)
    desk.shown = before
    desk.write(CASES[1])
    desk.run()
    assert _said(capsys)["kept"] == "least"
    assert desk.ask("SELECT sum(input) FROM hours") >= [kept]
    again = desk.run()
    assert agents(again) == agents(desk.shown)  # raised once, not at every start


def _key(key: object) -> tuple[str, str]:
    """How the state names a series of the page."""
    from spantail.state.families import BY_NAME

    name, labels = key
    labels = {label: value for label, value in labels if label != "le"}
    for suffix in ("", "_bucket", "_count", "_sum"):
        family = BY_NAME.get(name.removesuffix(suffix) if suffix else name)
        if family is not None:
            values = [labels.get(label, "") for label in family.labels]
            return family.name, json.dumps(values, separators=(",", ":"), ensure_ascii=False)
    raise KeyError(name)


def test_a_kill_while_it_is_rebuilt_changes_nothing(desk, undisturbed):
    """The totals that could be saved are not added to what was counted before the kill."""
    desk.write(CASES[0])
    desk.run()
    desk.spoil("ledger", "hours")
    desk.write(CASES[1])
    store = Store(desk.state)
    assert store.rescued.kept == "least"
    run = Run(configured(desk.home, desk.state), {}, store, clock=lambda: LONG_AFTER, strict=True)
    take, taken = run.follow._take_new, []

    def until_the_kill(sources, **how):
        taken.extend(sources[:1])
        take(sources[:1], **how)
        run.follow.commit()
        raise KeyboardInterrupt

    run.follow._take_new = until_the_kill
    with pytest.raises(KeyboardInterrupt):
        run.begin()
    store.close()
    assert taken
    assert agents(desk.run()) == undisturbed


@pytest.mark.parametrize(
    "spoil",
    [
        lambda file: file.write_bytes(os.urandom(20_000)),
        lambda file: file.write_bytes(os.urandom(100) + file.read_bytes()[100:]),
        lambda file: (file.unlink(), file.mkdir(), (file / "x").touch()),
        lambda file: file.write_bytes(file.read_bytes()[: PAGE + 7]),
    ],
    ids=["noise", "header", "folder", "truncated"],
)
def test_what_cannot_be_read_at_all_is_counted_again(spoil, desk, undisturbed, capsys):
    """Said in one clear line, set aside, and the files are read as at a first start."""
    desk.write(CASES[0])
    desk.run()
    spoil(desk.file)
    desk.write(CASES[1])
    assert agents(desk.run()) == undisturbed
    said = _said(capsys)
    assert (said["level"], said["kept"]) == ("error", "least")
    assert Path(said["path"]).name in desk.aside()


def test_an_empty_file_is_a_state_that_has_not_begun(desk, undisturbed):
    desk.write(CASES[0])
    desk.run()
    desk.file.write_bytes(b"")
    desk.write(CASES[1])
    assert agents(desk.run()) == undisturbed
    assert desk.aside() == []


def test_a_damaged_log_takes_the_state_back_and_the_files_bring_it_forward(desk, undisturbed, tmp_path):
    """SQLite leaves a log out whose checksums are wrong: an older moment that really was, read on from there."""
    desk.write(CASES[0])
    desk.run()
    whole = Store(desk.state)  # a process that never closes: its log stays
    shutil.copytree(desk.state, tmp_path / "copy")
    whole.close()
    desk.write(CASES[1])
    desk.run()
    other = Desk(tmp_path)
    other.home, other.state = desk.home, tmp_path / "copy"
    Path(f"{other.file}-wal").write_bytes(os.urandom(50_000))
    assert agents(other.run()) == undisturbed


@pytest.mark.parametrize("seed", range(12))
def test_any_page_may_be_damaged(seed, desk, undisturbed):
    """Whatever is hit: it starts, nothing that was read back falls, and a second run finds nothing wrong."""
    dice = random.Random(seed)
    desk.write(CASES[0])
    desk.write(CASES[2])
    desk.run()
    pages = desk.file.stat().st_size // PAGE
    for _ in range(2):
        at = dice.randrange(pages) * PAGE + dice.randrange(PAGE // 2)
        desk.overwrite(at, dice.randbytes(dice.choice([1, 64, 2048])))
    desk.write(CASES[1])
    desk.shown = {}  # single bytes inside a value cannot be told from the value
    desk.run()
    desk.run()
    assert [desk.ask(f"PRAGMA integrity_check({table})") for table in CHECKED] == [[("ok",)]] * len(CHECKED)


def test_damage_that_shows_while_it_runs(desk, undisturbed):
    """The loop gives up the file, not the work: what was not committed is read again, as after a kill."""
    desk.write(CASES[0])
    now = [LONG_AFTER]
    store = Store(desk.state)
    config = configured(desk.home, desk.state, once=False)
    waker = HandWaker()
    run = Run(config, {}, store, clock=lambda: now[0], waker=waker, strict=True)
    run.begin()
    store.db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    desk.spoil("works")
    store.db.execute("PRAGMA shrink_memory")  # what is cached would hide it for a while
    desk.write(CASES[1])
    waker.lose()
    with pytest.raises(sqlite3.DatabaseError):
        run.follow.step(0)
    store.rescue(1)
    run = Run(config, {}, store, clock=lambda: now[0], waker=HandWaker(), strict=True)
    run.begin()
    run._leave()
    store.close()
    assert agents(page(desk.state / "page.prom")) == undisturbed


def test_a_damaged_outbox_is_noticed_by_its_reader(desk, monkeypatch):
    """Spans that can still be read are sent after the rescue, and what comes later is too."""
    store = Store(desk.state)
    noise = [os.urandom(3000) for _ in range(40)]
    store.commit(Changes(spans=[packed(1, body) for body in noise]), 1)
    store.db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    (leaves,) = zip(
        *desk.ask("SELECT pageno FROM dbstat WHERE name='outbox' AND pagetype='leaf'"), strict=True
    )
    desk.overwrite((leaves[len(leaves) // 2] - 1) * PAGE, bytes(PAGE))
    told: list[sqlite3.Error] = []
    reader = OutboxReader(desk.file, told.append)
    with pytest.raises(sqlite3.DatabaseError):
        reader.pending(0, 1 << 30)
    assert len(told) == 1
    reader.close()
    store.db.execute("PRAGMA shrink_memory")
    store.rescue(1)
    saved = OutboxReader(desk.file).pending(0, 1 << 30)
    assert 0 < len(saved) < 40
    assert {body for _, _, body in saved} < set(noise)
    assert store.waiting_spans == len(saved)
    store.close()


def test_a_damaged_outbox_ends_the_loop(desk, http_receiver, monkeypatch):
    """What the deliverer finds is handled by who can: the loop, with its next commit."""
    for key, value in http_receiver.environ().items():
        monkeypatch.setenv(key, value)
    store = Store(desk.state)
    run = Run(
        configured(desk.home, desk.state, once=False), os.environ, store,
        clock=lambda: LONG_AFTER, waker=HandWaker(), strict=True,
    )  # fmt: skip
    run.begin()
    assert run.deliverer.wait_idle(20)  # its first look is over: the next one is at what is damaged
    store.commit(Changes(spans=[packed(1, os.urandom(3000)) for _ in range(40)]), 1)
    store.db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    (leaves,) = zip(
        *desk.ask("SELECT pageno FROM dbstat WHERE name='outbox' AND pagetype='leaf'"), strict=True
    )
    desk.overwrite((leaves[len(leaves) // 2] - 1) * PAGE, bytes(PAGE))
    run.deliverer.wake()
    until(lambda: run.follow._damage)
    with pytest.raises(sqlite3.DatabaseError):
        run.follow.step(0)
    run.deliverer.stop(5)
    store.close()


def test_a_kill_between_the_two_files(desk, undisturbed):
    """The damaged file is away and the sound one not yet in its place: the next start puts it there."""
    desk.write(CASES[0])
    desk.run()
    desk.file.rename(desk.state / "state.mended.db")
    Path(f"{desk.file}-wal").write_bytes(b"of the damaged one")
    desk.write(CASES[1])
    assert agents(desk.run()) == undisturbed


def test_trouble_that_passes_is_not_damage(desk, tmp_path):
    """A state that cannot be opened right now is left where it is."""
    desk.write(CASES[0])
    desk.run()
    other = sqlite3.connect(desk.file, isolation_level=None)
    other.execute("PRAGMA locking_mode=EXCLUSIVE")
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(sqlite3.OperationalError):
        Store(desk.state)
    other.close()
    assert desk.aside() == []
    Store(desk.state).close()


def _said(capsys) -> dict[str, str]:
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    (line,) = [line for line in lines if line["event"] == "state_set_aside"]
    return line

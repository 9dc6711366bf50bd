from __future__ import annotations

import os

import pytest

from spantail.model import SECOND
from spantail.out.page import Page
from spantail.out.textfile import TextFile
from spantail.state.families import COMPACTIONS
from spantail.state.totals import Totals


class Clock:
    now = 1_700_000_000 * SECOND

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def totals() -> Totals:
    totals = Totals(hold=90 * SECOND)
    totals.add(COMPACTIONS, ("a", "p"), 3, 1)
    totals.rows()
    totals.committed()
    return totals


@pytest.fixture
def page(totals, clock) -> Page:
    page = Page(totals, clock=clock)
    page.open()
    return page


def test_the_file_is_the_page_that_a_scraper_sees(tmp_path, totals, page, clock):
    """New series are 0 in it until their hold is over."""
    path = tmp_path / "spantail.prom"
    file = TextFile(path, page, clock)
    assert file.write()
    assert 'project="p"} 0\n' in path.read_text()
    totals.rows()
    totals.committed()
    clock.now += 90 * SECOND
    assert file.write()
    assert 'project="p"} 3\n' in path.read_text()
    # What the process itself uses changes from one look to the next.
    ours, _, _ = page.render(scraper=True)[0].partition(b"# HELP process_")
    assert path.read_bytes().partition(b"# HELP process_")[0] == ours


def test_it_is_written_once_a_second_at_most_but_always_at_exit(tmp_path, page, clock):
    """A commit every 10 ms does not write the disk full of pages."""
    file = TextFile(tmp_path / "a.prom", page, clock)
    written = []
    for _ in range(25):
        written.append(file.write())
        clock.now += SECOND // 10
    assert [at for at, did in enumerate(written) if did] == [0, 10, 20]
    assert file.write(now=True)


def test_no_file_before_the_backlog_is_committed(tmp_path, totals, clock):
    """A page that /metrics would refuse is not written either, not even at exit."""
    path = tmp_path / "a.prom"
    assert not TextFile(path, Page(totals, clock=clock), clock).write(now=True)
    assert not path.exists()


def test_it_replaces_the_file_and_leaves_nothing_else_behind(tmp_path, page, clock):
    """Who has the old page open goes on reading the old page; others may read the new one."""
    path = tmp_path / "a.prom"
    path.write_text("old\n")
    umask = os.umask(0o022)
    try:
        with path.open() as old:
            TextFile(path, page, clock).write()
            assert old.read() == "old\n"
    finally:
        os.umask(umask)
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.prom"]
    assert path.stat().st_mode & 0o777 == 0o644


def test_a_folder_that_is_not_there_is_the_callers_to_say(tmp_path, page, clock):
    """And the next try comes a second later, not at once."""
    file = TextFile(tmp_path / "missing" / "a.prom", page, clock)
    with pytest.raises(FileNotFoundError):
        file.write()
    assert not file.write()


def test_a_failed_rename_leaves_no_half_page(tmp_path, page, clock):
    """The target is a folder: the new file is taken away again."""
    path = tmp_path / "a.prom"
    path.mkdir()
    with pytest.raises(OSError, match=r"a\.prom"):
        TextFile(path, page, clock).write()
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.prom"]


def test_what_was_left_unwritten_or_is_old_is_written_without_a_commit(tmp_path, page, clock):
    """A commit in the same second as the last page, and the end of a hold."""
    file = TextFile(tmp_path / "a.prom", page, clock)
    assert not file.refresh()
    assert file.write()
    assert not file.write()
    assert not file.refresh()
    clock.now += SECOND
    assert file.refresh()
    clock.now += SECOND
    assert not file.refresh()
    clock.now += 15 * SECOND
    assert file.refresh()

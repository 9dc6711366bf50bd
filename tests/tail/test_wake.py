"""A wait ends with the change, the poke or the time, by whichever means."""

import ctypes
import errno
import os
import signal
import threading

import pytest

from spantail.tail import inotify
from spantail.tail.inotify import InotifyWaker
from spantail.tail.wake import EventWaker, FallbackWaker, HandWaker, PollWaker, open_waker

LONG = 20.0
"""Seconds that no test takes: events end the waits."""


def until(waker, path):
    """Waits until the path is reported."""
    seen = set()
    while path not in seen:
        changed = waker.wait(LONG)
        if changed is None:
            continue
        assert changed, f"nothing more after {seen}"
        seen |= changed
    return seen


def append(path, data=b"x"):
    with path.open("ab") as out:
        out.write(data)


@pytest.fixture(params=["inotify", "watchfiles"])
def waker(request):
    waker = InotifyWaker(lambda _: True) if request.param == "inotify" else EventWaker()
    yield waker
    waker.close()


def test_an_append_is_reported(waker, tmp_path):
    """By its path."""
    file = tmp_path / "a" / "1.jsonl"
    file.parent.mkdir()
    append(file)
    assert waker.watch([str(tmp_path)])
    append(file)
    until(waker, str(file))


def test_a_file_in_a_new_folder_can_be_found(waker, tmp_path):
    """The folder is reported, and what is written to it after that report as well."""
    waker.watch([str(tmp_path)])
    folder = tmp_path / "new" / "er"
    folder.mkdir(parents=True)
    until(waker, str(tmp_path / "new"))
    append(folder / "1.jsonl")
    until(waker, str(folder / "1.jsonl"))


def test_a_rename_reports_the_new_path(waker, tmp_path):
    """From where the file goes on."""
    (tmp_path / "q").mkdir()
    append(tmp_path / "1.jsonl")
    waker.watch([str(tmp_path)])
    (tmp_path / "1.jsonl").rename(tmp_path / "q/1.jsonl")
    until(waker, str(tmp_path / "q/1.jsonl"))


def test_a_folder_is_added_without_losing_events(waker, tmp_path):
    """A write between two calls is reported, or the waker says that it cannot tell."""
    for name in "ab":
        (tmp_path / name).mkdir()
    assert waker.watch([str(tmp_path / "a")])
    append(tmp_path / "a/1.jsonl")
    assert waker.watch([str(tmp_path / "a"), str(tmp_path / "b")])
    changed = waker.wait(LONG)
    assert changed is None or str(tmp_path / "a/1.jsonl") in changed
    append(tmp_path / "b/1.jsonl")
    until(waker, str(tmp_path / "b/1.jsonl"))


def test_watching_the_same_again_is_nothing_new(waker, tmp_path):
    """The periodic pass asks every time."""
    assert waker.watch([str(tmp_path)])
    assert not waker.watch([str(tmp_path)])


def test_missing_folders_are_left_out(waker, tmp_path):
    """And taken when they are there."""
    folders = [str(tmp_path / "a"), str(tmp_path / "b")]
    (tmp_path / "a").mkdir()
    assert waker.watch(folders)
    assert not waker.watch(folders)
    (tmp_path / "b").mkdir()
    assert waker.watch(folders)


def test_nothing_happens(waker, tmp_path):
    """An empty set when the time is up."""
    waker.watch([str(tmp_path)])
    while waker.wait(0) is None:
        pass
    assert waker.wait(0.001) == set()


def test_a_poke_ends_a_wait(waker, tmp_path):
    """From another thread, at once; one that came before the wait ends the next."""
    waker.watch([str(tmp_path)])
    waker.poke()
    assert waker.wait(LONG) == set()
    thread = threading.Thread(target=waker.poke)
    thread.start()
    assert waker.wait(LONG) == set()
    thread.join()
    assert waker.wait(0) == set()


def test_a_poke_loses_no_change(waker, tmp_path):
    """A change that came together with pokes is still reported."""
    waker.watch([str(tmp_path)])
    append(tmp_path / "1.jsonl")
    for _ in range(3):
        waker.poke()
    seen = set()
    while str(tmp_path / "1.jsonl") not in seen:
        waker.poke()
        seen |= waker.wait(LONG)


def test_a_signal_handler_may_poke(waker, tmp_path):
    """The handler runs in the waiting thread."""
    waker.watch([str(tmp_path)])
    before = signal.signal(signal.SIGUSR1, lambda *_: waker.poke())
    try:
        sender = threading.Timer(0.01, os.kill, (os.getpid(), signal.SIGUSR1))
        sender.start()
        assert waker.wait(LONG) == set()
        sender.join()
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_many_pokes_do_not_block(waker):
    """More than a pipe holds, with nobody waiting."""
    for _ in range(70_000):
        waker.poke()
    assert waker.wait(LONG) == set()
    assert waker.wait(0) == set()


def test_inotify_watches_only_where_files_may_appear(tmp_path):
    """Also of folders that come later."""
    (tmp_path / "yes").mkdir()
    (tmp_path / "no").mkdir()
    waker = InotifyWaker(lambda path: not path.endswith("/no"))
    waker.watch([str(tmp_path)])
    (tmp_path / "yes/no").mkdir()
    until(waker, str(tmp_path / "yes/no"))
    append(tmp_path / "no/1.jsonl")
    append(tmp_path / "yes/no/2.jsonl")
    append(tmp_path / "yes/3.jsonl")
    seen = until(waker, str(tmp_path / "yes/3.jsonl"))
    assert not seen & {str(tmp_path / "no/1.jsonl"), str(tmp_path / "yes/no/2.jsonl")}
    waker.close()


def test_inotify_follows_a_moved_folder(tmp_path):
    """Paths are those after the move; a folder moved out is heard of no more."""
    (tmp_path / "in/a/sub").mkdir(parents=True)
    waker = InotifyWaker(lambda _: True)
    waker.watch([str(tmp_path / "in")])
    (tmp_path / "in/a").rename(tmp_path / "in/b")
    until(waker, str(tmp_path / "in/b"))
    append(tmp_path / "in/b/sub/1.jsonl")
    until(waker, str(tmp_path / "in/b/sub/1.jsonl"))
    (tmp_path / "in/b").rename(tmp_path / "out")
    until(waker, str(tmp_path / "in/b"))
    append(tmp_path / "out/sub/2.jsonl")
    append(tmp_path / "in/3.jsonl")
    assert until(waker, str(tmp_path / "in/3.jsonl")) == {str(tmp_path / "in/3.jsonl")}
    waker.close()


def test_inotify_says_when_its_queue_overflowed(tmp_path):
    """More changes than the kernel keeps: None, and then it goes on."""
    with open("/proc/sys/fs/inotify/max_queued_events") as limit:  # noqa: PTH123
        most = int(limit.read())
    if most > 100_000:
        pytest.skip("the kernel's queue is too long to fill here")
    waker = InotifyWaker(lambda _: True)
    waker.watch([str(tmp_path)])
    files = [open(tmp_path / name, "ab", buffering=0) for name in "ab"]  # noqa: SIM115, PTH123
    for _ in range(most // 2 + 10):  # by turns, since equal events in a row are one
        for file in files:
            file.write(b"x")
    assert waker.wait(LONG) is None
    files[0].write(b"x")
    until(waker, str(tmp_path / "a"))
    for file in files:
        file.close()
    waker.close()


def test_inotify_watches_a_root_that_was_made_again(tmp_path):
    """Deleted and made again between two passes."""
    root = tmp_path / "root"
    root.mkdir()
    waker = InotifyWaker(lambda _: True)
    waker.watch([str(root)])
    root.rmdir()
    waker.wait(LONG)
    root.mkdir()
    assert waker.watch([str(root)])
    append(root / "1.jsonl")
    until(waker, str(root / "1.jsonl"))
    waker.close()


def test_inotify_reports_names_that_are_not_utf8(tmp_path):
    """As Python writes them; the finder passes over them."""
    waker = InotifyWaker(lambda _: True)
    waker.watch([str(tmp_path)])
    path = os.fsdecode(os.fsencode(tmp_path) + b"/\xff.jsonl")
    with open(path, "wb"):  # noqa: PTH123
        pass
    until(waker, path)
    waker.close()


def test_watchfiles_broken_by_a_name_is_started_again(tmp_path):
    """It stops for good at a name that is not UTF-8: look at everything, and watch anew."""
    waker = EventWaker()
    waker.watch([str(tmp_path)])
    path = os.fsdecode(os.fsencode(tmp_path) + b"/\xff.jsonl")
    with open(path, "wb"):  # noqa: PTH123
        pass
    assert waker.wait(LONG) is None
    assert waker.watch([str(tmp_path)])
    append(tmp_path / "1.jsonl")
    until(waker, str(tmp_path / "1.jsonl"))
    waker.close()


class Clock:
    """Moves by a second with each look."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        self.now += 1
        return self.now


def test_polling_finds_what_grew_came_and_went(tmp_path):
    """By size, time and inode of the known paths."""
    file, other = tmp_path / "1", tmp_path / "2"
    append(file)
    waker = PollWaker(lambda: [str(file), str(other)], 0.0, Clock())
    assert waker.wait(2.5) == {str(file)}
    assert waker.wait(2.5) == set()
    append(file)
    append(other)
    assert waker.wait(2.5) == {str(file), str(other)}
    other.unlink()
    assert waker.wait(2.5) == {str(other)}
    waker.poke()
    assert waker.wait(1e9) == set()
    assert not waker.watch([str(tmp_path)])
    waker.close()


def test_polling_finds_new_files_by_their_folder(tmp_path):
    """A folder's time changes with what is made in it."""
    waker = PollWaker(lambda: [str(tmp_path)], 0.0, Clock())
    waker.wait(2.5)
    os.utime(tmp_path, ns=(1, 1))
    waker.wait(2.5)
    append(tmp_path / "1")
    assert waker.wait(2.5) == {str(tmp_path)}
    waker.close()


def test_by_hand():
    """What a test changes is what the next wait gives; nothing sleeps."""
    waits = []
    waker = HandWaker(waits.append)
    assert waker.watch(["/a"])
    assert not waker.watch(["/a"])
    waker.change("/a/1", "/a/2")
    assert waker.wait(3) == {"/a/1", "/a/2"}
    assert waker.wait(4) == set()
    waker.lose()
    assert waker.wait(5) is None
    assert waits == [3, 4, 5]


class Heard(list):
    def watch_failed(self, reason):
        self.append(reason)


class Refusing(HandWaker):
    """A system whose watches are used up."""

    closed = False

    def watch(self, folders):
        raise OSError(errno.ENOSPC, "no watches left")

    def close(self):
        self.closed = True


def test_a_system_that_refuses_watches_is_polled():
    """It is said once, and everything is to be looked at."""
    refusing, poll, heard = Refusing(), HandWaker(), Heard()
    waker = FallbackWaker(lambda: refusing, lambda: poll, heard)
    assert not waker.polling
    assert waker.watch(["/a"])
    assert waker.polling
    assert refusing.closed
    assert heard == ["no watches left"]
    poll.change("/a/1")
    assert waker.wait(1) == {"/a/1"}
    waker.poke()
    assert poll.poked == 1


class UsedUp:
    """inotify whose watches are used up."""

    @staticmethod
    def inotify_add_watch(*_):
        ctypes.set_errno(errno.ENOSPC)
        return -1


def test_a_system_that_refuses_a_new_folder_is_polled(tmp_path, monkeypatch):
    """The watches are used up while it runs: said, and what is in that folder does not wait for the next scan."""
    heard, poll = Heard(), HandWaker()
    waker = FallbackWaker(lambda: InotifyWaker(lambda _: True), lambda: poll, heard)
    waker.watch([str(tmp_path)])
    monkeypatch.setattr(inotify, "_libc", UsedUp)
    (tmp_path / "new").mkdir()
    assert waker.wait(LONG) is None
    assert waker.polling
    assert len(heard) == 1
    assert "max_user_watches" in heard[0]
    poll.change("x")
    waker.wait(LONG)
    waker.close()


def test_a_system_that_refuses_a_watcher_is_polled():
    """At the start already."""

    def refused():
        raise OSError(errno.EMFILE, "no watchers left")

    heard = Heard()
    waker = FallbackWaker(refused, HandWaker, heard)
    assert waker.polling
    assert heard == ["no watchers left"]


def test_the_best_waker_is_opened(tmp_path):
    """Notifications, or polling where the user asks for it."""
    waker = open_waker(list, lambda _: True, Heard())
    assert waker.watch([str(tmp_path)])
    append(tmp_path / "1.jsonl")
    until(waker, str(tmp_path / "1.jsonl"))
    waker.close()
    waker = open_waker(list, lambda _: True, Heard(), poll=0.25)
    assert isinstance(waker, PollWaker)
    waker.close()

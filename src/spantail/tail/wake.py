"""When to look: the waker sleeps until a file changed, time is up or somebody pokes it.

The illusion kept for the loop: one call, `wait`, that returns the changed paths the moment there are any and
costs next to nothing in between. Which means is behind it (the system's notifications, polling, a test's hand)
the loop cannot tell. A path may be a file or a folder, and may be gone by now. No waker is trusted to be
complete: the loop's periodic pass looks at everything that is followed.

`InotifyWaker` (Linux, in `inotify`) is the best of them: an append wakes it in 0.1 ms, rest costs nothing.
`EventWaker` takes watchfiles where there is no inotify: 1.7 ms while changes keep coming, 50 to 70 ms for the first
after a quiet while, 0.1% of a core at rest. `PollWaker` is for file systems that report nothing, `HandWaker` for
tests and for `--once`, which waits for nothing. `open_waker` chooses. A poke is heard within 0.1 ms by all of them.
"""

from __future__ import annotations

import contextlib
import os
import platform
import select
import time
from collections.abc import Callable, Iterable
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from watchfiles._rust_notify import RustNotify

_SHORT, _LONG = 1, 50
"""Milliseconds between two looks of watchfiles: a step of 1 sees an append in 2 ms and costs 2-3% of a core, one
of 50 sees it in 60-100 ms and costs 0.15%."""
_QUIET: Final = 3_000
"""Milliseconds without a change after which the long step is taken."""
_DEBOUNCE: Final = 10


class Waker(Protocol):
    def watch(self, folders: Iterable[str]) -> bool:
        """Watches these folders and all below, and no others; missing ones are left out. True if some are new:
        then look through them now, for what came before the watch. OSError if the system refuses."""
        ...

    def wait(self, timeout: float) -> set[str] | None:
        """Changed paths; none after `timeout` seconds or a poke; None: look at everything. OSError if the system
        refuses to watch a folder that is new."""
        ...

    def poke(self) -> None:
        """Ends the wait, or the next one; from any thread, or a signal handler."""
        ...

    def close(self) -> None: ...


class Notices(Protocol):
    def watch_failed(self, reason: str) -> None:
        """The system refuses to watch; changes are found by polling instead."""
        ...


class Bell:
    """Ends a wait from elsewhere. A pipe, because a signal handler may ring it at any moment and no lock is
    held, and because it can be waited for together with other descriptors."""

    def __init__(self) -> None:
        self._out, self._in = os.pipe()
        os.set_blocking(self._out, False)
        os.set_blocking(self._in, False)
        self._ready = select.poll()
        self._ready.register(self._out, select.POLLIN)

    def fileno(self) -> int:
        return self._out

    def ring(self) -> None:
        # Full: it rings already. Closed: nobody waits any more.
        with contextlib.suppress(OSError):
            os.write(self._in, b"\0")

    def wait(self, timeout: float) -> bool:
        ready = self._ready.poll(max(0.0, timeout) * 1000)
        if ready:
            self.still()
        return bool(ready)

    def still(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while len(os.read(self._out, 512)) == 512:
                pass

    def close(self) -> None:
        os.close(self._out)
        # The number may soon be another file's, and somebody may still ring.
        closing, self._in = self._in, -1
        os.close(closing)


class EventWaker:
    """watchfiles, in a thread of its own: ending its `watch` from outside throws away the changes it has
    gathered, so nothing ever does, and a poke is heard at once instead of at the next step."""

    def __init__(self) -> None:
        self._bell = Bell()
        self._lock = Lock()
        self._changed: set[str] | None = set()
        self._watched: list[str] = []
        self._stop: Event | None = None
        self._thread: Thread | None = None

    def watch(self, folders: Iterable[str]) -> bool:
        wanted = sorted(folder for folder in folders if os.path.isdir(folder))  # noqa: PTH112
        if wanted == self._watched:
            return False
        new = not set(wanted) <= set(self._watched)
        # The new watcher sees before the old one is blind.
        stop, old_stop, old = Event(), self._stop, self._thread
        thread = None
        if wanted:
            from watchfiles._rust_notify import RustNotify  # with anyio: 0.1 s, for this waker only

            try:
                notify = RustNotify(
                    wanted,
                    debug=False,
                    force_polling=False,
                    poll_delay_ms=0,
                    recursive=True,
                    ignore_permission_denied=True,
                )
            except RuntimeError as error:
                raise OSError(str(error)) from error
            thread = Thread(target=self._follow, args=(notify, stop), name="spantail-wake", daemon=True)
            thread.start()
        self._watched, self._stop, self._thread = wanted, stop, thread
        if old_stop is not None and old is not None:
            old_stop.set()
            old.join()
            # What it had gathered and not yet told is lost with it.
            self._tell(None)
        return new

    def wait(self, timeout: float) -> set[str] | None:
        self._bell.wait(timeout)
        with self._lock:
            changed, self._changed = self._changed, set()
        return changed

    def poke(self) -> None:
        self._bell.ring()

    def close(self) -> None:
        if self._stop is not None and self._thread is not None:
            self._stop.set()
            self._thread.join()
        self._bell.close()

    def _follow(self, notify: RustNotify, stop: Event) -> None:
        step = _SHORT
        with notify:
            while not stop.is_set():
                try:
                    seen = notify.watch(_DEBOUNCE, step, _QUIET if step == _SHORT else 0, stop)
                except RuntimeError:
                    # The watcher is broken for good, for example by a file name that is not UTF-8.
                    self._watched = []
                    self._tell(None)
                    return
                if isinstance(seen, set):
                    step = _SHORT
                    self._tell({path for _, path in seen})
                else:
                    step = _LONG

    def _tell(self, paths: set[str] | None) -> None:
        with self._lock:
            self._changed = None if paths is None or self._changed is None else self._changed | paths
        self._bell.ring()


class PollWaker:
    """Looks at sizes and times itself. `known` gives the files followed, and the folders in which new ones may
    appear (a folder's time changes when a file is made in it)."""

    def __init__(
        self,
        known: Callable[[], Iterable[str]],
        interval: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._known = known
        self._interval = interval
        self._clock = clock
        self._bell = Bell()
        self._seen: dict[str, tuple[int, int, int]] = {}

    def watch(self, folders: Iterable[str]) -> bool:  # noqa: ARG002 it looks at what is known
        return False

    def wait(self, timeout: float) -> set[str] | None:
        end = self._clock() + timeout
        while True:
            rung = self._bell.wait(min(self._interval, end - self._clock()))
            changed = self.look()
            if changed or rung or self._clock() >= end:
                return changed

    def look(self) -> set[str]:
        """What is not as at the last look; what is seen for the first time counts as changed."""
        now: dict[str, tuple[int, int, int]] = {}
        for path in self._known():
            with contextlib.suppress(OSError):
                stat = os.stat(path)  # noqa: PTH116
                now[path] = (stat.st_size, stat.st_mtime_ns, stat.st_ino)
        before, self._seen = self._seen, now
        changed = {path for path, state in now.items() if before.get(path) != state}
        return changed | (before.keys() - now.keys())

    def poke(self) -> None:
        self._bell.ring()

    def close(self) -> None:
        self._bell.close()


class HandWaker:
    """Driven by a test, or by nobody: a wait returns at once with what the test changed. `waited` is called with each timeout,
    to move the test's clock, or to change something while the loop sleeps."""

    def __init__(self, waited: Callable[[float], None] = lambda _: None) -> None:
        self._waited = waited
        self._changed: set[str] | None = set()
        self.watched: list[str] = []
        self.poked = 0

    def change(self, *paths: str) -> None:
        if self._changed is not None:
            self._changed |= set(paths)

    def lose(self) -> None:
        """As after an overflow: the next wait cannot say what changed."""
        self._changed = None

    def watch(self, folders: Iterable[str]) -> bool:
        before, self.watched = self.watched, sorted(folders)
        return not set(self.watched) <= set(before)

    def wait(self, timeout: float) -> set[str] | None:
        self._waited(timeout)
        changed, self._changed = self._changed, set()
        return changed

    def poke(self) -> None:
        self.poked += 1

    def close(self) -> None: ...


class FallbackWaker:
    """The system's notifications while it grants them; polling from then on."""

    def __init__(self, make: Callable[[], Waker], poll: Callable[[], Waker], notices: Notices) -> None:
        self._poll = poll
        self._notices = notices
        self.polling = False
        try:
            self._inner = make()
        except OSError as error:
            self._fall(error)

    def _fall(self, error: OSError) -> None:
        self.polling = True
        self._inner = self._poll()
        self._notices.watch_failed(error.strerror or str(error))

    def watch(self, folders: Iterable[str]) -> bool:
        wanted = list(folders)
        try:
            return self._inner.watch(wanted)
        except FileNotFoundError:
            # A folder went away in between; the next pass has another list.
            return True
        except OSError as error:
            self._change(error)
            return True

    def _change(self, error: OSError) -> None:
        old = self._inner
        self._fall(error)
        old.close()

    def wait(self, timeout: float) -> set[str] | None:
        try:
            return self._inner.wait(timeout)
        except OSError as error:
            self._change(error)
            return None

    def poke(self) -> None:
        self._inner.poke()

    def close(self) -> None:
        self._inner.close()


def open_waker(
    known: Callable[[], Iterable[str]],
    may_hold: Callable[[str], bool],
    notices: Notices,
    poll: float | None = None,
) -> Waker:
    """The best that this system has. `poll` (seconds): polling, as the user asked. `known`: see PollWaker;
    `may_hold`: whether a folder is worth watching."""

    def polling() -> Waker:
        return PollWaker(known, poll or 0.25)

    def notified() -> Waker:
        if platform.system() == "Linux":
            from spantail.tail.inotify import InotifyWaker

            return InotifyWaker(may_hold)
        return EventWaker()

    return polling() if poll else FallbackWaker(notified, polling, notices)

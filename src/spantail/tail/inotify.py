"""Linux's own notifications, without a library between: an append wakes the loop in a fraction of a millisecond,
and a quiet hour costs nothing.

watchfiles looks every few milliseconds whether its thread has seen something, which is either slow or dear;
it drops what it has gathered when it is interrupted, fails for good at a file name that is not UTF-8, and watches
whole trees. Here the kernel's queue is waited for directly, only folders in which a followed file may appear are
watched, and an overflow of the queue is told (None) and not hidden.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import select
import struct
from collections.abc import Callable, Iterable
from typing import Final

from spantail.tail.wake import Bell

_MODIFY, _MOVED_FROM, _MOVED_TO, _CREATE, _DELETE = 0x2, 0x40, 0x80, 0x100, 0x200
_OVERFLOW, _IGNORED, _ISDIR = 0x4000, 0x8000, 0x4000_0000
_ONLYDIR: Final = 0x0100_0000
_MASK: Final = _MODIFY | _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE | _ONLYDIR
_EVENT: Final = struct.Struct("iIII")
_QUEUE: Final = 1 << 16

_libc: Final = ctypes.CDLL(None, use_errno=True)


def _refused(what: str) -> OSError:
    number = ctypes.get_errno()
    reason = os.strerror(number)
    if number == errno.ENOSPC:
        reason = "no watches left (fs.inotify.max_user_watches)"
    elif number == errno.EMFILE:
        reason = "no watchers left (fs.inotify.max_user_instances)"
    return OSError(number, f"{what}: {reason}")


class InotifyWaker:
    """`may_hold`: whether a followed file may appear in a folder, or below it."""

    def __init__(self, may_hold: Callable[[str], bool]) -> None:
        self._may_hold = may_hold
        self._bell = Bell()
        self._queue: int = _libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._queue < 0:
            self._bell.close()
            raise _refused("inotify")
        self._ready = select.poll()
        self._ready.register(self._queue, select.POLLIN)
        self._ready.register(self._bell, select.POLLIN)
        self._roots: set[str] = set()
        self._paths: dict[int, str] = {}

    def watch(self, folders: Iterable[str]) -> bool:
        wanted = {folder for folder in folders if os.path.isdir(folder)}  # noqa: PTH112
        watched = set(self._paths.values())
        for root in self._roots - wanted:
            self._forget(root)
        # A root that was deleted and made again is wanted, known, and no longer watched.
        new = {root for root in wanted if root not in self._roots or root not in watched}
        for root in new:
            self._add(root)
        self._roots = wanted
        return bool(new)

    def wait(self, timeout: float) -> set[str] | None:
        ready = self._ready.poll(max(0, timeout) * 1000)
        self._bell.still()
        return self._taken() if any(descriptor == self._queue for descriptor, _ in ready) else set()

    def poke(self) -> None:
        self._bell.ring()

    def close(self) -> None:
        os.close(self._queue)
        self._bell.close()

    def _taken(self) -> set[str] | None:
        changed: set[str] = set()
        lost = False
        with contextlib.suppress(BlockingIOError):
            while events := os.read(self._queue, _QUEUE):
                at = 0
                while at < len(events):
                    watch, mask, _, length = _EVENT.unpack_from(events, at)
                    at += _EVENT.size + length
                    if mask & _OVERFLOW:
                        lost = True
                    elif mask & _IGNORED:
                        self._paths.pop(watch, None)
                    elif (folder := self._paths.get(watch)) is not None:
                        path = f"{folder}/{os.fsdecode(events[at - length : at].rstrip(bytes(1)))}"
                        changed.add(path)
                        if mask & _ISDIR and mask & _MOVED_FROM:
                            self._forget(path)
                        elif mask & _ISDIR and mask & (_CREATE | _MOVED_TO) and self._may_hold(path):
                            self._add(path)  # before it is reported, so that a look at it then misses nothing
                if len(events) < _QUEUE // 2:
                    break
        if lost:
            for root in self._roots:
                self._add(root)
            return None
        return changed

    def _add(self, folder: str) -> None:
        """Watches a folder and those below it; each is listed after its watch stands."""
        todo, seen = [folder], set[int]()
        while todo:
            path = todo.pop()
            watch: int = _libc.inotify_add_watch(self._queue, os.fsencode(path), _MASK)
            if watch < 0:
                if ctypes.get_errno() in (errno.ENOENT, errno.EACCES, errno.ENOTDIR, errno.ELOOP):
                    continue
                raise _refused(path)
            if watch in seen:  # by a symbolic link
                continue
            seen.add(watch)
            self._paths[watch] = path
            with contextlib.suppress(OSError), os.scandir(path) as entries:
                todo += [entry.path for entry in entries if _is_folder(entry) and self._may_hold(entry.path)]

    def _forget(self, folder: str) -> None:
        for watch, path in list(self._paths.items()):
            if path == folder or path.startswith(folder + "/"):
                del self._paths[watch]
                _libc.inotify_rm_watch(self._queue, watch)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False

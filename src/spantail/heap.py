"""How the process takes memory and gives it back: what Python and the C library do by default is made for others.

For whoever looks at the size of a process: it follows what is read at the moment, and does not grow with what was
ever read.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
from collections.abc import Iterator

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
"""Of glibc's mallopt."""
LARGE = 1 << 20


def steady() -> None:
    """To be called once, early."""
    # glibc keeps pieces as large as the largest that was ever freed, up to 32 MB, in a heap that seldom shrinks: one
    # long line, and every later one leaves holes in it. And a thread that sends gets a heap of its own.
    with contextlib.suppress(AttributeError, OSError, ValueError):  # another C library
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_MMAP_THRESHOLD, LARGE)
        mallopt(_TRIM_THRESHOLD, 2 * LARGE)
        mallopt(_ARENA_MAX, 1)
    # At the end the interpreter would look through everything for cycles.
    atexit.register(gc.freeze)


@contextlib.contextmanager
def rare_collections() -> Iterator[None]:
    """A backlog makes many objects and no cycles: looking for cycles all the time would be a tenth of it."""
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()

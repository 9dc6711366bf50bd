"""Runs the real program with every file it opens written down: `python watched_run.py LOG ARGS...`.

The hook sees what Python opens, and which databases; the test watches the folders for what libraries open as well.
"""

import os
import sys

log = open(sys.argv[1], "a", buffering=1)  # noqa: PTH123, SIM115 until the end
busy = False


def heard(event, args):
    global busy  # noqa: PLW0603
    if busy or event not in ("open", "sqlite3.connect", "os.remove", "os.rename", "os.mkdir", "os.truncate"):
        return
    busy = True
    try:
        words = [os.fsdecode(arg) if isinstance(arg, (str, bytes)) else str(arg) for arg in args]
        log.write("\t".join([event, *words]).replace("\n", " ") + "\n")
    finally:
        busy = False


sys.addaudithook(heard)

from spantail.cli import main  # noqa: E402

sys.exit(main(sys.argv[2:]))

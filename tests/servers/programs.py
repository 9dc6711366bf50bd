"""The programs behind the tests' servers: found in the cache, or built, or waited for while another process builds.

build.sh puts them into the cache; .ci/run starts that in the background before anything else. Where a program
cannot be had the tests are skipped with the reason (no `go` here), or fail with the end of the build's log (it was
tried, or this is CI: there it is never silently left out).
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
# Read at import: in a test the environment is cleaned of what the user's shell says.
_CACHE_HOME = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
CACHE = Path(os.environ.get("SPANTAIL_TEST_CACHE") or f"{_CACHE_HOME}/spantail-test")
IN_CI = bool(os.environ.get("CI")) or os.environ.get("SPANTAIL_TEST_SERVERS") == "required"
BUILD_SECONDS = 3600
"""For the last of them, with nothing in the Go cache."""


@functools.cache
def program(name: str) -> Path:
    """Where the program is; waits for a build that is under way, and starts one if there is none."""
    path = CACHE / f"{name}-{versions()[name]}"
    started: subprocess.Popen[bytes] | None = None
    deadline = time.monotonic() + BUILD_SECONDS
    while not os.access(path, os.X_OK):
        status = _beside(path, "status")
        if started is not None and started.poll():
            pytest.fail(f"{name} could not be built. {_log(path)}", pytrace=False)
        if started is None and not _is_under_way(status):
            if shutil.which("go") is None:
                unavailable(f"no {name} in {CACHE} and no `go` to build it with (tests/servers/build.sh)")
            if IN_CI and status.startswith("failed"):
                pytest.fail(f"{name} could not be built ({status}). {_log(path)}", pytrace=False)
            environ = {**os.environ, "SPANTAIL_TEST_CACHE": str(CACHE)}
            started = subprocess.Popen(["bash", str(HERE / "build.sh"), name], env=environ)
        if time.monotonic() > deadline:
            pytest.fail(f"{name} is not built after {BUILD_SECONDS} s. {_log(path)}", pytrace=False)
        time.sleep(0.2)  # another process is at work; there is nothing to be woken by
    if started is not None:
        started.wait()
    return path


def unavailable(reason: str) -> None:
    """Something from outside that the test needs cannot be had here: a skip with the reason, in CI a failure."""
    (pytest.fail if IN_CI else pytest.skip)(reason)


def versions() -> dict[str, str]:
    """Of each program that is built for the tests."""
    lines = (HERE / "versions.txt").read_text().splitlines()
    return dict(line.split() for line in lines if not line.startswith("#"))


def _is_under_way(status: str) -> bool:
    """Whether the process that said so is still there: one that was killed has left its word behind."""
    word, _, pid = status.partition(" ")
    return word in ("waiting", "building") and pid.isdigit() and Path(f"/proc/{pid}").exists()


def _log(path: Path) -> str:
    end = "\n".join(_beside(path, "log").splitlines()[-20:])
    return f"The end of {path}.log:\n{end}" if end else f"There is no log at {path}.log."


def _beside(path: Path, suffix: str) -> str:
    try:
        return path.with_name(f"{path.name}.{suffix}").read_text(errors="replace").strip()
    except FileNotFoundError:
        return ""

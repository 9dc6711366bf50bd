"""One server process of a test: on ports of its own on 127.0.0.1, waited for until it is ready, stopped at the end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

import pytest

START_SECONDS = 60
STOP_SECONDS = 20
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Whatever proxy the shell names: 127.0.0.1 is never behind it."""
T = TypeVar("T")


def clean_environ() -> dict[str, str]:
    """The environment without what the user's shell says about OpenTelemetry, proxies or us."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("OTEL_", "SPANTAIL_", "XDG_")) and not name.lower().endswith("_proxy")
    }


def fetch(url: str, body: Any = None) -> Any:
    """The JSON that the URL answers with, to a GET or (with a body) to a POST of JSON."""
    request = urllib.request.Request(url)
    if body is not None:
        request.data = json.dumps(body).encode()
        request.add_header("Content-Type", "application/json")
    with DIRECT.open(request, timeout=20) as answer:
        text = answer.read()
    return json.loads(text) if text else None


def eventually(ask: Callable[[], T], seconds: float = 30, what: str = "") -> T:
    """The first answer that is true; an AssertionError or OSError means not yet."""
    deadline = time.monotonic() + seconds
    while True:
        last: object
        try:
            if found := ask():
                return found
            last = found
        except (AssertionError, OSError) as error:
            last = error
        if time.monotonic() > deadline:
            pytest.fail(f"{what or 'it'} did not come to be in {seconds:.0f} s; last: {last!r}")
        time.sleep(0.05)


class Server:
    """`with` it. `start` and `stop` are for tests in which it goes away and comes back with the same ports."""

    def __init__(
        self,
        command: Sequence[str | Path],
        folder: Path,
        health: str,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        """`folder`: for what it writes, and its log. `health`: the URL that answers 200 when it is ready."""
        self.command = [str(word) for word in command]
        self.folder = folder
        self.log = folder / "server.log"
        self._health = health
        self._environ = {**clean_environ(), **(environ or {})}
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self.command,
                cwd=self.folder,
                env=self._environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        try:
            self._wait_until_ready(self._process)
        except BaseException:
            self.stop()
            raise

    def stop(self, with_signal: int = signal.SIGTERM) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(with_signal)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def _wait_until_ready(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                with DIRECT.open(self._health, timeout=5):
                    return
            except OSError:
                ended = process.poll() is not None
                if ended or time.monotonic() > deadline:
                    said = self.log.read_text(errors="replace")[-2000:]
                    name = Path(self.command[0]).name
                    pytest.fail(f"{name} {'ended' if ended else 'is not ready'}:\n{said}", pytrace=False)
            time.sleep(0.05)

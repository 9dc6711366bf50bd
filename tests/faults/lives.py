"""The program in as many lives as a test takes from it: a real process each time, there within milliseconds.

Most of a start is imports. So a small server, a process without threads, imports everything once and forks a child
for each life; the child is the program, with its own state, sockets and threads, and dies of a real SIGKILL. Only
its clock is the test's. The server and its child die with whoever started them.

As a program of its own it is that server: a request (JSON) per line on stdin, answered by the child's pid and, when
it has ended, by its status.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Self

HERE = Path(__file__).resolve()
TICK = 0.05
"""How often the loop looks at the clock; the test's goes by leaps."""


class Lives:
    """The test's side. One life at a time."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self.pid = 0
        clean = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("OTEL_", "SPANTAIL_", "XDG_"))
        }
        self._server = subprocess.Popen(
            [sys.executable, str(HERE)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=clean
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.pid:
            self.kill()
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.close()
        self._server.wait(10)
        self._server.stdout.close()

    def start(self, *flags: str, **request: Any) -> int:
        """Begins a life; see `_live` for what can be asked."""
        assert not self.pid
        assert self._server.stdin is not None
        self._server.stdin.write(json.dumps({"flags": flags, "log": str(self.log), **request}) + "\n")
        self._server.stdin.flush()
        self.pid = int(self._line())
        return self.pid

    def kill(self) -> int:
        return self.end(signal.SIGKILL)

    def end(self, number: int = signal.SIGTERM) -> int:
        """Its status: negative for a signal."""
        os.kill(self.pid, number)
        return self.status()

    def status(self) -> int:
        """Waits for its end."""
        status = int(self._line())
        self.pid = 0
        return status

    def said(self) -> list[dict[str, Any]]:
        """The log of all lives; a line that a kill tore is left out."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]

    def _line(self) -> str:
        assert self._server.stdout is not None
        line = self._server.stdout.readline()
        assert line, "the server of lives has died"
        return line.strip()


# ---------------------------------------------------------------------------------- the server


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def _live(request: dict[str, Any]) -> int:
    """`flags`, `env`; `clock`: the file of a shared clock, else the real one. Or `drive`: see crashes.py."""
    from writer import Clock

    from spantail import cli, follow
    from spantail.commands import run

    os.environ.update(request.get("env", {}))
    if "drive" in request:
        import crashes

        return crashes.drive(request["drive"])
    follow.ROOT_SECONDS = TICK
    config = cli.configured(cli.parser().parse_args(["run", *request["flags"]]), os.environ)
    clock = Clock(Path(request["clock"])) if "clock" in request else time.time_ns
    return run.main(config, clock=clock)


def serve() -> None:
    _die_with_parent()
    sys.path[:0] = [str(HERE.parent), str(HERE.parents[1])]

    import spantail.commands.run
    import spantail.out.deliver
    import spantail.tail.document
    import spantail.tail.inotify
    import spantail.tail.joined
    import spantail.tail.rows  # noqa: F401
    from spantail import pricing, ratebook
    from spantail.out.exporters import trace_transport

    unused = trace_transport({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"})  # imports what it needs
    assert unused is not None
    unused.close()
    book = ratebook.load()
    pricing.Prices.__init__.__defaults__ = tuple(
        (lambda: book) if each is ratebook.load else each for each in pricing.Prices.__init__.__defaults__
    )
    for line in sys.stdin:
        request = json.loads(line)
        pid = os.fork()
        if pid == 0:
            _die_with_parent()
            log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            os.dup2(log, 1)
            os.dup2(log, 2)
            status = 70
            try:
                status = _live(request)
            except BaseException:  # noqa: BLE001 whatever it is, it is said and ends this life
                import traceback

                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(status)
        print(pid, flush=True)
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    serve()

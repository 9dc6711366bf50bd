"""What a person sees who runs the program by hand: one line per turn, in columns, when it settles.

    12:04:31  some-agent  api       ok           1m12s   7 tools   1 error   48.2k in   1.3k out  $0.1234

Subagents, and model loops that no person asked for, are no turns and print nothing.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, tzinfo
from typing import Final, TextIO

from spantail.model import SECOND, Turn
from spantail.notices import clean

_COLOURS: Final = {"ok": "32", "error": "31", "interrupted": "33", "pending": "33"}
_GREY: Final = "2"


class Terminal:
    """Columns grow with what was shown so far, up to a width that keeps the line readable."""

    def __init__(
        self,
        stream: TextIO,
        *,
        trace_url: str = "",
        environ: Mapping[str, str] | None = None,
        zone: tzinfo | None = None,
    ) -> None:
        environ = os.environ if environ is None else environ
        self._stream = stream
        self._trace_url = trace_url
        self._zone = zone
        self._coloured = stream.isatty() and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"
        self._agent = self._project = 8

    def turns(self, turns: Iterable[Turn]) -> None:
        lines = [self.line(turn) + "\n" for turn in turns if turn.human]
        if lines:
            try:
                self._stream.write("".join(lines))
                self._stream.flush()
            except (OSError, ValueError):
                pass  # a terminal that went away must not stop the following

    def line(self, turn: Turn) -> str:
        agent, project = clean(turn.context.agent, 16), clean(turn.context.project, 24) or "-"
        self._agent, self._project = max(self._agent, len(agent)), max(self._project, len(project))
        usage = turn.usage
        tokens_in = usage.input + usage.cache_read + usage.cache_write
        errors = f"{turn.errors} error" + ("" if turn.errors == 1 else "s")
        columns = [
            self._paint(self._time(turn.end), _GREY),
            f"{agent:<{self._agent}}",
            f"{project:<{self._project}}",
            self._paint(f"{turn.status:<11}", _COLOURS[turn.status]),
            f"{took(turn.end - turn.start):>7}",
            f"{turn.tools:>3} tool" + (" " if turn.tools == 1 else "s"),
            self._paint(f"{errors:>10}", _COLOURS["error"]) if turn.errors else f"{errors:>10}",
            f"{short(tokens_in):>6} in",
            f"{short(usage.output):>6} out",
            f"{dollars(turn.cost):>8}",
        ]
        if self._trace_url:
            columns.append(self._trace_url.replace("{trace_id}", turn.trace.hex()))
        return "  ".join(columns).rstrip()

    def _time(self, time: int) -> str:
        moment = datetime.fromtimestamp(time // SECOND, UTC).astimezone(self._zone)
        return moment.strftime("%H:%M:%S")

    def _paint(self, words: str, colour: str) -> str:
        return f"\x1b[{colour}m{words}\x1b[0m" if self._coloured else words


def took(duration: int) -> str:
    """`0.4s`, `12.3s`, `1m12s`, `2h05m`."""
    tenths = max(0, duration) * 10 // SECOND
    if tenths < 600:
        return f"{tenths / 10:.1f}s"
    minutes, seconds = divmod(tenths // 10, 60)
    if minutes < 60:
        return f"{minutes}m{seconds:02d}s"
    return f"{minutes // 60}h{minutes % 60:02d}m"


def short(number: int) -> str:
    """`999`, `48.2k`, `1.3M`; cut, not rounded, so that a total is never shown as more than it is."""
    for unit, size in (("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if number >= size:
            return f"{number * 10 // size / 10:.1f}{unit}"
    return str(number)


def dollars(cost: float | None) -> str:
    """Nothing is not 0: a dash where no price is known."""
    if cost is None:
        return "-"
    return f"${cost:.2f}" if cost >= 10 else f"${cost:.4f}"


class Progress:
    """A bar on the terminal while a long backlog is taken."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._at = -1

    def show(self, done: int, total: int) -> None:
        if not self._terminal or total < 50_000_000:
            return
        percent = min(100, done * 100 // total)
        if percent == self._at:
            return
        self._at = percent
        bar = "#" * (percent * 30 // 100)
        sys.stderr.write(f"\rbacklog [{bar:<30}] {percent:3d}%  {done >> 20} of {total >> 20} MiB")
        if percent == 100:
            sys.stderr.write("\n")
        sys.stderr.flush()

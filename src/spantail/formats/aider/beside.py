"""What the files beside the history know of the same run: when something was typed, and what a call used.

Neither names a run. A stamp of the input history is told by the text that was typed; an entry of the log by the
second in which the process was launched, and by its numbers, which round to those of the usage line. What cannot
be told for certain is left alone: then the history's own rounded numbers stand, and no times.
"""

from __future__ import annotations

from typing import Any, Final

from msgspec import Struct

from spantail.formats.aider.lines import Used, chained, local_ns, shown, shown_cost
from spantail.formats.values import number, text
from spantail.model import SECOND

STAMPS: Final = 2000
SENDS: Final = 2000
"""Remembered of a backlog, in which the history is read last; the heading of a later run drops the earlier."""
LIVE: Final = 64
"""Remembered of what is followed: the rest is about other projects."""
AHEAD: Final = 8
"""Entries of the input history that may have no place in the chat history."""
DAY: Final = 86_400 * SECOND
LAUNCH: Final = 6
"""Seconds from a heading to the launch in the log."""
ZONE: Final = 900
"""Seconds: the time zones of two machines differ by a multiple of this."""


class Stamp(Struct, array_like=True, gc=False):
    time: int
    digest: bytes = b""
    shell: bool = False


class Inputs(Struct, gc=False):
    """`.aider.input.history`: a time, then what was typed, each line behind a plus."""

    stamps: list[Stamp] = []

    def read(self, line: str, live: bool) -> None:
        if line.startswith("# "):
            time = local_ns(line[2:].strip())
            if time:
                self.stamps.append(Stamp(time))
                del self.stamps[: -(LIVE if live else STAMPS)]
        elif line.startswith("+") and self.stamps:
            stamp = self.stamps[-1]
            stamp.shell = stamp.shell or (not stamp.digest and line.startswith("+/run "))
            stamp.digest = chained(stamp.digest, [line[1:]])

    def take(self, digest: bytes, zone: int, floor: int) -> tuple[int, int]:
        """(when this was typed, when the next shell command was, if that was what came next); 0 if unknown."""
        self.drop(zone, floor)
        for at, stamp in enumerate(self.stamps[:AHEAD]):
            time = stamp.time + zone
            if time - floor > DAY:
                break
            if stamp.digest == digest:
                after = self.stamps[at + 1] if at + 1 < len(self.stamps) else None
                del self.stamps[: at + 1]
                return time, after.time + zone if after is not None and after.shell else 0
        return 0, 0

    def drop(self, zone: int, floor: int) -> None:
        """What was typed before can be no part of what comes now."""
        old = 0
        while old < len(self.stamps) and self.stamps[old].time + zone < floor - SECOND:
            old += 1
        del self.stamps[:old]


class Entry(Struct, gc=False):
    """A line of the log. Any value may be of any type."""

    event: Any = None
    properties: Any = None
    time: Any = None


class Send(Struct, array_like=True, gc=False):
    launch: int
    start: int
    end: int
    input: int
    output: int
    cost: float | None
    total: float | None
    model: str

    def fits(self, used: Used) -> bool:
        return (
            shown(self.input) == used.sent.replace(",", "")
            and shown(self.output) == used.received.replace(",", "")
            and (not used.cost or self.cost is None or shown_cost(self.cost) == used.cost)
            and (not used.total or self.total is None or shown_cost(self.total) == used.total)
        )


class Log(Struct, gc=False):
    """The analytics log: times are whole seconds, and one file may be that of many processes."""

    launches: list[int] = []
    open: list[int] = []
    exits: dict[int, int] = {}
    sends: list[Send] = []
    starting: int = 0

    def read(self, entry: Entry, live: bool) -> Send | None:
        """What the entry says of a model call, if it is about one."""
        time = int(number(entry.time, 4e9) or 0)
        said = entry.properties if isinstance(entry.properties, dict) else {}
        if not time:
            return None
        if entry.event == "launched":
            self.launches.append(time)
            self.open = [launch for launch in self.open if time - launch < 6 * 3600] + [time]
            del self.launches[: -(LIVE if live else STAMPS)]
        elif entry.event == "message_send_starting":
            self.starting = time
        elif entry.event == "exit":
            if len(self.open) == 1:
                self.exits[self.open[0]] = time
                while len(self.exits) > (LIVE if live else STAMPS):
                    del self.exits[next(iter(self.exits))]
            self.open = self.open[:-1]
        elif entry.event == "message_send":
            return self._send(said, time, live)
        return None

    def _send(self, said: dict[Any, Any], time: int, live: bool) -> Send | None:
        sent, received = number(said.get("prompt_tokens")), number(said.get("completion_tokens"))
        if sent is None or received is None:
            return None
        model = text(said.get("main_model"))
        send = Send(
            launch=self.launches[-1] if self.launches else 0,
            start=self.starting or time,
            end=time,
            input=round(sent),
            output=round(received),
            cost=number(said.get("cost")),
            total=number(said.get("total_cost")),
            model="" if model == "None" or model.endswith("REDACTED") else model,
        )
        self.starting = 0
        self.sends.append(send)
        del self.sends[: -(LIVE if live else SENDS)]
        return send

    def launch(self, heading: int) -> int:
        """The launch in the seconds after a heading (in seconds), 0 if there is none."""
        return next((at for at in self.launches if -1 <= at - heading <= LAUNCH), 0)

    def abroad(self, heading: int) -> int:
        """Seconds by which a heading is off if its launch was written down in another time zone; 0 if there is
        no such launch."""
        for at in self.launches:
            away = at - heading
            if abs(away) <= 15 * 3600 and -1 <= (away + 1) % ZONE - 1 <= LAUNCH:
                return (away + 1) // ZONE * ZONE
        return 0

    def take(self, launch: int, used: Used) -> Send | None:
        """The call of that process with these numbers; the next, if there are several."""
        for at, send in enumerate(self.sends):
            if send.launch >= launch and send.fits(used):
                return self.sends.pop(at)
        return None

    def next(self, launch: int) -> Send | None:
        return next((send for send in self.sends if send.launch == launch), None)

    def drop(self, heading: int) -> None:
        """A later run begins: what is older is no part of it."""
        self.sends = [send for send in self.sends if send.end >= heading - 15 * 3600]
        self.launches = [at for at in self.launches if at >= heading - 15 * 3600]
        self.exits = {at: end for at, end in self.exits.items() if at >= heading - 15 * 3600}

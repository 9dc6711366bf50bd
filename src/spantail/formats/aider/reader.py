"""The chat history line by line, with what the files beside it add.

A heading begins a run, a group of `#### ` lines is input, a usage line is a model call; what the program did with the
reply (edits, shell commands, lint, tests) are its tools.

*Times.* The history has one per run. Of a file that is followed, the arrival of a line is its time. Else the stamps of
the input history and the seconds of the log are taken where they can be told, and time stands still in between.

*Numbers.* Those of the usage line are rounded; the log has them exactly. Whichever of the two is read first, the log's
replace the others as long as the call is open, and live they come within a moment. What is rounded, or counted by
Aider itself, is marked as not final (`cut`).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePath
from typing import Final

import msgspec
from msgspec import Struct

from spantail.formats.aider import lines
from spantail.formats.aider.beside import ZONE, Entry, Inputs, Log, Send
from spantail.formats.aider.lines import MARGIN, Used, chained
from spantail.formats.aider.run import Run, raw
from spantail.formats.row import AT_REST
from spantail.model import SECOND, Event, Record, Replied, Usage

CONTENT: Final = 16 << 10
"""Characters of a prompt or a reply that are kept until it is complete."""
WAITING: Final = 8
TICK: Final = 1_000
"""Between turns of which nothing but the order is known."""
FARTHEST: Final = 15 * 3600 * SECOND
"""Between two time zones."""


class Call(Struct, array_like=True):
    """A model call of which the log may still say the exact numbers."""

    session: str
    key: str
    used: Used
    after: int
    """Not before this: its turn began."""
    launch: int


class History(Struct):
    inputs: Inputs = msgspec.field(default_factory=Inputs)
    log: Log = msgspec.field(default_factory=Log)
    run: Run = msgspec.field(default_factory=Run)
    zone: int = 0
    """Nanoseconds to add to times without a zone: the history may be of another machine's."""
    sure: bool = False
    """The zone was proved, by a heading seen while it was written or by a call found in the log."""
    live: bool = True
    """Arrivals are times. Not so in a file that was there before it was found."""
    followed: bool = False
    """All that was there has been read once."""
    waiting: list[Call] = []
    # the reply
    said: bytes = b""
    """Its digest, by which the architect's answer is known again."""
    answer: str = ""
    complete: bool = True
    """A usage line followed: the next text is of another reply."""
    # the input
    group: str = ""
    typed: bytes = b""
    grouping: bool = False
    continues: bool = False
    """The group was taken, and more of it may come."""
    blank: bool = True
    command: str = ""

    def read(self, record: Record) -> Iterator[Event]:
        body = record.body
        dated = record.arrival > 0 and self.live
        if record.kind == AT_REST:
            yield from self._rest(dated)
        elif isinstance(body, Entry):
            yield from self._logged(body, dated)
        elif not isinstance(body, str):
            return
        elif record.kind == "inputs":
            self.inputs.read(body, self.followed and dated)
        else:
            if dated:
                self.run.clock = record.arrival
            yield from self._line(body, record, dated)

    # ------------------------------------------------------------------------- kinds of line

    def _line(self, line: str, record: Record, dated: bool) -> Iterator[Event]:
        heading = lines.HEADING.match(line) if self.blank else None
        if heading is not None:
            yield from self._input(dated)
            yield from self._heading(heading[1], record)
            return
        plain = self.run.margins < 0
        margin = line.endswith(MARGIN) or plain
        if line.startswith("####") and margin and (self.blank or self.grouping or self.continues):
            self.blank = False
            if not self.continues:
                self.grouping = True
                self.group = f"{self.group}{line[4:].strip()}\n"[:CONTENT]
                self.typed = chained(self.typed, [line[4:]])
            return
        bare = line.strip()
        self.blank = not bare
        if plain and self.grouping and not bare:
            return  # a formatter puts a blank line after each of them
        yield from self._input(dated)
        self.continues = False
        run = self.run
        if line.startswith(">") and (margin or not run.session or line.startswith(("> Tokens: ", "> # "))):
            if not run.session:
                run.lead = chained(run.lead, [bare])
                run.margins += 1 if line.endswith(MARGIN) else -1
            yield from self._quoted(line[1:].strip(), dated)
        elif bare:
            yield from self._unquoted(bare)

    def _heading(self, stamp: str, record: Record) -> Iterator[Event]:
        yield from self.run.end(self.log.exits.get(self.run.launch, 0) * SECOND)
        time, arrival = lines.local_ns(stamp), record.arrival
        if arrival and self.followed:
            # A heading that is seen while it is written tells the zone it was written in.
            away = arrival - time
            steps = round(away / (2 * ZONE * SECOND)) * 2 * ZONE * SECOND
            if abs(away - steps) < 5 * SECOND and abs(steps) <= FARTHEST:
                self.zone, self.sure = steps, True
        zone = self.zone
        if not self.sure and not self.log.launch((time + zone) // SECOND):
            zone = self.log.abroad(time // SECOND) * SECOND
        time += zone
        self.live = arrival > 0 and abs(arrival - time) < 60 * SECOND
        clock = arrival if self.live else time
        folder = str(PurePath(record.path).parent)
        self.run = Run(stamp=stamp, heading=time, zone=zone, clock=clock, folder=folder)
        self.said, self.answer, self.complete, self.command = b"", "", True, ""
        self.blank = False
        self.inputs.drop(zone, time)
        self.log.drop((time - FARTHEST) // SECOND)

    def _quoted(self, said: str, dated: bool) -> Iterator[Event]:
        run = self.run
        if run.running and said:
            yield from run.returned()
        if used := lines.used(said):
            yield from self._used(used, dated)
        elif model := lines.MODEL.match(said):
            if model[1] == "Editor model":
                run.editor = model[2]
            else:
                run.model = model[2]
        elif version := lines.VERSION.match(said):
            run.version = version[1]
        elif run.turn:
            yield from self._did(said, dated)
        elif lines.WHOLE_REPLY.match(said):
            run.counts = False

    def _did(self, said: str, dated: bool) -> Iterator[Event]:
        """What the program says it did with a reply, or what went wrong."""
        run = self.run
        if said.startswith("Applied edit to "):
            yield from run.tool("edit", {"path": said[16:]})
        elif said.startswith("Skipping edits to "):
            yield from run.tool("edit", {"path": said[18:]}, "interrupted", "interrupted")
        elif said.startswith("The LLM did not conform to the edit format") or lines.UNMATCHED.match(said):
            yield from run.failure("edit")
            run.awaits = True
        elif others := lines.THE_OTHERS.match(said):
            yield from run.applied(others)  # older versions quote all of a failure
        elif said.startswith("Running ") and run.replied:
            yield from self._runs(said[8:], dated)
        elif said.startswith("# Fix any errors below"):
            yield from run.failure("lint")
        elif said.startswith("Attempt to fix lint errors?"):
            yield from run.failure("lint")
            run.awaits = lines.AGREED.search(said) is not None
        elif said.startswith("Attempt to fix test errors?"):
            yield from run.failure("test")
            run.awaits = lines.AGREED.search(said) is not None
        elif said.startswith("Only 3 reflections allowed"):
            yield from run.close("error", "max_reflections")
        elif said.startswith("^C"):
            if run.awaits and not run.closed and run.failed:
                yield from run.close("error", "provider_error")  # refused: it was stopped at an empty prompt
            elif run.awaits and not run.closed:
                yield from run.close("interrupted", "interrupted")
        elif said.startswith("Retrying in "):
            yield from run.retries()
        elif refused := lines.PROVIDER.match(said):
            yield from run.refused(refused[1])
        elif said.startswith("Model ") and said.endswith("has hit a token limit!"):
            yield from run.refused("token_limit")

    def _unquoted(self, said: str) -> Iterator[Event]:
        run = self.run
        if not run.turn:
            if not run.session:
                run.lead = chained(run.lead, [said])
            return
        if run.running:
            yield from run.returned()
        others = lines.THE_OTHERS.match(said)
        cost = lines.COST.match(said) if self.complete and run.last else None
        if cost is not None:
            # With cache parts the second line of the usage stands alone.
            if any(call.key == run.last for call in self.waiting):
                amount = lines.dollars(cost[1])
                yield Replied(session=run.session, time=run.clock, call=run.last, cost=amount, rests=True)
            return
        if others is not None and "edit" in run.told:
            yield from run.applied(others)
            return
        thought = said.startswith(lines.END_OF_THOUGHT)
        if self.complete or thought:
            self.said, self.answer, self.complete = b"", "", False
        if not thought:
            run.texted = True
            self.said = chained(self.said, [said])
            self.answer = f"{self.answer}{said}\n"[:CONTENT]

    # ------------------------------------------------------------------------------ input

    def _input(self, dated: bool) -> Iterator[Event]:
        """The group of lines is complete: a prompt, a command, nothing, or the architect's answer again."""
        if not self.grouping:
            return
        run, text, typed = self.run, self.group.strip(), self.typed
        self.grouping, self.group, self.typed = False, "", b""
        self.continues = True
        if not run.heading:
            return  # the file has lost its beginning
        if typed and typed == self.said and run.replied and not run.closed:
            run.edits = run.awaits = True
            return
        first = text.partition("\n")[0]
        if not run.session:
            run.lead = chained(run.lead, [first])
        yield from run.over()
        when, _ = self._typed(typed, dated)
        self.command = ""
        if first.startswith(("/", "!")):
            run.clock = max(run.clock, when)
            run.turn, self.command = "", text
            if first.split()[0] in ("/exit", "/quit"):
                yield from run.end(self.log.exits.get(self._launch(), 0) * SECOND)
        elif first not in ("", "<blank>"):
            yield from self._prompt(text, when, dated)
        else:
            run.turn = ""

    def _prompt(self, text: str, when: int, dated: bool) -> Iterator[Event]:
        run = self.run
        if not when and not dated:
            send = self.log.next(self._launch())
            when = send.start * SECOND if send is not None else 0
            run.clock += TICK if run.turns or run.calls else 0
        run.clock = max(run.clock, when)
        self.said, self.answer, self.complete, self.command = b"", "", True, ""
        yield from run.prompt(text, when if when and dated else run.clock)

    def _runs(self, command: str, dated: bool) -> Iterator[Event]:
        when, after = self._typed(chained(b"", [f"/run {command}"]), dated)
        yield from self.run.runs(command, when, 0 if dated else after)

    def _typed(self, typed: bytes, dated: bool) -> tuple[int, int]:
        run = self.run
        when, after = self.inputs.take(typed, run.zone, max(run.heading, run.began))
        if dated and abs(when - run.clock) > 60 * SECOND:
            return 0, 0
        return when, after

    # ------------------------------------------------------------------------------ calls

    def _used(self, used: Used, dated: bool) -> Iterator[Event]:
        run = self.run
        if not run.heading:
            return
        if not run.turn and self.command:
            # A command that the model answered (`/web`) was a prompt.
            yield from self._prompt(self.command, 0, dated)
        elif not run.session:
            yield from run.start(run.clock)
        run.calls += 1
        run.last = f"{run.session}/call {run.calls}"
        model = run.editor if run.edits and run.editor else run.model
        call = Call(run.session, run.last, used, run.began or run.heading, self._launch())
        send = self.log.take(call.launch, used) if call.launch else None
        reply = Replied(
            session=run.session,
            time=run.clock,
            call=run.last,
            model=model,
            provider=_provider(model),
            usage=used.usage(model),
            # Where there is a log, it is still to say the exact numbers.
            final=not call.launch,
            cut=run.counts or not call.launch,
            rests=True,
            cost=lines.dollars(used.cost) if used.cost else None,
            content=raw(self.answer) if self.answer else None,
        )
        if send is not None:
            self._exact(reply, send, call, dated)
        else:
            self.waiting = [*self.waiting, call][-WAITING:]
        run.clock = max(run.clock, reply.time)
        yield from run.reply(reply)
        self.complete, self.answer = True, ""

    def _exact(self, reply: Replied, send: Send, call: Call, dated: bool) -> None:
        """The log's numbers for the rounded ones. Those that Aider counted by itself stay estimates."""
        self.zone, self.sure = self.run.zone, True
        reply.usage = Usage(input=send.input, output=send.output)
        reply.final, reply.cut = True, self.run.counts
        if send.cost is not None:
            reply.cost = send.cost
        if send.model:
            reply.model, reply.provider = send.model, _provider(send.model)
        reply.start = max(send.start * SECOND, call.after)
        if not dated:
            reply.end = max(send.end * SECOND, reply.start)
            reply.time = max(reply.time, reply.end)

    def _logged(self, entry: Entry, dated: bool) -> Iterator[Event]:
        send = self.log.read(entry, self.followed and dated)
        if send is None:
            return
        for at, call in enumerate(self.waiting):
            launch = call.launch or (self._launch() if call.session == self.run.session else 0)
            if launch and send.launch >= launch and send.fits(call.used):
                del self.waiting[at]
                self.log.sends.remove(send)
                reply = Replied(session=call.session, time=self.run.clock, call=call.key, rests=True)
                self._exact(reply, send, call, dated)
                yield reply
                return

    def _launch(self) -> int:
        run = self.run
        if not run.launch and run.heading:
            run.launch = self.log.launch(run.heading // SECOND)
        return run.launch

    def _rest(self, dated: bool) -> Iterator[Event]:
        """All that was written has been read: what follows takes its time."""
        run = self.run
        yield from self._input(dated)
        if run.turn and run.awaits and run.failed and not run.closed:
            yield from run.close("error", "provider_error")
        left = self.log.exits.get(self._launch(), 0)
        if left:
            yield from run.end(left * SECOND)
        self.live = self.followed = True


def _provider(model: str) -> str:
    """`openrouter/anthropic/claude-x` -> openrouter; a bare name says nothing."""
    return model.partition("/")[0] if "/" in model else ""

"""One run of Aider as events: its turns, calls and tools, each with an ordinal as its key.

A run is known by its heading and its first lines, which are the same in a copy of the folder. Nothing is written
when a turn is over: whether a reply is followed by another (a failed edit, lint, tests, a file to add) is known when
the next input, run or exit comes, or by silence.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec
from msgspec import Raw, Struct

from spantail.model import Called, Closed, Ended, Event, Noted, Prompted, Replied, Returned, Started, Status


class Run(Struct):
    stamp: str = ""
    heading: int = 0
    zone: int = 0
    clock: int = 0
    """The latest time known."""
    folder: str = ""
    session: str = ""
    lead: bytes = b""
    """Digest of the lines before the first event."""
    margins: int = 0
    """Lines of the program before the first event: those with a margin, less those without."""
    version: str = ""
    model: str = ""
    editor: str = ""
    counts: bool = True
    """Aider counts the tokens by itself, and does not take the server's counts."""
    launch: int = 0
    """Its launch in the log, in seconds."""
    turns: int = 0
    calls: int = 0
    tools: int = 0
    ended: bool = False
    # the turn
    turn: str = ""
    began: int = 0
    awaits: bool = False
    """A reply is due: after a prompt, and after what makes Aider ask once more."""
    replied: bool = False
    texted: bool = False
    """The model said something that no usage line has followed yet."""
    closed: bool = False
    failed: bool = False
    """The provider refused."""
    edits: bool = False
    """The architect's reply was handed on: the next call is the editor's."""
    told: list[str] = []
    """Failures said since the last reply: what is said in two lines counts once."""
    running: str = ""
    ends: int = 0
    """The latest end that the shell command can have had, if that is known."""
    last: str = ""
    """The last model call of the turn."""

    # ------------------------------------------------------------------------------- turns

    def start(self, time: int) -> Iterator[Event]:
        if not self.session:
            self.session = f"{self.stamp.replace(' ', 'T')}-{self.lead.hex()}"
        yield Started(session=self.session, time=time, cwd=self.folder, version=self.version)

    def prompt(self, text: str, time: int) -> Iterator[Event]:
        yield from self.start(time)
        self.turns += 1
        self.turn = f"{self.session}/turn {self.turns}"
        self.began = time
        self.awaits = True
        self.replied = self.texted = self.closed = self.failed = self.edits = self.ended = False
        self.told, self.last = [], ""
        yield Prompted(session=self.session, time=time, turn=self.turn, content=raw(text))

    def close(self, status: Status, error_type: str = "") -> Iterator[Event]:
        self.closed = True
        yield Closed(
            session=self.session, time=self.clock, turn=self.turn, status=status, error_type=error_type
        )

    def over(self) -> Iterator[Event]:
        """The user is asked again, so the turn is over. One that just breaks off stays pending."""
        if self.running:
            yield from self.returned()
        if not self.turn or self.closed:
            return
        if self.awaits and self.failed:
            yield from self.close("error", "provider_error")
        elif not self.awaits or self.texted:
            yield from self.close("ok")

    def end(self, time: int) -> Iterator[Event]:
        """The program left, or another one began."""
        if self.ended or not (self.turns or self.calls):
            return
        yield from self.over()
        self.clock = max(self.clock, time)
        self.turn, self.ended = "", True
        yield Ended(session=self.session, time=self.clock)

    # ------------------------------------------------------------------------------- calls

    def reply(self, reply: Replied) -> Iterator[Event]:
        yield reply
        self.awaits = self.texted = self.edits = self.closed = self.failed = False
        self.replied = True
        self.told = []

    def rests(self) -> Iterator[Event]:
        """A turn that goes silent after a tool has had its reply."""
        if self.last:
            yield Replied(session=self.session, time=self.clock, call=self.last, rests=True)

    def refused(self, error_type: str) -> Iterator[Event]:
        """Whether it is tried again, the next lines say."""
        self.failed = True
        yield Noted(session=self.session, time=self.clock, kind="provider_error", error_type=error_type)

    def retries(self) -> Iterator[Event]:
        yield Noted(session=self.session, time=self.clock, kind="retry")
        if self.closed and self.failed:
            # It was taken for the end: the turn goes on.
            yield Closed(session=self.session, time=self.clock, turn=self.turn)
            yield Prompted(session=self.session, time=self.clock, turn=f"{self.turn}/again", human=False)
            self.closed = False
        self.failed = False

    # ------------------------------------------------------------------------------- tools

    def tool(
        self, name: str, given: dict[str, str], status: Status = "ok", error_type: str = ""
    ) -> Iterator[Event]:
        """One of which only the outcome is known."""
        self.tools += 1
        key = f"{self.session}/tool {self.tools}"
        yield Called(
            session=self.session, time=self.clock, call=key, name=name, input=raw(given) if given else None
        )
        yield Returned(
            session=self.session,
            time=self.clock,
            call=key,
            status=status,
            error_type=error_type,
            source="estimate",
        )
        yield from self.rests()

    def failure(self, name: str) -> Iterator[Event]:
        if name not in self.told:
            self.told = [*self.told, name]
            yield from self.tool(name, {}, "error", "tool_error")

    def applied(self, others: re.Match[str]) -> Iterator[Event]:
        """The edits that went well in a reply of which some failed."""
        for _ in range(int(others[1]) if "edit" in self.told else 0):
            yield from self.tool("edit", {})

    def runs(self, command: str, time: int, ends: int) -> Iterator[Event]:
        """A shell command. Neither its end nor its exit status is written."""
        self.tools += 1
        self.running, self.ends = f"{self.session}/tool {self.tools}", ends
        self.clock = max(self.clock, time)
        yield Called(
            session=self.session,
            time=time or self.clock,
            call=self.running,
            name="shell",
            input=raw({"command": command}),
        )

    def returned(self) -> Iterator[Event]:
        key, self.running = self.running, ""
        self.clock = max(self.clock, self.ends)
        yield Returned(session=self.session, time=self.clock, call=key, source="estimate")
        yield from self.rests()


def raw(value: object) -> Raw:
    return Raw(msgspec.json.encode(value))

"""What happens in made-up sessions, in no agent's words.

For whoever wants to see dashboards and alerts before any agent has run: each scene is there for what it makes visible.
A scene is a generator of waits in seconds; what it does goes through an actor, which writes it as its agent would, and
is tallied, so that what was counted can be compared with what was written.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Generator
from typing import Final

from msgspec import Struct

from spantail.formats.actor import Ability, Actor, Call, How, Work, token
from spantail.model import Usage

Waits = Generator[float, None, None]
Tally = Counter[tuple[str, str]]
"""(agent, what happened): how often."""

WORK: Final[tuple[tuple[Work, str], ...]] = (
    ("shell", "pytest -q tests/test_{}.py"),
    ("shell", "npm run build -- part-{}"),
    ("read", "src/module_{}.py"),
    ("edit", "src/module_{}.py"),
    ("search", "def handler_{}"),
)
PROMPTS: Final = ("fix the failing test", "add a discount code", "why is checkout slow?", "update the docs")
TOOL_SECONDS: Final = (0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1.2, 2.0, 3.5, 6.0)
STUCK_SECONDS: Final = 1500.0
"""Long enough for the alert on a call that is open for 15 minutes."""
ROOM: Final = 170_000
"""Tokens at which a context is compacted."""


class Session:
    """An actor with what a scene needs: dice, a clock, and the tally."""

    def __init__(
        self,
        agent: str,
        actor: Actor,
        can: frozenset[Ability],
        dice: random.Random,
        clock: Callable[[], int],
        tally: Tally,
    ) -> None:
        self.agent, self.actor, self.can = agent, actor, can
        self.dice, self.clock, self.tally = dice, clock, tally
        self.context = dice.randint(9_000, 30_000)
        self._calls = 0

    def nested(self, actor: Actor) -> Session:
        return Session(self.agent, actor, self.can, self.dice, self.clock, self.tally)

    def count(self, what: str, amount: int = 1) -> None:
        self.tally[self.agent, what] += amount

    # ------------------------------------------------------------------------------ one thing each

    def prompt(self) -> None:
        self.actor.prompt(self.clock(), self.dice.choice(PROMPTS))

    def reply(self, *calls: Call) -> None:
        usage = self._usage()
        self.actor.reply(self.clock(), usage, calls)
        self._spent(usage)
        if not calls:
            self.count("turns ok")

    def result(self, call: Call, how: How) -> None:
        self.actor.result(self.clock(), call, how)
        self.count("tool calls ok" if how == "ok" else "tool calls error")

    def call(self, work: Work | None = None, words: str = "") -> Call:
        """No two are the same, unless asked for."""
        self._calls += 1
        chosen, pattern = self.dice.choice(WORK)
        return Call(f"call_{token()}", work or chosen, words or pattern.format(self._calls))

    def think(self) -> float:
        return self.dice.uniform(0.4, 2.5)

    def _usage(self) -> Usage:
        added, output = self.dice.randint(300, 4_000), self.dice.randint(40, 900)
        usage = Usage(
            input=self.dice.randint(5, 800),
            cache_read=self.context,
            cache_write=added,
            output=output,
            reasoning=output // 3,
        )
        self.context += added
        return usage

    def _spent(self, usage: Usage) -> None:
        self.count("model calls")
        for kind in ("input", "cache_read", "cache_write", "output"):
            self.count(f"tokens {kind}", getattr(usage, kind))

    def cut(self) -> None:
        usage = self._usage()
        self.actor.cut(self.clock(), usage)
        self._spent(usage)
        self.count("incomplete")

    # ---------------------------------------------------------------------------------- and turns

    def work(self, steps: int) -> Waits:
        """Model call, tools, model call, tools: a turn without its last reply."""
        for _ in range(steps):
            yield self.think()
            calls = [self.call() for _ in range(self.dice.choice((1, 1, 1, 2)))]
            self.reply(*calls)
            for call in calls:
                yield self.dice.choice(TOOL_SECONDS)
                self.result(call, self._fate())

    def _fate(self) -> How:
        fates: list[How] = ["error"]
        fates += [how for how in ("timeout", "denied") if how in self.can]
        return self.dice.choice(fates) if self.dice.random() < 0.18 else "ok"

    def turn(self, steps: int) -> Waits:
        self.prompt()
        yield from self.work(steps)
        yield self.think()
        self.reply()


# --------------------------------------------------------------------------------------- the scenes


def ordinary(session: Session) -> Waits:
    """A few turns, with failures among the tool calls."""
    for _ in range(session.dice.randint(1, 3)):
        yield from session.turn(session.dice.randint(2, 5))
        yield session.dice.uniform(3, 8)


def delegating(session: Session) -> Waits:
    """A subagent with calls of its own."""
    session.prompt()
    yield session.think()
    call = session.call("delegate", f"look for slow queries, part {token(4)}")
    session.reply(call)
    nested = session.nested(session.actor.delegate(session.clock(), call))
    yield from nested.work(3)
    yield session.think()
    usage = nested._usage()  # noqa: SLF001 - the last reply of a subagent ends no turn
    nested.actor.reply(session.clock(), usage, ())
    nested._spent(usage)  # noqa: SLF001
    session.result(call, "ok")
    session.count("subagents")
    yield session.think()
    session.reply()


def looping(session: Session) -> Waits:
    """The same call with the same input, again and again."""
    session.prompt()
    for again in range(7):
        yield session.think() / 2
        call = session.call("shell", "pytest -q tests/test_flaky.py")
        session.reply(call)
        yield 0.3
        session.result(call, "error")
        if again:
            session.count("repeated")
    yield session.think()
    session.reply()


def interrupted(session: Session) -> Waits:
    """The user stops a turn, and asks for something else."""
    session.prompt()
    yield from session.work(1)
    yield session.think()
    call = session.call("shell", "npm run end-to-end")
    session.reply(call)
    yield 3.0
    session.actor.interrupt(session.clock(), call)
    session.count("tool calls interrupted")
    session.count("turns interrupted")


def silenced(session: Session) -> Waits:
    """The user stops the model in the middle of a word."""
    session.prompt()
    yield session.think()
    session.cut()
    session.count("turns interrupted")


def refused(session: Session) -> Waits:
    """The provider has enough of it: the turn fails."""
    session.prompt()
    yield from session.work(1)
    yield session.think()
    session.actor.fail(session.clock())
    session.count("provider errors")
    session.count("turns error")


def stumbling(session: Session) -> Waits:
    """The provider refuses, the agent tries again and gets through."""
    session.prompt()
    for _ in range(3):
        yield 1.0
        session.actor.stumble(session.clock())
        session.count("provider errors")
    yield session.think()
    session.reply()


def limited(session: Session) -> Waits:
    """Too many steps, or too dear: the turn is stopped by a limit."""
    session.prompt()
    yield from session.work(4)
    yield 0.2
    session.actor.limit(session.clock())
    session.count("turns error")


def compacting(session: Session) -> Waits:
    """A long session whose context fills up."""
    session.context = ROOM - 12_000
    yield from session.turn(3)
    session.actor.compact(session.clock(), session.context)
    session.count("compactions")
    session.context = 15_000
    yield 1.0
    yield from session.turn(2)


def stuck(session: Session) -> Waits:
    """One tool call that does not come back."""
    session.prompt()
    yield session.think()
    call = session.call("shell", "ssh build-host make all")
    session.reply(call)
    yield STUCK_SECONDS
    session.result(call, "error")
    yield session.think()
    session.reply()


class Scene(Struct, frozen=True):
    play: Callable[[Session], Waits]
    needs: Ability | None = None
    weight: int = 1
    """How often it is chosen, once all have been shown."""
    ends: bool = True
    """False: goes on for longer than a show of all scenes should take; there is one such session at a time."""


SCENES: Final = (
    Scene(ordinary, weight=12),
    Scene(looping),
    Scene(delegating, "delegate", 3),
    Scene(interrupted, "interrupt"),
    Scene(silenced, "cut"),
    Scene(refused, "fail"),
    Scene(stumbling, "stumble"),
    Scene(limited, "limit"),
    Scene(compacting, "compact"),
    Scene(stuck, ends=False),
)

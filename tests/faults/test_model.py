"""Files are written, torn, rotated, renamed, copied and deleted; the program is stopped and killed; the backend refuses
or goes away: in any order. A model in a few lines says what must come of it, and it does.

The model: whenever the program looks, every whole line of every file it follows has been seen. Each reply that was
seen is one model call with its tokens, each prompt that was seen is one turn, however often it was seen and under
whatever name. Everything arrives, and nothing arrives with two contents.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import seen
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

import truth
from program import configured
from receiver import Answer, Receiver
from spantail.commands.run import Run
from spantail.model import SECOND
from spantail.state.store import Store
from spantail.tail.wake import HandWaker

BEGIN = 1_760_000_000 * SECOND
NAMES = ("a.jsonl", "b.jsonl", "c.jsonl", "a.jsonl.1")
"""The last is no name of a session file."""
FILES = st.sampled_from(NAMES)
SESSIONS = st.sampled_from(("a.jsonl", "b.jsonl"))


class Machine(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.root = Path(tempfile.mkdtemp())
        self.folder = self.root / "home/.agent/sessions"
        self.folder.mkdir(parents=True)
        self.now = BEGIN
        self.number = 0
        self.rest: dict[str, bytes] = {}
        """The second half of a line whose first half is in the file."""
        self.replies: dict[str, int] = {}
        self.prompts: set[str] = set()
        self.receiver = Receiver("http").start()
        self.waker = HandWaker()
        self.run: Run | None = None
        self._start()

    # ------------------------------------------------------------------------- what agents do

    def _line(self, name: str, kind: str, **more: object) -> bytes:
        self.now += SECOND // 10
        time = datetime.fromtimestamp(self.now / SECOND, UTC).isoformat(timespec="milliseconds")
        # Written by hand, and not by a counter: what a copy and its original are told apart by is their ids.
        record = {"schema_version": 1, "time": time.replace("+00:00", "Z"), "type": kind, **more}
        return json.dumps(record).encode() + b"\n"

    def _turn(self, name: str) -> bytes:
        self.number += 1
        turn, reply = f"turn_{self.number}", f"msg_{self.number}"
        usage = {"input": self.number, "output": 1}
        prompt = self._line(name, "user", turn_id=turn, text="x")
        answer = {"message_id": reply, "text": "y", "finish_reason": "stop", "usage": usage}
        return prompt + self._line(name, "assistant_finished", turn_id=turn, **answer)

    def _head(self, name: str) -> bytes:
        return self._line(
            name, "session_meta", session_id=f"s-{name}", cwd="/repo/app", model="m", provider="p"
        )

    def _append(self, name: str, body: bytes) -> None:
        path = self.folder / name
        there = path.read_bytes() if path.exists() else b""
        first = b"" if there else self._head(name)
        rest = self.rest.pop(name, b"")
        # A copy may end in half a line, and nobody has the other half.
        torn = b"\n" if there and not there.endswith(b"\n") and not rest else b""
        with path.open("ab") as file:
            file.write(torn + rest + first + body)
        self.waker.change(str(path))

    def _changed(self, *names: str) -> None:
        for name in names:
            self.rest.pop(name, None)
            self.waker.change(str(self.folder / name))

    def _there(self, name: str) -> bool:
        return (self.folder / name).exists()

    @rule(name=SESSIONS, turns=st.integers(1, 3))
    def append(self, name: str, turns: int) -> None:
        self._append(name, b"".join(self._turn(name) for _ in range(turns)))

    @rule(name=SESSIONS, part=st.floats(0.1, 0.9))
    def append_in_part(self, name: str, part: float) -> None:
        body = self._turn(name)
        cut = int(len(body) * part)
        self._append(name, body[:cut])
        self.rest[name] = body[cut:]

    @rule(name=SESSIONS)
    def append_the_rest(self, name: str) -> None:
        if name in self.rest:
            self._append(name, b"")

    @rule(name=FILES, lines=st.integers(0, 6), again=st.booleans())
    def truncate(self, name: str, lines: int, again: bool) -> None:
        """To some lines; `again`: and grown at once, so that nobody sees it short."""
        if not self._there(name):
            return
        path = self.folder / name
        kept = b"".join(path.read_bytes().splitlines(keepends=True)[:lines])
        kept = kept if kept.endswith(b"\n") else kept[: kept.rfind(b"\n") + 1]
        os.truncate(path, len(kept))
        self._changed(name)
        if again and name in ("a.jsonl", "b.jsonl"):
            self._append(name, self._turn(name) + self._turn(name) + self._turn(name))

    @rule(name=FILES, to=FILES)
    def copy_and_truncate(self, name: str, to: str) -> None:
        path = self.folder / name
        if self._there(name) and not (self._there(to) and path.samefile(self.folder / to)):
            shutil.copyfile(path, self.folder / to)
            os.truncate(self.folder / name, 0)
            self._changed(name, to)

    @rule(name=FILES, to=FILES)
    def rename(self, name: str, to: str) -> None:
        if self._there(name) and name != to:
            (self.folder / name).replace(self.folder / to)
            self._changed(name, to)

    @rule(name=FILES, to=FILES)
    def copy(self, name: str, to: str) -> None:
        if self._there(name) and not self._there(to):
            shutil.copyfile(self.folder / name, self.folder / to)
            self._changed(to)

    @rule(name=FILES, to=FILES)
    def link(self, name: str, to: str) -> None:
        if self._there(name) and not self._there(to):
            (self.folder / to).hardlink_to(self.folder / name)
            self._changed(to)

    @rule(name=FILES)
    def delete(self, name: str) -> None:
        if self._there(name):
            (self.folder / name).unlink()
            self._changed(name)

    @rule(name=SESSIONS)
    def make_anew(self, name: str) -> None:
        """The inode of the old one is often given to the new one."""
        (self.folder / name).unlink(missing_ok=True)
        self._changed(name)
        self._append(name, self._turn(name))

    @rule(name=SESSIONS, same=st.booleans())
    def replace(self, name: str, same: bool) -> None:
        """By a file that holds the old lines and more, or others."""
        old = (self.folder / name).read_bytes() if same and self._there(name) else b""
        old = old[: old.rfind(b"\n") + 1] or self._head(name)
        new = self.folder / "new"
        new.write_bytes(old + self._turn(name))
        new.replace(self.folder / name)
        self._changed(name)

    # ----------------------------------------------------------------------- what else happens

    @rule(seconds=st.sampled_from((1, 30, 4000)))
    def wait(self, seconds: int) -> None:
        self.now += seconds * SECOND

    @precondition(lambda self: self.run is not None)
    @rule()
    def look(self) -> None:
        self.run.follow.step(0)
        self._seen()

    @precondition(lambda self: self.run is not None)
    @rule()
    def look_without_events(self) -> None:
        """As after an overflow of their queue."""
        self.waker.lose()
        self.now += SECOND
        self.look()

    @precondition(lambda self: self.run is not None)
    @rule()
    def deliver(self) -> None:
        for _ in range(5):
            if self.run.deliverer.step() != 0:
                break

    @rule(status=st.sampled_from((200, 503, 429, 0)))
    def backend(self, status: int) -> None:
        """It answers so from now on. 0: it takes the spans, and its answer is lost."""
        self.receiver.judge = self._loses if status == 0 else None
        self.receiver.usual = Answer(status or 502)

    def _loses(self, spans: list) -> None:
        self.receiver.spans.extend(spans)

    @rule()
    def backend_away(self) -> None:
        self.receiver.stop() if self.receiver._server is not None else self.receiver.start()

    @precondition(lambda self: self.run is not None)
    @rule()
    def kill(self) -> None:
        self._drop()

    @precondition(lambda self: self.run is not None)
    @rule()
    def stop(self) -> None:
        self.run.follow.stop()
        self.run.follow.run()  # the last look of a run that was told to stop
        self._seen()
        self.run.follow.commit()
        self._drop()

    @precondition(lambda self: self.run is None)
    @rule()
    def start(self) -> None:
        self._start()

    def _start(self) -> None:
        store = Store(self.root / "state")
        os.environ.update(self.receiver.environ())
        config = configured(
            self.root / "home", self.root / "state", once=False, agents=("generic",), textfile=None
        )
        self.run = Run(config, os.environ, store, clock=lambda: self.now, waker=self.waker, strict=True)
        self.run.deliverer.start = lambda: None  # driven by hand
        self.run.begin()
        self._seen()

    def _drop(self) -> None:
        self.run.transport.close()
        self.run.deliverer._outbox.close()
        self.run.store.close()
        self.run = None

    # ------------------------------------------------------------------------------- the model

    def _seen(self) -> None:
        for path in self.folder.glob("*.jsonl"):
            for line in path.read_bytes().split(b"\n")[:-1]:
                try:
                    record = json.loads(line)
                except ValueError:
                    continue
                if record["type"] == "user":
                    self.prompts.add(record["turn_id"])
                elif record["type"] == "assistant_finished":
                    self.replies[record["message_id"]] = record["usage"]["input"]

    def teardown(self) -> None:
        if not hasattr(self, "root"):
            return
        try:
            if self.run is None:
                self._start()
            if self.receiver._server is None:
                self.receiver.start()
            self.backend(200)
            for _ in range(4):
                self.now += 3 * 3600 * SECOND
                self.look_without_events()
            self._all(lambda: self.run.deliverer.step() == 0)
            self.run.follow.commit()
            assert self.run.store.waiting_spans == 0
            self._drop()
            self._check()
        finally:
            self.receiver.stop()
            if self.run is not None:
                self._drop()
            for key in self.receiver.environ():
                os.environ.pop(key, None)
            shutil.rmtree(self.root)

    @staticmethod
    def _all(step: Callable[[], bool]) -> None:
        while step():
            pass

    def _check(self) -> None:
        spans = self.receiver.spans
        assert seen.twofold(spans) == []
        calls = {span.span_id: span for span in spans if truth.is_chat(span)}.values()
        turns = {span.span_id for span in spans if truth.is_turn(span)}
        said = sorted(span.attrs["gen_ai.usage.input_tokens"] for span in calls)
        assert said == sorted(self.replies.values())
        assert len(turns) == len(self.prompts)
        totals = seen.totals(self.root / "state")
        tokens = {key[1]: value for key, value in totals.items() if key[0] == "coding_agent_tokens_total"}
        counted = sum(value for labels, value in tokens.items() if '"input"' in labels)
        assert counted == sum(self.replies.values())
        counted = sum(value for key, value in totals.items() if key[0] == "coding_agent_turns_total")
        assert counted == len(self.prompts)


Machine.TestCase.settings = settings(
    max_examples=int(os.environ.get("SPANTAIL_TEST_EXAMPLES", "60")),
    stateful_step_count=30,
    deadline=None,
    database=None,
    derandomize=True,
    phases=[Phase.generate],  # to shrink takes minutes; add Phase.shrink when something was found
    suppress_health_check=list(HealthCheck),
)
TestFilesRestartsAndAcknowledgements = Machine.TestCase

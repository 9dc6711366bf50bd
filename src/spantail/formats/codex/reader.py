"""Codex: JSON lines, one file per thread.

    $CODEX_HOME/sessions/YYYY/MM/DD/rollout-<local time>-<thread id>.jsonl[.zst]
    $CODEX_HOME/archived_sessions/rollout-<local time>-<thread id>.jsonl[.zst]

Its dialects are told by the fields that are there, never by the version:

- A turn begins at task_started and ends at task_complete or turn_aborted; files without these begin
  one at each user_message, and the reply that asks for no tool ends it.
- Tokens: `token_usage_record`, one per response. Files without it have token_count events with running
  totals that are written repeatedly: the last usage counts where the total has changed.
- A tool call ends at its item_completed, else at an older end event, else at its output line. A command
  that goes on in the background has ended, as a call, with its output.
- In code mode the model calls one tool `exec`, and what its script runs appears as items only.

What is copied from another thread is left out by `history`.

Longer than 400 lines: turns, replies and tool calls each have several dialects of a few lines, and share
one memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from msgspec import Raw, Struct, field

from spantail.formats.codex import results, subagents
from spantail.formats.codex.history import AT_ONCE, History, minted
from spantail.formats.codex.limits import changed
from spantail.formats.codex.lines import Line, Payload, TokenUsage, Totals, since
from spantail.formats.codex.names import NO_FAILURE, folder, full_name, is_prompt, named, thread_of, word_of
from spantail.formats.values import some, text, time_ns
from spantail.model import (
    MILLISECOND,
    Called,
    Closed,
    DurationSource,
    Event,
    Noted,
    Prompted,
    Record,
    Replied,
    Returned,
    Started,
    Status,
)

KEEP: Final = 256
"""Tool calls that a reader remembers."""
ROUNDED: Final = 50 * MILLISECOND
"""What is told in tenths of a second may be so much less."""
CALLS: Final = frozenset(("function_call", "custom_tool_call", "local_shell_call"))
ANSWERS: Final = CALLS | {"reasoning", "agent_message", "agent_reasoning"}
OUTPUTS: Final = frozenset(("function_call_output", "custom_tool_call_output"))
ENDS: Final = frozenset(
    ("exec_command_end", "patch_apply_end", "mcp_tool_call_end", "dynamic_tool_call_response")
)
INNER: Final = "exec-"
"""How the id of a call begins that a script of code mode made."""
ITEM_TOOLS: Final = {
    "CommandExecution": "exec_command",
    "FileChange": "apply_patch",
    "ImageView": "view_image",
    "WebSearch": "web_search",
}


class CodexReader(Struct):
    """Reads one thread; the memory of one is small."""

    session: str = ""
    parent: str = ""
    alone: bool = False
    """A subagent that names no parent (a review): its turns are no turns of a person."""
    history: History = field(default_factory=History)
    tasks: bool = False
    """This file marks where turns begin and end."""
    turn: str = ""
    """The open turn, by its key."""
    told: str = ""
    """The kind of record that gave the turn's prompt; another one of that kind steers it."""
    mark: tuple[str, int, Status, str] | None = None
    """The last end mark: turn, time, status, error type."""
    prompts: int = 0
    model: str = ""
    records: bool = False
    """This file has token_usage_record; its token_count is not for counting."""
    total: Totals | None = None
    ready: int = 0
    """When the model could begin its next reply."""
    began: int = 0
    made: int = 0
    """The first and the last sign of the reply whose usage is still to come."""
    asked: bool = False
    said: bool = False
    written: bool = False
    """An item of the reply whose usage is still to come stands in the file."""
    counted: bool = False
    """The last reply's usage came before its items: versions of 2025 wrote them when its tools had run."""
    owed: bool = False
    """The model has not answered to a prompt or a tool's output."""
    held: int = 0
    """A prompt in what looks like a copy, without an answer there: the file's own, if one follows."""
    failed: str = ""
    calls: dict[str, str] = {}
    """Tool calls: id -> name while open, empty when it has returned."""
    opened: dict[str, int] = {}
    """When those that are open were written."""
    limits: dict[str, float] = {}
    ordinals: bool = False
    """Newer lines are numbered; these versions write an error where there was one."""
    bare: int = 0
    """The only time in a file without envelopes: its beginning."""

    def read(self, record: Record) -> Iterator[Event]:
        line: Line = record.body
        body = line.payload
        if body is None:
            yield from self._bare(line, record)
            return
        if line.type == "world_state" or (body.type == "message" and body.role != "assistant"):
            return  # much of the bytes, and nothing in them to count
        time = time_ns(line.timestamp)
        if line.type == "session_meta":
            if record.position and named(record.path) not in ("", text(body.id)):
                self._name(record.path)  # the file's own meta is its first line, and was lost
            yield from self._meta(body, time)
            return
        self._name(record.path)
        self.ordinals = self.ordinals or line.ordinal is not None
        turn = text(body.turn_id) if body.type == "task_started" or line.type == "turn_context" else ""
        if self.history.copied(turn, line.ordinal, time):
            self._copy(line.type, body, time)
            return
        if self.held and body.type in ANSWERS:
            yield from self._begin(self._stamp(self.held, 0), self.held)
        if line.type == "response_item":
            yield from self._response_item(body, time, record.position)
        elif line.type == "event_msg":
            yield from self._event(body, time, record.position)
        elif line.type == "token_usage_record":
            yield from self._usage_record(body, time)
        elif line.type == "turn_context":
            self.model = text(body.model) or self.model
        elif line.type == "compacted":
            yield Noted(session=self.session, time=time, kind="compaction")

    # --------------------------------------------------------------------- who this is about

    def _name(self, path: str) -> None:
        """A file whose first line is lost has its thread's id in its name."""
        if not self.session:
            self.session = thread_of(path)
            self.history.own = minted(self.session)

    def _meta(self, meta: Payload, time: int) -> Iterator[Event]:
        """The first one wins; it comes again when a thread is opened again."""
        id_ = text(meta.id)
        if self.session:
            if id_ and id_ != self.session:
                self.history.foreign(time)
            return
        if not id_:
            return
        self.session = id_
        self.history.own = minted(id_)
        origin = subagents.origin(meta)
        self.parent, self.alone = origin.parent, origin.nested and not origin.parent
        source = text(meta.forked_from_id)
        self.history.begin(time, related=bool(source or origin.nested))
        start = meta.subagent_history_start_ordinal
        if isinstance(start, int) and 0 < start < 2**53:
            self.history.start = start
        git = meta.git if isinstance(meta.git, dict) else {}
        yield Started(
            session=id_,
            time=time,
            parent=origin.parent,
            name=origin.name,
            agent_id=id_ if origin.nested else "",
            cwd=text(meta.cwd, 4096),
            branch=text(git.get("branch")),
            version=text(meta.cli_version),
            provider=text(meta.model_provider),
            copied_from=source,
        )

    def _stamp(self, time: int, position: int) -> str:
        """A key for what has no id: its place in the thread, the same in every copy of the file."""
        return f"{self.session}/{time // MILLISECOND}" if time else f"{self.session}/p{position}"

    def _turn_key(self, id_: str) -> str:
        """Turn ids are UUIDs; a counter would be the same in every thread."""
        return id_ if len(id_) == 36 else f"{self.session}/{id_}"

    def _key(self, call: str) -> str:
        return f"{self.session}/{call}"

    def _copy(self, type_: str, body: Payload, time: int) -> None:
        """Of a copied line only the running total is remembered: the file's own goes on from there."""
        if body.type == "token_count" and body.info is not None and body.info.total_token_usage is not None:
            self.total = body.info.total_token_usage.totals()
        elif type_ == "turn_context":
            self.model = text(body.model) or self.model
        elif body.type == "thread_settings_applied":
            self._settings(body)
        elif body.type == "user_message":
            self.held = time if is_prompt(body.message) else self.held
        elif body.type in ANSWERS or body.type in ("turn_aborted", "task_complete"):
            self.held = 0

    def _settings(self, event: Payload) -> None:
        if event.thread_settings is not None and not self.model:
            self.model = text(event.thread_settings.model)

    # -------------------------------------------------------------------------------- turns

    def _begin(self, key: str, time: int, outer: str = "", content: Raw | None = None) -> Iterator[Event]:
        self.turn, self.told, self.failed, self.mark = key, "", "", None
        self.ready, self.began, self.made = max(self.ready, time), 0, 0
        self.asked = self.said = self.owed = self.written = self.counted = False
        self.held = 0
        yield Prompted(
            session=self.session, time=time, turn=key, outer=outer, human=not self.alone, content=content
        )

    def _end(
        self, key: str, time: int, status: Status = "ok", error_type: str = "", word: str = ""
    ) -> Iterator[Event]:
        self.mark = (key, time, status, error_type)
        if key in ("", self.turn):
            self.turn = ""
        yield Closed(
            session=self.session, time=time, turn=key, status=status, error_type=error_type, word=word
        )

    def _end_again(self) -> Iterator[Event]:
        """What comes after a turn's end mark belongs to the turn, but does not open it again."""
        if not self.turn and self.mark is not None:
            key, time, status, error_type = self.mark
            yield Closed(session=self.session, time=time, turn=key, status=status, error_type=error_type)

    def _started(self, event: Payload, time: int, position: int) -> Iterator[Event]:
        self.tasks = True
        id_ = text(event.turn_id)
        about = event.turn_attribution
        outer = text(about.get("parent_turn_id")) if isinstance(about, dict) and self.parent else ""
        key = self._turn_key(id_) if id_ else self._stamp(time, position)
        yield from self._begin(key, time, outer)

    def _prompt(self, kind: str, content: Raw, time: int, position: int) -> Iterator[Event]:
        """The prompt of a turn that has begun, one that steers it, or the beginning of one."""
        if not is_prompt(content):
            return
        if not self.tasks:
            if self.turn and self.said:
                yield from self._end(self.turn, self.made)
            yield from self._begin(self._stamp(time, position), time, content=some(content))
            self.owed = True
        elif not self.told and self.turn:
            self.told, self.owed = kind, True
            yield Prompted(
                session=self.session, time=time, turn=self.turn, human=not self.alone, content=some(content)
            )
        elif self.told == kind:
            yield Noted(session=self.session, time=time, kind="queued_prompt")

    def _ended(self, event: Payload) -> str:
        """The turn that an end mark is about: the open one where none was marked when it began."""
        id_ = text(event.turn_id)
        return self._turn_key(id_) if id_ and self.tasks else self.turn

    def _complete(self, event: Payload, time: int) -> Iterator[Event]:
        key = self._ended(event)
        word = self.failed
        if isinstance(event.error, dict):
            word = word_of(event.error.get("codex_error_info")) or "other"
            if not self.failed:
                yield Noted(session=self.session, time=time, kind="provider_error", error_type=word)
        elif not word and not self.ordinals and self.owed and some(event.last_agent_message) is None:
            word = "no_answer"  # older versions say nothing of an error
        if word:
            yield from self._end(key, time, "error", "provider_error", word)
        else:
            yield from self._end(key, time)

    def _aborted(self, event: Payload, time: int) -> Iterator[Event]:
        key = self._ended(event)
        reason = text(event.reason, 60)
        if reason == "review_ended":
            yield from self._end(key, time, word=reason)
        elif reason == "budget_limited":
            yield from self._end(key, time, "error", "max_budget", reason)
        else:
            yield from self._end(key, time, "interrupted", "interrupted", reason)

    # -------------------------------------------------------------------------- model calls

    def _sign(self, time: int) -> None:
        """Something the model made: its reply began when all before it had been told."""
        self.began = self.began or self.ready or time
        self.made = time
        self.owed = False

    def _shows(self, time: int) -> bool:
        """Whether an item is a sign of the reply to come, and not one of the reply counted before."""
        if self.counted:
            return False
        self.written = True
        self._sign(time)
        return True

    def _answered(self, time: int) -> Iterator[Event]:
        self._sign(time)
        self.said = True
        if self.turn and not self.tasks and self.total is None:
            # Nothing may ever tell of the reply (old files, servers that count nothing).
            yield Closed(session=self.session, time=time, turn=self.turn, rests=True)

    def _usage_record(self, body: Payload, time: int) -> Iterator[Event]:
        self.records = True
        thread = text(body.thread_id)
        usage = body.usage.usage() if body.usage is not None else None
        if usage is None or (thread and thread != self.session):
            return
        id_ = text(body.response_id)
        self.made = time
        yield from self._replied(self._key(id_) if id_ else self._stamp(time, 0), id_, body.usage, time)

    def _counted(self, body: Payload, time: int, position: int) -> Iterator[Event]:
        for window, used in changed(self.limits, body.rate_limits):
            yield Noted(session=self.session, time=time, kind="limit", attrs={"window": window, "used": used})
        if body.info is None or body.info.total_token_usage is None or self.records:
            return
        total = body.info.total_token_usage.totals()
        last = body.info.last_token_usage
        # What comes from another thread may begin with that one's total, told once more. A subagent's own
        # begins at nothing: the total after its first reply is that reply, even if its items follow later.
        first = self.total is None and self.history.related and not self.made
        own = (self.turn or self.held) and last is not None and last.totals() == total
        if total != self.total and (own or not first):
            if self.held:
                yield from self._begin(self._stamp(self.held, 0), self.held)
            call = f"{self._stamp(time, position)}/{total[0] + total[3]}"
            if last is None and (self.total is not None or not self.history.related):
                last = since(total, self.total)
            yield from self._replied(call, "", last, time)
        self.total = total

    def _replied(self, call: str, id_: str, counts: TokenUsage | None, time: int) -> Iterator[Event]:
        usage = counts.usage() if counts is not None else None
        if usage is None:
            return
        end = self.made or time
        ends = self.said and not self.asked and not self.tasks
        self.counted = not (self.written or self.tasks or self.records)
        yield Replied(
            session=self.session,
            time=time,
            call=call,
            id=id_,
            model=self.model,
            usage=usage,
            final=True,
            ends=ends and not self.counted,
            rests=ends,
            start=min(self.began or self.ready, end),
            end=end,
        )
        self.ready = max(self.ready, end)
        self.began = self.made = 0
        self.asked = self.said = self.written = False
        yield from self._end_again()

    # --------------------------------------------------------------------------- tool calls

    def _response_item(
        self, item: Payload, time: int, position: int, source: DurationSource | None = None
    ) -> Iterator[Event]:
        kind = item.type
        if kind in CALLS:
            yield from self._called(item, time, position)
        elif kind in OUTPUTS:
            self.ready, self.owed = max(self.ready, time), True
            yield from self._output(item, time, source)
        elif kind == "message" and item.role == "assistant":
            if self._shows(time):
                yield from self._answered(time)
        elif kind == "reasoning":
            self._shows(time)
        elif kind == "web_search_call":
            yield from self._web_search(item, time, position)

    def _called(self, item: Payload, time: int, position: int) -> Iterator[Event]:
        if self._shows(time):
            self.asked, self.said = True, False
        id_ = text(item.call_id) or text(item.id) or f"p{position}"
        name = text(item.name) or ("local_shell" if item.type == "local_shell_call" else "tool")
        name = full_name(text(item.namespace), name)
        self._remember(id_, name)
        self.opened[id_] = time
        yield Called(
            session=self.session,
            time=time,
            call=self._key(id_),
            id=id_,
            name=name,
            type="extension" if name.startswith("mcp__") else "function",
            input=some(item.arguments) or some(item.input) or some(item.action),
            starts_agent=name in subagents.STARTS,
        )
        yield from self._end_again()

    def _remember(self, id_: str, name: str) -> None:
        self.calls[id_] = name
        if len(self.calls) > KEEP:
            oldest = next(iter(self.calls))
            del self.calls[oldest]
            self.opened.pop(oldest, None)

    def _output(self, item: Payload, time: int, source: DurationSource | None) -> Iterator[Event]:
        id_ = text(item.call_id)
        name = self.calls.get(id_)
        if name in subagents.STARTS:
            yield from self._links(subagents.named_in(item.output), id_, time, spawns=True)
        if name:
            ending = results.of_output(item.output)
            took = self._took(item, time - self.opened.get(id_, 0)) if source is None else None
            yield from self._returned(id_, ending, time, time, some(item.output), source, took)

    @staticmethod
    def _took(item: Payload, apart: int) -> int | None:
        """A call that was written with its output, when it had run, took as long as the output says."""
        took = results.ran(item.output) if apart < AT_ONCE else None
        return took if took is not None and took > apart + ROUNDED else None

    def _returned(
        self,
        id_: str,
        ending: results.Ending,
        time: int,
        end: int,
        output: Raw | None,
        source: DurationSource | None = None,
        took: int | None = None,
    ) -> Iterator[Event]:
        self.calls[id_] = ""
        self.opened.pop(id_, None)
        yield Returned(
            session=self.session,
            time=time,
            call=self._key(id_),
            status=ending.status,
            error_type=ending.error_type,
            exit_code=ending.exit_code,
            duration=took,
            end=end,
            source=source,
            output=output,
        )

    def _web_search(self, item: Payload, time: int, position: int) -> Iterator[Event]:
        """It ran inside the reply; mostly it has no id, and nothing tells when it began."""
        self._shows(time)
        id_ = text(item.call_id) or text(item.id) or f"web_search@{position}"
        if id_ in self.calls:
            return
        self._remember(id_, "")
        call = self._key(id_)
        yield Called(
            session=self.session, time=time, call=call, id=id_, name="web_search", input=some(item.action)
        )
        ending = results.of_status(item.status, None)
        yield from self._returned(id_, ending, time, time, None, "estimate")
        yield from self._end_again()

    def _item(self, body: Payload, time: int, position: int) -> Iterator[Event]:
        item = body.item
        if item is None:
            return
        if item.type == "UserMessage":
            yield from self._prompt("item", item.content, time, position)
            return
        if item.type in ("AgentMessage", "Reasoning"):
            self._sign(time)
            return
        id_ = text(item.id)
        name = self.calls.get(id_)
        end = time_ns(body.completed_at_ms) or time
        ending = results.of_item(item)
        output = some(item.aggregated_output) or some(item.result) or some(item.stdout)
        inner = name is None and id_.startswith(INNER)
        if inner:
            name = subagents.tool_of(item) or ITEM_TOOLS.get(item.type, item.type)
            self._remember(id_, name)
            yield Called(
                session=self.session,
                time=time,
                call=self._key(id_),
                id=id_,
                name=name,
                type="extension" if name.startswith("mcp__") else "function",
                input=subagents.input_of(item),
                start=min(time_ns(body.started_at_ms) or end, end),
            )
        if name is not None:
            children, spawns = subagents.set_to_work(item, name)
            yield from self._links(children, id_, time, spawns=spawns)
        if name and (inner or item.type != "SubAgentActivity"):
            yield from self._returned(id_, ending, time, end, output)
        if inner:
            yield from self._end_again()

    def _links(self, children: list[str], id_: str, time: int, *, spawns: bool) -> Iterator[Event]:
        """The subagents that a call of this thread has set to work."""
        call = self._key(id_)
        return subagents.linked(children, self.session, call, time, self.parent, spawns=spawns)

    # ------------------------------------------------------------------------------- events

    def _event(self, body: Payload, time: int, position: int) -> Iterator[Event]:
        kind = body.type
        if kind == "token_count":
            yield from self._counted(body, time, position)
        elif kind == "item_completed":
            yield from self._item(body, time, position)
        elif kind == "user_message":
            if text(body.kind) not in ("environment_context", "user_instructions"):
                yield from self._prompt("event", body.message, time, position)
        elif kind in ("agent_message", "agent_reasoning"):
            self.counted = False
            if kind == "agent_message":
                yield from self._answered(time)
            else:
                self._sign(time)
        elif kind == "task_started":
            yield from self._started(body, time, position)
        elif kind == "task_complete":
            yield from self._complete(body, time)
        elif kind == "turn_aborted":
            yield from self._aborted(body, time)
        elif kind in ENDS:
            id_ = text(body.call_id)
            if self.calls.get(id_):
                output = some(body.aggregated_output) or some(body.result) or some(body.stdout)
                yield from self._returned(id_, results.of_event(body), time, time, output)
        elif kind in subagents.TOLD:
            id_ = text(body.call_id) or text(body.event_id)
            if id_ in self.calls:
                children, spawns = subagents.told_in(body, self.calls[id_])
                yield from self._links(children, id_, time, spawns=spawns)
        elif kind == "thread_settings_applied":
            self._settings(body)
        elif kind == "error":
            word = word_of(body.codex_error_info) or "other"
            if word not in NO_FAILURE:
                self.failed = word
                yield Noted(session=self.session, time=time, kind="provider_error", error_type=word)
        elif kind == "stream_error":
            yield Noted(
                session=self.session, time=time, kind="retry", error_type=word_of(body.codex_error_info)
            )

    # ----------------------------------------------------------- lines without an envelope

    def _bare(self, line: Line, record: Record) -> Iterator[Event]:
        """The first format (to September 2025): items alone, without times, tokens and model."""
        if not line.type and line.id is not None and not self.session:
            self.bare = time_ns(line.timestamp)
            yield from self._meta(line, self.bare)
            return
        if not line.type:
            return
        self._name(record.path)
        if line.type == "message" and line.role == "user":
            if is_prompt(line.content):
                self.prompts += 1
                if self.turn and self.said:
                    yield from self._end(self.turn, self.bare)
                yield from self._begin(
                    f"{self.session}/{self.prompts}", self.bare, content=some(line.content)
                )
            elif not self.prompts and (cwd := folder(line.content)):
                yield Started(session=self.session, time=self.bare, cwd=cwd)
        else:
            yield from self._response_item(line, self.bare, record.position, "estimate")

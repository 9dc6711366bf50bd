"""Claude Code: JSON lines, one file per session and one per subagent.

    $CLAUDE_CONFIG_DIR/projects/<dir>/<sessionId>.jsonl
    .../<sessionId>/subagents/**/agent-<agentId>.jsonl  + agent-<agentId>.meta.json
    .../agent-<agentId>.jsonl          beside the main file (2.0.x); inline sidechains before that

A reply is written as one line per content block, each with the usage known so far: the last line
with a stop_reason counts as a whole, lines without one only raise it (`Replied.final`). A turn
begins at a line that a person (or the SDK) wrote (`prompts`). Times of tools are those of the lines,
and hold permission waits and hooks; how they ended is in `outcome`.

Longer than 400 lines: its versions differ in many small ways, and each is a few lines.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from hashlib import blake2b
from pathlib import PurePath

from msgspec import Struct

from spantail.formats.claude_code.lines import (
    AGENT_INPUT,
    AGENT_RESULT,
    API_ERROR,
    ATTACHMENT,
    COMPACTION,
    USAGE,
    AgentResult,
    Block,
    Line,
)
from spantail.formats.claude_code.meta import base_of
from spantail.formats.claude_code.outcome import INTERRUPTED, failure, rejected
from spantail.formats.claude_code.outcome import text as text_of
from spantail.formats.claude_code.progress import told
from spantail.formats.claude_code.prompts import (
    CUT,
    HIDDEN,
    NO_PROMPT,
    PLAN,
    decoded,
    first_text,
    human,
    wakes,
)
from spantail.formats.times import iso_ns
from spantail.model import (
    Called,
    Closed,
    Ended,
    Event,
    Linked,
    Noted,
    Prompted,
    Record,
    Replied,
    Returned,
    Started,
    Status,
)

AGENT_TOOLS = frozenset(("Agent", "Task", "Skill", "SendMessage", "Workflow"))
CUT_SHORT = frozenset(("max_tokens", "refusal", "model_context_window_exceeded"))
"""The loop may go on with another call; it need not."""
ABORTED = "API Error: Request was aborted"
"""Said of a request that the user stopped; the provider did not fail."""
GOES_ON = CUT_SHORT | {"tool_use", "pause_turn"}
ATTACHMENTS = (
    b'"hook_',
    b'"max_turns_reached"',
    b'"budget_usd"',
    b'"queued_command"',
    b'"structured_output"',
)
HOOKS = frozenset(("hook_success", "hook_blocking_error", "hook_non_blocking_error", "hook_cancelled"))
KEEP = 64
"""Open subagent calls and sidechain tips remembered by a reader."""


class ClaudeReader(Struct):
    """Reads a main file or a subagent's file; the memory of one is small."""

    session: str = ""
    agent_id: str = ""
    base: str = ""
    """The main session of this file."""
    parent: str = ""
    """A subagent's file: the session it is nested in."""
    started: bool = False
    branch: str = ""
    version: str = ""
    slug: str = ""
    prompts: int = 0
    origins: bool = False
    """This file's lines say who wrote a prompt (turnOrigin)."""
    last_call: str = ""
    asked: str = ""
    """The model call that asked for a tool."""
    ended: bool = False
    failed: bool = False
    budget: float = 0.0
    forked: bool = False
    """A fork agent's file begins with a line of its parent, which has no end mark: skip it."""
    hidden: bool = False
    """An agent that the program started for itself; its file can begin with a copy of the session's history."""
    held: tuple[int, str, str] | None = None
    """A hidden agent's latest prompt: it is the history's if nothing answers it."""
    fired: bool = False
    """A scheduled task is due: the next line that no person sees makes the model work."""
    boundary: bool = False
    tasks: dict[str, tuple[str, str]] = {}
    """Open calls that start subagents: id -> (subagent type, digest of the prompt)."""
    runs: dict[str, str] = {}
    inline: dict[str, str] = {}
    """Open calls of inline sidechains: id -> the sidechain's session."""
    chains: dict[str, str] = {}
    """Inline sidechains (up to 1.0.x): uuid of a line -> the sidechain's session."""
    ended_chains: list[str] = []
    told: list[str] = []
    """Subagents without a file of their own."""

    def read(self, record: Record) -> Iterable[Event]:
        # The two frequent kinds make lists, not generators: this is the hot path of a backlog.
        line: Line = record.body
        kind = line.type
        if kind == "assistant":
            take: Callable[[Line, int], Iterable[Event]] = self._assistant
        elif kind == "user":
            take = self._user
        elif kind == "system":
            take = self._system
        elif kind == "attachment":
            take = self._attachment
        else:
            return self._other(record)
        if not self.session:
            self._name(record.path, line)
        time = iso_ns(line.timestamp) if line.timestamp else 0
        if (
            self.started
            and (line.branch == self.branch or not (line.branch or self.branch))
            and (line.version == self.version or not (line.version or self.version))
            and (not line.slug or line.slug == self.slug)
        ):
            return take(line, time)
        return [*self._introduce(line, time), *take(line, time)]

    def _other(self, record: Record) -> Iterable[Event]:
        line: Line = record.body
        if line.type == "cost-state":
            return self._cost_state(line)
        if line.type == "progress" and (found := told(record)) is not None:
            return self._told(record.path, line, *found)
        if line.type == "fork-context-ref":
            self.forked = True
        return ()

    # --------------------------------------------------------------------- who this is about

    def _name(self, path: str, line: Line) -> None:
        name = PurePath(path)
        if name.name.startswith("agent-"):
            # Not the line's agentId: the first lines can be copies of another agent's.
            self.agent_id = name.stem.removeprefix("agent-")
            self.hidden = HIDDEN.fullmatch(self.agent_id) is not None
            parts = name.parts
            self.base = base_of(parts) or line.session_id or name.stem
            self.session = f"{self.base}/{self.agent_id}"
            self.parent = f"{self.base}/{parts[-2]}" if "workflows" in parts else self.base
        else:
            # A fork may keep the old sessionId in its lines: the file's name is right.
            self.session = self.base = name.stem

    def _introduce(self, line: Line, time: int) -> Iterator[Event]:
        branch, version, slug = line.branch or "", line.version or "", line.slug or ""
        if not line.cwd and not self.started:
            return
        first, self.started = not self.started, True
        self.origins = self.origins and version == self.version
        self.branch, self.version, self.slug = branch, version, slug or self.slug
        yield Started(
            session=self.session,
            time=time,
            parent=self.parent,
            agent_id=self.agent_id,
            cwd=line.cwd or "" if first else "",
            branch="" if branch == "HEAD" else branch,
            version=version,
            slug=slug,
        )

    def _where(self, line: Line) -> str:
        """The session of a line: an inline sidechain is a subagent of its own."""
        if self.agent_id or not line.sidechain:
            return self.session
        chain = self.chains.get(line.parent or "")
        if chain is None:
            chain = f"{self.session}/{line.uuid or line.timestamp}"
        self.chains[line.uuid or ""] = chain
        if len(self.chains) > KEEP:
            # The oldest line of the same chain: others may wait for a tool while this one goes on.
            own = [uuid for uuid, of in self.chains.items() if of == chain]
            del self.chains[own[0] if len(own) > 1 else next(iter(self.chains))]
        return chain

    # ------------------------------------------------------------------------------- replies

    def _assistant(self, line: Line, time: int) -> list[Event]:
        message = line.message
        if message is None:
            return []
        if self.forked:
            if self.prompts == 0 and not message.stop_reason:
                return []
            self.forked = False
        session = self._where(line) if line.sidechain else self.session
        if message.model == "<synthetic>":
            return list(self._synthetic(line, session, time))
        content = message.content
        if not content and message.id is None and message.model is None and message.usage is None:
            return []  # not a reply, but what a broken proxy made of one
        if self.held is not None:
            return [self._prompted(), *self._assistant(line, time)]
        call = message.id or line.uuid or ""
        blocks = content if type(content) is list else []
        if len(blocks) == 1:  # as nearly all are
            kind = blocks[0].type
            tools = blocks if kind == "tool_use" and blocks[0].id else []
            has_text = kind == "text"
        else:
            tools = [b for b in blocks if b.type == "tool_use" and b.id]
            has_text = type(content) is str or any(b.type == "text" for b in blocks)
        usage = message.usage.usage() if message.usage is not None else None
        if usage is None and self.prompts == 0 and self.boundary:
            return []  # after a compaction a fork repeats a reply with its usage wiped
        stop = message.stop_reason
        ends = rests = False
        if tools:
            self.asked = call
        elif call != self.asked:
            ends = bool(stop) and stop not in GOES_ON
            rests = stop in CUT_SHORT if stop else has_text
        if session == self.session:
            # What is as it was is not set again: that costs several times what it costs to look.
            if self.last_call != call:
                self.last_call = call
            if self.ended != (ends or rests):
                self.ended = ends or rests
            if self.failed:
                self.failed = False
        elif ends and session not in self.ended_chains:
            self.ended_chains = [*self.ended_chains, session][-KEEP:]
        reply = Replied(
            session=session,
            time=time,
            call=call,
            id=message.id or "",
            model=message.model or "",
            usage=usage,
            final=bool(stop) and usage is not None and not line.aborted,
            cut=bool(line.aborted),
            stop=stop or "",
            ends=ends,
            rests=rests,
        )
        if not tools:
            return [reply]
        return [reply, *[self._tool_use(session, call, block, time) for block in tools]]

    def _tool_use(self, session: str, call: str, block: Block, time: int) -> Called:
        name, id_ = block.name or "", block.id or ""
        starts = name in AGENT_TOOLS
        if starts:
            task = decoded(AGENT_INPUT, block.input)
            prompt = (task.prompt or "") if task is not None else ""
            kind = (task.subagent_type or "") if task is not None else ""
            self.tasks[id_] = (kind, blake2b(prompt.encode("utf-8", "replace"), digest_size=8).hexdigest())
            if len(self.tasks) > KEEP:
                self.inline.pop(next(iter(self.tasks)), None)
                del self.tasks[next(iter(self.tasks))]
        return Called(
            session=session,
            time=time,
            call=id_,
            id=id_,
            name=name,
            type="extension" if name.startswith("mcp__") else "function",
            input=block.input,
            model_call=call,
            starts_agent=starts,
        )

    def _synthetic(self, line: Line, session: str, time: int) -> Iterator[Event]:
        """Lines that the program wrote in the model's name."""
        if line.cut_cause is not None and self.last_call:
            yield Replied(session=session, time=time, call=self.last_call, cut=True)
        if not line.api_error:
            return
        content = line.message.content if line.message is not None else None
        if (first_text(content) if isinstance(content, list) else content or "").startswith(ABORTED):
            self.failed = self.ended = True
            yield Closed(session=session, time=time, status="interrupted", error_type="interrupted")
            return
        word = text_of(line.error, 60) or "provider_error"
        yield Noted(session=session, time=time, kind="provider_error", error_type=word)
        if line.cut_cause is None:
            self.failed = self.ended = True
            yield Closed(session=session, time=time, status="error", error_type="provider_error", word=word)

    # --------------------------------------------------------------------- prompts and results

    def _user(self, line: Line, time: int) -> Iterable[Event]:
        message = line.message
        if message is None:
            return ()
        session = self._where(line) if line.sidechain else self.session
        content = message.content
        if type(content) is list and len(content) == 1 and content[0].type == "tool_result" and self.prompts:
            return self._tool_result(line, session, content[0], time)
        return self._said(line, session, content, time)

    def _said(
        self, line: Line, session: str, content: str | list[Block] | None, time: int
    ) -> Iterator[Event]:
        if isinstance(content, list):
            results = [b for b in content if b.type == "tool_result" and b.tool_use_id]
            texts = [b for b in content if b.type != "tool_result"]
            text = first_text(texts)
            has_text = bool(texts)
        else:
            results, text = [], content or ""
            has_text = bool(text)
        if results and not (self.forked and self.prompts == 0):
            for block in results:
                yield from self._tool_result(line, session, block, time)
        if not has_text:
            return
        if session != self.session:
            yield from self._sidechain(line, session, text, time)
        elif text.startswith(INTERRUPTED):
            self.failed = self.ended = True
            yield Closed(session=session, time=time, status="interrupted", error_type="interrupted")
        elif text.startswith(CUT) and line.meta and self.last_call:
            yield Replied(session=session, time=time, call=self.last_call, cut=True)
        elif self.agent_id:
            yield from self._subagent_prompt(line, text, time)
        else:
            yield from self._prompt(line, text, time, only_text=not results)

    def _subagent_prompt(self, line: Line, text: str, time: int) -> Iterator[Event]:
        """In a subagent's file a text begins its work, or wakes it once it had finished."""
        if (self.prompts or line.meta) and (line.summary or text.startswith(NO_PROMPT)):
            return
        if self.prompts and not (self.ended or self.hidden):
            return
        self.prompts += 1
        self.ended = False
        # With the agent's name: what it copied from the session's history keeps its uuid.
        self.held = (time, f"{self.agent_id}/{line.uuid or time}", line.prompt_id or "")
        if not self.hidden:
            yield self._prompted()

    def _prompted(self) -> Prompted:
        assert self.held is not None
        (time, turn, outer), self.held = self.held, None
        return Prompted(session=self.session, time=time, turn=turn, outer=outer)

    def _sidechain(self, line: Line, session: str, text: str, time: int) -> Iterator[Event]:
        if line.parent and session in self.ended_chains:
            return
        if not session.endswith(line.uuid or "?"):
            return
        yield Started(session=session, time=time, parent=self.session)
        digest = blake2b(text.encode("utf-8", "replace"), digest_size=8).hexdigest()
        for id_, (kind, prompt) in self.tasks.items():
            if prompt == digest and id_ not in self.inline:
                self.inline[id_] = session
                yield Started(session=session, time=time, parent=self.session, name=kind)
                yield Linked(session=session, time=time, call=id_, parent=self.session)
                break
        yield Prompted(session=session, time=time, turn=line.uuid or session)

    def _prompt(self, line: Line, text: str, time: int, *, only_text: bool) -> Iterator[Event]:
        if line.turn_origin:
            self.origins = True
        if line.summary:
            self.boundary = True
            return
        by: bool | None = False
        if not line.meta:
            by = human(line, text, origins=self.origins, only_text=only_text)
        elif not wakes(line, fired=self.fired):
            return
        self.fired = False
        if by is None:
            return
        if text.startswith("<task-notification>"):
            yield from self._notification(text, time)
        self.prompts += 1
        self.ended = self.failed = False
        yield Prompted(
            session=self.session,
            time=time,
            turn=line.uuid or f"{self.session}/{time}",
            alias=line.prompt_id or "",
            human=by,
            implements=text.startswith(PLAN),
        )

    def _notification(self, text: str, time: int) -> Iterator[Event]:
        """The end of a workflow that runs in the background."""
        found = re.search(r"<tool-use-id>([^<]{1,100})<", text)
        run = self.runs.pop(found[1], None) if found is not None else None
        if run is not None:
            yield Closed(session=run, time=time)

    def _tool_result(self, line: Line, session: str, block: Block, time: int) -> list[Event]:
        id_ = block.tool_use_id or ""
        events: list[Event] = []
        status: Status = "ok"
        error_type, exit_code = "", None
        if block.is_error:
            status, error_type, exit_code = failure(line, block)
        elif line.result and rejected(line):
            status, error_type = "interrupted", "interrupted"
        if self.tasks and id_ in self.tasks:
            kind, _ = self.tasks.pop(id_)
            chain = self.inline.pop(id_, None)
            if chain is not None:
                self.chains = {uuid: of for uuid, of in self.chains.items() if of != chain}
                events.append(Linked(session=chain, time=time, call=id_, parent=session, over=True))
            result = decoded(AGENT_RESULT, line.result)
            if result is not None:
                events += self._subagent(line, session, id_, kind, result, time)
        events.append(
            Returned(
                session=session,
                time=time,
                call=id_,
                status=status,
                error_type=error_type,
                exit_code=exit_code,
                output=block.content,
            )
        )
        return events

    def _subagent(
        self, line: Line, session: str, call: str, kind: str, result: AgentResult, time: int
    ) -> Iterator[Event]:
        if result.run_id:
            run = f"{self.base}/{result.run_id}"
            self.runs[call] = run
            yield Started(session=run, time=time, parent=session, name=result.workflow or "workflow")
            yield Linked(session=run, time=time, call=call, parent=session)
            yield Prompted(session=run, time=time, turn=run, outer=line.prompt_id or "")
            return
        agent = result.agent_id or result.resumed
        if not agent:
            return
        nested = f"{self.base}/{agent}"
        used = decoded(USAGE, result.usage)
        usage = used.usage() if used is not None else None
        name = result.agent_type or kind
        yield Started(session=nested, time=time, parent=self.base, name=name, agent_id=agent)
        # Up to 2.0 there is no status; what runs on or is woken has one, or no duration.
        over = result.status == "completed" or (not result.status and result.duration is not None)
        yield Linked(session=nested, time=time, call=call, parent=session, usage=usage, over=over)

    def _told(self, path: str, line: Line, agent: str, message: Line) -> Iterator[Event]:
        """A subagent's message, of whose file nothing was kept."""
        if not self.session:
            self._name(path, line)
        session = f"{self.base}/{agent}"
        time = iso_ns(message.timestamp or line.timestamp or "")
        if agent not in self.told:
            self.told = [*self.told, agent][-KEEP:]
            yield Started(session=session, time=time, parent=self.session, agent_id=agent)
            if line.parent_tool:
                yield Linked(session=session, time=time, call=line.parent_tool, parent=self.session)
            turn = f"{agent}/{message.uuid or time}"
            yield Prompted(session=session, time=time, turn=turn, outer=line.prompt_id or "")
        nested = ClaudeReader(session=session, agent_id=agent, base=self.base, started=True, prompts=1)
        if message.type == "assistant":
            yield from nested._assistant(message, time)
        elif message.type == "user":
            yield from nested._user(message, time)

    # ----------------------------------------------------------------------------- the others

    def _system(self, line: Line, time: int) -> Iterator[Event]:
        session = self._where(line)
        if line.subtype == "turn_duration":
            if not self.failed:
                yield Closed(session=session, time=time)
        elif line.subtype == "compact_boundary":
            self.boundary = True
            about = decoded(COMPACTION, line.compact)
            attrs: dict[str, str | int | float | bool] = {}
            if about is not None and about.trigger:
                attrs["trigger"] = about.trigger
            if about is not None and about.pre_tokens is not None:
                attrs["pre_tokens"] = about.pre_tokens
            yield Noted(session=session, time=time, kind="compaction", attrs=attrs)
        elif line.subtype == "scheduled_task_fire":
            self.fired = True
        elif line.subtype == "api_error":
            error = decoded(API_ERROR, line.error)
            word = str(error.status) if error is not None and error.status else "connection"
            attrs = {"attempt": line.retry} if isinstance(line.retry, int) else {}
            yield Noted(session=session, time=time, kind="provider_error", error_type=word, attrs=attrs)

    def _attachment(self, line: Line, time: int) -> Iterator[Event]:
        # Most attachments are long listings: only the short ones with a meaning are opened.
        head = bytes(memoryview(line.attachment)[:60])
        if not any(kind in head for kind in ATTACHMENTS):
            return
        about = decoded(ATTACHMENT, line.attachment)
        if about is None:
            return
        session = self._where(line)
        if about.type in HOOKS:
            attrs: dict[str, str | int | float | bool] = {"hook": about.event or ""}
            if about.type != "hook_success":
                attrs["outcome"] = about.type.removeprefix("hook_")
            if about.duration is not None:
                attrs["duration_ms"] = about.duration
            if about.exit_code is not None:
                attrs["exit_code"] = about.exit_code
            yield Noted(session=session, time=time, kind="hook", attrs=attrs)
        elif about.type == "max_turns_reached":
            self.failed = self.ended = True
            yield Closed(session=session, time=time, status="error", error_type="max_turns")
        elif about.type == "budget_usd":
            self.budget = about.total or 0.0
        elif about.type == "queued_command" and about.mode != "task-notification":
            yield Noted(session=session, time=time, kind="queued_prompt")
        elif about.type == "structured_output" and self.last_call:
            # The result of the tool comes a moment later; it is the answer.
            self.ended = True
            yield Replied(session=session, call=self.last_call, ends=True)

    def _cost_state(self, line: Line) -> Iterator[Event]:
        """Written when the process exits, and at /clear and /branch: the run is over."""
        if not self.session or self.agent_id:
            return
        spent = line.cost
        if not self.ended and self.budget and isinstance(spent, int | float) and spent > self.budget:
            self.ended = True
            yield Closed(session=self.session, status="error", error_type="max_budget")
        # At an interruption the line comes before the results of the open calls.
        if self.ended:
            yield Ended(session=self.session)

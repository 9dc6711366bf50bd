"""Cline's VS Code extension, Roo Code and Kilo Code: a folder per task, with the messages as they were shown.

    <globalStorage>/saoudrizwan.claude-dev/tasks/<id>/ui_messages.json      and ~/.cline/data/tasks/<id>/

A list of what was said and asked, rewritten as a whole; a message grows in place and is known by its time, so a key
is (task, time). Copies of a folder (the extension moves its tasks) have the same keys.

A request to the model is one message, first without numbers, at the end with them; those that never got any are
no calls. What is shown after it belongs to its reply. Tools have no ids and (but for MCP) no results: a call has
ended when something else is shown. A turn ends with `completion_result`, is cancelled, or waits for a person.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePath

from msgspec import Struct, field

from spantail.formats.cline.shapes import part, word
from spantail.formats.cline.task_folder import model_at, model_named
from spantail.formats.cline.task_shapes import (
    REQUEST,
    RETRY,
    TASK_MODEL,
    TOOL_SAID,
    UI_MESSAGE,
    Request,
    UiMessage,
    inside,
)
from spantail.formats.times import ms_ns
from spantail.formats.values import number, text
from spantail.model import (
    MILLISECOND,
    Called,
    Closed,
    DurationSource,
    Event,
    Measured,
    Noted,
    Prompted,
    Record,
    Replied,
    Returned,
    Started,
    Status,
    Usage,
)

RETRIES = frozenset(("error_retry", "api_req_retried", "api_req_failed", "api_req_retry_delayed"))
FAILURES = frozenset(("error", "diff_error", "clineignore_error", "rooignore_error"))
RESUMES = frozenset(("resume_task", "resume_completed_task"))
REPLY = frozenset(
    (
        "text",
        "reasoning",
        "tool",
        "command",
        "use_mcp_server",
        "completion_result",
        "plan_mode_respond",
        "followup",
    )
)
"""What is shown of a reply while it comes; `completion_result` is asked once more after it."""
QUIET = frozenset(("command_output", "task_progress", "text", "reasoning", "use_mcp_server"))
"""What may be shown while a tool is at work."""
FOLDER = re.compile(r"# Current (?:Working|Workspace) Directory \(([^)\n]{1,4000})\) Files")
KEEP = 64
"""Requests remembered by a reader, for the case that they are removed."""


class OpenTool(Struct, array_like=True):
    key: str
    start: int
    source: DurationSource
    asked: bool


class Counted(Struct, array_like=True):
    """A request whose usage was told."""

    key: str
    position: int
    usage: Usage
    cost: float


class UiReader(Struct):
    task: str = ""
    turn: str = ""
    at: int = 0
    """Where the last message stood that was new, and when it was shown: one that stood before it and is older
    comes again because it was changed, and begins or ends nothing."""
    shown: int = 0
    answers: bool = False
    """The model asked something: the next words of a person belong to the turn."""
    request: str = ""
    """The last request; what is shown goes on to belong to it."""
    counts: bool = False
    """Its numbers are known."""
    reply_end: int = 0
    model: str = ""
    provider: str = ""
    uncached: bool = False
    """Some request told of input beside the cache, so that what is written to the cache is that."""
    cancelled: str = ""
    """The request at which a person stopped the turn."""
    failed: str = ""
    """A failure that ends the turn unless a request succeeds after it."""
    tool: OpenTool | None = None
    called: str = ""
    """The last tool call."""
    mcp: str = ""
    cwd: str = ""
    counted: list[Counted] = []
    extra: Usage = field(default_factory=Usage)
    """Sum of what was used by requests that are not shown: removed ones, and those of subagents."""
    extra_cost: float = 0.0
    extras: int = 0
    """Time of the last message that told of some."""

    def read(self, record: Record) -> Iterator[Event]:
        message: UiMessage | None = part(UI_MESSAGE, record.body)
        if message is None or message.partial is True:
            return
        if not self.task:
            self.task = PurePath(record.path).parent.name
        said = message.type == "say"
        kind = word(message.say if said else message.ask)
        time = ms_ns(message.ts)
        if not time or not kind:
            return
        key = f"{self.task}/{time // MILLISECOND}"
        old = record.position < self.at and time < self.shown
        if not old:
            self.at, self.shown = record.position, time
        info = part(TASK_MODEL, message.model_info)
        if info is not None and not old and word(info.model_id):
            self.model, self.provider = word(info.model_id), word(info.provider_id)
        if said and kind in ("api_req_started", "api_req_finished"):
            yield from self._request(message, record, key, time, old=old, finished=kind == "api_req_finished")
        elif said and kind in ("deleted_api_reqs", "subagent_usage"):
            yield from self._extra(message, record.position, time, removed=kind == "deleted_api_reqs")
        elif not old:
            yield from self._shown(message, kind, key, time, said=said)
        if self.cancelled and self.cancelled == self.request and not old:
            # What was shown of the reply that was stopped comes after the request that tells of it.
            yield from self._end_tool(self.shown, "interrupted", "interrupted")
            yield self._close(self.shown, "interrupted", "interrupted")

    def _close(self, time: int, status: Status = "ok", error_type: str = "") -> Closed:
        return Closed(session=self.task, time=time, turn=self.turn, status=status, error_type=error_type)

    # ------------------------------------------------------------------------------- requests

    def _request(
        self, message: UiMessage, record: Record, key: str, time: int, *, old: bool, finished: bool
    ) -> Iterator[Event]:
        request: Request = inside(REQUEST, message.words()) or Request()
        if finished and self.request:  # older versions tell the numbers in a message of their own
            key, time = self.request, 0
        elif key != self.request and not old:
            yield from self._end_tool(time)
            self.request, self.counts, self.reply_end, self.answers = key, False, time, False
            self.cancelled = ""
        current = key == self.request
        found = FOLDER.search(word(request.request))
        if found is not None and found[1] != self.cwd:
            self.cwd = found[1]
            yield Started(session=self.task, cwd=self.cwd)
        named = "" if old or message.model_info else model_named(word(request.request))
        if named:
            self.model, self.provider = named, ""
        usage = request.usage()
        reason = word(request.cancel_reason)
        if usage.total():
            if current:
                self.counts = True
            end = max(self.reply_end, time) if current else time
            yield self._reply(message, record, request, usage, key, time, end)
        if reason == "user_cancelled" and current:
            self.cancelled = key
        elif reason and current and self.failed != key:
            self.failed = key
            yield Noted(session=self.task, time=time, kind="provider_error", error_type="provider_error")
        elif usage.total() and current and not reason:
            self.failed = ""

    def _reply(
        self,
        message: UiMessage,
        record: Record,
        request: Request,
        usage: Usage,
        key: str,
        time: int,
        end: int,
    ) -> Replied:
        info = part(TASK_MODEL, message.model_info)
        model, provider = (word(info.model_id), word(info.provider_id)) if info is not None else ("", "")
        if not model:
            model, provider = self.model, self.provider
        if not model:
            model, provider = model_at(record.path, time or end)
        self._disjoint(usage, model)
        cost = request.price()
        others = [one for one in self.counted if one.key != key]
        self.counted = [*others, Counted(key, record.position, usage, cost or 0.0)][-KEEP:]
        reason = word(request.cancel_reason)
        status: Status = "ok"
        if reason:
            status = "interrupted" if reason == "user_cancelled" else "error"
        return Replied(
            session=self.task,
            time=end,
            call=key,
            model=model,
            provider=provider,
            usage=usage,
            final=not reason,
            cut=bool(reason),
            start=time,
            end=end,
            cost=cost,
            status=status,
            error_type={"interrupted": "interrupted", "error": "provider_error"}.get(status, ""),
        )

    def _disjoint(self, usage: Usage, model: str) -> None:
        """DeepSeek's misses of the cache are told as written to it, and no input; they are priced as input."""
        name = model.lower()
        if usage.input:
            self.uncached = True
        elif usage.cache_write and (
            "deepseek" in name or not (self.uncached or "claude" in name or "anthropic" in name)
        ):
            usage.input, usage.cache_write = usage.cache_write, 0

    def _extra(self, message: UiMessage, position: int, time: int, *, removed: bool) -> Iterator[Event]:
        request: Request | None = inside(REQUEST, message.words())
        if request is None or time <= self.extras:
            return
        self.extras = time
        usage, cost = request.usage(), request.price()
        if "deepseek" in self.model.lower() and not usage.input:
            usage.input, usage.cache_write = usage.cache_write, 0
        if removed:
            # Those that were read before they were removed stood where this stands now, or after it.
            for one in self.counted:
                if one.position >= position:
                    usage = usage.beyond(one.usage)
                    cost = max(0.0, cost - one.cost) if cost is not None else None
            self.counted = [one for one in self.counted if one.position < position]
        total = Usage()
        total.add(self.extra)
        total.add(usage)
        self.extra = total
        self.extra_cost += cost or 0.0
        if usage.total() or cost:
            # A copy, since the session keeps it.
            yield Measured(
                session=self.task,
                time=time,
                usage=total.raised_to(total),
                cost=round(self.extra_cost, 9) if cost is not None else None,
                model=self.model,
            )

    # ------------------------------------------------------------------------- what is shown

    def _shown(self, message: UiMessage, kind: str, key: str, time: int, *, said: bool) -> Iterator[Event]:
        if said and kind in ("task", "text", "user_feedback"):
            begins = not self.turn if kind != "user_feedback" else not self.answers and key != self.turn
            if kind == "user_feedback":
                denied = self.tool is not None and self.tool.asked
                yield from self._end_tool(time, "error" if denied else "ok", "denied" if denied else "")
                self.answers = False
            if begins:
                yield from self._prompt(message, key, time)
                return
        if (said or kind != "completion_result") and kind in REPLY:
            yield from self._goes_on(time)
        if kind in RETRIES:
            if kind == "api_req_failed":
                self.failed = key
            yield Noted(session=self.task, time=time, kind="retry", attrs=self._attempt(message))
        elif kind == "condense_context":
            yield Noted(session=self.task, time=time, kind="compaction")
        elif kind in FAILURES and said:
            yield from self._end_tool(time, "error", "tool_error")
        elif kind == "mcp_server_response":
            failed = message.words().startswith("Error:")
            yield from self._end_tool(time, "error" if failed else "ok", "tool_error" if failed else "")
        elif kind not in QUIET and (self.tool is None or self.tool.key != key):
            yield from self._end_tool(time)
        if kind in ("tool", "command", "use_mcp_server", "mcp_server_request_started"):
            yield from self._call(message, kind, key, time, asked=not said)
        elif kind == "followup":
            self.answers = True
        elif kind in ("completion_result", "plan_mode_respond"):
            self.failed = ""
            yield self._close(time)
        elif kind in RESUMES and not said and self.turn:
            yield from self._stopped(time, resumed=kind == "resume_task")

    def _attempt(self, message: UiMessage) -> dict[str, str | int | float | bool]:
        retry = inside(RETRY, message.words())
        if retry is None:
            return {}
        found = (("attempt", number(retry.attempt)), ("max_attempts", number(retry.max_attempts)))
        return {name: int(value) for name, value in found if value is not None}

    def _prompt(self, message: UiMessage, key: str, time: int) -> Iterator[Event]:
        if self.turn:
            yield from self._stopped(time, resumed=False)
        self.turn = key
        self.request, self.cancelled, self.failed = "", "", ""
        yield Prompted(session=self.task, time=time, turn=key, content=message.text or None)

    def _stopped(self, time: int, *, resumed: bool) -> Iterator[Event]:
        """A turn that did not come to its end before something else began."""
        if self.failed:
            yield self._close(time, "error", "provider_error")
        elif resumed and not self.cancelled:
            yield self._close(time, "interrupted", "interrupted")

    def _goes_on(self, time: int) -> Iterator[Event]:
        """More of the reply is shown, so it had not ended before."""
        if not self.request or time <= self.reply_end:
            return
        self.reply_end = time
        if self.counts and self.tool is None and self.cancelled != self.request:
            yield Replied(session=self.task, time=time, call=self.request, end=time)

    # ---------------------------------------------------------------------------------- tools

    def _call(self, message: UiMessage, kind: str, key: str, time: int, *, asked: bool) -> Iterator[Event]:
        said = inside(TOOL_SAID, message.words()) if kind in ("tool", "use_mcp_server") else None
        if kind == "use_mcp_server":
            self.mcp = text(said.tool_name) or text(said.type) if said is not None else ""
            return
        if key == self.called:
            return  # its message was changed
        name = {"tool": text(said.tool) if said is not None else "", "command": "command"}.get(kind, self.mcp)
        source: DurationSource = "estimate" if asked or kind == "tool" else "timestamps"
        self.tool, self.called = OpenTool(key, time, source, asked), key
        yield Called(
            session=self.task,
            time=time,
            call=key,
            name=name or kind,
            input=message.text if kind != "mcp_server_request_started" else None,
            model_call=self.request,
        )

    def _end_tool(self, time: int, status: Status = "ok", error_type: str = "") -> Iterator[Event]:
        tool, self.tool = self.tool, None
        if tool is not None:
            yield Returned(
                session=self.task,
                time=max(time, tool.start),
                call=tool.key,
                status=status,
                error_type=error_type,
                source=tool.source,
            )

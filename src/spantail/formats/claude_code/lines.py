"""The parts of Claude Code's lines that are read. Unknown fields are ignored; big ones stay raw."""

from __future__ import annotations

from typing import Any

from msgspec import Raw, Struct, field
from msgspec.json import Decoder

from spantail.model import Usage


class CacheCreation(Struct, gc=False):
    hour: int | None = field(name="ephemeral_1h_input_tokens", default=None)


class OutputDetails(Struct, gc=False):
    thinking_tokens: int | None = None


class LineUsage(Struct, gc=False):
    input_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    output_tokens: int | None = None
    cache_creation: CacheCreation | None = None
    output_tokens_details: OutputDetails | None = None

    def usage(self) -> Usage | None:
        """None for zeros: a proxy that writes them does not know, and a copy of them is no count."""
        usage = Usage(
            input=self.input_tokens or 0,
            cache_read=self.cache_read_input_tokens or 0,
            cache_write=self.cache_creation_input_tokens or 0,
            output=self.output_tokens or 0,
        )
        if self.cache_creation is not None:
            usage.cache_write_1h = min(self.cache_creation.hour or 0, usage.cache_write)
        if self.output_tokens_details is not None:
            usage.reasoning = min(self.output_tokens_details.thinking_tokens or 0, usage.output)
        return usage if usage.total() else None


class Block(Struct, gc=False):
    type: str = ""
    id: str | None = None
    name: str | None = None
    input: Raw = Raw()
    text: Raw = Raw()
    tool_use_id: str | None = None
    is_error: bool | None = None
    content: Raw = Raw()


class Message(Struct, gc=False):
    id: str | None = None
    model: str | None = None
    content: str | list[Block] | None = None
    stop_reason: str | None = None
    usage: LineUsage | None = None


class Line(Struct, gc=False):
    type: str = ""
    uuid: str | None = None
    parent: str | None = field(name="parentUuid", default=None)
    timestamp: str | None = None
    session_id: str | None = field(name="sessionId", default=None)
    agent_id: str | None = field(name="agentId", default=None)
    prompt_id: str | None = field(name="promptId", default=None)
    sidechain: bool | None = field(name="isSidechain", default=None)
    meta: bool | None = field(name="isMeta", default=None)
    summary: bool | None = field(name="isCompactSummary", default=None)
    cwd: str | None = None
    branch: str | None = field(name="gitBranch", default=None)
    version: str | None = None
    slug: str | None = None
    subtype: str | None = None
    message: Message | None = None
    result: Raw = field(name="toolUseResult", default=Raw())
    attachment: Raw = Raw()
    turn_origin: str | None = field(name="turnOrigin", default=None)
    origin: Raw = Raw()
    prompt_source: str | None = field(name="promptSource", default=None)
    denied: str | None = field(name="toolDenialKind", default=None)
    denied_before_run: bool | None = field(name="toolDenialBeforeRun", default=None)
    api_error: bool | None = field(name="isApiErrorMessage", default=None)
    aborted: bool | None = field(name="isAbortedMidStream", default=None)
    cut_cause: Any = field(name="streamCutCause", default=None)
    error: Raw = Raw()
    compact: Raw = field(name="compactMetadata", default=Raw())
    retry: Any = field(name="retryAttempt", default=None)
    cost: Any = field(name="totalCostUSD", default=None)


class Attachment(Struct, gc=False):
    type: str = ""
    event: str | None = field(name="hookEvent", default=None)
    duration: float | None = field(name="durationMs", default=None)
    exit_code: int | None = field(name="exitCode", default=None)
    total: float | None = None


class AgentResult(Struct, gc=False):
    """toolUseResult of a tool that runs or wakes a subagent."""

    agent_id: str | None = field(name="agentId", default=None)
    resumed: str | None = field(name="resumedAgentId", default=None)
    run_id: str | None = field(name="runId", default=None)
    workflow: str | None = field(name="workflowName", default=None)
    agent_type: str | None = field(name="agentType", default=None)
    status: str | None = None
    usage: LineUsage | None = None


class AgentInput(Struct, gc=False):
    subagent_type: str | None = None
    prompt: str | None = None


class Origin(Struct, gc=False):
    kind: str | None = None


class ApiError(Struct, gc=False):
    status: int | str | None = None


class Compaction(Struct, gc=False):
    trigger: str | None = None
    pre_tokens: int | None = field(name="preTokens", default=None)


class Meta(Struct, gc=False):
    """agent-<id>.meta.json"""

    agent_type: str | None = field(name="agentType", default=None)
    name: str | None = None
    tool_use_id: str | None = field(name="toolUseId", default=None)
    parent_agent_id: str | None = field(name="parentAgentId", default=None)


ATTACHMENT = Decoder(Attachment)
AGENT_RESULT = Decoder(AgentResult)
AGENT_INPUT = Decoder(AgentInput)
ORIGIN = Decoder(Origin)
API_ERROR = Decoder(ApiError)
COMPACTION = Decoder(Compaction)
META = Decoder(Meta)

"""The parts of Claude Code's lines that are read. Unknown fields are ignored; big ones stay raw."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta as Within
from msgspec import Raw, Struct, field
from msgspec.json import Decoder

from spantail.model import Usage

# A line that has more tokens than any call, or an id longer than any, is not one of Claude Code's. Sums of these
# numbers and thousands of these ids must fit into what is kept of a session.
Tokens = Annotated[int, Within(ge=-(10**12), le=10**12)]
Id = Annotated[str, Within(max_length=400)]
Text = Annotated[str, Within(max_length=4096)]


class CacheCreation(Struct, gc=False):
    hour: Tokens | None = field(name="ephemeral_1h_input_tokens", default=None)


class OutputDetails(Struct, gc=False):
    thinking_tokens: Tokens | None = None


def _count(tokens: int | None) -> int:
    """No count is less than nothing."""
    return tokens if tokens and tokens > 0 else 0


class LineUsage(Struct, gc=False):
    input_tokens: Tokens | None = None
    cache_read_input_tokens: Tokens | None = None
    cache_creation_input_tokens: Tokens | None = None
    output_tokens: Tokens | None = None
    cache_creation: CacheCreation | None = None
    output_tokens_details: OutputDetails | None = None

    def usage(self) -> Usage | None:
        """None for zeros: a proxy that writes them does not know, and a copy of them is no count."""
        given, read = self.input_tokens or 0, self.cache_read_input_tokens or 0
        written, output = self.cache_creation_input_tokens or 0, self.output_tokens or 0
        if given | read | written | output <= 0:  # there is a negative one, or all are zeros
            given, read, written, output = _count(given), _count(read), _count(written), _count(output)
            if not given | read | written | output:
                return None
        usage = Usage(given, read, written, output)
        if self.cache_creation is not None:
            usage.cache_write_1h = min(_count(self.cache_creation.hour), usage.cache_write)
        if self.output_tokens_details is not None:
            usage.reasoning = min(_count(self.output_tokens_details.thinking_tokens), usage.output)
        return usage


class Block(Struct, gc=False):
    type: str = ""
    id: Id | None = None
    name: Id | None = None
    input: Raw = Raw()
    text: Raw = Raw()
    tool_use_id: Id | None = None
    is_error: bool | None = None
    content: Raw = Raw()


class Message(Struct, gc=False):
    id: Id | None = None
    model: Id | None = None
    content: str | list[Block] | None = None
    stop_reason: Id | None = None
    usage: LineUsage | None = None


class Line(Struct, gc=False):
    type: str = ""
    uuid: Id | None = None
    parent: Id | None = field(name="parentUuid", default=None)
    timestamp: str | None = None
    session_id: Id | None = field(name="sessionId", default=None)
    agent_id: Id | None = field(name="agentId", default=None)
    prompt_id: Id | None = field(name="promptId", default=None)
    sidechain: bool | None = field(name="isSidechain", default=None)
    meta: bool | None = field(name="isMeta", default=None)
    summary: bool | None = field(name="isCompactSummary", default=None)
    cwd: Text | None = None
    branch: Id | None = field(name="gitBranch", default=None)
    version: Id | None = None
    slug: Id | None = None
    subtype: Id | None = None
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
    data: Raw = Raw()
    parent_tool: Id | None = field(name="parentToolUseID", default=None)


class Attachment(Struct, gc=False):
    type: str = ""
    event: Id | None = field(name="hookEvent", default=None)
    duration: float | None = field(name="durationMs", default=None)
    exit_code: Tokens | None = field(name="exitCode", default=None)
    total: float | None = None
    mode: str | None = field(name="commandMode", default=None)


class AgentResult(Struct, gc=False):
    """toolUseResult of a tool that runs or wakes a subagent."""

    agent_id: Id | None = field(name="agentId", default=None)
    resumed: Id | None = field(name="resumedAgentId", default=None)
    run_id: Id | None = field(name="runId", default=None)
    workflow: Id | None = field(name="workflowName", default=None)
    agent_type: Id | None = field(name="agentType", default=None)
    status: str | None = None
    duration: float | None = field(name="totalDurationMs", default=None)
    usage: Raw = Raw()


class AgentInput(Struct, gc=False):
    subagent_type: Id | None = None
    prompt: str | None = None


class Progress(Struct, gc=False):
    """data of a progress line; of a subagent's it holds a line of that one."""

    type: Id | None = None
    agent_id: Id | None = field(name="agentId", default=None)
    message: Line | None = None


class Origin(Struct, gc=False):
    kind: str | None = None


class ApiError(Struct, gc=False):
    status: int | str | None = None


class Compaction(Struct, gc=False):
    trigger: Id | None = None
    pre_tokens: Tokens | None = field(name="preTokens", default=None)


class Meta(Struct, gc=False):
    """agent-<id>.meta.json"""

    agent_type: Id | None = field(name="agentType", default=None)
    name: Id | None = None
    tool_use_id: Id | None = field(name="toolUseId", default=None)
    parent_agent_id: Id | None = field(name="parentAgentId", default=None)


ATTACHMENT = Decoder(Attachment)
AGENT_RESULT = Decoder(AgentResult)
AGENT_INPUT = Decoder(AgentInput)
USAGE = Decoder(LineUsage)
PROGRESS = Decoder(Progress)
ORIGIN = Decoder(Origin)
API_ERROR = Decoder(ApiError)
COMPACTION = Decoder(Compaction)
META = Decoder(Meta)

"""The parts of Codex's lines that are read. Unknown fields are ignored; big ones stay raw.

A line is an envelope `{timestamp, ordinal, type, payload}`; before September 2025 there was none, and
the line itself was what the payload is now. So a Line is a Payload with an envelope's fields added.
Small fields that differ between versions are `Any` and read with `formats.values`.
"""

from __future__ import annotations

from typing import Any, Final

from msgspec import Raw, Struct
from msgspec.json import Decoder

from spantail.model import Usage

MOST: Final = 10**15
"""No count of tokens is larger; what is would not fit into the reader's stored memory."""

Totals = tuple[int, int, int, int, int]


def _count(value: int | None) -> int:
    return min(max(value or 0, 0), MOST)


class TokenUsage(Struct, gc=False):
    """Codex's own counts: both cache fields lie inside input, reasoning inside output."""

    input_tokens: int | None = None
    cached_input_tokens: int | None = None
    cache_write_input_tokens: int | None = None
    output_tokens: int | None = None
    reasoning_output_tokens: int | None = None

    def totals(self) -> Totals:
        """Field by field with missing = 0: after an update the same total returns with a new key."""
        return (
            _count(self.input_tokens),
            _count(self.cached_input_tokens),
            _count(self.cache_write_input_tokens),
            _count(self.output_tokens),
            _count(self.reasoning_output_tokens),
        )

    def usage(self) -> Usage | None:
        """None for zeros: an overflow or a compaction writes a made-up total_tokens beside them."""
        given, cached, written, output, reasoning = self.totals()
        read = min(cached, given)
        write = min(written, given - read)
        usage = Usage(
            input=given - read - write,
            cache_read=read,
            cache_write=write,
            output=output,
            reasoning=min(reasoning, output),
        )
        return usage if usage.total() else None


def since(total: Totals, before: Totals | None) -> TokenUsage:
    """What a running total has grown by; one that fell has begun anew."""
    if before is None or total < before:
        return TokenUsage(*total)
    return TokenUsage(*(max(0, now - then) for now, then in zip(total, before, strict=True)))


class Count(Struct, gc=False):
    """token_count.info"""

    total_token_usage: TokenUsage | None = None
    last_token_usage: TokenUsage | None = None


class Settings(Struct, gc=False):
    model: Any = None


class Item(Struct, gc=False):
    """item_completed.item"""

    type: str = ""
    id: Any = None
    status: Any = None
    exit_code: Any = None
    tool: Any = None
    server: Any = None
    kind: Any = None
    content: Raw = Raw()
    command: Raw = Raw()
    changes: Raw = Raw()
    arguments: Raw = Raw()
    aggregated_output: Raw = Raw()
    result: Raw = Raw()
    stdout: Raw = Raw()
    receiver_thread_ids: Any = None
    receiver_agents: Any = None
    agent_thread_id: Any = None


class Payload(Struct, gc=False):
    type: str = ""
    id: Any = None
    turn_id: Any = None
    thread_id: Any = None
    # session_meta
    session_id: Any = None
    timestamp: Any = None
    forked_from_id: Any = None
    parent_thread_id: Any = None
    cwd: Any = None
    cli_version: Any = None
    source: Any = None
    thread_source: Any = None
    agent_role: Any = None
    agent_nickname: Any = None
    model_provider: Any = None
    git: Any = None
    subagent_history_start_ordinal: Any = None
    # turn_context, thread_settings_applied
    model: Any = None
    thread_settings: Settings | None = None
    # items
    role: Any = None
    name: Any = None
    namespace: Any = None
    call_id: Any = None
    arguments: Raw = Raw()
    input: Raw = Raw()
    action: Raw = Raw()
    output: Raw = Raw()
    content: Raw = Raw()
    status: Any = None
    # events
    message: Raw = Raw()
    kind: Any = None
    reason: Any = None
    error: Any = None
    codex_error_info: Any = None
    last_agent_message: Raw = Raw()
    turn_attribution: Any = None
    info: Count | None = None
    rate_limits: Any = None
    item: Item | None = None
    started_at_ms: Any = None
    completed_at_ms: Any = None
    exit_code: Any = None
    success: Any = None
    result: Raw = Raw()
    aggregated_output: Raw = Raw()
    formatted_output: Raw = Raw()
    stdout: Raw = Raw()
    event_id: Any = None
    agent_thread_id: Any = None
    new_thread_id: Any = None
    receiver_thread_id: Any = None
    # token_usage_record
    response_id: Any = None
    usage: TokenUsage | None = None


class Line(Payload, gc=False):
    ordinal: Any = None
    payload: Payload | None = None


class Metadata(Struct, gc=False):
    exit_code: Any = None
    duration_seconds: Any = None


_BOTH: Final = {"is_error": "isError", "error": "is_error"}
"""Versions write a server's own word, and it is spelled in two ways."""


class OutputObject(Struct, gc=False, rename=_BOTH):
    """An output that is an object, or text that holds one."""

    metadata: Metadata | None = None
    content: Raw = Raw()
    output: Raw = Raw()
    success: Any = None
    is_error: Any = None
    error: Any = None
    agent_id: Any = None


class McpOk(Struct, gc=False, rename=_BOTH):
    is_error: Any = None
    error: Any = None


class McpResult(Struct, gc=False, rename={**_BOTH, "ok": "Ok", "err": "Err"}):
    """mcp_tool_call_end.result has Ok or Err; McpToolCall.result has isError itself."""

    ok: McpOk | None = None
    err: Raw = Raw()
    is_error: Any = None
    error: Any = None


class Part(Struct, gc=False):
    text: str | None = None


TEXT: Final = Decoder(str)
PARTS: Final = Decoder(list[Part])
OBJECT: Final = Decoder(OutputObject)
MCP_RESULT: Final = Decoder(McpResult)

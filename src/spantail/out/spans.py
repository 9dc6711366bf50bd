"""Settled things as OTLP spans: for the outbox this is a function from model to bytes.

Pure: no clock, no I/O, nothing of ours but the model. The same settled thing gives the same
bytes, so a resend after a crash is the same span. What a span says is fixed by the contract
(names of the OpenTelemetry GenAI conventions, our own under `coding_agent.*`).

The protobuf is written by hand. This is the hot path of a backlog, and attributes repeat: most
of a span is a handful of byte strings that were encoded before. Measured: a fifth of the time
that the generated message classes take. The tests decode with those classes and compare with
messages built by them.

Longer than 400 lines because the vocabulary, one line per attribute, stands beside its only use.
"""

from __future__ import annotations

from functools import lru_cache
from struct import Struct as Packing
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

import orjson

from spantail.model import Context, Link, ModelCall, Outcome, Settled, SpanEvent, Subagent, ToolCall, Turn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from msgspec import Raw

ContentMode = Literal["none", "target", "full"]

NAME_LENGTH: Final = 128
"""Names that records give to models, tools and agents end up in indexes of backends."""
TEXT_LENGTH: Final = 512
"""Ids, branches, versions and the like: anything longer is a fault of the record."""
_KNOWN: Final = 512
"""Values remembered per attribute, so that memory stays flat."""

_INT64_MAX: Final = (1 << 63) - 1
_UINT64_MAX: Final = (1 << 64) - 1
_INTERNAL: Final = b"\x30\x01"
_CLIENT: Final = b"\x30\x03"
_CONTROL: Final = dict.fromkeys([*range(32), *range(127, 160), 0x2028, 0x2029], "\ufffd")


class ContentView(Protocol):
    """What may be shown of prompts, replies and tool calls: redacted and cut. "" hides it."""

    @property
    def mode(self) -> ContentMode: ...

    def name(self, name: str, /) -> str:
        """A name from a record, without what looks like a secret in it."""
        ...

    def target(self, name: str, input: Raw | None) -> str:  # noqa: A002
        """A short summary of a tool call's input."""
        ...

    def text(self, raw: Raw | None) -> str:
        """A content as it may be shown."""
        ...


class NoContent:
    """Shows nothing: the default."""

    mode: ContentMode = "none"

    def name(self, name: str, /) -> str:
        return name

    def target(self, name: str, input: Raw | None) -> str:  # noqa: A002, ARG002
        return ""

    def text(self, raw: Raw | None) -> str:  # noqa: ARG002
        return ""


# ---------------------------------------------------------------------------- protobuf, by hand

_fixed64 = Packing("<BQ").pack
_two_fixed64 = Packing("<BQBQ").pack
_double = Packing("<d").pack
_LAST: Final = [bytes([byte]) for byte in range(128)]
_MORE: Final = [bytes([byte | 0x80]) for byte in range(128)]
_SHORT: Final = 0x800
_VARINT: Final = [*_LAST, *(_MORE[n & 0x7F] + _LAST[n >> 7] for n in range(0x80, _SHORT))]
"""Sizes of spans and most token counts."""


def _varint(number: int) -> bytes:
    if number < _SHORT:
        return _VARINT[number]
    if number < 0x4000:
        return _MORE[number & 0x7F] + _LAST[number >> 7]
    if number < 0x200000:
        return _MORE[number & 0x7F] + _MORE[number >> 7 & 0x7F] + _LAST[number >> 14]
    return _MORE[number & 0x7F] + _varint(number >> 7)


def _field(tag: int, body: bytes) -> bytes:
    """A length-delimited field: bytes, a string, a message. `tag` is number * 8 + 2."""
    return tag.to_bytes(1, "little") + _varint(len(body)) + body


def _utf8(text: str, limit: int = TEXT_LENGTH) -> bytes:
    # A lone surrogate, which agents write when they cut inside an emoji, is no UTF-8 and would
    # make a backend refuse the whole request.
    return (text if len(text) <= limit else text[:limit]).encode("utf-8", "replace")


def _int64(number: int) -> bytes:
    clamped = min(max(number, -_INT64_MAX - 1), _INT64_MAX)
    return _varint(clamped & _UINT64_MAX)


def _value(value: Any) -> bytes:
    """An AnyValue of whatever may stand on an event, a link or the resource."""
    if isinstance(value, bool):
        return b"\x10\x01" if value else b"\x10\x00"
    if isinstance(value, int):
        return b"\x18" + _int64(value)
    if isinstance(value, float):
        return b"\x21" + _double(value)
    return _field(0x0A, _utf8(str(value)))


def _attribute(tag: int, key: str, value: bytes) -> bytes:
    return _field(tag, _field(0x0A, key.encode()) + _field(0x12, value))


_SPAN: Final = 0x4A  # Span.attributes


def _text(key: str, limit: int = TEXT_LENGTH) -> Callable[[str], bytes]:
    """Makes the encoder of a string attribute whose values seldom repeat."""
    field = _field(0x0A, key.encode())

    def head(size: int) -> bytes:
        value = b"\n" + _varint(size)
        sizes = len(value) + size
        pair = field + b"\x12" + _varint(sizes) + value
        return b"J" + _varint(len(pair) + size) + pair

    heads = [head(size) for size in range(64)]  # ids, nearly always

    def encode(text: str) -> bytes:
        body = _utf8(text, limit)
        size = len(body)
        return (heads[size] if size < 64 else head(size)) + body

    return encode


def _label(key: str, limit: int = NAME_LENGTH) -> Callable[[str], bytes]:
    """Makes the encoder of a string attribute with few values, which it remembers."""
    return lru_cache(maxsize=_KNOWN)(_text(key, limit))


def _number(key: str) -> Callable[[int], bytes]:
    """Makes the encoder of an integer attribute: all but the number is known beforehand."""
    field = _field(0x0A, key.encode())
    heads = [
        b"J" + _varint(len(field) + 3 + size) + field + b"\x12" + _varint(1 + size) + b"\x18"
        for size in range(11)
    ]
    short, varint, slow = _VARINT, _varint, _int64

    def encode(number: int) -> bytes:
        if 0 <= number < _SHORT:
            body = short[number]
        else:
            body = varint(number) if 0 <= number <= _INT64_MAX else slow(number)
        return heads[len(body)] + body

    return encode


def _real(key: str) -> Callable[[float], bytes]:
    """Makes the encoder of a float attribute."""
    head = _attribute(_SPAN, key, b"\x21" + bytes(8))[:-8]

    def encode(number: float) -> bytes:
        return head + _double(number)

    return encode


def _fixed(key: str, value: str | bool) -> bytes:
    """An attribute that never changes."""
    return _attribute(_SPAN, key, _value(value))


def _span_name(prefix: str) -> Callable[[str], bytes]:
    """Makes the encoder of span names; what a record calls something cannot break a display."""

    @lru_cache(maxsize=_KNOWN)
    def encode(name: str) -> bytes:
        return _field(0x2A, _utf8(f"{prefix} {name[:NAME_LENGTH].translate(_CONTROL)}".rstrip()))

    return encode


# ------------------------------------------------------------------------------ the vocabulary

_provider = _label("gen_ai.provider.name")
_conversation = _label("gen_ai.conversation.id", TEXT_LENGTH)
_agent_name = _label("gen_ai.agent.name")
_agent_id = _text("gen_ai.agent.id")
_agent_version = _label("gen_ai.agent.version")
_session = _label("session.id", TEXT_LENGTH)
_project = _label("coding_agent.project", TEXT_LENGTH)
_branch = _label("vcs.ref.head.name", TEXT_LENGTH)
_folder = _label("process.working_directory", 4096)
_error_type = _label("error.type")

_invoke = _fixed("gen_ai.operation.name", "invoke_agent")
_chat = _fixed("gen_ai.operation.name", "chat")
_execute = _fixed("gen_ai.operation.name", "execute_tool")
_invoke_name = _span_name("invoke_agent")
_chat_name = _span_name("chat")
_execute_name = _span_name("execute_tool")

_request_model = _label("gen_ai.request.model")
_response_model = _label("gen_ai.response.model")
_response_id = _text("gen_ai.response.id")
_input_tokens = _number("gen_ai.usage.input_tokens")
_output_tokens = _number("gen_ai.usage.output_tokens")
_cache_read_tokens = _number("gen_ai.usage.cache_read.input_tokens")
_cache_creation_tokens = _number("gen_ai.usage.cache_creation.input_tokens")
_cache_write_tokens = _number("gen_ai.usage.cache_write.input_tokens")
_NOTHING_WRITTEN: Final = _cache_creation_tokens(0) + _cache_write_tokens(0)
_reasoning_tokens = _number("gen_ai.usage.reasoning.output_tokens")
_usage_final = (_fixed("coding_agent.usage.final", False), _fixed("coding_agent.usage.final", True))
_cost = _real("coding_agent.cost.usd")
_cost_source = _label("coding_agent.cost.source")

_tool_name = _label("gen_ai.tool.name")
_tool_call_id = _text("gen_ai.tool.call.id")
_tool_type = _label("gen_ai.tool.type")
_tool_status = _label("coding_agent.tool.status")
_duration_source = _label("coding_agent.tool.duration_source")
_exit_code = _number("process.exit.code")

_turn_index = _number("coding_agent.turn.index")
_turn_status = _label("coding_agent.turn.status")
_exit_status = _label("coding_agent.exit_status")
_exit_raw = _label("coding_agent.exit_status.raw")
_turn_input = _number("coding_agent.tokens.input")
_turn_cache_read = _number("coding_agent.tokens.cache_read")
_turn_cache_write = _number("coding_agent.tokens.cache_write")
_turn_output = _number("coding_agent.tokens.output")
_model_seconds = _real("coding_agent.turn.model_seconds")
_tool_seconds = _real("coding_agent.turn.tool_seconds")
_other_seconds = _real("coding_agent.turn.other_seconds")

# Content is cut by the view; this is only what a backend must never be asked to take.
_CONTENT_LENGTH: Final = 1 << 20
_target = _text("coding_agent.tool.target", _CONTENT_LENGTH)
_input_messages = _text("gen_ai.input.messages", _CONTENT_LENGTH)
_output_messages = _text("gen_ai.output.messages", _CONTENT_LENGTH)
_arguments = _text("gen_ai.tool.call.arguments", _CONTENT_LENGTH)
_result = _text("gen_ai.tool.call.result", _CONTENT_LENGTH)

_PHRASES: Final = {"max_turns": "turn limit reached", "max_budget": "budget reached"}


@lru_cache(maxsize=_KNOWN)
def _finish_reasons(stop: str) -> bytes:
    array = _field(0x0A, _field(0x0A, _utf8(stop, NAME_LENGTH)))
    return _attribute(_SPAN, "gen_ai.response.finish_reasons", _field(0x2A, array))


def _tool_head(name: str, kind: str, status: str, source: str) -> bytes:
    """What the calls of one tool have in common, as one piece."""
    return b"".join(
        (
            _execute_name(name),
            _INTERNAL,
            _execute,
            _tool_name(name) if name else b"",
            _tool_type(kind) if kind else b"",
            _tool_status(status),
            _duration_source(source),
        )
    )


def _model_head(model: str, stop: str) -> bytes:
    """What the calls of one model have in common, as one piece."""
    return b"".join(
        (
            _chat_name(model),
            _CLIENT,
            _chat,
            _request_model(model) + _response_model(model) if model else b"",
            _finish_reasons(stop) if stop else b"",
        )
    )


@lru_cache(maxsize=_KNOWN)
def _shared(provider: str, conversation: str, agent: str) -> bytes:
    """What stands on every span."""
    return b"".join(
        (
            _provider(provider) if provider else b"",
            _conversation(conversation) if conversation else b"",
            _agent_name(agent),
        )
    )


def _written(tokens: int) -> bytes:
    """By the older name and by the newer one."""
    return _cache_creation_tokens(tokens) + _cache_write_tokens(tokens)


def _failure(thing: Settled, default: str, phrase: str, name: Callable[[str], str]) -> bytes:
    """error.type and the status; success says nothing. The description is never content."""
    if thing.status == "error":
        kind = name(thing.error_type) or default
        phrase = _PHRASES.get(kind, phrase)
    else:
        kind = "interrupted"
        phrase = "interrupted" if thing.status == "interrupted" else "no end on record"
    return _error_type(kind) + _field(0x7A, _field(0x12, phrase.encode()) + b"\x18\x02")


@lru_cache(maxsize=_KNOWN)
def _link_reason(reason: str) -> bytes:
    return _attribute(0x22, "coding_agent.link.reason", _value(reason))


def _links(links: Iterable[Link]) -> bytes:
    return b"".join(
        _field(
            0x6A,
            _field(0x0A, link.trace) + _field(0x12, link.span) + _link_reason(link.reason),
        )
        for link in links
    )


def _time(tag: int, time: int) -> bytes:
    return _fixed64(tag, min(max(time, 0), _UINT64_MAX))


def _events(events: Iterable[SpanEvent], name: Callable[[str], str]) -> bytes:
    return b"".join(
        _field(
            0x5A,
            _time(0x09, event.time)
            + _field(0x12, _utf8(event.name, NAME_LENGTH))
            + b"".join(
                _attribute(0x1A, key, _value(name(value) if isinstance(value, str) else value))
                for key, value in event.attrs.items()
            ),
        )
        for event in events
    )


def _message(role: str, text: str, **more: str) -> str:
    """A message as the GenAI conventions store it: JSON with roles and parts."""
    whole = text.encode("utf-8", "replace").decode()
    return orjson.dumps([{"role": role, "parts": [{"type": "text", "content": whole}], **more}]).decode()


BATCH: Final = 400
"""Spans in one row of the outbox."""


class Encoder:
    """Turns settled things into serialized requests of the OTLP trace service."""

    def __init__(
        self, scope_version: str, resource: Mapping[str, str], content: ContentView | None = None
    ) -> None:
        self._content: ContentView = content if content is not None else NoContent()
        self._name = name = self._content.name
        known = lru_cache(maxsize=_KNOWN)
        self._tool_head = known(lambda tool, *rest: _tool_head(name(tool), *rest))
        self._model_head = known(lambda model, stop: _model_head(name(model), name(stop)))
        self._context: Context | None = None
        self._in_context = b""
        """What stands on every span of that context: many in a row have the same."""
        self._scope = _field(0x0A, _field(0x0A, b"spantail") + _field(0x12, scope_version.encode()))
        self._resource = b"".join(
            _attribute(0x0A, key, _value(value)) for key, value in resource.items() if key != "service.name"
        )

    def encode(self, settled: Sequence[Settled]) -> bytes:
        """A serialized ExportTraceServiceRequest: one ResourceSpans per agent, in given order.

        A request is nothing but a repeated field, so the bytes of several requests put one after
        another are again a request with all their spans. Delivery relies on it.
        """
        by_agent: dict[str, list[bytes]] = {}
        for thing in settled:
            body = self._span(thing)
            agent = thing.context.agent
            spans = by_agent.get(agent)
            if spans is None:
                spans = by_agent[agent] = []
            size = len(body)
            spans += (b"\x12", _VARINT[size] if size < _SHORT else _varint(size), body)
        return b"".join(self._resource_spans(agent, spans) for agent, spans in by_agent.items())

    def _resource_spans(self, agent: str, spans: list[bytes]) -> bytes:
        service = _attribute(0x0A, "service.name", _value(agent))
        scope_spans = self._scope + b"".join(spans)
        return _field(0x0A, _field(0x0A, service + self._resource) + _field(0x12, scope_spans))

    def _span(self, thing: Settled) -> bytes:
        context = thing.context
        if context is not self._context:
            self._context = context
            self._in_context = _shared(self._name(context.provider), context.conversation, context.agent)
        start, end = thing.start, thing.end
        if not 0 < start < end <= _UINT64_MAX:
            # Backends mend a span without length, each in its way: one nanosecond is longer than that.
            end = min(max(start, end, 1), _UINT64_MAX)
            start = min(max(start, 0), end - 1)
        parts = [
            b"\n\x10",
            thing.trace,
            b"\x12\x08",
            thing.span,
            b'"\x08' + thing.parent if thing.parent else b"",
            _two_fixed64(0x39, start, 0x41, end),
            self._in_context
            if type(thing) is not Subagent
            else _shared(
                self._name(context.provider), context.conversation, self._name(thing.name) or context.agent
            ),
        ]
        if type(thing) is ToolCall:
            self._tool_call(thing, parts)
        elif type(thing) is ModelCall:
            self._model_call(thing, parts)
        elif type(thing) is Turn:
            self._turn(thing, parts)
        elif type(thing) is Subagent:
            self._subagent(thing, parts)
        else:
            raise TypeError(type(thing).__name__)
        if thing.links:
            parts.append(_links(thing.links))
        return b"".join(parts)

    def _tool_call(self, call: ToolCall, parts: list[bytes]) -> None:
        content = self._content
        parts.append(self._tool_head(call.name, call.type, call.status, call.source))
        if call.id:
            parts.append(_tool_call_id(call.id))
        if call.exit_code is not None:
            parts.append(_exit_code(call.exit_code))
        if content.mode != "none":
            if call.context.cwd:
                parts.append(_folder(self._name(call.context.cwd)))
            if target := content.target(call.name, call.input):
                parts.append(_target(target))
            if content.mode == "full":
                if text := content.text(call.input):
                    parts.append(_arguments(text))
                if text := content.text(call.output):
                    parts.append(_result(text))
        if call.status != "ok":
            parts.append(_failure(call, "tool_error", "tool call failed", self._name))

    def _model_call(self, call: ModelCall, parts: list[bytes]) -> None:
        usage = call.usage
        parts.append(self._model_head(call.model, call.stop))
        if call.response_id:
            parts.append(_response_id(call.response_id))
        if usage is not None:
            written = usage.cache_write
            parts += (
                _input_tokens(usage.input + usage.cache_read + written),
                _output_tokens(usage.output),
                _cache_read_tokens(usage.cache_read),
                _written(written) if written else _NOTHING_WRITTEN,
                _usage_final[call.final],
            )
            if usage.reasoning > 0:
                parts.append(_reasoning_tokens(usage.reasoning))
        if call.cost is not None:
            parts.append(_cost(call.cost))
            if call.cost_source:
                parts.append(_cost_source(call.cost_source))
        if self._content.mode == "full" and (text := self._content.text(call.content)):
            more = {"finish_reason": call.stop} if call.stop else {}
            parts.append(_output_messages(_message("assistant", text, **more)))
        if call.status != "ok":
            parts.append(_failure(call, "_OTHER", "model call failed", self._name))

    def _turn(self, turn: Turn, parts: list[bytes]) -> None:
        context, usage, content = turn.context, turn.usage, self._content
        parts += (_invoke_name(context.agent), _INTERNAL, _invoke)
        if context.version:
            parts.append(_agent_version(self._name(context.version)))
        if context.conversation:
            parts.append(_session(context.conversation))
        if context.project:
            parts.append(_project(self._name(context.project)))
        if context.branch:
            parts.append(_branch(self._name(context.branch)))
        if turn.human:  # other work is no turn: it has neither a number nor a status
            parts += (_turn_index(turn.index), _turn_status(turn.status))
        parts.append(_exit_status(turn.exit))
        if turn.word and turn.word != turn.exit:
            parts.append(_exit_raw(self._name(turn.word)))
        parts += (
            _turn_input(usage.input),
            _turn_cache_read(usage.cache_read),
            _turn_cache_write(usage.cache_write),
            _turn_output(usage.output),
            _model_seconds(turn.model_seconds),
            _tool_seconds(turn.tool_seconds),
            _other_seconds(turn.other_seconds),
        )
        if turn.cost is not None:
            parts.append(_cost(turn.cost))
            if turn.cost_source:
                parts.append(_cost_source(turn.cost_source))
        if content.mode != "none":
            if context.cwd:
                parts.append(_folder(self._name(context.cwd)))
            if content.mode == "full" and (text := content.text(turn.content)):
                parts.append(_input_messages(_message("user", text)))
        if turn.events:
            parts.append(_events(turn.events, self._name))
        if turn.status != "ok":
            parts.append(_failure(turn, "_OTHER", "turn failed", self._name))

    def _subagent(self, agent: Subagent, parts: list[bytes]) -> None:
        parts += (_invoke_name(self._name(agent.name) or agent.context.agent), _INTERNAL, _invoke)
        if agent.agent_id:
            parts.append(_agent_id(agent.agent_id))
        if agent.status != "ok":
            parts.append(_failure(agent, "_OTHER", "subagent failed", self._name))


def batches(encoder: Encoder, outcomes: Sequence[Outcome]) -> Iterator[tuple[int, bytes]]:
    """The spans among what was settled, as requests of a size that the outbox likes."""
    spans = [outcome for outcome in outcomes if isinstance(outcome, Settled)]
    for at in range(0, len(spans), BATCH):
        part = spans[at : at + BATCH]
        yield len(part), encoder.encode(part)

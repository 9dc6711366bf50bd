"""The encoder against the official message classes: what it writes by hand is what they would write."""

import ast
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, InstrumentationScope, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span, Status

from receiver import decode
from spantail.model import Context, Link, ModelCall, Settled, SpanEvent, Subagent, ToolCall, Turn, Usage
from spantail.out import spans
from spantail.out.spans import Encoder

TRACE, SPAN, PARENT = bytes(range(16)), bytes(range(8)), bytes(range(8, 16))
START, END = 1_760_000_000_123_456_789, 1_760_000_004_000_000_001
CONTEXT = Context(
    agent="some-agent",
    provider="some.provider",
    conversation="conversation-1",
    project="api",
    cwd="/home/u/api",
    branch="main",
    version="1.2.3",
)
SHARED = {
    "gen_ai.provider.name": "some.provider",
    "gen_ai.conversation.id": "conversation-1",
    "gen_ai.agent.name": "some-agent",
}
INTERNAL, CLIENT, ERROR = Span.SPAN_KIND_INTERNAL, Span.SPAN_KIND_CLIENT, Status.STATUS_CODE_ERROR


def any_value(value):
    if isinstance(value, bool):
        return AnyValue(bool_value=value)
    if isinstance(value, int):
        return AnyValue(int_value=value)
    if isinstance(value, float):
        return AnyValue(double_value=value)
    if isinstance(value, list):
        return AnyValue(array_value=ArrayValue(values=[any_value(each) for each in value]))
    return AnyValue(string_value=value)


def pairs(attrs):
    return [KeyValue(key=key, value=any_value(value)) for key, value in attrs.items()]


def reference(*built, service="some-agent", resource=None):
    """The request that the generated classes make of these spans."""
    attrs = {"service.name": service, **(resource if resource is not None else {"host.name": "box"})}
    return ExportTraceServiceRequest(
        resource_spans=[
            ResourceSpans(
                resource=Resource(attributes=pairs(attrs)),
                scope_spans=[
                    ScopeSpans(scope=InstrumentationScope(name="spantail", version="9.9"), spans=built)
                ],
            )
        ]
    )


def built(name, kind, attrs, **more):
    return Span(
        trace_id=TRACE,
        span_id=SPAN,
        name=name,
        kind=kind,
        start_time_unix_nano=START,
        end_time_unix_nano=END,
        attributes=pairs(attrs),
        **more,
    )


def in_order_of_keys(request):
    """Attributes are a set: compared without their order."""
    copy = ExportTraceServiceRequest()
    copy.CopyFrom(request)
    for group in copy.resource_spans:
        for scope in group.scope_spans:
            for span in scope.spans:
                ordered = sorted(span.attributes, key=lambda pair: pair.key)
                del span.attributes[:]
                span.attributes.extend(ordered)
    return copy


def encoder(content=None):
    return Encoder("9.9", {"service.name": "ignored", "host.name": "box"}, content)


def assert_same(things, expected, content=None):
    decoded = ExportTraceServiceRequest.FromString(encoder(content).encode(things))
    assert in_order_of_keys(decoded) == in_order_of_keys(expected)


def settled(kind, **more):
    return kind(**{"context": CONTEXT, "trace": TRACE, "span": SPAN, "start": START, "end": END, **more})


def attrs_of(thing, content=None):
    return decode(encoder(content).encode([thing]))[0].attrs


class Shown:
    """A content view that shows everything, marked as having passed through it."""

    def __init__(self, mode):
        self.mode = mode

    def name(self, name):
        return name

    def target(self, name, input):  # noqa: A002
        return f"target of {name}"

    def text(self, raw):
        return f"shown {bytes(raw).decode()}" if raw is not None else ""


def test_turn_is_the_root_with_all_its_attributes():
    """A turn is an INTERNAL root with tokens, cost, exit status, times, events and links."""
    turn = settled(
        Turn,
        index=3,
        exit="error",
        word="exit_max_steps",
        status="error",
        error_type="max_turns",
        usage=Usage(1, 20_000, 300, 40_000_000_000, 5),
        cost=0.25,
        cost_source="computed",
        model_seconds=1.5,
        tool_seconds=2.25,
        other_seconds=0.0,
        events=[SpanEvent("compaction", START + 1, {"trigger": "auto", "n": -4, "ratio": 0.5, "ok": False})],
        links=[Link(TRACE[::-1], SPAN[::-1], "previous_turn")],
    )
    attrs = SHARED | {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.version": "1.2.3",
        "session.id": "conversation-1",
        "coding_agent.project": "api",
        "coding_agent.turn.index": 3,
        "coding_agent.turn.status": "error",
        "coding_agent.exit_status": "error",
        "coding_agent.exit_status.raw": "exit_max_steps",
        "coding_agent.tokens.input": 1,
        "coding_agent.tokens.cache_read": 20_000,
        "coding_agent.tokens.cache_write": 300,
        "coding_agent.tokens.output": 40_000_000_000,
        "coding_agent.cost.usd": 0.25,
        "coding_agent.cost.source": "computed",
        "coding_agent.turn.model_seconds": 1.5,
        "coding_agent.turn.tool_seconds": 2.25,
        "coding_agent.turn.other_seconds": 0.0,
        "vcs.ref.head.name": "main",
        "error.type": "max_turns",
    }
    event = Span.Event(
        time_unix_nano=START + 1,
        name="compaction",
        attributes=pairs({"trigger": "auto", "n": -4, "ratio": 0.5, "ok": False}),
    )
    link = Span.Link(
        trace_id=TRACE[::-1],
        span_id=SPAN[::-1],
        attributes=pairs({"coding_agent.link.reason": "previous_turn"}),
    )
    status = Status(code=ERROR, message="turn limit reached")
    assert_same(
        [turn],
        reference(
            built("invoke_agent some-agent", INTERNAL, attrs, events=[event], links=[link], status=status)
        ),
    )


def test_work_without_a_turn_has_neither_number_nor_status():
    """A root that no person prompted is no turn: no coding_agent.turn.status, no index."""
    attrs = attrs_of(settled(Turn, human=False, index=1, usage=Usage()))
    assert "coding_agent.turn.status" not in attrs
    assert "coding_agent.turn.index" not in attrs
    assert attrs["coding_agent.exit_status"] == "unknown"


def test_exit_word_is_kept_only_when_it_says_something_else():
    """The agent's own word for the exit stands on the span where it differs from ours."""
    assert "coding_agent.exit_status.raw" not in attrs_of(
        settled(Turn, usage=Usage(), exit="success", word="success")
    )


def test_model_call_counts_cache_as_input_and_names_writes_twice():
    """A model call is a CLIENT span; input_tokens holds the cache kinds, both write names stand."""
    call = settled(
        ModelCall,
        parent=PARENT,
        model="model-1",
        response_id="msg_1",
        stop="tool_use",
        usage=Usage(7, 200, 3000, 123_456, 99),
        final=False,
        cost=1e-6,
        cost_source="reported",
    )
    attrs = SHARED | {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "model-1",
        "gen_ai.response.id": "msg_1",
        "gen_ai.response.model": "model-1",
        "gen_ai.response.finish_reasons": ["tool_use"],
        "gen_ai.usage.input_tokens": 3207,
        "gen_ai.usage.output_tokens": 123_456,
        "gen_ai.usage.cache_read.input_tokens": 200,
        "gen_ai.usage.cache_creation.input_tokens": 3000,
        "gen_ai.usage.cache_write.input_tokens": 3000,
        "gen_ai.usage.reasoning.output_tokens": 99,
        "coding_agent.usage.final": False,
        "coding_agent.cost.usd": 1e-6,
        "coding_agent.cost.source": "reported",
    }
    assert_same([call], reference(built("chat model-1", CLIENT, attrs, parent_span_id=PARENT)))


def test_model_call_without_usage_says_nothing_about_it():
    """No usage on record is not usage 0; no cost is not cost 0."""
    attrs = attrs_of(settled(ModelCall, model="m"))
    assert not [key for key in attrs if "usage" in key or "cost" in key or "finish" in key]


def test_tool_call_with_exit_code_and_failure():
    """A failed tool call has the ERROR status, error.type, its exit code and how its time is known."""
    call = settled(
        ToolCall,
        parent=PARENT,
        name="Bash",
        id="toolu_1",
        status="error",
        source="stated",
        exit_code=-9,
    )
    attrs = SHARED | {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "Bash",
        "gen_ai.tool.call.id": "toolu_1",
        "gen_ai.tool.type": "function",
        "coding_agent.tool.status": "error",
        "coding_agent.tool.duration_source": "stated",
        "process.exit.code": -9,
        "error.type": "tool_error",
    }
    status = Status(code=ERROR, message="tool call failed")
    assert_same(
        [call], reference(built("execute_tool Bash", INTERNAL, attrs, parent_span_id=PARENT, status=status))
    )


def test_subagent_has_its_own_name_and_the_parents_conversation():
    """A subagent's span names the subagent, not the agent."""
    agent = settled(Subagent, parent=PARENT, name="Explore", agent_id="a1b2", status="interrupted")
    attrs = SHARED | {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": "Explore",
        "gen_ai.agent.id": "a1b2",
        "error.type": "interrupted",
    }
    status = Status(code=ERROR, message="interrupted")
    assert_same(
        [agent],
        reference(built("invoke_agent Explore", INTERNAL, attrs, parent_span_id=PARENT, status=status)),
    )


@pytest.mark.parametrize(
    ("kind", "status", "given", "error_type", "message"),
    [
        (ToolCall, "error", "", "tool_error", "tool call failed"),
        (ToolCall, "error", "timeout", "timeout", "tool call failed"),
        (ToolCall, "interrupted", "denied", "interrupted", "interrupted"),
        (ToolCall, "pending", "", "interrupted", "no end on record"),
        (ModelCall, "error", "", "_OTHER", "model call failed"),
        (ModelCall, "error", "overloaded", "overloaded", "model call failed"),
        (Turn, "error", "", "_OTHER", "turn failed"),
        (Turn, "error", "max_budget", "max_budget", "budget reached"),
        (Turn, "pending", "", "interrupted", "no end on record"),
        (Subagent, "error", "", "_OTHER", "subagent failed"),
    ],
)
def test_every_failed_span_has_an_error_type_and_a_fixed_phrase(kind, status, given, error_type, message):
    """Failure is status ERROR with error.type; the exact status word stays on tools and turns."""
    more = {"usage": Usage()} if kind is Turn else {}
    [span] = decode(encoder().encode([settled(kind, status=status, error_type=given, **more)]))
    assert (span.status, span.message, span.attrs["error.type"]) == (ERROR, message, error_type)
    word = {ToolCall: "coding_agent.tool.status", Turn: "coding_agent.turn.status"}.get(kind)
    if word:
        assert span.attrs[word] == status


@pytest.mark.parametrize("kind", [ToolCall, ModelCall, Turn, Subagent])
def test_success_leaves_the_status_unset(kind):
    """A call that went well says nothing, even if a record left an error type behind."""
    more = {"usage": Usage()} if kind is Turn else {}
    [span] = decode(encoder().encode([settled(kind, error_type="stray", **more)]))
    assert (span.status, span.message) == (0, "")
    assert "error.type" not in span.attrs


def test_a_span_never_ends_before_it_starts():
    """Clocks of records go back; spans do not. Times that are no times are held in bounds, and a span without
    length gets the shortest one there is, since backends mend it otherwise."""
    [span, odd] = decode(
        encoder().encode(
            [
                settled(ToolCall, start=END, end=START),
                settled(ToolCall, start=-5, end=1 << 70),
            ]
        )
    )
    assert (span.start, span.end) == (END - 1, END)
    assert (odd.start, odd.end) == (0, (1 << 64) - 1)


def test_names_from_records_are_capped_and_cannot_break_a_display():
    """A tool may be called anything; span names stay short and printable."""
    [span] = decode(encoder().encode([settled(ToolCall, name="a\nb\x1b[31m" + "x" * 500)]))
    assert span.name.startswith("execute_tool a\ufffdb\ufffd[31mx")
    assert len(span.name) == len("execute_tool ") + spans.NAME_LENGTH
    assert len(span.attrs["gen_ai.tool.name"]) == spans.NAME_LENGTH
    [nameless] = decode(encoder().encode([settled(ModelCall)]))
    assert nameless.name == "chat"


def test_a_lone_surrogate_does_not_spoil_the_request():
    """Agents cut text inside an emoji; what is left is replaced, the rest arrives."""
    assert attrs_of(settled(ToolCall, name="Read", id="x\ud83dy"))["gen_ai.tool.call.id"] == "x?y"


@settings(deadline=None, database=None)
@given(st.text(max_size=300), st.integers(-(1 << 63), (1 << 63) - 1), st.integers(0, 1 << 40))
def test_any_text_and_number_is_written_as_the_official_classes_write_it(text, number, tokens):
    """Lengths and numbers of every size, in Unicode, survive the hand-written encoding."""
    body = text[: spans.TEXT_LENGTH]
    call = settled(ToolCall, id=body, name=body, exit_code=number)
    attrs = attrs_of(call)
    assert attrs.get("gen_ai.tool.call.id", "") == body
    assert attrs.get("gen_ai.tool.name", "") == body[: spans.NAME_LENGTH]
    assert attrs["process.exit.code"] == number
    assert attrs_of(settled(ModelCall, usage=Usage(tokens)))["gen_ai.usage.input_tokens"] == tokens


def test_numbers_beyond_64_bits_are_held_in_bounds():
    """JSON has no largest number; protobuf has."""
    assert attrs_of(settled(ToolCall, exit_code=1 << 80))["process.exit.code"] == (1 << 63) - 1
    assert attrs_of(settled(ToolCall, exit_code=-(1 << 80)))["process.exit.code"] == -(1 << 63)


def test_content_is_off_by_default():
    """Nothing of a prompt, reply, tool input or folder leaves unless it is asked for."""
    raw = Raw(b'"secret"')
    encoded = encoder().encode(
        [
            settled(Turn, usage=Usage(), content=raw),
            settled(ModelCall, content=raw),
            settled(ToolCall, input=raw, output=raw),
        ]
    )
    assert b"secret" not in encoded
    assert b"/home/u" not in encoded


def test_target_mode_shows_targets_and_folders_only():
    """`--content target`: the short summary of a tool's input and the working directory."""
    raw, content = Raw(b'"secret"'), Shown("target")
    call = attrs_of(settled(ToolCall, name="Read", input=raw, output=raw), content)
    turn = attrs_of(settled(Turn, usage=Usage(), content=raw), content)
    assert call["coding_agent.tool.target"] == "target of Read"
    assert turn["process.working_directory"] == call["process.working_directory"] == "/home/u/api"
    assert "secret" not in str([call, turn, attrs_of(settled(ModelCall, content=raw), content)])


def test_full_mode_shows_messages_as_the_conventions_store_them():
    """`--content full`: messages as JSON with roles and parts, through the view."""
    raw, content = Raw(b'"hi \\ud83d"'), Shown("full")
    turn = attrs_of(settled(Turn, usage=Usage(), content=raw), content)
    reply = attrs_of(settled(ModelCall, content=raw, stop="end"), content)
    call = attrs_of(settled(ToolCall, input=Raw(b"{}"), output=raw), content)
    shown = 'shown "hi \\ud83d"'
    parts = [{"type": "text", "content": shown}]
    assert json.loads(turn["gen_ai.input.messages"]) == [{"role": "user", "parts": parts}]
    assert json.loads(reply["gen_ai.output.messages"]) == [
        {"role": "assistant", "parts": parts, "finish_reason": "end"}
    ]
    assert call["gen_ai.tool.call.arguments"] == "shown {}"
    assert call["gen_ai.tool.call.result"] == shown


def test_agents_are_services_and_requests_can_be_put_together():
    """One ResourceSpans per agent; several requests one after another are again a request."""
    other = Context(agent="other-agent")
    mixed = [
        settled(ToolCall, name="A"),
        settled(ToolCall, name="B", context=other),
        settled(ToolCall, name="C"),
    ]
    one = encoder()
    together = decode(one.encode(mixed) + one.encode(mixed[:1]))
    assert [(span.resource["service.name"], span.name) for span in together] == [
        ("some-agent", "execute_tool A"),
        ("some-agent", "execute_tool C"),
        ("other-agent", "execute_tool B"),
        ("some-agent", "execute_tool A"),
    ]
    assert together[0].resource == {"service.name": "some-agent", "host.name": "box"}
    assert together[0].scope == ("spantail", "9.9")
    assert one.encode([]) == b""


def test_the_same_thing_gives_the_same_bytes():
    """A resend is the same bytes, whatever was encoded in between."""
    thing = settled(ModelCall, model="m", usage=Usage(1, 2, 3, 4))
    first = encoder().encode([thing])
    many = [settled(ToolCall, name=f"tool-{number}") for number in range(2000)]
    other = encoder()
    other.encode(many)
    assert other.encode([thing]) == first


def test_only_spans_are_encoded():
    """A settled thing without a kind is a fault of the program, not of a record."""
    with pytest.raises(TypeError):
        encoder().encode([settled(Settled)])


def test_the_encoder_knows_only_the_model():
    """The layering: out/spans imports nothing of ours but spantail.model."""
    tree = ast.parse(Path(spans.__file__).read_text())
    ours = {
        node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("spantail")
    }
    assert ours == {"spantail.model"}

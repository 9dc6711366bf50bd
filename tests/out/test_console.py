"""Spans on stdout: OTLP/JSON that a Collector can read back."""

from __future__ import annotations

import base64
import io
import json

import pytest
from google.protobuf.json_format import ParseDict
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

import truth
from program import once
from receiver import Answer, decode
from spantail.out import exporters
from spantail.out.console import Console

CASE = truth.FIXTURES / "claude-code" / "subagent-a"


def read_back(lines: str) -> list:
    """The spans of the lines, through protobuf's own reader, which wants ids in base64."""
    spans = []
    for line in lines.splitlines():
        whole = json.loads(line)
        for group in whole["resourceSpans"]:
            for scope in group["scopeSpans"]:
                for span in scope["spans"]:
                    assert isinstance(span["kind"], int)
                    for holder in (span, *span.get("links", ())):
                        for key in {"traceId", "spanId", "parentSpanId"} & holder.keys():
                            holder[key] = base64.b64encode(bytes.fromhex(holder[key])).decode()
        spans += decode(ParseDict(whole, ExportTraceServiceRequest()).SerializeToString())
    return spans


def test_the_lines_are_the_spans_that_a_backend_gets(tmp_path, monkeypatch, http_receiver, capsys):
    """With --once too: the same spans, one line each; the log stays on stderr."""
    sent, _ = once(CASE / "home", tmp_path / "sent", http_receiver, monkeypatch)
    capsys.readouterr()
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT")
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "console")
    _, page = once(CASE / "home", tmp_path / "printed", None, monkeypatch)
    out = capsys.readouterr().out
    printed = read_back(out)
    assert len(out.splitlines()) == len(printed) == len(sent) > 4
    order = {span.span_id: span for span in sent}
    assert {span.span_id: span for span in printed} == order
    assert truth.complaints(printed, page, truth.expected(CASE)) == []


def test_both_prints_what_was_delivered(monkeypatch, http_receiver):
    """`otlp,console`: a span that the backend did not take is not printed yet."""
    for name, text in {**http_receiver.environ(), "OTEL_TRACES_EXPORTER": "otlp, console"}.items():
        monkeypatch.setenv(name, text)
    request = ExportTraceServiceRequest()
    span = (
        request.resource_spans.add()
        .scope_spans.add()
        .spans.add(name="a", trace_id=b"\1" * 16, span_id=b"\2" * 8)
    )
    span.links.add(trace_id=b"\3" * 16, span_id=b"\4" * 8)
    made = exporters.trace_transport(http_receiver.environ() | {"OTEL_TRACES_EXPORTER": "otlp,console"})
    out = io.StringIO()
    made._stream = out
    http_receiver.answers.append(Answer(503))
    assert made.send(request.SerializeToString()).kind == "retry"
    assert out.getvalue() == ""
    assert made.send(request.SerializeToString()).kind == "delivered"
    made.close()
    (line,) = out.getvalue().splitlines()
    (printed,) = json.loads(line)["resourceSpans"][0]["scopeSpans"][0]["spans"]
    assert (printed["traceId"], printed["spanId"]) == ("01" * 16, "02" * 8)
    assert printed["links"] == [{"traceId": "03" * 16, "spanId": "04" * 8}]
    assert len(http_receiver.spans) == 1


def test_a_closed_stdout_loses_nothing():
    """`| head` went away: the spans wait in the outbox."""

    class Closed(io.StringIO):
        def flush(self):
            raise BrokenPipeError(32, "Broken pipe")

    verdict = Console(None, Closed()).send(b"")
    assert (verdict.kind, verdict.message) == ("retry", "stdout: Broken pipe")


@pytest.mark.parametrize(
    ("environ", "chosen"),
    [
        ({}, set()),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:4318"}, {"otlp"}),
        (
            {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:4318", "OTEL_TRACES_EXPORTER": "console"},
            {"console"},
        ),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:4318", "OTEL_TRACES_EXPORTER": "none"}, set()),
        ({"OTEL_TRACES_EXPORTER": "otlp,console"}, {"otlp", "console"}),
    ],
)
def test_which_exporters_are_chosen(environ, chosen):
    """The variable wins over the endpoint."""
    assert exporters.traces(environ) == chosen

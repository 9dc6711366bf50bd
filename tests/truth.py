"""Compares what the program gave with what the recorded session's truth.json says a perfect reader gets.

The oracle is the file's object `expect`; the code under test never writes it.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from receiver import Span

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures"
KINDS = ("input", "cache_read", "cache_write", "output")


def cases() -> list[Path]:
    return sorted(path.parent for path in FIXTURES.glob("*/*/truth.json"))


def name(case: Path) -> str:
    return f"{case.parent.name}/{case.name}"


def expected(case: Path) -> dict[str, Any]:
    expect: dict[str, Any] = json.loads((case / "truth.json").read_text())["expect"]
    return expect


def is_turn(span: Span) -> bool:
    return "coding_agent.turn.status" in span.attrs


def is_chat(span: Span) -> bool:
    return span.attrs.get("gen_ai.operation.name") == "chat"


def is_tool(span: Span) -> bool:
    return span.attrs.get("gen_ai.operation.name") == "execute_tool"


def is_late(span: Span) -> bool:
    return any(link[2].get("coding_agent.link.reason") == "late result" for link in span.links)


def tokens(span: Span) -> dict[str, int]:
    """The disjoint kinds of a chat span; gen_ai.usage.input_tokens holds the cache as well."""
    attrs = span.attrs
    read = attrs.get("gen_ai.usage.cache_read.input_tokens", 0)
    write = attrs.get("gen_ai.usage.cache_creation.input_tokens", 0)
    return {
        "input": attrs.get("gen_ai.usage.input_tokens", 0) - read - write,
        "cache_read": read,
        "cache_write": write,
        "output": attrs.get("gen_ai.usage.output_tokens", 0),
    }


def complaints(spans: list[Span], page: str, expect: dict[str, Any]) -> list[str]:
    """Everything that differs; empty if the program was right."""
    said: list[str] = []
    said += _whole(spans)
    turns = [span for span in spans if is_turn(span)]
    chats = [span for span in spans if is_chat(span)]
    if expect["turns"] is not None and len(turns) != expect["turns"]:
        said.append(f"turns: {len(turns)} for {expect['turns']}")
    if expect["llm_calls"] is not None and chats and len(chats) != expect["llm_calls"]:
        said.append(f"model calls: {len(chats)} for {expect['llm_calls']}")
    said += _tokens(spans, chats, expect)
    said += _tools(spans, expect)
    said += _exit(turns, expect)
    said += _metrics(spans, page, expect)
    return said


def _whole(spans: list[Span]) -> list[str]:
    """No span twice, no orphan, no span that ends before it begins."""
    said = []
    ids = Counter((span.trace_id, span.span_id) for span in spans)
    said += [f"span sent twice: {key}" for key, n in ids.items() if n > 1]
    for span in spans:
        if span.parent and (span.trace_id, span.parent) not in ids:
            said.append(f"orphan: {span.name} {span.attrs.get('gen_ai.tool.call.id', '')}")
        if span.end < span.start:
            said.append(f"ends before it begins: {span.name}")
        if not span.parent and span.attrs.get("gen_ai.operation.name") != "invoke_agent":
            said.append(f"a root that is no agent: {span.name}")
        failed = span.status == 2
        if failed and not span.attrs.get("error.type"):
            said.append(f"failed without error.type: {span.name}")
    return said


def _tokens(spans: list[Span], chats: list[Span], expect: dict[str, Any]) -> list[str]:
    said = []
    if expect["tokens"] is None:
        return [f"tokens invented: {span.name}" for span in chats if any(tokens(span).values())]
    total: Counter[str] = Counter()
    by_model: dict[str, Counter[str]] = defaultdict(Counter)
    for span in chats:
        total.update(tokens(span))
        by_model[span.attrs.get("gen_ai.response.model", "")].update(tokens(span))
    roots: Counter[str] = Counter()
    for span in spans:
        if not span.parent:
            for kind in KINDS:
                roots[kind] += span.attrs.get(f"coding_agent.tokens.{kind}", 0)
    if not chats:
        total = roots  # an agent that keeps running totals only
    for kind in KINDS:
        wanted = expect["tokens"].get(kind)
        if wanted is not None and total[kind] != wanted:
            said.append(f"{kind} tokens: {total[kind]} for {wanted}")
    if chats and expect["by_model"]:
        for model, kinds in expect["by_model"].items():
            for kind, wanted in kinds.items():
                if wanted is not None and by_model[model][kind] != wanted:
                    said.append(f"{model} {kind}: {by_model[model][kind]} for {wanted}")
        said += [
            f"model invented: {m}"
            for m in by_model
            if m not in expect["by_model"] and sum(by_model[m].values())
        ]
    return said


def _tools(spans: list[Span], expect: dict[str, Any]) -> list[str]:
    said = []
    at = {(span.trace_id, span.span_id): span for span in spans}
    found = [span for span in spans if is_tool(span) and not is_late(span)]
    wanted = [tool for tool in expect["tools"] if tool["id"] is not None]
    by_id: dict[str, list[Span]] = defaultdict(list)
    for span in found:
        by_id[span.attrs["gen_ai.tool.call.id"]].append(span)
    if len(wanted) == len(expect["tools"]):
        counts = Counter(tool["id"] for tool in wanted)
        for id_, spans_ in by_id.items():
            if len(spans_) != counts[id_]:
                said.append(f"tool {id_}: {len(spans_)} spans for {counts[id_]}")
    for tool in wanted:
        if not by_id.get(tool["id"]):
            said.append(f"tool {tool['id']} is missing")
            continue
        # The same id may stand for several calls; each is matched with the one that fits it best.
        options = [(_tool(span, tool, at), span) for span in by_id[tool["id"]]]
        best = min(options, key=lambda option: len(option[0]))
        by_id[tool["id"]].remove(best[1])
        said += best[0]
    if len(wanted) < len(expect["tools"]):
        names = Counter(tool["name"] for tool in expect["tools"])
        got = Counter(span.attrs["gen_ai.tool.name"] for span in found)
        if names != got:
            said.append(f"tools by name: {dict(got)} for {dict(names)}")
    return said


def _tool(span: Span, tool: dict[str, Any], at: dict[tuple[str, str], Span]) -> list[str]:
    said = []
    id_ = tool["id"]
    if span.attrs["gen_ai.tool.name"] != tool["name"]:
        said.append(f"tool {id_}: name {span.attrs['gen_ai.tool.name']} for {tool['name']}")
    status = span.attrs["coding_agent.tool.status"]
    if tool["status"] and status != tool["status"]:
        said.append(f"tool {id_}: {status} for {tool['status']}")
    if (span.status == 2) != (status != "ok"):
        said.append(f"tool {id_}: span status {span.status} for {status}")
    milliseconds = (span.end - span.start) / 1e6
    estimate = span.attrs["coding_agent.tool.duration_source"] == "estimate"
    timed = tool["min_ms"] is not None and status != "pending" and not estimate
    if timed and not tool["min_ms"] <= milliseconds <= tool["max_ms"]:
        said.append(f"tool {id_}: {milliseconds:.0f} ms, not in {tool['min_ms']}..{tool['max_ms']}")
    inside = False
    above = at.get((span.trace_id, span.parent))
    while above is not None and above.parent:
        inside |= above.attrs.get("gen_ai.operation.name") == "invoke_agent"
        above = at.get((above.trace_id, above.parent))
    if tool.get("in_subagent") is not None and inside != tool["in_subagent"]:
        said.append(f"tool {id_}: in a subagent: {inside}")
    return said


def _exit(turns: list[Span], expect: dict[str, Any]) -> list[str]:
    if not turns or expect["exit"] in (None, "unknown"):
        return []  # where the files do not say, an inferred exit is not wrong
    last = max(turns, key=lambda span: span.start).attrs["coding_agent.exit_status"]
    return [] if last == expect["exit"] else [f"exit: {last} for {expect['exit']}"]


def samples(page: str) -> dict[str, list[tuple[dict[str, str], float]]]:
    out: dict[str, list[tuple[dict[str, str], float]]] = defaultdict(list)
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            out[sample.name].append((sample.labels, sample.value))
    return out


def _metrics(spans: list[Span], page: str, expect: dict[str, Any]) -> list[str]:
    """The page says the same as the spans and the truth."""
    said = []
    metrics = samples(page)
    counted: Counter[str] = Counter()
    for labels, value in metrics["coding_agent_tokens_total"]:
        counted[labels["type"]] += int(value)
    if expect["tokens"] is None:
        said += [f"metric invents {kind} tokens" for kind, n in counted.items() if n]
    else:
        for kind in KINDS:
            wanted = expect["tokens"].get(kind)
            if wanted is not None and counted[kind] != wanted:
                said.append(f"metric {kind}: {counted[kind]} for {wanted}")
    turns = int(sum(value for _, value in metrics["coding_agent_turns_total"]))
    if expect["turns"] is not None and turns != expect["turns"]:
        said.append(f"metric turns: {turns} for {expect['turns']}")
    calls = Counter()
    for labels, value in metrics["coding_agent_tool_calls_total"]:
        calls[labels["tool"], labels["status"]] += int(value)
    drawn = Counter(
        (span.attrs["gen_ai.tool.name"], span.attrs["coding_agent.tool.status"])
        for span in spans
        if is_tool(span) and not is_late(span)
    )
    if +calls != +drawn:
        said.append(f"metric tool calls: {dict(+calls)} for {dict(drawn)}")
    if expect["exact"] and expect.get("cost_usd") is not None:
        cost = sum(value for _, value in metrics["coding_agent_cost_usd_total"])
        if abs(cost - expect["cost_usd"]) > 1e-6:
            said.append(f"metric cost: {cost} for {expect['cost_usd']}")
    bad = sum(v for labels, v in metrics["spantail_errors_total"] if labels["kind"] == "internal")
    if bad:
        said.append(f"internal errors: {bad}")
    return said

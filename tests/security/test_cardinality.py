"""Ten thousand invented names: the number of series is bounded, and what went over is counted."""

from __future__ import annotations

import json

import truth
from program import configured, once
from receiver import Receiver

NAMES = 10_000


def invented(kind: str, number: int) -> str:
    """Most are plain; some hold line ends, escapes, quotes, half an emoji, or are as long as a book."""
    odd = {
        0: "\n\r\x00\x1b[31m",
        1: '"} 1\nevil_total{x="',
        2: "\u202e\u2028",
        3: "x" * 300,
        4: "\\",
        5: "日本",
        6: " ",
    }
    return f"{kind}{number}{odd.get(number % 50, '')}"


def written(path) -> None:
    """A session that calls ten thousand tools of its own, each in a reply of another model."""
    path.parent.mkdir(parents=True)
    head = {"sessionId": "s", "cwd": "/srv/proj", "version": "2.1.0"}
    lines = [
        {
            **head,
            "type": "user",
            "uuid": "u",
            "promptId": "p",
            "timestamp": "2026-01-01T00:00:00.000Z",
            "message": {"role": "user", "content": "go"},
        }
    ]
    for n in range(NAMES):
        time = f"2026-01-01T{n // 3600 % 24:02d}:{n // 60 % 60:02d}:{n % 60:02d}.500Z"
        lines += [
            {**head, "type": "assistant", "uuid": f"a{n}", "timestamp": time, "message": {
                "id": f"m{n}", "model": invented("model", n), "role": "assistant", "stop_reason": "tool_use",
                "content": [{"type": "tool_use", "id": f"t{n}", "name": invented("tool", n), "input": {}}],
                "usage": {"input_tokens": 10, "output_tokens": 1}}},
            {**head, "type": "user", "uuid": f"r{n}", "timestamp": time, "message": {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": f"t{n}", "content": "ok"}]}},
        ]  # fmt: skip
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_invented_names_make_a_bounded_number_of_series(tmp_path, monkeypatch):
    """Of tools and models; the overflow is counted, tokens and calls are all there, and no name breaks the page."""
    home = tmp_path / "home"
    written(home / ".claude/projects/-work-proj/s.jsonl")
    with Receiver("http") as receiver:
        spans, page = once(home, tmp_path / "state", receiver, monkeypatch)
    metrics = truth.samples(page)

    def values(label: str) -> set[str]:
        return {labels[label] for samples in metrics.values() for labels, _ in samples if label in labels}

    assert len(values("tool")) <= 201
    assert len(values("model")) <= 101
    assert {"other"} <= values("tool") & values("model")
    assert "evil_total" not in metrics
    assert all(len(value) <= 128 and value.isprintable() for value in values("tool") | values("model"))
    assert sum(len(samples) for samples in metrics.values()) < 8_000
    overflow = {labels["label"]: value for labels, value in metrics["spantail_label_overflow_total"]}
    assert overflow["tool"] >= NAMES - 200
    assert overflow["model"] >= NAMES - 100
    assert sum(value for labels, value in metrics["coding_agent_tool_calls_total"]) == NAMES
    tokens = sum(value for labels, value in metrics["coding_agent_tokens_total"] if labels["type"] == "input")
    assert tokens == 10 * NAMES
    assert len(spans) == 2 * NAMES + 1
    assert all(len(span.name) <= 160 and "\n" not in span.name and "\x1b" not in span.name for span in spans)


def test_the_limits_of_labels_are_settings(tmp_path, monkeypatch):
    """[limits] label_values and label_length."""
    from spantail.config import Limits

    home = tmp_path / "home"
    written(home / ".claude/projects/-work-proj/s.jsonl")
    limits = Limits(label_values=7, label_length=5)
    assert configured(home, tmp_path, limits=limits).limits.label_values == 7
    _, page = once(home, tmp_path / "state", None, monkeypatch, limits=limits)
    tools = {labels["tool"] for labels, _ in truth.samples(page)["coding_agent_tool_calls_total"]}
    assert len(tools) == 8
    assert all(len(tool) <= 5 for tool in tools)

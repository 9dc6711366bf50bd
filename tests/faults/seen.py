"""What the world saw of the program: its spans, its pages, its totals; and what must be true of them."""

from __future__ import annotations

import re
import threading
import urllib.request
from collections.abc import Iterable
from http.client import HTTPException
from pathlib import Path
from typing import Self

import msgspec

from receiver import Span
from spantail.state.families import BY_NAME
from spantail.state.store import Store

COUNTER = re.compile(
    r"^((?:coding_agent|spantail)_\w+?(?:_total|_bucket|_count|_sum))(\{.*\})? (\S+)", re.MULTILINE
)
Series = dict[tuple[str, str], float]


def content(span: Span, loose: str = "never") -> dict[str, object]:
    """All of a span but what has a name like `loose`."""
    events = sorted((name, at, sorted(attrs.items())) for name, at, attrs in span.events)
    links = sorted((trace, id_, sorted(attrs.items())) for trace, id_, attrs in span.links)
    about = {**vars(span), "events": events, "links": links, "attrs": None}
    about |= {f"attrs.{key}": value for key, value in span.attrs.items()}
    return {key: value for key, value in about.items() if not re.search(loose, key)}


def differences(given: dict[str, object], wanted: dict[str, object]) -> list[str]:
    """What is not as wanted, a line for each; for assertions whose failures can be read."""
    said = []
    for key in sorted(given.keys() | wanted.keys(), key=str):
        one, other = given.get(key), wanted.get(key)
        if isinstance(one, dict) and isinstance(other, dict):
            said += [f"{key} {one.get('name', '')}: {line}" for line in differences(one, other)]
        elif one != other:
            said.append(f"{key}: {one} for {other}")
    return said


def twofold(spans: Iterable[Span]) -> list[tuple[Span, Span]]:
    """Spans that were received with two different contents."""
    first: dict[tuple[str, str], Span] = {}
    return [
        (first[key], span)
        for span in spans
        if content(first.setdefault(key := (span.trace_id, span.span_id), span)) != content(span)
    ]


def totals(state: Path) -> dict[tuple[str, ...], object]:
    """What the state counts of the agents' work: every series and every quarter of an hour that is not 0."""
    store = Store(state)
    found: dict[tuple[str, ...], object] = {}
    for row in store.totals():
        if not row.family.startswith("coding_agent_"):
            continue
        if BY_NAME[row.family].kind == "counter":
            value: object = round(msgspec.msgpack.decode(row.value, type=float), 9)
        else:
            counts, total = msgspec.msgpack.decode(row.value)
            value = (tuple(counts), round(total, 9)) if any(counts) else 0
        if value:
            found[row.family, row.labels] = value
    for row in store.db.execute("SELECT * FROM hours"):
        found["hours", *map(str, row[:5])] = (*row[5:9], round(row[9], 9))
    store.close()
    return found


def waiting(state: Path) -> int:
    """Spans in the outbox."""
    store = Store(state)
    try:
        return store.waiting_spans
    finally:
        store.close()


class Scraper(threading.Thread):
    """Prometheus, in a hurry: reads the page all the time and keeps what went down."""

    def __init__(self, port: int, pause: float = 0.02) -> None:
        super().__init__(daemon=True)
        self._pause = pause
        self._request = urllib.request.Request(
            f"http://127.0.0.1:{port}/metrics",
            headers={"Accept": "text/plain", "X-Prometheus-Scrape-Timeout-Seconds": "10"},
        )
        self._over = threading.Event()
        self._last: Series = {}
        self.pages = 0
        self.fell: list[str] = []

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        self._over.set()
        self.join()

    def run(self) -> None:
        while not self._over.wait(self._pause):
            try:
                with urllib.request.urlopen(self._request, timeout=5) as answer:
                    page = answer.read().decode()
            except (OSError, HTTPException):
                continue  # it is dead, has just died, or is not ready
            self.look(page)

    def look(self, page: str) -> None:
        self.pages += 1
        now = {(name, labels): float(value) for name, labels, value in COUNTER.findall(page)}
        self.fell += [
            f"{key}: {value} -> {now.get(key)}"
            for key, value in self._last.items()
            if now.get(key, -1) < value
        ]
        self._last = now

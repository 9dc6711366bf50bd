"""The page as scrapers and people get it.

For Prometheus, which must never see a number go down: what is shown is what the last commit holds, and one page is
made at a time, however many ask. Who hands it out is `server`; the text file and the pushes show the same.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from spantail.out.exposition import OPENMETRICS, TEXT, Writer
from spantail.state.totals import Totals

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry


class ListenError(Exception):
    """The page's address cannot be listened on; the message says what to do."""


class Page:
    def __init__(
        self,
        totals: Totals,
        *,
        static_labels: Mapping[str, str] | None = None,
        created: bool = False,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        self._totals = totals
        self._writer = Writer(static_labels, created=created)
        self._clock = clock
        self._one = threading.Lock()
        self._registry: CollectorRegistry | None = None
        self._open = False

    @property
    def is_open(self) -> bool:
        return self._open

    def open(self) -> None:
        """The backlog is committed: from now on the page may be shown."""
        self._open = True

    def render(self, accept: str | None = None, *, scraper: bool) -> tuple[bytes, str]:
        """The page and its content type. A scraper gets new series held at 0, a person as they are."""
        with self._one:
            snapshot = self._totals.snapshot(self._clock(), scraper=scraper)
            if wants_openmetrics(accept or ""):
                ours = self._writer.openmetrics(snapshot).removesuffix(b"# EOF\n")
                return ours + self._process(openmetrics=True), OPENMETRICS
            return self._writer.text(snapshot) + self._process(openmetrics=False), TEXT

    def _process(self, *, openmetrics: bool) -> bytes:
        """Memory, CPU and descriptors of this process, as the Prometheus client tells them."""
        # Imported with the first page: a backlog should not wait for it.
        from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
        from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics

        if self._registry is None:
            self._registry = CollectorRegistry()
            ProcessCollector(registry=self._registry)
        if not openmetrics:
            return generate_latest(self._registry)
        page: bytes = generate_openmetrics(self._registry)  # type: ignore[no-untyped-call]
        return page


def wants_openmetrics(accept: str) -> bool:
    """Whether OpenMetrics 1.0.0 is accepted, and no less gladly than plain text."""
    best = {"application/openmetrics-text": 0.0, "text/plain": 0.0}
    for name, options in _weighed(accept):
        if name in best and (name == "text/plain" or options.get("version", "1.0.0") == "1.0.0"):
            best[name] = max(best[name], _quality(options))
    return (
        best["application/openmetrics-text"] > 0
        and best["application/openmetrics-text"] >= best["text/plain"]
    )


def accepts_gzip(accept_encoding: str) -> bool:
    return any(name in ("gzip", "*") and _quality(options) > 0 for name, options in _weighed(accept_encoding))


def _weighed(header: str) -> list[tuple[str, dict[str, str]]]:
    entries = []
    for entry in header.lower().split(","):
        name, *options = (part.strip() for part in entry.split(";"))
        pairs = (option.partition("=") for option in options)
        entries.append((name, {key.strip(): value.strip() for key, _, value in pairs}))
    return entries


def _quality(options: Mapping[str, str]) -> float:
    try:
        return float(options.get("q", "1"))
    except ValueError:
        return 0.0

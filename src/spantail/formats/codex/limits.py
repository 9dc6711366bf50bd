"""Rate limits of the account, as each token_count repeats them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from spantail.formats.values import number, text

MOST: Final = 16


def changed(known: dict[str, float], given: object) -> Iterator[tuple[str, float]]:
    """(window, used 0..1) of those that differ from `known`, which is brought up to date."""
    if not isinstance(given, dict):
        return
    limit = text(given.get("limit_id"), 40)
    for slot in ("primary", "secondary"):
        about = given.get(slot)
        if not isinstance(about, dict) or (percent := number(about.get("used_percent"))) is None:
            continue
        window = _window(number(about.get("window_minutes"), 1e7)) or slot
        if limit not in ("", "codex"):
            window = f"{limit} {window}"
        used = min(percent / 100, 1.0)
        if known.get(window) != used and (window in known or len(known) < MOST):
            known[window] = used
            yield window, used


def _window(minutes: float | None) -> str:
    """`5h` and `7d`; some versions say 299 and 10079 minutes."""
    hours = round((minutes or 0) / 60)
    if hours == 0:
        return ""
    return f"{hours // 24}d" if hours % 24 == 0 else f"{hours}h"

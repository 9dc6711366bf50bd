"""Times as agents write them, as nanoseconds since the epoch. 0 for what is no time."""

from __future__ import annotations

from datetime import UTC, datetime

LATEST = 1 << 62
"""A time beyond this (the year 2116) is no time; it would not fit into what stores it."""

_EPOCH = datetime.fromtimestamp(0, UTC)


def iso_ns(text: str) -> int:
    """ISO 8601 with `Z`, an offset or none (then UTC); milli- or microseconds."""
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        # In whole numbers: exact, and faster than by `timestamp()`.
        since = moment - _EPOCH
        time = ((since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds) * 1000
    except (ValueError, OverflowError):
        return 0
    return time if 0 < time < LATEST else 0


def ms_ns(value: object) -> int:
    """Epoch milliseconds."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e14:
        return 0
    return round(value * 1000) * 1000

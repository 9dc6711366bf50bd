"""A small file beside a record's, for readers whose records do not tell all that is needed of them."""

from __future__ import annotations

from pathlib import Path
from typing import Final

LARGEST: Final = 1 << 20
"""A larger one is not what it seems."""


def small(file: Path) -> bytes:
    """What is in it; nothing if it is not there, or is no file, or is large."""
    try:
        return file.read_bytes() if file.is_file() and file.stat().st_size <= LARGEST else b""
    except (OSError, ValueError):
        return b""

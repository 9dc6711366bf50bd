"""The lines that Aider writes into its history, told from those of the model.

Every line of the program ends with two spaces, model text nearly never does; only the first line of a text of
several lines is quoted and has none. A file that a formatter went over has lost them all (`plain`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime
from hashlib import blake2b
from math import log10
from typing import Final

from msgspec import Struct

from spantail.formats.times import LATEST
from spantail.model import Usage

HEADING: Final = re.compile(r"# aider chat started at (\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)\s*$")
MARGIN: Final = "  "
_NUMBER: Final = r"[\d,.]+[kM]?"
USED: Final = re.compile(
    rf"Tokens: (?P<sent>{_NUMBER}) sent(?:, (?P<write>{_NUMBER}) cache write)?(?:, (?P<hit>{_NUMBER}) cache hit)?"
    rf", (?P<received>{_NUMBER}) received\.(?: Cost: \$(?P<cost>[\d.,]+) (?:message|request), \$(?P<total>[\d.,]+) session\.)?"
)
OLDER: Final = re.compile(
    r"(?P<sent>\d{1,9}) prompt tokens, (?P<received>\d{1,9}) completion tokens(?:, \$(?P<cost>[\d.]+) cost)?$"
)
"""The usage line of versions before 0.38; without streaming it stands before the text of its reply."""
COST: Final = re.compile(r"Cost: \$([\d.,]+) (?:message|request), \$([\d.,]+) session\.")
MODEL: Final = re.compile(r"(Main model|Model|Models|Editor model): (\S.{0,200}?)(?: with .*)?$")
VERSION: Final = re.compile(r"Aider v(\S{1,40})$")
WHOLE_REPLY: Final = re.compile(r"\S*aider\S* .*--no-stream\b")
"""The command line: without streaming Aider takes the server's counts, else it counts by itself."""
UNMATCHED: Final = re.compile(r"# \d+ SEARCH/REPLACE blocks? failed to match!")
THE_OTHERS: Final = re.compile(r"# The other (\d{1,3}) SEARCH/REPLACE blocks? were applied successfully")
PROVIDER: Final = re.compile(r"litellm\.([A-Za-z]{1,60})")
AGREED: Final = re.compile(r"\]:\s*(?:y|yes|a|all)?$|\?\s*(?:y|yes)$", re.IGNORECASE)
END_OF_THOUGHT: Final = "</thinking-content-"


class Used(Struct, frozen=True, gc=False):
    """A usage line as it stands: with it the log's entry about the same call is known."""

    sent: str
    received: str
    write: str = ""
    hit: str = ""
    cost: str = ""
    total: str = ""

    def usage(self, model: str) -> Usage:
        """Cache writes are in what was sent; hits are too, but for Anthropic's models."""
        sent, write, hit = count(self.sent), count(self.write), count(self.hit)
        rest = max(0, sent - write)
        if hit <= rest and not re.search("claude|anthropic", model):
            rest -= hit
        return Usage(input=rest, cache_read=hit, cache_write=write, output=count(self.received))


def used(text: str) -> Used | None:
    found = USED.match(text) or OLDER.match(text)
    return None if found is None else Used(**{key: word or "" for key, word in found.groupdict().items()})


def count(word: str) -> int:
    """`999`, `2.5k`, `12k`, `5,359`."""
    factor = {"k": 1000, "M": 1_000_000}.get(word[-1:], 1)
    try:
        return min(round(float(word.rstrip("kM").replace(",", "")) * factor), 10**12)
    except ValueError:
        return 0


def dollars(word: str) -> float | None:
    try:
        return float(word.replace(",", ""))
    except ValueError:
        return None


def shown(tokens: int) -> str:
    """As Aider shows a count."""
    if tokens < 1000:
        return str(tokens)
    return f"{tokens / 1000:.1f}k" if tokens < 10_000 else f"{round(tokens / 1000)}k"


def shown_cost(cost: float) -> str:
    """As Aider shows an amount: two decimals, more for what is less than a cent."""
    if cost == 0:
        return "0.00"
    return f"{cost:.2f}" if cost >= 0.01 else f"{cost:.{max(2, 2 - int(log10(cost)))}f}"


def local_ns(text: str) -> int:
    """A time without a zone, in that of this machine; 0 for what is none."""
    try:
        return min(max(0, round(datetime.fromisoformat(text).timestamp() * 1e6) * 1000), LATEST)
    except (ValueError, OverflowError, OSError):
        return 0


def chained(before: bytes, lines: Iterable[str]) -> bytes:
    """A digest of text that grows line by line; blank lines and margins say nothing."""
    for line in lines:
        bare = line.strip()
        if bare:
            before = blake2b(before + bare.encode("utf-8", "replace"), digest_size=8).digest()
    return before

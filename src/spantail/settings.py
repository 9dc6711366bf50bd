"""The settings of `spantail run`, once: flag, variable, key, default and help come from one table.

For the user a setting has one name everywhere: `--new-series-hold`, `SPANTAIL_NEW_SERIES_HOLD`
and `new_series_hold = ...` in the file mean the same and are read by the same words. A word that
cannot be read raises ValueError with the rest of the sentence; config.py puts the place before it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any, Final

from msgspec import Struct

_UNITS: Final = {
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60_000_000_000,
    "h": 3_600_000_000_000,
    "d": 86_400_000_000_000,
    "w": 604_800_000_000_000,
}
_DURATION: Final = re.compile(r"(?:[0-9]{1,9}(?:\.[0-9]{1,9})?(?:ms|s|m|h|d|w))+")
_PART: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d|w)")
_SIZES: Final = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "kib": 1 << 10,
    "mib": 1 << 20,
    "gib": 1 << 30,
}
_SIZE: Final = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,6})?) ?([a-z]{0,3})")
_LONGEST: Final = 100 * 366 * _UNITS["d"]

CONTENT_MODES: Final = ("none", "target", "full")
LOG_FORMATS: Final = ("auto", "text", "json")
DEFAULT_LISTEN: Final = ("127.0.0.1", 9464)


# ------------------------------------------------------------------------------ words -> values


def duration(word: str) -> int:
    """`250ms`, `2s`, `30m`, `24h`, `7d`, `1h30m` in nanoseconds; `0` needs no unit."""
    word = word.strip().lower()
    if word == "0":
        return 0
    if not _DURATION.fullmatch(word):
        raise ValueError(f"{word!r} is no duration; write it like 250ms, 2s, 30m, 24h or 7d")
    total = 0
    for number, unit in _PART.findall(word):
        whole, _, part = number.partition(".")
        total += int(whole) * _UNITS[unit] + (int(float("0." + part) * _UNITS[unit]) if part else 0)
    if total > _LONGEST:
        raise ValueError(f"{word!r} is longer than 100 years")
    return total


def positive(word: str) -> int:
    value = duration(word)
    if value <= 0:
        raise ValueError(f"{word!r} is too short; it must be more than 0")
    return value


def since(word: str) -> int | None:
    """None stands for all, 0 for now."""
    word = word.strip().lower()
    if word == "all":
        return None
    if word == "now":
        return 0
    try:
        return positive(word)
    except ValueError:
        raise ValueError(f"{word!r} is neither a duration like 24h or 7d nor 'all' nor 'now'") from None


def poll(word: str) -> int | None:
    """None stands for events, so that a flag can take back what the file says."""
    if word.strip().lower() == "events":
        return None
    value = duration(word)
    if value < 10 * _UNITS["ms"]:
        raise ValueError(f"{word!r} is too short; the shortest is 10ms")
    return value


def port(word: str) -> int:
    number = int(word) if re.fullmatch(r"[0-9]{1,5}", word.strip()) else -1
    if not 0 <= number <= 65535:
        raise ValueError(f"{word!r} is no port; it must be a number from 0 to 65535")
    return number


def listen(word: str) -> tuple[str, int] | None:
    """`127.0.0.1:9464`, `[::1]:9464`, `:9464` (every address), or `none`."""
    word = word.strip()
    if word.lower() == "none":
        return None
    host, colon, number = word.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if not colon or (":" in host and not bracketed) or (bracketed and len(host) == 2) or " " in host:
        raise ValueError(f"{word!r} is no address; write it like 127.0.0.1:9464, [::1]:9464, :9464 or none")
    return (host[1:-1] if bracketed else host) or "0.0.0.0", port(number)  # noqa: S104 - asked for


def size(word: str) -> int:
    """`64MiB`, `1GiB`, `500MB`, `1000` in bytes."""
    found = _SIZE.fullmatch(word.strip().lower())
    if not found or found[2] not in _SIZES:
        raise ValueError(f"{word!r} is no size; write it like 64MiB, 1GiB or 500000")
    value = math.floor(float(found[1]) * _SIZES[found[2]])
    if value < 1:
        raise ValueError(f"{word!r} is too small; it must be more than 0")
    return value


def one_of(*words: str) -> Callable[[str], str]:
    def parse(word: str) -> str:
        lower = word.strip().lower()
        if lower not in words:
            raise ValueError(f"{word!r} is not one of {', '.join(words)}")
        return lower

    return parse


def switch(word: str) -> bool:
    lower = word.strip().lower()
    if lower in {"1", "true", "yes", "on"}:
        return True
    if lower in {"0", "false", "no", "off"}:
        return False
    raise ValueError(f"{word!r} is neither true nor false")


def text(word: str) -> str:
    """Any text but an empty one or one that no path or name can be (NUL, line ends)."""
    if not word.strip():
        raise ValueError("is empty")
    if any(c in word for c in "\0\n\r"):
        raise ValueError("has a line end or NUL in it")
    return word


def trace_url(word: str) -> str:
    if "{trace_id}" not in text(word):
        raise ValueError("has no {trace_id} in it; write it like http://localhost:16686/trace/{trace_id}")
    return word


# ------------------------------------------------------------------------------------ the table


class Setting(Struct, frozen=True):
    """One setting. `field` is its name in Config where that is not the key."""

    key: str
    metavar: str
    parse: Callable[[str], Any]
    help: str
    default: str = ""
    """As it stands in --help; what Config has where nothing is said."""
    field: str = ""
    many: bool = False
    """Flag given again, a list in the file, `:` between the words in the variable."""

    @property
    def flag(self) -> str:
        return "--" + self.key.replace("_", "-")

    @property
    def variable(self) -> str:
        return "SPANTAIL_" + self.key.upper()

    @property
    def is_switch(self) -> bool:
        return self.parse is switch


SETTINGS: Final[tuple[Setting, ...]] = (
    Setting(
        "home",
        "DIR",
        text,
        "home folder in which every agent's default location is looked for; again, or a quoted glob "
        "such as '/home/*', to follow several",
        "your home",
        field="homes",
        many=True,
    ),
    Setting("since", "AGE", since, "how far back the first reading goes: 24h, 7d, all or now", "24h"),
    Setting("once", "", switch, "take what there is, deliver it, and exit"),
    Setting(
        "listen",
        "ADDR:PORT",
        listen,
        "where /metrics, /healthz and /readyz are served, or none",
        "127.0.0.1:9464",
    ),
    Setting("state", "DIR", text, "folder of the state", "$XDG_STATE_HOME/spantail"),
    Setting("textfile", "FILE", text, "also write the page of /metrics to FILE (node_exporter)", "off"),
    Setting(
        "agent", "NAME", text, "follow only this agent; may be repeated", "all", field="agents", many=True
    ),
    Setting(
        "exclude",
        "PATH",
        text,
        "leave out this file, folder or glob; may be repeated",
        "none",
        field="excludes",
        many=True,
    ),
    Setting(
        "content",
        "MODE",
        one_of(*CONTENT_MODES),
        "what spans say of the content: none, target (a short redacted summary of a tool's input) or full",
        "none",
    ),
    Setting("idle", "TIME", positive, "silence after which a turn with no open call is closed", "30m"),
    Setting("stale", "TIME", positive, "silence after which a turn with an open call is closed", "2h"),
    Setting("grace", "TIME", duration, "how long a finished turn waits for more before it settles", "2s"),
    Setting(
        "poll", "TIME", poll, "look at the files this often instead of waiting for file events", "events"
    ),
    Setting(
        "new_series_hold",
        "TIME",
        duration,
        "how long a new series is shown as 0 so that increase() sees its first value; 0 turns it off",
        "90s",
    ),
    Setting("created", "", switch, "add _created samples to /metrics"),
    Setting(
        "aider_root",
        "DIR",
        text,
        "folder below which history files in project folders are looked for; may be repeated",
        "none",
        field="aider_roots",
        many=True,
    ),
    Setting(
        "generic_root",
        "DIR",
        text,
        "folder with logs in the generic format, DIR/*.jsonl; may be repeated",
        "none",
        field="generic_roots",
        many=True,
    ),
    Setting(
        "generic_input",
        "KIND",
        one_of("uncached", "all"),
        "what `input` counts in logs of the generic format: uncached tokens, or all, those of the cache too",
        "uncached",
    ),
    Setting(
        "trace_url", "TEMPLATE", trace_url, "link to show after each turn; {trace_id} is filled in", "none"
    ),
    Setting(
        "log_format",
        "FORMAT",
        one_of(*LOG_FORMATS),
        "log lines on stderr: text, json, or auto (text on a terminal)",
        "auto",
    ),
)

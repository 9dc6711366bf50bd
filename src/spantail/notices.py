"""Everything that can go wrong or is worth saying: one method each, one log line, one counter.

The parts never log or count trouble themselves; they say what happened and to which file, and
carry on. Here it becomes a line for a person (on a terminal) or for a machine (JSON otherwise),
said once while it lasts, and counted every time. No line ever holds content: words that come
from files are cut and cleaned, messages of backends are redacted, and of an exception only its
type and place are told, since its text may be a piece of a record.

Counters belong to the thread of the loop. What other threads report is kept and counted with the
loop's next notice or `drain`.

Longer than 400 lines: everything that is said stands in one place.
"""

from __future__ import annotations

import re
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Final

import orjson
from msgspec import Struct

from spantail.model import SECOND, Turn

Count = Callable[[str, tuple[str, ...], float], None]

RECORDS: Final = "spantail_records_total"
ERRORS: Final = "spantail_errors_total"

_WORDS: Final = {
    "json": "is not JSON",
    "type": "is not what this agent writes",
    "part": "has a part that is not what this agent writes",
    "depth": "is nested too deep",
    "oversized": "is longer than limits.record_bytes",
}
_KEPT: Final = {
    "all": "all totals and positions could be saved",
    "totals": "the totals could be saved; the rest of turns that were open is not counted",
    "least": "what it counted is counted again from the files, and no total falls below what could be saved",
}
# Line ends, escapes and the signs that turn the direction of text have no place in a log line.
_CONTROL: Final = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]+"
)
_LENGTH: Final = 300
_REMEMBERED: Final = 10_000


def clean(words: str, length: int = _LENGTH) -> str:
    """Words from a file as a log line may hold them, without what looks like a secret; of long ones the end,
    which tells paths apart."""
    from spantail.out.redact import redact

    if len(words) > 4 * length:
        words = words[-4 * length :]
    words = _CONTROL.sub("", redact(words))
    return words if len(words) <= length else "…" + words[1 - length :]


class Said(Struct, array_like=True, frozen=True):
    """Something to say, and by what it is known again."""

    key: tuple[str, ...]
    level: str
    event: str
    words: str
    fields: dict[str, str | float | None]


class Notices:
    """`count(family, label values, amount)` is the loop's; `write` takes a whole line."""

    def __init__(
        self,
        count: Count,
        *,
        terminal: bool = False,
        form: str = "auto",
        strict: bool = False,
        write: Callable[[str], object] | None = None,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        self._count = count
        self._text = form == "text" or (form == "auto" and terminal)
        self._strict = strict
        self._write = write or _to_stderr
        self._clock = clock
        self._owner = threading.get_ident()
        self._elsewhere: deque[tuple[str, tuple[str, ...], float]] = deque(maxlen=_REMEMBERED)
        self._said: set[tuple[str, ...]] = set()
        self._undelivered = ""
        self._uncommitted = False
        self._unpushed = False

    # ------------------------------------------------------------------------------- records

    def records(self, agent: str, amount: int) -> None:
        self._add(RECORDS, (agent, "ok"), amount)

    def bad_record(self, agent: str, path: str, offset: int, reason: str) -> None:
        """Counted always, named once per file and reason."""
        result = "oversized" if reason == "oversized" else "bad"
        self._add(RECORDS, (agent, result), 1)
        if self._first("bad_record", path, reason):
            done = "read without it" if reason == "part" else "skipped"
            words = f"{_WORDS.get(reason, clean(reason, 60))}: {done}"
            self._say(
                "warning",
                "bad_record",
                f"a record {words}; others like it in this file are only counted: {clean(path)} at {offset}",
                agent=agent,
                path=path,
                offset=offset,
                reason=reason,
            )

    def newer_schema(self, agent: str, path: str, version: str) -> None:
        """Once per agent and version: it is read as well as it can be."""
        if self._first("newer_schema", agent, version):
            words = f"{agent} writes {clean(version, 60)}, newer than any this was made for: {clean(path)}"
            self._say("warning", "newer_schema", words, agent=agent, path=path, version=version)

    # --------------------------------------------------------------------------------- files

    def unreadable(self, agent: str, path: str, reason: str) -> None:
        """Counted always; said once until it can be read again or the reason is another."""
        self._add(ERRORS, ("file",), 1)
        if self._first("unreadable", path, reason):
            words = f"cannot read {clean(path)}: {clean(reason, 100)}; will try again"
            self._say("warning", "file_unreadable", words, agent=agent, path=path, reason=reason)

    def textfile_failed(self, path: str, reason: str) -> None:
        """Counted always; said once until it can be written again or the reason is another."""
        self._add(ERRORS, ("textfile",), 1)
        if self._first("textfile", "", reason):
            words = f"cannot write {clean(path)}: {clean(reason, 100)}; will try again"
            self._say("warning", "textfile_failed", words, path=path, reason=reason)

    def textfile_written(self) -> None:
        self._forget("textfile", "")

    def readable(self, path: str) -> None:
        """After `unreadable`: it works again."""
        self._forget("unreadable", path)

    def gone(self, agent: str, path: str) -> None:  # noqa: ARG002 - as the tails say it
        """Deleted or moved: agents do that with old sessions, so nothing is said. If it comes back and
        cannot be read, that is news again."""
        self.readable(path)

    def restarted(self, agent: str, path: str) -> None:
        """Said once per file: some are replaced again and again."""
        if self._first("restarted", path):
            words = f"truncated or replaced, read from its beginning: {clean(path)}"
            self._say("info", "file_restarted", words, agent=agent, path=path)

    def database_locked(self, agent: str, path: str) -> None:
        self._add(ERRORS, ("database_locked",), 1)
        if self._first("database_locked", path):
            words = f"the database is locked by its agent; will try again: {clean(path)}"
            self._say("warning", "database_locked", words, agent=agent, path=path)

    def watch_failed(self, reason: str) -> None:
        self._add(ERRORS, ("watch",), 1)
        if self._first("watch_failed", reason):
            words = (
                f"the system cannot watch the files ({clean(reason, 100)}); they are polled instead. "
                "On Linux raise fs.inotify.max_user_watches, or set --poll"
            )
            self._say("warning", "watch_failed", words, reason=reason)

    # ------------------------------------------------------------------------------ delivery

    def delivery_failed(self, kind: str, message: str) -> None:
        """Said on the first failure and when the kind of failure changes."""
        self._add(ERRORS, ("delivery",), 1)
        if self._undelivered != kind:
            self._undelivered = kind
            told = _foreign(message)
            words = f"spans cannot be delivered ({clean(kind, 60)}): {told}. They wait in the outbox"
            self._say("warning", "delivery_failed", words, kind=kind, reason=told)

    def delivery_restored(self) -> None:
        if self._undelivered:
            self._undelivered = ""
            self._said.discard(("auth_failed",))
            self._say("info", "delivery_restored", "spans are delivered again")

    def spans_refused(self, amount: int, message: str) -> None:
        """The backend took the request and rejected spans in it: sending them again is of no use."""
        self._add(ERRORS, ("spans_refused",), 1)
        told = _foreign(message)
        if self._first("spans_refused", told):
            words = f"the trace backend refused {amount} spans: {told}"
            self._say("warning", "spans_refused", words, spans=amount, reason=told)

    def auth_failed(self, message: str) -> None:
        self._add(ERRORS, ("auth",), 1)
        self._undelivered = "auth"
        if self._first("auth_failed"):
            told = _foreign(message)
            words = (
                f"the trace backend does not accept the credentials ({told}): "
                "set OTEL_EXPORTER_OTLP_HEADERS, for example to 'authorization=Bearer <token>'. "
                "Spans wait in the outbox"
            )
            self._say("error", "auth_failed", words, reason=told)

    def outbox_full(self, dropped: int) -> None:
        """Each time it happens: these spans are lost. The loop counts them."""
        words = f"the outbox is full: the oldest {dropped} spans were dropped (limits.outbox_bytes)"
        self._say("error", "outbox_full", words, spans=dropped)

    def push_failed(self, message: str) -> None:
        """Counted always, said once until a push arrives."""
        self._add(ERRORS, ("push",), 1)
        if not self._unpushed:
            self._unpushed = True
            told = _foreign(message)
            words = f"metrics cannot be pushed: {told}. The next push says it all"
            self._say("warning", "push_failed", words, reason=told)

    def push_restored(self) -> None:
        if self._unpushed:
            self._unpushed = False
            self._say("info", "push_restored", "metrics are pushed again")

    def points_refused(self, amount: int, message: str) -> None:
        """The backend took the push, but not all of it."""
        self._add(ERRORS, ("points_refused",), 1)
        told = _foreign(message)
        if self._first("points_refused", told):
            words = f"the metrics backend refused {amount} points: {told}"
            self._say("warning", "points_refused", words, points=amount, reason=told)

    # --------------------------------------------------------------------------------- state

    def commit_failed(self, error: str) -> None:
        """Once until a commit succeeds."""
        self._add(ERRORS, ("commit",), 1)
        if not self._uncommitted:
            self._uncommitted = True
            words = f"the state cannot be written ({clean(error, 100)}); reading stops until it can"
            self._say("error", "commit_failed", words, reason=error)

    def commit_restored(self) -> None:
        if self._uncommitted:
            self._uncommitted = False
            self._say("info", "commit_restored", "the state can be written again; reading goes on")

    def state_set_aside(self, path: str, kept: str) -> None:
        self._add(ERRORS, ("state",), 1)
        words = f"the state is damaged and was set aside; {_KEPT[kept]}. The damaged file is {clean(path)}"
        self._say("error", "state_set_aside", words, path=path, kept=kept)

    def remade(self, amount: int) -> None:
        """After an upgrade; see remake."""
        words = f"open work of another version was read again from {amount} files, without counting it again"
        self._say("info", "remade", words, files=amount)

    # ----------------------------------------------------------------------------- the rest

    def unpriced_model(self, provider: str, model: str) -> None:
        """Once per model; its tokens are counted by the loop."""
        if model and self._first("unpriced_model", provider, model):
            words = f"no price is known for {clean(model, 80)}; give one in the config file with [[price]]"
            self._say("info", "unpriced_model", words, provider=provider, model=clean(model, 80))

    def internal_error(self, where: str, error: BaseException) -> None:
        """A fault of ours: it must not end the loop. Tests are strict and let it."""
        if self._strict:
            raise error
        self._add(ERRORS, ("internal",), 1)
        kind, place = type(error).__name__, _place(error)
        if self._first("internal_error", where, kind, place):
            words = f"a fault of spantail itself in {clean(where, 100)}: {kind} at {place}; please report it"
            self._say("error", "internal_error", words, where=where, type=kind, place=place)

    def started(self, version: str, state: str, formats: int) -> None:
        words = f"spantail {version} follows {formats} formats, state in {clean(state)}"
        self._say("info", "started", words, version=version, state=state, formats=formats)

    def listening(self, address: str, path: str = "/metrics", scheme: str = "http") -> None:
        what = "metrics" if path == "/metrics" else "health"
        self._say("info", "listening", f"{what} on {scheme}://{address}{path}", address=address)

    def pushing(self, seconds: float) -> None:
        self._say("info", "pushing", f"metrics are pushed every {seconds:g} s", seconds=seconds)

    def certificate_failed(self, reason: str) -> None:
        """Each time a renewed one cannot be used: the old one will expire."""
        self._add(ERRORS, ("certificate",), 1)
        words = f"the renewed certificate of /metrics cannot be used, the old one stays: {clean(reason)}"
        self._say("error", "certificate_failed", words, reason=reason)

    def traces_off(self) -> None:
        words = "no traces are sent: set OTEL_EXPORTER_OTLP_ENDPOINT to send them; metrics only"
        self._say("info", "traces_off", words)

    def stopping(self) -> None:
        self._say("info", "stopping", "stopping: taking what is there, sending what waits")

    def stopped(self, waiting: int) -> None:
        rest = f"; {waiting} spans wait in the outbox for the next start" if waiting else ""
        self._say("info", "stopped", f"stopped{rest}", waiting_spans=waiting)

    def turns(self, turns: Iterable[Turn]) -> None:
        """A line per settled turn, for a run without a terminal."""
        for turn in turns:
            if turn.human:
                self._turn(turn)

    def _turn(self, turn: Turn) -> None:
        seconds = round((turn.end - turn.start) / SECOND, 3)
        project = clean(turn.context.project, 80)
        words = f"{turn.context.agent} {project}: turn {turn.status} in {seconds:.1f} s, {turn.tools} tools"
        usage = turn.usage
        self._say(
            "info",
            "turn",
            words,
            agent=turn.context.agent,
            project=project,
            status=turn.status,
            error_type=turn.error_type,
            seconds=seconds,
            tools=turn.tools,
            errors=turn.errors,
            tokens_in=usage.input + usage.cache_read + usage.cache_write,
            tokens_out=usage.output,
            cost_usd=turn.cost,
            trace_id=turn.trace.hex(),
        )

    # ----------------------------------------------------------------------------- the means

    def repeat(self, said: Said) -> None:
        """For another process of ours: in the form of this log, and not what was said before."""
        if self._first(*said.key):
            self._say(said.level, said.event, said.words, **said.fields)

    def drain(self) -> None:
        """Counts what other threads have reported. For the loop, before a commit."""
        while self._elsewhere:
            self._count(*self._elsewhere.popleft())

    def _add(self, family: str, labels: tuple[str, ...], amount: float) -> None:
        if threading.get_ident() != self._owner:
            self._elsewhere.append((family, labels, amount))
            return
        if self._elsewhere:
            self.drain()
        self._count(family, labels, amount)

    def _first(self, *key: str) -> bool:
        """Whether this is said for the first time. Forgets all when full rather than grow for ever."""
        if key in self._said:
            return False
        if len(self._said) >= _REMEMBERED:
            self._said.clear()
        self._said.add(key)
        return True

    def _forget(self, event: str, path: str) -> None:
        for key in [key for key in self._said if key[:2] == (event, path)]:
            self._said.discard(key)

    def _say(self, level: str, event: str, words: str, **fields: str | float | None) -> None:
        if self._text:
            self._write(f"spantail: {'' if level == 'info' else level + ': '}{words}\n")
            return
        now = self._clock()
        stamp = datetime.fromtimestamp(now // SECOND, UTC).strftime("%Y-%m-%dT%H:%M:%S")
        line: dict[str, object] = {
            "ts": f"{stamp}.{now // 1_000_000 % 1000:03d}Z",
            "level": level,
            "event": event,
            "message": words,
        }
        for key, value in fields.items():
            line[key] = clean(value) if isinstance(value, str) else value
        self._write(orjson.dumps(line).decode() + "\n")


def _foreign(message: str) -> str:
    """A backend's own words: it may repeat the credentials it was sent."""
    from spantail.out.redact import redact

    return clean(redact(message[:2000])[:200])


def _place(error: BaseException) -> str:
    """The innermost line of code, without the folder; never the exception's text."""
    trace = error.__traceback__
    if trace is None:
        return "?"
    while trace.tb_next is not None:
        trace = trace.tb_next
    name = trace.tb_frame.f_code.co_filename.replace("\\", "/").rpartition("/")[2]
    return f"{name}:{trace.tb_lineno}"


def _to_stderr(line: str) -> None:
    """A log that cannot be written must not stop what it is about."""
    try:
        sys.stderr.write(line)
        sys.stderr.flush()
    except (OSError, ValueError):
        pass

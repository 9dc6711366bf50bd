"""`spantail run`: puts the parts together, follows until stopped, leaves nothing behind unsaid.

Longer than 400 lines: every part is put together here, and every way to end.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from spantail import __version__, heap
from spantail.budgets import Budgets, earliest
from spantail.commands.waiting import Waiting, reason, serve
from spantail.config import Config
from spantail.crew import hire
from spantail.follow import LAST_SECONDS, Follow, Parts
from spantail.followed import Sources
from spantail.formats import TABLE
from spantail.gauges import lag
from spantail.groups import Groups
from spantail.model import SECOND
from spantail.notices import Notices
from spantail.out import exporters
from spantail.out.content import Content, public_name
from spantail.out.page import ListenError, Page
from spantail.out.spans import Encoder
from spantail.out.terminal import Progress, Terminal
from spantail.out.textfile import TextFile
from spantail.pricing import Prices
from spantail.remake import Remake
from spantail.session.settle import Rules
from spantail.state import families as f
from spantail.state.counting import Counting
from spantail.state.guard import Guard
from spantail.state.hours import Hours
from spantail.state.schema import NewerStateError, damaged
from spantail.state.store import LockedError, OutboxReader, Store
from spantail.state.totals import Totals
from spantail.tail.again import before
from spantail.tail.finder import Finder
from spantail.tail.open import open_tail
from spantail.tail.source import Source, Tail
from spantail.tail.wake import HandWaker, open_waker

if TYPE_CHECKING:
    from spantail.out.deliver import Deliverer
    from spantail.out.push import Push
    from spantail.out.server import PageServer
    from spantail.tail.wake import Waker

T = TypeVar("T")
LOCKED = 75
"""EX_TEMPFAIL: another process has the state."""
FAILED = 1
BAD_SETTING = 2
STOP_SECONDS = 10.0
"""From the signal to the end."""
PUSH_SECONDS = 2.0
"""Of them what the last push may take, ..."""
OWN_SECONDS = 1.0
"""... and what is kept for commits, and for the end of the process itself."""
ALIVE_SECONDS = 60
"""The loop ticks every few seconds; longer than this and /healthz says so."""
OWN_CALLS = 400
"""Of Python's recursion limit what the program's own calls may need; the rest is for nested records."""
RESCUES = 3
"""How often a damaged state is replaced before the disk is blamed."""
LOOK_SECONDS = 0.5
PROGRESS_SECONDS = 30.0
"""--once gives up when the backend has taken nothing for so long."""


def main(
    config: Config,
    environ: Mapping[str, str] | None = None,
    clock: Callable[[], int] = time.time_ns,
    *,
    strict: bool = False,
    beside: Callable[[Run], None] = lambda _run: None,
) -> int:
    """`beside` is called when everything is put together, before the first file is read."""
    environ = os.environ if environ is None else environ
    heap.steady()
    sys.setrecursionlimit(OWN_CALLS + config.limits.nesting)
    try:
        store = _opened(config, environ, clock)
    except _SettingError as error:
        _complain(str(error))
        return BAD_SETTING
    except ListenError as error:
        _complain(str(error))
        return FAILED
    except LockedError:
        _complain(f"the state in {config.state} is in use by another spantail (see --state)")
        return LOCKED
    except NewerStateError as error:
        _complain(f"cannot use the state in {config.state}: {error} (see --state)")
        return FAILED
    except (OSError, sqlite3.Error) as error:
        _complain(f"cannot use the state directory {config.state}: {reason(error)} (see --state)")
        return FAILED
    if store is None:
        return 0
    try:
        return _run(config, environ, store, clock, beside, strict=strict)
    except _SettingError as error:
        _complain(str(error))
        return BAD_SETTING
    except ListenError as error:
        _complain(str(error))
        return FAILED
    except sqlite3.Error as error:
        _complain(f"cannot use the state in {config.state}: {error} (see --state)")
        return FAILED
    finally:
        store.close()


def _opened(config: Config, environ: Mapping[str, str], clock: Callable[[], int]) -> Store | None:
    """None: told to stop while it waited for the state."""

    def opens() -> Store:
        return Store(Path(config.state), clock=time.time())

    try:
        return opens()
    except (OSError, sqlite3.Error) as error:
        if not Waiting.helps(config):
            raise
        metrics = "prometheus" in _asked(exporters.metrics, environ)
        return Waiting(config, metrics=metrics, clock=clock).until(opens, error)


def _run(
    config: Config,
    environ: Mapping[str, str],
    store: Store,
    clock: Callable[[], int],
    beside: Callable[[Run], None],
    *,
    strict: bool,
) -> int:
    """Through damage of the state, as after a kill: what was not committed is read again."""
    for _ in range(RESCUES):
        try:
            run = Run(config, environ, store, clock=clock, strict=strict)
            beside(run)
            return run.go()
        except sqlite3.DatabaseError as error:
            if not damaged(error):
                raise
            store.rescue(int(time.time()))
    _complain(f"the state in {config.state} is damaged again and again: is the disk sound? (see --state)")
    return FAILED


def _complain(line: str) -> None:
    sys.stderr.write(f"spantail: {line}\n")


class _SettingError(Exception):
    """A standard variable that cannot be used; the message is one line."""


class Run:
    """The program, assembled. Tests give a clock and a waker of their own."""

    def __init__(
        self,
        config: Config,
        environ: Mapping[str, str],
        store: Store,
        *,
        clock: Callable[[], int] = time.time_ns,
        waker: Waker | None = None,
        strict: bool = False,
    ) -> None:
        self.config = config
        self.store = store
        self.clock = clock
        traced = _asked(exporters.traces, environ)
        self.shows = "prometheus" in _asked(exporters.metrics, environ)
        interval = _asked(exporters.push_interval, environ)
        # A push at an interval longer than the hold would never show the zero.
        hold = config.new_series_hold and max(config.new_series_hold, interval * 3 // 2)
        self.totals = Totals(hold=hold, on_shown=self._shown)
        hours = Hours()
        limits = config.limits
        guard = Guard(self.totals, values=limits.label_values, length=limits.label_length, redact=public_name)
        self.notices = Notices(
            self._count, terminal=sys.stderr.isatty(), form=config.log_format, strict=strict
        )
        if store.rescued is not None:
            self.notices.state_set_aside(store.rescued.aside, store.rescued.kept)
            store.rescued = None
        self.created = int(store.meta("created") or clock())
        self.instance = store.meta("instance") or str(uuid.uuid4())
        self.floor = self._floor()
        # What began before that was counted by a state that is lost.
        counted = int(store.meta("counted") or 0)
        floor = max(self.floor, counted)
        prices = Prices(config.prices, unpriced=self.notices.unpriced_model)
        rules = Rules(
            grace=config.grace,
            idle=config.idle,
            stale=config.stale,
            since=floor,
            sums=max(counted, first) if (first := earliest(config.budgets, clock())) else 0,
            keep_content=config.content != "none",
        )
        groups = Groups(
            store,
            rules,
            prices.cost,
            config.project_name,
            guard,
            prices.context_limit,
            config.limits.open_sessions,
        )
        table = [
            row.told(getattr(config, row.reader_setting)) if row.reader_setting else row for row in TABLE
        ]
        self.finder = Finder(
            table,
            config.homes,
            own_home=config.own_home,
            environ=environ,
            excludes=config.excludes,
            agents=config.agents,
            extra={row.agent: getattr(config, row.roots_setting) for row in TABLE if row.roots_setting},
            notices=self.notices,
        )
        encoder = None
        if traced:
            encoder = Encoder(__version__, exporters.trace_resource(environ), Content(config.content))
        crew = None
        if store.meta("backlog") != "done" and not store.cursors():
            # Now or never: a process with threads cannot be forked.
            crew = hire(config, rules, clock, self.finder, encoder, store.descriptors())
        self.transport = _asked(exporters.trace_transport, environ)

        def tail(source: Source, cursor: bytes | None) -> Tail:
            return open_tail(source, cursor, self.notices, config.limits, self.finder.beside)

        sources = Sources(store.cursors(), tail, rules.reach)
        self.waker: Waker = waker or self._waker()
        self.totals.load(store.totals())
        for label, value in self.totals.label_values():
            guard.learn(label, value)
        self.page = Page(self.totals, static_labels=config.labels, created=config.created, clock=clock)
        self.textfile = TextFile(Path(config.textfile), self.page) if config.textfile else None
        self.push = self._push(environ, interval)
        self.deliverer: Deliverer | None = None
        budgets = Budgets(config.budgets, store)
        terminal = Terminal(sys.stdout, trace_url=config.trace_url)
        self.follow = Follow(
            Parts(
                finder=self.finder,
                sources=sources,
                groups=groups,
                waker=self.waker,
                store=store,
                totals=self.totals,
                hours=hours,
                counting=Counting(self.totals, hours, guard, clock=clock),
                notices=self.notices,
                clock=clock,
                encoder=encoder,
                crew=crew,
                remake=Remake(
                    sources,
                    groups.of,
                    groups.left,
                    lambda s, c: before(s, c, config.limits, self.finder.beside),
                ),
                shown=terminal.turns
                if sys.stdout.isatty() and "console" not in traced
                else self.notices.turns,
                committed=self._committed,
                failed=self._failed,
                stepped=lambda: self._write(TextFile.refresh),
                outbox_limit=config.limits.outbox_bytes,
                budgets=lambda now, changed: budgets.gauges(now, changed=changed),
                constant={
                    f.BUILD_INFO: {(__version__,): 1.0},
                    f.STATE_CREATED: {(): self.created / SECOND},
                },
                progress=Progress().show,
            )
        )
        self._counted_before = False
        self.totals.live(f.LAG, lambda now: lag(self.follow, now))
        if self.transport is not None:
            from spantail.out.deliver import Deliverer

            self.deliverer = Deliverer(
                self.transport,
                OutboxReader(store.path, self.follow.damaged),
                self.follow.acked,
                self.notices,
            )
            self.follow.parts.deliverer = self.deliverer

    def _waker(self) -> Waker:
        if self.config.once:
            return HandWaker()
        poll = None if self.config.poll is None else self.config.poll / SECOND
        return open_waker(self.finder.looked_at, self.finder.may_hold, self.notices, poll)

    # ------------------------------------------------------------------------------- running

    def go(self) -> int:
        server = self._serve()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self.follow.stop())
        try:
            self.begin()
            if self.config.once:
                return self._once()
            self.follow.run()
            return self._leave()
        finally:
            if server is not None:
                server.close()
            if self.deliverer is not None:
                self.deliverer.stop(0.0)
            if self.push is not None:
                self.push.close()
            self.waker.close()

    def begin(self) -> None:
        """Everything there is at the start."""
        if self.transport is None:
            self.notices.traces_off()
        if self.deliverer is not None:
            self.deliverer.start()
            self.deliverer.wake()
        self.follow.note("created", str(self.created))
        self.follow.note("floor", str(self.floor))
        self.follow.note("instance", self.instance)
        self.notices.started(__version__, self.config.state, len(TABLE))
        self._counted_before = self.store.meta("backlog") == "done"
        self.totals.first_backlog(not self._counted_before)
        with heap.rare_collections():
            self.follow.backlog(final=self.config.once)
        if not self.follow.stopping:
            self.totals.first_backlog(False)

    def _serve(self) -> PageServer | None:
        return serve(
            self.config, self.page, self.notices, metrics=self.shows, ready=self._ready, alive=self._alive
        )

    def _once(self) -> int:
        """Everything there is, delivered and acknowledged."""
        delivered = self._deliver_all()
        self.follow.commit()
        pushed = self._show_last(PUSH_SECONDS if self.follow.stopping else PROGRESS_SECONDS)
        if self.follow.stuck:
            _complain(f"the state could not be written: {self.follow.stuck}")
            return FAILED
        if not delivered:
            _complain(
                f"{self.store.waiting_spans} spans could not be delivered; they wait in the state for the next run"
            )
            return FAILED
        if not pushed:
            _complain("the metrics could not be pushed; the next run pushes them")
            return FAILED
        return 0

    def _deliver_all(self) -> bool:
        if self.deliverer is None:
            return True
        left, since = self.store.waiting_spans, time.monotonic()
        while not self.deliverer.wait_idle(LOOK_SECONDS):
            self.follow.commit()
            waiting = self.store.waiting_spans
            if waiting < left:
                left, since = waiting, time.monotonic()
            elif not waiting or self.follow.stopping or time.monotonic() - since > PROGRESS_SECONDS:
                return False
        self.deliverer.stop(1.0)
        return True

    def _leave(self) -> int:
        self.notices.stopping()
        if self.deliverer is not None:
            others = LAST_SECONDS + OWN_SECONDS + (PUSH_SECONDS if self.push is not None else 0.0)
            self.deliverer.stop(STOP_SECONDS - others)
        self.follow.commit()
        if self._show_last(PUSH_SECONDS):
            self._show_held()
        self.notices.stopped(self.store.waiting_spans)
        return 0

    def _show_last(self, patience: float) -> bool:
        """The totals of the last commit, to those who do not come for them. Whether they were pushed."""
        if self.textfile is not None and self.follow.backlog_done:
            self.page.open()
            self._write(lambda file: file.write(now=True))
        pushed = True
        if self.push is not None and (self.follow.backlog_done or self.push.is_alive()):
            pushed = self.push.stop(patience)
        if self.totals.pending():  # what was shown for the first time, or its hold would never end
            self.follow.commit()
        return pushed

    def _show_held(self) -> None:
        """What the last push still showed as 0, as it is: in a pod that ends with its agent nobody will come
        back to it. Committed first, or a restart would take it back. Where scrapers come too it waits for the
        next start: they may not have seen the 0."""
        if self.push is None or self.shows or not self.totals.release():
            return
        self.follow.commit()
        if not self.follow.stuck:
            self.push.attempt(last=True)

    # ---------------------------------------------------------------------- what others ask

    def _committed(self) -> None:
        if self.follow.backlog_done:
            self._open()
        self._write(TextFile.write)

    def _failed(self) -> None:
        """A first backlog that is not committed would make a spike; later ones only add to what was shown before."""
        if self._counted_before:
            self._open()
        self._write(TextFile.write)

    def _open(self) -> None:
        if not self.page.is_open:
            self.page.open()
            if self.push is not None and not self.config.once:
                self.push.start()

    def _write(self, how: Callable[[TextFile], bool]) -> None:
        if self.textfile is None or not self.page.is_open:
            return
        try:
            if how(self.textfile):
                self.notices.textfile_written()
        except OSError as error:
            self.notices.textfile_failed(str(self.config.textfile), reason(error))

    def _shown(self) -> None:
        self.follow.poke()

    def _ready(self) -> tuple[bool, str]:
        if self.follow.stuck:
            return False, f"the state cannot be written: {self.follow.stuck}"
        if not self.follow.backlog_done:
            return False, "the backlog is being read"
        return True, "ready"

    def _alive(self) -> bool:
        return not self.follow.backlog_done or self.clock() - self.follow.ticked < ALIVE_SECONDS * SECOND

    def _count(self, family: str, labels: tuple[str, ...], amount: float) -> None:
        self.totals.add(f.BY_NAME[family], labels, amount, self.clock())

    # -------------------------------------------------------------------------------- set-up

    def _push(self, environ: Mapping[str, str], interval: int) -> Push | None:
        transport = _asked(exporters.push_transport, environ)
        if transport is None:
            return None
        from spantail.out.points import Points
        from spantail.out.push import Push

        resource = exporters.metric_resource(environ, self.instance, __version__)
        points = Points(resource, __version__, self.created, self.config.labels)
        self.notices.pushing(interval / SECOND)
        return Push(transport, interval, self.totals, points, self.notices, clock=self.clock)

    def _floor(self) -> int:
        """--since as a time. A later start never reaches back less far than an earlier one did, so
        that what was written while the program was down is not passed over."""
        since = self.config.since
        wanted = 0 if since is None else self.clock() - since
        stored = self.store.meta("floor")
        return wanted if stored is None else min(wanted, int(stored))


def _asked(question: Callable[[Mapping[str, str]], T], environ: Mapping[str, str]) -> T:
    """What a standard variable says."""
    try:
        return question(environ)
    except ValueError as error:
        raise _SettingError(str(error)) from error

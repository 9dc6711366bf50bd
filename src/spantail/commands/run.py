"""`spantail run`: puts the parts together, follows until stopped, leaves nothing behind unsaid."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from spantail import __version__
from spantail.budgets import Budgets
from spantail.config import Config
from spantail.crew import hire, rare_collections
from spantail.follow import Follow, Parts
from spantail.followed import Sources
from spantail.formats import TABLE
from spantail.groups import Groups
from spantail.model import SECOND
from spantail.notices import Notices
from spantail.out.content import Content
from spantail.out.otlp import transport, wanted
from spantail.out.page import ListenError, Page, PageServer
from spantail.out.spans import Encoder
from spantail.out.terminal import Terminal
from spantail.out.textfile import TextFile
from spantail.pricing import Prices
from spantail.session.settle import Rules
from spantail.state import families as f
from spantail.state.counting import Counting
from spantail.state.guard import Guard
from spantail.state.hours import Hours
from spantail.state.store import Changes, LockedError, OutboxReader, Store
from spantail.state.totals import Totals
from spantail.tail.finder import Finder
from spantail.tail.open import open_tail
from spantail.tail.source import Source, Tail
from spantail.tail.wake import open_waker

if TYPE_CHECKING:
    from spantail.out.deliver import Deliverer
    from spantail.out.otlp import Transport
    from spantail.tail.wake import Waker

LOCKED = 75
"""EX_TEMPFAIL: another process has the state."""
FAILED = 1
BAD_SETTING = 2
STOP_SECONDS = 10.0
ALIVE_SECONDS = 60
"""The loop ticks every few seconds; longer than this and /healthz says so."""
PROGRESS_SECONDS = 30.0
"""--once gives up when the backend has taken nothing for so long."""


def main(
    config: Config,
    environ: Mapping[str, str] | None = None,
    clock: Callable[[], int] = time.time_ns,
    *,
    strict: bool = False,
) -> int:
    environ = os.environ if environ is None else environ
    try:
        store = Store(Path(config.state), clock=time.time())
    except LockedError:
        _complain(f"the state in {config.state} is in use by another spantail (see --state)")
        return LOCKED
    except OSError as error:
        _complain(f"cannot use the state directory {config.state}: {error.strerror or error} (see --state)")
        return FAILED
    try:
        return Run(config, environ, store, clock=clock, strict=strict).go()
    except _SettingError as error:
        _complain(str(error))
        return BAD_SETTING
    except ListenError as error:
        _complain(str(error))
        return FAILED
    finally:
        store.close()


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
        self.totals = Totals(hold=config.new_series_hold, on_shown=self._shown)
        hours = Hours()
        guard = Guard(self.totals)
        self.notices = Notices(
            self._count, terminal=sys.stderr.isatty(), form=config.log_format, strict=strict
        )
        if store.set_aside is not None:
            self.notices.state_set_aside(str(store.set_aside))
        self.created = int(store.meta("created") or clock())
        self.floor = floor = self._floor()
        prices = Prices(config.prices)
        cost = prices.saying(self.notices.unpriced_model)
        rules = Rules(
            grace=config.grace,
            idle=config.idle,
            stale=config.stale,
            since=floor,
            keep_content=config.content != "none",
        )
        groups = Groups(store, rules, cost, config.project_name, guard, prices.context_limit)
        self.finder = Finder(
            TABLE,
            config.homes,
            own_home=config.own_home,
            environ=environ,
            excludes=config.excludes,
            agents=config.agents,
            extra={row.agent: getattr(config, row.roots_setting) for row in TABLE if row.roots_setting},
            notices=self.notices,
        )
        encoder = None
        if self._traced(environ):
            encoder = Encoder(__version__, _resource(environ), Content(config.content))
        crew = None
        if store.meta("backlog") != "done" and not store.cursors():
            # Now or never: a process with threads cannot be forked.
            crew = hire(config, rules, clock, self.finder, encoder, store.descriptors())
        self.transport = self._transport(environ)

        def tail(source: Source, cursor: bytes | None) -> Tail:
            return open_tail(source, cursor, self.notices, config.limits, self.finder.beside)

        sources = Sources(store.cursors(), tail, floor)
        self.waker: Waker = waker or open_waker(
            lambda: [followed.source.path for followed in sources.all()],
            self.finder.may_hold,
            self.notices,
            poll=None if config.poll is None else config.poll / SECOND,
        )
        self.totals.load(store.totals())
        for label, value in self.totals.label_values():
            guard.learn(label, value)
        self.page = Page(self.totals, static_labels=config.labels, created=config.created, clock=clock)
        self.textfile = TextFile(Path(config.textfile), self.page) if config.textfile else None
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
                shown=terminal.turns if sys.stdout.isatty() else self.notices.turns,
                committed=self._committed,
                outbox_limit=config.limits.outbox_bytes,
                budgets=lambda now, changed: budgets.gauges(now, changed=changed),
                constant={
                    f.BUILD_INFO: {(__version__,): 1.0},
                    f.STATE_CREATED: {(): self.created / SECOND},
                },
                progress=_Progress().show,
            )
        )
        if self.transport is not None:
            from spantail.out.deliver import Deliverer

            self.deliverer = Deliverer(
                self.transport, OutboxReader(store.path), self.follow.acked, self.notices
            )
            self.follow.parts.deliverer = self.deliverer

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
            self.waker.close()

    def begin(self) -> None:
        """Everything there is at the start."""
        if self.transport is None:
            self.notices.traces_off()
        if self.deliverer is not None:
            self.deliverer.start()
            self.deliverer.wake()
        self.store.commit(self._beginning(), self.clock())
        self.notices.started(__version__, self.config.state, len(TABLE))
        self.totals.first_backlog(self.store.meta("backlog") != "done")
        with rare_collections():
            self.follow.backlog(final=self.config.once)
        if not self.follow.stopping:
            self.totals.first_backlog(False)

    def _serve(self) -> PageServer | None:
        if self.config.listen is None or self.config.once:
            return None
        host, port = self.config.listen
        server = PageServer(host, port, self.page, ready=self._ready, alive=self._alive)
        server.start()
        self.notices.listening(f"{host}:{server.port}")
        return server

    def _once(self) -> int:
        """Everything there is, delivered and acknowledged."""
        delivered = self._deliver_all()
        self.follow.commit()
        self._page_out()
        if self.follow.stuck:
            _complain(f"the state could not be written: {self.follow.stuck}")
            return FAILED
        if not delivered:
            _complain(
                f"{self.store.waiting_spans} spans could not be delivered; they wait in the state for the next run"
            )
            return FAILED
        return 0

    def _deliver_all(self) -> bool:
        if self.deliverer is None:
            return True
        left = self.store.waiting_spans
        while not self.deliverer.wait_idle(PROGRESS_SECONDS):
            self.follow.commit()
            if self.store.waiting_spans >= left or self.follow.stopping:
                return False
            left = self.store.waiting_spans
        self.deliverer.stop(1.0)
        return True

    def _leave(self) -> int:
        self.notices.stopping()
        if self.deliverer is not None:
            self.deliverer.stop(STOP_SECONDS - 2)
        self.follow.commit()
        self._page_out()
        self.notices.stopped(self.store.waiting_spans)
        return 0

    def _page_out(self) -> None:
        if self.textfile is not None:
            self.page.open()
            self.textfile.write(now=True)

    # ---------------------------------------------------------------------- what others ask

    def _committed(self) -> None:
        if self.follow.backlog_done and not self.page.is_open:
            self.page.open()
        if self.textfile is not None and self.page.is_open:
            self.textfile.write()

    def _shown(self) -> None:
        self.follow.poke()

    def _ready(self) -> tuple[bool, str]:
        if self.follow.stuck:
            return False, f"the state cannot be written: {self.follow.stuck}"
        if not self.follow.backlog_done:
            return False, "taking the backlog"
        return True, "ready"

    def _alive(self) -> bool:
        return not self.follow.backlog_done or self.clock() - self.follow.ticked < ALIVE_SECONDS * SECOND

    def _count(self, family: str, labels: tuple[str, ...], amount: float) -> None:
        self.totals.add(f.BY_NAME[family], labels, amount, self.clock())

    # -------------------------------------------------------------------------------- set-up

    def _beginning(self) -> Changes:
        return Changes(meta={"created": str(self.created), "floor": str(self.floor)})

    def _floor(self) -> int:
        """--since as a time. A later start never reaches back less far than an earlier one did, so
        that what was written while the program was down is not passed over."""
        since = self.config.since
        wanted = 0 if since is None else self.clock() - since
        stored = self.store.meta("floor")
        return wanted if stored is None else min(wanted, int(stored))

    @staticmethod
    def _traced(environ: Mapping[str, str]) -> bool:
        try:
            return wanted(environ)
        except ValueError as error:
            raise _SettingError(str(error)) from error

    @staticmethod
    def _transport(environ: Mapping[str, str]) -> Transport | None:
        try:
            return transport(environ)
        except ValueError as error:
            raise _SettingError(str(error)) from error


def _resource(environ: Mapping[str, str]) -> dict[str, str]:
    """What the user adds by OTEL_RESOURCE_ATTRIBUTES wins over what we know."""
    resource = {"service.namespace": "coding-agents", "host.name": socket.gethostname()}
    from urllib.parse import unquote

    for pair in environ.get("OTEL_RESOURCE_ATTRIBUTES", "").split(","):
        key, _, value = pair.partition("=")
        if key.strip() and value:
            resource[key.strip()] = unquote(value.strip())
    return resource


class _Progress:
    """A bar on the terminal while a long backlog is taken."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._at = -1

    def show(self, done: int, total: int) -> None:
        if not self._terminal or total < 50_000_000:
            return
        percent = min(100, done * 100 // total)
        if percent == self._at:
            return
        self._at = percent
        bar = "#" * (percent * 30 // 100)
        sys.stderr.write(f"\rbacklog [{bar:<30}] {percent:3d}%  {done >> 20} of {total >> 20} MiB")
        if percent == 100:
            sys.stderr.write("\n")
        sys.stderr.flush()

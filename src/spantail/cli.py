"""The command line: words in, exit status out.

For the user the help is the manual of a command and a bad word costs one line. For the machine
nothing heavy is imported before it is known which command is wanted: `--help`, `--version` and a
refused flag answer at once.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from spantail import __version__
from spantail.settings import SETTINGS

if TYPE_CHECKING:
    from spantail.config import Config

USAGE_ERROR = 2

RUN_EXAMPLES = """\
examples:
  spantail run                                     follow the agents of your home, serve /metrics
  OTEL_EXPORTER_OTLP_ENDPOINT=http://localhost:4317 spantail run
                                                   and send a trace of every turn
  spantail run --home '/home/*' --listen :9464     every user of this machine, for a Prometheus elsewhere
  spantail run --since 7d --once                   take a week, deliver it, exit
  spantail run --content target --trace-url 'http://localhost:16686/trace/{trace_id}'

Each flag can also be set as SPANTAIL_<FLAG> in the environment (SPANTAIL_NEW_SERIES_HOLD=0) or as a key of the
config file (new_series_hold = "0"); projects, labels, prices, budgets and limits are set in the file.
Traces are sent where the standard variables OTEL_EXPORTER_OTLP_* say (OTEL_TRACES_EXPORTER=otlp, console or none); metrics
are shown, and pushed with OTEL_METRICS_EXPORTER=prometheus,otlp.
"""
DEMO_EXAMPLES = """\
examples:
  spantail demo                                    made-up sessions in a temporary folder, followed; /metrics is served
  OTEL_EXPORTER_OTLP_ENDPOINT=http://localhost:4317 spantail demo
                                                   and their traces sent
  spantail demo --write-only --home /demo          only written, for a spantail that follows /demo
  spantail demo --speed 20 --once-through          every scene once, quickly, and what was written
"""
FORMATS_EXAMPLES = """\
examples:
  spantail formats                 which agents are followed, where, and what their files can tell
  spantail formats --json
"""


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="spantail",
        description="Follows the session files of coding agents and turns them, live, into OpenTelemetry traces "
        "and Prometheus metrics.",
        allow_abbrev=False,
    )
    top.add_argument("--version", action="version", version=f"spantail {__version__}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    _add_run(commands)
    _add_demo(commands)
    _add_formats(commands)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    _end_quietly()
    _open_closed()
    args = parser().parse_args(argv)
    status: int = args.call(args)
    return status


def _end_quietly() -> None:
    """Until a command is under way there is nothing to deliver: a signal ends it, without a traceback."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(0))


def _open_closed() -> None:
    """Started without stdout or stderr (`2>&-`): what would be written there goes nowhere, and no file gets its number."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
            setattr(sys, name, open(number, "w" if number else "r", closefd=False))  # noqa: SIM115


def _add_run(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    run = commands.add_parser(
        "run",
        help="follow the session files",
        description="Follow the session files until stopped, or once.",
        epilog=RUN_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    run.add_argument(
        "--config", metavar="FILE", help="config file (default: $XDG_CONFIG_HOME/spantail/config.toml)"
    )
    for setting in SETTINGS:
        words = setting.help.replace("%", "%%")
        if setting.is_switch:
            run.add_argument(setting.flag, dest=setting.key, action="store_const", const="true", help=words)
        else:
            run.add_argument(
                setting.flag,
                dest=setting.key,
                metavar=setting.metavar,
                action="append" if setting.many else "store",
                help=f"{words} (default: {setting.default})",
            )
    run.set_defaults(call=_run)


def _add_demo(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    demo = commands.add_parser(
        "demo",
        help="made-up live sessions, to see what it looks like",
        description="Write made-up sessions of several agents, live, and follow them: turns, failures, a subagent, a "
        "loop, a call that hangs, refusals, a budget that is blown.",
        epilog=DEMO_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    demo.add_argument(
        "--home", metavar="DIR", help="where the sessions are written (default: a temporary folder)"
    )
    demo.add_argument("--speed", metavar="X", default="1", help="how many times as fast (default: 1)")
    demo.add_argument("--seed", metavar="N", help="the same scenes again (default: others each time)")
    demo.add_argument("--for", metavar="TIME", dest="time", help="end after 10m, 1h (default: when stopped)")
    demo.add_argument("--once-through", action="store_true", help="end when every scene was played")
    demo.add_argument("--write-only", action="store_true", help="do not follow what is written")
    demo.add_argument(
        "--listen",
        metavar="ADDR:PORT",
        default="127.0.0.1:9464",
        help="where /metrics is served, or none (default: 127.0.0.1:9464)",
    )
    demo.set_defaults(call=_demo)


def _add_formats(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    formats = commands.add_parser(
        "formats",
        help="list the agents and what their files can tell",
        description="List the agents that are followed, where their files are and what these can tell.",
        epilog=FORMATS_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    shape = formats.add_mutually_exclusive_group()
    shape.add_argument(
        "--markdown", action="store_const", dest="shape", const="markdown", help="as a Markdown table"
    )
    shape.add_argument("--json", action="store_const", dest="shape", const="json", help="as JSON")
    formats.set_defaults(call=_formats, shape="text")


def _run(args: argparse.Namespace) -> int:
    from spantail.tables import ConfigError

    try:
        config = configured(args, os.environ)
    except ConfigError as error:
        sys.stderr.write(f"spantail: {error}\n")
        return USAGE_ERROR
    from spantail.commands import run

    return run.main(config)


def _demo(args: argparse.Namespace) -> int:
    from spantail.commands import demo

    try:
        told = demo.asked(vars(args))
    except ValueError as error:
        sys.stderr.write(f"spantail: {error}\n")
        return USAGE_ERROR
    return demo.main(told)


def configured(args: argparse.Namespace, environ: Mapping[str, str]) -> Config:
    """The Config of parsed arguments; agents' names are known to the table of formats only."""
    from spantail.config import resolve
    from spantail.formats import TABLE

    known = [row.agent for row in TABLE]
    return resolve(vars(args), environ, lambda path: Path(path).read_bytes(), known)


def _formats(args: argparse.Namespace) -> int:
    from spantail.commands import formats

    return formats.main(args.shape)

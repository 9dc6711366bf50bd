"""One frozen Config out of flags, environment and file, or one clear line that says what is wrong.

The rest of the program never asks where a value came from: flags win over `SPANTAIL_*`, these
over the TOML file, the file over the defaults. Everything is checked here, before anything is
opened, so that a bad value stops the start and nothing else ever does. Nothing is read but what
is passed in: arguments, environment and a function that reads a file.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Collection, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final, Literal, TypeVar, cast

import msgspec
from msgspec import Struct

from spantail import settings
from spantail.settings import SETTINGS, Setting

ContentMode = Literal["none", "target", "full"]
Period = Literal["day", "week", "month"]
ReadFile = Callable[[str], bytes]
T = TypeVar("T")


class ConfigError(Exception):
    """What is wrong, in one line that names the flag, variable, or file and key."""


class Project(Struct, frozen=True, forbid_unknown_fields=True):
    """`[[project]]`: working directories that fit `match` are the project `name`."""

    match: str
    name: str


class Price(Struct, frozen=True, forbid_unknown_fields=True):
    """`[[price]]`: US dollars per million tokens for models that fit the pattern.

    A cache rate that is not given is that of the kind it is a part of: plain input for reads and
    writes, the write for the 1 h write.
    """

    model: str
    input: float
    output: float
    cache_read: float | None = None
    cache_write: float | None = None
    cache_write_1h: float | None = None


class Budget(Struct, frozen=True, forbid_unknown_fields=True):
    """`[[budget]]`: at most `limit` US dollars per period; each filter holds patterns, none = all."""

    name: str
    period: Period
    limit: float
    agent: tuple[str, ...] = ()
    project: tuple[str, ...] = ()
    model: tuple[str, ...] = ()
    user: tuple[str, ...] = ()
    timezone: str = "UTC"

    def covers(self, agent: str, project: str, model: str, user: str) -> bool:
        return (
            _fits(agent, self.agent)
            and _fits(project, self.project)
            and _fits(model, self.model)
            and _fits(user, self.user)
        )


class Limits(Struct, frozen=True, forbid_unknown_fields=True):
    """`[limits]`: where the program stops following a file or a list that grows without end."""

    record_bytes: int = 64 << 20
    nesting: int = 500
    outbox_bytes: int = 1 << 30
    open_sessions: int = 10_000
    label_values: int = 200
    label_length: int = 120


class Config(Struct, frozen=True, kw_only=True):
    """Everything a run is told. Durations are nanoseconds."""

    homes: tuple[str, ...]
    """As given: globs are expanded by the finder."""
    own_home: bool = True
    """No home was given: the agents' own environment variables apply too."""
    since: int | None = 24 * 3600 * 10**9
    """None = all, 0 = now."""
    once: bool = False
    listen: tuple[str, int] | None = settings.DEFAULT_LISTEN
    state: str
    textfile: str | None = None
    agents: tuple[str, ...] = ()
    excludes: tuple[str, ...] = ()
    content: ContentMode = "none"
    idle: int = 30 * 60 * 10**9
    stale: int = 2 * 3600 * 10**9
    grace: int = 2 * 10**9
    poll: int | None = None
    """None = file events."""
    new_series_hold: int = 90 * 10**9
    created: bool = False
    aider_roots: tuple[str, ...] = ()
    trace_url: str = ""
    log_format: Literal["auto", "text", "json"] = "auto"
    projects: tuple[Project, ...] = ()
    labels: dict[str, str] = {}
    prices: tuple[Price, ...] = ()
    budgets: tuple[Budget, ...] = ()
    limits: Limits = Limits()

    def project_name(self, cwd: str) -> str:
        return project_name(cwd, self.projects)


_WINDOWS: Final = re.compile(r"[A-Za-z]:[\\/]|\\\\")
_LISTS: Final = ("project", "price", "budget")
_CAPTURE: Final = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"


def project_name(cwd: str, projects: tuple[Project, ...] = ()) -> str:
    """The first `[[project]]` that fits, else the last part of the path; "" where there is none."""
    path = cwd.replace("\\", "/") if _WINDOWS.match(cwd) else cwd
    path = path.rstrip("/") or path[:1]
    for project in projects:
        if fnmatchcase(path, project.match) or fnmatchcase(cwd, project.match):
            return project.name
    return path.rpartition("/")[2]


def own_home(environ: Mapping[str, str]) -> str:
    return environ.get("HOME") or str(Path.home())


def resolve(
    args: Mapping[str, Any], environ: Mapping[str, str], read_file: ReadFile, agents: Collection[str] = ()
) -> Config:
    """The Config, or ConfigError. `args` holds what the command line said, None where nothing.

    `agents`: the names that `--agent` may have; empty = not checked.
    """
    path, document = _document(args, environ, read_file)
    values: dict[str, Any] = {}
    for setting in SETTINGS:
        field = setting.field or setting.key
        if (word := args.get(setting.key)) not in (None, False, []):
            values[field] = _value(setting, word, setting.flag)
        elif word := environ.get(setting.variable):
            words = word.split(os.pathsep) if setting.many else word
            values[field] = _value(setting, words, setting.variable)
        elif setting.key in document:
            values[field] = _value(setting, document[setting.key], f"{path}: {setting.key}")
    for name in values.get("agents", ()):
        if agents and name not in agents:
            raise ConfigError(f"--agent: {name!r} is not known; known are {', '.join(sorted(agents))}")
    values["own_home"] = not values.get("homes")
    values["homes"] = values.get("homes") or (own_home(environ),)
    values["state"] = _expand(values.get("state") or _default_state(environ), environ)
    if "textfile" in values:
        values["textfile"] = _expand(values["textfile"], environ)
    if "listen" not in values:
        values["listen"] = _default_listen(environ)
    if "content" not in values:
        values["content"] = _default_content(environ)
    return Config(**values, **_tables(document, path))


def _value(setting: Setting, given: Any, where: str) -> Any:
    """`given` is text, or from a file also a number, a switch or a list."""
    try:
        if setting.many:
            words = given if isinstance(given, list) else [given]
            return tuple(setting.parse(_word(word)) for word in words if word != "")
        return setting.parse(_word(given))
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from None


def _word(given: Any) -> str:
    if isinstance(given, bool):
        return "true" if given else "false"
    if isinstance(given, (str, int, float)):
        return str(given)
    raise ValueError("must be text")


def _document(
    args: Mapping[str, Any], environ: Mapping[str, str], read_file: ReadFile
) -> tuple[str, dict[str, Any]]:
    asked, where = args.get("config"), "--config"
    if not asked:
        asked, where = environ.get("SPANTAIL_CONFIG"), "SPANTAIL_CONFIG"
    base = environ.get("XDG_CONFIG_HOME") or ""
    if not base.startswith("/"):  # the XDG rules: a relative folder is to be ignored
        base = f"{own_home(environ)}/.config"
    path = _expand(asked or f"{base}/spantail/config.toml", environ)
    try:
        body = read_file(path)
    except (FileNotFoundError, NotADirectoryError):
        if asked:
            raise ConfigError(f"{where}: {path}: there is no such file") from None
        return path, {}
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or type(error).__name__}") from None
    try:
        document = tomllib.loads(body.decode("utf-8"))
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: is not UTF-8 text") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: is not TOML: {error}") from None
    known = [setting.key for setting in SETTINGS] + [*_LISTS, "labels", "limits"]
    for key in document:
        if key not in known:
            raise ConfigError(f"{path}: {_unknown(key, known)}")
    return path, document


def _unknown(key: str, known: Collection[str]) -> str:
    import difflib

    near = difflib.get_close_matches(key, known, 1)
    return f"unknown key {key!r}" + (f"; did you mean {near[0]!r}?" if near else "")


# ---------------------------------------------------------------------------------- the tables


def _tables(document: dict[str, Any], path: str) -> dict[str, Any]:
    return {
        "projects": _rows(document, "project", Project, path, _check_project),
        "prices": _rows(document, "price", Price, path, _check_price),
        "budgets": _check_names(_rows(document, "budget", Budget, path, _check_budget), path),
        "labels": _labels(document.get("labels", {}), f"{path}: [labels]"),
        "limits": _limits(document.get("limits", {}), f"{path}: [limits]"),
    }


def _rows(
    document: dict[str, Any], key: str, kind: type[T], path: str, check: Callable[[T], None]
) -> tuple[T, ...]:
    rows = document.get(key, [])
    if not isinstance(rows, list):
        raise ConfigError(f"{path}: {key}: write each one below a line [[{key}]]")
    made = []
    for number, row in enumerate(rows, 1):
        where = f"{path}: [[{key}]] {number}"
        made.append(_convert(row, kind, where))
        try:
            check(made[-1])
        except ValueError as error:
            raise ConfigError(f"{where}: {error}") from None
    return tuple(made)


def _convert(row: Any, kind: type[T], where: str) -> T:
    if not isinstance(row, dict):
        raise ConfigError(f"{where}: must be a table")
    fields = [field.name for field in msgspec.structs.fields(cast("type[Struct]", kind))]
    for key in row:
        if key not in fields:
            raise ConfigError(f"{where}: {_unknown(key, fields)}")
    if kind is Budget:  # one word or a list of them
        filters = ("agent", "project", "model", "user")
        row = {k: [v] if k in filters and isinstance(v, str) else v for k, v in row.items()}
    try:
        return msgspec.convert(row, kind)
    except msgspec.ValidationError as error:
        what, _, at = str(error).partition(" - at ")
        key = at.strip("`$.")
        raise ConfigError(f"{where}: {key + ': ' if key else ''}{what[0].lower()}{what[1:]}") from None


def _check_project(row: Project) -> None:
    if not row.match or not row.name.strip():
        raise ValueError("match and name must not be empty")


def _check_price(row: Price) -> None:
    if not row.model:
        raise ValueError("model must not be empty")
    for key in ("input", "output", "cache_read", "cache_write", "cache_write_1h"):
        rate = getattr(row, key)
        if rate is not None and not 0 <= rate < 1e9:
            raise ValueError(f"{key}: {rate} is no price in dollars per million tokens")


def _check_budget(row: Budget) -> None:
    if not row.name.strip():
        raise ValueError("name must not be empty")
    if not 0 < row.limit < 1e12:
        raise ValueError(f"limit: {row.limit} is no sum of dollars; it must be more than 0")
    import zoneinfo

    try:
        zoneinfo.ZoneInfo(row.timezone)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(f"timezone: {row.timezone!r} is not known; write it like Europe/Berlin") from None


def _check_names(budgets: tuple[Budget, ...], path: str) -> tuple[Budget, ...]:
    seen: set[str] = set()
    for budget in budgets:
        if budget.name in seen:
            raise ConfigError(f"{path}: [[budget]]: the name {budget.name!r} is there twice")
        seen.add(budget.name)
    return budgets


def _labels(table: Any, where: str) -> dict[str, str]:
    if not isinstance(table, dict):
        raise ConfigError(f"{where}: must be a table")
    if table:
        from spantail.state.families import label_fault
    for name, value in table.items():
        if fault := label_fault(name):
            raise ConfigError(f"{where}: {fault}")
        if not isinstance(value, str):
            raise ConfigError(f"{where}: {name}: must be text")
    return dict(table)


def _limits(table: Any, where: str) -> Limits:
    if isinstance(table, dict):
        try:
            table = {k: settings.size(v) if isinstance(v, str) else v for k, v in table.items()}
        except ValueError as error:
            raise ConfigError(f"{where}: {error}") from None
    made = _convert(table, Limits, where)
    for key in Limits.__struct_fields__:
        if getattr(made, key) < 1:
            raise ConfigError(f"{where}: {key}: must be more than 0")
    return made


# -------------------------------------------------------------------------------- the defaults


def _default_state(environ: Mapping[str, str]) -> str:
    if given := environ.get("STATE_DIRECTORY"):
        return given.split(":")[0]  # systemd gives all of them; the first is ours
    base = environ.get("XDG_STATE_HOME") or ""
    return f"{base if base.startswith('/') else '~/.local/state'}/spantail"


def _default_listen(environ: Mapping[str, str]) -> tuple[str, int]:
    host, number = settings.DEFAULT_LISTEN
    host = environ.get("OTEL_EXPORTER_PROMETHEUS_HOST") or host
    if word := environ.get("OTEL_EXPORTER_PROMETHEUS_PORT"):
        try:
            number = settings.port(word)
        except ValueError as error:
            raise ConfigError(f"OTEL_EXPORTER_PROMETHEUS_PORT: {error}") from None
    return host, number


def _default_content(environ: Mapping[str, str]) -> ContentMode:
    """The conventions' variable is a switch or a list of places; on spans is the place that we have."""
    words = {word.strip().lower() for word in environ.get(_CAPTURE, "").split(",")}
    return "full" if words & {"true", "1", "span_only", "span_and_event", "span"} else "none"


def _expand(path: str, environ: Mapping[str, str]) -> str:
    if path == "~" or path.startswith("~/"):
        return own_home(environ) + path[1:]
    return path


def _fits(value: str, patterns: tuple[str, ...]) -> bool:
    return not patterns or any(fnmatchcase(value, pattern) for pattern in patterns)

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
from typing import TYPE_CHECKING, Any, Final, Literal

from msgspec import Struct

from spantail import settings
from spantail.settings import SETTINGS, Setting
from spantail.tables import TABLES, Budget, ConfigError, Limits, Price, Project, check_agents, tables, unknown

if TYPE_CHECKING:
    from spantail.out.door import Web

ContentMode = Literal["none", "target", "full"]
ReadFile = Callable[[str], bytes]


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
    generic_roots: tuple[str, ...] = ()
    generic_input: Literal["uncached", "all"] = "uncached"
    trace_url: str = ""
    log_format: Literal["auto", "text", "json"] = "auto"
    projects: tuple[Project, ...] = ()
    labels: dict[str, str] = {}
    prices: tuple[Price, ...] = ()
    budgets: tuple[Budget, ...] = ()
    limits: Limits = Limits()
    web: Web | None = None
    """Who may see the page; None: everybody who can reach the address."""

    def project_name(self, cwd: str) -> str:
        return project_name(cwd, self.projects)


_WINDOWS: Final = re.compile(r"[A-Za-z]:[\\/]|\\\\")
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
    found = tables(document, path)
    check_agents(found["budgets"], agents, path)
    return Config(**values, **found)


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
    known = [setting.key for setting in SETTINGS] + [*TABLES]
    for key in document:
        if key not in known:
            raise ConfigError(f"{path}: {unknown(key, known)}")
    return path, document


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

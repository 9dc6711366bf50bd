"""What the config file says in tables, checked: `[[project]]`, `[[price]]`, `[[budget]]`, `[labels]`, `[limits]`,
`[web]`.

For whoever writes one: a fault is told in the words of the file, in one line that names the table and the key. A
budget that would never hold must not be found out at the end of the month.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, cast, get_args, get_type_hints

import msgspec
from msgspec import Struct

from spantail import settings

if TYPE_CHECKING:
    from spantail.out.door import Web

Period = Literal["day", "week", "month"]
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
    """A longer line, row or entry is skipped."""
    document_bytes: int = 256 << 20
    """A larger JSON document is skipped: it would have to be held in memory."""
    outbox_bytes: int = 1 << 30
    nesting: int = 600
    """Levels of a record; it is the parsers' own limit, which is the interpreter's."""
    open_sessions: int = 10_000
    label_values: int | None = None
    """Distinct values of a label that records can invent; without it each label has its own number."""
    label_length: int = 128


TABLES: Final = ("project", "price", "budget", "labels", "limits", "web")
LEAST_NESTING: Final = 50
MOST_NESTING: Final = 5000
"""More would overflow the stack of a parser."""
_KINDS: Final = {
    "float": "a number",
    "float | null": "a number",
    "int": "a whole number",
    "str": "text",
    "array": "text or a list of texts",
}


def tables(document: dict[str, Any], path: str) -> dict[str, Any]:
    return {
        "projects": _rows(document, "project", Project, path, _check_project),
        "prices": _rows(document, "price", Price, path, _check_price),
        "budgets": _check_names(_rows(document, "budget", Budget, path, _check_budget), path),
        "labels": _labels(document.get("labels", {}), f"{path}: [labels]"),
        "limits": _limits(document.get("limits", {}), f"{path}: [limits]"),
        "web": _web(document["web"], f"{path}: [web]") if "web" in document else None,
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
            raise ConfigError(f"{where}: {unknown(key, fields)}")
    if kind is Budget:  # one word or a list of them
        filters = ("agent", "project", "model", "user")
        row = {k: [v] if k in filters and isinstance(v, str) else v for k, v in row.items()}
    try:
        return msgspec.convert(row, kind)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where}: {_fault(str(error), kind)}") from None


def _fault(error: str, kind: type[T]) -> str:
    """msgspec's message in the words of the file: which key, and what it must be."""
    what, _, at = error.partition(" - at ")
    key = at.strip("`$.").partition("[")[0]
    if missing := re.search(r"missing required field `(.+)`", what):
        return f"{missing[1]}: is missing"
    if expected := re.match(r"Expected `(.+)`, got", what):
        return f"{key}: must be {_KINDS.get(expected[1], expected[1])}"
    if given := re.match(r"Invalid enum value (.+)", what):
        hint: Any = kind
        for part in key.split("."):  # a table may stand in a table
            hint = get_type_hints(hint)[part]
            hint = get_args(hint)[0] if type(None) in get_args(hint) else hint
        return f"{key}: {given[1]} is none of {', '.join(get_args(hint))}"
    return f"{key}: {what}"


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


def check_agents(budgets: tuple[Budget, ...], agents: Collection[str], path: str) -> None:
    """A budget of an agent that does not exist would never be spent, and nobody would know."""
    for number, budget in enumerate(budgets, 1):
        for pattern in budget.agent:
            if agents and not any(fnmatchcase(name, pattern) for name in agents):
                known = ", ".join(sorted(agents))
                raise ConfigError(
                    f"{path}: [[budget]] {number}: agent: {pattern!r} fits none of the agents {known}"
                )


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
        table = {key: _size(value, f"{where}: {key}") for key, value in table.items()}
    made = _convert(table, Limits, where)
    for key in Limits.__struct_fields__:
        if (value := getattr(made, key)) is not None and value < 1:
            raise ConfigError(f"{where}: {key}: must be more than 0")
    if not LEAST_NESTING <= made.nesting <= MOST_NESTING:
        raise ConfigError(f"{where}: nesting: must be {LEAST_NESTING} to {MOST_NESTING}")
    return made


def _web(table: Any, where: str) -> Web:
    from spantail.out import door  # with ssl, for those who ask for it

    made = _convert(table, door.Web, where)
    try:
        door.check(made)
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from None
    return made


def _size(value: Any, where: str) -> Any:
    try:
        return settings.size(value) if isinstance(value, str) else value
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from None


def unknown(key: str, known: Collection[str]) -> str:
    import difflib

    near = difflib.get_close_matches(key, known, 1)
    return f"unknown key {key!r}" + (f"; did you mean {near[0]!r}?" if near else "")


def _fits(value: str, patterns: tuple[str, ...]) -> bool:
    return not patterns or any(fnmatchcase(value, pattern) for pattern in patterns)

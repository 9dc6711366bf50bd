"""What the genai-prices package knows about models, at a tenth of what importing it costs.

Importing the package pulls in pydantic and an HTTP client: 0.45 s and some 27 MB that a small
follower has better uses for. Its figures, though, are one generated module of plain constructor
calls. That module is run here with names that build our own small entries (measured: 0.05 s and
5 MB), and the package's rules for finding a model are applied to them. If a later version has
another shape, anything that does not fit raises, and the package itself is imported and asked
instead: slower, never wrong. A test holds both ways to the same answers.
"""

from __future__ import annotations

import builtins
import re
import sys
from collections.abc import Callable
from datetime import UTC, date, datetime, time
from decimal import Decimal
from importlib.machinery import SourceFileLoader
from importlib.util import find_spec
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, Final

from msgspec import Struct

Tiers = tuple[tuple[int, float], ...]
"""(more input tokens than this, US dollars per unit), rising; the first is the base: (-1, rate)."""
Sheet = dict[str, Tiers]
"""Price key of the package (`input_mtok`) -> tiers."""


class Sheets(Struct, frozen=True):
    """The prices of one model: the last sheet in force counts, else the first."""

    sheets: tuple[tuple[date | None, tuple[time, time] | None, Sheet], ...]
    context: int | None = None

    def on(self, day: date) -> tuple[tuple[tuple[time, time] | None, Sheet], ...]:
        """The sheets of a day, the one that counts first; those with hours count in these only."""
        found = []
        for start, hours, sheet in reversed(self.sheets):
            if start is None or start <= day:
                found.append((hours, sheet))
                if hours is None:
                    return tuple(found)
        return (*found, (None, self.sheets[0][2]))


class UnknownShapeError(Exception):
    """The package's figures are not written as they were; ask the package itself."""


class Book:
    """Finds the prices of (model, provider) as the package does: LookupError -> None."""

    def __init__(self, find: Callable[[str, str | None], Sheets | None]) -> None:
        self.find = find


def load() -> Book:
    """The book read directly, or through the package where its figures have another shape."""
    # Whatever does not fit, the package itself knows better.
    try:
        figures = _Providers(_read_figures())
    except Exception:  # noqa: BLE001
        return through_package()

    def find(model: str, provider: str | None) -> Sheets | None:
        try:
            return figures.find(model, provider)
        except Exception:  # noqa: BLE001
            book.find = through_package().find
            return book.find(model, provider)

    book = Book(find)
    return book


# ------------------------------------------------------------------ the generated module, run


class _Node(Struct, frozen=True):
    """A constructor call of the generated module: its name and its keyword arguments."""

    kind: str
    given: dict[str, Any]

    def get(self, key: str) -> Any:
        return self.given.get(key)


class _Names(dict[str, Any]):
    """The module's namespace: a name it expects from the package's types builds a _Node."""

    def __missing__(self, name: str) -> Any:
        if not name[:1].isupper():
            raise KeyError(name)

        def made(**given: Any) -> _Node:
            return _Node(name, given)

        # Kept apart from what the module defines: those names are looked up in here first.
        self[name] = made
        return made


def _read_figures() -> list[_Node]:
    spec = find_spec("genai_prices")  # finds, does not import
    if spec is None or not spec.submodule_search_locations:
        raise UnknownShapeError
    path = Path(spec.submodule_search_locations[0]) / "data.py"
    # the loader takes the compiled module that the installation left, else compiles it
    code = SourceFileLoader("genai_prices_figures", str(path)).get_code("genai_prices_figures")
    if not isinstance(code, CodeType):
        raise UnknownShapeError
    nothing = ModuleType("nothing")
    nothing.__all__ = []  # type: ignore[attr-defined]

    def importing(name: str, *args: Any) -> ModuleType:
        level = args[3] if len(args) > 3 else 0
        if level:  # `from .types import *`: our names stand for them
            return nothing
        if name not in {"datetime", "decimal", "__future__"}:
            raise UnknownShapeError(name)
        return builtins.__import__(name, *args)

    names = _Names()
    scope = {"__builtins__": vars(builtins) | {"__import__": importing}, "__name__": "genai_prices_figures"}
    exec(code, scope, names)  # noqa: S102 - a module of a package we depend on, as an import would run it
    providers = names["providers"]
    if not isinstance(providers, list) or not providers:
        raise UnknownShapeError
    return providers


# --------------------------------------------------------------------------- finding a model

_COMPACT_DATE: Final = re.compile(r"-(20\d{2})(0[1-9]|1[0-2])(0[1-9]|[12]\d|3[01])(?=-|:|$)")
Match = Callable[[str], bool]


class _Model(Struct, frozen=True):
    fits: Match
    prices: Any
    context: int | None


class _Provider(Struct):
    id: str
    model: Match | None
    name: Match | None
    fallback: tuple[str, ...]
    nodes: list[_Node]
    models: tuple[_Model, ...] | None = None
    """Made when it is first asked: of all the providers there are, few are."""

    def find(self, name: str) -> _Model | None:
        if self.models is None:
            self.models = tuple(
                _Model(_must(m.get("match")), m.get("prices"), m.get("context_window")) for m in self.nodes
            )
        return next((model for model in self.models if model.fits(name)), None)


class _Providers:
    """The package's rules: provider by name or by model, model by its clause, then fallbacks."""

    def __init__(self, nodes: list[_Node]) -> None:
        self.all = [_provider(node) for node in nodes]
        self.by_id = {provider.id: provider for provider in self.all}

    def find(self, model: str, provider: str | None) -> Sheets | None:
        model = model.lower()
        found = self._provider(model, provider)
        if found is None:
            return None
        entry = self._model(found, model)
        if entry is None:
            dashed = _COMPACT_DATE.sub(r"-\1-\2-\3", model)
            entry = self._model(found, dashed) if dashed != model else None
        return None if entry is None else _sheets(entry.prices, entry.context)

    def _provider(self, model: str, name: str | None) -> _Provider | None:
        if name is not None:
            name = name.lower().strip()
            return self.by_id.get(name) or next((p for p in self.all if p.name and p.name(name)), None)
        return next((p for p in self.all if p.model and p.model(model)), None)

    def _model(self, provider: _Provider, name: str) -> _Model | None:
        if entry := provider.find(name):
            return entry
        others = (self.by_id[other] for other in provider.fallback if other in self.by_id)
        return next((entry for other in others if (entry := other.find(name))), None)


def _provider(node: _Node) -> _Provider:
    _expect(node, "Provider")
    return _Provider(
        node.given["id"],
        _clause(node.get("model_match")),
        _clause(node.get("provider_match")),
        tuple(node.get("fallback_model_providers") or ()),
        list(node.get("models") or ()),
    )


def _must(node: Any) -> Match:
    fits = _clause(node)
    if fits is None:
        raise UnknownShapeError
    return fits


def _clause(node: Any) -> Match | None:
    """A clause as a test of a lower-case name."""
    if node is None:
        return None
    ((key, given),) = node.given.items()
    if key in {"or_", "and_"}:
        parts = [_must(part) for part in given]
        both = any if key == "or_" else all
        return lambda name: both(part(name) for part in parts)
    word: str = given if key == "regex" else sys.intern(given.lower())
    match key:
        case "equals":
            return word.__eq__
        case "starts_with":
            return lambda name: name.startswith(word)
        case "ends_with":
            return lambda name: name.endswith(word)
        case "contains":
            return lambda name: word in name
        case "regex":
            return lambda name: re.search(word, name) is not None
        case _:
            raise UnknownShapeError(key)


def _expect(node: Any, kind: str) -> None:
    if not isinstance(node, _Node) or node.kind != kind:
        raise UnknownShapeError(kind)


# -------------------------------------------------------------------------------- prices


def _sheets(prices: Any, context: int | None) -> Sheets | None:
    if not isinstance(prices, list):
        return Sheets(((None, None, _sheet(prices)),), context)
    if not prices:
        return None
    made = []
    for entry in prices:
        limit = entry.get("constraint")
        start = limit.get("start_date") if limit else None
        hours = (limit.given["start_time"], limit.given["end_time"]) if limit and start is None else None
        made.append((start, hours, _sheet(entry.get("prices"))))
    return Sheets(tuple(made), context)


def _sheet(node: Any) -> Sheet:
    _expect(node, "ModelPrice")
    return {key: _tiers(price) for key, price in node.given.items() if price is not None}


def _tiers(price: Any) -> Tiers:
    if isinstance(price, Decimal):
        return ((-1, float(price)),)
    _expect(price, "TieredPrices")
    steps = sorted((tier.given["start"], float(tier.given["price"])) for tier in price.given["tiers"])
    return ((-1, float(price.given["base"])), *steps)


# ------------------------------------------------------------------------ the package itself


def through_package() -> Book:
    """The same answers from the package's own code."""
    from genai_prices import data_snapshot

    snapshot = data_snapshot.get_snapshot()

    def find(model: str, provider: str | None) -> Sheets | None:
        try:
            _, info = snapshot.find_provider_model(model, None, provider, None)
        except LookupError:
            return None
        return _sheets(_as_node(info.prices), info.context_window)

    return Book(find)


def _as_node(thing: Any) -> Any:
    """The package's objects in the shape that the generated module gives us."""
    if isinstance(thing, list):
        return [_as_node(item) for item in thing]
    if isinstance(thing, (Decimal, date, time, int, str)) or thing is None:
        return thing
    return _Node(type(thing).__name__, {k: _as_node(v) for k, v in vars(thing).items()})


def day_of(number: int) -> date:
    """The UTC date of the day that is `number` days after the epoch."""
    return datetime.fromtimestamp(number * 86_400, UTC).date()

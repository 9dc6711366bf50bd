"""Usage in, US dollars out, or None: a model whose price is not known is never guessed.

The loop asks for every model call, so an answer is one dict lookup and a few multiplications.
Rates are looked up once per model, provider and day: user overrides first, then the figures of
the genai-prices package (see ratebook). The arithmetic is ours: uncached input, cache reads,
5 min and 1 h cache writes apart, and a tier chosen by all the input of the call.
"""

from __future__ import annotations

import datetime as dt
import re
import time
from collections.abc import Callable, Iterable, Iterator
from fnmatch import fnmatchcase
from typing import Final, Protocol

from msgspec import Struct

from spantail import ratebook
from spantail.model import Usage
from spantail.ratebook import Book, Sheet, Sheets, Tiers

DAY: Final = 86_400 * 10**9
_MILLION: Final = 1_000_000
# Models and providers are words from files: what is remembered of them has an end.
_REMEMBERED: Final = 10_000

# Served from the user's own machine: the same model name has a price elsewhere, not here.
_OWN_MACHINE: Final = frozenset(
    {
        "ollama",
        "lmstudio",
        "lm-studio",
        "llamacpp",
        "llama.cpp",
        "llama-cpp",
        "vllm",
        "mlx",
        "local",
        "localai",
    }
)


class Override(Protocol):
    """A `[[price]]` of the config: dollars per million tokens for models that fit `model`."""

    @property
    def model(self) -> str: ...
    @property
    def input(self) -> float: ...
    @property
    def output(self) -> float: ...
    @property
    def cache_read(self) -> float | None: ...
    @property
    def cache_write(self) -> float | None: ...
    @property
    def cache_write_1h(self) -> float | None: ...


class Rates(Struct, frozen=True, gc=False):
    """Dollars per token, from more than `above` input tokens of a call on."""

    input: float
    cache_read: float
    cache_write: float
    cache_write_1h: float
    output: float
    reasoning_extra: float = 0.0
    """What a reasoning token costs more than the output token that it also is."""
    call: float = 0.0
    """For the call itself, whatever its tokens."""
    above: int = -1

    def cost(self, usage: Usage) -> float:
        written = usage.cache_write
        longer = min(usage.cache_write_1h, written)  # a part, whatever a file says
        return (
            self.call
            + usage.input * self.input
            + usage.cache_read * self.cache_read
            + (written - longer) * self.cache_write
            + longer * self.cache_write_1h
            + usage.output * self.output
            + usage.reasoning * self.reasoning_extra
        )


class Tariff(Struct, frozen=True):
    """The rates of a model on one day: tiers from the highest down, and hours with other tiers."""

    tiers: tuple[Rates, ...]
    hours: tuple[tuple[int, int, tuple[Rates, ...]], ...] = ()
    """(first second, last second of the UTC day, tiers); the first that fits counts."""

    def rates(self, tokens_in: int, second: int) -> Rates:
        tiers = self.tiers
        for start, end, other in self.hours:
            if start <= second < end if start <= end else (second >= start or second < end):
                tiers = other
                break
        for rates in tiers:
            if tokens_in > rates.above:
                return rates
        return tiers[-1]


class Prices:
    """What model calls cost."""

    def __init__(
        self,
        overrides: Iterable[Override] = (),
        load: Callable[[], Book] = ratebook.load,
        now: Callable[[], int] = time.time_ns,
        unpriced: Callable[[str, str], None] = lambda _provider, _model: None,
    ) -> None:
        """`unpriced` is told of each call whose price is not known."""
        self._overrides = tuple(overrides)
        self._load = load
        self._now = now
        self._unpriced = unpriced
        self._book: Book | None = None
        self._tariffs: dict[tuple[str, str, int], Tariff | None] = {}
        self._sheets: dict[tuple[str, str], Sheets | None] = {}

    def cost(
        self, model: str, provider: str, usage: Usage, time_ns: int, *, several: bool = False
    ) -> float | None:
        """Dollars for one model call at that time (0: now); None where the price is not known.

        `several`: the usage of nobody knows how many calls. Tiers go by the input of one call, so the lowest
        counts, and it does not matter in how many steps a running total was read.
        """
        time_ns = time_ns or self._now()
        day = time_ns // DAY
        try:
            tariff = self._tariffs[model, provider, day]
        except KeyError:
            tariff = self._tariff(model, provider, day)
        if tariff is None:
            self._unpriced(provider, model)
            return None
        tiers = tariff.tiers
        if len(tiers) == 1 and not tariff.hours:
            return tiers[0].cost(usage)
        tokens_in = 0 if several else usage.input + usage.cache_read + usage.cache_write
        return tariff.rates(tokens_in, time_ns % DAY // 10**9).cost(usage)

    def context_limit(self, model: str, provider: str = "") -> int | None:
        """How many tokens the model takes in, where the package knows it."""
        if model.lower().endswith("[1m]"):
            return 1_000_000
        sheets = self._find(model, provider)
        return sheets.context if sheets else None

    def _tariff(self, model: str, provider: str, day: int) -> Tariff | None:
        if len(self._tariffs) >= _REMEMBERED:
            self._tariffs.clear()
        tariff = self._overridden(model)
        if tariff is None and (sheets := self._find(model, provider)):
            tariff = _priced(sheets, day, model.lower())
        self._tariffs[model, provider, day] = tariff
        return tariff

    def _overridden(self, model: str) -> Tariff | None:
        for row in self._overrides:
            if any(fnmatchcase(name, row.model) for name in (model, *names(model))):
                write = row.input if row.cache_write is None else row.cache_write
                rates = Rates(
                    row.input / _MILLION,
                    (row.input if row.cache_read is None else row.cache_read) / _MILLION,
                    write / _MILLION,
                    (write if row.cache_write_1h is None else row.cache_write_1h) / _MILLION,
                    row.output / _MILLION,
                )
                return Tariff((rates,))
        return None

    def _find(self, model: str, provider: str) -> Sheets | None:
        key = (model, provider)
        if key not in self._sheets:
            if len(self._sheets) >= _REMEMBERED:
                self._sheets.clear()
            self._sheets[key] = self._look_up(model, provider.lower())
        return self._sheets[key]

    def open_book(self) -> Book:
        """Done by the first question; before it by who forks, so that its processes share one."""
        if self._book is None:
            self._book = self._load()
        return self._book

    def _look_up(self, model: str, provider: str) -> Sheets | None:
        if provider in _OWN_MACHINE or not model or len(model) > 200:
            return None
        book = self.open_book()
        for name in names(model):
            for other in _providers(model, provider):
                if found := book.find(name, other):
                    return found
        return None


def names(model: str) -> Iterator[str]:
    """A model's name as agents write it, then as the package may know it: `vendor/`, `[1m]`, cloud prefixes."""
    name = re.sub(r"\[[^\]]*\]$", "", model.strip().lower())  # a context size in brackets
    yield name
    for bare in (name.rpartition("/")[2], re.sub(r"^(?:[a-z-]+\.)?[a-z0-9]+\.(?=[a-z])", "", name)):
        if bare and bare != name:
            yield bare
            if (plain := re.sub(r"-v\d+(?::\d+)?$", "", bare)) != bare:
                yield plain


def _providers(model: str, provider: str) -> Iterator[str | None]:
    """Who may have the price: whom the agent names, whom the model's prefix names, its maker."""
    if provider:
        yield provider
    if "/" in model:
        yield model.partition("/")[0].lower()
    yield None


# ------------------------------------------------------------------------------ sheets -> rates


def _priced(sheets: Sheets, day: int, model: str) -> Tariff | None:
    """The tariff of a day; None where a sheet that counts then has no prices for tokens."""
    *special, (_, usual) = sheets.on(ratebook.day_of(day))
    tiers = _tiers(usual, model)
    hours = []
    for span, sheet in special:
        other = _tiers(sheet, model)
        if span is None or other is None:
            return None
        hours.append((_second(span[0]), _second(span[1]), other))
    return None if tiers is None else Tariff(tiers, tuple(hours))


def _second(moment: dt.time) -> int:
    """Of the UTC day; a time without a zone is UTC."""
    zone = moment.utcoffset() or dt.timedelta()
    seconds = moment.hour * 3600 + moment.minute * 60 + moment.second
    return (seconds - int(zone.total_seconds())) % 86_400


def _tiers(sheet: Sheet, model: str) -> tuple[Rates, ...] | None:
    """Every tier of the sheet with all its rates, highest first."""
    if not sheet and model.endswith(":free"):
        return (Rates(0.0, 0.0, 0.0, 0.0, 0.0),)
    if "input_mtok" not in sheet or "output_mtok" not in sheet:
        return None  # an empty sheet says that nobody knows, not that it is free
    starts = {start for tiers in sheet.values() for start, _ in tiers}
    return tuple(_rates(sheet, start, model) for start in sorted(starts, reverse=True))


def _rates(sheet: Sheet, above: int, model: str) -> Rates:
    def rate(key: str, otherwise: float) -> float:
        return _step(sheet[key], above) / _MILLION if key in sheet else otherwise

    plain, output = rate("input_mtok", 0.0), rate("output_mtok", 0.0)
    write = rate("cache_write_5m_mtok", rate("cache_write_mtok", plain))
    # Anthropic's 1 h writes cost twice the input, whoever resells the model; some resellers'
    # figures leave that out, and the 5 min rate would be too little.
    longer = 2 * plain if "claude" in model and "cache_write_mtok" in sheet else write
    return Rates(
        input=plain,
        cache_read=rate("cache_read_mtok", plain),
        cache_write=write,
        cache_write_1h=rate("cache_write_1h_mtok", longer),
        output=output,
        reasoning_extra=rate("output_reasoning_mtok", output) - output,
        call=_step(sheet["requests_kcount"], above) / 1000 if "requests_kcount" in sheet else 0.0,
        above=above,
    )


def _step(tiers: Tiers, above: int) -> float:
    """The rate in force for calls with more than `above` input tokens (and no later step)."""
    return [price for start, price in tiers if start <= above][-1]

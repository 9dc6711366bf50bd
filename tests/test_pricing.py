"""Prices: our arithmetic against the package's own, and what is not known stays not known."""

import subprocess
import sys
from datetime import UTC, datetime

import pytest
from genai_prices import Usage as TheirUsage
from genai_prices import calc_price
from genai_prices.data import providers

from spantail import ratebook
from spantail.model import Usage
from spantail.pricing import Prices
from spantail.tables import Price

MILLION = 1_000_000


def ns(*when) -> int:
    return int(datetime(*when, tzinfo=UTC).timestamp()) * 10**9


NOON = ns(2026, 11, 1, 12)


@pytest.fixture(scope="module")
def prices():
    return Prices()


def rates(prices, model, provider="", time=NOON):
    """in / out / write 5m / write 1h / read, dollars per million tokens, of calls with small input."""
    kinds = (
        {"input": 1000},
        {"output": 1000},
        {"cache_write": 1000},
        {"cache_write": 1000, "cache_write_1h": 1000},
    )
    costs = [prices.cost(model, provider, Usage(**kind), time) for kind in (*kinds, {"cache_read": 1000})]
    return [round(cost * 1000, 6) for cost in costs]


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("claude-sonnet-4-6", [3, 15, 3.75, 6, 0.3]),
        ("claude-sonnet-4-5-20250929", [3, 15, 3.75, 6, 0.3]),
        ("claude-sonnet-4-20250514", [3, 15, 3.75, 6, 0.3]),
        ("claude-opus-4-5-20251101", [5, 25, 6.25, 10, 0.5]),
        ("claude-opus-4-6", [5, 25, 6.25, 10, 0.5]),
        ("claude-opus-4-7", [5, 25, 6.25, 10, 0.5]),
        ("claude-opus-4-8", [5, 25, 6.25, 10, 0.5]),
        ("claude-opus-4-20250514", [15, 75, 18.75, 30, 1.5]),
        ("claude-opus-4-1-20250805", [15, 75, 18.75, 30, 1.5]),
        ("claude-haiku-4-5-20251001", [1, 5, 1.25, 2, 0.1]),
    ],
)
def test_known_models(prices, model, expected):
    """The figures that the program of their maker has in it."""
    assert rates(prices, model) == expected


def test_haiku_5_5_input_and_output(prices):
    """Of this one only these two were seen; the package has a dearer tier for long prompts."""
    assert rates(prices, "claude-haiku-5-5")[:2] == [0.1, 0.5]


@pytest.mark.parametrize(
    ("model", "provider", "same_as"),
    [
        ("anthropic/claude-sonnet-4.6", "", "claude-sonnet-4-6"),
        ("claude-sonnet-4-6[1m]", "anthropic", "claude-sonnet-4-6"),
        ("Claude-Sonnet-4-6", "", "claude-sonnet-4-6"),
        ("claude-sonnet-4-6", "some-proxy", "claude-sonnet-4-6"),
        ("claude-sonnet-4-6", "openai-compatible", "claude-sonnet-4-6"),
        ("openrouter/anthropic/claude-opus-4.8", "", "claude-opus-4-8"),
        ("us.anthropic.claude-opus-5-20260301-v1:0", "", "claude-opus-5"),
        ("claude-sonnet-4@20250514", "vertex", "claude-sonnet-4-0"),
        ("openai/gpt-5.3-codex", "", "gpt-5.3-codex"),
        ("gpt-5.2-20251211", "openai", "gpt-5.2"),
        ("models/gemini-2.5-pro", "google", "gemini-2.5-pro"),
        ("moonshotai/kimi-k2.6", "", "kimi-k2.6"),
    ],
)
def test_names_as_agents_write_them(prices, model, provider, same_as):
    """Prefixes, dates, brackets and unknown providers lead to the model's own price."""
    assert rates(prices, model, provider) == rates(prices, same_as)


@pytest.mark.parametrize(
    ("model", "provider"),
    [
        ("made-up-model-x", ""),
        ("<synthetic>", ""),
        ("", ""),
        ("", "anthropic"),
        ("sonnet", "anthropic"),
        ("deepseek-chat", "ollama"),
        ("text-embedding-3-small", "openai"),
        ("x" * 5000, ""),
        ("[", ""),
        ("/", "/"),
        ("a/", ""),
        ("�", ""),
    ],
)
def test_what_is_not_known_has_no_price(prices, model, provider):
    """None, not 0: also for a model that runs on the user's own machine, or has no price for output."""
    assert prices.cost(model, provider, Usage(input=10, output=10), NOON) is None


def test_free_is_a_price(prices):
    """A model that is free by its name costs 0."""
    assert prices.cost("phi-4-reasoning:free", "azure", Usage(input=10), NOON) == 0.0


def test_an_unknown_model_is_looked_up_once():
    """A backlog of calls of an unknown model asks the book once."""
    asked = []

    def find(model, provider):
        asked.append(model)

    prices = Prices(load=lambda: ratebook.Book(find))
    for day in range(5):
        assert prices.cost("nobody", "", Usage(input=1), NOON + day * 86400 * 10**9) is None
    assert asked == ["nobody"]


def test_overrides_come_first():
    """A [[price]] of the config wins, by pattern, for known and unknown models; without a book."""

    def never():
        raise AssertionError("the book is not needed")

    rows = [Price("corp-*", 1, 2), Price("claude-*", 10, 20, cache_read=1, cache_write=11, cache_write_1h=12)]
    prices = Prices(rows, load=never)
    assert rates(prices, "corp-1") == [1, 2, 1, 1, 1]
    assert rates(prices, "claude-sonnet-4-6") == [10, 20, 11, 12, 1]
    assert rates(prices, "anthropic/claude-sonnet-4-6[1m]") == [10, 20, 11, 12, 1]


def test_a_tier_is_chosen_by_all_the_input_of_a_call(prices):
    """Cache reads and writes count for the threshold; the whole call has the dearer rate."""
    cheap = prices.cost("claude-sonnet-4-5", "", Usage(input=1, cache_read=199_999, output=10), NOON)
    dear = prices.cost("claude-sonnet-4-5", "", Usage(input=2, cache_read=199_999, output=10), NOON)
    assert cheap == pytest.approx((1 * 3 + 199_999 * 0.3 + 10 * 15) / MILLION)
    assert dear == pytest.approx((2 * 6 + 199_999 * 0.6 + 10 * 22.5) / MILLION)


def test_a_running_total_costs_the_same_in_however_many_steps_it_is_read(prices):
    """It is the usage of many calls, so its size says nothing about a tier."""

    def cost(tokens: int) -> float:
        return prices.cost("claude-sonnet-4-5", "", Usage(input=tokens), NOON, several=True)

    assert cost(400_000) == pytest.approx(4 * cost(100_000)) == pytest.approx(400_000 * 3 / MILLION)


def test_the_price_is_that_of_the_day(prices):
    """A price that changed on a date applies from that date on, UTC."""
    usage = Usage(input=300_000)
    before = prices.cost("claude-sonnet-4-6", "", usage, ns(2026, 3, 12, 23, 59))
    after = prices.cost("claude-sonnet-4-6", "", usage, ns(2026, 3, 13))
    assert (before, after) == (pytest.approx(1.8), pytest.approx(0.9))


def test_a_call_without_a_time_has_todays_price():
    """0 means not known: the price of now is the best there is."""
    early, late = Prices(now=lambda: ns(2026, 3, 1)), Prices(now=lambda: NOON)
    usage = Usage(input=300_000)
    assert early.cost("claude-sonnet-4-6", "", usage, 0) == pytest.approx(1.8)
    assert late.cost("claude-sonnet-4-6", "", usage, 0) == pytest.approx(0.9)


def test_more_1h_writes_than_writes_are_not_paid_twice(prices):
    """The 1 h part is a part, whatever a file says."""
    usage = Usage(cache_write=1000, cache_write_1h=5000)
    assert prices.cost("claude-sonnet-4-6", "", usage, NOON) == pytest.approx(1000 * 6 / MILLION)


def test_context_limit(prices):
    """How much a model takes in, for the gauge; not known is None."""
    assert prices.context_limit("claude-haiku-4-5-20251001") == 200_000
    assert prices.context_limit("claude-sonnet-4-5[1m]") == 1_000_000
    assert prices.context_limit("nobody") is None


USAGES = (
    Usage(input=1200, output=340, reasoning=100),
    Usage(input=10, cache_read=250_000, cache_write=4000, cache_write_1h=1500, output=77),
    Usage(cache_read=128_001, output=5),
)


def theirs(model, provider, usage, when):
    """What the package itself makes of it."""
    asked = TheirUsage(
        input_tokens=usage.input + usage.cache_read + usage.cache_write,
        cache_read_tokens=usage.cache_read,
        cache_write_tokens=usage.cache_write,
        cache_write_1h_tokens=usage.cache_write_1h,
        output_tokens=usage.output,
        output_reasoning_tokens=usage.reasoning,
        **dict.fromkeys(("cache_audio_read_tokens", "cache_image_read_tokens"), 0),
        **dict.fromkeys(("cache_audio_write_tokens", "input_audio_tokens", "output_audio_tokens"), 0),
        **dict.fromkeys(("input_image_tokens", "output_image_tokens"), 0),
    )
    return float(calc_price(asked, model, provider_id=provider, genai_request_timestamp=when).total_price)


def test_arithmetic_equals_that_of_the_package():
    """Over hundreds of models of all providers: tiers, hours of the day, cache kinds, reasoning."""
    prices, book, compared = Prices(), ratebook.through_package(), 0
    when = datetime(2026, 11, 1, 3, 30, tzinfo=UTC)
    for provider in providers:
        every = 1 if provider.id in {"anthropic", "openai", "google", "deepseek", "perplexity"} else 9
        for model in provider.models[::every]:
            if book.find(model.id, provider.id) is None:
                continue  # it goes by other names than its id
            for usage in USAGES:
                ours = prices.cost(model.id, provider.id, usage, int(when.timestamp()) * 10**9)
                if ours is None:
                    continue
                if "claude" in model.id and usage.cache_write_1h and provider.id != "anthropic":
                    continue  # resellers' figures lack the 1 h rate, see the next test
                compared += 1
                assert ours == pytest.approx(theirs(model.id, provider.id, usage, when), rel=1e-9), model.id
    assert compared > 1000


def test_1h_writes_of_a_reseller_cost_twice_the_input():
    """Where a reseller's figures leave the 1 h rate out, the maker's rule holds."""
    sheet = {"input_mtok": ((-1, 3.0),), "output_mtok": ((-1, 15.0),), "cache_write_mtok": ((-1, 3.75),)}
    book = ratebook.Book(lambda model, provider: ratebook.Sheets(((None, None, sheet),)))
    assert rates(Prices(load=lambda: book), "claude-x", "reseller") == [3, 15, 3.75, 6, 3]
    assert rates(Prices(load=lambda: book), "gpt-x", "reseller") == [3, 15, 3.75, 3.75, 3]


def test_reading_the_figures_gives_what_the_package_gives():
    """Our short way in finds the same prices for every model of every provider."""
    book, package = (
        ratebook.Book(ratebook._Providers(ratebook._read_figures()).find),
        ratebook.through_package(),
    )
    for provider in providers:
        for model in provider.models:
            for name, whose in ((model.id, provider.id), (model.id, None)):
                assert book.find(name, whose) == package.find(name, whose), (name, whose)


def test_figures_of_another_shape_are_asked_of_the_package(monkeypatch):
    """If a later version is written otherwise, prices stay right."""

    def changed():
        raise ratebook.UnknownShapeError

    monkeypatch.setattr(ratebook, "_read_figures", changed)
    assert rates(Prices(), "claude-sonnet-4-6") == [3, 15, 3.75, 6, 0.3]


def test_the_package_is_not_imported():
    """Its import costs half a second and a third of the memory that the whole process may have."""
    code = (
        "import sys; from spantail.pricing import Prices; from spantail.model import Usage;"
        "assert Prices().cost('claude-sonnet-4-6', '', Usage(input=1), 10**18);"
        "print(sorted({'genai_prices', 'pydantic', 'httpx2'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"

"""The price of a model: which of several prices counts, tiers, plans, unknown models, and the version of a book."""

from __future__ import annotations

from datetime import UTC, date, datetime

import pytest
from msgspec import structs

from dragoman.accounts import prices as module
from dragoman.accounts.prices import Price, PriceBook, Rates, Tier, format_cost, format_rate
from dragoman.accounts.prices_file import fill_rates
from dragoman.model.conversation import Usage

NOW = datetime(2026, 11, 18, tzinfo=UTC).timestamp()
ONE = Usage(input=1000)


def price(cost: int, *models: str, provider: str = "openai", upstream: str = "", since: date | None = None) -> Price:
    """Return a price whose input costs `cost` nano-dollars per thousand tokens."""
    rates = fill_rates({"input": cost, "output": 0})
    return Price(models=models, provider="" if upstream else provider, upstream=upstream, rates=rates, valid_from=since)


def cost(book: PriceBook, model: str = "gpt-5", *, provider: str = "openai", upstream: str = "up") -> int | None:
    return book.cost(ONE, provider, upstream, model, NOW)


def test_each_kind_of_token_has_its_rate() -> None:
    rates = Rates(input=3_000_000, output=15_000_000, cache_read=300_000, cache_write=3_750_000, cache_write_1h=6_000_000, reasoning=20_000_000)  # fmt: skip
    one = Price(models=("m",), provider="p", rates=rates)
    assert one.cost(Usage(input=1000)) == 3_000_000
    assert one.cost(Usage(output=1000)) == 15_000_000
    assert one.cost(Usage(output=1000, reasoning=400)) == 600 * 15_000 + 400 * 20_000
    assert one.cost(Usage(cache_read=1000)) == 300_000
    assert one.cost(Usage(cache_write=1000)) == 3_750_000
    assert one.cost(Usage(cache_write=1000), cache_write_1h=400) == 600 * 3750 + 400 * 6000
    assert one.cost(Usage(cache_write=1000), cache_write_1h=5000) == 6_000_000  # at most what was written
    assert one.cost(Usage()) == 0


def test_the_whole_request_moves_to_the_higher_rate() -> None:
    low, middle, high = (fill_rates({"input": rate, "output": rate}) for rate in (1000, 2000, 5000))
    one = Price(models=("m",), provider="p", rates=low, tiers=(Tier(500, high), Tier(200, middle)))
    assert one.cost(Usage(input=200, output=10)) == 210
    assert one.cost(Usage(input=201, output=10)) == 211 * 2
    assert one.cost(Usage(input=100, cache_read=60, cache_write=60)) == 220 * 2  # tokens of a cache are input
    assert one.cost(Usage(input=501)) == 501 * 5
    assert one.cost(Usage(input=1, output=10_000)) == 10_001  # the output does not count


def test_unknown_is_none_and_a_plan_is_0() -> None:
    plan = Price(models=("auto",), provider="kiro", rates=None, plan=True)
    compared = structs.replace(plan, models=("claude",), rates=fill_rates({"input": 1000, "output": 0}))
    book = PriceBook([[plan, compared, price(1000, "gpt-5")]])
    assert cost(book) == 1000
    assert cost(book, "gpt-6") is None
    assert cost(book, "auto", provider="kiro") == 0
    assert cost(book, "claude", provider="kiro") == 0
    assert compared.list_cost(ONE) == 1000
    assert plan.list_cost(ONE) is None
    assert structs.replace(plan, plan=False).cost(ONE) is None  # no rates and no plan: never 0


def test_a_name_is_compared_as_a_whole() -> None:
    book = PriceBook([[price(1, "gpt-5")]])
    for other in ("openai/gpt-5", "gpt-5-mini", "GPT-5", "gpt-5 ", "5", ""):
        assert cost(book, other) is None
    assert cost(book, provider="openrouter") is None


def test_what_counts_first() -> None:
    ranked = [  # the strongest first
        [price(1, "gpt-5", upstream="up")],
        [price(2, "gpt-*", upstream="up")],
        [price(3, "gpt-5")],
        [price(4, "gpt-5*")],
        [price(5, "gpt-*")],
        [price(6, "*")],
    ]
    flat = [each for layer in ranked for each in layer]
    for place in range(len(flat)):
        assert cost(PriceBook([flat[place:]])) == place + 1
        assert cost(PriceBook([list(reversed(flat[place:]))])) == place + 1  # the order of a file does not matter
    assert cost(PriceBook([[price(9, "*")], flat])) == 9  # a layer comes before everything
    assert cost(PriceBook([[], flat])) == 1


def test_a_price_begins_at_its_day_in_utc() -> None:
    old, new, later = price(1, "m"), price(2, "m", since=date(2026, 11, 1)), price(3, "m", since=date(2027, 1, 1))
    book = PriceBook([[later, old, new]])
    midnight = datetime(2026, 11, 1, tzinfo=UTC).timestamp()
    assert book.cost(ONE, "openai", "", "m", midnight - 1) == 1
    assert book.cost(ONE, "openai", "", "m", midnight) == 2
    assert book.cost(ONE, "openai", "", "m", datetime(2027, 1, 1, tzinfo=UTC).timestamp()) == 3
    only = PriceBook([[later], [price(7, "*")]])
    assert only.cost(ONE, "openai", "", "m", NOW) == 7  # a price of the future hides nothing


def test_the_default_is_for_what_no_layer_knows() -> None:
    book = PriceBook([[price(1, "gpt-5")]], default=price(50, "*"))
    assert (cost(book), cost(book, "other"), cost(book, "other", provider="unheard-of")) == (1, 50, 50)


@pytest.mark.parametrize(
    ("url", "preset", "dialect", "provider"),
    [
        ("https://api.deepseek.com/v1", "", "openai", "deepseek"),
        ("https://api.deepseek.com", "openai", "openai", "deepseek"),  # the address comes before the preset
        ("https://api.z.ai/api/anthropic", "", "anthropic", "zai"),
        ("https://api.z.ai/api/coding/paas/v4", "", "openai", "plan"),  # the longer pattern
        ("https://API.Z.AI:443/api/coding", "", "openai", "plan"),
        ("https://api.z.ai.example.com", "", "openai", "openai"),
        ("http://127.0.0.1:8000", "vllm", "openai", "vllm"),
        ("http://127.0.0.1:8000", "", "openai", "openai"),
        ("", "simulator", "kiro", "simulator"),
    ],
)
def test_the_provider_of_an_upstream(url: str, preset: str, dialect: str, provider: str) -> None:
    addresses = {"deepseek": ["api.deepseek.com/*"], "zai": ["api.z.ai/*"], "plan": ["api.z.ai/api/coding/*"]}
    assert PriceBook([], addresses=addresses).provider_of(url, preset, dialect) == provider


def test_the_version_changes_with_what_a_cost_depends_on() -> None:
    one = price(1, "m")
    version = PriceBook([[one]]).version
    assert len(version) == 12 and int(version, 16)
    noted = structs.replace(one, note="x", source="y", seen=date(2026, 1, 1), origin="z")
    assert PriceBook([[noted]]).version == version
    others = [
        PriceBook([[one], []]),
        PriceBook([[price(2, "m")]]),
        PriceBook([[price(1, "n")]]),
        PriceBook([[structs.replace(one, plan=True)]]),
        PriceBook([[structs.replace(one, valid_from=date(2026, 1, 1))]]),
        PriceBook([[one]], default=one),
        PriceBook([[one]], addresses={"p": ["a/*"]}),
        PriceBook([[structs.replace(one, tiers=(Tier(1, fill_rates({"input": 1, "output": 1})),))]]),
    ]
    assert len({version, *(book.version for book in others)}) == 1 + len(others)


def test_the_cache_of_results_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_CACHED", 10)
    book = PriceBook([[price(1, "gpt-*")]])
    for number in range(100):
        assert cost(book, f"gpt-{number}") == 1
        assert cost(book, f"gpt-{number}") == 1
        assert len(book._found) <= 10
    assert cost(book, "gpt-" + "x" * 10_000) == 1  # found, and not kept
    assert max(len(key[2]) for key in book._found) < 10


def test_money_as_text() -> None:
    assert [format_rate(rate) for rate in (0, 3_000_000, 300_000, 2800, 1)] == ["0", "3", "0.3", "0.0028", "0.000001"]
    assert [format_cost(cost) for cost in (0, 1, 1_200_000, 3 * 10**9)] == ["$0.00", "$0.000000001", "$0.0012", "$3.00"]

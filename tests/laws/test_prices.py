"""Costs are whole numbers that follow from the tokens alone: additive up to the rounding, and never less for more tokens."""

from __future__ import annotations

from datetime import date
from fractions import Fraction

from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import structs

from dragoman.accounts.prices import Price, PriceBook, Rates, Tier, format_cost, format_rate
from dragoman.accounts.prices_file import PriceFile, parse_price_file, parse_rate, render_price_file
from dragoman.model.conversation import Usage

RATE = st.integers(0, 10**12 - 1)
COUNT = st.integers(0, 10**7)
DATES = st.dates(date(2020, 1, 1), date(2040, 1, 1))
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
NAMES = st.lists(TEXT.filter(bool), min_size=1, max_size=3).map(tuple)
RATES = st.builds(Rates, RATE, RATE, RATE, RATE, RATE, RATE)


@st.composite
def usages(draw: st.DrawFn) -> Usage:
    output = draw(COUNT)
    return Usage(draw(COUNT), output, draw(COUNT), draw(COUNT), draw(st.integers(0, output)))


@st.composite
def growing_prices(draw: st.DrawFn) -> Price:
    """Return a price whose tiers cost more than what is below them, as all published ones do."""
    base = draw(RATES)
    more = [draw(st.integers(1, 3)) for _ in range(draw(st.integers(0, 2)))]
    tiers, rates = [], base
    for number, factor in enumerate(more, 1):
        rates = Rates(*(value * factor for value in structs.astuple(rates)))
        tiers.append(Tier(200_000 * number, rates))
    return Price(models=("m",), provider="p", rates=base, tiers=tuple(reversed(tiers)))


@st.composite
def written_prices(draw: st.DrawFn) -> Price:
    """Return a price that a file can hold: assumed rates are the input rate."""
    assumed = tuple(name for name in ("cache_read", "cache_write") if draw(st.booleans()))
    rates = draw(RATES)
    rates = structs.replace(rates, **dict.fromkeys(assumed, rates.input))
    tiers = {above: Tier(above, draw(RATES)) for above in draw(st.lists(st.integers(1, 10**7), max_size=2))}
    has_rates = draw(st.booleans())
    return Price(
        models=draw(NAMES),
        **{draw(st.sampled_from(["provider", "upstream"])): draw(TEXT.filter(bool))},
        rates=rates if has_rates else None,
        tiers=tuple(tiers[above] for above in sorted(tiers, reverse=True)) if has_rates else (),
        plan=not has_rates or draw(st.booleans()),
        assumed=assumed if has_rates else (),
        valid_from=draw(st.none() | DATES),
        deprecation_date=draw(st.none() | DATES),
        seen=draw(st.none() | DATES),
        source=draw(TEXT),
        note=draw(TEXT),
        origin="f",
    )


def total(one: Usage, other: Usage) -> Usage:
    return Usage(
        one.input + other.input,
        one.output + other.output,
        one.cache_read + other.cache_read,
        one.cache_write + other.cache_write,
        one.reasoning + other.reasoning,
    )


@given(RATES, usages(), usages())
def test_the_cost_of_two_requests_is_the_sum_up_to_one_nano_dollar(rates: Rates, one: Usage, other: Usage) -> None:
    price = Price(models=("m",), provider="p", rates=rates)
    parts = [price.cost(one), price.cost(other)]
    whole = price.cost(total(one, other))
    assert whole is not None and None not in parts
    assert sum(part for part in parts if part is not None) - whole in (0, 1)


@given(RATES, usages(), st.integers(0, 10**7))
@example(Rates(1, 0, 0, 0, 0, 0), Usage(input=1), 0)
def test_a_cost_is_the_exact_sum_rounded_up(rates: Rates, usage: Usage, hour_writes: int) -> None:
    hour_writes = min(hour_writes, usage.cache_write)
    text_tokens = usage.output - usage.reasoning
    exact = Fraction(
        usage.input * rates.input
        + text_tokens * rates.output
        + usage.reasoning * rates.reasoning
        + usage.cache_read * rates.cache_read
        + (usage.cache_write - hour_writes) * rates.cache_write
        + hour_writes * rates.cache_write_1h,
        1000,
    )
    cost = Price(models=("m",), provider="p", rates=rates).cost(usage, cache_write_1h=hour_writes)
    assert type(cost) is int
    assert 0 <= cost - exact < 1
    assert (cost == 0) == (exact == 0)


@given(growing_prices(), usages(), usages())
def test_more_tokens_never_cost_less(price: Price, usage: Usage, more: Usage) -> None:
    one, other = price.cost(usage), price.cost(total(usage, more))
    assert one is not None and other is not None
    assert one <= other


@given(RATE)
def test_a_rate_survives_its_text(rate: int) -> None:
    assert parse_rate(format_rate(rate)) == rate


@given(st.integers(0, 10**18))
def test_a_cost_is_shown_exactly(cost: int) -> None:
    whole, _, decimals = format_cost(cost).removeprefix("$").partition(".")
    assert int(whole) * 10**9 + int(decimals.ljust(9, "0")) == cost


@given(st.lists(written_prices(), max_size=4), st.dictionaries(TEXT.filter(bool), NAMES, max_size=2))
def test_a_written_price_file_reads_as_it_was(prices: list[Price], addresses: dict[str, tuple[str, ...]]) -> None:
    default = Price(models=("*",), rates=Rates(1, 2, 3, 4, 5, 6), origin="f")
    content = PriceFile(tuple(prices), addresses, default)
    read = parse_price_file(render_price_file(content, "a heading\nof two lines"), "f")
    assert (read.prices, read.addresses) == (content.prices, addresses)
    assert read.default == default
    assert PriceBook([read.prices]).version == PriceBook([prices]).version

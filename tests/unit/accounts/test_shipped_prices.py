"""The shipped price file: every price has a source and a date, no value is a float, and the presets have prices."""

from __future__ import annotations

import datetime
import re
import tomllib
from collections.abc import Iterator
from itertools import pairwise

import pytest
from msgspec import Struct, structs

from dragoman.accounts.prices import PriceBook
from dragoman.accounts.prices_file import SHIPPED, load_price_book, shipped_prices
from dragoman.gateway.config import build_config
from dragoman.gateway.presets import PRESETS
from dragoman.model.conversation import Usage

NOW = datetime.datetime(2026, 11, 18, tzinfo=datetime.UTC).timestamp()


def values(value: object) -> Iterator[object]:
    """Yield every value in a tree of Structs, mappings and sequences."""
    yield value
    if isinstance(value, Struct):
        value = structs.asdict(value)
    if isinstance(value, dict):
        value = [*value, *value.values()]
    if isinstance(value, list | tuple):
        for each in value:
            yield from values(each)


@pytest.fixture(name="book", scope="module")
def shipped_book() -> PriceBook:
    return load_price_book([])


def test_there_are_prices_of_the_families() -> None:
    providers = {price.provider for price in shipped_prices().prices}
    assert providers >= {
        "anthropic", "openai", "gemini", "bedrock", "moonshot", "deepseek", "xai", "mistral", "groq", "zai", "minimax", "dashscope", "kiro",
    }  # fmt: skip


def test_every_price_has_a_source_and_a_date() -> None:
    for price in shipped_prices().prices:
        assert re.fullmatch(r"https://\S+|docs/\w+\.md", price.source), price
        assert price.seen is not None, price
        assert price.origin == "shipped"


def test_no_value_is_a_float(book: PriceBook) -> None:
    everything = list(values((shipped_prices(), book.layers)))
    assert len(everything) > 1000
    assert not [value for value in everything if isinstance(value, float)]
    assert not [value for value in values(tomllib.loads(SHIPPED.read_text())) if isinstance(value, float)]
    cost = book.cost(Usage(1, 2, 3, 4, 1), "anthropic", "a", "claude-sonnet-4-5", NOW)
    assert type(cost) is int


def test_no_name_has_two_prices_at_one_time() -> None:
    seen: set[tuple[str, str, object]] = set()
    for price in shipped_prices().prices:
        for model in price.models:
            key = (price.provider, model, price.valid_from)
            assert key not in seen, key
            seen.add(key)


def test_rates_are_in_a_plausible_order() -> None:
    for price in shipped_prices().prices:
        steps = [price.rates, *(tier.rates for tier in reversed(price.tiers))]
        for rates in steps:
            if rates is not None:
                assert rates.cache_read <= rates.input <= rates.output, price
                assert rates.cache_write <= rates.cache_write_1h, price
        for low, high in pairwise(steps):
            assert low is not None and high is not None and low.input < high.input and low.output < high.output, price


def test_the_default_models_of_the_presets_have_a_price(book: PriceBook) -> None:
    """Services with prices that depend on the request, and servers of the user, have none."""
    environ = {"AWS_REGION": "us-east-1", "HOME": "/nowhere"}
    text = "\n".join(f'[upstreams.{name}]\npreset = "{name}"' for name in PRESETS)
    unpriced = set()
    for upstream in build_config(text, None, environ, {}).config.upstreams.values():
        provider = book.provider_of(upstream.base_url, upstream.preset, upstream.dialect.name)
        assert provider == upstream.name  # a preset is found by its own address
        for model in (upstream.default_model, upstream.small_model):
            if not model or book.find(provider, upstream.name, model, NOW) is None:
                unpriced.add(upstream.name)
    assert unpriced == {"openrouter", "vllm", "sglang", "ollama"}


@pytest.mark.parametrize(
    ("provider", "model", "nano"),
    [
        ("anthropic", "claude-sonnet-4-5-20250929", 3_000_000),
        ("anthropic", "claude-opus-4-20250514", 15_000_000),
        ("anthropic", "claude-opus-4-5-20251101", 5_000_000),
        ("openai", "gpt-5-2025-08-07", 1_250_000),
        ("openai", "gpt-5-mini", 250_000),
        ("openai", "gpt-5-mini-2025-08-07", 250_000),
        ("openai", "gpt-5-unheard-of", None),
        ("bedrock", "global.anthropic.claude-sonnet-4-5-20250929-v1:0", 3_000_000),
        ("bedrock", "eu.anthropic.claude-sonnet-4-5-20250929-v1:0", 3_300_000),
        ("bedrock", "us-gov.anthropic.claude-sonnet-4-5-20250929-v1:0", None),
        ("kiro", "anything", 0),
        ("zai-coding-plan", "glm-5.3", 0),
    ],
)
def test_names_of_models(book: PriceBook, provider: str, model: str, nano: int | None) -> None:
    assert book.cost(Usage(input=1000), provider, "up", model, NOW) == nano

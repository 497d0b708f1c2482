"""The import of LiteLLM's and models.dev's lists: what is taken, what is left out, and that nothing is guessed."""

from __future__ import annotations

import json
from datetime import date
from typing import Any

import pytest

from dragoman.accounts import prices_import as reasons
from dragoman.accounts.prices import Price, Rates, Tier
from dragoman.accounts.prices_file import parse_price_file, render_price_file
from dragoman.accounts.prices_import import ImportedPrices, import_prices
from dragoman.errors import LocalMisuse

DAY = date(2026, 11, 18)


def run(document: object, providers: frozenset[str] | None = None) -> ImportedPrices:
    return import_prices(json.dumps(document).encode(), providers=providers, source="list.json", seen=DAY)


def litellm(name: str, provider: str = "openai", mode: str | None = "chat", **fields: Any) -> dict[str, Any]:
    row = {"litellm_provider": provider, "mode": mode, "input_cost_per_token": 3e-06, "output_cost_per_token": 1.5e-05}
    return {name: {key: value for key, value in (row | fields).items() if value is not None}}


def models_dev(**cost: Any) -> dict[str, Any]:
    return {"openai": {"id": "openai", "models": {"m": {"id": "m", "cost": {"input": 3, "output": 15} | cost}}}}


def only(found: ImportedPrices) -> Price:
    (price,) = found.content.prices
    return price


def test_a_row_of_litellm() -> None:
    row = litellm(
        "claude-x",
        "anthropic",
        cache_read_input_token_cost=3e-07,
        cache_creation_input_token_cost=3.75e-06,
        cache_creation_input_token_cost_above_1hr=6e-06,
        output_cost_per_reasoning_token=2e-05,
        input_cost_per_token_above_200k_tokens=6e-06,
        output_cost_per_token_above_200k_tokens=2.25e-05,
        cache_read_input_token_cost_above_200k_tokens=6e-07,
        cache_creation_input_token_cost_above_1hr_above_200k_tokens=1.2e-05,
        input_cost_per_token_priority=1.0,
        input_cost_per_token_above_200k_tokens_priority=1.0,
        input_cost_per_audio_token=1.0,
        deprecation_date="2027-03-01",
        off_peak_pricing={},
    )
    found = run({"sample_spec": {"litellm_provider": "one of …"}} | row)
    assert (found.format, found.imported_names, found.left_out) == ("LiteLLM", 1, {})
    assert only(found) == Price(
        models=("claude-x",),
        provider="anthropic",
        rates=Rates(3_000_000, 15_000_000, 300_000, 3_750_000, 6_000_000, 20_000_000),
        tiers=(Tier(200_000, Rates(6_000_000, 22_500_000, 600_000, 3_750_000, 12_000_000, 20_000_000)),),
        deprecation_date=date(2027, 3, 1),
        source="LiteLLM: list.json",
        seen=DAY,
        note="the price at peak hours; other hours cost less",
    )


def test_steps_of_litellm() -> None:
    steps = [
        {"range": [32000.0, 128000.0], "input_cost_per_token": 2e-06, "output_cost_per_token": 4e-06},
        {"range": [0, 32000.0], "input_cost_per_token": 1e-06, "output_cost_per_token": 2e-06},
    ]
    row = litellm(
        "dashscope/q", "dashscope", tiered_pricing=steps, input_cost_per_token=None, output_cost_per_token=None
    )
    price = only(run(row))
    assert price.rates is not None
    assert (price.models, price.rates.input, price.rates.output) == (("q",), 1_000_000, 2_000_000)
    assert [(tier.above_tokens, tier.rates.input) for tier in price.tiers] == [(32_000, 2_000_000)]


@pytest.mark.parametrize(
    ("name", "provider", "ours"),
    [
        ("gpt-5", "openai", ("openai", "gpt-5")),
        ("gemini/gemini-x", "gemini", ("gemini", "gemini-x")),
        ("openrouter/anthropic/claude-x", "openrouter", ("openrouter", "anthropic/claude-x")),
        ("groq/openai/gpt-oss", "groq", ("groq", "openai/gpt-oss")),
        ("us.anthropic.claude-x", "bedrock_converse", ("bedrock", "us.anthropic.claude-x")),
        ("fireworks_ai/accounts/x/models/y", "fireworks_ai", ("fireworks", "accounts/x/models/y")),
        ("vertex_ai/claude-x", "vertex_ai-anthropic_models", ("vertex_ai", "claude-x")),
    ],
)
def test_names_keep_all_but_the_prefix_of_their_own_provider(name: str, provider: str, ours: tuple[str, str]) -> None:
    price = only(run(litellm(name, provider)))
    assert (price.provider, *price.models) == ours


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (litellm("x", mode="embedding"), reasons.NOT_TEXT),
        (litellm("x", mode=None), reasons.NOT_TEXT),
        (litellm("x", "acme"), reasons.UNKNOWN_PROVIDER),
        (litellm("x", input_cost_per_token=None), reasons.NO_PRICE),
        (litellm("x", output_cost_per_token="1"), reasons.NO_PRICE),
        (litellm("x", input_cost_per_token=0.0, output_cost_per_token=0), reasons.ZERO),
        (litellm("x", input_cost_per_token=-1e-6), reasons.NOT_WHOLE),
        (litellm("x", input_cost_per_token=1.5e-12), reasons.NOT_WHOLE),
        (litellm("x", input_cost_per_token=1), reasons.NOT_WHOLE),
        (litellm("x-*"), reasons.WILDCARD),
        (litellm("bedrock/us-east-1/x", "bedrock"), reasons.ONE_REGION),
        (litellm("x", tiered_pricing=[{"input_cost_per_token": 1e-6}]), reasons.NO_PRICE),
    ],
)
def test_what_is_left_out_and_why(row: dict[str, Any], reason: str) -> None:
    found = run(row, frozenset({"openai", "bedrock"}))
    assert (found.imported_names, found.content.prices, found.left_out) == (0, (), {reason: 1})


def test_a_cache_of_0_is_not_a_free_cache() -> None:
    price = only(run(litellm("x", cache_read_input_token_cost=0.0, cache_creation_input_token_cost=0)))
    assert price.rates == Rates(3_000_000, 15_000_000, 3_000_000, 3_000_000, 3_000_000, 15_000_000)
    assert price.assumed == ("cache_read", "cache_write")


def test_equal_prices_are_one_and_different_ones_none() -> None:
    rows = litellm("b") | litellm("openai/b") | litellm("a")  # b is there twice, with one price
    price = only(run(rows))
    assert (price.models, run(rows).imported_names) == (("a", "b"), 2)
    rows |= (
        litellm("a", input_cost_per_token=1e-06) | litellm("openai/a") | litellm("openai/b", input_cost_per_token=9e-06)
    )
    found = run(rows)
    assert (found.imported_names, found.left_out) == (0, {reasons.TWO_PRICES: 4})


def test_a_model_of_models_dev() -> None:
    tiers = [
        {"input": 6, "output": 22.5, "cache_read": 0.6, "tier": {"type": "context", "size": 272000}},
        {"input": 99, "output": 99, "tier": {"type": "service"}},
    ]
    cost = {"cache_read": 0.3, "cache_write": 3.75, "reasoning": 20, "input_audio": 9, "tiers": tiers}
    found = run(models_dev(**cost, context_over_200k={"input": 6, "output": 22.5}))
    assert found.format == "models.dev"
    price = only(found)
    assert price.rates == Rates(3_000_000, 15_000_000, 300_000, 3_750_000, 3_750_000, 20_000_000)
    assert price.tiers == (Tier(272_000, Rates(6_000_000, 22_500_000, 600_000, 3_750_000, 3_750_000, 20_000_000)),)
    assert price.source == "models.dev: list.json"


def test_the_older_tier_of_models_dev() -> None:
    price = only(run(models_dev(context_over_200k={"input": 6, "output": 22.5})))
    assert [(tier.above_tokens, tier.rates.output) for tier in price.tiers] == [(200_000, 22_500_000)]


def test_providers_of_models_dev() -> None:
    model = {"cost": {"input": 1, "output": 2}, "modalities": {"output": ["text"]}}
    image = {"cost": {"input": 1, "output": 2}, "modalities": {"output": ["image"]}}
    document = {
        "google": {"models": {"g": model, "i": image, "n": {}}},
        "moonshotai": {"api": "https://api.moonshot.ai/v1", "models": {"k": model}},
        "acme": {"api": "https://acme.example/v1/", "models": {"a": model}},
        "cloud": {"api": "https://${HOST}/v1", "models": {"c": model}},
    }
    found = run(document, frozenset({"gemini", "moonshot"}))
    assert [(price.provider, price.models) for price in found.content.prices] == [
        ("gemini", ("g",)),
        ("moonshot", ("k",)),
    ]
    assert found.left_out == {reasons.UNKNOWN_PROVIDER: 2, reasons.NOT_TEXT: 1, reasons.NO_PRICE: 1}
    assert found.content.addresses == {}
    everything = run(document)
    assert everything.content.addresses == {"moonshot": ("api.moonshot.ai/v1/*",), "acme": ("acme.example/v1/*",)}


def test_numbers_are_exact() -> None:
    text = '{"openai": {"models": {"m": {"cost": {"input": 0.1, "output": 0.000001, "cache_read": 0.3e0}}}}}'
    price = only(import_prices(text.encode(), providers=None, source="s", seen=DAY))
    assert price.rates == Rates(100_000, 1, 300_000, 100_000, 100_000, 1)


@pytest.mark.parametrize("data", [b"", b"[1, 2]", b"{}", b'{"a": {"b": 1}}', b"\xff", b"[[[["])
def test_other_files_are_refused(data: bytes) -> None:
    with pytest.raises(LocalMisuse, match=r"neither LiteLLM|not JSON"):
        import_prices(data, providers=None, source="s", seen=DAY)


def test_what_was_imported_is_a_price_file() -> None:
    rows = litellm("a", input_cost_per_token_above_128k_tokens=9e-06) | litellm("b", "groq", deprecation_date="soon")
    content = run(rows | litellm('odd "name" \\ \n', "xai")).content
    read = parse_price_file(render_price_file(content, "imported"), "")
    assert read.prices == content.prices

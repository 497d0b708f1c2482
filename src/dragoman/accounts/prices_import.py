"""Import the two public price lists that users may have fetched: LiteLLM's model_prices JSON, models.dev's api.json.

Pure. Nothing is guessed: a row that has no price, a price of 0 (which may mean free, a subscription or unknown), or two
different prices is left out, and counted with its reason. Prices of service tiers (batch, flex, priority), of audio and
of images are not imported.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from datetime import date
from decimal import Decimal
from typing import TypeAlias, TypeGuard

from msgspec import Struct, structs

from dragoman.accounts.prices import Price, Tier
from dragoman.accounts.prices_file import PriceFile, fill_rates
from dragoman.errors import LocalMisuse
from dragoman.model.patterns import is_pattern
from dragoman.wire import jsonio

PriceTable: TypeAlias = dict[str, object]

# What other lists call the providers of our price file.
_PROVIDERS = {
    "alibaba": "dashscope",
    "amazon-bedrock": "bedrock",
    "bedrock_converse": "bedrock",
    "cohere_chat": "cohere",
    "fireworks-ai": "fireworks",
    "fireworks_ai": "fireworks",
    "google": "gemini",
    "google-vertex": "vertex_ai",
    "google-vertex-anthropic": "vertex_ai",
    "moonshotai": "moonshot",
    "nvidia_nim": "nvidia",
    "text-completion-openai": "openai",
    "together_ai": "together",
    "togetherai": "together",
}
_MODES = ("chat", "responses", "completion")
_PICO_PER_DOLLAR = 10**12  # a rate of one dollar a token
_PICO_PER_MILLION = 10**6  # a rate of one dollar per million tokens
_HIGHEST = 10**12  # the highest rate that a price file can have, exclusive
_ABOVE = re.compile(r"_above_(\d+)k_tokens\Z")

NO_PRICE = "no price of input or output"
ZERO = "a price of 0, which may mean free, a subscription or unknown"
NOT_TEXT = "not a model that returns text"
UNKNOWN_PROVIDER = "a provider that Dragoman does not know"
ONE_REGION = "a price of one region or commitment"
TWO_PRICES = "a name with different prices"
WILDCARD = "a name with a wildcard"
NOT_WHOLE = "a price that is negative, too high, or not a whole number of pico-dollars"


class ImportedPrices(Struct, frozen=True):
    """The content of a price list: rows of one price have one `Price` with all their names.

    `left_out` counts the rows that were not imported, by reason.
    """

    content: PriceFile
    format: str
    imported_names: int  # of models
    left_out: dict[str, int]


class _RowSkipped(Exception):
    """A row that is not imported; the text is the reason."""


class _Row(Struct, frozen=True):
    """One model of a list."""

    provider: str
    model: str
    rates: dict[str, int]
    tiers: dict[int, dict[str, int]] = {}
    deprecation_date: date | None = None
    note: str = ""


def import_prices(data: bytes, *, providers: Collection[str] | None, source: str, seen: date) -> ImportedPrices:
    """Return the prices of a list, of these providers; None: of all.

    `source` and `seen` are noted with each price. Raises LocalMisuse if the text is none of the two formats.
    """
    try:
        document = jsonio.decode_exact(data)
    except jsonio.JsonError as error:
        raise LocalMisuse(f"not JSON: {error}") from None
    tables = {name: table for name, table in document.items() if _is_table(table)} if _is_table(document) else {}
    left_out: Counter[str] = Counter()
    addresses: dict[str, tuple[str, ...]] = {}
    if any(_is_table(table.get("models")) for table in tables.values()):
        name, rows = "models.dev", _models_dev(tables, providers, left_out)
        addresses = _addresses(tables) if providers is None else {}
    elif any("litellm_provider" in table for table in tables.values()):
        name, rows = "LiteLLM", _litellm(tables, providers, left_out)
    else:
        raise LocalMisuse("neither LiteLLM's model_prices_and_context_window.json nor models.dev's api.json")
    unique = _unique(rows, left_out)
    prices = _merged(unique, f"{name}: {source}", seen)
    return ImportedPrices(PriceFile(prices, addresses), name, len(unique), dict(left_out.most_common()))


def _unique(rows: Iterator[_Row], left_out: Counter[str]) -> list[_Row]:
    """Return the rows without repetitions. A name with different prices is left out."""
    known: dict[tuple[str, str], _Row | None] = {}
    for row in rows:
        name = (row.provider, row.model)
        before = known.get(name, row)
        if before is None or (before.rates, before.tiers) != (row.rates, row.tiers):
            left_out[TWO_PRICES] += 1 if before is None else 2
            known[name] = None
        else:
            known[name] = before
    return [row for row in known.values() if row is not None]


def _merged(rows: list[_Row], source: str, seen: date) -> tuple[Price, ...]:
    """Return one price for all models of a provider that cost the same, in the order of the alphabet."""
    prices: dict[object, Price] = {}
    for row in sorted(rows, key=lambda row: (row.provider, row.model)):
        price = Price(
            models=(),
            provider=row.provider,
            rates=fill_rates(row.rates),
            tiers=tuple(Tier(above, fill_rates(row.tiers[above])) for above in sorted(row.tiers, reverse=True)),
            assumed=tuple(name for name in ("cache_read", "cache_write") if name not in row.rates),
            deprecation_date=row.deprecation_date,
            source=source,
            seen=seen,
            note=row.note,
        )
        known = prices.get(price, price)
        prices[price] = structs.replace(known, models=(*known.models, row.model))
    return tuple(prices.values())


def _provider(name: str, wanted: Collection[str] | None) -> str:
    """Return our name of a provider. Raises _LeftOut if it is not wanted."""
    # LiteLLM splits a cloud by makers: vertex_ai-anthropic_models.
    provider = "vertex_ai" if name.startswith("vertex_ai-") else _PROVIDERS.get(name, name)
    if wanted is not None and provider not in wanted:
        raise _RowSkipped(UNKNOWN_PROVIDER)
    return provider


def _rates(table: Mapping[str, object], names: Mapping[str, str], unit: int) -> dict[str, int]:
    """Return the rates of a table; `names` has our name of each field. Raises _LeftOut."""
    rates: dict[str, int] = {}
    for field, name in names.items():
        value = table.get(field)
        if isinstance(value, int | Decimal) and not isinstance(value, bool):
            rate = Decimal(value) * unit
            if not rate.is_finite() or rate != int(rate) or not 0 <= rate < _HIGHEST:
                raise _RowSkipped(NOT_WHOLE)
            rates[name] = int(rate)
    # A cache that is free beside a paid input means that the list does not know its price.
    return {name: rate for name, rate in rates.items() if rate or not (name.startswith("cache") and rates.get("input"))}


def _check(model: str, rates: dict[str, int]) -> None:
    if not {"input", "output"} <= rates.keys():
        raise _RowSkipped(NO_PRICE)
    if not rates["input"] and not rates["output"]:
        raise _RowSkipped(ZERO)
    if is_pattern(model):
        raise _RowSkipped(WILDCARD)


def _day(value: object) -> date | None:
    try:
        return date.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        return None


def _is_table(value: object) -> TypeGuard[PriceTable]:
    return isinstance(value, dict)


# --- LiteLLM: dollars a token, by the name of the model, often with the provider in front


_LITELLM = {
    "input_cost_per_token": "input",
    "output_cost_per_token": "output",
    "cache_read_input_token_cost": "cache_read",
    "cache_creation_input_token_cost": "cache_write",
    "cache_creation_input_token_cost_above_1hr": "cache_write_1h",
    "output_cost_per_reasoning_token": "reasoning",
}


def _litellm(
    tables: Mapping[str, PriceTable], providers: Collection[str] | None, left_out: Counter[str]
) -> Iterator[_Row]:
    for name, table in tables.items():
        if name == "sample_spec":  # it describes the format
            continue
        try:
            yield _litellm_row(name, table, providers)
        except _RowSkipped as reason:
            left_out[str(reason)] += 1


def _litellm_row(name: str, table: PriceTable, providers: Collection[str] | None) -> _Row:
    theirs = str(table.get("litellm_provider", ""))
    provider = _provider(theirs, providers)
    if table.get("mode") not in _MODES:
        raise _RowSkipped(NOT_TEXT)
    model = name.removeprefix(f"{provider}/").removeprefix(f"{theirs}/")
    if provider == "bedrock" and "/" in model:
        raise _RowSkipped(ONE_REGION)
    rates = _rates(table, _LITELLM, _PICO_PER_DOLLAR)
    tiers = _litellm_tiers(table, rates)
    steps = table.get("tiered_pricing")
    if isinstance(steps, list):
        rates, tiers = _litellm_steps([step for step in steps if _is_table(step)], rates)
    _check(model, rates)
    note = "the price at peak hours; other hours cost less" if "off_peak_pricing" in table else ""
    return _Row(provider, model, rates, tiers, _day(table.get("deprecation_date")), note)


def _litellm_tiers(table: PriceTable, base: dict[str, int]) -> dict[int, dict[str, int]]:
    """Return the rates of fields such as `input_cost_per_token_above_200k_tokens`."""
    sizes = {found[1] for field in table if (found := _ABOVE.search(field))}
    tiers: dict[int, dict[str, int]] = {}
    for size in sizes:
        names = {f"{field}_above_{size}k_tokens": name for field, name in _LITELLM.items()}
        rates = _rates(table, names, _PICO_PER_DOLLAR)
        if "input" in rates or "output" in rates:
            tiers[int(size) * 1000] = {**base, **rates}
    return tiers


def _litellm_steps(steps: list[PriceTable], base: dict[str, int]) -> tuple[dict[str, int], dict[int, dict[str, int]]]:
    """Return the rates and tiers of `tiered_pricing`: a list of rates with ranges of tokens, such as [0, 32000]."""
    found: dict[int, dict[str, int]] = {}
    for step in steps:
        begins = step.get("range")
        if not isinstance(begins, list) or not begins or not isinstance(begins[0], int | Decimal):
            raise _RowSkipped(NO_PRICE)
        found[int(begins[0])] = {**base, **_rates(step, _LITELLM, _PICO_PER_DOLLAR)}
    first = found.pop(min(found, default=0), base)
    return first, found


# --- models.dev: dollars per million tokens, by provider and model


_MODELS_DEV = {name: name for name in ("input", "output", "cache_read", "cache_write", "reasoning")}


def _models_dev(
    tables: Mapping[str, PriceTable], providers: Collection[str] | None, left_out: Counter[str]
) -> Iterator[_Row]:
    for name, table in tables.items():
        models = table.get("models")
        for model, entry in models.items() if _is_table(models) else ():
            try:
                yield _models_dev_row(_provider(name, providers), model, entry if _is_table(entry) else {})
            except _RowSkipped as reason:
                left_out[str(reason)] += 1


def _models_dev_row(provider: str, model: str, entry: PriceTable) -> _Row:
    modalities, cost = entry.get("modalities"), entry.get("cost")
    outputs = modalities.get("output") if _is_table(modalities) else None
    if isinstance(outputs, list) and "text" not in outputs:
        raise _RowSkipped(NOT_TEXT)
    if not _is_table(cost):
        raise _RowSkipped(NO_PRICE)
    rates = _rates(cost, _MODELS_DEV, _PICO_PER_MILLION)
    _check(model, rates)
    tiers: dict[int, dict[str, int]] = {}
    listed, older = cost.get("tiers"), cost.get("context_over_200k")
    for step in listed if isinstance(listed, list) else ():
        tier = step.get("tier") if _is_table(step) else None
        size = tier.get("size") if _is_table(tier) and tier.get("type") == "context" else None
        if isinstance(size, int):
            tiers[size] = {**rates, **_rates(step, _MODELS_DEV, _PICO_PER_MILLION)}
    if not listed and _is_table(older):
        tiers[200_000] = {**rates, **_rates(older, _MODELS_DEV, _PICO_PER_MILLION)}
    return _Row(provider, model, rates, tiers)


def _addresses(tables: Mapping[str, PriceTable]) -> dict[str, tuple[str, ...]]:
    """Return the addresses of the providers that have one, such as `api.example.com/v1/*`."""
    found: dict[str, tuple[str, ...]] = {}
    for name, table in tables.items():
        address = str(table.get("api") or "").partition("://")[2].rstrip("/").lower()
        if address and not is_pattern(address) and "{" not in address:
            found[_provider(name, None)] = (f"{address}/*",)
    return found

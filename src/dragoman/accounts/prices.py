"""Prices of tokens, and the cost of a request. Pure.

Theory of operation. Money is whole numbers: a *rate* is in pico-dollars a token (one dollar per million tokens is
1,000,000), a *cost* in nano-dollars. A cost is the exact sum of its tokens in pico-dollars, rounded up once, to the
next nano-dollar. So it is never less than the exact sum, less than one nano-dollar above it, and 0 only if all is free.

A `PriceBook` has layers, such as the user's file and the shipped file. A price belongs to a provider (a preset, a
dialect, or a service that is known by its address) or to one upstream of the configuration. The first price counts, in
this order:

1. by layer;
2. the price of the upstream before the price of its provider;
3. an exact name before a pattern, and the pattern with the most characters that are not wildcards first;
4. the latest `valid_from` that has passed; a price of the future does not count.

Names are compared as a whole: `openai/gpt-5` and `gpt-5` are different models, because services have different prices
for one name. A model without a price has no cost: None, never 0. Prices of a plan (a subscription) cost 0 by decision.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from functools import cached_property
from hashlib import sha256
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from dragoman.model.conversation import Usage
from dragoman.model.patterns import compiled_pattern, is_pattern, matches_pattern

PICO_PER_NANO = 1000
PICO_PER_MICRO = 1_000_000  # one dollar per million tokens, in pico-dollars a token
NANO_PER_DOLLAR = 1_000_000_000
_WILDCARD = re.compile(r"[*?]")
_MAX_CACHED = 4096  # names are chosen by clients
_LONGEST_CACHED = 256
_VERSION_LENGTH = 12


class Rates(Struct, frozen=True):
    """The price of one token of each kind, in pico-dollars."""

    input: int
    output: int
    cache_read: int
    cache_write: int
    cache_write_1h: int  # kept for an hour instead of some minutes
    reasoning: int


class Tier(Struct, frozen=True):
    """The rates of a whole request with more than `above_tokens` tokens of input, those of a cache included."""

    above_tokens: int
    rates: Rates


class Price(Struct, frozen=True, kw_only=True):
    """The price of some models at a provider, or at one upstream.

    `rates` of a plan are for comparison, and may be None. `assumed` has the names of cache rates that are not known:
    the input rate is used.
    """

    models: tuple[str, ...]  # names and patterns
    provider: str = ""
    upstream: str = ""
    rates: Rates | None
    tiers: tuple[Tier, ...] = ()  # the highest first
    plan: bool = False
    assumed: tuple[str, ...] = ()
    valid_from: date | None = None
    deprecation_date: date | None = None  # when the provider stops serving the models
    source: str = ""
    seen: date | None = None  # when the source was read
    note: str = ""
    origin: str = ""  # the name of the layer

    def cost(self, usage: Usage, *, cache_write_1h: int = 0) -> int | None:
        """Return the cost in nano-dollars; 0 under a plan, None without rates.

        `cache_write_1h` is the part of `usage.cache_write` that is kept for an hour.
        """
        return 0 if self.plan else self.list_cost(usage, cache_write_1h=cache_write_1h)

    def list_cost(self, usage: Usage, *, cache_write_1h: int = 0) -> int | None:
        """Return the cost by the rates, also under a plan; None without rates."""
        rates = self.rates
        if rates is None:
            return None
        written = usage.cache_write
        if self.tiers:
            prompt = usage.input + usage.cache_read + written
            rates = next((tier.rates for tier in self.tiers if prompt > tier.above_tokens), rates)
        pico = usage.input * rates.input + usage.output * rates.output
        if usage.cache_read or written:
            hour_writes = min(cache_write_1h, written)
            pico += usage.cache_read * rates.cache_read + written * rates.cache_write
            pico += hour_writes * (rates.cache_write_1h - rates.cache_write)
        if usage.reasoning and rates.reasoning != rates.output:
            pico += min(usage.reasoning, usage.output) * (rates.reasoning - rates.output)
        return -(-pico // PICO_PER_NANO)


class PriceBook:
    """All prices, in layers; the first layer is the strongest. Immutable, apart from its cache of results.

    `addresses` has patterns of the addresses of providers, such as `api.deepseek.com/*`. `default` is the price of
    models that no layer knows; None: their price is unknown.
    """

    def __init__(
        self,
        layers: Sequence[Sequence[Price]],
        *,
        addresses: Mapping[str, Sequence[str]] | None = None,
        default: Price | None = None,
    ) -> None:
        self.layers = tuple(tuple(layer) for layer in layers)
        self.default = default
        self.addresses = {name: tuple(patterns) for name, patterns in (addresses or {}).items()}
        self._indexes = [_Index(layer) for layer in self.layers]
        self._found: dict[tuple[str, str, str], tuple[tuple[int, Price], ...]] = {}

    def __iter__(self) -> Iterator[Price]:
        return (price for layer in self.layers for price in layer)

    @cached_property
    def version(self) -> str:
        """A short digest of everything that a cost depends on. Sources, notes and comments do not change it."""
        content = [
            [_priced(price) for layer in self.layers for price in (*layer, None)],
            _priced(self.default),
            sorted(self.addresses.items()),
        ]
        return sha256(msgspec.msgpack.encode(content)).hexdigest()[:_VERSION_LENGTH]

    def find(self, provider: str, upstream: str, model: str, now: float) -> Price | None:
        """Return the price of a model at this moment, in seconds since the epoch; None if it is unknown."""
        candidates = self._found.get((provider, upstream, model))
        if candidates is None:
            candidates = self._search(provider, upstream, model)
        for begins, price in candidates:
            if begins <= now:
                return price
        return self.default

    def cost(
        self, usage: Usage, provider: str, upstream: str, model: str, now: float, *, cache_write_1h: int = 0
    ) -> int | None:
        """Return the cost of a request in nano-dollars; None if the price is unknown."""
        price = self.find(provider, upstream, model, now)
        return None if price is None else price.cost(usage, cache_write_1h=cache_write_1h)

    def provider_of(self, base_url: str, preset: str, dialect: str) -> str:
        """Return the provider of an upstream: the one of its address, else its preset, else its dialect.

        The address comes first: the same preset or dialect may be used for the service of another company.
        """
        url = urlsplit(base_url.lower())
        address = f"{url.hostname or ''}{url.path.rstrip('/')}/"
        matches = [
            (_literal_length(pattern), name)
            for name, patterns in self.addresses.items()
            for pattern in patterns
            if matches_pattern(pattern, address)
        ]
        # Of two equally long patterns the first counts.
        return max(matches, key=lambda match: match[0])[1] if matches else preset or dialect

    def _search(self, provider: str, upstream: str, model: str) -> tuple[tuple[int, Price], ...]:
        prices = [
            price
            for index in self._indexes
            for scope in (("", upstream), (provider, ""))
            for price in index.matches(scope, model)
        ]
        found = tuple((_seconds(price.valid_from), price) for price in prices)
        if len(model) <= _LONGEST_CACHED:
            if len(self._found) >= _MAX_CACHED:
                self._found.clear()
            self._found[provider, upstream, model] = found
        return found


class _Index:
    """The prices of one layer, by provider or upstream and by name. Both are pairs: one of them is empty."""

    def __init__(self, prices: Sequence[Price]) -> None:
        self._exact: dict[tuple[str, str, str], list[Price]] = {}
        self._patterns: dict[tuple[str, str], list[tuple[str, Price]]] = {}
        for price in sorted(prices, key=lambda price: price.valid_from or date.min, reverse=True):
            scope = (price.provider, price.upstream)
            for model in price.models:
                if is_pattern(model):
                    self._patterns.setdefault(scope, []).append((model, price))
                else:
                    self._exact.setdefault((*scope, model), []).append(price)
        for patterns in self._patterns.values():  # a stable sort: equal patterns stay in the order of valid_from
            patterns.sort(key=lambda row: _literal_length(row[0]), reverse=True)

    def matches(self, scope: tuple[str, str], model: str) -> Iterator[Price]:
        """Yield the prices of a model in their order."""
        yield from self._exact.get((*scope, model), ())
        for pattern, price in self._patterns.get(scope, ()):
            begin = _WILDCARD.split(pattern, maxsplit=1)[0]  # cheaper than an expression, which may not be compiled yet
            if model.startswith(begin) and compiled_pattern(pattern).fullmatch(model):
                yield price


def _literal_length(pattern: str) -> int:
    return len(_WILDCARD.sub("", pattern))


def _seconds(day: date | None) -> int:
    """Return when a day begins in UTC, in seconds since the epoch; 0 for None."""
    return 0 if day is None else int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp())


def _priced(price: Price | None) -> object:
    if price is None:
        return None
    scope = (price.provider, price.upstream, price.models)
    return (*scope, price.rates, price.tiers, price.plan, str(price.valid_from or ""))


# --- money as text


def format_rate(rate: int) -> str:
    """Return a rate as dollars per million tokens, exactly: `3`, `0.075`."""
    return _decimal(rate, PICO_PER_MICRO, 0)


def format_cost(cost: int) -> str:
    """Return a cost as dollars, exactly, with at least two decimals: `$0.0012`, `$3.00`."""
    return f"${_decimal(cost, NANO_PER_DOLLAR, 2)}"


def _decimal(number: int, unit: int, least: int) -> str:
    whole, rest = divmod(number, unit)
    decimals = f"{rest:0{len(str(unit)) - 1}d}".rstrip("0").ljust(least, "0")
    return f"{whole:d}.{decimals}" if decimals else f"{whole:d}"

"""Find problems of the prices of a configuration: models without a price, old prices, retired models."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import date, datetime

from msgspec import Struct, structs

from dragoman.accounts.prices import Price, PriceBook, format_rate
from dragoman.cli.layout import count_of
from dragoman.cli.terminal import one_line, print_notice, say
from dragoman.gateway.config import Config
from dragoman.gateway.upstream_config import Upstream
from dragoman.model.patterns import is_pattern
from dragoman.wire import jsonio

EXIT_UNKNOWN = 3  # a model of the configuration has no price
_OLD = 180  # days
_TINY = 100  # pico-dollars a token, $0.0001 per million: nothing costs so little


class PriceProblem(Struct, frozen=True):
    """One problem. `kind` is `unknown`, `deprecated`, `old`, `assumed` or `tiny`."""

    kind: str
    upstream: str
    model: str
    message: str


def check_prices(config: Config, book: PriceBook, now: datetime, *, as_json: bool) -> int:
    """Print the problems; return 3 if a model that the configuration names has no price, else 0."""
    names = [(upstream, model) for upstream in config.upstreams.values() for model in _models(config, upstream)]
    problems = [
        problem
        for upstream, model in names
        for problem in _problems(upstream, model, _find(book, upstream, model, now), now.date())
    ]
    problems += _tiny(book)
    unknown = sum(problem.kind == "unknown" for problem in problems)
    if as_json:
        rows = [structs.asdict(problem) for problem in problems]
        document = {"version": book.version, "models": len(names), "unknown": unknown, "problems": rows}
        print(jsonio.encode_pretty(document).decode())
        return EXIT_UNKNOWN if unknown else 0
    for problem in problems:
        say(f"{'error' if problem.kind == 'unknown' else 'warning'}: {one_line(problem.message)}", sys.stderr)
    print_notice(f"{_summary(book, now.date())}; {len(names) - unknown} of {len(names)} configured models have a price")
    if unknown:
        print_notice("docs/prices.md explains how to add a price. Patterns are not checked, only names.")
    return EXIT_UNKNOWN if unknown else 0


def _models(config: Config, upstream: Upstream) -> list[str]:
    """Return the models that the configuration names for an upstream."""
    own = [*upstream.models, upstream.default_model, upstream.small_model]
    routed = [target.model for target in config.routes.configured_targets() if target.upstream == upstream.name]
    return [name for name in dict.fromkeys([*own, *routed]) if name and not is_pattern(name)]


def _find(book: PriceBook, upstream: Upstream, model: str, now: datetime) -> Price | None:
    provider = book.provider_of(upstream.base_url, upstream.preset, upstream.dialect.name)
    return book.find(provider, upstream.name, model, int(now.timestamp()))


def _problems(upstream: Upstream, model: str, price: Price | None, today: date) -> Iterator[PriceProblem]:
    def problem(kind: str, message: str) -> PriceProblem:
        return PriceProblem(kind, upstream.name, model, f"{upstream.name}: {model}: {message}")

    if price is None:
        yield problem("unknown", "its price is unknown, so its requests have no cost")
        return
    if price.deprecation_date is not None and price.deprecation_date <= today:
        yield problem("deprecated", f"its provider planned to stop serving it on {price.deprecation_date}")
    if price.seen is not None and (today - price.seen).days > _OLD:
        yield problem("old", f"its price was read {count_of((today - price.seen).days, 'day')} ago, on {price.seen}")
    if price.assumed and not price.plan:
        what = " and ".join(name.replace("_", " ") for name in price.assumed)
        yield problem("assumed", f"no rate for {what}: the input rate is used")


def _tiny(book: PriceBook) -> Iterator[PriceProblem]:
    for price in book:
        rate = price.rates.input if price.rates is not None else 0
        if 0 < rate < _TINY:
            message = f"an input rate of ${format_rate(rate)} per million tokens: is that a price per token?"
            yield PriceProblem("tiny", price.upstream, price.models[0], f"{price.origin}: {price.models[0]}: {message}")


def _summary(book: PriceBook, today: date) -> str:
    """Return how many prices each layer has, and how old the oldest is."""
    parts = []
    for layer in book.layers:
        days = [(today - price.seen).days for price in layer if price.seen is not None]
        age = f", read up to {count_of(max(days), 'day')} ago" if days else ""
        parts += [f"{layer[0].origin}: {count_of(len(layer), 'price')}{age}"] if layer else []
    return "; ".join(parts)

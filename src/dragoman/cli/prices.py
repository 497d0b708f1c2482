"""`dragoman prices`: list the prices of models, import a public price list, or find what is wrong with prices.

Nothing is fetched: `import` reads a file that the user has fetched.
"""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from dragoman.accounts.prices import Price, PriceBook, Rates, format_rate
from dragoman.accounts.prices_file import (
    RATES,
    PriceFileError,
    load_price_book,
    parse_price_file,
    render_price_file,
    shipped_prices,
)
from dragoman.cli.layout import count_of
from dragoman.cli.prices_check import check_prices
from dragoman.cli.terminal import (
    EXIT_BAD_CONFIG,
    CommandError,
    Paint,
    one_line,
    print_error,
    print_notice,
    read_input,
    replace_unencodable,
    table_lines,
)
from dragoman.errors import LocalMisuse
from dragoman.gateway.config import load_config, price_files
from dragoman.gateway.presets import PRESETS
from dragoman.gateway.secrets import app_folders
from dragoman.model.patterns import is_pattern, matches_pattern
from dragoman.wire import jsonio
from dragoman.wire.jsonio import Json

_HEADS = {"input": "INPUT", "output": "OUTPUT", "cache_read": "CACHE READ", "cache_write": "CACHE WRITE"}
_LONGEST_NAMES = 48  # characters of the names of one row
_HEADING = """Prices in dollars per million tokens; docs/prices.md explains the format.
Written by `dragoman prices import` on {day}, from the {format} list {source}.
"""


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options of `dragoman prices`."""
    parser.add_argument(
        "action", nargs="?", default="list", choices=("list", "import", "check"), help="what to do (default: list)"
    )
    parser.add_argument("file", nargs="?", metavar="FILE", help="import: a list of LiteLLM or models.dev, - for input")
    parser.add_argument(
        "--config", metavar="FILE", type=Path, help="the configuration (default: DRAGOMAN_CONFIG, then the usual place)"
    )
    parser.add_argument("--model", metavar="GLOB", help="list: only models that match, such as 'gpt-5*'")
    parser.add_argument("--provider", metavar="NAME", help="list, import: only this provider")
    parser.add_argument("--json", action="store_true", help="list, check: print JSON")
    parser.add_argument(
        "--output", metavar="FILE", type=Path, help="import: write this file, not the user's price file"
    )
    parser.add_argument("--all", action="store_true", help="import: also providers that Dragoman does not know")
    parser.add_argument("--force", action="store_true", help="import: replace an existing file")


def run(arguments: Namespace) -> int:
    """Run `dragoman prices`; return the exit status."""
    replace_unencodable(sys.stdout)
    if (arguments.file is not None) != (arguments.action == "import"):
        is_missing = arguments.file is None
        why = "import needs the FILE to read" if is_missing else f"{arguments.action} takes no FILE"
        raise CommandError(f"{why}: dragoman prices import FILE", 2)
    if arguments.action == "import":
        return _import(arguments)
    config = load_config(arguments.config, os.environ)
    try:
        book = load_price_book(price_files(config, os.environ))
    except PriceFileError as error:
        return print_error("a price file is not valid.", EXIT_BAD_CONFIG, error)
    if arguments.action == "list":
        return _list(book, arguments)
    return check_prices(config, book, datetime.now(UTC), as_json=arguments.json)


# --- list


def _list(book: PriceBook, arguments: Namespace) -> int:
    prices = [price for price in book if _is_wanted(price, arguments.model, arguments.provider)]
    if arguments.json:
        rows = [_row(price) for price in prices]
        print(jsonio.encode_pretty({"version": book.version, "prices": rows}).decode())
        return 0
    if not prices:
        hint = "The price of such a model is unknown. `dragoman prices` lists all prices."
        return print_error(f"no price matches. {hint}", 1)
    for line in _page(prices, Paint(sys.stdout)):
        print(line)
    print_notice(
        f"dollars per million tokens; version {book.version}; in parentheses: the input rate, in place of none"
    )
    return 0


def _is_wanted(price: Price, model: str | None, provider: str | None) -> bool:
    if provider is not None and provider not in (price.provider, price.upstream):
        return False
    if model is None or any(matches_pattern(model, name) for name in price.models):
        return True
    # A whole name also finds the prices whose patterns it matches, apart from those of all models.
    return not is_pattern(model) and any(name != "*" and matches_pattern(name, model) for name in price.models)


def _page(prices: list[Price], paint: Paint) -> Iterator[str]:
    rows = [("PROVIDER", "MODEL", *_HEADS.values(), "FROM")]
    for price in prices:
        scope = price.provider or f"upstream {price.upstream}"
        costs = ("plan", "", "", "") if price.plan else _cells(price.rates, price.assumed)
        rows.append((one_line(scope), _names(price.models), *costs, _origin(price)))
        for tier in reversed(price.tiers):
            rows.append(("", f"  over {tier.above_tokens:,} tokens", *_cells(tier.rates, ()), ""))
    yield from table_lines(rows, paint, right=range(2, 6))


def _cells(rates: Rates | None, assumed: tuple[str, ...]) -> tuple[str, ...]:
    if rates is None:
        return ("", "", "", "")
    values = {name: format_rate(rate) for name, rate in zip(RATES, _values(rates), strict=True)}
    return tuple(f"({values[name]})" if name in assumed else values[name] for name in _HEADS)


def _values(rates: Rates) -> tuple[int, ...]:
    return (rates.input, rates.output, rates.cache_read, rates.cache_write, rates.cache_write_1h, rates.reasoning)


def _names(models: tuple[str, ...]) -> str:
    """Return the first names of a price, and how many more there are."""
    shown = models[0]
    count = 1
    while count < len(models) and len(shown) + len(models[count]) + 2 <= _LONGEST_NAMES:
        shown += f", {models[count]}"
        count += 1
    return one_line(shown if count == len(models) else f"{shown}, +{len(models) - count}")


def _origin(price: Price) -> str:
    parts = [one_line(Path(price.origin).name)]
    parts += [f"from {price.valid_from}"] if price.valid_from else []
    parts += [f"seen {price.seen}"] if price.seen else []
    return ", ".join(parts)


def _row(price: Price) -> dict[str, Json]:
    """Return a price as JSON; rates are texts in dollars per million tokens."""
    scope = {"provider": price.provider} if price.provider else {"upstream": price.upstream}
    days = {"valid_from": price.valid_from, "deprecation_date": price.deprecation_date, "seen": price.seen}
    return {
        **scope,
        "models": list(price.models),
        "plan": price.plan,
        "rates": _rate_texts(price.rates),
        "over": [{"tokens": tier.above_tokens, "rates": _rate_texts(tier.rates)} for tier in reversed(price.tiers)],
        "assumed": list(price.assumed),
        **{name: day.isoformat() for name, day in days.items() if day is not None},
        "source": price.source,
        "note": price.note,
        "origin": price.origin,
    }


def _rate_texts(rates: Rates | None) -> Json:
    if rates is None:
        return None
    return {name: format_rate(rate) for name, rate in zip(RATES, _values(rates), strict=True)}


# --- import


def _import(arguments: Namespace) -> int:
    from dragoman.accounts.prices_import import import_prices  # the other actions do not need it

    data = read_input(arguments.file)
    name = "standard input" if arguments.file == "-" else Path(arguments.file).name
    day = _modified(arguments.file)
    try:
        found = import_prices(data, providers=_providers(arguments), source=name, seen=day.date())
    except LocalMisuse as error:
        raise CommandError(f"{arguments.file}: {error}") from None
    for reason, count in found.left_out.items():
        print_notice(f"left out {count}: {reason}")
    if not found.imported_names:
        return print_error("no price was found, so nothing was written. --all takes unknown providers, too.", 1)
    heading = _HEADING.format(day=datetime.now(UTC).date(), format=found.format, source=name)
    text = render_price_file(found.content, heading)
    target = arguments.output or _target(arguments)
    parse_price_file(text, str(target))  # never write a file that cannot be read
    if not arguments.force and (target.exists() or target.is_symlink()) and not _may_replace(target):
        hint = "Add --force to replace it, or --output FILE to write another."
        return print_error(f"{target} exists and was not changed. {hint}", 1)
    _write(target, text)
    models, prices = count_of(found.imported_names, "model"), count_of(len(found.content.prices), "price")
    print_notice(f"wrote {target}: {models} in {prices}, of {found.format}")
    return 0


def _providers(arguments: Namespace) -> frozenset[str] | None:
    """Return the providers to import; None: all."""
    if arguments.provider is not None:
        return frozenset({arguments.provider})
    return None if arguments.all else frozenset({*PRESETS, *shipped_prices().addresses})


def _modified(file: str) -> datetime:
    """Return when the list was fetched: the time of the file, else now."""
    return datetime.now(UTC) if file == "-" else datetime.fromtimestamp(int(Path(file).stat().st_mtime), UTC)


def _target(arguments: Namespace) -> Path:
    """Return the user's price file."""
    configured = load_config(arguments.config, os.environ).prices.file
    return configured[0] if configured else app_folders(os.environ).price_file


def _may_replace(target: Path) -> bool:
    if not sys.stdin.isatty():
        return False
    print(f"{target} exists. Replace it? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _write(target: Path, text: str) -> None:
    """Write the file at once, so that a gateway that reads it never sees a half."""
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    part = target.with_name(f".{target.name}.dragoman-part")
    try:
        part.write_text(text, encoding="utf-8", newline="\n")
        part.replace(target)
    except OSError as error:
        raise CommandError(f"{target} cannot be written: {error.strerror or error}") from None
    finally:
        part.unlink(missing_ok=True)

"""Price files: TOML that is read into prices, and prices that are written as TOML. docs/prices.md has the format.

The shipped file `prices.toml` and the files of the user have one format. All problems of a file are reported at once,
each with its line and with what to do. Only `read_price_file`, `shipped_prices` and `load_price_book` do I/O.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

from msgspec import Struct

from dragoman.accounts.prices import PICO_PER_MICRO, Price, PriceBook, Rates, Tier, format_rate
from dragoman.errors import LocalMisuse
from dragoman.wire.toml_lines import KeyPath, dotted_key, line_numbers

SHIPPED = Path(__file__).with_name("prices.toml")
RATES = Rates.__struct_fields__
_CACHE_RATES = ("cache_read", "cache_write")  # without them the input rate is used, and a remark says so
_TOP = ("prices", "providers", "default")
_DATES = ("valid_from", "deprecation_date", "seen")
_DEFAULT_KEYS = (*RATES, "over", "source", "seen", "note")
_ROW_KEYS = ("provider", "upstream", "models", *RATES, "over", "plan", *_DATES, "source", "note")
_DOLLARS = re.compile(r"([0-9]{1,6})(?:\.([0-9]{1,6})0*)?")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_HOW = 'write dollars per million tokens as in "0.30": at most six digits before and after the point'


class PriceFile(Struct, frozen=True):
    """The content of one price file."""

    prices: tuple[Price, ...] = ()
    addresses: dict[str, tuple[str, ...]] = {}  # of providers
    default: Price | None = None


class PriceFileError(LocalMisuse):
    """A price file cannot be read, or has problems; each is one line."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


# --- I/O


def load_price_book(files: Iterable[Path]) -> PriceBook:
    """Return the prices of the user's files, the first of which is the strongest, over the shipped ones.

    Raises PriceFileError.
    """
    layers = [*map(read_price_file, files), shipped_prices()]
    addresses: dict[str, tuple[str, ...]] = {}
    for layer in layers:
        for name, patterns in layer.addresses.items():
            addresses[name] = (*addresses.get(name, ()), *patterns)
    default = next((layer.default for layer in layers if layer.default is not None), None)
    return PriceBook([layer.prices for layer in layers], addresses=addresses, default=default)


def read_price_file(path: Path) -> PriceFile:
    """Read a price file. Raises PriceFileError."""
    try:
        text = path.read_bytes().decode("utf-8-sig")  # Editors on Windows write a byte order mark.
    except OSError as error:
        raise PriceFileError([f"{path}: {(error.strerror or str(error)).lower()}"]) from None
    except UnicodeDecodeError:
        raise PriceFileError([f"{path}: it is not UTF-8 text"]) from None
    return parse_price_file(text, str(path))


@cache
def shipped_prices() -> PriceFile:
    """Return the prices that Dragoman ships, read on the first call."""
    return parse_price_file(SHIPPED.read_text(encoding="utf-8"), SHIPPED.name, origin="shipped")


# --- reading


def parse_price_file(text: str, name: str, *, origin: str = "") -> PriceFile:
    """Parse the text of a price file; `origin` is the name of its layer, `name` without it. Raises PriceFileError."""
    try:
        tree = tomllib.loads(text, parse_float=_Literal)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise PriceFileError([f"{name}: not valid TOML: {error}"]) from None
    reader = _Reader(origin or name)
    content = reader.file(tree)
    if reader.problems:
        lines = line_numbers(text)
        located = sorted((_line(lines, key), dotted_key(key), problem) for key, problem in reader.problems)
        raise PriceFileError([f"{name}:{line}: {key}: {problem}" for line, key, problem in located])
    return content


class _Literal(str):
    """A number with a decimal point, as it is written in the file."""

    __slots__ = ()


def _line(lines: Mapping[KeyPath, int], key: KeyPath) -> int:
    """Return the line of a key, or of the nearest table around it."""
    return next((lines[key[:end]] for end in range(len(key), 0, -1) if key[:end] in lines), 1)


class _Reader:
    """Reads the tables of one file and collects their problems."""

    def __init__(self, origin: str) -> None:
        self.problems: list[tuple[KeyPath, str]] = []
        self._origin = origin

    def file(self, tree: Mapping[str, Any]) -> PriceFile:
        self._known(tree, _TOP, ())
        rows = self._tables(tree.get("prices", []), ("prices",))
        prices = [self._price(row, ("prices", number)) for number, row in rows]
        providers = self._table(tree.get("providers", {}), ("providers",))
        addresses = {name: self._addresses(table, ("providers", name)) for name, table in providers.items()}
        default = self._default(tree["default"]) if "default" in tree else None
        return PriceFile(tuple(price for price in prices if price is not None), addresses, default)

    def _default(self, tree: object) -> Price | None:
        at = ("default",)
        table = self._table(tree, at)
        self._known(table, _DEFAULT_KEYS, at)
        return self._priced(table, at, ("*",))

    def _addresses(self, tree: object, at: KeyPath) -> tuple[str, ...]:
        table = self._table(tree, at)
        self._known(table, ("addresses",), at)
        return self._names(table.get("addresses"), (*at, "addresses"), 'as in ["api.example.com/*"]')

    def _price(self, table: dict[str, Any], at: KeyPath) -> Price | None:
        self._known(table, _ROW_KEYS, at)
        for name in ("provider", "upstream"):
            if name in table and not (isinstance(table[name], str) and table[name]):
                self._problem((*at, name), f"expected a name in quotes, got {table[name]!r}")
        if ("provider" in table) == ("upstream" in table):
            self._problem(at, "set provider, or upstream for the price of one upstream of your configuration")
        models = self._names(table.get("models"), (*at, "models"), 'as in ["gpt-5", "gpt-5-20??-??-??"]')
        return self._priced(table, at, models)

    def _priced(self, table: dict[str, Any], at: KeyPath, models: tuple[str, ...]) -> Price | None:
        before = len(self.problems)
        plan = self._typed(table, "plan", bool, "true or false", at) or False
        given = self._rates(table, at)
        tiers = self._tiers(table.get("over", []), (*at, "over"), given)
        valid_from, deprecation_date, seen = (self._date(table, name, at) for name in _DATES)
        source, note = (self._typed(table, name, str, "a string in quotes", at) or "" for name in ("source", "note"))
        missing = [name for name in ("input", "output") if name not in table]
        if missing and not (plan and len(missing) == 2 and not tiers and not given):
            hint = "; a plan has both or no rates" if plan else ""
            self._problem(at, f"{' and '.join(missing)} missing: a price needs input and output{hint}")
        if len(self.problems) > before:
            return None
        return Price(
            models=models,
            provider=table.get("provider", ""),
            upstream=table.get("upstream", ""),
            rates=None if missing else fill_rates(given),
            tiers=tiers,
            plan=plan,
            assumed=() if missing else tuple(name for name in _CACHE_RATES if name not in given),
            valid_from=valid_from,
            deprecation_date=deprecation_date,
            source=source,
            seen=seen,
            note=note,
            origin=self._origin,
        )

    # --- values

    def _rates(self, table: Mapping[str, Any], at: KeyPath) -> dict[str, int]:
        rates: dict[str, int] = {}
        for name in RATES:
            if name in table:
                try:
                    rates[name] = parse_rate(table[name])
                except ValueError as error:
                    self._problem((*at, name), str(error))
        return rates

    def _tiers(self, tree: object, at: KeyPath, base: dict[str, int]) -> tuple[Tier, ...]:
        tiers: dict[int, Tier] = {}
        for number, table in self._tables(tree, at):
            key = (*at, number)
            self._known(table, ("tokens", *RATES), key)
            rates = self._rates(table, key)
            tokens = table.get("tokens")
            if not isinstance(tokens, int) or isinstance(tokens, bool) or tokens < 1:
                self._problem(key, "set tokens to a whole number: the rates are those of requests with more input")
            elif tokens in tiers:
                self._problem(key, f"tokens = {tokens} occurs twice")
            elif not {"input", "output"} <= table.keys():
                self._problem(key, "a price of longer requests needs input and output")
            elif {"input", "output"} <= {**base, **rates}.keys():  # else it has been reported
                tiers[tokens] = Tier(tokens, fill_rates({**base, **rates}))
        return tuple(tiers[tokens] for tokens in sorted(tiers, reverse=True))

    def _date(self, table: Mapping[str, Any], name: str, at: KeyPath) -> date | None:
        value = table.get(name)
        if value is None or (isinstance(value, date) and not isinstance(value, datetime)):
            return value
        self._problem((*at, name), f"expected a date without quotes, as in 2026-11-18, got {value!r}")
        return None

    def _typed(self, table: Mapping[str, Any], name: str, kind: type, words: str, at: KeyPath) -> Any:
        value = table.get(name)
        if value is not None and (not isinstance(value, kind) or isinstance(value, _Literal)):
            self._problem((*at, name), f"expected {words}, got {value!r}")
            return None
        return value

    def _names(self, value: object, at: KeyPath, example: str) -> tuple[str, ...]:
        names = [value] if isinstance(value, str) else value
        if not isinstance(names, list) or not names or not all(isinstance(name, str) and name for name in names):
            self._problem(at, f"expected a list of names or patterns, {example}")
            return ()
        return tuple(names)

    # --- tables

    def _table(self, tree: object, at: KeyPath) -> dict[str, Any]:
        if isinstance(tree, dict):
            return tree
        self._problem(at, "expected a table")
        return {}

    def _tables(self, tree: object, at: KeyPath) -> list[tuple[int, dict[str, Any]]]:
        if not isinstance(tree, list):
            name = dotted_key(at)
            self._problem(at, f"expected a list of tables: [[{name}]], or {name} = [{{ … }}]")
            return []
        tables = [(number, self._table(table, (*at, number))) for number, table in enumerate(tree)]
        return [(number, table) for number, table in tables if isinstance(tree[number], dict)]

    def _known(self, table: Iterable[str], known: Sequence[str], at: KeyPath) -> None:
        for name in table:
            if name not in known:
                near = get_close_matches(name.lower(), known, 1)
                hint = f"did you mean {near[0]}?" if near else f"known here: {', '.join(known)}"
                self._problem((*at, name), f"there is no such key ({hint})")

    def _problem(self, at: KeyPath, message: str) -> None:
        self.problems.append((at, message))


def parse_rate(value: object) -> int:
    """Return the rate of a text such as `0.30`, in dollars per million tokens. Raises ValueError."""
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ValueError(f"expected a price, got {value!r} ({_HOW})")
    text = str(value)
    if text.startswith("-"):
        raise ValueError(f"a price is not negative, got {text}")
    found = _DOLLARS.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is not a price ({_HOW})")
    return int(found[1]) * PICO_PER_MICRO + int((found[2] or "").ljust(6, "0"))


def fill_rates(given: Mapping[str, int]) -> Rates:
    """Return all rates of a price that names some: `input` and `output` at least."""
    write = given.get("cache_write", given["input"])
    return Rates(
        input=given["input"],
        output=given["output"],
        cache_read=given.get("cache_read", given["input"]),
        cache_write=write,
        cache_write_1h=given.get("cache_write_1h", write),
        reasoning=given.get("reasoning", given["output"]),
    )


# --- writing


def render_price_file(content: PriceFile, heading: str) -> str:
    """Return the text of a price file; `heading` is its first comment. Reading the text gives equal prices."""
    lines = [f"# {line}".rstrip() for line in heading.splitlines()]
    for name, patterns in content.addresses.items():
        lines += ["", f"[providers.{_quote(name)}]", f"addresses = {_list(patterns)}"]
    if content.default is not None:
        lines += ["", "[default]", *_rate_lines(content.default), *_text_lines(content.default)]
    for price in content.prices:
        lines += ["", "[[prices]]", *_price_lines(price)]
    return "\n".join(lines) + "\n"


def _price_lines(price: Price) -> list[str]:
    scope = f"provider = {_quote(price.provider)}" if price.provider else f"upstream = {_quote(price.upstream)}"
    plan = ["plan = true"] if price.plan else []
    return [scope, f"models = {_list(price.models)}", *plan, *_rate_lines(price), *_text_lines(price)]


def _rate_lines(price: Price) -> list[str]:
    if price.rates is None:
        return []
    lines = [f'{name} = "{rate}"' for name, rate in _stated(price.rates, price.assumed).items()]
    tiers = [
        ", ".join([f"tokens = {tier.above_tokens}", *(f'{name} = "{rate}"' for name, rate in _all(tier.rates).items())])
        for tier in reversed(price.tiers)
    ]
    return [*lines, f"over = [{', '.join(f'{{ {tier} }}' for tier in tiers)}]"] if tiers else lines


def _all(rates: Rates) -> dict[str, str]:
    values = (rates.input, rates.output, rates.cache_read, rates.cache_write, rates.cache_write_1h, rates.reasoning)
    return dict(zip(RATES, map(format_rate, values), strict=True))


def _stated(rates: Rates, assumed: Sequence[str]) -> dict[str, str]:
    """Return the rates to write, without those that the reader would fill in with the same value."""
    stated = {name: rate for name, rate in _all(rates).items() if name not in assumed}
    if rates.cache_write_1h == rates.cache_write:
        del stated["cache_write_1h"]
    if rates.reasoning == rates.output:
        del stated["reasoning"]
    return stated


def _text_lines(price: Price) -> list[str]:
    dates = {"valid_from": price.valid_from, "deprecation_date": price.deprecation_date, "seen": price.seen}
    texts = {"source": price.source, "note": price.note}
    return [
        *(f"{name} = {day.isoformat()}" for name, day in dates.items() if day is not None),
        *(f"{name} = {_quote(text)}" for name, text in texts.items() if text),
    ]


def _list(texts: Iterable[str]) -> str:
    return f"[{', '.join(map(_quote, texts))}]"


def _quote(text: str) -> str:
    """Return a TOML string."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", escaped) + '"'

"""`dragoman usage`: requests, tokens and cost from the ledger, by day, key, owner, model or upstream."""

from __future__ import annotations

import csv
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence

from dragoman.accounts import management
from dragoman.accounts.limit_text import parse_time, render_dollars
from dragoman.cli.layout import count_of, display_width, fold, pad, table
from dragoman.cli.store_access import add_config_option, load_store_config, with_store
from dragoman.cli.terminal import CommandError, columns_of, one_line, replace_unencodable
from dragoman.gateway.access_log import cache_share
from dragoman.store.interface import Store, UsageColumn, UsageQuery, UsageRow
from dragoman.wire import jsonio
from dragoman.wire.jsonio import Json

_COLUMNS: tuple[UsageColumn, ...] = ("day", "key", "owner", "model", "upstream")
_SINCE = "7d"
_LONGEST_GROUP = 40  # characters of a column
_BAR = "█"
_PARTS = " ▏▎▍▌▋▊▉"
_MIN_BAR = 10  # columns
_WIDTH, _MAX_WIDTH = 100, 120  # columns without a terminal, and at most


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options of `dragoman usage`."""
    parser.add_argument(
        "--by",
        default="day",
        metavar="COLUMNS",
        help=f"sums by these, with commas: {','.join(_COLUMNS)} (default: day)",
    )
    parser.add_argument("--since", default=_SINCE, metavar="TIME", help=f"30d, or a date (default: {_SINCE})")
    parser.add_argument("--until", metavar="TIME", help="the same")
    parser.add_argument("--key", default="", metavar="KEY", help="only this key, by id or name")
    parser.add_argument("--owner", default="", metavar="NAME", help="only the keys of this owner")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--csv", action="store_true", help="print comma-separated values")
    form.add_argument("--json", action="store_true", help="print JSON; cost is in nano-dollars")
    add_config_option(parser)


def run(arguments: Namespace) -> int:
    """Run `dragoman usage`; return the exit status."""
    replace_unencodable(sys.stdout)
    columns = _parse_columns(arguments.by)

    async def work(store: Store) -> tuple[list[UsageRow], dict[str, str]]:
        key = (await management.find_key(store, arguments.key)).id if arguments.key else ""
        query = UsageQuery(
            by=columns,
            since=parse_time(arguments.since, ahead=False),
            until=None if arguments.until is None else parse_time(arguments.until, ahead=False),
            key=key,
            owner=arguments.owner,
        )
        return await store.usage(query), {each.id: each.name for each in await store.keys()}

    rows, names = with_store(load_store_config(arguments), work)
    if arguments.json:
        print(jsonio.encode_pretty([_fields(columns, row, names) for row in rows]).decode())
    elif arguments.csv:
        _print_csv(columns, rows, names)
    else:
        print(render_usage(columns, rows, names, columns_of(sys.stdout)))
    return 0


def _parse_columns(text: str) -> tuple[UsageColumn, ...]:
    words = [word.strip() for word in text.split(",") if word.strip()]
    found = tuple(column for word in words for column in _COLUMNS if column == word)
    if len(found) != len(words) or not words:
        raise CommandError(f"--by {text}: expected some of {', '.join(_COLUMNS)}, with commas.", 2)
    return found


def _fields(columns: Sequence[str], row: UsageRow, names: dict[str, str]) -> dict[str, Json]:
    fields: dict[str, Json] = dict(zip(columns, row.group, strict=True))
    if "key" in fields:
        fields["key_name"] = names.get(str(fields["key"]), "")
    return {
        **fields,
        "requests": row.requests,
        "failed": row.failed,
        "input_tokens": row.input_tokens,
        "output_tokens": row.output_tokens,
        "cache_read_tokens": row.cache_read_tokens,
        "cache_write_tokens": row.cache_write_tokens,
        "cache_share": _cache_share(row),
        "reasoning_tokens": row.reasoning_tokens,
        "estimated": row.estimated,
        "cost_nanodollars": row.cost,
        "unpriced": row.unpriced,
    }


def _print_csv(columns: Sequence[str], rows: Sequence[UsageRow], names: dict[str, str]) -> None:
    lines = [_fields(columns, row, names) for row in rows]
    header = [*columns, *(["key_name"] if "key" in columns else []), *_FIGURES]
    writer = csv.DictWriter(sys.stdout, header, lineterminator="\n")
    writer.writeheader()
    for line in lines:
        # A spreadsheet would run a text that begins like a formula.
        writer.writerow({name: f"'{value}" if str(value)[:1] in "=+-@\t" else value for name, value in line.items()})


_FIGURES = (
    "requests", "failed", "input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens",
    "cache_share", "reasoning_tokens", "estimated", "cost_nanodollars", "unpriced",
)  # fmt: skip


# --- text


def render_usage(columns: Sequence[str], rows: Sequence[UsageRow], names: dict[str, str], screen: int | None) -> str:
    """Return a table with a bar for the cost of each row, or for its tokens where no price is known."""
    if not rows:
        return "no requests in this time"
    has_cost = any(row.cost for row in rows)
    header = [*map(str.upper, columns), "REQUESTS", "IN", "CACHED", "HIT", "OUT", "COST"]
    lines = [[*_group(columns, row, names), *_figures(row)] for row in [*rows]]
    lines.append([*("total" if index == 0 else "" for index in range(len(columns))), *_figures(_total(rows))])
    right = range(len(columns), len(header))
    shown = [line for _, line in table([header, *lines], screen, right)]
    size = max(map(display_width, shown))
    room = min(screen or _WIDTH, _MAX_WIDTH) - size - 2
    if room >= _MIN_BAR and len(shown) == len(lines) + 1:  # no row takes several lines
        bars = [row.cost if has_cost else row.input_tokens + row.output_tokens for row in rows]
        drawn = ["", *(_bar(bar, max(bars), room) for bar in bars), ""]
        shown = [f"{pad(line, size)}  {bar}".rstrip() for line, bar in zip(shown, drawn, strict=True)]
    unpriced, estimated = sum(row.unpriced for row in rows), sum(row.estimated for row in rows)
    if unpriced:
        what = count_of(unpriced, "request")
        shown += ["", *fold(f"{what} without a known price, not in the cost (`dragoman prices check`).", screen)]
    if estimated:
        shown += [*([] if unpriced else [""]), f"{count_of(estimated, 'request')} with estimated tokens."]
    return "\n".join(shown)


def _group(columns: Sequence[str], row: UsageRow, names: dict[str, str]) -> list[str]:
    texts = []
    for column, value in zip(columns, row.group, strict=True):
        text = (names.get(value) or value) if column == "key" else value
        texts.append(one_line(text or "-", _LONGEST_GROUP))
    return texts


def _figures(row: UsageRow) -> list[str]:
    cost = "-" if row.unpriced == row.requests and row.requests else f"${render_dollars(_cents(row.cost))}"
    cached = row.cache_read_tokens + row.cache_write_tokens
    share = _cache_share(row)
    return [
        f"{row.requests:,}",
        f"{row.input_tokens:,}",
        f"{cached:,}",
        "-" if share is None else f"{share:.0%}",
        f"{row.output_tokens:,}",
        f"{cost}{'+' if row.unpriced and row.cost else ''}",
    ]


def _cache_share(row: UsageRow) -> float | None:
    """Return the share of the input tokens that were read from a prompt cache."""
    return cache_share(row.cache_read_tokens, row.input_tokens + row.cache_read_tokens + row.cache_write_tokens)


def _cents(cost: int) -> int:
    """Round to a hundredth of a cent, which is enough for a table."""
    step = 100_000
    return (cost + step // 2) // step * step


def _total(rows: Sequence[UsageRow]) -> UsageRow:
    sums = [sum(values) for values in zip(*(_numbers(row) for row in rows), strict=True)]
    return UsageRow((), *sums)


def _numbers(row: UsageRow) -> tuple[int, ...]:
    tokens = (row.input_tokens, row.output_tokens, row.cache_read_tokens, row.cache_write_tokens, row.reasoning_tokens)
    return (row.requests, row.failed, *tokens, row.estimated, row.cost, row.unpriced)


def _bar(value: int, most: int, room: int) -> str:
    """Return a bar; its last character has one of eight widths."""
    eighths = round(8 * room * value / most) if most > 0 else 0
    whole, rest = divmod(eighths, 8)
    return _BAR * whole + (_PARTS[rest] if rest else "")

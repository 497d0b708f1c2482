"""The screen of `dragoman top` as lines of text, for any width and height. Pure."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, TypeAlias, get_args

from msgspec import Struct

from dragoman.cli.layout import cut, display_width, pad
from dragoman.cli.status import render_duration
from dragoman.cli.terminal import Paint, one_line
from dragoman.gateway.activity import ActivitySummary, RunningRequest, UpstreamRates
from dragoman.http.addresses import is_loopback

SortOrder: TypeAlias = Literal["time", "upstream", "model", "tokens"]
SORT_ORDERS: tuple[SortOrder, ...] = get_args(SortOrder)
_HEALTH = {"ok": "green", "unused": "dim", "cooling": "yellow", "failing": "red"}
_MIN_WIDTH, _NARROW, _USUAL, _WIDE, _VERY_WIDE = 32, 52, 70, 110, 150
# The last characters of an id, on a narrow and on a wide screen: `dragoman explain` finds a request by them.
_SHORT_ID, _LONG_ID, _WHOLE_ID = 8, 12, 36
_SORT_KEYS: dict[SortOrder, Callable[[RunningRequest], Any]] = {
    "time": lambda each: -each.seconds,
    "upstream": lambda each: (each.upstream, -each.seconds),
    "model": lambda each: (each.model, -each.seconds),
    "tokens": lambda each: (-(each.output_tokens or 0), -each.chunks),
}


class TopView(Struct, frozen=True):
    """The state of the screen besides the data: the order of requests, and whether and why it is not updated."""

    order: SortOrder = "time"
    is_paused: bool = False
    problem: str = ""  # why there is no new data


class Column(Struct, frozen=True):
    """A column of a table. A column without a width gets the columns that are left.

    `since`: the width of the screen from which on the column is shown.
    """

    title: str
    width: int = 0
    is_number: bool = False
    since: int = 0


def render_screen(
    data: ActivitySummary, view: TopView, now: float, columns: int, rows: int | None, paint: Paint
) -> list[str]:
    """Return the lines of the screen. Without `rows`, all requests are listed and the line of keys is left out."""
    columns = max(columns, _MIN_WIDTH)
    lines = [*_header(data, view, now, columns, paint), ""]
    lines += _upstreams(data.upstreams, columns, paint)
    running = sorted(data.running, key=_SORT_KEYS[view.order])
    table = list(_requests(running, columns, paint))
    if rows is None:
        return [*lines, "", *table, *_more(data.more_running)]
    room = max(rows - len(lines) - 2, 2)  # an empty line, and the line of keys
    hidden = data.more_running + max(len(table) - room, 0)
    if hidden:
        table = table[: room - 1]
        hidden = data.more_running + len(running) - (len(table) - 1)
    screen = [*lines, "", *table, *_more(hidden)][: rows - 1]
    return [*screen, *[""] * (rows - 1 - len(screen)), _keys(view, columns, paint)]


def _more(hidden: int) -> list[str]:
    return [f"  … and {hidden} more"] if hidden else []


def _header(data: ActivitySummary, view: TopView, now: float, columns: int, paint: Paint) -> Iterator[str]:
    gateway = data.gateway
    started = gateway.get("started_at")
    up = f"up {render_duration(now - started)}" if isinstance(started, float | int) else ""
    left = "  ".join(filter(None, (f"dragoman {gateway.get('version')}", str(gateway.get("url") or ""), up)))
    clock = time.strftime("%H:%M:%S", time.localtime(now))
    left = cut(one_line(left), columns - len(clock) - 2)
    yield f"{paint(left, 'bold')}{' ' * (columns - display_width(left) - len(clock))}{clock}"
    rates = [
        f"{_rate(data.requests_per_second)} requests/s",
        f"{_rate(data.input_tokens_per_second)} tokens/s in",
        f"{_rate(data.output_tokens_per_second)} out",
        f"{_rate(data.errors_per_minute)} errors/min",
        f"{len(data.running) + data.more_running} running",
    ]
    yield cut("  ".join(rates), columns)
    if view.problem:
        yield paint(cut(view.problem, columns), "red")


def _upstreams(upstreams: Sequence[UpstreamRates], columns: int, paint: Paint) -> Iterator[str]:
    table = [
        Column("UPSTREAM"),
        Column("STATE", 8),
        Column("RUN", 5, is_number=True),
        Column("WAIT", 5, is_number=True, since=_USUAL),
        Column("REQ/S", 7, is_number=True, since=_NARROW),
        Column("ERRORS", 7, is_number=True),
        Column("P50", 8, is_number=True, since=_NARROW),
        Column("P95", 8, is_number=True, since=_USUAL),
    ]
    yield paint(_row(table, [column.title for column in table], columns), "dim")
    for each in upstreams:
        values = [
            each.name,
            each.health,
            str(each.running),
            str(each.waiting),
            _rate(each.requests_per_second),
            "-" if each.error_share is None else f"{each.error_share * 100:.1f}%",
            _milliseconds(each.first_byte_p50_ms),
            _milliseconds(each.first_byte_p95_ms),
        ]
        yield _row(table, values, columns, {1: (paint, _HEALTH.get(each.health, "dim"))})
        for cooldown in each.cooldowns:
            scope = f"{cooldown.credential}, {cooldown.models or 'all models'}"
            text = f"  {scope}: {cooldown.kind}, {render_duration(cooldown.seconds)} left"
            yield paint(cut(one_line(text), columns), "yellow")


def _requests(running: Sequence[RunningRequest], columns: int, paint: Paint) -> Iterator[str]:
    is_wide = columns >= _WIDE
    id_width = _WHOLE_ID if columns >= _VERY_WIDE else _LONG_ID if is_wide else _SHORT_ID
    table = [
        Column("REQUEST", id_width),
        Column("CLIENT", 20 if is_wide else 9, since=_USUAL),
        Column("MODEL"),
        Column("UPSTREAM", 12 if is_wide else 10, since=_NARROW),
        Column("STATE", 9, since=_USUAL),
        Column("TIME", 7, is_number=True),
        Column("TOKENS", 11, is_number=True, since=_NARROW),
    ]
    yield paint(_row(table, [column.title for column in table], columns), "dim")
    for each in running:
        model = each.model if each.used_model in ("", each.model) else f"{each.model} → {each.used_model}"
        address = each.client if is_wide and not is_loopback(each.client) else ""
        client = f"{each.dialect or '-'} {address}".rstrip()
        values = [
            each.id[-id_width:],
            client,
            model or each.path,
            each.upstream or "-",
            each.state,
            f"{each.seconds:.1f} s",
            _tokens(each),
        ]
        yield _row(table, values, columns)
    if not running:
        yield "no request is running"


def _tokens(each: RunningRequest) -> str:
    """Return the tokens so far, `in/out`; if the upstream has not counted them, the chunks of its response."""
    if each.output_tokens is None and each.input_tokens is None:
        return f"{_count(each.chunks)} chunks" if each.chunks else "-"
    return f"{_count(each.input_tokens or 0)}/{_count(each.output_tokens or 0)}"


def _keys(view: TopView, columns: int, paint: Paint) -> str:
    paused = "PAUSED  " if view.is_paused else ""
    return paint(cut(f"{paused}q quit  p pause  s sort (now by {view.order})", columns), "dim")


# --- cells


def _row(
    table: Sequence[Column], values: Sequence[str], columns: int, styles: dict[int, tuple[Paint, str]] | None = None
) -> str:
    shown = [column for column in table if column.since <= columns]
    fixed = sum(column.width for column in shown) + len(shown) - 1
    cells = []
    for index, (column, value) in enumerate(zip(table, values, strict=True)):
        if column not in shown:
            continue
        width = column.width or max(columns - fixed, 4)
        text = pad(cut(one_line(value), width), width, to_right=column.is_number)
        if styles and index in styles:
            paint, style = styles[index]
            text = paint(text, style)
        cells.append(text)
    return " ".join(cells).rstrip()


def _rate(value: float) -> str:
    return _count(value) if value >= 100 else f"{value:.1f}"


def _count(value: float) -> str:
    """Return a number in at most five characters: 950, 1.2k, 34k, 1.2M."""
    for factor, unit in ((1_000_000, "M"), (1_000, "k")):
        if value >= factor:
            return f"{value / factor:.1f}{unit}" if value < 10 * factor else f"{value / factor:.0f}{unit}"
    return f"{value:.0f}"


def _milliseconds(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.0f} ms" if value < 1000 else f"{value / 1000:.1f} s"

"""The rows of the ledger and their sums by day, as SQL on a connection to `ledger.db`.

`write_rows` inserts the row of a request or replaces its open row, and never changes an ended row. A row that is
written a second time therefore changes nothing. Only rows that were really written are added to the sums, in the same
transaction.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from math import isfinite
from typing import Any, TypeAlias

from msgspec import structs

from dragoman.errors import LocalMisuse
from dragoman.store.interface import LedgerRow, UsageQuery, UsageRow
from dragoman.store.sqlite.files import Connection
from dragoman.store.windows import Calendar, Window

_FIELDS = LedgerRow.__struct_fields__
_COLUMNS = ", ".join(_FIELDS)
_TOKENS, _MONEY, _COUNT = 10**12, 10**15, 1 << 31  # the largest values of a row, as in the schema
_ROWS_AT_ONCE = 32  # in one statement, which may have 999 parameters in old versions of SQLite
_LATEST = 1e11  # the year 5138
_LARGEST = {name: _TOKENS for name in _FIELDS if name.endswith("_tokens")} | {"cost": _MONEY, "reserved_cost": _MONEY}

DayKey: TypeAlias = tuple[str, str, str, str, str]  # day, model, upstream, key, owner
DaySums: TypeAlias = Mapping[DayKey, Sequence[int]]  # in the order of SUMS
SUMS = (
    "requests", "counted", "failed", "input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens",
    "reasoning_tokens", "estimated", "cost", "unpriced",
)  # fmt: skip
_ADD_TO_DAY = f"""INSERT INTO usage_day (day, model, upstream, key, owner, {", ".join(SUMS)})
    VALUES ({", ".join("?" * (5 + len(SUMS)))})
    ON CONFLICT (day, model, upstream, key, owner) DO UPDATE SET
    {", ".join(f"{name} = {name} + excluded.{name}" for name in SUMS)}"""
MODEL = "CASE used_model WHEN '' THEN model ELSE used_model END"
# The sums of rows, in the order of SUMS.
SUMS_OF_ROWS = """count(*), sum(attempts > 0), sum(outcome <> 'ok'), sum(input_tokens), sum(output_tokens),
    sum(cache_read_tokens), sum(cache_write_tokens), sum(reasoning_tokens), sum(estimated), coalesce(sum(cost), 0),
    sum(cost IS NULL)"""
IN_WINDOW = "state = 'ended' AND opened_at >= ? AND opened_at < ?"


# --- writing


@lru_cache(8)
def _insert_statement(process: int, count: int) -> str:
    """Return the statement that writes `count` rows of a process."""
    updates = ", ".join(f"{name} = excluded.{name}" for name in _FIELDS if name != "request_id")
    row = f"({', '.join('?' * len(_FIELDS))}, {process:d})"
    return f"""INSERT INTO ledger ({_COLUMNS}, process) VALUES {", ".join([row] * count)}
        ON CONFLICT (request_id) DO UPDATE SET {updates} WHERE state = 'open'"""


def write_rows(connection: Connection, process: int, rows: Sequence[LedgerRow]) -> list[LedgerRow]:
    """Write rows of a process; return those that were ended by it. This must be the first work of the transaction.

    A statement writes many rows: each statement releases the interpreter's lock to SQLite and takes it again, which
    costs more than the row if the event loop wants the lock, too. If the number of changes says that a row was a
    repeat, or if a value does not fit, the transaction starts anew, row by row.
    """
    if not rows:
        return []
    values = list(map(structs.astuple, rows))
    try:
        changed = _insert(connection, process, values)
    except (UnicodeEncodeError, OverflowError, sqlite3.IntegrityError):
        changed = -1
    if changed == len(rows):
        return [row for row in rows if row.state == "ended"]
    connection.execute("ROLLBACK")
    connection.execute("BEGIN IMMEDIATE")
    cleaned = map(clean_row, rows)
    written = [row for row in cleaned if _insert(connection, process, [structs.astuple(row)])]
    return [row for row in written if row.state == "ended"]


def _insert(connection: Connection, process: int, values: Sequence[tuple[Any, ...]]) -> int:
    """Insert rows; return how many were new or replaced an open one."""
    changed, at = 0, 0
    while at < len(values):
        count = _ROWS_AT_ONCE if at + _ROWS_AT_ONCE <= len(values) else 1
        flat = list(chain.from_iterable(values[at : at + count]))
        changed += connection.execute(_insert_statement(process, count), flat).rowcount
        at += count
    return changed


def clean_row(row: LedgerRow) -> LedgerRow:
    """Return the row with values that can be stored. An upstream may report any number, a client any text."""
    return LedgerRow(**{name: _clean(name, value) for name, value in structs.asdict(row).items()})


def _clean(name: str, value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, float):
        number = value if isfinite(value) else 0.0
        return min(max(number, 0.0), _LATEST)
    return value if value is None or isinstance(value, bool) else min(max(value, 0), _LARGEST.get(name, _COUNT))


_NO_DAY = Window(0.0, 0.0, "", "")


def sum_rows(rows: Iterable[LedgerRow], calendar: Calendar) -> dict[DayKey, list[int]]:
    """Return the sums of ended rows by day, model, upstream, key and owner."""
    sums: dict[DayKey, list[int]] = {}
    day = _NO_DAY
    for row in rows:
        if not day.begins <= row.opened_at < day.ends:
            day = calendar.day(row.opened_at)
        group = (day.first_day, row.used_model or row.model, row.upstream, row.key, row.owner)
        cost = row.cost
        total = sums.get(group)
        if total is None:
            total = sums[group] = [0] * len(SUMS)
        total[0] += 1
        total[1] += row.attempts > 0
        total[2] += row.outcome != "ok"
        total[3] += row.input_tokens
        total[4] += row.output_tokens
        total[5] += row.cache_read_tokens
        total[6] += row.cache_write_tokens
        total[7] += row.reasoning_tokens
        total[8] += row.estimated
        if cost is None:
            total[10] += 1
        else:
            total[9] += cost
    return sums


def add_to_days(connection: Connection, sums: DaySums) -> None:
    """Add sums to the table of days."""
    connection.executemany(_ADD_TO_DAY, [(*group, *total) for group, total in sums.items()])


def delete_before(connection: Connection, moment: float, most: int) -> int:
    """Delete at most `most` ended rows of requests that were opened before `moment`; return how many."""
    oldest = "SELECT request_id FROM ledger WHERE opened_at < ? AND state = 'ended' ORDER BY opened_at LIMIT ?"
    count = connection.execute(f"DELETE FROM ledger WHERE request_id IN ({oldest})", (moment, most)).rowcount
    if count and moment > deleted_before(connection):
        put_setting(connection, "deleted_before", moment)
    return count


# --- settings


def setting(connection: Connection, name: str) -> Any:
    """Return a value of the table `setting`; None if there is none."""
    row = connection.execute("SELECT value FROM setting WHERE name = ?", (name,)).fetchone()
    return None if row is None else row[0]


def put_setting(connection: Connection, name: str, value: str | float) -> None:
    """Set a value of the table `setting`."""
    connection.execute("INSERT OR REPLACE INTO setting (name, value) VALUES (?, ?)", (name, value))


def deleted_before(connection: Connection) -> float:
    """Return the moment before which rows may have been deleted."""
    return float(setting(connection, "deleted_before") or 0.0)


# --- reading


def read_rows(connection: Connection, key: str, since: float, most: int) -> list[LedgerRow]:
    """Return rows that were opened since a moment, newest first. There is no index by key: all rows since are read."""
    where, values = "opened_at >= ?", [since, *([key] if key else []), most]
    if key:
        where += " AND key = ?"
    sql = f"SELECT {_COLUMNS} FROM ledger WHERE {where} ORDER BY opened_at DESC, request_id DESC LIMIT ?"
    return [_row_of(values) for values in connection.execute(sql, values)]


def open_rows(connection: Connection, live: Iterable[int], most: int) -> list[tuple[LedgerRow, int]]:
    """Return open rows of processes that do not live, and the process of each."""
    ids = ", ".join(map(str, live)) or "-1"
    sql = f"SELECT {_COLUMNS}, process FROM ledger WHERE state = 'open' AND process NOT IN ({ids}) LIMIT ?"
    return [(_row_of(values[:-1]), values[-1]) for values in connection.execute(sql, (most,))]


_ESTIMATED = _FIELDS.index("estimated")


def _row_of(values: Sequence[Any]) -> LedgerRow:
    fields = dict(zip(_FIELDS, values, strict=True))
    fields["estimated"] = bool(values[_ESTIMATED])
    return LedgerRow(**fields)


_GROUPS = frozenset(("day", "key", "owner", "model", "upstream"))
_SHOWN_SUMS = [name for name in SUMS if name != "counted"]  # the order of UsageRow


def read_usage(connection: Connection, query: UsageQuery, calendar: Calendar) -> list[UsageRow]:
    """Return sums by the columns of the query.

    They come from the table of days; only a day that `since` or `until` cuts is summed from its rows.
    """
    if not set(query.by) <= _GROUPS:
        raise LocalMisuse(f"usage can be summed by {', '.join(sorted(_GROUPS))}, not by {', '.join(query.by)}.")
    source, values = _usage_source(query, calendar)
    groups = ", ".join(query.by)
    by = f" GROUP BY {groups} ORDER BY {groups}" if groups else ""
    columns = [*query.by, *(f"coalesce(sum({name}), 0)" for name in _SHOWN_SUMS)]
    rows = connection.execute(f"SELECT {', '.join(columns)} FROM ({source}){by}", values).fetchall()
    size = len(query.by)
    return [UsageRow(tuple(row[:size]), *row[size:]) for row in rows if row[size]]


def _usage_source(query: UsageQuery, calendar: Calendar) -> tuple[str, list[Any]]:
    """Return a SELECT of all sums that the query asks for, and its parameters."""
    filters = [name for name in ("key", "owner") if structs.asdict(query)[name]]
    where = "".join(f" AND {name} = ?" for name in filters)
    filtered = [structs.asdict(query)[name] for name in filters]
    first, end = _whole_days(query, calendar)
    columns = "day, model, upstream, key, owner, " + ", ".join(SUMS)
    parts = [f"SELECT {columns} FROM usage_day WHERE day >= ? AND day < ?{where}"]
    values: list[Any] = [first, end, *filtered]
    for day, begins, ends in _cut_days(query, calendar):
        parts.append(
            f"SELECT ? AS day, {MODEL} AS model, upstream, key, owner, {SUMS_OF_ROWS} FROM ledger "
            f"WHERE {IN_WINDOW}{where} GROUP BY 2, 3, 4, 5"
        )
        values += [day, begins, ends, *filtered]
    return " UNION ALL ".join(parts), values


def _whole_days(query: UsageQuery, calendar: Calendar) -> tuple[str, str]:
    first = calendar.day(query.since)
    end = "~" if query.until is None else calendar.day(query.until).first_day
    return (first.first_day if query.since <= first.begins else first.end_day) if query.since > 0 else "", end


def _cut_days(query: UsageQuery, calendar: Calendar) -> list[tuple[str, float, float]]:
    """Return the days that the query cuts, and which part of each it asks for."""
    begin = calendar.day(query.since)
    end = None if query.until is None else calendar.day(query.until)
    found: list[tuple[Window, float, float]] = []
    if query.since > begin.begins and query.since > 0:
        found.append((begin, query.since, begin.ends))
    if end is not None and query.until is not None and query.until > end.begins:
        if found and end == begin:
            found = [(begin, query.since, query.until)]
        else:
            found.append((end, end.begins, query.until))
    return [(day.first_day, begins, ends) for day, begins, ends in found if begins < ends]

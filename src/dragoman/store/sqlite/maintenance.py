"""Check and repair `ledger.db`: end rows of killed processes, correct sums, follow a change of the time zone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from msgspec import structs

from dragoman.store.interface import LedgerRow, LimitId, Span, StoreUnusable
from dragoman.store.sqlite.counters import CALENDAR_SPANS, WriteContext, add_used, scopes_of, sum_of_days
from dragoman.store.sqlite.files import KEYS, LEDGER, Connection, StoreFolder
from dragoman.store.sqlite.keys import limits_of
from dragoman.store.sqlite.ledger import (
    IN_WINDOW,
    MODEL,
    SUMS,
    SUMS_OF_ROWS,
    add_to_days,
    deleted_before,
    open_rows,
    put_setting,
    setting,
    sum_rows,
    write_rows,
)
from dragoman.store.sqlite.schema import migrations_of, pending_migrations
from dragoman.store.sqlite.shares import use_minute_shares
from dragoman.store.windows import Calendar, Window

STEP = 1000  # rows of one transaction
_MAX_FAULTS = 20  # that an integrity check lists
_GROUPS = f"model, upstream, key, owner, {', '.join(SUMS)}"
_FROM_ROWS = f"SELECT {MODEL}, upstream, key, owner, {SUMS_OF_ROWS} FROM ledger WHERE {IN_WINDOW} GROUP BY 1, 2, 3, 4"
_FROM_DAYS = f"SELECT {_GROUPS} FROM usage_day WHERE day = ?"


# --- rows and shares of killed processes


def sweep(context: WriteContext, live_seconds: float) -> int:
    """End the open rows of processes without a heartbeat in the last `live_seconds`; return how many, at most STEP.

    Each row is charged what its request had reserved, and the share of its process becomes smaller by that. The rest of
    the share stays until its window ends.
    """
    connection = context.connection
    sql = "SELECT id FROM process WHERE heartbeat > ?"
    live = [number for (number,) in connection.execute(sql, (context.now - live_seconds,))]
    lost = [(_lost(row), process) for row, process in open_rows(connection, live, STEP)]
    ended = write_rows(connection, context.process, [row for row, _ in lost])
    sums = sum_rows(ended, context.calendar)
    add_to_days(connection, sums)
    add_used(context, sums)
    for row, process in lost:
        _charge_share(context, row, process)
    _remove_dead(context, live)
    return len(lost)


def _lost(row: LedgerRow) -> LedgerRow:
    """Return the ended row of a request whose process was killed: it used what it had reserved."""
    more = max(0, row.reserved_tokens - row.tokens)
    cost = max(row.cost or 0, row.reserved_cost) if row.cost is not None or row.reserved_cost else None
    return structs.replace(
        row,
        state="ended",
        outcome="lost",
        attempts=max(1, row.attempts),
        output_tokens=row.output_tokens + more,
        estimated=True,
        cost=cost,
    )


def _charge_share(context: WriteContext, row: LedgerRow, process: int) -> None:
    amounts = {"requests": row.requests, "tokens": row.tokens, "cost": row.cost or 0}
    sql = """UPDATE share SET amount = max(0, amount - ?)
        WHERE scope = ? AND resource = ? AND span = ? AND process = ? AND begins = ? AND amount > 0"""
    for scope in scopes_of(row.key, row.owner):
        for limit in context.limits.of_scope(scope).by_id:
            window = context.window(limit[2])
            if limit[2] in CALENDAR_SPANS and window.begins <= row.opened_at < window.ends:
                context.connection.execute(sql, (amounts[limit[1]], *limit, process, window.begins))


def _remove_dead(context: WriteContext, live: list[int]) -> None:
    """Delete shares of killed processes that no longer count, and killed processes without shares and open rows."""
    ids = ", ".join(map(str, live)) or "-1"
    dead = f"process NOT IN ({ids})"
    use_minute_shares(context, dead)
    ended = """span IN ('minute', 'now') OR amount <= 0
        OR (span = 'day' AND begins <> ?) OR (span = 'month' AND begins <> ?)"""
    begins = context.window("day").begins, context.window("month").begins
    context.connection.execute(f"DELETE FROM share WHERE {dead} AND ({ended})", begins)
    context.connection.execute(
        f"""DELETE FROM process WHERE id NOT IN ({ids}) AND id NOT IN (SELECT process FROM share)
        AND id NOT IN (SELECT process FROM ledger WHERE state = 'open')"""
    )


def release_dead(context: WriteContext) -> int:
    """Release all shares of killed processes; return how many there were."""
    ids = ", ".join(map(str, context.live)) or "-1"
    return context.connection.execute(f"DELETE FROM share WHERE process NOT IN ({ids})").rowcount


# --- sums


def first_summed_day(connection: Connection, calendar: Calendar) -> Window:
    """Return the first day whose sums can be compared with its rows: no row of it was deleted."""
    at = deleted_before(connection)
    day = calendar.day(at)
    return day if at <= max(0.0, day.begins) else calendar.day(day.ends)


def summed_days(connection: Connection, calendar: Calendar) -> Iterator[Window]:
    """Yield the days that have rows or sums and of which no row was deleted."""
    first = first_summed_day(connection, calendar)
    rows = connection.execute("SELECT DISTINCT day FROM usage_day WHERE day >= ?", (first.first_day,))
    names = {name for (name,) in rows}
    moment: float | None = first.begins
    while moment is not None:
        [moment] = connection.execute("SELECT min(opened_at) FROM ledger WHERE opened_at >= ?", (moment,)).fetchone()
        if moment is not None:
            day = calendar.day(moment)
            names.add(day.first_day)
            moment = day.ends
    yield from map(calendar.day_named, sorted(names))


def is_wrong(connection: Connection, day: Window) -> bool:
    """Return whether the sums of a day are not those of its rows."""
    values = day.begins, day.ends, day.first_day
    one = connection.execute(f"{_FROM_ROWS} EXCEPT {_FROM_DAYS} LIMIT 1", values).fetchone()
    other = connection.execute(
        f"{_FROM_DAYS} EXCEPT {_FROM_ROWS} LIMIT 1", (values[2], values[0], values[1])
    ).fetchone()
    return one is not None or other is not None


def sum_day(connection: Connection, day: Window) -> None:
    """Compute the sums of a day from its rows."""
    connection.execute("DELETE FROM usage_day WHERE day = ?", (day.first_day,))
    insert = f"INSERT INTO usage_day (day, {_GROUPS}) SELECT ?, * FROM ({_FROM_ROWS})"
    connection.execute(insert, (day.first_day, day.begins, day.ends))


def wrong_counters(keys: Connection, ledger: Connection, calendar: Calendar, now: float) -> Iterator[tuple[str, Span]]:
    """Yield the counters that are not the sum of the days of their window."""
    since = {(each.limit.scope, each.limit.span): each.since for each in limits_of(keys, ())}
    rows = ledger.execute("SELECT scope, span, begins, since, requests, tokens, cost FROM used").fetchall()
    for scope, span, begins, number, *amounts in rows:
        window = calendar.window(span, now)
        is_valid = begins == window.begins and since.get((scope, span)) == number
        if is_valid and tuple(amounts) != sum_of_days(ledger, scope, window):
            yield scope, span


def stored_zone(connection: Connection) -> str:
    """Return the time zone of the table of days."""
    return str(setting(connection, "time_zone") or "UTC")


def set_time_zone(context: WriteContext) -> None:
    """Store the time zone of the days. If it has changed, compute all sums anew. Raises StoreUnusable.

    Sums of days whose rows were deleted stay as they are.
    """
    connection, calendar = context.connection, context.calendar
    before = setting(connection, "time_zone")
    if before == calendar.zone:
        return
    if before is not None:
        if context.live:
            raise StoreUnusable(
                f"the store counts days in the time zone {before}, and other processes use it now, so it cannot change "
                f"to {calendar.zone}. Stop them first."
            )
        first = first_summed_day(connection, calendar)
        connection.execute("DELETE FROM usage_day WHERE day >= ?", (first.first_day,))
        connection.execute("DELETE FROM used")
        connection.execute("DELETE FROM share WHERE span IN ('day', 'month')")
        for day in list(summed_days(connection, calendar)):
            sum_day(connection, day)
    put_setting(connection, "time_zone", calendar.zone)


# --- checks


def check_store(folder: StoreFolder, now: float) -> list[str]:
    """Return what is wrong with a store, a sentence each. Writers do not wait for it.

    Raises StoreUnavailable, also if there is no store.
    """
    was_open = folder.is_open
    folder.open_existing()
    try:
        return _problems(folder, now)
    finally:
        if not was_open:
            folder.close()


def _problems(folder: StoreFolder, now: float) -> list[str]:
    problems: list[str] = []
    try:
        with _snapshots(folder) as (keys, ledger):
            for name, connection in ((KEYS, keys), (LEDGER, ledger)):
                problems += _file_problems(folder, name, connection)
            if not problems:
                with folder.read(LEDGER):
                    problems += _sum_problems(keys, ledger, Calendar(stored_zone(ledger)), now)
    except StoreUnusable as error:
        problems.append(str(error))
    return problems


@contextmanager
def _snapshots(folder: StoreFolder) -> Iterator[tuple[Connection, Connection]]:
    """Open both files as they are at one moment."""
    opened: list[Connection] = []
    try:
        with folder.lock():
            for name in (KEYS, LEDGER):
                opened.append(folder.connect(name, writes=False))
                with folder.read(name):
                    opened[-1].execute("BEGIN")
                    opened[-1].execute("SELECT count(*) FROM sqlite_schema").fetchone()
        yield opened[0], opened[1]
    finally:
        with folder.lock():
            for connection in opened:
                connection.close()


def _file_problems(folder: StoreFolder, name: str, connection: Connection) -> list[str]:
    path = folder.path / name
    with folder.read(name):
        pending = pending_migrations(connection, path, migrations_of(name))
        faults = connection.execute(f"PRAGMA integrity_check({_MAX_FAULTS})").fetchall()
    found = [f"{path} is damaged: {fault}." for (fault,) in faults if fault != "ok"]
    if pending:
        found.append(f"{path} lacks migration {pending[0].number}: run `dragoman store migrate`.")
    return found


def _sum_problems(keys: Connection, ledger: Connection, calendar: Calendar, now: float) -> Iterator[str]:
    for day in summed_days(ledger, calendar):
        if is_wrong(ledger, day):
            yield f"the sums of {day.first_day} are not those of its rows: run `dragoman store repair`."
    for scope, span in wrong_counters(keys, ledger, calendar, now):
        yield f"the counter of {scope} a {span} is not the sum of its days: run `dragoman store repair`."


def forget_counters(connection: Connection, removed_limits: list[LimitId]) -> None:
    """Delete the shares and counters of limits that were removed."""
    for scope, resource, span in removed_limits:
        connection.execute("DELETE FROM share WHERE scope = ? AND resource = ? AND span = ?", (scope, resource, span))
        if span == "minute":
            connection.execute("DELETE FROM used_minute WHERE scope = ? AND resource = ?", (scope, resource))

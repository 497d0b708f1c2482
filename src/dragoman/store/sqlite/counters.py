"""The used amounts of limits, as SQL on a connection to `ledger.db`, and the values that every write needs.

A counter belongs to a window and to the change with which its limit was made. A counter that is missing, or belongs to
another window or change, is unknown, not zero: it is computed from the table of days, once and absolute. So it does not
matter whether a process was killed between the change of a limit and the change of its counter.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

from msgspec import Struct

from dragoman.store.interface import ALL, LIVE_SECONDS, LimitId, Resource, Span
from dragoman.store.sqlite.files import Connection
from dragoman.store.sqlite.keys import StoredLimit, last_change, limits_of
from dragoman.store.sqlite.ledger import DaySums
from dragoman.store.windows import EVER, Calendar, Window, refill

_MAX_SCOPES = 1024  # in the cache
_RESOURCES: tuple[Resource, ...] = ("requests", "tokens", "cost")
CALENDAR_SPANS: tuple[Span, ...] = ("day", "month", "ever")
_TOKENS = "input_tokens + output_tokens + cache_read_tokens + cache_write_tokens"
_SUM_DAYS = f"""SELECT coalesce(sum(counted), 0), coalesce(sum({_TOKENS}), 0), coalesce(sum(cost), 0)
    FROM usage_day WHERE day >= ? AND day < ?"""
_SUM_LAST_ROWS = f"""SELECT coalesce(sum(attempts > 0), 0), coalesce(sum({_TOKENS}), 0), coalesce(sum(cost), 0)
    FROM ledger WHERE state = 'ended' AND opened_at > ?"""
_ADD = """UPDATE used SET requests = requests + ?, tokens = tokens + ?, cost = cost + ?
    WHERE scope = ? AND span = ? AND begins = ? AND since = ?"""
_PUT = "INSERT OR REPLACE INTO used (scope, span, begins, since, requests, tokens, cost) VALUES (?, ?, ?, ?, ?, ?, ?)"
_PUT_MINUTE = "INSERT OR REPLACE INTO used_minute (scope, resource, since, used, at) VALUES (?, ?, ?, ?, ?)"


class LimitCache:
    """The limits of `keys.db` that this process needs. It is exact under the lock of the store, after `refresh`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._scopes: dict[str, _ScopeLimits] = {}
        self.last_change = -1

    def refresh(self) -> None:
        """Forget all limits if one was changed."""
        number = last_change(self._connection)
        if number != self.last_change:
            self._scopes.clear()
            self.last_change = number

    def of_scope(self, scope: str) -> _ScopeLimits:
        """Return the limits of a scope."""
        found = self._scopes.get(scope)
        if found is None:
            if len(self._scopes) >= _MAX_SCOPES:
                self._scopes.clear()
            limits = limits_of(self._connection, (scope,))
            counters = {each.limit.span: each.since for each in limits if each.limit.span in CALENDAR_SPANS}
            by_id = {each.limit.id: each for each in limits}
            found = self._scopes[scope] = _ScopeLimits(by_id, counters) if by_id else _UNLIMITED
        return found

    def find(self, limit: LimitId) -> StoredLimit | None:
        """Return a limit by its id."""
        return self.of_scope(limit[0]).by_id.get(limit)


class _ScopeLimits(Struct, frozen=True):
    by_id: dict[LimitId, StoredLimit]
    counters: dict[Span, int]  # the windows in which something is limited, and since which change


_UNLIMITED = _ScopeLimits({}, {})


class WriteContext:
    """The values of one write transaction: a connection to `ledger.db`, the limits, the time, and this process."""

    def __init__(
        self, connection: Connection, limits: LimitCache, calendar: Calendar, now: float, process: int
    ) -> None:
        self.connection, self.limits, self.calendar, self.now, self.process = connection, limits, calendar, now, process

    @cached_property
    def live(self) -> frozenset[int]:
        """The processes that live; this one does, because it writes."""
        sql = "SELECT id FROM process WHERE heartbeat > ?"
        rows = self.connection.execute(sql, (self.now - LIVE_SECONDS,))
        return frozenset([number for (number,) in rows] + [self.process] * (self.process > 0))

    def window(self, span: Span) -> Window:
        """Return the present window of a span."""
        return self.calendar.window(span, self.now) if span in CALENDAR_SPANS else EVER


# --- days, months and ever


def add_used(context: WriteContext, sums: DaySums) -> None:
    """Add the sums of ended rows to the counters of all limits that apply. The table of days has them already."""
    for (scope, span, since), amounts in _by_limit(context, sums).items():
        window = context.window(span)
        values = (*amounts, scope, span, window.begins, since)
        if not context.connection.execute(_ADD, values).rowcount:
            _seed(context, scope, span, since)


def _by_limit(context: WriteContext, sums: DaySums) -> dict[tuple[str, Span, int], list[int]]:
    """Return requests, tokens and cost for each counter, of those days that are in its present window."""
    found: dict[tuple[str, Span, int], list[int]] = {}
    for (day, _, _, key, owner), total in sums.items():
        for scope in scopes_of(key, owner):
            for span, since in context.limits.of_scope(scope).counters.items():
                window = context.window(span)
                if window.first_day <= day < window.end_day:
                    amounts = found.setdefault((scope, span, since), [0, 0, 0])
                    amounts[0] += total[1]
                    amounts[1] += total[3] + total[4] + total[5] + total[6]
                    amounts[2] += total[9]
    return found


def scopes_of(key: str, owner: str) -> Iterator[str]:
    """Yield the scopes whose limits apply to a request with this key and owner, such as `key:ID` and `all`."""
    yield f"key:{key}"
    if owner:
        yield f"owner:{owner}"
    yield ALL


def _seed(context: WriteContext, scope: str, span: Span, since: int) -> tuple[int, int, int]:
    """Compute a counter from the table of days, and store it."""
    window = context.window(span)
    amounts = sum_of_days(context.connection, scope, window)
    context.connection.execute(_PUT, (scope, span, window.begins, since, *amounts))
    return amounts


def sum_of_days(connection: Connection, scope: str, window: Window) -> tuple[int, int, int]:
    """Return the requests, tokens and cost that a scope used in a window, by the table of days."""
    where, values = scope_filter(scope)
    row = connection.execute(_SUM_DAYS + where, (window.first_day, window.end_day, *values)).fetchone()
    return row[0], row[1], row[2]


def scope_filter(scope: str) -> tuple[str, tuple[str, ...]]:
    """Return the end of a WHERE clause for a scope, and its parameters."""
    kind, _, name = scope.partition(":")
    return ("", ()) if scope == ALL else (f" AND {kind} = ?", (name,))


def read_used(context: WriteContext, stored: StoredLimit, *, keep: bool = True) -> int:
    """Return what was used of a limit of a day, a month or ever. `keep`: store it if it had to be computed."""
    scope, resource, span = stored.limit.id
    window = context.window(span)
    sql = "SELECT requests, tokens, cost FROM used WHERE scope = ? AND span = ? AND begins = ? AND since = ?"
    row = context.connection.execute(sql, (scope, span, window.begins, stored.since)).fetchone()
    if row is None:
        seed = _seed(context, scope, span, stored.since) if keep else sum_of_days(context.connection, scope, window)
        return seed[_RESOURCES.index(resource)]
    return int(row[_RESOURCES.index(resource)])


# --- minutes


def read_minute(context: WriteContext, stored: StoredLimit, *, keep: bool = True) -> tuple[int, float]:
    """Return what counts now as used of a limit a minute, and the moment for which that is exact.

    What a new limit has used is not known exactly: all requests of the last minute count, up to the amount. `keep`:
    store that.
    """
    scope, resource, _ = stored.limit.id
    sql = "SELECT used, at FROM used_minute WHERE scope = ? AND resource = ? AND since = ?"
    row = context.connection.execute(sql, (scope, resource, stored.since)).fetchone()
    if row is not None:
        return refill(row[0], row[1], stored.limit.amount, context.now)
    where, values = scope_filter(scope)
    sums = context.connection.execute(_SUM_LAST_ROWS + where, (context.now - 60.0, *values)).fetchone()
    used = min(sums[_RESOURCES.index(resource)], stored.limit.amount)
    if keep:
        put_minute(context, stored, used, context.now)
    return used, context.now


def put_minute(context: WriteContext, stored: StoredLimit, used: int, at: float) -> None:
    """Store what was used of a limit a minute."""
    scope, resource, _ = stored.limit.id
    context.connection.execute(_PUT_MINUTE, (scope, resource, stored.since, used, at))

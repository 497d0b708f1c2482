"""The shares that processes have of limits, and grants that enlarge them, as SQL on a connection to `ledger.db`.

A share is what one process may use of a limit without asking the store; `store.interface` has the theory of operation.
"""

from __future__ import annotations

from collections.abc import Mapping

from dragoman.store.interface import Grant, GrantRequest, LimitId
from dragoman.store.sqlite.counters import CALENDAR_SPANS, WriteContext, put_minute, read_minute, read_used
from dragoman.store.sqlite.keys import StoredLimit
from dragoman.store.windows import refill_time

_SELECT = "SELECT process, begins, amount FROM share WHERE scope = ? AND resource = ? AND span = ?"
_PUT = "INSERT OR REPLACE INTO share (scope, resource, span, process, begins, amount) VALUES (?, ?, ?, ?, ?, ?)"
# A share of an earlier window has ended, so what its process reports about it has no meaning.
_SET = """INSERT INTO share (scope, resource, span, process, begins, amount) VALUES (?, ?, ?, ?, ?, ?)
    ON CONFLICT (scope, resource, span, process)
    DO UPDATE SET amount = excluded.amount WHERE begins = excluded.begins"""
_DELETE = "DELETE FROM share WHERE scope = ? AND resource = ? AND span = ? AND process = ?"


def grant(context: WriteContext, request: GrantRequest) -> Grant:
    """Enlarge the share of this process of one limit."""
    stored = context.limits.find(request.limit)
    if stored is None:
        return Grant(0, -1, 0, context.now, context.now)
    window = context.window(stored.limit.span)
    used, at = _used(context, stored)
    own, in_shares = _shares(context, stored)
    unreserved = stored.limit.amount - used - in_shares
    # What this process used beyond its share was counted as used, so the share may grow to zero for nothing.
    usable = unreserved + max(0, -own)
    amount = 0
    if usable >= request.need:
        most = max(request.need, unreserved // (2 * max(1, len(context.live))))
        amount = max(0, min(max(request.want, request.need), most))
    if amount:
        context.connection.execute(_PUT, (*request.limit, context.process, window.begins, own + amount))
        unreserved -= max(0, own + amount) - max(0, own)
    if stored.limit.span in CALENDAR_SPANS:
        return Grant(amount, stored.limit.amount, max(0, unreserved), window.begins, window.ends)
    missing = used if amount else min(used, request.need - usable)
    renews_at = at + refill_time(missing, stored.limit.amount) if missing else context.now
    return Grant(amount, stored.limit.amount, max(0, unreserved), context.now, max(context.now, renews_at))


def _used(context: WriteContext, stored: StoredLimit) -> tuple[int, float]:
    """Return what was used of a limit, and for a minute the moment for which that is exact."""
    span = stored.limit.span
    if span == "now":
        return 0, context.now
    return _minute(context, stored) if span == "minute" else (read_used(context, stored), context.now)


def _minute(context: WriteContext, stored: StoredLimit) -> tuple[int, float]:
    """Return what was used of a limit a minute. Shares of killed processes become used now, and refill."""
    used, at = read_minute(context, stored)
    dead = [row for row in context.connection.execute(_SELECT, stored.limit.id) if row[0] not in context.live]
    if dead:
        used += sum(max(0, amount) for _, _, amount in dead)
        put_minute(context, stored, used, at)
        context.connection.executemany(_DELETE, [(*stored.limit.id, process) for process, _, _ in dead])
    return used, at


def _shares(context: WriteContext, stored: StoredLimit) -> tuple[int, int]:
    """Return the share of this process, and what counts of the shares of all processes."""
    own = in_shares = 0
    begins, only_live = context.window(stored.limit.span).begins, stored.limit.span == "now"
    for process, share_begins, amount in context.connection.execute(_SELECT, stored.limit.id):
        if share_begins == begins and (not only_live or process in context.live):
            in_shares += max(0, amount)
            if process == context.process:
                own = amount
    return own, in_shares


def set_shares(context: WriteContext, shares: Mapping[LimitId, int], minute_usage: Mapping[LimitId, int]) -> None:
    """Set the shares of this process to what it reports, and count what its requests reserved of limits a minute."""
    for limit, amount in shares.items():
        stored = context.limits.find(limit)
        if stored is None:
            context.connection.execute(_DELETE, (*limit, context.process))
        elif limit[2] == "minute":
            own, _ = _shares(context, stored)
            _count_minute_usage(context, stored, minute_usage.get(limit, own - amount))
            context.connection.execute(_PUT, (*limit, context.process, 0.0, amount))
        else:
            begins = context.window(stored.limit.span).begins
            context.connection.execute(_SET, (*limit, context.process, begins, amount))
    for limit, amount in minute_usage.items():
        if limit not in shares and (stored := context.limits.find(limit)) is not None:
            _count_minute_usage(context, stored, amount)


def _count_minute_usage(context: WriteContext, stored: StoredLimit, amount: int) -> None:
    if amount:
        used, at = _minute(context, stored)
        put_minute(context, stored, max(0, used + amount), at)


def shares_of_limit(context: WriteContext, stored: StoredLimit) -> int:
    """Return what counts of the shares of all processes."""
    return _shares(context, stored)[1]


def use_minute_shares(context: WriteContext, processes: str) -> None:
    """Count the shares of limits a minute as used, of processes that an SQL condition names."""
    sql = f"SELECT DISTINCT scope, resource, span FROM share WHERE span = 'minute' AND {processes}"
    for limit in context.connection.execute(sql).fetchall():
        stored = context.limits.find(limit)
        if stored is not None:
            _minute(context, stored)

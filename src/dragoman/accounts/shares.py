"""The shares of this process of each limit, and what running requests have reserved of them. Pure.

Theory of operation (the other half is in `dragoman.store.interface`). A share is a number of units that this process
may use without asking the store: `unreserved` are free, `reserved` belong to running requests. To reserve is to move
units from `unreserved` to `reserved`, of all limits of an account at once or of none. When a request ends, its
reservation is released, and the units that it used are subtracted from `unreserved`, which may become negative: the
next request then needs a larger share. The used units are reported to the store with the request's row, together with
the rest of the share, so that the sum of both is what the store granted.

    requests, tokens, cost    a request uses them
    concurrency               a request holds one while it runs and uses none

Units that requests reserve of a limit a minute count in the store when they begin (`minute_usage`), because they may
run for minutes; unused units are given back when they end.

A share of a day or a month ends with its window. A request that began in an earlier window changes nothing here when it
ends: its row says when it began, so the store counts it where it belongs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf
from typing import TypeAlias

from msgspec import Struct

from dragoman.store.interface import Grant, GrantRequest, Limit, LimitId, Resource

Amounts: TypeAlias = tuple[int, int, int, int]  # of each resource, in the order of RESOURCES
RESOURCES: tuple[Resource, ...] = ("requests", "tokens", "cost", "concurrency")
IDLE_TICKS = 10  # An unused share is given back after this number of settlements without a request.
_UNBOUNDED = 1 << 62
_AHEAD = 4  # A larger share lasts for about a quarter of the last second.


class LimitShare:
    """The share of one limit. All accounts to which the limit applies use the same object."""

    __slots__ = (
        "_idle_ticks", "_tick", "_used_before", "_used_now", "allowed", "begins", "free", "has_headers", "index",
        "limit", "minute_usage", "renews_at", "reserved", "unreserved", "was_changed",
    )  # fmt: skip

    def __init__(self, limit: Limit) -> None:
        self.limit = limit
        self.index = RESOURCES.index(limit.resource)
        self.has_headers = limit.span == "minute" and limit.resource in ("requests", "tokens")  # in responses
        self.allowed = limit.amount
        self.free = limit.amount  # what the store had left at the last grant; for headers and messages
        self.unreserved = self.reserved = 0
        self.begins, self.renews_at = 0.0, inf  # of the window of the share
        self.minute_usage = 0  # units reserved of a limit a minute since the last settlement
        self.was_changed = False  # since the last settlement
        self._used_now = self._used_before = 0  # units that were reserved in this second and in the last one
        self._tick = self._idle_ticks = 0

    @property
    def remaining(self) -> int:
        """The units that are free here, and those that were free in the store at the last grant."""
        return max(0, min(self.unreserved + self.free, self.allowed))

    def reserve(self, amount: int) -> None:
        """Reserve units."""
        self.unreserved -= amount
        self.reserved += amount
        self.minute_usage += amount
        self._used_now += amount
        self._idle_ticks = 0
        self.was_changed = True

    def end(self, reserved: int, used: int, begins: float) -> None:
        """Release a reservation of which `used` units were used; `begins` is the window in which it was made."""
        if begins != self.begins:
            return  # The window has ended, and the share with it.
        unused = reserved - (0 if self.index == _CONCURRENCY else used)
        self.reserved -= reserved
        self.unreserved += unused
        self.minute_usage -= unused
        self.was_changed = True

    def start_window(self, now: float) -> None:
        """Drop the share if its window has ended."""
        if now >= self.renews_at and self.limit.span in ("day", "month"):
            self.unreserved = self.reserved = 0
            self.begins, self.renews_at = now, inf

    def request(self, need: int) -> GrantRequest:
        """Return the request for a share that lets `need` units be reserved, and some that may follow."""
        missing = need - self.unreserved
        return GrantRequest(self.limit.id, missing, max(missing, self._used_before // _AHEAD))

    def add(self, grant: Grant) -> None:
        """Add what the store granted."""
        if grant.begins != self.begins and self.limit.span in ("day", "month"):
            self.unreserved = self.reserved = 0
            self.begins = grant.begins
        self.unreserved += grant.amount
        self.allowed, self.free, self.renews_at = grant.allowed, grant.unreserved, grant.renews_at
        if grant.allowed < 0:  # The limit was removed: there is no bound, until the account is read again.
            self.unreserved = _UNBOUNDED
        self.was_changed = True

    def report(self) -> int:
        """Return the units that this process keeps, for a settlement. Units unused for a second are given back."""
        self._tick += 1
        self._idle_ticks += 1
        if self._tick % IDLE_TICKS == 0:
            self._used_before, self._used_now = self._used_now, 0
        if self._idle_ticks > IDLE_TICKS and self.unreserved > 0:
            self.unreserved = 0
        # The store counts what was used beyond the share, so it is not a debt any more.
        if self.limit.span == "minute":
            self.unreserved = max(self.unreserved, 0)
        else:
            self.unreserved = max(self.unreserved, -self.reserved)
        self.was_changed = self.unreserved > 0
        return self.unreserved if self.limit.span == "minute" else self.unreserved + self.reserved


_CONCURRENCY = RESOURCES.index("concurrency")


class Reservation(Struct, frozen=True):
    """The units that one running request has reserved of the limits of its account."""

    shares: tuple[LimitShare, ...]
    amounts: Amounts
    windows: tuple[float, ...]  # `begins` of each share

    def release(self, used: Amounts) -> None:
        """End the reservation; the request used the amounts `used`."""
        for share, begins in zip(self.shares, self.windows, strict=True):
            share.end(self.amounts[share.index], used[share.index], begins)


NO_RESERVATION = Reservation((), (0, 0, 0, 0), ())


def try_reserve(shares: Sequence[LimitShare], amounts: Amounts, now: float) -> Reservation | list[LimitShare]:
    """Reserve units of all shares, or of none. Return the shares that are too small if there are any."""
    if not shares:
        return NO_RESERVATION
    small: list[LimitShare] = []
    for share in shares:
        if now >= share.renews_at:
            share.start_window(now)
        if share.unreserved < amounts[share.index]:
            small.append(share)
    if small:
        return small
    for share in shares:
        share.reserve(amounts[share.index])
    return Reservation(tuple(shares), amounts, tuple([share.begins for share in shares]))


def shares_of(limits: Iterable[Limit], known: dict[LimitId, LimitShare]) -> tuple[LimitShare, ...]:
    """Return the shares of these limits; those that are not known yet are made, and added to `known`."""
    found = []
    for limit in limits:
        share = known.get(limit.id)
        if share is None:
            share = known[limit.id] = LimitShare(limit)
        found.append(share)
    return tuple(found)

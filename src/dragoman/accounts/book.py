"""The account book: the accounts of this process, kept in step with the store.

A request finds its account here by the digest of its key, reserves what it may use, and is settled when it has ended.
Accounts are read from the store once and cached. Some times a second one task reads which keys and limits have changed,
and reports ended requests and shares (see `shares`). A request waits for the store only if its key is not cached, or if
a share is used up.

If the store cannot be written, requests continue on the shares of this process; their rows wait here, within a bound.
Then requests of accounts with limits are refused, and the rows of other requests are dropped and counted.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from math import inf
from typing import Literal, TypeAlias

from msgspec import Struct

from dragoman.accounts.account import Account
from dragoman.accounts.keys import is_key_id
from dragoman.accounts.shares import Amounts, LimitShare, Reservation, shares_of, try_reserve
from dragoman.errors import ClientFault, Fault
from dragoman.store.interface import (
    ALL,
    ClientKey,
    Grant,
    LedgerRow,
    Limit,
    LimitId,
    Settlement,
    Store,
    StoreUnavailable,
)

SETTLE_SECONDS = 0.1  # between two settlements: what a killed process loses, and how fast a revoked key is noticed
_HEARTBEAT_SECONDS = 3.0  # A process that reports nothing for ten seconds counts as dead.
_DELETE_SECONDS = 60.0  # between two looks for old rows
_DELETED_AT_ONCE = 1000  # rows
_OPEN_SECONDS = 5.0  # between two attempts to open the store
MAX_PENDING_ROWS = 10_000
_MAX_CACHED = 20_000  # accounts
_STORE_DOWN = Fault(
    "overloaded",
    "the store of keys and limits cannot be used now, and this request needs it; the gateway's log says why",
    503,
    retry_after=5.0,
)


ReportLevel: TypeAlias = Literal["info", "warning", "error"]


class LimitReached(ClientFault):
    """A limit of the account is used up (429)."""

    def __init__(self, fault: Fault, share: LimitShare) -> None:
        super().__init__(fault.message, fault=fault)
        self.share = share


class _Running(Struct):
    """A request that has not ended."""

    make_row: Callable[[], LedgerRow]
    ticks: int = 0  # settlements since it began


class AccountBook:
    """The accounts of this process. `report` writes an event to the log, `on_revoked` gets the id of a revoked key.

    Rows of the ledger that are older than `retention` seconds are deleted.
    """

    def __init__(
        self,
        store: Store,
        report: Callable[[ReportLevel, str], None],
        on_revoked: Callable[[str], None],
        *,
        retention: float = inf,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.store = store
        self.refused: Counter[str] = Counter()  # requests, by the resource and span of the limit
        self.unpriced = 0  # requests without a known price
        self.gateway = Account()  # of the gateway's own key
        self.dropped = 0  # rows that could not be written
        self.is_down = False  # The last use of the store failed.
        self._report, self._on_revoked, self._now = report, on_revoked, now
        self._by_digest: dict[bytes, Account] = {}
        self._by_id: dict[str, Account] = {}
        self._shares: dict[LimitId, LimitShare] = {}
        self._rows: list[LedgerRow] = []
        self._running: dict[str, _Running] = {}
        self._granting = asyncio.Lock()
        self._is_open = False
        self._open_at = 0.0  # when to try to open the store again
        self._retention, self._delete_at = retention, 0.0
        self._seen_change = 0
        self._heartbeat_at = 0.0
        self._task: asyncio.Task[None] | None = None

    @property
    def pending_rows(self) -> int:
        """Rows that are not written yet."""
        return len(self._rows)

    # --- start and end

    async def open(self) -> None:
        """Open the store, and keep trying if that fails: meanwhile only the gateway's own key can be used."""
        await self._open_store()
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def _open_store(self) -> None:
        try:
            await self.store.open()
            self._seen_change = await self.store.changes()
            await self._load_gateway()
        except StoreUnavailable as error:
            self._open_at = self._now() + _OPEN_SECONDS
            self._failed(error)
        else:
            self._is_open = True
            self._worked()

    async def close(self) -> None:
        """Settle what has ended, give back all shares, and close the store."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        if self._is_open:
            await self._settle()
            with suppress(StoreUnavailable):
                await self.store.close()

    async def _load_gateway(self) -> None:
        self._set_limits(self.gateway, await self.store.limits((ALL,)))

    def _set_limits(self, account: Account, limits: Sequence[Limit]) -> None:
        resources = {limit.resource for limit in limits}
        account.shares = shares_of(limits, self._shares)
        account.needs_estimate = not resources.isdisjoint(("tokens", "cost"))
        account.has_cost_limit = "cost" in resources

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(SETTLE_SECONDS)
            if not self._is_open:
                if self._now() >= self._open_at:
                    await self._open_store()
                continue
            try:
                await self._read_changes()
                await self._delete_old()
            except StoreUnavailable as error:
                self._failed(error)
            await self._settle()

    async def _delete_old(self) -> None:
        """Delete some old rows of the ledger, now and then."""
        now = self._now()
        if self._retention == inf or now < self._delete_at:
            return
        deleted = await self.store.delete_before(now - self._retention, _DELETED_AT_ONCE)
        self._delete_at = now + (0.0 if deleted == _DELETED_AT_ONCE else _DELETE_SECONDS)

    def _failed(self, error: StoreUnavailable) -> None:
        if not self.is_down:
            self.is_down = True
            self._report("warning", f"{error}; requests without limits continue, and their rows wait")

    def _worked(self) -> None:
        if self.is_down:
            self.is_down = False
            self._report("info", "the store of keys and limits can be used again")

    # --- accounts

    def find_cached(self, digest: bytes) -> Account | None:
        """Return the account of a key that was found before."""
        return self._by_digest.get(digest)

    async def find(self, digest: bytes) -> Account | None:
        """Return the account of a key, revoked or not; None for an unknown one. Raises ClientFault (503)."""
        account = self._by_digest.get(digest)
        if account is None:
            self._check_open()
            try:
                key = await self.store.find_key(digest)
                account = None if key is None else await self._add(key, digest)
            except StoreUnavailable as error:
                self._failed(error)
                raise ClientFault(_STORE_DOWN.message, fault=_STORE_DOWN) from None
        return account

    async def find_by_id(self, key_id: str) -> tuple[ClientKey, Account] | None:
        """Return a key and its account by its id, which an AWS client sends. Raises ClientFault (503)."""
        if not is_key_id(key_id):
            return None
        self._check_open()
        try:
            key = await self.store.key(key_id)
            if key is None:
                return None
            return key, self._by_id.get(key_id) or await self._add(key, key.digest)
        except StoreUnavailable as error:
            self._failed(error)
            raise ClientFault(_STORE_DOWN.message, fault=_STORE_DOWN) from None

    def _check_open(self) -> None:
        if not self._is_open:
            raise ClientFault(_STORE_DOWN.message, fault=_STORE_DOWN)

    async def _add(self, key: ClientKey, digest: bytes) -> Account:
        """Add the account of a key to the cache, unless the key changed while its limits were read."""
        former = () if digest == key.digest else (key.former_until,)
        seen = self._seen_change
        scopes = [f"key:{key.id}", *([f"owner:{key.owner}"] if key.owner else []), ALL]
        limits = await self.store.limits(scopes)
        account = Account(
            key.id,
            key.name,
            key.owner,
            key.models,
            key.upstreams,
            min((at for at in (key.expires_at, key.revoked_at, *former) if at is not None), default=inf),
            key.revoked_at is not None,
        )
        self._set_limits(account, limits)
        if seen == self._seen_change:
            if len(self._by_digest) >= _MAX_CACHED:
                self._forget_all()
            self._by_digest[digest] = account
            if not former:
                self._by_id[key.id] = account
        return account

    def _forget_all(self) -> None:
        self._by_digest.clear()
        self._by_id.clear()

    async def _read_changes(self) -> None:
        """Forget the accounts of keys that changed; all of them if limits changed."""
        number = await self.store.changes()
        if number == self._seen_change:
            return
        changed, self._seen_change = await self.store.changed_since(self._seen_change), number
        self._forget_all()
        await self._load_gateway()
        for name in changed:
            kind, _, key_id = name.partition(":")
            if kind == "key" and (key := await self.store.key(key_id)) is not None and key.revoked_at is not None:
                self._on_revoked(key_id)

    # --- limits

    async def reserve(self, account: Account, amounts: Amounts) -> Reservation:
        """Reserve what a request may use. Raises LimitReached, ClientFault (503)."""
        reserved = try_reserve(account.shares, amounts, self._now())
        if isinstance(reserved, Reservation):
            return reserved
        async with self._granting:  # Requests that wait for it may find that the share is large enough now.
            while True:
                small = try_reserve(account.shares, amounts, self._now())
                if isinstance(small, Reservation):
                    return small
                if len(self._rows) >= MAX_PENDING_ROWS:
                    raise ClientFault(_STORE_DOWN.message, fault=_STORE_DOWN)
                requests = [share.request(amounts[share.index]) for share in small]
                try:
                    grants = await self.store.grant(requests)
                except StoreUnavailable as error:
                    self._failed(error)
                    raise ClientFault(_STORE_DOWN.message, fault=_STORE_DOWN) from None
                for share, grant in zip(small, grants, strict=True):
                    share.add(grant)
                for share, grant, request in zip(small, grants, requests, strict=True):
                    if 0 <= grant.amount < request.need and grant.allowed >= 0:
                        self.refused[f"{share.limit.resource} {share.limit.span}"] += 1
                        raise LimitReached(limit_fault(account, share, grant, self._now()), share)

    # --- the ledger

    def begin(self, request_id: str, make_row: Callable[[], LedgerRow]) -> None:
        """Record that a request runs; if it runs long, `make_row` returns its open row."""
        self._running[request_id] = _Running(make_row)

    def finish(self, row: LedgerRow, reservation: Reservation, used: Amounts) -> None:
        """Record that a request has ended: release its reservation, and write its row soon."""
        self._running.pop(row.request_id, None)
        if reservation.shares:
            reservation.release(used)
        if len(self._rows) < MAX_PENDING_ROWS:
            self._rows.append(row)
        else:
            self.dropped += 1

    def _open_rows(self) -> Iterable[LedgerRow]:
        """Return the rows of requests that run since the last settlement and have no row yet."""
        for running in self._running.values():
            running.ticks += 1
            if running.ticks == 2:
                yield running.make_row()

    async def _settle(self) -> None:
        """Report ended requests and shares. A grant waits meanwhile: the report must contain it or come before it."""
        async with self._granting:
            ended, self._rows = self._rows, []
            rows = [*self._open_rows(), *ended]
            changed = [share for share in self._shares.values() if share.was_changed]
            now = self._now()
            if not rows and not changed and now < self._heartbeat_at + _HEARTBEAT_SECONDS:
                return
            minute_usage = {share.limit.id: share.minute_usage for share in changed if share.limit.span == "minute"}
            for share in changed:
                share.minute_usage = 0
            shares = {share.limit.id: share.report() for share in changed}
            try:
                await self.store.settle(Settlement(rows, shares, minute_usage))
            except StoreUnavailable as error:
                self._rows = ended + self._rows
                for share in changed:
                    share.was_changed = True
                    share.minute_usage += minute_usage.get(share.limit.id, 0)
                self._failed(error)
                return
            self._heartbeat_at = now
            self._worked()


_NAMES = {"requests": "requests", "tokens": "tokens", "cost": "dollars", "concurrency": "requests at once"}
_SPANS = {"minute": " a minute", "day": " a day", "month": " a month", "ever": " in all", "now": ""}
_NANO = 1_000_000_000


def limit_fault(account: Account, share: LimitShare, grant: Grant, now: float) -> Fault:
    """Return the refusal for a limit that is used up: which one, how much it allows, and when it renews."""
    limit = share.limit
    allowed = f"{grant.allowed / _NANO:,.2f}" if limit.resource == "cost" else f"{grant.allowed:,}"
    what = f"{_whose(account, limit.scope)} may use {allowed} {_NAMES[limit.resource]}{_SPANS[limit.span]}"
    if limit.span in ("minute", "now"):
        wait = max(1.0, grant.renews_at - now) if grant.renews_at != inf else 1.0
        return Fault("rate_limit", f"{what}, and the rest is too little for this request", 429, retry_after=wait)
    when = "it does not renew"
    if grant.renews_at != inf:
        when = f"it renews at {time.strftime('%Y-%m-%d %H:%M UTC', time.gmtime(grant.renews_at))}"
    retry_after = None if grant.renews_at == inf else max(1.0, grant.renews_at - now)
    message = f"{what}, and the rest is too little for this request; {when}"
    return Fault("quota", message, 429, retry_after=retry_after)


def _whose(account: Account, scope: str) -> str:
    if scope == ALL:
        return "all keys of this gateway together"
    kind, _, name = scope.partition(":")
    return f"the owner {name}" if kind == "owner" else f"the key {account.name or account.id}"

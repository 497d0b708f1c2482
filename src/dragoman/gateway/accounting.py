"""Accounting: what a request may use is reserved before an upstream is asked, and settled when the request has ended.

`attempts` calls `reserve` when the targets of a request are known; the application calls `finish` for every request of
a proven key. What a request used:

    no upstream was asked                        nothing
    the upstream reported tokens                 as reported
    the reply has content and no report          an estimate: the request's length, and the pieces that arrived
    it failed without content                    nothing

So a client that leaves early, or whose stream is cut, pays for what it got. A request that needed several attempts has
one row. The number of tokens in a piece of a response is learned for each upstream from responses that report tokens.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path

from dragoman.accounts.account import Account
from dragoman.accounts.book import AccountBook
from dragoman.accounts.prices import Price, PriceBook
from dragoman.accounts.prices_file import load_price_book
from dragoman.accounts.shares import NO_RESERVATION, RESOURCES, Amounts, LimitShare
from dragoman.dialects.base import LimitHeaders
from dragoman.errors import ClientFault, Fault
from dragoman.gateway.access_log import AccessLog
from dragoman.gateway.attempts import ClientRequest
from dragoman.gateway.config import Config, price_files
from dragoman.gateway.context import RequestContext
from dragoman.gateway.metrics import AccountGauges
from dragoman.gateway.model_entries import limits_of_model
from dragoman.gateway.records import LogLevel, Record
from dragoman.gateway.targets import Target
from dragoman.model.conversation import Usage, parse_token_count
from dragoman.store.interface import LedgerRow, Store
from dragoman.wire.http import Headers
from dragoman.wire.jsonio import Json

_BYTES_PER_TOKEN = 4  # of a request's body
_NO_USAGE = Usage()
_LEARNING = 0.1  # the weight of one response in the average


class Accounting:
    """The accounts of one gateway, and the estimates that they need."""

    def __init__(self, book: AccountBook, config: Config, prices: PriceBook) -> None:
        self.book = book
        self._tokens_per_piece: dict[str, float] = {}  # by upstream
        self._configure(config, prices)

    def prepare(self, config: Config) -> Callable[[], None]:
        """Read the prices of another configuration; return a function that applies both. Raises PriceFileError."""
        return partial(self._configure, config, load_prices(config))

    def _configure(self, config: Config, prices: PriceBook) -> None:
        self.config, self.prices = config, prices
        self._providers = {
            name: prices.provider_of(upstream.base_url, upstream.preset, upstream.dialect.name)
            for name, upstream in config.upstreams.items()
        }

    def describe(self) -> dict[str, Json]:
        """Return the state of the store and of prices, for `dragoman status`."""
        book = self.book
        seen = [price.seen for price in self.prices if price.seen is not None]
        return {
            "state": "unavailable" if book.is_down else "ok",
            "pending_rows": book.pending_rows,
            "dropped_rows": book.dropped,
            "refused": dict(book.refused),
            "unpriced": book.unpriced,
            "prices": {"version": self.prices.version, "newest": max(seen).isoformat() if seen else None},
        }

    def gauges(self) -> AccountGauges:
        """Return the figures for `/metrics`."""
        book = self.book
        return AccountGauges(dict(book.refused), book.unpriced, book.pending_rows, book.dropped, not book.is_down)

    # --- before an upstream is asked

    def allowed_targets(self, account: Account, targets: Sequence[Target]) -> Sequence[Target]:
        """Return the targets that may answer this account. Raises ClientFault (403) if there are none."""
        if not account.upstreams:
            return targets
        allowed = [target for target in targets if account.allows_upstream(target.upstream.name)]
        if not allowed:
            names = ", ".join(dict.fromkeys(target.upstream.name for target in targets))
            message = f"the key {account.name or account.id} may not use the upstream {names}"
            raise ClientFault(message, fault=Fault("permission", message, 403))
        return allowed

    async def reserve(
        self, context: RequestContext, client_request: ClientRequest, targets: Sequence[Target]
    ) -> Sequence[Target]:
        """Reserve what the request may use of the account's limits. Return the targets that may answer it.

        Raises LimitReached, ClientFault.
        """
        record = context.record
        account = record.account
        assert account is not None  # set by admission
        targets = self.allowed_targets(account, targets)
        tokens = cost = 0
        if account.needs_estimate:
            record.input_estimate = client_request.estimate_input()
            output = self._output_estimate(account, client_request, targets)
            tokens = record.input_estimate + output
            cost = self._cost_estimate(account, Usage(record.input_estimate, output), targets)
        record.session = client_request.session.affinity
        self.book.begin(record.id, partial(open_row, record, tokens, cost))
        try:
            record.reservation = await self.book.reserve(account, (1, tokens, cost, 1))
        finally:
            record.limit_headers = limit_headers(context.client.limit_headers, account.shares)
            context.exchange.headers = (*context.exchange.headers, *record.limit_headers)
        return targets

    def _output_estimate(self, account: Account, client_request: ClientRequest, targets: Sequence[Target]) -> int:
        """Return how many tokens to reserve for the reply."""
        settings = self.config.accounts
        model_limits = limits_of_model(self.config, targets[0].model)
        limits = [client_request.parameters.max_tokens, None if model_limits is None else model_limits.longest_answer]
        most = min((limit for limit in limits if limit is not None), default=None)
        if settings.strict and most is not None:
            return most
        expected = account.reply_lengths(targets[0].model).estimate() or settings.output_estimate
        return expected if most is None else min(most, expected)

    def _cost_estimate(self, account: Account, usage: Usage, targets: Sequence[Target]) -> int:
        """Return the cost to reserve: that of the most expensive target. Raises ClientFault (403) if none is known."""
        now, costs = time.time(), list[int]()
        for target in targets:
            price = self._price(target.upstream.name, target.model, now)
            cost = None if price is None else price.cost(usage)
            if cost is not None:
                costs.append(cost)
            elif account.has_cost_limit and self.config.accounts.unpriced == "refuse":
                raise _unpriced(account, target)
        return max(costs, default=0)

    def _price(self, upstream: str, model: str, now: float) -> Price | None:
        return self.prices.find(self._providers.get(upstream, ""), upstream, model, now)

    # --- when the request has ended

    def finish(self, record: Record) -> None:
        """Release the reservation of a request, and write its row."""
        account = record.account
        if account is None:
            return
        usage = self._usage(record)
        if record.attempts:
            price = self._price(record.upstream, record.used_model, time.time())
            record.cost = None if price is None else price.cost(usage, cache_write_1h=one_hour_cache_writes(usage))
            record.price_version = self.prices.version
            self.book.unpriced += record.cost is None
        row = ledger_row(record, account, usage)
        used: Amounts = (1 if record.attempts else 0, row.tokens, row.cost or 0, 0)
        self.book.finish(row, record.reservation or NO_RESERVATION, used)
        record.reservation = None
        if record.usage is not None and account.needs_estimate and not usage.estimated:
            account.reply_lengths(record.used_model).add(usage.output)

    def _usage(self, record: Record) -> Usage:
        """Return what the request used: as reported, or an estimate."""
        usage, reads = record.usage, record.reads
        if usage is not None and (usage.output or not reads):
            if reads and not usage.estimated:
                before = self._tokens_per_piece.get(record.upstream, usage.output / reads)
                self._tokens_per_piece[record.upstream] = before + _LEARNING * (usage.output / reads - before)
            return usage
        if not reads or not record.has_content:
            return usage or _NO_USAGE
        output = max(1, round(reads * self._tokens_per_piece.get(record.upstream, 1.0)))
        input_tokens = record.input_estimate or record.request_bytes // _BYTES_PER_TOKEN
        if usage is None:
            return Usage(input_tokens, output, estimated=True)
        return Usage(usage.input, output, usage.cache_read, usage.cache_write, estimated=True)


def _unpriced(account: Account, target: Target) -> ClientFault:
    message = (
        f"the key {account.name or account.id} has a limit of cost, and the price of {target.model!r} at the upstream"
        f" {target.upstream.name} is not known: add it to a price file (docs/prices.md), or set accounts.unpriced"
    )
    return ClientFault(message, fault=Fault("permission", message, 403))


def one_hour_cache_writes(usage: Usage) -> int:
    """Return how many of the written cache tokens are kept for an hour, which costs more; Anthropic reports it."""
    created = usage.extra.fields.get("cache_creation") if usage.extra is not None and usage.cache_write else None
    return parse_token_count(created.get("ephemeral_1h_input_tokens")) if isinstance(created, dict) else 0


def load_prices(config: Config) -> PriceBook:
    """Return the prices of the configuration over the shipped ones. Raises PriceFileError."""
    return load_price_book(price_files(config, os.environ))


def create_accounting(config: Config, state: Path, log: AccessLog, on_revoked: Callable[[str], None]) -> Accounting:
    """Return the accounts of a configuration with a store, which is not opened yet. Raises PriceFileError."""
    store = create_store(config, state)

    def report(level: LogLevel, message: str) -> None:
        log.event(level, "store", message=message)

    assert config.store is not None
    retention = config.store.retention_days * 86400.0
    return Accounting(AccountBook(store, report, on_revoked, retention=retention), config, load_prices(config))


def create_store(config: Config, state: Path) -> Store:
    """Return the store that the configuration names, not opened yet."""
    from dragoman.store.sqlite.engine import SqliteStore  # noqa: PLC0415  sqlite3 takes memory

    assert config.store is not None
    return SqliteStore(config.store.folder(state), zone=config.store.time_zone)


def limit_headers(names: LimitHeaders | None, shares: Sequence[LimitShare], now: float | None = None) -> Headers:
    """Return the headers that report limits of a minute: of each resource, the limit with the least left."""
    if names is None or not shares:
        return ()
    least_left: dict[int, tuple[int, LimitShare]] = {}
    for share in shares:
        if share.has_headers:
            remaining, index = share.remaining, share.index
            if index not in least_left or remaining < least_left[index][0]:
                least_left[index] = remaining, share
    headers: list[tuple[str, str]] = []
    for index, (remaining, share) in least_left.items():
        limit, rest, reset = _header_names(names, index)
        wait = 60.0 * (1 - remaining / share.allowed) if share.allowed > 0 else 0.0
        headers += ((limit, str(share.allowed)), (rest, str(remaining)))
        if names.is_time:
            at = (time.time() if now is None else now) + wait
            headers.append((reset, time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))))
        else:
            headers.append((reset, _duration(wait)))
    return tuple(headers)


@cache
def _header_names(names: LimitHeaders, index: int) -> tuple[str, str, str]:
    resource = RESOURCES[index]
    return names.limit.format(resource), names.remaining.format(resource), names.reset.format(resource)


def _duration(seconds: float) -> str:
    """Return a duration as OpenAI writes it: `6m0s`, `1.5s`, `20ms`."""
    if seconds < 1:
        return f"{round(seconds * 1000)}ms"
    minutes, rest = divmod(seconds, 60)
    return f"{minutes:.0f}m{rest:.0f}s" if minutes else f"{rest:.3g}s"


def open_row(record: Record, tokens: int, cost: int) -> LedgerRow:
    """Return the row of a request that runs, with what is charged if this process is killed."""
    account = record.account
    assert account is not None
    began = time.time() - (time.monotonic() - record.began)
    return LedgerRow(
        record.id,
        began,
        account.id,
        account.owner,
        "open",
        client=record.client,
        dialect=record.dialect,
        operation=record.operation,
        model=record.model,
        used_model=record.used_model,
        upstream=record.upstream,
        upstream_dialect=record.upstream_dialect,
        session=record.session,
        attempts=max(1, record.attempts),
        estimated=True,
        reserved_tokens=tokens,
        reserved_cost=cost,
    )


def ledger_row(record: Record, account: Account, usage: Usage) -> LedgerRow:
    """Return the row of a request that has ended."""
    first = record.first_byte
    return LedgerRow(  # Arguments by position: by name they would take many times as long.
        record.id,
        time.time() - record.total,
        account.id,
        account.owner,
        "ended",
        record.client,
        record.dialect,
        record.operation,
        record.model,
        record.used_model,
        record.upstream,
        record.upstream_dialect,
        record.session,
        record.outcome,
        record.status,
        record.attempts,
        usage.input,
        usage.output,
        usage.cache_read,
        usage.cache_write,
        usage.reasoning,
        usage.estimated,
        record.cost,
        record.price_version,
        0,
        0,
        None if first is None else first * 1000,
        record.total * 1000,
        len(record.notes),
    )

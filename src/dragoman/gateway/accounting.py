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

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from dragoman.accounts.account import Account
from dragoman.accounts.book import AccountBook
from dragoman.accounts.shares import NO_RESERVATION, Amounts, LimitShare
from dragoman.dialects.base import LimitHeaders
from dragoman.errors import ClientFault, Fault
from dragoman.gateway.access_log import AccessLog
from dragoman.gateway.attempts import ClientRequest
from dragoman.gateway.config import Config
from dragoman.gateway.context import RequestContext
from dragoman.gateway.listing import figures_of
from dragoman.gateway.records import Level, Record
from dragoman.gateway.targets import Target
from dragoman.model.conversation import Usage
from dragoman.store.interface import LedgerRow, Store
from dragoman.wire.http import Headers

_BYTES_PER_TOKEN = 4  # of a request's body
_NO_USAGE = Usage()
_LEARNING = 0.1  # the weight of one response in the average


class Accounting:
    """The accounts of one gateway, and the estimates that they need."""

    def __init__(self, book: AccountBook, config: Config) -> None:
        self.book = book
        self.config = config  # a reload replaces it
        self._tokens_per_piece: dict[str, float] = {}  # by upstream

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
        record.session = client_request.session()
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
        figures = figures_of(self.config, targets[0].model)
        limits = [client_request.parameters.max_tokens, None if figures is None else figures.longest_answer]
        most = min((limit for limit in limits if limit is not None), default=None)
        if settings.strict and most is not None:
            return most
        expected = account.reply_lengths(targets[0].model).estimate() or settings.output_estimate
        return expected if most is None else min(most, expected)

    # --- when the request has ended

    def finish(self, record: Record) -> None:
        """Release the reservation of a request, and write its row."""
        account = record.account
        if account is None:
            return
        usage = self._usage(record)
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


def create_accounting(config: Config, state: Path, log: AccessLog, on_revoked: Callable[[str], None]) -> Accounting:
    """Return the accounts of a configuration with a store, which is not opened yet."""
    store = create_store(config, state)

    def report(level: Level, message: str) -> None:
        log.event(level, "store", message=message)

    return Accounting(AccountBook(store, report, on_revoked), config)


def create_store(config: Config, state: Path) -> Store:
    """Return the store that the configuration names, not opened yet."""
    from dragoman.store.sqlite.engine import SqliteStore  # noqa: PLC0415  sqlite3 takes memory

    assert config.store is not None
    return SqliteStore(config.store.folder(state), zone=config.store.time_zone)


def limit_headers(names: LimitHeaders | None, shares: Sequence[LimitShare], now: float | None = None) -> Headers:
    """Return the headers that report limits of a minute: of each resource, the limit with the least left."""
    if names is None:
        return ()
    tightest: dict[str, LimitShare] = {}
    for share in shares:
        limit = share.limit
        if limit.span == "minute" and limit.resource in ("requests", "tokens"):
            other = tightest.get(limit.resource)
            if other is None or share.remaining < other.remaining:
                tightest[limit.resource] = share
    headers: list[tuple[str, str]] = []
    for resource, share in tightest.items():
        wait = 60.0 * (1 - share.remaining / share.allowed) if share.allowed > 0 else 0.0
        at = (time.time() if now is None else now) + wait
        reset = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at)) if names.is_time else _duration(wait)
        headers += [
            (names.limit.format(resource), str(share.allowed)),
            (names.remaining.format(resource), str(share.remaining)),
            (names.reset.format(resource), reset),
        ]
    return tuple(headers)


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

"""The values of the store and the protocol `Store`, which every engine implements. Pure.

Theory of operation. No request waits for the store. Each process holds a *share* of every limit that it uses, and
counts requests against it in memory. It asks for a larger share when one is used up (`grant`), and reports ended
requests and the shares that it still holds in one transaction, some times a second (`settle`). What a limit has left is

    amount - what ended requests used - the shares of all processes

so the sum of what all processes admit never exceeds the amount. The share of a process that was killed counts as used
until the window of the limit ends, because the process may have used it. A process that calls neither `grant` nor
`settle` for `LIVE_SECONDS` counts as killed.

    day, month    windows by the calendar, in the time zone of the store. A request counts in the window in which it
                  was opened, also if it ends later. A share ends with its window.
    ever          one window without an end
    minute        no window: what was used becomes less steadily, by the whole amount in a minute. So no more than the
                  amount can be used at once, and in t minutes at most t + 1 times the amount. What requests take
                  counts when they begin (`Settlement.minute_usage`), because they may run for minutes.
    now           requests that run: only shares count, and only those of processes that live

A request may use more than it reserved. `used` counts all of it, so less is left for others. A share that a process
reports may be below zero then; it counts as zero here, and the next grant first makes up for it.

The ledger is the truth. The sums in `used` are those of its rows, and can be computed from them at any time. A row is
written exactly once: to settle a request again changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, Protocol, TypeAlias

from msgspec import Struct

from dragoman.errors import DragomanError

Resource: TypeAlias = Literal["requests", "tokens", "cost", "concurrency"]
Span: TypeAlias = Literal["minute", "day", "month", "ever", "now"]  # `now` is the span of concurrency, and only of it
UsageColumn: TypeAlias = Literal["day", "key", "owner", "model", "upstream"]
GATEWAY_KEY = "gateway"  # the id of the gateway's own key, which needs no store
ALL = "all"  # the scope of every request
LIVE_SECONDS = 10.0  # A process that has not called `grant` or `settle` for this time counts as killed.


class StoreUnavailable(DragomanError):
    """The store cannot be read or written now: a full disk, a read-only folder, a lock that is held for too long."""


class StoreUnusable(StoreUnavailable):
    """The store cannot be used by this program at all: a newer schema, a changed migration, a damaged file."""


class ClientKey(Struct, frozen=True, kw_only=True):
    """A key of a client, without its secret. Times are seconds since the epoch."""

    id: str  # public: in the key itself, in the log and in the ledger
    digest: bytes  # SHA-256 of the whole key
    name: str
    owner: str = ""
    models: tuple[str, ...] = ()  # names and patterns that it may ask for; empty: all
    upstreams: tuple[str, ...] = ()  # that may answer it; empty: all
    created_at: float
    expires_at: float | None = None
    revoked_at: float | None = None
    revision: int = 1  # grows when the secret is replaced
    former_digest: bytes = b""  # of the secret before the last one
    former_until: float = 0.0  # until when that one is accepted, too


class Limit(Struct, frozen=True):
    """How much of a resource a scope may use in a span of time. Cost is in nano-dollars."""

    scope: str  # `key:ID`, `owner:NAME` or `all`
    resource: Resource
    span: Span
    amount: int

    @property
    def id(self) -> LimitId:
        """The identity of the limit: its scope, resource and span."""
        return self.scope, self.resource, self.span


LimitId: TypeAlias = tuple[str, Resource, Span]


class GrantRequest(Struct, frozen=True):
    """A request for a larger share of one limit."""

    limit: LimitId
    need: int  # the least by which the share must grow; otherwise 0 is granted
    want: int  # the most by which it may grow


class Grant(Struct, frozen=True):
    """The result of a `GrantRequest`.

    `renews_at` is when the limit has more again: the end of a day's or month's window; inf for `ever`; for `now` the
    present, because a request may end at any time; for a minute, when the share could grow by `need` if it did not
    grow, else when all of the amount is free again.
    """

    amount: int  # by which the share grew; 0 if the limit has too little left
    allowed: int  # the amount of the limit; -1 if there is no such limit any more: nothing needs a share of it
    unreserved: int  # what no process holds, after this grant
    begins: float  # when the window of this share began, in seconds since the epoch
    renews_at: float


class LedgerRow(Struct, frozen=True, gc=False):
    """One request. A row of a request that runs is `open`; `settle` writes the row again when it has ended.

    A row counts in the window in which its request began, and as a request if an upstream was asked (`attempts`).
    """

    request_id: str
    opened_at: float
    key: str  # its id
    owner: str = ""
    state: Literal["open", "ended"] = "ended"
    client: str = ""  # IP address
    dialect: str = ""
    operation: str = "generate"
    model: str = ""  # that the client asked for
    used_model: str = ""
    upstream: str = ""
    upstream_dialect: str = ""
    session: str = ""
    outcome: str = ""  # as in the log; `lost` if the process was killed
    status: int = 0
    attempts: int = 0
    input_tokens: int = 0  # without those of a cache
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0  # a part of the output
    estimated: bool = False
    cost: int | None = None  # nano-dollars; None: unknown
    price_version: str = ""
    reserved_tokens: int = 0  # of an open row: charged if the process is killed
    reserved_cost: int = 0
    first_byte_ms: float | None = None
    total_ms: float = 0.0
    notes: int = 0

    @property
    def requests(self) -> int:
        """The count against a limit of requests: 1 if an upstream was asked, 0 if the gateway refused it."""
        return 1 if self.attempts else 0

    @property
    def tokens(self) -> int:
        """All tokens that count against a limit of tokens. Reasoning is in the output already."""
        return self.input_tokens + self.output_tokens + self.cache_read_tokens + self.cache_write_tokens


class Settlement(Struct, frozen=True):
    """The report of one process, stored in one transaction."""

    rows: Sequence[LedgerRow]
    # What the process still holds of each limit, absolute, with what running requests have reserved; of a limit a
    # minute without it. Not named: unchanged. No grant may be under way: the numbers must contain it.
    shares: Mapping[LimitId, int]
    # Units that requests reserved of limits a minute since the last settlement, less those that they gave back when
    # they ended. A limit that is not named: all units by which the share has become smaller.
    minute_usage: Mapping[LimitId, int] = {}


class SettlementResult(Struct, frozen=True):
    """The result of a `Settlement`."""

    new_rows: int  # rows that were ended by it; the others had been settled before
    changes: int  # the number of the last change of keys and limits


class UsageQuery(Struct, frozen=True, kw_only=True):
    """A question about usage: sums by these columns."""

    by: tuple[UsageColumn, ...] = ("day",)
    since: float = 0.0
    until: float | None = None
    key: str = ""  # only this key
    owner: str = ""


class UsageRow(Struct, frozen=True):
    """Sums of ended requests. `group` has the values of the columns of the query, in their order."""

    group: tuple[str, ...]
    requests: int
    failed: int  # outcomes other than ok
    input_tokens: int
    output_tokens: int
    cache_read_tokens: int
    cache_write_tokens: int
    reasoning_tokens: int
    estimated: int  # requests whose tokens are estimates
    cost: int  # nano-dollars, of the requests whose price is known
    unpriced: int  # requests whose price is unknown


class Repair(Struct, frozen=True):
    """The result of `repair`: how much it changed."""

    lost: int = 0  # open rows of killed processes, ended with what they had reserved as their usage
    released: int = 0  # shares of killed processes
    days: tuple[str, ...] = ()  # whose sums were wrong
    counters: int = 0  # of limits, that were wrong


class Store(Protocol):
    """An engine. Every method may raise StoreUnavailable; then it has changed nothing."""

    async def open(self) -> None:
        """Open the store, create or migrate it, and register this process. Raises StoreUnusable."""

    async def close(self) -> None:
        """Give back the shares of this process and close the store."""

    # --- keys and limits

    async def find_key(self, digest: bytes) -> ClientKey | None:
        """Return the key with this digest or former digest, valid or not."""

    async def key(self, key_id: str) -> ClientKey | None:
        """Return the key with this id."""

    async def keys(self) -> list[ClientKey]:
        """Return all keys, in the order of their creation."""

    async def put_key(self, key: ClientKey) -> None:
        """Add a key, or replace the one with this id. Durable when it returns."""

    async def limits(self, scopes: Sequence[str]) -> list[Limit]:
        """Return the limits of these scopes; of all scopes for an empty sequence."""

    async def put_limits(self, scope: str, limits: Sequence[Limit]) -> None:
        """Replace all limits of a scope. What the window has used so far counts against a new limit."""

    async def changes(self) -> int:
        """Return the number of the last change of keys and limits: it grows with every change, by any process."""

    async def changed_since(self, number: int) -> list[str]:
        """Return what changed after this number: `key:ID` and scopes of limits."""

    # --- shares and the ledger

    async def grant(self, requests: Sequence[GrantRequest]) -> list[Grant]:
        """Enlarge shares of this process, in one transaction."""

    async def settle(self, settlement: Settlement) -> SettlementResult:
        """Write rows, add what ended requests used, and set the shares of this process, in one transaction."""

    async def usage(self, query: UsageQuery) -> list[UsageRow]:
        """Return sums of the ledger, in the order of the groups."""

    async def requests(self, *, key: str = "", since: float = 0.0, most: int = 1000) -> list[LedgerRow]:
        """Return rows of the ledger, newest first."""

    async def delete_before(self, moment: float, most: int = 1000) -> int:
        """Delete at most `most` rows of requests that began before `moment`; return how many. Sums by day stay."""

    async def used(self, limit: LimitId) -> tuple[int, int]:
        """Return what ended requests used in the present window of a limit, and the shares of all processes."""

    # --- maintenance

    async def check(self) -> list[str]:
        """Return what is wrong, a sentence each: damage, and sums that are not those of the rows."""

    async def repair(self) -> Repair:
        """End the rows of killed processes as `lost`, release their shares, and compute sums anew that are wrong."""

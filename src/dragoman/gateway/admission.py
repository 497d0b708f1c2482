"""Which requests are let in, and their bodies: head, then key, then limits, then body.

A request takes no room of `server.limits` before it has proven that it may ask. One whose proof covers its body waits
in a pool of its own (`unproven`).
"""

from __future__ import annotations

from msgspec import structs

from dragoman.errors import ClientFault, Fault
from dragoman.gateway.auth import Claim, Gatekeeper
from dragoman.gateway.config import Server
from dragoman.gateway.exchange import Exchange
from dragoman.gateway.guard import Guard
from dragoman.gateway.limits import Load
from dragoman.gateway.peers import TrustedProxies
from dragoman.gateway.unproven import SECONDS, UnprovenRequests
from dragoman.http.addresses import limit_key
from dragoman.http.exchange import Pace
from dragoman.wire.http import HttpRequest


class Admission:
    """Lets requests in, by one configuration; `configure` puts another in force."""

    def __init__(self, settings: Server, key: str) -> None:
        self.load = Load(settings.limits)
        self._unproven = UnprovenRequests(settings.limits)
        self.configure(settings, key)

    def configure(self, settings: Server, key: str) -> None:
        self.load.limits = settings.limits
        self._unproven.resize(settings.limits)
        self._guard, self._keeper = Guard(settings.host, settings.hosts), Gatekeeper(key)
        self._proxies = TrustedProxies(settings.trusted_proxies)
        self._max_body = settings.max_body
        self._pace = Pace(rate=settings.min_body_rate)
        self._unproven_pace = Pace(SECONDS, settings.min_body_rate)

    def serves(self, exchange: Exchange) -> bool:
        """Whether a head is one that is served at all, key or not."""
        return self._refusal(exchange) is None

    def locate(self, exchange: Exchange) -> None:
        """Set the address of the client that a trusted proxy speaks for."""
        if self._proxies:
            exchange.client = self._proxies.client_of(exchange.client, exchange.request.headers)

    async def request(self, exchange: Exchange) -> HttpRequest:
        """Return a request that may ask, with its body. Raises ClientFault, Gone."""
        claim = self.judge_head(exchange)
        if claim is None or claim.is_proven:
            self._let_in(exchange)
            body = await self._body(exchange, self._pace)
        else:
            body = await self._unproven_body(exchange, claim)
        request = exchange.request
        if body is not request.body:
            request = exchange.request = structs.replace(request, body=body)
        if claim is not None:
            self._keeper.check_body(claim, request)
            if not claim.is_proven:
                self._unproven.remember(limit_key(exchange.client), claim.id)
                self._let_in(exchange, len(body))
        exchange.owner = self._keeper.owner_of(request)
        return request

    def judge_head(self, exchange: Exchange) -> Claim | None:
        """Return None for a head that proves its key, or the Claim that is checked with the body. Raises ClientFault.

        A refused connection closes after its answer: `exchange.last`.
        """
        fault = self._refusal(exchange)
        if fault is not None:
            exchange.last = True
            raise ClientFault(fault.message, fault=fault)
        return self._keeper.claim(exchange.request)

    def _refusal(self, exchange: Exchange) -> Fault | None:
        """Return why a head is refused whatever key it has, or None."""
        return self._guard.refusal(exchange.request, target=exchange.target, version=exchange.version)

    def _let_in(self, exchange: Exchange, size: int = 0) -> None:
        """Count a request that has proven itself, with the bytes of it that are here already. Raises Overloaded."""
        exchange.admitted()
        peer, waiting = limit_key(exchange.client), exchange.account
        exchange.account = self.load.enter(peer)
        if waiting is not None:
            waiting.leave()
        self.load.check(peer)
        if size:
            exchange.account.reserve(size)

    async def _body(self, exchange: Exchange, pace: Pace) -> bytes:
        """Read a body, once its account has room for it. Raises ClientFault, Gone."""
        exchange.reserve(self._max_body)
        body = await exchange.body(self._max_body, pace)
        if exchange.account is not None:
            exchange.account.add(len(body) - exchange.account.asked)  # exactly, however it was announced
        return body

    async def _unproven_body(self, exchange: Exchange, claim: Claim) -> bytes:
        exchange.account = self._unproven.enter(limit_key(exchange.client), claim.id, exchange.spoil)
        return await self._body(exchange, self._unproven_pace)

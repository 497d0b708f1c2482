"""Who comes in: what a head looks like, and whether it shows the key. Pure.

A client sends one head again and again, with another length of its body: one that was let in before is let in.
"""

from __future__ import annotations

from collections.abc import Hashable

from dragoman.errors import ClientFault
from dragoman.gateway.auth import Gatekeeper
from dragoman.gateway.exchange import Exchange
from dragoman.gateway.guard import Guard

_MOST, _LONGEST = 256, 4096  # heads that are remembered, and characters of one


class Door:
    """The guard and the keeper of one configuration."""

    def __init__(self, guard: Guard, keeper: Gatekeeper) -> None:
        self._guard, self.keeper = guard, keeper
        self._known: set[Hashable] = set()

    def admits(self, exchange: Exchange) -> bool:
        """Whether its head is enough; False if the keeper must see the body, too. Raises ClientFault."""
        head, target, version = exchange.request, exchange.target, exchange.version
        known = exchange.like or _but_for_the_length(exchange)
        if known in self._known:
            return True
        fault = self._guard.refusal(head, target=target, version=version)
        if fault is not None:
            exchange.last = True  # who sends such a thing is not heard on
            raise ClientFault(fault.message, fault=fault)
        if self.keeper.needs_body(head):
            return False
        self.keeper.check(head)
        if sum([len(name) + len(value) for name, value in head.headers], len(target)) <= _LONGEST:
            if len(self._known) >= _MOST:
                self._known.clear()
            self._known.add(known)
        return True


def _but_for_the_length(exchange: Exchange) -> Hashable:
    """With as many fields as another, it has the length as often as the other."""
    head = exchange.request
    same = tuple([field for field in head.headers if field[0] != "content-length"])
    return head.method, exchange.target, exchange.version, len(head.headers), same

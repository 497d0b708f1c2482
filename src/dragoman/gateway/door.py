"""Who comes in: what a head looks like, and whether it shows the key. Pure.

A client sends one head again and again, with another length of its body: one that was let in before is let in.
"""

from __future__ import annotations

from collections.abc import Hashable

from dragoman.errors import ClientFault, Fault
from dragoman.gateway.auth import Claim, Gatekeeper
from dragoman.gateway.exchange import Exchange
from dragoman.gateway.guard import Guard

_MOST, _LONGEST = 256, 4096  # heads that are remembered, and characters of one


class Door:
    """The guard and the keeper of one configuration."""

    def __init__(self, guard: Guard, keeper: Gatekeeper) -> None:
        self._guard, self.keeper = guard, keeper
        self._known: set[Hashable] = set()

    def refusal(self, exchange: Exchange) -> Fault | None:
        """Return why this head is refused whatever key it has; None if the key is to be checked."""
        return self._guard.refusal(exchange.request, target=exchange.target, version=exchange.version)

    def admits(self, exchange: Exchange) -> Claim | None:
        """Judge a head. None if it proves that it may ask; a Claim if the keeper must see the body, too.

        Raises ClientFault.
        """
        head, target = exchange.request, exchange.target
        known = exchange.like or _but_for_the_length(exchange)
        if known in self._known:
            return None
        fault = self.refusal(exchange)
        if fault is not None:
            exchange.last = True  # who sends such a thing is not heard on
            raise ClientFault(fault.message, fault=fault)
        claim = self.keeper.claim(head)
        if claim is not None or head.header("x-amz-date"):  # a signature is checked each time
            return claim
        if sum([len(name) + len(value) for name, value in head.headers], len(target)) <= _LONGEST:
            if len(self._known) >= _MOST:
                self._known.clear()
            self._known.add(known)
        return None


def _but_for_the_length(exchange: Exchange) -> Hashable:
    """With as many fields as another, it has the length as often as the other."""
    head = exchange.request
    same = tuple([field for field in head.headers if field[0] != "content-length"])
    return head.method, exchange.target, exchange.version, len(head.headers), same

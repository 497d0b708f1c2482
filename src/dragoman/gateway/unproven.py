"""Requests that have not yet proven that they may ask: a small pool that takes no room from others. Pure.

boto3 signs the hash of a body without stating it, so the body must be read before the signature can be checked. Until
then the request counts here and not on `server.limits`. Where the pool is full, the peer that holds most of it gives
way with its oldest request: a client that sends its body at once is let in although others keep theirs back.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from dragoman.errors import Fault
from dragoman.gateway.limits import Account, Load, Overloaded, RequestLimits

SECONDS = 10.0  # for the whole body
MOST_REQUESTS = 256
MOST_BYTES = 64 * 1024 * 1024
_MOST_KNOWN = 1024  # signers that are remembered
_MESSAGE = "too many requests whose signature cannot be checked yet are arriving at this gateway"


class Waiting(Account):
    """The account of one unproven request."""

    __slots__ = ("peer", "pool", "refuse")

    def __init__(self, pool: Pool, peer: str, refuse: Callable[[Fault], None]) -> None:
        super().__init__(pool.load)
        self.pool, self.peer, self.refuse = pool, peer, refuse

    def reserve(self, size: int) -> None:
        self.pool.make_room(self, size)
        self.add(size)

    def leave(self) -> None:
        if self.pool.remove(self):
            super().leave()


class Pool:
    """Unproven requests, oldest first, limited in number and in bytes."""

    def __init__(self, requests: int, size: int) -> None:
        self.load = Load(RequestLimits())
        self.requests, self.size = requests, size
        self._waiting: dict[Waiting, None] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def enter(self, peer: str, refuse: Callable[[Fault], None]) -> Waiting:
        """Count one more request of this peer; `refuse` ends it if it must give way. Raises Overloaded."""
        newcomer = Waiting(self, peer, refuse)
        self.make_room(newcomer, 0)
        self._waiting[newcomer] = None
        self.load.requests += 1
        return newcomer

    def remove(self, one: Waiting) -> bool:
        """Forget a request. False if it has been forgotten before."""
        if one not in self._waiting:
            return False
        del self._waiting[one]
        return True

    def make_room(self, newcomer: Waiting, size: int) -> None:
        """Let requests give way until the newcomer fits with so many bytes more. Raises Overloaded if it cannot."""
        while self._is_full(newcomer, size):
            victim = self._next_to_go(newcomer, size)
            if victim is None:
                raise Overloaded(_MESSAGE)
            victim.leave()
            victim.refuse(Overloaded(_MESSAGE).fault)

    def _is_full(self, newcomer: Waiting, size: int) -> bool:
        more = 0 if newcomer in self._waiting else 1
        return len(self._waiting) + more > self.requests or self.load.asked + size > self.size

    def _next_to_go(self, newcomer: Waiting, size: int) -> Waiting | None:
        """The oldest request of the peer that holds most of what is short; None if that is the newcomer alone.

        Where requests are too many, their bytes do not matter: else one large body would give way to many small ones.
        """
        by_bytes = self.load.asked + size > self.size
        shares = {newcomer.peer: size if by_bytes else 0 if newcomer in self._waiting else 1}
        for each in self._waiting:
            shares[each.peer] = shares.get(each.peer, 0) + (each.asked if by_bytes else 1)
        oldest_first = dict.fromkeys([each.peer for each in self._waiting])
        most = max((*oldest_first, newcomer.peer), key=shares.__getitem__)
        return next((each for each in self._waiting if each.peer == most and each is not newcomer), None)


class UnprovenRequests:
    """The two pools of unproven requests: strangers in one pool, signers that were let in before in another.

    A flood of strangers cannot shut out a boto3 client that has proven itself from the same address.
    """

    def __init__(self, limits: RequestLimits) -> None:
        self._strangers = Pool(MOST_REQUESTS, MOST_BYTES)
        self._returning = Pool(1, 1)
        self.resize(limits)
        self._known: OrderedDict[tuple[str, str], None] = OrderedDict()

    def resize(self, limits: RequestLimits) -> None:
        """Give returning signers half of what is in the limits."""
        self._returning.requests = max(limits.streams // 2, 1)
        self._returning.size = limits.in_flight // 2

    def enter(self, peer: str, signer: str, refuse: Callable[[Fault], None]) -> Waiting:
        """Open the account of an unproven request. Raises Overloaded."""
        pool = self._returning if (peer, signer) in self._known else self._strangers
        return pool.enter(peer, refuse)

    def remember(self, peer: str, signer: str) -> None:
        """A signer has proven itself from this address."""
        self._known[peer, signer] = None
        self._known.move_to_end((peer, signer))
        if len(self._known) > _MOST_KNOWN:
            self._known.popitem(last=False)

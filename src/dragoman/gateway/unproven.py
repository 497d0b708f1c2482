"""Unproven requests: a small pool for requests whose signature cannot be checked before their body has arrived. Pure.

boto3 signs the hash of a body without sending the hash, so the body must be read before the signature can be checked.
Until then the request counts in this pool and not toward `server.limits`. When the pool is full, the oldest request of
the peer with the largest share is evicted. So a client that sends its body at once is admitted although others withhold
theirs. Called by `admission`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from dragoman.errors import Fault
from dragoman.gateway.limits import MemoryAccount, MemoryBudget, Overloaded, RequestLimits

MAX_UNPROVEN = 256
MAX_UNPROVEN_BYTES = 64 * 1024 * 1024
_MAX_KNOWN_SIGNERS = 1024
_POOL_FULL = "the gateway has too many requests whose signature cannot be checked before their body has arrived"


class UnprovenAccount(MemoryAccount, eq=False, kw_only=True):
    """The account of one unproven request."""

    pool: UnprovenPool
    sender: str  # the peer; `budget` does not count it
    refuse: Callable[[Fault], None]

    def reserve(self, size: int) -> None:
        """Reserve this many bytes more, evicting other requests if needed. Raises Overloaded."""
        self.pool.make_room(self, size)
        self.hold("body", self.request_bytes + size)

    def leave(self) -> None:
        """Release everything; later calls do nothing."""
        if self.pool.remove(self):
            super().leave()


class UnprovenPool:
    """Unproven requests, oldest first, limited in number and in bytes."""

    def __init__(self, requests: int, size: int) -> None:
        self.budget = MemoryBudget(RequestLimits())
        self.requests, self.size = requests, size
        self._waiting: dict[UnprovenAccount, None] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def enter(self, peer: str, refuse: Callable[[Fault], None]) -> UnprovenAccount:
        """Add a request of this peer; `refuse` is called if it is evicted. Raises Overloaded."""
        incoming = UnprovenAccount(self.budget, pool=self, sender=peer, refuse=refuse)
        self.make_room(incoming, 0)
        self._waiting[incoming] = None
        self.budget.requests += 1
        return incoming

    def remove(self, one: UnprovenAccount) -> bool:
        """Remove a request. Return False if it is not in the pool."""
        if one not in self._waiting:
            return False
        del self._waiting[one]
        return True

    def make_room(self, incoming: UnprovenAccount, size: int) -> None:
        """Evict requests until the incoming request fits with `size` more bytes. Raises Overloaded if it cannot."""
        more = 0 if incoming in self._waiting else 1
        while len(self._waiting) + more > self.requests or self.budget.request_bytes + size > self.size:
            evicted = self._next_to_evict(incoming, size)
            if evicted is None:
                raise Overloaded(_POOL_FULL)
            evicted.leave()
            evicted.refuse(Overloaded(_POOL_FULL).fault)

    def _next_to_evict(self, incoming: UnprovenAccount, size: int) -> UnprovenAccount | None:
        """Return the oldest request of the peer with the largest share; None if that is the incoming request alone.

        If there are too many requests, they are counted and not their bytes: otherwise one large body would be evicted
        for many small ones.
        """
        by_bytes = self.budget.request_bytes + size > self.size
        shares = {incoming.sender: size if by_bytes else 0 if incoming in self._waiting else 1}
        for each in self._waiting:
            shares[each.sender] = shares.get(each.sender, 0) + (each.request_bytes if by_bytes else 1)
        oldest_first = dict.fromkeys([each.sender for each in self._waiting])
        most = max((*oldest_first, incoming.sender), key=shares.__getitem__)
        return next((each for each in self._waiting if each.sender == most and each is not incoming), None)


class UnprovenRequests:
    """Two pools of unproven requests: one for new signers, one for signers that were admitted before.

    So a flood of new signers cannot block a boto3 client that has proven the key before from its address.
    """

    def __init__(self, limits: RequestLimits) -> None:
        self._new = UnprovenPool(MAX_UNPROVEN, MAX_UNPROVEN_BYTES)
        self._returning = UnprovenPool(1, 1)
        self.resize(limits)
        self._known: OrderedDict[tuple[str, str], None] = OrderedDict()

    def resize(self, limits: RequestLimits) -> None:
        """Set the pool of returning signers to half of the limits."""
        self._returning.requests = max(limits.streams // 2, 1)
        self._returning.size = limits.in_flight // 2

    def enter(self, peer: str, signer: str, refuse: Callable[[Fault], None]) -> UnprovenAccount:
        """Open the account of an unproven request. Raises Overloaded."""
        pool = self._returning if (peer, signer) in self._known else self._new
        return pool.enter(peer, refuse)

    def remember(self, peer: str, signer: str) -> None:
        """Remember that this signer has proven the key from this address."""
        self._known[peer, signer] = None
        self._known.move_to_end((peer, signer))
        if len(self._known) > _MAX_KNOWN_SIGNERS:
            self._known.popitem(last=False)

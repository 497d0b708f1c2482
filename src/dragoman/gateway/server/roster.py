"""The open connections of a server: by peer, and in the order in which they give way when room runs short. Pure."""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar

_AT_ONCE = 16  # idle connections that are closed together: they are found by looking at all


class Member(Protocol):
    """A connection, as the roster sees it."""

    peer: str  # whom limits count it for
    deadline: float

    @property
    def is_busy(self) -> bool:
        """Whether a request is arriving or being answered."""

    def abort(self) -> None:
        """Close at once."""


M = TypeVar("M", bound=Member)


class Roster(Generic[M]):
    def __init__(self) -> None:
        self.members: set[M] = set()
        self._unproven: dict[M, None] = {}  # none of their requests was let in yet; oldest first
        self._by_peer: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self.members)

    def of(self, peer: str) -> int:
        """How many connections this peer has."""
        return self._by_peer.get(peer, 0)

    def add(self, member: M) -> None:
        self.members.add(member)
        self._unproven[member] = None
        self._by_peer[member.peer] = self._by_peer.get(member.peer, 0) + 1

    def prove(self, member: M) -> None:
        """A request of this connection was let in."""
        self._unproven.pop(member, None)

    def remove(self, member: M) -> None:
        if member not in self.members:
            return
        self.members.discard(member)
        self._unproven.pop(member, None)
        left = self._by_peer[member.peer] - 1
        if left:
            self._by_peer[member.peer] = left
        else:
            del self._by_peer[member.peer]

    def shed(self, peer: str = "") -> bool:
        """Close what is worth least, of this peer or of all. False if every connection has a running request.

        First the oldest connection of which no request was let in, then those that have been idle for longest.
        """
        for member in self._unproven:
            if not peer or member.peer == peer:
                self._close(member)
                return True
        idle = [each for each in self.members if not each.is_busy and (not peer or each.peer == peer)]
        for member in sorted(idle, key=lambda each: each.deadline)[: _AT_ONCE if not peer else 1]:
            self._close(member)
        return bool(idle)

    def _close(self, member: M) -> None:
        self.remove(member)
        member.abort()

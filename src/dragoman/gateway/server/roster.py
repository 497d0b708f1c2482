"""The open connections of a server: by peer, and in the order in which they give way when room runs short. Pure."""

from __future__ import annotations

from enum import Enum, auto
from time import monotonic
from typing import Generic, Protocol, TypeVar

GRACE = 1.0  # seconds that a connection has for its first byte, however many others wait
_AT_ONCE = 16  # idle connections that are closed together: they are found by looking at all


class Shed(Enum):
    """What came of an attempt to make room."""

    CLOSED = auto()  # a connection, or several
    LATER = auto()  # none, but some that have their grace now can be closed soon
    NOTHING = auto()  # every connection has a running request


class Member(Protocol):
    """A connection, as the roster sees it."""

    peer: str  # whom limits count it for
    since: float  # from when on it has its grace, by the monotonic clock
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
        # None of their requests was let in yet; oldest first.
        self._silent: dict[M, None] = {}  # nothing was read of them
        self._unproven: dict[M, None] = {}  # something was, and it was no request that is let in
        self._by_peer: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self.members)

    def of(self, peer: str) -> int:
        """How many connections this peer has."""
        return self._by_peer.get(peer, 0)

    def add(self, member: M) -> None:
        self.members.add(member)
        self._silent[member] = None
        self._by_peer[member.peer] = self._by_peer.get(member.peer, 0) + 1

    def hurry(self, member: M) -> None:
        """Give a connection no grace."""
        if member in self.members:
            member.since = 0.0

    def hear(self, member: M) -> None:
        """The first bytes of this connection were read."""
        if member in self._silent:
            del self._silent[member]
            self._unproven[member] = None

    def prove(self, member: M) -> None:
        """A request of this connection was let in."""
        self._silent.pop(member, None)
        self._unproven.pop(member, None)

    def remove(self, member: M) -> None:
        if member not in self.members:
            return
        self.members.discard(member)
        self.prove(member)
        left = self._by_peer[member.peer] - 1
        if left:
            self._by_peer[member.peer] = left
        else:
            del self._by_peer[member.peer]

    def shed(self, peer: str = "") -> Shed:
        """Close what is worth least, of this peer or of all.

        First the oldest connection that sent something which is no request, or not yet; a client that means well sends
        its whole head at once. Then the oldest that has sent nothing for `GRACE` seconds. While others have that grace,
        nothing more is closed. Last come those that have been idle for longest. A running request is never closed.
        """
        for member in self._unproven:
            if not peer or member.peer == peer:
                self._close(member)
                return Shed.CLOSED
        for member in self._silent:
            if not peer or member.peer == peer:
                if monotonic() < member.since + GRACE:
                    return Shed.LATER
                self._close(member)
                return Shed.CLOSED
        idle = [each for each in self.members if not each.is_busy and (not peer or each.peer == peer)]
        for member in sorted(idle, key=lambda each: each.deadline)[: _AT_ONCE if not peer else 1]:
            self._close(member)
        return Shed.CLOSED if idle else Shed.NOTHING

    def _close(self, member: M) -> None:
        self.remove(member)
        member.abort()

"""The open connections of a server: by peer, and in the order in which they give way when room runs short. Pure."""

from __future__ import annotations

from enum import Enum, auto
from time import monotonic
from typing import Generic, Protocol, TypeVar

GRACE = 1.0  # seconds that a connection has for its first byte, and a body to come at its rate, when room runs short
_SHORT_GRACE = 0.1  # seconds
_AT_ONCE = 16  # connections that are closed together: idle and slow ones are found by looking at all


class Shed(Enum):
    """What came of an attempt to make room."""

    CLOSED = auto()  # a connection, or several
    LATER = auto()  # none, but some that have their grace now can be closed soon
    NOTHING = auto()  # every connection has a request that runs, or arrives as it should


class Member(Protocol):
    """A connection, as the roster sees it."""

    peer: str  # whom limits count it for
    since: float  # from when on it has its grace, by the monotonic clock

    @property
    def idle_since(self) -> float:
        """When its last answer was written, if it is not busy."""

    @property
    def is_busy(self) -> bool:
        """Whether a request is arriving or being answered."""

    @property
    def has_unread(self) -> bool:
        """Whether bytes of the client wait to be read."""

    @property
    def is_slow(self) -> bool:
        """Whether a body is arriving that has come more slowly than it must, for `GRACE` seconds or more."""

    def abort(self) -> None:
        """Close at once."""


M = TypeVar("M", bound=Member)


class _Group(Generic[M]):
    """The connections of one peer, or of all."""

    __slots__ = ("members", "silent", "unproven")

    def __init__(self) -> None:
        self.members: set[M] = set()
        # None of their requests was let in yet; oldest first.
        self.silent: dict[M, None] = {}  # nothing was read of them
        self.unproven: dict[M, None] = {}  # something was, and it was no request that is let in


class Roster(Generic[M]):
    def __init__(self) -> None:
        self._all: _Group[M] = _Group()
        self._by_peer: dict[str, _Group[M]] = {}
        self.members = self._all.members

    def __len__(self) -> int:
        return len(self.members)

    @property
    def unproven(self) -> int:
        """How many connections have sent something, but no request that was let in."""
        return len(self._all.unproven)

    def of(self, peer: str) -> int:
        """How many connections this peer has."""
        group = self._by_peer.get(peer)
        return len(group.members) if group is not None else 0

    def has_room(self, peer: str, most: int) -> bool:
        """Whether one more connection of this peer may be. If it has `most`, one of them is closed for it."""
        return self.of(peer) < most or self.shed(peer) is not Shed.NOTHING

    def add(self, member: M) -> None:
        for group in (self._all, self._by_peer.setdefault(member.peer, _Group())):
            group.members.add(member)
            group.silent[member] = None

    def rename(self, member: M, peer: str) -> None:
        """Count a connection for another peer: the client that its proxy has named."""
        if member not in self.members:
            return
        heard = member not in self._all.silent
        self.remove(member)
        member.peer = peer
        self.add(member)
        if heard:
            self.hear(member)

    def hurry(self, member: M) -> None:
        """Give a connection a short grace: the system has probably waited for its first byte already.

        It has not where a flood of connections fills its queue.
        """
        if member in self.members:
            member.since = monotonic() - GRACE + _SHORT_GRACE

    def hear(self, member: M) -> None:
        """The first bytes of this connection were read."""
        if member in self._all.silent:
            for group in (self._all, self._by_peer[member.peer]):
                del group.silent[member]
                group.unproven[member] = None

    def prove(self, member: M) -> None:
        """A request of this connection was let in."""
        if member in self.members:
            for group in (self._all, self._by_peer[member.peer]):
                group.silent.pop(member, None)
                group.unproven.pop(member, None)

    def remove(self, member: M) -> None:
        if member not in self.members:
            return
        self.prove(member)
        self.members.discard(member)
        group = self._by_peer[member.peer]
        group.members.discard(member)
        if not group.members:
            del self._by_peer[member.peer]

    def shed(self, peer: str = "") -> Shed:
        """Close what is worth least, of this peer or of all.

        First the oldest connection that sent something which is no request, or not yet; a client that means well sends
        its whole head at once. Then the oldest that has sent nothing for `GRACE` seconds. While others have that grace,
        nothing more is closed. Then come those that have been idle for longest, and last those whose request arrives
        more slowly than `server.min_body_rate`. A request that has arrived, or arrives as it should, is never closed.
        """
        group = self._by_peer.get(peer, _Group()) if peer else self._all
        for member in group.unproven:
            self._close(member)
            return Shed.CLOSED
        for member in group.silent:
            if monotonic() < member.since + GRACE or member.has_unread:
                return Shed.LATER
            self._close(member)
            return Shed.CLOSED
        idle = sorted((each for each in group.members if not each.is_busy), key=lambda each: each.idle_since)
        weakest = idle or [each for each in group.members if each.is_slow]
        for member in weakest[: _AT_ONCE if not peer else 1]:
            self._close(member)
        return Shed.CLOSED if weakest else Shed.NOTHING

    def _close(self, member: M) -> None:
        self.remove(member)
        member.abort()

"""Earlier responses that several processes of one gateway share.

Each process stores the responses that it sent (`response_store`). A request may refer to one that another process sent:
it then asks the others through `SharedResponses`, and keeps what they return only for itself, so that every response is
stored once. One process alone has `NoSharedResponses`. Workers on one machine ask each other (`worker_responses`); an
engine for several machines implements the same protocol.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from msgspec import Struct, structs

from dragoman.gateway.response_store import (
    LONGEST_ID,
    NOTHING_FOUND,
    FoundResponses,
    ResponseHolder,
    ResponseHolders,
    ResponseStore,
)

_OF_ANOTHER_OWNER = ResponseHolder("", "", "", "")


class WantedResponses(Struct, frozen=True, omit_defaults=True):
    """The earlier responses and items that a request of one owner refers to."""

    owner: str
    responses: tuple[str, ...] = ()  # their ids
    items: tuple[str, ...] = ()  # their ids
    with_bodies: bool = False  # the responses as they were sent, instead of their conversations


class SharedResponses(Protocol):
    """The responses that the other processes of this gateway store."""

    async def find(self, wanted: WantedResponses, count: Callable[[int], None]) -> FoundResponses:
        """Return what other processes store of this. `count` gets the size of each piece before it is received.

        A process that does not respond in time counts as one that stores nothing. Raises the errors of `count`.
        """

    async def forget(self, owner: str, response_id: str) -> None:
        """Let all other processes remove a response."""


class NoSharedResponses:
    """No other process shares responses with this one. It implements `SharedResponses`."""

    async def find(self, wanted: WantedResponses, count: Callable[[int], None]) -> FoundResponses:
        """Return nothing."""
        return NOTHING_FOUND

    async def forget(self, owner: str, response_id: str) -> None:
        """Do nothing."""


def missing_responses(wanted: WantedResponses, store: ResponseStore, holders: ResponseHolders) -> WantedResponses:
    """Return the part of it that this process does not know. A response is known in one process only."""
    owner = wanted.owner
    responses = [
        each
        for each in wanted.responses
        if len(each) <= LONGEST_ID and holders.find(each) is None and store.response(owner, each) is None
    ]
    items = [each for each in wanted.items if len(each) <= LONGEST_ID and not store.has_item(owner, each)]
    return structs.replace(wanted, responses=tuple(responses), items=tuple(items))


def stored_responses(wanted: WantedResponses, store: ResponseStore, holders: ResponseHolders) -> FoundResponses:
    """Return what this process stores of it, for another process.

    A response of another owner is neither returned nor described. It is only marked as held, so that no upstream is
    asked for it.
    """
    owner, conversations, bodies, found_holders = wanted.owner, {}, {}, {}
    for each in wanted.responses:
        if wanted.with_bodies and (body := store.response(owner, each)) is not None:
            bodies[each] = body
        elif not wanted.with_bodies and (conversation := store.find_conversation(owner, each)) is not None:
            conversations[each] = conversation
        if (holder := holders.find(each)) is not None:
            found_holders[each] = holder if holder.owner == owner else _OF_ANOTHER_OWNER
    return FoundResponses(conversations, bodies, store.items(owner, wanted.items), found_holders)

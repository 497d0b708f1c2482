"""Earlier responses of the workers of one gateway: a worker that does not know a response asks its siblings.

All siblings are asked at once, and only on a miss. Each returns what it stores for that owner; conversations are
pickled, as they are for the worker process of large requests, and never written to disk.
"""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable

from msgspec import Struct, structs

from dragoman.gateway.response_store import (
    MAX_STORED_BYTES,
    NOTHING_FOUND,
    FoundResponses,
    ResponseHolders,
    ResponseStore,
)
from dragoman.gateway.shared_responses import WantedResponses, stored_responses
from dragoman.gateway.sibling_workers import RESPONSE_SECONDS, Sibling, Siblings
from dragoman.wire import jsonio

FIND, FORGET = "find", "forget"
_MAX_RESPONSE_BYTES = MAX_STORED_BYTES + 1024 * 1024


class _ForgottenResponse(Struct, frozen=True):
    owner: str
    response: str


_read_wanted = jsonio.typed_decoder(WantedResponses)
_read_forgotten = jsonio.typed_decoder(_ForgottenResponse)


class WorkerResponses:
    """The responses that the siblings of a worker store. It implements `SharedResponses`."""

    def __init__(self, siblings: Siblings, store: ResponseStore, holders: ResponseHolders) -> None:
        self._siblings, self._store, self._holders = siblings, store, holders

    # --- to the siblings

    async def find(self, wanted: WantedResponses, count: Callable[[int], None]) -> FoundResponses:
        counted = 0

        def count_piece(size: int) -> None:
            nonlocal counted
            count(size)
            counted += size

        question, found = jsonio.encode(wanted), NOTHING_FOUND
        asking = [asyncio.ensure_future(_ask(each, question, count_piece)) for each in self._siblings.each]
        try:
            for answered in asyncio.as_completed(asking):
                found = _joined(found, await answered)
                if _has_all(found, wanted):
                    break
        finally:
            for each in asking:
                each.cancel()
            await asyncio.gather(*asking, return_exceptions=True)
        return structs.replace(found, size=counted)

    async def forget(self, owner: str, response_id: str) -> None:
        """Let all siblings remove a response. One that does not answer in time gets the message again later."""
        message = jsonio.encode(_ForgottenResponse(owner, response_id))
        tasks = [self._siblings.start(_send_forget(each, message)) for each in self._siblings.each]
        await asyncio.wait(tasks, timeout=RESPONSE_SECONDS)

    # --- from the siblings

    def answer_find(self, question: bytes) -> bytes:
        """Return what this worker stores of what a sibling wants; empty if that is nothing. Raises JsonError."""
        found = stored_responses(_read_wanted(question), self._store, self._holders)
        return b"" if found == NOTHING_FOUND else pickle.dumps(found)

    def answer_forget(self, message: bytes) -> bytes:
        """Remove a response. Raises JsonError."""
        forgotten = _read_forgotten(message)
        self._store.forget(forgotten.owner, forgotten.response)
        return b""


async def _ask(sibling: Sibling, question: bytes, count: Callable[[int], None]) -> FoundResponses:
    response = await sibling.request(FIND, question, _MAX_RESPONSE_BYTES, count)
    found: FoundResponses = pickle.loads(response) if response else NOTHING_FOUND
    return found


async def _send_forget(sibling: Sibling, message: bytes) -> None:
    await sibling.request_with_retries(FORGET, message)


def _joined(one: FoundResponses, other: FoundResponses) -> FoundResponses:
    return FoundResponses(
        {**one.conversations, **other.conversations},
        {**one.bodies, **other.bodies},
        {**one.items, **other.items},
        {**one.holders, **other.holders},
    )


def _has_all(found: FoundResponses, wanted: WantedResponses) -> bool:
    known = found.conversations.keys() | found.bodies.keys() | found.holders.keys()
    return known.issuperset(wanted.responses) and found.items.keys() >= set(wanted.items)

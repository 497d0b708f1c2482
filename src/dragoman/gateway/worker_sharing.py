"""Share earlier responses and cooldowns between the workers of one gateway, without a store.

Each worker serves `routes` on its private admin socket. `responses` finds earlier responses that siblings store. A
cooldown that changes in one worker is sent to all at once; the response has all that the sibling knows, so that both
know the same afterwards. A worker that starts asks its siblings for the present cooldowns.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from dragoman.gateway.admin import MAX_CONNECTIONS, WorkerRoutes
from dragoman.gateway.breaker import CircuitBreaker, CooldownScope
from dragoman.gateway.context import Services
from dragoman.gateway.shared_cooldowns import CooldownEvent, SharedCooldowns
from dragoman.gateway.sibling_workers import CONNECTIONS, Sibling, Siblings, sibling_path
from dragoman.gateway.worker_responses import FIND, FORGET, WorkerResponses
from dragoman.wire import jsonio

COOLDOWNS = "cooldowns"
_read_events = jsonio.typed_decoder(list[CooldownEvent])


class WorkerSharing(AbstractAsyncContextManager["WorkerSharing"]):
    """The earlier responses and cooldowns that one worker shares. It is a context manager while the worker runs."""

    def __init__(self, sockets: Sequence[Path], services: Services, breaker: CircuitBreaker) -> None:
        self._siblings = Siblings(sockets)
        self.responses = WorkerResponses(self._siblings, services.response_store, services.holders)
        self._cooldowns = SharedCooldowns(breaker, self._post)
        self._has_joined = False
        self._unsent: dict[Sibling, dict[CooldownScope, CooldownEvent]] = {}  # while a task sends to that sibling
        self.max_connections = MAX_CONNECTIONS + CONNECTIONS * len(sockets)  # to the admin socket of this worker
        self.routes: WorkerRoutes = {
            sibling_path(FIND): self.responses.answer_find,
            sibling_path(FORGET): self.responses.answer_forget,
            sibling_path(COOLDOWNS): self._respond_with_cooldowns,
        }

    async def join(self) -> None:
        """Learn the present cooldowns from all siblings that run. Call it when the saved cooldowns are loaded."""
        self._has_joined = True
        message = jsonio.encode(self._cooldowns.events())
        responses = await asyncio.gather(*(each.request(COOLDOWNS, message) for each in self._siblings.each))
        for response in filter(None, responses):
            self._cooldowns.apply(_read_events(response))

    async def __aexit__(self, *_: object) -> None:
        await self._siblings.aclose()

    # --- cooldowns

    def _post(self, event: CooldownEvent) -> None:
        for sibling in self._siblings.each:
            if (unsent := self._unsent.get(sibling)) is not None:
                unsent[event.scope] = event
            else:
                self._unsent[sibling] = {event.scope: event}
                self._siblings.start(self._send(sibling))

    async def _send(self, sibling: Sibling) -> None:
        """Send events to a sibling until there are no more; those that arise meanwhile are sent together."""
        try:
            while events := self._unsent[sibling]:
                self._unsent[sibling] = {}
                if (
                    response := await sibling.request_with_retries(COOLDOWNS, jsonio.encode([*events.values()]))
                ) is not None:
                    self._cooldowns.apply(_read_events(response))
        finally:
            del self._unsent[sibling]

    def _respond_with_cooldowns(self, message: bytes) -> bytes | None:
        """Apply the events of a sibling and return all events; None before this worker knows any. Raises JsonError."""
        if not self._has_joined:
            return None
        self._cooldowns.apply(_read_events(message))
        return jsonio.encode(self._cooldowns.events())

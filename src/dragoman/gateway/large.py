"""One large request, as the gateway handles it: the worker process reads and plans it."""

from __future__ import annotations

import asyncio
import pickle

from msgspec import structs

from dragoman.dialects.base import Dialect
from dragoman.errors import DragomanError
from dragoman.gateway.backend import Backend
from dragoman.gateway.config import Server
from dragoman.gateway.context import Prepared
from dragoman.gateway.jobs import PlanJob, PlanResult, ReadJob, ReadResult
from dragoman.gateway.limits import Account, check_text
from dragoman.gateway.memory import Memory
from dragoman.gateway.preparing import Bounds
from dragoman.gateway.routing import Matched, Router, Unreadable
from dragoman.gateway.worker_process import Unavailable, WorkerProcess
from dragoman.http.exchange import Exchange
from dragoman.model.conversation import Conversation
from dragoman.model.filter import Note
from dragoman.wire.http import HttpRequest


class LargeMatched(Matched, frozen=True, kw_only=True):
    """A request that a dialect knows, whose body the worker process has read."""

    large: LargeRequest


class LargeRequest:
    """`read` it first, unless it was read already; then `prepare` it for every target that is asked."""

    def __init__(self, worker: WorkerProcess, exchange: Exchange[Account], server: Server) -> None:
        request = exchange.request
        assert exchange.account is not None  # it was let in
        self.worker, self.limits = worker, server.limits
        self._bounds, self._account, self._owner = Bounds.of(server), exchange.account, exchange.owner
        self._head, self._body, self._id = structs.replace(request, body=b""), request.body, exchange.id
        self._items: tuple[str, ...] = ()
        self._asked: Conversation | None = None
        self._refusal: DragomanError | None = None
        self.tokens = 0  # the estimate, of a request to count them

    async def read(self) -> ReadResult:
        """Find out what the request is. Raises WorkerFailed, Overloaded, Unavailable."""
        result, _ = await self.worker.ask(ReadJob(self._head, self._bounds), self._id, self._body)
        found: ReadResult = result
        self.knows(found.asked, found.items)
        self._refusal = found.refusal
        self.tokens = found.tokens or 0
        return found

    def knows(self, asked: Conversation | None, items: tuple[str, ...]) -> None:
        self._asked, self._items = asked, items

    def asked(self) -> Conversation:
        """What is asked, without its messages. Raises MalformedRequest, TooLarge."""
        if self._refusal is not None:
            raise self._refusal
        assert self._asked is not None  # it was read
        return self._asked

    def job(self, backend: Backend, model: str, memory: Memory, *, counts: bool = False) -> PlanJob:
        """What the worker must know to plan it for this target."""
        owner, asked = self._owner, self.asked()
        items = {item_id: found for item_id in self._items if (found := memory.item(owner, item_id)) is not None}
        earlier = memory.earlier(owner, asked)
        settings = backend.upstream.settings
        return PlanJob(self._head, self._bounds, backend.dialect, model, settings, earlier, items, counts)

    async def prepare(
        self, client: Dialect, backend: Backend, model: str, memory: Memory, *, counts: bool = False
    ) -> Prepared:
        """Plan it for a target. Raises ClientFault, WorkerFailed, Overloaded, Unavailable."""
        job = self.job(backend, model, memory, counts=counts)
        result, body = await self.worker.ask(job, self._id, self._body, known=True)
        found: PlanResult = result
        notes: list[Note] = []
        for some in found.notes:
            notes += pickle.loads(some)
            await asyncio.sleep(0)  # there may be very many
        made = structs.replace(found.plan, client=client, upstream=backend.dialect, notes=tuple(notes))
        self._account.hold("decoded", found.memory + len(found.said or b""))
        store = None if found.said is None else memory.store(self._owner, client, found.said)
        sent = found.request
        if sent is not None:
            sent = structs.replace(sent, body=self._body if found.verbatim else body)
        self._account.hold("rendered", len(body))
        return Prepared(made, store, sent=sent, refusal=found.refusal, note=found.note)

    def request(self) -> HttpRequest:
        return structs.replace(self._head, body=self._body)

    def forget(self) -> None:
        """Nothing will be asked again: the bodies are held no longer."""
        self._body = b""
        self._account.hold("rendered", 0)


async def matched_by_worker(large: LargeRequest, router: Router) -> Matched | None:
    """The call of a large request, which the worker process reads; None if no dialect has its path.

    Raises ClientFault, Unreadable, WorkerFailed.
    """
    try:
        found = await large.read()
    except Unavailable:  # one of the dialects cannot be handed over
        request = large.request()
        check_text(request.body, large.limits)
        return router.match(request)
    dialect = None if found.dialect is None else router.named(found.dialect)
    if found.unreadable is not None:
        raise found.unreadable if dialect is None else Unreadable(dialect, found.unreadable)
    if dialect is None or found.call is None:
        return None
    return LargeMatched(dialect=dialect, call=found.call, large=large)

"""One large request, as the gateway handles it: the worker process reads and plans it."""

from __future__ import annotations

import asyncio
import pickle

from msgspec import structs

from dragoman.dialects.base import Dialect
from dragoman.errors import DragomanError
from dragoman.gateway.backend import Backend
from dragoman.gateway.config import Server
from dragoman.gateway.context import PreparedRequest
from dragoman.gateway.jobs import PlanJob, PlanResult, ReadJob, ReadResult
from dragoman.gateway.limits import MemoryAccount, check_text
from dragoman.gateway.planning import Bounds
from dragoman.gateway.response_store import ResponseStore
from dragoman.gateway.routing import MatchedRequest, Router, UnreadableRequest
from dragoman.gateway.worker_process import WorkerProcess, WorkerUnavailable
from dragoman.http.exchange import Exchange
from dragoman.model.conversation import Conversation
from dragoman.model.filter import Note
from dragoman.wire.http import HttpRequest


class LargeMatch(MatchedRequest, frozen=True, kw_only=True):
    """A request that a dialect knows, whose body the worker process has read."""

    large: LargeRequest


class LargeRequest:
    """`read` it first, unless it was read already; then `prepare` it for every target that is asked."""

    def __init__(self, worker: WorkerProcess, exchange: Exchange[MemoryAccount], server: Server) -> None:
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
        result, _ = await self.worker.run_job(ReadJob(self._head, self._bounds), self._id, self._body)
        found: ReadResult = result
        self.set_parameters(found.parameters, found.items)
        self._refusal = found.refusal
        self.tokens = found.tokens or 0
        return found

    def set_parameters(self, asked: Conversation | None, items: tuple[str, ...]) -> None:
        self._asked, self._items = asked, items

    def parameters(self) -> Conversation:
        """What is asked, without its messages. Raises MalformedRequest, TooLarge."""
        if self._refusal is not None:
            raise self._refusal
        assert self._asked is not None  # it was read
        return self._asked

    def job(self, backend: Backend, model: str, memory: ResponseStore, *, counts: bool = False) -> PlanJob:
        """What the worker must know to plan it for this target."""
        owner, asked = self._owner, self.parameters()
        items = {item_id: found for item_id in self._items if (found := memory.item(owner, item_id)) is not None}
        earlier = memory.earlier(owner, asked)
        settings = backend.upstream.settings
        return PlanJob(self._head, self._bounds, backend.dialect, model, settings, earlier, items, counts)

    async def prepare(
        self, client: Dialect, backend: Backend, model: str, memory: ResponseStore, *, counts: bool = False
    ) -> PreparedRequest:
        """Plan it for a target. Raises ClientFault, WorkerFailed, Overloaded, Unavailable."""
        job = self.job(backend, model, memory, counts=counts)
        result, body = await self.worker.run_job(job, self._id, self._body, known=True)
        found: PlanResult = result
        notes: list[Note] = []
        for some in found.notes:
            notes += pickle.loads(some)
            await asyncio.sleep(0)  # there may be very many
        made = structs.replace(found.plan, client=client, upstream=backend.dialect, notes=tuple(notes))
        self._account.hold("decoded", found.memory + len(found.conversation or b""))
        store = None if found.conversation is None else memory.saver(self._owner, client, found.conversation)
        sent = found.request
        if sent is not None:
            sent = structs.replace(sent, body=self._body if found.verbatim else body)
        self._account.hold("rendered", len(body))
        return PreparedRequest(made, store, request=sent, refusal=found.refusal, note=found.note)

    def request(self) -> HttpRequest:
        return structs.replace(self._head, body=self._body)

    def forget(self) -> None:
        """Nothing will be asked again: the bodies are held no longer."""
        self._body = b""
        self._account.hold("rendered", 0)


async def match_in_worker(large: LargeRequest, router: Router) -> MatchedRequest | None:
    """The call of a large request, which the worker process reads; None if no dialect has its path.

    Raises ClientFault, Unreadable, WorkerFailed.
    """
    try:
        found = await large.read()
    except WorkerUnavailable:  # one of the dialects cannot be handed over
        request = large.request()
        check_text(request.body, large.limits)
        return router.match(request)
    dialect = None if found.dialect is None else router.find_dialect(found.dialect)
    if found.unreadable is not None:
        raise found.unreadable if dialect is None else UnreadableRequest(dialect, found.unreadable)
    if dialect is None or found.call is None:
        return None
    return LargeMatch(dialect=dialect, call=found.call, large=large)

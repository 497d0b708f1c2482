"""Large requests: the job process parses and plans them, so that they do not block the gateway's event loop."""

from __future__ import annotations

import asyncio
import pickle

from msgspec import structs

from dragoman.dialects.base import Dialect
from dragoman.errors import DragomanError
from dragoman.gateway.backend import Backend
from dragoman.gateway.config import Server
from dragoman.gateway.context import PreparedRequest
from dragoman.gateway.job_process import JobProcess, JobProcessUnavailable
from dragoman.gateway.jobs import PlanJob, PlanResult, ReadJob, ReadResult
from dragoman.gateway.limits import MemoryAccount, check_text
from dragoman.gateway.planning import Bounds
from dragoman.gateway.response_store import NOTHING_FOUND, FoundResponses, ResponseStore
from dragoman.gateway.routing import MatchedRequest, Router, UnreadableRequest
from dragoman.http.exchange import Exchange
from dragoman.model.conversation import Conversation
from dragoman.model.filter import Note
from dragoman.wire.http import HttpRequest


class LargeMatch(MatchedRequest, frozen=True, kw_only=True):
    """A matched request whose body the job process has parsed."""

    large: LargeRequest


class LargeRequest:
    """A large request. Call `read` first or set its parameters; then `prepare` it for each target."""

    def __init__(self, job_process: JobProcess, exchange: Exchange[MemoryAccount], server: Server) -> None:
        request = exchange.request
        assert exchange.memory is not None  # set by admission
        self.job_process, self.limits = job_process, server.limits
        self._bounds, self._memory, self._owner = Bounds.of(server), exchange.memory, exchange.owner
        self._head, self._body, self._id = structs.replace(request, body=b""), request.body, exchange.id
        self.items: tuple[str, ...] = ()  # ids of items of earlier responses that it refers to
        self._parameters: Conversation | None = None
        self._refusal: DragomanError | None = None
        self.session = ""  # the key of the session, set when the request is admitted
        self.tokens = 0  # the estimate, for a request to count tokens

    async def read(self) -> ReadResult:
        """Parse the request in the job process. Raises JobProcessFailed, Overloaded, JobProcessUnavailable."""
        result, _ = await self.job_process.run_job(ReadJob(self._head, self._bounds), self._id, self._body)
        parsed: ReadResult = result
        self.set_parameters(parsed.parameters, parsed.items)
        self._refusal = parsed.refusal
        self.tokens = parsed.tokens or 0
        return parsed

    def set_parameters(self, parameters: Conversation | None, items: tuple[str, ...]) -> None:
        """Set the conversation without its messages, and the ids of the items that it refers to."""
        self._parameters, self.items = parameters, items

    def parameters(self) -> Conversation:
        """Return the conversation without its messages. Raises MalformedRequest, TooLarge."""
        if self._refusal is not None:
            raise self._refusal
        assert self._parameters is not None  # `read` or `set_parameters` was called.
        return self._parameters

    def job(
        self,
        backend: Backend,
        model: str,
        memory: ResponseStore,
        found: FoundResponses = NOTHING_FOUND,
        *,
        counts: bool = False,
    ) -> PlanJob:
        """Return the job to plan the request for this target; `found` is what other processes store."""
        owner, parameters = self._owner, self.parameters()
        items, earlier = memory.items(owner, self.items, found), memory.earlier(owner, parameters, found)
        settings = backend.upstream.settings
        return PlanJob(self._head, self._bounds, backend.dialect, model, settings, earlier, items, counts, self.session)

    async def prepare(
        self,
        client: Dialect,
        backend: Backend,
        model: str,
        memory: ResponseStore,
        found: FoundResponses = NOTHING_FOUND,
        *,
        counts: bool = False,
    ) -> PreparedRequest:
        """Plan the request for a target. Raises ClientFault, JobProcessFailed, Overloaded, JobProcessUnavailable."""
        job = self.job(backend, model, memory, found, counts=counts)
        result, body = await self.job_process.run_job(job, self._id, self._body, known=True)
        planned: PlanResult = result
        notes: list[Note] = []
        for portion in planned.notes:
            notes += pickle.loads(portion)
            await asyncio.sleep(0)  # There may be very many; other requests run in between.
        plan = structs.replace(planned.plan, client=client, upstream=backend.dialect, notes=tuple(notes))
        self._memory.hold("decoded", planned.memory + len(planned.conversation or b""))
        store = None if planned.conversation is None else memory.saver(self._owner, client, planned.conversation)
        sent = planned.request
        if sent is not None:
            sent = structs.replace(sent, body=self._body if planned.verbatim else body)
        self._memory.hold("rendered", len(body))
        return PreparedRequest(plan, store, request=sent, refusal=planned.refusal, note=planned.note)

    def request(self) -> HttpRequest:
        """Return the client's request."""
        return structs.replace(self._head, body=self._body)

    def forget(self) -> None:
        """Release the bodies; there will be no retry."""
        self._body = b""
        self._memory.hold("rendered", 0)


async def match_in_job_process(large: LargeRequest, router: Router) -> MatchedRequest | None:
    """Match a large request in the job process. Return None if no dialect has its path.

    Raises ClientFault, UnreadableRequest, JobProcessFailed.
    """
    try:
        parsed = await large.read()
    except JobProcessUnavailable:  # for example if a dialect cannot be pickled
        request = large.request()
        check_text(request.body, large.limits)
        return router.match(request)
    dialect = None if parsed.dialect is None else router.find_dialect(parsed.dialect)
    if parsed.unreadable is not None:
        raise parsed.unreadable if dialect is None else UnreadableRequest(dialect, parsed.unreadable)
    if dialect is None or parsed.call is None:
        return None
    return LargeMatch(dialect=dialect, call=parsed.call, large=large)

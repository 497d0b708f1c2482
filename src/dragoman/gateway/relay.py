"""The one place where I/O meets translation: what a client asks for, and who sees to it."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable

from msgspec import structs

from dragoman.answer import MOST_WHOLE
from dragoman.errors import (
    BadFrame,
    ClientFault,
    Fault,
    TooLarge,
    TransportError,
    UpstreamFault,
    UpstreamViolation,
)
from dragoman.gateway import listing
from dragoman.gateway.attempts import Attempts, Desk, Question
from dragoman.gateway.backend import Fleet, Refused
from dragoman.gateway.continuing import Pickled, references
from dragoman.gateway.exchange import Exchange
from dragoman.gateway.limits import Account, Overloaded, check_model, is_large, json_memory
from dragoman.gateway.memory import tell
from dragoman.gateway.observe import Record
from dragoman.gateway.offload.jobs import AnswerJob, AnswerResult, Bounds, parse
from dragoman.gateway.offload.large import LargeMatched, LargeRequest
from dragoman.gateway.offload.process import Unavailable, WorkerProcess
from dragoman.gateway.router import Matched
from dragoman.gateway.stored import StoredAnswer
from dragoman.gateway.streaming import Stream
from dragoman.gateway.whole_reply import Told, told_whole
from dragoman.http.client.client import Reply
from dragoman.model.conversation import Conversation, without_messages
from dragoman.model.events import Budget
from dragoman.translate import Plan
from dragoman.wire.http import Headers, HttpResponse

_JSON = ("content-type", "application/json")
_PLAIN_NODES = 16  # JSON values of a message of a plain request, with a share in the rest: at most


class Relay:
    """One question. The caller refuses what it raises, unless the answer has begun by then."""

    __slots__ = ("_call", "_client", "_desk", "_exact", "_exchange", "_fleet", "_large", "_plain", "_record")

    def __init__(self, desk: Desk, fleet: Fleet, exchange: Exchange, matched: Matched, record: Record) -> None:
        self._desk, self._fleet = desk, fleet
        self._exchange, self._record = exchange, record
        self._client, self._call, self._plain = matched.dialect, matched.call, matched.plain
        self._exact = matched.exact
        self._large = matched.large if isinstance(matched, LargeMatched) else None
        record.dialect, record.operation = self._client.name, self._call.operation
        check_model(self._call.model)
        record.model = self._call.model

    def run(self) -> Awaitable[None]:
        match self._call.operation:
            case "generate":
                return self._generate()
            case "count":
                return self._count()
            case "models":
                return self._models()
            case "stored":
                request = (self._exchange, self._client, self._call, self._record)
                return StoredAnswer(self._desk, self._fleet, *request).run()

    def read(self) -> Conversation:
        """All that is asked. Raises MalformedRequest, TooLarge."""
        server = self._fleet.config.server
        if self._call.body is None:
            call = self._client.binding.match(self._exchange.request)
            assert call is not None  # it was matched before
            self._call, self._plain, self._large = call, None, None
        size, exact = len(self._exchange.request.body), self._exact
        asked, shape = parse(self._client, self._call, size, Bounds.of(server), exact)
        self._exact = None
        if (account := self._exchange.account) is not None:
            account.decoded(shape.memory)
        self._call = structs.replace(self._call, body=None)  # a stream may last, and the tree is large
        return asked

    def _generate(self) -> Awaitable[None]:
        self._record.streamed = self._call.stream
        attempts = self._attempts()
        return self._stream(attempts).run() if self._call.stream else self._whole(attempts)

    async def _whole(self, attempts: Attempts) -> None:
        offload = self._fleet.config.server.offload
        whole = Whole(self._record, self._exchange.account, self._desk.worker, offload)
        await attempts.through(whole)
        if whole.response is not None:
            self._send(whole.response)

    def _stream(self, attempts: Attempts) -> Stream:
        server, journal = self._fleet.config.server, self._desk.journal
        told = (self._exchange, self._client, attempts, self._record, journal)
        return Stream(*told, silence=server.ping, hold=server.hold, pulse=self._desk.pulse)

    def _attempts(self) -> Attempts:
        plain, limits, large = self._plain, self._fleet.config.server.limits, self._large
        if large is not None:
            asked = large.asked()
        elif plain is None or plain.messages > limits.messages or plain.messages * _PLAIN_NODES > limits.nodes:
            asked, plain = self.read(), None  # the attempts let go of it when the answer has begun
            large = self._continued(asked)
        else:
            asked = plain.asked
        question = Question(self._exchange, self._client, asked, plain, self.read, large)
        return Attempts(self._desk, self._fleet, question, self._record)

    def _continued(self, asked: Conversation) -> LargeRequest | None:
        """The request as a large one, if it continues a conversation that is large."""
        worker, server = self._desk.worker, self._fleet.config.server
        if asked.previous is None or worker is None or not server.offload:
            return None
        if not isinstance(self._desk.memory.earlier(self._exchange.owner, asked), Pickled):
            return None
        large = LargeRequest(worker, self._exchange, server)
        large.knows(without_messages(asked), references(self._client, asked))
        return large

    def _send(self, response: HttpResponse) -> None:
        self._record.status = response.status
        self._exchange.whole(response.status, response.headers, response.body)

    async def _models(self) -> None:
        body = listing.models(self._client, listing.catalogue(self._fleet.config), self._call.model)
        self._send(HttpResponse(200, (_JSON,), body))

    # --- counting

    async def _count(self) -> None:
        counts = self._client.counts
        if counts is None:
            raise ClientFault("this dialect counts no tokens", fault=Fault("not_found", "nothing counts here", 404))
        attempts = self._attempts()
        asked = attempts.asked
        tokens = await self._counted(attempts)
        estimated = tokens is None
        if tokens is None:
            tokens = listing.estimate(asked) if self._large is None else self._large.tokens
        body = counts.render_count(tokens, estimated)
        marked: Headers = (("dragoman-estimate", "true"),) if estimated else ()
        self._send(HttpResponse(200, (_JSON, *marked), body))

    async def _counted(self, attempts: Attempts) -> int | None:
        """The upstream's own count; None if it has none to give. Raises what it has against the request."""
        target = self._fleet.config.resolve(self._call.model)[0]
        backend = self._fleet.backend(target.upstream.name)
        counts = backend.dialect.counts
        try:
            made = await attempts.prepared(backend, target.model, counts=counts is not None)
            if counts is None:
                return None
            request = attempts.request_to_count(backend, made)
            credential = backend.credentials(attempts.session(), target.model)[0]
            if backend.rests(credential, target.model):
                return None
            if not backend.gate.take():
                await backend.gate.wait()
            try:
                reply = await backend.open(request, credential, made.sent)
                return counts.parse_count((await backend.read(reply)).body)
            finally:
                backend.gate.leave()
        except Refused as refused:
            fault = refused.fault
        except (TransportError, UpstreamViolation):
            return None
        if fault.kind in ("invalid", "context_full", "too_large") and fault.status in (400, 413, 422):
            raise UpstreamFault(fault.message, fault=fault)
        return None


class Whole:
    """Delivers an answer in one piece: nobody sees any of it before it is there."""

    seen = False
    left = math.inf

    def __init__(
        self, record: Record, account: Account | None = None, worker: WorkerProcess | None = None, offload: int = 0
    ) -> None:
        self.response: HttpResponse | None = None
        self._record, self._account = record, account
        self._worker, self._offload = worker, offload
        self._size = 0

    def drop(self) -> None:
        self.response = None
        if self._account is not None:
            self._account.free(self._size)
        self._size = 0

    def _count(self, size: int) -> None:
        """Count bytes of the answer, or with a minus, bytes that are held no more. Raises Overloaded."""
        if self._account is not None:
            self._account.keep(size)
        self._size += size

    async def take(
        self, reply: Reply, made: Plan, begun: Callable[[], None], named: Callable[[str], None]
    ) -> Fault | None:
        try:
            body = await reply.read(MOST_WHOLE, self._count)
        except TooLarge as error:  # not the client's fault
            raise BadFrame(str(error)).after_the_end() from None
        self._record.first()
        try:
            await self._told(reply, made, body, named)
        except UpstreamViolation as error:
            raise error.after_the_end() from None
        return None

    async def _told(self, reply: Reply, made: Plan, body: bytes, named: Callable[[str], None]) -> None:
        """Write the answer. Raises UpstreamViolation, UpstreamFault."""
        told, raw = await self._read_by(made, body)
        named(told.id)
        record = self._record
        record.usage, record.stop = told.usage, told.stop
        if told.notes is None:
            kind = [field for field in reply.headers if field[0] == "content-type"]
            self.response = HttpResponse(200, (kind[0] if kind else _JSON,), body)
            return
        self._count(len(raw))
        record.verbatim = False
        record.notes += told.notes
        self.response = HttpResponse(200, (_JSON,), raw)

    async def _read_by(self, made: Plan, body: bytes) -> tuple[Told, bytes]:
        """A large answer is read by the worker process, unless its plan cannot be handed over."""
        worker, account = self._worker, self._account
        budget = Budget() if account is None else account.budget()
        if worker is not None and is_large(body, self._offload):
            try:
                result, raw = await worker.ask(AnswerJob.of(made, budget.limits), "", body)
                answer: AnswerResult = result
                if answer.kept is not None:
                    tell(made, answer.kept, raw)
                return answer.told, raw
            except TooLarge:
                raise BadFrame("the answer needs more memory to read than one may have here") from None
            except (Unavailable, Overloaded):
                pass
        tree = json_memory(body)
        self._count(tree)
        try:
            return told_whole(made, body, budget)
        finally:
            self._count(-tree)
            budget.close()  # the reply is written

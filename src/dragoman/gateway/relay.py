"""The one place where I/O meets translation: what a client asks for, and who sees to it."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable

from msgspec import structs

from dragoman.answer import MOST_WHOLE, is_event_stream, reply_whole
from dragoman.dialects.base import REAL_WORLD
from dragoman.errors import (
    BadFrame,
    ClientFault,
    Fault,
    MalformedRequest,
    TooLarge,
    TransportError,
    UpstreamFault,
    UpstreamViolation,
)
from dragoman.gateway import listing
from dragoman.gateway.attempts import Attempts, Desk, Question
from dragoman.gateway.backend import Fleet, Refused
from dragoman.gateway.exchange import Exchange
from dragoman.gateway.limits import Account, check_conversation, check_tree
from dragoman.gateway.media_urls import check_media_urls
from dragoman.gateway.observe import Record
from dragoman.gateway.router import Matched
from dragoman.gateway.stored import StoredAnswer
from dragoman.gateway.streaming import Stream
from dragoman.model.conversation import Conversation
from dragoman.translate import Plan
from dragoman.upstream.client import Reply
from dragoman.wire.http import Headers, HttpResponse

_JSON = ("content-type", "application/json")
_PLAIN_NODES = 16  # no fewer values than a message of a plain request has, with a share in the rest


class Relay:
    """One question. Whoever runs it refuses what it raises, unless the exchange has begun by then."""

    __slots__ = ("_call", "_client", "_desk", "_exchange", "_fleet", "_plain", "_record")

    def __init__(self, desk: Desk, fleet: Fleet, exchange: Exchange, matched: Matched, record: Record) -> None:
        self._desk, self._fleet = desk, fleet
        self._exchange, self._record = exchange, record
        self._client, self._call, self._plain = matched.dialect, matched.call, matched.plain
        record.dialect, record.operation, record.model = self._client.name, self._call.operation, self._call.model

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
        limits = self._fleet.config.server.limits
        if self._plain is not None:
            call = self._client.binding.match(self._exchange.request)
            assert call is not None  # it was skimmed before
            self._call, self._plain = call, None
        shape = check_tree(self._call.body, len(self._exchange.request.body), limits)
        try:
            asked = self._client.codec.parse_request(self._call)
        except RecursionError:
            raise MalformedRequest("nested too deeply") from None
        check_conversation(asked, shape, limits)
        check_media_urls(asked, self._client.codec.family, self._fleet.config.server.media_urls)
        self._call = structs.replace(self._call, body=None, asked=None)  # a stream may last, and the tree is large
        return asked

    def _generate(self) -> Awaitable[None]:
        self._record.streamed = self._call.stream
        attempts = self._attempts()
        return self._stream(attempts).run() if self._call.stream else self._whole(attempts)

    async def _whole(self, attempts: Attempts) -> None:
        whole = Whole(self._record, self._exchange.account)
        await attempts.through(whole)
        if whole.response is not None:
            self._send(whole.response)

    def _stream(self, attempts: Attempts) -> Stream:
        server, journal = self._fleet.config.server, self._desk.journal
        told = (self._exchange, self._client, attempts, self._record, journal)
        return Stream(*told, silence=server.ping, hold=server.hold, pulse=self._desk.pulse)

    def _attempts(self) -> Attempts:
        plain, limits = self._plain, self._fleet.config.server.limits
        if plain is None or plain.messages > limits.messages or plain.messages * _PLAIN_NODES > limits.nodes:
            asked, plain = self.read(), None  # the attempts let go of it when the answer has begun
        else:
            asked = plain.asked
        question = Question(self._exchange, self._client, asked, plain, self.read)
        return Attempts(self._desk, self._fleet, question, self._record)

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
        body = counts.render_count(listing.estimate(asked) if tokens is None else tokens, estimated)
        marked: Headers = (("dragoman-estimate", "true"),) if estimated else ()
        self._send(HttpResponse(200, (_JSON, *marked), body))

    async def _counted(self, attempts: Attempts) -> int | None:
        """The upstream's own count; None if it has none to give. Raises what it has against the request."""
        target = self._fleet.config.resolve(self._call.model)[0]
        backend = self._fleet.backend(target.upstream.name)
        counts = backend.dialect.counts
        try:
            made = attempts.planned(backend, target.model)
            if counts is None:
                return None
            call = structs.replace(made.call(), operation="count", stream=False)
            credential = backend.credentials(attempts.session(), target.model)[0]
            if backend.rests(credential, target.model):
                return None
            if not backend.gate.take():
                await backend.gate.wait()
            try:
                request = backend.dressed(backend.dialect.binding.wrap(call))
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

    def __init__(self, record: Record, account: Account | None = None) -> None:
        self.response: HttpResponse | None = None
        self._record, self._account = record, account
        self._size = 0

    def drop(self) -> None:
        self.response = None
        if self._account is not None:
            self._account.free(self._size)
        self._size = 0

    def _count(self, size: int) -> None:
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
            self._told(reply, made, body, named)
        except UpstreamViolation as error:
            raise error.after_the_end() from None
        return None

    def _told(self, reply: Reply, made: Plan, body: bytes, named: Callable[[str], None]) -> None:
        """Write the answer. Raises UpstreamViolation, UpstreamFault."""
        streams_only = made.upstream.codec.capabilities(made.sent.model).streams_only
        if made.verbatim and (streams_only or not is_event_stream(body)) and not _holds_calls(made, body):
            named(self._tap(made, body))
            kind = [field for field in reply.headers if field[0] == "content-type"]
            self.response = HttpResponse(200, (kind[0] if kind else _JSON,), body)
            return
        try:
            told, notes = reply_whole(made, body)
        except RecursionError:
            raise BadFrame("the answer is nested too deeply") from None
        raw = made.client.codec.render_reply(told, made.asked, REAL_WORLD)
        self._record.verbatim = False
        named(told.id)
        self._record.notes += notes
        self._record.usage = told.usage
        self._record.stop = told.choices[0].stop if told.choices else None
        self.response = HttpResponse(200, (_JSON,), raw)

    def _tap(self, made: Plan, body: bytes) -> str:
        """Read along, for the record; gives the answer's id, if it can be read.

        Raises UpstreamViolation for what breaks the dialect: half an answer, a web page, a call without a name.
        """
        skim = getattr(made.upstream.codec, "skim_reply", None)
        if skim is not None and (seen := skim(body)) is not None:
            self._record.usage, self._record.stop = seen.usage, seen.stop
            return ""
        try:
            told = made.upstream.codec.parse_reply(body, made.sent)
        except RecursionError:
            return ""
        self._record.usage = told.usage
        self._record.stop = told.choices[0].stop if told.choices else None
        return told.id


def _holds_calls(made: Plan, body: bytes) -> bool:
    """Whether raw tool calls, or what is left of some, are in an answer that may pass as it came otherwise."""
    if not made.finds_calls:
        return False
    try:
        notes = reply_whole(made, body)[1]
    except (RecursionError, UpstreamViolation, UpstreamFault):
        return False  # those who read along say what is wrong
    return any(note.rule.startswith("raw_tools.") for note in notes)

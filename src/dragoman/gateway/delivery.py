"""Delivery: an answer to its client, as a stream or whole.

For a stream the upstream's read callback translates and writes to the client. Each attempt is a fresh answer from its
plan. Output is held until something came that a second try would say again; after that, after `hold` seconds, and after
the first ping, the stream goes on to its own end or its dialect's error.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Hashable, Mapping
from functools import lru_cache
from typing import cast

from msgspec import structs

from dragoman.dialects.base import SYSTEM_ENVIRONMENT, ApiRequest, Binding
from dragoman.errors import BadFrame, DragomanError, Fault, TooLarge, TransportError, UpstreamFault, UpstreamViolation
from dragoman.gateway.attempts import ClientRequest, InFlight, run_attempts
from dragoman.gateway.context import JSON_BODY, RequestContext
from dragoman.gateway.jobs import ResponseJob
from dragoman.gateway.limits import Overloaded, is_large, json_memory
from dragoman.gateway.response_buffer import ResponseBuffer
from dragoman.gateway.response_modes import PassThrough, WholeAsStream, WholeResponse, passes_frames, translate_whole
from dragoman.gateway.response_store import ResponseSaver
from dragoman.gateway.routing import BUG, ENDING, MatchedRequest
from dragoman.gateway.worker_process import WorkerUnavailable
from dragoman.http.client.client import ClientResponse
from dragoman.model.conversation import without_messages
from dragoman.model.events import Failed, ResponseBudget
from dragoman.response_stream import MAX_WHOLE_REPLY, ResponseTranslator
from dragoman.translate import Plan
from dragoman.wire.http import Headers
from dragoman.wire.jsonio import Json

_GRACE = 1.0  # seconds for the upstream to end its body after its answer has: then the connection can be kept
_APART = 0.05  # seconds between an error and the same error as bare JSON, so that a client reads them one by one
_STREAM_HEADERS: Headers = (("cache-control", "no-cache"), ("x-accel-buffering", "no"))


async def generate(context: RequestContext, matched: MatchedRequest) -> None:
    """Ask the upstreams for an answer, and deliver it. The caller refuses what is raised, unless it has begun."""
    question = ClientRequest(context, matched)
    del matched  # the body in it is not held while it is answered
    context.record.streamed = context.call.stream
    if not context.call.stream:
        whole = WholeDelivery(context)
        await run_attempts(context, question, whole)
        whole.send()
        return
    stream = StreamDelivery(context, question)
    try:
        await run_attempts(context, question, stream)
    except BaseException as error:
        if not await stream.report(error):
            raise
    finally:
        stream.close()


class StreamDelivery:
    """Delivers a stream to one client."""

    __slots__ = (
        "_answer",
        "_bare",
        "_budget",
        "_buffer",
        "_client",
        "_context",
        "_exchange",
        "_flight",
        "_is_job",
        "_is_named",
        "_mask",
        "_question",
        "_reply",
        "_sniffs",
    )

    def __init__(self, context: RequestContext, question: ClientRequest) -> None:
        exchange, server = context.exchange, context.upstreams.config.server
        self._context, self._exchange, self._client = context, exchange, context.client
        self._question = question
        self._answer: ResponseTranslator | None = None
        self._budget = ResponseBudget()  # of the answer
        self._mask = context.services.log.redactor.upstream_fault
        self._flight: InFlight | None = None  # until the answer has begun
        self._sniffs = False  # the first bytes tell whether they are a stream
        self._reply: ClientResponse | None = None  # until the answer has ended
        self._is_job = question.parameters.is_job  # it runs without the client, who gets its id at once
        self._is_named = False
        self._bare = b""  # the bare JSON of an error that ends the stream
        binding, hints = context.client.binding, question.parameters.hints
        kind = _kind(binding, hints.fields) if hints else _usual_kind(cast(Hashable, binding))
        headers = (("content-type", kind), *_STREAM_HEADERS)
        keep_alive = context.services.keep_alive
        self._buffer = ResponseBuffer(exchange, headers, self._ping, server.ping, server.hold, keep_alive)
        keep_alive.add(self._buffer)

    async def report(self, error: BaseException) -> bool:
        """End a stream that the client sees with the error of its dialect; False if the error is still to be told."""
        buffer = self._buffer
        if buffer.is_released and isinstance(error, asyncio.CancelledError) and not self._exchange.is_disconnected:
            buffer.end(self._error(ENDING))
        elif buffer.is_released and isinstance(error, Exception):
            self._note_broken(error)
            await self._end(self._error(error.fault if isinstance(error, DragomanError) else BUG))
            return True
        return False

    def close(self) -> None:
        """The stream is over: write down how it went."""
        buffer, record = self._buffer, self._context.record
        buffer.close()
        if buffer.first_at is not None:
            record.status, record.first_byte = 200, buffer.first_at - self._exchange.began
        if (answer := self._answer) is not None:
            record.notes += answer.notes
            record.usage, record.stop = answer.progress.usage, answer.progress.stop

    # --- for the attempts

    @property
    def has_started(self) -> bool:
        return self._buffer.is_released

    @property
    def seconds_to_ping(self) -> float:
        return self._buffer.seconds_to_ping

    def discard(self) -> None:
        self._answer = None
        self._budget.close()
        self._buffer.discard()

    async def deliver(self, reply: ClientResponse, flight: InFlight) -> Fault | None:
        buffer, account, made, store = self._buffer, self._context.account, flight.plan, flight.saver
        assert made is not None  # the answer has not begun
        self._budget = budget = ResponseBudget(account.budget.response_limits, account)
        self._flight, self._is_named, self._reply = flight, False, reply
        self._sniffs = not made.upstream.json_lines
        if store is None and made.passes and passes_frames(made):
            self._answer = PassThrough(made, mask=self._mask, budget=budget)
        else:
            encoder = None if store is None else store.encoder(made, budget=budget)
            self._answer = ResponseTranslator(made, mask=self._mask, budget=budget, encoder=encoder)
        buffer.feed_from(reply)
        broken: DragomanError | None = None
        try:
            await reply.pump(self._on_bytes, self._without_content)
        except (TransportError, UpstreamViolation) as error:
            broken = error
        finally:
            self._reply = self._flight = None
        answer = self._answer
        ended = answer.over
        last = b"" if ended else answer.close(broken.fault if broken else None)
        if answer.fault is not None:
            failure = broken if broken is not None and not ended else _failure(answer.fault)
            await self._break_off(failure, answer.fault, last, ended=ended)
        elif not ended:
            buffer.end(last)
        return answer.fault

    async def _break_off(self, failure: DragomanError, fault: Fault, last: bytes, *, ended: bool) -> None:
        """End the stream of an answer that failed. Raises the failure if the client has seen nothing of it."""
        if not self._buffer.is_released:
            raise failure
        self._note_broken(failure)
        if not ended and self._is_job and (stored := self._client.stored) is not None:
            last = self._client.binding.encode_frame(
                stored.render_interrupted(self._mask(fault))
            )  # the job itself goes on
        if not ended or self._bare:
            await self._end(last)

    def _on_bytes(self, chunk: bytes) -> None:
        """The read callback."""
        if self._sniffs and (begin := chunk.lstrip()[:1]):
            self._sniffs = False
            if begin == b"{" and self._flight is not None:  # no stream begins as a JSON object does
                self._answer = self._whole_answer(self._flight)
        answer = self._answer
        assert answer is not None
        data = answer.feed(chunk)
        if self._flight is not None or answer.over:
            self._begin_or_end(answer, data)
        elif data:
            self._exchange.chunk(data)

    def _whole_answer(self, flight: InFlight) -> ResponseTranslator:
        """Read the answer as one that came in one piece."""
        made, store, budget = flight.plan, flight.saver, self._budget
        assert made is not None  # the answer has not begun
        encoder = None if store is None else store.encoder(made, budget=budget)
        return WholeAsStream(made, mask=self._mask, budget=budget, encoder=encoder)

    def _without_content(self) -> int:
        return 0 if self._answer is None else self._answer.quiet_chunks

    def _begin_or_end(self, answer: ResponseTranslator, data: bytes) -> None:
        """The answer has yet to begin, or it is over."""
        buffer, flight = self._buffer, self._flight
        if self._reply is None:
            return  # it has ended
        answer_id = answer.progress.id
        if flight is not None and answer_id and not self._is_named and flight.holder is not None:
            self._is_named = True
            flight.remember_id(answer_id)
        if answer.fault is not None and not buffer.is_released:
            raise _failure(answer.fault)
        if answer.over:
            last = data if answer.fault is None else self._without_bare(data)
            if last or not self._bare:
                buffer.end(last)
            reply, self._reply = self._reply, None
            if answer.fault is not None and answer.fault.is_violation:
                reply.close()  # an answer that broke a rule may have no end either
            else:
                reply.end_within(_GRACE)
            return
        buffer.push(data)
        if flight is not None and (answer.progress.has_content or (self._is_job and answer_id)):
            self._flight = None
            buffer.release()
            flight.mark_started()

    # --- what the client gets beside the answer

    def _ping(self) -> bytes:
        if self._answer is not None:
            return self._answer.ping()
        payload = self._client.codec.encoder(self._question.parameters, SYSTEM_ENVIRONMENT).ping()
        return b"" if payload is None else self._client.binding.encode_frame(payload)

    def _error(self, fault: Fault) -> bytes:
        """The dialect's error for a stream that the client sees; nothing if it has its end."""
        answer, fault = self._answer, self._mask(fault)
        if answer is not None:
            return b"" if answer.over else answer.close(fault)
        payloads = self._client.codec.encoder(self._question.parameters, SYSTEM_ENVIRONMENT).feed((Failed(fault),))
        return b"".join([self._client.binding.encode_frame(payload) for payload in payloads])

    def _without_bare(self, data: bytes) -> bytes:
        """The last of it, without the bare JSON of an error, which is sent a little later and so read by itself: by
        that Google's SDK knows an error (see the binding of Gemini). To others the pieces mean nothing.
        """
        at = data.rfind(b"\n\n{") + 2
        if at < 2 or not self._buffer.is_released:
            return data
        self._bare = data[at:]
        self._buffer.push(data[:at])
        return b""

    async def _end(self, data: bytes) -> None:
        data = self._without_bare(data)
        if self._bare:
            await asyncio.sleep(_APART)
        self._buffer.end(data or self._bare)

    def _note_broken(self, error: Exception) -> None:
        record = self._context.record
        record.outcome = "broken" if isinstance(error, DragomanError) else "bug"
        record.error = str(error)
        if not isinstance(error, DragomanError):
            self._context.services.log.bug(record.id, error)


def _failure(fault: Fault) -> DragomanError:
    """The error that ended an answer: the upstream's own words, or a violation of its dialect."""
    kind = UpstreamViolation if fault.is_violation else UpstreamFault
    return kind(fault.message, fault=fault)


def _kind(binding: Binding, hints: Mapping[str, Json]) -> str:
    """The content type of a stream, as a client of this binding asks for it; some choose among framings."""
    texts = {name: value for name, value in hints.items() if isinstance(value, str)}
    return binding.wrap(ApiRequest("generate", "model", True, {}, texts)).header("accept") or "application/octet-stream"


@lru_cache(64)
def _usual_kind(binding: Hashable) -> str:
    return _kind(cast(Binding, binding), {})


class WholeDelivery:
    """Delivers an answer in one piece. The client sees nothing of it before it is complete."""

    has_started = False
    seconds_to_ping = math.inf

    def __init__(self, context: RequestContext) -> None:
        self._context, self._account = context, context.account
        self._headers: Headers = (JSON_BODY,)
        self._body: bytes | None = None
        self._size = 0

    def send(self) -> None:
        """Send the answer that was taken."""
        if self._body is not None:
            self._context.send(self._headers, self._body)

    def discard(self) -> None:
        self._body = None
        self._account.free(self._size)
        self._size = 0

    def _count(self, size: int) -> None:
        """Count bytes of the answer, or with a minus, bytes that are held no more. Raises Overloaded."""
        self._account.keep(size)
        self._size += size

    async def deliver(self, reply: ClientResponse, flight: InFlight) -> Fault | None:
        record = self._context.record
        try:
            body = await reply.read(MAX_WHOLE_REPLY, self._count)
        except TooLarge as error:  # not the client's fault
            raise BadFrame(str(error)).as_final() from None
        record.mark_first_byte()
        assert flight.plan is not None  # a whole answer does not begin before its end
        try:
            written = await self._written(flight.plan, flight.saver, body)
        except UpstreamViolation as error:
            raise error.as_final() from None
        flight.remember_id(written.id)
        record.usage, record.stop = written.usage, written.stop
        if written.notes is None:
            kind = [field for field in reply.headers if field[0] == "content-type"]
            self._headers, self._body = (kind[0] if kind else JSON_BODY,), body
            return None
        self._count(len(written.body))
        record.verbatim = False
        record.notes += written.notes
        self._headers, self._body = (JSON_BODY,), written.body
        return None

    async def _written(self, made: Plan, store: ResponseSaver | None, body: bytes) -> WholeResponse:
        """The answer for the client, kept where it must be. Raises UpstreamViolation, UpstreamFault."""
        written = await self._by_worker(made, body, keeps=store is not None) or self._read(made, body, store)
        if store is not None and written.saved is not None:
            store.keep(written.saved, written.body)
        return written

    async def _by_worker(self, made: Plan, body: bytes, *, keeps: bool) -> WholeResponse | None:
        """A large answer, read by the worker process; None if this process reads it."""
        worker = self._context.services.worker
        if worker is None or not is_large(body, self._context.upstreams.config.server.offload):
            return None
        made = structs.replace(
            made, original=without_messages(made.original), translated=without_messages(made.translated)
        )
        limits = self._account.budget.response_limits
        try:
            result, raw = await worker.run_job(ResponseJob(made, limits, keeps), "", body)
        except TooLarge:
            raise BadFrame("the answer needs more memory to read than one may have here") from None
        except (WorkerUnavailable, Overloaded):
            return None
        written: WholeResponse = result
        return structs.replace(written, body=raw)

    def _read(self, made: Plan, body: bytes, store: ResponseSaver | None) -> WholeResponse:
        budget, tree = ResponseBudget(self._account.budget.response_limits, self._account), json_memory(body)
        self._count(tree)
        try:
            return translate_whole(made, body, budget, keeps=store is not None)
        finally:
            self._count(-tree)
            budget.close()  # the reply is written

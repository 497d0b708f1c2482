"""Delivery: send a response to the client, as a stream or whole.

For a stream, the read callback of the upstream connection translates each chunk and writes it to the client. Each
attempt has its own `ResponseTranslator`. Output is buffered until the response has content, `hold` seconds have passed
or the first ping is sent. From then on a retry is impossible: the stream ends normally or with its dialect's error.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Hashable
from functools import lru_cache
from typing import cast

from msgspec import structs

from dragoman.dialects.base import SYSTEM_ENVIRONMENT, Binding
from dragoman.errors import BadFrame, DragomanError, Fault, TooLarge, TransportError, UpstreamFault, UpstreamViolation
from dragoman.gateway.attempts import ClientRequest, InFlight, run_attempts
from dragoman.gateway.context import JSON_BODY, RequestContext
from dragoman.gateway.job_process import JobProcessUnavailable
from dragoman.gateway.jobs import ResponseJob
from dragoman.gateway.limits import Overloaded, is_large, json_memory
from dragoman.gateway.response_buffer import ResponseBuffer
from dragoman.gateway.response_modes import (
    PassThrough,
    Translator,
    WholeAsStream,
    WholeResponse,
    passes_frames,
    translate_whole,
)
from dragoman.gateway.response_store import ResponseSaver
from dragoman.gateway.routing import BUG, ENDING, MatchedRequest
from dragoman.http.client.client import ClientResponse
from dragoman.model.conversation import without_messages
from dragoman.model.events import Failed, ResponseBudget
from dragoman.response_stream import MAX_WHOLE_REPLY, ResponseTranslator, stream_content_type
from dragoman.translate import Plan
from dragoman.wire.http import Headers

_GRACE = 1.0  # seconds for the upstream to end its body after its last event, so that the connection can be reused
_BARE_ERROR_DELAY = 0.05  # seconds before an error as bare JSON, so that a client reads it as a chunk of its own
_STREAM_HEADERS: Headers = (("cache-control", "no-cache"), ("x-accel-buffering", "no"))


async def generate(context: RequestContext, matched: MatchedRequest) -> None:
    """Get a reply from the upstreams and deliver it. The caller sends an error response for what is raised."""
    client_request = ClientRequest(context, matched)
    del matched  # releases the body in it
    context.record.streamed = context.call.stream
    if not context.call.stream:
        whole = WholeDelivery(context)
        await run_attempts(context, client_request, whole)
        whole.send()
        return
    stream = StreamDelivery(context, client_request)
    try:
        await run_attempts(context, client_request, stream)
    except BaseException as error:
        if not await stream.report(error):
            raise
    finally:
        stream.close()


class StreamDelivery:
    """Delivers a stream to one client. It implements `attempts.Delivery`."""

    __slots__ = (
        "_bare",
        "_budget",
        "_buffer",
        "_capture",
        "_client",
        "_client_request",
        "_context",
        "_exchange",
        "_flight",
        "_is_job",
        "_is_named",
        "_mask",
        "_response",
        "_sniffs",
        "_translator",
    )

    def __init__(self, context: RequestContext, client_request: ClientRequest) -> None:
        exchange, server = context.exchange, context.upstreams.config.server
        self._context, self._exchange, self._client = context, exchange, context.client
        self._client_request = client_request
        self._translator: Translator | None = None
        self._capture = context.record.capture
        self._budget = ResponseBudget()
        self._mask = context.services.log.redactor.upstream_fault
        self._flight: InFlight | None = None  # until the response has content
        self._sniffs = False  # whether the first bytes still decide between a stream and a whole JSON body
        self._response: ClientResponse | None = None  # until the response has ended
        self._is_job = client_request.parameters.is_job  # A background job: the client gets its id at once.
        self._is_named = False  # whether the id of the response is known
        self._bare = b""  # the bare JSON of an error that ends the stream
        binding, hints = context.client.binding, client_request.parameters.hints
        kind = stream_content_type(binding, hints.fields) if hints else _usual_kind(cast(Hashable, binding))
        headers = (("content-type", kind), *_STREAM_HEADERS)
        keep_alive = context.services.keep_alive
        self._buffer = ResponseBuffer(exchange, headers, self._ping, server.ping, server.hold, keep_alive)
        keep_alive.add(self._buffer)

    async def report(self, error: BaseException) -> bool:
        """End a stream that has begun with an error of its dialect. Return False if the caller must report it."""
        buffer = self._buffer
        if buffer.is_released and isinstance(error, asyncio.CancelledError) and not self._exchange.is_disconnected:
            buffer.end(self._error(self._context.record.end_reason or ENDING))
        elif buffer.is_released and isinstance(error, Exception):
            self._note_broken(error)
            await self._end(self._error(error.fault if isinstance(error, DragomanError) else BUG))
            return True
        return False

    def close(self) -> None:
        """Stop the buffer, and store the outcome of the stream in the record."""
        buffer, record = self._buffer, self._context.record
        buffer.close()
        if buffer.first_at is not None:
            record.status, record.first_byte = 200, buffer.first_at - self._exchange.began
            if self._capture is not None:
                self._capture.released_at = buffer.first_at
        if (translator := self._translator) is not None:
            record.notes += translator.notes
            progress = translator.progress
            record.usage, record.stop, record.has_content = progress.usage, progress.stop, progress.has_content
            record.tools = tuple(progress.tools)

    # --- for the attempts

    @property
    def has_started(self) -> bool:
        return self._buffer.is_released

    @property
    def seconds_to_ping(self) -> float:
        return self._buffer.seconds_to_ping

    def discard(self) -> None:
        self._translator = None
        if self._capture is not None:
            self._capture.discard()
        self._budget.close()
        self._buffer.discard()

    async def deliver(self, response: ClientResponse, flight: InFlight) -> Fault | None:
        buffer, memory, plan, saver = self._buffer, self._context.memory, flight.plan, flight.saver
        assert plan is not None  # The response has no content yet.
        self._budget = budget = ResponseBudget(memory.budget.response_limits, memory)
        self._flight, self._is_named, self._response = flight, False, response
        self._sniffs = not plan.upstream.json_lines
        if saver is None and plan.passes and passes_frames(plan):
            self._translator = PassThrough(plan, mask=self._mask, budget=budget)
        else:
            encoder = None if saver is None else saver.encoder(plan, budget=budget)
            self._translator = ResponseTranslator(plan, mask=self._mask, budget=budget, encoder=encoder)
        if self._capture is not None:
            self._translator = self._capture.watch(self._translator)
        self._context.record.progress = self._translator.progress
        buffer.feed_from(response)
        broken: DragomanError | None = None
        try:
            await response.pump(self._on_bytes, self._without_content)
        except (TransportError, UpstreamViolation) as error:
            broken = error
        finally:
            self._response = self._flight = None
        translator = self._translator
        ended = translator.is_over
        last = b"" if ended else translator.close(broken.fault if broken else None)
        if translator.fault is not None:
            failure = broken if broken is not None and not ended else _failure(translator.fault)
            await self._break_off(failure, translator.fault, last, ended=ended)
        elif not ended:
            buffer.end(last)
        return translator.fault

    async def _break_off(self, failure: DragomanError, fault: Fault, last: bytes, *, ended: bool) -> None:
        """End the stream of a response that failed. Raises the failure if the client has received nothing."""
        if not self._buffer.is_released:
            raise failure
        self._note_broken(failure)
        if not ended and self._is_job and (stored := self._client.stored) is not None:
            # The background job itself continues.
            last = self._client.binding.encode_frame(stored.render_interrupted(self._mask(fault)))
        if not ended or self._bare:
            await self._end(last)

    def _on_bytes(self, chunk: bytes) -> None:
        """Translate a chunk of the upstream and send it; the read callback of the connection."""
        if self._flight is not None:
            self._sniff(chunk, self._flight)
        translator = self._translator
        assert translator is not None
        data = translator.feed(chunk)
        if translator.is_over or self._flight is not None:
            self._begin_or_end(translator, data)
        elif data:
            self._exchange.chunk(data)

    def _sniff(self, chunk: bytes, flight: InFlight) -> None:
        """Find out by the first bytes of a response whether it is a stream or whole."""
        if self._sniffs and (begin := chunk.lstrip()[:1]):
            self._sniffs = False
            if begin == b"{":  # A stream never begins with a brace.
                self._translator = self._whole_translator(flight)
                self._context.record.progress = self._translator.progress

    def _whole_translator(self, flight: InFlight) -> Translator:
        """Return a translator for a whole reply, sent although a stream was requested."""
        plan, saver, budget = flight.plan, flight.saver, self._budget
        assert plan is not None  # The response has no content yet.
        encoder = None if saver is None else saver.encoder(plan, budget=budget)
        translator = WholeAsStream(plan, mask=self._mask, budget=budget, encoder=encoder)
        return translator if self._capture is None else self._capture.watch(translator)

    def _without_content(self) -> int:
        return 0 if self._translator is None else self._translator.quiet_chunks

    def _begin_or_end(self, translator: Translator, data: bytes) -> None:
        """Handle a chunk before the response has content, or the one that ends it."""
        buffer, flight = self._buffer, self._flight
        if self._response is None:
            return  # The response has ended.
        response_id = translator.progress.id
        if flight is not None and response_id and not self._is_named and flight.holder is not None:
            self._is_named = True
            flight.remember_id(response_id)
        if translator.fault is not None and not buffer.is_released:
            raise _failure(translator.fault)
        if translator.is_over:
            last = data if translator.fault is None else self._without_bare(data)
            if last or not self._bare:
                buffer.end(last)
            response, self._response = self._response, None
            if translator.fault is not None and translator.fault.is_violation:
                response.close()  # An invalid response may never end.
            else:
                response.end_within(_GRACE)
            return
        buffer.push(data)
        if flight is not None and (translator.progress.has_content or (self._is_job and response_id)):
            self._flight = None
            buffer.release()
            flight.mark_started()

    # --- pings and errors

    def _ping(self) -> bytes:
        if self._translator is not None:
            return self._translator.ping()
        payload = self._client.codec.encoder(self._client_request.parameters, SYSTEM_ENVIRONMENT).ping()
        data = b"" if payload is None else self._client.binding.encode_frame(payload)
        if self._capture is not None:
            self._capture.note_written(data)
        return data

    def _error(self, fault: Fault) -> bytes:
        """Return the error in the client's dialect, to end a stream that has begun; empty if the stream has ended."""
        translator, fault = self._translator, self._mask(fault)
        if translator is not None:
            return b"" if translator.is_over else translator.close(fault)
        payloads = self._client.codec.encoder(self._client_request.parameters, SYSTEM_ENVIRONMENT).feed(
            (Failed(fault),)
        )
        data = b"".join([self._client.binding.encode_frame(payload) for payload in payloads])
        if self._capture is not None:
            self._capture.note_written(data)
        return data

    def _without_bare(self, data: bytes) -> bytes:
        """Return the last bytes without the bare JSON of an error, which `_end` sends a little later.

        Google's SDK recognises an error only if it arrives in a chunk of its own (see the binding of Gemini).
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
            await asyncio.sleep(_BARE_ERROR_DELAY)
        self._buffer.end(data or self._bare)

    def _note_broken(self, error: Exception) -> None:
        record = self._context.record
        record.outcome = "broken" if isinstance(error, DragomanError) else "bug"
        record.error = str(error)
        if not isinstance(error, DragomanError):
            self._context.services.log.bug(record.id, error)


def _failure(fault: Fault) -> DragomanError:
    """Return the exception for a fault that ended a response: of the upstream, or a violation of its dialect."""
    kind = UpstreamViolation if fault.is_violation else UpstreamFault
    return kind(fault.message, fault=fault)


@lru_cache(64)
def _usual_kind(binding: Hashable) -> str:
    return stream_content_type(cast(Binding, binding), {})


class WholeDelivery:
    """Delivers a whole response, when it is complete. It implements `attempts.Delivery`."""

    has_started = False
    seconds_to_ping = math.inf

    def __init__(self, context: RequestContext) -> None:
        self._context, self._memory = context, context.memory
        self._headers: Headers = (JSON_BODY,)
        self._body: bytes | None = None
        self._size = 0

    def send(self) -> None:
        """Send the response that was delivered last."""
        if self._body is not None:
            self._context.send(self._headers, self._body)

    def discard(self) -> None:
        self._body = None
        self._memory.free(self._size)
        self._size = 0

    def _count(self, size: int) -> None:
        """Count bytes of the response; a negative number releases bytes. Raises Overloaded."""
        self._memory.keep(size)
        self._size += size

    async def deliver(self, response: ClientResponse, flight: InFlight) -> Fault | None:
        record = self._context.record
        try:
            body = await response.read(MAX_WHOLE_REPLY, self._count)
        except TooLarge as error:  # The upstream is to blame, not the client.
            raise BadFrame(str(error)).as_final() from None
        record.mark_first_byte()
        record.has_content = True
        if record.capture is not None:
            record.capture.add(body, b"")
        assert flight.plan is not None  # `mark_started` is never called for a whole response.
        try:
            written = await self._written(flight.plan, flight.saver, body)
        except UpstreamViolation as error:
            raise error.as_final() from None
        flight.remember_id(written.id)
        record.usage, record.stop, record.tools = written.usage, written.stop, written.tools
        if written.notes is None:
            kind = [field for field in response.headers if field[0] == "content-type"]
            self._headers, self._body = (kind[0] if kind else JSON_BODY,), body
            return None
        self._count(len(written.body))
        record.verbatim = False
        record.notes += written.notes
        self._headers, self._body = (JSON_BODY,), written.body
        return None

    async def _written(self, plan: Plan, saver: ResponseSaver | None, body: bytes) -> WholeResponse:
        """Translate the response, and store it if needed. Raises UpstreamViolation, UpstreamFault."""
        written = await self._by_job_process(plan, body, keeps=saver is not None) or self._read(plan, body, saver)
        if saver is not None and written.saved is not None:
            saver.keep(written.saved, written.body)
        return written

    async def _by_job_process(self, plan: Plan, body: bytes, *, keeps: bool) -> WholeResponse | None:
        """Translate a large response in the job process. Return None if this process must translate it."""
        job_process = self._context.services.job_process
        if job_process is None or not is_large(body, self._context.upstreams.config.server.offload):
            return None
        plan = structs.replace(
            plan, original=without_messages(plan.original), translated=without_messages(plan.translated)
        )
        limits = self._memory.budget.response_limits
        try:
            result, raw = await job_process.run_job(ResponseJob(plan, limits, keeps), "", body)
        except TooLarge:
            raise BadFrame(
                "the response needs more memory than the job process may use; ask for a shorter one, or for a stream"
            ) from None
        except (JobProcessUnavailable, Overloaded):
            return None
        written: WholeResponse = result
        return structs.replace(written, body=raw)

    def _read(self, plan: Plan, body: bytes, saver: ResponseSaver | None) -> WholeResponse:
        budget, tree = ResponseBudget(self._memory.budget.response_limits, self._memory), json_memory(body)
        self._count(tree)
        try:
            return translate_whole(plan, body, budget, keeps=saver is not None)
        finally:
            self._count(-tree)
            budget.close()

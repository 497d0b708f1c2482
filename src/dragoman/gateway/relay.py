"""The one place where I/O meets translation: a question goes out through its targets until one has begun to answer.

Each attempt is a fresh answer from its plan. Output is held until something came that a second try would say again;
until then a failure means another credential, another try, the next target or an HTTP error. After that, and after the
first ping, the stream goes on to its own end or to its dialect's error: nothing is asked twice behind a client's back.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeAlias

from msgspec import Struct, structs

from dragoman.dialects.base import REAL_WORLD
from dragoman.errors import (
    BadFrame,
    ClientFault,
    DragomanError,
    Fault,
    MalformedRequest,
    TooLarge,
    TransportError,
    Unrepresentable,
    UpstreamFault,
    UpstreamViolation,
)
from dragoman.gateway import listing
from dragoman.gateway.backend import Backend, Busy, Fleet, Refused
from dragoman.gateway.exchange import Exchange
from dragoman.gateway.explain import Ring, remembered
from dragoman.gateway.observe import Journal, Meters, Record
from dragoman.gateway.outlet import Outlet
from dragoman.gateway.passing import Passing, Telling
from dragoman.gateway.policy import Budget, Patience, next_step
from dragoman.gateway.refusing import BUG, ENDING
from dragoman.gateway.router import Matched
from dragoman.model.conversation import Conversation
from dragoman.translate import Answer, Plan, plan, reply_whole
from dragoman.upstream.client import Reply
from dragoman.upstream.credentials import Credential
from dragoman.wire.http import Headers, HttpRequest, HttpResponse

_WHOLE_BYTES = 64 * 1024 * 1024
_GRACE = 1.0  # seconds for the upstream to end its body after its answer has: then the connection can be kept
_FAREWELL = 1.0  # seconds to write the last error when the server ends
_SESSION_HEADERS = ("x-claude-code-session-id", "x-session-id", "session-id", "session_id", "x-session-affinity")
_JSON = ("content-type", "application/json")
_STREAM_HEADERS: Headers = (("cache-control", "no-cache"), ("x-accel-buffering", "no"))


class Desk(Struct, frozen=True):
    """What every request uses."""

    journal: Journal
    meters: Meters
    ring: Ring
    budget: Budget
    patience: Patience


Deliver: TypeAlias = Callable[[Reply, Plan], Awaitable[None]]


class Relay:
    """One question. Whoever runs it refuses what it raises, unless the exchange has begun by then."""

    def __init__(self, desk: Desk, fleet: Fleet, exchange: Exchange, matched: Matched, record: Record) -> None:
        self._desk, self._fleet = desk, fleet
        self._exchange, self._record = exchange, record
        self._client, self._call = matched.dialect, matched.call
        self._plain_headers = exchange.headers
        self._asked = Conversation("", ())
        self._plan: Plan | None = None
        self._answer: Telling | None = None
        self._outlet: Outlet | None = None
        self._response: HttpResponse | None = None
        record.dialect, record.operation, record.model = self._client.name, self._call.operation, self._call.model

    async def run(self) -> None:
        match self._call.operation:
            case "generate":
                self._asked = self._read()
                self._record.streamed = self._asked.stream
                await (self._stream() if self._asked.stream else self._whole())
            case "count":
                await self._count()
            case "models":
                names = self._fleet.config.models()
                body = listing.models(self._client.codec.family, names, self._call.model)
                await self._send(HttpResponse(200, (_JSON,), body))

    def _read(self) -> Conversation:
        try:
            return self._client.codec.parse_request(self._call)
        except RecursionError:
            raise MalformedRequest("nested too deeply") from None

    # --- whole answers

    async def _whole(self) -> None:
        await self._through(self._deliver_whole)
        if self._response is not None:
            await self._send(self._response)

    async def _deliver_whole(self, reply: Reply, made: Plan) -> None:
        try:
            body = await reply.read(_WHOLE_BYTES)
        except TooLarge as error:  # not the client's fault
            raise BadFrame(str(error)) from None
        self._record.first()
        if made.verbatim:
            self._tap(made, body)
            kind = next((value for name, value in reply.headers if name == "content-type"), _JSON[1])
            self._response = HttpResponse(200, (("content-type", kind),), body)
            return
        try:
            told, notes = reply_whole(made, body)
        except RecursionError:
            raise BadFrame("the answer is nested too deeply") from None
        raw = self._client.codec.render_reply(told, made.asked, REAL_WORLD)
        self._record.notes += notes
        self._record.usage = told.usage
        self._record.stop = told.choices[0].stop if told.choices else None
        self._response = HttpResponse(200, (_JSON,), raw)

    def _tap(self, made: Plan, body: bytes) -> None:
        """Read along, for the record only."""
        with suppress(DragomanError, RecursionError):
            told = made.upstream.codec.parse_reply(body, made.sent)
            self._record.usage = told.usage
            self._record.stop = told.choices[0].stop if told.choices else None

    async def _send(self, response: HttpResponse) -> None:
        self._record.status = response.status
        await self._exchange.whole(response.status, response.headers, response.body)

    # --- streams

    async def _stream(self) -> None:
        silence = self._fleet.config.server.ping
        outlet = self._outlet = Outlet(self._exchange, self._stream_headers, self._ping, silence=silence)
        writer = asyncio.create_task(outlet.run())
        writer.add_done_callback(self._writer_done)
        try:
            await self._through(self._deliver_stream)
            await writer
        except asyncio.CancelledError:
            if outlet.flowing and not self._exchange.gone:
                self._end_with(ENDING)
                with suppress(TimeoutError):
                    await asyncio.wait_for(writer, _FAREWELL)
            raise
        except Exception as error:  # whatever it is: a client that reads a stream must be told its end
            if not outlet.flowing:
                raise
            self._note_broken(error)
            self._end_with(error.fault if isinstance(error, DragomanError) else BUG)
            await writer
        finally:
            writer.cancel()
            self._note_stream(outlet)

    async def _deliver_stream(self, reply: Reply, made: Plan) -> None:
        outlet = self._outlet
        assert outlet is not None
        answer = self._answer = Passing(made) if made.verbatim else Answer(made)
        outlet.feed_from(reply)
        loop = asyncio.get_running_loop()

        def take(chunk: bytes) -> None:
            outlet.push(answer.feed(chunk))
            if not outlet.flowing:
                if answer.fault is not None:
                    raise UpstreamFault(answer.fault.message, fault=answer.fault)
                if answer.progress.begun:
                    outlet.release()
            if answer.over:
                outlet.end()
                loop.call_later(_GRACE, reply.close)

        broken: DragomanError | None = None
        try:
            await reply.pump(take)
        except (TransportError, UpstreamViolation) as error:
            broken = error
        if not answer.over:
            outlet.push(answer.close(broken.fault if broken else None))
        if answer.fault is not None:
            failure = broken or UpstreamFault(answer.fault.message, fault=answer.fault)
            if not outlet.flowing:
                raise failure
            self._note_broken(failure)
        outlet.end()

    def _stream_headers(self) -> Headers:
        self._record.status = 200
        asked = structs.replace(self._call, stream=True, body={})
        kind = self._client.binding.wrap(asked).header("accept") or "application/octet-stream"
        return (("content-type", kind), *_STREAM_HEADERS)

    def _ping(self) -> bytes:
        if self._answer is not None:
            return self._answer.ping()
        payload = self._client.codec.encoder(self._asked, REAL_WORLD).ping()
        return b"" if payload is None else self._client.binding.frame(payload)

    def _end_with(self, fault: Fault) -> None:
        """End a stream that the client sees with its dialect's error, unless it has its end."""
        outlet, answer = self._outlet, self._answer
        if outlet is None or self._plan is None:
            return
        answer = answer or Answer(self._plan)
        if not answer.over:
            outlet.push(answer.close(fault))
        outlet.end()

    def _writer_done(self, writer: asyncio.Task[None]) -> None:
        if not writer.cancelled() and writer.exception() is not None:
            self._exchange.leave()

    def _note_stream(self, outlet: Outlet) -> None:
        record, answer = self._record, self._answer
        if outlet.first_at is not None:
            record.first_byte = outlet.first_at - self._exchange.began
        if answer is not None:
            record.notes += answer.notes
            record.usage, record.stop = answer.progress.usage, answer.progress.stop

    def _note_broken(self, error: Exception) -> None:
        self._record.outcome = "broken" if isinstance(error, DragomanError) else "bug"
        self._record.error = str(error)
        if not isinstance(error, DragomanError):
            self._desk.journal.bug(self._record.id, error)

    # --- attempts

    async def _through(self, deliver: Deliver) -> None:
        """Ask the targets in turn. Raises what the first of them said if none has answered."""
        first: DragomanError | None = None
        self._desk.budget.request(time.monotonic())
        for target in self._fleet.config.resolve(self._call.model):
            backend = self._fleet.backend(target.upstream.name)
            try:
                await self._ask(backend, target.model, deliver)
                return
            except DragomanError as error:
                first = first or error
                if self._seen or next_step(error) == "tell":
                    break
        if first is not None:
            raise first

    async def _ask(self, backend: Backend, model: str, deliver: Deliver) -> None:
        """Ask one target, with each of its credentials if need be, and again if that may help."""
        made = self._planned(backend, model)
        credentials = backend.credentials(self._session())
        patience, tries = self._desk.patience, 0
        while True:
            try:
                await self._attempt(backend, made, credentials[0], deliver)
                return
            except DragomanError as error:
                self._failed(backend, credentials[0], error)
                step = next_step(error)
                if self._seen:
                    raise
                if step == "key" and len(credentials) > 1:
                    del credentials[0]
                    continue
                if error.fault.kind == "rate_limit" and step == "key":
                    step = "again"
                wait = patience.wait(error, tries) if step == "again" and tries < patience.retries else None
                if wait is None or not self._desk.budget.allows(time.monotonic()):
                    raise
                tries += 1
                await asyncio.sleep(wait)
                if self._seen:
                    raise

    async def _attempt(self, backend: Backend, made: Plan, credential: Credential, deliver: Deliver) -> None:
        self._record.attempts += 1
        async with backend.gate.slot():
            request = self._request(made)
            reply: Reply | None = None
            try:
                reply = await backend.open(request, credential, made.sent)
                await deliver(reply, made)
            except Refused as refused:
                await self._keep(backend, made, request, refused.response, refused.fault)
                raise
            except UpstreamFault as failed:
                await self._keep_stream(backend, made, request, reply, failed.fault)
                raise
            finally:
                if reply is not None:
                    reply.close()
            if self._answer is not None and self._answer.fault is not None:
                await self._keep_stream(backend, made, request, reply, self._answer.fault)
                backend.went_wrong(credential, UpstreamFault("", fault=self._answer.fault))
            else:
                backend.went_well(credential)

    @property
    def _seen(self) -> bool:
        """Whether the client has seen anything."""
        return self._outlet is not None and self._outlet.flowing

    def _planned(self, backend: Backend, model: str) -> Plan:
        record = self._record
        record.upstream, record.upstream_dialect, record.used_model = backend.name, backend.dialect.name, model
        try:
            made = plan(self._client, backend.dialect, self._asked, model=model, settings=backend.upstream.settings)
        except RecursionError:
            raise MalformedRequest("nested too deeply") from None
        self._plan = made
        record.notes, record.verbatim = list(made.notes), made.verbatim
        own = (("dragoman-notes", str(len(made.notes))), ("dragoman-upstream", backend.name))
        self._exchange.headers = (*self._plain_headers, *own)
        return made

    def _request(self, made: Plan) -> HttpRequest:
        try:
            request = made.upstream.binding.wrap(made.call())
        except RecursionError:
            raise Unrepresentable("nested too deeply") from None
        if made.verbatim and made.sent.model == made.asked.model:
            return structs.replace(request, body=self._exchange.request.body)
        return request

    def _session(self) -> str:
        """What ties the requests of one conversation together, so that they share a credential and its caches."""
        request = self._exchange.request
        found = next((value for name in _SESSION_HEADERS if (value := request.header(name))), "")
        return found or self._asked.user

    def _failed(self, backend: Backend, credential: Credential, error: DragomanError) -> None:
        if not self._seen:
            self._answer = None
            if self._outlet is not None:
                self._outlet.drop()
        if not isinstance(error, ClientFault | Busy):
            backend.went_wrong(credential, error)
            self._desk.meters.retry(backend.name, error.fault.kind)
            self._record.tried.append(f"{backend.name}: {error.fault.kind} {error.fault.status}")

    # --- what is kept of a refusal

    async def _keep_stream(
        self, backend: Backend, made: Plan, request: HttpRequest, reply: Reply | None, fault: Fault
    ) -> None:
        """A refusal inside an answer that had begun well."""
        if reply is not None and reply.status:
            said = HttpResponse(reply.status, reply.headers, backend.dialect.codec.render_fault(fault))
            await self._keep(backend, made, request, said, fault)

    async def _keep(
        self, backend: Backend, made: Plan, request: HttpRequest, response: HttpResponse, fault: Fault
    ) -> None:
        ring, redactor, client = self._desk.ring, self._desk.journal.redactor, self._exchange.request
        if not ring.enabled:
            return

        way = (self._exchange.id, self._client.name, backend.name)
        words = (client, request, response, fault)
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, lambda: ring.keep(remembered(way, made, words, redactor)))

    # --- counting

    async def _count(self) -> None:
        counts = self._client.counts
        if counts is None:
            raise ClientFault("this dialect counts no tokens", fault=Fault("not_found", "nothing counts here", 404))
        self._asked = self._read()
        tokens = await self._counted()
        estimated = tokens is None
        body = counts.render_count(listing.estimate(self._asked) if tokens is None else tokens, estimated)
        marked: Headers = (("dragoman-estimate", "true"),) if estimated else ()
        await self._send(HttpResponse(200, (_JSON, *marked), body))

    async def _counted(self) -> int | None:
        """The upstream's own count; None if it has none to give. Raises what it has against the request."""
        target = self._fleet.config.resolve(self._call.model)[0]
        backend = self._fleet.backend(target.upstream.name)
        counts = backend.dialect.counts
        try:
            made = self._planned(backend, target.model)
            if counts is None:
                return None
            call = structs.replace(made.call(), operation="count", stream=False)
            credential = backend.credentials(self._session())[0]
            async with backend.gate.slot():
                reply = await backend.open(backend.dialect.binding.wrap(call), credential, made.sent)
                return counts.parse_count((await backend.read(reply)).body)
        except Refused as refused:
            fault = refused.fault
        except (TransportError, UpstreamViolation):
            return None
        if fault.kind in ("invalid", "context_full", "too_large") and fault.status in (400, 413, 422):
            raise UpstreamFault(fault.message, fault=fault)
        return None

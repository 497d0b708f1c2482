"""Serve requests about a stored response: read it, stream it again, delete it, cancel it, list its input.

If the upstream does not speak the client's dialect, the gateway stores the response, in memory. Otherwise the upstream
that created the response stores it, and requests about it go there, with the same credential. A request with an unknown
id goes to an upstream that speaks the client's dialect, if there is exactly one.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from dragoman.errors import (
    BadFrame,
    ClientFault,
    DragomanError,
    Fault,
    TooLarge,
    Truncated,
)
from dragoman.gateway.backend import Backend
from dragoman.gateway.context import JSON_BODY, RequestContext
from dragoman.gateway.earlier_responses import find_missing
from dragoman.gateway.response_store import ResponseHolder
from dragoman.gateway.retry_policy import Refused
from dragoman.gateway.shared_responses import WantedResponses, missing_responses
from dragoman.http.client.client import ClientResponse
from dragoman.model.events import BufferedSize, ResponseBudget
from dragoman.upstream.credentials import Credential, with_headers
from dragoman.wire import jsonio
from dragoman.wire.http import Headers

_WHOLE_BYTES = 64 * 1024 * 1024
_STREAM: Headers = (("content-type", "text/event-stream"), ("cache-control", "no-cache"), ("x-accel-buffering", "no"))
_UNKNOWN = (
    "the response {!r} is unknown: the gateway does not store it and does not know which upstream created it;"
    " create the response again"
)
_check_json = jsonio.typed_decoder(jsonio.Raw)  # checks the JSON without building values
_KEEP_ALIVE_EVENTS = frozenset({"keepalive", "response.in_progress"})
_NAMES = {"read": "body", "input_items": "input items"}
_NOT_IN_BACKGROUND = {
    "cancel": "only a response that runs in the background can be cancelled",
    "read": "only a response that was created with `background` can be streamed again; read it without `stream`",
}


class StoredResponseRequest:
    """One request about a stored response."""

    def __init__(self, context: RequestContext) -> None:
        self._context = context
        self._services, self._upstreams, self._exchange = context.services, context.upstreams, context.exchange
        self._client, self._call, self._record = context.client, context.call, context.record
        self._memory, self._send = context.memory, partial(context.send, (JSON_BODY,))
        self._id, self._action = context.call.hints["id"], context.call.hints["action"]

    async def run(self) -> None:
        """Serve the request. Raises ClientFault for an unknown id, and the upstream's error."""
        response, holder = await self._find()
        if self._action == "delete":
            await self._forget()
        # With `repair` both store it: the gateway the response as the client got it, the upstream its input and state.
        if response is not None and (self._action == "read" or holder is None):
            self._serve(response)
            return
        backend, credentials = self._target(holder)
        self._record.upstream, self._record.upstream_dialect = backend.name, backend.dialect.name
        self._record.streamed = self._call.stream
        self._exchange.headers = (("dragoman-notes", "0"), ("dragoman-upstream", backend.name))
        if not backend.slots.take():
            await backend.slots.wait()
        try:
            await self._forward(backend, credentials)
        finally:
            backend.slots.release()

    async def _find(self) -> tuple[bytes | None, ResponseHolder | None]:
        """Return the response if this gateway stores it, and the upstream that stores it, if known."""
        store, holders, response_id = self._services.response_store, self._services.holders, self._id
        wanted = WantedResponses(self._exchange.owner, (response_id,), with_bodies=True)
        found = await find_missing(self._context, missing_responses(wanted, store, holders))
        response = store.response(self._exchange.owner, response_id)
        holder = holders.find(response_id) or found.holders.get(response_id)
        return found.bodies.get(response_id) if response is None else response, holder

    async def _forget(self) -> None:
        owner = self._exchange.owner
        self._services.response_store.forget(owner, self._id)
        await self._services.shared.forget(owner, self._id)

    # --- stored by the gateway

    def _serve(self, response: bytes) -> None:
        assert self._client.stored is not None  # A dialect with such requests has it.
        if self._action == "delete":
            self._send(self._client.stored.render_deleted(self._id))
        elif self._action == "cancel" or self._call.stream:
            message = f"{self._id!r} was not created in the background: {_NOT_IN_BACKGROUND[self._action]}"
            raise ClientFault(message, at="stream" if self._call.stream else "response_id")
        elif self._action == "read" and response:
            self._send(response)
        else:
            raise _not_found(f"the gateway stores no {_NAMES[self._action]} of the response {self._id!r}")

    # --- stored by the upstream that created it

    def _target(self, holder: ResponseHolder | None) -> tuple[Backend, Sequence[Credential]]:
        """Return the upstream that stores the response, and the credentials to try, in order."""
        owner, family = self._exchange.owner, self._client.codec.family
        backends = [each for each in self._upstreams.backends if each.dialect.codec.family == family]
        if holder is not None:
            backends = [each for each in backends if each.name == holder.upstream and holder.owner == owner]
        if len(backends) != 1:
            raise _not_found(_UNKNOWN.format(self._id))
        [backend] = backends
        creator = backend.credential(holder.credential) if holder is not None else None
        return backend, [creator] if creator is not None else backend.credentials("", "")

    async def _forward(self, backend: Backend, credentials: Sequence[Credential]) -> None:
        """Send the request with each credential until one finds the response."""
        request = with_headers(backend.dialect.binding.wrap(self._call), backend.own_headers())
        refused: Refused | None = None
        for credential in credentials:
            self._record.attempts += 1
            try:
                response = await backend.open(request, credential)
            except Refused as error:
                if error.fault.kind != "not_found":
                    raise
                refused = refused or error
                continue
            try:
                await (self._stream(response, backend) if self._call.stream else self._whole(response, backend))
            finally:
                response.close()
            return
        raise _not_found(refused.fault.message if refused else _UNKNOWN.format(self._id))

    async def _whole(self, response: ClientResponse, backend: Backend) -> None:
        """Send the upstream's JSON unchanged. Raises BadFrame for another body."""
        try:
            body = await response.read(_WHOLE_BYTES, self._memory.keep)
            _check_json(body)
        except (TooLarge, jsonio.JsonError) as error:
            message = (
                f"the upstream {backend.name} sent no valid JSON in response to {self._action} of {self._id!r}: {error}"
            )
            raise BadFrame(message) from None
        self._record.mark_first_byte()
        self._send(body)

    async def _stream(self, response: ClientResponse, backend: Backend) -> None:
        """Send complete frames as they arrive. A stream without its last frame ends with the dialect's error."""
        exchange, stored, frames = self._exchange, backend.dialect.stored, backend.dialect.binding.frame_decoder()
        assert stored is not None  # The upstream is of the client's family.
        buffered = BufferedSize(ResponseBudget(self._memory.budget.response_limits, self._memory))
        ended, quiet_chunks = False, 0

        def pass_on(chunk: bytes) -> None:
            nonlocal ended, quiet_chunks
            complete = list(frames.feed(chunk))
            buffered.set(frames.buffered_bytes)
            ended = ended or any(stored.is_last_frame(frame) for frame in complete)
            quiet_chunks += all(frame.kind in _KEEP_ALIVE_EVENTS for frame in complete)
            if complete:
                exchange.chunk(b"".join([frame.raw for frame in complete]))

        self._record.status = 200
        exchange.head(200, _STREAM)
        exchange.flush()
        exchange.source = response
        if exchange.paused:
            response.pause()
        broken: DragomanError = Truncated("the upstream's stream ended before its last event")
        try:
            await response.pump(pass_on, lambda: quiet_chunks)
        except DragomanError as error:
            broken = error
        if not ended:
            self._record.outcome, self._record.error = "broken", str(broken)
        exchange.chunk(b"" if ended else self._error(broken.fault), last=True)

    def _error(self, fault: Fault) -> bytes:
        assert self._client.stored is not None
        return self._client.binding.encode_frame(
            self._client.stored.render_interrupted(self._services.log.redactor.upstream_fault(fault))
        )


def _not_found(message: str) -> ClientFault:
    return ClientFault(message, fault=Fault("not_found", message, 404, code="response_not_found"))

"""Requests about an answer that is kept: read it, read its stream again, delete it, cancel it, list its input.

An answer of another family is kept here, in memory. Any other is kept by the upstream that made it: the request goes
there, with the credential that made it. An id that is not known goes to the only upstream of the client's dialect, if
there is just one.
"""

from __future__ import annotations

from collections.abc import Sequence

from dragoman.dialects.base import Call, Dialect
from dragoman.errors import (
    BadFrame,
    ClientFault,
    DragomanError,
    Fault,
    TooLarge,
    TransportError,
    Truncated,
    UpstreamViolation,
)
from dragoman.gateway.attempts import Desk
from dragoman.gateway.backend import Backend, Fleet, Refused
from dragoman.gateway.exchange import Exchange
from dragoman.gateway.memory import owner_of
from dragoman.gateway.observe import Record
from dragoman.upstream.client import Reply
from dragoman.upstream.credentials import Credential
from dragoman.wire.http import Headers

_WHOLE_BYTES = 64 * 1024 * 1024
_JSON = ("content-type", "application/json")
_STREAM: Headers = (("content-type", "text/event-stream"), ("cache-control", "no-cache"), ("x-accel-buffering", "no"))
_NO_JOB = {
    "cancel": "only a response that runs in the background can be cancelled",
    "read": "only a response that was made in the background can be streamed again",
}


class StoredAnswer:
    """One request. Raises ClientFault for an answer that nobody knows, and what the upstream says."""

    def __init__(
        self, desk: Desk, fleet: Fleet, exchange: Exchange, client: Dialect, call: Call, record: Record
    ) -> None:
        self._desk, self._fleet = desk, fleet
        self._exchange, self._client, self._call, self._record = exchange, client, call, record
        self._id, self._action = call.hints["id"], call.hints["action"]

    async def run(self) -> None:
        owner = owner_of(self._exchange.request)
        kept = self._desk.memory.response(owner, self._id)
        if kept is not None:
            self._answer_from(kept, owner)
            return
        backend, credentials = self._maker(owner)
        record = self._record
        record.upstream, record.upstream_dialect, record.streamed = (
            backend.name,
            backend.dialect.name,
            self._call.stream,
        )
        self._exchange.headers = (("dragoman-notes", "0"), ("dragoman-upstream", backend.name))
        if not backend.gate.take():
            await backend.gate.wait()
        try:
            await self._ask(backend, credentials)
        finally:
            backend.gate.leave()

    # --- kept here

    def _answer_from(self, response: bytes, owner: str) -> None:
        assert self._client.stored is not None  # its binding has such calls
        if self._action == "delete":
            self._desk.memory.forget(owner, self._id)
            self._send(self._client.stored.render_deleted(self._id))
        elif self._action == "cancel" or self._call.stream:
            message = f"{_NO_JOB[self._action]}, and {self._id!r} was not"
            raise ClientFault(message, at="stream" if self._call.stream else "response_id")
        elif self._action == "read" and response:
            self._send(response)
        else:
            raise _unknown(f"the gateway keeps what {self._id!r} said, and not its {self._action}")

    # --- kept by the upstream that made it

    def _maker(self, owner: str) -> tuple[Backend, Sequence[Credential]]:
        made = self._desk.makers.find(self._id)
        family = self._client.codec.family
        backends = [each for each in self._fleet.backends if each.dialect.codec.family == family]
        if made is not None:
            backends = [each for each in backends if each.name == made.upstream and made.owner == owner]
        if len(backends) != 1:
            raise _unknown(f"no response {self._id!r} is known here")
        [backend] = backends
        own = backend.credential(made.credential) if made is not None else None
        return backend, [own] if own is not None else backend.credentials("", "")

    async def _ask(self, backend: Backend, credentials: Sequence[Credential]) -> None:
        """Ask with each credential until one knows the answer."""
        request = backend.dressed(backend.dialect.binding.wrap(self._call))
        refused: Refused | None = None
        for credential in credentials:
            self._record.attempts += 1
            try:
                reply = await backend.open(request, credential)
            except Refused as error:
                if error.fault.kind != "not_found":
                    raise
                refused = refused or error
                continue
            try:
                await (self._stream(reply, backend) if self._call.stream else self._whole(reply))
            finally:
                reply.close()
            return
        raise _unknown(refused.fault.message if refused else f"no response {self._id!r} is known here")

    async def _whole(self, reply: Reply) -> None:
        try:
            body = await reply.read(_WHOLE_BYTES)
        except TooLarge as error:  # not the client's fault
            raise BadFrame(str(error)) from None
        self._record.first()
        self._send(body)

    async def _stream(self, reply: Reply, backend: Backend) -> None:
        """Pass whole frames as they come. A stream that ends before its last frame ends with the dialect's error."""
        exchange, stored, frames = self._exchange, backend.dialect.stored, backend.dialect.binding.frames()
        assert stored is not None  # it is of the client's family
        ended = False

        def hear(chunk: bytes) -> None:
            nonlocal ended
            told = list(frames.feed(chunk))
            ended = ended or any(stored.is_end(frame) for frame in told)
            if told:
                exchange.chunk(b"".join([frame.raw for frame in told]))

        exchange.streams()
        self._record.status = 200
        exchange.head(200, _STREAM)
        exchange.flush()
        exchange.feed_from(reply)
        broken: DragomanError = Truncated("the upstream's stream ended before its last event")
        try:
            await reply.pump(hear)
        except (TransportError, UpstreamViolation) as error:
            broken = error
        if not ended:
            self._record.outcome, self._record.error = "broken", str(broken)
        exchange.end(b"" if ended else self._error(broken.fault))

    def _error(self, fault: Fault) -> bytes:
        assert self._client.stored is not None
        return self._client.binding.frame(self._client.stored.render_cut(self._desk.journal.redactor.fault(fault)))

    def _send(self, body: bytes) -> None:
        self._record.status = 200
        self._exchange.whole(200, (_JSON,), body)


def _unknown(message: str) -> ClientFault:
    return ClientFault(message, fault=Fault("not_found", message, 404, code="response_not_found"))

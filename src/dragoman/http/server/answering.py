"""An exchange on a connection of our own: the body gathered as it comes, the answer written straight to the socket."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from dragoman.errors import ClientFault, Fault
from dragoman.http.exchange import ANY_PACE, ID_HEADERS, Exchange, Pace, too_large
from dragoman.http.framing import CHUNK, CONTINUE, LAST_CHUNK, header_lines, status_line
from dragoman.wire.http import Headers, HttpRequest

if TYPE_CHECKING:
    from dragoman.http.server.connection import Connection

_UNASKED = 64 * 1024  # bytes of a body kept before anybody asks for it
_ONE_PIECE = 64 * 1024  # bytes of a body that are copied behind the head
_BODILESS = frozenset({204, 304})
_IDS = "".join([f"{name}: %s\r\n" for name in ID_HEADERS])


class HttpExchange(Exchange[Any]):
    __slots__ = (
        "_broken",
        "_chunked",
        "_counts",
        "_head",
        "_limit",
        "_pieces",
        "_waiter",
        "arrived",
        "connection",
        "size",
    )

    def __init__(
        self, connection: Connection, request: HttpRequest, *, target: str, version: str, began: float
    ) -> None:
        super().__init__(request, target=target, version=version, began=began)
        self.arrived = False  # whole
        self.client = connection.client
        self.connection = connection
        self._counts = False  # pieces of the body, on the account, as they come
        self._chunked = version != "1.0"
        self._head = b""  # waits for the first chunk
        self._pieces: list[bytes] = []
        self.size = 0  # of the body, as far as it has come
        self._limit: int | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._broken: Fault | None = None

    # --- in

    async def body(self, limit: int, pace: Pace = ANY_PACE) -> bytes:
        if not self.arrived and self._broken is None:
            self._limit = limit
            if self._chunked and self.request.header("expect"):
                self.connection.write(CONTINUE)
            self._waiter = asyncio.get_running_loop().create_future()
            self.connection.expect_body(self, pace)
            if self.size <= limit:
                await self._waiter
            self._waiter = None
        self.connection.read_on()  # a body that came whole before it was asked for may have stopped the reading
        if self._broken is not None:
            raise ClientFault(self._broken.message, fault=self._broken)
        if self.size > limit:
            raise too_large(limit)
        pieces = self._pieces
        self._pieces = []
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def reserve(self, limit: int) -> None:
        if self.arrived and self.size <= limit:
            if self.account is not None:
                self.account.reserve(self.size)
            return
        super().reserve(limit)
        if not self.request.header("content-length"):
            self._counts = True
            if self.account is not None:
                self.account.reserve(self.size)

    def admitted(self) -> None:
        self.connection.prove()

    def task(self, task: asyncio.Task[None]) -> None:
        """The task that answers."""
        self._task = task

    # --- for the connection

    def take(self, piece: bytes) -> None:
        """Some of the body."""
        if self.finished or self._broken is not None:
            return
        self.size += len(piece)
        if self._counts and self.account is not None:
            try:
                self.account.reserve(len(piece))
            except ClientFault as error:
                self.spoil(error.fault)
                return
        if self._limit is None:
            self._pieces.append(piece)
            if self.size > _UNASKED:
                self.connection.read_no_more()
        elif self.size <= self._limit:
            self._pieces.append(piece)
        else:
            self._pieces.clear()
            self._wake()

    def arrive(self) -> None:
        """That was all of the body."""
        self.arrived = True
        self._wake()

    def spoil(self, fault: Fault) -> None:
        self.last = True
        self._broken = fault
        self._pieces.clear()
        self._wake()

    def drop(self, _: object) -> None:
        """The task that answers is over. Without an answer the client must at least not wait for one."""
        if not self.finished and not self.gone:
            self.gone = True
            self.connection.abort()

    def probe(self) -> None:
        """Write what says nothing: an interim response, or inside of a stream its dialect's sign of life."""
        if self.begun:
            if self.sign is not None:
                self.sign()
        elif self._chunked:  # HTTP/1.0 has no interim responses
            self.connection.write(CONTINUE)

    def streams(self) -> None:
        self.connection.streams(self)

    # --- out

    def whole(self, status: int, headers: Headers, body: bytes) -> None:
        if self.gone or self.finished:
            return
        self.begun = self.finished = True
        length = "" if status in _BODILESS else f"content-length: {len(body)}\r\n"
        head = self._rendered(status, headers, length)
        if status in _BODILESS or self.request.method == "HEAD":
            body = b""
        if len(body) <= _ONE_PIECE:
            self.connection.write(head + body)
        else:
            self.connection.write_both(head, body)
        self.connection.answered(self)

    def head(self, status: int, headers: Headers, length: int | None = None) -> None:
        """Begin a stream; of a body whose `length` is known, without chunks."""
        self.begun = True
        framing = "transfer-encoding: chunked\r\n"
        if length is not None:
            self._chunked, framing = False, f"content-length: {length}\r\n"
        elif not self._chunked:
            self.last, framing = True, ""
        self._head = self._rendered(status, headers, framing)
        self.headers = ()  # written

    def flush(self) -> None:
        if self._head and not self.gone:
            self.connection.write(self._head)
            self._head = b""

    def chunk(self, data: bytes) -> None:
        write = self.connection.write
        if self.gone:
            return
        self.wrote = True
        if self._chunked:
            data = CHUNK % (len(data), data)
        if self._head:
            data, self._head = self._head + data, b""
        write(data)

    def end(self, data: bytes = b"") -> None:
        if self.gone or self.finished:
            return
        self.finished = True
        if self._chunked:
            data = CHUNK % (len(data), data) + LAST_CHUNK if data else LAST_CHUNK
        if self._head:
            data, self._head = self._head + data, b""
        if data:
            self.connection.write(data)
        self.connection.answered(self)

    # --- what only those who test others need

    @property
    def is_half_closed(self) -> bool:
        """Whether the client has closed its sending side."""
        return self.connection.is_half_closed

    def write_raw(self, data: bytes) -> None:
        """Write bytes that are framed already, rightly or not."""
        self.begun = True
        if not self.gone:
            self.connection.write(data)

    def end_raw(self) -> None:
        """All of the answer was written raw."""
        if not self.gone and not self.finished:
            self.finished = True
            self.connection.answered(self)

    def break_off(self, *, reset: bool = False) -> None:
        """End the connection here, inside of the answer."""
        self.finished = True
        if not self.gone:
            self.flush()
            self.connection.break_off(reset=reset)

    def _rendered(self, status: int, headers: Headers, length: str) -> bytes:
        if not self.arrived:
            self.last = True  # what is still to come of the request is not read to its end
        ids = _IDS % (self.id, self.id, self.id) if self.id else ""
        close = "connection: close\r\n" if self.last else ""
        lines = f"{status_line(status)}{header_lines(headers)}{ids}{header_lines(self.headers)}{length}{close}\r\n"
        return lines.encode("latin-1", "replace")

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

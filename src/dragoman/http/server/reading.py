"""What a client sends on one connection, through httptools: requests in their order, as far as there is room."""

from __future__ import annotations

import asyncio
import sys
from abc import abstractmethod
from collections import deque
from math import inf
from typing import TYPE_CHECKING, cast

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser

from dragoman.http.exchange import BodyWatch
from dragoman.http.server.answering import HttpExchange
from dragoman.http.server.limits import (
    BAD_REQUEST,
    HEAD_BYTES,
    HEAD_SECONDS,
    HEAD_TOO_LONG,
    LONGEST_TARGET,
    MOST_HEADERS,
    MOST_PIPELINED,
    TARGET_TOO_LONG,
)
from dragoman.wire.http import HttpRequest, parse_headers

if TYPE_CHECKING:
    from dragoman.http.server.connection import Connection
    from dragoman.http.server.serving import HttpServer

_PIECE = 8 * 1024  # bytes that are parsed before it is looked whether the queue is full
_MOST_AHEAD = 64 * 1024  # bytes of bodies in the queue
_METHODS = {method.encode(): method for method in ("GET", "HEAD", "POST")}


class _Refused(Exception):
    """Out of a parser's callback: this head is not read on."""


class Reader(asyncio.Protocol):
    """Parses requests. The first is begun at once; those that come before its answer wait in a queue."""

    __slots__ = (
        "_arriving",
        "_barren",
        "_body_watch",
        "_chunks",
        "_current",
        "_deaf",
        "_fields",
        "_held",
        "_in_head",
        "_parser",
        "_queue",
        "_refusal",
        "_server",
        "_url",
        "client",
        "deadline",
        "on_body",
    )

    def __init__(self, server: HttpServer, client: str) -> None:
        self.client = client  # its address
        self.deadline = server.clock() + HEAD_SECONDS  # read by the sweeper
        self._server = server
        self._chunks: list[bytes] = []
        self.on_body = self._chunks.append  # the parser calls it: no Python frame for a chunk
        self._parser: HttpRequestParser | None = HttpRequestParser(self)
        self._url = b""
        self._fields: list[tuple[bytes, bytes]] = []
        self._in_head = False
        self._barren = 0  # bytes of a head, or of trailers, since the last of anything else
        self._refusal = BAD_REQUEST  # what is said of a head that cannot be read
        self._arriving: HttpExchange | None = None  # its body is still coming
        self._current: HttpExchange | None = None  # is being answered
        self._queue: deque[HttpExchange] | None = None  # those that came before it was
        self._held = b""  # bytes that wait for room in the queue
        self._body_watch: BodyWatch | None = None  # of the one that arrives, once it is asked for
        self._deaf = False  # nothing is read any more

    # --- for the parser

    def on_message_begin(self) -> None:
        self._in_head = True
        self._barren = 0
        self._url = b""
        self._fields = []
        self.deadline = self._server.clock() + HEAD_SECONDS

    def on_url(self, url: bytes) -> None:
        self._url += url
        if len(self._url) > LONGEST_TARGET:
            self._refusal = TARGET_TOO_LONG
            raise _Refused

    def on_header(self, name: bytes, value: bytes) -> None:
        self._fields.append((name, value))  # trailers, too, which nobody reads
        if len(self._fields) > MOST_HEADERS:
            self._refusal = HEAD_TOO_LONG
            raise _Refused

    def on_headers_complete(self) -> None:
        parser, fields = self._parser, self._fields
        assert parser is not None
        self._in_head = False
        target = self._url.decode("latin-1")
        self._url, self._fields = b"", []
        path, _, query = target.partition("?")
        version = sys.intern(parser.get_http_version())
        method = parser.get_method()
        request = HttpRequest(_METHODS.get(method) or method.decode("latin-1"), path, query, parse_headers(fields))
        exchange = HttpExchange(
            cast("Connection", self), request, target=target, version=version, began=self._server.time()
        )
        exchange.last = version != "1.1" or parser.should_upgrade() or not parser.should_keep_alive()
        if self._current is None:
            self._arriving = exchange
            self._begin(exchange)
            return
        if self._queue is None:
            self._queue = deque()
        self._arriving = exchange
        self._queue.append(exchange)
        self.deadline = inf  # it is not its turn

    def on_message_complete(self) -> None:
        arriving, self._arriving = self._arriving, None
        if arriving is not None:
            self._hand_over(arriving)
            arriving.arrive()
            self._body_watch = None
            if self._current is not None:
                self.deadline = inf

    # --- for the connection

    @abstractmethod
    def read_no_more(self) -> None:
        """Stop reading from the socket."""

    @abstractmethod
    def _begin(self, exchange: HttpExchange) -> None:
        """It is this one's turn."""

    @abstractmethod
    def _no_further(self) -> None:
        """What comes is no HTTP, or more than is taken."""

    def _parse(self, data: bytes) -> None:
        """Parse what has come, as far as the queue has room; the rest is held."""
        if self._parser is None:
            self._parser = HttpRequestParser(self)
        view = memoryview(data) if len(data) > _PIECE else data
        try:
            for at in range(0, len(data), _PIECE):
                self._parser.feed_data(view[at : at + _PIECE])
                if self._is_endless(min(_PIECE, len(data) - at)):
                    self._refusal = HEAD_TOO_LONG
                    self._no_further()
                    return
                if self._is_ahead():
                    self._held = data[at + _PIECE :]
                    self.deadline = inf  # it is we who do not read
                    self.read_no_more()
                    break
        except HttpParserUpgrade:  # offered, not taken: what follows is another protocol's
            self._deaf = True
        except HttpParserError:
            self._no_further()
            return
        if self._chunks and self._arriving is not None:
            self._hand_over(self._arriving)

    def _is_endless(self, size: int) -> bool:
        """Whether a head, or what is around the chunks of a body, is too long with these bytes."""
        if self._chunks:
            self._barren = 0
        elif self._in_head or self._arriving is not None:
            self._barren += size
        return self._barren > HEAD_BYTES + _PIECE  # a piece may begin with the end of another request

    def _is_ahead(self) -> bool:
        """Whether enough requests wait for their turn."""
        queue = self._queue
        if not queue:
            return False
        if self._chunks and self._arriving is not None:
            self._hand_over(self._arriving)
        return len(queue) >= MOST_PIPELINED or sum([each.size for each in queue]) > _MOST_AHEAD

    def _hand_over(self, arriving: HttpExchange) -> None:
        chunks = self._chunks
        if chunks:
            piece = chunks[0] if len(chunks) == 1 else b"".join(chunks)
            chunks.clear()
            arriving.take(piece)

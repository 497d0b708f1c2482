"""Load clients: parallel streams, each compared with the expected response; some disconnect, some read slowly."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import itertools
import json
import random
import socket
import time
from dataclasses import dataclass, field
from functools import cache

from wsproto import ConnectionType, WSConnection
from wsproto.connection import ConnectionState
from wsproto.events import AcceptConnection, CloseConnection, Ping, Request, TextMessage

import dragoman.dialects as registry
from dragoman.model.blocks import Text
from dragoman.model.conversation import Conversation, Message, ToolSpec
from dragoman.translate import plan
from dragoman.wire.jsonio import Json
from tests.faults.response_parsers import RESPONSE_PARSERS, ParsedResponse
from tests.gateway.harness import KEY
from tests.load.payload import NAME_PLACEHOLDER, TOOL, UNPACED_PREFIX, expected_response, request_text
from tests.load.upstream import DIALECTS

CLIENTS = tuple(RESPONSE_PARSERS)
SESSION = "websocket"  # a client of Responses over WebSocket
HTTP_PAIRS = tuple(itertools.product(CLIENTS, DIALECTS))
SESSION_PAIRS = tuple((SESSION, upstream) for upstream in DIALECTS)
PAIRS = HTTP_PAIRS + SESSION_PAIRS
_FIELDS: Json = {"city": {"type": "string"}, "note": {"type": "string"}}
_TOOL = ToolSpec(TOOL, "Tell the weather.", {"type": "object", "properties": _FIELDS, "required": ["city"]})
_FINISHES = {"tool_use", "tool_calls", "end_turn", "stop", "STOP", "completed"}
_SESSIONS = len(CLIENTS) + 1  # one connection of this number is a session
_REUSED = 4  # requests on one connection
_SESSION_ENDS = frozenset({"response.completed", "response.incomplete", "response.failed", "error"})
_TIMEOUT = 120.0  # seconds for one response


@dataclass
class LoadCounts:
    """The results of all streams. `lost`: an incomplete response; `wrong`: another response than expected."""

    requests: int = 0
    right: int = 0
    left: int = 0  # streams whose client disconnected on purpose
    lost: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    pairs: collections.Counter[tuple[str, str]] = field(default_factory=collections.Counter)
    open: int = 0
    most: int = 0  # parallel streams
    bytes: int = 0

    @property
    def good(self) -> bool:
        return not self.lost and not self.wrong and self.right > 0


class ClientLeaves(Exception):
    """The client disconnects on purpose."""


class Lost(Exception):
    """The response was incomplete."""


@cache
def _template(url: str, client: str, upstream: str) -> tuple[bytes, bytes]:
    """Return the head of a request without its content-length, and its body."""
    messages = (Message("user", (Text(NAME_PLACEHOLDER),)),)
    conversation = Conversation(f"to-{upstream}", messages, max_tokens=1000, tools=(_TOOL,), stream=True)
    dialect = registry.get(client)
    request = dialect.binding.wrap(plan(dialect, dialect, conversation).call())
    target = f"{request.path}?{request.query}" if request.query else request.path
    all_headers = dict(request.headers) | {"host": url.removeprefix("http://"), "x-api-key": KEY}
    lines = [f"POST {target} HTTP/1.1", *(f"{name}: {value}" for name, value in all_headers.items())]
    return "\r\n".join(lines).encode(), request.body


def _request(url: str, client: str, upstream: str, name: str) -> bytes:
    head, body = _template(url, "responses" if client == SESSION else client, upstream)
    body = body.replace(NAME_PLACEHOLDER.encode(), request_text(name).encode())
    if client == SESSION:
        return json.dumps({"type": "response.create", **json.loads(body)}).encode()
    return head + b"\r\ncontent-length: %d\r\n\r\n" % len(body) + body


class LoadClients:
    """Streams that restart when they end, until the time is over."""

    def __init__(self, url: str, seed: int = 0, *, hasty: bool = False) -> None:
        self.tally = LoadCounts()
        self._prefix = UNPACED_PREFIX if hasty else "ff"
        self._url = url
        self._chance = random.Random(seed)
        self._connections, self._turns = itertools.count(), itertools.count(seed * 7)
        self._session_turns = itertools.count()
        self._live: set[_Stream] = set()
        self._most = 0

    async def run(
        self, streams: int, seconds: float, *, most: int = 0, chaos: bool = False, slow: float = 0.0
    ) -> LoadCounts:
        """Run streams for some seconds.

        `most`: stop after this number of streams; `chaos`: each second a tenth of the clients disconnects; `slow`: the
        share of clients that read slowly.
        """
        until, self._most = time.monotonic() + seconds, most
        leaving = asyncio.create_task(self._chaos(until)) if chaos else None
        await asyncio.gather(*(self._client(until, index, slow) for index in range(streams)))
        if leaving is not None:
            await leaving
        return self.tally

    async def _chaos(self, until: float) -> None:
        while time.monotonic() < until:
            await asyncio.sleep(1.0)
            for stream in self._chance.sample(sorted(self._live, key=id), len(self._live) // 10):
                stream.leave(reset=self._chance.random() < 0.5)

    async def _client(self, until: float, index: int, slow: float) -> None:
        await asyncio.sleep(self._chance.random() * 0.5)  # spread the starts
        while time.monotonic() < until and not self._enough():
            make = _Stream if next(self._connections) % _SESSIONS else _Session
            stream = make(self._url, slow=self._chance.random() < slow)
            self._live.add(stream)
            try:
                await self._connection(stream, until)
            finally:
                self._live.discard(stream)
                await stream.close()

    def _enough(self) -> bool:
        return 0 < self._most <= self.tally.requests

    async def _connection(self, stream: _Stream, until: float) -> None:
        for _ in range(_REUSED):
            if isinstance(stream, _Session):
                client, upstream = SESSION_PAIRS[next(self._session_turns) % len(SESSION_PAIRS)]
            else:
                client, upstream = HTTP_PAIRS[next(self._turns) % len(HTTP_PAIRS)]
            name = f"{self._prefix}{self._chance.getrandbits(56):014x}"
            tally = self.tally
            tally.requests += 1
            tally.open += 1
            tally.most = max(tally.most, tally.open)
            where = f"{client} → {upstream} {name}"
            try:
                async with asyncio.timeout(_TIMEOUT):
                    status, body = await stream.ask(_request(self._url, client, upstream, name))
                tally.bytes += len(body)
                problem = _problem_of(client, name, status, body)
                if problem:
                    tally.wrong.append(f"{where}: {problem}")
                else:
                    tally.right += 1
                    tally.pairs[client, upstream] += 1
            except ClientLeaves:
                tally.left += 1
                return
            except (Lost, OSError, asyncio.IncompleteReadError, TimeoutError, ValueError) as error:
                tally.lost.append(f"{where}: {error!r}")
                return
            finally:
                tally.open -= 1
            if time.monotonic() >= until:
                return


class _Stream:
    """One connection."""

    def __init__(self, url: str, *, slow: bool) -> None:
        host, _, port = url.removeprefix("http://").partition(":")
        self._address = host, int(port)
        self._slow = slow
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._left = False

    async def ask(self, raw: bytes) -> tuple[int, bytes]:
        """Send a request and read the response. Raises ClientLeaves, Lost, OSError."""
        try:
            return await self._ask(raw)
        except (OSError, asyncio.IncompleteReadError, Lost):
            if self._left:
                raise ClientLeaves from None
            raise

    async def _ask(self, raw: bytes) -> tuple[int, bytes]:
        reader, writer = await self._connected()
        writer.write(raw)
        await writer.drain()
        return await self._read(reader)

    async def _connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._writer is None or self._reader is None:
            sock = socket.socket()
            sock.setblocking(False)
            if self._slow:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            try:
                await asyncio.get_running_loop().sock_connect(sock, self._address)
                self._reader, self._writer = await asyncio.open_connection(
                    sock=sock, limit=4096 if self._slow else 1 << 16
                )
            except BaseException:
                sock.close()
                raise
        return self._reader, self._writer

    async def _read(self, reader: asyncio.StreamReader) -> tuple[int, bytes]:
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        status = int(head.split(b" ", 2)[1])
        if b"transfer-encoding: chunked" not in head:
            length = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0])
            return status, await reader.readexactly(length)
        pieces = []
        while size := int(await reader.readuntil(b"\r\n"), 16):
            pieces.append((await reader.readexactly(size + 2))[:-2])
            if self._slow:
                await asyncio.sleep(0.05)
        if await reader.readexactly(2) != b"\r\n":
            raise Lost("no end of chunks")
        return status, b"".join(pieces)

    def leave(self, *, reset: bool) -> None:
        self._left = True
        if self._writer is not None:
            if reset:
                self._writer.transport.abort()
            else:
                self._writer.close()

    async def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            with contextlib.suppress(OSError):
                await self._writer.wait_closed()


class _Session(_Stream):
    """One WebSocket connection. Its events are returned as a stream of Responses, which they are over HTTP."""

    def __init__(self, url: str, *, slow: bool) -> None:
        super().__init__(url, slow=slow)
        self._websocket = WSConnection(ConnectionType.CLIENT)
        self._host = url.removeprefix("http://")

    async def _ask(self, raw: bytes) -> tuple[int, bytes]:
        reader, writer = await self._connected()
        if self._websocket.state is ConnectionState.CONNECTING:
            key = (b"authorization", f"Bearer {KEY}".encode())
            writer.write(self._websocket.send(Request(self._host, "/v1/responses", extra_headers=[key])))
            while self._websocket.state is ConnectionState.CONNECTING:
                await self._receive(reader)
                if [each for each in self._websocket.events() if not isinstance(each, AcceptConnection)]:
                    raise Lost("the handshake was refused")
        writer.write(self._websocket.send(TextMessage(raw.decode())))
        await writer.drain()
        return await self._events(reader, writer)

    async def _receive(self, reader: asyncio.StreamReader) -> None:
        data = await reader.read(2048 if self._slow else 1 << 16)
        if not data:
            raise Lost("the connection ended")
        self._websocket.receive_data(data)

    async def _events(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> tuple[int, bytes]:
        frames, text = list[str](), ""
        while True:
            await self._receive(reader)
            if self._slow:
                await asyncio.sleep(0.05)
            for event in self._websocket.events():
                match event:
                    case TextMessage(data=piece, message_finished=is_last):
                        text += piece
                        if is_last:
                            kind = json.loads(text)["type"]
                            frames.append(f"event: {kind}\ndata: {text}\n\n")
                            text = ""
                            if kind in _SESSION_ENDS:
                                return 200 if kind != "error" else 500, "".join(frames).encode()
                    case Ping():
                        writer.write(self._websocket.send(event.response()))
                    case CloseConnection(code=code):
                        raise Lost(f"closed with {code}")
                    case _:
                        pass


def _problem_of(client: str, name: str, status: int, body: bytes) -> str:
    """Return how a response differs from the expected one; empty if it does not."""
    if status != 200:
        return f"{status}: {body[:200]!r}"
    try:
        parsed = RESPONSE_PARSERS["responses" if client == SESSION else client](body)
        arguments = parsed.arguments()
    except (ValueError, KeyError, TypeError) as error:
        return f"it cannot be read: {error!r}"
    expected = expected_response(name)
    if parsed.error is not None or not parsed.ended or parsed.odd or parsed.finish not in _FINISHES:
        return f"no clean end: {parsed.error}, {parsed.finish}, {parsed.odd}"
    return _difference(parsed, arguments, expected.whole(), expected.arguments())


def _difference(parsed: ParsedResponse, arguments: list[object], text: str, calls: list[object]) -> str:
    if parsed.text != text:
        return f"text {parsed.text[:80]!r}, not {text[:80]!r}"
    if arguments != calls or any(call["name"] != TOOL or not call["whole"] for call in parsed.calls):
        return f"calls {json.dumps(arguments)[:160]}, not {json.dumps(calls)[:160]}"
    return ""

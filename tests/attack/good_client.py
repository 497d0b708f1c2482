"""The well-behaved client: it sends short requests one after another and checks each response completely."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from contextlib import suppress
from dataclasses import dataclass, field

from tests.gateway.harness import KEY

TIMEOUT = 30.0  # seconds after which a response counts as lost
_TOOL = {"name": "note", "description": "Write a word down.", "input_schema": {"type": "object", "properties": {}}}


@dataclass
class ClientResults:
    """The results of the client."""

    right: int = 0
    refused: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def percentile(self, part: float) -> float:
        ranked = sorted(self.seconds)
        return ranked[min(int(len(ranked) * part), len(ranked) - 1)] if ranked else float("nan")

    def problems(self) -> list[str]:
        found = []
        for name, cases in (("refused", self.refused), ("lost", self.lost), ("wrong", self.wrong)):
            if cases:
                found.append(f"{len(cases)} {name}, as {cases[0]}")
        return found


def request_bytes(word: str, model: str = "to-echo", **more: object) -> bytes:
    """Return a streaming Anthropic request with a key, as HTTP bytes."""
    body: dict[str, object] = {
        "model": model,
        "max_tokens": 100,
        "stream": True,
        "tools": [_TOOL],
        "messages": [{"role": "user", "content": f"Say {word}"}],
    }
    return post("/v1/messages", json.dumps({**body, **more}).encode())


def post(path: str, body: bytes, *headers: str, key: str = KEY) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "host: localhost", f"content-length: {len(body)}", *headers]
    if key:
        lines.append(f"x-api-key: {key}")
    return "\r\n".join([*lines, "", ""]).encode() + body


async def exchange(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes
) -> tuple[int, bytes, bool]:
    """Send one request; return the status, the body and whether the connection can be reused."""
    writer.write(request)
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    status = int(head.split()[1])
    if b"transfer-encoding: chunked" in head:
        body = b""
        while size := int(await reader.readline(), 16):
            body += (await reader.readexactly(size + 2))[:-2]
        await reader.readexactly(2)
    else:
        body = await reader.readexactly(int(head.partition(b"content-length:")[2].split()[0]))
    return status, body, b"connection: close" not in head


def parse_stream(stream: bytes) -> tuple[str, str, bool]:
    """Return the text and arguments of an Anthropic stream, and whether it has an end."""
    text, arguments, ended = [], [], False
    for line in stream.splitlines():
        if not line.startswith(b"data: "):
            continue
        event = json.loads(line[6:])
        delta = event.get("delta", {})
        text.append(delta.get("text", ""))
        arguments.append(delta.get("partial_json", ""))
        ended = ended or event["type"] == "message_stop"
    return "".join(text), "".join(arguments), ended


class GoodClient:
    """Sends one request at a time, on a keep-alive connection and on new ones in turn."""

    def __init__(self, port: int, source: str = "127.0.0.1") -> None:
        self.seen = ClientResults()
        self._port, self._source = port, source
        self._count = 0
        self._connection: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self) -> None:
        """Send one request and record the result."""
        self._count += 1
        try:
            async with asyncio.timeout(TIMEOUT):
                await self._ask(fresh=self._count % 2 == 0)
        except TimeoutError:
            self.seen.lost.append(f"no end within {TIMEOUT:g} s")
            self._connection = None
        except (OSError, asyncio.IncompleteReadError, ValueError) as error:
            self.seen.lost.append(f"{type(error).__name__}: {error}")
            self._connection = None

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        source = (self._source, 0)
        return await asyncio.open_connection("127.0.0.1", self._port, local_addr=source, limit=1 << 20)

    async def _ask(self, *, fresh: bool) -> None:
        word = secrets.token_hex(12)
        began = time.monotonic()
        connection = None if fresh else self._connection
        reader, writer = connection or await self._connect()
        try:
            status, body, again = await exchange(reader, writer, request_bytes(word))
        except (ConnectionError, asyncio.IncompleteReadError) as error:
            # An idle keep-alive connection may be closed: then the client retries on a new one.
            if connection is None or (isinstance(error, asyncio.IncompleteReadError) and error.partial):
                raise
            reader, writer = await self._connect()
            status, body, again = await exchange(reader, writer, request_bytes(word))
        self.seen.seconds.append(time.monotonic() - began)
        if status != 200:
            self.seen.refused.append(f"{status} {body[:200]!r}")
        elif parse_stream(body) != (word, json.dumps({"word": word}), True):
            self.seen.wrong.append(f"asked for {word}, heard {body[-300:]!r}")
        else:
            self.seen.right += 1
        if again and not fresh:
            self._connection = reader, writer
        else:
            if not fresh:
                self._connection = None
            with suppress(OSError):
                writer.close()

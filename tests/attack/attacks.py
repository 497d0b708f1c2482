"""The attacks. Each is a coroutine that runs against a gateway and counts what the attacker got."""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TypeAlias

from tests.attack.good_client import exchange, post, request_bytes
from tests.gateway.harness import KEY
from tests.gateway.test_smuggling import HIDDEN, VECTORS

MIB = 1 << 20
_BIG = 31 * MIB
_WRONG = "dgm_a-key-that-is-not-the-key-0123456789"
_STATUS = re.compile(rb"HTTP/1\.1 \d{3} ")
_STEP = 0.2  # seconds between two bytes of a slow sender


@dataclass
class Target:
    """The gateway under attack, and how large the attack is."""

    port: int
    scale: float  # 1 for the whole suite, less for the short form
    got: Counter[str] = field(default_factory=Counter)  # responses to attackers, by kind
    left: int = 0  # cases that the attack has not tried yet

    def many(self, whole: int) -> int:
        return max(4, int(whole * self.scale))

    async def connect(self, source: str = "127.0.0.1") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port, local_addr=(source, 0), limit=1 << 20)


Attack: TypeAlias = Callable[[Target], Awaitable[None]]  # runs until it is cancelled


async def _run_attackers(target: Target, count: int, one: Callable[[int], Awaitable[None]]) -> None:
    """Run `count` attackers in parallel, each in a loop, and count the gateway's reactions."""

    async def guarded(number: int) -> None:
        while True:
            try:
                await one(number)
            except asyncio.CancelledError:
                target.got["still open at the end"] += 1
                raise
            except asyncio.IncompleteReadError:
                target.got["connection closed"] += 1
            except OSError as error:
                target.got[type(error).__name__] += 1
            await asyncio.sleep(0.01)

    await asyncio.gather(*(guarded(number) for number in range(count)))


async def _status(reader: asyncio.StreamReader, got: Counter[str]) -> None:
    head = await reader.readuntil(b"\r\n\r\n")
    got[f"status {int(head.split()[1])}"] += 1


async def _drip(writer: asyncio.StreamWriter) -> None:
    while True:
        writer.write(b" ")
        await writer.drain()
        await asyncio.sleep(_STEP)


async def _send_slowly(target: Target, source: str, head: bytes) -> None:
    """Send a head, then one byte at a time, until the gateway answers or closes."""
    reader, writer = await target.connect(source)
    try:
        writer.write(head)
        slow_send = asyncio.ensure_future(_drip(writer))
        try:
            await _status(reader, target.got)
        finally:
            slow_send.cancel()
            with suppress(asyncio.CancelledError, OSError):
                await slow_send
    finally:
        writer.close()


# --- without a key


def _unsigned_head(authorization: str, length: int = _BIG) -> bytes:
    moment = datetime.now(UTC)
    lines = [
        "POST /model/to-echo/converse-stream HTTP/1.1",
        "host: localhost",
        f"content-length: {length}",
        f"x-amz-date: {moment:%Y%m%dT%H%M%SZ}",
        f"authorization: {authorization}",
    ]
    return "\r\n".join([*lines, "", ""]).encode()


async def keyless_signatures(target: Target) -> None:
    """2,060 sockets announce 31 MiB with `AWS4-HMAC-SHA256 x`."""
    head = _unsigned_head("AWS4-HMAC-SHA256 x")
    await _run_attackers(target, target.many(2060), lambda _: _send_slowly(target, "127.0.0.1", head))


async def forged_signatures(target: Target) -> None:
    """64 senders of 31 MiB with a signature of the right form, today's date and a wrong key."""
    day = f"{datetime.now(UTC):%Y%m%d}"
    claim = (
        f"AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/{day}/us-east-1/bedrock/aws4_request, "
        f"SignedHeaders=host;x-amz-date, Signature={'0' * 64}"
    )

    async def one(number: int) -> None:
        await _upload(target, f"127.0.0.{2 + number % 4}", _unsigned_head(claim), bytes(_BIG))

    await _run_attackers(target, target.many(64), one)


async def silent_connections(target: Target) -> None:
    """3,000 sockets connect and send nothing."""

    async def one(_: int) -> None:
        reader, writer = await target.connect()
        try:
            if not await reader.read(1):
                target.got["connection closed"] += 1
        finally:
            writer.close()

    await _run_attackers(target, target.many(3000), one)


async def slow_heads(target: Target) -> None:
    """1,000 sockets send a head one byte at a time."""
    begin = b"POST /v1/messages HTTP/1.1\r\nhost: localhost\r\nx-slow: "
    await _run_attackers(target, target.many(1000), lambda _: _send_slowly(target, "127.0.0.1", begin))


async def wrong_keys(target: Target) -> None:
    """64 clients send requests with a wrong key as fast as they can."""
    request = post("/v1/messages", b"{}", key=_WRONG)

    async def one(_: int) -> None:
        reader, writer = await target.connect()
        try:
            while True:
                status, _body, again = await exchange(reader, writer, request)
                target.got[f"status {status}"] += 1
                if not again:
                    return
        finally:
            writer.close()

    await _run_attackers(target, 64, one)


# --- with a key


async def _upload(target: Target, source: str, head: bytes, body: bytes) -> None:
    reader, writer = await target.connect(source)
    try:
        writer.write(head)
        sending = asyncio.ensure_future(_send(writer, body))
        try:
            await _status(reader, target.got)
        finally:
            sending.cancel()
            with suppress(asyncio.CancelledError, OSError):
                await sending
    finally:
        # A close would wait for unsent bytes. After the end of the loop the socket would stay open until garbage
        # collection, and the gateway would wait for the rest of the body.
        writer.transport.abort()


async def _send(writer: asyncio.StreamWriter, body: bytes) -> None:
    for at in range(0, len(body), 256 * 1024):
        writer.write(body[at : at + 256 * 1024])
        await writer.drain()


async def slow_bodies(target: Target) -> None:
    """500 clients with the key announce 100 KB and send a byte at a time."""
    head = post("/v1/messages", b"", f"x-api-key: {KEY}", key="").replace(
        b"content-length: 0", b"content-length: 100000"
    )
    await _run_attackers(
        target, target.many(500), lambda number: _send_slowly(target, f"127.0.0.{2 + number % 4}", head)
    )


async def full_uploads(target: Target) -> None:
    """16 clients with the key upload 31 MiB at once, again and again."""
    text = "a" * (_BIG - 2000)
    whole = request_bytes("", messages=[{"role": "user", "content": f"{text} done"}])
    head, _, body = whole.partition(b"\r\n\r\n")
    await _run_attackers(target, 16, lambda _: _upload(target, "127.0.0.2", head + b"\r\n\r\n", body))


_CLIENTS = {
    "/v1/messages": lambda model: {"messages": [{"role": "user", "content": "go"}], "max_tokens": 9, "model": model},
    "/v1/responses": lambda model: {"input": "go", "model": model},
    "/v1/chat/completions": lambda model: {"messages": [{"role": "user", "content": "go"}], "model": model},
}


async def runaway_responses(target: Target) -> None:
    """An upstream sends four kinds of endless responses to three kinds of clients that read everything."""
    kinds = [(path, kind) for path in _CLIENTS for kind in ("arguments", "calls", "choices", "text")]

    async def one(number: int) -> None:
        path, kind = kinds[number % len(kinds)]
        body = {**_CLIENTS[path](f"to-{kind}"), "stream": True}
        body["tools"] = _TOOLS[path]
        reader, writer = await target.connect("127.0.0.2")
        try:
            writer.write(post(path, json.dumps(body).encode()))
            last = b""
            while data := await reader.read(1 << 20):
                last = (last + data)[-4000:]
            target.got["ended with an error" if b"error" in last else "ended without an error"] += 1
        finally:
            writer.close()

    await _run_attackers(target, len(kinds), one)


_SCHEMA = {"type": "object", "properties": {}}
_TOOLS: dict[str, list[object]] = {
    "/v1/messages": [{"name": "note", "input_schema": _SCHEMA}],
    "/v1/responses": [{"type": "function", "name": "note", "parameters": _SCHEMA}],
    "/v1/chat/completions": [{"type": "function", "function": {"name": "note", "parameters": _SCHEMA}}],
}


def _bomb(levels: int, wide: int) -> dict[str, object]:
    """A schema whose references double at every level."""
    parts: dict[str, object] = {f"d{levels}": {"type": "string", "description": "x" * 20}}
    for level in range(levels):
        parts[f"d{level}"] = {
            "type": "object",
            "properties": {f"p{at}": {"$ref": f"#/$defs/d{level + 1}"} for at in range(wide)},
        }
    return {"type": "object", "properties": {"root": {"$ref": "#/$defs/d0"}}, "$defs": parts}


def bombs() -> Iterable[bytes]:
    """Yield bodies within the limits that become large when parsed or translated."""
    ask: dict[str, object] = {"messages": [{"role": "user", "content": "go"}], "max_tokens": 9, "stream": True}
    for model in ("to-kiro", "to-gemini", "to-echo"):
        for levels, wide in ((10, 2), (13, 2), (6, 5), (40, 2)):
            tool = {"name": "bomb", "input_schema": _bomb(levels, wide)}
            yield json.dumps({**ask, "model": model, "tools": [tool]}).encode()
        many = [{"name": f"bomb{number}", "input_schema": _bomb(9, 2)} for number in range(200)]
        yield json.dumps({**ask, "model": model, "tools": many}).encode()
    begin = b'{"model": "to-echo", "max_tokens": 9, "messages": [{"role": "user", "content": '
    yield begin + b"[" * 100_000 + b"]" * 100_000 + b"}]}"
    yield begin + b"[" + b",".join([b"{}"] * 3_000_000) + b"]}]}"
    yield begin + b'"' + b"\\ud800" * (4 * MIB) + b'"}]}'
    call = b'{"type": "tool_use", "id": "c%d", "name": "note", "input": {"a": [1, 2, 3]}}'
    yield begin[:-12] + b'"assistant", "content": [' + b",".join([call % at for at in range(150_000)]) + b"]}]}"


async def bombs_in_requests(target: Target) -> None:
    """Schemas that grow by their references, 100,000 levels, 3,000,000 values, 24 MB of lone surrogates."""
    bodies = list(bombs())
    target.left = len(bodies)

    async def one(number: int) -> None:
        for body in bodies[number::2]:
            head, _, data = post("/v1/messages", body).partition(b"\r\n\r\n")
            await _upload(target, "127.0.0.2", head + b"\r\n\r\n", data)
            target.left -= 1

    await _run_attackers(target, 2, one)


async def starvation(target: Target) -> None:
    """One client uploads 30 MB bodies; one upstream sends small deltas as fast as they are read."""
    parts = [{"type": "text", "text": "word " * 40} for _ in range(120_000)]
    whole = request_bytes("", messages=[{"role": "user", "content": [*parts, {"type": "text", "text": "done"}]}])
    head, _, body = whole.partition(b"\r\n\r\n")

    async def one(number: int) -> None:
        if number:
            await _upload(target, "127.0.0.2", head + b"\r\n\r\n", body)
            return
        reader, writer = await target.connect("127.0.0.3")
        try:
            writer.write(request_bytes("", model="to-deltas"))
            while data := await reader.read(1 << 20):
                target.got["MiB of deltas"] += 0 if len(data) < random.randrange(MIB) else 1
        finally:
            writer.close()

    await _run_attackers(target, 2, one)


async def poisoned_connections(target: Target) -> None:
    """An upstream sends a second response after each response on a keep-alive connection."""

    async def one(_: int) -> None:
        reader, writer = await target.connect("127.0.0.2")
        try:
            while True:
                _, body, _ = await exchange(reader, writer, request_bytes("poisoned", model="to-poison"))
                target.got["responses"] += 1
                target.got["responses that belong to another request"] += b"response to no request" in body
        finally:
            writer.close()

    await _run_attackers(target, 8, one)


async def doubtful_requests(target: Target) -> None:
    """Requests that two parsers read differently, each followed by a hidden complete request."""
    target.left = len(VECTORS)

    async def one(number: int) -> None:
        for vector in VECTORS[number::4]:
            reader, writer = await target.connect("127.0.0.2")
            try:
                writer.write(vector.raw + HIDDEN)
                writer.write_eof()
                response = await reader.read(-1)
                target.got[f"{len(_STATUS.findall(response))} responses"] += 1
                target.got["hidden requests that were served"] += response.count(b"HTTP/1.1 200")
                target.left -= 1
            finally:
                writer.close()

    await _run_attackers(target, 4, one)


async def nothing(target: Target) -> None:
    """No attack: the baseline for the client."""
    await asyncio.Event().wait()


ATTACKS: tuple[Attack, ...] = (
    nothing,
    keyless_signatures,
    forged_signatures,
    silent_connections,
    slow_heads,
    wrong_keys,
    slow_bodies,
    full_uploads,
    runaway_responses,
    bombs_in_requests,
    starvation,
    poisoned_connections,
    doubtful_requests,
)

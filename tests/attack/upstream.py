"""The upstream of the attacks: OpenAI Chat over HTTP/1.1; the model name selects its behaviour.

`python -m tests.attack.upstream` prints its port, serves on loopback and ends when its standard input closes.

echo       answers with the last word of the request, as text and as the arguments of a tool call
poison     the same, and then a second, unrequested response on the same connection
arguments  one tool call whose arguments never end
calls      tool calls without end
choices    choices without end
text       text without end
deltas     texts of one character, as fast as they are read
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
from collections.abc import Iterator

STRAY = "a response to no request"
_LETTERS = "abcdefghij " * 100
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def _chunk(delta: dict[str, object], index: int = 0, finish: str | None = None) -> bytes:
    choice = {"index": index, "delta": delta, "finish_reason": finish}
    document = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
    return b"data: " + json.dumps(document).encode() + b"\n\n"


def _call(position: int, text: str, name: str = "") -> dict[str, object]:
    head = {"id": f"call_{position}", "type": "function"} if name else {}
    function = {"name": name, "arguments": text} if name else {"arguments": text}
    return {"tool_calls": [{"index": position, **head, "function": function}]}


def _echo(word: str) -> Iterator[bytes]:
    yield _chunk({"role": "assistant", "content": ""})
    for piece in (word[:5], word[5:9], word[9:]):
        yield _chunk({"content": piece})
    arguments = json.dumps({"word": word})
    yield _chunk(_call(0, "", "note"))
    for piece in (arguments[:7], arguments[7:]):
        yield _chunk(_call(0, piece))
    yield _chunk({}, finish="tool_calls")
    yield b"data: [DONE]\n\n"


def _endless(kind: str) -> Iterator[bytes]:
    yield _chunk({"role": "assistant", "content": ""})
    if kind == "arguments":
        yield _chunk(_call(0, '{"text": "', "note"))
    for number in itertools.count():
        match kind:
            case "arguments":
                yield _chunk(_call(0, _LETTERS))
            case "calls":
                yield _chunk(_call(number, "{}", "note"))
            case "choices":
                yield _chunk({"content": "a"}, index=number)
            case "text":
                yield _chunk({"content": _LETTERS})
            case _:
                yield _chunk({"content": _LETTERS[number % len(_LETTERS)]})


async def _send(writer: asyncio.StreamWriter, frames: Iterator[bytes]) -> None:
    """Write frames in chunks of about 16 KB, and wait for the reader."""
    batch: list[bytes] = []
    size = 0
    for frame in frames:
        batch.append(frame)
        size += len(frame)
        if size > 16_384:
            await _write(writer, batch)
            batch, size = [], 0
    await _write(writer, batch)
    writer.write(b"0\r\n\r\n")
    await writer.drain()


async def _write(writer: asyncio.StreamWriter, batch: list[bytes]) -> None:
    data = b"".join(batch)
    if data:
        writer.write(b"%x\r\n%b\r\n" % (len(data), data))
        await writer.drain()
        await asyncio.sleep(0)  # `drain` does not yield to other tasks while the reader keeps up


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length:")[2].split()[0])
            request = json.loads(await reader.readexactly(length))
            kind = request["model"]
            writer.write(_HEAD)
            if kind in ("echo", "poison"):
                await _send(writer, _echo(_last_word(request)))
            else:
                await _send(writer, _endless(kind))
            if kind == "poison":
                writer.write(_HEAD)
                await _send(writer, _echo(STRAY))
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


def _last_word(request: dict[str, list[dict[str, object]]]) -> str:
    """Return the last word of the last user message with text."""
    for message in reversed(request["messages"]):
        if message["role"] == "user":
            content = message["content"]
            texts = [content] if isinstance(content, str) else [str(part["text"]) for part in content]  # type: ignore[attr-defined]
            return texts[-1].split()[-1]
    return "nothing"


async def main() -> None:
    server = await asyncio.start_server(_serve, "127.0.0.1", 0, limit=64 * 1024 * 1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    ended = asyncio.Event()
    asyncio.get_running_loop().add_reader(sys.stdin, ended.set)
    await ended.wait()


if __name__ == "__main__":
    asyncio.run(main())

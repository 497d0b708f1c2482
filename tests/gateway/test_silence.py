"""S16: signs of life of an upstream do not hide its silence. A silent stream ends with the client's timeout error."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import dragoman.dialects as registry
from dragoman.answer import Answer
from dragoman.gateway.answers import PassThrough
from dragoman.model.conversation import Conversation
from dragoman.translate import plan
from dragoman.wire.eventstream import encode_event
from tests.gateway.house import STREAMING, chat, house, messages, upstream


def sse(data: str, kind: str = "") -> bytes:
    return (f"event: {kind}\n" if kind else "").encode() + f"data: {data}\n\n".encode()


def chunk(choices: str) -> bytes:
    return sse(f'{{"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[{choices}]}}')


def delta(text: str) -> bytes:
    body = f'{{"type":"content_block_delta","index":0,"delta":{{"type":"text_delta","text":"{text}"}}}}'
    return sse(body, "content_block_delta")


_MESSAGE = '{"id":"msg_1","type":"message","role":"assistant","content":[],"model":"m","stop_reason":null,"usage":{"input_tokens":1,"output_tokens":1}}'
_RESPONSE = '{"id":"resp_1","object":"response","created_at":1,"status":"in_progress","model":"m","output":[]}'
_BLOCK = '{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}'
_PART = '{"candidates":[{"content":{"role":"model","parts":[{"text":"%s"}]}}],"modelVersion":"m","responseId":"r"}'
_USAGE = '{"usageMetadata":{"promptTokenCount":3,"totalTokenCount":3},"modelVersion":"m","responseId":"r"}'

# Of each dialect: how a stream begins, one piece with content, and its signs of life.
BEGIN: dict[str, bytes] = {
    "anthropic": sse(f'{{"type":"message_start","message":{_MESSAGE}}}', "message_start")
    + sse(_BLOCK, "content_block_start"),
    "openai": chunk('{"index":0,"delta":{"role":"assistant","content":"a"},"finish_reason":null}'),
    "responses": sse(f'{{"type":"response.created","sequence_number":0,"response":{_RESPONSE}}}', "response.created"),
    "gemini": sse(_PART % "a"),
    "bedrock": encode_event("messageStart", b'{"role":"assistant"}'),
    "kiro": encode_event("assistantResponseEvent", b'{"content":"a"}'),
}
CONTENT: dict[str, bytes] = {
    "anthropic": delta("b"),
    "openai": chunk('{"index":0,"delta":{"content":"b"},"finish_reason":null}'),
    "gemini": sse(_PART % "b"),
    "bedrock": encode_event("contentBlockDelta", b'{"contentBlockIndex":0,"delta":{"text":"b"}}'),
    "kiro": encode_event("assistantResponseEvent", b'{"content":"b"}'),
}
SIGNS: dict[str, tuple[bytes, ...]] = {
    "anthropic": (sse('{"type":"ping"}', "ping"), b": keep-alive\n\n", b":\n", b"\n", delta("")),
    "openai": (
        b": OPENROUTER PROCESSING\n\n",
        chunk(""),
        chunk('{"index":0,"delta":{"content":""},"finish_reason":null}'),
        chunk('{"index":0,"delta":{},"finish_reason":null}'),
        chunk('{"index":0,"delta":{"role":"assistant"},"finish_reason":null}'),
    ),
    "responses": (
        sse('{"type":"keepalive","sequence_number":7}', "keepalive"),
        sse(f'{{"type":"response.in_progress","sequence_number":1,"response":{_RESPONSE}}}', "response.in_progress"),
        b": ping\n\n",
    ),
    "gemini": (sse(_PART % ""), sse('{"modelVersion":"m","responseId":"r"}'), sse(_USAGE), b": ping\n\n"),
    "bedrock": (
        encode_event("contentBlockDelta", b'{"contentBlockIndex":0,"delta":{"text":""}}'),
        encode_event("ping", b"{}"),
    ),
    "kiro": (
        encode_event("assistantResponseEvent", b'{"content":""}'),
        encode_event("meteringEvent", b'{"unit":"credit","usage":0.1}'),
    ),
}
EACH = [(dialect, number) for dialect, signs in SIGNS.items() for number in range(len(signs))]


@pytest.mark.parametrize(("dialect", "number"), EACH)
@pytest.mark.parametrize("passing", [True, False])
def test_s16_no_sign_of_life_is_content(dialect: str, number: int, passing: bool) -> None:
    it, sign = registry.get(dialect), SIGNS[dialect][number]
    made = plan(it, it, Conversation("m", ()))
    answer = PassThrough(made) if passing else Answer(made)
    answer.feed(BEGIN[dialect])
    answer.feed(sign)
    before = answer.hushed
    for _ in range(5):
        answer.feed(sign)
    assert answer.hushed == before + 5
    if dialect in CONTENT:
        answer.feed(CONTENT[dialect])
        assert answer.hushed == before + 5


def test_s16_growing_counts_are_content() -> None:
    """A model that thinks without showing it tells so by its counts."""
    it = registry.get("gemini")
    answer = Answer(plan(it, it, Conversation("m", ())))
    answer.feed(BEGIN["gemini"])
    for count in range(5, 10):
        answer.feed(sse(_USAGE.replace("3", str(count))))
    assert answer.hushed == 0


@contextmanager
def living(begin: bytes, sign: bytes, kind: str) -> Iterator[str]:
    """A service that begins to answer, and then only gives signs of life until it is left."""
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listening.accept()
                threading.Thread(target=answer, args=(connection,), daemon=True).start()

    def answer(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.settimeout(0.02)
            connection.recv(65536)
            connection.sendall(f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\n\r\n".encode() + begin)
            while True:
                connection.sendall(sign)
                with suppress(TimeoutError):
                    if not connection.recv(65536):
                        return

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()


_MORE = "timeouts.silent = 0.1\ntimeouts.idle = 30"


@pytest.mark.parametrize("dialect", SIGNS)
def test_s16_a_stream_of_signs_of_life_ends_with_the_timeout_of_its_client(dialect: str, tmp_path: Path) -> None:
    """S16: pings alone kept a silent stream open for an hour."""
    binary = dialect in ("bedrock", "kiro")
    kind = "application/vnd.amazon.eventstream" if binary else "text/event-stream"
    begin, signs = BEGIN[dialect] + CONTENT.get(dialect, b""), b"".join(SIGNS[dialect])
    with (
        living(begin, signs, kind) as url,
        house(upstream("one", dialect, url, _MORE), tmp_path) as home,
        ThreadPoolExecutor(len(STREAMING)) as clients,
    ):
        for _, _, answer in clients.map(lambda path: home.ask(path, STREAMING[path]), STREAMING):
            assert b"no content" in answer, answer
            assert url.encode() not in answer and b"the upstream one" in answer
        assert {line["outcome"] for line in home.lines(len(STREAMING))} <= {"broken", "failed"}


@pytest.mark.parametrize("dialect", ["openai", "anthropic"])
def test_s16_blanks_before_a_whole_answer_are_no_content(dialect: str, tmp_path: Path) -> None:
    asked: tuple[tuple[str, dict[str, Any]], ...] = (("/v1/messages", messages()), ("/v1/chat/completions", chat()))
    with (
        living(b"", b" \n", "application/json") as url,
        house(upstream("one", dialect, url, _MORE), tmp_path) as home,
    ):
        for path, body in asked:
            status, _, answer = home.ask(path, body)
            assert (status, b"no content" in answer) == (504, True), answer

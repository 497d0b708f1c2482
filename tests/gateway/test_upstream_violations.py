"""Protocol violations of upstreams: broken streams, the wrong response form, redirects, blank ids and names."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import dragoman.dialects as registry
from dragoman.conformance import laws
from dragoman.conformance.laws import EMPTY_REQUEST, fixed_environment
from dragoman.model.assemble import assemble_reply, reply_events
from dragoman.model.blocks import Text, ToolCall
from dragoman.model.conversation import Choice, Reply, Stop, StopReason, Usage
from dragoman.model.events import BlockKeys
from dragoman.response_stream import ResponseFilters
from dragoman.translate import plan
from tests.gateway.harness import CLIENTS, anthropic_body, client_request, openai_body, start_gateway, upstream_config
from tests.gateway.test_resources import FixedResponseServer

BROKEN = b'event: content_block_stop\ndata: {"type":"content_block_stop","index":0}\n\n'
DONE = b'data: {"id":"c","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"role":"assistant"}}]}\n\ndata: [DONE]\n\n'
REPLY = Reply(
    "resp_1",
    "m",
    (Choice((Text("Hello"), ToolCall("call_1", "read", '{"path":"a"}')), Stop(StopReason.TOOL)),),
    Usage(3, 2),
)


@contextmanager
def recording_server(status: int, kind: str, body: bytes, **headers: str) -> Iterator[tuple[str, list[str]]]:
    """Run an upstream with one fixed response; give its address and the list of requests."""
    fields = {"content-type": kind, "content-length": str(len(body)), "connection": "close", **headers}
    head = f"HTTP/1.1 {status} Any\r\n" + "".join(f"{name}: {value}\r\n" for name, value in fields.items()) + "\r\n"
    canned = FixedResponseServer()
    canned.respond = lambda: iter((head.encode() + body,))
    try:
        yield f"http://127.0.0.1:{canned.port}", canned.digests
    finally:
        canned.close()


@pytest.mark.parametrize("client", ["anthropic", "openai"])
def test_a_stream_that_is_always_broken_is_requested_twice_at_most(client: str, tmp_path: Path) -> None:
    path, body = client_request(client, stream=True)
    with (
        recording_server(200, "text/event-stream", BROKEN) as (url, requests),
        start_gateway(upstream_config("one", "anthropic", url), tmp_path) as harness,
    ):
        status, _, _ = harness.request(path, body)
    assert (status, len(requests)) == (502, 2)


def test_another_target_counts_as_the_retry(tmp_path: Path) -> None:
    with recording_server(200, "text/event-stream", BROKEN) as (url, requests):
        text = (
            upstream_config("one", "anthropic", url)
            + upstream_config("two", "anthropic", url)
            + upstream_config("three", "anthropic", url)
        )
        text += '[[routes]]\nmatch = "m"\nupstream = "one"\nfallbacks = ["two", "three"]\n'
        with start_gateway(text, tmp_path) as harness:
            status, _, _ = harness.request("/v1/messages", anthropic_body(stream=True))
    assert (status, len(requests)) == (502, 2)


def test_a_complete_response_is_not_retried(tmp_path: Path) -> None:
    with (
        recording_server(200, "text/event-stream", DONE) as (url, requests),
        start_gateway(upstream_config("one", "openai", url), tmp_path) as harness,
    ):
        status, _, _ = harness.request("/v1/messages", anthropic_body(stream=True))
    assert (status, len(requests)) == (502, 1)


@pytest.mark.parametrize("body", [b"{}", b"<html>", b'{"choices": 5}'])
def test_an_unreadable_whole_response_is_not_retried(body: bytes, tmp_path: Path) -> None:
    with (
        recording_server(200, "application/json", body) as (url, requests),
        start_gateway(upstream_config("one", "openai", url), tmp_path) as harness,
    ):
        status, _, _ = harness.request("/v1/messages", anthropic_body())
    assert (status, len(requests)) == (502, 1)


@pytest.mark.parametrize("name", [" ", ""])
def test_a_whole_response_with_a_blank_name_does_not_pass_in_the_same_dialect(name: str, tmp_path: Path) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": name, "arguments": "{}"}}
    choice = {"index": 0, "message": {"role": "assistant", "tool_calls": [call]}, "finish_reason": "tool_calls"}
    body = json.dumps({"id": "c", "object": "chat.completion", "model": "m", "choices": [choice]}).encode()
    with (
        recording_server(200, "application/json", body) as (url, requests),
        start_gateway(upstream_config("one", "openai", url), tmp_path) as harness,
    ):
        status, _, response = harness.request("/v1/chat/completions", openai_body())
    assert (status, len(requests)) == (502, 1)
    assert b"function.name" in response


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_redirect_is_a_502_without_a_retry(status: int, client: str, stream: bool, tmp_path: Path) -> None:
    path, body = client_request(client, stream=stream)
    where = "https://elsewhere.test/v1/secret"
    with (
        recording_server(status, "text/html", b"moved to " + where.encode(), location=where) as (url, requests),
        start_gateway(upstream_config("one", "openai", url), tmp_path) as harness,
    ):
        answered, _, response = harness.request(path, body)
    assert (answered, len(requests)) == (502, 1)
    assert b"redirect" in response and str(status).encode() in response
    assert b"elsewhere" not in response and url.encode() not in response


@pytest.mark.parametrize("client", ["anthropic", "openai"])
@pytest.mark.parametrize("name", ["anthropic", "openai", "gemini", "bedrock", "responses"])
def test_a_whole_response_instead_of_a_stream_is_sent_as_a_stream(name: str, client: str, tmp_path: Path) -> None:
    body = registry.get(name).codec.render_reply(REPLY, EMPTY_REQUEST, fixed_environment())
    path, asks = client_request(client, stream=True)
    with (
        recording_server(200, "application/json", body) as (url, requests),
        start_gateway(upstream_config("one", name, url), tmp_path) as harness,
    ):
        status, headers, response = harness.request(path, asks)
    assert (status, len(requests)) == (200, 1)
    assert headers["content-type"].startswith("text/event-stream")
    reply = assemble_reply(laws.decode_events(registry.get(client), response))
    assert [block.name for block in reply.choices[0].blocks if isinstance(block, ToolCall)] == ["read"]
    assert "".join(block.text for block in reply.choices[0].blocks if isinstance(block, Text)) == "Hello"


def test_an_error_in_a_whole_response_is_reported(tmp_path: Path) -> None:
    with (
        recording_server(200, "application/json", b'{"error":{"message":"no such thing","type":"server_error"}}') as (
            url,
            _,
        ),
        start_gateway(upstream_config("one", "openai", url), tmp_path) as harness,
    ):
        status, _, response = harness.request("/v1/messages", anthropic_body(stream=True))
    assert status >= 400 and b"no such thing" in response


@pytest.mark.parametrize("client", ["anthropic", "openai"])
@pytest.mark.parametrize("name", ["anthropic", "openai", "gemini", "bedrock", "responses"])
def test_a_stream_instead_of_a_whole_response_is_collected(name: str, client: str, tmp_path: Path) -> None:
    dialect = registry.get(name)
    events = reply_events(REPLY)
    body = laws.encode_events(
        dialect, ResponseFilters(plan(dialect, dialect, EMPTY_REQUEST), BlockKeys.after(events)).feed(events)
    )
    path, asks = client_request(client)
    with (
        recording_server(200, "text/event-stream", body) as (url, requests),
        start_gateway(upstream_config("one", name, url), tmp_path) as harness,
    ):
        status, _, response = harness.request(path, asks)
    assert (status, len(requests)) == (200, 1)
    reply = registry.get(client).codec.parse_reply(response, EMPTY_REQUEST)
    assert [block.name for block in reply.choices[0].blocks if isinstance(block, ToolCall)] == ["read"]
    assert json.loads(response)


# --- tool calls without an id or a name, also with the same dialect on both sides

_USAGE = {"inputTokens": 1, "outputTokens": 1, "totalTokens": 2}


def whole_bedrock(use: dict[str, Any]) -> bytes:
    content = [{"toolUse": {"input": {}, **use}}]
    output = {"message": {"role": "assistant", "content": content}}
    response = {"output": output, "stopReason": "tool_use", "usage": _USAGE, "metrics": {"latencyMs": 1}}
    return json.dumps(response).encode()


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize(
    "use",
    [
        {"toolUseId": " ", "name": "f"},
        {"toolUseId": "", "name": "f"},
        {"toolUseId": None, "name": "f"},
        {"name": "f"},
        {"toolUseId": 5, "name": "f"},
        {"toolUseId": "t", "name": "\t"},
        {"toolUseId": "t"},
    ],
    ids=json.dumps,
)
def test_a_blank_id_or_name_of_bedrock_never_reaches_a_client(client: str, use: dict[str, Any], tmp_path: Path) -> None:
    with (
        recording_server(200, "application/json", whole_bedrock(use)) as (url, requests),
        start_gateway(upstream_config("one", "bedrock", url), tmp_path) as harness,
    ):
        status, _, response = harness.request(*client_request(client))
    assert (status, len(requests)) == (502, 1)
    assert b"toolUse" in response


NAMELESS: dict[str, Any] = {
    "anthropic": {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [{"type": "tool_use", "id": "t", "name": " ", "input": {}}],
        "stop_reason": "tool_use",
        "usage": {"input_tokens": 1, "output_tokens": 1},
    },
    "openai": {
        "id": "c",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [
            {
                "index": 0,
                "message": {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [{"id": "t", "type": "function", "function": {"name": " ", "arguments": "{}"}}],
                },
                "finish_reason": "tool_calls",
            }
        ],
    },
    "responses": {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "status": "completed",
        "model": "m",
        "output": [{"type": "function_call", "id": "fc_1", "call_id": "t", "name": " ", "arguments": "{}"}],
    },
    "gemini": {
        "candidates": [
            {
                "content": {"role": "model", "parts": [{"functionCall": {"name": " ", "args": {}}}]},
                "finishReason": "STOP",
            }
        ]
    },
}


@pytest.mark.parametrize("name", NAMELESS)
def test_a_whole_response_in_the_same_dialect_is_checked_like_a_stream(name: str, tmp_path: Path) -> None:
    with (
        recording_server(200, "application/json", json.dumps(NAMELESS[name]).encode()) as (url, requests),
        start_gateway(upstream_config("one", name, url), tmp_path) as harness,
    ):
        status, _, response = harness.request(*client_request(name))
    assert (status, len(requests)) == (502, 1)
    assert b"name: expected a string that is not blank" in response

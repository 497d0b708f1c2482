"""An upstream whose response never ends. The client gets its dialect's error, and the gateway stays within its
memory limits.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.endless_upstream import EndlessUpstream, EventSource
from tests.gateway.harness import GatewayHarness, client_request, start_gateway, upstream_config

WORDS = "words without an end " * 50
RESPONSE_BYTES = 256 * 1024  # bytes that one response may keep in memory


def chunk(delta: dict[str, Any], index: int = 0) -> dict[str, Any]:
    return {"id": "c", "object": "chat.completion.chunk", "model": "m", "choices": [{"index": index, "delta": delta}]}


def call_delta(index: int, arguments: str, **more: str) -> dict[str, Any]:
    function = {"arguments": arguments, **({"name": more["name"]} if "name" in more else {})}
    entry = {"index": index, "function": function, **({"id": f"call_{index}"} if "name" in more else {})}
    return chunk({"tool_calls": [entry]})


def arguments() -> Iterator[dict[str, Any] | None]:
    yield call_delta(0, '{"path": "', name="read")
    while True:
        yield call_delta(0, WORDS)


def short_arguments() -> Iterator[dict[str, Any] | None]:
    yield call_delta(0, '{"path": "', name="read")
    while True:
        yield call_delta(0, "abc")


def calls() -> Iterator[dict[str, Any] | None]:
    for index in itertools.count():
        yield call_delta(index, "{}", name="read")


def choices() -> Iterator[dict[str, Any] | None]:
    for index in itertools.count():
        yield chunk({"content": "one of many"}, index)


def text() -> Iterator[dict[str, Any] | None]:
    while True:
        yield chunk({"content": WORDS})


def reasoning() -> Iterator[dict[str, Any] | None]:
    while True:
        yield chunk({"reasoning_content": WORDS})


SHAPES: dict[str, EventSource] = {
    shape.__name__: shape for shape in (arguments, short_arguments, calls, choices, text, reasoning)
}


@contextmanager
def gateway_with_endless_upstream(tmp_path: Path, **flags: Any) -> Iterator[tuple[GatewayHarness, EndlessUpstream]]:
    source = EndlessUpstream(text)
    limits = {
        "server__limits__answer": RESPONSE_BYTES,
        "server__limits__blocks": 64,
        "server__limits__choices": 8,
        **flags,
    }
    try:
        with start_gateway(upstream_config("up", "openai", source.url), tmp_path, **limits) as harness:
            yield harness, source
    finally:
        source.close()


ERRORS = {"responses": b"response.failed", "anthropic": b"event: error", "openai": b'"error"'}


def error_of(harness: GatewayHarness, client: str) -> bytes:
    """Return the error that ends the stream; it is an HTTP error if the limit is exceeded before the first event."""
    status, _, got = harness.request(*client_request(client, stream=True))
    if status != 200:
        assert json.loads(got)["error"]
        return got
    last = got[got.rindex(b"data: ") :] if client != "anthropic" else got[got.rindex(b"event: ") :]
    assert ERRORS[client] in last
    return last


@pytest.mark.parametrize("client", ERRORS)
@pytest.mark.parametrize("shape", ["arguments", "short_arguments", "calls", "choices", "reasoning"])
def test_an_endless_response_ends_with_the_error_of_the_dialect(client: str, shape: str, tmp_path: Path) -> None:
    with gateway_with_endless_upstream(tmp_path) as (harness, source):
        source.shape = SHAPES[shape]
        last = error_of(harness, client)
        assert source.left.wait(10)
        if shape != "choices" or client == "openai":  # other dialects have one choice, and note that
            assert b"(limit: " in last
        (line,) = harness.log_lines()
        assert line["attempts"] == 1  # a retry would exceed the limit again
        assert harness.running.gateway.memory_budget.peak_bytes < 4 * RESPONSE_BYTES


def test_text_that_a_responses_client_gets_again_at_the_end_is_limited(tmp_path: Path) -> None:
    with gateway_with_endless_upstream(tmp_path) as (harness, source):
        source.shape = text
        assert b"(limit: answer)" in error_of(harness, "responses")
        assert source.left.wait(10)


def test_text_that_is_not_buffered_has_no_limit(tmp_path: Path) -> None:
    with gateway_with_endless_upstream(tmp_path) as (harness, source):
        source.shape, source.most = text, 20 * RESPONSE_BYTES
        _, _, got = harness.request(*client_request("openai", stream=True))
        assert len(got) > 15 * RESPONSE_BYTES
        assert b"(limit: " not in got
        assert harness.running.gateway.memory_budget.peak_bytes < RESPONSE_BYTES


@pytest.mark.parametrize("client", ERRORS)
def test_an_endless_response_to_a_whole_request_is_an_error_of_the_dialect(client: str, tmp_path: Path) -> None:
    """The upstream sends an endless stream although a whole response was requested."""
    with gateway_with_endless_upstream(tmp_path, server__limits__in_flight=2 * 1024 * 1024) as (harness, source):
        source.shape = calls
        status, _, got = harness.request(*client_request(client))
        assert status in (502, 503, 529)
        assert json.loads(got)["error"]


def test_all_responses_together_have_a_limit(tmp_path: Path) -> None:
    """Each response is within its own limit; together they exceed the total, and the last one gets an error."""
    flags = {"server__limits__in_flight": 1024 * 1024, "server__limits__answer": 32 * 1024 * 1024}
    with gateway_with_endless_upstream(tmp_path, **flags) as (harness, source):
        source.shape = arguments
        assert b"server.limits.in_flight" in error_of(harness, "responses")
        assert source.left.wait(10)
        assert harness.running.gateway.memory_budget.peak_bytes <= 1024 * 1024 + 4096
        (line,) = harness.log_lines()
        assert line["attempts"] == 1
        assert harness.running.gateway.memory_budget.response_bytes == 0

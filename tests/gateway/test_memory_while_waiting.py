"""Memory of a request while its response is pending or streams: only the client's bytes, or what `explain` may need."""

from __future__ import annotations

import gc
import json
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dragoman.model.conversation import Conversation
from dragoman.wire.http import HttpRequest
from dragoman.wire.jsonio import Json
from tests.gateway.harness import (
    GatewayHarness,
    StreamClient,
    anthropic_body,
    gateway_with_simulator,
    start_gateway,
    upstream_config,
    wait_for_refusal,
    wait_until,
)
from tests.gateway.socket_client import SocketClient, converse_body, head, raw, signed_request
from tests.gateway.test_resources import FixedResponseServer, content_type_of, text_response

BROKEN = '[[turn]]\nparts = [{ text = "Well" }, { wait = 0.1 }, { exception = "server", message = "broke" }]'
LONG = "a long question " * 10_000
CLAUDE = "claude-sonnet-4.5"


def conversations_in_memory() -> list[Conversation]:
    """Return the conversations with messages that are still referenced in this process."""
    return [each for each in gc.get_objects() if type(each) is Conversation and LONG in str(each.messages)]


def reserved_bytes(harness: GatewayHarness) -> int:
    return int(harness.running.gateway.memory_budget.bytes)


def slow_response(dialect: str, go_on: threading.Event) -> Iterator[bytes]:
    """Yield a canned response whose last frame waits; a simulator would itself reference the request."""
    *first, last = [b"%x\r\n%b\r\n" % (len(event), event) for event in text_response(dialect, "Well")]
    yield f"HTTP/1.1 200 OK\r\ncontent-type: {content_type_of(dialect)}\r\ntransfer-encoding: chunked\r\n\r\n".encode()
    yield from first
    go_on.wait(60)
    yield last + b"0\r\n\r\n"


CALL: Json = {"type": "tool_use", "id": "t", "name": "f", "input": {"path": LONG}}
CALLED: list[Json] = [  # this history is parsed in one step
    {"role": "user", "content": "hello"},
    {"role": "assistant", "content": [CALL]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "done"}]},
]


@pytest.mark.parametrize("dialect", ["kiro", "bedrock"])
@pytest.mark.parametrize("explain", [True, False])
@pytest.mark.parametrize("called", [True, False])
def test_a_started_stream_keeps_only_what_explain_needs(
    dialect: str, explain: bool, called: bool, tmp_path: Path
) -> None:
    body = anthropic_body(CLAUDE, LONG, stream=True)
    if called:
        body["messages"] = CALLED
    canned, go_on = FixedResponseServer(), threading.Event()
    canned.respond = lambda: slow_response(dialect, go_on)
    with (
        start_gateway(
            upstream_config("one", dialect, f"http://127.0.0.1:{canned.port}"), tmp_path, explain=explain
        ) as harness,
        StreamClient(harness, "/v1/messages", body) as client,
    ):
        client.read_until(b"Well")
        wait_until(lambda: not conversations_in_memory())
        assert (reserved_bytes(harness) > len(LONG)) is explain
        go_on.set()
        assert b"message_stop" in client.read_all()
        assert harness.log_lines()[-1]["outcome"] == "ok"
        assert reserved_bytes(harness) == 0
    canned.close()


@pytest.mark.parametrize("dialect", ["kiro", "bedrock"])
@pytest.mark.parametrize("called", [True, False])
def test_a_pending_request_keeps_only_the_bytes_of_the_client(dialect: str, called: bool, tmp_path: Path) -> None:
    body = anthropic_body(CLAUDE, LONG, stream=True)
    if called:
        body["messages"] = CALLED
    canned, first_request, go_on = FixedResponseServer(), threading.Event(), threading.Event()

    def refused_at_first() -> Iterator[bytes]:
        first = not first_request.is_set()
        first_request.set()
        go_on.wait(60)
        refusal = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
        return iter([refusal]) if first else slow_response(dialect, go_on)

    canned.respond = refused_at_first
    with (
        start_gateway(upstream_config("one", dialect, f"http://127.0.0.1:{canned.port}"), tmp_path) as harness,
        StreamClient(harness, "/v1/messages", body) as client,
    ):
        assert first_request.wait(60)
        wait_until(lambda: not conversations_in_memory())
        go_on.set()
        response = client.read_all()
        assert b"message_stop" in response
        assert harness.log_lines()[-1]["outcome"] == "ok"
    if dialect == "kiro":  # Kiro sends no count at first; the estimate was made earlier
        counted = re.search(rb'"message_start".*?"input_tokens":(\d+)', response)
        assert counted is not None and int(counted[1]) >= len(LONG) // 4
    first, second = canned.digests
    assert first == second  # the retry sent the same request
    canned.close()


@pytest.mark.parametrize("dialect", ["anthropic", "openai"])
def test_the_end_of_an_upstream_body_after_the_reply_is_not_waited_for(dialect: str, tmp_path: Path) -> None:
    canned, go_on, finished = FixedResponseServer(), threading.Event(), threading.Event()
    go_on.set()

    def response_without_end() -> Iterator[bytes]:
        *begin, end = slow_response(dialect, go_on)
        yield from begin
        yield end.removesuffix(b"0\r\n\r\n")
        finished.wait(60)

    canned.respond = response_without_end
    with (
        start_gateway(upstream_config("one", dialect, f"http://127.0.0.1:{canned.port}"), tmp_path) as harness,
        StreamClient(harness, "/v1/messages", anthropic_body(CLAUDE, "hello", stream=True)) as client,
    ):
        client.read_until(b"message_stop")
        assert harness.log_lines()[-1]["outcome"] == "ok"
        finished.set()  # the body ends only now
    canned.close()


def test_a_late_failure_is_explained_with_the_whole_request(tmp_path: Path) -> None:
    with gateway_with_simulator(BROKEN, tmp_path, "kiro") as (harness, _):
        body = anthropic_body(CLAUDE, "the question", stream=True, metadata={"user_id": "u"}, top_k=3)
        _, headers, _ = harness.request("/v1/messages", body)
        (line,) = harness.log_lines()
        report = wait_for_refusal(tmp_path, headers["x-request-id"])
    assert report is not None
    assert "the question" in report.client_request.body and "the question" in report.sent.body
    assert "conversationState" in report.sent.body
    assert len(report.notes) == int(headers["dragoman-notes"]) == line["notes"] > 0


MARKER = "a text that no other test sends"
MESSAGE = json.dumps(anthropic_body(CLAUDE, MARKER)).encode()
SIGNED, CONVERSE = converse_body(MARKER), f"/model/{CLAUDE}/converse"
# Functions, because a signature is valid for fifteen minutes only: the suite may take longer.
ENDED: dict[str, tuple[int, Callable[[], bytes]]] = {
    "answered": (200, lambda: head(len(MESSAGE)) + MESSAGE),
    "not JSON": (400, lambda: head(len(MESSAGE)) + b"[" + MESSAGE[1:]),
    "signed and answered": (200, lambda: b"".join(raw(signed_request(SIGNED, path=CONVERSE)))),
    "forged signature": (403, lambda: b"".join(raw(signed_request(SIGNED, path=CONVERSE, secret="not-the-key")))),
}


def bodies_in_memory() -> int:
    return sum(type(each) is HttpRequest and MARKER.encode() in each.body for each in gc.get_objects())


@pytest.mark.parametrize("kind", ENDED)
def test_the_body_of_an_ended_request_needs_no_garbage_collection(kind: str, tmp_path: Path) -> None:
    """A body in a reference cycle would stay until the collector runs, which may be hundreds of requests later."""
    status, request = ENDED[kind]
    canned, go_on = FixedResponseServer(), threading.Event()
    go_on.set()
    canned.respond = lambda: slow_response("kiro", go_on)
    with start_gateway(upstream_config("one", "kiro", f"http://127.0.0.1:{canned.port}"), tmp_path) as harness:
        gc.collect()
        gc.disable()
        try:
            with SocketClient(harness, first=request()) as client:
                assert client.read_response()[0] == status
            harness.log_lines()
            wait_until(lambda: not bodies_in_memory())
        finally:
            gc.enable()
    canned.close()

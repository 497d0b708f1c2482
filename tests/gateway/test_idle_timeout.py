"""Keep-alives do not extend the idle timeout; upstream errors are reported at once, bounded, without
addresses.
"""

from __future__ import annotations

import json
import math
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import dragoman.dialects as registry
from dragoman.errors import MAX_RETRY_AFTER, Fault
from dragoman.gateway.redaction import Redactor, mask_addresses
from dragoman.gateway.response_modes import PassThrough
from dragoman.gateway.retry_policy import RetrySettings
from dragoman.model.conversation import Conversation
from dragoman.response_stream import ResponseTranslator
from dragoman.simulator import Simulator, parse_script, running_simulator
from dragoman.translate import plan
from dragoman.wire.eventstream import encode_event
from tests.gateway.harness import (
    MODEL,
    REQUESTS,
    STREAM_REQUESTS,
    GatewayHarness,
    anthropic_body,
    fixed_response_server,
    gateway_with_simulator,
    openai_body,
    start_gateway,
    upstream_config,
)


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

# For each dialect: the beginning of a stream, one event with content, and its keep-alives.
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
@pytest.mark.parametrize("is_pass_through", [True, False])
def test_a_keep_alive_does_not_count_as_content(dialect: str, number: int, is_pass_through: bool) -> None:
    it, sign = registry.get(dialect), SIGNS[dialect][number]
    translation_plan = plan(it, it, Conversation("m", ()))
    response = PassThrough(translation_plan) if is_pass_through else ResponseTranslator(translation_plan)
    response.feed(BEGIN[dialect])
    response.feed(sign)
    before = response.quiet_chunks
    for _ in range(5):
        response.feed(sign)
    assert response.quiet_chunks == before + 5
    if dialect in CONTENT:
        response.feed(CONTENT[dialect])
        assert response.quiet_chunks == before + 5


def test_growing_token_counts_are_content() -> None:
    """A model whose reasoning is hidden shows its progress by token counts."""
    it = registry.get("gemini")
    response = ResponseTranslator(plan(it, it, Conversation("m", ())))
    response.feed(BEGIN["gemini"])
    for count in range(5, 10):
        response.feed(sse(_USAGE.replace("3", str(count))))
    assert response.quiet_chunks == 0


@contextmanager
def keep_alive_service(begin: bytes, sign: bytes, kind: str) -> Iterator[str]:
    """Run a service that begins a response and then only sends keep-alives until the connection closes."""
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listening.accept()
                threading.Thread(target=respond, args=(connection,), daemon=True).start()

    def respond(connection: socket.socket) -> None:
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
def test_a_stream_of_keep_alives_ends_with_the_timeout_error_of_the_client(dialect: str, tmp_path: Path) -> None:
    """Regression: pings alone kept a silent stream open for an hour."""
    binary = dialect in ("bedrock", "kiro")
    kind = "application/vnd.amazon.eventstream" if binary else "text/event-stream"
    begin, signs = BEGIN[dialect] + CONTENT.get(dialect, b""), b"".join(SIGNS[dialect])
    with (
        keep_alive_service(begin, signs, kind) as url,
        start_gateway(upstream_config("one", dialect, url, _MORE), tmp_path) as harness,
        ThreadPoolExecutor(len(STREAM_REQUESTS)) as clients,
    ):
        for _, _, response in clients.map(lambda path: harness.request(path, STREAM_REQUESTS[path]), STREAM_REQUESTS):
            assert b"no content" in response, response
            assert url.encode() not in response and b"the upstream one" in response
        assert {line["outcome"] for line in harness.log_lines(len(STREAM_REQUESTS))} <= {"broken", "failed"}


@pytest.mark.parametrize("dialect", ["openai", "anthropic"])
def test_whitespace_before_a_whole_response_is_not_content(dialect: str, tmp_path: Path) -> None:
    cases: tuple[tuple[str, dict[str, Any]], ...] = (
        ("/v1/messages", anthropic_body()),
        ("/v1/chat/completions", openai_body()),
    )
    with (
        keep_alive_service(b"", b" \n", "application/json") as url,
        start_gateway(upstream_config("one", dialect, url, _MORE), tmp_path) as harness,
    ):
        for path, body in cases:
            status, _, response = harness.request(path, body)
            assert (status, b"no content" in response) == (504, True), response


# --- upstream errors are reported at once, counted by upstream, bounded, and without addresses


@contextmanager
def gateway_with_one_refusal(tmp_path: Path, status: int, more: str = "") -> Iterator[tuple[GatewayHarness, Simulator]]:
    """Run a gateway with the default retry settings and an upstream that refuses once and then answers."""
    script = f'then = "last"\n[[turn]]\nstatus = [{status}]\nmessage = "this is why"\n{more}\n[[turn]]\ntext = "Back."'
    with gateway_with_simulator(script, tmp_path, retry_settings=RetrySettings()) as (harness, simulator):
        yield harness, simulator


# --- refused credentials


@pytest.mark.parametrize(("path", "body"), [*REQUESTS.items(), *STREAM_REQUESTS.items()])
def test_after_a_401_every_client_gets_an_error_at_once_with_name_and_reason(
    path: str, body: dict[str, Any], tmp_path: Path
) -> None:
    """Regression: the second request waited 15 s, and was then sent to the upstream again."""
    with gateway_with_one_refusal(tmp_path, 401) as (harness, simulator):
        assert harness.request("/v1/messages", REQUESTS["/v1/messages"])[0] == 401
        status, headers, response = harness.request(path, body)
        assert status in (401, 403)  # Bedrock has no 401; its SDK does not retry 403 either
        assert b"the upstream one" in response and b"this is why" in response and b"until" in response
        assert simulator.total == 1, "the upstream was asked again"
        assert "retry-after" not in headers


@pytest.mark.parametrize(("status", "kind"), [(401, "auth"), (402, "quota"), (403, "permission")])
def test_permanent_errors_keep_their_kind(status: int, kind: str, tmp_path: Path) -> None:
    """`overloaded` with a Retry-After would make the client's SDK wait instead of the gateway."""
    with gateway_with_one_refusal(tmp_path, status) as (harness, simulator):
        first = harness.request("/v1/messages", REQUESTS["/v1/messages"])
        again = harness.request("/v1/messages", REQUESTS["/v1/messages"])
        assert first[0] == again[0]
        assert json.loads(first[2])["error"]["type"] == json.loads(again[2])["error"]["type"]
        assert simulator.total == 1
        [rest] = harness.running.gateway.breaker.describe()
        assert isinstance(rest, dict) and rest["kind"] == kind


def test_a_short_retry_after_of_the_upstream_is_still_waited_for(tmp_path: Path) -> None:
    with gateway_with_one_refusal(tmp_path, 429, "retry_after = 0.2") as (harness, simulator):
        assert harness.request("/v1/messages", REQUESTS["/v1/messages"])[0] == 200
        assert simulator.total == 2


def test_another_credential_and_the_next_target_are_tried_instead(tmp_path: Path) -> None:
    script = 'then = "last"\n[[turn]]\nstatus = 401\nmessage = "no"'
    with running_simulator("openai", script=parse_script(script)) as one, running_simulator("openai") as two:
        text = upstream_config("one", "openai", one.url) + upstream_config("two", "openai", two.url)
        text += f'[[routes]]\nmatch = "{MODEL}"\nupstream = "one"\nfallbacks = ["two"]\n'
        with start_gateway(text, tmp_path, retry_settings=RetrySettings()) as harness:
            for _ in range(3):
                assert harness.request("/v1/messages", REQUESTS["/v1/messages"])[0] == 200
            assert (one.total, two.total) == (1, 3)


# --- the retry budget


def test_each_upstream_has_its_own_retry_budget(tmp_path: Path) -> None:
    """Regression: after nine retries for `one`, a request to `two` was not retried."""
    broken = 'then = "last"\n[[turn]]\nstatus = 500\nmessage = "broken"'
    once = "".join('[[turn]]\nstatus = [500]\nmessage = "once"\n[[turn]]\ntext = "Hello."\n' for _ in range(3))
    with (
        running_simulator("openai", script=parse_script(broken)) as one,
        running_simulator("openai", script=parse_script(once)) as two,
    ):
        text = upstream_config("one", "openai", one.url, 'models = ["a"]\nlimits.breaker = false')
        text += upstream_config("two", "openai", two.url, 'models = ["b"]\nlimits.breaker = false')
        with start_gateway(text, tmp_path) as harness:
            for _ in range(9):
                assert harness.request("/v1/chat/completions", openai_body("a"))[0] == 500
            retries = one.total - 9
            assert retries == 3  # the retry budget of `one`
            for _ in range(3):
                assert harness.request("/v1/chat/completions", openai_body("b"))[0] == 200
            assert two.total == 6


# --- the retry-after that a client gets


@pytest.mark.parametrize(
    ("delay", "expected"),
    [
        (99999999999999999999.0, MAX_RETRY_AFTER),
        (10**400, MAX_RETRY_AFTER),
        (math.inf, MAX_RETRY_AFTER),
        (-5.0, 0.0),
        (-math.inf, 0.0),
        (math.nan, None),
        (7.5, 7.5),
        (None, None),
    ],
)
def test_a_fault_has_a_retry_after_of_one_day_at_most(delay: float | None, expected: float | None) -> None:
    assert Fault("rate_limit", "slow", 429, retry_after=delay).retry_after == expected


@pytest.mark.parametrize("delay", ["99999999999999999999", "1e30", "9" * 400, "Fri, 31 Dec 9999 23:59:59 GMT"])
@pytest.mark.parametrize(("path", "body"), REQUESTS.items())
def test_a_client_gets_a_retry_after_of_one_day_at_most(
    path: str, body: dict[str, Any], delay: str, tmp_path: Path
) -> None:
    """Regression: `retry-after: 99999999999999999999` was passed on."""
    raw = f"HTTP/1.1 429 No\r\nretry-after: {delay}\r\ncontent-length: 4\r\nconnection: close\r\n\r\nslow"
    with (
        fixed_response_server(raw.encode()) as url,
        start_gateway(upstream_config("one", "anthropic", url), tmp_path) as harness,
    ):
        _, headers, response = harness.request(path, body)
        assert 0 <= int(headers["retry-after"]) <= MAX_RETRY_AFTER
        assert delay.encode() not in response


@pytest.mark.parametrize("delay", ["-5", "nan", "inf", "soon", "", "-inf", "0x10", "٣"])
def test_an_invalid_retry_after_is_not_forwarded(delay: str, tmp_path: Path) -> None:
    raw = f"HTTP/1.1 429 No\r\nretry-after: {delay}\r\ncontent-length: 4\r\nconnection: close\r\n\r\nslow"
    with (
        fixed_response_server(raw.encode()) as url,
        start_gateway(upstream_config("one", "anthropic", url), tmp_path) as harness,
    ):
        status, headers, _ = harness.request("/v1/messages", REQUESTS["/v1/messages"])
        assert (status, 0 <= int(headers["retry-after"]) <= 60) == (429, True)


# --- addresses

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
BROKEN: dict[str, bytes] = {
    "no response": b"",
    "not HTTP": b"hello there\r\n\r\n",
    "half a head": b"HTTP/1.1 200 OK\r\ncontent-",
    "half a body": HEAD + b"content-length: 100\r\n\r\n{",
    "half a chunk": HEAD + b"transfer-encoding: chunked\r\n\r\nff\r\nhalf",
    "compressed": HEAD + b"content-encoding: gzip\r\ncontent-length: 1\r\n\r\nx",
    "a long head": b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 200 + b"\r\n",
    "a redirect": b"HTTP/1.1 307 Go\r\nlocation: http://10.9.8.7/\r\ncontent-length: 0\r\nconnection: close\r\n\r\n",
}


def address_in(response: bytes, url: str) -> bool:
    host, _, port = url.removeprefix("http://").partition(":")
    text = response.decode("utf-8", "replace")
    return host in text or port in text or "10.9.8.7" in text


@pytest.mark.parametrize("what", BROKEN)
@pytest.mark.parametrize(("path", "body"), [*REQUESTS.items(), *STREAM_REQUESTS.items()])
def test_no_client_error_contains_an_address(path: str, body: dict[str, Any], what: str, tmp_path: Path) -> None:
    """Regression: connection errors named the host and port of the upstream."""
    with (
        fixed_response_server(BROKEN[what]) as url,
        start_gateway(upstream_config("one", "anthropic", url), tmp_path) as harness,
    ):
        status, _, response = harness.request(path, body)
        assert status >= 500
        assert not address_in(response, url), response
        assert b"one" in response
        [line] = harness.log_lines()
        assert line["error"]


def test_a_refused_connection_names_the_upstream_to_the_client_and_the_address_in_the_log(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, but not listening
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with start_gateway(upstream_config("one", "openai", url), tmp_path) as harness:
            for path, body in [*REQUESTS.items(), *STREAM_REQUESTS.items()]:
                _, _, response = harness.request(path, body)
                assert b"the upstream one" in response and not address_in(response, url), response
            assert url.removeprefix("http://") in harness.log_lines()[0]["error"]


@pytest.mark.parametrize("streamed", [False, True])
def test_an_upstream_message_with_its_own_address_is_redacted(streamed: bool, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    words = f"no route http://127.0.0.1:{port}/v1/messages (127.0.0.1 port {port}, backend 10.9.8.7:80)"
    error = json.dumps({"type": "error", "error": {"type": "api_error", "message": words}}).encode()
    known = [(f"http://127.0.0.1:{port}", "the upstream one")]
    expected = Redactor(addresses=lambda: known).upstream_fault(Fault("server", words, details=error.decode()))
    for text in (expected.message, expected.details):
        assert not address_in(text.encode(), f"http://127.0.0.1:{port}")
    assert "the upstream one" in expected.message
    raw = b"HTTP/1.1 500 No\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%b" % (len(error), error)
    if streamed:
        frame = b"event: error\ndata: %b\n\n" % error
        raw = HEAD + b"content-length: %d\r\nconnection: close\r\n\r\n%b" % (len(frame), frame)
    with (
        fixed_response_server(raw) as url,
        start_gateway(upstream_config("one", "anthropic", url), tmp_path) as harness,
    ):
        _, _, response = harness.request("/v1/messages", anthropic_body(MODEL, stream=streamed))
        assert b"10.9.8.7" not in response and b"no route" in response


@pytest.mark.parametrize(
    ("text", "url", "expected"),
    [
        ("at https://api.example.com/v1/x?y=1 failed", "https://api.example.com", "at U failed"),
        ("API.Example.Com refused", "https://api.example.com/base", "U refused"),
        ("could not connect to api.example.com:443: no", "https://api.example.com", "could not connect to U: no"),
        ("see platform.example.com", "https://example.com", "see platform.example.com"),
        ("see example.com.org", "https://example.com", "see example.com.org"),
        ("ollama at http://ollama:11434/api is down", "http://ollama:11434", "ollama at U is down"),
        ("run `ollama pull x`", "http://ollama:11434", "run `ollama pull x`"),
        ("[::1]:8080 and port 8080", "http://[::1]:8080", "U and U"),
        ("user:pw@proxy.corp:3128 said no", "http://user:pw@proxy.corp:3128", "user:pw@U said no"),
        ("it leads to fe80::1, until 12:30:45", "http://x.example", "it leads to an address, until 12:30:45"),
        ("version 1.2.3 at 10:20", "http://x.example", "version 1.2.3 at 10:20"),
    ],
)
def test_addresses_are_redacted_in_every_spelling(text: str, url: str, expected: str) -> None:
    assert mask_addresses(text, [(url, "U")], "server") == expected


def test_an_address_of_the_request_is_kept() -> None:
    text = "the image http://93.184.216.34/a.png cannot be read"
    assert mask_addresses(text, [("http://10.0.0.5", "U")], "invalid") == text


# --- redirects


def test_a_redirect_is_an_error_at_once_and_counts_against_its_upstream(tmp_path: Path) -> None:
    with (
        fixed_response_server(BROKEN["a redirect"]) as url,
        start_gateway(upstream_config("one", "anthropic", url), tmp_path) as harness,
    ):
        for _ in range(5):
            status, _, response = harness.request("/v1/messages", REQUESTS["/v1/messages"])
            assert (status, b"redirect" in response) == (502, True)
        assert [line["attempts"] for line in harness.log_lines(5)] == [1] * 5  # no request is retried
        status, _, response = harness.request("/v1/messages", REQUESTS["/v1/messages"])
        assert (status, b"is in cooldown until" in response) == (529, True)

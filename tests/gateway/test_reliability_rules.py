"""The reliability rules of docs/reliability.md; the name of each test contains the number of its rule."""

from __future__ import annotations

import io
import json
import os
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

import dragoman.dialects as registry
from dragoman.dialects.kiro.quirks import raw_calls
from dragoman.dialects.openai import choice
from dragoman.filters import calls as filter_calls
from dragoman.filters import response as filter_responses
from dragoman.filters.raw_tools import readers as raw_readers
from dragoman.gateway import admin, backend, serve
from dragoman.gateway.access_log import AccessLog
from dragoman.gateway.admission import HeadCheck
from dragoman.gateway.config import Server
from dragoman.gateway.redaction import Redactor
from dragoman.gateway.retry_policy import RetrySettings
from dragoman.gateway.serve import running_gateway
from dragoman.gateway.upstream_config import TimeoutSettings
from dragoman.http import exchange
from dragoman.http import framing as http_limits
from dragoman.http.client.response import HttpTimeouts as UpstreamTimeouts
from dragoman.model.blocks import Text
from dragoman.model.conversation import Conversation, Message
from dragoman.response_stream import ResponseTranslator, error_response
from dragoman.simulator import parse_script, running_simulator
from dragoman.translate import plan
from dragoman.wire import eventstream, sse
from dragoman.wire.eventstream import EventStreamDecoder, encode_event
from dragoman.wire.http import HttpRequest
from tests.gateway.harness import (
    FAST_RETRIES,
    KEY,
    MODEL,
    REQUESTS,
    STREAM_REQUESTS,
    GatewayHarness,
    StreamClient,
    anthropic_body,
    client_request,
    fixed_response_server,
    gated_server,
    gateway_with_simulator,
    openai_body,
    parse_config,
    sse_response,
    start_gateway,
    upstream_config,
    wait_until,
)
from tests.gateway.test_commands import UserHome

CONVERSE, GENERATE = client_request("bedrock")[0], client_request("gemini")[0]
# Bytes that only a complete stream contains.
ENDS = (b'"type":"message_stop"', b"[DONE]", b"\x0bmessageStop", b'"response.completed"', b'"finishReason"')
every_client = pytest.mark.parametrize("client", REQUESTS)
every_stream = pytest.mark.parametrize("client", STREAM_REQUESTS)


def error_in(body: bytes) -> str:
    """Return the message of an error in any dialect."""
    parsed = json.loads(body)
    return str(parsed.get("message") or parsed["error"]["message"])


# --- 1: the commit point


@pytest.mark.parametrize("how", ["end", "close", "reset"])
@every_stream
def test_rule_1_before_the_first_byte_a_failed_attempt_is_retried(client: str, how: str, tmp_path: Path) -> None:
    script = f'[[turn]]\ntext = "Lost."\ncut = {{ event = 1, how = "{how}" }}\n[[turn]]\ntext = "Found."'
    with gateway_with_simulator(script, tmp_path) as (harness, simulator):
        status, _, body = harness.request(client, STREAM_REQUESTS[client])
        assert (status, b"Found." in body, b"Lost" in body, simulator.total) == (200, True, False, 2)
        assert body.count(b"message_start") in (0, 2)  # once: in the event name and in the type field


@pytest.mark.parametrize("dialect", ["anthropic", "openai", "kiro", "bedrock"])
@every_stream
def test_rule_1_after_the_first_byte_nothing_is_retried(client: str, dialect: str, tmp_path: Path) -> None:
    words = "one two three four five six seven eight nine ten"
    script = f'[[turn]]\ntext = "{words}"\nchunk = 4\ncut = {{ event = 6, how = "close" }}\n[[turn]]\ntext = "no"'
    with gateway_with_simulator(script, tmp_path, dialect) as (harness, simulator):
        status, _, body = harness.request(client, STREAM_REQUESTS[client])
        assert (status, b"one " in body, simulator.total) == (200, True, 1)
        assert b"rror" in body or b"xception" in body
        assert not any(end in body for end in ENDS)
        line = harness.log_lines()[0]
        assert (line["outcome"], line["status"], line["attempts"]) == ("broken", 200, 1)


@pytest.mark.parametrize("streamed", [False, True], ids=["a refusal", "an error in its stream"])
def test_rule_1_after_a_keep_alive_there_is_no_retry_and_no_fallback(streamed: bool, tmp_path: Path) -> None:
    """The keep-alive was the first byte: after it there is no retry and no fallback."""
    frame = b'{"type":"error","error":{"type":"overloaded_error","message":"busy"}}'
    page = b"HTTP/1.1 529 Busy\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%b" % (len(frame), frame)
    begun, rest = sse_response(frame) if streamed else (b"", page)
    with gated_server(rest, begun) as (one, gate), running_simulator("openai") as two:
        text = upstream_config("one", "anthropic", one) + upstream_config("two", "openai", two.url)
        text += f'[[routes]]\nmatch = "{MODEL}"\nupstream = "one"\nfallbacks = ["two/other"]\n'
        with (
            start_gateway(text, tmp_path, server__ping=0.1) as harness,
            StreamClient(harness, "/v1/messages", STREAM_REQUESTS["/v1/messages"]) as raw,
        ):
            begun = raw.read_until(b"event: ping")
            assert begun.startswith(b"HTTP/1.1 200") and b"event: error" not in begun
            gate.set()
            body = raw.read_all()
            assert (harness.log_lines()[0]["attempts"], two.total) == (1, 0)
        assert b'"type":"error"' in body and b"busy" in body
        assert streamed or b"event: error" in body


# --- 2: errors inside a stream without content so far


def test_rule_2_the_numbers() -> None:
    defaults = {field.name: field.default for field in structs.fields(Server)}
    assert (defaults["hold"], defaults["ping"]) == (2.0, 15.0)


LATE_ERROR = '[[turn]]\nparts = [{ wait = 0.05 }, { exception = "rate_limit", message = "too fast" }]'
TOO_FAST = b'{"type":"error","error":{"type":"rate_limit_error","message":"too fast"}}'


@every_stream
def test_rule_2_an_error_within_the_hold_is_an_http_error(client: str, tmp_path: Path) -> None:
    with gateway_with_simulator(f'then = "last"\n{LATE_ERROR}', tmp_path, server__hold=60) as (harness, _):
        status, headers, body = harness.request(client, STREAM_REQUESTS[client])
        assert (status, error_in(body), "retry-after" in headers) == (429, "too fast", True)


@every_stream
def test_rule_2_after_the_hold_the_error_is_sent_in_the_stream(client: str, tmp_path: Path) -> None:
    head, error = sse_response(TOO_FAST)
    with (
        gated_server(error, head) as (url, gate),
        start_gateway(upstream_config("one", "anthropic", url), tmp_path, server__hold=0.1) as harness,
    ):
        with StreamClient(harness, client, STREAM_REQUESTS[client]) as raw:
            assert raw.read_until(b"\r\n\r\n").startswith(b"HTTP/1.1 200")
            gate.set()
            assert b"too fast" in raw.read_all()
        assert harness.log_lines()[0]["attempts"] == 1


def test_rule_2_an_error_within_the_hold_causes_a_fallback(tmp_path: Path) -> None:
    with running_simulator("anthropic", script=parse_script(LATE_ERROR)) as busy, running_simulator("kiro") as free:
        text = upstream_config("busy", "anthropic", busy.url) + upstream_config("free", "kiro", free.url)
        text += f'[[routes]]\nmatch = "{MODEL}"\nupstream = "busy"\nfallbacks = ["free"]\n'
        with start_gateway(text, tmp_path, retry_settings=RetrySettings(retries=0), server__hold=60) as harness:
            status, headers, _ = harness.request("/v1/messages", STREAM_REQUESTS["/v1/messages"])
            assert (status, headers["dragoman-upstream"], busy.total) == (200, "free", 1)


# --- 3: only a complete stream gets an end


@pytest.mark.parametrize("dialect", ["anthropic", "openai", "bedrock", "responses", "gemini"])
@every_stream
def test_rule_3_a_stream_without_its_end_ends_with_an_error(client: str, dialect: str, tmp_path: Path) -> None:
    script = '[[turn]]\ntext = "one two three four five six"\nchunk = 4\ncut = { event = 5, how = "end" }'
    with gateway_with_simulator(script, tmp_path, dialect) as (harness, _):
        _, _, body = harness.request(client, STREAM_REQUESTS[client])
        assert not any(end in body for end in ENDS)
        assert b"rror" in body or b"xception" in body
        assert harness.log_lines()[0]["outcome"] == "broken"


def test_rule_3_a_truncated_whole_response_is_a_502(tmp_path: Path) -> None:
    script = 'then = "last"\n[[turn]]\ntext = "Lost."\ncut = { byte = 50, how = "close" }'
    with gateway_with_simulator(script, tmp_path, "openai") as (harness, _):
        assert harness.request("/v1/messages", REQUESTS["/v1/messages"])[0] in (500, 502)
        assert harness.request("/v1/chat/completions", REQUESTS["/v1/chat/completions"])[0] == 502


# --- 4: the HTTP status of an error in a stream

STATUSES = {
    "api_error": 500,
    "overloaded_error": 529,
    "rate_limit_error": 429,
    "timeout_error": 504,
    "authentication_error": 401,
    "permission_error": 403,
    "not_found_error": 404,
    "billing_error": 429,
    "invalid_request_error": 400,
}


@pytest.mark.parametrize(("kind", "status"), STATUSES.items())
def test_rule_4_an_error_event_becomes_its_http_status(kind: str, status: int, tmp_path: Path) -> None:
    event = json.dumps({"type": "error", "error": {"type": kind, "message": "said so"}})
    page = f"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\nevent: error\ndata: {event}\n\n"
    with (
        fixed_response_server(page.encode()) as url,
        start_gateway(upstream_config("one", "anthropic", url), tmp_path) as harness,
    ):
        found, _, body = harness.request("/v1/messages", STREAM_REQUESTS["/v1/messages"])
        assert (found, json.loads(body)["error"]["type"]) == (status, kind)
        assert "said so" in error_in(body)


IN_BAND: list[tuple[str, bytes, str, tuple[int, int, int]]] = [
    # upstream, its error frame, kind, and the status for an Anthropic, an OpenAI and a Bedrock client
    ("openai", b'{"error":{"message":"m","code":"rate_limit_exceeded"}}', "rate_limit", (429, 429, 429)),
    ("openai", b'{"error":{"message":"m","code":"insufficient_quota"}}', "quota", (429, 429, 400)),
    ("openai", b'{"error":{"message":"m","code":"server_is_overloaded"}}', "overloaded", (529, 503, 503)),
    ("openai", b'{"error":{"message":"m","code":"invalid_api_key"}}', "auth", (401, 401, 403)),
    ("openai", b'{"error":{"message":"m","code":"context_length_exceeded"}}', "context_full", (400, 400, 400)),
    ("openai", b'{"error":{"message":"m","code":"timeout"}}', "timeout", (504, 504, 408)),
    ("openai", b'{"error":{"message":"m","type":"server_error"}}', "server", (502, 502, 500)),
    ("bedrock", b"throttlingException", "rate_limit", (429, 429, 429)),
    ("bedrock", b"serviceUnavailableException", "overloaded", (529, 503, 503)),
    ("bedrock", b"internalServerException", "server", (500, 500, 500)),
    ("bedrock", b"modelStreamErrorException", "server", (500, 500, 500)),
    ("bedrock", b"validationException", "invalid", (400, 400, 400)),
    ("kiro", b"ThrottlingException", "rate_limit", (429, 429, 429)),
    ("kiro", b"ServiceQuotaExceededException", "quota", (429, 429, 402)),
    ("kiro", b"InternalServerException", "server", (500, 500, 500)),
    ("kiro", b"AccessDeniedException", "auth", (401, 401, 403)),
]


@pytest.mark.parametrize(("dialect", "error", "kind", "statuses"), IN_BAND, ids=lambda value: str(value)[:40])
def test_rule_4_stream_errors_of_every_dialect_have_a_status(
    dialect: str, error: bytes, kind: str, statuses: tuple[int, int, int]
) -> None:
    frame = sse.encode_sse(b"", error) if dialect == "openai" else encode_event(error, b'{"message":"m"}', error=True)
    found = []
    for name in ("anthropic", "openai", "bedrock"):
        conversation = Conversation(MODEL, (Message("user", (Text("hi"),)),), stream=True, max_tokens=9)
        response = ResponseTranslator(plan(registry.get(name), registry.get(dialect), conversation, model=MODEL))
        response.feed(frame)
        assert response.fault is not None and response.fault.kind == kind
        assert not response.progress.has_content  # so it can still become an HTTP status
        found.append(error_response(registry.get(name), response.fault).status)
    assert tuple(found) == statuses


# --- 5: keep-alives


KEEP_ALIVES = (
    b"event: ping",
    b": ping",
    None,
    b": ping",
    b'"text":""',
)  # Bedrock has no keep-alive; Google's SDKs do not read comments


@pytest.mark.parametrize(
    ("client", "sign"), [pair for pair in zip(STREAM_REQUESTS, KEEP_ALIVES, strict=True) if pair[1]]
)
def test_rule_5_keep_alives_are_sent_from_the_start(client: str, sign: bytes, tmp_path: Path) -> None:
    head, late = sse_response(
        b'{"id":"c","choices":[{"index":0,"delta":{"content":"Late."},"finish_reason":"stop"}]}', b"[DONE]"
    )
    with (
        gated_server(head + late) as (url, gate),
        start_gateway(upstream_config("one", "openai", url), tmp_path, server__ping=0.1) as harness,
        StreamClient(harness, client, STREAM_REQUESTS[client]) as raw,
    ):
        assert b"Late." not in raw.read_until(sign)  # the upstream sends content after the keep-alive
        gate.set()
        assert b"Late." in raw.read_all()


def test_rule_5_keep_alives_do_not_extend_the_timeout_of_a_silent_upstream(tmp_path: Path) -> None:
    script = '[[turn]]\nparts = [{ text = "Wait" }, { wait = 30.0 }]'
    with gateway_with_simulator(script, tmp_path, more="timeouts.idle = 0.3", server__ping=0.02) as (
        harness,
        simulator,
    ):
        _, _, body = harness.request("/v1/messages", STREAM_REQUESTS["/v1/messages"])
        assert b"event: ping" in body and b"timeout_error" in body
        assert simulator.requests[0].wait() == "gone"  # and not 30 seconds later


# --- 6: timeouts


def test_rule_6_the_numbers() -> None:
    assert TimeoutSettings() == TimeoutSettings(
        dns=3.0,
        connect=5.0,
        tls=5.0,
        write=30.0,
        first_byte=300.0,
        idle=120.0,
        long_idle=900.0,
        silent=900.0,
        total=3600.0,
    )
    assert UpstreamTimeouts() == UpstreamTimeouts(3.0, 5.0, 5.0, 30.0, 300.0, 120.0, 900.0, 3600.0)
    assert (exchange.STALL_SECONDS, http_limits.HEAD_SECONDS, http_limits.IDLE_SECONDS) == (60.0, 10.0, 75.0)
    assert backend._REFRESH_SECONDS == 15.0


@pytest.mark.parametrize(("model", "patient"), [("r1-large", True), ("quick", False)])
def test_rule_6_reasoning_models_have_a_longer_idle_timeout(model: str, patient: bool, tmp_path: Path) -> None:
    script = f'[[turn]]\nparts = [{{ text = "Hm" }}, {{ wait = {0.4 if patient else 60.0} }}, {{ text = "yes." }}]'
    more = 'timeouts.idle = 0.1\ntimeouts.long_idle = 60\nlong_thinking = "r1-*"'
    with gateway_with_simulator(script, tmp_path, more=more) as (harness, _):
        _, _, body = harness.request("/v1/messages", anthropic_body(model, stream=True))
        assert (b"yes." in body, b"timeout_error" in body) == (patient, not patient)


@pytest.mark.parametrize(
    ("scheme", "setting", "words"),
    [
        ("https", "tls", "agree on TLS"),
        ("http", "write", "did not accept the request"),
        ("http", "total", "did not complete"),
    ],
)
def test_rule_6_an_unresponsive_upstream_times_out(scheme: str, setting: str, words: str, tmp_path: Path) -> None:
    with unresponsive_server() as port:
        text = upstream_config("one", "anthropic", f"{scheme}://127.0.0.1:{port}", f"timeouts.{setting} = 0.2")
        with start_gateway(text, tmp_path) as harness:
            status, _, body = harness.request("/v1/messages", anthropic_body(text="x" * 9_000_000))
            assert (status, words in error_in(body)) == (504, True), body


@contextmanager
def unresponsive_server() -> Iterator[int]:
    """Run a server that accepts connections and reads nothing; give its port."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(0.02)
        taken: list[socket.socket] = []
        finished = threading.Event()

        def accept() -> None:
            while not finished.is_set():
                try:
                    taken.append(listening.accept()[0])
                except TimeoutError:
                    continue

        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield listening.getsockname()[1]
        finally:
            finished.set()
            thread.join()
            for each in taken:
                each.close()


# --- 7: clients that leave


@every_stream
def test_rule_7_the_upstream_request_ends_at_once_when_the_client_leaves(client: str, tmp_path: Path) -> None:
    """Only the disconnect can end it: the upstream is silent for ten minutes, and all timeouts are longer."""
    script = 'then = "last"\n[[turn]]\nparts = [{ text = "Begin." }, { wait = 600.0 }]'
    with gateway_with_simulator(script, tmp_path) as (harness, simulator):
        for number in range(3):
            raw = StreamClient(harness, client, STREAM_REQUESTS[client])
            raw.read_until(b"Begin.")
            raw.leave(reset=number == 1)
            assert simulator.requests[number].wait(60) == "gone"
        lines = harness.log_lines(3)
        assert [line["outcome"] for line in lines] == ["gone"] * 3
        assert all(line["input_tokens"] > 0 for line in lines)  # the usage that the upstream had sent by then


# --- 8: memory limits


def test_rule_8_above_the_bytes_in_flight_a_request_is_refused_with_retry_after(tmp_path: Path) -> None:
    with gateway_with_simulator(
        'then = "last"\n[[turn]]\ntext = "x"', tmp_path, server__limits__in_flight=1024 * 1024
    ) as (harness, sim):
        status, headers, body = harness.request("/v1/chat/completions", openai_body(MODEL, "x" * 1_500_000))
        assert (status, headers["retry-after"]) == (503, "1")
        assert "server.limits.in_flight" in error_in(body)
        status, _, body = harness.request("/v1/messages", anthropic_body(MODEL, "x" * 1_500_000))
        assert (status, json.loads(body)["error"]["type"]) == (529, "overloaded_error")
        assert sim.total == 0
        assert harness.request("/v1/messages", REQUESTS["/v1/messages"])[0] == 200
        wait_until(lambda: harness.running.gateway.status()["in_flight_bytes"] == 0)


def test_rule_8_a_whole_response_counts_too(tmp_path: Path) -> None:
    script = f'then = "last"\n[[turn]]\ntext = "{"x" * 2_000_000}"'
    with gateway_with_simulator(script, tmp_path, server__limits__in_flight=1024 * 1024) as (harness, simulator):
        status, _, body = harness.request("/v1/chat/completions", REQUESTS["/v1/chat/completions"])
        assert (status, simulator.total) == (503, 1)
        assert "server.limits.in_flight" in error_in(body)
        wait_until(lambda: harness.running.gateway.status()["in_flight_bytes"] == 0)


def test_rule_8_memory_of_a_failed_response_is_released_before_a_retry(tmp_path: Path) -> None:
    long = "x" * 600_000
    script = f'[[turn]]\ntext = "{long}"\ncut = {{ byte = 590000, how = "close" }}\n[[turn]]\ntext = "{long}"'
    # A response counts twice while it is parsed: its bytes and its values. Together with the first one it would not fit.
    with gateway_with_simulator(script, tmp_path, server__limits__in_flight=1536 * 1024) as (harness, simulator):
        status, _, body = harness.request("/v1/chat/completions", REQUESTS["/v1/chat/completions"])
        assert (status, simulator.total) == (200, 2), body[:300]
        wait_until(lambda: harness.running.gateway.status()["in_flight_bytes"] == 0)


def test_rule_8_buffered_tool_arguments_are_limited_to_four_megabytes() -> None:
    limits = [each.BUFFER_LIMIT for each in (raw_readers, filter_calls, filter_responses)]
    assert max(*limits, raw_calls.BUFFER_LIMIT, choice._MAX_UNNAMED_ARGUMENTS) <= 4 * 1024 * 1024
    assert exchange.HIGH_WATER <= 256 * 1024


# --- 9: retries


def test_rule_9_a_request_is_retried_twice_whatever_its_targets(tmp_path: Path) -> None:
    script = 'then = "last"\n[[turn]]\nstatus = 503\nmessage = "no"'
    with (
        running_simulator("openai", script=parse_script(script)) as one,
        running_simulator("openai", script=parse_script(script)) as two,
    ):
        text = upstream_config("one", "openai", one.url) + upstream_config("two", "openai", two.url)
        text += f'[[routes]]\nmatch = "{MODEL}"\nupstream = "one"\nfallbacks = ["two"]\n'
        with start_gateway(text, tmp_path) as harness:
            assert harness.request("/v1/chat/completions", REQUESTS["/v1/chat/completions"])[0] == 503
            assert (one.total, two.total) == (3, 1)


@pytest.mark.parametrize(("delay", "requests"), [(0.2, 2), (0.6, 1)])
def test_rule_9_a_short_retry_after_is_waited_for_and_a_long_one_fails_at_once(
    delay: float, requests: int, tmp_path: Path
) -> None:
    script = f'[[turn]]\nstatus = [429]\nretry_after = {delay}\nmessage = "slow"\n[[turn]]\ntext = "At last."'
    with gateway_with_simulator(script, tmp_path, "openai") as (
        harness,
        simulator,
    ):  # the retry settings wait half a second at most
        began = time.monotonic()
        status, _, _ = harness.request("/v1/chat/completions", REQUESTS["/v1/chat/completions"])
        assert (status, simulator.total) == (200 if requests == 2 else 429, requests)
        assert requests == 1 or time.monotonic() - began >= delay  # a busy machine takes longer, never shorter


def test_rule_9_a_timeout_after_sending_is_not_retried(tmp_path: Path) -> None:
    script = 'then = "last"\n[[turn]]\ntext = "late"\nfirst_delay = 30.0'
    with gateway_with_simulator(script, tmp_path, more="timeouts.first_byte = 0.3\ntimeouts.idle = 0.3") as (
        harness,
        simulator,
    ):
        assert harness.request("/v1/messages", REQUESTS["/v1/messages"])[0] == 504
        status, _, body = harness.request("/v1/chat/completions", REQUESTS["/v1/chat/completions"])
        assert (status, json.loads(body)["error"]["code"]) == (504, "timeout")
        assert simulator.total == 2


def test_rule_9_a_wait_beyond_the_next_keep_alive_fails_at_once(tmp_path: Path) -> None:
    """After a ping no retry is possible, so a longer wait would be useless."""
    script = 'then = "last"\n[[turn]]\nstatus = 429\nretry_after = 0.4\nmessage = "slow"'
    with gateway_with_simulator(script, tmp_path, "openai", server__ping=0.3) as (harness, simulator):
        status, _, _ = harness.request("/v1/chat/completions", STREAM_REQUESTS["/v1/chat/completions"])
        assert (status, simulator.total) == (429, 1)


# --- 10: circuit breaker and cooldowns

BROKEN = 'then = "last"\n[[turn]]\nstatus = 500\nmessage = "broken"'


@every_client
def test_rule_10_after_five_failures_clients_get_the_reason_and_the_time_at_once(client: str, tmp_path: Path) -> None:
    with gateway_with_simulator(BROKEN, tmp_path) as (harness, simulator):
        for _ in range(2):
            harness.request(client, REQUESTS[client])
        assert simulator.total == 5
        status, headers, body = harness.request(client, REQUESTS[client])
        assert (status, simulator.total) == (529 if client == "/v1/messages" else 503, 5)
        assert 1 <= int(headers["retry-after"]) <= 5
        assert "one" in error_in(body) and "until" in error_in(body) and "broken" in error_in(body)
        [line] = harness.log_lines(3)[2:]
        assert (line["outcome"], line["attempts"]) == ("failed", 0)


def test_rule_10_an_upstream_with_an_open_breaker_is_skipped_for_the_next_target(tmp_path: Path) -> None:
    with running_simulator("openai", script=parse_script(BROKEN)) as one, running_simulator("openai") as two:
        text = upstream_config("one", "openai", one.url) + upstream_config("two", "openai", two.url)
        text += f'[[routes]]\nmatch = "{MODEL}"\nupstream = "one"\nfallbacks = ["two"]\n'
        with start_gateway(text, tmp_path) as harness:
            for _ in range(6):
                assert harness.request("/v1/messages", REQUESTS["/v1/messages"])[0] == 200
            assert (one.total, two.total) == (5, 6)


def test_rule_10_a_successful_probe_closes_the_breaker(tmp_path: Path) -> None:
    script = '[[turn]]\nstatus = [500, 500, 500, 500, 500]\nmessage = "broken"\n[[turn]]\ntext = "Back."'
    with gateway_with_simulator(script, tmp_path) as (harness, simulator):
        for _ in range(3):
            assert harness.request("/v1/messages", REQUESTS["/v1/messages"])[0] >= 500
        breaker, now = harness.running.gateway.breaker, time.monotonic
        breaker.clock = lambda: now() + 6
        assert harness.request("/v1/messages", REQUESTS["/v1/messages"])[0] == 200
        assert (simulator.total, breaker.describe()) == (6, [])


@every_stream
def test_rule_10_a_probe_closes_the_breaker_when_its_response_begins(client: str, tmp_path: Path) -> None:
    script = '[[turn]]\nstatus = [500, 500, 500, 500, 500]\nmessage = "broken"\n'
    script += '[[turn]]\nparts = [{ text = "Begin." }, { wait = 30.0 }]\n[[turn]]\ntext = "Back."'
    with gateway_with_simulator(script, tmp_path) as (harness, simulator):
        for _ in range(3):
            assert harness.request("/v1/messages", REQUESTS["/v1/messages"])[0] >= 500
        breaker, now = harness.running.gateway.breaker, time.monotonic
        breaker.clock = lambda: now() + 6
        raw = StreamClient(harness, client, STREAM_REQUESTS[client])
        raw.read_until(b"Begin.")
        assert harness.request("/v1/messages", REQUESTS["/v1/messages"])[0] == 200
        raw.leave()
        assert simulator.total == 7


SPENT = 'then = "last"\n[[turn]]\nstatus = [429]\nretry_after = 600\nmessage = "slow down"\n[[turn]]\ntext = "Back."'


def test_rule_10_a_cooldown_covers_the_model_and_survives_a_restart(tmp_path: Path) -> None:
    with running_simulator("anthropic", script=parse_script(SPENT)) as simulator:
        text = upstream_config("one", "anthropic", simulator.url)
        with start_gateway(text, tmp_path) as harness:
            assert harness.request("/v1/messages", anthropic_body("a"))[0] == 429
            assert harness.request("/v1/messages", anthropic_body("b"))[0] == 200
            assert harness.request("/v1/messages", anthropic_body("a-20250929"))[0] == 529
        with start_gateway(text, tmp_path) as harness:
            status, headers, body = harness.request("/v1/messages", anthropic_body("a"))
            assert (status, "slow down" in error_in(body)) == (529, True)
            assert (
                100 < int(headers["retry-after"]) <= 300
            )  # the next try is after five minutes at most, whatever retry-after was
        assert simulator.total == 2


def test_rule_10_another_credential_is_used_during_a_cooldown(tmp_path: Path) -> None:
    with running_simulator("anthropic", script=parse_script(SPENT)) as simulator:
        text = upstream_config("one", "anthropic", simulator.url).replace(
            '"the-upstream-secret"', '["key-of-one", "key-of-two"]'
        )
        with start_gateway(text, tmp_path) as harness:
            for _ in range(4):
                assert harness.request("/v1/messages", REQUESTS["/v1/messages"], x_session_id="one")[0] == 200
        used = [each.headers["x-api-key"] for each in simulator.requests]
        assert len(used) == 5 and used[0] not in used[1:]


def test_rule_10_cooldowns_are_shown_and_cleared_by_commands() -> None:
    with (
        running_simulator("anthropic", script=parse_script(SPENT)) as simulator,
        tempfile.TemporaryDirectory(prefix="dgm") as folder,  # Unix socket paths are limited
    ):
        harness = UserHome(Path(folder))
        file = harness.write(
            "config.toml", f"allow_literal_secrets = true\n{upstream_config('one', 'anthropic', simulator.url)}"
        )
        with harness.serving("--config", str(file)) as served:
            assert served.ask("/v1/messages", REQUESTS["/v1/messages"])[0] == 429
            shown = harness.run("status", "--config", str(file))
            assert "cooling" in shown.stdout and "rate_limit: slow down" in shown.stdout, shown
            parsed = json.loads(harness.run("status", "--json", "--config", str(file)).stdout)
            [row] = parsed["upstreams"][0]["cooldowns"]
            assert (row["kind"], row["models"], row["credential"]) == ("rate_limit", MODEL, "key")
            listed = harness.run("cooldown", "list", "--config", str(file))
            assert listed.stdout.startswith(f"one: key, {MODEL}: cooling for "), listed
            wrong = harness.run("cooldown", "clear", "two", "--config", str(file))
            assert (wrong.returncode, "there is no upstream 'two'" in wrong.stderr) == (1, True)
            assert harness.run("cooldown", "clear", "one", "--config", str(file)).stdout == "cooldowns ended: 1\n"
            assert harness.run("cooldown", "list", "--config", str(file)).stdout == "no upstream is in cooldown\n"
            assert served.ask("/v1/messages", REQUESTS["/v1/messages"])[0] == 200
        assert harness.run("cooldown", "list", "--config", str(file)).returncode == 4


@pytest.mark.parametrize("head", ["", "origin: http://evil.example\r\n"])
def test_rule_10_cooldowns_are_cleared_only_by_the_private_socket(head: str, tmp_path: Path) -> None:
    """Every process on this machine, and every web page, can reach a loopback port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with running_simulator("anthropic") as simulator, tempfile.TemporaryDirectory(prefix="dgm") as folder:
        private = Path(folder) / "run" / "s"
        flags = {"server__admin_socket": str(private), "server__admin_port": port}
        config = parse_config(upstream_config("one", "anthropic", simulator.url), **flags)
        access_log = AccessLog(Redactor(), stream=io.StringIO())
        with running_gateway(config, state=tmp_path, access_log=access_log, key=KEY, admin_socket=True):
            with socket.create_connection(("127.0.0.1", port), 5) as asking:
                lines = f"host: localhost\r\nx-api-key: {KEY}\r\n{head}"
                asking.sendall(f"POST /cooldowns/clear HTTP/1.1\r\n{lines}\r\n".encode())
                assert asking.recv(100).split()[1] == (b"421" if head else b"405")
            assert admin.send_admin_request(private, "/cooldowns/clear", "POST") == b'{"cleared":0}'
            assert admin.send_admin_request(private, "/cooldowns") == b"[]\n"


def test_rule_10_cooldowns_are_metrics(tmp_path: Path) -> None:
    with gateway_with_simulator(SPENT, tmp_path) as (harness, _):
        harness.request("/v1/messages", REQUESTS["/v1/messages"])
        labels = f'credential="key",models="{MODEL}",state="cooling",upstream="one"'
        assert f"dragoman_cooldown_seconds{{{labels}}} 29" in harness.running.gateway.metrics().decode()
        harness.running.gateway.breaker.clear()
        assert labels not in harness.running.gateway.metrics().decode()


# --- 11: no request is sent twice in parallel


def test_rule_11_a_slow_upstream_gets_one_request(tmp_path: Path) -> None:
    with gateway_with_simulator('then = "last"\n[[turn]]\ntext = "Slow."\nfirst_delay = 1.0', tmp_path) as (
        harness,
        simulator,
    ):
        assert harness.request("/v1/messages", REQUESTS["/v1/messages"])[0] == 200
        assert simulator.total == 1


# --- 12: drain; tested in test_server.py, test_server_process.py and fault 62


def test_rule_12_the_numbers() -> None:
    defaults = {field.name: field.default for field in structs.fields(Server)}
    assert (defaults["drain"], serve._LINGER) == (120.0, 3.0)


# --- 13: limits, with errors in the client's dialect


def head(**more: str) -> HttpRequest:
    return HttpRequest("POST", "/", headers=(("host", "localhost"), *more.items()))


def test_rule_13_a_head_has_at_most_100_headers_32_kib_and_a_target_of_8_kib() -> None:
    guard = HeadCheck("127.0.0.1")
    names = {f"x-{number}": "" for number in range(100)}
    assert guard.refusal(head(**dict(list(names.items())[:99]))) is None
    assert getattr(guard.refusal(head(**names)), "status", 0) == 431
    assert guard.refusal(head(x="y" * 32_000)) is None
    assert getattr(guard.refusal(head(x="y" * 32 * 1024)), "status", 0) == 431
    longest = HttpRequest("POST", "/" + "x" * (8 * 1024 - 1), headers=(("host", "localhost"),))
    assert guard.refusal(longest) is None
    longer = structs.replace(longest, path=longest.path + "x")
    assert getattr(guard.refusal(longer), "status", 0) == 414
    defaults = {field.name: field.default for field in structs.fields(Server)}
    assert defaults["max_body"] == 32 * 1024 * 1024


def tools(client: str, count: int = 1, name: str = "t", schema: Any = None) -> dict[str, Any]:
    schema = schema or {"type": "object"}
    names = [name] if count == 1 else [f"{name}{number}" for number in range(count)]
    if client == "/v1/messages":
        return {"tools": [{"name": each, "input_schema": schema} for each in names]}
    if client == "/v1/chat/completions":
        return {"tools": [{"type": "function", "function": {"name": each, "parameters": schema}} for each in names]}
    if client == "/v1/responses":
        return {"tools": [{"type": "function", "name": each, "parameters": schema} for each in names]}
    if client == GENERATE:
        declared = [{"name": each, "parametersJsonSchema": schema} for each in names]
        return {"tools": [{"functionDeclarations": declared}]}
    return {"toolConfig": {"tools": [{"toolSpec": {"name": each, "inputSchema": {"json": schema}}} for each in names]}}


def nested(levels: int) -> Any:
    value: Any = {"type": "string"}
    for _ in range(levels):
        value = {"items": value}
    return value


def turns(client: str, count: int) -> dict[str, Any]:
    if client == GENERATE:
        return {"contents": [{"role": ("user", "model")[at % 2], "parts": [{"text": "x"}]} for at in range(count)]}
    content = [{"text": "x"}] if client == CONVERSE else "x"
    messages = [{"role": ("user", "assistant")[at % 2], "content": content} for at in range(count)]
    return {"input" if client == "/v1/responses" else "messages": messages}


@every_client
@pytest.mark.parametrize(
    ("what", "status", "words"),
    [
        ("depth", 400, "server.limits.depth"),
        ("levels", 400, "nested"),
        ("messages", 400, "server.limits.messages"),
        ("tools", 400, "server.limits.tools"),
        ("name", 400, "server.limits.name"),
        ("schema", 413, "server.limits.schema"),
        ("schema depth", 400, "64 levels"),
        ("reference", 400, "point into the schema itself"),
        ("nodes", 413, "server.limits.nodes"),
        ("body", 413, "server.max_body"),
    ],
)
def test_rule_13_the_error_names_the_exceeded_limit(
    what: str, status: int, words: str, client: str, tmp_path: Path
) -> None:
    cases: dict[str, Callable[[], dict[str, Any]]] = {
        "depth": lambda: tools(client, schema=nested(140)),
        "messages": lambda: turns(client, 2049),
        "tools": lambda: tools(client, 513),
        "name": lambda: tools(client, name="n" * 257),
        "schema": lambda: tools(client, schema={"type": "object", "description": "x" * 300_000}),
        "schema depth": lambda: tools(client, schema=nested(66)),
        "reference": lambda: tools(client, schema={"$ref": "https://example.org/schema.json"}),
        "nodes": lambda: {"metadata": [[]] * 1_100_000},
        "body": lambda: {"metadata": "x" * 34_000_000},
    }
    more = cases[what]() if what in cases else {}
    raw = json.dumps({**REQUESTS[client], **more}, separators=(",", ":")).encode()
    if what == "levels":  # more levels than any parser accepts
        raw = raw[:-1] + b',"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    with gateway_with_simulator('then = "last"\n[[turn]]\ntext = "x"', tmp_path) as (harness, simulator):
        found, _, body = harness.request(client, raw)
        assert (found, words in error_in(body)) == (status, True), body
        assert simulator.total == 0
        assert harness.log_lines()[0]["outcome"] == "refused"


@every_client
def test_rule_13_too_many_values_are_refused_before_parsing(client: str, tmp_path: Path) -> None:
    with gateway_with_simulator('[[turn]]\ntext = "x"', tmp_path, server__limits__nodes=1000) as (harness, simulator):
        status, _, body = harness.request(
            client, b'{"model": "m", "x": [' + b"[]," * 2000
        )  # it is not JSON, so parsing it would give another error
        assert (status, "server.limits.nodes" in error_in(body), simulator.total) == (413, True, 0), body


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("more", "status", "words"),
    [
        ({"messages": [{"role": ("user", "assistant")[at % 2], "content": "x"} for at in range(5)]}, 400, "messages"),
        ({"messages": [{"role": ("user", "assistant")[at % 2], "content": "x"} for at in range(401)]}, 413, "nodes"),
        ({"messages": [{"role": "user", "content": "x" * 10_000}]}, 413, "max_body"),
        ({"user": [[[[[[[["deep"]]]]]]]]}, 400, "depth"),
        (tools("/v1/chat/completions", 3), 400, "tools"),
    ],
    ids=["messages", "nodes", "body", "depth", "tools"],
)
def test_rule_13_the_limits_apply_to_requests_with_a_cached_plan(
    more: dict[str, Any], status: int, words: str, stream: bool, tmp_path: Path
) -> None:
    limits = {f"server__limits__{name}": most for name, most in (("messages", 4), ("nodes", 1000), ("depth", 8))}
    flags: dict[str, Any] = {
        **limits,
        "server__limits__tools": 2,
        "server__max_body": 20_000 if words == "nodes" else 8000,
    }
    with gateway_with_simulator('then = "last"\n[[turn]]\ntext = "x"', tmp_path, "openai", **flags) as (
        harness,
        simulator,
    ):
        plain = openai_body(MODEL, stream=stream)
        for _ in range(3):
            assert harness.request("/v1/chat/completions", plain)[0] == 200
        found, _, body = harness.request("/v1/chat/completions", {**plain, **more})
        assert (found, f".{words}" in error_in(body), simulator.total) == (status, True, 3), body
        assert harness.request("/v1/chat/completions", plain)[0] == 200


def test_rule_13_the_body_limit_applies_to_the_upstream_request_too(tmp_path: Path) -> None:
    """A request can be longer in the dialect of the upstream."""
    messages = [{"role": ("user", "assistant")[at % 2], "content": "x"} for at in range(101)]
    with gateway_with_simulator('then = "last"\n[[turn]]\ntext = "x"', tmp_path, "bedrock", server__max_body=3800) as (
        harness,
        simulator,
    ):
        for stream in (False, True):
            raw = json.dumps(
                {**openai_body(MODEL, stream=stream), "messages": messages}, separators=(",", ":")
            ).encode()
            assert len(raw) < 3800
            status, _, body = harness.request("/v1/chat/completions", raw)
            assert (status, "in the upstream's dialect" in error_in(body)) == (413, True), body
        assert simulator.total == 0
        assert harness.request("/v1/chat/completions", openai_body(MODEL))[0] == 200


@every_client
def test_rule_13_a_compressed_body_is_refused_unread(client: str, tmp_path: Path) -> None:
    with gateway_with_simulator('[[turn]]\ntext = "x"', tmp_path) as (harness, simulator):
        status, _, body = harness.request(client, b"\x1f\x8b" + b"\0" * 1000, content_encoding="gzip")
        assert (status, "compressed" in error_in(body), simulator.total) == (415, True, 0)


def test_rule_13_requests_above_the_limit_are_refused_with_retry_after(tmp_path: Path) -> None:
    script = 'then = "last"\n[[turn]]\nparts = [{ text = "Begin." }, { wait = 30.0 }]'
    with gateway_with_simulator(script, tmp_path, server__limits__streams=1) as (harness, simulator):
        raw = StreamClient(harness, "/v1/messages", STREAM_REQUESTS["/v1/messages"])
        raw.read_until(b"Begin.")
        status, headers, body = harness.request("/v1/chat/completions", REQUESTS["/v1/chat/completions"])
        assert (status, headers["retry-after"], simulator.total) == (503, "1", 1)
        assert "server.limits.streams" in error_in(body)
        raw.leave()
        wait_until(lambda: harness.running.gateway.in_flight == 0)


def test_rule_13_upstream_frames_are_bounded_and_lengths_are_used_after_their_checksum() -> None:
    assert (sse.MAX_FRAME, eventstream.MAX_PAYLOAD) == (16 * 1024 * 1024, 24 * 1024 * 1024)
    decoder, line = sse.SseDecoder(), b"data: " + b"x" * (1024 * 1024 - 6)
    with pytest.raises(sse.FrameTooLong):
        for _ in range(17):
            list(decoder.feed(line))
    claimed = (2**31 - 1).to_bytes(4, "big") + (0).to_bytes(4, "big") + b"\0\0\0\0"
    with pytest.raises(eventstream.PreludeChecksumMismatch):
        list(EventStreamDecoder().feed(claimed))


# --- the log


def test_a_log_pipe_that_is_not_read_stops_no_stream(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    try:
        while True:
            os.write(writing, b"x" * 4096)
    except BlockingIOError:
        os.set_blocking(writing, True)
    with running_simulator("anthropic") as simulator, os.fdopen(writing, "w", encoding="utf-8") as full:
        access_log = AccessLog(Redactor(), stream=full, form="json", level="debug")
        config = parse_config(upstream_config("one", "anthropic", simulator.url))
        with running_gateway(
            config, state=tmp_path, access_log=access_log, retry_settings=FAST_RETRIES, key=KEY
        ) as running:
            harness = GatewayHarness(running, io.StringIO(), tmp_path)
            for _ in range(20):
                status, _, body = harness.request("/v1/messages", STREAM_REQUESTS["/v1/messages"])
                assert (status, b"message_stop" in body) == (200, True)
        os.close(reading)


def test_many_bad_requests_write_at_most_a_hundred_log_lines(tmp_path: Path) -> None:
    with gateway_with_simulator('[[turn]]\ntext = "x"', tmp_path) as (harness, _):
        for _ in range(300):
            assert harness.request("/v1/messages", {}, key="wrong")[0] == 401
        assert harness.request("/v1/messages", REQUESTS["/v1/messages"])[0] == 200
        wait_until(lambda: harness.running.gateway.in_flight == 0)
        assert len(harness.log_lines(101)) == 101
        assert harness.running.gateway.status()["suppressed_log_lines"] == 200

"""Upstream failures: errors in the client's dialect, and retries only before the client's first byte."""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from dragoman.simulator import parse_script, running_simulator
from tests.gateway.harness import (
    KEY,
    StreamClient,
    anthropic_body,
    fixed_response_server,
    gated_server,
    gateway_with_simulator,
    openai_body,
    start_gateway,
    upstream_config,
    wait_until,
)
from tests.gateway.test_resources import chunked_response, content_type_of, text_response

# --- refusals


@pytest.mark.parametrize("dialect", ["kiro", "anthropic", "openai"])
def test_an_upstream_400_keeps_its_message_and_is_not_retried(dialect: str, tmp_path: Path) -> None:
    script = '[[turn]]\nstatus = 400\nmessage = "tools.0.custom.defer_loading: Extra inputs are not permitted"'
    with gateway_with_simulator(script, tmp_path, dialect) as (harness, simulator):
        client = anthropic.Anthropic(api_key=KEY, base_url=harness.url, max_retries=0)
        with client, pytest.raises(anthropic.BadRequestError) as refused:
            client.messages.create(**anthropic_body("claude-sonnet-4.5"))
        body: Any = refused.value.body
        assert body["error"]["message"] == "tools.0.custom.defer_loading: Extra inputs are not permitted"
        assert refused.value.response.headers["x-request-id"] == refused.value.request_id
        assert simulator.total == 1
        [line] = harness.log_lines()
        assert (line["outcome"], line["status"]) == ("failed", 400)


def test_errors_have_the_shape_of_the_clients_dialect(tmp_path: Path) -> None:
    with gateway_with_simulator('[[turn]]\nstatus = 400\nmessage = "no: {\\"a\\": 1}"', tmp_path, "anthropic") as (
        harness,
        _,
    ):
        status, _, body = harness.request("/v1/chat/completions", openai_body())
        assert status == 400
        assert json.loads(body) == {
            "error": {"message": 'no: {"a": 1}', "type": "invalid_request_error", "param": None, "code": None}
        }


@pytest.mark.parametrize("message_body", ["retry_after = 7", ""])
def test_a_429_always_has_a_retry_after(message_body: str, tmp_path: Path) -> None:
    script = f'then = "last"\n[[turn]]\nstatus = 429\nmessage = "slow down"\n{message_body}'
    with gateway_with_simulator(script, tmp_path, "anthropic") as (harness, simulator):
        status, headers, response = harness.request("/v1/chat/completions", openai_body(stream=True))
        assert (status, b"slow down" in response) == (429, True)
        assert headers["retry-after"] == ("7" if message_body else "2")
        assert simulator.total == (1 if message_body else 3)  # seven seconds are longer than the gateway waits


def test_a_short_retry_after_is_waited_for_without_an_error_for_the_client(tmp_path: Path) -> None:
    script = '[[turn]]\nstatus = [429, 503]\nretry_after = 0.1\n[[turn]]\ntext = "At last."'
    with gateway_with_simulator(script, tmp_path, "openai") as (harness, simulator):
        with openai.OpenAI(api_key=KEY, base_url=f"{harness.url}/v1", max_retries=0) as client:
            response = client.chat.completions.create(**openai_body())
        assert response.choices[0].message.content == "At last."
        assert simulator.total == 3
        [line] = harness.log_lines()
        assert (line["attempts"], len(line["tried"])) == (3, 2)


def test_an_upstream_that_refuses_the_key_is_named(tmp_path: Path) -> None:
    with gateway_with_simulator('[tokens]\naccess = ["another"]', tmp_path, "anthropic") as (harness, simulator):
        status, _, body = harness.request("/v1/messages", anthropic_body())
        assert status == 401
        assert b"the upstream one refused this gateway's credential: The API key" in body
        assert simulator.total == 1


def test_an_html_page_instead_of_a_response_is_a_readable_error(tmp_path: Path) -> None:
    page = b"HTTP/1.1 503 No\r\ncontent-type: text/html\r\ncontent-length: 20\r\n\r\n<html>Sorry...</html"
    with (
        fixed_response_server(page) as url,
        start_gateway(upstream_config("one", "anthropic", url), tmp_path) as harness,
    ):
        status, _, body = harness.request("/v1/chat/completions", openai_body())
        assert status == 503
        assert "503" in json.loads(body)["error"]["message"]


def test_a_refusal_of_many_megabytes_keeps_its_status_and_is_not_read(tmp_path: Path) -> None:
    message_body = b'{"type":"error","error":{"type":"invalid_request_error","message":"%b"}}' % (b"words " * 1_000_000)
    page = b"HTTP/1.1 400 Bad Request\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%b" % (
        len(message_body),
        message_body,
    )
    with (
        fixed_response_server(page) as url,
        start_gateway(upstream_config("one", "anthropic", url), tmp_path) as harness,
    ):
        status, _, body = harness.request("/v1/chat/completions", openai_body())
        assert (status, b"words" in body, len(body) < 1000) == (400, False, True)


def test_the_error_for_a_too_long_conversation_has_both_lengths(tmp_path: Path) -> None:
    """Claude Code reads both numbers to compact the conversation; the service sends neither."""
    script = '[[turn]]\nstatus = 400\nmessage = "Input is too long."\nreason = "CONTENT_LENGTH_EXCEEDS_THRESHOLD"'
    with gateway_with_simulator(script, tmp_path, "kiro") as (harness, _):
        status, _, body = harness.request("/v1/messages", anthropic_body("claude-sonnet-4.5", "x" * 900_000))
        message = json.loads(body)["error"]["message"]
        assert status == 400
        assert re.fullmatch(r"prompt is too long: \d+ tokens > \d+ maximum", message), message


# --- before the first byte


@pytest.mark.parametrize("stream", [True, False])
def test_a_refused_connection_causes_a_fallback(stream: bool, tmp_path: Path) -> None:
    with socket.socket() as closed_port, running_simulator("openai") as simulator:
        closed_port.bind(("127.0.0.1", 0))
        text = upstream_config("down", "anthropic", f"http://127.0.0.1:{closed_port.getsockname()[1]}")
        text += upstream_config("up", "openai", simulator.url)
        text += '[[routes]]\nmatch = "m"\nupstream = "down"\nfallbacks = ["up/other"]\n'
        with start_gateway(text, tmp_path) as harness:
            status, headers, body = harness.request("/v1/messages", anthropic_body(text="hi", stream=stream))
            assert (status, headers["dragoman-upstream"]) == (200, "up")
            assert b"hi" in body
            [line] = harness.log_lines()
            assert (line["upstream"], line["used_model"]) == ("up", "other")
        assert simulator.total == 1
        assert simulator.requests[0].json["model"] == "other"  # type: ignore[index,call-overload]


@pytest.mark.parametrize("client", ["/v1/messages", "/v1/chat/completions"])
def test_an_error_frame_before_any_content_causes_a_fallback(client: str, tmp_path: Path) -> None:
    """Some services report overload inside a stream with status 200."""
    script = 'then = "last"\n[[turn]]\nparts = [{ exception = "overloaded", message = "busy" }]'
    with running_simulator("anthropic", script=parse_script(script)) as busy, running_simulator("kiro") as free:
        text = upstream_config("busy", "anthropic", busy.url) + upstream_config("free", "kiro", free.url)
        text += '[[routes]]\nmatch = "m"\nupstream = "busy"\nfallbacks = ["free/claude-sonnet-4.5"]\n'
        with start_gateway(text, tmp_path) as harness:
            status, headers, response = harness.request(client, anthropic_body(stream=True))
            assert (status, headers["dragoman-upstream"]) == (200, "free")
            assert b"busy" not in response and b"You said" in response
        assert (busy.total, free.total) == (3, 1)


def test_a_refused_credential_is_replaced_by_the_next(tmp_path: Path) -> None:
    with running_simulator("anthropic", script=parse_script('[tokens]\naccess = ["good"]')) as simulator:
        text = upstream_config("one", "anthropic", simulator.url).replace(
            '"the-upstream-secret"', '["bad-key-1", "good"]'
        )
        with start_gateway(text, tmp_path) as harness:
            for _ in range(4):
                status, _, _ = harness.request("/v1/messages", anthropic_body(), x_session_id="the same")
                assert status == 200
            # The bad credential is used at most once, then it has a cooldown.
            assert [each.status for each in simulator.requests].count(401) <= 1
            assert [each.status for each in simulator.requests].count(200) == 4


def test_a_session_keeps_its_credential(tmp_path: Path) -> None:
    keys = ", ".join(f'"key-number-{number}"' for number in range(5))
    with running_simulator("anthropic") as simulator:
        text = upstream_config("one", "anthropic", simulator.url).replace('"the-upstream-secret"', f"[{keys}]")
        with start_gateway(text, tmp_path) as harness:
            for session in ("a", "b", "c", "a", "b", "c", "a", "b", "c"):
                harness.request("/v1/messages", anthropic_body(), x_claude_code_session_id=session)
            for _ in range(5):
                harness.request("/v1/messages", anthropic_body())
        used = [each.headers["x-api-key"] for each in simulator.requests]
        assert used[0:3] == used[3:6] == used[6:9]
        assert len(set(used[9:])) == 5  # without a session the credentials rotate


def test_retries_are_a_small_part_of_the_traffic(tmp_path: Path) -> None:
    script = 'then = "last"\n[[turn]]\nstatus = 500\nmessage = "no"'
    with gateway_with_simulator(script, tmp_path, "openai", "limits.breaker = false") as (harness, simulator):
        for _ in range(10):
            harness.request("/v1/chat/completions", openai_body())
        assert 10 < simulator.total <= 14


# --- after the first byte


def test_a_truncated_stream_is_an_error_for_openai_clients_too(tmp_path: Path) -> None:
    script = '[[turn]]\ntext = "one two three four five six"\nchunk = 4\ncut = { event = 5, how = "reset" }'
    with gateway_with_simulator(script, tmp_path, "openai") as (harness, simulator):
        with openai.OpenAI(api_key=KEY, base_url=f"{harness.url}/v1", max_retries=2) as client:
            got = ""
            with pytest.raises(openai.APIError):
                for chunk in client.chat.completions.create(**openai_body(stream=True)):
                    got += chunk.choices[0].delta.content or ""
        assert got.startswith("one ")
        assert simulator.total == 1


def test_a_truncated_whole_response_is_retried(tmp_path: Path) -> None:
    script = '[[turn]]\ntext = "Lost."\ncut = { byte = 50, how = "close" }\n[[turn]]\ntext = "Found."'
    with gateway_with_simulator(script, tmp_path, "openai") as (harness, simulator):
        status, _, body = harness.request("/v1/messages", anthropic_body())
        assert status == 200 and b"Found." in body
        assert simulator.total == 2


def test_a_silent_upstream_times_out_with_an_error_for_the_client(tmp_path: Path) -> None:
    script = '[[turn]]\nparts = [{ text = "Wait" }, { wait = 30.0 }, { text = "ed." }]'
    with gateway_with_simulator(script, tmp_path, "anthropic", "timeouts.idle = 0.3") as (harness, simulator):
        _, _, body = harness.request("/v1/chat/completions", openai_body(stream=True))
        assert b"Wait" in body and b'"code":"timeout"' in body and b"[DONE]" not in body
        assert simulator.requests[0].wait() == "gone"


# --- clients


@pytest.mark.parametrize("reset", [True, False])
@pytest.mark.parametrize("silent", [True, False])
def test_a_client_that_disconnects_ends_the_upstream_request(silent: bool, reset: bool, tmp_path: Path) -> None:
    flowing = f'[[turn]]\ntext = "{"word " * 2000}"\ndelay = 0.02'
    script = '[[turn]]\nparts = [{ text = "Begin." }, { wait = 30.0 }]' if silent else flowing
    with gateway_with_simulator(script, tmp_path, "openai") as (harness, simulator):
        client = StreamClient(harness, "/v1/messages", anthropic_body(stream=True))
        client.read_until(b"text_delta")
        client.leave(reset=reset)
        assert simulator.requests[0].wait(60) == "gone"
        [line] = harness.log_lines()
        assert line["outcome"] == "gone"
        wait_until(lambda: harness.running.gateway.in_flight == 0)


def test_a_client_that_disconnects_before_the_response_ends_the_upstream_request(tmp_path: Path) -> None:
    with gateway_with_simulator('[[turn]]\ntext = "x"\nfirst_delay = 30.0', tmp_path, "openai") as (harness, simulator):
        client = StreamClient(harness, "/v1/messages", anthropic_body())
        wait_until(lambda: simulator.total == 1)
        client.leave()
        assert simulator.requests[0].wait(60) == "gone"
        assert harness.log_lines()[0]["outcome"] == "gone"


@pytest.mark.parametrize(
    ("path", "ask", "sign", "end"),
    [
        ("/v1/messages", anthropic_body, b"event: ping", b'{"type":"message_stop"}'),
        ("/v1/chat/completions", openai_body, b": ping", b"data: [DONE]"),
    ],
)
def test_a_silent_upstream_causes_keep_alives(path: str, ask: Any, sign: bytes, end: bytes, tmp_path: Path) -> None:
    late = b"".join(chunked_response(text_response("kiro", "Late."), content_type_of("kiro")))
    with (
        gated_server(late) as (url, gate),
        start_gateway(upstream_config("one", "kiro", url), tmp_path, server__ping=0.1) as harness,
        StreamClient(harness, path, ask("claude-sonnet-4.5", stream=True)) as client,
    ):
        got = b""
        while got.count(sign) < 3:
            got += client.socket.recv(65536)
        assert got.partition(b"\r\n\r\n")[2].partition(b"\r\n")[2].startswith(sign) and b"Late." not in got
        gate.set()
        rest = client.read_all()
        assert b"Late." in rest and end in rest[-100:]
        assert harness.log_lines()[0]["attempts"] == 1


def test_a_client_that_reads_nothing_stops_the_upstream(tmp_path: Path) -> None:
    """Sixteen megabytes for a client that reads nothing stay at the upstream until it reads."""
    script = f'[[turn]]\ntext = "{"x" * 16_000_000}"\nchunk = 16000'
    with (
        gateway_with_simulator(script, tmp_path, "openai") as (harness, simulator),
        StreamClient(harness, "/v1/messages", anthropic_body(stream=True), receive_buffer=65536) as client,
    ):
        client.read_until(b"text_delta")
        sent = -1
        while sent != simulator.requests[0].sent:
            sent = simulator.requests[0].sent
            time.sleep(0.3)
        assert sent < 12_000_000  # socket buffers of loopback, and our 256 KiB
        assert b"message_stop" in client.read_all()
        assert simulator.requests[0].wait() == "whole"


# --- limits


def test_requests_above_the_limit_wait_and_the_rest_is_refused(tmp_path: Path) -> None:
    response = b'{"id":"c","model":"m","choices":[{"index":0,"message":{"content":"x"},"finish_reason":"stop"}]}'
    page = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%b"
    more = "limits.concurrency = 1\nlimits.queue = 1\nlimits.queue_wait = 60"
    with (
        gated_server(page % (len(response), response)) as (url, gate),
        start_gateway(upstream_config("one", "openai", url, more), tmp_path) as harness,
    ):
        statuses: list[int] = []
        threads = [
            threading.Thread(target=lambda: statuses.append(harness.request("/v1/messages", anthropic_body())[0]))
            for _ in range(3)
        ]
        for number, thread in enumerate(threads, 1):
            thread.start()
            wait_until(lambda number=number: harness.running.gateway.in_flight == number or bool(statuses))
        wait_until(lambda: statuses == [529])  # the request above the limit is refused at once
        gate.set()
        for thread in threads:
            thread.join()
        assert sorted(statuses) == [200, 200, 529]

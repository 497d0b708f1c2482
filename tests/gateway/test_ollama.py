"""Ollama clients and Ollama upstreams: tools, streams and whole replies, errors, model lists."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dragoman.simulator.script import parse_script
from dragoman.simulator.server import Simulator, running_simulator
from tests.gateway.harness import (
    KEY,
    TIMEOUT,
    TOOL_SCHEMA,
    GatewayHarness,
    anthropic_body,
    gated_server,
    start_gateway,
    upstream_config,
)
from tests.gateway.test_upstream_violations import recording_server

SCRIPT = """
then = "repeat"
[pace]
chunk = 4
[[turn]]
parts = [
  { text = "I look it up." },
  { tool = "get_weather", arguments = '{"city": "Paris", "days": 1}' },
  { tool = "get_weather", arguments = '{"city": "Oslo"}' },
]
"""
DECLARED = {"name": "get_weather", "description": "Tell the weather.", "input_schema": TOOL_SCHEMA}
FUNCTION = {"name": "get_weather", "description": "Tell the weather.", "parameters": TOOL_SCHEMA}
REQUEST: dict[str, Any] = {
    "model": "m",
    "messages": [{"role": "user", "content": "Weather in Paris and Oslo?"}],
    "tools": [{"type": "function", "function": FUNCTION}],
}
CALLS = [("get_weather", {"city": "Paris", "days": 1}), ("get_weather", {"city": "Oslo"})]


@pytest.fixture(scope="module", params=["anthropic", "ollama", "openai"])
def harness(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[GatewayHarness, Simulator]]:
    with running_simulator(request.param, script=parse_script(SCRIPT)) as simulator:
        text = upstream_config("u", request.param, simulator.url, 'models = ["m"]')
        text += upstream_config("other", request.param, simulator.url, 'models = ["other"]')
        with start_gateway(text, Path(tmp_path_factory.mktemp("state"))) as running:
            yield running, simulator


def lines(body: bytes) -> list[Any]:
    return [json.loads(each) for each in body.decode().splitlines()]


def names_and_arguments(calls: list[Any]) -> list[tuple[str, Any]]:
    assert all(call["id"] for call in calls) and len({call["id"] for call in calls}) == len(calls)
    return [(call["function"]["name"], call["function"]["arguments"]) for call in calls]


def test_a_streaming_client_gets_tool_calls_as_json_lines(harness: tuple[GatewayHarness, Simulator]) -> None:
    status, headers, body = harness[0].request("/api/chat", REQUEST)
    assert (status, headers["content-type"]) == (200, "application/x-ndjson")
    chunks = lines(body)
    assert "".join(each["message"]["content"] for each in chunks) == "I look it up."
    assert names_and_arguments([call for each in chunks for call in each["message"].get("tool_calls", ())]) == CALLS
    assert [each["done"] for each in chunks] == [False] * (len(chunks) - 1) + [True]
    assert chunks[-1]["done_reason"] == "stop" and chunks[-1]["eval_count"] > 0


def test_a_client_without_streaming_gets_tool_calls_in_one_object(harness: tuple[GatewayHarness, Simulator]) -> None:
    status, headers, body = harness[0].request("/api/chat", {**REQUEST, "stream": False})
    assert (status, headers["content-type"]) == (200, "application/json")
    document = json.loads(body)
    assert (
        document["message"]["content"] == "I look it up."
        and names_and_arguments(document["message"]["tool_calls"]) == CALLS
    )
    assert document["done"] and document["prompt_eval_count"] > 0


def test_results_without_a_call_id_are_matched_by_tool_name(harness: tuple[GatewayHarness, Simulator]) -> None:
    calls = [{"function": {"name": name, "arguments": arguments}} for name, arguments in CALLS]
    history = [
        *REQUEST["messages"],
        {"role": "assistant", "content": "I look it up.", "tool_calls": calls},
        {"role": "tool", "tool_name": "get_weather", "content": "sunny"},
        {"role": "tool", "tool_name": "get_weather", "content": "rain"},
    ]
    status, _, body = harness[0].request("/api/chat", {**REQUEST, "messages": history})
    assert status == 200 and lines(body)[-1]["done"]


def test_errors_have_ollamas_format(harness: tuple[GatewayHarness, Simulator]) -> None:
    status, _, body = harness[0].request("/api/chat", {**REQUEST, "think": "much"})
    assert status == 400 and "think" in json.loads(body)["error"]
    status, _, body = harness[0].request("/api/chat", REQUEST, key="wrong")
    assert status == 401 and isinstance(json.loads(body)["error"], str)
    status, _, body = harness[0].request("/api/chat", {**REQUEST, "model": "none"})
    assert status == 404 and isinstance(json.loads(body)["error"], str)


def test_models_are_listed_as_tags(harness: tuple[GatewayHarness, Simulator]) -> None:
    _, _, body = harness[0].request("/api/tags", method="GET")
    assert "m" in [model["model"] for model in json.loads(body)["models"]]


@pytest.mark.parametrize("stream", [True, False])
def test_an_anthropic_client_works_with_an_ollama_upstream(stream: bool, tmp_path: Path) -> None:
    with (
        running_simulator("ollama", script=parse_script(SCRIPT)) as simulator,
        start_gateway(
            upstream_config("u", "ollama", simulator.url, "settings = { num_ctx = 32768, keep_alive = '30m' }"),
            tmp_path,
        ) as harness,
    ):
        status, headers, body = harness.request("/v1/messages", anthropic_body(tools=[DECLARED], stream=stream))
        assert status == 200
        [received] = simulator.requests
        sent_body: Any = received.json
        assert received.path == "/api/chat"
        assert (sent_body["stream"], sent_body["truncate"], sent_body["keep_alive"]) == (stream, False, "30m")
        assert sent_body["options"] == {"num_predict": 100, "num_ctx": 32768}
        if not stream:
            reply = json.loads(body)
            uses = [part for part in reply["content"] if part["type"] == "tool_use"]
            assert [(use["name"], use["input"]) for use in uses] == CALLS and reply["stop_reason"] == "tool_use"
            return
        assert headers["content-type"] == "text/event-stream"
        events = [json.loads(each.partition("data: ")[2]) for each in body.decode().split("\n\n") if each]
        deltas = [each["delta"]["partial_json"] for each in events if each.get("delta", {}).get("partial_json")]
        assert [json.loads(each) for each in deltas] == [arguments for _, arguments in CALLS]
        assert events[-2]["delta"]["stop_reason"] == "tool_use" and events[-1]["type"] == "message_stop"


BEGIN = b'{"model":"m","created_at":"t","message":{"role":"assistant","content":"one"},"done":false}\n'
END = (
    b'{"model":"m","created_at":"t","message":{"role":"assistant","content":"two"},"done":true,"done_reason":"stop"}\n'
)


def raw(body: bytes) -> bytes:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/x-ndjson\r\nconnection: close\r\n\r\n"
    return head + body


@pytest.mark.parametrize(("path", "body"), [("/api/chat", REQUEST), ("/v1/messages", anthropic_body(stream=True))])
def test_lines_are_forwarded_as_they_arrive(path: str, body: Any, tmp_path: Path) -> None:
    with (
        gated_server(END, raw(BEGIN)) as (url, gate),
        start_gateway(upstream_config("u", "ollama", url), tmp_path, server__hold=0) as harness,
    ):
        connection = http.client.HTTPConnection(harness.url.removeprefix("http://"), timeout=TIMEOUT)
        connection.request("POST", path, json.dumps(body), {"x-api-key": KEY})
        response = connection.getresponse()
        received = b""
        while b"one" not in received:
            received += response.read1()
        assert b"two" not in received
        gate.set()
        assert b"two" in response.read()
        connection.close()


@pytest.mark.parametrize(
    "body",
    [BEGIN, BEGIN + END[:40], BEGIN + b'{"error":"the runner has stopped"}\n', BEGIN + b"[]\n"],
    ids=["no end", "half a line", "error", "no object"],
)
@pytest.mark.parametrize("path", ["/api/chat", "/v1/messages"])
def test_a_stream_that_breaks_ends_with_an_error(body: bytes, path: str, tmp_path: Path) -> None:
    sent_body = REQUEST if path == "/api/chat" else anthropic_body(stream=True)
    with (
        recording_server(200, "application/x-ndjson", body) as (url, _),
        start_gateway(upstream_config("u", "ollama", url), tmp_path, server__hold=0) as harness,
    ):
        status, _, response = harness.request(path, sent_body)
        assert status == 200 and b"one" in response
        last = response.strip().splitlines()[-1]
        assert b'"error"' in last and (b"runner" in last) == (b"runner" in body)


def test_an_error_for_a_too_long_prompt_is_recognised(tmp_path: Path) -> None:
    error_body = b'{"error":"request (5000 tokens) exceeds the available context size (4096 tokens)"}'
    with (
        recording_server(400, "application/json", error_body) as (url, _),
        start_gateway(upstream_config("u", "ollama", url), tmp_path) as harness,
    ):
        status, _, body = harness.request("/v1/messages", anthropic_body(stream=True))
        error = json.loads(body)["error"]
        assert status == 400 and "prompt is too long" in error["message"]

"""Compaction over every upstream: the model writes a summary, and the conversation goes on with it anywhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dragoman.filters.compaction import SUMMARY
from tests.gateway.harness import MODEL, GatewayHarness, gateway_with_simulator
from tests.gateway.websocket_client import WebSocketClient

UPSTREAMS = ["anthropic", "openai", "bedrock", "responses", "gemini", "kiro"]
SCRIPT = '[[turn]]\ntext = "The user wants it; it is 42."\n[[turn]]\ntext = "Done."\n'
TOOL = {"type": "function", "name": "get", "parameters": {"type": "object", "properties": {}}}
HISTORY: list[dict[str, Any]] = [
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "fetch it"}]},
    {"type": "function_call", "call_id": "c1", "name": "get", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c1", "output": "42"},
]
REQUEST: dict[str, Any] = {"model": MODEL, "instructions": "You code.", "tools": [TOOL], "parallel_tool_calls": False}


def by_endpoint(harness: GatewayHarness) -> Any:
    status, headers, response = harness.request("/v1/responses/compact", {**REQUEST, "input": HISTORY})
    assert (status, headers["dragoman-upstream"]) == (200, "one")
    assert {line["operation"] for line in harness.log_lines(2)} == {"generate", "compact"}
    compacted = json.loads(response)
    assert (compacted["object"], compacted["usage"]["output_tokens"] > 0) == ("response.compaction", True)
    return compacted


def by_item(harness: GatewayHarness) -> Any:
    items = [*HISTORY, {"type": "compaction_trigger"}]
    status, _, response = harness.request("/v1/responses", {**REQUEST, "input": items, "store": False})
    assert status == 200
    return json.loads(response)


def by_session(harness: GatewayHarness) -> Any:
    with WebSocketClient(harness.url) as client:
        client.send(**REQUEST, input=[*HISTORY, {"type": "compaction_trigger"}], store=False)
        return client.events()[-1]["response"]


@pytest.mark.parametrize("way", [by_endpoint, by_item, by_session])
@pytest.mark.parametrize("upstream", UPSTREAMS)
def test_a_conversation_goes_on_with_its_summary(tmp_path: Path, upstream: str, way: Any) -> None:
    with gateway_with_simulator(SCRIPT, tmp_path, upstream) as (harness, simulator):
        [item] = way(harness)["output"]
        assert (item["type"], simulator.total) == ("compaction", 1)
        asked = {"type": "message", "role": "user", "content": "Go on."}
        body = {**REQUEST, "input": [*HISTORY[:1], item, asked], "store": False}
        status, _, response = harness.request("/v1/responses", body)
        assert (status, simulator.total) == (200, 2), response
        sent = simulator.requests[1].body.decode()
    assert SUMMARY in sent and "it is 42." in sent
    assert "Done." in response.decode()


def test_errors_pass(tmp_path: Path) -> None:
    with gateway_with_simulator("", tmp_path) as (harness, simulator):
        assert harness.request("/v1/responses/compact", {"model": MODEL, "input": 7})[0] == 400
        assert {(line["status"], line["outcome"]) for line in harness.log_lines(2)} == {(400, "refused")}
        assert harness.request("/v1/responses/compact", b"no JSON")[0] == 400
        assert harness.request("/v1/responses/compact", {"model": MODEL, "input": []}, key="wrong")[0] == 401
        assert simulator.total == 0

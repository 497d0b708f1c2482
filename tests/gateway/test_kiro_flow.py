"""The Kiro tool flow of docs/mission.md, document 000, end to end: a gateway, a stored token, tool results, the strict simulator."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from dragoman.simulator import Simulator, running_simulator
from tests.gateway.harness import TOOL_SCHEMA, GatewayHarness, start_gateway

ARN = "arn:aws:codewhisperer:us-east-1:699475941385:profile/test"  # the profile of the mock token (docs/mission.md, row 000.14)
QUESTION = 'What\'s the weather in New York? Call get_weather {"city": "New York"}'
RESULTS: dict[str, Any] = {
    "TS1.1": "The weather is sunny and 75°F",
    "TS1.2": [{"type": "text", "text": "The weather is sunny and 75°F"}],
    "TS1.3": [
        {"type": "text", "text": [{"type": "text", "text": "The weather is sunny"}]},
        {"type": "text", "text": " and 75°F"},
    ],
}


@pytest.fixture
def simulator() -> Iterator[Simulator]:
    with running_simulator("kiro", profile="paranoid") as running:
        yield running


@pytest.fixture
def harness(simulator: Simulator, tmp_path: Path) -> Iterator[GatewayHarness]:
    stored = tmp_path / "token.json"
    tomorrow = (datetime.now(UTC) + timedelta(hours=24)).strftime("%Y-%m-%dT%H:%M:%S.000Z")
    token = {"accessToken": "test_access_token", "refreshToken": "r" * 120, "expiresAt": tomorrow, "type": "kiro"}
    stored.write_text(json.dumps({**token, "profileArn": ARN, "authMethod": "social", "region": "us-east-1"}))
    stored.chmod(0o600)
    text = f'[upstreams.kiro]\npreset = "kiro"\nbase_url = "{simulator.url}"\ncredentials = "ide:{stored}"\n'
    with start_gateway(text, tmp_path) as running:
        yield running


def ask(harness: GatewayHarness, path: str, body: dict[str, Any]) -> dict[str, Any]:
    status, _, raw = harness.request(path, body)
    assert status == 200, raw
    response: dict[str, Any] = json.loads(raw)
    return response


@pytest.mark.parametrize("scenario", sorted(RESULTS))
def test_kiro_executor_with_tool_results(harness: GatewayHarness, simulator: Simulator, scenario: str) -> None:
    """Anthropic → Kiro → Anthropic, with the `tool` role and every shape of content that docs/mission.md lists for document 000."""
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    body = {"model": "claude-sonnet-4-5", "max_tokens": 99, "messages": messages}
    body["tools"] = [{"name": "get_weather", "description": "", "input_schema": TOOL_SCHEMA}]
    first = ask(harness, "/v1/messages", body)
    [call] = [block for block in first["content"] if block["type"] == "tool_use"]
    assert (first["stop_reason"], call["input"]) == ("tool_use", {"city": "New York"})
    messages += [
        {"role": "assistant", "content": first["content"]},
        {"role": "tool", "tool_use_id": call["id"], "content": RESULTS[scenario]},
    ]
    last = ask(harness, "/v1/messages", body)
    assert "The weather is sunny and 75°F" in last["content"][0]["text"]
    sent = [json.loads(received.body) for received in simulator.requests]
    context = sent[1]["conversationState"]["currentMessage"]["userInputMessage"]["userInputMessageContext"]
    assert context["toolResults"] == [
        {"toolUseId": call["id"], "content": [{"text": "The weather is sunny and 75°F"}], "status": "success"}
    ]
    assert [received.status for received in simulator.requests] == [200, 200], "no improperly formed request"
    assert {each["profileArn"] for each in sent} == {ARN}


def test_kiro_translation_complete_tool_flow(harness: GatewayHarness, simulator: Simulator) -> None:
    """OpenAI → Kiro → OpenAI."""
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    function = {"name": "get_weather", "parameters": TOOL_SCHEMA}
    body = {"model": "claude-sonnet-4-5", "messages": messages, "tools": [{"type": "function", "function": function}]}
    first = ask(harness, "/v1/chat/completions", body)["choices"][0]
    [call] = first["message"]["tool_calls"]
    assert (first["finish_reason"], json.loads(call["function"]["arguments"])) == ("tool_calls", {"city": "New York"})
    messages += [first["message"], {"role": "tool", "tool_call_id": call["id"], "content": RESULTS["TS1.2"]}]
    last = ask(harness, "/v1/chat/completions", body)["choices"][0]
    assert "The weather is sunny and 75°F" in last["message"]["content"]
    assert [received.status for received in simulator.requests] == [200, 200], "no improperly formed request"

"""The OpenAI SDK's own client of Responses over WebSocket, with a tool loop over every upstream."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import openai
import pytest
from openai.lib.responses_websocket import ResponsesWebSocketLimits, ResponsesWebSocketSession

from tests.gateway.harness import KEY, MODEL, TIMEOUT, gateway_with_simulator

TOOL: Any = {
    "type": "function",
    "name": "get",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": False,
}
SCRIPT = '[[turn]]\nparts = [{tool = "get", arguments = {city = "Rome"}}]\n[[turn]]\ntext = "sunny"\n'


@pytest.mark.filterwarnings("ignore:connect.. must be used as a context manager:DeprecationWarning")  # by the SDK
@pytest.mark.parametrize("upstream", ["anthropic", "openai", "bedrock", "responses", "gemini", "kiro"])
def test_the_sdk_runs_a_tool_loop_in_one_session(tmp_path: Path, upstream: str) -> None:
    with (
        gateway_with_simulator(SCRIPT, tmp_path, upstream) as (harness, simulator),
        openai.OpenAI(api_key=KEY, base_url=f"{harness.url}/v1", max_retries=0) as client,
    ):
        with client.responses.connect(max_retries=0) as connection:
            connection.response.create(model=MODEL, input="weather?", tools=[TOOL], store=False)
            first = _completed(connection)
            [call] = [item for item in first.output if item.type == "function_call"]
            assert call.arguments.replace(" ", "") == '{"city":"Rome"}'
            result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "20 degrees"}
            connection.response.create(
                model=MODEL, input=[result], tools=[TOOL], store=False, previous_response_id=first.id
            )
            assert _completed(connection).output_text == "sunny"
        assert simulator.total == 2
        lines = harness.log_lines(3)
    assert sorted(line["operation"] for line in lines) == ["generate", "generate", "websocket"]


@pytest.mark.filterwarnings("ignore:connect.. must be used as a context manager:DeprecationWarning")  # by the SDK
def test_the_sdk_routes_responses_to_streams_of_one_session(tmp_path: Path) -> None:
    limits = ResponsesWebSocketLimits(8, 10_000, 10_000, 1 << 20, 1 << 20)
    with (
        gateway_with_simulator("", tmp_path) as (harness, simulator),
        openai.OpenAI(api_key=KEY, base_url=f"{harness.url}/v1", max_retries=0) as client,
        client.responses.connect(max_retries=0) as connection,
        ResponsesWebSocketSession(connection, limits=limits) as session,
    ):
        lanes = {name: session.lane(name) for name in ("left", "right")}
        for name, lane in lanes.items():
            lane.send({"type": "response.create", "model": MODEL, "input": f"go {name}", "store": False})
        first = {name: lane.get_final_response(timeout=TIMEOUT) for name, lane in lanes.items()}
        assert {name: f"go {name}" in response.output_text for name, response in first.items()} == dict.fromkeys(
            lanes, True
        )
        for name, lane in lanes.items():
            more: Any = {"type": "response.create", "model": MODEL, "input": "on", "store": False}
            more["previous_response_id"] = first[name].id
            lane.send(more)
            assert lane.get_final_response(timeout=TIMEOUT).status == "completed"
        assert simulator.total == 4
        assert ["go left" in each.body.decode() for each in simulator.requests[2:]] == [True, False]


def _completed(connection: Any) -> Any:
    """The response of the last event."""
    for event in connection:
        assert event.type != "error", event
        if event.type == "response.completed":
            return event.response
    raise AssertionError("the session ended")

"""The official SDKs run tool loops through the gateway against every simulated dialect, streamed and whole.

Upstream requests are counted, because SDKs hide broken streams with retries (docs/dialects/clients.md#faults).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any

import anthropic
import boto3
import openai
import pytest
from botocore.config import Config as BotoConfig

import dragoman.dialects as registry
from dragoman.simulator import Simulator, running_simulator
from tests.gateway.harness import KEY, TOOL_SCHEMA, GatewayHarness, start_gateway, upstream_config

UPSTREAMS = tuple(name for name in registry.names() if name not in ("bedrock.invoke",))
QUESTION = 'Call get_weather {"city": "Paris"}'
RESULT = "18 degrees and rain"
ROUTE = '[[routes]]\nmatch = "to-{name}"\nupstream = "{name}"\nmodel = "{model}"\n'
TOOLS: Any = [{"type": "function", "name": "get_weather", "description": "The weather", "parameters": TOOL_SCHEMA}]
MODELS = {"kiro": "claude-sonnet-4.5", "bedrock": "anthropic.claude-sonnet-4-5-20250929-v1:0"}


@pytest.fixture(scope="module")
def simulators() -> Iterator[dict[str, Simulator]]:
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(running_simulator(name, profile="paranoid" if name == "kiro" else "strict"))
            for name in UPSTREAMS
        }


@pytest.fixture(scope="module")
def harness(simulators: dict[str, Simulator], tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayHarness]:
    text = "".join(upstream_config(name, name, simulator.url) for name, simulator in simulators.items())
    text += "".join(ROUTE.format(name=name, model=MODELS.get(name, "sim-model")) for name in UPSTREAMS)
    with start_gateway(text, tmp_path_factory.mktemp("state")) as running:
        yield running


@pytest.fixture(params=UPSTREAMS)
def target(request: pytest.FixtureRequest, simulators: dict[str, Simulator]) -> Iterator[str]:
    """The name of an upstream; check that its simulator gets exactly two requests and refuses none."""
    simulator = simulators[request.param]
    before = simulator.total
    yield request.param
    parameters = simulator.requests[before - simulator.total :]
    assert [each.status for each in parameters] == [200, 200], parameters


@pytest.mark.parametrize("how", ["stream", "whole"])
def test_anthropic_sdk_runs_a_tool_loop(harness: GatewayHarness, target: str, how: str) -> None:
    tools: Any = [{"name": "get_weather", "description": "The weather", "input_schema": TOOL_SCHEMA}]
    messages: Any = [{"role": "user", "content": QUESTION}]
    with anthropic.Anthropic(api_key=KEY, base_url=harness.url, max_retries=0) as client:

        def ask() -> Any:
            parameters: Any = {"model": f"to-{target}", "max_tokens": 200, "messages": messages, "tools": tools}
            if how == "whole":
                return client.messages.create(**parameters)
            with client.messages.stream(**parameters) as stream:
                return stream.get_final_message()

        first = ask()
        assert first.stop_reason == "tool_use"
        [call] = [block for block in first.content if block.type == "tool_use"]
        assert (call.name, call.input) == ("get_weather", {"city": "Paris"})
        messages += [
            {"role": "assistant", "content": [block.model_dump(exclude_none=True) for block in first.content]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": RESULT}]},
        ]
        last = ask()
    assert last.stop_reason == "end_turn"
    assert RESULT in "".join(block.text for block in last.content if block.type == "text")
    assert last.usage.input_tokens > 0 and last.usage.output_tokens > 0


@pytest.mark.parametrize("how", ["stream", "whole"])
def test_openai_sdk_runs_a_tool_loop(harness: GatewayHarness, target: str, how: str) -> None:
    tools: Any = [{"type": "function", "function": {"name": "get_weather", "parameters": TOOL_SCHEMA}}]
    messages: Any = [{"role": "user", "content": QUESTION}]
    with openai.OpenAI(api_key=KEY, base_url=f"{harness.url}/v1", max_retries=0) as client:

        def ask() -> Any:
            parameters: Any = {"model": f"to-{target}", "messages": messages, "tools": tools}
            if how == "whole":
                return client.chat.completions.create(**parameters)
            with client.chat.completions.stream(**parameters, stream_options={"include_usage": True}) as stream:
                return stream.get_final_completion()

        first = ask()
        assert first.choices[0].finish_reason == "tool_calls"
        [call] = first.choices[0].message.tool_calls
        assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": "Paris"})
        messages += [
            {
                "role": "assistant",
                "content": first.choices[0].message.content,
                "tool_calls": [
                    {
                        "id": call.id,
                        "type": "function",
                        "function": {"name": call.function.name, "arguments": call.function.arguments},
                    }
                ],
            },
            {"role": "tool", "tool_call_id": call.id, "content": RESULT},
        ]
        last = ask()
    assert last.choices[0].finish_reason == "stop"
    assert RESULT in last.choices[0].message.content
    assert last.usage.prompt_tokens > 0 and last.usage.completion_tokens > 0


@pytest.mark.parametrize("how", ["stream", "whole"])
def test_boto3_runs_a_tool_loop_with_a_signature(harness: GatewayHarness, target: str, how: str) -> None:
    tools: Any = {
        "tools": [{"toolSpec": {"name": "get_weather", "description": "d", "inputSchema": {"json": TOOL_SCHEMA}}}]
    }
    messages: Any = [{"role": "user", "content": [{"text": QUESTION}]}]
    client = boto3.client(
        "bedrock-runtime",
        region_name="us-east-1",
        endpoint_url=harness.url,
        aws_access_key_id="anybody",
        aws_secret_access_key=KEY,
        config=BotoConfig(retries={"max_attempts": 0, "mode": "standard"}),
    )
    with closing(client):

        def ask() -> tuple[list[Any], str]:
            parameters: Any = {"modelId": f"to-{target}", "messages": messages, "toolConfig": tools}
            if how == "whole":
                response = client.converse(**parameters)
                return response["output"]["message"]["content"], response["stopReason"]
            return collect_stream(client.converse_stream(**parameters)["stream"])

        blocks, stop = ask()
        assert stop == "tool_use"
        [call] = [block["toolUse"] for block in blocks if "toolUse" in block]
        assert (call["name"], call["input"]) == ("get_weather", {"city": "Paris"})
        answered = {"toolUseId": call["toolUseId"], "content": [{"text": RESULT}]}
        messages += [{"role": "assistant", "content": blocks}, {"role": "user", "content": [{"toolResult": answered}]}]
        blocks, stop = ask()
    assert stop == "end_turn"
    assert RESULT in "".join(block.get("text", "") for block in blocks)


def collect_stream(stream: Any) -> tuple[list[Any], str]:
    blocks: dict[int, Any] = {}
    stop = ""
    for event in stream:
        if "contentBlockStart" in event:
            start = event["contentBlockStart"]
            blocks[start["contentBlockIndex"]] = {"toolUse": {**start["start"]["toolUse"], "input": ""}}
        elif "contentBlockDelta" in event:
            index, delta = event["contentBlockDelta"]["contentBlockIndex"], event["contentBlockDelta"]["delta"]
            if "text" in delta:
                blocks.setdefault(index, {"text": ""})["text"] += delta["text"]
            elif "toolUse" in delta:
                blocks[index]["toolUse"]["input"] += delta["toolUse"]["input"]
        elif "messageStop" in event:
            stop = event["messageStop"]["stopReason"]
    for block in blocks.values():
        if "toolUse" in block:
            block["toolUse"]["input"] = json.loads(block["toolUse"]["input"])
    return list(blocks.values()), stop


def test_models_are_listed_in_both_shapes(harness: GatewayHarness) -> None:
    routes = [f"to-{name}" for name in UPSTREAMS]
    with anthropic.Anthropic(api_key=KEY, base_url=harness.url, max_retries=0) as client:
        assert [model.id for model in client.models.list()][: len(routes)] == routes
        assert client.models.retrieve("to-kiro").id == "to-kiro"
    with openai.OpenAI(api_key=KEY, base_url=f"{harness.url}/v1", max_retries=0) as other:
        listed = [model.id for model in other.models.list()]
        assert listed[: len(routes)] == routes
        assert "openai/sim-model" in listed  # the targets and the upstreams' own lists, here of the simulators
        assert other.models.retrieve("openai/sim-model").id == "openai/sim-model"
        assert other.models.retrieve("to-openai").id == "to-openai"
        with pytest.raises(openai.NotFoundError):
            other.models.retrieve("unknown")


def test_tokens_are_counted_by_an_upstream_with_a_count_endpoint(harness: GatewayHarness) -> None:
    parameters = {"model": "to-anthropic", "messages": [{"role": "user", "content": "hello " * 100}]}
    status, headers, body = harness.request("/v1/messages/count_tokens", parameters)
    assert (status, "dragoman-estimate" in headers) == (200, False)
    assert body.startswith(b'{"input_tokens":')


def test_tokens_are_estimated_and_marked_without_a_count_endpoint(harness: GatewayHarness) -> None:
    parameters = {"model": "to-kiro", "messages": [{"role": "user", "content": "hello " * 100}]}
    status, headers, body = harness.request("/v1/messages/count_tokens", parameters)
    assert (status, headers["dragoman-estimate"]) == (200, "true")
    assert body == b'{"input_tokens":104}'


def test_the_log_line_of_a_request_shows_its_outcome(harness: GatewayHarness) -> None:
    before = len(harness.log_lines(0))
    status, headers, _ = harness.request(
        "/v1/messages?beta=true",
        {"model": "to-kiro", "max_tokens": 50, "messages": [{"role": "user", "content": "hi"}]},
        x_unheard_of="1",
    )
    line = harness.log_lines(before + 1)[-1]
    assert status == 200
    assert headers["x-request-id"] == line["request_id"]
    assert (line["dialect"], line["upstream_dialect"]) == ("anthropic", "kiro")
    assert (line["model"], line["used_model"], line["upstream"]) == ("to-kiro", "claude-sonnet-4.5", "kiro")
    assert (line["status"], line["outcome"], line["stop"], line["attempts"]) == (200, "ok", "end", 1)
    assert line["input_tokens"] > 0 and line["output_tokens"] > 0
    assert 0 < line["first_byte_ms"] <= line["total_ms"]
    assert 0 < int(headers["dragoman-notes"]) <= line["notes"]


# --- the Responses API and `previous_response_id`


@pytest.fixture
def client(harness: GatewayHarness) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(api_key=KEY, base_url=f"{harness.url}/v1", max_retries=0) as client:
        yield client


def create_response(client: openai.OpenAI, how: str, parameters: Any) -> Any:
    if how == "whole":
        return client.responses.create(**parameters)
    with client.responses.stream(**parameters) as stream:
        return stream.get_final_response()


@pytest.mark.parametrize("how", ["stream", "whole"])
def test_openai_sdk_runs_a_tool_loop_with_responses(client: openai.OpenAI, target: str, how: str) -> None:
    messages: Any = [{"role": "user", "content": QUESTION}]
    parameters: Any = {"model": f"to-{target}", "input": messages, "tools": TOOLS, "store": False}
    first = create_response(client, how, parameters)
    [call] = [item for item in first.output if item.type == "function_call"]
    assert (call.name, json.loads(call.arguments)) == ("get_weather", {"city": "Paris"})
    messages += [item.model_dump(exclude_none=True, exclude={"parsed_arguments"}) for item in first.output]
    messages += [{"type": "function_call_output", "call_id": call.call_id, "output": RESULT}]
    last = create_response(client, how, parameters)
    assert last.status == "completed"
    assert RESULT in last.output_text
    assert last.usage.input_tokens > 0 and last.usage.output_tokens > 0


ELSEWHERE = [name for name in UPSTREAMS if name != "responses"]


@pytest.mark.parametrize("how", ["stream", "whole"])
@pytest.mark.parametrize("name", ELSEWHERE)
def test_a_client_continues_with_the_id_of_the_last_response(client: openai.OpenAI, name: str, how: str) -> None:
    parameters: Any = {"model": f"to-{name}", "tools": TOOLS, "instructions": "Be brief."}
    first = create_response(client, how, {**parameters, "input": QUESTION})
    [call] = [item for item in first.output if item.type == "function_call"]
    result: Any = [{"type": "function_call_output", "call_id": call.call_id, "output": RESULT}]
    last = create_response(client, how, {**parameters, "input": result, "previous_response_id": first.id})
    assert RESULT in last.output_text
    assert last.id != first.id


def test_an_unknown_previous_response_is_refused(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(model="to-anthropic", input="go on", previous_response_id="resp_nobody")
    assert refused.value.param == "previous_response_id"
    assert refused.value.code == "previous_response_not_found"
    assert "whole conversation as `input`" in str(refused.value)


def test_a_response_with_store_false_is_not_stored(client: openai.OpenAI) -> None:
    first = client.responses.create(model="to-openai", input="hello", store=False)
    with pytest.raises(openai.BadRequestError, match="previous_response_id"):
        client.responses.create(model="to-openai", input="go on", previous_response_id=first.id)


def test_in_the_same_dialect_the_previous_response_is_left_to_the_upstream(
    client: openai.OpenAI, simulators: dict[str, Simulator]
) -> None:
    client.responses.create(model="to-responses", input="go on", previous_response_id="resp_theirs")
    sent = json.loads(simulators["responses"].requests[-1].body)
    assert sent["previous_response_id"] == "resp_theirs"


def test_unsupported_endpoints_are_refused_with_an_error_of_the_dialect(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="there is no endpoint"):
        client.post("/responses/resp_1/rate", cast_to=object)


def test_a_conversation_is_compacted(client: openai.OpenAI, simulators: dict[str, Simulator]) -> None:
    compacted = client.responses.compact(model="to-openai", input="the answer is 42")
    [item] = compacted.output
    assert (item.type, compacted.object) == ("compaction", "response.compaction")
    sent = [each["content"] for each in json.loads(simulators["openai"].requests[-1].body)["messages"]]
    assert "the answer is 42" in str(sent) and "Summarize" in str(sent)


def test_input_tokens_are_counted(client: openai.OpenAI) -> None:
    bare = client.responses.input_tokens.count(model="to-responses", input="hello")
    tools = client.responses.input_tokens.count(model="to-openai", input="hello", tools=TOOLS)
    assert tools.input_tokens > bare.input_tokens > 0

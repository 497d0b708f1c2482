"""boto3 and botocore, unmodified: their validator accepts our requests, and they read our streams."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import cache
from typing import Any

import anthropic
import boto3
import botocore.session
import pytest
from botocore.config import Config
from botocore.eventstream import EventStream
from botocore.exceptions import ClientError, EventStreamError
from botocore.parsers import EventStreamJSONParser
from botocore.validate import ParamValidator
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

import dragoman
from dragoman.dialects import get
from dragoman.dialects.bedrock import DIALECT
from dragoman.errors import Unrepresentable
from dragoman.model.conversation import Conversation
from dragoman.simulator import Simulator, parse_script, running_simulator
from dragoman.translate import plan
from tests import strategies
from tests.unit.dialects.bedrock_wire import CLAUDE, METADATA, NOVA, START, delta, stop, stream, text, use

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS: Any = {"tools": [{"toolSpec": {"name": "get_weather", "description": "d", "inputSchema": {"json": SCHEMA}}}]}
HELLO: Any = [{"role": "user", "content": [{"text": "Good morning"}]}]
WEATHER: Any = [{"role": "user", "content": [{"text": 'Call get_weather {"city": "Paris"}'}]}]
BLOBS = ("bytes", "redactedContent")


@cache
def model() -> Any:
    return botocore.session.get_session().get_service_model("bedrock-runtime")


@contextmanager
def bedrock(simulator: Simulator) -> Iterator[Any]:
    client = boto3.client(
        "bedrock-runtime",
        endpoint_url=simulator.url,
        region_name="eu-central-1",
        aws_access_key_id="key",
        aws_secret_access_key="secret",
        config=Config(retries={"total_max_attempts": 1}),
    )
    yield client
    client.close()


@pytest.fixture(scope="module")
def service() -> Iterator[Simulator]:
    with running_simulator("bedrock") as running:
        yield running


# --- requests


def as_arguments(value: Any, document: bool = False) -> Any:
    """A body as boto3's arguments: blobs are bytes, free documents stay as they are."""
    if isinstance(value, list):
        return [as_arguments(each, document) for each in value]
    if not isinstance(value, dict):
        return value
    return {
        name: base64.b64decode(each)
        if name in BLOBS and isinstance(each, str) and not document
        else as_arguments(each, document or name in ("input", "json", "additionalModelRequestFields"))
        for name, each in value.items()
    }


@given(conversation=strategies.conversations(), client=st.sampled_from(["anthropic", "openai"]), data=st.data())
@settings(max_examples=60)
def test_botocores_validator_takes_every_request_that_fits(
    conversation: Conversation, client: str, data: st.DataObject
) -> None:
    name = data.draw(st.sampled_from([CLAUDE, NOVA, "mistral.m", "m"]))
    try:
        body = plan(get(client), DIALECT, structs.replace(conversation, model=name)).call().body
    except Unrepresentable:
        return
    operation = model().operation_model("ConverseStream")
    report = ParamValidator().validate({"modelId": name, **as_arguments(body)}, operation.input_shape)
    assert not report.has_errors(), report.generate_report()


# --- streams


def read_by_botocore(data: bytes) -> list[Any]:
    class Raw:
        def stream(self) -> Iterator[bytes]:
            yield data

        def close(self) -> None:
            pass

    operation = model().operation_model("ConverseStream")
    shape = operation.get_event_stream_output()
    return list(EventStream(Raw(), shape, EventStreamJSONParser(None, None), "ConverseStream"))


def test_botocore_reads_our_streams_as_the_services() -> None:
    thought = [delta(0, reasoningContent={"text": "hm"}), delta(0, reasoningContent={"signature": "s"})]
    data = stream(
        START,
        thought,
        ("contentBlockStop", {"contentBlockIndex": 0}),
        text(1, "hé"),
        use(2, "t", "f", "{}"),
        stop("tool_use"),
        METADATA,
    )
    translation = dragoman.translate_request(
        {"messages": HELLO}, source="bedrock", target="anthropic", model="claude-x"
    )
    sse = dragoman.stream_translator(source="bedrock", target="anthropic")
    back = dragoman.stream_translator(source="anthropic", target="bedrock", request=translation)
    ours = back.feed(sse.feed(data) + sse.close()) + back.close()
    expected = read_by_botocore(data)
    expected[-1]["metadata"]["metrics"]["latencyMs"] = 0  # other dialects do not report the latency
    assert read_by_botocore(ours) == expected


def test_botocore_raises_the_exceptions_that_we_write() -> None:
    sse = b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error","message":"busy"}}\n\n'
    translator = dragoman.stream_translator(source="anthropic", target="bedrock")
    with pytest.raises(EventStreamError, match=r"serviceUnavailableException.*busy"):
        read_by_botocore(translator.feed(sse) + translator.close())


# --- boto3 against the simulator


def test_boto3_talks_whole_and_streamed(service: Simulator) -> None:
    before = service.total
    with bedrock(service) as client:
        whole = client.converse(modelId=CLAUDE, messages=HELLO)
        events = list(client.converse_stream(modelId=CLAUDE, messages=HELLO)["stream"])
        assert service.total == before + 2  # no client tried twice
        streamed = "".join(
            event["contentBlockDelta"]["delta"]["text"] for event in events if "contentBlockDelta" in event
        )
        assert whole["output"]["message"]["content"] == [{"text": streamed}] == [{"text": "You said: Good morning"}]
        assert (
            whole["usage"]
            == events[-1]["metadata"]["usage"]
            == {"inputTokens": 7, "outputTokens": 6, "totalTokens": 13}
        )


def test_boto3_runs_a_tool_loop_whole(service: Simulator) -> None:
    messages = [*WEATHER]
    with bedrock(service) as client:
        first = client.converse(modelId=CLAUDE, messages=messages, toolConfig=TOOLS)
        assert first["stopReason"] == "tool_use"
        messages.append(first["output"]["message"])
        (call,) = [block["toolUse"] for block in messages[-1]["content"] if "toolUse" in block]
        assert call["input"] == {"city": "Paris"}
        response = {"toolUseId": call["toolUseId"], "content": [{"json": {"degrees": 21}}], "status": "success"}
        messages.append({"role": "user", "content": [{"toolResult": response}]})
        second = client.converse(modelId=CLAUDE, messages=messages, toolConfig=TOOLS)
        assert second["output"]["message"]["content"] == [{"text": 'The tool answered: {"degrees":21}'}]


def test_boto3_runs_a_tool_loop_streamed_with_thinking(service: Simulator) -> None:
    with bedrock(service) as client:
        thinking = {"thinking": {"type": "enabled", "budget_tokens": 1024}}
        body = {"modelId": CLAUDE, "toolConfig": TOOLS, "additionalModelRequestFields": thinking}
        message, reason = _gathered(client.converse_stream(messages=WEATHER, **body)["stream"])
        assert reason == "tool_use"
        assert [next(iter(block)) for block in message["content"]] == ["reasoningContent", "text", "toolUse"]
        call = message["content"][-1]["toolUse"]
        result = {"toolResult": {"toolUseId": call["toolUseId"], "content": [{"text": "21 degrees"}]}}
        turns = [*WEATHER, message, {"role": "user", "content": [result]}]
        final, reason = _gathered(client.converse_stream(messages=turns, **body)["stream"])
        assert (final["content"][-1], reason) == ({"text": "The tool answered: 21 degrees"}, "end_turn")


def _gathered(events: Any) -> tuple[Any, str]:
    """A message out of its stream, as users of the service put it together."""
    blocks: dict[int, Any] = {}
    reason = ""
    for event in events:
        kind, data = next(iter(event.items()))
        if kind == "contentBlockStart":
            blocks[data["contentBlockIndex"]] = {"toolUse": {**data["start"]["toolUse"], "input": ""}}
        elif kind == "contentBlockDelta":
            piece = data["delta"]
            block = blocks.setdefault(data["contentBlockIndex"], {})
            if "text" in piece:
                block["text"] = block.get("text", "") + piece["text"]
            elif "toolUse" in piece:
                block["toolUse"]["input"] += piece["toolUse"]["input"]
            else:
                parts = block.setdefault("reasoningContent", {"reasoningText": {"text": "", "signature": ""}})[
                    "reasoningText"
                ]
                for name, value in piece["reasoningContent"].items():
                    parts[name] += value
        elif kind == "messageStop":
            reason = data["stopReason"]
    for block in blocks.values():
        if "toolUse" in block:
            block["toolUse"]["input"] = json.loads(block["toolUse"]["input"])
    return {"role": "assistant", "content": [blocks[index] for index in sorted(blocks)]}, reason


def test_boto3_counts_tokens_tools_included(service: Simulator) -> None:
    with bedrock(service) as client:
        plain = client.count_tokens(modelId=CLAUDE, input={"converse": {"messages": HELLO}})["inputTokens"]
        tools = client.count_tokens(modelId=CLAUDE, input={"converse": {"messages": HELLO, "toolConfig": TOOLS}})[
            "inputTokens"
        ]
        assert 0 < plain < tools


def test_boto3_sees_the_services_own_exceptions(service: Simulator) -> None:
    with (
        bedrock(service) as client,
        pytest.raises(client.exceptions.ValidationException, match="must start with a user message"),
    ):
        client.converse(modelId=CLAUDE, messages=[{"role": "assistant", "content": [{"text": "x"}]}])
    script = parse_script('[[turn]]\nstatus = [429, 404, 403]\nmessage = "no"\ntext = "x"')
    with running_simulator("bedrock", script=script) as refusing, bedrock(refusing) as client:
        for code in ("ThrottlingException", "ResourceNotFoundException", "AccessDeniedException"):
            with pytest.raises(ClientError) as refused:
                client.converse(modelId=CLAUDE, messages=HELLO)
            assert refused.value.response["Error"]["Code"] == code


def test_boto3_sees_throttling_in_mid_stream() -> None:
    script = parse_script(
        '[[turn]]\nparts = [{ text = "Hello" }, { exception = "ThrottlingException", message = "slow down" }]'
    )
    with running_simulator("bedrock", script=script) as throttled, bedrock(throttled) as client:
        stream_ = client.converse_stream(modelId=CLAUDE, messages=HELLO)["stream"]
        with closing(stream_), pytest.raises(EventStreamError, match=r"throttlingException.*slow down"):
            list(stream_)


# --- InvokeModel, as Anthropic's own client for Bedrock uses it


@pytest.fixture(scope="module")
def invoked() -> Iterator[Simulator]:
    with running_simulator("bedrock.invoke") as running:
        yield running


def claude(simulator: Simulator) -> anthropic.AnthropicBedrock:
    keys = {"aws_access_key": "key", "aws_secret_key": "secret", "aws_region": "us-east-1"}
    return anthropic.AnthropicBedrock(base_url=simulator.url, max_retries=0, timeout=60, **keys)  # type: ignore[arg-type]


def test_anthropics_client_for_bedrock_runs_a_tool_loop(invoked: Simulator) -> None:
    tool: Any = {"name": "get_weather", "description": "d", "input_schema": SCHEMA}
    messages: Any = [{"role": "user", "content": 'Call get_weather {"city": "Paris"}'}]
    with claude(invoked) as client:
        with client.messages.stream(model=CLAUDE, max_tokens=99, messages=messages, tools=[tool]) as response:
            first = response.get_final_message()
        call = first.content[-1]
        assert call.type == "tool_use"
        assert (call.input, first.stop_reason) == ({"city": "Paris"}, "tool_use")
        turns: Any = [
            *messages,
            {"role": "assistant", "content": [block.to_dict() for block in first.content]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "21"}]},
        ]
        second = client.messages.create(model=CLAUDE, max_tokens=99, messages=turns, tools=[tool])
    assert second.content[0].to_dict()["text"] == "The tool answered: 21"
    assert invoked.requests[-1].path.endswith("/invoke")


def test_anthropics_client_for_bedrock_sees_errors(invoked: Simulator) -> None:
    with claude(invoked) as client, pytest.raises(anthropic.BadRequestError, match="at least one message"):
        client.messages.create(model=CLAUDE, max_tokens=9, messages=[])
    script = parse_script(
        '[[turn]]\nparts = [{ text = "Hello" }, { exception = "ThrottlingException", message = "slow down" }]'
    )
    with (
        running_simulator("bedrock.invoke", script=script) as throttled,
        claude(throttled) as client,
        pytest.raises(Exception, match=r"(?i)throttl|slow down"),
        client.messages.stream(model=CLAUDE, max_tokens=9, messages=[{"role": "user", "content": "x"}]) as response,
    ):
        response.until_done()


def test_boto3_invokes_a_model_with_anthropics_body(invoked: Simulator) -> None:
    with bedrock(invoked) as client:
        body = {
            "anthropic_version": "bedrock-2023-05-31",
            "max_tokens": 99,
            "messages": [{"role": "user", "content": "hi"}],
        }
        response = json.loads(client.invoke_model(modelId=CLAUDE, body=json.dumps(body))["body"].read())
        assert response["content"] == [{"type": "text", "text": "You said: hi"}]
        events = client.invoke_model_with_response_stream(modelId=CLAUDE, body=json.dumps(body))["body"]
        kinds = [json.loads(event["chunk"]["bytes"])["type"] for event in events]
        assert (kinds[0], kinds[-1]) == ("message_start", "message_stop")
        counted = client.count_tokens(modelId=CLAUDE, input={"invokeModel": {"body": json.dumps(body)}})
        assert counted["inputTokens"] == response["usage"]["input_tokens"]

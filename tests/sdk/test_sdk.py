"""The official SDKs of both languages read every stream, whole reply and error that we emit, with equal results.

Both languages are needed, because each SDK silently loses data where the other one raises.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import dragoman.dialects as registry
from dragoman.conformance.laws import EMPTY_REQUEST, decode_events, encode_events, fixed_environment
from dragoman.conformance.samples import STREAMS
from dragoman.errors import Fault
from dragoman.model.assemble import assemble_reply
from dragoman.model.blocks import Reasoning, Text, ToolCall
from dragoman.model.conversation import Reply
from dragoman.model.events import Failed
from dragoman.response_stream import ResponseFilters, ResponseTranslator, translate_whole_reply
from dragoman.simulator.server import Simulator, running_simulator
from dragoman.translate import plan
from tests.gateway.harness import KEY, GatewayHarness, start_gateway, upstream_config
from tests.sdk.sdk_runners import Outcome, SdkTask, run_node, run_python
from tests.stories.story import stories

SDKS = ("anthropic", "openai", "responses")
STOPS = {
    "anthropic": {"end": "end_turn", "tool": "tool_use", "length": "max_tokens"},
    "openai": {"end": "stop", "tool": "tool_calls", "length": "length"},
    "responses": {"end": "completed", "tool": "completed", "length": "max_output_tokens"},
}


@cache
def streamed() -> dict[str, tuple[SdkTask, Reply | None]]:
    """Return every sample and story as streams for both clients, with the expected replies."""
    tasks: dict[str, tuple[SdkTask, Reply | None]] = {}
    for sdk in SDKS:
        client = registry.get(sdk)
        for title, events in STREAMS.items():
            events_out = ResponseFilters(plan(client, registry.get("openai"), EMPTY_REQUEST)).feed(events)
            expected = None if isinstance(events_out[-1], Failed) else assemble_reply(events_out)
            tasks[f"{sdk} sample {title}"] = (SdkTask(sdk, "stream", encode_events(client, events_out)), expected)
        for story in stories():
            upstream_config = registry.get(story.upstream)
            response = ResponseTranslator(plan(client, upstream_config, EMPTY_REQUEST), fixed_environment())
            body = response.feed(story.stream) + response.close()
            events = decode_events(client, body)
            expected = None if isinstance(events[-1], Failed) else assemble_reply(events)
            tasks[f"{sdk} story {story}"] = (SdkTask(sdk, "stream", body), expected)
    return tasks


@cache
def whole() -> dict[str, tuple[SdkTask, Reply]]:
    tasks = {}
    for sdk in SDKS:
        client = registry.get(sdk)
        for title, events in STREAMS.items():
            events_out = ResponseFilters(plan(client, registry.get("openai"), EMPTY_REQUEST)).feed(events)
            if not isinstance(events_out[-1], Failed):
                reply = assemble_reply(events_out)
                body = client.codec.render_reply(reply, EMPTY_REQUEST, fixed_environment())
                tasks[f"{sdk} {title}"] = (SdkTask(sdk, "whole", body), reply)
    return tasks


@cache
def node_outcomes(kind: str) -> dict[str, Outcome]:
    tasks: dict[str, Any] = dict(streamed() if kind == "streamed" else whole())
    return dict(zip(tasks, run_node([task for task, _ in tasks.values()]), strict=True))


def expected_outcome(sdk: str, reply: Reply) -> Outcome:
    choice = reply.choices[0]
    usage = reply.usage
    prompt = 0 if usage is None else usage.input
    if usage is not None and sdk != "anthropic":
        prompt += usage.cache_read + usage.cache_write
    return {
        "text": "".join(block.text for block in choice.blocks if isinstance(block, Text)),
        "reasoning": "".join(block.text for block in choice.blocks if isinstance(block, Reasoning)),
        "calls": [
            [call.id, call.name, call.arguments if call.form == "text" else json.loads(call.arguments or "{}")]
            for call in choice.blocks
            if isinstance(call, ToolCall)
        ],
        "stop": STOPS[sdk].get(choice.stop.reason.value),
        "usage": [prompt, usage.output if usage else 0],
    }


def check(sdk: str, outcome: Outcome, reply: Reply | None) -> None:
    if reply is None:
        assert "error" in outcome, f"a failed stream was taken for a good one: {outcome}"
        return
    assert "error" not in outcome, outcome
    expected = expected_outcome(sdk, reply)
    if outcome["reasoning"] is None:  # this helper does not return reasoning
        expected.pop("reasoning")
    if outcome["usage"] is None and reply.usage is None:
        expected.pop("usage")
    if reply.choices[0].stop.reason.value == "length":  # a stream contains a truncated call, a whole reply omits it
        expected.pop("calls")
    assert {name: outcome[name] for name in expected} == expected


LANGUAGES = ["python", pytest.param("typescript", marks=pytest.mark.node)]


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize(
    ("kind", "name"), [("streamed", name) for name in streamed()] + [("whole", name) for name in whole()]
)
def test_the_sdks_read_our_responses(kind: str, name: str, language: str) -> None:
    tasks: dict[str, Any] = dict(streamed() if kind == "streamed" else whole())
    task, reply = tasks[name]
    check(task.sdk, run_python(task) if language == "python" else node_outcomes(kind)[name], reply)


FAULTS = [
    Fault("invalid", "messages[0]: expected an object", 400, at="messages[0]"),
    Fault("auth", "no such key", 401),
    Fault("permission", "not yours", 403),
    Fault("not_found", "no such model", 404),
    Fault("too_large", "too large", 413),
    Fault("rate_limit", "slow down", 429, retry_after=2.0),
    Fault("quota", "nothing left", 429),
    Fault("overloaded", "too busy", 529),
    Fault("context_full", "prompt is too long: 9 tokens > 8 maximum", 400),
    Fault("timeout", "took too long", 504),
    Fault("server", "broke", 502),
]


@cache
def refusals() -> dict[str, tuple[SdkTask, Fault]]:
    tasks = {}
    for sdk in SDKS:
        dialect = registry.get(sdk)
        for fault in FAULTS:
            response = dialect.binding.error_response(fault, dialect.codec.render_fault(fault))
            tasks[f"{sdk} {fault.kind}"] = (
                SdkTask(sdk, "whole", response.body, response.status, dict(response.headers)),
                fault,
            )
    return tasks


@cache
def node_refusals() -> dict[str, Outcome]:
    return dict(zip(refusals(), run_node([task for task, _ in refusals().values()]), strict=True))


@pytest.mark.parametrize("name", refusals())
def test_the_python_sdk_reads_our_error(name: str) -> None:
    task, fault = refusals()[name]
    outcome = run_python(task)
    assert outcome["status"] == task.status
    assert fault.message in outcome["message"]


@pytest.mark.node
@pytest.mark.parametrize("name", refusals())
def test_the_typescript_sdk_reads_our_error_like_the_python_sdk(name: str) -> None:
    task, fault = refusals()[name]
    outcome = node_refusals()[name]
    assert outcome["status"] == task.status
    assert fault.message in outcome["message"]
    generic = {"APIError", "APIStatusError"}  # the classes for a status without a class of its own
    errors = {outcome["error"], run_python(task)["error"]}
    assert len(errors) == 1 or errors == generic


def test_a_whole_reply_equals_the_stream() -> None:
    """Read one exchange as a stream and as a whole reply with the Python SDK."""
    body = json.dumps(
        {
            "id": "c",
            "object": "chat.completion",
            "created": 1,
            "model": "m",
            "choices": [
                {
                    "index": 0,
                    "finish_reason": "stop",
                    "message": {
                        "role": "assistant",
                        "content": "hi",
                        "tool_calls": [{"id": "a", "type": "function", "function": {"name": "f", "arguments": "[1]"}}],
                    },
                }
            ],
            "usage": {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7},
        }
    ).encode()
    planned = plan(registry.get("anthropic"), registry.get("openai"), EMPTY_REQUEST)
    raw, _ = translate_whole_reply(planned, body)
    outcome = run_python(SdkTask("anthropic", "whole", raw))
    assert outcome["calls"] == [["a", "f", {"raw_arguments": "[1]"}]]
    assert (outcome["stop"], outcome["usage"]) == ("tool_use", [5, 2])


# --- Google's SDK runs tool loops through the gateway, streamed and whole, with upstreams of every dialect

genai = pytest.importorskip("google.genai", reason="google-genai is not installed")
UPSTREAMS = ("gemini", "anthropic", "openai")


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[GatewayHarness, dict[str, Simulator]]]:
    with ExitStack() as stack:
        simulators = {dialect: stack.enter_context(running_simulator(dialect)) for dialect in UPSTREAMS}
        text = "".join(
            upstream_config(dialect, dialect, simulator.url, f'models = ["gemini-3-{dialect}"]')
            for dialect, simulator in simulators.items()
        )
        yield stack.enter_context(start_gateway(text, Path(tmp_path_factory.mktemp("state")))), simulators


def client(harness: GatewayHarness) -> Any:
    return genai.Client(api_key=KEY, http_options=genai.types.HttpOptions(base_url=harness.url))


def signatures(dialect: str, body: Any) -> list[str]:
    """Return the signatures that an upstream got back, read from its own format."""
    if dialect == "gemini":
        parts = [part for content in body["contents"] for part in content["parts"]]
        return [part["thoughtSignature"] for part in parts if "thoughtSignature" in part]
    if dialect == "anthropic":
        blocks = [block for message in body["messages"] for block in message["content"] if isinstance(block, dict)]
        return [block["signature"] for block in blocks if block["type"] == "thinking"]
    return [entry["signature"] for message in body["messages"] for entry in message.get("reasoning_details", ())]


@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize("dialect", UPSTREAMS)
def test_a_tool_loop_runs_and_returns_signatures(
    environment: tuple[GatewayHarness, dict[str, Simulator]], dialect: str, streamed: bool
) -> None:
    harness, simulators = environment
    seen = simulators[dialect].requests
    before = len(seen)
    ran: list[str] = []

    def get_weather(city: str) -> str:
        """Return the weather."""
        ran.append(city)
        return f"sunny in {city}"

    thinking = genai.types.ThinkingConfig(include_thoughts=True, thinking_budget=2048)
    config = genai.types.GenerateContentConfig(
        tools=[get_weather], thinking_config=thinking, max_output_tokens=8192, system_instruction="Be brief."
    )
    asking = client(harness)  # it closes when the last reference is gone
    chat = asking.chats.create(model=f"gemini-3-{dialect}", config=config)
    question = "Please use get_weather."
    if streamed:
        text = "".join(chunk.text or "" for chunk in chat.send_message_stream(question))
    else:
        text = chat.send_message(question).text
    assert len(ran) == 1
    assert f"sunny in {ran[0]}" in text
    requests = seen[before:]
    assert len(requests) == 2, "one call, one response"
    signatures_sent = signatures(dialect, requests[1].json)
    assert signatures_sent and all(len(each) == 64 for each in signatures_sent), (
        "the simulator's signatures are 64 characters"
    )


def test_googles_sdk_reads_counts_model_lists_and_errors(
    environment: tuple[GatewayHarness, dict[str, Simulator]],
) -> None:
    harness, _ = environment
    asking = client(harness)
    assert asking.models.count_tokens(model="gemini-3-openai", contents="hello there").total_tokens > 0
    assert "models/gemini-3-anthropic" in [model.name for model in asking.models.list()]
    bad = genai.types.Content(role="nobody", parts=[genai.types.Part(text="x")])
    with pytest.raises(genai.errors.ClientError, match=r"contents\[0\].role") as refused:
        asking.models.generate_content(model="gemini-3-openai", contents=[bad])
    assert (refused.value.code, refused.value.status) == (400, "INVALID_ARGUMENT")
    refused_client = genai.Client(api_key="wrong", http_options=genai.types.HttpOptions(base_url=harness.url))
    with pytest.raises(genai.errors.ClientError) as unknown:
        refused_client.models.generate_content(model="gemini-3-openai", contents="x")
    assert unknown.value.code == 401

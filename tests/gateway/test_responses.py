"""The Responses API on the gateway, with the official SDK: loops to every upstream dialect, and going on by an id."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import openai
import pytest

import dragoman.dialects as registry
from dragoman.simulator import Simulator, running_simulator
from tests.gateway.house import KEY, TOOL, House, house, upstream

UPSTREAMS = tuple(name for name in registry.names() if name not in ("bedrock.invoke",))
QUESTION = 'Call get_weather {"city": "Paris"}'
RESULT = "18 degrees and rain"
ROUTE = '[[routes]]\nmatch = "to-{name}"\nupstream = "{name}"\nmodel = "{model}"\n'
MODELS = {"kiro": "claude-sonnet-4.5", "bedrock": "anthropic.claude-sonnet-4-5-20250929-v1:0"}
TOOLS: Any = [{"type": "function", "name": "get_weather", "description": "The weather", "parameters": TOOL}]


@pytest.fixture(scope="module")
def simulators() -> Iterator[dict[str, Simulator]]:
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(running_simulator(name, profile="paranoid" if name == "kiro" else "strict"))
            for name in UPSTREAMS
        }


@pytest.fixture(scope="module")
def home(simulators: dict[str, Simulator], tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    text = "".join(upstream(name, name, simulator.url) for name, simulator in simulators.items())
    text += "".join(ROUTE.format(name=name, model=MODELS.get(name, "sim-model")) for name in UPSTREAMS)
    with house(text, tmp_path_factory.mktemp("state")) as running:
        yield running


@pytest.fixture(params=UPSTREAMS)
def target(request: pytest.FixtureRequest, simulators: dict[str, Simulator]) -> Iterator[str]:
    """The name of an upstream whose simulator is asked exactly twice, and refuses nothing."""
    simulator = simulators[request.param]
    before = simulator.total
    yield request.param
    asked = simulator.requests[before - simulator.total :]
    assert [each.status for each in asked] == [200, 200], asked


@pytest.fixture
def client(home: House) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(api_key=KEY, base_url=f"{home.url}/v1", max_retries=0) as client:
        yield client


def asking(client: openai.OpenAI, how: str, asked: Any) -> Any:
    if how == "whole":
        return client.responses.create(**asked)
    with client.responses.stream(**asked) as stream:
        return stream.get_final_response()


@pytest.mark.parametrize("how", ["stream", "whole"])
def test_openai_sdk_runs_a_tool_loop(client: openai.OpenAI, target: str, how: str) -> None:
    said: Any = [{"role": "user", "content": QUESTION}]
    asked: Any = {"model": f"to-{target}", "input": said, "tools": TOOLS, "store": False}
    first = asking(client, how, asked)
    [call] = [item for item in first.output if item.type == "function_call"]
    assert (call.name, json.loads(call.arguments)) == ("get_weather", {"city": "Paris"})
    said += [item.model_dump(exclude_none=True, exclude={"parsed_arguments"}) for item in first.output]
    said += [{"type": "function_call_output", "call_id": call.call_id, "output": RESULT}]
    last = asking(client, how, asked)
    assert last.status == "completed"
    assert RESULT in last.output_text
    assert last.usage.input_tokens > 0 and last.usage.output_tokens > 0


ELSEWHERE = [name for name in UPSTREAMS if name != "responses"]


@pytest.mark.parametrize("how", ["stream", "whole"])
@pytest.mark.parametrize("name", ELSEWHERE)
def test_a_client_goes_on_by_the_id_of_the_last_answer(client: openai.OpenAI, name: str, how: str) -> None:
    asked: Any = {"model": f"to-{name}", "tools": TOOLS, "instructions": "Be brief."}
    first = asking(client, how, {**asked, "input": QUESTION})
    [call] = [item for item in first.output if item.type == "function_call"]
    result: Any = [{"type": "function_call_output", "call_id": call.call_id, "output": RESULT}]
    last = asking(client, how, {**asked, "input": result, "previous_response_id": first.id})
    assert RESULT in last.output_text
    assert last.id != first.id


def test_an_unknown_previous_response_is_a_clear_refusal(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(model="to-anthropic", input="go on", previous_response_id="resp_nobody")
    assert refused.value.param == "previous_response_id"
    assert refused.value.code == "previous_response_not_found"
    assert "whole conversation as `input`" in str(refused.value)


def test_an_answer_that_may_not_be_stored_is_not_kept(client: openai.OpenAI) -> None:
    first = client.responses.create(model="to-openai", input="hello", store=False)
    with pytest.raises(openai.BadRequestError, match="previous_response_id"):
        client.responses.create(model="to-openai", input="go on", previous_response_id=first.id)


def test_at_home_the_previous_response_is_the_upstreams_affair(
    client: openai.OpenAI, simulators: dict[str, Simulator]
) -> None:
    client.responses.create(model="to-responses", input="go on", previous_response_id="resp_theirs")
    sent = json.loads(simulators["responses"].requests[-1].body)
    assert sent["previous_response_id"] == "resp_theirs"


def test_endpoints_that_are_not_offered_are_refused_in_the_dialects_words(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="not offered here"):
        client.responses.compact(model="to-openai", input="x")
    with pytest.raises(openai.NotFoundError, match="not offered here"):
        client.post("/responses/resp_1/rate", cast_to=object)


def test_input_tokens_are_counted(client: openai.OpenAI) -> None:
    bare = client.responses.input_tokens.count(model="to-responses", input="hello")
    tools = client.responses.input_tokens.count(model="to-openai", input="hello", tools=TOOLS)
    assert tools.input_tokens > bare.input_tokens > 0

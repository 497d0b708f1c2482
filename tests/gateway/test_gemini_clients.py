"""A client of generateContent at the gateway, byte by byte: routes, keys, arrays, lists."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dragoman.simulator.server import running_simulator
from tests.gateway.house import KEY, House, house, upstream

BODY: Any = {"contents": [{"role": "user", "parts": [{"text": "hello"}]}]}


@pytest.fixture(scope="module", params=["gemini", "anthropic"])
def home(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    with running_simulator(request.param) as simulator:
        text = upstream("u", request.param, simulator.url, 'models = ["m", "maker/m"]')
        with house(text, Path(tmp_path_factory.mktemp("state"))) as running:
            yield running


def said(response: Any) -> str:
    return "".join(part.get("text", "") for part in response["candidates"][0]["content"]["parts"])


@pytest.mark.parametrize(
    "path", ["/v1beta/models/m", "/v1/models/m", "/v1beta/models/maker%2Fm", "/v1beta/models/maker/m"]
)
def test_a_question_is_answered_under_every_spelling_of_its_path(home: House, path: str) -> None:
    status, _, body = home.ask(f"{path}:generateContent", BODY, key=None, x_goog_api_key=KEY)
    assert status == 200 and said(json.loads(body))


def test_a_stream_is_events_or_one_array_as_the_client_says(home: House) -> None:
    path = "/v1beta/models/m:streamGenerateContent"
    status, headers, events = home.ask(f"{path}?alt=sse", BODY)
    assert (status, headers["content-type"]) == (200, "text/event-stream")
    frames = [json.loads(frame.removeprefix("data: ")) for frame in events.decode().split("\n\n") if frame]
    status, headers, array = home.ask(path, BODY)
    assert (status, headers["content-type"]) == (200, "application/json")
    assert "".join(map(said, json.loads(array))) == "".join(map(said, frames)) != ""
    assert json.loads(array)[-1]["candidates"][0]["finishReason"] == "STOP"


def test_a_key_in_the_query_is_not_taken(home: House) -> None:
    status, _, body = home.ask(f"/v1beta/models/m:generateContent?key={KEY}", BODY, key=None)
    assert status == 401
    assert json.loads(body)["error"]["status"] == "UNAUTHENTICATED"


def test_models_are_listed_in_the_familys_shape(home: House) -> None:
    for path in ("/v1beta/models", "/v1/models"):
        _, _, body = home.ask(path, method="GET", key=None, x_goog_api_key=KEY)
        assert "models/m" in [model["name"] for model in json.loads(body)["models"]]
    _, _, body = home.ask("/v1beta/models/m", method="GET", key=None, x_goog_api_key=KEY)
    assert json.loads(body)["name"] == "models/m"
    status, _, body = home.ask("/v1beta/models/none", method="GET", key=None, x_goog_api_key=KEY)
    assert (status, json.loads(body)["error"]["status"]) == (404, "NOT_FOUND")
    _, _, body = home.ask("/v1/models", method="GET")
    assert "data" in json.loads(body)


def test_tokens_are_counted(home: House) -> None:
    _, _, body = home.ask("/v1beta/models/m:countTokens", BODY)
    assert json.loads(body)["totalTokens"] > 0


SCHEMA: Any = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def by_messages(home: House) -> None:
    body: Any = {
        "model": "m",
        "max_tokens": 1000,
        "messages": [{"role": "user", "content": "call get_weather"}],
        "tools": [{"name": "get_weather", "input_schema": SCHEMA}],
    }
    content = json.loads(home.ask("/v1/messages", body)[2])["content"]
    used = next(block for block in content if block["type"] == "tool_use")
    result = {"type": "tool_result", "tool_use_id": used["id"], "content": "sunny"}
    body["messages"] += [{"role": "assistant", "content": content}, {"role": "user", "content": [result]}]
    assert home.ask("/v1/messages", body)[0] == 200


def by_chat(home: House) -> None:
    tool = {"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}}
    body: Any = {"model": "m", "messages": [{"role": "user", "content": "call get_weather"}], "tools": [tool]}
    message = json.loads(home.ask("/v1/chat/completions", body)[2])["choices"][0]["message"]
    result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "sunny"}
    body["messages"] += [message, result]
    assert home.ask("/v1/chat/completions", body)[0] == 200


def by_responses(home: House) -> None:
    tool = {"type": "function", "name": "get_weather", "parameters": SCHEMA}
    asked: list[Any] = [{"role": "user", "content": "call get_weather"}]
    body: Any = {
        "model": "m",
        "input": asked,
        "tools": [tool],
        "store": False,
        "include": ["reasoning.encrypted_content"],
    }
    output = json.loads(home.ask("/v1/responses", body)[2])["output"]
    called = next(item for item in output if item["type"] == "function_call")
    body["input"] = [*asked, *output, {"type": "function_call_output", "call_id": called["call_id"], "output": "sunny"}]
    assert home.ask("/v1/responses", body)[0] == 200


@pytest.mark.parametrize("loop", [by_messages, by_chat, by_responses])
def test_a_client_of_another_family_gives_gemini_its_signature_back(loop: Any, tmp_path: Path) -> None:
    with (
        running_simulator("gemini") as simulator,
        house(upstream("u", "gemini", simulator.url, 'models = ["m"]'), tmp_path) as home,
    ):
        loop(home)
        first, second = simulator.requests
        sent: Any = second.json
        parts = [part for content in sent["contents"] for part in content["parts"]]
        (call,) = [part for part in parts if "functionCall" in part]
        assert len(call["thoughtSignature"]) == 64, "the simulator's own, not the one for calls of other origin"
        assert first.status == second.status == 200

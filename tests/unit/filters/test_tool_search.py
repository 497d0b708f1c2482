"""A tool search that the service runs, between Anthropic and Responses: requests, histories and replies, both ways."""

from __future__ import annotations

import json
from typing import Any

import pytest

import dragoman.dialects as registry
from dragoman import translate
from dragoman.dialects.base import SYSTEM_ENVIRONMENT
from dragoman.response_stream import ResponseTranslator, translate_whole_reply
from dragoman.wire.http import HttpRequest

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
QUERY = {"query": "weather"}
REFERENCES = [{"type": "tool_reference", "tool_name": "get_weather"}]
SEARCH_BLOCKS: list[Any] = [
    {"type": "server_tool_use", "id": "srvtoolu_1", "name": "tool_search_tool_bm25", "input": QUERY},
    {
        "type": "tool_search_tool_result",
        "tool_use_id": "srvtoolu_1",
        "content": {"type": "tool_search_tool_search_result", "tool_references": REFERENCES},
    },
]
DEFERRED = {"name": "get_weather", "description": "Weather", "input_schema": SCHEMA, "defer_loading": True}
FUNCTION = {"type": "function", "name": "get_weather", "description": "Weather", "parameters": SCHEMA}
SERVER = {"execution": "server", "call_id": None, "status": "completed"}
SEARCH_ITEMS: list[Any] = [
    {"type": "tool_search_call", "id": "tsc_1", **SERVER, "arguments": QUERY},
    {"type": "tool_search_output", "id": "tso_1", **SERVER, "tools": [{**FUNCTION, "defer_loading": True}]},
]
CLAUDE: dict[str, Any] = {
    "model": "claude-sonnet-4-5",
    "max_tokens": 100,
    "tools": [
        {"type": "tool_search_tool_bm25_20251119", "name": "tool_search_tool_bm25"},
        {"name": "plain", "description": "Plain", "input_schema": SCHEMA},
        DEFERRED,
    ],
    "messages": [
        {"role": "user", "content": "weather?"},
        {
            "role": "assistant",
            "content": [*SEARCH_BLOCKS, {"type": "tool_use", "id": "t1", "name": "get_weather", "input": {}}],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "sunny"}]},
    ],
}
OPENAI: dict[str, Any] = {
    "model": "gpt-5.4",
    "tools": [{"type": "tool_search"}, {**FUNCTION, "name": "plain"}, {**FUNCTION, "defer_loading": True}],
    "input": [
        {"type": "message", "role": "user", "content": "weather?"},
        *SEARCH_ITEMS,
        {"type": "function_call", "call_id": "t1", "name": "get_weather", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "t1", "output": "sunny"},
    ],
}
BODIES = {"anthropic": ("/v1/messages", CLAUDE), "responses": ("/v1/responses", OPENAI)}


def planned(client: str, upstream: str, model: str, **changes: Any) -> translate.Plan:
    path, body = BODIES[client]
    dialect = registry.get(client)
    call = dialect.binding.match(HttpRequest("POST", path, "", (), json.dumps({**body, **changes}).encode()))
    assert call is not None
    return translate.plan(dialect, registry.get(upstream), dialect.codec.parse_request(call), model=model)


def sent(plan: translate.Plan) -> Any:
    return plan.call().body


def test_a_search_of_claude_becomes_one_of_responses() -> None:
    plan = planned("anthropic", "responses", "gpt-5.4")
    body = sent(plan)
    assert body["tools"][0] == {"type": "tool_search"}
    assert [tool.get("defer_loading") for tool in body["tools"]] == [None, None, True]
    _, call, output, *rest = body["input"]
    assert call == {"type": "tool_search_call", **SERVER, "arguments": QUERY}
    assert (output["type"], output["execution"]) == ("tool_search_output", "server")
    assert [tool["name"] for tool in output["tools"]] == ["get_weather"]
    assert [item["type"] for item in rest] == ["function_call", "function_call_output"]
    assert {(note.rule, note.action) for note in plan.notes} == {("tools.search", "changed")}


def test_a_search_of_responses_becomes_one_of_claude() -> None:
    plan = planned("responses", "anthropic", "claude-sonnet-4-5")
    body = sent(plan)
    assert body["tools"][0]["type"] == "tool_search_tool_bm25_20251119"
    assert [tool.get("defer_loading") for tool in body["tools"]] == [None, None, True]
    search, found, call = body["messages"][1]["content"]
    assert (search["type"], search["id"], search["input"]) == ("server_tool_use", "srvtoolu_tsc_1", QUERY)
    assert (found["tool_use_id"], found["content"]["tool_references"]) == ("srvtoolu_tsc_1", REFERENCES)
    assert call["name"] == "get_weather"
    assert "tools.deferred" not in {note.rule for note in plan.notes}


def test_a_tool_that_only_the_result_of_a_search_defines_is_declared_as_a_deferred_one() -> None:
    body = sent(planned("responses", "anthropic", "claude-sonnet-4-5", tools=OPENAI["tools"][:2]))
    assert [tool["name"] for tool in body["tools"]] == ["tool_search_tool_bm25", "plain", "get_weather"]
    assert body["tools"][2]["defer_loading"] is True


@pytest.mark.parametrize(
    ("client", "upstream", "model"),
    [("anthropic", "responses", "gpt-5"), ("anthropic", "openai", "gpt-5.4"), ("responses", "anthropic", "kimi-k2")],
)
def test_a_model_without_a_search_gets_the_tools_loaded_and_the_history_as_text(
    client: str, upstream: str, model: str
) -> None:
    text = json.dumps(sent(planned(client, upstream, model)))
    assert "get_weather" in text
    assert "defer_loading" not in text
    assert "tool_search_tool_bm25_" not in text and '"tool_search"' not in text


@pytest.mark.parametrize("client", list(BODIES))
def test_a_search_translated_to_the_other_dialect_and_back_is_the_same(client: str) -> None:
    other = {"anthropic": "responses", "responses": "anthropic"}[client]
    body = sent(planned(client, other, {"responses": "gpt-5.4", "anthropic": "claude-sonnet-4-5"}[other]))
    path = BODIES[other][0]
    dialect = registry.get(other)
    call = dialect.binding.match(HttpRequest("POST", path, "", (), json.dumps({"model": "m", **body}).encode()))
    assert call is not None
    model = {"responses": "gpt-5.4", "anthropic": "claude-sonnet-4-5"}[client]
    back = translate.plan(dialect, registry.get(client), dialect.codec.parse_request(call), model=model).call().body
    assert isinstance(back, dict)
    assert _plain(_searches(back)) == _plain(_searches(BODIES[client][1]))


def _searches(body: Any) -> list[Any]:
    """The tools, and the items or blocks of searches."""
    blocks = [block for message in body.get("messages", ()) for block in message["content"] if isinstance(block, dict)]
    return [body["tools"], [each for each in (*blocks, *body.get("input", ())) if "search" in json.dumps(each)[:90]]]


def _plain(value: Any) -> Any:
    """The value without ids and types of messages, which each family has its own of."""
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items() if name not in ("id", "tool_use_id", "strict")}
    return value


def _reply(client: str, upstream: str, model: str, body: dict[str, Any]) -> Any:
    plan = planned(client, upstream, model)
    reply, _ = translate_whole_reply(plan, json.dumps(body).encode(), SYSTEM_ENVIRONMENT)
    return json.loads(reply)


def test_searches_of_replies_are_written_in_the_form_of_the_client() -> None:
    text = {"type": "message", "id": "m", "role": "assistant", "status": "completed"}
    items = [*SEARCH_ITEMS, {**text, "content": [{"type": "output_text", "text": "hi", "annotations": []}]}]
    response = {"id": "resp_1", "object": "response", "status": "completed", "model": "gpt-5.4", "output": items}
    content = _reply("anthropic", "responses", "gpt-5.4", response)["content"]
    assert [block["type"] for block in content] == ["server_tool_use", "tool_search_tool_result", "text"]
    assert content[0]["id"] == content[1]["tool_use_id"]
    assert content[1]["content"]["tool_references"] == REFERENCES

    content = [*SEARCH_BLOCKS, {"type": "text", "text": "hi"}]
    _check_output(_reply("responses", "anthropic", "claude-sonnet-4-5", {**MESSAGE, "content": content})["output"])


MESSAGE: dict[str, Any] = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "claude-sonnet-4-5",
    "stop_reason": "end_turn",
    "usage": {"input_tokens": 1, "output_tokens": 1},
}


def _check_output(output: list[Any]) -> None:
    assert [item["type"] for item in output] == ["tool_search_call", "tool_search_output", "message"]
    assert output[0]["arguments"] == QUERY
    assert [tool["name"] for tool in output[1]["tools"]] == ["get_weather"]


def test_a_streamed_search_is_the_same() -> None:
    start = {**MESSAGE, "content": [], "stop_reason": None}
    search, found = SEARCH_BLOCKS
    delta = {"type": "input_json_delta", "partial_json": json.dumps(QUERY)}
    frames: list[dict[str, Any]] = [
        {"type": "message_start", "message": start},
        {"type": "content_block_start", "index": 0, "content_block": {**search, "input": {}}},
        {"type": "content_block_delta", "index": 0, "delta": delta},
        {"type": "content_block_stop", "index": 0},
        {"type": "content_block_start", "index": 1, "content_block": found},
        {"type": "content_block_stop", "index": 1},
        {"type": "content_block_start", "index": 2, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 2, "delta": {"type": "text_delta", "text": "hi"}},
        {"type": "content_block_stop", "index": 2},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 1}},
        {"type": "message_stop"},
    ]
    stream = ResponseTranslator(planned("responses", "anthropic", "claude-sonnet-4-5", stream=True), SYSTEM_ENVIRONMENT)
    data = b"".join(stream.feed(f"event: {frame['type']}\ndata: {json.dumps(frame)}\n\n".encode()) for frame in frames)
    events = [json.loads(line[6:]) for line in (data + stream.close()).decode().splitlines() if line[:6] == "data: "]
    _check_output(events[-1]["response"]["output"])
    done = [event["item"]["type"] for event in events if event["type"] == "response.output_item.done"]
    assert done == ["tool_search_call", "tool_search_output", "message"]

"""A search of the web that the upstream itself makes, between all dialects that have one: requests, replies, history."""

from __future__ import annotations

import json
from typing import Any

import anthropic.types
import openai.types.responses
import pytest
from pydantic import TypeAdapter

import dragoman.dialects as registry
from dragoman import translate
from dragoman.dialects.base import SYSTEM_ENVIRONMENT
from dragoman.model.assemble import reply_events
from dragoman.response_stream import ResponseTranslator, translate_whole_reply
from dragoman.translate import configure_dialect
from dragoman.wire.http import HttpRequest

URL, TITLE, QUERY, TEXT = "https://cats.example/all", "All cats", "cats", "Cats sleep."
LOCATION = {"type": "approximate", "city": "Berlin"}
CLAUDE_TOOL = {"type": "web_search_20250305", "name": "web_search", "max_uses": 3, "allowed_domains": ["cats.example"]}
REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "anthropic": (
        "/v1/messages",
        {"max_tokens": 99, "messages": [{"role": "user", "content": "?"}], "tools": [CLAUDE_TOOL]},
    ),
    "responses": (
        "/v1/responses",
        {
            "input": "?",
            "tools": [{"type": "web_search", "filters": {"allowed_domains": ["cats.example"]}}],
            "include": ["web_search_call.action.sources"],
        },
    ),
    "gemini": (
        "/v1beta/models/m:generateContent",
        {"contents": [{"role": "user", "parts": [{"text": "?"}]}], "tools": [{"googleSearch": {}}]},
    ),
    "openai": (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": "?"}], "tools": [{"type": "openrouter:web_search"}]},
    ),
}
MODELS = {"anthropic": "claude-sonnet-4-5", "responses": "gpt-5.4", "gemini": "gemini-3-pro", "openai": "x/y"}
DIALECTS = [*REQUESTS]
CITED = {"type": "url_citation", "url": URL, "title": TITLE, "start_index": 0, "end_index": 4}
REPLIES: dict[str, dict[str, Any]] = {
    "anthropic": {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude",
        "content": [
            {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": QUERY}},
            {
                "type": "web_search_tool_result",
                "tool_use_id": "srvtoolu_1",
                "content": [
                    {
                        "type": "web_search_result",
                        "url": URL,
                        "title": TITLE,
                        "encrypted_content": "x",
                        "page_age": "1 day",
                    }
                ],
            },
            {
                "type": "text",
                "text": TEXT,
                "citations": [
                    {
                        "type": "web_search_result_location",
                        "url": URL,
                        "title": TITLE,
                        "encrypted_index": "x",
                        "cited_text": "q",
                    }
                ],
            },
        ],
        "stop_reason": "end_turn",
        "usage": {"input_tokens": 1, "output_tokens": 2},
    },
    "responses": {
        "id": "resp_1",
        "object": "response",
        "status": "completed",
        "model": "gpt",
        "output": [
            {
                "type": "web_search_call",
                "id": "ws_1",
                "status": "completed",
                "action": {"type": "search", "query": QUERY, "sources": [{"type": "url", "url": URL}]},
            },
            {
                "type": "message",
                "id": "msg_1",
                "role": "assistant",
                "status": "completed",
                "content": [{"type": "output_text", "text": TEXT, "annotations": [CITED]}],
            },
        ],
        "usage": {"input_tokens": 1, "output_tokens": 2, "total_tokens": 3},
    },
    "gemini": {
        "candidates": [
            {
                "content": {"role": "model", "parts": [{"text": TEXT}]},
                "finishReason": "STOP",
                "index": 0,
                "groundingMetadata": {
                    "webSearchQueries": [QUERY],
                    "groundingChunks": [{"web": {"uri": URL, "title": TITLE}}],
                    "groundingSupports": [{"segment": {"endIndex": 4, "text": "Cats"}, "groundingChunkIndices": [0]}],
                },
            }
        ],
        "responseId": "r1",
    },
    "openai": {
        "id": "c1",
        "object": "chat.completion",
        "model": "m",
        "choices": [
            {
                "index": 0,
                "message": {
                    "role": "assistant",
                    "content": TEXT,
                    "annotations": [
                        {
                            "type": "url_citation",
                            "url_citation": {"url": URL, "title": TITLE, "start_index": 0, "end_index": 4},
                        }
                    ],
                },
                "finish_reason": "stop",
            }
        ],
    },
}


def dialect(name: str) -> Any:
    found = registry.get(name)
    return configure_dialect(found, {"web_search": "openrouter"}) if name == "openai" else found


def planned(client: str, upstream: str, **changes: Any) -> translate.Plan:
    path, body = REQUESTS[client]
    whole = {"model": "m", **body, **changes}
    call = dialect(client).binding.match(HttpRequest("POST", path, "", (), json.dumps(whole).encode()))
    assert call is not None
    conversation = dialect(client).codec.parse_request(call)
    return translate.plan(dialect(client), dialect(upstream), conversation, model=MODELS[upstream])


def rules(plan: translate.Plan) -> list[str]:
    return [note.rule for note in plan.notes]


def body_of(plan: translate.Plan) -> Any:
    return plan.call().body


def sent(client: str, upstream: str, **changes: Any) -> Any:
    return body_of(planned(client, upstream, **changes))


def answered(client: str, upstream: str) -> Any:
    body, _ = translate_whole_reply(planned(client, upstream), json.dumps(REPLIES[upstream]).encode())
    return json.loads(body)


# --- requests


@pytest.mark.parametrize("client", DIALECTS)
def test_every_dialect_gets_its_own_tool(client: str) -> None:
    tools: dict[str, dict[str, Any]] = {
        "anthropic": {"type": "web_search_20250305", "name": "web_search"},
        "responses": {"type": "web_search"},
        "gemini": {"googleSearch": {}},
        "openai": {"type": "openrouter:web_search"},
    }
    for upstream in DIALECTS:
        plan = planned(client, upstream)
        [tool] = body_of(plan)["tools"]
        assert tool.items() >= tools[upstream].items() or upstream == client
        assert ("search.native" in rules(plan)) is (client != upstream)
        assert "foreign.tool" not in rules(plan)


def test_options_are_carried_or_noted() -> None:
    tool = {**CLAUDE_TOOL, "user_location": LOCATION}
    body = sent("anthropic", "responses", tools=[tool])
    assert body["tools"] == [
        {"type": "web_search", "filters": {"allowed_domains": ["cats.example"]}, "user_location": LOCATION}
    ]
    assert body["max_tool_calls"] == 3 and body["include"] == ["web_search_call.action.sources"]
    [shown] = sent("anthropic", "openai", tools=[tool])["tools"]
    assert shown["parameters"] == {"allowed_domains": ["cats.example"], "user_location": LOCATION}
    blocked = {"type": "web_search_20250305", "name": "web_search", "blocked_domains": ["dogs.example"], "strict": True}
    for upstream, lost in (("responses", 2), ("gemini", 2), ("openai", 1)):
        plan = planned("anthropic", upstream, tools=[blocked])
        assert [note.action for note in plan.notes if note.rule == "search.option"] == ["dropped"] * lost
    back = sent("responses", "anthropic", tools=[{"type": "web_search", "search_context_size": "low"}])
    assert back["tools"] == [{"type": "web_search_20250305", "name": "web_search"}]


def test_a_search_model_of_chat_gets_the_field_and_its_clients_may_ask_for_it() -> None:
    chat = registry.get("openai")
    plan = planned("anthropic", "openai", tools=[{**CLAUDE_TOOL, "user_location": LOCATION}])
    plan = translate.plan(plan.client, chat, plan.original, model="gpt-4o-search-preview")
    body = body_of(plan)
    assert "tools" not in body
    assert body["web_search_options"] == {"user_location": {"type": "approximate", "approximate": {"city": "Berlin"}}}
    asked = {"messages": [{"role": "user", "content": "?"}], "web_search_options": {"search_context_size": "low"}}
    call = chat.binding.match(
        HttpRequest("POST", "/v1/chat/completions", "", (), json.dumps({"model": "m", **asked}).encode())
    )
    assert call is not None
    conversation = chat.codec.parse_request(call)
    own = translate.plan(chat, chat, conversation)
    assert own.passes and body_of(own).items() >= asked.items()
    other = body_of(translate.plan(chat, registry.get("responses"), conversation))
    assert other["tools"] == [{"type": "web_search", "search_context_size": "low"}]


def test_a_forced_search_is_forced_where_it_can_be() -> None:
    choice = {"type": "tool", "name": "web_search"}
    assert sent("anthropic", "responses", tool_choice=choice)["tool_choice"] == "required"
    for upstream in ("gemini", "openai"):
        plan = planned("anthropic", upstream, tool_choice=choice)
        assert [note.action for note in plan.notes if note.rule == "tools.choice"] == ["dropped"]
        assert not body_of(plan).keys() & {"tool_choice", "toolConfig"}


# --- replies


@pytest.mark.parametrize("upstream", DIALECTS)
def test_claude_clients_get_the_search_its_pages_and_citations(upstream: str) -> None:
    reply = answered("anthropic", upstream)
    message = anthropic.types.Message.model_validate(reply)
    kinds = [block.type for block in message.content]
    assert sorted(kinds) == ["server_tool_use", "text", "web_search_tool_result"]
    assert kinds.index("server_tool_use") + 1 == kinds.index("web_search_tool_result")
    blocks = {block["type"]: block for block in reply["content"]}
    search, found = blocks["server_tool_use"], blocks["web_search_tool_result"]
    assert search["name"] == "web_search" and search["input"]["query"] == ("" if upstream == "openai" else QUERY)
    assert found["tool_use_id"] == search["id"] and found["content"][0]["url"] == URL
    assert found["content"][0]["title"] == ("cats.example" if upstream == "responses" else TITLE)
    assert blocks["text"]["citations"][0]["url"] == URL and blocks["text"]["text"] == TEXT
    if upstream != "anthropic":
        assert reply["usage"]["server_tool_use"]["web_search_requests"] == 1


@pytest.mark.parametrize("upstream", DIALECTS)
def test_clients_of_responses_get_one_item(upstream: str) -> None:
    reply = answered("responses", upstream)
    openai.types.responses.Response.model_validate(reply)
    [item] = [each for each in reply["output"] if each["type"] == "web_search_call"]
    TypeAdapter(openai.types.responses.ResponseFunctionWebSearch).validate_python(item)
    assert item["status"] == "completed" and item["action"]["sources"] == [{"type": "url", "url": URL}]
    [message] = [each for each in reply["output"] if each["type"] == "message"]
    assert message["content"][0]["annotations"][0]["url"] == URL


@pytest.mark.parametrize("upstream", DIALECTS)
def test_clients_of_gemini_get_the_grounding(upstream: str) -> None:
    [candidate] = answered("gemini", upstream)["candidates"]
    grounding = candidate["groundingMetadata"]
    assert grounding["groundingChunks"][0]["web"]["uri"] == URL
    assert grounding.get("webSearchQueries", [QUERY]) == [QUERY]
    assert [part["text"] for part in candidate["content"]["parts"]] == [TEXT]


@pytest.mark.parametrize("upstream", DIALECTS)
def test_clients_of_chat_get_citations(upstream: str) -> None:
    message = answered("openai", upstream)["choices"][0]["message"]
    assert message["content"] == TEXT and message["annotations"][0]["url_citation"]["url"] == URL


def stream_of(upstream: str) -> bytes:
    """Return the stream of the reply, as the simulator of its dialect would send it."""
    home = dialect(upstream)
    reply = home.codec.parse_reply(json.dumps(REPLIES[upstream]).encode(), planned(upstream, upstream).translated)
    encoder = home.codec.encoder(planned(upstream, upstream).original, SYSTEM_ENVIRONMENT)
    frames = [home.binding.encode_frame(payload) for payload in encoder.feed(reply_events(reply))]
    return b"".join(frames)


@pytest.mark.parametrize("upstream", DIALECTS)
@pytest.mark.parametrize("client", DIALECTS)
def test_a_stream_has_the_same_content_as_a_whole_reply(client: str, upstream: str) -> None:
    plan = planned(client, upstream)
    translator = ResponseTranslator(plan)
    data = translator.feed(stream_of(upstream)) + translator.close()
    assert translator.fault is None
    home = dialect(client)
    reader = home.codec.decoder(plan.original, SYSTEM_ENVIRONMENT)
    events = [event for frame in home.binding.frame_decoder().feed(data) for event in reader.feed(frame) or ()]
    whole = home.codec.parse_reply(json.dumps(answered(client, upstream)).encode(), plan.original)
    kinds = [type(event.block).__name__ for event in events if hasattr(event, "block")]
    assert kinds == [type(block).__name__ for block in whole.choices[0].blocks]
    shown = json.dumps([repr(event) for event in events])
    assert shown.count(URL) >= 1 and TEXT in shown


# --- history


def history(client: str, upstream: str) -> list[Any]:
    """Return the messages that a client sends after it has got the reply of this upstream."""
    reply = answered(client, upstream)
    if client == "responses":
        asked: list[Any] = [{"type": "message", "role": "user", "content": "?"}]
        return [*asked, *reply["output"], {"type": "message", "role": "user", "content": "and dogs?"}]
    user = {"role": "user", "content": "?"}
    return [user, {"role": "assistant", "content": reply["content"]}, {"role": "user", "content": "and dogs?"}]


@pytest.mark.parametrize("field", ["messages", "input"])
@pytest.mark.parametrize("first", DIALECTS)
@pytest.mark.parametrize("then", [*DIALECTS, "kiro", "bedrock", "ollama"])
def test_a_searched_conversation_continues_on_any_upstream(field: str, first: str, then: str) -> None:
    """Nothing of a search is sent to a service that cannot read it, and what was found is not lost."""
    client = "anthropic" if field == "messages" else "responses"
    body = {"model": "m", **REQUESTS[client][1], field: history(client, first)}
    path = REQUESTS[client][0]
    call = dialect(client).binding.match(HttpRequest("POST", path, "", (), json.dumps(body).encode()))
    assert call is not None
    conversation = dialect(client).codec.parse_request(call)
    model = MODELS.get(then, "claude-sonnet-4.5")
    shown = translate.plan(dialect(client), dialect(then), conversation, model=model).request().body.decode()
    assert URL in shown and TEXT in shown
    assert ("dragoman1." in shown or "_dgm_" in shown) is False

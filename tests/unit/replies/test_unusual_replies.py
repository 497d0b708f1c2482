"""Replies of real services: empty legacy fields, thinking parts, stop reasons, errors with status 200."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dragoman.dialects import get
from dragoman.errors import UpstreamFault
from dragoman.gateway.response_modes import PassThrough
from dragoman.model.blocks import Reasoning, Text, ToolCall
from dragoman.model.conversation import StopReason
from dragoman.translate import configure_dialect, plan
from dragoman.wire.http import HttpRequest
from tests.unit.replies.translated import (
    CLIENTS,
    ENVIRONMENT,
    decode_stream,
    make_request,
    sse,
    translate_reply,
    translate_stream,
)

# --- empty legacy fields count as absent

EMPTY: list[dict[str, Any]] = [
    {"function_call": {"name": "", "arguments": ""}},
    {"function_call": {"name": None, "arguments": None}},
    {"function_call": {"name": "", "arguments": "{}"}},
    {"function_call": {}},
    {"function_call": ""},
    {"function_call": []},
    {"function_call": None},
    {"tool_calls": []},
    {"tool_calls": None},
    {"tool_calls": ""},
    {"tool_calls": {}},
    {"tool_calls": [None]},
    {"tool_calls": [{}]},
    {"tool_calls": [{"index": 0, "id": "", "type": "function", "function": {"name": "", "arguments": ""}}]},
    {"audio": None, "refusal": "", "annotations": [], "images": []},
    {"audio": {}, "refusal": None, "annotations": None, "reasoning_content": "", "reasoning": None},
    {"role": "", "name": "", "reasoning_details": [], "thinking_blocks": []},
    {"role": None, "refusal": [], "reasoning_content": {}},
]


def chat(message: dict[str, Any] | None, finish: Any = "stop", **more: Any) -> dict[str, Any]:
    choice: dict[str, Any] = {"index": 0, "message": message, "finish_reason": finish, **more}
    return {"id": "c1", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}


def chunk(delta: Any, finish: Any = None, **more: Any) -> dict[str, Any]:
    choice: dict[str, Any] = {"index": 0, "delta": delta, "finish_reason": finish, **more}
    return {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}


@pytest.mark.parametrize("empty", EMPTY, ids=json.dumps)
def test_empty_legacy_fields_are_nothing(empty: dict[str, Any]) -> None:
    """In whole replies and in streams: next to text, next to a call, and in the last chunk."""
    codec = get("openai").codec
    message = {"role": "assistant", "content": "hi", **empty}
    reply = codec.parse_reply(json.dumps(chat(message)).encode(), make_request())
    assert reply.choices[0].blocks == (Text("hi"),)
    data = sse(chunk({"role": "assistant", "content": "", **empty}), chunk({"content": "hi", **empty}),
               chunk(empty, "stop"), chunk(empty))  # fmt: skip
    assert decode_stream("openai", data).choices[0].blocks == (Text("hi"),)
    call = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"a"'}}
    more = {"index": 0, "id": "", "type": "function", "function": {"name": "", "arguments": ":1}"}}
    empty = {name: value for name, value in empty.items() if name != "tool_calls"}
    data = sse(
        chunk({**empty, "tool_calls": [call]}), chunk({**empty, "tool_calls": [more]}), chunk(empty, "tool_calls")
    )
    (block,) = decode_stream("openai", data).choices[0].blocks
    assert isinstance(block, ToolCall) and (block.id, block.name, block.arguments) == ("call_1", "f", '{"a":1}')


@pytest.mark.parametrize("nothing", [None, "", [], {}])
def test_deltas_choices_and_usage_may_be_nothing(nothing: Any) -> None:
    text = chunk({"content": "hi"})
    frames = [chunk(nothing), {**text, "usage": nothing}, {**text, "choices": nothing}, chunk(nothing, "stop")]
    assert decode_stream("openai", sse(*frames)).choices[0].blocks == (Text("hi"),)
    without_index = {"delta": {"content": "hi"}, "finish_reason": ""}
    frames = [{"id": "c1", "choices": [None, without_index][1:]}, {"id": "c1", "choices": [{"finish_reason": "stop"}]}]
    assert decode_stream("openai", sse(*frames)).choices[0].blocks == (Text("hi"),)


@pytest.mark.parametrize("empty", EMPTY[:6], ids=json.dumps)
def test_an_empty_function_call_that_a_client_echoes_is_nothing(empty: dict[str, Any]) -> None:
    history = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo", **empty},
               {"role": "user", "content": "go"}]  # fmt: skip
    body = json.dumps({"model": "m", "messages": history}).encode()
    binding, codec = get("openai").binding, get("openai").codec
    call = binding.match(HttpRequest("POST", "/v1/chat/completions", "", (), body))
    assert call is not None
    assert codec.parse_request(call).messages[1].blocks == (Text("yo"),)


def test_an_empty_finish_reason_before_done_ends_a_reply_whose_usage_came() -> None:
    """xAI: the chunk with the call has the finish_reason "", followed by usage and [DONE]."""
    call = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    last = {"id": "c1", "choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}}
    reply = decode_stream("openai", sse(chunk({"tool_calls": [call]}, ""), last))
    assert [type(block) for block in reply.choices[0].blocks] == [ToolCall]
    with pytest.raises(UpstreamFault):  # truncated: no usage
        decode_stream("openai", sse(chunk({"content": "hi"}, "")))
    with pytest.raises(UpstreamFault):  # truncated: no [DONE]
        decode_stream("openai", sse(chunk({"content": "hi"}, ""), last, done=False))


# --- reasoning in parts, blocks and errors

THINKING = {"type": "thinking", "thinking": [{"type": "text", "text": "let me "}, {"type": "text", "text": "see"}]}


def test_mistral_thinking_parts_are_reasoning() -> None:
    parts = [THINKING, {"type": "text", "text": "4"}]
    reply = get("openai").codec.parse_reply(
        json.dumps(chat({"role": "assistant", "content": parts})).encode(), make_request()
    )
    data = sse(chunk({"role": "assistant", "content": ""}), chunk({"content": [THINKING]}),
               chunk({"content": [{"type": "text", "text": "4"}]}), chunk({"content": ""}, "stop"))  # fmt: skip
    for each in (reply, decode_stream("openai", data)):
        thought, text = each.choices[0].blocks
        assert isinstance(thought, Reasoning) and thought.text == "let me see"
        assert isinstance(text, Text) and text.text == "4"
    body, _ = translate_reply("openai", "anthropic", chat({"role": "assistant", "content": parts}))
    assert [block["type"] for block in body["content"]] == ["thinking", "text"]
    body, _ = translate_reply("openai", "openai", chat({"role": "assistant", "content": parts}))
    assert body["choices"][0]["message"]["reasoning_content"] == "let me see"
    assert b'"thinking_delta"' in translate_stream("openai", "anthropic", data)


def sent(messages: list[Any], **settings: object) -> list[Any]:
    openai = get("openai")
    body = json.dumps({"model": "m", "messages": messages}).encode()
    call = openai.binding.match(HttpRequest("POST", "/v1/chat/completions", "", (), body))
    assert call is not None
    planned = plan(openai, configure_dialect(openai, settings), openai.codec.parse_request(call))
    rendered: Any = planned.call().body
    messages_sent: list[Any] = rendered["messages"]
    return messages_sent


def test_thinking_parts_of_the_history_go_back_as_parts() -> None:
    user = {"role": "user", "content": "2+2"}
    closed = {**THINKING, "thinking": [{"type": "text", "text": "hm"}], "closed": True}
    parts = [closed, {"type": "text", "text": "4"}]
    assert sent([user, {"role": "assistant", "content": parts}, user])[1]["content"] == parts


def test_reasoning_goes_to_mistral_as_parts() -> None:
    """The setting reasoning_field = "content": Mistral answers 422 to reasoning_content."""
    user = {"role": "user", "content": "2+2"}
    call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    result = {"role": "tool", "tool_call_id": "call_1", "content": "4"}
    assistant = {"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": [call]}
    message = sent([user, assistant, result], reasoning_field="content")[1]
    assert message["content"] == [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}]
    assert "reasoning_content" not in message


@pytest.mark.parametrize(
    "reason",
    ["SAFETY", "RECITATION", "LANGUAGE", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "IMAGE_SAFETY", "MODEL_ARMOR",
     "IMAGE_PROHIBITED_CONTENT", "IMAGE_RECITATION"],
)  # fmt: skip
def test_every_block_of_gemini_is_a_refusal(reason: str) -> None:
    body = {"candidates": [{"content": {"parts": [{"text": "x"}]}, "finishReason": reason}]}
    translated, _ = translate_reply("gemini", "anthropic", body)
    assert translated["stop_reason"] == "refusal"
    translated, _ = translate_reply("gemini", "openai", body)
    assert translated["choices"][0]["finish_reason"] == "content_filter"
    translated, _ = translate_reply("gemini", "gemini", body)
    assert translated["candidates"][0]["finishReason"] == reason


@pytest.mark.parametrize("reason", ["SAFETY", "OTHER", "BLOCKLIST", "PROHIBITED_CONTENT", "MODEL_ARMOR", "JAILBREAK"])
def test_every_blocked_prompt_of_gemini_is_a_refusal(reason: str) -> None:
    translated, _ = translate_reply("gemini", "anthropic", {"promptFeedback": {"blockReason": reason}})
    assert translated["stop_reason"] == "refusal"


@pytest.mark.parametrize(
    ("word", "why"),
    [
        ("sensitive", StopReason.REFUSAL),
        ("content_filter", StopReason.REFUSAL),
        ("SAFETY", StopReason.REFUSAL),
        ("guardrail_intervened", StopReason.REFUSAL),
        ("model_context_window_exceeded", StopReason.CONTEXT),
        ("model_length", StopReason.CONTEXT),
        ("max_tokens", StopReason.LENGTH),
        ("repetition_truncation", StopReason.LENGTH),
        ("eos", StopReason.END),
        ("end_turn", StopReason.END),
    ],
)
def test_stop_words_of_chat_services(word: str, why: StopReason) -> None:
    body = json.dumps(chat({"role": "assistant", "content": "x"}, word)).encode()
    assert get("openai").codec.parse_reply(body, make_request()).choices[0].stop.reason is why
    assert decode_stream("openai", sse(chunk({"content": "x"}), chunk({}, word))).choices[0].stop.reason is why
    translated, notes = translate_reply("openai", "anthropic", chat({"role": "assistant", "content": "x"}, word))
    assert translated["stop_reason"] != "tool_use" and not notes


@pytest.mark.parametrize(
    ("word", "kind"),
    [
        ("error", "server"),
        ("network_error", "server"),
        ("insufficient_system_resource", "overloaded"),
        ("abort", "server"),
        ("timeout", "timeout"),
    ],
)
def test_a_stop_that_is_an_error_is_an_error(word: str, kind: str) -> None:
    body = json.dumps(chat({"role": "assistant", "content": "x"}, word)).encode()
    with pytest.raises(UpstreamFault) as caught:
        get("openai").codec.parse_reply(body, make_request())
    assert caught.value.fault.kind == kind
    with pytest.raises(UpstreamFault) as caught:
        decode_stream("openai", sse(chunk({"content": "x"}), chunk({}, word)))
    assert caught.value.fault.kind == kind


# --- errors with status 200

ERRORS: list[tuple[dict[str, Any], str, str]] = [
    ({"base_resp": {"status_code": 1008, "status_msg": "insufficient balance"}}, "quota", "insufficient balance"),
    ({"base_resp": {"status_code": 1002, "status_msg": "rate limit"}, "choices": None}, "rate_limit", "rate limit"),
    ({"base_resp": {"status_code": 1004, "status_msg": "login fail"}, "choices": []}, "auth", "login fail"),
    ({"base_resp": {"status_code": 2049, "status_msg": "invalid api key"}}, "auth", "invalid api key"),
    ({"base_resp": {"status_code": 1000, "status_msg": "unknown error"}}, "server", "unknown error"),
    (
        {"base_resp": {"status_code": 2013, "status_msg": "invalid params, context window exceeds limit (2013)"}},
        "context_full",
        "context window",
    ),
    (
        {"base_resp": {"status_code": 2013, "status_msg": "invalid params"}, "usage": {"total_tokens": 0}},
        "invalid",
        "inv",
    ),
    ({"error": "model crashed"}, "server", "model crashed"),
    ({"error": {"message": "busy", "code": 429}}, "rate_limit", "busy"),
    ({"error": {"message": "busy", "code": "429"}}, "rate_limit", "busy"),
    ({"error": {"message": "Provider returned error", "code": 502, "metadata": {"raw": "boom"}}}, "server", "boom"),
    ({"object": "error", "message": "no such model", "type": "NotFoundError", "code": 404}, "not_found", "no such"),
    ({"type": "error", "error": {"type": "overloaded_error", "message": "full"}}, "overloaded", "full"),
    ({"detail": "Not Found"}, "server", "Not Found"),
    ({"detail": [{"loc": ["body"], "msg": "field required"}]}, "server", "field required"),
    ({"code": 500, "msg": "bad gateway", "success": False}, "server", "bad gateway"),
    ({"success": False, "errors": [{"code": 10000, "message": "Authentication error"}]}, "server", "Authentication"),
    ({"x_groq": {"id": "req_1", "error": "over_capacity"}, "choices": []}, "overloaded", "over_capacity"),
    ({"error": {"code": "1302", "message": "rate"}}, "rate_limit", "rate"),
]


@pytest.mark.parametrize(("body", "kind", "words"), ERRORS, ids=lambda each: json.dumps(each)[:40])
def test_an_error_that_comes_as_a_success_is_reported(body: dict[str, Any], kind: str, words: str) -> None:
    """Whole, as the first frame, and after text."""
    with pytest.raises(UpstreamFault, match=words) as caught:
        get("openai").codec.parse_reply(json.dumps(body).encode(), make_request())
    assert caught.value.fault.kind == kind
    for before in ((), (chunk({"role": "assistant", "content": "hi"}), chunk({"content": " you"}))):
        for done in (True, False):
            with pytest.raises(UpstreamFault, match=words) as caught:
                decode_stream("openai", sse(*before, body, done=done))
            assert caught.value.fault.kind == kind


@pytest.mark.parametrize("client", CLIENTS)
def test_every_client_gets_the_error(client: str) -> None:
    body, _, words = ERRORS[0]
    translated = translate_stream("openai", client, sse(chunk({"content": "hi"}), body))
    assert words.encode() in translated


def test_a_stream_that_passes_ends_with_an_error_that_clients_read() -> None:
    planned = plan(get("openai"), get("openai"), make_request(stream=True))
    passing = PassThrough(planned, ENVIRONMENT)
    translated = passing.feed(sse(chunk({"content": "hi"}), ERRORS[0][0])) + passing.close()
    assert passing.fault is not None and passing.fault.kind == "quota"
    assert b'"error":{"message":"insufficient balance"' in translated and b"base_resp" not in translated


def test_an_error_event_may_hold_plain_text() -> None:
    with pytest.raises(UpstreamFault, match="engine died"):
        decode_stream("openai", sse(chunk({"content": "hi"}), done=False) + b"event: error\ndata: engine died\n\n")


def test_base_resp_of_a_success_is_no_error() -> None:
    fine = {"base_resp": {"status_code": 0, "status_msg": ""}}
    frames = sse(chunk({"content": "hi"}), {**chunk({}, "stop"), **fine})
    assert decode_stream("openai", frames).choices[0].blocks == (Text("hi"),)
    body = {**chat({"role": "assistant", "content": "hi"}), **fine}
    assert translate_reply("openai", "anthropic", body)[0]["content"][0]["text"] == "hi"

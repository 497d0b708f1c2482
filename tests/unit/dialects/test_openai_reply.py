"""Whole Chat replies, both directions."""

# tables of payloads, one case a line
from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from msgspec import structs

import dragoman
from dragoman.conformance.laws import summarize_reply
from dragoman.dialects.base import Environment
from dragoman.dialects.openai import DIALECT
from dragoman.errors import DragomanError, MissingField, UpstreamFault, UpstreamViolation
from dragoman.model.blocks import Extra, Media, Opaque, Reasoning, Signature, Text, ToolCall
from dragoman.model.conversation import Choice, Conversation, Reply, Stop, StopReason, Usage
from tests.wrong_values import WRONG_VALUES, body_paths, dotted_path, with_value

CODEC = DIALECT.codec
REQUEST = Conversation("asked-model", (), stop=("END",))
ENVIRONMENT = Environment(new_id=lambda prefix: f"{prefix}1", now=lambda: 1_780_000_000)

FULL: dict[str, Any] = {
    "id": "chatcmpl-9",
    "object": "chat.completion",
    "created": 1_780_000_000,
    "model": "gpt-5",
    "choices": [
        {
            "index": 0,
            "message": {
                "role": "assistant",
                "content": "Reading.",
                "refusal": None,
                "annotations": [],
                "reasoning_content": "hm",
                "tool_calls": [
                    {"id": "call_1", "type": "function", "function": {"name": "read", "arguments": "{}"}},
                    {"id": "call_2", "type": "custom", "custom": {"name": "patch", "input": "x"}},
                ],
            },
            "logprobs": None,
            "finish_reason": "tool_calls",
        }
    ],
    "usage": {
        "prompt_tokens": 132,
        "completion_tokens": 7,
        "total_tokens": 139,
        "prompt_tokens_details": {"cached_tokens": 100, "cache_write_tokens": 20, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 3},
    },
    "system_fingerprint": "fp_1",
    "service_tier": "default",
}


def parse(body: Any, conversation: Conversation = REQUEST) -> Reply:
    return CODEC.parse_reply(json.dumps(body).encode(), conversation)


def render(reply: Reply) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(CODEC.render_reply(reply, REQUEST, ENVIRONMENT))
    return body


def with_choice(**fields: Any) -> dict[str, Any]:
    body = copy.deepcopy(FULL)
    body["choices"][0].update(fields)
    return body


def test_a_full_reply_is_understood() -> None:
    reply = parse(FULL)
    assert reply == Reply(
        "chatcmpl-9",
        "gpt-5",
        (
            Choice(
                (
                    Reasoning("hm", "openai"),
                    Text("Reading."),
                    ToolCall("call_1", "read", "{}"),
                    ToolCall("call_2", "patch", "x", "text"),
                ),
                Stop(StopReason.TOOL),
            ),
        ),
        Usage(12, 7, 100, 20, 3),
        extra=Extra(
            "openai",
            {"system_fingerprint": "fp_1", "service_tier": "default", "created": 1_780_000_000},
            frozenset({"created"}),
        ),
    )


def test_a_full_reply_round_trips_unchanged() -> None:
    expected = copy.deepcopy(FULL)
    del expected["choices"][0]["message"]["annotations"]  # empty: it says nothing
    del expected["usage"]["prompt_tokens_details"]["audio_tokens"]
    assert render(parse(FULL)) == expected


REPLIES = [
    Reply("i", "m", (Choice((Text("hi"),), Stop(StopReason.END)),)),
    Reply("i", "m", (Choice((), Stop(StopReason.LENGTH)),), Usage(1, 2)),
    Reply("i", "m", (Choice((Text("a"),), Stop(StopReason.END)), Choice((Text("b"),), Stop(StopReason.LENGTH)))),
    Reply("i", "m", (Choice((Text("a"),), Stop(StopReason.SEQUENCE, "END")),)),
    Reply("i", "m", (Choice((Reasoning("t", "openai", Signature("openai", "s")), Text("a")), Stop(StopReason.END)),)),
    Reply("i", "m", (Choice((Reasoning("", "openai", Signature("openai", "d", "encrypted")), Text("a")), Stop(StopReason.END)),)),
    Reply("i", "m", (Choice((Reasoning("s", "openai", Signature("openai", "d", "encrypted")), Text("a")), Stop(StopReason.END)),)),
    Reply("i", "m", (Choice((Reasoning("a", "openai"), Reasoning("b", "openai"), Text("c")), Stop(StopReason.END)),)),
    Reply(
        "i",
        "m",
        (
            Choice(
                (Text("No.", extra=Extra("openai", {"refusal": True}, frozenset({"refusal"}))),),
                Stop(StopReason.REFUSAL, extra=Extra("openai", {"~finish_reason": "stop"}, frozenset({"~finish_reason"}))),
            ),
        ),
    ),
    Reply("i", "m", (Choice((Text("x"),), Stop(StopReason.END, extra=Extra("openai", {"finish_reason": "weird"}))),)),
    Reply("i", "m", (Choice((Text("x"),), Stop(StopReason.END, extra=Extra("openai", {"choice": {"logprobs": {"content": []}}}))),)),
    Reply("i", "m", (Choice((ToolCall("c", "f", "{}", extra=Extra("openai", {"x": 1})),), Stop(StopReason.TOOL)),)),
    Reply("i", "m", (Choice((Text("x"), Media("image", "image/png", "base64", "aGk=")), Stop(StopReason.END)),)),
    Reply("i", "m", (Choice((Text("x"),), Stop(StopReason.END)),), Usage(5, 6, 7, 8, 2, extra=Extra("openai", {"cost": 0.1}))),
    Reply("i", "m", (Choice((Text("x"),), Stop(StopReason.END)),), extra=Extra("openai", {"provider": "p"})),
]  # fmt: skip


@pytest.mark.parametrize("reply", REPLIES, ids=range(len(REPLIES)))
def test_a_representable_reply_is_read_as_written(reply: Reply) -> None:
    extra = reply.extra.fields if reply.extra is not None else {}
    expected = Extra("openai", {**extra, "created": ENVIRONMENT.now()}, frozenset({"created"}))
    assert parse(render(reply)) == structs.replace(reply, extra=expected)


@pytest.mark.parametrize(
    ("word", "stop"),
    [
        ("stop", Stop(StopReason.END)),
        ("length", Stop(StopReason.LENGTH)),
        ("tool_calls", Stop(StopReason.TOOL)),
        ("function_call", Stop(StopReason.TOOL, extra=Extra("openai", {"~older": True}, frozenset({"~older"})))),
        ("content_filter", Stop(StopReason.REFUSAL)),
        (None, Stop(StopReason.END)),
        ("", Stop(StopReason.END)),
        ("eos", Stop(StopReason.END, extra=Extra("openai", {"~finish_reason": "eos"}, frozenset({"~finish_reason"})))),
        ("odd", Stop(StopReason.END, extra=Extra("openai", {"finish_reason": "odd"}))),
    ],
)
def test_every_finish_reason(word: str | None, stop: Stop) -> None:
    assert parse(with_choice(finish_reason=word)).choices[0].stop == stop


@pytest.mark.parametrize(
    ("why", "word"),
    [
        (StopReason.END, "stop"),
        (StopReason.SEQUENCE, "stop"),
        (StopReason.PAUSE, "stop"),
        (StopReason.TOOL, "tool_calls"),
        (StopReason.LENGTH, "length"),
        (StopReason.CONTEXT, "length"),
        (StopReason.REFUSAL, "content_filter"),
    ],
)
def test_every_stop_reason_has_a_wire_value(why: StopReason, word: str) -> None:
    assert render(Reply("i", "m", (Choice((), Stop(why)),)))["choices"][0]["finish_reason"] == word


def test_a_refusal_with_finish_reason_stop_is_a_refusal() -> None:
    message = {"role": "assistant", "content": None, "refusal": "No."}
    choice = parse(with_choice(message=message, finish_reason="stop")).choices[0]
    assert choice.stop.reason is StopReason.REFUSAL
    assert choice.blocks == (Text("No.", extra=Extra("openai", {"refusal": True}, frozenset({"refusal"}))),)


def test_the_stop_sequence_where_an_upstream_names_it() -> None:
    assert parse(with_choice(finish_reason="stop", stop_reason="END")).choices[0].stop == Stop(
        StopReason.SEQUENCE, "END"
    )
    sglang = parse(with_choice(finish_reason="stop", matched_stop="END")).choices[0].stop
    assert (sglang.reason, sglang.sequence) == (StopReason.SEQUENCE, "END")
    assert parse(with_choice(finish_reason="stop", matched_stop=151645)).choices[0].stop.reason is StopReason.END


def test_texts_of_a_reply_are_joined_and_calls_are_last() -> None:
    blocks = (Text("a"), ToolCall("c", "f", "{}"), Text("b"))
    message = render(Reply("", "", (Choice(blocks, Stop(StopReason.TOOL)),)))["choices"][0]["message"]
    assert message["content"] == "ab" and len(message["tool_calls"]) == 1


def test_a_reply_of_another_family_shows_its_reasoning() -> None:
    blocks = (Reasoning("t", "anthropic", Signature("openai", "dragoman1.x")), Text("a"))
    message = render(Reply("", "", (Choice(blocks, Stop(StopReason.END)),)))["choices"][0]["message"]
    assert message["reasoning_content"] == "t"
    assert message["reasoning_details"] == [
        {"type": "reasoning.text", "text": "t", "signature": "dragoman1.x", "index": 0}
    ]


def test_a_reply_without_names_gets_them() -> None:
    body = render(Reply("", "", (Choice((), Stop(StopReason.END)),)))
    assert (body["id"], body["model"], body["created"]) == ("chatcmpl-1", "asked-model", 1_780_000_000)


def test_a_call_without_an_id_is_left_to_the_filter_that_makes_one() -> None:
    message = {"role": "assistant", "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": None}}]}
    assert parse(with_choice(message=message)).choices[0].blocks == (ToolCall("", "f", ""),)
    older = {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}}
    assert parse(with_choice(message=older)).choices[0].blocks == (ToolCall("", "f", "{}"),)


def test_a_call_without_a_name_names_the_missing_field() -> None:
    message = {"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": {"arguments": "{}"}}]}
    with pytest.raises(MissingField) as caught:
        parse(with_choice(message=message))
    assert caught.value.at == "choices[0].message.tool_calls[0].function.name"
    assert caught.value.fault.status == 502


def test_chat_only_fields_survive_a_round_trip() -> None:
    message = {"role": "assistant", "content": "x", "annotations": [{"type": "url_citation"}], "audio": {"id": "a"}}
    reply = parse(with_choice(message=message))
    block = reply.choices[0].blocks[-1]
    assert isinstance(block, Opaque) and set(block.data) == {"audio"}  # type: ignore[arg-type]
    rendered_message = render(reply)["choices"][0]["message"]
    assert (rendered_message["audio"], rendered_message["annotations"]) == ({"id": "a"}, [{"type": "url_citation"}])


@pytest.mark.parametrize(
    ("usage", "counts"),
    [
        ({"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 12}, Usage(10, 2)),
        ({"prompt_tokens": 10, "completion_tokens": 2, "prompt_tokens_details": None}, Usage(10, 2)),
        ({"prompt_tokens": 5, "prompt_tokens_details": {"cached_tokens": 9}}, Usage(0, 0, 5)),
        ({}, Usage()),
    ],
)
def test_usage_arithmetic(usage: dict[str, Any], counts: Usage) -> None:
    assert parse({**FULL, "usage": usage}).usage == counts


def test_cached_tokens_where_kimi_and_deepseek_put_them() -> None:
    for field in ("cached_tokens", "prompt_cache_hit_tokens"):
        usage = parse({**FULL, "usage": {"prompt_tokens": 10, "completion_tokens": 1, field: 4}}).usage
        assert usage is not None and (usage.input, usage.cache_read) == (6, 4)


def test_an_error_with_a_success_status_is_a_fault() -> None:
    with pytest.raises(UpstreamFault) as caught:
        parse({"error": {"message": "busy", "code": 429}})
    assert caught.value.fault.kind == "rate_limit"


@pytest.mark.parametrize(
    "body", [b"", b"<html>", b"null", b"[]", b"{}", b'{"choices":[]}', b'{"choices":null}', b"\xff"]
)
def test_a_body_that_is_no_reply_is_the_upstreams_fault(body: bytes) -> None:
    with pytest.raises(UpstreamViolation):
        CODEC.parse_reply(body, REQUEST)


@pytest.mark.parametrize("place", list(body_paths(FULL)), ids=dotted_path)
def test_a_wrong_type_anywhere_blames_the_upstream_or_is_understood(place: tuple[Any, ...]) -> None:
    for wrong in WRONG_VALUES:
        try:
            reply = parse(with_value(FULL, place, wrong))
        except DragomanError as error:
            assert isinstance(error, UpstreamViolation | UpstreamFault)
            continue
        assert summarize_reply(parse(render(reply))) == summarize_reply(reply)


def test_a_reply_keeps_its_creation_time() -> None:
    body = json.dumps({**FULL, "created": 1_700_000_123})
    translated: Any = dragoman.translate_reply(body, source="openai", target="openai").body
    assert translated["created"] == 1_700_000_123


@pytest.mark.parametrize(
    ("body", "message", "status"),
    [
        ({"object": "error", "message": "boom", "type": "InternalServerError", "code": 500}, "boom", 500),
        (with_choice(finish_reason="error", error={"message": "gone", "code": 503}), "gone", 503),
        (with_choice(finish_reason="error"), "the upstream stopped because of an error", 502),
    ],
)
def test_a_failure_that_looks_like_a_reply_is_a_fault(body: Any, message: str, status: int) -> None:
    with pytest.raises(UpstreamFault) as caught:
        parse(body)
    assert (caught.value.fault.message, caught.value.fault.status) == (message, status)


OLDER = Conversation("m", (), extra=Extra("openai", {"~older": True}, frozenset({"~older"})))


def older(*blocks: Any, why: StopReason = StopReason.TOOL) -> Any:
    body = CODEC.render_reply(Reply("i", "m", (Choice(blocks, Stop(why)),)), OLDER, ENVIRONMENT)
    return json.loads(body)["choices"][0]


def test_a_client_that_offered_functions_gets_a_function_call() -> None:
    choice = older(Text("x"), ToolCall("a", "f", ""))
    assert choice["message"]["function_call"] == {"name": "f", "arguments": "{}"}
    assert "tool_calls" not in choice["message"]
    assert choice["finish_reason"] == "function_call"
    assert older(Text("x"), why=StopReason.END)["finish_reason"] == "stop"


def test_calls_that_do_not_fit_a_function_call_stay_tool_calls() -> None:
    choice = older(ToolCall("t", "p", "x", "text"), ToolCall("a", "f", "{}"), ToolCall("b", "g", "{}"))
    assert choice["message"]["function_call"]["name"] == "f"
    assert [call["id"] for call in choice["message"]["tool_calls"]] == ["t", "b"]
    only_text = older(ToolCall("t", "p", "x", "text"))
    assert only_text["finish_reason"] == "tool_calls" and "function_call" not in only_text["message"]

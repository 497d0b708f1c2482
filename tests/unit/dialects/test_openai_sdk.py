"""The official Python SDK reads our output: its stream helper, its raw iteration, and its errors."""

from __future__ import annotations

import json
from typing import Any

import pytest

import dragoman
from dragoman.dialects.base import Environment
from dragoman.dialects.openai import DIALECT
from dragoman.errors import Fault
from dragoman.model.blocks import Extra, Reasoning, Signature, Text, ToolCall
from dragoman.model.conversation import Choice, Reply, Stop, StopReason, Usage
from dragoman.model.events import (
    FINISHED,
    ArgumentsDelta,
    BlockEnded,
    BlockStarted,
    Events,
    Failed,
    ReasoningDelta,
    SignatureAdded,
    Started,
    Stopped,
    TextDelta,
    UsageReported,
)
from dragoman.wire.http import HttpRequest
from tests.anthropic_client import parse_sse

openai = pytest.importorskip("openai")
httpx = pytest.importorskip("httpx2")

CODEC, BINDING = DIALECT.codec, DIALECT.binding
ENVIRONMENT = Environment(new_id=lambda prefix: f"{prefix}1", now=lambda: 5)
MESSAGES: list[Any] = [{"role": "user", "content": "hi"}]


def client(events: Events = (), reply: Reply | None = None, fault: Fault | None = None) -> Any:
    """Return an SDK client whose server is our codec."""

    def serve(request: Any) -> Any:
        head = HttpRequest(
            request.method, request.url.path, headers=tuple(request.headers.items()), body=request.content
        )
        call = BINDING.match(head)
        assert call is not None and not CODEC.breaches(call)
        conversation = CODEC.parse_request(call)
        if fault is not None:
            response = BINDING.error_response(fault, CODEC.render_fault(fault))
            return httpx.Response(response.status, headers=dict(response.headers), content=response.body)
        if reply is not None:
            return httpx.Response(
                200,
                json=None,
                content=CODEC.render_reply(reply, conversation, ENVIRONMENT),
                headers={"content-type": "application/json"},
            )
        body = b"".join(
            BINDING.encode_frame(payload) for payload in CODEC.encoder(conversation, ENVIRONMENT).feed(events)
        )
        return httpx.Response(200, headers={"content-type": "text/event-stream"}, content=body)

    transport = httpx.Client(transport=httpx.MockTransport(serve))
    return openai.OpenAI(api_key="k", base_url="http://x.test/v1", max_retries=0, http_client=transport)


REPLY: Events = (
    Started("c1", "m1"),
    BlockStarted(0, Reasoning("", "anthropic")),
    ReasoningDelta(0, "thi"),
    ReasoningDelta(0, "nk"),
    SignatureAdded(0, Signature("openai", "s1")),
    BlockEnded(0),
    BlockStarted(1, Reasoning("", "anthropic")),
    ReasoningDelta(1, "more"),
    SignatureAdded(1, Signature("openai", "s2")),
    BlockEnded(1),
    BlockStarted(2, Text("")),
    TextDelta(2, "Hel"),
    TextDelta(2, "lo"),
    BlockEnded(2),
    BlockStarted(3, ToolCall("call_a", "f")),
    BlockStarted(4, ToolCall("call_b", "g")),
    ArgumentsDelta(3, '{"x":'),
    ArgumentsDelta(4, '{"y":'),
    ArgumentsDelta(3, "1}"),
    ArgumentsDelta(4, "2}"),
    BlockEnded(3),
    BlockEnded(4),
    UsageReported(Usage(12, 7, 100, 20)),
    Stopped(Stop(StopReason.TOOL)),
    FINISHED,
)


def test_the_stream_helper_assembles_the_reply() -> None:
    with client(REPLY).chat.completions.stream(
        model="m", messages=MESSAGES, stream_options={"include_usage": True}
    ) as stream:
        for _ in stream:
            pass
        final = stream.get_final_completion()
    message = final.choices[0].message
    assert (final.id, final.model, message.role, message.content) == ("c1", "m1", "assistant", "Hello")
    assert [(c.id, c.type, c.function.name, c.function.arguments) for c in message.tool_calls] == [
        ("call_a", "function", "f", '{"x":1}'),
        ("call_b", "function", "g", '{"y":2}'),
    ]
    assert final.choices[0].finish_reason == "tool_calls"
    assert (final.usage.prompt_tokens, final.usage.total_tokens) == (132, 139)
    assert message.reasoning_content == "thinkmore"


def test_details_that_the_helper_assembled_round_trip_with_text_and_signature() -> None:
    with client(REPLY).chat.completions.stream(model="m", messages=MESSAGES) as stream:
        message = stream.get_final_completion().choices[0].message
    echoed = message.model_dump(exclude_none=True)
    echoed.pop("tool_calls")
    conversation = CODEC.parse_request(BINDING.unwrap({"model": "m", "messages": [*MESSAGES, echoed]}))
    assert [b for b in conversation.messages[1].blocks if isinstance(b, Reasoning)] == [
        Reasoning("think", "openai", Signature("openai", "s1")),
        Reasoning("more", "openai", Signature("openai", "s2")),
    ]


def test_raw_iteration_and_usage_only_when_asked() -> None:
    for options, count in (({}, 0), ({"stream_options": {"include_usage": True}}, 1)):
        pieces = list(client(REPLY).chat.completions.create(model="m", messages=MESSAGES, stream=True, **options))
        assert "".join(p.choices[0].delta.content or "" for p in pieces if p.choices) == "Hello"
        assert len([p for p in pieces if p.usage]) == count


def test_two_choices() -> None:
    events: Events = (
        Started("c", "m"),
        BlockStarted(0, Text(""), 0),
        TextDelta(0, "a"),
        BlockStarted(1, Text(""), 1),
        TextDelta(1, "b"),
        BlockEnded(0),
        BlockEnded(1),
        Stopped(Stop(StopReason.END), 0),
        Stopped(Stop(StopReason.LENGTH), 1),
        FINISHED,
    )
    with client(events).chat.completions.stream(model="m", messages=MESSAGES, n=2) as stream:
        try:
            final = stream.get_final_completion()
        except openai.LengthFinishReasonError as error:
            final = error.completion
    assert [choice.message.content for choice in final.choices] == ["a", "b"]


def test_a_custom_call_in_a_stream() -> None:
    events: Events = (
        Started("c", "m"),
        BlockStarted(0, ToolCall("a", "patch", form="text")),
        ArgumentsDelta(0, "*** "),
        ArgumentsDelta(0, "Begin"),
        BlockEnded(0),
        Stopped(Stop(StopReason.TOOL)),
        FINISHED,
    )
    pieces = list(client(events).chat.completions.create(model="m", messages=MESSAGES, stream=True))
    calls = [c for p in pieces for c in p.choices[0].delta.tool_calls or ()]
    assert "".join((c.model_extra or {})["custom"]["input"] for c in calls) == "*** Begin"


def test_a_refusal() -> None:
    events: Events = (
        Started("c", "m"),
        BlockStarted(0, Text("", extra=Extra("openai", {"refusal": True}))),
        TextDelta(0, "No."),
        BlockEnded(0),
        Stopped(Stop(StopReason.END)),
        FINISHED,
    )
    with client(events).chat.completions.stream(model="m", messages=MESSAGES) as stream:
        assert stream.get_final_completion().choices[0].message.refusal == "No."


def test_an_error_in_the_stream_raises() -> None:
    events = (*REPLY[:12], Failed(Fault("overloaded", "busy", 529)))
    with pytest.raises(openai.APIError, match="busy"):
        list(client(events).chat.completions.create(model="m", messages=MESSAGES, stream=True))


def test_a_whole_reply() -> None:
    calls = (ToolCall("a", "f", "{}"), ToolCall("b", "patch", "x", "text"))
    reply = Reply("c1", "m1", (Choice((Text("hi"), *calls), Stop(StopReason.TOOL)),), Usage(1, 2))
    final = client(reply=reply).chat.completions.create(model="m", messages=MESSAGES)
    message = final.choices[0].message
    assert (message.content, message.tool_calls[0].function.name, message.tool_calls[1].custom.input) == (
        "hi",
        "f",
        "x",
    )
    assert final.usage.total_tokens == 3


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("invalid", "BadRequestError"),
        ("auth", "AuthenticationError"),
        ("permission", "PermissionDeniedError"),
        ("not_found", "NotFoundError"),
        ("rate_limit", "RateLimitError"),
        ("quota", "RateLimitError"),
        ("server", "InternalServerError"),
        ("overloaded", "InternalServerError"),
        ("context_full", "BadRequestError"),
        ("timeout", "InternalServerError"),
        ("too_large", "APIStatusError"),
    ],
)
def test_faults_become_errors_of_the_sdk(kind: Any, error: str) -> None:
    with pytest.raises(getattr(openai, error)) as caught:
        client(fault=Fault(kind, "because", at="messages[0]")).chat.completions.create(model="m", messages=MESSAGES)
    assert "because" in str(caught.value)
    assert caught.value.param == "messages[0]"


# ---- from an openai upstream to an openai client


def _frame(index: int, delta: Any, finish: str | None = None) -> bytes:
    choice = {"index": index, "delta": delta, "finish_reason": finish}
    head = {"id": "c", "object": "chat.completion.chunk", "created": 5, "model": "m", "choices": [choice]}
    return b"data: " + json.dumps(head).encode() + b"\n\n"


def _call(call_id: str) -> Any:
    return {
        "tool_calls": [{"index": 0, "id": call_id, "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    }


def through(upstream: bytes, **conversation: Any) -> tuple[Any, bytes]:
    """Return the SDK's reading of a translated upstream stream, and the bytes sent."""
    request = dragoman.translate_request(
        {"model": "m", "messages": MESSAGES, "stream": True, **conversation}, source="openai", target="openai"
    )
    translator = dragoman.stream_translator(source="openai", target="openai", request=request)
    sent = translator.feed(upstream) + translator.close()
    serve = httpx.MockTransport(
        lambda _: httpx.Response(200, headers={"content-type": "text/event-stream"}, content=sent)
    )
    sdk = openai.OpenAI(api_key="k", base_url="http://x.test/v1", http_client=httpx.Client(transport=serve))
    with sdk.chat.completions.stream(model="m", messages=MESSAGES) as stream:
        return stream.get_final_completion(), sent


ROLE = {"role": "assistant", "content": ""}
APART = [_frame(0, ROLE), _frame(1, ROLE)]


@pytest.mark.parametrize(
    "heads",
    [
        APART,
        [_frame(0, ROLE), _frame(1, {"role": "assistant", **_call("early")})],
        [_frame(0, ROLE), _frame(1, {"content": "no role"})],
        [_frame(0, ROLE), _frame(1, _call("early")), _frame(1, ROLE)],
    ],
)
def test_every_choice_has_its_role_once(heads: list[bytes]) -> None:
    ends = [_frame(0, {}, "tool_calls"), _frame(1, {}, "tool_calls"), b"data: [DONE]\n\n"]
    _, sent = through(b"".join([*heads, _frame(0, _call("a")), _frame(1, _call("b")), *ends]), n=2)
    roles = [choice["index"] for frame in parse_sse(sent) for choice in frame["choices"] if "role" in choice["delta"]]
    assert roles.count(0) == 1 and roles.count(1) == (0 if b"no role" in sent else 1)


def test_the_sdk_reads_the_role_of_both_choices() -> None:
    ends = [_frame(0, {}, "tool_calls"), _frame(1, {}, "tool_calls"), b"data: [DONE]\n\n"]
    whole, _ = through(b"".join([*APART, _frame(0, _call("a")), _frame(1, _call("b")), *ends]), n=2)
    assert [choice.message.role for choice in whole.choices] == ["assistant", "assistant"]
    assert [choice.message.tool_calls[0].id for choice in whole.choices] == ["a", "b"]


FUNCTIONS = [{"name": "f", "parameters": {"type": "object"}}]


@pytest.mark.parametrize(
    ("called", "word"),
    [(_call("a"), "tool_calls"), ({"function_call": {"name": "f", "arguments": "{}"}}, "function_call")],
)
@pytest.mark.parametrize("older", [True, False])
def test_the_call_and_its_finish_have_the_form_of_the_request(called: Any, word: str, older: bool) -> None:
    offered = {"functions": FUNCTIONS} if older else {"tools": [{"type": "function", "function": FUNCTIONS[0]}]}
    upstream = [_frame(0, ROLE), _frame(0, called), _frame(0, {}, word), b"data: [DONE]\n\n"]
    whole, _ = through(b"".join(upstream), **offered)
    choice = whole.choices[0]
    assert choice.finish_reason == ("function_call" if older else "tool_calls")
    call = choice.message.function_call if older else choice.message.tool_calls[0].function
    assert (call.name, call.arguments) == ("f", "{}")
    assert not (choice.message.tool_calls if older else choice.message.function_call)


def test_a_second_call_of_an_older_client_is_a_tool_call() -> None:
    second = {"tool_calls": [{**_call("b")["tool_calls"][0], "index": 1}]}
    frames = [_frame(0, ROLE), _frame(0, _call("a")), _frame(0, second), _frame(0, {}, "tool_calls")]
    whole, _ = through(b"".join([*frames, b"data: [DONE]\n\n"]), functions=FUNCTIONS)
    message = whole.choices[0].message
    assert message.function_call.name == "f" and [call.id for call in message.tool_calls] == ["b"]
    assert whole.choices[0].finish_reason == "function_call"


def test_a_call_without_arguments_has_an_empty_object_though_its_finish_could_pass() -> None:
    bare = {"tool_calls": [{"index": 0, "id": "a", "type": "function", "function": {"name": "f", "arguments": ""}}]}
    frames = [_frame(0, ROLE), _frame(0, bare), _frame(0, {}, "tool_calls"), b"data: [DONE]\n\n"]
    whole, _ = through(b"".join(frames))
    assert whole.choices[0].message.tool_calls[0].function.arguments == "{}"

"""What we write, read by the official Python SDK: its stream helper, its raw iteration, and its errors."""

from __future__ import annotations

from typing import Any

import pytest

from dragoman.dialects.base import World
from dragoman.dialects.openai import DIALECT
from dragoman.errors import Fault
from dragoman.model.blocks import Extra, Reasoning, Seal, Text, ToolCall
from dragoman.model.conversation import Choice, Reply, Stop, Usage, Why
from dragoman.model.events import (
    FINISHED,
    ArgumentsDelta,
    BlockEnded,
    BlockStarted,
    Events,
    Failed,
    ReasoningDelta,
    Sealed,
    Started,
    Stopped,
    TextDelta,
    UsageReported,
)
from dragoman.wire.http import HttpRequest

openai = pytest.importorskip("openai")
httpx = pytest.importorskip("httpx2")

CODEC, BINDING = DIALECT.codec, DIALECT.binding
WORLD = World(new_id=lambda prefix: f"{prefix}1", now=lambda: 5)
MESSAGES: list[Any] = [{"role": "user", "content": "hi"}]


def client(events: Events = (), reply: Reply | None = None, fault: Fault | None = None) -> Any:
    """An SDK client whose server is our own reader and writer."""

    def serve(request: Any) -> Any:
        head = HttpRequest(
            request.method, request.url.path, headers=tuple(request.headers.items()), body=request.content
        )
        call = BINDING.match(head)
        assert call is not None and not CODEC.breaches(call)
        asked = CODEC.parse_request(call)
        if fault is not None:
            answer = BINDING.refuse(fault, CODEC.render_fault(fault))
            return httpx.Response(answer.status, headers=dict(answer.headers), content=answer.body)
        if reply is not None:
            return httpx.Response(
                200,
                json=None,
                content=CODEC.render_reply(reply, asked, WORLD),
                headers={"content-type": "application/json"},
            )
        body = b"".join(BINDING.frame(payload) for payload in CODEC.encoder(asked, WORLD).feed(events))
        return httpx.Response(200, headers={"content-type": "text/event-stream"}, content=body)

    transport = httpx.Client(transport=httpx.MockTransport(serve))
    return openai.OpenAI(api_key="k", base_url="http://x.test/v1", max_retries=0, http_client=transport)


ANSWER: Events = (
    Started("c1", "m1"),
    BlockStarted(0, Reasoning("", "anthropic")),
    ReasoningDelta(0, "thi"),
    ReasoningDelta(0, "nk"),
    Sealed(0, Seal("openai", "s1")),
    BlockEnded(0),
    BlockStarted(1, Reasoning("", "anthropic")),
    ReasoningDelta(1, "more"),
    Sealed(1, Seal("openai", "s2")),
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
    Stopped(Stop(Why.TOOL)),
    FINISHED,
)


def test_the_stream_helper_assembles_what_was_said() -> None:
    with client(ANSWER).chat.completions.stream(
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


def test_details_the_helper_assembled_come_back_with_text_and_seal() -> None:
    with client(ANSWER).chat.completions.stream(model="m", messages=MESSAGES) as stream:
        message = stream.get_final_completion().choices[0].message
    echoed = message.model_dump(exclude_none=True)
    echoed.pop("tool_calls")
    asked = CODEC.parse_request(BINDING.unwrap({"model": "m", "messages": [*MESSAGES, echoed]}))
    assert [b for b in asked.messages[1].blocks if isinstance(b, Reasoning)] == [
        Reasoning("think", "openai", Seal("openai", "s1")),
        Reasoning("more", "openai", Seal("openai", "s2")),
    ]


def test_raw_iteration_and_usage_only_when_asked() -> None:
    for options, count in (({}, 0), ({"stream_options": {"include_usage": True}}, 1)):
        pieces = list(client(ANSWER).chat.completions.create(model="m", messages=MESSAGES, stream=True, **options))
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
        Stopped(Stop(Why.END), 0),
        Stopped(Stop(Why.LENGTH), 1),
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
        Stopped(Stop(Why.TOOL)),
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
        Stopped(Stop(Why.END)),
        FINISHED,
    )
    with client(events).chat.completions.stream(model="m", messages=MESSAGES) as stream:
        assert stream.get_final_completion().choices[0].message.refusal == "No."


def test_an_error_in_the_stream_raises() -> None:
    events = (*ANSWER[:12], Failed(Fault("overloaded", "busy", 529)))
    with pytest.raises(openai.APIError, match="busy"):
        list(client(events).chat.completions.create(model="m", messages=MESSAGES, stream=True))


def test_a_whole_reply() -> None:
    calls = (ToolCall("a", "f", "{}"), ToolCall("b", "patch", "x", "text"))
    reply = Reply("c1", "m1", (Choice((Text("hi"), *calls), Stop(Why.TOOL)),), Usage(1, 2))
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
def test_faults_become_the_sdks_own_errors(kind: Any, error: str) -> None:
    with pytest.raises(getattr(openai, error)) as caught:
        client(fault=Fault(kind, "because", at="messages[0]")).chat.completions.create(model="m", messages=MESSAGES)
    assert "because" in str(caught.value)
    assert caught.value.param == "messages[0]"

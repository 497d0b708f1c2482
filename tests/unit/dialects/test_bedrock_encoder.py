"""Streams and whole replies for Converse clients, in the form that the service sends."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings

import dragoman
from dragoman.dialects.base import SYSTEM_ENVIRONMENT
from dragoman.dialects.bedrock import DIALECT
from dragoman.errors import Fault, LocalMisuse, MissingField, UpstreamFault, UpstreamViolation
from dragoman.model.blocks import Media, Opaque, Reasoning, Signature, Text, ToolCall
from dragoman.model.conversation import Choice, Conversation, Reply, Stop, StopReason, Usage
from dragoman.model.events import (
    FINISHED,
    ArgumentsDelta,
    BlockEnded,
    BlockKeys,
    BlockStarted,
    Event,
    Events,
    Failed,
    ReasoningDelta,
    SignatureAdded,
    Started,
    Stopped,
    TextDelta,
    UsageReported,
)
from dragoman.response_stream import ResponseFilters
from dragoman.translate import plan
from dragoman.wire.eventstream import EventStreamDecoder
from tests import strategies
from tests.unit.dialects.bedrock_wire import (
    CLAUDE,
    METADATA,
    REQUEST,
    START,
    delta,
    end,
    frames,
    stop,
    stream,
    text,
    use,
)

EMPTY_REQUEST = Conversation("", ())


def encoded(*events: Event) -> list[tuple[str, Any]]:
    encoder = DIALECT.codec.encoder(REQUEST, SYSTEM_ENVIRONMENT)
    return frames(DIALECT.binding.encode_frame(payload) for payload in encoder.feed(events))


def whole(*events: Event, why: StopReason = StopReason.END) -> list[tuple[str, Any]]:
    """The frames between messageStart and the end of a stream."""
    return encoded(Started("", "m"), *events, Stopped(Stop(why)), FINISHED)[1:-2]


# --- streams


def test_a_stream_begins_and_ends_as_the_services_does() -> None:
    assert encoded(
        Started("id", "m"), UsageReported(Usage(12, 7, 100, 20)), Stopped(Stop(StopReason.END)), FINISHED
    ) == [
        ("messageStart", {"role": "assistant"}),
        ("messageStop", {"stopReason": "end_turn"}),
        ("metadata", {**METADATA[1], "metrics": {"latencyMs": 0}}),
    ]


def test_text_and_reasoning_have_no_start_and_tools_have_one() -> None:
    events = (
        BlockStarted(7, Reasoning("", "bedrock")),
        ReasoningDelta(7, "hm"),
        SignatureAdded(7, Signature("bedrock", "sig")),
        BlockEnded(7),
        BlockStarted(3, Text("")),
        TextDelta(3, "hé"),
        BlockEnded(3),
        BlockStarted(9, ToolCall("t1", "get")),
        ArgumentsDelta(9, '{"a":1}'),
        BlockEnded(9),
    )
    assert whole(*events, why=StopReason.TOOL) == [
        ("contentBlockDelta", {"contentBlockIndex": 0, "delta": {"reasoningContent": {"text": "hm"}}}),
        ("contentBlockDelta", {"contentBlockIndex": 0, "delta": {"reasoningContent": {"signature": "sig"}}}),
        ("contentBlockStop", {"contentBlockIndex": 0}),
        ("contentBlockDelta", {"contentBlockIndex": 1, "delta": {"text": "hé"}}),
        ("contentBlockStop", {"contentBlockIndex": 1}),
        ("contentBlockStart", {"contentBlockIndex": 2, "start": {"toolUse": {"toolUseId": "t1", "name": "get"}}}),
        ("contentBlockDelta", {"contentBlockIndex": 2, "delta": {"toolUse": {"input": '{"a":1}'}}}),
        ("contentBlockStop", {"contentBlockIndex": 2}),
    ]


def test_a_call_without_arguments_has_an_empty_input() -> None:
    frames_ = whole(BlockStarted(0, ToolCall("t1", "now")), ArgumentsDelta(0, ""), BlockEnded(0), why=StopReason.TOOL)
    assert frames_[1] == ("contentBlockDelta", {"contentBlockIndex": 0, "delta": {"toolUse": {"input": "{}"}}})


def test_an_empty_block_has_an_empty_delta() -> None:
    assert whole(BlockStarted(0, Text("")), BlockEnded(0))[0][1]["delta"] == {"text": ""}


def test_redacted_reasoning_is_base64_of_its_data() -> None:
    hidden = (
        BlockStarted(0, Reasoning("", "bedrock")),
        SignatureAdded(0, Signature("bedrock", "EpoBCkYI", "redacted")),
        BlockEnded(0),
    )
    assert whole(*hidden)[0][1]["delta"] == {"reasoningContent": {"redactedContent": "RXBvQkNrWUk="}}


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (Fault("rate_limit", "slow"), "throttlingException"),
        (Fault("quota", "slow"), "throttlingException"),
        (Fault("overloaded", "slow", 529), "serviceUnavailableException"),
        (Fault("server", "slow"), "internalServerException"),
        (Fault("server", "slow", code="ModelStreamErrorException"), "modelStreamErrorException"),
        (Fault("timeout", "slow", 504), "modelStreamErrorException"),
        (Fault("invalid", "slow"), "validationException"),
        (Fault("context_full", "slow"), "validationException"),
        (Fault("auth", "slow"), "validationException"),
    ],
)
def test_a_failure_is_an_exception_that_clients_know(fault: Fault, kind: str) -> None:
    # Never a text in a binary stream
    (frame,) = encoded(Failed(fault))
    assert (frame[0], frame[1]["message"]) == (f"!{kind}", "slow")


def test_a_tool_turn_ends_with_tool_use_for_any_upstream_reason() -> None:
    chunks: list[Any] = [
        {
            "delta": {
                "role": "assistant",
                "tool_calls": [
                    {"index": 0, "id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
                ],
            }
        },
        {"delta": {}, "finish_reason": "stop"},
    ]
    sse = b"".join(
        b"data: %b\n\n" % json.dumps({"id": "x", "model": "m", "choices": [{"index": 0, **chunk}]}).encode()
        for chunk in chunks
    )
    translator = dragoman.stream_translator(source="openai", target="bedrock")
    out = frames(translator.feed(sse + b"data: [DONE]\n\n") + translator.close())
    assert ("messageStop", {"stopReason": "tool_use"}) in out


def test_in_the_same_dialect_bytes_pass_unchanged_with_padding() -> None:
    data = stream(START, text(0, "a", "b"), use(1, "t", "f", '{"a":', "1}"), stop("tool_use"), METADATA)
    translator = dragoman.stream_translator(source="bedrock", target="bedrock")
    assert translator.feed(data) + translator.close() == data


@pytest.mark.parametrize("signature", [{"signature": "s"}, {"redactedContent": "aGk="}])
@pytest.mark.parametrize("thought_parts", [[], [{"text": "hm"}]])
def test_in_the_same_dialect_a_signature_is_sent_once(signature: Any, thought_parts: list[Any]) -> None:
    thoughts = [] if "redactedContent" in signature else thought_parts
    deltas = [{"contentBlockIndex": 0, "delta": {"reasoningContent": each}} for each in (*thoughts, signature)]
    data = stream(
        START, [("contentBlockDelta", each) for each in deltas], end(0), text(1, "x"), stop("end_turn"), METADATA
    )
    translator = dragoman.stream_translator(source="bedrock", target="bedrock")
    assert frames(translator.feed(data) + translator.close()) == frames(data)


def test_media_in_a_reply_is_a_misuse() -> None:
    with pytest.raises(LocalMisuse):
        encoded(Started("", "m"), BlockStarted(0, Media("image", "image/png", "base64", "aGk=")))


@given(events=strategies.events(choices=1))
@settings(max_examples=60)
def test_an_encoded_stream_breaks_no_rule(events: Events) -> None:
    fitted = ResponseFilters(plan(DIALECT, DIALECT, EMPTY_REQUEST), BlockKeys.after(events)).feed(events)
    encoder = DIALECT.codec.encoder(EMPTY_REQUEST, SYSTEM_ENVIRONMENT)
    data = b"".join(DIALECT.binding.encode_frame(payload) for payload in encoder.feed(fitted))
    found = DIALECT.codec.stream_breaches(list(EventStreamDecoder().feed(data)))
    # Arguments that began as an object and are none pass a stream unchanged (docs/decisions/content.md#d3); a failed
    # stream leaves blocks open.
    assert [breach for breach in found if not breach.rule.endswith((".input_json", ".input_cut"))] == []


# --- whole replies


BODY: Any = {
    "output": {
        "message": {
            "role": "assistant",
            "content": [
                {"reasoningContent": {"reasoningText": {"text": "hm", "signature": "s"}}},
                {"text": "I look"},
                {"toolUse": {"toolUseId": "t1", "name": "get", "input": {"a": 1}}},
                {"citationsContent": {"content": [{"text": "c"}], "citations": [{"title": "t"}]}},
            ],
        }
    },
    "stopReason": "tool_use",
    "usage": METADATA[1]["usage"],
    "metrics": {"latencyMs": 31},
    "trace": {"guardrail": {}},
    "additionalModelResponseFields": {"x": 1},
}


def test_a_whole_reply_is_read() -> None:
    reply = DIALECT.codec.parse_reply(json.dumps(BODY).encode(), REQUEST)
    assert reply.model == CLAUDE
    assert reply.choices[0].blocks == (
        Reasoning("hm", "bedrock", Signature("bedrock", "s")),
        Text("I look"),
        ToolCall("t1", "get", '{"a":1}'),
        Text("c", citations=(Opaque("bedrock", {"title": "t"}, "citation"),)),
    )
    assert reply.choices[0].stop.reason is StopReason.TOOL
    assert reply.usage is not None
    assert (reply.usage.input, reply.usage.output, reply.usage.cache_read, reply.usage.cache_write) == (12, 7, 100, 20)


def test_a_whole_reply_round_trips_unchanged() -> None:
    translated = dragoman.translate_reply(BODY, source="bedrock", target="bedrock")
    assert translated.body == BODY


def test_a_stop_sequence_that_the_service_reports_is_written() -> None:
    body = {**BODY, "stopReason": "stop_sequence", "additionalModelResponseFields": {"stop_sequence": "END"}}
    body["output"] = {"message": {"content": [{"text": "x"}]}}
    assert dragoman.translate_reply(body, source="bedrock", target="anthropic").body["stop_sequence"] == "END"


def test_a_reply_of_another_dialect_is_written_as_the_service_would() -> None:
    chat = {
        "id": "x",
        "model": "m",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "length"}],
        "usage": {"prompt_tokens": 132, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 100}},
    }
    body = dragoman.translate_reply(chat, source="openai", target="bedrock").body
    assert body["output"] == {"message": {"role": "assistant", "content": [{"text": "hi"}]}}
    assert body["stopReason"] == "max_tokens"
    assert body["usage"]["cacheReadInputTokens"] == 100
    assert body["usage"]["inputTokens"] == 32


@pytest.mark.parametrize(
    ("block", "field"),
    [
        ({"toolUse": {"toolUseId": None, "name": "q", "input": {}}}, "output.message.content[0].toolUse.toolUseId"),
        ({"toolUse": {"toolUseId": "t", "input": {}}}, "output.message.content[0].toolUse.name"),
        ({"type": "tool_use", "name": "q"}, "output.message.content[0].toolUseId"),
    ],
)
def test_a_call_without_id_or_name_is_an_upstream_violation(block: Any, field: str) -> None:
    body = {"output": {"message": {"content": [block]}}, "stopReason": "tool_use"}
    with pytest.raises(MissingField) as missing:
        DIALECT.codec.parse_reply(json.dumps(body).encode(), REQUEST)
    assert missing.value.at == field


@pytest.mark.parametrize(
    "body", ["", "[]", "{}", '{"output":{}}', '{"output":{"message":{}}}', '{"output":{"message":{"content":{}}}}']
)
def test_a_reply_of_another_shape_is_a_violation(body: str) -> None:
    with pytest.raises(UpstreamViolation):
        DIALECT.codec.parse_reply(body.encode(), REQUEST)


def test_a_malformed_reply_without_content_is_a_fault() -> None:
    body = {"output": {"message": {"content": []}}, "stopReason": "malformed_tool_use"}
    with pytest.raises(UpstreamFault, match="malformed_tool_use"):
        DIALECT.codec.parse_reply(json.dumps(body).encode(), REQUEST)


def test_unrepresentable_content_in_a_reply_is_a_misuse() -> None:
    for block in (
        Reasoning("x", "bedrock", Signature("bedrock", "y", "encrypted")),
        Opaque("openai", {}),
        Text("x", signature=Signature("a", "b")),
    ):
        with pytest.raises(LocalMisuse):
            DIALECT.codec.render_reply(
                Reply("", "m", (Choice((block,), Stop(StopReason.END)),)), REQUEST, SYSTEM_ENVIRONMENT
            )


def test_frames_that_were_padded_are_not_padded_by_us() -> None:
    data = stream(START, delta(0, text="a"), ("contentBlockStop", {"contentBlockIndex": 0}), stop("end_turn"), METADATA)
    translator = dragoman.stream_translator(source="bedrock", target="anthropic")
    assert b'"p"' not in translator.feed(data)

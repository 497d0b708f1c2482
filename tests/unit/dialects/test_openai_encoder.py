"""Writing Chat streams: both official helpers read them, and some frames pass unchanged."""

# tables of payloads, one case a line
from __future__ import annotations

import json
from typing import Any

import pytest

from dragoman.dialects.base import Environment, StreamReader
from dragoman.dialects.openai import DIALECT, OpenaiCodec
from dragoman.errors import Fault
from dragoman.model.assemble import assemble_reply
from dragoman.model.blocks import Extra, Media, Opaque, Reasoning, Signature, Text, ToolCall
from dragoman.model.conversation import Conversation, Message, Stop, StopReason, Usage
from dragoman.model.events import (
    FINISHED,
    ArgumentsDelta,
    BlockEnded,
    BlockStarted,
    Event,
    Events,
    Failed,
    OpaqueEvent,
    ReasoningDelta,
    SignatureAdded,
    Started,
    Stopped,
    TextDelta,
    UsageReported,
)

CODEC, BINDING = DIALECT.codec, DIALECT.binding
ENVIRONMENT = Environment(new_id=lambda prefix: f"{prefix}1", now=lambda: 5)
REQUEST = Conversation("asked", (Message("user", (Text("?"),)),))
WITH_USAGE = Conversation("asked", (), extra=Extra("openai", {"stream_options": {"include_usage": True}}))
HELLO: Events = (Started("c1", "m1"), BlockStarted(7, Text("")), TextDelta(7, "hi"), BlockEnded(7))
END: Events = (Stopped(Stop(StopReason.END)), FINISHED)


def write(events: Events, conversation: Conversation = REQUEST, codec: Any = CODEC) -> bytes:
    encoder = codec.encoder(conversation, ENVIRONMENT)
    return b"".join(BINDING.encode_frame(payload) for event in events for payload in encoder.feed((event,)))


def chunks(events: Events, conversation: Conversation = REQUEST, codec: Any = CODEC) -> list[Any]:
    lines = [line[6:] for line in write(events, conversation, codec).decode().split("\n\n") if line]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


def deltas(events: Events, codec: Any = CODEC) -> list[Any]:
    return [
        choice["delta"] for chunk in chunks(events, codec=codec) if chunk != "[DONE]" for choice in chunk["choices"]
    ]


def read(data: bytes) -> list[Event]:
    reader = StreamReader(BINDING.frame_decoder(), CODEC.decoder(REQUEST, ENVIRONMENT))
    return [event for decoded in (*reader.feed(data), *reader.close()) for event in decoded.events]


def breaches(data: bytes) -> list[str]:
    decoder = BINDING.frame_decoder()
    return [b.rule for b in CODEC.stream_breaches([*decoder.feed(data), *decoder.close()])]


def test_a_plain_reply_frame_by_frame() -> None:
    common = {"id": "c1", "object": "chat.completion.chunk", "created": 5, "model": "m1"}

    def choice(delta: Any, finish: str | None = None) -> Any:
        return {**common, "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}]}

    assert chunks((*HELLO, *END)) == [
        choice({"role": "assistant", "content": ""}),
        choice({"content": "hi"}),
        choice({}, "stop"),
        "[DONE]",
    ]


PARALLEL: Events = (
    Started("c1", "m1"),
    BlockStarted(9, Reasoning("", "anthropic")),
    ReasoningDelta(9, "think"),
    SignatureAdded(9, Signature("openai", "sig")),
    BlockEnded(9),
    BlockStarted(3, Text("")),
    TextDelta(3, "a"),
    BlockEnded(3),
    BlockStarted(5, ToolCall("x", "f")),
    BlockStarted(2, ToolCall("y", "patch", form="text")),
    ArgumentsDelta(5, '{"p":'),
    ArgumentsDelta(2, "***"),
    ArgumentsDelta(5, "1}"),
    BlockEnded(5),
    BlockEnded(2),
    UsageReported(Usage(12, 7, 100, 20, 3)),
    Stopped(Stop(StopReason.TOOL)),
    FINISHED,
)


def test_calls_are_numbered_densely_and_named_once() -> None:
    assert [d["tool_calls"][0] for d in deltas(PARALLEL) if "tool_calls" in d] == [
        {"index": 0, "id": "x", "type": "function", "function": {"name": "f", "arguments": ""}},
        {"index": 1, "id": "y", "type": "custom", "custom": {"name": "patch", "input": ""}},
        {"index": 0, "function": {"arguments": '{"p":'}},
        {"index": 1, "custom": {"input": "***"}},
        {"index": 0, "function": {"arguments": "1}"}},
    ]


def test_signed_reasoning_is_sent_again_whole_with_its_signature() -> None:
    assert [d for d in deltas(PARALLEL) if "reasoning_content" in d or "reasoning_details" in d] == [
        {"reasoning_content": "think"},
        {"reasoning_details": [{"type": "reasoning.text", "text": "think", "signature": "sig", "index": 0}]},
    ]
    events = (
        Started("", "m"),
        BlockStarted(0, Reasoning("", "a")),
        SignatureAdded(0, Signature("openai", "d", "redacted")),
        BlockEnded(0),
        *END,
    )
    assert {"reasoning_details": [{"type": "reasoning.encrypted", "data": "d", "index": 0}]} in deltas(events)


def test_the_reasoning_field_is_a_setting() -> None:
    assert {"reasoning": "think"} in deltas(PARALLEL, OpenaiCodec(reasoning_field="reasoning"))


def test_an_encoded_stream_is_decoded_unchanged() -> None:
    original, decoded = assemble_reply(PARALLEL), assemble_reply(read(write(PARALLEL, WITH_USAGE)))
    assert decoded.choices[0].blocks == (
        Reasoning("think", "openai", Signature("openai", "sig")),
        *original.choices[0].blocks[1:],
    )
    assert (decoded.usage, decoded.choices[0].stop) == (original.usage, original.choices[0].stop)


def test_an_encoded_stream_breaks_no_rule() -> None:
    for conversation in (REQUEST, WITH_USAGE):
        assert breaches(write(PARALLEL, conversation)) == []
        assert breaches(write((*HELLO, *END), conversation)) == []
        assert breaches(write((Failed(Fault("server", "x")),), conversation)) == []
        assert breaches(write((*HELLO, Failed(Fault("server", "x"))), conversation)) == []


def test_usage_comes_last_and_only_on_request() -> None:
    assert not [c for c in chunks(PARALLEL) if "usage" in c]
    *others, usage, done = chunks(PARALLEL, WITH_USAGE)
    assert all(chunk["usage"] is None for chunk in others)
    assert (usage["choices"], done) == ([], "[DONE]")
    assert usage["usage"] == {
        "prompt_tokens": 132,
        "completion_tokens": 7,
        "total_tokens": 139,
        "prompt_tokens_details": {"cached_tokens": 100, "cache_write_tokens": 20},
        "completion_tokens_details": {"reasoning_tokens": 3},
    }


def test_usage_reported_only_at_the_start_counts() -> None:
    events = (Started("c", "m", Usage(3, 0)), *END)
    assert chunks(events, WITH_USAGE)[-2]["usage"]["prompt_tokens"] == 3


def test_after_an_error_nothing_follows() -> None:
    written = chunks((*HELLO, Failed(Fault("overloaded", "busy", 529))))
    assert written[-1] == {
        "error": {"message": "busy", "type": "server_error", "param": None, "code": "server_is_overloaded"}
    }
    assert "[DONE]" not in written


def test_every_choice_has_its_role_its_numbers_and_its_end() -> None:
    events: Events = (
        Started("c", "m"),
        BlockStarted(0, ToolCall("a", "f"), 0),
        BlockStarted(1, ToolCall("b", "f"), 1),
        BlockEnded(0),
        BlockEnded(1),
        Stopped(Stop(StopReason.TOOL), 0),
        Stopped(Stop(StopReason.TOOL), 1),
        FINISHED,
    )
    assert breaches(write(events)) == []
    assert len(assemble_reply(read(write(events))).choices) == 2


def test_two_open_texts_are_sent_one_after_the_other() -> None:
    events: Events = (
        Started("c", "m"),
        BlockStarted(0, Text("")),
        BlockStarted(1, Text("")),
        TextDelta(0, "a"),
        TextDelta(1, "x"),
        TextDelta(0, "b"),
        BlockEnded(1),
        BlockEnded(0),
        *END,
    )
    assert "".join(d.get("content", "") for d in deltas(events)) == "abx"


def test_fields_that_only_chat_knows_are_written_into_their_chunk() -> None:
    events: Events = (
        Started("c", "m", extra=Extra("openai", {"system_fingerprint": "fp", "created": 99})),
        OpaqueEvent("openai", "logprobs", {"index": 0, "logprobs": {"content": [1]}}),
        OpaqueEvent("openai", "delta", {"index": 0, "delta": {"audio": {"data": "x"}}}),
        BlockStarted(0, ToolCall("a", "f", extra=Extra("openai", {"extra_content": 1}))),
        BlockEnded(0),
        BlockStarted(1, Opaque("openai", {"annotations": [1]}, extra=Extra("openai", {"~slot": "message"}))),
        BlockEnded(1),
        BlockStarted(2, Media("image", "image/png", "base64", "aGk=")),
        BlockEnded(2),
        Stopped(
            Stop(
                StopReason.END, extra=Extra("openai", {"finish_reason": "odd", "choice": {"native_finish_reason": "x"}})
            )
        ),
        FINISHED,
    )
    written = chunks(events)
    assert all((c["system_fingerprint"], c["created"]) == ("fp", 99) for c in written[:-1])
    assert written[1]["choices"][0]["logprobs"] == {"content": [1]}
    assert written[2]["choices"][0]["delta"] == {"audio": {"data": "x"}}
    assert written[3]["choices"][0]["delta"]["tool_calls"][0]["extra_content"] == 1
    assert written[5]["choices"][0]["delta"] == {"annotations": [1]}
    assert written[6]["choices"][0]["delta"]["images"][0]["index"] == 0
    last = written[-2]["choices"][0]
    assert (last["finish_reason"], last["native_finish_reason"]) == ("odd", "x")


def test_a_ping_is_a_comment_and_never_an_empty_data_line() -> None:
    ping = CODEC.encoder(REQUEST, ENVIRONMENT).ping()
    assert ping is not None and BINDING.encode_frame(ping) == b": ping\n\n"
    assert b"data: \n" not in write(PARALLEL)


@pytest.mark.parametrize("text", ["\n", "\u2028", '"\\', "\ud83d", "é🐉", "\x00"])
def test_any_text_survives(text: str) -> None:
    events = (Started("c", "m"), BlockStarted(0, Text("")), TextDelta(0, text), BlockEnded(0), *END)
    assert TextDelta(0, text) in read(write(events))


# ---- passing frames


def passes(*batches: Events, conversation: Conversation = REQUEST) -> list[bool | int]:
    """Return for each batch True if its frame passes, else the number of frames that replace it."""
    encoder = CODEC.encoder(conversation, ENVIRONMENT)
    out: list[bool | int] = []
    for batch in batches:
        passed = encoder.passes(batch)
        out.append(True if passed else len(list(encoder.feed(batch))))
    return out


USAGE = UsageReported(Usage(1, 2))


def test_plain_frames_pass() -> None:
    assert (
        passes((Started("c", "m"),), HELLO[1:3], (BlockEnded(7), Stopped(Stop(StopReason.END))), (FINISHED,))
        == [True] * 4
    )


def test_an_unrequested_usage_frame_does_not_pass() -> None:
    assert passes(HELLO, (*END[:1],), (USAGE,), (FINISHED,)) == [True, True, 0, True]
    assert passes(HELLO, (*END[:1],), (USAGE,), (FINISHED,), conversation=WITH_USAGE) == [True] * 4


def test_usage_sent_too_early_is_sent_again_at_the_end() -> None:
    assert passes(HELLO[:3], (USAGE, TextDelta(7, "x")), (TextDelta(7, "y"),), (BlockEnded(7), END[0]), (FINISHED,), conversation=WITH_USAGE) == [
        True, True, True, True, 2
    ]  # fmt: skip


def test_frames_of_calls_are_rewritten() -> None:
    assert passes((Started("c", "m"),), (BlockStarted(0, ToolCall("a", "f")),), (ArgumentsDelta(0, "{}"),), (BlockEnded(0), END[0]), (FINISHED,)) == [
        True, 1, 1, True, True
    ]  # fmt: skip


def test_a_synthetic_end_is_written() -> None:
    assert passes(HELLO[:3], (BlockEnded(7), *END)) == [True, 2]


def test_frames_have_no_names() -> None:
    encoder = CODEC.encoder(WITH_USAGE, ENVIRONMENT)
    assert {payload.kind for payload in encoder.feed(PARALLEL)} == {b""}


def test_blocks_that_start_during_reasoning_wait_for_its_signature() -> None:
    events: Events = (
        Started("c", "m"),
        BlockStarted(0, Reasoning("", "x")),
        BlockStarted(1, ToolCall("a", "f")),
        BlockStarted(2, Text("")),
        ArgumentsDelta(1, "{}"),
        ReasoningDelta(0, "t"),
        TextDelta(2, "hi"),
        BlockEnded(1),
        SignatureAdded(0, Signature("openai", "s")),
        BlockEnded(0),
        BlockEnded(2),
        Stopped(Stop(StopReason.TOOL)),
        FINISHED,
    )
    assert breaches(write(events)) == []
    assert assemble_reply(read(write(events))).choices[0].blocks == (
        Reasoning("t", "openai", Signature("openai", "s")),
        ToolCall("a", "f", "{}"),
        Text("hi"),
    )

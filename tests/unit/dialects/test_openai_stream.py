"""Reading Chat streams as real upstreams send them."""

# tables of payloads, one case a line
from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

import dragoman
from dragoman.dialects.base import Environment, StreamReader
from dragoman.dialects.openai import DIALECT
from dragoman.errors import DragomanError, Fault, MissingField, OutOfOrder
from dragoman.model.assemble import assemble_reply, check
from dragoman.model.blocks import Extra, Media, Opaque, Reasoning, Signature, Text, ToolCall
from dragoman.model.conversation import Conversation, Stop, StopReason, Usage
from dragoman.model.events import (
    FINISHED,
    ArgumentsDelta,
    BlockEnded,
    BlockStarted,
    Event,
    Failed,
    Finished,
    OpaqueEvent,
    ReasoningDelta,
    SignatureAdded,
    Started,
    Stopped,
    TextDelta,
    UsageReported,
)
from dragoman.wire.frame import Frame
from tests.anthropic_client import parse_sse
from tests.wrong_values import WRONG_VALUES, body_paths, dotted_path, with_value

CODEC = DIALECT.codec
REQUEST = Conversation("m", (), stop=("END",))
ENVIRONMENT = Environment(new_id=lambda prefix: f"{prefix}1", now=lambda: 5)
DONE = "[DONE]"


def chunk(delta: Any = None, finish: Any = None, index: int | None = 0, **fields: Any) -> dict[str, Any]:
    choice: dict[str, Any] = {"delta": {} if delta is None else delta, "finish_reason": finish}
    if index is not None:
        choice["index"] = index
    return {"id": "c1", "object": "chat.completion.chunk", "created": 5, "model": "m1", "choices": [choice], **fields}


def call(
    index: Any = None, call_id: Any = None, name: Any = None, arguments: Any = None, **fields: Any
) -> dict[str, Any]:
    function = {k: v for k, v in (("name", name), ("arguments", arguments)) if v is not None}
    entry = {k: v for k, v in (("index", index), ("id", call_id)) if v is not None}
    return {"tool_calls": [{**entry, **({"function": function} if function else {}), **fields}]}


def wire(*frames: Any) -> bytes:
    return b"".join(b"data: %b\n\n" % (f.encode() if isinstance(f, str) else json.dumps(f).encode()) for f in frames)


def read(data: bytes, *cuts: int, broken: Fault | None = None) -> list[Event]:
    reader = StreamReader(DIALECT.binding.frame_decoder(), CODEC.decoder(REQUEST, ENVIRONMENT))
    steps = []
    for start, end in itertools.pairwise((0, *cuts, len(data))):
        steps += reader.feed(data[start:end])
    steps += reader.close(broken)
    events = [event for decoded in steps for event in decoded.events]
    check(events)
    return events


def decoded_events(*frames: Any, done: bool = True) -> list[Event]:
    """The events of the frames, without the first."""
    events = read(wire(*frames, *([DONE] if done else [])))
    assert isinstance(events[0], Started | Failed)
    return events[1:] if isinstance(events[0], Started) else events


def calls(*frames: Any) -> list[tuple[str, str, str]]:
    reply = assemble_reply(read(wire(*frames, chunk(finish="tool_calls"), DONE)))
    return [(b.id, b.name, b.arguments) for b in reply.choices[0].blocks if isinstance(b, ToolCall)]


def failure(*frames: Any) -> Fault:
    last = read(wire(*frames))[-1]
    assert isinstance(last, Failed)
    return last.fault


# ---- text and reasoning


def test_a_plain_reply() -> None:
    events = read(
        wire(
            chunk({"role": "assistant", "content": ""}),
            chunk({"content": "Hel"}),
            chunk({"content": "lo"}),
            chunk(finish="stop"),
            DONE,
        )
    )
    assert events == [
        Started("c1", "m1"),
        BlockStarted(0, Text("")),
        TextDelta(0, "Hel"),
        TextDelta(0, "lo"),
        BlockEnded(0),
        Stopped(Stop(StopReason.END)),
        FINISHED,
    ]


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_reasoning_and_content_in_one_chunk_are_two_blocks_reasoning_first(field: str) -> None:
    spelt = Extra("openai", {"~field": field}, frozenset({"~field"})) if field == "reasoning" else None
    assert decoded_events(chunk({"content": "a", field: "t"}), chunk(finish="stop")) == [
        BlockStarted(0, Reasoning("", "openai", extra=spelt)),
        ReasoningDelta(0, "t"),
        BlockEnded(0),
        BlockStarted(1, Text("")),
        TextDelta(1, "a"),
        BlockEnded(1),
        Stopped(Stop(StopReason.END)),
        FINISHED,
    ]


def test_reasoning_and_text_alternate_as_blocks() -> None:
    reply = assemble_reply(
        read(
            wire(
                *(
                    chunk({name: text})
                    for name, text in (
                        ("reasoning_content", "a"),
                        ("content", "b"),
                        ("reasoning_content", "c"),
                        ("content", "d"),
                    )
                ),
                chunk(finish="stop"),
                DONE,
            )
        )
    )
    assert reply.choices[0].blocks == (Reasoning("a", "openai"), Text("b"), Reasoning("c", "openai"), Text("d"))


def test_a_refusal_is_a_separate_text_and_stops_with_refusal() -> None:
    reply = assemble_reply(
        read(wire(chunk({"refusal": "I "}), chunk({"refusal": "won't"}), chunk(finish="stop"), DONE))
    )
    refused = Extra("openai", {"refusal": True}, frozenset({"refusal"}))  # how it was spelt: the stop says it too
    assert reply.choices[0].blocks == (Text("I won't", extra=refused),)
    word = Extra("openai", {"~finish_reason": "stop"}, frozenset({"~finish_reason"}))
    assert reply.choices[0].stop == Stop(StopReason.REFUSAL, extra=word)


def test_content_as_parts() -> None:
    parts = [
        {"type": "thinking", "thinking": [{"type": "text", "text": "t"}]},
        {"type": "text", "text": "a"},
        {"type": "odd"},
    ]
    events = decoded_events(chunk({"content": parts}), chunk(finish="stop"))
    assert ReasoningDelta(0, "t") in events and TextDelta(1, "a") in events
    assert OpaqueEvent("openai", "delta", {"index": 0, "delta": {"content": [{"type": "odd"}]}}) in events


def test_pictures() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}, "index": 0}
    reply = assemble_reply(read(wire(chunk({"content": "see", "images": [image]}), chunk(finish="stop"), DONE)))
    assert reply.choices[0].blocks == (Text("see"), Media("image", "image/png", "base64", "aGk="))


# ---- reasoning_details


def test_details_of_one_index_are_one_block_and_their_text_appears_once() -> None:
    def detail(**fields: Any) -> dict[str, Any]:
        return {"type": "reasoning.text", "index": 0, **fields}

    reply = assemble_reply(
        read(
            wire(
                chunk({"reasoning": "th", "reasoning_details": [detail(text="th")]}),
                chunk({"reasoning": "ink", "reasoning_details": [detail(text="ink")]}),
                chunk({"reasoning_details": [detail(signature="sig")]}),
                chunk({"reasoning_details": [{"type": "reasoning.encrypted", "data": "blob", "index": 1}]}),
                chunk({"content": "a"}),
                chunk(finish="stop"),
                DONE,
            )
        )
    )
    assert reply.choices[0].blocks == (
        Reasoning("think", "openai", Signature("openai", "sig")),
        Reasoning("", "openai", Signature("openai", "blob", "encrypted")),
        Text("a"),
    )


def test_a_signature_with_the_whole_text_again_signs_the_streamed_text() -> None:
    events = decoded_events(
        chunk({"reasoning_content": "th"}),
        chunk({"reasoning_content": "ink"}),
        chunk({"reasoning_details": [{"type": "reasoning.text", "text": "think", "signature": "s", "index": 0}]}),
        chunk({"content": "a"}),
        chunk(finish="stop"),
    )
    assert events[:5] == [
        BlockStarted(0, Reasoning("", "openai")),
        ReasoningDelta(0, "th"),
        ReasoningDelta(0, "ink"),
        SignatureAdded(0, Signature("openai", "s")),
        BlockEnded(0),
    ]


def test_summaries_and_unknown_details() -> None:
    odd: Any = {"type": "reasoning.new", "index": 1}
    events = decoded_events(
        chunk({"reasoning_details": [{"type": "reasoning.summary", "summary": "s", "index": 0}, odd]}),
        chunk(finish="stop"),
    )
    assert events[0] == BlockStarted(0, Reasoning("", "openai", extra=Extra("openai", {"type": "reasoning.summary"})))
    assert OpaqueEvent("openai", "delta", {"index": 0, "delta": {"reasoning_details": [odd]}}) in events


def test_thinking_blocks_sign_the_text_of_the_plain_field() -> None:
    reply = assemble_reply(
        read(
            wire(
                chunk(
                    {
                        "reasoning_content": "t",
                        "thinking_blocks": [{"type": "thinking", "thinking": "t", "signature": ""}],
                    }
                ),
                chunk(
                    {
                        "reasoning_content": "",
                        "thinking_blocks": [{"type": "thinking", "thinking": "", "signature": "s"}],
                    }
                ),
                chunk({"content": "a"}, "stop"),
                DONE,
            )
        )
    )
    assert reply.choices[0].blocks == (Reasoning("t", "openai", Signature("openai", "s")), Text("a"))


# ---- calls


def test_interleaved_arguments_reach_their_calls() -> None:
    assert calls(
        chunk(call(0, "a", "f", "")), chunk(call(1, "b", "g", "")), chunk(call(0, arguments='{"x":')),
        chunk(call(1, arguments='{"y":')), chunk(call(0, arguments="1}")), chunk(call(1, arguments="2}")),
    ) == [("a", "f", '{"x":1}'), ("b", "g", '{"y":2}')]  # fmt: skip


def test_text_closes_when_a_call_starts_and_text_after_it_is_a_new_block() -> None:
    events = decoded_events(
        chunk({"content": "a", **call(0, "c", "f", "{}")}), chunk({"content": "b"}), chunk(finish="tool_calls")
    )
    assert events == [
        BlockStarted(0, Text("")),
        TextDelta(0, "a"),
        BlockEnded(0),
        BlockStarted(1, ToolCall("c", "f")),
        ArgumentsDelta(1, "{}"),
        BlockStarted(2, Text("")),
        TextDelta(2, "b"),
        BlockEnded(2),
        BlockEnded(1),
        Stopped(Stop(StopReason.TOOL)),
        FINISHED,
    ]


FIELD_CALLS: dict[str, tuple[list[dict[str, Any]], list[tuple[str, str, str]]]] = {
    "index missing, then the rest without id": ([call(None, "a", "f", "{"), call(None, arguments="}")], [("a", "f", "{}")]),
    "index missing, two ids": ([call(None, "a", "f", "1"), call(None, "b", "g", "2")], [("a", "f", "1"), ("b", "g", "2")]),
    "index null": ([{"tool_calls": [{"index": None, "id": "a", "function": {"name": "f", "arguments": "{}"}}]}], [("a", "f", "{}")]),
    "index starts at 1": ([call(1, "a", "f", "{}")], [("a", "f", "{}")]),
    "index with a gap": ([call(0, "a", "f", "1"), call(5, "b", "g", "2")], [("a", "f", "1"), ("b", "g", "2")]),
    "id and name on every chunk": ([call(0, "a", "f", "{"), call(0, "a", "f", "}")], [("a", "f", "{}")]),
    "two calls on index 0": ([call(0, "a", "f", "1"), call(0, "b", "f", "2"), call(0, arguments="3")], [("a", "f", "1"), ("b", "f", "23")]),
    "two calls on index 0, no ids": ([call(0, None, "f", "1"), call(0, None, "g", "2")], [("", "f", "1"), ("", "g", "2")]),
    "the name after the id": ([call(0, "a"), call(0, arguments="{"), call(0, None, "f", "}")], [("a", "f", "{}")]),
    "the id after nothing": ([call(0, None, None, ""), call(0, "a", "f", "{}")], [("a", "f", "{}")]),
    "another id without a name": ([call(0, "a", "f", "{"), call(0, "zz", None, "}")], [("a", "f", "{}")]),
    "arguments as an object": ([call(0, "a", "f", {"x": [1]})], [("a", "f", '{"x":[1]}')]),
    "arguments null": ([{"tool_calls": [{"index": 0, "id": "a", "function": {"name": "f", "arguments": None}}]}], [("a", "f", "")]),
    "no arguments at all": ([call(0, "a", "f")], [("a", "f", "")]),
    "no id ever": ([call(0, None, "f", "{}")], [("", "f", "{}")]),
    "an empty id": ([call(0, "", "f", "{}")], [("", "f", "{}")]),
    "function null": ([call(0, "a", "f", "{"), {"tool_calls": [{"index": 0, "function": None}]}, call(0, arguments="}")], [("a", "f", "{}")]),
    "an empty entry": ([{"tool_calls": [{}]}, call(0, "a", "f", "{}")], [("a", "f", "{}")]),
    "entries null": ([{"tool_calls": [None]}, {"tool_calls": None}, call(0, "a", "f", "{}")], [("a", "f", "{}")]),
    "both in one chunk": ([{"tool_calls": call(0, "a", "f", "1")["tool_calls"] + call(1, "b", "g", "2")["tool_calls"]}], [("a", "f", "1"), ("b", "g", "2")]),
    "the older function_call": ([{"function_call": {"name": "f", "arguments": "{"}}, {"function_call": {"arguments": "}"}}], [("", "f", "{}")]),
}  # fmt: skip


@pytest.mark.parametrize("title", FIELD_CALLS)
def test_calls_as_upstreams_of_the_field_send_them(title: str) -> None:
    deltas, expected = FIELD_CALLS[title]
    assert calls(*map(chunk, deltas)) == expected


def test_a_custom_call() -> None:
    deltas = (
        {"tool_calls": [{"index": 0, "id": "a", "type": "custom", "custom": {"name": "patch", "input": "*** "}}]},
        {"tool_calls": [{"index": 0, "custom": {"input": "Begin"}}]},
    )
    reply = assemble_reply(read(wire(*map(chunk, deltas), chunk(finish="tool_calls"), DONE)))
    assert reply.choices[0].blocks == (ToolCall("a", "patch", "*** Begin", "text"),)


def test_unknown_fields_of_a_call_are_kept() -> None:
    signature: Any = {"google": {"thought_signature": "x"}}
    events = decoded_events(chunk(call(0, "a", "f", "{}", extra_content=signature)), chunk(finish="tool_calls"))
    assert events[0] == BlockStarted(0, ToolCall("a", "f", extra=Extra("openai", {"extra_content": signature})))


def test_a_call_without_a_name_by_the_end_names_the_missing_field() -> None:
    fault = failure(chunk(call(0, "a")), chunk(call(0, arguments="{}")), chunk(finish="tool_calls"))
    assert fault.at == "choices[0].delta.tool_calls[0].function.name"


def test_arguments_that_wait_for_a_name_are_bounded() -> None:
    piece = "x" * 300_000
    assert "no name" in failure(chunk(call(0, "a")), *(chunk(call(0, arguments=piece)) for _ in range(4))).message


def test_escapes_cut_between_chunks_stay_exact() -> None:
    assert calls(
        chunk(call(0, "a", "f", "")), *(chunk(call(0, arguments=p)) for p in ('{"p":"caf', "é \\u00", 'e9"}'))
    ) == [("a", "f", '{"p":"café \\u00e9"}')]


# ---- ends


@pytest.mark.parametrize(
    ("word", "stop"),
    [
        ("stop", Stop(StopReason.END)),
        ("length", Stop(StopReason.LENGTH)),
        ("tool_calls", Stop(StopReason.TOOL)),
        ("function_call", Stop(StopReason.TOOL, extra=Extra("openai", {"~older": True}, frozenset({"~older"})))),
        ("content_filter", Stop(StopReason.REFUSAL)),
        (
            "eos_token",
            Stop(StopReason.END, extra=Extra("openai", {"~finish_reason": "eos_token"}, frozenset({"~finish_reason"}))),
        ),
        ("odd", Stop(StopReason.END, extra=Extra("openai", {"finish_reason": "odd"}))),
    ],
)
def test_finish_reasons(word: str, stop: Stop) -> None:
    assert Stopped(stop) in decoded_events(chunk({"content": "a"}), chunk(finish=word))


def test_an_empty_finish_reason_is_none() -> None:
    events = decoded_events(chunk({"content": "a"}, ""), chunk({"content": "b"}, ""), chunk(finish="length"))
    assert [e.text for e in events if isinstance(e, TextDelta)] == ["a", "b"]
    assert [e.stop.reason for e in events if isinstance(e, Stopped)] == [StopReason.LENGTH]


def test_a_second_finish_and_empty_chunks_after_it_are_ignored() -> None:
    events = decoded_events(
        chunk({"content": "a"}),
        chunk(finish="stop"),
        chunk({"content": "", "role": "assistant"}, "stop"),
        chunk({"tool_calls": []}),
    )
    assert len([e for e in events if isinstance(e, Stopped)]) == 1


@pytest.mark.parametrize(
    "delta", [{"content": "late"}, {"reasoning": "late"}, call(0, "a", "f", "{}"), call(0, arguments="x")]
)
def test_content_after_the_finish_breaks_the_grammar(delta: dict[str, Any]) -> None:
    decoder = CODEC.decoder(REQUEST, ENVIRONMENT)
    frames = [chunk(call(0, "a", "f")), chunk(finish="stop")]
    for frame in frames:
        decoder.feed(Frame("", json.dumps(frame).encode(), b""))
    with pytest.raises(OutOfOrder):
        decoder.feed(Frame("", json.dumps(chunk(delta)).encode(), b""))


def test_usage_anywhere_each_replaces_the_last() -> None:
    def usage(n: int) -> dict[str, int]:
        return {"prompt_tokens": n, "completion_tokens": n}

    events = decoded_events(
        chunk({"content": "a"}, usage=usage(1)),
        chunk(finish="stop", usage=usage(2)),
        {"id": "c1", "choices": [], "usage": usage(3)},
    )
    assert [e.usage for e in events if isinstance(e, UsageReported)] == [Usage(1, 1), Usage(2, 2), Usage(3, 3)]
    assert assemble_reply(
        read(wire(chunk({"content": "a"}, "stop", usage=usage(2)), {"choices": [], "usage": None}, DONE))
    ).usage == Usage(2, 2)


def test_done_before_any_reason_to_stop_is_no_end() -> None:
    assert failure(chunk({"content": "a"}), DONE).status == 502


def test_a_clean_end_after_the_finish_needs_no_done() -> None:
    assert decoded_events(chunk({"content": "a"}), chunk(finish="stop"), done=False)[-1] == FINISHED


@pytest.mark.parametrize(
    "frames",
    [
        (),
        (chunk({"content": "a"}),),
        (chunk(call(0, "a", "f", '{"x')),),
        (DONE,),
        (chunk({"content": "a"}, index=0), chunk(finish="stop", index=1)),
    ],
)
def test_a_cut_stream_is_never_a_clean_finish(frames: tuple[Any, ...]) -> None:
    assert failure(*frames).status == 502


def test_half_a_last_frame_is_a_failure() -> None:
    data = wire(chunk({"content": "a"}), chunk(finish="stop"))
    for missing in range(3, 60):
        assert isinstance(read(data[:-missing])[-1], Failed)


def test_a_broken_connection_is_reported_with_its_fault() -> None:
    fault = Fault("timeout", "too slow", 504)
    assert read(wire(chunk({"content": "a"})), broken=fault)[-1] == Failed(fault)
    assert read(wire(chunk({"content": "a"}, "stop"), DONE), broken=fault)[-1] == FINISHED


@pytest.mark.parametrize(
    ("frame", "kind"),
    [
        (b'data: {"error":{"message":"busy","type":"server_error","code":"server_is_overloaded"}}\n\n', "overloaded"),
        (b'event: error\ndata: {"error":{"message":"busy","code":429}}\n\n', "rate_limit"),
        (b'event: error\ndata: {"message":"broke"}\n\n', "server"),
        (b'data: {"error":"broke"}\n\n', "server"),
        (b'data: {"id":"x","choices":[{"index":0,"delta":{"content":""},"finish_reason":"error"}],"error":{"code":502,"message":"m"}}\n\n', "server"),
    ],
)  # fmt: skip
def test_an_error_frame_fails_the_stream(frame: bytes, kind: str) -> None:
    events = read(wire(chunk({"content": "a"})) + frame + wire(chunk({"content": "b"}), DONE))
    assert isinstance(events[-1], Failed) and events[-1].fault.kind == kind
    assert TextDelta(0, "a") in events


# ---- odd frames


def test_null_and_empty_frames_do_not_travel() -> None:
    decoder = CODEC.decoder(REQUEST, ENVIRONMENT)
    for data in (b"null", b"", b" ", b" null "):
        assert decoder.feed(Frame("", data, b"")) is None


@pytest.mark.parametrize(
    "odd",
    [
        {"choices": []},
        {"choices": None},
        {},
        {"choices": [None]},
        {"choices": [{"index": 0}]},
        {"choices": [{"index": 0, "delta": None}]},
        {"object": "ping", "x": 1},
    ],
)
def test_chunks_without_content_emit_no_events(odd: dict[str, Any]) -> None:
    plain = decoded_events(chunk({"content": "a"}), chunk(finish="stop"))
    assert decoded_events(odd, chunk({"content": "a"}), odd, chunk(finish="stop"), odd) == plain


def test_the_first_frame_of_azure_is_not_the_start() -> None:
    events = read(
        wire(
            {"id": "", "model": "", "choices": [], "prompt_filter_results": [1]}, chunk({"content": "a"}, "stop"), DONE
        )
    )
    assert events[0] == Started("c1", "m1", extra=Extra("openai", {"prompt_filter_results": [1]}))


def test_extra_fields_of_the_first_chunk_are_kept_and_padding_is_not() -> None:
    first = chunk({"role": "assistant"}, system_fingerprint="fp", service_tier=None, obfuscation="xxxx", created=99)
    assert read(wire(first, chunk(finish="stop"), DONE))[0] == Started(
        "c1", "m1", extra=Extra("openai", {"system_fingerprint": "fp", "created": 99}, frozenset({"created"}))
    )


def test_logprobs_and_unknown_deltas_are_kept_for_the_same_family() -> None:
    frame = chunk({"content": "a", "audio": {"data": "x"}, "annotations": []})
    frame["choices"][0]["logprobs"] = {"content": [1]}
    events = decoded_events(frame, chunk(finish="stop"))
    assert OpaqueEvent("openai", "logprobs", {"index": 0, "logprobs": {"content": [1]}}) in events
    assert OpaqueEvent("openai", "delta", {"index": 0, "delta": {"audio": {"data": "x"}}}) in events
    assert TextDelta(0, "a") in events


def test_each_choice_has_blocks_and_a_stop() -> None:
    reply = assemble_reply(
        read(
            wire(
                chunk({"content": "a"}),
                chunk({"content": "b"}, index=1),
                chunk({"content": "A"}),
                chunk(finish="length", index=1),
                chunk(finish="stop"),
                DONE,
            )
        )
    )
    assert [(choice.blocks, choice.stop.reason) for choice in reply.choices] == [
        ((Text("aA"),), StopReason.END),
        ((Text("b"),), StopReason.LENGTH),
    ]


def test_the_stop_sequence_where_an_upstream_names_it() -> None:
    last = chunk(finish="stop")
    last["choices"][0]["stop_reason"] = "END"
    assert Stopped(Stop(StopReason.SEQUENCE, "END")) in decoded_events(chunk({"content": "a"}), last)


# ---- robustness

FULL = (
    chunk({"role": "assistant", "content": "", "reasoning_content": "t", "reasoning_details": [{"type": "reasoning.text", "text": "t", "index": 0, "signature": "s"}]}),
    chunk({"content": "é🐉"}, system_fingerprint="fp"),
    chunk(call(0, "a", "f", '{"x"', type="function")),
    chunk(call(1, "b", "g", "{}", type="function")),
    chunk(call(0, arguments=":1}")),
    chunk(finish="tool_calls"),
    {"id": "c1", "choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 1}}},
)  # fmt: skip


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_events_do_not_depend_on_where_the_bytes_were_cut(end: bytes) -> None:
    data = wire(*FULL, DONE).replace(b"\n", end)
    whole = read(data)
    assert isinstance(whole[-1], Finished)
    for at in range(1, len(data)):
        assert read(data, at) == whole
    assert read(data, *range(1, len(data))) == whole


@pytest.mark.parametrize("place", [place for place in body_paths(FULL) if len(place) > 1], ids=dotted_path)
def test_a_wrong_type_anywhere_fails_by_the_grammar_or_is_understood(place: tuple[Any, ...]) -> None:
    for wrong in WRONG_VALUES:
        frames = with_value(list(FULL), place, wrong)
        read(wire(*frames, DONE))  # checks the grammar
        read(wire(*frames))


@pytest.mark.parametrize("data", [b"{", b"[]", b"5", b'"x"', b"\xff", b"[DONE", b'{"choices":5}', b'{"choices":[5]}'])
def test_frames_that_are_no_chunks_raise_our_errors_only(data: bytes) -> None:
    with pytest.raises(DragomanError):
        CODEC.decoder(REQUEST, ENVIRONMENT).feed(Frame("", data, b""))


def test_a_wrong_type_names_its_place() -> None:
    with pytest.raises(MissingField) as caught:
        CODEC.decoder(REQUEST, ENVIRONMENT).feed(Frame("", json.dumps(chunk({"content": 5})).encode(), b""))
    assert caught.value.at == "choices[0].delta.content"


def test_a_lone_surrogate_survives() -> None:
    events = read(
        b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"\\ud83d"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
    )
    assert TextDelta(0, "\ud83d") in events


def test_known_content_never_becomes_opaque() -> None:
    assert not [
        e
        for e in read(wire(*FULL, DONE))
        if isinstance(e, OpaqueEvent) or (isinstance(e, BlockStarted) and isinstance(e.block, Opaque))
    ]


# ---- failures in disguise, and odd types


def test_a_wrong_type_with_a_lone_surrogate_is_the_upstreams_fault() -> None:
    translator = dragoman.stream_translator(source="openai", target="anthropic")
    translator.feed(b'data: {"id":"c","choices":"\\ud800"}\n\n')
    assert translator.error is not None and "wrong type" in str(translator.error)


@pytest.mark.parametrize(
    ("frame", "message", "status"),
    [
        ({"object": "error", "message": "boom", "type": "InternalServerError", "code": 500}, "boom", 500),
        (chunk({"content": ""}, "error") | {"error": {"message": "gone", "code": 503}}, "gone", 503),
        (chunk({}, "error"), "the upstream stopped because of an error", 502),
        (chunk({"content": "more"}, "error"), "the upstream stopped because of an error", 502),
    ],
)
def test_a_failure_that_looks_like_a_chunk_fails_the_stream(frame: Any, message: str, status: int) -> None:
    fault = failure(chunk({"content": "a"}), frame, DONE)
    assert (fault.message, fault.status) == (message, status)
    translator = dragoman.stream_translator(source="openai", target="openai")
    sent = translator.feed(wire(chunk({"content": "a"}), frame, DONE)) + translator.close()
    assert json.loads(sent.split(b"\n\n")[-2].removeprefix(b"data: "))["error"]["message"] == message
    assert (b'"more"' in sent) == ("more" in json.dumps(frame))


def test_the_error_next_to_a_finish_is_its_message() -> None:
    frame = chunk({}, "error")
    frame["choices"][0]["error"] = {"message": "provider gone", "code": 504}
    fault = failure(chunk({"content": "a"}), frame)
    assert (fault.kind, fault.message) == ("timeout", "provider gone")


def test_the_role_of_a_further_choice_is_reported_once() -> None:
    events = decoded_events(chunk({"role": "assistant"}), *[chunk({"role": "assistant", "content": ""}, index=1)] * 2)
    assert events.count(OpaqueEvent("openai", "role", {"index": 1})) == 1
    assert not any(isinstance(event, OpaqueEvent) and event.data == {"index": 0} for event in events)


@pytest.mark.parametrize("order", [("text", "sources", "call"), ("sources", "text", "call"), ("sources", "blank")])
def test_annotations_of_a_stream_reach_a_client_of_the_same_dialect_once(order: tuple[str, ...]) -> None:
    """A later frame that is rewritten does not repeat the content of an earlier frame."""
    call = {"index": 0, "id": "c1", "type": "function", "function": {"name": "read", "arguments": "{}"}}
    deltas: dict[str, dict[str, Any]] = {
        "text": {"content": "hi"},
        "blank": {"content": " "},
        "sources": {"annotations": [{"type": "url_citation", "url_citation": {"url": "https://example.org"}}]},
        "call": {"tool_calls": [call]},
    }
    chunks = [{"id": "c", "choices": [{"index": 0, "delta": deltas[name]}]} for name in order]
    data = b"".join(b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks)
    stream = dragoman.stream_translator(source="openai", target="openai")
    written = stream.feed(data + b'data: {"error":{"message":"busy"}}\n\n') + stream.close()
    assert written.count(b"https://example.org") == 1


def test_citations_of_a_stream_reach_chat_clients_as_annotations() -> None:
    """A stream has the same `annotations` as a whole reply."""
    place = {"type": "web_search_result_location", "url": "https://example.org/a", "title": "A", "cited_text": "hi"}
    frames: list[dict[str, Any]] = [
        {"type": "message_start", "message": {"id": "m", "model": "x", "usage": {"input_tokens": 1}}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "hi"}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "citations_delta", "citation": place}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 1}},
        {"type": "message_stop"},
    ]
    data = b"".join(f"event: {one['type']}\ndata: {json.dumps(one)}\n\n".encode() for one in frames)
    stream = dragoman.stream_translator(source="anthropic", target="openai")
    choices = [choice for frame in parse_sse(stream.feed(data) + stream.close()) for choice in frame["choices"]]
    citations = [note for choice in choices for note in choice["delta"].get("annotations", ())]
    assert [note["url_citation"]["url"] for note in citations] == ["https://example.org/a"]

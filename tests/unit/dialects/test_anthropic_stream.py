"""Anthropic streams to events, and whole replies in both directions."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from msgspec import structs

from dragoman.dialects.anthropic import DIALECT
from dragoman.dialects.base import SYSTEM_ENVIRONMENT, Environment, StreamReader
from dragoman.errors import BadFrame, DragomanError, Fault, MissingField, OutOfOrder, UpstreamFault
from dragoman.model.assemble import EventOrderCheck, assemble_reply, check, reply_events
from dragoman.model.blocks import (
    CitationSource,
    Extra,
    Opaque,
    Reasoning,
    Signature,
    Text,
    ToolCall,
    WebPage,
    WebResults,
    WebSearch,
)
from dragoman.model.conversation import Choice, Conversation, Reply, Stop, StopReason, Usage
from dragoman.model.events import (
    FINISHED,
    ArgumentsDelta,
    BlockEnded,
    BlockStarted,
    CitationAdded,
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
from dragoman.wire.frame import Frame
from tests.wrong_values import WRONG_VALUES, body_paths, dotted_path, with_value

CODEC, BINDING = DIALECT.codec, DIALECT.binding
REQUEST = Conversation("asked-model", ())

START = {
    "type": "message_start",
    "message": {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": 10, "cache_read_input_tokens": 100, "output_tokens": 1, "service_tier": "standard"},
    },
}


def begin(index: int, **block: Any) -> dict[str, Any]:
    return {"type": "content_block_start", "index": index, "content_block": block}


def delta(index: int, kind: str, **fields: Any) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "delta": {"type": kind, **fields}}


def end(index: int) -> dict[str, Any]:
    return {"type": "content_block_stop", "index": index}


def stop(reason: str | None = "end_turn", usage: Any = None, **more: Any) -> dict[str, Any]:
    fields = {"stop_reason": reason, "stop_sequence": None, **more}
    return {"type": "message_delta", "delta": fields, "usage": usage or {"output_tokens": 7}}


LAST = {"type": "message_stop"}
SERVER_TOOL: dict[str, Any] = {"type": "server_tool_use", "id": "srv_1", "name": "web_search"}
PAGES = WebResults("srv_1", (WebPage("u"),))
FOUND: dict[str, Any] = {
    "type": "web_search_tool_result",
    "tool_use_id": "srv_1",
    "content": [{"type": "web_search_result", "url": "u"}],
}
CITATION: dict[str, Any] = {"type": "web_search_result_location", "url": "u"}
RICH: list[dict[str, Any]] = [
    START,
    {"type": "ping"},
    begin(0, type="thinking", thinking="", signature=""),
    delta(0, "thinking_delta", thinking="let me"),
    delta(0, "thinking_delta", thinking=" see", estimated_tokens=3),
    delta(0, "signature_delta", signature="sig=="),
    end(0),
    begin(1, type="redacted_thinking", data="hidden"),
    end(1),
    begin(2, **SERVER_TOOL, input={}),
    delta(2, "input_json_delta", partial_json='{"query":'),
    delta(2, "input_json_delta", partial_json='"é"}'),
    end(2),
    begin(3, **FOUND),
    end(3),
    begin(4, type="text", text=""),
    delta(4, "text_delta", text="Found \ud83d\ude00 "),
    delta(4, "citations_delta", citation=CITATION),
    delta(4, "text_delta", text="it."),
    end(4),
    begin(5, type="tool_use", id="toolu_1", name="read", input={}, caller={"type": "direct"}),
    delta(5, "input_json_delta", partial_json=""),
    delta(5, "input_json_delta", partial_json='{"p": '),
    delta(5, "input_json_delta", partial_json="1}"),
    end(5),
    begin(6, type="tool_use", id="toolu_2", name="list", input={}),
    end(6),
    stop("tool_use", {"output_tokens": 42, "output_tokens_details": {"thinking_tokens": 5}}),
    LAST,
]


def sse(*frames: dict[str, Any]) -> bytes:
    return b"".join(f"event: {frame['type']}\ndata: {json.dumps(frame)}\n\n".encode() for frame in frames)


def frame(data: Any, kind: str | None = None) -> Frame:
    name = kind if kind is not None else data.get("type", "")
    return Frame(name, json.dumps(data).encode(), b"")


def read(data: bytes, *cuts: int) -> Events:
    reader = StreamReader(BINDING.frame_decoder(), CODEC.decoder(REQUEST, SYSTEM_ENVIRONMENT))
    edges = [0, *cuts, len(data)]
    frames = [decoded for a, b in itertools.pairwise(edges) for decoded in reader.feed(data[a:b])]
    return placeless([event for decoded in [*frames, *reader.close()] for event in decoded.events])


def placeless(events: list[Event]) -> Events:
    return tuple(structs.replace(each, wire_index=None) if isinstance(each, BlockStarted) else each for each in events)


def decode(*frames: dict[str, Any]) -> Events:
    """All events, without places; a violation is raised, and the grammar is checked on the way."""
    decoder, grammar, out = CODEC.decoder(REQUEST, SYSTEM_ENVIRONMENT), EventOrderCheck(), list[Event]()
    for each in frames:
        events = decoder.feed(frame(each)) or ()
        grammar.check(events)
        out.extend(events)
    return placeless(out)


def after_start(*frames: dict[str, Any]) -> Events:
    return decode(START, *frames)[1:]


# --- frames and their events


def test_a_rich_stream_is_decoded_into_its_events() -> None:
    events = decode(*RICH)
    check(events)
    usage = Usage(10, 1, 100, 0, extra=Extra("anthropic", {"service_tier": "standard"}))
    hidden = Reasoning("", "anthropic")
    caller = Extra("anthropic", {"caller": {"type": "direct"}})
    assert events == (
        Started("msg_1", "claude", usage),
        BlockStarted(0, Reasoning("", "anthropic")),
        ReasoningDelta(0, "let me"),
        ReasoningDelta(0, " see"),
        SignatureAdded(0, Signature("anthropic", "sig==")),
        BlockEnded(0),
        BlockStarted(1, hidden),
        SignatureAdded(1, Signature("anthropic", "hidden", "redacted")),
        BlockEnded(1),
        BlockStarted(
            2,
            Opaque(
                "anthropic",
                {**SERVER_TOOL, "input": {"query": "é"}},
                "server_tool_use",
                effects=(WebSearch("srv_1", "é"),),
            ),
        ),
        BlockEnded(2),
        BlockStarted(3, Opaque("anthropic", FOUND, "web_search_tool_result", effects=(PAGES,))),
        BlockEnded(3),
        BlockStarted(4, Text("")),
        TextDelta(4, "Found \U0001f600 "),
        CitationAdded(4, Opaque("anthropic", CITATION, "web_search_result_location", source=CitationSource("u"))),
        TextDelta(4, "it."),
        BlockEnded(4),
        BlockStarted(5, ToolCall("toolu_1", "read", extra=caller)),
        ArgumentsDelta(5, ""),
        ArgumentsDelta(5, '{"p": '),
        ArgumentsDelta(5, "1}"),
        BlockEnded(5),
        BlockStarted(6, ToolCall("toolu_2", "list")),
        BlockEnded(6),
        UsageReported(Usage(10, 42, 100, 0, 5, extra=usage.extra)),
        Stopped(Stop(StopReason.TOOL)),
        FINISHED,
    )


def test_a_stream_means_the_same_wherever_it_is_cut() -> None:
    data = sse(*RICH)
    whole = read(data)
    assert all(read(data, cut) == whole for cut in range(1, len(data)))


def test_frames_without_an_event_line_are_read_by_their_type() -> None:
    assert read(b"".join(b"data: %b\n\n" % json.dumps(each).encode() for each in RICH)) == decode(*RICH)


@pytest.mark.parametrize("data", [b"null", b"", b"[DONE]", b" null "])
def test_a_frame_without_content_is_not_relayed(data: bytes) -> None:
    for kind in ("", "content_block_delta", "message_stop"):
        assert CODEC.decoder(REQUEST, SYSTEM_ENVIRONMENT).feed(Frame(kind, data, b"")) is None


def test_a_later_signature_replaces_the_one_before() -> None:
    events = after_start(
        begin(0, type="thinking", thinking="", signature="first"),
        delta(0, "signature_delta", signature="second"),
        delta(0, "signature_delta", signature="third"),
        end(0),
    )
    assert events[1:] == (SignatureAdded(0, Signature("anthropic", "third")), BlockEnded(0))


def test_a_signature_is_not_lost_when_the_stream_is() -> None:
    signed = begin(0, type="thinking", thinking=""), delta(0, "signature_delta", signature="s")
    error = {"type": "error", "error": {"type": "api_error", "message": "x"}}
    assert after_start(*signed, {"type": "ping"}, error)[1] == SignatureAdded(0, Signature("anthropic", "s"))
    assert isinstance(read(sse(START, *signed))[-2], SignatureAdded)


def test_signatures_of_two_open_blocks_do_not_mix() -> None:
    events = after_start(
        begin(0, type="thinking", thinking=""),
        begin(1, type="thinking", thinking=""),
        delta(0, "signature_delta", signature="a"),
        delta(1, "signature_delta", signature="b"),
        end(0),
        end(1),
    )
    assert events[2:] == (
        SignatureAdded(0, Signature("anthropic", "a")),
        SignatureAdded(1, Signature("anthropic", "b")),
        BlockEnded(0),
        BlockEnded(1),
    )


def test_signed_thinking_without_text_keeps_its_signature() -> None:
    events = after_start(begin(0, type="thinking", thinking=""), delta(0, "signature_delta", signature="s"), end(0))
    assert events == (
        BlockStarted(0, Reasoning("", "anthropic")),
        SignatureAdded(0, Signature("anthropic", "s")),
        BlockEnded(0),
    )


def test_text_and_thinking_in_a_blocks_start_are_not_lost() -> None:
    assert after_start(begin(0, type="text", text="hi")) == (BlockStarted(0, Text("")), TextDelta(0, "hi"))
    events = after_start(begin(0, type="thinking", thinking="hm", signature="s"), end(0))
    assert events[1:] == (ReasoningDelta(0, "hm"), SignatureAdded(0, Signature("anthropic", "s")), BlockEnded(0))


def test_a_text_block_may_start_without_its_text() -> None:
    assert after_start(begin(0, type="text")) == (BlockStarted(0, Text("")),)


def test_input_in_a_block_start_counts_unless_deltas_follow() -> None:
    call = begin(0, type="tool_use", id="a", name="f", input={"x": 1})
    assert after_start(call, end(0))[1:] == (ArgumentsDelta(0, '{"x":1}'), BlockEnded(0))
    grown = after_start(call, delta(0, "input_json_delta", partial_json='{"y":2}'), end(0))
    assert grown[1:] == (ArgumentsDelta(0, '{"y":2}'), BlockEnded(0))


def test_unknown_blocks_collect_their_deltas_and_are_emitted_whole() -> None:
    events = after_start(
        begin(0, type="compaction", content=None),
        delta(0, "compaction_delta", content="a"),
        delta(0, "compaction_delta", content="b"),
        end(0),
    )
    assert events == (
        BlockStarted(0, Opaque("anthropic", {"type": "compaction", "content": "ab"}, "compaction")),
        BlockEnded(0),
    )


def test_an_unknown_block_that_is_complete_is_emitted_at_once() -> None:
    late = delta(0, "odd_delta", more=1)
    events = after_start(begin(0, **FOUND), late, end(0))
    assert events == (
        BlockStarted(0, Opaque("anthropic", FOUND, "web_search_tool_result", effects=(PAGES,))),
        OpaqueEvent("anthropic", "content_block_delta", late),
        BlockEnded(0),
    )


def test_unknown_events_and_deltas_are_kept() -> None:
    odd: dict[str, Any] = {"type": "weather", "sun": True}
    assert after_start(odd) == (OpaqueEvent("anthropic", "weather", odd),)
    unknown_delta = delta(0, "sparkle_delta", glitter=1)
    assert after_start(begin(0, type="text", text=""), unknown_delta)[1:] == (
        OpaqueEvent("anthropic", "content_block_delta", unknown_delta),
    )


def test_counts_left_out_of_message_delta_survive() -> None:
    events = after_start(stop(usage={"output_tokens": 9, "cache_creation_input_tokens": 3}))
    assert events[0] == UsageReported(Usage(10, 9, 100, 3, extra=Extra("anthropic", {"service_tier": "standard"})))


@pytest.mark.parametrize(
    ("reason", "why"),
    [
        ("end_turn", StopReason.END),
        ("tool_use", StopReason.TOOL),
        ("max_tokens", StopReason.LENGTH),
        ("stop_sequence", StopReason.SEQUENCE),
        ("refusal", StopReason.REFUSAL),
        ("model_context_window_exceeded", StopReason.CONTEXT),
        ("pause_turn", StopReason.PAUSE),
    ],
)
def test_reasons_to_stop(reason: str, why: StopReason) -> None:
    assert after_start(stop(reason))[1] == Stopped(Stop(why))


def test_an_unknown_reason_is_an_end_that_keeps_its_name() -> None:
    assert after_start(stop("compaction"))[1] == Stopped(
        Stop(StopReason.END, None, Extra("anthropic", {"stop_reason": "compaction"}))
    )


def test_details_of_the_stop_are_kept_and_nulls_are_not() -> None:
    details: dict[str, Any] = {"type": "refusal", "category": "bio"}
    got = after_start(stop("refusal", stop_details=details, container=None))[1]
    assert got == Stopped(Stop(StopReason.REFUSAL, None, Extra("anthropic", {"stop_details": details})))
    sequence = after_start({"type": "message_delta", "delta": {"stop_reason": "stop_sequence", "stop_sequence": "END"}})
    assert sequence == (Stopped(Stop(StopReason.SEQUENCE, "END")),)


def test_a_second_message_delta_only_counts() -> None:
    assert after_start(stop(), stop(usage={"output_tokens": 8}))[2:] == (
        UsageReported(Usage(10, 8, 100, 0, extra=Extra("anthropic", {"service_tier": "standard"}))),
    )


def test_a_message_without_a_reason_to_stop_has_ended() -> None:
    assert after_start(LAST) == (Stopped(Stop(StopReason.END)), FINISHED)
    assert after_start(stop(None), LAST)[1:] == (Stopped(Stop(StopReason.END)), FINISHED)


def test_a_message_without_id_or_model_is_read() -> None:
    assert decode({"type": "message_start", "message": {}}) == (Started("", "asked-model"),)


# --- ends


def test_an_error_event_fails_with_its_message() -> None:
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    fault = Fault("overloaded", "Overloaded", 529, code="overloaded_error")
    assert decode(error) == (Failed(fault),)
    assert after_start(error) == (Failed(fault),)
    assert decode({"type": "error", "error": None})[-1] == Failed(
        Fault("server", "the upstream refused the request (no reason given)", 500)
    )


@pytest.mark.parametrize("length", range(len(RICH)))
def test_a_stream_without_message_stop_was_cut(length: int) -> None:
    events = read(sse(*RICH[:length]))
    check(events)
    last = events[-1]
    assert isinstance(last, Failed)
    assert "message_stop" in last.fault.message


def test_the_cause_of_a_broken_stream_is_reported() -> None:
    decoder = CODEC.decoder(REQUEST, SYSTEM_ENVIRONMENT)
    broken = Fault("timeout", "too slow", 504)
    assert decoder.close(broken) == (Failed(broken),)
    assert decoder.close(None) == ()


def test_nothing_may_follow_the_end() -> None:
    with pytest.raises(OutOfOrder):
        after_start(stop(), LAST, stop())


# --- violations

TEXT = begin(0, type="text", text="")


@pytest.mark.parametrize(
    "frames",
    [
        (TEXT,),
        (stop(),),
        (LAST,),
        (START, START),
        (START, {"type": "message_start", "message": {"content": [{"type": "text"}]}}),
        (START, delta(0, "text_delta", text="x")),
        (START, end(0)),
        (START, TEXT, TEXT),
        (START, TEXT, end(0), TEXT),
        (START, TEXT, end(0), delta(0, "text_delta", text="x")),
        (START, TEXT, delta(0, "thinking_delta", thinking="x")),
        (START, TEXT, delta(0, "input_json_delta", partial_json="x")),
        (START, TEXT, delta(0, "signature_delta", signature="x")),
        (START, begin(0, type="tool_use", id="a", name="f", input={}), delta(0, "text_delta", text="x")),
        (START, begin(0, type="redacted_thinking", data="d"), delta(0, "text_delta", text="x")),
        (START, TEXT, LAST),
        (START, stop(), TEXT),
        (START, begin(0, type="redacted_thinking", data="d"), delta(0, "signature_delta", signature="x")),
    ],
)
def test_events_that_the_grammar_forbids_are_out_of_order(frames: tuple[dict[str, Any], ...]) -> None:
    with pytest.raises(OutOfOrder):
        decode(*frames)


@pytest.mark.parametrize(
    ("frames", "place"),
    [
        ((begin(0, type="tool_use", name="f"),), "content_block.id"),
        ((begin(0, type="tool_use", id="", name="f"),), "content_block.id"),
        ((begin(0, type="tool_use", id=None, name="f"),), "content_block.id"),
        ((begin(0, type="tool_use", id="a"),), "content_block.name"),
        ((begin(0, type="redacted_thinking"),), "content_block.data"),
        (({"type": "content_block_start", "content_block": {"type": "text"}},), "content_block_start.index"),
        (({"type": "content_block_start", "index": 0},), "content_block"),
        (({"type": "content_block_start", "index": 0, "content_block": {}},), "content_block.type"),
        (
            (TEXT, {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "x"}}),
            "content_block_delta.index",
        ),
        ((TEXT, {"type": "content_block_delta", "index": 0, "delta": None}), "content_block_delta.delta"),
        ((TEXT, delta(0, "text_delta", text=None)), "delta.text"),
        ((TEXT, delta(0, "text_delta")), "delta.text"),
        ((TEXT, {"type": "content_block_stop"}), "content_block_stop.index"),
        (({},), "type"),
    ],
)
def test_a_missing_field_is_named(frames: tuple[dict[str, Any], ...], place: str) -> None:
    with pytest.raises(MissingField, match=place):
        decode(START, *frames)


@pytest.mark.parametrize("data", [b"{", b"\xff", b'{"a":' * 5000])
def test_data_that_is_no_json_is_a_bad_frame(data: bytes) -> None:
    for kind in ("message_start", "content_block_delta", ""):
        with pytest.raises(BadFrame):
            CODEC.decoder(REQUEST, SYSTEM_ENVIRONMENT).feed(Frame(kind, data, b""))


@pytest.mark.parametrize(
    "frames",
    [
        (TEXT, end(0), end(0), stop(), LAST),
        (TEXT, stop(), end(0), LAST),
        (stop("end_turn"), stop("max_tokens"), LAST),
        ({"type": "message_delta", "delta": None, "usage": {}}, LAST),
        (stop(usage={"output_tokens": "many"}), LAST),
    ],
)
def test_a_deviation_that_loses_nothing_is_no_violation(frames: tuple[dict[str, Any], ...]) -> None:
    check(decode(START, *frames))


def test_input_of_an_unknown_block_that_is_no_json_is_a_violation() -> None:
    with pytest.raises(MissingField):
        after_start(begin(0, **SERVER_TOOL, input={}), delta(0, "input_json_delta", partial_json="{"), end(0))


@pytest.mark.parametrize("number", range(len(RICH)), ids=lambda number: f"{number}-{RICH[number]['type']}")
def test_a_wrong_type_anywhere_fails_by_the_grammar(number: int) -> None:
    for path in [(), *body_paths(RICH[number])]:
        for wrong in WRONG_VALUES:
            frames = [frame(each) for each in RICH]
            frames[number] = frame(with_value(RICH[number], path, wrong), RICH[number]["type"])
            data = b"".join(b"event: %b\ndata: %b\n\n" % (each.kind.encode(), each.data) for each in frames)
            check(read(data))


# --- whole replies

WHOLE: dict[str, Any] = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "claude",
    "content": [
        {"type": "thinking", "thinking": "let me see", "signature": "sig=="},
        {"type": "redacted_thinking", "data": "hidden"},
        {**SERVER_TOOL, "input": {"query": "é"}},
        FOUND,
        {"type": "text", "text": "Found it.", "citations": [CITATION]},
        {"type": "tool_use", "id": "toolu_1", "name": "read", "input": {"p": 1}, "caller": {"type": "direct"}},
        {"type": "tool_use", "id": "toolu_2", "name": "list", "input": {}},
    ],
    "stop_reason": "tool_use",
    "stop_sequence": None,
    "usage": {
        "input_tokens": 10,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 100,
        "output_tokens": 42,
        "output_tokens_details": {"thinking_tokens": 5, "new": 1},
        "service_tier": "standard",
    },
    "container": {"id": "c"},
}
STILL = Environment(new_id=lambda prefix: prefix + "new", now=lambda: 0)


def whole(body: Any) -> Reply:
    return CODEC.parse_reply(json.dumps(body).encode(), REQUEST)


def rendered(reply: Reply) -> dict[str, Any]:
    body = json.loads(CODEC.render_reply(reply, REQUEST, STILL))
    assert isinstance(body, dict)
    return body


def test_a_whole_reply_round_trips_unchanged() -> None:
    assert rendered(whole(WHOLE)) == WHOLE


def test_a_reply_is_the_same_read_whole_or_streamed() -> None:
    reply = whole({**WHOLE, "content": WHOLE["content"][:4]})
    frames = [START, *RICH[2:15], stop("tool_use", {**WHOLE["usage"]}, container={"id": "c"}), LAST]
    streamed = assemble_reply(decode(*frames))
    assert streamed.choices[0].blocks == reply.choices[0].blocks
    assert streamed.usage == reply.usage
    assert rendered(streamed) == rendered(reply)


def test_a_rendered_reply_is_read_unchanged() -> None:
    reply = whole(WHOLE)
    assert CODEC.parse_reply(CODEC.render_reply(reply, REQUEST, STILL), REQUEST) == reply
    assert assemble_reply(reply_events(reply)) == reply


def test_a_reply_without_id_model_usage_gets_them() -> None:
    body = rendered(Reply("", "", (Choice((Text("x"),), Stop(StopReason.END)),)))
    assert (body["id"], body["model"]) == ("msg_new", "asked-model")
    assert body["usage"]["output_tokens"] == 0


def test_null_input_is_an_empty_object() -> None:
    reply = whole({**WHOLE, "content": [{"type": "tool_use", "id": "a", "name": "f", "input": None}]})
    assert reply.choices[0].blocks == (ToolCall("a", "f", ""),)
    assert rendered(reply)["content"][0]["input"] == {}


def test_an_error_in_place_of_a_reply_is_the_upstreams_refusal() -> None:
    with pytest.raises(UpstreamFault, match="slow down") as caught:
        whole({"type": "error", "error": {"type": "rate_limit_error", "message": "slow down"}})
    assert caught.value.fault.kind == "rate_limit"


def test_a_call_without_its_name_is_named() -> None:
    with pytest.raises(MissingField, match=r"content\[0\]\.name"):
        whole({**WHOLE, "content": [{"type": "tool_use", "id": "a"}]})


@pytest.mark.parametrize("path", [(), *body_paths(WHOLE)], ids=dotted_path)
def test_a_wrong_type_anywhere_in_a_reply_raises_only_our_errors(path: tuple[Any, ...]) -> None:
    for wrong in WRONG_VALUES:
        try:
            reply = whole(with_value(WHOLE, path, wrong))
            CODEC.render_reply(reply, REQUEST, STILL)
        except DragomanError:
            continue

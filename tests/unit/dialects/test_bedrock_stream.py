"""ConverseStream decoding: the recorded sequences, and every kind of broken stream."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

import dragoman
from dragoman.model.assemble import check
from dragoman.model.blocks import Opaque, Reasoning, Signature, Text, ToolCall
from dragoman.model.conversation import Stop, StopReason
from dragoman.model.events import (
    FINISHED,
    ArgumentsDelta,
    BlockEnded,
    BlockStarted,
    CitationAdded,
    Failed,
    OpaqueEvent,
    ReasoningDelta,
    SignatureAdded,
    Started,
    Stopped,
    TextDelta,
    UsageReported,
)
from dragoman.wire.eventstream import encode_event
from tests.anthropic_client import parse_sse
from tests.unit.dialects.bedrock_wire import METADATA, START, decode_stream, delta, end, frames, stop, stream, text, use

REDACTED = base64.b64encode(b"EpoBCkYICBgCKkA=").decode()


def kinds(data: bytes) -> list[str]:
    return [type(event).__name__ for event in decode_stream(data)]


def fault_of(data: bytes) -> Any:
    last = decode_stream(data)[-1]
    assert isinstance(last, Failed), last
    return last.fault


def to(target: str, data: bytes, step: int | None = None) -> bytes:
    """The stream as a client of another dialect gets it, fed in pieces of `step` bytes."""
    translator = dragoman.stream_translator(source="bedrock", target=target)
    step = step or len(data) or 1
    out = b"".join(translator.feed(data[at : at + step]) for at in range(0, len(data), step))
    return out + translator.close()


# --- recorded sequences


def test_text_without_a_start_gets_one() -> None:
    data = stream(START, text(0, "Hel", "lo"), stop("end_turn"), METADATA)
    assert decode_stream(data)[:4] == [
        Started("", "anthropic.claude-sonnet-4-5-20250929-v1:0"),
        BlockStarted(0, Text("")),
        TextDelta(0, "Hel"),
        TextDelta(0, "lo"),
    ]
    events = parse_sse(to("anthropic", data))
    assert [event["index"] for event in events if event["type"] == "content_block_start"] == [0]


def test_a_start_that_is_sent_after_all_is_taken() -> None:
    announced = ("contentBlockStart", {"contentBlockIndex": 0, "start": {"text": ""}})
    empty = ("contentBlockStart", {"contentBlockIndex": 1, "start": {}})
    data = stream(
        START, announced, text(0, "a"), empty, delta(1, reasoningContent={"text": "b"}), end(1), stop("end_turn")
    )
    assert [event.block for event in decode_stream(data) if isinstance(event, BlockStarted)] == [
        Text(""),
        Reasoning("", "bedrock"),
    ]


def test_metadata_after_message_stop_is_the_end() -> None:
    assert kinds(stream(START, text(0, "x"), stop("end_turn"), METADATA))[-3:] == [
        "Stopped",
        "UsageReported",
        "Finished",
    ]


def test_token_counts_have_the_fields_of_each_client() -> None:
    data = stream(START, text(0, "x"), stop("end_turn"), METADATA)
    closing = [event for event in parse_sse(to("anthropic", data)) if event["type"] == "message_delta"]
    assert len(closing) == 1
    assert closing[0]["usage"] == {
        "input_tokens": 12,
        "output_tokens": 7,
        "cache_read_input_tokens": 100,
        "cache_creation_input_tokens": 20,
    }


def test_a_stream_without_metadata_has_ended_all_the_same() -> None:
    data = stream(START, text(0, "x"), stop("end_turn"))
    assert decode_stream(data)[-1] == FINISHED
    events = parse_sse(to("anthropic", data))
    assert [event["type"] for event in events[-2:]] == ["message_delta", "message_stop"]
    assert events[-2]["usage"]["output_tokens"] == 0


def test_metadata_that_comes_early_does_not_end_the_stream() -> None:
    data = stream(START, METADATA, text(0, "x"), stop("end_turn"))
    assert kinds(data) == ["Started", "UsageReported", "BlockStarted", "TextDelta", "BlockEnded", "Stopped", "Finished"]


def test_reasoning_ends_with_the_joined_pieces_of_its_signature() -> None:
    thought = [delta(0, reasoningContent={"text": "Hm"}), delta(0, reasoningContent={"signature": "si"})]
    data = stream(
        START, thought, delta(0, reasoningContent={"signature": "gn"}), end(0), text(1, "x"), stop("end_turn")
    )
    assert decode_stream(data)[1:5] == [
        BlockStarted(0, Reasoning("", "bedrock")),
        ReasoningDelta(0, "Hm"),
        SignatureAdded(0, Signature("bedrock", "sign")),
        BlockEnded(0),
    ]


def test_redacted_reasoning_carries_what_anthropic_calls_data() -> None:
    hidden = [delta(0, reasoningContent={"redactedContent": REDACTED}), end(0)]
    data = stream(START, hidden, text(1, "x"), stop("end_turn"))
    assert SignatureAdded(0, Signature("bedrock", "EpoBCkYICBgCKkA=", "redacted")) in decode_stream(data)
    starts = [
        event["content_block"] for event in parse_sse(to("anthropic", data)) if event["type"] == "content_block_start"
    ]
    assert starts[0] == {"type": "redacted_thinking", "data": "EpoBCkYICBgCKkA="}


def test_text_may_come_before_reasoning() -> None:
    data = stream(START, text(0, "I"), delta(1, reasoningContent={"text": "Hm"}), end(1), stop("end_turn"))
    blocks = [type(event.block) for event in decode_stream(data) if isinstance(event, BlockStarted)]
    assert blocks == [Text, Reasoning]


def test_a_tool_of_the_service_comes_whole_with_its_result() -> None:
    called = {"toolUseId": "s1", "name": "nova_code", "type": "server_tool_use"}
    data = stream(
        START,
        ("contentBlockStart", {"contentBlockIndex": 0, "start": {"toolUse": called}}),
        delta(0, toolUse={"input": '{"a":'}),
        delta(0, toolUse={"input": "1}"}),
        end(0),
        (
            "contentBlockStart",
            {"contentBlockIndex": 1, "start": {"toolResult": {"toolUseId": "s1", "status": "success"}}},
        ),
        delta(1, toolResult=[{"json": {"x": 1}}]),
        delta(1, toolResult=[{"text": "done"}]),
        end(1),
        text(2, "x"),
        stop("end_turn"),
        METADATA,
    )
    blocks = [event.block for event in decode_stream(data) if isinstance(event, BlockStarted)]
    assert blocks[:2] == [
        Opaque("bedrock", {"toolUse": {**called, "input": {"a": 1}}}, "server_tool_use"),
        Opaque(
            "bedrock",
            {"toolResult": {"toolUseId": "s1", "status": "success", "content": [{"json": {"x": 1}}, {"text": "done"}]}},
            "toolResult",
        ),
    ]
    check(decode_stream(data))
    assert b"nova_code" not in to("anthropic", data)  # other dialects do not have it
    assert [each for each in frames(to("bedrock", data)) if "nova_code" in str(each)]


def test_a_drawn_image_stays_with_its_family() -> None:
    data = stream(
        START,
        ("contentBlockStart", {"contentBlockIndex": 0, "start": {"image": {"format": "png"}}}),
        delta(0, image={"source": {"bytes": "aGk="}}),
        end(0),
        stop("end_turn"),
        METADATA,
    )
    assert Opaque("bedrock", {"image": {"format": "png", "source": {"bytes": "aGk="}}}, "image") in [
        event.block for event in decode_stream(data) if isinstance(event, BlockStarted)
    ]
    assert ("contentBlockDelta", {"contentBlockIndex": 0, "delta": {"image": {"source": {"bytes": "aGk="}}}}) in frames(
        to("bedrock", data)
    )


def test_citations_belong_to_their_text() -> None:
    cited: Any = {"title": "t", "sourceContent": [{"text": "s"}]}
    data = stream(START, delta(0, citation=cited), delta(0, text="x"), end(0), stop("end_turn"))
    assert decode_stream(data)[1:4] == [
        BlockStarted(0, Text("")),
        CitationAdded(0, Opaque("bedrock", cited, "citation")),
        TextDelta(0, "x"),
    ]


def test_the_padding_key_is_nothing() -> None:
    padded = stream(
        ("messageStart", {"role": "assistant", "p": "abc"}),
        text(0, "x"),
        ("messageStop", {"stopReason": "end_turn", "p": "ab"}),
    )
    assert Started("", "anthropic.claude-sonnet-4-5-20250929-v1:0") == decode_stream(padded)[0]
    assert Stopped(Stop(StopReason.END)) in decode_stream(padded)


# --- tools


def test_a_call_streams_its_input() -> None:
    data = stream(START, use(0, "t1", "get", '{"a":', "1}"), stop("tool_use"), METADATA)
    assert decode_stream(data)[1:5] == [
        BlockStarted(0, ToolCall("t1", "get")),
        ArgumentsDelta(0, '{"a":'),
        ArgumentsDelta(0, "1}"),
        BlockEnded(0),
    ]


def test_end_turn_with_a_call_is_a_tool_turn() -> None:
    data = stream(START, use(0, "t1", "get", "{}"), stop("end_turn"), METADATA)
    (closing,) = [event for event in parse_sse(to("anthropic", data)) if event["type"] == "message_delta"]
    assert closing["delta"]["stop_reason"] == "tool_use"
    assert ("messageStop", {"stopReason": "tool_use"}) in frames(to("bedrock", data))


def test_calls_are_counted_by_themselves_for_chat_clients() -> None:
    # Reasoning and text come first, and do not count
    thought = [delta(0, reasoningContent={"text": "Hm"}), end(0)]
    data = stream(
        START, thought, text(1, "x"), use(2, "a", "f", "{}"), use(3, "b", "g", "{}"), stop("tool_use"), METADATA
    )
    chunks = [choice["delta"] for chunk in parse_sse(to("openai", data)) for choice in chunk["choices"]]
    calls = [call for chunk in chunks for call in chunk.get("tool_calls", ())]
    assert [(call["index"], call["id"]) for call in calls if "id" in call] == [(0, "a"), (1, "b")]
    assert {call["index"] for call in calls} == {0, 1}


def test_a_gap_in_the_indices_is_no_error() -> None:
    data = stream(START, use(4, "a", "f", "{}"), stop("tool_use"), METADATA)
    starts = [event["index"] for event in parse_sse(to("anthropic", data)) if event["type"] == "content_block_start"]
    assert starts == [0]
    assert frames(to("bedrock", data))[1][1]["contentBlockIndex"] == 0


def test_a_call_that_the_limit_followed_is_returned() -> None:
    data = stream(START, use(0, "t1", "get", '{"a":1}'), stop("max_tokens"), METADATA)
    events = parse_sse(to("anthropic", data))
    assert [event["content_block"]["id"] for event in events if event["type"] == "content_block_start"] == ["t1"]
    assert [event["delta"]["stop_reason"] for event in events if event["type"] == "message_delta"] == ["max_tokens"]


def test_a_call_that_the_limit_cut_is_closed_uncompleted() -> None:
    opened = use(0, "t1", "get", '{"a":')[:-1]
    events = decode_stream(stream(START, opened, stop("max_tokens"), METADATA))
    assert BlockEnded(0, is_complete=False) in events
    check(events)


def test_a_call_without_arguments_is_a_call_of_an_empty_object() -> None:
    data = stream(START, use(0, "t1", "now"), stop("tool_use"), METADATA)
    fragments = [
        e["delta"]["partial_json"]
        for e in parse_sse(to("anthropic", data))
        if e.get("delta", {}).get("type") == "input_json_delta"
    ]
    assert json.loads("".join(fragments) or "{}") == {}


def test_fragments_cut_inside_escapes_and_characters_arrive_exactly() -> None:
    data = stream(START, use(0, "t1", "get", '{"p":"caf', "é \\u00", 'e9"}'), stop("tool_use"), METADATA)
    joined = "".join(event.text for event in decode_stream(data) if isinstance(event, ArgumentsDelta))
    assert json.loads(joined) == {"p": "café é"}


@pytest.mark.parametrize("start", [{"name": "q"}, {"toolUseId": None, "name": "q"}, {"toolUseId": "", "name": "q"}])
def test_a_call_without_an_id_names_the_missing_field(start: dict[str, Any]) -> None:
    # streamed
    fault = fault_of(stream(START, ("contentBlockStart", {"contentBlockIndex": 0, "start": {"toolUse": start}})))
    assert "toolUse.toolUseId" in fault.message
    assert fault.status == 502


def test_an_open_think_tag_does_not_swallow_the_end() -> None:
    data = stream(START, text(0, "<think>never closed"), stop("end_turn"), METADATA)
    for client in ("anthropic", "openai"):
        translator = dragoman.stream_translator(source="bedrock", target=client, think_tags=True)
        out = translator.feed(data) + translator.close()
        ended = b'"stop_reason":"end_turn"' if client == "anthropic" else b'"finish_reason":"stop"'
        assert ended in out


# --- the end


@pytest.mark.parametrize(
    ("wire_reason", "why"),
    [
        ("end_turn", StopReason.END),
        ("stop_sequence", StopReason.SEQUENCE),
        ("max_tokens", StopReason.LENGTH),
        ("content_filtered", StopReason.REFUSAL),
        ("guardrail_intervened", StopReason.REFUSAL),
        ("model_context_window_exceeded", StopReason.CONTEXT),
        ("something_new", StopReason.END),
    ],
)
def test_reasons_to_stop(wire_reason: str, why: StopReason) -> None:
    data = stream(START, text(0, "x"), stop(wire_reason), METADATA)
    (stopped,) = [event for event in decode_stream(data) if isinstance(event, Stopped)]
    assert stopped.stop.reason is why
    assert ("messageStop", {"stopReason": wire_reason}) in frames(to("bedrock", data))


def test_a_malformed_reply_is_an_error_unless_it_has_content() -> None:
    """A call that the service dropped is an error in any case."""
    for reason in ("malformed_model_output", "malformed_tool_use"):
        assert reason in fault_of(stream(START, stop(reason))).message
    assert decode_stream(stream(START, text(0, "x"), stop("malformed_model_output"), METADATA))[-1] == FINISHED
    assert "malformed_tool_use" in fault_of(stream(START, text(0, "x"), stop("malformed_tool_use"), METADATA)).message


@pytest.mark.parametrize(
    ("kind", "meant", "status"),
    [
        ("throttlingException", "rate_limit", 429),
        ("serviceUnavailableException", "overloaded", 503),
        ("internalServerException", "server", 500),
        ("validationException", "invalid", 400),
        ("modelStreamErrorException", "server", 500),
        ("somethingNewException", "server", 500),
    ],
)
def test_an_exception_in_the_stream_ends_it_with_its_message(kind: str, meant: str, status: int) -> None:
    fault = fault_of(stream(START, delta(0, text="x"), (f"!{kind}", {"message": "slow down"})))
    assert (fault.kind, fault.status, fault.message) == (meant, status, "slow down")
    assert fault.code.lower() == kind.lower()


def test_throttling_after_output_is_an_error_of_each_client_dialect() -> None:
    data = stream(START, [delta(0, text=piece) for piece in "abc"], ("!throttlingException", {"message": "slow down"}))
    assert parse_sse(to("anthropic", data))[-1]["error"] == {"type": "rate_limit_error", "message": "slow down"}
    assert b"event: error\n" in to("anthropic", data)
    assert parse_sse(to("openai", data))[-1]["error"]["message"] == "slow down"
    assert frames(to("bedrock", data))[-1] == ("!throttlingException", {"message": "slow down"})
    assert b"message_stop" not in to("anthropic", data)


def test_an_exception_without_a_message_gets_one() -> None:
    assert "throttlingException" in fault_of(stream(("!throttlingException", {}))).message


def test_a_truncated_frame_is_no_clean_end() -> None:
    data = stream(START, text(0, "x"), stop("end_turn"), METADATA)
    last = len(stream(METADATA))
    for missing in (*range(1, 20), last - 1):
        cut = data[:-missing]
        assert "ended inside a message" in fault_of(cut).message
        assert b"message_stop" not in to("anthropic", cut)
        assert b"event: error" in to("anthropic", cut)


def test_a_stream_without_its_end_is_no_clean_end() -> None:
    assert "messageStop" in fault_of(stream(START, text(0, "x"))).message
    assert fault_of(b"").status == 502


def test_every_split_gives_the_same_events() -> None:
    data = stream(START, text(0, "Hé", "llo"), use(1, "t", "f", '{"a":1}'), stop("tool_use"), METADATA)
    whole = to("anthropic", data)
    for step in (1, 2, 3, 7, 11, 12, 13, 64):
        assert _unnamed(to("anthropic", data, step)) == _unnamed(whole)
    for at in range(len(data)):
        translator = dragoman.stream_translator(source="bedrock", target="anthropic")
        assert _unnamed(translator.feed(data[:at]) + translator.feed(data[at:]) + translator.close()) == _unnamed(whole)


def _unnamed(data: bytes) -> list[Any]:
    """The events without the message's id, which is made up."""
    return [{k: v for k, v in each.items() if k != "message"} for each in parse_sse(data)]


# --- violations


@pytest.mark.parametrize(
    ("items", "words"),
    [
        ([delta(0, text="x")], "must begin with messageStart"),
        ([START, START], "a second messageStart"),
        ([START, delta(0, toolUse={"input": "x"})], "has no contentBlockStart"),
        ([START, delta(0, text="x"), delta(0, reasoningContent={"text": "y"})], "block 0 is a Text"),
        ([START, text(0, "x"), delta(0, text="y")], "block 0 has already started"),
        ([START, text(0, "x"), end(0)], "block 0 is not open"),
        ([START, delta(0, text="x"), stop("end_turn")], "block 0 is still open"),
        ([START, stop("end_turn"), delta(0, text="x")], "the message has already stopped"),
        ([START, ("contentBlockDelta", {"delta": {"text": "x"}})], "contentBlockIndex"),
        ([START, ("contentBlockDelta", {"contentBlockIndex": 0})], "delta"),
        ([START, ("contentBlockDelta", {"contentBlockIndex": 0, "delta": {"text": 1}})], "expected a string"),
        ([START, ("contentBlockStart", {"contentBlockIndex": 0, "start": 1})], "expected an object"),
        ([START, delta(0, reasoningContent={"redactedContent": "%"})], "expected base64"),
    ],
)
def test_frames_that_the_dialect_forbids_fail_with_a_reason(items: list[Any], words: str) -> None:
    events = decode_stream(stream(items))
    check(events)
    assert words in fault_of(stream(items)).message


def test_a_block_without_content_is_no_block() -> None:
    assert kinds(stream(START, end(0), text(1, "x"), stop("end_turn"), METADATA))[1] == "BlockStarted"


@pytest.mark.parametrize("payload", [b"{bad", b"[1]"])
def test_a_stop_that_cannot_be_read_is_no_stop(payload: bytes) -> None:
    assert "before messageStop" in fault_of(stream(START) + encode_event("messageStop", payload)).message


def test_a_payload_that_is_no_json_fails_an_open_block() -> None:
    data = stream(START, delta(0, text="x")) + encode_event("contentBlockDelta", b"{bad")
    assert "not JSON" in fault_of(data).message


def test_unknown_events_and_deltas_are_sent_only_to_the_same_dialect() -> None:
    data = stream(
        START,
        ("novelty", {"x": 1}),
        delta(0, text="a"),
        delta(0, hologram={"y": 2}),
        end(0),
        stop("end_turn"),
        METADATA,
    )
    unknown = [event for event in decode_stream(data) if isinstance(event, OpaqueEvent)]
    assert [event.kind for event in unknown] == ["novelty", "contentBlockDelta"]
    assert any("hologram" in str(frame) for frame in frames(to("bedrock", data)))
    assert b"hologram" not in to("anthropic", data)


def test_a_block_of_an_unknown_kind_is_emitted_whole() -> None:
    data = stream(
        START, delta(0, hologram={"y": "a"}), delta(0, hologram={"y": "b"}), end(0), stop("end_turn"), METADATA
    )
    assert BlockStarted(0, Opaque("bedrock", {"hologram": {"y": "ab"}}, "hologram")) in decode_stream(data)


def test_usage_keeps_the_other_fields_of_the_service() -> None:
    metadata = (
        "metadata",
        {**METADATA[1], "trace": {"guardrail": {}}, "usage": {**METADATA[1]["usage"], "cacheDetails": []}},
    )
    (usage,) = [
        event.usage
        for event in decode_stream(stream(START, stop("end_turn"), metadata))
        if isinstance(event, UsageReported)
    ]
    assert usage.extra is not None
    assert set(usage.extra.fields) == {"metrics", "trace", "usage"}
    assert frames(to("bedrock", stream(START, text(0, "x"), stop("end_turn"), metadata)))[-1] == metadata

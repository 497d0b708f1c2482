"""Events to Anthropic streams, checked by the dialect's rules and by the official client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx2
import pytest

from dragoman.dialects.anthropic import DIALECT
from dragoman.dialects.base import Environment, StreamReader
from dragoman.errors import Fault, LocalMisuse
from dragoman.model.assemble import assemble_reply
from dragoman.model.blocks import Extra, Opaque, Reasoning, Signature, Text, ToolCall
from dragoman.model.conversation import Conversation, Stop, StopReason, Usage
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

CODEC, BINDING = DIALECT.codec, DIALECT.binding
REQUEST = Conversation("asked-model", ())
STILL = Environment(new_id=lambda prefix: prefix + "new", now=lambda: 0)
STARTED = Started("msg_1", "claude", Usage(10, 1))
SERVER_TOOL: dict[str, Any] = {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {"query": "x"}}
CITATION = Opaque("anthropic", {"type": "web_search_result_location", "url": "u"}, "web_search_result_location")
RICH: Events = (
    STARTED,
    BlockStarted(7, Reasoning("", "anthropic")),
    ReasoningDelta(7, "let me"),
    ReasoningDelta(7, " see"),
    SignatureAdded(7, Signature("anthropic", "sig==")),
    BlockEnded(7),
    BlockStarted(3, Reasoning("", "anthropic")),
    SignatureAdded(3, Signature("anthropic", "hidden", "redacted")),
    BlockEnded(3),
    BlockStarted(4, Opaque("anthropic", SERVER_TOOL, "server_tool_use")),
    BlockEnded(4),
    BlockStarted(9, Text("")),
    TextDelta(9, 'Found "it" \u2028é\n'),
    CitationAdded(9, CITATION),
    BlockEnded(9),
    BlockStarted(1, ToolCall("toolu_1", "read", extra=Extra("anthropic", {"caller": {"type": "direct"}}))),
    ArgumentsDelta(1, '{"p": '),
    ArgumentsDelta(1, "1}"),
    BlockEnded(1),
    BlockStarted(2, ToolCall("toolu_2", "list")),
    BlockEnded(2),
    Stopped(Stop(StopReason.TOOL)),
    UsageReported(Usage(12, 7, 100, 20, 5)),
    FINISHED,
)


def encode(*events: Event) -> bytes:
    encoder = CODEC.encoder(REQUEST, STILL)
    return b"".join(BINDING.encode_frame(payload) for event in events for payload in encoder.feed((event,)))


def frames(data: bytes) -> list[Frame]:
    decoder = BINDING.frame_decoder()
    return [*decoder.feed(data), *decoder.close()]


def encoded(*events: Event) -> list[dict[str, Any]]:
    return [json.loads(frame.data) for frame in frames(encode(*events))]


def decoded(data: bytes) -> Events:
    reader = StreamReader(BINDING.frame_decoder(), CODEC.decoder(REQUEST, STILL))
    return tuple(event for decoded in [*reader.feed(data), *reader.close()] for event in decoded.events)


def final_message(data: bytes) -> Any:
    """Return the message that the official client reads from a stream in small pieces."""

    def pieces() -> Iterator[bytes]:
        for at in range(0, len(data), 13):
            yield data[at : at + 13]

    def respond(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, headers={"content-type": "text/event-stream"}, content=pieces())

    http = anthropic.DefaultHttpxClient(transport=httpx2.MockTransport(respond))
    client = anthropic.Anthropic(api_key="x", base_url="http://loopback.test", max_retries=0, http_client=http)
    with client.messages.stream(model="m", max_tokens=10, messages=[{"role": "user", "content": "?"}]) as stream:
        return stream.get_final_message()


def block(key: int, what: Any, *events: Event) -> Events:
    return (BlockStarted(key, what), *events, BlockEnded(key))


STREAMS: dict[str, Events] = {
    "rich": RICH,
    "empty": (STARTED, Stopped(Stop(StopReason.END)), FINISHED),
    "no stop": (STARTED, *block(0, Text(""), TextDelta(0, "x")), FINISHED),
    "no usage": (Started("m", "x"), *block(0, Text(""), TextDelta(0, "x")), Stopped(Stop(StopReason.LENGTH)), FINISHED),
    "no id": (Started("", ""), *block(5, ToolCall("a", "f")), Stopped(Stop(StopReason.TOOL)), FINISHED),
    "unsigned thinking": (
        STARTED,
        *block(0, Reasoning(""), ReasoningDelta(0, "x")),
        Stopped(Stop(StopReason.END)),
        FINISHED,
    ),
    "empty thinking": (STARTED, *block(0, Reasoning("")), Stopped(Stop(StopReason.END)), FINISHED),
    "signed empty thinking": (
        STARTED,
        *block(0, Reasoning(""), SignatureAdded(0, Signature("anthropic", "s"))),
        FINISHED,
    ),
    "late usage": (
        STARTED,
        *block(0, Text("")),
        Stopped(Stop(StopReason.SEQUENCE, "END")),
        UsageReported(Usage(1, 2)),
        FINISHED,
    ),
    "cut call": (
        STARTED,
        BlockStarted(0, ToolCall("a", "f")),
        ArgumentsDelta(0, '{"a":'),
        BlockEnded(0, is_complete=False),
        Stopped(Stop(StopReason.LENGTH)),
        FINISHED,
    ),
}


@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_breaks_no_rule_of_the_dialect(name: str) -> None:
    breaches = [breach.rule for breach in CODEC.stream_breaches(frames(encode(*STREAMS[name])))]
    assert breaches == (["anthropic.stream.input_cut"] if name == "cut call" else [])


@pytest.mark.parametrize("name", STREAMS)
def test_the_official_client_reads_the_stream(name: str) -> None:
    reply = assemble_reply(
        STREAMS[name]
        if name not in ("no stop", "signed empty thinking")
        else (*STREAMS[name][:-1], Stopped(Stop(StopReason.END)), FINISHED)
    )
    message = final_message(encode(*STREAMS[name]))
    mine = json.loads(CODEC.render_reply(reply, REQUEST, STILL))
    theirs = message.to_dict()
    if name == "cut call":
        assert theirs["content"][0]["input"] == {}
        return
    for got, expected in zip(theirs["content"], mine["content"], strict=True):
        assert {key: value for key, value in got.items() if value is not None} == expected
    for field in ("id", "model", "role", "stop_reason", "stop_sequence"):
        assert theirs[field] == mine[field]
    for count in ("input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"):
        assert theirs["usage"].get(count) == mine["usage"][count]


@pytest.mark.parametrize("name", sorted(STREAMS.keys() - {"no stop", "signed empty thinking", "cut call"}))
def test_encoded_events_are_decoded_unchanged(name: str) -> None:
    once = assemble_reply(decoded(encode(*STREAMS[name])))
    assert assemble_reply(decoded(encode(*decoded(encode(*STREAMS[name]))))) == once
    reply = assemble_reply(STREAMS[name])
    assert [type(each) for each in once.choices[0].blocks] == [type(each) for each in reply.choices[0].blocks]
    assert once.choices[0].stop == reply.choices[0].stop


def test_blocks_are_numbered_in_the_order_of_their_starts() -> None:
    starts = [each["index"] for each in encoded(*RICH) if each["type"] == "content_block_start"]
    assert starts == [0, 1, 2, 3, 4, 5]


def test_blocks_start_empty_and_grow_by_deltas() -> None:
    starts = [each["content_block"] for each in encoded(*RICH) if each["type"] == "content_block_start"]
    assert starts == [
        {"type": "thinking", "thinking": "", "signature": ""},
        {"type": "redacted_thinking", "data": "hidden"},
        {**SERVER_TOOL, "input": {}},
        {"type": "text", "text": ""},
        {"type": "tool_use", "id": "toolu_1", "name": "read", "input": {}, "caller": {"type": "direct"}},
        {"type": "tool_use", "id": "toolu_2", "name": "list", "input": {}},
    ]


def test_there_is_one_message_delta_with_the_last_counts() -> None:
    deltas = [each for each in encoded(*RICH) if each["type"] == "message_delta"]
    assert deltas == [
        {
            "type": "message_delta",
            "delta": {"stop_reason": "tool_use", "stop_sequence": None},
            "usage": {
                "input_tokens": 12,
                "cache_creation_input_tokens": 20,
                "cache_read_input_tokens": 100,
                "output_tokens": 7,
                "output_tokens_details": {"thinking_tokens": 5},
            },
        }
    ]
    assert encoded(*RICH)[-1] == {"type": "message_stop"}


def test_nothing_follows_an_error() -> None:
    data = encode(STARTED, BlockStarted(0, Text("")), TextDelta(0, "x"), Failed(Fault("overloaded", "later", 529)))
    last = frames(data)[-1]
    assert last.kind == "error"
    assert json.loads(last.data) == {"type": "error", "error": {"type": "overloaded_error", "message": "later"}}
    assert CODEC.stream_breaches(frames(data)) == []
    with pytest.raises(anthropic.APIStatusError, match="later"):
        final_message(data)


def test_a_ping_has_no_content() -> None:
    encoder = CODEC.encoder(REQUEST, STILL)
    ping = encoder.ping()
    assert ping is not None
    assert BINDING.encode_frame(ping) == b'event: ping\ndata: {"type": "ping"}\n\n'


def test_an_event_of_the_same_family_gets_the_new_block_index() -> None:
    odd = OpaqueEvent(
        "anthropic", "content_block_delta", {"type": "content_block_delta", "index": 7, "delta": {"type": "odd"}}
    )
    other = OpaqueEvent("anthropic", "weather", {"type": "weather"})
    gone = OpaqueEvent(
        "anthropic", "content_block_delta", {"type": "content_block_delta", "index": 8, "delta": {"type": "odd"}}
    )
    got = encoded(STARTED, BlockStarted(7, Text("")), odd, other, gone)
    assert [each.get("index") for each in got[1:]] == [0, 0, None]


@pytest.mark.parametrize(
    "event",
    [
        BlockStarted(0, Text(""), choice=1),
        Stopped(Stop(StopReason.END), choice=1),
        BlockStarted(0, Opaque("openai", {"type": "audio"})),
        OpaqueEvent("openai", "x", {}),
    ],
)
def test_content_that_filters_should_have_removed_is_a_misuse(event: Event) -> None:
    with pytest.raises(LocalMisuse):
        encode(STARTED, event)


@pytest.mark.parametrize("signature", [Signature("openai", "x", "encrypted"), Signature("google", "x")])
def test_a_signature_without_a_block_is_a_misuse(signature: Signature) -> None:
    with pytest.raises(LocalMisuse):
        encode(STARTED, BlockStarted(0, ToolCall("a", "f")), SignatureAdded(0, signature))


# --- frames that pass unchanged


def forwarded(data: bytes, drop: int | None = None, change: bool = False) -> bytes:
    """Relay a stream in the same dialect, with a filter that drops one block or changes the stop reason."""
    reader, encoder = (
        StreamReader(BINDING.frame_decoder(), CODEC.decoder(REQUEST, STILL)),
        CODEC.encoder(REQUEST, STILL),
    )
    out = b""
    for decoded in [*reader.feed(data), *reader.close()]:
        events = tuple(event for event in decoded.events if drop is None or getattr(event, "key", None) != drop)
        if change:
            events = tuple(
                Stopped(Stop(StopReason.LENGTH)) if isinstance(event, Stopped) else event for event in events
            )
        if decoded.raw and events == decoded.events and encoder.passes(events):
            out += decoded.raw
        else:
            out += b"".join(BINDING.encode_frame(payload) for payload in encoder.feed(events))
    return out


def test_an_unchanged_stream_passes_byte_for_byte() -> None:
    data = encode(*RICH)
    assert forwarded(data) == data


def test_odd_spelling_passes_too() -> None:
    data = (
        encode(*RICH[:6]).replace(b'"type":"text', b'"x" : 1 , "type":"text') + encode(*RICH)[len(encode(*RICH[:6])) :]
    )
    odd = data.replace(b'"text_delta",', b'"text_delta" , "new":1,')
    assert odd != data
    assert b'"new":1' in forwarded(odd)


@pytest.mark.parametrize("drop", range(6))
def test_a_dropped_block_moves_the_numbers_of_the_others(drop: int) -> None:
    got = forwarded(encode(*RICH), drop)
    assert CODEC.stream_breaches(frames(got)) == []
    expected = [
        each for index, each in enumerate(assemble_reply(decoded(encode(*RICH))).choices[0].blocks) if index != drop
    ]
    assert list(assemble_reply(decoded(got)).choices[0].blocks) == expected


def test_a_changed_stop_reason_is_written_once() -> None:
    got = forwarded(encode(*RICH), change=True)
    assert CODEC.stream_breaches(frames(got)) == []
    assert assemble_reply(decoded(got)).choices[0].stop == Stop(StopReason.LENGTH)


def test_an_upstream_that_counts_from_one_is_put_right() -> None:
    frames_ = [json.loads(frame.data) for frame in frames(encode(*RICH))]
    shifted = [{**each, "index": each["index"] + 1} if "index" in each else each for each in frames_]
    data = b"".join(b"event: %b\ndata: %b\n\n" % (each["type"].encode(), json.dumps(each).encode()) for each in shifted)
    assert CODEC.stream_breaches(frames(data)) != []
    assert CODEC.stream_breaches(frames(forwarded(data))) == []


def test_a_start_without_counts_gets_them() -> None:
    start = b'event: message_start\ndata: {"type":"message_start","message":{"id":"m","model":"x"}}\n\n'
    data = start + encode(*RICH).partition(b"\n\n")[2]
    assert CODEC.stream_breaches(frames(forwarded(data))) == []
    assert final_message(forwarded(data)).usage.output_tokens == 7

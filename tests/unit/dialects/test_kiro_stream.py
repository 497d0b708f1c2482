"""Kiro streams, both directions: every event of docs/dialects/kiro.md#events, their quirks, and how a stream ends."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

import dragoman
from dragoman.conformance.laws import EMPTY_REQUEST, fixed_environment
from dragoman.dialects.kiro import DIALECT, KiroCodec
from dragoman.dialects.kiro.encoder import KiroEncoder
from dragoman.dialects.kiro.quirks.raw_calls import RecoverCalls
from dragoman.errors import (
    BadFrame,
    DragomanError,
    Fault,
    LocalMisuse,
    MissingField,
    OutOfOrder,
    Truncated,
    UpstreamFault,
)
from dragoman.model.assemble import assemble_reply, check
from dragoman.model.blocks import Media, Opaque, Reasoning, Signature, Text, ToolCall
from dragoman.model.conversation import Conversation, Stop, StopReason, ToolSpec, Usage
from dragoman.model.events import (
    FINISHED,
    ArgumentsDelta,
    BlockEnded,
    BlockKeys,
    BlockStarted,
    CitationAdded,
    Event,
    Events,
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
from dragoman.model.filter import Facts, Notes
from dragoman.response_stream import ResponseFilters, ResponseTranslator
from dragoman.translate import plan
from dragoman.wire.eventstream import EventStreamDecoder, encode_event
from dragoman.wire.frame import Frame
from tests.anthropic_client import parse_message_stream
from tests.growth import check_linear_growth
from tests.unit.dialects.kiro_helpers import (
    WEATHER,
    anthropic_request,
    call,
    calls,
    client_stream,
    decode_stream,
    exception,
    fault,
    frames,
    stop_event,
    text,
    texts,
    translate_to_kiro,
    usage,
    user,
)
from tests.wrong_values import WRONG_VALUES

Body = dict[str, Any]


def blocks(data: bytes) -> list[Any]:
    """The blocks of a stream, as a whole reply has them."""
    events = decode_stream(data)
    check(events)
    return list(assemble_reply(events).choices[0].blocks)


def stop(data: bytes) -> Stop:
    events = decode_stream(data)
    check(events)
    (found,) = [event.stop for event in events if isinstance(event, Stopped)]
    return found


def thought(**body: Any) -> tuple[str, Body]:
    return "reasoningContentEvent", body


# --- events


def test_text_and_code_are_one_text() -> None:
    assert blocks(frames(text("a"), ("codeEvent", {"content": "b"}), text("c"), usage())) == [Text("abc")]


def test_a_payload_may_be_wrapped_in_its_event_name() -> None:
    data = frames(("assistantResponseEvent", {"assistantResponseEvent": {"content": "a"}}), usage())
    assert blocks(data) == [Text("a")]


def test_a_frame_without_a_kind_may_hold_an_event_by_name() -> None:
    data = encode_event("", json.dumps({"assistantResponseEvent": {"content": "a"}}).encode())
    assert blocks(data + frames(usage())) == [Text("a")]


def test_the_real_model_is_reported_under_auto() -> None:
    events = decode_stream(frames(text("", modelId="claude-opus-4.7"), text("a"), usage()), Conversation("auto", ()))
    assert isinstance(events[0], Started)
    assert events[0].model == "claude-opus-4.7"


def test_message_metadata_has_the_id_of_the_reply() -> None:
    events = decode_stream(frames(("messageMetadataEvent", {"conversationId": "c", "utteranceId": "u"}), text("a")))
    assert isinstance(events[0], Started)
    assert events[0].id == "u"


def test_a_thought_ends_where_text_begins_and_its_signature_is_joined() -> None:
    data = frames(thought(text="pl"), thought(text="an"), thought(signature="s1"), thought(signature="s2"), text("a"))
    assert blocks(data) == [Reasoning("plan", "kiro", Signature("kiro", "s1s2")), Text("a")]


def test_a_thought_after_a_signature_is_another() -> None:
    data = frames(thought(text="a"), thought(signature="1"), thought(text="b"), thought(signature="2"), call(stop=True))
    signed = [Reasoning("a", "kiro", Signature("kiro", "1")), Reasoning("b", "kiro", Signature("kiro", "2"))]
    assert blocks(data)[:2] == signed


def test_redacted_thoughts_are_whole() -> None:
    data = frames(thought(text="a"), thought(redactedContent="eA=="), text("b"))
    assert blocks(data) == [
        Reasoning("a", "kiro"),
        Reasoning("", "kiro", Signature("kiro", "eA==", "redacted")),
        Text("b"),
    ]


def test_an_empty_thought_has_no_block() -> None:
    assert blocks(frames(thought(), text("a"))) == [Text("a")]


@pytest.mark.parametrize(
    "kind", ["followupPromptEvent", "codeReferenceEvent", "supplementaryWebLinksEvent", "citationEvent", "newEvent"]
)
def test_other_events_are_opaque_and_never_text(kind: str) -> None:
    events = decode_stream(frames(text("a"), (kind, {"content": "leak"}), usage()))
    assert OpaqueEvent("kiro", kind, {"content": "leak"}) in events
    assert texts(parse_message_stream(client_stream(frames(text("a"), (kind, {"content": "leak"}), usage())))) == "a"


def test_an_unknown_event_is_not_parsed() -> None:
    assert OpaqueEvent("kiro", "newEvent", "{no json") in decode_stream(
        frames(text("a")) + encode_event("newEvent", b"{no json")
    )
    assert OpaqueEvent("kiro", "newEvent", None) in decode_stream(frames(text("a")) + encode_event("newEvent", b""))


def test_exact_counts_win_over_the_percentage() -> None:
    counts = {"uncachedInputTokens": 5, "outputTokens": 7, "cacheReadInputTokens": 3, "cacheWriteInputTokens": 2}
    data = frames(text("a"), ("metadataEvent", {"tokenUsage": {**counts, "contextUsagePercentage": 2}}), usage(50))
    assert assemble_reply(decode_stream(data)).usage == Usage(5, 7, 3, 2)


def test_credits_stay_with_the_counts() -> None:
    found = assemble_reply(decode_stream(frames(text("a"), usage(), ("meteringEvent", {"usage": 0.5})))).usage
    assert found is not None
    assert found.extra is not None
    assert found.extra.fields == {"metering": {"usage": 0.5}}


@pytest.mark.parametrize("percentage", [-1, 1e7, "2", None])
def test_a_percentage_that_is_none_is_ignored(percentage: Any) -> None:
    found = decode_stream(frames(text("a"), ("contextUsageEvent", {"contextUsagePercentage": percentage})))
    assert isinstance(found[-1], Finished)
    assert {event.usage.estimated for event in found if isinstance(event, UsageReported)} == {True}


# --- calls


def test_interleaved_calls_are_known_by_their_ids() -> None:
    data = frames(
        call("a", "f", input='{"x":'),
        call("b", "g", input='{"y":'),
        call("a", "f", input="1}"),
        call("b", "g", input="2}", stop=True),
        call("a", "f", stop=True),
        usage(),
    )
    assert blocks(data) == [ToolCall("a", "f", '{"x":1}'), ToolCall("b", "g", '{"y":2}')]
    assert calls(parse_message_stream(client_stream(data))) == [("a", "f", '{"x":1}'), ("b", "g", '{"y":2}')]


def test_growing_objects_keep_the_latest() -> None:
    data = frames(call(input={"a": 1}), call(input={"a": 1, "b": 2}), call(stop=True), usage())
    assert blocks(data) == [ToolCall("t1", "get_weather", '{"a":1,"b":2}')]


def test_fragments_win_over_an_object_before_them() -> None:
    data = frames(call(input={"a": 1}), call(input='{"b":2}'), call(input={"c": 3}), call(stop=True), usage())
    assert blocks(data) == [ToolCall("t1", "get_weather", '{"b":2}')]


def test_a_repeated_call_is_one_call() -> None:
    data = frames(call(stop=True), call(input="{}", stop=True), ("toolUseEvent", {"stop": True}), usage())
    assert blocks(data) == [ToolCall("t1", "get_weather", "{}")]


def test_text_between_calls_is_its_own_block() -> None:
    data = frames(call("a", "f", stop=True), text("then"), call("b", "f", stop=True), usage())
    assert [type(block) for block in blocks(data)] == [ToolCall, Text, ToolCall]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"name": "f", "input": "{}"}, "toolUseId"),
        ({"toolUseId": "", "name": "f"}, "toolUseId"),
        ({"input": "x"}, "toolUseId"),
        ({"toolUseId": "a"}, "name"),
        ({"toolUseId": "a", "name": ""}, "name"),
        ({"toolUseId": "a", "name": 7}, "name"),
        ({"toolUseId": 7, "name": "f"}, "toolUseId"),
        ({"toolUseId": "a", "name": "f", "input": 7}, "input"),
        ({"toolUseId": "a", "name": "f", "input": [1]}, "input"),
        ({"toolUseId": "a", "name": "f", "stop": "yes"}, "stop"),
    ],
)
def test_a_missing_id_or_name_is_a_violation_that_names_the_field(body: Body, field: str) -> None:
    with pytest.raises(MissingField, match=rf"^toolUseEvent\.{field}: expected a"):
        decode_stream(frames(("toolUseEvent", body)))


# --- ends (docs/decisions/responses.md#d7)


@pytest.mark.parametrize(
    ("reason", "why"),
    [
        ("END_TURN", StopReason.END),
        ("STOP_SEQUENCE", StopReason.SEQUENCE),
        ("TOOL_USE", StopReason.TOOL),
        ("MAX_TOKENS", StopReason.LENGTH),
        ("LENGTH_LIMIT", StopReason.LENGTH),
        ("MODEL_CONTEXT_WINDOW_EXCEEDED", StopReason.CONTEXT),
        ("CONTENT_FILTERED", StopReason.REFUSAL),
        ("GUARDRAIL_INTERVENED", StopReason.REFUSAL),
        ("MALFORMED_MODEL_OUTPUT", StopReason.END),
        ("SOMETHING_NEW", StopReason.END),
    ],
)
@pytest.mark.parametrize("kind", ["metadataEvent", "messageStopEvent"])
def test_reasons_to_stop(reason: str, why: StopReason, kind: str) -> None:
    assert stop(frames(text("a"), (kind, {"stopReason": reason}), usage())).reason is why


def test_an_unknown_reason_is_kept() -> None:
    found = stop(frames(text("a"), stop_event("SOMETHING_NEW")))
    assert found.extra is not None
    assert found.extra.fields == {"stopReason": "SOMETHING_NEW"}


def test_a_malformed_reply_without_content_is_a_failure() -> None:
    assert fault(decode_stream(frames(stop_event("MALFORMED_MODEL_OUTPUT")))).kind == "server"


def test_a_reply_that_lost_a_call_is_a_failure_with_any_content() -> None:
    assert fault(decode_stream(frames(text("a"), stop_event("MALFORMED_TOOL_USE"), usage()))).kind == "server"


def test_without_a_reason_it_follows_from_the_content() -> None:
    assert stop(frames(text("a"), usage())).reason is StopReason.END
    assert stop(frames(call(stop=True), usage())).reason is StopReason.TOOL
    assert stop(frames(text("a"), usage(100.2))).reason is StopReason.CONTEXT
    assert stop(frames(call(stop=True), usage(100.2))).reason is StopReason.TOOL


def test_a_clean_end_with_an_open_call_is_cut_by_length() -> None:
    data = frames(call(input='{"a":1}'), stop_event("END_TURN"), usage())
    assert stop(data).reason is StopReason.LENGTH
    assert blocks(data) == []
    assert BlockEnded(0, is_complete=False) in decode_stream(data)


def test_only_the_open_one_of_several_calls_was_cut() -> None:
    data = frames(call("a", "f", input='{"x":1}'), call("b", "g", stop=True), usage())
    assert blocks(data) == [ToolCall("b", "g", "{}")]
    assert stop(data).reason is StopReason.LENGTH


def test_text_at_a_clean_end_is_an_end_with_a_note_if_no_usage_came() -> None:
    translator = dragoman.stream_translator(source="kiro", target="anthropic")
    out = translator.feed(frames(text("Hello"))) + translator.close()
    assert parse_message_stream(out)["stop_reason"] == "end_turn"
    assert [note.rule for note in translator.notes] == ["kiro.stream.no_usage"]


def test_a_broken_stream_is_never_a_clean_end() -> None:
    response = ResponseTranslator(plan(DIALECT, DIALECT, EMPTY_REQUEST), fixed_environment())
    response.feed(frames(text("Hello")))
    response.close(Fault("server", "reset"))
    assert response.fault == Fault("server", "reset")


def test_half_a_frame_is_truncated() -> None:
    with pytest.raises(Truncated):
        DIALECT.codec.parse_reply(frames(text("Hello"))[:-3], EMPTY_REQUEST)


@pytest.mark.parametrize("data", [b"", frames(("messageMetadataEvent", {"utteranceId": "u"}))])
def test_a_reply_without_any_event_is_a_failure(data: bytes) -> None:
    assert "ended before its first event" in fault(decode_stream(data)).message


def test_a_reply_with_only_usage_is_empty() -> None:
    assert blocks(frames(usage())) == []


def test_nothing_may_follow_the_end() -> None:
    decoder = KiroCodec().decoder(EMPTY_REQUEST, fixed_environment())
    decoder.close(None)
    assert decoder.close(None) == ()
    with pytest.raises(OutOfOrder):
        decoder.feed(Frame("toolUseEvent", b"{}", b""))


# --- failures inside a 200


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (exception("ThrottlingException", message="slow down"), "rate_limit"),
        (exception("InternalServerException", message="oops"), "server"),
        (exception("ServiceUnavailableException", message="busy"), "overloaded"),
        (exception("ValidationException", message="bad", reason="INVALID_MODEL_ID"), "not_found"),
        (exception("ContentLengthExceededException", message="too long"), "context_full"),
        (frames(("assistantResponseEvent", {"__type": "ThrottlingException", "message": "slow"})), "rate_limit"),
        (frames(("error", {"message": "no"})), "server"),
        (frames(("", {"_type": "x", "message": "no"})), "server"),
        (frames(("assistantResponseEvent", {"error": "Bad", "message": "no"})), "server"),
    ],
)
def test_failures_before_any_output(data: bytes, kind: str) -> None:
    assert fault(decode_stream(data)).kind == kind
    with pytest.raises(UpstreamFault):
        DIALECT.codec.parse_reply(data, EMPTY_REQUEST)


def test_too_long_names_the_length() -> None:
    data = exception("ContentLengthExceededException", message="x")
    assert fault(decode_stream(data)).message == "prompt is too long: 200001 tokens > 200000 maximum"


def test_a_reply_that_grows_too_long_stops_by_length() -> None:
    data = frames(text("Hel"), call(input="{")) + exception("ContentLengthExceededException", message="too long")
    assert stop(data).reason is StopReason.LENGTH
    assert blocks(data) == [Text("Hel")]


@pytest.mark.parametrize("payload", [b"{", b"[1]", b'"x"'])
def test_a_payload_that_is_no_object_is_a_bad_frame(payload: bytes) -> None:
    with pytest.raises(BadFrame):
        decode_stream(frames(text("a")) + encode_event("assistantResponseEvent", payload))


def test_content_must_be_text() -> None:
    with pytest.raises(MissingField, match=r"assistantResponseEvent\.content: expected a string"):
        decode_stream(frames(("assistantResponseEvent", {"content": 7})))
    with pytest.raises(MissingField, match=r"assistantResponseEvent\.content: expected a string, found nothing"):
        decode_stream(frames(("assistantResponseEvent", {})))


# --- the encoder


def written(*events: Event) -> list[tuple[str, Any]]:
    encoder = KiroEncoder(EMPTY_REQUEST, fixed_environment(), KiroCodec())
    data = b"".join(encode_event(each.kind, each.data, error=each.error) for each in encoder.feed(events))
    return [(frame.kind, json.loads(frame.data)) for frame in EventStreamDecoder().feed(data)]


def test_a_client_gets_the_events_the_service_would_send() -> None:
    frames_written = written(
        Started("m1", "claude-sonnet-4.5"),
        BlockStarted(0, Reasoning("")),
        ReasoningDelta(0, "plan"),
        SignatureAdded(0, Signature("kiro", "sig")),
        BlockEnded(0),
        BlockStarted(1, Text("")),
        TextDelta(1, "50% \\ done"),
        BlockEnded(1),
        BlockStarted(2, ToolCall("t", "f")),
        ArgumentsDelta(2, "{}"),
        BlockEnded(2),
        UsageReported(Usage(91, 12, 2301, 183)),
        Stopped(Stop(StopReason.TOOL)),
        FINISHED,
    )
    assert frames_written == [
        ("messageMetadataEvent", {"conversationId": "0001", "utteranceId": "m1"}),
        ("reasoningContentEvent", {"text": "plan"}),
        ("reasoningContentEvent", {"signature": "sig"}),
        ("assistantResponseEvent", {"content": "50% \\ done", "modelId": "claude-sonnet-4.5"}),
        ("toolUseEvent", {"toolUseId": "t", "name": "f"}),
        ("toolUseEvent", {"toolUseId": "t", "name": "f", "input": "{}"}),
        ("toolUseEvent", {"toolUseId": "t", "name": "f", "stop": True}),
        (
            "metadataEvent",
            {
                "stopReason": "TOOL_USE",
                "tokenUsage": {
                    "uncachedInputTokens": 91,
                    "outputTokens": 12,
                    "totalTokens": 2587,
                    "cacheReadInputTokens": 2301,
                    "cacheWriteInputTokens": 183,
                },
            },
        ),
        ("contextUsageEvent", {"contextUsagePercentage": 1.4997}),
    ]


def test_a_cut_call_has_no_end_for_the_client_either() -> None:
    frames_written = written(
        Started("", ""),
        BlockStarted(0, ToolCall("t", "f")),
        BlockEnded(0, is_complete=False),
        Stopped(Stop(StopReason.LENGTH)),
        FINISHED,
    )
    assert frames_written[1:] == [
        ("toolUseEvent", {"toolUseId": "t", "name": "f"}),
        ("metadataEvent", {"stopReason": "MAX_TOKENS"}),
    ]


@pytest.mark.parametrize(
    "event",
    [
        BlockStarted(0, Media("image", "image/png", "base64", "aGk=")),
        BlockStarted(0, Opaque("kiro", {}, "x")),
        BlockStarted(0, Text(""), 1),
        CitationAdded(0, Opaque("x", {})),
        SignatureAdded(0, Signature("kiro", "x", "encrypted")),
        OpaqueEvent("anthropic", "x", {}),
        Stopped(Stop(StopReason.END), 1),
    ],
)
def test_content_that_filters_should_have_removed_is_a_misuse(event: Event) -> None:
    with pytest.raises(LocalMisuse):
        written(event)


def test_blocks_that_start_with_content_are_written() -> None:
    begun: Events = (
        BlockStarted(0, Text("a")),
        BlockEnded(0),
        BlockStarted(1, Reasoning("b")),
        BlockEnded(1),
        BlockStarted(2, ToolCall("t", "f", "{}")),
    )
    assert [kind for kind, _ in written(*begun)] == [
        "assistantResponseEvent",
        "reasoningContentEvent",
        "toolUseEvent",
        "toolUseEvent",
    ]


def test_blocks_that_are_open_at_once_are_written_one_after_the_other() -> None:
    frames_written = written(
        BlockStarted(0, ToolCall("a", "f")),
        BlockStarted(1, Text("")),
        TextDelta(1, "x"),
        BlockStarted(2, ToolCall("b", "g")),
        ArgumentsDelta(2, "{}"),
        BlockEnded(1),
        ArgumentsDelta(0, "{}"),
        BlockEnded(0),
        BlockEnded(2),
    )
    assert [(kind, body.get("toolUseId")) for kind, body in frames_written] == [
        *[("toolUseEvent", "a")] * 3,
        ("assistantResponseEvent", None),
        *[("toolUseEvent", "b")] * 3,
    ]


def test_buffered_content_is_written_before_a_failure() -> None:
    frames_written = written(
        BlockStarted(0, ToolCall("a", "f")), BlockStarted(1, Text("x")), Failed(Fault("server", "oops"))
    )
    assert [kind for kind, _ in frames_written] == ["toolUseEvent", "assistantResponseEvent", "InternalServerException"]


def test_in_the_same_dialect_frames_pass_unchanged() -> None:
    data = frames(
        ("messageMetadataEvent", {"utteranceId": "u", "padding": 1}),
        thought(text="a"),
        thought(signature="s"),
        text("b", unknown=[1]),
        call(input={"a": 1}),
        call(stop=True),
        ("followupPromptEvent", {"x": 1}),
        stop_event("END_TURN"),
        usage(),
        ("meteringEvent", {"usage": 1}),
    )
    assert client_stream(data, plan(DIALECT, DIALECT, Conversation("claude-sonnet-4.5", ()))) == data


def test_in_the_same_dialect_all_frames_of_a_renamed_call_are_rewritten() -> None:
    request = dragoman.translate_request(_kiro_body("files.read all"), source="kiro", target="kiro")
    (alias,) = [tool.name for tool in request.plan.translated.tools if not isinstance(tool, Opaque)]
    data = frames(text("a"), call("t", alias, input="{}"), call("t", alias, stop=True), usage())
    out = client_stream(data, request.plan)
    names = {json.loads(frame.data)["name"] for frame in EventStreamDecoder().feed(out) if frame.kind == "toolUseEvent"}
    assert names == {"files.read all"}
    assert out.startswith(frames(text("a")))


def _kiro_body(tool: str) -> Body:
    spec = {"name": tool, "description": "d", "inputSchema": {"json": {"type": "object", "properties": {}}}}
    turn = {
        "content": "hi",
        "modelId": "claude-sonnet-4.5",
        "userInputMessageContext": {"tools": [{"toolSpecification": spec}]},
    }
    return {"conversationState": {"chatTriggerType": "MANUAL", "currentMessage": {"userInputMessage": turn}}}


def test_there_is_no_ping() -> None:
    assert KiroEncoder(EMPTY_REQUEST, fixed_environment(), KiroCodec()).ping() is None


# --- raw calls and tags in the text (docs/dialects/kiro.md)

TOOLS = [
    {
        **WEATHER,
        "name": "Read",
        "input_schema": {"type": "object", "properties": {"path": {"type": "string"}, "n": {"type": "integer"}}},
    }
]


def leaked(*pieces: str, more: tuple[tuple[str, Body], ...] = (), **options: Any) -> Body:
    request = translate_to_kiro(anthropic_request(user("a"), tools=TOOLS), **options)
    return parse_message_stream(client_stream(frames(*map(text, pieces), *more, usage()), request.plan))


INVOKE = '<invoke name="Read"><parameter name="path">a & b</parameter><parameter name="n">3</parameter></invoke>'


@pytest.mark.parametrize(
    ("markup", "arguments"),
    [
        ('[Called Read with args: {"path": "a]{"}]', {"path": "a]{"}),
        (INVOKE, {"path": "a & b", "n": 3}),
        (f"<function_calls>\n{INVOKE}\n</function_calls>\n", {"path": "a & b", "n": 3}),
        (INVOKE.replace("a & b", "a </invoke> b"), {"path": "a </invoke> b", "n": 3}),
    ],
)
def test_a_leaked_call_is_recovered_wherever_it_is_cut(markup: str, arguments: Body) -> None:
    for at in range(len(markup)):
        message = leaked("I read.\n", markup[:at], markup[at:])
        ((_, name, found),) = calls(message)
        assert (name, json.loads(found), texts(message), message["stop_reason"]) == (
            "Read",
            arguments,
            "I read.\n",
            "tool_use",
        )


@pytest.mark.parametrize(
    "words",
    [
        '[Called Write with args: {"path": "a"}]',
        '[Called Read with args: {"path": "a"}',
        '[Called Read with args: {"path": "a"}] and so on',
        "[Called Read with args: {no json}]",
        '```\n[Called Read with args: {"path": "a"}]\n```',
        'So:\n```\n[Called Read with args: {"path": "a"}]',
        '<invoke name="Read"><parameter name="path">a</parameter>',
        '<invoke name="Read">stray<parameter name="path">a</parameter></invoke>',
        "The markup is <invoke, as in " + "x" * 300,
        "[Called",
        "a < b",
    ],
)
def test_an_incomplete_call_or_one_of_an_undeclared_tool_stays_text(words: str) -> None:
    for pieces in ((words,), tuple(words), words.splitlines(keepends=True)):
        message = leaked(*pieces)
        assert (texts(message), calls(message)) == (words, [])


@pytest.mark.parametrize("markup", ['[Called Read with args: {"path": "a"}]', INVOKE])
def test_a_recovered_call_leaves_no_empty_text_before_it(markup: str) -> None:
    for pieces in ((markup,), tuple(markup)):
        assert [block["type"] for block in leaked(*pieces)["content"]] == ["tool_use"]
        assert [block["type"] for block in leaked("I read.", *pieces)["content"]] == ["text", "tool_use"]


def recovered(*events: Any) -> list[Any]:
    _, make = RecoverCalls().forward(Conversation("m", (), tools=(ToolSpec("Read", "d", {}),)), Notes(), Facts())
    assert make is not None
    back = make(Notes(), BlockKeys())
    return [filtered for event in events for filtered in back.feed((event,))]


def test_a_text_block_begins_with_the_first_thing_in_it() -> None:
    began, ended, delta = BlockStarted(0, Text("")), BlockEnded(0), TextDelta(0, "[Called Read")
    signature = SignatureAdded(0, Signature("kiro", "s"))
    failed = Failed(Fault("server", "x"))
    assert recovered(began) == []
    for events in (
        (began, TextDelta(0, "a")),
        (began, ended),
        (began, signature, delta, ended),
        (began, delta, ended),
        (began, delta, failed),
        (BlockStarted(0, Text("a")),),
    ):
        assert recovered(*events) == list(events)


def test_a_native_call_makes_leaked_ones_text() -> None:
    words = '[Called Read with args: {"path": "a"}]'
    message = leaked(words, more=(call("t", "Read", stop=True),))
    assert (texts(message), calls(message)) == (words, [("t", "Read", "{}")])
    after = parse_message_stream(
        client_stream(
            frames(call("t", "Read", stop=True), text(words), usage()),
            translate_to_kiro(anthropic_request(user("a"), tools=TOOLS)).plan,
        )
    )
    assert (texts(after), len(calls(after))) == (words, 1)


def leaking(piece: str, count: int, *, start: str = "", end: str = "") -> list[Any]:
    """Return a stream that repeats one piece many times."""
    deltas = [TextDelta(0, part) for part in (start, *(piece for _ in range(count)), end) if part]
    return [BlockStarted(0, Text("")), *deltas, BlockEnded(0), Stopped(Stop(StopReason.END))]


@pytest.mark.parametrize(
    ("start", "piece", "end"),
    [
        ('<invoke name="Read">', '<parameter name="a">', "</invoke>"),
        ('<invoke name="Read">', '<parameter name="a">1</parameter>', "</invoke>"),
        ("", "<function_calls>", '<invoke name="Read"></invoke>'),
        ("", "[Called Read with args: {}]", ""),
        ("", '[Called Read with args: {"', ""),
        ("", '<invoke name="Write">', "</invoke>"),
    ],
)
def test_the_search_for_leaked_calls_is_linear(start: str, piece: str, end: str) -> None:
    def together(count: int) -> Callable[[], object]:
        return partial(recovered, *leaking(start + piece * count + end, 1))

    def apart(count: int) -> Callable[[], object]:
        return partial(recovered, *leaking(piece, count, start=start, end=end))

    check_linear_growth(together, 200)
    check_linear_growth(apart, 200)


def test_recovery_can_be_turned_off() -> None:
    words = '[Called Read with args: {"path": "a"}]'
    assert texts(leaked(words, recover_calls=False)) == words


def test_a_failure_releases_the_buffered_content() -> None:
    request = translate_to_kiro(anthropic_request(user("a"), tools=TOOLS))
    data = frames(text("[Called Read"), call("", "x"))
    out = parse_message_stream(
        client_stream(
            data[: len(frames(text("[Called Read")))] + exception("ThrottlingException", message="x"), request.plan
        )
    )
    assert out["error"]["type"] == "rate_limit_error"


def thinking(*pieces: str, more: tuple[tuple[str, Body], ...] = ()) -> tuple[str, str]:
    request = translate_to_kiro(
        anthropic_request(user("a"), thinking={"type": "enabled", "budget_tokens": 2000}, tools=TOOLS)
    )
    message = parse_message_stream(client_stream(frames(*map(text, pieces), *more, usage()), request.plan))
    return "".join(block["thinking"] for block in message["content"] if block["type"] == "thinking"), texts(message)


@pytest.mark.parametrize(
    ("words", "thought_", "text"),
    [
        ("<thinking>\nplan</thinking>\n\nAnswer", "plan", "Answer"),
        ("  \n<thinking>plan</thinking>\n\nAnswer", "plan", "Answer"),
        ("<thinking>plan</thinking>  ", "plan", ""),
        ("<thinking>a </thinking> b</thinking>\n\nAnswer", "a </thinking> b", "Answer"),
        ("<thinking>say '</thinking>\n\n' now</thinking>\n\nx", "say '</thinking>\n\n' now", "x"),
        ("<thinking>never closed", "never closed", ""),
        ("<thinking>", "", ""),
        ("<thinkin is no tag", "", "<thinkin is no tag"),
        ("Quote: <thinking>x</thinking>\n\ny", "", "Quote: <thinking>x</thinking>\n\ny"),
        ("<", "", "<"),
        ("plain", "", "plain"),
    ],
)
def test_thinking_tags_split_wherever_they_are_cut(words: str, thought_: str, text: str) -> None:
    assert thinking(words) == (thought_, text)
    assert thinking(*words) == (thought_, text)
    for at in range(1, len(words)):
        assert thinking(words[:at], words[at:]) == (thought_, text), at


def test_a_call_is_a_boundary_that_closes_thinking() -> None:
    assert thinking("<thinking>plan</thinking>", more=(call("t", "Read", stop=True),)) == ("plan", "")


def test_repeats_can_be_dropped_on_request() -> None:
    data = frames(text("ha"), text("ha"), text("!"), text("!"), usage())
    reply = dragoman.translate_reply(data, source="kiro", target="anthropic", drop_repeats=True)
    assert reply.body["content"][0]["text"] == "ha!"
    assert [note.rule for note in reply.notes] == ["kiro.stream.repeated"] * 2


def test_the_client_sees_its_own_name_for_the_model() -> None:
    request = translate_to_kiro(anthropic_request(user("a"), model="claude-sonnet-4-5-20250929"))
    assert '"model":"claude-sonnet-4-5-20250929"' in client_stream(frames(text("a"), usage()), request.plan).decode()


def test_any_value_of_the_field_raises_only_our_errors() -> None:
    kinds = [
        "assistantResponseEvent",
        "reasoningContentEvent",
        "toolUseEvent",
        "contextUsageEvent",
        "metadataEvent",
        "meteringEvent",
    ]
    names = [
        "content",
        "text",
        "signature",
        "toolUseId",
        "name",
        "input",
        "stop",
        "stopReason",
        "tokenUsage",
        "modelId",
        "message",
    ]
    for kind in kinds:
        for name in names:
            for value in WRONG_VALUES:
                with suppress(DragomanError):
                    check(decode_stream(frames((kind, {name: value}))))


# --- whole replies are whole streams


def test_a_whole_reply_is_written_and_read_as_a_stream() -> None:
    data = frames(text("a"), call(input='{"x":1}'), call(stop=True), stop_event("TOOL_USE"), usage())
    reply = DIALECT.codec.parse_reply(data, EMPTY_REQUEST)
    again = DIALECT.codec.parse_reply(
        DIALECT.codec.render_reply(reply, EMPTY_REQUEST, fixed_environment()), EMPTY_REQUEST
    )
    assert again.choices == reply.choices


def test_frames_after_a_failure_are_not_read() -> None:
    with pytest.raises(UpstreamFault, match="slow down"):
        DIALECT.codec.parse_reply(exception("ThrottlingException", message="slow down") + b"garbage", EMPTY_REQUEST)


def test_content_that_only_text_can_have_ends_the_search_for_tags() -> None:
    planned = translate_to_kiro(anthropic_request(user("a"), thinking={"type": "enabled", "budget_tokens": 2000})).plan
    cited = CitationAdded(0, Opaque("anthropic", {}))
    for words in ("<thin", "<thinking>plan", "<thinking>plan</thinking>\n\n", "plain"):
        events = ResponseFilters(planned, BlockKeys(1)).feed(
            (Started("", ""), BlockStarted(0, Text("")), TextDelta(0, words), cited, BlockEnded(0))
        )
        check((*events, Stopped(Stop(StopReason.END)), FINISHED))
        assert cited in events


def test_the_buffer_has_a_limit() -> None:
    request = translate_to_kiro(anthropic_request(user("a"), tools=TOOLS))
    words = '[Called Read with args: {"path": "' + "x" * 2**20
    response = ResponseTranslator(request.plan, fixed_environment())
    assert b"x" * 1000 in response.feed(frames(text(words)))


def test_a_parameter_that_is_no_json_is_text() -> None:
    message = leaked('<invoke name="Read"><parameter name="n">three</parameter></invoke>')
    assert json.loads(calls(message)[0][2]) == {"n": "three"}

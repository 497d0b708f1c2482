"""Responses streams: the encoder writes for the SDK helpers and Codex, and the decoder reads streams of real servers."""

from __future__ import annotations

import json
from typing import Any

import pytest

import dragoman.dialects as registry
from dragoman.conformance.laws import EMPTY_REQUEST, decode_events, encode_events, fixed_environment
from dragoman.errors import Fault
from dragoman.model.assemble import assemble_reply
from dragoman.model.blocks import Opaque, Reasoning, Signature, Text, ToolCall
from dragoman.model.conversation import Conversation, Stop, StopReason, ToolSpec, Usage
from dragoman.model.events import (
    FINISHED,
    ArgumentsDelta,
    BlockEnded,
    BlockStarted,
    Events,
    Failed,
    Finished,
    ReasoningDelta,
    SignatureAdded,
    Started,
    Stopped,
    TextDelta,
    UsageReported,
)
from dragoman.response_stream import ResponseTranslator, translate_whole_reply
from dragoman.translate import plan
from dragoman.wire.frame import Frame
from dragoman.wire.sse import SseDecoder

RESPONSES = registry.get("responses")
HEAD = {"type": "response.created", "response": {"id": "resp_1", "model": "m", "output": []}}


def frames(data: bytes) -> list[Frame]:
    decoder = SseDecoder()
    return [*decoder.feed(data), *decoder.close()]


def parsed_events(data: bytes) -> list[dict[str, Any]]:
    return [json.loads(frame.data) for frame in frames(data)]


def stream(*events: dict[str, Any], begun: bool = True) -> bytes:
    every = (HEAD, *events) if begun else events
    return b"".join(b"event: %b\ndata: %b\n\n" % (e["type"].encode(), json.dumps(e).encode()) for e in every)


def completed(*output: Any, **more: Any) -> dict[str, Any]:
    return {"type": "response.completed", "response": {"id": "resp_1", "model": "m", "output": list(output), **more}}


def events_of(*events: dict[str, Any], begun: bool = True) -> Events:
    return decode_events(RESPONSES, stream(*events, begun=begun))


def blocks_of(*events: dict[str, Any], begun: bool = True) -> tuple[Any, ...]:
    return assemble_reply(events_of(*events, begun=begun)).choices[0].blocks


def bare(block: Any) -> Any:
    return (type(block), getattr(block, "text", None) or getattr(block, "arguments", None))


CALL = {"type": "function_call", "id": "fc_1", "call_id": "c", "name": "f", "arguments": "", "status": "in_progress"}
ADDED = {"type": "response.output_item.added", "output_index": 0, "item": CALL}
ARGS = '{"a": 1}'


def delta(text: str, index: int = 0) -> dict[str, Any]:
    return {"type": "response.function_call_arguments.delta", "item_id": "fc_1", "output_index": index, "delta": text}


def done(arguments: str = ARGS, index: int = 0, **more: Any) -> dict[str, Any]:
    item = {**CALL, "arguments": arguments, "status": "completed", **more}
    return {"type": "response.output_item.done", "output_index": index, "item": item}


# --- the encoder

STARTED = Started("resp_1", "m")
END = (UsageReported(Usage(12, 7, 100, 20, 3)), Stopped(Stop(StopReason.END)), FINISHED)


def test_a_message_is_sent_in_the_order_that_the_sdk_helper_needs() -> None:
    data = encode_events(RESPONSES, (STARTED, BlockStarted(0, Text("")), TextDelta(0, "Hi"), BlockEnded(0), *END))
    assert [event["type"] for event in parsed_events(data)] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert [event["sequence_number"] for event in parsed_events(data)] == list(range(9))
    assert all(frame.kind == event["type"] for frame, event in zip(frames(data), parsed_events(data), strict=True))
    last = parsed_events(data)[-1]["response"]
    assert last["output"][0]["content"][0]["text"] == "Hi"
    assert last["usage"] == {
        "input_tokens": 132,
        "input_tokens_details": {"cached_tokens": 100, "cache_write_tokens": 20},
        "output_tokens": 7,
        "output_tokens_details": {"reasoning_tokens": 3},
        "total_tokens": 139,
    }
    assert RESPONSES.codec.stream_breaches(frames(data)) == []


def test_codex_finds_the_whole_call_in_output_item_done() -> None:
    items = (
        BlockStarted(0, ToolCall("c", "f")),
        ArgumentsDelta(0, ARGS[:4]),
        ArgumentsDelta(0, ARGS[4:]),
        BlockEnded(0),
    )
    [item] = [
        e["item"]
        for e in parsed_events(encode_events(RESPONSES, (STARTED, *items, *END)))
        if e["type"].endswith("item.done")
    ]
    assert (item["call_id"], item["name"], item["arguments"]) == ("c", "f", ARGS)


def test_a_call_without_arguments_is_sent_as_an_empty_object_in_a_delta_too() -> None:
    data = parsed_events(
        encode_events(RESPONSES, (STARTED, BlockStarted(0, ToolCall("c", "now")), BlockEnded(0), *END))
    )
    assert [event["delta"] for event in data if event["type"].endswith("arguments.delta")] == ["{}"]
    assert data[-1]["response"]["output"][0]["arguments"] == "{}"


def test_items_that_are_open_at_once_have_consecutive_indices_and_stay_separate() -> None:
    items = (
        BlockStarted(7, ToolCall("a", "f")),
        BlockStarted(3, ToolCall("b", "g")),
        ArgumentsDelta(7, '{"x":'),
        ArgumentsDelta(3, '{"y":'),
        ArgumentsDelta(7, "1}"),
        ArgumentsDelta(3, "2}"),
        BlockEnded(3),
        BlockEnded(7),
    )
    data = encode_events(RESPONSES, (STARTED, *items, *END))
    assert [item["arguments"] for item in parsed_events(data)[-1]["response"]["output"]] == ['{"x":1}', '{"y":2}']
    assert RESPONSES.codec.stream_breaches(frames(data)) == []


@pytest.mark.parametrize("arguments", ['{"cmd": "rm', ""])
def test_a_call_that_was_cut_is_not_complete(arguments: str) -> None:
    items = (BlockStarted(0, ToolCall("c", "f")), ArgumentsDelta(0, arguments), BlockEnded(0, is_complete=False))
    data = parsed_events(encode_events(RESPONSES, (STARTED, *items, Stopped(Stop(StopReason.LENGTH)), FINISHED)))
    assert not [event for event in data if event["type"] in ("response.output_item.done",)]
    assert data[-1]["type"] == "response.incomplete"
    assert data[-1]["response"]["incomplete_details"] == {"reason": "max_output_tokens"}
    assert data[-1]["response"]["output"] == []


def test_a_call_that_the_length_limit_cut_silently_is_no_call() -> None:
    items = (BlockStarted(0, ToolCall("c", "f")), ArgumentsDelta(0, '{"cmd": "rm'), BlockEnded(0))
    cut = parsed_events(encode_events(RESPONSES, (STARTED, *items, Stopped(Stop(StopReason.LENGTH)), FINISHED)))
    whole = parsed_events(encode_events(RESPONSES, (STARTED, *items, Stopped(Stop(StopReason.TOOL)), FINISHED)))
    assert "response.output_item.done" not in {event["type"] for event in cut}
    assert whole[-1]["response"]["output"][0]["arguments"] == '{"cmd": "rm', "no JSON, but all there is"


def test_reasoning_is_a_summary_with_its_signature() -> None:
    items = (
        BlockStarted(0, Reasoning("", "responses")),
        ReasoningDelta(0, "Hm."),
        SignatureAdded(0, Signature("responses", "gAAA", "encrypted")),
        BlockEnded(0),
    )
    data = encode_events(RESPONSES, (STARTED, *items, *END))
    [item] = parsed_events(data)[-1]["response"]["output"]
    assert item["summary"] == [{"type": "summary_text", "text": "Hm."}] and item["encrypted_content"] == "gAAA"
    assert "response.reasoning_summary_part.added" in {event["type"] for event in parsed_events(data)}
    assert RESPONSES.codec.stream_breaches(frames(data)) == []


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        (Fault("context_full", "too long"), "context_length_exceeded"),
        (Fault("quota", "none left"), "insufficient_quota"),
        (Fault("rate_limit", "slow", 429, 3.0), "rate_limit_exceeded"),
        (Fault("overloaded", "busy"), "server_is_overloaded"),
        (Fault("invalid", "bad"), "invalid_prompt"),
        (Fault("invalid", "no", code="cyber_policy"), "cyber_policy"),
        (Fault("server", "broke"), "server_error"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.kind,
)
def test_a_failure_has_the_code_that_codex_acts_on(fault: Fault, code: str) -> None:
    data = encode_events(RESPONSES, (STARTED, BlockStarted(0, Text("")), TextDelta(0, "Hi"), Failed(fault)))
    last = parsed_events(data)[-1]
    assert last["type"] == "response.failed" and last["response"]["error"]["code"] == code
    assert last["response"]["status"] == "failed"
    if fault.retry_after:
        assert "try again in 3s" in last["response"]["error"]["message"]


def test_a_failure_before_the_start_still_begins_with_response_created() -> None:
    data = encode_events(RESPONSES, (Failed(Fault("server", "broke")),))
    assert [event["type"] for event in parsed_events(data)][::2] == ["response.created", "response.failed"]


def test_the_id_of_another_familys_reply_becomes_a_response_id() -> None:
    data = parsed_events(encode_events(RESPONSES, (Started("msg_1", "m"), *END)))
    assert data[0]["response"]["id"].startswith("resp_") and data[0]["response"]["id"] == data[-1]["response"]["id"]


def test_a_ping_is_a_comment() -> None:
    response = ResponseTranslator(plan(RESPONSES, RESPONSES, EMPTY_REQUEST))
    assert response.ping() == b": ping\n\n"


# --- the decoder, and fields that real servers omit


@pytest.mark.parametrize(
    "events",
    [
        (ADDED, delta(ARGS[:3]), delta(ARGS[3:]), done(), completed()),
        (ADDED, done(), completed()),
        (done(), completed()),
        (ADDED, delta(ARGS[:3]), done(), completed()),
        (ADDED, {**delta(""), "type": "response.function_call_arguments.done", "arguments": ARGS}, completed()),
        (
            ADDED,
            delta(ARGS),
            {**delta(""), "type": "response.function_call_arguments.done", "arguments": '{"a":1}'},
            done(),
        ),
        (ADDED, {k: v for k, v in delta(ARGS).items() if k != "output_index"}, done(), completed()),
        (ADDED, ADDED, delta(ARGS), done(), done(), completed()),
        (completed({**CALL, "arguments": ARGS}),),
        (ADDED, delta(ARGS), completed({**CALL, "arguments": ARGS})),
    ],
    ids=[
        "usual",
        "no deltas",
        "never added",
        "half the deltas",
        "only arguments.done",
        "respelt at the end",
        "by id",
        "twice",
        "only the end",
        "never done",
    ],
)
def test_a_call_arrives_once_and_whole_if_the_server_omits_events(events: tuple[dict[str, Any], ...]) -> None:
    if events[-1]["type"] != "response.completed":
        events = (*events, completed())
    [call] = blocks_of(*events)
    assert isinstance(call, ToolCall)
    assert (call.id, call.name, call.arguments) == ("c", "f", ARGS)
    assert assemble_reply(events_of(*events)).choices[0].stop.reason is StopReason.TOOL


PART = {"type": "output_text", "text": "Hi there", "annotations": []}
MESSAGE = {"type": "message", "id": "msg_1", "role": "assistant", "content": [PART], "status": "completed"}
BEGUN = {"type": "response.output_item.added", "output_index": 0, "item": {**MESSAGE, "content": []}}
OPENED = {"type": "response.content_part.added", "output_index": 0, "content_index": 0, "part": {**PART, "text": ""}}
CLOSED = {"type": "response.content_part.done", "output_index": 0, "content_index": 0, "part": PART}
TEXT_DONE = {"type": "response.output_text.done", "output_index": 0, "content_index": 0, "text": "Hi there"}
ENDED = {"type": "response.output_item.done", "output_index": 0, "item": MESSAGE}


def words(text: str) -> dict[str, Any]:
    return {"type": "response.output_text.delta", "output_index": 0, "content_index": 0, "delta": text}


@pytest.mark.parametrize(
    "events",
    [
        (BEGUN, OPENED, words("Hi "), words("there"), TEXT_DONE, CLOSED, ENDED),
        (BEGUN, words("Hi "), words("there"), ENDED),
        (words("Hi "), words("there")),
        (BEGUN, OPENED, TEXT_DONE, CLOSED, ENDED),
        (BEGUN, OPENED, words("Hi "), ENDED, CLOSED, TEXT_DONE),
        (BEGUN, OPENED, CLOSED, TEXT_DONE, ENDED),
        (BEGUN, OPENED, words("Hi "), words("there"), TEXT_DONE),
        (ENDED,),
        (),
    ],
    ids=["usual", "no parts", "deltas alone", "no deltas", "late dones", "early part", "never done", "done", "end"],
)
@pytest.mark.parametrize("begun", [True, False])
def test_a_text_arrives_once_and_whole_if_the_server_omits_events(
    events: tuple[dict[str, Any], ...], begun: bool
) -> None:
    assert [bare(block) for block in blocks_of(*events, completed(MESSAGE), begun=begun)] == [(Text, "Hi there")]


def test_a_part_of_an_unknown_kind_is_sent_once_for_its_place_however_alike_another_is() -> None:
    part, other = {"type": "new", "n": 1}, {"type": "new", "n": 2}
    whole = {**MESSAGE, "content": [part, part]}
    done = {"type": "response.content_part.done", "output_index": 0}
    start = (
        BEGUN,
        done | {"content_index": 0, "part": part},
        done | {"content_index": 0, "part": other},
        words("late"),
    )
    blocks = blocks_of(*start, done | {"content_index": 1, "part": part}, ENDED | {"item": whole}, completed(whole))
    assert [block.data for block in blocks if isinstance(block, Opaque)] == [part, part] and len(blocks) == 2


@pytest.mark.parametrize("events", [(BEGUN, words("Hi "), words("there"), ENDED), (words("Hi there"),), (ENDED,)])
def test_a_stream_that_clients_cannot_read_is_encoded_again_for_responses(events: tuple[dict[str, Any], ...]) -> None:
    response = ResponseTranslator(plan(RESPONSES, RESPONSES, EMPTY_REQUEST), fixed_environment())
    data = response.feed(stream(*events, completed())) + response.close()
    breaches = {breach.rule for breach in RESPONSES.codec.stream_breaches(frames(data))}
    assert breaches <= {"responses.stream.sequence_number"}, "the server's own frames have none"
    assert parsed_events(data)[-1]["response"]["output"][0]["content"][0]["text"] == "Hi there", "the full output"


def test_arguments_that_change_at_the_end_are_a_violation() -> None:
    last = events_of(ADDED, delta(ARGS), done('{"a": 2}'), completed())[-1]
    assert isinstance(last, Failed) and "differ from the streamed ones" in last.fault.message


def test_other_items_are_emitted_whole_when_done() -> None:
    search = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search"}}
    [block] = blocks_of(
        {"type": "response.output_item.added", "output_index": 0, "item": {**search, "status": "in_progress"}},
        {"type": "response.web_search_call.searching", "output_index": 0, "item_id": "ws_1"},
        {"type": "response.output_item.done", "output_index": 0, "item": search},
        completed(search),
    )
    assert isinstance(block, Opaque) and block.data == search


@pytest.mark.parametrize(
    ("last", "why"),
    [
        (completed(), StopReason.END),
        ({**completed(status="incomplete", incomplete_details={"reason": "max_output_tokens"})}, StopReason.LENGTH),
        (
            {
                "type": "response.incomplete",
                "response": {"id": "r", "status": "incomplete", "incomplete_details": {"reason": "content_filter"}},
            },
            StopReason.REFUSAL,
        ),
    ],
)
def test_stop_reasons(last: dict[str, Any], why: StopReason) -> None:
    assert assemble_reply(events_of(last)).choices[0].stop.reason is why


@pytest.mark.parametrize(
    ("last", "kind"),
    [
        (
            {
                "type": "response.failed",
                "response": {"error": {"code": "rate_limit_exceeded", "message": "try again in 2s"}},
            },
            "rate_limit",
        ),
        (
            {"type": "response.failed", "response": {"error": {"code": "context_length_exceeded", "message": "x"}}},
            "context_full",
        ),
        ({"type": "error", "code": "server_is_overloaded", "message": "busy"}, "overloaded"),
        ({"type": "response.failed", "response": None}, "server"),
    ],
)
def test_failures_inside_a_stream(last: dict[str, Any], kind: str) -> None:
    end = events_of(last)[-1]
    assert isinstance(end, Failed) and end.fault.kind == kind
    if kind == "rate_limit":
        assert end.fault.retry_after == 2.0


@pytest.mark.parametrize("name", registry.names())
def test_a_stream_that_closes_before_its_last_event_never_looks_complete(name: str) -> None:
    """A truncated stream is an error of the client's dialect; for Responses it is response.failed."""
    response = ResponseTranslator(plan(registry.get(name), RESPONSES, Conversation("m", ())), fixed_environment())
    data = response.feed(stream(BEGUN, OPENED, words("Hi "))) + response.close()
    assert response.fault is not None
    assert isinstance(decode_events(registry.get(name), data)[-1], Failed)


@pytest.mark.parametrize("name", registry.names())
def test_for_every_upstream_the_stream_ends_with_completed_or_failed(name: str) -> None:
    source = registry.get(name)
    whole = encode_events(
        source, (Started("x", "m"), BlockStarted(0, Text("")), TextDelta(0, "Hi"), BlockEnded(0), *END)
    )
    for cut in (len(whole), len(whole) - 3, len(whole) // 2):
        response = ResponseTranslator(plan(RESPONSES, source, Conversation("m", ())), fixed_environment())
        data = response.feed(whole[:cut]) + response.close()
        assert parsed_events(data)[-1]["type"] in ("response.completed", "response.failed", "response.incomplete")
        assert (parsed_events(data)[-1]["type"] == "response.failed") == (response.fault is not None)


def test_a_custom_tool_through_chat_returns_plain_text() -> None:
    """`{"input": "*** Begin"}` of a function call is a custom_tool_call with the text itself, in done and in completed."""
    chat = registry.get("openai")
    conversation = Conversation("m", (), tools=(ToolSpec("apply_patch", "Patch."),))
    calls = (BlockStarted(0, ToolCall("c", "apply_patch")), ArgumentsDelta(0, '{"input":"*** Begin"}'), BlockEnded(0))
    data = encode_events(chat, (Started("chatcmpl-1", "m"), *calls, Stopped(Stop(StopReason.TOOL)), FINISHED))
    for upstream in (chat, registry.get("openai")):
        response = ResponseTranslator(plan(RESPONSES, upstream, conversation), fixed_environment())
        events = parsed_events(response.feed(data) + response.close())
        [item] = [event["item"] for event in events if event["type"] == "response.output_item.done"]
        assert (item["type"], item["input"]) == ("custom_tool_call", "*** Begin")
        assert events[-1]["response"]["output"] == [item]


def test_frames_without_content_are_not_relayed() -> None:
    data = b"data: null\n\n" + stream(BEGUN) + b"data: [DONE]\n\n" + stream(completed(MESSAGE), begun=False)
    response = ResponseTranslator(plan(RESPONSES, RESPONSES, EMPTY_REQUEST), fixed_environment())
    out = response.feed(data) + response.close()
    assert b"null\n\n" not in out and b"[DONE]" not in out
    assert isinstance(decode_events(RESPONSES, data)[-1], Finished)


def test_a_call_of_deltas_alone_is_whole_if_the_response_is_completed_and_cut_if_not() -> None:
    ended = events_of(ADDED, delta(ARGS), completed(status="completed"))
    assert [event.is_complete for event in ended if isinstance(event, BlockEnded)] == [True]
    assert [event.stop.reason for event in ended if isinstance(event, Stopped)] == [StopReason.TOOL]
    short = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
    cut = events_of(ADDED, delta(ARGS[:4]), {**completed(**short), "type": "response.incomplete"})
    assert [event.is_complete for event in cut if isinstance(event, BlockEnded)] == [False]


def test_log_probabilities_pass_through_for_responses() -> None:
    message = {"type": "message", "id": "m", "role": "assistant", "status": "in_progress", "content": []}
    place = {"output_index": 0, "item_id": "m", "content_index": 0}
    part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
    known = [{"token": "hi", "logprob": -0.5, "top_logprobs": []}]
    whole = {**message, "status": "completed", "content": [{**part, "text": "hi", "logprobs": known}]}
    data = stream(
        {"type": "response.output_item.added", "output_index": 0, "item": message},
        {"type": "response.content_part.added", **place, "part": part},
        {"type": "response.output_text.delta", **place, "delta": "hi", "logprobs": known},
        {"type": "response.output_item.done", "output_index": 0, "item": whole},
        completed(whole, status="completed"),
    )
    response = ResponseTranslator(plan(RESPONSES, RESPONSES, EMPTY_REQUEST))
    assert response.feed(data) + response.close() == data


@pytest.mark.parametrize("name", [name for name in registry.names() if name not in ("openai", "responses")])
def test_free_text_for_a_client_that_has_no_such_tools_is_an_object_whole_or_streamed(name: str) -> None:
    client = registry.get(name)
    item = {"type": "custom_tool_call", "id": "i", "call_id": "c", "name": "p", "input": "free"}
    added = {"type": "response.output_item.added", "output_index": 0, "item": {**item, "input": ""}}
    frame = {"type": "response.custom_tool_call_input.delta", "output_index": 0, "item_id": "i", "delta": "free"}
    ended = {"type": "response.output_item.done", "output_index": 0, "item": item}
    end = completed(item, status="completed")
    planned = plan(client, RESPONSES, EMPTY_REQUEST)
    response = ResponseTranslator(planned, fixed_environment())
    events = decode_events(client, response.feed(stream(added, frame, ended, end)) + response.close())
    if name != "kiro":  # it has no whole replies
        reply = client.codec.parse_reply(
            translate_whole_reply(planned, json.dumps(end["response"]).encode())[0], EMPTY_REQUEST
        )
        assert [json.loads(block.arguments) for block in reply.choices[0].blocks if isinstance(block, ToolCall)] == [
            {"raw_arguments": "free"}
        ]
    [call] = [block for block in assemble_reply(events).choices[0].blocks if isinstance(block, ToolCall)]
    assert json.loads(call.arguments) == {"raw_arguments": "free"}
    assert [note.rule for note in response.notes if note.rule.startswith("arguments")] == ["arguments.wrapped"]


def test_for_responses_a_call_that_was_never_done_is_done_before_the_end() -> None:
    """Codex runs only calls that an output_item.done contains."""
    item = {**CALL, "arguments": ARGS, "status": "completed"}
    response = ResponseTranslator(plan(RESPONSES, RESPONSES, EMPTY_REQUEST), fixed_environment())
    events = parsed_events(
        response.feed(stream(ADDED, delta(ARGS), completed(item, status="completed"))) + response.close()
    )
    assert [each["item"]["arguments"] for each in events if each["type"] == "response.output_item.done"] == [ARGS]
    assert events[-1]["response"]["output"][0]["call_id"] == "c"

"""Replies of generateContent: whole, streamed, refused; both directions."""

from __future__ import annotations

import json
from typing import Any

import pytest

import dragoman.dialects as registry
from dragoman.conformance.laws import EMPTY_REQUEST, decode_events, encode_events, fixed_environment
from dragoman.conformance.samples import STREAMS
from dragoman.dialects.base import ApiRequest, StreamReader
from dragoman.dialects.gemini import DIALECT
from dragoman.errors import Fault, MissingField, UpstreamFault
from dragoman.model.assemble import assemble_reply
from dragoman.model.blocks import Media, Opaque, Reasoning, Signature, Text, ToolCall
from dragoman.model.conversation import Conversation, Reply, Stop, StopReason, Usage
from dragoman.model.events import ArgumentsDelta, Events, Failed, Finished, OpaqueEvent, SignatureAdded, Stopped
from dragoman.response_stream import ResponseFilters, ResponseTranslator, translate_whole_reply
from dragoman.translate import plan
from dragoman.wire.frame import Payload
from dragoman.wire.http import HttpResponse

CODEC, BINDING = DIALECT.codec, DIALECT.binding
CALL = {"functionCall": {"name": "read", "args": {"n": 1.0}}, "thoughtSignature": "cw=="}


def candidate(*parts: Any, reason: str = "STOP", **more: Any) -> dict[str, Any]:
    finish = {"finishReason": reason} if reason else {}
    return {"content": {"role": "model", "parts": list(parts)}, "index": 0, **finish, **more}


def whole(*candidates: Any, **more: Any) -> bytes:
    return json.dumps({"candidates": list(candidates), "modelVersion": "g", "responseId": "r", **more}).encode()


def parsed(body: bytes) -> Reply:
    return CODEC.parse_reply(body, EMPTY_REQUEST)


def sse(*responses: Any) -> bytes:
    return b"".join(b"data: " + json.dumps(each).encode() + b"\r\n\r\n" for each in responses)


def events_of(data: bytes) -> Events:
    return decode_events(DIALECT, data)


# --- whole


def test_a_reply_has_thoughts_texts_and_signed_calls() -> None:
    reply = parsed(whole(candidate({"text": "hm", "thought": True}, {"text": "ok"}, CALL)))
    call = ToolCall("", "read", '{"n": 1.0}', signature=Signature("gemini", "cw=="))
    assert reply.choices[0].blocks == (Reasoning("hm", "gemini"), Text("ok"), call)
    assert reply.choices[0].stop == Stop(StopReason.TOOL)
    assert (reply.id, reply.model) == ("r", "g")


@pytest.mark.parametrize(
    ("reason", "why"),
    [
        ("STOP", StopReason.END),
        ("MAX_TOKENS", StopReason.LENGTH),
        ("SAFETY", StopReason.REFUSAL),
        ("RECITATION", StopReason.REFUSAL),
        ("LANGUAGE", StopReason.REFUSAL),
        ("BLOCKLIST", StopReason.REFUSAL),
        ("PROHIBITED_CONTENT", StopReason.REFUSAL),
        ("SPII", StopReason.REFUSAL),
        ("IMAGE_SAFETY", StopReason.REFUSAL),
        ("OTHER", StopReason.END),
        ("NO_IMAGE", StopReason.END),
        ("UNHEARD_OF", StopReason.END),
        ("MALFORMED_RESPONSE", StopReason.END),
        ("TOO_MANY_TOOL_CALLS", StopReason.END),
    ],
)
def test_every_stop_reason_round_trips_in_the_same_dialect(reason: str, why: StopReason) -> None:
    body = whole(candidate({"text": "x"}, reason=reason, safetyRatings=[{"probability": "LOW"}]))
    reply = parsed(body)
    assert reply.choices[0].stop.reason is why
    again = json.loads(CODEC.render_reply(reply, EMPTY_REQUEST, fixed_environment()))
    assert again == json.loads(body)
    streamed = assemble_reply(events_of(sse(json.loads(body))))
    assert streamed.choices[0].stop == reply.choices[0].stop


@pytest.mark.parametrize("reason", ["MALFORMED_FUNCTION_CALL", "MALFORMED_RESPONSE", "TOO_MANY_TOOL_CALLS"])
def test_a_malformed_reply_without_content_is_a_failure(reason: str) -> None:
    broken = candidate(reason=reason, finishMessage="Malformed function call: print(")
    with pytest.raises(UpstreamFault, match="Malformed function call"):
        parsed(whole(broken))
    assert isinstance(events_of(sse({"candidates": [broken]}))[-1], Failed)


@pytest.mark.parametrize("reason", ["MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL"])
def test_a_reply_that_lost_a_call_is_a_failure_with_any_content(reason: str) -> None:
    body = whole(candidate({"text": "x"}, reason=reason))
    with pytest.raises(UpstreamFault, match=reason):
        parsed(body)
    assert isinstance(events_of(sse(json.loads(body)))[-1], Failed)


def test_a_blocked_prompt_is_a_refusal_and_round_trips() -> None:
    body = {"promptFeedback": {"blockReason": "SAFETY"}, "modelVersion": "g", "responseId": "r"}
    reply = parsed(json.dumps(body).encode())
    assert reply.choices[0].blocks == () and reply.choices[0].stop.reason is StopReason.REFUSAL
    assert json.loads(CODEC.render_reply(reply, EMPTY_REQUEST, fixed_environment())) == body
    events = events_of(sse(body))
    assert isinstance(events[-1], Finished)
    assert events_of(encode_events(DIALECT, events)) == events


def test_no_candidate_and_no_reason_is_a_violation() -> None:
    with pytest.raises(MissingField, match="candidates"):
        parsed(b'{"usageMetadata": {}}')


def test_usage_counts_cached_tokens_apart_and_thoughts_as_output() -> None:
    counts = {
        "promptTokenCount": 120,
        "cachedContentTokenCount": 100,
        "candidatesTokenCount": 7,
        "thoughtsTokenCount": 5,
        "toolUsePromptTokenCount": 3,
        "totalTokenCount": 135,
        "promptTokensDetails": [{"modality": "TEXT", "tokenCount": 120}],
    }
    reply = parsed(whole(candidate({"text": "x"}), usageMetadata=counts))
    assert reply.usage is not None
    assert (reply.usage.input, reply.usage.output, reply.usage.cache_read, reply.usage.reasoning) == (23, 12, 100, 5)
    assert json.loads(CODEC.render_reply(reply, EMPTY_REQUEST, fixed_environment()))["usageMetadata"] == counts
    other = Reply("r", "m", reply.choices, Usage(12, 7, 100, 20))
    rendered_counts = json.loads(CODEC.render_reply(other, EMPTY_REQUEST, fixed_environment()))["usageMetadata"]
    assert (
        rendered_counts["promptTokenCount"],
        rendered_counts["cachedContentTokenCount"],
        rendered_counts["totalTokenCount"],
    ) == (132, 100, 139)


def test_several_candidates_are_choices_in_the_order_of_their_indices() -> None:
    reply = parsed(whole(candidate({"text": "b"}, index=1), candidate({"text": "a"})))
    assert [choice.blocks for choice in reply.choices] == [(Text("a"),), (Text("b"),)]


def test_images_and_code_are_part_of_replies() -> None:
    picture = {"inlineData": {"mimeType": "image/png", "data": "aGk="}, "thoughtSignature": "cw=="}
    code = {"executableCode": {"language": "PYTHON", "code": "1"}}
    body = whole(candidate(picture, code))
    one, other = parsed(body).choices[0].blocks
    assert isinstance(one, Media) and isinstance(other, Opaque)
    assert json.loads(CODEC.render_reply(parsed(body), EMPTY_REQUEST, fixed_environment())) == json.loads(body)
    assert assemble_reply(events_of(sse(json.loads(body)))).choices == parsed(body).choices


# --- streams


def chunk(*parts: Any, reason: str = "", **more: Any) -> dict[str, Any]:
    return {"candidates": [candidate(*parts, reason=reason)], "modelVersion": "g", "responseId": "r", **more}


def test_pieces_of_one_text_are_one_block_and_a_call_arrives_whole() -> None:
    usage = {"promptTokenCount": 1, "candidatesTokenCount": 2, "totalTokenCount": 3}
    reply = assemble_reply(
        events_of(
            sse(
                chunk({"text": "Let ", "thought": True}),
                chunk({"text": "me", "thought": True}),
                chunk({"text": "I "}),
                chunk({"text": "look"}, CALL, usageMetadata=usage),
                chunk({"text": ""}, reason="STOP", usageMetadata=usage),
            )
        )
    )
    call = ToolCall("", "read", '{"n": 1.0}', signature=Signature("gemini", "cw=="))
    assert reply.choices[0].blocks == (Reasoning("Let me", "gemini"), Text("I look"), call)
    assert reply.choices[0].stop.reason is StopReason.TOOL
    assert reply.usage == Usage(1, 2)


def test_arguments_keep_their_text() -> None:
    raw = b'{ "big": 12345678901234567890, "f": 1.00, "u": "\\u00e9" }'
    data = b'data: {"candidates":[{"content":{"parts":[{"functionCall":{"name":"f","args":%b}}]},"finishReason":"STOP"}]}\n\n'
    deltas = [event.text for event in events_of(data % raw) if isinstance(event, ArgumentsDelta)]
    assert deltas == [raw.decode()]


def test_signed_and_unsigned_texts_are_not_joined() -> None:
    data = sse(chunk({"text": "a"}), chunk({"text": "", "thoughtSignature": "cw=="}, reason="STOP"))
    assert assemble_reply(events_of(data)).choices[0].blocks == (
        Text("a"),
        Text("", signature=Signature("gemini", "cw==")),
    )


def test_an_end_without_a_reason_is_a_cut() -> None:
    assert isinstance(events_of(sse(chunk({"text": "a"})))[-1], Failed)
    assert isinstance(events_of(b"")[-1], Failed)
    assert isinstance(events_of(sse(chunk({"text": "a"}, reason="STOP")))[-1], Finished)
    one, other = chunk({"text": "a"}, reason="STOP"), chunk({"text": "b"})
    other["candidates"][0]["index"] = 1
    assert isinstance(events_of(sse(one, other))[-1], Failed)


ERROR = {"error": {"code": 503, "message": "overloaded", "status": "UNAVAILABLE"}}


@pytest.mark.parametrize(
    "tail",
    [
        b"data: " + json.dumps(ERROR).encode() + b"\n\n",
        json.dumps(ERROR).encode(),
        json.dumps(ERROR, indent=2).encode() + b"\n",
    ],
    ids=["frame", "bare", "bare on many lines"],
)
def test_an_error_within_a_stream_is_read_in_each_of_its_forms(tail: bytes) -> None:
    data = sse(chunk({"text": "a"})) + tail
    for size in (1, 7, len(data)):
        reader = StreamReader(BINDING.frame_decoder(), CODEC.decoder(EMPTY_REQUEST, fixed_environment()))
        frames = [decoded for at in range(0, len(data), size) for decoded in reader.feed(data[at : at + size])]
        events = [event for decoded in (*frames, *reader.close()) for event in decoded.events]
        assert events[-1] == Failed(Fault("overloaded", "overloaded", 503, code="UNAVAILABLE"))


def test_a_stream_that_is_one_array_is_read_too() -> None:
    responses = [chunk({"text": "a {[\\"}), chunk({"text": "b"}, reason="STOP")]
    data = json.dumps(responses, indent=1).encode()
    for size in (1, 5, len(data)):
        reader = StreamReader(BINDING.frame_decoder(), CODEC.decoder(EMPTY_REQUEST, fixed_environment()))
        frames = [decoded for at in range(0, len(data), size) for decoded in reader.feed(data[at : at + size])]
        events = tuple(event for decoded in (*frames, *reader.close()) for event in decoded.events)
        assert assemble_reply(events).choices[0].blocks == (Text("a {[\\b"),)


def test_unknown_candidate_fields_are_kept_in_the_same_dialect_and_noted_elsewhere() -> None:
    grounded = chunk({"text": "a"})
    grounded["candidates"][0]["groundingMetadata"] = {"webSearchQueries": ["q"]}
    data = sse(grounded, chunk({"text": "b"}, reason="STOP"))
    events = events_of(data)
    assert [event.kind for event in events if isinstance(event, OpaqueEvent)] == ["candidate"]
    assert b"webSearchQueries" in encode_events(DIALECT, events)
    response = ResponseTranslator(plan(registry.get("openai"), DIALECT, EMPTY_REQUEST), fixed_environment())
    assert b"webSearchQueries" not in response.feed(data) + response.close()
    assert "foreign.event" in [note.rule for note in response.notes]


# --- writing


def asking_for_an_array() -> Conversation:
    body: Any = {"contents": [{"role": "user", "parts": [{"text": "x"}]}]}
    return CODEC.parse_request(ApiRequest("generate", "g", True, body, {"alt": "json"}))


@pytest.mark.parametrize("title", [title for title in STREAMS if title != "failed"])
def test_without_alt_sse_the_stream_is_one_array_of_the_same_responses(title: str) -> None:
    conversation = asking_for_an_array()
    filtered = ResponseFilters(plan(DIALECT, registry.get("openai"), conversation)).feed(STREAMS[title])
    encoder = CODEC.encoder(conversation, fixed_environment())
    array = json.loads(b"".join(BINDING.encode_frame(payload) for payload in encoder.feed(filtered)))
    frames = BINDING.frame_decoder()
    data = encode_events(DIALECT, filtered)
    events = [json.loads(frame.data) for frame in (*frames.feed(data), *frames.close())]
    assert [each["candidates"] for each in array] == [each["candidates"] for each in events]


def test_a_failure_inside_an_array_leaves_it_readable() -> None:
    encoder = CODEC.encoder(asking_for_an_array(), fixed_environment())
    data = b"".join(BINDING.encode_frame(payload) for payload in encoder.feed(STREAMS["failed"]))
    assert "error" in json.loads(data)[-1]


def test_in_the_same_dialect_the_events_become_an_array_on_request() -> None:
    planned = plan(DIALECT, DIALECT, asking_for_an_array())
    assert [note.rule for note in planned.notes] == ["gemini.stream.sse"] and not planned.verbatim
    assert BINDING.wrap(planned.call()).query == "alt=sse"
    response = ResponseTranslator(planned, fixed_environment())
    data = response.feed(sse(chunk({"text": "a"}), chunk({"text": "b"}, reason="STOP"))) + response.close()
    assert [part["candidates"][0]["content"]["parts"] for part in json.loads(data)][:2] == [
        [{"text": "a"}],
        [{"text": "b"}],
    ]


@pytest.mark.parametrize("title", STREAMS)
def test_an_encoded_stream_breaks_no_rule(title: str) -> None:
    filtered = ResponseFilters(plan(DIALECT, registry.get("openai"), EMPTY_REQUEST)).feed(STREAMS[title])
    frames = BINDING.frame_decoder()
    data = encode_events(DIALECT, filtered)
    assert CODEC.stream_breaches([*frames.feed(data), *frames.close()]) == []


def test_a_stream_that_breaks_the_rules_is_found_out() -> None:
    bad = [{"candidates": [{"content": {"role": "model", "parts": []}}]}, {"candidates": [1]}]
    bad += [chunk({"functionCall": {"args": []}}, reason="STOP"), chunk({"text": "late"})]
    frames = BINDING.frame_decoder()
    found = {breach.rule.rpartition(".")[2] for breach in CODEC.stream_breaches([*frames.feed(sse(*bad))])}
    assert found == {"content", "candidate", "call", "late"}
    assert [breach.rule for breach in CODEC.stream_breaches([])] == ["gemini.stream.unfinished"]


CUT = b"""data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"a","function":{"name":"f","arguments":"{\\"x\\": 1}"}}]}}]}

data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":1,"id":"b","function":{"name":"g","arguments":"{\\"y\\": "}}]}}]}

data: {"choices":[{"index":0,"delta":{},"finish_reason":"%b"}]}

data: [DONE]

"""


@pytest.mark.parametrize(
    ("reason", "calls", "rule"),
    [(b"length", ["f"], "stream.unfinished_call"), (b"tool_calls", ["f", "g"], "arguments.wrapped")],
)
def test_half_a_call_is_left_out_if_the_length_cut_it_and_wrapped_if_not(
    reason: bytes, calls: list[str], rule: str
) -> None:
    response = ResponseTranslator(plan(DIALECT, registry.get("openai"), EMPTY_REQUEST), fixed_environment())
    reply = assemble_reply(events_of(response.feed(CUT % reason) + response.close()))
    assert [block.name for block in reply.choices[0].blocks if isinstance(block, ToolCall)] == calls
    assert rule in [note.rule for note in response.notes]


def test_a_keep_alive_has_no_content_and_is_no_comment() -> None:
    """The JavaScript SDK takes any line that is no data for broken JSON."""
    payload = CODEC.encoder(EMPTY_REQUEST, fixed_environment()).ping()
    assert isinstance(payload, Payload)
    assert BINDING.encode_frame(payload).startswith(b"data: {")
    assert not [
        event for event in events_of(BINDING.encode_frame(payload)) if isinstance(event, Stopped | SignatureAdded)
    ]


def test_a_whole_reply_of_another_family_keeps_its_calls() -> None:
    body = json.dumps(
        {
            "id": "m",
            "type": "message",
            "content": [{"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"x": 1}}],
            "stop_reason": "tool_use",
            "usage": {"input_tokens": 1, "output_tokens": 2},
        }
    ).encode()
    rendered_body, _ = translate_whole_reply(
        plan(DIALECT, registry.get("anthropic"), EMPTY_REQUEST), body, fixed_environment()
    )
    (part,) = json.loads(rendered_body)["candidates"][0]["content"]["parts"]
    assert part == {"functionCall": {"id": "toolu_1", "name": "f", "args": {"x": 1}}}


# --- errors


@pytest.mark.parametrize(
    ("status", "name", "kind"),
    [
        (400, "INVALID_ARGUMENT", "invalid"),
        (401, "UNAUTHENTICATED", "auth"),
        (403, "PERMISSION_DENIED", "permission"),
        (404, "NOT_FOUND", "not_found"),
        (429, "RESOURCE_EXHAUSTED", "rate_limit"),
        (500, "INTERNAL", "server"),
        (503, "UNAVAILABLE", "overloaded"),
        (504, "DEADLINE_EXCEEDED", "timeout"),
    ],
)
def test_errors_are_read_and_written_by_their_names(status: int, name: str, kind: str) -> None:
    body = json.dumps({"error": {"code": status, "message": "m", "status": name}}).encode()
    fault = CODEC.parse_fault(HttpResponse(status, (), body))
    assert (fault.kind, fault.status, fault.code) == (kind, status, name)
    assert CODEC.render_fault(fault).replace(b" ", b"") == body.replace(b" ", b"")
    assert BINDING.error_response(fault, b"").status == status
    assert CODEC.parse_fault(HttpResponse(status, (), b"[" + body + b"]")) == fault


def test_the_retry_delay_is_in_the_error_details() -> None:
    details: list[Any] = [{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "34.5s"}]
    error = {"code": 429, "message": "m", "status": "RESOURCE_EXHAUSTED", "details": details}
    fault = CODEC.parse_fault(HttpResponse(429, (), json.dumps({"error": error}).encode()))
    assert fault.retry_after == 34.5
    assert json.loads(CODEC.render_fault(fault))["error"] == error
    daily = {"violations": [{"quotaId": "GenerateRequestsPerDayPerProjectPerModel"}]}
    error["details"] = [*details, daily]
    assert CODEC.parse_fault(HttpResponse(429, (), json.dumps({"error": error}).encode())).kind == "quota"


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (
            b'{"error": {"code": 400, "status": "INVALID_ARGUMENT", "message": "The input token count (9) exceeds the maximum number of tokens allowed (8)."}}',
            "context_full",
        ),
        (
            b'{"error": {"code": 400, "status": "INVALID_ARGUMENT", "message": "m", "details": [{"reason": "API_KEY_INVALID"}]}}',
            "auth",
        ),
        (b"<html>", "invalid"),
        (b'{"error": "odd"}', "invalid"),
        (b'{"error": {"details": [1, {"violations": 3, "fieldViolations": {}}], "message": []}}', "invalid"),
    ],
)
def test_the_message_of_a_bad_request_determines_its_kind(body: bytes, kind: str) -> None:
    assert CODEC.parse_fault(HttpResponse(400, (), body)).kind == kind


def test_an_empty_thought_has_no_block_whole_or_streamed() -> None:
    response = candidate({"text": "", "thought": True}, {"text": "ok"})
    assert parsed(whole(response)).choices[0].blocks == (Text("ok"),)
    assert assemble_reply(events_of(sse({"candidates": [response]}))).choices[0].blocks == (Text("ok"),)


def test_the_prompt_of_server_tools_is_input_everywhere_and_no_loss() -> None:
    counts = {"promptTokenCount": 10, "candidatesTokenCount": 1, "toolUsePromptTokenCount": 5, "totalTokenCount": 16}
    planned = plan(registry.get("openai"), DIALECT, Conversation("m", ()))
    raw, notes = translate_whole_reply(
        planned, whole(candidate({"text": "ok"}), usageMetadata=counts), fixed_environment()
    )
    assert json.loads(raw)["usage"]["prompt_tokens"] == 15
    assert notes == []
    again, _ = translate_whole_reply(
        plan(DIALECT, DIALECT, EMPTY_REQUEST), whole(candidate({"text": "ok"}), usageMetadata=counts)
    )
    assert json.loads(again)["usageMetadata"] == counts


def test_arguments_in_pieces_make_one_whole_call() -> None:
    """Vertex AI streams arguments by JSON paths; each piece of a string continues the last one."""

    def piece(*partial: dict[str, Any], **call: Any) -> dict[str, Any]:
        own = {"partialArgs": [*partial], **call} if partial else call
        return {"candidates": [candidate({"functionCall": own}, reason="")]}

    frames = sse(
        piece(name="read", id="c1", willContinue=True),
        piece({"jsonPath": "$.path", "stringValue": "a", "willContinue": True}, willContinue=True),
        piece(
            {"jsonPath": "$.path", "stringValue": "b"}, {"jsonPath": "$.q[1].r", "numberValue": 3}, willContinue=True
        ),
        piece({"jsonPath": "$['x y']", "boolValue": True}, {"jsonPath": "$.n", "nullValue": "NULL_VALUE"}),
        {"candidates": [candidate({"text": ""}, reason="STOP")]},
    )
    (call,) = assemble_reply(events_of(frames)).choices[0].blocks
    assert isinstance(call, ToolCall) and (call.id, call.name) == ("c1", "read")
    assert json.loads(call.arguments) == {"path": "ab", "q": [None, {"r": 3}], "x y": True, "n": None}


@pytest.mark.parametrize("path", ["", "path", "$", "$.a..b", "$.p.q", "$[0]", "$.l.x", "$.l[99999]", None, 5])
def test_a_piece_of_arguments_with_no_place_is_a_violation(path: Any) -> None:
    values = [{"jsonPath": "$.p", "numberValue": 1}, {"jsonPath": "$.l[0]", "numberValue": 1}, {"jsonPath": path}]
    call = {"name": "read", "partialArgs": values}
    assert isinstance(events_of(sse({"candidates": [candidate({"functionCall": call})]}))[-1], Failed)

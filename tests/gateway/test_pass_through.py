"""Pass-through: the same dialect on both sides and no change, so every byte is forwarded and only read for usage."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import dragoman.dialects as registry
from dragoman.dialects.base import ApiRequest
from dragoman.errors import Fault
from dragoman.gateway.response_modes import PassThrough
from dragoman.model.blocks import Extra, Text
from dragoman.model.conversation import Conversation, Message, ToolSpec
from dragoman.simulator import parse_script, running_simulator
from dragoman.translate import Plan, plan
from dragoman.wire.frame import Payload
from tests.gateway.harness import anthropic_body, gateway_with_simulator, openai_body, start_gateway, upstream_config

HELLO: Any = {"max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}


def verbatim(dialect: str = "anthropic") -> Plan:
    known = registry.get(dialect)
    body = HELLO if dialect == "anthropic" else {"messages": HELLO["messages"]}
    planned = plan(known, known, known.codec.parse_request(ApiRequest("generate", "m", True, body)))
    assert planned.verbatim or dialect != "anthropic"
    return planned


STREAM = b"".join(
    b"event: %b\r\ndata: %b\r\n\r\n" % (kind, data)  # CRLF and odd spaces, unlike our encoder
    for kind, data in (
        (b"message_start", b'{"type": "message_start",  "message": {"id": "a", "type": "message", "role": "assistant",'
         b' "model": "m", "content": [], "stop_reason": null, "usage": {"input_tokens": 3, "output_tokens": 0}}}'),
        (b"ping", b'{"type":"ping"}'),
        (b"content_block_start", b'{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}'),
        (b"content_block_delta", b'{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"hi"}}'),
        (b"content_block_stop", b'{"type":"content_block_stop","index":0}'),
        (b"message_delta", b'{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":2}}'),
        (b"message_stop", b'{"type":"message_stop"}'),
    )
)  # fmt: skip
NULL = b": a comment\n\nevent: message_delta\ndata: null\n\n"


def pass_through(stream: bytes, cuts: list[int]) -> tuple[bytes, PassThrough]:
    reply = PassThrough(verbatim())
    edges = [0, *sorted(cuts), len(stream)]
    out = b"".join(reply.feed(stream[begin:end]) for begin, end in pairwise(edges))
    return out + reply.close(), reply


@given(st.lists(st.integers(0, len(STREAM)), max_size=8))
def test_bytes_are_forwarded_unchanged_at_every_split(cuts: list[int]) -> None:
    out, reply = pass_through(STREAM, cuts)
    assert out == STREAM
    assert (reply.is_over, reply.fault, reply.progress.has_content) == (True, None, True)
    assert reply.progress.usage is not None and reply.progress.usage.output == 2
    assert reply.progress.stop is not None


@given(st.lists(st.integers(0, len(STREAM) + len(NULL)), max_size=8), st.integers(1, 6))
def test_unreadable_frames_are_forwarded_unchanged(cuts: list[int], at: int) -> None:
    frames = STREAM.split(b"\r\n\r\n")
    odd = b"\r\n\r\n".join(frames[:at]) + b"\r\n\r\n" + NULL + b"data: {broken\n\n" + b"\r\n\r\n".join(frames[at:])
    out, reply = pass_through(odd, cuts)
    assert out == odd
    assert reply.fault is None


@given(st.integers(0, len(STREAM) - 1))
def test_a_truncated_stream_ends_with_whole_frames_and_an_error(at: int) -> None:
    reply = PassThrough(verbatim())
    out = reply.feed(STREAM[:at])
    assert STREAM.startswith(out) and (not out or out.endswith(b"\r\n\r\n"))
    end = reply.close()
    assert reply.is_over
    if reply.fault is None:  # only the last line end is missing; clients need it
        assert (out + end).replace(b"\r\n", b"\n") == STREAM.replace(b"\r\n", b"\n")
    else:
        assert end.startswith(b"event: error\n")


def test_a_ping_is_sent_between_frames() -> None:
    reply = PassThrough(verbatim())
    out = reply.feed(STREAM[:700]) + reply.ping() + reply.feed(STREAM[700:])
    assert out.replace(render_ping(), b"") == STREAM


def render_ping() -> bytes:
    return PassThrough(verbatim()).ping()


# --- through the gateway


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("dialect", ["anthropic", "bedrock"])
def test_bytes_are_unchanged_in_both_directions(dialect: str, stream: bool, tmp_path: Path) -> None:
    requests: Any = anthropic_body(stream=True) if stream else anthropic_body()
    path = "/v1/messages"
    if dialect == "bedrock":
        requests = {"messages": [{"role": "user", "content": [{"text": "hello"}]}]}
        path = f"/model/m/converse{'-stream' if stream else ''}"
    body = json.dumps(requests, indent=3).encode()  # indented, unlike our encoder
    with running_simulator(dialect) as simulator:
        with start_gateway(upstream_config("one", dialect, simulator.url), tmp_path) as harness:
            status, headers, reply = harness.request(path, body)
            line = harness.log_lines()[0]
        assert simulator.requests[0].body == body
        deadline = time.monotonic() + 5  # usage is counted after the last byte is sent
        while simulator.requests[0].sent != len(reply) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert simulator.requests[0].sent == len(reply)
        direct, _, same = _request_directly(simulator.url, path, body)
        assert (status, reply) == (direct, same)
    assert (headers["dragoman-notes"], line["verbatim"], line["stop"]) == ("0", True, "end")
    assert line["input_tokens"] > 0 and line["output_tokens"] > 0


def test_a_mapped_model_name_is_the_only_change(tmp_path: Path) -> None:
    with running_simulator("anthropic") as simulator:
        text = upstream_config("one", "anthropic", simulator.url)
        text += '[[routes]]\nmatch = "m"\nupstream = "one"\nmodel = "other"\n'
        with start_gateway(text, tmp_path) as harness:
            harness.request("/v1/messages", anthropic_body(metadata={"user_id": "u"}, unheard_of=1))
        assert simulator.requests[0].json == {
            **anthropic_body(metadata={"user_id": "u"}, unheard_of=1),
            "model": "other",
        }


def test_a_client_cannot_set_the_host_or_the_credential(tmp_path: Path) -> None:
    with running_simulator("anthropic") as simulator:
        with start_gateway(upstream_config("one", "anthropic", simulator.url), tmp_path) as harness:
            status, _, _ = harness.request(
                "/v1/messages",
                anthropic_body(api_base="http://evil.test", base_url="http://evil.test"),
                x_forwarded_host="evil",
            )
        assert status == 200
        sent = simulator.requests[0].headers
        assert sent["x-api-key"] == "the-upstream-secret"
        assert "x-forwarded-host" not in sent and sent["host"] == simulator.url.removeprefix("http://")


def test_a_truncated_pass_through_stream_ends_with_an_error(tmp_path: Path) -> None:
    script = '[[turn]]\ntext = "one two three four"\nchunk = 4\ncut = { byte = 700, how = "close" }'
    with gateway_with_simulator(script, tmp_path) as (harness, _):
        _, _, body = harness.request("/v1/messages", anthropic_body(stream=True))
        assert harness.log_lines()[0]["outcome"] == "broken"
    frames = body.strip().split(b"\n\n")
    assert frames[-1].startswith(b"event: error\n")
    for frame in frames:
        json.loads(frame.partition(b"data: ")[2])


def _request_directly(url: str, path: str, body: bytes) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=60)
    try:
        connection.request("POST", path, body, {"x-api-key": "x", "content-type": "application/json"})
        response = connection.getresponse()
        return response.status, dict(response.getheaders()), response.read()
    finally:
        connection.close()


# --- usage that only the gateway requested

CHAT = [
    b'data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":'
    b'{"role":"assistant","content":""},"finish_reason":null}]}\n\n',
    *(
        b'data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":'
        b'{"content":"w%d data: {\\"delta\\":{\\"content\\":\\"x"},"finish_reason":null}]}\n\n' % n
        for n in range(6)
    ),
    b'data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{},'
    b'"finish_reason":"stop"}]}\n\n',
    b'data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[],'
    b'"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}}\n\n',
    b"data: [DONE]\n\n",
]
USAGE = CHAT[-2]


def plan_with_options(**options: Any) -> Plan:
    openai_body = registry.get("openai")
    body = {"messages": HELLO["messages"], **options}
    return plan(openai_body, openai_body, openai_body.codec.parse_request(ApiRequest("generate", "m", True, body)))


@given(st.lists(st.integers(0, sum(map(len, CHAT))), max_size=8))
def test_usage_requested_by_the_gateway_is_recorded_and_not_forwarded(cuts: list[int]) -> None:
    planned = plan_with_options()
    assert planned.passes and not planned.verbatim
    reply, stream = PassThrough(planned), b"".join(CHAT)
    out = b"".join(reply.feed(stream[a:b]) for a, b in pairwise([0, *sorted(cuts), len(stream)])) + reply.close()
    assert out == stream.replace(USAGE, b"")
    assert reply.progress.usage is not None and reply.progress.usage.output == 2
    assert reply.is_over and reply.fault is None


def test_usage_requested_by_the_client_is_forwarded() -> None:
    planned = plan_with_options(stream_options={"include_usage": True})
    assert planned.verbatim
    reply = PassThrough(planned)
    assert reply.feed(b"".join(CHAT)) + reply.close() == b"".join(CHAT)


PLAIN = CHAT[2]


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize(
    ("odd", "noticed"),
    [
        (PLAIN.replace(b'"finish_reason":null', b'"finish_reason":"length"'), "stop"),
        (PLAIN.replace(b'"finish_reason":null}]', b'"finish_reason":null}],"usage":{"completion_tokens":7}'), "usage"),
        (PLAIN.replace(b'x"}', b'x"},"usage":{"completion_tokens":7},"x":{"y":"z"}'), "usage"),  # Moonshot
        (PLAIN.replace(b'{"content":"w1', b'{"tool_calls":[],"content":"w1'), ""),
        (PLAIN.replace(b'x"}', b'x","tool_calls":[]}'), ""),
        (PLAIN.replace(b'"index":0', b'"index":1'), ""),
        (PLAIN.replace(b"w1", b"\\u00e9 \\\\"), ""),
        (PLAIN.replace(b"w1", b"w1\n"), ""),
        (PLAIN.replace(b"w1", b"\xff"), ""),
        (b": ping\n\n", ""),
    ],
)
def test_fields_other_than_text_are_noticed_after_text_frames(odd: bytes, noticed: str, together: bool) -> None:
    reply = PassThrough(plan_with_options(stream_options={"include_usage": True}))
    more = [PLAIN] if noticed != "stop" else []  # text after the stop is a violation
    frames = [CHAT[0], CHAT[1], PLAIN, PLAIN, PLAIN, odd, *more]
    stream = b"".join(frames)
    pieces = [stream] if together else frames
    assert b"".join(map(reply.feed, pieces)) == stream
    assert (reply.progress.stop is not None) == (noticed == "stop")
    assert (reply.progress.usage is not None) == (noticed == "usage")
    assert reply.fault is None and not reply.is_over


def test_an_error_after_text_frames_ends_the_stream() -> None:
    reply = PassThrough(plan_with_options())
    stream = CHAT[0] + CHAT[1] + PLAIN * 3 + b'data: {"error":{"message":"no"}}\n\n'
    assert reply.feed(stream + PLAIN).startswith(stream)
    assert reply.is_over and reply.fault is not None


def test_a_chat_stream_without_done_gets_one() -> None:
    reply = PassThrough(plan_with_options(stream_options={"include_usage": True}))
    assert reply.feed(b"".join(CHAT[:-1])) + reply.close() == b"".join(CHAT)


def test_bytes_that_are_not_frames_end_the_stream_with_the_error_of_the_dialect() -> None:
    bedrock = registry.get("bedrock")
    body: Any = {"messages": [{"role": "user", "content": [{"text": "hi"}]}]}
    planned = plan(bedrock, bedrock, bedrock.codec.parse_request(ApiRequest("generate", "m", True, body)))
    frame = bedrock.binding.encode_frame(Payload(b"messageStart", b'{"role":"assistant"}'))
    reply = PassThrough(planned)
    out = reply.feed(frame + b"<html>" * 20)
    assert out.startswith(frame) and b"<html>" not in out and b"exception" in out
    assert reply.fault is not None and reply.is_over


def test_a_stream_that_ends_early_after_an_odd_frame_is_an_error() -> None:
    reply = PassThrough(verbatim())
    frames = [frame + b"\n\n" for frame in STREAM.replace(b"\r\n", b"\n").split(b"\n\n")[:4]]
    odd = b"data: {broken\n\n"
    stream = frames[0] + odd + b"".join(frames[1:])
    assert reply.feed(stream) == stream
    assert b"event: error" in reply.close()
    assert reply.fault is not None


# --- simple requests, of which only the first is planned


@pytest.mark.parametrize("stream", [True, False])
def test_requests_after_a_simple_one_are_sent_with_their_own_values(stream: bool, tmp_path: Path) -> None:
    requests = [openai_body(text=f"say: {number}", stream=stream, temperature=number / 10) for number in range(3)]
    with running_simulator("openai") as simulator:
        with start_gateway(upstream_config("one", "openai", simulator.url), tmp_path) as harness:
            responses = [harness.request("/v1/chat/completions", body) for body in requests]
            lines = harness.log_lines(3)
        added = {"stream_options": {"include_usage": True}} if stream else {}
        assert [request.json for request in simulator.requests] == [{**body, **added} for body in requests]
        heads = [
            {name: value for name, value in each.headers.items() if name != "content-length"}
            for each in simulator.requests
        ]
        assert heads[0] == heads[1] == heads[2]
    assert [status for status, _, _ in responses] == [200, 200, 200]
    assert not any(stream and b'"usage":{' in reply for _, _, reply in responses)  # the client did not request it
    assert {line["input_tokens"] > 0 and line["output_tokens"] > 0 for line in lines} == {True}
    assert {(line["verbatim"], line["notes"], line["stop"]) for line in lines} == {(not stream, int(stream), "end")}


def test_a_fallback_after_a_simple_request_uses_the_dialect_of_the_next_target(tmp_path: Path) -> None:
    broken = parse_script('[[turn]]\ntext = "Yes"\n\n[[turn]]\nstatus = 404\n\n[[turn]]\nstatus = 404')
    with running_simulator("openai", script=broken) as first, running_simulator("anthropic") as second:
        text = upstream_config("one", "openai", first.url) + upstream_config("two", "anthropic", second.url)
        text += '[[routes]]\nmatch = "m"\nupstream = "one"\nfallbacks = "two"\n'
        with start_gateway(text, tmp_path) as harness:
            responses = [
                harness.request("/v1/chat/completions", openai_body(text=f"say {number}")) for number in range(2)
            ]
        assert [status for status, _, _ in responses] == [200, 200]
        [fallen] = second.requests
        requests: Any = fallen.json
        assert [(turn["role"], json.dumps(turn["content"])) for turn in requests["messages"]] == [("user", '"say 1"')]


# --- a request with a cached plan


def test_an_alias_of_a_model_is_never_sent_upstream(tmp_path: Path) -> None:
    with running_simulator("openai") as simulator:
        text = upstream_config("one", "openai", simulator.url)
        text += '[[routes]]\nmatch = "alias"\nupstream = "one"\nmodel = "real"\n'
        text += '[[routes]]\nmatch = "real"\nupstream = "one"\n'
        with start_gateway(text, tmp_path) as harness:
            for model in ("real", "real", "alias", "real", "alias"):
                assert harness.request("/v1/chat/completions", openai_body(model))[0] == 200
        assert [json.loads(each.body)["model"] for each in simulator.requests] == ["real"] * 5


@pytest.mark.parametrize("stream", [False, True])
def test_a_response_setting_applies_to_every_response_and_not_only_to_the_first(stream: bool, tmp_path: Path) -> None:
    script = parse_script('then = "last"\n[[turn]]\ntext = "<think>hm</think>yes"')
    with running_simulator("openai", script=script) as simulator:
        text = upstream_config("one", "openai", simulator.url, "translation.think_tags = true")
        with start_gateway(text, tmp_path) as harness:
            responses = [harness.request("/v1/chat/completions", openai_body(stream=stream))[2] for _ in range(3)]
    assert not [body for body in responses if b"think>" in body or b'"hm"' not in body]


@pytest.mark.parametrize("end", [b"data: [DONE]\n\n", b'data: {"error":{"message":"no more","code":500}}\n\n'])
def test_frames_after_the_end_in_the_same_read_are_dropped(end: bytes) -> None:
    dialect = registry.get("openai")
    requests = Conversation("m", (Message("user", (Text("hi"),)),), stream=True)
    pass_through = PassThrough(plan(dialect, dialect, requests))
    chunk = b'data: {"id":"c","object":"chat.completion.chunk","model":"m","choices":[%b]}\n\n'
    sent = chunk % b'{"index":0,"delta":{"role":"assistant","content":"one"},"finish_reason":null}'
    stop = chunk % b'{"index":0,"delta":{},"finish_reason":"stop"}'
    late = chunk % b'{"index":0,"delta":{"content":"late"},"finish_reason":null}'
    assert pass_through.feed(sent + stop + end + late) == sent + stop + end
    assert pass_through.is_over
    assert pass_through.feed(late) == b""


_COUNTS = '"prompt_tokens":7,"completion_tokens":7,"total_tokens":14'
_HIDDEN = f'a"}}}}],"usage":{{{_COUNTS}}},"choices":[{{"index":0,"delta":{{"content":"b'
_TEXTS = st.sampled_from(
    ["one", "two", "", "é", '\\"', "\\\\", "\\", '"', '","x":"', "a\nb", "a\n\nb", "a\n\ndata: [DONE]\n\nb"]
)


@given(st.lists(_TEXTS, min_size=4, max_size=9), st.booleans(), st.booleans())
@example(["one", _HIDDEN, "two", "three"], True, False)
@example(["one", _HIDDEN, '\\"', "three"], True, False)
@example(["one", '\\"', "two", "three"], True, False)
def test_frames_of_a_lane_are_forwarded_like_frames_that_are_read_one_by_one(
    texts: list[str], asks: bool, counts: bool
) -> None:
    """Bytes, end and count are the same for any text in a frame."""
    dialect = registry.get("openai")
    extra = Extra("openai", {"stream_options": {"include_usage": True}}) if asks else None
    requests = Conversation("m", (Message("user", (Text("hi"),)),), stream=True, extra=extra)
    planned = plan(dialect, dialect, requests)
    frame = 'data: {"id":"c","object":"chat.completion.chunk","model":"m","choices":[{"index":0,"delta":{%s}%s}]}\n\n'
    sent = [frame % (f'"content":"{text}"', "") for text in ("begin", "on", "on", *texts)]
    usage = 'data: {"id":"c","object":"chat.completion.chunk","choices":[],"usage":{"prompt_tokens":1}}\n\n'
    end = [frame % ("", ',"finish_reason":"stop"'), *([usage] if counts else []), "data: [DONE]\n\n"]
    data = "".join([*sent, *end]).encode()

    def pass_through(pieces: list[bytes]) -> tuple[bytes, bool, int, object]:
        pass_through = PassThrough(planned)
        out = b"".join([pass_through.feed(piece) for piece in pieces])
        return out + pass_through.close(), pass_through.is_over, pass_through._count, pass_through.progress.usage

    assert pass_through([data]) == pass_through([piece + b"\n\n" for piece in data.split(b"\n\n")[:-1]])


def _pass_through_and_frame() -> tuple[PassThrough, Callable[[str], bytes]]:
    dialect = registry.get("openai")
    frame = 'data: {"id":"c","object":"chat.completion.chunk","model":"m","choices":[{"index":0,"delta":%s}]}\n\n'
    planned = plan(dialect, dialect, Conversation("m", (Message("user", (Text("hi"),)),), stream=True))
    return PassThrough(planned), lambda delta: (frame % delta).encode()


def test_frames_of_a_lane_are_sent_in_the_same_read() -> None:
    pass_through, frame = _pass_through_and_frame()
    sent = [frame(f'{{"content":"word {at}"}}') for at in range(12)]
    assert [pass_through.feed(b"".join(sent[:6])), pass_through.feed(b"".join(sent[6:]) + sent[0][:20])] == [
        b"".join(sent[:6]),
        b"".join(sent[6:]),
    ]


def test_the_buffer_before_an_encoder_is_bounded() -> None:
    pass_through, frame = _pass_through_and_frame()
    for at in range(200):
        pass_through.feed(frame(f'{{"content":"w","x{at}":1}}'))
    assert len(pass_through._uncounted) < 64


def test_an_end_made_by_the_gateway_continues_ids_and_numbers() -> None:
    dialect = registry.get("responses")
    pass_through = PassThrough(
        plan(dialect, dialect, Conversation("m", (Message("user", (Text("hi"),)),), stream=True))
    )
    response = {"id": "resp_1", "object": "response", "created_at": 1, "status": "in_progress", "model": "m"}
    created = {"type": "response.created", "sequence_number": 0, "response": {**response, "output": []}}
    pass_through.feed(b"event: response.created\ndata: %b\n\n" % json.dumps(created).encode())
    end = pass_through.close(Fault("server", "cut"))
    error_frame = json.loads(end.partition(b"data: ")[2])
    assert (error_frame["type"], error_frame["sequence_number"], error_frame["response"]["id"]) == (
        "response.failed",
        1,
        "resp_1",
    )


def test_a_renamed_tool_prevents_pass_through() -> None:
    dialect, long = registry.get("openai"), "n" * 70
    requests = Conversation("m", (Message("user", (Text("hi"),)),), tools=(ToolSpec(long, schema={}),), stream=True)
    planned = plan(dialect, dialect, requests)
    assert [note.rule for note in planned.notes] == ["tools.renamed", "openai.ask_usage"]
    assert not planned.passes


def test_a_long_frame_in_pieces_is_forwarded_when_complete() -> None:
    reply = PassThrough(plan_with_options())
    frame = CHAT[1].replace(b"w0", b"w" * 100_000)
    assert reply.feed(CHAT[0]) == CHAT[0]
    assert [reply.feed(frame[at : at + 1000]) for at in range(0, len(frame) - 1000, 1000)] == [b""] * 100
    assert reply.feed(frame[100_000:]) == frame

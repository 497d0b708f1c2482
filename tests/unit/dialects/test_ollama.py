"""Ollama's /api/chat: requests and streams as its servers and clients send them."""

from __future__ import annotations

import json
from typing import Any

import pytest

import dragoman.dialects as registry
from dragoman.conformance.laws import EMPTY_REQUEST, decode_events, fixed_environment
from dragoman.dialects.base import ListedModel
from dragoman.dialects.ollama import OllamaCodec
from dragoman.errors import DragomanError, Fault, LocalMisuse, MalformedRequest, MissingField, Truncated, UpstreamFault
from dragoman.model.assemble import assemble_reply
from dragoman.model.blocks import Media, Reasoning, Text, ToolCall, ToolResult
from dragoman.model.conversation import Conversation, Message, StopReason, Thinking, ToolChoice, ToolSpec, Usage
from dragoman.model.events import Failed, Finished, ReasoningDelta, Started, TextDelta
from dragoman.response_stream import ResponseTranslator, translate_whole_reply
from dragoman.translate import Plan, configure_dialect, plan
from dragoman.wire import jsonio
from dragoman.wire.frame import Frame
from dragoman.wire.http import HttpRequest, HttpResponse

OLLAMA, ANTHROPIC = registry.get("ollama"), registry.get("anthropic")
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
USER: dict[str, Any] = {"role": "user", "content": "hi"}
END = '{"model":"m","message":{"role":"assistant","content":""},"done":true,"done_reason":"stop"}\n'


def line(message: dict[str, Any], **more: Any) -> str:
    body = {"model": "m", "created_at": "t", "message": {"role": "assistant", "content": "", **message}, "done": False}
    return json.dumps({**body, **more}) + "\n"


def call(name: str, arguments: Any, **more: Any) -> dict[str, Any]:
    return {"function": {"index": 0, "name": name, "arguments": arguments}, **more}


def parsed(**body: Any) -> Conversation:
    return OLLAMA.codec.parse_request(OLLAMA.binding.unwrap({"model": "m", "messages": [USER], **body}))


def sent(conversation: Conversation, **settings: object) -> tuple[dict[str, Any], Plan]:
    """Return the translation of an Anthropic client's conversation."""
    planned = plan(ANTHROPIC, configure_dialect(OLLAMA, settings), conversation)
    body: Any = jsonio.decode(planned.request().body)
    return body, planned


def conversation_with(*messages: Message, **more: Any) -> Conversation:
    return Conversation("m", messages or (Message("user", (Text("hi"),)),), **more)


# --- requests


def test_a_request_streams_by_default() -> None:
    for fields, streams in (({}, True), ({"stream": None}, True), ({"stream": True}, True), ({"stream": False}, False)):
        request = HttpRequest("POST", "/api/chat", body=jsonio.encode({"model": "m", "messages": [], **fields}))
        matched = OLLAMA.binding.match(request)
        assert matched is not None and matched.stream is streams
        assert jsonio.decode(OLLAMA.binding.wrap(matched).body)["stream"] is streams  # type: ignore[index,call-overload]


def test_the_settings_of_a_request_are_those_that_others_have() -> None:
    options = {"num_predict": 9, "temperature": 0.5, "repeat_penalty": 1.1, "stop": ["a", "b"], "num_ctx": 8192}
    conversation = parsed(options=options, format={"type": "object"}, think="high", keep_alive=0, logprobs=True)
    assert (conversation.max_tokens, conversation.stop) == (9, ("a", "b"))
    assert conversation.sampling == {"temperature": 0.5, "repetition_penalty": 1.1}
    assert (conversation.output.kind, conversation.output.schema) == ("schema", {"type": "object"})
    assert conversation.thinking == Thinking("default", "high")
    written = OLLAMA.codec.render_request(conversation).body
    assert isinstance(written, dict) and written["options"] == options
    assert (written["keep_alive"], written["logprobs"], written["think"]) == (0, True, "high")


@pytest.mark.parametrize(("think", "mode"), [(True, "on"), (False, "off"), (None, "default")])
def test_thinking_is_on_off_or_left_to_the_model(think: bool | None, mode: str) -> None:
    conversation = parsed(think=think)
    assert conversation.thinking.mode == mode
    assert OLLAMA.codec.render_request(conversation).body.get("think") is think  # type: ignore[union-attr]


@pytest.mark.parametrize("limit", [-1, -2, 0])
def test_a_request_without_a_limit_stays_unlimited(limit: int) -> None:
    conversation = parsed(options={"num_predict": limit})
    assert conversation.max_tokens is None
    assert OLLAMA.codec.render_request(conversation).body["options"] == {"num_predict": limit}  # type: ignore[index,call-overload]


@pytest.mark.parametrize(
    ("body", "at"),
    [
        ({"think": "minimal"}, "think"),
        ({"format": "yaml"}, "format"),
        ({"messages": [{"role": "owner", "content": ""}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "images": ["data:image/png;base64,AAAA"]}]}, "messages[0].images"),
        ({"messages": [{"role": "assistant", "tool_calls": [call("go", "{}")]}]}, "arguments"),
        ({"messages": [{"role": "assistant", "tool_calls": [call("", {})]}]}, "name"),
        ({"options": {"temperature": "hot"}}, "options.temperature"),
        ({"tools": [{"type": "function", "function": {"name": "go", "parameters": []}}]}, "parameters"),
    ],
)
def test_values_that_the_service_refuses_are_refused_with_their_place(body: dict[str, Any], at: str) -> None:
    with pytest.raises(MalformedRequest) as refused:
        parsed(**body)
    assert at in refused.value.at


def test_results_without_ids_belong_to_the_first_call_of_their_tool() -> None:
    conversation = parsed(
        messages=[
            USER,
            {"role": "Assistant", "tool_calls": [call("read", {"n": 1}), call("find", {}), call("read", {"n": 2})]},
            {"role": "tool", "tool_name": "find", "content": "found"},
            {"role": "tool", "tool_name": "read", "content": "one"},
            {"role": "tool", "tool_name": "read", "content": "two", "images": [PIXEL]},
            {"role": "user", "content": "and?"},
        ]
    )
    calls = [block for block in conversation.messages[1].blocks if isinstance(block, ToolCall)]
    assert len({each.id for each in calls}) == 3
    results = [block for block in conversation.messages[2].blocks if isinstance(block, ToolResult)]
    assert [result.call_id for result in results] == [calls[1].id, calls[0].id, calls[2].id]
    assert results[2].content == (Text("two"), Media("image", "image/png", "base64", PIXEL))
    assert conversation.messages[2].blocks[3] == Text("and?")
    body: Any = OLLAMA.codec.render_request(conversation).body
    named = [(each["tool_name"], each["tool_call_id"]) for each in body["messages"] if each["role"] == "tool"]
    assert named == [(name, result.call_id) for name, result in zip(("find", "read", "read"), results, strict=True)]


def test_only_the_service_itself_loads_a_model() -> None:
    bodies: list[dict[str, Any]] = [{"messages": []}, {"messages": [], "truncate": False, "keep_alive": 0}]
    for body in bodies:
        assert plan(OLLAMA, OLLAMA, parsed(**body)).verbatim
        with pytest.raises(DragomanError, match="loaded"):
            plan(OLLAMA, ANTHROPIC, parsed(**body))


def test_the_arguments_keep_the_order_of_their_keys() -> None:
    arguments = {"z": 1, "a": {"y": 2.5, "b": None}, "m": [1]}
    conversation = parsed(messages=[{"role": "assistant", "tool_calls": [call("go", arguments)]}])
    body: Any = OLLAMA.codec.render_request(conversation).body
    assert json.dumps(body["messages"][0]["tool_calls"][0]["function"]["arguments"]) == json.dumps(arguments)


def test_a_message_is_flat() -> None:
    message = Message("assistant", (Text("one"), Reasoning("why", "ollama"), ToolCall("c", "go", "{}"), Text("two")))
    result = Message(
        "user", (ToolResult("c", (Text("a"), Text("b"))), Text("x"), Media("image", "image/png", "base64", PIXEL))
    )
    body, planned = sent(conversation_with(Message("user", (Text("q"),)), message, result))
    assert body["messages"][1] == {
        "role": "assistant",
        "content": "one\ntwo",
        "thinking": "why",
        "tool_calls": [{"id": "c", "function": {"name": "go", "arguments": {}}}],
    }
    assert body["messages"][2:] == [
        {"role": "tool", "content": "a\nb", "tool_name": "go", "tool_call_id": "c"},
        {"role": "user", "content": "x", "images": [PIXEL]},
    ]
    assert [note.rule for note in planned.notes if note.rule == "ollama.message"] == ["ollama.message"] * 2


def test_a_tool_choice_cannot_be_sent() -> None:
    tool = ToolSpec("go", "", {"type": "object", "properties": {}})
    body, planned = sent(conversation_with(tools=(tool,), tool_choice=ToolChoice("none")))
    assert "tools" not in body and "ollama.no_calls" in [note.rule for note in planned.notes]
    body, planned = sent(conversation_with(tools=(tool,), tool_choice=ToolChoice("any", parallel=False)))
    assert "tools" in body and not {"tool_choice", "parallel_tool_calls"} & body.keys()
    assert {"tools.choice", "tools.parallel"} <= {note.rule for note in planned.notes}


def test_a_long_prompt_is_refused_and_not_cut() -> None:
    body, planned = sent(conversation_with())
    assert body["truncate"] is False and "options" not in body and "shift" not in body
    assert not planned.notes  # so does every other service
    assert sent(conversation_with(), truncate=True)[0]["truncate"] is True


def test_a_client_of_the_same_dialect_decides_about_truncation() -> None:
    for fields, expected in (({}, None), ({"truncate": True}, True), ({"truncate": False}, False)):
        planned = plan(OLLAMA, OLLAMA, parsed(**fields))
        body: Any = jsonio.decode(planned.request().body)
        assert body.get("truncate") is expected and not planned.notes and planned.verbatim


def test_the_configured_window_overrides_the_clients() -> None:
    assert sent(conversation_with(), num_ctx=32768, keep_alive="30m")[0]["options"] == {"num_ctx": 32768}
    upstream = configure_dialect(OLLAMA, {"num_ctx": 32768, "keep_alive": -1})
    assert upstream.codec.capabilities("m").window == 32768
    planned = plan(OLLAMA, upstream, parsed(options={"num_ctx": 2048, "top_k": 3}, keep_alive="1m"))
    body: Any = jsonio.decode(planned.request().body)
    assert (body["options"], body["keep_alive"]) == ({"num_ctx": 32768, "top_k": 3}, "1m")
    assert [(note.rule, note.action) for note in planned.notes] == [("ollama.num_ctx", "changed")]
    assert not planned.verbatim and planned.passes  # the reply passes unchanged
    with pytest.raises(LocalMisuse):
        configure_dialect(OLLAMA, {"num_ctx": 0})


def test_a_budget_of_thinking_is_a_level() -> None:
    body, _ = sent(conversation_with(thinking=Thinking("on", budget=8000), max_tokens=9000))
    assert body["think"] == "medium"


# --- replies


def read(*lines: str) -> Any:
    return decode_events(OLLAMA, "".join(lines).encode())


def test_calls_arrive_whole_in_one_line_or_in_several() -> None:
    one, other = call("read", {"z": 1, "a": 2}), call("find", {}, id="call_12345678")
    for lines in ([line({"tool_calls": [one, other]})], [line({"tool_calls": [one]}), line({"tool_calls": [other]})]):
        reply = assemble_reply(read(line({"content": "I "}), line({"content": "look"}), *lines, END))
        calls = [block for block in reply.choices[0].blocks if isinstance(block, ToolCall)]
        assert [(each.id, each.name, each.arguments) for each in calls] == [
            ("", "read", '{"z":1,"a":2}'),
            ("call_12345678", "find", "{}"),
        ]
        assert reply.choices[0].blocks[0] == Text("I look") and reply.choices[0].stop.reason is StopReason.TOOL


@pytest.mark.parametrize(
    ("reason", "why"),
    [
        ("stop", StopReason.END),
        ("length", StopReason.LENGTH),
        ("", StopReason.END),
        ("load", StopReason.END),
        (None, StopReason.END),
    ],
)
def test_why_it_stopped(reason: str | None, why: StopReason) -> None:
    reply = assemble_reply(read(line({"content": "x"}), line({}, done=True, done_reason=reason)))
    assert reply.choices[0].stop.reason is why


def test_counts_that_are_left_out_are_zero() -> None:
    assert assemble_reply(read(line({}, done=True, eval_count=7))).usage == Usage(0, 7)
    assert assemble_reply(read(line({}, done=True))).usage is None
    usage = assemble_reply(read(line({}, done=True, prompt_eval_count=3, eval_count=7, total_duration=5))).usage
    assert usage is not None and (usage.input, usage.output) == (3, 7)
    assert usage.extra is not None and usage.extra.fields == {"total_duration": 5}


def test_a_stream_without_its_last_line_was_cut() -> None:
    for stream in (b"", line({"content": "x"}).encode(), line({"content": "x"}).encode() + END.encode()[:30]):
        last = decode_events(OLLAMA, stream)[-1]
        assert isinstance(last, Failed) and last.fault.is_violation
    with pytest.raises(Truncated):
        OLLAMA.codec.parse_reply(line({"content": "x"}).encode(), EMPTY_REQUEST)


def test_an_error_in_mid_stream_is_a_failure() -> None:
    *_, last = read(line({"content": "x"}), '{"error":"unexpected EOF"}\n', END)
    assert isinstance(last, Failed) and (last.fault.kind, last.fault.message) == ("server", "unexpected EOF")
    assert not last.fault.is_violation
    with pytest.raises(UpstreamFault, match="unexpected EOF"):
        OLLAMA.codec.parse_reply(b'{"error":"unexpected EOF"}', EMPTY_REQUEST)


@pytest.mark.parametrize("bad_call", [call("go", "{}"), call("", {}), call("go", [1]), {"function": None}, {}])
def test_a_call_that_cannot_be_read_is_the_upstreams_fault(bad_call: dict[str, Any]) -> None:
    assert isinstance(read(line({"tool_calls": [bad_call]}), END)[-1], Failed)
    with pytest.raises(MissingField):
        OLLAMA.codec.decoder(EMPTY_REQUEST, fixed_environment()).feed(
            Frame("", line({"tool_calls": [bad_call]}).encode(), b"")
        )


@pytest.mark.parametrize("body", [END, json.dumps(json.loads(END), indent=2), line({"content": "a"}) + END])
def test_a_whole_reply_is_a_line_or_a_stream(body: str) -> None:
    assert OLLAMA.codec.parse_reply(body.encode(), EMPTY_REQUEST).choices[0].stop.reason is StopReason.END


def test_a_whole_reply_holds_all_of_its_message() -> None:
    reply = assemble_reply(
        read(
            line({"thinking": "why"}), line({"content": "x"}), line({"tool_calls": [call("go", {"a": 1}, id="c")]}), END
        )
    )
    body: Any = jsonio.decode(OLLAMA.codec.render_reply(reply, EMPTY_REQUEST, fixed_environment()))
    assert body["message"] == {
        "role": "assistant",
        "content": "x",
        "thinking": "why",
        "tool_calls": [{"id": "c", "function": {"name": "go", "arguments": {"a": 1}}}],
    }
    assert (body["done"], body["done_reason"], body["model"]) == (True, "stop", "m")


def test_unknown_fields_round_trip_in_the_same_dialect() -> None:
    sent_lines = [
        line({"content": "a", "x_image": "i"}, x_first=1),
        line({"content": "b"}, logprobs=[{"token": "b"}]),
        line({}, done=True, done_reason="new_word", x_last={"y": 2}, eval_count=3, total_duration=9),
    ]
    events = read(*sent_lines)
    started = events[0]
    assert isinstance(started, Started) and isinstance(events[-1], Finished)
    encoder = OLLAMA.codec.encoder(EMPTY_REQUEST, fixed_environment())
    lines = [json.loads(payload.data) for payload in encoder.feed(events)]
    assert (lines[0]["x_first"], lines[0]["message"]["x_image"]) == (1, "i")
    assert {"logprobs": [{"token": "b"}]}.items() <= lines[1].items()
    assert {"done_reason": "new_word", "x_last": {"y": 2}, "eval_count": 3, "total_duration": 9}.items() <= lines[
        -1
    ].items()
    assert not any(line.get("x_first") for line in lines[1:])


def test_a_reply_of_another_service_is_written_as_lines() -> None:
    planned = plan(OLLAMA, ANTHROPIC, parsed())
    data = ANTHROPIC.codec.encoder(EMPTY_REQUEST, fixed_environment())
    stream = b"".join(
        map(
            ANTHROPIC.binding.encode_frame,
            data.feed(read(line({"content": "x"}), line({"tool_calls": [call("go", {"a": 1}, id="c")]}), END)),
        )
    )
    response = ResponseTranslator(planned, fixed_environment())
    lines = [json.loads(each) for each in (response.feed(stream) + response.close()).splitlines()]
    assert [each["message"]["content"] for each in lines] == ["x", "", ""]
    assert lines[1]["message"]["tool_calls"] == [
        {"id": "c", "function": {"index": 0, "name": "go", "arguments": {"a": 1}}}
    ]
    assert [each["done"] for each in lines] == [False, False, True]
    assert not OLLAMA.codec.stream_breaches([Frame("", json.dumps(each).encode(), b"") for each in lines])


def test_a_whole_reply_is_written_in_other_dialects() -> None:
    planned = plan(ANTHROPIC, OLLAMA, conversation_with(max_tokens=9))
    body = line(
        {"content": "x", "tool_calls": [call("go", {"a": 1})]}, done=True, done_reason="stop", prompt_eval_count=4
    )
    translated, notes = translate_whole_reply(planned, body.encode(), fixed_environment())
    reply: Any = jsonio.decode(translated)
    assert (reply["stop_reason"], reply["usage"]["input_tokens"]) == ("tool_use", 4)
    assert reply["content"][1]["input"] == {"a": 1} and "ids.minted" in [note.rule for note in notes]


@pytest.mark.parametrize(("name", "kind"), [("content", TextDelta), ("thinking", ReasoningDelta)])
def test_deltas_use_a_lane(name: str, kind: type[TextDelta | ReasoningDelta]) -> None:
    decoder, encoder = (
        OLLAMA.codec.decoder(EMPTY_REQUEST, fixed_environment()),
        OLLAMA.codec.encoder(EMPTY_REQUEST, fixed_environment()),
    )
    first = decoder.feed(Frame("", line({name: "a"}).encode(), b""))
    assert first is not None and isinstance(first[-1], kind)
    [written] = encoder.feed(first)
    source, target = decoder.lane(kind, first[-1].key), encoder.lane(kind, first[-1].key)
    assert source is not None and target is not None
    assert source.text_of(source.decode(line({name: "b"}).encode())) == "b"
    assert target.before + b'"a"' + target.after == written.data
    other = "thinking" if name == "content" else "content"
    assert source.text_of(source.decode(line({other: "b"}).encode())) == ""
    for odd in (line({name: "b"}, logprobs=[]), line({name: "b", "tool_calls": []}), END, "{}"):
        with pytest.raises(jsonio.DECODE_ERRORS):
            source.decode(odd.encode())


# --- errors and lists


@pytest.mark.parametrize(
    ("status", "message", "kind"),
    [
        (400, "request (5000 tokens) exceeds the available context size (4096 tokens)", "context_full"),
        (400, "the prompt is longer than the context length of 4096", "context_full"),
        (500, "request (9 tokens) exceeds the available context size (4 tokens), try increasing it", "context_full"),
        (400, '"m" does not support thinking', "invalid"),
        (400, "registry.ollama.ai/library/m does not support tools", "invalid"),
        (404, "model 'm' not found", "not_found"),
        (401, "unauthorized", "auth"),
        (429, "too many requests", "rate_limit"),
        (429, "you have reached your hourly usage limit", "quota"),
        (499, "request canceled", "server"),
        (500, "llama runner process has terminated", "server"),
        (502, "bad gateway", "server"),
        (503, "server busy, please try again. maximum pending requests exceeded", "overloaded"),
    ],
)
def test_errors_are_recognised_by_status_and_message(status: int, message: str, kind: str) -> None:
    fault = OLLAMA.codec.parse_fault(HttpResponse(status, (), jsonio.encode({"error": message})))
    expected = f"prompt is too long: {message}" if kind == "context_full" else message
    assert (fault.kind, fault.message) == (kind, expected)
    assert jsonio.decode(OLLAMA.codec.render_fault(fault)) == {"error": expected}


def test_every_kind_of_fault_round_trips() -> None:
    for kind in (
        "invalid",
        "context_full",
        "auth",
        "quota",
        "permission",
        "not_found",
        "too_large",
        "rate_limit",
        "server",
        "overloaded",
        "timeout",
    ):
        fault = Fault(kind, "No.", 400, retry_after=3)
        refused = OLLAMA.binding.error_response(fault, OLLAMA.codec.render_fault(fault))
        again = OLLAMA.codec.parse_fault(refused)
        assert (again.kind, again.retry_after) == (kind, 3)


def test_a_page_of_a_proxy_is_no_message() -> None:
    fault = OLLAMA.codec.parse_fault(HttpResponse(503, (), b"<html>busy</html>"))
    assert fault.kind == "overloaded" and "html" not in fault.message


def test_models_are_listed_as_tags() -> None:
    assert OLLAMA.listing is not None
    entry = OLLAMA.listing.entry(ListedModel("qwen3", 32768, created=0))
    assert entry == {
        "name": "qwen3",
        "model": "qwen3",
        "modified_at": "1970-01-01T00:00:00Z",
        "details": {"context_length": 32768},
    }
    assert OLLAMA.listing.render_list([entry]) == {"models": [entry]}
    matched = OLLAMA.binding.match(HttpRequest("GET", "/api/tags"))
    assert matched is not None and matched.operation == "models"
    assert OLLAMA.binding.wrap(matched).path == "/api/tags"


# --- rules


@pytest.mark.parametrize(
    ("rule", "body"),
    [
        ("ollama.shape", {"messages": [{"role": "owner"}]}),
        ("ollama.shape", {"messages": [{"role": "user", "content": []}]}),
        ("ollama.shape", {"messages": [{"role": "user", "images": ["data:image/png;base64,AA=="]}]}),
        ("ollama.shape", {"messages": [{"role": "assistant", "tool_calls": [call("go", "{}")]}]}),
        ("ollama.shape", {"top_logprobs": 21}),
        ("ollama.think", {"think": "xhigh"}),
        ("ollama.format", {"format": "yaml"}),
        ("ollama.tools.reference", {"tools": [{"function": {"name": "a", "parameters": {"x": {"$ref": "#/y"}}}}]}),
    ],
)
def test_a_request_that_breaks_a_rule(rule: str, body: dict[str, Any]) -> None:
    found = OLLAMA.codec.breaches(OLLAMA.binding.unwrap({"model": "m", "messages": [USER], **body}))
    assert [breach.rule for breach in found] == [rule]


@pytest.mark.parametrize(
    ("rule", "lines"),
    [
        ("ollama.stream.json", ["[]", END]),
        ("ollama.stream.message", ['{"done":false}', END]),
        ("ollama.stream.message", [line({"tool_calls": [call("go", "{}")]}), END]),
        ("ollama.stream.after_end", [END, END]),
        ("ollama.stream.unfinished", [line({"content": "x"})]),
    ],
)
def test_a_stream_that_breaks_a_rule(rule: str, lines: list[str]) -> None:
    found = OLLAMA.codec.stream_breaches([Frame("", each.encode(), b"") for each in lines])
    assert [breach.rule for breach in found] == [rule]


def test_settings_are_those_of_the_documents() -> None:
    assert OllamaCodec() == OllamaCodec(num_ctx=None, keep_alive=None, truncate=False)

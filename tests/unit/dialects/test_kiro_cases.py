"""Kiro conversations that are hard to translate: odd orders of turns, calls, results, images and names."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

import dragoman
from dragoman.conformance.laws import fixed_environment
from dragoman.response_stream import ResponseTranslator
from tests.anthropic_client import parse_message_stream, parse_sse
from tests.unit.dialects.kiro_helpers import (
    MODEL,
    WEATHER,
    anthropic_request,
    assistant,
    call,
    calls,
    client_stream,
    current,
    exception,
    frames,
    history,
    result,
    results,
    rules,
    state,
    stop_event,
    text,
    texts,
    tools,
    translate_to_kiro,
    usage,
    use,
    user,
)

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}}


def schema_of(schema: Any) -> Any:
    request = translate_to_kiro(anthropic_request(user("a"), tools=[{**WEATHER, "input_schema": schema}]))
    return tools(request)["get_weather"]["inputSchema"]["json"]


def test_adjacent_user_turns() -> None:
    body = anthropic_request(user("a"), user("b"), assistant("c"), user("d"))
    merged, filled = translate_to_kiro(body, pairing="merge"), translate_to_kiro(body)
    assert history(merged) == [("user", "a\n\nb"), ("assistant", "c")]
    assert history(filled) == [("user", "a"), ("assistant", "I understand."), ("user", "b"), ("assistant", "c")]
    assert current(merged)["content"] == current(filled)["content"] == "d"


def test_an_assistant_turn_first() -> None:
    request = translate_to_kiro(anthropic_request(assistant("hi"), user("x")))
    assert history(request) == [("user", "Continue"), ("assistant", "hi")]
    assert current(request)["content"] == "x"


def test_a_prefill() -> None:
    request = translate_to_kiro(anthropic_request(user("json?"), assistant("{")))
    assert history(request) == [("user", "json?"), ("assistant", "{")]
    assert current(request)["content"] == "Continue"
    assert "turn.placeholder" in rules(request)


def test_a_call_without_text_and_an_empty_result() -> None:
    request = translate_to_kiro(anthropic_request(user("a"), assistant([use("t1", "Read")]), user([result("t1", "")])))
    assert history(request)[1] == ("assistant", ".")
    assert results(request) == [{"toolUseId": "t1", "content": [{"text": "(no output)"}], "status": "success"}]
    assert current(request)["content"] == "Tool results provided."


def test_an_image_inside_a_result() -> None:
    parts = [{"type": "text", "text": "A"}, IMAGE, {"type": "text", "text": "B"}]
    request = translate_to_kiro(
        anthropic_request(user("a"), assistant([use("t")]), user([result("t", parts)]), tools=[WEATHER])
    )
    assert results(request)[0]["content"] == [{"text": "A\n(image 1 below)\nB"}]
    assert current(request)["images"] == [{"format": "png", "source": {"bytes": PIXEL}}]


def test_an_error_with_an_object() -> None:
    request = translate_to_kiro(
        anthropic_request(
            user("a"), assistant([use("t")]), user([result("t", {"code": 7}, is_error=True)]), tools=[WEATHER]
        )
    )
    assert results(request) == [{"toolUseId": "t", "content": [{"text": '{"code":7}'}], "status": "error"}]


def test_only_one_of_two_calls_has_a_result() -> None:
    request = translate_to_kiro(
        anthropic_request(user("a"), assistant([use("t1"), use("t2")]), user([result("t2", "two")]), tools=[WEATHER])
    )
    assert {each["toolUseId"]: (each["content"][0]["text"], each["status"]) for each in results(request)} == {
        "t1": ("(no result)", "error"),
        "t2": ("two", "success"),
    }


def test_a_result_without_a_call() -> None:
    request = translate_to_kiro(anthropic_request(user("a"), assistant("b"), user([result("t9", "survives")])))
    assert current(request)["content"] == "survives"
    assert "userInputMessageContext" not in current(request)


def test_two_results_for_one_call() -> None:
    body = anthropic_request(
        user("a"), assistant([use("t1")]), user([result("t1", "first"), result("t1", "second")]), tools=[WEATHER]
    )
    request = translate_to_kiro(body)
    assert [each["content"] for each in results(request)] == [[{"text": "first"}]]
    assert current(request)["content"] == "second"


def test_an_aside_between_results() -> None:
    def tool(call_id: str) -> dict[str, Any]:
        return {"role": "tool", "tool_call_id": call_id, "content": call_id}

    calls = [{"id": each, "type": "function", "function": {"name": "f", "arguments": "{}"}} for each in ("c1", "c2")]
    request = translate_to_kiro(
        {
            "model": "claude-sonnet-4.5",
            "messages": [
                user("a"),
                {"role": "assistant", "content": None, "tool_calls": calls},
                tool("c1"),
                assistant("thinking aloud"),
                tool("c2"),
                user("go"),
            ],
        },
        "openai",
    )
    results = state(request)["history"][2]["userInputMessage"]["userInputMessageContext"]["toolResults"]
    assert [each["toolUseId"] for each in results] == ["c1", "c2"]
    assert history(request)[3] == ("assistant", "thinking aloud")
    assert current(request)["content"] == "go"


def test_no_tools_but_a_call_in_history() -> None:
    request = translate_to_kiro(anthropic_request(user("a"), assistant([use("t", "grep")]), user([result("t")])))
    assert list(tools(request)) == ["grep"]
    assert tools(request)["grep"]["inputSchema"] == {"json": {"type": "object", "properties": {}}}
    assert tools(request)["grep"]["description"]
    assert "kiro.tools.stub" in rules(request)


LONG = "mcp__plugin_very-long-plugin-name_server-name__do_something_really_long_here"


def test_long_names_get_an_alias_that_is_mapped_back() -> None:
    twin = LONG + "_twin"
    declared = [{**WEATHER, "name": LONG}, {**WEATHER, "name": twin}]
    request = translate_to_kiro(
        anthropic_request(user("a"), assistant([use("t", LONG)]), user([result("t")]), tools=declared)
    )
    one, other = tools(request)
    assert one != other
    assert max(len(one), len(other)) <= 64
    assert state(request)["history"][1]["assistantResponseMessage"]["toolUses"][0]["name"] == one
    message = parse_message_stream(client_stream(frames(call("t2", other, stop=True), usage()), request.plan))
    assert calls(message) == [("t2", twin, "{}")]


def test_illegal_names_do_not_collide() -> None:
    declared = [{**WEATHER, "name": "files.read all"}, {**WEATHER, "name": "files_read_all"}]
    request = translate_to_kiro(anthropic_request(user("a"), tools=declared))
    one, other = tools(request)
    assert other == "files_read_all" != one
    message = parse_message_stream(client_stream(frames(call("t", one, stop=True), usage()), request.plan))
    assert calls(message) == [("t", "files.read all", "{}")]


def test_long_and_empty_descriptions() -> None:
    words = "漢" * 10_241
    request = translate_to_kiro(
        anthropic_request(
            user("a"), tools=[{**WEATHER, "description": words}, {**WEATHER, "name": "b", "description": ""}]
        )
    )
    cut = tools(request)["get_weather"]["description"]
    assert len(cut.encode()) <= 10_240
    assert set(cut) == {"漢"}
    assert words in current(request)["content"]
    assert tools(request)["b"]["description"] == "b"


def test_keywords_are_removed_and_properties_of_the_same_names_stay() -> None:
    schema = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "properties": {"format": {"type": "string", "format": "uri"}, "required": {"type": "boolean"}},
        "required": [],
        "additionalProperties": False,
    }
    properties = {"format": {"type": "string"}, "required": {"type": "boolean"}}
    assert schema_of(schema) == {"type": "object", "properties": properties}


def test_unions_at_the_root() -> None:
    string = {"type": "string"}
    schema = {"anyOf": [{"properties": {"a": string}, "required": ["a"]}, {"properties": {"b": string}}]}
    assert schema_of(schema) == {"type": "object", "properties": {"a": string, "b": string}}
    assert schema_of(None) == schema_of({"type": "string"}) == {"type": "object", "properties": {}}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [('{"p":1}', {"p": 1}), (None, {}), ([1], {"raw_arguments": "[1]"}), ("{", {"raw_arguments": '"{"'})],
)
def test_input_of_any_type_becomes_an_object(arguments: Any, expected: Any) -> None:
    called = {**use("t"), "input": arguments}
    request = translate_to_kiro(anthropic_request(user("a"), assistant([called]), user([result("t")]), tools=[WEATHER]))
    assert state(request)["history"][1]["assistantResponseMessage"]["toolUses"][0]["input"] == expected


def test_an_empty_object_and_then_fragments() -> None:
    stream = frames(call(input={}), call(input='{"p":'), call(input='"x"}'), call(stop=True), usage())
    out = client_stream(stream)
    starts = [each for each in parse_sse(out) if each["type"] == "content_block_start"]
    assert [each["content_block"]["input"] for each in starts] == [{}]
    assert calls(parse_message_stream(out)) == [("t1", "get_weather", '{"p":"x"}')]


def test_a_call_without_input() -> None:
    stream = frames(call(), call(stop=True), usage())
    reply = dragoman.translate_reply(stream, source="kiro", target="anthropic").body
    assert reply["content"][0]["input"] == {}
    assert calls(parse_message_stream(client_stream(stream))) == [("t1", "get_weather", "{}")]
    chat = dragoman.translate_reply(stream, source="kiro", target="openai").body
    assert chat["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"] == "{}"


def test_a_call_that_was_cut() -> None:
    stream = frames(text("I write."), call(), call(input='{"content":"abc'))
    message = parse_message_stream(client_stream(stream))
    assert message["stop_reason"] == "max_tokens"
    assert message["usage"]["output_tokens"] > 0
    whole = dragoman.translate_reply(stream, source="kiro", target="anthropic")
    assert [block["type"] for block in whole.body["content"]] == ["text"]
    assert whole.body["stop_reason"] == "max_tokens"
    assert "stream.unfinished_call" in [note.rule for note in whole.notes]
    chat = parse_sse(client_stream(stream, target="openai"))
    assert [each["choices"][0]["finish_reason"] for each in chat if each["choices"]][-1] == "length"


def test_cut_at_every_byte_and_with_a_flipped_bit() -> None:
    stream = frames(text("Hi 🐉"), text(" there"), call(input='{"a":"é'), call(input='"}', stop=True), usage())
    request = translate_to_kiro(anthropic_request(user("a"), tools=[WEATHER]))
    expected = client_stream(stream, request.plan)
    for at in range(len(stream)):
        translator = dragoman.stream_translator(source="kiro", target="anthropic", request=request)
        cut = translator.feed(stream[:at]) + translator.feed(stream[at:]) + translator.close()
        assert _without_id(cut) == _without_id(expected), at
    for at in range(0, len(stream), 7):
        flipped = stream[:at] + bytes([stream[at] ^ 0x10]) + stream[at + 1 :]
        broken = dragoman.stream_translator(source="kiro", target="anthropic", request=request)
        out = broken.feed(flipped) + broken.close()
        assert broken.error is not None, at
        assert parse_sse(out)[-1]["type"] == "error"
        assert "Hi 🐉 there".startswith(texts(parse_message_stream(out)))


def _without_id(stream: bytes) -> list[dict[str, Any]]:
    events = parse_sse(stream)
    events[0]["message"]["id"] = ""
    return events


def test_repeated_content_is_kept_and_text_is_text() -> None:
    assert texts(parse_message_stream(client_stream(frames(text("ha"), text("ha"), text("ha"), usage())))) == "hahaha"
    lookalike = '{"name":"x","toolUseId":"y"}'
    message = parse_message_stream(client_stream(frames(text(lookalike), usage())))
    assert (texts(message), calls(message)) == (lookalike, [])


def test_thinking_tags_only_when_thinking_was_asked_for() -> None:
    pieces = ["<thin", "king>\nplan uses `</thinking>` tag", "</thinking>\n\nAnswer"]
    stream = frames(*map(text, pieces), usage())
    translation = translate_to_kiro(anthropic_request(user("a"), thinking={"type": "enabled", "budget_tokens": 2000}))
    message = parse_message_stream(client_stream(stream, translation.plan))
    assert [block.get("thinking") for block in message["content"]] == ["plan uses `</thinking>` tag", None]
    assert texts(message) == "Answer"
    assert texts(
        parse_message_stream(client_stream(stream, translate_to_kiro(anthropic_request(user("a"))).plan))
    ) == "".join(pieces)


def test_reasoning_signature_text_usage() -> None:
    stream = frames(
        ("reasoningContentEvent", {"text": "1234"}),
        ("reasoningContentEvent", {"text": "5678"}),
        ("reasoningContentEvent", {"signature": "SIG"}),
        ("reasoningContentEvent", {"signature": "NATURE"}),
        text("x" * 40),
        stop_event("END_TURN"),
        usage(1.5),
        ("meteringEvent", {"usage": 0.05, "unit": "credit"}),
    )
    message = parse_message_stream(client_stream(stream))
    thought, response = message["content"]
    assert (thought["thinking"], response["text"], message["stop_reason"]) == ("12345678", "x" * 40, "end_turn")
    assert message["usage"]["output_tokens"] == 12
    assert [
        message["usage"][name] for name in ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
    ] == [
        91,
        183,
        2301,
    ]
    again = assistant(
        [{"type": "thinking", "thinking": "12345678", "signature": thought["signature"]}, {"type": "text", "text": "x"}]
    )
    entry = state(translate_to_kiro(anthropic_request(user("a"), again, user("b"))))["history"][1][
        "assistantResponseMessage"
    ]
    assert entry["reasoningContent"] == {"reasoningText": {"text": "12345678", "signature": "SIGNATURE"}}
    assert entry["content"] == "x"


def test_an_exception_inside_a_200() -> None:
    throttled = exception("ThrottlingException", message="slow down")
    lone_error = dragoman.stream_translator(source="kiro", target="anthropic")
    lone_error.feed(throttled)
    assert lone_error.error is not None
    assert (lone_error.error.fault.kind, lone_error.error.fault.status) == ("rate_limit", 429)
    late = parse_message_stream(client_stream(frames(text("Hel")) + throttled))
    assert late["error"] == {"type": "rate_limit_error", "message": "slow down"}
    assert late["stop_reason"] is None
    chat = parse_sse(client_stream(frames(text("Hel")) + throttled, target="openai"))
    assert "error" in chat[-1]
    assert all(each["choices"][0].get("finish_reason") is None for each in chat[:-1])


# --- Document 002 of docs/mission.md: its examples, verbatim, and its streams chunk by chunk

ARN = "arn:aws:codewhisperer:us-east-1:123456789012:profile/ABCDEFGHIJKL"
SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}}
EDIT = {"name": "edit", "description": "Edit a file.", "input_schema": SCHEMA}
DONE = "File edited successfully"


def events_by_chunk(*chunks: Any, model: str = MODEL) -> list[list[Any]]:
    """The Anthropic events that each Kiro chunk gives, and last those that the end of the stream gives."""
    response = ResponseTranslator(
        translate_to_kiro(anthropic_request(user("hi"), model=model)).plan, fixed_environment()
    )
    return [*(parse_sse(response.feed(frames(each))) for each in chunks), parse_sse(response.close())]


def kinds(*chunks: Any) -> list[list[str]]:
    return [[event["type"] for event in events] for events in events_by_chunk(*chunks)]


# --- requests


def test_the_whole_request_has_the_structure_of_the_document() -> None:
    body = anthropic_request(user("Hello"), assistant("Hi!"), user("Edit it."), system="Be kind.", tools=[EDIT])
    request = translate_to_kiro(body, profile_arn=ARN)
    named = {"modelId": "claude-sonnet-4.5", "origin": "AI_EDITOR"}
    tool = {"name": "edit", "description": "Edit a file.", "inputSchema": {"json": SCHEMA}}
    identity = state(request)["conversationId"]
    assert request.body == {
        "conversationState": {
            "chatTriggerType": "MANUAL",
            "conversationId": identity,
            "history": [
                {"userInputMessage": {"content": "Be kind.\n\nHello", **named}},
                {"assistantResponseMessage": {"content": "Hi!"}},
            ],
            "currentMessage": {
                "userInputMessage": {
                    "content": "Edit it.",
                    **named,
                    "userInputMessageContext": {"tools": [{"toolSpecification": tool}]},
                }
            },
        },
        "profileArn": ARN,
    }
    assert str(uuid.UUID(identity)) == identity
    assert list(request.body) == ["profileArn", "conversationState"]
    assert request.path == "/generateAssistantResponse"


def test_a_call_of_the_history_becomes_a_tool_use() -> None:
    arguments = {"path": "file.js", "content": "..."}
    blocks = [{"type": "text", "text": "I'll edit the file"}, use("toolu_xxx", "edit", arguments)]
    request = translate_to_kiro(
        anthropic_request(user("a"), assistant(blocks), user([result("toolu_xxx", DONE)]), tools=[EDIT])
    )
    assert state(request)["history"][1] == {
        "assistantResponseMessage": {
            "content": "I'll edit the file",
            "toolUses": [{"toolUseId": "toolu_xxx", "name": "edit", "input": arguments}],
        }
    }
    assert current(request)["content"] == "Tool results provided."
    assert results(request) == [{"content": [{"text": DONE}], "status": "success", "toolUseId": "toolu_xxx"}]


def test_a_failed_result_has_the_status_error() -> None:
    failed = result("t", "no such file", is_error=True)
    request = translate_to_kiro(anthropic_request(user("a"), assistant([use("t")]), user([failed]), tools=[WEATHER]))
    assert results(request) == [{"content": [{"text": "no such file"}], "status": "error", "toolUseId": "t"}]


@pytest.mark.parametrize("role", ["user", "assistant"])
def test_texts_of_a_message_are_joined(role: str) -> None:
    words = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    turns = [user(words), assistant("b")] if role == "user" else [user("a"), assistant(words)]
    assert (role, "one\ntwo") in history(translate_to_kiro(anthropic_request(*turns, user("c"))))


@pytest.mark.parametrize("turns", range(1, 7))
def test_history_never_ends_with_a_user_turn(turns: int) -> None:
    for first in (user, assistant):
        second = assistant if first is user else user
        kiro_turns = history(
            translate_to_kiro(anthropic_request(*[(first, second)[number % 2](f"{number}") for number in range(turns)]))
        )
        assert not kiro_turns or kiro_turns[-1][0] == "assistant"
    assert (
        history(translate_to_kiro(anthropic_request(*[user(f"{number}") for number in range(turns + 1)])))[-1][0]
        == "assistant"
    )


# --- response streams, chunk by chunk


def test_the_first_content_chunk_gives_its_three_events_at_once_and_the_next_one() -> None:
    assert kinds(text("Hello"), text(" world"), usage())[:2] == [
        ["message_start", "content_block_start", "content_block_delta"],
        ["content_block_delta"],
    ]


def test_the_tool_use_chunks_give_the_events_of_the_document() -> None:
    first = call("toolu_xxx", "edit", input='{"path":')
    events = events_by_chunk(
        first, ("toolUseEvent", {"input": '"file.js"}'}), ("toolUseEvent", {"stop": True}), usage()
    )
    start, delta = events[0][1:]
    assert [event["type"] for event in events[0]] == ["message_start", "content_block_start", "content_block_delta"]
    assert start["content_block"] == {"type": "tool_use", "id": "toolu_xxx", "name": "edit", "input": {}}
    assert delta["delta"] == {"type": "input_json_delta", "partial_json": '{"path":'}
    assert [(event["type"], event["delta"]) for event in events[1]] == [
        ("content_block_delta", {"type": "input_json_delta", "partial_json": '"file.js"}'})
    ]
    assert [event["type"] for event in events[2]] == ["content_block_stop"]
    assert [event["delta"]["stop_reason"] for event in events[-1] if event["type"] == "message_delta"] == ["tool_use"]


def test_text_is_block_0_and_the_call_after_it_block_1() -> None:
    events = events_by_chunk(
        text("Hello"), call("toolu_xxx", "edit", input='{"path":'), call("toolu_xxx", "edit", stop=True)
    )
    delta = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hello"}}
    assert events[0][-1] == delta
    starts = [(event["index"], event["content_block"]["type"]) for event in events[1] if "content_block" in event]
    assert starts == [(1, "tool_use")]


def test_the_percentage_is_kept_for_the_last_usage() -> None:
    events = events_by_chunk(text("Hello"), usage(1.5))
    assert [event["type"] for event in events[1]] == []
    assert [event["type"] for event in events[2]] == ["content_block_stop", "message_delta", "message_stop"]
    counts = events[2][1]["usage"]
    assert sum(counts[name] for name in counts) == int(172_500 * 1.5 / 100)

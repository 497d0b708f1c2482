"""Tool results of every shape reach the service as text (docs/mission.md, rows of 000; `TS1.3` is the id of a row)."""

from __future__ import annotations

import logging
from typing import Any

import pytest

import dragoman
from dragoman.dialects.base import ApiRequest
from dragoman.dialects.kiro import DIALECT, KiroBinding, KiroTargetBinding
from dragoman.dialects.kiro.quirks.turns import NO_OUTPUT, BuildHistory, FlattenResults
from dragoman.dialects.kiro.request import render_turn, to_json_object
from dragoman.dialects.kiro.request_parser import parse_result
from dragoman.errors import MalformedRequest
from dragoman.model.blocks import Location, Media, Opaque, Text, ToolResult
from dragoman.model.conversation import Conversation, Message
from dragoman.model.filter import Facts, Notes
from dragoman.model.parts import UNREADABLE_LINE
from dragoman.simulator.kiro.refusals import StrictnessProfile
from dragoman.simulator.kiro.rules import first_refusal
from dragoman.wire.fields import Fields
from tests.unit.dialects.kiro_helpers import (
    WEATHER,
    anthropic_request,
    assistant,
    call,
    current,
    frames,
    history,
    results,
    rules,
    translate_to_kiro,
    usage,
    use,
    user,
)
from tests.unit.dialects.kiro_helpers import text as text_event

ID = "toolu_01abc123"
SUNNY = "The weather is sunny and 75°F"
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
Body = dict[str, Any]


def tool_message(content: Any = None, **more: Any) -> Body:
    fields = {} if content is None else {"content": content}
    return {"role": "tool", "tool_use_id": ID, **fields, **more}


def text(words: Any) -> Body:
    return {"type": "text", "text": words}


def body_with(message: Body) -> Body:
    return anthropic_request(user("weather?"), assistant([use(ID)]), message, tools=[WEATHER])


def kiro_result(message: Body, source: str = "anthropic") -> Body:
    """The one result of the request that holds this tool message."""
    body = body_with(message)
    if source == "openai":
        body["tools"] = [
            {"type": "function", "function": {"name": "get_weather", "parameters": WEATHER["input_schema"]}}
        ]
    (found,) = results(translate_to_kiro(body, source))
    return found


def expected(content: str, status: str = "success", call_id: str = ID) -> Body:
    return {"content": [{"text": content}], "status": status, "toolUseId": call_id}


# --- TestExtractUserMessage_ToolResultContent

TS1 = {
    "TS1.1 string": (SUNNY, SUNNY),
    "TS1.2 array": ([text(SUNNY)], SUNNY),
    "TS1.3 nested array": ([text([text("The weather is sunny")]), text(" and 75°F")], SUNNY),
}


@pytest.mark.parametrize("source", ["anthropic", "openai"])
@pytest.mark.parametrize(("content", "words"), TS1.values(), ids=TS1.keys())
def test_extract_user_message_tool_result_content(content: Any, words: str, source: str) -> None:
    assert kiro_result(tool_message(content), source) == expected(words)


@pytest.mark.parametrize(
    ("more", "status"),
    [
        pytest.param({"status": "success"}, "success", id="TS2.1"),
        pytest.param({"status": "error"}, "error", id="TS2.2"),
        pytest.param({}, "success", id="TS2.3"),
        pytest.param({"status": "failed"}, "error", id="failed"),
        pytest.param({"status": "whatever"}, "success", id="unknown"),
        pytest.param({"status": "success", "is_error": True}, "error", id="is_error outranks"),
    ],
)
def test_extract_user_message_tool_result_status(more: Body, status: str) -> None:
    assert kiro_result(tool_message([text("Operation completed")], **more)) == expected("Operation completed", status)


@pytest.mark.parametrize(
    ("ids", "call_id"),
    [
        pytest.param({"tool_use_id": ID}, ID, id="TS3.1"),
        pytest.param({"tool_useId": ID}, ID, id="TS3.2"),
        pytest.param({"tool_use_id": "toolu_primary", "tool_useId": "toolu_secondary"}, "toolu_primary", id="TS3.3"),
        pytest.param({"tool_use_id": "", "tool_useId": "toolu_secondary"}, "toolu_secondary", id="first non-empty"),
    ],
)
def test_extract_user_message_tool_result_id(ids: Body, call_id: str) -> None:
    message = {"role": "tool", "content": [text("Result")], **ids}
    body = anthropic_request(user("weather?"), assistant([use(call_id)]), message, tools=[WEATHER])
    assert results(translate_to_kiro(body)) == [expected("Result", call_id=call_id)]


# --- TestExtractNestedContent_EdgeCases

TS4 = {
    "TS4.1 empty array": (tool_message([]), NO_OUTPUT, "kiro.result.empty"),
    "TS4.2 missing content": (tool_message(), NO_OUTPUT, "kiro.result.missing"),
    "TS4.3 not an array": (tool_message("not an array but has content"), "not an array but has content", None),
    "TS4.4 non-text types": (
        tool_message([{"type": "image", "source": {"data": "base64data"}}, text("Image processed")]),
        "Image processed",
        "kiro.result.malformed",
    ),
    "empty string": (tool_message(""), NO_OUTPUT, "kiro.result.empty"),
    "white space": (tool_message([text(" \n")]), NO_OUTPUT, "kiro.result.empty"),
    "null": ({**tool_message(), "content": None}, NO_OUTPUT, "kiro.result.missing"),
    "nulls inside": (tool_message([None, text("a"), None]), "a", None),
    "an object": (tool_message({"code": 7}), '{"code":7}', None),
    "a number": (tool_message(7), "7", None),
    "false": (tool_message([False]), "false", None),
    "content in content": (tool_message({"content": [{"content": "deep"}]}), "deep", None),
    "the field text": (tool_message(text="a fallback"), "a fallback", None),
    "an unknown block": (
        tool_message([{"type": "x_widget", "name": "x"}, text("a")]),
        '{"type":"x_widget","name":"x"}\na',
        "kiro.result.not_text",
    ),
    "a reference to a tool": (
        tool_message([{"type": "tool_reference", "tool_name": "x"}, text("a")]),
        "Tool x is not available.\na",
        None,  # its note is tools.reference, not one of Kiro's own
    ),
    "only media that cannot be read": (
        tool_message([{"type": "image", "source": {"data": "base64data"}}]),
        UNREADABLE_LINE,
        "kiro.result.malformed",
    ),
    "only an unknown block": (tool_message([{"type": "x_widget"}]), '{"type":"x_widget"}', "kiro.result.not_text"),
}


@pytest.mark.parametrize(("message", "words", "rule"), TS4.values(), ids=TS4.keys())
def test_extract_nested_content_edge_cases(message: Body, words: str, rule: str | None) -> None:
    request = translate_to_kiro(body_with(message))
    assert results(request) == [expected(words)]
    assert [name for name in rules(request) if name.startswith("kiro.result.")][:1] == ([rule] if rule else [])


@pytest.mark.parametrize("depth", [1, 50, 400])
def test_extract_nested_content_is_recursive(depth: int) -> None:
    content: Any = "deep"
    for _ in range(depth):
        content = [content]
    assert kiro_result(tool_message(content)) == expected("deep")


@pytest.mark.parametrize(
    ("message", "rule", "place"),
    [
        (tool_message([]), "kiro.result.empty", "messages[2]"),
        (tool_message(" \t"), "kiro.result.empty", "messages[2]"),
        (TS4["TS4.4 non-text types"][0], "kiro.result.malformed", "messages[2].content[0]"),
        (tool_message([{"type": "x_widget"}, text("secret")]), "kiro.result.not_text", "messages[2].content[0]"),
        (
            tool_message([{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}}]),
            "kiro.result.not_text",
            "messages[2].content[0]",
        ),
    ],
)
def test_ac3_every_extraction_problem_is_a_debug_record_without_the_text(
    message: Body, rule: str, place: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, logger="dragoman.kiro"):
        translate_to_kiro(body_with(message))
    (record,) = [each for each in caplog.records if each.name == "dragoman.kiro"]
    assert record.levelno == logging.DEBUG
    assert record.getMessage() == f"the result of call {ID} was changed at {place} (rule {rule})"


def test_ac3_a_good_result_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="dragoman.kiro"):
        translate_to_kiro(body_with(tool_message("fine")))
    assert caplog.records == []


# --- TestBuildRequest_ToolResultIntegration


def test_build_request_tool_result_integration_ts5_1() -> None:
    body = {
        "model": "claude-sonnet-4-5",
        "messages": [
            user("What's the weather in New York?"),
            assistant([text("I'll check the weather for you."), use(ID, arguments={"location": "New York"})]),
            tool_message([text("The weather in New York is sunny and 75°F")]),
        ],
    }
    request = translate_to_kiro(body)
    assert history(request) == [
        ("user", "What's the weather in New York?"),
        ("assistant", "I'll check the weather for you."),
    ]
    entry = request.body["conversationState"]["history"][1]["assistantResponseMessage"]
    assert entry["toolUses"] == [{"toolUseId": ID, "name": "get_weather", "input": {"location": "New York"}}]
    assert current(request)["content"] == "Tool results provided."
    assert results(request) == [expected("The weather in New York is sunny and 75°F")]


def test_build_request_tool_result_integration_ts5_2() -> None:
    message = tool_message([text("Weather: 75°F, sunny"), text("Humidity: 45%")])
    assert kiro_result(message) == expected("Weather: 75°F, sunny\nHumidity: 45%")


def test_build_request_readable_media_is_lifted_out_of_the_result() -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}}
    request = translate_to_kiro(body_with(tool_message([image])))
    assert results(request) == [expected("(image 1 below)")]
    assert current(request)["images"] == [{"format": "png", "source": {"bytes": PIXEL}}]


# --- TestBackwardCompatibility_ExistingFormats


@pytest.mark.parametrize(
    "message",
    [
        user([{"type": "tool_result", "tool_use_id": ID, "content": "fine"}]),
        user([{"type": "tool_result", "tool_use_id": ID, "content": [text("fine")]}]),
        tool_message("fine"),
        {"role": "TOOL", "tool_call_id": ID, "content": "fine"},
        {"role": "tool", "content": [{"type": "tool_result", "tool_use_id": ID, "content": "fine"}]},
    ],
    ids=["string", "array", "role tool", "openai's id", "result in role tool"],
)
def test_backward_compatibility_existing_formats(message: Body) -> None:
    assert kiro_result(message) == expected("fine")


# --- the filter and the reader by themselves


def result(*content: Text | Media | Opaque) -> ToolResult:
    return ToolResult("c", content, at=Location("here"))


def read(*blocks: Any) -> tuple[Conversation, list[str]]:
    notes = Notes()
    conversation, back = FlattenResults().forward(Conversation("m", (Message("user", blocks),)), notes, Facts())
    assert back is None
    return conversation, [note.rule for note in notes]


def test_a_result_in_order_is_left_as_it_is() -> None:
    conversation = Conversation("m", (Message("user", (result(Text("a"), Text(" ")), Text("b"))),))
    notes = Notes()
    assert FlattenResults().forward(conversation, notes, Facts())[0] is conversation
    assert not list(notes)


def test_a_part_that_is_no_text_becomes_text_between_the_others() -> None:
    conversation, noted = read(result(Text("a"), Opaque("x", {"y": 1}), Text("b")))
    assert conversation.messages[0].blocks == (result(Text("a"), Text('{"y":1}'), Text("b")),)
    assert noted == ["kiro.result.not_text"]


def test_a_result_of_media_alone_waits_for_the_filter_that_lifts_it() -> None:
    media = Media("image", "image/png", "base64", PIXEL)
    conversation, noted = read(result(media))
    assert conversation.messages[0].blocks == (result(media),)
    assert noted == []


def test_history_gives_a_result_without_text_the_same_text() -> None:
    notes = Notes()
    conversation, _ = BuildHistory().forward(
        Conversation("m", (Message("user", (result(), Text("go"))),)), notes, Facts()
    )
    assert conversation.messages[0].blocks == (result(Text(NO_OUTPUT)), Text("go"))
    assert [note.rule for note in notes] == ["kiro.text.missing"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ([{"text": "a"}, {"text": "b"}], ["a", "b"]),
        ([{"json": {"a": 1}}], ['{"a":1}']),
        ("plain", ["plain"]),
        ({"text": None, "content": "inner"}, ["inner"]),
        ({"other": 1}, ['{"other":1}']),
        ([{"text": ""}, None, 3], ["3"]),
        (None, []),
    ],
)
def test_a_kiro_client_may_give_results_in_any_shape_too(content: Any, words: list[str]) -> None:
    found = parse_result(Fields({"toolUseId": "c", "content": content}, "here"))
    assert [part.text for part in found.content if isinstance(part, Text)] == words


@pytest.mark.parametrize(
    ("status", "is_error", "is_kept"),
    [(None, False, False), ("success", False, False), ("error", True, False), ("FAILED", True, True), (7, False, True)],
)
def test_a_kiro_clients_status(status: Any, is_error: bool, is_kept: bool) -> None:
    found = parse_result(Fields({"toolUseId": "c", "status": status, "content": []}, "here"))
    assert (found.is_error, found.extra is not None) == (is_error, is_kept)


def deep(wrap: Any) -> Any:
    value: Any = "x"
    for _ in range(100_000):
        value = wrap(value)
    return value


@pytest.mark.parametrize(
    "content", [deep(lambda inner: {"a": inner}), deep(lambda inner: [inner])], ids=["objects", "arrays"]
)
def test_a_kiro_clients_result_may_not_be_bottomless(content: Any) -> None:
    turn: Any = {"content": "a", "userInputMessageContext": {"toolResults": [{"toolUseId": "c", "content": content}]}}
    call = ApiRequest("generate", "m", True, {"conversationState": {"currentMessage": {"userInputMessage": turn}}})
    with pytest.raises(MalformedRequest, match="nested too deeply"):
        DIALECT.codec.parse_request(call)


def test_a_kiro_clients_call_may_not_be_bottomless() -> None:
    call_turn = {
        "assistantResponseMessage": {"toolUses": [{"toolUseId": "c", "name": "f", "input": deep(lambda x: {"a": x})}]}
    }
    state: Any = {"history": [call_turn], "currentMessage": {"userInputMessage": {"content": "a"}}}
    with pytest.raises(MalformedRequest, match="nested too deeply"):
        DIALECT.codec.parse_request(ApiRequest("generate", "m", True, {"conversationState": state}))


@pytest.mark.parametrize("call_id", [None, "", 3])
def test_a_kiro_clients_result_needs_an_id(call_id: Any) -> None:
    with pytest.raises(MalformedRequest, match=r"here\.toolUseId: expected a string"):
        parse_result(Fields({"toolUseId": call_id, "content": []}, "here"))


# --- TestKiroExecutor_WithToolResults, TestKiroTranslation_CompleteToolFlow


def test_kiro_translation_complete_tool_flow() -> None:
    """OpenAI → Kiro → OpenAI: the call and its result arrive complete."""
    function = {"name": "get_weather", "description": "Tell it.", "parameters": {"type": "object", "properties": {}}}
    body: Body = {"model": "claude-sonnet-4.5", "tools": [{"type": "function", "function": function}]}
    first = translate_to_kiro({**body, "messages": [user("weather?")]}, "openai")
    stream = frames(text_event("Let me see."), call("t1", input='{"a":'), call("t1", input="1}", stop=True), usage())
    reply = dragoman.translate_reply(stream, source="kiro", target="openai", request=first).body
    (choice,) = reply["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == "Let me see."
    messages = [user("weather?"), choice["message"], {"role": "tool", "tool_call_id": "t1", "content": SUNNY}]
    second = translate_to_kiro({**body, "messages": messages}, "openai")
    entry = second.body["conversationState"]["history"][1]["assistantResponseMessage"]
    assert entry["toolUses"] == [{"toolUseId": "t1", "name": "get_weather", "input": {"a": 1}}]
    assert results(second) == [expected(SUNNY, call_id="t1")]


@pytest.mark.parametrize("profile", ["official", "observed", "paranoid"])
def test_kiro_executor_with_tool_results(profile: StrictnessProfile) -> None:
    """No request with tool results is improperly formed, at any strictness, by either wire protocol."""
    request = translate_to_kiro(body_with(tool_message([text("a"), [None, {"x": 1}], 7])))
    for binding in (KiroBinding(), KiroTargetBinding()):
        assert first_refusal(binding.wrap(request.plan.call()), profile) is None


def test_a_part_that_only_kiro_knows_round_trips_unchanged() -> None:
    part = {"type": "tool_use", "id": "t", "json": {"a": 1}}
    result: Body = {"toolUseId": "t1", "content": [part], "status": "success"}
    parsed = parse_result(Fields(result, "toolResults[0]", MalformedRequest))
    turn = render_turn(Message("user", (parsed,)), "AI_EDITOR")
    body: Any = turn if isinstance(turn, dict) else to_json_object(turn)
    assert body["userInputMessage"]["userInputMessageContext"]["toolResults"] == [result]

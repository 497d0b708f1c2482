"""Kiro requests from clients that speak it, both bindings, and the lint over raw requests and streams."""

from __future__ import annotations

import copy
import json
from contextlib import suppress
from typing import Any

import pytest
from msgspec import structs

import dragoman
from dragoman.conformance import laws
from dragoman.dialects.base import ApiRequest
from dragoman.dialects.kiro import DIALECT, KiroBinding, KiroCodec, KiroTargetBinding
from dragoman.dialects.kiro.rules import GRADED_RULES, breaches
from dragoman.dialects.kiro.stream_rules import KiroStreamLint
from dragoman.errors import DragomanError, LocalMisuse, MalformedRequest, Unrepresentable
from dragoman.model.blocks import Media, Opaque, Reasoning, Signature, Text, ToolCall, ToolResult
from dragoman.model.conversation import Conversation, Message, Output, Thinking, ToolChoice, ToolSpec
from dragoman.simulator.kiro.refusals import SimulatorLimits
from dragoman.wire.eventstream import EventStreamDecoder, encode_event
from dragoman.wire.http import HttpRequest
from tests.unit.dialects.kiro_helpers import call, exception, frames, stop_event, text, usage
from tests.unit.simulator.kiro_cases import ACCEPTED, REFUSED, Case
from tests.wrong_values import WRONG_VALUES, body_paths, with_value

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
MODEL = "claude-sonnet-4.5"
TARGETED = structs.replace(DIALECT, binding=KiroTargetBinding())  # its bodies hold the agent mode too
SCHEMA: Any = {"type": "object", "properties": {"city": {"type": "string"}}}
SPEC = {"toolSpecification": {"name": "f", "description": "d", "inputSchema": {"json": SCHEMA}}}


def body() -> dict[str, Any]:
    """A request that uses every part we know, and unknown fields in every place."""
    return {
        "conversationState": {
            "chatTriggerType": "MANUAL",
            "conversationId": "c-1",
            "agentTaskType": "vibe",
            "history": [
                {"userInputMessage": {"content": "a", "modelId": MODEL, "origin": "CLI", "userIntent": "x"}},
                {
                    "assistantResponseMessage": {
                        "content": "b",
                        "messageId": "m",
                        "reasoningContent": {"reasoningText": {"text": "t", "signature": "s"}},
                        "toolUses": [{"toolUseId": "1", "name": "f", "input": {"city": "x"}, "more": 1}],
                    }
                },
            ],
            "currentMessage": {
                "userInputMessage": {
                    "content": "c",
                    "modelId": MODEL,
                    "origin": "AI_EDITOR",
                    "images": [{"format": "png", "source": {"bytes": PIXEL}}],
                    "userInputMessageContext": {
                        "tools": [copy.deepcopy(SPEC)],
                        "toolResults": [{"toolUseId": "1", "content": [{"json": {"a": 1}}], "status": "error"}],
                        "envState": {"operatingSystem": "linux"},
                    },
                }
            },
        },
        "profileArn": "arn:aws:codewhisperer:us-east-1:699475941385:profile/test",
        "agentMode": "spec",
    }


def read(payload: Any) -> Conversation:
    return DIALECT.codec.parse_request(DIALECT.binding.unwrap(payload))


# --- reading


def test_a_clients_request_is_read_whole() -> None:
    found = read(body())
    user, assistant, current = found.messages
    assert (found.model, found.stream) == (MODEL, True)
    assert user.blocks == (Text("a"),)
    assert assistant.blocks[:2] == (Reasoning("t", "kiro", Signature("kiro", "s")), Text("b"))
    assert isinstance(assistant.blocks[2], ToolCall)
    result, words, picture = current.blocks
    assert isinstance(result, ToolResult)
    assert (result.call_id, result.is_error) == ("1", True)
    assert isinstance(result.content[0], Text)
    assert result.content[0].text == '{"a":1}'
    assert (words, picture) == (Text("c"), Media("image", "image/png", "base64", PIXEL))
    assert found.tools == (ToolSpec("f", "d", SCHEMA),)


def test_a_clients_request_round_trips_with_every_field() -> None:
    laws.own_body_round_trips(TARGETED, body())
    call = KiroTargetBinding().unwrap(body())
    written = json.loads(KiroTargetBinding().wrap(DIALECT.codec.render_request(DIALECT.codec.parse_request(call))).body)
    assert written == body()


@pytest.mark.parametrize("target", ["anthropic", "openai"])
def test_a_clients_request_can_be_sent_to_other_dialects(target: str) -> None:
    translated = dragoman.translate_request(body(), source="kiro", target=target)
    rendered = json.dumps(translated.body)
    assert '{\\"a\\":1}' in rendered
    assert '"c"' in rendered


def test_redacted_reasoning_and_unknown_forms() -> None:
    payload = body()
    turn = payload["conversationState"]["history"][1]["assistantResponseMessage"]
    turn["reasoningContent"] = {"redactedContent": "eA=="}
    assert read(payload).messages[1].blocks[0] == Reasoning("", "kiro", Signature("kiro", "eA==", "redacted"))
    laws.own_body_round_trips(TARGETED, payload)
    turn["reasoningContent"] = {"flat": 1}
    extra = read(payload).messages[1].extra
    assert extra is not None
    assert extra.fields["reasoningContent"] == {"flat": 1}


def test_fields_for_newer_models_are_read_and_the_rest_kept() -> None:
    fields: Any = {
        "output_config": {"effort": "high"},
        "thinking": {"type": "adaptive", "display": "summarized"},
        "other": 1,
    }
    found = read({**body(), "additionalModelRequestFields": fields})
    assert found.thinking == Thinking("adaptive", "high")
    assert found.extra is not None
    assert found.extra.fields["additionalModelRequestFields"] == {"other": 1}
    laws.own_body_round_trips(TARGETED, {**body(), "additionalModelRequestFields": fields})
    gpt = read({**body(), "additionalModelRequestFields": {"reasoning": {"effort": "low"}}})
    assert gpt.thinking == Thinking(effort="low")


def test_cache_points_among_tools_are_left_out_with_a_note() -> None:
    payload = body()
    current = payload["conversationState"]["currentMessage"]["userInputMessage"]
    current["userInputMessageContext"]["tools"].append({"cachePoint": {"type": "default"}})
    assert isinstance(read(payload).tools[1], Opaque)
    translated = dragoman.translate_request(payload, source="kiro", target="kiro")
    assert "kiro.tools.cache_point" in [note.rule for note in translated.notes]


def test_null_equals_absence() -> None:
    payload = body()
    current = payload["conversationState"]["currentMessage"]["userInputMessage"]
    current |= {"images": None, "userInputMessageContext": None, "userIntent": None, "content": None}
    payload["conversationState"]["history"] = None
    found = read(payload)
    assert found.messages == (Message("user", ()),)


@pytest.mark.parametrize(
    ("place", "value", "at"),
    [
        ("conversationState", 1, "conversationState: expected an object"),
        ("conversationState.currentMessage", None, r"conversationState\.currentMessage: expected an object"),
        ("conversationState.currentMessage", {}, r"conversationState\.currentMessage: expected userInputMessage or"),
        ("conversationState.history", {}, r"conversationState\.history: expected an array"),
        ("conversationState.history", [1], r"conversationState\.history\[0\]: expected an object"),
        ("conversationState.history", [{}], r"conversationState\.history\[0\]: expected userInputMessage or"),
        (
            "conversationState.currentMessage.userInputMessage.modelId",
            1,
            r"userInputMessage\.modelId: expected a string",
        ),
        ("conversationState.currentMessage.userInputMessage.images", [{}], r"images\[0\]\.format: expected a string"),
        (
            "conversationState.currentMessage.userInputMessage.images",
            [{"format": "png", "source": {"bytes": "?"}}],
            r"images\[0\]\.source\.bytes: expected base64",
        ),
        (
            "conversationState.currentMessage.userInputMessage.userInputMessageContext.tools",
            [{"toolSpecification": {"name": ""}}],
            r"tools\[0\]\.toolSpecification\.name: expected a string that is not empty",
        ),
        ("agentMode", 1, "agentMode: expected a string"),
    ],
)
def test_values_that_break_the_dialect_are_named(place: str, value: Any, at: str) -> None:
    with pytest.raises(MalformedRequest, match=at):
        read(with_value(body(), tuple(place.split(".")), value))


def test_any_field_value_raises_only_our_errors() -> None:
    for path in body_paths(body()):
        for wrong in WRONG_VALUES:
            with suppress(DragomanError):
                DIALECT.codec.render_request(read(with_value(body(), path, wrong)))


# --- rendering

ASK = Conversation(MODEL, (Message("user", (Text("a"),)),), stream=True)


@pytest.mark.parametrize(
    "changes",
    [
        {"system": (Text("s"),)},
        {"choices": 2},
        {"previous_id": "x"},
        {"output": Output("json")},
        {"tool_choice": ToolChoice("any")},
        {"max_tokens": 1},
        {"stop": ("x",)},
        {"sampling": {"top_p": 1}},
        {"user": "me"},
        {"thinking": Thinking("on")},
        {"stream": False},
        {"messages": ()},
        {"messages": (Message("assistant", (Text("a"),)),)},
        {"messages": (Message("system", (Text("a"),)), Message("user", (Text("a"),)))},
        {"messages": (Message("user", (Text("a"), Text("b"))),)},
        {"messages": (Message("user", (ToolCall("1", "f"),)),)},
        {"messages": (Message("user", (Media("image", "", "url", "x"),)),)},
        {"messages": (Message("user", (ToolResult("1", (Opaque("x", {}),)),)),)},
        {"messages": (Message("assistant", (Opaque("x", {}),)), Message("user", (Text("a"),)))},
        {"messages": (Message("assistant", (Reasoning("x"),)), Message("user", (Text("a"),)))},
        {"messages": (Message("assistant", (ToolCall("1", "f", "[1]"),)), Message("user", (Text("a"),)))},
        {"messages": (Message("assistant", (ToolCall("1", "f", "{"),)), Message("user", (Text("a"),)))},
        {"tools": (ToolSpec("f"),)},
        {"tools": (ToolSpec("f", schema=SCHEMA, waits_for="search"),)},
        {"tools": (Opaque("anthropic", {}, "bash"),)},
    ],
)
def test_the_codec_refuses_unrepresentable_content(changes: dict[str, Any]) -> None:
    with pytest.raises(Unrepresentable):
        DIALECT.codec.render_request(structs.replace(ASK, **changes))


def test_a_conversation_without_a_model_names_none() -> None:
    wrapped = DIALECT.binding.wrap(DIALECT.codec.render_request(structs.replace(ASK, model="")))
    assert b"modelId" not in wrapped.body


def test_a_rendered_request_is_read_like_a_received_one() -> None:
    call = DIALECT.codec.render_request(ASK)
    matched = DIALECT.binding.match(DIALECT.binding.wrap(call))
    assert matched is not None
    assert DIALECT.codec.parse_request(call) == DIALECT.codec.parse_request(matched)
    assert DIALECT.codec.breaches(call) == DIALECT.codec.breaches(matched)


# --- bindings


def test_both_wire_protocols_are_matched_by_one_binding() -> None:
    call = DIALECT.codec.render_request(ASK)
    for binding in (KiroBinding(), KiroTargetBinding()):
        found = KiroBinding().match(binding.wrap(call))
        assert found is not None
        assert DIALECT.codec.parse_request(found).messages == ASK.messages


def test_the_rest_form() -> None:
    request = KiroBinding().wrap(ApiRequest("generate", MODEL, True, {}, {}))
    assert (request.method, request.path) == ("POST", "/generateAssistantResponse")
    assert request.header("content-type") == "application/json"
    assert request.header("accept") == "application/vnd.amazon.eventstream"
    assert request.header("x-amzn-kiro-agent-mode") == "vibe"
    assert request.header("user-agent") == ""


def test_the_target_form() -> None:
    request = KiroTargetBinding().wrap(DIALECT.codec.render_request(ASK))
    assert (request.method, request.path) == ("POST", "/")
    assert request.header("content-type") == "application/x-amz-json-1.0"
    assert request.header("x-amz-target") == "AmazonCodeWhispererStreamingService.GenerateAssistantResponse"
    assert json.loads(request.body)["agentMode"] == "vibe"


@pytest.mark.parametrize("binding", [KiroBinding(), KiroTargetBinding()])
def test_the_agent_mode_survives(binding: KiroBinding) -> None:
    call = binding.match(
        HttpRequest(
            "POST", "/", headers=(("x-amz-target", "X.GenerateAssistantResponse"),), body=json.dumps(body()).encode()
        )
    )
    assert call is not None
    again = binding.match(binding.wrap(DIALECT.codec.render_request(DIALECT.codec.parse_request(call))))
    assert again is not None
    assert again.hints == {"x-amzn-kiro-agent-mode": "spec"}


@pytest.mark.parametrize(
    "request_",
    [
        HttpRequest("POST", "/v1/messages"),
        HttpRequest("GET", "/generateAssistantResponse"),
        HttpRequest("POST", "/", headers=(("x-amz-target", "X.ListThings"),)),
        HttpRequest("GET", "/"),
    ],
)
def test_other_requests_are_not_ours(request_: HttpRequest) -> None:
    assert KiroBinding().match(request_) is None


@pytest.mark.parametrize("binding", [KiroBinding(), KiroTargetBinding()])
def test_the_list_of_models(binding: KiroBinding) -> None:
    request = binding.wrap(ApiRequest("models", "", False, None))
    assert (request.method, request.path, request.query) == ("GET", "/ListAvailableModels", "origin=AI_EDITOR")
    assert binding.match(request) == ApiRequest("models", "", False, None)


def test_a_body_that_is_no_json_is_malformed() -> None:
    with pytest.raises(MalformedRequest):
        KiroBinding().match(HttpRequest("POST", "/generateAssistantResponse", body=b"{"))


def test_another_model_in_history_stays_where_it_was() -> None:
    payload = body()
    payload["conversationState"]["history"][0]["userInputMessage"]["modelId"] = "auto"
    written = DIALECT.binding.wrap(DIALECT.codec.render_request(read(payload))).body
    assert json.loads(written)["conversationState"]["history"][0]["userInputMessage"]["modelId"] == "auto"


def test_the_profile_of_the_settings_wins_over_the_clients() -> None:
    payload = {**body(), "profileArn": "arn:client"}
    sent = dragoman.translate_request(payload, source="kiro", target="kiro", profile_arn="arn:ours").body
    assert sent["profileArn"] == "arn:ours"
    assert dragoman.translate_request(payload, source="kiro", target="kiro").body["profileArn"] == "arn:client"


# --- the lint


def found(payload: dict[str, Any]) -> set[str]:
    return {breach.rule for breach in breaches(DIALECT.binding.unwrap(payload))}


def test_a_good_request_breaks_nothing() -> None:
    assert found(body()) == set()


NUMBERS = {rule.number for rule in GRADED_RULES.values()}
ONLY_SIMULATED = {"38-many and large", "40-half a signature"}  # the body alone does not show them
SHOWN = [
    case
    for case in REFUSED
    if case.rule in NUMBERS and case.limits == SimulatorLimits() and isinstance(case.body, dict)
]


@pytest.mark.parametrize("case", [case for case in SHOWN if str(case) not in ONLY_SIMULATED], ids=str)
def test_the_lint_reports_requests_that_the_simulator_refuses(case: Case) -> None:
    rules = {name for name, rule in GRADED_RULES.items() if (rule.number, rule.grade) == (case.rule, case.grade)}
    assert {f"kiro.{name}" for name in rules} & found(case.body)


@pytest.mark.parametrize("case", ACCEPTED, ids=str)
def test_the_lint_accepts_requests_that_the_simulator_accepts(case: Case) -> None:
    assert not isinstance(case.body, dict) or case.limits != SimulatorLimits() or found(case.body) == set()


def test_a_result_has_its_status() -> None:
    payload = body()
    del payload["conversationState"]["currentMessage"]["userInputMessage"]["userInputMessageContext"]["toolResults"][0][
        "status"
    ]
    assert found(payload) == {"kiro.result.no_status"}


def streamed(data: bytes) -> list[str]:
    return [breach.rule for breach in KiroStreamLint.breaches(EventStreamDecoder().feed(data))]


def test_the_lint_over_streams() -> None:
    assert streamed(frames(text("a"), call(input="{}"), call(stop=True), stop_event("END_TURN"), usage())) == []
    assert streamed(frames(text("a")) + exception("ThrottlingException", message="x")) == []
    assert streamed(frames(text("a"), call(), usage())) == ["kiro.stream.open_call"]
    assert streamed(frames(text("a"))) == ["kiro.stream.no_usage"]
    assert streamed(b"") == ["kiro.stream.no_usage"]
    assert streamed(frames(("newEvent", {}), usage())) == ["kiro.stream.unknown"]
    assert streamed(frames(("assistantResponseEvent", {}), usage())) == ["kiro.stream.content"]
    assert streamed(frames(("toolUseEvent", {"name": "f"}), usage())) == ["kiro.stream.call_id"]
    assert streamed(encode_event("codeEvent", b"{") + frames(usage())) == ["kiro.stream.json"]
    assert streamed(encode_event("codeEvent", b"[]") + frames(usage())) == ["kiro.stream.json"]


def test_settings_are_the_codecs_fields() -> None:
    codec = KiroCodec(pairing="merge", usage_window="model")
    assert codec.capabilities(MODEL).turns == "merge"
    assert codec.window("claude-opus-5") == 1_000_000
    assert KiroCodec().window("claude-opus-5") == 172_500


def test_a_setting_with_an_unknown_value_is_a_misuse() -> None:
    with pytest.raises(LocalMisuse, match=r"^pairing: expected placeholders or merge, got 'pairs'$"):
        KiroCodec(pairing="pairs")  # type: ignore[arg-type]
    with pytest.raises(LocalMisuse, match="pairing"):
        dragoman.translate_request(body(), source="kiro", target="kiro", pairing="pairs")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("fillers", ("", "Continue")),
        ("fillers", ("I understand.", " \n")),
        ("fillers", ("I understand.",)),
        ("history_limit", 0),
        ("history_limit", -1),
        ("max_tools", 0),
        ("usage_window", 0),
        ("usage_window", -172_500),
        ("usage_split", True),
        ("usage_split", ()),
        ("usage_split", (1, 2)),
        ("usage_split", (0, 0, 0)),
        ("usage_split", (3, -1, 1)),
    ],
)
def test_a_setting_out_of_its_range_is_a_misuse_that_names_it(name: str, value: Any) -> None:
    with pytest.raises(LocalMisuse, match=f"^{name}: expected "):
        KiroCodec(**{name: value})
    with pytest.raises(LocalMisuse, match=name):
        dragoman.translate_request(body(), source="kiro", target="kiro", **{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("history_limit", 1),
        ("history_limit", None),
        ("max_tools", 1),
        ("usage_window", 1),
        ("usage_window", "model"),
        ("usage_split", False),
        ("usage_split", (1, 0, 0)),
        ("usage_split", [1, 2, 25]),
    ],
)
def test_a_setting_at_the_edge_of_its_range_is_taken(name: str, value: Any) -> None:
    assert dragoman.translate_request(body(), source="kiro", target="kiro", **{name: value}).body


def test_a_context_with_only_tools_leaves_no_extra_fields() -> None:
    tool = {"toolSpecification": {"name": "f", "description": "d", "inputSchema": {"json": {"type": "object"}}}}
    message = {"content": "hi", "modelId": "m", "userInputMessageContext": {"tools": [tool]}}
    body: dict[str, Any] = {"conversationState": {"currentMessage": {"userInputMessage": message}}}
    conversation = DIALECT.codec.parse_request(ApiRequest("generate", "m", True, body))
    assert [tool.name for tool in conversation.tools if isinstance(tool, ToolSpec)] == ["f"]
    assert "userInputMessageContext" not in repr(conversation.messages)

"""Every rule of Bedrock Converse: a request that breaks it is reported, and refused by the simulator."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from dragoman.dialects import get
from dragoman.dialects.base import ApiRequest
from dragoman.dialects.bedrock import DIALECT
from dragoman.errors import Unrepresentable
from dragoman.model.conversation import Conversation
from dragoman.simulator import Simulator, running_simulator
from dragoman.translate import plan
from dragoman.wire.eventstream import EventStreamDecoder
from tests import strategies
from tests.unit.dialects.bedrock_wire import CLAUDE, METADATA, NOVA, START, delta, end, stop, stream, text, use

MISTRAL, DEEPSEEK = "mistral.mistral-large-2407-v1:0", "deepseek.r1-v1:0"
SCHEMA = {"type": "object", "properties": {}}
TOOL: Any = {"toolSpec": {"name": "get", "description": "d", "inputSchema": {"json": SCHEMA}}}
CONFIG: Any = {"toolConfig": {"tools": [TOOL]}}
POINT: Any = {"cachePoint": {"type": "default"}}
HOUR: Any = {"cachePoint": {"type": "default", "ttl": "1h"}}
THINKING: Any = {"additionalModelRequestFields": {"thinking": {"type": "enabled", "budget_tokens": 1024}}}


def user(*blocks: Any) -> Any:
    return {"role": "user", "content": list(blocks)}


def assistant(*blocks: Any) -> Any:
    return {"role": "assistant", "content": list(blocks)}


def text_block(words: str = "x") -> Any:
    return {"text": words}


def call(id_: Any = "a", **more: Any) -> Any:
    return {"toolUse": {"toolUseId": id_, "name": "get", "input": {}, **more}}


def result(id_: Any = "a", *parts: Any, **more: Any) -> Any:
    return {"toolResult": {"toolUseId": id_, "content": list(parts) or [text_block("ok")], **more}}


def document(name: str = "a", form: str = "pdf") -> Any:
    return {"document": {"format": form, "name": name, "source": {"bytes": "aGk="}}}


def thought(**text_: Any) -> Any:
    return {"reasoningContent": {"reasoningText": {"text": "hm", **text_}}}


def asking(*messages: Any, **more: Any) -> Any:
    return {"messages": list(messages), **more}


def body_with(**more: Any) -> Any:
    return asking(user(text_block()), **more)


def calling(*messages: Any) -> Any:
    """Return a request with a user message, these messages after it, and a tool."""
    return asking(user(text_block()), *messages, **CONFIG)


def schema(text_: Any) -> Any:
    form = {"type": "json_schema", "structure": {"jsonSchema": {"schema": json.dumps(text_)}}}
    return {"outputConfig": {"textFormat": form}}


GOOD: dict[str, tuple[Any, str]] = {
    "a question": (asking(user(text_block())), CLAUDE),
    "a tool loop": (
        asking(
            user(text_block()),
            assistant(text_block(), call("a"), call("b")),
            user(result("a"), result("b"), text_block()),
            **CONFIG,
        ),
        CLAUDE,
    ),
    "documents": (asking(user(text_block(), document("a"), document("a (2)"))), CLAUDE),
    "cache points": (asking(user(text_block(), HOUR, text_block(), POINT), system=[text_block(), HOUR]), CLAUDE),
    "thinking": (
        asking(user(text_block()), assistant(thought(signature="s"), text_block()), user(text_block()), **THINKING),
        CLAUDE,
    ),
    "unsigned": (asking(user(text_block()), assistant(thought(), text_block()), user(text_block())), NOVA),
    "prefill": (asking(user(text_block()), assistant(text_block())), CLAUDE),
    "closed": (asking(user(text_block()), **schema({**SCHEMA, "additionalProperties": False})), CLAUDE),
    "new members": (asking(user(text_block(), {"hologram": {}})), CLAUDE),
    "a result with more": (
        asking(
            user(text_block()),
            assistant(call()),
            user(result("a", {"json": [1]}, text_block()), POINT, text_block()),
            **CONFIG,
        ),
        CLAUDE,
    ),
    "a server tool": (
        asking(
            user(text_block()), assistant(call("s", type="server_tool_use"), text_block()), user(text_block()), **CONFIG
        ),
        CLAUDE,
    ),
}


@pytest.mark.parametrize("name", GOOD)
def test_a_good_request_breaks_nothing(name: str) -> None:
    body, model = GOOD[name]
    assert DIALECT.codec.breaches(ApiRequest("generate", model, False, body)) == []


# The rule, a part of the service's message, the request, and the model, if its vendor matters.
BAD: list[tuple[Any, ...]] = [
    ("messages.first", "must start with a user message", asking(assistant(text_block()), user(text_block()))),
    ("messages.alternate", "must alternate between user and assistant", asking(user(text_block()), user(text_block()))),
    ("messages.last", "must end with a user message", asking(user(text_block()), assistant(text_block())), MISTRAL),
    ("tool_result.count", "exceeds the number of toolUse blocks", calling(assistant(text_block()), user(result()))),
    ("tool_result.orphan", "unexpected", calling(assistant(call("a")), user(result("b")))),
    (
        "tool_use.unanswered",
        "Did not find 1 tool_result block(s) at the beginning",
        calling(assistant(call()), user(text_block())),
    ),
    ("tool_use.unanswered", "at the beginning", calling(assistant(call()), user(text_block(), result()))),
    ("tool_use.unanswered", "Did not find 2", calling(assistant(call("a"), call("b")))),
    ("tool_use.duplicate", "contain duplicate Ids", calling(assistant(call(), call()), user(result()))),
    ("tool_result.duplicate", "contain duplicate Ids", calling(assistant(call(), call("b")), user(result(), result()))),
    (
        "tool_config.required",
        "toolConfig field must be defined",
        asking(user(text_block()), assistant(call()), user(result())),
    ),
    ("text.blank", "must contain non-whitespace text", asking(user(text_block(" ")))),
    ("text.blank", "must contain non-whitespace text", body_with(system=[text_block("\n")])),
    ("text.blank", "non-whitespace", calling(assistant(call()), user(result("a", text_block(" "))))),
    ("content.empty", "content field in the Message object is empty", asking(user())),
    (
        "tool_result.apart",
        "Conversation blocks and tool result blocks cannot",
        calling(assistant(call()), user(result(), text_block())),
        MISTRAL,
    ),
    ("tool_use.input", "Provide a json object", calling(assistant(call(input="{}")), user(result()))),
    (
        "tools.schema",
        "inputSchema.json.type must be one of",
        body_with(toolConfig={"tools": [{"toolSpec": {"name": "get", "inputSchema": {"json": {}}}}]}),
    ),
    (
        "length",
        "length greater than or equal to 1",
        body_with(toolConfig={"tools": [{"toolSpec": {**TOOL["toolSpec"], "description": ""}}]}),
    ),
    (
        "tool_choice.no_tools",
        "tool_choice.type: Field required",
        body_with(toolConfig={"tools": [], "toolChoice": {"any": {}}}),
    ),
    (
        "tool_choice.no_tools",
        "tool_choice.type: Field required",
        body_with(additionalModelRequestFields={"tool_choice": {"type": "auto"}}),
    ),
    (
        "tool_choice.name",
        "no tool of this name",
        body_with(toolConfig={"tools": [TOOL], "toolChoice": {"tool": {"name": "z"}}}),
    ),
    ("tools.duplicate", "used twice", body_with(toolConfig={"tools": [TOOL, TOOL]})),
    ("document.name", "document file name can only contain", asking(user(text_block(), document("a.pdf")))),
    ("document.name", "more than one consecutive whitespace", asking(user(text_block(), document("a  b")))),
    ("document.duplicate", "unique names", asking(user(text_block(), document(), document()))),
    ("document.text", "text block must accompany a document", asking(user(document()))),
    ("cache.count", "maximum of 4", asking(user(*[each for _ in range(5) for each in (text_block(), POINT)]))),
    ("cache.ttl_order", "must not come after", asking(user(text_block(), HOUR), system=[text_block(), POINT])),
    ("cache.document", "other than PDF", asking(user(text_block(), document("a", "csv"), POINT))),
    ("field.unknown", "extraneous key", calling(assistant(call()), user(result("a", text_block(), cachePoint={})))),
    (
        "output.closed",
        "additionalProperties",
        body_with(**schema({"type": "object", "properties": {"a": SCHEMA}, "additionalProperties": False})),
    ),
    (
        "reasoning.unsigned",
        "signature: Field required",
        asking(user(text_block()), assistant(thought(), text_block()), user(text_block())),
    ),
    (
        "reasoning.signed",
        "doesn't support",
        asking(user(text_block()), assistant(thought(signature="s"), text_block()), user(text_block())),
        NOVA,
    ),
    (
        "reasoning.refused",
        "doesn't support",
        asking(user(text_block()), assistant(thought(), text_block()), user(text_block())),
        DEEPSEEK,
    ),
    ("field.unknown", "extraneous key [x]", asking(user({"text": "a", "x": 1}))),
    ("field.unknown", "extraneous key [cache_control]", calling(assistant(call(cache_control={})), user(result()))),
    (
        "thinking.forced_tool",
        "forces tool use",
        body_with(toolConfig={"tools": [TOOL], "toolChoice": {"any": {}}}, **THINKING),
    ),
    ("thinking.budget", "at least 1024", body_with(additionalModelRequestFields={"thinking": {"type": "enabled"}})),
    ("thinking.limit", "greater than thinking.budget_tokens", body_with(inferenceConfig={"maxTokens": 9}, **THINKING)),
    # the published shape, of which botocore checks little
    ("messages.required", "at least one message", {}),
    ("union", "exactly one member", asking(user({}))),
    ("union", "exactly one member", asking(user({"type": "tool_use", "toolUseId": "a", "name": "get", "input": {}}))),
    ("field.required", "must not be null", calling(assistant(call(None)), user(result()))),
    ("length", "less than or equal to 64", calling(assistant(call("i" * 65)), user(result("i" * 65)))),
    ("pattern", "regular expression pattern", calling(assistant(call("a b")), user(result("a b")))),
    ("enum", "enum value set", asking({"role": "bot", "content": [text_block()]})),
    (
        "enum",
        "enum value set: [png",
        asking(user(text_block(), {"image": {"format": "bmp", "source": {"bytes": "aGk="}}})),
    ),
    ("range", "less than or equal to 1", body_with(inferenceConfig={"temperature": 1.5})),
    ("range", "greater than or equal to 1", body_with(inferenceConfig={"maxTokens": 0})),
    ("type", "whole number", body_with(inferenceConfig={"maxTokens": True})),
    ("pattern", "regular expression pattern", body_with(requestMetadata={"user": "ü"})),
    ("length", "greater than or equal to 1", body_with(requestMetadata={})),
    ("type", "must be an array", body_with(system="x")),
]


@pytest.fixture(scope="module")
def service() -> Iterator[Simulator]:
    with running_simulator("bedrock", profile="strict") as running:
        yield running


@pytest.mark.parametrize(
    ("rule", "words", "body", "model"),
    [pytest.param(*(*case, CLAUDE)[:4], id=f"{number}-{case[0]}") for number, case in enumerate(BAD)],
)
def test_a_request_that_breaks_a_rule_is_refused_with_the_services_message(
    service: Simulator, rule: str, words: str, body: Any, model: str
) -> None:
    found = DIALECT.codec.breaches(ApiRequest("generate", model, False, body))
    assert [breach for breach in found if breach.rule == f"bedrock.{rule}" and words in breach.detail], found
    response = httpx.post(
        f"{service.url}/model/{model}/converse", json=body, headers={"authorization": "AWS4-HMAC-SHA256 x"}
    )
    assert response.status_code == 400
    assert response.headers["x-amzn-errortype"] == "ValidationException"
    assert any(breach.detail in response.json()["message"] for breach in found)


def test_every_rule_of_the_lint_is_tried_here() -> None:
    tried = {rule for rule, *_ in BAD}
    assert len(tried) >= 38


@given(conversation=strategies.conversations(), client=st.sampled_from(["anthropic", "openai"]), data=st.data())
@settings(max_examples=60)
def test_requests_of_other_dialects_always_pass(conversation: Conversation, client: str, data: st.DataObject) -> None:
    model = data.draw(st.sampled_from([CLAUDE, NOVA, MISTRAL, DEEPSEEK, "m"]))
    try:
        planned = plan(get(client), DIALECT, structs.replace(conversation, model=model))
    except Unrepresentable:
        return
    assert DIALECT.codec.breaches(planned.call()) == []


# --- streams


@pytest.mark.parametrize(
    ("items", "rule"),
    [
        ([START, text(0, "x"), stop("end_turn"), METADATA], ""),
        ([START, text(0, "x"), use(1, "t", "f", "{}"), stop("tool_use"), METADATA], ""),
        ([START, end(0), stop("end_turn"), METADATA], ""),
        ([START, delta(0, text="x"), ("!throttlingException", {"message": "x"})], ""),
        ([START, ("novelty", {}), stop("end_turn"), METADATA], ""),
        ([text(0, "x"), stop("end_turn"), METADATA], "no_start"),
        ([START, START, stop("end_turn"), METADATA], "start_once"),
        ([("messageStart", {}), stop("end_turn"), METADATA], "role"),
        ([START, delta(0, toolUse={"input": ""}), end(0), stop("end_turn"), METADATA], "no_block_start"),
        (
            [START, delta(0, text="x"), delta(0, reasoningContent={"text": "x"}), end(0), stop("end_turn"), METADATA],
            "delta_kind",
        ),
        ([START, delta(0, text="x"), delta(1, text="x"), end(0), end(1), stop("end_turn"), METADATA], "interleaved"),
        ([START, text(0, "x"), text(0, "y"), stop("end_turn"), METADATA], "index_reused"),
        ([START, text(0, "x"), end(0), stop("end_turn"), METADATA], "no_block"),
        ([START, delta(0, text="x"), stop("end_turn"), METADATA], "open_block"),
        ([START, delta(-1, text="x"), stop("end_turn"), METADATA], "index"),
        ([START, delta(0), stop("end_turn"), METADATA], "union"),
        ([START, delta(0, text=1), end(0), stop("end_turn"), METADATA], "delta_value"),
        ([START, use(0, "t", "f", "{"), stop("tool_use"), METADATA], "input_json"),
        ([START, use(0, "", "f", "{}"), stop("tool_use"), METADATA], "block_start"),
        ([START, text(0, "x"), stop("done"), METADATA], "stop_reason"),
        ([START, stop("end_turn"), stop("end_turn"), METADATA], "stop_once"),
        ([START, stop("end_turn"), text(0, "x"), METADATA], "late_block"),
        ([START, METADATA, stop("end_turn")], "metadata_early"),
        ([START, stop("end_turn"), ("metadata", {})], "usage"),
        ([START, stop("end_turn")], "no_metadata"),
        ([START, text(0, "x")], "no_stop"),
        ([START, stop("end_turn"), METADATA, METADATA], "after_end"),
        ([START, ("!somethingElse", {"message": "x"})], "exception"),
        ([START, ("!validationException", {})], "exception_message"),
        ([START, ("messageStop", [1]), stop("end_turn"), METADATA], "object"),
    ],
)
def test_streams(items: list[Any], rule: str) -> None:
    found = DIALECT.codec.stream_breaches(EventStreamDecoder().feed(stream(items)))
    assert (f"bedrock.stream.{rule}" in {breach.rule for breach in found}) if rule else found == []

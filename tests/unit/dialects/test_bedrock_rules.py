"""Every rule of the service (facts 1.2 and 1.4): a request that breaks it is named, and refused by the simulator."""

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
from dragoman.dialects.base import Call
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


def said(words: str = "x") -> Any:
    return {"text": words}


def call(id_: Any = "a", **more: Any) -> Any:
    return {"toolUse": {"toolUseId": id_, "name": "get", "input": {}, **more}}


def result(id_: Any = "a", *parts: Any, **more: Any) -> Any:
    return {"toolResult": {"toolUseId": id_, "content": list(parts) or [said("ok")], **more}}


def document(name: str = "a", form: str = "pdf") -> Any:
    return {"document": {"format": form, "name": name, "source": {"bytes": "aGk="}}}


def thought(**text_: Any) -> Any:
    return {"reasoningContent": {"reasoningText": {"text": "hm", **text_}}}


def asking(*messages: Any, **more: Any) -> Any:
    return {"messages": list(messages), **more}


def schema(text_: Any) -> Any:
    form = {"type": "json_schema", "structure": {"jsonSchema": {"schema": json.dumps(text_)}}}
    return {"outputConfig": {"textFormat": form}}


GOOD: dict[str, tuple[Any, str]] = {
    "a question": (asking(user(said())), CLAUDE),
    "a tool loop": (
        asking(user(said()), assistant(said(), call("a"), call("b")), user(result("a"), result("b"), said()), **CONFIG),
        CLAUDE,
    ),
    "documents": (asking(user(said(), document("a"), document("a (2)"))), CLAUDE),
    "cache points": (asking(user(said(), HOUR, said(), POINT), system=[said(), HOUR]), CLAUDE),
    "thinking": (asking(user(said()), assistant(thought(signature="s"), said()), user(said()), **THINKING), CLAUDE),
    "unsigned": (asking(user(said()), assistant(thought(), said()), user(said())), NOVA),
    "prefill": (asking(user(said()), assistant(said())), CLAUDE),
    "closed": (asking(user(said()), **schema({**SCHEMA, "additionalProperties": False})), CLAUDE),
    "new members": (asking(user(said(), {"hologram": {}})), CLAUDE),
    "a result with more": (
        asking(user(said()), assistant(call()), user(result("a", {"json": [1]}, said()), POINT, said()), **CONFIG),
        CLAUDE,
    ),
    "a server tool": (
        asking(user(said()), assistant(call("s", type="server_tool_use"), said()), user(said()), **CONFIG),
        CLAUDE,
    ),
}


@pytest.mark.parametrize("name", GOOD)
def test_a_good_request_breaks_nothing(name: str) -> None:
    body, model = GOOD[name]
    assert DIALECT.codec.breaches(Call("generate", model, False, body)) == []


# The rule, the service's words, the request, and the model, whose vendor may matter.
BAD: list[tuple[str, str, Any, str]] = [
    ("messages.first", "must start with a user message", asking(assistant(said()), user(said())), CLAUDE),
    ("messages.alternate", "must alternate between user and assistant", asking(user(said()), user(said())), CLAUDE),
    ("messages.last", "must end with a user message", asking(user(said()), assistant(said())), MISTRAL),
    (
        "tool_result.count",
        "exceeds the number of toolUse blocks",
        asking(user(said()), assistant(said()), user(result()), **CONFIG),
        CLAUDE,
    ),
    (
        "tool_result.orphan",
        "unexpected",
        asking(user(said()), assistant(call("a")), user(result("b")), **CONFIG),
        CLAUDE,
    ),
    (
        "tool_use.unanswered",
        "Did not find 1 tool_result block(s) at the beginning",
        asking(user(said()), assistant(call()), user(said()), **CONFIG),
        CLAUDE,
    ),
    (
        "tool_use.unanswered",
        "at the beginning",
        asking(user(said()), assistant(call()), user(said(), result()), **CONFIG),
        CLAUDE,
    ),
    ("tool_use.unanswered", "Did not find 2", asking(user(said()), assistant(call("a"), call("b")), **CONFIG), CLAUDE),
    (
        "tool_use.duplicate",
        "contain duplicate Ids",
        asking(user(said()), assistant(call(), call()), user(result()), **CONFIG),
        CLAUDE,
    ),
    (
        "tool_result.duplicate",
        "contain duplicate Ids",
        asking(user(said()), assistant(call(), call("b")), user(result(), result()), **CONFIG),
        CLAUDE,
    ),
    (
        "tool_config.required",
        "toolConfig field must be defined",
        asking(user(said()), assistant(call()), user(result())),
        CLAUDE,
    ),
    ("text.blank", "must contain non-whitespace text", asking(user(said(" "))), CLAUDE),
    ("text.blank", "must contain non-whitespace text", asking(user(said()), system=[said("\n")]), CLAUDE),
    (
        "text.blank",
        "non-whitespace",
        asking(user(said()), assistant(call()), user(result("a", said(" "))), **CONFIG),
        CLAUDE,
    ),
    ("content.empty", "content field in the Message object is empty", asking(user()), CLAUDE),
    (
        "tool_result.apart",
        "Conversation blocks and tool result blocks cannot",
        asking(user(said()), assistant(call()), user(result(), said()), **CONFIG),
        MISTRAL,
    ),
    (
        "tool_use.input",
        "Provide a json object",
        asking(user(said()), assistant(call(input="{}")), user(result()), **CONFIG),
        CLAUDE,
    ),
    (
        "tools.schema",
        "inputSchema.json.type must be one of",
        asking(user(said()), toolConfig={"tools": [{"toolSpec": {"name": "get", "inputSchema": {"json": {}}}}]}),
        CLAUDE,
    ),
    (
        "length",
        "length greater than or equal to 1",
        asking(user(said()), toolConfig={"tools": [{"toolSpec": {**TOOL["toolSpec"], "description": ""}}]}),
        CLAUDE,
    ),
    (
        "tool_choice.no_tools",
        "tool_choice.type: Field required",
        asking(user(said()), toolConfig={"tools": [], "toolChoice": {"any": {}}}),
        CLAUDE,
    ),
    (
        "tool_choice.no_tools",
        "tool_choice.type: Field required",
        asking(user(said()), additionalModelRequestFields={"tool_choice": {"type": "auto"}}),
        CLAUDE,
    ),
    (
        "tool_choice.name",
        "no tool of this name",
        asking(user(said()), toolConfig={"tools": [TOOL], "toolChoice": {"tool": {"name": "z"}}}),
        CLAUDE,
    ),
    ("tools.duplicate", "used twice", asking(user(said()), toolConfig={"tools": [TOOL, TOOL]}), CLAUDE),
    ("document.name", "document file name can only contain", asking(user(said(), document("a.pdf"))), CLAUDE),
    ("document.name", "more than one consecutive whitespace", asking(user(said(), document("a  b"))), CLAUDE),
    ("document.duplicate", "unique names", asking(user(said(), document(), document())), CLAUDE),
    ("document.text", "text block must accompany a document", asking(user(document())), CLAUDE),
    ("cache.count", "maximum of 4", asking(user(*[each for _ in range(5) for each in (said(), POINT)])), CLAUDE),
    ("cache.ttl_order", "must not come after", asking(user(said(), HOUR), system=[said(), POINT]), CLAUDE),
    ("cache.document", "other than PDF", asking(user(said(), document("a", "csv"), POINT)), CLAUDE),
    (
        "field.unknown",
        "extraneous key",
        asking(user(said()), assistant(call()), user(result("a", said(), cachePoint={})), **CONFIG),
        CLAUDE,
    ),
    (
        "output.closed",
        "additionalProperties",
        asking(user(said()), **schema({"type": "object", "properties": {"a": SCHEMA}, "additionalProperties": False})),
        CLAUDE,
    ),
    (
        "reasoning.unsigned",
        "signature: Field required",
        asking(user(said()), assistant(thought(), said()), user(said())),
        CLAUDE,
    ),
    (
        "reasoning.signed",
        "doesn't support",
        asking(user(said()), assistant(thought(signature="s"), said()), user(said())),
        NOVA,
    ),
    (
        "reasoning.refused",
        "doesn't support",
        asking(user(said()), assistant(thought(), said()), user(said())),
        DEEPSEEK,
    ),
    ("field.unknown", "extraneous key [x]", asking(user({"text": "a", "x": 1})), CLAUDE),
    (
        "field.unknown",
        "extraneous key [cache_control]",
        asking(user(said()), assistant(call(cache_control={})), user(result()), **CONFIG),
        CLAUDE,
    ),
    (
        "thinking.forced_tool",
        "forces tool use",
        asking(user(said()), toolConfig={"tools": [TOOL], "toolChoice": {"any": {}}}, **THINKING),
        CLAUDE,
    ),
    (
        "thinking.budget",
        "at least 1024",
        asking(user(said()), additionalModelRequestFields={"thinking": {"type": "enabled"}}),
        CLAUDE,
    ),
    (
        "thinking.limit",
        "greater than thinking.budget_tokens",
        asking(user(said()), inferenceConfig={"maxTokens": 9}, **THINKING),
        CLAUDE,
    ),
    # the published shape, of which botocore checks little
    ("messages.required", "at least one message", {}, CLAUDE),
    ("union", "exactly one member", asking(user({})), CLAUDE),
    (
        "union",
        "exactly one member",
        asking(user({"type": "tool_use", "toolUseId": "a", "name": "get", "input": {}})),
        CLAUDE,
    ),
    (
        "field.required",
        "must not be null",
        asking(user(said()), assistant(call(None)), user(result()), **CONFIG),
        CLAUDE,
    ),
    (
        "length",
        "less than or equal to 64",
        asking(user(said()), assistant(call("i" * 65)), user(result("i" * 65)), **CONFIG),
        CLAUDE,
    ),
    (
        "pattern",
        "regular expression pattern",
        asking(user(said()), assistant(call("a b")), user(result("a b")), **CONFIG),
        CLAUDE,
    ),
    ("enum", "enum value set", asking({"role": "bot", "content": [said()]}), CLAUDE),
    (
        "enum",
        "enum value set: [png",
        asking(user(said(), {"image": {"format": "bmp", "source": {"bytes": "aGk="}}})),
        CLAUDE,
    ),
    ("range", "less than or equal to 1", asking(user(said()), inferenceConfig={"temperature": 1.5}), CLAUDE),
    ("range", "greater than or equal to 1", asking(user(said()), inferenceConfig={"maxTokens": 0}), CLAUDE),
    ("type", "whole number", asking(user(said()), inferenceConfig={"maxTokens": True}), CLAUDE),
    ("pattern", "regular expression pattern", asking(user(said()), requestMetadata={"user": "ü"}), CLAUDE),
    ("length", "greater than or equal to 1", asking(user(said()), requestMetadata={}), CLAUDE),
    ("type", "must be an array", asking(user(said()), system="x"), CLAUDE),
]


@pytest.fixture(scope="module")
def service() -> Iterator[Simulator]:
    with running_simulator("bedrock", profile="strict") as running:
        yield running


@pytest.mark.parametrize(
    ("rule", "words", "body", "model"), [pytest.param(*case, id=f"{n}-{case[0]}") for n, case in enumerate(BAD)]
)
def test_a_request_that_breaks_a_rule_is_refused_in_the_services_words(
    service: Simulator, rule: str, words: str, body: Any, model: str
) -> None:
    found = DIALECT.codec.breaches(Call("generate", model, False, body))
    assert [breach for breach in found if breach.rule == f"bedrock.{rule}" and words in breach.detail], found
    answer = httpx.post(
        f"{service.url}/model/{model}/converse", json=body, headers={"authorization": "AWS4-HMAC-SHA256 x"}
    )
    assert answer.status_code == 400
    assert answer.headers["x-amzn-errortype"] == "ValidationException"
    assert any(breach.detail in answer.json()["message"] for breach in found)


def test_every_rule_of_the_lint_is_tried_here() -> None:
    tried = {rule for rule, *_ in BAD}
    assert len(tried) >= 38


@given(asked=strategies.conversations(), client=st.sampled_from(["anthropic", "openai"]), data=st.data())
@settings(max_examples=60)
def test_what_clients_of_other_dialects_ask_always_passes(
    asked: Conversation, client: str, data: st.DataObject
) -> None:
    model = data.draw(st.sampled_from([CLAUDE, NOVA, MISTRAL, DEEPSEEK, "m"]))
    try:
        made = plan(get(client), DIALECT, structs.replace(asked, model=model))
    except Unrepresentable:
        return
    assert DIALECT.codec.breaches(made.call()) == []


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

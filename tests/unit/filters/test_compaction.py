"""A request to compact the history: by the service, or by a summary of the model that any upstream gets as text."""

from __future__ import annotations

import json
from typing import Any

import pytest

import dragoman.dialects as registry
from dragoman import translate
from dragoman.dialects.base import SYSTEM_ENVIRONMENT
from dragoman.errors import DragomanError, Unrepresentable
from dragoman.filters.compaction import PROMPT, SUMMARY
from dragoman.model.conversation import ToolChoice
from dragoman.response_stream import ResponseTranslator, translate_whole_reply
from dragoman.wire.http import HttpRequest

QUESTION = {"type": "message", "role": "user", "content": "Fetch it."}
TRIGGER = {"type": "compaction_trigger"}
HISTORY: list[Any] = [
    QUESTION,
    {"type": "function_call", "call_id": "c1", "name": "get", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c1", "output": "42"},
]
TOOL = {"type": "function", "name": "get", "parameters": {"type": "object", "properties": {}}}
CLIENT = registry.get("responses")
FOREIGN = ["anthropic", "openai", "bedrock", "gemini", "kiro", "ollama"]


def planned(items: list[Any], upstream: str, model: str = "m", **more: Any) -> translate.Plan:
    body = {"model": "m", "input": items, "tools": [TOOL], **more}
    call = CLIENT.binding.match(HttpRequest("POST", "/v1/responses", "", (), json.dumps(body).encode()))
    assert call is not None
    target = translate.configure_dialect(registry.get(upstream), {})
    return translate.plan(CLIENT, target, CLIENT.codec.parse_request(call), model=model)


def anthropic_reply(*content: Any, stop: str = "end_turn") -> bytes:
    usage = {"input_tokens": 1, "output_tokens": 1}
    reply = {"type": "message", "id": "msg_1", "role": "assistant", "model": "m", "stop_reason": stop, "usage": usage}
    return json.dumps({**reply, "content": content}).encode()


def compacted(summary: str) -> Any:
    """The item that a client gets for this summary."""
    plan = planned([*HISTORY, TRIGGER], "anthropic")
    reply, _ = translate_whole_reply(plan, anthropic_reply({"type": "text", "text": summary}), SYSTEM_ENVIRONMENT)
    [item] = json.loads(reply)["output"]
    return item


@pytest.mark.parametrize("upstream", [*FOREIGN, "responses"])
def test_the_model_is_asked_for_a_summary(upstream: str) -> None:
    plan = planned([*HISTORY, TRIGGER], upstream, text={"format": {"type": "json_object"}})
    sent = plan.request().body.decode()
    assert PROMPT in sent and "compaction_trigger" not in sent
    assert "42" in sent
    assert plan.translated.output.kind == "text"
    assert ("compaction.by_model", "changed", "input[3]") in [(n.rule, n.action, n.at) for n in plan.notes]
    if upstream == "responses":
        assert plan.translated.tool_choice == ToolChoice("none") and plan.translated.tools


@pytest.mark.parametrize(("model", "asks"), [("gpt-5.4", True), ("gpt-6.1-sol", True), ("gpt-5", False)])
def test_a_service_that_compacts_gets_the_item(model: str, asks: bool) -> None:
    plan = planned([*HISTORY, TRIGGER], "responses", model)
    body = plan.call().body
    assert isinstance(body, dict) and isinstance(body["input"], list)
    assert (body["input"][-1] == TRIGGER) is asks
    assert plan.keeps_frames is asks


@pytest.mark.parametrize("upstream", [*FOREIGN, "responses"])
@pytest.mark.parametrize("summary", ["It is 42.", "Grüße \U0001f600", "\ud83d"], ids=["plain", "wide", "surrogate"])
def test_a_summary_comes_back_as_text_of_the_user(summary: str, upstream: str) -> None:
    item = compacted(summary)
    assert item["type"] == "compaction" and item["id"].startswith("cmp_")
    plan = planned([QUESTION, item, {**QUESTION, "content": "Go on."}], upstream)
    texts = [
        (message.role, block.text)  # type: ignore[union-attr]
        for message in planned([QUESTION, item], "anthropic").translated.messages
        for block in message.blocks
    ]
    assert ("user", f"{SUMMARY}\n\n{summary}") in texts
    assert "compaction.as_text" in {note.rule for note in plan.notes}
    assert SUMMARY in plan.request().body.decode()


@pytest.mark.parametrize("data", ["gAAAA", "dragoman:no base64", "dragoman:/w=="])
def test_what_only_its_service_reads_is_refused_for_others_and_passes_to_its_dialect(data: str) -> None:
    item = {"type": "compaction", "encrypted_content": data}
    with pytest.raises(Unrepresentable) as raised:
        planned([QUESTION, item], "openai")
    assert raised.value.at == "input[1]"
    body = planned([QUESTION, item], "responses").call().body
    assert isinstance(body, dict) and isinstance(body["input"], list)
    assert body["input"][1] == item


def streamed(frames: list[dict[str, Any]], upstream: str) -> list[dict[str, Any]]:
    plan = planned([*HISTORY, TRIGGER], upstream, stream=True)
    stream = ResponseTranslator(plan, SYSTEM_ENVIRONMENT)
    data = b"".join(stream.feed(f"event: {each['type']}\ndata: {json.dumps(each)}\n\n".encode()) for each in frames)
    lines = (data + stream.close()).decode().splitlines()
    return [json.loads(line[6:]) for line in lines if line.startswith("data: ")]


def test_a_stream_has_the_one_item_and_nothing_else() -> None:
    """Also from an upstream of the same dialect, whose frames announce the blocks that are left out."""
    whole = {"id": "resp_1", "object": "response", "model": "m", "status": "in_progress", "output": []}
    part = {"type": "output_text", "text": "It is 42.", "annotations": []}
    message = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [part]}
    at = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
    frames: list[dict[str, Any]] = [
        {"type": "response.created", "response": whole},
        {"type": "response.in_progress", "response": whole},
        {"type": "response.output_item.added", "output_index": 0, "item": {**message, "content": []}},
        {"type": "response.content_part.added", **at, "part": {**part, "text": ""}},
        {"type": "response.output_text.delta", **at, "delta": "It is "},
        {"type": "response.output_text.delta", **at, "delta": "42."},
        {"type": "response.output_text.done", **at, "text": "It is 42."},
        {"type": "response.content_part.done", **at, "part": part},
        {"type": "response.output_item.done", "output_index": 0, "item": message},
        {"type": "response.completed", "response": {**whole, "status": "completed", "output": [message]}},
    ]
    events = streamed([{**frame, "sequence_number": at} for at, frame in enumerate(frames)], "responses")
    kinds = ["created", "in_progress", "output_item.added", "output_item.done", "completed"]
    assert [event["type"] for event in events] == [f"response.{kind}" for kind in kinds]
    [item] = events[-1]["response"]["output"]
    assert item == events[3]["item"]
    assert item["encrypted_content"] == compacted("It is 42.")["encrypted_content"]


@pytest.mark.parametrize(
    "reply",
    [
        anthropic_reply({"type": "text", "text": " "}),
        anthropic_reply({"type": "tool_use", "id": "t", "name": "get", "input": {}}, stop="tool_use"),
        anthropic_reply({"type": "text", "text": "I cannot help."}, stop="refusal"),
    ],
    ids=["blank", "call", "refusal"],
)
def test_a_history_is_never_replaced_by_nothing(reply: bytes) -> None:
    plan = planned([*HISTORY, TRIGGER], "anthropic")
    with pytest.raises(DragomanError, match="no summary"):
        translate_whole_reply(plan, reply, SYSTEM_ENVIRONMENT)

"""A faulty stream gets the same verdict whether the client uses the upstream's dialect or another.

Each dialect has two tables of odd streams. `BROKEN`: a call or block is dropped, merged or left open, or the end is
missing, and the client gets its dialect's error. `HARMLESS`: nothing is lost, and the stream ends well. Other tests put
one frame that cannot be read into a good stream (docs/decisions/responses.md#d7).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import pytest

import dragoman.dialects as registry
from dragoman.conformance import laws
from dragoman.conformance.laws import fixed_environment
from dragoman.dialects.base import Dialect
from dragoman.gateway.response_modes import PassThrough, passes_frames
from dragoman.model.assemble import assemble_reply
from dragoman.model.blocks import Text, ToolCall
from dragoman.model.conversation import Conversation, Message, StopReason, ToolSpec
from dragoman.model.events import Failed, Finished
from dragoman.response_stream import ResponseTranslator
from dragoman.translate import Plan, TranslationSettings, plan
from dragoman.wire.eventstream import encode_event
from tests.anthropic_client import parse_sse as data_of

DIALECTS = sorted(registry.names())
Event: TypeAlias = tuple[str, Any]  # kind, data; bytes instead of a document are sent as they are
Stream: TypeAlias = list[Event]


# --- how each dialect writes a frame


def sse(kind: str, data: Any) -> bytes:
    body = data if isinstance(data, bytes) else json.dumps(data).encode()
    return (b"event: %b\n" % kind.encode() if kind else b"") + b"data: %b\n\n" % body


def message(kind: str, data: Any) -> bytes:
    return encode_event(kind, data if isinstance(data, bytes) else json.dumps(data).encode())


FRAMING: dict[str, Callable[[str, Any], bytes]] = {
    "anthropic": sse, "openai": sse, "responses": sse, "gemini": sse, "bedrock": message, "kiro": message,
}  # fmt: skip


# --- anthropic


def _a(kind: str, **fields: Any) -> Event:
    return kind, {"type": kind, **fields}


A_START = _a("message_start", message={
    "id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": [], "stop_reason": None,
    "stop_sequence": None, "usage": {"input_tokens": 1, "output_tokens": 1},
})  # fmt: skip


def _a_text(index: int = 0, words: str = "Hello") -> Stream:
    return [
        _a("content_block_start", index=index, content_block={"type": "text", "text": ""}),
        _a("content_block_delta", index=index, delta={"type": "text_delta", "text": words}),
        _a("content_block_stop", index=index),
    ]


def _a_call(index: int = 1, call_id: str = "toolu_1", name: str = "read") -> Stream:
    return [
        _a("content_block_start", index=index, content_block={"type": "tool_use", "id": call_id, "name": name, "input": {}}),
        _a("content_block_delta", index=index, delta={"type": "input_json_delta", "partial_json": '{"path":"a"}'}),
        _a("content_block_stop", index=index),
    ]  # fmt: skip


A_STOP = _a("message_delta", delta={"stop_reason": "tool_use", "stop_sequence": None}, usage={"output_tokens": 9})
A_END = [A_STOP, _a("message_stop")]
A_GOOD = [A_START, *_a_text(), *_a_call(), *A_END]
ANTHROPIC_BROKEN: dict[str, Stream] = {
    "deltas of a block that never began": [A_START, *_a_text(), *_a_call()[1:2], *A_END],
    "a start is missing": [A_START, *_a_text(), *_a_call()[1:], *A_END],
    "two open calls with one index": [A_START, *_a_call(0)[:2], *_a_call(0, "toolu_2")[:2], *_a_call(0)[2:], *A_END],
    "two calls with one index": [A_START, *_a_call(0), *_a_call(0, "toolu_2"), *A_END],
    "the end of a block that never began": [A_START, *_a_text(), _a("content_block_stop", index=5), *A_END],
    "a second message_start": [A_START, *_a_text(), A_START, *_a_call(), *A_END],
    "no message_start": [*_a_text(), *_a_call(), *A_END],
    "no message_stop": [A_START, *_a_text(), *_a_call(), A_STOP],
    "no end at all": [A_START, *_a_text(), *_a_call()],
    "a call left open": [A_START, *_a_text(), *_a_call()[:2], *A_END],
    "a text left open": [A_START, *_a_text()[:2], *A_END],
    "a call after the stop": [A_START, *_a_text(), A_STOP, *_a_call(), _a("message_stop")],
    "a call without a name": [A_START, *_a_call(0, "toolu_1", ""), *A_END],
    "a call without an id": [A_START, *_a_call(0, ""), *A_END],
    "text in a call": [A_START, *_a_call(0)[:1], _a_text()[1], *_a_call(0)[1:], *A_END],
    "arguments in a text": [A_START, *_a_text()[:1], _a_call(0)[1], *_a_text()[1:], *A_END],
    "a delta without an index": [A_START, *_a_call(0)[:1], _a("content_block_delta", delta=_a_call()[1][1]["delta"]), *_a_call(0)[2:], *A_END],
}  # fmt: skip
ANTHROPIC_HARMLESS: dict[str, Stream] = {
    "as it should be": A_GOOD,
    "no event lines": [("", data) for _, data in A_GOOD],
    "pings and unknown events": [A_START, _a("ping"), *_a_text(), _a("x_news", a=1), *_a_call(), *A_END],
    "an end sent twice": [A_START, *_a_text(), _a("content_block_stop", index=0), *_a_call(), *A_END],
    "the stop before the last end": [A_START, *_a_text(), *_a_call()[:2], A_STOP, *_a_call()[2:], _a("message_stop")],
    "a second reason": [A_START, *_a_text(), *_a_call(), A_STOP, _a("message_delta", delta={"stop_reason": "end_turn"}), A_END[1]],
    "odd figures": [A_START, *_a_text(), *_a_call(), _a("message_delta", delta={"stop_reason": "tool_use"}, usage={"output_tokens": "9"}), A_END[1]],
    "words behind the end": [*A_GOOD, *_a_text(7)],
    "indices that begin at one": [A_START, *_a_text(1), *_a_call(2), *A_END],
}  # fmt: skip


# --- openai


def _o(delta: dict[str, Any] | None = None, stop: str | None = None, **fields: Any) -> Event:
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": stop}]
    return "", {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": choices, **fields}


def _o_call(
    index: int | None = 0, call_id: str | None = "call_1", name: str | None = "read", words: str = '{"path":"a"}'
) -> Event:
    entry: dict[str, Any] = {"type": "function", "function": {"arguments": words}}
    entry |= {} if index is None else {"index": index}
    entry |= {} if call_id is None else {"id": call_id}
    entry["function"] |= {} if name is None else {"name": name}
    return _o({"tool_calls": [entry]})


O_ROLE, O_TEXT = _o({"role": "assistant", "content": ""}), _o({"content": "Hello"})
O_DONE: Event = ("", b"[DONE]")
O_END = [_o({}, "tool_calls"), O_DONE]
OPENAI_BROKEN: dict[str, Stream] = {
    "arguments for a call that never began": [O_ROLE, O_TEXT, _o_call(0, None, None), *O_END],
    "a call without a name": [O_ROLE, _o_call(0, "call_1", None), *O_END],
    "no finish_reason": [O_ROLE, O_TEXT, _o_call(), O_DONE],
    "no end at all": [O_ROLE, O_TEXT, _o_call()],
    "text after the finish_reason": [O_ROLE, O_TEXT, _o({}, "stop"), O_TEXT, O_DONE],
    "a call after the finish_reason": [O_ROLE, O_TEXT, _o({}, "stop"), _o_call(), O_DONE],
    "an error": [O_ROLE, O_TEXT, ("", {"error": {"message": "no"}})],
    "an error event of another shape": [O_ROLE, O_TEXT, ("error", {"message": "no"}), O_DONE],
    "an error event in plain words": [O_ROLE, O_TEXT, ("error", b"no"), O_DONE],
}
OPENAI_HARMLESS: dict[str, Stream] = {
    "as it should be": [O_ROLE, O_TEXT, _o_call(), *O_END],
    "no [DONE]": [O_ROLE, O_TEXT, _o_call(), O_END[0]],
    "no index": [O_ROLE, O_TEXT, _o_call(None), *O_END],
    "an id in every piece": [O_ROLE, O_TEXT, _o_call(0, "call_1", "read", '{"path":'), _o_call(0, "call_1", None, '"a"}'), *O_END],
    "the call sent once more": [O_ROLE, O_TEXT, _o_call(), _o_call(), *O_END],
    "an empty name in later pieces": [O_ROLE, O_TEXT, _o_call(0, "call_1", "read", '{"path":'), _o_call(0, "", "", '"a"}'), *O_END],
    "odd figures": [O_ROLE, O_TEXT, _o_call(), O_END[0], _o(usage={"prompt_tokens": "many"}), O_DONE],
    "figures in the last frame": [O_ROLE, O_TEXT, _o_call(), _o({}, "tool_calls", usage={"prompt_tokens": 1, "completion_tokens": 2}), O_DONE],
    "frames of nothing": [O_ROLE, ("", b"null"), O_TEXT, ("", b""), _o_call(), *O_END],
    "words behind the end": [O_ROLE, O_TEXT, _o_call(), *O_END, O_TEXT],
}  # fmt: skip


# --- responses


def _r(kind: str, **fields: Any) -> Event:
    return f"response.{kind}", {"type": f"response.{kind}", "sequence_number": 1, **fields}


R_ENVELOPE = {
    "id": "resp_1",
    "object": "response",
    "created_at": 1,
    "model": "m",
    "status": "in_progress",
    "output": [],
}
R_MESSAGE = {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed",
             "content": [{"type": "output_text", "text": "Hello", "annotations": []}]}  # fmt: skip


def _r_item(call_id: str = "call_1", item_id: str = "fc_1") -> dict[str, Any]:
    return {"id": item_id, "type": "function_call", "call_id": call_id, "name": "read", "arguments": '{"path":"a"}', "status": "completed"}  # fmt: skip


def _r_text(index: int = 0) -> Stream:
    place = {"item_id": "msg_1", "output_index": index, "content_index": 0}
    return [
        _r("output_item.added", output_index=index, item={**R_MESSAGE, "content": [], "status": "in_progress"}),
        _r("content_part.added", **place, part={"type": "output_text", "text": "", "annotations": []}),
        _r("output_text.delta", **place, delta="Hello"),
        _r("output_text.done", **place, text="Hello"),
        _r("content_part.done", **place, part=R_MESSAGE["content"][0]),
        _r("output_item.done", output_index=index, item=R_MESSAGE),
    ]


def _r_call(index: int = 1, call_id: str = "call_1", item_id: str = "fc_1") -> Stream:
    item, place = _r_item(call_id, item_id), {"item_id": item_id, "output_index": index}
    return [
        _r("output_item.added", output_index=index, item={**item, "arguments": "", "status": "in_progress"}),
        _r("function_call_arguments.delta", **place, delta='{"path":"a"}'),
        _r("function_call_arguments.done", **place, arguments='{"path":"a"}'),
        _r("output_item.done", output_index=index, item=item),
    ]


def _r_end(*output: dict[str, Any]) -> Event:
    usage = {"input_tokens": 1, "output_tokens": 2, "total_tokens": 3}
    return _r("completed", response={**R_ENVELOPE, "status": "completed", "output": [*output], "usage": usage})


R_START, R_END = _r("created", response=R_ENVELOPE), _r_end(R_MESSAGE, _r_item())
R_GOOD = [R_START, *_r_text(), *_r_call(), R_END]
RESPONSES_BROKEN: dict[str, Stream] = {
    "arguments for an item that was never added": [R_START, *_r_text(), *_r_call()[1:2], _r_end(R_MESSAGE)],
    "two calls with one output_index": [R_START, *_r_call(0), *_r_call(0, "call_2", "fc_2"), _r_end()],
    "two open calls with one output_index": [R_START, *_r_call(0)[:2], *_r_call(0, "call_2", "fc_2")[:2], _r_end()],
    "a call in place of a message": [R_START, *_r_text(0), *_r_call(0), _r_end()],
    "an item_id of another item": [R_START, *_r_call(0)[:1], *_r_call(1, "call_2", "fc_2")[:1],
                                   _r("function_call_arguments.delta", item_id="fc_1", output_index=1, delta="{}"), R_END],
    "a call left open": [R_START, *_r_text(), *_r_call()[:1], _r("function_call_arguments.delta", item_id="fc_1", output_index=1, delta='{"path":'), _r_end(R_MESSAGE)],
    "a call that the end does not list": [R_START, *_r_text(), *_r_call()[:2], _r_end(R_MESSAGE)],
    "a call left open without a word": [R_START, *_r_text(), *_r_call()[:1], _r_end(R_MESSAGE)],
    "other arguments at the end": [R_START, *_r_call(0)[:2], _r("output_item.done", output_index=0, item={**_r_item(), "arguments": '{"path":"b"}'}), _r_end()],
    "a call without a name": [R_START, _r("output_item.done", output_index=0, item={**_r_item(), "name": ""}), _r_end()],
    "no end": [R_START, *_r_text(), *_r_call()],
    "a failure": [R_START, *_r_text(), _r("failed", response={**R_ENVELOPE, "status": "failed", "error": {"code": "server_error", "message": "no"}})],
}  # fmt: skip
RESPONSES_HARMLESS: dict[str, Stream] = {
    "as it should be": R_GOOD,
    "no event lines": [("", data) for _, data in R_GOOD],
    "items done and never added": [R_START, *_r_text()[-1:], *_r_call()[-1:], R_END],
    "an item added twice": [R_START, *_r_text(), *_r_call()[:1], *_r_call(), R_END],
    "an item done twice": [R_START, *_r_text(), *_r_call(), *_r_call()[-1:], R_END],
    "an empty output at the end": [R_START, *_r_text(), *_r_call(), _r_end()],
    "a call sent only at the end": [R_START, *_r_text(), R_END],
    "a call sent by deltas alone": [R_START, *_r_text(), *_r_call()[:2], _r_end()],
    "no end of the arguments": [R_START, *_r_text(), *_r_call()[:2], *_r_call()[3:], R_END],
    "another item id at the end": [R_START, *_r_text(), *_r_call()[:3], _r("output_item.done", output_index=1, item=_r_item("call_1", "fc_9")), R_END],
    "one id for all items": [R_START, *_r_call(0, "call_1", "x"), *_r_call(1, "call_2", "x"), _r_end()],
    "odd figures": [*R_GOOD[:-1], _r("completed", response={**R_END[1]["response"], "usage": {"input_tokens": "1"}})],
    "words behind the end": [*R_GOOD, *_r_text(7)],
}  # fmt: skip


# --- bedrock


def _b_text(index: int = 0) -> Stream:
    return [
        ("contentBlockDelta", {"contentBlockIndex": index, "delta": {"text": "Hello"}}),
        ("contentBlockStop", {"contentBlockIndex": index}),
    ]


def _b_call(index: int = 1, call_id: str = "tooluse_1", name: str = "read") -> Stream:
    return [
        ("contentBlockStart", {"contentBlockIndex": index, "start": {"toolUse": {"toolUseId": call_id, "name": name}}}),
        ("contentBlockDelta", {"contentBlockIndex": index, "delta": {"toolUse": {"input": '{"path":"a"}'}}}),
        ("contentBlockStop", {"contentBlockIndex": index}),
    ]


B_START: Event = ("messageStart", {"role": "assistant"})
B_STOP: Event = ("messageStop", {"stopReason": "tool_use"})
B_USAGE: Event = ("metadata", {"usage": {"inputTokens": 1, "outputTokens": 2, "totalTokens": 3}, "metrics": {}})
B_END = [B_STOP, B_USAGE]
BEDROCK_BROKEN: dict[str, Stream] = {
    "arguments of a call that never began": [B_START, *_b_text(), *_b_call()[1:], *B_END],
    "two calls with one index": [B_START, *_b_call(0), *_b_call(0, "tooluse_2"), *B_END],
    "two open calls with one index": [B_START, *_b_call(0)[:2], *_b_call(0, "tooluse_2")[:2], *B_END],
    "a second messageStart": [B_START, *_b_text(), B_START, *_b_call(), *B_END],
    "no messageStart": [*_b_text(), *_b_call(), *B_END],
    "no messageStop": [B_START, *_b_text(), *_b_call()],
    "a call left open": [B_START, *_b_text(), *_b_call()[:2], *B_END],
    "a call after the stop": [B_START, *_b_text(), B_STOP, *_b_call(), B_USAGE],
    "a call without a name": [B_START, *_b_call(0, "tooluse_1", ""), *B_END],
    "a call without an id": [B_START, *_b_call(0, ""), *B_END],
    "text in a call": [B_START, *_b_call(0)[:1], _b_text()[0], *_b_call(0)[1:], *B_END],
    "a call that the service dropped": [B_START, *_b_text(), ("messageStop", {"stopReason": "malformed_tool_use"}), B_USAGE],
}  # fmt: skip
BEDROCK_HARMLESS: dict[str, Stream] = {
    "as it should be": [B_START, *_b_text(), *_b_call(), *B_END],
    "no metadata": [B_START, *_b_text(), *_b_call(), B_STOP],
    "a stop sent twice": [B_START, *_b_text(), *_b_call(), B_STOP, *B_END],
    "an unknown event": [B_START, *_b_text(), ("xNews", {"a": 1}), *_b_call(), *B_END],
    "odd figures": [B_START, *_b_text(), *_b_call(), B_STOP, ("metadata", {"usage": {"inputTokens": "1"}})],
}


# --- gemini and kiro


def _g(*parts: dict[str, Any], stop: str | None = None, **fields: Any) -> Event:
    candidate: dict[str, Any] = {"content": {"role": "model", "parts": [*parts]}, "index": 0}
    candidate |= {} if stop is None else {"finishReason": stop}
    return "", {"candidates": [candidate], "modelVersion": "m", "responseId": "r", **fields}


G_TEXT, G_CALL = _g({"text": "Hello"}), _g({"functionCall": {"name": "read", "args": {"path": "a"}}})
G_END = _g({"text": ""}, stop="STOP", usageMetadata={"promptTokenCount": 1, "candidatesTokenCount": 2})
G_PIECES = [
    _g({"functionCall": {"name": "read", "willContinue": True}}),
    _g({"functionCall": {"partialArgs": [{"jsonPath": "$.path", "stringValue": "", "willContinue": True}], "willContinue": True}}),
    _g({"functionCall": {"partialArgs": [{"jsonPath": "$.path", "stringValue": "a"}], "willContinue": True}}),
    _g({"functionCall": {}}),
]  # fmt: skip
GEMINI_BROKEN: dict[str, Stream] = {
    "no finishReason": [G_TEXT, G_CALL],
    "a call after the finishReason": [G_TEXT, G_END, G_CALL],
    "a call without a name": [G_TEXT, _g({"functionCall": {"args": {}}}), G_END],
    "a call that the service dropped": [G_TEXT, _g(stop="MALFORMED_FUNCTION_CALL", finishMessage="print(read(")],
    "the second call dropped": [G_TEXT, G_CALL, _g({"text": ""}, stop="MALFORMED_FUNCTION_CALL")],
    "a call in pieces left open": [G_TEXT, *G_PIECES[:2], G_END],
    "a call of no tool dropped": [G_TEXT, _g({"text": ""}, stop="UNEXPECTED_TOOL_CALL")],
}
GEMINI_HARMLESS: dict[str, Stream] = {
    "as it should be": [G_TEXT, G_CALL, G_END],
    "odd figures": [G_TEXT, G_CALL, _g({"text": ""}, stop="STOP", usageMetadata={"promptTokenCount": "1"})],
    "figures after the end": [G_TEXT, G_CALL, G_END, _g(usageMetadata={"promptTokenCount": 1})],
    "arguments in pieces": [G_TEXT, *G_PIECES, G_END],
}


def _k_call(call_id: str = "tooluse_1", name: str = "read", *, stop: bool = True) -> Stream:
    head = {"toolUseId": call_id, "name": name}
    pieces: Stream = [("toolUseEvent", {**head, "input": '{"path":'}), ("toolUseEvent", {**head, "input": '"a"}'})]
    return [*pieces, ("toolUseEvent", {**head, "stop": True})] if stop else pieces


K_TEXT: Event = ("assistantResponseEvent", {"content": "Hello", "modelId": "m"})
K_END: Event = ("contextUsageEvent", {"contextUsagePercentage": 1.5})
KIRO_BROKEN: dict[str, Stream] = {
    "nothing": [],
    "a call without a name": [K_TEXT, *_k_call("tooluse_1", ""), K_END],
    "a piece of no call": [K_TEXT, ("toolUseEvent", {"input": "{}"}), K_END],
    "a call that the service dropped": [K_TEXT, ("metadataEvent", {"stopReason": "MALFORMED_TOOL_USE"}), K_END],
}
KIRO_HARMLESS: dict[str, Stream] = {
    "as it should be": [K_TEXT, *_k_call(), K_END],
    "no figures": [K_TEXT, *_k_call()],
    "a percentage as text": [K_TEXT, *_k_call(), ("contextUsageEvent", {"contextUsagePercentage": "1.5"})],
    "a negative percentage": [K_TEXT, *_k_call(), ("contextUsageEvent", {"contextUsagePercentage": -3})],
    "an absurd percentage": [K_TEXT, *_k_call(), ("contextUsageEvent", {"contextUsagePercentage": 1e30})],
    "no percentage": [K_TEXT, *_k_call(), ("contextUsageEvent", {})],
    "odd counts": [K_TEXT, *_k_call(), ("metadataEvent", {"tokenUsage": {"outputTokens": "9", "uncachedInputTokens": -1}})],
    "counts that are none": [K_TEXT, *_k_call(), ("metadataEvent", {"tokenUsage": 7, "stopReason": 3})],
    "odd ids": [("messageMetadataEvent", {"utteranceId": 5}), ("assistantResponseEvent", {"content": "Hello", "modelId": 7}), *_k_call(), K_END],
    "a call sent twice": [K_TEXT, *_k_call(), *_k_call(), K_END],
}  # fmt: skip

BROKEN = {
    "anthropic": ANTHROPIC_BROKEN, "openai": OPENAI_BROKEN, "responses": RESPONSES_BROKEN,
    "bedrock": BEDROCK_BROKEN, "gemini": GEMINI_BROKEN, "kiro": KIRO_BROKEN,
}  # fmt: skip
HARMLESS = {
    "anthropic": ANTHROPIC_HARMLESS, "openai": OPENAI_HARMLESS, "responses": RESPONSES_HARMLESS,
    "bedrock": BEDROCK_HARMLESS, "gemini": GEMINI_HARMLESS, "kiro": KIRO_HARMLESS,
}  # fmt: skip


def rows(table: dict[str, dict[str, Stream]]) -> Iterable[Any]:
    for dialect, streams in table.items():
        for title, stream in streams.items():
            yield pytest.param(dialect, stream, id=f"{dialect}: {title}")


# --- what a client sees


def planned(client: str, upstream: str, **settings: Any) -> Plan:
    conversation = Conversation("model-1", (Message("user", (Text("go"),)),), stream=True)
    return plan(
        registry.get(client),
        registry.get(upstream),
        conversation,
        settings=TranslationSettings(raw_tools="off", **settings),
    )


def translated(
    translation_plan: Plan, data: bytes, *, bytewise: bool = False, is_pass_through: bool = False
) -> tuple[bytes, ResponseTranslator]:
    response = (
        PassThrough(translation_plan, fixed_environment())
        if is_pass_through
        else ResponseTranslator(translation_plan, fixed_environment())
    )
    pieces = [data[at : at + 1] for at in range(len(data))] if bytewise else [data]
    return b"".join([*map(response.feed, pieces), response.close()]), response


def plans_to_all_clients(dialect: str) -> Iterable[tuple[Plan, bool]]:
    """Every client, and the same dialect in all its ways: bytes that pass, frames that are kept, and written anew."""
    for client in DIALECTS:
        yield planned(client, dialect), False
    yield planned(dialect, dialect, repair=True), False
    yield planned(dialect, dialect), True


def ends_well(client: Dialect, out: bytes) -> bool:
    events = laws.decode_events(client, out)
    assert isinstance(events[-1], Finished | Failed)
    return isinstance(events[-1], Finished)


@pytest.mark.parametrize(("dialect", "stream"), [*rows(BROKEN)])
def test_a_broken_stream_ends_with_the_clients_error(dialect: str, stream: Stream) -> None:
    data = b"".join(FRAMING[dialect](*event) for event in stream)
    for translation_plan, is_pass_through in plans_to_all_clients(dialect):
        for bytewise in (False, True):
            out, response = translated(translation_plan, data, bytewise=bytewise, is_pass_through=is_pass_through)
            assert response.fault is not None, (translation_plan.client.name, is_pass_through, out)
            assert not ends_well(translation_plan.client, out), (translation_plan.client.name, is_pass_through, out)
            if (
                translation_plan.client.name == "openai"
            ):  # its SDKs look for this field alone, and take `[DONE]` for a good end
                assert b'"error":' in out, (is_pass_through, out)


@pytest.mark.parametrize(("dialect", "stream"), [*rows(HARMLESS)])
def test_a_harmless_oddity_passes(dialect: str, stream: Stream) -> None:
    data = b"".join(FRAMING[dialect](*event) for event in stream)
    for translation_plan, is_pass_through in plans_to_all_clients(dialect):
        for bytewise in (False, True):
            out, response = translated(translation_plan, data, bytewise=bytewise, is_pass_through=is_pass_through)
            assert response.fault is None, (translation_plan.client.name, is_pass_through, response.fault)
            assert ends_well(translation_plan.client, out), (translation_plan.client.name, is_pass_through, out)
            reply = assemble_reply(laws.decode_events(translation_plan.client, out))
            calls = [block for block in reply.choices[0].blocks if isinstance(block, ToolCall)]
            assert [json.loads(call.arguments or "{}") for call in calls][:1] == [{"path": "a"}], out
            assert len(calls) == len({call.id for call in calls})


def test_calls_that_share_an_index_are_not_passed_on_as_they_came() -> None:
    """Some services number all calls 0. Their frames are written anew, in the same dialect, too: clients merge them."""
    stream = [O_ROLE, _o_call(0, "call_1"), _o_call(0, "call_2"), *O_END]
    data = b"".join(FRAMING["openai"](*event) for event in stream)
    tools = (ToolSpec("read", schema={"type": "object"}),)
    conversation = Conversation("model-1", (Message("user", (Text("go"),)),), tools=tools, stream=True)
    translation_plan = plan(
        registry.get("openai"), registry.get("openai"), conversation, settings=TranslationSettings(raw_tools="off")
    )
    assert not passes_frames(translation_plan)
    out, _ = translated(translation_plan, data)
    calls = [
        call for frame in data_of(out) for choice in frame["choices"] for call in choice["delta"].get("tool_calls", ())
    ]
    assert [(call["index"], call["id"]) for call in calls if "id" in call] == [(0, "call_1"), (1, "call_2")]


def test_a_gemini_call_in_pieces_that_a_limit_cut_is_not_complete() -> None:
    """An open call is closed uncompleted where the response stopped at a limit (docs/decisions/responses.md#d7)."""
    stream = [G_TEXT, *G_PIECES[:2], _g({"text": ""}, stop="MAX_TOKENS")]
    data = b"".join(FRAMING["gemini"](*event) for event in stream)
    for translation_plan, is_pass_through in plans_to_all_clients("gemini"):
        out, response = translated(translation_plan, data, is_pass_through=is_pass_through)
        reply = assemble_reply(laws.decode_events(translation_plan.client, out))
        assert response.fault is None and reply.choices[0].stop.reason is StopReason.LENGTH, (
            translation_plan.client.name
        )


def test_the_error_field_of_old_llama_cpp_servers_is_the_error() -> None:
    """They write `error:` where others write `data:`; by the specification of SSE it is nothing."""
    data = b"".join(FRAMING["openai"](*event) for event in (O_ROLE, O_TEXT))
    data += b'error: {"code":400,"message":"too long","type":"exceed_context_size_error"}\n\n'
    for translation_plan, is_pass_through in plans_to_all_clients("openai"):
        for bytewise in (False, True):
            out, response = translated(translation_plan, data, bytewise=bytewise, is_pass_through=is_pass_through)
            assert response.fault is not None and response.fault.kind == "context_full", (
                translation_plan.client.name,
                is_pass_through,
            )
            assert b"too long" in out and not ends_well(translation_plan.client, out)


@pytest.mark.parametrize("pieces", [['{"path":"a"}'], ['{"path":', '"a"}']])
def test_calls_that_share_index_and_name_and_have_no_ids_are_not_merged(pieces: list[str]) -> None:
    """The name comes with every piece. Arguments that are whole get no more: what follows is another call."""
    calls = [_o_call(0, "", "read", piece) for _ in range(3) for piece in [*pieces, ""]]
    data = b"".join(FRAMING["openai"](*event) for event in [O_ROLE, *calls, *O_END])
    for client in DIALECTS:
        for bytewise in (False, True):
            out, response = translated(planned(client, "openai"), data, bytewise=bytewise)
            found = assemble_reply(laws.decode_events(registry.get(client), out)).choices[0].blocks
            arguments = [json.loads(block.arguments) for block in found if isinstance(block, ToolCall)]
            assert arguments == [{"path": "a"}] * 3 and response.fault is None, (client, out)


# --- one frame that cannot be read

BAD = {"not JSON": b'{"type": "x', "no object": b"[1]", "a number": b"5", "no UTF-8": b'{"id": "\xff"}'}
GOOD: dict[str, Stream] = {dialect: streams["as it should be"] for dialect, streams in HARMLESS.items()}


def bad_frame(dialect: str, kind: str) -> bytes:
    name = {"bedrock": "contentBlockDelta", "kiro": "assistantResponseEvent"}.get(dialect, "")
    return FRAMING[dialect](name, BAD[kind])


@pytest.mark.parametrize("kind", BAD)
@pytest.mark.parametrize("dialect", GOOD)
def test_a_frame_that_cannot_be_read_passes_in_its_own_dialect(dialect: str, kind: str) -> None:
    frames = [FRAMING[dialect](*event) for event in GOOD[dialect]]
    bad = bad_frame(dialect, kind)
    for at in range(1, len(frames)):
        data = b"".join([*frames[:at], bad, *frames[at:]])
        for is_pass_through in (False, True):
            out, response = translated(planned(dialect, dialect), data, is_pass_through=is_pass_through)
            assert response.fault is None and bad in out
            assert [(note.rule, note.action) for note in response.notes].count(("stream.unread_frame", "changed")) == 1
            if is_pass_through:
                assert out == data


@pytest.mark.parametrize("kind", BAD)
@pytest.mark.parametrize("dialect", GOOD)
def test_a_frame_that_cannot_be_read_is_left_out_unless_a_block_is_open(dialect: str, kind: str) -> None:
    frames = [FRAMING[dialect](*event) for event in GOOD[dialect]]
    verdicts = set[bool]()
    for at in range(1, len(frames)):
        data = b"".join([*frames[:at], bad_frame(dialect, kind), *frames[at:]])
        decoder = registry.get(dialect).codec.decoder(Conversation("m", ()), fixed_environment())
        frame_decoder = registry.get(dialect).binding.frame_decoder()
        for frame in frame_decoder.feed(b"".join(frames[:at])):
            decoder.feed(frame)
        for client in DIALECTS:
            translation_plan = planned(client, dialect, repair=True)
            out, response = translated(translation_plan, data)
            assert (response.fault is not None) == decoder.is_open, (client, at, response.fault)
            assert ends_well(translation_plan.client, out) != decoder.is_open
            noted = ("stream.unread_frame", "dropped") in [(note.rule, note.action) for note in response.notes]
            assert noted != decoder.is_open
        verdicts.add(decoder.is_open)
    assert True in verdicts


def test_an_error_that_cannot_be_read_is_an_error() -> None:
    data = b"".join(FRAMING["anthropic"](*event) for event in A_GOOD[:4]) + b"event: error\ndata: busy\n\n"
    for client in DIALECTS:
        out, response = translated(planned(client, "anthropic"), data)
        assert response.fault is not None and not ends_well(registry.get(client), out)

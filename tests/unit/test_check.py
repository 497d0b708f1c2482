"""`dragoman check` and the simulator agree with what real services accept and send."""

from __future__ import annotations

import json
from typing import Any

import pytest

import dragoman.dialects as registry
from dragoman.cli import main
from dragoman.dialects.base import ApiRequest
from dragoman.dialects.openai import DIALECT as OPENAI
from dragoman.dialects.responses import DIALECT as RESPONSES
from dragoman.dialects.rulebook import Breach
from dragoman.wire import jsonio
from dragoman.wire.eventstream import encode_event


def errors(found: Any) -> list[Breach]:
    return [breach for breach in found if breach.severity == "error"]


def request(dialect: str, body: Any, model: str = "") -> list[Breach]:
    found = registry.get(dialect)
    call = found.binding.unwrap(body)
    return errors(found.codec.breaches(ApiRequest("generate", model or call.model, call.stream, call.body)))


# --- requests that services accepted

ASK = {"role": "user", "content": "hi"}
FUNCTION = {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {}}}
BEDROCK_TOOL = {"toolSpec": {"name": "f", "inputSchema": {"json": {"type": "object"}}}}
YOUTUBE = "https://www.youtube.com/watch?v=x"

ACCEPTED_REPLIES: list[tuple[str, Any]] = [
    # media without a MIME type: the service detects it
    ("gemini", {"contents": [{"parts": [{"fileData": {"fileUri": YOUTUBE}}, {"text": "What is it?"}]}]}),
    ("gemini", {"contents": [{"parts": [{"file_data": {"file_uri": YOUTUBE}}]}]}),
    ("gemini", {"contents": [{"parts": [{"inline_data": {"mime_type": "image/png", "data": "aGk="}}]}]}),
    ("gemini", {"contents": [{"parts": [{"inlineData": {"mime_type": "image/png", "data": "aGk="}}]}]}),
    # empty texts, roles in capitals or none, single objects for arrays, a model's turn first or last
    ("gemini", {"contents": [{"role": "user", "parts": [{"text": ""}, {"text": "x"}]}]}),
    ("gemini", {"contents": [{"role": "user", "parts": [{"text": ""}]}]}),
    ("gemini", {"contents": {"role": "USER", "parts": {"text": "hi"}}}),
    ("gemini", {"contents": [{"role": "model", "parts": [{"text": "a"}]}, {"parts": [{"text": "b"}]}]}),
    ("gemini", {"contents": [{"parts": [{"text": "b"}]}, {"role": "model", "parts": [{"text": "So"}]}]}),
    (
        "gemini",
        {
            "contents": {"parts": {"text": "x"}},
            "tools": {"function_declarations": [{"name": "f"}]},
            "tool_config": {"function_calling_config": {"mode": "any", "allowed_function_names": ["f"]}},
        },
    ),
    # blank texts
    ("bedrock", {"messages": [{"role": "user", "content": [{"text": " "}]}]}),
    ("bedrock", {"messages": [{"role": "user", "content": [{"text": ""}, {"text": "x"}]}]}),
    (
        "bedrock",
        {
            "messages": [
                {"role": "user", "content": [{"text": "x"}]},
                {"role": "assistant", "content": [{"toolUse": {"toolUseId": "t", "name": "f", "input": {}}}]},
                {"role": "user", "content": [{"toolResult": {"toolUseId": "t", "content": [{"text": ""}]}}]},
            ],
            "toolConfig": {"tools": [BEDROCK_TOOL]},
        },
    ),
    ("bedrock", {"messages": [{"role": "user", "content": [{"text": "x"}]}, {"role": "user", "content": [{"text": "y"}]}]}),
    # tools without a type; what OpenAI alone refuses
    ("openai", {"model": "m", "messages": [ASK], "tools": [{"function": FUNCTION}]}),
    ("openai", {"model": "m", "messages": [ASK], "tools": [FUNCTION], "tool_choice": "any"}),
    ("openai", {"model": "m", "messages": [ASK], "tools": [], "tool_choice": "auto", "parallel_tool_calls": False}),
    ("openai", {"model": "m", "messages": [ASK], "max_tokens": -1, "temperature": 3, "stop": ["a", "b", "c", "d", "e"]}),
    ("openai", {"model": "m", "messages": [ASK], "stream_options": {"include_usage": True}, "reasoning_effort": "default"}),
    ("openai", {"model": "m", "messages": [ASK, {"role": "assistant", "content": None, "reasoning_content": "t"}]}),
    ("openai", {"model": "m", "messages": [ASK], "response_format": {"type": "json_object", "schema": {}}}),
    (
        "openai",  # a Mistral history
        {
            "model": "m",
            "messages": [
                ASK,
                {"role": "assistant", "content": "", "tool_calls": [{"id": "abcdefghi", "function": {"name": "f", "arguments": {}}}]},
                {"role": "tool", "tool_call_id": "abcdefghi", "name": "f", "content": "x"},
            ],
        },
    ),
    ("openai", {"model": "m", "messages": [ASK, {"role": "tool", "tool_call_id": "c", "content": "x"}][:1]}),
    # state that the service holds
    ("responses", {"model": "m", "previous_response_id": "r", "input": [{"type": "function_call_output", "call_id": "c", "output": "x"}]}),
    ("responses", {"model": "m", "conversation": "conv_1"}),
    (
        "responses",
        {"model": "m", "input": [{"type": "item_reference", "id": "fc_1"}, {"type": "function_call_output", "call_id": "c", "output": "x"}]},
    ),
    ("responses", {"model": "m", "input": "hi", "max_output_tokens": 5, "max_tokens": 5}),
    (
        "responses",  # ids restart in every response
        {
            "model": "m",
            "input": [
                {"type": "function_call", "call_id": "call_0", "name": "f", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "call_0", "output": "x"},
                {"type": "function_call", "call_id": "call_0", "name": "f", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "call_0", "output": "y"},
            ],
        },
    ),
    ("bedrock.invoke", {"anthropic_version": "bedrock-2023-05-31", "max_tokens": 5, "messages": [ASK]}),
    ("anthropic", {"model": "m", "max_tokens": 5, "messages": [ASK, {"role": "assistant", "content": ""}]}),
    ("anthropic", {"model": "m", "max_tokens": 5, "messages": [ASK, {"role": "assistant", "content": [{"type": "thinking", "thinking": "t"}]}, ASK]}),
    (
        "anthropic",
        {"model": "m", "max_tokens": 5, "thread": {"type": "continue", "id": "t"},
         "messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "x"}]}]},
    ),
]  # fmt: skip


@pytest.mark.parametrize(("dialect", "body"), ACCEPTED_REPLIES)
def test_what_a_service_answers_is_no_error(dialect: str, body: Any) -> None:
    assert request(dialect, body) == []


def test_a_signature_is_demanded_of_the_current_turn_only() -> None:
    call, result = {"functionCall": {"name": "f"}}, {"functionResponse": {"name": "f", "response": {}}}
    past = [{"parts": [{"text": "x"}]}, {"role": "model", "parts": [call]}, {"role": "user", "parts": [result]}]
    done = {"contents": [*past, {"role": "model", "parts": [{"text": "y"}]}, {"parts": [{"text": "z"}]}]}
    assert request("gemini", done, "gemini-3-pro") == []
    assert [breach.rule for breach in request("gemini", {"contents": past}, "gemini-3-pro")] == [
        "gemini.call.signature"
    ]
    assert request("gemini", {"contents": past}) == []


# --- streams of real services, in their own shapes


def sse(*frames: Any, named: bool = False) -> bytes:
    out = b""
    for each in frames:
        data = each if isinstance(each, str) else json.dumps(each)
        out += f"event: {each['type']}\n".encode() if named and not isinstance(each, str) else b""
        out += (
            each.encode() + b"\n\n" if isinstance(each, str) and each.startswith(":") else f"data: {data}\n\n".encode()
        )
    return out


def chunk(delta: Any = None, finish: Any = None, head: Any = None, **more: Any) -> dict[str, Any]:
    envelope = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"} if head is None else head
    choice = {"index": 0, "delta": {} if delta is None else delta, "finish_reason": finish}
    return {**envelope, "choices": [choice], **more}


def call(index: Any = 0, id_: Any = "call_1", name: Any = "f", arguments: str = "{}", **more: Any) -> dict[str, Any]:
    entry = {"index": index, "id": id_, "type": "function", "function": {"name": name, "arguments": arguments}, **more}
    return {"tool_calls": [{key: value for key, value in entry.items() if value != "left out"}]}


TEXT_DELTA = {"role": "assistant", "content": "hi"}
USAGE = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
EMPTY_HEAD = {"id": "", "object": "", "created": 0, "model": ""}

CHAT: dict[str, bytes] = {
    "deepseek": sse(
        chunk({"role": "assistant", "content": None, "reasoning_content": ""}, usage=None),
        chunk({"content": None, "reasoning_content": "t"}),
        chunk(call(arguments="")),
        chunk(call(id_=None, name=None, arguments='{"a"', type=None)),
        chunk(call(id_=None, name=None, arguments=":1}", type=None)),
        chunk({"content": "", "reasoning_content": None}, "tool_calls", usage=USAGE),
        "[DONE]",
    ),
    "groq": sse(
        chunk({"role": "assistant", "content": None}, x_groq={"id": "req_1"}),
        chunk(call(id_="abcdefghi")),
        chunk({}, "tool_calls", x_groq={"id": "req_1", "usage": USAGE}),
        {**EMPTY_HEAD, "choices": [], "usage": USAGE},
        "[DONE]",
    ),
    "mistral": sse(
        chunk({"role": "assistant", "content": ""}),
        chunk({"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "t"}]}]}),
        chunk({"content": "", **call(index="left out", type="left out")}, "tool_calls", usage=USAGE),
        "[DONE]",
    ),
    "xai": sse(
        chunk(TEXT_DELTA, ""),
        chunk({"role": "assistant", **call()}, ""),
        chunk({}, "tool_calls"),
        {"id": "c", "object": "chat.completion.chunk", "created": 2, "model": "m", "choices": [], "usage": USAGE},
        "[DONE]",
    ),
    "xai, no reason": sse(chunk(TEXT_DELTA), chunk({"role": "assistant", **call()}, ""), "[DONE]"),
    "perplexity": sse(
        chunk(TEXT_DELTA, usage=USAGE, citations=["https://example.org"]),
        chunk({"role": "assistant", "content": " there"}, usage=USAGE, object_="x"),
        chunk({"role": "assistant", "content": ""}, "stop", usage=USAGE, search_results=[]),
    ),
    "alibaba": sse(
        chunk({"role": "assistant", "content": None}),
        chunk(call(arguments="")),
        chunk(call(id_="", name=None, arguments="{}")),
        chunk({"content": ""}, "tool_calls"),
        {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [], "usage": USAGE},
        "[DONE]",
    ),
    "name repeated as an empty text": sse(chunk(TEXT_DELTA), chunk(call(arguments="")), chunk(call(name="", id_="")), chunk({}, "tool_calls"), "[DONE]"),
    "azure": sse(
        {**EMPTY_HEAD, "choices": [], "prompt_filter_results": [{"prompt_index": 0}]},
        chunk(TEXT_DELTA, obfuscation="xyz", system_fingerprint=None),
        {**EMPTY_HEAD, "choices": [{"index": 0, "finish_reason": None, "content_filter_offsets": {}}]},
        chunk({}, "stop", obfuscation="", service_tier="default"),
        "[DONE]",
    ),
    "openrouter": sse(
        ": OPENROUTER PROCESSING",
        chunk({"role": "assistant", "content": "", "reasoning": "t", "reasoning_details": [{"type": "reasoning.text", "text": "t"}]}, native_finish_reason=None),
        chunk({"role": "assistant", "content": "hi"}, provider="P"),
        chunk({"role": "assistant", "content": ""}, "stop"),
        chunk({"role": "assistant", "content": ""}, "stop", usage=USAGE),
        "[DONE]",
    ),
    "moonshot": sse(
        chunk({"role": "assistant", "content": ""}),
        {**chunk(), "choices": [{"index": 0, "delta": {}, "finish_reason": "stop", "usage": USAGE}]},
        "[DONE]",
    ),
    "gemini": sse(
        chunk({"role": "assistant", **call(index=0, id_="", arguments="{}")}),
        chunk({"role": "assistant", **call(index=0, id_="function-call-2", name="g")}, "stop"),
        "[DONE]",
    ),
    "ollama": sse(chunk(TEXT_DELTA, system_fingerprint="fp_ollama"), chunk({"role": "assistant", "content": ""}, "stop"), "[DONE]"),
    "zhipu": sse(chunk(TEXT_DELTA, head={"id": "c", "created": 1, "model": "m"}), chunk({"role": "assistant", "content": ""}, "sensitive", head={"id": "c", "created": 1, "model": "m"}), "[DONE]"),
    "vllm": sse(chunk({"role": "assistant", "content": "", "reasoning_content": None}), chunk({"content": "a"}, logprobs=None), chunk({"content": ""}, "stop", stop_reason=None), "[DONE]"),
    "an error in mid stream": sse(chunk(TEXT_DELTA), {"error": {"message": "overloaded", "code": 502}}, "[DONE]"),
    "an error as text": sse(chunk(TEXT_DELTA), {"error": "no memory"}),
    "openai": sse(
        chunk({"role": "assistant", "content": "", "refusal": None}, usage=None, obfuscation="x"),
        chunk({"content": "a"}, usage=None), chunk({}, "stop", usage=None),
        {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [], "usage": USAGE}, "[DONE]",
    ),
}  # fmt: skip


def stream(dialect: Any, data: bytes) -> list[Breach]:
    decoder = dialect.binding.frame_decoder()
    return errors(dialect.codec.stream_breaches([*decoder.feed(data), *decoder.close()]))


@pytest.mark.parametrize("vendor", CHAT)
def test_chat_streams_of_real_services_have_no_errors(vendor: str) -> None:
    assert stream(OPENAI, CHAT[vendor]) == []


@pytest.mark.parametrize(
    ("frames", "rule"),
    [
        ([chunk(TEXT_DELTA), "[DONE]"], "no_finish"),
        ([chunk(TEXT_DELTA)], "no_finish"),
        ([chunk(TEXT_DELTA), "", chunk({}, "stop"), "[DONE]"], "no_json"),
        ([chunk(TEXT_DELTA), chunk(call(index=1)), chunk({}, "tool_calls"), "[DONE]"], "call_index"),
        ([chunk(TEXT_DELTA), chunk(call(name="")), chunk({}, "tool_calls"), "[DONE]"], "call_name"),
        ([chunk(TEXT_DELTA), {**chunk(), "choices": 5}, chunk({}, "stop"), "[DONE]"], "choices"),
    ],
)
def test_what_breaks_clients_of_chat_is_an_error_still(frames: list[Any], rule: str) -> None:
    assert [breach.rule for breach in stream(OPENAI, sse(*frames))] == [f"openai.stream.{rule}"]


MESSAGE = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "status": "completed",
    "content": [{"type": "output_text", "text": "hi"}],
}
FUNCTION_CALL = {
    "id": "fc_1",
    "type": "function_call",
    "call_id": "c",
    "name": "f",
    "arguments": "{}",
    "status": "completed",
}
REASONING = {"id": "rs_1", "type": "reasoning", "summary": []}
R_USAGE = {"input_tokens": 1, "input_tokens_details": {"cached_tokens": 0}, "output_tokens": 2, "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 3}  # fmt: skip


def event(kind: str, **fields: Any) -> dict[str, Any]:
    return {"type": kind, **fields}


def created(**fields: Any) -> dict[str, Any]:
    return event("response.created", response={"id": "resp_1", "object": "response", "status": "in_progress", "output": []}, **fields)  # fmt: skip


def completed(*output: Any, usage: Any = R_USAGE, **fields: Any) -> dict[str, Any]:
    response = {"id": "resp_1", "object": "response", "status": "completed", "output": list(output), "usage": usage}
    return event("response.completed", response=response, **fields)


def numbered(*events: dict[str, Any]) -> list[dict[str, Any]]:
    return [{**each, "sequence_number": number} for number, each in enumerate(events)]


def text_events(index: int = 0, *, parts: bool = True) -> list[dict[str, Any]]:
    part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
    at = {"output_index": index, "content_index": 0, "item_id": "msg_1"}
    return [
        event(
            "response.output_item.added", output_index=index, item={**MESSAGE, "status": "in_progress", "content": []}
        ),
        *([event("response.content_part.added", part=part, **at)] if parts else []),
        event("response.output_text.delta", delta="hi", logprobs=[], obfuscation="abc", **at),
        event("response.output_text.done", text="hi", **at),
        *([event("response.content_part.done", part=part, **at)] if parts else []),
        event("response.output_item.done", output_index=index, item=MESSAGE),
    ]


def called(index: int = 0) -> list[dict[str, Any]]:
    return [
        event("response.output_item.added", output_index=index, item={**FUNCTION_CALL, "arguments": ""}),
        event("response.function_call_arguments.delta", output_index=index, item_id="fc_1", delta="{}"),
        event("response.function_call_arguments.done", output_index=index, item_id="fc_1", arguments="{}"),
        event("response.output_item.done", output_index=index, item=FUNCTION_CALL),
    ]


SEARCH = {"id": "ws_1", "type": "web_search_call", "status": "completed"}
IN_PROGRESS = event("response.in_progress", response={"id": "resp_1", "status": "in_progress"})
THOUGHT = [
    event("response.output_item.added", output_index=0, item=REASONING),
    event("response.reasoning_summary_part.added", output_index=0, summary_index=0, item_id="rs_1"),
    event("response.reasoning_summary_text.delta", output_index=0, summary_index=0, delta="t"),
    event("response.reasoning_summary_text.done", output_index=0, summary_index=0, text="t"),
    event("response.reasoning_summary_part.done", output_index=0, summary_index=0),
    event("response.output_item.done", output_index=0, item=REASONING),
]

EVENTS: dict[str, list[Any]] = {
    "openai": numbered(created(), IN_PROGRESS, *THOUGHT, *text_events(1), completed(REASONING, MESSAGE)),
    "openai, called": numbered(created(), IN_PROGRESS, *called(), completed(FUNCTION_CALL)),
    "openai, keepalive": numbered(event("keepalive"), created(), IN_PROGRESS, IN_PROGRESS, event("keepalive"), *text_events(), completed(MESSAGE)),
    "openai, search": numbered(
        created(),
        event("response.output_item.added", output_index=0, item={**SEARCH, "status": "in_progress"}),
        event("response.web_search_call.in_progress", output_index=0, item_id="ws_1"),
        event("response.web_search_call.searching", output_index=0, item_id="ws_1"),
        event("response.web_search_call.completed", output_index=0, item_id="ws_1"),
        event("response.output_item.done", output_index=0, item=SEARCH),
        *text_events(1)[:3],
        event("response.output_text.annotation.added", output_index=1, content_index=0, annotation_index=0, annotation={"type": "url_citation"}),
        *text_events(1)[3:],
        completed(SEARCH, MESSAGE),
    ),
    "codex backend": [*numbered(created(), *called(), completed())],
    "no numbers": [created(), *text_events(), completed(MESSAGE)],
    "no usage details": numbered(created(), *text_events(), completed(MESSAGE, usage={"input_tokens": 1, "output_tokens": 2, "total_tokens": 3})),
    "no usage": numbered(created(), *text_events(), completed(MESSAGE, usage=None)),
    "vllm, no parts": numbered(created(), IN_PROGRESS, *text_events(parts=False), completed(MESSAGE)),
    "vllm, reasoning parts": numbered(
        created(),
        event("response.output_item.added", output_index=0, item={**REASONING, "status": "in_progress"}),
        event("response.reasoning_part.added", output_index=0, content_index=0, item_id="rs_1", part={"type": "reasoning_text", "text": ""}),
        event("response.reasoning_text.delta", output_index=0, content_index=0, delta="t"),
        event("response.reasoning_text.done", output_index=0, content_index=0, text="t"),
        event("response.output_item.done", output_index=0, item=REASONING),
        *text_events(1),
        completed(REASONING, MESSAGE),
    ),
    "one index for all": numbered(created(), *THOUGHT, *text_events(0), completed(REASONING, MESSAGE)),
    "xai, done only": numbered(created(), IN_PROGRESS, event("response.output_item.done", output_index=0, item=FUNCTION_CALL), completed(FUNCTION_CALL)),
    "ids differ": numbered(created(), *called()[:3], event("response.output_item.done", output_index=0, item={**FUNCTION_CALL, "id": "fc_other"}), completed(FUNCTION_CALL)),
    "ends with [DONE]": [*numbered(created(), *text_events(), completed(MESSAGE)), "[DONE]"],
    "failed": numbered(created(), event("response.failed", response={"id": "resp_1", "status": "failed", "error": {"code": "server_error", "message": "m"}})),
    "an error": numbered(created(), event("error", code="rate_limit_exceeded", message="m", param=None)),
    "incomplete": numbered(created(), *text_events(), event("response.incomplete", response={"id": "resp_1", "status": "incomplete", "output": [MESSAGE], "incomplete_details": {"reason": "max_output_tokens"}, "usage": R_USAGE})),
    "reasoning without a summary": numbered(created(), event("response.output_item.done", output_index=0, item={"type": "reasoning", "id": "rs_1", "content": []}), completed()),
}  # fmt: skip


@pytest.mark.parametrize("vendor", EVENTS)
@pytest.mark.parametrize("named", [True, False])
def test_responses_streams_of_real_services_have_no_errors(vendor: str, named: bool) -> None:
    assert stream(RESPONSES, sse(*EVENTS[vendor], named=named)) == []


@pytest.mark.parametrize(
    ("events", "rule"),
    [
        ([created(), *text_events()], "no_end"),
        ([*text_events(), completed(MESSAGE)], "no_created"),
        ([created(), *called()[:3], completed()], "open_call"),
        ([created(), *called()[:3], event("response.output_item.done", output_index=0, item={**FUNCTION_CALL, "arguments": {}}), completed()], "item_field"),
        ([created(), event("response.completed", response={"status": "completed", "output": []})], "response"),
        ([created(), *text_events()[:2], event("response.output_text.delta", output_index=0, content_index=0, delta=None), *text_events()[3:], completed(MESSAGE)], "delta"),
        ([created(), *text_events(), completed(MESSAGE, usage={"input_tokens": "1"})], "usage"),
    ],
)  # fmt: skip
def test_what_breaks_clients_of_responses_is_an_error_still(events: list[Any], rule: str) -> None:
    found = [breach.rule for breach in stream(RESPONSES, sse(*numbered(*events), named=True))]
    assert found == [f"responses.stream.{rule}"]


def anthropic(*frames: dict[str, Any]) -> bytes:
    return sse(*frames, named=True)


A_START = {"type": "message_start", "message": {"id": "m", "type": "message", "role": "assistant", "model": "x", "content": [], "stop_reason": None, "usage": {"input_tokens": 1, "output_tokens": 1}}}  # fmt: skip
A_CALL = {"type": "content_block_start", "index": 0, "content_block": {"type": "tool_use", "id": "t", "name": "f", "input": {}}}  # fmt: skip
A_CUT = {"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": '{"a":'}}
A_STOP = {"type": "content_block_stop", "index": 0}


def a_end(reason: str) -> list[dict[str, Any]]:
    usage = {"output_tokens": 2}
    delta = {"type": "message_delta", "delta": {"stop_reason": reason, "stop_sequence": None}, "usage": usage}
    return [delta, {"type": "message_stop"}]


def test_a_call_that_a_limit_cut_is_no_error() -> None:
    found = registry.get("anthropic")
    assert stream(found, anthropic(A_START, A_CALL, A_CUT, A_STOP, *a_end("max_tokens"))) == []
    broken = stream(found, anthropic(A_START, A_CALL, A_CUT, A_STOP, *a_end("tool_use")))
    assert [breach.rule for breach in broken] == ["anthropic.stream.input_json"]


# --- the stream of document 002 (docs/mission.md)


def kiro(*events: tuple[str, dict[str, Any]]) -> bytes:
    return b"".join(encode_event(kind, jsonio.encode(payload)) for kind, payload in events)


DOCUMENT_002 = kiro(
    ("assistantResponseEvent", {"content": "Hello"}),
    ("toolUseEvent", {"name": "edit", "toolUseId": "toolu_xxx", "input": '{"path":'}),
    ("toolUseEvent", {"input": '"file.js"}'}),
    ("toolUseEvent", {"stop": True}),
    ("contextUsageEvent", {"contextUsagePercentage": 1.5}),
)


def test_the_stream_of_document_002_is_clean() -> None:
    found = registry.get("kiro")
    assert list(found.codec.stream_breaches(found.binding.frame_decoder().feed(DOCUMENT_002))) == []


@pytest.mark.parametrize(
    ("events", "rule"),
    [
        ([{"input": "{}"}], "call_id"),
        ([{"name": "f", "stop": True}], "call_id"),
        ([{"name": "f", "toolUseId": " ", "stop": True}], "call_id"),
        ([{"name": "f", "toolUseId": "t"}, {"name": "g", "input": "{}"}, {"stop": True}], "call_id"),
        ([{"name": "", "toolUseId": "t", "stop": True}], "call_name"),
        ([{"name": "f", "toolUseId": "t"}, {"input": "{"}], "open_call"),
    ],
)
def test_calls_of_kiro_without_id_name_or_end_are_errors(events: list[dict[str, Any]], rule: str) -> None:
    found = stream(registry.get("kiro"), kiro(*(("toolUseEvent", each) for each in events)))
    assert [breach.rule for breach in found] == [f"kiro.stream.{rule}"]


def test_a_call_that_a_limit_cut_has_no_stop() -> None:
    events = (("toolUseEvent", {"name": "f", "toolUseId": "t"}), ("metadataEvent", {"stopReason": "MAX_TOKENS"}))
    assert not stream(registry.get("kiro"), kiro(*events))


# --- the command


def check(capsys: pytest.CaptureFixture[str], path: Any, body: Any, *options: str) -> tuple[int, str]:
    path.write_text(json.dumps(body))
    status = main(["check", *options, str(path)])
    return status, capsys.readouterr().out


def test_advice_is_printed_and_fails_only_if_asked(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    body = {"model": "m", "messages": [ASK], "tools": [{"function": FUNCTION}]}
    status, out = check(capsys, tmp_path / "a.json", body, "--dialect", "openai")
    assert (status, out) == (0, "advice [openai.tools.type] tools[0].type: a tool must have a type (documented)\n")
    assert check(capsys, tmp_path / "a.json", body, "--dialect", "openai", "--strict")[0] == 3
    _, out = check(capsys, tmp_path / "a.json", body, "--dialect", "openai", "--json")
    assert {"severity": "advice", "evidence": "documented"}.items() <= json.loads(out)[0].items()


def test_the_model_of_a_path_may_be_named(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    body = {
        "messages": [
            {"role": "user", "content": [{"text": "x"}]},
            {"role": "assistant", "content": [{"reasoningContent": {"reasoningText": {"text": "t"}}}, {"text": "y"}]},
            {"role": "user", "content": [{"text": "z"}]},
        ]
    }
    assert check(capsys, tmp_path / "a.json", body, "--dialect", "bedrock")[0] == 0
    assert check(capsys, tmp_path / "a.json", body, "--dialect", "bedrock", "--model", "anthropic.claude-x")[0] == 3


def test_the_rules_can_be_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--dialect", "kiro", "--rules"]) == 0
    assert "| `kiro.history.alternate` | error | observed |" in capsys.readouterr().out


@pytest.mark.parametrize("source", registry.names())
@pytest.mark.parametrize("target", registry.names())
def test_check_takes_what_translate_prints(
    source: str, target: str, tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every pair: a request with a tool loop is translated into the source's dialect, then by both commands."""
    body = {
        "model": "claude-sonnet-4.5",
        "messages": [
            ASK,
            {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
            {"role": "tool", "tool_call_id": "c", "content": "x"},
        ],
        "tools": [{"type": "function", "function": FUNCTION}],
    }  # fmt: skip
    file = tmp_path / "asked.json"
    file.write_text(json.dumps(body))
    for start, end in (("openai", source), (source, target)):
        assert main(["translate", "--from", start, "--to", end, "--model", "claude-sonnet-4.5", str(file)]) == 0
        file.write_text(capsys.readouterr().out)
        assert main(["check", "--strict", "--dialect", end, str(file)]) == 0
        assert capsys.readouterr().out == ""

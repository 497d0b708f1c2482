"""L18, D5, document 004: an upstream's call without a usable id or name raises the typed violation, in every dialect."""

from __future__ import annotations

from typing import Any

import pytest

import dragoman
from dragoman.agent import BedrockClient, BedrockResponseError
from dragoman.errors import MissingField
from dragoman.wire import jsonio
from dragoman.wire.eventstream import encode_event

BLANK: list[Any] = [
    "",
    " ",
    "\t",
    "\n",
    " \r\n",
    "\u00a0",
    "\u2003",
    "\u3000",
    "\u200b",
    "\ufeff",
    "\u2028",
    "\x00",
    None,
    7,
    [],
    {},
]
NAMED = ("toolUseId", "name")


def use(field: str, value: Any) -> dict[str, Any]:
    return {"toolUseId": "t1", "name": "get", "input": {}} | {field: value}


def failure(frames: bytes, source: str, target: str = "anthropic") -> str:
    """The violation in a stream, which ends with the client's error."""
    stream = dragoman.stream_translator(source=source, target=target)
    out = stream.feed(frames) + stream.close()
    assert stream.error is not None
    assert b"tool_use" not in out
    return str(stream.error)


@pytest.mark.parametrize("field", NAMED)
@pytest.mark.parametrize("value", BLANK)
def test_l18_a_whole_bedrock_reply(field: str, value: Any) -> None:
    content = [{"toolUse": use(field, value)}]
    reply = {"output": {"message": {"role": "assistant", "content": content}}, "stopReason": "tool_use", "usage": {}}
    with pytest.raises(BedrockResponseError) as raised:
        BedrockClient().parse_tool_use(reply)
    assert raised.value.field == field
    with pytest.raises(MissingField, match=field):
        dragoman.translate_reply(reply, source="bedrock", target="anthropic")


@pytest.mark.parametrize("field", NAMED)
@pytest.mark.parametrize("value", BLANK)
@pytest.mark.parametrize("target", ["anthropic", "openai", "bedrock"])
def test_l18_a_bedrock_stream(field: str, value: Any, target: str) -> None:
    frames = encode_event("messageStart", b'{"role":"assistant"}')
    start = {"contentBlockIndex": 0, "start": {"toolUse": use(field, value)}}
    frames += encode_event("contentBlockStart", jsonio.encode(start))
    frames += encode_event("contentBlockStop", b'{"contentBlockIndex":0}')
    frames += encode_event("messageStop", b'{"stopReason":"tool_use"}')
    assert field in failure(frames, "bedrock", target)


@pytest.mark.parametrize("call", [None, 3, "text", []])
def test_l18_a_bedrock_call_that_is_no_object(call: Any) -> None:
    reply = {"output": {"message": {"role": "assistant", "content": [{"toolUse": call}]}}, "stopReason": "tool_use"}
    with pytest.raises(MissingField, match="toolUse"):
        dragoman.translate_reply(reply, source="bedrock", target="anthropic")
    frames = encode_event("messageStart", b'{"role":"assistant"}')
    start = jsonio.encode({"contentBlockIndex": 0, "start": {"toolUse": call}})
    assert "toolUse" in failure(frames + encode_event("contentBlockStart", start), "bedrock")


@pytest.mark.parametrize("field", NAMED)
@pytest.mark.parametrize("value", BLANK)
@pytest.mark.parametrize("target", ["anthropic", "openai", "kiro"])
def test_l18_a_kiro_stream(field: str, value: Any, target: str) -> None:
    frames = encode_event("toolUseEvent", jsonio.encode({**use(field, value), "input": "{}", "stop": True}))
    assert field in failure(frames, "kiro", target)
    with pytest.raises(MissingField, match=field):
        dragoman.translate_reply(frames, source="kiro", target="anthropic")


@pytest.mark.parametrize("missing", [{}, {"toolUseId": ""}, {"toolUseId": None}, {"toolUseId": " "}])
def test_l18_a_second_kiro_call_without_an_id_does_not_grow_the_first(missing: dict[str, Any]) -> None:
    first = {"toolUseId": "t1", "name": "get", "input": "{"}
    second = {"name": "put", "input": "{}", "stop": True} | missing
    frames = encode_event("toolUseEvent", jsonio.encode(first)) + encode_event("toolUseEvent", jsonio.encode(second))
    stream = dragoman.stream_translator(source="kiro", target="anthropic")
    stream.feed(frames)
    stream.close()
    assert "toolUseId" in str(stream.error)


def test_bare_fragments_of_a_kiro_call_still_belong_to_it() -> None:
    """Document 002: `{input}` and `{stop: true}` have no id of their own."""
    payloads = [{"name": "edit", "toolUseId": "t1"}, {"input": '{"a":1}'}, {"stop": True}]
    frames = b"".join(encode_event("toolUseEvent", jsonio.encode(each)) for each in payloads)
    reply = dragoman.translate_reply(frames, source="kiro", target="anthropic").body
    assert reply["content"] == [{"type": "tool_use", "id": "t1", "name": "edit", "input": {"a": 1}}]


OPENAI = {"id": "c", "object": "chat.completion", "created": 1, "model": "m"}


def replies(name: Any) -> list[tuple[str, dict[str, Any]]]:
    call = {"id": "c1", "type": "function", "function": {"name": name, "arguments": "{}"}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    item = {"type": "function_call", "id": "fc", "call_id": "c1", "name": name, "arguments": "{}"}
    parts = [{"functionCall": {"name": name, "args": {}}}]
    block = {"type": "tool_use", "id": "t1", "name": name, "input": {}}
    return [
        ("openai", {**OPENAI, "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]}),
        ("responses", {"id": "r", "object": "response", "status": "completed", "model": "m", "output": [item]}),
        ("gemini", {"candidates": [{"content": {"role": "model", "parts": parts}, "finishReason": "STOP"}]}),
        ("anthropic", {"id": "m", "type": "message", "role": "assistant", "content": [block], "usage": {}}),
    ]


@pytest.mark.parametrize("name", BLANK)
def test_d5_a_missing_name_raises_in_every_dialect(name: Any) -> None:
    for source, reply in replies(name):
        with pytest.raises(MissingField, match="name"):
            dragoman.translate_reply(reply, source=source, target="bedrock")


@pytest.mark.parametrize("blank", [" ", "\u00a0", "\u200b"])
def test_d5_a_blank_id_is_a_missing_one(blank: str) -> None:
    """OpenAI's and Gemini's calls may lack an id: a legal one is made, with a note."""
    call = {"index": 0, "id": blank, "type": "function", "function": {"name": "get", "arguments": "{}"}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    whole = {**OPENAI, "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]}
    done = dragoman.translate_reply(whole, source="openai", target="anthropic")
    assert "ids.minted" in [note.rule for note in done.notes]
    chunk = {**OPENAI, "object": "chat.completion.chunk"}
    chunk["choices"] = [{"index": 0, "delta": {"tool_calls": [call]}, "finish_reason": "tool_calls"}]
    stream = dragoman.stream_translator(source="openai", target="anthropic")
    stream.feed(b"data: " + jsonio.encode(chunk) + b"\n\ndata: [DONE]\n\n")
    stream.close()
    assert stream.error is None
    assert "ids.minted" in [note.rule for note in stream.notes]
    parts = [{"functionCall": {"id": blank, "name": "get", "args": {}}}]
    gemini = {"candidates": [{"content": {"role": "model", "parts": parts}, "finishReason": "STOP"}]}
    noted = dragoman.translate_reply(gemini, source="gemini", target="anthropic").notes
    assert "ids.minted" in [note.rule for note in noted]

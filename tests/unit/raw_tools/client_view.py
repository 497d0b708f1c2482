"""A reply of an openai upstream through the library, and what a client of each dialect sees of it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import Struct

import dragoman
from dragoman.api import Translated
from tests.anthropic_client import parse_message_stream

CLIENTS = ("anthropic", "responses", "openai", "gemini", "bedrock")
_STRING = {"type": "string"}


def tool(name: str, *keys: str) -> dict[str, Any]:
    schema = {"type": "object", "properties": dict.fromkeys(keys, _STRING), "required": [*keys]}
    return {"type": "function", "function": {"name": name, "parameters": schema}}


TOOLS = [tool("bash", "command"), tool("read", "path"), tool("now")]

Delta = dict[str, Any]


class ClientView(Struct):
    """What a client sees: its blocks in order, the reason to stop, and the rules of the notes."""

    blocks: list[tuple[str, ...]]  # ("text", TEXT), ("reasoning", TEXT), ("call", NAME, ARGUMENTS)
    finish: str
    rules: set[str]
    ids: list[str]

    @property
    def calls(self) -> list[tuple[str, Any]]:
        return [(block[1], json.loads(block[2])) for block in self.blocks if block[0] == "call"]

    @property
    def kinds(self) -> list[str]:
        return [block[0] for block in self.blocks]

    def content(self, kind: str = "text") -> str:
        return "".join(block[1] for block in self.blocks if block[0] == kind)


def client_request(client: str, tools: Sequence[dict[str, Any]] = TOOLS, **more: Any) -> Translated:
    """A request of a client, as it is known when the reply comes."""
    body = {"model": "m", "messages": [{"role": "user", "content": "go"}], **more}
    if tools:
        body["tools"] = [*tools]
    if client == "openai":
        return dragoman.translate_request(body, source="openai", target="openai")
    translation = dragoman.translate_request(body, source="openai", target=client)
    return dragoman.translate_request(translation.body, source=client, target="openai", model="m")


def chunk(delta: Delta, finish: str | None = None, choice: int = 0) -> bytes:
    body = {
        "id": "c",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "m",
        "choices": [{"index": choice, "delta": delta, "finish_reason": finish}],
    }
    return b"data: " + json.dumps(body).encode() + b"\n\n"


def sse(deltas: Iterable[Delta], finish: str | None = "stop", *, done: bool = True) -> bytes:
    frames = [chunk({"role": "assistant"}), *map(chunk, deltas)]
    if finish is not None:
        frames.append(chunk({}, finish))
    return b"".join([*frames, b"data: [DONE]\n\n" if done else b""])


def cut(deltas: Iterable[Delta], size: int) -> list[Delta]:
    """The same deltas with each text in pieces; a native call stays whole."""
    pieces: list[Delta] = []
    for delta in deltas:
        for field, value in delta.items():
            if isinstance(value, str):
                pieces += [{field: value[at : at + size]} for at in range(0, len(value), size)]
            else:
                pieces.append({field: value})
    return pieces


def native(name: str = "bash", arguments: str = '{"command": "ls"}', id_: str = "call_1", index: int = 0) -> Delta:
    call = {"index": index, "id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}
    return {"tool_calls": [call]}


def view_stream(client: str, data: bytes, request: Translated | None = None, **options: Any) -> ClientView:
    """What a client sees of a stream."""
    translator = dragoman.stream_translator(
        source="openai", target=client, request=request or client_request(client), **options
    )
    out = translator.feed(data) + translator.close()
    return read_stream(client, out, {note.rule for note in translator.notes})


def read_stream(client: str, out: bytes, rules: set[str]) -> ClientView:
    """Read a stream of a client as an Anthropic client gets it."""
    if client != "anthropic":
        back = dragoman.stream_translator(source=client, target="anthropic", raw_tools="off")
        out = back.feed(out) + back.close()
        assert back.error is None, back.error
    return _anthropic(out, rules)


def _anthropic(out: bytes, rules: set[str]) -> ClientView:
    message = parse_message_stream(out)
    view = ClientView([], "error" if message["error"] else message["stop_reason"] or "", rules, [])
    for block in message["content"]:
        if block["type"] == "tool_use":
            view.ids.append(block["id"])
            view.blocks.append(("call", block["name"], block["json"] or "{}"))
            continue
        kind, words = ("text", block["text"]) if block["type"] == "text" else ("reasoning", block["thinking"])
        if view.blocks and view.blocks[-1][0] == kind:
            view.blocks[-1] = (kind, view.blocks[-1][1] + words)
        elif words:
            view.blocks.append((kind, words))
    return view


def whole_reply(deltas: Iterable[Delta], finish: str = "stop") -> dict[str, Any]:
    """The same reply as a whole reply."""
    message: dict[str, Any] = {"role": "assistant", "content": None}
    calls: list[Any] = []
    for delta in deltas:
        for field, value in delta.items():
            if field == "tool_calls":
                calls += [{name: part for name, part in call.items() if name != "index"} for call in value]
            else:
                message[field] = (message.get(field) or "") + value
    if calls:
        message["tool_calls"] = calls
    choice = {"index": 0, "message": message, "finish_reason": finish}
    return {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}


def view_reply(client: str, body: dict[str, Any], request: Translated | None = None, **options: Any) -> ClientView:
    """What a client sees of a whole reply."""
    translation = dragoman.translate_reply(
        body, source="openai", target=client, request=request or client_request(client), **options
    )
    rules = {note.rule for note in translation.notes}
    reply = translation.body
    if client != "anthropic":
        reply = dragoman.translate_reply(reply, source=client, target="anthropic", raw_tools="off").body
    view = ClientView([], str(reply["stop_reason"]), rules, [])
    for block in reply["content"]:
        match block["type"]:
            case "text":
                view.blocks.append(("text", block["text"]))
            case "thinking":
                view.blocks.append(("reasoning", block["thinking"]))
            case "tool_use":
                view.blocks.append(("call", block["name"], json.dumps(block["input"])))
                view.ids.append(block["id"])
            case _:
                pass
    return view

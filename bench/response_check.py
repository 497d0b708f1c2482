"""Read a response as a client does, with the standard library, and compare its content: a wrong response must fail."""

from __future__ import annotations

import http.client
import json
from typing import Any

from bench.canned_responses import SSE, ResponseContent

_STOPS = {"stop": "end", "tool_calls": "tool", "end_turn": "end", "tool_use": "tool"}


class WrongResponse(Exception):
    """A response whose content differs from the upstream's."""


def ask(
    port: int, path: str, headers: dict[str, str], body: bytes, timeout: float = 30.0
) -> tuple[bytes, ResponseContent]:
    """Send one request; return the response body and its content. Raises WrongResponse, OSError, HTTPException."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        connection.request("POST", path, body, {"content-type": "application/json", **headers})
        response = connection.getresponse()
        raw = response.read()
    finally:
        connection.close()
    if response.status != 200:
        raise WrongResponse(f"HTTP {response.status}: {raw[:300].decode('utf-8', 'replace')}")
    return raw, read(raw, streamed=response.headers.get("content-type", "").startswith(SSE))


def read(raw: bytes, *, streamed: bool) -> ResponseContent:
    """Return the content of a response body. Raises WrongResponse."""
    try:
        return _streamed(raw) if streamed else _whole(json.loads(raw))
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise WrongResponse(f"the response cannot be parsed: {error!r} in {raw[-200:]!r}") from None


def compare(read: ResponseContent, expected: ResponseContent) -> None:
    """Compare two contents. Raises WrongResponse if one differs, or if pieces of the stream were merged."""
    for name in ("text", "tool", "arguments", "stop"):
        got, want = getattr(read, name), getattr(expected, name)
        if name == "arguments" and got != want and got and json.loads(got) == json.loads(want):
            continue  # a peer may format the JSON differently
        if got != want:
            raise WrongResponse(f"{name} is {_short(got)}, not {_short(want)}")
    if read.deltas < expected.deltas:
        raise WrongResponse(f"the stream came in {read.deltas} pieces, not in {expected.deltas}")


def _short(text: str) -> str:
    return repr(text) if len(text) < 60 else f"{text[:40]!r}… ({len(text)} characters)"


def _whole(body: dict[str, Any]) -> ResponseContent:
    if body.get("type") == "message":
        texts = "".join(block["text"] for block in body["content"] if block["type"] == "text")
        call = next((block for block in body["content"] if block["type"] == "tool_use"), None)
        arguments = json.dumps(call["input"]) if call else ""
        return ResponseContent(texts, call["name"] if call else "", arguments, _STOPS[body["stop_reason"]])
    choice = body["choices"][0]
    call = (choice["message"].get("tool_calls") or [{"function": {"name": "", "arguments": ""}}])[0]["function"]
    text = choice["message"]["content"] or ""
    return ResponseContent(text, call["name"], call["arguments"], _STOPS[choice["finish_reason"]])


def _streamed(raw: bytes) -> ResponseContent:
    text: list[str] = []
    arguments: list[str] = []
    tool = stop = ""
    for line in raw.decode().splitlines():
        if not line.startswith("data: ") or line == "data: [DONE]":
            continue
        body = json.loads(line[6:])
        read = _anthropic if "type" in body else _openai
        piece, name, part, why = read(body)
        text += [piece] if piece else []
        arguments += [part] if part else []
        tool, stop = tool or name, why or stop
    return ResponseContent("".join(text), tool, "".join(arguments), _STOPS.get(stop, stop), len(text) + len(arguments))


def _anthropic(body: dict[str, Any]) -> tuple[str, str, str, str]:
    match body["type"]:
        case "content_block_start":
            return "", body["content_block"].get("name", ""), "", ""
        case "content_block_delta":
            return body["delta"].get("text", ""), "", body["delta"].get("partial_json", ""), ""
        case "message_delta":
            return "", "", "", body["delta"].get("stop_reason") or ""
        case "error":
            raise ValueError(body)
        case _:
            return "", "", "", ""


def _openai(body: dict[str, Any]) -> tuple[str, str, str, str]:
    if "error" in body:
        raise ValueError(body)
    if not body["choices"]:
        return "", "", "", ""
    choice = body["choices"][0]
    delta = choice["delta"]
    call = (delta.get("tool_calls") or [{}])[0].get("function", {})
    parts = (delta.get("content"), call.get("name"), call.get("arguments"), choice.get("finish_reason"))
    return tuple(part or "" for part in parts)  # type: ignore[return-value]

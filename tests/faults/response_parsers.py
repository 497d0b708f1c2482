"""Parsers of client responses without the codecs of the package: one small parser for each dialect."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from botocore.eventstream import EventStreamBuffer

from tests.faults.http_client import RawResponse, WrongResponse


@dataclass
class ParsedResponse:
    """The content of a response. `finish` is the dialect's stop reason; `ended`: its last event was received."""

    text: str = ""
    calls: list[dict[str, Any]] = field(default_factory=list)  # name, arguments (text)
    finish: str | None = None
    ended: bool = False
    error: str | None = None
    pings: int = 0
    odd: list[str] = field(default_factory=list)  # errors that a client would raise

    def arguments(self) -> list[Any]:
        return [json.loads(call["arguments"]) for call in self.calls]


# --- server-sent events; our encoders always write LF


def events(body: bytes) -> Iterator[tuple[str, str]]:
    """Yield name and data of each event; a comment has the name `:`."""
    text = body.decode("utf-8")  # raises for invalid UTF-8, which a client must never get
    for block in text.split("\n\n"):
        if not block:
            continue
        name, data = "", []
        for line in block.split("\n"):
            if line.startswith("{"):  # Google sends an error in mid-stream as bare JSON
                yield "", line
                continue
            field_, _, value = line.partition(":")
            if field_ == "":
                yield ":", value
            elif field_ == "event":
                name = value.removeprefix(" ")
            elif field_ == "data":
                data.append(value.removeprefix(" "))
        if data:
            yield name, "\n".join(data)


def anthropic(body: bytes) -> ParsedResponse:  # noqa: C901  one case for each event
    parsed, open_, begun = ParsedResponse(), {}, False
    for name, data in events(body):
        if name == ":":
            continue
        response = json.loads(data)
        if response["type"] != name:
            parsed.odd.append(f"{name} says {response['type']}")
        if parsed.ended or parsed.error:
            parsed.odd.append(f"{name} after the end")
        match name:
            case "ping":
                parsed.pings += 1
            case "message_start":
                parsed.odd += ["a second message_start"] if begun else []
                begun = True
            case "content_block_start":
                if response["index"] in open_:
                    parsed.odd.append(f"block {response['index']} begins twice")
                block = open_[response["index"]] = response["content_block"]
                if block["type"] == "tool_use":
                    parsed.calls.append({"name": block["name"], "id": block["id"], "arguments": "", "whole": False})
                    block["call"] = parsed.calls[-1]
            case "content_block_delta":
                block, delta = open_.get(response["index"], {}), response["delta"]
                if delta["type"] == "text_delta":
                    parsed.text += delta["text"]
                elif delta["type"] == "input_json_delta":
                    if "call" not in block:
                        parsed.odd.append("arguments of no call")
                    else:
                        block["call"]["arguments"] += delta["partial_json"]
            case "content_block_stop":
                open_.get(response["index"], {}).get("call", {})["whole"] = True
            case "message_delta":
                parsed.finish = response["delta"]["stop_reason"]
            case "message_stop":
                parsed.ended = True
                parsed.odd += [] if begun and parsed.finish else ["message_stop without its before"]
            case "error":
                parsed.error = response["error"]["message"]
                parsed.odd += [] if response["error"]["type"].endswith("_error") else [f"error {response['error']}"]
            case other:
                parsed.odd.append(f"event {other}")
    return parsed


def openai(body: bytes) -> ParsedResponse:
    parsed = ParsedResponse()
    calls: dict[int, dict[str, Any]] = {}
    for name, data in events(body):
        if name == ":":
            parsed.pings += 1
            continue
        if parsed.ended or parsed.error:
            parsed.odd.append(f"{data[:60]} after the end")
        if data == "[DONE]":
            parsed.ended = True
            parsed.odd += [] if parsed.finish else ["[DONE] without a finish_reason"]
            continue
        response = json.loads(data)
        if "error" in response:
            parsed.error = response["error"]["message"]
            continue
        for choice in response["choices"]:
            delta = choice["delta"]
            if parsed.finish and (delta.get("content") or delta.get("tool_calls")):
                parsed.odd.append("content after finish_reason")
            parsed.text += delta.get("content") or ""
            for part in delta.get("tool_calls") or []:
                function = part.get("function", {})
                if part.get("id"):
                    if part["index"] in calls:
                        parsed.odd.append(f"call {part['index']} begins twice")
                    calls[part["index"]] = {"name": function["name"], "id": part["id"], "arguments": "", "whole": True}
                if part["index"] not in calls:
                    parsed.odd.append("arguments of no call")
                else:
                    calls[part["index"]]["arguments"] += function.get("arguments") or ""
            if choice.get("finish_reason"):
                parsed.odd += ["two finish_reasons"] if parsed.finish else []
                parsed.finish = choice["finish_reason"]
    parsed.calls = [calls[index] for index in sorted(calls)]
    return parsed


def bedrock(body: bytes) -> ParsedResponse:
    parsed = ParsedResponse()
    buffer = EventStreamBuffer()
    buffer.add_data(body)  # botocore checks both checksums
    calls: dict[int, dict[str, Any]] = {}
    for message in buffer:
        headers, response = message.headers, json.loads(message.payload or b"{}")
        if headers[":message-type"] != "event":  # botocore raises it, also if only the metadata is missing
            parsed.error, parsed.ended = response.get("message") or "?", False
            continue
        if parsed.error or (parsed.ended and headers.get(":event-type") != "metadata"):
            parsed.odd.append(f"{headers} after the end")
        match headers[":event-type"]:
            case "contentBlockStart":
                if "toolUse" in response["start"]:
                    use = response["start"]["toolUse"]
                    calls[response["contentBlockIndex"]] = call = {"name": use["name"], "arguments": "", "whole": False}
                    parsed.calls.append(call)
            case "contentBlockDelta":
                delta = response["delta"]
                parsed.text += delta.get("text", "")
                if "toolUse" in delta:
                    if response["contentBlockIndex"] not in calls:
                        parsed.odd.append("arguments of no call")
                    else:
                        calls[response["contentBlockIndex"]]["arguments"] += delta["toolUse"]["input"]
            case "contentBlockStop":
                calls.get(response["contentBlockIndex"], {})["whole"] = True
            case "messageStop":
                parsed.finish, parsed.ended = response["stopReason"], True
            case "messageStart" | "metadata":
                pass
            case other:
                parsed.odd.append(f"event {other}")
    if buffer._data:
        parsed.odd.append(f"{len(buffer._data)} bytes of half a message")
    return parsed


def responses(body: bytes) -> ParsedResponse:
    parsed = ParsedResponse()
    calls: dict[str, dict[str, Any]] = {}
    expected = 0
    for name, data in events(body):
        if name == ":":
            parsed.pings += 1
            continue
        response = json.loads(data)
        if response["type"] != name:
            parsed.odd.append(f"{name} says {response['type']}")
        if parsed.ended or parsed.error:
            parsed.odd.append(f"{name} after the end")
        if "sequence_number" in response:
            parsed.odd += (
                [] if response["sequence_number"] == expected else [f"{response['sequence_number']} is not {expected}"]
            )
            expected = response["sequence_number"] + 1
        match name:
            case "response.output_text.delta":
                parsed.text += response["delta"]
            case "response.output_item.added" if response["item"]["type"] == "function_call":
                item = response["item"]
                calls[item["id"]] = call = {
                    "name": item["name"],
                    "arguments": item.get("arguments") or "",
                    "whole": False,
                }
                parsed.calls.append(call)
            case "response.function_call_arguments.delta":
                if response["item_id"] not in calls:
                    parsed.odd.append("arguments of no call")
                else:
                    calls[response["item_id"]]["arguments"] += response["delta"]
            case "response.output_item.done" if response["item"]["type"] == "function_call":
                calls.get(response["item"]["id"], {})["whole"] = response["item"].get("status") in (None, "completed")
            case "response.completed":
                parsed.ended, parsed.finish = True, "completed"
            case "response.incomplete":
                parsed.ended, parsed.finish = True, response["response"]["incomplete_details"]["reason"]
            case "response.failed":
                parsed.error = (response["response"].get("error") or {}).get("message") or "?"
            case "error":
                parsed.error = response.get("message") or response.get("error", {}).get("message") or "?"
            case _:
                pass
    return parsed


def gemini(body: bytes) -> ParsedResponse:
    parsed, last = ParsedResponse(), ""
    for name, data in events(body):
        if name == ":":
            parsed.pings += 1
            continue
        response = json.loads(data)
        if parsed.error and data != last:  # the error is sent twice: as an event, and as bare JSON
            parsed.odd.append(f"{data[:60]} after the end")
        if "error" in response:
            parsed.error, parsed.ended, last = response["error"]["message"], False, data
            continue
        for candidate in response.get("candidates") or []:
            parts = (candidate.get("content") or {}).get("parts") or []
            if parts == [{"text": ""}] and not candidate.get("finishReason"):
                parsed.pings += 1
                continue
            for part in parts:
                if parsed.finish:
                    parsed.odd.append("content after finishReason")
                if "functionCall" in part:
                    arguments = json.dumps(part["functionCall"].get("args", {}))
                    parsed.calls.append({"name": part["functionCall"]["name"], "arguments": arguments, "whole": True})
                elif not part.get("thought"):
                    parsed.text += part.get("text", "")
            if candidate.get("finishReason"):
                parsed.finish, parsed.ended = candidate["finishReason"], True
    return parsed


RESPONSE_PARSERS: dict[str, Callable[[bytes], ParsedResponse]] = {
    "anthropic": anthropic,
    "openai": openai,
    "bedrock": bedrock,
    "responses": responses,
    "gemini": gemini,
}

# The stop reasons for a length limit.
LENGTH_REASONS = {"max_tokens", "length", "max_output_tokens", "MAX_TOKENS"}


# --- whole replies, and refusals


def parse_whole(dialect: str, body: bytes) -> ParsedResponse:
    response = json.loads(body)
    parsed = ParsedResponse(ended=True)
    match dialect:
        case "anthropic":
            parts = response["content"]
            parsed.text = "".join(part["text"] for part in parts if part["type"] == "text")
            parsed.calls = [_whole_call(part["name"], part["input"]) for part in parts if part["type"] == "tool_use"]
            parsed.finish = response["stop_reason"]
        case "openai":
            message = response["choices"][0]["message"]
            parsed.text = message.get("content") or ""
            parsed.calls = [
                {"name": call["function"]["name"], "arguments": call["function"]["arguments"], "whole": True}
                for call in message.get("tool_calls") or []
            ]
            parsed.finish = response["choices"][0]["finish_reason"]
        case "bedrock":
            parts = response["output"]["message"]["content"]
            parsed.text = "".join(part["text"] for part in parts if "text" in part)
            parsed.calls = [
                _whole_call(part["toolUse"]["name"], part["toolUse"]["input"]) for part in parts if "toolUse" in part
            ]
            parsed.finish = response["stopReason"]
        case "responses":
            for item in response["output"]:
                if item["type"] == "message":
                    parsed.text += "".join(part.get("text", "") for part in item["content"])
                elif item["type"] == "function_call":
                    parsed.calls.append({"name": item["name"], "arguments": item["arguments"], "whole": True})
            parsed.finish = response["status"]
        case "gemini":
            for part in response["candidates"][0]["content"]["parts"]:
                if "functionCall" in part:
                    parsed.calls.append(_whole_call(part["functionCall"]["name"], part["functionCall"].get("args", {})))
                elif not part.get("thought"):
                    parsed.text += part.get("text", "")
            parsed.finish = response["candidates"][0]["finishReason"]
        case _:
            raise ValueError(f"no ear for {dialect}")
    return parsed


def _whole_call(name: str, arguments: Any) -> dict[str, Any]:
    return {"name": name, "arguments": json.dumps(arguments), "whole": True}


def parse_refusal(dialect: str, response: RawResponse) -> str:
    """Return the message of a refusal in the shape of the dialect. Raises WrongResponse."""
    try:
        body = json.loads(response.body)
        match dialect:
            case "anthropic":
                assert body["type"] == "error" and re.fullmatch(r"\w+_error|request_too_large", body["error"]["type"])
                return str(body["error"]["message"])
            case "bedrock":
                assert re.fullmatch(r"\w+Exception", response.headers["x-amzn-errortype"].partition(":")[0])
                return str(body.get("message") or body["Message"])
            case "gemini":
                error = (body[0] if isinstance(body, list) else body)["error"]
                assert error["code"] == response.status and error["status"].isupper()
                return str(error["message"])
            case _:
                assert {"message", "type", "code", "param"} <= set(body["error"])
                return str(body["error"]["message"])
    except (ValueError, KeyError, TypeError, AssertionError) as error:
        raise WrongResponse(f"no refusal in the words of {dialect}: {response} ({error!r})") from None

"""What a client hears, read without our codecs: one small reader a dialect."""

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
    """What a response says. `finish` is the dialect's own word, `ended` that its last event came."""

    text: str = ""
    calls: list[dict[str, Any]] = field(default_factory=list)  # name, arguments (text)
    finish: str | None = None
    ended: bool = False
    error: str | None = None
    pings: int = 0
    odd: list[str] = field(default_factory=list)  # what a client would stumble over

    def arguments(self) -> list[Any]:
        return [json.loads(call["arguments"]) for call in self.calls]


# --- server-sent events, as simple as can be: what we write is always LF


def events(body: bytes) -> Iterator[tuple[str, str]]:
    """Name and data; a comment has the name `:`."""
    text = body.decode("utf-8")  # raises: a client must never get anything else
    for block in text.split("\n\n"):
        if not block:
            continue
        name, data = "", []
        for line in block.split("\n"):
            if line.startswith("{"):  # Google's way to tell an error in mid-stream: bare JSON
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


def anthropic(body: bytes) -> ParsedResponse:  # noqa: C901  one case an event
    heard, open_, begun = ParsedResponse(), {}, False
    for name, data in events(body):
        if name == ":":
            continue
        told = json.loads(data)
        if told["type"] != name:
            heard.odd.append(f"{name} says {told['type']}")
        if heard.ended or heard.error:
            heard.odd.append(f"{name} after the end")
        match name:
            case "ping":
                heard.pings += 1
            case "message_start":
                heard.odd += ["a second message_start"] if begun else []
                begun = True
            case "content_block_start":
                if told["index"] in open_:
                    heard.odd.append(f"block {told['index']} begins twice")
                block = open_[told["index"]] = told["content_block"]
                if block["type"] == "tool_use":
                    heard.calls.append({"name": block["name"], "id": block["id"], "arguments": "", "whole": False})
                    block["call"] = heard.calls[-1]
            case "content_block_delta":
                block, delta = open_.get(told["index"], {}), told["delta"]
                if delta["type"] == "text_delta":
                    heard.text += delta["text"]
                elif delta["type"] == "input_json_delta":
                    if "call" not in block:
                        heard.odd.append("arguments of no call")
                    else:
                        block["call"]["arguments"] += delta["partial_json"]
            case "content_block_stop":
                open_.get(told["index"], {}).get("call", {})["whole"] = True
            case "message_delta":
                heard.finish = told["delta"]["stop_reason"]
            case "message_stop":
                heard.ended = True
                heard.odd += [] if begun and heard.finish else ["message_stop without its before"]
            case "error":
                heard.error = told["error"]["message"]
                heard.odd += [] if told["error"]["type"].endswith("_error") else [f"error {told['error']}"]
            case other:
                heard.odd.append(f"event {other}")
    return heard


def openai(body: bytes) -> ParsedResponse:
    heard = ParsedResponse()
    calls: dict[int, dict[str, Any]] = {}
    for name, data in events(body):
        if name == ":":
            heard.pings += 1
            continue
        if heard.ended or heard.error:
            heard.odd.append(f"{data[:60]} after the end")
        if data == "[DONE]":
            heard.ended = True
            heard.odd += [] if heard.finish else ["[DONE] without a finish_reason"]
            continue
        told = json.loads(data)
        if "error" in told:
            heard.error = told["error"]["message"]
            continue
        for choice in told["choices"]:
            delta = choice["delta"]
            if heard.finish and (delta.get("content") or delta.get("tool_calls")):
                heard.odd.append("content after finish_reason")
            heard.text += delta.get("content") or ""
            for part in delta.get("tool_calls") or []:
                function = part.get("function", {})
                if part.get("id"):
                    if part["index"] in calls:
                        heard.odd.append(f"call {part['index']} begins twice")
                    calls[part["index"]] = {"name": function["name"], "id": part["id"], "arguments": "", "whole": True}
                if part["index"] not in calls:
                    heard.odd.append("arguments of no call")
                else:
                    calls[part["index"]]["arguments"] += function.get("arguments") or ""
            if choice.get("finish_reason"):
                heard.odd += ["two finish_reasons"] if heard.finish else []
                heard.finish = choice["finish_reason"]
    heard.calls = [calls[index] for index in sorted(calls)]
    return heard


def bedrock(body: bytes) -> ParsedResponse:
    heard = ParsedResponse()
    buffer = EventStreamBuffer()
    buffer.add_data(body)  # botocore checks both checksums
    calls: dict[int, dict[str, Any]] = {}
    for message in buffer:
        headers, told = message.headers, json.loads(message.payload or b"{}")
        if headers[":message-type"] != "event":  # botocore raises it, also where only the metadata is missing
            heard.error, heard.ended = told.get("message") or "?", False
            continue
        if heard.error or (heard.ended and headers.get(":event-type") != "metadata"):
            heard.odd.append(f"{headers} after the end")
        match headers[":event-type"]:
            case "contentBlockStart":
                if "toolUse" in told["start"]:
                    use = told["start"]["toolUse"]
                    calls[told["contentBlockIndex"]] = call = {"name": use["name"], "arguments": "", "whole": False}
                    heard.calls.append(call)
            case "contentBlockDelta":
                delta = told["delta"]
                heard.text += delta.get("text", "")
                if "toolUse" in delta:
                    if told["contentBlockIndex"] not in calls:
                        heard.odd.append("arguments of no call")
                    else:
                        calls[told["contentBlockIndex"]]["arguments"] += delta["toolUse"]["input"]
            case "contentBlockStop":
                calls.get(told["contentBlockIndex"], {})["whole"] = True
            case "messageStop":
                heard.finish, heard.ended = told["stopReason"], True
            case "messageStart" | "metadata":
                pass
            case other:
                heard.odd.append(f"event {other}")
    if buffer._data:
        heard.odd.append(f"{len(buffer._data)} bytes of half a message")
    return heard


def responses(body: bytes) -> ParsedResponse:
    heard = ParsedResponse()
    calls: dict[str, dict[str, Any]] = {}
    expected = 0
    for name, data in events(body):
        if name == ":":
            heard.pings += 1
            continue
        told = json.loads(data)
        if told["type"] != name:
            heard.odd.append(f"{name} says {told['type']}")
        if heard.ended or heard.error:
            heard.odd.append(f"{name} after the end")
        if "sequence_number" in told:
            heard.odd += [] if told["sequence_number"] == expected else [f"{told['sequence_number']} is not {expected}"]
            expected = told["sequence_number"] + 1
        match name:
            case "response.output_text.delta":
                heard.text += told["delta"]
            case "response.output_item.added" if told["item"]["type"] == "function_call":
                item = told["item"]
                calls[item["id"]] = call = {
                    "name": item["name"],
                    "arguments": item.get("arguments") or "",
                    "whole": False,
                }
                heard.calls.append(call)
            case "response.function_call_arguments.delta":
                if told["item_id"] not in calls:
                    heard.odd.append("arguments of no call")
                else:
                    calls[told["item_id"]]["arguments"] += told["delta"]
            case "response.output_item.done" if told["item"]["type"] == "function_call":
                calls.get(told["item"]["id"], {})["whole"] = told["item"].get("status") in (None, "completed")
            case "response.completed":
                heard.ended, heard.finish = True, "completed"
            case "response.incomplete":
                heard.ended, heard.finish = True, told["response"]["incomplete_details"]["reason"]
            case "response.failed":
                heard.error = (told["response"].get("error") or {}).get("message") or "?"
            case "error":
                heard.error = told.get("message") or told.get("error", {}).get("message") or "?"
            case _:
                pass
    return heard


def gemini(body: bytes) -> ParsedResponse:
    heard, last = ParsedResponse(), ""
    for name, data in events(body):
        if name == ":":
            heard.pings += 1
            continue
        told = json.loads(data)
        if heard.error and data != last:  # the error stands there twice: as an event, and bare
            heard.odd.append(f"{data[:60]} after the end")
        if "error" in told:
            heard.error, heard.ended, last = told["error"]["message"], False, data
            continue
        for candidate in told.get("candidates") or []:
            parts = (candidate.get("content") or {}).get("parts") or []
            if parts == [{"text": ""}] and not candidate.get("finishReason"):
                heard.pings += 1
                continue
            for part in parts:
                if heard.finish:
                    heard.odd.append("content after finishReason")
                if "functionCall" in part:
                    arguments = json.dumps(part["functionCall"].get("args", {}))
                    heard.calls.append({"name": part["functionCall"]["name"], "arguments": arguments, "whole": True})
                elif not part.get("thought"):
                    heard.text += part.get("text", "")
            if candidate.get("finishReason"):
                heard.finish, heard.ended = candidate["finishReason"], True
    return heard


RESPONSE_PARSERS: dict[str, Callable[[bytes], ParsedResponse]] = {
    "anthropic": anthropic,
    "openai": openai,
    "bedrock": bedrock,
    "responses": responses,
    "gemini": gemini,
}

# The words for "the model was cut off by a limit".
LENGTH_REASONS = {"max_tokens", "length", "max_output_tokens", "MAX_TOKENS"}


# --- whole replies, and refusals


def parse_whole(dialect: str, body: bytes) -> ParsedResponse:
    told = json.loads(body)
    heard = ParsedResponse(ended=True)
    match dialect:
        case "anthropic":
            parts = told["content"]
            heard.text = "".join(part["text"] for part in parts if part["type"] == "text")
            heard.calls = [_whole_call(part["name"], part["input"]) for part in parts if part["type"] == "tool_use"]
            heard.finish = told["stop_reason"]
        case "openai":
            message = told["choices"][0]["message"]
            heard.text = message.get("content") or ""
            heard.calls = [
                {"name": call["function"]["name"], "arguments": call["function"]["arguments"], "whole": True}
                for call in message.get("tool_calls") or []
            ]
            heard.finish = told["choices"][0]["finish_reason"]
        case "bedrock":
            parts = told["output"]["message"]["content"]
            heard.text = "".join(part["text"] for part in parts if "text" in part)
            heard.calls = [
                _whole_call(part["toolUse"]["name"], part["toolUse"]["input"]) for part in parts if "toolUse" in part
            ]
            heard.finish = told["stopReason"]
        case "responses":
            for item in told["output"]:
                if item["type"] == "message":
                    heard.text += "".join(part.get("text", "") for part in item["content"])
                elif item["type"] == "function_call":
                    heard.calls.append({"name": item["name"], "arguments": item["arguments"], "whole": True})
            heard.finish = told["status"]
        case "gemini":
            for part in told["candidates"][0]["content"]["parts"]:
                if "functionCall" in part:
                    heard.calls.append(_whole_call(part["functionCall"]["name"], part["functionCall"].get("args", {})))
                elif not part.get("thought"):
                    heard.text += part.get("text", "")
            heard.finish = told["candidates"][0]["finishReason"]
        case _:
            raise ValueError(f"no ear for {dialect}")
    return heard


def _whole_call(name: str, arguments: Any) -> dict[str, Any]:
    return {"name": name, "arguments": json.dumps(arguments), "whole": True}


def parse_refusal(dialect: str, told: RawResponse) -> str:
    """The message of a refusal in the dialect's own shape. Raises Wrong."""
    try:
        body = json.loads(told.body)
        match dialect:
            case "anthropic":
                assert body["type"] == "error" and re.fullmatch(r"\w+_error|request_too_large", body["error"]["type"])
                return str(body["error"]["message"])
            case "bedrock":
                assert re.fullmatch(r"\w+Exception", told.headers["x-amzn-errortype"].partition(":")[0])
                return str(body.get("message") or body["Message"])
            case "gemini":
                error = (body[0] if isinstance(body, list) else body)["error"]
                assert error["code"] == told.status and error["status"].isupper()
                return str(error["message"])
            case _:
                assert {"message", "type", "code", "param"} <= set(body["error"])
                return str(body["error"]["message"])
    except (ValueError, KeyError, TypeError, AssertionError) as error:
        raise WrongResponse(f"no refusal in the words of {dialect}: {told} ({error!r})") from None

"""Helpers of the Kiro tests: translate client requests, build response frames, and read the results."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import dragoman
from dragoman.api import Translated
from dragoman.conformance.laws import fixed_environment
from dragoman.dialects.kiro import DIALECT
from dragoman.dialects.kiro.codec import KiroCodec
from dragoman.model.conversation import Conversation
from dragoman.model.events import Event, Events, Failed
from dragoman.response_stream import ResponseTranslator
from dragoman.simulator.kiro.rules import refusals
from dragoman.translate import Plan
from dragoman.wire.eventstream import EventStreamDecoder, encode_event
from dragoman.wire.http import HttpRequest

MODEL = "claude-sonnet-4-5"
WEATHER: dict[str, Any] = {
    "name": "get_weather",
    "description": "Tell the weather.",
    "input_schema": {"type": "object", "properties": {"location": {"type": "string"}}},
}


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def assistant(content: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content}


def use(call_id: str, name: str = "get_weather", arguments: Any = None) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": name, "input": {} if arguments is None else arguments}


def result(call_id: str, content: Any = "ok", **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call_id, "content": content, **more}


def anthropic_request(*messages: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"model": MODEL, "max_tokens": 100, "stream": True, "messages": list(messages), **more}


def translate_to_kiro(body: dict[str, Any], source: str = "anthropic", **options: Any) -> Translated:
    """The translated request. Whatever is translated must be accepted by the strictest simulator."""
    translated = dragoman.translate_request(body, source=source, target="kiro", **options)
    request = HttpRequest("POST", translated.path, headers=tuple(translated.headers.items()), body=translated.raw)
    assert [str(refusal) for refusal in refusals(request, "paranoid")] == []
    return translated


def state(translated: Translated) -> dict[str, Any]:
    found = translated.body["conversationState"]
    assert isinstance(found, dict)
    return found


def history(translated: Translated) -> list[tuple[str, Any]]:
    """History as (role, content) pairs."""
    return [
        ("user", entry["userInputMessage"]["content"])
        if "userInputMessage" in entry
        else ("assistant", entry["assistantResponseMessage"]["content"])
        for entry in state(translated).get("history", [])
    ]


def current(translated: Translated) -> dict[str, Any]:
    found = state(translated)["currentMessage"]["userInputMessage"]
    assert isinstance(found, dict)
    return found


def results(translated: Translated) -> list[dict[str, Any]]:
    found = current(translated)["userInputMessageContext"]["toolResults"]
    assert isinstance(found, list)
    return found


def tools(translated: Translated) -> dict[str, Any]:
    listed = current(translated).get("userInputMessageContext", {}).get("tools", [])
    return {tool["toolSpecification"]["name"]: tool["toolSpecification"] for tool in listed}


def rules(translated: Translated) -> list[str]:
    return [note.rule for note in translated.notes]


# --- response streams

EventData = tuple[str, Any]


def text(content: str, **more: Any) -> EventData:
    return "assistantResponseEvent", {"content": content, **more}


def call(call_id: str = "t1", name: str = "get_weather", **more: Any) -> EventData:
    return "toolUseEvent", {"toolUseId": call_id, "name": name, **more}


def usage(percentage: float = 1.5) -> EventData:
    return "contextUsageEvent", {"contextUsagePercentage": percentage}


def stop_event(reason: str) -> EventData:
    return "metadataEvent", {"stopReason": reason}


def frames(*events: EventData) -> bytes:
    return b"".join(encode_event(kind, json.dumps(body).encode()) for kind, body in events)


def exception(kind: str, **body: Any) -> bytes:
    return encode_event(kind, json.dumps(body).encode(), error=True)


def decode_stream(data: bytes, conversation: Conversation | None = None, **settings: Any) -> Events:
    """Return the events of a stream. Raises the fault of its last event, if any."""
    codec = KiroCodec(**settings)
    decoder = codec.decoder(conversation or Conversation(MODEL, ()), fixed_environment())
    cutter = EventStreamDecoder()
    events: list[Event] = []
    for frame in cutter.feed(data):
        events += decoder.feed(frame) or ()
    list(cutter.close())
    return (*events, *decoder.close(None))


def client_stream(data: bytes, planned: Plan | None = None, target: str = "anthropic") -> bytes:
    """The client's stream for an upstream's bytes."""
    from dragoman import dialects
    from dragoman.translate import plan

    planned = planned or plan(dialects.get(target), DIALECT, Conversation(MODEL, ()))  # type: ignore[attr-defined]
    response = ResponseTranslator(planned, fixed_environment())
    return response.feed(data) + response.close()


def texts(message: dict[str, Any]) -> str:
    return "".join(block["text"] for block in message["content"] if block["type"] == "text")


def calls(message: dict[str, Any]) -> list[tuple[str, str, str]]:
    return [(block["id"], block["name"], block["json"]) for block in message["content"] if block["type"] == "tool_use"]


def fault(events: Iterable[Event]) -> Any:
    *_, last = events
    assert isinstance(last, Failed)
    return last.fault

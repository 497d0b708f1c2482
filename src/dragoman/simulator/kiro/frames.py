"""Kiro's answer as wire frames, in the order the service sends them (facts 3.2). Quirks are those of facts 3.3."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from dragoman.model.conversation import Why
from dragoman.simulator.kiro.signatures import sign
from dragoman.simulator.pieces import Break, Pause, Piece
from dragoman.simulator.turn import TROUBLES, Emit, Part, Raise, Reason, Say, Use, Wait, exception_name
from dragoman.wire import jsonio
from dragoman.wire.eventstream import encode_event
from dragoman.wire.jsonio import Json

_STOP_REASONS = {
    Why.END: "END_TURN",
    Why.TOOL: "TOOL_USE",
    Why.LENGTH: "MAX_TOKENS",
    Why.SEQUENCE: "STOP_SEQUENCE",
    Why.REFUSAL: "CONTENT_FILTERED",
    Why.CONTEXT: "MODEL_CONTEXT_WINDOW_EXCEEDED",
    Why.PAUSE: "MAX_TIME",
}


class Performance(Struct, frozen=True, kw_only=True):
    """One answer, ready to be written."""

    parts: tuple[Part, ...]
    stop: Why
    model: str
    conversation: str
    call_ids: tuple[str, ...]  # for calls without an id of their own
    percentage: float
    chunk: int = 12
    tags: bool = False  # reasoning is written as <thinking> into the text
    quirks: frozenset[str] = frozenset()


def perform(performance: Performance) -> Iterator[Piece]:
    """Every wire frame of the answer; after an exception there is nothing."""
    quirks, wraps = performance.quirks, "nested" in performance.quirks
    if "no_start" not in quirks:
        yield _event("messageMetadataEvent", {"conversationId": performance.conversation, "utteranceId": "sim"}, wraps)
    ids = iter(performance.call_ids)
    for part in performance.parts:
        if isinstance(part, Raise):
            yield _exception(part)
            yield Break("end")
            return
        call_id = part.id or next(ids) if isinstance(part, Use) else ""
        for told in _told(part, call_id, performance):
            yield told if isinstance(told, Pause) else _event(*told, wraps)
    if "no_metadata" not in quirks:
        yield _event("metadataEvent", {"stopReason": _STOP_REASONS[performance.stop]}, wraps)
    if "no_usage" not in quirks:
        yield _event("contextUsageEvent", {"contextUsagePercentage": performance.percentage}, wraps)
        yield _event("meteringEvent", {"usage": 0.01, "unit": "credit", "unitPlural": "credits"}, wraps)


def _told(part: Part, call_id: str, performance: Performance) -> Iterator[tuple[str, Json] | Pause]:
    chunk = performance.chunk
    match part:
        case Say(text):
            for piece in _pieces(text, chunk):
                yield "assistantResponseEvent", {"content": piece, "modelId": performance.model}
        case Reason(text) if performance.tags:
            for piece in _pieces(f"<thinking>\n{text}</thinking>\n\n", chunk):
                yield "assistantResponseEvent", {"content": piece, "modelId": performance.model}
        case Reason(text):
            for piece in _pieces(text, chunk):
                yield "reasoningContentEvent", {"text": piece}
            for piece in _pieces(sign(text), 40):  # in parts, as the service sends it
                yield "reasoningContentEvent", {"signature": piece}
        case Use():
            yield from _use(part, call_id, performance)
        case Wait(seconds):
            yield Pause(seconds)
        case Emit(event, data):
            yield event, data
        case Raise():
            pass  # the end of the answer, and so not told here


def _use(part: Use, call_id: str, performance: Performance) -> Iterator[tuple[str, Json]]:
    named: dict[str, Json] = {"name": part.name, "toolUseId": call_id}
    later = {} if "bare_fragments" in performance.quirks else named
    yield "toolUseEvent", {**named, "input": {}} if "object_input" in performance.quirks else named
    if part.arguments != "{}":  # a call without arguments has no input at all (facts 3.3, 2)
        for piece in _pieces(part.arguments, performance.chunk):
            yield "toolUseEvent", {**later, "input": piece}
    yield "toolUseEvent", {**later, "stop": True}


def _pieces(text: str, size: int) -> Iterator[str]:
    return (text[at : at + size] for at in range(0, len(text), size))


def _event(kind: str, data: Json, wraps: bool) -> bytes:
    return encode_event(kind, jsonio.encode({kind: data} if wraps else data))


def _exception(part: Raise) -> bytes:
    kind = exception_name(part.type)
    known = TROUBLES.get(kind)
    message = part.message or (known.message if known else kind)
    body: dict[str, Json] = {"message": message, "reason": part.reason} if part.reason else {"message": message}
    return encode_event(kind, jsonio.encode(body), error=True)

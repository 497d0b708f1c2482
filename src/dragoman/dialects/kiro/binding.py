"""Path, headers and framing of both wire protocols (facts 1.1): a REST path, or `x-amz-target` on the root."""

from __future__ import annotations

from msgspec import Struct

from dragoman.dialects.base import Call
from dragoman.dialects.kiro.faults import status_of, type_of
from dragoman.dialects.kiro.request import turns_of
from dragoman.dialects.kiro.turns import USER
from dragoman.dialects.kit.faults import refusal
from dragoman.errors import Fault, MalformedRequest
from dragoman.wire import jsonio
from dragoman.wire.eventstream import EventStreamDecoder, encode_event
from dragoman.wire.fields import Fields
from dragoman.wire.frame import FrameDecoder, Payload
from dragoman.wire.http import Headers, HttpRequest, HttpResponse
from dragoman.wire.jsonio import Json

EVENT_STREAM = "application/vnd.amazon.eventstream"
_PATH, _MODELS = "/generateAssistantResponse", "/ListAvailableModels"
_OPERATION = ".GenerateAssistantResponse"
_TARGET = "AmazonCodeWhispererStreamingService" + _OPERATION
_MODE = "x-amzn-kiro-agent-mode"
_USUAL_MODE = "vibe"
_COMMON: Headers = (("accept", EVENT_STREAM), ("x-amzn-codewhisperer-optout", "true"))


class KiroBinding(Struct, frozen=True):
    """Sends the REST form; takes either."""

    def match(self, request: HttpRequest) -> Call | None:
        path = request.path.rstrip("/")
        if request.method == "GET" and path == _MODELS:
            return Call("models", "", False, None)
        targeted = not path and request.header("x-amz-target").endswith(_OPERATION)
        if request.method != "POST" or (path != _PATH and not targeted):
            return None
        return _call(Fields.of(request), request.header(_MODE))

    def unwrap(self, body: Json) -> Call:
        return _call(Fields(body), "")

    def wrap(self, call: Call) -> HttpRequest:
        if call.operation == "models":
            return HttpRequest("GET", _MODELS, "origin=AI_EDITOR", (("accept", "application/json"),))
        mode = call.hints.get(_MODE, _USUAL_MODE)
        headers = (("content-type", "application/json"), *_COMMON, (_MODE, mode))
        return HttpRequest("POST", _PATH, headers=headers, body=_encoded(_with_model(call)))

    def frames(self) -> FrameDecoder:
        return EventStreamDecoder()

    def frame(self, payload: Payload) -> bytes:
        return encode_event(payload.kind, payload.data, error=payload.error)

    def refuse(self, fault: Fault, body: bytes) -> HttpResponse:
        return refusal(fault, status_of(fault), body, ("x-amzn-errortype", type_of(fault)))


class KiroTargetBinding(KiroBinding, frozen=True):
    """Sends the form of the command-line clients: the operation in a header, the agent mode in the body."""

    def wrap(self, call: Call) -> HttpRequest:
        if call.operation == "models":
            return super().wrap(call)
        body: dict[str, Json] = {"agentMode": call.hints.get(_MODE, _USUAL_MODE), **_with_model(call)}
        headers = (("content-type", "application/x-amz-json-1.0"), *_COMMON, ("x-amz-target", _TARGET))
        return HttpRequest("POST", "/", headers=headers, body=_encoded(body))


def _call(fields: Fields, mode: str) -> Call:
    """The call, out of its envelope: the model stands in every user turn, the mode in a header or in the body."""
    mode = fields.text("agentMode", "") or mode
    state = fields.child("conversationState")
    current = state.child("currentMessage")
    user = current.peek(USER)
    model = user.get("modelId") if isinstance(user, dict) else None
    if model is not None and not isinstance(model, str):
        current.child(USER).fail("modelId", "expected a string")
    body = turns_of(fields.rest() | {"conversationState": state_with(state, current)}, model or "", named=False)
    return Call("generate", model or "", True, body, {} if mode in ("", _USUAL_MODE) else {_MODE: mode})


def state_with(state: Fields, current: Fields) -> dict[str, Json]:
    return {**state.rest(), "currentMessage": current.rest()}


def _with_model(call: Call) -> dict[str, Json]:
    body = call.body if isinstance(call.body, dict) else {}
    return turns_of(body, call.model, named=True) if call.model else body


def _encoded(body: dict[str, Json]) -> bytes:
    try:
        return jsonio.encode(body)
    except jsonio.JsonError as error:
        raise MalformedRequest(str(error)) from None

"""Path, headers and framing: POST /v1/messages, server-sent events, anthropic-* headers."""

from __future__ import annotations

from msgspec import Struct

from dragoman.dialects.anthropic.faults import status_of
from dragoman.dialects.base import Call, Operation, in_cache_order
from dragoman.dialects.kit.faults import refusal
from dragoman.errors import Fault, MalformedRequest, MissingField
from dragoman.wire import jsonio
from dragoman.wire.fields import Fields
from dragoman.wire.frame import FrameDecoder, Payload
from dragoman.wire.http import HttpRequest, HttpResponse
from dragoman.wire.jsonio import Json
from dragoman.wire.sse import SseDecoder, encode_sse

VERSION = "2023-06-01"

_PATHS: dict[str, Operation] = {"/v1/messages": "generate", "/v1/messages/count_tokens": "count"}
_MODELS = "/v1/models"
_HINTS = ("anthropic-version", "anthropic-beta")
# The counting endpoint refuses fields that have no bearing on the count.
_COUNTED = frozenset(
    {"messages", "system", "tools", "tool_choice", "thinking", "output_config", "cache_control", "context_management"}
    | {"mcp_servers", "speed"}
)


def generates(request: HttpRequest) -> bool:
    return request.method == "POST" and _PATHS.get(request.path) == "generate"


class AnthropicBinding(Struct, frozen=True):
    def match(self, request: HttpRequest) -> Call | None:
        path = request.path.rstrip("/")
        if request.method == "GET" and request.header("anthropic-version"):
            if path == _MODELS or path.startswith(_MODELS + "/"):
                return Call("models", path[len(_MODELS) + 1 :], False, None, hints_of(request))
            return None
        operation = _PATHS.get(path) or _PATHS.get(f"/v1{path}")  # some clients' base URLs end with it, some do not
        if request.method != "POST" or operation is None:
            return None
        return _call(Fields.of(request), operation, hints_of(request))

    def unwrap(self, body: Json) -> Call:
        return _call(Fields(body), "generate", {})

    def wrap(self, call: Call) -> HttpRequest:
        headers = [("anthropic-version", call.hints.get("anthropic-version", VERSION))]
        if beta := call.hints.get("anthropic-beta"):
            headers.append(("anthropic-beta", beta))
        if call.operation == "models":
            path = f"{_MODELS}/{call.model}" if call.model else _MODELS
            return HttpRequest("GET", path, headers=(("accept", "application/json"), *headers))
        path = next(path for path, operation in _PATHS.items() if operation == call.operation)
        accept = "text/event-stream" if call.stream and call.operation == "generate" else "application/json"
        head = (("content-type", "application/json"), ("accept", accept), *headers)
        return HttpRequest("POST", path, headers=head, body=_encode(_body(call)))

    def frames(self) -> FrameDecoder:
        return SseDecoder()

    def frame(self, payload: Payload) -> bytes:
        return encode_sse(payload.kind, payload.data)

    def refuse(self, fault: Fault, body: bytes) -> HttpResponse:
        more = [("x-should-retry", "false")] if fault.kind == "quota" else []
        return refusal(fault, status_of(fault), body, *more)


class AnthropicCounts(Struct, frozen=True):
    def parse_count(self, body: bytes) -> int:
        return Fields.parse(body, blame=MissingField).integer("input_tokens")

    def render_count(self, tokens: int, estimated: bool) -> bytes:
        return jsonio.encode({"input_tokens": tokens})


def hints_of(request: HttpRequest) -> dict[str, str]:
    """The headers that matter. The usual version says nothing; a header sent twice is one list."""
    hints: dict[str, str] = {}
    for name, value in request.headers:
        if name in _HINTS and value and (name, value) != ("anthropic-version", VERSION):
            hints[name] = f"{hints[name]},{value}" if name in hints else value
    return hints


def _call(fields: Fields, operation: Operation, hints: dict[str, str]) -> Call:
    model, stream = fields.text("model"), fields.flag("stream", False)
    if not model.strip():
        fields.fail("model", "expected the name of a model")
    return Call(operation, model, stream, fields.rest(), hints)


def _body(call: Call) -> dict[str, Json]:
    body = call.body if isinstance(call.body, dict) else {}
    if call.operation == "count":
        body = {name: value for name, value in body.items() if name in _COUNTED}
        return {"model": call.model, **body}
    stream: dict[str, Json] = {"stream": True} if call.stream else {}
    return {"model": call.model, **in_cache_order({**body, **stream}, ("tools", "system"), "messages")}


def _encode(body: dict[str, Json]) -> bytes:
    try:
        return jsonio.encode(body)
    except jsonio.JsonError as error:
        raise MalformedRequest(str(error)) from None

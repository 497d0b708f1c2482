"""The HTTP binding of Ollama's API: `POST /api/chat`, `GET /api/tags`, NDJSON, `{"error": "a sentence"}`. Pure."""

from __future__ import annotations

from msgspec import Struct

from dragoman.dialects.base import ApiRequest, ListedModel, in_cache_order
from dragoman.dialects.kit.binding import JSON, json_post
from dragoman.dialects.kit.faults import DEFAULT_STATUSES, FaultTable, error_response
from dragoman.dialects.kit.model_lists import JsonModelList
from dragoman.dialects.kit.values import decoded, iso_time, members, text
from dragoman.errors import ErrorKind, Fault
from dragoman.model.conversation import Conversation
from dragoman.wire import jsonio
from dragoman.wire.fields import Fields
from dragoman.wire.frame import FrameDecoder, Payload
from dragoman.wire.http import HttpRequest, HttpResponse
from dragoman.wire.jsonio import Json
from dragoman.wire.ndjson import NDJSON, NdjsonDecoder, encode_line

_CHAT, _TAGS = "/api/chat", "/api/tags"
_TABLE = FaultTable(
    {kind: ("", status) for kind, status in DEFAULT_STATUSES.items()},
    statuses={499: "server"},  # the server cancelled the request
    exact={"server": frozenset({502})},
)
# Phrases that identify an error better than its status does. An error within a stream has no status.
_KIND_BY_PHRASE: tuple[tuple[str, ErrorKind], ...] = (
    ("exceeds the available context size", "context_full"),
    ("longer than the context length", "context_full"),
    ("exceeds the context length", "context_full"),
    ("prompt is too long", "context_full"),
    ("server busy", "overloaded"),
    ("usage limit", "quota"),
)
_TOO_LONG = "prompt is too long"  # clients compact their conversation when they read this


def parse_fault(response: HttpResponse, sent: Conversation | None = None) -> Fault:
    """Return the fault of an error response, which a proxy may send without JSON."""
    body = decoded(response.body)
    if not isinstance(body, dict):
        return _TABLE.unreadable(response)
    return fault_of(body, response.status, response.retry_after)


def fault_of(body: dict[str, Json], status: int = 500, wait: float | None = None) -> Fault:
    """Return the fault of an error object. Within a stream there is no status."""
    error = body.get("error")
    message = text(error) or text(members(error).get("message")) or f"the upstream refused with status {status}"
    kind = next((kind for phrase, kind in _KIND_BY_PHRASE if phrase in message.lower()), _TABLE.by_status(status))
    if kind == "context_full" and _TOO_LONG not in message:
        message = f"{_TOO_LONG}: {message}"
    return Fault(kind, message, status if _TABLE.is_compatible(status, kind) else _TABLE.default_status(kind), wait)


def render_fault(fault: Fault) -> bytes:
    """Return the body of an error response, which is also the last line of a failed stream."""
    is_complete = fault.kind != "context_full" or _TOO_LONG in fault.message
    return jsonio.encode({"error": fault.message if is_complete else f"{_TOO_LONG}: {fault.message}"})


class OllamaBinding(Struct, frozen=True):
    """Converts between HTTP messages and API calls of Ollama."""

    def match(self, request: HttpRequest) -> ApiRequest | None:
        path = request.path.rstrip("/")
        if request.method == "GET" and path == _TAGS:
            return ApiRequest("models", "", False, None)
        return _call(Fields.of(request)) if request.method == "POST" and path == _CHAT else None

    def unwrap(self, body: Json) -> ApiRequest:
        return _call(Fields(body))

    def wrap(self, call: ApiRequest) -> HttpRequest:
        if call.operation == "models":
            return HttpRequest("GET", _TAGS, headers=(("accept", JSON),))
        body = call.body if isinstance(call.body, dict) else {}
        ordered = in_cache_order({"model": call.model, "stream": call.stream, **body}, ("model", "tools"), "messages")
        return json_post(_CHAT, ordered, NDJSON if call.stream else JSON)

    def frame_decoder(self) -> FrameDecoder:
        return NdjsonDecoder()

    def encode_frame(self, payload: Payload) -> bytes:
        return encode_line(payload.data)

    def error_response(self, fault: Fault, body: bytes) -> HttpResponse:
        return error_response(fault, _TABLE.status_of(fault), body)


def _call(fields: Fields) -> ApiRequest:
    """Return the call in a body. `stream` defaults to true."""
    return ApiRequest("generate", fields.text("model", ""), fields.flag("stream", True), fields.rest())


MODEL_LIST = JsonModelList("models", "name")  # its `context_length` is that of the training, not of the server


class OllamaListing:
    """Writes the list of models that `GET /api/tags` returns."""

    def entry(self, model: ListedModel) -> dict[str, Json]:
        details: dict[str, Json] = {} if model.window is None else {"context_length": model.window}
        return {"name": model.name, "model": model.name, "modified_at": iso_time(model.created), "details": details}

    def render_list(self, entries: list[Json]) -> Json:
        return {"models": entries}

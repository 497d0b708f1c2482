"""Where Responses live: paths, headers, SSE with event names."""

from __future__ import annotations

import re
from urllib.parse import parse_qs, unquote

from msgspec import Struct

from dragoman.dialects.base import Call, Operation, in_cache_order
from dragoman.dialects.kit.faults import refusal
from dragoman.dialects.kit.openai_errors import render_error, status_of
from dragoman.errors import ClientFault, Fault, MissingField
from dragoman.wire import jsonio
from dragoman.wire.fields import Fields
from dragoman.wire.frame import Frame, FrameDecoder, Payload
from dragoman.wire.http import HttpRequest, HttpResponse
from dragoman.wire.jsonio import Json
from dragoman.wire.sse import SseDecoder, comment, encode_sse

_PATH = "/responses"
_COUNT = "/responses/input_tokens"
_STORED = re.compile(r"/responses/([A-Za-z0-9_-]{1,512})(?:/(cancel|input_items))?\Z")
_ACTIONS = {
    ("GET", ""): "read",
    ("DELETE", ""): "delete",
    ("POST", "cancel"): "cancel",
    ("GET", "input_items"): "input_items",
}
_ENDS = frozenset({"response.completed", "response.incomplete", "response.failed", "response.cancelled", "error"})
_UPGRADE_REQUIRED = 426
_JSON = ("content-type", "application/json")
# What has a bearing on the count; the endpoint knows no other field.
_COUNTED = frozenset(
    {"input", "instructions", "tools", "tool_choice", "parallel_tool_calls", "reasoning", "text", "truncation"}
    | {"previous_response_id", "conversation"}
)


class ResponsesBinding(Struct, frozen=True):
    prefix: str = "/v1"

    def match(self, request: HttpRequest) -> Call | None:
        path = request.path.rstrip("/")
        if request.method == "POST":
            if path.endswith(_PATH):
                return self._call(Fields.of(request), "generate")
            if path.endswith(_COUNT):
                return self._call(Fields.of(request), "count")
        if f"{_PATH}/" in path and request.method in ("POST", "GET", "DELETE"):
            return _stored(request, path)
        return None

    def unwrap(self, body: Json) -> Call:
        return self._call(Fields(body), "generate")

    def _call(self, fields: Fields, operation: Operation) -> Call:
        model, stream = fields.text("model"), fields.flag("stream", False)
        if not model.strip():
            fields.fail("model", "expected the name of a model")
        return Call(operation, model, stream, fields.rest())

    def wrap(self, call: Call) -> HttpRequest:
        if call.operation == "models":
            return HttpRequest("GET", f"{self.prefix}/models")
        if call.operation == "stored":
            return _stored_request(call, self.prefix)
        body = call.body if isinstance(call.body, dict) else {}
        path, streams = _PATH, call.stream
        if call.operation == "count":
            path, streams = _COUNT, False
            body = {name: value for name, value in body.items() if name in _COUNTED}
        if streams:
            body = {**body, "stream": True}
        body = {"model": call.model, **in_cache_order(body, ("tools", "instructions"), "input")}
        accept = ("accept", "text/event-stream" if streams else "application/json")
        return HttpRequest("POST", f"{self.prefix}{path}", headers=(_JSON, accept), body=jsonio.encode(body))

    def frames(self) -> FrameDecoder:
        return SseDecoder()

    def frame(self, payload: Payload) -> bytes:
        if not payload.data:
            return comment(b"ping")  # an empty data line breaks clients
        return encode_sse(payload.kind, payload.data)

    def refuse(self, fault: Fault, body: bytes) -> HttpResponse:
        # RFC 9110: a 426 names the protocol that is served.
        more = [("upgrade", "HTTP/1.1")] if fault.status == _UPGRADE_REQUIRED else []
        return refusal(fault, status_of(fault), body, *more)


def _stored(request: HttpRequest, path: str) -> Call:
    """A call about a response that is kept. Raises ClientFault for an endpoint that is not offered."""
    found = _STORED.search(path)
    action = _ACTIONS.get((request.method, found[2] or "")) if found else None
    if found is None or action is None:
        raise _not_here(request.method, path)
    streams = action == "read" and "true" in parse_qs(request.query).get("stream", ())
    return Call("stored", "", streams, None, {"id": found[1], "action": action, "query": _query(request.query)})


def _query(query: str) -> str:
    """The query for the upstream, without a key: that one is of the service that the client asked."""
    return "&".join(pair for pair in query.split("&") if unquote(pair.partition("=")[0]) != "key")


def _stored_request(call: Call, prefix: str) -> HttpRequest:
    method, end = next(key for key, action in _ACTIONS.items() if action == call.hints["action"])
    path = f"{prefix}{_PATH}/{call.hints['id']}{end and f'/{end}'}"
    accept = ("accept", "text/event-stream" if call.stream else "application/json")
    return HttpRequest(method, path, call.hints["query"], (accept,))


class ResponsesStored(Struct, frozen=True):
    def render_deleted(self, answer_id: str) -> bytes:
        return jsonio.encode({"id": answer_id, "object": "response", "deleted": True})

    def is_end(self, frame: Frame) -> bool:
        kind = frame.kind
        if not kind:  # a service that writes no `event:` lines
            try:
                told = jsonio.decode(frame.data)
            except jsonio.JsonError:
                return False
            kind = str(told.get("type")) if isinstance(told, dict) else ""
        return kind in _ENDS

    def render_cut(self, fault: Fault) -> Payload:
        error = render_error(fault)
        told: Json = {"type": "error", **{name: error[name] for name in ("code", "message", "param")}}
        return Payload(b"error", jsonio.encode(told), error=True)


class ResponsesCounts(Struct, frozen=True):
    def parse_count(self, body: bytes) -> int:
        return Fields.parse(body, blame=MissingField).integer("input_tokens")

    def render_count(self, tokens: int, estimated: bool) -> bytes:
        return jsonio.encode({"object": "response.input_tokens", "input_tokens": tokens})


def _not_here(method: str, path: str) -> ClientFault:
    message = (
        f"{method} {path} is not offered here: POST {_PATH} makes a response, and GET, DELETE, /cancel and /input_items"
        " are for one that is kept"
    )
    return ClientFault(message, fault=Fault("not_found", message, 404, code="unknown_url"))

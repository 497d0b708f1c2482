"""Where Responses live: paths, headers, SSE with event names."""

from __future__ import annotations

import math

from msgspec import Struct

from dragoman.dialects.base import Call, Operation
from dragoman.dialects.openai_errors import status_of
from dragoman.errors import ClientFault, Fault, MissingField
from dragoman.wire import jsonio
from dragoman.wire.fields import Fields
from dragoman.wire.frame import FrameDecoder, Payload
from dragoman.wire.http import HttpRequest, HttpResponse
from dragoman.wire.jsonio import Json
from dragoman.wire.sse import SseDecoder, comment, encode_sse

_PATH = "/responses"
_COUNT = "/responses/input_tokens"
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
            raise _not_here(request.method, path)
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
        body = call.body if isinstance(call.body, dict) else {}
        path, streams = _PATH, call.stream
        if call.operation == "count":
            path, streams = _COUNT, False
            body = {name: value for name, value in body.items() if name in _COUNTED}
        body = {"model": call.model, **body}
        if streams:
            body["stream"] = True
        accept = ("accept", "text/event-stream" if streams else "application/json")
        return HttpRequest("POST", f"{self.prefix}{path}", headers=(_JSON, accept), body=jsonio.encode(body))

    def frames(self) -> FrameDecoder:
        return SseDecoder()

    def frame(self, payload: Payload) -> bytes:
        if not payload.data:
            return comment(b"ping")  # an empty data line breaks clients
        return encode_sse(payload.kind, payload.data)

    def refuse(self, fault: Fault, body: bytes) -> HttpResponse:
        headers = [_JSON]
        if fault.retry_after is not None:
            headers.append(("retry-after", str(max(0, math.ceil(fault.retry_after)))))
        return HttpResponse(status_of(fault), tuple(headers), body)


class ResponsesCounts(Struct, frozen=True):
    def parse_count(self, body: bytes) -> int:
        return Fields.parse(body, blame=MissingField).integer("input_tokens")

    def render_count(self, tokens: int, estimated: bool) -> bytes:
        return jsonio.encode({"object": "response.input_tokens", "input_tokens": tokens})


def _not_here(method: str, path: str) -> ClientFault:
    """The endpoints around stored responses, which a gateway that stores none for reading does not have."""
    message = f"{method} {path} is not offered here: responses are made with POST {_PATH} and not kept for reading"
    return ClientFault(message, fault=Fault("not_found", message, 404, code="unknown_url"))

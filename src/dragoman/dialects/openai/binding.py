"""Where Chat Completions live: paths, headers, SSE."""

from __future__ import annotations

from msgspec import Struct

from dragoman.dialects.base import Call, in_cache_order
from dragoman.dialects.kit.faults import refusal
from dragoman.dialects.kit.openai_errors import status_of
from dragoman.errors import Fault
from dragoman.wire.fields import Fields
from dragoman.wire.frame import FrameDecoder, Payload
from dragoman.wire.http import HttpRequest, HttpResponse
from dragoman.wire.jsonio import Json, encode
from dragoman.wire.sse import SseDecoder, comment, encode_sse

_PATH = "/chat/completions"
_JSON = ("content-type", "application/json")


def is_chat(request: HttpRequest) -> bool:
    return request.method == "POST" and request.path.rstrip("/").endswith(_PATH)


class OpenaiBinding(Struct, frozen=True):
    prefix: str = "/v1"

    def match(self, request: HttpRequest) -> Call | None:
        if is_chat(request):
            return self._call(Fields.of(request))
        if (
            request.method == "GET"
            and request.path.rstrip("/").endswith("/models")
            and not request.header("anthropic-version")
        ):
            return Call("models", "", False, None)
        return None

    def unwrap(self, body: Json) -> Call:
        return self._call(Fields(body))

    def _call(self, fields: Fields) -> Call:
        model, stream = fields.text("model"), fields.flag("stream", False)
        if not model.strip():
            fields.fail("model", "expected the name of a model")
        return Call("generate", model, stream, fields.rest())

    def wrap(self, call: Call) -> HttpRequest:
        if call.operation == "models":
            return HttpRequest("GET", f"{self.prefix}/models")
        stream: dict[str, Json] = {"stream": True} if call.stream else {}
        asked = {**(call.body if isinstance(call.body, dict) else {}), **stream}
        body = {"model": call.model, **in_cache_order(asked, ("tools",), "messages")}
        accept = ("accept", "text/event-stream" if call.stream else "application/json")
        return HttpRequest("POST", f"{self.prefix}{_PATH}", headers=(_JSON, accept), body=encode(body))

    def frames(self) -> FrameDecoder:
        return SseDecoder()

    def frame(self, payload: Payload) -> bytes:
        if not payload.data:
            return comment(b"ping")  # an empty data line breaks clients
        return encode_sse(payload.kind, payload.data)

    def refuse(self, fault: Fault, body: bytes) -> HttpResponse:
        return refusal(fault, status_of(fault), body)

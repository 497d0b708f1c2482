"""Path, headers and framing: POST /v1beta/models/{model}:{method}, server-sent events or one array."""

from __future__ import annotations

import re
from urllib.parse import quote, unquote

from msgspec import Struct

from dragoman.dialects.base import Call, Operation, in_cache_order
from dragoman.dialects.gemini.encoder import ARRAY, ITEM
from dragoman.dialects.gemini.faults import status_of
from dragoman.dialects.gemini.frames import GeminiFrames
from dragoman.dialects.gemini.nodes import names, read
from dragoman.dialects.kit.faults import refusal
from dragoman.errors import Fault, MalformedRequest, MissingField
from dragoman.wire import jsonio
from dragoman.wire.fields import Fields
from dragoman.wire.frame import FrameDecoder, Payload
from dragoman.wire.http import HttpRequest, HttpResponse, path_name
from dragoman.wire.jsonio import Json
from dragoman.wire.sse import encode_sse

_VERSION = r"/v\d+(?:alpha|beta)?\d*"
_METHODS: dict[str, Operation] = {
    "generateContent": "generate",
    "streamGenerateContent": "generate",
    "countTokens": "count",
}
_CALL = re.compile(rf"{_VERSION}/(.+):({'|'.join(_METHODS)})/?\Z", re.DOTALL)
_LIST = re.compile(rf"({_VERSION})/models(?:/(.+?))?/?\Z", re.DOTALL)
_OWNER = re.compile(r"(?:projects/[^/]+/locations/[^/]+/)?(?:publishers/[^/]+/)?models/")
_SHARED = "/v1"  # where other dialects list their models too
_HEADERS = ("x-goog-api-key", "x-goog-api-client")
_COUNT = names("generateContentRequest")
_JSON = ("content-type", "application/json")


class GeminiBinding(Struct, frozen=True):
    prefix: str = "/v1beta"

    def match(self, request: HttpRequest) -> Call | None:
        path = unquote(request.path)
        if request.method == "GET":
            return _listing(path, request)
        found = _CALL.match(path)
        if request.method != "POST" or found is None:
            return None
        model, method = path_name(model_in(found[1])), found[2]
        fields = Fields.of(request) if request.body else Fields({})
        if _METHODS[method] == "count":
            return Call("count", model, False, _counted(fields))
        stream = method.startswith("stream")
        hints = {"alt": ARRAY} if stream and request.parameter("alt") != "sse" else {}
        return Call("generate", model, stream, fields.rest(), hints)

    def unwrap(self, body: Json) -> Call:
        """The call in a bare body, which may name its model."""
        fields = Fields(body)
        return Call("generate", model_in(fields.text("model", "") or ""), False, fields.rest())

    def wrap(self, call: Call) -> HttpRequest:
        name = quote(path_name(call.model), safe="", errors="surrogatepass")
        path = f"{self.prefix}/models/{name}" if name else f"{self.prefix}/models"
        if call.operation == "models":
            return HttpRequest("GET", path, headers=(("accept", "application/json"),))
        body = call.body if isinstance(call.body, dict) else {}
        if call.operation == "count":
            counted: Json = {"generateContentRequest": {"model": f"models/{call.model}", **body}}
            return _post(f"{path}:countTokens", "", counted, "application/json")
        body = in_cache_order(body, ("tools", "systemInstruction"), "contents")
        if not call.stream:
            return _post(f"{path}:generateContent", "", body, "application/json")
        if call.hints.get("alt") == ARRAY:
            return _post(f"{path}:streamGenerateContent", "", body, "application/json")
        return _post(f"{path}:streamGenerateContent", "alt=sse", body, "text/event-stream")

    def frames(self) -> FrameDecoder:
        return GeminiFrames()

    def frame(self, payload: Payload) -> bytes:
        if payload.kind == ITEM:
            return payload.data
        if payload.error:
            # As an event, which every reader of events sees, and Google's Python SDK raises. Then bare, as the service
            # does it, and not closed by a blank line: Google's JavaScript SDK raises for bare JSON in a piece of its
            # own, and for text that is left over at the end.
            return encode_sse(b"", payload.data) + payload.data + b"\n"
        return encode_sse(payload.kind, payload.data)

    def refuse(self, fault: Fault, body: bytes) -> HttpResponse:
        return refusal(fault, status_of(fault), body)


def model_in(name: str) -> str:
    """The model in a resource name: without those who own it."""
    while found := _OWNER.match(name):
        name = name[found.end() :]
    return name


def _listing(path: str, request: HttpRequest) -> Call | None:
    found = _LIST.match(path)
    if found is None or (found[1] == _SHARED and not any(map(request.header, _HEADERS))):
        return None
    return Call("models", model_in(found[2] or ""), False, None)


def _counted(fields: Fields) -> Json:
    """What shall be counted: a whole request, or contents alone."""
    body = read(fields.rest(), "", MalformedRequest, _COUNT)
    whole = body.maybe_child("generateContentRequest")
    return whole.rest() if whole is not None else body.rest()


def _post(path: str, query: str, body: Json, accept: str) -> HttpRequest:
    try:
        data = jsonio.encode(body)
    except jsonio.JsonError as error:
        raise MalformedRequest(str(error)) from None
    return HttpRequest("POST", path, query, (_JSON, ("accept", accept)), data)


class GeminiCounts(Struct, frozen=True):
    def parse_count(self, body: bytes) -> int:
        return Fields.parse(body, blame=MissingField).integer("totalTokens", 0)

    def render_count(self, tokens: int, estimated: bool) -> bytes:
        return jsonio.encode({"totalTokens": tokens})

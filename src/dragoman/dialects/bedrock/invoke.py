"""InvokeModel: a binding for another family's body, Anthropic's, which this service takes as it is.

The path names the model and says whether to stream; the body says `anthropic_version` and lists betas instead of
headers; each event of a stream is base64 in a `chunk` of an event stream; errors are those of AWS.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator

from msgspec import Struct

from dragoman.dialects.base import Call, in_cache_order
from dragoman.dialects.bedrock.binding import EVENT_STREAM, BedrockCounts, model_in, model_path, post, refusal
from dragoman.dialects.bedrock.faults import exception_fault, exception_payload, render_fault
from dragoman.errors import BadFrame, Fault, Kind, MalformedRequest
from dragoman.wire import jsonio
from dragoman.wire.eventstream import EventStreamDecoder, encode_event
from dragoman.wire.fields import Fields
from dragoman.wire.frame import Frame, FrameDecoder, Payload
from dragoman.wire.http import HttpRequest, HttpResponse
from dragoman.wire.jsonio import Json

VERSION = "bedrock-2023-05-31"
_PATH = re.compile(r"/model/(.*)/(invoke|invoke-with-response-stream|count-tokens)/?\Z", re.DOTALL)
_BETA = "anthropic-beta"
_VERSION = "anthropic_version"  # the body's field: no header, which would mean another thing to Anthropic itself
# What each kind of fault is called inside the body's family.
_TYPES: dict[Kind, str] = {
    "invalid": "invalid_request_error",
    "context_full": "invalid_request_error",
    "auth": "authentication_error",
    "quota": "billing_error",
    "permission": "permission_error",
    "not_found": "not_found_error",
    "too_large": "request_too_large",
    "rate_limit": "rate_limit_error",
    "server": "api_error",
    "timeout": "timeout_error",
    "overloaded": "overloaded_error",
}
_KINDS: dict[str, Kind] = {name: kind for kind, name in _TYPES.items() if kind != "context_full"}


class InvokeBinding(Struct, frozen=True):
    def match(self, request: HttpRequest) -> Call | None:
        found = _PATH.match(request.path)
        if request.method != "POST" or found is None:
            return None
        model, name = model_in(found[1]), found[2]
        fields = Fields.of(request) if request.body else Fields({})
        if name == "count-tokens":
            asked = fields.peek("input")
            if not isinstance(asked, dict) or "invokeModel" not in asked:
                return None
            return _call(_invoked(fields), model, request, count=True)
        return _call(fields, model, request, stream=name == "invoke-with-response-stream")

    def unwrap(self, body: Json) -> Call:
        """The call in a bare body; it may say its model, as it would anywhere else."""
        fields = Fields(body)
        model = fields.text("model", "")
        return _call(fields, model, HttpRequest("POST", ""), stream=fields.flag("stream", False))

    def wrap(self, call: Call) -> HttpRequest:
        body: dict[str, Json] = {_VERSION: call.hints.get(_VERSION, VERSION)}
        body |= call.body if isinstance(call.body, dict) else {}
        if betas := [beta for beta in call.hints.get(_BETA, "").split(",") if beta]:
            body["anthropic_beta"] = list(betas)
        body = in_cache_order(body, ("tools", "system"), "messages")
        if call.operation == "count":
            inner = base64.b64encode(post("", body, "").body).decode()
            counted: Json = {"input": {"invokeModel": {"body": inner}}}
            return post(model_path(call.model, "count-tokens"), counted, "application/json")
        if call.stream:
            return post(model_path(call.model, "invoke-with-response-stream"), body, EVENT_STREAM)
        return post(model_path(call.model, "invoke"), body, "application/json")

    def frames(self) -> FrameDecoder:
        return _Chunks()

    def frame(self, payload: Payload) -> bytes:
        if payload.error:
            exception = exception_payload(_fault_in(payload.data))
            return encode_event(exception.kind, exception.data, error=True)
        return encode_event("chunk", b'{"bytes":"%b"}' % base64.b64encode(payload.data))

    def refuse(self, fault: Fault, body: bytes) -> HttpResponse:
        return refusal(fault, render_fault(fault))


def _invoked(fields: Fields) -> Fields:
    """The body inside a request to count it."""
    inner = fields.child("input").child("invokeModel")
    try:
        return Fields.parse(base64.b64decode(inner.text("body"), validate=True), inner.path("body"))
    except binascii.Error:
        inner.fail("body", "expected base64")


def _call(fields: Fields, model: str, request: HttpRequest, *, stream: bool = False, count: bool = False) -> Call:
    hints: dict[str, str] = {}
    version = fields.text(_VERSION, VERSION)
    if version != VERSION:
        hints[_VERSION] = version
    betas = [*fields.strings("anthropic_beta", ()), *filter(None, request.header(_BETA).split(","))]
    if betas:
        hints[_BETA] = ",".join(dict.fromkeys(beta.strip() for beta in betas))
    return Call("count" if count else "generate", model, stream, fields.rest(), hints)


# --- streams


class _Chunk(Struct, gc=False):
    bytes: str


class _Kind(Struct, gc=False):
    type: str = ""


_read_chunk = jsonio.typed(_Chunk)
_read_kind = jsonio.typed(_Kind)


class _Chunks:
    """The frames of the body's family out of the chunks of an event stream."""

    def __init__(self) -> None:
        self._frames = EventStreamDecoder()

    @property
    def held(self) -> int:
        """See FrameDecoder."""
        return self._frames.held

    def feed(self, chunk: bytes) -> Iterator[Frame]:
        return map(_opened, self._frames.feed(chunk))

    def close(self) -> Iterator[Frame]:
        return map(_opened, self._frames.close())


def _opened(frame: Frame) -> Frame:
    if frame.error:
        fault = exception_fault(frame)
        error: Json = {"type": "error", "error": {"type": _TYPES[fault.kind], "message": fault.message}}
        return Frame("error", jsonio.encode(error), frame.raw)
    if frame.kind != "chunk":
        return frame
    try:
        data = binascii.a2b_base64(_read_chunk(frame.data).bytes.encode("ascii"), strict_mode=True)
        return Frame(_read_kind(data).type, data, frame.raw)
    except ValueError as error:  # JsonError is one too
        raise BadFrame(f"no chunk: {error}", at="chunk") from None


def _fault_in(data: bytes) -> Fault:
    """The fault that an error of the body's family tells."""
    try:
        body = Fields.parse(data).child("error")
        kind, message = body.text("type", ""), body.text("message", "")
    except MalformedRequest:
        kind, message = "", ""
    return Fault(_KINDS.get(kind, "server"), message or "the stream failed")


BINDING = InvokeBinding()
COUNTS = BedrockCounts()

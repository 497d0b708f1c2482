"""Path, headers and framing: POST /model/{modelId}/converse[-stream], event streams, the error's type in a header."""

from __future__ import annotations

import re
from urllib.parse import quote, unquote

from msgspec import Struct

from dragoman.dialects.base import Call, Operation, in_cache_order
from dragoman.dialects.bedrock.faults import TYPE_HEADER, fault_type, status_of
from dragoman.dialects.kit import faults as kit
from dragoman.errors import Fault, MalformedRequest, MissingField
from dragoman.wire import jsonio
from dragoman.wire.eventstream import EventStreamDecoder, encode_event
from dragoman.wire.fields import Fields
from dragoman.wire.frame import FrameDecoder, Payload
from dragoman.wire.http import HttpRequest, HttpResponse, path_name
from dragoman.wire.jsonio import Json

EVENT_STREAM = "application/vnd.amazon.eventstream"
_PATH = re.compile(r"/model/(.*)/(converse|converse-stream|count-tokens)/?\Z", re.DOTALL)
# What has a bearing on the count; the operation's model has no other members.
_COUNTED = frozenset({"messages", "system", "toolConfig", "additionalModelRequestFields"})


def model_path(model: str, operation: str) -> str:
    """The path of an operation. Colons and slashes of the id are encoded, as the SDK does it, and signs it.

    Raises MalformedRequest for a name that would make the path lead elsewhere.
    """
    return f"/model/{quote(path_name(model), safe='', errors='surrogatepass')}/{operation}"


def model_in(label: str) -> str:
    """The model id in a path, whose colons may come raw or encoded. Raises MalformedRequest."""
    return path_name(unquote(label))


def refusal(fault: Fault, body: bytes) -> HttpResponse:
    """The HTTP answer for a fault, in the way of AWS."""
    return kit.refusal(fault, status_of(fault), body, (TYPE_HEADER, fault_type(fault)))


def post(path: str, body: Json, accept: str) -> HttpRequest:
    try:
        data = jsonio.encode(body)
    except jsonio.JsonError as error:
        raise MalformedRequest(str(error)) from None
    return HttpRequest("POST", path, headers=(("content-type", "application/json"), ("accept", accept)), body=data)


class BedrockBinding(Struct, frozen=True):
    def match(self, request: HttpRequest) -> Call | None:
        found = _PATH.match(request.path)
        if request.method != "POST" or found is None:
            return None
        model, name = model_in(found[1]), found[2]
        fields = Fields.of(request) if request.body else Fields({})
        if name == "count-tokens":
            counted = _counted(fields)
            return None if counted is None else Call("count", model, False, counted)
        return Call("generate", model, name == "converse-stream", fields.rest())

    def unwrap(self, body: Json) -> Call:
        """The call in a bare body; one that is spelt as the SDK's arguments says its model."""
        fields = Fields(body)
        return Call("generate", fields.text("modelId", ""), False, fields.rest())

    def wrap(self, call: Call) -> HttpRequest:
        body = call.body if isinstance(call.body, dict) else {}
        if call.operation == "count":
            counted: Json = {name: value for name, value in body.items() if name in _COUNTED}
            return post(model_path(call.model, "count-tokens"), {"input": {"converse": counted}}, "application/json")
        body = in_cache_order(body, ("toolConfig", "system"), "messages")
        operation: Operation | str = "converse-stream" if call.stream else "converse"
        return post(model_path(call.model, operation), body, EVENT_STREAM if call.stream else "application/json")

    def frames(self) -> FrameDecoder:
        return EventStreamDecoder()

    def frame(self, payload: Payload) -> bytes:
        return encode_event(payload.kind, payload.data, error=payload.error)

    def refuse(self, fault: Fault, body: bytes) -> HttpResponse:
        return refusal(fault, body)


def _counted(fields: Fields) -> Json:
    """What shall be counted; None if it is a body of InvokeModel, which is another binding's."""
    asked = fields.child("input")
    return None if asked.peek("converse") is None and asked.has("invokeModel") else asked.child("converse").rest()


class BedrockCounts(Struct, frozen=True):
    def parse_count(self, body: bytes) -> int:
        return Fields.parse(body, blame=MissingField).integer("inputTokens")

    def render_count(self, tokens: int, estimated: bool) -> bytes:
        return jsonio.encode({"inputTokens": tokens})

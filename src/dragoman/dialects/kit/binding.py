"""Parts of bindings that several dialects share: JSON requests, SSE framing, token counts."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from dragoman.dialects.base import ApiRequest, Operation
from dragoman.errors import MalformedRequest, MissingField
from dragoman.wire import jsonio
from dragoman.wire.fields import Fields
from dragoman.wire.frame import FrameDecoder, Payload
from dragoman.wire.http import Headers, HttpRequest
from dragoman.wire.jsonio import Json
from dragoman.wire.sse import SseDecoder, encode_comment, encode_payload

JSON = "application/json"
EVENT_STREAM = "text/event-stream"


def json_post(path: str, body: Json, accept: str = JSON, *, query: str = "", more: Headers = ()) -> HttpRequest:
    """Return a POST request with a JSON body. Raises MalformedRequest for a body that JSON cannot express."""
    try:
        data = jsonio.encode(body)
    except jsonio.JsonError as error:
        raise MalformedRequest(str(error)) from None
    return HttpRequest("POST", path, query, (("content-type", JSON), ("accept", accept), *more), data)


def request_from_fields(
    fields: Fields, operation: Operation = "generate", hints: Mapping[str, str] | None = None
) -> ApiRequest:
    """Return the call of a body that has the fields `model` and `stream`. Raises the fields' error."""
    model, stream = fields.text("model"), fields.flag("stream", False)
    if not model.strip():
        fields.fail("model", "expected the name of a model")
    return ApiRequest(operation, model, stream, fields.rest(), hints or {})


class SseBinding(Struct, frozen=True):
    """The common part of the bindings of OpenAI's two APIs: SSE framing, and bodies with `model` and `stream`."""

    prefix: str = "/v1"

    def unwrap(self, body: Json) -> ApiRequest:
        """See `Binding.unwrap`."""
        return request_from_fields(Fields(body))

    def frame_decoder(self) -> FrameDecoder:
        """See `Binding.frame_decoder`."""
        return SseDecoder()

    def encode_frame(self, payload: Payload) -> bytes:
        """Return a payload as an event; one without data, which is a ping, as a comment."""
        if not payload.data:
            return encode_comment(b"ping")  # Clients fail on an empty data line.
        return encode_payload(payload)


class TokenCountField(Struct, frozen=True):
    """A token count in one `field` of the response; `kind` is the value of `object`, if the service writes one."""

    field: str
    kind: str = ""
    omits_zero: bool = False  # the service may leave out a count of 0

    def parse_count(self, body: bytes) -> int:
        fields = Fields.parse(body, blame=MissingField)
        return fields.integer(self.field, 0) if self.omits_zero else fields.integer(self.field)

    def render_count(self, tokens: int, estimated: bool) -> bytes:
        return jsonio.encode({"object": self.kind, self.field: tokens} if self.kind else {self.field: tokens})

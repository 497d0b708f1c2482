"""The codec of Bedrock Converse with its capabilities, and the HTTP bindings of Converse and of InvokeModel. Pure."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator, Sequence
from typing import ClassVar
from urllib.parse import quote, unquote

from msgspec import Struct

from dragoman.dialects.base import ApiRequest, Operation, in_cache_order
from dragoman.dialects.bedrock import reply, request, rules, stream_rules
from dragoman.dialects.bedrock.encoder import BedrockEncoder
from dragoman.dialects.bedrock.nodes import FAMILY, S3, vendor_of
from dragoman.dialects.bedrock.quirks import (
    AddTextToDocuments,
    DeclareUsedTools,
    DropUnusedTools,
    FitBedrockMedia,
    FitBedrockReasoning,
    FitBedrockResults,
    FitCachePoints,
    FitUserAndOutput,
    NameDocuments,
)
from dragoman.dialects.bedrock.rules import RULES
from dragoman.dialects.bedrock.stream import BedrockDecoder
from dragoman.dialects.kit import faults as kit
from dragoman.dialects.kit.binding import JSON, TokenCountField, json_post
from dragoman.dialects.kit.cache_marks import CLAUDE_MARKS
from dragoman.dialects.kit.values import decoded, members, text
from dragoman.dialects.rulebook import Breach
from dragoman.errors import BadFrame, Fault
from dragoman.model.capabilities import CacheMarks, Capabilities, IdentifierFormat, reads_results_by_order, traits
from dragoman.model.conversation import Conversation
from dragoman.model.filter import Filter
from dragoman.wire import jsonio
from dragoman.wire.eventstream import EventStreamDecoder, encode_event
from dragoman.wire.fields import Fields
from dragoman.wire.frame import Frame, FrameDecoder, Payload
from dragoman.wire.http import HttpRequest, HttpResponse, check_path_name
from dragoman.wire.jsonio import Json

_FORMS = {"image": ("base64", "url"), "document": ("base64", "url", "text"), "audio": ("base64", "url")}
_FORMS["video"] = _FORMS["audio"]
_MAX_STOPS = 2500


class BedrockCodec(Struct, frozen=True):
    """The codec of Bedrock Converse.

    Setting: `vendor` is the vendor of models whose id does not name one, such as the ARN of an inference profile.
    """

    family: ClassVar[str] = FAMILY
    vendor: str = ""

    def capabilities(self, model: str) -> Capabilities:
        vendor = vendor_of(model, self.vendor)
        claude = vendor.claude_fields
        return Capabilities(
            system="leading",
            turns="merge",
            traits=traits(
                "no_blank_text",
                "result_errors",
                "no_reply_media",
                "reasoning",
                "signature_slot",
                "one_block",
                "citations",
                "output_names",
                "closed_schemas",
                "user",
                when={
                    "user_last": not vendor.prefill,
                    "results_in_call_order": reads_results_by_order(model),
                    "parallel_flag": claude,
                    "strict_tools": vendor.strict_tools,
                    "signed_reasoning": vendor.reasoning == "signed",
                    "budgets": claude,
                    "thinking_show": claude,
                },
            ),
            ids=IdentifierFormat("a-zA-Z0-9_.:-", 64),
            arguments="object",
            choice_modes=frozenset({"auto", "any", "one", "none"} if claude else {"auto", "any", "one"}),
            result_media=frozenset({"image", "document", "video"}),
            media=frozenset((kind, form) for kind in vendor.media for form in _FORMS[kind]),
            signatures=frozenset({FAMILY, "anthropic"} if vendor.name == "anthropic" else ()),
            cache_marks=CLAUDE_MARKS if vendor.cache else CacheMarks(),
            sampling=frozenset({"temperature", "top_p"} | ({"top_k"} if vendor.top_k else set())),
            sampling_ranges=(("temperature", 0.0, 1.0), ("top_p", 0.0, 1.0)),
            output=frozenset({"text", "schema"}),
            efforts=vendor.efforts,
            thinking=frozenset({"default", "off", "on", "adaptive"} if claude else {"default"}),
            min_thinking_budget=1024 if claude else 0,
            user_limit=256,
            server_state=frozenset({"promptVariables"}),
            own_url_prefixes=(S3,),
            stop_limit=_MAX_STOPS,
        )

    def quirks(self, model: str) -> Sequence[Filter]:
        vendor = vendor_of(model, self.vendor)
        return (
            FitBedrockReasoning(vendor),
            FitBedrockMedia(),
            DropUnusedTools(),
            # The following run after all shared filters.
            DeclareUsedTools(),
            FitBedrockResults(vendor.separate_results, vendor.json_results),
            NameDocuments(),
            AddTextToDocuments(),
            FitCachePoints(vendor.cached_tools),
            FitUserAndOutput(),
        )

    def parse_request(self, call: ApiRequest) -> Conversation:
        return request.parse_request(call, vendor_of(call.model, self.vendor))

    def render_request(self, conversation: Conversation) -> ApiRequest:
        return request.render_request(conversation, vendor_of(conversation.model, self.vendor))

    parse_reply = staticmethod(reply.parse_reply)
    render_reply = staticmethod(reply.render_reply)
    decoder = staticmethod(BedrockDecoder)
    encoder = staticmethod(BedrockEncoder)
    parse_fault = staticmethod(reply.parse_fault)

    def breaches(self, call: ApiRequest) -> Sequence[Breach]:
        return rules.breaches(call, vendor_of(call.model, self.vendor))

    render_fault = staticmethod(reply.render_fault)
    stream_breaches = staticmethod(stream_rules.BedrockStreamLint.breaches)
    rules = staticmethod(RULES.all_rules)


# --- binding of Converse: POST /model/{modelId}/converse[-stream], AWS event streams, the error's type in a header

EVENT_STREAM = "application/vnd.amazon.eventstream"
_PATH = re.compile(r"/model/(.*)/(converse|converse-stream|count-tokens)/?\Z", re.DOTALL)
# The operation that counts tokens accepts only these members.
_COUNTED = frozenset({"messages", "system", "toolConfig", "additionalModelRequestFields"})


def model_path(model: str, operation: str) -> str:
    """Return the path of an operation. Colons and slashes of the id are encoded, as the SDK encodes and signs them.

    Raises MalformedRequest for a name that would change the path, such as `..`.
    """
    return f"/model/{quote(check_path_name(model), safe='', errors='surrogatepass')}/{operation}"


def error_response(fault: Fault, body: bytes) -> HttpResponse:
    """Return the HTTP response for a fault, with its type in a header as AWS writes it."""
    return kit.error_response(fault, reply.status_of(fault), body, (reply.TYPE_HEADER, reply.fault_type(fault)))


class BedrockBinding(Struct, frozen=True):
    """Paths, headers and framing of Converse and ConverseStream."""

    def match(self, request: HttpRequest) -> ApiRequest | None:
        found = _PATH.match(request.path)
        if request.method != "POST" or found is None:
            return None
        model, name = check_path_name(unquote(found[1])), found[2]
        fields = Fields.of(request) if request.body else Fields({})
        if name == "count-tokens":
            counted = fields.child("input")
            if counted.peek("converse") is None and counted.has("invokeModel"):
                return None  # a request for InvokeBinding
            return ApiRequest("count", model, False, counted.child("converse").rest())
        return ApiRequest("generate", model, name == "converse-stream", fields.rest())

    def unwrap(self, body: Json) -> ApiRequest:
        """Return the call of a bare body; a body in the form of the SDK's arguments names its model."""
        fields = Fields(body)
        return ApiRequest("generate", fields.text("modelId", ""), False, fields.rest())

    def wrap(self, call: ApiRequest) -> HttpRequest:
        body = call.body if isinstance(call.body, dict) else {}
        if call.operation == "count":
            counted: Json = {name: value for name, value in body.items() if name in _COUNTED}
            return json_post(model_path(call.model, "count-tokens"), {"input": {"converse": counted}})
        body = in_cache_order(body, ("toolConfig", "system"), "messages")
        operation: Operation | str = "converse-stream" if call.stream else "converse"
        return json_post(model_path(call.model, operation), body, EVENT_STREAM if call.stream else JSON)

    def frame_decoder(self) -> FrameDecoder:
        return EventStreamDecoder()

    def encode_frame(self, payload: Payload) -> bytes:
        return encode_event(payload.kind, payload.data, error=payload.error)

    def error_response(self, fault: Fault, body: bytes) -> HttpResponse:
        return error_response(fault, body)


# --- binding of InvokeModel, whose bodies are those of Anthropic's API
#
# The path names the model and whether to stream. The body has `anthropic_version` and lists betas, instead of headers.
# Each event of a stream is base64 in a `chunk` of an AWS event stream. Errors are those of AWS.


VERSION = "bedrock-2023-05-31"
_INVOKED_PATH = re.compile(r"/model/(.*)/(invoke|invoke-with-response-stream|count-tokens)/?\Z", re.DOTALL)
_BETA = "anthropic-beta"
_VERSION = "anthropic_version"  # a field of the body; its values differ from those of the header anthropic-version


class InvokeBinding(Struct, frozen=True):
    """Paths, headers and framing of InvokeModel for Claude."""

    def match(self, request: HttpRequest) -> ApiRequest | None:
        found = _INVOKED_PATH.match(request.path)
        if request.method != "POST" or found is None:
            return None
        model, name = check_path_name(unquote(found[1])), found[2]
        fields = Fields.of(request) if request.body else Fields({})
        if name == "count-tokens":
            counted = fields.peek("input")
            if not isinstance(counted, dict) or "invokeModel" not in counted:
                return None
            return _invocation(_invoked(fields), model, request, count=True)
        return _invocation(fields, model, request, stream=name == "invoke-with-response-stream")

    def unwrap(self, body: Json) -> ApiRequest:
        """Return the call of a bare body, which may have `model` and `stream`."""
        fields = Fields(body)
        model = fields.text("model", "")
        return _invocation(fields, model, HttpRequest("POST", ""), stream=fields.flag("stream", False))

    def wrap(self, call: ApiRequest) -> HttpRequest:
        body: dict[str, Json] = {_VERSION: call.hints.get(_VERSION, VERSION)}
        body |= call.body if isinstance(call.body, dict) else {}
        if betas := [beta for beta in call.hints.get(_BETA, "").split(",") if beta]:
            body["anthropic_beta"] = list(betas)
        body = in_cache_order(body, ("tools", "system"), "messages")
        if call.operation == "count":
            inner = base64.b64encode(json_post("", body).body).decode()
            counted: Json = {"input": {"invokeModel": {"body": inner}}}
            return json_post(model_path(call.model, "count-tokens"), counted)
        if call.stream:
            return json_post(model_path(call.model, "invoke-with-response-stream"), body, EVENT_STREAM)
        return json_post(model_path(call.model, "invoke"), body)

    def frame_decoder(self) -> FrameDecoder:
        return _ChunkDecoder()

    def encode_frame(self, payload: Payload) -> bytes:
        if payload.error:
            exception = reply.exception_payload(_fault_in(payload.data))
            return encode_event(exception.kind, exception.data, error=True)
        return encode_event("chunk", b'{"bytes":"%b"}' % base64.b64encode(payload.data))

    def error_response(self, fault: Fault, body: bytes) -> HttpResponse:
        return error_response(fault, reply.render_fault(fault))


def _invoked(fields: Fields) -> Fields:
    """Return the body inside a request to count its tokens."""
    inner = fields.child("input").child("invokeModel")
    try:
        return Fields.parse(base64.b64decode(inner.text("body"), validate=True), inner.path("body"))
    except binascii.Error:
        inner.fail("body", "expected base64")


def _invocation(
    fields: Fields, model: str, request: HttpRequest, *, stream: bool = False, count: bool = False
) -> ApiRequest:
    hints: dict[str, str] = {}
    version = fields.text(_VERSION, VERSION)
    if version != VERSION:
        hints[_VERSION] = version
    betas = [*fields.strings("anthropic_beta", ()), *filter(None, request.header(_BETA).split(","))]
    if betas:
        hints[_BETA] = ",".join(dict.fromkeys(beta.strip() for beta in betas))
    return ApiRequest("count" if count else "generate", model, stream, fields.rest(), hints)


# --- streams


class _Chunk(Struct, gc=False):
    bytes: str


class _Kind(Struct, gc=False):
    type: str = ""


_read_chunk = jsonio.typed_decoder(_Chunk)
_read_kind = jsonio.typed_decoder(_Kind)


class _ChunkDecoder:
    """Reads Anthropic's frames from the chunks of an AWS event stream."""

    def __init__(self) -> None:
        self._frames = EventStreamDecoder()

    @property
    def buffered_bytes(self) -> int:
        """See FrameDecoder."""
        return self._frames.buffered_bytes

    def feed(self, chunk: bytes) -> Iterator[Frame]:
        return map(_unwrapped, self._frames.feed(chunk))

    def close(self) -> Iterator[Frame]:
        return map(_unwrapped, self._frames.close())


def _unwrapped(frame: Frame) -> Frame:
    """Return the frame that a chunk holds; an exception becomes an error event."""
    if frame.error:
        fault = reply.exception_fault(frame)
        error: Json = {
            "type": "error",
            "error": {"type": kit.CLAUDE_FAULTS.default_type(fault.kind), "message": fault.message},
        }
        return Frame("error", jsonio.encode(error), frame.raw)
    if frame.kind != "chunk":
        return frame
    try:
        data = binascii.a2b_base64(_read_chunk(frame.data).bytes.encode("ascii"), strict_mode=True)
        return Frame(_read_kind(data).type, data, frame.raw)
    except ValueError as error:  # JsonError is a ValueError.
        raise BadFrame(f"invalid chunk: {error}", at="chunk") from None


def _fault_in(data: bytes) -> Fault:
    """Return the fault of an error event of Anthropic's API."""
    error = members(members(decoded(data)).get("error"))
    kind = kit.CLAUDE_FAULTS.by_type(text(error.get("type"))) or "server"
    return Fault(kind, text(error.get("message")) or "the upstream's stream failed (no reason given)")


BINDING = InvokeBinding()
COUNTS = TokenCountField("inputTokens")

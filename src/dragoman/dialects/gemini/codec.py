"""The language and where it is spoken: what it can say, paths, headers, framing, the list of models."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import ClassVar
from urllib.parse import quote, unquote

from msgspec import Struct

from dragoman.dialects.base import Call, Model, Operation, in_cache_order
from dragoman.dialects.gemini import faults, quirks, reply, request, rules
from dragoman.dialects.gemini.blocks import FAMILY, is_older, names, read
from dragoman.dialects.gemini.encoder import ARRAY, ITEM, GeminiEncoder
from dragoman.dialects.gemini.faults import status_of
from dragoman.dialects.gemini.request import KNOBS
from dragoman.dialects.gemini.rules import RULES
from dragoman.dialects.gemini.stream import GeminiDecoder, GeminiFrames
from dragoman.dialects.kit.binding import EVENTS, JSON, json_post
from dragoman.dialects.kit.faults import refusal
from dragoman.errors import Fault, MalformedRequest
from dragoman.model.capabilities import Alphabet, Capabilities, Trait, traits
from dragoman.model.filter import Filter
from dragoman.wire.fields import Fields
from dragoman.wire.frame import FrameDecoder, Payload
from dragoman.wire.http import HttpRequest, HttpResponse, path_name
from dragoman.wire.jsonio import Json
from dragoman.wire.sse import encode_payload, encode_sse

_TRAITS: tuple[Trait, ...] = (
    "user_last",
    "no_blank_text",
    "whole_calls",
    "bare_tools",
    "choice_names",
    "home_names",
    "result_errors",
    "reasoning",
    "sealed_words",
    "seal_slot",
    "seal_bytes",
    "one_block",
    "choices",
    "cites",
    "budgets",
    "thinking_show",
)


class GeminiCodec(Struct, frozen=True):
    """Gemini's generateContent."""

    family: ClassVar[str] = FAMILY

    def capabilities(self, model: str) -> Capabilities:
        older = is_older(model)
        return Capabilities(
            system="leading",
            turns="merge",
            traits=traits(*_TRAITS),
            names=Alphabet("a-zA-Z0-9_.:-", 128),
            ids=Alphabet(r"\x21-\x7e", 256),
            arguments="object",
            named_media=frozenset(),
            result_media=frozenset() if older else frozenset({"image", "document"}),
            media=frozenset(
                (kind, how) for kind in ("image", "document", "audio", "video") for how in ("base64", "url")
            ),
            seals=frozenset({FAMILY}),
            knobs=frozenset(KNOBS),
            knob_ranges=(
                ("temperature", 0, 2),
                ("top_p", 0, 1),
                ("presence_penalty", -2, 2),
                ("frequency_penalty", -2, 2),
            ),
            output=frozenset({"text", "json", "schema"}),
            efforts=() if older else ("minimal", "low", "medium", "high"),
            thinking=frozenset({"default", "off", "on", "adaptive"}),
            holds=frozenset({"cachedContent"}),
            files=FAMILY,
            addresses=("gs://", "https://generativelanguage.googleapis.com/"),
            stop_limit=rules.MOST_STOPS,
        )

    def quirks(self, model: str) -> Sequence[Filter]:
        older = is_older(model)
        return (
            *((quirks.EffortAsBudget(),) if older else ()),
            quirks.AskForEvents(),
            quirks.OneChoice(),
            quirks.SettleThinking(),
            quirks.SettleResults(),
            quirks.FitMedia(),
            *(() if older else (quirks.SignCalls(),)),
        )

    parse_request = staticmethod(request.parse_request)
    render_request = staticmethod(request.render_request)
    parse_reply = staticmethod(reply.parse_reply)
    render_reply = staticmethod(reply.render_reply)
    decoder = staticmethod(GeminiDecoder)
    encoder = staticmethod(GeminiEncoder)
    parse_fault = staticmethod(faults.parse_fault)
    render_fault = staticmethod(faults.render_fault)
    breaches = staticmethod(rules.breaches)
    stream_breaches = staticmethod(rules.stream_breaches)
    rules = staticmethod(RULES.declared)


# --- path, headers and framing: POST /v1beta/models/{model}:{method}, server-sent events or one array

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


class GeminiBinding(Struct, frozen=True):
    prefix: str = "/v1beta"

    def match(self, request: HttpRequest) -> Call | None:
        path = unquote(request.path)
        if request.method == "GET":
            listed = _LIST.match(path)
            if listed is None or (listed[1] == _SHARED and not any(map(request.header, _HEADERS))):
                return None
            return Call("models", model_in(listed[2] or ""), False, None)
        found = _CALL.match(path)
        if request.method != "POST" or found is None:
            return None
        model, method = path_name(model_in(found[1])), found[2]
        fields = Fields.of(request) if request.body else Fields({})
        if _METHODS[method] == "count":
            body = read(fields.rest(), "", MalformedRequest, _COUNT)  # it holds a whole request, or contents alone
            return Call("count", model, False, (body.maybe_child("generateContentRequest") or body).rest())
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
            return HttpRequest("GET", path, headers=(("accept", JSON),))
        body = call.body if isinstance(call.body, dict) else {}
        if call.operation == "count":
            counted: Json = {"generateContentRequest": {"model": f"models/{call.model}", **body}}
            return json_post(f"{path}:countTokens", counted)
        body = in_cache_order(body, ("tools", "systemInstruction"), "contents")
        if not call.stream:
            return json_post(f"{path}:generateContent", body)
        if call.hints.get("alt") == ARRAY:
            return json_post(f"{path}:streamGenerateContent", body)
        return json_post(f"{path}:streamGenerateContent", body, EVENTS, query="alt=sse")

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
        return encode_payload(payload)

    def refuse(self, fault: Fault, body: bytes) -> HttpResponse:
        return refusal(fault, status_of(fault), body)


def model_in(name: str) -> str:
    """The model in a resource name: without those who own it."""
    while found := _OWNER.match(name):
        name = name[found.end() :]
    return name


class GeminiListing:
    def entry(self, model: Model) -> dict[str, Json]:
        return {
            "name": f"models/{model.name}",
            "displayName": model.name,
            "inputTokenLimit": model.window,
            "outputTokenLimit": model.longest_answer,
            "supportedGenerationMethods": ["generateContent", "countTokens"],
        }

    def list_of(self, entries: list[Json]) -> Json:
        return {"models": entries}

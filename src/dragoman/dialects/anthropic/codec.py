"""The codec of Anthropic's Messages API with its capabilities, its HTTP binding, and its list of models. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar
from urllib.parse import unquote

from msgspec import Struct

from dragoman.dialects.anthropic import encoder, faults, request, rules, stream_rules, web_search
from dragoman.dialects.anthropic.blocks import FAMILY
from dragoman.dialects.anthropic.encoder import AnthropicEncoder
from dragoman.dialects.anthropic.faults import status_of
from dragoman.dialects.anthropic.quirks import AddFirstMessage, FitAnthropicReasoning, RequireObjectSchemas
from dragoman.dialects.anthropic.request import VERSION, hints_of
from dragoman.dialects.anthropic.rules import RULES
from dragoman.dialects.anthropic.stream import AnthropicDecoder
from dragoman.dialects.anthropic.tools import COMPACTION, searches_tools
from dragoman.dialects.base import ApiRequest, ListedModel, Operation, in_cache_order
from dragoman.dialects.kit.binding import EVENT_STREAM, JSON, json_post, request_from_fields
from dragoman.dialects.kit.cache_marks import CLAUDE_MARKS
from dragoman.dialects.kit.faults import error_response
from dragoman.dialects.kit.model_lists import JsonModelList, page_query
from dragoman.dialects.kit.values import iso_time
from dragoman.errors import Fault
from dragoman.model.capabilities import Capabilities, IdentifierFormat, ToolSupport, reads_results_by_order, traits
from dragoman.model.filter import Filter
from dragoman.wire.fields import Fields
from dragoman.wire.http import Headers, HttpRequest, HttpResponse
from dragoman.wire.jsonio import Json
from dragoman.wire.sse import SseDecoder, encode_payload

_MEDIA_TYPES = {
    "image": frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"}),
    "document": frozenset({"application/pdf"}),
}


class AnthropicCodec(Struct, frozen=True):
    """The codec of Anthropic Messages.

    Settings: `default_max_tokens` is sent for a request without a limit, since this dialect requires one.
    `signed_thinking = false` is for compatible services that do not sign thinking but expect it back.
    `threads = false` is for services without message threads.
    """

    family: ClassVar[str] = FAMILY
    default_max_tokens: int = 8192
    signed_thinking: bool = True
    threads: bool = True

    def capabilities(self, model: str) -> Capabilities:
        return Capabilities(
            traits=traits(
                "no_blank_text",
                "parallel_flag",
                "strict_tools",
                "result_errors",
                "reasoning",
                "signature_slot",
                "one_block",
                "citations",
                "pauses",
                "closed_schemas",
                "budgets",
                "thinking_show",
                "user",
                "zero_tokens",
                when={
                    "tool_search": searches_tools(model),
                    "results_in_call_order": reads_results_by_order(model),
                    "signed_reasoning": self.signed_thinking,
                },
            ),
            names=IdentifierFormat("a-zA-Z0-9_-", 128),
            arguments="object",
            tools=ToolSupport(web_search=web_search.SUPPORT),
            result_media=frozenset({"image", "document"}),
            media=frozenset(
                {("image", form) for form in ("base64", "url", "file")}
                | {("document", form) for form in ("base64", "url", "text", "file")}
            ),
            media_types=_MEDIA_TYPES,
            signatures=frozenset({FAMILY, "bedrock"}),
            cache_marks=CLAUDE_MARKS,
            sampling=frozenset(request.SAMPLING_FIELDS),
            sampling_ranges=(("temperature", 0.0, 1.0), ("top_p", 0.0, 1.0)),
            output=frozenset({"text", "schema"}),
            efforts=("low", "medium", "high", "xhigh", "max"),
            thinking=frozenset({"default", "off", "on", "adaptive", "between_tools"}),
            min_thinking_budget=rules.MIN_BUDGET,
            user_limit=256,
            server_state=frozenset({"thread", COMPACTION}) if self.threads else frozenset({COMPACTION}),
            files=FAMILY,
            max_tokens=self.default_max_tokens,
        )

    def quirks(self, model: str) -> Sequence[Filter]:
        return (AddFirstMessage(), FitAnthropicReasoning(), RequireObjectSchemas())

    parse_request = staticmethod(request.parse_request)
    render_request = staticmethod(request.render_request)
    parse_reply = staticmethod(encoder.parse_reply)
    render_reply = staticmethod(encoder.render_reply)

    decoder = staticmethod(AnthropicDecoder)
    encoder = staticmethod(AnthropicEncoder)
    parse_fault = staticmethod(faults.parse_fault)
    render_fault = staticmethod(faults.render_fault)
    breaches = staticmethod(rules.breaches)
    stream_breaches = staticmethod(stream_rules.AnthropicStreamLint.breaches)
    rules = staticmethod(RULES.all_rules)


# --- Path, headers and framing: POST /v1/messages, server-sent events, anthropic-* headers


_PATHS: dict[str, Operation] = {"/v1/messages": "generate", "/v1/messages/count_tokens": "count"}
_MODELS = "/v1/models"
# The counting endpoint refuses fields that do not affect the count.
_COUNTED = frozenset(
    {"messages", "system", "tools", "tool_choice", "thinking", "output_config", "cache_control", "context_management"}
    | {"mcp_servers", "speed"}
)


class AnthropicBinding(Struct, frozen=True):
    """Paths, headers and framing of Anthropic Messages."""

    def match(self, request: HttpRequest) -> ApiRequest | None:
        path = request.path.rstrip("/")
        if request.method == "GET" and request.header("anthropic-version"):
            if path == _MODELS or path.startswith(_MODELS + "/"):
                return ApiRequest("models", unquote(path[len(_MODELS) + 1 :]), False, None, hints_of(request))
            return None
        operation = _PATHS.get(path) or _PATHS.get(f"/v1{path}")  # Base URLs of clients end with or without /v1.
        if request.method != "POST" or operation is None:
            return None
        return request_from_fields(Fields.of(request), operation, hints_of(request))

    def unwrap(self, body: Json) -> ApiRequest:
        return request_from_fields(Fields(body))

    def wrap(self, call: ApiRequest) -> HttpRequest:
        headers: Headers = (("anthropic-version", call.hints.get("anthropic-version", VERSION)),)
        if beta := call.hints.get("anthropic-beta"):
            headers = (*headers, ("anthropic-beta", beta))
        if call.operation == "models":
            path = f"{_MODELS}/{call.model}" if call.model else _MODELS
            query = "" if call.model else page_query(call, "after_id", limit="1000")
            return HttpRequest("GET", path, query, (("accept", JSON), *headers))
        path = next(path for path, operation in _PATHS.items() if operation == call.operation)
        accept = EVENT_STREAM if call.stream and call.operation == "generate" else JSON
        return json_post(path, _body(call), accept, more=headers)

    frame_decoder = staticmethod(SseDecoder)
    encode_frame = staticmethod(encode_payload)

    def error_response(self, fault: Fault, body: bytes) -> HttpResponse:
        more = [("x-should-retry", "false")] if fault.kind == "quota" else []
        return error_response(fault, status_of(fault), body, *more)


def _body(call: ApiRequest) -> dict[str, Json]:
    body = call.body if isinstance(call.body, dict) else {}
    if call.operation == "count":
        body = {name: value for name, value in body.items() if name in _COUNTED}
        return {"model": call.model, **body}
    stream: dict[str, Json] = {"stream": True} if call.stream else {}
    return {"model": call.model, **in_cache_order({**body, **stream}, ("tools", "system"), "messages")}


# --- The list of models

MODEL_LIST = JsonModelList(
    "data", "id", ("max_input_tokens",), ("max_tokens",), next_page="last_id", has_more="has_more"
)


class AnthropicListing:
    """The list of models in Anthropic's form."""

    def entry(self, model: ListedModel) -> dict[str, Json]:
        entry: dict[str, Json] = {"type": "model", "id": model.name, "display_name": model.title or model.name}
        limits = {"max_input_tokens": model.window, "max_tokens": model.max_output_tokens}
        return {**entry, "created_at": iso_time(model.created), **limits}

    def render_list(self, entries: list[Json]) -> Json:
        ids = [entry.get("id") for entry in entries if isinstance(entry, dict)]
        first, last = (ids[0], ids[-1]) if ids else (None, None)
        return {"data": entries, "has_more": False, "first_id": first, "last_id": last}

"""The codec of the Responses API with its capabilities and filters, its HTTP binding, and stored responses. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import ClassVar
from urllib.parse import parse_qs, unquote

from msgspec import Struct, structs

from dragoman.dialects.base import ApiRequest, in_cache_order
from dragoman.dialects.kit import openai_errors
from dragoman.dialects.kit.binding import EVENT_STREAM, JSON, SseBinding, json_post, request_from_fields
from dragoman.dialects.kit.cache_marks import BreakpointChoice, is_gpt_since, openai_marks
from dragoman.dialects.kit.faults import error_response
from dragoman.dialects.kit.openai_errors import render_error, status_of
from dragoman.dialects.kit.openai_requests import EFFORTS
from dragoman.dialects.kit.values import NameOutput, decoded, members, text
from dragoman.dialects.responses import reply, request, rules, web_search
from dragoman.dialects.responses.blocks import FAMILY
from dragoman.dialects.responses.encoder import ResponsesEncoder
from dragoman.dialects.responses.request import SERVER_STATE_NAMES
from dragoman.dialects.responses.rules import RULES
from dragoman.dialects.responses.stream import ResponsesDecoder
from dragoman.errors import ClientFault, Fault
from dragoman.model.capabilities import Capabilities, IdentifierFormat, ToolSupport, reads_results_by_order, traits
from dragoman.model.conversation import Conversation, Message
from dragoman.model.filter import Facts, Features, Filter, MakeResponseFilter, Notes
from dragoman.wire import jsonio
from dragoman.wire.fields import Fields
from dragoman.wire.frame import Frame, Payload
from dragoman.wire.http import HttpRequest, HttpResponse
from dragoman.wire.jsonio import Json

# --- Filters that only this dialect needs


MIN_TOKENS = 16


class JoinAssistantTurns(Filter):
    """Join consecutive assistant turns: items have no turns, so a Responses request cannot separate them."""

    name = "responses.join_answers"
    applies_to: Features = frozenset({"uneven_turns"})

    def forward(
        self, conversation: Conversation, notes: Notes, facts: Facts
    ) -> tuple[Conversation, MakeResponseFilter | None]:
        joined: list[Message] = []
        for message in conversation.messages:
            if message.role != "assistant":
                joined.append(message)
            elif joined and joined[-1].role == "assistant":
                notes.changed(
                    "responses.join_answers", message.at.path, "the turn is joined with the assistant turn before it"
                )
                joined[-1] = structs.replace(joined[-1], blocks=(*joined[-1].blocks, *message.blocks))
            else:
                joined.append(message)
        if len(joined) == len(conversation.messages):
            return conversation, None
        return structs.replace(conversation, messages=tuple(joined)), None


class RaiseMaxTokens(Filter):
    """Raise an output limit below 16, which clients send in probes and the service refuses."""

    name = "responses.least_tokens"
    applies_to: Features = frozenset({"length"})

    def forward(
        self, conversation: Conversation, notes: Notes, facts: Facts
    ) -> tuple[Conversation, MakeResponseFilter | None]:
        limit = conversation.max_tokens
        if limit is None or limit >= MIN_TOKENS:
            return conversation, None
        notes.changed(
            "responses.least_tokens",
            "max_tokens",
            f"the limit is raised from {limit} to {MIN_TOKENS}, the least that the service accepts",
        )
        return structs.replace(conversation, max_tokens=MIN_TOKENS), None


_SHARED = ("metadata", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention")
OPTIONS = {
    **{name: name for name in (*_SHARED, "safety_identifier", "service_tier")},
    "verbosity": "text.verbosity",
}


class ResponsesCodec(Struct, frozen=True):
    """The codec of OpenAI Responses."""

    # which cache marks the upstream gets from clients of other dialects; auto: breakpoints for gpt-5.6 and later
    cache_marks: BreakpointChoice = "auto"
    cache_long: bool = False  # a mark of 1h is sent with the lifetime of 12h, which costs more
    cache_key: bool | None = None  # whether the upstream gets a prompt_cache_key of the client's session; None: yes
    compaction: bool | None = None  # whether the upstream compacts conversations; None: for gpt-5.4 and later
    family: ClassVar[str] = FAMILY

    def capabilities(self, model: str) -> Capabilities:
        return Capabilities(
            ids=IdentifierFormat(r"\x21-\x7e", 64),
            traits=traits(
                "announces",
                "text_tools",
                "choice_names",
                "parallel_flag",
                "strict_tools",
                "shared_names",
                "no_reply_media",
                "reasoning",
                "signature_slot",
                "citations",
                "output_names",
                "user",
                when={
                    "results_in_call_order": reads_results_by_order(model),
                    "cache_key": self.cache_key is not False,
                    "tool_search": is_gpt_since(model, 5, 4),
                    "compaction": is_gpt_since(model, 5, 4) if self.compaction is None else self.compaction,
                },
            ),
            cache_marks=openai_marks(self.cache_marks, model, self.cache_long),
            shared_fields={
                "tool": {"format": "format"},
                "media": {"detail": "detail"},
                "reply": {"service_tier": "service_tier"},
                "request": OPTIONS,
            },
            tools=ToolSupport(web_search=web_search.SUPPORT),
            result_media=frozenset({"image", "document"}),
            media=frozenset({(kind, form) for kind in ("image", "document") for form in ("base64", "url", "file")}),
            media_roles=frozenset({"user", "system"}),
            signatures=frozenset({FAMILY}),
            sampling=frozenset(request.SAMPLING_FIELDS),
            sampling_ranges=(("temperature", 0, 2), ("top_p", 0, 1)),
            output=frozenset({"text", "json", "schema"}),
            efforts=EFFORTS,
            thinking=frozenset({"default", "off"}),
            user_limit=64,
            server_state=SERVER_STATE_NAMES,
            files="openai",
            stop_limit=0,
        )

    def quirks(self, model: str) -> Sequence[Filter]:
        return (JoinAssistantTurns(), RaiseMaxTokens(), NameOutput("responses.name_output", "text.format"))

    parse_request = staticmethod(request.parse_request)
    render_request = staticmethod(request.render_request)
    parse_reply = staticmethod(reply.parse_reply)
    render_reply = staticmethod(reply.render_reply)
    decoder = staticmethod(ResponsesDecoder)
    encoder = staticmethod(ResponsesEncoder)
    parse_fault = staticmethod(openai_errors.parse_fault)
    render_fault = staticmethod(openai_errors.render_fault)
    breaches = staticmethod(rules.breaches)
    stream_breaches = staticmethod(rules.ResponsesStreamLint.breaches)
    rules = staticmethod(RULES.all_rules)


# --- paths, headers, SSE with event names

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
# The fields that affect the count; the endpoint accepts no others.
_COUNTED = frozenset(
    {"input", "instructions", "tools", "tool_choice", "parallel_tool_calls", "reasoning", "text", "truncation"}
    | {"previous_response_id", "conversation"}
)


class ResponsesBinding(SseBinding, frozen=True):
    """Paths, headers and SSE framing of Responses, of token counts, and of stored responses."""

    def match(self, request: HttpRequest) -> ApiRequest | None:
        path = request.path.rstrip("/")
        if request.method == "POST":
            if path.endswith(_PATH):
                return request_from_fields(Fields.of(request), "generate")
            if path.endswith(_COUNT):
                return request_from_fields(Fields.of(request), "count")
        if f"{_PATH}/" in path and request.method in ("POST", "GET", "DELETE"):
            return _stored(request, path)
        return None

    def wrap(self, call: ApiRequest) -> HttpRequest:
        if call.operation == "models":
            return HttpRequest("GET", f"{self.prefix}/models")
        if call.operation == "stored":
            method, end = next(key for key, action in _ACTIONS.items() if action == call.hints["action"])
            path = f"{self.prefix}{_PATH}/{call.hints['id']}{end and f'/{end}'}"
            return HttpRequest(method, path, call.hints["query"], (("accept", EVENT_STREAM if call.stream else JSON),))
        body = call.body if isinstance(call.body, dict) else {}
        path, streams = _PATH, call.stream
        if call.operation == "count":
            path, streams = _COUNT, False
            body = {name: value for name, value in body.items() if name in _COUNTED}
        if streams:
            body = {**body, "stream": True}
        body = {"model": call.model, **in_cache_order(body, ("tools", "instructions"), "input")}
        return json_post(f"{self.prefix}{path}", body, EVENT_STREAM if streams else JSON)

    def error_response(self, fault: Fault, body: bytes) -> HttpResponse:
        # RFC 9110: a 426 response names a supported protocol.
        more = [("upgrade", "HTTP/1.1")] if fault.status == _UPGRADE_REQUIRED else []
        return error_response(fault, status_of(fault), body, *more)


def _stored(request: HttpRequest, path: str) -> ApiRequest:
    """Read a call about a stored response. Raises ClientFault for an endpoint that does not exist."""
    match = _STORED.search(path)
    action = _ACTIONS.get((request.method, match[2] or "")) if match else None
    if match is None or action is None:
        message = (
            f"there is no endpoint {request.method} {path}. Use POST to create a response; a stored one can be read,"
            " deleted and cancelled, and its input items listed, by its id."
        )
        raise ClientFault(message, fault=Fault("not_found", message, 404, code="unknown_url"))
    # The client's key is for the gateway and must not reach the upstream.
    query = "&".join(pair for pair in request.query.split("&") if unquote(pair.partition("=")[0]) != "key")
    streams = action == "read" and "true" in parse_qs(request.query).get("stream", ())
    return ApiRequest("stored", "", streams, None, {"id": match[1], "action": action, "query": query})


class ResponsesStored(Struct, frozen=True):
    """See StoredResponses."""

    def render_deleted(self, response_id: str) -> bytes:
        return jsonio.encode({"id": response_id, "object": "response", "deleted": True})

    def is_last_frame(self, frame: Frame) -> bool:
        # A service without `event:` lines sends the type in the data only.
        return (frame.kind or text(members(decoded(frame.data)).get("type"))) in _ENDS

    def render_interrupted(self, fault: Fault) -> Payload:
        error = render_error(fault)
        data: Json = {"type": "error", **{name: error[name] for name in ("code", "message", "param")}}
        return Payload(b"error", jsonio.encode(data), error=True)


# --- how a request continues from an earlier response by its id (`previous_response_id`, `item_reference`)


class ResponsesContinuation(Struct, frozen=True):
    """See Continuation."""

    response_ids: ClassVar[str] = "resp_"
    may_store = staticmethod(request.may_store)
    continue_conversation = staticmethod(request.continue_conversation)
    resolve_references = staticmethod(request.resolve_references)
    parse_final_response = staticmethod(reply.parse_final_response)
    parse_items = staticmethod(reply.parse_items)

"""The language and where it is spoken: what it can say, paths, headers, framing, responses that the service keeps."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import ClassVar
from urllib.parse import parse_qs, unquote

from msgspec import Struct, structs

from dragoman.dialects.base import ApiRequest, in_cache_order
from dragoman.dialects.kit import openai_errors
from dragoman.dialects.kit.binding import EVENT_STREAM, JSON, SseBinding, json_post, request_from_fields
from dragoman.dialects.kit.faults import error_response
from dragoman.dialects.kit.openai_errors import render_error, status_of
from dragoman.dialects.kit.openai_requests import EFFORTS
from dragoman.dialects.kit.values import NameOutput, decoded, members, text
from dragoman.dialects.responses import reply, request, rules
from dragoman.dialects.responses.blocks import FAMILY
from dragoman.dialects.responses.encoder import ResponsesEncoder
from dragoman.dialects.responses.request import SERVER_STATE_NAMES as HELD_NAMES
from dragoman.dialects.responses.rules import RULES
from dragoman.dialects.responses.stream import ResponsesDecoder
from dragoman.errors import ClientFault, Fault
from dragoman.model.capabilities import Capabilities, IdentifierFormat, reads_results_by_order, traits
from dragoman.model.conversation import Conversation, Message
from dragoman.model.filter import Facts, Features, Filter, MakeResponseFilter, Notes
from dragoman.wire import jsonio
from dragoman.wire.fields import Fields
from dragoman.wire.frame import Frame, Payload
from dragoman.wire.http import HttpRequest, HttpResponse
from dragoman.wire.jsonio import Json

# --- Filters that only this dialect needs


LEAST_TOKENS = 16


class JoinAssistantTurns(Filter):
    """Items have no turns: what the assistant said in a row is one."""

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
                notes.changed("responses.join_answers", message.at.path, "joined with the assistant turn before it")
                joined[-1] = structs.replace(joined[-1], blocks=(*joined[-1].blocks, *message.blocks))
            else:
                joined.append(message)
        if len(joined) == len(conversation.messages):
            return conversation, None
        return structs.replace(conversation, messages=tuple(joined)), None


class RaiseMaxTokens(Filter):
    """The service refuses a smaller limit than 16, which clients send to probe it."""

    name = "responses.least_tokens"
    applies_to: Features = frozenset({"length"})

    def forward(
        self, conversation: Conversation, notes: Notes, facts: Facts
    ) -> tuple[Conversation, MakeResponseFilter | None]:
        asked = conversation.max_tokens
        if asked is None or asked >= LEAST_TOKENS:
            return conversation, None
        notes.changed(
            "responses.least_tokens", "max_tokens", f"the service takes no limit below {LEAST_TOKENS}, as {asked} is"
        )
        return structs.replace(conversation, max_tokens=LEAST_TOKENS), None


_SHARED = ("metadata", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention")
OPTIONS = {
    **{name: name for name in (*_SHARED, "safety_identifier", "service_tier")},
    "verbosity": "text.verbosity",
}


class ResponsesCodec(Struct, frozen=True):
    """OpenAI Responses."""

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
                "no_answer_media",
                "reasoning",
                "signature_slot",
                "citations",
                "output_names",
                "user",
                when={"results_in_call_order": reads_results_by_order(model)},
            ),
            shared_fields={
                "tool": {"format": "format"},
                "media": {"detail": "detail"},
                "answer": {"service_tier": "service_tier"},
                "request": OPTIONS,
            },
            result_media=frozenset({"image", "document"}),
            media=frozenset(
                {("image", how) for how in ("base64", "url", "file")}
                | {("document", how) for how in ("base64", "url", "file")}
            ),
            media_roles=frozenset({"user", "system"}),
            signatures=frozenset({FAMILY}),
            sampling=frozenset(request.SAMPLING_FIELDS),
            sampling_ranges=(("temperature", 0, 2), ("top_p", 0, 1)),
            output=frozenset({"text", "json", "schema"}),
            efforts=EFFORTS,
            thinking=frozenset({"default", "off"}),
            user_limit=64,
            server_state=HELD_NAMES,
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
# What has a bearing on the count; the endpoint knows no other field.
_COUNTED = frozenset(
    {"input", "instructions", "tools", "tool_choice", "parallel_tool_calls", "reasoning", "text", "truncation"}
    | {"previous_response_id", "conversation"}
)


class ResponsesBinding(SseBinding, frozen=True):
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
        # RFC 9110: a 426 names the protocol that is served.
        more = [("upgrade", "HTTP/1.1")] if fault.status == _UPGRADE_REQUIRED else []
        return error_response(fault, status_of(fault), body, *more)


def _stored(request: HttpRequest, path: str) -> ApiRequest:
    """A call about a response that is kept. Raises ClientFault for an endpoint that is not offered."""
    found = _STORED.search(path)
    action = _ACTIONS.get((request.method, found[2] or "")) if found else None
    if found is None or action is None:
        message = (
            f"{request.method} {path} is not offered here: POST {_PATH} makes a response, and GET, DELETE, /cancel and"
            " /input_items are for one that is kept"
        )
        raise ClientFault(message, fault=Fault("not_found", message, 404, code="unknown_url"))
    # Without a key: that one is of the service that the client asked.
    query = "&".join(pair for pair in request.query.split("&") if unquote(pair.partition("=")[0]) != "key")
    streams = action == "read" and "true" in parse_qs(request.query).get("stream", ())
    return ApiRequest("stored", "", streams, None, {"id": found[1], "action": action, "query": query})


class ResponsesStored(Struct, frozen=True):
    def render_deleted(self, answer_id: str) -> bytes:
        return jsonio.encode({"id": answer_id, "object": "response", "deleted": True})

    def is_last_frame(self, frame: Frame) -> bool:
        # A service that writes no `event:` lines tells the type in the data alone.
        return (frame.kind or text(members(decoded(frame.data)).get("type"))) in _ENDS

    def render_interrupted(self, fault: Fault) -> Payload:
        error = render_error(fault)
        told: Json = {"type": "error", **{name: error[name] for name in ("code", "message", "param")}}
        return Payload(b"error", jsonio.encode(told), error=True)


# --- how a request goes on from an earlier answer by its id (`previous_response_id`, `item_reference`)


class ResponsesContinuation(Struct, frozen=True):
    """See Continuation."""

    answer_ids: ClassVar[str] = "resp_"
    may_store = staticmethod(request.may_store)
    continue_conversation = staticmethod(request.continue_conversation)
    resolve_references = staticmethod(request.resolve_references)
    parse_final_response = staticmethod(reply.parse_final_response)
    parse_items = staticmethod(reply.parse_items)

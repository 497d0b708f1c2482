"""The codec of Chat Completions with its capabilities and filters, its HTTP binding, and its list of models. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from msgspec import structs

from dragoman.dialects.base import ApiRequest, Encoder, Environment, ListedModel, in_cache_order
from dragoman.dialects.kit import openai_errors
from dragoman.dialects.kit.binding import EVENT_STREAM, JSON, SseBinding, json_post, request_from_fields
from dragoman.dialects.kit.cache_marks import chat_marks
from dragoman.dialects.kit.faults import error_response
from dragoman.dialects.kit.openai_errors import status_of
from dragoman.dialects.kit.openai_requests import EFFORTS
from dragoman.dialects.kit.values import NameOutput
from dragoman.dialects.openai import reply, request, rules
from dragoman.dialects.openai.blocks import CUSTOM_FORMAT, EXTRAS, FAMILY, IMAGE_DETAIL, OpenaiSettings, is_legacy_form
from dragoman.dialects.openai.encoder import OpenaiEncoder
from dragoman.dialects.openai.messages import block_rank
from dragoman.dialects.openai.rules import RULES
from dragoman.dialects.openai.stream import OpenaiDecoder
from dragoman.dialects.openai.web_search import search_support
from dragoman.errors import Fault
from dragoman.model.blocks import Extra
from dragoman.model.capabilities import Capabilities, IdentifierFormat, ToolSupport, Trait, traits
from dragoman.model.conversation import Conversation, Message
from dragoman.model.events import ResponseBudget
from dragoman.model.filter import Facts, Features, Filter, MakeResponseFilter, MessageFilter, Notes
from dragoman.wire.fields import Fields
from dragoman.wire.http import HttpRequest, HttpResponse
from dragoman.wire.jsonio import Json

# --- Filters that only this dialect needs


class AskUsage(Filter):
    """Request the usage chunk, which Chat streams send only on request.

    The client's encoder sends the chunk only if the client itself requested it.
    """

    name = "openai.ask_usage"
    keeps_replies = True

    def forward(
        self, conversation: Conversation, notes: Notes, facts: Facts
    ) -> tuple[Conversation, MakeResponseFilter | None]:
        if not conversation.stream or EXTRAS.own_fields(conversation.extra).get("stream_options") is not None:
            return conversation, None
        notes.added("openai.ask_usage", "stream_options", "the upstream is asked to report token usage in the stream")
        return _with_field(conversation, "stream_options", {"include_usage": True}), None


class OfferFunctionsAsTools(Filter):
    """Add a note that legacy `functions` are sent as `tools`, which every server accepts.

    The reply is written in the client's legacy form.
    """

    name = "openai.offer_tools"
    applies_to: Features = frozenset({"extras"})

    def forward(
        self, conversation: Conversation, notes: Notes, facts: Facts
    ) -> tuple[Conversation, MakeResponseFilter | None]:
        if is_legacy_form(conversation.extra):
            notes.changed("openai.offer_tools", "functions", "the legacy functions are sent as tools")
        return conversation, None


class KeepSpecialTokens(Filter):
    """Ask the server to keep special tokens if tools are offered.

    Servers like vLLM strip them by default, and some models write tool calls with these tokens.
    """

    name = "openai.special_tokens"
    applies_to: Features = frozenset({"tools"})

    def forward(
        self, conversation: Conversation, notes: Notes, facts: Facts
    ) -> tuple[Conversation, MakeResponseFilter | None]:
        if not conversation.tools or "skip_special_tokens" in EXTRAS.own_fields(conversation.extra):
            return conversation, None
        notes.added("openai.special_tokens", "skip_special_tokens", "the server is asked to keep its special tokens")
        return _with_field(conversation, "skip_special_tokens", False), None


def _with_field(conversation: Conversation, name: str, value: Json) -> Conversation:
    spelling = conversation.extra.spelling if conversation.extra is not None else _NO_SPELLING
    fields = {**EXTRAS.own_fields(conversation.extra), name: value}
    return structs.replace(conversation, extra=Extra(FAMILY, fields, spelling))


class OrderBlocks(MessageFilter):
    """Sort the blocks of an assistant's message into the only order Chat has: reasoning, content, calls."""

    name = "openai.order_blocks"
    applies_to: Features = frozenset({"calls", "reasoning", "media", "opaque"})

    def message(self, message: Message, notes: Notes) -> Message:
        if message.role != "assistant" or len(message.blocks) < 2:
            return message
        blocks = tuple(sorted(message.blocks, key=block_rank))
        if blocks == message.blocks:
            return message
        notes.changed("openai.order_blocks", message.at.path, "the blocks are reordered: reasoning, content, calls")
        return structs.replace(message, blocks=blocks)


_NO_SPELLING = frozenset[str]()


_REPLY_FIELDS = {"service_tier": "service_tier"}
_MEDIA = frozenset(
    {("image", "base64"), ("image", "url"), ("audio", "base64"), ("document", "base64"), ("document", "file")}
)
_BY_URL = frozenset({("document", "url")})

PATH = "/chat/completions"
_TRAITS: tuple[Trait, ...] = (
    "results_in_call_order",
    "bare_tools",
    "choice_names",
    "parallel_flag",
    "strict_tools",
    "reasoning",
    "signature_slot",
    "raw_tools",
    "open_calls",
    "loose_calls",
    "choices",
    "cites",
    "output_names",
    "user",
)


class OpenaiCodec(OpenaiSettings, frozen=True):
    """The codec of OpenAI Chat Completions and of servers that implement it; its fields describe the server."""

    family: ClassVar[str] = FAMILY

    def capabilities(self, model: str) -> Capabilities:
        return Capabilities(
            ids=IdentifierFormat(r"\x21-\x7e", 64),
            traits=traits(*_TRAITS, when={"text_tools": self.custom_tools, "cache_key": self.cache_key is True}),
            cache_marks=chat_marks("cache_control" if self.cache_control else self.cache_marks, model, self.cache_long),
            shared_fields={
                "tool": {"format": CUSTOM_FORMAT} if self.custom_tools else {},
                "media": {"detail": IMAGE_DETAIL},
                "reply": _REPLY_FIELDS,
                "request": {name: name for name in self.options},
            },
            tools=ToolSupport(web_search=search_support(self.web_search, model)),
            result_media=frozenset({"image"}) if self.result_media else frozenset(),
            media=_MEDIA | _BY_URL if self.file_urls else _MEDIA,
            own_family_media=_BY_URL,
            media_roles=frozenset({"user"}),
            signatures=frozenset({FAMILY}),
            sampling=frozenset({*request.SAMPLING_FIELDS, *self.more_sampling}),
            sampling_ranges=(
                ("temperature", 0, 2),
                ("top_p", 0, 1),
                ("frequency_penalty", -2, 2),
                ("presence_penalty", -2, 2),
            ),
            output=frozenset({"text", "json", "schema"}),
            efforts=EFFORTS,
            thinking=frozenset({"default", "off"}),
            user_limit=self.user_limit,
            files="openai",
            option_needs={"metadata": "store"},
            stop_limit=4,
        )

    def quirks(self, model: str) -> Sequence[Filter]:
        ask_usage: list[Filter] = [AskUsage()] if self.ask_usage else []
        keep_tokens: list[Filter] = [KeepSpecialTokens()] if self.special_tokens else []
        return (
            OrderBlocks(),
            NameOutput("openai.name_output", "response_format"),
            OfferFunctionsAsTools(),
            *ask_usage,
            *keep_tokens,
        )

    # These functions take the settings as their first argument; as methods they get this codec.
    parse_request = request.parse_request
    render_request = request.render_request
    parse_reply = reply.parse_reply
    render_reply = reply.render_reply

    def encoder(self, request: Conversation, environment: Environment, budget: ResponseBudget | None = None) -> Encoder:
        return OpenaiEncoder(request, environment, self, budget)

    decoder = staticmethod(OpenaiDecoder)
    parse_fault = staticmethod(openai_errors.parse_fault)
    render_fault = staticmethod(openai_errors.render_fault)
    breaches = staticmethod(rules.breaches)
    stream_breaches = staticmethod(rules.OpenaiStreamLint.breaches)
    rules = staticmethod(RULES.all_rules)


# --- paths, headers, SSE


class OpenaiBinding(SseBinding, frozen=True):
    """Paths, headers and SSE framing of Chat Completions, and the path of the list of models."""

    def match(self, request: HttpRequest) -> ApiRequest | None:
        if request.method == "POST" and request.path.rstrip("/").endswith(PATH):
            return request_from_fields(Fields.of(request))
        if (
            request.method == "GET"
            and request.path.rstrip("/").endswith("/models")
            and not request.header("anthropic-version")
        ):
            return ApiRequest("models", "", False, None)
        return None

    def wrap(self, call: ApiRequest) -> HttpRequest:
        if call.operation == "models":
            return HttpRequest("GET", f"{self.prefix}/models")
        stream: dict[str, Json] = {"stream": True} if call.stream else {}
        fields = {**(call.body if isinstance(call.body, dict) else {}), **stream}
        body = {"model": call.model, **in_cache_order(fields, ("tools",), "messages")}
        return json_post(f"{self.prefix}{PATH}", body, EVENT_STREAM if call.stream else JSON)

    def error_response(self, fault: Fault, body: bytes) -> HttpResponse:
        return error_response(fault, status_of(fault), body)


class OpenaiListing:
    """Writes the list of models. OpenAI's has no limits, so they are named as in OpenRouter's list."""

    def entry(self, model: ListedModel) -> dict[str, Json]:
        provider: Json = {"max_completion_tokens": model.max_output_tokens} if model.max_output_tokens else None
        entry: dict[str, Json] = {"id": model.name, "object": "model", "created": model.created, "owned_by": "dragoman"}
        return {**entry, "context_length": model.window, "top_provider": provider}

    def render_list(self, entries: list[Json]) -> Json:
        return {"object": "list", "data": entries}

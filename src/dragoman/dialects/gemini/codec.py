"""The codec of Gemini's generateContent, the filters that only it needs, its HTTP binding and its list of models.

Everything here is pure. The registry reaches it through `DIALECT`.
"""

from __future__ import annotations

import mimetypes
import re
from collections.abc import Iterable, Sequence
from typing import ClassVar
from urllib.parse import quote, unquote

from msgspec import Struct, structs

from dragoman.dialects.base import ApiRequest, ListedModel, Operation, in_cache_order
from dragoman.dialects.gemini import reply, request, rules
from dragoman.dialects.gemini.blocks import (
    EXTRAS,
    FAMILY,
    OWN_DISPLAY_NAME,
    is_before_gemini_3,
    read_object,
    snake_to_camel,
)
from dragoman.dialects.gemini.encoder import ARRAY_ITEM, JSON_ARRAY, GeminiEncoder
from dragoman.dialects.gemini.reply import status_of
from dragoman.dialects.gemini.request import SAMPLING_FIELDS
from dragoman.dialects.gemini.rules import RULES
from dragoman.dialects.gemini.stream import GeminiDecoder, GeminiFrameDecoder
from dragoman.dialects.kit.binding import EVENT_STREAM, JSON, json_post
from dragoman.dialects.kit.faults import error_response
from dragoman.dialects.kit.model_lists import JsonModelList, page_query
from dragoman.errors import Fault, MalformedRequest
from dragoman.model.blocks import Block, Media, Signature, Text, ToolCall, ToolResult
from dragoman.model.capabilities import Capabilities, IdentifierFormat, ToolSupport, Trait, WebSearchSupport, traits
from dragoman.model.conversation import Conversation, Message, Thinking
from dragoman.model.filter import Facts, Features, Filter, MakeResponseFilter, MessageFilter, Notes
from dragoman.model.parts import join_texts
from dragoman.wire.fields import Fields
from dragoman.wire.frame import FrameDecoder, Payload
from dragoman.wire.http import HttpRequest, HttpResponse, check_path_name
from dragoman.wire.jsonio import Json
from dragoman.wire.sse import encode_payload, encode_sse

# --- filters that only this service needs


SKIP = "skip_thought_signature_validator"  # a signature that Google documents for calls of other models
_BUDGETS = {"minimal": 1024, "low": 1024, "medium": 8192, "high": 24576}
_MAX_BUDGET = 24576  # for every other effort
_DEFAULT_TYPES = {"image": "image/jpeg", "document": "application/pdf", "audio": "audio/mpeg", "video": "video/mp4"}


class AskForEvents(Filter):
    """Request server-sent events from the service, also if the client wants one JSON array."""

    name = "gemini.ask_for_events"
    applies_to: Features = frozenset({"hints"})

    def forward(
        self, conversation: Conversation, notes: Notes, facts: Facts
    ) -> tuple[Conversation, MakeResponseFilter | None]:
        if conversation.hints is None or conversation.hints.family != FAMILY:
            return conversation, None
        notes.changed("gemini.stream.sse", "alt", "server-sent events are requested from the service")
        return structs.replace(conversation, hints=None), None


class ChooseOnlyTool(Filter):
    """Turn a choice limited to one tool into the choice of that tool: the service writes both the same."""

    name = "gemini.one_choice"
    applies_to: Features = frozenset({"chosen"})

    def forward(
        self, conversation: Conversation, notes: Notes, facts: Facts
    ) -> tuple[Conversation, MakeResponseFilter | None]:
        choice = conversation.tool_choice
        if choice.mode != "any" or len(choice.names) != 1:
            return conversation, None
        notes.changed(
            "gemini.choice.one", "tool_choice", f"the choice allows one tool, {choice.names[0]}, so that tool is chosen"
        )
        return structs.replace(conversation, tool_choice=structs.replace(choice, mode="one")), None


class ConvertEffortToBudget(Filter):
    """Turn an effort into a thinking budget for older models, which have no thinking level."""

    name = "gemini.effort_as_budget"
    applies_to: Features = frozenset({"thinking"})
    before = "fit_limits"

    def forward(
        self, conversation: Conversation, notes: Notes, facts: Facts
    ) -> tuple[Conversation, MakeResponseFilter | None]:
        before = conversation.thinking
        if not before.effort or before.mode == "off":
            return conversation, None
        budget = before.budget or _BUDGETS.get(before.effort, _MAX_BUDGET)
        notes.changed("gemini.thinking", "thinking", f"the effort {before.effort} is sent as {budget} tokens")
        thinking = Thinking("on", "", budget, before.show)
        return structs.replace(conversation, thinking=thinking), None


class UseOneThinkingSetting(Filter):
    """Keep one thinking setting: the level, the budget or the mode. The service refuses two of them."""

    name = "gemini.settle_thinking"
    applies_to: Features = frozenset({"thinking"})

    def forward(
        self, conversation: Conversation, notes: Notes, facts: Facts
    ) -> tuple[Conversation, MakeResponseFilter | None]:
        before = conversation.thinking
        thinking = _with_one_setting(before)
        if thinking == before:
            return conversation, None
        notes.changed("gemini.thinking", "thinking", "Gemini accepts one thinking setting: a level, a budget or a mode")
        return structs.replace(conversation, thinking=thinking), None


def _with_one_setting(thinking: Thinking) -> Thinking:
    if thinking.effort:
        return Thinking("default", thinking.effort, None, thinking.show)
    if thinking.mode == "off":
        return Thinking("off", "", None, thinking.show)
    if thinking.budget:
        return Thinking("on", "", thinking.budget, thinking.show)
    return Thinking("adaptive" if thinking.mode == "on" else thinking.mode, "", None, thinking.show)


class MergeResultTexts(MessageFilter):
    """Merge the texts of a tool result into one, and put it first."""

    name = "gemini.settle_results"
    applies_to: Features = frozenset({"results"})

    def block(self, block: Block, notes: Notes) -> Iterable[Block]:
        if not isinstance(block, ToolResult):
            return (block,)
        texts = [part for part in block.content if isinstance(part, Text)]
        others = [part for part in block.content if not isinstance(part, Text)]
        if len(texts) < 2 and (not texts or block.content[0] is texts[0]):
            return (block,)
        notes.changed("gemini.result", block.at.path, "the texts of the result are merged into one, which comes first")
        text = structs.replace(texts[0], text=join_texts(each.text for each in texts))
        return (structs.replace(block, content=(text, *others)),)


class FillMediaTypes(MessageFilter):
    """Add a type to media without one, and drop each name that is not a `displayName` of a Gemini client."""

    name = "gemini.fit_media"
    applies_to: Features = frozenset({"media"})

    def block(self, block: Block, notes: Notes) -> Iterable[Block]:
        if isinstance(block, ToolResult):
            content = tuple(self._media(part, notes) if isinstance(part, Media) else part for part in block.content)
            return (structs.replace(block, content=content),)
        return (self._media(block, notes) if isinstance(block, Media) else block,)

    def _media(self, block: Media, notes: Notes) -> Media:
        if not block.mime:
            guess = mimetypes.guess_type(block.data)[0] or ""
            mime = (
                guess
                if guess.startswith(f"{block.kind}/") or (block.kind == "document" and guess)
                else _DEFAULT_TYPES[block.kind]
            )
            notes.added("gemini.media.type", block.at.path, f"media by URL needs a type; {mime} is sent")
            block = structs.replace(block, mime=mime)
        if block.name and OWN_DISPLAY_NAME not in EXTRAS.own_fields(block.extra):
            notes.dropped("gemini.media.name", block.at.path, f"Gemini has no field for the file name {block.name!r}")
            block = structs.replace(block, name="")
        return block


class SignCalls(MessageFilter):
    """Sign the first call of a turn, as Gemini 3 requires.

    A call of another model has no signature; it gets the one that Google documents for this case.
    """

    name = "gemini.sign_calls"
    applies_to: Features = frozenset({"calls"})

    def message(self, message: Message, notes: Notes) -> Message:
        index = next((at for at, block in enumerate(message.blocks) if isinstance(block, ToolCall)), None)
        call = None if index is None else message.blocks[index]
        if index is None or not isinstance(call, ToolCall) or call.signature is not None:
            return message
        notes.added(
            "gemini.signature.skip", call.at.path, f"the call of {call.name} has no signature; a placeholder is sent"
        )
        signed = structs.replace(call, signature=Signature(FAMILY, SKIP))
        return structs.replace(message, blocks=(*message.blocks[:index], signed, *message.blocks[index + 1 :]))


_TRAITS: tuple[Trait, ...] = (
    "user_last",
    "no_blank_text",
    "whole_calls",
    "bare_tools",
    "choice_names",
    "same_family_names",
    "result_errors",
    "reasoning",
    "signed_content",
    "signature_slot",
    "signature_bytes",
    "one_block",
    "choices",
    "cites",
    "budgets",
    "thinking_show",
)


class GeminiCodec(Struct, frozen=True):
    """The codec of Gemini's generateContent; see `Codec`."""

    family: ClassVar[str] = FAMILY

    def capabilities(self, model: str) -> Capabilities:
        older = is_before_gemini_3(model)
        return Capabilities(
            system="leading",
            turns="merge",
            traits=traits(*_TRAITS),
            tools=ToolSupport(web_search=WebSearchSupport(has_blocks=True, excludes_functions=older)),
            names=IdentifierFormat("a-zA-Z0-9_.:-", 128),
            ids=IdentifierFormat(r"\x21-\x7e", 256),
            arguments="object",
            named_media=frozenset(),
            result_media=frozenset() if older else frozenset({"image", "document"}),
            media=frozenset(
                (kind, form) for kind in ("image", "document", "audio", "video") for form in ("base64", "url")
            ),
            signatures=frozenset({FAMILY}),
            sampling=frozenset(SAMPLING_FIELDS),
            sampling_ranges=(
                ("temperature", 0, 2),
                ("top_p", 0, 1),
                ("presence_penalty", -2, 2),
                ("frequency_penalty", -2, 2),
            ),
            output=frozenset({"text", "json", "schema"}),
            efforts=() if older else ("minimal", "low", "medium", "high"),
            thinking=frozenset({"default", "off", "on", "adaptive"}),
            server_state=frozenset({"cachedContent"}),
            files=FAMILY,
            own_url_prefixes=("gs://", "https://generativelanguage.googleapis.com/"),
            stop_limit=rules.MAX_STOP_SEQUENCES,
        )

    def quirks(self, model: str) -> Sequence[Filter]:
        older = is_before_gemini_3(model)
        return (
            *((ConvertEffortToBudget(),) if older else ()),
            AskForEvents(),
            ChooseOnlyTool(),
            UseOneThinkingSetting(),
            MergeResultTexts(),
            FillMediaTypes(),
            *(() if older else (SignCalls(),)),
        )

    parse_request = staticmethod(request.parse_request)
    render_request = staticmethod(request.render_request)
    parse_reply = staticmethod(reply.parse_reply)
    render_reply = staticmethod(reply.render_reply)
    decoder = staticmethod(GeminiDecoder)
    encoder = staticmethod(GeminiEncoder)
    parse_fault = staticmethod(reply.parse_fault)
    render_fault = staticmethod(reply.render_fault)
    breaches = staticmethod(rules.breaches)
    stream_breaches = staticmethod(rules.GeminiStreamLint.breaches)
    rules = staticmethod(RULES.all_rules)


# --- HTTP: POST /v1beta/models/{model}:{method}; a stream is server-sent events or one JSON array

_VERSION = r"/v\d+(?:alpha|beta)?\d*"
_METHODS: dict[str, Operation] = {
    "generateContent": "generate",
    "streamGenerateContent": "generate",
    "countTokens": "count",
}
_CALL = re.compile(rf"{_VERSION}/(.+):({'|'.join(_METHODS)})/?\Z", re.DOTALL)
_LIST = re.compile(rf"({_VERSION})/models(?:/(.+?))?/?\Z", re.DOTALL)
_OWNER = re.compile(r"(?:projects/[^/]+/locations/[^/]+/)?(?:publishers/[^/]+/)?models/")
_SHARED = "/v1"  # other dialects list their models here too
_HEADERS = ("x-goog-api-key", "x-goog-api-client")
_COUNT = snake_to_camel("generateContentRequest")


class GeminiBinding(Struct, frozen=True):
    """Paths, headers and framing of generateContent, countTokens and the list of models; see `Binding`."""

    prefix: str = "/v1beta"

    def match(self, request: HttpRequest) -> ApiRequest | None:
        path = unquote(request.path)
        if request.method == "GET":
            listed = _LIST.match(path)
            if listed is None or (listed[1] == _SHARED and not any(map(request.header, _HEADERS))):
                return None
            return ApiRequest("models", model_in(listed[2] or ""), False, None)
        found = _CALL.match(path)
        if request.method != "POST" or found is None:
            return None
        model, method = check_path_name(model_in(found[1])), found[2]
        fields = Fields.of(request) if request.body else Fields({})
        if _METHODS[method] == "count":
            # The body holds a whole request, or contents alone.
            body = read_object(fields.rest(), "", MalformedRequest, _COUNT)
            return ApiRequest("count", model, False, (body.maybe_child("generateContentRequest") or body).rest())
        stream = method.startswith("stream")
        hints = {"alt": JSON_ARRAY} if stream and request.parameter("alt") != "sse" else {}
        return ApiRequest("generate", model, stream, fields.rest(), hints)

    def unwrap(self, body: Json) -> ApiRequest:
        """Return the request in a body without its path; the body may name its model."""
        fields = Fields(body)
        return ApiRequest("generate", model_in(fields.text("model", "") or ""), False, fields.rest())

    def wrap(self, call: ApiRequest) -> HttpRequest:
        name = quote(check_path_name(call.model), safe="", errors="surrogatepass")
        path = f"{self.prefix}/models/{name}" if name else f"{self.prefix}/models"
        if call.operation == "models":
            query = "" if name else page_query(call, "pageToken", pageSize="1000")
            return HttpRequest("GET", path, query, (("accept", JSON),))
        body = call.body if isinstance(call.body, dict) else {}
        if call.operation == "count":
            counted: Json = {"generateContentRequest": {"model": f"models/{call.model}", **body}}
            return json_post(f"{path}:countTokens", counted)
        body = in_cache_order(body, ("tools", "systemInstruction"), "contents")
        if not call.stream:
            return json_post(f"{path}:generateContent", body)
        if call.hints.get("alt") == JSON_ARRAY:
            return json_post(f"{path}:streamGenerateContent", body)
        return json_post(f"{path}:streamGenerateContent", body, EVENT_STREAM, query="alt=sse")

    def frame_decoder(self) -> FrameDecoder:
        return GeminiFrameDecoder()

    def encode_frame(self, payload: Payload) -> bytes:
        if payload.kind == ARRAY_ITEM:
            return payload.data
        if payload.error:
            # The error is sent twice. As an event: every SSE reader sees it, and Google's Python SDK raises it. Then as
            # bare JSON without a blank line, as the service does it: Google's JavaScript SDK raises for bare JSON in a
            # chunk of its own, and for text that remains at the end.
            return encode_sse(b"", payload.data) + payload.data + b"\n"
        return encode_payload(payload)

    def error_response(self, fault: Fault, body: bytes) -> HttpResponse:
        return error_response(fault, status_of(fault), body)


def model_in(name: str) -> str:
    """Return the model of a resource name, without its project, location and publisher."""
    while found := _OWNER.match(name):
        name = name[found.end() :]
    return name


MODEL_LIST = JsonModelList(
    "models",
    "name",
    ("inputTokenLimit",),
    ("outputTokenLimit",),
    prefix="models/",
    methods="supportedGenerationMethods",
    generates="generateContent",
    next_page="nextPageToken",
)


class GeminiListing:
    """The list of models in Gemini's format; see `ModelListing`."""

    def entry(self, model: ListedModel) -> dict[str, Json]:
        return {
            "name": f"models/{model.name}",
            "displayName": model.name,
            "inputTokenLimit": model.window,
            "outputTokenLimit": model.max_output_tokens,
            "supportedGenerationMethods": ["generateContent", "countTokens"],
        }

    def render_list(self, entries: list[Json]) -> Json:
        return {"models": entries}

"""The language and where it is spoken: what it can say, paths, headers, framing, the list of models."""

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
from dragoman.errors import Fault, MalformedRequest
from dragoman.model.blocks import Block, Media, Signature, Text, ToolCall, ToolResult
from dragoman.model.capabilities import Capabilities, IdentifierFormat, Trait, traits
from dragoman.model.conversation import Conversation, Message, Thinking
from dragoman.model.filter import Facts, Features, Filter, MakeResponseFilter, MessageFilter, Notes
from dragoman.model.parts import join_texts
from dragoman.wire.fields import Fields
from dragoman.wire.frame import FrameDecoder, Payload
from dragoman.wire.http import HttpRequest, HttpResponse, check_path_name
from dragoman.wire.jsonio import Json
from dragoman.wire.sse import encode_payload, encode_sse

# --- Filters that only this service needs


SKIP = "skip_thought_signature_validator"
_BUDGETS = {"minimal": 1024, "low": 1024, "medium": 8192, "high": 24576}
_MORE = 24576  # for any effort above
_USUAL = {"image": "image/jpeg", "document": "application/pdf", "audio": "audio/mpeg", "video": "video/mp4"}


class AskForEvents(Filter):
    """A client that wants an array gets one; the service is asked for events all the same."""

    name = "gemini.ask_for_events"
    applies_to: Features = frozenset({"hints"})

    def forward(
        self, conversation: Conversation, notes: Notes, facts: Facts
    ) -> tuple[Conversation, MakeResponseFilter | None]:
        if conversation.hints is None or conversation.hints.family != FAMILY:
            return conversation, None
        notes.changed("gemini.stream.sse", "alt", "the service is asked for server-sent events")
        return structs.replace(conversation, hints=None), None


class ChooseOnlyTool(Filter):
    """A choice limited to one tool is the choice of that tool: the service says both alike."""

    name = "gemini.one_choice"
    applies_to: Features = frozenset({"chosen"})

    def forward(
        self, conversation: Conversation, notes: Notes, facts: Facts
    ) -> tuple[Conversation, MakeResponseFilter | None]:
        choice = conversation.tool_choice
        if choice.mode != "any" or len(choice.names) != 1:
            return conversation, None
        notes.changed("gemini.choice.one", "tool_choice", f"the one tool it allows, {choice.names[0]}, is chosen")
        return structs.replace(conversation, tool_choice=structs.replace(choice, mode="one")), None


class ConvertEffortToBudget(Filter):
    """Older models know no level of thinking, only a budget."""

    name = "gemini.effort_as_budget"
    applies_to: Features = frozenset({"thinking"})
    before = "fit_limits"

    def forward(
        self, conversation: Conversation, notes: Notes, facts: Facts
    ) -> tuple[Conversation, MakeResponseFilter | None]:
        asked = conversation.thinking
        if not asked.effort or asked.mode == "off":
            return conversation, None
        budget = asked.budget or _BUDGETS.get(asked.effort, _MORE)
        notes.changed("gemini.thinking", "thinking", f"the effort {asked.effort} is told as {budget} tokens")
        thinking = Thinking("on", "", budget, asked.show)
        return structs.replace(conversation, thinking=thinking), None


class UseOneThinkingSetting(Filter):
    """Thinking by a budget, by a level or by itself, never by two of these."""

    name = "gemini.settle_thinking"
    applies_to: Features = frozenset({"thinking"})

    def forward(
        self, conversation: Conversation, notes: Notes, facts: Facts
    ) -> tuple[Conversation, MakeResponseFilter | None]:
        asked = conversation.thinking
        thinking = _settled(asked)
        if thinking == asked:
            return conversation, None
        notes.changed("gemini.thinking", "thinking", "it is told by a budget, by a level or by itself: one of these")
        return structs.replace(conversation, thinking=thinking), None


def _settled(asked: Thinking) -> Thinking:
    if asked.effort:
        return Thinking("default", asked.effort, None, asked.show)
    if asked.mode == "off":
        return Thinking("off", "", None, asked.show)
    if asked.budget:
        return Thinking("on", "", asked.budget, asked.show)
    return Thinking("adaptive" if asked.mode == "on" else asked.mode, "", None, asked.show)


class MergeResultTexts(MessageFilter):
    """A result has one text, and it comes first."""

    name = "gemini.settle_results"
    applies_to: Features = frozenset({"results"})

    def block(self, block: Block, notes: Notes) -> Iterable[Block]:
        if not isinstance(block, ToolResult):
            return (block,)
        texts = [part for part in block.content if isinstance(part, Text)]
        others = [part for part in block.content if not isinstance(part, Text)]
        if len(texts) < 2 and (not texts or block.content[0] is texts[0]):
            return (block,)
        notes.changed("gemini.result", block.at.path, "the texts of a result are one, and it comes first")
        text = structs.replace(texts[0], text=join_texts(each.text for each in texts))
        return (structs.replace(block, content=(text, *others)),)


class FillMediaTypes(MessageFilter):
    """Media by address needs a type, and none has a name."""

    name = "gemini.fit_media"
    applies_to: Features = frozenset({"media"})

    def block(self, block: Block, notes: Notes) -> Iterable[Block]:
        if isinstance(block, ToolResult):
            content = tuple(self._media(part, notes) if isinstance(part, Media) else part for part in block.content)
            return (structs.replace(block, content=content),)
        return (self._media(block, notes) if isinstance(block, Media) else block,)

    def _media(self, block: Media, notes: Notes) -> Media:
        if not block.mime:
            found = mimetypes.guess_type(block.data)[0] or ""
            mime = (
                found
                if found.startswith(f"{block.kind}/") or (block.kind == "document" and found)
                else _USUAL[block.kind]
            )
            notes.added("gemini.media.type", block.at.path, f"its type must be told; it is said to be {mime}")
            block = structs.replace(block, mime=mime)
        if block.name and OWN_DISPLAY_NAME not in EXTRAS.own_fields(block.extra):
            notes.dropped("gemini.media.name", block.at.path, f"its name {block.name!r} has no place")
            block = structs.replace(block, name="")
        return block


class SignCalls(MessageFilter):
    """The first call of a turn must be signed. One of other origin gets the signature that is documented for it."""

    name = "gemini.sign_calls"
    applies_to: Features = frozenset({"calls"})

    def message(self, message: Message, notes: Notes) -> Message:
        index = next((at for at, block in enumerate(message.blocks) if isinstance(block, ToolCall)), None)
        call = None if index is None else message.blocks[index]
        if index is None or not isinstance(call, ToolCall) or call.signature is not None:
            return message
        notes.added("gemini.seal.skip", call.at.path, f"the call of {call.name} has no signature; it says so")
        signed = structs.replace(call, signature=Signature(FAMILY, SKIP))
        return structs.replace(message, blocks=(*message.blocks[:index], signed, *message.blocks[index + 1 :]))


_TRAITS: tuple[Trait, ...] = (
    "user_last",
    "no_blank_text",
    "whole_calls",
    "bare_tools",
    "choice_names",
    "home_names",
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
    """Gemini's generateContent."""

    family: ClassVar[str] = FAMILY

    def capabilities(self, model: str) -> Capabilities:
        older = is_before_gemini_3(model)
        return Capabilities(
            system="leading",
            turns="merge",
            traits=traits(*_TRAITS),
            names=IdentifierFormat("a-zA-Z0-9_.:-", 128),
            ids=IdentifierFormat(r"\x21-\x7e", 256),
            arguments="object",
            named_media=frozenset(),
            result_media=frozenset() if older else frozenset({"image", "document"}),
            media=frozenset(
                (kind, how) for kind in ("image", "document", "audio", "video") for how in ("base64", "url")
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
_COUNT = snake_to_camel("generateContentRequest")


class GeminiBinding(Struct, frozen=True):
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
            body = read_object(
                fields.rest(), "", MalformedRequest, _COUNT
            )  # it holds a whole request, or contents alone
            return ApiRequest("count", model, False, (body.maybe_child("generateContentRequest") or body).rest())
        stream = method.startswith("stream")
        hints = {"alt": JSON_ARRAY} if stream and request.parameter("alt") != "sse" else {}
        return ApiRequest("generate", model, stream, fields.rest(), hints)

    def unwrap(self, body: Json) -> ApiRequest:
        """The call in a bare body, which may name its model."""
        fields = Fields(body)
        return ApiRequest("generate", model_in(fields.text("model", "") or ""), False, fields.rest())

    def wrap(self, call: ApiRequest) -> HttpRequest:
        name = quote(check_path_name(call.model), safe="", errors="surrogatepass")
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
        if call.hints.get("alt") == JSON_ARRAY:
            return json_post(f"{path}:streamGenerateContent", body)
        return json_post(f"{path}:streamGenerateContent", body, EVENT_STREAM, query="alt=sse")

    def frame_decoder(self) -> FrameDecoder:
        return GeminiFrameDecoder()

    def encode_frame(self, payload: Payload) -> bytes:
        if payload.kind == ARRAY_ITEM:
            return payload.data
        if payload.error:
            # As an event, which every reader of events sees, and Google's Python SDK raises. Then bare, as the service
            # does it, and not closed by a blank line: Google's JavaScript SDK raises for bare JSON in a piece of its
            # own, and for text that is left over at the end.
            return encode_sse(b"", payload.data) + payload.data + b"\n"
        return encode_payload(payload)

    def error_response(self, fault: Fault, body: bytes) -> HttpResponse:
        return error_response(fault, status_of(fault), body)


def model_in(name: str) -> str:
    """The model in a resource name: without those who own it."""
    while found := _OWNER.match(name):
        name = name[found.end() :]
    return name


class GeminiListing:
    def entry(self, model: ListedModel) -> dict[str, Json]:
        return {
            "name": f"models/{model.name}",
            "displayName": model.name,
            "inputTokenLimit": model.window,
            "outputTokenLimit": model.longest_answer,
            "supportedGenerationMethods": ["generateContent", "countTokens"],
        }

    def render_list(self, entries: list[Json]) -> Json:
        return {"models": entries}

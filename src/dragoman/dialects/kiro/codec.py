"""The codec of Kiro with its settings and capabilities, its HTTP binding and its list of models.

Everything here is pure. The registry reaches it through `DIALECT`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal

from msgspec import Struct, structs

from dragoman.dialects.base import ApiRequest, Environment, ListedModel
from dragoman.dialects.kiro import encoder, faults, request_parser, rules, stream_rules
from dragoman.dialects.kiro.encoder import KiroEncoder
from dragoman.dialects.kiro.faults import status_of, type_of
from dragoman.dialects.kiro.models import CLAUDE_EFFORTS, GPT_EFFORTS, find_model, known_window, normalize_model_name
from dragoman.dialects.kiro.quirks.raw_calls import RecoverCalls
from dragoman.dialects.kiro.quirks.request import (
    DropMaxTokens,
    DropRepeatedText,
    FitImages,
    FitSize,
    IdentifyRequest,
    ReplaceSurrogates,
    ReportMissingEnd,
)
from dragoman.dialects.kiro.quirks.thinking import AskForThinking, WrapThinking
from dragoman.dialects.kiro.quirks.tools import (
    CleanSchemas,
    FillToolDescriptions,
    FitTools,
    RemoveUnsupportedTools,
    StubTools,
)
from dragoman.dialects.kiro.quirks.turns import BuildHistory, FlattenResults
from dragoman.dialects.kiro.request import CONVERSATION_STATE, FAMILY, USER_MESSAGE, render_request, set_model_names
from dragoman.dialects.kiro.rules import RULES
from dragoman.dialects.kiro.stream import KiroDecoder
from dragoman.dialects.kit.faults import error_response
from dragoman.dialects.kit.model_lists import JsonModelList, page_query
from dragoman.dialects.kit.values import members
from dragoman.dialects.rulebook import Breach
from dragoman.errors import Fault, LocalMisuse, MalformedRequest
from dragoman.model.capabilities import Capabilities, traits
from dragoman.model.conversation import Conversation, Reply
from dragoman.model.events import BlockKeys, ResponseBudget
from dragoman.model.filter import Filter
from dragoman.wire import jsonio
from dragoman.wire.eventstream import EventStreamDecoder, encode_event
from dragoman.wire.fields import Fields
from dragoman.wire.frame import FrameDecoder, Payload
from dragoman.wire.http import Headers, HttpRequest, HttpResponse
from dragoman.wire.jsonio import Json

_EFFORTS = {"claude": CLAUDE_EFFORTS, "gpt": GPT_EFFORTS}

_ALLOWED = {
    "pairing": ("placeholders", "merge"),
    "oversize": ("refuse", "trim"),
    "long_descriptions": ("system", "cut"),
}


def _are_shares(split: Sequence[float] | bool) -> bool:
    if isinstance(split, bool):
        return not split
    return len(split) == len(_SHARED) and min(split) >= 0 and sum(split) > 0


_SHARED = ("input", "cache writes", "cache reads")
_RANGES: tuple[tuple[str, str, Callable[[Any], bool]], ...] = (
    ("fillers", "two texts that are not blank", lambda texts: len(texts) == 2 and all(map(str.strip, texts))),
    ("history_limit", "1 or more, or none", lambda limit: limit is None or limit >= 1),
    ("max_tools", "1 or more", lambda limit: limit >= 1),
    ("usage_window", '1 or more, or "model"', lambda window: window == "model" or window >= 1),
    ("usage_split", f"one share for each of {', '.join(_SHARED)}, or false", _are_shares),
)


class KiroCodec(Struct, frozen=True):
    """The codec of Kiro (AWS CodeWhisperer). Its fields are its settings; docs/dialects/kiro.md describes each."""

    family: ClassVar[str] = FAMILY
    pairing: Literal["placeholders", "merge"] = "placeholders"
    fillers: tuple[str, str] = ("I understand.", "Continue")
    oversize: Literal["refuse", "trim"] = "refuse"
    history_limit: int | None = None
    long_descriptions: Literal["system", "cut"] = "system"
    max_tools: int = 110
    usage_window: int | Literal["model"] = 172_500
    usage_split: tuple[int, int, int] | bool = (1, 2, 25)  # False: no shares
    origin: str = "AI_EDITOR"
    profile_arn: str = ""
    conversation_id: str = ""
    recover_calls: bool = True
    drop_repeats: bool = False

    def __post_init__(self) -> None:
        for name, allowed in _ALLOWED.items():
            if getattr(self, name) not in allowed:
                raise LocalMisuse(f"expected {' or '.join(allowed)}, got {getattr(self, name)!r}", at=name)
        for name, expected, is_valid in _RANGES:
            if not is_valid(getattr(self, name)):
                raise LocalMisuse(f"expected {expected}, got {getattr(self, name)!r}", at=name)

    def window(self, model: str) -> int:
        """Return the context window, in tokens, that a percentage in a contextUsageEvent refers to."""
        return find_model(model).window if self.usage_window == "model" else self.usage_window

    def capabilities(self, model: str) -> Capabilities:
        known = find_model(model)
        return Capabilities(
            system="none",
            turns="merge" if self.pairing == "merge" else "pair",
            fillers=self.fillers,
            turn_separator="\n\n",
            traits=traits(
                "user_last",
                "no_blank_text",
                "result_errors",
                "no_reply_media",
                "reasoning",
                "signed_reasoning",
                "signature_slot",
                "streams_only",
            ),
            arguments="object",
            choice_modes=frozenset({"auto"}),
            media=frozenset({("image", "base64")}) if known.images else frozenset(),
            named_media=frozenset(),
            signatures=frozenset({FAMILY}),
            efforts=_EFFORTS.get(known.thinking_style, ()),
            thinking=frozenset({"default", "adaptive"} if known.thinking_style == "claude" else {"default"}),
            stop_limit=0,
            window=known_window(model),
        )

    def quirks(self, model: str) -> Sequence[Filter]:
        """Return the filters in the order in which they run.

        The first three run before drop_foreign, the fourth before rename_tools, those up to FitSize before
        fold_system, and the rest after all shared filters.
        """
        return (
            RemoveUnsupportedTools(),
            WrapThinking(),
            FlattenResults(),
            FillToolDescriptions(),  # before rename_tools: a description uses the client's name of a tool
            # After renaming, so that they see the names and ids on the wire; before fold_system moves the system text.
            IdentifyRequest(self.conversation_id),
            FitTools(self.long_descriptions, self.max_tools),
            *((RecoverCalls(),) if self.recover_calls else ()),
            AskForThinking(),
            FitSize(
                find_model(normalize_model_name(model)).window,
                self.oversize,
                self.history_limit,
                self.pairing == "merge",
            ),
            # After all shared filters.
            DropMaxTokens(),
            FitImages(),
            CleanSchemas(),
            StubTools(),
            ReplaceSurrogates(),
            BuildHistory(),
            ReportMissingEnd(),
            *((DropRepeatedText(),) if self.drop_repeats else ()),
        )

    def parse_request(self, call: ApiRequest) -> Conversation:
        return request_parser.parse_request(request_parser.with_json_turns(call), self)

    render_request = render_request

    def parse_reply(self, body: bytes, request: Conversation) -> Reply:
        return encoder.parse_reply(body, request, self)

    def render_reply(self, reply: Reply, request: Conversation, environment: Environment) -> bytes:
        return encoder.render_reply(reply, request, environment, self)

    def decoder(self, request: Conversation, environment: Environment, keys: BlockKeys | None = None) -> KiroDecoder:
        return KiroDecoder(request, environment, self, keys)

    def encoder(
        self, request: Conversation, environment: Environment, budget: ResponseBudget | None = None
    ) -> KiroEncoder:
        return KiroEncoder(request, environment, self, budget)

    def parse_fault(self, response: HttpResponse, sent: Conversation | None = None) -> Fault:
        """Parse an error response; with the conversation that was sent, "too long" errors name its size."""
        return faults.parse_fault(response, sent)

    render_fault = staticmethod(faults.render_fault)

    def breaches(self, call: ApiRequest) -> Sequence[Breach]:
        return rules.breaches(request_parser.with_json_turns(call))

    stream_breaches = staticmethod(stream_rules.KiroStreamLint.breaches)
    rules = staticmethod(RULES.all_rules)


# --- HTTP: paths, headers and framing of both wire protocols: a REST path, or `x-amz-target` on the root


EVENT_STREAM = "application/vnd.amazon.eventstream"
_PATH, _MODELS = "/generateAssistantResponse", "/ListAvailableModels"
_OPERATION = ".GenerateAssistantResponse"
_TARGET = "AmazonCodeWhispererStreamingService" + _OPERATION
_MODE = "x-amzn-kiro-agent-mode"
_DEFAULT_MODE = "vibe"
_COMMON: Headers = (("accept", EVENT_STREAM), ("x-amzn-codewhisperer-optout", "true"))


class KiroBinding(Struct, frozen=True):
    """Paths, headers and framing of Kiro: it reads both wire protocols and writes the REST form; see `Binding`."""

    def match(self, request: HttpRequest) -> ApiRequest | None:
        path = request.path.rstrip("/")
        if request.method == "GET" and path == _MODELS:
            return ApiRequest("models", "", False, None)
        has_target = not path and request.header("x-amz-target").endswith(_OPERATION)
        if request.method != "POST" or (path != _PATH and not has_target):
            return None
        return _call(Fields.of(request), request.header(_MODE))

    def unwrap(self, body: Json) -> ApiRequest:
        return _call(Fields(body), "")

    def wrap(self, call: ApiRequest) -> HttpRequest:
        if call.operation == "models":
            query = page_query(call, "nextToken", origin="AI_EDITOR")
            return HttpRequest("GET", _MODELS, query, (("accept", "application/json"),))
        body = set_model_names(members(call.body), call.model, named=True) if call.model else call.body
        try:
            data = jsonio.encode(body)
        except jsonio.JsonError as error:
            raise MalformedRequest(str(error)) from None
        mode = call.hints.get(_MODE, _DEFAULT_MODE)
        headers = (("content-type", "application/json"), *_COMMON, (_MODE, mode))
        return HttpRequest("POST", _PATH, headers=headers, body=data)

    def frame_decoder(self) -> FrameDecoder:
        return EventStreamDecoder()

    def encode_frame(self, payload: Payload) -> bytes:
        return encode_event(payload.kind, payload.data, error=payload.error)

    def error_response(self, fault: Fault, body: bytes) -> HttpResponse:
        return error_response(fault, status_of(fault), body, ("x-amzn-errortype", type_of(fault)))


class KiroTargetBinding(KiroBinding, frozen=True):
    """Writes the form of the command-line clients: the operation in a header, the agent mode in the body."""

    def wrap(self, call: ApiRequest) -> HttpRequest:
        if call.operation == "models":
            return super().wrap(call)
        body = {"agentMode": call.hints.get(_MODE, _DEFAULT_MODE), **members(call.body)}
        headers = (("content-type", "application/x-amz-json-1.0"), *_COMMON, ("x-amz-target", _TARGET))
        return structs.replace(super().wrap(structs.replace(call, body=body)), path="/", headers=headers)


def _call(fields: Fields, mode: str) -> ApiRequest:
    """Return the request without its envelope: the model is in every user turn, the mode in a header or in the body."""
    mode = fields.text("agentMode", "") or mode
    state = fields.child(CONVERSATION_STATE)
    current = state.child("currentMessage")
    user = current.peek(USER_MESSAGE)
    model = user.get("modelId") if isinstance(user, dict) else None
    if model is not None and not isinstance(model, str):
        current.child(USER_MESSAGE).fail("modelId", "expected a string")
    body = fields.rest() | {CONVERSATION_STATE: {**state.rest(), "currentMessage": current.rest()}}
    body = set_model_names(body, model or "", named=False)
    return ApiRequest("generate", model or "", True, body, {} if mode in ("", _DEFAULT_MODE) else {_MODE: mode})


# --- the list of models

MODEL_LIST = JsonModelList(
    "models",
    "modelId",
    ("tokenLimits.maxInputTokens",),
    ("tokenLimits.maxOutputTokens",),
    next_page="nextToken",
)


class KiroListing:
    """The list of models in Kiro's format; see `ModelListing`."""

    def entry(self, model: ListedModel) -> dict[str, Json]:
        figures = {"maxInputTokens": model.window, "maxOutputTokens": model.max_output_tokens}
        limits: dict[str, Json] = {name: value for name, value in figures.items() if value is not None}
        return {"modelId": model.name, "modelName": model.name, "tokenLimits": limits or None}

    def render_list(self, entries: list[Json]) -> Json:
        return {"models": entries, "defaultModel": entries[0] if entries else None}

"""Values that the refusal rules of the simulated Kiro service use: requests, profiles, limits, routes and refusals.

Pure. `rules` checks requests with them; `service` renders the refusals. Rule numbers are those of
docs/dialects/kiro.md.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Literal, TypeAlias

from msgspec import Struct

from dragoman.dialects.kiro import rules
from dragoman.dialects.kiro.raw_request import KiroRawRequest
from dragoman.dialects.kiro.rules import Grade
from dragoman.dialects.kit.shapes import AnyValue, Array, Bool, JsonShape, ObjectShape, Str
from dragoman.dialects.kit.values import text
from dragoman.simulator.model import estimate_tokens
from dragoman.wire import jsonio
from dragoman.wire.http import HttpRequest
from dragoman.wire.jsonio import Json

StrictnessProfile: TypeAlias = Literal["official", "observed", "paranoid"]

PROFILES: Mapping[StrictnessProfile, frozenset[Grade]] = {
    "official": frozenset({"A"}),
    "observed": frozenset({"A", "B"}),
    "paranoid": frozenset({"A", "B", "C", "D"}),
}

IMPROPER = "Improperly formed request."


class ErrorResponse(Struct, frozen=True):
    """An error response of the service. `whole` replaces the usual `{message, reason}` body."""

    message: str = IMPROPER
    reason: str | None = None
    status: int = 400
    type: str = "ValidationException"
    whole: bytes = b""


class RuleBreach(Struct, frozen=True):
    """One place where a request breaks a rule. Without a grade or response, the rule's own applies."""

    at: str
    detail: str
    grade: Grade | Literal[""] = ""
    response: ErrorResponse | None = None


class KiroRefusal(Struct, frozen=True):
    """A broken rule (0: the plain shape of the request) and the error response of the service."""

    rule: int
    title: str
    grade: Grade
    at: str
    detail: str
    response: ErrorResponse

    def __str__(self) -> str:
        return f"rule {self.rule} ({self.title}) at {self.at or 'the body'}: {self.detail}"


class SimulatorLimits(rules.KiroLimits, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The thresholds of the rules, as docs/dialects/kiro.md states them.

    A threshold that is not known is a setting whose default is a guess.
    """

    body_bytes: int = 32 * 1024 * 1024  # rule 44; no figure is known
    payload_tokens: int = 320_000  # rule 43: 1.25 MB of ASCII passed, 1.3 MB did not
    window: int | None = None  # rule 42; None: the window of the model
    tool_bytes: int = 2_000_000  # rule 45
    many_images: int = 20  # above this number in one request …
    image_edge: int = 2000  # … no edge may be longer, in pixels
    versionless_history: int = 198
    profile_required: bool = False  # rule 49: the runtime.kiro.dev host needs a profileArn
    profile_arns: tuple[str, ...] = ()  # rule 49: the profiles that the token may use; empty: all
    signatures: Literal["own", "strict"] = (
        "own"  # rule 40: own: check signatures of the simulator; strict: refuse all others
    )


# --- the signatures of the simulator's reasoning


SIGNATURE_PREFIX = "sim."


def sign(reasoning: str) -> str:
    """Return the simulator's signature of a reasoning text; rule 40 checks it when a client sends the text back."""
    return SIGNATURE_PREFIX + hashlib.sha256(reasoning.encode("utf-8", "surrogatepass")).hexdigest()


# --- a request: its parts, and an estimate of its tokens


class KiroHttpRequest(KiroRawRequest):
    """One request with its decoded body. `problem` says why the body is not JSON; empty if it is."""

    def __init__(self, request: HttpRequest) -> None:
        super().__init__(None)
        self.request = request
        self.problem = ""
        try:
            self.document = jsonio.decode(request.body)
        except jsonio.JsonError as error:
            self.problem = str(error)

    @property
    def model(self) -> str:
        """The requested model; `auto` if the request names none."""
        return text(self.current.body.get("modelId")) or "auto" if self.current else "auto"

    @cached_property
    def tokens(self) -> int:
        """An estimate of the input tokens: one for four ASCII characters or for one other character."""
        return sum(map(estimate_tokens, _texts(self.document))) + _IMAGE_TOKENS * len(self.images)


_IMAGE_TOKENS = 1600


def _texts(value: Json) -> Iterator[str]:
    """Yield all strings of a document, keys included, except the bytes of images."""
    pending: list[Json] = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, list):
            pending.extend(item)
        elif isinstance(item, dict):
            yield from item
            pending.extend(inner for name, inner in item.items() if name != "bytes")


# --- the shape of a request, as data. A member that a numbered rule checks, with its own grade and message, is `_ANY`


def _record(
    required: Mapping[str, JsonShape] | None = None, optional: Mapping[str, JsonShape] | None = None
) -> ObjectShape:
    return ObjectShape({**(required or {}), **(optional or {})}, tuple(required or ()), lenient=True)


def _one_of(members: Mapping[str, JsonShape]) -> ObjectShape:
    """A Smithy union: an object with exactly one member."""
    return ObjectShape(members, union=True, lenient=True)


_ANY = AnyValue()
_TEXT = Str()
_OBJECT = _record()
_ORIGINS = (
    "AI_EDITOR KIRO_CLI CLI CHATBOT CONSOLE DOCUMENTATION GITLAB IDE INLINE_CHAT MARKETING MD MD_CE "
    "MD_IDE MOBILE OPENSEARCH_DASHBOARD Q_DEV_BEXT SAGE_MAKER SERVICE_INTERNAL SM_AI_STUDIO_IDE UNIFIED_SEARCH UNKNOWN"
)

_CACHE_POINT = _record({"type": Str(words=("default",))})
_TOOL = _one_of(
    {"toolSpecification": _record({"name": _ANY}, {"description": _ANY, "inputSchema": _ANY}), "cachePoint": _ANY}
)
_RESULT = _record({"toolUseId": _ANY}, {"content": Array(_one_of({"text": _TEXT, "json": _ANY})), "status": _ANY})
_CONTEXT = _record(
    optional={
        "tools": Array(_TOOL),
        "toolResults": Array(_RESULT),
        **dict.fromkeys(
            ("envState", "editorState", "shellState", "gitState", "diagnostic", "userSettings", "appStudioContext"),
            _OBJECT,
        ),
        "additionalContext": Array(_ANY),
        "consoleState": _OBJECT,
    }
)
_USER = _record(
    {"content": _TEXT},
    {
        "modelId": _ANY,
        "origin": Str(words=tuple(_ORIGINS.split())),
        "userIntent": _TEXT,
        "images": Array(_record({"format": _ANY, "source": _ANY})),
        "cachePoint": _CACHE_POINT,
        "clientCacheConfig": _record({}, {"useClientCachingOnly": Bool()}),
        "userInputMessageContext": _CONTEXT,
    },
)
_ASSISTANT = _record(
    {"content": _TEXT},
    {
        "messageId": Str(most=128),
        "toolUses": Array(_record({"toolUseId": _ANY, "name": _ANY})),
        "reasoningContent": _ANY,
        "supplementaryWebLinks": Array(_OBJECT),
        "references": Array(_OBJECT),
        "followupPrompt": _OBJECT,
        "cachePoint": _CACHE_POINT,
    },
)
_MESSAGE = _one_of({"userInputMessage": _USER, "assistantResponseMessage": _ASSISTANT})
_UUID = Str(36, 36, "[0-9a-fA-F-]+")
REQUEST = _record(
    {
        "conversationState": _record(
            {"chatTriggerType": _ANY, "currentMessage": _MESSAGE},
            {
                "conversationId": _ANY,
                "workspaceId": _UUID,
                "customizationArn": Str(most=1224),
                "agentContinuationId": _TEXT,
                "agentTaskType": Str(words=("vibe", "spectask")),
                "history": Array(_MESSAGE),
            },
        )
    },
    {"profileArn": _ANY, "agentMode": _TEXT, "additionalModelRequestFields": _OBJECT},
)


# --- the operation of a request, over either wire protocol: REST paths or x-amz-target (docs/dialects/kiro.md)


KiroOperation: TypeAlias = Literal["generate", "usage", "models", "profiles", "mcp"]


class Route(Struct, frozen=True):
    """An operation and the wire protocol of its request."""

    operation: KiroOperation
    protocol: Literal["rest", "target"]


_PATHS: dict[tuple[str, str], KiroOperation] = {
    ("POST", "generateassistantresponse"): "generate",
    ("POST", "sendmessagestreaming"): "generate",
    ("GET", "getusagelimits"): "usage",
    ("POST", "getusagelimits"): "usage",
    ("GET", "listavailablemodels"): "models",
    ("POST", "listavailablemodels"): "models",
    ("GET", "listavailableprofiles"): "profiles",
    ("POST", "listavailableprofiles"): "profiles",
    ("POST", "mcp"): "mcp",
}
_TARGETS: dict[str, KiroOperation] = {
    "AmazonCodeWhispererStreamingService.GenerateAssistantResponse": "generate",
    "AmazonQDeveloperStreamingService.SendMessage": "generate",
    "AmazonCodeWhispererService.GetUsageLimits": "usage",
    "AmazonCodeWhispererService.ListAvailableModels": "models",
    "AmazonCodeWhispererService.ListAvailableProfiles": "profiles",
}
_TARGET_TYPES = ("application/x-amz-json-1.0", "application/x-amz-json-1.1")


def protocol(request: HttpRequest) -> Literal["rest", "target"]:
    """Return the wire protocol of a request."""
    return "target" if request.header("x-amz-target") else "rest"


def route(request: HttpRequest) -> Route | KiroRefusal:
    """Return the operation of a request, or the refusal of an unknown operation or a wrong content type."""
    target, path = request.header("x-amz-target"), request.path.strip("/").replace("-", "").lower()
    kind = request.header("content-type").partition(";")[0].strip().lower()
    if target and request.path == "/":
        operation = _TARGETS.get(target) if request.method == "POST" else None
        if operation is None:
            return _unknown(400, "x-amz-target", f"unknown operation {target!r}")
        if kind not in _TARGET_TYPES:
            return _unknown(400, "content-type", f"{kind or 'nothing'}, not {_TARGET_TYPES[0]}")
        return Route(operation, "target")
    operation = _PATHS.get((request.method, path))
    if operation is None:
        return _unknown(404, "path", f"unknown operation: {request.method} {request.path}")
    if request.method == "POST" and kind != "application/json":
        return _unknown(400, "content-type", f"{kind or 'nothing'}, not application/json")
    return Route(operation, "rest")


def _unknown(status: int, at: str, detail: str) -> KiroRefusal:
    response = ErrorResponse(
        "The requested operation is not recognized by the service.", None, status, "UnknownOperationException"
    )
    return KiroRefusal(0, "the operation must exist", "A", at, detail, response)

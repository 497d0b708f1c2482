"""The simulated Kiro service: token check, refusal rules, endpoints, and the model's answer as frames."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping

from dragoman.dialects.kiro.models import find_model
from dragoman.dialects.kiro.rules import EVIDENCE
from dragoman.dialects.kit.values import Object, items, members, text
from dragoman.model.conversation import StopReason
from dragoman.simulator.kiro import catalogue
from dragoman.simulator.kiro.refusals import (
    ErrorResponse,
    KiroHttpRequest,
    KiroRefusal,
    Profile,
    Route,
    SimulatorLimits,
    protocol,
    route,
    sign,
)
from dragoman.simulator.kiro.rules import BODY_CAP, first_refusal
from dragoman.simulator.kiro.tokens import TokenService
from dragoman.simulator.model import ModelOutput, ModelPrompt, PromptTool, output_tokens, respond
from dragoman.simulator.response import (
    BodyEnd,
    Pause,
    Piece,
    Response,
    apply_pace,
    header_text,
    scripted_headers,
    whole_response,
)
from dragoman.simulator.script import (
    ExceptionPart,
    FramePart,
    Part,
    ReasoningPart,
    Script,
    ScriptPlayer,
    ScriptTurn,
    TextPart,
    ToolCallPart,
    WaitPart,
    exception_for,
    make_fault,
)
from dragoman.wire import jsonio
from dragoman.wire.eventstream import encode_event
from dragoman.wire.http import Headers, HttpRequest
from dragoman.wire.jsonio import Json

# --- the answer as wire frames, in the order in which the service sends them (facts 3.2); quirks are those of facts 3.3


_STOP_REASONS = {
    StopReason.END: "END_TURN",
    StopReason.TOOL: "TOOL_USE",
    StopReason.LENGTH: "MAX_TOKENS",
    StopReason.SEQUENCE: "STOP_SEQUENCE",
    StopReason.REFUSAL: "CONTENT_FILTERED",
    StopReason.CONTEXT: "MODEL_CONTEXT_WINDOW_EXCEEDED",
    StopReason.PAUSE: "MAX_TIME",
}


def _perform(asked: KiroHttpRequest, act: ScriptTurn, spoken: ModelOutput, conversation: str) -> Iterator[Piece]:
    """Every wire frame of the answer; after an exception there is nothing."""
    quirks, wraps = act.quirks, "nested" in act.quirks
    # No conversation uses an id twice: it grows between two requests, and so its hash differs.
    seed = hashlib.sha256(asked.request.body).hexdigest()[:16]
    if "no_start" not in quirks:
        yield _event("messageMetadataEvent", {"conversationId": conversation, "utteranceId": "sim"}, wraps)
    for index, part in enumerate(spoken.parts):
        if isinstance(part, ExceptionPart):
            raised = make_fault(part.type, part.message)
            reason = {"reason": part.reason} if part.reason else {}
            yield encode_event(raised.code, jsonio.encode({"message": raised.message, **reason}), error=True)
            yield BodyEnd("end")
            return
        for told in _told(part, f"tooluse_{seed}_{index}", asked, act):
            yield told if isinstance(told, Pause) else _event(*told, wraps)
    if "no_metadata" not in quirks:
        yield _event("metadataEvent", {"stopReason": _STOP_REASONS[act.stop or spoken.stop]}, wraps)
    if "no_usage" not in quirks:
        yield _event("contextUsageEvent", {"contextUsagePercentage": _percentage(asked, act, spoken)}, wraps)
        yield _event("meteringEvent", {"usage": 0.01, "unit": "credit", "unitPlural": "credits"}, wraps)


def _told(part: Part, call_id: str, asked: KiroHttpRequest, act: ScriptTurn) -> Iterator[tuple[str, Json] | Pause]:
    model = asked.model if asked.model != "auto" else catalogue.DEFAULT_MODEL
    match part:
        case TextPart(text):
            for piece in _pieces(text, act.chunk):
                yield "assistantResponseEvent", {"content": piece, "modelId": model}
        case ReasoningPart(text) if _thinks_by_tags(asked):
            for piece in _pieces(f"<thinking>\n{text}</thinking>\n\n", act.chunk):
                yield "assistantResponseEvent", {"content": piece, "modelId": model}
        case ReasoningPart(text):
            for piece in _pieces(text, act.chunk):
                yield "reasoningContentEvent", {"text": piece}
            for piece in _pieces(sign(text), 40):  # in parts, as the service sends it
                yield "reasoningContentEvent", {"signature": piece}
        case ToolCallPart():
            yield from _use(part, part.id or call_id, act)
        case WaitPart(seconds):
            yield Pause(seconds)
        case FramePart(event, data):
            yield event, data
        case ExceptionPart():
            pass  # the end of the answer, and so not told here


def _use(part: ToolCallPart, call_id: str, act: ScriptTurn) -> Iterator[tuple[str, Json]]:
    named: dict[str, Json] = {"name": part.name, "toolUseId": call_id}
    later = {} if "bare_fragments" in act.quirks else named
    yield "toolUseEvent", {**named, "input": {}} if "object_input" in act.quirks else named
    if part.arguments != "{}":  # a call without arguments has no input at all (facts 3.3, 2)
        for piece in _pieces(part.arguments, act.chunk):
            yield "toolUseEvent", {**later, "input": piece}
    yield "toolUseEvent", {**later, "stop": True}


def _pieces(text: str, size: int) -> Iterator[str]:
    return (text[at : at + size] for at in range(0, len(text), size))


def _event(kind: str, data: Json, wraps: bool) -> bytes:
    return encode_event(kind, jsonio.encode({kind: data} if wraps else data))


_NAMESPACE = "com.amazon.aws.codewhisperer#"
_JSON_TYPES = {"rest": "application/json", "target": "application/x-amz-json-1.0"}
_ASKS_TO_THINK = re.compile(r"<thinking_mode>(?:enabled|adaptive)</thinking_mode>")
_ORDER = re.compile(r"\bCall [\w-]+\s*\{")  # a call that is written out is found wherever it stands
_THINKING_TAG = re.compile(r"<(thinking_mode|max_thinking_length|thinking_effort)>[^<]*</\1>\s*")
_STREAM: Headers = (("content-type", "application/vnd.amazon.eventstream"),)


class KiroService:
    """Answers requests of either wire protocol. One per simulator: it holds tokens, the script's place and a count."""

    def __init__(self, profile: Profile, script: Script, limits: SimulatorLimits) -> None:
        self._profile = profile
        self._limits = limits
        self._tokens = TokenService(script.tokens)
        self._player = ScriptPlayer(script)
        self._answered = 0
        self.max_body = limits.body_bytes

    def handle(self, request: HttpRequest) -> Response:
        served = self._tokens.serve(request)
        if served is not None:
            return served
        refused = self._tokens.refused(request)
        if refused is not None:
            return _refuse(request, refused, f"token: {refused.message}")
        routed = route(request)
        if isinstance(routed, KiroRefusal):
            return _refuse(request, routed.response, str(routed), routed)
        match routed.operation:
            case "generate":
                return self._generate(request)
            case "models":
                return _document(routed, catalogue.list_models())
            case "profiles":
                return _document(routed, catalogue.list_profiles())
            case "usage":
                resource = request.parameter("resourceType") or text(KiroHttpRequest(request).top.get("resourceType"))
                return _document(routed, catalogue.usage_limits(self._answered, resource or "AGENTIC_REQUEST"))
            case "mcp":
                return _document(routed, _searched(KiroHttpRequest(request).top))

    def too_large(self, request: HttpRequest) -> Response:
        """Refuse a body that was not read to its end (rule 44 of docs/dialects/kiro.md)."""
        detail = f"more than {self.max_body} bytes"
        refusal = KiroRefusal(44, "the body is within the HTTP cap", "B", "", detail, BODY_CAP)
        return _refuse(request, BODY_CAP, str(refusal), refusal)

    def _generate(self, request: HttpRequest) -> Response:
        refusal = first_refusal(request, self._profile, self._limits)
        if refusal is not None:
            return _refuse(request, refusal.response, str(refusal), refusal)
        act = self._player.next()
        if act.status != 200:
            return _scripted_refusal(request, act)
        self._answered += 1
        asked = KiroHttpRequest(request)
        spoken = respond(read_prompt(asked), act.parts)
        conversation = text(asked.state.get("conversationId")) or "sim-conversation"
        headers = (*_STREAM, ("x-amzn-codewhisperer-conversation-id", header_text(conversation)))
        return Response(200, headers, apply_pace(_perform(asked, act, spoken, conversation), act, act.cut))


# --- what the model sees


def read_prompt(asked: KiroHttpRequest) -> ModelPrompt:
    """Read a request as the embedded model needs it."""
    current = asked.current
    if current is None:
        return ModelPrompt(input_tokens=asked.tokens)
    words = _THINKING_TAG.sub("", current.content)
    if not asked.history and not _ORDER.search(words):  # the system text stands in front of the first turn (facts 1.4)
        words = words.strip().rpartition("\n\n")[2]
    return ModelPrompt(
        text=words,
        results=tuple(_result_text(result) for result, _ in current.results),
        tools=tuple(_tool(spec) for spec, _ in asked.tools),
        thinks=_thinks_natively(asked) or _thinks_by_tags(asked),
        input_tokens=asked.tokens,
    )


def _tool(spec: Object) -> PromptTool:
    return PromptTool(text(spec.get("name")), members(members(spec.get("inputSchema")).get("json")))


def _result_text(result: Object) -> str:
    parts = [members(part) for part in items(result.get("content"))]
    return "\n".join(
        text(part["text"]) if "text" in part else jsonio.encode(part.get("json")).decode() for part in parts
    )


def _thinks_natively(asked: KiroHttpRequest) -> bool:
    fields = members(asked.top.get("additionalModelRequestFields"))
    thinking = text(members(fields.get("thinking")).get("type"))
    return thinking in ("adaptive", "enabled") or "output_config" in fields or "reasoning" in fields


def _thinks_by_tags(asked: KiroHttpRequest) -> bool:
    if _thinks_natively(asked):
        return False
    users = [turn.content for turn in asked.turns if turn.role == "user"]
    return any(_ASKS_TO_THINK.search(words) for words in (*users[:1], *users[-1:]))


# --- what it answers


def _percentage(asked: KiroHttpRequest, act: ScriptTurn, spoken: ModelOutput) -> float:
    used = asked.tokens if act.input_tokens is None else act.input_tokens
    said = output_tokens(spoken.parts) if act.output_tokens is None else act.output_tokens
    return round((used + said) * 100 / find_model(asked.model).window, 6)


def _document(routed: Route, body: Json) -> Response:
    return whole_response(200, (("content-type", _JSON_TYPES[routed.protocol]),), jsonio.encode(body))


def _searched(asked: Object) -> Json:
    """The web search of /mcp: one made-up result."""
    query = text(members(members(asked.get("params")).get("arguments")).get("query"))
    result: Json = {
        "title": f"About {query}",
        "url": "https://example.com/",
        "snippet": f"A simulated page on {query}.",
    }
    found = jsonio.encode({"results": [result], "totalResults": 1, "query": query, "error": None}).decode()
    content: Json = [{"type": "text", "text": found}]
    return {"id": asked.get("id"), "jsonrpc": "2.0", "result": {"content": content, "isError": False}}


# --- refusals


def _refuse(
    request: HttpRequest,
    response: ErrorResponse,
    note: str,
    refusal: KiroRefusal | None = None,
    more: Mapping[str, str] | None = None,
) -> Response:
    kind = protocol(request)
    body: dict[str, Json] = {"message": response.message, "reason": response.reason}
    headers = {"content-type": _JSON_TYPES[kind]}
    if kind == "target":
        body = {"__type": _NAMESPACE + response.type, **body}
    else:
        headers["x-amzn-errortype"] = response.type
    if refusal is not None:  # what the real service never tells
        headers |= {"x-dragoman-rule": str(refusal.rule), "x-dragoman-detail": header_text(str(refusal))}
        headers["x-dragoman-evidence"] = EVIDENCE[refusal.grade]
    headers |= more or {}
    return whole_response(response.status, tuple(headers.items()), response.whole or jsonio.encode(body), note)


def _scripted_refusal(request: HttpRequest, refuse: ScriptTurn) -> Response:
    told = make_fault(refuse.type or exception_for(refuse.status), refuse.message)
    response = ErrorResponse(told.message, refuse.reason, refuse.status, told.code)
    return _refuse(request, response, f"script: {refuse.status}", more=scripted_headers(refuse))

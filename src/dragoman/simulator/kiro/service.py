"""The simulated Kiro service: token check, refusal rules, endpoints, and the model's reply as event frames.

The simulator's server calls `KiroService.handle` for each request. Nothing here does I/O.
"""

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
    Route,
    SimulatorLimits,
    StrictnessProfile,
    protocol,
    route,
    sign,
)
from dragoman.simulator.kiro.rules import BODY_CAP, BODY_SIZE, first_refusal
from dragoman.simulator.kiro.tokens import TokenService
from dragoman.simulator.model import ModelOutput, ModelPrompt, PromptTool, output_tokens, respond
from dragoman.simulator.response import (
    BodyEnd,
    BodyPiece,
    Pause,
    Response,
    apply_pace,
    header_text,
    scripted_headers,
    split_text,
    whole_response,
)
from dragoman.simulator.script import (
    ExceptionPart,
    FramePart,
    ReasoningPart,
    Script,
    ScriptPart,
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

# --- the reply as event frames, in the usual order of the service (docs/dialects/kiro.md#events)
#
# The quirks of a script turn are oddities of recorded streams (docs/dialects/kiro.md#odd-streams).


_STOP_REASONS = {
    StopReason.END: "END_TURN",
    StopReason.TOOL: "TOOL_USE",
    StopReason.LENGTH: "MAX_TOKENS",
    StopReason.SEQUENCE: "STOP_SEQUENCE",
    StopReason.REFUSAL: "CONTENT_FILTERED",
    StopReason.CONTEXT: "MODEL_CONTEXT_WINDOW_EXCEEDED",
    StopReason.PAUSE: "MAX_TIME",
}


def _perform(parsed: KiroHttpRequest, turn: ScriptTurn, output: ModelOutput, conversation: str) -> Iterator[BodyPiece]:
    """Yield every frame of the response stream. An exception frame ends the stream."""
    quirks, wraps = turn.quirks, "nested" in turn.quirks
    # A conversation grows between two requests, so the hash, and with it each call id, differs.
    seed = hashlib.sha256(parsed.request.body).hexdigest()[:16]
    if "no_start" not in quirks:
        yield _event("messageMetadataEvent", {"conversationId": conversation, "utteranceId": "sim"}, wraps)
    for index, part in enumerate(output.parts):
        if isinstance(part, ExceptionPart):
            fault = make_fault(part.type, part.message)
            reason = {"reason": part.reason} if part.reason else {}
            yield encode_event(fault.code, jsonio.encode({"message": fault.message, **reason}), error=True)
            yield BodyEnd("end")
            return
        for event in _part_events(part, f"tooluse_{seed}_{index}", parsed, turn):
            yield event if isinstance(event, Pause) else _event(*event, wraps)
    if "no_metadata" not in quirks:
        yield _event("metadataEvent", {"stopReason": _STOP_REASONS[turn.stop or output.stop]}, wraps)
    if "no_usage" not in quirks:
        yield _event("contextUsageEvent", {"contextUsagePercentage": _percentage(parsed, turn, output)}, wraps)
        yield _event("meteringEvent", {"usage": 0.01, "unit": "credit", "unitPlural": "credits"}, wraps)


def _part_events(
    part: ScriptPart, call_id: str, parsed: KiroHttpRequest, turn: ScriptTurn
) -> Iterator[tuple[str, Json] | Pause]:
    """Yield the name and payload of each event of one part of the reply."""
    model = parsed.model if parsed.model != "auto" else catalogue.DEFAULT_MODEL
    match part:
        case TextPart(text):
            for piece in split_text(text, turn.chunk):
                yield "assistantResponseEvent", {"content": piece, "modelId": model}
        case ReasoningPart(text) if _thinks_by_tags(parsed):
            for piece in split_text(f"<thinking>\n{text}</thinking>\n\n", turn.chunk):
                yield "assistantResponseEvent", {"content": piece, "modelId": model}
        case ReasoningPart(text):
            for piece in split_text(text, turn.chunk):
                yield "reasoningContentEvent", {"text": piece}
            for piece in split_text(sign(text), 40):  # in parts, as the service sends it
                yield "reasoningContentEvent", {"signature": piece}
        case ToolCallPart():
            yield from _call_events(part, part.id or call_id, turn)
        case WaitPart(seconds):
            yield Pause(seconds)
        case FramePart(event, data):
            yield event, data
        case ExceptionPart():
            pass  # `_perform` writes it: it ends the stream


def _call_events(part: ToolCallPart, call_id: str, turn: ScriptTurn) -> Iterator[tuple[str, Json]]:
    named: dict[str, Json] = {"name": part.name, "toolUseId": call_id}
    later = {} if "bare_fragments" in turn.quirks else named
    yield "toolUseEvent", {**named, "input": {}} if "object_input" in turn.quirks else named
    if part.arguments != "{}":  # a call without arguments has no input (docs/dialects/kiro.md#odd-streams)
        for piece in split_text(part.arguments, turn.chunk):
            yield "toolUseEvent", {**later, "input": piece}
    yield "toolUseEvent", {**later, "stop": True}


def _event(kind: str, data: Json, wraps: bool) -> bytes:
    return encode_event(kind, jsonio.encode({kind: data} if wraps else data))


_NAMESPACE = "com.amazon.aws.codewhisperer#"
_JSON_TYPES = {"rest": "application/json", "target": "application/x-amz-json-1.0"}
_ASKS_TO_THINK = re.compile(r"<thinking_mode>(?:enabled|adaptive)</thinking_mode>")
_ORDER = re.compile(r"\bCall [\w-]+\s*\{")  # a call that the prompt spells out, anywhere in its text
_THINKING_TAG = re.compile(r"<(thinking_mode|max_thinking_length|thinking_effort)>[^<]*</\1>\s*")
_STREAM: Headers = (("content-type", "application/vnd.amazon.eventstream"),)


class KiroService:
    """Handles requests of both wire protocols. One per simulator: it holds tokens, the script position and a count."""

    def __init__(self, profile: StrictnessProfile, script: Script, limits: SimulatorLimits) -> None:
        self._profile = profile
        self._limits = limits
        self._tokens = TokenService(script.tokens)
        self._player = ScriptPlayer(script)
        self._reply_count = 0
        self.max_body = limits.body_bytes

    def handle(self, request: HttpRequest) -> Response:
        """Return the response to a request: a sign-in endpoint, a refusal, or the result of an operation."""
        served = self._tokens.serve(request)
        if served is not None:
            return served
        refused = self._tokens.check_access(request)
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
                return _document(routed, catalogue.usage_limits(self._reply_count, resource or "AGENTIC_REQUEST"))
            case "mcp":
                return _document(routed, _search_result(KiroHttpRequest(request).top))

    def too_large(self, request: HttpRequest) -> Response:
        """Refuse a body that was not read to its end (rule 44 of docs/dialects/kiro.md)."""
        detail = f"more than {self.max_body} bytes"
        refusal = KiroRefusal(BODY_SIZE.number, BODY_SIZE.title, BODY_SIZE.grade, "", detail, BODY_CAP)
        return _refuse(request, BODY_CAP, str(refusal), refusal)

    def _generate(self, request: HttpRequest) -> Response:
        refusal = first_refusal(request, self._profile, self._limits)
        if refusal is not None:
            return _refuse(request, refusal.response, str(refusal), refusal)
        turn = self._player.next()
        if turn.status != 200:
            return _scripted_refusal(request, turn)
        self._reply_count += 1
        parsed = KiroHttpRequest(request)
        output = respond(read_prompt(parsed), turn.parts)
        conversation = text(parsed.state.get("conversationId")) or "sim-conversation"
        headers = (*_STREAM, ("x-amzn-codewhisperer-conversation-id", header_text(conversation)))
        return Response(200, headers, apply_pace(_perform(parsed, turn, output, conversation), turn, turn.cut))


# --- the prompt of the embedded model


def read_prompt(parsed: KiroHttpRequest) -> ModelPrompt:
    """Return the prompt that the embedded model reads from a request."""
    current = parsed.current
    if current is None:
        return ModelPrompt(input_tokens=parsed.tokens)
    words = _THINKING_TAG.sub("", current.content)
    # The system text is before the first turn (docs/dialects/kiro.md#what-it-can-express).
    if not parsed.history and not _ORDER.search(words):
        words = words.strip().rpartition("\n\n")[2]
    return ModelPrompt(
        text=words,
        results=tuple(_result_text(result) for result, _ in current.results),
        tools=tuple(_tool(spec) for spec, _ in parsed.tools),
        thinks=_thinks_natively(parsed) or _thinks_by_tags(parsed),
        input_tokens=parsed.tokens,
    )


def _tool(spec: Object) -> PromptTool:
    return PromptTool(text(spec.get("name")), members(members(spec.get("inputSchema")).get("json")))


def _result_text(result: Object) -> str:
    parts = [members(part) for part in items(result.get("content"))]
    return "\n".join(
        text(part["text"]) if "text" in part else jsonio.encode(part.get("json")).decode() for part in parts
    )


def _thinks_natively(parsed: KiroHttpRequest) -> bool:
    fields = members(parsed.top.get("additionalModelRequestFields"))
    thinking = text(members(fields.get("thinking")).get("type"))
    return thinking in ("adaptive", "enabled") or "output_config" in fields or "reasoning" in fields


def _thinks_by_tags(parsed: KiroHttpRequest) -> bool:
    if _thinks_natively(parsed):
        return False
    users = [turn.content for turn in parsed.turns if turn.role == "user"]
    return any(_ASKS_TO_THINK.search(words) for words in (*users[:1], *users[-1:]))


# --- responses


def _percentage(parsed: KiroHttpRequest, turn: ScriptTurn, output: ModelOutput) -> float:
    used = parsed.tokens if turn.input_tokens is None else turn.input_tokens
    generated = output_tokens(output.parts) if turn.output_tokens is None else turn.output_tokens
    return round((used + generated) * 100 / find_model(parsed.model).window, 6)


def _document(routed: Route, body: Json) -> Response:
    return whole_response(200, (("content-type", _JSON_TYPES[routed.protocol]),), jsonio.encode(body))


def _search_result(call: Object) -> Json:
    """Return the result of the web search of /mcp: one invented page."""
    query = text(members(members(call.get("params")).get("arguments")).get("query"))
    result: Json = {
        "title": f"About {query}",
        "url": "https://example.com/",
        "snippet": f"A simulated page on {query}.",
    }
    results = jsonio.encode({"results": [result], "totalResults": 1, "query": query, "error": None}).decode()
    content: Json = [{"type": "text", "text": results}]
    return {"id": call.get("id"), "jsonrpc": "2.0", "result": {"content": content, "isError": False}}


# --- refusals


def _refuse(
    request: HttpRequest,
    response: ErrorResponse,
    note: str,
    refusal: KiroRefusal | None = None,
    extra_headers: Mapping[str, str] | None = None,
) -> Response:
    kind = protocol(request)
    body: dict[str, Json] = {"message": response.message, "reason": response.reason}
    headers = {"content-type": _JSON_TYPES[kind]}
    if kind == "target":
        body = {"__type": _NAMESPACE + response.type, **body}
    else:
        headers["x-amzn-errortype"] = response.type
    if refusal is not None:  # the real service does not name the rule
        headers |= {"x-dragoman-rule": str(refusal.rule), "x-dragoman-detail": header_text(str(refusal))}
        headers["x-dragoman-evidence"] = EVIDENCE[refusal.grade]
    headers |= extra_headers or {}
    return whole_response(response.status, tuple(headers.items()), response.whole or jsonio.encode(body), note)


def _scripted_refusal(request: HttpRequest, turn: ScriptTurn) -> Response:
    fault = make_fault(turn.type or exception_for(turn.status), turn.message)
    response = ErrorResponse(fault.message, turn.reason, turn.status, fault.code)
    return _refuse(request, response, f"script: {turn.status}", extra_headers=scripted_headers(turn))

"""The 51 refusal rules of the simulated Kiro service as one table, in their assumed order of checks.

docs/dialects/kiro.md#what-the-service-refuses lists the rules. The rules of the dialect (`dialects/kiro/rules.py`) find
what a request body alone shows; this table adds the order, the error response of each rule, and the rules that need
more than a body. Number 0 stands for the plain shape of the request. Pure and without state, so tests call the rules
without a server. `KiroService` checks the token before these rules, and plays the refusals of a script after them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TypeAlias

from msgspec import Struct

from dragoman.dialects.kiro.image_size import parse_image_size
from dragoman.dialects.kiro.models import find_model
from dragoman.dialects.kiro.rules import GRADED_RULES, Grade, find_breaches, image_bytes
from dragoman.dialects.kit.shapes import find_mismatches
from dragoman.dialects.kit.values import members, text
from dragoman.simulator.kiro.catalogue import MODELS
from dragoman.simulator.kiro.refusals import (
    PROFILES,
    REQUEST,
    SIGNATURE_PREFIX,
    ErrorResponse,
    KiroHttpRequest,
    KiroRefusal,
    Route,
    RuleBreach,
    SimulatorLimits,
    StrictnessProfile,
    route,
    sign,
)
from dragoman.wire import jsonio
from dragoman.wire.http import HttpRequest

RuleCheck: TypeAlias = Callable[[KiroHttpRequest, SimulatorLimits], Iterator[RuleBreach]]
RuleResponse: TypeAlias = ErrorResponse | Callable[[RuleBreach], ErrorResponse]

_NOT_JSON = ErrorResponse("The request body is not valid JSON.")
_BODY_TOO_LONG = "Failed to buffer the request body: length limit exceeded"
# The status of this refusal was not recorded; 413 is the status of the web framework that writes this message.
BODY_CAP = ErrorResponse(
    _BODY_TOO_LONG,
    status=413,
    whole=jsonio.encode(
        {
            "error": {
                "code": "validation_error",
                "message": _BODY_TOO_LONG,
                "param": None,
                "type": "invalid_request_error",
            }
        }
    ),
)
_TOO_LONG = ErrorResponse("Input is too long.", "CONTENT_LENGTH_EXCEEDS_THRESHOLD")
_BAD_MODEL = ErrorResponse("Invalid model. Please select a different model to continue.", "INVALID_MODEL_ID")
_BAD_CONVERSATION = ErrorResponse("Invalid conversation id.", "INVALID_CONVERSATION_ID")
_BAD_TOKEN = ErrorResponse("The bearer token included in the request is invalid.", None, 403, "AccessDeniedException")

_AGENT = re.compile(r"KiroIDE(?!-\d+\.\d+)")


_INVALID_TOOL = ErrorResponse("Invalid tool use format.", "REQUEST_BODY_INVALID")
_INVALID_SCHEMA = ErrorResponse(reason="TOOL_SCHEMA_INVALID")
_INVALID_BODY = ErrorResponse(reason="REQUEST_BODY_INVALID")
_BAD_SIGNATURE = ErrorResponse("Invalid `signature` in `thinking` block", "THINKING_SIGNATURE_INVALID")
_TOOL_NUMBER = re.compile(r"\.tools\[(\d+)\]")


class RefusalRule(Struct, frozen=True):
    """One rule of the table.

    `response` is the error response, or a function that makes it from the breach. `find` finds breaches that the rules
    of the dialect do not find.
    """

    number: int
    title: str
    grade: Grade
    response: RuleResponse = ErrorResponse()
    find: RuleCheck | None = None


# --- rules of the envelope


def _body_size(parsed: KiroHttpRequest, limits: SimulatorLimits) -> Iterator[RuleBreach]:
    size = len(parsed.request.body)
    if size > limits.body_bytes:
        yield RuleBreach("", f"{size} bytes, more than {limits.body_bytes}")


def _is_json(parsed: KiroHttpRequest, _: SimulatorLimits) -> Iterator[RuleBreach]:
    if parsed.problem:
        yield RuleBreach("", parsed.problem, "A")


def _profile_arn(parsed: KiroHttpRequest, limits: SimulatorLimits) -> Iterator[RuleBreach]:
    arn = parsed.top.get("profileArn")
    if arn is None:
        has_api_key = parsed.request.header("tokentype").upper() == "API_KEY"
        if limits.profile_required and not has_api_key:
            response = ErrorResponse("profileArn is required for this request.")
            yield RuleBreach("profileArn", "missing; this host requires it", "B", response)
    elif limits.profile_arns and arn not in limits.profile_arns:
        yield RuleBreach("profileArn", "not a profile of this token", "B", _BAD_TOKEN)


def _model_id(parsed: KiroHttpRequest, _: SimulatorLimits) -> Iterator[RuleBreach]:
    if parsed.current is None or "modelId" not in parsed.current.body:
        return
    model = parsed.current.body["modelId"]
    if not isinstance(model, str) or model not in MODELS:
        yield RuleBreach(f"{parsed.current.at}.modelId", "not a model of this service")


# --- rules of form


def _shape(parsed: KiroHttpRequest, _: SimulatorLimits) -> Iterator[RuleBreach]:
    yield from (
        RuleBreach(mismatch.at, mismatch.detail)
        for mismatch in find_mismatches(parsed.document, REQUEST)
        if mismatch.kind != "null"
    )


def _nulls(parsed: KiroHttpRequest, _: SimulatorLimits) -> Iterator[RuleBreach]:
    yield from (
        RuleBreach(mismatch.at, mismatch.detail)
        for mismatch in find_mismatches(parsed.document, REQUEST)
        if mismatch.kind == "null"
    )


# --- rules of tools and size


def _tool_bytes(parsed: KiroHttpRequest, limits: SimulatorLimits) -> Iterator[RuleBreach]:
    size = sum(len(jsonio.encode(entry)) for entry, _ in parsed.tool_entries)
    if size > limits.tool_bytes and len(parsed.tool_entries) < limits.tool_count:
        yield RuleBreach("tools", f"{size} bytes of tools, more than {limits.tool_bytes}", response=_INVALID_BODY)


def _image_edges(parsed: KiroHttpRequest, limits: SimulatorLimits) -> Iterator[RuleBreach]:
    if len(parsed.images) <= limits.many_images:
        return
    for image, at in parsed.images:
        edge = max(parse_image_size(image_bytes(image)), default=0)
        if edge > limits.image_edge:
            detail = f"an edge of {edge} pixels, and more than {limits.many_images} images in the request"
            yield RuleBreach(at, detail, "B")


def _forged(parsed: KiroHttpRequest, limits: SimulatorLimits) -> Iterator[RuleBreach]:
    """Find wrong signatures; unless `strict` is set, only the simulator's own signatures are checked."""
    for turn in parsed.turns:
        nested = members(members(turn.body.get("reasoningContent")).get("reasoningText"))
        reasoning, signature = text(nested.get("text")), text(nested.get("signature"))
        is_checked = signature.startswith(SIGNATURE_PREFIX) or limits.signatures == "strict"
        if reasoning and signature and is_checked and signature != sign(reasoning):
            at = f"{turn.at}.reasoningContent.reasoningText.signature"
            yield RuleBreach(at, "the signature does not fit the text", response=_BAD_SIGNATURE)


def _versionless(parsed: KiroHttpRequest, limits: SimulatorLimits) -> Iterator[RuleBreach]:
    count = len(parsed.history)
    if count > limits.versionless_history and _AGENT.search(parsed.request.header("user-agent")):
        yield RuleBreach("conversationState.history", f"{count} messages from a KiroIDE without a version")


def _too_long(parsed: KiroHttpRequest, limits: SimulatorLimits) -> Iterator[RuleBreach]:
    limit = limits.window or find_model(parsed.model).window
    if parsed.tokens > limit:
        yield RuleBreach("", f"the request has about {parsed.tokens} tokens; the model's window is {limit}")


def _payload(parsed: KiroHttpRequest, limits: SimulatorLimits) -> Iterator[RuleBreach]:
    if parsed.tokens > limits.payload_tokens:
        yield RuleBreach(
            "", f"the request has about {parsed.tokens} tokens; the limit of one request is {limits.payload_tokens}"
        )


def _bad_root(breach: RuleBreach) -> ErrorResponse:
    place = f"toolConfig.tools.{_tool_number(breach)}.toolSpec.inputSchema.json.type"
    message = f"Bedrock error message: The value at {place} must be one of the following: object."
    return ErrorResponse(message, "TOOL_SCHEMA_INVALID")


def _bad_union(breach: RuleBreach) -> ErrorResponse:
    message = (
        f"Bedrock error message: tools.{_tool_number(breach)}.custom.input_schema: "
        "input_schema does not support oneOf, allOf, or anyOf at the top level"
    )
    return ErrorResponse(message, "TOOL_SCHEMA_INVALID")


def _tool_number(breach: RuleBreach) -> str:
    number = _TOOL_NUMBER.search(breach.at)
    return number[1] if number else "0"


def _bad_image(breach: RuleBreach) -> ErrorResponse:
    return ErrorResponse(breach.detail)


def _known(number: int, response: RuleResponse = ErrorResponse(), find: RuleCheck | None = None) -> RefusalRule:  # noqa: B008  immutable
    """Return the table entry of a rule of the dialect."""
    rule = next(rule for rule in GRADED_RULES.values() if rule.number == number)
    return RefusalRule(number, rule.sentence, rule.grade, response, find)


BODY_SIZE = RefusalRule(44, "the body must be within the HTTP limit", "B", BODY_CAP, _body_size)
RULES: tuple[RefusalRule, ...] = (
    BODY_SIZE,
    _known(34, _NOT_JSON, _is_json),
    _known(30),
    _known(49, ErrorResponse("Invalid profileArn."), _profile_arn),
    RefusalRule(48, "the model must exist", "A", _BAD_MODEL, _model_id),
    # enumerations, patterns, lengths
    RefusalRule(0, "the request must have its documented shape", "A", find=_shape),
    RefusalRule(29, "an optional member must not be null", "C", find=_nulls),
    _known(47),
    _known(50, _BAD_CONVERSATION),
    *map(_known, (33, 16, 51)),
    # tools
    _known(27),
    _known(45, find=_tool_bytes),
    _known(19, _bad_root),
    _known(20, _INVALID_SCHEMA),
    _known(25, _bad_union),
    *map(_known, (21, 22, 23, 24)),
    _known(26, _INVALID_BODY),
    _known(15, _INVALID_TOOL),
    *map(_known, (17, 18)),
    # history
    _known(31),
    RefusalRule(46, "a KiroIDE with a long history must name its version", "B", find=_versionless),
    *map(_known, (5, 2, 1, 4, 6, 7)),
    # calls and results
    *map(_known, (28, 32, 3, 8, 11, 12, 10, 9, 14, 13)),
    # images
    *map(_known, (36, 39, 35)),
    _known(37, _bad_image),
    _known(38, find=_image_edges),
    # reasoning
    _known(40, _INVALID_BODY, _forged),
    _known(41),
    # size
    RefusalRule(42, "the input must fit the model's window", "B", _TOO_LONG, _too_long),
    RefusalRule(43, "the payload must not be too large", "B", find=_payload),
)


def refusals(
    request: HttpRequest, profile: StrictnessProfile = "paranoid", limits: SimulatorLimits | None = None
) -> Iterator[KiroRefusal]:
    """Yield every breach of the profile's rules by a generate request, in check order. The service sends the first."""
    limits = limits or SimulatorLimits()
    routed = route(request)
    if not isinstance(routed, Route):
        yield routed
        return
    grades, parsed = PROFILES[profile], KiroHttpRequest(request)
    known: dict[int | None, list[RuleBreach]] = {}
    for name, at, detail in find_breaches(parsed, limits):
        known.setdefault(GRADED_RULES[name].number, []).append(RuleBreach(at, detail, GRADED_RULES[name].grade))
    for rule in RULES:
        for breach in (*known.get(rule.number, ()), *(rule.find(parsed, limits) if rule.find else ())):
            grade = breach.grade or rule.grade
            if grade in grades:
                response = rule.response if isinstance(rule.response, ErrorResponse) else rule.response(breach)
                yield KiroRefusal(rule.number, rule.title, grade, breach.at, breach.detail, breach.response or response)
        if parsed.problem and rule.number == 34:
            return  # without JSON, later rules have nothing to read


def first_refusal(
    request: HttpRequest, profile: StrictnessProfile = "paranoid", limits: SimulatorLimits | None = None
) -> KiroRefusal | None:
    """Return the refusal that the service would send, or None if it accepts the request."""
    return next(refusals(request, profile, limits), None)

"""The 51 refusal rules as one table, in the order the service is taken to check them (facts, end of section 2).

Number 0 is the plain shape of the request (facts 1.4). Everything reads the raw request; nothing here is stateful, so a
law may ask the rules without a server. Token checks come before them and script refusals after: those are the face's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TypeAlias

from msgspec import Struct

from dragoman.simulator.kiro import images, schemas, turns
from dragoman.simulator.kiro.catalogue import MODELS, window
from dragoman.simulator.kiro.reading import Asked, text
from dragoman.simulator.kiro.routes import Route, route
from dragoman.simulator.kiro.shape import REQUEST, flaws
from dragoman.simulator.kiro.verdict import PROFILES, Answer, Finding, Grade, Limits, Profile, Refusal
from dragoman.wire import jsonio
from dragoman.wire.http import HttpRequest
from dragoman.wire.jsonio import Json

Find: TypeAlias = Callable[[Asked, Limits], Iterator[Finding]]

_NOT_JSON = Answer("The request body is not valid JSON.")
_BODY_TOO_LONG = "Failed to buffer the request body: length limit exceeded"
BODY_CAP = Answer(  # 413 is what the framework that writes this sentence answers; the status was not captured
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
_TOO_LONG = Answer("Input is too long.", "CONTENT_LENGTH_EXCEEDS_THRESHOLD")
_BAD_MODEL = Answer("Invalid model. Please select a different model to continue.", "INVALID_MODEL_ID")
_BAD_CONVERSATION = Answer("Invalid conversation id.", "INVALID_CONVERSATION_ID")
_BAD_TOKEN = Answer("The bearer token included in the request is invalid.", None, 403, "AccessDeniedException")

_TOP_LEVEL = frozenset({"conversationState", "profileArn", "agentMode", "additionalModelRequestFields"})
_TRIGGERS = frozenset({"MANUAL", "DIAGNOSTIC", "INLINE_CHAT"})
# The official model has 12 letters and digits at the end; document 000 works with `profile/test`.
_ARN = re.compile(r"arn:aws:(codewhisperer|transform):[a-z]{2}(-[a-z]+)+-\d:\d{12}:profile/[a-zA-Z0-9]+")
_MODEL_ID = re.compile(r"[a-zA-Z0-9_:.-]{1,1024}")
_SURROGATE = re.compile("[\ud800-\udfff]")
_AGENT = re.compile(r"KiroIDE(?!-\d+\.\d+)")


class Rule(Struct, frozen=True):
    number: int
    title: str
    grade: Grade
    find: Find
    answer: Answer = Answer()


# --- rules of the envelope


def _body_size(asked: Asked, limits: Limits) -> Iterator[Finding]:
    size = len(asked.request.body)
    if size > limits.body_bytes:
        yield Finding("", f"{size} bytes, more than {limits.body_bytes}")


def _is_json(asked: Asked, _: Limits) -> Iterator[Finding]:
    if asked.problem:
        yield Finding("", asked.problem, "A")
    elif b"\\ud" in asked.request.body.lower():  # a surrogate has no other spelling in UTF-8
        yield from (Finding(at, "an unpaired surrogate") for at in _surrogates(asked.document, ""))


def _surrogates(document: Json, at: str) -> Iterator[str]:
    pending = [(at, document)]
    while pending:
        path, value = pending.pop()
        if isinstance(value, str):
            if _SURROGATE.search(value):
                yield path
        elif isinstance(value, list):
            pending.extend((f"{path}[{index}]", value[index]) for index in reversed(range(len(value))))
        elif isinstance(value, dict):
            for name, item in reversed(value.items()):
                inner = f"{path}.{name}" if path else name
                pending += ((inner, item), (inner, name))


def _top_level(asked: Asked, _: Limits) -> Iterator[Finding]:
    yield from (Finding(name, "not a field of the request") for name in asked.top if name not in _TOP_LEVEL)


def _profile_arn(asked: Asked, limits: Limits) -> Iterator[Finding]:
    arn = asked.top.get("profileArn")
    if arn is None:
        keyed = asked.request.header("tokentype").upper() == "API_KEY"
        if limits.profile_required and not keyed:
            answer = Answer("profileArn is required for this request.")
            yield Finding("profileArn", "missing, and this host needs it", answer=answer)
    elif not isinstance(arn, str) or len(arn) > 950 or not _ARN.fullmatch(arn):
        yield Finding("profileArn", "no ARN of a profile", "A", Answer("Invalid profileArn."))
    elif limits.profile_arns and arn not in limits.profile_arns:
        yield Finding("profileArn", "not a profile of this token", answer=_BAD_TOKEN)


def _model_id(asked: Asked, _: Limits) -> Iterator[Finding]:
    if asked.current is None or "modelId" not in asked.current.body:
        return
    model = asked.current.body["modelId"]
    if not isinstance(model, str) or not _MODEL_ID.fullmatch(model) or model not in MODELS:
        yield Finding(f"{asked.current.at}.modelId", "no model of this service")


# --- rules of form


def _shape(asked: Asked, _: Limits) -> Iterator[Finding]:
    yield from (Finding(flaw.at, flaw.detail) for flaw in flaws(asked.document, REQUEST) if flaw.kind == "wrong")


def _nulls(asked: Asked, _: Limits) -> Iterator[Finding]:
    yield from (Finding(flaw.at, flaw.detail) for flaw in flaws(asked.document, REQUEST) if flaw.kind == "null")


def _trigger(asked: Asked, _: Limits) -> Iterator[Finding]:
    trigger = asked.state.get("chatTriggerType")
    if text(trigger) not in _TRIGGERS:
        detail = f"not one of {', '.join(sorted(_TRIGGERS))}"
        yield Finding("conversationState.chatTriggerType", detail, "C" if trigger == "AUTO" else "A")


def _conversation_id(asked: Asked, limits: Limits) -> Iterator[Finding]:
    name = asked.state.get("conversationId")
    if name is not None and not 0 < len(text(name)) <= limits.conversation_id:
        yield Finding("conversationState.conversationId", f"not 1 to {limits.conversation_id} characters")


# --- rules of tools and size


def _description_missing(asked: Asked, _: Limits) -> Iterator[Finding]:
    for at, spec in asked.tools:
        if not text(spec.get("description")):
            yield Finding(f"{at}.description", "empty or missing", "A" if "description" in spec else "C")


def _description_long(asked: Asked, limits: Limits) -> Iterator[Finding]:
    for at, spec in asked.tools:
        words = text(spec.get("description"))
        if len(words) > limits.description:
            yield Finding(f"{at}.description", f"{len(words)} characters, more than {limits.description}", "A")
        elif (size := len(words.encode("utf-8", "surrogatepass"))) > limits.description:
            yield Finding(f"{at}.description", f"{size} bytes, more than {limits.description}", "C")


def _cache_point(asked: Asked, _: Limits) -> Iterator[Finding]:
    yield from (
        Finding(at, "a cachePoint among the tools") for at, entry in asked.tool_entries if "cachePoint" in entry
    )


def _too_many_tools(asked: Asked, limits: Limits) -> Iterator[Finding]:
    count = len(asked.tool_entries)
    if count >= limits.tool_count:
        yield Finding("tools", f"{count} tools; {limits.tool_count} are too many")
    elif (size := sum(len(jsonio.encode(entry)) for _, entry in asked.tool_entries)) > limits.tool_bytes:
        answer = Answer(reason="REQUEST_BODY_INVALID")
        yield Finding("tools", f"{size} bytes of tools, more than {limits.tool_bytes}", answer=answer)


def _versionless(asked: Asked, limits: Limits) -> Iterator[Finding]:
    count = len(asked.history)
    if count > limits.versionless_history and _AGENT.search(asked.request.header("user-agent")):
        yield Finding("conversationState.history", f"{count} messages from a KiroIDE without a version")


def _too_long(asked: Asked, limits: Limits) -> Iterator[Finding]:
    most = limits.window or window(asked.model)
    if asked.tokens > most:
        yield Finding("", f"about {asked.tokens} tokens, more than {most}")


def _payload(asked: Asked, limits: Limits) -> Iterator[Finding]:
    if asked.tokens > limits.payload_tokens:
        yield Finding("", f"about {asked.tokens} tokens, more than {limits.payload_tokens} in one request")


RULES: tuple[Rule, ...] = (
    Rule(44, "the body is within the HTTP cap", "B", _body_size, BODY_CAP),
    Rule(34, "the body is JSON without unpaired surrogates", "C", _is_json, _NOT_JSON),
    Rule(30, "no unknown top-level field", "C", _top_level),
    Rule(49, "profileArn is right", "B", _profile_arn),
    Rule(48, "the model exists", "A", _model_id, _BAD_MODEL),
    # enumerations, patterns, lengths
    Rule(0, "the request has its shape", "A", _shape),
    Rule(29, "no null for an optional member", "C", _nulls),
    Rule(47, "chatTriggerType is MANUAL", "C", _trigger),
    Rule(50, "conversationId is 1 to 128 characters", "A", _conversation_id, _BAD_CONVERSATION),
    Rule(33, "a result's status is success or error", "A", turns.result_status),
    Rule(16, "call ids are legal", "A", turns.call_ids),
    Rule(51, "no content over its length", "A", turns.content_length),
    # tools
    Rule(27, "no cachePoint among the tools", "B", _cache_point),
    Rule(45, "not too many tools", "B", _too_many_tools),
    Rule(19, "a schema's root is of type object", "B", schemas.root_is_object, schemas.INVALID_SCHEMA),
    Rule(20, "required is an array", "B", schemas.required_is_array, schemas.INVALID_SCHEMA),
    Rule(25, "no anyOf, oneOf, allOf at a schema's root", "B", schemas.no_root_union, schemas.INVALID_SCHEMA),
    Rule(21, "required is not empty", "D", schemas.required_not_empty),
    Rule(22, "no additionalProperties", "D", schemas.no_additional_properties),
    Rule(23, "no $schema", "D", schemas.no_dollar_schema),
    Rule(24, "no empty properties below a schema's root", "D", schemas.properties_not_empty),
    Rule(26, "no validation keywords", "B", schemas.no_validation_keywords, Answer(reason="REQUEST_BODY_INVALID")),
    Rule(15, "tool names are legal", "A", turns.tool_names, turns.INVALID_TOOL),
    Rule(17, "a tool has a description", "A", _description_missing),
    Rule(18, "no description over 10240", "A", _description_long),
    # history
    Rule(31, "no empty history", "C", turns.history_not_empty),
    Rule(46, "a KiroIDE with long history names its version", "B", _versionless),
    Rule(5, "the current message is the user's", "B", turns.current_is_user),
    Rule(2, "history starts with the user", "A", turns.starts_with_user),
    Rule(1, "history alternates", "B", turns.alternates),
    Rule(4, "history ends with the assistant", "B", turns.ends_with_assistant),
    Rule(6, "user turns have text", "C", turns.user_content),
    Rule(7, "assistant turns have text", "B", turns.assistant_content),
    # calls and results
    Rule(28, "a call's input is an object", "A", turns.input_is_object),
    Rule(32, "no empty result", "B", turns.result_not_empty),
    Rule(3, "the first user turn answers no call", "A", turns.first_without_results),
    Rule(8, "every result has its call", "A", turns.results_have_calls),
    Rule(11, "one result for one call", "B", turns.no_second_result),
    Rule(12, "call ids are unique", "C", turns.no_second_call),
    Rule(10, "no turn splits a batch of results", "B", turns.batches_whole),
    Rule(9, "every call is answered in the next user turn", "A", turns.calls_have_results),
    Rule(14, "results come with tools", "B", turns.results_need_tools),
    Rule(13, "tools of history are declared", "A", turns.history_tools_declared),
    # images
    Rule(36, "images come by value", "A", images.image_by_value),
    Rule(39, "image bytes are base64", "B", images.image_encoding),
    Rule(35, "image formats are known", "A", images.image_formats),
    Rule(37, "no image over 5 MiB of base64", "B", images.image_size),
    Rule(38, "not too many images", "A", images.image_count),
    # reasoning
    Rule(40, "replayed reasoning is nested and signed", "B", images.reasoning_signed),
    Rule(41, "no thinking tags beside results", "B", turns.no_tags_beside_results),
    # size
    Rule(42, "the input fits the model's window", "B", _too_long, _TOO_LONG),
    Rule(43, "the payload is not too big", "B", _payload),
)


def refusals(request: HttpRequest, profile: Profile = "paranoid", limits: Limits | None = None) -> Iterator[Refusal]:
    """Every breach of the profile's rules by a generate request, in check order; the service answers the first."""
    limits = limits or Limits()
    routed = route(request)
    if not isinstance(routed, Route):
        yield routed
        return
    grades, asked = PROFILES[profile], Asked(request)
    for rule in RULES:
        for found in rule.find(asked, limits):
            grade = found.grade or rule.grade
            if grade in grades:
                yield Refusal(rule.number, rule.title, grade, found.at, found.detail, found.answer or rule.answer)
        if asked.problem and rule.number == 34:
            return  # no later rule has anything to read


def first_refusal(request: HttpRequest, profile: Profile = "paranoid", limits: Limits | None = None) -> Refusal | None:
    """What the service would answer, or None if it accepts."""
    return next(refusals(request, profile, limits), None)

"""Kiro's rules for requests, checked on raw JSON. `dragoman check` and the simulator run them. Pure.

The lint (`breaches`) returns the rules that a request breaks. The simulator refuses requests for the same breaches; it
adds the rule's number, its grade of evidence and the service's response. Rules that a body does not show (accounts,
quota, the model's name) and rules that need an estimate (size) are not here. The lint does not use the dialect's parser
and renderer, so that it can check them. Rule numbers are those of docs/dialects/kiro.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Literal, TypeAlias

from msgspec import Struct

from dragoman.dialects.base import ApiRequest
from dragoman.dialects.kiro.raw_request import KiroRawRequest, KiroRawTurn
from dragoman.dialects.kit.lint import BreachTuples
from dragoman.dialects.kit.values import LocatedObject, Object, base64_bytes, items, members, text
from dragoman.dialects.rulebook import Breach, Evidence, Rulebook
from dragoman.wire import jsonio
from dragoman.wire.jsonio import Json

# --- the rules of GenerateAssistantResponse: the number, the grade of evidence and the requirement of each
#
# The numbers are those of the simulator, which adds rules that a body does not show. The simulator does not have the
# rules without a number.


# A: from the official service model or client. B: seen in refusals, by documents 000, 002 and 003 (docs/mission.md) or
# by other projects. C: other projects repair it. D: other projects contradict each other.
Grade: TypeAlias = Literal["A", "B", "C", "D"]
EVIDENCE: Mapping[Grade, Evidence] = {"A": "documented", "B": "observed", "C": "inferred", "D": "inferred"}


class GradedRule(Struct, frozen=True):
    """One rule. Rules that share a number differ in their evidence; the simulator's title is that of the first."""

    number: int | None
    grade: Grade
    sentence: str


class KiroLimits(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The thresholds of the rules, from docs/dialects/kiro.md."""

    tool_count: int = 120  # rule 45: the lowest number that is refused
    name: int = 64
    description: int = 10_240
    user_content: int = 600_000
    assistant_content: int = 100_000
    result_text: int = 800_000
    conversation_id: int = 128
    images: int = 10  # in one message
    image_base64: int = 5_242_880


GRADED_RULES: Mapping[str, GradedRule] = {
    "body.unknown_field": GradedRule(30, "C", "the request must not have an unknown top-level field"),
    "body.trigger": GradedRule(47, "A", "chatTriggerType must be MANUAL, DIAGNOSTIC or INLINE_CHAT"),
    "body.trigger_auto": GradedRule(47, "C", "chatTriggerType must not be AUTO"),
    "body.conversation_id": GradedRule(50, "A", "conversationId must have 1 to 128 characters"),
    "body.profile_arn": GradedRule(49, "A", "profileArn must be the ARN of a profile"),
    "body.surrogate": GradedRule(34, "C", "the body must not have unpaired surrogates"),
    "history.empty": GradedRule(31, "C", "history must not be an empty array"),
    "history.begin": GradedRule(2, "A", "history must begin with a user turn"),
    "history.end": GradedRule(4, "B", "history must end with an assistant turn"),
    "history.alternate": GradedRule(1, "B", "user and assistant turns must alternate in history"),
    "history.first_results": GradedRule(3, "A", "the first user turn must not have tool results"),
    "current.role": GradedRule(5, "B", "the current message must be the user's"),
    "current.thinking_tags": GradedRule(41, "B", "a message with tool results must not have thinking tags"),
    "user.empty": GradedRule(6, "C", "user turns must have text"),
    "user.empty_beside": GradedRule(6, "D", "user turns must have text next to results and images"),
    "assistant.empty": GradedRule(7, "B", "assistant turns must have text"),
    "assistant.blank": GradedRule(7, "D", "assistant turns must not be only white space"),
    "assistant.reasoning": GradedRule(40, "B", "reasoning in history must be nested and have a signature"),
    "content.long": GradedRule(51, "A", "content must not be longer than its limit"),
    "call.id": GradedRule(16, "A", "the id of a call may have only letters, digits, _ and -"),
    "call.input": GradedRule(28, "A", "a call's input must be an object"),
    "call.unanswered": GradedRule(9, "A", "every call must have a result in the next user turn"),
    "call.duplicate": GradedRule(12, "C", "the ids of a turn's calls must be unique"),
    "call.reused": GradedRule(12, "D", "a later turn must not use a call id again"),
    "result.status": GradedRule(33, "A", "a result's status must be success or error"),
    "result.no_status": GradedRule(None, "C", "a result must have a status"),
    "result.empty": GradedRule(32, "B", "a result must not be empty"),
    "result.long": GradedRule(51, "A", "a result must not be longer than its limit"),
    "result.orphan": GradedRule(8, "A", "every result must have its call"),
    "result.duplicate": GradedRule(11, "B", "a call must have only one result"),
    "result.late": GradedRule(10, "B", "a result must be in the turn after its call"),
    "tool.name": GradedRule(15, "A", "a tool name may have only letters, digits, _ and -"),
    "tools.many": GradedRule(45, "B", "a request must not have too many tools"),
    "tools.cache_point": GradedRule(27, "B", "tools must not contain a cachePoint"),
    "tools.undeclared": GradedRule(13, "A", "tools that history calls must be declared"),
    "tools.missing": GradedRule(14, "B", "a request with tool results must declare tools"),
    "tools.description": GradedRule(17, "A", "a tool must have a description that is not empty"),
    "tools.no_description": GradedRule(17, "C", "a tool must not leave its description out"),
    "tools.long_description": GradedRule(18, "A", "a description may have at most 10240 characters"),
    "tools.description_bytes": GradedRule(18, "C", "a description may have at most 10240 bytes"),
    "schema.root": GradedRule(19, "B", "the root of a schema must have the type object"),
    "schema.union": GradedRule(25, "B", "the root of a schema must not have anyOf, oneOf or allOf"),
    "schema.required": GradedRule(20, "B", "required must be an array"),
    "schema.required_empty": GradedRule(21, "D", "required must not be empty"),
    "schema.properties": GradedRule(24, "D", "properties must not be empty below a schema's root"),
    "schema.keyword": GradedRule(26, "B", "a schema must not have validation keywords"),
    "schema.unsure_keyword": GradedRule(
        26, "C", "a schema should not have keywords that other projects remove, such as $ref, const and format"
    ),
    "schema.additional_properties": GradedRule(22, "D", "a schema must not have additionalProperties"),
    "schema.dollar_schema": GradedRule(23, "D", "a schema must not have $schema"),
    "image.many": GradedRule(38, "A", "a message must not have too many images"),
    "image.format": GradedRule(35, "A", "the format of an image must be png, jpeg, gif or webp"),
    "image.bytes": GradedRule(36, "A", "an image must have its bytes, not a URL"),
    "image.base64": GradedRule(39, "B", "the bytes of an image must be base64"),
    "image.long": GradedRule(37, "B", "an image may have at most 5 MiB of base64"),
    # streams
    "stream.unknown": GradedRule(None, "C", "an event must have a known name"),
    "stream.json": GradedRule(None, "A", "a payload must be a JSON object"),
    "stream.content": GradedRule(None, "A", "a text event must have content, which is a string"),
    "stream.call_id": GradedRule(
        None, "B", "a call must begin with a toolUseId; a fragment without one must follow a call"
    ),
    "stream.call_name": GradedRule(None, "B", "a call must begin with a name"),
    "stream.open_call": GradedRule(None, "B", "a call must have its stop; one without it was cut off"),
    "stream.no_usage": GradedRule(None, "C", "a complete response must have a contextUsageEvent"),
}


def _sentence(rule: GradedRule) -> str:
    return rule.sentence if rule.number is None else f"{rule.sentence} (rule {rule.number})"


RULES = Rulebook(
    "kiro",
    {
        name: (EVIDENCE[rule.grade], "error" if rule.grade in "AB" else "advice", _sentence(rule))
        for name, rule in GRADED_RULES.items()
    },
)


# --- rules 19 to 26: keywords that a tool's input schema must not have. A property *named* like a keyword is allowed


_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems", "items")
_SINGLE_KEYWORDS = (
    "items additionalProperties not if then else contains propertyNames unevaluatedItems unevaluatedProperties"
)
_UNIONS = ("anyOf", "oneOf", "allOf")

# The first have been seen in refusals; other projects remove the second.
_REFUSED_KEYWORDS = (
    "pattern minLength maxLength minimum maximum exclusiveMinimum exclusiveMaximum minItems maxItems minProperties "
    "maxProperties multipleOf"
)
_REMOVED_KEYWORDS = (
    "format uniqueItems contentEncoding contentMediaType minContains maxContains if then else const patternProperties "
    "propertyNames unevaluatedItems unevaluatedProperties $ref $defs definitions"
)
_KEYWORDS = {
    **dict.fromkeys(_REFUSED_KEYWORDS.split(), "schema.keyword"),
    **dict.fromkeys(_REMOVED_KEYWORDS.split(), "schema.unsure_keyword"),
    "additionalProperties": "schema.additional_properties",
    "$schema": "schema.dollar_schema",
}


def schema_breaches(schema: Json, at: str) -> BreachTuples:
    """Yield rule, path and detail of every breach in a tool's input schema."""
    if not isinstance(schema, dict) or schema.get("type") != "object":
        yield "schema.root", f"{at}.type", "the root of the schema must have the type object"
    if not isinstance(schema, dict):
        return
    for union in _UNIONS:
        if union in schema:
            yield "schema.union", f"{at}.{union}", f"the root of the schema has {union}, which Kiro refuses"
    pending: list[LocatedObject] = [(schema, at)]
    while pending:
        node, place = pending.pop()
        yield from _node(node, place, place == at)
        pending.extend(reversed(list(_inner(node, place))))


def _node(node: Object, at: str, root: bool) -> BreachTuples:
    if "required" in node and not isinstance(node["required"], list):
        yield "schema.required", f"{at}.required", "required must be an array"
    elif node.get("required") == []:
        yield "schema.required_empty", f"{at}.required", "required must not be empty; leave it out"
    if not root and node.get("properties") == {}:
        yield "schema.properties", f"{at}.properties", "the schema has empty properties below its root"
    for keyword in node:
        if keyword in _KEYWORDS:
            refuses = "refuses" if _KEYWORDS[keyword] == "schema.keyword" else "may refuse"
            yield _KEYWORDS[keyword], f"{at}.{keyword}", f"the schema has the keyword {keyword}, which Kiro {refuses}"


def _inner(node: Object, at: str) -> Iterator[LocatedObject]:
    for keyword in _MAPS:
        named = node.get(keyword)
        if isinstance(named, dict):
            yield from ((each, f"{at}.{keyword}.{name}") for name, each in named.items() if isinstance(each, dict))
    for keyword in _LISTS:
        listed = node.get(keyword)
        if isinstance(listed, list):
            yield from ((each, f"{at}.{keyword}[{n}]") for n, each in enumerate(listed) if isinstance(each, dict))
    for keyword in _SINGLE_KEYWORDS.split():
        single = node.get(keyword)
        if isinstance(single, dict):
            yield single, f"{at}.{keyword}"


_NAME = re.compile(r"[a-zA-Z0-9_-]+")
_TAGS = re.compile(r"<(?:thinking_mode|max_thinking_length|thinking_effort)>")
_ESCAPED = re.compile(rb"(?<!\\)(?:\\\\)*\\u[dD][89a-fA-F]")  # jsonio escapes only unpaired surrogates
_SURROGATE = re.compile("[\ud800-\udfff]")
_TOP = frozenset({"conversationState", "profileArn", "agentMode", "additionalModelRequestFields"})
# Any number of letters and digits may end it (docs/dialects/kiro.md#hosts-and-logins).
_ARN = re.compile(r"arn:aws:(codewhisperer|transform):[a-z]{2}(-[a-z]+)+-\d:\d{12}:profile/[a-zA-Z0-9]+")
_FORMATS = ("png", "jpeg", "gif", "webp")
_TRIGGERS = frozenset({"MANUAL", "DIAGNOSTIC", "INLINE_CHAT"})
_LIMITS = KiroLimits()


def breaches(call: ApiRequest) -> Sequence[Breach]:
    """Return the rules that a request breaks, as far as its body shows them."""
    return [RULES.breach(*found) for found in find_breaches(KiroRawRequest(call.body))]


def find_breaches(request: KiroRawRequest, limits: KiroLimits = _LIMITS) -> BreachTuples:
    """Yield rule, path and detail of every breach; those of one rule in the order of the payload."""
    for rule in (_envelope, _order, _content, _entries, _pairing, _tools, _images):
        yield from rule(request, limits)


def _envelope(request: KiroRawRequest, limits: KiroLimits) -> BreachTuples:
    for name in request.top:
        if name not in _TOP:
            yield "body.unknown_field", name, f"{name} is not a field of the request"
    trigger = request.state.get("chatTriggerType")
    if text(trigger) not in _TRIGGERS:
        rule = "body.trigger_auto" if trigger == "AUTO" else "body.trigger"
        yield rule, "conversationState.chatTriggerType", f"it must be one of {', '.join(sorted(_TRIGGERS))}"
    conversation = request.state.get("conversationId")
    if conversation is not None and not 0 < len(text(conversation)) <= limits.conversation_id:
        yield (
            "body.conversation_id",
            "conversationState.conversationId",
            f"it must have 1 to {limits.conversation_id} characters",
        )
    arn = request.top.get("profileArn")
    if arn is not None and (not isinstance(arn, str) or len(arn) > 950 or not _ARN.fullmatch(arn)):
        yield "body.profile_arn", "profileArn", "it is not the ARN of a profile (docs/dialects/kiro.md, rule 49)"
    if _ESCAPED.search(jsonio.encode(request.document)):
        yield from (
            ("body.surrogate", at, "the text has an unpaired surrogate") for at in _surrogates(request.document)
        )


def _surrogates(document: Json) -> Iterator[str]:
    pending = [("", document)]
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


def _order(request: KiroRawRequest, _: KiroLimits) -> BreachTuples:
    history, current = request.history, request.current
    if request.state.get("history") == []:
        yield "history.empty", "conversationState.history", "history is an empty array"
    if current is None or current.role != "user":
        at = current.at if current else "conversationState.currentMessage"
        yield "current.role", at, "the current message is not a user turn"
    if history and history[0].role != "user":
        yield "history.begin", history[0].at, "history starts with an assistant turn"
    if history and history[-1].role != "assistant":
        yield "history.end", history[-1].at, "history ends with a user turn"
    for before, after in pairwise(history):
        if before.role == after.role:
            yield "history.alternate", after.at, f"history has two {after.role} turns in a row"
    first = next((turn for turn in history if turn.role == "user"), None)
    if first and first.results:
        yield "history.first_results", first.results[0][1], "the first user turn of history has toolResults"


# --- content


def _content(request: KiroRawRequest, limits: KiroLimits) -> BreachTuples:
    for turn in request.turns:
        at = f"{turn.at}.content"
        if not turn.content.strip():
            yield _empty(turn), at, f"{'a user' if turn.role == 'user' else 'an assistant'} turn must have text"
        limit = limits.user_content if turn.role == "user" else limits.assistant_content
        if len(turn.content) > limit:
            yield "content.long", at, f"the content has {len(turn.content)} characters, more than the limit of {limit}"
        for result, place in turn.results:
            for index, part in enumerate(items(result.get("content"))):
                size = len(text(members(part).get("text")))
                if size > limits.result_text:
                    detail = f"the result has {size} characters, more than the limit of {limits.result_text}"
                    yield "result.long", f"{place}.content[{index}].text", detail
        if turn.role == "assistant" and "reasoningContent" in turn.body:
            yield from _reasoning(turn.body["reasoningContent"], f"{turn.at}.reasoningContent")
    current = request.current
    if current and current.results and _TAGS.search(current.content):
        detail = "the current message has toolResults and thinking tags; only one of them is accepted"
        yield "current.thinking_tags", f"{current.at}.content", detail


def _empty(turn: KiroRawTurn) -> str:
    """Return the rule that a turn without text breaks."""
    if turn.role == "user":
        return "user.empty_beside" if turn.results or turn.images else "user.empty"
    return (
        "assistant.blank" if turn.content else "assistant.empty"
    )  # kiro.rs sends one space, and the service accepts it


def _reasoning(content: Json, at: str) -> BreachTuples:
    inner = members(content)
    if set(inner) == {"redactedContent"} and text(inner["redactedContent"]):
        return
    nested = members(inner.get("reasoningText"))
    if set(inner) != {"reasoningText"} or not text(nested.get("text")):
        yield "assistant.reasoning", at, "reasoning must be nested as reasoningText{text, signature}"
    elif not text(nested.get("signature")):
        yield "assistant.reasoning", f"{at}.reasoningText.signature", "reasoning must have a signature"


# --- calls and results


def _entries(request: KiroRawRequest, limits: KiroLimits) -> BreachTuples:
    """Check each call and each result without regard to the others."""
    for turn in request.turns:
        for use, at in turn.uses:
            yield from _identity("call.id", use, at, "toolUseId", limits)
            yield from _identity("tool.name", use, at, "name", limits)
            if not isinstance(use.get("input"), dict):
                yield "call.input", f"{at}.input", "input must be an object" if "input" in use else "input is missing"
        for result, at in turn.results:
            yield from _identity("call.id", result, at, "toolUseId", limits)
            status = result.get("status")
            if status not in ("success", "error"):
                rule = "result.no_status" if status is None else "result.status"
                yield rule, f"{at}.status", "the status must be success or error"
            parts = items(result.get("content"))
            if not parts:
                yield "result.empty", f"{at}.content", "a toolResult must have content"
            for index, part in enumerate(parts):
                if members(part).get("text") == "":
                    yield "result.empty", f"{at}.content[{index}].text", "the text must not be empty"


def _identity(rule: str, entry: Object, at: str, name: str, limits: KiroLimits) -> BreachTuples:
    value = entry.get(name)
    if not isinstance(value, str) or len(value) > limits.name or not _NAME.fullmatch(value):
        yield rule, f"{at}.{name}", f"it must match [a-zA-Z0-9_-]{{1,{limits.name}}}"


def _id(entry: LocatedObject) -> str:
    return text(entry[0].get("toolUseId"))


def _pairing(request: KiroRawRequest, _: KiroLimits) -> BreachTuples:
    calls: dict[str, int] = {}  # by id: the number of the last turn with such a call
    answered: set[str] = set()
    for number, turn in enumerate(request.turns):
        for result in turn.results:
            name, at = _id(result), result[1]
            if name not in calls:
                yield "result.orphan", at, f"the turns before have no call {name!r}"
            elif calls[name] != number - 1:
                yield "result.late", at, f"other turns are between call {name!r} and this result"
            if name in answered:
                yield "result.duplicate", at, f"call {name!r} already has a result"
            answered.add(name)
        for use in turn.uses:
            name = _id(use)
            if name in calls:
                rule = "call.duplicate" if calls[name] == number else "call.reused"
                yield rule, use[1], f"the id {name!r} was used before"
            calls[name] = number
            answered.discard(name)  # A call that reuses an id needs its own result.
    yield from _unanswered(request.turns)


def _unanswered(turns: Sequence[KiroRawTurn]) -> BreachTuples:
    unanswered: list[tuple[str, str]] = []
    answered: set[str] = set()
    for turn in reversed(turns):  # so that the next user turn is known
        if turn.role == "user":
            answered = set(map(_id, turn.results))
        unanswered += [(use[1], _id(use)) for use in reversed(turn.uses) if _id(use) not in answered]
    for at, name in reversed(unanswered):
        yield "call.unanswered", at, f"call {name!r} has no result in the next user turn"


# --- tools


def _tools(request: KiroRawRequest, limits: KiroLimits) -> BreachTuples:
    entries = request.tool_entries
    if len(entries) >= limits.tool_count:
        yield (
            "tools.many",
            "tools",
            f"the request has {len(entries)} tools; at most {limits.tool_count - 1} are accepted",
        )
    for entry, at in entries:
        if "cachePoint" in entry:
            yield "tools.cache_point", at, "tools must not contain a cachePoint"
    for spec, at in request.tools:
        yield from _identity("tool.name", spec, at, "name", limits)
        yield from _description(spec, at, limits)
        yield from schema_breaches(members(spec.get("inputSchema")).get("json"), f"{at}.inputSchema.json")
    declared = {text(spec.get("name")).lower() for spec, _ in request.tools}
    for turn in request.turns:
        for use, at in turn.uses:
            if text(use.get("name")).lower() not in declared:
                yield "tools.undeclared", f"{at}.name", f"the tool {text(use.get('name'))!r} is not declared"
    results = [at for turn in request.turns for _, at in turn.results]
    if results and not request.tools:
        yield "tools.missing", results[0], "the request has toolResults, but declares no tools"


def _description(spec: Object, at: str, limits: KiroLimits) -> BreachTuples:
    at, words, limit = f"{at}.description", text(spec.get("description")), limits.description
    if not words:
        yield (
            "tools.description" if "description" in spec else "tools.no_description",
            at,
            "the description is empty or missing",
        )
    elif len(words) > limit:
        yield (
            "tools.long_description",
            at,
            f"the description has {len(words)} characters, more than the limit of {limit}",
        )
    elif (size := len(words.encode("utf-8", "surrogatepass"))) > limit:
        yield "tools.description_bytes", at, f"the description has {size} bytes, more than the limit of {limit}"


# --- images


def _images(request: KiroRawRequest, limits: KiroLimits) -> BreachTuples:
    for turn in request.turns:
        if len(turn.images) > limits.images:
            detail = f"the message has {len(turn.images)} images, more than the limit of {limits.images}"
            yield "image.many", f"{turn.at}.images", detail
    for image, at in request.images:
        if image.get("format") not in _FORMATS:
            yield "image.format", f"{at}.format", f"it must be one of {', '.join(_FORMATS)}"
        source = members(image.get("source"))
        size, limit = len(text(source.get("bytes"))), limits.image_base64
        if "bytes" not in source:
            yield "image.bytes", f"{at}.source", "an image must have bytes; URLs are not fetched"
        elif not image_bytes(image):
            yield "image.base64", f"{at}.source.bytes", "the bytes must be plain base64"
        if size > limit:
            yield "image.long", f"{at}.source.bytes", f"image exceeds 5 MB maximum: {size} bytes > {limit} bytes"


def image_bytes(image: Object) -> bytes:
    """Return the bytes of an image; empty if they are not plain base64."""
    return base64_bytes(text(members(image.get("source")).get("bytes"))) or b""

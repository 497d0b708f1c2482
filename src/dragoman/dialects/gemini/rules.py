"""The rules of Gemini's API for requests and streams, which `dragoman check` runs. Pure.

The lint does not use the parsers and renderers, so that it can check them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from dragoman.dialects.base import ApiRequest
from dragoman.dialects.gemini.blocks import is_before_gemini_3
from dragoman.dialects.kit.lint import StreamLint
from dragoman.dialects.kit.values import LocatedObject, Object, decoded, members, objects
from dragoman.dialects.rulebook import Breach, Rulebook
from dragoman.wire.frame import Frame
from dragoman.wire.jsonio import Json

RULES = Rulebook.parse(
    "gemini",
    """
body.object | documented | error | the body must be an object
contents.required | observed | error | a request must have at least one content
contents.role | observed | error | a role must be user, model or function
contents.empty | observed | error | a content must have parts
contents.first | inferred | advice | the first turn must be the user's
contents.last | inferred | advice | the last turn must be the user's
text.empty | inferred | advice | a user's text must not be empty; the service accepts an empty one next to other parts
part.data | observed | error | a part must have content
part.signature_only | inferred | advice | a part must have more than a thought signature
name | documented | error | a function name must have 1 to 128 letters, digits, _ . : and -
call.args | documented | error | args must be an object
call.signature | observed | error | the first call of each step of the current turn must have its thoughtSignature
result.response | documented | error | response must be an object
results.count | observed | error | a turn must have one result for each call of the turn before it
media.data | documented | error | inlineData must have data, fileData must have fileUri
media.fields | documented | advice | media must have a mimeType; the service detects that of files
tools.duplicate | observed | error | function names must be unique
tools.schema | documented | error | a function may have parameters or parametersJsonSchema, not both
choice.mode | documented | error | a mode must be AUTO, ANY, NONE or VALIDATED
choice.no_tools | observed | error | the modes ANY and VALIDATED must come with functions
choice.names | documented | error | allowedFunctionNames must come with the mode ANY or VALIDATED
choice.unknown | observed | error | an allowed function must be declared
temperature.range | documented | error | temperature must be from 0 to 2
topP.range | documented | error | topP must be from 0 to 1
presencePenalty.range | documented | error | presencePenalty must be from -2 to 2
frequencyPenalty.range | documented | error | frequencyPenalty must be from -2 to 2
maxOutputTokens.range | documented | error | maxOutputTokens must be a whole number, 1 or more
stopSequences | documented | error | a request may have at most 5 stop sequences; none may be empty
thinking.both | documented | error | thinking may have a budget or a level, not both
output.mime | documented | error | responseMimeType must be application/json if there is a schema
stream.json | observed | error | the data of a frame must be a JSON object
stream.event_name | documented | advice | a frame must not have an event name
stream.after_end | documented | advice | nothing may follow an error
stream.candidate | documented | error | a candidate must be an object
stream.index | documented | error | an index must be a whole number
stream.content | observed | advice | a content must have the role model and parts; SDK chats drop a reply without parts
stream.part | inferred | advice | a part must have content
stream.call | documented | error | a call must have a name, and args that are an object
stream.late | inferred | advice | a candidate must have no content after its finishReason
stream.unfinished | observed | error | every candidate must end with a finishReason
""",
)


MAX_STOP_SEQUENCES = 5
_NAME = re.compile(r"[a-zA-Z0-9_.:-]{1,128}\Z")
_ROLES = ("user", "model", "function")
_MODES = ("AUTO", "ANY", "NONE", "VALIDATED", "MODE_UNSPECIFIED")
_RANGES = (
    ("temperature", "temperature.range", 0, 2),
    ("topP", "topP.range", 0, 1),
    ("presencePenalty", "presencePenalty.range", -2, 2),
    ("frequencyPenalty", "frequencyPenalty.range", -2, 2),
)
_SNAKE_BOUNDARY = re.compile(r"(?<=[a-z0-9])_([a-z])")
_OPAQUE = frozenset({"args", "response", "parameters", "parametersJsonSchema", "responseSchema", "responseJsonSchema"})
_ASYNCHRONOUS = ("willContinue", "scheduling")  # on a result: there may be more of them than calls


def breaches(call: ApiRequest) -> Sequence[Breach]:
    """Return every requirement of the service that the request does not meet, with its path in camelCase.

    The service also accepts names in snake_case, and a single object in place of an array.
    """
    body = _in_camel_case(call.body)
    if not isinstance(body, dict):
        return [RULES.breach("body.object", "", "the body must be an object")]
    breaches = [*_tools(body), *_settings(body)]
    contents = [(each, at) for each, at in _objects(body.get("contents"), "contents")]
    if not contents:
        breaches.append(RULES.breach("contents.required", "contents", "a request must have at least one content"))
        return breaches
    for content, at in contents:
        breaches.extend(_content(content, at))
    breaches.extend(_order(contents, continues=bool(body.get("cachedContent"))))
    if call.model and not is_before_gemini_3(call.model):  # A body without its path names no model.
        breaches.extend(_signatures(contents))
    return breaches


def _objects(value: Json, at: str) -> Iterator[LocatedObject]:
    """Yield the objects of an array with their paths; a single object counts as an array of one."""
    if isinstance(value, dict):
        yield value, at
    else:
        yield from objects(value, at)


def _in_camel_case(value: Json) -> Json:
    """Return the value with its field names in camelCase; names inside arguments and schemas stay unchanged."""
    if isinstance(value, list):
        return [_in_camel_case(item) for item in value]
    if not isinstance(value, dict):
        return value
    names = {name: _SNAKE_BOUNDARY.sub(lambda found: found[1].upper(), name) for name in value}
    return {names[name]: item if names[name] in _OPAQUE else _in_camel_case(item) for name, item in value.items()}


def _role(content: Object) -> str:
    """Return the role in lower case: the service accepts USER, and reads a missing role as user."""
    role = content.get("role")
    return role.lower() or "user" if isinstance(role, str) else "user" if role is None else "?"


# --- contents


def _content(content: Object, at: str) -> Iterator[Breach]:
    if _role(content) not in _ROLES:
        yield RULES.breach("contents.role", f"{at}.role", f"it must be one of {', '.join(_ROLES)}")
    parts = list(_objects(content.get("parts"), f"{at}.parts"))
    if not parts:
        yield RULES.breach("contents.empty", f"{at}.parts", "a content must have parts")
    for part, place in parts:
        yield from _part(part, place)
        if (
            _role(content) != "model" and part.get("text") == ""
        ):  # Replies may end with an empty text, and SDK chats send it back.
            yield RULES.breach("text.empty", f"{place}.text", "it must not be empty")


def _part(part: Object, at: str) -> Iterator[Breach]:
    if not part.keys() - {"thought", "thoughtSignature"}:
        rule = "part.signature_only" if part.get("thoughtSignature") else "part.data"
        yield RULES.breach(rule, at, "a part must have content")
    if "functionCall" in part:
        call = members(part["functionCall"])
        yield from _named(call, f"{at}.functionCall")
        if not isinstance(call.get("args", {}), dict):
            yield RULES.breach("call.args", f"{at}.functionCall.args", "it must be an object")
    if "functionResponse" in part:
        response = members(part["functionResponse"])
        yield from _named(response, f"{at}.functionResponse")
        if not isinstance(response.get("response"), dict):
            yield RULES.breach("result.response", f"{at}.functionResponse.response", "it must be an object")
    for name, field in (("inlineData", "data"), ("fileData", "fileUri")):
        data = members(part.get(name))
        if name in part and field not in data:
            yield RULES.breach("media.data", f"{at}.{name}", f"it must have {field}")
        elif name in part and not (data.get("mimeType") and data.get(field)):
            yield RULES.breach("media.fields", f"{at}.{name}", f"it should have mimeType and {field}")


def _named(fields: Object, at: str) -> Iterator[Breach]:
    name = fields.get("name")
    if not isinstance(name, str) or not _NAME.match(name):
        yield RULES.breach("name", f"{at}.name", "a function name must consist of 1 to 128 letters, digits, _ . : or -")


def _count(content: Object, kind: str, *, absent: bool = False) -> int:
    return sum((kind in part) != absent for part, _ in _objects(content.get("parts"), ""))


def _order(contents: Sequence[LocatedObject], *, continues: bool) -> Iterator[Breach]:
    """Check the order of turns: the user's first and last, and one result for each call in the next turn.

    `continues`: the request continues cached content, which may have the calls of the first turn's results.
    """
    if _role(contents[0][0]) == "model":
        yield RULES.breach("contents.first", contents[0][1], "the first turn must be the user's")
    if _role(contents[-1][0]) == "model":
        yield RULES.breach("contents.last", contents[-1][1], "the last turn must be the user's")
    calls = 0
    before = ""
    for content, at in _turns(contents):
        results = _count(content, "functionResponse")
        if results != calls and not (continues and not before) and not _is_asynchronous(content):
            yield RULES.breach("results.count", at or before, f"this turn must have {calls} results, not {results}")
        calls, before = _count(content, "functionCall"), at
    if calls:
        yield RULES.breach("results.count", before, "each functionCall must have a functionResponse in the next turn")


def _is_asynchronous(turn: Object) -> bool:
    return any(
        name in members(part.get("functionResponse"))
        for part, _ in _objects(turn.get("parts"), "")
        for name in _ASYNCHRONOUS
    )


def _turns(contents: Sequence[LocatedObject]) -> Iterator[LocatedObject]:
    """Yield the turns: consecutive contents of one role are merged."""
    turn: Object = {}
    place = ""
    for content, at in contents:
        role = "model" if _role(content) == "model" else "user"
        parts = content.get("parts")
        parts = [parts] if isinstance(parts, dict) else parts
        if turn and turn["role"] == role:
            merged = turn["parts"]
            assert isinstance(merged, list)
            merged.extend(parts if isinstance(parts, list) else [])
            continue
        if turn:
            yield turn, place
        turn, place = {"role": role, "parts": [*parts] if isinstance(parts, list) else []}, at
    if turn:
        yield turn, place


def _signatures(contents: Sequence[LocatedObject]) -> Iterator[Breach]:
    """Check the signatures of the current turn: from the last content of the user that is more than results."""
    turns = list(_turns(contents))
    questions = [
        place
        for place, (turn, _) in enumerate(turns)
        if turn["role"] == "user" and _count(turn, "functionResponse", absent=True)
    ]
    for turn, at in turns[questions[-1] if questions else 0 :]:
        first = next((part for part, _ in _objects(turn.get("parts"), "") if "functionCall" in part), None)
        if first is not None and not first.get("thoughtSignature"):
            yield RULES.breach("call.signature", at, "the first call of a turn must have its thoughtSignature")


# --- tools and settings


def _tools(body: Object) -> Iterator[Breach]:
    declared: set[Json] = set()
    for tool, at in _objects(body.get("tools"), "tools"):
        for function, place in _objects(tool.get("functionDeclarations"), f"{at}.functionDeclarations"):
            yield from _named(function, place)
            name = function.get("name")
            if isinstance(name, str):
                if name in declared:
                    yield RULES.breach("tools.duplicate", f"{place}.name", f"the name {name} is used twice")
                declared.add(name)
            if "parameters" in function and "parametersJsonSchema" in function:
                yield RULES.breach("tools.schema", place, "it must not have both parameters and parametersJsonSchema")
    yield from _choice(members(members(body.get("toolConfig")).get("functionCallingConfig")), declared)


def _choice(config: Object, declared: set[Json]) -> Iterator[Breach]:
    at = "toolConfig.functionCallingConfig"
    mode, allowed = config.get("mode", "AUTO"), config.get("allowedFunctionNames")
    mode = mode.upper() if isinstance(mode, str) else mode
    if mode not in _MODES:
        yield RULES.breach("choice.mode", f"{at}.mode", f"it must be one of {', '.join(_MODES)}")
    if mode in ("ANY", "VALIDATED") and not declared:
        yield RULES.breach("choice.no_tools", f"{at}.mode", "the request has no functions to choose from")
    if not isinstance(allowed, list):
        return
    if mode not in ("ANY", "VALIDATED"):
        yield RULES.breach("choice.names", f"{at}.allowedFunctionNames", "it must come with the mode ANY or VALIDATED")
    for name in allowed:
        if not isinstance(name, str) or name not in declared:
            yield RULES.breach("choice.unknown", f"{at}.allowedFunctionNames", f"tools does not declare {name!r}")


def _settings(body: Object) -> Iterator[Breach]:
    config, at = members(body.get("generationConfig")), "generationConfig"
    for name, rule, low, high in _RANGES:
        value = config.get(name)
        if value is not None and (type(value) not in (int, float) or not low <= value <= high):  # type: ignore[operator]
            yield RULES.breach(rule, f"{at}.{name}", f"it must be a number from {low} to {high}")
    limit = config.get("maxOutputTokens")
    if limit is not None and (type(limit) is not int or limit < 1):
        yield RULES.breach("maxOutputTokens.range", f"{at}.maxOutputTokens", "it must be a whole number, 1 or more")
    stops = config.get("stopSequences")
    if isinstance(stops, list) and (len(stops) > MAX_STOP_SEQUENCES or not all(stops)):
        yield RULES.breach(
            "stopSequences", f"{at}.stopSequences", f"at most {MAX_STOP_SEQUENCES} are accepted; none may be empty"
        )
    thinking = members(config.get("thinkingConfig"))
    if "thinkingBudget" in thinking and "thinkingLevel" in thinking:
        yield RULES.breach("thinking.both", f"{at}.thinkingConfig", "it must not have both a budget and a level")
    schema = config.get("responseSchema") or config.get("responseJsonSchema")
    if schema and config.get("responseMimeType") in (None, "", "text/plain"):
        yield RULES.breach("output.mime", f"{at}.responseMimeType", "it must be application/json if there is a schema")


# --- the requirements of clients on a stream, as a lint of captured frames; the decoder and encoder do not use it


class GeminiStreamLint(StreamLint):
    """Check the captured frames of a response stream; see `StreamLint`."""

    rules = RULES

    def __init__(self) -> None:
        super().__init__()
        self._running: set[int] = set()
        self._stopped: set[int] = set()
        self._is_call_open = False  # more pieces of the last call follow
        self._error: Object | None = None
        self._blocked = False

    def frame(self, frame: Frame) -> None:
        data = decoded(frame.data)
        if not isinstance(data, dict):
            self.breach("json", "the data must be a JSON object")
            return
        if frame.kind:
            self.breach("event_name", "a frame must not have an event name")
        if (
            self._error is not None and data != self._error
        ):  # The same error may be sent twice: as an event and as bare JSON.
            self.breach("after_end", "nothing may follow an error")
        if "error" in data:
            self._error = data
            return
        feedback = data.get("promptFeedback")
        self._blocked |= isinstance(feedback, dict) and bool(feedback.get("blockReason"))
        entries = data.get("candidates")
        for position, entry in enumerate(entries if isinstance(entries, list) else ()):
            if isinstance(entry, dict):
                self._candidate(entry, position)
            else:
                self.breach("candidate", "a candidate must be an object")

    def _candidate(self, entry: Object, position: int) -> None:
        index = entry.get("index", position)
        if type(index) is not int:
            self.breach("index", "index must be a whole number")
            return
        self._running.add(index)
        content = entry.get("content")
        parts = [part for part, _ in objects(members(content).get("parts"), "")]
        if isinstance(content, dict) and (not parts or content.get("role") != "model"):
            self.breach("content", "a content must have the role model and parts; SDK chats drop a reply without parts")
        for part in parts:
            self._part(part)
        if index in self._stopped and any(part.get("text") != "" for part in parts):
            self.breach("late", f"candidate {index} has content after its finishReason")
        if entry.get("finishReason"):
            self._stopped.add(index)

    def _part(self, part: Object) -> None:
        if not part:
            self.breach("part", "a part must have content")
        call = part.get("functionCall")
        if call is None:
            return
        fields = call if isinstance(call, dict) else {}
        if not (fields.get("name") or self._is_call_open) or not isinstance(fields.get("args", {}), dict):
            self.breach("call", "a call must have a name, and args that are an object")
        self._is_call_open = fields.get("willContinue") is True

    def end(self) -> None:
        if self._error is not None or self._blocked:
            return
        if not self._running or self._running - self._stopped:
            self.breach("unfinished", "every candidate must end with a finishReason")

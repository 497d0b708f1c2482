"""The rules of Chat Completions for requests and streams, which `dragoman check` runs. Pure.

The checks read raw JSON and share no code with the codec. Many services use this dialect, and a file does not name its
service. A rule that only OpenAI enforces is therefore advice, and so is a rule that the streams of a known service
break.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from dragoman.dialects.base import ApiRequest
from dragoman.dialects.kit import openai_rules
from dragoman.dialects.kit.lint import BreachTuples, StreamLint
from dragoman.dialects.kit.values import decoded, members
from dragoman.dialects.rulebook import Breach, Rulebook
from dragoman.wire.frame import Frame

RULES = Rulebook.parse(
    "openai",
    openai_rules.COMMON_RULES
    + """\
messages.missing | documented | error | messages must be an array
messages.empty | observed | error | a request must have at least one message
message.shape | documented | error | a message must be an object
message.role_unknown | documented | advice | OpenAI accepts the roles developer, system, user, assistant, tool, function
message.no_content | observed | advice | OpenAI refuses a message without content; others accept it
message.empty_parts | observed | advice | OpenAI refuses an empty list of parts; others accept it
message.part | documented | advice | each role allows only some types of parts; some services accept others
message.name | documented | advice | a function message must name its function
call.none | observed | advice | OpenAI refuses an empty tool_calls; others accept it
call.shape | documented | error | a tool call must be an object
call.id | documented | error | a tool call must have an id
call.id_length | observed | advice | OpenAI accepts ids of at most 64 characters; others accept longer ones
call.duplicate_id | inferred | advice | the ids of a message's tool calls must be unique
call.type | documented | advice | the type must be function or custom; Mistral's calls have none
call.arguments | documented | advice | arguments must be a string; Mistral accepts an object
tool.unanswered_call | observed | error | every tool call must have a tool message before the next other message
tool.answered_twice | observed | error | a tool call must have only one tool message
tool.unknown_call | observed | error | a tool message must answer a call of the assistant message before it
tools.empty | observed | advice | OpenAI refuses an empty list of tools; others accept it
tools.limit | documented | advice | OpenAI accepts at most 128 tools; others accept more
tools.type | documented | advice | a tool must have a type; services accept function tools without it
tool_choice.without_tools | observed | advice | OpenAI refuses tool_choice without tools; others ignore it
tool_choice.shape | documented | error | tool_choice must be none, auto, required (any), a tool, or allowed_tools
parallel.without_tools | observed | advice | OpenAI refuses parallel_tool_calls without tools; others ignore it
knob.range | documented | advice | OpenAI accepts these ranges: temperature 0 to 2, top_p 0 to 1, penalties -2 to 2
n.range | documented | error | n must be a whole number from 1 to 128
stop.shape | documented | advice | OpenAI accepts one stop string or up to four; others accept more
max_tokens.type | documented | error | a token limit must be a whole number
max_tokens.range | documented | advice | a token limit must be above 0; for local servers -1 means no limit
max_tokens.both | observed | advice | OpenAI refuses max_tokens together with max_completion_tokens
stream_options.without_stream | observed | advice | OpenAI refuses stream_options without stream
top_logprobs.without_logprobs | documented | advice | top_logprobs must come with logprobs
response_format.name | documented | advice | the schema's name must have 1 to 64 letters, digits, _ and -
response_format.schema | documented | error | schema must be an object
response_format.shape | documented | advice | the type must be text, json_object, or json_schema with a name
stream.named | documented | advice | a frame must not have an event name
stream.after_end | documented | advice | nothing may follow [DONE] or an error
stream.error_shape | documented | advice | an error must be an object with a message; LM Studio's is a string
stream.envelope | documented | advice | a chunk must have id, object, created and model; Azure's first has empty ones
stream.envelope_changed | documented | advice | id, object, created and model must be the same in every chunk
stream.after_usage | observed | advice | OpenAI's client library loses usage that is not in the last chunk
stream.choices | observed | error | choices must be an array
stream.empty | documented | advice | a chunk without choices must report usage; Azure's first reports content filters
stream.choice | observed | error | a choice must be an object; its index must be a whole number, its delta an object
stream.choice_fields | documented | advice | a choice must have an index and a delta; Azure's filters send none
stream.no_role | documented | advice | the first delta of a choice must have the role assistant
stream.role_twice | documented | advice | only the first delta may have a role; several services repeat it
stream.after_finish | documented | advice | no content may follow the finish_reason
stream.finish_twice | documented | advice | a choice may finish only once; OpenRouter repeats it with the usage
stream.finish_reason | documented | advice | OpenAI sends stop, length, tool_calls, content_filter or function_call
stream.content | observed | error | content and refusal must be strings
stream.content_parts | documented | advice | content must be a string; Mistral sends parts
stream.details_index | observed | advice | an entry of reasoning_details must have an index
stream.call_index | observed | error | the indices of tool calls must begin with 0 and have no gaps
stream.call_no_index | observed | advice | a tool call must have an index; Mistral sends none
stream.call_start | observed | advice | the first entry of a tool call must have id, type and name
stream.call_repeated | observed | advice | only the first entry of a tool call may have id, type and name
stream.call_name | observed | error | a tool call must have a name
stream.arguments | observed | error | arguments must be a string
stream.no_end | documented | advice | a stream must end with [DONE] or an error
stream.no_finish | observed | error | every choice must have a finish_reason
""",
)


_MAX_ID_LENGTH = 64
_MAX_TOOLS = 128
_ROLES = {"developer", "system", "user", "assistant", "tool", "function"}
_PARTS = {
    "developer": {"text"},
    "system": {"text"},
    "tool": {"text"},
    "function": {"text"},
    "assistant": {"text", "refusal"},
    "user": {"text", "image_url", "input_audio", "file"},
}
_FORMAT = ("response_format.name", "response_format.schema", "response_format.shape")
_RANGES = {"temperature": (0, 2), "top_p": (0, 1), "frequency_penalty": (-2, 2), "presence_penalty": (-2, 2)}


def breaches(call: ApiRequest) -> Sequence[Breach]:
    """Return the rules that a request breaks, in the order of the payload."""
    return tuple(RULES.breach(*found) for found in _all(call.body, call.stream))


def _all(body: Any, stream: bool) -> BreachTuples:
    if not isinstance(body, dict):
        yield "body.shape", "", ""
        return
    messages = body.get("messages")
    if not isinstance(messages, list):
        yield "messages.missing", "messages", "messages must be an array"
    elif not messages:
        yield "messages.empty", "messages", "a request must have at least one message"
    else:
        for index, message in enumerate(messages):
            yield from _message(message, f"messages[{index}]")
        yield from _pairing([message if isinstance(message, dict) else {} for message in messages])
    yield from _tools(body)
    yield from _choice(body)
    yield from _settings(body, stream)
    form, at = body.get("response_format"), "response_format"
    definition = {"schema": {}, **members(members(form).get("json_schema"))}
    yield from openai_rules.format_rules(form, definition, _FORMAT, at, f"{at}.json_schema")


# --- messages


def _message(message: Any, at: str) -> BreachTuples:
    if not isinstance(message, dict):
        yield "message.shape", at, "a message must be an object"
        return
    role = message.get("role")
    if not isinstance(role, str):
        yield "message.role", f"{at}.role", "a message must have a role, which is a string"
        return
    if role not in _ROLES:
        yield "message.role_unknown", f"{at}.role", f"{role!r} is not one of " + ", ".join(sorted(_ROLES))
        return
    yield from _content(message, role, at)
    if role == "assistant":
        yield from _calls(message, at)
    if role == "function" and not message.get("name"):
        yield "message.name", f"{at}.name", "a function message must name its function"


def _content(message: dict[str, Any], role: str, at: str) -> BreachTuples:
    content = message.get("content")
    if isinstance(content, list):
        if not content:
            yield "message.empty_parts", f"{at}.content", "a list of parts must have at least one part"
        yield from openai_rules.part_rules(content, role, at, _PARTS)
    elif content is None:
        others = ("tool_calls", "function_call", "refusal", "audio") if role == "assistant" else ()
        if not any(message.get(name) for name in others):
            yield "message.no_content", f"{at}.content", f"a message of the role {role} must have content"
    elif not isinstance(content, str):
        yield "message.content", f"{at}.content", "content must be a string or a list of parts"


def _calls(message: dict[str, Any], at: str) -> BreachTuples:
    calls = message.get("tool_calls")
    if calls is None:
        return
    if not isinstance(calls, list) or not calls:
        yield "call.none", f"{at}.tool_calls", "tool_calls must contain at least one call, or be left out"
        return
    seen: set[str] = set()
    for index, call in enumerate(calls):
        place = f"{at}.tool_calls[{index}]"
        if not isinstance(call, dict):
            yield "call.shape", place, "a tool call must be an object"
            continue
        call_id = call.get("id")
        if not isinstance(call_id, str) or not call_id:
            yield "call.id", f"{place}.id", "a tool call must have an id"
        elif len(call_id) > _MAX_ID_LENGTH:
            yield "call.id_length", f"{place}.id", f"an id may have at most {_MAX_ID_LENGTH} characters"
        elif call_id in seen:
            detail = "two tool calls of this message have the same id; ids must be unique"
            yield "call.duplicate_id", f"{place}.id", detail
        seen.add(str(call_id))
        yield from _call(call, place)


def _call(call: dict[str, Any], at: str) -> BreachTuples:
    kind = call.get("type")
    if kind not in ("function", "custom"):
        yield "call.type", f"{at}.type", "the type must be function or custom"
        if isinstance(kind, str) and kind:
            return
        kind = "custom" if "custom" in call else "function"
    inner = call.get(kind)
    inner = inner if isinstance(inner, dict) else {}
    yield from openai_rules.name_rules(inner.get("name"), "call", f"{at}.{kind}.name")
    text_field = "input" if kind == "custom" else "arguments"
    if not isinstance(inner.get(text_field), str):
        yield "call.arguments", f"{at}.{kind}.{text_field}", f"{text_field} must be a string"


def _pairing(messages: Sequence[dict[str, Any]]) -> BreachTuples:
    """Check that tool messages directly follow the message with the calls they answer, one for each call."""
    open_calls: dict[str, str] = {}
    answered: set[str] = set()
    for index, message in enumerate(messages):
        role, at = message.get("role"), f"messages[{index}]"
        if role == "tool":
            call_id = str(message.get("tool_call_id"))
            if call_id in open_calls:
                del open_calls[call_id]
                answered.add(call_id)
            elif call_id in answered:
                yield "tool.answered_twice", f"{at}.tool_call_id", "the call already has a tool message"
            else:
                yield "tool.unknown_call", f"{at}.tool_call_id", "the assistant message before has no call with this id"
            continue
        yield from _unanswered(open_calls)
        answered, open_calls = set(), {}
        calls = message.get("tool_calls") if role == "assistant" else None
        for position, call in enumerate(calls if isinstance(calls, list) else ()):
            if isinstance(call, dict):
                open_calls[str(call.get("id"))] = f"{at}.tool_calls[{position}]"
    yield from _unanswered(open_calls)


def _unanswered(calls: dict[str, str]) -> BreachTuples:
    for place in calls.values():
        yield "tool.unanswered_call", place, "this call must have a tool message before the next other message"


# --- tools


def _tools(body: dict[str, Any]) -> BreachTuples:
    tools = body.get("tools")
    if tools is None:
        return
    if not isinstance(tools, list):
        yield "tools.shape", "tools", "tools must be an array"
        return
    if not tools:
        yield "tools.empty", "tools", "tools must contain at least one tool, or be left out"
    if len(tools) > _MAX_TOOLS:
        yield "tools.limit", "tools", f"a request may have at most {_MAX_TOOLS} tools"
    seen: set[str] = set()
    for index, tool in enumerate(tools):
        yield from openai_rules.tool_rules(tool, f"tools[{index}]", _inside, seen)


def _inside(tool: dict[str, Any]) -> tuple[Any, dict[str, Any], str]:
    """Return kind, definition and path of a tool. One without a type is a function, and may be flat."""
    kind = tool.get("type") or "function"
    inner = tool.get(kind) if isinstance(kind, str) else None
    inner = inner if isinstance(inner, dict) else {} if "type" in tool else tool
    return kind, inner, f".{kind}"


def _name(tool: Any) -> Any:
    return _inside(tool)[1].get("name") if isinstance(tool, dict) else None


def _choice(body: dict[str, Any]) -> BreachTuples:
    tools, choice = body.get("tools"), body.get("tool_choice")
    names = {str(_name(tool)) for tool in tools if isinstance(tool, dict)} if isinstance(tools, list) else set()
    if not tools and body.get("parallel_tool_calls") is not None:
        detail = "parallel_tool_calls is set, but the request has no tools; remove it"
        yield "parallel.without_tools", "parallel_tool_calls", detail
    if choice is None:
        return
    if not tools and choice != "none":
        yield "tool_choice.without_tools", "tool_choice", "tool_choice is set, but the request has no tools; remove it"
    wanted: list[Any] = []
    match choice:
        case "none" | "auto" | "required" | "any":
            pass
        case {"type": "allowed_tools", "allowed_tools": {"mode": "auto" | "required", "tools": list(allowed)}}:
            wanted = allowed
        case {"type": "function" | "custom"}:
            wanted = [choice]
        case _:
            detail = "tool_choice must be none, auto, required, a tool, or allowed_tools"
            yield "tool_choice.shape", "tool_choice", detail
    for tool in wanted:
        if str(_name(tool)) not in names:
            yield "tool_choice.unknown_tool", "tool_choice", f"tools does not declare {_name(tool)!r}"


# --- settings


def _settings(body: dict[str, Any], stream: bool) -> BreachTuples:
    yield from openai_rules.sampling_rules(body, _RANGES)
    n = body.get("n")
    if n is not None and not (type(n) is int and 1 <= n <= 128):
        yield "n.range", "n", "n must be a whole number from 1 to 128"
    stop = body.get("stop")
    stops = stop if isinstance(stop, list) else [] if stop is None else [stop]
    if len(stops) > 4 or not all(isinstance(each, str) and each for each in stops):
        yield "stop.shape", "stop", "stop must be a string or a list of up to four strings"
    for name in ("max_tokens", "max_completion_tokens"):
        value = body.get(name)
        if value is not None and type(value) is not int:
            yield "max_tokens.type", name, f"{name} must be a whole number"
        elif value is not None and value < 1:
            yield "max_tokens.range", name, f"{name} must be a whole number above 0"
    if body.get("max_tokens") is not None and body.get("max_completion_tokens") is not None:
        yield "max_tokens.both", "max_tokens", "a request may have max_tokens or max_completion_tokens, not both"
    yield from openai_rules.effort_rules(body.get("reasoning_effort"), "reasoning_effort")
    if body.get("stream_options") is not None and not stream:
        detail = "stream_options is set, but stream is not true; remove it"
        yield "stream_options.without_stream", "stream_options", detail
    if body.get("top_logprobs") is not None and body.get("logprobs") is not True:
        yield "top_logprobs.without_logprobs", "top_logprobs", "top_logprobs is set, but logprobs is not true"


# --- streams: what the official client libraries of both languages need, checked on raw frames

_REASONS = {"stop", "length", "tool_calls", "content_filter", "function_call"}
_ENVELOPE = ("id", "object", "created", "model")
_Found = Iterator[tuple[str, str]]


class _ChoiceLint:
    """The checks of one choice; they yield rule and message."""

    def __init__(self) -> None:
        self.has_role = False
        self.finished = False
        self.ended = False  # finished, or given the empty reason, which xAI sends with calls
        self._named: list[bool] = []  # of each call, by index: whether it has its name

    def delta(self, delta: dict[str, Any]) -> _Found:
        if "role" in delta and self.has_role:
            yield "role_twice", "only the first delta may have a role"
        if not self.has_role and delta.get("role") != "assistant":
            yield "no_role", "the first delta of a choice must have the role assistant"
        self.has_role = True
        if self.finished and any(delta.get(name) for name in ("content", "refusal", "tool_calls", "function_call")):
            yield "after_finish", "no content may follow the finish_reason"
        for name in ("content", "refusal"):
            if isinstance(delta.get(name), list):
                yield "content_parts", f"{name} must be a string"
            elif not isinstance(delta.get(name), str | None):
                yield "content", f"{name} must be a string"
        details = delta.get("reasoning_details")
        for entry in details if isinstance(details, list) else ():
            if not isinstance(entry, dict) or type(entry.get("index")) is not int:
                yield "details_index", "an entry of reasoning_details must have an index"
        calls = delta.get("tool_calls")
        for entry in calls if isinstance(calls, list) else ():
            yield from self._call(entry if isinstance(entry, dict) else {})

    def _call(self, entry: dict[str, Any]) -> _Found:
        index = entry.get("index")
        kind = "custom" if isinstance(entry.get("custom"), dict) else "function"
        inner = entry.get(kind)
        inner = inner if isinstance(inner, dict) else {}
        if not isinstance(inner.get("input" if kind == "custom" else "arguments"), str | None):
            yield "arguments", "arguments must be a string"
        if index is None:
            yield "call_no_index", "a tool call must have an index"
            if not inner.get("name") and not self._named:
                yield "call_name", "a tool call must have a name"
            return
        if type(index) is not int or not 0 <= index <= len(self._named):
            yield "call_index", "the indices of tool calls must begin with 0 and have no gaps"
            return
        if index == len(self._named):
            self._named.append(False)
            if not (entry.get("id") and entry.get("type") and inner.get("name")):
                yield "call_start", "the first entry of a tool call must have id, type and name"
        elif entry.get("id") or entry.get("type") or inner.get("name"):
            yield "call_repeated", "only the first entry of a tool call may have id, type and name"
        self._named[index] = self._named[index] or bool(inner.get("name"))

    def end(self) -> _Found:
        for index, named in enumerate(self._named):
            if not named:
                yield "call_name", f"call {index} must have a name"


class OpenaiStreamLint(StreamLint):
    """The checks of one stream."""

    rules = RULES

    def __init__(self) -> None:
        super().__init__()
        self._choices: dict[int, _ChoiceLint] = {}
        self._envelope: list[Any] | None = None
        self._usage = False
        self._ended_by = ""

    def frame(self, frame: Frame) -> None:
        done = frame.data == b"[DONE]"
        if self._ended_by and not (done and self._ended_by == "an error"):
            self.breach("after_end", f"nothing may follow {self._ended_by}")
        if frame.kind:
            self.breach("named", "a frame must not have an event name")
        if done:
            self._ended_by = self._ended_by or "[DONE]"
            return
        chunk = decoded(frame.data)
        if not isinstance(chunk, dict):
            self.breach("no_json", "the data of a frame must be a JSON object")
        elif (error := chunk if chunk.get("object") == "error" else chunk.get("error")) is not None:
            self._ended_by = "an error"
            if not isinstance(error, dict) or not isinstance(error.get("message"), str):
                self.breach("error_shape", "an error must have a message")
        else:
            self._chunk(chunk)

    def _chunk(self, chunk: dict[str, Any]) -> None:
        envelope = [chunk.get(name) for name in _ENVELOPE]
        if None in envelope or envelope[1] != "chat.completion.chunk":
            self.breach("envelope", "a chunk must have id, object, created and model")
        elif self._envelope not in (None, envelope):
            self.breach("envelope_changed", "id, object, created and model must be the same in every chunk")
        self._envelope = envelope
        if self._usage:
            self.breach("after_usage", "the chunk with the usage must be the last")
        choices = chunk.get("choices")
        if choices is None and any(chunk.get(name) for name in ("usage", "x_groq", "base_resp")):
            choices = []  # client libraries need the array, but some services omit it with the usage
            self.breach("empty", "a chunk must have choices")
        if not isinstance(choices, list):
            self.breach("choices", "choices must be an array")
            return
        if not choices:
            self._usage = chunk.get("usage") is not None
            if not self._usage:
                self.breach("empty", "a chunk without choices must report usage")
        for choice in choices:
            self._choice(choice)

    def _choice(self, choice: Any) -> None:
        if not isinstance(choice, dict):
            self.breach("choice", "a choice must be an object")
            return
        index, delta, reason = choice.get("index"), choice.get("delta"), choice.get("finish_reason")
        if not isinstance(index, int | None) or isinstance(index, bool) or not isinstance(delta, dict | None):
            self.breach("choice", "the index of a choice must be a whole number, its delta an object")
            return
        if index is None or delta is None:
            self.breach("choice_fields", "a choice must have an index and a delta")
        lint = self._choices.setdefault(index or 0, _ChoiceLint())
        if delta is not None:
            for found in lint.delta(delta):
                self.breach(*found)
        if reason is None:
            return
        if lint.finished and reason:
            self.breach("finish_twice", "the choice already has a finish_reason")
        if not isinstance(reason, str) or reason not in _REASONS:
            self.breach("finish_reason", f"{reason!r} is not a finish_reason of OpenAI")
        lint.finished = lint.finished or bool(reason)
        lint.ended = True

    def end(self) -> None:
        if not self._ended_by:
            self.breach("no_end", "a stream must end with [DONE] or an error")
        if self._ended_by == "an error":
            return
        if not (self._choices and all(lint.ended for lint in self._choices.values())):
            self.breach("no_finish", "every choice must have a finish_reason")
        for lint in self._choices.values():
            for found in lint.end():
                self.breach(*found)

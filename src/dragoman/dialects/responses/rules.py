"""The rules of the Responses API for requests and streams, which `dragoman check` runs. Pure.

The checks read raw JSON and share no code with the codec. OpenAI, Azure, xAI, Groq, OpenRouter, vLLM and others use
this dialect, and a file does not name its service. A rule that only some of them enforce is therefore advice, and so is
a rule that the streams of one of them break.
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
    "responses",
    openai_rules.COMMON_RULES
    + """\
input.missing | documented | error | input must be a string or an array of items
input.empty | observed | error | a request must have input, instructions or a stored prompt
item.type | documented | error | an item must be an object with a type or a role
message.role_unknown | documented | advice | OpenAI accepts the roles developer, system, user, assistant
message.part | observed | advice | OpenAI accepts output parts from the assistant, input parts from other roles
call.call_id | documented | error | a tool call must have a call_id
call.arguments | documented | error | arguments must be a string
call.duplicate_id | inferred | advice | the ids of tool calls must be unique; Mantle repeats call_0 in every response
call.unanswered | observed | error | every tool call must have an output
call_id.length | observed | advice | OpenAI accepts ids of at most 64 characters
output.call_id | documented | error | an output must have a call_id
output.output | documented | error | output must be a string or a list of parts
output.answered_twice | inferred | advice | a tool call must have only one output
output.unknown_call | observed | error | an output must follow its tool call
output.kind | documented | advice | the output's type must match the type of its call
reasoning.summary | documented | advice | a reasoning item must have summary, a list of parts
tools.type | documented | advice | a tool must have a type
tool_choice.without_tools | observed | advice | OpenAI refuses tool_choice without tools
tool_choice.shape | documented | error | tool_choice must be none, auto, required, a tool, or allowed_tools
knob.range | documented | advice | OpenAI accepts these ranges: temperature 0 to 2, top_p 0 to 1
max_output_tokens.type | documented | error | max_output_tokens must be a whole number
max_output_tokens.range | observed | advice | OpenAI refuses a limit below 16 tokens; others accept it
previous.both | documented | error | a request may have previous_response_id or conversation, not both
unknown_field | observed | advice | OpenAI refuses fields of Chat Completions; others ignore them
format.name | documented | advice | the schema's name must have 1 to 64 letters, digits, _ and -
format.schema | documented | error | schema must be an object
format.shape | documented | advice | the type must be text, json_object, or json_schema with a name
stream.type | documented | error | an event must have a type
stream.event_name | documented | advice | the event's name must equal its type; clients read the type
stream.after_end | documented | advice | only [DONE] may follow the last event
stream.sequence_number | documented | advice | sequence_number must grow with every event
stream.no_created | observed | error | response.created must be the first event about the response
stream.early | observed | advice | no event may come before response.created; OpenAI sends keepalive
stream.response | observed | error | a response must have an id
stream.status | documented | advice | the status must be that of the event
stream.output | observed | advice | the last event must list all items; that of Codex's backend lists none
stream.error | documented | advice | a failed response must have an error with a code and a message
stream.usage | observed | error | usage must have input_tokens, output_tokens and total_tokens, whole numbers
stream.usage_details | documented | advice | usage must have input_tokens_details and output_tokens_details
stream.output_index | observed | advice | output_index must count items from 0
stream.item | observed | error | an item must be an object with a type
stream.item_not_open | observed | advice | an item must be added before its deltas and before it is done
stream.item_kind | documented | advice | the type of an item must not change
stream.item_field | observed | error | a tool call that is done must have call_id, name and arguments, which are strings
stream.summary | observed | advice | a reasoning item that is done must have summary, a list
stream.part_not_added | observed | advice | a part must be added before its deltas; several services leave this out
stream.delta | observed | error | a delta must be a string
stream.no_end | observed | error | a stream must end with response.completed, incomplete, failed or an error
stream.open_call | observed | error | every tool call must be done before the end: Codex runs only finished calls
stream.open_item | documented | advice | every item must be done before the end
""",
)


_MAX_ID_LENGTH = 64
_MIN_TOKENS = 16
_ROLES = ("developer", "system", "user", "assistant")  # no sets: values of any type are looked up in these
_PARTS = {
    "assistant": {"output_text", "refusal"},
    "user": {"input_text", "input_image", "input_file"},
    "system": {"input_text", "input_image", "input_file"},
    "developer": {"input_text", "input_image", "input_file"},
}
_CALLS = {"function_call": "arguments", "custom_tool_call": "input"}
_OUTPUTS = {"function_call_output": "function_call", "custom_tool_call_output": "custom_tool_call"}
_FORMAT = ("format.name", "format.schema", "format.shape")
_RANGES = {"temperature": (0, 2), "top_p": (0, 1)}


def breaches(call: ApiRequest) -> Sequence[Breach]:
    """Return the rules that a request breaks, in the order of the payload."""
    return tuple(RULES.breach(*found) for found in _all(call.body))


def _all(body: Any) -> BreachTuples:
    if not isinstance(body, dict):
        yield "body.shape", "", ""
        return
    value = body.get("input")
    if isinstance(value, list):
        if not value and not (body.get("instructions") or _continues(body)):
            yield "input.empty", "input", "a request must have input, instructions or a stored prompt"
        for index, item in enumerate(value):
            yield from _item(item, f"input[{index}]")
        items = [item if isinstance(item, dict) else {} for item in value]
        stored = _continues(body) or any(_kind(item) == "item_reference" for item in items)
        yield from _pairing(items, stored)
    elif not isinstance(value, str) and (value is not None or not _continues(body)):
        yield "input.missing", "input", "input must be a string or an array of items"
    yield from _tools(body)
    yield from _choice(body)
    yield from _settings(body)


def _continues(body: dict[str, Any]) -> bool:
    """Return whether the service stores a part of the request: an earlier response, a conversation, a prompt."""
    return any(body.get(name) for name in ("previous_response_id", "conversation", "prompt"))


# --- items


def _item(item: Any, at: str) -> BreachTuples:
    kind = _kind(item) if isinstance(item, dict) else None
    if not isinstance(kind, str):
        yield "item.type", f"{at}.type", "an item must have a type"
    elif kind == "message":
        yield from _message(item, at)
    elif kind in _CALLS:
        yield from _call(item, kind, at)
    elif kind in _OUTPUTS:
        yield from _call_id(item.get("call_id"), "output.call_id", f"{at}.call_id")
        if not isinstance(item.get("output"), str | list):
            yield "output.output", f"{at}.output", "output must be a string or a list of parts"
    elif kind == "reasoning" and not isinstance(item.get("summary"), list):
        yield "reasoning.summary", f"{at}.summary", "a reasoning item must have summary, a list of parts"


def _kind(item: dict[str, Any]) -> Any:
    """Return the type of an item; a message and a reference to an item may omit it."""
    if item.get("type") is not None:
        return item["type"]
    return "message" if "role" in item else "item_reference" if "id" in item else None


def _call_id(value: Any, rule: str, at: str) -> BreachTuples:
    if not isinstance(value, str) or not value:
        yield rule, at, "a call or output must have a call_id"
    elif len(value) > _MAX_ID_LENGTH:
        yield "call_id.length", at, f"a call_id may have at most {_MAX_ID_LENGTH} characters"


def _message(item: dict[str, Any], at: str) -> BreachTuples:
    role, content = item.get("role"), item.get("content")
    if not isinstance(role, str):
        yield "message.role", f"{at}.role", "a message must have a role, which is a string"
    elif role not in _ROLES:
        yield "message.role_unknown", f"{at}.role", f"{role!r} is not one of " + ", ".join(sorted(_ROLES))
    elif isinstance(content, list):
        yield from openai_rules.part_rules(content, role, at, _PARTS)
    elif not isinstance(content, str):
        yield "message.content", f"{at}.content", "content must be a string or a list of parts"


def _call(item: dict[str, Any], kind: str, at: str) -> BreachTuples:
    yield from _call_id(item.get("call_id"), "call.call_id", f"{at}.call_id")
    yield from openai_rules.name_rules(item.get("name"), "call", f"{at}.name")
    if not isinstance(item.get(_CALLS[kind]), str):
        yield "call.arguments", f"{at}.{_CALLS[kind]}", f"{_CALLS[kind]} must be a string"


def _pairing(items: Sequence[dict[str, Any]], stored: bool) -> BreachTuples:
    """Check that each call is answered once, by an output of its kind. With `stored` the call may be elsewhere."""
    calls: dict[Any, tuple[str, str]] = {}
    answered: set[Any] = set()
    for index, item in enumerate(items):
        kind, at = str(item.get("type")), f"input[{index}].call_id"
        call_id = str(item.get("call_id"))
        if kind in _CALLS:
            if call_id in calls:
                yield "call.duplicate_id", at, "two tool calls have the same call_id; ids must be unique"
            calls[call_id] = (kind, at)
        elif kind in _OUTPUTS and call_id in answered:
            yield "output.answered_twice", at, "the tool call already has an output; remove this one"
        elif kind in _OUTPUTS:
            answered.add(call_id)
            call_kind = calls.get(call_id, ("", ""))[0]
            if call_kind and call_kind != _OUTPUTS[kind]:
                yield "output.kind", at, "the output's type must match the type of its call"
            elif not call_kind and not stored:
                yield "output.unknown_call", at, "no tool call before this output has its call_id"
    for call_id, (_, at) in calls.items():
        if call_id not in answered:
            yield "call.unanswered", at, "this tool call must have an output"


# --- tools


def _tools(body: dict[str, Any]) -> BreachTuples:
    tools = body.get("tools")
    if tools is None:
        return
    if not isinstance(tools, list):
        yield "tools.shape", "tools", "tools must be an array"
        return
    seen: dict[str, set[Any]] = {}  # the names in each namespace
    for index, tool in enumerate(tools):
        at = f"tools[{index}]"
        if isinstance(tool, dict) and tool.get("type") == "namespace":
            inside = tool.get("tools")
            for inner, each in enumerate(inside if isinstance(inside, list) else ()):
                names = seen.setdefault(str(tool.get("name")), set())
                yield from openai_rules.tool_rules(each, f"{at}.tools[{inner}]", _inside, names)
        else:
            yield from openai_rules.tool_rules(tool, at, _inside, seen.setdefault("None", set()))


def _inside(tool: dict[str, Any]) -> tuple[Any, dict[str, Any], str]:
    return tool.get("type"), tool, ""


def _choice(body: dict[str, Any]) -> BreachTuples:
    tools, choice = body.get("tools"), body.get("tool_choice")
    if choice is None:
        return
    if not tools and choice not in ("none", "auto"):
        yield "tool_choice.without_tools", "tool_choice", "tool_choice is set, but the request has no tools; remove it"
    wanted: list[Any] = []
    match choice:
        case "none" | "auto" | "required":
            pass
        case {"type": "allowed_tools", "mode": "auto" | "required", "tools": list(allowed)}:
            wanted = allowed
        case {"type": str(named)} if named != "allowed_tools":
            wanted = [choice]
        case _:
            detail = "tool_choice must be none, auto, required, a tool, or allowed_tools"
            yield "tool_choice.shape", "tool_choice", detail
    names = list(_names(tools))
    if _declares_later(body):
        return
    for tool in wanted:
        kind = tool.get("type") if isinstance(tool, dict) else None
        if kind not in ("function", "custom"):
            continue
        name, namespace = tool.get("name"), tool.get("namespace")
        if not any(name == other and namespace in (None, "", space) for space, other in names):
            yield "tool_choice.unknown_tool", "tool_choice", f"tools does not declare {name!r}"


def _declares_later(body: dict[str, Any]) -> bool:
    """Return whether tools may be declared outside `tools`: in an item, or in state that the service stores."""
    value = body.get("input")
    items = value if isinstance(value, list) else []
    return _continues(body) or any(isinstance(item, dict) and item.get("tools") for item in items)


def _names(tools: Any, namespace: Any = None) -> Iterator[tuple[Any, Any]]:
    for tool in tools if isinstance(tools, list) else ():
        if isinstance(tool, dict):
            yield namespace, tool.get("name")
            yield from _names(tool.get("tools"), tool.get("name"))


# --- settings


def _settings(body: dict[str, Any]) -> BreachTuples:
    yield from openai_rules.sampling_rules(body, _RANGES)
    limit = body.get("max_output_tokens")
    if limit is not None and type(limit) is not int:
        yield "max_output_tokens.type", "max_output_tokens", "max_output_tokens must be a whole number"
    elif limit is not None and limit < _MIN_TOKENS:
        yield "max_output_tokens.range", "max_output_tokens", f"max_output_tokens must be at least {_MIN_TOKENS}"
    yield from openai_rules.effort_rules(members(body.get("reasoning")).get("effort"), "reasoning.effort")
    if body.get("previous_response_id") and body.get("conversation"):
        yield "previous.both", "conversation", "a request may have previous_response_id or conversation, not both"
    for name in ("stop", "n", "messages", "max_tokens", "response_format"):
        if body.get(name) is not None:
            yield "unknown_field", name, f"Responses does not have the field {name}"
    form, at = members(body.get("text")).get("format"), "text.format"
    yield from openai_rules.format_rules(form, form, _FORMAT, at, at)


# --- streams: what the SDKs and Codex need, checked on raw frames

_ENDS = {
    "response.completed": "completed",
    "response.incomplete": "incomplete",
    "response.failed": "failed",
    "response.cancelled": "cancelled",
}
_STARTS = ("response.created", "response.in_progress", "response.queued")
_IN_PART = ("response.output_text.", "response.refusal.")
_ITEM_KINDS = {
    "response.output_text.": "message",
    "response.refusal.": "message",
    "response.content_part.": "message",
    "response.function_call_arguments.": "function_call",
    "response.custom_tool_call_input.": "custom_tool_call",
    "response.reasoning_summary_": "reasoning",
    "response.reasoning_text.": "reasoning",
}
_DETAILS = {
    "input_tokens_details": ("cached_tokens",),
    "output_tokens_details": ("reasoning_tokens",),
}
_CALL_FIELDS = {"function_call": ("call_id", "name", "arguments"), "custom_tool_call": ("call_id", "name", "input")}
_Found = Iterator[tuple[str, str]]


class ResponsesStreamLint(StreamLint):
    """The checks of one stream."""

    rules = RULES

    def __init__(self) -> None:
        super().__init__()
        self._started = False
        self._ended_by = ""
        self._number = -1
        self._added = 0
        self._kinds: dict[int, str] = {}  # of open items, by output_index
        self._parts: set[tuple[int, int]] = set()
        self._done = 0

    def frame(self, frame: Frame) -> None:
        if frame.data == b"[DONE]":
            return  # some services end with it; clients ignore it
        if self._ended_by:
            self.breach("after_end", f"nothing may follow {self._ended_by}")
        data = decoded(frame.data)
        if not isinstance(data, dict):
            self.breach("no_json", "the data of a frame must be a JSON object")
            return
        kind = data.get("type")
        if not isinstance(kind, str):
            self.breach("type", "an event must have a type")
            return
        if kind != frame.kind:
            self.breach("event_name", "the event's name must equal its type")
        number = data.get("sequence_number")
        if type(number) is not int or number <= self._number:
            self.breach("sequence_number", "sequence_number must grow with every event")
        else:
            self._number = number
        if not self._started and kind not in ("response.created", "error"):
            if kind.startswith("response."):
                self.breach("no_created", "response.created must be the first event")
                self._started = True  # report it once
            else:
                self.breach("early", "no event may come before response.created")
        self._started = self._started or kind in ("response.created", "error")
        self._event(kind, data)

    def _event(self, kind: str, data: dict[str, Any]) -> None:
        if kind in _STARTS:
            response = data.get("response")
            if not isinstance(response, dict) or not response.get("id"):
                self.breach("response", "a response must have an id")
        elif kind in _ENDS:
            self._ended_by = kind
            self._ended(_ENDS[kind], data.get("response"))
        elif kind == "error":
            self._ended_by = kind
        elif kind == "response.output_item.added":
            self._item_added(data)
        elif kind == "response.output_item.done":
            self._item_done(data)
        elif prefix := next((name for name in _ITEM_KINDS if kind.startswith(name)), ""):
            self._delta(kind, prefix, data)

    def _item_added(self, data: dict[str, Any]) -> None:
        index, item = data.get("output_index"), data.get("item")
        if index != self._added:
            self.breach("output_index", f"output_index must be {self._added}, not {index}")
        kind = item.get("type") if isinstance(item, dict) else None
        if not isinstance(kind, str):
            self.breach("item", "an item must have a type")
        self._kinds[index if type(index) is int else self._added] = str(kind)
        self._added += 1

    def _item_done(self, data: dict[str, Any]) -> None:
        item = data.get("item")
        kind = item.get("type") if isinstance(item, dict) else None
        if not isinstance(item, dict) or not isinstance(kind, str):
            self.breach("item", "an item must have a type")
            return
        added = self._kinds.pop(self._index_of(data, kind), None)
        if added is None:
            self.breach("item_not_open", f"the {kind} item is done, but was not added")
        elif added != kind:
            self.breach("item_kind", f"the item was added as a {added}")
        self._done += 1
        for name in _CALL_FIELDS.get(kind, ()):
            if not isinstance(item.get(name), str):
                self.breach("item_field", f"a {kind} item must have {name}, which is a string")
        if kind == "reasoning" and not isinstance(item.get("summary"), list):
            self.breach("summary", "a reasoning item must have summary, a list")

    def _index_of(self, data: dict[str, Any], kind: str) -> int:
        """Return the index of the item that is done; without an index it is the last open one of its kind."""
        index = _index(data, "output_index")
        if index >= 0:
            return index
        return next((place for place, each in reversed(self._kinds.items()) if each == kind), -1)

    def _delta(self, kind: str, prefix: str, data: dict[str, Any]) -> None:
        if kind.endswith(".delta") and not isinstance(data.get("delta"), str):
            self.breach("delta", "a delta must be a string")
        index, part = _index(data, "output_index"), _index(data, "content_index")
        if index not in self._kinds:
            self.breach("item_not_open", f"the item at output_index {index} is not open")
            return
        if self._kinds[index] != _ITEM_KINDS[prefix] and prefix != "response.content_part.":
            self.breach("item_kind", f"the item at output_index {index} is a {self._kinds[index]}")
        if kind == "response.content_part.added":
            self._parts.add((index, part))
        elif kind.startswith(_IN_PART) and (index, part) not in self._parts:
            self.breach("part_not_added", f"part {part} of item {index} was not added")

    def _ended(self, status: str, response: Any) -> None:
        if not isinstance(response, dict) or not response.get("id"):
            self.breach("response", "a response must have an id")
            return
        if response.get("status") != status:
            self.breach("status", f"the status must be {status}")
        output = response.get("output")
        if not isinstance(output, list) or (status != "failed" and len(output) != self._done):
            self.breach("output", "the last event must list all items that are done")
        if status == "failed":
            error = response.get("error")
            if not isinstance(error, dict) or not (error.get("code") and error.get("message")):
                self.breach("error", "a failed response must have an error with a code and a message")
        for found in _usage(response.get("usage")):
            self.breach(*found)

    def end(self) -> None:
        if not self._ended_by:
            self.breach("no_end", "a stream must end with response.completed, incomplete or failed")
        if self._ended_by == "response.completed":
            for kind in self._kinds.values():
                rule = "open_call" if kind in _CALL_FIELDS else "open_item"
                self.breach(rule, f"the {kind} item was still open when the stream ended")


def _index(data: dict[str, Any], name: str) -> int:
    value = data.get(name)
    return value if type(value) is int else -1


def _usage(usage: Any) -> _Found:
    if usage is None:
        return
    if not isinstance(usage, dict) or any(
        type(usage.get(name)) is not int for name in ("input_tokens", "output_tokens", "total_tokens")
    ):
        yield "usage", "usage must have input_tokens, output_tokens and total_tokens"
        return
    for name, counts in _DETAILS.items():
        details = usage.get(name)
        if not isinstance(details, dict) or any(type(details.get(count)) is not int for count in counts):
            yield "usage_details", f"usage must have {name} with {', '.join(counts)}"

"""What the service refuses in a request, read from raw JSON and independent of our own readers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dragoman.dialects.base import Call
from dragoman.dialects.kit.lint import Found
from dragoman.dialects.kit.openai_rules import (
    effort_rules,
    is_name,
    knob_rules,
    name_rules,
    parameter_rules,
    part_rules,
)
from dragoman.dialects.openai.rule_table import RULES
from dragoman.dialects.rulebook import Breach

_LONGEST_ID = 64
_MOST_TOOLS = 128
_ROLES = {"developer", "system", "user", "assistant", "tool", "function"}
_PARTS = {
    "developer": {"text"},
    "system": {"text"},
    "tool": {"text"},
    "function": {"text"},
    "assistant": {"text", "refusal"},
    "user": {"text", "image_url", "input_audio", "file"},
}
_RANGES = {"temperature": (0, 2), "top_p": (0, 1), "frequency_penalty": (-2, 2), "presence_penalty": (-2, 2)}


def breaches(call: Call) -> Sequence[Breach]:
    """Everything the request breaks, in the order of the payload."""
    body = call.body
    if not isinstance(body, dict):
        return (RULES.breach("body.shape", ""),)
    return tuple(RULES.breach(rule, at, detail) for rule, at, detail in _all(body, call.stream))


def _all(body: dict[str, Any], stream: bool) -> Found:
    messages = body.get("messages")
    if not isinstance(messages, list):
        yield "messages.missing", "messages", "messages is an array"
    elif not messages:
        yield "messages.empty", "messages", "there is at least one message"
    else:
        for index, message in enumerate(messages):
            yield from _message(message, f"messages[{index}]")
        yield from _pairing([message if isinstance(message, dict) else {} for message in messages])
    yield from _tools(body)
    yield from _choice(body)
    yield from _settings(body, stream)
    yield from _format(body.get("response_format"))


# --- messages


def _message(message: Any, at: str) -> Found:
    if not isinstance(message, dict):
        yield "message.shape", at, "a message is an object"
        return
    role = message.get("role")
    if not isinstance(role, str):
        yield "message.role", f"{at}.role", "a message has a role, a string"
        return
    if role not in _ROLES:
        yield "message.role_unknown", f"{at}.role", f"{role!r} is none of " + ", ".join(sorted(_ROLES))
        return
    yield from _content(message, role, at)
    if role == "assistant":
        yield from _calls(message, at)
    if role == "function" and not message.get("name"):
        yield "message.name", f"{at}.name", "a function message names its function"


def _content(message: dict[str, Any], role: str, at: str) -> Found:
    content = message.get("content")
    if isinstance(content, list):
        if not content:
            yield "message.empty_parts", f"{at}.content", "a list of parts has at least one"
        yield from part_rules(content, role, at, _PARTS)
    elif content is None:
        others = ("tool_calls", "function_call", "refusal", "audio") if role == "assistant" else ()
        if not any(message.get(name) for name in others):
            yield "message.no_content", f"{at}.content", f"a message of the role {role} has content"
    elif not isinstance(content, str):
        yield "message.content", f"{at}.content", "content is a string or a list of parts"


def _calls(message: dict[str, Any], at: str) -> Found:
    calls = message.get("tool_calls")
    if calls is None:
        return
    if not isinstance(calls, list) or not calls:
        yield "call.none", f"{at}.tool_calls", "tool_calls, if there, holds at least one call"
        return
    seen: set[str] = set()
    for index, call in enumerate(calls):
        place = f"{at}.tool_calls[{index}]"
        if not isinstance(call, dict):
            yield "call.shape", place, "a call is an object"
            continue
        call_id = call.get("id")
        if not isinstance(call_id, str) or not call_id:
            yield "call.id", f"{place}.id", "a call has an id"
        elif len(call_id) > _LONGEST_ID:
            yield "call.id_length", f"{place}.id", f"an id has at most {_LONGEST_ID} characters"
        elif call_id in seen:
            yield "call.duplicate_id", f"{place}.id", "the ids of a message differ"
        seen.add(str(call_id))
        yield from _call(call, place)


def _call(call: dict[str, Any], at: str) -> Found:
    kind = call.get("type")
    if kind not in ("function", "custom"):
        yield "call.type", f"{at}.type", "the type is function or custom"
        if isinstance(kind, str) and kind:
            return
        kind = "custom" if "custom" in call else "function"
    inner = call.get(kind)
    inner = inner if isinstance(inner, dict) else {}
    yield from name_rules(inner.get("name"), "call", f"{at}.{kind}.name")
    words = "input" if kind == "custom" else "arguments"
    if not isinstance(inner.get(words), str):
        yield "call.arguments", f"{at}.{kind}.{words}", f"{words} is a string"


def _pairing(messages: Sequence[dict[str, Any]]) -> Found:
    """Tool messages directly follow the message whose calls they answer, one for each."""
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
                yield "tool.answered_twice", f"{at}.tool_call_id", "a call is answered once"
            else:
                yield "tool.unknown_call", f"{at}.tool_call_id", "a tool message answers a call of the message before"
            continue
        yield from _unanswered(open_calls)
        answered, open_calls = set(), {}
        calls = message.get("tool_calls") if role == "assistant" else None
        for position, call in enumerate(calls if isinstance(calls, list) else ()):
            if isinstance(call, dict):
                open_calls[str(call.get("id"))] = f"{at}.tool_calls[{position}]"
    yield from _unanswered(open_calls)


def _unanswered(calls: dict[str, str]) -> Found:
    for place in calls.values():
        yield "tool.unanswered_call", place, "every call is answered before the next message"


# --- tools


def _tools(body: dict[str, Any]) -> Found:
    tools = body.get("tools")
    if tools is None:
        return
    if not isinstance(tools, list):
        yield "tools.shape", "tools", "tools is an array"
        return
    if not tools:
        yield "tools.empty", "tools", "tools, if there, holds at least one tool"
    if len(tools) > _MOST_TOOLS:
        yield "tools.limit", "tools", f"there are at most {_MOST_TOOLS} tools"
    seen: set[str] = set()
    for index, tool in enumerate(tools):
        at = f"tools[{index}]"
        if not isinstance(tool, dict):
            yield "tools.shape", at, "a tool is an object"
            continue
        kind, name, inner = _named(tool)
        if not isinstance(tool.get("type"), str):
            yield "tools.type", f"{at}.type", "a tool has a type"
        if kind not in ("function", "custom"):
            continue
        yield from name_rules(name, "tools", f"{at}.{kind}.name")
        if isinstance(name, str) and name in seen:
            yield "tools.duplicate", f"{at}.{kind}.name", "no two tools have one name"
        seen.add(str(name))
        yield from parameter_rules(kind, inner, f"{at}.function")


def _named(tool: Any) -> tuple[Any, Any, dict[str, Any]]:
    """Return kind, name and definition of a tool; one without a type is a function, and may be flat."""
    tool = tool if isinstance(tool, dict) else {}
    kind = tool.get("type") or "function"
    inner = tool.get(kind) if isinstance(kind, str) else None
    inner = inner if isinstance(inner, dict) else {} if "type" in tool else tool
    return kind, inner.get("name"), inner


def _choice(body: dict[str, Any]) -> Found:
    tools, choice = body.get("tools"), body.get("tool_choice")
    names = {str(_named(tool)[1]) for tool in tools if isinstance(tool, dict)} if isinstance(tools, list) else set()
    if not tools and body.get("parallel_tool_calls") is not None:
        yield "parallel.without_tools", "parallel_tool_calls", "the flag needs tools"
    if choice is None:
        return
    if not tools and choice != "none":
        yield "tool_choice.without_tools", "tool_choice", "a choice needs tools"
    wanted: list[Any] = []
    match choice:
        case "none" | "auto" | "required" | "any":
            pass
        case {"type": "allowed_tools", "allowed_tools": {"mode": "auto" | "required", "tools": list(allowed)}}:
            wanted = allowed
        case {"type": "function" | "custom"}:
            wanted = [choice]
        case _:
            yield "tool_choice.shape", "tool_choice", "none, auto, required, a tool, or allowed_tools"
    for tool in wanted:
        if str(_named(tool)[1]) not in names:
            yield "tool_choice.unknown_tool", "tool_choice", f"there is no tool {_named(tool)[1]!r}"


# --- settings


def _settings(body: dict[str, Any], stream: bool) -> Found:
    yield from knob_rules(body, _RANGES)
    n = body.get("n")
    if n is not None and not (type(n) is int and 1 <= n <= 128):
        yield "n.range", "n", "n is a whole number from 1 to 128"
    stop = body.get("stop")
    stops = stop if isinstance(stop, list) else [] if stop is None else [stop]
    if len(stops) > 4 or not all(isinstance(each, str) and each for each in stops):
        yield "stop.shape", "stop", "stop is a string or up to four"
    for name in ("max_tokens", "max_completion_tokens"):
        value = body.get(name)
        if value is not None and type(value) is not int:
            yield "max_tokens.type", name, f"{name} is a whole number"
        elif value is not None and value < 1:
            yield "max_tokens.range", name, f"{name} is a whole number above 0"
    if body.get("max_tokens") is not None and body.get("max_completion_tokens") is not None:
        yield "max_tokens.both", "max_tokens", "max_tokens and max_completion_tokens exclude each other"
    yield from effort_rules(body.get("reasoning_effort"), "reasoning_effort")
    if body.get("stream_options") is not None and not stream:
        yield "stream_options.without_stream", "stream_options", "stream_options needs stream"
    if body.get("top_logprobs") is not None and body.get("logprobs") is not True:
        yield "top_logprobs.without_logprobs", "top_logprobs", "top_logprobs needs logprobs"


def _format(form: Any) -> Found:
    match form:
        case None | {"type": "text"} | {"type": "json_object"}:
            return
        case {"type": "json_schema", "json_schema": {"name": str(name)} as inner}:
            if not is_name(name):
                place = "response_format.json_schema.name"
                yield "response_format.name", place, "a name has 1 to 64 of a-z A-Z 0-9 _ -"
            if not isinstance(inner.get("schema", {}), dict):
                yield "response_format.schema", "response_format.json_schema.schema", "schema is an object"
        case _:
            yield "response_format.shape", "response_format", "text, json_object, or json_schema with a name"

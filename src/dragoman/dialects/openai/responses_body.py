"""A Responses body on Chat's path, as Cursor's agent mode sends it, written as a Chat body.

Its client reads the answer as Chat's. Only names and nesting change here; what Chat has no field for is left out, and
the caller's list of oddities tells it.
"""

from __future__ import annotations

from collections.abc import Callable

from dragoman.dialects.openai.parts import JsonObject, flat_text
from dragoman.errors import MalformedRequest
from dragoman.model.filter import Action
from dragoman.wire.fields import Fields, describe
from dragoman.wire.jsonio import Json

RULE = "openai.responses_body"
Oddities = list[tuple[str, Action, str, str]]  # rule, action, place, sentence

_RENAMED = {"max_output_tokens": "max_completion_tokens"}
_UNKNOWN = ("truncation", "max_tool_calls", "background", "prompt")  # to Chat
_STATE = ("previous_response_id", "conversation")
_TEXTS = ("input_text", "output_text", "text")


def is_responses_body(body: Json) -> bool:
    return isinstance(body, dict) and not body.get("messages") and isinstance(body.get("input"), list | str)


def chat_body(body: JsonObject, odd: Oddities) -> JsonObject:
    """Return the same request as Chat says it. Raises MalformedRequest, naming the place."""
    odd.append((RULE, "changed", "input", "the request is read as one of Responses, and answered as one of Chat"))
    fields = {_RENAMED.get(name, name): value for name, value in body.items()}
    for name in _STATE:
        if fields.pop(name, None) is not None:
            raise MalformedRequest("Chat has no earlier response to go on from", at=name)
    _settings(fields, odd)
    messages: list[JsonObject] = []
    instructions = fields.pop("instructions", None)
    if instructions is not None:
        messages.append({"role": "system", "content": instructions})
    given = fields.pop("input")
    items: list[Json] = [{"role": "user", "content": given}] if isinstance(given, str) else _list(given)
    for index, item in enumerate(items):
        _add(messages, Fields(item, f"input[{index}]"), odd)
    return {**fields, "messages": list(messages)}


def _list(value: Json) -> list[Json]:
    return value if isinstance(value, list) else []


def _settings(fields: JsonObject, odd: Oddities) -> None:
    fields.pop("messages", None)
    include = [each for each in _list(fields.pop("include", None)) if each != "reasoning.encrypted_content"]
    lost = [f"include[{each}]" for each in include]
    lost += [name for name in _UNKNOWN if fields.pop(name, None) not in (None, False, "disabled")]
    reasoning, text = fields.pop("reasoning", None), fields.pop("text", None)
    if isinstance(reasoning, dict):
        if reasoning.get("effort") is not None:
            fields["reasoning_effort"] = reasoning["effort"]
        lost += [f"reasoning.{name}" for name, value in reasoning.items() if name != "effort" and value is not None]
    if isinstance(text, dict):
        if text.get("verbosity") is not None:
            fields["verbosity"] = text["verbosity"]
        if isinstance(form := text.get("format"), dict):
            fields["response_format"] = _format(form)
        lost += [f"text.{name}" for name in text if name not in ("verbosity", "format")]
    odd.extend((RULE, "dropped", place, "Chat has no such field") for place in lost)


def _format(form: JsonObject) -> Json:
    if form.get("type") != "json_schema":
        return form
    return {"type": "json_schema", "json_schema": {name: value for name, value in form.items() if name != "type"}}


def _add(messages: list[JsonObject], item: Fields, odd: Oddities) -> None:
    kind = item.peek("type")
    if kind is None and item.has("role"):
        kind = "message"
    if not isinstance(kind, str):
        item.fail("type", f"expected a string, got {describe(kind)}")
    add = _ADDING.get(kind)
    if add is None:
        odd.append((RULE, "dropped", item.at, f"Chat has no {kind} items"))
    else:
        add(messages, item)


def _message(messages: list[JsonObject], item: Fields) -> None:
    role, content = item.text("role"), item.any("content")
    if role == "assistant" and (said := _open_answer(messages)) and "tool_calls" not in said and not said["content"]:
        said["content"] = _content(content)
        return
    messages.append({"role": role, "content": _content(content)})


def _content(content: Json) -> Json:
    return [_part(part) for part in content] if isinstance(content, list) else content


def _part(part: Json) -> Json:
    match part:
        case {"type": kind, "text": str(text)} if kind in _TEXTS:
            return {"type": "text", "text": text}
        case {"type": "input_image", "image_url": str(url), "detail": str(detail)}:
            return {"type": "image_url", "image_url": {"url": url, "detail": detail}}
        case {"type": "input_image", "image_url": str(url)}:
            return {"type": "image_url", "image_url": {"url": url}}
        case {"type": "input_file"} if isinstance(part, dict):
            named = {"file_url": "file_data"}
            inner: JsonObject = {named.get(name, name): value for name, value in part.items() if name != "type"}
            return {"type": "file", "file": inner}
        case _:
            return part


def _open_answer(messages: list[JsonObject]) -> JsonObject | None:
    """The assistant's message that goes on: items of one answer are one message here."""
    return messages[-1] if messages and messages[-1].get("role") == "assistant" else None


def _answer(messages: list[JsonObject]) -> JsonObject:
    said = _open_answer(messages)
    if said is None:
        said = {"role": "assistant", "content": None}
        messages.append(said)
    return said


def _call(messages: list[JsonObject], item: Fields) -> None:
    kind, words = ("custom", "input") if item.peek("type") == "custom_tool_call" else ("function", "arguments")
    inner: Json = {"name": item.any("name"), words: item.any(words)}
    call: Json = {"id": item.text("call_id"), "type": kind, kind: inner}
    said = _answer(messages)
    said["tool_calls"] = [*_list(said.get("tool_calls")), call]


def _output(messages: list[JsonObject], item: Fields) -> None:
    messages.append({"role": "tool", "tool_call_id": item.text("call_id"), "content": _content(item.any("output"))})


def _reasoning(messages: list[JsonObject], item: Fields) -> None:
    """Its words; sealed reasoning of Responses says nothing to a Chat upstream."""
    words = flat_text(item.any("summary")) or flat_text(item.any("content"))
    if words:
        messages.append({"role": "assistant", "content": None, "reasoning_content": words})


_ADDING: dict[str, Callable[[list[JsonObject], Fields], None]] = {
    "message": _message,
    "function_call": _call,
    "custom_tool_call": _call,
    "function_call_output": _output,
    "custom_tool_call_output": _output,
    "reasoning": _reasoning,
}

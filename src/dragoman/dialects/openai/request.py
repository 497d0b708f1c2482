"""Parse and render requests of Chat Completions; also a Responses body that is sent to Chat's path. Pure."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import structs

from dragoman.dialects.base import ApiRequest
from dragoman.dialects.kit.openai_requests import (
    effort_from_thinking,
    parse_schema,
    render_schema,
    take_user,
    thinking_from_effort,
)
from dragoman.dialects.kit.settings import guard_depth, take_choices, take_max_tokens, take_sampling, take_stops
from dragoman.dialects.kit.values import items
from dragoman.dialects.openai.blocks import API_NAME, EXTRAS, MAX_TOKENS_FIELDS, OpenaiSettings, flat_text
from dragoman.dialects.openai.messages import MessageParser, render_messages, split_leading_system
from dragoman.dialects.openai.tools import ShapeNotes, parse_choice, parse_tools, render_choice, render_tool
from dragoman.dialects.openai.web_search import find_form, request_fields, requested_search, written_tools
from dragoman.errors import MalformedRequest, Unrepresentable
from dragoman.model.conversation import OTHER_SHAPES, Conversation, Output, to_canonical, to_extra_names
from dragoman.wire.fields import Fields, describe
from dragoman.wire.jsonio import Json, JsonObject

SAMPLING_FIELDS = {name: name for name in ("temperature", "top_p", "frequency_penalty", "presence_penalty", "seed")}
# Known fields that only Chat has. Null means absent there.
_NULLABLE = (
    "audio", "function_call", "functions", "logit_bias", "logprobs", "max_completion_tokens", "max_tokens", "metadata",
    "modalities", "moderation", "prediction", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention",
    "safety_identifier", "service_tier", "store", "stream_options", "tool_choice", "top_logprobs", "user", "verbosity",
    "web_search_options",
)  # fmt: skip


@guard_depth(MalformedRequest)
def parse_request(settings: OpenaiSettings, call: ApiRequest) -> Conversation:
    """Parse a request body into a conversation. Raises MalformedRequest with the path of the wrong field."""
    notes: ShapeNotes = []
    body = call.body
    if isinstance(body, dict) and not body.get("messages") and isinstance(body.get("input"), list | str):
        body = chat_body(body, notes)
    fields = Fields(body)
    parser = MessageParser(settings)
    system, messages = split_leading_system(parser.messages(fields.objects("messages")))
    extra_fields: JsonObject = {}
    limit = next((name for name in MAX_TOKENS_FIELDS if fields.peek(name) is not None), settings.max_tokens_field)
    if limit != settings.max_tokens_field:
        extra_fields["~max_tokens"] = limit
    max_tokens = take_max_tokens(fields, limit)
    user = take_user(fields, extra_fields)
    tool_choice, unknown = parse_choice(fields, notes)
    extra_fields |= unknown
    if fields.peek("functions") and not fields.peek("tools"):
        extra_fields["~older"] = True  # the client reads `function_call` and not `tool_calls`
    tools = (*parse_tools(fields, notes), *requested_search(fields.peek("web_search_options")))
    if notes:
        extra_fields[OTHER_SHAPES] = [list(each) for each in notes]
    conversation = Conversation(
        model=call.model,
        messages=tuple(messages),
        system=tuple(system),
        tools=tools,
        tool_choice=tool_choice,
        output=_output(fields, extra_fields),
        thinking=thinking_from_effort(fields.text("reasoning_effort", "")),
        max_tokens=max_tokens,
        stop=take_stops(fields, "stop"),
        sampling=take_sampling(fields, {**SAMPLING_FIELDS, **{name: name for name in settings.more_sampling}}),
        choices=take_choices(fields, "n"),
        stream=call.stream,
        user=user,
    )
    rest = {name: value for name, value in fields.rest().items() if value is not None or name not in _NULLABLE}
    return to_canonical(structs.replace(conversation, extra=EXTRAS.extra_of({**to_extra_names(rest), **extra_fields})))


def _output(fields: Fields, extra_fields: JsonObject) -> Output:
    value = fields.any("response_format")
    if value is None:
        return Output()
    form = Fields(value, "response_format")
    match form.any("type"):
        case "text":
            return Output(extra=EXTRAS.extra(form))
        case "json_object":
            return Output("json", extra=EXTRAS.extra(form))
        case "json_schema":
            inner = form.child("json_schema")
            output = parse_schema(inner)
            inside, rest = inner.rest(), to_extra_names(form.rest())
            return structs.replace(output, extra=EXTRAS.extra_of({**rest, "json_schema": inside} if inside else rest))
        case str():
            extra_fields["response_format"] = value
            return Output()
        case _:
            raise form.blame("expected one of text, json_object, json_schema", at=form.path("type"))


# --- canonical to wire


def render_request(settings: OpenaiSettings, conversation: Conversation) -> ApiRequest:
    """Write a conversation as a request body. Raises Unrepresentable for content that Chat cannot express."""
    if conversation.previous_id is not None:
        raise Unrepresentable(
            "Chat cannot continue a stored response; send the whole conversation without previous_response_id",
            at="previous_response_id",
        )
    own = EXTRAS.own_fields(conversation.extra)
    body: dict[str, Json] = {"messages": render_messages(conversation.system, conversation.messages, settings)}
    form = find_form(settings.web_search, conversation.model)
    if tools := written_tools(conversation.tools, form):
        body["tools"] = list(map(render_tool, tools))
    body |= request_fields(conversation.tools, form)
    body |= render_choice(conversation)
    body |= _render_output(conversation.output)
    if effort := effort_from_thinking(conversation.thinking, API_NAME):
        body["reasoning_effort"] = effort
    if conversation.max_tokens is not None:
        body[str(own.get("~max_tokens", settings.max_tokens_field))] = conversation.max_tokens
    if conversation.stop:
        body["stop"] = list(conversation.stop)
    body |= conversation.sampling
    if conversation.choices != 1:
        body["n"] = conversation.choices
    if conversation.user:
        body[str(own.get("~user", "user"))] = conversation.user
    body = {**EXTRAS.wire_fields(conversation.extra), **body}
    return ApiRequest("generate", conversation.model, conversation.stream, body)


def _render_output(output: Output) -> JsonObject:
    fields = EXTRAS.wire_fields(output.extra)
    match output.kind:
        case "text":
            return {"response_format": {"type": "text", **fields}} if fields else {}
        case "json":
            return {"response_format": {"type": "json_object", **fields}}
        case "schema":
            inside = fields.pop("json_schema", {})
            inner = render_schema(output) | (inside if isinstance(inside, dict) else {})
            return {"response_format": {"type": "json_schema", "json_schema": inner, **fields}}


# --- a Responses body on Chat's path, as Cursor's agent mode sends it, converted to a Chat body
#
# Such a client expects a Chat response. Only names and nesting change here. Fields that Chat does not have are dropped,
# and each gets a note.

RULE = "openai.responses_body"

_RENAMED = {"max_output_tokens": "max_completion_tokens"}
_UNKNOWN = ("truncation", "max_tool_calls", "background", "prompt")  # fields that Chat does not have
_STATE = ("previous_response_id", "conversation")
_TEXTS = ("input_text", "output_text", "text")


def chat_body(body: JsonObject, notes: ShapeNotes) -> JsonObject:
    """Convert a Responses body to a Chat body. Raises MalformedRequest with the path of the wrong field."""
    notes.append((RULE, "changed", "input", "the body is read as a Responses request; the response is one of Chat"))
    fields = {_RENAMED.get(name, name): value for name, value in body.items()}
    for name in _STATE:
        if fields.pop(name, None) is not None:
            raise MalformedRequest(
                f"Chat cannot continue a stored response; send the whole conversation without {name}", at=name
            )
    _convert_settings(fields, notes)
    messages: list[JsonObject] = []
    instructions = fields.pop("instructions", None)
    if instructions is not None:
        messages.append({"role": "system", "content": instructions})
    value = fields.pop("input")
    turns: list[Json] = [{"role": "user", "content": value}] if isinstance(value, str) else items(value)
    for index, item in enumerate(turns):
        _add(messages, Fields(item, f"input[{index}]"), notes)
    return {**fields, "messages": list(messages)}


def _convert_settings(fields: JsonObject, notes: ShapeNotes) -> None:
    fields.pop("messages", None)
    include = [each for each in items(fields.pop("include", None)) if each != "reasoning.encrypted_content"]
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
            inner: JsonObject = {name: value for name, value in form.items() if name != "type"}
            is_schema = form.get("type") == "json_schema"
            fields["response_format"] = {"type": "json_schema", "json_schema": inner} if is_schema else form
        lost += [f"text.{name}" for name in text if name not in ("verbosity", "format")]
    notes.extend((RULE, "dropped", place, "Chat does not have this field") for place in lost)


def _add(messages: list[JsonObject], item: Fields, notes: ShapeNotes) -> None:
    kind = item.peek("type")
    if kind is None and item.has("role"):
        kind = "message"
    if not isinstance(kind, str):
        item.fail("type", f"expected a string, got {describe(kind)}")
    add = _ADD.get(kind)
    if add is None:
        notes.append((RULE, "dropped", item.at, f"Chat does not have {kind} items"))
    else:
        add(messages, item)


def _add_message(messages: list[JsonObject], item: Fields) -> None:
    role, content = item.text("role"), item.any("content")
    if role == "assistant" and (reply := _open_reply(messages)) and "tool_calls" not in reply and not reply["content"]:
        reply["content"] = _chat_content(content)
        return
    messages.append({"role": role, "content": _chat_content(content)})


def _chat_content(content: Json) -> Json:
    return [_chat_part(part) for part in content] if isinstance(content, list) else content


def _chat_part(part: Json) -> Json:
    match part:
        case {"type": kind, "text": str(text)} if kind in _TEXTS:
            return {"type": "text", "text": text}
        case {"type": "input_image", "image_url": str(url), "detail": str(detail)}:
            return {"type": "image_url", "image_url": {"url": url, "detail": detail}}
        case {"type": "input_image", "image_url": str(url)}:
            return {"type": "image_url", "image_url": {"url": url}}
        case {"type": "input_file"} if isinstance(part, dict):
            renamed = {"file_url": "file_data"}
            inner: JsonObject = {renamed.get(name, name): value for name, value in part.items() if name != "type"}
            return {"type": "file", "file": inner}
        case _:
            return part


def _open_reply(messages: list[JsonObject]) -> JsonObject | None:
    """Return the last message if it is an assistant's: the items of one reply become one Chat message."""
    return messages[-1] if messages and messages[-1].get("role") == "assistant" else None


def _reply(messages: list[JsonObject]) -> JsonObject:
    reply = _open_reply(messages)
    if reply is None:
        reply = {"role": "assistant", "content": None}
        messages.append(reply)
    return reply


def _add_call(messages: list[JsonObject], item: Fields) -> None:
    kind, text_field = ("custom", "input") if item.peek("type") == "custom_tool_call" else ("function", "arguments")
    inner: Json = {"name": item.any("name"), text_field: item.any(text_field)}
    call: Json = {"id": item.text("call_id"), "type": kind, kind: inner}
    reply = _reply(messages)
    reply["tool_calls"] = [*items(reply.get("tool_calls")), call]


def _add_output(messages: list[JsonObject], item: Fields) -> None:
    messages.append(
        {"role": "tool", "tool_call_id": item.text("call_id"), "content": _chat_content(item.any("output"))}
    )


def _add_reasoning(messages: list[JsonObject], item: Fields) -> None:
    """Add the text of reasoning. A Chat upstream cannot read the encrypted reasoning of Responses."""
    text = flat_text(item.any("summary")) or flat_text(item.any("content"))
    if text:
        messages.append({"role": "assistant", "content": None, "reasoning_content": text})


_ADD: dict[str, Callable[[list[JsonObject], Fields], None]] = {
    "message": _add_message,
    "function_call": _add_call,
    "custom_tool_call": _add_call,
    "function_call_output": _add_output,
    "custom_tool_call_output": _add_output,
    "reasoning": _add_reasoning,
}

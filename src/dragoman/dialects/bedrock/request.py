"""Requests, both directions: the body of Converse and ConverseStream and a conversation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import structs

from dragoman.dialects.base import Call
from dragoman.dialects.bedrock.blocks import (
    parse_answer,
    parse_block,
    parse_content,
    render_content,
    render_text,
)
from dragoman.dialects.bedrock.nodes import (
    Vendor,
    extra,
    extra_of,
    own_data,
    render_mark,
    take_mark,
    with_extra,
)
from dragoman.dialects.bedrock.tools import parse_choice, parse_tools, render_choice, render_free_choice, render_tools
from dragoman.dialects.kit.settings import guards_depth, take_knobs
from dragoman.errors import MalformedRequest, Unrepresentable
from dragoman.model.blocks import Extra, Opaque, Text, Where
from dragoman.model.conversation import (
    Conversation,
    Held,
    Message,
    Output,
    Role,
    Thinking,
    ToolChoice,
    canonical,
    to_keep,
)
from dragoman.wire import jsonio
from dragoman.wire.fields import Fields
from dragoman.wire.jsonio import Json

_NO_PROMPTS = (
    "the prompt that the variables are for is held by Bedrock, and this upstream does not have it; send its text in"
    " `system` and `messages`"
)
_ROLES: dict[str, Role] = {"user": "user", "assistant": "assistant", "system": "system"}

# --- reading


@guards_depth(MalformedRequest)
def parse_request(call: Call, vendor: Vendor) -> Conversation:
    """Read a request. Raises MalformedRequest, naming the place."""
    fields = Fields(call.body)
    settings = Settings(fields, vendor)
    messages = tuple(map(_message, fields.children("messages", [])))
    system = _system(fields.children("system", []))
    config = fields.maybe_child("toolConfig")
    fields.any("toolConfig")
    tools = parse_tools(config) if config else ()
    choice = parse_choice(config, settings.free, vendor)
    settings.keep("toolConfig", config)
    held = (Held("promptVariables", "promptVariables", _NO_PROMPTS),) if fields.peek("promptVariables") else ()
    conversation = Conversation(
        call.model,
        messages,
        system=system,
        tools=tools,
        tool_choice=choice,
        output=settings.output,
        thinking=settings.thinking,
        max_tokens=settings.max_tokens,
        stop=settings.stop,
        knobs=settings.knobs,
        stream=call.stream,
        user=settings.user,
        held=held,
        extra=extra_of(to_keep(fields.rest()) | settings.leftovers()),
    )
    return canonical(conversation)


def _message(fields: Fields) -> Message:
    role = _ROLES.get(fields.text("role").lower())
    if role is None:
        fields.fail("role", "expected user, assistant or system")
    read = parse_answer if role == "assistant" else parse_content
    blocks = read(fields.any("content"), fields.path("content"), fields.blame)
    return Message(role, blocks, extra=extra(fields), at=Where(fields.at))


def _system(items: Iterable[Fields]) -> tuple[Text, ...]:
    texts: list[Text] = []
    for fields in items:
        mark = take_mark(fields)
        if mark is not None and texts and texts[-1].cache is None:
            texts[-1] = structs.replace(texts[-1], cache=mark)
            continue
        block = parse_block(fields)
        if isinstance(block, Opaque):  # it keeps its place as a text that says nothing: this list holds nothing else
            block = Text("", extra=extra_of(to_keep(own_data(block, MalformedRequest))), at=block.at)
        elif not isinstance(block, Text):
            raise MalformedRequest("expected text: a system prompt holds nothing else", at=block.at.path)
        texts.append(block)
    return tuple(texts)


# --- rendering


@guards_depth(Unrepresentable)
def render_request(conversation: Conversation, vendor: Vendor) -> Call:
    """Say a conversation that fits. Raises Unrepresentable for what this dialect cannot say."""
    if conversation.choices != 1:
        raise Unrepresentable("one request gets one answer here", at="n")
    if conversation.previous is not None:
        raise Unrepresentable("no conversation is kept here to go on with", at="previous_response_id")
    body: dict[str, Json] = {}
    if conversation.system:
        body["system"] = _render_system(conversation.system)
    body["messages"] = [
        with_extra({"role": message.role, "content": render_content(message.blocks)}, message.extra)
        for message in conversation.messages
    ]
    choice = render_choice(conversation.tool_choice)
    if conversation.tools:
        body["toolConfig"] = {"tools": render_tools(conversation.tools), **choice}
    elif conversation.tool_choice != ToolChoice():
        raise Unrepresentable("there are no tools to choose from", at="tool_choice")
    body |= render_settings(conversation, vendor)
    return Call("generate", conversation.model, conversation.stream, with_extra(body, conversation.extra))


def _render_system(system: Sequence[Text]) -> list[Json]:
    blocks: list[Json] = []
    for text in system:
        body = render_text(text, Unrepresentable)
        if not text.text and len(body) > 1:
            del body["text"]  # it stands for a block that is no text
        blocks += [body, render_mark(text.cache)] if text.cache else [body]
    return blocks


# --- settings, both directions: inferenceConfig, outputConfig, and what a vendor takes besides

FREE = "additionalModelRequestFields"
USER = "user_id"

_THINKING = {"enabled": "on", "disabled": "off", "adaptive": "adaptive"}
_THINKING_TYPES = {mode: name for name, mode in _THINKING.items()}
_DISPLAYS = {"summarized": True, "omitted": False}


class Settings:
    """What a request's body says about the answer, read once; `rest` is what of it we do not know."""

    def __init__(self, fields: Fields, vendor: Vendor) -> None:
        self._vendor = vendor
        self.rest: dict[str, Json] = {}
        free = fields.peek(FREE)
        self.free: dict[str, Json] = {}
        if isinstance(free, dict):  # copied, so that taking from it changes nothing of the client's
            self.free |= {name: {**each} if isinstance(each, dict) else each for name, each in free.items()}
        if isinstance(free, dict) or free is None:
            fields.any(FREE)
        self.knobs: dict[str, float] = {}
        self.max_tokens, self.stop = self._inference(fields)
        output = fields.maybe_child("outputConfig")
        self.output = self._output(output) if output else Output()
        effort = self._effort(output)
        self.keep("outputConfig", output)
        self.thinking = self._thinking(effort)
        self.user = self._user(fields)

    def leftovers(self) -> dict[str, Json]:
        """All that was read and not understood, under the names it came with."""
        return self.rest | ({FREE: self.free} if self.free else {})

    def keep(self, name: str, fields: Fields | None) -> None:
        """Keep the fields of an object of the body that were not read."""
        if fields is not None and (rest := fields.rest()):
            self.rest[name] = rest

    def _inference(self, fields: Fields) -> tuple[int | None, tuple[str, ...]]:
        limit: int | None = None
        stops: tuple[str, ...] = ()
        if config := fields.maybe_child("inferenceConfig"):
            limit, stops = config.integer("maxTokens", None), config.strings("stopSequences", ())
            self.knobs |= take_knobs(config, {"temperature": "temperature", "top_p": "topP"})
            self.keep("inferenceConfig", config)
        fields.any("inferenceConfig")
        top_k = _taken(self.free, self._vendor.top_k, (int, float))
        if isinstance(top_k, int | float):
            self.knobs["top_k"] = top_k
        return limit, stops

    def _output(self, config: Fields) -> Output:
        """The schema asked for; a form of an unknown type stays among the unknown fields."""
        form = config.peek("textFormat")
        if not isinstance(form, dict) or form.get("type") != "json_schema":
            return Output()
        inner = config.child("textFormat")
        inner.any("type")
        structure = inner.child("structure")
        schema = structure.child("jsonSchema")
        said = _schema(schema)
        name, kept = schema.text("name", ""), schema.rest()
        more = structure.rest() | ({"jsonSchema": kept} if kept else {})
        rest = to_keep(inner.rest()) | ({"structure": more} if more else {})
        return Output("schema", name, said, extra=Extra("bedrock", rest) if rest else None)

    def _effort(self, output: Fields | None) -> str:
        where = self._vendor.effort
        if where[:1] == ("outputConfig",):
            return output.text(where[1], "") if output else ""
        said = _taken(self.free, where[1:], (str,)) if where else None
        return said if isinstance(said, str) else ""

    def _thinking(self, effort: str) -> Thinking:
        said = self.free.get("thinking")
        if not self._vendor.claude_fields or not isinstance(said, dict):
            return Thinking(effort=effort)
        mode, budget, display = _THINKING.get(str(said.get("type"))), said.get("budget_tokens"), said.get("display")
        known = {"type", "budget_tokens", "display"} >= said.keys()
        if mode is None or not known or type(budget) not in (int, type(None)) or display not in (None, *_DISPLAYS):
            return Thinking(effort=effort)
        if budget is not None and mode != "on":
            return Thinking(effort=effort)
        del self.free["thinking"]
        show = _DISPLAYS[display] if isinstance(display, str) else None
        return Thinking(mode, effort, budget if isinstance(budget, int) else None, show)  # type: ignore[arg-type]

    def _user(self, fields: Fields) -> str:
        metadata = fields.maybe_child("requestMetadata")
        fields.any("requestMetadata")
        if metadata is None:
            return ""
        user = metadata.text(USER, "") if isinstance(metadata.peek(USER), str) else ""
        self.keep("requestMetadata", metadata)
        return user


def _taken(free: dict[str, Json], path: tuple[str, ...], kinds: tuple[type, ...]) -> Json:
    """Take the value at a path of one or two names, if it is of one of these kinds; an emptied object goes too."""
    if not path:
        return None
    *outer, name = path
    place = free if not outer else free.get(outer[0])
    if not isinstance(place, dict) or type(place.get(name)) not in kinds:
        return None
    value = place.pop(name)
    if outer and not place:
        del free[outer[0]]
    return value


def _schema(fields: Fields) -> dict[str, Json]:
    """The schema is a text that holds one."""
    text = fields.text("schema")
    try:
        value = jsonio.decode(text)
    except jsonio.JsonError as error:
        fields.fail("schema", f"not JSON: {error}")
    if not isinstance(value, dict):
        fields.fail("schema", "expected the text of a JSON object")
    return value


# --- rendering


def render_settings(conversation: Conversation, vendor: Vendor) -> dict[str, Json]:
    """All settings but toolConfig. Raises Unrepresentable for what has no place here."""
    body: dict[str, Json] = {}
    free: dict[str, Json] = {}
    config = _render_inference(conversation, vendor, free)
    if config:
        body["inferenceConfig"] = config
    output = _render_output(conversation.output)
    effort = conversation.thinking.effort
    if effort:
        if not vendor.effort:
            raise Unrepresentable("the effort of thinking has no place here", at="reasoning_effort")
        (output if vendor.effort[0] == "outputConfig" else free)[vendor.effort[1]] = effort
    if output:
        body["outputConfig"] = output
    if conversation.thinking.mode != "default":
        free["thinking"] = _render_thinking(conversation.thinking, vendor)
    if more := render_free_choice(conversation.tool_choice, vendor):
        free["tool_choice"] = more
    if free:
        body[FREE] = free
    if conversation.user:
        body["requestMetadata"] = {USER: conversation.user}
    return body


def _render_inference(conversation: Conversation, vendor: Vendor, free: dict[str, Json]) -> dict[str, Json]:
    config: dict[str, Json] = {}
    if conversation.max_tokens is not None:
        config["maxTokens"] = conversation.max_tokens
    for knob, value in conversation.knobs.items():
        if knob in ("temperature", "top_p"):
            config["temperature" if knob == "temperature" else "topP"] = value
        elif knob == "top_k" and vendor.top_k:
            *outer, name = vendor.top_k
            place: dict[str, Json] = free.setdefault(outer[0], {}) if outer else free  # type: ignore[assignment]
            place[name] = value
        else:
            raise Unrepresentable("there is no such knob here", at=knob)
    if conversation.stop:
        config["stopSequences"] = list(conversation.stop)
    return config


def _render_output(output: Output) -> dict[str, Json]:
    if output.kind == "text":
        return {}
    if output.kind == "json":
        raise Unrepresentable("JSON without a schema cannot be asked for here", at="response_format")
    if output.strict is not None:
        raise Unrepresentable("an output schema has no strict flag here", at="response_format")
    schema: dict[str, Json] = {"schema": jsonio.encode({**(output.schema or {})}).decode()}
    if output.name:
        schema["name"] = output.name
    form: dict[str, Json] = {"type": "json_schema", "structure": {"jsonSchema": schema}}
    return {"textFormat": with_extra(form, output.extra)}


def _render_thinking(thinking: Thinking, vendor: Vendor) -> Json:
    if not vendor.claude_fields or thinking.mode not in _THINKING_TYPES:
        raise Unrepresentable(f"thinking {thinking.mode!r} has no place here", at="thinking")
    body: dict[str, Json] = {"type": _THINKING_TYPES[thinking.mode]}
    if thinking.budget is not None:
        if thinking.mode != "on":
            raise Unrepresentable("only thinking that is on has a budget here", at="thinking")
        body["budget_tokens"] = thinking.budget
    if thinking.show is not None:
        body["display"] = "summarized" if thinking.show else "omitted"
    return body

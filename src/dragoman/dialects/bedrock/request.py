"""Requests, both directions: the body of Converse and ConverseStream and a conversation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import structs

from dragoman.dialects.base import Call
from dragoman.dialects.bedrock.blocks import (
    identifier,
    own_data,
    parse_answer,
    parse_block,
    parse_content,
    render_content,
    render_text,
)
from dragoman.dialects.bedrock.models import Vendor
from dragoman.dialects.bedrock.nodes import (
    beside,
    extra,
    extra_beside,
    extra_of,
    opaque,
    render_mark,
    take_mark,
    with_extra,
)
from dragoman.dialects.bedrock.settings import Settings, render_choice, render_settings
from dragoman.dialects.kit.tools import tool_body
from dragoman.errors import MalformedRequest, Unrepresentable
from dragoman.model.blocks import Opaque, Text, Where, to_keep
from dragoman.model.conversation import Conversation, Held, Message, Role, ToolChoice, ToolSpec, canonical
from dragoman.wire.fields import Fields
from dragoman.wire.jsonio import Json

NO_PARAMETERS: dict[str, Json] = {"type": "object", "properties": {}}

_NO_PROMPTS = (
    "the prompt that the variables are for is held by Bedrock, and this upstream does not have it; send its text in"
    " `system` and `messages`"
)
_ROLES: dict[str, Role] = {"user": "user", "assistant": "assistant", "system": "system"}

# --- reading


def parse_request(call: Call, vendor: Vendor) -> Conversation:
    """Read a request. Raises MalformedRequest, naming the place."""
    try:
        return canonical(_conversation(call, vendor))
    except RecursionError:
        raise MalformedRequest("nested too deeply") from None


def _conversation(call: Call, vendor: Vendor) -> Conversation:
    fields = Fields(call.body)
    settings = Settings(fields, vendor)
    messages = tuple(map(_message, fields.children("messages", [])))
    system = _system(fields.children("system", []))
    tools, choice = _tool_config(fields, settings)
    return Conversation(
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
        held=_held(fields.peek("promptVariables")),
        extra=extra_of(to_keep(fields.rest()) | settings.leftovers()),
    )


def _held(variables: Json) -> tuple[Held, ...]:
    return (Held("promptVariables", "promptVariables", _NO_PROMPTS),) if variables else ()


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
        # What is no text keeps its place as a text that says nothing: this list holds nothing else.
        texts.append(
            block
            if isinstance(block, Text)
            else Text("", extra=extra_of(to_keep(own_data(_whole(block), MalformedRequest))), at=block.at)
        )
    return tuple(texts)


def _whole(block: object) -> Opaque:
    if isinstance(block, Opaque):
        return block
    raise MalformedRequest("expected text: a system prompt holds nothing else", at=getattr(block, "at", Where()).path)


def _tool_config(fields: Fields, settings: Settings) -> tuple[tuple[ToolSpec | Opaque, ...], ToolChoice]:
    config = fields.maybe_child("toolConfig")
    fields.any("toolConfig")
    if config is None:
        return (), settings.tool_choice(None)
    tools: list[ToolSpec | Opaque] = []
    for item in config.children("tools", []):
        mark = take_mark(item)
        if mark is not None and tools and tools[-1].cache is None:
            tools[-1] = structs.replace(tools[-1], cache=mark)
        else:
            tools.append(_tool(item))
    choice = _choice_fields(config)
    settings_choice = settings.tool_choice(choice)
    if rest := config.rest():
        settings.rest["toolConfig"] = rest
    return tuple(tools), settings_choice


def _choice_fields(config: Fields) -> Fields | None:
    """The choice, if it is one that we know; any other stays among the unknown fields."""
    said = config.peek("toolChoice")
    if isinstance(said, str) and said in ("auto", "any"):
        config.any("toolChoice")
        return Fields({said: {}}, config.path("toolChoice"), config.blame)
    if said is None or (isinstance(said, dict) and said.keys() & {"auto", "any", "tool"}):
        choice = config.maybe_child("toolChoice")
        config.any("toolChoice")
        return choice
    if not isinstance(said, dict):
        config.child("toolChoice")
    return None


def _tool(fields: Fields) -> ToolSpec | Opaque:
    if fields.peek("toolSpec") is None:
        return opaque(fields, next(iter(fields.rest()), "tool"))
    spec = fields.child("toolSpec")
    name, description, strict = identifier(spec, "name"), spec.text("description", ""), spec.flag("strict", None)
    schema = spec.peek("inputSchema")
    inner = schema.get("json") if isinstance(schema, dict) else None
    known: dict[str, Json] = NO_PARAMETERS
    bare = False
    if isinstance(schema, dict) and isinstance(inner, dict) and len(schema) == 1:
        spec.any("inputSchema")
        known = inner
    elif bare := schema in (None, {}, {"json": None}):
        spec.any("inputSchema")
    at = Where(fields.at, bare=bare)
    return ToolSpec(name, description, known, None, strict, extra=extra_beside(extra(spec), fields), at=at)


# --- rendering


def render_request(conversation: Conversation, vendor: Vendor) -> Call:
    """Say a conversation that fits. Raises Unrepresentable for what this dialect cannot say."""
    if conversation.choices != 1:
        raise Unrepresentable("one request gets one answer here", at="n")
    if conversation.previous is not None:
        raise Unrepresentable("no conversation is kept here to go on with", at="previous_response_id")
    try:
        body = _body(conversation, vendor)
    except RecursionError:
        raise Unrepresentable("nested too deeply") from None
    return Call("generate", conversation.model, conversation.stream, body)


def _body(conversation: Conversation, vendor: Vendor) -> dict[str, Json]:
    body: dict[str, Json] = {}
    if conversation.system:
        body["system"] = _render_system(conversation.system)
    body["messages"] = [_render_message(message) for message in conversation.messages]
    choice = render_choice(conversation.tool_choice)
    if conversation.tools:
        body["toolConfig"] = {"tools": _render_tools(conversation.tools), **choice}
    elif conversation.tool_choice != ToolChoice():
        raise Unrepresentable("there are no tools to choose from", at="tool_choice")
    return with_extra(body | render_settings(conversation, vendor), conversation.extra)


def _render_system(system: Sequence[Text]) -> list[Json]:
    blocks: list[Json] = []
    for text in system:
        body = render_text(text, Unrepresentable)
        if not text.text and len(body) > 1:
            del body["text"]  # it stands for a block that is no text
        blocks += [body, render_mark(text.cache)] if text.cache else [body]
    return blocks


def _render_message(message: Message) -> Json:
    return with_extra({"role": message.role, "content": render_content(message.blocks)}, message.extra)


def _render_tools(tools: Sequence[ToolSpec | Opaque]) -> list[Json]:
    bodies: list[Json] = []
    for tool in tools:
        bodies.append(_render_tool(tool))
        if tool.cache is not None:
            bodies.append(render_mark(tool.cache))
    return bodies


def _render_tool(tool: ToolSpec | Opaque) -> Json:
    if isinstance(tool, Opaque):
        return own_data(tool, Unrepresentable)
    body = tool_body(tool)
    body["inputSchema"] = {"json": {**(tool.schema or {})}}
    if tool.strict is not None:
        body["strict"] = tool.strict
    if tool.extra is not None and "inputSchema" in tool.extra.fields:
        del body["inputSchema"]  # it came as something else than an object, and goes back as it came
    return {"toolSpec": with_extra(body, tool.extra)} | beside(tool.extra)

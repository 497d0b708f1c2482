"""Parse and render requests of Anthropic's Messages API: the body of POST /v1/messages. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby, takewhile
from typing import Literal

from msgspec import UNSET, convert, structs

from dragoman.dialects.anthropic.blocks import (
    FAMILY,
    extra,
    extra_of,
    inner_fields,
    outer_fields,
    own_fields,
    parse_content,
    parse_text,
    parse_tool_result,
    render_block,
    render_content,
    take_cache,
    take_opaque,
    with_cache,
    with_extra,
)
from dragoman.dialects.anthropic.shapes import (
    AnthropicSettings,
    AnthropicToolUse,
    build_message,
    decode_request,
    read_typed_message,
)
from dragoman.dialects.anthropic.tools import (
    client_tool,
    declared_search,
    find_compaction,
    find_definitions,
    render_search,
)
from dragoman.dialects.base import ApiRequest, TypedRequest
from dragoman.dialects.kit.settings import guard_depth
from dragoman.dialects.kit.values import CLAUDE_TOOL_CHOICES, json_text, render_claude_choice
from dragoman.errors import DragomanError, MalformedRequest, Unrepresentable
from dragoman.model.blocks import Block, Extra, Location, Opaque, Text, ToolCall
from dragoman.model.conversation import (
    Conversation,
    Message,
    Output,
    Role,
    ServerState,
    Thinking,
    ToolChoice,
    ToolSpec,
    to_canonical,
    to_extra_names,
)
from dragoman.wire import jsonio
from dragoman.wire.fields import Fields
from dragoman.wire.http import HttpRequest
from dragoman.wire.jsonio import Json

PATH = "/v1/messages"
VERSION = "2023-06-01"
_HINTS = ("anthropic-version", "anthropic-beta")

SAMPLING_FIELDS = ("temperature", "top_p", "top_k")
NO_PARAMETERS: dict[str, Json] = {"type": "object", "properties": {}}

_MODES = {
    **CLAUDE_TOOL_CHOICES,
    "required": "any",
    "function": "one",
}  # the names of Chat Completions, which some clients send
_THINKING = {"enabled": "on", "disabled": "off", "adaptive": "adaptive", "between_tools": "between_tools"}
_THINKING_TYPES = {mode: name for name, mode in _THINKING.items()}
_DISPLAYS = {"summarized": True, "omitted": False}
_ROLES: dict[str, Role] = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}
MESSAGES = Location("messages")
_NO_SETTINGS = ("model", "messages", "stream")  # fields of a request that are not settings
_DEEP = b"[{"
_MESSAGE_VALUES, _BLOCK_VALUES = 3, 4  # approximate number of JSON values of a message and of a block
_DEFERRED = "defer_loading"
_ADDED = "~added"  # marks a tool that a block of a message defines
_NO_THREAD = "this upstream does not have the message thread; send all messages in `messages`, without `thread`"

# --- reading


def hints_of(request: HttpRequest) -> dict[str, str]:
    """Return the headers that matter, without the usual version; a repeated header becomes one list."""
    hints: dict[str, str] = {}
    for name, value in request.headers:
        if name in _HINTS and value and (name, value) != ("anthropic-version", VERSION):
            hints[name] = f"{hints[name]},{value}" if name in hints else value
    return hints


def read_typed_request(request: HttpRequest) -> TypedRequest | None:
    """Read a generate request of the documented shape from its bytes; None for any other.

    This takes less time and memory than decoding JSON values. The codec reads the requests that this refuses.
    """
    if request.method != "POST" or request.path != PATH:
        return None
    try:
        shape = decode_request(request.body)
        if not shape.model.strip():
            return None
        settings = structs.asdict(shape).items()
        rest: dict[str, Json] = {
            name: value for name, value in settings if name not in _NO_SETTINGS and value is not UNSET
        }
        call = ApiRequest("generate", shape.model, shape.stream, rest, hints_of(request))
        read = [build_message(message, Location(MESSAGES, at)) for at, message in enumerate(shape.messages)]
        conversation = conversation_of(call, tuple(read))
    except (DragomanError, *jsonio.DECODE_ERRORS):
        return None  # The codec reports the error.
    blocks = [block for message in shape.messages if isinstance(message.content, list) for block in message.content]
    inputs = [block.input for block in blocks if type(block) is AnthropicToolUse]
    deep = [jsonio.decode(value) for each in inputs for value in each.values() if memoryview(value)[0] in _DEEP]
    # One list for each level of nesting: messages, message, content, block, input.
    free_form = structs.replace(call, body={"messages": [[[[deep]]]], **rest})
    values = _MESSAGE_VALUES * len(shape.messages) + _BLOCK_VALUES * len(blocks) + sum(map(len, inputs))
    return TypedRequest(free_form, conversation, values)


def conversation_of(call: ApiRequest, messages: tuple[Message, ...] | None = None) -> Conversation:
    """Read a request into a conversation. `messages`, if given, are already read and not in the body.

    Raises MalformedRequest, with the place of the error.
    """
    try:
        settings = convert(call.body, AnthropicSettings)
    except jsonio.DECODE_ERRORS:
        return _with_added(_parse_fields(call, messages))
    if messages is not None:
        return settings.conversation(call, messages)
    if settings.messages is UNSET:
        return _parse_fields(call, None)  # It reports the missing field.
    read = [_read(item, Location(MESSAGES, at)) for at, item in enumerate(settings.messages)]
    return _with_added(settings.conversation(call, tuple(read)))


parse_request = guard_depth(MalformedRequest)(conversation_of)


def _parse_fields(call: ApiRequest, messages: tuple[Message, ...] | None) -> Conversation:
    """Read a request of any shape; `messages`, if given, are already read."""
    fields = Fields(call.body)
    rest: dict[str, Json] = {}  # unknown fields of known objects, by the object's name
    if messages is None:
        messages = tuple([_read(item, Location(MESSAGES, at)) for at, item in enumerate(fields.objects("messages"))])
    metadata = fields.maybe_child("metadata")
    user = metadata.text("user_id", "") if metadata else ""
    _keep(rest, "metadata", metadata)
    output, thinking = _output_and_thinking(fields, rest)
    conversation = Conversation(
        call.model,
        messages,
        system=_system(fields.any("system")),
        tools=tuple(map(_tool, fields.children("tools", []))),
        tool_choice=_tool_choice(fields, rest),
        output=output,
        thinking=thinking,
        max_tokens=fields.integer("max_tokens", None),
        stop=fields.strings("stop_sequences", ()),
        sampling={name: value for name in SAMPLING_FIELDS if (value := fields.number(name, None)) is not None},
        stream=call.stream,
        user=user,
        hints=Extra(FAMILY, {**call.hints}) if call.hints else None,
        server_state=(*_thread(fields.peek("thread")), *find_compaction(fields.rest())),
        extra=extra_of({**to_extra_names(fields.rest()), **rest}),
    )
    return to_canonical(conversation)


def _with_added(conversation: Conversation) -> Conversation:
    """Add the tools that blocks of messages define, without repeated definitions."""
    others = [block for message in conversation.messages for block in message.blocks if type(block) is Opaque]
    if not others:
        return conversation
    known = {tool.name: tool for tool in conversation.tools if isinstance(tool, ToolSpec)}
    added: list[ToolSpec | Opaque] = []
    for definition, at in find_definitions(others):
        tool = _marked(_tool(Fields(definition, at)))
        if isinstance(tool, ToolSpec):
            before = known.get(tool.name)
            if before is not None and before.has_same_definition(tool):
                continue
            known[tool.name] = tool
        added.append(tool)
    if not added:
        return conversation
    return structs.replace(conversation, tools=(*conversation.tools, *added))


def _marked(tool: ToolSpec | Opaque) -> ToolSpec | Opaque:
    """Mark a tool that a block defines: the writer does not write it, since it writes the block."""
    marked = Extra(FAMILY, {**(tool.extra.fields if tool.extra else {}), _ADDED: True}, frozenset({_ADDED}))
    return (
        structs.replace(tool, extra=marked, waits_for="block")
        if isinstance(tool, ToolSpec)
        else structs.replace(tool, extra=marked)
    )


def _thread(thread: Json) -> tuple[ServerState, ...]:
    """Return the thread of a request, with the error that makes the SDKs send all messages instead of a thread."""
    if thread is None:
        return ()
    fields = thread if isinstance(thread, dict) else {}
    is_new, previous = fields.get("type") == "create", fields.get("previous_message_id")
    reply_id = previous if isinstance(previous, str) else ""
    code = "thread_unsupported_request"
    details = json_text({"error_code": code, "unsupported": ["thread"]}, "thread", MalformedRequest)
    return (
        ServerState(
            "thread", "thread", _NO_THREAD, has_turns=not is_new, reply_id=reply_id, code=code, details=details
        ),
    )


def _keep(rest: dict[str, Json], name: str, fields: Fields | None) -> None:
    """Add the unknown fields of an object to `rest`."""
    if fields is not None and (unknown := fields.rest()):
        rest[name] = unknown


def _system(value: Json) -> tuple[Text, ...]:
    if value is None:
        return ()
    if isinstance(value, str):
        return (Text(value, at=Location("system")),)
    if isinstance(value, dict):
        return (_system_text(value, "system"),)
    if not isinstance(value, list):
        raise MalformedRequest("expected a string or an array of text blocks", at="system")
    return tuple(_system_text(item, f"system[{index}]") for index, item in enumerate(value))


def _system_text(item: Json, at: str) -> Text:
    if isinstance(item, str):
        return Text(item, at=Location(at))
    fields = Fields(item, at)
    if fields.peek("type") not in (None, "text"):
        fields.fail("type", "a system prompt may contain only text blocks")
    return parse_text(fields)


def _read(item: dict[str, Json], at: Location) -> Message:
    if (message := read_typed_message(item, at)) is not None:
        return message
    fields = Fields(item, at.path)
    role = fields.text("role").lower()
    if role == "tool":
        return _tool_message(fields)
    if role not in _ROLES:
        fields.fail("role", "the role of a message must be user, assistant, system or tool")
    return _message(fields, _ROLES[role])


def _message(fields: Fields, role: Role) -> Message:
    calls = tuple(map(_foreign_call, fields.children("tool_calls", []))) if role == "assistant" else ()
    content = fields.any("content")
    blocks: tuple[Block, ...] = ()
    if content is not None or not calls:
        blocks = parse_content(content, Location(fields.path("content")), fields.blame)
    return Message(role, blocks + calls, extra=extra(fields), at=Location(fields.at))


def _tool_message(fields: Fields) -> Message:
    """Read a message of the role `tool`: it is one result, or a user message of result blocks."""
    content = fields.peek("content")
    if isinstance(content, list) and any(
        isinstance(item, dict) and item.get("type") == "tool_result" for item in content
    ):
        return _message(fields, "user")
    return Message("user", (parse_tool_result(fields),), at=Location(fields.at))


def _foreign_call(fields: Fields) -> ToolCall:
    """Read a call in the form of Chat Completions, which some clients send (docs/decisions/content.md#d2)."""
    fields.any("type")
    function = fields.child("function")
    value = function.any("arguments")
    text = value if isinstance(value, str) else json_text(value or {}, function.path("arguments"), fields.blame)
    call_id, name = fields.identifier("id"), function.identifier("name")
    return ToolCall(call_id, name, text, extra=extra(fields), at=Location(fields.at))


def _tool(fields: Fields) -> ToolSpec | Opaque:
    kind = fields.peek("type")
    if isinstance(kind, str) and kind != "custom":
        return structs.replace(
            take_opaque(fields, kind), effects=client_tool(kind, fields.rest()) or declared_search(kind, fields.rest())
        )
    fields.text("type", "")
    schema = fields.any("input_schema")
    name, description = fields.identifier("name"), fields.text("description", "")
    cache, strict = take_cache(fields), fields.flag("strict", None)
    waits_for: Literal["", "search"] = ""
    if fields.peek(_DEFERRED) is True:
        fields.any(_DEFERRED)
        waits_for = "search"
    rest = to_extra_names(fields.rest())
    if schema is not None and not isinstance(schema, dict):
        rest["input_schema"] = schema
    known = schema if isinstance(schema, dict) else NO_PARAMETERS
    at = Location(fields.at, is_absent=schema is None)
    extra = extra_of(rest)
    if extra is not None and rest.get(_DEFERRED) is False:
        extra = structs.replace(extra, spelling=frozenset({_DEFERRED}))  # False means the same as an absent field.
    return ToolSpec(name, description, known, cache, strict, waits_for, extra=extra, at=at)


def _tool_choice(fields: Fields, rest: dict[str, Json]) -> ToolChoice:
    value = fields.peek("tool_choice")
    if isinstance(value, str):
        value = {"type": value}
    choice = None if value is None else Fields(value, "tool_choice", fields.blame)
    fields.any("tool_choice")
    if choice is None:
        return ToolChoice()
    mode = choice.one_of("type", _MODES)
    named = choice.maybe_child("function") or choice
    names = (named.identifier("name"),) if mode == "one" else ()
    disabled = choice.flag("disable_parallel_tool_use", None)
    _keep(rest, "tool_choice", choice)
    return ToolChoice(mode, names, None if disabled is None else not disabled)  # type: ignore[arg-type]  # of _MODES


def _output_and_thinking(fields: Fields, rest: dict[str, Json]) -> tuple[Output, Thinking]:
    """Read output format and thinking, from `output_config` or from the older field `output_format`."""
    config = fields.maybe_child("output_config")
    effort = config.text("effort", "") if config else ""
    old, output = _format(fields, "output_format"), Output()
    if config and (new := _format(config, "format")):
        output = new
    elif old:
        output = old
    _keep(rest, "output_config", config)
    return output, _thinking(fields, effort, rest)


def _format(fields: Fields, name: str) -> Output | None:
    """Read an output schema; a format of an unknown type stays among the extra fields."""
    value = fields.peek(name)
    if value is None or (isinstance(value, dict) and value.get("type") != "json_schema"):
        if value is None:
            fields.any(name)
        return None
    form = fields.child(name)
    form.any("type")
    schema = form.child("schema").rest()
    return Output("schema", schema=schema, extra=extra(form))


def _thinking(fields: Fields, effort: str, rest: dict[str, Json]) -> Thinking:
    thinking = fields.maybe_child("thinking")
    if thinking is None:
        fields.any("thinking")
        return Thinking(effort=effort)
    kind = thinking.peek("type")
    mode = _THINKING.get(kind) if isinstance(kind, str) else None
    if mode is None:
        thinking.text("type")
        rest["thinking"] = fields.peek("thinking")
        return Thinking(effort=effort)
    thinking.any("type")
    show: bool | None = None
    display = thinking.peek("display")
    if display is None or (isinstance(display, str) and display in _DISPLAYS):
        show = thinking.one_of("display", _DISPLAYS, None)
    budget = thinking.integer("budget_tokens", None) if mode == "on" else None
    _keep(rest, "thinking", thinking)
    return Thinking(mode, effort, budget, show)  # type: ignore[arg-type]  # a mode of _THINKING


# --- rendering


@guard_depth(Unrepresentable)
def render_request(conversation: Conversation) -> ApiRequest:
    """Write a request. Raises Unrepresentable for content that this dialect cannot express."""
    _refuse_unsupported(conversation)
    body, hints = _body(conversation), conversation.hints
    fields = {**hints.fields} if hints and hints.family == FAMILY else {}
    headers = {name: value for name, value in fields.items() if isinstance(value, str)}
    return ApiRequest("generate", conversation.model, conversation.stream, body, headers)


def _refuse_unsupported(conversation: Conversation) -> None:
    if conversation.choices != 1:
        raise Unrepresentable("Anthropic returns one reply per request: set n to 1", at="n")
    if conversation.previous_id is not None:
        raise Unrepresentable(
            "Anthropic cannot continue a stored response; send the whole conversation without previous_response_id",
            at="previous_response_id",
        )
    if conversation.output.kind == "json":
        raise Unrepresentable(
            "Anthropic has no JSON output without a schema: give one, or ask for text", at="response_format"
        )
    for name in conversation.sampling:
        if name not in SAMPLING_FIELDS:
            raise Unrepresentable(f"Anthropic has no setting {name}; leave it out", at=name)


def _body(conversation: Conversation) -> dict[str, Json]:
    body: dict[str, Json] = {}
    if conversation.max_tokens is not None:
        body["max_tokens"] = conversation.max_tokens
    system = tuple(takewhile(lambda text: not outer_fields(text.extra), conversation.system))
    if system:
        body["system"] = render_content(system)
    others = _system_messages(conversation.system[len(system) :])
    body["messages"] = [_render_message(message) for message in (*others, *conversation.messages)]
    if tools := [_render_tool(tool) for tool in conversation.tools if _ADDED not in own_fields(tool.extra)]:
        body["tools"] = tools
    if conversation.tool_choice != ToolChoice() or "tool_choice" in own_fields(
        conversation.extra
    ):  # extra fields need the type
        body["tool_choice"] = _render_choice(conversation.tool_choice)
    body |= _render_output(conversation.output, conversation.thinking)
    if conversation.stop:
        body["stop_sequences"] = list(conversation.stop)
    body |= conversation.sampling
    if conversation.user:
        body["metadata"] = {"user_id": conversation.user}
    return with_extra(body, conversation.extra)


def _system_messages(system: Sequence[Text]) -> Iterator[Message]:
    """Yield the system messages that these texts came from: texts with the same fields of the parent are one."""
    for outer, texts in groupby(system, lambda text: outer_fields(text.extra)):
        blocks = [structs.replace(text, extra=extra_of(inner_fields(text.extra))) for text in texts]
        yield Message("system", tuple(blocks), extra=extra_of(outer))


def _render_message(message: Message) -> Json:
    return with_extra({"role": message.role, "content": render_content(message.blocks)}, message.extra)


def _render_tool(tool: ToolSpec | Opaque) -> Json:
    if isinstance(tool, Opaque):
        is_own_search = tool.family == FAMILY and not tool.data and tool.effects
        return render_search(tool.effects[0], is_tool=True) if is_own_search else render_block(tool)
    if tool.schema is None:
        message = f"the tool {tool.name} accepts free text; Anthropic supports only tools with a schema"
        raise Unrepresentable(message, at=tool.at.path)
    body: dict[str, Json] = {"name": tool.name}
    if tool.description:
        body["description"] = tool.description
    body["input_schema"] = {**tool.schema}
    if tool.strict is not None:
        body["strict"] = tool.strict
    if tool.waits_for == "search":
        body[_DEFERRED] = True
    with_cache(body, tool.cache)
    if "input_schema" in own_fields(tool.extra):
        del body["input_schema"]  # The client sent another type than an object, which is sent unchanged.
    return with_extra(body, tool.extra)


def _render_choice(choice: ToolChoice) -> Json:
    if (choice.mode == "one") != (len(choice.names) == 1) or (choice.names and choice.mode != "one"):
        raise Unrepresentable("Anthropic cannot limit the tool choice to some tools", at="tool_choice")
    return render_claude_choice(choice)


def _render_output(output: Output, thinking: Thinking) -> dict[str, Json]:
    body: dict[str, Json] = {}
    config: dict[str, Json] = {}
    if thinking.effort:
        config["effort"] = thinking.effort
    if output.kind == "schema":
        config["format"] = with_extra({"type": "json_schema", "schema": {**(output.schema or {})}}, output.extra)
    if config:
        body["output_config"] = config
    if thinking.mode != "default":
        body["thinking"] = _render_thinking(thinking)
    return body


def _render_thinking(thinking: Thinking) -> Json:
    body: dict[str, Json] = {"type": _THINKING_TYPES[thinking.mode]}
    if thinking.budget is not None and thinking.mode == "on":
        body["budget_tokens"] = thinking.budget
    if thinking.show is not None:
        body["display"] = "summarized" if thinking.show else "omitted"
    return body

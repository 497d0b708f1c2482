"""Requests, both directions: the body of POST /v1/messages and a conversation."""

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
from dragoman.dialects.anthropic.tools import client_tool, find_compaction, find_definitions
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

_MODES = {**CLAUDE_TOOL_CHOICES, "required": "any", "function": "one"}  # Chat's words, which some clients mix in
_THINKING = {"enabled": "on", "disabled": "off", "adaptive": "adaptive", "between_tools": "between_tools"}
_THINKING_TYPES = {mode: name for name, mode in _THINKING.items()}
_DISPLAYS = {"summarized": True, "omitted": False}
_ROLES: dict[str, Role] = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}
MESSAGES = Location("messages")
_OWN = ("model", "messages", "stream")  # fields of a request that are no settings
_DEEP = b"[{"
_MESSAGE_VALUES, _BLOCK_VALUES = 3, 4  # JSON values of a message and of a block, about
_DEFERRED = "defer_loading"
_ADDED = "~added"  # on a tool that a block of a message defines
_NO_THREAD = (
    "this upstream does not hold the message thread; send the whole conversation in `messages`, without `thread`"
)

# --- reading


def hints_of(request: HttpRequest) -> dict[str, str]:
    """The headers that matter. The usual version says nothing; a header sent twice is one list."""
    hints: dict[str, str] = {}
    for name, value in request.headers:
        if name in _HINTS and value and (name, value) != ("anthropic-version", VERSION):
            hints[name] = f"{hints[name]},{value}" if name in hints else value
    return hints


def read_typed_request(request: HttpRequest) -> TypedRequest | None:
    """Read a request that generates and has the documented shape, from its bytes; None for any other.

    This takes less time and memory than a tree of JSON values. What it refuses is matched and read as that.
    """
    if request.method != "POST" or request.path != PATH:
        return None
    try:
        shape = decode_request(request.body)
        if not shape.model.strip():
            return None
        settings = structs.asdict(shape).items()
        rest: dict[str, Json] = {name: value for name, value in settings if name not in _OWN and value is not UNSET}
        call = ApiRequest("generate", shape.model, shape.stream, rest, hints_of(request))
        read = [build_message(message, Location(MESSAGES, at)) for at, message in enumerate(shape.messages)]
        asked = conversation_of(call, tuple(read))
    except (DragomanError, *jsonio.DECODE_ERRORS):
        return None  # matching says what is wrong
    blocks = [block for message in shape.messages if isinstance(message.content, list) for block in message.content]
    inputs = [block.input for block in blocks if type(block) is AnthropicToolUse]
    deep = [jsonio.decode(value) for given in inputs for value in given.values() if memoryview(value)[0] in _DEEP]
    # A list for each level above them: the messages, a message, its content, a block, its input.
    free = structs.replace(call, body={"messages": [[[[deep]]]], **rest})
    values = _MESSAGE_VALUES * len(shape.messages) + _BLOCK_VALUES * len(blocks) + sum(map(len, inputs))
    return TypedRequest(free, asked, values)


def conversation_of(call: ApiRequest, messages: tuple[Message, ...] | None = None) -> Conversation:
    """All that is asked. `messages`, where given, are those of a request of the documented shape without its messages.

    Raises MalformedRequest, naming the place.
    """
    try:
        settings = convert(call.body, AnthropicSettings)
    except jsonio.DECODE_ERRORS:
        return _with_added(_parse_fields(call, messages))
    if messages is not None:
        return settings.conversation(call, messages)
    if settings.messages is UNSET:
        return _parse_fields(call, None)  # which says what is missing
    read = [_read(item, Location(MESSAGES, at)) for at, item in enumerate(settings.messages)]
    return _with_added(settings.conversation(call, tuple(read)))


parse_request = guard_depth(MalformedRequest)(conversation_of)


def _parse_fields(call: ApiRequest, messages: tuple[Message, ...] | None) -> Conversation:
    """Read a request of any shape, of which `messages` may be read already."""
    fields = Fields(call.body)
    kept: dict[str, Json] = {}  # what known objects hold beside what we know
    if messages is None:
        messages = tuple([_read(item, Location(MESSAGES, at)) for at, item in enumerate(fields.objects("messages"))])
    metadata = fields.maybe_child("metadata")
    user = metadata.text("user_id", "") if metadata else ""
    _keep(kept, "metadata", metadata)
    output, thinking = _asked_form(fields, kept)
    conversation = Conversation(
        call.model,
        messages,
        system=_system(fields.any("system")),
        tools=tuple(map(_tool, fields.children("tools", []))),
        tool_choice=_tool_choice(fields, kept),
        output=output,
        thinking=thinking,
        max_tokens=fields.integer("max_tokens", None),
        stop=fields.strings("stop_sequences", ()),
        sampling={name: value for name in SAMPLING_FIELDS if (value := fields.number(name, None)) is not None},
        stream=call.stream,
        user=user,
        hints=Extra(FAMILY, {**call.hints}) if call.hints else None,
        server_state=(*_held(fields.peek("thread")), *find_compaction(fields.rest())),
        extra=extra_of({**to_extra_names(fields.rest()), **kept}),
    )
    return to_canonical(conversation)


def _with_added(conversation: Conversation) -> Conversation:
    """The conversation with the tools that blocks of its messages define; what defines the same again is left out."""
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
    """The tool as one that a block defines: that block still says it when the request is written."""
    kept = Extra(FAMILY, {**(tool.extra.fields if tool.extra else {}), _ADDED: True}, frozenset({_ADDED}))
    return (
        structs.replace(tool, extra=kept, waits_for="block")
        if isinstance(tool, ToolSpec)
        else structs.replace(tool, extra=kept)
    )


def _held(thread: Json) -> tuple[ServerState, ...]:
    """The thread that a request begins or continues. The error makes the SDKs send the whole history without one."""
    if thread is None:
        return ()
    given = thread if isinstance(thread, dict) else {}
    begins, previous = given.get("type") == "create", given.get("previous_message_id")
    answer = previous if isinstance(previous, str) else ""
    code = "thread_unsupported_request"
    details = json_text({"error_code": code, "unsupported": ["thread"]}, "thread", MalformedRequest)
    return (
        ServerState("thread", "thread", _NO_THREAD, has_turns=not begins, reply_id=answer, code=code, details=details),
    )


def _keep(kept: dict[str, Json], name: str, fields: Fields | None) -> None:
    if fields is not None and (rest := fields.rest()):
        kept[name] = rest


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
        fields.fail("type", "expected text: a system prompt holds nothing else")
    return parse_text(fields)


def _read(item: dict[str, Json], at: Location) -> Message:
    if (message := read_typed_message(item, at)) is not None:
        return message
    fields = Fields(item, at.path)
    said = fields.text("role").lower()
    if said == "tool":
        return _tool_message(fields)
    if said not in _ROLES:
        fields.fail("role", "expected user, assistant, system or tool")
    return _message(fields, _ROLES[said])


def _message(fields: Fields, role: Role) -> Message:
    calls = tuple(map(_foreign_call, fields.children("tool_calls", []))) if role == "assistant" else ()
    content = fields.any("content")
    blocks: tuple[Block, ...] = ()
    if content is not None or not calls:
        blocks = parse_content(content, Location(fields.path("content")), fields.blame)
    return Message(role, blocks + calls, extra=extra(fields), at=Location(fields.at))


def _tool_message(fields: Fields) -> Message:
    """A message of the role `tool` is one result, or holds result blocks: then it is a user's by another name."""
    content = fields.peek("content")
    if isinstance(content, list) and any(
        isinstance(item, dict) and item.get("type") == "tool_result" for item in content
    ):
        return _message(fields, "user")
    return Message("user", (parse_tool_result(fields),), at=Location(fields.at))


def _foreign_call(fields: Fields) -> ToolCall:
    """A call in the shape of another dialect, which some clients mix in (docs/decisions/content.md#d2)."""
    fields.any("type")
    function = fields.child("function")
    value = function.any("arguments")
    text = value if isinstance(value, str) else json_text(value or {}, function.path("arguments"), fields.blame)
    call_id, name = fields.identifier("id"), function.identifier("name")
    return ToolCall(call_id, name, text, extra=extra(fields), at=Location(fields.at))


def _tool(fields: Fields) -> ToolSpec | Opaque:
    kind = fields.peek("type")
    if isinstance(kind, str) and kind != "custom":
        return structs.replace(take_opaque(fields, kind), effects=client_tool(kind, fields.rest()))
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
    kept = extra_of(rest)
    if kept is not None and rest.get(_DEFERRED) is False:
        kept = structs.replace(kept, spelling=frozenset({_DEFERRED}))  # it says no more than its absence
    return ToolSpec(name, description, known, cache, strict, waits_for, extra=kept, at=at)


def _tool_choice(fields: Fields, kept: dict[str, Json]) -> ToolChoice:
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
    alone = choice.flag("disable_parallel_tool_use", None)
    _keep(kept, "tool_choice", choice)
    return ToolChoice(mode, names, None if alone is None else not alone)  # type: ignore[arg-type]  # _MODES has them all


def _asked_form(fields: Fields, kept: dict[str, Json]) -> tuple[Output, Thinking]:
    """What the answer shall look like, in today's fields and in yesterday's."""
    config = fields.maybe_child("output_config")
    effort = config.text("effort", "") if config else ""
    old, output = _format(fields, "output_format"), Output()
    if config and (new := _format(config, "format")):
        output = new
    elif old:
        output = old
    _keep(kept, "output_config", config)
    return output, _thinking(fields, effort, kept)


def _format(fields: Fields, name: str) -> Output | None:
    """The schema asked for; a format of an unknown type stays among the unknown fields."""
    value = fields.peek(name)
    if value is None or (isinstance(value, dict) and value.get("type") != "json_schema"):
        if value is None:
            fields.any(name)
        return None
    form = fields.child(name)
    form.any("type")
    schema = form.child("schema").rest()
    return Output("schema", schema=schema, extra=extra(form))


def _thinking(fields: Fields, effort: str, kept: dict[str, Json]) -> Thinking:
    thinking = fields.maybe_child("thinking")
    if thinking is None:
        fields.any("thinking")
        return Thinking(effort=effort)
    said = thinking.peek("type")
    mode = _THINKING.get(said) if isinstance(said, str) else None
    if mode is None:
        thinking.text("type")
        kept["thinking"] = fields.peek("thinking")
        return Thinking(effort=effort)
    thinking.any("type")
    show: bool | None = None
    display = thinking.peek("display")
    if display is None or (isinstance(display, str) and display in _DISPLAYS):
        show = thinking.one_of("display", _DISPLAYS, None)
    budget = thinking.integer("budget_tokens", None) if mode == "on" else None
    _keep(kept, "thinking", thinking)
    return Thinking(mode, effort, budget, show)  # type: ignore[arg-type]  # _THINKING has them all


# --- rendering


@guard_depth(Unrepresentable)
def render_request(conversation: Conversation) -> ApiRequest:
    """Say a conversation that fits. Raises Unrepresentable for what this dialect cannot say."""
    _refuse_unsayable(conversation)
    body, hints = _body(conversation), conversation.hints
    headers = {**hints.fields} if hints and hints.family == FAMILY else {}
    said = {name: value for name, value in headers.items() if isinstance(value, str)}
    return ApiRequest("generate", conversation.model, conversation.stream, body, said)


def _refuse_unsayable(conversation: Conversation) -> None:
    if conversation.choices != 1:
        raise Unrepresentable("one request gets one answer here", at="n")
    if conversation.previous_id is not None:
        raise Unrepresentable("no conversation is kept here to go on with", at="previous_response_id")
    if conversation.output.kind == "json":
        raise Unrepresentable("JSON without a schema cannot be asked for here", at="response_format")
    for name in conversation.sampling:
        if name not in SAMPLING_FIELDS:
            raise Unrepresentable("there is no such knob here", at=name)


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
    if conversation.tool_choice != ToolChoice() or "tool_choice" in own_fields(conversation.extra):  # it needs its type
        body["tool_choice"] = _render_choice(conversation.tool_choice)
    body |= _render_form(conversation.output, conversation.thinking)
    if conversation.stop:
        body["stop_sequences"] = list(conversation.stop)
    body |= conversation.sampling
    if conversation.user:
        body["metadata"] = {"user_id": conversation.user}
    return with_extra(body, conversation.extra)


def _system_messages(system: Sequence[Text]) -> Iterator[Message]:
    """The messages that system texts came in, from the first one that had fields of its own."""
    for outer, texts in groupby(system, lambda text: outer_fields(text.extra)):
        bare = [structs.replace(text, extra=extra_of(inner_fields(text.extra))) for text in texts]
        yield Message("system", tuple(bare), extra=extra_of(outer))


def _render_message(message: Message) -> Json:
    return with_extra({"role": message.role, "content": render_content(message.blocks)}, message.extra)


def _render_tool(tool: ToolSpec | Opaque) -> Json:
    if isinstance(tool, Opaque):
        return render_block(tool)
    if tool.schema is None:
        raise Unrepresentable(f"the tool {tool.name} takes free text, which has no place here", at=tool.at.path)
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
        del body["input_schema"]  # it came as something else than an object, and goes back as it came
    return with_extra(body, tool.extra)


def _render_choice(choice: ToolChoice) -> Json:
    if (choice.mode == "one") != (len(choice.names) == 1) or (choice.names and choice.mode != "one"):
        raise Unrepresentable("a choice among some of the tools cannot be said here", at="tool_choice")
    return render_claude_choice(choice)


def _render_form(output: Output, thinking: Thinking) -> dict[str, Json]:
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

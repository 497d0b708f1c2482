"""Read and write the bodies of Converse and ConverseStream requests as canonical conversations. Pure.

Bedrock passes `additionalModelRequestFields` unchanged to the vendor of the model. Settings that Converse lacks are in
there, under names that differ by vendor. This module calls them the vendor fields.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import structs

from dragoman.dialects.base import ApiRequest
from dragoman.dialects.bedrock.blocks import (
    parse_assistant_content,
    parse_block,
    parse_content,
    render_content,
    render_text,
)
from dragoman.dialects.bedrock.nodes import (
    EXTRAS,
    Vendor,
    render_cache_point,
    sibling_fields,
    take_cache_point,
    with_sibling_fields,
)
from dragoman.dialects.kit.settings import guard_depth, take_sampling
from dragoman.dialects.kit.values import CLAUDE_TOOL_CHOICES, NO_PARAMETERS, members, render_claude_choice, tool_body
from dragoman.errors import MalformedRequest, Unrepresentable
from dragoman.model.blocks import Location, Opaque, Text
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
from dragoman.wire.jsonio import Json

# --- tools and tool choice: toolConfig and the vendor fields


def parse_tools(config: Fields) -> tuple[ToolSpec | Opaque, ...]:
    """Read the tools. A cache point belongs to the tool before it."""
    tools: list[ToolSpec | Opaque] = []
    for item in config.children("tools", []):
        mark = take_cache_point(item)
        if mark is not None and tools and tools[-1].cache is None:
            tools[-1] = structs.replace(tools[-1], cache=mark)
        else:
            tools.append(_tool(item))
    return tuple(tools)


def _tool(fields: Fields) -> ToolSpec | Opaque:
    if fields.peek("toolSpec") is None:
        return EXTRAS.opaque(fields, next(iter(fields.rest()), "tool"))
    spec = fields.child("toolSpec")
    name, description, strict = spec.identifier("name"), spec.text("description", ""), spec.flag("strict", None)
    schema = spec.peek("inputSchema")
    inner = schema.get("json") if isinstance(schema, dict) else None
    parameters: dict[str, Json] = NO_PARAMETERS
    is_absent = False
    if isinstance(schema, dict) and isinstance(inner, dict) and len(schema) == 1:
        spec.any("inputSchema")
        parameters = inner
    elif is_absent := schema in (None, {}, {"json": None}):
        spec.any("inputSchema")
    at = Location(fields.at, is_absent=is_absent)
    return ToolSpec(
        name, description, parameters, None, strict, extra=with_sibling_fields(EXTRAS.extra(spec), fields), at=at
    )


def parse_choice(config: Fields, vendor_fields: dict[str, Json], vendor: Vendor) -> ToolChoice:
    """Read the tool choice from toolChoice and, for Claude, from the vendor field `tool_choice`.

    Only the vendor field can express `none` and whether calls may be parallel. It is removed from `vendor_fields`,
    unless it has values that the canonical model lacks.
    """
    choice = _choice_fields(config)
    mode, names = ("auto", ()) if choice is None else _choice(choice)
    at = Location("additionalModelRequestFields.tool_choice" if choice is None else choice.at)
    is_unknown = choice is None and config.peek("toolChoice") is not None  # then both fields stay unchanged
    vendor_choice = vendor_fields.pop("tool_choice", None) if vendor.claude_fields and not is_unknown else None
    rest = {**vendor_choice} if isinstance(vendor_choice, dict) else {}
    kind, single, name = (rest.pop(each, None) for each in ("type", "disable_parallel_tool_use", "name"))
    is_known = isinstance(kind, str) and kind in CLAUDE_TOOL_CHOICES and type(single) in (bool, type(None)) and not rest
    if not is_known or (kind == "tool") != (isinstance(name, str) and bool(name)):
        if vendor_choice is not None:
            vendor_fields["tool_choice"] = vendor_choice
        return ToolChoice(mode, names, at=at)  # type: ignore[arg-type]  # _choice returns only modes
    if mode == "auto":
        mode, names = CLAUDE_TOOL_CHOICES[str(kind)], (str(name),) if name else ()
    return ToolChoice(mode, names, None if single is None else not single, at)  # type: ignore[arg-type]


def _choice_fields(config: Fields) -> Fields | None:
    """Take the tool choice if its mode is known. Any other stays among the unknown fields."""
    value = config.peek("toolChoice")
    if isinstance(value, str) and value in ("auto", "any"):
        config.any("toolChoice")
        return Fields({value: {}}, config.path("toolChoice"), config.blame)
    if value is None or (isinstance(value, dict) and value.keys() & {"auto", "any", "tool"}):
        choice = config.maybe_child("toolChoice")
        config.any("toolChoice")
        return choice
    if not isinstance(value, dict):
        config.child("toolChoice")  # raises: it is no object
    return None


def _choice(choice: Fields) -> tuple[str, tuple[str, ...]]:
    """Return the mode and the tool names."""
    for name in ("auto", "any"):
        if choice.peek(name) is not None:
            choice.child(name)
            return name, ()
    if choice.peek("tool") is not None:
        name = choice.child("tool").text("name")
        if not name:
            choice.fail("tool", "expected a name that is not empty")
        return "one", (name,)
    return "auto", ()


# --- tools, rendering


def render_tools(tools: Sequence[ToolSpec | Opaque]) -> list[Json]:
    """Write the tools, each followed by its cache point if it has a mark."""
    bodies: list[Json] = []
    for tool in tools:
        bodies.append(_render_tool(tool))
        if tool.cache is not None:
            bodies.append(render_cache_point(tool.cache))
    return bodies


def _render_tool(tool: ToolSpec | Opaque) -> Json:
    if isinstance(tool, Opaque):
        return EXTRAS.own_data(tool, Unrepresentable)
    body = tool_body(tool)
    body["inputSchema"] = {"json": {**(tool.schema or {})}}
    if tool.strict is not None:
        body["strict"] = tool.strict
    if tool.extra is not None and "inputSchema" in tool.extra.fields:
        del body["inputSchema"]  # the client sent no JSON schema here; `extra` has the original value
    return {"toolSpec": EXTRAS.with_extra(body, tool.extra)} | sibling_fields(tool.extra)


def render_choice(choice: ToolChoice, forced: Sequence[str] = ("any", "one")) -> dict[str, Json]:
    """Return toolChoice, or nothing for a mode outside `forced`. Raises Unrepresentable for a subset of the tools."""
    if (choice.mode == "one") != (len(choice.names) == 1) or (choice.names and choice.mode != "one"):
        raise Unrepresentable("Bedrock cannot limit the tool choice to some tools", at="tool_choice")
    if choice.mode not in forced:
        return {}
    return {"toolChoice": {"tool": {"name": choice.names[0]}} if choice.mode == "one" else {"any": {}}}


def render_vendor_choice(choice: ToolChoice, vendor: Vendor) -> Json:
    """Return the vendor field `tool_choice`, or None. Raises Unrepresentable for vendors other than Claude."""
    if choice.mode != "none" and choice.parallel is None:
        return None
    if not vendor.claude_fields:
        raise Unrepresentable(
            f"Bedrock cannot express tool choice {choice.mode!r} or parallel calls for this model", at="tool_choice"
        )
    return render_claude_choice(choice)


_STORED_PROMPT = (
    "Bedrock stores the prompt that the variables are for, and this upstream does not have it; send its text in"
    " `system` and `messages`"
)
_ROLES: dict[str, Role] = {"user": "user", "assistant": "assistant", "system": "system"}

# --- requests, reading


@guard_depth(MalformedRequest)
def parse_request(call: ApiRequest, vendor: Vendor) -> Conversation:
    """Read a request. Raises MalformedRequest with the path of the bad value."""
    fields = Fields(call.body)
    vendor_fields = _take_vendor_fields(fields)
    settings, *objects = _settings(call, fields, vendor_fields, vendor)
    messages = tuple(map(_message, fields.children("messages", [])))
    system = _system(fields.children("system", []))
    config = _object(fields, "toolConfig")
    tools, choice = parse_tools(config), parse_choice(config, vendor_fields, vendor)
    unknown: dict[str, Json] = {each.at: rest for each in (*objects, config) if (rest := each.rest())}
    stored = (
        (ServerState("promptVariables", "promptVariables", _STORED_PROMPT),) if fields.peek("promptVariables") else ()
    )
    if vendor_fields:
        unknown[ADDITIONAL_FIELDS] = vendor_fields
    extra = EXTRAS.extra_of(to_extra_names(fields.rest()) | unknown)
    conversation = structs.replace(
        settings, messages=messages, system=system, tools=tools, tool_choice=choice, server_state=stored, extra=extra
    )
    return to_canonical(conversation)


def _message(fields: Fields) -> Message:
    role = _ROLES.get(fields.text("role").lower())
    if role is None:
        fields.fail("role", "expected user, assistant or system")
    read = parse_assistant_content if role == "assistant" else parse_content
    blocks = read(fields.any("content"), fields.path("content"), fields.blame)
    return Message(role, blocks, extra=EXTRAS.extra(fields), at=Location(fields.at))


def _system(items: Iterable[Fields]) -> tuple[Text, ...]:
    texts: list[Text] = []
    for fields in items:
        mark = take_cache_point(fields)
        if mark is not None and texts and texts[-1].cache is None:
            texts[-1] = structs.replace(texts[-1], cache=mark)
            continue
        block = parse_block(fields)
        if isinstance(block, Opaque):  # becomes an empty text with extra fields, because `system` only has texts
            extra = EXTRAS.extra_of(to_extra_names(EXTRAS.own_data(block, MalformedRequest)))
            block = Text("", extra=extra, at=block.at)
        elif not isinstance(block, Text):
            raise MalformedRequest("expected text: a system prompt has only text", at=block.at.path)
        texts.append(block)
    return tuple(texts)


# --- requests, rendering


@guard_depth(Unrepresentable)
def render_request(conversation: Conversation, vendor: Vendor) -> ApiRequest:
    """Write a request. Raises Unrepresentable for content that this dialect cannot express."""
    if conversation.choices != 1:
        raise Unrepresentable("Bedrock returns one reply per request: set n to 1", at="n")
    if conversation.previous_id is not None:
        message = "Bedrock cannot continue a stored response; send the whole conversation without previous_response_id"
        raise Unrepresentable(message, at="previous_response_id")
    body: dict[str, Json] = {}
    if conversation.system:
        body["system"] = _render_system(conversation.system)
    body["messages"] = [
        EXTRAS.with_extra({"role": message.role, "content": render_content(message.blocks)}, message.extra)
        for message in conversation.messages
    ]
    choice = render_choice(conversation.tool_choice)
    if conversation.tools:
        body["toolConfig"] = {"tools": render_tools(conversation.tools), **choice}
    elif conversation.tool_choice != ToolChoice():
        raise Unrepresentable("tool_choice is set, but the request has no tools; remove it", at="tool_choice")
    body |= render_settings(conversation, vendor)
    return ApiRequest("generate", conversation.model, conversation.stream, EXTRAS.with_extra(body, conversation.extra))


def _render_system(system: Sequence[Text]) -> list[Json]:
    blocks: list[Json] = []
    for text in system:
        body = render_text(text, Unrepresentable)
        if not text.text and len(body) > 1:
            del body["text"]  # the empty text replaced an opaque block
        blocks += [body, render_cache_point(text.cache)] if text.cache else [body]
    return blocks


# --- settings: inferenceConfig, outputConfig, requestMetadata and the vendor fields

ADDITIONAL_FIELDS = "additionalModelRequestFields"
USER_FIELD = "user_id"

_THINKING = {"enabled": "on", "disabled": "off", "adaptive": "adaptive"}
_THINKING_TYPES = {mode: name for name, mode in _THINKING.items()}
_DISPLAYS = {"summarized": True, "omitted": False}


def _take_vendor_fields(fields: Fields) -> dict[str, Json]:
    """Take the vendor fields as a copy, so that removing values does not change the client's body."""
    vendor_fields = fields.peek(ADDITIONAL_FIELDS)
    if isinstance(vendor_fields, dict) or vendor_fields is None:
        fields.any(ADDITIONAL_FIELDS)
    return {name: {**each} if isinstance(each, dict) else each for name, each in members(vendor_fields).items()}


def _object(fields: Fields, name: str) -> Fields:
    """Take an object of the body, which is empty if absent or null."""
    inner = fields.maybe_child(name) or Fields({}, name)
    fields.any(name)
    return inner


def _settings(
    call: ApiRequest, fields: Fields, vendor_fields: dict[str, Json], vendor: Vendor
) -> tuple[Conversation, Fields, Fields, Fields]:
    """Read the settings as a conversation without messages, and return it with the objects that had them.

    Known settings are removed from those objects and from `vendor_fields`.
    """
    config = _object(fields, "inferenceConfig")
    limit, stops = config.integer("maxTokens", None), config.strings("stopSequences", ())
    sampling = take_sampling(config, {"temperature": "temperature", "top_p": "topP"})
    top_k = _take_path(vendor_fields, vendor.top_k, (int, float))
    if isinstance(top_k, int | float):
        sampling["top_k"] = top_k
    output = _object(fields, "outputConfig")
    form = _output(output)
    thinking = _thinking(_effort(output, vendor_fields, vendor), vendor_fields, vendor)
    metadata = _object(fields, "requestMetadata")
    user = metadata.text(USER_FIELD, "") if isinstance(metadata.peek(USER_FIELD), str) else ""
    settings = Conversation(
        call.model,
        (),
        output=form,
        thinking=thinking,
        max_tokens=limit,
        stop=stops,
        sampling=sampling,
        stream=call.stream,
        user=user,
    )
    return settings, config, output, metadata


def _output(config: Fields) -> Output:
    """Return the output format. A format of an unknown type stays among the unknown fields."""
    form = config.peek("textFormat")
    if not isinstance(form, dict) or form.get("type") != "json_schema":
        return Output()
    inner = config.child("textFormat")
    inner.any("type")
    structure = inner.child("structure")
    schema = structure.child("jsonSchema")
    parsed = _schema(schema)
    name, unknown = schema.text("name", ""), schema.rest()
    outer = structure.rest() | ({"jsonSchema": unknown} if unknown else {})
    rest = to_extra_names(inner.rest()) | ({"structure": outer} if outer else {})
    return Output("schema", name, parsed, extra=EXTRAS.extra_of(rest))


def _effort(output: Fields, vendor_fields: dict[str, Json], vendor: Vendor) -> str:
    path = vendor.effort
    if path[:1] == ("outputConfig",):
        return output.text(path[1], "")
    effort = _take_path(vendor_fields, path[1:], (str,))
    return effort if isinstance(effort, str) else ""


def _thinking(effort: str, vendor_fields: dict[str, Json], vendor: Vendor) -> Thinking:
    body = vendor_fields.get("thinking")
    if not vendor.claude_fields or not isinstance(body, dict):
        return Thinking(effort=effort)
    mode, budget, display = _THINKING.get(str(body.get("type"))), body.get("budget_tokens"), body.get("display")
    is_known = {"type", "budget_tokens", "display"} >= body.keys()
    if mode is None or not is_known or type(budget) not in (int, type(None)) or display not in (None, *_DISPLAYS):
        return Thinking(effort=effort)
    if budget is not None and mode != "on":
        return Thinking(effort=effort)
    del vendor_fields["thinking"]
    show = _DISPLAYS[display] if isinstance(display, str) else None
    return Thinking(mode, effort, budget if isinstance(budget, int) else None, show)  # type: ignore[arg-type]


def _take_path(vendor_fields: dict[str, Json], path: tuple[str, ...], kinds: tuple[type, ...]) -> Json:
    """Remove and return the value at a path of one or two names if it has one of the types, else return None.

    An object that becomes empty is removed too.
    """
    if not path:
        return None
    *outer, name = path
    parent = vendor_fields if not outer else vendor_fields.get(outer[0])
    if not isinstance(parent, dict) or type(parent.get(name)) not in kinds:
        return None
    value = parent.pop(name)
    if outer and not parent:
        del vendor_fields[outer[0]]
    return value


def _schema(fields: Fields) -> dict[str, Json]:
    """Return the schema, which is JSON within a string."""
    text = fields.text("schema")
    try:
        value = jsonio.decode(text)
    except jsonio.JsonError as error:
        fields.fail("schema", f"not JSON: {error}")
    if not isinstance(value, dict):
        fields.fail("schema", "expected the text of a JSON object")
    return value


# --- settings, rendering


def render_settings(conversation: Conversation, vendor: Vendor) -> dict[str, Json]:
    """Return all settings except toolConfig. Raises Unrepresentable for a setting that the model lacks."""
    body: dict[str, Json] = {}
    vendor_fields: dict[str, Json] = {}
    config = _render_inference(conversation, vendor, vendor_fields)
    if config:
        body["inferenceConfig"] = config
    output = _render_output(conversation.output)
    effort = conversation.thinking.effort
    if effort:
        if not vendor.effort:
            raise Unrepresentable("Bedrock has no thinking effort for this model", at="reasoning_effort")
        (output if vendor.effort[0] == "outputConfig" else vendor_fields)[vendor.effort[1]] = effort
    if output:
        body["outputConfig"] = output
    if conversation.thinking.mode != "default":
        vendor_fields["thinking"] = _render_thinking(conversation.thinking, vendor)
    if choice := render_vendor_choice(conversation.tool_choice, vendor):
        vendor_fields["tool_choice"] = choice
    if vendor_fields:
        body[ADDITIONAL_FIELDS] = vendor_fields
    if conversation.user:
        body["requestMetadata"] = {USER_FIELD: conversation.user}
    return body


def _render_inference(conversation: Conversation, vendor: Vendor, vendor_fields: dict[str, Json]) -> dict[str, Json]:
    config: dict[str, Json] = {}
    if conversation.max_tokens is not None:
        config["maxTokens"] = conversation.max_tokens
    for setting, value in conversation.sampling.items():
        if setting in ("temperature", "top_p"):
            config["temperature" if setting == "temperature" else "topP"] = value
        elif setting == "top_k" and vendor.top_k:
            *outer, name = vendor.top_k
            parent: dict[str, Json] = vendor_fields.setdefault(outer[0], {}) if outer else vendor_fields  # type: ignore[assignment]
            parent[name] = value
        else:
            raise Unrepresentable(f"Bedrock has no setting {setting} for this model; leave it out", at=setting)
    if conversation.stop:
        config["stopSequences"] = list(conversation.stop)
    return config


def _render_output(output: Output) -> dict[str, Json]:
    if output.kind == "text":
        return {}
    if output.kind == "json":
        raise Unrepresentable(
            "Bedrock has no JSON output without a schema: give one, or ask for text", at="response_format"
        )
    if output.strict is not None:
        raise Unrepresentable("Bedrock has no strict flag for an output schema; leave it out", at="response_format")
    schema: dict[str, Json] = {"schema": jsonio.encode({**(output.schema or {})}).decode()}
    if output.name:
        schema["name"] = output.name
    form: dict[str, Json] = {"type": "json_schema", "structure": {"jsonSchema": schema}}
    return {"textFormat": EXTRAS.with_extra(form, output.extra)}


def _render_thinking(thinking: Thinking, vendor: Vendor) -> Json:
    if not vendor.claude_fields or thinking.mode not in _THINKING_TYPES:
        raise Unrepresentable(f"Bedrock cannot express thinking {thinking.mode!r} for this model", at="thinking")
    body: dict[str, Json] = {"type": _THINKING_TYPES[thinking.mode]}
    if thinking.budget is not None:
        if thinking.mode != "on":
            raise Unrepresentable("Bedrock has a thinking budget only for thinking that is on", at="thinking")
        body["budget_tokens"] = thinking.budget
    if thinking.show is not None:
        body["display"] = "summarized" if thinking.show else "omitted"
    return body

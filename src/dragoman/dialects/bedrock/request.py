"""Reader and writer of requests: the body of Converse and ConverseStream and the canonical conversation."""

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

# --- Tools and the choice among them, both directions: toolConfig, and what a vendor takes of a choice besides

# --- reading


def parse_tools(config: Fields) -> tuple[ToolSpec | Opaque, ...]:
    """Read the tools, in which a cache point marks the tool before it."""
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
    known: dict[str, Json] = NO_PARAMETERS
    bare = False
    if isinstance(schema, dict) and isinstance(inner, dict) and len(schema) == 1:
        spec.any("inputSchema")
        known = inner
    elif bare := schema in (None, {}, {"json": None}):
        spec.any("inputSchema")
    at = Location(fields.at, is_absent=bare)
    return ToolSpec(
        name, description, known, None, strict, extra=with_sibling_fields(EXTRAS.extra(spec), fields), at=at
    )


def parse_choice(config: Fields, free: dict[str, Json], vendor: Vendor) -> ToolChoice:
    """toolChoice, and what it has no word for: `none`, and whether calls may be parallel.

    That is taken from the fields that are for the vendor alone, unless it says what we have no word for.
    """
    said = _choice_fields(config)
    mode, names = ("auto", ()) if said is None else _choice(said)
    at = Location("additionalModelRequestFields.tool_choice" if said is None else said.at)
    is_unknown = said is None and config.peek("toolChoice") is not None  # both stay as they are
    more = free.pop("tool_choice", None) if vendor.claude_fields and not is_unknown else None
    rest = {**more} if isinstance(more, dict) else {}
    kind, alone, name = (rest.pop(each, None) for each in ("type", "disable_parallel_tool_use", "name"))
    fits = isinstance(kind, str) and kind in CLAUDE_TOOL_CHOICES and type(alone) in (bool, type(None)) and not rest
    if not fits or (kind == "tool") != (isinstance(name, str) and bool(name)):
        if more is not None:
            free["tool_choice"] = more
        return ToolChoice(mode, names, at=at)  # type: ignore[arg-type]  # CLAUDE_MODES has them all
    if mode == "auto":
        mode, names = CLAUDE_TOOL_CHOICES[str(kind)], (str(name),) if name else ()
    return ToolChoice(mode, names, None if alone is None else not alone, at)  # type: ignore[arg-type]


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


def _choice(said: Fields) -> tuple[str, tuple[str, ...]]:
    for name in ("auto", "any"):
        if said.peek(name) is not None:
            said.child(name)
            return name, ()
    if said.peek("tool") is not None:
        name = said.child("tool").text("name")
        if not name:
            said.fail("tool", "expected a name that is not empty")
        return "one", (name,)
    return "auto", ()


# --- rendering


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
        del body["inputSchema"]  # it came as something else than an object, and goes back as it came
    return {"toolSpec": EXTRAS.with_extra(body, tool.extra)} | sibling_fields(tool.extra)


def render_choice(choice: ToolChoice, forced: Sequence[str] = ("any", "one")) -> dict[str, Json]:
    """toolChoice, if there is something to say in it."""
    if (choice.mode == "one") != (len(choice.names) == 1) or (choice.names and choice.mode != "one"):
        raise Unrepresentable("bedrock cannot limit the tool choice to some tools", at="tool_choice")
    if choice.mode not in forced:
        return {}
    return {"toolChoice": {"tool": {"name": choice.names[0]}} if choice.mode == "one" else {"any": {}}}


def render_free_choice(choice: ToolChoice, vendor: Vendor) -> Json:
    """What toolChoice has no word for, in the words of the one vendor that has."""
    if choice.mode != "none" and choice.parallel is None:
        return None
    if not vendor.claude_fields:
        raise Unrepresentable(f"tool choice {choice.mode!r} with a flag has no place here", at="tool_choice")
    return render_claude_choice(choice)


_NO_PROMPTS = (
    "the prompt that the variables are for is held by Bedrock, and this upstream does not have it; send its text in"
    " `system` and `messages`"
)
_ROLES: dict[str, Role] = {"user": "user", "assistant": "assistant", "system": "system"}

# --- reading


@guard_depth(MalformedRequest)
def parse_request(call: ApiRequest, vendor: Vendor) -> Conversation:
    """Read a request. Raises MalformedRequest, naming the place."""
    fields = Fields(call.body)
    free = _free(fields)
    asked, *read = _settings(call, fields, free, vendor)
    messages = tuple(map(_message, fields.children("messages", [])))
    system = _system(fields.children("system", []))
    config = _object(fields, "toolConfig")
    tools, choice = parse_tools(config), parse_choice(config, free, vendor)
    left: dict[str, Json] = {each.at: rest for each in (*read, config) if (rest := each.rest())}
    held = (ServerState("promptVariables", "promptVariables", _NO_PROMPTS),) if fields.peek("promptVariables") else ()
    extra = EXTRAS.extra_of(to_extra_names(fields.rest()) | left | ({ADDITIONAL_FIELDS: free} if free else {}))
    conversation = structs.replace(
        asked, messages=messages, system=system, tools=tools, tool_choice=choice, server_state=held, extra=extra
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
        if isinstance(block, Opaque):  # it keeps its place as a text that says nothing: this list holds nothing else
            block = Text(
                "", extra=EXTRAS.extra_of(to_extra_names(EXTRAS.own_data(block, MalformedRequest))), at=block.at
            )
        elif not isinstance(block, Text):
            raise MalformedRequest("expected text: a system prompt holds nothing else", at=block.at.path)
        texts.append(block)
    return tuple(texts)


# --- rendering


@guard_depth(Unrepresentable)
def render_request(conversation: Conversation, vendor: Vendor) -> ApiRequest:
    """Write a request. Raises Unrepresentable for content that this dialect cannot express."""
    if conversation.choices != 1:
        raise Unrepresentable("bedrock returns one reply per request", at="n")
    if conversation.previous_id is not None:
        raise Unrepresentable("bedrock cannot continue a stored response", at="previous_response_id")
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
        raise Unrepresentable("there are no tools to choose from", at="tool_choice")
    body |= render_settings(conversation, vendor)
    return ApiRequest("generate", conversation.model, conversation.stream, EXTRAS.with_extra(body, conversation.extra))


def _render_system(system: Sequence[Text]) -> list[Json]:
    blocks: list[Json] = []
    for text in system:
        body = render_text(text, Unrepresentable)
        if not text.text and len(body) > 1:
            del body["text"]  # it stands for a block that is no text
        blocks += [body, render_cache_point(text.cache)] if text.cache else [body]
    return blocks


# --- settings, both directions: inferenceConfig, outputConfig, and what a vendor takes besides

ADDITIONAL_FIELDS = "additionalModelRequestFields"
USER_FIELD = "user_id"

_THINKING = {"enabled": "on", "disabled": "off", "adaptive": "adaptive"}
_THINKING_TYPES = {mode: name for name, mode in _THINKING.items()}
_DISPLAYS = {"summarized": True, "omitted": False}


def _free(fields: Fields) -> dict[str, Json]:
    """Take what is for the vendor alone, copied: taking from it changes nothing of the client's."""
    free = fields.peek(ADDITIONAL_FIELDS)
    if isinstance(free, dict) or free is None:
        fields.any(ADDITIONAL_FIELDS)
    return {name: {**each} if isinstance(each, dict) else each for name, each in members(free).items()}


def _object(fields: Fields, name: str) -> Fields:
    """Take an object of the body; one that is absent or null is empty."""
    inner = fields.maybe_child(name) or Fields({}, name)
    fields.any(name)
    return inner


def _settings(
    call: ApiRequest, fields: Fields, free: dict[str, Json], vendor: Vendor
) -> tuple[Conversation, Fields, Fields, Fields]:
    """What a request says about the answer, as a conversation without messages, and the objects it was taken of.

    What is known is taken of `free`, too.
    """
    config = _object(fields, "inferenceConfig")
    limit, stops = config.integer("maxTokens", None), config.strings("stopSequences", ())
    sampling = take_sampling(config, {"temperature": "temperature", "top_p": "topP"})
    top_k = _taken(free, vendor.top_k, (int, float))
    if isinstance(top_k, int | float):
        sampling["top_k"] = top_k
    output = _object(fields, "outputConfig")
    form = _output(output)
    thinking = _thinking(_effort(output, free, vendor), free, vendor)
    metadata = _object(fields, "requestMetadata")
    user = metadata.text(USER_FIELD, "") if isinstance(metadata.peek(USER_FIELD), str) else ""
    asked = Conversation(
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
    return asked, config, output, metadata


def _output(config: Fields) -> Output:
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
    rest = to_extra_names(inner.rest()) | ({"structure": more} if more else {})
    return Output("schema", name, said, extra=EXTRAS.extra_of(rest))


def _effort(output: Fields, free: dict[str, Json], vendor: Vendor) -> str:
    where = vendor.effort
    if where[:1] == ("outputConfig",):
        return output.text(where[1], "")
    said = _taken(free, where[1:], (str,))
    return said if isinstance(said, str) else ""


def _thinking(effort: str, free: dict[str, Json], vendor: Vendor) -> Thinking:
    said = free.get("thinking")
    if not vendor.claude_fields or not isinstance(said, dict):
        return Thinking(effort=effort)
    mode, budget, display = _THINKING.get(str(said.get("type"))), said.get("budget_tokens"), said.get("display")
    known = {"type", "budget_tokens", "display"} >= said.keys()
    if mode is None or not known or type(budget) not in (int, type(None)) or display not in (None, *_DISPLAYS):
        return Thinking(effort=effort)
    if budget is not None and mode != "on":
        return Thinking(effort=effort)
    del free["thinking"]
    show = _DISPLAYS[display] if isinstance(display, str) else None
    return Thinking(mode, effort, budget if isinstance(budget, int) else None, show)  # type: ignore[arg-type]


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
            raise Unrepresentable("bedrock has no effort of thinking for this model", at="reasoning_effort")
        (output if vendor.effort[0] == "outputConfig" else free)[vendor.effort[1]] = effort
    if output:
        body["outputConfig"] = output
    if conversation.thinking.mode != "default":
        free["thinking"] = _render_thinking(conversation.thinking, vendor)
    if more := render_free_choice(conversation.tool_choice, vendor):
        free["tool_choice"] = more
    if free:
        body[ADDITIONAL_FIELDS] = free
    if conversation.user:
        body["requestMetadata"] = {USER_FIELD: conversation.user}
    return body


def _render_inference(conversation: Conversation, vendor: Vendor, free: dict[str, Json]) -> dict[str, Json]:
    config: dict[str, Json] = {}
    if conversation.max_tokens is not None:
        config["maxTokens"] = conversation.max_tokens
    for setting, value in conversation.sampling.items():
        if setting in ("temperature", "top_p"):
            config["temperature" if setting == "temperature" else "topP"] = value
        elif setting == "top_k" and vendor.top_k:
            *outer, name = vendor.top_k
            place: dict[str, Json] = free.setdefault(outer[0], {}) if outer else free  # type: ignore[assignment]
            place[name] = value
        else:
            raise Unrepresentable(f"bedrock has no setting {setting} for this model", at=setting)
    if conversation.stop:
        config["stopSequences"] = list(conversation.stop)
    return config


def _render_output(output: Output) -> dict[str, Json]:
    if output.kind == "text":
        return {}
    if output.kind == "json":
        raise Unrepresentable("bedrock has no JSON output without a schema", at="response_format")
    if output.strict is not None:
        raise Unrepresentable("an output schema of bedrock has no strict flag", at="response_format")
    schema: dict[str, Json] = {"schema": jsonio.encode({**(output.schema or {})}).decode()}
    if output.name:
        schema["name"] = output.name
    form: dict[str, Json] = {"type": "json_schema", "structure": {"jsonSchema": schema}}
    return {"textFormat": EXTRAS.with_extra(form, output.extra)}


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

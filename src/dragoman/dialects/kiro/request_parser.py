"""Parse Kiro requests: `conversationState` with its turns, of which the last is the current message. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct, structs

from dragoman.dialects.base import ApiRequest
from dragoman.dialects.kiro.request import (
    ADAPTIVE_THINKING,
    ASSISTANT_MESSAGE,
    CONVERSATION_STATE,
    FAMILY,
    IDENTITY,
    MESSAGE_CONTEXT,
    MODEL_FIELDS,
    NO_PARAMETERS,
    USER_MESSAGE,
    KiroSettings,
    extra_of,
    own_fields,
    set_model_names,
    to_json_object,
)
from dragoman.dialects.kit.values import base64_bytes, items, json_text, members
from dragoman.errors import DragomanError, MalformedRequest
from dragoman.model.blocks import (
    Block,
    Extra,
    Location,
    Media,
    Opaque,
    Reasoning,
    Signature,
    Text,
    ToolCall,
    ToolResult,
)
from dragoman.model.conversation import (
    PARENT_PREFIX,
    Conversation,
    Message,
    Thinking,
    ToolSpec,
    to_canonical,
    to_extra_names,
)
from dragoman.model.parts import part_text, read_loose_part
from dragoman.wire.fields import Fields
from dragoman.wire.jsonio import Json

_STATUSES = {"success": False, "error": True, "failed": True, "failure": True}


def parse_request(call: ApiRequest, settings: KiroSettings) -> Conversation:
    """Parse a request. Raises MalformedRequest, which names the path of the fault."""
    try:
        return to_canonical(_conversation(call, settings))
    except RecursionError:
        raise MalformedRequest("the request is nested too deeply") from None


def _conversation(call: ApiRequest, settings: KiroSettings) -> Conversation:
    fields = Fields(call.body)
    state = fields.child(CONVERSATION_STATE)
    current = state.child("currentMessage")
    tools, current = _take_tools(current)
    entries = [*state.children("history", []), current]
    extra_fields: dict[str, Json] = {}
    thinking = _thinking(fields, extra_fields)
    if state.peek("chatTriggerType") in (None, "MANUAL"):
        state.any("chatTriggerType")
    for name, source in (("conversationId", state), ("profileArn", fields)):
        if (value := source.text(name, "")) and value != settings.profile_arn:
            extra_fields[name] = value
    if rest := state.rest():
        extra_fields[CONVERSATION_STATE] = rest
    return Conversation(
        call.model,
        tuple(parse_turn(entry, settings.origin) for entry in entries),
        tools=tools,
        thinking=thinking,
        stream=call.stream,
        hints=Extra(FAMILY, {**call.hints}) if call.hints else None,
        extra=extra_of({**fields.rest(), **extra_fields}, IDENTITY),
    )


def _take_tools(current: Fields) -> tuple[tuple[ToolSpec | Opaque, ...], Fields]:
    """Return the tools, which are inside the current message, and that message without them."""
    user = current.peek(USER_MESSAGE)
    context = user.get(MESSAGE_CONTEXT) if isinstance(user, dict) else None
    if not isinstance(user, dict) or not isinstance(context, dict) or "tools" not in context:
        return (), current
    at = f"{current.path(USER_MESSAGE)}.{MESSAGE_CONTEXT}"
    tools = tuple(map(_tool, Fields(context, at).children("tools", [])))
    rest: dict[str, Json] = {name: value for name, value in context.items() if name != "tools"}
    body: dict[str, Json] = {name: value for name, value in user.items() if name != MESSAGE_CONTEXT}
    if rest:
        body[MESSAGE_CONTEXT] = rest
    return tools, Fields({**current.rest(), USER_MESSAGE: body}, current.at)


def _tool(fields: Fields) -> ToolSpec | Opaque:
    spec = fields.maybe_child("toolSpecification")
    if spec is None:
        whole = fields.rest()
        return Opaque(FAMILY, whole, next(iter(whole), ""), at=Location(fields.at))
    name, description = spec.identifier("name"), spec.text("description", "")
    input_schema = spec.maybe_child("inputSchema")
    spec.any("inputSchema")
    schema = input_schema.any("json") if input_schema else None
    parameters = schema if isinstance(schema, dict) else NO_PARAMETERS
    unknown = {"inputSchema": rest} if input_schema and (rest := input_schema.rest()) else {}
    extra = with_parent_fields(extra_of({**spec.rest(), **unknown}), fields)
    at = Location(spec.at, is_absent=not isinstance(schema, dict))
    return ToolSpec(name, description, parameters, extra=extra, at=at)


def _thinking(fields: Fields, extra_fields: dict[str, Json]) -> Thinking:
    """Take the thinking setting in either vendor's fields; other model fields are added to `extra_fields`."""
    model_fields = fields.peek(MODEL_FIELDS)
    if not isinstance(model_fields, dict):
        return Thinking()
    fields.any(MODEL_FIELDS)
    rest = {**model_fields}
    effort = ""
    for name in ("output_config", "reasoning"):
        match rest.get(name):
            case {"effort": str(value), **others} if not others and not effort:
                effort = value
                del rest[name]
    adaptive = rest.get("thinking") == ADAPTIVE_THINKING
    if adaptive:
        del rest["thinking"]
    if rest:
        extra_fields[MODEL_FIELDS] = rest
    return Thinking("adaptive" if adaptive else "default", effort)


def with_json_turns(call: ApiRequest) -> ApiRequest:
    """Return the request with a body of JSON values only: the turns of a rendered request are Structs."""
    state = members(members(call.body).get(CONVERSATION_STATE))
    if not any(isinstance(turn, Struct) for turn in (*items(state.get("history")), state.get("currentMessage"))):
        return call
    return structs.replace(call, body=set_model_names(to_json_object(call.body), call.model, named=False))


# --- turns: an entry of history, or the current message


def parse_turn(entry: Fields, origin: str) -> Message:
    """Parse an entry of history, or the current message. Raises MalformedRequest."""
    if (user := entry.maybe_child(USER_MESSAGE)) is not None:
        turn = _parse_user(user, origin)
    elif (assistant := entry.maybe_child(ASSISTANT_MESSAGE)) is not None:
        turn = _parse_assistant(assistant)
    else:
        raise entry.blame(f"expected {USER_MESSAGE} or {ASSISTANT_MESSAGE}", at=entry.at)
    extra = with_parent_fields(turn.extra, entry)
    return turn if extra is turn.extra else structs.replace(turn, extra=extra)


def _parse_user(fields: Fields, origin: str) -> Message:
    blocks: list[Block] = []
    unknown: dict[str, Json] = {}
    context = fields.maybe_child(MESSAGE_CONTEXT)
    if context is not None:
        blocks.extend(map(parse_result, context.children("toolResults", [])))
        if rest := context.rest():
            unknown[MESSAGE_CONTEXT] = rest
    if content := fields.text("content", ""):
        blocks.append(Text(content, at=Location(fields.path("content"))))
    blocks.extend(map(_parse_image, fields.children("images", [])))
    if fields.peek("origin") == origin:
        fields.any("origin")
    return Message(
        "user", tuple(blocks), extra=extra_of({**_unknown_fields(fields), **unknown}), at=Location(fields.at)
    )


def _parse_assistant(fields: Fields) -> Message:
    blocks: list[Block] = list(_parse_thought(fields))
    if content := fields.text("content", ""):
        blocks.append(Text(content, at=Location(fields.path("content"))))
    blocks.extend(map(_parse_use, fields.children("toolUses", [])))
    return Message("assistant", tuple(blocks), extra=extra_of(_unknown_fields(fields)), at=Location(fields.at))


def _unknown_fields(fields: Fields) -> dict[str, Json]:
    """Return the fields that were not taken; a null counts as absent."""
    return {name: value for name, value in fields.rest().items() if value is not None}


def with_parent_fields(extra: Extra | None, parent: Fields) -> Extra | None:
    """Return the unknown fields of a node together with those of its parent object."""
    of_parent = {PARENT_PREFIX + name: value for name, value in to_extra_names(_unknown_fields(parent)).items()}
    return Extra(FAMILY, {**own_fields(extra), **of_parent}) if of_parent else extra


def _parse_thought(fields: Fields) -> Iterator[Reasoning]:
    """Yield the reasoning of a turn in history. An unknown form stays among the unknown fields of the turn."""
    match fields.peek("reasoningContent"):
        case {"reasoningText": {"text": str(text), "signature": str(signature_data)}, **rest} if not rest:
            signature = Signature(FAMILY, signature_data)
        case {"redactedContent": str(data), **rest} if not rest:
            text, signature = "", Signature(FAMILY, data, "redacted")
        case _:
            return
    fields.any("reasoningContent")
    yield Reasoning(text, FAMILY, signature, at=Location(fields.path("reasoningContent")))


def _parse_use(fields: Fields) -> ToolCall:
    call_id, name = fields.identifier("toolUseId"), fields.identifier("name")
    value = fields.any("input")
    arguments = "" if value is None else json_text(value, fields.path("input"), fields.blame)
    return ToolCall(call_id, name, arguments, extra=extra_of(fields.rest()), at=Location(fields.at))


def parse_result(fields: Fields) -> ToolResult:
    """Parse a tool result. Its content may be an array of parts, one part, a string, or missing.

    See docs/decisions/content.md#d1, #d2.
    """
    call_id = fields.identifier("toolUseId")
    status = fields.peek("status")
    is_error = isinstance(status, str) and _STATUSES.get(status.lower(), False)
    if status in (None, "success", "error"):
        fields.any("status")
    content = tuple(_result_parts(fields.any("content"), fields.path("content"), fields.blame))
    return ToolResult(call_id, content, is_error, extra=extra_of(fields.rest()), at=Location(fields.at))


def _result_parts(value: Json, at: str, blame: type[DragomanError]) -> Iterator[Text | Media | Opaque]:
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from _result_parts(item, f"{at}[{index}]", blame)
    elif isinstance(value, dict) and value.keys() == {"json"} and (words := part_text(value)).is_whole:
        # Other dialects get the text; an upstream of this dialect gets the original part.
        yield Text(words.text, extra=Extra(FAMILY, value, frozenset(value)), at=Location(at))
    elif value is not None and value != "" and (part := read_loose_part(FAMILY, value, Location(at))) != Text(""):
        yield part


def _parse_image(fields: Fields) -> Media:
    kind, source = fields.identifier("format"), fields.child("source")
    data = source.identifier("bytes")
    if base64_bytes(data) is None:
        source.fail("bytes", "expected base64 data")
    unknown = {"source": rest} if (rest := source.rest()) else {}
    return Media(
        "image", f"image/{kind}", "base64", data, extra=extra_of({**fields.rest(), **unknown}), at=Location(fields.at)
    )

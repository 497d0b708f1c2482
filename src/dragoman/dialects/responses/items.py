"""Parse and render input items of the Responses API. Items of unknown types are kept whole. Pure."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Literal, TypeAlias

from msgspec import structs

from dragoman.dialects.kit.openai_requests import arguments_text, refuse_cache_and_signature
from dragoman.dialects.kit.values import describe_block, unrepresentable
from dragoman.dialects.responses.blocks import (
    API_NAME,
    EXTRAS,
    FAMILY,
    MESSAGE_PART,
    is_message_field,
    object_of,
    parse_content,
    parse_reasoning,
    parse_tool_output,
    render_content,
    render_reasoning,
    text_of,
)
from dragoman.dialects.responses.tools import (
    ADDITIONAL_TOOLS,
    CALL_TYPE,
    TOOL_SEARCH_CALL,
    TOOL_SEARCH_OUTPUT,
    client_call_id,
    join_names,
    namespace_fields,
    original_names,
    render_search,
)
from dragoman.dialects.responses.web_search import is_our_search, web_search_effects
from dragoman.model.blocks import (
    Block,
    Effect,
    Location,
    Media,
    Opaque,
    Reasoning,
    Summary,
    SummaryRequest,
    Text,
    ToolCall,
    ToolResult,
    Untranslatable,
    WebResults,
)
from dragoman.model.conversation import PARENT_PREFIX, Message, Role, ToolSpec, parent_fields, to_extra_names
from dragoman.wire import jsonio
from dragoman.wire.fields import Fields, describe
from dragoman.wire.jsonio import Json, JsonObject

ItemBlocks: TypeAlias = tuple[Role, Sequence[Block], Location]

INSTRUCTIONS = "~instructions"
ITEM_REFERENCE = "item_reference"  # an item that the service stores; its type may be left out
_HAS_CALL_ID = "~named"  # on a result of local_shell that has a call_id; usually its id is that of the call
_ROLES: dict[str, Role] = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}
# Calls of special types that the client runs: the tool's name, and the field with its arguments.
_CLIENT_CALLS = {"apply_patch_call": ("apply_patch", "operation"), "local_shell_call": ("local_shell", "action")}
_OUTPUTS = {
    "function_call_output": "function_call",
    "custom_tool_call_output": "custom_tool_call",
    "apply_patch_call_output": "apply_patch_call",
    "local_shell_call_output": "local_shell_call",
}
_USERS = frozenset({"agent_message", "mcp_approval_response", "compaction_trigger"})  # and all that end with _output
_SYSTEMS = frozenset({ADDITIONAL_TOOLS, "configuration_update"})
_COMPACTED = "the conversation is compacted into encrypted_content, which only the service that wrote it can read"
_COMPACTION = "compaction"
_COMPACTIONS = frozenset({_COMPACTION, "compaction_summary", "context_compaction"})  # the others are names of Codex
_COMPACTION_REQUEST = "compaction_trigger"
_OUR_SUMMARY = "dragoman:"  # the start of an encrypted_content that a summary of ours follows, as base64
_ITEM_FIELDS = ("id", "status")  # fields of an item that are not content


# --- wire to canonical


class ItemParser:
    """Reads items in order. The type of a call decides which type of output is usual for it."""

    def __init__(self) -> None:
        self._kinds: dict[str, str] = {}  # the types of the calls so far, by call id
        self._readers: dict[str, Callable[[Fields], ItemBlocks]] = {
            "message": self._message,
            "reasoning": lambda fields: ("assistant", [parse_reasoning(fields)], Location(fields.at)),
            "function_call": self._call,
            "custom_tool_call": self._call,
            **dict.fromkeys(_CLIENT_CALLS, self._client_call),
            **dict.fromkeys(_OUTPUTS, self._output),
        }

    def parse(self, value: Json) -> list[Message]:
        """Return the turns of `input`; consecutive assistant items are one turn. Raises MalformedRequest."""
        if isinstance(value, str):
            return [Message("user", (Text(value, at=Location("input")),) if value else (), at=Location("input"))]
        if isinstance(value, dict):
            value = [value]  # a lone item
        if not isinstance(value, list):
            raise Fields({}).blame(f"expected a string or an array, got {describe(value)}", at="input")
        turns: list[Message] = []
        reply_blocks: list[Block] = []  # the blocks of the assistant's turn at the end of `turns`
        for index, item in enumerate(value):
            role, blocks, at = self._item(Fields(item, f"input[{index}]"))
            if role == "assistant" and turns and turns[-1].role == "assistant":
                reply_blocks.extend(blocks)
                continue
            turns = _with_blocks(turns, reply_blocks)
            reply_blocks = list(blocks) if role == "assistant" else []
            turns.append(Message(role, () if role == "assistant" else tuple(blocks), at=at))
        return _with_blocks(turns, reply_blocks)

    def _item(self, fields: Fields) -> ItemBlocks:
        kind = fields.peek("type")
        if kind is None and fields.has("role"):
            kind = "message"
        elif kind is None and fields.has("id"):
            kind = ITEM_REFERENCE
        if not isinstance(kind, str):
            fields.fail("type", f"expected a string, got {describe(kind)}")
        reader = self._readers.get(kind)
        return _whole(fields, kind) if reader is None else reader(fields)

    def _message(self, fields: Fields) -> ItemBlocks:
        fields.any("type")
        word = fields.text("role").lower()
        if word not in _ROLES:
            fields.fail("role", f"expected one of {', '.join(_ROLES)}")
        content = fields.any("content")
        message_fields = take_message_fields(fields)
        if word == "developer":
            message_fields["~role"] = word
        return _ROLES[word], parse_content(content, fields.path("content"), message_fields), Location(fields.at)

    def _call(self, fields: Fields) -> ItemBlocks:
        call = parse_call(fields)
        self._kinds[call.id] = "custom_tool_call" if call.form == "text" else "function_call"
        return "assistant", [call], call.at

    def _client_call(self, fields: Fields) -> ItemBlocks:
        kind = fields.text("type")
        call_id = text_of(fields.peek("call_id")) or text_of(fields.peek("id"))
        name, action = _CLIENT_CALLS[kind]
        if not call_id or fields.peek(action) is None:
            return (
                "assistant",
                [Opaque(FAMILY, {"type": kind, **fields.rest()}, kind, at=Location(fields.at))],
                Location(),
            )
        fields.any("call_id")
        arguments = jsonio.encode(fields.any(action)).decode()
        self._kinds[call_id] = kind
        extra = EXTRAS.extra_of({CALL_TYPE: kind, **about_item(fields)})
        return (
            "assistant",
            [ToolCall(call_id, name, arguments, extra=extra, at=Location(fields.at))],
            Location(fields.at),
        )

    def _output(self, fields: Fields) -> ItemBlocks:
        kind = fields.text("type")
        id_field = "id" if kind == "local_shell_call_output" and fields.peek("call_id") is None else "call_id"
        call_id, output = fields.identifier(id_field), fields.any("output")
        content = parse_tool_output(output, fields.path("output"))
        rest = about_item(fields)
        if self._kinds.get(call_id, "function_call") != _OUTPUTS[kind]:
            rest[CALL_TYPE] = kind
        if kind == "local_shell_call_output" and id_field == "call_id":
            rest[_HAS_CALL_ID] = id_field
        at = Location(fields.at, is_absent=output is None)
        return "user", [ToolResult(call_id, content, extra=EXTRAS.extra_of(rest), at=at)], at


def _with_blocks(turns: list[Message], reply_blocks: Sequence[Block]) -> list[Message]:
    """Return the turns, with these blocks in the last one."""
    return [*turns[:-1], structs.replace(turns[-1], blocks=tuple(reply_blocks))] if reply_blocks else turns


def take_message_fields(fields: Fields) -> JsonObject:
    """Return the fields of a message apart from its content, as marks that each of its blocks carries."""
    about: JsonObject = {name: value for name in _ITEM_FIELDS if (value := fields.any(name)) is not None}
    rest: JsonObject = {
        f"{PARENT_PREFIX}{name}": value for name, value in to_extra_names(fields.rest()).items() if value is not None
    }
    return {"~message": about, **rest} if about else rest


def about_item(fields: Fields) -> JsonObject:
    """Return the unread fields of an item: id and status as spelling, the others unchanged."""
    about: JsonObject = {f"~{name}": value for name in _ITEM_FIELDS if (value := fields.any(name)) is not None}
    return {**about, **{name: value for name, value in to_extra_names(fields.rest()).items() if value is not None}}


def parse_call(fields: Fields) -> ToolCall:
    """Read a function_call or a custom_tool_call of a request or a reply."""
    is_custom = fields.text("type") == "custom_tool_call"
    call_id, name, namespace = fields.identifier("call_id"), fields.identifier("name"), fields.text("namespace", "")
    arguments = arguments_text(fields.any("input" if is_custom else "arguments"))
    rest = about_item(fields) | namespace_fields(namespace, name)
    form: Literal["json", "text"] = "text" if is_custom else "json"
    return ToolCall(
        call_id, join_names(namespace, name), arguments, form, extra=EXTRAS.extra_of(rest), at=Location(fields.at)
    )


def _whole(fields: Fields, kind: str) -> ItemBlocks:
    """Keep an item of another type whole, in the turn of its author: system, user or assistant."""
    data = fields.rest()
    is_service_search = kind in (TOOL_SEARCH_CALL, TOOL_SEARCH_OUTPUT) and not client_call_id(data)
    if kind in _SYSTEMS:
        role: Role = "system"
    else:
        role = "user" if (kind.endswith("_output") and not is_service_search) or kind in _USERS else "assistant"
    effects = _compaction_effects(kind, data)
    if effects and isinstance(effects[0], Summary):
        role = "user"
    if is_our_search(data):
        effects, data = tuple(filter(_is_known, web_search_effects(data))), {}
    whole = Opaque(FAMILY, data, kind, is_redundant=kind == ADDITIONAL_TOOLS, effects=effects, at=Location(fields.at))
    return role, [whole], Location(fields.at)


def _is_known(effect: Effect) -> bool:
    """Return whether the item says what the effect is: the pages are in it only if the client has asked for them."""
    return not isinstance(effect, WebResults) or bool(effect.pages or effect.error)


def _compaction_effects(kind: str, data: JsonObject) -> tuple[Effect, ...]:
    if kind == _COMPACTION_REQUEST:
        return (SummaryRequest(),)
    if kind not in _COMPACTIONS:
        return ()
    marker, ours, encoded = text_of(data.get("encrypted_content")).partition(_OUR_SUMMARY)
    if ours and not marker:
        try:
            return (Summary(base64.b64decode(encoded, validate=True).decode("utf-8", "surrogatepass"), is_ours=True),)
        except ValueError:
            pass  # cut or changed by the client
    return (Untranslatable(_COMPACTED),)


# --- canonical to wire


def render_summary(text: str) -> JsonObject:
    """Write a summary of ours as the item that a compaction returns, without its id."""
    encoded = base64.b64encode(text.encode("utf-8", "surrogatepass")).decode()
    return {"type": _COMPACTION, "encrypted_content": f"{_OUR_SUMMARY}{encoded}"}


def render_items(
    system: Sequence[Text], messages: Iterable[Message], tools: Sequence[ToolSpec | Opaque] = ()
) -> list[Json]:
    """Write the items of `input`; `system` does not include the instructions. Raises Unrepresentable."""
    kinds: dict[str, str] = {}
    items: list[Json] = list(_messages("system", system, None))
    for message in messages:
        match message.role:
            case "assistant" if not message.blocks:
                items.extend(_messages("assistant", (), message))
            case "assistant":
                items.extend(render_assistant(message.blocks, kinds, tools))
            case "user":
                items.extend(_render_user(message, kinds))
            case role:
                items.extend(_messages(role, message.blocks, message))
    return items


def _render_user(message: Message, kinds: dict[str, str]) -> Iterator[Json]:
    results = [block for block in message.blocks if isinstance(block, ToolResult)]
    others = [block for block in message.blocks if not isinstance(block, ToolResult)]
    yield from (_render_result(result, kinds) for result in results)
    if others or not results:
        yield from _messages("user", others, message)


def _messages(role: Role, blocks: Sequence[Block], message: Message | None) -> Iterator[Json]:
    """Write the blocks as the message items they came in, with opaque items between them."""
    if not blocks and message is not None:
        yield {"type": "message", "role": role, "content": ""}
    for message_fields, group in groupby(blocks, _message_fields):
        members = list(group)
        if message_fields is None:
            yield from (_opaque(block) for block in members)
        else:
            kind = "output_text" if role == "assistant" else "input_text"
            head: JsonObject = {"type": "message", **object_of(message_fields.get("~message"))}
            head["role"] = text_of(message_fields.get("~role")) or role
            yield {**head, **parent_fields(message_fields), "content": render_content(members, kind)}


def _message_fields(block: Block) -> JsonObject | None:
    """Return the fields of a block's message; None if the block is an item itself."""
    own = EXTRAS.own_fields(block.extra)
    if isinstance(block, Opaque) and not own.get(MESSAGE_PART):
        return None
    return {name: value for name, value in own.items() if is_message_field(name)}


def _opaque(block: Block) -> Json:
    if isinstance(block, Opaque) and block.family == FAMILY:
        return block.data
    raise unrepresentable(block, f"Responses cannot represent {describe_block(block)}")


def render_assistant(
    blocks: Sequence[Block], kinds: dict[str, str] | None = None, tools: Sequence[ToolSpec | Opaque] = ()
) -> Iterator[Json]:
    """Write the blocks of an assistant's turn as items. The types of its calls are added to `kinds`."""
    for is_content, group in groupby(blocks, _is_content):
        if is_content:
            yield from _messages("assistant", list(group), None)
            continue
        for block in group:
            match block:
                case Reasoning():
                    yield render_reasoning(block)
                case ToolCall():
                    item = render_call(block)
                    if kinds is not None:
                        kinds[block.id] = text_of(item["type"])
                    yield item
                case Opaque(family, data) if family == FAMILY and not data and block.effects:
                    if item := render_search(block, tools):
                        yield item
                case _:
                    yield _opaque(block)


def _is_content(block: Block) -> bool:
    return isinstance(block, Text | Media) or (
        isinstance(block, Opaque) and EXTRAS.own_fields(block.extra).get(MESSAGE_PART) is True
    )


def render_call(call: ToolCall) -> JsonObject:
    """Write a call as an item. Raises Unrepresentable."""
    refuse_cache_and_signature(call, API_NAME)
    own = EXTRAS.own_fields(call.extra)
    kind = text_of(own.get(CALL_TYPE))
    if kind in _CLIENT_CALLS:
        action: JsonObject = {_CLIENT_CALLS[kind][1]: _decoded(call)}
        return {"type": kind, **_about(own), "call_id": call.id, **action, **EXTRAS.wire_fields(call.extra)}
    namespace, name = original_names(call)
    kind, field = ("custom_tool_call", "input") if call.form == "text" else ("function_call", "arguments")
    arguments = call.arguments if call.form == "text" else call.arguments or "{}"  # others parse it as JSON
    item: JsonObject = {"type": kind, **_about(own), "call_id": call.id, "name": name, field: arguments}
    if namespace:
        item["namespace"] = namespace
    return {**item, **EXTRAS.wire_fields(call.extra)}


def _about(own: Mapping[str, Json]) -> JsonObject:
    return {name: own[f"~{name}"] for name in _ITEM_FIELDS if f"~{name}" in own}


def _decoded(call: ToolCall) -> Json:
    try:
        return jsonio.decode(call.arguments or "{}")
    except jsonio.JsonError as error:
        raise unrepresentable(call, f"the arguments are not valid JSON: {error}") from None


def _render_result(result: ToolResult, kinds: dict[str, str]) -> Json:
    refuse_cache_and_signature(result, API_NAME)
    if result.is_error:
        raise unrepresentable(result, "a tool output of Responses cannot be marked as an error")
    own = EXTRAS.own_fields(result.extra)
    kind = text_of(own.get(CALL_TYPE)) or f"{kinds.get(result.call_id, 'function_call')}_output"
    head: JsonObject = {"type": kind, **_about(own)}
    head["id" if kind == "local_shell_call_output" and _HAS_CALL_ID not in own else "call_id"] = result.call_id
    return {**head, "output": render_content(result.content, "input_text"), **EXTRAS.wire_fields(result.extra)}

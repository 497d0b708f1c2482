"""Requests, both directions: `conversationState` and a conversation. The last turn is the current message."""

from __future__ import annotations

from hashlib import sha1
from typing import Any, Protocol
from uuid import NAMESPACE_URL, UUID, uuid5

from msgspec import structs

from dragoman.dialects.base import Call, in_cache_order
from dragoman.dialects.kiro.models import model_of
from dragoman.dialects.kiro.turns import (
    CONTEXT,
    FAMILY,
    IDENTITY,
    USER,
    extra_of,
    object_of,
    own_fields,
    parse_turn,
    render_turn,
    with_beside,
)
from dragoman.dialects.kit.kept import merged
from dragoman.dialects.kit.tools import tool_body
from dragoman.dialects.kit.values import members
from dragoman.errors import MalformedRequest, Unrepresentable
from dragoman.model.blocks import Extra, Opaque, Text, Where
from dragoman.model.conversation import (
    Conversation,
    Message,
    Output,
    Thinking,
    ToolChoice,
    ToolSpec,
    canonical,
    of_the_node,
    of_what_it_came_in,
)
from dragoman.wire import jsonio
from dragoman.wire.fields import Fields
from dragoman.wire.jsonio import Json

NO_PARAMETERS: dict[str, Json] = {"type": "object", "properties": {}}
_STATE, _FIELDS = "conversationState", "additionalModelRequestFields"
_ADAPTIVE: dict[str, Json] = {"type": "adaptive", "display": "summarized"}
_NAMESPACE = uuid5(NAMESPACE_URL, "dragoman:kiro:conversation")


class Settings(Protocol):
    """What the codec's settings say about requests."""

    @property
    def origin(self) -> str: ...
    @property
    def profile_arn(self) -> str: ...


def conversation_id(seed: str) -> str:
    """A UUID made of what stays the same through a conversation, so that its turns share it (D17)."""
    digest = sha1(_NAMESPACE.bytes + seed.encode("utf-8", "replace"), usedforsecurity=False).digest()
    return str(UUID(bytes=digest[:16], version=5))


# --- reading


def parse_request(call: Call, settings: Settings) -> Conversation:
    """Read a request. Raises MalformedRequest, naming the place."""
    try:
        return canonical(_conversation(call, settings))
    except RecursionError:
        raise MalformedRequest("nested too deeply") from None


def _conversation(call: Call, settings: Settings) -> Conversation:
    fields = Fields(call.body)
    state = fields.child(_STATE)
    current = state.child("currentMessage")
    tools, current = _take_tools(current)
    entries = [*state.children("history", []), current]
    kept: dict[str, Json] = {}
    thinking = _thinking(fields, kept)
    if state.peek("chatTriggerType") in (None, "MANUAL"):
        state.any("chatTriggerType")
    for name, source in (("conversationId", state), ("profileArn", fields)):
        if (value := source.text(name, "")) and value != settings.profile_arn:
            kept[name] = value
    if rest := state.rest():
        kept[_STATE] = rest
    return Conversation(
        call.model,
        tuple(parse_turn(entry, settings.origin) for entry in entries),
        tools=tools,
        thinking=thinking,
        stream=call.stream,
        hints=Extra(FAMILY, {**call.hints}) if call.hints else None,
        extra=extra_of({**fields.rest(), **kept}, IDENTITY),
    )


def _take_tools(current: Fields) -> tuple[tuple[ToolSpec | Opaque, ...], Fields]:
    """The tools, which stand inside the current message, and that message without them."""
    user = current.peek(USER)
    context = user.get(CONTEXT) if isinstance(user, dict) else None
    if not isinstance(user, dict) or not isinstance(context, dict) or "tools" not in context:
        return (), current
    at = f"{current.path(USER)}.{CONTEXT}"
    tools = tuple(map(_tool, Fields(context, at).children("tools", [])))
    rest: dict[str, Json] = {name: value for name, value in context.items() if name != "tools"}
    body: dict[str, Json] = {name: value for name, value in user.items() if name != CONTEXT}
    if rest:
        body[CONTEXT] = rest
    return tools, Fields({**current.rest(), USER: body}, current.at)


def _tool(fields: Fields) -> ToolSpec | Opaque:
    spec = fields.maybe_child("toolSpecification")
    if spec is None:
        whole = fields.rest()
        return Opaque(FAMILY, whole, next(iter(whole), ""), at=Where(fields.at))
    name, description = spec.identifier("name"), spec.text("description", "")
    holder = spec.maybe_child("inputSchema")
    spec.any("inputSchema")
    schema = holder.any("json") if holder else None
    known = schema if isinstance(schema, dict) else NO_PARAMETERS
    around = {"inputSchema": rest} if holder and (rest := holder.rest()) else {}
    kept = with_beside(extra_of({**spec.rest(), **around}), fields)
    at = Where(spec.at, bare=not isinstance(schema, dict))
    return ToolSpec(name, description, known, extra=kept, at=at)


def _thinking(fields: Fields, kept: dict[str, Json]) -> Thinking:
    """What is asked for in either vendor's words; all other model fields stay as they are."""
    asked = fields.peek(_FIELDS)
    if not isinstance(asked, dict):
        return Thinking()
    fields.any(_FIELDS)
    rest = {**asked}
    effort = ""
    for name in ("output_config", "reasoning"):
        match rest.get(name):
            case {"effort": str(said), **others} if not others and not effort:
                effort = said
                del rest[name]
    adaptive = rest.get("thinking") == _ADAPTIVE
    if adaptive:
        del rest["thinking"]
    if rest:
        kept[_FIELDS] = rest
    return Thinking("adaptive" if adaptive else "default", effort)


def turns_of(body: dict[str, Json], model: str, *, named: bool) -> dict[str, Json]:
    """The body with the model's name in every user turn that has none, or without it in those that have this one."""
    state = body.get("conversationState")
    if not isinstance(state, dict):
        return body
    changed = {name: value for name, value in state.items() if name not in ("history", "currentMessage")}
    history = state.get("history")
    if isinstance(history, list):
        changed["history"] = [_turn(entry, model, named) if type(entry) is dict else entry for entry in history]
    elif "history" in state:
        changed["history"] = history
    changed["currentMessage"] = _turn(state.get("currentMessage"), model, named)
    return in_cache_order({**body, "conversationState": changed}, (), "conversationState")


def _turn(entry: Json, model: str, named: bool) -> Json:
    if not isinstance(entry, dict) or not isinstance(user := entry.get(USER), dict):
        return entry
    if named:
        return {**entry, USER: {"modelId": model, **user}}
    if user.get("modelId") in (model, None):
        user = {name: value for name, value in user.items() if name != "modelId"}
    return {**entry, USER: user}


def plain(call: Call) -> Call:
    """The call with a body of JSON values alone: a rendered one has Structs in its history."""
    body = call.body
    state = body.get(_STATE) if isinstance(body, dict) else None
    history = state.get("history") if isinstance(state, dict) else None
    if not isinstance(history, list) or all(type(entry) is dict for entry in history):
        return call
    decoded = jsonio.decode(jsonio.encode(body))
    assert isinstance(decoded, dict)
    return structs.replace(call, body=turns_of(decoded, call.model, named=False))


# --- rendering


def render_request(conversation: Conversation, settings: Settings) -> Call:
    """Say a conversation that fits. Raises Unrepresentable for what this dialect cannot say."""
    _refuse_unsayable(conversation)
    body = _body(conversation, settings)
    headers = own_fields(conversation.hints)
    hints = {name: value for name, value in headers.items() if isinstance(value, str)}
    return Call("generate", conversation.model, True, body, hints)


def _refuse_unsayable(conversation: Conversation) -> None:
    refusals = (
        (bool(conversation.system), "system", "there is no place for a system text of its own"),
        (conversation.choices != 1, "n", "one request gets one answer here"),
        (conversation.previous is not None, "previous_response_id", "no conversation is kept here to go on with"),
        (conversation.output != Output(), "output", "the form of the answer cannot be asked for here"),
        (conversation.tool_choice != ToolChoice(), "tool_choice", "tools cannot be chosen here"),
        (conversation.max_tokens is not None, "max_tokens", "the length of the answer cannot be limited here"),
        (bool(conversation.stop), "stop", "there are no stop sequences here"),
        (bool(conversation.knobs), next(iter(conversation.knobs), ""), "there are no knobs here"),
        (bool(conversation.user), "user", "there is no place for a user id here"),
        (conversation.thinking.mode not in ("default", "adaptive"), "thinking", "thinking is asked for otherwise here"),
        (not conversation.stream, "stream", "every answer is a stream here"),
    )
    for refused, at, because in refusals:
        if refused:
            raise Unrepresentable(because, at=at)
    if not conversation.messages or conversation.messages[-1].role != "user":
        raise Unrepresentable("the last turn must be the user's", at="messages")


def _body(conversation: Conversation, settings: Settings) -> dict[str, Json]:
    *messages, last = conversation.messages
    history: list[Any] = [render_turn(message, settings.origin, conversation.model) for message in messages]
    turn = render_turn(last, settings.origin)
    current = turn if isinstance(turn, dict) else object_of(turn)
    if conversation.tools:
        user = members(current[USER])
        user[CONTEXT] = merged({"tools": list(map(_render_tool, conversation.tools))}, members(user.get(CONTEXT)))
    kept = of_the_node(own_fields(conversation.extra))
    named = kept.pop("conversationId", None) or conversation_id(first_words(conversation.messages))
    state: dict[str, Json] = {"chatTriggerType": "MANUAL", "conversationId": named, "currentMessage": current}
    if history:
        state["history"] = history
    body: dict[str, Json] = {_STATE: state}
    if settings.profile_arn:
        body["profileArn"] = settings.profile_arn
        kept.pop("profileArn", None)  # of the client's account; the setting names that of the upstream's
    thinking, asked = conversation.thinking, dict[str, Json]()
    if thinking.effort:
        asked["reasoning" if model_of(conversation.model).asks == "gpt" else "output_config"] = {
            "effort": thinking.effort
        }
    if thinking.mode == "adaptive":
        asked["thinking"] = {**_ADAPTIVE}
    if asked:
        body[_FIELDS] = asked
    return merged(body, kept)


def first_words(messages: tuple[Message, ...]) -> str:
    """The text of the first user turn."""
    first = next((message for message in messages if message.role == "user"), None)
    return "\n".join(block.text for block in first.blocks if isinstance(block, Text)) if first else ""


def _render_tool(tool: ToolSpec | Opaque) -> Json:
    if isinstance(tool, Opaque):
        if tool.family != FAMILY:
            raise Unrepresentable(f"the tool {tool.kind} of {tool.family} has no place here", at=tool.at.path)
        return tool.data
    schema: Json = {"json": {**(tool.schema or {})}}
    body = {**tool_body(tool), "description": tool.description, "inputSchema": schema}
    kept = own_fields(tool.extra)
    return {**of_what_it_came_in(kept), "toolSpecification": merged(body, of_the_node(kept))}

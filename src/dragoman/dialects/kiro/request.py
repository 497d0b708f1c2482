"""Requests, canonical to wire: `conversationState` and its turns (facts 1.4). The last turn is the current message.

A turn that fits has one text; results come before it and images after it, or a thought before it and calls after it.
`reading.py` is the other direction. Here is also what every part of this dialect shares.
"""

from __future__ import annotations

import logging
from hashlib import sha1
from typing import Any, Protocol, TypeAlias
from uuid import NAMESPACE_URL, UUID, uuid5

from msgspec import UNSET, Struct, UnsetType

from dragoman.dialects.base import ApiRequest
from dragoman.dialects.kiro.models import find_model
from dragoman.dialects.kit.values import ExtraFields, members, merge_fields
from dragoman.errors import Unrepresentable
from dragoman.model.blocks import Block, Extra, Media, Opaque, Reasoning, Text, ToolCall, ToolResult
from dragoman.model.conversation import (
    Conversation,
    Message,
    Output,
    ToolChoice,
    ToolSpec,
    node_fields,
    parent_fields,
    to_extra_names,
)
from dragoman.model.filter import Inventory, inventory
from dragoman.wire import jsonio
from dragoman.wire.jsonio import Json, Raw

# --- What every part of this dialect shares: its family, unknown fields, log, names on the wire


FAMILY = "kiro"
LOG = logging.getLogger("dragoman.kiro")

CONVERSATION_STATE, MODEL_FIELDS = "conversationState", "additionalModelRequestFields"
USER_MESSAGE, ASSISTANT_MESSAGE, MESSAGE_CONTEXT = (
    "userInputMessage",
    "assistantResponseMessage",
    "userInputMessageContext",
)
NO_PARAMETERS: dict[str, Json] = {"type": "object", "properties": {}}
ADAPTIVE_THINKING: dict[str, Json] = {"type": "adaptive", "display": "summarized"}
# Fields of a request that only say which conversation or account it is: nothing is lost where they mean nothing.
IDENTITY = frozenset({"conversationId", "profileArn"})
_NAMESPACE = uuid5(NAMESPACE_URL, "dragoman:kiro:conversation")
_KEPT = ExtraFields(FAMILY)
own_fields, with_own = _KEPT.own_fields, _KEPT.with_extra


class KiroSettings(Protocol):
    """What the codec's settings say about requests, and about counts (docs/decisions/kiro.md#d15)."""

    @property
    def origin(self) -> str: ...
    @property
    def profile_arn(self) -> str: ...
    @property
    def usage_split(self) -> tuple[int, int, int] | bool: ...
    def window(self, model: str) -> int: ...


def extra_of(fields: dict[str, Json], spelling: frozenset[str] = frozenset()) -> Extra | None:
    """Fields that were not read, kept for this family alone."""
    return _KEPT.extra_of(to_extra_names(fields), spelling)


def conversation_id(seed: str, messages: tuple[Message, ...] = ()) -> str:
    """A UUID made of what stays the same through a conversation, so that its turns share it.
    That is `seed` and the text of the first user turn.

    See docs/decisions/kiro.md#d17.
    """
    first = next((message for message in messages if message.role == "user"), None)
    seed += "\n".join([block.text for block in first.blocks if isinstance(block, Text)]) if first else ""
    digest = sha1(_NAMESPACE.bytes + seed.encode("utf-8", "replace"), usedforsecurity=False).digest()
    return str(UUID(bytes=digest[:16], version=5))


def set_model_names(body: dict[str, Json], model: str, *, named: bool) -> dict[str, Json]:
    """The body with the model's name in every user turn that has none, or without it in those that have this one.

    A turn that is a Struct has the name already. What changes with every turn of a conversation stands last.
    """
    state = body.get(CONVERSATION_STATE)
    if not isinstance(state, dict):
        return body
    history = state.get("history")
    turns = [*history, state.get("currentMessage")] if isinstance(history, list) else [state.get("currentMessage")]
    for place, turn in enumerate(turns):
        if type(turn) is dict and isinstance(user := turn.get(USER_MESSAGE), dict):
            if named:
                user = {"modelId": model, **user}
            elif user.get("modelId") in (model, None):
                user = {name: value for name, value in user.items() if name != "modelId"}
            turns[place] = {**turn, USER_MESSAGE: user}
    *before, current = turns
    around = {name: value for name, value in state.items() if name not in ("history", "currentMessage")}
    if "history" in state:
        around["history"] = before if isinstance(history, list) else history
    rest = {name: value for name, value in body.items() if name != CONVERSATION_STATE}
    return {**rest, CONVERSATION_STATE: {**around, "currentMessage": current}}


# --- the request


def render_request(settings: KiroSettings, conversation: Conversation) -> ApiRequest:
    """Write a conversation that fits. Raises Unrepresentable for what this dialect cannot say."""
    _refuse_unsayable(conversation)
    *messages, last = conversation.messages
    model, origin, tools = conversation.model, settings.origin, list(map(_render_tool, conversation.tools))
    kept = node_fields(own_fields(conversation.extra))
    named = kept.pop("conversationId", None) or conversation_id("", conversation.messages)
    state: dict[str, Any] = {"chatTriggerType": "MANUAL", "conversationId": named}
    state["currentMessage"] = render_turn(last, origin, model, tools)
    if messages:
        state["history"] = [render_turn(message, origin, model) for message in messages]
    body: dict[str, Json] = {CONVERSATION_STATE: state}
    if settings.profile_arn:
        body["profileArn"] = settings.profile_arn
        kept.pop("profileArn", None)  # of the client's account; the setting names that of the upstream's
    thinking, asked = conversation.thinking, dict[str, Json]()
    if thinking.effort:
        asked["reasoning" if find_model(model).thinking_style == "gpt" else "output_config"] = {
            "effort": thinking.effort
        }
    if thinking.mode == "adaptive":
        asked["thinking"] = {**ADAPTIVE_THINKING}
    if asked:
        body[MODEL_FIELDS] = asked
    headers = {} if conversation.hints is None else own_fields(conversation.hints)
    hints = {name: value for name, value in headers.items() if isinstance(value, str)}
    return ApiRequest("generate", model, True, merge_fields(body, kept) if kept else body, hints)


def _refuse_unsayable(conversation: Conversation) -> None:
    refusals = (
        (bool(conversation.system), "system", "there is no place for a system text of its own"),
        (conversation.choices != 1, "n", "one request gets one answer here"),
        (conversation.previous_id is not None, "previous_response_id", "no conversation is kept here to go on with"),
        (conversation.output != Output(), "output", "the form of the answer cannot be asked for here"),
        (conversation.tool_choice != ToolChoice(), "tool_choice", "tools cannot be chosen here"),
        (conversation.max_tokens is not None, "max_tokens", "the length of the answer cannot be limited here"),
        (bool(conversation.stop), "stop", "there are no stop sequences here"),
        (bool(conversation.sampling), next(iter(conversation.sampling), ""), "there are no knobs here"),
        (bool(conversation.user), "user", "there is no place for a user id here"),
        (conversation.thinking.mode not in ("default", "adaptive"), "thinking", "thinking is asked for otherwise here"),
        (not conversation.stream, "stream", "every answer is a stream here"),
    )
    for refused, at, because in refusals:
        if refused:
            raise Unrepresentable(because, at=at)
    if not conversation.messages or conversation.messages[-1].role != "user":
        raise Unrepresentable("the last turn must be the user's", at="messages")


def _render_tool(tool: ToolSpec | Opaque) -> Json:
    if isinstance(tool, Opaque):
        if tool.family != FAMILY:
            raise Unrepresentable(f"the tool {tool.kind} of {tool.family} has no place here", at=tool.at.path)
        return tool.data
    if tool.schema is None or tool.waits_for:
        raise Unrepresentable(f"the tool {tool.name} has no schema, or is held back", at=tool.at.path)
    schema: Json = {"json": {**tool.schema}}
    body: dict[str, Json] = {"name": tool.name, "description": tool.description, "inputSchema": schema}
    if tool.extra is None:
        return {"toolSpecification": body}
    return {**parent_fields(own_fields(tool.extra)), "toolSpecification": with_own(body, tool.extra)}


# --- how long a request is: an estimate without a tokenizer (docs/decisions/kiro.md#d15)


IMAGE = 1600  # tokens of one image, whatever its size: a convention
_TOOL_FRAME = " " * 151  # what surrounds the name, description and schema of a tool; an estimate


def estimate_tokens(text: str) -> int:
    """Tokens in a text: four ASCII characters, or one other character, are about one."""
    plain = len(text) if text.isascii() else count_ascii(text)
    return len(text) - plain + (plain + 3) // 4


def count_ascii(text: str) -> int:
    """How many characters are ASCII; counted by encoders, since a long text has very many."""
    try:
        text.encode("latin-1")
    except UnicodeEncodeError:
        return len(text.encode("ascii", "ignore"))
    # All others of this alphabet have two bytes. The text keeps its bytes for the next writer.
    return 2 * len(text) - len(text.data if type(text) is jsonio.ObjectText else jsonio.Raw(text))


def estimate_input_tokens(conversation: Conversation, held: Inventory | None = None) -> int:
    """Tokens of everything a conversation says to the model; the estimate that it carries, if it carries one.

    `held` is what its messages hold, where that is known.
    """
    if conversation.estimated_tokens is not None:
        return conversation.estimated_tokens
    held = held or inventory(conversation.messages)
    texts = [text.text for text in conversation.system] + held.words
    texts += [call.arguments for call in held.calls] + [call.name for call in held.calls]
    for tool in conversation.tools:
        try:
            definition = [tool.name, tool.description, tool.schema] if isinstance(tool, ToolSpec) else [tool.data]
            texts.append(_TOOL_FRAME + jsonio.encode(definition).decode())
        except jsonio.JsonError:  # nested too deeply: sending it reports that
            continue
    wide = [text for text in texts if not text.isascii()]
    plain = [*map(count_ascii, wide)]
    others = sum(map(len, wide)) - sum(plain)
    plain += [len(text) for text in texts if text.isascii()]
    return others + sum([(size + 3) // 4 for size in plain]) + sum(map(_block, (*held.thoughts, *held.others)))


def estimate_message_tokens(message: Message) -> int:
    return sum(map(_block, message.blocks))


def _block(block: Block) -> int:
    if isinstance(block, (Text, Reasoning)):
        return estimate_tokens(block.text)
    if isinstance(block, ToolCall):
        return estimate_tokens(block.name) + estimate_tokens(block.arguments)
    if isinstance(block, ToolResult):
        return sum([0 if isinstance(part, Media) else _block(part) for part in block.content])
    return IMAGE if isinstance(block, Media) else 0


# --- turns: Structs, which an encoder writes faster than objects; one that has kept fields becomes an object


class _Node(Struct, frozen=True, gc=False, omit_defaults=True, rename="camel"):
    pass


class _Words(_Node, frozen=True):
    text: str


class _Result(_Node, frozen=True):
    tool_use_id: str
    content: list[_Words | Json]
    status: str


class _Context(_Node, frozen=True):
    tools: list[Json] | None = None
    tool_results: list[_Result | Json] | None = None


class _User(_Node, frozen=True):
    model_id: str | UnsetType
    content: str
    origin: str
    images: list[Json] | None = None
    user_input_message_context: _Context | None = None


class _Use(_Node, frozen=True):
    tool_use_id: str
    name: str
    input: Raw | Json


class _Assistant(_Node, frozen=True):
    content: str
    reasoning_content: Json = None
    tool_uses: list[_Use | Json] | None = None


class _UserTurn(_Node, frozen=True):
    user_input_message: _User


class _AssistantTurn(_Node, frozen=True):
    assistant_response_message: _Assistant


RenderedTurn: TypeAlias = _UserTurn | _AssistantTurn | dict[str, Json]


def render_turn(message: Message, origin: str, model: str = "", tools: list[Json] | None = None) -> RenderedTurn:
    """Write a turn that fits, with the tools if it is the last. Raises Unrepresentable for what has no place in it.

    One that has kept fields is an object, and like one without `model` gets the model's name from the binding.
    """
    kept = None if message.extra is None else own_fields(message.extra)
    if message.role == "user":
        if kept is None:
            return _UserTurn(_render_user(message, origin, model or UNSET, tools or None))
        written = kept.get("origin", origin)
        node = with_own(to_json_object(_render_user(message, written, UNSET, None)), message.extra)  # type: ignore[arg-type]
        if tools:
            node[MESSAGE_CONTEXT] = merge_fields({"tools": tools}, members(node.get(MESSAGE_CONTEXT)))
        return {**parent_fields(kept), USER_MESSAGE: node}
    if message.role != "assistant":
        raise Unrepresentable(f"a {message.role} turn has no place here", at=message.at.path)
    answer = _render_assistant(message)
    if kept is None:
        return _AssistantTurn(answer)
    return {**parent_fields(kept), ASSISTANT_MESSAGE: with_own(to_json_object(answer), message.extra)}


def to_json_object(node: object) -> dict[str, Json]:
    """A node as an object."""
    value = jsonio.decode(jsonio.encode(node))
    assert isinstance(value, dict)
    return value


def _render_user(message: Message, origin: str, model: str | UnsetType, tools: list[Json] | None) -> _User:
    texts: list[str] = []
    images: list[Json] = []
    results: list[_Result | Json] = []
    for block in message.blocks:
        kind = type(block)  # isinstance is slow where a Struct class does not match
        if kind is Text and not texts:
            texts.append(block.text)  # type: ignore[union-attr]
        elif kind is ToolResult:
            results.append(_render_result(block))  # type: ignore[arg-type]
        elif isinstance(block, Media) and (block.kind, block.form) == ("image", "base64"):
            image: dict[str, Json] = {"format": block.mime.removeprefix("image/"), "source": {"bytes": block.data}}
            images.append(with_own(image, block.extra))
        else:
            raise _misplaced(block)
    context = _Context(tools, results or None) if tools or results else None
    return _User(model, texts[0] if texts else "", origin, images or None, context)


def _render_assistant(message: Message) -> _Assistant:
    texts: list[str] = []
    thoughts: list[Json] = []
    uses: list[_Use | Json] = []
    for block in message.blocks:
        kind = type(block)
        if kind is Text and not texts:
            texts.append(block.text)  # type: ignore[union-attr]
        elif kind is ToolCall:
            uses.append(_render_use(block))  # type: ignore[arg-type]
        elif isinstance(block, Reasoning) and not thoughts:
            thoughts.append(_render_thought(block))
        else:
            raise _misplaced(block)
    return _Assistant(texts[0] if texts else "", thoughts[0] if thoughts else None, uses or None)


def _misplaced(block: Block) -> Unrepresentable:
    if isinstance(block, Text):
        return Unrepresentable("a turn has one text here", at=block.at.path)
    kind = block.kind if isinstance(block, Media | Opaque) else type(block).__name__
    return Unrepresentable(f"{kind} has no place in this turn", at=block.at.path)


def _render_thought(block: Reasoning) -> Json:
    signature = block.signature
    if signature is None or signature.family != FAMILY or signature.kind == "encrypted":
        raise Unrepresentable("reasoning goes back only with the service's own signature", at=block.at.path)
    if signature.kind == "redacted":
        return {"redactedContent": signature.data}
    return {"reasoningText": {"text": block.text, "signature": signature.data}}


def _render_use(call: ToolCall) -> _Use | Json:
    arguments = call.arguments
    if type(arguments) is jsonio.ObjectText and call.form == "json":
        use = _Use(call.id, call.name, Raw(arguments.data))
    else:
        value = jsonio.decode_object(arguments or "{}") if call.form == "json" else None
        if value is None:
            raise Unrepresentable(f"the arguments of {call.name} are no JSON object", at=call.at.path)
        use = _Use(call.id, call.name, value)
    return use if call.extra is None else with_own(to_json_object(use), call.extra)


def _render_result(result: ToolResult) -> _Result | Json:
    content: list[_Words | Json] = []
    for part in result.content:
        if isinstance(part, Opaque) and part.family == FAMILY:
            content.append(part.data)  # of a client of this dialect, which gets it back as it came
        elif type(part) is Text:
            kept = part.extra and own_fields(part.extra)
            content.append({**kept} if kept else _Words(part.text))
        else:
            raise Unrepresentable("a tool result holds text only", at=part.at.path)
    node = _Result(result.call_id, content, "error" if result.is_error else "success")
    return node if result.extra is None else with_own(to_json_object(node), result.extra)

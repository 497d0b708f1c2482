"""Render Kiro requests: `conversationState` with its turns, of which the last is the current message. Pure.

A user turn has tool results, then one text, then images; an assistant turn has reasoning, then one text, then tool
calls. `request_parser` parses requests. This module also has what the other modules of the dialect
share: field names, the handling of unknown fields, and the estimate of tokens.
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

# --- shared by all modules of the dialect: family, unknown fields, log, names on the wire


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
# Fields that only identify the conversation or the account. Dropping them for another dialect loses nothing.
IDENTITY = frozenset({"conversationId", "profileArn"})
_NAMESPACE = uuid5(NAMESPACE_URL, "dragoman:kiro:conversation")
_EXTRAS = ExtraFields(FAMILY)
own_fields, with_own = _EXTRAS.own_fields, _EXTRAS.with_extra


class KiroSettings(Protocol):
    """The settings of the codec that requests and token counts need (docs/decisions/kiro.md#d15)."""

    @property
    def origin(self) -> str:
        """The value of `origin`, which is sent in every user turn."""
        ...

    @property
    def profile_arn(self) -> str:
        """The `profileArn` of each request; empty: none, or that of the login."""
        ...

    @property
    def usage_split(self) -> tuple[int, int, int] | bool:
        """The shares of input, cache writes and cache reads in the input tokens; False: everything is input."""
        ...

    def window(self, model: str) -> int:
        """Return the number of tokens that 100 per cent of context stands for."""
        ...


def extra_of(fields: dict[str, Json], spelling: frozenset[str] = frozenset()) -> Extra | None:
    """Return unknown fields as an `Extra` that only this family gets back; None if there are none."""
    return _EXTRAS.extra_of(to_extra_names(fields), spelling)


def conversation_id(seed: str, messages: tuple[Message, ...] = ()) -> str:
    """Return a UUID that all requests of a conversation share.

    It is the hash of `seed` and of the text of the first user turn (docs/decisions/kiro.md#d17).
    """
    first = next((message for message in messages if message.role == "user"), None)
    seed += "\n".join([block.text for block in first.blocks if isinstance(block, Text)]) if first else ""
    digest = sha1(_NAMESPACE.bytes + seed.encode("utf-8", "replace"), usedforsecurity=False).digest()
    return str(UUID(bytes=digest[:16], version=5))


def set_model_names(body: dict[str, Json], model: str, *, named: bool) -> dict[str, Json]:
    """Return the body with the model in every user turn (`named`), or without it in those that name this model.

    A turn that is a Struct already has the model. The current message, which changes with every request, comes last,
    for prompt caches.
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
    others = {name: value for name, value in state.items() if name not in ("history", "currentMessage")}
    if "history" in state:
        others["history"] = before if isinstance(history, list) else history
    rest = {name: value for name, value in body.items() if name != CONVERSATION_STATE}
    return {**rest, CONVERSATION_STATE: {**others, "currentMessage": current}}


# --- the request


def render_request(settings: KiroSettings, conversation: Conversation) -> ApiRequest:
    """Return a conversation as a request. Raises Unrepresentable for content that filters should have removed."""
    _check_representable(conversation)
    *messages, last = conversation.messages
    model, origin, tools = conversation.model, settings.origin, list(map(_render_tool, conversation.tools))
    own = node_fields(own_fields(conversation.extra))
    own_id = own.pop("conversationId", None) or conversation_id("", conversation.messages)
    state: dict[str, Any] = {"chatTriggerType": "MANUAL", "conversationId": own_id}
    state["currentMessage"] = render_turn(last, origin, model, tools)
    if messages:
        state["history"] = [render_turn(message, origin, model) for message in messages]
    body: dict[str, Json] = {CONVERSATION_STATE: state}
    if settings.profile_arn:
        body["profileArn"] = settings.profile_arn
        own.pop("profileArn", None)  # the profile of the client's account; the setting names that of the upstream
    thinking, model_fields = conversation.thinking, dict[str, Json]()
    if thinking.effort:
        name = "reasoning" if find_model(model).thinking_style == "gpt" else "output_config"
        model_fields[name] = {"effort": thinking.effort}
    if thinking.mode == "adaptive":
        model_fields["thinking"] = {**ADAPTIVE_THINKING}
    if model_fields:
        body[MODEL_FIELDS] = model_fields
    headers = {} if conversation.hints is None else own_fields(conversation.hints)
    hints = {name: value for name, value in headers.items() if isinstance(value, str)}
    return ApiRequest("generate", model, True, merge_fields(body, own) if own else body, hints)


def _check_representable(conversation: Conversation) -> None:
    refusals = (
        (bool(conversation.system), "system", "Kiro has no field for a system prompt"),
        (conversation.choices != 1, "n", "Kiro returns one reply per request: set n to 1"),
        (conversation.previous_id is not None, "previous_response_id", "Kiro cannot continue a stored response"),
        (conversation.output != Output(), "output", "Kiro has no setting for the output format"),
        (conversation.tool_choice != ToolChoice(), "tool_choice", "Kiro has no tool choice"),
        (conversation.max_tokens is not None, "max_tokens", "Kiro has no setting for the length of a reply"),
        (bool(conversation.stop), "stop", "Kiro has no stop sequences"),
        (bool(conversation.sampling), next(iter(conversation.sampling), ""), "Kiro has no sampling settings"),
        (bool(conversation.user), "user", "Kiro has no field for a user id"),
        (
            conversation.thinking.mode not in ("default", "adaptive"),
            "thinking",
            "Kiro supports only the thinking mode adaptive",
        ),
        (not conversation.stream, "stream", "every response of Kiro is a stream"),
    )
    for is_refused, at, message in refusals:
        if is_refused:
            raise Unrepresentable(message, at=at)
    if not conversation.messages or conversation.messages[-1].role != "user":
        raise Unrepresentable("Kiro requires a conversation whose last message is the user's", at="messages")


def _render_tool(tool: ToolSpec | Opaque) -> Json:
    if isinstance(tool, Opaque):
        if tool.family != FAMILY:
            raise Unrepresentable(f"Kiro does not accept the tool {tool.kind} of {tool.family}", at=tool.at.path)
        return tool.data
    if tool.schema is None or tool.waits_for:
        raise Unrepresentable(f"the tool {tool.name} has no schema, or its loading is deferred", at=tool.at.path)
    schema: Json = {"json": {**tool.schema}}
    body: dict[str, Json] = {"name": tool.name, "description": tool.description, "inputSchema": schema}
    if tool.extra is None:
        return {"toolSpecification": body}
    return {**parent_fields(own_fields(tool.extra)), "toolSpecification": with_own(body, tool.extra)}


# --- the size of a request in tokens, estimated without a tokenizer (docs/decisions/kiro.md#d15)


IMAGE_TOKENS = 1600  # of one image, whatever its size: a convention
_TOOL_FRAME = " " * 151  # what surrounds the name, description and schema of a tool; an estimate


def estimate_tokens(text: str) -> int:
    """Estimate the tokens of a text: four ASCII characters, or one other character, are about one token."""
    plain = len(text) if text.isascii() else count_ascii(text)
    return len(text) - plain + (plain + 3) // 4


def count_ascii(text: str) -> int:
    """Return the number of ASCII characters. Encoders count them, which is fast for long texts."""
    try:
        text.encode("latin-1")
    except UnicodeEncodeError:
        return len(text.encode("ascii", "ignore"))
    # All other characters of Latin-1 have two bytes in UTF-8. An ObjectText keeps its UTF-8 bytes for the next writer.
    return 2 * len(text) - len(text.data if type(text) is jsonio.ObjectText else jsonio.Raw(text))


def estimate_input_tokens(conversation: Conversation, content: Inventory | None = None) -> int:
    """Estimate the input tokens of a conversation; return `estimated_tokens` of the conversation if it is set.

    `content` is the inventory of its messages, if the caller has it.
    """
    if conversation.estimated_tokens is not None:
        return conversation.estimated_tokens
    content = content or inventory(conversation.messages)
    texts = [text.text for text in conversation.system] + content.words
    texts += [call.arguments for call in content.calls] + [call.name for call in content.calls]
    for tool in conversation.tools:
        try:
            definition = [tool.name, tool.description, tool.schema] if isinstance(tool, ToolSpec) else [tool.data]
            texts.append(_TOOL_FRAME + jsonio.encode(definition).decode())
        except jsonio.JsonError:  # nested too deeply; rendering the request reports it
            continue
    wide = [text for text in texts if not text.isascii()]
    plain = [*map(count_ascii, wide)]
    others = sum(map(len, wide)) - sum(plain)
    plain += [len(text) for text in texts if text.isascii()]
    return (
        others
        + sum([(size + 3) // 4 for size in plain])
        + sum(map(_block_tokens, (*content.thoughts, *content.others)))
    )


def estimate_message_tokens(message: Message) -> int:
    """Estimate the tokens of one message."""
    return sum(map(_block_tokens, message.blocks))


def _block_tokens(block: Block) -> int:
    if isinstance(block, (Text, Reasoning)):
        return estimate_tokens(block.text)
    if isinstance(block, ToolCall):
        return estimate_tokens(block.name) + estimate_tokens(block.arguments)
    if isinstance(block, ToolResult):
        return sum([0 if isinstance(part, Media) else _block_tokens(part) for part in block.content])
    return IMAGE_TOKENS if isinstance(block, Media) else 0


# --- turns: Structs, which are encoded faster than dicts; a turn with unknown fields becomes a dict


class _Node(Struct, frozen=True, gc=False, omit_defaults=True, rename="camel"):
    pass


class _TextPart(_Node, frozen=True):
    text: str


class _Result(_Node, frozen=True):
    tool_use_id: str
    content: list[_TextPart | Json]
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
    """Return a message as a turn, with the tools if it is the last turn.

    Raises Unrepresentable for a block that does not fit. A turn with unknown fields is a dict; the binding adds the
    model to it, as to a turn rendered without `model`.
    """
    own = None if message.extra is None else own_fields(message.extra)
    if message.role == "user":
        if own is None:
            return _UserTurn(_render_user(message, origin, model or UNSET, tools or None))
        own_origin = own.get("origin", origin)
        node = with_own(to_json_object(_render_user(message, own_origin, UNSET, None)), message.extra)  # type: ignore[arg-type]
        if tools:
            node[MESSAGE_CONTEXT] = merge_fields({"tools": tools}, members(node.get(MESSAGE_CONTEXT)))
        return {**parent_fields(own), USER_MESSAGE: node}
    if message.role != "assistant":
        raise Unrepresentable(f"Kiro does not accept a {message.role} turn", at=message.at.path)
    assistant = _render_assistant(message)
    if own is None:
        return _AssistantTurn(assistant)
    return {**parent_fields(own), ASSISTANT_MESSAGE: with_own(to_json_object(assistant), message.extra)}


def to_json_object(node: object) -> dict[str, Json]:
    """Return a Struct as a JSON object."""
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
        return Unrepresentable("a turn of Kiro may have only one text", at=block.at.path)
    kind = block.kind if isinstance(block, Media | Opaque) else type(block).__name__
    return Unrepresentable(f"a turn of this role cannot contain {kind}", at=block.at.path)


def _render_thought(block: Reasoning) -> Json:
    signature = block.signature
    if signature is None or signature.family != FAMILY or signature.kind == "encrypted":
        raise Unrepresentable("Kiro accepts reasoning in history only with its own signature", at=block.at.path)
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
            raise Unrepresentable(f"the arguments of {call.name} are not a JSON object", at=call.at.path)
        use = _Use(call.id, call.name, value)
    return use if call.extra is None else with_own(to_json_object(use), call.extra)


def _render_result(result: ToolResult) -> _Result | Json:
    content: list[_TextPart | Json] = []
    for part in result.content:
        if isinstance(part, Opaque) and part.family == FAMILY:
            content.append(part.data)  # from a client of this dialect; sent unchanged
        elif type(part) is Text:
            own = part.extra and own_fields(part.extra)
            content.append({**own} if own else _TextPart(part.text))
        else:
            raise Unrepresentable("a tool result of Kiro may contain only text", at=part.at.path)
    node = _Result(result.call_id, content, "error" if result.is_error else "success")
    return node if result.extra is None else with_own(to_json_object(node), result.extra)

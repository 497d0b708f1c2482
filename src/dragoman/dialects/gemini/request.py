"""Requests, both directions: the body of generateContent and a conversation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import structs

from dragoman.dialects.base import Call
from dragoman.dialects.gemini.nodes import FAMILY, extra, extra_of, names, own_data, own_fields, read, with_extra
from dragoman.dialects.gemini.pairs import Pairs
from dragoman.dialects.gemini.parts import parse_part, render_part
from dragoman.dialects.gemini.settings import Settings, render_settings
from dragoman.dialects.gemini.tools import parse_choice, parse_tools, render_choice, render_tools
from dragoman.errors import MalformedRequest, Unrepresentable
from dragoman.model.blocks import Block, Extra, Opaque, Reasoning, Text, ToolCall, ToolResult, Where, to_keep
from dragoman.model.conversation import Conversation, Held, Message, Role, canonical
from dragoman.wire.fields import Fields
from dragoman.wire.jsonio import Json

_BODY = names("systemInstruction", "toolConfig", "generationConfig", "safetySettings", "cachedContent")
_NOT_CACHED = (
    "the cached content is held by Google, and this upstream does not have it; send its system instruction, tools and"
    " contents in the request"
)
_ROLES: dict[str, Role] = {
    "": "user",
    "user": "user",
    "function": "user",
    "tool": "user",
    "model": "assistant",
    "assistant": "assistant",
    "system": "system",
}

# --- reading


def parse_request(call: Call) -> Conversation:
    """Read a request. Raises MalformedRequest, naming the place."""
    try:
        return canonical(_conversation(call))
    except RecursionError:
        raise MalformedRequest("nested too deeply") from None


def _conversation(call: Call) -> Conversation:
    fields = read(call.body, "", MalformedRequest, _BODY)
    fields.any("model")
    kept: dict[str, Json] = {}
    settings = Settings(fields)
    messages = tuple(_turns(_messages(fields.any("contents"))))
    system = _system(fields.any("systemInstruction"), kept)
    spelling = frozenset(kept)
    tools = parse_tools(fields)
    choice = parse_choice(fields, kept)
    if settings.left:
        kept["generationConfig"] = settings.left
    hints = {name: value for name, value in call.hints.items() if value}
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
        choices=settings.choices,
        stream=call.stream,
        hints=Extra(FAMILY, hints, frozenset(hints)) if hints else None,
        held=_held(fields.peek("cachedContent")),
        extra=extra_of({**to_keep(fields.rest()), **kept}, spelling),
    )


def _held(cached: Json) -> tuple[Held, ...]:
    return (Held("cachedContent", "cachedContent", _NOT_CACHED, turns=True),) if cached else ()


def _messages(value: Json) -> Iterable[Message]:
    pairs = Pairs()
    items = value if isinstance(value, list) else [] if value is None else [value]
    at = "contents[{}]" if isinstance(value, list) else "contents"
    for index, item in enumerate(items):
        yield _message(item, at.format(index), pairs)


def _message(item: Json, at: str, pairs: Pairs) -> Message:
    if isinstance(item, str):
        return Message("user", (Text(item, at=Where(at)),), at=Where(at))
    fields = Fields(item, at)
    role = _ROLES.get((fields.text("role", "") or "").lower())
    if role is None:
        fields.fail("role", "expected user or model")
    blocks = _parts(fields, pairs)
    if role == "user" and any(isinstance(block, ToolCall) for block in blocks):
        fields.fail("parts", "a call is the model's, not the user's")
    if role != "user" and any(isinstance(block, ToolResult) for block in blocks):
        fields.fail("parts", "a result is the user's")
    return Message(role, blocks, extra=extra(fields), at=Where(at))


def _parts(fields: Fields, pairs: Pairs) -> tuple[Block, ...]:
    value = fields.any("parts")
    items = value if isinstance(value, list) else [] if value is None else [value]
    path = fields.path("parts")
    return tuple(parse_part(item, f"{path}[{index}]", fields.blame, pairs) for index, item in enumerate(items))


def _turns(messages: Iterable[Message]) -> Iterable[Message]:
    """Model contents in a row are the chunks of one answer, as the SDK's chats record them: one turn."""
    turn: Message | None = None
    for message in messages:
        if turn and turn.role == message.role == "assistant" and not (turn.extra or message.extra):
            turn = structs.replace(turn, blocks=_joined(turn.blocks, message.blocks))
            continue
        if turn:
            yield turn
        turn = message
    if turn:
        yield turn


def _joined(before: tuple[Block, ...], after: tuple[Block, ...]) -> tuple[Block, ...]:
    """Texts, or thoughts, that meet at the seam are pieces of one."""
    if not before or not after:
        return before or after
    match before[-1], after[0]:
        case Text(seal=None, extra=None) as one, Text(seal=None, extra=None) as other:
            pass
        case Reasoning(seal=None, extra=None) as one, Reasoning(extra=None) as other:
            pass
        case _:
            return before + after
    piece: Block = structs.replace(one, text=one.text + other.text, seal=other.seal)
    return (*before[:-1], piece, *after[1:])


def _system(value: Json, kept: dict[str, Json]) -> tuple[Text, ...]:
    if value is None:
        return ()
    if isinstance(value, str | list):
        value = {"parts": value}
    fields = Fields(value, "systemInstruction")
    texts = tuple(map(_system_text, _parts(fields, Pairs())))
    if rest := fields.rest():
        kept["systemInstruction"] = rest
    return texts


def _system_text(block: Block) -> Text:
    """What is no text keeps its place as a text that says nothing: this list holds nothing else."""
    if isinstance(block, Text):
        return block
    if isinstance(block, ToolResult | ToolCall):
        raise MalformedRequest("a system prompt holds no calls", at=block.at.path)
    return Text("", extra=extra_of({"part": render_part(block)}), at=block.at)


# --- rendering


def render_request(conversation: Conversation) -> Call:
    """Say a conversation that fits. Raises Unrepresentable for what this dialect cannot say."""
    if conversation.previous is not None:
        raise Unrepresentable("no conversation is kept here to go on with", at="previous_response_id")
    if conversation.user:
        raise Unrepresentable("there is no place for a user id", at="user")
    try:
        body = _body(conversation)
    except RecursionError:
        raise Unrepresentable("nested too deeply") from None
    return Call("generate", conversation.model, conversation.stream, body)


def _body(conversation: Conversation) -> dict[str, Json]:
    body: dict[str, Json] = {}
    if conversation.system:
        body["systemInstruction"] = {"parts": [_render_system(text) for text in conversation.system]}
    body["contents"] = _render_contents(conversation.messages)
    if conversation.tools:
        body["tools"] = render_tools(conversation.tools)
    body |= render_choice(conversation.tool_choice)
    body |= render_settings(conversation)
    return with_extra(body, conversation.extra)


def _render_system(text: Text) -> Json:
    part = own_fields(text.extra).get("part")
    if not text.text and isinstance(part, dict):
        return own_data(Opaque(FAMILY, part), Unrepresentable)
    return render_part(text)


def _render_contents(messages: Sequence[Message]) -> list[Json]:
    contents: list[Json] = []
    called: dict[str, ToolCall] = {}
    for message in messages:
        if message.role == "system":
            raise Unrepresentable("a system prompt stands before the first turn only", at=message.at.path)
        called |= {block.id: block for block in message.blocks if isinstance(block, ToolCall)}
        parts: list[Json] = [
            render_part(block, called=called.get(block.call_id) if isinstance(block, ToolResult) else None)
            for block in message.blocks
        ]
        role = "model" if message.role == "assistant" else "user"
        contents.append(with_extra({"role": role, "parts": parts}, message.extra))
    return contents

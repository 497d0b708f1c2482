"""Turns, both directions: a message and its `userInputMessage` or `assistantResponseMessage` (facts 1.4).

A turn that fits has one text; results come before it and images after it, or a thought before it and calls after it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TypeAlias

from msgspec import UNSET, Struct, UnsetType, structs

from dragoman.dialects.kit.kept import Kept
from dragoman.dialects.kit.media import base64_bytes
from dragoman.errors import DragomanError, Unrepresentable
from dragoman.model.blocks import Block, Extra, Media, Opaque, Reasoning, Seal, Text, ToolCall, ToolResult, Where
from dragoman.model.conversation import OUTER, Message, of_what_it_came_in, to_keep
from dragoman.model.filter import Inventory
from dragoman.model.parts import part_text, read_loose_part
from dragoman.wire import jsonio
from dragoman.wire.fields import Fields
from dragoman.wire.jsonio import Json, Raw

# --- What every part of this dialect shares: its family, unknown fields, log, what is called


FAMILY = "kiro"
LOG = logging.getLogger("dragoman.kiro")

# Fields of a request that only say which conversation or account it is: nothing is lost where they mean nothing.
IDENTITY = frozenset({"conversationId", "profileArn"})
_KEPT = Kept(FAMILY)
own_fields, with_own = _KEPT.own_fields, _KEPT.with_extra


def extra_of(fields: dict[str, Json], spelling: frozenset[str] = frozenset()) -> Extra | None:
    """Fields that were not read, kept for this family alone."""
    return _KEPT.extra_of(to_keep(fields), spelling)


def called(held: Inventory) -> list[str]:
    """The names of all tools that history calls, in the order of their first call."""
    return list(dict.fromkeys([call.name for call in held.calls]))


USER, ASSISTANT, CONTEXT = "userInputMessage", "assistantResponseMessage", "userInputMessageContext"
_STATUSES = {"success": False, "error": True, "failed": True, "failure": True}

# --- reading


def parse_turn(entry: Fields, origin: str) -> Message:
    """An entry of history, or the current message. Raises MalformedRequest."""
    if (user := entry.maybe_child(USER)) is not None:
        turn = _parse_user(user, origin)
    elif (assistant := entry.maybe_child(ASSISTANT)) is not None:
        turn = _parse_assistant(assistant)
    else:
        raise entry.blame(f"expected {USER} or {ASSISTANT}", at=entry.at)
    extra = with_beside(turn.extra, entry)
    return turn if extra is turn.extra else structs.replace(turn, extra=extra)


def _parse_user(fields: Fields, origin: str) -> Message:
    blocks: list[Block] = []
    kept: dict[str, Json] = {}
    context = fields.maybe_child(CONTEXT)
    if context is not None:
        blocks.extend(map(parse_result, context.children("toolResults", [])))
        if rest := context.rest():
            kept[CONTEXT] = rest
    if content := fields.text("content", ""):
        blocks.append(Text(content, at=Where(fields.path("content"))))
    blocks.extend(map(_parse_image, fields.children("images", [])))
    if fields.peek("origin") == origin:
        fields.any("origin")
    return Message("user", tuple(blocks), extra=extra_of({**_said(fields), **kept}), at=Where(fields.at))


def _parse_assistant(fields: Fields) -> Message:
    blocks: list[Block] = list(_parse_thought(fields))
    if content := fields.text("content", ""):
        blocks.append(Text(content, at=Where(fields.path("content"))))
    blocks.extend(map(_parse_use, fields.children("toolUses", [])))
    return Message("assistant", tuple(blocks), extra=extra_of(_said(fields)), at=Where(fields.at))


def _said(fields: Fields) -> dict[str, Json]:
    """The unknown fields; `null` says as much as absence."""
    return {name: value for name, value in fields.rest().items() if value is not None}


def with_beside(extra: Extra | None, outer: Fields) -> Extra | None:
    """What is kept of a node, and the fields that stand beside it in what it came in."""
    beside = {OUTER + name: value for name, value in to_keep(_said(outer)).items()}
    return Extra(FAMILY, {**own_fields(extra), **beside}) if beside else extra


def _parse_thought(fields: Fields) -> Iterator[Reasoning]:
    """Replayed reasoning. A form that we do not know stays among the turn's unknown fields."""
    match fields.peek("reasoningContent"):
        case {"reasoningText": {"text": str(text), "signature": str(signature)}, **rest} if not rest:
            seal = Seal(FAMILY, signature)
        case {"redactedContent": str(data), **rest} if not rest:
            text, seal = "", Seal(FAMILY, data, "redacted")
        case _:
            return
    fields.any("reasoningContent")
    yield Reasoning(text, FAMILY, seal, at=Where(fields.path("reasoningContent")))


def _parse_use(fields: Fields) -> ToolCall:
    call_id, name = fields.identifier("toolUseId"), fields.identifier("name")
    value = fields.any("input")
    arguments = "" if value is None else json_text(value, fields.path("input"), fields.blame)
    return ToolCall(call_id, name, arguments, extra=extra_of(fields.rest()), at=Where(fields.at))


def parse_result(fields: Fields) -> ToolResult:
    """A tool result, whatever its content is: an array of parts, one part, a string, nothing (D1, D2)."""
    call_id = fields.identifier("toolUseId")
    status = fields.peek("status")
    is_error = isinstance(status, str) and _STATUSES.get(status.lower(), False)
    if status in (None, "success", "error"):
        fields.any("status")
    content = tuple(_result_parts(fields.any("content"), fields.path("content"), fields.blame))
    return ToolResult(call_id, content, is_error, extra=extra_of(fields.rest()), at=Where(fields.at))


def _result_parts(value: Json, at: str, blame: type[DragomanError]) -> Iterator[Text | Media | Opaque]:
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from _result_parts(item, f"{at}[{index}]", blame)
    elif isinstance(value, dict) and value.keys() == {"json"} and (words := part_text(value)).is_whole:
        # Its text is what every other dialect can say; the same dialect gets it back as it came.
        kept = Extra(FAMILY, value, frozenset(value))
        yield Text(words.text, extra=kept, at=Where(at))
    elif value is not None and value != "" and (part := read_loose_part(FAMILY, value, Where(at))) != Text(""):
        yield part


def _parse_image(fields: Fields) -> Media:
    kind, source = fields.identifier("format"), fields.child("source")
    data = source.identifier("bytes")
    if base64_bytes(data) is None:
        source.fail("bytes", "expected base64")
    around = {"source": rest} if (rest := source.rest()) else {}
    return Media(
        "image", f"image/{kind}", "base64", data, extra=extra_of({**fields.rest(), **around}), at=Where(fields.at)
    )


def json_text(value: Json, at: str, blame: type[DragomanError]) -> str:
    try:
        return jsonio.text_of(value)
    except jsonio.JsonError as error:
        raise blame(str(error), at=at) from None


# --- rendering: Structs, which an encoder writes faster than objects; one that has kept fields becomes an object


class _Node(Struct, frozen=True, gc=False, omit_defaults=True, rename="camel"):
    pass


class _Words(_Node, frozen=True):
    text: str


class _Result(_Node, frozen=True):
    tool_use_id: str
    content: list[_Words | Json]
    status: str


class _Context(_Node, frozen=True):
    tool_results: list[_Result | Json]


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


Turn: TypeAlias = _UserTurn | _AssistantTurn | dict[str, Json]


def render_turn(message: Message, origin: str, model: str = "") -> Turn:
    """Say a turn that fits. Raises Unrepresentable for what has no place in it.

    One that has kept fields is an object, and like one without `model` gets the model's name from the binding.
    """
    node: _User | _Assistant
    if message.role == "user":
        node = _render_user(message, origin, model)
    elif message.role == "assistant":
        node = _render_assistant(message)
    else:
        raise Unrepresentable(f"a {message.role} turn has no place here", at=message.at.path)
    if message.extra is None:
        return _UserTurn(node) if isinstance(node, _User) else _AssistantTurn(node)
    kept = own_fields(message.extra)
    name = USER if isinstance(node, _User) else ASSISTANT
    return {**of_what_it_came_in(kept), name: with_own(object_of(node), message.extra)}


def object_of(node: Struct) -> dict[str, Json]:
    """A node as an object."""
    value = jsonio.decode(jsonio.encode(node))
    assert isinstance(value, dict)
    return value


def _render_user(message: Message, origin: str, model: str) -> _User:
    texts: list[Text] = []
    images: list[Json] = []
    results: list[_Result | Json] = []
    for block in message.blocks:
        kind = type(block)  # isinstance is slow where a Struct class does not match
        if kind is Text:
            texts.append(block)  # type: ignore[arg-type]
        elif kind is ToolResult:
            results.append(_render_result(block))  # type: ignore[arg-type]
        elif isinstance(block, Media) and (block.kind, block.how) == ("image", "base64"):
            image: dict[str, Json] = {"format": block.mime.removeprefix("image/"), "source": {"bytes": block.data}}
            images.append(with_own(image, block.extra))
        else:
            raise _misplaced(block)
    named: str | UnsetType = model or UNSET
    if message.extra is not None:
        named = UNSET
        origin = own_fields(message.extra).get("origin", origin)  # type: ignore[assignment]  # whatever it was
    return _User(named, _one(texts), origin, images or None, _Context(results) if results else None)


def _render_assistant(message: Message) -> _Assistant:
    texts: list[Text] = []
    thoughts: list[Json] = []
    uses: list[_Use | Json] = []
    for block in message.blocks:
        kind = type(block)
        if kind is Text:
            texts.append(block)  # type: ignore[arg-type]
        elif kind is ToolCall:
            uses.append(_render_use(block))  # type: ignore[arg-type]
        elif isinstance(block, Reasoning) and not thoughts:
            thoughts.append(_render_thought(block))
        else:
            raise _misplaced(block)
    return _Assistant(_one(texts), thoughts[0] if thoughts else None, uses or None)


def _one(texts: list[Text]) -> str:
    if len(texts) > 1:
        raise Unrepresentable("a turn has one text here", at=texts[1].at.path)
    return texts[0].text if texts else ""


def _misplaced(block: Block) -> Unrepresentable:
    kind = block.kind if isinstance(block, Media | Opaque) else type(block).__name__
    return Unrepresentable(f"{kind} has no place in this turn", at=block.at.path)


def _render_thought(block: Reasoning) -> Json:
    seal = block.seal
    if seal is None or seal.family != FAMILY or seal.kind == "encrypted":
        raise Unrepresentable("reasoning goes back only with the service's own signature", at=block.at.path)
    if seal.kind == "redacted":
        return {"redactedContent": seal.data}
    return {"reasoningText": {"text": block.text, "signature": seal.data}}


def _render_use(call: ToolCall) -> _Use | Json:
    arguments = call.arguments
    if type(arguments) is jsonio.ObjectText and call.form == "json":
        use = _Use(call.id, call.name, Raw(arguments.data))
    else:
        value = jsonio.object_of(arguments or "{}") if call.form == "json" else None
        if value is None:
            raise Unrepresentable(f"the arguments of {call.name} are no JSON object", at=call.at.path)
        use = _Use(call.id, call.name, value)
    return use if call.extra is None else with_own(object_of(use), call.extra)


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
    return node if result.extra is None else with_own(object_of(node), result.extra)

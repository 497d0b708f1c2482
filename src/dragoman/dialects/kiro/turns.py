"""Turns, both directions: a message and its `userInputMessage` or `assistantResponseMessage` (facts 1.4).

A turn that fits has one text; results come before it and images after it, or a thought before it and calls after it.
"""

from __future__ import annotations

import binascii
from collections.abc import Iterator

from msgspec import structs

from dragoman.dialects.kiro.nodes import FAMILY, extra_of, own_fields, with_own
from dragoman.errors import DragomanError, Unrepresentable
from dragoman.model.blocks import Block, Extra, Media, Opaque, Reasoning, Seal, Text, ToolCall, ToolResult, Where
from dragoman.model.conversation import Message
from dragoman.model.naming import OUTER, of_what_it_came_in, to_keep
from dragoman.model.parts import part_text, read_loose_part
from dragoman.wire import jsonio
from dragoman.wire.fields import Fields
from dragoman.wire.jsonio import Json

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
    call_id, name = identifier(fields, "toolUseId"), identifier(fields, "name")
    value = fields.any("input")
    arguments = "" if value is None else json_text(value, fields.path("input"), fields.blame)
    return ToolCall(call_id, name, arguments, extra=extra_of(fields.rest()), at=Where(fields.at))


def parse_result(fields: Fields) -> ToolResult:
    """A tool result, whatever its content is: an array of parts, one part, a string, nothing (D1, D2)."""
    call_id = identifier(fields, "toolUseId")
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
    kind, source = identifier(fields, "format"), fields.child("source")
    data = identifier(source, "bytes")
    try:
        binascii.a2b_base64(data.encode("ascii"), strict_mode=True)
    except ValueError:
        source.fail("bytes", "expected base64")
    around = {"source": rest} if (rest := source.rest()) else {}
    return Media(
        "image", f"image/{kind}", "base64", data, extra=extra_of({**fields.rest(), **around}), at=Where(fields.at)
    )


def identifier(fields: Fields, name: str) -> str:
    """An id, a name or data: never the empty string (D5)."""
    return fields.identifier(name)


def json_text(value: Json, at: str, blame: type[DragomanError]) -> str:
    try:
        return jsonio.text_of(value)
    except jsonio.JsonError as error:
        raise blame(str(error), at=at) from None


# --- rendering


def render_turn(message: Message, origin: str) -> dict[str, Json]:
    """Say a turn that fits. Raises Unrepresentable for what has no place in it."""
    turn: dict[str, Json]
    if message.role == "user":
        turn = {USER: _render_user(message, origin)}
    elif message.role == "assistant":
        turn = {ASSISTANT: _render_assistant(message)}
    else:
        raise Unrepresentable(f"a {message.role} turn has no place here", at=message.at.path)
    return turn if message.extra is None else {**of_what_it_came_in(own_fields(message.extra)), **turn}


def _render_user(message: Message, origin: str) -> dict[str, Json]:
    texts: list[Text] = []
    images: list[Json] = []
    results: list[Json] = []
    for block in message.blocks:
        kind = type(block)  # isinstance is slow where a Struct class does not match
        if kind is Text:
            texts.append(block)  # type: ignore[arg-type]
        elif kind is ToolResult:
            results.append(render_result(block))  # type: ignore[arg-type]
        elif isinstance(block, Media) and (block.kind, block.how) == ("image", "base64"):
            image: dict[str, Json] = {"format": block.mime.removeprefix("image/"), "source": {"bytes": block.data}}
            images.append(with_own(image, block.extra))
        else:
            raise _misplaced(block)
    body: dict[str, Json] = {"content": _one(texts), "origin": origin}
    if message.extra is not None:
        body["origin"] = own_fields(message.extra).get("origin", origin)
    if images:
        body["images"] = images
    if results:
        body[CONTEXT] = {"toolResults": results}
    return body if message.extra is None else with_own(body, message.extra)


def _render_assistant(message: Message) -> dict[str, Json]:
    texts: list[Text] = []
    thoughts: list[Json] = []
    uses: list[Json] = []
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
    body: dict[str, Json] = {"content": _one(texts)}
    if thoughts:
        body["reasoningContent"] = thoughts[0]
    if uses:
        body["toolUses"] = uses
    return body if message.extra is None else with_own(body, message.extra)


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


def _render_use(call: ToolCall) -> Json:
    value = jsonio.object_of(call.arguments or "{}") if call.form == "json" else None
    if value is None:
        raise Unrepresentable(f"the arguments of {call.name} are no JSON object", at=call.at.path)
    use: dict[str, Json] = {"toolUseId": call.id, "name": call.name, "input": value}
    return use if call.extra is None else with_own(use, call.extra)


def render_result(result: ToolResult) -> Json:
    content: list[Json] = []
    for part in result.content:
        if type(part) is not Text:
            raise Unrepresentable("a tool result holds text only", at=part.at.path)
        kept = part.extra and own_fields(part.extra)
        content.append({**kept} if kept else {"text": part.text})
    status = "error" if result.is_error else "success"
    body: dict[str, Json] = {"toolUseId": result.call_id, "content": content, "status": status}
    return body if result.extra is None else with_own(body, result.extra)

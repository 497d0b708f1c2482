"""The list of messages: roles, tool messages and the older function messages, to canonical turns and back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

from msgspec import structs

from dragoman.dialects.kit.kept import cannot, describe
from dragoman.dialects.openai.parts import (
    CALL_ID_FIELDS,
    JsonObject,
    arguments_text,
    extra_of,
    is_blank,
    is_blank_function,
    own_fields,
    parse_content,
    parse_result,
    plain,
    refusal,
    render_content,
    render_part,
    required,
    wire_fields,
    without_place,
)
from dragoman.dialects.openai.reasoning import (
    goes_as_part,
    parse_reasoning,
    read_thinking_part,
    render_reasoning,
    render_thinking_part,
)
from dragoman.dialects.openai.settings import FAMILY, OpenaiSettings
from dragoman.dialects.openai.shapes import exact_message
from dragoman.dialects.openai.tools import parse_call, render_call
from dragoman.errors import Unrepresentable
from dragoman.model.blocks import (
    OUTER,
    Block,
    Opaque,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
    Where,
    of_what_it_came_in,
    to_keep,
)
from dragoman.model.conversation import Message
from dragoman.wire.fields import Fields
from dragoman.wire.jsonio import Json

# Fields that SDKs write as null when they echo a message: null says nothing there.
_OFTEN_NULL = ("name", "audio", "refusal", "function_call", "tool_calls", "annotations", "tool_call_id")

_MESSAGES = Where("messages")

# --- wire to canonical


class MessageParser:
    """Reads messages in their order: the older function messages answer the call that came last."""

    def __init__(self, settings: OpenaiSettings) -> None:
        self._settings = settings
        self._calls = 0
        self._unanswered: list[tuple[str, str]] = []  # name and made-up id of the older calls
        self._readers = {
            "user": self._user,
            "assistant": self._assistant,
            "tool": self._tool,
            "function": self._function,
        }

    def messages(self, objects: Iterable[JsonObject]) -> list[Message]:
        read: list[Message] = []
        for index, item in enumerate(objects):
            at = Where(_MESSAGES, index)
            read.append(exact_message(item, at) or self.parse(Fields(item, at.path)))
        return read

    def parse(self, fields: Fields) -> Message:
        role = fields.text("role").lower()
        if role in ("system", "developer"):
            return self._system(fields, role)
        if role in self._readers:
            return self._readers[role](fields)
        known = "developer, system, user, assistant, tool, function"
        raise fields.blame(f"expected one of {known}", at=fields.path("role"))

    def _system(self, fields: Fields, role: str) -> Message:
        blocks = parse_content(fields.any("content"), fields.path("content"))
        own = _rest(fields) | ({"~role": role} if role == "developer" else {})
        return Message("system", tuple(blocks), extra=extra_of(own), at=Where(fields.at))

    def _user(self, fields: Fields) -> Message:
        blocks = parse_content(fields.any("content"), fields.path("content"))
        return Message("user", tuple(blocks), extra=extra_of(_rest(fields)), at=Where(fields.at))

    def _assistant(self, fields: Fields) -> Message:
        blocks = assistant_blocks(fields, self._settings)
        for block in blocks:
            if isinstance(block, ToolCall) and not block.id:
                raise fields.blame("expected a string that is not empty", at=f"{block.at.path}.id")
        if call := take_function_call(fields):
            blocks.append(self._older_call(call))
        return Message("assistant", tuple(blocks), extra=extra_of(_rest(fields)), at=Where(fields.at))

    def _older_call(self, fields: Fields) -> ToolCall:
        name, arguments = required(fields, "name"), arguments_text(fields.any("arguments"))
        call_id = self._next_id()
        self._unanswered.append((name, call_id))
        return ToolCall(call_id, name, arguments, extra=extra_of(to_keep(fields.rest())), at=Where(fields.at))

    def _next_id(self) -> str:
        """An id for a call or result of the time before ids; it depends on nothing but the messages before."""
        self._calls += 1
        return f"call_function_{self._calls}"

    def _tool(self, fields: Fields) -> Message:
        content = fields.peek("content")
        named = any(fields.peek(name) for name in CALL_ID_FIELDS)
        if not named and isinstance(content, list) and any(map(_is_result, content)):
            return self._user(fields)
        for name in _OFTEN_NULL:
            if fields.peek(name) is None:
                fields.any(name)
        return Message("user", (parse_result(fields),), at=Where(fields.at))

    def _function(self, fields: Fields) -> Message:
        name = required(fields, "name")
        asked = next((pair for pair in self._unanswered if pair[0] == name), None)
        if asked is None:
            call_id = self._next_id()
        else:
            self._unanswered.remove(asked)
            call_id = asked[1]
        result = parse_result(Fields({**fields.rest(), "tool_call_id": call_id}, fields.at, fields.blame))
        return Message("user", (result,), at=Where(fields.at))


def lead(messages: Sequence[Message]) -> tuple[list[Text], Sequence[Message]]:
    """The texts of the leading system messages, each with its message's own fields, and the messages after them."""
    texts: list[Text] = []
    for index, message in enumerate(messages):
        said = [block for block in message.blocks if isinstance(block, Text)]
        if message.role != "system" or len(said) < len(message.blocks):
            return texts, messages[index:]
        own = own_fields(message.extra)
        placing: JsonObject = {"~role": own.pop("~role")} if "~role" in own else {}
        placing |= {f"{OUTER}{name}": value for name, value in own.items()}
        texts += [structs.replace(text, extra=extra_of(own_fields(text.extra) | placing)) for text in said]
    return texts, () if texts else messages[-1:]  # one that says something empty is still a message


def _is_result(part: Json) -> bool:
    return isinstance(part, dict) and part.get("type") == "tool_result"


def _rest(fields: Fields) -> JsonObject:
    return to_keep(
        {name: value for name, value in fields.rest().items() if name not in _OFTEN_NULL or not is_blank(value)}
    )


def assistant_blocks(fields: Fields, settings: OpenaiSettings) -> list[Block]:
    """What an assistant says in a message, of a request or of a reply: reasoning, content, refusal, calls."""
    blocks: list[Block] = [*parse_reasoning(fields, settings)]
    blocks += map(read_thinking_part, parse_content(fields.any("content"), fields.path("content")))
    if refused := fields.text("refusal", ""):
        blocks.append(refusal(refused, fields.path("refusal")))
    return blocks + _parse_calls(fields)


def _parse_calls(fields: Fields) -> list[ToolCall | Opaque]:
    """The entries of `tool_calls`, without those that say nothing."""
    if is_blank(fields.peek("tool_calls")):
        fields.any("tool_calls")
        return []
    at, entries = fields.path("tool_calls"), fields.array("tool_calls")
    told = [(index, entry) for index, entry in enumerate(entries) if not is_blank(entry)]
    return [parse_call(Fields(entry, f"{at}[{index}]", fields.blame)) for index, entry in told]


def take_function_call(fields: Fields) -> Fields | None:
    """Take the older `function_call`; None for one that says nothing."""
    if is_blank_function(fields.peek("function_call")):
        fields.any("function_call")
        return None
    return fields.child("function_call")


# --- canonical to wire


def render_messages(system: Sequence[Text], messages: Iterable[Message], settings: OpenaiSettings) -> list[Json]:
    rendered: list[Json] = [_render_system(list(texts)) for _, texts in groupby(system, _placing)]
    for message in messages:
        words = _words(message)
        if words is not None:
            rendered.append({"role": message.role, "content": words})
            continue
        match message.role:
            case "system":
                role = str(own_fields(message.extra).get("~role", "system"))
                rendered.append(_render_plain(message, role, message.blocks))
            case "user":
                rendered.extend(_render_user(message))
            case "assistant":
                rendered.append(_render_assistant(message, settings))
    return rendered


def _words(message: Message) -> str | None:
    """The text of a message that is one text and nothing else, as most are."""
    blocks = message.blocks
    if len(blocks) != 1 or message.extra is not None or not isinstance(text := blocks[0], Text):
        return None
    return None if text.extra or text.cache or text.seal or text.citations or not text.text else text.text


def _placing(text: Text) -> tuple[Json, JsonObject]:
    """What the texts of one system message share: its role and its own fields."""
    fields = own_fields(text.extra)
    return fields.get("~role"), of_what_it_came_in(fields)


def _render_system(texts: Sequence[Text]) -> Json:
    role, own = _placing(texts[0])
    content = render_content([without_place(text) for text in texts])
    return {"role": role or "system", "content": content, **own}


def _render_plain(message: Message, role: str, blocks: Sequence[Block]) -> JsonObject:
    return {"role": role, "content": render_content(blocks), **wire_fields(message.extra)}


def _render_user(message: Message) -> Iterable[Json]:
    """Results as tool messages, then whatever else the turn holds."""
    results = [block for block in message.blocks if isinstance(block, ToolResult)]
    others = [block for block in message.blocks if not isinstance(block, ToolResult)]
    yield from map(_render_result, results)
    if others or not results or wire_fields(message.extra):
        yield _render_plain(message, "user", others)


def _render_result(result: ToolResult) -> Json:
    plain(result)
    if result.is_error:
        raise cannot(result, "a tool message cannot say that it is an error")
    content = render_content(result.content)
    return {"role": "tool", "tool_call_id": result.call_id, "content": content, **wire_fields(result.extra)}


_ORDER = ("reasoning", "content", "calls")


def rank(block: Block) -> int:
    """Where a block stands in an assistant's message: reasoning, content, calls."""
    match block:
        case Reasoning():
            return 0
        case ToolCall():
            return 2
        case Opaque(extra=extra):
            return {"reasoning_details": 0, "thinking_blocks": 0, "tool_calls": 2}.get(
                str(own_fields(extra).get("~slot")), 1
            )
        case _:
            return 1


def _render_assistant(message: Message, settings: OpenaiSettings) -> JsonObject:
    ranks = [rank(block) for block in message.blocks]
    if ranks != sorted(ranks):
        raise Unrepresentable(f"an assistant's message holds {', '.join(_ORDER)}, in this order", at=message.at.path)
    return {"role": "assistant", **render_said(message.blocks, settings), **wire_fields(message.extra)}


def render_said(blocks: Sequence[Block], settings: OpenaiSettings) -> JsonObject:
    """The fields of an assistant's message that say these blocks."""
    reasoning: list[Reasoning | Opaque] = []
    content: list[Block] = []
    calls: list[Json] = []
    for block in blocks:
        match rank(block), block:
            case 0, Reasoning() | Opaque():
                reasoning.append(_own_reasoning(block))
            case 2, ToolCall() | Opaque():
                calls.append(render_call(block))
            case _:
                content.append(block)
    fields: JsonObject = {"content": render_content(content) if content or not calls else None}
    told = [each for each in reasoning if isinstance(each, Reasoning) and goes_as_part(each, settings)]
    if told:
        fields["content"] = [*map(render_thinking_part, told), *map(render_part, content)]
        reasoning = [each for each in reasoning if each not in told]
    elif len(content) == 1 and isinstance(content[0], Text) and own_fields(content[0].extra) == {"refusal": True}:
        plain(content[0])
        fields = {"content": None, "refusal": content[0].text}
    fields |= render_reasoning(reasoning, settings)
    if calls:
        fields["tool_calls"] = calls
    return fields


def _own_reasoning(block: Reasoning | Opaque) -> Reasoning | Opaque:
    seal = block.seal if isinstance(block, Reasoning) else None
    if seal is not None and seal.family != FAMILY:
        raise cannot(block, f"Chat cannot give back a seal of {seal.family}")
    if seal is None and block.family not in {"", FAMILY}:
        raise cannot(block, f"Chat cannot give back {describe(block)} of {block.family}")
    return block

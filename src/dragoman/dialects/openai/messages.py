"""Parse and render the messages of Chat Completions: roles, tool messages, legacy functions, reasoning. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby

from msgspec import structs

from dragoman.dialects.kit.openai_requests import arguments_text
from dragoman.dialects.kit.values import ToolCallIds, describe_block, unrepresentable
from dragoman.dialects.openai.blocks import (
    CALL_ID_FIELDS,
    EXTRAS,
    FAMILY,
    REASONING_FIELDS,
    OpenaiSettings,
    check_block,
    flat_text,
    is_empty_function_call,
    is_empty_value,
    parse_content,
    parse_result,
    refusal_block,
    render_content,
    render_part,
    without_message_fields,
)
from dragoman.dialects.openai.shapes import read_typed_message
from dragoman.dialects.openai.tools import parse_call, render_call
from dragoman.errors import Unrepresentable
from dragoman.model.blocks import Block, Location, Opaque, Reasoning, Signature, Text, ToolCall, ToolResult
from dragoman.model.conversation import PARENT_PREFIX, Message, Role, parent_fields, to_extra_names
from dragoman.wire.fields import Fields
from dragoman.wire.jsonio import Json, JsonObject

# Fields that SDKs write as null when they send a reply back. Null means absent there.
_OFTEN_NULL = ("name", "audio", "refusal", "function_call", "tool_calls", "annotations", "tool_call_id")

_MESSAGES = Location("messages")

# --- wire to canonical


class MessageParser:
    """Reads messages in order. Legacy function messages have no call id: each answers the latest call by its name."""

    def __init__(self, settings: OpenaiSettings) -> None:
        self._settings = settings
        self._pairs = ToolCallIds("call_function_")  # ids for legacy calls and results
        self._readers: dict[str, Callable[[Fields, str], Message]] = {
            "developer": self._plain,
            "system": self._plain,
            "user": self._plain,
            "assistant": self._assistant,
            "tool": self._tool,
            "function": self._function,
        }

    def messages(self, objects: Iterable[JsonObject]) -> list[Message]:
        """Return the messages. Raises MalformedRequest."""
        parsed: list[Message] = []
        for index, item in enumerate(objects):
            at = Location(_MESSAGES, index)
            parsed.append(read_typed_message(item, at) or self.parse(Fields(item, at.path)))
        return parsed

    def parse(self, fields: Fields) -> Message:
        """Return one message of any shape. Raises MalformedRequest."""
        role = fields.text("role").lower()
        if role not in self._readers:
            fields.fail("role", f"expected one of {', '.join(self._readers)}")
        return self._readers[role](fields, role)

    def _plain(self, fields: Fields, role: str) -> Message:
        blocks = parse_content(fields.any("content"), fields.path("content"))
        own = _extra_fields(fields) | ({"~role": role} if role == "developer" else {})
        canonical: Role = "system" if role in ("system", "developer") else "user"
        return Message(canonical, tuple(blocks), extra=EXTRAS.extra_of(own), at=Location(fields.at))

    def _assistant(self, fields: Fields, role: str) -> Message:
        blocks = parse_assistant_blocks(fields, self._settings)
        for block in blocks:
            if isinstance(block, ToolCall) and not block.id:
                raise fields.blame("expected a string that is not empty", at=f"{block.at.path}.id")
        if call := take_function_call(fields):
            name, arguments = call.identifier("name"), arguments_text(call.any("arguments"))
            call_id = self._pairs.add_call("", name)
            blocks.append(ToolCall(call_id, name, arguments, extra=EXTRAS.extra(call), at=Location(call.at)))
        return Message("assistant", tuple(blocks), extra=EXTRAS.extra_of(_extra_fields(fields)), at=Location(fields.at))

    def _tool(self, fields: Fields, role: str) -> Message:
        content = fields.peek("content")
        has_call_id = any(fields.peek(name) for name in CALL_ID_FIELDS)
        if (
            not has_call_id
            and isinstance(content, list)
            and any(isinstance(part, dict) and part.get("type") == "tool_result" for part in content)
        ):
            return self._plain(fields, role)
        for name in _OFTEN_NULL:
            if fields.peek(name) is None:
                fields.any(name)
        return Message("user", (parse_result(fields),), at=Location(fields.at))

    def _function(self, fields: Fields, role: str) -> Message:
        call_id = self._pairs.match_result("", fields.identifier("name"))
        result = parse_result(Fields({**fields.rest(), "tool_call_id": call_id}, fields.at, fields.blame))
        return Message("user", (result,), at=Location(fields.at))


def split_leading_system(messages: Sequence[Message]) -> tuple[list[Text], Sequence[Message]]:
    """Return the texts of the leading system messages and the messages after them.

    Each text carries the unknown fields of its message, so that `render_messages` can restore them.
    """
    texts: list[Text] = []
    for index, message in enumerate(messages):
        parts = [block for block in message.blocks if isinstance(block, Text)]
        if message.role != "system" or len(parts) < len(message.blocks):
            return texts, messages[index:]
        own = dict(EXTRAS.own_fields(message.extra))
        parent: JsonObject = {"~role": own.pop("~role")} if "~role" in own else {}
        parent |= {f"{PARENT_PREFIX}{name}": value for name, value in own.items()}
        texts += [
            structs.replace(text, extra=EXTRAS.extra_of({**EXTRAS.own_fields(text.extra), **parent})) for text in parts
        ]
    return texts, () if texts else messages[-1:]  # a conversation of empty system messages keeps one message


def _extra_fields(fields: Fields) -> JsonObject:
    return to_extra_names(
        {name: value for name, value in fields.rest().items() if name not in _OFTEN_NULL or not is_empty_value(value)}
    )


def parse_assistant_blocks(fields: Fields, settings: OpenaiSettings) -> list[Block]:
    """Read an assistant's message of a request or a reply: reasoning, content, refusal, calls."""
    blocks: list[Block] = [*parse_reasoning(fields, settings)]
    blocks += map(read_thinking_part, parse_content(fields.any("content"), fields.path("content")))
    if refused := fields.text("refusal", ""):
        blocks.append(refusal_block(refused, fields.path("refusal")))
    return blocks + _parse_calls(fields)


def _parse_calls(fields: Fields) -> list[ToolCall | Opaque]:
    """Read the entries of `tool_calls`, without the empty ones."""
    if is_empty_value(fields.peek("tool_calls")):
        fields.any("tool_calls")
        return []
    at, entries = fields.path("tool_calls"), fields.array("tool_calls")
    filled = [(index, entry) for index, entry in enumerate(entries) if not is_empty_value(entry)]
    return [parse_call(Fields(entry, f"{at}[{index}]", fields.blame)) for index, entry in filled]


def take_function_call(fields: Fields) -> Fields | None:
    """Return the legacy `function_call`, and mark it as read; None if it is empty."""
    if is_empty_function_call(fields.peek("function_call")):
        fields.any("function_call")
        return None
    return fields.child("function_call")


# --- canonical to wire


def render_messages(system: Sequence[Text], messages: Iterable[Message], settings: OpenaiSettings) -> list[Json]:
    """Write the system texts and the messages as a list of messages. Raises Unrepresentable."""
    rendered: list[Json] = []
    for (role, own), texts in groupby(system, _parent_message):
        content = render_content([without_message_fields(text) for text in texts])
        rendered.append({"role": role or "system", "content": content, **own})
    for message in messages:
        text = _plain_text(message)
        if text is not None:
            rendered.append({"role": message.role, "content": text})
        elif message.role == "assistant":
            rendered.append(_render_assistant(message, settings))
        else:
            rendered.extend(_render_other(message))
    return rendered


def _plain_text(message: Message) -> str | None:
    """Return the text of a message that is one plain text, as most are; otherwise None."""
    blocks = message.blocks
    if len(blocks) != 1 or message.extra is not None or not isinstance(text := blocks[0], Text):
        return None
    return None if text.extra or text.cache or text.signature or text.citations or not text.text else text.text


def _parent_message(text: Text) -> tuple[Json, JsonObject]:
    """Return the role and the fields of the system message that a text belongs to."""
    fields = EXTRAS.own_fields(text.extra)
    return fields.get("~role"), parent_fields(fields)


def _render_other(message: Message) -> Iterable[Json]:
    """Write the results of a message as tool messages, then its other blocks as one message."""
    results = [block for block in message.blocks if isinstance(block, ToolResult)]
    others = [block for block in message.blocks if not isinstance(block, ToolResult)]
    role, fields = EXTRAS.own_fields(message.extra).get("~role", message.role), EXTRAS.wire_fields(message.extra)
    yield from map(_render_result, results)
    if others or not results or fields:
        yield {"role": role, "content": render_content(others), **fields}


def _render_result(result: ToolResult) -> Json:
    check_block(result)
    if result.is_error:
        raise unrepresentable(result, "a tool message of Chat cannot be marked as an error")
    content = render_content(result.content)
    return {"role": "tool", "tool_call_id": result.call_id, "content": content, **EXTRAS.wire_fields(result.extra)}


_ORDER = ("reasoning", "content", "calls")


def block_rank(block: Block) -> int:
    """Return the position of a block in an assistant's message: 0 reasoning, 1 content, 2 calls."""
    match block:
        case Reasoning():
            return 0
        case ToolCall():
            return 2
        case Opaque(extra=extra):
            return {"reasoning_details": 0, "thinking_blocks": 0, "tool_calls": 2}.get(
                str(EXTRAS.own_fields(extra).get("~slot")), 1
            )
        case _:
            return 1


def _render_assistant(message: Message, settings: OpenaiSettings) -> JsonObject:
    ranks = [block_rank(block) for block in message.blocks]
    if ranks != sorted(ranks):
        raise Unrepresentable(f"an assistant's message must have {', '.join(_ORDER)} in this order", at=message.at.path)
    return {"role": "assistant", **render_assistant(message.blocks, settings), **EXTRAS.wire_fields(message.extra)}


def render_assistant(blocks: Sequence[Block], settings: OpenaiSettings) -> JsonObject:
    """Return the fields of an assistant's message with these blocks. Raises Unrepresentable."""
    reasoning: list[Reasoning | Opaque] = []
    content: list[Block] = []
    calls: list[Json] = []
    for block in blocks:
        match block_rank(block), block:
            case 0, Reasoning() | Opaque():
                reasoning.append(_check_reasoning(block))
            case 2, ToolCall() | Opaque():
                calls.append(render_call(block))
            case _:
                content.append(block)
    fields: JsonObject = {"content": render_content(content) if content or not calls else None}
    unsigned = [each for each in reasoning if isinstance(each, Reasoning) and each.signature is None]
    default = settings.reasoning_field
    as_parts = [each for each in unsigned if EXTRAS.own_fields(each.extra).get("~field", default) == _PART]
    if as_parts:
        fields["content"] = [*map(render_thinking_part, as_parts), *map(render_part, content)]
        reasoning = [each for each in reasoning if each not in as_parts]
    elif (
        len(content) == 1
        and isinstance(content[0], Text)
        and content[0].cache is None
        and EXTRAS.own_fields(content[0].extra) == {"refusal": True}
    ):
        check_block(content[0])
        fields = {"content": None, "refusal": content[0].text}
    fields |= render_reasoning(reasoning, settings)
    if calls:
        fields["tool_calls"] = calls
    return fields


def _check_reasoning(block: Reasoning | Opaque) -> Reasoning | Opaque:
    signature = block.signature if isinstance(block, Reasoning) else None
    if signature is not None and signature.family != FAMILY:
        raise unrepresentable(block, f"a Chat upstream cannot read a signature of {signature.family}")
    if signature is None and block.family not in {"", FAMILY}:
        raise unrepresentable(block, f"a Chat upstream cannot read {describe_block(block)} of {block.family}")
    return block


# --- reasoning on an assistant's message: `reasoning_content`, `reasoning`, `reasoning_details`, `thinking_blocks`
#
# Details hold more than the plain field (signatures, encrypted data), so they win where both hold the text.

_BLOCKS = "thinking_blocks"
_PART = "content"  # Mistral's parts of the content: `{"type": "thinking", "thinking": [{"type": "text", …}]}`
THINKING_PART_EXTRA = EXTRAS.extra_of({"~field": _PART})
REASONING_TEXT, REASONING_SUMMARY, REASONING_ENCRYPTED = "reasoning.text", "reasoning.summary", "reasoning.encrypted"


def parse_reasoning(fields: Fields, settings: OpenaiSettings) -> list[Reasoning | Opaque]:
    """Read all reasoning of a message."""
    plain = _parse_plain(fields, settings)
    entries = [parse_reasoning_detail(entry, at) for at, entry in enumerate(fields.children("reasoning_details", ()))]
    blocks = list(map(_parse_thinking_block, fields.children(_BLOCKS, ())))
    detailed = entries or blocks
    if any(isinstance(each, Reasoning) and each.text for each in detailed):
        return detailed
    return plain + detailed


def _parse_plain(fields: Fields, settings: OpenaiSettings) -> list[Reasoning | Opaque]:
    blocks: list[Reasoning | Opaque] = []
    for name in REASONING_FIELDS:
        text = fields.text(name, "")
        if text and not blocks:
            marks: JsonObject = {} if name == settings.reasoning_field else {"~field": name}
            blocks.append(Reasoning(text, FAMILY, extra=EXTRAS.extra_of(marks), at=Location(fields.path(name))))
    return blocks


def parse_reasoning_detail(fields: Fields, position: int) -> Reasoning | Opaque:
    """Read an entry of `reasoning_details`, of a message or of a delta.

    `position` is the place of the entry. An `index` equal to it is not kept, because the writer adds it again.
    """
    kind = fields.any("type")
    if kind not in (REASONING_TEXT, REASONING_SUMMARY, REASONING_ENCRYPTED):
        return _unknown(fields, kind, "reasoning detail", "reasoning_details")
    text, summary = fields.text("text", ""), fields.text("summary", "")
    signature_data, data = fields.text("signature", ""), fields.text("data", "")
    signature = (
        Signature(FAMILY, data, "encrypted") if data else Signature(FAMILY, signature_data) if signature_data else None
    )
    if fields.peek("index") == position:
        fields.any("index")
    rest = to_extra_names(fields.rest())
    if kind == REASONING_SUMMARY:
        rest["type"] = REASONING_SUMMARY
    return Reasoning(text or summary, FAMILY, signature, extra=EXTRAS.extra_of(rest), at=Location(fields.at))


def _parse_thinking_block(fields: Fields) -> Reasoning | Opaque:
    """Read an entry of litellm's `thinking_blocks`."""
    kind = fields.any("type")
    if kind not in ("thinking", "redacted_thinking"):
        return _unknown(fields, kind, "thinking block", _BLOCKS)
    text, signature = "", None
    if kind == "redacted_thinking":
        signature = Signature(FAMILY, fields.text("data"), "redacted")
    else:
        text, signature_data = fields.text("thinking", ""), fields.text("signature", "")
        signature = Signature(FAMILY, signature_data) if signature_data else None
    extra = EXTRAS.extra_of({**to_extra_names(fields.rest()), "~field": _BLOCKS})
    return Reasoning(text, FAMILY, signature, extra=extra, at=Location(fields.at))


def _unknown(fields: Fields, kind: Json, name: str, slot: str) -> Opaque:
    data = dict(fields.rest(), type=kind)
    return Opaque(FAMILY, data, name, extra=EXTRAS.extra_of({"~slot": slot}), at=Location(fields.at))


def thinking_text(thinking: Json) -> str:
    """Return the text of a thinking part; its pieces are joined without a separator."""
    return "".join(map(flat_text, thinking)) if isinstance(thinking, list) else flat_text(thinking)


def read_thinking_part(block: Block) -> Block:
    """Return a content part of the type `thinking` as reasoning. Signed parts and other blocks stay unchanged."""
    if not isinstance(block, Opaque) or block.kind != "thinking" or not isinstance(block.data, dict):
        return block
    if block.data.get("signature") or "thinking" not in block.data:
        return block
    rest = {name: value for name, value in block.data.items() if name not in ("type", "thinking")}
    marks: JsonObject = {"~field": _PART, **({"~part": rest} if rest else {})}
    return Reasoning(thinking_text(block.data["thinking"]), FAMILY, extra=EXTRAS.extra_of(marks), at=block.at)


def render_thinking_part(block: Reasoning) -> JsonObject:
    """Write reasoning as a content part of the type `thinking`."""
    rest = EXTRAS.own_fields(block.extra).get("~part")
    part: JsonObject = {"type": "thinking", "thinking": [{"type": "text", "text": block.text}]}
    return part | (rest if isinstance(rest, dict) else {})


def choose_reasoning_field(block: Reasoning | None, settings: OpenaiSettings) -> str:
    """Return the field of a message or a delta for plain reasoning: the block's own field, else the configured one."""
    marks = EXTRAS.own_fields(block.extra).get("~field") if block is not None else None
    return next((name for name in (marks, settings.reasoning_field) if name in REASONING_FIELDS), REASONING_FIELDS[0])


def render_reasoning(blocks: Sequence[Reasoning | Opaque], settings: OpenaiSettings) -> JsonObject:
    """Return the fields of a message for this reasoning, always with the plain field: some servers require it."""
    if not blocks:
        return {}
    text = "".join(block.text for block in blocks if isinstance(block, Reasoning))
    first = blocks[0]
    is_plain = not EXTRAS.wire_fields(first.extra) and _entries_field(first) != _BLOCKS
    if len(blocks) == 1 and isinstance(first, Reasoning) and text and first.signature is None and is_plain:
        return {choose_reasoning_field(first, settings): text}
    fields: JsonObject = {choose_reasoning_field(None, settings): text} if text else {}
    for name in ("reasoning_details", _BLOCKS):
        entries = [block for block in blocks if _entries_field(block) == name]
        if entries:
            fields[name] = [_render_entry(entry, index, name) for index, entry in enumerate(entries)]
    return fields


def _entries_field(block: Reasoning | Opaque) -> str:
    fields = EXTRAS.own_fields(block.extra)
    return _BLOCKS if _BLOCKS in (fields.get("~field"), fields.get("~slot")) else "reasoning_details"


def _render_entry(block: Reasoning | Opaque, index: int, name: str) -> Json:
    if isinstance(block, Opaque):
        return block.data
    fields, signature = EXTRAS.wire_fields(block.extra), block.signature
    if name == "reasoning_details":
        return render_reasoning_detail(block, index)
    if signature is not None and signature.kind != "signature":
        return {"type": "redacted_thinking", "data": signature.data, **fields}
    return {"type": "thinking", "thinking": block.text, "signature": signature.data if signature else "", **fields}


def render_reasoning_detail(block: Reasoning, index: int) -> JsonObject:
    """Write reasoning as an entry of `reasoning_details`."""
    fields, signature = EXTRAS.wire_fields(block.extra), block.signature
    detail: JsonObject
    if signature is not None and signature.kind != "signature":
        detail = {"type": REASONING_ENCRYPTED, "data": signature.data}
        detail |= {"text": block.text} if block.text else {}
    elif fields.get("type") == REASONING_SUMMARY:
        detail = {"type": REASONING_SUMMARY, "summary": block.text}
        detail |= {"signature": signature.data} if signature else {}
    else:
        detail = {"type": REASONING_TEXT, "text": block.text}
        detail |= {"signature": signature.data} if signature else {}
    return {**detail, "index": index, **fields}

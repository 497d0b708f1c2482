"""Reasoning on an assistant's message: `reasoning_content`, `reasoning`, `reasoning_details` and `thinking_blocks`.

Details say more than the plain field (whose signature it is, what is encrypted), so they win where both tell the text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from dragoman.dialects.openai.parts import JsonObject, extra_of, flat_text, own_fields, wire_fields
from dragoman.dialects.openai.settings import FAMILY, REASONING_FIELDS, OpenaiSettings
from dragoman.model.blocks import Block, Opaque, Reasoning, Seal, Where, to_keep
from dragoman.wire.fields import Fields
from dragoman.wire.jsonio import Json

_Parse: TypeAlias = Callable[[Fields, int], Reasoning | Opaque]
_BLOCKS = "thinking_blocks"
_PART = "content"  # Mistral's place: parts of the content, `{"type": "thinking", "thinking": [{"type": "text", …}]}`
AS_PART = extra_of({"~field": _PART})
TEXT, SUMMARY, ENCRYPTED = "reasoning.text", "reasoning.summary", "reasoning.encrypted"


def parse_reasoning(fields: Fields, settings: OpenaiSettings) -> list[Reasoning | Opaque]:
    """Take all reasoning out of a message."""
    plain = _parse_plain(fields, settings)
    entries = _entries(fields, "reasoning_details", _parse_detail)
    blocks = _entries(fields, _BLOCKS, _parse_block)
    detailed = entries or blocks
    if any(isinstance(each, Reasoning) and each.text for each in detailed):
        return detailed
    return plain + detailed


def _parse_plain(fields: Fields, settings: OpenaiSettings) -> list[Reasoning | Opaque]:
    found: list[Reasoning | Opaque] = []
    for name in REASONING_FIELDS:
        text = fields.text(name, "")
        if text and not found:
            spelt: JsonObject = {} if name == settings.reasoning_field else {"~field": name}
            found.append(Reasoning(text, FAMILY, extra=extra_of(spelt), at=Where(fields.path(name))))
    return found


def _entries(fields: Fields, name: str, parse: _Parse) -> list[Reasoning | Opaque]:
    return [parse(entry, index) for index, entry in enumerate(fields.children(name, ()))]


def _parse_detail(fields: Fields, position: int) -> Reasoning | Opaque:
    kind = fields.any("type")
    if kind not in (TEXT, SUMMARY, ENCRYPTED):
        return Opaque(
            FAMILY,
            dict(fields.rest(), type=kind),
            "reasoning detail",
            extra=extra_of({"~slot": "reasoning_details"}),
            at=Where(fields.at),
        )
    text, summary = fields.text("text", ""), fields.text("summary", "")
    signature, data = fields.text("signature", ""), fields.text("data", "")
    seal = Seal(FAMILY, data, "encrypted") if data else Seal(FAMILY, signature) if signature else None
    if fields.peek("index") == position:
        fields.any("index")
    rest = to_keep(fields.rest())
    if kind == SUMMARY:
        rest["type"] = SUMMARY
    return Reasoning(text or summary, FAMILY, seal, extra=extra_of(rest), at=Where(fields.at))


def _parse_block(fields: Fields, position: int) -> Reasoning | Opaque:
    """An entry of litellm's `thinking_blocks`."""
    kind, spelt = fields.any("type"), {"~field": _BLOCKS}
    if kind == "thinking":
        text, signature = fields.text("thinking", ""), fields.text("signature", "")
        seal = Seal(FAMILY, signature) if signature else None
        return Reasoning(text, FAMILY, seal, extra=extra_of({**to_keep(fields.rest()), **spelt}), at=Where(fields.at))
    if kind == "redacted_thinking":
        seal = Seal(FAMILY, fields.text("data"), "redacted")
        return Reasoning("", FAMILY, seal, extra=extra_of({**to_keep(fields.rest()), **spelt}), at=Where(fields.at))
    return Opaque(
        FAMILY,
        dict(fields.rest(), type=kind),
        "thinking block",
        extra=extra_of({"~slot": _BLOCKS}),
        at=Where(fields.at),
    )


def thinking_text(thinking: Json) -> str:
    """The text of a thinking part; pieces of an answer join with nothing."""
    return "".join(map(flat_text, thinking)) if isinstance(thinking, list) else flat_text(thinking)


def read_thinking_part(block: Block) -> Block:
    """Read a content part of the type `thinking` as reasoning. All other blocks stay, and one that is signed."""
    if not isinstance(block, Opaque) or block.kind != "thinking" or not isinstance(block.data, dict):
        return block
    if block.data.get("signature") or "thinking" not in block.data:
        return block
    rest = {name: value for name, value in block.data.items() if name not in ("type", "thinking")}
    spelt: JsonObject = {"~field": _PART, **({"~part": rest} if rest else {})}
    return Reasoning(thinking_text(block.data["thinking"]), FAMILY, extra=extra_of(spelt), at=block.at)


def goes_as_part(block: Reasoning, settings: OpenaiSettings) -> bool:
    """Whether this reasoning of a request is sent as a part of the content."""
    return block.seal is None and own_fields(block.extra).get("~field", settings.reasoning_field) == _PART


def render_thinking_part(block: Reasoning) -> JsonObject:
    rest = own_fields(block.extra).get("~part")
    part: JsonObject = {"type": "thinking", "thinking": [{"type": "text", "text": block.text}]}
    return part | (rest if isinstance(rest, dict) else {})


def plain_field(block: Reasoning | None, settings: OpenaiSettings) -> str:
    """The field of a message, or of a delta, that holds plain reasoning."""
    spelt = own_fields(block.extra).get("~field") if block is not None else None
    return next((name for name in (spelt, settings.reasoning_field) if name in REASONING_FIELDS), REASONING_FIELDS[0])


def render_reasoning(blocks: Sequence[Reasoning | Opaque], settings: OpenaiSettings) -> JsonObject:
    """The message's fields that say this reasoning. The plain field is always one of them: some demand it back."""
    if not blocks:
        return {}
    text = "".join(block.text for block in blocks if isinstance(block, Reasoning))
    first = blocks[0]
    if len(blocks) == 1 and isinstance(first, Reasoning) and _is_plain(first):
        return {plain_field(first, settings): text}
    fields: JsonObject = {plain_field(None, settings): text} if text else {}
    for name in ("reasoning_details", _BLOCKS):
        entries = [block for block in blocks if _field(block) == name]
        if entries:
            fields[name] = [_render_entry(entry, index, name) for index, entry in enumerate(entries)]
    return fields


def _is_plain(block: Reasoning) -> bool:
    return bool(block.text) and block.seal is None and not wire_fields(block.extra) and _field(block) != _BLOCKS


def _field(block: Reasoning | Opaque) -> str:
    fields = own_fields(block.extra)
    return _BLOCKS if _BLOCKS in (fields.get("~field"), fields.get("~slot")) else "reasoning_details"


def _render_entry(block: Reasoning | Opaque, index: int, name: str) -> Json:
    if isinstance(block, Opaque):
        return block.data
    fields, seal = wire_fields(block.extra), block.seal
    if name == "reasoning_details":
        return render_detail(block, index)
    if seal is not None and seal.kind != "signature":
        return {"type": "redacted_thinking", "data": seal.data, **fields}
    return {"type": "thinking", "thinking": block.text, "signature": seal.data if seal else "", **fields}


def render_detail(block: Reasoning, index: int) -> JsonObject:
    fields, seal = wire_fields(block.extra), block.seal
    detail: JsonObject
    if seal is not None and seal.kind != "signature":
        detail = {"type": ENCRYPTED, "data": seal.data}
        detail |= {"text": block.text} if block.text else {}
    elif fields.get("type") == SUMMARY:
        detail = {"type": SUMMARY, "summary": block.text}
        detail |= {"signature": seal.data} if seal else {}
    else:
        detail = {"type": TEXT, "text": block.text}
        detail |= {"signature": seal.data} if seal else {}
    return {**detail, "index": index, **fields}

"""Reasoning items: a summary, the thinking itself where it is shown, and what only its maker can read.

One item is one block. Its text is that of its parts with blank lines between them; where there is more than one summary
part, the parts are remembered as spelling and written again as long as they still say the same.
"""

from __future__ import annotations

from collections.abc import Iterable

from dragoman.dialects.kit.kept import cannot
from dragoman.dialects.responses.nodes import FAMILY, JsonObject, extra_of, own_fields, text_of, wire_fields
from dragoman.model.blocks import Reasoning, Seal, Where, to_keep
from dragoman.wire.fields import Fields
from dragoman.wire.jsonio import Json

SEAM = "\n\n"
IN_CONTENT = "~content"  # the text stands in `content`, not in `summary`
_PARTS = "~parts"
_KINDS = {"summary": "summary_text", "content": "reasoning_text"}


def parse_reasoning(fields: Fields) -> Reasoning:
    """A reasoning item, of a request or of a reply. An unmarked seal is this family's own (D50)."""
    fields.any("type")
    parts: JsonObject = {name: given for name in _KINDS if (given := _array(fields, name))}
    data = fields.text("encrypted_content", "")
    extra: JsonObject = {f"~{name}": value for name in ("id", "status") if (value := fields.any(name)) is not None}
    extra |= {name: value for name, value in to_keep(fields.rest()).items() if value is not None}
    text = joined_text(parts)
    if parts == {"content": [{"type": "reasoning_text", "text": text}]}:
        extra[IN_CONTENT] = True
    elif parts and parts != {"summary": [{"type": "summary_text", "text": text}]}:
        extra[_PARTS] = parts
    seal = Seal(FAMILY, data, "encrypted") if data else None
    return Reasoning(text, FAMILY, seal, extra=extra_of(extra), at=Where(fields.at))


def _array(fields: Fields, name: str) -> list[Json]:
    """Parts; a string is one, as some servers have it."""
    if isinstance(fields.peek(name), str):
        text = fields.text(name)
        return [{"type": _KINDS[name], "text": text}] if text else []
    return fields.array(name, [])


def joined_text(parts: JsonObject) -> str:
    return SEAM.join(filter(None, _texts(parts)))


def _texts(parts: JsonObject) -> Iterable[str]:
    for name in _KINDS:
        given = parts.get(name)
        for part in given if isinstance(given, list) else ():
            yield text_of(part.get("text")) if isinstance(part, dict) else text_of(part)


def render_reasoning(block: Reasoning) -> JsonObject:
    if block.seal is not None and block.seal.family != FAMILY:
        raise cannot(block, f"Responses cannot give back a seal of {block.seal.family}")
    if block.seal is None and block.family not in {"", FAMILY}:
        raise cannot(block, f"Responses cannot give back reasoning of {block.family}")
    own = own_fields(block.extra)
    item: JsonObject = {"type": "reasoning"}
    item |= {name: own[f"~{name}"] for name in ("id", "status") if f"~{name}" in own}
    item |= render_thought(block)
    if block.seal is not None:
        item["encrypted_content"] = block.seal.data
    return {**item, **wire_fields(block.extra)}


def render_thought(block: Reasoning) -> JsonObject:
    """The text as parts, in the place it had."""
    own = own_fields(block.extra)
    parts = own.get(_PARTS)
    if isinstance(parts, dict) and joined_text(parts) == block.text:
        return {"summary": [], **parts}
    if own.get(IN_CONTENT):
        return {"summary": [], "content": [{"type": "reasoning_text", "text": block.text}]}
    return {"summary": [{"type": "summary_text", "text": block.text}] if block.text else []}

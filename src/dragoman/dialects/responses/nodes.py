"""What every node of this dialect shares: its family, its unknown fields, and what it refuses to say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from dragoman.errors import Unrepresentable
from dragoman.model.blocks import Block, Extra, Media, Opaque, Text, ToolCall, ToolResult
from dragoman.model.naming import WORD, of_the_node
from dragoman.wire import jsonio
from dragoman.wire.fields import Fields
from dragoman.wire.jsonio import Json

FAMILY = "responses"
JsonObject: TypeAlias = dict[str, Json]
ANNOUNCED = "~announced"  # by the frame of this number, before there was anything to say about it
IRREGULAR = "~irregular"  # it came in a way that clients do not read: its frames must be written anew

# Nothing is lost where another dialect has no such field: the rest of the request, or the gateway, sees to it.
_SPELLING = frozenset({"created_at", "refusal", "store", "stream_options"})
# What a request says with these values it says without them too.
_USUAL: JsonObject = {
    "background": False,
    "detail": "auto",
    "format": {"type": "text"},
    "service_tier": "auto",
    "truncation": "disabled",
}


def extra_of(fields: Mapping[str, Json]) -> Extra | None:
    """Fields to keep, if there are any. Some only say how something was spelt: ours begin with a tilde."""
    spelling = frozenset(name for name, value in fields.items() if _is_spelling(name, value))
    return Extra(FAMILY, dict(fields), spelling) if fields else None


def _is_spelling(name: str, value: Json) -> bool:
    if name == "include":  # sealed reasoning travels whether it was asked for or not
        return isinstance(value, list) and all(each == "reasoning.encrypted_content" for each in value)
    return name.startswith(WORD) or name in _SPELLING or value == _USUAL.get(name, ...)


def own_fields(extra: Extra | None) -> JsonObject:
    """The fields of an extra if it is ours; a foreign one has no place here and says nothing to anybody here."""
    return dict(extra.fields) if extra is not None and extra.family == FAMILY else {}


def wire_fields(extra: Extra | None) -> JsonObject:
    """Those of them that stand on the node itself, as they are written."""
    return of_the_node(own_fields(extra))


def required(fields: Fields, name: str) -> str:
    """A string that may be neither missing nor empty (D5)."""
    return fields.identifier(name)


def arguments_text(value: Json) -> str:
    """Arguments are text (D3); the object some send instead is spelt as JSON."""
    if value is None or isinstance(value, str):
        return value or ""
    return jsonio.encode(value).decode()


def object_of(value: Json) -> JsonObject:
    return value if isinstance(value, dict) else {}


def text_of(value: Json) -> str:
    return value if isinstance(value, str) else ""


def plain(block: Text | Media | ToolCall | ToolResult) -> None:
    """Refuse what this dialect has no place for on a block."""
    if block.cache is not None:
        raise cannot(block, "Responses has no cache breakpoints")
    if not isinstance(block, Media | ToolResult) and block.seal is not None:
        raise cannot(block, f"Responses has no place for a seal on {describe(block)}")


def cannot(block: Block, message: str) -> Unrepresentable:
    return Unrepresentable(message, at=block.at.path)


def describe(block: Block) -> str:
    match block:
        case Media():
            return f"{block.kind} as {block.how}"
        case Opaque():
            return f"{block.family} {block.kind or 'content'}"
        case _:
            return type(block).__name__

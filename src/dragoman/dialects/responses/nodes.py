"""What every node of this dialect shares: its family, its unknown fields, and what it refuses to say."""

from __future__ import annotations

from typing import TypeAlias

from dragoman.dialects.kit.kept import Kept, cannot, describe
from dragoman.dialects.kit.values import members, text
from dragoman.model.blocks import WORD, Media, Text, ToolCall, ToolResult
from dragoman.wire import jsonio
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


def _is_spelling(name: str, value: Json) -> bool:
    if name == "include":  # sealed reasoning travels whether it was asked for or not
        return isinstance(value, list) and all(each == "reasoning.encrypted_content" for each in value)
    return name.startswith(WORD) or name in _SPELLING or value == _USUAL.get(name, ...)


def arguments_text(value: Json) -> str:
    """Arguments are text (D3); the object some send instead is spelt as JSON."""
    if value is None or isinstance(value, str):
        return value or ""
    return jsonio.encode(value).decode()


_KEPT = Kept(FAMILY, _is_spelling)
object_of, text_of = members, text
extra_of, own_fields, wire_fields = _KEPT.extra_of, _KEPT.own_fields, _KEPT.wire_fields


def plain(block: Text | Media | ToolCall | ToolResult) -> None:
    """Refuse what this dialect has no place for on a block."""
    if block.cache is not None:
        raise cannot(block, "Responses has no cache breakpoints")
    if not isinstance(block, Media | ToolResult) and block.seal is not None:
        raise cannot(block, f"Responses has no place for a seal on {describe(block)}")

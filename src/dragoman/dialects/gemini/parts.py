"""Parts, both directions. The same readers serve a client's request and an upstream's reply; blame differs."""

from __future__ import annotations

from typing import assert_never

from dragoman.dialects.gemini.media import parse_media, render_media
from dragoman.dialects.gemini.nodes import (
    FAMILY,
    MINTED,
    extra,
    extra_of,
    names,
    opaque,
    own_data,
    own_fields,
    read,
    with_extra,
)
from dragoman.dialects.gemini.pairs import Pairs
from dragoman.dialects.gemini.results import parse_result, render_result
from dragoman.dialects.kit.tools import render_arguments
from dragoman.dialects.kit.values import json_text
from dragoman.errors import DragomanError, Unrepresentable
from dragoman.model.blocks import Block, Media, Opaque, Reasoning, Seal, Text, ToolCall, ToolResult, Where, to_keep
from dragoman.wire.fields import Fields
from dragoman.wire.jsonio import Json

_PART = names(
    "thoughtSignature",
    "functionCall",
    "functionResponse",
    "inlineData",
    "fileData",
    "executableCode",
    "codeExecutionResult",
    "videoMetadata",
    "partMetadata",
    "mediaResolution",
)
# --- reading


def parse_part(value: Json, at: str, blame: type[DragomanError], pairs: Pairs | None = None) -> Block:
    """One part; `pairs` gives ids where a request has none. A string is a text."""
    if isinstance(value, str):
        return Text(value, at=Where(at))
    fields = read(value, at, blame, _PART)
    for name, data in (("functionCall", _call), ("functionResponse", _response)):
        if fields.peek(name) is not None:
            return data(fields, pairs)
    for name in ("inlineData", "fileData"):
        if fields.peek(name) is not None:
            return parse_media(fields, name)
    if fields.peek("text") is not None or fields.rest().keys() <= {"text", "thought", "thoughtSignature"}:
        return _words(fields)
    return opaque(fields, next((name for name in fields.rest() if name not in ("thought", "thoughtSignature")), "part"))


def _words(fields: Fields) -> Text | Reasoning:
    text, thought, seal = fields.text("text", ""), fields.flag("thought", False), take_seal(fields)
    if thought:
        return Reasoning(text, FAMILY, seal, extra=extra(fields), at=Where(fields.at))
    return Text(text, seal=seal, extra=extra(fields), at=Where(fields.at))


def take_seal(fields: Fields) -> Seal | None:
    signature = fields.text("thoughtSignature", "")
    return Seal(FAMILY, signature) if signature else None


def _call(fields: Fields, pairs: Pairs | None) -> ToolCall:
    call = fields.child("functionCall")
    own_id, name, value = call.maybe_identifier("id"), call.identifier("name"), call.any("args")
    if value is not None and not isinstance(value, dict):
        call.fail("args", "expected an object")
    arguments = "" if value is None else json_text(value, call.path("args"), call.blame)
    seal = take_seal(fields)
    rest = to_keep(fields.rest())
    if unknown := call.rest():
        rest["functionCall"] = unknown
    call_id = pairs.called(own_id, name) if pairs else own_id
    if pairs and not own_id:
        rest[MINTED] = True
    return ToolCall(call_id, name, arguments, seal=seal, extra=extra_of(rest), at=Where(fields.at))


def _response(fields: Fields, pairs: Pairs | None) -> ToolResult:
    return parse_result(fields, pairs or Pairs())


# --- rendering


def render_part(
    block: Block, blame: type[DragomanError] = Unrepresentable, called: ToolCall | None = None
) -> dict[str, Json]:
    """One part; `called` is the call that a result answers. `blame` is raised for what has no place."""
    if isinstance(block, ToolResult):
        return render_result(block, called, blame)
    return with_extra(_bare(block, blame), block.extra)


def _bare(block: Text | Reasoning | Media | ToolCall | Opaque, blame: type[DragomanError]) -> dict[str, Json]:
    match block:
        case Text():
            return {"text": block.text, **render_seal(block.seal)}
        case Reasoning():
            return {"text": block.text, "thought": True, **render_seal(block.seal)}
        case ToolCall():
            return {"functionCall": _render_call(block, blame), **render_seal(block.seal)}
        case Media():
            return render_media(block, blame)
        case Opaque():
            return own_data(block, blame)
    assert_never(block)


def render_seal(seal: Seal | None) -> dict[str, Json]:
    return {"thoughtSignature": seal.data} if seal else {}


def _render_call(call: ToolCall, blame: type[DragomanError]) -> dict[str, Json]:
    body: dict[str, Json] = {"id": call.id} if call.id and MINTED not in own_fields(call.extra) else {}
    body["name"] = call.name
    body["args"] = render_arguments(call, blame)
    return body

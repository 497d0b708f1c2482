"""Parse and render content blocks of Bedrock Converse: objects with one member, named after the block's kind. Pure.

The same readers serve requests of clients and replies of upstreams; `blame`, the type of error they raise, differs.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Iterator
from typing import assert_never

from msgspec import structs

from dragoman.dialects.bedrock.nodes import (
    AS_JSON,
    EXTRAS,
    FAMILY,
    MIMES,
    SUCCESS,
    parse_media,
    render_cache_point,
    render_media,
    sibling_fields,
    take_cache_point,
    with_sibling_fields,
)
from dragoman.dialects.kit.values import base64_bytes, json_text, render_arguments
from dragoman.errors import DragomanError, Unrepresentable
from dragoman.model.blocks import (
    Block,
    CitationSource,
    Location,
    Media,
    Opaque,
    Reasoning,
    Signature,
    Text,
    ToolCall,
    ToolResult,
)
from dragoman.model.conversation import to_extra_names
from dragoman.model.parts import read_bad_media, read_loose_part
from dragoman.wire import jsonio
from dragoman.wire.fields import Fields
from dragoman.wire.jsonio import Json

SERVER_TOOL = "server_tool_use"
SERVER_RESULT = "server_tool_result"

# --- reading


def parse_content(value: Json, at: str, blame: type[DragomanError]) -> tuple[Block, ...]:
    """Read the content of a message: an array of blocks, in which a cache point belongs to the block before it."""
    if isinstance(value, str):
        return (Text(value, at=Location(at)),)
    if not isinstance(value, list):
        raise blame("expected an array of blocks", at=at)
    blocks: list[Block] = []
    for index, item in enumerate(value):
        fields = Fields(item, f"{at}[{index}]", blame)
        cache = take_cache_point(fields)
        if cache is not None and blocks and _accepts_cache(blocks[-1]):
            blocks[-1] = structs.replace(blocks[-1], cache=cache)
        else:
            blocks.append(parse_block(fields))
    return tuple(blocks)


def parse_assistant_content(value: Json, at: str, blame: type[DragomanError]) -> tuple[Block, ...]:
    """Read the content of an assistant message.

    A tool result in it belongs to a tool that the service ran, such as Nova's code interpreter. The result and its
    call become opaque blocks, which the same dialect gets back unchanged.
    """
    blocks = parse_content(value, at, blame)
    server_ids = {block.call_id for block in blocks if isinstance(block, ToolResult)}
    return tuple([_server_block(block, server_ids, blame) for block in blocks]) if server_ids else blocks


def _server_block(block: Block, server_ids: set[str], blame: type[DragomanError]) -> Block:
    if isinstance(block, ToolCall) and block.id in server_ids:
        return Opaque(FAMILY, render_block(block, blame), SERVER_TOOL, block.cache, at=block.at)
    if isinstance(block, ToolResult):
        return Opaque(FAMILY, render_block(block, blame), SERVER_RESULT, block.cache, at=block.at)
    return block


def _accepts_cache(block: Block) -> bool:
    """Return whether a cache point can be kept on the block before it; a second one, or one of reasoning, cannot."""
    if isinstance(block, Reasoning):
        return False
    return block.cache is None and not (isinstance(block, Opaque) and block.kind == "cachePoint")


def parse_block(fields: Fields) -> Block:
    """Read a block in the documented form, or in the flat form of some clients: `{"type": "tool_use", "toolUseId": …}`.

    See docs/decisions/bedrock.md#d30.
    """
    flat = fields.peek("type")
    if flat in ("tool_use", "tool_result") and not (fields.has("toolUse") or fields.has("toolResult")):
        fields.any("type")
        return _tool_use(fields, fields.at) if flat == "tool_use" else _tool_result(fields, fields.at)
    if flat == "text" and fields.has("text"):
        fields.any("type")
    for name, read in _MEMBERS.items():
        if fields.peek(name) is not None:
            block = read(fields, name)
            if isinstance(block, Text | Opaque) or not fields.rest():
                return block
            return structs.replace(block, extra=with_sibling_fields(block.extra, fields))
    if fields.has("toolUse") and not any(value is not None for value in fields.rest().values()):
        fields.child("toolUse")  # Raises for a call that is null, like for one without an id (content.md#d5).
    names = list(fields.rest())
    if not names:
        fields.fail("", "expected a block with one member, found none")
    return EXTRAS.opaque(fields, names[0])


def _text(fields: Fields, name: str) -> Text:
    return Text(fields.text(name), extra=EXTRAS.extra(fields), at=Location(fields.at))


def _cited(fields: Fields, name: str) -> Block:
    """Read text with citations. With several pieces of content it is opaque, since citations point at the pieces."""
    whole = fields.rest()
    inner = fields.child(name)
    content, citations = inner.children("content", []), inner.children("citations", [])
    text = content[0].peek("text") if len(content) == 1 else None
    if not isinstance(text, str) or len(content[0].rest()) != 1 or inner.rest() or fields.rest():
        return Opaque(FAMILY, whole, name, at=Location(fields.at))
    return Text(text, citations=tuple(map(parse_citation, citations)), at=Location(fields.at))


def parse_citation(fields: Fields) -> Opaque:
    """Read a citation; only one of a web page has a source that other families can use."""
    location, title, content = (fields.peek(name) for name in ("location", "title", "sourceContent"))
    web = location.get("web") if isinstance(location, dict) else None
    url = web.get("url") if isinstance(web, dict) else None
    citation = EXTRAS.opaque(fields, "citation")
    if not isinstance(url, str) or not url:
        return citation
    pieces = [each.get("text") for each in content if isinstance(each, dict)] if isinstance(content, list) else []
    quote = "".join(piece for piece in pieces if isinstance(piece, str))
    return structs.replace(citation, source=CitationSource(url, title if isinstance(title, str) else "", quote))


def render_citation(citation: Opaque, blame: type[DragomanError]) -> dict[str, Json]:
    """Write a citation: one of Bedrock unchanged, one of another family as a web page."""
    source = citation.source
    if source is None or (citation.family == FAMILY and citation.data is not None):
        return EXTRAS.own_data(citation, blame)
    body: dict[str, Json] = {"location": {"web": {"url": source.url}}}
    if source.title:
        body["title"] = source.title
    if source.quote:
        body["sourceContent"] = [{"text": source.quote}]
    return body


def _guarded(fields: Fields, name: str) -> Block:
    """Read content for a guardrail. The model, and other dialects, get it as text."""
    inner = fields.peek(name)
    inner_text = inner.get("text") if isinstance(inner, dict) else None
    text = inner_text.get("text") if isinstance(inner_text, dict) else None
    if not isinstance(text, str):
        return EXTRAS.opaque(fields, name)
    return Text(text, extra=EXTRAS.extra(fields), at=Location(fields.at))


def _media(fields: Fields, name: str) -> Block:
    whole = fields.rest()
    # _MEMBERS has no other names.
    media = parse_media(name, fields.child(name), fields.at)  # type: ignore[arg-type]
    return media or Opaque(FAMILY, whole, name, at=Location(fields.at))


def _reasoning(fields: Fields, name: str) -> Block:
    whole, at = fields.rest(), Location(fields.at)
    inner = fields.child(name)
    if inner.peek("redactedContent") is not None:
        signature = Signature(FAMILY, parse_redacted(inner), "redacted")
        return Reasoning("", FAMILY, signature, extra=EXTRAS.extra(inner), at=at)
    if inner.peek("reasoningText") is None:
        return Opaque(FAMILY, whole, name, at=at)
    body = inner.child("reasoningText")
    text, signature_data = body.text("text", ""), body.text("signature", "")
    rest = to_extra_names(inner.rest()) | ({"reasoningText": more} if (more := body.rest()) else {})
    return Reasoning(
        text, FAMILY, Signature(FAMILY, signature_data) if signature_data else None, extra=EXTRAS.extra_of(rest), at=at
    )


def parse_redacted(fields: Fields) -> str:
    """Return the data of redacted reasoning as Anthropic's API has it: the decoded bytes as text (any bytes)."""
    data = base64_bytes(fields.text("redactedContent"))
    if data is None:
        fields.fail("redactedContent", "expected base64")
    return data.decode("utf-8", "surrogateescape")


def _call(fields: Fields, name: str) -> Block:
    if isinstance(inner := fields.peek(name), dict) and inner.get("type") == SERVER_TOOL:
        return EXTRAS.opaque(fields, SERVER_TOOL)
    return _tool_use(fields.child(name), fields.at)


def _tool_use(fields: Fields, at: str) -> ToolCall:
    call_id, name = fields.identifier("toolUseId"), fields.identifier("name")
    value = fields.any("input")
    arguments = "" if value is None else json_text(value, fields.path("input"), fields.blame)
    return ToolCall(call_id, name, arguments, extra=EXTRAS.extra(fields), at=Location(at))


# --- reading tool results

_STATUSES = {"success": False, "error": True, "failed": True, "failure": True}


def _result(fields: Fields, name: str) -> Block:
    inner = fields.peek(name)
    if isinstance(inner, dict) and isinstance(inner.get("type"), str):  # the result of a tool that the service ran
        return EXTRAS.opaque(fields, SERVER_RESULT)
    return _tool_result(fields.child(name), fields.at)


def _tool_result(fields: Fields, at: str) -> ToolResult:
    call_id, status = fields.identifier("toolUseId"), fields.peek("status")
    if status in (None, "success", "error"):
        fields.any("status")  # Any other status stays as an extra field.
    is_error = _STATUSES.get(status.lower(), False) if isinstance(status, str) else False
    content = fields.any("content")
    parts: list[Text | Media | Opaque] = []
    _add_parts(content, fields.path("content"), fields.blame, parts)
    rest = to_extra_names(fields.rest()) | ({SUCCESS: True} if status == "success" else {})
    return ToolResult(
        call_id, tuple(parts), is_error, extra=EXTRAS.extra_of(rest, frozenset({SUCCESS})), at=Location(at)
    )


def _add_parts(value: Json, at: str, blame: type[DragomanError], parts: list[Text | Media | Opaque]) -> None:
    """Add the parts of a result's content: an array of parts, or any other value that clients send.

    See docs/decisions/content.md#d1.
    """
    if isinstance(value, list):
        for index, item in enumerate(value):
            _add_parts(item, f"{at}[{index}]", blame, parts)
    elif isinstance(value, dict):
        _add_part(Fields(value, at, blame), parts)
    elif value is not None and value != "":
        parts.append(read_loose_part(FAMILY, value, Location(at)))


def _add_part(fields: Fields, parts: list[Text | Media | Opaque]) -> None:
    cache, at = take_cache_point(fields), Location(fields.at)
    if cache is not None and parts and _accepts_cache(parts[-1]):
        parts[-1] = structs.replace(parts[-1], cache=cache)
    elif fields.has("json") and not isinstance(fields.peek("json"), str):
        text = json_text(fields.any("json"), fields.path("json"), fields.blame)
        extra = EXTRAS.extra_of({**to_extra_names(fields.rest()), AS_JSON: True}, frozenset({AS_JSON}))
        parts.append(Text(text, extra=extra, at=at))
    elif isinstance(fields.peek("text"), str):
        if fields.peek("type") == "text":  # the flat block of some clients
            fields.any("type")
        text_block = _text(fields, "text")
        if text_block.text or text_block.extra:
            parts.append(text_block)
    elif (part := _other_part(fields)) != Text(""):
        parts.append(part)


def _other_part(fields: Fields) -> Text | Media | Opaque:
    """Read media or an unknown part. A filter drops media that cannot be read, with a note.

    See docs/decisions/content.md#d2.
    """
    whole, at = fields.rest(), Location(fields.at)
    for kind in MIMES:
        if fields.peek(kind) is not None:
            try:
                return parse_media(kind, fields.child(kind), fields.at) or Opaque(FAMILY, whole, kind, at=at)
            except fields.blame:
                return read_bad_media(FAMILY, whole, kind, at)
    part_type = fields.peek("type")
    if part_type == "text" and len(whole) == 1:
        return Text("", at=at)
    part_type = part_type if isinstance(part_type, str) else next(iter(whole), "")
    return read_loose_part(FAMILY, whole, at, part_type)


_MEMBERS: dict[str, Callable[[Fields, str], Block]] = {
    "text": _text,
    "toolUse": _call,
    "toolResult": _result,
    "reasoningContent": _reasoning,
    **dict.fromkeys(MIMES, _media),
    "citationsContent": _cited,
    "guardContent": _guarded,
}

# --- rendering


def render_content(blocks: Iterable[Block], blame: type[DragomanError] = Unrepresentable) -> list[Json]:
    """Write blocks, each followed by its cache point if it has one."""
    bodies: list[Json] = []
    for block in blocks:
        bodies.append(render_block(block, blame))
        if not isinstance(block, Reasoning) and block.cache is not None:
            bodies.append(render_cache_point(block.cache))
    return bodies


def render_block(block: Block, blame: type[DragomanError] = Unrepresentable) -> dict[str, Json]:
    """Write one block. Raises `blame` for content that this dialect cannot express."""
    body: dict[str, Json]
    match block:
        case Text():
            _refuse_signature(block.signature, block.at, blame)
            return render_text(block, blame)
        case Reasoning():
            body = {"reasoningContent": EXTRAS.with_extra(render_reasoning(block, blame), block.extra)}
        case ToolCall():
            _refuse_signature(block.signature, block.at, blame)
            body = {"toolUseId": block.id, "name": block.name, "input": render_arguments(block, blame)}
            body = {"toolUse": EXTRAS.with_extra(body, block.extra)}
        case ToolResult():
            body = {"toolResult": EXTRAS.with_extra(_render_result(block, blame), block.extra)}
        case Media():
            body = render_media(block, blame)
        case Opaque():
            return EXTRAS.own_data(block, blame)
        case _:
            assert_never(block)
    return body | sibling_fields(block.extra)


def render_text(block: Text, blame: type[DragomanError]) -> dict[str, Json]:
    """Write a text as a text, citationsContent or guardContent block."""
    if block.citations:
        citations: list[Json] = [render_citation(citation, blame) for citation in block.citations]
        return EXTRAS.with_extra(
            {"citationsContent": {"content": [{"text": block.text}], "citations": citations}}, block.extra
        )
    guard = EXTRAS.own_fields(block.extra).get("guardContent")
    if isinstance(guard, dict) and isinstance(guard_text := guard.get("text"), dict):
        text: Json = {**guard_text, "text": block.text}
        return EXTRAS.with_extra({}, block.extra) | {"guardContent": {**guard, "text": text}}
    return EXTRAS.with_extra({"text": block.text}, block.extra)


def render_reasoning(block: Reasoning, blame: type[DragomanError] = Unrepresentable) -> dict[str, Json]:
    """Write the content of a reasoning block. Raises `blame` for encrypted reasoning."""
    signature = block.signature
    if signature is not None and signature.kind == "redacted" and not block.text:
        return {"redactedContent": render_redacted(signature, blame)}
    if signature is not None and signature.kind != "signature":
        raise blame(f"Bedrock has no reasoning with {signature.kind} data", at=block.at.path)
    body: dict[str, Json] = {"text": block.text}
    return {"reasoningText": body | ({"signature": signature.data} if signature else {})}


def render_redacted(signature: Signature, blame: type[DragomanError]) -> str:
    """Return redacted data as base64; the reverse of `parse_redacted`."""
    try:
        return base64.b64encode(signature.data.encode("utf-8", "surrogateescape")).decode()
    except UnicodeEncodeError:
        raise blame("redacted reasoning contains a lone surrogate, which cannot be written as bytes") from None


def _render_result(block: ToolResult, blame: type[DragomanError]) -> dict[str, Json]:
    body: dict[str, Json] = {"toolUseId": block.call_id}
    body["content"] = [each for part in block.content for each in _render_part(part, blame)]
    if block.is_error or SUCCESS in EXTRAS.own_fields(block.extra):
        body["status"] = "error" if block.is_error else "success"
    return body


def _render_part(part: Text | Media | Opaque, blame: type[DragomanError]) -> Iterator[Json]:
    value = json_of_part(part)
    if isinstance(part, Text) and value is not None:
        yield EXTRAS.with_extra({"json": value[0]}, part.extra)
    else:
        yield render_block(part, blame)
    if part.cache is not None:
        yield render_cache_point(part.cache)


def json_of_part(part: Text | Media | Opaque) -> tuple[Json] | None:
    """Return the value of a part that the client sent as JSON, if its text is still JSON; else None."""
    if not isinstance(part, Text) or not EXTRAS.own_fields(part.extra).get(AS_JSON):
        return None
    try:
        return (jsonio.decode(part.text),)
    except jsonio.JsonError:
        return None


def _refuse_signature(signature: Signature | None, at: Location, blame: type[DragomanError]) -> None:
    if signature is not None:
        raise blame("Bedrock has signatures only on reasoning", at=at.path)

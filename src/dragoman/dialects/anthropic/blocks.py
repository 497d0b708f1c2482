"""Parse and render content blocks of Anthropic's Messages API. Pure.

The same readers serve requests of clients and replies of upstreams; `blame`, the type of error they raise, differs.
"""

from __future__ import annotations

import binascii
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import assert_never

from msgspec import structs

from dragoman.dialects.anthropic.tools import is_no_op, is_written_here, meaning_of, render_search
from dragoman.dialects.anthropic.web_search import OURS
from dragoman.dialects.kit.cache_marks import CLAUDE_TTLS, cache_fields, take_cache_control
from dragoman.dialects.kit.values import ExtraFields, json_text, render_arguments
from dragoman.errors import DragomanError, Unrepresentable
from dragoman.model.blocks import (
    Block,
    CacheBreakpoint,
    CitationSource,
    Extra,
    Location,
    Media,
    Opaque,
    Reasoning,
    Signature,
    Text,
    ToolCall,
    ToolResult,
)
from dragoman.model.conversation import PARENT_PREFIX, to_extra_names
from dragoman.model.parts import other_fields_text, part_text, read_bad_media, read_loose_part, read_tool_media
from dragoman.wire.fields import Fields
from dragoman.wire.jsonio import Json

# --- Common to all nodes of this dialect: the family, extra fields, cache breakpoints


FAMILY = "anthropic"
_EXTRA = ExtraFields(FAMILY)
extra, extra_of, own_fields, with_extra = _EXTRA.extra, _EXTRA.extra_of, _EXTRA.own_fields, _EXTRA.with_extra


def outer_fields(extra: Extra | None) -> dict[str, Json]:
    """Return the extra fields of the node's parent, which are kept on the node with a prefix."""
    return {
        name.removeprefix(PARENT_PREFIX): value
        for name, value in own_fields(extra).items()
        if name.startswith(PARENT_PREFIX)
    }


def inner_fields(extra: Extra | None) -> dict[str, Json]:
    """Return the extra fields of the node itself, without those of its parent."""
    return {name: value for name, value in extra.fields.items() if not name.startswith(PARENT_PREFIX)} if extra else {}


def take_cache(fields: Fields) -> CacheBreakpoint | None:
    """Take the cache breakpoint if it has a known form; otherwise it stays among the extra fields."""
    return take_cache_control(fields, _EXTRA)


def with_cache(body: dict[str, Json], cache: CacheBreakpoint | None) -> dict[str, Json]:
    """Add a cache breakpoint to a body, in place, and return the body."""
    body |= cache_fields(cache, _EXTRA, CLAUDE_TTLS)
    return body


def take_opaque(fields: Fields, kind: str) -> Opaque:
    """Return the whole object as an opaque block; only its cache breakpoint is read."""
    cache = take_cache(fields)
    data = fields.rest()
    effects = meaning_of(kind, data)
    own = {} if effects and is_written_here(kind, data) else data
    return Opaque(FAMILY, own, kind, cache, is_no_op(kind, data), effects, at=Location(fields.at))


# --- reading


def parse_text(fields: Fields) -> Text:
    """Read a text block."""
    fields.any("type")
    citations = fields.children("citations", [])
    return Text(
        fields.text("text"),
        take_cache(fields),
        citations=tuple(map(parse_citation, citations)),
        extra=extra(fields),
        at=Location(fields.at),
    )


def parse_citation(fields: Fields) -> Opaque:
    """Read a citation. One that we translated from another family gets no family: Anthropic would refuse it."""
    kind, url, title, quote = (fields.peek(name) for name in ("type", "url", "title", "cited_text"))
    if url is None and kind == "search_result_location":
        url = fields.peek("source")
    ours = fields.peek("encrypted_index") == OURS  # translated here from another family
    citation = take_opaque(fields, kind if isinstance(kind, str) else "")
    if not isinstance(url, str) or not url:
        return citation
    title, quote = (each if isinstance(each, str) else "" for each in (title, quote))
    return structs.replace(citation, family="" if ours else FAMILY, source=CitationSource(url, title, quote))


def render_citation(citation: Opaque, blame: type[DragomanError]) -> dict[str, Json]:
    """Write a citation: one of Anthropic unchanged, one of another family as the result of a web search."""
    source = citation.source
    if source is None or (citation.family == FAMILY and citation.data is not None):
        return render_block(citation, blame)
    return {
        "type": "web_search_result_location",
        "url": source.url,
        "title": source.title or None,
        "cited_text": source.quote,
        "encrypted_index": OURS,
    }


def parse_thinking(fields: Fields) -> Reasoning:
    """Read a thinking block."""
    fields.any("type")
    text, signature_data = fields.text("thinking", ""), fields.text("signature", "")
    signature = Signature(FAMILY, signature_data) if signature_data else None
    return Reasoning(text, FAMILY, signature, extra=extra(fields), at=Location(fields.at))


def parse_redacted(fields: Fields) -> Reasoning:
    """Read a redacted_thinking block."""
    fields.any("type")
    signature = Signature(FAMILY, fields.text("data"), "redacted")
    return Reasoning("", FAMILY, signature, extra=extra(fields), at=Location(fields.at))


def parse_tool_use(fields: Fields) -> ToolCall:
    """Read a tool_use block."""
    fields.any("type")
    call_id, name = fields.identifier("id"), fields.identifier("name")
    value = fields.any("input")
    arguments = "" if value is None else json_text(value, fields.path("input"), fields.blame)
    cache = take_cache(fields)
    return ToolCall(call_id, name, arguments, cache=cache, extra=extra(fields), at=Location(fields.at))


_KINDS: dict[str, Callable[[Fields], Block]] = {}  # readers by block type; filled below, after their definitions


def parse_block(fields: Fields) -> Block:
    """Read a block of a message. An object with `text` and no type is a text block (docs/decisions/content.md#d1)."""
    kind = fields.peek("type")
    if kind is None and isinstance(fields.peek("text"), str):
        kind = "text"
    if not isinstance(kind, str):
        kind = fields.text("type")
    read = _KINDS.get(kind)
    return read(fields) if read else take_opaque(fields, kind)


def parse_content(value: Json, at: Location, blame: type[DragomanError]) -> tuple[Block, ...]:
    """Read the content of a message: a string, or an array of blocks and strings."""
    if isinstance(value, str):
        return (Text(value, at=at),)
    if not isinstance(value, list):
        raise blame("expected a string or an array of blocks", at=at.path)
    return tuple([_item(item, Location(at, index), blame) for index, item in enumerate(value)])


def _item(item: Json, at: Location, blame: type[DragomanError]) -> Block:
    return Text(item, at=at) if isinstance(item, str) else parse_block(Fields(item, at.path, blame))


# --- reading media


def _media(fields: Fields, kind: str) -> Media | Opaque:
    source = fields.peek("source")
    form = source.get("type") if isinstance(source, dict) else None
    if isinstance(form, str) and form not in _SOURCES[kind]:
        return take_opaque(fields, kind)
    fields.any("type")
    inner = fields.child("source")
    form = inner.one_of("type", _SOURCES[kind])
    mime, data = _source(inner, form)
    cache = take_cache(fields)
    name = fields.text("title", "") if kind == "document" else ""
    rest, unknown = to_extra_names(fields.rest()), inner.rest()
    if unknown:
        rest["source"] = unknown
    return Media(
        "image" if kind == "image" else "document",
        mime,
        form,  # type: ignore[arg-type]  # one_of checked it
        data,
        name,
        cache,
        extra=extra_of(rest),
        at=Location(fields.at),
    )


_SOURCES = {"image": ("base64", "url", "file"), "document": ("base64", "url", "text", "file")}


def _source(fields: Fields, form: str) -> tuple[str, str]:
    """Return the media type and the data, URL or file id of a source."""
    if form == "url":
        return "", fields.identifier("url")
    if form == "file":
        return "", fields.identifier("file_id")
    if form == "text":
        return fields.text("media_type", "text/plain"), fields.text("data")
    mime, data = fields.identifier("media_type"), fields.identifier("data")
    try:
        binascii.a2b_base64(data.encode("ascii"), strict_mode=True)
    except ValueError:
        fields.fail("data", "expected base64 data")
    return mime, data


# --- reading tool results (docs/decisions/content.md#d1, #d2)

_RESULT_IDS = ("tool_call_id", "tool_use_id", "tool_useId")
_STATUSES = {"success": False, "error": True, "failed": True, "failure": True}


def parse_tool_result(fields: Fields) -> ToolResult:
    """Read a tool_result block or a message of the role `tool`: both have the same fields."""
    fields.any("type")
    ids = [fields.text(name, "") for name in _RESULT_IDS]
    call_id = next(filter(None, ids), "")
    if not call_id:
        fields.fail("tool_use_id", "expected a string that is not empty")
    is_error = _is_error(fields)
    field = "content" if fields.peek("content") is not None else "text"
    fallback = fields.any(field)
    content = tuple(_result_parts(fallback, fields.path(field), fields.blame))
    fields.any("content")
    at = Location(fields.at, is_absent=fallback is None)
    return ToolResult(call_id, content, is_error, take_cache(fields), extra=extra(fields), at=at)


def _is_error(fields: Fields) -> bool:
    """Return whether a result is an error. `is_error: true` wins over the status; unusual statuses stay as extras."""
    status = fields.peek("status")
    by_status = _STATUSES.get(status.lower(), False) if isinstance(status, str) else False
    if status in (None, "success", "error"):
        fields.any("status")
    return fields.flag("is_error", False) or by_status


def _result_parts(value: Json, at: str, blame: type[DragomanError]) -> Iterable[Text | Media | Opaque]:
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from _result_parts(item, f"{at}[{index}]", blame)
    elif isinstance(value, dict):
        yield from _result_object(Fields(value, at, blame))
    elif value is not None and value != "":
        yield Text(value if isinstance(value, str) else json_text(value, at, blame), at=Location(at))


def _result_object(fields: Fields) -> Iterable[Text | Media | Opaque]:
    kind, text, at, blame = fields.peek("type"), fields.peek("text"), fields.at, fields.blame
    if kind in ("image", "document"):
        yield _readable(fields, str(kind))
    elif isinstance(text, str):
        block = _result_text(fields)
        if isinstance(block, Opaque) or block.text or block.cache or block.extra or block.citations:
            yield block
    elif isinstance(kind, str) and kind != "text":
        yield read_tool_media(FAMILY, fields.rest(), Location(at)) or take_opaque(fields, kind)
    elif text is not None or fields.peek("content") is not None:
        name = "content" if text is None else "text"
        fields.any("type")
        yield from _result_parts(fields.any(name), fields.path(name), blame)
        if rest := other_fields_text(fields.rest()):
            yield Text(rest, at=Location(at))
    elif kind != "text":
        yield read_loose_part(FAMILY, fields.rest(), Location(at))
    elif other_text := part_text(fields.rest()).text:
        yield Text(other_text, at=Location(at))


def _result_text(fields: Fields) -> Text | Opaque:
    """Read a part with a text. An unusual type stays as an extra field, so that the same dialect gets it back."""
    kind, whole = fields.peek("type"), fields.rest()
    try:
        block = parse_text(fields)
    except fields.blame:  # Its citations are invalid.
        return Opaque(FAMILY, whole, "text", at=Location(fields.at))
    if kind in (None, "text"):
        return block
    extra_fields = {"type": kind, **(block.extra.fields if block.extra else {})}
    extra = Extra(FAMILY, extra_fields, frozenset({"type"}))  # Only spelling: other dialects lose nothing without it.
    return Text(block.text, block.cache, None, block.citations, extra=extra, at=block.at)


def _readable(fields: Fields, kind: str) -> Media | Opaque:
    """Read media; media that cannot be read becomes a block that a filter drops with a note.

    See docs/decisions/content.md#d2.
    """
    whole = fields.rest()
    try:
        return _media(fields, kind)
    except fields.blame:
        return read_bad_media(FAMILY, whole, kind, Location(fields.at))


_KINDS.update(
    text=parse_text,
    thinking=parse_thinking,
    redacted_thinking=parse_redacted,
    tool_use=parse_tool_use,
    tool_result=parse_tool_result,
    image=partial(_media, kind="image"),
    document=partial(_media, kind="document"),
)

# --- rendering


def render_content(blocks: Sequence[Block], blame: type[DragomanError] = Unrepresentable) -> Json:
    """Return content as JSON: a string for a single text without other data, otherwise an array of blocks."""
    if len(blocks) == 1 and (plain := plain_text(blocks[0])) is not None:
        return plain
    return [render_block(block, blame) for block in blocks]


def plain_text(block: Block) -> str | None:
    """Return the text of a text block without any other data; None for other blocks."""
    if isinstance(block, Text) and not (block.cache or block.extra or block.citations or block.signature):
        return block.text
    return None


def render_block(block: Block, blame: type[DragomanError] = Unrepresentable) -> dict[str, Json]:
    """Write one block. Raises `blame` for content that this dialect cannot express."""
    cache = None if isinstance(block, Reasoning) else block.cache
    return with_extra(with_cache(_bare(block, blame), cache), block.extra)


def _bare(block: Block, blame: type[DragomanError]) -> dict[str, Json]:
    """Write the block without its cache breakpoint and its extra fields."""
    match block:
        case Text():
            return _render_text(block, blame)
        case Reasoning():
            return render_reasoning(block, blame)
        case ToolCall(call_id, name):
            _refuse_signature(block.signature, block.at, blame)
            return {"type": "tool_use", "id": call_id, "name": name, "input": render_arguments(block, blame)}
        case ToolResult():
            return _render_result(block, blame)
        case Media():
            return _render_media(block, blame)
        case Opaque(family, data) if family == FAMILY and not data and block.effects:
            return render_search(block.effects[0])
        case Opaque():
            return _EXTRA.own_data(block, blame)
    assert_never(block)


def _render_text(block: Text, blame: type[DragomanError]) -> dict[str, Json]:
    _refuse_signature(block.signature, block.at, blame)
    body: dict[str, Json] = {"type": "text", "text": block.text}
    if block.citations:
        body["citations"] = [render_citation(citation, blame) for citation in block.citations]
    return body


def _render_result(block: ToolResult, blame: type[DragomanError]) -> dict[str, Json]:
    body: dict[str, Json] = {"type": "tool_result", "tool_use_id": block.call_id}
    if block.content:
        body["content"] = render_content(block.content, blame)
    if block.is_error:
        body["is_error"] = True
    return body


def render_reasoning(block: Reasoning, blame: type[DragomanError] = Unrepresentable) -> dict[str, Json]:
    """Write reasoning as a thinking or redacted_thinking block. Raises `blame` for encrypted reasoning."""
    signature = block.signature
    if signature is not None and signature.kind == "redacted" and not block.text:
        return {"type": "redacted_thinking", "data": signature.data}
    if signature is not None and signature.kind != "signature":
        raise blame(f"Anthropic cannot represent reasoning with {signature.kind} data", at=block.at.path)
    return {"type": "thinking", "thinking": block.text, "signature": signature.data if signature else ""}


def _render_media(block: Media, blame: type[DragomanError]) -> dict[str, Json]:
    if block.form not in _SOURCES.get(block.kind, ()):
        raise blame(f"Anthropic does not accept {block.kind} given as {block.form}", at=block.at.path)
    source: dict[str, Json] = {"type": block.form}
    if block.form == "url":
        source["url"] = block.data
    elif block.form == "file":
        source["file_id"] = block.data
    else:
        source |= {"media_type": block.mime, "data": block.data}
    body: dict[str, Json] = {"type": block.kind, "source": source}
    if block.name and block.kind == "document":
        body["title"] = block.name
    return body


def _refuse_signature(signature: Signature | None, at: Location, blame: type[DragomanError]) -> None:
    if signature is not None:
        raise blame("Anthropic accepts signatures only on reasoning", at=at.path)

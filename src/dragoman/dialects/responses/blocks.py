"""Parse and render content parts and reasoning items of the Responses API; also its family and unknown fields. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeAlias

from msgspec import structs

from dragoman.dialects.kit import openai_requests as requests
from dragoman.dialects.kit.cache_marks import OPENAI_TTLS, cache_fields, take_breakpoint
from dragoman.dialects.kit.openai_requests import parse_image_url, refuse_cache_and_signature, take_file_data
from dragoman.dialects.kit.values import ExtraFields, describe_block, items, members, text, unrepresentable
from dragoman.errors import MalformedRequest
from dragoman.model.blocks import Block, Extra, Location, Media, Opaque, Reasoning, Signature, Text
from dragoman.model.conversation import INTERNAL_PREFIX, PARENT_PREFIX, to_extra_names
from dragoman.model.parts import read_bad_media, read_loose_part
from dragoman.wire.fields import Fields, describe
from dragoman.wire.jsonio import Json, JsonObject

FAMILY = "responses"
API_NAME = "Responses"  # the name used in messages
ANNOUNCED = "~announced"  # the number of the frame that added the item, if the block started in a later frame
NEEDS_REENCODING = "~irregular"  # clients could not read the upstream's frames, so they must be written again

# Fields without content of their own: the rest of the request, or the gateway, provides for them in other dialects.
_SPELLING = frozenset({"created_at", "refusal", "store", "stream_options"})
# Default values: a request with them means the same as one without the field.
_DEFAULTS: JsonObject = {
    "background": False,
    "detail": "auto",
    "format": {"type": "text"},
    "service_tier": "auto",
    "truncation": "disabled",
}


def _is_spelling(name: str, value: Json) -> bool:
    """Return whether a field only records how a value was spelt on the wire."""
    if name == "include":  # encrypted reasoning is sent whether it was requested or not
        return isinstance(value, list) and all(each == "reasoning.encrypted_content" for each in value)
    return name.startswith(INTERNAL_PREFIX) or name in _SPELLING or value == _DEFAULTS.get(name, ...)


EXTRAS = ExtraFields(FAMILY, _is_spelling)
object_of, text_of = members, text


# --- content parts: input_text, input_image, input_file, output_text, refusal. Reading is lenient

ContentPart: TypeAlias = Text | Media | Opaque

MESSAGE_PART = "~part"  # on an Opaque: it is a part of a message, not an item
_MESSAGE_MARKS = ("~message", "~role")  # marks that all blocks of one message carry
_TEXTS = frozenset({"input_text", "output_text", "text", "summary_text", "reasoning_text"})
_DATA_URL = re.compile(r"data:([^,;]+)(?:;[^,;]+)*;base64,(.*)", re.DOTALL | re.IGNORECASE)

# --- wire to blocks


def parse_content(value: Json, at: str, message_fields: JsonObject) -> list[ContentPart]:
    """Return the blocks of a message's content. An empty string gives no block.

    Each block carries `message_fields`, the fields of its message. Raises MalformedRequest.
    """
    if isinstance(value, str):
        return [Text(value, extra=EXTRAS.extra_of(message_fields), at=Location(at))] if value else []
    if value is not None and not isinstance(value, list):
        raise MalformedRequest(f"expected a string or an array, got {describe(value)}", at=at)
    return [_part(part, f"{at}[{index}]", message_fields) for index, part in enumerate(value or ())]


def parse_tool_output(value: Json, at: str) -> tuple[ContentPart, ...]:
    """Read a tool's output: a string, parts, or any JSON, which becomes text (docs/decisions/content.md#d1)."""
    if value is None or isinstance(value, str):
        return (Text(value, at=Location(at)),) if value else ()
    return tuple(_output_parts(value, at))


def _output_parts(value: Json, at: str) -> Iterator[ContentPart]:
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from _output_parts(item, f"{at}[{index}]")
    elif isinstance(value, dict) and isinstance(kind := value.get("type"), str):
        yield _output_part(value, kind, at)
    elif value is not None and value != "":
        yield _as_part(read_loose_part(FAMILY, value, Location(at)))


def _output_part(part: JsonObject, kind: str, at: str) -> ContentPart:
    try:
        if kind in _MEDIA or kind == "refusal" or (kind in _TEXTS and isinstance(part.get("text"), str)):
            return _part(part, at, {})
    except MalformedRequest:
        return _as_part(read_bad_media(FAMILY, part, kind, Location(at)))
    if kind in _TEXTS:  # its text is in another field, or missing
        return _as_part(read_loose_part(FAMILY, {**part, "type": "text"}, Location(at)))
    return _as_part(read_loose_part(FAMILY, part, Location(at), kind))


def _as_part(part: ContentPart) -> ContentPart:
    return structs.replace(part, extra=EXTRAS.extra_of({MESSAGE_PART: True})) if isinstance(part, Opaque) else part


def _part(part: Json, at: str, message_fields: JsonObject) -> ContentPart:
    if isinstance(part, str):
        return Text(part, extra=EXTRAS.extra_of(message_fields), at=Location(at))
    fields = Fields(part, at)
    kind = fields.text("type")
    if kind in _TEXTS:
        return parse_text(fields, message_fields)
    if kind == "refusal":
        return refusal_block(fields.text("refusal", ""), at, message_fields)
    if kind in _MEDIA:
        cache = take_breakpoint(fields, EXTRAS)
        return structs.replace(_MEDIA[kind](fields, message_fields), cache=cache)
    return Opaque(FAMILY, part, kind, extra=EXTRAS.extra_of({**message_fields, MESSAGE_PART: True}), at=Location(at))


def parse_text(fields: Fields, message_fields: JsonObject) -> Text:
    """Read a text part with its citations and unknown fields."""
    text, cache = fields.text("text", ""), take_breakpoint(fields, EXTRAS)
    citations = tuple(map(parse_annotation, fields.array("annotations", ())))
    rest = {name: value for name, value in fields.rest().items() if name != "type" and value not in (None, [])}
    return Text(
        text,
        cache,
        citations=citations,
        extra=EXTRAS.extra_of({**message_fields, **to_extra_names(rest)}),
        at=Location(fields.at),
    )


parse_annotation = partial(requests.parse_annotation, FAMILY)


def render_annotation(citation: Opaque) -> Json:
    """Write a citation: one of this family unchanged, one of another family as a `url_citation`."""
    source = citation.source
    if source is None or (citation.family == FAMILY and citation.data is not None):
        return citation.data
    place: JsonObject = {"start_index": source.start or 0, "end_index": source.end or 0}
    return {"type": "url_citation", "url": source.url, "title": source.title, **place}


def refusal_block(text: str, at: str, message_fields: JsonObject) -> Text:
    """Return a text block that is marked as a refusal."""
    return Text(text, extra=EXTRAS.extra_of({**message_fields, "refusal": True}), at=Location(at))


def is_refusal(text: Text) -> bool:
    """Return whether a text is a refusal."""
    return EXTRAS.own_fields(text.extra).get("refusal") is True


# --- media


def _image(fields: Fields, message_fields: JsonObject) -> Media:
    fields.any("type")
    value = fields.any("image_url")
    if value is None and fields.peek("file_id") is not None:
        file_id = fields.identifier("file_id")
        return Media("image", "", "file", file_id, extra=_extra(fields, message_fields), at=Location(fields.at))
    nested = isinstance(value, dict)
    inner = Fields(value if nested else {"image_url": value}, fields.path("image_url") if nested else fields.at)
    name = "url" if nested else "image_url"
    url = inner.text(name)
    extra = _extra(fields, {**message_fields, **(to_extra_names(inner.rest()) if nested else {})})
    return parse_image_url(inner, name, _DATA_URL.fullmatch, url, extra, Location(fields.at))


def _file(fields: Fields, message_fields: JsonObject) -> Media:
    fields.any("type")
    name = fields.text("filename", "")
    if fields.peek("file_data") is not None:
        mime, form, data = take_file_data(fields, name, _DATA_URL.fullmatch)
    elif fields.peek("file_url") is not None:
        mime, form, data = "", "url", fields.identifier("file_url")
    else:
        file_id = fields.identifier("file_id")
        return Media(
            "document", "", "file", file_id, name, extra=_extra(fields, message_fields), at=Location(fields.at)
        )
    return Media("document", mime, form, data, name, extra=_extra(fields, message_fields), at=Location(fields.at))


_MEDIA: dict[str, Callable[[Fields, JsonObject], Media]] = {
    "input_image": _image,
    "image_url": _image,
    "input_file": _file,
}


def _extra(fields: Fields, message_fields: JsonObject) -> Extra | None:
    rest = {name: value for name, value in fields.rest().items() if value is not None}
    return EXTRAS.extra_of({**message_fields, **to_extra_names(rest)})


# --- blocks to wire


def render_content(blocks: Sequence[Block], kind: str) -> Json:
    """Write content: a string for no block or one plain input text, parts otherwise. `kind` is the type of texts."""
    if not blocks:
        return ""
    first = blocks[0]
    if (
        len(blocks) == 1
        and isinstance(first, Text)
        and kind == "input_text"
        and first.text
        and first.cache is None
        and not EXTRAS.wire_fields(first.extra)
    ):
        refuse_cache_and_signature(first, API_NAME)
        if not first.citations:
            return first.text
    return [render_part(block, kind) for block in blocks]


def render_part(block: Block, kind: str) -> Json:
    """Write a block as a content part; `kind` is the type of texts. Raises Unrepresentable."""
    match block:
        case Text():
            refuse_cache_and_signature(block, API_NAME)
            if block.cache is not None and kind == "output_text":
                raise unrepresentable(block, "Responses has no cache breakpoints in replies")
            fields = cache_fields(block.cache, EXTRAS, OPENAI_TTLS) | EXTRAS.wire_fields(block.extra)
            if fields.pop("refusal", None) is True:
                return {"type": "refusal", "refusal": block.text, **fields}
            body: JsonObject = {"type": kind, "text": block.text}
            if kind == "output_text" or block.citations:
                body["annotations"] = render_annotations(block)
            return {**body, **fields}
        case Media():
            refuse_cache_and_signature(block, API_NAME)
            return {**_render_media(block), **cache_fields(block.cache, EXTRAS, OPENAI_TTLS)}
        case Opaque(family=family, data=data) if family == FAMILY:
            return data
        case _:
            raise unrepresentable(block, f"a Responses message cannot contain {describe_block(block)}")


def render_annotations(text: Text) -> list[Json]:
    """Write the citations of a text. Raises Unrepresentable for one of another family without a source."""
    for each in text.citations:
        if each.family != FAMILY and each.source is None:
            raise unrepresentable(text, f"Responses cannot represent citations of {each.family}")
    return [render_annotation(each) for each in text.citations]


def is_message_field(name: str) -> bool:
    """Return whether a field of a block belongs to its message."""
    return name.startswith(PARENT_PREFIX) or name in _MESSAGE_MARKS


def _render_media(media: Media) -> JsonObject:
    data = f"data:{media.mime};base64,{media.data}" if media.form == "base64" else media.data
    match media.kind, media.form:
        case "image", "base64" | "url" | "file":
            field = "file_id" if media.form == "file" else "image_url"
            return {"type": "input_image", field: data, **EXTRAS.wire_fields(media.extra)}
        case "document", "base64" | "url" | "file":
            filename: JsonObject = {"filename": media.name} if media.name else {}
            field = {"base64": "file_data", "url": "file_url", "file": "file_id"}[media.form]
            return {"type": "input_file", **filename, field: data, **EXTRAS.wire_fields(media.extra)}
        case _:
            raise unrepresentable(media, f"a Responses message cannot contain {describe_block(media)}")


# --- reasoning items: a summary, the reasoning itself if the service shows it, and encrypted data
#
# One item is one block. Its text is that of its parts with blank lines between them. If there is more than one summary
# part, the parts are kept as spelling, and written again as long as their text is the same.

PART_SEPARATOR = "\n\n"
IN_CONTENT = "~content"  # the text is in `content`, not in `summary`
_PARTS = "~parts"
_KINDS = {"summary": "summary_text", "content": "reasoning_text"}


def parse_reasoning(fields: Fields) -> Reasoning:
    """Read a reasoning item of a request or a reply. A signature without a mark is of this family.

    See docs/decisions/signatures.md#d50.
    """
    fields.any("type")
    parts: JsonObject = {name: array for name in _KINDS if (array := _array(fields, name))}
    data = fields.text("encrypted_content", "")
    extra: JsonObject = {f"~{name}": value for name in ("id", "status") if (value := fields.any(name)) is not None}
    extra |= {name: value for name, value in to_extra_names(fields.rest()).items() if value is not None}
    text = joined_text(parts)
    if parts == {"content": [{"type": "reasoning_text", "text": text}]}:
        extra[IN_CONTENT] = True
    elif parts and parts != {"summary": [{"type": "summary_text", "text": text}]}:
        extra[_PARTS] = parts
    signature = Signature(FAMILY, data, "encrypted") if data else None
    return Reasoning(text, FAMILY, signature, extra=EXTRAS.extra_of(extra), at=Location(fields.at))


def _array(fields: Fields, name: str) -> list[Json]:
    """Return the parts of a reasoning item; some servers send a string instead of a list."""
    if isinstance(fields.peek(name), str):
        text = fields.text(name)
        return [{"type": _KINDS[name], "text": text}] if text else []
    return fields.array(name, [])


def joined_text(parts: JsonObject) -> str:
    """Return the text of all summary and content parts, with blank lines between them."""
    all_parts = [part for name in _KINDS for part in items(parts.get(name))]
    texts = (text_of(part.get("text")) if isinstance(part, dict) else text_of(part) for part in all_parts)
    return PART_SEPARATOR.join(filter(None, texts))


def render_reasoning(block: Reasoning) -> JsonObject:
    """Write a reasoning item. Raises Unrepresentable for reasoning of another family."""
    if block.signature is not None and block.signature.family != FAMILY:
        raise unrepresentable(block, f"a Responses upstream cannot read a signature of {block.signature.family}")
    if block.signature is None and block.family not in {"", FAMILY}:
        raise unrepresentable(block, f"a Responses upstream cannot read reasoning of {block.family}")
    own = EXTRAS.own_fields(block.extra)
    item: JsonObject = {"type": "reasoning"}
    item |= {name: own[f"~{name}"] for name in ("id", "status") if f"~{name}" in own}
    item |= render_reasoning_text(block)
    if block.signature is not None:
        item["encrypted_content"] = block.signature.data
    return {**item, **EXTRAS.wire_fields(block.extra)}


def render_reasoning_text(block: Reasoning) -> JsonObject:
    """Return the text as parts, in the field that it was read from."""
    own = EXTRAS.own_fields(block.extra)
    parts = own.get(_PARTS)
    if isinstance(parts, dict) and joined_text(parts) == block.text:
        return {"summary": [], **parts}
    if own.get(IN_CONTENT):
        return {"summary": [], "content": [{"type": "reasoning_text", "text": block.text}]}
    return {"summary": [{"type": "summary_text", "text": block.text}] if block.text else []}

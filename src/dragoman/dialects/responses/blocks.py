"""Content parts and reasoning items, both directions, and what every node shares: its family, its unknown fields."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeAlias

from msgspec import structs

from dragoman.dialects.kit import openai_requests as requests
from dragoman.dialects.kit.openai_requests import parse_image_url, refuse_cache_and_signature, take_file_data
from dragoman.dialects.kit.values import ExtraFields, describe, items, members, text, unrepresentable
from dragoman.errors import MalformedRequest
from dragoman.model.blocks import Block, Extra, Location, Media, Opaque, Reasoning, Signature, Text
from dragoman.model.conversation import INTERNAL_PREFIX, PARENT_PREFIX, to_extra_names
from dragoman.model.parts import read_bad_media, read_loose_part
from dragoman.wire.fields import Fields
from dragoman.wire.fields import describe as describe_json
from dragoman.wire.jsonio import Json

FAMILY = "responses"
API_NAME = "Responses"  # in messages to people
JsonObject: TypeAlias = dict[str, Json]
ANNOUNCED = "~announced"  # by the frame of this number, before there was anything to say about it
NEEDS_REENCODING = "~irregular"  # it came in a way that clients do not read: its frames must be written anew

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
    return name.startswith(INTERNAL_PREFIX) or name in _SPELLING or value == _USUAL.get(name, ...)


EXTRAS = ExtraFields(FAMILY, _is_spelling)
object_of, text_of = members, text


# --- content parts: input_text, input_image, input_file, output_text, refusal. Reading is lenient

Part: TypeAlias = Text | Media | Opaque

MESSAGE_PART = "~part"  # on an Opaque: it is a part of a message, not an item
_PLACING = ("~message", "~role")  # what the blocks of one message share beside its fields
_TEXTS = frozenset({"input_text", "output_text", "text", "summary_text", "reasoning_text"})
_DATA_URL = re.compile(r"data:([^,;]+)(?:;[^,;]+)*;base64,(.*)", re.DOTALL | re.IGNORECASE)

# --- wire to blocks


def parse_content(value: Json, at: str, placing: JsonObject) -> list[Part]:
    """The blocks of a message's content, each with what the message itself says. An empty string is no block."""
    if isinstance(value, str):
        return [Text(value, extra=EXTRAS.extra_of(placing), at=Location(at))] if value else []
    if value is not None and not isinstance(value, list):
        raise MalformedRequest(f"expected a string or an array, got {describe_json(value)}", at=at)
    return [_part(part, f"{at}[{index}]", placing) for index, part in enumerate(value or ())]


def parse_tool_output(value: Json, at: str) -> tuple[Part, ...]:
    """What a tool gave: a string, parts, or any JSON, which is then its own text (docs/decisions/content.md#d1)."""
    if value is None or isinstance(value, str):
        return (Text(value, at=Location(at)),) if value else ()
    return tuple(_output_parts(value, at))


def _output_parts(value: Json, at: str) -> Iterator[Part]:
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from _output_parts(item, f"{at}[{index}]")
    elif isinstance(value, dict) and isinstance(kind := value.get("type"), str):
        yield _output_part(value, kind, at)
    elif value is not None and value != "":
        yield _as_part(read_loose_part(FAMILY, value, Location(at)))


def _output_part(part: JsonObject, kind: str, at: str) -> Part:
    try:
        if kind in _MEDIA or kind == "refusal" or (kind in _TEXTS and isinstance(part.get("text"), str)):
            return _part(part, at, {})
    except MalformedRequest:
        return _as_part(read_bad_media(FAMILY, part, kind, Location(at)))
    if kind in _TEXTS:  # what it says stands in another field, or nowhere
        return _as_part(read_loose_part(FAMILY, {**part, "type": "text"}, Location(at)))
    return _as_part(read_loose_part(FAMILY, part, Location(at), kind))


def _as_part(part: Part) -> Part:
    return structs.replace(part, extra=EXTRAS.extra_of({MESSAGE_PART: True})) if isinstance(part, Opaque) else part


def _part(part: Json, at: str, placing: JsonObject) -> Part:
    if isinstance(part, str):
        return Text(part, extra=EXTRAS.extra_of(placing), at=Location(at))
    fields = Fields(part, at)
    kind = fields.text("type")
    if kind in _TEXTS:
        return parse_text(fields, placing)
    if kind == "refusal":
        return refusal_block(fields.text("refusal", ""), at, placing)
    if kind in _MEDIA:
        return _MEDIA[kind](fields, placing)
    return Opaque(FAMILY, part, kind, extra=EXTRAS.extra_of({**placing, MESSAGE_PART: True}), at=Location(at))


def parse_text(fields: Fields, placing: JsonObject) -> Text:
    """A text part; what nobody took of it stays with it."""
    text = fields.text("text", "")
    noted = tuple(map(parse_annotation, fields.array("annotations", ())))
    rest = {name: value for name, value in fields.rest().items() if name != "type" and value not in (None, [])}
    return Text(
        text, citations=noted, extra=EXTRAS.extra_of({**placing, **to_extra_names(rest)}), at=Location(fields.at)
    )


parse_annotation = partial(requests.parse_annotation, FAMILY)


def render_annotation(citation: Opaque) -> Json:
    """Write a citation: Responses' own as it came, another family's as a `url_citation`."""
    source = citation.source
    if source is None or (citation.family == FAMILY and citation.data is not None):
        return citation.data
    place: JsonObject = {"start_index": source.start or 0, "end_index": source.end or 0}
    return {"type": "url_citation", "url": source.url, "title": source.title, **place}


def refusal_block(text: str, at: str, placing: JsonObject) -> Text:
    return Text(text, extra=EXTRAS.extra_of({**placing, "refusal": True}), at=Location(at))


def is_refusal(text: Text) -> bool:
    return EXTRAS.own_fields(text.extra).get("refusal") is True


# --- media


def _image(fields: Fields, placing: JsonObject) -> Media:
    fields.any("type")
    given = fields.any("image_url")
    if given is None and fields.peek("file_id") is not None:
        file_id = fields.identifier("file_id")
        return Media("image", "", "file", file_id, extra=_kept(fields, placing), at=Location(fields.at))
    nested = isinstance(given, dict)
    inner = Fields(given if nested else {"image_url": given}, fields.path("image_url") if nested else fields.at)
    name = "url" if nested else "image_url"
    url = inner.text(name)
    extra = _kept(fields, {**placing, **(to_extra_names(inner.rest()) if nested else {})})
    return parse_image_url(inner, name, _DATA_URL.fullmatch, url, extra, Location(fields.at))


def _file(fields: Fields, placing: JsonObject) -> Media:
    fields.any("type")
    name = fields.text("filename", "")
    if fields.peek("file_data") is not None:
        mime, how, data = take_file_data(fields, name, _DATA_URL.fullmatch)
    elif fields.peek("file_url") is not None:
        mime, how, data = "", "url", fields.identifier("file_url")
    else:
        file_id = fields.identifier("file_id")
        return Media("document", "", "file", file_id, name, extra=_kept(fields, placing), at=Location(fields.at))
    return Media("document", mime, how, data, name, extra=_kept(fields, placing), at=Location(fields.at))


_MEDIA: dict[str, Callable[[Fields, JsonObject], Media]] = {
    "input_image": _image,
    "image_url": _image,
    "input_file": _file,
}


def _kept(fields: Fields, placing: JsonObject) -> Extra | None:
    rest = {name: value for name, value in fields.rest().items() if value is not None}
    return EXTRAS.extra_of({**placing, **to_extra_names(rest)})


# --- blocks to wire


def render_content(blocks: Sequence[Block], kind: str) -> Json:
    """A string for nothing or one bare text, parts for all else. `kind` is how texts are called here."""
    if not blocks:
        return ""
    first = blocks[0]
    if (
        len(blocks) == 1
        and isinstance(first, Text)
        and kind == "input_text"
        and first.text
        and not EXTRAS.wire_fields(first.extra)
    ):
        refuse_cache_and_signature(first, API_NAME)
        if not first.citations:
            return first.text
    return [render_part(block, kind) for block in blocks]


def render_part(block: Block, kind: str) -> Json:
    match block:
        case Text():
            refuse_cache_and_signature(block, API_NAME)
            fields = EXTRAS.wire_fields(block.extra)
            if fields.pop("refusal", None) is True:
                return {"type": "refusal", "refusal": block.text, **fields}
            body: JsonObject = {"type": kind, "text": block.text}
            if kind == "output_text" or block.citations:
                body["annotations"] = render_annotations(block)
            return {**body, **fields}
        case Media():
            refuse_cache_and_signature(block, API_NAME)
            return _render_media(block)
        case Opaque(family=family, data=data) if family == FAMILY:
            return data
        case _:
            raise unrepresentable(block, f"a message cannot hold {describe(block)}")


def render_annotations(text: Text) -> list[Json]:
    for each in text.citations:
        if each.family != FAMILY and each.source is None:
            raise unrepresentable(text, f"Responses has no citations of {each.family}")
    return [render_annotation(each) for each in text.citations]


def is_message_field(name: str) -> bool:
    """Whether a field of a block is one of its message."""
    return name.startswith(PARENT_PREFIX) or name in _PLACING


def _render_media(media: Media) -> Json:
    data = f"data:{media.mime};base64,{media.data}" if media.form == "base64" else media.data
    match media.kind, media.form:
        case "image", "base64" | "url" | "file":
            field = "file_id" if media.form == "file" else "image_url"
            return {"type": "input_image", field: data, **EXTRAS.wire_fields(media.extra)}
        case "document", "base64" | "url" | "file":
            named: JsonObject = {"filename": media.name} if media.name else {}
            field = {"base64": "file_data", "url": "file_url", "file": "file_id"}[media.form]
            return {"type": "input_file", **named, field: data, **EXTRAS.wire_fields(media.extra)}
        case _:
            raise unrepresentable(media, f"a message cannot hold {describe(media)}")


# --- reasoning items: a summary, the thinking itself where it is shown, and what only its maker can read
#
# One item is one block. Its text is that of its parts with blank lines between them; where there is more than one
# summary part, the parts are remembered as spelling and written again as long as they still say the same.

PART_SEPARATOR = "\n\n"
IN_CONTENT = "~content"  # the text stands in `content`, not in `summary`
_PARTS = "~parts"
_KINDS = {"summary": "summary_text", "content": "reasoning_text"}


def parse_reasoning(fields: Fields) -> Reasoning:
    """A reasoning item, of a request or of a reply. An unmarked seal is this family's own.

    See docs/decisions/seals.md#d50.
    """
    fields.any("type")
    parts: JsonObject = {name: given for name in _KINDS if (given := _array(fields, name))}
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
    """Parts; a string is one, as some servers have it."""
    if isinstance(fields.peek(name), str):
        text = fields.text(name)
        return [{"type": _KINDS[name], "text": text}] if text else []
    return fields.array(name, [])


def joined_text(parts: JsonObject) -> str:
    given = [part for name in _KINDS for part in items(parts.get(name))]
    texts = (text_of(part.get("text")) if isinstance(part, dict) else text_of(part) for part in given)
    return PART_SEPARATOR.join(filter(None, texts))


def render_reasoning(block: Reasoning) -> JsonObject:
    if block.signature is not None and block.signature.family != FAMILY:
        raise unrepresentable(block, f"Responses cannot give back a seal of {block.signature.family}")
    if block.signature is None and block.family not in {"", FAMILY}:
        raise unrepresentable(block, f"Responses cannot give back reasoning of {block.family}")
    own = EXTRAS.own_fields(block.extra)
    item: JsonObject = {"type": "reasoning"}
    item |= {name: own[f"~{name}"] for name in ("id", "status") if f"~{name}" in own}
    item |= render_reasoning_text(block)
    if block.signature is not None:
        item["encrypted_content"] = block.signature.data
    return {**item, **EXTRAS.wire_fields(block.extra)}


def render_reasoning_text(block: Reasoning) -> JsonObject:
    """The text as parts, in the place it had."""
    own = EXTRAS.own_fields(block.extra)
    parts = own.get(_PARTS)
    if isinstance(parts, dict) and joined_text(parts) == block.text:
        return {"summary": [], **parts}
    if own.get(IN_CONTENT):
        return {"summary": [], "content": [{"type": "reasoning_text", "text": block.text}]}
    return {"summary": [{"type": "summary_text", "text": block.text}] if block.text else []}

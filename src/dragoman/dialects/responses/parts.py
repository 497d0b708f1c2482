"""Content parts, to blocks and back: input_text, input_image, input_file, output_text, refusal. Reading is lenient."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from msgspec import structs

from dragoman.dialects.kit.kept import cannot, describe
from dragoman.dialects.kit.media import FILE_TYPES, base64_text, is_url
from dragoman.dialects.responses.nodes import FAMILY, JsonObject, extra_of, own_fields, plain, wire_fields
from dragoman.errors import MalformedRequest
from dragoman.model.blocks import OUTER, Block, Extra, Media, Opaque, Source, Text, Where, to_keep
from dragoman.model.parts import read_bad_media, read_loose_part
from dragoman.wire.fields import Fields
from dragoman.wire.fields import describe as describe_json
from dragoman.wire.jsonio import Json

Part: TypeAlias = Text | Media | Opaque

PART = "~part"  # on an Opaque: it is a part of a message, not an item
_PLACING = ("~message", "~role")  # what the blocks of one message share beside its fields
_TEXTS = frozenset({"input_text", "output_text", "text", "summary_text", "reasoning_text"})
_DATA_URL = re.compile(r"data:([^,;]+)(?:;[^,;]+)*;base64,(.*)", re.DOTALL | re.IGNORECASE)

# --- wire to blocks


def parse_content(value: Json, at: str, placing: JsonObject) -> list[Part]:
    """The blocks of a message's content, each with what the message itself says. An empty string is no block."""
    if isinstance(value, str):
        return [Text(value, extra=extra_of(placing), at=Where(at))] if value else []
    return [_part(part, f"{at}[{index}]", placing) for index, part in enumerate(_list(value, at))]


def parse_output(value: Json, at: str) -> tuple[Part, ...]:
    """What a tool gave: a string, parts, or any JSON, which is then its own text (D1)."""
    if value is None or isinstance(value, str):
        return (Text(value, at=Where(at)),) if value else ()
    return tuple(_output_parts(value, at))


def _output_parts(value: Json, at: str) -> Iterator[Part]:
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from _output_parts(item, f"{at}[{index}]")
    elif isinstance(value, dict) and isinstance(kind := value.get("type"), str):
        yield _output_part(value, kind, at)
    elif value is not None and value != "":
        yield _as_part(read_loose_part(FAMILY, value, Where(at)))


def _output_part(part: JsonObject, kind: str, at: str) -> Part:
    try:
        if kind in _MEDIA or kind == "refusal" or (kind in _TEXTS and isinstance(part.get("text"), str)):
            return _part(part, at, {})
    except MalformedRequest:
        return _as_part(read_bad_media(FAMILY, part, kind, Where(at)))
    if kind in _TEXTS:  # what it says stands in another field, or nowhere
        return _as_part(read_loose_part(FAMILY, {**part, "type": "text"}, Where(at)))
    return _as_part(read_loose_part(FAMILY, part, Where(at), kind))


def _as_part(part: Part) -> Part:
    return structs.replace(part, extra=extra_of({PART: True})) if isinstance(part, Opaque) else part


def _list(value: Json, at: str) -> list[Json]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise MalformedRequest(f"expected a string or an array, got {describe_json(value)}", at=at)
    return value


def _part(part: Json, at: str, placing: JsonObject) -> Part:
    if isinstance(part, str):
        return Text(part, extra=extra_of(placing), at=Where(at))
    fields = Fields(part, at)
    kind = fields.text("type")
    if kind in _TEXTS:
        return parse_text(fields, placing)
    if kind == "refusal":
        return refusal(fields.text("refusal", ""), at, placing)
    if kind in _MEDIA:
        return _MEDIA[kind](fields, placing)
    return Opaque(FAMILY, part, kind, extra=extra_of({**placing, PART: True}), at=Where(at))


def parse_text(fields: Fields, placing: JsonObject) -> Text:
    """A text part; what nobody took of it stays with it."""
    text = fields.text("text", "")
    noted = tuple(map(parse_annotation, fields.array("annotations", ())))
    rest = {name: value for name, value in fields.rest().items() if name != "type" and value not in (None, [])}
    return Text(text, citations=noted, extra=extra_of({**placing, **to_keep(rest)}), at=Where(fields.at))


def parse_annotation(annotation: Json) -> Opaque:
    told = annotation if isinstance(annotation, dict) else {}
    kind, url, title = (told.get(name) for name in ("type", "url", "title"))
    start, end = (each if type(each) is int else None for each in map(told.get, ("start_index", "end_index")))
    source = None
    if isinstance(url, str) and url:
        source = Source(url, title if isinstance(title, str) else "", start=start, end=end)
    return Opaque(FAMILY, annotation, kind if isinstance(kind, str) else "annotation", source=source)


def render_annotation(citation: Opaque) -> Json:
    """Write a citation: Responses' own as it came, another family's as a `url_citation`."""
    source = citation.source
    if source is None or (citation.family == FAMILY and citation.data is not None):
        return citation.data
    place: JsonObject = {"start_index": source.start or 0, "end_index": source.end or 0}
    return {"type": "url_citation", "url": source.url, "title": source.title, **place}


def refusal(text: str, at: str, placing: JsonObject) -> Text:
    return Text(text, extra=extra_of({**placing, "refusal": True}), at=Where(at))


def is_refusal(text: Text) -> bool:
    return own_fields(text.extra).get("refusal") is True


# --- media


def _image(fields: Fields, placing: JsonObject) -> Media:
    fields.any("type")
    given = fields.any("image_url")
    if given is None and fields.peek("file_id") is not None:
        file_id = fields.identifier("file_id")
        return Media("image", "", "file", file_id, extra=_kept(fields, placing), at=Where(fields.at))
    nested = isinstance(given, dict)
    inner = Fields(given if nested else {"image_url": given}, fields.path("image_url") if nested else fields.at)
    name = "url" if nested else "image_url"
    url = inner.text(name)
    extra = _kept(fields, {**placing, **(to_keep(inner.rest()) if nested else {})})
    if found := _DATA_URL.fullmatch(url):
        return Media("image", found[1], "base64", base64_text(inner, name, found[2]), extra=extra, at=Where(fields.at))
    if url[:5].lower() == "data:" or not is_url(url):
        inner.fail(name, "expected an http(s) URL or a data: URL with a media type and base64")
    return Media("image", "", "url", url, extra=extra, at=Where(fields.at))


def _file(fields: Fields, placing: JsonObject) -> Media:
    fields.any("type")
    name = fields.text("filename", "")
    if fields.peek("file_data") is not None:
        data = fields.text("file_data")
        if data.lower().startswith(("http://", "https://")):  # Chat has no other field for an address
            return Media("document", "", "url", data, name, extra=_kept(fields, placing), at=Where(fields.at))
        found = _DATA_URL.fullmatch(data)
        mime = found[1] if found else FILE_TYPES.get(name.rpartition(".")[2].lower(), "")
        if not mime:
            fields.fail("file_data", "expected a data: URL with a media type and base64")
        data = base64_text(fields, "file_data", found[2] if found else data)
        return Media("document", mime, "base64", data, name, extra=_kept(fields, placing), at=Where(fields.at))
    if fields.peek("file_url") is not None:
        url = fields.identifier("file_url")
        return Media("document", "", "url", url, name, extra=_kept(fields, placing), at=Where(fields.at))
    file_id = fields.identifier("file_id")
    return Media("document", "", "file", file_id, name, extra=_kept(fields, placing), at=Where(fields.at))


_MEDIA: dict[str, Callable[[Fields, JsonObject], Media]] = {
    "input_image": _image,
    "image_url": _image,
    "input_file": _file,
}


def _kept(fields: Fields, placing: JsonObject) -> Extra | None:
    rest = {name: value for name, value in fields.rest().items() if value is not None}
    return extra_of({**placing, **to_keep(rest)})


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
        and not wire_fields(first.extra)
    ):
        plain(first)
        if not first.citations:
            return first.text
    return [render_part(block, kind) for block in blocks]


def render_part(block: Block, kind: str) -> Json:
    match block:
        case Text():
            plain(block)
            fields = wire_fields(block.extra)
            if fields.pop("refusal", None) is True:
                return {"type": "refusal", "refusal": block.text, **fields}
            body: JsonObject = {"type": kind, "text": block.text}
            if kind == "output_text" or block.citations:
                body["annotations"] = render_annotations(block)
            return {**body, **fields}
        case Media():
            plain(block)
            return _render_media(block)
        case Opaque(family=family, data=data) if family == FAMILY:
            return data
        case _:
            raise cannot(block, f"a message cannot hold {describe(block)}")


def render_annotations(text: Text) -> list[Json]:
    for each in text.citations:
        if each.family != FAMILY and each.source is None:
            raise cannot(text, f"Responses has no citations of {each.family}")
    return [render_annotation(each) for each in text.citations]


def is_placing(name: str) -> bool:
    """Whether a field of a block is one of its message."""
    return name.startswith(OUTER) or name in _PLACING


def _render_media(media: Media) -> Json:
    fields = wire_fields(media.extra)
    named: JsonObject = {"filename": media.name} if media.name else {}
    match media.kind, media.how:
        case "image", "base64":
            return {"type": "input_image", "image_url": f"data:{media.mime};base64,{media.data}", **fields}
        case "image", "url":
            return {"type": "input_image", "image_url": media.data, **fields}
        case "image", "file":
            return {"type": "input_image", "file_id": media.data, **fields}
        case "document", "base64":
            return {"type": "input_file", **named, "file_data": f"data:{media.mime};base64,{media.data}", **fields}
        case "document", "url":
            return {"type": "input_file", **named, "file_url": media.data, **fields}
        case "document", "file":
            return {"type": "input_file", **named, "file_id": media.data, **fields}
        case _:
            raise cannot(media, f"a message cannot hold {describe(media)}")

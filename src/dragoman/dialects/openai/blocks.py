"""Content, both directions: a string or a list of parts. Reading is lenient, writing is not.
First stands what every node shares: the family, the settings (the codec is these with methods), unknown fields.

See docs/decisions/content.md#d1, #d2.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Literal, TypeAlias

from msgspec import Struct, structs

from dragoman.dialects.kit.openai_requests import (
    arguments_text,
    parse_annotation,
    parse_image_url,
    parse_source,
    refuse_cache_and_signature,
    take_file_data,
)
from dragoman.dialects.kit.values import ExtraFields, base64_text, describe, unrepresentable
from dragoman.errors import MalformedRequest
from dragoman.model.blocks import Block, CitationSource, Extra, Location, Media, Opaque, Text, ToolCall, ToolResult
from dragoman.model.conversation import INTERNAL_PREFIX, PARENT_PREFIX, to_extra_names
from dragoman.model.parts import join_texts, part_text, read_bad_media, read_loose_part
from dragoman.wire import jsonio
from dragoman.wire.fields import Fields
from dragoman.wire.jsonio import Json

FAMILY = "openai"
API_NAME = "Chat"  # in messages to people
JsonObject: TypeAlias = dict[str, Json]
MAX_TOKENS_FIELDS = ("max_completion_tokens", "max_tokens")
REASONING_FIELDS = ("reasoning_content", "reasoning")
OPTIONS = (
    "metadata",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "safety_identifier",
    "service_tier",
    "verbosity",
)


class OpenaiSettings(Struct, frozen=True, kw_only=True):
    max_tokens_field: Literal["max_completion_tokens", "max_tokens"] = "max_completion_tokens"
    reasoning_field: Literal["reasoning_content", "reasoning", "content"] = "reasoning_content"  # content: as parts
    custom_tools: bool = True  # the upstream knows tools that take free text
    result_media: bool = False  # the upstream takes images in tool messages, which OpenAI itself does not
    ask_usage: bool = True  # ask for the usage chunk of streams that did not ask themselves
    special_tokens: bool = False  # ask a vLLM-like server to keep its special tokens where tools are offered
    file_urls: bool = False  # the upstream takes the address of a file as its data, as OpenRouter does
    options: tuple[str, ...] = OPTIONS  # of these fields, which the upstream takes from clients of other dialects
    user_limit: int | None = 64  # characters of a user id that the upstream takes
    more_knobs: tuple[str, ...] = ()  # numeric fields beyond OpenAI's own: top_k, min_p, repetition_penalty …


IMAGE_DETAIL = "image_url.detail"
CUSTOM_FORMAT = "custom.format"  # what a custom tool's text must look like
_USUAL: JsonObject = {IMAGE_DETAIL: "auto", CUSTOM_FORMAT: {"type": "text"}}  # as without a word
CALL_ID_FIELDS = ("tool_call_id", "tool_use_id", "tool_useId")
_FAILURES = frozenset({"error", "failed", "failure"})
_DATA_URL = re.compile(r"data:([^,]+?);base64,(.*)", re.DOTALL | re.IGNORECASE)
_AUDIO_FORMATS = {"mp3": "audio/mpeg"}  # all others are called audio/<format>
_AUDIO_MIMES = {"audio/mpeg": "mp3", "audio/mp3": "mp3"}
# Nothing is lost where another dialect has no such field.
_SPELLING = frozenset({"created", "stream_options", "refusal", "citations", "search_results"})


def _is_spelling(name: str, value: Json) -> bool:
    """Whether a field only says how something was spelt: ours begin with a tilde."""
    return name.startswith(INTERNAL_PREFIX) or name in _SPELLING or value == _USUAL.get(name, ...)


EXTRAS = ExtraFields(FAMILY, _is_spelling)


def is_legacy_form(extra: Extra | None) -> bool:
    """Whether it was said in the form of the time before tools: `functions`, `function_call`."""
    return EXTRAS.own_fields(extra).get("~older") is True


def is_empty_value(value: Json) -> bool:
    """Whether a value says nothing: null, "", or a list or object of such values beside its `type` and `index`."""
    match value:
        case None | "":
            return True
        case list():
            return all(map(is_empty_value, value))
        case dict():
            return all(is_empty_value(each) for name, each in value.items() if name not in ("type", "index"))
        case _:
            return False


def is_empty_function_call(call: Json) -> bool:
    """Whether a `function_call` is nothing. Servers fill the legacy field with no name and no arguments."""
    if not isinstance(call, dict):
        return is_empty_value(call)
    return is_empty_value({name: value for name, value in call.items() if (name, value) != ("arguments", "{}")})


# --- wire to blocks


def parse_content(value: Json, at: str) -> list[Block]:
    """The blocks of a message's content. An empty string is no block."""
    if isinstance(value, str):
        return [Text(value, at=Location(at))] if value else []
    return list(_blocks(value, at, in_result=False))


def _blocks(value: Json, at: str, *, in_result: bool = True) -> Iterable[Block]:
    """Every part as its block; lists in lists are flattened (docs/decisions/content.md#d1)."""
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from _blocks(item, f"{at}[{index}]", in_result=in_result)
    elif isinstance(value, dict) and isinstance(value.get("type"), str):
        yield _part(value, at, in_result)
    elif value is not None:
        yield read_loose_part(FAMILY, value, Location(at))


def flat_text(value: Json) -> str:
    """The text in a value of an answer: its texts, and nothing of what stands beside them."""
    match value:
        case None:
            return ""
        case str():
            return value
        case list():
            return join_texts(map(flat_text, value))
        case {"text": inner} if inner is not None:
            return flat_text(inner)
        case {"content": inner} if inner is not None:
            return flat_text(inner)
        case _:
            return jsonio.encode(value).decode()


def _part(part: JsonObject, at: str, in_result: bool) -> Block:
    kind = str(part["type"])
    try:
        if kind in _MEDIA:
            return _MEDIA[kind](Fields(part, at))
    except MalformedRequest:
        if not in_result:
            raise
        return read_bad_media(FAMILY, part, kind, Location(at))
    match kind:
        case "text" | "input_text" | "output_text":
            return _text(part, at)
        case "refusal" if not in_result:
            return refusal_block(Fields(part, at).text("refusal"), at)
        case "tool_use" if not in_result:
            return _tool_use(Fields(part, at))
        case "tool_result" if not in_result:
            return parse_result(Fields(part, at))
        case _ if in_result:
            return read_loose_part(FAMILY, part, Location(at), kind)
        case _:
            return Opaque(FAMILY, part, kind, at=Location(at))


def _text(part: JsonObject, at: str) -> Text | Opaque:
    """A text part. One whose text is no string says what stands in it (docs/decisions/content.md#d1)."""
    fields = Fields(part, at)
    given = fields.any("text")
    if given is None:
        given = fields.any("content")
    words = part_text(given)
    if not words.is_whole:
        return Opaque(FAMILY, part, "text", at=Location(at))
    fields.any("type")
    extra = EXTRAS.extra(fields)
    if extra is not None and "citations" in extra.spelling:  # in a request they are content, not another spelling
        extra = structs.replace(extra, spelling=extra.spelling - {"citations"})
    return Text(words.text, extra=extra, at=Location(at))


def refusal_block(text: str, at: str) -> Text:
    return Text(text, extra=EXTRAS.extra_of({"refusal": True}), at=Location(at))


def is_refusal(block: Block) -> bool:
    return EXTRAS.own_fields(block.extra).get("refusal") is True


def _tool_use(fields: Fields) -> ToolCall:
    fields.any("type")
    call_id, name, given = fields.identifier("id"), fields.identifier("name"), fields.any("input")
    extra = EXTRAS.extra(fields)
    return ToolCall(call_id, name, arguments_text(given), extra=extra, at=Location(fields.at))


def parse_result(fields: Fields) -> ToolResult:
    """A tool message, or a tool_result part (docs/decisions/content.md#d2)."""
    fields.any("type")
    given = [fields.text(name, "") for name in CALL_ID_FIELDS]
    call_id = next(filter(None, given), "")
    if not call_id:
        wanted = "tool_use_id" if fields.peek("type") == "tool_result" else "tool_call_id"
        fields.fail(wanted, "expected a string that is not empty")
    content, text = fields.any("content"), fields.any("text")
    at = fields.path("content" if content is not None or text is None else "text")
    is_error, status = fields.flag("is_error", None), fields.any("status")
    rest = to_extra_names(fields.rest())
    failed = isinstance(status, str) and status.lower() in _FAILURES
    if status is not None and status != "success" and not failed:
        rest["status"] = status  # it counts as success; the word is kept
    value = text if content is None else content
    if isinstance(value, str):
        blocks: list[Block] = [Text(value, at=Location(at))] if value else []
    else:
        blocks = list(_blocks(value, at))
    return ToolResult(
        call_id,
        tuple(block for block in blocks if isinstance(block, Text | Media | Opaque)),  # all of them are
        failed if is_error is None else is_error,
        extra=EXTRAS.extra_of(rest),
        at=Location(fields.at, is_absent=content is None and text is None),
    )


# --- media


def _image_url(fields: Fields) -> Media:
    fields.any("type")
    given = fields.any("image_url")
    inner = Fields({"url": given} if isinstance(given, str) else given, fields.path("image_url"))
    url = inner.text("url")
    extra = _nested(fields, "image_url", inner)
    return parse_image_url(inner, "url", _DATA_URL.fullmatch, url, extra, Location(fields.at))


def _input_audio(fields: Fields) -> Media:
    fields.any("type")
    inner = fields.child("input_audio")
    form = inner.identifier("format")
    data = base64_text(inner, "data", inner.text("data"))
    mime = _AUDIO_FORMATS.get(form, f"audio/{form}")
    return Media("audio", mime, "base64", data, extra=_nested(fields, "input_audio", inner), at=Location(fields.at))


def _file(fields: Fields) -> Media:
    fields.any("type")
    inner = fields.child("file")
    name = inner.text("filename", "")
    if inner.peek("file_data") is None:
        file_id = inner.identifier("file_id")
        return Media(
            "document", "", "file", file_id, name, extra=_nested(fields, "file", inner), at=Location(fields.at)
        )
    mime, how, data = take_file_data(inner, name, _DATA_URL.fullmatch)  # an address is as OpenRouter takes it
    return Media("document", mime, how, data, name, extra=_nested(fields, "file", inner), at=Location(fields.at))


def _source(fields: Fields) -> Media:
    """An `image` or `document` part with a `source`, as clients of mixed tongue put into results.

    See docs/decisions/content.md#d2.
    """
    kind: Literal["image", "document"] = "image" if fields.text("type") == "image" else "document"
    source = fields.child("source")
    how = source.one_of("type", ("base64", "url"))
    name = fields.text("title", "")
    extra = EXTRAS.extra(fields)
    if how == "url":
        return Media(kind, "", "url", source.identifier("url"), name, extra=extra, at=Location(fields.at))
    mime, data = source.identifier("media_type"), base64_text(source, "data", source.text("data"))
    return Media(kind, mime, "base64", data, name, extra=extra, at=Location(fields.at))


_MEDIA = {"image_url": _image_url, "input_audio": _input_audio, "file": _file, "image": _source, "document": _source}


def _nested(fields: Fields, name: str, inner: Fields) -> Extra | None:
    """What nobody took of a part and of its inner object, the latter under the object's own name."""
    rest, inside = to_extra_names(fields.rest()), inner.rest()
    if name == "image_url" and "detail" in inside:  # others have it too
        rest[IMAGE_DETAIL] = inside.pop("detail")
    return EXTRAS.extra_of({**rest, name: inside} if inside else rest)


# --- blocks to wire


def render_content(blocks: Sequence[Block]) -> Json:
    """A string for nothing or one plain text, parts for all else."""
    if not blocks:
        return ""
    first = blocks[0]
    if len(blocks) == 1 and isinstance(first, Text) and first.text and not EXTRAS.wire_fields(first.extra):
        check_block(first)
        return first.text
    return [render_part(block) for block in blocks]


def render_part(block: Block) -> Json:
    match block:
        case Text():
            check_block(block)
            fields = EXTRAS.wire_fields(block.extra)
            if fields.pop("refusal", None) is True:
                return {"type": "refusal", "refusal": block.text, **fields}
            return {"type": "text", "text": block.text, **fields}
        case Media():
            check_block(block)
            return _render_media(block)
        case Opaque(family=family, data=data) if family == FAMILY:
            return data
        case _:
            raise unrepresentable(block, f"Chat content cannot hold {describe(block)}")


def _render_media(media: Media) -> Json:
    fields, own = EXTRAS.wire_fields(media.extra), EXTRAS.own_fields(media.extra)
    data = f"data:{media.mime};base64,{media.data}" if media.form == "base64" else media.data
    match media.kind, media.form:
        case "image", "base64" | "url":
            shown: JsonObject = {"detail": own[IMAGE_DETAIL]} if IMAGE_DETAIL in own else {}
            return wrap_inner_object("image_url", {"url": data, **shown}, fields)
        case "audio", "base64":
            form = _AUDIO_MIMES.get(media.mime) or media.mime.removeprefix("audio/")
            return wrap_inner_object("input_audio", {"data": media.data, "format": form}, fields)
        case "document", "base64" | "url" | "file":
            named: JsonObject = {"filename": media.name} if media.name else {}
            return wrap_inner_object(
                "file", {**named, "file_id" if media.form == "file" else "file_data": data}, fields
            )
        case _:
            raise unrepresentable(media, f"Chat content cannot hold {describe(media)}")


def wrap_inner_object(kind: str, inner: JsonObject, fields: JsonObject, **head: Json) -> JsonObject:
    """A part, a tool or a call around its inner object, with what was kept of both."""
    inside = fields.pop(kind, None)
    return {**head, "type": kind, kind: {**inner, **inside} if isinstance(inside, dict) else inner, **fields}


def check_block(block: Text | Media | ToolCall | ToolResult) -> None:
    """Refuse what Chat has no place for on a block."""
    refuse_cache_and_signature(block, API_NAME)
    if isinstance(block, Text) and block.citations:
        raise unrepresentable(block, "Chat has no citations in requests")


def without_message_fields(text: Text) -> Text:
    """A text without the fields of the message it came in."""
    own = EXTRAS.own_fields(text.extra)
    fields = {name: value for name, value in own.items() if name != "~role" and not name.startswith(PARENT_PREFIX)}
    return structs.replace(text, extra=EXTRAS.extra_of(fields))


# --- sources of an answer: `annotations` of a message or a delta, and Perplexity's lists beside the choices

SOURCE_FIELDS = ("citations", "search_results")  # Perplexity's: a Chat client gets them with the envelope


def parse_annotations(annotations: Json) -> list[Opaque]:
    """Read the annotations of a message; those without an address mean something to this family alone."""
    return [parse_annotation(FAMILY, each) for each in annotations if each] if isinstance(annotations, list) else []


def parse_sources(citations: Json, results: Json) -> list[Opaque]:
    """Read the lists of Perplexity: addresses, and for some of them title and snippet. Each address counts once."""
    found: dict[str, CitationSource] = {}
    for result in results if isinstance(results, list) else ():
        if isinstance(result, dict) and (source := parse_source(result)) is not None:
            found.setdefault(source.url, source)
    for url in citations if isinstance(citations, list) else ():
        if isinstance(url, str) and url:
            found.setdefault(url, CitationSource(url))
    return [Opaque(FAMILY, None, "source", source=source) for source in found.values()]


def render_annotations(citations: Iterable[Opaque]) -> Sequence[JsonObject]:
    """Write citations: our own as they came, those of other families as `url_citation`."""
    rendered: list[JsonObject] = []
    for citation in citations:
        source = citation.source
        if citation.family == FAMILY:
            if isinstance(citation.data, dict):
                rendered.append(citation.data)
        elif source is not None:
            place: JsonObject = {"start_index": source.start or 0, "end_index": source.end or 0}
            quote: JsonObject = {"content": source.quote} if source.quote else {}
            inner: JsonObject = {**place, "url": source.url, "title": source.title, **quote}
            rendered.append({"type": "url_citation", "url_citation": inner})
    return rendered

"""Parse and render the content of Chat messages: a string or a list of parts. Pure.

Reading is lenient; writing produces the documented shape only (docs/decisions/content.md#d1, #d2). The module also
holds what the rest of the package shares: the family name, the codec's settings, and the helper for unknown fields.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Literal

from msgspec import Struct, structs

from dragoman.dialects.kit.cache_marks import BreakpointChoice, cache_fields, take_breakpoint, take_cache_control
from dragoman.dialects.kit.openai_requests import (
    arguments_text,
    parse_annotation,
    parse_image_url,
    parse_source,
    refuse_cache_and_signature,
    take_file_data,
)
from dragoman.dialects.kit.values import ExtraFields, base64_text, describe_block, unrepresentable
from dragoman.errors import MalformedRequest
from dragoman.model.blocks import (
    Block,
    CacheBreakpoint,
    CitationSource,
    Extra,
    Location,
    Media,
    Opaque,
    Text,
    ToolCall,
    ToolResult,
)
from dragoman.model.conversation import INTERNAL_PREFIX, PARENT_PREFIX, to_extra_names
from dragoman.model.parts import join_texts, part_text, read_bad_media, read_loose_part
from dragoman.wire import jsonio
from dragoman.wire.fields import Fields
from dragoman.wire.jsonio import Json, JsonObject

FAMILY = "openai"
API_NAME = "Chat"  # the name used in messages
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
    """How one server's version of Chat Completions differs from OpenAI's. `OpenaiCodec` inherits these fields."""

    max_tokens_field: Literal["max_completion_tokens", "max_tokens"] = "max_completion_tokens"
    reasoning_field: Literal["reasoning_content", "reasoning", "content"] = "reasoning_content"  # content: as parts
    custom_tools: bool = True  # the upstream accepts tools that take free text
    result_media: bool = False  # the upstream accepts images in tool messages, which OpenAI itself does not
    ask_usage: bool = True  # request the usage chunk for streams whose client did not
    special_tokens: bool = False  # request that a vLLM-like server keeps its special tokens when tools are offered
    file_urls: bool = False  # the upstream accepts the URL of a file as its data, as OpenRouter does
    options: tuple[str, ...] = OPTIONS  # those of these fields that the upstream gets from clients of other dialects
    user_limit: int | None = 64  # characters of a user id that the upstream accepts
    # which cache marks the upstream gets from clients of other dialects; auto: breakpoints for gpt-5.6 and later
    cache_marks: BreakpointChoice = "auto"
    cache_control: bool = False  # the upstream gets cache marks in Anthropic's form, whatever `cache_marks` says
    cache_long: bool = False  # a mark of 1h is sent with the lifetime of 12h, which costs more
    cache_key: bool | None = None  # whether the upstream gets a prompt_cache_key of the client's session; None: no
    web_search: Literal["auto", "field", "openrouter", "none"] = "auto"  # how the upstream searches the web
    more_sampling: tuple[str, ...] = ()  # numeric fields beyond OpenAI's own: top_k, min_p, repetition_penalty …


IMAGE_DETAIL = "image_url.detail"
CUSTOM_FORMAT = "custom.format"  # the format that a custom tool's text must have
_DEFAULTS: JsonObject = {IMAGE_DETAIL: "auto", CUSTOM_FORMAT: {"type": "text"}}
CALL_ID_FIELDS = ("tool_call_id", "tool_use_id", "tool_useId")
_FAILURES = frozenset({"error", "failed", "failure"})
_DATA_URL = re.compile(r"data:([^,]+?);base64,(.*)", re.DOTALL | re.IGNORECASE)
_AUDIO_FORMATS = {"mp3": "audio/mpeg"}  # all others are called audio/<format>
_AUDIO_MIMES = {"audio/mpeg": "mp3", "audio/mp3": "mp3"}
# Fields without content of their own: a dialect that lacks them loses nothing.
_SPELLING = frozenset(
    {"created", "stream_options", "refusal", "citations", "search_results", "web_search_options"}  # the last is a tool
)


def _is_spelling(name: str, value: Json) -> bool:
    """Return whether a field only records how a value was spelt on the wire. Internal fields begin with a tilde."""
    return name.startswith(INTERNAL_PREFIX) or name in _SPELLING or value == _DEFAULTS.get(name, ...)


EXTRAS = ExtraFields(FAMILY, _is_spelling)


def is_legacy_form(extra: Extra | None) -> bool:
    """Return whether a request or a stop used the legacy fields `functions` and `function_call`."""
    return EXTRAS.own_fields(extra).get("~older") is True


def is_empty_value(value: Json) -> bool:
    """Return whether a value is null, "", or a list or object of such values apart from `type` and `index`."""
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
    """Return whether a `function_call` is empty: servers fill the legacy field without a name and arguments."""
    if not isinstance(call, dict):
        return is_empty_value(call)
    return is_empty_value({name: value for name, value in call.items() if (name, value) != ("arguments", "{}")})


# --- wire to blocks


def parse_content(value: Json, at: str) -> list[Block]:
    """Return the blocks of a message's content. An empty string gives no block."""
    if isinstance(value, str):
        return [Text(value, at=Location(at))] if value else []
    return list(_blocks(value, at, in_result=False))


def _blocks(value: Json, at: str, *, in_result: bool = True) -> Iterable[Block]:
    """Yield a block for each part; nested lists are flattened (docs/decisions/content.md#d1)."""
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from _blocks(item, f"{at}[{index}]", in_result=in_result)
    elif isinstance(value, dict) and isinstance(value.get("type"), str):
        yield _part(value, at, in_result)
    elif value is not None:
        yield read_loose_part(FAMILY, value, Location(at))


def flat_text(value: Json) -> str:
    """Return the text in a value of a reply, without the fields around it. A value without text becomes JSON."""
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
            fields = Fields(part, at)
            cache = take_mark(fields)
            return structs.replace(_MEDIA[kind](fields), cache=cache)
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
    """Read a text part. If its text is not a string, the texts in it are joined (docs/decisions/content.md#d1)."""
    fields = Fields(part, at)
    value = fields.any("text")
    if value is None:
        value = fields.any("content")
    readable = part_text(value)
    if not readable.is_whole:
        return Opaque(FAMILY, part, "text", at=Location(at))
    fields.any("type")
    cache, extra = take_mark(fields), EXTRAS.extra(fields)
    if extra is not None and "citations" in extra.spelling:  # in a request they are content, not another spelling
        extra = structs.replace(extra, spelling=extra.spelling - {"citations"})
    return Text(readable.text, cache, extra=extra, at=Location(at))


def take_mark(fields: Fields) -> CacheBreakpoint | None:
    """Take the cache mark of a part or a tool: OpenAI's, or Anthropic's, which OpenRouter and LiteLLM accept."""
    return take_breakpoint(fields, EXTRAS) or take_cache_control(fields, EXTRAS)


def refusal_block(text: str, at: str) -> Text:
    """Return a text block that is marked as a refusal."""
    return Text(text, extra=EXTRAS.extra_of({"refusal": True}), at=Location(at))


def is_refusal(block: Block) -> bool:
    """Return whether a block is a refusal."""
    return EXTRAS.own_fields(block.extra).get("refusal") is True


def _tool_use(fields: Fields) -> ToolCall:
    fields.any("type")
    call_id, name, arguments = fields.identifier("id"), fields.identifier("name"), fields.any("input")
    extra = EXTRAS.extra(fields)
    return ToolCall(call_id, name, arguments_text(arguments), extra=extra, at=Location(fields.at))


def parse_result(fields: Fields) -> ToolResult:
    """Read a tool message or a tool_result part (docs/decisions/content.md#d2).

    Raises MalformedRequest if there is no call id.
    """
    fields.any("type")
    call_ids = [fields.text(name, "") for name in CALL_ID_FIELDS]
    call_id = next(filter(None, call_ids), "")
    if not call_id:
        missing = "tool_use_id" if fields.peek("type") == "tool_result" else "tool_call_id"
        fields.fail(missing, "expected a string that is not empty")
    content, text = fields.any("content"), fields.any("text")
    at = fields.path("content" if content is not None or text is None else "text")
    is_error, status = fields.flag("is_error", None), fields.any("status")
    rest = to_extra_names(fields.rest())
    failed = isinstance(status, str) and status.lower() in _FAILURES
    if status is not None and status != "success" and not failed:
        rest["status"] = status  # an unknown status counts as success
    value = text if content is None else content
    if isinstance(value, str):
        blocks: list[Block] = [Text(value, at=Location(at))] if value else []
    else:
        blocks = list(_blocks(value, at))
    return ToolResult(
        call_id,
        tuple(block for block in blocks if isinstance(block, Text | Media | Opaque)),  # true for all, for mypy
        failed if is_error is None else is_error,
        extra=EXTRAS.extra_of(rest),
        at=Location(fields.at, is_absent=content is None and text is None),
    )


# --- media


def _image_url(fields: Fields) -> Media:
    fields.any("type")
    value = fields.any("image_url")
    inner = Fields({"url": value} if isinstance(value, str) else value, fields.path("image_url"))
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
    mime, form, data = take_file_data(inner, name, _DATA_URL.fullmatch)  # OpenRouter also accepts a URL here
    return Media("document", mime, form, data, name, extra=_nested(fields, "file", inner), at=Location(fields.at))


def _source(fields: Fields) -> Media:
    """Read Anthropic's `image` or `document` part with a `source`, which some clients put into results.

    See docs/decisions/content.md#d2.
    """
    kind: Literal["image", "document"] = "image" if fields.text("type") == "image" else "document"
    source = fields.child("source")
    form = source.one_of("type", ("base64", "url"))
    name = fields.text("title", "")
    extra = EXTRAS.extra(fields)
    if form == "url":
        return Media(kind, "", "url", source.identifier("url"), name, extra=extra, at=Location(fields.at))
    mime, data = source.identifier("media_type"), base64_text(source, "data", source.text("data"))
    return Media(kind, mime, "base64", data, name, extra=extra, at=Location(fields.at))


_MEDIA = {"image_url": _image_url, "input_audio": _input_audio, "file": _file, "image": _source, "document": _source}


def _nested(fields: Fields, name: str, inner: Fields) -> Extra | None:
    """Return the unread fields of a part and of its inner object, the latter under the object's name."""
    rest, inside = to_extra_names(fields.rest()), inner.rest()
    if name == "image_url" and "detail" in inside:  # a field that other dialects share
        rest[IMAGE_DETAIL] = inside.pop("detail")
    return EXTRAS.extra_of({**rest, name: inside} if inside else rest)


# --- blocks to wire


def render_content(blocks: Sequence[Block]) -> Json:
    """Write the content of a message: a string for no block or one plain text, parts otherwise."""
    if not blocks:
        return ""
    first = blocks[0]
    if len(blocks) == 1 and isinstance(first, Text) and first.text and is_bare(first):
        check_block(first)
        return first.text
    return [render_part(block) for block in blocks]


def is_bare(text: Text) -> bool:
    """Return whether a text has neither a cache mark nor fields of its own, so that it can be written as a string."""
    return text.cache is None and not EXTRAS.wire_fields(text.extra)


def render_part(block: Block) -> Json:
    """Write a block as a content part. Raises Unrepresentable if Chat has no such part."""
    match block:
        case Text():
            check_block(block)
            fields = cache_fields(block.cache, EXTRAS) | EXTRAS.wire_fields(block.extra)
            if fields.pop("refusal", None) is True:
                return {"type": "refusal", "refusal": block.text, **fields}
            return {"type": "text", "text": block.text, **fields}
        case Media():
            check_block(block)
            return {**_render_media(block), **cache_fields(block.cache, EXTRAS)}
        case Opaque(family=family, data=data) if family == FAMILY:
            return data
        case _:
            raise unrepresentable(block, f"Chat content cannot contain {describe_block(block)}")


def _render_media(media: Media) -> JsonObject:
    fields, own = EXTRAS.wire_fields(media.extra), EXTRAS.own_fields(media.extra)
    data = f"data:{media.mime};base64,{media.data}" if media.form == "base64" else media.data
    match media.kind, media.form:
        case "image", "base64" | "url":
            detail: JsonObject = {"detail": own[IMAGE_DETAIL]} if IMAGE_DETAIL in own else {}
            return wrap_inner_object("image_url", {"url": data, **detail}, fields)
        case "audio", "base64":
            form = _AUDIO_MIMES.get(media.mime) or media.mime.removeprefix("audio/")
            return wrap_inner_object("input_audio", {"data": media.data, "format": form}, fields)
        case "document", "base64" | "url" | "file":
            filename: JsonObject = {"filename": media.name} if media.name else {}
            return wrap_inner_object(
                "file", {**filename, "file_id" if media.form == "file" else "file_data": data}, fields
            )
        case _:
            raise unrepresentable(media, f"Chat content cannot contain {describe_block(media)}")


def wrap_inner_object(kind: str, inner: JsonObject, fields: JsonObject, **head: Json) -> JsonObject:
    """Return a part, a tool or a call with its inner object under `kind`, and the unknown fields of both.

    `fields` are the unknown fields of the outer object; those of the inner one are its entry `kind`.
    """
    inside = fields.pop(kind, None)
    return {**head, "type": kind, kind: {**inner, **inside} if isinstance(inside, dict) else inner, **fields}


def check_block(block: Text | Media | ToolCall | ToolResult) -> None:
    """Raise Unrepresentable for a mark on a call or a result, a signature or citations, which Chat does not have."""
    refuse_cache_and_signature(block, API_NAME)
    if isinstance(block, Text) and block.citations:
        raise unrepresentable(block, "Chat requests cannot contain citations")


def without_message_fields(text: Text) -> Text:
    """Return a text without the fields of its message."""
    own = EXTRAS.own_fields(text.extra)
    fields = {name: value for name, value in own.items() if name != "~role" and not name.startswith(PARENT_PREFIX)}
    return structs.replace(text, extra=EXTRAS.extra_of(fields))


# --- sources of a reply: `annotations` of a message or a delta, and Perplexity's lists at the top level

SOURCE_FIELDS = ("citations", "search_results")  # Perplexity's: a Chat client gets them with the envelope


def parse_annotations(annotations: Json) -> list[Opaque]:
    """Read the annotations of a message. Only this family can use those without a URL."""
    return [parse_annotation(FAMILY, each) for each in annotations if each] if isinstance(annotations, list) else []


def parse_sources(citations: Json, results: Json) -> list[Opaque]:
    """Read Perplexity's lists of URLs, some with title and snippet. Each URL counts once."""
    sources: dict[str, CitationSource] = {}
    for result in results if isinstance(results, list) else ():
        if isinstance(result, dict) and (source := parse_source(result)) is not None:
            sources.setdefault(source.url, source)
    for url in citations if isinstance(citations, list) else ():
        if isinstance(url, str) and url:
            sources.setdefault(url, CitationSource(url))
    return [Opaque(FAMILY, None, "source", source=source) for source in sources.values()]


def render_annotations(citations: Iterable[Opaque]) -> Sequence[JsonObject]:
    """Write citations: those of this family unchanged, those of other families as `url_citation`."""
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

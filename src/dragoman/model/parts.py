"""Convert a content part to text and media, for every filter whose target cannot carry the part. Pure.

A part is JSON of any shape: a part of a known dialect, of MCP, of a tool's own making, or a malformed one. The text has
every string of it, except media, base64 data and encrypted content, which `PartText` lists.

See docs/decisions/content.md#d1, #d9.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Literal, TypeAlias

from msgspec import Struct, structs

from dragoman.errors import DragomanError, MalformedRequest, Unrepresentable
from dragoman.model.blocks import Extra, Location, Media, Opaque, Text
from dragoman.model.conversation import to_extra_names
from dragoman.model.filter import Notes
from dragoman.wire import jsonio
from dragoman.wire.jsonio import Json

# --- The forms in which dialects, MCP and agent frameworks write media.
#
# A tool result may contain any of them, because a tool does not know the dialect of the client.


MediaForm: TypeAlias = Literal["base64", "url", "text", "file"]

_KINDS: Mapping[str, Literal["image", "audio", "video"]] = {"image": "image", "audio": "audio", "video": "video"}
_SOURCES: Mapping[str, tuple[MediaForm, str]] = {
    "base64": ("base64", "data"),
    "url": ("url", "url"),
    "text": ("text", "data"),
    "file": ("file", "file_id"),
}
_DATA_URL = re.compile(r"data:([^,;]+)(?:;[^,;]+)*;base64,(.*)", re.DOTALL | re.IGNORECASE)
_MIME_FIELDS = ("mimeType", "mediaType", "mime_type", "media_type")
_DATA_FIELDS = ("data", "base64")
_FILE_TYPES = frozenset({"media", "file", "image-data", "file-data", *_KINDS})  # parts that contain the data directly
_DOCUMENTS = {"pdf": "application/pdf", "txt": "text/plain", "md": "text/markdown", "csv": "text/csv"}


def read_tool_media(family: str, part: Mapping[str, Json], at: Location) -> Media | None:
    """Return the media of a part in the form of MCP, or with a `source` as in Anthropic's; None for another part.

    Fields that the form does not define are kept as extra fields of the family.
    """
    match part:
        case {"type": "image" | "audio" | "video" as kind, "data": str(data), "mimeType": str(mime), **rest}:
            return _media(str(kind), mime, "base64", data, "", family, rest, at)
        case {"type": "resource", "resource": {"blob": str(data), "mimeType": str(mime), **inner}, **rest}:
            name = inner.get("uri", "")
            return _media(mime.partition("/")[0], mime, "base64", data, str(name), family, rest, at)
        case {"type": "image" | "document" as kind, "source": dict() as source, **rest}:
            return _sourced(str(kind), source, family, rest, at)
        case _:
            return None


def read_any_media(family: str, part: Mapping[str, Json], at: Location) -> Media | None:
    """Return the media of a part in any known form; None for another part."""
    return (
        read_tool_media(family, part, at)
        or _openai_media(family, part, at)
        or _wrapped_media(family, part, at)
        or _framework_media(family, part, at)
    )


def _openai_media(family: str, part: Mapping[str, Json], at: Location) -> Media | None:
    """Return media in the forms of Chat Completions and Responses."""
    match part:
        case {"type": "image_url" | "input_image" | "computer_screenshot", "image_url": str(url) | {"url": str(url)}}:
            return _addressed("image", url, "", family, _without(part, "type", "image_url"), at)
        case {"type": "input_file", "file_data": str(url)}:
            rest = _without(part, "type", "file_data", "filename")
            return _addressed("document", url, _string(part.get("filename")), family, rest, at)
        case {"type": "file", "file": dict(inner)}:
            rest, data_url = _without(part, "type", "file"), _string(inner.get("file_data"))
            return _addressed("document", data_url, _string(inner.get("filename")), family, rest, at)
        case {"type": "input_audio", "input_audio": {"data": str(data), "format": str(form)}}:
            rest = _without(part, "type", "input_audio")
            return _media("audio", f"audio/{form}", "base64", data, "", family, rest, at)
        case _:
            return None


def _wrapped_media(family: str, part: Mapping[str, Json], at: Location) -> Media | None:
    """Return media in the forms of Gemini and Bedrock: an object with one member, named after the kind."""
    if len(part) != 1:
        return None
    [(kind, inner)] = part.items()
    if not isinstance(inner, dict):
        return None
    if kind in ("inlineData", "inline_data"):
        name = _string(inner.get("displayName") or inner.get("display_name"))
        return _data_media(inner, name, family, {}, at)
    match inner:
        case {"format": str(form), "source": {"bytes": str(data)}} if kind in (*_KINDS, "document"):
            mime = _DOCUMENTS.get(form, "") if kind == "document" else f"{kind}/{form}"
            return _media(kind, mime, "base64", data, _string(inner.get("name")), family, {}, at)
        case _:
            return None


def _framework_media(family: str, part: Mapping[str, Json], at: Location) -> Media | None:
    """Return media in the forms of LangChain and the AI SDK: the data and its type in the part itself."""
    kind = part.get("type")
    if not isinstance(kind, str) or kind not in _FILE_TYPES:
        return None
    name = _string(part.get("filename"))
    rest = _without(part, "type", "source_type", "filename", *_MIME_FIELDS, *_DATA_FIELDS)
    return _data_media(part, name, family, rest, at)


def _data_media(part: Mapping[str, Json], name: str, family: str, rest: dict[str, Json], at: Location) -> Media | None:
    mime = next((value for field in _MIME_FIELDS if isinstance(value := part.get(field), str)), "")
    data = next((value for field in _DATA_FIELDS if isinstance(value := part.get(field), str)), "")
    return _media(mime.partition("/")[0], mime, "base64", data, name, family, rest, at)


def _addressed(kind: str, url: str, name: str, family: str, rest: dict[str, Json], at: Location) -> Media | None:
    """Return media given by a URL, which may be a data URL."""
    if found := _DATA_URL.fullmatch(url):
        return _media(kind, found[1], "base64", found[2], name, family, rest, at)
    return _media(kind, "", "url", url, name, family, rest, at) if url.startswith(("http://", "https://")) else None


def _sourced(kind: str, source: dict[str, Json], family: str, rest: dict[str, Json], at: Location) -> Media | None:
    source_type = source.get("type")
    if not isinstance(source_type, str) or source_type not in _SOURCES:
        return None
    form, field = _SOURCES[source_type]
    default_mime = "text/plain" if form == "text" else ""
    mime, data, title = source.get("media_type", default_mime), source.get(field), rest.pop("title", "")
    if not (isinstance(mime, str) and isinstance(data, str) and isinstance(title, str) and data):
        return None
    if form == "text" and kind != "document":
        return None
    return _media(kind, mime, form, data, title, family, rest, at)


def _media(
    kind: str,
    mime: str,
    form: MediaForm,
    data: str,
    name: str,
    family: str,
    rest: dict[str, Json],
    at: Location,
) -> Media | None:
    if form == "base64" and not (mime and _is_base64(data)):
        return None
    extra = Extra(family, to_extra_names(rest)) if rest else None
    return Media(_KINDS.get(kind, "document"), mime, form, data, name, extra=extra, at=at)


def _is_base64(data: str) -> bool:
    try:
        return bool(binascii.a2b_base64(data.encode("ascii"), strict_mode=True))
    except ValueError:
        return False


def _without(part: Mapping[str, Json], *names: str) -> dict[str, Json]:
    return {name: value for name, value in part.items() if name not in names}


def _string(value: Json) -> str:
    return value if isinstance(value, str) else ""


# The `kind` of an Opaque for media that a reader could not read (docs/decisions/content.md#d2).
UNREADABLE = "unreadable media"
UNREADABLE_LINE = "[media left out: it cannot be read]"
UNREADABLE_NOTE = "media that cannot be read was left out"

# Fields with the content of a part, in the order in which they are read.
_CONTENT_FIELDS = ("text", "content", "json", "resource", "value", "source", "document", "searchResult")
# Fields with a heading of a part. Their strings come before its text, each on its own line.
_HEADINGS = ("title", "name", "filename", "source", "url", "uri", "description")
_TEXT_FIELDS = frozenset({"text", "content"})  # an object with only these, empty, has no content
_TEXT_TYPES = frozenset({"text", "input_text", "output_text"})
# Fields without meaning for a model. A note names those of the second set.
_IGNORED = frozenset({"type", "cache_control"})
_LABELS = frozenset({"id", "tool_use_id", "tool_call_id", "call_id", "toolUseId", "mimeType", "media_type"})
_CITED: dict[str, Json] = {"enabled": True}  # the `citations` of a search result or document: a setting
_DEEPEST = 60  # levels of nesting that are read; deeper values become JSON text
_BASE64 = re.compile(r"(?:data:[^,]{0,200};base64,)?[A-Za-z0-9+/_-]{512,}={0,2}")


class PartText(Struct, frozen=True):
    """The text of a part, and what the text lacks.

    `has_content`: the text comes from a content field; otherwise it is the part's JSON. `omitted`: paths of base64 and
    encrypted data. `labels`: names of ids and media types. `media`: images and files in the part, each with its path.
    """

    text: str
    has_content: bool = True
    omitted: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    media: tuple[Media, ...] = ()

    @property
    def is_whole(self) -> bool:
        """Whether the text lacks nothing of the part."""
        return not (self.omitted or self.labels or self.media)


def part_text(part: Json, family: str = "") -> PartText:
    """Return a part as text. `family` is that of the client: media keep unknown fields as its extra fields."""
    reader = _PartReader(family)
    text = reader.text(part, "", 0)
    has_content = not isinstance(part, dict) or _is_text(part) or any(_has(part, name) for name in _CONTENT_FIELDS)
    return PartText(text, has_content, tuple(reader.omitted), tuple(dict.fromkeys(reader.labels)), tuple(reader.media))


def _part_text(part: Json, family: str, blame: type[DragomanError], at: Location) -> PartText:
    try:
        return part_text(part, family)
    except jsonio.JsonError as error:
        raise blame(str(error), at=at.path) from None


def other_fields_text(fields: Mapping[str, Json]) -> str:
    """Return the JSON of the fields of a part other than its text; "" if they are empty."""
    rest = {name: value for name, value in fields.items() if name not in _IGNORED and _has_value(value)}
    return _json(rest) if rest else ""


def join_texts(texts: Iterable[str]) -> str:
    """Join texts with a newline, except where either side has white space already.

    See docs/decisions/content.md#d1.
    """
    pieces: list[str] = []
    last = ""
    for text in texts:
        if not text:
            continue
        if last and not last.isspace() and not text[0].isspace():
            pieces.append("\n")
        pieces.append(text)
        last = text[-1]
    return "".join(pieces)


def opaque_as_parts(
    block: Opaque, notes: Notes, rule: str = "foreign.as_text", words: PartText | None = None
) -> list[Text | Media]:
    """Return a block as its text and media, and write notes. `words` is the text, if the caller has it already."""
    what, at = block.kind or "a part", block.at.path
    words = words or _part_text(block.data, block.family, Unrepresentable, block.at)
    without = f", without its {', '.join(words.labels)}" if words.labels else ""
    notes.changed(rule, at, f"{what} of {block.family} is sent as text{without}")
    for path in words.omitted:
        notes.dropped("part.data", _place(at, path), f"binary data of {what} was left out")
    parts: list[Text | Media] = [Text(words.text, at=block.at)] if words.text or not words.media else []
    parts += [structs.replace(media, at=Location(_place(at, media.at.path))) for media in words.media]
    parts[-1] = structs.replace(parts[-1], cache=block.cache)
    return parts


def _place(at: str, path: str) -> str:
    return f"{at}{path}" if path.startswith("[") else f"{at}.{path}".strip(".")


def _has(part: Mapping[str, Json], name: str) -> bool:
    return part.get(name) not in (None, "", [], {})


def _is_text(part: Mapping[str, Json]) -> bool:
    kind = part.get("type")
    return isinstance(kind, str) and kind in _TEXT_TYPES


def _json(value: object) -> str:
    return jsonio.encode(value).decode()


class _PartReader:
    """Reads the text of one part, and collects what the text lacks."""

    def __init__(self, family: str) -> None:
        self._family = family
        self.media: list[Media] = []
        self.omitted: list[str] = []
        self.labels: list[str] = []

    def text(self, value: Json, path: str, depth: int) -> str:
        if isinstance(value, list):
            return join_texts([self.text(each, f"{path}{place}", depth) for place, each in _flat(value)])
        if isinstance(value, dict):
            return _json(value) if depth > _DEEPEST else self._object(value, path, depth + 1)
        return "" if value is None else value if isinstance(value, str) else _json(value)

    def _object(self, part: dict[str, Json], path: str, depth: int) -> str:
        if self._is_media(part, path):
            return ""
        before = len(self.media)
        headings = [name for name in _HEADINGS if isinstance(part.get(name), str)]
        content = [name for name in _CONTENT_FIELDS if _has(part, name) and name not in headings]
        if part.get("type") == "text" and isinstance(part.get("data"), str):  # the source of a document
            content.append("data")
        if not content and not _is_text(part):
            if part and part.keys() <= _TEXT_FIELDS:
                return ""
            return _json(self.hide_data(part, path, depth))
        words = [str(part[name]) for name in headings]
        words += [self._content(part, name, _step(path, name), depth) for name in content]
        rest: dict[str, Json] = {}
        for name, value in part.items():
            if name in _LABELS and isinstance(value, str):
                self.labels.append(name)
            elif name not in content and name not in headings and name not in _IGNORED and _has_value(value):
                rest[name] = self.hide_data(value, _step(path, name), depth)
        text = join_texts([*words, *([_json(rest)] if rest else [])])
        return text if text or _is_text(part) or len(self.media) > before else _json(part)

    def _is_media(self, part: dict[str, Json], path: str, *, data_only: bool = False) -> bool:
        """Return whether the part is media, and collect it. With `data_only`, media by URL does not count."""
        media = read_any_media(self._family, part, Location(path))
        if media is None or media.form == "text" or (data_only and media.form != "base64"):  # a text document is text
            return False
        self.media.append(media)
        return True

    def _content(self, part: dict[str, Json], name: str, path: str, depth: int) -> str:
        value = part[name]
        if name == "json" and not isinstance(value, str):  # plain data, not a part
            return _json(self.hide_data(value, path, depth))
        return self.text(value, path, depth)

    def hide_data(self, value: Json, path: str, depth: int) -> Json:
        """Return the value with a placeholder for media and base64 data."""
        if isinstance(value, str) and _BASE64.fullmatch(value):
            self.omitted.append(path)
            return f"[{len(value)} characters of base64 left out]"
        if depth > _DEEPEST:
            return value
        if isinstance(value, list):
            return [self.hide_data(each, f"{path}[{index}]", depth + 1) for index, each in enumerate(value)]
        if isinstance(value, dict):
            if self._is_media(value, path, data_only=True):
                return f"[{self.media[-1].kind}]"
            return {name: self.hide_data(each, _step(path, name), depth + 1) for name, each in value.items()}
        return value


def _flat(values: list[Json]) -> Iterator[tuple[str, Json]]:
    """Yield the values of a list and of all lists in it, each with its path."""
    pending = [(f"[{index}]", each) for index, each in reversed([*enumerate(values)])]
    while pending:
        place, value = pending.pop()
        if isinstance(value, list):
            pending += [(f"{place}[{index}]", each) for index, each in reversed([*enumerate(value)])]
        else:
            yield place, value


def _step(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _has_value(value: Json) -> bool:
    return value not in (None, False, "", [], {}, _CITED)


# --- Tools that a provider runs itself

_CALLS = ("server_tool_use", "mcp_tool_use", "_call", "executableCode", "toolCall")
_RESULTS = (
    "tool_result",
    "_call_output",
    "tool_search_output",
    "_grounding_result",
    "codeExecutionResult",
    "toolResponse",
)
# Fields whose strings need no label.
_UNLABELLED = frozenset(
    {"text", "title", "url", "stdout", "stderr", "query", "message", "output", "content", "code", "data"}
)
_LEFT_OUT = frozenset({*_IGNORED, *_LABELS, "status", "execution", "caller", "index", "language"})


def server_tool_text(block: Opaque) -> PartText | None:
    """Return text for a tool call that the provider ran itself, or for its result; None for any other block.

    The text is prose: text that looks like a call teaches a model to write calls as text.
    """
    kind, data = block.kind, _unwrapped(block.data)
    if not kind.endswith(_CALLS + _RESULTS) or not isinstance(data, dict):
        return None
    omitted: list[str] = []
    name = data.get("name")
    arguments = data.get("input")
    if kind.endswith(_RESULTS):
        tool = kind.removesuffix("_tool_result").removesuffix("_call_output").removesuffix("_output")
        words = join_texts(_lines(data, "", "", omitted)) or "nothing to read"
        failed = data.get("is_error") is True or data.get("status") == "error"
        media = tuple(each for each in part_text(data, block.family).media if each.form == "base64")
        lost = [path for path in omitted if not path.startswith(tuple(each.at.path for each in media))]
        return PartText(f"({tool} {'failed' if failed else 'gave'}: {words})", omitted=tuple(lost), media=media)
    tool = name if isinstance(name, str) and name else kind.removesuffix("_call")
    if isinstance(arguments, dict):
        return PartText(f"({tool} was used with {_json(arguments)})")
    rest = {each: value for each, value in data.items() if each != "name"}
    words = join_texts(_lines(rest, "", "", omitted)) or "nothing to read"
    return PartText(f"({tool} was used with {words})", omitted=tuple(omitted))


def _unwrapped(data: Json) -> Json:
    """Return the only member of an object if it is an object, as in Bedrock and Gemini; otherwise the data."""
    if isinstance(data, dict) and len(data) == 1:
        inner = next(iter(data.values()))
        return inner if isinstance(inner, dict) else data
    return data


def _lines(value: Json, name: str, path: str, omitted: list[str], depth: int = 0) -> Iterator[str]:
    """Yield the readable content of a value, a line for each string or number: no ids, no encrypted content."""
    if isinstance(value, dict | list) and depth > _DEEPEST:
        yield _json(value)
    elif isinstance(value, dict):
        for key, each in value.items():
            if key not in _LEFT_OUT:
                yield from _lines(each, key, _step(path, key), omitted, depth + 1)
    elif isinstance(value, list):
        for index, each in enumerate(value):
            yield from _lines(each, name, f"{path}[{index}]", omitted, depth + 1)
    elif not _has_value(value):
        return
    elif name.startswith("encrypted") or (isinstance(value, str) and _BASE64.fullmatch(value)):
        omitted.append(path)
    else:
        words = value if isinstance(value, str) else _json(value)
        yield words if name in _UNLABELLED else f"{name}: {words}"


# --- Parts of tool results in forms that the client's dialect does not define


def read_loose_part(family: str, value: Json, at: Location, kind: str = "") -> Text | Media | Opaque:
    """Return a part of a tool result that its dialect does not define.

    It becomes media if it has the form of MCP or Anthropic. It stays opaque, for its own family, if it names its `kind`
    or if its text would lack something. Otherwise it becomes text.
    """
    if isinstance(value, dict):
        if (media := read_tool_media(family, value, at)) is not None:
            return media
        words = _part_text(value, family, MalformedRequest, at)
        if kind or not words.is_whole:
            return Opaque(family, value, kind, at=at)
        return Text(words.text, at=at)
    return Text(_part_text(value, family, MalformedRequest, at).text, at=at)


def read_bad_media(family: str, part: Mapping[str, Json], kind: str, at: Location) -> Media | Opaque:
    """Return media that its dialect cannot read: as media if another form fits, otherwise as an opaque part.

    The opaque part has the kind `UNREADABLE` if it has no text either.
    """
    if (media := read_any_media(family, part, at)) is not None:
        return media
    source = part.get("source")
    has_text = any(_has(part, name) for name in ("text", "content")) or (
        isinstance(source, dict) and "content" in source
    )
    return Opaque(family, dict(part), kind if has_text else UNREADABLE, at=at)


def missing_media_line(media: Media) -> str:
    """Return the line of text that replaces media which the target does not accept."""
    name = f" {media.name!r}" if media.name else ""
    address = f" ({media.data})" if media.form == "url" else ""
    return f"[{media.kind}{name}{address} left out: this model cannot take it]"

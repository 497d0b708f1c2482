"""What a content part says as text: the one answer for every filter whose target cannot carry the part.
A part is JSON of any shape: a part of a known dialect, of MCP, of a tool's own making, or a malformed one. Every string
in it is kept, except media, base64 data and sealed content, which `PartText` names.

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

# --- The forms in which dialects, MCP and agent frameworks write media: any of them may stand in a tool result.
#
# Tools give their results in forms of their own, whatever dialect the client speaks.


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
_FILE_TYPES = frozenset({"media", "file", "image-data", "file-data", *_KINDS})  # parts whose data stands in themselves
_DOCUMENTS = {"pdf": "application/pdf", "txt": "text/plain", "md": "text/markdown", "csv": "text/csv"}


def read_tool_media(family: str, part: Mapping[str, Json], at: Location) -> Media | None:
    """Return the media in a part of MCP's form, or with a `source` as Anthropic has it; None if it is no such part.

    Fields that the form does not have are kept for the family.
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
    """Return the media in a part of any known form; None if it is no such part."""
    return (
        read_tool_media(family, part, at)
        or _openai_media(family, part, at)
        or _wrapped_media(family, part, at)
        or _framework_media(family, part, at)
    )


def _openai_media(family: str, part: Mapping[str, Json], at: Location) -> Media | None:
    """Media as Chat Completions and Responses write it."""
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
    """Media as Gemini and Bedrock write it: an object with one member, whose name says the kind."""
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
    """Media as LangChain and the AI SDK write it: the data and its type in the part itself."""
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
    """Media by its address, which may hold the data itself."""
    if found := _DATA_URL.fullmatch(url):
        return _media(kind, found[1], "base64", found[2], name, family, rest, at)
    return _media(kind, "", "url", url, name, family, rest, at) if url.startswith(("http://", "https://")) else None


def _sourced(kind: str, source: dict[str, Json], family: str, rest: dict[str, Json], at: Location) -> Media | None:
    form = source.get("type")
    if not isinstance(form, str) or form not in _SOURCES:
        return None
    how, field = _SOURCES[form]
    usual = "text/plain" if how == "text" else ""
    mime, data, title = source.get("media_type", usual), source.get(field), rest.pop("title", "")
    if not (isinstance(mime, str) and isinstance(data, str) and isinstance(title, str) and data):
        return None
    if how == "text" and kind != "document":
        return None
    return _media(kind, mime, how, data, title, family, rest, at)


def _media(
    kind: str,
    mime: str,
    how: MediaForm,
    data: str,
    name: str,
    family: str,
    rest: dict[str, Json],
    at: Location,
) -> Media | None:
    if how == "base64" and not (mime and _is_base64(data)):
        return None
    extra = Extra(family, to_extra_names(rest)) if rest else None
    return Media(_KINDS.get(kind, "document"), mime, how, data, name, extra=extra, at=at)


def _is_base64(data: str) -> bool:
    try:
        return bool(binascii.a2b_base64(data.encode("ascii"), strict_mode=True))
    except ValueError:
        return False


def _without(part: Mapping[str, Json], *names: str) -> dict[str, Json]:
    return {name: value for name, value in part.items() if name not in names}


def _string(value: Json) -> str:
    return value if isinstance(value, str) else ""


# the `kind` of an Opaque that stands for media which a reader could not read (docs/decisions/content.md#d2)
UNREADABLE = "unreadable media"
UNREADABLE_LINE = "[media left out: it cannot be read]"
UNREADABLE_NOTE = "media that cannot be read was left out"

# Fields that hold what a part says, in the order in which they are read.
_FOLLOWED = ("text", "content", "json", "resource", "value", "source", "document", "searchResult")
# Fields that say what a part is about. Their strings stand before its text, each on a line of its own.
_HEADINGS = ("title", "name", "filename", "source", "url", "uri", "description")
_WORDS = frozenset({"text", "content"})  # an object of these alone that are empty says nothing
_TEXT_TYPES = frozenset({"text", "input_text", "output_text"})
# Fields that say nothing to a model. A note names those of the second set.
_SILENT = frozenset({"type", "cache_control"})
_LABELS = frozenset({"id", "tool_use_id", "tool_call_id", "call_id", "toolUseId", "mimeType", "media_type"})
_CITED: dict[str, Json] = {"enabled": True}  # the `citations` of a search result or document: a setting
_DEEPEST = 60  # levels of nesting that are followed; what lies deeper is given as JSON
_BASE64 = re.compile(r"(?:data:[^,]{0,200};base64,)?[A-Za-z0-9+/_-]{512,}={0,2}")


class PartText(Struct, frozen=True):
    """The text of a part, and what the text does not hold.

    `found`: the part has a field that says it; otherwise the text is the part's JSON. `omitted`: paths of base64 and
    sealed data. `labels`: names of ids and media types. `media`: images and files in the part, each with its path.
    """

    text: str
    found: bool = True
    omitted: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    media: tuple[Media, ...] = ()

    @property
    def is_whole(self) -> bool:
        """Whether the text holds all that the part does."""
        return not (self.omitted or self.labels or self.media)


def part_text(part: Json, family: str = "") -> PartText:
    """Return what a part says as text. `family` is that of the client, whose fields stay with media."""
    reading = _Reading(family)
    text = reading.text(part, "", 0)
    found = not isinstance(part, dict) or _is_text(part) or any(_has(part, name) for name in _FOLLOWED)
    return PartText(text, found, tuple(reading.omitted), tuple(dict.fromkeys(reading.labels)), tuple(reading.media))


def _part_text(part: Json, family: str, blame: type[DragomanError], at: Location) -> PartText:
    try:
        return part_text(part, family)
    except jsonio.JsonError as error:
        raise blame(str(error), at=at.path) from None


def other_fields_text(fields: Mapping[str, Json]) -> str:
    """Return the JSON of fields that stand beside the text of a part; nothing if they say nothing."""
    rest = {name: value for name, value in fields.items() if name not in _SILENT and _says(value)}
    return _json(rest) if rest else ""


def join_texts(texts: Iterable[str]) -> str:
    """Join texts with a newline, except where either side of the seam has white space already.

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
    """Return a block as its text and the media in it, with the notes. `words` is its text, if the caller knows it."""
    what, at = block.kind or "a part", block.at.path
    words = words or _part_text(block.data, block.family, Unrepresentable, block.at)
    without = f", without its {', '.join(words.labels)}" if words.labels else ""
    notes.changed(rule, at, f"{what} of {block.family} is given as text{without}")
    for path in words.omitted:
        notes.dropped("part.data", _place(at, path), f"data of {what} that is no text was left out")
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


class _Reading:
    """Reads one part and collects what its text does not hold."""

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
        followed = [name for name in _FOLLOWED if _has(part, name) and name not in headings]
        if part.get("type") == "text" and isinstance(part.get("data"), str):  # the source of a document
            followed.append("data")
        if not followed and not _is_text(part):
            if part and part.keys() <= _WORDS:
                return ""
            return _json(self.shown(part, path, depth))
        words = [str(part[name]) for name in headings]
        words += [self._followed(part, name, _step(path, name), depth) for name in followed]
        rest: dict[str, Json] = {}
        for name, value in part.items():
            if name in _LABELS and isinstance(value, str):
                self.labels.append(name)
            elif name not in followed and name not in headings and name not in _SILENT and _says(value):
                rest[name] = self.shown(value, _step(path, name), depth)
        text = join_texts([*words, *([_json(rest)] if rest else [])])
        return text if text or _is_text(part) or len(self.media) > before else _json(part)

    def _is_media(self, part: dict[str, Json], path: str, *, data_only: bool = False) -> bool:
        """Whether the part is media; if it is, it is collected. With `data_only` an address stays what it is: text."""
        media = read_any_media(self._family, part, Location(path))
        if media is None or media.form == "text" or (data_only and media.form != "base64"):  # a text document is text
            return False
        self.media.append(media)
        return True

    def _followed(self, part: dict[str, Json], name: str, path: str, depth: int) -> str:
        value = part[name]
        if name == "json" and not isinstance(value, str):  # data, not parts: what it holds has no other meaning
            return _json(self.shown(value, path, depth))
        return self.text(value, path, depth)

    def shown(self, value: Json, path: str, depth: int) -> Json:
        """Return the value with a few words in the place of media and base64 data."""
        if isinstance(value, str) and _BASE64.fullmatch(value):
            self.omitted.append(path)
            return f"[{len(value)} characters of base64 left out]"
        if depth > _DEEPEST:
            return value
        if isinstance(value, list):
            return [self.shown(each, f"{path}[{index}]", depth + 1) for index, each in enumerate(value)]
        if isinstance(value, dict):
            if self._is_media(value, path, data_only=True):
                return f"[{self.media[-1].kind}]"
            return {name: self.shown(each, _step(path, name), depth + 1) for name, each in value.items()}
        return value


def _flat(values: list[Json]) -> Iterator[tuple[str, Json]]:
    """The values of a list and of the lists in it, however deep, each with its place."""
    pending = [(f"[{index}]", each) for index, each in reversed([*enumerate(values)])]
    while pending:
        place, value = pending.pop()
        if isinstance(value, list):
            pending += [(f"{place}[{index}]", each) for index, each in reversed([*enumerate(value)])]
        else:
            yield place, value


def _step(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _says(value: Json) -> bool:
    return value not in (None, False, "", [], {}, _CITED)


# --- what a provider ran itself

_CALLS = ("server_tool_use", "mcp_tool_use", "_call", "executableCode", "toolCall")
_RESULTS = (
    "tool_result",
    "_call_output",
    "tool_search_output",
    "_grounding_result",
    "codeExecutionResult",
    "toolResponse",
)
# Names of fields whose strings need no label.
_BARE = frozenset({"text", "title", "url", "stdout", "stderr", "query", "message", "output", "content", "code", "data"})
_UNSAID = frozenset({*_SILENT, *_LABELS, "status", "execution", "caller", "index", "language"})


def server_tool_text(block: Opaque) -> PartText | None:
    """Return the words for a tool that a provider ran itself, or for what it gave; None for any other block.

    The words are prose: text that looks like a call teaches a model to write calls as text.
    """
    kind, data = block.kind, _unwrapped(block.data)
    if not kind.endswith(_CALLS + _RESULTS) or not isinstance(data, dict):
        return None
    omitted: list[str] = []
    name = data.get("name")
    given = data.get("input")
    if kind.endswith(_RESULTS):
        tool = kind.removesuffix("_tool_result").removesuffix("_call_output").removesuffix("_output")
        words = join_texts(_lines(data, "", "", omitted)) or "nothing to read"
        failed = data.get("is_error") is True or data.get("status") == "error"
        media = tuple(each for each in part_text(data, block.family).media if each.form == "base64")
        lost = [path for path in omitted if not path.startswith(tuple(each.at.path for each in media))]
        return PartText(f"({tool} {'failed' if failed else 'gave'}: {words})", omitted=tuple(lost), media=media)
    tool = name if isinstance(name, str) and name else kind.removesuffix("_call")
    if isinstance(given, dict):
        return PartText(f"({tool} was used with {_json(given)})")
    rest = {each: value for each, value in data.items() if each != "name"}
    words = join_texts(_lines(rest, "", "", omitted)) or "nothing to read"
    return PartText(f"({tool} was used with {words})", omitted=tuple(omitted))


def _unwrapped(data: Json) -> Json:
    """The one object that an object holds, as those of Bedrock and Gemini do."""
    if isinstance(data, dict) and len(data) == 1:
        inner = next(iter(data.values()))
        return inner if isinstance(inner, dict) else data
    return data


def _lines(value: Json, name: str, path: str, omitted: list[str], depth: int = 0) -> Iterator[str]:
    """What people can read of a value, one line for each string or number: no ids, no sealed content."""
    if isinstance(value, dict | list) and depth > _DEEPEST:
        yield _json(value)
    elif isinstance(value, dict):
        for key, each in value.items():
            if key not in _UNSAID:
                yield from _lines(each, key, _step(path, key), omitted, depth + 1)
    elif isinstance(value, list):
        for index, each in enumerate(value):
            yield from _lines(each, name, f"{path}[{index}]", omitted, depth + 1)
    elif not _says(value):
        return
    elif name.startswith("encrypted") or (isinstance(value, str) and _BASE64.fullmatch(value)):
        omitted.append(path)
    else:
        words = value if isinstance(value, str) else _json(value)
        yield words if name in _BARE else f"{name}: {words}"


# --- parts of tool results in forms that the client's dialect does not have


def read_loose_part(family: str, value: Json, at: Location, kind: str = "") -> Text | Media | Opaque:
    """Return a part of a tool result that its dialect does not know.

    It is media if it has the form of MCP's or Anthropic's, and whole for its own family if it says what it is (`kind`),
    or if its text would hold less than it does.
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
    """Return the part that stands for media which its dialect cannot read: media of another form, or words, or nothing
    that anybody can read."""
    if (media := read_any_media(family, part, at)) is not None:
        return media
    source = part.get("source")
    worded = any(_has(part, name) for name in ("text", "content")) or (isinstance(source, dict) and "content" in source)
    return Opaque(family, dict(part), kind if worded else UNREADABLE, at=at)


def missing_media_line(media: Media) -> str:
    """Return the line of text that stands for media which the target cannot take."""
    name = f" {media.name!r}" if media.name else ""
    address = f" ({media.data})" if media.form == "url" else ""
    return f"[{media.kind}{name}{address} left out: this model cannot take it]"

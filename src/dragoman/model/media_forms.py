"""The forms in which dialects, MCP and agent frameworks write media: any of them may stand in a tool result.

Tools give their results in forms of their own, whatever dialect the client speaks.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Mapping
from typing import Literal, TypeAlias

from dragoman.model.blocks import Extra, Media, Where
from dragoman.model.naming import to_keep
from dragoman.wire.jsonio import Json

How: TypeAlias = Literal["base64", "url", "text", "file"]

_KINDS: Mapping[str, Literal["image", "audio", "video"]] = {"image": "image", "audio": "audio", "video": "video"}
_SOURCES: Mapping[str, tuple[How, str]] = {
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


def read_tool_media(family: str, part: Mapping[str, Json], at: Where) -> Media | None:
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


def read_any_media(family: str, part: Mapping[str, Json], at: Where) -> Media | None:
    """Return the media in a part of any known form; None if it is no such part."""
    return (
        read_tool_media(family, part, at)
        or _openai_media(family, part, at)
        or _wrapped_media(family, part, at)
        or _framework_media(family, part, at)
    )


def _openai_media(family: str, part: Mapping[str, Json], at: Where) -> Media | None:
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


def _wrapped_media(family: str, part: Mapping[str, Json], at: Where) -> Media | None:
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


def _framework_media(family: str, part: Mapping[str, Json], at: Where) -> Media | None:
    """Media as LangChain and the AI SDK write it: the data and its type in the part itself."""
    kind = part.get("type")
    if not isinstance(kind, str) or kind not in _FILE_TYPES:
        return None
    name = _string(part.get("filename"))
    rest = _without(part, "type", "source_type", "filename", *_MIME_FIELDS, *_DATA_FIELDS)
    return _data_media(part, name, family, rest, at)


def _data_media(part: Mapping[str, Json], name: str, family: str, rest: dict[str, Json], at: Where) -> Media | None:
    mime = next((value for field in _MIME_FIELDS if isinstance(value := part.get(field), str)), "")
    data = next((value for field in _DATA_FIELDS if isinstance(value := part.get(field), str)), "")
    return _media(mime.partition("/")[0], mime, "base64", data, name, family, rest, at)


def _addressed(kind: str, url: str, name: str, family: str, rest: dict[str, Json], at: Where) -> Media | None:
    """Media by its address, which may hold the data itself."""
    if found := _DATA_URL.fullmatch(url):
        return _media(kind, found[1], "base64", found[2], name, family, rest, at)
    return _media(kind, "", "url", url, name, family, rest, at) if url.startswith(("http://", "https://")) else None


def _sourced(kind: str, source: dict[str, Json], family: str, rest: dict[str, Json], at: Where) -> Media | None:
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
    how: How,
    data: str,
    name: str,
    family: str,
    rest: dict[str, Json],
    at: Where,
) -> Media | None:
    if how == "base64" and not (mime and _is_base64(data)):
        return None
    extra = Extra(family, to_keep(rest)) if rest else None
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

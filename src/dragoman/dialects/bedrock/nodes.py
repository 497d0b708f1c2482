"""Parts that all Bedrock nodes share: the family, extra fields, cache points, vendors of models, and media. Pure."""

from __future__ import annotations

import re
from typing import Literal, TypeAlias

from msgspec import Struct, structs

from dragoman.dialects.kit.cache_marks import CLAUDE_TTLS
from dragoman.dialects.kit.values import ExtraFields, base64_bytes
from dragoman.errors import DragomanError, Unrepresentable
from dragoman.model.blocks import CacheBreakpoint, Extra, Location, Media
from dragoman.model.conversation import to_extra_names
from dragoman.wire.fields import Fields
from dragoman.wire.jsonio import Json

FAMILY = "bedrock"
AS_JSON = "~json"  # the client sent a text of a tool result as a JSON value
SUCCESS = "~status"  # the client sent the status `success`, which is the default
EXTRAS = ExtraFields(FAMILY)
_SIBLINGS = "~beside"  # fields next to an object's one member, which the service refuses


def with_sibling_fields(extra: Extra | None, outer: Fields) -> Extra | None:
    """Return the extra fields of a member together with the fields next to the member."""
    rest = outer.rest()
    return EXTRAS.extra_of({**EXTRAS.own_fields(extra), _SIBLINGS: rest}) if rest else extra


def sibling_fields(extra: Extra | None) -> dict[str, Json]:
    """Return the fields next to the member."""
    fields = EXTRAS.own_fields(extra).get(_SIBLINGS)
    return fields if isinstance(fields, dict) else {}


def take_cache_point(fields: Fields) -> CacheBreakpoint | None:
    """Return the cache breakpoint of a block that is a known cache point and has no other fields; else None."""
    point = fields.peek("cachePoint")
    if not isinstance(point, dict) or len(fields.rest()) != 1:
        return None
    if point.get("type") != "default" or point.get("ttl") not in (None, "5m", "1h"):
        return None
    rest = {name: value for name, value in point.items() if name not in ("type", "ttl")}
    return CacheBreakpoint("1h" if point.get("ttl") == "1h" else "5m", EXTRAS.extra_of(to_extra_names(rest)))


def render_cache_point(cache: CacheBreakpoint) -> dict[str, Json]:
    """Return a cache breakpoint as a block, which follows the content that is cached."""
    point: dict[str, Json] = {"type": "default"}
    if cache.ttl not in CLAUDE_TTLS:
        raise Unrepresentable(f"a cache point cannot have the lifetime {cache.ttl}; expected 5m or 1h")
    if cache.ttl != "5m":
        point["ttl"] = cache.ttl
    return {"cachePoint": EXTRAS.with_extra(point, cache.extra)}


# --- the vendors of models on this service: what each accepts, as data
#
# A model's id names its vendor, unless it is an opaque ARN. For an unknown vendor nothing is removed from requests.

CLAUDE_EFFORTS = ("low", "medium", "high", "xhigh", "max")


class Vendor(Struct, frozen=True):
    """The request fields that the models of a vendor accept."""

    name: str = ""
    reasoning: Literal["any", "signed", "unsigned", "none"] = "any"  # reasoning that a request may send back
    claude_fields: bool = True  # accepts `thinking` and `tool_choice` in additionalModelRequestFields
    effort: tuple[str, ...] = ("outputConfig", "effort")  # path of the effort; empty: not supported
    efforts: tuple[str, ...] = CLAUDE_EFFORTS
    top_k: tuple[str, ...] = ("top_k",)  # path in additionalModelRequestFields; empty: not supported
    json_results: bool = True  # reads the json member of a tool result
    cache: bool = True
    cached_tools: bool = True
    separate_results: bool = False  # a turn with tool results may hold nothing else
    prefill: bool = True
    strict_tools: bool = True
    media: tuple[str, ...] = ("image", "document", "audio", "video")


def _other(name: str, *, reasoning: Literal["unsigned", "none"] = "unsigned", separate_results: bool = False) -> Vendor:
    """Return a vendor that accepts only what all models accept."""
    return Vendor(
        name,
        reasoning,
        claude_fields=False,
        effort=(),
        efforts=(),
        top_k=(),
        cache=False,
        prefill=False,
        strict_tools=False,
        separate_results=separate_results,
    )


UNKNOWN = Vendor()
CLAUDE = Vendor("anthropic", "signed", media=("image", "document"))
NOVA = structs.replace(
    _other("amazon"),
    top_k=("inferenceConfig", "topK"),
    json_results=False,
    cache=True,
    cached_tools=False,
    prefill=True,
    media=("image", "document", "video"),
)
GPT = structs.replace(
    _other("openai"), effort=("additionalModelRequestFields", "reasoning_effort"), efforts=("low", "medium", "high")
)

# Starts of words of a model id; the first one in the id decides.
_BY_WORD: tuple[tuple[str, Vendor], ...] = (
    ("anthropic", CLAUDE),
    ("claude", CLAUDE),
    ("amazon", NOVA),
    ("nova", NOVA),
    ("deepseek", _other("deepseek", reasoning="none")),
    ("openai", GPT),
    ("gpt-oss", GPT),
    ("mistral", _other("mistral", separate_results=True)),
    ("meta", _other("meta", separate_results=True)),
    ("llama", _other("meta", separate_results=True)),
    ("cohere", _other("cohere", separate_results=True)),
    ("ai21", _other("ai21", separate_results=True)),
    ("qwen", _other("qwen")),
    ("minimax", _other("minimax")),
    ("moonshot", _other("moonshot")),
    ("zai", _other("zai")),
    ("google", _other("google")),
    ("nvidia", _other("nvidia")),
    ("writer", _other("writer")),
)
_WORDS = re.compile("|".join(rf"(?<![a-z0-9]){re.escape(word)}" for word, _ in _BY_WORD))
_VENDORS = dict(_BY_WORD)


def vendor_of(model: str, default: str = "") -> Vendor:
    """Return the vendor of the id of a foundation model or inference profile; `default` names that of an opaque id."""
    found = _WORDS.search(model.lower()) or _WORDS.search(default.lower())
    return _VENDORS[found.group()] if found else UNKNOWN


# --- media: a format name of the service is a MIME type in the canonical model, bytes are base64, S3 objects are URLs

MediaKind: TypeAlias = Literal["image", "document", "audio", "video"]

_OFFICE = "application/vnd.openxmlformats-officedocument"
MIMES: dict[MediaKind, dict[str, str]] = {
    "image": {name: f"image/{name}" for name in ("png", "jpeg", "gif", "webp")},
    "document": {
        "pdf": "application/pdf",
        "csv": "text/csv",
        "doc": "application/msword",
        "docx": f"{_OFFICE}.wordprocessingml.document",
        "xls": "application/vnd.ms-excel",
        "xlsx": f"{_OFFICE}.spreadsheetml.sheet",
        "html": "text/html",
        "txt": "text/plain",
        "md": "text/markdown",
    },
    "audio": {
        **{name: f"audio/{name}" for name in ("mp3", "opus", "wav", "aac", "flac", "mp4", "ogg", "x-aac", "m4a")},
        **{name: f"audio/{name}" for name in ("mpeg", "mpga", "pcm", "webm", "mka")},
        "mkv": "audio/x-matroska",
    },
    "video": {
        **{name: f"video/{name}" for name in ("mp4", "webm", "mpeg", "mpg")},
        "mkv": "video/x-matroska",
        "mov": "video/quicktime",
        "flv": "video/x-flv",
        "wmv": "video/x-ms-wmv",
        "three_gp": "video/3gpp",
    },
}
FORMATS: dict[MediaKind, dict[str, str]] = {
    kind: {mime: name for name, mime in names.items()} for kind, names in MIMES.items()
}
S3 = "s3://"


def parse_media(kind: MediaKind, fields: Fields, at: str) -> Media | None:
    """Read media at `at`; None for an unknown format or source, which the caller keeps as an opaque block."""
    source = fields.child("source")
    format_name = fields.text("format", None)
    if format_name is None and not source.has("text"):
        fields.text("format")
    mime = "text/plain" if format_name is None else MIMES[kind].get(format_name)
    name = fields.text("name") if kind == "document" else ""
    parsed = _source(source, kind)
    if mime is None or parsed is None:
        return None
    form, data, more = parsed
    rest = to_extra_names(fields.rest()) | ({"source": more} if more else {})
    return Media(kind, mime, form, data, name, extra=EXTRAS.extra_of(rest), at=Location(at))


def _source(source: Fields, kind: MediaKind) -> tuple[Literal["base64", "url", "text"], str, dict[str, Json]] | None:
    """Return the form of the data, the data, and the unknown fields of the source."""
    if source.has("bytes"):
        data = source.text("bytes")
        if not base64_bytes(data):
            source.fail("bytes", "expected base64")
        return "base64", data, source.rest()
    if source.has("text") and kind == "document":
        return "text", source.text("text"), source.rest()
    if source.has("s3Location"):
        place = source.child("s3Location")
        uri = place.text("uri")
        if not uri.startswith(S3):
            place.fail("uri", f"expected a URI that begins with {S3}")
        more = source.rest() | ({"s3Location": owner} if (owner := place.rest()) else {})
        return "url", uri, more
    if not source.rest():
        source.fail("", "expected bytes, text or s3Location")
    return None


def render_media(block: Media, blame: type[DragomanError]) -> dict[str, Json]:
    """Write media as the one member of its block. Raises `blame` for media that the service does not accept."""
    form = FORMATS[block.kind].get(block.mime)
    if form is None:
        raise blame(f"Bedrock has no {block.kind} of type {block.mime or 'unknown'}", at=block.at.path)
    body: dict[str, Json] = {"format": form}
    if block.kind == "document":
        if not block.name:
            raise blame("a document of Bedrock must have a name", at=block.at.path)
        body["name"] = block.name
    elif block.name:
        raise blame(f"Bedrock has no name for {block.kind}", at=block.at.path)
    body["source"] = _render_source(block, blame)
    return {block.kind: EXTRAS.with_extra(body, block.extra)}


def _render_source(block: Media, blame: type[DragomanError]) -> dict[str, Json]:
    if block.form == "base64":
        return {"bytes": block.data}
    if block.form == "url" and block.data.startswith(S3):
        return {"s3Location": {"uri": block.data}}
    if block.form == "text" and block.kind == "document":
        return {"text": block.data}
    raise blame(f"Bedrock has no {block.kind} given as {block.form}", at=block.at.path)

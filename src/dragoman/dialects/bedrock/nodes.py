"""What every node shares (its family, unknown fields, the cache point that follows it), vendors, and media."""

from __future__ import annotations

import re
from typing import Literal, TypeAlias

from msgspec import Struct, structs

from dragoman.dialects.kit.values import ExtraFields, base64_bytes
from dragoman.errors import DragomanError
from dragoman.model.blocks import CacheBreakpoint, Extra, Location, Media
from dragoman.model.conversation import to_extra_names
from dragoman.wire.fields import Fields
from dragoman.wire.jsonio import Json

FAMILY = "bedrock"
AS_JSON = "~json"  # how a text of a tool result was spelt: as a JSON value
SUCCESS = "~status"  # the client wrote the status `success`, which is the default
EXTRAS = ExtraFields(FAMILY)
_BESIDE = "~beside"  # fields that stand beside an object's one member, which the service refuses


def with_sibling_fields(kept: Extra | None, outer: Fields) -> Extra | None:
    """The fields kept, and those that stand beside the member that held them."""
    rest = outer.rest()
    return EXTRAS.extra_of({**EXTRAS.own_fields(kept), _BESIDE: rest}) if rest else kept


def sibling_fields(kept: Extra | None) -> dict[str, Json]:
    """The fields that stood beside the member."""
    fields = EXTRAS.own_fields(kept).get(_BESIDE)
    return fields if isinstance(fields, dict) else {}


def take_cache_point(fields: Fields) -> CacheBreakpoint | None:
    """The cache mark that a block stands for, if it is one and says nothing else."""
    point = fields.peek("cachePoint")
    if not isinstance(point, dict) or len(fields.rest()) != 1:
        return None
    if point.get("type") != "default" or point.get("ttl") not in (None, "5m", "1h"):
        return None
    rest = {name: value for name, value in point.items() if name not in ("type", "ttl")}
    return CacheBreakpoint("1h" if point.get("ttl") == "1h" else "5m", EXTRAS.extra_of(to_extra_names(rest)))


def render_cache_point(cache: CacheBreakpoint) -> dict[str, Json]:
    """A cache mark as the block that stands after what it marks: it is never an attribute here."""
    point: dict[str, Json] = {"type": "default"}
    if cache.ttl != "5m":
        point["ttl"] = cache.ttl
    return {"cachePoint": EXTRAS.with_extra(point, cache.extra)}


# --- what the vendors behind this one service take and refuse, as data
#
# A model's id tells its vendor, unless it is an opaque ARN: of those nothing is known, so nothing is held back.

CLAUDE_EFFORTS = ("low", "medium", "high", "xhigh", "max")


class Vendor(Struct, frozen=True):
    name: str = ""
    reasoning: Literal["any", "signed", "unsigned", "none"] = "any"  # what of it may come back
    claude_fields: bool = True  # takes `thinking` and `tool_choice` in additionalModelRequestFields
    effort: tuple[str, ...] = ("outputConfig", "effort")  # where the effort stands; empty: nowhere
    efforts: tuple[str, ...] = CLAUDE_EFFORTS
    top_k: tuple[str, ...] = ("top_k",)  # where in additionalModelRequestFields; empty: nowhere
    json_results: bool = True  # reads the json member of a tool result
    cache: bool = True
    cached_tools: bool = True
    separate_results: bool = False  # a turn with tool results may hold nothing else
    prefill: bool = True
    strict_tools: bool = True
    media: tuple[str, ...] = ("image", "document", "audio", "video")


def _other(name: str, *, reasoning: Literal["unsigned", "none"] = "unsigned", separate_results: bool = False) -> Vendor:
    """A vendor without any of the extras."""
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

# What an id holds, at the beginning of one of its words; the first that is found counts.
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


def vendor_of(model: str, otherwise: str = "") -> Vendor:
    """The vendor of a model id, foundation model or inference profile; `otherwise` names the one of an opaque id."""
    found = _WORDS.search(model.lower()) or _WORDS.search(otherwise.lower())
    return _VENDORS[found.group()] if found else UNKNOWN


# --- media, both directions: a format name here is a mime type in the model, bytes are base64, an S3 object is a URL

Kind: TypeAlias = Literal["image", "document", "audio", "video"]

_OFFICE = "application/vnd.openxmlformats-officedocument"
MIMES: dict[Kind, dict[str, str]] = {
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
FORMATS: dict[Kind, dict[str, str]] = {
    kind: {mime: name for name, mime in names.items()} for kind, names in MIMES.items()
}
S3 = "s3://"


def parse_media(kind: Kind, fields: Fields, at: str) -> Media | None:
    """Media at `at`; None if it has a format or a source that we do not know, and must stay as it came."""
    source = fields.child("source")
    said = fields.text("format", None)
    if said is None and not source.has("text"):
        fields.text("format")
    mime = "text/plain" if said is None else MIMES[kind].get(said)
    name = fields.text("name") if kind == "document" else ""
    told = _source(source, kind)
    if mime is None or told is None:
        return None
    how, data, more = told
    rest = to_extra_names(fields.rest()) | ({"source": more} if more else {})
    return Media(kind, mime, how, data, name, extra=EXTRAS.extra_of(rest), at=Location(at))


def _source(source: Fields, kind: Kind) -> tuple[Literal["base64", "url", "text"], str, dict[str, Json]] | None:
    """How the data comes, the data, and what else the source says."""
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
            place.fail("uri", f"expected one that begins with {S3}")
        more = source.rest() | ({"s3Location": owner} if (owner := place.rest()) else {})
        return "url", uri, more
    if not source.rest():
        source.fail("", "expected bytes, text or s3Location")
    return None


def render_media(block: Media, blame: type[DragomanError]) -> dict[str, Json]:
    """Media as the one member of its block. Raises `blame` for what has no place here."""
    form = FORMATS[block.kind].get(block.mime)
    if form is None:
        raise blame(f"{block.kind} of type {block.mime or 'unknown'} has no place here", at=block.at.path)
    body: dict[str, Json] = {"format": form}
    if block.kind == "document":
        if not block.name:
            raise blame("a document must have a name here", at=block.at.path)
        body["name"] = block.name
    elif block.name:
        raise blame(f"{block.kind} has no name here", at=block.at.path)
    body["source"] = _render_source(block, blame)
    return {block.kind: EXTRAS.with_extra(body, block.extra)}


def _render_source(block: Media, blame: type[DragomanError]) -> dict[str, Json]:
    if block.form == "base64":
        return {"bytes": block.data}
    if block.form == "url" and block.data.startswith(S3):
        return {"s3Location": {"uri": block.data}}
    if block.form == "text" and block.kind == "document":
        return {"text": block.data}
    raise blame(f"{block.kind} given by {block.form} has no place here", at=block.at.path)

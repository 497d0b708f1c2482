"""Media, both directions: a format name here is a mime type in the model, bytes are base64, an S3 object is a URL."""

from __future__ import annotations

from typing import Literal, TypeAlias

from dragoman.dialects.bedrock.nodes import extra_of, with_extra
from dragoman.dialects.kit.media import base64_bytes
from dragoman.errors import DragomanError
from dragoman.model.blocks import Media, Where, to_keep
from dragoman.wire.fields import Fields
from dragoman.wire.jsonio import Json

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
    rest = to_keep(fields.rest()) | ({"source": more} if more else {})
    return Media(kind, mime, how, data, name, extra=extra_of(rest), at=Where(at))


def _source(source: Fields, kind: Kind) -> tuple[Literal["base64", "url", "text"], str, dict[str, Json]] | None:
    """How the data comes, the data, and what else the source says."""
    if source.has("bytes"):
        return "base64", _base64(source), source.rest()
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


def _base64(source: Fields) -> str:
    data = source.text("bytes")
    if not base64_bytes(data):
        source.fail("bytes", "expected base64")
    return data


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
    return {block.kind: with_extra(body, block.extra)}


def _render_source(block: Media, blame: type[DragomanError]) -> dict[str, Json]:
    if block.how == "base64":
        return {"bytes": block.data}
    if block.how == "url" and block.data.startswith(S3):
        return {"s3Location": {"uri": block.data}}
    if block.how == "text" and block.kind == "document":
        return {"text": block.data}
    raise blame(f"{block.kind} given by {block.how} has no place here", at=block.at.path)

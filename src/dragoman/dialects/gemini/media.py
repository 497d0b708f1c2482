"""Media, both directions: bytes inside the part, or an address."""

from __future__ import annotations

import mimetypes
from typing import Literal

from dragoman.dialects.gemini.nodes import child, extra_of, names, with_extra
from dragoman.dialects.kit.media import base64_bytes
from dragoman.errors import DragomanError
from dragoman.model.blocks import Media, Where, to_keep
from dragoman.wire.fields import Fields
from dragoman.wire.jsonio import Json

_DATA = names("mimeType", "displayName", "fileUri")
NAMED = "~named"  # the name is the client's own displayName

_MEDIA: dict[str, Literal["image", "audio", "video"]] = {"image": "image", "audio": "audio", "video": "video"}


def parse_media(fields: Fields, name: str) -> Media:
    """The media in `inlineData` or `fileData`; what else the part says is kept beside it."""
    data = child(fields, name, _DATA)
    assert data is not None
    mime, title = data.text("mimeType", ""), data.text("displayName", "")
    how: Literal["base64", "url"] = "base64" if name == "inlineData" else "url"
    if how == "base64" and not mime:
        data.fail("mimeType", "expected the type of the data")
    content = _base64(data) if how == "base64" else data.identifier("fileUri")
    rest = to_keep(fields.rest())
    if unknown := data.rest():
        rest[name] = unknown
    if title:
        rest[NAMED] = True
    kind = (mime or mimetypes.guess_type(content)[0] or "" if how == "url" else mime).partition("/")[0].lower()
    return Media(_MEDIA.get(kind, "document"), mime, how, content, title, extra=extra_of(rest), at=Where(fields.at))


def _base64(fields: Fields) -> str:
    data = fields.identifier("data")
    plain = data.replace("-", "+").replace("_", "/")  # protobuf reads both alphabets, padded or not
    plain += "=" * (-len(plain) % 4)
    if base64_bytes(plain) is None:
        fields.fail("data", "expected base64")
    return plain


def render_media(block: Media, blame: type[DragomanError]) -> dict[str, Json]:
    if block.how not in ("base64", "url"):
        raise blame(f"{block.kind} given by {block.how} has no place here", at=block.at.path)
    body: dict[str, Json] = {"mimeType": block.mime} if block.mime else {}
    body["data" if block.how == "base64" else "fileUri"] = block.data
    if block.name:
        body["displayName"] = block.name
    return with_extra({"inlineData" if block.how == "base64" else "fileData": body}, block.extra)

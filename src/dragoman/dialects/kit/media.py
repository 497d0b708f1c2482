"""Media in requests: base64, and the types of files by the ends of their names."""

from __future__ import annotations

import binascii
import re

from dragoman.model.blocks import Media, Where
from dragoman.wire.fields import Fields

_URL = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*:\S")
FILE_TYPES = {
    "pdf": "application/pdf",
    "txt": "text/plain",
    "md": "text/markdown",
    "csv": "text/csv",
    "html": "text/html",
    "json": "application/json",
}


_BY_FIRST_BYTES = ((b"\x89PNG", "image/png"), (b"\xff\xd8\xff", "image/jpeg"), (b"GIF8", "image/gif"))
_BY_RIFF = {b"WEBP": "image/webp", b"WAVE": "audio/wav"}


def media_type(data: str) -> str:
    """Return the type of what is in base64, by its first bytes. Empty if it is unknown."""
    head = base64_bytes(data[:16]) or b""
    if head.startswith(b"RIFF"):
        return _BY_RIFF.get(head[8:12], "")
    return next((mime for begin, mime in _BY_FIRST_BYTES if head.startswith(begin)), "")


def untyped_media(data: str, at: Where) -> Media:
    """Return media that comes without kind and type: what is no audio counts as an image."""
    mime = media_type(data)
    return Media("audio" if mime.startswith("audio/") else "image", mime, "base64", data, at=at)


def is_url(text: str) -> bool:
    """Tell whether a text begins like an address."""
    return _URL.match(text) is not None


def base64_bytes(data: str) -> bytes | None:
    """Return the bytes of plain base64 with its padding, or None if the text is something else."""
    try:
        return binascii.a2b_base64(data.encode("ascii"), strict_mode=True)
    except ValueError:
        return None


def base64_text(fields: Fields, name: str, data: str) -> str:
    """Return the data of a field if it is base64 of at least one byte. Raises the fields' error otherwise."""
    if not base64_bytes(data):
        fields.fail(name, "expected base64 data")
    return data

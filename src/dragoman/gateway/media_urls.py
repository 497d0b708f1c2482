"""Check the URLs of images, documents and other media in a request, because the upstream fetches them. Pure.

The setting `server.media_urls` says which URLs are allowed. Its default, `web`, allows http and https, except link-
local addresses and the metadata services of clouds, however their IP addresses are written. Names are not resolved:
the upstream does that. A `data:` URL is content and always allowed. `gs://` and `files/` (Gemini) and `s3://`
(Bedrock) name objects in the client's own cloud, so `web` allows them for clients of these dialects.
"""

from __future__ import annotations

import ipaddress
import re
import unicodedata
from collections.abc import Iterable, Iterator
from typing import Literal, TypeAlias
from urllib.parse import unquote

from dragoman.errors import MalformedRequest
from dragoman.http.addresses import is_metadata
from dragoman.model.blocks import Extra, Media, Opaque
from dragoman.wire.jsonio import Json

MediaUrls: TypeAlias = Literal["web", "any", "none"]

_CLOUD_PREFIXES = {"gemini": ("gs://", "files/"), "bedrock": ("s3://",)}
_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*):", re.IGNORECASE)
_DROPPED = re.compile(r"[\t\r\n]")  # URL parsers drop these characters everywhere
_EDGES = "".join(map(chr, range(0x21)))  # URL parsers strip these characters
_END = re.compile(r"[/?#]")
_NUMBER = re.compile(r"0x[0-9a-f]*|\d+", re.ASCII)
_NAMES = frozenset(
    {"metadata", "metadata.google.internal", "metadata.goog", "metadata.tencentyun.com", "metadata.azure.internal"}
    | {"instance-data", "instance-data.ec2.internal"}
)
# Fields of an unknown part that may contain media; other fields (tool results, inputs) contain data.
_MEDIA_FIELDS = (
    "content",
    "parts",
    "source",
    "image",
    "document",
    "audio",
    "video",
    "file",
    "prompt",
    "variables",
    "output",
)
_MAX_DEPTH = 16


def check_media_urls(
    nodes: Iterable[Media | Opaque], extra: Extra | None, family: str, allowed: Literal["web", "none"]
) -> None:
    """Raise MalformedRequest if a URL in the parts or the extra fields of a request is not allowed.

    `family` is that of the client's dialect.
    """
    for node in nodes:
        for url in _addresses(node):
            _check(url, node.at.path, family, allowed)
    for name, value in extra.fields.items() if extra is not None else ():
        for url in _in_part({name: value}) if name in _MEDIA_FIELDS else ():
            _check(url, name, family, allowed)


def _check(url: str, at: str, family: str, allowed: MediaUrls) -> None:
    problem = (
        url_problem(url, family)
        if allowed == "web"
        else ""
        if _is_content(url)
        else "media URLs are not allowed; send the content itself"
    )
    if problem:
        raise MalformedRequest(f"{problem} (setting server.media_urls = {allowed!r} of this gateway)", at=at)


def _addresses(node: Media | Opaque) -> Iterator[str]:
    if isinstance(node, Opaque):
        yield from _in_part(node.data)
        return
    if node.form == "url":
        yield node.data
    if node.extra is not None:
        yield from _in_part(dict(node.extra.fields))


def _in_part(value: Json, depth: int = 0) -> Iterator[str]:
    """Yield the URLs in a part that no codec reads: `…_url`, the `url` of a source, `fileUri`."""
    if depth > _MAX_DEPTH:
        return
    if isinstance(value, list):
        for item in value:
            yield from _in_part(item, depth + 1)
    if not isinstance(value, dict):
        return
    for name, item in value.items():
        inner = item if isinstance(item, dict) else {}
        if name.endswith("_url"):
            yield from _texts(item, inner.get("url"))
        elif name in ("fileData", "file_data"):
            yield from _texts(inner.get("fileUri"), inner.get("file_uri"))
        elif name == "source" and inner.get("type", "url") == "url":
            yield from _texts(inner.get("url"))
        if name in ("prompt", "variables"):
            for each in inner.values():
                yield from _in_part(each, depth + 1)
        elif name in _MEDIA_FIELDS:
            yield from _in_part(item, depth + 1)


def _texts(*values: Json) -> Iterator[str]:
    return (value for value in values if isinstance(value, str))


# --- one URL


def url_problem(url: str, family: str = "") -> str:
    """Return why a media URL is not allowed; empty if it is allowed. `family` is that of the client's dialect."""
    plain = _DROPPED.sub("", url.strip(_EDGES))
    if _is_content(plain) or plain.startswith(_CLOUD_PREFIXES.get(family, ())):
        return ""
    found = _SCHEME.match(plain)
    scheme = found[1].lower() if found else ""
    if scheme not in ("http", "https"):
        kind = f"{scheme}: URLs" if scheme else "URLs without https:// or http://"
        return f"{kind} are not allowed for media"
    if any(_is_forbidden(host) for host in _hosts(plain[len(scheme) + 1 :])):
        return "URLs of link-local addresses and of metadata services are not allowed for media"
    return ""


def _is_content(url: str) -> bool:
    return url[:5].lower() == "data:"


def _hosts(rest: str) -> Iterator[str]:
    """Yield every text that a URL parser may take for the host: browsers end it at a backslash, others do not."""
    for text in (rest, rest.replace("\\", "/")):
        authority = _END.split(text.lstrip("/\\"), maxsplit=1)[0]
        for piece in authority.split("@"):
            yield _host(piece)


def _host(piece: str) -> str:
    """Return the host of an authority without its port, normalized as a resolver does."""
    text = unicodedata.normalize("NFKC", unquote(piece)).replace("。", ".").strip().lower()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0].rstrip(".") if text.count(":") < 2 else text


def _is_forbidden(host: str) -> bool:
    if host in _NAMES:
        return True
    try:
        address = ipaddress.IPv6Address(host.partition("%")[0]) if ":" in host else _ipv4(host)
    except ValueError:
        return False
    return address is not None and is_metadata(address)


def _ipv4(host: str) -> ipaddress.IPv4Address | None:
    """Parse an IPv4 address in any notation that `inet_aton` reads: one to four numbers, decimal, octal or hex."""
    parts = host.split(".")
    if not 1 <= len(parts) <= 4 or not all(_NUMBER.fullmatch(part) and len(part) < 40 for part in parts):
        return None
    *first, last = (_number(part) for part in parts)
    limit = 256 ** (4 - len(first))
    value = last % limit  # Some parsers drop the excess bits.
    for position, each in enumerate(first):
        value += (each % 256) * 256 ** (3 - position)
    return ipaddress.IPv4Address(value)


def _number(text: str) -> int:
    if text.startswith("0x"):
        return int(text[2:] or "0", 16)
    octal = text.startswith("0") and len(text) > 1 and not set(text) & set("89")
    return int(text, 8 if octal else 10)

"""Which addresses of images, documents and other media a request may hand to an upstream, which fetches them. Pure.

The default `web` takes http and https, except link-local addresses and the metadata services of clouds, in every
spelling of their IP addresses. Names are not looked up: the upstream does that. A `data:` URL is content, no address.
`gs://` and `files/` of Gemini clients and `s3://` of Bedrock clients name objects in the client's own cloud and are
fields of these dialects, so `web` takes them from these clients.
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

_OWN = {"gemini": ("gs://", "files/"), "bedrock": ("s3://",)}
_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*):", re.IGNORECASE)
_DROPPED = re.compile(r"[\t\r\n]")  # URL parsers drop these wherever they stand
_EDGES = "".join(map(chr, range(0x21)))
_END = re.compile(r"[/?#]")
_NUMBER = re.compile(r"0x[0-9a-f]*|\d+", re.ASCII)
_NAMES = frozenset(
    {"metadata", "metadata.google.internal", "metadata.goog", "metadata.tencentyun.com", "metadata.azure.internal"}
    | {"instance-data", "instance-data.ec2.internal"}
)
# Members of a part that no codec knows which may hold media; others (tool results, inputs) hold data.
_INSIDE = ("content", "parts", "source", "image", "document", "audio", "video", "file", "prompt", "variables", "output")
_DEEPEST = 16


def check_media_urls(
    nodes: Iterable[Media | Opaque], extra: Extra | None, family: str, allowed: Literal["web", "none"]
) -> None:
    """Raise MalformedRequest for an address in the parts or the extra fields of a request that may not be handed on.

    `family` is the client's.
    """
    for node in nodes:
        for url in _addresses(node):
            _check(url, node.at.path, family, allowed)
    for name, value in extra.fields.items() if extra is not None else ():
        for url in _in_part({name: value}) if name in _INSIDE else ():
            _check(url, name, family, allowed)


def _check(url: str, at: str, family: str, allowed: MediaUrls) -> None:
    problem = (
        url_problem(url, family) if allowed == "web" else "" if _is_content(url) else "addresses are not passed on"
    )
    if problem:
        raise MalformedRequest(f"{problem} (server.media_urls = {allowed!r} of this gateway)", at=at)


def _addresses(node: Media | Opaque) -> Iterator[str]:
    if isinstance(node, Opaque):
        yield from _in_part(node.data)
        return
    if node.form == "url":
        yield node.data
    if node.extra is not None:
        yield from _in_part(dict(node.extra.fields))


def _in_part(value: Json, depth: int = 0) -> Iterator[str]:
    """The addresses in a part that only its family can read: `…_url`, the `url` of a source, `fileUri`."""
    if depth > _DEEPEST:
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
        elif name in _INSIDE:
            yield from _in_part(item, depth + 1)


def _texts(*values: Json) -> Iterator[str]:
    return (value for value in values if isinstance(value, str))


# --- one address


def url_problem(url: str, family: str = "") -> str:
    """Say why an address is no ordinary one of the web; empty if it is."""
    plain = _DROPPED.sub("", url.strip(_EDGES))
    if _is_content(plain) or plain.startswith(_OWN.get(family, ())):
        return ""
    found = _SCHEME.match(plain)
    scheme = found[1].lower() if found else ""
    if scheme not in ("http", "https"):
        what = f"{scheme}: addresses" if scheme else "addresses without https:// or http://"
        return f"{what} are not passed on"
    if any(_is_forbidden(host) for host in _hosts(plain[len(scheme) + 1 :])):
        return "link-local addresses and those of metadata services are not passed on"
    return ""


def _is_content(url: str) -> bool:
    return url[:5].lower() == "data:"


def _hosts(rest: str) -> Iterator[str]:
    """All that a reader may take for the host: those of browsers end it at a backslash, others do not."""
    for text in (rest, rest.replace("\\", "/")):
        authority = _END.split(text.lstrip("/\\"), maxsplit=1)[0]
        for piece in authority.split("@"):
            yield _host(piece)


def _host(piece: str) -> str:
    """The host of an authority without its port, as the reader of the name sees it."""
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
    """An IPv4 address in any spelling that `inet_aton` reads: one to four numbers, each decimal, octal or hex."""
    parts = host.split(".")
    if not 1 <= len(parts) <= 4 or not all(_NUMBER.fullmatch(part) and len(part) < 40 for part in parts):
        return None
    *first, last = (_number(part) for part in parts)
    room = 256 ** (4 - len(first))
    value = last % room  # some readers drop what is too much
    for position, each in enumerate(first):
        value += (each % 256) * 256 ** (3 - position)
    return ipaddress.IPv4Address(value)


def _number(text: str) -> int:
    if text.startswith("0x"):
        return int(text[2:] or "0", 16)
    octal = text.startswith("0") and len(text) > 1 and not set(text) & set("89")
    return int(text, 8 if octal else 10)

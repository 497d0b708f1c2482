"""What a request must look like before anybody thinks about it: whom it names, where it comes from, its head. Pure.

The HTTP parser lets pass what it should not (two Hosts, a transfer encoding that nobody decodes), and a web page may
point its own name at loopback: so all of it is checked here, for whichever server carries the request.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection
from urllib.parse import urlsplit

from dragoman.errors import Fault
from dragoman.http.addresses import is_loopback
from dragoman.http.framing import LONGEST_HEAD, LONGEST_TARGET, MOST_HEADERS
from dragoman.wire.http import HttpRequest

_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::\d{1,5})?", re.ASCII)
_ODD = re.compile(r"[^\x21-\x7e]")  # in a target
_ONCE = ("host", "content-length", "transfer-encoding", "origin", "content-encoding", "expect", "upgrade")
_READ = frozenset({*_ONCE, "sec-fetch-site"})
_OWN_SITE = ("", "none", "same-origin")  # of Sec-Fetch-Site: an address typed in, or a page of this server
_DEFAULT_PORTS = {"http": 80, "https": 443}
_MOST_NAMES = 64  # spellings of our own names that are remembered

TOO_MANY_HEADERS = Fault("invalid", "the request has too many or too long headers", 431)
TOO_LONG_TARGET = Fault("invalid", "the request's address is too long", 414)
WEBSOCKET_OFFERED = Fault("invalid", "WebSockets are not offered here: send POST /v1/responses over HTTP/1.1", 426)
_OTHER_SITES = Fault("permission", "requests from web pages of other sites are not served", 403)


class Guard:
    """Knows the names of this server. Without `hosts` only loopback's; on other addresses any IP address is one too."""

    def __init__(self, host: str, hosts: Collection[str] = ()) -> None:
        own = () if _is_address(host) and ipaddress.ip_address(host).is_unspecified else (host.lower(),)
        self._names = {"localhost", *own, *(name.lower() for name in hosts)}
        self._beyond_loopback = not is_loopback(host)
        self._seen: set[str] = set()

    def refusal(self, request: HttpRequest, *, target: str = "", version: str = "1.1") -> Fault | None:
        """Why this request is not served, or None. `target` is what the request line named, as it stood there."""
        size, said = 0, {}
        for name, value in request.headers:
            size += len(name) + len(value)
            if name in _READ:
                if name in said and name in _ONCE:
                    return Fault("invalid", f"the header {name} stands in the request twice", 400)
                said[name] = value
        if len(request.headers) > MOST_HEADERS or size > LONGEST_HEAD:
            return TOO_MANY_HEADERS
        return (
            _bad_line(request, target or request.path)
            or _bad_framing(said, version)
            or (upgrade_refusal(request, said["upgrade"]) if "upgrade" in said else None)
            or self._bad_host(said.get("host"))
            or self._bad_origin(said)
        )

    def _bad_host(self, given: str | None) -> Fault | None:
        if given in self._seen:
            return None
        found = _HOST.fullmatch(given) if given else None
        if given is None or found is None:
            return Fault("invalid", "expected one Host header with a name and a port", 400)
        if not self._knows(found[1]):
            message = f"this server is not {found[1]}; server.hosts in the configuration names further ones"
            return Fault("invalid", message, 421)
        if len(self._seen) < _MOST_NAMES:
            self._seen.add(given)
        return None

    def _bad_origin(self, said: dict[str, str]) -> Fault | None:
        """Refuse a web page of another site, key or not."""
        if said.get("sec-fetch-site", "").strip().lower() not in _OWN_SITE:
            return _OTHER_SITES
        origin = said.get("origin")
        if not origin or self._is_own_origin(origin, said.get("host", "")):
            return None
        return _OTHER_SITES

    def _is_own_origin(self, origin: str, host: str) -> bool:
        """Whether a page of this origin is ours: one of our names, or exactly the server that the Host names.

        Beyond loopback any address passes as a Host, but a page of any address is not ours.
        """
        try:
            page = urlsplit(origin)
            own = urlsplit(f"{page.scheme}://{host}")
            default = _DEFAULT_PORTS.get(page.scheme)
            if page.hostname and (page.hostname, page.port or default) == (own.hostname, own.port or default):
                return True
            return self._is_named(page.hostname or "")
        except ValueError:
            return False

    def _knows(self, name: str) -> bool:
        return self._is_named(name) or (self._beyond_loopback and _is_address(_plain(name)))

    def _is_named(self, name: str) -> bool:
        return _plain(name) in self._names or is_loopback(_plain(name))


def _bad_line(request: HttpRequest, target: str) -> Fault | None:
    """A target is a path: with a host in it, it could contradict the Host header; nothing is tunnelled or traced."""
    if len(target) > LONGEST_TARGET or len(request.path) + len(request.query) > LONGEST_TARGET:
        return TOO_LONG_TARGET
    if request.method in ("CONNECT", "TRACE"):
        return Fault("invalid", f"{request.method} is not served", 405)
    if not target.startswith("/") or "#" in target or _ODD.search(target):
        return Fault("invalid", "the request's target must be a path", 400)
    return None


def _bad_framing(said: dict[str, str], version: str) -> Fault | None:
    """What leaves a doubt about where a body ends."""
    encoding = said.get("transfer-encoding")
    if encoding is not None:
        if encoding.lower() != "chunked":
            return Fault("invalid", "the only transfer encoding taken is chunked", 400)
        if "content-length" in said:
            return Fault("invalid", "a content length beside a transfer encoding is not taken", 400)
        if version != "1.1":
            return Fault("invalid", f"HTTP/{version} has no transfer encodings", 400)
    if version not in ("1.1", "1.0"):
        return Fault("invalid", f"HTTP/{version} is not spoken here", 505)
    if said.get("content-encoding", "identity").lower() != "identity":
        return Fault("invalid", "a compressed body is not taken", 415)
    if said.get("expect", "100-continue").lower() != "100-continue":
        return Fault("invalid", "the only expectation met is 100-continue", 417)
    return None


def upgrade_refusal(request: HttpRequest, upgrade: str) -> Fault:
    """Codex offers a WebSocket for Responses first. Only a 426 makes it use HTTP at once: 400 ends it."""
    offered = {each.strip().lower() for each in upgrade.split(",")}
    if request.method == "GET" and request.path.rstrip("/").endswith("/responses") and "websocket" in offered:
        return WEBSOCKET_OFFERED
    return Fault("invalid", "only HTTP/1.1 is spoken here: a client must not offer an upgrade", 400)


def _plain(name: str) -> str:
    return name.strip("[]").lower().rstrip(".")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True

"""What a request must look like before anybody thinks about it: whom it names, where it comes from, its head. Pure.

The HTTP parser lets pass what it should not (two Hosts, a transfer encoding that nobody decodes), and a web page may
point its own name at loopback: so the names are checked here, on every route but the probes.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection
from urllib.parse import urlsplit

from dragoman.errors import Fault
from dragoman.wire.http import HttpRequest

_MOST_HEADERS = 100
_LONGEST_HEAD = 64 * 1024
_LONGEST_TARGET = 8 * 1024
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::\d{1,5})?", re.ASCII)


class Guard:
    """Knows the names of this server. Without `hosts` only loopback's; on other addresses any IP address is one too."""

    def __init__(self, host: str, hosts: Collection[str] = ()) -> None:
        self._names = {"localhost", host.lower(), *(name.lower() for name in hosts)}
        self._beyond_loopback = not _is_loopback(host)

    def refusal(self, request: HttpRequest) -> Fault | None:
        """Why this request is not served, or None."""
        return self._bad_head(request) or self._bad_host(request) or self._bad_origin(request)

    def _bad_head(self, request: HttpRequest) -> Fault | None:
        size = sum(len(name) + len(value) for name, value in request.headers)
        if len(request.headers) > _MOST_HEADERS or size > _LONGEST_HEAD:
            return Fault("invalid", "the request has too many or too long headers", 431)
        if len(request.path) + len(request.query) > _LONGEST_TARGET:
            return Fault("invalid", "the request's address is too long", 414)
        if request.header("transfer-encoding", "chunked").lower() != "chunked":
            return Fault("invalid", "the only transfer encoding taken is chunked", 400)
        if request.header("content-encoding", "identity").lower() != "identity":
            return Fault("invalid", "a compressed body is not taken", 415)
        return None

    def _bad_host(self, request: HttpRequest) -> Fault | None:
        given = [value for name, value in request.headers if name == "host"]
        found = _HOST.fullmatch(given[0]) if len(given) == 1 else None
        if found is None:
            return Fault("invalid", "expected one Host header with a name and a port", 400)
        if not self._knows(found[1]):
            message = f"this server is not {found[1]}; server.hosts in the configuration names further ones"
            return Fault("invalid", message, 421)
        return None

    def _bad_origin(self, request: HttpRequest) -> Fault | None:
        """A web page of another site has no business here, key or not."""
        origin = request.header("origin")
        if origin:
            try:
                known = self._knows(urlsplit(origin).hostname or "")
            except ValueError:
                known = False
            if not known:
                return Fault("permission", "requests from web pages of other sites are not served", 403)
        elif request.header("sec-fetch-site") in ("cross-site", "same-site"):
            return Fault("permission", "requests from web pages of other sites are not served", 403)
        return None

    def _knows(self, name: str) -> bool:
        name = name.strip("[]").lower().rstrip(".")
        if name in self._names or _is_loopback(name):
            return True
        return self._beyond_loopback and _is_address(name)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _is_loopback(name: str) -> bool:
    return name == "localhost" or (_is_address(name) and ipaddress.ip_address(name).is_loopback)

"""HTTP messages as plain values. Header names are lower case; nothing here opens a socket."""

from __future__ import annotations

from typing import TypeAlias
from urllib.parse import parse_qsl

from msgspec import Struct

Headers: TypeAlias = tuple[tuple[str, str], ...]


def _look_up(headers: Headers, name: str, default: str) -> str:
    wanted = name.lower()
    for key, value in headers:
        if key == wanted:
            return value
    return default


class HttpRequest(Struct, frozen=True):
    """A request; `path` is still percent-encoded, `query` is what follows the question mark."""

    method: str
    path: str
    query: str = ""
    headers: Headers = ()
    body: bytes = b""

    def header(self, name: str, default: str = "") -> str:
        """Give the first header of that name, whatever the case of `name`."""
        return _look_up(self.headers, name, default)

    def parameter(self, name: str, default: str = "") -> str:
        """Give the first query parameter of that name, decoded."""
        for key, value in parse_qsl(self.query, keep_blank_values=True):
            if key == name:
                return value
        return default


class HttpResponse(Struct, frozen=True):
    """A whole response, or the head of a streamed one (then `body` is empty)."""

    status: int
    headers: Headers = ()
    body: bytes = b""

    def header(self, name: str, default: str = "") -> str:
        """Give the first header of that name, whatever the case of `name`."""
        return _look_up(self.headers, name, default)

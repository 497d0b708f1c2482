"""HTTP messages as plain values. Header names are lower case; nothing here opens a socket."""

from __future__ import annotations

import math
import re
from functools import cached_property
from time import time
from typing import TypeAlias
from urllib.parse import parse_qsl, unquote

from msgspec import Struct

from dragoman.errors import MalformedRequest
from dragoman.wire import jsonio
from dragoman.wire.jsonio import Json

Headers: TypeAlias = tuple[tuple[str, str], ...]


_MEMORABLE, _REMEMBERED = 160, 512  # bytes of a field, and how many: who sends others does not fill our memory


class _HeaderFields(dict[tuple[bytes, bytes], tuple[str, str]]):
    """Header fields by the bytes in which they came. Most have come before, word for word: those are remembered."""

    def __missing__(self, field: tuple[bytes, bytes]) -> tuple[str, str]:
        name, value = field
        parsed = name.decode("latin-1").lower(), value.decode("latin-1").rstrip()
        if len(name) + len(value) <= _MEMORABLE:
            if len(self) >= _REMEMBERED:
                self.clear()
            self[field] = parsed
        return parsed


HEADER_FIELDS = _HeaderFields()


def _header(self: HttpRequest | HttpResponse, name: str, default: str = "") -> str:
    """Give the first header of that name, whatever the case of `name`."""
    wanted = name.lower()
    for key, value in self.headers:
        if key == wanted:
            return value
    return default


class HttpRequest(Struct, frozen=True, dict=True):
    """A request; `path` is still percent-encoded, `query` is what follows the question mark."""

    method: str
    path: str
    query: str = ""
    headers: Headers = ()
    body: bytes = b""
    header = _header

    @cached_property
    def document(self) -> Json:
        """The body as JSON, which is read once and kept; a copy of the request does not have it. Raises JsonError."""
        return jsonio.decode(self.body)

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
    header = _header

    @property
    def retry_after(self) -> float | None:
        """Seconds to wait, from a number of them or from a date, which counts from the response's own."""
        said = self.header("retry-after")
        try:
            seconds = float(said)
        except ValueError:
            until, now = _moment(said), _moment(self.header("date"))
            if until is None:
                return None
            seconds = until - (time() if now is None else now)
        return max(seconds, 0.0) if math.isfinite(seconds) else None


def _moment(date: str) -> float | None:
    from email.utils import parsedate_to_datetime  # noqa: PLC0415  slow to load, and few say a date

    try:
        return parsedate_to_datetime(date).timestamp()
    except (ValueError, TypeError, IndexError, OverflowError):
        return None


# --- Names that become part of a request's path: which of them would make it lead elsewhere. Pure


_MOST_DECODED = 4  # times that a name may be percent-encoded
_FORBIDDEN = re.compile(r"[\\?#\x00-\x1f\x7f-\x9f]")


def has_dot_segment(path: str) -> bool:
    """Whether a path has a segment `.` or `..`, however it is encoded, or is encoded too often to be decoded."""
    for _ in range(_MOST_DECODED):
        if any(segment.partition(";")[0] in (".", "..") for segment in path.replace("\\", "/").split("/")):
            return True
        decoded = unquote(path)
        if decoded == path:
            return False
        path = decoded
    return True


def check_path_name(name: str) -> str:
    """A model's name that is to stand in a path, or stood in one. Raises MalformedRequest."""
    if problem := name_problem(name):
        raise MalformedRequest(f"{name[:80]!r} cannot be a model's name: {problem}", at="model")
    return name


def name_problem(name: str) -> str:
    """Say why a name must not stand in a path; empty if it may. Slashes inside a name are allowed."""
    if has_dot_segment(name):
        return "it has a segment `.` or `..`, which makes a path lead elsewhere"
    for _ in range(_MOST_DECODED):
        if found := _FORBIDDEN.search(name):
            return f"it has the character {found[0]!r}, which no path may have"
        if name and "" in name.split("/"):
            return "it has an empty segment"
        decoded = unquote(name)
        if decoded == name:
            break
        name = decoded
    return ""

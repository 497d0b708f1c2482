"""HTTP messages as plain values, and checks of names that become part of a path. Pure: no I/O.

Header names are lower case.
"""

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


_MAX_CACHED_BYTES, _MAX_CACHED = 160, 512  # of one header field, and fields: the cache stays small


class _HeaderFields(dict[tuple[bytes, bytes], tuple[str, str]]):
    """A cache of decoded header fields by their bytes: most fields are the same in every request."""

    def __missing__(self, field: tuple[bytes, bytes]) -> tuple[str, str]:
        name, value = field
        parsed = name.decode("latin-1").lower(), value.decode("latin-1").rstrip()
        if len(name) + len(value) <= _MAX_CACHED_BYTES:
            if len(self) >= _MAX_CACHED:
                self.clear()
            self[field] = parsed
        return parsed


HEADER_FIELDS = _HeaderFields()


def _header(self: HttpRequest | HttpResponse, name: str, default: str = "") -> str:
    """Return the value of the first header of that name; case does not matter."""
    wanted = name.lower()
    for key, value in self.headers:
        if key == wanted:
            return value
    return default


class HttpRequest(Struct, frozen=True, dict=True):
    """A request. `path` is percent-encoded; `query` is the part after the question mark."""

    method: str
    path: str
    query: str = ""
    headers: Headers = ()
    body: bytes = b""
    header = _header

    @cached_property
    def document(self) -> Json:
        """The decoded JSON body, cached; a copy of the request decodes again. Raises JsonError."""
        return jsonio.decode(self.body)

    def parameter(self, name: str, default: str = "") -> str:
        """Return the first query parameter of that name, decoded."""
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
        """The seconds of Retry-After, which has a number or a date; a date is compared with the Date header."""
        value = self.header("retry-after")
        try:
            seconds = float(value)
        except ValueError:
            until, now = _parse_date(value), _parse_date(self.header("date"))
            if until is None:
                return None
            seconds = until - (time() if now is None else now)
        return max(seconds, 0.0) if math.isfinite(seconds) else None


def _parse_date(date: str) -> float | None:
    from email.utils import parsedate_to_datetime  # noqa: PLC0415  slow to import, and dates are rare

    try:
        return parsedate_to_datetime(date).timestamp()
    except (ValueError, TypeError, IndexError, OverflowError):
        return None


# --- names that become part of a path: those that would change the path are refused


_MAX_DECODING = 4  # times that a name may be percent-encoded
_FORBIDDEN = re.compile(r"[\\?#\x00-\x1f\x7f-\x9f]")


def has_dot_segment(path: str) -> bool:
    """Return whether a path has a segment `.` or `..` in any encoding, or is percent-encoded too many times."""
    for _ in range(_MAX_DECODING):
        if any(segment.partition(";")[0] in (".", "..") for segment in path.replace("\\", "/").split("/")):
            return True
        decoded = unquote(path)
        if decoded == path:
            return False
        path = decoded
    return True


def check_path_name(name: str) -> str:
    """Return the name of a model if it may be part of a path. Raises MalformedRequest."""
    if problem := name_problem(name):
        raise MalformedRequest(f"{name[:80]!r} cannot be the name of a model: {problem}", at="model")
    return name


def name_problem(name: str) -> str:
    """Return why a name must not be part of a path; "" if it may. Slashes inside a name are allowed."""
    if has_dot_segment(name):
        return "it has a segment `.` or `..`, which would change the path"
    for _ in range(_MAX_DECODING):
        if found := _FORBIDDEN.search(name):
            return f"it has the character {found[0]!r}, which is not allowed in a path"
        if name and "" in name.split("/"):
            return "it has an empty segment"
        decoded = unquote(name)
        if decoded == name:
            break
        name = decoded
    return ""

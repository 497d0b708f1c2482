"""A request that comes whole in one read, with a head that came before but for the length of its body: most do.

Such a head needs no parser. It is, byte for byte, one that the parser took; only the digits of its one content length
differ, and they are as many bytes as follow it. Whatever is not just that is the parser's.
"""

from __future__ import annotations

import re

from msgspec import Struct

from dragoman.wire.http import Headers, HttpRequest

_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*(\d{1,9})[ \t]*(?=\r\n)", re.IGNORECASE)
_MOST_DIGITS = 9
_LONGEST = 4096  # bytes of a head that is remembered


class Mould(Struct, frozen=True, eq=False):
    """A head without its length: the bytes before and behind it, and what the parser made of it."""

    before: bytes
    after: bytes
    target: str
    like: HttpRequest
    ahead: Headers  # of the length
    behind: Headers

    def fill(self, data: bytes) -> HttpRequest | None:
        """The request that these bytes are; None if they are not one of this mould, whole and nothing more."""
        start = len(self.before)
        if not data.startswith(self.before):
            return None
        end = data.find(b"\r", start, start + _MOST_DIGITS + 1)
        digits, body = data[start:end], data[end + len(self.after) :]
        if not digits.isdigit() or not data.startswith(self.after, end) or int(digits) != len(body):
            return None
        like, length = self.like, ("content-length", digits.decode())
        return HttpRequest(like.method, like.path, like.query, (*self.ahead, length, *self.behind), body)


def mould_of(data: bytes, request: HttpRequest, target: str) -> Mould | None:
    """What these bytes, which the parser took for this one request, are a mould of; None if it must see each anew."""
    size = data.find(b"\r\n\r\n") + 4
    lengths = list(_LENGTH.finditer(data, 0, size))
    names = [name for name, _ in request.headers]
    if len(lengths) != 1 or names.count("content-length") != 1 or "expect" in names or not 4 <= size <= _LONGEST:
        return None
    start, end = lengths[0].span(1)
    if len(data) - size != int(data[start:end]):
        return None
    at = names.index("content-length")
    ahead, behind = request.headers[:at], request.headers[at + 1 :]
    return Mould(data[:start], data[end:size], target, request, ahead, behind)

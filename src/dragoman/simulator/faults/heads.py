"""Faults of HTTP: statuses instead of an answer, heads that are wrong or long, lengths that are not the body's."""

from __future__ import annotations

import gzip
from typing import Literal

from dragoman.http.framing import response_head
from dragoman.simulator.faults.answer import Answer, Fault, Pieces, pieces_of
from dragoman.simulator.pieces import Break
from dragoman.wire.http import HttpRequest

_BLANKS = 8 * 1024 * 1024
_PAGES = {
    "json": ("application/json", b'{"error":{"message":"no, says the proxy","type":"proxy_error"}}'),
    "html": ("text/html", b"<!DOCTYPE html><html><title>Bad day</title><body>cf-ray: 1</body></html>"),
    "text": ("text/plain", b"upstream connect error or disconnect/reset before headers"),
    "junk": ("application/json", b"\x00\xff\x1f\x8b not json {"),
    "empty": ("", b""),
}


class Status(Fault, frozen=True, kw_only=True):
    """A refusal in place of an answer."""

    code: int
    body: Literal["json", "html", "text", "junk", "empty"] = "json"
    retry_after: str = ""
    location: str = ""

    def instead(self, request: HttpRequest, number: int) -> Answer | None:
        kind, page = _PAGES[self.body]
        given = (("content-type", kind), ("retry-after", self.retry_after), ("location", self.location))
        headers = tuple((name, value) for name, value in given if value)
        return Answer(self.code, headers, pieces_of(page), "length")


class Header(Fault, frozen=True, kw_only=True):
    """One header says something else; without a value it is left out. `pad` makes it long."""

    name: str
    value: str = ""
    pad: int = 0

    def answer(self, answer: Answer) -> Answer:
        kept = tuple((name, value) for name, value in answer.headers if name != self.name.lower())
        value = self.value + "x" * self.pad
        answer.headers = (*kept, (self.name.lower(), value)) if value else kept
        return answer


class Informed(Fault, frozen=True, kw_only=True):
    """Interim answers before the real one: 100, 103."""

    codes: tuple[int, ...] = (100, 103)

    def answer(self, answer: Answer) -> Answer:
        answer.before = b"".join(response_head(code, (("link", "</x>"),)) for code in self.codes)
        return answer


class Length(Fault, frozen=True, kw_only=True):
    """A `content-length` that is wrong by `by`; then the connection stays open or (`close`) ends."""

    by: int
    close: bool = True

    def answer(self, answer: Answer) -> Answer:
        answer.framing, answer.more_length = "length", self.by
        return answer

    async def wire(self, pieces: Pieces) -> Pieces:
        async for piece in pieces:
            yield piece
        if self.close:
            yield Break("close")


class NoLastChunk(Fault, frozen=True, kw_only=True):
    """The body is all there, but its last chunk never comes."""

    def answer(self, answer: Answer) -> Answer:
        answer.framing, answer.last = "chunked", b""
        return answer


class UntilClose(Fault, frozen=True, kw_only=True):
    """A body without a length: it ends with the connection."""

    def answer(self, answer: Answer) -> Answer:
        answer.framing = "close"
        return answer


class BothLengths(Fault, frozen=True, kw_only=True):
    """`transfer-encoding` and `content-length` together: what smugglers send."""

    length: int = 10

    def answer(self, answer: Answer) -> Answer:
        answer.framing, answer.more_headers = "chunked", (("content-length", str(self.length)),)
        return answer


class Compress(Fault, frozen=True, kw_only=True):
    """The body compressed, though nobody asked; `bomb` puts so many blanks before it; `cut` leaves out the end."""

    bomb: int = 0
    cut: int = 0

    def answer(self, answer: Answer) -> Answer:
        answer.headers = (*answer.headers, ("content-encoding", "gzip"))
        answer.framing, answer.body = "length", self._packed(answer.body)
        return answer

    async def _packed(self, body: Pieces) -> Pieces:
        # A file of gzip may have many members: one of blanks, many times, costs nothing to make.
        blanks = gzip.compress(b" " * _BLANKS) * (self.bomb // _BLANKS)
        whole = blanks + gzip.compress(b"".join([piece async for piece in body if isinstance(piece, bytes)]))
        yield whole[: -self.cut] if self.cut else whole


class Script(Fault, frozen=True, kw_only=True):
    """One status after another: `429+503+200`. 200 lets the target answer."""

    codes: tuple[int, ...]
    body: Literal["json", "html", "text", "junk", "empty"] = "json"

    def instead(self, request: HttpRequest, number: int) -> Answer | None:
        code = self.codes[min(number, len(self.codes) - 1)]
        return None if code == 200 else Status(code=code, body=self.body).instead(request, number)

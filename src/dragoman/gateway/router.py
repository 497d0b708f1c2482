"""Whose language a request speaks: every dialect's binding is asked in turn, so a new one needs no edit here. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct, structs

from dragoman.dialects.base import Call, Dialect, ExactRequest, PlainRequest
from dragoman.errors import DragomanError, Fault, MalformedRequest
from dragoman.wire.http import HttpRequest

_METHODS = ("POST", "GET")
_LISTING = "/v1/models"


class Matched(Struct, frozen=True):
    """A request that a dialect knows."""

    dialect: Dialect
    call: Call
    plain: PlainRequest | None = None  # in place of the call's body
    exact: ExactRequest | None = None


class Unreadable(Exception):
    """A request that a dialect knows by its path and cannot read."""

    def __init__(self, dialect: Dialect, error: DragomanError) -> None:
        super().__init__(str(error))
        self.dialect = dialect
        self.error = error


class Router:
    def __init__(self, dialects: Sequence[Dialect]) -> None:
        self._dialects = tuple(dialects)
        self._plain = [(dialect, dialect.plain) for dialect in dialects if dialect.plain is not None]
        self._exact = [(dialect, dialect.exact) for dialect in dialects if dialect.exact is not None]

    def exact(self, request: HttpRequest) -> Matched | None:
        """The plain or exact request that this is; None if it must be matched to know."""
        for dialect, forms in self._plain:
            if (plain := forms.request(request)) is not None:
                return Matched(dialect, Call("generate", plain.asked.model, plain.asked.stream, None), plain)
        for dialect, read in self._exact:
            if (exact := read(request)) is not None:
                return Matched(dialect, exact.call, exact=exact)
        return None

    def match(self, request: HttpRequest) -> Matched | None:
        """The call in this request. Raises Unreadable."""
        for dialect in self._dialects:
            try:
                call = dialect.binding.match(request)
            except DragomanError as error:
                raise Unreadable(dialect, error) from None
            except RecursionError:
                raise Unreadable(dialect, MalformedRequest("nested too deeply")) from None
            if call is not None:
                return Matched(dialect, call)
        return None

    def named(self, name: str) -> Dialect | None:
        return next((dialect for dialect in self._dialects if dialect.name == name), None)

    def speaker(self, request: HttpRequest) -> Dialect:
        """In whose words to refuse a request that is not, or not yet, read: by its path, else by its headers."""
        for method in _METHODS:
            if (dialect := self._knows(request, method)) is not None:
                return dialect
        listing = HttpRequest("GET", _LISTING, headers=request.headers)
        return self._knows(listing, "GET") or self._dialects[0]

    def unmatched(self, request: HttpRequest) -> tuple[Fault, str]:
        """Why nobody answers: 405 where another method would do, with the methods; else 404."""
        allowed = [method for method in _METHODS if self._knows(request, method) is not None]
        if allowed:
            return Fault("invalid", f"{request.method} is not for {request.path}", 405), ", ".join(allowed)
        return Fault("not_found", f"nothing answers {request.method} {request.path} here", 404), ""

    def _knows(self, request: HttpRequest, method: str) -> Dialect | None:
        """The dialect that has this path, whatever the body."""
        asked = structs.replace(request, method=method, body=b"{}")
        for dialect in self._dialects:
            try:
                if dialect.binding.match(asked) is not None:
                    return dialect
            except DragomanError:  # it looked for its fields: the path is its own
                return dialect
        return None

"""Routing: find the dialect of a request. Pure.

Each dialect's binding is tried in turn, so a new dialect needs no change here. `targets` finds the upstream.
"""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import unquote

from msgspec import Struct, structs

from dragoman.dialects.base import ApiRequest, Dialect, RequestSummary, TypedRequest
from dragoman.errors import DragomanError, Fault, MalformedRequest
from dragoman.wire.http import HttpRequest

_METHODS = ("POST", "GET")
_LISTING = "/v1/models"


class MatchedRequest(Struct, frozen=True):
    """A request that a dialect's binding has matched."""

    dialect: Dialect
    call: ApiRequest
    plain: RequestSummary | None = None  # in place of the call's body
    exact: TypedRequest | None = None


class UnreadableRequest(Exception):
    """A request whose path belongs to a dialect and whose content cannot be parsed."""

    def __init__(self, dialect: Dialect, error: DragomanError) -> None:
        super().__init__(str(error))
        self.dialect = dialect
        self.error = error


class Router:
    """Finds the dialect of a request."""

    def __init__(self, dialects: Sequence[Dialect]) -> None:
        self._dialects = tuple(dialects)
        self._plain = [(dialect, dialect.summary_reader) for dialect in dialects if dialect.summary_reader is not None]
        self._exact = [(dialect, dialect.typed_reader) for dialect in dialects if dialect.typed_reader is not None]

    def match(self, request: HttpRequest, *, decoded: bool = False) -> MatchedRequest | None:
        """Return the matched request: plain, exact, or with its decoded body; with `decoded`, only the last.

        Raises UnreadableRequest.
        """
        for dialect, forms in () if decoded else self._plain:
            if request.path.rstrip("/").endswith(forms.path) and (plain := forms.read_request(request)) is not None:
                return MatchedRequest(
                    dialect, ApiRequest("generate", plain.conversation.model, plain.conversation.stream, None), plain
                )
        for dialect, read in () if decoded else self._exact:
            if (exact := read(request)) is not None:
                return MatchedRequest(dialect, exact.call, exact=exact)
        for dialect in self._dialects:
            try:
                call = dialect.binding.match(request)
            except DragomanError as error:
                raise UnreadableRequest(dialect, error) from None
            except RecursionError:
                raise UnreadableRequest(dialect, MalformedRequest("nested too deeply")) from None
            if call is not None:
                return MatchedRequest(dialect, call)
        return None

    def match_model(self, request: HttpRequest) -> MatchedRequest | None:
        """Match `GET /v1/models/ID`, which some bindings do not define."""
        if request.method != "GET" or not request.path.startswith(f"{_LISTING}/"):
            return None
        matched = self.match(structs.replace(request, path=_LISTING))
        wanted = unquote(request.path.removeprefix(f"{_LISTING}/"))
        return matched and structs.replace(matched, call=ApiRequest("models", wanted, False, None))

    def find_dialect(self, name: str) -> Dialect | None:
        """Return the dialect of this name, if there is one."""
        return next((dialect for dialect in self._dialects if dialect.name == name), None)

    def error_dialect(self, request: HttpRequest) -> Dialect:
        """Return the dialect for an error response to a request that was not matched: by its path, else its headers."""
        for method in _METHODS:
            if (dialect := self._knows(request, method)) is not None:
                return dialect
        listing = HttpRequest("GET", _LISTING, headers=request.headers)
        return self._knows(listing, "GET") or self._dialects[0]

    def unmatched(self, request: HttpRequest) -> tuple[Fault, str]:
        """Return the fault for a request without a route: 405 and the allowed methods, or 404."""
        allowed = [method for method in _METHODS if self._knows(request, method) is not None]
        if allowed:
            return Fault("invalid", f"{request.path} does not support the method {request.method}", 405), ", ".join(
                allowed
            )
        return Fault("not_found", f"there is no endpoint {request.method} {request.path}; check the base URL", 404), ""

    def _knows(self, request: HttpRequest, method: str) -> Dialect | None:
        """Return the dialect that has this path, for any body."""
        probe = structs.replace(request, method=method, body=b"{}")
        for dialect in self._dialects:
            try:
                if dialect.binding.match(probe) is not None:
                    return dialect
            except DragomanError:  # The binding has matched the path and then missed fields in the body.
                return dialect
        return None


# --- faults of the gateway itself


BUG = Fault("server", "internal error of the gateway; its log has the details under this request id", 500)
REVOKED = Fault("auth", "the key of this gateway was revoked", 401)
ENDING = Fault("overloaded", "the gateway is shutting down", 503, retry_after=1.0)

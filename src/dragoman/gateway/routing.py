"""Routing: find the dialect of a request. Pure.

Each dialect's binding is tried in turn, so a new dialect needs no change here. `targets` finds the upstream.
"""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import unquote

from msgspec import Struct, structs

from dragoman.dialects.base import ApiRequest, Dialect, RequestSummary, TypedRequest
from dragoman.dialects.endpoints import RelayedEndpoint, refusal_of
from dragoman.errors import DragomanError, Fault, MalformedRequest
from dragoman.wire.http import HttpRequest

_METHODS = ("POST", "GET")
_LISTING = "/v1/models"
_UNKNOWN_URL = "unknown_url"  # OpenAI's code; without it the code of a 404 is model_not_found
_MOST_PREFIXES = 4  # segments before the end of a path that is looked for


class MatchedRequest(Struct, frozen=True):
    """A request that a dialect's binding has matched."""

    dialect: Dialect
    call: ApiRequest
    plain: RequestSummary | None = None  # in place of the call's body
    typed: TypedRequest | None = None


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
        self._relayed = [(dialect, dialect.relayed) for dialect in dialects if dialect.relayed is not None]
        self._relayed_ends = tuple(end for _, relayed in self._relayed for end in relayed.ends())
        self._typed_readers = [
            (dialect, dialect.typed_reader) for dialect in dialects if dialect.typed_reader is not None
        ]

    def match(self, request: HttpRequest, *, decoded: bool = False) -> MatchedRequest | None:
        """Return the matched request: plain, typed, or with its decoded body; with `decoded`, only the last.

        Raises UnreadableRequest.
        """
        for dialect, forms in () if decoded else self._plain:
            if request.path.rstrip("/").endswith(forms.path) and (plain := forms.read_request(request)) is not None:
                return MatchedRequest(
                    dialect, ApiRequest("generate", plain.conversation.model, plain.conversation.stream, None), plain
                )
        for dialect, read in () if decoded else self._typed_readers:
            if (typed := read(request)) is not None:
                return MatchedRequest(dialect, typed.call, typed=typed)
        for dialect in self._dialects:
            try:
                call = dialect.binding.match(request)
            except DragomanError as error:
                raise UnreadableRequest(dialect, error) from None
            except RecursionError:
                raise UnreadableRequest(dialect, MalformedRequest("the request is nested too deeply")) from None
            if call is not None:
                return MatchedRequest(dialect, call)
        return None

    def find_relayed(self, path: str) -> tuple[Dialect, RelayedEndpoint, str] | None:
        """Return the dialect and endpoint of a relayed path, and the model in it. Raises UnreadableRequest."""
        for dialect, relayed in self._relayed if f"/v1{path}".rstrip("/").endswith(self._relayed_ends) else ():
            try:
                if (found := relayed.match(path)) is not None:
                    return dialect, *found
            except DragomanError as error:
                raise UnreadableRequest(dialect, error) from None
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
        return self._known_end(request)[1] or self._knows(listing, "GET") or self._dialects[0]

    def fault_for_unmatched(self, request: HttpRequest) -> tuple[Fault, str]:
        """Return the fault for a request without a route: 405 and the allowed methods, or 404."""
        if reason := refusal_of(request.path):
            return Fault("not_found", reason, 404, code=_UNKNOWN_URL), ""
        allowed = [method for method in _METHODS if self._knows(request, method) is not None]
        if allowed:
            return Fault("invalid", f"{request.path} does not support the method {request.method}", 405), ", ".join(
                allowed
            )
        remedy = "check the base URL"
        if end := self._known_end(request)[0]:
            remedy += f", which must end before {end}"
        message = f"there is no endpoint {request.method} {request.path}; {remedy}"
        return Fault("not_found", message, 404, code=_UNKNOWN_URL), ""

    def _known_end(self, request: HttpRequest) -> tuple[str, Dialect | None]:
        """Return the end of the path that has a route, such as /v1/messages of /v1/v1/messages, and its dialect."""
        path = request.path
        for _ in range(min(path.count("/", 1), _MOST_PREFIXES)):
            path = path[path.index("/", 1) :]
            dialect = self._knows(structs.replace(request, path=path), request.method)
            if dialect is not None:
                return path, dialect
        return "", None

    def _knows(self, request: HttpRequest, method: str) -> Dialect | None:
        """Return the dialect that has this path, for any body."""
        try:
            if method == "POST" and (relayed := self.find_relayed(request.path)) is not None:
                return relayed[0]
        except UnreadableRequest as error:
            return error.dialect
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

"""Tables of error types and statuses: which kind of fault each means, and which are written for a kind."""

from __future__ import annotations

import math
from collections.abc import Mapping

from dragoman.errors import ErrorKind, Fault
from dragoman.wire.http import Headers, HttpResponse

_BY_STATUS: Mapping[int, ErrorKind] = {
    401: "auth",
    402: "quota",
    403: "permission",
    404: "not_found",
    408: "timeout",
    413: "too_large",
    429: "rate_limit",
    503: "overloaded",
    504: "timeout",
    529: "overloaded",
}
DEFAULT_STATUSES: Mapping[ErrorKind, int] = {  # for services whose errors have a status and no type
    "invalid": 400,
    "context_full": 400,
    "auth": 401,
    "quota": 402,
    "permission": 403,
    "not_found": 404,
    "too_large": 413,
    "rate_limit": 429,
    "server": 500,
    "overloaded": 503,
    "timeout": 504,
}
_LONGEST_QUOTE = 200


class FaultTable:
    """The error types and statuses of one service.

    `written` gives the type and status for each kind; `types` gives the kind of further types that are only read.
    `statuses` overrides the kind that a status usually means. `exact` lists, by kind, more specific statuses that a
    fault keeps when it is written.
    """

    def __init__(
        self,
        written: Mapping[ErrorKind, tuple[str, int]],
        types: Mapping[str, ErrorKind] | None = None,
        *,
        statuses: Mapping[int, ErrorKind] | None = None,
        exact: Mapping[ErrorKind, frozenset[int]] | None = None,
    ) -> None:
        self._written = written
        self._types = {kind_type: kind for kind, (kind_type, _) in reversed(list(written.items()))} | dict(types or {})
        self._statuses = {**_BY_STATUS, **(statuses or {})}
        self._exact = exact or {}

    def by_status(self, status: int) -> ErrorKind:
        """Return the kind that a status means."""
        return self._statuses.get(status) or ("invalid" if 400 <= status < 500 else "server")

    def by_type(self, name: str) -> ErrorKind | None:
        """Return the kind that an error type means; None for an unknown type."""
        return self._types.get(name)

    def default_status(self, kind: ErrorKind) -> int:
        """Return the status that is written for a kind."""
        return self._written[kind][1]

    def default_type(self, kind: ErrorKind) -> str:
        """Return the type that is written for a kind."""
        return self._written[kind][0]

    def is_compatible(self, status: int, kind: ErrorKind) -> bool:
        """Return whether a status is unknown or means this kind."""
        return self._statuses.get(status, kind) == kind

    def type_of(self, fault: Fault) -> str:
        """Return the type to write: the fault's own type if it means the same kind here."""
        return fault.code if self._types.get(fault.code) == fault.kind else self._written[fault.kind][0]

    def status_of(self, fault: Fault) -> int:
        """Return the status of the error response."""
        return fault.status if fault.status in self._exact.get(fault.kind, ()) else self.default_status(fault.kind)

    def unreadable(self, response: HttpResponse) -> Fault:
        """Return the fault of an error response without a body that can be read."""
        status = response.status
        return Fault(self.by_status(status), unreadable_message(response), status, response.retry_after)


# The errors of Anthropic's API, which streams of InvokeModel on Bedrock have too.
CLAUDE_FAULTS = FaultTable(
    {
        "invalid": ("invalid_request_error", 400),
        "context_full": ("invalid_request_error", 400),
        "auth": ("authentication_error", 401),
        # The response also has `x-should-retry: false`: clients then do not retry (docs/decisions/kiro.md#d18).
        "quota": ("billing_error", 429),
        "permission": ("permission_error", 403),
        "not_found": ("not_found_error", 404),
        "too_large": ("request_too_large", 413),
        "rate_limit": ("rate_limit_error", 429),
        "server": ("api_error", 500),
        "timeout": ("timeout_error", 504),
        "overloaded": ("overloaded_error", 529),
    },
    {"conflict_error": "invalid"},
    statuses={424: "server"},
    exact={"invalid": frozenset({405, 409, 415, 422}), "server": frozenset({501, 502})},
)


def unreadable_message(response: HttpResponse, unquoted: tuple[str, ...] = ("<",)) -> str:
    """Return a message for an error response without a message of its own.

    It quotes the body, unless the body begins with one of `unquoted`: an HTML page is not worth quoting.
    """
    text = " ".join(response.body.decode("utf-8", "replace").split())
    quoted = f": {text[:_LONGEST_QUOTE]}" if text and not text.startswith(unquoted) else ""
    return f"the upstream responded with status {response.status} without a readable error{quoted}"


def refusal_message(*reasons: str | int | None) -> str:
    """Return a message for an error without one of its own, with the first reason that is known."""
    return f"the upstream refused the request ({next(filter(None, reasons), 'no reason given')})"


def error_response(fault: Fault, status: int, body: bytes, *more: tuple[str, str]) -> HttpResponse:
    """Return the HTTP response for a fault; the headers `more` follow `content-type`."""
    wait: Headers = () if fault.retry_after is None else (("retry-after", str(math.ceil(fault.retry_after))),)
    return HttpResponse(status, (("content-type", "application/json"), *more, *wait), body)

"""Routing: find the dialect of a request and the targets for its model, and render error responses. Pure.

Each dialect's binding is tried in turn, so a new dialect needs no change here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from functools import lru_cache

from msgspec import Struct, structs

from dragoman.dialects.base import ApiRequest, Dialect, RequestSummary, TypedRequest
from dragoman.errors import DragomanError, ErrorKind, Fault, MalformedRequest, UnknownModel
from dragoman.gateway.upstream_config import Upstream
from dragoman.wire.http import HttpRequest, HttpResponse

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
                    dialect, ApiRequest("generate", plain.asked.model, plain.asked.stream, None), plain
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
        asked = structs.replace(request, method=method, body=b"{}")
        for dialect in self._dialects:
            try:
                if dialect.binding.match(asked) is not None:
                    return dialect
            except DragomanError:  # The binding has matched the path and then missed fields in the body.
                return dialect
        return None


# --- the targets of a model
#
# In this order: a route with exactly this name; the first route whose pattern fits; UPSTREAM/MODEL; an upstream that
# lists the name; the first upstream with a pattern that fits; the default route; a lone upstream that lists nothing.


_LONGEST = 200  # characters of a client's text that an error quotes
_REMEMBERED = 256  # models whose targets are cached


class Target(Struct, frozen=True):
    """An upstream, and the name of the model there."""

    upstream: Upstream
    model: str


class RouteTarget(Struct, frozen=True):
    """A target as configured; without a model, the name in the request is used."""

    upstream: str
    model: str = ""

    @classmethod
    def parse(cls, text: str) -> RouteTarget:
        """Parse `UPSTREAM` or `UPSTREAM/MODEL`."""
        upstream, _, model = text.partition("/")
        return cls(upstream, model)


class RouteRule(Struct, frozen=True):
    """Patterns (`*` is any text, `?` any character, nothing else is special) and their targets, first choice first."""

    patterns: tuple[str, ...]
    targets: tuple[RouteTarget, ...]


class Routes:
    """Finds the targets of a model, by the routes of the configuration."""

    def __init__(
        self, upstreams: Mapping[str, Upstream], rules: Sequence[RouteRule], default: RouteRule | None
    ) -> None:
        self._upstreams = upstreams
        self._default = default
        own = [RouteRule(upstream.models, (RouteTarget(name),)) for name, upstream in upstreams.items()]
        self._stages = (_Stage(rules), _Stage(own))
        lone = len(upstreams) == 1 and not rules and not any(rule.patterns for rule in own)
        self._lone = own[0] if lone else None
        self._found: dict[str, Sequence[Target]] = {}

    def resolve(self, model: str) -> Sequence[Target]:
        """Return the targets of a model, first choice first. Raises UnknownModel, with similar names."""
        found = self._found.get(model)
        if found is None:
            found = self._targets(model)
            if len(model) <= _LONGEST:  # Clients may send any model name, so the cache is bounded.
                if len(self._found) >= _REMEMBERED:
                    self._found.clear()
                self._found[model] = found
        return found

    def _targets(self, model: str) -> Sequence[Target]:
        routed, own = self._stages
        rule = routed.find(model) or self._direct(model) or own.find(model) or self._default or self._lone
        if not model.strip() and (rule is None or not all(target.model for target in rule.targets)):
            message = "the request names no model and its route sets none. Add `model` to the request or to the route."
            raise MalformedRequest(message, at="model")
        if rule is None:
            raise UnknownModel(self._unknown(model))
        asked = model.partition("/")[2] if rule.patterns == _DIRECT else model
        targets = (Target(self._upstreams[target.upstream], target.model or asked) for target in rule.targets)
        return tuple({(target.upstream.name, target.model): target for target in targets}.values())

    def names(self) -> list[str]:
        """Return the models that are known by name."""
        return list(dict.fromkeys(name for stage in self._stages for name in stage.exact))

    def patterns(self) -> list[tuple[str, str]]:
        """Return the patterns in their order, each with its first upstream."""
        return list(
            {pattern: rule.targets[0].upstream for stage in self._stages for pattern, rule in stage.globs}.items()
        )

    @property
    def default(self) -> RouteTarget | None:
        """The target of all other models."""
        rule = self._default or self._lone
        return rule.targets[0] if rule else None

    def _direct(self, model: str) -> RouteRule | None:
        upstream, found, rest = model.partition("/")
        return RouteRule(_DIRECT, (RouteTarget(upstream),)) if found and rest and upstream in self._upstreams else None

    def _unknown(self, model: str) -> str:
        shown = model if len(model) <= _LONGEST else f"{model[:_LONGEST]}…"
        patterns = [pattern for stage in self._stages for pattern, _ in stage.globs if pattern != "*"]
        near = get_close_matches(model[:_LONGEST], [*self.names(), *patterns], 3, 0.5)
        text = f"the model {shown!r} is not configured in this gateway"
        if near:
            return f"{text}; similar names: {', '.join(near)}"
        known = self.names()[:10]
        return f"{text}; known models: {', '.join(known)}" if known else f"{text}; no model is known by name"


_DIRECT = ("/",)  # marks a rule for UPSTREAM/MODEL; not a pattern


class _Stage:
    """Rules of one rank: exact names first, then patterns in their order."""

    def __init__(self, rules: Sequence[RouteRule]) -> None:
        self.exact: dict[str, RouteRule] = {}
        self.globs: list[tuple[str, RouteRule]] = []
        for rule in rules:
            for pattern in rule.patterns:
                if "*" in pattern or "?" in pattern:
                    self.globs.append((pattern, rule))
                else:
                    self.exact.setdefault(pattern, rule)

    def find(self, model: str) -> RouteRule | None:
        exact = self.exact.get(model)
        if exact is not None:
            return exact
        return next((rule for pattern, rule in self.globs if _compiled(pattern).fullmatch(model)), None)


def matches_pattern(pattern: str, name: str) -> bool:
    """Return whether a name or pattern of the configuration matches this model."""
    return pattern == name or _compiled(pattern).fullmatch(name) is not None


@lru_cache(512)
def _compiled(pattern: str) -> re.Pattern[str]:
    """Compile a pattern. Brackets are literal, because clients append [1m] to model names.

    Groups are atomic: the client chooses the name, and no name may cause backtracking.
    """
    first, *rest = [re.escape(part).replace(r"\?", ".") for part in re.split(r"\*+", pattern)]
    if not rest:
        return re.compile(first, re.DOTALL)
    *middle, last = rest
    return re.compile(first + "".join(f"(?>.*?{part})" for part in middle) + f".*{last}", re.DOTALL)


# --- error responses in the client's dialect


BUG = Fault("server", "internal error of the gateway; its log has the details under this request id", 500)
ENDING = Fault("overloaded", "the gateway is shutting down", 503, retry_after=1.0)

_WAITS: dict[ErrorKind, float] = {"quota": 60.0}  # retry-after of a 429 if the upstream sent none
_USUAL_WAIT = 2.0
# Statuses of the gateway's own HTTP checks, which are the same in all dialects.
_OF_HTTP = frozenset({405, 408, 414, 415, 417, 421, 426, 431, 505})


def error_response(dialect: Dialect, fault: Fault) -> HttpResponse:
    """Return a fault as an HTTP response in the client's dialect. A 429 always has `retry-after`: clients use it."""
    response = dialect.binding.error_response(fault, dialect.codec.render_fault(fault))
    bad_gateway = fault.is_violation and fault.status == 502  # also in dialects without this status
    if fault.status in _OF_HTTP or bad_gateway:
        return structs.replace(response, status=fault.status)
    if response.status == 429 and not response.header("retry-after"):
        wait = str(int(_WAITS.get(fault.kind, _USUAL_WAIT)))
        return structs.replace(response, headers=(*response.headers, ("retry-after", wait)))
    return response

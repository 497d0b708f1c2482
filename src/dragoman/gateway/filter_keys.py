"""The keys that a filter of requests may use, and the words for remarkable requests. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, TypeAlias

from msgspec import Struct

from dragoman.gateway.records import LoggedRequest, epoch_of, input_tokens

ValueKind: TypeAlias = Literal["text", "number", "duration", "count", "share", "dollars", "flag", "time", "word"]
Badge: TypeAlias = Literal["lossy", "recovered", "retried", "fell back", "cut", "cancelled", "refused", "failed"]
Recorded: TypeAlias = Literal["", "meta", "full"]

RECOVERED = frozenset({"raw_tools.recovered", "kiro.stream.recovered"})  # rules of calls that were found in text
BADGES: tuple[Badge, ...] = ("lossy", "recovered", "retried", "fell back", "cut", "cancelled", "refused", "failed")
_OF_OUTCOME: Mapping[str, Badge] = {
    "gone": "cancelled",
    "broken": "cut",
    "cut": "cut",
    "refused": "refused",
    "failed": "failed",
    "bug": "failed",
}


class FilteredRequest(Struct, frozen=True):
    """The data that a filter compares: the request with its notes and failed attempts, and values of its recording."""

    request: LoggedRequest
    session: str = ""
    recorded: Recorded = ""
    dropped: bool = False  # whether content was lost, if the notes are not at hand


def badges_of(subject: FilteredRequest) -> list[Badge]:
    """Return the words for what is remarkable about a request."""
    request = subject.request
    found: list[Badge] = []
    if subject.dropped or any(note.action == "dropped" for note in request.changes):
        found.append("lossy")
    if not RECOVERED.isdisjoint(request.rules):
        found.append("recovered")
    upstreams = {tried.partition(": ")[0] for tried in request.tried}
    if request.attempts > 1:
        found.append("retried")
    if upstreams - {request.upstream} and request.outcome == "ok":
        found.append("fell back")
    if request.outcome in _OF_OUTCOME:
        found.append(_OF_OUTCOME[request.outcome])
    return found


Texts: TypeAlias = Callable[[FilteredRequest], Sequence[str]]
Number: TypeAlias = Callable[[FilteredRequest], float | None]


class FilterKey(Struct, frozen=True):
    """One key: how its values are written, and where they come from. Either `texts` or `number` is set."""

    name: str
    kind: ValueKind
    detail: str
    texts: Texts | None = None
    number: Number | None = None
    words: tuple[str, ...] = ()  # the only values of a `word`


def _cost(subject: FilteredRequest) -> float | None:
    nano = subject.request.cost_nanodollars
    return None if nano is None else nano / 1e9


def _total_input(subject: FilteredRequest) -> float | None:
    return None if subject.request.input_tokens is None else input_tokens(subject.request)


_OUTCOMES = ("ok", "refused", "failed", "broken", "gone", "cut", "bug")
_TABLE: tuple[FilterKey, ...] = (
    FilterKey("id", "text", "the id of the request", lambda each: (each.request.request_id,)),
    FilterKey("upstream", "text", "the upstream that was tried last", lambda each: (each.request.upstream,)),
    FilterKey("dialect", "text", "the dialect of the client", lambda each: (each.request.dialect,)),
    FilterKey("upstream_dialect", "text", "the dialect of the upstream", lambda each: (each.request.upstream_dialect,)),
    FilterKey(
        "model",
        "text",
        "the model in the client's request, or in the request to the upstream",
        lambda each: (each.request.model, each.request.used_model),
    ),
    FilterKey("status", "number", "the HTTP status that the client got", number=lambda each: each.request.status),
    FilterKey("outcome", "word", "how the request ended", lambda each: (each.request.outcome,), words=_OUTCOMES),
    FilterKey("is", "word", "what is remarkable about the request", badges_of, words=BADGES),
    FilterKey("tool", "text", "a tool that the model called", lambda each: each.request.tools),
    FilterKey("note", "text", "the rule of a change that the translation made", lambda each: each.request.rules),
    FilterKey("notes", "count", "how many changes the translation made", number=lambda each: each.request.notes),
    FilterKey("error", "text", "the message of the error", lambda each: (each.request.error,)),
    FilterKey(
        "tried",
        "text",
        "an attempt that failed: upstream, and reason or error and status",
        lambda each: each.request.tried,
    ),
    FilterKey("attempts", "count", "how often the request was sent", number=lambda each: each.request.attempts),
    FilterKey("first_byte", "duration", "time to the first byte", number=lambda each: each.request.first_byte_ms),
    FilterKey("total", "duration", "time to the end", number=lambda each: each.request.total_ms),
    FilterKey("input", "count", "input tokens, those of a cache included", number=_total_input),
    FilterKey("output", "count", "output tokens", number=lambda each: each.request.output_tokens),
    FilterKey("cache_read", "count", "tokens read from a cache", number=lambda each: each.request.cache_read_tokens),
    FilterKey("cache_write", "count", "tokens written to a cache", number=lambda each: each.request.cache_write_tokens),
    FilterKey("cached", "share", "the share of the input from a cache", number=lambda each: each.request.cache_share),
    FilterKey("cost", "dollars", "the cost", number=_cost),
    FilterKey("stop", "text", "why the model stopped", lambda each: (each.request.stop,)),
    FilterKey("stream", "flag", "whether a stream was requested", number=lambda each: each.request.stream),
    FilterKey(
        "verbatim", "flag", "whether the client got the upstream's own bytes", number=lambda each: each.request.verbatim
    ),
    FilterKey("credential", "text", "the label of the credential", lambda each: (each.request.credential,)),
    FilterKey("client", "text", "the IP address of the client", lambda each: (each.request.client,)),
    FilterKey("key", "text", "the id of the client key", lambda each: (each.request.key,)),
    FilterKey("session", "text", "the session; known of recorded requests", lambda each: (each.session,)),
    FilterKey(
        "recorded", "word", "what is recorded", lambda each: (each.recorded or "off",), words=("off", "meta", "full")
    ),
    FilterKey("path", "text", "the path of the request", lambda each: (each.request.path,)),
    FilterKey("method", "text", "the HTTP method", lambda each: (each.request.method,)),
    FilterKey("operation", "text", "generate, count, models, stored …", lambda each: (each.request.operation,)),
    FilterKey("at", "time", "when the request ended", number=lambda each: epoch_of(each.request.ts)),
)
FILTER_KEYS: Mapping[str, FilterKey] = {each.name: each for each in _TABLE}

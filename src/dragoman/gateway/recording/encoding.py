"""Write captured requests as a batch of a segment, masked. Pure.

A batch is a JSON array of `RecordedRequest`, and the parts of all of them:

    pieces             four numbers of 32 bits for each piece of a response: time in units of 10 µs since the request
                       began, number of the attempt, bytes from the upstream, bytes to the client
    client_body        the body of the client's request
    upstream_body.N    that of attempt N; left out if it equals `client_body`
    received, written  the bytes of the pieces, joined; `written` is left out if it equals `received`

With the level `meta`, only `pieces` is there. A request is described when it ends, while its values are in the caches
of the processor; the rest is done later for many requests at once. All bodies of a batch are masked in one call,
because lengths stay the same. Heads of requests and responses repeat, so their masked JSON is cached.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from struct import Struct as Layout
from typing import TypeVar
from urllib.parse import unquote

from msgspec import Raw, Struct, structs

from dragoman.gateway.recording.capture import (
    CapturedBody,
    CapturedPiece,
    CapturedTarget,
    PieceSizes,
    RequestCapture,
    RequestHead,
    ResponseHead,
)
from dragoman.gateway.recording.masking import Masker
from dragoman.gateway.recording.segments import ReceivedResponse, SentRequest, encode_batch
from dragoman.gateway.records import FailedAttempt
from dragoman.gateway.redaction import SECRET_NAME
from dragoman.http.addresses import parse_base_url
from dragoman.http.client.response import sent_headers
from dragoman.model.filter import Note
from dragoman.upstream.credentials import MASK
from dragoman.wire import jsonio
from dragoman.wire.http import Headers

K = TypeVar("K")
TICKS = 100_000  # a second, in the units of a piece's time
_MAX_TICKS = (1 << 32) - 1
_MAX_NOTES = 2000
_LONGEST_SESSION = 500  # characters
_MAX_CACHED, _MAX_CACHED_BYTES = 512, 4096  # heads, and bytes of each
_NOTHING = Raw(b"null")


class _Attempt(Struct, frozen=True, omit_defaults=True, gc=False):
    """A `RecordedAttempt` whose heads are JSON already."""

    target: Raw
    at: int
    answered: int = 0
    response: Raw = _NOTHING
    failed: int = 0
    failure: int = -1


class _Request(Struct, omit_defaults=True, gc=False):
    """A `RecordedRequest` whose line and heads are JSON already."""

    line: Raw
    level: str
    began: int
    request: Raw
    session: Raw = _NOTHING
    attempts: list[_Attempt] = []
    response: Raw = _NOTHING
    released: int = 0
    changes: Sequence[Note] = ()
    failures: Sequence[FailedAttempt] = ()
    truncated: tuple[str, ...] = ()
    parts: list[tuple[str, int]] = []


class Pending(Struct, frozen=True, gc=False):
    """A request that has ended: its description, and the parts that are not encoded yet."""

    described: _Request
    began: float
    bodies: list[CapturedBody]
    pieces: list[CapturedPiece]
    sizes: list[PieceSizes]
    reserved_bytes: int  # of the recorder's budget


class RecordingEncoder:
    """Encodes captures with one masker. Two threads may use it at once: its caches are plain dicts."""

    def __init__(self, masker: Masker) -> None:
        self._masker = masker
        self._requests: dict[RequestHead, Raw] = {}
        self._targets: dict[CapturedTarget, Raw] = {}
        self._responses: dict[ResponseHead, Raw] = {}
        self._sessions: dict[str, Raw] = {}

    # --- when a request has ended

    def describe(self, capture: RequestCapture) -> Pending:
        """Return a capture as it waits to be encoded."""
        began, bodies, attempts, session = capture.began, capture.bodies, [], capture.session
        for attempt in capture.attempts:
            target, response, failed_at = attempt.target, attempt.response, attempt.failed_at
            attempts.append(
                _Attempt(
                    self._targets.get(target) or self._target(target),
                    int((attempt.at - began) * 1e6),
                    int((attempt.responded_at - began) * 1e6) if response else 0,
                    (self._responses.get(response) or self._response(response)) if response else _NOTHING,
                    int((failed_at - began) * 1e6) if failed_at else 0,
                    attempt.failure,
                )
            )
        response = capture.response
        described = _Request(
            Raw(capture.line),
            capture.level,
            int(capture.began_at * 1000),
            self._requests.get(capture.head) or self._request(capture.head),
            (self._sessions.get(session) or self._session(session)) if session else _NOTHING,
            attempts,
            (self._responses.get(response) or self._response(response)) if response else _NOTHING,
            int((capture.released_at - began) * 1e6) if capture.released_at else 0,
            capture.notes,
            capture.failures,
            capture.truncated,
        )
        return Pending(described, began, bodies, capture.pieces, capture.sizes, capture.reserved_bytes)

    def _target(self, target: CapturedTarget) -> Raw:
        upstream, dialect, credential, model, sent = target
        names = {"upstream": upstream, "dialect": dialect, "credential": credential, "model": model}
        request = {} if sent is None else {"request": self._request(sent)}
        return _remember(self._targets, target, jsonio.encode({**names, **request}))

    def _request(self, head: RequestHead) -> Raw:
        """Return the head of a request as it was on the wire: with a base URL, that to an upstream."""
        base_url, method, path, query, headers, size = head
        prefix = ""
        if base_url:
            base = parse_base_url(base_url)
            prefix = f"{base.scheme}://{base.authority}{base.prefix}"
            query = "&".join(filter(None, (base.query, query)))
            headers = sent_headers(base.authority, headers, size)
        masked = masked_query(query)
        url = self._masker.mask_text(f"{prefix}{path}{'?' if masked else ''}{masked}")
        return _remember(self._requests, head, jsonio.encode(SentRequest(method, url, self._headers(headers), size)))

    def _response(self, response: ResponseHead) -> Raw:
        status, headers = response
        encoded = jsonio.encode(ReceivedResponse(status, self._headers(headers)))
        return _remember(self._responses, response, encoded)

    def _session(self, session: str) -> Raw:
        encoded = jsonio.encode(self._masker.mask_text(session[:_LONGEST_SESSION]))
        return _remember(self._sessions, session, encoded)

    def _headers(self, headers: Headers) -> Headers:
        mask = self._masker.mask_text
        return tuple([(name, MASK if value and SECRET_NAME.search(name) else mask(value)) for name, value in headers])

    # --- later, in the thread

    def encode(self, items: Sequence[Pending], most: int) -> bytes:
        """Return a batch, with at most about `most` bytes of parts of each request. Raises JsonError."""
        requests: list[_Request] = []
        parts: list[bytes] = []
        for item in items:
            described, own = item.described, _named_parts(item)
            if item.reserved_bytes and sum([len(data) for _, data in own]) > most:
                own, left_out = _shortened(own, most)
                described.truncated = (*described.truncated, *left_out)
            if described.changes:
                described.changes = tuple(map(self._note, described.changes[:_MAX_NOTES]))
            described.parts = [(name, len(data)) for name, data in own]
            requests.append(described)
            parts += [data for _, data in own]
        parts.append(b"")
        # Line ends keep secrets at the end of one part from touching another.
        return encode_batch(jsonio.encode(requests), self._masker.mask(b"\n".join(parts)))

    def _note(self, note: Note) -> Note:
        """Return a note without secrets: it may quote the request."""
        mask = self._masker.mask_text
        at, detail = mask(note.at), mask(note.detail)
        return note if at is note.at and detail is note.detail else structs.replace(note, at=at, detail=detail)


def _remember(cache: dict[K, Raw], key: K, encoded: bytes) -> Raw:
    found = Raw(encoded)
    if len(encoded) <= _MAX_CACHED_BYTES:
        if len(cache) >= _MAX_CACHED:
            cache.clear()
        cache[key] = found
    return found


def masked_query(query: str) -> str:
    """Return a query without the values of parameters whose names mark secrets."""
    if not query:
        return ""
    pairs = (pair.partition("=") for pair in query.split("&"))
    return "&".join(
        f"{name}={MASK}" if value and SECRET_NAME.search(unquote(name)) else f"{name}{equals}{value}"
        for name, equals, value in pairs
    )


# --- parts


def _named_parts(item: Pending) -> list[tuple[str, bytes]]:
    """Return the parts of a request, not masked."""
    pieces, sizes, bodies = item.pieces, item.sizes, item.bodies
    if len(bodies) > 1:
        sent = bodies[0][1]
        bodies = [bodies[0], *[body for body in bodies[1:] if body[1] != sent]]
    if not pieces:
        return [("pieces", _packed(sizes, item.began)), *bodies] if sizes else bodies
    sizes = [(at, attempt, len(data), len(out)) for at, attempt, data, out in pieces]
    parts = [("pieces", _packed(sizes, item.began)), *bodies]
    if received := b"".join([data for _, _, data, _ in pieces]):
        parts.append(("received", received))
    if (written := b"".join([out for _, _, _, out in pieces])) and written != received:
        parts.append(("written", written))
    return parts


def _packed(sizes: Sequence[PieceSizes], began: float) -> bytes:
    """Return the times and sizes of the pieces of a response."""
    numbers = [
        number
        for at, attempt, size, out in sizes
        for number in (int((at - began) * TICKS) & _MAX_TICKS, attempt, size, out)
    ]
    return _layout(len(numbers)).pack(*numbers)


@lru_cache(64)
def _layout(count: int) -> Layout:
    return Layout(f"<{count}I")


def _shortened(parts: list[tuple[str, bytes]], most: int) -> tuple[list[tuple[str, bytes]], list[str]]:
    """Leave out the largest parts until the rest fits; return it, and the names of those that were left out."""
    parts_that_fit, left_out = sorted(parts, key=lambda part: len(part[1])), list[str]()
    while sum(len(data) for _, data in parts_that_fit) > most:
        left_out.append(parts_that_fit.pop()[0].partition(".")[0])
    return [part for part in parts if part in parts_that_fit], left_out

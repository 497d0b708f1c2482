"""Collect what is recorded of one request while it runs, on the event loop: references to bytes, and times. No I/O.

The stages of the gateway call a `RequestCapture` where the record of a request has one. A stream goes through a
`RecordedTranslator`, so that nothing is added to the path of a request that is not recorded. Nothing is copied or
encoded here: the recorder does that after the request has ended.

Bytes that are collected count against the bound of the recorder. What does not fit is left out, and named in
`truncated`.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic
from typing import Literal, Protocol, TypeAlias

from msgspec import Struct

from dragoman.errors import Fault
from dragoman.gateway.records import FailedAttempt, Record
from dragoman.gateway.response_modes import Translator
from dragoman.model.filter import Note
from dragoman.response_stream import ResponseProgress
from dragoman.wire.http import Headers, HttpRequest

CaptureLevel: TypeAlias = Literal["meta", "full"]
# The time, the number of the attempt (0: none), bytes from the upstream, bytes to the client.
CapturedPiece: TypeAlias = tuple[float, int, bytes, bytes]
PieceSizes: TypeAlias = tuple[float, int, int, int]

CapturedBody: TypeAlias = tuple[str, bytes]  # the name of the part, and the bytes
# The base URL of the upstream (empty: the client's request), method, path, query, headers, bytes of the body.
RequestHead: TypeAlias = tuple[str, str, str, str, Headers, int]
ResponseHead: TypeAlias = tuple[int, Headers]
# The upstream, its dialect, the credential, the model, and what was sent: None if nothing was.
CapturedTarget: TypeAlias = tuple[str, str, str, str, RequestHead | None]

_PIECE_SIZE = 200  # bytes of a piece besides its data
ALLOWANCE = 16 * 1024  # bytes that a capture may hold without a reservation


class CaptureBudget(Protocol):
    """Counts the bytes that all captures hold."""

    def reserve(self, size: int) -> bool:
        """Reserve bytes; return whether they were free."""


class AttemptCapture(Struct, eq=False, gc=False):
    """One attempt. Times are those of the monotonic clock; 0 means that it has not come to that."""

    target: CapturedTarget
    at: float  # when it was sent, or failed without being sent
    responded_at: float = 0.0
    response: ResponseHead | None = None
    failed_at: float = 0.0
    failure: int = -1  # its index in the failures of the record

    __repr__ = object.__repr__  # the headers hold keys


class RequestCapture(Struct, eq=False, gc=False):
    """One request: what the client sent, each attempt, and the bytes of the responses with their times.

    No value of it refers to it, so it needs no garbage collection.
    """

    level: CaptureLevel
    began: float
    budget: CaptureBudget
    head: RequestHead
    bodies: list[CapturedBody] = []  # of the client's request and of those to upstreams; none for `meta`
    allowance: int = ALLOWANCE
    reserved_bytes: int = 0  # of the recorder's budget
    session: str = ""
    attempts: list[AttemptCapture] = []
    pieces: list[CapturedPiece] = []
    sizes: list[PieceSizes] = []  # for `meta`, in place of `pieces`
    released_at: float = 0.0  # when the buffer of a stream was released to the client
    response: ResponseHead | None = None  # to the client, if it is whole
    truncated: tuple[str, ...] = ()
    # When the request has ended:
    line: bytes = b""  # of the log
    notes: Sequence[Note] = ()
    failures: Sequence[FailedAttempt] = ()
    began_at: float = 0.0  # seconds of the epoch

    __repr__ = object.__repr__  # the headers hold keys

    def fits(self, size: int, what: str) -> bool:
        """Count bytes; return whether they fit into the budget, and add `what` to `truncated` if not."""
        if size > self.allowance:
            need = size + ALLOWANCE
            if not self.budget.reserve(need):
                if what not in self.truncated:
                    self.truncated = (*self.truncated, what)
                return False
            self.reserved_bytes += need
            self.allowance += need
        self.allowance -= size
        return True

    # --- attempts

    def note_request(self, record: Record, base_url: str, signed: HttpRequest) -> None:
        """Note the request as it is sent. After a renewed login it is sent again, which counts as one attempt."""
        attempts, bodies, body = self.attempts, self.bodies, signed.body
        size = len(body)
        if attempts and not attempts[-1].responded_at and attempts[-1].failure < 0:
            del attempts[-1]
        is_new = self.level == "full" and not (bodies and body is bodies[0][1])
        if is_new and self.fits(size, "upstream_body"):
            bodies.append((f"upstream_body.{len(attempts) + 1}", body))
        head = base_url, signed.method, signed.path, signed.query, signed.headers, size
        target = record.upstream, record.upstream_dialect, record.credential, record.used_model, head
        attempts.append(AttemptCapture(target, monotonic()))

    def note_response(self, status: int, headers: Headers) -> None:
        """Note the head of the upstream's response."""
        attempt = self.attempts[-1]
        attempt.response, attempt.responded_at = (status, headers), monotonic()

    def note_failure(self, record: Record) -> None:
        """Note that the attempt failed with the next failure of the record, or that a target was passed over."""
        now, attempts = monotonic(), self.attempts
        if not attempts or attempts[-1].failure >= 0:
            target = record.upstream, record.upstream_dialect, "", record.used_model, None
            attempts.append(AttemptCapture(target, now))
        attempts[-1].failure, attempts[-1].failed_at = len(record.failures), now

    # --- responses

    def watch(self, translator: Translator) -> Translator:
        """Return the translator, with its input and output recorded."""
        return RecordedTranslator(translator, self)

    def add(self, received: bytes, written: bytes) -> None:
        """Note bytes from the upstream, and what the client gets for them. One of the two may be empty."""
        is_meta = self.level == "meta"
        size = _PIECE_SIZE if is_meta else _PIECE_SIZE + len(received) + len(written)
        if size <= self.allowance:
            self.allowance -= size
        elif not self.fits(size, "frames"):
            return
        if is_meta:
            self.sizes.append((monotonic(), len(self.attempts), len(received), len(written)))
        else:
            self.pieces.append((monotonic(), len(self.attempts), received, written))

    def note_written(self, data: bytes) -> None:
        """Note bytes for the client that come from no bytes of the upstream: a ping, an error."""
        if data:
            self.add(b"", data)

    def note_whole_response(self, status: int, headers: Headers, body: bytes) -> None:
        """Note a whole response to the client."""
        self.response = status, headers
        self.add(b"", body)

    def discard(self) -> None:
        """Note that the client does not get what was written for this attempt."""
        now = len(self.attempts)
        self.pieces = [(at, each, data, b"" if each == now else out) for at, each, data, out in self.pieces]
        self.sizes = [(at, each, size, 0 if each == now else out) for at, each, size, out in self.sizes]


class RecordedTranslator:
    """A translator whose input and output are recorded."""

    def __init__(self, inner: Translator, capture: RequestCapture) -> None:
        self._inner, self._capture = inner, capture

    def feed(self, chunk: bytes) -> bytes:
        """Translate a chunk of the upstream's bytes; return the client's bytes."""
        data = self._inner.feed(chunk)
        self._capture.add(chunk, data)
        return data

    def close(self, broken: Fault | None = None) -> bytes:
        """Return the last bytes for the client."""
        data = self._inner.close(broken)
        self._capture.note_written(data)
        return data

    def ping(self) -> bytes:
        """Return a keep-alive frame for the client; empty if its dialect has none."""
        data = self._inner.ping()
        self._capture.note_written(data)
        return data

    @property
    def notes(self) -> Sequence[Note]:
        """The changes of the response."""
        return self._inner.notes

    @property
    def progress(self) -> ResponseProgress:
        """The state of the response."""
        return self._inner.progress

    @property
    def is_over(self) -> bool:
        """Whether the response has ended."""
        return self._inner.is_over

    @property
    def fault(self) -> Fault | None:
        """Why the response failed; None if it did not."""
        return self._inner.fault

    @property
    def quiet_chunks(self) -> int:
        """The number of chunks without content."""
        return self._inner.quiet_chunks

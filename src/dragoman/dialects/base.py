"""The interfaces that a dialect implements, and the reader that turns its bytes into events. Pure.

A dialect is a codec (bodies and events) and a binding (path, headers, framing). Everything here is pure: bytes and
values in, values and bytes out; the gateway and the library do the I/O.

To add a dialect, write a package with a `DIALECT`, add one line to the registry (or an entry point), and write its
story files.
"""

from __future__ import annotations

import secrets
import time
from abc import abstractmethod
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Literal, Protocol, TypeAlias

from msgspec import Struct

from dragoman.dialects.endpoints import RelayedEndpoints
from dragoman.dialects.rulebook import Breach, DialectRule
from dragoman.errors import BadFrame, ClientFault, DragomanError, Fault
from dragoman.model import events as ev
from dragoman.model.blocks import Block
from dragoman.model.capabilities import Capabilities
from dragoman.model.conversation import Conversation, Reply, Stop, Usage
from dragoman.model.filter import Filter, LaneSource, LaneTarget
from dragoman.wire.frame import Frame, FrameDecoder, Payload
from dragoman.wire.http import HttpRequest, HttpResponse
from dragoman.wire.jsonio import Json

Operation: TypeAlias = Literal["generate", "count", "models", "stored", "relay"]


class ApiRequest(Struct, frozen=True):
    """A request without its HTTP envelope.

    `body` is without the model and the stream flag, which have fields here. `hints` holds the headers that matter.

    A `stored` call concerns a response that the service stores: its `hints` are the `id`, the `action` (read, delete,
    cancel, input_items) and the `query`. Only dialects with a `StoredResponses` have such calls.
    """

    operation: Operation
    model: str
    stream: bool
    body: Json
    hints: Mapping[str, str] = {}


def in_cache_order(body: Mapping[str, Json], first: Iterable[str], history: str) -> dict[str, Json]:
    """Return the body with the fields `first` at its start and the field `history`, which grows, at its end.

    Prompt caches compare prefixes: the body of one turn is then a prefix of the body of the next, up to its end.
    """
    head = {name: body[name] for name in first if name in body}
    tail = {history: body[history]} if history in body else {}
    return {**head, **{name: value for name, value in body.items() if name not in head and name != history}, **tail}


class Environment(Struct, frozen=True):
    """The source of new ids and of the time for decoders and encoders; tests replace it."""

    new_id: Callable[[str], str]
    now: Callable[[], int]


SYSTEM_ENVIRONMENT = Environment(new_id=lambda prefix: prefix + secrets.token_hex(12), now=lambda: int(time.time()))


class Decoder(Protocol):
    """Reads the whole frames of one response stream into events.

    Its methods may raise UpstreamViolation or UpstreamFault. BadFrame means that one frame cannot be read and that the
    decoder has the state it had before the frame. Every other violation ends the stream, because a block or a call
    was lost, merged with another or left open.

    The events of all frames and of `close` together are one stream of the grammar in model/assemble.py.
    """

    @property
    @abstractmethod
    def is_open(self) -> bool:
        """Whether a block, such as a call, has started and not ended."""

    @abstractmethod
    def feed(self, frame: Frame) -> ev.Events | None:
        """Return the events of a frame.

        None means that the frame must not reach the client, even in the same dialect (docs/decisions/responses.md#d51).
        """

    @abstractmethod
    def close(self, broken: Fault | None) -> ev.Events:
        """Return the last events after the end of the bytes; none if the stream had ended.

        `broken` says why the bytes ended early; None means that the upstream ended them.
        """

    def lane(self, kind: type[ev.Delta], key: int) -> LaneSource | None:
        """Return the lane that reads further deltas of this kind and block (model/filter.py); None: use `feed`."""
        return None


class Encoder(Protocol):
    """Writes the events of one response as payloads of frames."""

    @abstractmethod
    def feed(self, events: ev.Events) -> Iterable[Payload]:
        """Return the payloads that these events complete."""

    @abstractmethod
    def passes(self, events: ev.Events) -> bool:
        """Record these events and return whether the upstream's frame of them may be sent unchanged.

        False means that the caller must write them with `feed`: block numbers differ, or earlier content is buffered.
        """

    @abstractmethod
    def ping(self) -> Payload | None:
        """Return a frame without content that keeps a silent stream alive; None if the dialect has none."""

    def lane(self, kind: type[ev.Delta], key: int) -> LaneTarget | None:
        """Return the lane that writes further deltas of this kind and block; None: use `feed`."""
        return None

    def set_next_number(self, number: int) -> None:
        """Continue to number frames from here, after the caller sent frames of its own."""
        return

    def is_unrequested(self, events: ev.Events) -> bool:
        """Return whether the frame of these events holds only data that a quirk requested and the client did not."""
        return False


class TypedRequest(Struct, frozen=True):
    """A request of the documented shape, read from its bytes straight into Structs.

    The body of the call holds only the free-form JSON of the request, with its nesting, so that limits can be checked;
    `other_values` is the approximate number of other JSON values. `conversation` is the canonical request.
    """

    call: ApiRequest
    conversation: Conversation
    other_values: int


class RequestSummary(Struct, frozen=True):
    """A small request of the documented shape, without its texts.

    Requests with equal `shape` differ only in texts and numbers that no filter reads: if one of them can be sent
    unchanged, all can. `conversation` is the canonical request without messages.
    """

    conversation: Conversation
    message_count: int
    shape: Hashable


class ReplyOutcome(Struct, frozen=True):
    """Token usage and stop reason of a whole reply of the documented shape."""

    usage: Usage
    stop: Stop


class SummaryReader(Protocol):
    """Reads requests and replies that a gateway forwards unchanged, faster than the codec reads them.

    Both methods return None for a body that the codec must read.
    """

    @property
    def path(self) -> str:
        """The end of the path of such a request."""

    def read_request(self, request: HttpRequest) -> RequestSummary | None:
        """Return the summary of a small request."""

    def read_reply(self, body: bytes) -> ReplyOutcome | None:
        """Return usage and stop reason of a whole reply."""


class Codec(Protocol):
    """Reads and writes the bodies, events and errors of a dialect, without I/O.

    A codec is a frozen Struct; its fields, if any, are its settings. `request` is always the canonical request that
    the response belongs to.
    """

    @property
    def family(self) -> str:
        """The family whose extra fields and signatures this codec keeps (docs/glossary.md)."""

    def capabilities(self, model: str) -> Capabilities:
        """Return what requests of this dialect can express for a model."""

    def quirks(self, model: str) -> Sequence[Filter]:
        """Return the filters that only this dialect needs."""

    def parse_request(self, call: ApiRequest) -> Conversation:
        """Read the body of a request. Raises MalformedRequest."""

    def render_request(self, conversation: Conversation) -> ApiRequest:
        """Write a request. Raises Unrepresentable for content that the filters should have replaced."""

    def parse_reply(self, body: bytes, request: Conversation) -> Reply:
        """Read a whole reply. Raises UpstreamViolation, or UpstreamFault for an error in it."""

    def render_reply(self, reply: Reply, request: Conversation, environment: Environment) -> bytes:
        """Write a whole reply."""

    def decoder(self, request: Conversation, environment: Environment, keys: ev.BlockKeys | None = None) -> Decoder:
        """Return a decoder for one response stream. It takes block keys from `keys`, or counts its own without.

        It counts in `keys.budget` what it is going to buffer.
        """

    def encoder(
        self, request: Conversation, environment: Environment, budget: ev.ResponseBudget | None = None
    ) -> Encoder:
        """Return an encoder for one response stream. It counts in `budget` what it is going to buffer."""

    def parse_fault(self, response: HttpResponse, sent: Conversation | None = None) -> Fault:
        """Read an error response; `sent`, if known, is the refused request, for services that give no figures."""

    def render_fault(self, fault: Fault) -> bytes:
        """Write the body of an error response."""

    def breaches(self, call: ApiRequest) -> Sequence[Breach]:
        """Return the rules of the dialect that a request breaks."""

    def stream_breaches(self, frames: Iterable[Frame]) -> Sequence[Breach]:
        """Return the rules of the dialect that a captured stream breaks."""

    def rules(self) -> Sequence[DialectRule]:
        """Return the rules that `breaches` and `stream_breaches` check."""


class Binding(Protocol):
    """Path, headers and framing of the HTTP messages of a dialect."""

    def match(self, request: HttpRequest) -> ApiRequest | None:
        """Return the call of this request, or None for a request of another dialect. Raises MalformedRequest."""

    def unwrap(self, body: Json) -> ApiRequest:
        """Return the call of a body whose path and headers are unknown."""

    def wrap(self, call: ApiRequest) -> HttpRequest:
        """Return the HTTP request of a call."""

    def frame_decoder(self) -> FrameDecoder:
        """Return a decoder that cuts the bytes of a response stream into frames."""

    def encode_frame(self, payload: Payload) -> bytes:
        """Return the bytes of one frame."""

    def error_response(self, fault: Fault, body: bytes) -> HttpResponse:
        """Return the HTTP response for a fault whose rendered body is `body`."""


class TokenCounting(Protocol):
    """The response of a token count, for dialects that have one."""

    def parse_count(self, body: bytes) -> int:
        """Read the number of tokens."""

    def render_count(self, tokens: int, estimated: bool) -> bytes:
        """Write the number of tokens; `estimated` says that no upstream counted them."""


class ListedModel(Struct, frozen=True):
    """An available model, with the figures that are known."""

    name: str
    window: int | None = None
    max_output_tokens: int | None = None
    created: int = 0
    title: str = ""  # shown to people; empty: the name


class ModelListing(Protocol):
    """The list of models in a dialect. A figure that is None is left out of its entry."""

    def entry(self, model: ListedModel) -> dict[str, Json]:
        """Return the entry of one model."""

    def render_list(self, entries: list[Json]) -> Json:
        """Return the body of the list."""


class ModelListPage(Struct, frozen=True):
    """One page of a service's own list of models; `next_page` is the token that the next request names."""

    models: tuple[ListedModel, ...]
    next_page: str = ""


class ModelListReader(Protocol):
    """Reads the list of models that a service returns.

    The binding's `wrap` gives the request of a call `models`; its hint `page` is the token of a further page.
    """

    def parse_page(self, body: bytes) -> ModelListPage:
        """Read one page. Entries that cannot be read are left out. Raises UpstreamViolation for another body."""


class StoredResponses(Protocol):
    """Responses that a service stores and returns by their id, for dialects that have them."""

    def render_deleted(self, response_id: str) -> bytes:
        """Write the confirmation that a response was deleted."""

    def is_last_frame(self, frame: Frame) -> bool:
        """Return whether this frame is the last of a stored response's stream."""

    def render_interrupted(self, fault: Fault) -> Payload:
        """Write the last frame of a stream that broke: the stored response is intact and can be read again."""


class Continuation(Protocol):
    """Requests that continue an earlier response by its id, for dialects that have them."""

    def may_store(self, request: Conversation) -> bool:
        """Return whether the client allows to store the response."""

    def continue_conversation(self, earlier: Conversation, now: Conversation) -> Conversation:
        """Return the earlier conversation and the new request as one conversation."""

    def resolve_references(self, request: Conversation, find: Callable[[str], Sequence[Block] | None]) -> Conversation:
        """Return the request with each reference to an item replaced by the content that `find` returns for it."""

    def parse_final_response(self, data: bytes) -> bytes:
        """Return the whole response that the last frame of a stream holds."""

    def parse_items(self, response: bytes) -> Mapping[str, Sequence[Block]]:
        """Return the content of each output item of a response, by the item's id."""


class LimitHeaders(Struct, frozen=True):
    """The names of the headers that report rate limits; `{}` is `requests` or `tokens`."""

    limit: str
    remaining: str
    reset: str
    is_time: bool  # `reset` is a time (RFC 3339), not a duration such as `6m0s`


class Dialect(Struct, frozen=True):
    """One dialect: its codec, its binding, and the parts that only some dialects have."""

    name: str
    codec: Codec
    binding: Binding
    counts: TokenCounting | None = None
    listing: ModelListing | None = None  # None: the list of OpenAI, which most clients can read
    model_list: ModelListReader | None = None  # None: the service has no list, or none at this address
    key_header: str = "authorization"  # the header of the key; `authorization` takes it as a bearer token
    stored: StoredResponses | None = None
    continuation: Continuation | None = None
    models: tuple[str, ...] = ()  # known models of the service
    typed_reader: Callable[[HttpRequest], TypedRequest | None] | None = None  # a faster `match` and `parse_request`
    summary_reader: SummaryReader | None = None  # reads small requests for the plan cache of a gateway
    attribution: bool = False  # the service reads Claude Code's accounting line in the system prompt
    json_lines: bool = False  # streams are JSON lines, so they begin like a whole JSON reply
    # Returns the rules that an error of the service names and that the body of a request does not show.
    refusal_rules: Callable[[ApiRequest, Fault], Sequence[Breach]] | None = None
    limit_headers: LimitHeaders | None = None  # that the SDKs of the family read
    relayed: RelayedEndpoints | None = None  # endpoints other than chat
    title: str = ""  # the name of the API, for people


class ContentDetector(Struct):
    """Distinguishes content from keep-alives.

    Keep-alives are pings, empty deltas, and usage reports or unknown frames that repeat the last one.
    """

    _usage: Usage | None = None
    _frame: Json = None

    def has_content(self, events: ev.Events) -> bool:
        """Return whether one of the events is content."""
        for event in events:
            if isinstance(event, ev.TextDelta | ev.ReasoningDelta | ev.ArgumentsDelta):
                if event.text:
                    return True
            elif isinstance(event, ev.UsageReported):
                counts, self._usage = self._usage, event.usage
                if event.usage != counts:
                    return True
            elif isinstance(event, ev.OpaqueEvent):
                kind, data = event.kind, event.data
                if isinstance(data, dict):
                    data = {name: item for name, item in data.items() if name != _NUMBER}
                last, self._frame = self._frame, [kind, data]
                if kind not in _PINGS and self._frame != last:
                    return True
            else:
                return True
        return False


class StreamReader:
    """Reads the bytes of a response stream, in chunks of any size, into decoded frames.

    A violation becomes a Failed event, so that the frames before it are not lost.

    A single frame that cannot be read does not end the stream (docs/decisions/responses.md#d7): its `DecodedFrame` has
    the reason and no event. With `keeps_unread`, which is set for a client of the same dialect, it also has the bytes
    of the frame, and the client gets them. Without it the frame is dropped; this is a violation while a block is open,
    because a part of the block may be lost.

    The bytes of an incomplete frame are counted in `budget`.

    `feed` and `close` read all frames of a chunk. A `ResponseTranslator` cuts chunks into frames itself, and reads each
    frame with `decode` or by its lane.
    """

    __slots__ = ("_decoder", "_frames", "_keeps_unread", "buffered", "error", "is_over")

    def __init__(
        self,
        frames: FrameDecoder,
        decoder: Decoder,
        *,
        keeps_unread: bool = False,
        budget: ev.ResponseBudget | None = None,
    ) -> None:
        self._frames = frames
        self.buffered = ev.BufferedSize(budget or ev.ResponseBudget())  # bytes of an incomplete frame
        self._keeps_unread = keeps_unread
        self._decoder = decoder
        self.is_over = False
        self.error: DragomanError | None = None  # the error of a decoder that ended the stream

    def feed(self, chunk: bytes) -> list[ev.DecodedFrame]:
        """Read more bytes and return the frames that they complete."""
        decoded_frames: list[ev.DecodedFrame] = []
        try:
            for frame in () if self.is_over else self._frames.feed(chunk):
                if not self.is_over and (decoded := self.decode(frame)) is not None:
                    decoded_frames.append(decoded)
            self.buffered.set(0 if self.is_over else self._frames.buffered_bytes)
        except DragomanError as error:
            if not self.is_over:
                decoded_frames.append(self.fail(error))
        return decoded_frames

    def close(self, broken: Fault | None = None) -> list[ev.DecodedFrame]:
        """Return the frames that the end of the bytes completes; `broken` says why they ended early, if they did."""
        decoded_frames: list[ev.DecodedFrame] = []
        has_more = broken is None and not self.is_over
        if has_more:
            try:
                for frame in self._frames.close():
                    if (decoded := self.decode(frame, closing=True)) is not None:
                        decoded_frames.append(decoded)
                    if self.is_over:
                        break
            except DragomanError as error:
                decoded_frames.append(self.fail(error))
        if not self.is_over:
            self.is_over = True
            decoded_frames.append(ev.DecodedFrame(self._decoder.close(broken)))
        return decoded_frames

    def decode(self, frame: Frame, *, closing: bool = False) -> ev.DecodedFrame | None:
        """Read one frame; None if it must not reach the client. Raises ClientFault only."""
        try:
            events = self._decoder.feed(frame)
        except BadFrame as error:
            if closing or frame.error or frame.kind == "error" or (self._decoder.is_open and not self._keeps_unread):
                return self.fail(error)  # The frame is incomplete, or a part of an open block may be lost.
            return ev.DecodedFrame((), frame.raw if self._keeps_unread else b"", str(error))
        except DragomanError as error:
            return self.fail(error)
        if events is None:
            return None
        if events and type(events[-1]) in _LAST:
            self.is_over = True
            self.buffered.set(0)
        return ev.DecodedFrame(events, frame.raw)

    def fail(self, error: DragomanError) -> ev.DecodedFrame:
        """End the stream with a Failed event. Raises the error again if it is a ClientFault."""
        if isinstance(error, ClientFault):
            raise error
        self.error = error.with_traceback(None)  # A traceback would keep the data in memory.
        self.is_over = True
        self.buffered.set(0)
        return ev.DecodedFrame((ev.Failed(error.fault),))


_PINGS = frozenset({"ping", "pingEvent", "keepalive", "keep-alive", "heartbeat"})
_NUMBER = "sequence_number"  # counts frames, so it differs in each
_LAST: frozenset[type[ev.Event]] = frozenset({ev.Finished, ev.Failed})

"""A dialect is a codec (the language) times a binding (path, headers, framing). Everything here is pure.

To add one: a package with a `DIALECT`, one line in the registry (or an entry point), and its story files.
"""

from __future__ import annotations

import secrets
import time
from abc import abstractmethod
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Literal, Protocol, TypeAlias

from msgspec import Struct

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

Operation: TypeAlias = Literal["generate", "count", "models", "stored"]


class ApiRequest(Struct, frozen=True):
    """A request out of its envelope. `body` holds neither model nor stream; `hints` are headers that matter.

    A `stored` call is about an answer that the service keeps: the `hints` are its `id`, the `action` (read, delete,
    cancel, input_items) and the `query`. Only dialects with a `StoredResponses` have such calls.
    """

    operation: Operation
    model: str
    stream: bool
    body: Json
    hints: Mapping[str, str] = {}


def in_cache_order(body: Mapping[str, Json], first: Iterable[str], history: str) -> dict[str, Json]:
    """The body with the fields that prompt caches begin with at its head, and the history, which grows, at its end.

    So the body of a conversation is, up to its end, a prefix of the body of the same conversation some turns later.
    """
    head = {name: body[name] for name in first if name in body}
    tail = {history: body[history]} if history in body else {}
    return {**head, **{name: value for name, value in body.items() if name not in head and name != history}, **tail}


class Environment(Struct, frozen=True):
    """Where decoders and encoders get ids and the time from; nothing else takes them."""

    new_id: Callable[[str], str]
    now: Callable[[], int]


SYSTEM_ENVIRONMENT = Environment(new_id=lambda prefix: prefix + secrets.token_hex(12), now=lambda: int(time.time()))


class Decoder(Protocol):
    """Frames to events; sees whole frames only; may raise UpstreamViolation or UpstreamFault.

    BadFrame says that one frame cannot be read, and that the decoder is as it was before the frame. Every other
    violation ends the stream, because it drops, merges or leaves open a call or a block.

    It obeys model/assemble.py: the events of all frames and of `close` are one whole stream.
    """

    @property
    @abstractmethod
    def is_open(self) -> bool:
        """Whether a call or another block has begun and not ended."""

    @abstractmethod
    def feed(self, frame: Frame) -> ev.Events | None:
        """The frame's meaning; None for one that must not travel, not even at home (docs/decisions/answers.md#d51)."""

    @abstractmethod
    def close(self, broken: Fault | None) -> ev.Events:
        """The end of the bytes: by themselves, or because something broke. Empty if the stream had ended."""

    def lane(self, kind: type[ev.Delta], key: int) -> LaneSource | None:
        """Return how the next such delta of this block is read from its frame (model/filter.py); None: by `feed`."""
        return None


class Encoder(Protocol):
    """Events to payloads."""

    @abstractmethod
    def feed(self, events: ev.Events) -> Iterable[Payload]: ...

    @abstractmethod
    def passes(self, events: ev.Events) -> bool:
        """Count these events and let their own frame through. False: numbering moved, or something is held back."""

    @abstractmethod
    def ping(self) -> Payload | None:
        """A frame that says nothing, to keep a silent stream alive; None where the dialect has none."""

    def lane(self, kind: type[ev.Delta], key: int) -> LaneTarget | None:
        """Return how the next such delta of this block is written; None: by `feed`."""
        return None

    def set_next_number(self, number: int) -> None:
        """Count so many frames as sent, where frames are numbered and others went out before."""
        return

    def is_unrequested(self, events: ev.Events) -> bool:
        """Whether the frame of these events says only what a quirk asked for and the client did not."""
        return False


class TypedRequest(Struct, frozen=True):
    """A request of the documented shape, read from its bytes into Structs and not into a tree of JSON values.

    The body of the call holds what is free-form in it, as deeply nested as it was, for those who set limits;
    `other_values` is about how many JSON values it had beside those.
    """

    call: ApiRequest
    asked: Conversation
    other_values: int


class RequestSummary(Struct, frozen=True):
    """A small request of the documented shape, without its texts. Those of one `shape` differ only in texts and figures
    that no filter reads: where one passes unchanged, the others do.
    """

    asked: Conversation  # without messages
    message_count: int
    shape: Hashable


class ReplyOutcome(Struct, frozen=True):
    """What a whole reply of the documented shape says about itself."""

    usage: Usage
    stop: Stop


class SummaryReader(Protocol):
    """Reads what a gateway passes on unchanged, for less than the codec does. None: the codec must read it."""

    @property
    def path(self) -> str:
        """How the path of such a request ends."""

    def read_request(self, request: HttpRequest) -> RequestSummary | None: ...
    def read_reply(self, body: bytes) -> ReplyOutcome | None: ...


class Codec(Protocol):
    """The language. A frozen Struct whose fields, if any, are its settings."""

    @property
    def family(self) -> str: ...
    def capabilities(self, model: str) -> Capabilities: ...
    def quirks(self, model: str) -> Sequence[Filter]:
        """Filters only this dialect needs."""

    def parse_request(self, call: ApiRequest) -> Conversation: ...
    def render_request(self, conversation: Conversation) -> ApiRequest: ...
    def parse_reply(self, body: bytes, asked: Conversation) -> Reply: ...
    def render_reply(self, reply: Reply, asked: Conversation, environment: Environment) -> bytes: ...
    def decoder(self, asked: Conversation, environment: Environment, keys: ev.BlockKeys | None = None) -> Decoder:
        """A decoder for one answer. It takes the key of every block from `keys`; without it, it counts its own.

        What it keeps of the answer for later it counts in `keys.budget` first.
        """

    def encoder(
        self, asked: Conversation, environment: Environment, budget: ev.ResponseBudget | None = None
    ) -> Encoder:
        """An encoder for one answer. What it keeps of the answer for later it counts in `budget` first."""

    def parse_fault(self, response: HttpResponse, sent: Conversation | None = None) -> Fault:
        """What a refusal says; `sent`, if known, is what was refused, for services that give no figures."""

    def render_fault(self, fault: Fault) -> bytes: ...
    def breaches(self, call: ApiRequest) -> Sequence[Breach]:
        """What a request breaks of the dialect's own rules."""

    def stream_breaches(self, frames: Iterable[Frame]) -> Sequence[Breach]:
        """What a captured stream breaks of the dialect's own rules."""

    def rules(self) -> Sequence[DialectRule]:
        """The rules that `breaches` and `stream_breaches` check."""


class Binding(Protocol):
    """Path, headers and framing."""

    def match(self, request: HttpRequest) -> ApiRequest | None:
        """The call in this request, or None if it is not for this dialect. Raises MalformedRequest."""

    def unwrap(self, body: Json) -> ApiRequest:
        """The call in a body whose path and headers are not known."""

    def wrap(self, call: ApiRequest) -> HttpRequest: ...
    def frame_decoder(self) -> FrameDecoder: ...
    def encode_frame(self, payload: Payload) -> bytes: ...
    def error_response(self, fault: Fault, body: bytes) -> HttpResponse:
        """The HTTP answer for a fault whose rendered body is `body`."""


class TokenCounting(Protocol):
    """Token counting, for dialects that have it."""

    def parse_count(self, body: bytes) -> int: ...
    def render_count(self, tokens: int, estimated: bool) -> bytes: ...


class ListedModel(Struct, frozen=True):
    """A model that can be asked for, with its figures as far as anybody has told them."""

    name: str
    window: int | None = None
    longest_answer: int | None = None
    created: int = 0


class ModelListing(Protocol):
    """How a family tells which models there are. What is None in an entry is left out of it: no figure is made up."""

    def entry(self, model: ListedModel) -> dict[str, Json]: ...
    def render_list(self, entries: list[Json]) -> Json: ...


class StoredResponses(Protocol):
    """Answers that the service keeps and gives again by their id, for dialects that have it."""

    def render_deleted(self, answer_id: str) -> bytes:
        """Render the confirmation that an answer was deleted."""

    def is_last_frame(self, frame: Frame) -> bool:
        """Whether this frame of a kept answer's stream is its last."""

    def render_interrupted(self, fault: Fault) -> Payload:
        """The last frame of a stream that broke off: the answer itself has not failed, and can be read again."""


class Continuation(Protocol):
    """How requests go on from an earlier answer by its id, for dialects that have it."""

    def may_store(self, asked: Conversation) -> bool:
        """Whether the client lets its answer be kept."""

    def continue_conversation(self, earlier: Conversation, now: Conversation) -> Conversation:
        """What is asked now, after what was said before, as one conversation."""

    def resolve_references(self, asked: Conversation, find: Callable[[str], Sequence[Block] | None]) -> Conversation:
        """The same with the items that `find` knows in place of the references to them."""

    def parse_final_response(self, data: bytes) -> bytes:
        """The whole response that the last frame of a stream holds."""

    def parse_items(self, response: bytes) -> Mapping[str, Sequence[Block]]:
        """What each output item of a response says, by the item's id."""


class Dialect(Struct, frozen=True):
    name: str
    codec: Codec
    binding: Binding
    counts: TokenCounting | None = None
    listing: ModelListing | None = None  # None: as OpenAI lists, which most clients can read
    key_header: str = "authorization"  # where its service wants a key: there as a bearer token, elsewhere alone
    stored: StoredResponses | None = None
    continuation: Continuation | None = None
    models: tuple[str, ...] = ()  # names that the service is known to have
    typed_reader: Callable[[HttpRequest], TypedRequest | None] | None = None  # reads requests faster; None: match it
    summary_reader: SummaryReader | None = None  # reads small requests for the plan cache of a gateway
    attribution: bool = False  # its service reads Claude Code's accounting line in the system prompt
    json_lines: bool = False  # its streams begin with a JSON object, as whole answers of all dialects do


class ContentDetector(Struct):
    """Tells content from signs of life: pings, empty deltas, and counts or unknown frames that repeat the last one."""

    _usage: Usage | None = None
    _frame: Json = None

    def has_content(self, events: ev.Events) -> bool:
        """Whether one of the events is content."""
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
    """Bytes to steps, cut anywhere. A violation becomes Failed, so the frames before a bad one are not lost.

    A single frame whose content cannot be read does not end the stream (docs/decisions/answers.md#d7): it is a step of
    its own, which tells why. The step keeps the frame's bytes if `keeps_unread` is set: the client speaks the same
    dialect and gets them. Without it the frame is left out, which is a violation while a block is open, because a part
    of that block may be lost.

    The bytes of a frame that has begun are counted in `budget`.

    `feed` and `close` give all steps of some bytes. An answer cuts them into frames itself, and reads each with `step`
    or by its lane.
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
        self.buffered = ev.BufferedSize(budget or ev.ResponseBudget())  # bytes that wait for the rest of their frame
        self._keeps_unread = keeps_unread
        self._decoder = decoder
        self.is_over = False
        self.error: DragomanError | None = None  # what the decoders raised, if that ended the stream

    def feed(self, chunk: bytes) -> list[ev.DecodedFrame]:
        """Take more bytes and give the steps they complete."""
        steps: list[ev.DecodedFrame] = []
        try:
            for frame in () if self.is_over else self._frames.feed(chunk):
                if not self.is_over and (step := self.step(frame)) is not None:
                    steps.append(step)
            self.buffered.set(0 if self.is_over else self._frames.held)
        except DragomanError as error:
            if not self.is_over:
                steps.append(self.fail(error))
        return steps

    def close(self, broken: Fault | None = None) -> list[ev.DecodedFrame]:
        """The end of the bytes; `broken` says why if it was not their own end."""
        steps: list[ev.DecodedFrame] = []
        has_more = broken is None and not self.is_over
        if has_more:
            try:
                for frame in self._frames.close():
                    if (step := self.step(frame, closing=True)) is not None:
                        steps.append(step)
                    if self.is_over:
                        break
            except DragomanError as error:
                steps.append(self.fail(error))
        if not self.is_over:
            self.is_over = True
            steps.append(ev.DecodedFrame(self._decoder.close(broken)))
        return steps

    def step(self, frame: Frame, *, closing: bool = False) -> ev.DecodedFrame | None:
        """Read one frame; None if it says nothing that may travel. Raises an error that is not the upstream's."""
        try:
            events = self._decoder.feed(frame)
        except BadFrame as error:
            if closing or frame.error or frame.kind == "error" or (self._decoder.is_open and not self._keeps_unread):
                return self.fail(error)  # it was cut, or a part of an open block may be lost
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
        """The end that an error makes. Raises one that is not the upstream's fault."""
        if isinstance(error, ClientFault):
            raise error
        self.error = error.with_traceback(None)  # its frames would keep what was being read
        self.is_over = True
        self.buffered.set(0)
        return ev.DecodedFrame((ev.Failed(error.fault),))


_PINGS = frozenset({"ping", "pingEvent", "keepalive", "keep-alive", "heartbeat"})
_NUMBER = "sequence_number"  # counts frames, and so differs in each
_LAST: frozenset[type[ev.Event]] = frozenset({ev.Finished, ev.Failed})

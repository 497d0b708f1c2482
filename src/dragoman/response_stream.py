"""Translate the response of an upstream into the client's dialect, streamed or whole. Pure.

The gateway and the library feed a `ResponseTranslator` the bytes of the upstream and send its output to the client.
Each chunk is split into frames, and each frame goes through the decoder, the response filters and the encoder
(`ResponseTranslator._add`). Most frames are deltas of one open block: after one delta took that general path, a lane
(see model/filter.py) translates the deltas that follow with one decode and one search each. Any other frame closes the
lane.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from typing import Any, ClassVar, TypeAlias

from msgspec import Struct, structs

from dragoman.dialects.base import (
    SYSTEM_ENVIRONMENT,
    ApiRequest,
    Binding,
    ContentDetector,
    Dialect,
    Encoder,
    Environment,
    StreamReader,
)
from dragoman.errors import ClientFault, DragomanError, ErrorKind, Fault
from dragoman.filters.calls import wrap_reply_arguments
from dragoman.model import events as ev
from dragoman.model.assemble import assemble_reply, reply_events
from dragoman.model.blocks import ToolCall
from dragoman.model.conversation import Reply, Stop, Usage
from dragoman.model.filter import (
    BLOCK_STARTS,
    MAX_RESPONSE_NOTES,
    DeltaListener,
    EventKind,
    EventKinds,
    LaneWatch,
    Note,
    Notes,
    Search,
)
from dragoman.translate import Plan
from dragoman.wire.frame import Frame, Payload
from dragoman.wire.http import HttpResponse
from dragoman.wire.jsonio import DECODE_ERRORS, Json, encode_text

MAX_WHOLE_REPLY = 64 * 1024 * 1024  # bytes of a response that is read whole
MaskFault: TypeAlias = Callable[[Fault], Fault]  # returns the same object if there is nothing to remove


class ResponseFilters:
    """The response halves of all filters of a plan, run in reverse order of the request halves."""

    __slots__ = ("_reads", "filters", "keys", "notes", "readers")

    def __init__(self, plan: Plan, keys: ev.BlockKeys | None = None) -> None:
        self.notes = Notes(most=MAX_RESPONSE_NOTES)
        self.keys = keys or ev.BlockKeys()
        self.filters = [make(self.notes, self.keys) for make in reversed(plan.response_filters)]
        self._reads = [filter_.reads for filter_ in self.filters]
        self.readers = _readers(*self._reads)  # positions of the filters that read an event, by its kind

    def feed(self, events: ev.Events) -> ev.Events:
        """Return the filtered events: the same tuple if no filter changes anything."""
        first, filters, reads = 0, self.filters, self._reads
        while events:
            first_event = events[0]
            kinds: EventKind | frozenset[EventKind] = type(first_event)
            if len(events) > 1:
                kinds = frozenset(
                    [type(each.block) if isinstance(each, ev.BlockStarted) else type(each) for each in events]
                )
            elif isinstance(first_event, ev.BlockStarted):
                kinds = type(first_event.block)
            for position in self.readers[kinds]:
                if position >= first:
                    filter_ = filters[position]
                    changed = filter_.feed(events)
                    if filter_.reads is not reads[position]:
                        reads[position] = filter_.reads
                        self.readers = _readers(*reads)
                    if changed is not events:
                        events, first = changed, position + 1
                        break
            else:
                break
        return events


class _Readers(dict[EventKind | frozenset[EventKind], tuple[int, ...]]):
    """Positions of the filters that read events of a kind, or of any of several kinds; computed on first use."""

    def __init__(self, *reads: EventKinds | None) -> None:
        super().__init__()
        self._reads = reads

    def __missing__(self, kinds: EventKind | frozenset[EventKind]) -> tuple[int, ...]:
        any_of = kinds if isinstance(kinds, frozenset) else frozenset({kinds})
        if not any_of.isdisjoint(BLOCK_STARTS):
            any_of |= {ev.BlockStarted}
        self[kinds] = indices = tuple(
            [at for at, read in enumerate(self._reads) if read is None or not any_of.isdisjoint(read)]
        )
        return indices


_readers = lru_cache(maxsize=1024)(_Readers)  # shared by all responses whose filters read the same kinds


class ResponseProgress(Struct):
    """The state of a response: whether content was sent, and its id, usage, stop reason and called tools so far."""

    has_content: bool = False  # content was sent that a retry would repeat
    id: str = ""  # of the reply
    usage: Usage | None = None
    stop: Stop | None = None
    tools: list[str] = []  # the names that the client gets, of the first calls


MAX_TOOLS = 100  # names of called tools that are kept of one response
_TRACKED: frozenset[type[ev.Event]] = frozenset({ev.Started, ev.UsageReported, ev.Stopped, ev.Failed})
_DELTAS: frozenset[type[ev.Event]] = frozenset({ev.TextDelta, ev.ReasoningDelta, ev.ArgumentsDelta})
_GAP = b"\0gap\0"  # marks the place of the text; occurs in no payload


class _Lane(Struct, frozen=True, gc=False):
    """The fast path for the deltas of one block (model/filter.py), built from the parts of all stages."""

    kind: str  # of the upstream's frames
    decode: Callable[[bytes], Any]
    text_of: Callable[[Any], str | None]
    search: Search | None  # finds text that must take the general path
    listeners: tuple[DeltaListener, ...]
    unchanged: bool  # the client gets the upstream's own frames
    before: bytes = b""  # the bytes around the texts in the client's frames
    between: bytes = b""
    after: bytes = b""

    def write_one(self, frame: Frame) -> bytes | None:
        """Return the client's bytes for the frame; None if it is not a delta of the lane, or the lane has listeners."""
        if self.listeners or frame.kind != self.kind or frame.error:
            return None
        try:
            text = self.text_of(self.decode(frame.data))
        except DECODE_ERRORS:
            return None
        if not text or (self.search is not None and self.search(text) is not None):
            return None
        return frame.raw if self.unchanged else self.before + encode_text(text) + self.after

    def write(self, frames: Sequence[Frame], at: int, out: list[bytes]) -> int:
        """Write the deltas of the lane from index `at` on; return the index of the first other frame."""
        kind, decode, text_of, search = self.kind, self.decode, self.text_of, self.search
        texts: list[str] = []
        try:
            for frame in islice(frames, at, None) if at else frames:
                if frame.kind != kind or frame.error:
                    break
                text = text_of(decode(frame.data))
                if not text or (search is not None and search(text) is not None):
                    break
                texts.append(text)
        except DECODE_ERRORS:  # the next frame does not belong to the lane
            pass
        if texts:
            if self.unchanged:
                out += [frame.raw for frame in frames[at : at + len(texts)]]
            else:
                out.append(self.before + self.between.join(map(encode_text, texts)) + self.after)
            if self.listeners:
                written = "".join(texts)
                for listener in self.listeners:
                    listener(written)
        return at + len(texts)


def _any_of(searches: Sequence[Search]) -> Search:
    return lambda text: next((found for search in searches if (found := search(text)) is not None), None)


class ResponseTranslator:
    """Translates one response: the upstream's bytes in, the client's bytes out.

    `mask` removes from an upstream's error what the client must not see. `budget` counts what is buffered of the
    response; over a limit the client's stream ends with an error. `encoder` replaces the encoder of the client's codec.
    """

    __slots__ = (
        "_content",
        "_decoder",
        "_encoder",
        "_filters",
        "_frame",
        "_keeps_frames",
        "_lane",
        "_mask",
        "_reader",
        "_splitter",
        "fault",
        "is_over",
        "notes",
        "progress",
        "quiet_chunks",
    )
    _passes: ClassVar[bool] = False  # every frame is sent unchanged, even one that cannot be read

    def __init__(
        self,
        plan: Plan,
        environment: Environment = SYSTEM_ENVIRONMENT,
        mask: MaskFault | None = None,
        budget: ev.ResponseBudget | None = None,
        encoder: Encoder | None = None,
    ) -> None:
        upstream, client = plan.upstream, plan.client
        self._mask = mask
        keys, self._keeps_frames = ev.BlockKeys(budget=budget or ev.ResponseBudget()), plan.keeps_frames
        self._decoder = upstream.codec.decoder(plan.translated, environment, keys)
        keeps_unread = plan.same_wire and not plan.settings.repair
        self._splitter = upstream.binding.frame_decoder()
        self._reader = StreamReader(self._splitter, self._decoder, keeps_unread=keeps_unread, budget=keys.budget)
        self._filters = ResponseFilters(plan, keys)
        self.notes = self._filters.notes
        self._encoder = encoder or client.codec.encoder(plan.original, environment, keys.budget)
        self._frame = client.binding.encode_frame
        self._lane: _Lane | None = None  # of the block of the last delta
        self._content = ContentDetector()
        self.progress = ResponseProgress()
        self.is_over = False
        self.quiet_chunks = 0  # number of chunks without content
        self.fault: Fault | None = None

    def feed(self, chunk: bytes) -> bytes:
        """Translate a chunk of the upstream's bytes, cut anywhere; return the client's bytes."""
        if self.is_over or self._reader.is_over:
            return b""
        frames, lane = self._splitter.feed(chunk), self._lane
        # Fast path: the chunk is one delta, as most chunks are.
        if lane is not None and type(frames) is tuple and frames and (data := lane.write_one(frames[0])) is not None:
            return data
        out: list[bytes] = []
        self._read(frames, out)
        return b"".join(out)

    def _read(self, incoming: Iterable[Frame], out: list[bytes]) -> list[Frame]:
        """Translate the frames that a chunk completes, and return them. The client's bytes are added to `out`."""
        frames: list[Frame] = []
        reader, has_content, failure = self._reader, False, None
        try:
            frames += incoming  # the frames before a malformed one are added, then it raises
            if self._splitter.buffered_bytes != reader.buffered.size:
                reader.buffered.set(self._splitter.buffered_bytes)
        except DragomanError as error:
            failure = error
        at, count = 0, len(frames)
        try:
            while at < count:
                if self._lane is not None and (end := self._lane.write(frames, at, out)) > at:
                    has_content, at = True, end
                    continue
                decoded = reader.decode(frames[at])
                if decoded is not None:
                    has_content = self._content.has_content(decoded.events) or has_content
                    self._add(decoded, out)
                elif self._passes:
                    out.append(frames[at].raw)
                at = count if reader.is_over else at + 1
            if failure is not None and not reader.is_over:
                has_content = True
                self._add(reader.fail(failure), out)
        except DragomanError as error:
            self._failed(error, out)
        if not has_content:
            self.quiet_chunks += 1
        return frames

    def close(self, broken: Fault | None = None) -> bytes:
        """Return the last bytes for the client: the end of the stream, or an error in its dialect.

        `broken` says why the upstream's bytes ended early.
        """
        out: list[bytes] = []
        try:
            for decoded in self._reader.close(broken):
                self._add(decoded, out)
        except DragomanError as error:
            self._failed(error, out)
        return b"".join(out)

    def ping(self) -> bytes:
        """Return a keep-alive frame for the client; empty if its dialect has none."""
        payload = None if self.is_over else self._encoder.ping()
        return b"" if payload is None else self._frame(payload)

    def _failed(self, error: DragomanError, out: list[bytes]) -> None:
        """End the client's stream with an error in its dialect.

        Raises a ClientFault again, since the upstream did not cause it: the caller handles it and calls `close`.
        """
        if isinstance(error, ClientFault):
            raise error
        self.is_over, self.fault, self._lane = True, error.fault, None
        out += map(self._frame, self._encoder.feed((self._masked(ev.Failed(error.fault)),)))

    def _add(self, decoded: ev.DecodedFrame, out: list[bytes]) -> None:
        """Translate one frame on the general path."""
        self._lane = None
        if decoded.decode_error:
            note_unread(self.notes, decoded)
            out.append(decoded.raw)
            return
        if self.is_over:
            return
        events = self._filters.feed(decoded.events)
        is_delta = len(events) == 1 and type(events[0]) in _DELTAS
        if is_delta:  # most frames of a stream
            self.progress.has_content = True
        else:
            events = self._watched(events)
        is_same = self._keeps_frames and decoded.raw and events == decoded.events
        unchanged = bool(is_same and self._encoder.passes(events))
        if unchanged:
            out.append(decoded.raw)
        else:
            frame = self._frame
            out += [frame(payload) for payload in self._encoder.feed(events)]
        if is_delta and events is decoded.events:
            self._lane = self._open_lane(events[0], unchanged)

    def _open_lane(self, delta: ev.Event, unchanged: bool) -> _Lane | None:
        """Return the lane for the deltas after this one; None if they must take the general path."""
        assert isinstance(delta, ev.Delta)
        kind, key = type(delta), delta.key
        source = self._decoder.lane(kind, key)
        if source is None:
            return None
        if self._passes:
            own = () if source.listener is None else (source.listener,)
            return _Lane(source.kind, source.decode, source.text_of, None, own, True)
        filters, watches = self._filters, list[LaneWatch]()
        for position in filters.readers[kind]:
            watch = filters.filters[position].lane(kind, key)
            if watch is None:
                return None  # the filter must see every delta
            watches.append(watch)
        target, frame = self._encoder.lane(kind, key), self._frame
        if target is None:
            return None
        before, gap, after = frame(Payload(target.kind, target.before + _GAP + target.after)).partition(_GAP)
        if not gap or frame(Payload(target.kind, target.before + target.after)) != before + after:
            return None  # the frame depends on the text elsewhere
        candidates = (source.listener, *[watch.listener for watch in watches], target.listener)
        listeners = tuple([listener for listener in candidates if listener is not None])
        searches = [watch.search for watch in watches if watch.search is not None]
        search = _any_of(searches) if len(searches) > 1 else next(iter(searches), None)
        parts = source.kind, source.decode, source.text_of, search, listeners, unchanged
        return _Lane(*parts, before, after + before, after)

    def _watched(self, events: ev.Events) -> ev.Events:
        """Update `progress`. Return the events, with a failure masked for the client."""
        progress = self.progress
        for event in events:
            if type(event) not in _TRACKED:
                progress.has_content = True
                if type(event) is ev.BlockStarted and type(event.block) is ToolCall and len(progress.tools) < MAX_TOOLS:
                    progress.tools.append(event.block.name)
            elif isinstance(event, ev.Started | ev.UsageReported):
                progress.usage = event.usage or progress.usage
                if isinstance(event, ev.Started):
                    progress.id = event.id
            elif isinstance(event, ev.Stopped):
                progress.has_content, progress.stop = True, progress.stop or event.stop
        last = events[-1] if events else None
        if isinstance(last, ev.Finished):
            self.is_over = True
        elif isinstance(last, ev.Failed):
            self.is_over, failed = True, self._masked(last)
            self.fault = failed.fault
            events = events if failed is last else (*events[:-1], failed)
        return events

    def _masked(self, failed: ev.Failed) -> ev.Failed:
        """Return the failure without what the client must not see; the same object if nothing is removed."""
        masked = failed.fault if self._mask is None else self._mask(failed.fault)
        return failed if masked is failed.fault else ev.Failed(masked)


def note_unread(notes: Notes, decoded: ev.DecodedFrame) -> None:
    """Write a note about a frame that could not be read: it was passed on or left out."""
    if decoded.raw:
        notes.changed(
            "stream.unread_frame", "", f"a frame that cannot be read was passed on unchanged: {decoded.decode_error}"
        )
    else:
        notes.dropped("stream.unread_frame", "", f"a frame that cannot be read was left out: {decoded.decode_error}")


def translate_whole_reply(
    plan: Plan, body: bytes, environment: Environment = SYSTEM_ENVIRONMENT
) -> tuple[bytes, list[Note]]:
    """Return a whole reply in the client's dialect, and the notes.

    It is translated as events, so that streamed and whole replies cannot differ.
    """
    reply, notes = read_whole_reply(plan, body, environment)
    return plan.client.codec.render_reply(reply, plan.original, environment), notes


def read_whole_reply(
    plan: Plan, body: bytes, environment: Environment = SYSTEM_ENVIRONMENT, budget: ev.ResponseBudget | None = None
) -> tuple[Reply, list[Note]]:
    """Return a whole reply as the canonical reply for the client, not yet rendered, and the notes.

    A body that is a stream, though the request did not ask for one, is assembled, with a note.
    """
    filters = ResponseFilters(plan, ev.BlockKeys(budget=budget or ev.ResponseBudget()))
    events = filters.feed(_body_events(plan, body, environment, filters))
    return assemble_client_reply(plan, events, filters.notes), list(filters.notes)


def is_event_stream(body: bytes) -> bool:
    """Return whether a body begins like an event stream, which no JSON body does."""
    return body.lstrip()[:6].startswith((b"data:", b"event:", b":", b"id:", b"retry:")) or body[:1] == b"\0"


def assemble_client_reply(plan: Plan, events: ev.Events, notes: Notes) -> Reply:
    """Assemble events into a whole reply that the client's dialect can express."""
    reply = assemble_reply(events, notes)
    takes_objects = plan.client.codec.capabilities(plan.original.model).arguments == "object"
    return wrap_reply_arguments(reply, notes) if takes_objects else reply


def _body_events(plan: Plan, body: bytes, environment: Environment, filters: ResponseFilters) -> ev.Events:
    """Return the events of a whole response body. The body of an upstream that only streams is read as a stream."""
    upstream, events = plan.upstream, list[ev.Event]()
    if "streams_only" not in plan.traits:
        if not is_event_stream(body):
            return reply_events(upstream.codec.parse_reply(body, plan.translated), filters.keys)
        filters.notes.changed("stream.gathered", "", "the upstream sent a stream although a whole reply was requested")
    reader = StreamReader(
        upstream.binding.frame_decoder(), upstream.codec.decoder(plan.translated, environment, filters.keys)
    )
    for decoded in (*reader.feed(body), *reader.close()):
        if decoded.decode_error:
            note_unread(filters.notes, decoded)
        events += decoded.events
    if reader.error is not None:
        raise reader.error
    return tuple(events)


# --- the heads of responses to clients, and errors before a response has begun


_WAITS: dict[ErrorKind, float] = {"quota": 60.0}  # retry-after of a 429 if the upstream sent none
_USUAL_WAIT = 2.0
# Statuses of checks of the HTTP request, which are the same in all dialects.
_OF_HTTP = frozenset({405, 408, 414, 415, 417, 421, 426, 431, 505})


def stream_content_type(binding: Binding, hints: Mapping[str, Json]) -> str:
    """Return the content type of a stream for a client of this binding; hints may choose among framings."""
    texts = {name: value for name, value in hints.items() if isinstance(value, str)}
    return binding.wrap(ApiRequest("generate", "model", True, {}, texts)).header("accept") or "application/octet-stream"


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

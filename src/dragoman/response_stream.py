"""An answer on its way back: what an upstream says, through the ways back of its plan, in the client's words. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import islice
from typing import Any, ClassVar, TypeAlias

from msgspec import Struct

from dragoman.dialects.base import SYSTEM_ENVIRONMENT, ContentDetector, Encoder, Environment, StreamReader
from dragoman.errors import ClientFault, DragomanError, Fault
from dragoman.filters.calls import wrap_reply_arguments
from dragoman.model import events as ev
from dragoman.model.assemble import assemble_reply, reply_events
from dragoman.model.conversation import Reply, Stop, Usage
from dragoman.model.filter import (
    BLOCK_STARTS,
    MAX_RESPONSE_NOTES,
    EventKind,
    EventKinds,
    LaneWatch,
    Listener,
    Note,
    Notes,
    Search,
)
from dragoman.translate import Plan
from dragoman.wire.frame import Frame, Payload
from dragoman.wire.jsonio import DECODE_ERRORS, encode_text

MAX_WHOLE_REPLY = 64 * 1024 * 1024  # bytes of an answer that is read whole
MaskFault: TypeAlias = Callable[[Fault], Fault]  # gives the same one if there is nothing to take out


class ResponseFilters:
    """The answer halves of all filters of a plan as one, last change first."""

    __slots__ = ("_reads", "backs", "concerned", "keys", "notes")

    def __init__(self, plan: Plan, keys: ev.BlockKeys | None = None) -> None:
        self.notes = Notes(most=MAX_RESPONSE_NOTES)
        self.keys = keys or ev.BlockKeys()
        self.backs = [make(self.notes, self.keys) for make in reversed(plan.response_filters)]
        self._reads = [back.reads for back in self.backs]
        self.concerned = _concerned(*self._reads)  # by the kind of events, the places of the halves that read them

    def feed(self, events: ev.Events) -> ev.Events:
        """Return what becomes of the events: the same tuple if no filter changes anything."""
        first, backs, reads = 0, self.backs, self._reads
        while events:
            first_event = events[0]
            kinds: EventKind | frozenset[EventKind] = type(first_event)
            if len(events) > 1:
                kinds = frozenset(
                    [type(each.block) if isinstance(each, ev.BlockStarted) else type(each) for each in events]
                )
            elif isinstance(first_event, ev.BlockStarted):
                kinds = type(first_event.block)
            for position in self.concerned[kinds]:
                if position >= first:
                    back = backs[position]
                    changed = back.feed(events)
                    if back.reads is not reads[position]:
                        reads[position] = back.reads
                        self.concerned = _concerned(*reads)
                    if changed is not events:
                        events, first = changed, position + 1
                        break
            else:
                break
        return events


class _Concerned(dict[EventKind | frozenset[EventKind], tuple[int, ...]]):
    """Which filters look at events of a kind, or of several kinds together: hardly any, if the events are usual."""

    def __init__(self, *reads: EventKinds | None) -> None:
        super().__init__()
        self._reads = reads

    def __missing__(self, kinds: EventKind | frozenset[EventKind]) -> tuple[int, ...]:
        any_of = kinds if isinstance(kinds, frozenset) else frozenset({kinds})
        if not any_of.isdisjoint(BLOCK_STARTS):
            any_of |= {ev.BlockStarted}
        self[kinds] = found = tuple(
            [at for at, read in enumerate(self._reads) if read is None or not any_of.isdisjoint(read)]
        )
        return found


_concerned = lru_cache(maxsize=1024)(_Concerned)  # the same for all answers whose filters look at the same


class ResponseProgress(Struct):
    """How far an answer has come: whether it has begun to say something, and its counts and stop so far."""

    has_content: bool = False  # something came that a second try would say again
    id: str = ""  # the answer's own
    usage: Usage | None = None
    stop: Stop | None = None


_WATCHED: frozenset[type[ev.Event]] = frozenset({ev.Started, ev.UsageReported, ev.Stopped, ev.Failed})
_DELTAS: frozenset[type[ev.Event]] = frozenset({ev.TextDelta, ev.ReasoningDelta, ev.ArgumentsDelta})
_GAP = b"\0gap\0"  # what no payload holds


class _Lane(Struct, frozen=True, gc=False):
    """The short way of the deltas of one block (model/filter.py), put together from all parts."""

    kind: str  # of the upstream's frames
    decode: Callable[[bytes], Any]
    text_of: Callable[[Any], str | None]
    search: Search | None  # finds the reason for the general way in a text
    listeners: tuple[Listener, ...]
    as_it_came: bool  # the upstream's own frame goes out
    before: bytes = b""  # what stands around the texts in the client's frames
    between: bytes = b""
    after: bytes = b""

    def write_one(self, frame: Frame) -> bytes | None:
        """Return what the client gets for the frame; None if it is not a delta of the lane, or a listener wants it."""
        if self.listeners or frame.kind != self.kind or frame.error:
            return None
        try:
            text = self.text_of(self.decode(frame.data))
        except DECODE_ERRORS:
            return None
        if not text or (self.search is not None and self.search(text) is not None):
            return None
        return frame.raw if self.as_it_came else self.before + encode_text(text) + self.after

    def write(self, frames: Sequence[Frame], at: int, out: list[bytes]) -> int:
        """Write the deltas of the lane from `at` on, and return the place of the first frame that is none of them."""
        kind, decode, text_of, search, as_it_came = self.kind, self.decode, self.text_of, self.search, self.as_it_came
        texts: list[str] = []
        try:
            for frame in islice(frames, at, None) if at else frames:
                if frame.kind != kind or frame.error:
                    break
                text = text_of(decode(frame.data))
                if not text or (search is not None and search(text) is not None):
                    break
                texts.append(text)
                if as_it_came:
                    out.append(frame.raw)
        except DECODE_ERRORS:  # the next frame is none of the lane
            pass
        if texts:
            if not as_it_came:
                out.append(self.before + self.between.join(map(encode_text, texts)) + self.after)
            if self.listeners:
                written = "".join(texts)
                for listener in self.listeners:
                    listener(written)
        return at + len(texts)


def _any_of(searches: Sequence[Search]) -> Search:
    return lambda text: next((found for search in searches if (found := search(text)) is not None), None)


class ResponseTranslator:
    """One answer on its way back: the upstream's bytes in, the client's bytes out.

    Every frame goes through decoder, response filters and encoder. The deltas of an open block go by its lane, a short
    way that gives the same output.

    `mask` takes out of an upstream's complaint what the client must not read. `budget` counts what is kept of the
    answer; over a limit the client's stream ends with an error. `encoder` writes for the client instead of its codec's.
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
        "notes",
        "over",
        "progress",
        "quiet_chunks",
    )
    _passes: ClassVar[bool] = False  # every frame goes out as it came, whatever it means

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
        self._lane: _Lane | None = None  # of the block whose delta came last
        self._content = ContentDetector()
        self.progress = ResponseProgress()
        self.over = False
        self.quiet_chunks = 0  # chunks that brought no content
        self.fault: Fault | None = None

    def feed(self, chunk: bytes) -> bytes:
        """Take bytes of the upstream, cut anywhere; return what the client gets for them."""
        if self.over or self._reader.is_over:
            return b""
        frames, lane = self._splitter.feed(chunk), self._lane
        # One delta alone in its chunk, as most come.
        if lane is not None and type(frames) is tuple and frames and (data := lane.write_one(frames[0])) is not None:
            return data
        out: list[bytes] = []
        self._read(frames, out)
        return b"".join(out)

    def _read(self, came: Iterable[Frame], out: list[bytes]) -> list[Frame]:
        """Translate the frames that a chunk completes, and return them. `out` gets what the client gets for them."""
        frames: list[Frame] = []
        reader, has_content, failure = self._reader, False, None
        try:
            frames += came  # those before a bad one, and then it raises
            if self._splitter.held != reader.buffered.size:
                reader.buffered.set(self._splitter.held)
        except DragomanError as error:
            failure = error
        at, count = 0, len(frames)
        try:
            while at < count:
                if self._lane is not None and (end := self._lane.write(frames, at, out)) > at:
                    has_content, at = True, end
                    continue
                step = reader.step(frames[at])
                if step is not None:
                    has_content = self._content.has_content(step.events) or has_content
                    self._add(step, out)
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
        """The upstream's bytes are over. The client's stream always ends with its dialect's end or its error."""
        out: list[bytes] = []
        try:
            for step in self._reader.close(broken):
                self._add(step, out)
        except DragomanError as error:
            self._failed(error, out)
        return b"".join(out)

    def ping(self) -> bytes:
        """A frame that says nothing, for a client that waits; empty where its dialect has none."""
        payload = None if self.over else self._encoder.ping()
        return b"" if payload is None else self._frame(payload)

    def _failed(self, error: DragomanError, out: list[bytes]) -> None:
        """Tell the client of an error that no filter knew, in its own dialect.

        Raises an error that is not the upstream's fault: who runs the answer knows what to do, and calls `close`.
        """
        if isinstance(error, ClientFault):
            raise error
        self.over, self.fault, self._lane = True, error.fault, None
        out += map(self._frame, self._encoder.feed((self._masked(ev.Failed(error.fault)),)))

    def _add(self, step: ev.DecodedFrame, out: list[bytes]) -> None:
        """Translate one frame the general way."""
        self._lane = None
        if step.decode_error:
            note_unread(self.notes, step)
            out.append(step.raw)
            return
        if self.over:
            return
        events = self._filters.feed(step.events)
        is_delta = len(events) == 1 and type(events[0]) in _DELTAS
        if is_delta:  # nearly all of a stream
            self.progress.has_content = True
        else:
            events = self._watched(events)
        as_it_came = bool(self._keeps_frames and step.raw and events == step.events and self._encoder.passes(events))
        if as_it_came:
            out.append(step.raw)
        else:
            frame = self._frame
            out += [frame(payload) for payload in self._encoder.feed(events)]
        if is_delta and events is step.events:
            self._lane = self._open_lane(events[0], as_it_came)

    def _open_lane(self, delta: ev.Event, as_it_came: bool) -> _Lane | None:
        """Return the lane for the deltas that follow this one; None if they go the general way."""
        assert isinstance(delta, ev.Delta)
        kind, key = type(delta), delta.key
        source = self._decoder.lane(kind, key)
        if source is None:
            return None
        if self._passes:
            taps = () if source.listener is None else (source.listener,)
            return _Lane(source.kind, source.decode, source.text_of, None, taps, True)
        filters, watches = self._filters, list[LaneWatch]()
        for position in filters.concerned[kind]:
            watch = filters.backs[position].lane(kind, key)
            if watch is None:
                return None  # it must see every delta
            watches.append(watch)
        target, frame = self._encoder.lane(kind, key), self._frame
        if target is None:
            return None
        before, found, after = frame(Payload(target.kind, target.before + _GAP + target.after)).partition(_GAP)
        if not found or frame(Payload(target.kind, target.before + target.after)) != before + after:
            return None  # the frame depends on the text elsewhere
        asked = (source.listener, *[watch.listener for watch in watches], target.listener)
        listeners = tuple([listener for listener in asked if listener is not None])
        searches = [watch.search for watch in watches if watch.search is not None]
        search = _any_of(searches) if len(searches) > 1 else next(iter(searches), None)
        parts = source.kind, source.decode, source.text_of, search, listeners, as_it_came
        return _Lane(*parts, before, after + before, after)

    def _watched(self, events: ev.Events) -> ev.Events:
        """Note how far the answer has come. Return the events without what the client must not read of a failure."""
        progress = self.progress
        for event in events:
            if type(event) not in _WATCHED:
                progress.has_content = True
            elif isinstance(event, ev.Started | ev.UsageReported):
                progress.usage = event.usage or progress.usage
                if isinstance(event, ev.Started):
                    progress.id = event.id
            elif isinstance(event, ev.Stopped):
                progress.has_content, progress.stop = True, progress.stop or event.stop
        last = events[-1] if events else None
        if isinstance(last, ev.Finished):
            self.over = True
        elif isinstance(last, ev.Failed):
            self.over, failed = True, self._masked(last)
            self.fault = failed.fault
            events = events if failed is last else (*events[:-1], failed)
        return events

    def _masked(self, failed: ev.Failed) -> ev.Failed:
        """The failure without what the client must not read; the same if there is nothing to take out."""
        told = failed.fault if self._mask is None else self._mask(failed.fault)
        return failed if told is failed.fault else ev.Failed(told)


def note_unread(notes: Notes, step: ev.DecodedFrame) -> None:
    """Note a frame that could not be read, and whether the client gets it."""
    if step.raw:
        notes.changed(
            "stream.unread_frame", "", f"a frame that cannot be read was passed on as it came: {step.decode_error}"
        )
    else:
        notes.dropped("stream.unread_frame", "", f"a frame that cannot be read was left out: {step.decode_error}")


def translate_whole_reply(
    plan: Plan, body: bytes, environment: Environment = SYSTEM_ENVIRONMENT
) -> tuple[bytes, list[Note]]:
    """A whole reply in the client's dialect: the streamed path, so that streamed equals whole by construction."""
    reply, notes = read_whole_reply(plan, body, environment)
    return plan.client.codec.render_reply(reply, plan.original, environment), notes


def read_whole_reply(
    plan: Plan, body: bytes, environment: Environment = SYSTEM_ENVIRONMENT, budget: ev.ResponseBudget | None = None
) -> tuple[Reply, list[Note]]:
    """Read a whole reply into the client's canonical reply, before it is rendered.

    A body that is a stream, though none was asked for, is gathered, with a note.
    """
    ways = ResponseFilters(plan, ev.BlockKeys(budget=budget or ev.ResponseBudget()))
    reply = assemble_client_reply(plan, ways.feed(_told(plan, body, environment, ways)), ways.notes)
    return reply, list(ways.notes)


def is_event_stream(body: bytes) -> bool:
    """Whether a body begins as a stream of events does, and as no JSON does."""
    return body.lstrip()[:6].startswith((b"data:", b"event:", b":", b"id:", b"retry:")) or body[:1] == b"\0"


def assemble_client_reply(plan: Plan, events: ev.Events, notes: Notes) -> Reply:
    """What the client is told by these events, as a whole reply that its dialect can say."""
    reply = assemble_reply(events, notes)
    takes_objects = plan.client.codec.capabilities(plan.original.model).arguments == "object"
    return wrap_reply_arguments(reply, notes) if takes_objects else reply


def _told(plan: Plan, body: bytes, environment: Environment, ways: ResponseFilters) -> ev.Events:
    """What a whole answer says, as events. One that only ever streams is read as the stream it is."""
    upstream, events = plan.upstream, list[ev.Event]()
    if "streams_only" not in plan.traits:
        if not is_event_stream(body):
            return reply_events(upstream.codec.parse_reply(body, plan.translated), ways.keys)
        ways.notes.changed("stream.gathered", "", "a stream came where a whole answer was asked for")
    reader = StreamReader(
        upstream.binding.frame_decoder(), upstream.codec.decoder(plan.translated, environment, ways.keys)
    )
    for step in (*reader.feed(body), *reader.close()):
        if step.decode_error:
            note_unread(ways.notes, step)
        events += step.events
    if reader.error is not None:
        raise reader.error
    return tuple(events)

"""Answers that need less, or more, than translation frame by frame. Pure.

- `PassThrough`: both sides speak one dialect and nothing changes, so the bytes go out as they came.
- `WholeAsStream`: a whole answer came where a stream was asked for; some upstreams ignore the wish for a stream.
- `translate_whole`: a whole answer, read and written for the client. The worker process does this for large ones.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct, structs

from dragoman.dialects.base import SYSTEM_ENVIRONMENT, Encoder, Environment
from dragoman.errors import BadFrame, ClientFault, DragomanError, Fault, UpstreamFault, UpstreamViolation
from dragoman.gateway.limits import json_memory
from dragoman.gateway.response_store import SavedResponse, saved_response
from dragoman.model.assemble import reply_events
from dragoman.model.conversation import Reply, Stop, Usage
from dragoman.model.events import DecodedFrame, Delta, Events, Failed, ResponseBudget
from dragoman.model.filter import Note
from dragoman.response_stream import (
    MAX_WHOLE_REPLY,
    MaskFault,
    ResponseTranslator,
    is_event_stream,
    note_unread,
    read_whole_reply,
)
from dragoman.translate import Plan
from dragoman.wire import jsonio
from dragoman.wire.frame import Frame, Payload

_MOST_UNCOUNTED = 32  # steps that passed and that the encoder has not counted yet


def passes_frames(plan: Plan) -> bool:
    """Whether the bytes of a stream may pass. Calls that clients would read wrongly are written anew."""
    return plan.passes and not (plan.translated.tools and "loose_calls" in plan.traits)


class PassThrough(ResponseTranslator):
    """The bytes of the upstream, as they came. The decoder reads them for usage, stop and errors; no filter does.

    Whole frames go out, with what stands between them, so that an error or a ping can follow the last one. Frames that
    say only what a quirk asked for are cut out. A frame whose content cannot be read passes, with a note. The stream
    ends with the dialect's error where the decoder finds a violation: a call or block that is dropped, merged or left
    open, a missing end, bytes that are no frames (docs/decisions/answers.md#d7). The frame that is the violation does
    not go out.
    """

    __slots__ = ("_asks_more", "_count", "_is_counted", "_ours", "_pieces", "_size", "_unasked", "_uncounted")
    _passes = True

    def __init__(
        self,
        plan: Plan,
        environment: Environment = SYSTEM_ENVIRONMENT,
        mask: MaskFault | None = None,
        budget: ResponseBudget | None = None,
    ) -> None:
        super().__init__(
            structs.replace(plan, response_filters=()) if plan.response_filters else plan, environment, mask, budget
        )
        self._pieces: list[bytes] = []  # the bytes that are read now, after those of a frame that is not complete
        self._size = 0  # of them
        self._ours = b""  # written by the encoder, after the frames that pass
        self._count = 0  # frames that went out
        self._asks_more = bool(plan.notes)
        self._unasked: list[bytes] = []  # frames that say only what a quirk asked for
        self._uncounted: list[Events] = []
        self._is_counted = True  # the encoder could follow all that passed

    def feed(self, chunk: bytes) -> bytes:
        if self.over:
            return b""
        came, lane = self._splitter.feed(chunk), None if self._pieces else self._lane
        if lane is not None and type(came) is tuple and came and lane.write_one(came[0]) is not None:
            self._count += 1
            return chunk  # one delta alone in its chunk, as most come
        out: list[bytes] = []
        frames = self._read(came, out)
        self._count += len(out)
        if len(out) < len(frames) or self._splitter.held or self._pieces or self._ours or self._unasked:
            return self._cut(chunk, frames, len(out))
        return chunk

    def close(self, broken: Fault | None = None) -> bytes:
        if self.over:
            return b""
        rest, self._pieces = b"".join(self._pieces), []
        for step in self._reader.close() if broken is None else [DecodedFrame((Failed(broken),))]:
            self._add(step, [])
            rest = step.raw or rest  # the last frame may lack the line end without which clients do not read it
        self.over = True
        if self.fault is not None or self._unasked:
            rest = b""
        return rest + self._ours

    def ping(self) -> bytes:
        self._catch_up()
        return super().ping()

    def _add(self, step: DecodedFrame, out: list[bytes]) -> None:
        self._lane = None
        if self.over:
            return
        if step.decode_error:
            note_unread(self.notes, step)
        events = self._watched(step.events)
        last = events[-1] if events else None
        if isinstance(last, Failed) and (ours := self._rewritten(step, last, events is step.events)) is not None:
            self._ours += ours or self._written((last,), len(out))
            return
        if events and not step.raw:
            self._ours += self._written(events, len(out))
            return
        self._uncounted.append(events)
        if len(self._uncounted) > _MOST_UNCOUNTED:
            self._catch_up()
        if self._asks_more and self._encoder.is_unrequested(events):
            self._unasked.append(step.raw)
        out.append(step.raw)
        if len(events) == 1 and isinstance(last, Delta):
            self._lane = self._open_lane(last, True)

    def _failed(self, error: DragomanError, out: list[bytes]) -> None:
        if isinstance(error, ClientFault):
            raise error
        self._add(DecodedFrame((Failed(error.fault),)), out)

    def _cut(self, chunk: bytes, frames: Sequence[Frame], count: int) -> bytes:
        """The bytes that came, up to the end of the last of the `count` frames that pass, and what the encoder has
        written."""
        self._pieces.append(chunk)
        self._size += len(chunk)
        end = self._size - self._splitter.held
        if not end and not self._ours:
            return b""  # no frame is complete
        data = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        if count < len(frames) or self._ours:  # what follows the last frame that passes is not for the client
            end = 0
            for frame in frames[:count]:
                end = data.find(frame.raw, end) + len(frame.raw)
        self._pieces, self._size = [data[end:]] if end < self._size else [], self._size - end
        if end < len(data):
            data = data[:end]
        for raw in self._unasked:
            before, _, after = data.rpartition(raw)  # they come late
            data = before + after
        self._unasked = []
        return data + self._ours if self._ours else data

    def _rewritten(self, step: DecodedFrame, failed: Failed, is_unmasked: bool) -> bytes | None:
        """An error that came as bare JSON among events, as our own are written; None for one that passes.

        Empty: the error is not a frame of the upstream, or must not be read as it came, and the encoder writes it. Only
        Gemini sends bare JSON among events, and most readers of events do not see it.
        """
        if not step.raw or not is_unmasked:
            return b""
        if not step.raw.startswith(b"{"):
            return None
        self._catch_up()
        payload, *others = self._encoder.feed((failed,))
        if others or not payload.error:
            return None  # an element of an array
        data = jsonio.encode(jsonio.decode(step.raw))
        return self._frame(Payload(payload.kind, data, error=True))

    def _written(self, events: Events, passed: int = 0) -> bytes:
        """Write events after so many frames that passed in this turn: an end or error must have the right number."""
        self._catch_up()
        self._encoder.set_next_number(self._count + passed)
        return b"".join(map(self._frame, self._encoder.feed(events)))

    def _catch_up(self) -> None:
        """Let the encoder count what passed."""
        uncounted, self._uncounted = self._uncounted, []
        try:
            for events in uncounted if self._is_counted else ():
                if not self._encoder.passes(events):
                    list(self._encoder.feed(events))
        except DragomanError:
            self._is_counted = False  # it lacks something, so what comes next would have no place in it


class WholeAsStream(ResponseTranslator):
    """A whole answer, gathered and written as the stream it stands for.

    What cannot be read as a whole answer is read as a stream.
    """

    __slots__ = ("_budget", "_pieces", "_plan", "_size")

    def __init__(
        self,
        plan: Plan,
        environment: Environment = SYSTEM_ENVIRONMENT,
        mask: MaskFault | None = None,
        budget: ResponseBudget | None = None,
        encoder: Encoder | None = None,
    ) -> None:
        self._plan, self._budget = plan, budget or ResponseBudget()
        super().__init__(plan, environment, mask, self._budget, encoder)
        self._pieces: list[bytes] = []
        self._size = 0

    def feed(self, chunk: bytes) -> bytes:
        self._size += len(chunk)
        self.quiet_chunks += chunk.isspace()
        if self._size > MAX_WHOLE_REPLY:
            return super().close(BadFrame(f"the answer is longer than {MAX_WHOLE_REPLY} bytes").fault)
        try:
            self._budget.reserve(len(chunk))
        except UpstreamViolation as error:
            return super().close(error.fault)
        self._pieces.append(chunk)
        return b""

    def close(self, broken: Fault | None = None) -> bytes:
        """The body is complete: write all of it."""
        body, self._pieces = b"".join(self._pieces), []
        self._budget.release(len(body))
        if broken is not None:
            return super().close(broken)
        tree = json_memory(body)
        try:
            self._budget.reserve(tree)
        except UpstreamViolation as error:
            return super().close(error.fault)
        try:
            reply = self._plan.upstream.codec.parse_reply(body, self._plan.translated)
        except UpstreamFault as error:
            return super().close(error.fault)
        except (DragomanError, RecursionError):
            return super().feed(body) + super().close()
        finally:
            self._budget.release(tree)
        self.notes.changed("stream.from_whole", "", "a whole answer came where a stream was asked for")
        out: list[bytes] = []
        try:
            self._add(DecodedFrame(reply_events(reply, self._filters.keys)), out)
        except DragomanError as error:
            self._failed(error, out)
        return b"".join(out)


# --- whole answers


class WholeResponse(Struct, frozen=True):
    """A whole answer as the client gets it, what is recorded of it, and what is kept of it, if that is wanted.

    Without `notes` it passes as it came; its body is then the upstream's own.
    """

    body: bytes
    id: str = ""
    usage: Usage | None = None
    stop: Stop | None = None
    notes: Sequence[Note] | None = None
    saved: SavedResponse | None = None


def translate_whole(
    plan: Plan, body: bytes, budget: ResponseBudget | None = None, *, keeps: bool = False
) -> WholeResponse:
    """Read an answer and write it for the client. Raises UpstreamViolation, UpstreamFault."""
    may_pass = plan.verbatim and not keeps and ("streams_only" in plan.traits or not is_event_stream(body))
    if may_pass and not _holds_calls(plan, body):
        return _tapped(plan, body)
    try:
        reply, notes = read_whole_reply(plan, body, budget=budget)
    except RecursionError:
        raise BadFrame("the answer is nested too deeply") from None
    raw = plan.client.codec.render_reply(reply, plan.original, SYSTEM_ENVIRONMENT)
    continuation = plan.client.continuation
    kept = saved_response(continuation, reply, raw) if keeps and continuation is not None else None
    return _written(raw, reply, notes, kept)


def _written(
    body: bytes, reply: Reply, notes: Sequence[Note] | None = None, kept: SavedResponse | None = None
) -> WholeResponse:
    return WholeResponse(body, reply.id, reply.usage, reply.choices[0].stop if reply.choices else None, notes, kept)


def _tapped(plan: Plan, body: bytes) -> WholeResponse:
    """Read an answer that passes, for the record.

    Raises UpstreamViolation for what breaks the dialect: half an answer, a web page, a call without a name.
    """
    forms = plan.upstream.summary_reader
    if forms is not None and (seen := forms.read_reply(body)) is not None:
        return WholeResponse(body, usage=seen.usage, stop=seen.stop)
    try:
        return _written(body, plan.upstream.codec.parse_reply(body, plan.translated))
    except RecursionError:
        return WholeResponse(body)


def _holds_calls(plan: Plan, body: bytes) -> bool:
    """Whether raw tool calls, or what is left of some, are in an answer that may pass as it came otherwise."""
    if not plan.finds_calls:
        return False
    try:
        notes = read_whole_reply(plan, body)[1]
    except (RecursionError, UpstreamViolation, UpstreamFault):
        return False  # `_tapped` says what is wrong
    return any(note.rule.startswith("raw_tools.") for note in notes)

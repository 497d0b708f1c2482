"""Responses that are not translated frame by frame. Pure.

- `PassThrough` sends the bytes of a stream unchanged: client and upstream have the same dialect, and no filter changes
  anything.
- `WholeAsStream` sends a whole response as a stream: the upstream ignored that the request asked for one.
- `translate_whole` translates a whole response. The job process calls it for large ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct, structs

from dragoman.dialects.base import SYSTEM_ENVIRONMENT, Encoder, Environment
from dragoman.errors import BadFrame, ClientFault, DragomanError, Fault, UpstreamFault, UpstreamViolation
from dragoman.gateway.limits import json_memory
from dragoman.gateway.response_store import SavedResponse, saved_response
from dragoman.model.assemble import reply_events
from dragoman.model.blocks import ToolCall
from dragoman.model.conversation import Reply, Stop, Usage
from dragoman.model.events import DecodedFrame, Delta, Events, Failed, ResponseBudget
from dragoman.model.filter import Note
from dragoman.response_stream import (
    MAX_TOOLS,
    MAX_WHOLE_REPLY,
    MaskFault,
    ResponseProgress,
    ResponseTranslator,
    is_event_stream,
    note_unread,
    read_whole_reply,
)
from dragoman.translate import Plan
from dragoman.wire import jsonio
from dragoman.wire.frame import Frame, Payload

_MAX_UNCOUNTED = 32  # passed frames that the encoder has not counted yet


class Translator(Protocol):
    """Translates the bytes of a response: a `ResponseTranslator`, or a translator whose bytes are recorded."""

    @property
    def notes(self) -> Sequence[Note]:
        """The changes of the response so far."""
        ...

    @property
    def progress(self) -> ResponseProgress:
        """The state of the response so far."""
        ...

    @property
    def is_over(self) -> bool:
        """Whether the response has ended, well or with an error."""
        ...

    @property
    def fault(self) -> Fault | None:
        """Why the response failed; None if it did not."""
        ...

    @property
    def quiet_chunks(self) -> int:
        """The number of chunks without content."""
        ...

    def feed(self, chunk: bytes) -> bytes:
        """Translate a chunk of the upstream's bytes; return the client's bytes."""
        ...

    def close(self, broken: Fault | None = None) -> bytes:
        """Return the last bytes for the client; `broken` says why the upstream's bytes ended early."""
        ...

    def ping(self) -> bytes:
        """Return a keep-alive frame for the client; empty if its dialect has none."""
        ...


def passes_frames(plan: Plan) -> bool:
    """Return whether the bytes of a stream may pass. Tool calls that clients would misread must be rewritten."""
    return plan.passes and not (plan.translated.tools and "loose_calls" in plan.traits)


class PassThrough(ResponseTranslator):
    """Sends the bytes of the upstream unchanged. The decoder reads usage, stop and errors from them; no filter runs.

    Only complete frames are sent, with the bytes between them, so that an error or a ping can follow the last one.
    Frames that only contain what a quirk requested are removed. A frame whose content cannot be read passes, with a
    note. The stream ends with the dialect's error where the decoder finds a violation: a call or block that is dropped,
    merged or left open, a missing end, bytes that are not frames (docs/decisions/responses.md#d7). The frame with the
    violation is not sent.
    """

    __slots__ = ("_count", "_encoded", "_has_notes", "_is_counted", "_pieces", "_size", "_uncounted", "_unrequested")
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
        self._pieces: list[bytes] = []  # received bytes that are not sent yet
        self._size = 0  # bytes of `_pieces`
        self._encoded = b""  # bytes of the encoder, sent after the frames that pass
        self._count = 0  # frames that were sent
        self._has_notes = bool(plan.notes)  # a quirk may have added fields to the request
        self._unrequested: list[bytes] = []  # frames that only contain what a quirk requested
        self._uncounted: list[Events] = []
        self._is_counted = True  # the encoder has counted all frames so far

    def feed(self, chunk: bytes) -> bytes:
        if self.is_over:
            return b""
        decoded, lane = self._splitter.feed(chunk), self._lane
        # Most chunks are one delta of the open lane.
        if lane and type(decoded) is tuple and decoded and not self._pieces and lane.write_one(decoded[0]) is not None:
            self._count += 1
            return chunk
        out: list[bytes] = []
        frames = self._read(decoded, out)
        self._count += len(out)
        is_cut = self._splitter.buffered_bytes or self._pieces
        if len(out) < len(frames) or is_cut or self._encoded or self._unrequested:
            return self._cut(chunk, frames, len(out))
        return chunk

    def close(self, broken: Fault | None = None) -> bytes:
        if self.is_over:
            return b""
        rest, self._pieces = b"".join(self._pieces), []
        for decoded in self._reader.close() if broken is None else [DecodedFrame((Failed(broken),))]:
            self._add(decoded, [])
            # The decoder adds a missing line end, without which clients ignore the last frame.
            rest = decoded.raw or rest
        self.is_over = True
        if self.fault is not None or self._unrequested:
            rest = b""
        return rest + self._encoded

    def ping(self) -> bytes:
        self._catch_up()
        return super().ping()

    def _add(self, decoded: DecodedFrame, out: list[bytes]) -> None:
        self._lane = None
        if self.is_over:
            return
        if decoded.decode_error:
            note_unread(self.notes, decoded)
        events = self._watched(decoded.events)
        last = events[-1] if events else None
        is_unmasked = events is decoded.events
        if isinstance(last, Failed) and (rewritten := self._rewritten(decoded, last, is_unmasked)) is not None:
            self._encoded += rewritten or self._written((last,), len(out))
            return
        if events and not decoded.raw:
            self._encoded += self._written(events, len(out))
            return
        self._uncounted.append(events)
        if len(self._uncounted) > _MAX_UNCOUNTED:
            self._catch_up()
        if self._has_notes and self._encoder.is_unrequested(events):
            self._unrequested.append(decoded.raw)
        out.append(decoded.raw)
        if len(events) == 1 and isinstance(last, Delta):
            self._lane = self._open_lane(last, True)

    def _failed(self, error: DragomanError, out: list[bytes]) -> None:
        if isinstance(error, ClientFault):
            raise error
        self._add(DecodedFrame((Failed(error.fault),)), out)

    def _cut(self, chunk: bytes, frames: Sequence[Frame], count: int) -> bytes:
        """Return the received bytes up to the end of the last of the `count` frames that pass, and the encoder's bytes.

        The rest stays in `_pieces`.
        """
        self._pieces.append(chunk)
        self._size += len(chunk)
        end = self._size - self._splitter.buffered_bytes
        if not end and not self._encoded:
            return b""  # no frame is complete
        data = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        if count < len(frames) or self._encoded:  # Bytes after the last frame that passes are not sent.
            end = 0
            for frame in frames[:count]:
                end = data.find(frame.raw, end) + len(frame.raw)
        self._pieces, self._size = [data[end:]] if end < self._size else [], self._size - end
        if end < len(data):
            data = data[:end]
        for raw in self._unrequested:
            before, _, after = data.rpartition(raw)  # Such frames are near the end.
            data = before + after
        self._unrequested = []
        return data + self._encoded if self._encoded else data

    def _rewritten(self, decoded: DecodedFrame, failed: Failed, is_unmasked: bool) -> bytes | None:
        """Return an error that the upstream sent as bare JSON among events, as a frame; None for an error that passes.

        Empty if the encoder must write the error: it is not a frame of the upstream, or its message was masked. Only
        Gemini sends bare JSON among events, and most event parsers ignore it.
        """
        if not decoded.raw or not is_unmasked:
            return b""
        if not decoded.raw.startswith(b"{"):
            return None
        self._catch_up()
        payload, *others = self._encoder.feed((failed,))
        if others or not payload.error:
            return None  # an element of an array
        data = jsonio.encode(jsonio.decode(decoded.raw))
        return self._frame(Payload(payload.kind, data, error=True))

    def _written(self, events: Events, passed: int = 0) -> bytes:
        """Encode events. `passed` frames of this chunk precede them, so that an end or error gets the right number."""
        self._catch_up()
        self._encoder.set_next_number(self._count + passed)
        return b"".join(map(self._frame, self._encoder.feed(events)))

    def _catch_up(self) -> None:
        """Feed passed events to the encoder, which counts them."""
        uncounted, self._uncounted = self._uncounted, []
        try:
            for events in uncounted if self._is_counted else ():
                if not self._encoder.passes(events):
                    list(self._encoder.feed(events))
        except DragomanError:
            self._is_counted = False  # It lacks an event, so it cannot count later ones.


class WholeAsStream(ResponseTranslator):
    """Buffers a whole response and writes it as a stream. A body that is not a whole response is read as a stream."""

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
            return super().close(BadFrame(f"the response is longer than {MAX_WHOLE_REPLY} bytes").fault)
        try:
            self._budget.reserve(len(chunk))
        except UpstreamViolation as error:
            return super().close(error.fault)
        self._pieces.append(chunk)
        return b""

    def close(self, broken: Fault | None = None) -> bytes:
        """Return the whole response as a stream."""
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
        self.notes.changed(
            "stream.from_whole", "", "the upstream sent a whole response although a stream was requested"
        )
        out: list[bytes] = []
        try:
            self._add(DecodedFrame(reply_events(reply, self._filters.keys)), out)
        except DragomanError as error:
            self._failed(error, out)
        return b"".join(out)


# --- whole responses


class WholeResponse(Struct, frozen=True):
    """A whole response as the client gets it, the fields for the access log, and the parts to store, if requested.

    If `notes` is None, the body is the upstream's, unchanged.
    """

    body: bytes
    id: str = ""
    usage: Usage | None = None
    stop: Stop | None = None
    notes: Sequence[Note] | None = None
    saved: SavedResponse | None = None
    tools: tuple[str, ...] = ()  # names of the called tools


def translate_whole(
    plan: Plan, body: bytes, budget: ResponseBudget | None = None, *, keeps: bool = False
) -> WholeResponse:
    """Translate a whole response for the client; `keeps` adds the parts to store.

    Raises UpstreamViolation, UpstreamFault.
    """
    may_pass = plan.verbatim and not keeps and ("streams_only" in plan.traits or not is_event_stream(body))
    if may_pass and not _has_raw_calls(plan, body):
        return _passed(plan, body)
    try:
        reply, notes = read_whole_reply(plan, body, budget=budget)
    except RecursionError:
        raise BadFrame("the response is nested too deeply") from None
    raw = plan.client.codec.render_reply(reply, plan.original, SYSTEM_ENVIRONMENT)
    continuation = plan.client.continuation
    saved = saved_response(continuation, reply, raw) if keeps and continuation is not None else None
    return _whole_response(raw, reply, notes, saved)


def _whole_response(
    body: bytes, reply: Reply, notes: Sequence[Note] | None = None, saved: SavedResponse | None = None
) -> WholeResponse:
    stop = reply.choices[0].stop if reply.choices else None
    calls = [block.name for choice in reply.choices for block in choice.blocks if type(block) is ToolCall]
    return WholeResponse(body, reply.id, reply.usage, stop, notes, saved, tuple(calls[:MAX_TOOLS]))


def _passed(plan: Plan, body: bytes) -> WholeResponse:
    """Read a response that passes, for the access log.

    Raises UpstreamViolation for a body that breaks the dialect: half a response, a web page, a call without a name.
    """
    reader = plan.upstream.summary_reader
    if reader is not None and (summary := reader.read_reply(body)) is not None:
        return WholeResponse(body, usage=summary.usage, stop=summary.stop)
    try:
        return _whole_response(body, plan.upstream.codec.parse_reply(body, plan.translated))
    except RecursionError:
        return WholeResponse(body)


def _has_raw_calls(plan: Plan, body: bytes) -> bool:
    """Return whether a response that could pass unchanged contains raw tool calls, or parts of them."""
    if not plan.finds_calls:
        return False
    try:
        notes = read_whole_reply(plan, body)[1]
    except (RecursionError, UpstreamViolation, UpstreamFault):
        return False  # `_passed` raises the error.
    return any(note.rule.startswith("raw_tools.") for note in notes)

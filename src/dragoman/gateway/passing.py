"""An answer that passes as it came: one language, nothing to change. A reader follows it. Pure.

Frames that tell what only we asked for are cut out. Only whole frames go out, so that an error or a ping can always be
put behind the last one. A frame whose content cannot be read passes, with a note. The stream ends with the dialect's
error where the reader finds a violation: a call or block that is dropped, merged or left open, a missing end, bytes
that are no frames (D7). The frame that is the violation does not go out.
"""

from __future__ import annotations

from typing import Protocol

from dragoman.answer import Mask, Progress, note_unread
from dragoman.dialects.base import REAL_WORLD, Content, Encoder, Reader, World
from dragoman.errors import DragomanError, Fault
from dragoman.model.events import FINISHED, BlockKeys, Budget, Delta, Events, Failed, Step
from dragoman.model.filter import MOST_OF_ANSWER, LaneSource, Note, Notes
from dragoman.translate import Plan
from dragoman.wire import jsonio
from dragoman.wire.frame import Payload

_MOST_UNHEARD = 32  # frames that were neither of a run nor told to an encoder


class Telling(Protocol):
    """An answer on its way, translated or passed."""

    @property
    def progress(self) -> Progress: ...
    @property
    def over(self) -> bool: ...
    @property
    def fault(self) -> Fault | None: ...
    @property
    def notes(self) -> list[Note]: ...
    @property
    def hushed(self) -> int:
        """How many chunks brought no content."""

    def feed(self, chunk: bytes) -> bytes: ...
    def close(self, broken: Fault | None = None) -> bytes: ...
    def ping(self) -> bytes: ...


class Passing:
    """Has the same face as `answer.Answer`."""

    def __init__(
        self, plan: Plan, world: World = REAL_WORLD, mask: Mask | None = None, budget: Budget | None = None
    ) -> None:
        dialect, keys = plan.upstream, BlockKeys(budget=budget)
        self._mask = mask
        self.progress = Progress()
        self.over = False
        self.hushed = 0  # chunks that brought no content
        self.fault: Fault | None = None
        self._notes = Notes(most=MOST_OF_ANSWER)
        self._new_frames = dialect.binding.frames
        self._decoder = dialect.codec.decoder(plan.sent, world, keys)
        self._reader = Reader(dialect.binding.frames(), self._decoder, keeps_unread=True, budget=keys.budget)
        self._lane: LaneSource | None = None  # of the block whose delta came last
        self._content = Content()
        self._encoder = plan.client.codec.encoder(plan.asked, world, keys.budget)
        self._frame = plan.client.binding.frame
        self._held: list[bytes] = []  # what did not go out yet: the beginning of a frame
        self._count = 0  # frames that went out
        self._unasked: list[bytes] = []  # frames that tell what only we asked for
        self._asks_more = bool(plan.notes)
        self._follows = True  # the encoder could take all that passed
        self._unheard: list[Events] = []  # what passed, and the encoder was not told yet

    @property
    def notes(self) -> list[Note]:
        return list(self._notes)

    def feed(self, chunk: bytes) -> bytes:
        if self.over:
            return b""
        self._held.append(chunk)
        reader, last, count, has_content = self._reader, b"", 0, False
        for frame in reader.frames(chunk):
            last, lane = frame.raw, self._lane
            count += 1
            if lane is not None and frame.kind == lane.kind and not frame.error and (text := lane.read(frame.data)):
                has_content = True
                try:
                    if lane.listener is not None:
                        lane.listener(text)
                except DragomanError as error:  # more than may be kept
                    return self._ended_with(reader.fail(error), count - 1)
                continue
            step = reader.step(frame)
            if step is None:
                continue
            has_content = self._content.is_in(step.events) or has_content
            if (end := self._heard(step, count)) is not None:
                return end
            if reader.over:
                break
        if (broken := reader.broken()) is not None:
            return self._ended_with(broken, count)
        if not has_content:
            self.hushed += 1
        self._count += count
        self.over = reader.over
        if self.over:
            return self._through(count)
        return self._whole_frames(last)

    def _heard(self, step: Step, count: int) -> bytes | None:
        """Take note of what a frame said; give the end of the stream if it must be told in other words.

        `count` frames of those that are held were read.
        """
        self._lane = None
        if step.unread:
            note_unread(self._notes, step)
        last = step.events[-1] if step.events else None
        if isinstance(last, Failed):
            if not step.raw or self._masked(last.fault) is not last.fault:
                return self._ended_with(step, count - 1)
            if (retold := self._retold(step.raw, last.fault)) is not None:
                self.over, self.fault = True, last.fault
                return self._through(count - 1) + retold
            self.fault = last.fault
        elif len(step.events) == 1 and isinstance(last, Delta):
            self._lane = self._decoder.lane(type(last), last.key)
        self._see(step.events)
        if self._asks_more and self._encoder.is_unasked(step.events):
            self._unasked.append(step.raw)
        return None

    def _retold(self, raw: bytes, fault: Fault) -> bytes | None:
        """An error that came as bare JSON among events, as our own are written; None for any other frame.

        Only Gemini sends such, and most readers of events do not see it.
        """
        if not raw.startswith(b"{"):
            return None
        payload, *others = self._speaker().feed((Failed(fault),))
        if others or not payload.error:
            return None  # an element of an array
        return self._frame(Payload(payload.kind, jsonio.encode(jsonio.decode(raw)), error=True))

    def close(self, broken: Fault | None = None) -> bytes:
        """The bytes are over. What is no end in this dialect gets one: the in-stream error."""
        if self.over:
            return self._rest()
        end: Events = ()
        last = b""
        if broken is None:
            for step in self._reader.close():
                last = step.raw or last
                if step.events == (FINISHED,) and not step.raw:
                    end = step.events  # it had said why it stopped, and not that it did
                    continue
                if step.unread:
                    note_unread(self._notes, step)
                self._see(step.events)
                if self._asks_more and self._encoder.is_unasked(step.events):
                    self._held = []
                if step.events and isinstance(failed := step.events[-1], Failed):
                    broken = failed.fault
        self.over = True
        if broken is None:
            rest = self._rest()  # its last frame may lack the line end without which clients do not read it
            rest = last if rest and last.startswith(rest) else rest
            return rest + self._written(end)
        self.fault = broken
        return self._written((Failed(self._masked(broken)),))

    def ping(self) -> bytes:
        payload = None if self.over else self._speaker().ping()
        return b"" if payload is None else self._frame(payload)

    def _see(self, events: Events) -> None:
        """Note how far it has come."""
        self.progress.see(events)
        self._unheard.append(events)
        if len(self._unheard) > _MOST_UNHEARD:
            self._speaker()

    def _speaker(self) -> Encoder:
        """The encoder, when it has counted what passed: an end or error of ours must have the right number."""
        encoder, unheard = self._encoder, self._unheard
        self._unheard = []
        try:
            for events in unheard if self._follows else ():
                if not encoder.passes(events):
                    list(encoder.feed(events))
        except DragomanError:
            self._follows = False  # it lacks something, so what comes next would have no place in it
        return encoder

    def _ended_with(self, step: Step, count: int) -> bytes:
        """The upstream failed, and its own words cannot go out: the first `count` frames, and the error in ours."""
        failed = step.events[-1]
        assert isinstance(failed, Failed)
        self.over, self.fault = True, self._masked(failed.fault)
        self._count += count
        return self._through(count) + self._written((Failed(self.fault),))

    def _written(self, events: Events) -> bytes:
        speaker = self._speaker()
        speaker.renumber(self._count)
        return b"".join([self._frame(payload) for payload in speaker.feed(events)])

    def _masked(self, fault: Fault) -> Fault:
        return fault if self._mask is None else self._mask(fault)

    def _whole_frames(self, last: bytes) -> bytes:
        """What is held up to the end of the last frame, which has these bytes."""
        if not last:
            return b""
        held = b"".join(self._held)
        end = held.rfind(last) + len(last)
        self._held = [held[end:]] if end < len(held) else []
        return self._asked_for(held[:end])

    def _through(self, count: int) -> bytes:
        """What is held up to the end of its first `count` frames; the rest is dropped."""
        held, end = b"".join(self._held), 0
        self._held = []
        try:
            for _, frame in zip(range(count), self._new_frames().feed(held), strict=False):
                end = held.find(frame.raw, end) + len(frame.raw)
        except DragomanError:
            pass  # bytes that are no frames stand behind the last one
        return self._asked_for(held[:end])

    def _rest(self) -> bytes:
        rest = b"".join(self._held)
        self._held = []
        return self._asked_for(rest)

    def _asked_for(self, data: bytes) -> bytes:
        for raw in self._unasked:
            before, _, behind = data.rpartition(raw)  # they come late
            data = before + behind
        self._unasked = []
        return data

"""An answer that passes as it came: one language, nothing to change. A reader follows it. Pure.

Frames that tell what only we asked for are cut out. Only whole frames go out, so that an error or a ping can always be
put behind the last one. A frame whose content cannot be read passes, with a note. The stream ends with the dialect's
error where the reader finds a violation: a call or block that is dropped, merged or left open, a missing end, bytes
that are no frames (D7). The frame that is the violation does not go out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

from dragoman.answer import Mask, Progress, note_unread
from dragoman.dialects.base import REAL_WORLD, Encoder, Reader, World
from dragoman.errors import DragomanError, Fault
from dragoman.model.budget import Budget
from dragoman.model.events import FINISHED, BlockKeys, Events, Failed, Run, Step
from dragoman.model.notes import MOST_OF_ANSWER, Note, Notes
from dragoman.translate import Plan
from dragoman.wire import jsonio
from dragoman.wire.frame import Frame, FrameDecoder, Payload, Row

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
        self.fault: Fault | None = None
        self._notes = Notes(most=MOST_OF_ANSWER)
        self._new_frames = dialect.binding.frames
        self._frames = _LastSeen(dialect.binding.frames())
        decoder = dialect.codec.decoder(plan.sent, world, keys)
        self._reader = Reader(self._frames, decoder, skips=True, keeps_unread=True, budget=keys.budget)
        self._moulds = self._reader.moulds
        self._encoder = plan.client.codec.encoder(plan.asked, world, keys.budget)
        self._frame = plan.client.binding.frame
        self._held: list[bytes] = []
        self._unasked: list[bytes] = []  # frames that tell what only we asked for
        self._follows = True  # the encoder could take all that passed
        self._unheard: list[Events] = []  # what passed, and the encoder was not told yet
        self._silent: Callable[[Events], bool] | None = getattr(self._encoder, "silent", None) if plan.notes else None
        self._fitted = False  # the last chunk was a frame like the one before it

    @property
    def notes(self) -> list[Note]:
        return list(self._notes)

    @property
    def hushed(self) -> int:
        return self._reader.hushed

    def feed(self, chunk: bytes) -> bytes:
        fits = self._moulds.fits
        if not self._held and fits(chunk):
            self._frames.count += 1
            self._fitted = True
            return chunk
        if self.over:
            return b""
        if self._fitted:
            self._fitted = False
            self._moulds.praise()
        self._held.append(chunk)
        self._frames.last, before = b"", self._frames.count
        for step in self._reader.feed(chunk):
            if isinstance(step, Run):
                self.progress.begun = True
            elif (end := self._heard(step, self._frames.count - before)) is not None:
                return end
        self.over = self._reader.over
        return self._through(self._frames.count - before) if self.over else self._whole_frames()

    def _heard(self, step: Step, count: int) -> bytes | None:
        """Take note of what a frame said; give the end of the stream if it must be told in other words.

        `count` frames of those that are held were read.
        """
        if step.unread:
            note_unread(self._notes, step)
        last = step.events[-1] if step.events else None
        if isinstance(last, Failed):
            masked = self._masked(last.fault)
            if not step.raw or masked is not last.fault:
                whole = count if self._frames.broken is not None else count - 1
                self._frames.count -= count - whole
                return self._ended_with(masked, self._through(whole))
            if (retold := self._retold(step.raw, last.fault)) is not None:
                self.over, self.fault = True, last.fault
                return self._through(count - 1) + retold
            self.fault = last.fault
        self._see(step.events)
        if self._silent is not None and self._silent(step.events):
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
        count = self._frames.count
        if broken is None:
            for step in self._reader.close():
                if step.events == (FINISHED,) and not step.raw:
                    end = step.events  # it had said why it stopped, and not that it did
                    continue
                if isinstance(step, Step) and step.unread:
                    note_unread(self._notes, step)
                self._see(step.events)
                if self._silent is not None and self._silent(step.events):
                    self._held = []
                if step.events and isinstance(last := step.events[-1], Failed):
                    broken = last.fault
        self.over = True
        if broken is None:
            rest = self._rest()  # its last frame may lack the line end without which clients do not read it
            rest = self._frames.last if rest and self._frames.last.startswith(rest) else rest
            return rest + self._written(end)
        self.fault, self._frames.count = broken, count  # half a frame does not go out
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

    def _ended_with(self, fault: Fault, before: bytes) -> bytes:
        """The upstream failed, and its own words cannot go out: the frames before, and the error in our words."""
        self.over, self.fault = True, fault
        return before + self._written((Failed(fault),))

    def _written(self, events: Events) -> bytes:
        speaker = self._speaker()
        if renumber := getattr(speaker, "renumber", None):
            renumber(self._frames.count)
        return b"".join([self._frame(payload) for payload in speaker.feed(events)])

    def _masked(self, fault: Fault) -> Fault:
        return fault if self._mask is None else self._mask(fault)

    def _whole_frames(self) -> bytes:
        last = self._frames.last
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


class _LastSeen:
    """A frame decoder that remembers the bytes of the last frame it gave, and what it could not read."""

    def __init__(self, frames: FrameDecoder) -> None:
        self.last = b""
        self.count = 0
        self.broken: DragomanError | None = None
        self._frames = frames
        if hasattr(frames, "fits"):
            self.fits = frames.fits  # counted by whoever asks
        if hasattr(frames, "skip"):
            self.skip = self._skip

    @property
    def held(self) -> int:
        """See FrameDecoder."""
        return self._frames.held

    def feed(self, chunk: bytes) -> Iterator[Frame]:
        return self._seen(self._frames.feed(chunk))

    def close(self) -> Iterator[Frame]:
        self.last = b""
        return self._seen(self._frames.close())

    def mould(self, frame: Frame, start: int, stop: int) -> object | None:
        mould = getattr(self._frames, "mould", None)
        return None if mould is None else mould(frame, start, stop)

    def row(self, mould: object, chunk: bytes = b"") -> Row | None:
        row: Row | None = self._frames.row(mould, chunk)  # type: ignore[attr-defined]  # who has moulds has rows
        if row is not None:
            self.last = row.raw
            self.count += len(row.texts)
        return row

    def _skip(self, mould: object) -> tuple[int, bytes] | None:
        skipped: tuple[int, bytes] | None = self._frames.skip(mould)  # type: ignore[attr-defined]
        if skipped is not None:
            self.count += skipped[0]
            self.last = skipped[1]
        return skipped

    def _seen(self, frames: Iterator[Frame]) -> Iterator[Frame]:
        try:
            for frame in frames:
                self.last = frame.raw
                self.count += 1
                yield frame
        except DragomanError as error:
            self.broken = error
            raise

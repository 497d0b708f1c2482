"""An answer that passes as it came: one language, nothing to change. A reader taps it; its complaints stay here. Pure.

Frames that tell what only we asked for are cut out. Only whole frames go out, so that an error or a ping can always be
put behind the last one. What the tap cannot read passes all the same; but bytes that are no frames at all end the
stream, since no client could read them either.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Protocol

from dragoman.answer import Mask, Progress
from dragoman.dialects.base import REAL_WORLD, Encoder, Reader, World
from dragoman.errors import DragomanError, Fault
from dragoman.model.events import FINISHED, Events, Failed, Run, Step
from dragoman.model.notes import Note
from dragoman.translate import Plan
from dragoman.wire.frame import Frame, FrameDecoder, Row

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
    def feed(self, chunk: bytes) -> bytes: ...
    def close(self, broken: Fault | None = None) -> bytes: ...
    def ping(self) -> bytes: ...


class Passing:
    """Has the same face as `answer.Answer`."""

    def __init__(self, plan: Plan, world: World = REAL_WORLD, mask: Mask | None = None) -> None:
        dialect = plan.upstream
        self._mask = mask
        self.progress = Progress()
        self.over = False
        self.fault: Fault | None = None
        self.notes: list[Note] = []
        self._frames = _LastSeen(dialect.binding.frames())
        self._reader = Reader(self._frames, dialect.codec.decoder(plan.sent, world), skips=True)
        self._moulds = self._reader.moulds
        self._encoder = plan.client.codec.encoder(plan.asked, world)
        self._frame = plan.client.binding.frame
        self._held: list[bytes] = []
        self._unasked: list[bytes] = []  # frames that tell what only we asked for
        self._unheard: list[Events] = []  # what passed, and the encoder was not told yet
        self._silent: Callable[[Events], bool] | None = getattr(self._encoder, "silent", None) if plan.notes else None
        self._fitted = False  # the last chunk was a frame like the one before it
        self._lost = False  # the last frame was one that the tap could not read: it may have been the end

    def feed(self, chunk: bytes) -> bytes:
        fits = self._moulds.fits
        if not self._held and fits(chunk):
            self._frames.count += 1
            self._fitted, self._lost = True, False
            return chunk
        if self.over:
            return b""
        if self._fitted:
            self._fitted = False
            self._moulds.praise()
        self._held.append(chunk)
        self._frames.last = b""
        steps = self._reader.feed(chunk)
        while steps:
            for step in steps:
                if isinstance(step, Run):
                    self.progress.begun, self._lost = True, False
                elif (end := self._heard(step)) is not None:
                    return end
            steps = self._reader.resume() if self._lost else []
        self.over = self._reader.over
        return self._to_the_end() if self.over else self._whole_frames()

    def _heard(self, step: Step) -> bytes | None:
        """Take note of what a frame said; give the end of the stream if it must be told in other words."""
        last = step.events[-1] if step.events else None
        self._lost = False
        if isinstance(last, Failed):
            if self._reader.refused:
                return self._ended_with(self._masked(last.fault), told=True)
            if not step.raw and self._frames.broken is None:  # a complaint of ours, not a word of the upstream's
                self._lost = self.progress.begun = True
                return None
            masked = self._masked(last.fault)
            if not step.raw or masked is not last.fault:
                return self._ended_with(masked, told=bool(step.raw))
            self.fault = last.fault
        self._see(step.events)
        if self._silent is not None and self._silent(step.events):
            self._unasked.append(step.raw)
        return None

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
                self._see(step.events)
                if self._silent is not None and self._silent(step.events):
                    self._held = []
                if step.events and isinstance(last := step.events[-1], Failed) and not self._lost:
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
        for events in unheard:
            with suppress(DragomanError):
                if not encoder.passes(events):
                    list(encoder.feed(events))
        return encoder

    def _ended_with(self, fault: Fault, *, told: bool) -> bytes:
        """The upstream failed in bytes that nobody can read, or in words that the client must not: in ours, then."""
        self.over, self.fault = True, fault
        held, last = b"".join(self._held), self._frames.last
        whole = held.rfind(last) + (0 if told else len(last)) if last else 0
        self._held = []
        return self._asked_for(held[:whole]) + self._written((Failed(fault),))

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

    def _to_the_end(self) -> bytes:
        """What is held up to the frame that was the end: what an upstream says after it is for nobody."""
        held, last = b"".join(self._held), self._frames.last
        self._held = []
        end = held.find(last) if last else -1
        return self._asked_for(held if end < 0 else held[: end + len(last)])

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

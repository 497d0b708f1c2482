"""An answer that passes as it came: one language, nothing to change. A reader taps it; its complaints stay here. Pure.

Only whole frames go out, so that an error or a ping can always be put behind the last one. When the tap loses its way
it is taken off, and the rest passes unread.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from dragoman.dialects.base import REAL_WORLD, Reader, World
from dragoman.errors import Fault
from dragoman.model.events import Failed
from dragoman.model.notes import Note
from dragoman.translate import Mask, Plan, Progress
from dragoman.wire.frame import Frame, FrameDecoder


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
    """Has the same face as `translate.Answer`."""

    def __init__(self, plan: Plan, world: World = REAL_WORLD, mask: Mask | None = None) -> None:
        dialect = plan.upstream
        self._mask = mask
        self.progress = Progress()
        self.over = False
        self.fault: Fault | None = None
        self.notes: list[Note] = []
        self._frames = _LastSeen(dialect.binding.frames())
        self._reader = Reader(self._frames, dialect.codec.decoder(plan.sent, world))
        self._encoder = plan.client.codec.encoder(plan.asked, world)
        self._frame = plan.client.binding.frame
        self._held: list[bytes] = []
        self._tapped = True

    def feed(self, chunk: bytes) -> bytes:
        if not self._tapped:
            return chunk
        self._held.append(chunk)
        self._frames.last = b""
        for step in self._reader.feed(chunk):
            last = step.events[-1] if step.events else None
            if isinstance(last, Failed):
                if not step.raw:  # a complaint of ours, not a word of the upstream's
                    self._tapped, self.progress.begun = False, True
                    break
                if (masked := self._masked(last.fault)) is not last.fault:
                    return self._ended_with(masked)
                self.fault = last.fault
            self.progress.see(step.events)
        self.over = self._reader.over and self._tapped
        if self._reader.over:
            self._tapped = False
            return self._rest()
        return self._whole_frames()

    def close(self, broken: Fault | None = None) -> bytes:
        """The bytes are over. What is no end in this dialect gets one: the in-stream error."""
        if self.over or (broken is None and not self._tapped):
            return self._rest()
        if broken is None:
            for step in self._reader.close():
                self.progress.see(step.events)
                if step.events and isinstance(last := step.events[-1], Failed):
                    broken = last.fault
        self.over = True
        if broken is None:
            rest = self._rest()  # its last frame may lack the line end without which clients do not read it
            return self._frames.last if self._frames.last.startswith(rest) else rest
        self.fault = broken
        return self._failure(self._masked(broken))

    def _ended_with(self, fault: Fault) -> bytes:
        """The last frame told what the client must not read: it is told again, without that."""
        self.over, self._tapped, self.fault = True, False, fault
        held = self._rest()
        return held[: held.rfind(self._frames.last)] + self._failure(fault)

    def _failure(self, fault: Fault) -> bytes:
        return b"".join([self._frame(payload) for payload in self._encoder.feed((Failed(fault),))])

    def _masked(self, fault: Fault) -> Fault:
        return fault if self._mask is None else self._mask(fault)

    def ping(self) -> bytes:
        payload = None if self.over else self._encoder.ping()
        return b"" if payload is None else self._frame(payload)

    def _whole_frames(self) -> bytes:
        if not self._frames.last:
            return b""
        held = self._rest()
        end = held.rfind(self._frames.last) + len(self._frames.last)
        if end < len(held):
            self._held = [held[end:]]
        return held[:end]

    def _rest(self) -> bytes:
        rest = b"".join(self._held)
        self._held = []
        return rest


class _LastSeen:
    """A frame decoder that remembers the bytes of the last frame it gave."""

    def __init__(self, frames: FrameDecoder) -> None:
        self.last = b""
        self._frames = frames

    def feed(self, chunk: bytes) -> Iterator[Frame]:
        for frame in self._frames.feed(chunk):
            self.last = frame.raw
            yield frame

    def close(self) -> Iterator[Frame]:
        self.last = b""
        for frame in self._frames.close():
            self.last = frame.raw
            yield frame

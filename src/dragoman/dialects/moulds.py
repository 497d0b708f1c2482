"""Most of a stream is one frame again and again, with another text in it: its mould is learnt once, and then all of its
kind that a read brings are taken in one go.

Theory of operation. A frame that its decoder read as one delta, and that has a pure reader of the string that became
the delta's text, is read once more with that string changed. If the reader finds the change, the place is known for
sure: whatever else stands in the frame, the frames that follow and differ in this place only mean the same delta with
another text. That holds until a frame comes that is of another mould, and it is read as carefully as ever.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeAlias

from dragoman.model.events import Delta, Events, Listener, Run, TextDelta
from dragoman.wire.frame import Frame, FrameDecoder
from dragoman.wire.jsonio import JsonError, quote

Texts: TypeAlias = Mapping[type[Delta], Callable[[bytes], str]]

_PATIENCE = 16  # moulds learnt without a frame that was of one: whoever spells each frame anew is read frame by frame
_PLACES = 4  # that one text may have in a frame


class Moulds:
    """Learns from frames that were read; gives runs."""

    __slots__ = (
        "_fits",
        "_frames",
        "_hearing",
        "_key",
        "_kind",
        "_mould",
        "_patience",
        "_skip",
        "_sole",
        "_texts",
        "fits",
        "listener",
        "sole",
    )

    def __init__(self, frames: FrameDecoder, decoder: object) -> None:
        self._frames: Any = frames
        self._sole: Callable[[Any, bytes], tuple[str, bytes] | None] = getattr(frames, "sole", _nothing)
        self._skip: Callable[[Any], object] = getattr(frames, "skip", _none)
        self._fits: Callable[[Any, bytes], bool] = getattr(frames, "fits", _nothing)
        self._texts: Texts = getattr(decoder, "texts", {}) if hasattr(frames, "row") else {}
        self._hearing: Callable[[type[Delta], int], Listener | None] = getattr(decoder, "hearing", _nothing)
        self.listener: Listener | None = None  # to the texts of the mould's deltas
        self._mould: object | None = None
        self._kind: type[Delta] = TextDelta
        self._key = 0
        self._patience = _PATIENCE
        # What a chunk says, and how, that is just one frame of the mould of the last: so come most events that do not
        # hurry. Nobody is told; who takes it tells the listener. `fits`: whether it is that, and nobody listens.
        self.sole: Callable[[bytes], tuple[str, bytes] | None] = _no_frame
        self.fits: Callable[[bytes], bool] = _never

    def learn(self, frame: Frame, events: Events | None) -> None:
        self.forget()
        if not events or len(events) > 1 or not self._patience:
            return
        delta: Any = events[0]
        read = self._texts.get(type(delta))
        found = None if read is None else _place(frame.data, delta.text, read)
        if found is not None:
            self._mould = self._frames.mould(frame, *found)
            self._kind, self._key = type(delta), delta.key
            self.listener = self._hearing(self._kind, self._key)
            self._patience -= 1
            if self._mould is not None:
                self.sole = partial(self._sole, self._mould)
                self.fits = partial(self._fits, self._mould) if self.listener is None else _never

    def praise(self) -> None:
        """Something fitted."""
        self._patience = _PATIENCE

    def forget(self) -> None:
        self._mould, self.sole, self.fits = None, _no_frame, _never

    def skip(self) -> bool:
        """Whether `run` would give something that nobody listens to here: then that was it. What was skipped, the frame
        decoder knows.
        """
        if self._mould is None or self.listener is not None or self._skip(self._mould) is None:
            return False
        self._patience = _PATIENCE
        return True

    def run(self, chunk: bytes = b"") -> Run | None:
        """The frames that come next, or that a chunk begins with, if they are of the mould of the last."""
        if self._mould is None:
            return None
        row = self._frames.row(self._mould, chunk)
        if row is None:
            return None
        self._patience = _PATIENCE
        run = Run(self._kind, self._key, row, "".join(row.texts))
        if self.listener is not None:
            self.listener(run.text)
        return run


def _never(_chunk: bytes) -> bool:
    return False


def _no_frame(_chunk: bytes) -> None:
    return None


def _none(_mould: object) -> None:
    return None


def _nothing(_one: object, _other: object) -> Any:
    return None


def _place(data: bytes, text: str, read: Callable[[bytes], str]) -> tuple[int, int] | None:
    """Where in a frame the inside of the string stands that is the text; None if that cannot be told."""
    literal, changed = quote(text), text + "~"
    instead, at = quote(changed), -1
    for _ in range(_PLACES):
        at = data.find(literal, at + 1)
        if at < 0:
            break
        end = at + len(literal)
        try:
            if read(data[:at] + instead + data[end:]) == changed:
                return at + 1, end - 1
        except JsonError:
            continue
    return None

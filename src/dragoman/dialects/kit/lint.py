"""The base of the checks behind `dragoman check`: the type of breaches, and the walk over the frames of a stream."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar, TypeAlias

from dragoman.dialects.rulebook import Breach, Rulebook
from dragoman.wire.frame import Frame

BreachTuples: TypeAlias = Iterator[tuple[str, str, str]]  # short name of a rule, place, detail


class StreamLint:
    """Checks captured frames of a stream. A dialect defines `rules`, `frame` and `end`; the latter call `breach`."""

    rules: ClassVar[Rulebook]

    def __init__(self) -> None:
        self._breaches: list[Breach] = []
        self.at = ""  # the place that is being checked

    @classmethod
    def breaches(cls, frames: Iterable[Frame]) -> Sequence[Breach]:
        """Return all breaches. The place of a breach is the number of its frame, or the end."""
        lint = cls()
        for number, frame in enumerate(frames):
            lint.at = f"frame {number}"
            lint.frame(frame)
        lint.at = "end"
        lint.end()
        return lint._breaches

    def frame(self, frame: Frame) -> None:
        """Check one frame."""
        raise NotImplementedError

    def end(self) -> None:
        """Check what is known only at the end."""
        raise NotImplementedError

    def breach(self, rule: str, detail: str, at: str | None = None) -> None:
        """Record the breach of a stream rule at the current place, or at an earlier one."""
        self._breaches.append(self.rules.breach(f"stream.{rule}", self.at if at is None else at, detail))

"""What rules of a dialect are made of: findings in a request, and the walk over the frames of a stream."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar, TypeAlias

from dragoman.dialects.rulebook import Breach, Rulebook
from dragoman.wire.frame import Frame

Findings: TypeAlias = Iterator[tuple[str, str, str]]  # short name of a rule, place, detail


class StreamLint:
    """The rules of a stream over captured frames. A dialect gives `rules`, `frame` and `end`, which call `breach`."""

    rules: ClassVar[Rulebook]

    def __init__(self) -> None:
        self._found: list[Breach] = []
        self.at = ""  # the place of what is read

    @classmethod
    def breaches(cls, frames: Iterable[Frame]) -> Sequence[Breach]:
        """Return every breach; its place is the number of the frame, or the end."""
        lint = cls()
        for number, frame in enumerate(frames):
            lint.at = f"frame {number}"
            lint.frame(frame)
        lint.at = "end"
        lint.end()
        return lint._found

    def frame(self, frame: Frame) -> None:
        """Check one frame."""
        raise NotImplementedError

    def end(self) -> None:
        """Check what can be known at the end only."""
        raise NotImplementedError

    def breach(self, rule: str, detail: str, at: str | None = None) -> None:
        """Record the breach of a stream rule, here or at a place before."""
        self._found.append(self.rules.breach(f"stream.{rule}", self.at if at is None else at, detail))

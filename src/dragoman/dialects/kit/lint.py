"""What rules of a dialect are made of: findings in a request, and the walk over the frames of a stream."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeAlias

from dragoman.dialects.rulebook import Breach, Rulebook
from dragoman.wire.frame import Frame

Found: TypeAlias = Iterator[tuple[str, str, str]]  # short name of a rule, place, detail


class StreamLint:
    """The rules of a stream over captured frames. A dialect gives `frame` and `end`, which call `breach`."""

    def __init__(self, rules: Rulebook) -> None:
        self._rules = rules
        self._found: list[Breach] = []
        self.at = ""  # the place of what is read

    def run(self, frames: Iterable[Frame]) -> list[Breach]:
        """Return every breach; its place is the number of the frame, or the end."""
        for number, frame in enumerate(frames):
            self.at = f"frame {number}"
            self.frame(frame)
        self.at = "end"
        self.end()
        return self._found

    def frame(self, frame: Frame) -> None:
        """Check one frame."""
        raise NotImplementedError

    def end(self) -> None:
        """Check what can be known at the end only."""
        raise NotImplementedError

    def breach(self, rule: str, detail: str, at: str | None = None) -> None:
        """Record the breach of a stream rule, here or at a place before."""
        self._found.append(self._rules.breach(f"stream.{rule}", self.at if at is None else at, detail))

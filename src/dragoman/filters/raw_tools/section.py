"""A section of calls while it is read: what it said before its first call, in case there is none."""

from __future__ import annotations

from dragoman.filters.raw_tools.outputs import Output, Remark
from dragoman.filters.raw_tools.readers import LIMIT


class Section:
    """Text in a section says nothing once there is a call; until then it may be prose about the markers."""

    def __init__(self, opener: str) -> None:
        self._opener = opener
        self._calls = False
        self._noise = ""

    def hears(self, noise: str, out: list[Output]) -> bool:
        """Take the text before a marker; False if that is more than may wait for a call."""
        if self._calls:
            self._left_out(noise, out)
        else:
            self._noise += noise
        return len(self._noise) <= LIMIT

    def calls(self, out: list[Output]) -> None:
        """A call has begun."""
        self._left_out(self._noise, out)
        self._noise, self._calls = "", True

    def given_back(self, out: list[Output]) -> str:
        """All it said, if it is over and there was no call."""
        noise, self._noise = self._noise, ""
        if not self._calls and self._opener:
            out.append(stray(self._opener))
            self._opener = ""
        return noise

    @property
    def says(self) -> bool:
        """Whether it has anything to give back."""
        return bool(self._noise.strip())

    def _left_out(self, noise: str, out: list[Output]) -> None:
        if noise.strip():
            out.append(Remark("noise", "text between the calls of a section was left out"))


def stray(literal: str) -> Remark:
    return Remark("stray_marker", f"{literal} stood on its own and was removed")

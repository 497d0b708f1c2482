"""Reading raw JSON for the rules of a dialect: what has the wrong type reads as absent, so that rules never raise."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeAlias

from dragoman.dialects.rulebook import Breach, Rulebook
from dragoman.wire import jsonio
from dragoman.wire.frame import Frame
from dragoman.wire.jsonio import Json

Object: TypeAlias = dict[str, Json]
Placed: TypeAlias = tuple[Object, str]  # an object, and its place in the payload
Found: TypeAlias = Iterator[tuple[str, str, str]]  # short name of a rule, place, detail


def members(value: Json) -> Object:
    """Return the value if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def items(value: Json) -> list[Json]:
    """Return the value if it is an array, else an empty one."""
    return value if isinstance(value, list) else []


def text(value: Json) -> str:
    """Return the value if it is a string, else an empty one."""
    return value if isinstance(value, str) else ""


def objects(value: Json, at: str) -> Iterator[Placed]:
    """Yield the objects of an array, each with its place."""
    for index, item in enumerate(items(value)):
        if isinstance(item, dict):
            yield item, f"{at}[{index}]"


def decoded(data: bytes | str) -> Json:
    """Return the JSON value of a text, or None if it is no JSON."""
    try:
        return jsonio.decode(data)
    except jsonio.JsonError:
        return None


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

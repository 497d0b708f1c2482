"""What is wrong with a configuration, said so that a person can mend it: where, what, and what to do."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Literal, TypeAlias

from msgspec import Struct

from dragoman.errors import LocalMisuse

Key: TypeAlias = tuple[str | int, ...]  # a place in the tree of settings: names, and numbers in lists
Layer: TypeAlias = Literal["default", "built-in", "preset", "file", "environment", "flag"]


class Origin(Struct, frozen=True):
    """Who said a value: the layer, and where in it (a file and line, a variable, a preset, an option)."""

    layer: Layer
    place: str = ""
    line: int = 0

    def __str__(self) -> str:
        if self.layer == "file":
            return f"{self.place}:{self.line}" if self.line else self.place
        return f"{self.layer} {self.place}".rstrip()


DEFAULT = Origin("default")


class Problem(Struct, frozen=True):
    """One thing that is wrong. `hint` says what to do about it."""

    at: str
    message: str
    hint: str = ""
    origin: Origin = DEFAULT

    def __str__(self) -> str:
        # A default needs no blame: what is wrong about it is that nobody said anything else.
        said = f"{self.origin}: " if self.origin.layer != "default" else ""
        place = f"{self.at}: " if self.at else ""
        return f"{said}{place}{self.message}" + (f" ({self.hint})" if self.hint else "")


class ConfigError(LocalMisuse):
    """A configuration that cannot be used. `problems` has all of them; the other attributes tell of the first."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = tuple(problems)

    @property
    def file(self) -> Path | None:
        origin = self.problems[0].origin
        return Path(origin.place) if origin.layer == "file" else None

    @property
    def line(self) -> int:
        """The line in the file; 0 if it is not in a file, or the file as a whole."""
        return self.problems[0].origin.line

    @property
    def hint(self) -> str:
        return self.problems[0].hint


def dotted(key: Key) -> str:
    """The key as people write it: `routes[0].upstream`."""
    text = ""
    for part in key:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{part}" if text else part
    return text


def near(name: str, known: Iterable[str]) -> str:
    """`did you mean NAME?`, or nothing if no name is near."""
    found = get_close_matches(name.lower(), list(known), 1)
    return f"did you mean {found[0]}?" if found else ""

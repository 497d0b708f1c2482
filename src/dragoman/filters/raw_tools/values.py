"""Decide how a value that a model wrote as text becomes JSON, by the schema that the request declares for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias


class Shape(Protocol):
    """What a tool's schema says about one parameter."""

    @property
    def declared(self) -> bool:
        """Whether the schema has this property."""
        ...

    @property
    def streams(self) -> bool:
        """Whether the value can only be a string, so that it may go out, escaped, while it comes."""
        ...

    def as_json(self, raw: str, told: str = "") -> str:
        """Return the value as JSON text. `told` is the type that the markup itself names, in its own word."""
        ...


ShapeOf: TypeAlias = Callable[[str, str], Shape]  # the tool's name as written ("" for the header's), the parameter

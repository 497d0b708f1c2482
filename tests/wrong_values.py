"""Values of wrong types, and functions that put them at every place of a JSON body."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any, TypeAlias

Path: TypeAlias = tuple[Any, ...]  # keys and indices, outermost first

WRONG_VALUES: tuple[Any, ...] = (
    None, True, 7, -1, -1.5, 2.5, "", "x", [], [1], ["x"], [None], [{}], [[]], [[1]], [[[]]],
    {}, {"type": "x"}, {"type": 3}, {"a": [1]}, [{"type": "reasoning.text", "text": 5}],
)  # fmt: skip


def body_paths(value: Any, at: Path = ()) -> Iterator[Path]:
    """Yield the path of every value in a body, outer values first."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list | tuple) else ()
    for name, inner in items:
        yield (*at, name)
        yield from body_paths(inner, (*at, name))


def dotted_path(path: Path) -> str:
    """Return a path as text for a test id."""
    return ".".join(map(str, path))


def value_at(body: Any, path: Path) -> Any:
    """Return the value at a path of a body."""
    for step in path:
        body = body[step]
    return body


def without_value(body: Any, path: Path) -> Any:
    """Return a copy of the body without the value at a path."""
    changed = copy.deepcopy(body)
    del value_at(changed, path[:-1])[path[-1]]
    return changed


def with_value(body: Any, path: Path, value: Any) -> Any:
    """Return a copy of the body with another value at a path."""
    if not path:
        return value
    changed = copy.deepcopy(body)
    value_at(changed, path[:-1])[path[-1]] = value
    return changed

"""Readers for settings that several dialects share, and a guard against bodies that are nested too deeply."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import ParamSpec, TypeVar

from dragoman.errors import DragomanError
from dragoman.wire import jsonio
from dragoman.wire.fields import Fields

P = ParamSpec("P")
T = TypeVar("T")


def guard_depth(
    blame: type[DragomanError], message: str = "the request is nested too deeply"
) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Return a decorator for readers and writers: they raise `blame` instead of RecursionError or JsonError."""

    def decorate(work: Callable[P, T]) -> Callable[P, T]:
        @wraps(work)
        def run(*args: P.args, **kwargs: P.kwargs) -> T:
            try:
                return work(*args, **kwargs)
            except (RecursionError, jsonio.JsonError):
                raise blame(message) from None

        return run

    return decorate


def take_max_tokens(fields: Fields, name: str) -> int | None:
    """Take the most tokens that a reply may have."""
    value = fields.integer(name, None)
    if value is not None and value < 0:
        fields.fail(name, "expected a number of tokens, 0 or more")
    return value


def take_choices(fields: Fields, name: str) -> int:
    """Take the number of requested replies; 1 if absent."""
    choices = fields.integer(name, 1)
    if choices < 1:
        fields.fail(name, "expected 1 or more")
    return choices


def take_stops(fields: Fields, name: str) -> tuple[str, ...]:
    """Take the stop sequences: a list of strings, or one string."""
    return (fields.text(name),) if isinstance(fields.peek(name), str) else fields.strings(name, ())


def take_sampling(fields: Fields, names: Mapping[str, str]) -> dict[str, float]:
    """Take the sampling settings that are present; `names` maps canonical names to those on the wire."""
    sampling = {setting: fields.number(name, None) for setting, name in names.items()}
    return {setting: value for setting, value in sampling.items() if value is not None}

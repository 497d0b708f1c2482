"""The inputs of the comparison: stories, what the laws' generators draw, and fuzz documents, as wire bytes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.strategies import SearchStrategy

import dragoman.dialects as registry
from dragoman.dialects.base import SYSTEM_ENVIRONMENT
from dragoman.errors import DragomanError
from dragoman.model.conversation import Conversation
from dragoman.translate import plan
from tests.fuzz.seeded_runs import inputs
from tests.fuzz.targets import seeds
from tests.strategies import conversations, events

Item: TypeAlias = tuple[str, str, bytes]  # request or response, the dialect of the bytes, the bytes


def corpus(documents: int, drawn: int) -> Iterator[Item]:
    """All inputs: `documents` fuzz documents in total, and `drawn` examples of each generator for each dialect."""
    names = list(registry.names())
    for name in names:
        for kind in ("request", "response"):
            yield from ((kind, name, data) for data in seeds(f"{kind}.{name}"))
            runs = documents // (2 * len(names)) + 1
            yield from ((kind, name, data) for data in inputs(f"{kind}.{name}", runs, 1))
    for conversation in _drawn(conversations(), drawn):
        for name in names:
            if (body := _request(name, conversation)) is not None:
                yield "request", name, body
    for stream in _drawn(events(), drawn):
        for name in names:
            dialect = registry.get(name)
            encoder = dialect.codec.encoder(Conversation("m", ()), SYSTEM_ENVIRONMENT)
            try:
                yield "response", name, b"".join(map(dialect.binding.encode_frame, encoder.feed(stream)))
            except DragomanError:
                continue


def _request(name: str, conversation: Conversation) -> bytes | None:
    dialect = registry.get(name)
    try:
        return dialect.binding.wrap(plan(dialect, dialect, conversation).call()).body
    except (DragomanError, RecursionError):
        return None


def _drawn(strategy: SearchStrategy[Any], count: int) -> list[Any]:
    found: list[Any] = []

    @seed(1)
    @settings(
        max_examples=count,
        phases=[Phase.generate],
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def draw(example: Any) -> None:
        found.append(example)

    draw()
    return found

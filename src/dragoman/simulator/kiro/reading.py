"""A request to the simulated service: its parts, and an estimate of its tokens."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

from dragoman.dialects.kiro.raw import RawRequest
from dragoman.dialects.kit.values import text
from dragoman.wire import jsonio
from dragoman.wire.http import HttpRequest
from dragoman.wire.jsonio import Json


class Asked(RawRequest):
    """One request, read once. `problem` says why its body is no JSON."""

    def __init__(self, request: HttpRequest) -> None:
        super().__init__(None)
        self.request = request
        self.problem = ""
        try:
            self.document = jsonio.decode(request.body)
        except jsonio.JsonError as error:
            self.problem = str(error)

    @property
    def model(self) -> str:
        """The model asked for; `auto` when none is."""
        return text(self.current.body.get("modelId")) or "auto" if self.current else "auto"

    @cached_property
    def tokens(self) -> int:
        """An estimate of the whole input: four ASCII characters or one other character a token."""
        return sum(map(estimate, _prose(self.document))) + IMAGE_TOKENS * len(self.images)


IMAGE_TOKENS = 1600


def estimate(words: str) -> int:
    """Tokens in a text, roughly; one character outside ASCII counts as one."""
    if words.isascii():
        return -(-len(words) // 4)
    plain = sum(character < "\x80" for character in words)
    return len(words) - plain + -(-plain // 4)


def _prose(value: Json) -> Iterator[str]:
    """All text of a document, keys included, except the bytes of images."""
    pending: list[Json] = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, list):
            pending.extend(item)
        elif isinstance(item, dict):
            yield from item
            pending.extend(inner for name, inner in item.items() if name != "bytes")

"""A Kiro request as it lies on the wire, read without trust: what has the wrong type reads as absent.

Reads raw JSON on purpose, and nothing of the Kiro dialect: the rules must not share its mistakes.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Literal, TypeAlias

from msgspec import Struct

from dragoman.wire import jsonio
from dragoman.wire.http import HttpRequest
from dragoman.wire.jsonio import Json

Object: TypeAlias = dict[str, Json]
Placed: TypeAlias = tuple[str, Object]  # a path, and the object there

_STATE = "conversationState"
_ROLES: dict[str, Literal["user", "assistant"]] = {"userInputMessage": "user", "assistantResponseMessage": "assistant"}


def members(value: Json) -> Object:
    """The value if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def items(value: Json) -> list[Json]:
    """The value if it is an array, else an empty one."""
    return value if isinstance(value, list) else []


def text(value: Json) -> str:
    return value if isinstance(value, str) else ""


def objects(value: Json, at: str) -> list[Placed]:
    """The objects of an array, each with its path."""
    return [(f"{at}[{index}]", item) for index, item in enumerate(items(value)) if isinstance(item, dict)]


class Turn(Struct, frozen=True):
    """One message of the conversation, with what the rules ask of it."""

    role: Literal["user", "assistant"]
    at: str
    body: Object

    @property
    def content(self) -> str:
        return text(self.body.get("content"))

    @property
    def context(self) -> Object:
        return members(self.body.get("userInputMessageContext"))

    @property
    def uses(self) -> list[Placed]:
        return objects(self.body.get("toolUses"), f"{self.at}.toolUses") if self.role == "assistant" else []

    @property
    def results(self) -> list[Placed]:
        return objects(self.context.get("toolResults"), f"{self.at}.userInputMessageContext.toolResults")

    @property
    def images(self) -> list[Placed]:
        return objects(self.body.get("images"), f"{self.at}.images")


class Asked:
    """One request, read once. `problem` says why its body is no JSON."""

    def __init__(self, request: HttpRequest) -> None:
        self.request = request
        self.problem = ""
        self.document: Json = None
        try:
            self.document = jsonio.decode(request.body)
        except jsonio.JsonError as error:
            self.problem = str(error)

    @property
    def top(self) -> Object:
        return members(self.document)

    @property
    def state(self) -> Object:
        return members(self.top.get(_STATE))

    @cached_property
    def history(self) -> list[Turn]:
        return [
            turn for at, entry in objects(self.state.get("history"), f"{_STATE}.history") for turn in _turns(entry, at)
        ]

    @cached_property
    def current(self) -> Turn | None:
        entry = members(self.state.get("currentMessage"))
        return next(_turns(entry, f"{_STATE}.currentMessage"), None)

    @cached_property
    def turns(self) -> list[Turn]:
        """History and current message, in order."""
        return [*self.history, *([self.current] if self.current else [])]

    @cached_property
    def tool_entries(self) -> list[Placed]:
        if self.current is None:
            return []
        return objects(self.current.context.get("tools"), f"{self.current.at}.userInputMessageContext.tools")

    @cached_property
    def tools(self) -> list[Placed]:
        """The tool specifications of the current message."""
        return [
            (f"{at}.toolSpecification", spec)
            for at, entry in self.tool_entries
            if isinstance(spec := entry.get("toolSpecification"), dict)
        ]

    @property
    def model(self) -> str:
        """The model asked for; `auto` when none is."""
        return text(self.current.body.get("modelId")) or "auto" if self.current else "auto"

    @cached_property
    def images(self) -> list[Placed]:
        return [image for turn in self.turns for image in turn.images]

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


def _turns(entry: Object, at: str) -> Iterator[Turn]:
    for member, role in _ROLES.items():
        body = entry.get(member)
        if isinstance(body, dict):
            yield Turn(role, f"{at}.{member}", body)


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

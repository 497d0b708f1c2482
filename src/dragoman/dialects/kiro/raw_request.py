"""The parts of a raw Kiro request body, for the rules. Pure; independent of the dialect's parser and renderer."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Literal

from msgspec import Struct

from dragoman.dialects.kit.values import LocatedObject, Object, members, objects, text
from dragoman.wire.jsonio import Json

_STATE = "conversationState"
_ROLES: dict[str, Literal["user", "assistant"]] = {"userInputMessage": "user", "assistantResponseMessage": "assistant"}


class KiroRawTurn(Struct, frozen=True):
    """One message of the conversation, with the parts that the rules check.

    A part of the wrong type reads as empty.
    """

    role: Literal["user", "assistant"]
    at: str
    body: Object

    @property
    def content(self) -> str:
        """The text of the message."""
        return text(self.body.get("content"))

    @property
    def context(self) -> Object:
        """The `userInputMessageContext` of a user message: its tools and tool results."""
        return members(self.body.get("userInputMessageContext"))

    @property
    def uses(self) -> list[LocatedObject]:
        """The tool calls of an assistant message, each with its path."""
        return list(objects(self.body.get("toolUses"), f"{self.at}.toolUses")) if self.role == "assistant" else []

    @property
    def results(self) -> list[LocatedObject]:
        """The tool results of a user message, each with its path."""
        return list(objects(self.context.get("toolResults"), f"{self.at}.userInputMessageContext.toolResults"))

    @property
    def images(self) -> list[LocatedObject]:
        """The images of the message, each with its path."""
        return list(objects(self.body.get("images"), f"{self.at}.images"))


class KiroRawRequest:
    """One request body: its history, current message, tools and images, each with its path."""

    def __init__(self, document: Json) -> None:
        self.document = document

    @property
    def top(self) -> Object:
        """The members of the body."""
        return members(self.document)

    @property
    def state(self) -> Object:
        """The members of `conversationState`."""
        return members(self.top.get(_STATE))

    @cached_property
    def history(self) -> list[KiroRawTurn]:
        """The messages of the history, in order."""
        entries = objects(self.state.get("history"), f"{_STATE}.history")
        return [turn for entry, at in entries for turn in _turns(entry, at)]

    @cached_property
    def current(self) -> KiroRawTurn | None:
        """The current message; None if there is none."""
        return next(_turns(members(self.state.get("currentMessage")), f"{_STATE}.currentMessage"), None)

    @cached_property
    def turns(self) -> list[KiroRawTurn]:
        """The history and the current message, in order."""
        return [*self.history, *([self.current] if self.current else [])]

    @cached_property
    def tool_entries(self) -> list[LocatedObject]:
        """The entries of the tool list of the current message, each with its path."""
        if self.current is None:
            return []
        return list(objects(self.current.context.get("tools"), f"{self.current.at}.userInputMessageContext.tools"))

    @cached_property
    def tools(self) -> list[LocatedObject]:
        """The tool specifications of the current message."""
        return [
            (spec, f"{at}.toolSpecification")
            for entry, at in self.tool_entries
            if isinstance(spec := entry.get("toolSpecification"), dict)
        ]

    @cached_property
    def images(self) -> list[LocatedObject]:
        """The images of all messages, each with its path."""
        return [image for turn in self.turns for image in turn.images]


def _turns(entry: Object, at: str) -> Iterator[KiroRawTurn]:
    for member, role in _ROLES.items():
        body = entry.get(member)
        if isinstance(body, dict):
            yield KiroRawTurn(role, f"{at}.{member}", body)

"""The shape of a filter: it changes what a conversation says, notes it, and owns the way back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

from dragoman.model.conversation import Conversation
from dragoman.model.events import Events
from dragoman.model.notes import Notes


class Back(Protocol):
    """The answer half of a filter: stateful, one per answer. Returns the same tuple if nothing changes.

    Every stream ends with Finished or Failed, so a filter that holds something lets go of it there. One that looks at
    some kinds of events only may name them in `reads`, a set of types, of its class: a lone event of another kind is not
    shown to it.
    """

    def feed(self, events: Events) -> Events: ...


MakeBack: TypeAlias = Callable[[Notes], Back]


class Filter(Protocol):
    @property
    def name(self) -> str: ...

    def forward(self, conversation: Conversation, notes: Notes) -> tuple[Conversation, MakeBack | None]: ...

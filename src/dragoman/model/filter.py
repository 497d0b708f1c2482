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
    some kinds of events only may name them in its class's `reads`, a set of types: a lone event of another kind is not
    shown to it.

    One that lets most deltas pass may have `lets(run: Run) -> int`, how many of a run, from the first on, would pass
    as they are: those are not shown to it, but told to `heard(run: Run)`, if it has that; only those of the kinds in
    `hears`, if it has that.
    """

    def feed(self, events: Events) -> Events: ...


MakeBack: TypeAlias = Callable[[Notes], Back]


class Filter(Protocol):
    """One whose only changes ask for more than the client did has `only_asks = True`; one that leaves messages in
    canonical form, whatever it does to them, may say so by `keeps_form = True`.
    """

    @property
    def name(self) -> str: ...

    def forward(self, conversation: Conversation, notes: Notes) -> tuple[Conversation, MakeBack | None]: ...

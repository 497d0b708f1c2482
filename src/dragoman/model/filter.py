"""The shape of a filter: it changes what a conversation says, notes it, and owns the way back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

from dragoman.model.conversation import Conversation
from dragoman.model.events import BlockKeys, Events
from dragoman.model.facts import Facts
from dragoman.model.notes import Notes


class Back(Protocol):
    """The answer half of a filter: stateful, one per answer. Returns the same tuple if nothing changes.

    Every stream ends with Finished or Failed, so a filter that holds something lets go of it there. One that looks at
    some kinds of events only may name them in its class's `reads`, a set of types: where none of those is among them,
    events are not shown to it.

    One that lets most deltas pass may have `lets(kind, key) -> Search | None`: None if it wants to see such deltas of
    that block, else what finds the reason to see one in its text (`nothing` where there is none). What has no such
    reason is not shown to it, and if it must know of that, it has `hearing(kind, key) -> Listener | None`: who is told
    the texts. Both are asked once, and their word holds until it is fed something.

    One that opens blocks takes their keys from the `BlockKeys` that its maker gets. One that holds part of the answer
    counts it in their `budget`.
    """

    def feed(self, events: Events) -> Events: ...


MakeBack: TypeAlias = Callable[[Notes, BlockKeys], Back]


class Filter(Protocol):
    """One whose changes leave answers as they are, or only ask for more than the client did, has `only_asks = True`.
    One that leaves messages in canonical form, whatever it does to them, may say so by `keeps_form = True`.
    """

    @property
    def name(self) -> str: ...

    def forward(self, conversation: Conversation, notes: Notes, facts: Facts) -> tuple[Conversation, MakeBack | None]:
        """Fit a conversation that has the canonical form. `facts` tells what its messages hold."""

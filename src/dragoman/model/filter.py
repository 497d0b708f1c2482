"""The shape of a filter: it changes what a conversation says, notes it, and changes the answer back."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import ClassVar, Protocol, TypeAlias

from dragoman.model.conversation import Conversation
from dragoman.model.events import BlockKeys, Delta, Event, Events
from dragoman.model.facts import Facts
from dragoman.model.lane import LaneWatch
from dragoman.model.notes import Notes


class Back(Protocol):
    """The answer half of a filter: stateful, one per answer.

    Every stream ends with Finished or Failed, so a filter that holds something gives it out there. One that opens
    blocks takes their keys from the `BlockKeys` that its maker gets. One that holds part of the answer counts it in
    their `budget`.
    """

    reads: ClassVar[frozenset[type[Event]] | None] = None  # types of the events that it looks at; None: all

    @abstractmethod
    def feed(self, events: Events) -> Events:
        """Return what becomes of the events: the same tuple if nothing changes."""

    def lane(self, kind: type[Delta], key: int) -> LaneWatch | None:
        """Return when it must see such a delta of this block (lane.py); None: always."""
        return None


MakeBack: TypeAlias = Callable[[Notes, BlockKeys], Back]


class Filter(Protocol):
    """The request half of a filter, and the maker of the answer half."""

    name: str
    before: ClassVar[str] = ""  # for a quirk: the name of the shared filter that needs its work done
    only_asks: ClassVar[bool] = False  # its changes leave answers as they are, or only ask for more than the client did
    keeps_form: ClassVar[bool] = False  # it leaves messages in canonical form, whatever it does to them

    @abstractmethod
    def forward(self, conversation: Conversation, notes: Notes, facts: Facts) -> tuple[Conversation, MakeBack | None]:
        """Return the conversation, changed or the same, and what makes the answer half if there is one.

        The conversation has the canonical form. `facts` says what its messages hold.
        """

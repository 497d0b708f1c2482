"""The shape of a filter: it changes what a conversation says, notes it, and changes the answer back."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable
from typing import ClassVar, Protocol, TypeAlias

from msgspec import structs

from dragoman.model.blocks import Block, Media, Opaque, Reasoning, Text, ToolCall
from dragoman.model.conversation import Conversation, Message, ToolSpec
from dragoman.model.events import BlockKeys, BlockStarted, Delta, Event, Events
from dragoman.model.facts import Facts, Features
from dragoman.model.lane import LaneWatch
from dragoman.model.notes import Notes

# The type of an event; for the beginning of a block also the type of the block.
Kind: TypeAlias = type[Event] | type[Block]
Reads: TypeAlias = frozenset[Kind]
NOTHING: Reads = frozenset()
BLOCKS: Reads = frozenset({Text, Reasoning, ToolCall, Media, Opaque})  # the beginning of any block


class Back(Protocol):
    """The answer half of a filter: stateful, one per answer. It writes `take`, or `feed` to see all events of a frame.

    Every stream ends with Finished or Failed, so a filter that holds something gives it out there. One that opens
    blocks takes their keys from the `BlockKeys` that its maker gets. One that holds part of the answer counts it in
    their `budget`.

    `reads` names the kinds of events that concern it now; None: all. It is fed the events of a frame only if there is
    such a kind among them. It may set `reads` anew while it is fed: a filter for calls reads nothing but the beginning
    of a call until there is one.
    """

    __slots__ = ()
    reads: Reads | None = None

    def feed(self, events: Events) -> Events:
        """Return what becomes of the events: the same tuple if nothing changes."""
        out: list[Event] = []
        for event in events:
            reads = self.reads
            if (
                reads is None
                or type(event) in reads
                or (isinstance(event, BlockStarted) and type(event.block) in reads)
            ):
                out += self.take(event)
            else:
                out.append(event)
        changed = tuple(out)
        return events if changed == events else changed

    def take(self, event: Event) -> Iterable[Event]:
        """Return what becomes of one event."""
        return (event,)

    def lane(self, kind: type[Delta], key: int) -> LaneWatch | None:
        """Return when it must see such a delta of this block (lane.py); None: always."""
        return None


MakeBack: TypeAlias = Callable[[Notes, BlockKeys], Back]
NEVER: Features = frozenset()  # for a filter that has an answer half alone


class Filter(Protocol):
    """The request half of a filter, and the maker of the answer half.

    A filter remembers nothing of a request: one serves all requests of a pair of dialects. What it needs to know of the
    two, it decides when it is made.
    """

    name: str
    before: ClassVar[str] = ""  # for a quirk: the name of the shared filter that needs its work done
    only_asks: ClassVar[bool] = False  # its changes leave answers as they are, or only ask for more than the client did
    keeps_form: ClassVar[bool] = False  # it leaves messages in canonical form, whatever it does to them
    concerns: Features | None = None  # it is called only for a conversation that has one of these; None: always
    answers: MakeBack | None = None  # makes the answer half that every answer needs, whatever is asked

    def forward(self, conversation: Conversation, notes: Notes, facts: Facts) -> tuple[Conversation, MakeBack | None]:
        """Return the conversation, changed or the same, and what makes the answer half of this request, if it has one.

        The conversation has the canonical form. `facts` says what it holds.
        """
        return conversation, None


class EachMessage(Filter):
    """A filter that looks at one message at a time, or at one block at a time."""

    def forward(self, conversation: Conversation, notes: Notes, facts: Facts) -> tuple[Conversation, MakeBack | None]:
        messages = tuple([self.message(message, notes) for message in conversation.messages])
        if messages == conversation.messages:
            return conversation, None
        return structs.replace(conversation, messages=messages), None

    def message(self, message: Message, notes: Notes) -> Message:
        """Return the message, changed or the same."""
        blocks = tuple([each for block in message.blocks for each in self.block(block, notes)])
        return message if blocks == message.blocks else structs.replace(message, blocks=blocks)

    def block(self, block: Block, notes: Notes) -> Iterable[Block]:
        """Return what becomes of a block."""
        return (block,)


class EachTool(Filter):
    """A filter that looks at one declared tool at a time."""

    def forward(self, conversation: Conversation, notes: Notes, facts: Facts) -> tuple[Conversation, MakeBack | None]:
        before = len(notes)
        tools = tuple([self.tool(tool, notes) for tool in conversation.tools])
        return (conversation if len(notes) == before else structs.replace(conversation, tools=tools)), None

    @abstractmethod
    def tool(self, tool: ToolSpec | Opaque, notes: Notes) -> ToolSpec | Opaque:
        """Return the tool, changed or the same."""

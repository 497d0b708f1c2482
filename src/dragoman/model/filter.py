"""The shape of a filter: it changes what a conversation says, notes it, and changes the answer back.

Here are also its notes (`Notes`), what it is told about a conversation (`Facts`), and its part of a lane (`LaneWatch`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from operator import eq
from typing import Any, ClassVar, Literal, Protocol, TypeAlias

from msgspec import Struct, structs

from dragoman.errors import Unrepresentable
from dragoman.model.blocks import Block, Media, Opaque, Reasoning, Text, ToolCall, ToolResult
from dragoman.model.conversation import (
    OTHER_SHAPES,
    Conversation,
    Message,
    Output,
    Thinking,
    ToolChoice,
    ToolSpec,
    tool_name,
)
from dragoman.model.events import BlockKeys, BlockStarted, Delta, Event, Events

# --- Notes: what a translation changed. No change without its note, no note without a change


Action: TypeAlias = Literal["changed", "dropped", "added", "renamed"]


class Note(Struct, frozen=True):
    """One change: a stable rule name (docs/rules.md), what was done, where in the payload, and a sentence."""

    rule: str
    action: Action
    at: str
    detail: str

    def __str__(self) -> str:
        place = f" {self.at}:" if self.at else ""
        return f"[{self.rule}] {self.action}{place} {self.detail}"


MAX_RESPONSE_NOTES = 1000  # notes on one answer that are kept
_LONGEST = 2000  # characters of such a note


class Notes(list[Note]):
    """A growing list of notes. With `refuse`, the first loss is an error instead.
    `most` is for answers, which may have no end: the last note counts those that are over it, and long ones are cut.

    See docs/decisions/content.md#d9, `losses = "refuse"`.
    """

    __slots__ = ("_more", "_most", "_refuse")

    def __init__(self, *, refuse: bool = False, most: int | None = None) -> None:
        self._refuse = refuse
        self._most = most
        self._more = 0

    def add(self, rule: str, action: Action, at: str, detail: str) -> None:
        if self._refuse and action == "dropped":
            raise Unrepresentable(f"{detail} (rule {rule}; losses are refused)", at=at)
        if self._most is not None:
            if len(self) >= self._most:
                self._more += 1
                more = f"{self._more} more changes of this answer are not listed"
                self[self._most :] = [Note("notes.more", "changed", "", more)]
                return
            rule, at, detail = rule[:_LONGEST], at[:_LONGEST], detail[:_LONGEST]
        self.append(Note(rule, action, at, detail))

    def changed(self, rule: str, at: str, detail: str) -> None:
        self.add(rule, "changed", at, detail)

    def dropped(self, rule: str, at: str, detail: str) -> None:
        self.add(rule, "dropped", at, detail)

    def added(self, rule: str, at: str, detail: str) -> None:
        self.add(rule, "added", at, detail)

    def renamed(self, rule: str, at: str, detail: str) -> None:
        self.add(rule, "renamed", at, detail)


# --- What the filters of one plan ask about a conversation, found once for all of them.
#
# `Feature` names what a conversation may have that concerns filters. A plan calls a filter only if the conversation
# has a feature that the filter names (`Filter.applies_to`).


_COMMON: frozenset[type[Block]] = frozenset({Text, ToolCall, ToolResult})

Feature: TypeAlias = Literal[
    # of the messages
    "calls",  # tool calls
    "text_calls",  # calls with free text
    "results",  # tool results
    "failed_results",  # results that are errors
    "media",  # in messages or results
    "reasoning",
    "opaque",  # parts that only one family reads, in messages or results
    "system_turns",  # messages of the role system
    "uneven_turns",  # turns that do not alternate, or do not begin with a user turn; no turn at all
    "prefill",  # the last turn is an assistant's
    # of messages, tools or system
    "signatures",
    "citations",
    "blank",  # a text of white space only, a message without blocks, or a result without content
    "marks",  # cache marks
    "extras",  # fields that only one family knows, of the request or of anything in it
    "shapes",  # the reader took something in another shape than its dialect's own
    "system",  # system text
    # of the tools
    "tools",
    "opaque_tools",  # tools that only one family runs, or whose form is one family's own
    "text_tools",  # tools that take free text
    "bare_tools",  # tools that came without a schema
    "undescribed_tools",  # tools without a description
    "strict_tools",  # tools that say whether they are strict
    "waiting_tools",  # tools that are not offered from the start
    "same_names",  # two tools of one name
    # of the settings
    "chosen",  # a choice of tools
    "output",  # a form of the answer
    "thinking",  # how much to think
    "length",  # a limit of tokens
    "no_length",  # none
    "zero_length",  # a limit of 0
    "stops",  # stop sequences
    "sampling",  # temperature and the like
    "choices",  # more than one answer
    "whole",  # an answer that is not streamed
    "user",  # the id of a user
    "hints",  # request headers
    "held",  # what only the client's service holds
]
Features: TypeAlias = frozenset[Feature]


class Inventory(Struct, frozen=True, gc=False):
    """Blocks by their kind: a filter for one kind of thing need not look through all messages, and most of them find
    that there is nothing to do."""

    kinds: frozenset[type[Block]]
    texts: list[Text]
    calls: list[ToolCall]
    results: list[ToolResult]
    thoughts: list[Reasoning]
    others: list[Media | Opaque]
    parts: list[Text | Media | Opaque]  # what the results hold
    words: list[str]  # all texts, in results, too

    @property
    def media(self) -> list[Media]:
        """In results, too."""
        return [node for node in (*self.others, *self.parts) if type(node) is Media]

    @property
    def marked(self) -> list[Text | ToolCall | ToolResult | Media | Opaque]:
        """All that carries a cache mark, in results, too."""
        nodes = (*self.texts, *self.calls, *self.results, *self.parts, *self.others)
        return [node for node in nodes if node.cache]


def inventory(messages: tuple[Message, ...]) -> Inventory:
    """Look through messages."""
    found: defaultdict[type[Block], list[Any]] = defaultdict(list)
    for message in messages:
        for block in message.blocks:
            found[type(block)].append(block)
    kinds = frozenset(found)
    parts = [part for result in found[ToolResult] for part in result.content]
    others = found[Media] + found[Opaque]
    words = [text.text for text in found[Text]] + [part.text for part in parts if type(part) is Text]
    return Inventory(kinds, found[Text], found[ToolCall], found[ToolResult], found[Reasoning], others, parts, words)


class Facts:
    """Answers about the conversation of a plan. An answer holds until a filter changes what it is about."""

    _messages: tuple[Message, ...] | None = None
    _inventory: Inventory | None = None
    _of_messages: Features = frozenset()
    _tools: tuple[ToolSpec | Opaque, ...] = ()
    _of_tools: Features = frozenset()

    def inventory(self, conversation: Conversation) -> Inventory:
        """What its messages hold."""
        if self._inventory is None or conversation.messages is not self._messages:
            self._messages = conversation.messages
            self._inventory = inventory(conversation.messages)
            self._of_messages = _of_messages(conversation.messages, self._inventory)
        return self._inventory

    def features(self, conversation: Conversation) -> Features:
        """What it has of what filters name."""
        self.inventory(conversation)
        if conversation.tools is not self._tools:
            self._tools, self._of_tools = conversation.tools, _of_tools(conversation.tools)
        found: list[Feature] = ["length" if conversation.max_tokens is not None else "no_length"]
        if conversation.system:
            found += _of_system(conversation.system)
        if conversation.extra or conversation.hints or conversation.output.extra:
            found.append("extras")
            if conversation.extra and OTHER_SHAPES in conversation.extra.fields:
                found.append("shapes")
        has: tuple[tuple[object, Feature], ...] = (
            (conversation.tool_choice != _NO_CHOICE, "chosen"),
            (conversation.output != _NO_FORM, "output"),
            (conversation.thinking != _NO_THOUGHT, "thinking"),
            (conversation.max_tokens == 0, "zero_length"),
            (conversation.stop, "stops"),
            (conversation.sampling, "sampling"),
            (conversation.choices > 1, "choices"),
            (not conversation.stream, "whole"),
            (conversation.user, "user"),
            (conversation.hints, "hints"),
            (conversation.server_state, "held"),
        )
        found += [feature for holds, feature in has if holds]
        return self._of_messages.union(self._of_tools, found)

    def plain(self, conversation: Conversation) -> bool:
        """Whether its messages are texts, calls and results that say no more than that: nothing of one family's own."""
        self.inventory(conversation)
        return self._of_messages.isdisjoint(_FOREIGN)


_FOREIGN: Features = frozenset({"reasoning", "media", "opaque", "extras", "signatures", "citations"})
_BY_KIND: Mapping[type[Block], Feature] = {
    ToolCall: "calls",
    ToolResult: "results",
    Reasoning: "reasoning",
    Media: "media",
    Opaque: "opaque",
}
_NO_CHOICE, _NO_FORM, _NO_THOUGHT = ToolChoice(), Output(), Thinking()


def _of_messages(messages: tuple[Message, ...], held: Inventory) -> Features:
    found: set[Feature] = {_BY_KIND[kind] for kind in held.kinds if kind is not Text}
    texts, others, roles = held.texts, held.others, [message.role for message in messages]
    if held.parts:
        texts = texts + [part for part in held.parts if type(part) is Text]
        others = others + [part for part in held.parts if not isinstance(part, Text)]
        found.update([_BY_KIND[type(part)] for part in others])
    if odd := [text for text in texts if text.cache or text.signature or text.citations or text.extra]:
        _add_odd(found, odd)
    if not held.kinds <= {Text}:
        _add_odd(
            found, [call for call in held.calls if call.form != "json" or call.cache or call.signature or call.extra]
        )
        _add_odd(found, [result for result in held.results if result.is_error or result.cache or result.extra])
        _add_odd(found, (*held.thoughts, *others))
    for message in [message for message in messages if message.extra or not message.blocks]:
        if message.extra:
            found.add("extras")
        if not message.blocks:
            found.add("blank")
    if [words for words in held.words if not words or words.isspace()]:
        found.add("blank")
    if [result for result in held.results if not result.content]:
        found.add("blank")
    if "system" in roles:
        found.add("system_turns")
    if next((role for role in roles if role != "system"), "") != "user" or any(map(eq, roles, roles[1:])):
        found.add("uneven_turns")
    if roles and roles[-1] == "assistant":
        found.add("prefill")
    return frozenset(found)


def _add_odd(found: set[Feature], nodes: Iterable[Block]) -> None:
    """Add what these blocks have beyond their kind."""
    for node in nodes:
        if node.extra:
            found.add("extras")
        if not isinstance(node, Reasoning) and node.cache:
            found.add("marks")
        if isinstance(node, Text | ToolCall | Reasoning) and node.signature:
            found.add("signatures")
        if type(node) is Text and node.citations:
            found.add("citations")
        elif type(node) is ToolCall and node.form == "text":
            found.add("text_calls")
        elif type(node) is ToolResult and node.is_error:
            found.add("failed_results")


def _of_tools(tools: tuple[ToolSpec | Opaque, ...]) -> Features:
    found: set[Feature] = {"tools"} if tools else set()
    names: list[object] = []
    for tool in tools:
        if tool.extra:
            found.add("extras")
        if tool.cache:
            found.add("marks")
        if isinstance(tool, Opaque):
            found.add("opaque_tools")
            names.append(tool_name(tool))
            continue
        names.append(tool.name)
        if tool.schema is None:
            found.add("text_tools")
        if tool.at.is_absent:
            found.add("bare_tools")
        if not tool.description or tool.description.isspace():
            found.add("undescribed_tools")
        if tool.strict is not None:
            found.add("strict_tools")
        if tool.waits_for:
            found.add("waiting_tools")
    if len(names) > 1 and len({name for name in names if isinstance(name, str)}) < len(names):
        found.add("same_names")
    return frozenset(found)


def _of_system(texts: tuple[Text, ...]) -> set[Feature]:
    found: set[Feature] = {"system"}
    _add_odd(found, texts)
    if [text for text in texts if not text.text or text.text.isspace()]:
        found.add("blank")
    return found


# --- A lane: the short way of the deltas of one open block, from the upstream's frame to the client's.
#
# When a delta of a block has gone the general way, the decoder, every response filter and the encoder are asked once
# for their part of the block's lane. The next frames of the block go by the lane as long as they hold nothing but
# such a delta; any other frame goes the general way and closes the lane. What a part says holds until its owner is
# fed an event. A decoder, filter or encoder without lanes gives None: then all deltas go the general way, and the
# output is the same.


Search: TypeAlias = Callable[[str], object]  # gives None where it finds nothing, as that of a regular expression
Listener: TypeAlias = Callable[[str], object]  # gets the texts of the lane's deltas, one or several at a time


class LaneSource(Struct, frozen=True, gc=False):
    """The decoder's part: how a frame that holds one delta of the block, and nothing else, is read.

    `decode` raises for a frame of another shape, as that of `jsonio.strict` does. `text_of` gives None or "" for a
    delta of another block.
    """

    kind: str  # of the frames
    decode: Callable[[bytes], Any]
    text_of: Callable[[Any], str | None]
    listener: Listener | None = None


class LaneWatch(Struct, frozen=True, gc=False):
    """A response filter's part: when it must see a delta."""

    search: Search | None = None  # finds the reason to see a delta in its text; None: it never must
    listener: Listener | None = None


class LaneTarget(Struct, frozen=True, gc=False):
    """The encoder's part: a payload without the JSON string that is the text."""

    kind: bytes
    before: bytes
    after: bytes
    listener: Listener | None = None


NO_WATCH = LaneWatch()  # of a filter that need not see such deltas


# The type of an event; for the beginning of a block also the type of the block.
EventKind: TypeAlias = type[Event] | type[Block]
EventKinds: TypeAlias = frozenset[EventKind]
NO_EVENTS: EventKinds = frozenset()
BLOCK_STARTS: EventKinds = frozenset({Text, Reasoning, ToolCall, Media, Opaque})  # the beginning of any block


class ResponseFilter:
    """The answer half of a filter: stateful, one per answer. It writes `take`, or `feed` to see all events of a frame.

    Every stream ends with Finished or Failed, so a filter that holds something gives it out there. One that opens
    blocks takes their keys from the `BlockKeys` that its maker gets. One that holds part of the answer counts it in
    their `budget`.

    `reads` names the kinds of events that concern it now; None: all. It is fed the events of a frame only if there is
    such a kind among them. It may set `reads` anew while it is fed: a filter for calls reads nothing but the beginning
    of a call until there is one.
    """

    __slots__ = ()
    reads: EventKinds | None = None

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
        """Return when it must see such a delta of this block (see above); None: always."""
        return None


MakeResponseFilter: TypeAlias = Callable[[Notes, BlockKeys], ResponseFilter]
NO_FEATURES: Features = frozenset()  # for a filter that has an answer half alone


class Filter(Protocol):
    """The request half of a filter, and the maker of the answer half.

    A filter remembers nothing of a request: one serves all requests of a pair of dialects. What it needs to know of the
    two, it decides when it is made.
    """

    name: str
    before: ClassVar[str] = ""  # for a quirk: the name of the shared filter that needs its work done
    keeps_replies: ClassVar[bool] = (
        False  # its changes leave answers as they are, or only ask for more than the client did
    )
    keeps_canonical: ClassVar[bool] = False  # it leaves messages in canonical form, whatever it does to them
    applies_to: Features | None = None  # it is called only for a conversation that has one of these; None: always
    answers: MakeResponseFilter | None = None  # makes the answer half that every answer needs, whatever is asked

    def forward(
        self, conversation: Conversation, notes: Notes, facts: Facts
    ) -> tuple[Conversation, MakeResponseFilter | None]:
        """Return the conversation, changed or the same, and what makes the answer half of this request, if it has one.

        The conversation has the canonical form. `facts` says what it holds.
        """
        return conversation, None


class MessageFilter(Filter):
    """A filter that looks at one message at a time, or at one block at a time."""

    def forward(
        self, conversation: Conversation, notes: Notes, facts: Facts
    ) -> tuple[Conversation, MakeResponseFilter | None]:
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


class ToolFilter(Filter):
    """A filter that looks at one declared tool at a time."""

    def forward(
        self, conversation: Conversation, notes: Notes, facts: Facts
    ) -> tuple[Conversation, MakeResponseFilter | None]:
        before = len(notes)
        tools = tuple([self.tool(tool, notes) for tool in conversation.tools])
        return (conversation if len(notes) == before else structs.replace(conversation, tools=tools)), None

    @abstractmethod
    def tool(self, tool: ToolSpec | Opaque, notes: Notes) -> ToolSpec | Opaque:
        """Return the tool, changed or the same."""

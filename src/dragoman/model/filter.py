"""The base classes of filters. A filter changes a request, writes notes, and undoes the change in the response. Pure.

The arguments of a filter are here, too: the list of notes (`Notes`) and cached facts about the conversation (`Facts`);
and the values by which decoders, filters and encoders take part in a lane (`LaneSource`, `LaneWatch`, `LaneTarget`).
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

# --- Notes: the changes that a translation made. Every change has a note.


Action: TypeAlias = Literal["changed", "dropped", "added", "renamed"]


class Note(Struct, frozen=True):
    """One change: a stable rule name (docs/rules.md), an action, a place in the payload, and a sentence."""

    rule: str
    action: Action
    at: str
    detail: str

    def __str__(self) -> str:
        place = f" {self.at}" if self.at else ""
        return f"[{self.rule}] {self.action}{place}: {self.detail}"


MAX_RESPONSE_NOTES = 1000  # notes kept for one response
_LONGEST = 2000  # characters of such a note


class Notes(list[Note]):
    """A list of notes. With `refuse`, the first note of a loss raises Unrepresentable instead.

    `most` limits the notes of a response, which may be endless: the last note counts the notes over the limit, and long
    notes are cut. See docs/decisions/content.md#d9, `losses = "refuse"`.
    """

    __slots__ = ("_more", "_most", "_refuse")

    def __init__(self, *, refuse: bool = False, most: int | None = None) -> None:
        self._refuse = refuse
        self._most = most
        self._more = 0

    def add(self, rule: str, action: Action, at: str, detail: str) -> None:
        """Add a note. Raises Unrepresentable for a loss if losses are refused."""
        if self._refuse and action == "dropped":
            raise Unrepresentable(f"{detail} (rule {rule}; losses are refused)", at=at)
        if self._most is not None:
            if len(self) >= self._most:
                self._more += 1
                more = f"{self._more} more changes of this response are not listed"
                self[self._most :] = [Note("notes.more", "changed", "", more)]
                return
            rule, at, detail = rule[:_LONGEST], at[:_LONGEST], detail[:_LONGEST]
        self.append(Note(rule, action, at, detail))

    def changed(self, rule: str, at: str, detail: str) -> None:
        """Add a note: something was changed."""
        self.add(rule, "changed", at, detail)

    def dropped(self, rule: str, at: str, detail: str) -> None:
        """Add a note: something was lost."""
        self.add(rule, "dropped", at, detail)

    def added(self, rule: str, at: str, detail: str) -> None:
        """Add a note: something was added."""
        self.add(rule, "added", at, detail)

    def renamed(self, rule: str, at: str, detail: str) -> None:
        """Add a note: something was renamed."""
        self.add(rule, "renamed", at, detail)


# --- Features of a conversation, computed once for all filters of a plan.
#
# A plan calls a filter only if the conversation has one of the features in `Filter.applies_to`.

Feature: TypeAlias = Literal[
    # of the messages
    "calls",  # tool calls
    "text_calls",  # calls with free text
    "results",  # tool results
    "failed_results",  # results that are errors
    "media",  # in messages or results
    "reasoning",
    "opaque",  # parts that only one family reads, in messages or results
    "system_turns",  # messages with the role system
    "uneven_turns",  # turns that do not alternate, or do not begin with a user turn; no turn at all
    "prefill",  # the last message has the role assistant
    # of messages, tools or system
    "signatures",
    "citations",
    "blank",  # a text of white space only, a message without blocks, or a result without content
    "marks",  # cache marks
    "extras",  # fields that only one family knows, in any part of the request
    "shapes",  # the reader accepted a value in a shape that its dialect does not define
    "system",  # system text
    # of the tools
    "tools",
    "opaque_tools",  # tools that only one family runs or can write
    "text_tools",  # tools that take free text
    "bare_tools",  # tools that the client sent without a schema
    "undescribed_tools",  # tools without a description
    "strict_tools",  # tools with a strict flag, true or false
    "waiting_tools",  # tools that are not offered from the start
    "same_names",  # two tools of one name
    # of the settings
    "chosen",  # a choice of tools
    "output",  # a form of the reply
    "thinking",  # a setting for thinking
    "length",  # max_tokens is set
    "no_length",  # max_tokens is not set
    "zero_length",  # max_tokens is 0
    "stops",  # stop sequences
    "sampling",  # temperature and the like
    "choices",  # more than one choice
    "whole",  # a reply that is not streamed
    "user",  # a user id
    "session",  # the session of the client is known
    "hints",  # request headers
    "server_state",  # state that only the client's service has
]
Features: TypeAlias = frozenset[Feature]


class Inventory(Struct, frozen=True, gc=False):
    """The blocks of a conversation by kind, so that a filter for one kind does not search all messages."""

    kinds: frozenset[type[Block]]
    texts: list[Text]
    calls: list[ToolCall]
    results: list[ToolResult]
    thoughts: list[Reasoning]
    others: list[Media | Opaque]
    parts: list[Text | Media | Opaque]  # the content of the results
    words: list[str]  # all texts, including those in results

    @property
    def media(self) -> list[Media]:
        """All media, including those in results."""
        return [node for node in (*self.others, *self.parts) if type(node) is Media]

    @property
    def marked(self) -> list[Text | ToolCall | ToolResult | Media | Opaque]:
        """All blocks with a cache breakpoint, including those in results."""
        nodes = (*self.texts, *self.calls, *self.results, *self.parts, *self.others)
        return [node for node in nodes if node.cache]


def inventory(messages: tuple[Message, ...]) -> Inventory:
    """Return the blocks of the messages by kind."""
    blocks: defaultdict[type[Block], list[Any]] = defaultdict(list)
    for message in messages:
        for block in message.blocks:
            blocks[type(block)].append(block)
    kinds = frozenset(blocks)
    parts = [part for result in blocks[ToolResult] for part in result.content]
    others = blocks[Media] + blocks[Opaque]
    words = [text.text for text in blocks[Text]] + [part.text for part in parts if type(part) is Text]
    return Inventory(kinds, blocks[Text], blocks[ToolCall], blocks[ToolResult], blocks[Reasoning], others, parts, words)


class Facts:
    """Cached facts about the conversation of a plan. A fact is computed again after a filter changes its source."""

    _messages: tuple[Message, ...] | None = None
    _inventory: Inventory | None = None
    _message_features: Features = frozenset()
    _tools: tuple[ToolSpec | Opaque, ...] = ()
    _tool_features: Features = frozenset()

    def inventory(self, conversation: Conversation) -> Inventory:
        """Return the blocks of the messages by kind."""
        if self._inventory is None or conversation.messages is not self._messages:
            self._messages = conversation.messages
            self._inventory = inventory(conversation.messages)
            self._message_features = _message_features(conversation.messages, self._inventory)
        return self._inventory

    def features(self, conversation: Conversation) -> Features:
        """Return the features of the conversation."""
        self.inventory(conversation)
        if conversation.tools is not self._tools:
            self._tools, self._tool_features = conversation.tools, _tool_features(conversation.tools)
        features: list[Feature] = ["length" if conversation.max_tokens is not None else "no_length"]
        if conversation.system:
            features += _system_features(conversation.system)
        if conversation.extra or conversation.hints or conversation.output.extra:
            features.append("extras")
            if conversation.extra and OTHER_SHAPES in conversation.extra.fields:
                features.append("shapes")
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
            (conversation.session, "session"),
            (conversation.hints, "hints"),
            (conversation.server_state, "server_state"),
        )
        features += [feature for holds, feature in has if holds]
        return self._message_features.union(self._tool_features, features)

    def plain(self, conversation: Conversation) -> bool:
        """Return whether the messages have texts, calls and results only, without anything of one family."""
        self.inventory(conversation)
        return self._message_features.isdisjoint(_FOREIGN)


_FOREIGN: Features = frozenset({"reasoning", "media", "opaque", "extras", "signatures", "citations"})
_BY_KIND: Mapping[type[Block], Feature] = {
    ToolCall: "calls",
    ToolResult: "results",
    Reasoning: "reasoning",
    Media: "media",
    Opaque: "opaque",
}
_NO_CHOICE, _NO_FORM, _NO_THOUGHT = ToolChoice(), Output(), Thinking()


def _message_features(messages: tuple[Message, ...], inventory: Inventory) -> Features:
    features: set[Feature] = {_BY_KIND[kind] for kind in inventory.kinds if kind is not Text}
    texts, others, roles = inventory.texts, inventory.others, [message.role for message in messages]
    if inventory.parts:
        texts = texts + [part for part in inventory.parts if type(part) is Text]
        others = others + [part for part in inventory.parts if not isinstance(part, Text)]
        features.update([_BY_KIND[type(part)] for part in others])
    if with_fields := [text for text in texts if text.cache or text.signature or text.citations or text.extra]:
        _add_field_features(features, with_fields)
    if not inventory.kinds <= {Text}:
        _add_field_features(
            features,
            [call for call in inventory.calls if call.form != "json" or call.cache or call.signature or call.extra],
        )
        _add_field_features(
            features, [result for result in inventory.results if result.is_error or result.cache or result.extra]
        )
        _add_field_features(features, (*inventory.thoughts, *others))
    for message in [message for message in messages if message.extra or not message.blocks]:
        if message.extra:
            features.add("extras")
        if not message.blocks:
            features.add("blank")
    if [words for words in inventory.words if not words or words.isspace()]:
        features.add("blank")
    if [result for result in inventory.results if not result.content]:
        features.add("blank")
    if "system" in roles:
        features.add("system_turns")
    if next((role for role in roles if role != "system"), "") != "user" or any(map(eq, roles, roles[1:])):
        features.add("uneven_turns")
    if roles and roles[-1] == "assistant":
        features.add("prefill")
    return frozenset(features)


def _add_field_features(features: set[Feature], nodes: Iterable[Block]) -> None:
    """Add the features of optional fields of these blocks."""
    for node in nodes:
        if node.extra:
            features.add("extras")
        if not isinstance(node, Reasoning) and node.cache:
            features.add("marks")
        if isinstance(node, Text | ToolCall | Reasoning) and node.signature:
            features.add("signatures")
        if type(node) is Text and node.citations:
            features.add("citations")
        elif type(node) is ToolCall and node.form == "text":
            features.add("text_calls")
        elif type(node) is ToolResult and node.is_error:
            features.add("failed_results")


def _tool_features(tools: tuple[ToolSpec | Opaque, ...]) -> Features:
    features: set[Feature] = {"tools"} if tools else set()
    names: list[object] = []
    for tool in tools:
        if tool.extra:
            features.add("extras")
        if tool.cache:
            features.add("marks")
        if isinstance(tool, Opaque):
            features.add("opaque_tools")
            names.append(tool_name(tool))
            continue
        names.append(tool.name)
        if tool.schema is None:
            features.add("text_tools")
        if tool.at.is_absent:
            features.add("bare_tools")
        if not tool.description or tool.description.isspace():
            features.add("undescribed_tools")
        if tool.strict is not None:
            features.add("strict_tools")
        if tool.waits_for:
            features.add("waiting_tools")
    if len(names) > 1 and len({name for name in names if isinstance(name, str)}) < len(names):
        features.add("same_names")
    return frozenset(features)


def _system_features(texts: tuple[Text, ...]) -> set[Feature]:
    features: set[Feature] = {"system"}
    _add_field_features(features, texts)
    if [text for text in texts if not text.text or text.text.isspace()]:
        features.add("blank")
    return features


# --- A lane: a fast path for the deltas of one open block, from the upstream's frame to the client's.
#
# After a delta of a block took the general path, the decoder, each response filter and the encoder are called once
# for their part of the block's lane. The following frames use the lane if each contains one such delta and nothing
# else; any other frame takes the general path and closes the lane. A part is valid until its owner is fed an event. A
# decoder, filter or encoder without lanes returns None: all deltas take the general path, with the same output.


Search: TypeAlias = Callable[[str], object]  # returns None if it finds nothing, like `re.Pattern.search`
DeltaListener: TypeAlias = Callable[[str], object]  # gets the texts of the lane's deltas, one or several joined


class LaneSource(Struct, frozen=True, gc=False):
    """The decoder's part: how to read a frame that contains one delta of the block and nothing else.

    `decode` raises for a frame of another shape, like a decoder of `jsonio.strict`. `text_of` returns None or "" for a
    delta of another block.
    """

    kind: str  # of the frames
    decode: Callable[[bytes], Any]
    text_of: Callable[[Any], str | None]
    listener: DeltaListener | None = None


class LaneWatch(Struct, frozen=True, gc=False):
    """A response filter's part: which deltas it must see."""

    search: Search | None = None  # finds text that the filter must see; None: it needs no delta
    listener: DeltaListener | None = None


class LaneTarget(Struct, frozen=True, gc=False):
    """The encoder's part: the payload before and after the JSON string of the text."""

    kind: bytes
    before: bytes
    after: bytes
    listener: DeltaListener | None = None


NO_WATCH = LaneWatch()  # for a filter that needs no such delta


# The type of an event; for the start of a block also the type of the block.
EventKind: TypeAlias = type[Event] | type[Block]
EventKinds: TypeAlias = frozenset[EventKind]
NO_EVENTS: EventKinds = frozenset()
BLOCK_STARTS: EventKinds = frozenset({Text, Reasoning, ToolCall, Media, Opaque})  # the start of any block


class ResponseFilter:
    """The response half of a filter: stateful, one instance per response.

    A subclass overrides `take`, or `feed` to see all events of a frame. Every stream ends with Finished or Failed: a
    filter that buffers events releases them there. A filter that opens blocks takes their keys from the `BlockKeys` its
    factory gets, and counts what it buffers in their `budget`.

    `reads` names the kinds of events that the filter needs now; None means all. It is fed the events of a frame only if
    one of them has such a kind. It may change `reads` while it is fed: a filter for calls first reads only the start of
    a call.
    """

    __slots__ = ()
    reads: EventKinds | None = None

    def feed(self, events: Events) -> Events:
        """Return the filtered events: the same tuple if nothing changes."""
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
        """Return the events that replace one event."""
        return (event,)

    def lane(self, kind: type[Delta], key: int) -> LaneWatch | None:
        """Return the filter's part of a lane for such deltas of this block; None if it must see every one."""
        return None


MakeResponseFilter: TypeAlias = Callable[[Notes, BlockKeys], ResponseFilter]
NO_FEATURES: Features = frozenset()  # for a filter that has only a response half


class Filter(Protocol):
    """The request half of a filter, and the factory of its response half.

    A filter keeps no state of a request: one instance serves all requests of a pair of dialects. Its constructor gets
    the properties of the two.
    """

    name: str
    before: ClassVar[str] = ""  # for a quirk: the name of the shared filter before which it runs
    keeps_replies: ClassVar[bool] = False  # its changes do not alter the reply, or only add to it
    keeps_canonical: ClassVar[bool] = False  # its output messages are always in canonical form
    replaces_blocks: ClassVar[bool] = False  # its response half leaves out blocks that earlier frames announced
    applies_to: Features | None = None  # it is called only for a conversation that has one of these; None: always
    make_response_filter: MakeResponseFilter | None = None  # makes the response half that every request gets

    def forward(
        self, conversation: Conversation, notes: Notes, facts: Facts
    ) -> tuple[Conversation, MakeResponseFilter | None]:
        """Return the conversation, changed or the same, and the factory of the response half, if there is one.

        The conversation is in canonical form. `facts` describes its content.
        """
        return conversation, None


class MessageFilter(Filter):
    """A filter that changes one message or one block at a time."""

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
        """Return the blocks that replace a block."""
        return (block,)


class ToolFilter(Filter):
    """A filter that changes one declared tool at a time."""

    def forward(
        self, conversation: Conversation, notes: Notes, facts: Facts
    ) -> tuple[Conversation, MakeResponseFilter | None]:
        before = len(notes)
        tools = tuple([self.tool(tool, notes) for tool in conversation.tools])
        return (conversation if len(notes) == before else structs.replace(conversation, tools=tools)), None

    @abstractmethod
    def tool(self, tool: ToolSpec | Opaque, notes: Notes) -> ToolSpec | Opaque:
        """Return the tool, changed or the same."""

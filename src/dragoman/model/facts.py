"""What the filters of one plan ask about a conversation, found once for all of them.

`Feature` names what a conversation may have that concerns filters. A plan calls a filter only if the conversation has a
feature that the filter names (`Filter.concerns`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from operator import eq
from typing import Any, Literal, TypeAlias

from msgspec import Struct

from dragoman.model.blocks import Block, Media, Opaque, Reasoning, Text, ToolCall, ToolResult
from dragoman.model.conversation import Conversation, Message, Output, Thinking, ToolChoice, ToolSpec
from dragoman.model.naming import SHAPES

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
    "seals",
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
    "knobs",  # temperature and the like
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
        return self._of_messages.union(self._of_tools, _of_settings(conversation))

    def plain(self, conversation: Conversation) -> bool:
        """Whether its messages are texts, calls and results that say no more than that: nothing of one family's own."""
        self.inventory(conversation)
        return self._of_messages.isdisjoint(_FOREIGN)


_FOREIGN: Features = frozenset({"reasoning", "media", "opaque", "extras", "seals", "citations"})
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
    if odd := [text for text in texts if text.cache or text.seal or text.citations or text.extra]:
        _add_odd(found, odd)
    if not held.kinds <= {Text}:
        _add_odd(found, [call for call in held.calls if call.form != "json" or call.cache or call.seal or call.extra])
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
        if isinstance(node, Text | ToolCall | Reasoning) and node.seal:
            found.add("seals")
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
            names.append(tool.data.get("name") if isinstance(tool.data, dict) else None)
            continue
        names.append(tool.name)
        if tool.schema is None:
            found.add("text_tools")
        if tool.at.bare:
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


def _of_settings(asked: Conversation) -> list[Feature]:
    found: list[Feature] = ["length" if asked.max_tokens is not None else "no_length"]
    if asked.system:
        found += _of_system(asked.system)
    if asked.extra or asked.hints or asked.output.extra:
        found.append("extras")
        if asked.extra and SHAPES in asked.extra.fields:
            found.append("shapes")
    has: tuple[tuple[object, Feature], ...] = (
        (asked.tool_choice != _NO_CHOICE, "chosen"),
        (asked.output != _NO_FORM, "output"),
        (asked.thinking != _NO_THOUGHT, "thinking"),
        (asked.max_tokens == 0, "zero_length"),
        (asked.stop, "stops"),
        (asked.knobs, "knobs"),
        (asked.choices > 1, "choices"),
        (not asked.stream, "whole"),
        (asked.user, "user"),
        (asked.hints, "hints"),
        (asked.held, "held"),
    )
    found += [feature for holds, feature in has if holds]
    return found


def _of_system(texts: tuple[Text, ...]) -> set[Feature]:
    found: set[Feature] = {"system"}
    _add_odd(found, texts)
    if [text for text in texts if not text.text or text.text.isspace()]:
        found.add("blank")
    return found

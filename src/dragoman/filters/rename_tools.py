"""RenameTools: names and ids that the target allows (D4), the way back, and an id for every call of an answer (D5)."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from functools import cache, partial
from hashlib import sha256

from msgspec import structs

from dragoman.model.blocks import Block, Extra, Opaque, ToolCall, ToolResult, Where
from dragoman.model.capabilities import Alphabet, Capabilities
from dragoman.model.conversation import Conversation, Message, ToolChoice, ToolSpec
from dragoman.model.events import BlockKeys, BlockStarted, Event, Events, Started
from dragoman.model.facts import Facts
from dragoman.model.filter import Back, Filter, MakeBack, Reads
from dragoman.model.naming import NAME_AT_HOME
from dragoman.model.notes import Notes

_HASH = 8
_NO_NAMES: Mapping[str, str] = {}


def rename(text: str, alphabet: Alphabet) -> str:
    """The text itself if the alphabet allows it, else a cleaned prefix and eight characters of its hash.

    A function of the text alone: the same on a call and its result, in every request, whatever stands around it.
    """
    legal, illegal, joint = _rules(alphabet)
    if legal.fullmatch(text):
        return text
    prefix = illegal.sub(joint, text)[: alphabet.limit - _HASH - len(joint)]
    return prefix + joint + _digest(text)[:_HASH]


@cache
def _rules(alphabet: Alphabet) -> tuple[re.Pattern[str], re.Pattern[str], str]:
    characters = alphabet.pattern
    joint = "_" if re.fullmatch(f"[{characters}]", "_") else ""
    return re.compile(f"[{characters}]{{1,{alphabet.limit}}}"), re.compile(f"[^{characters}]"), joint


def _digest(text: str) -> str:
    return sha256(text.encode(errors="surrogatepass")).hexdigest()


class RenameTools(Filter):
    name = "rename_tools"

    def __init__(self, upstream: Capabilities, family: str = "") -> None:
        self._family = family
        self._names = upstream.names
        self._ids = upstream.ids

    def forward(self, conversation: Conversation, notes: Notes, facts: Facts) -> tuple[Conversation, MakeBack | None]:
        tools, turns, held = conversation.tools, len(conversation.messages), facts.inventory(conversation)
        used = {call.id for call in held.calls}.union([result.call_id for result in held.results])
        called = {call.name for call in held.calls}.union([tool.name for tool in tools if isinstance(tool, ToolSpec)])
        if _allows(self._names, called) and _allows(self._ids, used):  # as most do
            return conversation, partial(_Back, _NO_NAMES, used, turns)
        names = _Aliases(self._names, "tools.renamed", notes, self._family)
        ids = _Aliases(self._ids, "ids.renamed", notes)
        tools = tuple([_tool(tool, names) for tool in tools])
        for call in held.calls:
            ids.of(call.id, call.at)
            names.of(call.name, call.at, call.extra)
        for result in held.results:
            ids.of(result.call_id, result.at)
        choice = _choice(conversation.tool_choice, conversation.tools, names)
        if names.originals or ids.originals:
            messages = tuple([_message(message, names, ids) for message in conversation.messages])
            conversation = structs.replace(conversation, tools=tools, messages=messages, tool_choice=choice)
        return conversation, partial(_Back, names.originals, ids.aliases, turns)


def _allows(alphabet: Alphabet, texts: set[str]) -> bool:
    """Whether none of these needs an alias."""
    if not texts:
        return True
    fits = "" not in texts and max(map(len, texts)) <= alphabet.limit
    return fits and _rules(alphabet)[1].search("".join(texts)) is None


class _Aliases:
    """The aliases of one request; each new one is noted, at the first place that needs it."""

    def __init__(self, alphabet: Alphabet, rule: str, notes: Notes, family: str = "") -> None:
        self._alphabet = alphabet
        self._family = family
        self._legal = _rules(alphabet)[0].fullmatch
        self._rule = rule
        self._notes = notes
        self.aliases: dict[str, str] = {}
        self.originals: dict[str, str] = {}  # by alias, of those that needed one

    def of(self, text: str, at: Where, extra: Extra | None = None) -> str:
        alias = self.aliases.get(text)
        if alias is None:
            fits = self._legal(text) or self._has_another(extra)
            alias = self.aliases[text] = text if fits else rename(text, self._alphabet)
            if alias != text:
                self.originals[alias] = text
                self._notes.renamed(self._rule, at.path, f"{text!r} is sent as {alias!r}")
        return alias

    def _has_another(self, extra: Extra | None) -> bool:
        """Whether the target is told another name than this one, and that one is legal."""
        name = extra.fields.get(NAME_AT_HOME) if extra is not None and extra.family == self._family else None
        return isinstance(name, str) and self._legal(name) is not None


def _tool(tool: ToolSpec | Opaque, names: _Aliases) -> ToolSpec | Opaque:
    if isinstance(tool, Opaque):
        return tool
    name = names.of(tool.name, tool.at, tool.extra)
    return tool if name == tool.name else structs.replace(tool, name=name)


def _choice(choice: ToolChoice, tools: Iterable[ToolSpec | Opaque], names: _Aliases) -> ToolChoice:
    """The choice by the names that go out; a tool that is not ours to rename keeps its own."""
    ours = {tool.name for tool in tools if isinstance(tool, ToolSpec)} if choice.names else ()
    allowed = tuple([names.of(name, choice.at) if name in ours else name for name in choice.names])
    return choice if allowed == choice.names else structs.replace(choice, names=allowed)


def _message(message: Message, names: _Aliases, ids: _Aliases) -> Message:
    blocks = tuple([_block(block, names, ids) for block in message.blocks])
    return message if blocks == message.blocks else structs.replace(message, blocks=blocks)


def _block(block: Block, names: _Aliases, ids: _Aliases) -> Block:
    if isinstance(block, ToolCall):
        id_, name = ids.of(block.id, block.at), names.of(block.name, block.at, block.extra)
        return block if (id_, name) == (block.id, block.name) else structs.replace(block, id=id_, name=name)
    if isinstance(block, ToolResult):
        id_ = ids.of(block.call_id, block.at)
        return block if id_ == block.call_id else structs.replace(block, call_id=id_)
    return block


class _Back(Back):
    """Restores the names this request changed, and sees to it that every call of the answer has an id of its own.

    Some upstreams send none, or begin with `call_0` in every answer, which a client that pairs by id alone mistakes for
    the old call. `turns` is the request's length: it tells the answers of one conversation apart when `Started.id` does
    not.
    """

    reads: Reads = frozenset({Started, ToolCall})
    __slots__ = ("_calls", "_given", "_names", "_notes", "_seed", "_taken")

    def __init__(
        self, names: Mapping[str, str], taken: Collection[str], turns: int, notes: Notes, _keys: BlockKeys
    ) -> None:
        self._names = names
        self._taken = taken
        self._notes = notes
        self._seed = str(turns)
        self._given: dict[tuple[int, str], bool] = {}  # a set, small while it is empty
        self._calls = 0

    def take(self, event: Event) -> Events:
        if isinstance(event, Started):
            self._seed = f"{self._seed}\0{event.id}"
        if not isinstance(event, BlockStarted) or not isinstance(event.block, ToolCall):
            return (event,)
        call, choice = event.block, event.choice
        name, id_ = self._names.get(call.name, call.name), call.id
        if not id_ or id_ in self._taken or (choice, id_) in self._given:
            id_ = "call_" + _digest(f"{self._seed}\0{self._calls}\0{name}")[:24]
            if call.id:
                self._notes.renamed("ids.reused", "", f"the id {call.id!r} is in use; this call of {name} is {id_!r}")
            else:
                self._notes.added("ids.minted", "", f"the call of {name} came without an id; it is {id_!r}")
        self._calls += 1
        self._given[choice, id_] = True
        if (id_, name) == (call.id, call.name):
            return (event,)
        return (structs.replace(event, block=structs.replace(call, id=id_, name=name)),)

"""A conversation (what is asked) and a reply (what is answered), both whole."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from enum import Enum
from functools import cached_property
from typing import Any, Literal, TypeAlias

from msgspec import Struct, structs

from dragoman.model.blocks import (
    Block,
    Cache,
    Extra,
    Media,
    Node,
    Opaque,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
    Where,
)
from dragoman.wire.jsonio import Json

Role: TypeAlias = Literal["user", "assistant", "system"]
_COMMON: frozenset[type[Block]] = frozenset({Text, ToolCall, ToolResult})


class Message(Node, frozen=True):
    role: Role
    blocks: tuple[Block, ...]


class ToolSpec(Node, frozen=True):
    """A tool the model may call. `schema is None` means a free-text tool.

    `waits_for` says what must come before it is offered: nothing, a search that finds it (`defer_loading`), or the
    block of a message that defines it. A family that has such tools writes them so; no other has a form for them.
    """

    name: str
    description: str = ""
    schema: Mapping[str, Json] | None = None
    cache: Cache | None = None
    strict: bool | None = None
    waits_for: Literal["", "search", "block"] = ""

    def defines_the_same(self, other: ToolSpec) -> bool:
        """Whether a model would be shown the same; `name`s are taken to be equal."""
        return (self.description, self.schema, self.strict) == (other.description, other.schema, other.strict)


class ToolChoice(Struct, frozen=True):
    """Whether the model may (`auto`), must (`any`), must not (`none`) call, or must call `names` (`one`).

    With `auto` or `any`, `names` limits what may be called; empty means all tools.
    """

    mode: Literal["auto", "any", "none", "one"] = "auto"
    names: tuple[str, ...] = ()
    parallel: bool | None = None
    at: Where = Where("tool_choice")


class Output(Struct, frozen=True):
    """The form the answer must take."""

    kind: Literal["text", "json", "schema"] = "text"
    name: str = ""
    schema: Mapping[str, Json] | None = None
    strict: bool | None = None
    extra: Extra | None = None


class Thinking(Struct, frozen=True):
    """How much the model shall think, and whether it shall show it."""

    mode: Literal["default", "off", "on", "adaptive", "between_tools"] = "default"
    effort: str = ""
    budget: int | None = None
    show: bool | None = None  # None: as the target does by itself


class Held(Struct, frozen=True):
    """Something in a request that only the client's own service can serve: earlier turns or a template that it holds, a
    job that it runs, a conversation that it shall compact.

    A service takes it if its capabilities' `holds` has the name; the other fields tell the client why another does not.
    """

    name: str  # the field of the request, or the type of the item, that names it
    at: str
    why: str  # why another service cannot have it, and what to send instead
    turns: bool = False  # it holds earlier turns: a result may answer a call that the request does not show
    stored: bool = False  # it is stored by the service, so that no other service has it; so are earlier turns
    job: bool = False  # it asks for work that goes on without the client: asking twice does it twice
    answer: str = ""  # the id of the earlier answer that it continues
    code: str = ""  # of the error
    details: str = ""  # of the error, as JSON text


class Conversation(Node, frozen=True, dict=True, gc=True):
    model: str
    messages: tuple[Message, ...]
    system: tuple[Text, ...] = ()
    tools: tuple[ToolSpec | Opaque, ...] = ()
    tool_choice: ToolChoice = ToolChoice()
    output: Output = Output()
    thinking: Thinking = Thinking()
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    knobs: Mapping[str, float] = {}
    choices: int = 1
    stream: bool = False
    previous: str | None = None
    user: str = ""  # who asks, for the upstream's abuse checks
    hints: Extra | None = None  # request headers that matter to one family
    held: tuple[Held, ...] = ()  # what the client's service holds of this request

    @property
    def continues(self) -> bool:
        """Whether earlier turns are held by the service."""
        return any(each.turns for each in self.held)

    @property
    def is_bound(self) -> bool:
        """Whether only the service that stores what the request names can answer it."""
        return any(each.turns or each.stored for each in self.held)

    @property
    def is_job(self) -> bool:
        """Whether asking twice starts two jobs."""
        return any(each.job for each in self.held)

    @cached_property
    def inventory(self) -> Inventory:
        """What its messages hold, looked through once."""
        return _inventory(self.messages)

    @property
    def kinds(self) -> frozenset[type[Block]]:
        """The types of the blocks of its messages."""
        return self.inventory.kinds

    @cached_property
    def plain(self) -> bool:
        """Whether its messages are texts, calls and results that say no more than that: nothing of one family's own."""
        return _are_plain(self.messages, self.inventory)

    def knowing(self, other: Conversation) -> Conversation:
        """Itself, and what was found out about the other, which it was made of, need not be found out again."""
        if self.messages is other.messages:
            self.__dict__.update(other.__dict__)
        elif "tokens" in other.__dict__:  # an estimate, and what is made of it says much the same
            self.__dict__.setdefault("tokens", other.__dict__["tokens"])
        return self

    def unsaid(self) -> Conversation:
        """Itself without its messages, for those who read an answer to it; how long they were is still known."""
        unsaid = structs.replace(self, messages=())
        if "tokens" in self.__dict__:
            unsaid.__dict__["tokens"] = self.__dict__["tokens"]
        return unsaid


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


def _inventory(messages: tuple[Message, ...]) -> Inventory:
    found: defaultdict[type[Block], list[Any]] = defaultdict(list)
    for message in messages:
        for block in message.blocks:
            found[type(block)].append(block)
    kinds = frozenset(found)
    parts = [part for result in found[ToolResult] for part in result.content]
    others = found[Media] + found[Opaque]
    words = [text.text for text in found[Text]] + [part.text for part in parts if type(part) is Text]
    return Inventory(kinds, found[Text], found[ToolCall], found[ToolResult], found[Reasoning], others, parts, words)


def _are_plain(messages: tuple[Message, ...], held: Inventory) -> bool:
    texts = held.texts + [part for part in held.parts if type(part) is Text]
    if not held.kinds <= _COMMON or len(texts) < len(held.texts) + len(held.parts):
        return False
    nodes = (*messages, *held.calls, *held.results, *texts)
    foreign = [node for node in nodes if node.extra] or [call for call in held.calls if call.seal]
    return not (foreign or [text for text in texts if text.seal or text.citations])


def bare(conversation: Conversation) -> Conversation:
    """How an answer is wanted, without what is asked: for those who remember it while the answer comes."""
    return structs.replace(conversation, messages=(), system=(), tools=())


class Why(Enum):
    END = "end"
    TOOL = "tool"
    LENGTH = "length"
    SEQUENCE = "sequence"
    REFUSAL = "refusal"
    CONTEXT = "context"
    PAUSE = "pause"


class Stop(Struct, frozen=True):
    why: Why
    sequence: str | None = None
    extra: Extra | None = None


class Usage(Struct, frozen=True):
    """Token counts. `input` excludes both cache figures; `output` includes `reasoning`."""

    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0
    reasoning: int = 0
    estimated: bool = False
    extra: Extra | None = None


class Choice(Struct, frozen=True):
    blocks: tuple[Block, ...]
    stop: Stop


class Reply(Node, frozen=True):
    id: str
    model: str
    choices: tuple[Choice, ...]
    usage: Usage | None = None

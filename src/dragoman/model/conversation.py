"""A conversation (what is asked) and a reply (what is answered), both whole."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Literal, TypeAlias

from msgspec import Struct, structs

from dragoman.model.blocks import (
    Block,
    Cache,
    Extra,
    Node,
    Opaque,
    Text,
    Where,
)
from dragoman.wire.jsonio import Json

Role: TypeAlias = Literal["user", "assistant", "system"]


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


class Conversation(Node, frozen=True):
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
    tokens: int | None = None  # an estimate of its length, where a filter has made one for those who read the answer

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


def without_messages(conversation: Conversation) -> Conversation:
    """The conversation for those who read an answer to it: they need no messages, and those may be large."""
    return structs.replace(conversation, messages=())


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

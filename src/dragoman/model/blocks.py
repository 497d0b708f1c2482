"""Content blocks of messages and replies, as plain frozen values. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

from msgspec import Struct

from dragoman.wire.jsonio import Json


class Location(Struct, frozen=True, eq=False, gc=False):
    """A place in the client's payload: a path, or a step from another place.

    All locations are equal, so that two values compare equal wherever they come from. `is_absent` means that the client
    left out a field of the node, rather than sending an empty one.
    """

    base: str | Location = ""
    step: str | int = ""
    is_absent: bool = False

    @property
    def path(self) -> str:
        """The place as text, such as `messages[3].content`. Built on demand, because few locations are shown."""
        base = self.base if isinstance(self.base, str) else self.base.path
        if isinstance(self.step, int):
            return f"{base}[{self.step}]"
        return f"{base}.{self.step}" if self.step else base

    def __repr__(self) -> str:
        return f"Location({self.path!r}{', is_absent=True' if self.is_absent else ''})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Location)

    def __hash__(self) -> int:
        return 0


NO_LOCATION = Location()


class Extra(Struct, frozen=True):
    """Fields that only their own dialect family understands and renders.

    A name is the field's path relative to the node (see `to_extra_names`): `../name` is a field of the object around
    the node, and every node in that object may carry it. Fields named in `spelling` only record how the family wrote
    the content of the node: nothing is lost without them.
    """

    family: str
    fields: Mapping[str, Json]
    spelling: frozenset[str] = frozenset()


class CacheBreakpoint(Struct, frozen=True):
    """A prompt-cache breakpoint after the node that carries it."""

    ttl: Literal["5m", "1h"] = "5m"
    extra: Extra | None = None


class Signature(Struct, frozen=True):
    """Data that only the model family which made it can read (docs/decisions/signatures.md#d50)."""

    family: str
    data: str
    kind: Literal["signature", "redacted", "encrypted"] = "signature"


class Node(Struct, frozen=True, kw_only=True, tag=True, gc=False):
    """The base of blocks, messages, tools, conversations and replies.

    `gc=False` is safe: a frozen value only refers to older values, so no reference cycle can form.
    """

    extra: Extra | None = None
    at: Location = NO_LOCATION


class DefinedTool(Struct, frozen=True, tag=True):
    """The block defines a tool, which is also among the conversation's tools."""

    name: str


class ShownTool(Struct, frozen=True, tag=True):
    """The block shows the model the definition of one of the conversation's tools."""

    name: str


class ToolChange(Struct, frozen=True, tag=True):
    """From this block on, a tool is offered to the model, or no longer offered."""

    name: str
    offered: bool = True


class ClientTool(Struct, frozen=True, tag=True):
    """A tool in one family's form that the client runs: any family can offer it as a function."""

    name: str
    description: str = ""
    schema: Mapping[str, Json] = {}


class Summary(Struct, frozen=True, tag=True):
    """A text that replaces the conversation before it."""

    text: str


class Untranslatable(Struct, frozen=True, tag=True):
    """The conversation changes its meaning without this block, and no other family can express it: it is refused."""

    reason: str


class CitationSource(Struct, frozen=True):
    """The source of a citation, in terms of every family. `start` and `end` are character offsets in the text."""

    url: str
    title: str = ""
    quote: str = ""
    start: int | None = None
    end: int | None = None


class Opaque(Node, frozen=True):
    """Content that the canonical model does not define, kept whole for the family that can read it.

    `kind` is a label for people; `model.parts` returns its text for families that cannot read it. A redundant block
    repeats the rest of the conversation: nothing is lost without it. `effects` describes what it does to the
    conversation, in terms of every family; the filter `flatten_tool_history` reads it.
    """

    family: str
    data: Json
    kind: str = ""
    cache: CacheBreakpoint | None = None
    is_redundant: bool = False
    effects: tuple[Effect, ...] = ()
    source: CitationSource | None = None  # of a citation; without `data`: its family sends it elsewhere in the reply


class Text(Node, frozen=True):
    """Text of a message, a tool result or a reply."""

    text: str
    cache: CacheBreakpoint | None = None
    signature: Signature | None = None
    citations: tuple[Opaque, ...] = ()


class Reasoning(Node, frozen=True):
    """The model's thinking. `family` is that of the model; empty if unknown."""

    text: str
    family: str = ""
    signature: Signature | None = None


class Media(Node, frozen=True):
    """An image, document, audio or video: its data, or a URL or file id, as `form` says."""

    kind: Literal["image", "document", "audio", "video"]
    mime: str
    form: Literal["base64", "url", "text", "file"]
    data: str
    name: str = ""
    cache: CacheBreakpoint | None = None


class ToolCall(Node, frozen=True):
    """A tool call of the model. Arguments stay text, never parsed; `form="text"` is free text, not JSON.

    See docs/decisions/content.md#d3.
    """

    id: str
    name: str
    arguments: str = ""
    form: Literal["json", "text"] = "json"
    cache: CacheBreakpoint | None = None
    signature: Signature | None = None


class ToolResult(Node, frozen=True):
    """The result of a tool call."""

    call_id: str
    content: tuple[Text | Media | Opaque, ...] = ()
    is_error: bool = False
    cache: CacheBreakpoint | None = None


Block: TypeAlias = Text | Reasoning | Media | ToolCall | ToolResult | Opaque
Effect: TypeAlias = DefinedTool | ShownTool | ToolChange | ClientTool | Summary | Untranslatable | ToolCall | ToolResult

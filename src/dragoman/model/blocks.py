"""Blocks: what messages and replies are made of. Plain frozen values; identity and order belong to their owners."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

from msgspec import Struct

from dragoman.wire.jsonio import Json


class Location(Struct, frozen=True, eq=False, gc=False):
    """A place in the client's payload: a path, or a step from another place. Equal to every other, so that it never
    decides whether two values are.

    `bare`: what a node there should hold was not given at all, which says less than giving nothing.
    """

    base: str | Location = ""
    step: str | int = ""
    is_absent: bool = False

    @property
    def path(self) -> str:
        """As people read it, `messages[3].content`: put together when somebody asks, which is seldom."""
        base = self.base if isinstance(self.base, str) else self.base.path
        if isinstance(self.step, int):
            return f"{base}[{self.step}]"
        return f"{base}.{self.step}" if self.step else base

    def __repr__(self) -> str:
        return f"Where({self.path!r}{', bare=True' if self.is_absent else ''})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Location)

    def __hash__(self) -> int:
        return 0


NO_LOCATION = Location()


class Extra(Struct, frozen=True):
    """Fields that only their own dialect family understands; rendered by that family and no other.

    A name is the field's place as seen from the node (see `to_keep`): `../name` stands on what the node came in, and
    all that came in it may carry it. Those named in `spelling` only say how the family wrote what the node says anyway:
    nothing is lost without them.
    """

    family: str
    fields: Mapping[str, Json]
    spelling: frozenset[str] = frozenset()


class CacheBreakpoint(Struct, frozen=True):
    """A prompt-cache breakpoint after the node that carries it."""

    ttl: Literal["5m", "1h"] = "5m"
    extra: Extra | None = None


class Signature(Struct, frozen=True):
    """A proof that only the family which made it can read (docs/decisions/seals.md#d50)."""

    family: str
    data: str
    kind: Literal["signature", "redacted", "encrypted"] = "signature"


class Node(Struct, frozen=True, kw_only=True, tag=True, gc=False):
    """What all have in common. Frozen values that hold older ones cannot hold themselves, so no collector looks."""

    extra: Extra | None = None
    at: Location = NO_LOCATION


class DefinedTool(Struct, frozen=True, tag=True):
    """The definition of a tool stands here; the conversation's tools hold it, too."""

    name: str


class ShownTool(Struct, frozen=True, tag=True):
    """The model is shown the definition of a tool, which stands among the conversation's tools."""

    name: str


class ToolChange(Struct, frozen=True, tag=True):
    """From this place on a tool is offered to the model, or no longer."""

    name: str
    offered: bool = True


class ClientTool(Struct, frozen=True, tag=True):
    """A tool of a family's own shape that the client runs: any family can offer it as a function."""

    name: str
    description: str = ""
    schema: Mapping[str, Json] = {}


class Summary(Struct, frozen=True, tag=True):
    """A text that stands for the conversation before it."""

    text: str


class Untranslatable(Struct, frozen=True, tag=True):
    """Without this the conversation means something else, and no other family can say it: the request is refused."""

    reason: str


class CitationSource(Struct, frozen=True):
    """What a citation points at, for every family that has citations. `start` and `end` are characters of the text."""

    url: str
    title: str = ""
    quote: str = ""
    start: int | None = None
    end: int | None = None


class Opaque(Node, frozen=True):
    """What the model has no name for, whole, with the family that can read it.

    `kind` is for people; `model.parts` gives its text for families that cannot read it. An `echo` says what the rest of
    the conversation says too: nothing is lost without it. `effects` is what it does to the conversation, in terms that
    hold for every family; the filter `flatten_tool_history` reads it.
    """

    family: str
    data: Json
    kind: str = ""
    cache: CacheBreakpoint | None = None
    is_redundant: bool = False
    effects: tuple[Effect, ...] = ()
    source: CitationSource | None = (
        None  # of a citation; one without `data` stands elsewhere in its own family's answer
    )


class Text(Node, frozen=True):
    text: str
    cache: CacheBreakpoint | None = None
    signature: Signature | None = None
    citations: tuple[Opaque, ...] = ()


class Reasoning(Node, frozen=True):
    """The model's thinking. `family` says whose; empty when unknown."""

    text: str
    family: str = ""
    signature: Signature | None = None


class Media(Node, frozen=True):
    kind: Literal["image", "document", "audio", "video"]
    mime: str
    form: Literal["base64", "url", "text", "file"]
    data: str
    name: str = ""
    cache: CacheBreakpoint | None = None


class ToolCall(Node, frozen=True):
    """A call the model makes. Arguments are text from wire to wire; `form="text"` is free text, not JSON.

    See docs/decisions/content.md#d3.
    """

    id: str
    name: str
    arguments: str = ""
    form: Literal["json", "text"] = "json"
    cache: CacheBreakpoint | None = None
    signature: Signature | None = None


class ToolResult(Node, frozen=True):
    call_id: str
    content: tuple[Text | Media | Opaque, ...] = ()
    is_error: bool = False
    cache: CacheBreakpoint | None = None


Block: TypeAlias = Text | Reasoning | Media | ToolCall | ToolResult | Opaque
Effect: TypeAlias = DefinedTool | ShownTool | ToolChange | ClientTool | Summary | Untranslatable | ToolCall | ToolResult

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


# The lifetime of a cached prefix: 5m and 1h are Claude's, 30m and 12h OpenAI's.
CacheTtl: TypeAlias = Literal["5m", "1h", "30m", "12h"]


class CacheBreakpoint(Struct, frozen=True):
    """A prompt-cache breakpoint after the node that carries it."""

    ttl: CacheTtl = "5m"
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


class ToolSearch(Struct, frozen=True, tag=True):
    """The service searches its deferred tools: it may, by a tool of this effect; it did, by a block of this effect."""

    id: str = ""
    arguments: Mapping[str, Json] = {}


class FoundTools(Struct, frozen=True, tag=True):
    """The tools that a search of the service has found."""

    id: str  # of the search; empty if the family has none: the search before it
    names: tuple[str, ...]


class SearchOptions(Struct, frozen=True):
    """How a service searches the web. An empty value, or None, means the service's own default."""

    max_uses: int | None = None  # searches in one reply
    allowed_domains: tuple[str, ...] = ()
    blocked_domains: tuple[str, ...] = ()
    location: Mapping[str, str] = {}  # of the user: city, region, country, timezone
    context_size: str = ""  # how much of the pages the model reads: low, medium or high
    others: tuple[str, ...] = ()  # names of settings that only one family has


class WebSearch(Struct, frozen=True, tag=True):
    """A search of the web: the model may make one, by a tool of this effect; it made one, by a block of this effect."""

    id: str = ""
    query: str = ""
    options: SearchOptions = SearchOptions()  # of a tool


class WebPage(Struct, frozen=True):
    """A page that a search of the web has found. `text` is an excerpt, if the service shows one."""

    url: str
    title: str = ""
    text: str = ""
    age: str = ""


class WebResults(Struct, frozen=True, tag=True):
    """The pages that a search of the web has found, or why it failed, as one of Anthropic's error codes."""

    id: str  # of the search
    pages: tuple[WebPage, ...] = ()
    error: str = ""


class Summary(Struct, frozen=True, tag=True):
    """A text that replaces the conversation before it."""

    text: str
    is_ours: bool = False  # written here, not by a service: no service can read the block


class SummaryRequest(Struct, frozen=True, tag=True):
    """The reply is to be a block with a summary, which will replace the conversation before it."""


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
    conversation, in terms of every family; filters read it, and a codec writes a block without `data` from it.
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
Effect: TypeAlias = (
    DefinedTool
    | ShownTool
    | ToolChange
    | ClientTool
    | ToolSearch
    | FoundTools
    | WebSearch
    | WebResults
    | Summary
    | SummaryRequest
    | Untranslatable
    | ToolCall
    | ToolResult
)

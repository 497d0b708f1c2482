"""The capabilities of a model behind a dialect, as data: what it accepts and sends. Filters read it. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal, TypeAlias

from msgspec import Struct

from dragoman.model.blocks import CacheTtl

# Special abilities and requirements of a service.
Trait: TypeAlias = Literal[
    # turns
    "user_last",  # a conversation must end with a user turn: no prefill of the assistant's turn
    "no_blank_text",  # text may not be empty or white space only
    # tools
    "text_tools",  # tools may take free text
    "bare_tools",  # a tool may have no schema
    "strict_tools",  # a tool may have a strict flag
    "shared_names",  # a tool of the service may have the name of another tool
    "results_in_call_order",  # the model reads the first result as that of the first call and ignores ids
    "tool_search",  # the service searches deferred tools
    "result_errors",  # a tool result may have an error flag
    "choice_names",  # `auto` or `any` may be limited to some tools
    "parallel_flag",  # a request may allow or forbid parallel calls
    # content
    "same_family_names",  # media from clients of its own family may have a name, whatever its kind
    "reasoning",  # accepts reasoning of its own family in requests, and sends reasoning in replies
    "signed_reasoning",  # accepts reasoning only with its signature
    "signed_content",  # texts and tool calls have signatures, too
    # has a field that can carry a marked signature of another family (docs/decisions/signatures.md#d50)
    "signature_slot",
    "signature_bytes",  # its signatures are bytes, written as base64
    "citations",  # texts have citations, in requests and replies
    "cites",  # texts have citations, in replies only
    "user",  # accepts a user id
    # replies
    "streams_only",  # every response is a stream; a whole reply is assembled from one
    "no_reply_media",  # replies have no media, though requests may
    "one_block",  # only one block may be open at a time
    "open_calls",  # a streamed call has no end event: it ends with the reply
    "whole_calls",  # a streamed call comes in one frame, its arguments as an object
    "loose_calls",  # services number and repeat streamed calls in ways that clients misread
    "announces",  # a separate frame may announce a block before the one that starts it
    "choices",  # n > 1
    "pauses",  # a reply may stop with a pause, which the client continues with another request
    "compaction",  # the service compacts a conversation when an item of the input asks for it
    "raw_tools",  # models behind it may write tool calls as raw tokens into the text
    # settings
    "output_names",  # an output schema has a name and a strict flag
    "closed_schemas",  # objects in an output schema need additionalProperties: false
    "budgets",  # thinking may have a token budget
    "thinking_show",  # a request may ask for thinking and hide it
    "cache_key",  # a request has a key that routes it to the cache of its conversation
    "zero_tokens",  # max_tokens 0 is allowed (cache pre-warm)
]
SearchOption: TypeAlias = Literal["max_uses", "allowed_domains", "blocked_domains", "location", "context_size"]
MarkPlace: TypeAlias = Literal["tools", "calls", "results", "assistant"]
MARK_PLACES: frozenset[MarkPlace] = frozenset({"tools", "calls", "results", "assistant"})
FieldScope: TypeAlias = Literal["request", "tool", "media", "reply"]


def traits(*always: Trait, when: Mapping[Trait, bool] | None = None) -> frozenset[Trait]:
    """Return a set of traits: those given, and those of `when` whose condition holds."""
    return frozenset((*always, *(trait for trait, holds in (when or {}).items() if holds)))


class IdentifierFormat(Struct, frozen=True):
    """The characters (a regular-expression class body) and the length that an identifier may have."""

    pattern: str
    limit: int
    refused: frozenset[str] = frozenset()  # names that are refused all the same, in lower case


class WebSearchSupport(Struct, frozen=True):
    """How a service searches the web: which options it takes, and what else a request with a search may have."""

    options: frozenset[SearchOption] = frozenset()
    has_blocks: bool = False  # the searches are blocks of the reply; otherwise the reply only cites what they found
    is_forced_by_any: bool = False  # a choice that demands any tool demands the search, if that is the only tool
    excludes_functions: bool = False  # a request that declares functions cannot have a search


class ToolSupport(Struct, frozen=True):
    """The tools that a request may declare, apart from the form of functions."""

    limit: int | None = None  # how many
    web_search: WebSearchSupport | None = None  # None: the service does not search


class CacheMarks(Struct, frozen=True):
    """Which prompt-cache marks a service accepts. Texts and media of users and of the system may always have one."""

    count: int = 0  # how many, from clients of other families
    ttls: tuple[CacheTtl, CacheTtl] = ("5m", "1h")  # the short and the long lifetime
    known_ttls: frozenset[CacheTtl] = frozenset()  # lifetimes that clients of its own family may send
    places: frozenset[MarkPlace] = MARK_PLACES  # other places where a mark may be
    is_own: bool = False  # marks with its lifetimes are sent whatever the model: they were written for such a service
    allows_long: bool = True  # the longer lifetime, which costs more, may be sent for a long one of another family


class Capabilities(Struct, frozen=True, kw_only=True):
    """The content that a model accepts and sends. The defaults describe a service without limits and extras."""

    traits: frozenset[Trait] = frozenset()
    # fields that several families share, by scope: from the common name to the name of this family
    shared_fields: Mapping[FieldScope, Mapping[str, str]] = {}
    # the conversation's shape
    system: Literal["native", "leading", "none"] = "native"  # leading: only before the first turn
    turns: Literal["free", "merge", "pair"] = "free"  # merge: no role twice in a row; pair: user, assistant, …
    fillers: tuple[str, str] = ("I understand.", "Continue")  # text of an inserted assistant and user turn
    turn_separator: str = ""  # put between texts when turns, or system text and a turn, are merged
    # tools
    names: IdentifierFormat = IdentifierFormat("a-zA-Z0-9_-", 64)
    ids: IdentifierFormat = IdentifierFormat("a-zA-Z0-9_-", 64)
    arguments: Literal["text", "object"] = "text"
    choice_modes: frozenset[str] = frozenset({"auto", "any", "none", "one"})
    tools: ToolSupport = ToolSupport()
    result_media: frozenset[str] = frozenset()  # kinds of media that a tool result may contain
    # content
    media: frozenset[tuple[str, str]] = frozenset()  # (kind, form)
    own_family_media: frozenset[tuple[str, str]] = frozenset()  # accepted from clients of its own family only
    media_roles: frozenset[str] = frozenset({"user", "assistant", "system"})  # roles whose messages may contain media
    named_media: frozenset[str] = frozenset({"document"})  # kinds of media that have a name
    media_types: Mapping[str, frozenset[str]] = {}  # by kind, of base64 data; no entry: any type
    signatures: frozenset[str] = frozenset()  # families whose signatures it accepts
    cache_marks: CacheMarks = CacheMarks()
    # limits and settings
    sampling: frozenset[str] = frozenset()
    sampling_ranges: tuple[tuple[str, float, float], ...] = ()
    output: frozenset[str] = frozenset({"text"})
    efforts: tuple[str, ...] = ()  # accepted effort names, least first
    thinking: frozenset[str] = frozenset({"default"})  # accepted Thinking modes
    min_thinking_budget: int = 0  # not 0: thinking as Claude has it, which excludes some other settings
    user_limit: int | None = None  # characters of a user id
    server_state: frozenset[str] = frozenset()  # state that requests may refer to (`ServerState.name`)
    files: str = ""  # the service whose file ids it accepts
    own_url_prefixes: tuple[str, ...] = ()  # prefixes of URLs that only this service can read
    option_needs: Mapping[str, str] = {}  # request fields that are refused unless another field is true
    stop_limit: int | None = None  # how many stop sequences; 0: none at all
    max_tokens: int | None = None  # not None: required, and this is the default
    window: int | None = None  # context window in tokens, if known; reported to clients, never enforced
    max_output_tokens: int | None = None  # if known


# --- Properties of a model that follow from its name, in any dialect


# Chat templates of these models print tool results without ids: the first result is read as that of the first call.
_BY_ORDER = re.compile(r"kimi|moonshot|qwen|glm|deepseek|minimax|llama|hermes|gpt-oss|seed-oss", re.IGNORECASE)


def reads_results_by_order(model: str) -> bool:
    """Return whether the model matches tool results to calls by order, not by id."""
    return _BY_ORDER.search(model) is not None

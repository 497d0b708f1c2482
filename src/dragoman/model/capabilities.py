"""What one model behind one dialect can say, as data. Filters read it; codecs do not."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal, TypeAlias

from msgspec import Struct

# What a service can do, or demands, beyond the usual; each is a statement that is true or not.
Trait: TypeAlias = Literal[
    # turns
    "user_last",  # a conversation must end with the user's turn: the assistant's cannot be begun for it
    "no_blank_text",  # text may not be empty or white space only
    # tools
    "text_tools",  # tools that take free text
    "bare_tools",  # a tool may come without a schema
    "strict_tools",  # a tool may ask for arguments that fit its schema strictly
    "shared_names",  # a tool of the service may have the name of another tool
    "results_in_call_order",  # the model reads the first result as that of the first call, whatever its id
    "result_errors",  # a tool result may say that it is an error
    "choice_names",  # `auto` or `any` may be limited to some tools
    "parallel_flag",  # a request may say whether calls may be made side by side
    # content
    "home_names",  # media from clients of its own family may have a name, whatever its kind
    "reasoning",  # takes its own family's reasoning back, and shows reasoning in answers
    "signed_reasoning",  # takes reasoning back only with its seal
    "signed_content",  # texts and tool calls carry seals too, not reasoning alone
    "signature_slot",  # has a place where a foreign seal can travel, marked (docs/decisions/seals.md#d50)
    "signature_bytes",  # its seals are bytes, written as base64
    "citations",  # texts carry citations, in questions and in answers
    "cites",  # answers alone carry citations
    "user",  # takes a user id
    # answers
    "streams_only",  # every answer is a stream: a whole one is a stream that was gathered
    "no_answer_media",  # an answer may not hold the media that a question may
    "one_block",  # only one block may be open at a time
    "open_calls",  # in a stream a call has no end of its own: it lasts until the answer stops
    "whole_calls",  # in a stream a call comes whole, its arguments an object
    "loose_calls",  # services number and repeat calls of a stream in ways that clients read wrongly
    "announces",  # a frame of its own may announce a block before the one that begins it
    "choices",  # n > 1
    "pauses",  # an answer may stop with a pause, after which the client asks it to go on
    "raw_tools",  # models behind it may write tool calls as raw tokens into the text
    # settings
    "output_names",  # an output schema has a name and a strict flag
    "closed_schemas",  # objects in an output schema must say additionalProperties: false
    "budgets",  # thinking takes a token budget
    "thinking_show",  # thinking may be asked for without being shown
    "zero_tokens",  # max_tokens 0 is allowed (cache pre-warm)
]
FieldScope: TypeAlias = Literal["request", "tool", "media", "answer"]


def traits(*always: Trait, when: Mapping[Trait, bool] | None = None) -> frozenset[Trait]:
    """Return a set of traits: those given, and those of `when` whose condition holds."""
    return frozenset((*always, *(trait for trait, holds in (when or {}).items() if holds)))


class IdentifierFormat(Struct, frozen=True):
    """The characters (a regular-expression class body) and the length that an identifier may have."""

    pattern: str
    limit: int


class Capabilities(Struct, frozen=True, kw_only=True):
    """What a model takes and gives. The defaults are those of a service without limits and without extras."""

    traits: frozenset[Trait] = frozenset()
    # fields that several families have, by where they stand: by their common name, its own
    shared_fields: Mapping[FieldScope, Mapping[str, str]] = {}
    # the conversation's shape
    system: Literal["native", "leading", "none"] = "native"  # leading: only before the first turn
    turns: Literal["free", "merge", "pair"] = "free"  # merge: one role never twice in a row; pair: user, assistant, …
    fillers: tuple[str, str] = ("I understand.", "Continue")  # a missing answer, a missing question
    turn_separator: str = ""  # what stands between texts of different turns, or of system and turn, that become one
    # tools
    names: IdentifierFormat = IdentifierFormat("a-zA-Z0-9_-", 64)
    ids: IdentifierFormat = IdentifierFormat("a-zA-Z0-9_-", 64)
    arguments: Literal["text", "object"] = "text"
    choice_modes: frozenset[str] = frozenset({"auto", "any", "none", "one"})
    result_media: frozenset[str] = frozenset()  # kinds of media that a tool result may hold
    # content
    media: frozenset[tuple[str, str]] = frozenset()  # (kind, how)
    own_family_media: frozenset[tuple[str, str]] = frozenset()  # taken from clients of its own family alone
    media_roles: frozenset[str] = frozenset({"user", "assistant", "system"})  # whose turns may hold them
    named_media: frozenset[str] = frozenset({"document"})  # kinds of media that have a name
    media_types: Mapping[str, frozenset[str]] = {}  # by kind, of what is given as base64; none: any
    signatures: frozenset[str] = frozenset()  # families whose seals it accepts
    cache_marks: int = 0
    # limits and knobs
    sampling: frozenset[str] = frozenset()
    sampling_ranges: tuple[tuple[str, float, float], ...] = ()
    output: frozenset[str] = frozenset({"text"})
    efforts: tuple[str, ...] = ()  # accepted effort names, least first
    thinking: frozenset[str] = frozenset({"default"})  # accepted Thinking modes
    min_thinking_budget: int = 0  # not 0: of thinking as Claude has it, which excludes some other wishes
    user_limit: int | None = None  # characters of a user id
    server_state: frozenset[str] = frozenset()  # what requests may name that the service holds (`Held.name`)
    files: str = ""  # the service whose file ids it takes; the same name means the same service
    own_url_prefixes: tuple[str, ...] = ()  # how addresses begin that only this service can read
    option_needs: Mapping[str, str] = {}  # a shared field of a request that is refused unless another field is true
    stop_limit: int | None = None  # how many stop sequences; 0: none at all
    max_tokens: int | None = None  # not None: required, and this is the default
    window: int | None = None  # tokens of question and answer together, where known; told to clients, never enforced
    longest_answer: int | None = None  # tokens of an answer, where known


# --- What is known of a model by its name, whichever dialect serves it


# Their chat templates print tool results without ids: the first result is read as that of the first call.
_BY_ORDER = re.compile(r"kimi|moonshot|qwen|glm|deepseek|minimax|llama|hermes|gpt-oss|seed-oss", re.IGNORECASE)


def reads_results_by_order(model: str) -> bool:
    """Return whether the model knows a tool result by its place among the results, not by its id."""
    return _BY_ORDER.search(model) is not None

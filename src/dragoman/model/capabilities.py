"""What one model behind one dialect can say, as data. Filters read it; codecs do not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct


class Alphabet(Struct, frozen=True):
    """The characters (a regular-expression class body) and the length that an identifier may have."""

    pattern: str
    limit: int


class Capabilities(Struct, frozen=True, kw_only=True):
    # the conversation's shape
    system: Literal["native", "leading", "none"] = "native"  # leading: only before the first turn
    turns: Literal["free", "merge", "pair"] = "free"  # merge: one role never twice in a row; pair: user, assistant, …
    fillers: tuple[str, str] = ("I understand.", "Continue")  # a missing answer, a missing question
    turn_seam: str = ""  # what stands between texts of different turns, or of system and turn, that become one
    prefill: bool = True  # the conversation may end with the assistant's turn
    blank_text: bool = True  # text may be empty or white space only
    # tools
    names: Alphabet = Alphabet("a-zA-Z0-9_-", 64)
    ids: Alphabet = Alphabet("a-zA-Z0-9_-", 64)
    arguments: Literal["text", "object"] = "text"
    text_tools: bool = False  # tools that take free text
    paired_results: bool = True  # every call is answered in the next turn, every result answers a call
    results_in_call_order: bool = False  # the model reads the first result as that of the first call, whatever its id
    choice_modes: frozenset[str] = frozenset({"auto", "any", "none", "one"})
    choice_names: bool = False  # `auto` or `any` may be limited to some tools
    parallel_flag: bool = False
    strict_tools: bool = False
    one_name_each: bool = True  # no two tools have one name, those of the service included
    result_media: frozenset[str] = frozenset()  # kinds of media that a tool result may hold
    result_errors: bool = False  # a tool result may say that it is an error
    bare_tools: bool = False  # a tool may come without a schema
    tool_fields: Mapping[str, str] = {}  # fields of tools that several families have: by their name, its own
    # content
    media: frozenset[tuple[str, str]] = frozenset()  # (kind, how)
    home_media: frozenset[tuple[str, str]] = frozenset()  # taken from clients of its own family alone
    media_roles: frozenset[str] = frozenset({"user", "assistant", "system"})  # whose turns may hold them
    named_media: frozenset[str] = frozenset({"document"})  # kinds of media that have a name
    home_names: bool = False  # media from clients of its own family may have a name, whatever its kind
    media_types: Mapping[str, frozenset[str]] = {}  # by kind, of what is given as base64; none: any
    reasoning: bool = False  # takes its own family's reasoning back, and shows reasoning in answers
    sealed_reasoning: bool = False  # takes reasoning back only with its seal
    seals: frozenset[str] = frozenset()  # families whose seals it accepts
    sealed_words: bool = False  # texts and tool calls carry seals too, not reasoning alone
    seal_slot: bool = False  # has a place where a foreign seal can travel, marked (D50)
    seal_bytes: bool = False  # its seals are bytes, written as base64
    cache_marks: int = 0
    media_fields: Mapping[str, str] = {}  # fields of media that several families have: by their name, its own
    # answers
    streams_only: bool = False  # every answer is a stream: a whole one is a stream that was gathered
    answer_media: bool = True  # an answer may hold the media that a question may
    interleaves: bool = True  # several blocks may be open at once
    calls_end: bool = True  # in a stream each call has an end of its own; without one, it lasts until the answer stops
    announces: bool = False  # a frame of its own may announce a block before the one that begins it
    loose_calls: bool = False  # services number and repeat calls of a stream in ways that clients read wrongly
    whole_calls: bool = False  # in a stream a call comes whole, its arguments an object
    choices: bool = False  # n > 1
    pauses: bool = False  # it may stop to be asked to go on, whoever does so
    citations: bool = False  # texts carry citations, in questions and in answers
    cites: bool = False  # answers alone carry citations
    answer_fields: Mapping[str, str] = {}  # fields of an answer that several families have: by their name, its own
    raw_tools: bool = False  # models behind it may write tool calls as raw tokens into the text
    # limits and knobs
    knobs: frozenset[str] = frozenset()
    knob_ranges: tuple[tuple[str, float, float], ...] = ()
    output: frozenset[str] = frozenset({"text"})
    output_names: bool = False  # an output schema has a name and a strict flag
    closed_schemas: bool = False  # objects in an output schema must say additionalProperties: false
    efforts: tuple[str, ...] = ()  # accepted effort names, least first
    thinking: frozenset[str] = frozenset({"default"})  # accepted Thinking modes
    budgets: bool = False  # thinking takes a token budget
    least_budget: int = 0  # not 0: of thinking as Claude has it, which excludes some other wishes
    thinking_show: bool = False  # thinking may be asked for without being shown
    user: bool = False  # takes a user id
    user_limit: int | None = None  # characters of it
    holds: frozenset[str] = frozenset()  # what requests may name that the service holds (`Held.name`)
    files: str = ""  # the service whose file ids it takes; the same name means the same service
    addresses: tuple[str, ...] = ()  # how addresses begin that only this service can read
    options: Mapping[str, str] = {}  # fields of a request that several families have: by their name, its own
    option_needs: Mapping[str, str] = {}  # of those, one that is refused unless another field is true
    stop_limit: int | None = None  # how many stop sequences; 0: none at all
    max_tokens: int | None = None  # not None: required, and this is the default
    zero_tokens: bool = False  # max_tokens 0 is allowed (cache pre-warm)
    window: int | None = None  # tokens of question and answer together, where known; told to clients, never enforced
    longest_answer: int | None = None  # tokens of an answer, where known

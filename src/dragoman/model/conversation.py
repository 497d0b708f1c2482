"""A conversation (what is asked), its canonical form, and a reply (what is answered), all whole."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from itertools import chain, compress, pairwise, repeat
from operator import is_, is_not
from typing import Literal, TypeAlias, TypeVar

from msgspec import Struct, structs

from dragoman.errors import ErrorKind, MalformedRequest
from dragoman.model.blocks import Block, CacheBreakpoint, Extra, Location, Node, Opaque, Text, ToolCall, ToolResult
from dragoman.wire.jsonio import Json

# --- How fields are named in an `Extra`: by their place as seen from the node, or by a word of the family's own.
#
# A client may call a field like a place or like such a word: it is then named from here, so that no name says two
# things.


T = TypeVar("T")

PARENT_PREFIX = "../"  # before the name of a field of what the node came in
INTERNAL_PREFIX = "~"  # before a word of the family's own: how something was spelt, never sent
_HERE = "./"

OTHER_SHAPES = (
    "~shapes"  # on a conversation: what was read in another shape than its dialect's own, for a filter to note
)
NATIVE_NAME = "~inner"  # on a tool or a call: the name its family calls it by, where its own is for all others


def to_extra_names(fields: Mapping[str, T]) -> dict[str, T]:
    """Fields of the wire by the names they are kept under."""
    return {
        _HERE + name if "." in name or name.startswith(INTERNAL_PREFIX) else name: value
        for name, value in fields.items()
    }


def node_fields(fields: Mapping[str, T]) -> dict[str, T]:
    """The node's own fields among those kept, by their names on the wire."""
    return {
        name.removeprefix(_HERE): value
        for name, value in fields.items()
        if name.startswith(_HERE) or not ("." in name or name.startswith(INTERNAL_PREFIX))
    }


def parent_fields(fields: Mapping[str, T]) -> dict[str, T]:
    """The fields of what the node came in among those kept, by their names on the wire."""
    return {wire_name(name): value for name, value in fields.items() if name.startswith(PARENT_PREFIX)}


def wire_name(name: str) -> str:
    return name.removeprefix(PARENT_PREFIX).removeprefix(_HERE)


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
    cache: CacheBreakpoint | None = None
    strict: bool | None = None
    waits_for: Literal["", "search", "block"] = ""

    def has_same_definition(self, other: ToolSpec) -> bool:
        """Whether a model would be shown the same; `name`s are taken to be equal."""
        return (self.description, self.schema, self.strict) == (other.description, other.schema, other.strict)


def tool_name(tool: ToolSpec | Opaque) -> str | None:
    """The name of a tool; None for what may bring tools whose names nobody here knows."""
    if isinstance(tool, ToolSpec):
        return tool.name
    name = tool.data.get("name") if isinstance(tool.data, dict) else None
    return name if isinstance(name, str) else None


class ToolChoice(Struct, frozen=True):
    """Whether the model may (`auto`), must (`any`), must not (`none`) call, or must call `names` (`one`).

    With `auto` or `any`, `names` limits what may be called; empty means all tools.
    """

    mode: Literal["auto", "any", "none", "one"] = "auto"
    names: tuple[str, ...] = ()
    parallel: bool | None = None
    at: Location = Location("tool_choice")


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


class ServerState(Struct, frozen=True):
    """Something in a request that only the client's own service can serve: earlier turns or a template that it holds, a
    job that it runs, a conversation that it shall compact.

    A service takes it if its capabilities' `holds` has the name; the other fields tell the client why another does not.
    """

    name: str  # the field of the request, or the type of the item, that names it
    at: str
    reason: str  # why another service cannot have it, and what to send instead
    has_turns: bool = False  # it holds earlier turns: a result may answer a call that the request does not show
    is_stored: bool = False  # it is stored by the service, so that no other service has it; so are earlier turns
    is_job: bool = False  # it asks for work that goes on without the client: asking twice does it twice
    reply_id: str = ""  # the id of the earlier answer that it continues
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
    sampling: Mapping[str, float] = {}
    choices: int = 1
    stream: bool = False
    previous_id: str | None = None
    user: str = ""  # who asks, for the upstream's abuse checks
    hints: Extra | None = None  # request headers that matter to one family
    server_state: tuple[ServerState, ...] = ()  # what the client's service holds of this request
    estimated_tokens: int | None = (
        None  # an estimate of its length, where a filter has made one for those who read the answer
    )

    @property
    def has_stored_turns(self) -> bool:
        """Whether earlier turns are held by the service."""
        return any(each.has_turns for each in self.server_state)

    @property
    def needs_same_service(self) -> bool:
        """Whether only the service that stores what the request names can answer it."""
        return any(each.has_turns or each.is_stored for each in self.server_state)

    @property
    def is_job(self) -> bool:
        """Whether asking twice starts two jobs."""
        return any(each.is_job for each in self.server_state)


def without_messages(conversation: Conversation) -> Conversation:
    """The conversation for those who read an answer to it: they need no messages, and those may be large."""
    return structs.replace(conversation, messages=())


def without_content(conversation: Conversation) -> Conversation:
    """How an answer is wanted, without what is asked: for those who remember it while the answer comes."""
    return structs.replace(conversation, messages=(), system=(), tools=())


class StopReason(Enum):
    END = "end"
    TOOL = "tool"
    LENGTH = "length"
    SEQUENCE = "sequence"
    REFUSAL = "refusal"
    CONTEXT = "context"
    PAUSE = "pause"


class Stop(Struct, frozen=True):
    reason: StopReason
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


# --- The form every reader ends with (docs/decisions/content.md#d8), so that one conversation has one canonical value
# whatever its framing


def to_canonical(conversation: Conversation, tidy: Sequence[Message] = ()) -> Conversation:
    """Give the conversation its canonical form. `tidy` are messages that have it already, as those have that a filter
    was given: one that stands there at the same place is not looked at again.

    Results come first in their turn, and user messages that follow results belong to that turn; leading system
    messages are part of `system`; a text that says nothing and carries nothing is no block. Raises MalformedRequest
    for a call that the assistant does not make and a result that the user does not give: no target has a place for it.
    """
    messages = list(conversation.messages)
    for place in compress(range(len(messages)), map(is_not, messages, chain(tidy, repeat(None)))):
        messages[place] = _tidy(messages[place])
    followed = [one for one, other in pairwise(messages) if one.role == other.role == "user"]
    if any(map(_has_results, followed)):
        messages = _join_result_turns(messages)
    system = list(filter(_says_something, conversation.system))
    while messages and messages[0].role == "system" and _plain(messages[0]):
        system += _lifted(messages.pop(0))
    if not (messages or system) and (conversation.messages or conversation.system):
        messages = [Message("system", ())]  # to say something empty is not to say nothing
    lengths = len(messages) == len(conversation.messages) and len(system) == len(conversation.system)
    if not lengths or not all(map(is_, (*messages, *system), (*conversation.messages, *conversation.system))):
        conversation = structs.replace(conversation, messages=tuple(messages), system=tuple(system))
    return conversation


def with_separator(before: Iterable[Block], blocks: tuple[Block, ...], seam: str) -> tuple[Block, ...]:
    """The blocks with the seam in front of their first text, if there is text before them that it keeps apart."""
    if not seam or not any(isinstance(block, Text) and block.text.strip() for block in before):
        return blocks
    for index, block in enumerate(blocks):
        if isinstance(block, Text) and block.text.strip():
            return (*blocks[:index], structs.replace(block, text=seam + block.text), *blocks[index + 1 :])
    return blocks


def _says_something(block: Block) -> bool:
    return not (isinstance(block, Text) and not block.text) or any(
        (block.cache, block.signature, block.citations, block.extra)
    )


def _tidy(message: Message) -> Message:
    role, tidy, others = message.role, True, False
    for block in message.blocks:
        if type(block) is ToolResult:
            if role != "user":
                raise MalformedRequest(f"a tool result stands in a message of the role {role}", at=block.at.path)
            tidy = tidy and not others
            continue
        others = True
        if type(block) is Text:
            tidy = tidy and bool(block.text)
        elif type(block) is ToolCall and role != "assistant":
            raise MalformedRequest(f"a tool call stands in a {role} message", at=block.at.path)
    if tidy:
        return message
    blocks = tuple(filter(_says_something, message.blocks))
    if message.role == "user" and any(isinstance(block, ToolResult) for block in blocks[1:]):
        blocks = tuple(sorted(blocks, key=lambda block: not isinstance(block, ToolResult)))
    return message if blocks == message.blocks else structs.replace(message, blocks=blocks)


def _join_result_turns(messages: Iterable[Message]) -> list[Message]:
    joined: list[Message] = []
    run: list[Message] = []  # of one turn: results, and the user messages that follow them
    for message in messages:
        if run and message.role == "user":
            extra = _union(run[0].extra, message.extra)
            if extra is not False:
                run[0] = structs.replace(run[0], extra=extra)
                run.append(message)
                continue
        joined += _one_turn(run)
        run = [message] if message.role == "user" and _has_results(message) else []
        if not run:
            joined.append(message)
    return joined + _one_turn(run)


def _one_turn(run: list[Message]) -> list[Message]:
    if len(run) < 2:
        return run
    return [_tidy(structs.replace(run[0], blocks=tuple(block for message in run for block in message.blocks)))]


def _has_results(message: Message) -> bool:
    return bool(message.blocks) and type(message.blocks[0]) is ToolResult  # it is tidy: they come first


def _union(one: Extra | None, other: Extra | None) -> Extra | bool | None:
    """Both sets of fields in one, or False where they contradict each other: then the messages stay apart."""
    if one is None or other is None or one == other:
        return one or other
    both = {**one.fields, **other.fields}
    if one.family != other.family or any(both[name] != value for name, value in one.fields.items()):
        return False
    return Extra(one.family, both, one.spelling | other.spelling)


def _plain(message: Message) -> bool:
    """Whether it is texts and nothing else, and each of them can carry what the message says beside them."""
    outer = _outer(message.extra)
    return all(isinstance(block, Text) and _union(outer, block.extra) is not False for block in message.blocks)


def _lifted(message: Message) -> Iterable[Text]:
    """The texts of a system message, each with the message's own fields, as those of what it came in."""
    outer = _outer(message.extra)
    for block in message.blocks:
        extra = _union(outer, block.extra)
        if isinstance(block, Text):
            yield block if extra is block.extra else structs.replace(block, extra=extra)


def _outer(extra: Extra | None) -> Extra | None:
    if extra is None:
        return None
    fields = {
        name if name in extra.spelling else f"{PARENT_PREFIX}{name}": value for name, value in extra.fields.items()
    }
    return Extra(extra.family, fields, extra.spelling)


# --- What services report of an answer: token counts, and why it stopped.
#
# Every reader of usage builds its `Usage` here. The rules are the same for all: a count is a whole number between 0 and
# `MAX_TOKEN_COUNT`, a part never exceeds its total, and no token is counted twice. Services disagree about which count
# contains
# which, so the total decides where it can.


MAX_TOKEN_COUNT = (
    1_000_000_000  # no model reads or writes as much; the sum of two fits the 32-bit integers of typed SDKs
)


def parse_token_count(value: Json) -> int:
    """Return a reported count as a possible one: nonsense or a negative number is 0, the largest `MAX_TOKEN_COUNT`."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= len(str(MAX_TOKEN_COUNT)):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        return 0
    return int(min(max(value, 0), MAX_TOKEN_COUNT))


def first_token_count(*values: Json) -> int:
    """Return the first count that is not 0: services have several names for one figure."""
    return next((found for value in values if (found := parse_token_count(value))), 0)


def inclusive_usage(
    prompt: int, completion: int, read: int, write: int, reasoning: int, *, total: int = 0, extra: Extra | None = None
) -> Usage:
    """Build the usage of a service whose prompt count includes its caches and whose completion includes reasoning.

    The total shows which services differ: xAI leaves reasoning out of the completion, some proxies leave the caches out
    of the prompt. Cached and written tokens that overlap (OpenRouter) are counted once, as read.
    """
    if reasoning and total == prompt + completion + reasoning:
        completion += reasoning
    elif read + write and total == prompt + completion + read + write:
        prompt += read + write
    prompt, completion = parse_token_count(prompt), parse_token_count(completion)
    read = min(read, prompt)
    write = min(write, prompt - read)
    return Usage(prompt - read - write, completion, read, write, min(reasoning, completion), extra=extra)


def exclusive_usage(
    fresh: int, output: int, read: int, write: int, reasoning: int = 0, *, extra: Extra | None = None
) -> Usage:
    """Build the usage of a service that counts fresh, cached and written input apart."""
    read = min(read, MAX_TOKEN_COUNT)
    write = min(write, MAX_TOKEN_COUNT - read)
    return Usage(min(fresh, MAX_TOKEN_COUNT - read - write), output, read, write, min(reasoning, output), extra=extra)


# --- Why answers stop, in the words of many services. Dialects look here for words that their own tables do not have.
#
# A block is a block (`StopReason.REFUSAL`), a cut is a cut (`StopReason.LENGTH`, `StopReason.CONTEXT`), and a failure
# is a failure
# (`failure_kind`), whatever a service calls it. Words are compared without regard to case.


_REFUSALS = (
    "refusal",
    "content_filter",
    "content_filtered",
    "guardrail_intervened",
    "guardrail",
    "guardrails",
    "sensitive",  # Z.ai
    "safety",
    "blocked",
    "blocklist",
    "prohibited_content",
    "recitation",
    "language",
    "spii",
    "jailbreak",
    "model_armor",
    "image_safety",
    "image_prohibited_content",
    "image_recitation",
    "error_toxic",  # Cohere
    "moderation",
    "policy_violation",
    "content_policy_violation",
    "data_inspection_failed",  # DashScope
)
_WHYS: dict[str, StopReason] = {
    **dict.fromkeys(_REFUSALS, StopReason.REFUSAL),
    **dict.fromkeys(
        ("stop", "end_turn", "eos", "eos_token", "end_of_sequence", "complete", "completed"), StopReason.END
    ),
    **dict.fromkeys(("tool_calls", "tool_call", "tool_use", "function_call"), StopReason.TOOL),
    **dict.fromkeys(
        ("length", "max_tokens", "max_output_tokens", "max_length", "repetition_truncation"), StopReason.LENGTH
    ),
    **dict.fromkeys(
        ("model_context_window_exceeded", "context_length_exceeded", "context_window_exceeded", "model_length"),
        StopReason.CONTEXT,
    ),
    "stop_sequence": StopReason.SEQUENCE,
    "pause_turn": StopReason.PAUSE,
}
_FAILURES: dict[str, ErrorKind] = {
    "error": "server",
    "server_error": "server",
    "internal_error": "server",
    "internal_server_error": "server",
    "network_error": "server",  # Z.ai
    "insufficient_system_resource": "overloaded",  # DeepSeek
    "overloaded": "overloaded",
    "abort": "server",  # vLLM, SGLang: the engine gave the request up
    "aborted": "server",
    "cancelled": "server",
    "canceled": "server",
    "failed": "server",
    "timeout": "timeout",
}
NO_STOP_WORDS = frozenset({"", "null", "none"})  # how some servers write that the answer goes on


def find_stop_reason(word: str) -> StopReason | None:
    """Return what a stop word means; None for one that no table has."""
    return _WHYS.get(word.lower())


def failure_kind(word: str) -> ErrorKind | None:
    """Return the kind of failure that a stop word names; None for one that is no failure."""
    return _FAILURES.get(word.lower())

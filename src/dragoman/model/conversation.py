"""Requests (`Conversation`), whole replies (`Reply`), the canonical form of a conversation, and token counts. Pure."""

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

# --- Names of fields in an `Extra`: a path relative to the node, or an internal name of the family.
#
# If a wire name itself looks like a path or an internal name, it gets the prefix `./`, so that no name is ambiguous.


T = TypeVar("T")

PARENT_PREFIX = "../"  # marks a field of the object that contains the node
INTERNAL_PREFIX = "~"  # marks a value for the family's own codec: how something was spelt; never sent
_HERE = "./"

OTHER_SHAPES = (
    "~shapes"  # on a conversation: fields that came in a shape its dialect does not define; a filter notes them
)
NATIVE_NAME = "~inner"  # on a tool or a call: its name in its own family, if other families get another name


def to_extra_names(fields: Mapping[str, T]) -> dict[str, T]:
    """Return wire fields under the names that an `Extra` gives them."""
    return {
        _HERE + name if "." in name or name.startswith(INTERNAL_PREFIX) else name: value
        for name, value in fields.items()
    }


def node_fields(fields: Mapping[str, T]) -> dict[str, T]:
    """Return the node's own fields of an `Extra`, by wire name."""
    return {
        name.removeprefix(_HERE): value
        for name, value in fields.items()
        if name.startswith(_HERE) or not ("." in name or name.startswith(INTERNAL_PREFIX))
    }


def parent_fields(fields: Mapping[str, T]) -> dict[str, T]:
    """Return the fields of an `Extra` that belong to the object around the node, by wire name."""
    return {wire_name(name): value for name, value in fields.items() if name.startswith(PARENT_PREFIX)}


def wire_name(name: str) -> str:
    """Return the wire name of a field of an `Extra`."""
    return name.removeprefix(PARENT_PREFIX).removeprefix(_HERE)


Role: TypeAlias = Literal["user", "assistant", "system"]


class Message(Node, frozen=True):
    """One message of a conversation."""

    role: Role
    blocks: tuple[Block, ...]


class ToolSpec(Node, frozen=True):
    """A tool the model may call. `schema is None` means a free-text tool.

    `waits_for` names what must happen before the model is offered the tool: nothing, a tool search that finds it
    (`defer_loading`), or a block of a message that defines it. Only some families can express the latter two.
    """

    name: str
    description: str = ""
    schema: Mapping[str, Json] | None = None
    cache: CacheBreakpoint | None = None
    strict: bool | None = None
    waits_for: Literal["", "search", "block"] = ""

    def has_same_definition(self, other: ToolSpec) -> bool:
        """Return whether both describe the same tool to a model; the names are not compared."""
        return (self.description, self.schema, self.strict) == (other.description, other.schema, other.strict)


def tool_name(tool: ToolSpec | Opaque) -> str | None:
    """Return the name of a tool; None for an opaque one without a name, which may stand for several tools."""
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
    """The form that the reply must have."""

    kind: Literal["text", "json", "schema"] = "text"
    name: str = ""
    schema: Mapping[str, Json] | None = None
    strict: bool | None = None
    extra: Extra | None = None


class Thinking(Struct, frozen=True):
    """How much the model thinks, and whether the reply shows it."""

    mode: Literal["default", "off", "on", "adaptive", "between_tools"] = "default"
    effort: str = ""
    budget: int | None = None
    show: bool | None = None  # None: the default of the target


class ServerState(Struct, frozen=True):
    """Something in a request that only the client's own service can serve.

    Examples: earlier turns or a template that it stores, a background job, a conversation to compact. A target accepts
    it if `Capabilities.server_state` contains the name; the other fields make up the error message if not.
    """

    name: str  # the request field, or the type of the item, that refers to it
    at: str
    reason: str  # why another service cannot serve it, and what to send instead
    has_turns: bool = False  # earlier turns: a tool result may answer a call that the request does not contain
    is_stored: bool = False  # stored by the service, so that no other service has it; earlier turns are stored, too
    is_job: bool = False  # work that continues without the client: a second request starts a second job
    reply_id: str = ""  # the id of the earlier reply that the request continues
    code: str = ""  # of the error
    details: str = ""  # of the error, as JSON text


class Conversation(Node, frozen=True):
    """A request to a model: messages, tools and settings."""

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
    user: str = ""  # the id of the end user, for the upstream's abuse checks
    session: str = ""  # identifies the conversation of one client, without its own ids; set by a gateway
    hints: Extra | None = None  # request headers that matter to one family
    server_state: tuple[ServerState, ...] = ()  # state of the client's own service that the request refers to
    estimated_tokens: int | None = None  # an estimate of the input tokens; a filter sets it for the response half

    @property
    def has_stored_turns(self) -> bool:
        """Whether the service stores earlier turns of this conversation."""
        return any(each.has_turns for each in self.server_state)

    @property
    def needs_same_service(self) -> bool:
        """Whether only one service can answer: the one that stores the state to which the request refers."""
        return bool(self.server_state) and any(each.has_turns or each.is_stored for each in self.server_state)

    @property
    def is_job(self) -> bool:
        """Whether the request starts a job, so that a retry would start a second one."""
        return bool(self.server_state) and any(each.is_job for each in self.server_state)


def without_messages(conversation: Conversation) -> Conversation:
    """Return the conversation without its messages, which may be large: readers of a reply do not need them."""
    return structs.replace(conversation, messages=())


def without_content(conversation: Conversation) -> Conversation:
    """Return the settings of a conversation only, to be kept in memory while the reply is streamed."""
    return structs.replace(conversation, messages=(), system=(), tools=())


class StopReason(Enum):
    """Why the model stopped."""

    END = "end"
    TOOL = "tool"
    LENGTH = "length"
    SEQUENCE = "sequence"
    REFUSAL = "refusal"
    CONTEXT = "context"
    PAUSE = "pause"


class Stop(Struct, frozen=True):
    """The end of a choice: the reason, and the stop sequence if one was found."""

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
    """One of the alternatives in a reply."""

    blocks: tuple[Block, ...]
    stop: Stop


class Reply(Node, frozen=True):
    """A whole reply of a model."""

    id: str
    model: str
    choices: tuple[Choice, ...]
    usage: Usage | None = None


# --- The canonical form that every reader produces, so that equal conversations of all dialects give equal values.
#
# See docs/decisions/content.md#d8.


def to_canonical(conversation: Conversation, tidy: Sequence[Message] = ()) -> Conversation:
    """Return the conversation in its canonical form.

    Tool results come first in their turn, and user messages that follow results are merged into that turn; leading
    system messages move to `system`; empty texts without metadata are removed. `tidy` are messages known to be
    canonical, such as a filter's input: the same object at the same index is not checked again. Raises
    MalformedRequest for a tool call outside assistant messages and a tool result outside user messages.
    """
    messages = list(conversation.messages)
    for place in compress(range(len(messages)), map(is_not, messages, chain(tidy, repeat(None)))):
        messages[place] = _tidy(messages[place])
    followed_by_user = [one for one, other in pairwise(messages) if one.role == other.role == "user"]
    if any(map(_has_results, followed_by_user)):
        messages = _join_result_turns(messages)
    system = list(filter(_has_content, conversation.system))
    while messages and messages[0].role == "system" and _can_lift(messages[0]):
        system += _lifted(messages.pop(0))
    if not (messages or system) and (conversation.messages or conversation.system):
        messages = [Message("system", ())]  # empty content differs from no content
    same_lengths = len(messages) == len(conversation.messages) and len(system) == len(conversation.system)
    if not same_lengths or not all(map(is_, (*messages, *system), (*conversation.messages, *conversation.system))):
        conversation = structs.replace(conversation, messages=tuple(messages), system=tuple(system))
    return conversation


def with_separator(before: Iterable[Block], blocks: tuple[Block, ...], separator: str) -> tuple[Block, ...]:
    """Return the blocks with the separator in front of their first text, if there is text in `before`."""
    if not separator or not any(isinstance(block, Text) and block.text.strip() for block in before):
        return blocks
    for index, block in enumerate(blocks):
        if isinstance(block, Text) and block.text.strip():
            return (*blocks[:index], structs.replace(block, text=separator + block.text), *blocks[index + 1 :])
    return blocks


def _has_content(block: Block) -> bool:
    return not (isinstance(block, Text) and not block.text) or any(
        (block.cache, block.signature, block.citations, block.extra)
    )


def _tidy(message: Message) -> Message:
    role, tidy, others = message.role, True, False
    for block in message.blocks:
        if type(block) is ToolResult:
            if role != "user":
                raise MalformedRequest(
                    f"a message with the role {role} contains a tool result; only user messages may", at=block.at.path
                )
            tidy = tidy and not others
            continue
        others = True
        if type(block) is Text:
            tidy = tidy and bool(block.text)
        elif type(block) is ToolCall and role != "assistant":
            raise MalformedRequest(
                f"a message with the role {role} contains a tool call; only assistant messages may", at=block.at.path
            )
    if tidy:
        return message
    blocks = tuple(filter(_has_content, message.blocks))
    if message.role == "user" and any(isinstance(block, ToolResult) for block in blocks[1:]):
        blocks = tuple(sorted(blocks, key=lambda block: not isinstance(block, ToolResult)))
    return message if blocks == message.blocks else structs.replace(message, blocks=blocks)


def _join_result_turns(messages: Iterable[Message]) -> list[Message]:
    joined: list[Message] = []
    run: list[Message] = []  # one turn: tool results, and the user messages that follow them
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
    return bool(message.blocks) and type(message.blocks[0]) is ToolResult  # in canonical form they come first


def _union(one: Extra | None, other: Extra | None) -> Extra | bool | None:
    """Return both sets of fields merged; False if they contradict each other: the messages are not merged then."""
    if one is None or other is None or one == other:
        return one or other
    both = {**one.fields, **other.fields}
    if one.family != other.family or any(both[name] != value for name, value in one.fields.items()):
        return False
    return Extra(one.family, both, one.spelling | other.spelling)


def _can_lift(message: Message) -> bool:
    """Return whether the message has only texts, and each text can carry the message's own extra fields."""
    outer = _outer(message.extra)
    return all(isinstance(block, Text) and _union(outer, block.extra) is not False for block in message.blocks)


def _lifted(message: Message) -> Iterable[Text]:
    """Yield the texts of a system message, each with the message's extra fields as parent fields."""
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


# --- Token counts.
#
# Every reader of usage builds its `Usage` here. The rules are the same for all: a count is a whole number between 0 and
# `MAX_TOKEN_COUNT`, a part never exceeds its total, and no token is counted twice. Services disagree about which count
# contains which, so the total decides where it can.


MAX_TOKEN_COUNT = 1_000_000_000  # more than any model reads or writes; the sum of two fits a 32-bit integer of an SDK


def parse_token_count(value: Json) -> int:
    """Return a reported count, limited to 0..`MAX_TOKEN_COUNT`; 0 for anything that is not a number."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= len(str(MAX_TOKEN_COUNT)):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        return 0
    return int(min(max(value, 0), MAX_TOKEN_COUNT))


def first_token_count(*values: Json) -> int:
    """Return the first count that is not 0. Services have several names for one figure."""
    return next((count for value in values if (count := parse_token_count(value))), 0)


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
    """Build the usage of a service that counts fresh, cached and written input separately."""
    read = min(read, MAX_TOKEN_COUNT)
    write = min(write, MAX_TOKEN_COUNT - read)
    return Usage(min(fresh, MAX_TOKEN_COUNT - read - write), output, read, write, min(reasoning, output), extra=extra)


# --- Stop reasons in the words of many services. Dialects look up words here that their own tables do not have.
#
# A blocked reply is `StopReason.REFUSAL`, a cut one `StopReason.LENGTH` or `StopReason.CONTEXT`, a failure has a kind
# (`failure_kind`), whatever the service calls it. Words are compared without regard to case.


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
_STOP_REASONS: dict[str, StopReason] = {
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
NO_STOP_WORDS = frozenset({"", "null", "none"})  # some servers send these while the reply continues


def find_stop_reason(word: str) -> StopReason | None:
    """Return the meaning of a stop word; None for an unknown one."""
    return _STOP_REASONS.get(word.lower())


def failure_kind(word: str) -> ErrorKind | None:
    """Return the kind of failure that a stop word names; None if it names no failure."""
    return _FAILURES.get(word.lower())

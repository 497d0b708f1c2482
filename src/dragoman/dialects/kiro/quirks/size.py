"""Size: what is too long for the model is refused so that clients compact, or loses its oldest exchanges (D10)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from msgspec import structs

from dragoman.dialects.kiro.faults import context_full
from dragoman.dialects.kiro.models import count_input, estimate_message, model_of
from dragoman.errors import Unrepresentable
from dragoman.model.blocks import ToolResult
from dragoman.model.conversation import Conversation, Message
from dragoman.model.facts import Facts
from dragoman.model.filter import Filter, MakeBack
from dragoman.model.notes import Notes

MOST_TOKENS = 300_000  # of one request, whatever the model's window (rule 43)
_KEPT = (
    3 / 4
)  # trimming by size leaves so much of what is allowed, so that it happens seldom: caches stay warm in between


class FitSize(Filter):
    """`oversize` says what happens to a conversation that is too long; `history_limit` counts its entries as well."""

    name = "kiro.fit_size"
    before = "fold_system"

    def __init__(self, oversize: str, history_limit: int | None, merges: bool) -> None:
        self._trims = oversize == "trim"
        self._most_entries = history_limit
        self._merges = merges

    def forward(self, conversation: Conversation, notes: Notes, facts: Facts) -> tuple[Conversation, MakeBack | None]:
        asked = conversation.messages
        limit = min(model_of(conversation.model).window, MOST_TOKENS)
        if self._most_entries is not None:
            conversation = _with(conversation, _trimmed(asked, self._entries(asked), self._most_entries))
        counted = len(asked) - len(conversation.messages)
        size = None if counted else conversation.tokens
        if size is None:
            size = count_input(conversation, facts.inventory(conversation))
        if size > limit and self._trims:
            tokens = _tokens(conversation.messages)
            around = size - tokens[0]
            conversation = _with(conversation, _trimmed(conversation.messages, tokens, int(limit * _KEPT) - around))
            size = count_input(conversation, facts.inventory(conversation))
        if size > limit:
            fault = context_full(size, limit)
            raise Unrepresentable(fault.message, fault=fault)
        trimmed = len(asked) - counted - len(conversation.messages)
        limits = {f"history_limit is {self._most_entries}": counted}
        limits[f"the service takes no more than {limit} tokens"] = trimmed
        for why, gone in limits.items():
            if gone:
                notes.dropped("kiro.history.trimmed", "messages", f"the oldest {gone} messages are left out: {why}")
        return structs.replace(conversation, tokens=size), None

    def _entries(self, messages: Sequence[Message]) -> list[int]:
        """How many entries history has, placeholders included, if it begins at each of these messages."""
        adjacent = -1 if self._merges else 1
        entries: list[int] = []
        turns, after = 0, ""
        for message in reversed(messages):
            if message.role != "system":
                turns += 1 + (message.role == "assistant" and not after)  # the last turn is a question
                turns += adjacent if message.role == after else 0
                after = message.role
            entries.append(max(turns - 1 + (after == "assistant"), 0))
        return [*reversed(entries)] or [0]


def _with(conversation: Conversation, messages: tuple[Message, ...]) -> Conversation:
    return conversation if messages is conversation.messages else structs.replace(conversation, messages=messages)


def _tokens(messages: Sequence[Message]) -> list[int]:
    """How many tokens are left without what stands before each of these messages, system messages excepted."""
    sizes = [*map(estimate_message, messages)]
    going = (0 if message.role == "system" else size for message, size in zip(messages, sizes, strict=True))
    whole = sum(sizes)
    return [whole - gone for gone in accumulate(going, initial=0)]


def _trimmed(messages: tuple[Message, ...], left: Sequence[int], most: int) -> tuple[Message, ...]:
    """Drop whole exchanges, oldest first, until it fits or only the last is left. System messages stay."""
    if left[0] <= most:
        return messages
    cuts = [index for index, message in enumerate(messages) if index and _opens(message)]
    if not cuts:
        return messages
    cut = next((index for index in cuts if left[index] <= most), cuts[-1])
    return (*[message for message in messages[:cut] if message.role == "system"], *messages[cut:])


def _opens(message: Message) -> bool:
    """Whether an exchange begins here: with the user, and not with the answer to a call."""
    return message.role == "user" and not any(isinstance(block, ToolResult) for block in message.blocks)

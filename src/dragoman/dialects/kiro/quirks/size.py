"""Size: what is too long for the model is refused so that clients compact, or loses its oldest exchanges (D10)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TypeAlias

from msgspec import structs

from dragoman.dialects.kiro.faults import context_full
from dragoman.dialects.kiro.models import model_of
from dragoman.dialects.kiro.tokens import estimate_input, estimate_messages
from dragoman.errors import Unrepresentable
from dragoman.model.blocks import ToolResult
from dragoman.model.conversation import Conversation, Message
from dragoman.model.filter import MakeBack
from dragoman.model.notes import Notes

MOST_TOKENS = 300_000  # of one request, whatever the model's window (rule 43)
_KEPT = 3 / 4  # trimming leaves so much of what is allowed, so that it happens seldom: caches stay warm in between

_Fits: TypeAlias = Callable[[tuple[Message, ...]], bool]


class FitSize:
    """`oversize` says what happens to a conversation that is too long; `history_limit` counts its entries as well."""

    name = "kiro.fit_size"
    before = "fold_system"

    def __init__(self, oversize: str, history_limit: int | None, merges: bool) -> None:
        self._trims = oversize == "trim"
        self._most_entries = history_limit
        self._merges = merges

    def forward(self, conversation: Conversation, notes: Notes) -> tuple[Conversation, MakeBack | None]:
        messages = conversation.messages
        if self._most_entries is not None and self._entries(messages) > self._most_entries:
            wanted = int(self._most_entries * _KEPT)
            messages = self._trimmed(messages, lambda kept: self._entries(kept) <= wanted)
        limit = min(model_of(conversation.model).window, MOST_TOKENS)
        around = estimate_input(structs.replace(conversation, messages=()))
        if around + estimate_messages(messages) > limit and self._trims:
            messages = self._trimmed(messages, lambda kept: around + estimate_messages(kept) <= limit * _KEPT)
        if (size := around + estimate_messages(messages)) > limit:
            fault = context_full(size, limit)
            raise Unrepresentable(fault.message, fault=fault)
        if len(messages) == len(conversation.messages):
            return conversation, None
        gone = len(conversation.messages) - len(messages)
        notes.dropped(
            "kiro.history.trimmed", "messages", f"the oldest {gone} messages are left out: the service takes no more"
        )
        return structs.replace(conversation, messages=tuple(messages)), None

    def _entries(self, messages: Sequence[Message]) -> int:
        """How many entries history will have, placeholders included."""
        roles = [message.role for message in messages if message.role != "system"]
        adjacent = sum(one == other for one, other in pairwise(roles))
        turns = len(roles) + (-adjacent if self._merges else adjacent)
        turns += (roles[:1] == ["assistant"]) + (roles[-1:] == ["assistant"])
        return max(turns - 1, 0)

    def _trimmed(self, messages: Sequence[Message], fits: _Fits) -> tuple[Message, ...]:
        """Drop whole exchanges, oldest first, until it fits or only the last is left. System messages stay."""
        cuts = [index for index, message in enumerate(messages) if index and _opens(message)]
        for cut in cuts:
            kept = (*[message for message in messages[:cut] if message.role == "system"], *messages[cut:])
            if fits(kept) or cut == cuts[-1]:
                return kept
        return tuple(messages)


def _opens(message: Message) -> bool:
    """Whether an exchange begins here: with the user, and not with the answer to a call."""
    return message.role == "user" and not any(isinstance(block, ToolResult) for block in message.blocks)

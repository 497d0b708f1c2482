"""AlternateTurns: turns in the order that the target wants, by merging or by placeholders (D10)."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import structs

from dragoman.model.blocks import Block, Extra, Text, ToolResult
from dragoman.model.canonical import spaced
from dragoman.model.capabilities import Capabilities
from dragoman.model.conversation import Conversation, Message, Role
from dragoman.model.facts import Facts, Features
from dragoman.model.filter import Filter, MakeBack
from dragoman.model.notes import Notes


class AlternateTurns(Filter):
    """`merge`: adjacent turns of one role become one. `pair`: a placeholder stands where a turn is missing.

    Both begin with a user turn; where the target takes no prefill, all end with one.
    """

    name = "alternate_turns"

    def __init__(self, upstream: Capabilities) -> None:
        self._turns = upstream.turns
        self._seam = upstream.turn_seam
        self._prefill = "user_last" not in upstream.traits
        ends: Features = frozenset() if self._prefill else frozenset({"prefill"})
        self.concerns = ends if upstream.turns == "free" else ends | {"uneven_turns"}
        self._fillers: dict[Role, str] = {"assistant": upstream.fillers[0], "user": upstream.fillers[1]}

    def forward(self, conversation: Conversation, notes: Notes, facts: Facts) -> tuple[Conversation, MakeBack | None]:
        before = len(notes)
        messages = list(conversation.messages)
        if self._turns != "free":
            messages = self._begun(messages, notes)
            messages = _merged(messages, self._seam, notes) if self._turns == "merge" else self._paired(messages, notes)
        if not self._prefill and messages and messages[-1].role == "assistant":
            messages.append(self._filler("user", messages[-1], notes))
        if len(notes) == before:
            return conversation, None
        return structs.replace(conversation, messages=tuple(messages)), None

    def _begun(self, messages: list[Message], notes: Notes) -> list[Message]:
        first = next((message for message in messages if message.role != "system"), None)
        if first is not None and first.role == "user":
            return messages
        return [self._filler("user", first, notes), *messages]

    def _paired(self, messages: Iterable[Message], notes: Notes) -> list[Message]:
        paired: list[Message] = []
        for message in messages:
            if paired and paired[-1].role == message.role != "system":
                paired.append(self._filler("assistant" if message.role == "user" else "user", message, notes))
            paired.append(message)
        return paired

    def _filler(self, role: Role, near: Message | None, notes: Notes) -> Message:
        text = self._fillers[role]
        notes.added("turn.placeholder", near.at.path if near else "messages", f"a missing {role} turn became {text!r}")
        return Message(role, (Text(text),))


def _merged(messages: Iterable[Message], seam: str, notes: Notes) -> list[Message]:
    runs: list[list[Message]] = []
    for message in messages:
        if runs and runs[-1][0].role == message.role != "system":
            notes.changed("turn.merged", message.at.path, f"joined with the {message.role} turn before it")
            runs[-1].append(message)
        else:
            runs.append([message])
    return [_joined(run, seam) if len(run) > 1 else run[0] for run in runs]


def _joined(run: list[Message], seam: str) -> Message:
    blocks: list[Block] = []
    extra: Extra | None = None
    said: tuple[Block, ...] = ()  # a text before, if there is one
    for message in run:
        blocks += spaced(said, message.blocks, seam)
        said = said or tuple(block for block in message.blocks if isinstance(block, Text) and block.text.strip())[:1]
        extra = _union(extra, message.extra)
    if run[0].role == "user":
        blocks.sort(key=lambda block: not isinstance(block, ToolResult))
    return structs.replace(run[0], blocks=tuple(blocks), extra=extra)


def _union(one: Extra | None, other: Extra | None) -> Extra | None:
    """The fields of both turns; where they contradict each other, those of the first."""
    if one is None or other is None or one.family != other.family:
        return one or other
    return Extra(one.family, {**other.fields, **one.fields}, one.spelling | other.spelling)

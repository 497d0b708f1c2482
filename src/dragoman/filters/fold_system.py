"""FoldSystem: system messages where the target has no place for them become labelled text of a user turn (D10)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec import structs

from dragoman.model.blocks import Block, Text
from dragoman.model.canonical import canonical, spaced
from dragoman.model.capabilities import Capabilities
from dragoman.model.conversation import Conversation, Message
from dragoman.model.facts import Facts, Features
from dragoman.model.filter import Filter, MakeBack
from dragoman.model.notes import Notes

LABEL = "[System] "
_TURNS: Features = frozenset({"system_turns"})


class FoldSystem(Filter):
    """A system message joins the user turn right before it, else the one right after it, else it is a user turn itself.

    Where the target has no system text at all, that text stands, without a label, before the first user turn.
    """

    name = "fold_system"

    def __init__(self, upstream: Capabilities) -> None:
        self._keeps_leading = upstream.system != "none"
        self.concerns = _TURNS if self._keeps_leading else _TURNS | {"system"}
        self._question = upstream.fillers[1]
        self._seam = upstream.turn_seam

    def forward(self, conversation: Conversation, notes: Notes, facts: Facts) -> tuple[Conversation, MakeBack | None]:
        before = len(notes)
        messages = [*conversation.messages]
        if [message for message in messages if message.role == "system"]:
            messages = _fold(messages, notes)
        system = conversation.system
        if system and not self._keeps_leading:
            notes.changed("system.folded", system[0].at.path, "the system text now begins the first user turn")
            messages = self._lead(system, messages, notes)
            system = ()
        if len(notes) == before:
            return conversation, None
        folded = structs.replace(conversation, messages=tuple(messages), system=system)
        return canonical(folded, conversation.messages), None

    def _lead(self, system: tuple[Text, ...], messages: list[Message], notes: Notes) -> list[Message]:
        if messages and messages[0].role == "user":
            turn = structs.replace(messages[0], blocks=spaced(system, messages[0].blocks, self._seam))
            return [_begun(system, turn), *messages[1:]]
        notes.added("turn.placeholder", "messages", f"a missing first user turn became {self._question!r}")
        return [Message("user", (*system, *spaced(system, (Text(self._question),), self._seam))), *messages]


def _fold(messages: Iterable[Message], notes: Notes) -> list[Message]:
    folded: list[Message] = []
    waiting: list[Block] = []  # for the user turn after them
    for message in messages:
        if message.role == "system":
            notes.changed("system.folded", message.at.path, "a system message became labelled text of a user turn")
            if folded and folded[-1].role == "user":
                folded[-1] = structs.replace(folded[-1], blocks=(*folded[-1].blocks, *_labelled(message)))
            else:
                waiting.extend(_labelled(message))
            continue
        if waiting and message.role == "user":
            folded.append(_begun(waiting, message))
        else:
            folded.extend([Message("user", tuple(waiting)), message] if waiting else [message])
        waiting = []
    if waiting:
        folded.append(Message("user", tuple(waiting)))
    return folded


def _labelled(message: Message) -> Iterator[Block]:
    for block in message.blocks:
        if not isinstance(block, Text):
            yield block
        elif block.text.strip():
            yield structs.replace(block, text=LABEL + block.text)


def _begun(blocks: Iterable[Block], message: Message) -> Message:
    """The turn with the blocks before what it says; the canonical form keeps its tool results first."""
    return structs.replace(message, blocks=(*blocks, *message.blocks))

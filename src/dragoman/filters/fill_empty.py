"""FillEmpty: no text of white space only, unless it carries a seal that must go back, and no turn without a block.

A turn that is left with nothing goes if the turn before it has the same role, or if it is an answer at the very end;
elsewhere it says `.`: without it the turns around it would move, and with them the prefix that prompt caches know.
"""

from __future__ import annotations

from typing import TypeVar

from msgspec import structs

from dragoman.model.blocks import Block, Cache, Reasoning, Text, ToolResult
from dragoman.model.canonical import canonical
from dragoman.model.conversation import Conversation, Message
from dragoman.model.facts import Facts, Features
from dragoman.model.filter import Filter, MakeBack
from dragoman.model.notes import Action, Notes

FILLER = "."
_MARK_LOST = ", and its cache mark with it"
B = TypeVar("B", bound=Block)


class FillEmpty(Filter):
    name = "fill_empty"
    concerns: Features = frozenset({"blank", "prefill"})

    def forward(self, conversation: Conversation, notes: Notes, facts: Facts) -> tuple[Conversation, MakeBack | None]:
        before = len(notes)
        system = _without_blanks(conversation.system, notes)
        messages: list[Message] = []
        speaker = ""
        last = len(conversation.messages) - 1
        for index, message in enumerate(conversation.messages):
            kept = _spoken(message, notes)
            if not kept.blocks:
                goes = message.role in ("system", speaker) or (message.role == "assistant" and index == last)
                fate = "was left out" if goes else f"became {FILLER!r}"
                notes.changed("turn.empty", message.at.path, f"the {message.role} turn says nothing; it {fate}")
                if goes:
                    continue
                kept = structs.replace(kept, blocks=(Text(FILLER, at=message.at),))
            messages.append(kept)
            speaker = speaker if message.role == "system" else message.role
        _strip_end(messages, notes)
        if len(notes) == before:
            return conversation, None
        filled = structs.replace(conversation, messages=tuple(messages), system=system)
        return canonical(filled, conversation.messages), None


def _spoken(message: Message, notes: Notes) -> Message:
    blocks = _without_blanks(message.blocks, notes)
    blocks = tuple([_result(block, notes) if isinstance(block, ToolResult) else block for block in blocks])
    return message if blocks == message.blocks else structs.replace(message, blocks=blocks)


def _result(result: ToolResult, notes: Notes) -> ToolResult:
    content = _without_blanks(result.content, notes)
    return result if content is result.content else structs.replace(result, content=content)


def _without_blanks(blocks: tuple[B, ...], notes: Notes) -> tuple[B, ...]:
    kept: list[B] = []
    for block in blocks:
        if not isinstance(block, Text) or block.text.strip() or block.seal:
            kept.append(block)
            continue
        fate = "" if block.cache is None else _move_mark(kept, block.cache)
        action: Action = "dropped" if fate == _MARK_LOST else "changed"
        notes.add("text.blank", action, block.at.path, f"text without content was left out{fate}")
    return blocks if len(kept) == len(blocks) else tuple(kept)


def _move_mark(kept: list[B], mark: Cache) -> str:
    """Give a cache mark to the block before, which ends at the same place."""
    if not kept or isinstance(kept[-1], Reasoning):
        return _MARK_LOST
    if kept[-1].cache is None:
        kept[-1] = structs.replace(kept[-1], cache=mark)
    return "; its cache mark moved to the block before"


def _strip_end(messages: list[Message], notes: Notes) -> None:
    """The text that the model shall go on with may not end with white space."""
    if not messages or messages[-1].role != "assistant":
        return
    *others, end = messages[-1].blocks
    if isinstance(end, Text) and end.text != end.text.rstrip():
        notes.changed("text.trailing_space", end.at.path, "white space at the end of the last answer was cut")
        messages[-1] = structs.replace(messages[-1], blocks=(*others, structs.replace(end, text=end.text.rstrip())))

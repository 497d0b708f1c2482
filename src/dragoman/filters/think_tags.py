"""think_tags: thinking that an upstream writes as `<think>…</think>` at the head of its text becomes reasoning.

Only a tag that opens a text block counts (white space before it does not matter): further on it is a quotation.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from dragoman.model.blocks import Reasoning, Text
from dragoman.model.conversation import Conversation
from dragoman.model.events import (
    BlockEnded,
    BlockKeys,
    BlockStarted,
    Cited,
    Delta,
    Event,
    Events,
    ReasoningDelta,
    Sealed,
    Search,
    TextDelta,
    nothing,
)
from dragoman.model.filter import MakeBack
from dragoman.model.notes import Notes

TAGS = (("<think>", "</think>"), ("<thinking>", "</thinking>"), ("◁think▷", "◁/think▷"))


class ThinkTags:
    name = "think_tags"

    def __init__(self, family: str) -> None:
        self._family = family

    def forward(self, conversation: Conversation, notes: Notes) -> tuple[Conversation, MakeBack | None]:
        return conversation, partial(_Split, self._family)


class _Block:
    """A text block on its way: `head` (it may open with a tag), `thinking`, `after` (white space goes), `plain`."""

    def __init__(self, started: BlockStarted) -> None:
        self.started = started
        self.state = "head"
        self.held = ""
        self.close = ""
        self.fresh = False  # thinking has just opened: one newline after the tag goes
        self.key = started.key  # of the block that is open for it now


class _Split:
    def __init__(self, family: str, notes: Notes, keys: BlockKeys) -> None:
        self._family = family
        self._notes = notes
        self._keys = keys
        self._blocks: dict[int, _Block] = {}

    def feed(self, events: Events) -> Events:
        if all(type(event) is TextDelta and self._passes(event.key) for event in events):
            return events
        out = tuple(each for event in events for each in self._take(event))
        return events if out == events else out

    def lets(self, kind: type[Delta], key: int) -> Search | None:
        return nothing if kind is not TextDelta or self._passes(key) else None

    def _passes(self, key: int) -> bool:
        block = self._blocks.get(key)
        return block is None or block.state == "plain"

    def _take(self, event: Event) -> Iterable[Event]:
        match event:
            case BlockStarted(key, Text()):
                self._blocks[key] = _Block(event)
            case TextDelta(key, text) if (block := self._blocks.get(key)) is not None:
                yield from self._text(block, text)
            case BlockEnded(key) if (block := self._blocks.pop(key, None)) is not None:
                yield from self._end(block, event.complete)
            case Sealed(key) | Cited(key) if (block := self._blocks.get(key)) is not None:
                yield from self._plain(block, block.held)
                yield event
            case _:
                yield event

    def _text(self, block: _Block, text: str) -> Iterable[Event]:
        if block.state == "plain":
            yield TextDelta(block.key, text)
            return
        block.held += text
        if block.state == "head":
            yield from self._head(block)
        if block.state == "thinking":
            yield from self._thinking(block)
        if block.state == "after" and block.held.strip():
            yield from self._plain(block, block.held.lstrip())

    def _head(self, block: _Block) -> Iterable[Event]:
        text = block.held.lstrip()
        for opening, closing in TAGS:
            if text.startswith(opening):
                block.state, block.close, block.held = "thinking", closing, text.removeprefix(opening)
                block.key, block.fresh = self._keys.fresh(), True
                self._notes.changed("think.tags", "", f"thinking written as {opening} in the text became reasoning")
                yield BlockStarted(block.key, Reasoning("", self._family), block.started.choice)
                return
        if not any(opening.startswith(text) for opening, _ in TAGS):
            yield from self._plain(block, block.held)

    def _thinking(self, block: _Block) -> Iterable[Event]:
        if block.fresh and block.held:
            block.held, block.fresh = block.held.removeprefix("\n"), False
        thought, found, rest = block.held.partition(block.close)
        if not found:
            keep = _overlap(thought, block.close)
            thought, block.held = thought[: len(thought) - keep], thought[len(thought) - keep :]
        if thought:
            yield ReasoningDelta(block.key, thought)
        if found:
            yield BlockEnded(block.key)
            block.state, block.held = "after", rest

    def _plain(self, block: _Block, text: str) -> Iterable[Event]:
        """From here on the block is ordinary text."""
        if block.state == "plain":
            return
        if block.state == "thinking":
            if block.held:
                yield ReasoningDelta(block.key, block.held)
            yield BlockEnded(block.key)
        block.state, block.held, block.key = "plain", "", block.started.key
        yield block.started
        if text:
            yield TextDelta(block.key, text)

    def _end(self, block: _Block, complete: bool) -> Iterable[Event]:
        if block.state == "head":
            yield from self._plain(block, block.held)
        elif block.state == "thinking" and block.held:
            yield ReasoningDelta(block.key, block.held)
        if block.state != "after":
            yield BlockEnded(block.key, complete)


def _overlap(text: str, marker: str) -> int:
    """How much of the text's end could be the marker's beginning."""
    return next((size for size in range(min(len(marker) - 1, len(text)), 0, -1) if marker.startswith(text[-size:])), 0)

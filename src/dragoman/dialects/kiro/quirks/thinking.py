"""Thinking: what history holds of it goes as tagged text, it is asked for in the model's own way, and tags come back.

The answer's half, theory of operation. A text block is at its `head` until it is known whether it opens with the tag,
white space aside. Inside the tag everything is thinking until a closing tag that is not quoted and is followed by a
blank line, or by nothing but white space before the block ends (facts 3.3, no. 10). After it all is text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from msgspec import structs

from dragoman.dialects.kiro.models import find_model
from dragoman.dialects.kiro.request import FAMILY
from dragoman.model.blocks import Block, Reasoning, Text
from dragoman.model.conversation import Conversation, Thinking
from dragoman.model.events import BlockEnded, BlockKeys, BlockStarted, Event, ReasoningDelta, TextDelta
from dragoman.model.filter import (
    EventKinds,
    Facts,
    Features,
    Filter,
    MakeResponseFilter,
    MessageFilter,
    Notes,
    ResponseFilter,
)
from dragoman.wire.markers import Markers

HISTORY_TAGS = ("<kiro_thinking>", "</kiro_thinking>")
DEFAULT_LENGTH = 16_000  # tokens of thinking where none are named

_ENABLED = "<thinking_mode>enabled</thinking_mode><max_thinking_length>{}</max_thinking_length>"
_ADAPTIVE = "<thinking_mode>adaptive</thinking_mode><thinking_effort>{}</thinking_effort>"


def wrap_in_tags(text: str) -> str:
    return HISTORY_TAGS[0] + text + HISTORY_TAGS[1]


def is_replayable(block: Reasoning) -> bool:
    """Whether the service takes the thought back as it is: it sealed it, and the seal has what it seals.

    See rule 40 of docs/dialects/kiro.md.
    """
    signature = block.signature
    if signature is None or signature.family != FAMILY or not signature.data:
        return False
    return (
        bool(block.text.strip()) if signature.kind == "signature" else signature.kind == "redacted" and not block.text
    )


class WrapThinking(MessageFilter):
    """Thinking that the service did not seal itself goes back as tagged text of its turn.

    See docs/decisions/kiro.md#d14.
    """

    name = "kiro.wrap_thinking"
    applies_to: Features = frozenset({"reasoning"})
    before = "drop_foreign"

    def block(self, block: Block, notes: Notes) -> Iterable[Block]:
        if not isinstance(block, Reasoning) or is_replayable(block):
            return (block,)
        if block.text.strip():
            notes.changed("kiro.thinking.wrapped", block.at.path, f"thinking is replayed as {HISTORY_TAGS[0]} text")
            return (Text(wrap_in_tags(block.text), at=block.at),)
        notes.dropped("kiro.thinking.unreadable", block.at.path, "sealed thinking of another origin says nothing here")
        return ()


class AskForThinking(Filter):
    """Thinking in the words of the model: model fields for new ones, tags at the head of the text for older ones.

    The tags stand before the system text, in the first user turn: never beside tool results (rule 41 of
    docs/dialects/kiro.md), and always at the same place, so that the turns before the last stay as they were.
    """

    name = "kiro.ask_thinking"
    applies_to: Features = frozenset({"thinking"})
    before = "fold_system"

    def forward(
        self, conversation: Conversation, notes: Notes, facts: Facts
    ) -> tuple[Conversation, MakeResponseFilter | None]:
        asked = conversation.thinking
        if asked.mode not in ("on", "adaptive") and (asked.mode == "off" or not asked.effort):
            return conversation, None
        match find_model(conversation.model).thinking_style:
            case "tags":
                tags = _tags(asked)
                notes.changed(
                    "kiro.thinking.tags", "thinking", f"thinking is asked for by {tags} before the system text"
                )
                if asked.show is False:
                    notes.dropped("thinking.show", "thinking", "thinking by tags is always shown")
                system = (Text(tags), *conversation.system)
                return structs.replace(conversation, system=system, thinking=Thinking()), _Split
            case "claude" if asked.mode != "adaptive":
                notes.changed("kiro.thinking.adaptive", "thinking", "this model thinks adaptively, with an effort")
                return structs.replace(conversation, thinking=structs.replace(asked, mode="adaptive")), None
            case _:
                return conversation, None  # fit_limits finds the words, or says that there are none


def _tags(asked: Thinking) -> str:
    if asked.mode == "on" and not (asked.effort and asked.budget is None):
        return _ENABLED.format(asked.budget or DEFAULT_LENGTH)
    return _ADAPTIVE.format(asked.effort or "high")


# --- the way back

_OPEN, _CLOSE = "<thinking>", "</thinking>"
_CLOSING = Markers((_CLOSE,))
_MOST_BLANKS = 1024  # characters of white space that may wait for a tag, or for the end of its line
_QUOTES = "`\"'"
# A closing tag and what follows it, as far as it is there: a blank line decides, so does anything else.
_ENDING = re.compile(re.escape(_CLOSE) + r"(?P<space>[ \t]*(?:\n[ \t]*(?P<blank>\n)?)?)")


_IDLE: EventKinds = frozenset({Text})


class _Open:
    """A text block on its way. `key` is that of the block which is open for it now; None: none is."""

    def __init__(self, started: BlockStarted) -> None:
        self.started = started
        self.state = "head"
        self.held = ""
        self.before = ""  # the character before what is held
        self.key: int | None = None


class _Split(ResponseFilter):
    def __init__(self, notes: Notes, keys: BlockKeys) -> None:
        self._notes = notes
        self._keys = keys
        self._blocks: dict[int, _Open] = {}  # that may hold thinking
        self.reads: EventKinds | None = _IDLE

    def take(self, event: Event) -> Iterable[Event]:
        out = tuple(self._split(event))
        self.reads = None if self._blocks else _IDLE
        return out

    def _split(self, event: Event) -> Iterable[Event]:
        match event:
            case BlockStarted(key, Text()):
                self._blocks[key] = _Open(event)
            case TextDelta(key, text) if (block := self._blocks.get(key)) is not None:
                block.held += text
                yield from self._advance(block)
            case BlockEnded(key) if (block := self._blocks.pop(key, None)) is not None:
                yield from self._end(block, event)
            case _:
                block = self._blocks.get(getattr(event, "key", -1))
                yield from self._settled(block) if block is not None else ()
                yield event

    def _settled(self, block: _Open) -> Iterable[Event]:
        """The block as text, at once: something comes for it that only a text can have."""
        if block.state == "thinking":
            yield from self._thought(block, block.held)
            yield BlockEnded(self._key(block))
        yield from self._plain(block, block.held if block.state == "head" else "")

    def _advance(self, block: _Open) -> Iterable[Event]:
        if block.state == "head":
            yield from self._head(block)
        if block.state == "thinking":
            yield from self._thinking(block)
        if block.state == "after":
            block.held = block.held.lstrip()
            if block.held:
                yield from self._plain(block, block.held)

    def _head(self, block: _Open) -> Iterable[Event]:
        text = block.held.lstrip()
        if text.startswith(_OPEN) and len(text) > len(_OPEN):  # one more, which may be the newline that goes
            block.key, block.state = self._keys.fresh(), "thinking"
            block.held = text.removeprefix(_OPEN).removeprefix("\n")
            self._notes.changed("kiro.thinking.split", "", f"thinking written as {_OPEN} in the text became reasoning")
            yield BlockStarted(block.key, Reasoning("", FAMILY), block.started.choice)
        elif not _OPEN.startswith(text[: len(_OPEN)]) or len(block.held) > _MOST_BLANKS:
            yield from self._plain(block, block.held)

    def _thinking(self, block: _Open) -> Iterable[Event]:
        """Give what is surely thinking; hold from the first tag that may still close it."""
        held, position = block.held, 0
        while (found := _ENDING.search(held, position)) is not None:
            if self._quoted(block, found.start()):
                position = found.start() + len(_CLOSE)
            elif found["blank"] is not None:
                yield from self._thought(block, held[: found.start()])
                yield BlockEnded(self._key(block))
                block.state, block.held = "after", held[found.end() :]
                return
            elif found.end() == len(held) and len(held) - found.start() <= _MOST_BLANKS:  # undecided
                yield from self._thought(block, held[: found.start()])
                block.held = held[found.start() :]
                return
            else:
                position = found.start() + len(_CLOSE)
        end, _ = _CLOSING.find(held, position, False)
        yield from self._thought(block, held[:end])
        block.held = held[end:]

    def _quoted(self, block: _Open, at: int) -> bool:
        before = block.held[at - 1] if at else block.before
        return bool(before) and before in _QUOTES

    def _thought(self, block: _Open, text: str) -> Iterable[Event]:
        if text:
            block.before = text[-1]
            yield ReasoningDelta(self._key(block), text)

    def _key(self, block: _Open) -> int:
        assert block.key is not None
        return block.key

    def _plain(self, block: _Open, text: str) -> Iterable[Event]:
        """From here on the block is ordinary text."""
        block.state, block.held, block.key = "plain", "", block.started.key
        self._blocks.pop(block.key, None)
        yield block.started
        if text:
            yield TextDelta(block.key, text)

    def _end(self, block: _Open, event: BlockEnded) -> Iterable[Event]:
        if block.state == "head":
            if block.held.strip() != _OPEN:  # else it is a tag with nothing after it
                yield from self._plain(block, block.held)
        elif block.state == "thinking":
            closed = not self._quoted(block, 0) and block.held.startswith(_CLOSE)
            text = block.held.removeprefix(_CLOSE).rstrip() if closed else block.held
            yield from self._thought(block, text)
        if block.state != "after" and block.key is not None:
            yield BlockEnded(block.key, event.is_complete)
